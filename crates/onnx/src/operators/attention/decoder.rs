//! Attention operators of com.microsoft for decoders that are exported step by step: DecoderMaskedMultiHeadAttention,
//! DecoderMaskedSelfAttention and DecoderAttention. Caches grow by
//! concatenation, or are buffers with room left.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, UnaryFn};
use precast_tensor::{DType, Dim};

use super::cached::write_behind;
use super::microsoft::{MASK_FILTER, Projected, add_masks, attention_of, refuse, split_columns};
use super::{Heads, Outputs, Scoring, attend, default_scale, length_of, merge_heads, split_heads};
use crate::import::{Fault, NodeCx};

/// Where each beam of a batch finds its tokens in the rows of others is a matter of one kernel.
fn refuse_beams(cx: &NodeCx<'_, '_>, beams: [usize; 2]) -> Result<(), Fault> {
    if beams.into_iter().any(|position| cx.optional(position).is_some()) {
        return Err(Fault::Unsupported(
            "beams inside of a cache are not covered: export without cache_indirection".into(),
        ));
    }
    Ok(())
}

/// One new token a row: queries, keys and values [batch, 1, width] apart or in one, or keys and values of another sequence
/// with their heads apart. The mask has a number for every key.
pub(super) fn masked_multi_head_attention(cx: &mut NodeCx<'_, '_>) -> Outputs {
    refuse_beams(cx, [8, 9])?;
    let shares_buffers = cx.flag("past_present_share_buffer", false)?;
    if cx.flag("output_qk", false)? || cx.is_wanted(3) {
        return Err(Fault::Unsupported("the output 'qk' is not covered".to_string()));
    }
    let count = cx.int("num_heads", 0)?;
    let masked = cx.float("mask_filter_value", MASK_FILTER)?;
    let scale = cx.attributes().float("scale")?.filter(|&scale| scale != 0.0);
    let parts = match (cx.optional(1), cx.optional(2)) {
        (Some(key), Some(value)) => [cx.input(0)?, key, value],
        _ => split_columns(cx, cx.input(0)?, None)?,
    };
    let [q, k, v] = add_projection_bias(cx, parts)?;
    let is_cross = cx.rank(k) == 4;
    let (q, mut k, mut v) = (split_heads(cx, q, count)?, split_heads(cx, k, count)?, split_heads(cx, v, count)?);
    let scale = scale.map_or_else(|| default_scale(cx, q), Ok)?;
    let mut scoring = Scoring { scale, added: cx.optional(4), ..Scoring::plain(masked) };
    let past = cx.optional(5).zip(cx.optional(6)).filter(|_| !is_cross);
    if let (Some(past), true) = (past, shares_buffers) {
        return attend_in_buffers(cx, Heads { q, k, v }, past, scoring);
    }
    if let Some((keys, values)) = past {
        k = cx.concat(&[keys, k], 2)?;
        v = cx.concat(&[values, v], 2)?;
    }
    let heads = Heads { q, k, v };
    add_masks(cx, &mut scoring, heads, &Dim::ZERO, false, cx.optional(3))?;
    let y = attend(cx, heads, &scoring)?.y;
    Ok(vec![merge_heads(cx, y)?, k, v])
}

/// Attention of one new token a row behind buffers with room left, of which the same number of slots is filled in all rows:
/// the token is written behind them, and the buffers are given back.
fn attend_in_buffers(cx: &mut NodeCx<'_, '_>, new: Heads, past: (ValueId, ValueId), scoring: Scoring) -> Outputs {
    if cx.optional(3).is_some() || scoring.added.is_some() {
        return Err(Fault::Unsupported("a mask or a bias beside shared buffers is not covered".to_string()));
    }
    let [batch, _, _, _] = cx.dims_of(new.q, "the query")?;
    let filled = cx.reshape(cx.input(7)?, vec![Dim::ONE])?;
    let lengths = cx.broadcast(filled, vec![batch])?;
    let keys = write_behind(cx, past.0, new.k, lengths)?;
    let values = write_behind(cx, past.1, new.v, lengths)?;
    let slots = cx.iota(Dim::ZERO, length_of(cx, keys)?)?;
    let last = cx.cast(filled, DType::I64)?;
    let is_filled = cx.compare(CompareFn::Le, slots, last)?;
    let scoring = Scoring { allowed: Some(is_filled), masked: f64::NEG_INFINITY, ..scoring };
    let y = attend(cx, Heads { q: new.q, k: keys, v: values }, &scoring)?.y;
    Ok(vec![merge_heads(cx, y)?, keys, values])
}

