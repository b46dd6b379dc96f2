//! A convolution followed by a 1×1 convolution, or the other way round, is one convolution (A29; specs/compiler.md §4).
//! The products of the filters are formed in f64 and rounded once. The pair is folded only where that is legal for every
//! input, where the product stays in range, and where one step is estimated to take less time than two.
//!
//! Of the legality table, L4 (the inner padding is zero) and L5 (groups divide channels) hold by construction here: `conv`
//! has no other padding, other kinds are a `pad` before it, and a Graph with channels that do not fit cannot be made.

use precast_ir::graph::{GraphCopy, GraphError, Provenance};
use precast_ir::op::{BinaryFn, Conv};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::{Dim, Tensor};

use crate::fold_scales::channel_vector;
use crate::log::{Log, Reason};
use crate::pattern::binary;
use crate::pipeline::{Class, Pass, Run};
use crate::step_costs::StepCosts;

/// The pass.
pub const PASS: Pass = Pass {
    name: "fold_conv_1x1",
    doc: "conv(conv(x, W1, b1), W2, b2) → conv(x, W2·W1, b2 + W2·b1), W2 or W1 a 1×1 filter",
    class: Class::Rounding,
    run: Run::Costed(fold_conv_1x1),
};

/// Something other than a constant a channel stands between the two.
const BETWEEN_NOT_BIAS: Reason = "between-not-bias";
/// Neither filter is 1 on every axis.
const OUTER_FILTER_NOT_1: Reason = "outer-filter-not-1";
/// Padding of the intermediate would show.
const OUTER_PADDING: Reason = "outer-padding";
/// The 1×1 convolution that comes first strides or pads.
const INNER_STRIDE_OR_PADDING: Reason = "inner-stride-or-padding";
/// Not one float type.
const TYPE: Reason = "type";
/// The intermediate has no elements, or none is proven.
const EMPTY: Reason = "empty";
/// The intermediate is read elsewhere or is an output.
const MULTIPLE_USES: Reason = "multiple-uses";
/// A filter or bias is computed.
const WEIGHTS_NOT_CONSTANT: Reason = "weights-not-constant";
/// A product overflows, or a non-zero one becomes zero.
const RANGE: Reason = "range";
/// One step is not faster than two.
const NOT_PROFITABLE: Reason = "not-profitable";

fn fold_conv_1x1(graph: &Graph, costs: &StepCosts, log: &mut Log) -> Result<Graph, GraphError> {
    let uses = graph.use_counts();
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let inputs = copy.get_all(&node.inputs);
        let folded = match candidate(graph, &copy.new, node, &inputs) {
            None => None,
            Some(Err(reason)) => Some(Err(reason)),
            Some(Ok(pair)) if !is_read_once(graph, &uses, node) => {
                // The reason that a reader can act on: a pair that is illegal anyway is not told about its uses.
                Some(Err(legal(&pair).err().unwrap_or(MULTIPLE_USES)))
            }
            Some(Ok(pair)) => Some(fold(&pair, costs)),
        };
        match folded {
            Some(Ok(folded)) => {
                log.fired(node);
                let mut operands = vec![folded.x, copy.new.add_constant(folded.product.filter)];
                operands.extend(folded.product.bias.map(|bias| copy.new.add_constant(bias)));
                let output = copy.new.add(folded.op, &operands, &folded.provenance.join(&node.provenance))?;
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

/// Two convolutions in a row.
struct Pair<'a> {
    inner: Side<'a>,
    outer: Side<'a>,
    /// Added to each channel between the two.
    between: Option<&'a Tensor>,
    inner_node: &'a Node,
    /// Sizes of the first one's input, of the intermediate and of the result.
    x: &'a [Dim],
    middle: &'a [Dim],
    output: &'a [Dim],
    is_one_type: bool,
}

/// One convolution with constants where it has them.
#[derive(Clone, Copy)]
struct Side<'a> {
    op: &'a Conv,
    filter: Option<&'a Tensor>,
    filter_dims: &'a [Dim],
    bias: Bias<'a>,
}

#[derive(Clone, Copy)]
enum Bias<'a> {
    Absent,
    Constant(&'a Tensor),
    Computed,
}

impl<'a> Side<'a> {
    fn new(new: &'a Graph, op: &'a Conv, operands: &[ValueId]) -> Side<'a> {
        let bias = match operands.get(2) {
            None => Bias::Absent,
            Some(&bias) => new.constant(bias).map_or(Bias::Computed, Bias::Constant),
        };
        Side { op, filter: new.constant(operands[1]), filter_dims: &new.ty(operands[1]).dims, bias }
    }

    fn is_1x1(&self) -> bool {
        self.filter_dims[2..].iter().all(|dim| dim.as_const() == Some(1))
    }

    fn is_padded(&self) -> bool {
        self.op.pad_lo.iter().chain(&self.op.pad_hi).any(|pad| pad.as_const() != Some(0))
    }

    fn has_bias(&self) -> bool {
        match self.bias {
            Bias::Absent => false,
            Bias::Constant(tensor) => tensor.to_f64_vec().iter().any(|&element| element != 0.0),
            Bias::Computed => true,
        }
    }
}

