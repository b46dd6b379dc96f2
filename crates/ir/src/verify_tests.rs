use precast_tensor::{DType, SymbolRange, Tensor};

use super::*;
use crate::attr::NoConstants;
use crate::graph::SizeRead;
use crate::text::parse;

fn graph(text: &str) -> Graph {
    parse(text, &NoConstants).unwrap()
}

fn error(graph: &Graph) -> String {
    verify(graph).unwrap_err().to_string()
}

fn stage_error(text: &str, stage: Stage) -> String {
    verify_stage(&graph(text), stage).unwrap_err().to_string()
}

const RELU: &str = "graph \"g\"(%0 \"x\": f32[n]) {
  %1 = unary.relu(%0) {alpha=0.0, beta=0.0} : f32[n]  # \"act\"
  return \"y\" %1
}";

#[test]
fn a_graph_that_was_built_verifies() {
    assert_eq!(verify(&graph(RELU)), Ok(()));
    assert_eq!(verify(&Graph::default()), Ok(()));
}

#[test]
fn recorded_types_are_compared_after_simplifying() {
    let mut graph = graph(
        "graph \"g\"(%0 \"x\": f32[n], %1 \"y\": f32[max(4,n)]) {
  %2 = concat(%0, %1) {axis=0} : f32[n + max(4,n)]
  return \"y\" %2
}",
    );
    graph.ranges.insert("n", SymbolRange::new(8, 16));
    assert_eq!(verify(&graph), Ok(()));
}

#[test]
fn names_are_given_once() {
    let twice = graph("graph \"g\"(%0 \"x\": f32[], %1 \"x\": f32[]) { return }");
    assert_eq!(error(&twice), "input 'x': names of inputs differ from one another");
    let twice = graph("graph \"g\"(%0 \"x\": f32[]) { return \"y\" %0, \"y\" %0 }");
    assert_eq!(error(&twice), "output 'y': names of outputs differ from one another");
    let mut missing = graph("graph \"g\"() { return }");
    missing.add_output("y", ValueId(3));
    assert_eq!(error(&missing), "output 'y': there is no value %3");
}

#[test]
fn size_reads_name_integers() {
    let mut graph = graph("graph \"g\"(%0 \"x\": f32[2], %1 \"s\": i64[2]) { return }");
    let mut read = |value: u32, element: usize| {
        graph.sizes = vec![SizeRead { symbol: "s".into(), value: ValueId(value), element }];
        verify(&graph).map_err(|error| error.to_string())
    };
    assert_eq!(read(1, 1), Ok(()));
    assert_eq!(read(1, 2), Err("size 's': %1 is i64[2], without element 2".to_string()));
    assert_eq!(read(0, 0), Err("size 's': %0 is f32[2], not an integer".to_string()));
    assert_eq!(read(7, 0), Err("size 's': there is no value %7".to_string()));
    let size = || SizeRead { symbol: "s".into(), value: ValueId(1), element: 0 };
    graph.sizes = vec![size(), size()];
    assert_eq!(error(&graph), "size 's': a symbol is read from one value");
}

#[test]
fn bodies_are_verified_with_the_place_of_their_node() {
    let body = "graph \"b\"(%0 \"x\": f32[]) { return \"y\" %0, \"y\" %0 }";
    let outer = graph(&format!(
        "graph \"g\"(%0 \"x\": f32[]) {{ %1, %2 = fused(%0) {{body={body}}} : f32[], f32[]  # \"f\" return }}"
    ));
    assert_eq!(error(&outer), "node 0 (%1, %2 = fused 'f') body, output 'y': names of outputs differ from one another");
}

#[test]
fn binding_symbols_keeps_types_right() {
    let graph = graph(
        "graph \"g\"(%0 \"x\": f32[n]) {
  %1 = reshape(%0) {shape=[n]} : f32[n]
  return \"y\" %1
}",
    );
    let bound = graph.bind_symbols(&[("n", 4)].into_iter().collect());
    assert_eq!(verify(&bound), Ok(()));
    assert_eq!(verify_stage(&bound, Stage::Bound), Ok(()));
}

#[test]
fn stages_have_rules() {
    assert_eq!(verify_stage(&graph(RELU), Stage::Imported), Ok(()));
    assert_eq!(verify_stage(&graph(RELU), Stage::Canonical), Ok(()));
    assert_eq!(stage_error(RELU, Stage::Bound), "value %0: dim 'n' is not a size");
    let unused = RELU.replace("\"y\" %1", "\"y\" %0");
    assert_eq!(stage_error(&unused, Stage::Canonical), "node 0 (%1 = unary 'act'): no output of this node is read");
    let fused = "graph \"g\"() { fused() {body=graph \"\"() { return }} return }";
    assert_eq!(stage_error(fused, Stage::Imported), "node 0 ( = fused): fused nodes exist only after fusion");
    let symbolic = "graph \"g\"() { %0 = dim_value() {dim=n} : i64[] return \"y\" %0 }";
    assert_eq!(stage_error(symbolic, Stage::Bound), "node 0 (%0 = dim_value): symbol 'n' has no number");
}

#[test]
fn unused_constants_are_allowed() {
    let mut graph = graph(RELU);
    graph.add_constant(Tensor::zeros(DType::F32, [2]).unwrap());
    assert_eq!(verify_stage(&graph, Stage::Canonical), Ok(()));
}
