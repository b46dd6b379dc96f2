//! Losses: what is ignored weighs nothing, and the mean is over weights.

use precast_tensor::DType;

use crate::compare::assert_close;
use crate::model::{Model, floats, int, int_tensor, text};

const SCORES: [f32; 6] = [-0.5, -1.0, -2.0, -0.25, -3.0, -1.5];

fn likelihood(targets: &[i64], attributes: &[precast_onnx::proto::AttributeProto], inputs: &str) -> Vec<f64> {
    let model = Model::new(13)
        .input("x", DType::F32, &["n", "3"])
        .input("t", DType::I64, &["n"])
        .constant("w", floats(&[3], &[1.0, 2.0, 4.0]));
    let model = model.node("NegativeLogLikelihoodLoss", inputs, "y", attributes);
    model.eval("y", &[floats(&[2, 3], &SCORES), int_tensor(&[2], targets)])[0].to_f64_vec()
}

#[test]
fn each_target_chooses_a_score_and_a_weight() {
    assert_eq!(likelihood(&[0, 2], &[text("reduction", "none")], "x t"), [0.5, 1.5]);
    assert_eq!(likelihood(&[0, 2], &[text("reduction", "none")], "x t w"), [0.5, 6.0]);
    assert_eq!(likelihood(&[0, 2], &[text("reduction", "sum")], "x t w"), [6.5]);
    assert_eq!(likelihood(&[0, 2], &[], "x t w"), [f64::from(1.3f32)]);
    assert_eq!(likelihood(&[0, 2], &[], "x t"), [1.0]);
}

#[test]
fn an_ignored_target_need_not_be_a_class() {
    assert_eq!(likelihood(&[0, -7], &[int("ignore_index", -7), text("reduction", "none")], "x t"), [0.5, 0.0]);
    assert_eq!(likelihood(&[1, 90], &[int("ignore_index", 90)], "x t w"), [1.0]);
}

#[test]
fn cross_entropy_gives_the_log_probabilities_too() {
    let model = Model::new(13).input("x", DType::F32, &["n", "2", "2"]).input("t", DType::I64, &["n", "2"]);
    let model = model.node("SoftmaxCrossEntropyLoss", "x t", "y p", &[text("reduction", "none")]);
    let half = (0.5f32).ln();
    let outputs = model.eval("y p", &[floats(&[1, 2, 2], &[3.0, 1.0, 3.0, 1.0]), int_tensor(&[1, 2], &[1, 0])]);
    assert_close(&outputs, &[floats(&[1, 2], &[-half; 2]), floats(&[1, 2, 2], &[half; 4])]);
}
