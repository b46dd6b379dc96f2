use super::*;
use crate::ops::test_tensor::dims;

#[test]
fn strides_are_row_major() {
    assert_eq!(strides(&[2, 3, 4]), [12, 4, 1]);
    assert_eq!(strides(&[]), [0usize; 0]);
}

#[test]
fn broadcast_strides_are_0_along_repeated_axes() {
    assert_eq!(broadcast_strides(&[3, 1], &[2, 3, 4]), [0, 1, 0]);
}

#[test]
fn every_index_is_visited_in_row_major_order() {
    assert_eq!(offsets(&[2, 3], &[3, 1]), [0, 1, 2, 3, 4, 5]);
    assert_eq!(offsets(&[2, 3], &[1, 2]), [0, 2, 4, 1, 3, 5]);
}

#[test]
fn rank_0_has_one_index_and_an_empty_shape_none() {
    assert_eq!(offsets(&[], &[]), [0]);
    assert_eq!(offsets(&[2, 0], &[1, 1]), [0usize; 0]);
}

#[test]
fn a_count_beyond_memory_saturates_and_is_refused() {
    let huge = usize::MAX / 2;
    assert_eq!(count(&[huge, huge]), usize::MAX);
    assert_eq!(count(&[huge, huge, 0]), 0);
    assert!(check_count("op", &[huge, huge]).is_err());
}

#[test]
fn broadcasting_of_dims_prefers_numbers_and_then_the_first_symbol() {
    type Texts = &'static [&'static str];
    let cases: &[(Texts, Texts, Option<Texts>)] = &[
        (&["2", "1"], &["3"], Some(&["2", "3"])),
        (&["n"], &["n"], Some(&["n"])),
        (&["1"], &["n"], Some(&["n"])),
        (&["n"], &["4"], Some(&["4"])),
        (&["4"], &["n"], Some(&["4"])),
        (&["n"], &["m"], Some(&["n"])),
        (&["0"], &["1"], Some(&["0"])),
        (&[], &["n", "2"], Some(&["n", "2"])),
        (&["2"], &["3"], None),
    ];
    for (a, b, expected) in cases {
        let joined = broadcast_dims("op", &[&dims(a), &dims(b)]).ok();
        assert_eq!(joined, expected.map(dims), "{a:?} {b:?}");
    }
}

#[test]
fn shapes_that_do_not_broadcast_are_both_named() {
    let error = broadcast_dims("binary", &[&dims(&["2", "n"]), &dims(&["3", "n"])]).unwrap_err();
    assert_eq!(error.to_string(), "binary: shapes [2,n] and [3,n] do not broadcast");
    assert!(broadcast_shapes("binary", &[&[2], &[3]]).is_err());
    assert_eq!(broadcast_shapes("binary", &[&[2, 1], &[3], &[]]).unwrap(), [2, 3]);
}

#[test]
fn a_symbol_without_a_number_is_an_error_that_names_it() {
    let error = extents("reshape", &dims(&["2", "n"])).unwrap_err();
    assert_eq!(error.to_string(), "reshape: dim 'n' is not bound to a number");
}

#[test]
fn indices_count_from_the_end_when_negative() {
    assert_eq!(axis_index("gather", -1, 3).unwrap(), 2);
    let error = axis_index("gather", -4, 3).unwrap_err();
    assert_eq!(error.to_string(), "gather: index -4 is out of range for extent 3");
    assert!(axis_index("gather", 0, 0).is_err());
}

#[test]
fn a_compensated_sum_keeps_what_plain_addition_loses() {
    let mut total = CompensatedSum::default();
    for term in [1.0, 1e100, 1.0, -1e100] {
        total.add(term);
    }
    assert_eq!(total.value(), 2.0);
    let mut infinite = CompensatedSum::default();
    for term in [f64::INFINITY, 1.0] {
        infinite.add(term);
    }
    assert_eq!(infinite.value(), f64::INFINITY);
}

#[test]
fn arity_errors_say_how_many_inputs_are_expected() {
    let error = check_arity("clamp", &[(), ()], 1..=1).unwrap_err();
    assert_eq!(error.to_string(), "clamp: 2 inputs given where 1 are expected");
    let error = check_arity::<()>("pad", &[], 1..=2).unwrap_err();
    assert_eq!(error.to_string(), "pad: 0 inputs given where 1 to 2 are expected");
}
