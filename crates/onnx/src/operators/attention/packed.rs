//! Attention of com.microsoft over tokens of several sequences that stand one after the other without padding, and the
//! operators that take padding out and put it back. Which sequence a token is of is a matter of values, so all tokens look at
//! all others, and a mask keeps sequences apart: no size depends on how the tokens are spread.

use precast_ir::ValueId;
use precast_ir::op::{
    BinaryFn, CompareFn, Cumulate, CumulateFn, NonZero, ReduceFn, ScatterElements, ScatterFn, ScatterNd,
};
use precast_tensor::{DType, Dim};

use super::{Heads, Outputs, Scoring, attend, default_scale};
use crate::import::{Fault, NodeCx};

/// Where each of the packed tokens belongs, as i64 [tokens].
pub(super) struct Places {
    /// The sequence, counted from 0.
    pub sequence: ValueId,
    /// The place in the sequence.
    pub position: ValueId,
}

/// The places of tokens of which the first sequence has those before the second of `bounds` [sequences + 1], and so on.
pub(super) fn add_places(cx: &mut NodeCx<'_, '_>, bounds: ValueId, tokens: &Dim) -> Result<Places, Fault> {
    let [count] = cx.dims_of(bounds, "the cumulative lengths")?;
    let bounds = cx.cast(bounds, DType::I64)?;
    let numbers = cx.iota(Dim::ZERO, tokens.clone())?;
    let column = cx.unsqueeze(numbers, &[1])?;
    let ends = cx.slice_axis(bounds, 0, Dim::ONE, &count - &Dim::ONE)?;
    // A token is of the sequence before which as many others end as begin before the token.
    let is_behind = cx.compare(CompareFn::Ge, column, ends)?;
    let is_behind = cx.cast(is_behind, DType::I64)?;
    let sequence = cx.reduce(ReduceFn::Sum, is_behind, vec![1], false)?;
    let last = cx.dim_value(&count - &Dim::from(2))?;
    let sequence = cx.binary(BinaryFn::Min, sequence, last)?;
    let starts = cx.gather(bounds, sequence, 0)?;
    let position = cx.binary(BinaryFn::Sub, numbers, starts)?;
    Ok(Places { sequence, position })
}

/// PackedAttention: the projection of Attention, then attention among the tokens of each sequence.
pub(super) fn packed_attention(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let product = cx.matmul(cx.input(0)?, cx.input(1)?)?;
    let projected = cx.binary(BinaryFn::Add, product, cx.input(2)?)?;
    let sizes = cx.sizes("qkv_hidden_sizes")?;
    let parts = super::microsoft::split_columns(cx, projected, sizes.as_deref())?;
    let (bounds, bias) = (cx.input(4)?, cx.optional(5));
    attend_packed(cx, parts, bounds, bias)
}

/// PackedMultiHeadAttention: queries, keys and values [tokens, width], or all of them as [tokens, heads, 3, size].
pub(super) fn packed_multi_head_attention(cx: &mut NodeCx<'_, '_>) -> Outputs {
    // What may not be seen gets no weight at all.
    cx.float("mask_filter_value", 0.0)?;
    let query = cx.input(0)?;
    let mut parts = match (cx.optional(1), cx.optional(2)) {
        (Some(key), Some(value)) => [query, key, value],
        _ => {
            let [tokens, heads, _, size] = cx.dims_of(query, "queries with their keys and values")?;
            let mut part = |at: usize| {
                let part = cx.slice_axis(query, 2, Dim::from(at), Dim::ONE)?;
                cx.reshape(part, vec![tokens.clone(), &heads * &size])
            };
            [part(0)?, part(1)?, part(2)?]
        }
    };
    if let Some(bias) = cx.optional(3) {
        let mut start = Dim::ZERO;
        for part in &mut parts {
            let [_, width] = cx.dims_of(*part, "an operand")?;
            let own = cx.slice_axis(bias, 0, start.clone(), width.clone())?;
            *part = cx.binary(BinaryFn::Add, *part, own)?;
            start += width;
        }
    }
    let (bounds, bias) = (cx.input(5)?, cx.optional(6));
    attend_packed(cx, parts, bounds, bias)
}

/// Attention of queries, keys and values [tokens, width] among the tokens of each sequence.
fn attend_packed(cx: &mut NodeCx<'_, '_>, parts: [ValueId; 3], bounds: ValueId, bias: Option<ValueId>) -> Outputs {
    let count = cx.int("num_heads", 0)?;
    let scale = cx.attributes().float("scale")?.filter(|&scale| scale != 0.0);
    let [tokens, _] = cx.dims_of(parts[0], "the queries")?;
    let [_, width] = cx.dims_of(parts[2], "the values")?;
    let places = add_places(cx, bounds, &tokens)?;
    let mut heads = Vec::new();
    for part in parts {
        heads.push(split_tokens(cx, part, count)?);
    }
    let heads = Heads { q: heads[0], k: heads[1], v: heads[2] };
    let column = cx.unsqueeze(places.sequence, &[1])?;
    let allowed = cx.compare(CompareFn::Eq, column, places.sequence)?;
    let added = match bias {
        Some(bias) => Some(spread_bias(cx, bias, &places)?),
        None => None,
    };
    let scoring = Scoring {
        scale: scale.map_or_else(|| default_scale(cx, heads.q), Ok)?,
        allowed: Some(allowed),
        added,
        ..Scoring::plain(f64::NEG_INFINITY)
    };
    let y = attend(cx, heads, &scoring)?.y;
    let y = super::merge_heads(cx, y)?;
    Ok(vec![cx.reshape(y, vec![tokens, width])?])
}

