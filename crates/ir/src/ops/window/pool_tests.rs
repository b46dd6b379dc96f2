use super::*;
use crate::eval::tests::{check_node, node_error};
use crate::ops::test_tensor::{dims, infer};

/// A pool over one spatial axis.
fn pool(func: &str, window: usize, stride: usize, pads: (i64, i64), output: usize, count_pad: bool) -> String {
    let (lo, hi) = pads;
    format!(
        "pool.{func}(%0) {{window=[{window}], stride=[{stride}], pad_lo=[{lo}], pad_hi=[{hi}], dilation=[1], \
         output=[{output}], count_pad={count_pad}, p=2}}"
    )
}

#[test]
fn maxima_ignore_padding_and_keep_nan() {
    check_node(
        &["f32[1,1,5] [-1, -2, nan:7fc00000, -4, -5]"],
        &pool("max", 2, 1, (1, 1), 6, false),
        &["f32[1,1,6] [-1.0, -1.0, nan:7fc00000, nan:7fc00000, -4.0, -5.0]"],
    );
    check_node(&["u8[1,1,3] [1, 255, 3]"], &pool("max", 2, 2, (0, 1), 2, false), &["u8[1,1,2] [255, 3]"]);
}

#[test]
fn a_window_of_padding_alone_has_the_least_maximum() {
    check_node(&["f32[1,1,1] [7]"], &pool("max", 1, 1, (1, 0), 2, false), &["f32[1,1,2] [-inf, 7.0]"]);
    check_node(&["i8[1,1,1] [7]"], &pool("max", 1, 1, (1, 0), 2, false), &["i8[1,1,2] [-128, 7]"]);
}

#[test]
fn averages_count_declared_padding_but_not_what_ceil_mode_adds() {
    let x = "f32[1,1,4] [1, 2, 3, 4]";
    // The last window covers element 3, one declared pad, and one place beyond it.
    check_node(&[x], &pool("avg", 3, 2, (1, 1), 3, true), &["f32[1,1,3] [1.0, 3.0, 2.0]"]);
    check_node(&[x], &pool("avg", 3, 2, (1, 1), 3, false), &["f32[1,1,3] [1.5, 3.0, 4.0]"]);
}

#[test]
fn lp_norms_take_padding_as_zero() {
    check_node(&["f32[1,1,3] [-3, 4, 0]"], &pool("lp", 2, 1, (1, 0), 3, false), &["f32[1,1,3] [3.0, 5.0, 4.0]"]);
}

#[test]
fn windows_may_be_dilated_in_two_axes() {
    let x: Vec<String> = (0..9).map(|element| element.to_string()).collect();
    let attributes = "window=[2, 2], stride=[1, 1], pad_lo=[0, 0], pad_hi=[0, 0], dilation=[2, 1], output=[1, 2]";
    check_node(
        &[&format!("f32[1,1,3,3] [{}]", x.join(", "))],
        &format!("pool.avg(%0) {{{attributes}, count_pad=false, p=0}}"),
        &["f32[1,1,1,2] [3.5, 4.5]"],
    );
}

#[test]
fn indices_are_flat_in_x_and_may_be_counted_by_columns() {
    let x = "f32[1,2,2,3] [0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 9, 9]";
    let node = |column_major: bool| {
        format!(
            "pool_indices(%0) {{window=[2, 3], stride=[1, 1], pad_lo=[0, 0], pad_hi=[0, 0], dilation=[1, 1], \
             output=[1, 1], column_major={column_major}}}"
        )
    };
    check_node(&[x], &node(false), &["i64[1,2,1,1] [2, 10]"]);
    check_node(&[x], &node(true), &["i64[1,2,1,1] [4, 9]"]);
}

#[test]
fn empty_tensors_stay_empty() {
    check_node(&["f32[0,2,3] []"], &pool("max", 1, 1, (0, 0), 3, false), &["f32[0,2,3] []"]);
    check_node(&["f32[1,1,0] []"], &pool("avg", 1, 1, (0, 0), 0, false), &["f32[1,1,0] []"]);
    check_node(&["f32[1,1,0] []"], &pool("avg", 2, 1, (1, 1), 1, true), &["f32[1,1,1] [0.0]"]);
}

#[test]
fn attributes_must_fit() {
    let op = |func, window: &[usize]| Pool {
        func,
        window: window.to_vec(),
        stride: vec![1],
        pad_lo: dims(&["0"]),
        pad_hi: dims(&["0"]),
        dilation: vec![1],
        output: dims(&["h - 1"]),
        count_pad: false,
        p: 0,
    };
    assert_eq!(infer(op(PoolFn::Max, &[2]), &["i8[n,c,h]"]), "i8[n,c,h - 1]");
    assert_eq!(infer(op(PoolFn::Avg, &[2]), &["i8[n,c,h]"]), "pool: element type i8 has no meaning here");
    assert_eq!(infer(op(PoolFn::Lp, &[2]), &["f32[n,c,h]"]), "pool: p is 0 where 1 or more is expected");
    assert_eq!(
        infer(op(PoolFn::Max, &[0]), &["i8[n,c,h]"]),
        "pool: 0 found where a size from 1 to 2147483648 is expected"
    );
    assert_eq!(
        infer(op(PoolFn::Max, &[2, 2]), &["i8[n,c,h]"]),
        "pool: attribute 'window' has 2 entries where 1 are expected"
    );
    assert_eq!(infer(op(PoolFn::Max, &[2]), &["i8[n,c]"]), "pool: x i8[n,c] found where rank 3 or more is expected");
    assert!(
        node_error(&[], &pool("max", 1, 1, (0, 0), 1, false).replace("%0", ""), &["f32[]"]).contains("0 inputs given")
    );
}
