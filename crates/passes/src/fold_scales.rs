//! Constant factors and offsets a channel after a convolution go into its filter and bias (A10, A11: this is how batch norm
//! disappears). The products are formed in f64 and rounded once; a product that is not finite, or that turns a non-zero
//! weight into zero, leaves the nodes as they are.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::BinaryFn;
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::{DType, Tensor, Type};

use crate::log::{Log, Reason};
use crate::pipeline::{Class, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "fold_scales",
    doc: "conv(x, W) · a → conv(x, a⊙W); conv(x, W) + b → conv(x, W, b), a and b constant a channel; the same \
          for conv_transpose",
    class: Class::Rounding,
    run: Run::Plain(fold_scales),
};

/// The convolution's result is read elsewhere or is an output.
const MULTIPLE_USES: Reason = "multiple-uses";
/// The filter or the bias is computed.
const WEIGHTS_NOT_CONSTANT: Reason = "weights-not-constant";
/// The filter is of integers.
const TYPE: Reason = "type";
/// The constant has other than one number a channel.
const NOT_BY_CHANNEL: Reason = "not-by-channel";
/// A product overflows, or a non-zero one becomes zero.
const RANGE: Reason = "range";

fn fold_scales(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let uses = graph.use_counts();
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let inputs = copy.get_all(&node.inputs);
        let folded = (0..2).find_map(|side| {
            let conv = conv_operand(&copy.new, node, &inputs, side)?;
            let is_only_use = uses[node.inputs[side].0 as usize] == 1;
            let folded = fold(&copy.new, graph.ty(node.outputs[0]), conv, side);
            Some(if is_only_use { folded } else { Err(MULTIPLE_USES) })
        });
        let folded = match folded {
            Some(Ok(folded)) => folded,
            Some(Err(reason)) => {
                log.refused(node, reason);
                copy.node(node)?;
                continue;
            }
            None => {
                copy.node(node)?;
                continue;
            }
        };
        log.fired(node);
        let filter = copy.new.add_constant(folded.filter);
        let bias = copy.new.add_constant(folded.bias);
        let (conv, _) = copy.new.producer(folded.conv).expect("fold found the conv there");
        let (op, provenance, x) = (conv.op.clone(), conv.provenance.join(&node.provenance), conv.inputs[0]);
        let output = copy.new.add(op, &[x, filter, bias], &provenance)?;
        copy.set(node.outputs[0], output);
    }
    Ok(copy.finish())
}

/// New constants of a convolution.
struct Folded {
    conv: ValueId,
    filter: Tensor,
    bias: Tensor,
}

/// A convolution and the constant that an operation joins to its result.
struct Scaled<'a> {
    func: BinaryFn,
    value: ValueId,
    conv: &'a Node,
    operand: &'a Tensor,
}

fn conv_operand<'a>(new: &'a Graph, node: &Node, inputs: &[ValueId], side: usize) -> Option<Scaled<'a>> {
    let Op::Binary(op) = &node.op else { return None };
    let (value, other) = (inputs[side], *inputs.get(1 - side)?);
    let (conv, _) = new.producer(value)?;
    let is_linear = match op.func {
        BinaryFn::Mul | BinaryFn::Add => true,
        BinaryFn::Div | BinaryFn::Sub => side == 0,
        _ => false,
    };
    let operand = new.constant(other)?;
    (is_linear && matches!(conv.op, Op::Conv(_) | Op::ConvTranspose(_))).then_some(Scaled {
        func: op.func,
        value,
        conv,
        operand,
    })
}

