//! A graph of the runtime's as a message of ONNX: the same nodes, names and types, with the bytes of constants by
//! reference. The runtime has parsed and checked the model already, so nothing is written out and read again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null;

use bytes::Bytes;
use precast_onnx::proto::{
    AttributeProto, AttributeType, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto,
};
use precast_onnx::{Limits, ModelFile};

use crate::abi::{ONNX_TYPE_TENSOR, OrtGraph, OrtNode, OrtTensorTypeAndShapeInfo, OrtTypeInfo, OrtValue, OrtValueInfo};
use crate::attributes::read_attribute;
use crate::captures::names_of;
use crate::error::EpError;
use crate::runtime::{Runtime, bytes_at, text_at};

/// `ONNXTensorElementDataType` of texts.
const ELEMENT_STRING: c_int = 8;

/// Constants of at least this size are looked for in the model's file before they are copied.
const MAPPED_BYTES_MIN: usize = 64 << 10;

/// How long the bytes of constants are needed.
pub(crate) enum Keep<'a> {
    /// Not longer than the runtime's graph lives: they are its own.
    WhileReading,
    /// As long as anybody holds them: they are those of the model's file where it has them, and copies where not.
    Always(&'a ModelSource),
}

/// The file that the runtime read a model from. Its tensors are pages of the file, which cost no memory of their own.
pub(crate) struct ModelSource {
    file: Option<ModelFile>,
    places: BTreeMap<String, usize>,
}

impl ModelSource {
    /// The file of a graph; without one, or with one that cannot be read, nothing is found in it.
    pub(crate) fn of(runtime: Runtime, graph: *const OrtGraph) -> Result<ModelSource, EpError> {
        let file = model_path(runtime, graph)?.and_then(|path| open_beside_data(&path));
        let names = file.iter().flat_map(|file| &file.graph().initializer).enumerate();
        let places = names.map(|(place, tensor)| (tensor.name.clone(), place)).collect();
        Ok(ModelSource { file, places })
    }

    /// Bytes that equal these, of the tensor of this name if it has them.
    fn bytes_like(&self, name: &str, bytes: &[u8]) -> Option<Bytes> {
        let file = self.file.as_ref().filter(|_| bytes.len() >= MAPPED_BYTES_MIN)?;
        let tensor = file.tensor(file.graph().initializer.get(*self.places.get(name)?)?).ok()?;
        let is_equal = tensor.as_bytes() == bytes;
        // Both sides have read the pages; whoever needs them again reads them from the system's cache.
        tensor.release_pages();
        is_equal.then(|| tensor.bytes().clone())
    }
}

/// The file of a graph's model; none where it came as bytes.
pub(crate) fn model_path(runtime: Runtime, graph: *const OrtGraph) -> Result<Option<PathBuf>, EpError> {
    // SAFETY: the graph lives.
    let path = runtime.text(|path| unsafe { runtime.api.graph_get_model_path(graph, path) })?;
    Ok(Some(path).filter(|path| !path.is_empty()).map(PathBuf::from))
}

/// Opens a model for the bytes of its tensors. Links to data files are followed within the folder: the runtime has read
/// what they lead to already, and bytes that differ are not used.
fn open_beside_data(path: &Path) -> Option<ModelFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ModelFile::open_within(path, folder, &Limits::default()).ok()
}

/// Graphs that were fused before, by the names of the nodes that they became: a graph around them is read as if they had
/// not been.
pub(crate) type FusedGraphs = BTreeMap<String, ModelProto>;

/// A graph as a message.
pub(crate) struct ReadModel {
    pub(crate) message: ModelProto,
    /// Nodes inside it that were fused before.
    pub(crate) fused: Vec<String>,
}

