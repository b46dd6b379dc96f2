//! A pad with zeros before a convolution becomes the padding of the convolution itself (V18). Anything that is not zeros
//! around the space stays: other values or modes, crops, padded channels, and pools, whose own padding is no zeros.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::{Conv, Pad, PadFn};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::Dim;

use crate::log::{Log, Reason};
use crate::pipeline::{Class, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "absorb_pads",
    doc: "conv(pad(x, 0), W) → conv(x, W) with the pads added to its own",
    class: Class::Exact,
    run: Run::Plain(absorb_pads),
};

/// It pads with something other than zeros.
const NOT_ZERO: Reason = "not-zero";
/// It pads the batch or the channels.
const NOT_SPACE: Reason = "not-space";
/// It removes elements.
const CROPS: Reason = "crops";
/// A size is not known.
const UNKNOWN_SIZE: Reason = "unknown-size";

fn absorb_pads(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        match absorbed(graph, node) {
            Some(Ok((conv, x))) => {
                log.fired(node);
                let mut inputs = copy.get_all(&node.inputs);
                inputs[0] = copy.get(x);
                let output = copy.new.add(conv, &inputs, &node.provenance)?;
                copy.set(node.outputs[0], output);
            }
            Some(Err(reason)) => {
                log.refused(node, reason);
                copy.node(node)?;
            }
            None => copy.node(node)?,
        }
    }
    Ok(copy.finish())
}

/// The convolution with the padding of its operand, and what was padded.
fn absorbed(graph: &Graph, node: &Node) -> Option<Result<(Conv, ValueId), Reason>> {
    let Op::Conv(conv) = &node.op else { return None };
    let (source, _) = graph.producer(node.inputs[0])?;
    let Op::Pad(pad) = &source.op else { return None };
    Some(join(graph, conv, pad, source).map(|conv| (conv, source.inputs[0])))
}

fn join(graph: &Graph, conv: &Conv, pad: &Pad, source: &Node) -> Result<Conv, Reason> {
    let is_zero = match source.inputs.get(1) {
        None => true,
        // A negative zero is a zero too, but a sum of it and nothing else is not the same bits.
        Some(&value) => graph.constant(value).is_some_and(|value| value.as_bytes().iter().all(|&byte| byte == 0)),
    };
    if pad.func != PadFn::Constant || !is_zero {
        return Err(NOT_ZERO);
    }
    let numbers = |dims: &[Dim]| dims.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>().ok_or(UNKNOWN_SIZE);
    let (lo, hi) = (numbers(&pad.lo)?, numbers(&pad.hi)?);
    if lo.iter().chain(&hi).any(|&count| count < 0) {
        return Err(CROPS);
    }
    if lo[..2].iter().chain(&hi[..2]).any(|&count| count != 0) {
        return Err(NOT_SPACE);
    }
    let sum = |own: &[Dim], more: &[i64]| -> Result<Vec<Dim>, Reason> {
        let own = numbers(own)?;
        if own.iter().any(|&count| count < 0) {
            return Err(CROPS);
        }
        Ok(own.iter().zip(more).map(|(own, more)| Dim::from(own + more)).collect())
    };
    Ok(Conv { pad_lo: sum(&conv.pad_lo, &lo[2..])?, pad_hi: sum(&conv.pad_hi, &hi[2..])?, ..conv.clone() })
}
