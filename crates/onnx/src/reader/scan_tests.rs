//! What the scan accepts and refuses, on bytes built by hand where no encoder would write them.

use bytes::Bytes;
use prost::Message;

use super::error::{ReadError, ReadErrorKind};
use super::limits::{Budget, Limits};
use super::scan::scan;
use super::schema::Kind;
use super::{ModelFile, decode_sequence, decode_type};
use crate::proto::*;

/// A length-delimited field.
fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(u64::from(number << 3 | 2), &mut bytes);
    prost::encoding::encode_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

fn scan_model(bytes: &[u8]) -> Result<(), ReadError> {
    scan(bytes, Kind::Model, &Limits::default())
}

fn over_limit(bytes: &[u8]) -> Budget {
    match scan_model(bytes).unwrap_err() {
        ReadError::OverLimit { budget, .. } => budget,
        other => panic!("expected a limit, got: {other}"),
    }
}

fn tensor(dims: &[i64]) -> TensorProto {
    TensorProto { name: "bad".into(), data_type: 1, dims: dims.to_vec(), ..Default::default() }
}

fn attribute(fill: impl FnOnce(&mut AttributeProto)) -> AttributeProto {
    let mut attribute = AttributeProto::default();
    fill(&mut attribute);
    attribute
}

fn graph_of(attribute: AttributeProto) -> GraphProto {
    let node = NodeProto { attribute: vec![attribute], ..Default::default() };
    GraphProto { node: vec![node], ..Default::default() }
}

fn model_of(graph: GraphProto) -> Vec<u8> {
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 20 }];
    ModelProto { ir_version: 9, graph: Some(graph), opset_import, ..Default::default() }.encode_to_vec()
}

/// Every place of a model where a tensor can be, holding `bad`.
fn models_with_tensor_everywhere(bad: &TensorProto) -> Vec<(&'static str, Vec<u8>)> {
    let sparse = || SparseTensorProto { values: Some(bad.clone()), ..Default::default() };
    let sparse_indices = SparseTensorProto { indices: Some(bad.clone()), ..Default::default() };
    let in_attribute = || attribute(|attribute| attribute.t = Some(Box::new(bad.clone())));
    let inner = || graph_of(in_attribute());
    let function = |fill: fn(&mut FunctionProto, AttributeProto)| {
        let mut function = FunctionProto::default();
        fill(&mut function, in_attribute());
        ModelProto { functions: vec![function], ..Default::default() }.encode_to_vec()
    };
    vec![
        ("initializer", model_of(GraphProto { initializer: vec![bad.clone()], ..Default::default() })),
        ("sparse values", model_of(GraphProto { sparse_initializer: vec![sparse()], ..Default::default() })),
        ("sparse indices", model_of(GraphProto { sparse_initializer: vec![sparse_indices], ..Default::default() })),
        ("attribute t", model_of(inner())),
        ("attribute tensors", model_of(graph_of(attribute(|attribute| attribute.tensors.push(bad.clone()))))),
        (
            "attribute sparse_tensor",
            model_of(graph_of(attribute(|attribute| attribute.sparse_tensor = Some(Box::new(sparse()))))),
        ),
        (
            "attribute sparse_tensors",
            model_of(graph_of(attribute(|attribute| attribute.sparse_tensors.push(sparse())))),
        ),
        ("subgraph", model_of(graph_of(attribute(|attribute| attribute.g = Some(Box::new(inner())))))),
        ("subgraphs", model_of(graph_of(attribute(|attribute| attribute.graphs.push(inner()))))),
        (
            "function node",
            function(|function, attribute| {
                function.node = vec![NodeProto { attribute: vec![attribute], ..Default::default() }];
            }),
        ),
        ("function default", function(|function, attribute| function.attribute_proto = vec![attribute])),
        ("training initialization", field(20, &field(1, &inner().encode_to_vec()))),
        ("training algorithm", field(20, &field(2, &inner().encode_to_vec()))),
    ]
}

#[test]
fn a_bad_shape_is_found_wherever_a_tensor_can_be() {
    for (place, bytes) in models_with_tensor_everywhere(&tensor(&[2, -1])) {
        let error = scan_model(&bytes).unwrap_err();
        assert_eq!(error.to_string(), "tensor 'bad': dimension -1 is negative", "{place}");
    }
    for (place, bytes) in models_with_tensor_everywhere(&tensor(&[2, 1])) {
        scan_model(&bytes).unwrap_or_else(|error| panic!("{place}: {error}"));
    }
}

#[test]
fn shapes_are_held_against_limits_and_typed_values() {
    let error = |tensor: TensorProto| {
        scan_model(&model_of(GraphProto { initializer: vec![tensor], ..Default::default() })).unwrap_err().to_string()
    };
    assert_eq!(error(tensor(&[1 << 40, 1 << 40])), "tensor 'bad': the product of its dims passes 2^64");
    assert_eq!(
        error(tensor(&[1 << 41])),
        "tensor 'bad': 2199023255552 as one dimension is over the limit of 1099511627776; the limit 'dim' raises it"
    );
    assert!(error(tensor(&[1; 17])).contains("17 dimensions of one tensor is over the limit of 16"));
    let typed = TensorProto { int64_data: vec![0; 1000], ..tensor(&[3]) };
    assert_eq!(error(typed), "tensor 'bad': 1000 typed values, expected the 3 of its dims");
    // An empty tensor may have any other dims.
    let empty = GraphProto { initializer: vec![tensor(&[1 << 40, 1 << 40, 0])], ..Default::default() };
    scan_model(&model_of(empty)).unwrap();
}

