//! Equal nodes on equal inputs become one; equal small constants too.

use std::collections::HashMap;

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::{Definition, Graph, Op, ValueId};

use crate::log::Log;
use crate::pipeline::{Class, Pass, Run};

/// Constants of this size or less are compared; larger ones are compared by address only.
const CONSTANT_BYTES_MAX: usize = 4096;

/// The pass.
pub const PASS: Pass = Pass {
    name: "merge_equal",
    doc: "f(x), f(x) → one f(x), used twice",
    class: Class::Exact,
    run: Run::Plain(merge_equal),
};

/// A node that is in the new Graph already, and its outputs there.
struct Seen {
    op: Op,
    outputs: Vec<ValueId>,
}

fn merge_equal(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::with_inputs(graph);
    merge_constants(graph, &mut copy);
    let mut seen: HashMap<(&str, Vec<ValueId>), Vec<Seen>> = HashMap::new();
    for node in graph.nodes() {
        let inputs = copy.get_all(&node.inputs);
        let is_pure = !matches!(node.op, Op::If(_) | Op::Loop(_) | Op::Fused(_) | Op::NonZero(_) | Op::Nms(_));
        let alike = seen.entry((node.op.name(), inputs.clone())).or_default();
        if let Some(equal) = alike.iter().find(|equal| is_pure && equal.op == node.op) {
            log.fired(node);
            for (&old, &new) in node.outputs.iter().zip(&equal.outputs) {
                copy.set(old, new);
            }
            continue;
        }
        let outputs = copy.new.add_node(node.op.clone(), &inputs, &node.provenance)?;
        for (&old, &new) in node.outputs.iter().zip(&outputs) {
            copy.set(old, new);
        }
        alike.push(Seen { op: node.op.clone(), outputs });
    }
    Ok(copy.finish())
}

fn merge_constants(graph: &Graph, copy: &mut GraphCopy<'_>) {
    let mut seen: HashMap<(&str, &[usize], &[u8]), ValueId> = HashMap::new();
    for (position, value) in graph.values().iter().enumerate() {
        let Definition::Constant(tensor) = &value.definition else { continue };
        if tensor.as_bytes().len() > CONSTANT_BYTES_MAX {
            continue;
        }
        let key = (tensor.dtype().name(), tensor.shape(), tensor.as_bytes());
        let old = ValueId(position as u32);
        match seen.get(&key) {
            Some(&first) => copy.set(old, first),
            None => {
                let new = copy.get(old);
                seen.insert(key, new);
            }
        }
    }
}
