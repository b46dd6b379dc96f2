use super::*;
use crate::eval::tests::{check_node, node_error};
use crate::ops::test_tensor::infer;

const PLAIN: &str = "matmul(%0, %1) {transpose_a=false, transpose_b=false}";

#[test]
fn operands_may_be_transposed() {
    let (a, b) = ("f32[2,2] [1, 2, 3, 4]", "f32[2,2] [1, 10, 100, 1000]");
    let cases = [
        (false, false, "f32[2,2] [201.0, 2010.0, 403.0, 4030.0]"),
        (true, false, "f32[2,2] [301.0, 3010.0, 402.0, 4020.0]"),
        (false, true, "f32[2,2] [21.0, 2100.0, 43.0, 4300.0]"),
        (true, true, "f32[2,2] [31.0, 3100.0, 42.0, 4200.0]"),
    ];
    for (transpose_a, transpose_b, expected) in cases {
        let node = format!("matmul(%0, %1) {{transpose_a={transpose_a}, transpose_b={transpose_b}}}");
        check_node(&[a, b], &node, &[expected]);
    }
}

#[test]
fn batch_axes_broadcast() {
    check_node(
        &["f32[2,1,1,2] [1, 2, 3, 4]", "f32[3,2,1] [1, 0, 0, 1, 1, 1]"],
        PLAIN,
        &["f32[2,3,1,1] [1.0, 2.0, 3.0, 3.0, 4.0, 7.0]"],
    );
}

#[test]
fn sums_are_rounded_once() {
    check_node(&["f16[1,4] [2048, 1, 1, 1]", "f16[4,1] [1, 1, 1, 1]"], PLAIN, &["f16[1,1] [2052.0]"]);
}

#[test]
fn integers_wrap_exactly() {
    check_node(&["i8[1,2] [100, 100]", "i8[2,1] [2, 1]"], PLAIN, &["i8[1,1] [44]"]);
    check_node(&["u64[1,1] [18446744073709551615]", "u64[1,1] [3]"], PLAIN, &["u64[1,1] [18446744073709551613]"]);
}

#[test]
fn zero_points_belong_to_rows_of_a_and_columns_of_b() {
    let (a, b) = ("u8[2,2] [1, 2, 3, 4]", "i8[2,2] [1, 2, 3, 4]");
    check_node(&[a, b, "u8[] [1]", "i8[] [0]"], "matmul_int(%0, %1, %2, %3)", &["i32[2,2] [3, 4, 11, 16]"]);
    check_node(&[a, b, "u8[2,1] [1, 3]", "i8[2] [1, 2]"], "matmul_int(%0, %1, %2, %3)", &["i32[2,2] [2, 2, 2, 2]"]);
    check_node(
        &["u8[1,2] [255, 255]", "i8[2,1] [-128, -128]", "u8[] [0]", "i8[1] [127]"],
        "matmul_int(%0, %1, %2, %3)",
        &["i32[1,1] [-130050]"],
    );
    assert_eq!(
        infer(MatmulInt {}, &["u8[2,2]", "i8[2,2]", "u8[1,2]", "i8[]"]),
        "matmul_int: zero point u8[1,2] does not fit u8[2,2]"
    );
}

#[test]
fn empty_operands_give_zeros_or_nothing() {
    check_node(&["f32[2,0] []", "f32[0,1] []"], PLAIN, &["f32[2,1] [0.0, 0.0]"]);
    check_node(&["f32[0,2] []", "f32[2,1] [1, 2]"], PLAIN, &["f32[0,1] []"]);
    check_node(&["f32[0,1,1] []", "f32[1,1] [1]"], PLAIN, &["f32[0,1,1] []"]);
}

#[test]
fn sizes_may_be_symbols_and_must_fit() {
    let op = || Matmul { transpose_a: false, transpose_b: true };
    assert_eq!(infer(op(), &["f32[b,1,m,k]", "f32[8,n,k]"]), "f32[b,8,m,n]");
    assert_eq!(infer(op(), &["f32[m,4]", "f32[n,5]"]), "matmul: inner dims 4 and 5 of [m,4] and [n,5] differ");
    assert_eq!(infer(op(), &["f32[4]", "f32[n,4]"]), "matmul: f32[4] found where rank 2 or more is expected");
    assert_eq!(infer(op(), &["f32[1,4]", "f16[1,4]"]), "matmul: element types f32 and f16 differ");
    assert!(
        node_error(&["f32[1,1] [1]"], "matmul(%0) {transpose_a=false, transpose_b=false}", &["f32[1,1]"])
            .ends_with("matmul: 1 inputs given where 2 are expected")
    );
}
