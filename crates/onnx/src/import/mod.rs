//! From a read ONNX file to a Graph: names become values, each node is handed to the Import of its operator, and every
//! node that cannot be imported is reported at once.

mod attributes;
mod body;
mod builder;
mod cx;
mod error;
mod inputs;
mod known;
mod live;
mod value;

use std::collections::BTreeMap;

use precast_ir::graph::Provenance;
use precast_ir::{Graph, ValueId};
use precast_tensor::{DType, Dim, Tensor, Type};

use crate::operators;
use crate::proto::{FunctionProto, NodeProto};
use crate::reader::{Budget, ModelFile, ReadError};

pub use attributes::Attributes;
pub use builder::Builder;
pub use cx::NodeCx;
pub use error::{Fault, ImportError, UnsupportedNode};
pub use inputs::declared_dim;
pub use value::{Strings, Structure, Value, element_name, tabulate};

/// How one ONNX operator becomes nodes: a row of the operator table.
pub struct Import {
    /// Operator domain; "" is ai.onnx.
    pub domain: &'static str,
    /// Operator name.
    pub name: &'static str,
    /// First opset this row is valid for; it is valid until a row of the same name with a larger one.
    pub since: i64,
    /// Tier of specs: 1 to 3.
    pub tier: u8,
    /// Adds the nodes and gives the values of the node's outputs, in order.
    pub function: ImportFn,
}

impl Import {
    /// A row of ai.onnx.
    pub const fn onnx(name: &'static str, since: i64, tier: u8, function: ImportFn) -> Import {
        Import { domain: "", name, since, tier, function }
    }

    /// A row of com.microsoft, of which there is one version.
    pub const fn microsoft(name: &'static str, tier: u8, function: ImportFn) -> Import {
        Import { domain: "com.microsoft", name, since: 1, tier, function }
    }
}

/// How an operator that takes or gives more than tensors of numbers is imported: a row of the table of structures.
pub struct StructureImport {
    /// Operator domain; "" is ai.onnx.
    pub domain: &'static str,
    /// Operator name.
    pub name: &'static str,
    /// First opset this row is valid for.
    pub since: i64,
    /// Tier of specs: 1 to 3.
    pub tier: u8,
    /// Which nodes of the operator it is for.
    pub applies: Applies,
    /// Adds the nodes and gives the values of the node's outputs, in order.
    pub function: StructureFn,
}

/// Which nodes of an operator are imported as structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// All of them.
    Always,
    /// Those of which an input is no tensor of numbers; the others have a row among the tensors.
    ToStructures,
}

impl StructureImport {
    /// A row of ai.onnx for all nodes of an operator.
    pub const fn onnx(name: &'static str, since: i64, tier: u8, function: StructureFn) -> StructureImport {
        StructureImport { domain: "", name, since, tier, applies: Applies::Always, function }
    }
}

/// Adds the nodes of one ONNX node and gives what its outputs stand for, in order.
pub type StructureFn = fn(&mut NodeCx<'_, '_>) -> Result<Vec<Value>, Fault>;

/// Adds the nodes of one ONNX node and gives the values of its outputs, in order.
pub type ImportFn = fn(&mut NodeCx<'_, '_>) -> Result<Vec<ValueId>, Fault>;

/// What is decided about a model before it becomes a Graph.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Numbers for dims of inputs, by symbol.
    pub dims: BTreeMap<String, Dim>,
    /// Whole shapes of inputs, by input name; they replace what the file declares.
    pub shapes: BTreeMap<String, Vec<Dim>>,
    /// Inputs that are constants of this Graph, by input name.
    pub freeze: BTreeMap<String, Tensor>,
    /// How inputs lie in tensors that are no tensors of numbers themselves, by input name. Their tensors have names of
    /// their own in `shapes` and `freeze`, as `Structure::visit_tensors` gives them.
    pub structures: BTreeMap<String, Structure>,
    /// Values of nodes that are constants of this Graph, by name, whatever would compute them.
    pub known: BTreeMap<String, Tensor>,
    /// An input of its own, i32 [rows], that says how many tokens of each row are cached. With it, nodes of attention read
    /// their past as a cache with room left, and give the keys and values of new tokens alone as present ones.
    pub cache_lengths: Option<(String, Type)>,
    /// Element types for which attention behind such a cache is one node, as the target has a kernel for it; else it is composed.
    pub keeps_attention: Vec<DType>,
    /// Past keys and values are buffers with room left, whose rows begin in slot 0. Present ones are then buffers of the same
    /// size, with the keys and values of new tokens written behind the filled slots. Only a run knows how many are filled, so
    /// a model cannot say this by itself.
    pub shares_caches: bool,
}

