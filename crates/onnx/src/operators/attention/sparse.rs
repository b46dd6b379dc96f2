//! Attention operators of com.microsoft in which a query sees some keys alone: SparseAttention by a table of blocks,
//! LongformerAttention by a window and a few tokens that all see. Both are whole products under a mask.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, ReduceFn, UnaryFn};
use precast_tensor::{DType, Dim};

use super::cached::{add_new_positions, write_behind};
use super::microsoft::{read_grouped, split_columns};
use super::rotary::rotate_where_asked;
use super::{Heads, Outputs, Scoring, attend, both, default_scale, length_of, merge_heads, split_heads};
use crate::import::{Fault, NodeCx};

/// Causal attention behind caches with room left, whose heads see the blocks of tokens that their layout lists.
pub(super) fn sparse_attention(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (heads, kv_heads) = (cx.int("num_heads", 0)?, cx.int("kv_num_heads", 0)?);
    let block = cx.int("sparse_block_size", 0)?;
    if block <= 0 {
        return Err(Fault::Invalid(format!("attribute 'sparse_block_size' is {block}; 1 or more was expected")));
    }
    let scale = cx.attributes().float("scale")?.filter(|&scale| scale != 0.0);
    let (q, k, v) = read_grouped(cx, heads, kv_heads)?;
    let [batch, _, queries, _] = cx.dims_of(q, "the queries")?;
    // Tokens of each row before the new ones; a prompt that is padded at its end starts at 0.
    let totals = cx.cast(cx.input(8)?, DType::I64)?;
    let totals = cx.reshape(totals, vec![batch])?;
    let count = cx.dim_value(queries.clone())?;
    let before = cx.binary(BinaryFn::Sub, totals, count)?;
    let before = cx.binary_scalar(BinaryFn::Max, before, 0.0)?;
    let positions = add_new_positions(cx, before, &queries)?;
    let [q, k] = rotate_where_asked(cx, [q, k], positions, 9)?;
    let keys = write_behind(cx, cx.input(3)?, k, before)?;
    let values = write_behind(cx, cx.input(4)?, v, before)?;
    let slots = length_of(cx, keys)?;
    let columns = cx.iota(Dim::ZERO, slots)?;
    let rows = cx.unsqueeze(positions, &[1, 3])?;
    let is_before = cx.compare(CompareFn::Le, columns, rows)?;
    let is_listed = add_listed(cx, positions, columns, block, heads)?;
    let allowed = both(cx, Some(is_before), is_listed)?;
    let scale = scale.map_or_else(|| default_scale(cx, q), Ok)?;
    let scoring = Scoring { scale, allowed: Some(allowed), ..Scoring::plain(f64::NEG_INFINITY) };
    let y = attend(cx, Heads { q, k: keys, v: values }, &scoring)?.y;
    Ok(vec![merge_heads(cx, y)?, keys, values])
}

/// Whether the layout of a head lists the block of a key for that of a query: [batch, heads, queries, keys].
fn add_listed(
    cx: &mut NodeCx<'_, '_>,
    positions: ValueId,
    columns: ValueId,
    block: i64,
    heads: i64,
) -> Result<ValueId, Fault> {
    let mask = add_block_mask(cx)?;
    let layouts = cx.dim(mask, 0)?;
    let layouts = cx.dim_value(layouts)?;
    let numbers = cx.iota(Dim::ZERO, Dim::from(heads))?;
    // Layouts take turns.
    let layout_of = cx.binary(BinaryFn::Mod, numbers, layouts)?;
    let mask = cx.gather(mask, layout_of, 0)?;
    let rows = cx.binary_scalar(BinaryFn::Div, positions, block as f64)?;
    let columns = cx.binary_scalar(BinaryFn::Div, columns, block as f64)?;
    // [heads, batch, queries, blocks], then [heads, batch, queries, keys].
    let of_queries = cx.gather(mask, rows, 1)?;
    let of_pairs = cx.gather(of_queries, columns, 3)?;
    cx.transpose(of_pairs, vec![1, 0, 2, 3])
}

