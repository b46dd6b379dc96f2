//! An opened ONNX model: its interface, and Graphs of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use precast_ir::Graph;
use precast_onnx::import::{ImportOptions, Imported, Structure, declared_dim, import};
use precast_onnx::proto::{TensorProto, ValueInfoProto};
use precast_onnx::{
    DeclaredDim, DeclaredTensor, DeclaredType, ElementType, Limits, ModelFile, declared_type, type_from_proto,
};
use precast_tensor::{DType, Digest, Dim};

use crate::error::Error;
use crate::length_switch::{LengthSwitch, find_length_switch};

/// An opened ONNX model. Cheap to clone.
#[derive(Clone)]
pub struct Model {
    file: Arc<ModelFile>,
}

/// An input as the model declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct InputInfo {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dims, or `None` where the model does not declare a rank. A dim is a number or the symbol it is bound by.
    pub dims: Option<Vec<Dim>>,
}

/// An output as the model declares it, which it need not do.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredOutput {
    /// Its name.
    pub name: String,
    /// Element type, if it is declared and a tensor's.
    pub dtype: Option<DType>,
    /// Dims, where they are declared.
    pub dims: Option<Vec<Dim>>,
}

/// An input or output of any kind, as the file declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredValue {
    /// Its name.
    pub name: String,
    /// Its type; none where the file does not say.
    pub ty: Option<DeclaredType>,
}

impl DeclaredValue {
    fn of(value: &ValueInfoProto) -> Result<DeclaredValue, Error> {
        let declared = value.r#type.as_ref().filter(|proto| proto.value.is_some());
        let ty = declared.map(|proto| type_from_proto(&value.name, proto)).transpose()?;
        Ok(DeclaredValue { name: value.name.clone(), ty })
    }

    /// Its element type and dims, if it is a dense tensor of numbers.
    pub fn as_numbers(&self) -> Option<(DType, Option<&[DeclaredDim]>)> {
        match &self.ty {
            Some(DeclaredType::Tensor(DeclaredTensor { element: ElementType::Number(dtype), dims })) => {
                Some((*dtype, dims.as_deref()))
            }
            _ => None,
        }
    }
}

/// What the author of a model wrote beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelMetadata {
    /// What wrote the file.
    pub producer_name: String,
    /// Name of the top graph.
    pub graph_name: String,
    /// Namespace of the model.
    pub domain: String,
    /// Description of the model.
    pub description: String,
    /// Description of the top graph.
    pub graph_description: String,
    /// Version of the model.
    pub version: i64,
    /// Further keys and values.
    pub properties: Vec<(String, String)>,
}

/// What a model is, without importing it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSummary {
    /// Version of the ONNX format.
    pub ir_version: i64,
    /// What wrote the file.
    pub producer: String,
    /// Operator sets by domain.
    pub opsets: Vec<(String, i64)>,
    /// Nodes of the top graph.
    pub nodes: usize,
    /// How often each operator is used in the top graph.
    pub operators: BTreeMap<String, usize>,
    /// Bytes of initializers in the file.
    pub weight_bytes: u64,
    /// Digest of the file.
    pub digest: String,
}

impl Model {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Model, Error> {
        Ok(Model { file: Arc::new(ModelFile::open(path, &Limits::default())?) })
    }

    /// Opens a file whose external data may lie anywhere beneath `root`, links included.
    pub fn open_within(path: &Path, root: &Path) -> Result<Model, Error> {
        Ok(Model { file: Arc::new(ModelFile::open_within(path, root, &Limits::default())?) })
    }

    /// Opens a model in memory; it cannot have external data.
    pub fn from_bytes(bytes: Bytes) -> Result<Model, Error> {
        Ok(Model { file: Arc::new(ModelFile::from_bytes(bytes, None, &Limits::default())?) })
    }

    /// Takes a model that is a message already; it cannot have external data.
    pub fn from_message(message: precast_onnx::proto::ModelProto) -> Result<Model, Error> {
        Ok(Model { file: Arc::new(ModelFile::from_message(message, &Limits::default())?) })
    }

    /// Inputs that a request must give, in order.
    pub fn inputs(&self) -> Result<Vec<InputInfo>, Error> {
        self.input_infos(|initializer| initializer.is_none())
    }

    /// Inputs that have a value already, which an adapter may replace. Before version 4 of the format every initializer had to
    /// be an input, so it says nothing there.
    pub fn replaceable_inputs(&self) -> Result<Vec<InputInfo>, Error> {
        const INPUTS_ARE_CHOSEN_SINCE: i64 = 4;
        if self.file.proto().ir_version < INPUTS_ARE_CHOSEN_SINCE {
            return Ok(Vec::new());
        }
        let is_number =
            |tensor: &TensorProto| matches!(ElementType::from_onnx(tensor.data_type), Ok(ElementType::Number(_)));
        self.input_infos(|initializer| initializer.is_some_and(is_number))
    }