/// The message of a whole model, or of a body, whose inputs are then also what it reads from outside.
pub(crate) fn read_model(
    runtime: Runtime,
    graph: *const OrtGraph,
    keep: &Keep<'_>,
    known: &FusedGraphs,
) -> Result<ReadModel, EpError> {
    let api = runtime.api;
    // SAFETY: the graph lives.
    let ir_version = runtime.get(0, |version| unsafe { api.graph_get_onnx_ir_version(graph, version) })?;
    let mut reader = GraphReader { runtime, keep, known, fused: Vec::new(), outside: Outside::default() };
    let mut message = reader.read_graph(graph)?;
    let Outside { constants, values } = reader.outside;
    let own: BTreeSet<String> = names_of(&message).into_iter().map(str::to_string).collect();
    let is_new = |name: &String| !own.contains(name);
    message.initializer.extend(constants.into_iter().filter(|(name, _)| is_new(name)).map(|(_, tensor)| tensor));
    message.input.extend(values.into_iter().filter(|(name, _)| is_new(name)).map(|(_, value)| value));
    let message = ModelProto {
        ir_version,
        producer_name: "onnxruntime".to_string(),
        opset_import: operator_sets(runtime, graph)?,
        graph: Some(message),
        ..ModelProto::default()
    };
    Ok(ReadModel { message, fused: reader.fused })
}

/// Reads a graph and the bodies of its nodes.
struct GraphReader<'a> {
    runtime: Runtime,
    keep: &'a Keep<'a>,
    known: &'a FusedGraphs,
    fused: Vec<String>,
    outside: Outside,
}

/// What nodes read that the graph they are in does not have, by name.
#[derive(Default)]
struct Outside {
    constants: BTreeMap<String, TensorProto>,
    values: BTreeMap<String, ValueInfoProto>,
}

fn operator_sets(runtime: Runtime, graph: *const OrtGraph) -> Result<Vec<OperatorSetIdProto>, EpError> {
    let api = runtime.api;
    // SAFETY: the graph lives.
    let count = runtime.get(0, |count| unsafe { api.graph_get_num_operator_sets(graph, count) })?;
    let (mut domains, mut versions) = (vec![null(); count], vec![0; count]);
    // SAFETY: both lists have room for as many.
    let status = unsafe { api.graph_get_operator_sets(graph, domains.as_mut_ptr(), versions.as_mut_ptr(), count) };
    runtime.check(status)?;
    let set = |(domain, version)| {
        // SAFETY: texts of a graph live as long as it.
        OperatorSetIdProto { domain: unsafe { text_at(domain) }, version }
    };
    Ok(domains.into_iter().zip(versions).map(set).collect())
}

impl GraphReader<'_> {
    fn read_graph(&mut self, graph: *const OrtGraph) -> Result<GraphProto, EpError> {
        let (runtime, api) = (self.runtime, self.runtime.api);
        let mut initializer = Vec::new();
        for value in initializers(runtime, graph)? {
            // What a caller may give another value for is an input: the runtime hands it to every run.
            if is_constant(runtime, value)? {
                initializer.push(read_initializer(runtime, value, self.keep)?);
            }
        }
        let named = |values: Vec<*const OrtValueInfo>| {
            values.into_iter().map(|value| value_message(runtime, value)).collect::<Result<Vec<_>, EpError>>()
        };
        let mut input = named(graph_inputs(runtime, graph)?)?;
        input.retain(|input| !initializer.iter().any(|tensor| tensor.name == input.name));
        let mut message = GraphProto {
            // SAFETY: the graph lives.
            name: runtime.text(|name| unsafe { api.graph_get_name(graph, name) })?,
            input,
            output: named(graph_outputs(runtime, graph)?)?,
            initializer,
            ..GraphProto::default()
        };
        let nodes = graph_nodes(runtime, graph)?;
        for &node in &nodes {
            self.read_node(node, &mut message)?;
        }
        self.look_outside(&nodes, &message)?;
        Ok(message)
    }

    /// Adds a node to the message of its graph, or what was fused into it.
    fn read_node(&mut self, node: *const OrtNode, graph: &mut GraphProto) -> Result<(), EpError> {
        let mut message = read_node_head(self.runtime, node)?;
        if let Some(fused) = self.known.get(&message.name).and_then(|model| model.graph.as_ref()) {
            graph.node.extend(fused.node.iter().cloned());
            graph.initializer.extend(fused.initializer.iter().cloned());
            self.fused.push(message.name);
            return Ok(());
        }
        message.input = node_inputs(self.runtime, node)?;
        message.output = node_outputs(self.runtime, node)?;
        for (name, body) in bodies(self.runtime, node)? {
            message.attribute.push(AttributeProto {
                name,
                r#type: Some(AttributeType::Graph as i32),
                g: Some(Box::new(self.read_graph(body)?)),
                ..AttributeProto::default()
            });
        }
        graph.node.push(message);
        Ok(())
    }

    /// Graphs do not list what only bodies inside them read, nor what they read from graphs around them; both are found
    /// through the nodes that do.
    fn look_outside(&mut self, nodes: &[*const OrtNode], message: &GraphProto) -> Result<(), EpError> {
        let own = names_of(message);
        let Outside { constants, values } = &mut self.outside;
        for &node in nodes {
            for value in node_input_values(self.runtime, node)?.into_iter().filter(|value| !value.is_null()) {
                let name = value_name(self.runtime, value)?;
                if own.contains(name.as_str()) || constants.contains_key(&name) || values.contains_key(&name) {
                    continue;
                }
                if is_constant(self.runtime, value)? {
                    constants.insert(name, read_initializer(self.runtime, value, self.keep)?);
                } else {
                    values.insert(name, value_message(self.runtime, value)?);
                }
            }
        }
        // What bodies look for outside may be here.
        constants.retain(|name, _| !own.contains(name.as_str()));
        values.retain(|name, _| !own.contains(name.as_str()));
        Ok(())
    }
}

