//! PagedAttention of com.microsoft: tokens of several sequences without padding, whose keys and values lie in blocks of a
//! cache that a table assigns to each sequence. New keys and values are written first, then queries read all blocks of all
//! sequences under a mask that leaves each its own.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, RmsNorm, ScatterFn, ScatterNd};
use precast_tensor::{DType, Dim};

use super::packed::{Places, add_places, split_tokens};
use super::rotary::rotate_where_asked;
use super::{Heads, Outputs, Scoring, attend, both, default_scale};
use crate::import::{Fault, NodeCx};

/// Default of what keeps the roots in norms of queries and keys from 0.
const QK_NORM_EPSILON: f64 = 1e-6;

/// The blocks that keys or values lie in: [blocks, slots of each, heads, size].
struct Blocks {
    blocks: Dim,
    slots: Dim,
    heads: Dim,
    size: Dim,
}

impl Blocks {
    fn all_slots(&self) -> Dim {
        &self.blocks * &self.slots
    }
}

pub(super) fn paged_attention(cx: &mut NodeCx<'_, '_>) -> Outputs {
    refuse_other_caches(cx)?;
    let (count, kv_count) = (cx.int("num_heads", 0)?, cx.int("kv_num_heads", 0)?);
    let [q, k, v] = read_parts(cx, count, kv_count)?;
    let [tokens, width] = cx.dims_of(q, "the queries")?;
    let (key_cache, value_cache) = (cx.input(3)?, cx.input(4)?);
    let [blocks, slots, heads, size] = cx.dims_of(key_cache, "the cache of keys")?;
    let blocks = Blocks { blocks, slots, heads, size };
    let places = add_places(cx, cx.input(5)?, &tokens)?;
    let past = cx.cast(cx.input(6)?, DType::I64)?;
    let before = cx.gather(past, places.sequence, 0)?;
    let positions = cx.binary(BinaryFn::Add, before, places.position)?;
    let (mut q, mut k) = (split_tokens(cx, q, count)?, split_tokens(cx, k, kv_count)?);
    (q, k) = add_norms(cx, q, k)?;
    let row_of_positions = cx.unsqueeze(positions, &[0])?;
    [q, k] = rotate_where_asked(cx, [q, k], row_of_positions, 8)?;
    let v = split_tokens(cx, v, kv_count)?;
    let table = cx.cast(cx.input(7)?, DType::I64)?;
    let written = match cx.optional(10) {
        Some(slots) => cx.cast(slots, DType::I64)?,
        None => slots_of(cx, table, places.sequence, positions, &blocks)?,
    };
    let keys = write_slots(cx, key_cache, k, written, &blocks)?;
    let values = write_slots(cx, value_cache, v, written, &blocks)?;
    let read = all_slots_of(cx, table, &blocks)?;
    let heads = Heads { q, k: read_slots(cx, keys, read)?, v: read_slots(cx, values, read)? };
    let allowed = add_allowed(cx, table, &places, positions, &blocks)?;
    let scoring = Scoring {
        scale: cx
            .attributes()
            .float("scale")?
            .filter(|&scale| scale != 0.0)
            .map_or_else(|| default_scale(cx, q), Ok)?,
        softcap: cx.float("softcap", 0.0)?,
        allowed: Some(allowed),
        sink: cx.optional(11),
        ..Scoring::plain(f64::NEG_INFINITY)
    };
    let y = attend(cx, heads, &scoring)?.y;
    let y = super::merge_heads(cx, y)?;
    let cached = vec![blocks.blocks.clone(), blocks.slots.clone(), blocks.heads.clone(), blocks.size.clone()];
    let (keys, values) = (cx.reshape(keys, cached.clone())?, cx.reshape(values, cached)?);
    Ok(vec![cx.reshape(y, vec![tokens, width])?, keys, values])
}