    /// Inputs whose initializer, or that there is none, is wanted.
    fn input_infos(&self, is_wanted: impl Fn(Option<&TensorProto>) -> bool) -> Result<Vec<InputInfo>, Error> {
        let graph = self.file.graph();
        let initializers: BTreeMap<&str, &TensorProto> =
            graph.initializer.iter().map(|initializer| (initializer.name.as_str(), initializer)).collect();
        let mut inputs = Vec::new();
        for input in &graph.input {
            if !is_wanted(initializers.get(input.name.as_str()).copied()) {
                continue;
            }
            let (dtype, declared) = declared_type(input)?;
            let dims = declared.map(|dims| {
                let options = ImportOptions::default();
                let declared = dims.iter().enumerate();
                declared
                    .map(|(axis, dim): (usize, &DeclaredDim)| declared_dim(&input.name, axis, dim, &options))
                    .collect()
            });
            inputs.push(InputInfo { name: input.name.clone(), dtype, dims });
        }
        Ok(inputs)
    }

    /// Inputs of any kind that a request must give, in order.
    pub fn declared_inputs(&self) -> Result<Vec<DeclaredValue>, Error> {
        let graph = self.file.graph();
        let is_given = |name: &str| graph.initializer.iter().any(|initializer| initializer.name == name);
        graph.input.iter().filter(|input| !is_given(&input.name)).map(DeclaredValue::of).collect()
    }

    /// Inputs that have a value already, which nothing may change here.
    pub fn initialized_inputs(&self) -> Result<Vec<DeclaredValue>, Error> {
        let graph = self.file.graph();
        let is_given = |name: &str| graph.initializer.iter().any(|initializer| initializer.name == name);
        graph.input.iter().filter(|input| is_given(&input.name)).map(DeclaredValue::of).collect()
    }

    /// Outputs of any kind, in order.
    pub fn declared_results(&self) -> Result<Vec<DeclaredValue>, Error> {
        self.file.graph().output.iter().map(DeclaredValue::of).collect()
    }

    /// What its author wrote beside it.
    pub fn metadata(&self) -> ModelMetadata {
        let (proto, graph) = (self.file.proto(), self.file.graph());
        let properties = proto.metadata_props.iter().map(|entry| (entry.key.clone(), entry.value.clone()));
        ModelMetadata {
            producer_name: proto.producer_name.clone(),
            graph_name: graph.name.clone(),
            domain: proto.domain.clone(),
            description: proto.doc_string.clone(),
            graph_description: graph.doc_string.clone(),
            version: proto.model_version,
            properties: properties.collect(),
        }
    }

    /// Names of the outputs, in order.
    pub fn outputs(&self) -> Vec<String> {
        self.file.graph().output.iter().map(|output| output.name.clone()).collect()
    }

    /// Outputs as the model declares them, in order.
    pub fn declared_outputs(&self) -> Vec<DeclaredOutput> {
        let declared = |output: &precast_onnx::proto::ValueInfoProto| {
            let (dtype, dims) = declared_type(output).map_or((None, None), |(dtype, dims)| (Some(dtype), dims));
            let options = ImportOptions::default();
            let dims = dims.map(|dims| {
                let dims = dims.iter().enumerate();
                dims.map(|(axis, dim)| declared_dim(&output.name, axis, dim, &options)).collect()
            });
            DeclaredOutput { name: output.name.clone(), dtype, dims }
        };
        self.file.graph().output.iter().map(declared).collect()
    }

    /// What the model is.
    pub fn summary(&self) -> ModelSummary {
        let proto = self.file.proto();
        let graph = self.file.graph();
        let mut operators = BTreeMap::new();
        for node in &graph.node {
            *operators.entry(node.op_type.clone()).or_insert(0) += 1;
        }
        let opsets = proto.opset_import.iter().map(|set| {
            let domain = if set.domain.is_empty() { "ai.onnx" } else { &set.domain };
            (domain.to_string(), set.version)
        });
        let weight_bytes = graph
            .initializer
            .iter()
            .filter_map(|tensor| self.file.tensor(tensor).ok())
            .map(|tensor| tensor.as_bytes().len() as u64)
            .sum();
        ModelSummary {
            ir_version: proto.ir_version,
            producer: format!("{} {}", proto.producer_name, proto.producer_version).trim().to_string(),
            opsets: opsets.collect(),
            nodes: graph.node.len(),
            operators,
            weight_bytes,
            digest: self.file.digest().to_string(),
        }
    }

