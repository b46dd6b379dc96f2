//! Fourier transforms, windows and random tensors. Expected numbers are those of onnxruntime or the ONNX reference.

use precast_tensor::{DType, Tensor};

use crate::compare::{assert_close, ramp};
use crate::model::{Model, float, floats, int, ints, ops, output_type};

#[test]
fn a_transform_of_a_known_length_is_a_product() {
    let model = Model::new(17).input("x", DType::F32, &["n", "4", "1"]);
    let model = model.node("DFT", "x", "y", &[int("onesided", 1)]);
    assert_eq!(ops(&model.clone().graph("y")), ["reshape", "matmul", "reshape"]);
    assert_close(
        &model.eval("y", &[ramp(&[1, 4, 1], 7)]),
        &[floats(&[1, 3, 2], &[-2.0, 0.0, -0.25, 0.25, -3.5, 6.55671e-8])],
    );
}

#[test]
fn the_axis_is_an_attribute_in_17_and_an_input_from_20_on() {
    let model = |opset| Model::new(opset).input("x", DType::F32, &["4", "3", "1"]);
    let attribute = model(17).node("DFT", "x", "y", &[int("axis", 0)]);
    let input = model(20).constant("axis", Tensor::scalar(0i64)).node("DFT", "x _ axis", "y", &[]);
    let x = ramp(&[4, 3, 1], 7);
    assert_eq!(attribute.eval("y", std::slice::from_ref(&x)), input.eval("y", &[x]));
}

#[test]
fn the_inverse_of_a_one_sided_spectrum_is_real() {
    let model = Model::new(20).input("x", DType::F32, &["n", "3", "2"]);
    let model = model.node("DFT", "x", "y", &[int("onesided", 1), int("inverse", 1)]);
    assert_close(&model.eval("y", &[ramp(&[1, 3, 2], 7)]), &[floats(&[1, 4, 1], &[-1.25, -0.375, 0.0, 0.125])]);
}

#[test]
fn frames_of_a_signal_of_any_length_are_one_convolution() {
    let model = Model::new(17)
        .input("x", DType::F32, &["n", "length", "1"])
        .constant("step", Tensor::scalar(2i64))
        .constant("w", floats(&[4], &[0.5, 1.0, 1.0, 0.5]))
        .node("STFT", "x step w", "y", &[]);
    assert_eq!(ops(&model.clone().graph("y")), ["reshape", "conv", "transpose", "reshape"]);
    assert_eq!(output_type(&model.clone().graph("y")), "f32[n,length floordiv 2 - 1,3,2]");
    assert_close(
        &model.eval("y", &[ramp(&[1, 8, 1], 7)]),
        &[floats(
            &[1, 3, 3, 2],
            &[
                -1.5,
                0.0,
                0.5,
                -1.09278e-7,
                -2.5,
                4.37114e-8,
                -0.75,
                0.0,
                0.375,
                -0.125,
                -2.5,
                7.64949e-8,
                0.0,
                0.0,
                0.25,
                -0.25,
                -2.5,
                1.09278e-7,
            ],
        )],
    );
}

#[test]
fn windows_and_mel_filters_are_constants() {
    let model = Model::new(17).constant("n", Tensor::scalar(4i64)).node("HannWindow", "n", "y", &[]);
    assert_close(&model.eval("y", &[]), &[floats(&[4], &[0.0, 0.5, 1.0, 0.5])]);
    let model = Model::new(17)
        .constant("bands", Tensor::scalar(3i64))
        .constant("length", Tensor::scalar(8i64))
        .constant("rate", Tensor::scalar(16i64))
        .constant("low", Tensor::scalar(0.0f32))
        .constant("high", Tensor::scalar(8.0f32))
        .node("MelWeightMatrix", "bands length rate low high", "y", &[]);
    assert_close(
        &model.eval("y", &[]),
        &[floats(&[5, 3], &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])],
    );
}

#[test]
fn random_tensors_are_the_same_in_every_run_and_differ_by_seed() {
    let model = |seed: f32| {
        let attributes = [ints("shape", &[64]), float("seed", seed), float("low", 2.0), float("high", 3.0)];
        Model::new(22).node("RandomUniform", "", "y", &attributes).eval("y", &[])
    };
    assert_eq!(model(1.0), model(1.0));
    assert_ne!(model(1.0), model(2.0));
    assert!(model(1.0)[0].to_f64_vec().into_iter().all(|x| (2.0..3.0).contains(&x)));
    // Without a seed the node's name decides, so two nodes differ.
    let like = Model::new(22).input("x", DType::F32, &["n"]).node("RandomNormalLike", "x", "a", &[]);
    let outputs = like.node("RandomNormalLike", "x", "b", &[]).eval("a b", &[ramp(&[8], 1)]);
    assert_ne!(outputs[0], outputs[1]);
}
