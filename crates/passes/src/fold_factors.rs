//! Constant factors and offsets beside a product with constant weights go into the weights (A14, A15), and those before a
//! convolution into its filter (A13). The products are formed in f64 and rounded once; one that is not finite, or that turns a
//! non-zero weight into zero, leaves the nodes as they are.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::BinaryFn;
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::{DType, Tensor};

use crate::log::{Log, Reason};
use crate::pattern::{binary, made_by};
use crate::pipeline::{Class, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "fold_factors",
    doc: "matmul(x, W) · c → matmul(x, W⊙c), c a number or one a column; matmul(x⊙d, W) → matmul(x, d⊙W), d a number or one \
          a row of W; conv(x · d, W) → conv(x, d⊙W), d a number or one a channel",
    class: Class::Rounding,
    run: Run::Plain(fold_factors),
};

/// The value between is read elsewhere or is an output.
const MULTIPLE_USES: Reason = "multiple-uses";
/// The weights are not of this float type.
const TYPE: Reason = "type";
/// The constant is not one number for each row or column of the weights.
const NOT_ALONG_WEIGHTS: Reason = "not-along-weights";
/// A product overflows, or a non-zero one becomes zero.
const RANGE: Reason = "range";
/// The graph is quantised, and such a model needs the last bit of other runtimes.
const QUANTISED: Reason = "quantised";

/// A product or convolution with new weights.
struct Folded {
    x: ValueId,
    weights: Tensor,
}

fn fold_factors(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let uses = graph.use_counts();
    let is_quantised = graph.nodes().iter().any(|node| matches!(node.op, Op::Quantize(_)));
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let after = factor_after(graph, node);
        let before = factor_before(graph, node);
        let (product, folded) = match (after, before) {
            (Some((product, factor)), _) => (product, fold_after(graph, &uses, product, factor)),
            (None, Some((x, factor))) => (node, fold_before(graph, &uses, node, x, factor)),
            (None, None) => {
                copy.node(node)?;
                continue;
            }
        };
        let folded = if is_quantised { Err(QUANTISED) } else { folded };
        match folded {
            Ok(Folded { x, weights }) => {
                log.fired(node);
                let mut inputs = copy.get_all(&product.inputs);
                inputs[0] = copy.get(x);
                inputs[1] = copy.new.add_constant(weights);
                let provenance = product.provenance.join(&node.provenance);
                let output = copy.new.add(product.op.clone(), &inputs, &provenance)?;
                copy.set(node.outputs[0], output);
            }
            Err(reason) => {
                log.refused(node, reason);
                copy.node(node)?;
            }
        }
    }
    Ok(copy.finish())
}

/// A product with weights that this node multiplies by a constant.
fn factor_after<'a>(graph: &'a Graph, node: &Node) -> Option<(&'a Node, &'a Tensor)> {
    let (a, b) = binary(node, BinaryFn::Mul)?;
    [(a, b), (b, a)].into_iter().find_map(|(product, factor)| {
        let (producer, _) = graph.producer(product)?;
        let is_product = matches!(producer.op, Op::Matmul(_)) && has_weights(graph, producer);
        let keeps_type = graph.ty(product) == graph.ty(node.outputs[0]);
        (is_product && keeps_type).then_some((producer, graph.constant(factor)?))
    })
}

/// The operand, without its factor, of a product or convolution with weights.
fn factor_before<'a>(graph: &'a Graph, node: &Node) -> Option<(ValueId, &'a Tensor)> {
    if !matches!(node.op, Op::Matmul(_) | Op::Conv(_)) || !has_weights(graph, node) {
        return None;
    }
    let (a, b) = made_by(graph, node.inputs[0], BinaryFn::Mul)?;
    [(a, b), (b, a)].into_iter().find_map(|(x, factor)| {
        let keeps_type = graph.ty(x) == graph.ty(node.inputs[0]);
        graph.constant(factor).filter(|_| keeps_type).map(|factor| (x, factor))
    })
}

fn has_weights(graph: &Graph, node: &Node) -> bool {
    let Some(weights) = graph.constant(node.inputs[1]) else { return false };
    match &node.op {
        Op::Matmul(op) => weights.rank() == 2 && !op.transpose_a,
        _ => true,
    }
}

fn fold_after(graph: &Graph, uses: &[u32], product: &Node, factor: &Tensor) -> Result<Folded, Reason> {
    if uses[product.outputs[0].0 as usize] != 1 {
        return Err(MULTIPLE_USES);
    }
    let Op::Matmul(op) = &product.op else { return Err(TYPE) };
    let weights = weights_of(graph, product)?;
    let column_axis = usize::from(!op.transpose_b);
    let columns = weights.shape()[column_axis];
    let is_along = factor.len() == 1 || factor.shape().last() == Some(&columns) && factor.len() == columns;
    let weights = along(weights, column_axis, factor, is_along)?;
    Ok(Folded { x: product.inputs[0], weights })
}

fn fold_before(graph: &Graph, uses: &[u32], node: &Node, x: ValueId, factor: &Tensor) -> Result<Folded, Reason> {
    if uses[node.inputs[0].0 as usize] != 1 {
        return Err(MULTIPLE_USES);
    }
    let weights = weights_of(graph, node)?;
    let rank = graph.ty(x).rank();
    let (axis, is_along) = match &node.op {
        Op::Matmul(op) => {
            let axis = usize::from(op.transpose_b);
            let rows = weights.shape()[axis];
            (axis, factor.len() == 1 || factor.shape().last() == Some(&rows) && factor.len() == rows)
        }
        // With groups a filter's channels are not all of x's; a number is the same for each.
        Op::Conv(op) if op.groups > 1 => (1, factor.len() == 1),
        _ => {
            let channels = weights.shape()[1];
            let vector = crate::fold_scales::channel_vector(factor, channels, rank);
            (1, vector.is_some_and(|vector| vector.len() == channels))
        }
    };
    Ok(Folded { x, weights: along(weights, axis, factor, is_along)? })
}

fn weights_of<'a>(graph: &'a Graph, node: &Node) -> Result<&'a Tensor, Reason> {
    let weights = graph.constant(node.inputs[1]).ok_or(TYPE)?;
    if matches!(weights.dtype(), DType::F32 | DType::F64) { Ok(weights) } else { Err(TYPE) }
}

/// The weights times one factor for each position along an axis, or one for all.
fn along(weights: &Tensor, axis: usize, factor: &Tensor, is_along: bool) -> Result<Tensor, Reason> {
    if !is_along {
        return Err(NOT_ALONG_WEIGHTS);
    }
    let factors = factor.to_f64_vec();
    let inner: usize = weights.shape()[axis + 1..].iter().product();
    let size = weights.shape()[axis];
    let old = weights.to_f64_vec();
    let scaled: Vec<f64> = old
        .iter()
        .enumerate()
        .map(|(at, weight)| weight * if factors.len() == 1 { factors[0] } else { factors[at / inner % size] })
        .collect();
    let tensor = Tensor::from_f64(weights.dtype(), weights.shape().to_vec(), &scaled, false).map_err(|_| RANGE)?;
    let is_kept = |(new, old): (f64, &f64)| new.is_finite() && (new != 0.0 || *old == 0.0);
    if tensor.to_f64_vec().into_iter().zip(&old).all(is_kept) { Ok(tensor) } else { Err(RANGE) }
}
