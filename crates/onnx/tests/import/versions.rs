//! Operators whose meaning or form changed between versions: the same question to both sides of each change.

use precast_tensor::{DType, Tensor};

use crate::model::{Model, bools, float, floats, int, int_tensor, ints, number_of, ops, output_type, text};

fn matrix() -> Tensor {
    floats(&[2, 3], &[1.0, -2.0, 3.0, -4.0, 5.0, -6.0])
}

fn with_matrix(opset: i64) -> Model {
    Model::new(opset).input("x", DType::F32, &["2", "3"])
}

#[test]
fn clip_takes_bounds_as_attributes_before_11_and_as_inputs_after() {
    let expected = floats(&[2, 3], &[1.0, -1.0, 2.0, -1.0, 2.0, -1.0]);
    let attributes = with_matrix(6).node("Clip", "x", "y", &[float("min", -1.0), float("max", 2.0)]);
    assert_eq!(attributes.eval("y", &[matrix()]), [expected.clone()]);
    let bounds = |model: Model| model.constant("lo", Tensor::scalar(-1.0f32)).constant("hi", Tensor::scalar(2.0f32));
    let inputs = bounds(with_matrix(11)).node("Clip", "x lo hi", "y", &[]);
    assert_eq!(ops(&inputs.clone().graph("y")), ["clamp"]);
    assert_eq!(inputs.eval("y", &[matrix()]), [expected]);
}

#[test]
fn clip_with_one_bound_that_is_an_input_is_one_minimum() {
    let model = with_matrix(13).input("hi", DType::F32, &[]).node("Clip", "x _ hi", "y", &[]);
    assert_eq!(ops(&model.clone().graph("y")), ["binary"]);
    let expected = floats(&[2, 3], &[0.0, -2.0, 0.0, -4.0, 0.0, -6.0]);
    assert_eq!(model.eval("y", &[matrix(), Tensor::scalar(0.0f32)]), [expected]);
}

#[test]
fn dropout_masks_change_type_at_10() {
    let ones = floats(&[2, 3], &[1.0; 6]);
    assert_eq!(
        with_matrix(7).node("Dropout", "x", "y m", &[float("ratio", 0.3)]).eval("y m", &[matrix()]),
        [matrix(), ones]
    );
    for opset in [10, 12] {
        let outputs = with_matrix(opset).node("Dropout", "x", "y m", &[]).eval("y m", &[matrix()]);
        assert_eq!(outputs, [matrix(), bools(&[2, 3], &[true; 6])]);
    }
}

#[test]
fn dropout_while_training_is_refused() {
    let model = with_matrix(12).constant("on", Tensor::from_bools([], &[true]).unwrap());
    let refusal = model.node("Dropout", "x _ on", "y", &[]).refusal("y");
    assert!(refusal.contains("training_mode is true; export the model for inference"), "{refusal}");
}

#[test]
fn reduce_axes_move_to_an_input() {
    let expected = floats(&[2], &[2.0, -5.0]);
    let attribute = |opset| with_matrix(opset).node("ReduceSum", "x", "y", &[ints("axes", &[-1]), int("keepdims", 0)]);
    assert_eq!(attribute(12).eval("y", &[matrix()]), [expected.clone()]);
    let refusal = attribute(13).refusal("y");
    assert!(refusal.contains("attribute 'axes' does not belong to this operator"), "{refusal}");
    let input = with_matrix(13).ints("a", &[1]).node("ReduceSum", "x a", "y", &[int("keepdims", 0)]);
    assert_eq!(input.eval("y", &[matrix()]), [expected]);
}

#[test]
fn a_reduction_over_no_axes_still_does_the_rest_of_its_formula() {
    let noop = [int("noop_with_empty_axes", 1)];
    let sum = with_matrix(18).node("ReduceSum", "x", "y", &noop);
    assert_eq!(sum.eval("y", &[matrix()]), [matrix()]);
    let squares = with_matrix(18).node("ReduceSumSquare", "x", "y", &noop);
    assert_eq!(squares.eval("y", &[matrix()]), [floats(&[2, 3], &[1.0, 4.0, 9.0, 16.0, 25.0, 36.0])]);
    let norm = with_matrix(18).node("ReduceL2", "x", "y", &noop);
    assert_eq!(norm.eval("y", &[matrix()]), [floats(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])]);
}

