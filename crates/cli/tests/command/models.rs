//! Models small enough to write down.

use precast_onnx::proto::{
    AttributeProto, AttributeType, DataType, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, SequenceTypeProto, StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto,
    TypeProto, TypeValue, ValueInfoProto,
};
use prost::Message;

pub(crate) fn encode(model: &ModelProto) -> Vec<u8> {
    model.encode_to_vec()
}

/// y = relu(x · weight + bias), x of any number of rows.
pub(crate) fn affine() -> ModelProto {
    let nodes = vec![
        node("MatMul", &["x", "weight"], "product"),
        node("Add", &["product", "bias"], "sum"),
        node("Relu", &["sum"], "y"),
    ];
    let weight: Vec<f32> = vec![1.0, -2.0, 0.5, 3.0, -1.0, 2.0];
    let initializers = vec![floats("weight", &[3, 2], &weight), floats("bias", &[2], &[0.25, -0.5])];
    let x = value("x", DataType::Float, &["rows", "3"]);
    model(nodes, initializers, vec![x], vec![value("y", DataType::Float, &["rows", "2"])])
}

/// A 3×3 convolution of 8 channels, which several tactics cover.
pub(crate) fn convolution() -> ModelProto {
    let weight: Vec<f32> = (0..8 * 8 * 9).map(|at| (at as f32 * 0.7).sin()).collect();
    let x = value("x", DataType::Float, &["n", "8", "12", "12"]);
    let y = value("y", DataType::Float, &["n", "8", "10", "10"]);
    model(vec![node("Conv", &["x", "weight"], "y")], vec![floats("weight", &[8, 8, 3, 3], &weight)], vec![x], vec![y])
}

/// y = relu(x · weight), with weights large enough to be worth quantising.
pub(crate) fn wide() -> ModelProto {
    let weight: Vec<f32> = (0..64 * 48).map(|at| ((at * 7919) % 2003) as f32 / 1001.0 - 1.0).collect();
    let nodes = vec![node("MatMul", &["x", "weight"], "product"), node("Relu", &["product"], "y")];
    let x = value("x", DataType::Float, &["rows", "64"]);
    let y = value("y", DataType::Float, &["rows", "48"]);
    model(nodes, vec![floats("weight", &[64, 48], &weight)], vec![x], vec![y])
}

/// Rows of a table by index.
pub(crate) fn embedding() -> ModelProto {
    let table = floats("table", &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let ids = value("ids", DataType::Int64, &["n", "length"]);
    let mask = value("mask", DataType::Bool, &["n", "length"]);
    let nodes = vec![node("Gather", &["table", "ids"], "rows"), node("Not", &["mask"], "hidden")];
    let outputs =
        vec![value("rows", DataType::Float, &["n", "length", "2"]), value("hidden", DataType::Bool, &["n", "length"])];
    model(nodes, vec![table], vec![ids, mask], outputs)
}

/// A result whose size depends on values.
pub(crate) fn positions() -> ModelProto {
    let x = value("x", DataType::Float, &["n"]);
    model(vec![node("NonZero", &["x"], "y")], Vec::new(), vec![x], vec![value("y", DataType::Int64, &["1", "found"])])
}

/// Names by number, and the numbers twice in a sequence.
pub(crate) fn names() -> ModelProto {
    let texts = ["cat", "dog\u{1b}[31m"].map(|text| text.as_bytes().to_vec().into());
    let strings = AttributeProto {
        name: "value_strings".to_string(),
        strings: texts.to_vec(),
        r#type: Some(AttributeType::Strings.into()),
        ..Default::default()
    };
    let nodes = vec![
        NodeProto { attribute: vec![strings], ..node("Constant", &[], "all") },
        node("Gather", &["all", "ids"], "name"),
        node("SequenceConstruct", &["ids", "ids"], "pair"),
    ];
    let element = value("", DataType::Int64, &["n"]).r#type.map(Box::new);
    let sequence = TypeValue::SequenceType(SequenceTypeProto { elem_type: element });
    let pair = ValueInfoProto {
        name: "pair".to_string(),
        r#type: Some(TypeProto { value: Some(sequence), ..Default::default() }),
        ..Default::default()
    };
    let ids = value("ids", DataType::Int64, &["n"]);
    model(nodes, Vec::new(), vec![ids], vec![value("name", DataType::String, &["n"]), pair])
}

/// Two operators that nobody has.
pub(crate) fn unsupported() -> ModelProto {
    let nodes = vec![node("Frobnicate", &["x"], "a"), node("Relu", &["x"], "b"), node("Whirl", &["b"], "y")];
    let x = value("x", DataType::Float, &["n"]);
    model(nodes, Vec::new(), vec![x], vec![value("y", DataType::Float, &["n"])])
}

/// A weight in a file outside of the model's folder.
pub(crate) fn escaping() -> ModelProto {
    let mut model = affine();
    let graph = model.graph.as_mut().unwrap();
    let location = StringStringEntryProto { key: "location".to_string(), value: "../secret".to_string() };
    let weight = TensorProto {
        raw_data: None,
        data_location: Some(1),
        external_data: vec![location],
        ..graph.initializer[0].clone()
    };
    graph.initializer[0] = weight;
    model
}

/// The sum needs 80 channels, whatever the declaration says.
pub(crate) fn needs_80_channels() -> ModelProto {
    let x = value("x", DataType::Float, &["n", "channels"]);
    let weight = floats("weight", &[80, 1], &[0.5; 80]);
    model(
        vec![node("MatMul", &["x", "weight"], "y")],
        vec![weight],
        vec![x],
        vec![value("y", DataType::Float, &["n", "1"])],
    )
}

fn model(
    node: Vec<NodeProto>,
    initializer: Vec<TensorProto>,
    input: Vec<ValueInfoProto>,
    output: Vec<ValueInfoProto>,
) -> ModelProto {
    let graph = GraphProto { name: "g".to_string(), node, initializer, input, output, ..Default::default() };
    ModelProto {
        ir_version: 8,
        producer_name: "test".to_string(),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 17 }],
        graph: Some(graph),
        ..Default::default()
    }
}

fn node(op_type: &str, input: &[&str], output: &str) -> NodeProto {
    NodeProto {
        name: format!("make_{output}"),
        op_type: op_type.to_string(),
        input: input.iter().map(|name| name.to_string()).collect(),
        output: vec![output.to_string()],
        ..Default::default()
    }
}

fn floats(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    TensorProto {
        name: name.to_string(),
        dims: dims.to_vec(),
        data_type: DataType::Float as i32,
        raw_data: Some(bytes.into()),
        ..Default::default()
    }
}

fn value(name: &str, data_type: DataType, dims: &[&str]) -> ValueInfoProto {
    let dim = |text: &&str| {
        let value = text.parse().map_or_else(|_| DimensionValue::DimParam(text.to_string()), DimensionValue::DimValue);
        DimensionProto { value: Some(value), ..Default::default() }
    };
    let shape = TensorShapeProto { dim: dims.iter().map(dim).collect() };
    let tensor = TensorTypeProto { elem_type: data_type as i32, shape: Some(shape) };
    let ty = TypeProto { value: Some(TypeValue::TensorType(tensor)), ..Default::default() };
    ValueInfoProto { name: name.to_string(), r#type: Some(ty), ..Default::default() }
}
