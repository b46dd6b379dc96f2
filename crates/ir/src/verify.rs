//! Checks that a graph is what every later part takes it to be. Building a graph already checks most of this; the
//! verifier does not trust that, and is run after every pass in tests and at every change of stage.

use std::collections::BTreeSet;

use precast_tensor::{Dim, Type};
use thiserror::Error;

use crate::graph::{Definition, Graph, Node, ValueId};
use crate::op::Op;

/// How far a graph has come; each stage has rules of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// As read from a model: no `fused`.
    Imported,
    /// Cleaned up: no `fused`, and every node is used.
    Canonical,
    /// Every dim and attribute is a number: what a target takes.
    Bound,
}

/// A rule that a graph breaks, and where.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{place}: {rule}")]
pub struct VerifyError {
    /// Node and op, or the part of the graph.
    pub place: String,
    /// The rule, and what was found instead.
    pub rule: String,
}

impl VerifyError {
    fn new(place: impl Into<String>, rule: impl Into<String>) -> VerifyError {
        VerifyError { place: place.into(), rule: rule.into() }
    }

    fn within(self, place: &str) -> VerifyError {
        VerifyError { place: format!("{place}, {}", self.place), rule: self.rule }
    }
}

/// Checks structure and Types of a graph and of the bodies in it.
pub fn verify(graph: &Graph) -> Result<(), VerifyError> {
    verify_definitions(graph)?;
    verify_names(graph)?;
    for (position, node) in graph.nodes().iter().enumerate() {
        verify_node(graph, position, node)?;
    }
    verify_sizes(graph)
}

/// `verify`, and the rules of a stage.
pub fn verify_stage(graph: &Graph, stage: Stage) -> Result<(), VerifyError> {
    verify(graph)?;
    match stage {
        Stage::Imported => verify_unfused(graph),
        Stage::Canonical => {
            verify_unfused(graph)?;
            verify_used(graph)
        }
        Stage::Bound => verify_bound(graph),
    }
}

fn place(position: usize, node: &Node) -> String {
    let outputs: Vec<String> = node.outputs.iter().map(ValueId::to_string).collect();
    let provenance = node.provenance.to_string();
    let name = if provenance.is_empty() { String::new() } else { format!(" '{provenance}'") };
    format!("node {position} ({} = {}{name})", outputs.join(", "), node.op.name())
}

/// Every value is defined once, by the part of the graph that its definition names.
fn verify_definitions(graph: &Graph) -> Result<(), VerifyError> {
    let mut inputs = graph.inputs().iter();
    for (at, value) in graph.values().iter().enumerate() {
        let id = ValueId(at as u32);
        let is_consistent = match &value.definition {
            Definition::Input(_) => inputs.next() == Some(&id),
            Definition::Constant(tensor) => tensor.type_() == value.ty,
            Definition::Node { node, output } => {
                graph.nodes().get(node.0 as usize).is_some_and(|node| node.outputs.get(*output) == Some(&id))
            }
        };
        if !is_consistent {
            return Err(VerifyError::new(format!("value {id}"), "its definition does not name it"));
        }
    }
    match inputs.next() {
        Some(input) => Err(VerifyError::new(format!("input {input}"), "it is not defined as an input")),
        None => Ok(()),
    }
}

fn verify_names(graph: &Graph) -> Result<(), VerifyError> {
    let mut names = BTreeSet::new();
    for &input in graph.inputs() {
        let name = graph.input_name(input);
        if !names.insert(name) {
            return Err(VerifyError::new(format!("input '{name}'"), "names of inputs differ from one another"));
        }
    }
    names.clear();
    for output in graph.outputs() {
        let place = || format!("output '{}'", output.name);
        if output.value.0 as usize >= graph.values().len() {
            return Err(VerifyError::new(place(), format!("there is no value {}", output.value)));
        }
        if !names.insert(&output.name) {
            return Err(VerifyError::new(place(), "names of outputs differ from one another"));
        }
    }
    Ok(())
}

