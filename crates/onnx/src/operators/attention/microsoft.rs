//! Attention operators of com.microsoft: Attention, MultiHeadAttention and GroupQueryAttention. A cache grows by
//! concatenation: present keys are all past keys and then the new ones. Where the import has lengths of caches, the past is
//! a cache with room left (`cached.rs`), rows have pasts of their own lengths, and present keys are the new ones alone.
//! Where caches are shared, GroupQueryAttention has such a past too, and present keys are the cache with new ones in it.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CachedAttention, CompareFn, MatmulInt, RmsNorm, RotaryFn};
use precast_tensor::{DType, Dim, Tensor};

use super::cached::{Cache, add_new_positions, attend_behind_cache, write_behind};
use super::rotary::{Rotation, add_rotation};
use super::{
    Heads, Outputs, Scoring, add_positions, add_window, attend, both, default_scale, length_of, merge_heads,
    split_heads,
};
use crate::import::{Fault, NodeCx};
use crate::operators::matmul::zero_point;

/// Default score of masked keys.
pub(super) const MASK_FILTER: f64 = -10000.0;
/// Default of what keeps the roots in norms of queries and keys from 0.
const QK_NORM_EPSILON: f64 = 1e-6;

/// Queries, keys and values [batch, heads, length, size].
type Grouped = (ValueId, ValueId, ValueId);

/// Attention with one matrix for the projections of queries, keys and values.
pub(super) fn attention(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let mut projected = cx.matmul(cx.input(0)?, cx.input(1)?)?;
    if let Some(bias) = cx.optional(2) {
        projected = cx.binary(BinaryFn::Add, projected, bias)?;
    }
    let sizes = cx.sizes("qkv_hidden_sizes")?;
    let more = Projected { values: projected, sizes, mask: cx.optional(3), past: cx.optional(4), bias: cx.optional(5) };
    attention_of(cx, &more)
}

/// The same with an input and a matrix of 8 bits, whose product is one of integers.
pub(super) fn q_attention(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, weights) = (cx.input(0)?, cx.input(1)?);
    let (x_zero, weights_zero) = (zero_point(cx, 6, x)?, zero_point(cx, 7, weights)?);
    let sums = cx.add(MatmulInt {}, &[x, weights, x_zero, weights_zero])?;
    let x_scale = cx.input(3)?;
    let x_scale = cx.reshape(x_scale, Vec::new())?;
    let scale = cx.binary(BinaryFn::Mul, x_scale, cx.input(4)?)?;
    let sums = cx.cast(sums, cx.dtype(scale))?;
    let product = cx.binary(BinaryFn::Mul, sums, scale)?;
    let projected = cx.binary(BinaryFn::Add, product, cx.input(2)?)?;
    let more = Projected { values: projected, sizes: None, mask: cx.optional(5), past: cx.optional(8), bias: None };
    attention_of(cx, &more)
}

/// Queries, keys and values side by side, and what else attention may be given.
pub(super) struct Projected {
    /// [batch, length, width].
    pub values: ValueId,
    /// Widths of queries, keys and values; thirds where there are none.
    pub sizes: Option<Vec<usize>>,
    /// Which keys count.
    pub mask: Option<ValueId>,
    /// Keys and values [2, batch, heads, length, size] of earlier tokens.
    pub past: Option<ValueId>,
    /// Added to the scores.
    pub bias: Option<ValueId>,
}

