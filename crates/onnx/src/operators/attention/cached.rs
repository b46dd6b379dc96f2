//! Attention whose past is a cache with room left: a ring of slots of which each row has filled its own number. Token p of a
//! row lies in slot p modulo the slots; queries see the cached tokens and then those of the same run up to themselves.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, GatherElements};
use precast_tensor::{DType, Dim};

use super::{Heads, Scoring, attend, beside_batch, both, length_of};
use crate::import::{Fault, NodeCx};

/// What a node of attention reads beside its new keys and values.
pub(super) struct Cache {
    /// Keys [rows, heads, slots, size].
    pub keys: ValueId,
    /// Values [rows, heads, slots, size].
    pub values: ValueId,
    /// Tokens that are cached, i32 [rows].
    pub lengths: ValueId,
}

/// Positions [rows, length] of the new tokens.
pub(super) fn add_new_positions(cx: &mut NodeCx<'_, '_>, lengths: ValueId, length: &Dim) -> Result<ValueId, Fault> {
    let rows = cx.dims(lengths)[0].clone();
    let before = cx.cast(lengths, DType::I64)?;
    let before = cx.reshape(before, vec![rows, Dim::ONE])?;
    let steps = cx.iota(Dim::ZERO, length.clone())?;
    cx.binary(BinaryFn::Add, before, steps)
}

/// A cache [rows, heads, slots, size] with the keys or values of new tokens written behind the filled slots.
pub(super) fn write_behind(
    cx: &mut NodeCx<'_, '_>,
    cached: ValueId,
    new: ValueId,
    lengths: ValueId,
) -> Result<ValueId, Fault> {
    let (slots, length) = (length_of(cx, cached)?, length_of(cx, new)?);
    let ends = beside_batch(cx, lengths)?;
    let places = cx.iota(Dim::ZERO, slots)?;
    let places = cx.unsqueeze(places, &[1])?;
    // Which of the new tokens belongs into each slot: [rows, 1, slots, 1].
    let tokens = cx.binary(BinaryFn::Sub, places, ends)?;
    let (zero, count) = (cx.scalar(DType::I64, 0.0)?, cx.dim_value(length.clone())?);
    let is_behind = cx.compare(CompareFn::Ge, tokens, zero)?;
    let is_before = cx.compare(CompareFn::Lt, tokens, count)?;
    let is_new = both(cx, Some(is_behind), is_before)?;
    let written = match length.as_const() == Some(1) {
        true => new,
        false => {
            let last = cx.binary_scalar(BinaryFn::Sub, count, 1.0)?;
            let tokens = cx.binary_scalar(BinaryFn::Max, tokens, 0.0)?;
            let tokens = cx.binary(BinaryFn::Min, tokens, last)?;
            let tokens = cx.broadcast(tokens, cx.dims(cached).to_vec())?;
            cx.add(GatherElements { axis: 2 }, &[new, tokens])?
        }
    };
    cx.select(is_new, written, cached)
}

/// Attention of new queries, keys and values behind a cache. `window` counts the query itself; 0 or less is no limit.
pub(super) fn attend_behind_cache(
    cx: &mut NodeCx<'_, '_>,
    new: Heads,
    cache: &Cache,
    window: i64,
    scoring: Scoring,
) -> Result<ValueId, Fault> {
    let allowed = add_allowed(cx, new, cache, window)?;
    let (keys, values) = clear_free_slots(cx, cache, window)?;
    let keys = cx.concat(&[keys, new.k], 2)?;
    let values = cx.concat(&[values, new.v], 2)?;
    let scoring = Scoring { allowed: Some(allowed), ..scoring };
    Ok(attend(cx, Heads { q: new.q, k: keys, v: values }, &scoring)?.y)
}

/// Cached keys and values with zeros in slots that no query sees. What lies there may be no number, and no mask hides that: a
/// score of none stays none whatever is added to it, and a value of none does with a weight of nothing.
fn clear_free_slots(cx: &mut NodeCx<'_, '_>, cache: &Cache, window: i64) -> Result<(ValueId, ValueId), Fault> {
    let (slots, rows) = (length_of(cx, cache.keys)?, cx.dims(cache.keys)[0].clone());
    let ends = beside_batch(cx, cache.lengths)?;
    let is_filled = match window > 0 {
        true => {
            let first_query = cx.scalar(DType::I64, 0.0)?;
            add_filled_ring(cx, ends, first_query, &slots, window)?
        }
        false => {
            let places = cx.iota(Dim::ZERO, slots.clone())?;
            cx.compare(CompareFn::Lt, places, ends)?
        }
    };
    let is_filled = cx.reshape(is_filled, vec![rows, Dim::ONE, slots, Dim::ONE])?;
    let zero = cx.scalar(cx.dtype(cache.keys), 0.0)?;
    Ok((cx.select(is_filled, cache.keys, zero)?, cx.select(is_filled, cache.values, zero)?))
}

/// Which slots of the cache, and behind them which new tokens, each query may see: [rows, 1, length, slots + length].
fn add_allowed(cx: &mut NodeCx<'_, '_>, new: Heads, cache: &Cache, window: i64) -> Result<ValueId, Fault> {
    let (length, slots) = (length_of(cx, new.q)?, length_of(cx, cache.keys)?);
    let rows = cx.dims(new.q)[0].clone();
    let steps = cx.iota(Dim::ZERO, length.clone())?;
    let queries = cx.unsqueeze(steps, &[1])?;
    let ends = beside_batch(cx, cache.lengths)?;

    let mut is_seen = cx.compare(CompareFn::Le, steps, queries)?;
    if window > 0 {
        let first = cx.binary_scalar(BinaryFn::Sub, queries, window as f64)?;
        let is_near = cx.compare(CompareFn::Gt, steps, first)?;
        is_seen = both(cx, Some(is_seen), is_near)?;
    }
    let is_filled = match window > 0 {
        true => add_filled_ring(cx, ends, queries, &slots, window)?,
        false => {
            let places = cx.iota(Dim::ZERO, slots.clone())?;
            cx.compare(CompareFn::Lt, places, ends)?
        }
    };
    let is_seen = cx.broadcast(is_seen, vec![rows.clone(), Dim::ONE, length.clone(), length.clone()])?;
    let is_filled = cx.broadcast(is_filled, vec![rows, Dim::ONE, length, slots])?;
    cx.concat(&[is_filled, is_seen], 3)
}

/// Which slots hold a token within the window. A slot holds the last token that it was written for.
fn add_filled_ring(
    cx: &mut NodeCx<'_, '_>,
    ends: ValueId,
    queries: ValueId,
    slots: &Dim,
    window: i64,
) -> Result<ValueId, Fault> {
    let places = cx.iota(Dim::ZERO, slots.clone())?;
    let count = cx.dim_value(slots.clone())?;
    let last = cx.binary_scalar(BinaryFn::Sub, ends, 1.0)?;
    let behind = cx.binary(BinaryFn::Sub, last, places)?;
    let age = cx.binary(BinaryFn::Mod, behind, count)?;
    let tokens = cx.binary(BinaryFn::Sub, last, age)?;
    let positions = cx.binary(BinaryFn::Add, ends, queries)?;
    let first = cx.binary_scalar(BinaryFn::Sub, positions, window as f64)?;
    let is_near = cx.compare(CompareFn::Gt, tokens, first)?;
    let zero = cx.scalar(DType::I64, 0.0)?;
    let is_token = cx.compare(CompareFn::Ge, tokens, zero)?;
    both(cx, Some(is_token), is_near)
}
