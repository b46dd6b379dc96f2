//! Pooling and resizing. Expected numbers are those of onnxruntime.

use precast_tensor::{DType, Tensor};

use crate::compare::{assert_close, ramp};
use crate::model::{Model, floats, int, int_tensor, ints, ops, output_type, text};

#[test]
fn ceil_mode_drops_windows_that_start_in_the_padding() {
    let attributes = [ints("kernel_shape", &[3]), ints("strides", &[3]), ints("pads", &[1, 1]), int("ceil_mode", 1)];
    let x = || ramp(&[1, 1, 7], 7);
    let model = Model::new(17).input("x", DType::F32, &["1", "1", "n"]);
    assert_close(
        &model.clone().node("MaxPool", "x", "y", &attributes).eval("y", &[x()]),
        &[floats(&[1, 1, 3], &[0.25, 0.5, 0.75])],
    );
    let counted = [&attributes[..], &[int("count_include_pad", 1)]].concat();
    assert_close(
        &model.node("AveragePool", "x", "y", &counted).eval("y", &[x()]),
        &[floats(&[1, 1, 3], &[-0.416667, -0.583333, 0.0])],
    );
}

#[test]
fn indices_of_a_max_pool_are_made_only_where_wanted() {
    let attributes = [ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2]), int("storage_order", 1)];
    let model = Model::new(12).input("x", DType::F32, &["1", "1", "4", "4"]);
    let plain = model.clone().node("MaxPool", "x", "y", &attributes);
    assert_eq!(ops(&plain.graph("y")), ["pool"]);
    let outputs = model.node("MaxPool", "x", "y i", &attributes).eval("y i", &[ramp(&[1, 1, 4, 4], 7)]);
    assert_close(
        &outputs,
        &[floats(&[1, 1, 2, 2], &[0.75, 1.0, 1.25, 1.5]), int_tensor(&[1, 1, 2, 2], &[5, 13, 6, 14])],
    );
}

#[test]
fn whole_scales_multiply_symbolic_sizes() {
    let model = Model::new(13).input("x", DType::F32, &["1", "1", "h", "w"]);
    let model = model.constant("s", floats(&[4], &[1.0, 1.0, 2.0, 2.0]));
    let model = model.node("Resize", "x _ s", "y", &[text("mode", "linear")]);
    assert_eq!(output_type(&model.clone().graph("y")), "f32[1,1,2*h,2*w]");
    assert_close(
        &model.eval("y", &[ramp(&[1, 1, 2, 3], 7)]),
        &[floats(
            &[1, 1, 4, 6],
            &[
                -1.5, -1.0625, -0.1875, -0.125, -0.875, -1.25, -1.0, -0.765625, -0.296875, -0.234375, -0.578125, -0.75,
                0.0, -0.171875, -0.515625, -0.453125, 0.015625, 0.25, 0.5, 0.125, -0.625, -0.5625, 0.3125, 0.75,
            ],
        )],
    );
}

#[test]
fn sizes_that_are_multiples_of_symbols_have_scales() {
    let model = Model::new(13)
        .input("x", DType::F32, &["1", "1", "h"])
        .input("z", DType::F32, &["1", "1", "2*h"])
        .node("Shape", "z", "s", &[])
        .node("Resize", "x _ _ s", "y", &[]);
    assert_eq!(output_type(&model.graph("y")), "f32[1,1,2*h]");
    let model = Model::new(13).input("x", DType::F32, &["1", "1", "h"]).ints("s", &[1, 1, 7]);
    let refusal = model.node("Resize", "x _ _ s", "y", &[]).refusal("y");
    assert!(refusal.contains("depends on the dim 'h'"), "{refusal}");
}