/// The pair that ends with this node; a reason where something else stands between; none where it is no pair at all.
fn candidate<'a>(
    old: &'a Graph,
    new: &'a Graph,
    node: &'a Node,
    inputs: &[ValueId],
) -> Option<Result<Pair<'a>, Reason>> {
    let Op::Conv(outer_op) = &node.op else { return None };
    let outer = Side::new(new, outer_op, inputs);
    let (producer, _) = new.producer(inputs[0])?;
    let (inner_node, between) = match &producer.op {
        Op::Conv(_) => (producer, None),
        _ => {
            let (inner, between) = beyond(new, producer)?;
            let Op::Conv(_) = inner.op else { return None };
            (inner, Some(between))
        }
    };
    let Op::Conv(inner_op) = &inner_node.op else { return None };
    let inner = Side::new(new, inner_op, &inner_node.inputs);
    let between = match between {
        None => None,
        Some(Some(vector)) => Some(vector),
        Some(None) if outer.is_1x1() || inner.is_1x1() => return Some(Err(BETWEEN_NOT_BIAS)),
        Some(None) => return None,
    };
    let dtype = new.ty(inner_node.inputs[0]).dtype;
    // Eight-bit floats have too few digits for a product of filters.
    let is_wide = dtype.is_float() && dtype.size_bytes() > 1;
    let is_one_type = is_wide && inputs.iter().chain(&inner_node.inputs).all(|&value| new.ty(value).dtype == dtype);
    Some(Ok(Pair {
        inner,
        outer,
        between,
        inner_node,
        x: &new.ty(inner_node.inputs[0]).dims,
        middle: &new.ty(inner_node.outputs[0]).dims,
        output: &old.ty(node.outputs[0]).dims,
        is_one_type,
    }))
}

/// The node before a pointwise one, and the constant a channel that the pointwise one adds, if that is all it does.
fn beyond<'a>(new: &'a Graph, node: &'a Node) -> Option<(&'a Node, Option<&'a Tensor>)> {
    let made = |value: ValueId| new.producer(value).map(|(node, _)| node).filter(|node| matches!(node.op, Op::Conv(_)));
    if let Some((a, b)) = binary(node, BinaryFn::Add) {
        for (value, other) in [(a, b), (b, a)] {
            let Some(inner) = made(value) else { continue };
            let dims = &new.ty(value).dims;
            let vector = new.constant(other).filter(|tensor| {
                let channels = dims[1].as_usize();
                let keeps_type = new.ty(node.outputs[0]) == new.ty(value);
                keeps_type && channels.is_some_and(|channels| channel_vector(tensor, channels, dims.len()).is_some())
            });
            return Some((inner, vector));
        }
        return None;
    }
    if !crate::fuse_pointwise::is_pointwise(&node.op) {
        return None;
    }
    node.inputs.iter().find_map(|&input| made(input)).map(|inner| (inner, None))
}