    /// Windows of nodes of attention, by the name of the input that their past keys are; nodes without one are left out.
    pub(crate) fn attention_windows(&self) -> BTreeMap<String, usize> {
        let nodes = self.file.graph().node.iter().filter(|node| node.op_type == "GroupQueryAttention");
        let window = |node: &precast_onnx::proto::NodeProto| {
            let attribute = node.attribute.iter().find(|attribute| attribute.name == "local_window_size")?;
            let window = usize::try_from(attribute.i?).ok().filter(|&window| window > 0)?;
            Some((node.input.get(3)?.clone(), window))
        };
        nodes.filter_map(window).collect()
    }

    /// Where nodes compare the length of a mask with a number.
    pub(crate) fn length_switch(&self, mask: &str) -> Result<Option<LengthSwitch>, Error> {
        let graph = self.file.graph();
        let of_nodes = graph.node.iter().filter(|node| node.op_type == "Constant").filter_map(|node| {
            let value = node.attribute.iter().find(|attribute| attribute.name == "value")?;
            Some((node.output.first()?.as_str(), value.t.as_deref()?))
        });
        let of_graph = graph.initializer.iter().map(|tensor| (tensor.name.as_str(), tensor));
        let numbers: BTreeMap<&str, i64> = of_nodes
            .chain(of_graph)
            .filter(|(_, tensor)| tensor.dims.iter().product::<i64>() == 1)
            .filter_map(|(name, tensor)| Some((name, *self.file.tensor(tensor).ok()?.to_i64_vec().ok()?.first()?)))
            .collect();
        find_length_switch(graph, mask, &|name| numbers.get(name).copied())
    }

    /// Heads of queries of nodes of attention, by the name of the input that their past keys are.
    pub(crate) fn attention_heads(&self) -> BTreeMap<String, usize> {
        let past_of = |op: &str| match op {
            "GroupQueryAttention" => Some(3),
            "MultiHeadAttention" => Some(6),
            _ => None,
        };
        let heads = |node: &precast_onnx::proto::NodeProto| {
            let attribute = node.attribute.iter().find(|attribute| attribute.name == "num_heads")?;
            Some((node.input.get(past_of(&node.op_type)?)?.clone(), usize::try_from(attribute.i?).ok()?))
        };
        self.file.graph().node.iter().filter_map(heads).collect()
    }

    /// Sizes of the scales of nodes that normalise, where those are constants: the width of the model is one of them.
    pub(crate) fn norm_widths(&self) -> BTreeSet<usize> {
        let graph = self.file.graph();
        let scale_of = |op: &str| match op {
            "LayerNormalization" | "SimplifiedLayerNormalization" | "RMSNormalization" => Some(1),
            "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => Some(2),
            _ => None,
        };
        let width = |node: &precast_onnx::proto::NodeProto| {
            let name = node.input.get(scale_of(&node.op_type)?)?;
            let scale = graph.initializer.iter().find(|initializer| initializer.name == *name)?;
            match scale.dims[..] {
                [width] => usize::try_from(width).ok(),
                _ => None,
            }
        };
        graph.node.iter().filter_map(width).collect()
    }

    /// Digest of all that the model is, if that is one file.
    pub(crate) fn content_digest(&self) -> Option<Digest> {
        self.file.is_self_contained().then(|| self.file.digest())
    }

    /// Lets go of the memory that reading the model's file took.
    pub(crate) fn release_pages(&self) {
        self.file.release_pages();
    }

    /// The model as a Graph, which it is where its outputs are tensors of numbers. Symbols without a number stay symbols.
    pub fn graph(&self, options: &ImportOptions) -> Result<Imported, Error> {
        let imported = self.structured_graph(options)?;
        match imported.outputs.iter().find(|(_, structure)| *structure != Structure::Tensor) {
            None => Ok(imported),
            Some((name, structure)) => Err(Error::NoSession(format!(
                "output '{name}' is {}; only Runner::run_values gives such values",
                structure.kind()
            ))),
        }
    }

    /// The model as a Graph whose outputs are the tensors of the model's outputs.
    pub(crate) fn structured_graph(&self, options: &ImportOptions) -> Result<Imported, Error> {
        Ok(import(&self.file, options)?)
    }

    /// Names of the inputs that a request must give, in order.
    pub fn input_names(&self) -> Vec<String> {
        let graph = self.file.graph();
        let is_given = |name: &str| graph.initializer.iter().any(|initializer| initializer.name == name);
        graph.input.iter().filter(|input| !is_given(&input.name)).map(|input| input.name.clone()).collect()
    }

    /// The model as a symbolic Graph.
    pub fn symbolic_graph(&self) -> Result<Graph, Error> {
        Ok(self.graph(&ImportOptions::default())?.graph)
    }
}