#[test]
fn two_byte_messages_are_counted_before_they_are_decoded() {
    let many = |number: u32, count: usize| field(number, &[]).repeat(count);
    let graph = |content: &[u8]| field(7, content);
    let node = |content: &[u8]| graph(&field(1, content));
    let attribute = |content: &[u8]| node(&field(5, content));
    let initializer = |content: &[u8]| graph(&field(5, content));
    let cases = [
        (graph(&many(1, 200_001)), Budget::Nodes),
        (graph(&many(5, 100_001)), Budget::Tensors),
        (graph(&many(11, 1_000_001)), Budget::Values),
        (node(&many(2, 1_000_001)), Budget::Values),
        (node(&many(5, 1_000_001)), Budget::Attributes),
        (node(&many(1, 12_000_000)), Budget::Names),
        (node(&field(4, &[b'x'; 4097])), Budget::Name),
        (attribute(&many(9, (64 << 20) + 1)), Budget::ListValues),
        (attribute(&field(8, &vec![0; (64 << 20) + 1])), Budget::ListValues),
        (initializer(&many(6, (64 << 20) + 1)), Budget::ListValues),
        (initializer(&field(1, &[1; 17])), Budget::Rank),
        (many(25, 4097), Budget::Functions),
        (many(8, 8_000_001), Budget::Messages),
        (field(14, &field(2, &vec![b'x'; 1 << 20])), Budget::Metadata),
        (graph(&field(11, &field(2, &field(1, &field(2, &many(1, 17)))))), Budget::Rank),
    ];
    for (bytes, budget) in cases {
        assert_eq!(over_limit(&bytes), budget);
    }
}

#[test]
fn depth_is_limited_without_recursion() {
    // A sequence of sequence of … in a type, a thousand deep.
    let mut bytes = Vec::new();
    for _ in 0..1000 {
        bytes = field(4, &field(1, &bytes));
    }
    let error = decode_type(&Bytes::from(bytes), &Limits::default()).unwrap_err();
    assert!(matches!(error, ReadError::OverLimit { budget: Budget::MessageDepth, value: 65, .. }), "{error}");

    let mut bytes = Vec::new();
    for _ in 0..1000 {
        bytes = field(5, &bytes);
    }
    let error = decode_sequence(&Bytes::from(bytes), &Limits::default()).unwrap_err();
    assert!(matches!(error, ReadError::OverLimit { budget: Budget::MessageDepth, .. }), "{error}");

    // Graphs inside attributes of nodes: three messages a level.
    let nested = |levels: usize| {
        let mut graph = GraphProto::default();
        for _ in 0..levels {
            graph = graph_of(attribute(|attribute| attribute.g = Some(Box::new(graph))));
        }
        model_of(graph)
    };
    scan_model(&nested(16)).unwrap();
    assert_eq!(over_limit(&nested(17)), Budget::SubgraphDepth);
    assert!(ModelFile::from_bytes(nested(16).into(), None, &Limits::default()).is_ok());
}

#[test]
fn broken_framing_names_byte_and_message() {
    let error = |bytes: &[u8]| {
        let error = scan_model(bytes).unwrap_err();
        assert_eq!(error.kind(), ReadErrorKind::Malformed);
        error.to_string()
    };
    let cases: [(&[u8], &str); 8] = [
        (&[0x08], "the message ends inside a number (byte 1, in ModelProto)"),
        (&[0x3a, 5, 0], "a field of 5 bytes where 1 are left (byte 2, in ModelProto)"),
        (&[0x3a, 2, 0x0a, 9, 0], "a field of 9 bytes where 0 are left (byte 4, in GraphProto)"),
        (&[0x3b], "field 7 is a group, which ONNX does not use (byte 1, in ModelProto)"),
        (&[0x3e], "field 7 has wire type 6, expected 0, 1, 2 or 5 (byte 1, in ModelProto)"),
        (&[0x02, 0], "field tag 2 is out of range (byte 1, in ModelProto)"),
        (&[0x38, 1], "a number where text or a message is expected (byte 2, in ModelProto)"),
        (&[0xff; 11], "a number has more than 64 bits (byte 10, in ModelProto)"),
    ];
    for (bytes, expected) in cases {
        assert_eq!(error(bytes), format!("not a valid ONNX file: {expected}"));
    }
}

/// Small deterministic generator, so that a failure can be repeated.
struct XorShift(u64);

impl XorShift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn random_and_mutated_bytes_never_panic() {
    let mut random = XorShift(0x9e3779b97f4a7c15);
    let limits = Limits::default();
    let read = |bytes: Vec<u8>| {
        let Ok(model) = ModelFile::from_bytes(bytes.into(), None, &limits) else {
            return;
        };
        for tensor in &model.graph().initializer {
            let _ = model.tensor(tensor);
        }
        for sparse in &model.graph().sparse_initializer {
            let _ = model.sparse_tensor(sparse);
        }
    };
    for _ in 0..100_000 {
        let length = random.next() % 17;
        read((0..length).map(|_| random.next() as u8).collect());
    }
    let good = TensorProto { raw_data: Some(Bytes::from(vec![0; 24])), ..tensor(&[2, 3]) };
    let models = models_with_tensor_everywhere(&good);
    for _ in 0..50_000 {
        let (_, model) = &models[random.next() as usize % models.len()];
        let mut bytes = model.clone();
        for _ in 0..=random.next() % 3 {
            let at = random.next() as usize % bytes.len();
            bytes[at] = random.next() as u8;
        }
        read(bytes);
    }
}
