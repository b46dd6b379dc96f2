//! Normalisations of com.microsoft: layer and root mean square norms with a residual, with embeddings, group norm with
//! an activation, softmax with a bias.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, GroupNorm, ReduceFn, RmsNorm, UnaryFn};
use precast_tensor::{DType, Dim, Tensor};

use super::{EPSILON, Outputs, add_layer_norm, layer_statistics, read_groups, read_stash_type};
use crate::import::{Fault, NodeCx};

/// Default of `epsilon` in the operators that add a residual first.
const SKIP_EPSILON: f64 = 1e-12f32 as f64;

pub(super) fn simplified_layer_normalization(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, scale) = (cx.input(0)?, cx.input(1)?);
    let axis = cx.axis(cx.int("axis", -1)?, cx.rank(x))?;
    let epsilon = cx.float("epsilon", EPSILON)?;
    read_stash_type(cx)?;
    let y = add_rms_norm(cx, x, scale, axis, epsilon)?;
    let inverse = if cx.is_wanted(1) { rms_inverse(cx, x, axis, epsilon)? } else { y };
    Ok(vec![y, inverse])
}

/// Layer norm of input + skip + bias; the sum is the fourth output.
pub(super) fn skip_layer_normalization(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let epsilon = cx.float("epsilon", SKIP_EPSILON)?;
    let (gamma, beta) = (cx.input(2)?, cx.optional(3));
    let sum = add_skip(cx, 4)?;
    let axis = last_axis(cx, sum)?;
    let y = add_layer_norm(cx, sum, gamma, beta, axis, epsilon)?;
    let (mean, inverse) = layer_statistics(cx, sum, axis, epsilon, [1, 2])?;
    Ok(vec![y, mean.unwrap_or(y), inverse.unwrap_or(y), sum])
}

/// Root mean square norm of input + skip + bias; the sum is the fourth output.
pub(super) fn skip_simplified_layer_normalization(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let epsilon = cx.float("epsilon", SKIP_EPSILON)?;
    let gamma = cx.input(2)?;
    let sum = add_skip(cx, 3)?;
    let axis = last_axis(cx, sum)?;
    let y = add_rms_norm(cx, sum, gamma, axis, epsilon)?;
    if cx.is_wanted(1) {
        return Err(Fault::Unsupported("the output 'mean' has no meaning without a mean".to_string()));
    }
    let inverse = if cx.is_wanted(2) { rms_inverse(cx, sum, axis, epsilon)? } else { y };
    Ok(vec![y, y, inverse, sum])
}

fn add_skip(cx: &mut NodeCx<'_, '_>, bias: usize) -> Result<ValueId, Fault> {
    let (x, skip) = (cx.input(0)?, cx.input(1)?);
    let mut sum = cx.binary(BinaryFn::Add, x, skip)?;
    if let Some(bias) = cx.optional(bias) {
        sum = cx.binary(BinaryFn::Add, sum, bias)?;
    }
    Ok(sum)
}

fn last_axis(cx: &NodeCx<'_, '_>, x: ValueId) -> Result<usize, Fault> {
    cx.axis(-1, cx.rank(x))
}

fn add_rms_norm(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    scale: ValueId,
    axis: usize,
    epsilon: f64,
) -> Result<ValueId, Fault> {
    let scale = cx.cast(scale, cx.dtype(x))?;
    cx.add(RmsNorm { axis, epsilon }, &[x, scale])
}

/// 1 / sqrt(mean of squares + epsilon) over the axes from `axis` on.
fn rms_inverse(cx: &mut NodeCx<'_, '_>, x: ValueId, axis: usize, epsilon: f64) -> Result<ValueId, Fault> {
    let x = cx.cast(x, DType::F32)?;
    let squared = cx.binary(BinaryFn::Mul, x, x)?;
    let axes: Vec<usize> = (axis..cx.rank(x)).collect();
    let mean = cx.reduce(ReduceFn::Mean, squared, axes, true)?;
    let shifted = cx.binary_scalar(BinaryFn::Add, mean, epsilon)?;
    cx.unary(UnaryFn::Rsqrt, shifted)
}

/// Layer norm of the sum of word, position and segment embeddings; also the length of each row of the mask and the sum.
pub(super) fn embed_layer_normalization(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let epsilon = cx.float("epsilon", SKIP_EPSILON)?;
    cx.int("mask_index_type", 0)?;
    let (ids, words, positions) = (cx.input(0)?, cx.input(2)?, cx.input(3)?);
    let (gamma, beta) = (cx.input(5)?, cx.optional(6));
    let [batch, length] = &cx.dims(ids)[..] else {
        return Err(Fault::Invalid(format!("input_ids has rank {}; 2 was expected", cx.rank(ids))));
    };
    let mut sum = cx.gather(words, ids, 0)?;
    let places = match cx.optional(8) {
        Some(position_ids) => cx.gather(positions, position_ids, 0)?,
        None => cx.slice_axis(positions, 0, Dim::ZERO, length.clone())?,
    };
    sum = cx.binary(BinaryFn::Add, sum, places)?;
    if let (Some(segment_ids), Some(segments)) = (cx.optional(1), cx.optional(4)) {
        let segments = cx.gather(segments, segment_ids, 0)?;
        sum = cx.binary(BinaryFn::Add, sum, segments)?;
    }
    let y = add_layer_norm(cx, sum, gamma, beta, 2, epsilon)?;
    let lengths = match cx.optional(7) {
        Some(mask) => cx.reduce(ReduceFn::Sum, mask, vec![1], false)?,
        None => {
            let zero = cx.tensor(Tensor::scalar(0i32));
            cx.broadcast(zero, vec![batch.clone()])?
        }
    };
    Ok(vec![y, lengths, sum])
}

/// Group norm of x in either layout of channels, then silu where asked for.
pub(super) fn group_norm(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, scale, bias) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let (groups, epsilon) = read_groups(cx, "groups")?;
    let has_activation = cx.flag("activation", false)?;
    let channels_last = cx.flag("channels_last", true)?;
    let rank = cx.rank(x);
    if rank < 3 {
        return Err(Fault::Invalid(format!("the input has rank {rank}; 3 or more was expected")));
    }
    let first: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let last: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    let input = if channels_last { cx.transpose(x, first)? } else { x };
    let (scale, bias) = (cx.cast(scale, cx.dtype(x))?, cx.cast(bias, cx.dtype(x))?);
    let mut y = cx.add(GroupNorm { groups, epsilon }, &[input, scale, bias])?;
    if has_activation {
        y = cx.unary_with(UnaryFn::Silu, 1.0, 0.0, y)?;
    }
    Ok(vec![if channels_last { cx.transpose(y, last)? } else { y }])
}

/// softmax(x + bias) over the axes from `axis` on; the bias broadcasts over leading or over inner batch axes.
pub(super) fn bias_softmax(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, bias) = (cx.input(0)?, cx.input(1)?);
    let dims = cx.dims(x);
    let axis = cx.axis(cx.int("axis", 1)?, dims.len())?;
    // Both ways of broadcasting are NumPy's for a bias of the input's rank, which is how the operator is written.
    cx.int("is_inner_broadcast", 0)?;
    let sum = cx.binary(BinaryFn::Add, x, bias)?;
    let matrix = cx.reshape(sum, vec![dims[..axis].iter().product(), dims[axis..].iter().product()])?;
    let y = cx.softmax(matrix, 1)?;
    Ok(vec![cx.reshape(y, dims)?])
}