fn is_constant(runtime: Runtime, value: *const OrtValueInfo) -> Result<bool, EpError> {
    // SAFETY: values of a graph live as long as it.
    runtime.get(false, |is| unsafe { runtime.api.value_info_is_constant_initializer(value, is) })
}

fn graph_inputs(runtime: Runtime, graph: *const OrtGraph) -> Result<Vec<*const OrtValueInfo>, EpError> {
    // SAFETY: the graph lives, and the list has room for as many as are said.
    runtime.list(
        |count| unsafe { runtime.api.graph_get_num_inputs(graph, count) },
        |items, count| unsafe { runtime.api.graph_get_inputs(graph, items, count) },
    )
}

fn graph_outputs(runtime: Runtime, graph: *const OrtGraph) -> Result<Vec<*const OrtValueInfo>, EpError> {
    // SAFETY: the graph lives, and the list has room for as many as are said.
    runtime.list(
        |count| unsafe { runtime.api.graph_get_num_outputs(graph, count) },
        |items, count| unsafe { runtime.api.graph_get_outputs(graph, items, count) },
    )
}

fn initializers(runtime: Runtime, graph: *const OrtGraph) -> Result<Vec<*const OrtValueInfo>, EpError> {
    // SAFETY: the graph lives, and the list has room for as many as are said.
    runtime.list(
        |count| unsafe { runtime.api.graph_get_num_initializers(graph, count) },
        |items, count| unsafe { runtime.api.graph_get_initializers(graph, items, count) },
    )
}

/// Nodes of a graph, each after those it reads.
pub(crate) fn graph_nodes(runtime: Runtime, graph: *const OrtGraph) -> Result<Vec<*const OrtNode>, EpError> {
    // SAFETY: the graph lives, and the list has room for as many as are said.
    runtime.list(
        |count| unsafe { runtime.api.graph_get_num_nodes(graph, count) },
        |items, count| unsafe { runtime.api.graph_get_nodes(graph, items, count) },
    )
}

fn node_input_values(runtime: Runtime, node: *const OrtNode) -> Result<Vec<*const OrtValueInfo>, EpError> {
    // SAFETY: the node lives, and the list has room for as many as are said.
    runtime.list(
        |count| unsafe { runtime.api.node_get_num_inputs(node, count) },
        |items, count| unsafe { runtime.api.node_get_inputs(node, items, count) },
    )
}

/// Names of a node's inputs; empty where one is left out.
pub(crate) fn node_inputs(runtime: Runtime, node: *const OrtNode) -> Result<Vec<String>, EpError> {
    let values = node_input_values(runtime, node)?;
    values.into_iter().map(|value| value_name(runtime, value)).collect()
}

/// Names of a node's outputs; empty where one is left out.
pub(crate) fn node_outputs(runtime: Runtime, node: *const OrtNode) -> Result<Vec<String>, EpError> {
    // SAFETY: the node lives, and the list has room for as many as are said.
    let values = runtime.list(
        |count| unsafe { runtime.api.node_get_num_outputs(node, count) },
        |items, count| unsafe { runtime.api.node_get_outputs(node, items, count) },
    )?;
    values.into_iter().map(|value| value_name(runtime, value)).collect()
}

