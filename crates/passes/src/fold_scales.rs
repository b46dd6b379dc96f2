//! Constant factors and offsets a channel after a convolution go into its filter and bias (A10, A11: this is how batch norm
//! disappears). The products are formed in f64 and rounded once; a product that is not finite, or that turns a non-zero
//! weight into zero, leaves the nodes as they are.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::BinaryFn;
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::{Tensor, Type};

use crate::pipeline::{Class, Pass, PassOptions};

/// The pass.
pub const PASS: Pass = Pass {
    name: "fold_scales",
    doc: "conv(x, W) · a → conv(x, a⊙W); conv(x, W) + b → conv(x, W, b), a and b constant a channel",
    class: Class::Rounding,
    run: fold_scales,
};

fn fold_scales(graph: &Graph, _: &PassOptions) -> Result<Graph, GraphError> {
    let uses = graph.use_counts();
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let inputs = copy.get_all(&node.inputs);
        let folded = (0..2).find_map(|side| {
            let is_only_use = node.inputs.get(side).is_some_and(|input| uses[input.0 as usize] == 1);
            if is_only_use { fold(&copy.new, graph.ty(node.outputs[0]), node, &inputs, side) } else { None }
        });
        let Some(folded) = folded else {
            copy.node(node)?;
            continue;
        };
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

fn fold(new: &Graph, output: &Type, node: &Node, inputs: &[ValueId], side: usize) -> Option<Folded> {
    let Op::Binary(op) = &node.op else { return None };
    let (conv_value, other) = (inputs[side], *inputs.get(1 - side)?);
    let (conv, _) = new.producer(conv_value)?;
    let Op::Conv(_) = conv.op else { return None };
    let filter = new.constant(conv.inputs[1])?;
    let old_bias = match conv.inputs.get(2) {
        Some(&bias) => Some(new.constant(bias)?),
        None => None,
    };
    if new.ty(conv_value) != output || !filter.dtype().is_float() {
        return None;
    }
    let channels = *filter.shape().first()?;
    let operand = channel_vector(new.constant(other)?, channels, output.rank())?;
    let bias: Vec<f64> = old_bias.map_or_else(|| vec![0.0; channels], Tensor::to_f64_vec);
    let (scale, bias): (Vec<f64>, Vec<f64>) = match (op.func, side) {
        (BinaryFn::Mul, _) => (operand.clone(), bias.iter().zip(&operand).map(|(b, a)| b * a).collect()),
        (BinaryFn::Div, 0) => {
            (operand.iter().map(|a| 1.0 / a).collect(), bias.iter().zip(&operand).map(|(b, a)| b / a).collect())
        }
        (BinaryFn::Add, _) => (vec![1.0; channels], bias.iter().zip(&operand).map(|(b, a)| b + a).collect()),
        (BinaryFn::Sub, 0) => (vec![1.0; channels], bias.iter().zip(&operand).map(|(b, a)| b - a).collect()),
        _ => return None,
    };
    let filter = if scale.iter().all(|&factor| factor == 1.0) { filter.clone() } else { scaled(filter, &scale)? };
    let bias = Tensor::from_f64(filter.dtype(), [channels], &bias, false).ok()?;
    bias.to_f64_vec().iter().all(|element| element.is_finite()).then_some(Folded { conv: conv_value, filter, bias })
}

/// A constant as one number a channel (axis 1 of a value of `rank` dims).
fn channel_vector(tensor: &Tensor, channels: usize, rank: usize) -> Option<Vec<f64>> {
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

/// The filter with each output channel multiplied by its factor.
fn scaled(filter: &Tensor, scale: &[f64]) -> Option<Tensor> {
    let mut elements = filter.to_f64_vec();
    let per_channel = elements.len().checked_div(scale.len())?;
    let old = elements.clone();
    for (channel, factor) in scale.iter().enumerate() {
        for element in &mut elements[channel * per_channel..(channel + 1) * per_channel] {
            *element *= factor;
        }
    }
    let result = Tensor::from_f64(filter.dtype(), filter.shape(), &elements, false).ok()?;
    let is_safe = result
        .to_f64_vec()
        .iter()
        .zip(&old)
        .enumerate()
        .all(|(at, (new, old))| new.is_finite() && (*new != 0.0 || *old == 0.0 || scale[at / per_channel] == 0.0));
    is_safe.then_some(result)
}
