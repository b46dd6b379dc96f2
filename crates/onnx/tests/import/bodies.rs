//! If, Loop and functions: what is decided while importing, and what keeps its bodies.

use precast_onnx::proto::{AttributeProto, FunctionProto, OperatorSetIdProto};
use precast_tensor::{DType, Tensor};

use crate::model::{Model, body, bools, float, floats, int, int_tensor, ints, node, ops, output_type};

fn branches(then_op: &str, else_op: &str) -> [AttributeProto; 2] {
    let branch = |op: &str| Model::default().node(op, "x", "r", &[]).body("r");
    [body("then_branch", branch(then_op)), body("else_branch", branch(else_op))]
}

#[test]
fn a_known_condition_leaves_only_the_branch_taken() {
    let model = Model::new(13).input("x", DType::F32, &["n"]).constant("c", bools(&[], &[false]));
    let graph = model.node("If", "c", "y", &branches("Abs", "Exp")).graph("y");
    assert_eq!(ops(&graph), ["unary"]);
    assert_eq!(graph.nodes()[0].op.attributes()[0].1, "exp");
}

#[test]
fn an_unknown_condition_keeps_both_branches_and_their_captures() {
    let model = Model::new(13).input("x", DType::F32, &["n"]).input("c", DType::Bool, &[]);
    let model = model.node("If", "c", "y", &branches("Abs", "Neg"));
    assert_eq!(ops(&model.clone().graph("y")), ["if"]);
    for (condition, expected) in [(true, 2.0), (false, -2.0)] {
        let x = floats(&[1], &[2.0]);
        assert_eq!(model.clone().eval("y", &[x, bools(&[], &[condition])]), [floats(&[1], &[expected])]);
    }
}

#[test]
fn branches_of_unlike_shape_need_the_condition() {
    let model = Model::new(11).input("x", DType::F32, &["n", "1"]).input("c", DType::Bool, &[]);
    let mut model = model.node("If", "c", "y", &branches("Transpose", "Identity"));
    let refusal = model.clone().refusal("y");
    assert!(refusal.contains("the condition of two unlike branches must be known"), "{refusal}");
    assert!(refusal.contains("input 'c'"), "{refusal}");
    model.options.freeze.insert("c".to_string(), bools(&[], &[true]));
    assert_eq!(output_type(&model.graph("y")), "f32[1,n]");
}

#[test]
fn a_branch_that_cannot_hold_is_passed_over_once_the_dim_is_known() {
    // torch writes "squeeze if the axis has size 1".
    let squeeze = Model::default().node("Squeeze", "x a", "r", &[]).body("r");
    let keep = Model::default().node("Identity", "x", "r", &[]).body("r");
    let mut model = Model::new(13)
        .input("x", DType::F32, &["n", "3"])
        .ints("a", &[0])
        .ints("one", &[1])
        .node("Shape", "x", "shape", &[])
        .node("Gather", "shape a", "size", &[])
        .node("Equal", "size one", "c", &[])
        .node("If", "c", "y", &[body("then_branch", squeeze), body("else_branch", keep)]);
    assert!(model.clone().refusal("y").contains("depends on the dim 'n'"));
    for (size, expected) in [(1, "f32[3]"), (2, "f32[2,3]")] {
        model.options.dims.insert("n".to_string(), size.into());
        assert_eq!(output_type(&model.clone().graph("y")), expected);
    }
}

/// Adds `x` to the carried sum in each round and gives the sum as a scan output.
fn summing_body() -> AttributeProto {
    let body_model = Model::default()
        .input("i", DType::I64, &[])
        .input("c", DType::Bool, &[])
        .input("s", DType::F32, &["1"])
        .node("Identity", "c", "c2", &[])
        .node("Add", "s x", "s2", &[])
        .node("Identity", "s2", "scan", &[]);
    body("body", body_model.body("c2 s2 scan"))
}

#[test]
fn a_short_loop_is_unrolled() {
    let model = Model::new(13)
        .input("x", DType::F32, &["1"])
        .constant("trips", Tensor::scalar(3i64))
        .constant("start", floats(&[1], &[10.0]))
        .node("Loop", "trips _ start", "y all", &[summing_body()]);
    assert!(!ops(&model.clone().graph("y all")).contains(&"loop"));
    let outputs = model.eval("y all", &[floats(&[1], &[2.0])]);
    assert_eq!(outputs, [floats(&[1], &[16.0]), floats(&[3, 1], &[12.0, 14.0, 16.0])]);
}

#[test]
fn a_loop_of_unknown_length_keeps_its_body() {
    let model = Model::new(13)
        .input("x", DType::F32, &["1"])
        .input("trips", DType::I64, &[])
        .constant("start", floats(&[1], &[10.0]))
        .node("Loop", "trips _ start", "y all", &[summing_body()]);
    assert_eq!(ops(&model.clone().graph("y all")), ["loop"]);
    let outputs = model.eval("y all", &[floats(&[1], &[2.0]), Tensor::scalar(2i64)]);
    assert_eq!(outputs, [floats(&[1], &[14.0]), floats(&[2, 1], &[12.0, 14.0])]);
}

