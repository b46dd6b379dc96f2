//! A transpose of the last two axes goes into the matmul that reads it.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::Matmul;
use precast_ir::{Graph, Op, ValueId};

use crate::log::{Log, Reason};
use crate::pipeline::{Class, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "merge_transposes",
    doc: "matmul(x, transpose(y)) → matmul(x, y) {transpose_b=true}",
    class: Class::Exact,
    run: Run::Plain(merge_transposes),
};

/// The transpose moves other axes than the last two.
const OTHER_AXES: Reason = "other-axes";

fn merge_transposes(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let Op::Matmul(op) = &node.op else {
            copy.node(node)?;
            continue;
        };
        let (a, swap_a) = through_transpose(graph, node.inputs[0]);
        let (b, swap_b) = through_transpose(graph, node.inputs[1]);
        if swap_a || swap_b {
            log.fired(node);
        }
        for &operand in &node.inputs {
            let made = graph.producer(operand).map(|(producer, _)| &producer.op);
            if matches!(made, Some(Op::Transpose(_))) && !through_transpose(graph, operand).1 {
                log.refused(node, OTHER_AXES);
            }
        }
        let merged = Matmul { transpose_a: op.transpose_a ^ swap_a, transpose_b: op.transpose_b ^ swap_b };
        let inputs = [copy.get(a), copy.get(b)];
        let output = copy.new.add(merged, &inputs, &node.provenance)?;
        copy.set(node.outputs[0], output);
    }
    Ok(copy.finish())
}

/// The source of a transpose that only swaps the last two axes.
fn through_transpose(graph: &Graph, value: ValueId) -> (ValueId, bool) {
    let Some((node, _)) = graph.producer(value) else { return (value, false) };
    let Op::Transpose(op) = &node.op else { return (value, false) };
    let rank = op.perm.len();
    let swaps_last = rank >= 2
        && op.perm[rank - 1] == rank - 2
        && op.perm[rank - 2] == rank - 1
        && op.perm[..rank - 2].iter().enumerate().all(|(axis, &from)| axis == from);
    if swaps_last { (node.inputs[0], true) } else { (value, false) }
}