pub(super) fn attention_of(cx: &mut NodeCx<'_, '_>, projected: &Projected) -> Outputs {
    let heads = cx.int("num_heads", 0)?;
    let is_causal = cx.flag("unidirectional", false)?;
    let masked = cx.float("mask_filter_value", MASK_FILTER)?;
    let scale = cx.attributes().float("scale")?;
    cx.int("rotary_embedding_dim", 0)?;
    refuse(cx, "do_rotary", 0)?;
    refuse(cx, "past_present_share_buffer", 0)?;
    let [q, k, v] = split_columns(cx, projected.values, projected.sizes.as_deref())?;
    let (q, mut k, mut v) = (split_heads(cx, q, heads)?, split_heads(cx, k, heads)?, split_heads(cx, v, heads)?);
    let scale = scale.map_or_else(|| default_scale(cx, q), Ok)?;
    let mut scoring = Scoring { scale, added: projected.bias, ..Scoring::plain(masked) };
    let past = match projected.past {
        Some(past) => Some(split_past(cx, past)?),
        None => None,
    };
    if let (Some(lengths), Some((keys, values)), true) = (cx.cache_lengths(), past, is_causal) {
        refuse_bias(projected.bias)?;
        let (cache, new) = (Cache { keys, values, lengths }, Heads { q, k, v });
        let y = attend_behind_cache(cx, new, &cache, 0, scoring)?;
        let y = merge_heads(cx, y)?;
        return Ok(vec![y, join_present(cx, k, v)?]);
    }
    let mut past_length = Dim::ZERO;
    if let Some((keys, values)) = past {
        past_length = length_of(cx, keys)?;
        k = cx.concat(&[keys, k], 2)?;
        v = cx.concat(&[values, v], 2)?;
    }
    let heads = Heads { q, k, v };
    add_masks(cx, &mut scoring, heads, &past_length, is_causal, projected.mask)?;
    let attended = attend(cx, heads, &scoring)?;
    let y = merge_heads(cx, attended.y)?;
    let present = if cx.is_wanted(1) { join_present(cx, k, v)? } else { y };
    Ok(vec![y, present])
}

/// Keys and values of [2, batch, heads, length, size].
fn split_past(cx: &mut NodeCx<'_, '_>, past: ValueId) -> Result<(ValueId, ValueId), Fault> {
    let mut half = |half: usize| {
        let part = cx.slice_axis(past, 0, Dim::from(half), Dim::ONE)?;
        cx.squeeze(part, &[0])
    };
    Ok((half(0)?, half(1)?))
}

/// Keys and values as [2, batch, heads, length, size].
fn join_present(cx: &mut NodeCx<'_, '_>, k: ValueId, v: ValueId) -> Result<ValueId, Fault> {
    let (k, v) = (cx.unsqueeze(k, &[0])?, cx.unsqueeze(v, &[0])?);
    cx.concat(&[k, v], 0)
}

/// A bias has a column for every key, and a cache with room left has none of fixed place.
fn refuse_bias(bias: Option<ValueId>) -> Result<(), Fault> {
    match bias {
        None => Ok(()),
        Some(_) => Err(Fault::Unsupported("a bias on the scores of a cache with room left is not covered".to_string())),
    }
}

/// Columns of a projection [batch, length, width] for queries, keys and values: thirds, or of the sizes given.
pub(super) fn split_columns(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    sizes: Option<&[usize]>,
) -> Result<[ValueId; 3], Fault> {
    let width = cx.dims(x).last().cloned().unwrap_or(Dim::ZERO);
    let third = width.floor_div(&Dim::from(3));
    let [a, b, c] = match sizes {
        None | Some([]) => [third.clone(), third.clone(), third],
        Some(&[a, b, c]) => [Dim::from(a), Dim::from(b), Dim::from(c)],
        Some(other) => {
            return Err(Fault::Invalid(format!(
                "attribute 'qkv_hidden_sizes' has {} entries; 3 were expected",
                other.len()
            )));
        }
    };
    let axis = cx.axis(-1, cx.rank(x))?;
    let start = &a + &b;
    Ok([
        cx.slice_axis(x, axis, Dim::ZERO, a.clone())?,
        cx.slice_axis(x, axis, a, b)?,
        cx.slice_axis(x, axis, start, c)?,
    ])
}

