use precast_tensor::{DType, Dim, SymbolRange, Tensor, Type};
use proptest::prelude::*;

use super::*;
use crate::attr::NoConstants;
use crate::graph::{Provenance, SizeRead, ValueId};
use crate::op::{Binary, BinaryFn, Fused, If, Op, Reshape, Topk, Unary, UnaryFn};

/// Every part of the form once; this is how `print` writes it.
const EXAMPLE: &str = r#"graph "a \"stem\"\n"(%0 "x": f32[n,"batch size",3], %2 "c": bool[]) where "batch size" in 1..=9 multiple 3, n in 1..=64, s = %3[1] {
  %1 = constant f32[2] [0.5, -inf]
  %3 = constant i64[2] [-1, 2]
  %4 = unary.relu(%0) {alpha=0.0, beta=0.0} : f32[n,"batch size",3]  # "relu", "a \\ b"
  %5, %6 = topk(%4) {axis=2, k=s, largest=true} : f32[n,"batch size",s], i64[n,"batch size",s]
  %7 = select(%2, %4, %4) : f32[n,"batch size",3]
  %8 = if(%2, %7) {then_body=graph "then"(%0 "x": f32[n,"batch size",3]) {
    %1 = unary.neg(%0) {alpha=0.0, beta=0.0} : f32[n,"batch size",3]
    return "y" %1
  }, else_body=graph "else"(%0 "x": f32[n,"batch size",3]) {
    %1 = fused(%0) {body=graph ""(%0 "": f32[n,"batch size",3]) {
      return "" %0
    }} : f32[n,"batch size",3]
    return "y" %1
  }} : f32[n,"batch size",3]
  return "y" %8, "index" %6
}
"#;

#[test]
fn the_canonical_form_parses_and_prints_back() {
    let graph = parse(EXAMPLE, &NoConstants).unwrap();
    assert_eq!(graph.name, "a \"stem\"\n");
    assert_eq!(graph.nodes()[0].provenance.names()[1].as_ref(), "a \\ b");
    assert_eq!(graph.sizes, [SizeRead { symbol: "s".into(), value: ValueId(3), element: 1 }]);
    assert_eq!(print(&graph), EXAMPLE);
    assert_eq!(graph.to_string(), EXAMPLE);
}

#[test]
fn a_graph_of_nothing_prints_and_parses() {
    let text = "graph \"\"() {\n  return\n}\n";
    assert_eq!(print(&Graph::default()), text);
    assert_eq!(parse(text, &NoConstants), Ok(Graph::default()));
}

#[test]
fn elements_of_every_type_parse_back_to_the_same_bytes() {
    let texts = [
        "f32[5] [0.1, -0.0, inf, nan:7fc00001, 1e-45]",
        "f64[3] [0.1, nan:fff8000000000000, 5e-324]",
        "f16[3] [0.099975586, 65504.0, nan:7e00]",
        "bf16[2] [0.100097656, -inf]",
        "f8e4m3fn[3] [448.0, -0.0, nan:7f]",
        "f8e5m2fnuz[2] [0.5, nan:80]",
        "f4e2m1[2] [-6.0, 0.5]",
        "bool[2] [true, false]",
        "u64[1] [18446744073709551615]",
        "i64[1] [-9223372036854775808]",
        "i4[2] [-8, 7]",
        "f32[] [1.0]",
        "i8[2,0] []",
    ];
    for text in texts {
        let graph = format!("graph \"g\"() {{\n  %0 = constant {text}\n  return\n}}\n");
        assert_eq!(print(&parse(&graph, &NoConstants).unwrap()), graph);
    }
}

#[test]
fn decimals_round_to_their_type_but_not_beyond_its_range() {
    let constant = |text: &str| {
        let text = format!("graph \"g\"() {{\n  %0 = constant {text}\n  return\n}}\n");
        parse(&text, &NoConstants).map(|graph| print_tensor(graph.constant(ValueId(0)).unwrap()))
    };
    assert_eq!(constant("f16[1] [0.1]").unwrap(), "f16[1] [0.099975586]");
    for text in ["f16[1] [70000]", "f8e4m3fn[1] [1e9]", "f32[1] [1e40]", "f32[1] [nan]", "f32[1] [nan:00000000]"] {
        assert!(constant(text).is_err(), "{text}");
    }
}

