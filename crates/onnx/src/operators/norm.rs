//! Normalisations of ai.onnx: batch, instance, group, layer, root mean square, local response, softmax and the Lp ones.
//! Those of com.microsoft are in a file of their own.

mod microsoft;

use precast_ir::ValueId;
use precast_ir::op::{
    ArgFn, ArgReduce, BinaryFn, CompareFn, GroupNorm, LayerNorm, Lrn, ReduceFn, RmsNorm, Softmax, UnaryFn,
};
use precast_tensor::{DType, Dim};

use crate::import::{Fault, Import, NodeCx};

#[rustfmt::skip]
pub(super) const IMPORTS: &[Import] = &[
    Import { domain: "", name: "BatchNormalization", since: 7, tier: 1, function: batch_normalization },
    Import { domain: "", name: "GroupNormalization", since: 18, tier: 1, function: group_normalization_18 },
    Import { domain: "", name: "GroupNormalization", since: 21, tier: 1, function: group_normalization_21 },
    Import { domain: "", name: "Hardmax", since: 1, tier: 2, function: hardmax_1 },
    Import { domain: "", name: "Hardmax", since: 13, tier: 2, function: hardmax_13 },
    Import { domain: "", name: "InstanceNormalization", since: 6, tier: 1, function: instance_normalization },
    Import { domain: "", name: "LRN", since: 1, tier: 1, function: lrn },
    // ONNX has it from 17 on; before that ONNX Runtime wrote the same operator into ai.onnx.
    Import { domain: "", name: "LayerNormalization", since: 1, tier: 1, function: layer_normalization },
    Import { domain: "", name: "LogSoftmax", since: 1, tier: 1, function: log_softmax_1 },
    Import { domain: "", name: "LogSoftmax", since: 13, tier: 1, function: log_softmax_13 },
    Import { domain: "", name: "LpNormalization", since: 1, tier: 2, function: lp_normalization },
    Import { domain: "", name: "MeanVarianceNormalization", since: 9, tier: 2, function: mean_variance_normalization },
    Import { domain: "", name: "RMSNormalization", since: 23, tier: 1, function: rms_normalization },
    Import { domain: "", name: "SimplifiedLayerNormalization", since: 1, tier: 1, function: microsoft::simplified_layer_normalization },
    Import { domain: "", name: "Softmax", since: 1, tier: 1, function: softmax_1 },
    Import { domain: "", name: "Softmax", since: 13, tier: 1, function: softmax_13 },
    Import { domain: "com.microsoft", name: "BiasSoftmax", since: 1, tier: 1, function: microsoft::bias_softmax },
    Import { domain: "com.microsoft", name: "EmbedLayerNormalization", since: 1, tier: 1, function: microsoft::embed_layer_normalization },
    Import { domain: "com.microsoft", name: "GatedRMSNorm", since: 1, tier: 2, function: microsoft::gated_rms_norm },
    Import { domain: "com.microsoft", name: "GroupNorm", since: 1, tier: 1, function: microsoft::group_norm },
    Import { domain: "com.microsoft", name: "QEmbedLayerNormalization", since: 1, tier: 1, function: microsoft::q_embed_layer_normalization },
    Import { domain: "com.microsoft", name: "SimplifiedLayerNormalization", since: 1, tier: 1, function: microsoft::simplified_layer_normalization },
    Import { domain: "com.microsoft", name: "SkipGroupNorm", since: 1, tier: 1, function: microsoft::skip_group_norm },
    Import { domain: "com.microsoft", name: "SkipLayerNormalization", since: 1, tier: 1, function: microsoft::skip_layer_normalization },
    Import { domain: "com.microsoft", name: "SkipSimplifiedLayerNormalization", since: 1, tier: 1, function: microsoft::skip_simplified_layer_normalization },
];

type Outputs = Result<Vec<ValueId>, Fault>;

/// Default of most `epsilon` attributes: a float attribute, so 1e-5 as f32 has it.
const EPSILON: f64 = 1e-5f32 as f64;