/// Attention of projected queries, keys and values.
pub(super) fn multi_head_attention(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let heads = cx.int("num_heads", 0)?;
    let is_causal = cx.flag("unidirectional", false)?;
    let masked = cx.float("mask_filter_value", MASK_FILTER)?;
    let scale = cx.attributes().float("scale")?.filter(|&scale| scale != 0.0);
    let query = cx.input(0)?;
    let (Some(key), Some(value)) = (cx.optional(1), cx.optional(2)) else {
        return Err(Fault::Unsupported("packed queries, keys and values are not covered".to_string()));
    };
    if cx.rank(query) != 3 || cx.optional(8).is_some() || cx.optional(9).is_some() {
        return Err(Fault::Unsupported("packed operands and shared buffers are not covered".to_string()));
    }
    let [query, key, value] = add_projection_bias(cx, [query, key, value])?;
    let q = split_heads(cx, query, heads)?;
    let (mut k, mut v) = (split_heads(cx, key, heads)?, split_heads(cx, value, heads)?);
    let mut past_length = Dim::ZERO;
    if let (Some(past_k), Some(past_v)) = (cx.optional(6), cx.optional(7)) {
        past_length = length_of(cx, past_k)?;
        k = cx.concat(&[past_k, k], 2)?;
        v = cx.concat(&[past_v, v], 2)?;
    }
    let mut scoring = Scoring {
        scale: scale.map_or_else(|| default_scale(cx, q), Ok)?,
        added: cx.optional(5),
        ..Scoring::plain(masked)
    };
    let heads = Heads { q, k, v };
    add_masks(cx, &mut scoring, heads, &past_length, is_causal, cx.optional(4))?;
    let attended = attend(cx, heads, &scoring)?;
    Ok(vec![merge_heads(cx, attended.y)?, k, v, attended.scores])
}

/// Queries, keys and values of rank 3 plus their parts of one bias vector.
fn add_projection_bias(cx: &mut NodeCx<'_, '_>, operands: [ValueId; 3]) -> Result<[ValueId; 3], Fault> {
    let Some(bias) = cx.optional(3) else {
        return Ok(operands);
    };
    let mut biased = operands;
    let mut start = Dim::ZERO;
    for operand in &mut biased {
        if cx.rank(*operand) != 3 {
            // Keys and values of a cross attention come with their bias.
            continue;
        }
        let width = cx.dims(*operand)[2].clone();
        let part = cx.slice_axis(bias, 0, start.clone(), width.clone())?;
        *operand = cx.binary(BinaryFn::Add, *operand, part)?;
        start += width;
    }
    Ok(biased)
}