/// A model as a Graph, and what a person should know about how it became one.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The model.
    pub graph: Graph,
    /// How each output of the model lies in the outputs of the Graph.
    pub outputs: Vec<(String, Structure)>,
    /// Remarks, such as initializers that are also inputs.
    pub notices: Vec<String>,
}

/// Makes a Graph of a model.
pub fn import(file: &ModelFile, options: &ImportOptions) -> Result<Imported, ImportError> {
    let model = file.proto();
    let graph = model.graph.as_ref().ok_or_else(|| ImportError::malformed("the model has no graph"))?;
    let functions: BTreeMap<(&str, &str), &FunctionProto> = model
        .functions
        .iter()
        .map(|function| ((domain_of(&function.domain), function.name.as_str()), function))
        .collect();
    let mut importer = Importer {
        file,
        functions,
        unsupported: Vec::new(),
        notices: Vec::new(),
        nodes_seen: 0,
        nodes_unrolled: 0,
        known: options.known.clone(),
    };
    let mut builder = Builder::new(&graph.name, file.limits().tensor_bytes);
    builder.shares_caches = options.shares_caches;
    importer.add_initializers(&mut builder, graph, options)?;
    importer.add_inputs(&mut builder, graph, options)?;
    if let Some((name, ty)) = &options.cache_lengths {
        let lengths = builder.add_input(name, ty.clone());
        builder.cache_lengths = Some(lengths);
        builder.keeps_attention = options.keeps_attention.clone();
    }
    let opsets = opsets_of(model.opset_import.iter().map(|set| (set.domain.as_str(), set.version)));
    importer.import_nodes(&mut builder, &graph.node, &opsets, 0)?;
    if !importer.unsupported.is_empty() {
        return Err(ImportError::Unsupported { nodes: importer.unsupported, total: importer.nodes_seen });
    }
    let mut outputs = Vec::new();
    for output in &graph.output {
        let value = builder.value(&output.name).cloned().ok_or_else(|| {
            ImportError::malformed(format!(
                "output '{}' is not the output of any node, input or initializer",
                output.name
            ))
        })?;
        if outputs.iter().any(|(name, _): &(String, Structure)| *name == output.name) {
            return Err(ImportError::malformed(format!("output '{}' is declared twice", output.name)));
        }
        let structure = value::add_output(&mut builder.graph, &output.name, &value);
        outputs.push((output.name.clone(), structure));
    }
    let graph = live::remove_dead(builder.graph).map_err(|error| ImportError::malformed(error.to_string()))?;
    Ok(Imported { graph, outputs, notices: importer.notices })
}

/// Versions of the operator sets in force, by domain.
pub(crate) type Opsets = BTreeMap<String, i64>;

/// "ai.onnx" and "" are one domain.
pub(crate) fn domain_of(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

fn opsets_of<'a>(sets: impl Iterator<Item = (&'a str, i64)>) -> Opsets {
    sets.map(|(domain, version)| (domain_of(domain).to_string(), version)).collect()
}

/// Nesting of functions and bodies beyond which a model is refused.
const DEPTH_MAX: usize = 16;

/// State of one import that is shared by all graphs of a model.
pub(crate) struct Importer<'a> {
    pub file: &'a ModelFile,
    pub functions: BTreeMap<(&'a str, &'a str), &'a FunctionProto>,
    pub unsupported: Vec<UnsupportedNode>,
    pub notices: Vec<String>,
    pub nodes_seen: usize,
    /// Nodes that unrolled loops stand for, of loops inside loops too.
    pub nodes_unrolled: usize,
    /// Values of the model's own nodes that are constants, by name.
    pub known: BTreeMap<String, Tensor>,
}