#[test]
fn large_constants_are_named_by_digest_and_come_from_the_source() {
    let mut graph = Graph::new("g");
    let value = graph.add_constant(Tensor::zeros(DType::I8, [17]).unwrap());
    graph.add_output("y", value);
    let text = print(&graph);
    let digest = Tensor::zeros(DType::I8, [17]).unwrap().digest();
    assert!(text.contains(&format!("constant i8[17] @blake3:{digest}\n")), "{text}");
    assert_eq!(parse(&text, &named_constants(&graph)), Ok(graph));
    let error = parse(&text, &NoConstants).unwrap_err();
    assert_eq!(error.message, format!("there is no constant with digest {digest}"));
}

#[test]
fn spaces_and_short_lists_of_many_elements_are_read_too() {
    let items = (0..20).map(|item| item.to_string()).collect::<Vec<_>>().join(",");
    let text = format!("graph \"g\" ( ) {{ %0=constant i8[20] [{items}] return \"y\" %0 }}");
    assert_eq!(parse(&text, &NoConstants).unwrap().constant(ValueId(0)).unwrap().len(), 20);
}

#[test]
fn errors_give_line_column_and_reason() {
    let cases = [
        ("graph", 1, 6, "the end found where a quoted name is expected"),
        ("graph \"g\"(%0 \"x\": f32[2) {", 1, 19, "type `f32[2)`: expected `,` or `]` at byte 5"),
        ("graph \"g\"() {\n  %1 = constant i8[] [1]\n", 2, 3, "%1 found where %0 is the next value"),
        ("graph \"g\"() {\n  %0 = constant i8[2] [1]\n", 2, 23, "1 elements found, which is not what the shape has"),
        ("graph \"g\"() {\n  %0 = constant i8[] [300]\n", 2, 22, "'300' is not an element of type i8"),
        (
            "graph \"g\"() {\n  %0 = constant i8[n] []\n",
            2,
            23,
            "i8[n] is not the Type of a constant: its dims are no sizes",
        ),
        ("graph \"g\"() {\n  %0 = magic()\n", 2, 8, "there is no op 'magic'"),
        ("graph \"g\"() {\n  %0 = select(%7)\n", 2, 15, "%7 is not defined here"),
        ("graph \"g\"(%1 \"x\": f32[]) {\n  return\n}", 1, 11, "input %1 is not numbered in order"),
        ("graph \"g\"() where n = %3[0] {\n  return\n}", 1, 23, "%3 is not defined here"),
        ("graph \"g\"() {\n  return \"y\" %0\n}", 2, 14, "%0 is not defined here"),
        ("graph \"g\"() {\n  return\n} x", 3, 3, "'x' found where the end is expected"),
        ("graph \"g", 1, 7, "a name without its closing quote"),
    ];
    for (text, line, column, message) in cases {
        let error = TextError { line, column, message: message.to_string() };
        assert_eq!(parse(text, &NoConstants), Err(error), "{text}");
    }
}

#[test]
fn attributes_and_types_that_do_not_fit_are_refused() {
    let node = |node: &str| {
        let text = format!("graph \"g\"(%0 \"x\": f32[2]) {{\n  %1 = {node}\n  return\n}}\n");
        parse(&text, &NoConstants).unwrap_err().to_string()
    };
    assert_eq!(node("unary.abs(%0) {alpha=0.0, beta=0.0} : f32[3]"), "line 2, column 46: %1 is f32[2], not f32[3]");
    assert_eq!(node("unary.abs(%0) {alpha=0.0} : f32[2]"), "line 2, column 8: unary: attribute 'beta' is missing");
    assert_eq!(
        node("unary.abs(%0) {alpha=0.0, beta=x} : f32[2]"),
        "line 2, column 8: unary: attribute 'beta' cannot be 'x'"
    );
    assert_eq!(node("select(%0) {axis=0} : f32[2]"), "line 2, column 8: select: there is no attribute 'axis'");
    assert_eq!(
        node("fused(%0) {body=graph \"\"(%0 \"\": f32[2]) { %1 = oops() return }} : f32[2]"),
        "line 2, column 55: there is no op 'oops'"
    );
}

