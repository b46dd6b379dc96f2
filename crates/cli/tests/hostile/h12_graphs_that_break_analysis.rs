//! H12: tract #2390, #2391, #2796; onnxruntime #4585, #4349, #23258: graphs that crash or hang analysis and optimiser.

use precast_onnx::proto::{
    AttributeProto, AttributeType, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto, TensorProto,
    ValueInfoProto,
};

use crate::model::{INT64, attribute, encode, encode_with, graph, node};
use crate::{Bench, MODEL, REFUSED};

fn floats(name: &str, dims: &[i64]) -> TensorProto {
    let elements: i64 = dims.iter().product();
    TensorProto {
        name: name.into(),
        data_type: 1,
        dims: dims.to_vec(),
        raw_data: Some(vec![0; 4 * elements as usize].into()),
        ..TensorProto::default()
    }
}

fn ints(name: &str, ints: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type: INT64,
        dims: vec![ints.len() as i64],
        raw_data: Some(ints.iter().flat_map(|int| int.to_le_bytes()).collect::<Vec<u8>>().into()),
        ..TensorProto::default()
    }
}

fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { i: Some(i), ..attribute(name, AttributeType::Int) }
}

fn list(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto { ints: ints.to_vec(), ..attribute(name, AttributeType::Ints) }
}

/// Nodes on x f32[2,3,4,4] that are wrong in a way that a careless analysis divides by, indexes with or trusts.
fn broken_nodes() -> Vec<(NodeProto, Vec<TensorProto>)> {
    let one = |op: &str, attributes: Vec<AttributeProto>| (node(op, &["x"], &["y"], attributes), vec![]);
    let two = |op: &str, b: TensorProto, attributes: Vec<AttributeProto>| {
        (node(op, &["x", "b"], &["y"], attributes), vec![b])
    };
    let extreme = [i64::MIN, -9, 9, i64::MAX];
    let mut nodes = Vec::new();
    for axis in extreme {
        for op in ["Softmax", "Flatten", "ArgMax", "Hardmax", "LogSoftmax", "Concat", "Split", "LpNormalization"] {
            nodes.push(one(op, vec![int("axis", axis)]));
        }
        nodes.push(two("Gather", ints("b", &[axis]), vec![]));
        nodes.push(two("Gather", ints("b", &[0]), vec![int("axis", axis)]));
        nodes.push(two("Unsqueeze", ints("b", &[axis]), vec![]));
        nodes.push(two("Squeeze", ints("b", &[axis]), vec![]));
        nodes.push(two("Reshape", ints("b", &[axis, 2]), vec![]));
        nodes.push(two("Expand", ints("b", &[axis]), vec![]));
        nodes.push(two("ReduceSum", ints("b", &[axis]), vec![]));
        nodes.push(two("CumSum", ints("b", &[axis]), vec![]));
        nodes.push(two("Tile", ints("b", &[1, 1, 1, axis]), vec![]));
        nodes.push(two("TopK", ints("b", &[axis]), vec![]));
        nodes.push(two("Pad", ints("b", &[0, 0, 0, axis, 0, 0, 0, axis]), vec![]));
        nodes.push(one("DepthToSpace", vec![int("blocksize", axis)]));
        nodes.push(one("SpaceToDepth", vec![int("blocksize", axis)]));
        nodes.push(one("Transpose", vec![list("perm", &[0, 1, 2, axis])]));
        nodes.push(one("LRN", vec![int("size", axis)]));
        for op in ["MaxPool", "AveragePool", "LpPool"] {
            nodes.push(one(op, vec![list("kernel_shape", &[1, axis])]));
            nodes.push(one(op, vec![list("kernel_shape", &[1, 1]), list("strides", &[1, axis])]));
            nodes.push(one(op, vec![list("kernel_shape", &[2, 2]), list("pads", &[axis, 0, 0, axis])]));
            nodes.push(one(op, vec![list("kernel_shape", &[2, 2]), list("dilations", &[axis, 1])]));
        }
        nodes.push(two("Conv", floats("b", &[3, 3, 1, 1]), vec![int("group", axis)]));
        nodes.push(two("Conv", floats("b", &[3, 3, 1, 1]), vec![list("strides", &[axis, 1])]));
        nodes.push(two("Conv", floats("b", &[3, 3, 1, 1]), vec![list("dilations", &[1, axis])]));
        nodes.push(two("Conv", floats("b", &[3, 3, 1, 1]), vec![list("pads", &[axis, axis, axis, axis])]));
        nodes.push(two("ConvTranspose", floats("b", &[3, 3, 1, 1]), vec![list("output_shape", &[axis, axis])]));
        nodes.push(two("ConvTranspose", floats("b", &[3, 3, 1, 1]), vec![list("output_padding", &[axis, axis])]));
    }
    nodes.push(one("Transpose", vec![list("perm", &[0, 0, 0, 0])]));
    nodes.push(one("Split", vec![int("num_outputs", 0)]));
    nodes.push(one("MaxPool", vec![]));
    nodes.push(two("Reshape", ints("b", &[-1, -1]), vec![]));
    nodes.push(two("Reshape", ints("b", &[0, 0, 0, 0, 0]), vec![]));
    nodes.push(two("Reshape", ints("b", &[-1, 0]), vec![int("allowzero", 1)]));
    nodes.push(two("MatMul", floats("b", &[0, 4]), vec![]));
    nodes.push(two("MatMul", floats("b", &[]), vec![]));
    nodes.push(two("Conv", floats("b", &[3, 3, 0, 0]), vec![]));
    nodes.push(two("Conv", floats("b", &[0, 3, 1, 1]), vec![]));
    nodes.push(two("Conv", floats("b", &[3]), vec![]));
    nodes.push(two("Gemm", floats("b", &[4]), vec![]));
    nodes.push(two("Concat", floats("b", &[1]), vec![int("axis", 0)]));
    nodes.push(two("Where", floats("b", &[1]), vec![]));
    nodes
}

