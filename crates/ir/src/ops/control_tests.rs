use super::*;
use crate::attr::NoConstants;
use crate::eval::tests::{check_node, node_error};
use crate::ops::test_tensor::{bools, f32s, i64s, infer};
use crate::text::{parse, print_tensor};

fn graph(text: &str) -> Graph {
    parse(text, &NoConstants).unwrap()
}

const NEGATE: &str =
    "graph \"t\"(%0 \"x\": f32[1]) { %1 = unary.neg(%0) {alpha=0.0, beta=0.0} : f32[1] return \"y\" %1 }";
const KEEP: &str = "graph \"e\"(%0 \"x\": f32[1]) { return \"y\" %0 }";

#[test]
fn a_condition_chooses_the_body() {
    let node = format!("if(%0, %1) {{then_body={NEGATE}, else_body={KEEP}}}");
    check_node(&["bool[] [true]", "f32[1] [2]"], &node, &["f32[1] [-2.0]"]);
    check_node(&["bool[1] [false]", "f32[1] [2]"], &node, &["f32[1] [2.0]"]);
    let error = node_error(&["f32[] [1]", "f32[1] [2]"], &node, &["f32[1]"]);
    assert!(error.ends_with("if: condition is f32[] where one bool is expected"), "{error}");
}

#[test]
fn bodies_take_on_the_types_of_what_they_are_given() {
    let body =
        || graph("graph \"t\"(%0 \"x\": f32[n,2]) { %1 = reshape(%0) {shape=[2*n]} : f32[2*n] return \"y\" %1 }");
    let op = || If { then_body: body(), else_body: body() };
    assert_eq!(infer(op(), &["bool[]", "f32[n,2]"]), "f32[2*n]");
    assert_eq!(infer(op(), &["bool[]", "f32[3,2]"]), "f32[6]");
    assert_eq!(infer(op(), &["bool[]", "f32[3]"]), "if: inputs f32[3] found where the body takes f32[n,2]");
    assert_eq!(infer(op(), &["bool[]"]), "if: inputs  found where the body takes f32[n,2]");
    assert_eq!(infer(op(), &[]), "if: the condition is missing");
}

#[test]
fn branches_that_differ_are_refused() {
    let other = graph("graph \"e\"(%0 \"x\": f32[n]) { %1 = constant f32[2] [1, 2] return \"y\" %1 }");
    let keep = graph("graph \"t\"(%0 \"x\": f32[n]) { return \"y\" %0 }");
    let op = || If { then_body: keep.clone(), else_body: other.clone() };
    assert_eq!(infer(op(), &["bool[]", "f32[n]"]), "if: branches differ: f32[n] and f32[2]");
    assert_eq!(infer(op(), &["bool[]", "f32[2]"]), "f32[2]");
}

/// Carries a sum, scans the iteration numbers, and stops when the sum passes a limit that is captured.
fn sum_loop() -> Loop {
    let body = graph(
        r#"graph "sum"(%0 "i": i64[], %1 "go": bool[], %2 "sum": i64[], %3 "limit": i64[]) {
  %4 = binary.add(%2, %0) : i64[]
  %5 = compare.lt(%4, %3) : bool[]
  return "go" %5, "sum" %4, "i" %0
}
"#,
    );
    Loop { body, carried: 1 }
}

#[test]
fn a_loop_runs_until_its_count_or_its_condition_ends_it() {
    let run = |trips: i128, go: i128, limit: i128| {
        let inputs = [i64s(&[], &[trips]), bools(&[1], &[go]), i64s(&[], &[0]), i64s(&[], &[limit])];
        sum_loop().eval(&inputs).unwrap().iter().map(print_tensor).collect::<Vec<_>>()
    };
    assert_eq!(run(4, 1, 100), ["i64[] [6]", "i64[4] [0, 1, 2, 3]"]);
    assert_eq!(run(i128::from(i64::MAX), 1, 4), ["i64[] [6]", "i64[4] [0, 1, 2, 3]"]);
    assert_eq!(run(9, 0, 100), ["i64[] [0]", "i64[0] []"]);
    assert_eq!(run(0, 1, 100), ["i64[] [0]", "i64[0] []"]);
    assert_eq!(run(-1, 1, 100), ["i64[] [0]", "i64[0] []"]);
}

#[test]
fn sizes_that_a_loop_decides_are_symbols_named_after_its_body() {
    assert_eq!(infer(sum_loop(), &["i64[]", "bool[]", "i64[]", "i64[]"]), "i64[] i64[sum_trip]");
    assert_eq!(
        infer(sum_loop(), &["i64[]", "bool[]", "i64[2]", "i64[]"]),
        "loop: carried value 0 is i64[2] outside, i64[] before and i64[] after the body"
    );
    assert_eq!(
        infer(sum_loop(), &["i64[]", "bool[]"]),
        "loop: the body has 4 inputs and 3 outputs, which does not fit 1 carried of 0 values"
    );
}

#[test]
fn carried_values_may_grow() {
    let body = graph(
        r#"graph "grow"(%0 "i": i64[1], %1 "go": bool[], %2 "list": i64[k]) {
  %3 = concat(%2, %0) {axis=0} : i64[k + 1]
  %4 = reshape(%3) {shape=[1, k + 1]} : i64[1,k + 1]
  %5 = reshape(%4) {shape=[k + 1]} : i64[k + 1]
  return "go" %1, "list" %5
}
"#,
    );
    let op = Loop { body, carried: 1 };
    assert_eq!(infer(op.clone(), &["i64[]", "bool[]", "i64[1]"]), "i64[grow_carried0_0]");
    let outputs = op.eval(&[i64s(&[], &[3]), bools(&[], &[1]), i64s(&[1], &[7])]).unwrap();
    assert_eq!(print_tensor(&outputs[0]), "i64[4] [7, 0, 1, 2]");
}

#[test]
fn a_trip_size_is_bound_for_the_nodes_that_follow() {
    let text = r#"graph "g"(%0 "trips": i64[], %1 "x": f32[n]) {
  %2 = constant bool[] [true]
  %3 = loop(%0, %2, %1) {body=graph "b"(%0 "i": i64[], %1 "go": bool[], %2 "x": f32[n]) {
    return "go" %1, "x" %2
  }, carried=0} : f32[b_trip,n]
  %4 = reshape(%3) {shape=[b_trip*n]} : f32[b_trip*n]
  return "y" %4
}
"#;
    let graph = graph(text);
    crate::verify::verify(&graph).unwrap();
    let outputs = eval_graph(&graph, &[i64s(&[], &[2]), f32s(&[2], &[1.0, 2.0])]).unwrap();
    assert_eq!(print_tensor(&outputs[0]), "f32[4] [1.0, 2.0, 1.0, 2.0]");
}

#[test]
fn a_fused_body_takes_exactly_its_types() {
    check_node(&["f32[1] [2]"], &format!("fused(%0) {{body={NEGATE}}}"), &["f32[1] [-2.0]"]);
    let op = || Fused { body: graph(NEGATE) };
    assert_eq!(infer(op(), &["f32[2]"]), "fused: inputs f32[2] found where the body takes f32[1]");
    assert!(op().eval(&[]).is_err());
}
