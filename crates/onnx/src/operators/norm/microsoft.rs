//! Normalisations of com.microsoft: layer and root mean square norms with a residual, with embeddings, group norm with
//! an activation, softmax with a bias.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, Dequantize, GroupNorm, ReduceFn, RmsNorm, UnaryFn};
use precast_tensor::{DType, Dim, Tensor};

use super::{EPSILON, Outputs, add_layer_norm, layer_statistics, read_groups, read_stash_type};
use crate::import::{Fault, NodeCx};
use crate::operators::channels::{channels_first, channels_last};

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

/// Tables that embeddings are looked up in, and how their sum is scaled and moved.
struct Embeddings<'a> {
    /// Gives rows of words, positions or segments: the table at a position at ids.
    lookup: &'a dyn Fn(&mut NodeCx<'_, '_>, usize, ValueId) -> Result<ValueId, Fault>,
    gamma: ValueId,
    beta: Option<ValueId>,
    /// Where the ids of positions are, if there may be any.
    position_ids: Option<usize>,
}

/// Layer norm of the sum of word, position and segment embeddings; also the length of each row of the mask and the sum.
pub(super) fn embed_layer_normalization(cx: &mut NodeCx<'_, '_>) -> Outputs {
    cx.int("mask_index_type", 0)?;
    let (gamma, beta) = (cx.input(5)?, cx.optional(6));
    let lookup = |cx: &mut NodeCx<'_, '_>, table: usize, ids: ValueId| {
        let table = cx.input(table)?;
        cx.gather(table, ids, 0)
    };
    add_embeddings(cx, &Embeddings { lookup: &lookup, gamma, beta, position_ids: Some(8) })
}

/// The same with every table in 8 bits: scales are inputs 8 to 12, zero points 13 to 17, in the order of the tables.
pub(super) fn q_embed_layer_normalization(cx: &mut NodeCx<'_, '_>) -> Outputs {
    const TABLES: usize = 2;
    let dequantized = |cx: &mut NodeCx<'_, '_>, x: ValueId, table: usize| {
        let (scale, zero) = (cx.input(8 + table - TABLES)?, cx.input(13 + table - TABLES)?);
        let (scale, zero) = (cx.reshape(scale, Vec::new())?, cx.reshape(zero, Vec::new())?);
        cx.add(Dequantize { to: DType::F32, axis: 0, block: 0 }, &[x, scale, zero])
    };
    let (gamma, beta) = (cx.input(5)?, cx.input(6)?);
    let (gamma, beta) = (dequantized(cx, gamma, 5)?, dequantized(cx, beta, 6)?);
    let lookup = |cx: &mut NodeCx<'_, '_>, table: usize, ids: ValueId| {
        let whole = cx.input(table)?;
        let rows = cx.gather(whole, ids, 0)?;
        dequantized(cx, rows, table)
    };
    add_embeddings(cx, &Embeddings { lookup: &lookup, gamma, beta: Some(beta), position_ids: None })
}

fn add_embeddings(cx: &mut NodeCx<'_, '_>, embeddings: &Embeddings<'_>) -> Outputs {
    let epsilon = cx.float("epsilon", SKIP_EPSILON)?;
    let ids = cx.input(0)?;
    let [batch, length] = &cx.dims(ids)[..] else {
        return Err(Fault::Invalid(format!("input_ids has rank {}; 2 was expected", cx.rank(ids))));
    };
    let mut sum = (embeddings.lookup)(cx, 2, ids)?;
    let position_ids = match embeddings.position_ids.and_then(|position| cx.optional(position)) {
        Some(position_ids) => position_ids,
        None => cx.iota(Dim::ZERO, length.clone())?,
    };
    let places = (embeddings.lookup)(cx, 3, position_ids)?;
    sum = cx.binary(BinaryFn::Add, sum, places)?;
    if let (Some(segment_ids), Some(_)) = (cx.optional(1), cx.optional(4)) {
        let segments = (embeddings.lookup)(cx, 4, segment_ids)?;
        sum = cx.binary(BinaryFn::Add, sum, segments)?;
    }
    let y = add_layer_norm(cx, sum, embeddings.gamma, embeddings.beta, 2, epsilon)?;
    let lengths = match cx.optional(7) {
        Some(mask) => cx.reduce(ReduceFn::Sum, mask, vec![1], false)?,
        None => {
            let zero = cx.tensor(Tensor::scalar(0i32));
            cx.broadcast(zero, vec![batch.clone()])?
        }
    };
    Ok(vec![y, lengths, sum])
}

/// Root mean square norm of every group of as many elements as there are scales, times silu of a gate; in f32.
pub(super) fn gated_rms_norm(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, scale, gate) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let epsilon = cx.float("epsilon", EPSILON)?;
    let (dtype, dims) = (cx.dtype(x), cx.dims(x));
    let width = cx.number(&cx.ty(scale).element_count(), "the number of scales")?;
    let groups = cx.divide_exact(&dims.iter().product(), width.max(1) as i64, "the number of elements")?;
    let x = cx.reshape(x, vec![groups, Dim::from(width)])?;
    let (x, scale, gate) = (cx.cast(x, DType::F32)?, cx.cast(scale, DType::F32)?, cx.cast(gate, DType::F32)?);
    let normed = cx.add(RmsNorm { axis: 1, epsilon }, &[x, scale])?;
    let normed = cx.reshape(normed, dims)?;
    let opened = cx.unary_with(UnaryFn::Silu, 1.0, 0.0, gate)?;
    let y = cx.binary(BinaryFn::Mul, normed, opened)?;
    Ok(vec![cx.cast(y, dtype)?])
}

/// Group norm of x in either layout of channels, then silu where asked for.
pub(super) fn group_norm(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    Ok(vec![add_group_norm(cx, x)?])
}

/// Group norm of x + skip + bias, and that sum. The skip may be one number a channel.
pub(super) fn skip_group_norm(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, mut skip, mut bias) = (cx.input(0)?, cx.input(3)?, cx.optional(4));
    let spatial = cx.rank(x).saturating_sub(2);
    let is_last = cx.flag("channels_last", true)?;
    if cx.rank(skip) == 2 {
        let first = if is_last { 1 } else { 2 };
        skip = cx.unsqueeze(skip, &(first..first + spatial).collect::<Vec<usize>>())?;
    }
    if let Some(vector) = bias.filter(|_| !is_last) {
        bias = Some(cx.unsqueeze(vector, &(1..1 + spatial).collect::<Vec<usize>>())?);
    }
    let mut sum = cx.binary(BinaryFn::Add, x, skip)?;
    if let Some(bias) = bias {
        sum = cx.binary(BinaryFn::Add, sum, bias)?;
    }
    Ok(vec![add_group_norm(cx, sum)?, sum])
}

fn add_group_norm(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId, Fault> {
    let (scale, bias) = (cx.input(1)?, cx.input(2)?);
    let (groups, epsilon) = read_groups(cx, "groups")?;
    let has_activation = cx.flag("activation", false)?;
    let is_last = cx.flag("channels_last", true)?;
    let input = if is_last { channels_first(cx, x)? } else { x };
    let (scale, bias) = (cx.cast(scale, cx.dtype(x))?, cx.cast(bias, cx.dtype(x))?);
    let mut y = cx.add(GroupNorm { groups, epsilon }, &[input, scale, bias])?;
    if has_activation {
        y = cx.unary_with(UnaryFn::Silu, 1.0, 0.0, y)?;
    }
    if is_last { channels_last(cx, y) } else { Ok(y) }
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