/// Whether nothing else reads what lies between the two convolutions.
fn is_read_once(graph: &Graph, uses: &[u32], node: &Node) -> bool {
    let once = |value: ValueId| uses[value.0 as usize] == 1;
    let middle = node.inputs[0];
    let through = graph.producer(middle).map(|(producer, _)| producer);
    let is_add = through.and_then(|producer| binary(producer, BinaryFn::Add));
    let operands_are_once =
        is_add.is_none_or(|(a, b)| [a, b].into_iter().all(|v| graph.constant(v).is_some() || once(v)));
    once(middle) && operands_are_once
}

/// The one convolution without its constants, or why there is none (§4.2, §4.5).
fn legal(pair: &Pair<'_>) -> Result<Conv, Reason> {
    let Pair { inner, outer, .. } = pair;
    if !pair.is_one_type {
        return Err(TYPE);
    }
    if !outer.is_1x1() && !inner.is_1x1() {
        return Err(OUTER_FILTER_NOT_1);
    }
    let is_positive = |dim: &Dim| dim.as_const().is_some_and(|size| size > 0);
    if !pair.middle[1..].iter().all(is_positive) || pair.middle[0].as_const() == Some(0) {
        return Err(EMPTY);
    }
    let groups = gcd(inner.op.groups, outer.op.groups);
    if outer.is_1x1() {
        let (pad_lo, pad_hi) =
            if outer.is_padded() { padded(pair).ok_or(OUTER_PADDING)? } else { inner_pads(inner.op) };
        let stride = inner.op.stride.iter().zip(&outer.op.stride).map(|(a, b)| a * b).collect();
        return Ok(Conv { stride, pad_lo, pad_hi, dilation: inner.op.dilation.clone(), groups });
    }
    if inner.is_padded() || inner.op.stride.iter().any(|&stride| stride != 1) {
        return Err(INNER_STRIDE_OR_PADDING);
    }
    if outer.is_padded() && (inner.has_bias() || pair.between.is_some()) {
        return Err(OUTER_PADDING);
    }
    Ok(Conv { groups, ..outer.op.clone() })
}

fn inner_pads(op: &Conv) -> (Vec<Dim>, Vec<Dim>) {
    (op.pad_lo.clone(), op.pad_hi.clone())
}

/// Padding of the one convolution where the outer 1×1 pads: right where every padded place of the intermediate that an
/// output reads would have been zero, since no real input lies under its window and there is no bias (L3).
fn padded(pair: &Pair<'_>) -> Option<(Vec<Dim>, Vec<Dim>)> {
    let Pair { inner, outer, .. } = pair;
    let has_bias = inner.has_bias() || pair.between.is_some();
    let number = |dim: &Dim| dim.as_const();
    let (mut pad_lo, mut pad_hi) = (Vec::new(), Vec::new());
    // For each axis, whether some place that an output reads would not be zero; and whether such a place is padding.
    let (mut audible, mut audible_outside) = (Vec::new(), Vec::new());
    for axis in 0..inner.op.stride.len() {
        let [s1, s2, d1] = [inner.op.stride[axis], outer.op.stride[axis], inner.op.dilation[axis]].map(|n| n as i64);
        let (p_lo, p_hi) = (number(&inner.op.pad_lo[axis])?, number(&inner.op.pad_hi[axis])?);
        let (q_lo, q_hi) = (number(&outer.op.pad_lo[axis])?, number(&outer.op.pad_hi[axis])?);
        let (size, middle) = (number(&pair.x[axis + 2])?, number(&pair.middle[axis + 2])?);
        let (taps, outputs) = (number(&inner.filter_dims[axis + 2])?, number(&pair.output[axis + 2])?);
        if q_lo < 0 || q_hi < 0 {
            return None;
        }
        let is_audible = |place: &i64| {
            let first = place * s1 - p_lo;
            has_bias || (0..taps).any(|tap| (0..size).contains(&(first + tap * d1)))
        };
        let places = || (0..outputs).map(|output| output * s2 - q_lo);
        audible.push(places().any(|place| is_audible(&place)));
        audible_outside.push(places().filter(is_audible).any(|place| !(0..middle).contains(&place)));
        pad_lo.push(Dim::from(p_lo + q_lo * s1));
        pad_hi.push(Dim::from(p_hi + q_hi * s1));
    }
    // A place is zero where any of its axes says so.
    let is_wrong =
        |axis: usize| audible_outside[axis] && (0..audible.len()).all(|other| other == axis || audible[other]);
    (0..audible.len()).all(|axis| !is_wrong(axis)).then_some((pad_lo, pad_hi))
}

