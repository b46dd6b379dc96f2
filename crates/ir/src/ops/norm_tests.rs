use super::*;
use crate::eval::tests::check_node;
use crate::ops::test_tensor::{eval, f32s, infer};

#[test]
fn softmax_sums_to_one_along_its_axis_and_does_not_overflow() {
    check_node(
        &["f32[2,2] [1000, 0, 1000, -inf]"],
        "softmax(%0) {axis=0, log=false}",
        &["f32[2,2] [0.5, 1.0, 0.5, 0.0]"],
    );
    check_node(
        &["f32[1,3] [1, 2, 3]"],
        "softmax(%0) {axis=1, log=false}",
        &["f32[1,3] [0.09003057, 0.24472848, 0.66524094]"],
    );
    check_node(
        &["f32[1,3] [1, 2, 3]"],
        "softmax(%0) {axis=1, log=true}",
        &["f32[1,3] [-2.407606, -1.407606, -0.40760598]"],
    );
}

#[test]
fn softmax_of_nan_or_of_nothing_but_minus_infinity_is_nan() {
    for line in [[f64::NAN, 1.0], [f64::NEG_INFINITY; 2], [f64::INFINITY, 0.0]] {
        let found = eval(Softmax { axis: 0, log: false }, &[f32s(&[2], &line)]).to_f64_vec();
        assert!(found.iter().any(|element| element.is_nan()), "{line:?}");
    }
}

#[test]
fn layer_norm_has_mean_bias_and_deviation_scale() {
    check_node(
        &["f32[2,2] [1, 3, 10, 30]", "f32[2] [1, 2]", "f32[1] [0.5]"],
        "layer_norm(%0, %1, %2) {axis=1, epsilon=0.0}",
        &["f32[2,2] [-0.5, 2.5, -0.5, 2.5]"],
    );
    check_node(
        &["f32[2,2] [1, 3, 10, 10]", "f32[2] [1, 2]"],
        "layer_norm(%0, %1) {axis=0, epsilon=1.5}",
        &["f32[2,2] [-1.1785113, -1.4142135, 0.94280905, 1.8856181]"],
    );
}

#[test]
fn rms_norm_does_not_take_the_mean_off() {
    check_node(
        &["f32[1,2] [1, 7]", "f32[2] [1, 10]"],
        "rms_norm(%0, %1) {axis=1, epsilon=0.0}",
        &["f32[1,2] [0.2, 14.0]"],
    );
}

#[test]
fn group_norm_normalises_each_group_of_channels() {
    let (x, scale, bias) = ("f32[1,2,2] [1, 3, 10, 20]", "f32[2] [1, 2]", "f32[2] [0, 100]");
    check_node(
        &[x, scale, bias],
        "group_norm(%0, %1, %2) {groups=2, epsilon=0.0}",
        &["f32[1,2,2] [-1.0, 1.0, 98.0, 102.0]"],
    );
    check_node(
        &["f32[1,2,2] [1, 1, 3, 3]", scale, bias],
        "group_norm(%0, %1, %2) {groups=1, epsilon=0.0}",
        &["f32[1,2,2] [-1.0, -1.0, 102.0, 102.0]"],
    );
}

#[test]
fn lrn_sees_one_channel_more_behind_than_before_when_the_size_is_even() {
    check_node(
        &["f32[1,3,1] [1, 2, 3]"],
        "lrn(%0) {size=2, alpha=2.0, beta=1.0, bias=0.0}",
        &["f32[1,3,1] [0.2, 0.15384616, 0.33333334]"],
    );
    check_node(
        &["f32[1,3,1] [1, 2, 3]"],
        "lrn(%0) {size=3, alpha=3.0, beta=1.0, bias=1.0}",
        &["f32[1,3,1] [0.16666667, 0.13333334, 0.21428572]"],
    );
}

#[test]
fn empty_tensors_stay_empty() {
    check_node(&["f32[0,3] []"], "softmax(%0) {axis=1, log=false}", &["f32[0,3] []"]);
    check_node(&["f32[3,0] []"], "softmax(%0) {axis=1, log=true}", &["f32[3,0] []"]);
    check_node(&["f32[2,0] []", "f32[0] []"], "layer_norm(%0, %1) {axis=1, epsilon=0.1}", &["f32[2,0] []"]);
    check_node(&["f32[2,0] []", "f32[0] []"], "rms_norm(%0, %1) {axis=1, epsilon=0.1}", &["f32[2,0] []"]);
    let group = "group_norm(%0, %1, %2) {groups=2, epsilon=0.1}";
    check_node(&["f32[1,2,0] []", "f32[2] [1, 1]", "f32[2] [1, 1]"], group, &["f32[1,2,0] []"]);
    check_node(&["f32[1,0,2] []", "f32[0] []", "f32[0] []"], group, &["f32[1,0,2] []"]);
    check_node(&["f32[1,0] []"], "lrn(%0) {size=3, alpha=1.0, beta=1.0, bias=1.0}", &["f32[1,0] []"]);
}

#[test]
fn types_must_fit() {
    let layer = || LayerNorm { axis: 1, epsilon: 0.0 };
    assert_eq!(infer(layer(), &["f32[n,d]", "f32[d]", "f32[1]"]), "f32[n,d]");
    assert_eq!(infer(layer(), &["f32[2,3]", "f32[4,2,3]"]), "layer_norm: f32[4,2,3] does not broadcast to x f32[2,3]");
    assert_eq!(infer(layer(), &["f32[1,3]", "f32[2,3]"]), "layer_norm: f32[2,3] does not broadcast to x f32[1,3]");
    assert_eq!(infer(layer(), &["f32[3]", "f32[3]"]), "layer_norm: axis 1 is out of range for rank 1");
    assert_eq!(infer(layer(), &["f32[2,3]", "f16[3]"]), "layer_norm: element types f32 and f16 differ");
    let group = GroupNorm { groups: 2, epsilon: 0.0 };
    assert_eq!(infer(group, &["f32[n,3,5]", "f32[3]", "f32[3]"]), "group_norm: 3 channels do not form 2 groups");
    assert_eq!(infer(Softmax { axis: 0, log: true }, &["i32[2]"]), "softmax: element type i32 has no meaning here");
}
