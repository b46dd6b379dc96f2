//! Normalisations. Expected numbers are those of onnxruntime, or of the ONNX reference where it has the operator alone.

use precast_tensor::{DType, Tensor};

use crate::compare::{assert_close, ramp};
use crate::model::{Model, float, floats, int, ops};

#[test]
fn constant_statistics_of_a_batch_norm_become_one_product_and_one_sum() {
    let model = Model::new(15)
        .input("x", DType::F32, &["n", "2", "3"])
        .constant("scale", floats(&[2], &[1.0, 2.0]))
        .constant("bias", floats(&[2], &[0.5, -0.5]))
        .constant("mean", floats(&[2], &[0.25, -1.0]))
        .constant("var", floats(&[2], &[1.0, 4.0]))
        .node("BatchNormalization", "x scale bias mean var", "y", &[]);
    assert_eq!(ops(&model.clone().graph("y")), ["binary", "binary"]);
    assert_close(
        &model.eval("y", &[ramp(&[1, 2, 3], 7)]),
        &[floats(&[1, 2, 3], &[-1.24999, 0.5, -0.999993, 0.999998, -0.5, 1.25])],
    );
}

#[test]
fn a_batch_norm_that_trains_is_refused() {
    let model = Model::new(15).input("x", DType::F32, &["n", "2"]).constant("s", floats(&[2], &[1.0, 1.0]));
    let refusal = model.node("BatchNormalization", "x s s s s", "y", &[int("training_mode", 1)]).refusal("y");
    assert!(refusal.contains("training_mode=1"), "{refusal}");
}

#[test]
fn group_norm_scales_groups_before_21_and_channels_after() {
    let model = |opset, scale: Tensor, bias: Tensor| {
        let model = Model::new(opset).input("x", DType::F32, &["n", "4", "3"]);
        let model = model.constant("scale", scale).constant("bias", bias);
        let model = model.node("GroupNormalization", "x scale bias", "y", &[int("num_groups", 2)]);
        model.eval("y", &[ramp(&[1, 4, 3], 7)])
    };
    let expected = [floats(
        &[1, 4, 3],
        &[
            -1.25209, 0.695604, -0.973846, 0.973846, -0.695604, 1.25209, -2.00417, 1.89121, -1.44769, 2.44769,
            -0.891208, 3.00417,
        ],
    )];
    assert_close(&model(18, floats(&[2], &[1.0, 2.0]), floats(&[2], &[0.0, 0.5])), &expected);
    assert_close(&model(21, floats(&[4], &[1.0, 1.0, 2.0, 2.0]), floats(&[4], &[0.0, 0.0, 0.5, 0.5])), &expected);
}

#[test]
fn statistics_of_a_layer_norm_are_made_only_where_wanted() {
    let model = Model::new(17).input("x", DType::F32, &["n", "4"]);
    let model = model.constant("s", ramp(&[4], 5)).constant("b", ramp(&[4], 3));
    assert_eq!(ops(&model.clone().node("LayerNormalization", "x s b", "y", &[]).graph("y")), ["layer_norm"]);
    let model = model.node("LayerNormalization", "x s b", "y m i", &[]);
    assert_close(
        &model.eval("y m i", &[ramp(&[2, 4], 7)]),
        &[
            floats(&[2, 4], &[0.197045, -0.962131, -0.848523, -0.381364, 0.197045, -0.962131, -0.848523, -0.381364]),
            floats(&[2, 1], &[-0.5, 0.0]),
            floats(&[2, 1], &[1.13136, 1.13136]),
        ],
    );
}

#[test]
fn softmax_flattens_before_13() {
    let model = |opset| Model::new(opset).input("x", DType::F32, &["n", "2", "2"]);
    let x = || ramp(&[1, 2, 2], 7);
    let old = model(11).node("Softmax", "x", "y", &[]);
    assert_eq!(ops(&old.clone().graph("y")), ["reshape", "softmax", "reshape"]);
    assert_close(&old.eval("y", &[x()]), &[floats(&[1, 2, 2], &[0.0648185, 0.373005, 0.0832287, 0.478948])]);
    let new = model(13).node("Softmax", "x", "y", &[int("axis", 1)]);
    assert_eq!(ops(&new.clone().graph("y")), ["softmax"]);
    assert_close(&new.eval("y", &[x()]), &[floats(&[1, 2, 2], &[0.437824, 0.437824, 0.562177, 0.562177])]);
    // Along the last axis both are the same.
    assert_eq!(ops(&model(11).node("Softmax", "x", "y", &[int("axis", 2)]).graph("y")), ["softmax"]);
}

#[test]
fn hardmax_marks_the_first_largest_element() {
    let model = Model::new(13).input("x", DType::F32, &["n", "4"]).node("Hardmax", "x", "y", &[]);
    assert_close(
        &model.clone().eval("y", &[ramp(&[2, 4], 7)]),
        &[floats(&[2, 4], &[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0])],
    );
    let ties = floats(&[1, 4], &[0.0, 2.0, 2.0, 1.0]);
    assert_eq!(model.eval("y", &[ties]), [floats(&[1, 4], &[0.0, 1.0, 0.0, 0.0])]);
}

#[test]
fn a_skip_layer_norm_gives_its_sum_too() {
    let model = Model::new(17).input("x", DType::F32, &["n", "2", "4"]).input("k", DType::F32, &["n", "2", "4"]);
    let model = model.constant("g", ramp(&[4], 3)).constant("b", ramp(&[4], 9)).constant("c", ramp(&[4], 11));
    let attributes = [float("epsilon", 1e-5)];
    let model = model.node("com.microsoft:SkipLayerNormalization", "x k g b c", "y _ _ s", &attributes);
    let outputs = model.eval("y s", &[ramp(&[1, 2, 4], 7), ramp(&[1, 2, 4], 5)]);
    assert_close(
        &outputs,
        &[
            floats(&[1, 2, 4], &[1.02347, 0.0770741, -0.25, -1.08177, 0.486899, -0.201175, -0.25, -0.806118]),
            floats(&[1, 2, 4], &[-4.5, 1.25, 0.5, -0.25, -2.25, 3.5, -0.5, 2.0]),
        ],
    );
}
