//! Rows of constant tables that are only looked up to be concatenated are looked up straight into their place.

use precast_ir::graph::{Definition, GraphCopy, GraphError};
use precast_ir::{Graph, Node, NodeId, Op, ValueId};

use crate::fuse_epilogues::add_fused;
use crate::log::{Log, Reason};
use crate::pipeline::{Class, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "fuse_gathers",
    doc: "concat(gather(W1, i), gather(W2, j), x) → fused { gather, gather, concat }, W1 and W2 constant tables",
    class: Class::Exact,
    run: Run::Plain(fuse_gathers),
};

/// Fewer than two lookups are worth no kernel of their own.
const TOO_FEW: Reason = "too-few";

fn fuse_gathers(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let uses = graph.use_counts();
    let mut chains: Vec<Option<Vec<NodeId>>> = vec![None; graph.nodes().len()];
    let mut is_absorbed = vec![false; graph.nodes().len()];
    for (position, node) in graph.nodes().iter().enumerate() {
        let Op::Concat(concat) = &node.op else { continue };
        let lookups = node.inputs.iter().filter_map(|&input| lookup(graph, &uses, input, concat.axis));
        let mut chain: Vec<NodeId> = lookups.flatten().collect();
        let count = chain.iter().filter(|id| matches!(graph.node(**id).op, Op::Gather(_))).count();
        if count < 2 {
            if count == 1 {
                log.refused(node, TOO_FEW);
            }
            continue;
        }
        for id in &chain {
            is_absorbed[id.0 as usize] = true;
        }
        chain.push(NodeId(position as u32));
        chains[position] = Some(chain);
    }
    let mut copy = GraphCopy::with_inputs(graph);
    for (position, node) in graph.nodes().iter().enumerate() {
        match &chains[position] {
            Some(chain) => {
                log.fired(node);
                add_fused(graph, &mut copy, chain)?;
            }
            None if is_absorbed[position] => {}
            None => copy.node(node)?,
        }
    }
    Ok(copy.finish())
}

/// Where one part of every row of a concatenation that this pass fused comes from: positions of the body's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSource {
    /// The rows of an input.
    Rows(usize),
    /// Rows of a table at indices.
    Table {
        /// The table.
        table: usize,
        /// The indices.
        indices: usize,
    },
}

/// The source of a part, and the gather where there is one; none if the body is not of this pass.
pub fn row_source(body: &Graph, part: ValueId) -> Option<(RowSource, Option<&Node>)> {
    let input = |value: ValueId| body.inputs().iter().position(|&input| input == value);
    if let Some(position) = input(part) {
        return Some((RowSource::Rows(position), None));
    }
    let (mut node, _) = body.producer(part)?;
    if matches!(node.op, Op::Reshape(_)) {
        (node, _) = body.producer(node.inputs[0])?;
    }
    let Op::Gather(_) = node.op else { return None };
    Some((RowSource::Table { table: input(node.inputs[0])?, indices: input(node.inputs[1])? }, Some(node)))
}

/// The gather, and the reshape behind it if there is one, that make one part of every row of a concatenation.
fn lookup(graph: &Graph, uses: &[u32], part: ValueId, axis: usize) -> Option<Vec<NodeId>> {
    let only_use = |value: ValueId| (uses[value.0 as usize] == 1).then_some(value);
    let (mut node, mut id) = producer(graph, only_use(part)?)?;
    let mut nodes = Vec::new();
    if matches!(node.op, Op::Reshape(_)) {
        nodes.push(id);
        (node, id) = producer(graph, only_use(node.inputs[0])?)?;
    }
    let Op::Gather(gather) = &node.op else { return None };
    let (table, indices) = (graph.constant(node.inputs[0])?, graph.ty(node.inputs[1]).shape()?);
    let shape = graph.ty(part).shape()?;
    let [rows, columns] = [&shape[..axis], &shape[axis..]].map(|dims| dims.iter().product::<usize>());
    let is_row_each = gather.axis == 0 && table.rank() == 2 && table.shape()[1] == columns;
    if !is_row_each || indices.iter().product::<usize>() != rows {
        return None;
    }
    nodes.insert(0, id);
    Some(nodes)
}

fn producer(graph: &Graph, value: ValueId) -> Option<(&Node, NodeId)> {
    match graph.value(value).definition {
        Definition::Node { node, .. } => Some((graph.node(node), node)),
        Definition::Input(_) | Definition::Constant(_) => None,
    }
}