impl<'a> Importer<'a> {
    /// Imports nodes in order. A node that is not supported gives no values; nodes that need those are passed over.
    pub fn import_nodes(
        &mut self,
        builder: &mut Builder,
        nodes: &[NodeProto],
        opsets: &Opsets,
        depth: usize,
    ) -> Result<(), ImportError> {
        for (position, node) in nodes.iter().enumerate() {
            self.nodes_seen += 1;
            self.check_growth()?;
            let name = if node.name.is_empty() { format!("{}_{position}", node.op_type) } else { node.name.clone() };
            if uses_missing(builder, node) {
                builder.mark_missing(&node.output);
                continue;
            }
            if let (0, [output], Some(tensor)) = (depth, &node.output[..], self.known_output(node)) {
                let value = builder.constant(tensor);
                builder.define(output, value);
                continue;
            }
            match self.import_node(builder, node, &name, opsets, depth) {
                Ok(values) => bind_outputs(builder, node, &name, values)?,
                Err(Fault::Unsupported(reason)) => {
                    let version = opsets.get(domain_of(&node.domain)).copied().unwrap_or(0);
                    self.unsupported.push(UnsupportedNode::new(node, &name, version, reason));
                    builder.mark_missing(&node.output);
                }
                Err(Fault::Listed) => builder.mark_missing(&node.output),
                Err(Fault::NeedsValue { values, what }) if is_hopeless(builder, &values) => {
                    let version = opsets.get(domain_of(&node.domain)).copied().unwrap_or(0);
                    let reason = format!("{what} must be known before the model runs");
                    self.unsupported.push(UnsupportedNode::new(node, &name, version, reason));
                    builder.mark_missing(&node.output);
                }
                Err(fault) => return Err(fault.at(&node.op_type, &name, builder)),
            }
        }
        Ok(())
    }

    /// The value of a node's first output, where that is known.
    fn known_output(&self, node: &NodeProto) -> Option<Tensor> {
        self.known.get(node.output.first()?).cloned()
    }

    /// Functions and bodies that call each other can stand for many more nodes than a file has.
    fn check_growth(&self) -> Result<(), ReadError> {
        let (value, limit) = (self.nodes_seen as u64, self.file.limits().inlined_nodes);
        if value <= limit {
            return Ok(());
        }
        Err(ReadError::OverLimit { place: "the model".to_string(), budget: Budget::InlinedNodes, value, limit })
    }

    fn import_node(
        &mut self,
        builder: &mut Builder,
        node: &NodeProto,
        name: &str,
        opsets: &Opsets,
        depth: usize,
    ) -> Result<Vec<Value>, Fault> {
        let domain = domain_of(&node.domain);
        let version = opsets.get(domain).copied();
        let values = values_of(builder, node)?;
        let has_structures = values.iter().flatten().any(|value| value.tensor().is_none());
        let structural = version.and_then(|version| operators::find_structure(domain, &node.op_type, version));
        let structural = structural.filter(|row| has_structures || row.applies == Applies::Always);
        let import = version.and_then(|version| operators::find(domain, &node.op_type, version));
        if structural.is_some() || import.is_some() {
            let attributes = Attributes::new(&node.attribute)?;
            let opset = version.unwrap_or(0);
            let mut cx =
                NodeCx::new(self, builder, node, values, attributes, opsets, opset, Provenance::new(name), depth);
            let values = match (structural, import) {
                (Some(row), _) => (row.function)(&mut cx)?,
                (None, Some(import)) if has_structures => operators::strings::move_strings(&mut cx, import)?,
                (None, Some(import)) => (import.function)(&mut cx)?.into_iter().map(Value::Tensor).collect(),
                (None, None) => Vec::new(),
            };
            cx.finish()?;
            return Ok(values);
        }
        if let Some(&function) = self.functions.get(&(domain, node.op_type.as_str())) {
            return self.inline_function(builder, function, node, values, depth);
        }
        Err(Fault::Unsupported(operators::why_unknown(domain, &node.op_type, version)))
    }

