//! Elementwise nodes of one shape whose results are read only by each other become one `fused` node.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::{Graph, Node, NodeId, Op, ValueId};
use precast_tensor::DType;

use crate::fuse_epilogues::add_fused;
use crate::log::{Log, Reason};
use crate::pipeline::{Class, Pass, Run};

/// Nodes in one fused node: beyond this its registers would not stay in the first-level cache.
const NODES_MAX: usize = 32;
/// Different values that one fused node reads.
const INPUTS_MAX: usize = 12;

/// The pass.
pub const PASS: Pass = Pass {
    name: "fuse_pointwise",
    doc: "mul(add(x, y), z) → fused { add, mul }",
    class: Class::Exact,
    run: Run::Plain(fuse_pointwise),
};

/// Whether an op computes each element of its result from the elements at the same place of its inputs.
pub fn is_pointwise(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select(_) | Op::Clamp(_) | Op::Cast(_))
}

/// Element types that fused kernels work on.
pub fn is_lane(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::I32 | DType::I64 | DType::Bool | DType::U8 | DType::I8)
}

/// No pointwise node of its shape is read by it, or reads it, alone.
const NO_NEIGHBOUR: Reason = "no-neighbour";
/// Fused kernels do not work on its element types.
const TYPE: Reason = "type";

fn fuse_pointwise(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let groups = find_groups(graph);
    let mut copy = GraphCopy::with_inputs(graph);
    for (position, node) in graph.nodes().iter().enumerate() {
        match &groups[position] {
            Membership::Alone => {
                if is_pointwise(&node.op) {
                    log.refused(node, if can_join(graph, node) { NO_NEIGHBOUR } else { TYPE });
                }
                copy.node(node)?;
            }
            Membership::Absorbed => {}
            Membership::Root(members) => {
                log.fired(node);
                add_fused(graph, &mut copy, members)?;
            }
        }
    }
    Ok(copy.finish())
}

#[derive(Clone)]
enum Membership {
    Alone,
    Absorbed,
    /// The last node of a group, with all members in order.
    Root(Vec<NodeId>),
}

/// Grows groups from their last node backwards: a producer joins when every reader of its result is in the group already.
fn find_groups(graph: &Graph) -> Vec<Membership> {
    let count = graph.nodes().len();
    let readers = readers(graph);
    let mut is_output = vec![false; graph.values().len()];
    for output in graph.outputs() {
        is_output[output.value.0 as usize] = true;
    }
    for size in &graph.sizes {
        is_output[size.value.0 as usize] = true;
    }
    let mut membership = vec![Membership::Alone; count];
    let mut is_taken = vec![false; count];
    for root in (0..count).rev() {
        if is_taken[root] || !can_join(graph, &graph.nodes()[root]) {
            continue;
        }
        let members = grow(graph, &readers, &is_output, &is_taken, root);
        if members.len() < 2 {
            continue;
        }
        for member in &members {
            is_taken[member.0 as usize] = true;
            membership[member.0 as usize] = Membership::Absorbed;
        }
        membership[root] = Membership::Root(members);
    }
    membership
}

fn grow(graph: &Graph, readers: &[Vec<usize>], is_output: &[bool], is_taken: &[bool], root: usize) -> Vec<NodeId> {
    let shape = &graph.ty(graph.nodes()[root].outputs[0]).dims;
    let mut members = vec![root];
    let mut open = vec![root];
    while let Some(member) = open.pop() {
        for &input in &graph.nodes()[member].inputs {
            let Some((producer, _)) = producer_position(graph, input) else { continue };
            let node = &graph.nodes()[producer];
            let joins = !members.contains(&producer)
                && !is_taken[producer]
                && members.len() < NODES_MAX
                && can_join(graph, node)
                && !is_output[input.0 as usize]
                && graph.ty(input).dims == *shape
                && readers[input.0 as usize].iter().all(|reader| members.contains(reader));
            if joins && outside_inputs(graph, &members, producer) <= INPUTS_MAX {
                members.push(producer);
                // A value with several readers may become eligible once the last of them has joined.
                open.extend(members.iter().copied());
                break;
            }
        }
    }
    members.sort_unstable();
    members.into_iter().map(|member| NodeId(member as u32)).collect()
}

fn outside_inputs(graph: &Graph, members: &[usize], candidate: usize) -> usize {
    let mut inputs: Vec<ValueId> = Vec::new();
    for &member in members.iter().chain([&candidate]) {
        for &input in &graph.nodes()[member].inputs {
            let is_inside = producer_position(graph, input)
                .is_some_and(|(producer, _)| members.contains(&producer) || producer == candidate);
            if !is_inside && !inputs.contains(&input) {
                inputs.push(input);
            }
        }
    }
    inputs.len()
}

fn producer_position(graph: &Graph, value: ValueId) -> Option<(usize, usize)> {
    match graph.value(value).definition {
        precast_ir::Definition::Node { node, output } => Some((node.0 as usize, output)),
        precast_ir::Definition::Input(_) | precast_ir::Definition::Constant(_) => None,
    }
}

/// Nodes that read each value.
fn readers(graph: &Graph) -> Vec<Vec<usize>> {
    let mut readers = vec![Vec::new(); graph.values().len()];
    for (position, node) in graph.nodes().iter().enumerate() {
        for input in &node.inputs {
            readers[input.0 as usize].push(position);
        }
    }
    readers
}

fn can_join(graph: &Graph, node: &Node) -> bool {
    is_pointwise(&node.op)
        && node.inputs.iter().chain(&node.outputs).all(|&value| is_lane(graph.ty(value).dtype))
        && !matches!(&node.op, Op::Cast(cast) if !is_lane(cast.to))
}
