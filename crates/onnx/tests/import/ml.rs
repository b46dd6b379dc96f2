//! ai.onnx.ml on numbers.

use precast_onnx::proto::AttributeProto;
use precast_tensor::DType;

use crate::compare::assert_close;
use crate::model::{Model, float, floats, floats_attribute, int, int_tensor, ints, text, texts};

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

/// One tree of three nodes: x[0] asks `mode` of 1.5, yes is 10 and no is 20.
fn small_tree(mode: &'static str, tracks: &[i64]) -> Vec<AttributeProto> {
    vec![
        ints("nodes_treeids", &[0, 0, 0]),
        ints("nodes_nodeids", &[0, 1, 2]),
        ints("nodes_featureids", &[0, 0, 0]),
        ints("nodes_truenodeids", &[1, 0, 0]),
        ints("nodes_falsenodeids", &[2, 0, 0]),
        ints("nodes_missing_value_tracks_true", tracks),
        texts("nodes_modes", &[mode, "LEAF", "LEAF"]),
        floats_attribute("nodes_values", &[1.5, 0.0, 0.0]),
        ints("target_treeids", &[0, 0]),
        ints("target_nodeids", &[1, 2]),
        ints("target_ids", &[0, 0]),
        floats_attribute("target_weights", &[10.0, 20.0]),
    ]
}

fn of_tree(attributes: &[AttributeProto], x: &[f32]) -> Vec<f64> {
    let model = Model::new(13).input("x", DType::F32, &[&x.len().to_string(), "1"]);
    let model = model.node("ai.onnx.ml:TreeEnsembleRegressor", "x", "y", attributes);
    model.eval("y", &[floats(&[x.len(), 1], x)])[0].to_f64_vec()
}

#[test]
fn trees_ask_every_question_and_know_what_is_missing() {
    let x = [1.0, 1.5, 2.0];
    for (mode, answers) in [
        ("BRANCH_LEQ", [10.0, 10.0, 20.0]),
        ("BRANCH_LT", [10.0, 20.0, 20.0]),
        ("BRANCH_GTE", [20.0, 10.0, 10.0]),
        ("BRANCH_GT", [20.0, 20.0, 10.0]),
        ("BRANCH_EQ", [20.0, 10.0, 20.0]),
        ("BRANCH_NEQ", [10.0, 20.0, 10.0]),
    ] {
        assert_eq!(of_tree(&small_tree(mode, &[0, 0, 0]), &x), answers, "{mode}");
    }
    assert_eq!(of_tree(&small_tree("BRANCH_LEQ", &[0, 0, 0]), &[f32::NAN]), [20.0]);
    assert_eq!(of_tree(&small_tree("BRANCH_LEQ", &[1, 0, 0]), &[f32::NAN]), [10.0]);
}

#[test]
fn a_tree_that_is_none_is_refused() {
    let refusal = |attributes: Vec<AttributeProto>| {
        let model = Model::new(13).input("x", DType::F32, &["1", "1"]);
        model.node("ai.onnx.ml:TreeEnsembleRegressor", "x", "y", &attributes).refusal("y")
    };
    let with = |attribute: AttributeProto| {
        let mut attributes = small_tree("BRANCH_LEQ", &[0, 0, 0]);
        let place = attributes.iter().position(|known| known.name == attribute.name).unwrap();
        attributes[place] = attribute;
        refusal(attributes)
    };
    assert!(with(ints("nodes_truenodeids", &[7, 0, 0])).contains("tree 0 has no node 7"));
    assert!(with(ints("nodes_truenodeids", &[0, 0, 0])).contains("comes after itself"));
    assert!(with(ints("nodes_nodeids", &[0, 1, 1])).contains("have the same number"));
    assert!(with(ints("target_ids", &[0, 5])).contains("target 5 is outside of 0..1"));
    assert!(with(texts("nodes_modes", &["BRANCH_MAYBE", "LEAF", "LEAF"])).contains("'BRANCH_MAYBE'"));
}