#[test]
fn nesting_is_bounded() {
    let open = "graph \"\"() { fused() {body=".repeat(40);
    let error = parse(&open, &NoConstants).unwrap_err();
    assert_eq!(error.message, "graphs are nested deeper than 16");
    let nested = |depth: usize| {
        (1..depth).fold(Graph::default(), |body, _| {
            let mut graph = Graph::default();
            graph.add_node(Fused { body }, &[], &Provenance::default()).unwrap();
            graph
        })
    };
    assert_eq!(parse(&print(&nested(16)), &NoConstants), Ok(nested(16)));
    assert!(parse(&print(&nested(17)), &NoConstants).is_err());
    // A mistake at the bottom is found where it is, and quickly.
    let text = print(&nested(16)).replacen("  return\n", "  retur\n", 1);
    let error = parse(&text, &NoConstants).unwrap_err();
    assert_eq!((error.line, error.message.as_str()), (18, "'}' found where '(' is expected"));
}

/// Builds a graph by a list of choices: each adds one value from values that are there.
fn build(choices: &[(u8, u8, u8)]) -> Graph {
    let mut graph = Graph::new("random \"graph\"");
    graph.ranges.insert("n", SymbolRange { lo: 1, hi: 8, multiple: 2 });
    let ty = Type::new(DType::F32, [Dim::symbol("n"), Dim::from(3)]);
    let mut values = vec![graph.add_input("x", ty.clone())];
    for (at, &(kind, a, b)) in choices.iter().enumerate() {
        let (a, b) = (values[a as usize % values.len()], values[b as usize % values.len()]);
        let provenance = Provenance::new(&format!("node {at}"));
        let relu = Op::from(Unary { func: UnaryFn::Relu, alpha: 0.0, beta: f64::from(kind) / 3.0 });
        let body = |name: &str, op: &Op| {
            let mut body = Graph::new(name);
            let input = body.add_input("x", ty.clone());
            let output = body.add(op.clone(), &[input], &provenance).unwrap();
            body.add_output("y", output);
            body
        };
        let value = match kind % 8 {
            0 => graph.add_input(format!("x{at}"), ty.clone()),
            1 => graph.add(Binary { func: BinaryFn::Add }, &[a, b], &provenance).unwrap(),
            2 => graph.add(relu, &[a], &Provenance::default()).unwrap(),
            3 => graph.add(Topk { axis: 1, k: Dim::from(3), largest: true }, &[a], &provenance).unwrap(),
            4 => graph.add(Fused { body: body("fused", &relu) }, &[a], &provenance).unwrap(),
            5 => {
                let condition = graph.add_constant(Tensor::from_bools([], &[true]).unwrap());
                let (then_body, else_body) = (body("then", &relu), body("else", &relu));
                graph.add(If { then_body, else_body }, &[condition, a], &provenance).unwrap()
            }
            6 => {
                let numbers: Vec<f64> = (0..3).map(|item| f64::from(item) / (f64::from(kind) - 6.0)).collect();
                let numbers = graph.add_constant(Tensor::from_f64(DType::F32, [1, 3], &numbers, false).unwrap());
                graph.add(Binary { func: BinaryFn::Mul }, &[a, numbers], &provenance).unwrap()
            }
            _ => graph.add(Reshape { shape: ty.dims.clone() }, &[a], &provenance).unwrap(),
        };
        values.push(value);
    }
    let size = graph.add_constant(Tensor::from_vec([20], vec![7i64; 20]).unwrap());
    graph.sizes.push(SizeRead { symbol: "s 1".into(), value: size, element: 19 });
    for (at, value) in values.iter().rev().take(2).enumerate() {
        graph.add_output(format!("y{at}"), *value);
    }
    graph
}

proptest! {
    #[test]
    fn graphs_parse_back_from_their_text(choices in prop::collection::vec(any::<(u8, u8, u8)>(), 0..12)) {
        let graph = build(&choices);
        let text = print(&graph);
        let parsed = parse(&text, &named_constants(&graph)).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(&print(&parsed), &text);
        prop_assert_eq!(parsed, graph);
    }

    #[test]
    fn damaged_text_gives_an_error_or_a_graph(at in 0..EXAMPLE.len(), length in 0..30usize, insert in "[ -~]{0,4}") {
        let end = (at + length).min(EXAMPLE.len());
        let damaged = format!("{}{insert}{}", &EXAMPLE[..at], &EXAMPLE[end..]);
        if let Ok(graph) = parse(&damaged, &NoConstants) {
            prop_assert_eq!(parse(&print(&graph), &NoConstants), Ok(graph));
        }
    }

    #[test]
    fn any_text_gives_an_error_or_a_graph(text in "\\PC{0,60}") {
        let _ = parse(&text, &NoConstants);
    }
}