    /// Imports a function's body in place of a node, with its own names and operator sets.
    fn inline_function(
        &mut self,
        builder: &mut Builder,
        function: &FunctionProto,
        node: &NodeProto,
        inputs: Vec<Option<Value>>,
        depth: usize,
    ) -> Result<Vec<Value>, Fault> {
        if depth >= DEPTH_MAX {
            return Err(Fault::Invalid(format!(
                "function '{}' is nested more than {DEPTH_MAX} deep; recursive functions are not allowed",
                function.name
            )));
        }
        let opsets = opsets_of(function.opset_import.iter().map(|set| (set.domain.as_str(), set.version)));
        let nodes = attributes::bind_function_attributes(function, &node.attribute);
        // Trailing inputs that are not written are absent too.
        let inputs = function.input.iter().cloned().zip(inputs.into_iter().chain(std::iter::repeat(None))).collect();
        let outputs: Vec<&str> = function.output.iter().map(String::as_str).collect();
        self.import_scope(builder, inputs, &nodes, &outputs, &opsets, depth)
    }

    /// Imports nodes under names of their own and gives the values of `outputs`.
    pub(crate) fn import_scope(
        &mut self,
        builder: &mut Builder,
        names: Vec<(String, Option<Value>)>,
        nodes: &[NodeProto],
        outputs: &[&str],
        opsets: &Opsets,
        depth: usize,
    ) -> Result<Vec<Value>, Fault> {
        let unsupported = self.unsupported.len();
        builder.enter_function(names.iter().map(|(name, value)| (name.as_str(), value.clone())));
        let result = self.import_nodes(builder, nodes, opsets, depth + 1);
        let values: Vec<_> = outputs.iter().map(|output| builder.value(output).cloned()).collect();
        builder.leave_function();
        result.map_err(|error| Fault::Nested(Box::new(error)))?;
        if self.unsupported.len() > unsupported {
            return Err(Fault::Listed);
        }
        let defined = values.into_iter().zip(outputs).map(|(value, output)| {
            value.ok_or_else(|| Fault::Invalid(format!("its body does not define the output '{output}'")))
        });
        defined.collect()
    }
}

/// What the inputs of a node stand for; none where one is left out.
fn values_of(builder: &Builder, node: &NodeProto) -> Result<Vec<Option<Value>>, Fault> {
    let inputs = node.input.iter().map(|input| match input.as_str() {
        input if input.is_empty() || builder.is_absent(input) => Ok(None),
        input => builder
            .value(input)
            .map(|value| Some(value.clone()))
            .ok_or_else(|| Fault::Invalid(format!("input '{input}' is not defined before this node"))),
    });
    inputs.collect()
}

/// Whether a node, or a body of it, reads an output of a node that could not be imported.
fn uses_missing(builder: &Builder, node: &NodeProto) -> bool {
    let bodies = node.attribute.iter().filter_map(|attribute| attribute.g.as_deref());
    node.input.iter().any(|input| builder.is_missing(input))
        || bodies.flat_map(body::free_names).any(|name| builder.is_missing(&name))
}

/// Whether neither frozen inputs nor numbers for dims could make values known.
fn is_hopeless(builder: &Builder, values: &[ValueId]) -> bool {
    error::inputs_behind(&builder.graph, values).is_empty() && builder.free_symbol_behind(values).is_none()
}

/// Gives the values of a node's outputs their names.
fn bind_outputs(builder: &mut Builder, node: &NodeProto, name: &str, values: Vec<Value>) -> Result<(), ImportError> {
    for (position, output) in node.output.iter().enumerate() {
        if output.is_empty() {
            continue;
        }
        let Some(value) = values.get(position).cloned() else {
            return Err(ImportError::malformed(format!(
                "{} '{name}': output {position} ('{output}') does not exist; the operator has {} outputs",
                node.op_type,
                values.len()
            )));
        };
        if !builder.define(output, value) {
            return Err(ImportError::malformed(format!(
                "{} '{name}': output '{output}' is defined twice",
                node.op_type
            )));
        }
    }
    Ok(())
}