/// Attention where several query heads share a key head, with the rotary embedding applied on the way.
pub(super) fn group_query_attention(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (heads, kv_heads) = (cx.int("num_heads", 0)?, cx.int("kv_num_heads", 0)?);
    let do_rotary = cx.flag("do_rotary", false)?;
    let rotation = Rotation { size: 0, is_interleaved: cx.flag("rotary_interleaved", false)? };
    let window = cx.int("local_window_size", -1)?;
    let softcap = cx.float("softcap", 0.0)?;
    let scale = cx.attributes().float("scale")?.filter(|&scale| scale != 0.0);
    let is_causal = cx.flag("causal", true)?;
    let norms = read_norms(cx)?;
    for (name, covered) in [("kv_cache_bit_width", 0), ("qk_output", 0)] {
        refuse(cx, name, covered)?;
    }
    let is_smooth = cx.int("smooth_softmax", 0)? > 0;
    let past = cx.optional(3).zip(cx.optional(4));
    match cx.cache_lengths().and(past) {
        // What a sliding cache keeps is what the ring of this layer keeps.
        Some(_) => drop(cx.int("sliding_window_cache", 0)?),
        None => refuse(cx, "sliding_window_cache", 0)?,
    }
    for name in ["k_quant_type", "v_quant_type"] {
        if cx.string(name, "NONE")? != "NONE" {
            return Err(Fault::Unsupported(format!("attribute '{name}': quantised caches are not covered")));
        }
    }
    if cx.optional(12).is_some() || cx.optional(13).is_some() {
        return Err(Fault::Unsupported("scales of a cache are not covered".to_string()));
    }
    let sink = match cx.optional(11) {
        Some(sink) => Some(sink),
        None if is_smooth => Some(cx.scalar(DType::F32, 0.0)?),
        None => None,
    };
    let grouped = read_grouped(cx, heads, kv_heads)?;
    let (q, k, v) = add_norms(cx, grouped, norms.as_ref())?;
    let queries = length_of(cx, q)?;
    let scale = scale.map_or_else(|| default_scale(cx, q), Ok)?;
    let cache = match (past, cx.cache_lengths()) {
        (Some((keys, values)), Some(lengths)) => Some(Cache { keys, values, lengths }),
        (Some((keys, values)), None) if cx.shares_caches() => {
            Some(Cache { keys, values, lengths: add_filled(cx, &queries)? })
        }
        _ => None,
    };
    if let Some(cache) = cache {
        refuse_bias(cx.optional(10))?;
        if !is_causal {
            return Err(Fault::Unsupported("causal=0 with a cache is not covered".to_string()));
        }
        if cx.keeps_attention(cx.dtype(q)) {
            let rotary = match (do_rotary, rotation.is_interleaved) {
                (false, _) => RotaryFn::None,
                (true, false) => RotaryFn::Half,
                (true, true) => RotaryFn::Interleaved,
            };
            let op = CachedAttention {
                heads: heads as usize,
                kv_heads: kv_heads as usize,
                scale,
                softcap,
                window: usize::try_from(window).unwrap_or(0),
                rotary,
                positions: do_rotary && cx.optional(9).is_some(),
                sinks: sink.is_some(),
                paged: false,
            };
            return add_cached_attention(cx, op, norms.is_some().then_some((q, k, v)), &cache, sink);
        }
        let (q, k) = if do_rotary {
            let positions = match cx.optional(9) {
                Some(positions) => cx.cast(positions, DType::I64)?,
                None => add_new_positions(cx, cache.lengths, &queries)?,
            };
            (rotate(cx, q, positions, &rotation)?, rotate(cx, k, positions, &rotation)?)
        } else {
            (q, k)
        };
        let scoring = Scoring { scale, softcap, sink, ..Scoring::plain(f64::NEG_INFINITY) };
        let y = attend_behind_cache(cx, Heads { q, k, v }, &cache, window, scoring)?;
        let y = merge_heads(cx, y)?;
        if cx.shares_caches() {
            let keys = write_behind(cx, cache.keys, k, cache.lengths)?;
            return Ok(vec![y, keys, write_behind(cx, cache.values, v, cache.lengths)?]);
        }
        return Ok(vec![y, k, v]);
    }
    // `seqlens_k` counts the filled keys of a row, less one; a prompt that is padded at its end starts at 0.
    let lengths = cx.input(5)?;
    let one = cx.tensor(Tensor::scalar(1i64));
    let lengths = cx.cast(lengths, DType::I64)?;
    let lengths = cx.reshape(lengths, vec![cx.dims(q)[0].clone()])?;
    let lengths = cx.binary(BinaryFn::Add, lengths, one)?;
    let (q, mut k) = if do_rotary {
        let positions = match cx.optional(9) {
            Some(positions) => cx.cast(positions, DType::I64)?,
            None => {
                let count = cx.dim_value(queries.clone())?;
                let before = cx.binary(BinaryFn::Sub, lengths, count)?;
                let before = cx.binary_scalar(BinaryFn::Max, before, 0.0)?;
                let before = cx.unsqueeze(before, &[1])?;
                let steps = cx.iota(Dim::ZERO, queries)?;
                cx.binary(BinaryFn::Add, before, steps)?
            }
        };
        (rotate(cx, q, positions, &rotation)?, rotate(cx, k, positions, &rotation)?)
    } else {
        (q, k)
    };
    let mut v = v;
    let mut past_length = Dim::ZERO;
    if let (Some(past_k), Some(past_v)) = (cx.optional(3), cx.optional(4)) {
        past_length = length_of(cx, past_k)?;
        k = cx.concat(&[past_k, k], 2)?;
        v = cx.concat(&[past_v, v], 2)?;
    }
    check_total(cx, &length_of(cx, k)?)?;
    let heads = Heads { q, k, v };
    let (rows, columns) = add_positions(cx, heads, &past_length, None)?;
    let mut allowed = None;
    if is_causal {
        allowed = Some(cx.compare(CompareFn::Le, columns, rows)?);
    }
    // The window counts the query itself.
    allowed = add_window(cx, allowed, rows, columns, (if window > 0 { window - 1 } else { -1 }, -1))?;
    let scoring =
        Scoring { scale, softcap, allowed, added: cx.optional(10), sink, ..Scoring::plain(f64::NEG_INFINITY) };
    let attended = attend(cx, heads, &scoring)?;
    Ok(vec![merge_heads(cx, attended.y)?, k, v])
}

