use super::*;
use crate::eval::tests::{check_node, node_error};
use crate::ops::test_tensor::{dims, infer};

fn conv(node: &str, stride: &str, pad_lo: &str, pad_hi: &str, dilation: &str, groups: usize) -> String {
    format!("{node} {{stride={stride}, pad_lo={pad_lo}, pad_hi={pad_hi}, dilation={dilation}, groups={groups}}}")
}

#[test]
fn a_filter_slides_without_being_flipped() {
    let (x, filter) = ("f32[1,1,5] [1, 2, 3, 4, 5]", "f32[1,1,3] [1, 0, -1]");
    check_node(
        &[x, filter],
        &conv("conv(%0, %1)", "[1]", "[1]", "[1]", "[1]", 1),
        &["f32[1,1,5] [-2.0, -2.0, -2.0, -2.0, 4.0]"],
    );
    check_node(
        &[x, filter, "f32[1] [10]"],
        &conv("conv(%0, %1, %2)", "[2]", "[2]", "[1]", "[2]", 1),
        &["f32[1,1,2] [7.0, 6.0]"],
    );
}

#[test]
fn the_example_of_the_onnx_text_is_met() {
    let x: Vec<String> = (0..25).map(|element| element.to_string()).collect();
    check_node(
        &[&format!("f32[1,1,5,5] [{}]", x.join(", ")), "f32[1,1,3,3] [1, 1, 1, 1, 1, 1, 1, 1, 1]"],
        &conv("conv(%0, %1)", "[2, 1]", "[1, 0]", "[1, 0]", "[1, 1]", 1),
        &["f32[1,1,3,3] [21.0, 27.0, 33.0, 99.0, 108.0, 117.0, 111.0, 117.0, 123.0]"],
    );
}

#[test]
fn every_group_sees_its_own_channels() {
    check_node(
        &["f32[1,2,2] [1, 2, 10, 20]", "f32[4,1,1] [1, 2, 3, 4]"],
        &conv("conv(%0, %1)", "[1]", "[0]", "[0]", "[1]", 2),
        &["f32[1,4,2] [1.0, 2.0, 2.0, 4.0, 30.0, 60.0, 40.0, 80.0]"],
    );
}

#[test]
fn a_transposed_convolution_spreads_every_element() {
    let attributes = |output_pad: &str| {
        format!("{{stride=[2], pad_lo=[1], pad_hi=[0], output_pad={output_pad}, dilation=[1], groups=1}}")
    };
    check_node(
        &["f32[1,1,3] [1, 2, 3]", "f32[1,2,2] [1, 10, 2, 20]", "f32[2] [0, 0.5]"],
        &format!("conv_transpose(%0, %1, %2) {}", attributes("[1]")),
        &["f32[1,2,6] [10.0, 2.0, 20.0, 3.0, 30.0, 0.0, 20.5, 4.5, 40.5, 6.5, 60.5, 0.5]"],
    );
}

#[test]
fn padding_of_an_integer_convolution_is_the_zero_point() {
    check_node(
        &["u8[1,1,3,3] [2, 3, 4, 5, 6, 7, 8, 9, 10]", "u8[1,1,2,2] [1, 1, 1, 1]", "u8[] [1]", "u8[1] [0]"],
        &conv("conv_int(%0, %1, %2, %3)", "[1, 1]", "[0, 0]", "[0, 1]", "[1, 1]", 1),
        &["i32[1,1,2,3] [12, 16, 9, 24, 28, 15]"],
    );
    check_node(
        &["i8[1,1,1] [-128]", "u8[2,1,1] [255, 0]", "i8[] [127]", "u8[2] [0, 255]"],
        &conv("conv_int(%0, %1, %2, %3)", "[1]", "[0]", "[0]", "[1]", 1),
        &["i32[1,2,1] [-65025, 65025]"],
    );
}

#[test]
fn empty_tensors_give_empty_results_or_the_bias() {
    let plain = |node: &str| conv(node, "[1]", "[0]", "[0]", "[1]", 1);
    check_node(&["f32[0,1,3] []", "f32[2,1,1] [1, 2]"], &plain("conv(%0, %1)"), &["f32[0,2,3] []"]);
    check_node(&["f32[1,1,0] []", "f32[1,1,1] [1]"], &plain("conv(%0, %1)"), &["f32[1,1,0] []"]);
    check_node(
        &["f32[1,0,2] []", "f32[1,0,1] []", "f32[1] [7]"],
        &plain("conv(%0, %1, %2)"),
        &["f32[1,1,2] [7.0, 7.0]"],
    );
    let transposed =
        "conv_transpose(%0, %1) {stride=[1], pad_lo=[0], pad_hi=[0], output_pad=[0], dilation=[1], groups=1}";
    check_node(&["f32[1,0,2] []", "f32[0,1,2] []"], transposed, &["f32[1,1,3] [0.0, 0.0, 0.0]"]);
}

#[test]
fn sizes_may_be_symbols() {
    let op = Conv {
        stride: vec![2, 1],
        pad_lo: dims(&["1", "p"]),
        pad_hi: dims(&["1", "p"]),
        dilation: vec![1, 2],
        groups: 1,
    };
    assert_eq!(infer(op, &["f32[n,c,h,w]", "f32[8,c,3,3]"]), "f32[n,8,(h + 1) floordiv 2,2*p + w - 4]");
    let op = ConvTranspose {
        stride: vec![2],
        pad_lo: dims(&["1"]),
        pad_hi: dims(&["0"]),
        output_pad: vec![1],
        dilation: vec![1],
        groups: 2,
    };
    assert_eq!(infer(op, &["f16[n,4,h]", "f16[4,3,3]"]), "f16[n,6,2*h + 1]");
}

#[test]
fn types_that_do_not_fit_are_refused() {
    let plain = conv("conv(%0, %1)", "[1]", "[0]", "[0]", "[1]", 1);
    let refusal = |x: &str, filter: &str| node_error(&[x, filter], &plain, &["f32[1,1,1]"]);
    assert_eq!(
        refusal("f32[1,2,1] [1, 1]", "f32[1,1,1] [1]"),
        "line 4, column 8: conv: channels of x f32[1,2,1] and filter f32[1,1,1] do not fit 1 groups"
    );
    assert_eq!(
        refusal("f32[1,1,1] [1]", "f32[1,1,4] [1, 1, 1, 1]"),
        "line 4, column 8: conv: the filter reaches 3 beyond the padded input"
    );
    assert_eq!(
        refusal("i32[1,1,1] [1]", "i32[1,1,1] [1]"),
        "line 4, column 8: conv: element type i32 has no meaning here"
    );
    assert_eq!(
        node_error(&[], "conv() {stride=[], pad_lo=[], pad_hi=[], dilation=[], groups=1}", &["f32[]"]),
        "line 2, column 8: conv: 0 inputs given where 2 to 3 are expected"
    );
}
