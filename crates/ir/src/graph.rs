//! A Graph: inputs, constants and nodes in order, outputs by name. Every node is given the Types of its outputs by its
//! op when it is added, so a Graph that exists is well typed. Passes build a new Graph from an old one; what they do
//! not carry over is gone, so a Graph has no dead or unordered nodes by accident.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use precast_tensor::{Bindings, Dim, Ranges, Symbol, Tensor, Type};
use thiserror::Error;

use crate::error::InferError;
use crate::op::Op;

/// A value of a Graph: an input, a constant or an output of a node. Dense, in order of definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A node of a Graph. Dense, in order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// Names of the source model's nodes that a node stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance(Arc<[Arc<str>]>);

impl Provenance {
    /// One source node.
    pub fn new(name: &str) -> Provenance {
        Provenance(Arc::from([Arc::from(name)]))
    }

    /// Several source nodes.
    pub fn from_names(names: impl IntoIterator<Item = Arc<str>>) -> Provenance {
        Provenance(names.into_iter().collect())
    }

    /// The names, in order of first mention.
    pub fn names(&self) -> &[Arc<str>] {
        &self.0
    }

    /// All names of both, each once.
    pub fn join(&self, other: &Provenance) -> Provenance {
        let mut names: Vec<Arc<str>> = self.0.to_vec();
        for name in other.names() {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        Provenance(names.into())
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|name| &**name).collect();
        f.write_str(&names.join(", "))
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Definition {
    /// The graph's input of this name.
    Input(String),
    /// A constant.
    Constant(Tensor),
    /// An output of a node.
    Node {
        /// The node.
        node: NodeId,
        /// Which of its outputs.
        output: usize,
    },
}

/// A value: its Type and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Element type and dims.
    pub ty: Type,
    /// Where it comes from.
    pub definition: Definition,
}

/// One computation.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What it computes.
    pub op: Op,
    /// Its operands.
    pub inputs: Vec<ValueId>,
    /// Its results.
    pub outputs: Vec<ValueId>,
    /// The source nodes it stands for.
    pub provenance: Provenance,
}

/// A symbol whose number is only known at run time: element `element` of `value`.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeRead {
    /// The symbol that Types and attributes use.
    pub symbol: Symbol,
    /// An integer value of the graph.
    pub value: ValueId,
    /// Flat index of the element.
    pub element: usize,
}

/// A result of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Name given by the model.
    pub name: String,
    /// The value.
    pub value: ValueId,
}

/// A node that could not be added, named.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}{source}", if .provenance.is_empty() { String::new() } else { format!("node '{}': ", .provenance) })]
pub struct GraphError {
    /// The source nodes, as printed; empty when there are none.
    pub provenance: String,
    /// What did not fit.
    pub source: InferError,
}

/// Nodes in order with their inputs, constants and outputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// The model's name for it.
    pub name: String,
    /// What is known of symbols.
    pub ranges: Ranges,
    /// Symbols that are read from values while running.
    pub sizes: Vec<SizeRead>,
    values: Vec<Value>,
    nodes: Vec<Node>,
    inputs: Vec<ValueId>,
    outputs: Vec<Output>,
}

impl Graph {
    /// A graph without values.
    pub fn new(name: impl Into<String>) -> Graph {
        Graph { name: name.into(), ..Graph::default() }
    }

    /// Adds an input.
    pub fn add_input(&mut self, name: impl Into<String>, ty: Type) -> ValueId {
        let value = self.push(ty, Definition::Input(name.into()));
        self.inputs.push(value);
        value
    }

    /// Adds a constant.
    pub fn add_constant(&mut self, tensor: Tensor) -> ValueId {
        self.push(tensor.type_(), Definition::Constant(tensor))
    }