/// The one convolution.
struct Folded {
    op: Conv,
    x: ValueId,
    product: Product,
    provenance: Provenance,
}

fn fold(pair: &Pair<'_>, costs: &StepCosts) -> Result<Folded, Reason> {
    let op = legal(pair)?;
    let (Some(_), Some(_)) = (pair.inner.filter, pair.outer.filter) else { return Err(WEIGHTS_NOT_CONSTANT) };
    if matches!(pair.inner.bias, Bias::Computed) || matches!(pair.outer.bias, Bias::Computed) {
        return Err(WEIGHTS_NOT_CONSTANT);
    }
    if !is_profitable(pair, &op, costs) {
        return Err(NOT_PROFITABLE);
    }
    let product = multiply(pair, op.groups).ok_or(RANGE)?;
    let (x, provenance) = (pair.inner_node.inputs[0], pair.inner_node.provenance.clone());
    Ok(Folded { op, x, product, provenance })
}

/// Constants of the one convolution.
struct Product {
    filter: Tensor,
    bias: Option<Tensor>,
}

/// The sums of §4.1: for output channel o, input channel c and place k, over the intermediate channels m that both groups
/// of o and of c hold. None where a result leaves the range of its type.
fn multiply(pair: &Pair<'_>, groups: usize) -> Option<Product> {
    let (w1, w2) = (pair.inner.filter?, pair.outer.filter?);
    let (g1, g2) = (pair.inner.op.groups, pair.outer.op.groups);
    let (middle, outputs) = (w1.shape()[0], w2.shape()[0]);
    let inputs = w1.shape()[1] * g1;
    let (k1, k2) = (w1.shape()[2..].iter().product::<usize>(), w2.shape()[2..].iter().product::<usize>());
    let (group_m, group_o, group_c) = (middle / g2, outputs / g2, inputs / groups);
    let (own_c, taps) = (inputs / g1, k1 * k2);
    let (v1, v2) = (w1.to_f64_vec(), w2.to_f64_vec());
    let b1 = middle_bias(pair, middle);
    let mut filter = vec![0.0; outputs * group_c * taps];
    let mut reach = vec![0.0; filter.len()];
    let mut bias = match pair.outer.bias {
        Bias::Constant(tensor) => tensor.to_f64_vec(),
        Bias::Absent | Bias::Computed => vec![0.0; outputs],
    };
    for o in 0..outputs {
        let first_c = o / (outputs / groups) * group_c;
        for m in o / group_o * group_m..(o / group_o + 1) * group_m {
            let row = &v2[(o * group_m + m % group_m) * k2..][..k2];
            bias[o] += row.iter().sum::<f64>() * b1[m];
            let start = m / (middle / g1) * own_c - first_c;
            let source = &v1[m * own_c * k1..][..own_c * k1];
            let target = o * group_c * taps + start * taps;
            // One of k1 and k2 is 1, so a place of the product is a place of the one or of the other.
            for (place, &weight) in row.iter().enumerate() {
                let sums = filter[target..][..own_c * taps].iter_mut().zip(&mut reach[target..][..own_c * taps]);
                let places = sums.skip(place).step_by(k2);
                for ((sum, reach), &element) in places.zip(source) {
                    *sum += weight * element;
                    *reach += (weight * element).abs();
                }
            }
        }
    }
    let spatial = if k1 == 1 { &w2.shape()[2..] } else { &w1.shape()[2..] };
    let shape: Vec<usize> = [outputs, group_c].into_iter().chain(spatial.iter().copied()).collect();
    let has_bias = !matches!((&pair.inner.bias, &pair.outer.bias, pair.between), (Bias::Absent, Bias::Absent, None));
    let rounded = in_range(w1, &shape, &filter, &reach)?;
    let bias = match has_bias {
        true => Some(in_range(w1, &[outputs], &bias, &bias)?),
        false => None,
    };
    Some(Product { filter: rounded, bias })
}

