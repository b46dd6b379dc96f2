//! An LSTM whose operands are all dequantised bytes reads the bytes: its products are then sums of integers, and its weights
//! take a quarter of the memory. Other recurrent layers get dequantised weights as floats: no kernel reads weights that are
//! computed in every run.

use precast_ir::eval_parts::eval_in_parts;
use precast_ir::graph::{Definition, GraphCopy, GraphError};
use precast_ir::op::{Dequantize, Recurrent};
use precast_ir::{Graph, Node, NodeId, Op, ValueId};
use precast_tensor::{DType, Tensor};

use crate::fuse_epilogues::add_fused;
use crate::log::{Log, Reason};
use crate::pipeline::{Class, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "fuse_recurrent",
    doc: "recurrent(dequantize(x₈), dequantize(W₈)ᵀ, dequantize(R₈)ᵀ) that rounds its state → \
          fused { dequantize, dequantize, transpose, dequantize, transpose, recurrent }, W₈ and R₈ constant; \
          any other recurrent(x, dequantize(W₈), R) → recurrent(x, W, R)",
    class: Class::Exact,
    run: Run::Plain(fuse_recurrent),
};

/// x is not made from bytes by one scale.
const X: Reason = "x-not-bytes";
/// Weights are not made from constant bytes, or by other scales than one a direction or one a column.
const WEIGHTS: Reason = "weights-not-bytes";
/// Sums may leave i32.
const TOO_DEEP: Reason = "too-deep";

/// Depth above which a sum of 255 · 128 a term may leave i32.
const DEPTH_MAX: usize = 1 << 16;

fn fuse_recurrent(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::with_inputs(graph);
    for (position, node) in graph.nodes().iter().enumerate() {
        let Op::Recurrent(op) = &node.op else {
            copy.node(node)?;
            continue;
        };
        match op.rounds_state.then(|| constant_layer(graph, node)) {
            Some(Ok(layer)) => {
                log.fired(node);
                let mut chain = layer.nodes;
                chain.push(NodeId(position as u32));
                add_fused(graph, &mut copy, &chain)?;
                continue;
            }
            Some(Err(reason)) => log.refused(node, reason),
            None => {}
        }
        for &weights in &node.inputs[1..=2] {
            if let Some(floats) = dequantized(graph, weights) {
                let constant = copy.new.add_constant(floats);
                copy.set(weights, constant);
            }
        }
        copy.node(node)?;
    }
    Ok(copy.finish())
}

/// The value of weights that are dequantised, and perhaps transposed, from constants.
fn dequantized(graph: &Graph, value: ValueId) -> Option<Tensor> {
    let (node, _) = producer(graph, value)?;
    let operands = match &node.op {
        Op::Dequantize(_) => {
            node.inputs.iter().map(|&input| graph.constant(input).cloned()).collect::<Option<Vec<_>>>()?
        }
        Op::Transpose(_) => vec![dequantized(graph, node.inputs[0])?],
        _ => return None,
    };
    eval_in_parts(&node.op, &operands).ok()?.pop()
}

/// The layer of a node whose weights are constants.
fn constant_layer(graph: &Graph, node: &Node) -> Result<ByteLayer, Reason> {
    let layer = ByteLayer::of(graph, node)?;
    let values =
        [layer.w, layer.r].into_iter().flat_map(|operand| [Some(operand.bytes), Some(operand.scale), operand.zero]);
    let is_constant = values.flatten().all(|value| graph.constant(value).is_some());
    is_constant.then_some(layer).ok_or(WEIGHTS)
}

/// The operands of a recurrent node as bytes.
pub struct ByteLayer {
    /// x u8[T, B, I], with one scale.
    pub x: ByteOperand,
    /// Wᵀ [D, I, G*H] of i8 or u8.
    pub w: ByteOperand,
    /// Rᵀ [D, H, G*H] of i8 or u8.
    pub r: ByteOperand,
    /// The nodes that make floats of them.
    nodes: Vec<NodeId>,
}