#[test]
fn squeeze_and_unsqueeze_axes_move_to_an_input_at_13() {
    let row = floats(&[1, 2, 1], &[1.0, 2.0]);
    let model = |opset| Model::new(opset).input("x", DType::F32, &["1", "2", "1"]).ints("a", &[0, -1]);
    let old = model(11).node("Squeeze", "x", "s", &[ints("axes", &[0, -1])]);
    let new = model(13).node("Squeeze", "x a", "s", &[]);
    for model in [old.node("Unsqueeze", "s", "y", &[ints("axes", &[0, -1])]), new.node("Unsqueeze", "s a", "y", &[])] {
        let outputs = model.eval("s y", std::slice::from_ref(&row));
        assert_eq!(outputs, [floats(&[2], &[1.0, 2.0]), row.clone()]);
    }
}

#[test]
fn reshape_copies_a_dim_for_0_unless_allowzero() {
    let copies = with_matrix(13).ints("s", &[0, -1, 1]).node("Reshape", "x s", "y", &[]);
    assert_eq!(output_type(&copies.graph("y")), "f32[2,3,1]");
    let empty = Model::new(14).input("x", DType::F32, &["0", "3"]).ints("s", &[3, 0]);
    let keeps = empty.node("Reshape", "x s", "y", &[int("allowzero", 1)]);
    assert_eq!(output_type(&keeps.graph("y")), "f32[3,0]");
}

#[test]
fn slices_of_all_versions_clamp_and_count_from_the_end() {
    let expected = floats(&[2, 2], &[-2.0, 3.0, 5.0, -6.0]);
    let attributes = [ints("starts", &[-2]), ints("ends", &[1000]), ints("axes", &[1])];
    assert_eq!(with_matrix(9).node("Slice", "x", "y", &attributes).eval("y", &[matrix()]), [expected.clone()]);
    let inputs = with_matrix(10).ints("s", &[-2]).ints("e", &[i64::MAX]).ints("a", &[-1]);
    assert_eq!(inputs.node("Slice", "x s e a", "y", &[]).eval("y", &[matrix()]), [expected]);
    let backwards = with_matrix(13).ints("s", &[-1]).ints("e", &[i64::MIN]).ints("a", &[1]).ints("t", &[-2]);
    let expected = floats(&[2, 2], &[3.0, 1.0, -6.0, -4.0]);
    assert_eq!(backwards.node("Slice", "x s e a t", "y", &[]).eval("y", &[matrix()]), [expected]);
}

#[test]
fn split_takes_sizes_from_attribute_input_or_count() {
    let row = floats(&[5], &[1.0, 2.0, 3.0, 4.0, 5.0]);
    let model = |opset| Model::new(opset).input("x", DType::F32, &["5"]).ints("s", &[2, 3]);
    let halves = [floats(&[2], &[1.0, 2.0]), floats(&[3], &[3.0, 4.0, 5.0])];
    let attribute = model(11).node("Split", "x", "a b", &[ints("split", &[2, 3])]);
    let input = model(13).node("Split", "x s", "a b", &[]);
    for model in [attribute, input] {
        assert_eq!(model.eval("a b", std::slice::from_ref(&row)), halves);
    }
    // The last of equal chunks is smaller.
    let chunks = model(18).node("Split", "x", "a b", &[int("num_outputs", 2)]);
    let chunks = chunks.eval("a b", std::slice::from_ref(&row));
    assert_eq!(chunks, [floats(&[3], &[1.0, 2.0, 3.0]), floats(&[2], &[4.0, 5.0])]);
    let refusal = model(13).node("Split", "x", "a b", &[]).refusal("a b");
    assert!(refusal.contains("axis 0, split into 2 equal parts is 5, which 2 does not divide"), "{refusal}");
}

#[test]
fn pads_of_all_versions() {
    let row = floats(&[3], &[1.0, 2.0, 3.0]);
    let model = |opset| Model::new(opset).input("x", DType::F32, &["3"]).ints("p", &[2, -1]);
    let filled = floats(&[4], &[7.0, 7.0, 1.0, 2.0]);
    let attribute = model(2).node("Pad", "x", "y", &[ints("pads", &[2, -1]), float("value", 7.0)]);
    let input = model(11).constant("v", Tensor::scalar(7.0f32)).node("Pad", "x p v", "y", &[]);
    for model in [attribute, input] {
        assert_eq!(model.eval("y", std::slice::from_ref(&row)), [filled.clone()]);
    }
    let reflected =
        model(18).ints("q", &[2, 1]).ints("a", &[0]).node("Pad", "x q _ a", "y", &[text("mode", "reflect")]);
    assert_eq!(reflected.eval("y", &[row]), [floats(&[6], &[3.0, 2.0, 1.0, 2.0, 3.0, 2.0])]);
}