fn verify_node(graph: &Graph, position: usize, node: &Node) -> Result<(), VerifyError> {
    let fail = |rule: String| Err(VerifyError::new(place(position, node), rule));
    for &input in &node.inputs {
        let Some(value) = graph.values().get(input.0 as usize) else {
            return fail(format!("there is no value {input}"));
        };
        if matches!(value.definition, Definition::Node { node, .. } if node.0 as usize >= position) {
            return fail(format!("{input} is read before it is defined"));
        }
    }
    for (output, &id) in node.outputs.iter().enumerate() {
        let expected = Definition::Node { node: crate::graph::NodeId(position as u32), output };
        if graph.values().get(id.0 as usize).is_none_or(|value| value.definition != expected) {
            return fail(format!("output {id} is not defined by this node"));
        }
    }
    for (name, body) in node.op.bodies() {
        verify(body).map_err(|error| error.within(&format!("{} {name}", place(position, node))))?;
    }
    let inputs: Vec<&Type> = node.inputs.iter().map(|&input| graph.ty(input)).collect();
    let inferred = match node.op.infer(&inputs) {
        Ok(types) => types,
        Err(error) => return fail(error.to_string()),
    };
    if inferred.len() != node.outputs.len() {
        return fail(format!("{} outputs recorded where {} are inferred", node.outputs.len(), inferred.len()));
    }
    for (&output, inferred) in node.outputs.iter().zip(&inferred) {
        let (recorded, inferred) = (graph.ty(output).simplify(&graph.ranges), inferred.simplify(&graph.ranges));
        if recorded != inferred {
            return fail(format!("{output} is recorded as {recorded} and inferred as {inferred}"));
        }
    }
    Ok(())
}

fn verify_sizes(graph: &Graph) -> Result<(), VerifyError> {
    let mut symbols = BTreeSet::new();
    for size in &graph.sizes {
        let fail = |rule: String| Err(VerifyError::new(format!("size '{}'", size.symbol), rule));
        let Some(value) = graph.values().get(size.value.0 as usize) else {
            return fail(format!("there is no value {}", size.value));
        };
        if !value.ty.dtype.is_int() {
            return fail(format!("{} is {}, not an integer", size.value, value.ty));
        }
        let count: Option<i64> =
            value.ty.dims.iter().map(Dim::as_const).try_fold(1i64, |count, dim| count.checked_mul(dim?));
        if count.is_some_and(|count| size.element as i64 >= count) {
            return fail(format!("{} is {}, without element {}", size.value, value.ty, size.element));
        }
        if !symbols.insert(&size.symbol) {
            return fail("a symbol is read from one value".to_string());
        }
    }
    Ok(())
}

fn verify_unfused(graph: &Graph) -> Result<(), VerifyError> {
    for (position, node) in graph.nodes().iter().enumerate() {
        if matches!(node.op, Op::Fused(_)) {
            return Err(VerifyError::new(place(position, node), "fused nodes exist only after fusion"));
        }
        for (_, body) in node.op.bodies() {
            verify_unfused(body).map_err(|error| error.within(&place(position, node)))?;
        }
    }
    Ok(())
}

fn verify_used(graph: &Graph) -> Result<(), VerifyError> {
    let counts = graph.use_counts();
    for (position, node) in graph.nodes().iter().enumerate() {
        if node.outputs.iter().all(|output| counts[output.0 as usize] == 0) {
            return Err(VerifyError::new(place(position, node), "no output of this node is read"));
        }
    }
    Ok(())
}

fn verify_bound(graph: &Graph) -> Result<(), VerifyError> {
    for (at, value) in graph.values().iter().enumerate() {
        if let Some(dim) = value.ty.dims.iter().find(|dim| dim.as_usize().is_none()) {
            return Err(VerifyError::new(format!("value %{at}"), format!("dim '{dim}' is not a size")));
        }
    }
    for (position, node) in graph.nodes().iter().enumerate() {
        let mut symbols = BTreeSet::new();
        node.op.collect_symbols(&mut symbols);
        if let Some(symbol) = symbols.first() {
            return Err(VerifyError::new(place(position, node), format!("symbol '{symbol}' has no number")));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
