//! Convolutions and how they are padded. Expected numbers are those of onnxruntime.

use precast_tensor::DType;

use crate::compare::{assert_close, ramp};
use crate::model::{Model, floats, floats_attribute, int, ints, output_type, text};

#[test]
fn same_padding_of_a_symbolic_size_is_an_expression() {
    let model = Model::new(11).input("x", DType::F32, &["1", "1", "n"]).constant("w", ramp(&[1, 1, 2], 5));
    let model = model.node("Conv", "x w", "y", &[text("auto_pad", "SAME_LOWER"), ints("strides", &[2])]);
    assert_close(&model.eval("y", &[ramp(&[1, 1, 5], 7)]), &[floats(&[1, 1, 3], &[0.375, -0.0625, -0.5])]);
}

#[test]
fn a_stride_divides_symbolic_sizes() {
    let model = Model::new(11).input("x", DType::F32, &["n", "3", "h", "w"]).constant("f", ramp(&[8, 3, 3, 3], 5));
    let model = model.node("Conv", "x f", "y", &[ints("strides", &[2, 1]), ints("pads", &[1, 1, 1, 1])]);
    assert_eq!(output_type(&model.graph("y")), "f32[n,8,(h + 1) floordiv 2,w]");
}

#[test]
fn an_output_shape_decides_the_padding_of_a_transposed_convolution() {
    let model = Model::new(11).input("x", DType::F32, &["1", "1", "2", "2"]).constant("w", ramp(&[1, 1, 3, 3], 5));
    let attributes = [ints("strides", &[2, 2]), ints("output_shape", &[4, 4])];
    let model = model.node("ConvTranspose", "x w", "y", &attributes);
    assert_close(
        &model.eval("y", &[ramp(&[1, 1, 2, 2], 7)]),
        &[floats(
            &[1, 1, 4, 4],
            &[
                -0.375, -2.5, 0.0625, 0.375, -0.8125, -0.25, 0.0625, 0.1875, -0.3125, -2.375, 0.125, 0.75, -0.9375,
                1.3125, 0.375, -0.625,
            ],
        )],
    );
}

#[test]
fn a_fused_convolution_applies_its_activation() {
    let model = Model::new(11).input("x", DType::F32, &["1", "2", "3"]);
    let model = model.constant("w", ramp(&[2, 2, 2], 5)).constant("b", ramp(&[2], 3));
    let attributes = [text("activation", "Clip"), floats_attribute("activation_params", &[-1.0, 1.0])];
    let model = model.node("com.microsoft:FusedConv", "x w b", "y", &attributes);
    assert_close(&model.eval("y", &[ramp(&[1, 2, 3], 7)]), &[floats(&[1, 2, 2], &[1.0, -1.0, -1.0, -1.0])]);
}

#[test]
fn a_kernel_shape_that_contradicts_the_filter_is_refused() {
    let model = Model::new(11).input("x", DType::F32, &["1", "1", "8"]).constant("w", floats(&[1, 1, 3], &[0.0; 3]));
    let refusal = model.clone().node("Conv", "x w", "y", &[ints("kernel_shape", &[5])]).refusal("y");
    assert!(refusal.contains("'kernel_shape' is [5], but the filter has [3]"), "{refusal}");
    let refusal = model.node("Conv", "x w", "y", &[int("group", 0)]).refusal("y");
    assert!(refusal.contains("'group' is 0; 1 or more"), "{refusal}");
}