/// x * a + b with a = scale / sqrt(var + epsilon) and b = bias - mean * a, which fold where they are constant.
pub(super) fn batch_normalization(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, scale, bias, mean, variance) = (cx.input(0)?, cx.input(1)?, cx.input(2)?, cx.input(3)?, cx.input(4)?);
    let epsilon = cx.float("epsilon", EPSILON)?;
    // Momentum only matters while training.
    cx.float("momentum", 0.9)?;
    let is_spatial = cx.flag("spatial", true)?;
    if cx.flag("training_mode", false)? {
        return Err(Fault::Unsupported("training_mode=1 is not covered: export the model for inference".to_string()));
    }
    let rank = cx.rank(x);
    if rank < 2 {
        return Err(Fault::Invalid(format!("the input has rank {rank}; 2 or more was expected")));
    }
    let shifted = cx.binary_scalar(BinaryFn::Add, variance, epsilon)?;
    let deviation = cx.unary(UnaryFn::Sqrt, shifted)?;
    let scale = cx.cast(scale, cx.dtype(deviation))?;
    let factor = cx.binary(BinaryFn::Div, scale, deviation)?;
    let moved = cx.binary(BinaryFn::Mul, mean, factor)?;
    let bias = cx.cast(bias, cx.dtype(moved))?;
    let offset = cx.binary(BinaryFn::Sub, bias, moved)?;
    // Without `spatial` every position of a channel has statistics of its own, in the shape of x without its batch.
    let channels = if is_spatial { rank - 2 } else { 0 };
    let factor = channel_shaped(cx, factor, channels, cx.dtype(x))?;
    let offset = channel_shaped(cx, offset, channels, cx.dtype(x))?;
    let scaled = cx.binary(BinaryFn::Mul, x, factor)?;
    let y = cx.binary(BinaryFn::Add, scaled, offset)?;
    // Old files name the training outputs too; for inference the statistics stay what they are.
    Ok(vec![y, mean, variance, mean, variance])
}

/// A vector a channel with `trailing` axes of size 1 after it, to broadcast over the spatial axes.
fn channel_shaped(cx: &mut NodeCx<'_, '_>, x: ValueId, trailing: usize, dtype: DType) -> Result<ValueId, Fault> {
    let mut dims = cx.dims(x);
    dims.extend(vec![Dim::ONE; trailing]);
    let shaped = cx.reshape(x, dims)?;
    cx.cast(shaped, dtype)
}

fn instance_normalization(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, scale, bias) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let epsilon = cx.float("epsilon", EPSILON)?;
    let groups = channel_count(cx, x)?;
    Ok(vec![cx.add(GroupNorm { groups, epsilon }, &[x, scale, bias])?])
}

fn channel_count(cx: &NodeCx<'_, '_>, x: ValueId) -> Result<usize, Fault> {
    match cx.dims(x).get(1) {
        Some(channels) => cx.number(channels, "the number of channels"),
        None => Err(Fault::Invalid(format!("the input has rank {}; 3 or more was expected", cx.rank(x)))),
    }
}

/// Opset 18 has one scale and one bias a group.
fn group_normalization_18(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, scale, bias) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let (groups, epsilon) = read_groups(cx, "num_groups")?;
    let channels = channel_count(cx, x)?;
    let scale = group_to_channels(cx, scale, groups, channels)?;
    let bias = group_to_channels(cx, bias, groups, channels)?;
    Ok(vec![cx.add(GroupNorm { groups, epsilon }, &[x, scale, bias])?])
}

fn group_to_channels(cx: &mut NodeCx<'_, '_>, x: ValueId, groups: usize, channels: usize) -> Result<ValueId, Fault> {
    let column = cx.unsqueeze(x, &[1])?;
    let spread = cx.broadcast(column, vec![Dim::from(groups), Dim::from(channels / groups)])?;
    cx.reshape(spread, vec![Dim::from(channels)])
}

/// From opset 21 on they are one a channel.
fn group_normalization_21(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, scale, bias) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let (groups, epsilon) = read_groups(cx, "num_groups")?;
    read_stash_type(cx)?;
    Ok(vec![cx.add(GroupNorm { groups, epsilon }, &[x, scale, bias])?])
}

fn read_groups(cx: &NodeCx<'_, '_>, name: &str) -> Result<(usize, f64), Fault> {
    let groups = cx.int(name, 0)?;
    let groups = usize::try_from(groups)
        .ok()
        .filter(|&groups| groups > 0)
        .ok_or_else(|| Fault::Invalid(format!("attribute '{name}' is {groups}; 1 or more was expected")))?;
    Ok((groups, cx.float("epsilon", EPSILON)?))
}

