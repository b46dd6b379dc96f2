//! Builds ONNX models node by node and imports them through their bytes, as a file would be.

use bytes::Bytes;
use precast_ir::Graph;
use precast_ir::eval::eval_graph;
use precast_onnx::import::{ImportError, ImportOptions, Imported, import};
use precast_onnx::proto::{
    AttributeProto, AttributeType, DimensionProto, DimensionValue, FunctionProto, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, SequenceTypeProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, TypeValue,
    ValueInfoProto,
};
use precast_onnx::{Limits, ModelFile};
use precast_tensor::{DType, Tensor};
use prost::Message;

/// A model under construction.
#[derive(Clone, Default)]
pub struct Model {
    graph: GraphProto,
    opset: i64,
    pub functions: Vec<FunctionProto>,
    pub options: ImportOptions,
}

impl Model {
    /// A model of one version of ai.onnx; com.microsoft is imported too.
    pub fn new(opset: i64) -> Model {
        Model { opset, ..Model::default() }
    }

    /// Adds an input; dims are written "4", "n" or "?".
    pub fn input(mut self, name: &str, dtype: DType, dims: &[&str]) -> Model {
        self.graph.input.push(declared(name, dtype, dims));
        self
    }

    /// Adds an input that is a sequence of tensors.
    pub fn sequence_input(&mut self, name: &str, dtype: DType) {
        let mut input = declared(name, dtype, &[]);
        let elem_type = input.r#type.take().map(Box::new);
        let value = Some(TypeValue::SequenceType(SequenceTypeProto { elem_type }));
        input.r#type = Some(TypeProto { value, ..TypeProto::default() });
        self.graph.input.push(input);
    }

    /// Adds an input that is a vector of strings.
    pub fn string_input(mut self, name: &str) -> Model {
        let mut input = declared(name, DType::F32, &["?"]);
        if let Some(TypeValue::TensorType(tensor)) = input.r#type.as_mut().and_then(|ty| ty.value.as_mut()) {
            tensor.elem_type = 8;
        }
        self.graph.input.push(input);
        self
    }

    /// Adds an initializer.
    pub fn constant(mut self, name: &str, tensor: Tensor) -> Model {
        self.graph.initializer.push(tensor_proto(name, &tensor));
        self
    }

    /// Adds a constant i64 vector.
    pub fn ints(self, name: &str, ints: &[i64]) -> Model {
        self.constant(name, Tensor::from_vec([ints.len()], ints.to_vec()).unwrap())
    }

    /// Adds a node. Names are separated by spaces; "_" is an absent one.
    pub fn node(mut self, op: &str, inputs: &str, outputs: &str, attributes: &[AttributeProto]) -> Model {
        self.graph.node.push(node(op, inputs, outputs, attributes));
        self
    }

    /// The graph with these outputs, as a body of If or Loop.
    pub fn body(mut self, outputs: &str) -> GraphProto {
        let named = |name: &str| ValueInfoProto { name: name.to_string(), ..ValueInfoProto::default() };
        self.graph.output = outputs.split_whitespace().map(named).collect();
        self.graph
    }

    /// Imports the model with these outputs.
    pub fn import(self, outputs: &str) -> Result<Imported, ImportError> {
        let Model { opset, functions, options, .. } = self.clone();
        let opset_import = [("", opset), ("com.microsoft", 1), ("ai.onnx.ml", 3), ("local", 1)]
            .map(|(domain, version)| OperatorSetIdProto { domain: domain.to_string(), version })
            .to_vec();
        let graph = Some(self.body(outputs));
        let model = ModelProto { ir_version: 8, opset_import, graph, functions, ..ModelProto::default() };
        let file = ModelFile::from_bytes(Bytes::from(model.encode_to_vec()), None, &Limits::default()).unwrap();
        import(&file, &options)
    }

    /// The Graph with these outputs.
    pub fn graph(self, outputs: &str) -> Graph {
        self.import(outputs).unwrap().graph
    }

    /// What the model gives for these inputs.
    pub fn eval(self, outputs: &str, inputs: &[Tensor]) -> Vec<Tensor> {
        eval_graph(&self.graph(outputs), inputs).unwrap()
    }

    /// What the import is refused with.
    pub fn refusal(self, outputs: &str) -> String {
        self.import(outputs).unwrap_err().to_string()
    }
}

