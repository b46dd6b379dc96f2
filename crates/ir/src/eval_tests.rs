use super::*;
use crate::attr::NoConstants;
use crate::text::{parse, print_tensor};
use crate::verify::verify;

/// Checks one node in the text form: its inputs are the constants %0, %1, .., its results the expected constants. The
/// Types of the expected results must be inferred, the graph must verify and print back to its own text.
pub(crate) fn check_node(constants: &[&str], node: &str, expected: &[&str]) {
    let found = eval_node(constants, node, expected).unwrap_or_else(|error| panic!("{node}: {error}"));
    assert_eq!(found, expected, "{node}");
}

/// The message of the error that a node gives, while it is read or while it runs.
pub(crate) fn node_error(constants: &[&str], node: &str, types: &[&str]) -> String {
    eval_node(constants, node, types).expect_err("the node has no meaning")
}

fn eval_node(constants: &[&str], node: &str, expected: &[&str]) -> Result<Vec<String>, String> {
    let types: Vec<&str> = expected.iter().map(|tensor| tensor.split(' ').next().unwrap()).collect();
    let ids: Vec<String> = (0..types.len()).map(|at| format!("%{}", constants.len() + at)).collect();
    let mut lines: Vec<String> =
        constants.iter().enumerate().map(|(at, tensor)| format!("  %{at} = constant {tensor}\n")).collect();
    lines.push(format!("  {} = {node} : {}\n", ids.join(", "), types.join(", ")));
    let outputs: Vec<String> = ids.iter().enumerate().map(|(at, id)| format!("\"{at}\" {id}")).collect();
    let text = format!("graph \"test\"() {{\n{}  return {}\n}}\n", lines.concat(), outputs.join(", "));
    let graph = parse(&text, &NoConstants).map_err(|error| error.to_string())?;
    verify(&graph).map_err(|error| error.to_string())?;
    let tensors = eval_graph(&graph, &[]).map_err(|error| error.to_string())?;
    Ok(tensors.iter().map(print_tensor).collect())
}

fn graph(text: &str) -> Graph {
    let graph = parse(text, &NoConstants).unwrap();
    verify(&graph).unwrap();
    graph
}

fn f32s(shape: &[usize], elements: &[f64]) -> Tensor {
    Tensor::from_f64(precast_tensor::DType::F32, shape, elements, false).unwrap()
}

#[test]
fn symbols_are_bound_from_input_shapes() {
    let graph = graph(
        r#"graph "double"(%0 "x": f32[n,2]) {
  %1 = dim_value() {dim=2*n} : i64[]
  %2 = reshape(%0) {shape=[2*n]} : f32[2*n]
  return "size" %1, "flat" %2
}
"#,
    );
    let outputs = eval_graph(&graph, &[f32s(&[3, 2], &[0., 1., 2., 3., 4., 5.])]).unwrap();
    assert_eq!(print_tensor(&outputs[0]), "i64[] [6]");
    assert_eq!(print_tensor(&outputs[1]), "f32[6] [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]");
}

#[test]
fn symbols_are_bound_from_values_that_size_reads_name() {
    let graph = graph(
        r#"graph "fill"(%0 "sizes": i64[2]) where s = %0[1] {
  %1 = iota() {to=i32, start=0, step=1, length=s} : i32[s]
  return "y" %1
}
"#,
    );
    let sizes = Tensor::from_vec([2], vec![9i64, 3]).unwrap();
    assert_eq!(print_tensor(&eval_graph(&graph, &[sizes]).unwrap()[0]), "i32[3] [0, 1, 2]");
}

#[test]
fn a_count_is_bound_when_its_node_has_run() {
    let graph = graph(
        r#"graph "where"(%0 "x": f32[4]) {
  %1 = nonzero(%0) {count=k} : i64[1,k]
  %2 = dim_value() {dim=k} : i64[]
  return "at" %1, "count" %2
}
"#,
    );
    let outputs = eval_graph(&graph, &[f32s(&[4], &[0., 1., 0., 2.])]).unwrap();
    assert_eq!(print_tensor(&outputs[0]), "i64[1,2] [1, 3]");
    assert_eq!(print_tensor(&outputs[1]), "i64[] [2]");
}

#[test]
fn inputs_that_do_not_fit_are_named() {
    let graph = graph("graph \"g\"(%0 \"a\": f32[n,n], %1 \"b\": f32[2*n]) where n in 1..=4 {\n  return \"a\" %0\n}\n");
    let error = |inputs: &[Tensor]| eval_graph(&graph, inputs).unwrap_err().to_string();
    let (square, pair) = (f32s(&[2, 2], &[0.0; 4]), f32s(&[2], &[0.0; 2]));
    assert_eq!(error(&[]), "graph input '': 0 inputs given where 2 are expected");
    assert_eq!(error(&[square.clone(), pair]), "graph input 'b': f32[2] found where f32[2*n] is expected with n=2");
    assert_eq!(
        error(&[f32s(&[2, 1], &[0.0; 2]), square]),
        "graph input 'a': f32[2,1] found where f32[n,n] is expected with n=2"
    );
    assert_eq!(error(&[f32s(&[0, 0], &[]), f32s(&[0], &[])]), "graph input 'n': n = 0 lies outside 1..=4 (multiple 1)");
}

#[test]
fn a_failing_node_is_named() {
    let graph = graph(
        r#"graph "g"(%0 "x": f32[2], %1 "at": i64[1]) {
  %2 = gather(%0, %1) {axis=0} : f32[1]  # "pick"
  return "y" %2
}
"#,
    );
    let at = Tensor::from_vec([1], vec![5i64]).unwrap();
    let error = eval_graph(&graph, &[f32s(&[2], &[0.0; 2]), at]).unwrap_err().to_string();
    assert!(error.starts_with("node %2 (pick): gather: "), "{error}");
}

#[test]
fn every_node_is_observed_in_order_and_only_live_values_are_kept() {
    let graph = graph(
        r#"graph "g"(%0 "x": f32[1]) {
  %1 = unary.neg(%0) {alpha=0.0, beta=0.0} : f32[1]
  %2 = unary.abs(%1) {alpha=0.0, beta=0.0} : f32[1]
  return "y" %2
}
"#,
    );
    let mut seen = Vec::new();
    let observe = &mut |node: NodeId, outputs: &[Tensor]| seen.push((node.0, outputs[0].to_f64_vec()[0]));
    eval_graph_with(&graph, &[f32s(&[1], &[2.0])], observe).unwrap();
    assert_eq!(seen, [(0, -2.0), (1, 2.0)]);

    let mut run = Run::start(&graph, &[f32s(&[1], &[2.0])]).unwrap();
    let outputs = run.node_outputs(0).unwrap();
    run.finish_node(0, outputs).unwrap();
    assert_eq!(run.values.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false]);
}