#[test]
fn before_11_the_nearest_element_depends_on_the_direction() {
    let model = Model::new(10).input("x", DType::F32, &["1", "1", "2", "5"]);
    let model = model.constant("s", floats(&[4], &[1.0, 1.0, 2.0, 0.6])).node("Resize", "x s", "y", &[]);
    assert_eq!(ops(&model.clone().graph("y")), ["resize", "resize"]);
    assert_close(
        &model.eval("y", &[ramp(&[1, 1, 2, 5], 7)]),
        &[floats(&[1, 1, 4, 3], &[-1.5, -1.25, -1.0, -1.5, -1.25, -1.0, 0.75, 1.0, 1.25, 0.75, 1.0, 1.25])],
    );
}

#[test]
fn blocks_add_up_to_an_image() {
    let model = Model::new(18).input("x", DType::F32, &["1", "4", "4"]).ints("image", &[3, 3]).ints("block", &[2, 2]);
    let model = model.node("Col2Im", "x image block", "y", &[]);
    assert_close(
        &model.eval("y", &[ramp(&[1, 4, 4], 7)]),
        &[floats(&[1, 1, 3, 3], &[-1.5, -0.75, 0.75, -1.75, 1.0, -0.5, -0.25, 1.75, -1.25])],
    );
}

#[test]
fn unpooling_puts_maxima_back() {
    let model =
        Model::new(11).input("x", DType::F32, &["1", "1", "2", "2"]).input("i", DType::I64, &["1", "1", "2", "2"]);
    let model = model.node("MaxUnpool", "x i", "y", &[ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])]);
    let indices = int_tensor(&[1, 1, 2, 2], &[0, 3, 8, 15]);
    assert_close(
        &model.eval("y", &[ramp(&[1, 1, 2, 2], 7), indices]),
        &[floats(&[1, 1, 4, 4], &[-1.5, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0, 0.0, -1.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5])],
    );
}

#[test]
fn an_affine_grid_is_a_product_of_positions() {
    let model = Model::new(20).input("t", DType::F32, &["1", "2", "3"]).ints("size", &[1, 1, 2, 3]);
    assert_close(
        &model.node("AffineGrid", "t size", "y", &[]).eval("y", &[ramp(&[1, 2, 3], 7)]),
        &[floats(
            &[1, 2, 3, 2],
            &[-0.375, 0.916667, -1.375, 1.25, -2.375, 1.58333, -0.125, -0.0833334, -1.125, 0.25, -2.125, 0.583333],
        )],
    );
}

#[test]
fn a_deformed_convolution_without_offsets_is_a_convolution() {
    let attributes =
        [ints("pads", &[1, 0, 1, 1]), ints("strides", &[2, 1]), ints("dilations", &[1, 2]), int("group", 2)];
    let model = |op: &str, inputs: &str, more: &[precast_onnx::proto::AttributeProto]| {
        let model = Model::new(19).input("x", DType::F32, &["2", "4", "5", "6"]);
        let model = model.constant("w", ramp(&[6, 2, 3, 2], 5)).constant("b", ramp(&[6], 3));
        let model = model.constant("o", Tensor::zeros(DType::F32, [2, 24, 3, 5]).unwrap());
        model.node(op, inputs, "y", &[&attributes, more].concat()).eval("y", &[ramp(&[2, 4, 5, 6], 7)])
    };
    assert_close(&model("DeformConv", "x w o b", &[int("offset_group", 2)]), &model("Conv", "x w b", &[]));
}

#[test]
fn offsets_move_the_taps_and_the_mask_weighs_them() {
    let model =
        Model::new(19).input("x", DType::F32, &["1", "1", "2", "3"]).constant("w", floats(&[1, 1, 1, 1], &[2.0]));
    let model =
        model.constant("o", floats(&[1, 2, 2, 3], &[0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.0, 0.5]));
    let model = model.constant("m", floats(&[1, 1, 2, 3], &[1.0, 1.0, 1.0, 0.5, 1.0, 1.0]));
    let x = floats(&[1, 1, 2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_close(
        &model.node("DeformConv", "x w o _ m", "y", &[]).eval("y", &[x]),
        &[floats(&[1, 1, 2, 3], &[3.0, 6.0, 12.0, 4.0, 10.0, 6.0])],
    );
}
