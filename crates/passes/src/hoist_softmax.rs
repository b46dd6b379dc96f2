//! A softmax between two transposes goes before both, which `remove_identities` then makes one.
//!
//! Exporters move the axis of a softmax to the end and back. Along an axis in the middle, a machine with vectors works on many
//! rows at once; and rows of a few elements are what it is slowest at.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::{Softmax, Transpose};
use precast_ir::{Graph, Node, NodeId, Op};

use crate::fuse_epilogues::single_consumers;
use crate::log::{Log, Reason};
use crate::pipeline::{Class, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "hoist_softmax",
    doc: "transpose(softmax(transpose(x))) → transpose(transpose(softmax(x)))",
    class: Class::Exact,
    run: Run::Plain(hoist_softmax),
};

/// No transpose reads the result, or others read it too: there would be as many transposes as before.
const NO_SECOND: Reason = "no-second-transpose";

fn hoist_softmax(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let consumers = single_consumers(graph);
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let Some((softmax, first, source)) = behind_transpose(graph, node) else {
            copy.node(node)?;
            continue;
        };
        if !is_turned(graph, consumers[node.outputs[0].0 as usize]) {
            log.refused(node, NO_SECOND);
            copy.node(node)?;
            continue;
        }
        log.fired(node);
        let hoisted = Softmax { axis: first.perm[softmax.axis], ..softmax.clone() };
        let source = copy.get(source.inputs[0]);
        let value = copy.new.add(hoisted, &[source], &node.provenance)?;
        let output = copy.new.add(first.clone(), &[value], &node.provenance)?;
        copy.set(node.outputs[0], output);
    }
    Ok(copy.finish())
}

/// A softmax of a transpose: both, and the node of the transpose.
fn behind_transpose<'a>(graph: &'a Graph, node: &'a Node) -> Option<(&'a Softmax, &'a Transpose, &'a Node)> {
    let Op::Softmax(softmax) = &node.op else { return None };
    let (source, _) = graph.producer(node.inputs[0])?;
    let Op::Transpose(transpose) = &source.op else { return None };
    Some((softmax, transpose, source))
}

/// Whether the only reader of a value is a transpose.
fn is_turned(graph: &Graph, consumer: Option<NodeId>) -> bool {
    consumer.is_some_and(|consumer| matches!(graph.node(consumer).op, Op::Transpose(_)))
}