#[test]
fn a_broken_node_is_a_sentence_or_a_result() {
    let mut failures = Vec::new();
    for (broken, mut initializers) in broken_nodes() {
        let name = format!("{} {:?} {:?}", broken.op_type, broken.attribute, initializers);
        initializers.push(floats("x", &[2, 3, 4, 4]));
        let bytes = encode(graph(vec![broken], initializers));
        let outcome = std::panic::catch_unwind(|| {
            let model = precast::Model::from_bytes(bytes.into())?;
            let runner = precast::Runner::new(model, precast::RunnerOptions { threads: 1, ..Default::default() })?;
            runner.run(&[]).map(drop)
        });
        if outcome.is_err() {
            failures.push(name);
        }
    }
    assert_eq!(failures, Vec::<String>::new());
}

#[test]
fn graphs_out_of_form_are_errors_of_the_model() {
    let bench = Bench::new();
    let x = || vec![floats("x", &[1])];
    let add = |a: &str, b: &str, c: &str| node("Add", &[a, b], &[c], vec![]);
    let output_twice = graph(vec![add("x", "x", "y"), add("x", "x", "y")], x());
    let cases = [
        ("cycle", graph(vec![add("x", "z", "y"), add("y", "x", "z")], x())),
        ("self", graph(vec![add("y", "y", "y")], x())),
        ("undefined", graph(vec![add("x", "absent", "y")], x())),
        ("out of order", graph(vec![add("z", "x", "y"), add("x", "x", "z")], x())),
        ("no output", graph(vec![], x())),
        ("initializer twice", graph(vec![add("x", "x", "y")], [x(), x()].concat())),
        ("too many inputs", graph(vec![node("Abs", &["x", "x"], &["y"], vec![int("axis", 1)])], x())),
        ("unknown attribute", graph(vec![node("Abs", &["x"], &["y"], vec![int("evil", 1)])], x())),
        ("too many outputs", graph(vec![node("Abs", &["x"], &["z", "y"], vec![])], x())),
        ("output twice", output_twice),
    ];
    for (name, graph) in cases {
        let stderr = bench.refusal(&encode(graph), MODEL);
        assert!(stderr.starts_with("error: "), "{name}: {stderr}");
    }
}