/// Bytes with their scale and zero point. Weights have one for all, one a direction [D] or one a column [D, 1, G*H].
#[derive(Clone, Copy)]
pub struct ByteOperand {
    /// The bytes.
    pub bytes: ValueId,
    /// Their scale.
    pub scale: ValueId,
    /// Their zero point; 0 if there is none.
    pub zero: Option<ValueId>,
}

impl ByteLayer {
    /// The layer of a body that gives the outputs of the recurrent node at its end, if it is of bytes.
    pub fn of_body(body: &Graph) -> Option<(&Recurrent, ByteLayer)> {
        let node = body.nodes().last()?;
        let gives_all = body.outputs().iter().map(|output| &output.value).eq(&node.outputs);
        match &node.op {
            Op::Recurrent(op) if op.rounds_state && gives_all => Some((op, ByteLayer::of(body, node).ok()?)),
            _ => None,
        }
    }

    fn of(graph: &Graph, node: &Node) -> Result<ByteLayer, Reason> {
        let mut nodes = Vec::new();
        let (dequantize, x) = byte_operand(graph, node.inputs[0], &mut nodes).ok_or(X)?;
        let is_one_scale = graph.ty(x.scale).rank() == 0 && dequantize.block == 0;
        if !is_one_scale || graph.ty(x.bytes).dtype != DType::U8 {
            return Err(X);
        }
        let w = byte_weights(graph, node.inputs[1], &mut nodes)?;
        let r = byte_weights(graph, node.inputs[2], &mut nodes)?;
        Ok(ByteLayer { x, w, r, nodes })
    }
}

/// Weights [D, G*H, depth] that are the transpose of dequantised bytes.
fn byte_weights(graph: &Graph, weights: ValueId, nodes: &mut Vec<NodeId>) -> Result<ByteOperand, Reason> {
    let (transpose, id) = producer(graph, weights).ok_or(WEIGHTS)?;
    let Op::Transpose(op) = &transpose.op else { return Err(WEIGHTS) };
    let (dequantize, operand) = byte_operand(graph, transpose.inputs[0], nodes).ok_or(WEIGHTS)?;
    nodes.push(id);
    let (shape, scale) = (graph.ty(operand.bytes).shape(), graph.ty(operand.scale).shape());
    let (Some(&[directions, depth, columns]), Some(scale)) = (shape.as_deref(), scale) else { return Err(WEIGHTS) };
    let is_known_scale = match &scale[..] {
        [] | [1] => true,
        &[count] => count == directions && dequantize.axis == 0,
        scale => scale == [directions, 1, columns] && dequantize.axis == 1,
    };
    if op.perm != [0, 2, 1] || !is_known_scale || !matches!(graph.ty(operand.bytes).dtype, DType::I8 | DType::U8) {
        return Err(WEIGHTS);
    }
    if depth <= DEPTH_MAX { Ok(operand) } else { Err(TOO_DEEP) }
}

/// What a value that is dequantised to f32 is made of; its node is added to `nodes`.
fn byte_operand<'a>(
    graph: &'a Graph,
    value: ValueId,
    nodes: &mut Vec<NodeId>,
) -> Option<(&'a Dequantize, ByteOperand)> {
    let (node, id) = producer(graph, value)?;
    let Op::Dequantize(op) = &node.op else { return None };
    let is_f32 = op.to == DType::F32 && graph.ty(node.inputs[1]).dtype == DType::F32;
    nodes.push(id);
    let operand = ByteOperand { bytes: node.inputs[0], scale: node.inputs[1], zero: node.inputs.get(2).copied() };
    is_f32.then_some((op, operand))
}

fn producer(graph: &Graph, value: ValueId) -> Option<(&Node, NodeId)> {
    match graph.value(value).definition {
        Definition::Node { node, .. } => Some((graph.node(node), node)),
        Definition::Input(_) | Definition::Constant(_) => None,
    }
}
