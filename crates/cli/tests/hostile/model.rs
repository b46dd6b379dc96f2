//! Small models with one thing wrong.

use precast_onnx::proto::{
    AttributeProto, AttributeType, DataLocation, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    SparseTensorProto, StringStringEntryProto, TensorProto, ValueInfoProto,
};
use prost::Message;

/// ONNX's number of 8-bit integers.
pub(crate) const UINT8: i32 = 2;
/// ONNX's number of 64-bit integers.
pub(crate) const INT64: i32 = 7;

/// A tensor of 100 bytes whose data lies where the entries say.
pub(crate) fn external(entries: &[(&str, &str)]) -> TensorProto {
    let entry = |&(key, value): &(&str, &str)| StringStringEntryProto { key: key.into(), value: value.into() };
    TensorProto {
        name: "w".into(),
        data_type: UINT8,
        dims: vec![100],
        data_location: Some(DataLocation::External.into()),
        external_data: entries.iter().map(entry).collect(),
        ..TensorProto::default()
    }
}

/// A node without a name.
pub(crate) fn node(op_type: &str, inputs: &[&str], outputs: &[&str], attribute: Vec<AttributeProto>) -> NodeProto {
    let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    NodeProto {
        op_type: op_type.into(),
        input: names(inputs),
        output: names(outputs),
        attribute,
        ..NodeProto::default()
    }
}

/// An attribute with nothing but its name and kind.
pub(crate) fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: name.into(), r#type: Some(kind.into()), ..AttributeProto::default() }
}

/// A graph whose only output is the value `y`.
pub(crate) fn graph(node: Vec<NodeProto>, initializer: Vec<TensorProto>) -> GraphProto {
    let output = vec![ValueInfoProto { name: "y".into(), ..ValueInfoProto::default() }];
    GraphProto { name: "g".into(), node, initializer, output, ..GraphProto::default() }
}

/// The bytes of a model of this graph.
pub(crate) fn encode(graph: GraphProto) -> Vec<u8> {
    encode_with(graph, Vec::new())
}

/// The bytes of a model of this graph and these functions.
pub(crate) fn encode_with(graph: GraphProto, functions: Vec<FunctionProto>) -> Vec<u8> {
    let opset_import =
        [("", 18), ("f", 1)].map(|(domain, version)| OperatorSetIdProto { domain: domain.into(), version }).to_vec();
    ModelProto { ir_version: 9, opset_import, graph: Some(graph), functions, ..ModelProto::default() }.encode_to_vec()
}

/// A model that gives one initializer as its output.
pub(crate) fn of_initializer(tensor: TensorProto) -> Vec<u8> {
    encode(graph(vec![node("Identity", &["w"], &["y"], vec![])], vec![tensor]))
}

/// Models that hold a tensor at each place where the format has room for one, with the name of the place.
pub(crate) fn at_every_place(tensor: &TensorProto) -> Vec<(&'static str, Vec<u8>)> {
    let constant = |attribute: AttributeProto| node("Constant", &[], &["y"], vec![attribute]);
    let of_tensor =
        || AttributeProto { t: Some(Box::new(tensor.clone())), ..attribute("value", AttributeType::Tensor) };
    let sparse = |values: &TensorProto, indices: &TensorProto| SparseTensorProto {
        values: Some(values.clone()),
        indices: Some(indices.clone()),
        dims: vec![100],
    };
    let whole = |data_type: i32, bytes: usize| TensorProto {
        name: "w".into(),
        data_type,
        dims: vec![100],
        raw_data: Some(vec![0; bytes].into()),
        ..TensorProto::default()
    };
    let indices = TensorProto { data_type: INT64, ..tensor.clone() };
    let body = graph(vec![constant(of_tensor())], vec![]);
    let with_initializer = graph(vec![node("Identity", &["w"], &["y"], vec![])], vec![tensor.clone()]);
    let branch = |name: &str, body: &GraphProto| AttributeProto {
        g: Some(Box::new(body.clone())),
        ..attribute(name, AttributeType::Graph)
    };
    let condition =
        TensorProto { name: "c".into(), data_type: 9, raw_data: Some(vec![1].into()), ..TensorProto::default() };
    let branches = |body: &GraphProto| {
        let attributes = vec![branch("then_branch", body), branch("else_branch", body)];
        encode(graph(vec![node("If", &["c"], &["y"], attributes)], vec![condition.clone()]))
    };
    let sparse_graph = |sparse: SparseTensorProto| {
        let mut graph = graph(vec![node("Identity", &["w"], &["y"], vec![])], vec![]);
        graph.sparse_initializer.push(sparse);
        encode(graph)
    };
    let sparse_attribute = |sparse: SparseTensorProto| AttributeProto {
        sparse_tensor: Some(Box::new(sparse)),
        ..attribute("sparse_value", AttributeType::SparseTensor)
    };
    let function = FunctionProto {
        name: "F".into(),
        domain: "f".into(),
        output: vec!["y".into()],
        node: vec![constant(of_tensor())],
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 18 }],
        ..FunctionProto::default()
    };
    let call = NodeProto { domain: "f".into(), ..node("F", &[], &["y"], vec![]) };
    vec![
        ("initializer", encode(with_initializer.clone())),
        ("attribute", encode(body.clone())),
        ("attribute of a branch", branches(&body)),
        ("initializer of a branch", branches(&with_initializer)),
        ("attribute in a function", encode_with(graph(vec![call], vec![]), vec![function])),
        ("values of a sparse initializer", sparse_graph(sparse(tensor, &whole(INT64, 800)))),
        ("indices of a sparse initializer", sparse_graph(sparse(&whole(UINT8, 100), &indices))),
        (
            "values of a sparse attribute",
            encode(graph(vec![constant(sparse_attribute(sparse(tensor, &whole(INT64, 800))))], vec![])),
        ),
    ]
}
