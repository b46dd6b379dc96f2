//! Weights of a product that lie as blocks of few bits with a scale each: `dequantize(unpack(bytes), scales)`.

use precast_ir::op::Matmul;
use precast_ir::{Definition, Graph, Node, NodeId, Op, ValueId};
use precast_tensor::DType;

/// The nodes that make the weights of a product out of constant blocks of few bits, if nothing else reads them: perhaps one
/// that unpacks bytes, and one that scales. `consumers` has for each value the one node that reads it.
pub(crate) fn block_weights(graph: &Graph, consumers: &[Option<NodeId>], product: &Node) -> Option<Vec<NodeId>> {
    let Op::Matmul(Matmul { transpose_a: false, transpose_b: true }) = &product.op else { return None };
    let producer = |value: ValueId| match graph.value(value).definition {
        Definition::Node { node, .. } if consumers[value.0 as usize].is_some() => Some(node),
        _ => None,
    };
    let weights = product.inputs[1];
    let id = producer(weights)?;
    let node = graph.node(id);
    let Op::Dequantize(op) = &node.op else { return None };
    let levels = node.inputs[0];
    let unpack = producer(levels).filter(|&id| matches!(graph.node(id).op, Op::Unpack(_)));
    let source = unpack.map_or(levels, |id| graph.node(id).inputs[0]);
    let is_constant = node.inputs[1..].iter().chain([&source]).all(|&input| graph.constant(input).is_some());
    let is_blocks = op.axis == 1 && op.block > 0 && graph.ty(weights).rank() == 2;
    let has_few_bits = matches!(graph.ty(levels).dtype, DType::I4 | DType::U4 | DType::I8 | DType::U8);
    let is_as_wide = graph.ty(product.inputs[0]).dtype == op.to;
    (is_constant && is_blocks && has_few_bits && is_as_wide).then(|| unpack.into_iter().chain([id]).collect())
}