/// Tokens of each row before the new ones, i32 [rows]: `seqlens_k` counts all filled keys of a row, less one.
fn add_filled(cx: &mut NodeCx<'_, '_>, new: &Dim) -> Result<ValueId, Fault> {
    let rows = cx.dims(cx.input(0)?)[0].clone();
    let lengths = cx.cast(cx.input(5)?, DType::I64)?;
    let lengths = cx.reshape(lengths, vec![rows])?;
    let count = cx.dim_value(new - &Dim::ONE)?;
    let before = cx.binary(BinaryFn::Sub, lengths, count)?;
    let before = cx.binary_scalar(BinaryFn::Max, before, 0.0)?;
    cx.cast(before, DType::I32)
}

/// Weights of the norms of queries and keys, one element for each of a head, and what keeps roots from 0.
struct Norms {
    query: ValueId,
    key: ValueId,
    epsilon: f64,
}

fn read_norms(cx: &NodeCx<'_, '_>) -> Result<Option<Norms>, Fault> {
    let epsilon = cx.float("qk_norm_epsilon", QK_NORM_EPSILON)?;
    match (cx.optional(14), cx.optional(15)) {
        (None, None) => Ok(None),
        (Some(query), Some(key)) => Ok(Some(Norms { query, key, epsilon })),
        (Some(_), None) | (None, Some(_)) => {
            Err(Fault::Unsupported("a norm of queries or keys alone is not covered".to_string()))
        }
    }
}

/// Queries and keys with the norm of each head.
fn add_norms(cx: &mut NodeCx<'_, '_>, (q, k, v): Grouped, norms: Option<&Norms>) -> Result<Grouped, Fault> {
    let Some(norms) = norms else { return Ok((q, k, v)) };
    let op = || RmsNorm { axis: 3, epsilon: norms.epsilon };
    Ok((cx.add(op(), &[q, norms.query])?, cx.add(op(), &[k, norms.key])?, v))
}

/// Attention behind a cache as one node. Its projections stand side by side: as they came, or those given.
fn add_cached_attention(
    cx: &mut NodeCx<'_, '_>,
    op: CachedAttention,
    changed: Option<Grouped>,
    cache: &Cache,
    sink: Option<ValueId>,
) -> Outputs {
    let joint = match (changed, cx.optional(1), cx.optional(2)) {
        (Some((q, k, v)), _, _) => {
            let parts = [merge_heads(cx, q)?, merge_heads(cx, k)?, merge_heads(cx, v)?];
            cx.concat(&parts, 2)?
        }
        (None, Some(key), Some(value)) => cx.concat(&[cx.input(0)?, key, value], 2)?,
        (None, _, _) => cx.input(0)?,
    };
    let mut inputs = vec![joint, cache.keys, cache.values, cache.lengths];
    if op.rotary != RotaryFn::None {
        inputs.extend([cx.input(7)?, cx.input(8)?]);
    }
    if let Some(positions) = cx.optional(9).filter(|_| op.positions) {
        inputs.push(cx.cast(positions, DType::I64)?);
    }
    if let Some(sink) = sink {
        inputs.push(cx.broadcast(sink, vec![Dim::from(op.heads)])?);
    }
    cx.add_node(op, &inputs)
}

/// A known total length that is less than all keys means that the cache is a buffer with room left.
fn check_total(cx: &NodeCx<'_, '_>, keys: &Dim) -> Result<(), Fault> {
    let total = cx.optional(6).and_then(|total| cx.content(total)).and_then(|content| content.first().cloned());
    match total {
        Some(total) if total.is_const() && keys.is_const() && total != *keys => {
            Err(Fault::Unsupported(format!("a cache of {keys} keys for a sequence of {total} is not covered")))
        }
        _ => Ok(()),
    }
}