/// Caches of fewer bits, or of keys and values in one, have another form.
fn refuse_other_caches(cx: &NodeCx<'_, '_>) -> Result<(), Fault> {
    let refuse = |what: &str| Err(Fault::Unsupported(format!("{what} is not covered")));
    for name in ["k_quant_type", "v_quant_type"] {
        if cx.string(name, "NONE")? != "NONE" {
            return refuse("a quantised cache");
        }
    }
    for name in ["k_cache_dtype", "v_cache_dtype"] {
        let found = cx.string(name, "")?;
        if !["", "float16", "bfloat16"].contains(&found.as_str()) {
            return refuse(&format!("a cache of {found}"));
        }
    }
    if cx.string("kv_cache_layout", "SEPARATE")? != "SEPARATE" || cx.int("v_head_size", 0)? != 0 {
        return refuse("one cache for keys and values");
    }
    match cx.int("rotary_offset", 0)? {
        0 => Ok(()),
        offset => refuse(&format!("rotary_offset={offset}")),
    }
}

/// Queries, keys and values [tokens, width]; keys and values may stand behind the queries in one operand.
fn read_parts(cx: &mut NodeCx<'_, '_>, heads: i64, kv_heads: i64) -> Result<[ValueId; 3], Fault> {
    if heads <= 0 || kv_heads <= 0 {
        return Err(Fault::Invalid(format!("{heads} query heads and {kv_heads} key heads; 1 or more was expected")));
    }
    let query = cx.input(0)?;
    if let (Some(key), Some(value)) = (cx.optional(1), cx.optional(2)) {
        return Ok([query, key, value]);
    }
    let [_, width] = cx.dims_of(query, "queries with their keys and values")?;
    let size = cx.number(&width, "the width of packed queries, keys and values")? / (heads + 2 * kv_heads) as usize;
    let sizes = [size * heads as usize, size * kv_heads as usize, size * kv_heads as usize];
    super::microsoft::split_columns(cx, query, Some(&sizes))
}

fn add_norms(cx: &mut NodeCx<'_, '_>, q: ValueId, k: ValueId) -> Result<(ValueId, ValueId), Fault> {
    let epsilon = cx.float("qk_norm_epsilon", QK_NORM_EPSILON)?;
    match (cx.optional(12), cx.optional(13)) {
        (Some(query), Some(key)) => {
            let op = || RmsNorm { axis: 3, epsilon };
            Ok((cx.add(op(), &[q, query])?, cx.add(op(), &[k, key])?))
        }
        (None, None) => Ok((q, k)),
        (Some(_), None) | (None, Some(_)) => {
            Err(Fault::Invalid("norms of queries and of keys are given together or not at all".to_string()))
        }
    }
}

/// The slots of all blocks at which places of sequences lie, i64 as the positions.
fn slots_of(
    cx: &mut NodeCx<'_, '_>,
    table: ValueId,
    sequences: ValueId,
    positions: ValueId,
    blocks: &Blocks,
) -> Result<ValueId, Fault> {
    let [_, columns] = cx.dims_of(table, "the table of blocks")?;
    let (size, columns_value) = (cx.dim_value(blocks.slots.clone())?, cx.dim_value(columns)?);
    let flat: Dim = cx.dims(table).iter().product();
    let flat = cx.reshape(table, vec![flat])?;
    let column = cx.binary(BinaryFn::Div, positions, size)?;
    let row = cx.binary(BinaryFn::Mul, sequences, columns_value)?;
    let entry = cx.binary(BinaryFn::Add, row, column)?;
    let block = cx.gather(flat, entry, 0)?;
    let first = cx.binary(BinaryFn::Mul, block, size)?;
    let offset = cx.binary(BinaryFn::Mod, positions, size)?;
    cx.binary(BinaryFn::Add, first, offset)
}

/// The slots of every place of every sequence, i64 [sequences * places]. What a sequence has no block for is any slot.
fn all_slots_of(cx: &mut NodeCx<'_, '_>, table: ValueId, blocks: &Blocks) -> Result<ValueId, Fault> {
    let [sequences, columns] = cx.dims_of(table, "the table of blocks")?;
    let size = cx.dim_value(blocks.slots.clone())?;
    let known = cx.binary_scalar(BinaryFn::Max, table, 0.0)?;
    let first = cx.binary(BinaryFn::Mul, known, size)?;
    let first = cx.unsqueeze(first, &[2])?;
    let offsets = cx.iota(Dim::ZERO, blocks.slots.clone())?;
    let slots = cx.binary(BinaryFn::Add, first, offsets)?;
    cx.reshape(slots, vec![&(&sequences * &columns) * &blocks.slots])
}

