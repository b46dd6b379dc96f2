use super::*;
use crate::ops::test_tensor::{dims, eval, eval_error, eval_failure, f32s, floats, i64s, infer, ints};

fn iota(to: DType, start: i64, step: i64, length: &str) -> Iota {
    Iota { to, start: start.into(), step: step.into(), length: Dim::parse(length).unwrap() }
}

#[test]
fn iota_counts_in_integers_and_floats() {
    assert_eq!(eval(iota(DType::I64, 5, -2, "4"), &[]), i64s(&[4], &[5, 3, 1, -1]));
    assert_eq!(eval(iota(DType::F16, 0, 1, "3"), &[]), floats(DType::F16, &[3], &[0.0, 1.0, 2.0]));
    assert_eq!(eval(iota(DType::U8, 254, 1, "3"), &[]), ints(DType::U8, &[3], &[254, 255, 0]));
    assert_eq!(eval(iota(DType::I64, 0, 1, "0"), &[]), i64s(&[0], &[]));
    assert_eq!(infer(iota(DType::I64, 0, 1, "n"), &[]), "i64[n]");
    assert_eq!(infer(iota(DType::Bool, 0, 1, "n"), &[]), "iota: element type bool has no meaning here");
    assert_eq!(infer(iota(DType::I64, 0, 1, "-1"), &[]), "iota: a size of [-1] is negative");
}

#[test]
fn iota_beyond_memory_is_an_error() {
    let error = eval_error(iota(DType::I64, 0, 1, "9223372036854775807"), &[]);
    assert_eq!(error, "iota: shape [9223372036854775807] has more elements than memory can hold");
}

#[test]
fn dim_value_is_a_scalar() {
    assert_eq!(eval(DimValue { dim: 7.into() }, &[]), i64s(&[], &[7]));
    let unbound = eval_failure(DimValue { dim: Dim::symbol("n") }, &[]);
    assert_eq!(unbound, EvalError::Unbound { op: "dim_value", dim: "n".into() });
}

fn reshape(shape: &[&str]) -> Reshape {
    Reshape { shape: dims(shape) }
}