    /// Adds a node; its op decides the Types of its outputs.
    pub fn add_node(
        &mut self,
        op: impl Into<Op>,
        inputs: &[ValueId],
        provenance: &Provenance,
    ) -> Result<Vec<ValueId>, GraphError> {
        let op = op.into();
        let input_types: Vec<&Type> = inputs.iter().map(|&input| self.ty(input)).collect();
        let types =
            op.infer(&input_types).map_err(|source| GraphError { provenance: provenance.to_string(), source })?;
        let node = NodeId(self.nodes.len() as u32);
        let outputs: Vec<ValueId> = types
            .into_iter()
            .enumerate()
            .map(|(output, ty)| {
                let ty = Type { dims: ty.dims.iter().map(|dim| dim.simplify(&self.ranges)).collect(), ..ty };
                self.push(ty, Definition::Node { node, output })
            })
            .collect();
        self.nodes.push(Node { op, inputs: inputs.to_vec(), outputs: outputs.clone(), provenance: provenance.clone() });
        Ok(outputs)
    }

    /// Adds a node of one output.
    pub fn add(
        &mut self,
        op: impl Into<Op>,
        inputs: &[ValueId],
        provenance: &Provenance,
    ) -> Result<ValueId, GraphError> {
        let outputs = self.add_node(op, inputs, provenance)?;
        Ok(outputs[0])
    }

    /// Makes `value` a result called `name`.
    pub fn add_output(&mut self, name: impl Into<String>, value: ValueId) {
        self.outputs.push(Output { name: name.into(), value });
    }

    /// Every value, by id.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// Every node, in order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Inputs in order.
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// Outputs in order.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// A value by id.
    pub fn value(&self, value: ValueId) -> &Value {
        &self.values[value.0 as usize]
    }

    /// A node by id.
    pub fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.0 as usize]
    }

    /// Type of a value.
    pub fn ty(&self, value: ValueId) -> &Type {
        &self.value(value).ty
    }

    /// The tensor of a constant value.
    pub fn constant(&self, value: ValueId) -> Option<&Tensor> {
        match &self.value(value).definition {
            Definition::Constant(tensor) => Some(tensor),
            Definition::Input(_) | Definition::Node { .. } => None,
        }
    }

    /// Has constants share the memory of equal ones, where `equal_to` knows one.
    pub fn share_constants(&mut self, mut equal_to: impl FnMut(&Tensor) -> Option<Tensor>) {
        for value in &mut self.values {
            if let Definition::Constant(tensor) = &mut value.definition
                && let Some(equal) = equal_to(tensor).filter(|equal| equal.digest() == tensor.digest())
            {
                *tensor = equal;
            }
        }
    }

    /// Lets go of the memory that reading constants of mapped files took.
    pub fn release_pages(&self) {
        for value in &self.values {
            if let Definition::Constant(tensor) = &value.definition {
                tensor.release_pages();
            }
        }
    }

    /// The node that makes a value.
    pub fn producer(&self, value: ValueId) -> Option<(&Node, usize)> {
        match self.value(value).definition {
            Definition::Node { node, output } => Some((self.node(node), output)),
            Definition::Input(_) | Definition::Constant(_) => None,
        }
    }

    /// Name of an input value.
    pub fn input_name(&self, value: ValueId) -> &str {
        match &self.value(value).definition {
            Definition::Input(name) => name,
            Definition::Constant(_) | Definition::Node { .. } => "",
        }
    }

    /// How often each value is read by nodes, outputs and size reads; indexed by value.
    pub fn use_counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.values.len()];
        let reads = self.nodes.iter().flat_map(|node| node.inputs.iter().copied());
        let ends = self.outputs.iter().map(|output| output.value).chain(self.sizes.iter().map(|size| size.value));
        for value in reads.chain(ends) {
            counts[value.0 as usize] += 1;
        }
        counts
    }

    /// Symbols of every Type and attribute.
    pub fn symbols(&self) -> BTreeSet<Symbol> {
        let mut symbols = BTreeSet::new();
        for value in &self.values {
            symbols.extend(value.ty.dims.iter().flat_map(Dim::symbols));
        }
        for node in &self.nodes {
            node.op.collect_symbols(&mut symbols);
        }
        symbols
    }

    /// The same graph with symbols replaced in every Type and attribute, without inferring Types again.
    pub fn bind_symbols(&self, bindings: &Bindings) -> Graph {
        let mut graph = self.clone();
        for value in &mut graph.values {
            value.ty = value.ty.bind(bindings);
        }
        for node in &mut graph.nodes {
            node.op = node.op.bind(bindings);
        }
        graph.sizes.retain(|size| bindings.get(&size.symbol).is_none());
        graph
    }

    /// A copy with symbols bound, input Types replaced where `input_types` has the input's position, and the Types of
    /// every node inferred again.
    pub fn bind(&self, bindings: &Bindings, input_types: &BTreeMap<usize, Type>) -> Result<Graph, GraphError> {
        let mut copy = GraphCopy::new(self);
        for (position, &input) in self.inputs.iter().enumerate() {
            let ty = input_types.get(&position).unwrap_or(self.ty(input)).bind(bindings);
            copy.input(input, ty);
        }
        for node in &self.nodes {
            let op = node.op.bind(bindings);
            copy.node_as(node, op)?;
        }
        let mut graph = copy.finish();
        graph.sizes.retain(|size| bindings.get(&size.symbol).is_none());
        Ok(graph)
    }

    fn push(&mut self, ty: Type, definition: Definition) -> ValueId {
        let value = ValueId(self.values.len() as u32);
        self.values.push(Value { ty, definition });
        value
    }
}