fn value_name(runtime: Runtime, value: *const OrtValueInfo) -> Result<String, EpError> {
    if value.is_null() {
        return Ok(String::new());
    }
    // SAFETY: values of a graph live as long as it.
    runtime.text(|name| unsafe { runtime.api.get_value_info_name(value, name) })
}

/// The message of a node without its inputs, outputs and bodies.
pub(crate) fn read_node_head(runtime: Runtime, node: *const OrtNode) -> Result<NodeProto, EpError> {
    let api = runtime.api;
    // SAFETY: the node lives, and the list has room for as many as are said.
    let attributes = runtime.list(
        |count| unsafe { api.node_get_num_attributes(node, count) },
        |items, count| unsafe { api.node_get_attributes(node, items, count) },
    )?;
    let attributes = attributes.into_iter().map(|attribute| read_attribute(runtime, attribute));
    Ok(NodeProto {
        // SAFETY: the node lives.
        name: runtime.text(|name| unsafe { api.node_get_name(node, name) })?,
        // SAFETY: the node lives.
        op_type: runtime.text(|operator| unsafe { api.node_get_operator_type(node, operator) })?,
        // SAFETY: the node lives.
        domain: runtime.text(|domain| unsafe { api.node_get_domain(node, domain) })?,
        attribute: attributes.filter_map(Result::transpose).collect::<Result<_, _>>()?,
        ..NodeProto::default()
    })
}

/// Bodies of a node, by the attributes that hold them.
fn bodies(runtime: Runtime, node: *const OrtNode) -> Result<Vec<(String, *const OrtGraph)>, EpError> {
    let api = runtime.api;
    // SAFETY: the node lives.
    let count = runtime.get(0, |count| unsafe { api.node_get_num_subgraphs(node, count) })?;
    if count == 0 {
        return Ok(Vec::new());
    }
    let (mut graphs, mut names) = (vec![null(); count], vec![null(); count]);
    // SAFETY: both lists have room for as many.
    runtime.check(unsafe { api.node_get_subgraphs(node, graphs.as_mut_ptr(), count, names.as_mut_ptr()) })?;
    // SAFETY: texts of a node live as long as it.
    Ok(names.into_iter().map(|name| unsafe { text_at(name) }).zip(graphs).collect())
}