/// A function that calls the next one ten times, sixteen deep, is 10^16 nodes in a few hundred bytes.
#[test]
fn functions_that_multiply_are_refused() {
    let functions: Vec<FunctionProto> = (0..15)
        .map(|level| {
            let next =
                if level == 14 { ("".to_string(), "Neg".to_string()) } else { ("f".into(), format!("F{}", level + 1)) };
            let call = |at: usize| NodeProto {
                domain: next.0.clone(),
                ..node(&next.1, &[&format!("v{at}")], &[&format!("v{}", at + 1)], vec![])
            };
            FunctionProto {
                name: format!("F{level}"),
                domain: "f".into(),
                input: vec!["v0".into()],
                output: vec!["v10".into()],
                node: (0..10).map(call).collect(),
                opset_import: [("", 18), ("f", 1)]
                    .map(|(domain, version)| OperatorSetIdProto { domain: domain.into(), version })
                    .to_vec(),
                ..FunctionProto::default()
            }
        })
        .collect();
    let call = NodeProto { domain: "f".into(), ..node("F0", &["x"], &["y"], vec![]) };
    let bytes = encode_with(graph(vec![call], vec![floats("x", &[1])]), functions);
    let stderr = Bench::new().refusal(&bytes, REFUSED);
    assert!(stderr.contains("nodes after inlining functions is over the limit"), "{stderr}");
}

#[test]
fn a_function_that_calls_itself_is_refused() {
    let recursive = FunctionProto {
        name: "F".into(),
        domain: "f".into(),
        input: vec!["x".into()],
        output: vec!["y".into()],
        node: vec![NodeProto { domain: "f".into(), ..node("F", &["x"], &["y"], vec![]) }],
        opset_import: vec![OperatorSetIdProto { domain: "f".into(), version: 1 }],
        ..FunctionProto::default()
    };
    let call = NodeProto { domain: "f".into(), ..node("F", &["x"], &["y"], vec![]) };
    let bytes = encode_with(graph(vec![call], vec![floats("x", &[1])]), vec![recursive]);
    let stderr = Bench::new().refusal(&bytes, MODEL);
    assert!(stderr.contains("recursive functions are not allowed"), "{stderr}");
}

/// Loops of 64 rounds inside each other: unrolling all of them would never end.
#[test]
fn loops_inside_loops_are_not_unrolled_without_end() {
    let trips = || ints("n", &[64]);
    let info = |name: &str| ValueInfoProto { name: name.into(), ..ValueInfoProto::default() };
    let mut body = GraphProto {
        name: "innermost".into(),
        node: vec![node("Neg", &["s"], &["t"], vec![])],
        input: ["i", "c", "s"].map(info).to_vec(),
        output: ["c", "t"].map(info).to_vec(),
        ..GraphProto::default()
    };
    for _ in 0..6 {
        let inner = AttributeProto { g: Some(Box::new(body)), ..attribute("body", AttributeType::Graph) };
        body = GraphProto {
            name: "around".into(),
            node: vec![node("Loop", &["n", "", "s"], &["t"], vec![inner])],
            initializer: vec![trips()],
            input: ["i", "c", "s"].map(info).to_vec(),
            output: ["c", "t"].map(info).to_vec(),
            ..GraphProto::default()
        };
    }
    let outer = AttributeProto { g: Some(Box::new(body)), ..attribute("body", AttributeType::Graph) };
    let nodes = vec![node("Loop", &["n", "", "x"], &["y"], vec![outer])];
    let bytes = encode(graph(nodes, vec![floats("x", &[1]), trips()]));
    // Compiling must end; running 64^8 rounds is the model's own wish.
    let bench = Bench::new();
    std::fs::write(bench.path("m.onnx"), bytes).unwrap();
    let outcome = bench.run("inspect m.onnx --text --stage imported");
    assert_eq!(outcome.exit, 0, "{}", outcome.stderr);
}