/// The mask of blocks, bool [layouts, blocks, blocks], of its rows' bounds and the columns that they list.
fn add_block_mask(cx: &mut NodeCx<'_, '_>) -> Result<ValueId, Fault> {
    let bounds = cx.cast(cx.input(5)?, DType::I64)?;
    let listed = cx.cast(cx.input(6)?, DType::I64)?;
    let [_, rows] = cx.dims_of(bounds, "the bounds of rows of blocks")?;
    let [_, entries] = cx.dims_of(listed, "the columns of blocks")?;
    let count = &rows - &Dim::ONE;
    let places = cx.iota(Dim::ZERO, entries)?;
    let starts = cx.slice_axis(bounds, 1, Dim::ZERO, count.clone())?;
    let ends = cx.slice_axis(bounds, 1, Dim::ONE, count.clone())?;
    let (starts, ends) = (cx.unsqueeze(starts, &[2])?, cx.unsqueeze(ends, &[2])?);
    let (is_from, is_to) = (cx.compare(CompareFn::Ge, places, starts)?, cx.compare(CompareFn::Lt, places, ends)?);
    let is_of_row = both(cx, Some(is_from), is_to)?;
    // [layouts, rows, entries, 1] beside [layouts, 1, entries, columns].
    let is_of_row = cx.unsqueeze(is_of_row, &[3])?;
    let listed = cx.unsqueeze(listed, &[1, 3])?;
    let numbers = cx.iota(Dim::ZERO, count)?;
    let is_column = cx.compare(CompareFn::Eq, listed, numbers)?;
    let is_both = both(cx, Some(is_of_row), is_column)?;
    cx.reduce(ReduceFn::Any, is_both, vec![2], false)
}

/// Tokens see those within a window on both sides and the global ones; global ones see all, by projections of their own.
pub(super) fn longformer_attention(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (count, window) = (cx.int("num_heads", 0)?, cx.int("window", 0)?);
    let x = cx.input(0)?;
    let [_, length, _] = cx.dims_of(x, "the input")?;
    let local = project(cx, x, (1, 2), count)?;
    let global = project(cx, x, (4, 5), count)?;
    let flags = cx.input(6)?;
    let zero = cx.scalar(cx.dtype(flags), 0.0)?;
    let is_global = cx.compare(CompareFn::Gt, flags, zero)?;
    let mask = cx.input(3)?;
    let zero = cx.scalar(cx.dtype(mask), 0.0)?;
    let is_token = cx.compare(CompareFn::Ge, mask, zero)?;
    let is_token = cx.unsqueeze(is_token, &[1, 2])?;
    let numbers = cx.iota(Dim::ZERO, length)?;
    let column = cx.unsqueeze(numbers, &[1])?;
    let distance = cx.binary(BinaryFn::Sub, column, numbers)?;
    let distance = cx.unary(UnaryFn::Abs, distance)?;
    let widest = cx.scalar(DType::I64, window as f64)?;
    let is_near = cx.compare(CompareFn::Le, distance, widest)?;
    let of_keys = cx.unsqueeze(is_global, &[1, 2])?;
    let is_seen = cx.binary(BinaryFn::Or, is_near, of_keys)?;
    let is_seen = both(cx, Some(is_seen), is_token)?;
    let near = attend_under(cx, local, is_seen)?;
    let far = attend_under(cx, global, is_token)?;
    let of_queries = cx.unsqueeze(is_global, &[1, 3])?;
    let y = cx.select(of_queries, far, near)?;
    Ok(vec![merge_heads(cx, y)?])
}

/// Queries, keys and values of x by the matrix and the bias at two positions.
fn project(cx: &mut NodeCx<'_, '_>, x: ValueId, (weights, bias): (usize, usize), count: i64) -> Result<Heads, Fault> {
    let product = cx.matmul(x, cx.input(weights)?)?;
    let projected = cx.binary(BinaryFn::Add, product, cx.input(bias)?)?;
    let [q, k, v] = split_columns(cx, projected, None)?;
    Ok(Heads { q: split_heads(cx, q, count)?, k: split_heads(cx, k, count)?, v: split_heads(cx, v, count)? })
}

fn attend_under(cx: &mut NodeCx<'_, '_>, heads: Heads, allowed: ValueId) -> Result<ValueId, Fault> {
    let scale = default_scale(cx, heads.q)?;
    let scoring = Scoring { scale, allowed: Some(allowed), may_mask_all: true, ..Scoring::plain(f64::NEG_INFINITY) };
    Ok(attend(cx, heads, &scoring)?.y)
}