fn read_initializer(runtime: Runtime, value: *const OrtValueInfo, keep: &Keep<'_>) -> Result<TensorProto, EpError> {
    let name = value_name(runtime, value)?;
    // SAFETY: the value is that of an initializer.
    let tensor = runtime.get(null(), |tensor| unsafe { runtime.api.value_info_get_initializer(value, tensor) })?;
    tensor_message(runtime, &name, tensor, |address, bytes| {
        // SAFETY: the bytes are those of a tensor that lives as long as the graph.
        let borrowed = unsafe { bytes_at::<'static>(address, bytes) };
        match keep {
            Keep::WhileReading => Bytes::from_static(borrowed),
            Keep::Always(source) => {
                source.bytes_like(&name, borrowed).unwrap_or_else(|| Bytes::copy_from_slice(borrowed))
            }
        }
    })
}

/// The message of a tensor, whose bytes `take` makes of where they lie.
pub(crate) fn tensor_message(
    runtime: Runtime,
    name: &str,
    value: *const OrtValue,
    take: impl FnOnce(*const c_void, usize) -> Bytes,
) -> Result<TensorProto, EpError> {
    let api = runtime.api;
    if value.is_null() {
        return Err(EpError::other(format!("constant '{name}' has no value")));
    }
    let (mut element, mut sizes, mut rank) = (0, null(), 0);
    // SAFETY: the value is a tensor that lives; the three are written.
    runtime.check(unsafe { api.get_tensor_type_and_shape(value, &mut element, &mut sizes, &mut rank) })?;
    if element == ELEMENT_STRING {
        return Err(EpError::other(format!("constant '{name}' holds texts, which onnxruntime does not give as bytes")));
    }
    // SAFETY: the value is a tensor of numbers that lives.
    let bytes = runtime.get(0, |bytes| unsafe { api.get_tensor_size_in_bytes(value, bytes) })?;
    // SAFETY: as above.
    let data = runtime.get(null(), |data| unsafe { api.get_tensor_data(value, data) })?;
    // SAFETY: the sizes live as long as the value.
    let dims = if rank == 0 { Vec::new() } else { unsafe { std::slice::from_raw_parts(sizes, rank) }.to_vec() };
    let raw_data = Some(take(data, bytes));
    Ok(TensorProto { name: name.to_string(), data_type: element, dims, raw_data, ..TensorProto::default() })
}

fn value_message(runtime: Runtime, value: *const OrtValueInfo) -> Result<ValueInfoProto, EpError> {
    let name = value_name(runtime, value)?;
    // SAFETY: values of a graph live as long as it.
    let info = runtime.get(null(), |info| unsafe { runtime.api.get_value_info_type(value, info) })?;
    Ok(ValueInfoProto { name, r#type: type_message(runtime, info)?, ..ValueInfoProto::default() })
}

/// The message of a type; none where it is no tensor's, which the importer then says.
fn type_message(runtime: Runtime, info: *const OrtTypeInfo) -> Result<Option<TypeProto>, EpError> {
    let api = runtime.api;
    if info.is_null() {
        return Ok(None);
    }
    // SAFETY: types of values live as long as these.
    let kind = runtime.get(0, |kind| unsafe { api.get_onnx_type(info, kind) })?;
    if kind != ONNX_TYPE_TENSOR {
        return Ok(None);
    }
    // SAFETY: it is a tensor's type.
    let tensor = runtime.get(null(), |tensor| unsafe { api.cast_type_info_to_tensor_info(info, tensor) })?;
    // SAFETY: as above.
    let elem_type = runtime.get(0, |element| unsafe { api.get_tensor_element_type(tensor, element) })?;
    // SAFETY: as above.
    let has_shape = unsafe { api.tensor_info_has_shape(tensor) };
    let shape = has_shape.then(|| dims_message(runtime, tensor)).transpose()?;
    let value = Some(TypeValue::TensorType(TensorTypeProto { elem_type, shape }));
    Ok(Some(TypeProto { value, ..TypeProto::default() }))
}

fn dims_message(runtime: Runtime, info: *const OrtTensorTypeAndShapeInfo) -> Result<TensorShapeProto, EpError> {
    let api = runtime.api;
    // SAFETY: types of values live as long as these.
    let rank = runtime.get(0, |rank| unsafe { api.get_dimensions_count(info, rank) })?;
    let (mut sizes, mut symbols) = (vec![-1; rank], vec![null(); rank]);
    // SAFETY: the list has room for as many.
    runtime.check(unsafe { api.get_dimensions(info, sizes.as_mut_ptr(), rank) })?;
    // SAFETY: the list has room for as many.
    runtime.check(unsafe { api.get_symbolic_dimensions(info, symbols.as_mut_ptr(), rank) })?;
    let dim = |(size, symbol): (i64, _)| {
        // SAFETY: texts of a type live as long as it.
        let symbol = unsafe { text_at(symbol) };
        let value = match (size, symbol.is_empty()) {
            (0.., _) => Some(DimensionValue::DimValue(size)),
            (_, false) => Some(DimensionValue::DimParam(symbol)),
            (_, true) => None,
        };
        DimensionProto { value, ..DimensionProto::default() }
    };
    Ok(TensorShapeProto { dim: sizes.into_iter().zip(symbols).map(dim).collect() })
}

/// Whether a node was given to a provider already.
pub(crate) fn is_assigned(runtime: Runtime, node: *const OrtNode) -> Result<bool, EpError> {
    // SAFETY: the node lives.
    let provider = runtime.text(|name| unsafe { runtime.api.node_get_ep_name(node, name) })?;
    Ok(!provider.is_empty())
}

/// Whether a graph is the body of a node.
pub(crate) fn is_body(runtime: Runtime, graph: *const OrtGraph) -> Result<bool, EpError> {
    // SAFETY: the graph lives.
    let parent = runtime.get(null(), |node| unsafe { runtime.api.graph_get_parent_node(graph, node) })?;
    Ok(!parent.is_null())
}