/// Queries, keys and values with their heads apart; keys and values may stand behind the queries in one operand.
pub(super) fn read_grouped(cx: &mut NodeCx<'_, '_>, heads: i64, kv_heads: i64) -> Result<Grouped, Fault> {
    let query = cx.input(0)?;
    if heads <= 0 || kv_heads <= 0 {
        return Err(Fault::Invalid(format!("{heads} query heads and {kv_heads} key heads; 1 or more was expected")));
    }
    let (query, key, value) = match (cx.optional(1), cx.optional(2)) {
        (Some(key), Some(value)) => (query, key, value),
        _ => {
            let width = cx.dims(query).last().cloned().unwrap_or(Dim::ZERO);
            let size = cx.number(&width, "the width of packed queries, keys and values")?;
            let head = size / (heads + 2 * kv_heads) as usize;
            let sizes = [head * heads as usize, head * kv_heads as usize, head * kv_heads as usize];
            let [query, key, value] = split_columns(cx, query, Some(&sizes))?;
            (query, key, value)
        }
    };
    Ok((split_heads(cx, query, heads)?, split_heads(cx, key, kv_heads)?, split_heads(cx, value, kv_heads)?))
}

/// x [batch, heads, length, size] turned by the tables of the node at positions [batch, length].
fn rotate(cx: &mut NodeCx<'_, '_>, x: ValueId, positions: ValueId, rotation: &Rotation) -> Result<ValueId, Fault> {
    let (cos, sin) = (cx.input(7)?, cx.input(8)?);
    let half = cx.dims(cos).last().cloned().unwrap_or(Dim::ZERO);
    let size = 2 * cx.number(&half, "half of what is turned of a head")?;
    // Filler behind the tokens of a row may lie beyond the last position that the tables have.
    let positions = match cx.dim(cos, 0)?.as_const() {
        Some(count) if cx.cache_lengths().is_some() => {
            cx.binary_scalar(BinaryFn::Min, positions, (count - 1) as f64)?
        }
        _ => positions,
    };
    let (cos, sin) = (cx.gather(cos, positions, 0)?, cx.gather(sin, positions, 0)?);
    let (cos, sin) = (cx.unsqueeze(cos, &[1])?, cx.unsqueeze(sin, &[1])?);
    add_rotation(cx, x, cos, sin, &Rotation { size, is_interleaved: rotation.is_interleaved })
}

/// The causal mask, and a mask of integers: 1 where a key may be seen, or the length of each row.
pub(super) fn add_masks(
    cx: &mut NodeCx<'_, '_>,
    scoring: &mut Scoring,
    heads: Heads,
    past: &Dim,
    is_causal: bool,
    mask: Option<ValueId>,
) -> Result<(), Fault> {
    if is_causal {
        let (rows, columns) = add_positions(cx, heads, past, None)?;
        scoring.allowed = Some(cx.compare(CompareFn::Le, columns, rows)?);
    }
    let Some(mask) = mask else { return Ok(()) };
    let zero = cx.scalar(cx.dtype(mask), 0.0)?;
    let batch = cx.dims(heads.q)[0].clone();
    let is_seen = match &cx.dims(mask)[..] {
        [count] if *count == batch => {
            let lengths = super::beside_batch(cx, mask)?;
            let columns = cx.iota(Dim::ZERO, length_of(cx, heads.k)?)?;
            cx.compare(CompareFn::Lt, columns, lengths)?
        }
        [_, _] => {
            let mask = cx.unsqueeze(mask, &[1, 2])?;
            cx.compare(CompareFn::Gt, mask, zero)?
        }
        [_, _, _] => {
            let mask = cx.unsqueeze(mask, &[1])?;
            cx.compare(CompareFn::Gt, mask, zero)?
        }
        dims => {
            return Err(Fault::Unsupported(format!("a mask of rank {} in this form is not covered", dims.len())));
        }
    };
    let allowed = both(cx, scoring.allowed, is_seen)?;
    scoring.allowed = Some(allowed);
    // Beside a bias, the score of masked keys is added to it, not put in its place.
    if let Some(added) = scoring.added {
        let never = cx.scalar(cx.dtype(added), scoring.masked)?;
        let zero = cx.scalar(cx.dtype(added), 0.0)?;
        let lowered = cx.select(allowed, zero, never)?;
        scoring.added = Some(cx.binary(BinaryFn::Add, added, lowered)?);
        scoring.allowed = None;
    }
    Ok(())
}

/// An attribute that must have the value that is covered.
pub(super) fn refuse(cx: &NodeCx<'_, '_>, name: &str, covered: i64) -> Result<(), Fault> {
    let found = cx.int(name, covered)?;
    if found == covered {
        return Ok(());
    }
    Err(Fault::Unsupported(format!("{name}={found} is not covered")))
}