/// Names of a graph's ops in order.
pub fn ops(graph: &Graph) -> Vec<&'static str> {
    graph.nodes().iter().map(|node| node.op.name()).collect()
}

/// The Type of a graph's first output, as printed.
pub fn output_type(graph: &Graph) -> String {
    graph.ty(graph.outputs()[0].value).to_string()
}

pub fn node(op: &str, inputs: &str, outputs: &str, attributes: &[AttributeProto]) -> NodeProto {
    let names = |text: &str| text.split_whitespace().map(|name| name.replace('_', "")).collect();
    let (domain, op_type) = op.split_once(':').unwrap_or(("", op));
    NodeProto {
        op_type: op_type.to_string(),
        domain: domain.to_string(),
        input: names(inputs),
        output: names(outputs),
        attribute: attributes.to_vec(),
        ..NodeProto::default()
    }
}

fn declared(name: &str, dtype: DType, dims: &[&str]) -> ValueInfoProto {
    let dim = |text: &&str| DimensionProto {
        value: Some(match text.parse() {
            Ok(number) => DimensionValue::DimValue(number),
            Err(_) => DimensionValue::DimParam(text.to_string()),
        }),
        ..DimensionProto::default()
    };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor = TensorTypeProto { elem_type: number_of(dtype), shape };
    let value = Some(TypeValue::TensorType(tensor));
    let r#type = Some(TypeProto { value, ..TypeProto::default() });
    ValueInfoProto { name: name.to_string(), r#type, ..ValueInfoProto::default() }
}

/// ONNX's number of an element type.
pub fn number_of(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F64 => 11,
        DType::F8E4M3Fn => 17,
        other => panic!("no test uses {other}"),
    }
}

fn tensor_proto(name: &str, tensor: &Tensor) -> TensorProto {
    TensorProto {
        name: name.to_string(),
        dims: tensor.shape().iter().map(|&size| size as i64).collect(),
        data_type: number_of(tensor.dtype()),
        raw_data: Some(tensor.bytes().clone()),
        ..TensorProto::default()
    }
}

fn attribute(name: &str, r#type: AttributeType) -> AttributeProto {
    AttributeProto { name: name.to_string(), r#type: Some(r#type.into()), ..AttributeProto::default() }
}

pub fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, AttributeType::Int) }
}

pub fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..attribute(name, AttributeType::Float) }
}

pub fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { ints: values.to_vec(), ..attribute(name, AttributeType::Ints) }
}

pub fn text(name: &str, value: &'static str) -> AttributeProto {
    AttributeProto { s: Some(Bytes::from_static(value.as_bytes())), ..attribute(name, AttributeType::String) }
}

pub fn floats_attribute(name: &str, values: &[f32]) -> AttributeProto {
    AttributeProto { floats: values.to_vec(), ..attribute(name, AttributeType::Floats) }
}

pub fn texts(name: &str, values: &[&'static str]) -> AttributeProto {
    let strings = values.iter().map(|value| Bytes::from_static(value.as_bytes())).collect();
    AttributeProto { strings, ..attribute(name, AttributeType::Strings) }
}

pub fn body(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto { g: Some(Box::new(graph)), ..attribute(name, AttributeType::Graph) }
}

/// An f32 tensor.
pub fn floats(shape: &[usize], elements: &[f32]) -> Tensor {
    Tensor::from_vec(shape, elements.to_vec()).unwrap()
}

/// An i64 tensor.
pub fn int_tensor(shape: &[usize], elements: &[i64]) -> Tensor {
    Tensor::from_vec(shape, elements.to_vec()).unwrap()
}

/// A bool tensor.
pub fn bools(shape: &[usize], elements: &[bool]) -> Tensor {
    Tensor::from_bools(shape, elements).unwrap()
}