/// A cache as rows [slots, heads * size] with keys or values [1, heads, tokens, size] at their slots. What has the slot -1 is
/// not written: it goes to a row behind the last, which is cut off.
fn write_slots(
    cx: &mut NodeCx<'_, '_>,
    cache: ValueId,
    new: ValueId,
    slots: ValueId,
    blocks: &Blocks,
) -> Result<ValueId, Fault> {
    let width = &blocks.heads * &blocks.size;
    let rows = cx.reshape(cache, vec![blocks.all_slots(), width.clone()])?;
    let zero = cx.scalar(cx.dtype(cache), 0.0)?;
    let spare = cx.broadcast(zero, vec![Dim::ONE, width.clone()])?;
    let rows = cx.concat(&[rows, spare], 0)?;
    let new = super::merge_heads(cx, new)?;
    let new = cx.squeeze(new, &[0])?;
    let new = cx.cast(new, cx.dtype(cache))?;
    let last = cx.dim_value(blocks.all_slots())?;
    let zero = cx.scalar(DType::I64, 0.0)?;
    let is_written = cx.compare(CompareFn::Ge, slots, zero)?;
    let slots = cx.select(is_written, slots, last)?;
    let slots = cx.unsqueeze(slots, &[1])?;
    let rows = cx.add(ScatterNd { func: ScatterFn::Replace }, &[rows, slots, new])?;
    let rows = cx.slice_axis(rows, 0, Dim::ZERO, blocks.all_slots())?;
    cx.reshape(rows, vec![blocks.all_slots(), blocks.heads.clone(), blocks.size.clone()])
}

/// Slots of a cache [slots, heads, size] as [1, heads, places, size].
fn read_slots(cx: &mut NodeCx<'_, '_>, cache: ValueId, slots: ValueId) -> Result<ValueId, Fault> {
    let read = cx.gather(cache, slots, 0)?;
    let read = cx.transpose(read, vec![1, 0, 2])?;
    cx.unsqueeze(read, &[0])
}

/// Which of all places [sequences * places] each token may see: those of its sequence that are filled, up to itself.
fn add_allowed(
    cx: &mut NodeCx<'_, '_>,
    table: ValueId,
    places: &Places,
    positions: ValueId,
    blocks: &Blocks,
) -> Result<ValueId, Fault> {
    let [sequences, columns] = cx.dims_of(table, "the table of blocks")?;
    let length = &columns * &blocks.slots;
    let numbers = cx.iota(Dim::ZERO, &sequences * &length)?;
    let size = cx.dim_value(length)?;
    let (sequence, place) = (cx.binary(BinaryFn::Div, numbers, size)?, cx.binary(BinaryFn::Mod, numbers, size)?);
    let column = cx.unsqueeze(places.sequence, &[1])?;
    let mut allowed = cx.compare(CompareFn::Eq, sequence, column)?;
    let rows = cx.unsqueeze(positions, &[1])?;
    let is_seen = match cx.flag("is_causal", true)? {
        true => cx.compare(CompareFn::Le, place, rows)?,
        false => {
            let ends = add_ends(cx, places)?;
            cx.compare(CompareFn::Lt, place, ends)?
        }
    };
    allowed = both(cx, Some(allowed), is_seen)?;
    // The window counts the query itself.
    let window = cx.int("local_window_size", -1)?;
    if window > 0 {
        let first = cx.binary_scalar(BinaryFn::Sub, rows, window as f64)?;
        let is_near = cx.compare(CompareFn::Gt, place, first)?;
        allowed = both(cx, Some(allowed), is_near)?;
    }
    Ok(allowed)
}

/// How many places the sequence of each token has filled, [tokens, 1]: the past and all new tokens.
fn add_ends(cx: &mut NodeCx<'_, '_>, places: &Places) -> Result<ValueId, Fault> {
    let bounds = cx.cast(cx.input(5)?, DType::I64)?;
    let past = cx.cast(cx.input(6)?, DType::I64)?;
    let next = cx.binary_scalar(BinaryFn::Add, places.sequence, 1.0)?;
    let (start, end) = (cx.gather(bounds, places.sequence, 0)?, cx.gather(bounds, next, 0)?);
    let new = cx.binary(BinaryFn::Sub, end, start)?;
    let before = cx.gather(past, places.sequence, 0)?;
    let ends = cx.binary(BinaryFn::Add, before, new)?;
    cx.unsqueeze(ends, &[1])
}