/// The bias of the intermediate, a number a channel.
fn middle_bias(pair: &Pair<'_>, middle: usize) -> Vec<f64> {
    let mut bias = match pair.inner.bias {
        Bias::Constant(tensor) => tensor.to_f64_vec(),
        Bias::Absent | Bias::Computed => vec![0.0; middle],
    };
    let between = pair.between.and_then(|tensor| channel_vector(tensor, middle, pair.middle.len()));
    for (sum, element) in bias.iter_mut().zip(between.into_iter().flatten()) {
        *sum += element;
    }
    bias
}

/// The elements as the filter's type writes them, if all are finite and none becomes zero. `reach` is the sum of the
/// sizes of the products: an exact zero may come from products that cancel.
fn in_range(like: &Tensor, shape: &[usize], elements: &[f64], reach: &[f64]) -> Option<Tensor> {
    let rounded = Tensor::from_f64(like.dtype(), shape, elements, false).ok()?;
    let is_safe = rounded.to_f64_vec().iter().zip(elements).zip(reach).all(|((rounded, exact), reach)| {
        rounded.is_finite() && reach.is_finite() && (*rounded != 0.0 || *exact == 0.0)
    });
    is_safe.then_some(rounded)
}

/// Whether one step takes less time than two (§4.4).
fn is_profitable(pair: &Pair<'_>, op: &Conv, costs: &StepCosts) -> bool {
    let Some(times) = times(pair, op, costs) else { return false };
    times.fused < times.separate
}

/// Estimated nanoseconds of both forms.
struct Times {
    separate: f64,
    fused: f64,
}

fn times(pair: &Pair<'_>, op: &Conv, costs: &StepCosts) -> Option<Times> {
    let (w1, w2) = (pair.inner.filter?, pair.outer.filter?);
    let bytes = costs.element_bytes.map_or(w1.dtype().size_bytes() as f64, f64::from);
    // A batch that is not known yet has one row: it scales everything but the weights.
    let count = |dims: &[Dim]| -> Option<f64> {
        dims.iter()
            .enumerate()
            .map(|(axis, dim)| match dim.as_const() {
                Some(size) => Some(size as f64),
                None if axis == 0 => Some(1.0),
                None => None,
            })
            .product()
    };
    let step = |from: f64, to: f64, weights: f64, each: f64, is_depthwise: bool| {
        let per_ns = if is_depthwise { costs.depthwise_per_ns } else { costs.dense_per_ns };
        let busy_ns =
            f64::max(to * each / f64::from(per_ns), (from + to + weights) * bytes / f64::from(costs.bytes_per_ns));
        busy_ns + f64::from(costs.step_ns)
    };
    let (x, middle, output) = (count(pair.x)?, count(pair.middle)?, count(pair.output)?);
    let per_output = |filter: &Tensor| filter.shape()[1..].iter().product::<usize>() as f64;
    let is_depthwise = |filter: &Tensor, groups: usize| groups > 1 && filter.shape()[1] == 1;
    let inner = step(x, middle, w1.len() as f64, per_output(w1), is_depthwise(w1, pair.inner.op.groups));
    let outer = step(middle, output, w2.len() as f64, per_output(w2), is_depthwise(w2, pair.outer.op.groups));
    let taps = (per_output(w1) / w1.shape()[1] as f64) * (per_output(w2) / w2.shape()[1] as f64);
    let channels = (w1.shape()[1] * pair.inner.op.groups / op.groups) as f64;
    let weights = w2.shape()[0] as f64 * channels * taps;
    let fused = step(x, output, weights, channels * taps, op.groups > 1 && channels == 1.0);
    Some(Times { separate: inner + outer, fused })
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
#[path = "fold_conv_1x1_tests.rs"]
mod tests;