/// Builds a new Graph from an old one: maps old values to new ones and copies what a pass does not change. Constants are
/// carried over when first used, so unused ones disappear.
pub struct GraphCopy<'a> {
    old: &'a Graph,
    /// The graph being built.
    pub new: Graph,
    map: Vec<Option<ValueId>>,
}

impl<'a> GraphCopy<'a> {
    /// Starts a copy of `old` without inputs or nodes.
    pub fn new(old: &'a Graph) -> GraphCopy<'a> {
        let new = Graph { name: old.name.clone(), ranges: old.ranges.clone(), ..Graph::default() };
        GraphCopy { old, new, map: vec![None; old.values.len()] }
    }

    /// Starts a copy of `old` with all its inputs.
    pub fn with_inputs(old: &'a Graph) -> GraphCopy<'a> {
        let mut copy = GraphCopy::new(old);
        for &input in &old.inputs {
            copy.input(input, old.ty(input).clone());
        }
        copy
    }

    /// Carries over one input with a given Type.
    pub fn input(&mut self, old: ValueId, ty: Type) -> ValueId {
        let new = self.new.add_input(self.old.input_name(old), ty);
        self.map[old.0 as usize] = Some(new);
        new
    }

    /// Says that `old` is `new` from here on.
    pub fn set(&mut self, old: ValueId, new: ValueId) {
        self.map[old.0 as usize] = Some(new);
    }

    /// Whether an old value has a new one already.
    pub fn has(&self, old: ValueId) -> bool {
        self.map[old.0 as usize].is_some()
    }

    /// The new value of an old one. Constants come along by themselves; anything else must have been set.
    pub fn get(&mut self, old: ValueId) -> ValueId {
        if let Some(new) = self.map[old.0 as usize] {
            return new;
        }
        let tensor = self.old.constant(old).expect("a value is set before it is used: nodes are visited in order");
        let new = self.new.add_constant(tensor.clone());
        self.set(old, new);
        new
    }

    /// The new values of old ones.
    pub fn get_all(&mut self, old: &[ValueId]) -> Vec<ValueId> {
        old.iter().map(|&value| self.get(value)).collect()
    }

    /// Copies a node.
    pub fn node(&mut self, node: &Node) -> Result<(), GraphError> {
        self.node_as(node, node.op.clone())
    }

    /// Copies a node with another op.
    pub fn node_as(&mut self, node: &Node, op: Op) -> Result<(), GraphError> {
        let inputs = self.get_all(&node.inputs);
        let outputs = self.new.add_node(op, &inputs, &node.provenance)?;
        for (&old, new) in node.outputs.iter().zip(outputs) {
            self.set(old, new);
        }
        Ok(())
    }

    /// Adds outputs and size reads and gives the new graph.
    pub fn finish(mut self) -> Graph {
        for output in &self.old.outputs {
            let value = self.get(output.value);
            self.new.add_output(output.name.clone(), value);
        }
        for size in &self.old.sizes {
            let value = self.get(size.value);
            self.new.sizes.push(SizeRead { symbol: size.symbol.clone(), value, element: size.element });
        }
        self.new
    }
}
