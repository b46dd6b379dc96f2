//! What a model is refused with: all unsupported nodes at once, and one sentence about anything malformed.

use precast_tensor::DType;

use crate::model::{Model, body, floats, int, ints};

#[test]
fn all_unsupported_nodes_are_listed_and_what_follows_them_is_passed_over() {
    let model = Model::new(13)
        .input("x", DType::F32, &["n"])
        .node("acme:Foo", "x", "a", &[])
        .node("Relu", "a", "b", &[])
        .node("Nonsense", "x", "c", &[])
        .node("acme:Foo", "b", "d", &[]);
    let refusal = model.refusal("d");
    let lines: Vec<&str> = refusal.lines().collect();
    assert_eq!(lines[0], "2 of 4 nodes cannot be imported (2 kinds)");
    assert!(lines[1].contains("Foo") && lines[1].contains("Foo_0") && lines[1].contains("does not import its domain"));
    assert!(lines[2].contains("Nonsense") && lines[2].ends_with("not covered"));
}

#[test]
fn unsupported_nodes_inside_a_body_are_listed_by_themselves() {
    let branch = || Model::default().node("Nonsense", "x", "r", &[]).body("r");
    let model = Model::new(13).input("x", DType::F32, &["n"]).input("c", DType::Bool, &[]);
    let refusal =
        model.node("If", "c", "y", &[body("then_branch", branch()), body("else_branch", branch())]).refusal("y");
    assert!(refusal.contains("Nonsense") && !refusal.contains("  If "), "{refusal}");
}

#[test]
fn an_operator_of_an_older_opset_says_which_one_is_covered() {
    let model = Model::new(5).input("x", DType::F32, &["n"]).node("Add", "x x", "y", &[]);
    assert!(model.refusal("y").contains("opset 5 is too old; it is covered from 6 on: convert the model"));
}

#[test]
fn faults_name_node_and_expectation() {
    let model = || Model::new(13).input("x", DType::F32, &["2", "3"]);
    let cases = [
        (
            model().node("Transpose", "x", "y", &[ints("perm", &[0])]),
            "Transpose 'Transpose_0': attribute 'perm' has 1 entries for rank 2",
        ),
        (model().node("Concat", "x", "y", &[int("axis", 2)]), "Concat 'Concat_0': axis 2 is out of range for rank 2"),
        (
            model().node("Relu", "x", "y", &[int("alpha", 1)]),
            "Relu 'Relu_0': attribute 'alpha' does not belong to this operator",
        ),
        (model().node("Relu", "z", "y", &[]), "Relu 'Relu_0': input 'z' is not defined before this node"),
        (model().node("Add", "x", "y", &[]), "Add 'Add_0': input 1 is missing"),
        (
            model().node("Flatten", "x", "y", &[ints("axis", &[1])]),
            "Flatten 'Flatten_0': attribute 'axis' is Ints; Int was expected",
        ),
        (
            model().constant("s", floats(&[1], &[6.0])).node("Reshape", "x s", "y", &[]),
            "Reshape 'Reshape_0': the shape is f32; integers were expected",
        ),
        (
            model().ints("s", &[4, -1]).node("Reshape", "x s", "y", &[]),
            "Reshape 'Reshape_0': 6 elements do not divide into 4 for the entry -1",
        ),
    ];
    for (model, expected) in cases {
        assert_eq!(model.refusal("y"), expected);
    }
}

#[test]
fn an_output_is_declared_once() {
    let model = Model::new(13).input("x", DType::F32, &["1"]).node("Abs", "x", "y", &[]);
    assert_eq!(model.refusal("y y"), "output 'y' is declared twice");
}

#[test]
fn truth_values_are_no_sizes() {
    let model = Model::new(13).input("x", DType::F32, &["2"]).input("n", DType::Bool, &["1"]);
    let refusal = model.node("Expand", "x n", "y", &[]).refusal("y");
    assert!(refusal.contains("is bool; integers were expected"), "{refusal}");
}

#[test]
fn operands_without_the_axes_that_are_read_are_faults() {
    let scalar = || floats(&[], &[1.0]);
    let model = || {
        let model = Model::new(23).input("x", DType::F32, &["1", "2", "4"]).input("i", DType::I64, &["2"]);
        model.constant("s", scalar()).ints("depth", &[3]).ints("ids", &[0])
    };
    let attended = [int("q_num_heads", 1), int("kv_num_heads", 1)];
    for model in [
        model().node("OneHot", "i depth s", "y", &[]),
        model().node("com.microsoft:RotaryEmbedding", "x ids s s", "y", &[]),
        model().node("com.microsoft:UnfoldTensor", "s", "y", &[int("size", 1)]),
        model().node("com.microsoft:CropAndResize", "x s i i", "y", &[]),
        model().node("com.microsoft:SkipGroupNorm", "s s s s", "y", &[int("groups", 1), int("activation", 0)]),
        model().node("Attention", "x x x s", "y", &attended),
    ] {
        assert!(model.import("y").is_err());
    }
}
