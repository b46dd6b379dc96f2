//! Splits a Graph where the host must look at values: before a node whose result has a size of its own (`nonzero`, `nms`),
//! before `if` and `loop`, and where a size is read from a value. Between the cuts every size is known once the values
//! before are, so each part compiles as a Program of its own.

use std::collections::BTreeSet;

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::{Graph, NodeId, Op, ValueId};
use precast_tensor::{Dim, Symbol};

/// A part of a Graph.
#[derive(Clone, Debug)]
pub enum Segment {
    /// Nodes that compile to one Program: inputs and outputs are values of the whole Graph.
    Compiled {
        /// The nodes as a Graph; its inputs and outputs are in the order of the lists below.
        graph: Box<Graph>,
        /// Values of the whole Graph that it takes.
        inputs: Vec<ValueId>,
        /// Values of the whole Graph that it gives.
        outputs: Vec<ValueId>,
    },
    /// One node that the host carries out.
    Host {
        /// The node of the whole Graph.
        node: NodeId,
    },
}

/// Whether the host carries out a node.
pub fn is_host(op: &Op) -> bool {
    matches!(op, Op::NonZero(_) | Op::Nms(_) | Op::If(_) | Op::Loop(_))
}

/// The parts of a Graph in order of execution. A Graph without host nodes and size reads is one part.
pub fn cut_segments(graph: &Graph) -> Result<Vec<Segment>, GraphError> {
    let levels = levels(graph);
    let last = levels.iter().copied().max().unwrap_or(0);
    let mut segments = Vec::new();
    for level in 0..=last {
        let members: Vec<NodeId> =
            (0..graph.nodes().len()).filter(|&node| levels[node] == level).map(|node| NodeId(node as u32)).collect();
        // Within a level host nodes come first: they need only what earlier levels gave.
        let (host, compiled): (Vec<NodeId>, Vec<NodeId>) =
            members.into_iter().partition(|&node| is_host(&graph.node(node).op));
        segments.extend(host.into_iter().map(|node| Segment::Host { node }));
        if !compiled.is_empty() {
            segments.push(compiled_segment(graph, &compiled)?);
        }
    }
    Ok(segments)
}

/// For each node how many cuts lie before it. A host node opens the level after its inputs; its readers are in its level.
fn levels(graph: &Graph) -> Vec<usize> {
    let mut symbol_level: Vec<(Symbol, usize)> = Vec::new();
    let mut value_level = vec![0; graph.values().len()];
    let mut levels = Vec::new();
    for node in graph.nodes() {
        let mut level = node.inputs.iter().map(|input| value_level[input.0 as usize]).max().unwrap_or(0);
        let mut symbols = BTreeSet::new();
        node.op.collect_symbols(&mut symbols);
        for &value in node.inputs.iter().chain(&node.outputs) {
            symbols.extend(graph.ty(value).dims.iter().flat_map(Dim::symbols));
        }
        for (symbol, known_from) in &symbol_level {
            if symbols.contains(symbol) && !defines(&node.op, symbol) {
                level = level.max(*known_from);
            }
        }
        if is_host(&node.op) {
            level += 1;
        }
        for &output in &node.outputs {
            value_level[output.0 as usize] = level;
            for size in graph.sizes.iter().filter(|size| size.value == output) {
                symbol_level.push((size.symbol.clone(), level + 1));
            }
            if is_host(&node.op) {
                for symbol in graph.ty(output).dims.iter().flat_map(Dim::symbols) {
                    symbol_level.push((symbol, level));
                }
            }
        }
        levels.push(level);
    }
    levels
}

/// Whether the op's result decides the symbol.
fn defines(op: &Op, symbol: &Symbol) -> bool {
    match op {
        Op::NonZero(op) => op.count.as_symbol() == Some(symbol),
        Op::Nms(op) => op.count.as_symbol() == Some(symbol),
        _ => false,
    }
}

fn compiled_segment(graph: &Graph, members: &[NodeId]) -> Result<Segment, GraphError> {
    let is_member: BTreeSet<NodeId> = members.iter().copied().collect();
    let made: BTreeSet<ValueId> = members.iter().flat_map(|&node| graph.node(node).outputs.iter().copied()).collect();
    let mut inputs: Vec<ValueId> = Vec::new();
    for &node in members {
        for &input in &graph.node(node).inputs {
            if !made.contains(&input) && graph.constant(input).is_none() && !inputs.contains(&input) {
                inputs.push(input);
            }
        }
    }
    let mut needed: BTreeSet<ValueId> = graph.outputs().iter().map(|output| output.value).collect();
    needed.extend(graph.sizes.iter().map(|size| size.value));
    for (position, node) in graph.nodes().iter().enumerate() {
        if !is_member.contains(&NodeId(position as u32)) {
            needed.extend(node.inputs.iter().copied());
        }
    }
    let outputs: Vec<ValueId> = made.intersection(&needed).copied().collect();
    let mut copy = GraphCopy::new(graph);
    for &input in &inputs {
        let new = copy.new.add_input(format!("v{}", input.0), graph.ty(input).clone());
        copy.set(input, new);
    }
    for &node in members {
        copy.node(graph.node(node))?;
    }
    for &output in &outputs {
        let value = copy.get(output);
        copy.new.add_output(format!("v{}", output.0), value);
    }
    Ok(Segment::Compiled { graph: Box::new(copy.new), inputs, outputs })
}