#[test]
fn carried_values_may_grow() {
    let growing = Model::default()
        .input("i", DType::I64, &[])
        .input("c", DType::Bool, &[])
        .input("s", DType::F32, &["?"])
        .node("Identity", "c", "c2", &[])
        .node("Concat", "s x", "s2", &[int("axis", 0)]);
    let model = Model::new(13)
        .input("x", DType::F32, &["1"])
        .input("trips", DType::I64, &[])
        .constant("start", floats(&[1], &[10.0]))
        .node("Loop", "trips _ start", "y", &[body("body", growing.body("c2 s2"))])
        .node("Neg", "y", "z", &[]);
    let outputs = model.eval("z", &[floats(&[1], &[2.0]), Tensor::scalar(2i64)]);
    assert_eq!(outputs, [floats(&[3], &[-10.0, -2.0, -2.0])]);
}

#[test]
fn a_loop_that_a_condition_ends_runs_as_a_loop() {
    // Doubles until the sum passes 10.
    let doubling = Model::default()
        .input("i", DType::I64, &[])
        .input("c", DType::Bool, &[])
        .input("s", DType::F32, &["1"])
        .node("Add", "s s", "s2", &[])
        .node("Less", "s2 limit", "less", &[])
        .constant("none", int_tensor(&[0], &[]))
        .node("Reshape", "less none", "c2", &[]);
    let model = Model::new(13).input("x", DType::F32, &["1"]).constant("limit", floats(&[1], &[10.0])).node(
        "Loop",
        "_ _ x",
        "y",
        &[body("body", doubling.body("c2 s2"))],
    );
    assert_eq!(model.eval("y", &[floats(&[1], &[3.0])]), [floats(&[1], &[12.0])]);
}

#[test]
fn functions_are_written_out_with_their_own_opset_and_absent_inputs() {
    let mut alpha = float("alpha", 0.0);
    (alpha.f, alpha.ref_attr_name) = (None, "slope".to_string());
    let function = FunctionProto {
        name: "Bounded".to_string(),
        domain: "local".to_string(),
        input: vec!["x".to_string(), "hi".to_string()],
        output: vec!["y".to_string()],
        attribute: vec!["slope".to_string()],
        node: vec![node("LeakyRelu", "x", "l", &[alpha]), node("Clip", "l _ hi", "y", &[])],
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 13 }],
        ..FunctionProto::default()
    };
    let mut model = Model::new(6).input("x", DType::F32, &["2"]).constant("hi", Tensor::scalar(1.0f32));
    model.functions.push(function);
    let x = floats(&[2], &[-4.0, 4.0]);
    let bounded = model.clone().node("local:Bounded", "x hi", "y", &[float("slope", 0.5)]);
    assert_eq!(bounded.eval("y", std::slice::from_ref(&x)), [floats(&[2], &[-2.0, 1.0])]);
    let open = model.node("local:Bounded", "x", "y", &[float("slope", 0.5)]);
    assert_eq!(open.eval("y", &[x]), [floats(&[2], &[-2.0, 4.0])]);
}

/// A running sum over slices of x, also as scan output.
fn running_sum() -> AttributeProto {
    let sum = Model::default().input("s", DType::F32, &["2"]).input("x", DType::F32, &["2"]);
    body("body", sum.node("Add", "s x", "t", &[]).node("Identity", "t", "u", &[]).body("t u"))
}

#[test]
fn a_scan_may_go_backwards_along_any_axis() {
    let model = Model::new(11).input("s", DType::F32, &["2"]).input("x", DType::F32, &["2", "3"]);
    let attributes = [
        running_sum(),
        int("num_scan_inputs", 1),
        ints("scan_input_axes", &[1]),
        ints("scan_input_directions", &[1]),
        ints("scan_output_axes", &[-1]),
        ints("scan_output_directions", &[1]),
    ];
    let model = model.node("Scan", "s x", "y z", &attributes);
    let x = floats(&[2, 3], &[1.0, 2.0, 3.0, 10.0, 20.0, 30.0]);
    assert_eq!(
        model.eval("y z", &[floats(&[2], &[0.0, 100.0]), x]),
        [floats(&[2], &[6.0, 160.0]), floats(&[2, 3], &[6.0, 5.0, 3.0, 160.0, 150.0, 130.0])]
    );
}

#[test]
fn a_scan_of_opset_8_has_a_batch() {
    let model = Model::new(8).input("s", DType::F32, &["2", "2"]).input("x", DType::F32, &["2", "2", "2"]);
    let model = model.node("Scan", "_ s x", "y z", &[running_sum(), int("num_scan_inputs", 1)]);
    let x = floats(&[2, 2, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    assert_eq!(
        model.eval("y z", &[floats(&[2, 2], &[0.0; 4]), x]),
        [floats(&[2, 2], &[4.0, 6.0, 12.0, 14.0]), floats(&[2, 2, 2], &[1.0, 2.0, 4.0, 6.0, 5.0, 6.0, 12.0, 14.0]),]
    );
}

#[test]
fn a_scan_over_a_size_that_only_the_run_knows_keeps_its_loop() {
    let model = Model::new(11).input("s", DType::F32, &["2"]).input("x", DType::F32, &["t", "2"]);
    let model = model.node("Scan", "s x", "y z", &[running_sum(), int("num_scan_inputs", 1)]);
    let graph = model.graph("y z");
    assert!(ops(&graph).contains(&"loop"));
    assert_eq!(graph.ty(graph.outputs()[1].value).to_string(), "f32[t,2]");
}