/// [tokens, heads * size] as [1, heads, tokens, size].
pub(super) fn split_tokens(cx: &mut NodeCx<'_, '_>, x: ValueId, heads: i64) -> Result<ValueId, Fault> {
    let batch = cx.unsqueeze(x, &[0])?;
    super::split_heads(cx, batch, heads)
}

/// A bias [sequences or 1, heads or 1, length, length] as [1, heads or 1, tokens, tokens]: for tokens of one sequence what it
/// has for their places, for others anything.
fn spread_bias(cx: &mut NodeCx<'_, '_>, bias: ValueId, places: &Places) -> Result<ValueId, Fault> {
    let [sequences, heads, length, _] = cx.dims_of(bias, "the bias")?;
    let moved = cx.transpose(bias, vec![0, 2, 3, 1])?;
    let table = cx.reshape(moved, vec![&(&sequences * &length) * &length, heads])?;
    let size = cx.dim_value(length)?;
    let mut rows = places.position;
    if sequences != Dim::ONE {
        let before = cx.binary(BinaryFn::Mul, places.sequence, size)?;
        rows = cx.binary(BinaryFn::Add, before, rows)?;
    }
    let rows = cx.binary(BinaryFn::Mul, rows, size)?;
    let rows = cx.unsqueeze(rows, &[1])?;
    let indices = cx.binary(BinaryFn::Add, rows, places.position)?;
    let pairs = cx.gather(table, indices, 0)?;
    let pairs = cx.transpose(pairs, vec![2, 0, 1])?;
    cx.unsqueeze(pairs, &[0])
}

/// RemovePadding: the tokens of x [batch, length, width] that count, as many of each row as is said; then the offsets of all
/// tokens, those that count first, the cumulative lengths, and the largest length.
pub(super) fn remove_padding(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let [batch, length, width] = cx.dims_of(x, "the input")?;
    let counts = cx.cast(cx.input(1)?, DType::I64)?;
    let counts = cx.reshape(counts, vec![batch.clone(), Dim::ONE])?;
    let places = cx.iota(Dim::ZERO, length.clone())?;
    let is_token = cx.compare(CompareFn::Lt, places, counts)?;
    let all = &batch * &length;
    let is_token = cx.reshape(is_token, vec![all.clone()])?;
    let found = cx.fresh_dim("tokens", all.as_const());
    let found = cx.add(NonZero { count: found }, &[is_token])?;
    let offsets = cx.squeeze(found, &[0])?;
    let flat = cx.reshape(x, vec![all.clone(), width])?;
    let tokens = cx.gather(flat, offsets, 0)?;
    let order = order_of_tokens(cx, is_token, &all)?;
    let order = cx.reshape(order, vec![batch.clone(), length])?;
    let counts = cx.reshape(counts, vec![batch])?;
    let op = Cumulate { func: CumulateFn::Sum, axis: 0, exclusive: false, reverse: false };
    let sums = cx.add(op, &[counts])?;
    let zero = cx.int_vector(&[0])?;
    let bounds = cx.concat(&[zero, sums], 0)?;
    let largest = cx.reduce(ReduceFn::Max, counts, vec![0], true)?;
    Ok(vec![tokens, cx.cast(order, DType::I32)?, cx.cast(bounds, DType::I32)?, cx.cast(largest, DType::I32)?])
}

/// The offsets of tokens that count and then those of the others, each in their order: i64 [all].
fn order_of_tokens(cx: &mut NodeCx<'_, '_>, is_token: ValueId, all: &Dim) -> Result<ValueId, Fault> {
    let before = |cx: &mut NodeCx<'_, '_>, counted: ValueId| {
        let op = Cumulate { func: CumulateFn::Sum, axis: 0, exclusive: true, reverse: false };
        cx.add(op, &[counted])
    };
    let counted = cx.cast(is_token, DType::I64)?;
    let among_tokens = before(cx, counted)?;
    let total = cx.reduce(ReduceFn::Sum, counted, vec![0], true)?;
    let one = cx.scalar(DType::I64, 1.0)?;
    let others = cx.binary(BinaryFn::Sub, one, counted)?;
    let among_others = before(cx, others)?;
    let among_others = cx.binary(BinaryFn::Add, among_others, total)?;
    let rank = cx.select(is_token, among_tokens, among_others)?;
    let numbers = cx.iota(Dim::ZERO, all.clone())?;
    cx.add(ScatterElements { axis: 0, func: ScatterFn::Replace }, &[numbers, rank, numbers])
}

/// RestorePadding: zeros [batch, length, width] with the tokens [tokens, width] at the first so many of the offsets.
pub(super) fn restore_padding(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, offsets) = (cx.input(0)?, cx.input(1)?);
    Ok(vec![spread_tokens(cx, x, offsets)?])
}

/// Tokens [tokens, width] at their offsets of [batch, length], among zeros.
pub(super) fn spread_tokens(cx: &mut NodeCx<'_, '_>, x: ValueId, offsets: ValueId) -> Result<ValueId, Fault> {
    let [tokens, width] = cx.dims_of(x, "the input")?;
    let [batch, length] = cx.dims_of(offsets, "the offsets of tokens")?;
    let all = &batch * &length;
    let offsets = cx.cast(offsets, DType::I64)?;
    let offsets = cx.reshape(offsets, vec![all.clone()])?;
    let offsets = cx.slice_axis(offsets, 0, Dim::ZERO, tokens)?;
    let offsets = cx.unsqueeze(offsets, &[1])?;
    let zero = cx.scalar(cx.dtype(x), 0.0)?;
    let zeros = cx.broadcast(zero, vec![all, width.clone()])?;
    let spread = cx.add(ScatterNd { func: ScatterFn::Replace }, &[zeros, offsets, x])?;
    cx.reshape(spread, vec![batch, length, width])
}