fn fold(new: &Graph, output: &Type, scaled: Scaled<'_>, side: usize) -> Result<Folded, Reason> {
    let Scaled { func, value: conv_value, conv, operand } = scaled;
    let filter = new.constant(conv.inputs[1]).ok_or(WEIGHTS_NOT_CONSTANT)?;
    let old_bias = match conv.inputs.get(2) {
        Some(&bias) => Some(new.constant(bias).ok_or(WEIGHTS_NOT_CONSTANT)?),
        None => None,
    };
    if !filter.dtype().is_float() {
        return Err(TYPE);
    }
    let channels = channels_of(&conv.op, filter);
    let is_kept = new.ty(conv_value) == output;
    let operand = channel_vector(operand, channels, output.rank()).filter(|_| is_kept).ok_or(NOT_BY_CHANNEL)?;
    let bias: Vec<f64> = old_bias.map_or_else(|| vec![0.0; channels], Tensor::to_f64_vec);
    let (scale, bias): (Vec<f64>, Vec<f64>) = match (func, side) {
        (BinaryFn::Mul, _) => (operand.clone(), bias.iter().zip(&operand).map(|(b, a)| b * a).collect()),
        (BinaryFn::Div, 0) => {
            (operand.iter().map(|a| 1.0 / a).collect(), bias.iter().zip(&operand).map(|(b, a)| b / a).collect())
        }
        (BinaryFn::Add, _) => (vec![1.0; channels], bias.iter().zip(&operand).map(|(b, a)| b + a).collect()),
        (BinaryFn::Sub, 0) => (vec![1.0; channels], bias.iter().zip(&operand).map(|(b, a)| b - a).collect()),
        _ => return Err(NOT_BY_CHANNEL),
    };
    let filter = if scale.iter().all(|&factor| factor == 1.0) {
        filter.clone()
    } else {
        scale_filter(&conv.op, filter, &scale).ok_or(RANGE)?
    };
    let bias = Tensor::from_f64(filter.dtype(), [channels], &bias, false).map_err(|_| RANGE)?;
    let is_finite = bias.to_f64_vec().iter().all(|element| element.is_finite());
    if is_finite { Ok(Folded { conv: conv_value, filter, bias }) } else { Err(RANGE) }
}

/// A constant as one number a channel (axis 1 of a value of `rank` dims).
pub(crate) fn channel_vector(tensor: &Tensor, channels: usize, rank: usize) -> Option<Vec<f64>> {
    let elements = tensor.to_f64_vec();
    if elements.len() == 1 && tensor.rank() <= rank {
        return Some(vec![elements[0]; channels]);
    }
    let missing = rank.checked_sub(tensor.rank())?;
    let is_channel_only = tensor
        .shape()
        .iter()
        .enumerate()
        .all(|(axis, &size)| if axis + missing == 1 { size == channels } else { size == 1 });
    (is_channel_only && missing <= 1).then_some(elements)
}

/// Output channels of a convolution.
fn channels_of(op: &Op, filter: &Tensor) -> usize {
    match op {
        Op::ConvTranspose(op) => filter.shape()[1] * op.groups,
        _ => filter.shape()[0],
    }
}

/// The output channel of each element of a filter: axis 0 of a convolution's, axis 1 within its group of a transposed
/// one's.
fn channel_of(op: &Op, filter: &Tensor) -> impl Fn(usize) -> usize {
    let shape = filter.shape();
    let taps: usize = shape[2..].iter().product();
    let (inputs, outputs) = (shape[0], shape[1]);
    let groups = match op {
        Op::ConvTranspose(op) => Some(op.groups),
        _ => None,
    };
    move |at: usize| {
        let (row, column) = (at / taps / outputs, at / taps % outputs);
        groups.map_or(row, |groups| row / (inputs / groups) * outputs + column)
    }
}

/// The filter with each output channel multiplied by its factor. A mapped filter is read in parts and let go.
fn scale_filter(op: &Op, filter: &Tensor, scale: &[f64]) -> Option<Tensor> {
    let channel = channel_of(op, filter);
    let is_safe =
        |at: usize, old: f64, new: f64| new.is_finite() && (new != 0.0 || old == 0.0 || scale[channel(at)] == 0.0);
    if filter.dtype() == DType::F32 {
        let mut elements: Vec<f32> = Vec::with_capacity(filter.len());
        for part in filter.read_parts(PART_BYTES) {
            for &bytes in part.as_chunks().0 {
                let (at, old) = (elements.len(), f64::from(f32::from_le_bytes(bytes)));
                let new = (old * scale[channel(at)]) as f32;
                if !is_safe(at, old, f64::from(new)) {
                    return None;
                }
                elements.push(new);
            }
        }
        filter.release_pages();
        return Tensor::from_vec(filter.shape(), elements).ok();
    }
    let old = filter.to_f64_vec();
    let elements: Vec<f64> = old.iter().enumerate().map(|(at, element)| element * scale[channel(at)]).collect();
    let result = Tensor::from_f64(filter.dtype(), filter.shape(), &elements, false).ok()?;
    let are_safe = result.to_f64_vec().iter().zip(&old).enumerate().all(|(at, (new, old))| is_safe(at, *old, *new));
    are_safe.then_some(result)
}

/// How much of a filter is read at once: a whole number of elements.
const PART_BYTES: usize = 256 << 10;