/// The element type of statistics: our ops compute them in f32 or wider, which is what the default asks for.
fn read_stash_type(cx: &NodeCx<'_, '_>) -> Result<(), Fault> {
    cx.int("stash_type", 1).map(|_| ())
}

fn layer_normalization(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, scale) = (cx.input(0)?, cx.input(1)?);
    let axis = cx.axis(cx.int("axis", -1)?, cx.rank(x))?;
    let epsilon = cx.float("epsilon", EPSILON)?;
    read_stash_type(cx)?;
    let bias = cx.optional(2);
    let y = add_layer_norm(cx, x, scale, bias, axis, epsilon)?;
    let (mean, inverse) = layer_statistics(cx, x, axis, epsilon, [1, 2])?;
    Ok(vec![y, mean.unwrap_or(y), inverse.unwrap_or(y)])
}

fn add_layer_norm(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    scale: ValueId,
    bias: Option<ValueId>,
    axis: usize,
    epsilon: f64,
) -> Result<ValueId, Fault> {
    let mut inputs = vec![x, cx.cast(scale, cx.dtype(x))?];
    if let Some(bias) = bias {
        inputs.push(cx.cast(bias, cx.dtype(x))?);
    }
    cx.add(LayerNorm { axis, epsilon }, &inputs)
}

/// Mean and 1 / sqrt(variance + epsilon) over the axes from `axis` on, for the outputs at `positions` that are wanted.
fn layer_statistics(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    axis: usize,
    epsilon: f64,
    positions: [usize; 2],
) -> Result<(Option<ValueId>, Option<ValueId>), Fault> {
    if !positions.iter().any(|&position| cx.is_wanted(position)) {
        return Ok((None, None));
    }
    let x = cx.cast(x, DType::F32)?;
    let axes: Vec<usize> = (axis..cx.rank(x)).collect();
    let mean = cx.reduce(ReduceFn::Mean, x, axes.clone(), true)?;
    let centred = cx.binary(BinaryFn::Sub, x, mean)?;
    let squared = cx.binary(BinaryFn::Mul, centred, centred)?;
    let variance = cx.reduce(ReduceFn::Mean, squared, axes, true)?;
    let shifted = cx.binary_scalar(BinaryFn::Add, variance, epsilon)?;
    Ok((Some(mean), Some(cx.unary(UnaryFn::Rsqrt, shifted)?)))
}

fn rms_normalization(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, scale) = (cx.input(0)?, cx.input(1)?);
    let axis = cx.axis(cx.int("axis", -1)?, cx.rank(x))?;
    let epsilon = cx.float("epsilon", EPSILON)?;
    read_stash_type(cx)?;
    let scale = cx.cast(scale, cx.dtype(x))?;
    Ok(vec![cx.add(RmsNorm { axis, epsilon }, &[x, scale])?])
}

fn lrn(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let size = cx.int("size", 0)?;
    let size = usize::try_from(size)
        .ok()
        .filter(|&size| size > 0)
        .ok_or_else(|| Fault::Invalid(format!("attribute 'size' is {size}; 1 or more was expected")))?;
    let alpha = cx.float("alpha", f64::from(1e-4f32))?;
    let (beta, bias) = (cx.float("beta", 0.75)?, cx.float("bias", 1.0)?);
    Ok(vec![cx.add(Lrn { size, alpha, beta, bias }, &[x])?])
}

fn softmax_1(cx: &mut NodeCx<'_, '_>) -> Outputs {
    flattened(cx, |cx, x, axis| cx.add(Softmax { axis, log: false }, &[x]))
}

fn softmax_13(cx: &mut NodeCx<'_, '_>) -> Outputs {
    along_axis(cx, |cx, x, axis| cx.add(Softmax { axis, log: false }, &[x]))
}

fn log_softmax_1(cx: &mut NodeCx<'_, '_>) -> Outputs {
    flattened(cx, |cx, x, axis| cx.add(Softmax { axis, log: true }, &[x]))
}

