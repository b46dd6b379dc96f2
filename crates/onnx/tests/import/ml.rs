//! ai.onnx.ml on numbers.

use precast_onnx::proto::AttributeProto;
use precast_tensor::DType;

use crate::compare::assert_close;
use crate::model::{Model, float, floats, floats_attribute, int, int_tensor, text};

fn of_matrix(op: &str, attributes: &[AttributeProto]) -> Vec<f64> {
    let model = Model::new(13).input("x", DType::F32, &["2", "2"]);
    let model = model.node(&format!("ai.onnx.ml:{op}"), "x", "y", attributes);
    model.eval("y", &[floats(&[2, 2], &[3.0, -4.0, 0.0, 0.0])])[0].to_f64_vec()
}

#[test]
fn features_are_scaled_replaced_and_cut() {
    let scaled = of_matrix("Scaler", &[floats_attribute("offset", &[1.0, 2.0]), floats_attribute("scale", &[0.5])]);
    assert_eq!(scaled, [1.0, -3.0, -0.5, -1.0]);
    let imputed = of_matrix("Imputer", &[floats_attribute("imputed_value_floats", &[7.0, 8.0])]);
    assert_eq!(imputed, [3.0, -4.0, 7.0, 8.0]);
    assert_eq!(of_matrix("Binarizer", &[float("threshold", 2.5)]), [1.0, 0.0, 0.0, 0.0]);
    let model = Model::new(13).input("x", DType::F32, &["2", "3"]).constant("i", int_tensor(&[1, 2], &[2, 0]));
    let model = model.node("ai.onnx.ml:ArrayFeatureExtractor", "x i", "y", &[]);
    let x = floats(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(model.eval("y", &[x]), [floats(&[2, 2], &[3.0, 1.0, 6.0, 4.0])]);
}

#[test]
fn rows_are_normalised_and_rows_of_zeros_stay() {
    assert_eq!(of_matrix("Normalizer", &[text("norm", "L2")]), [f64::from(0.6f32), f64::from(-0.8f32), 0.0, 0.0]);
    assert_eq!(of_matrix("Normalizer", &[])[2..], [0.0, 0.0]);
}

#[test]
fn a_linear_model_is_a_product_and_a_sum() {
    let model = Model::new(13).input("x", DType::F32, &["1", "2"]);
    let attributes = [
        int("targets", 2),
        floats_attribute("coefficients", &[1.0, 2.0, 3.0, 4.0]),
        floats_attribute("intercepts", &[0.5, -0.5]),
    ];
    let model = model.node("ai.onnx.ml:LinearRegressor", "x", "y", &attributes);
    assert_close(&model.eval("y", &[floats(&[1, 2], &[1.0, 10.0])]), &[floats(&[1, 2], &[21.5, 42.5])]);
}