#[test]
fn reshape_keeps_elements_in_order() {
    let x = i64s(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    assert_eq!(eval(reshape(&["3", "2"]), &[x]), i64s(&[3, 2], &[1, 2, 3, 4, 5, 6]));
    assert_eq!(eval(reshape(&[]), &[f32s(&[1, 1], &[2.0])]), f32s(&[], &[2.0]));
    assert_eq!(eval(reshape(&["0", "5"]), &[f32s(&[2, 0], &[])]), f32s(&[0, 5], &[]));
}

#[test]
fn reshape_refuses_counts_that_cannot_be_equal() {
    assert_eq!(infer(reshape(&["n", "6"]), &["f32[n,2,3]"]), "f32[n,6]");
    assert_eq!(infer(reshape(&["n*6"]), &["f32[n,2,3]"]), "f32[6*n]");
    assert_eq!(infer(reshape(&["m"]), &["f32[n]"]), "f32[m]");
    assert_eq!(infer(reshape(&["4"]), &["f32[2,3]"]), "reshape: [2,3] has 6 elements and [4] has 4");
    assert_eq!(infer(reshape(&["-2", "-3"]), &["f32[2,3]"]), "reshape: a size of [-2,-3] is negative");
}

#[test]
fn transpose_moves_axes_of_every_element_size() {
    for dtype in [DType::U8, DType::I16, DType::I32, DType::I64] {
        let x = ints(dtype, &[2, 3], &[1, 2, 3, 4, 5, 6]);
        assert_eq!(eval(Transpose { perm: vec![1, 0] }, &[x]), ints(dtype, &[3, 2], &[1, 4, 2, 5, 3, 6]));
    }
    let x = i64s(&[2, 2, 2], &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(eval(Transpose { perm: vec![2, 0, 1] }, &[x]), i64s(&[2, 2, 2], &[0, 2, 4, 6, 1, 3, 5, 7]));
    assert_eq!(eval(Transpose { perm: vec![] }, &[f32s(&[], &[1.0])]), f32s(&[], &[1.0]));
    assert_eq!(eval(Transpose { perm: vec![1, 0] }, &[f32s(&[0, 3], &[])]), f32s(&[3, 0], &[]));
}

#[test]
fn transpose_needs_a_permutation() {
    assert_eq!(infer(Transpose { perm: vec![1, 0] }, &["f32[n,3]"]), "f32[3,n]");
    for perm in [vec![0], vec![0, 0], vec![0, 2]] {
        let expected = format!("transpose: {perm:?} is not a permutation of the axes of [n,3]");
        assert_eq!(infer(Transpose { perm }, &["f32[n,3]"]), expected);
    }
}

fn broadcast(shape: &[&str]) -> Broadcast {
    Broadcast { shape: dims(shape) }
}

#[test]
fn broadcast_repeats_and_keeps_sizes_where_asked_for_1() {
    let x = i64s(&[2, 1], &[1, 2]);
    assert_eq!(eval(broadcast(&["2", "2"]), std::slice::from_ref(&x)), i64s(&[2, 2], &[1, 1, 2, 2]));
    assert_eq!(eval(broadcast(&["1", "2"]), std::slice::from_ref(&x)), i64s(&[2, 2], &[1, 1, 2, 2]));
    assert_eq!(eval(broadcast(&["2", "1", "1"]), std::slice::from_ref(&x)), i64s(&[2, 2, 1], &[1, 2, 1, 2]));
    assert_eq!(eval(broadcast(&["2", "0"]), &[x]), i64s(&[2, 0], &[]));
    assert_eq!(infer(broadcast(&["n", "1"]), &["f32[1,m]"]), "f32[n,m]");
    assert_eq!(infer(broadcast(&["3"]), &["f32[2]"]), "broadcast: shapes [2] and [3] do not broadcast");
}

fn slice(start: &[&str], step: &[i64], size: &[&str]) -> Slice {
    Slice { start: dims(start), step: step.to_vec(), size: dims(size) }
}

#[test]
fn slice_steps_forwards_and_backwards() {
    let x = i64s(&[2, 4], &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(eval(slice(&["0", "1"], &[1, 2], &["2", "2"]), std::slice::from_ref(&x)), i64s(&[2, 2], &[1, 3, 5, 7]));
    assert_eq!(
        eval(slice(&["1", "3"], &[-1, -3], &["2", "2"]), std::slice::from_ref(&x)),
        i64s(&[2, 2], &[7, 4, 3, 0])
    );
    assert_eq!(eval(slice(&["9", "0"], &[1, 1], &["0", "4"]), &[x]), i64s(&[0, 4], &[]));
    assert_eq!(eval(slice(&[], &[], &[]), &[f32s(&[], &[1.0])]), f32s(&[], &[1.0]));
    let one = slice(&["1", "0"], &[i64::MIN, 1], &["1", "2"]);
    assert_eq!(eval(one, &[i64s(&[2, 2], &[0, 1, 2, 3])]), i64s(&[1, 2], &[2, 3]));
}

#[test]
fn slice_is_refused_outside_its_input() {
    assert_eq!(infer(slice(&["1"], &[1], &["n - 1"]), &["f32[n]"]), "f32[n - 1]");
    let beyond = "slice: elements 1 to 3 of axis 0 are not within its extent 3";
    assert_eq!(infer(slice(&["1"], &[1], &["3"]), &["f32[3]"]), beyond);
    let before = "slice: elements 1 to -1 of axis 0 are not within its extent n";
    assert_eq!(infer(slice(&["1"], &[-2], &["2"]), &["f32[n]"]), before);
    assert_eq!(infer(slice(&["0"], &[0], &["2"]), &["f32[3]"]), "slice: the step of axis 0 is 0");
    let short = "slice: attribute 'step' has 0 entries where 1 are expected";
    assert_eq!(infer(slice(&["0"], &[], &["2"]), &["f32[3]"]), short);
}

#[test]
fn concat_joins_along_its_axis() {
    let (a, b) = (i64s(&[2, 1], &[1, 2]), i64s(&[2, 2], &[3, 4, 5, 6]));
    assert_eq!(eval(Concat { axis: 1 }, &[a.clone(), b]), i64s(&[2, 3], &[1, 3, 4, 2, 5, 6]));
    assert_eq!(eval(Concat { axis: 0 }, &[a.clone(), i64s(&[0, 1], &[])]), a);
}

#[test]
fn concat_adds_symbols_and_prefers_numbers_elsewhere() {
    assert_eq!(infer(Concat { axis: 0 }, &["f32[n,b]", "f32[2,3]"]), "f32[n + 2,3]");
    let different = "concat: shapes [1,2] and [1,3] do not join along axis 0";
    assert_eq!(infer(Concat { axis: 0 }, &["f32[1,2]", "f32[1,3]"]), different);
    assert_eq!(infer(Concat { axis: 0 }, &["f32[1]", "i8[1]"]), "concat: element types f32 and i8 differ");
    assert_eq!(infer(Concat { axis: 0 }, &["f32[]"]), "concat: axis 0 is out of range for rank 0");
    assert!(infer(Concat { axis: 0 }, &[]).starts_with("concat: 0 inputs given"));
}

fn pad(func: PadFn, lo: &[&str], hi: &[&str]) -> Pad {
    Pad { func, lo: dims(lo), hi: dims(hi) }
}

#[test]
fn pad_fills_by_its_function() {
    let x = i64s(&[3], &[1, 2, 3]);
    let cases = [
        (PadFn::Edge, vec![1, 1, 1, 2, 3, 3, 3, 3, 3, 3]),
        (PadFn::Reflect, vec![3, 2, 1, 2, 3, 2, 1, 2, 3, 2]),
        (PadFn::Wrap, vec![2, 3, 1, 2, 3, 1, 2, 3, 1, 2]),
    ];
    for (func, expected) in cases {
        assert_eq!(
            eval(pad(func, &["2"], &["5"]), std::slice::from_ref(&x)),
            i64s(&[10], &expected),
            "{}",
            func.name()
        );
    }
    let constant = pad(PadFn::Constant, &["1"], &["2"]);
    assert_eq!(eval(constant.clone(), &[x.clone(), i64s(&[], &[9])]), i64s(&[6], &[9, 1, 2, 3, 9, 9]));
    assert_eq!(eval(constant, &[x]), i64s(&[6], &[0, 1, 2, 3, 0, 0]));
}

#[test]
fn negative_pads_remove_before_the_rest_is_repeated() {
    let x = i64s(&[4], &[1, 2, 3, 4]);
    let cases = [
        (PadFn::Constant, vec![2, 3, 4, 0, 0]),
        (PadFn::Edge, vec![2, 3, 4, 4, 4]),
        (PadFn::Reflect, vec![2, 3, 4, 3, 2]),
        (PadFn::Wrap, vec![2, 3, 4, 2, 3]),
    ];
    for (func, expected) in cases {
        assert_eq!(
            eval(pad(func, &["-1"], &["2"]), std::slice::from_ref(&x)),
            i64s(&[5], &expected),
            "{}",
            func.name()
        );
    }
    assert_eq!(eval(pad(PadFn::Constant, &["-1"], &["-2"]), &[x]), i64s(&[1], &[2]));
}

#[test]
fn pad_works_on_two_axes_on_one_element_and_on_none() {
    let x = f32s(&[1, 2], &[1.0, 2.0]);
    let found = eval(pad(PadFn::Constant, &["1", "0"], &["0", "1"]), &[x, f32s(&[], &[-1.0])]);
    assert_eq!(found, f32s(&[2, 3], &[-1.0, -1.0, -1.0, 1.0, 2.0, -1.0]));
    assert_eq!(eval(pad(PadFn::Reflect, &["1"], &["1"]), &[i64s(&[1], &[5])]), i64s(&[3], &[5, 5, 5]));
    assert_eq!(eval(pad(PadFn::Constant, &["1"], &["1"]), &[i64s(&[0], &[])]), i64s(&[2], &[0, 0]));
    assert_eq!(eval(pad(PadFn::Edge, &["0"], &["0"]), &[i64s(&[0], &[])]), i64s(&[0], &[]));
    let error = eval_error(pad(PadFn::Edge, &["1"], &["1"]), &[i64s(&[0], &[])]);
    assert_eq!(error, "pad: 'edge' has nothing to repeat on an axis of extent 0");
}

#[test]
fn pad_types_add_symbolic_pads() {
    assert_eq!(infer(pad(PadFn::Edge, &["p"], &["1"]), &["f32[n]"]), "f32[n + p + 1]");
    assert_eq!(infer(pad(PadFn::Edge, &["-2"], &["-2"]), &["f32[3]"]), "pad: a size of [-1] is negative");
    let not_scalar = "pad: the value has shape [2] where a scalar is expected";
    assert_eq!(infer(pad(PadFn::Constant, &["1"], &["1"]), &["f32[3]", "f32[2]"]), not_scalar);
}