fn log_softmax_13(cx: &mut NodeCx<'_, '_>) -> Outputs {
    along_axis(cx, |cx, x, axis| cx.add(Softmax { axis, log: true }, &[x]))
}

fn hardmax_1(cx: &mut NodeCx<'_, '_>) -> Outputs {
    flattened(cx, add_hardmax)
}

fn hardmax_13(cx: &mut NodeCx<'_, '_>) -> Outputs {
    along_axis(cx, add_hardmax)
}

/// From opset 13 on the function runs along one axis.
fn along_axis(
    cx: &mut NodeCx<'_, '_>,
    add: impl FnOnce(&mut NodeCx<'_, '_>, ValueId, usize) -> Result<ValueId, Fault>,
) -> Outputs {
    let x = cx.input(0)?;
    let axis = cx.axis(cx.int("axis", -1)?, cx.rank(x))?;
    Ok(vec![add(cx, x, axis)?])
}

/// Before opset 13 the input is a matrix cut at `axis`: the function runs along all axes from there on as if they were one.
fn flattened(
    cx: &mut NodeCx<'_, '_>,
    add: impl FnOnce(&mut NodeCx<'_, '_>, ValueId, usize) -> Result<ValueId, Fault>,
) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let axis = cx.int("axis", 1)?;
    // The cut may lie after the last axis.
    let axis = if axis == dims.len() as i64 { dims.len() } else { cx.axis(axis, dims.len())? };
    if axis < dims.len() && dims[axis + 1..].iter().all(|dim| *dim == Dim::ONE) {
        return Ok(vec![add(cx, x, axis)?]);
    }
    let matrix = cx.reshape(x, vec![dims[..axis].iter().product(), dims[axis..].iter().product()])?;
    let y = add(cx, matrix, 1)?;
    Ok(vec![cx.reshape(y, dims)?])
}

/// 1 at the first largest element along an axis, else 0.
fn add_hardmax(cx: &mut NodeCx<'_, '_>, x: ValueId, axis: usize) -> Result<ValueId, Fault> {
    let dims = cx.dims(x);
    let largest = cx.add(ArgReduce { func: ArgFn::Max, axis, keep_dims: true, last: false }, &[x])?;
    let positions = cx.iota(Dim::ZERO, dims[axis].clone())?;
    let mut shape = vec![Dim::ONE; dims.len()];
    shape[axis] = dims[axis].clone();
    let positions = cx.reshape(positions, shape)?;
    let is_largest = cx.compare(CompareFn::Eq, positions, largest)?;
    cx.cast(is_largest, cx.dtype(x))
}

fn lp_normalization(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let axis = cx.axis(cx.int("axis", -1)?, cx.rank(x))?;
    let func = match cx.int("p", 2)? {
        1 => ReduceFn::L1,
        2 => ReduceFn::L2,
        p => return Err(Fault::Invalid(format!("attribute 'p' is {p}; 1 or 2 was expected"))),
    };
    let norm = cx.reduce(func, x, vec![axis], true)?;
    // A vector of zeros stays one.
    let zero = cx.scalar(cx.dtype(x), 0.0)?;
    let one = cx.scalar(cx.dtype(x), 1.0)?;
    let is_zero = cx.compare(CompareFn::Eq, norm, zero)?;
    let divisor = cx.select(is_zero, one, norm)?;
    Ok(vec![cx.binary(BinaryFn::Div, x, divisor)?])
}

/// What ONNX adds to the standard deviation before dividing by it.
const DEVIATION_OFFSET: f64 = 1e-9;

fn mean_variance_normalization(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let axes = cx.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let axes = cx.axes(&axes, cx.rank(x))?;
    let mean = cx.reduce(ReduceFn::Mean, x, axes.clone(), true)?;
    let centred = cx.binary(BinaryFn::Sub, x, mean)?;
    let squared = cx.binary(BinaryFn::Mul, centred, centred)?;
    let variance = cx.reduce(ReduceFn::Mean, squared, axes, true)?;
    let deviation = cx.unary(UnaryFn::Sqrt, variance)?;
    let deviation = cx.binary_scalar(BinaryFn::Add, deviation, DEVIATION_OFFSET)?;
    Ok(vec![cx.binary(BinaryFn::Div, centred, deviation)?])
}
