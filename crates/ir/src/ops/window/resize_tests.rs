use crate::eval::tests::{check_node, node_error};

/// A resize of the last axis of x [1, n], with half of the attributes at the defaults of ONNX.
fn resize(func: &str, coordinates: &str, nearest: &str, output: usize, scale: f64, rest: &str) -> String {
    let rest = if rest.is_empty() {
        "cubic_a=-0.75, exclude_outside=false, antialias=false, roi=[], extrapolation=0.0"
    } else {
        rest
    };
    format!(
        "resize.{func}(%0) {{coordinates={coordinates}, nearest={nearest}, output=[1, {output}], \
         scales=[1.0, {scale:?}], {rest}}}"
    )
}

#[test]
fn nearest_rounds_as_told() {
    let x = "i64[1,3] [10, 20, 9223372036854775807]";
    let cases = [
        ("half_pixel", "round_prefer_floor", "[10, 20, 20, 9223372036854775807]"),
        ("asymmetric", "floor", "[10, 10, 20, 9223372036854775807]"),
        ("asymmetric", "ceil", "[10, 20, 9223372036854775807, 9223372036854775807]"),
        ("align_corners", "round_prefer_floor", "[10, 20, 20, 9223372036854775807]"),
        ("tf_half_pixel_for_nn", "floor", "[10, 20, 20, 9223372036854775807]"),
    ];
    for (coordinates, nearest, expected) in cases {
        let node = resize("nearest", coordinates, nearest, 4, 4.0 / 3.0, "");
        check_node(&[x], &node, &[&format!("i64[1,4] {expected}")]);
    }
    let two = |nearest| resize("nearest", "asymmetric", nearest, 4, 2.0, "");
    check_node(&["f32[1,2] [1, 2]"], &two("round_prefer_floor"), &["f32[1,4] [1.0, 1.0, 2.0, 2.0]"]);
    check_node(&["f32[1,2] [1, 2]"], &two("round_prefer_ceil"), &["f32[1,4] [1.0, 2.0, 2.0, 2.0]"]);
}

#[test]
fn linear_follows_every_coordinate_formula() {
    let x = "f32[1,4] [1, 2, 3, 4]";
    let cases = [
        ("half_pixel", 8, 2.0, "[1.0, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4.0]"),
        ("align_corners", 7, 1.75, "[1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]"),
        ("asymmetric", 8, 2.0, "[1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.0]"),
        ("pytorch_half_pixel", 1, 0.25, "[1.0]"),
        ("half_pixel", 1, 0.25, "[2.5]"),
        // The fraction of a size that the scale asks for is kept by the formula.
        ("align_corners", 2, 0.6, "[1.0, 3.142857]"),
        ("half_pixel_symmetric", 2, 0.6, "[1.6666666, 3.3333333]"),
        ("half_pixel", 2, 0.6, "[1.3333334, 3.0]"),
    ];
    for (coordinates, output, scale, expected) in cases {
        let node = resize("linear", coordinates, "floor", output, scale, "");
        check_node(&[x], &node, &[&format!("f32[1,{output}] {expected}")]);
    }
}

#[test]
fn cropping_extrapolates_outside_x() {
    let crop =
        |roi: &str| format!("cubic_a=-0.75, exclude_outside=false, antialias=false, roi={roi}, extrapolation=9.5");
    check_node(
        &["f32[1,3] [1, 2, 3]"],
        &resize("linear", "tf_crop_and_resize", "floor", 3, 1.0, &crop("[0.0, 0.25, 1.0, 1.25]")),
        &["f32[1,3] [1.5, 2.5, 9.5]"],
    );
    check_node(
        &["i8[1,3] [1, 2, 3]"],
        &resize("nearest", "tf_crop_and_resize", "ceil", 3, 1.0, &crop("[0.0, -0.5, 1.0, 0.5]")),
        &["i8[1,3] [9, 1, 2]"],
    );
}

/// The first: one axis of the ONNX test `resize_upsample_scales_cubic`.
#[test]
fn cubic_kernels_may_exclude_what_lies_outside() {
    let x = "f32[1,4] [1, 2, 3, 4]";
    check_node(
        &[x],
        &resize("cubic", "half_pixel", "floor", 8, 2.0, ""),
        &["f32[1,8] [0.89453125, 1.1914063, 1.6679688, 2.296875, 2.703125, 3.3320313, 3.8085938, 4.1054688]"],
    );
    let excluding = "cubic_a=-0.5, exclude_outside=true, antialias=false, roi=[], extrapolation=0.0";
    check_node(&[x], &resize("cubic", "half_pixel", "floor", 2, 0.5, excluding), &["f32[1,2] [1.4117647, 3.5882354]"]);
}

#[test]
fn antialiasing_averages_what_downsampling_would_skip() {
    let x = "f32[1,4] [0, 0, 8, 0]";
    let smooth = "cubic_a=-0.75, exclude_outside=false, antialias=true, roi=[], extrapolation=0.0";
    check_node(&[x], &resize("linear", "half_pixel", "floor", 2, 0.5, smooth), &["f32[1,2] [1.0, 3.0]"]);
    check_node(&[x], &resize("linear", "half_pixel", "floor", 2, 0.5, ""), &["f32[1,2] [0.0, 4.0]"]);
    check_node(
        &[x],
        &resize("linear", "half_pixel", "floor", 8, 2.0, smooth),
        &["f32[1,8] [0.0, 0.0, 0.0, 2.0, 6.0, 6.0, 2.0, 0.0]"],
    );
}

#[test]
fn integers_round_half_to_even() {
    check_node(
        &["u8[1,2] [0, 255]"],
        &resize("linear", "align_corners", "floor", 3, 1.5, ""),
        &["u8[1,3] [0, 128, 255]"],
    );
    check_node(&["i8[1,2] [2, 3]"], &resize("linear", "align_corners", "floor", 3, 1.5, ""), &["i8[1,3] [2, 2, 3]"]);
}

#[test]
fn axes_are_resized_one_after_the_other() {
    check_node(
        &["f32[2,2] [1, 2, 3, 4]"],
        "resize.linear(%0) {coordinates=align_corners, nearest=floor, output=[3, 3], scales=[1.5, 1.5], cubic_a=-0.75, \
         exclude_outside=false, antialias=false, roi=[], extrapolation=0.0}",
        &["f32[3,3] [1.0, 1.5, 2.0, 2.0, 2.5, 3.0, 3.0, 3.5, 4.0]"],
    );
}

#[test]
fn nothing_is_made_from_nothing() {
    check_node(&["f32[1,0] []"], &resize("linear", "half_pixel", "floor", 0, 2.0, ""), &["f32[1,0] []"]);
    check_node(&["f32[1,2] [1, 2]"], &resize("cubic", "half_pixel", "floor", 0, 0.25, ""), &["f32[1,0] []"]);
    let error = node_error(&["f32[1,0] []"], &resize("linear", "half_pixel", "floor", 2, 2.0, ""), &["f32[1,2]"]);
    assert!(error.ends_with("resize: x f32[1,0] has no elements to make others from"), "{error}");
    let error = node_error(&["f32[1,1] [1]"], &resize("linear", "half_pixel", "floor", 2, -2.0, ""), &["f32[1,2]"]);
    assert!(error.ends_with("resize: -2 found where a positive scale is expected"), "{error}");
}