#[test]
fn topk_takes_k_from_attribute_or_input_and_may_look_for_the_smallest() {
    let row = floats(&[4], &[1.0, 3.0, 3.0, 2.0]);
    let model = |opset| Model::new(opset).input("x", DType::F32, &["4"]).ints("k", &[2]);
    let largest = [floats(&[2], &[3.0, 3.0]), int_tensor(&[2], &[1, 2])];
    assert_eq!(model(9).node("TopK", "x", "v i", &[int("k", 2)]).eval("v i", std::slice::from_ref(&row)), largest);
    assert_eq!(model(10).node("TopK", "x k", "v i", &[]).eval("v i", std::slice::from_ref(&row)), largest);
    let smallest = model(11).node("TopK", "x k", "v i", &[int("largest", 0)]).eval("v i", &[row]);
    assert_eq!(smallest, [floats(&[2], &[1.0, 2.0]), int_tensor(&[2], &[0, 3])]);
}

#[test]
fn one_hot_wraps_negative_indices_from_11_on() {
    let model = |opset| {
        let model = Model::new(opset).input("i", DType::I64, &["2"]).constant("d", Tensor::scalar(3i64));
        model.constant("v", floats(&[2], &[0.0, 5.0])).node("OneHot", "i d v", "y", &[])
    };
    let indices = [int_tensor(&[2], &[1, -1])];
    assert_eq!(model(9).eval("y", &indices), [floats(&[2, 3], &[0.0, 5.0, 0.0, 0.0, 0.0, 0.0])]);
    assert_eq!(model(11).eval("y", &indices), [floats(&[2, 3], &[0.0, 5.0, 0.0, 0.0, 0.0, 5.0])]);
}

#[test]
fn hardmax_before_13_flattens_to_a_matrix() {
    let x = floats(&[1, 2, 2], &[1.0, 4.0, 3.0, 2.0]);
    let model = |opset| Model::new(opset).input("x", DType::F32, &["1", "2", "2"]).node("Hardmax", "x", "y", &[]);
    assert_eq!(model(11).eval("y", std::slice::from_ref(&x)), [floats(&[1, 2, 2], &[0.0, 1.0, 0.0, 0.0])]);
    assert_eq!(model(13).eval("y", &[x]), [floats(&[1, 2, 2], &[0.0, 1.0, 1.0, 0.0])]);
}

#[test]
fn cast_has_saturate_from_19_on() {
    let cast = |opset| {
        let attributes = [int("to", number_of(DType::I32).into()), int("saturate", 0)];
        with_matrix(opset).node("Cast", "x", "y", &attributes)
    };
    assert!(cast(13).refusal("y").contains("attribute 'saturate' does not belong to this operator"));
    assert_eq!(output_type(&cast(19).graph("y")), "i32[2,3]");
}

#[test]
fn fmod_takes_the_sign_of_the_dividend() {
    let model = |fmod| {
        let model = Model::new(13).input("a", DType::I64, &["2"]).input("b", DType::I64, &["2"]);
        model.node("Mod", "a b", "y", &[int("fmod", fmod)])
    };
    let inputs = [int_tensor(&[2], &[-4, 7]), int_tensor(&[2], &[3, -3])];
    assert_eq!(model(0).eval("y", &inputs), [int_tensor(&[2], &[2, -2])]);
    assert_eq!(model(1).eval("y", &inputs), [int_tensor(&[2], &[-1, 1])]);
}

#[test]
fn shape_takes_a_range_of_axes_from_15_on() {
    let model = Model::new(15).input("x", DType::F32, &["2", "3", "4"]);
    let shape = model.node("Shape", "x", "y", &[int("start", -2), int("end", 100)]);
    assert_eq!(shape.eval("y", &[floats(&[2, 3, 4], &[0.0; 24])]), [int_tensor(&[2], &[3, 4])]);
}

#[test]
fn before_opset_7_the_second_operand_may_begin_at_an_axis() {
    let model = Model::new(6).input("x", DType::F32, &["2", "3", "2"]).constant("b", floats(&[3], &[0.0, 10.0, 20.0]));
    let x = floats(&[2, 3, 2], &[1.0; 12]);
    let expected: Vec<f32> = (0..12).map(|i| 1.0 + (i / 2 % 3) as f32 * 10.0).collect();
    let model = model.node("Add", "x b", "y", &[int("broadcast", 1), int("axis", 1)]);
    assert_eq!(model.eval("y", &[x]), [floats(&[2, 3, 2], &expected)]);
}

#[test]
fn before_opset_7_a_slope_belongs_to_a_channel() {
    let model = Model::new(6).input("x", DType::F32, &["1", "2", "2"]).constant("s", floats(&[2], &[2.0, 3.0]));
    let x = floats(&[1, 2, 2], &[-1.0, 1.0, -1.0, 1.0]);
    let expected = floats(&[1, 2, 2], &[-2.0, 1.0, -3.0, 1.0]);
    assert_eq!(model.node("PRelu", "x s", "y", &[]).eval("y", &[x]), [expected]);
}