/// Operands of rank 3 plus their parts of one bias vector; those with heads apart have theirs already.
fn add_projection_bias(cx: &mut NodeCx<'_, '_>, mut parts: [ValueId; 3]) -> Result<[ValueId; 3], Fault> {
    let Some(bias) = cx.optional(10) else { return Ok(parts) };
    let mut start = Dim::ZERO;
    for part in &mut parts {
        if cx.rank(*part) != 3 {
            continue;
        }
        let [_, _, width] = cx.dims_of(*part, "an operand")?;
        let own = cx.slice_axis(bias, 0, start.clone(), width.clone())?;
        *part = cx.binary(BinaryFn::Add, *part, own)?;
        start += width;
    }
    Ok(parts)
}

/// One new token a row, projected by one matrix as in Attention.
pub(super) fn masked_self_attention(cx: &mut NodeCx<'_, '_>) -> Outputs {
    // Shared buffers of this operator hold keys in an order of one vendor's kernels.
    refuse(cx, "past_present_share_buffer", 0)?;
    refuse_beams(cx, [7, 8])?;
    let product = cx.matmul(cx.input(0)?, cx.input(1)?)?;
    let values = cx.binary(BinaryFn::Add, product, cx.input(2)?)?;
    let projected = Projected { values, sizes: None, mask: cx.optional(3), past: cx.optional(4), bias: cx.optional(5) };
    attention_of(cx, &projected)
}

/// What a decoder says about one call of its attention. ONNX Runtime reads these when it runs; here they decide the form.
struct Stage {
    /// Keys and values are those of another sequence.
    is_cross: bool,
    /// They begin with the cached ones, or are them.
    has_past: bool,
    /// Some keys are padding.
    has_padding: bool,
}

impl Stage {
    fn read(cx: &NodeCx<'_, '_>) -> Result<Stage, Fault> {
        let flag = |position: usize, what: &str| -> Result<bool, Fault> {
            Ok(cx.require_int(cx.input(position)?, what)? != 0)
        };
        let (is_cross, uses_past) = (flag(8, "static_kv")?, flag(9, "use_past")?);
        let has_state = flag(10, "has_layer_state")?;
        Ok(Stage { is_cross, has_past: uses_past && has_state, has_padding: flag(11, "has_key_padding_mask")? })
    }
}

/// DecoderAttention: queries [length, batch, width] on the keys and values of themselves or of another sequence, with a cache.
pub(super) fn decoder_attention(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let stage = Stage::read(cx)?;
    let count = cx.int("num_heads", 0)?;
    let masked = cx.float("mask_filter_value", MASK_FILTER)?;
    let (query, bias) = (cx.input(0)?, cx.input(4)?);
    let [_, _, width] = cx.dims_of(query, "the query")?;
    let q = project(cx, query, 2, (bias, Dim::ZERO, width.clone()))?;
    let q = split_columns_of_time(cx, q, count)?;
    let past = cx.optional(6).zip(cx.optional(7)).filter(|_| stage.has_past);
    let (k, v) = match past {
        Some(past) if stage.is_cross => past,
        _ => {
            let source = if stage.is_cross { cx.input(1)? } else { query };
            let both = project(cx, source, 3, (bias, width.clone(), &width * &Dim::from(2)))?;
            let k = cx.slice_axis(both, 2, Dim::ZERO, width.clone())?;
            let v = cx.slice_axis(both, 2, width.clone(), width)?;
            let (k, v) = (split_columns_of_time(cx, k, count)?, split_columns_of_time(cx, v, count)?);
            match past {
                Some((keys, values)) => (cx.concat(&[keys, k], 2)?, cx.concat(&[values, v], 2)?),
                None => (k, v),
            }
        }
    };
    let heads = Heads { q, k, v };
    let mut scoring = Scoring { scale: default_scale(cx, q)?, ..Scoring::plain(masked) };
    if stage.has_padding {
        let padding = cx.input(5)?;
        let is_token = cx.unary(UnaryFn::Not, padding)?;
        scoring.allowed = Some(cx.unsqueeze(is_token, &[1, 2])?);
    }
    let y = attend(cx, heads, &scoring)?.y;
    let y = merge_heads(cx, y)?;
    Ok(vec![cx.transpose(y, vec![1, 0, 2])?, k, v])
}

/// x times the matrix at a position, plus a part of the bias from a start on.
fn project(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    weights: usize,
    (bias, start, size): (ValueId, Dim, Dim),
) -> Result<ValueId, Fault> {
    let product = cx.matmul(x, cx.input(weights)?)?;
    let bias = cx.slice_axis(bias, 0, start, size)?;
    cx.binary(BinaryFn::Add, product, bias)
}

/// [length, batch, heads * size] as [batch, heads, length, size].
fn split_columns_of_time(cx: &mut NodeCx<'_, '_>, x: ValueId, heads: i64) -> Result<ValueId, Fault> {
    let x = cx.transpose(x, vec![1, 0, 2])?;
    split_heads(cx, x, heads)
}
