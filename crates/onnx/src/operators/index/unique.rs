//! Unique: rows are sorted, and each that differs from the one before it begins a group.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, Cumulate, CumulateFn, ScatterElements, ScatterFn, Topk, UnaryFn};
use precast_tensor::{DType, Dim};

use super::{Values, nonzero_of};
use crate::import::{Fault, NodeCx};

/// Rows are sorted one column after the other, so their number decides how many nodes there are.
const COLUMNS_MAX: usize = 64;

/// com.microsoft's: a vector's elements in the order of their first occurrence, the group of each element, and counts.
pub(super) fn unique_in_order(cx: &mut NodeCx<'_, '_>) -> Values {
    let x = cx.input(0)?;
    if cx.rank(x) != 1 {
        return Err(Fault::Invalid(format!("the input has rank {}; 1 was expected", cx.rank(x))));
    }
    let rows = rows_along(cx, x, 0)?;
    let groups = group(cx, &rows)?;
    let groups = by_first_occurrence(cx, &groups)?;
    Ok(vec![cx.gather(x, groups.first, 0)?, groups.inverse, groups.counts])
}

pub(super) fn unique(cx: &mut NodeCx<'_, '_>) -> Values {
    let mut x = cx.input(0)?;
    let is_sorted = cx.flag("sorted", true)?;
    let axis = match cx.attributes().int("axis")? {
        Some(axis) => cx.axis(axis, cx.rank(x))?,
        None => {
            let elements = cx.dims(x).iter().product();
            x = cx.reshape(x, vec![elements])?;
            0
        }
    };
    let rows = rows_along(cx, x, axis)?;
    let mut groups = group(cx, &rows)?;
    if !is_sorted {
        groups = by_first_occurrence(cx, &groups)?;
    }
    let y = cx.gather(x, groups.first, axis)?;
    Ok(vec![y, groups.first, groups.inverse, groups.counts])
}

/// Slices of a value along an axis, column by column; each column is a vector.
struct Rows {
    count: Dim,
    columns: Vec<ValueId>,
}

fn rows_along(cx: &mut NodeCx<'_, '_>, x: ValueId, axis: usize) -> Result<Rows, Fault> {
    let mut dims = cx.dims(x);
    let count = dims.remove(axis);
    let width = cx.number(&dims.iter().product(), "the size of a slice")?;
    if width > COLUMNS_MAX {
        return Err(Fault::Unsupported(format!("slices of {width} elements; {COLUMNS_MAX} or fewer are covered")));
    }
    let mut perm: Vec<usize> = (0..cx.rank(x)).filter(|&other| other != axis).collect();
    perm.push(axis);
    let columns = cx.transpose(x, perm)?;
    let columns = cx.reshape(columns, vec![Dim::from(width), count.clone()])?;
    let columns = if cx.dtype(x).is_bool() { cx.cast(columns, DType::U8)? } else { columns };
    let columns = (0..width).map(|column| {
        let column = cx.slice_axis(columns, 0, Dim::from(column), Dim::ONE)?;
        cx.reshape(column, vec![count.clone()])
    });
    let columns = columns.collect::<Result<_, _>>()?;
    Ok(Rows { count, columns })
}

/// Groups of equal rows: the first row of each, the group of every row, and how many rows each has.
struct Groups {
    first: ValueId,
    inverse: ValueId,
    counts: ValueId,
    count: Dim,
}

fn group(cx: &mut NodeCx<'_, '_>, rows: &Rows) -> Result<Groups, Fault> {
    let order = sort(cx, rows)?;
    let is_first = differs_from_before(cx, rows, order)?;
    let starts = nonzero_of(cx, is_first)?;
    let count = cx.dims(starts)[1].clone();
    let starts = cx.reshape(starts, vec![count.clone()])?;
    // The sort is stable, so the first row of a group in sorted order is also the first in the input.
    let first = cx.gather(order, starts, 0)?;
    let numbers = cx.cast(is_first, DType::I64)?;
    let numbers = cx.add(Cumulate { func: CumulateFn::Sum, axis: 0, exclusive: false, reverse: false }, &[numbers])?;
    let numbers = cx.binary_scalar(BinaryFn::Sub, numbers, 1.0)?;
    let inverse = scatter(cx, &rows.count, order, numbers)?;
    let later = cx.slice_axis(starts, 0, Dim::ONE, count.clone() - 1)?;
    let end = cx.dim_vector(std::slice::from_ref(&rows.count))?;
    let ends = cx.concat(&[later, end], 0)?;
    let counts = cx.binary(BinaryFn::Sub, ends, starts)?;
    Ok(Groups { first, inverse, counts, count })
}

/// Positions of the rows in ascending order, NaN last; equal rows stay in order.
fn sort(cx: &mut NodeCx<'_, '_>, rows: &Rows) -> Result<ValueId, Fault> {
    let mut order = cx.iota(Dim::ZERO, rows.count.clone())?;
    // The last sort decides most, so it is by the first column.
    for &column in rows.columns.iter().rev() {
        let keys = cx.gather(column, order, 0)?;
        let places = ascending(cx, keys, rows.count.clone())?;
        order = cx.gather(order, places, 0)?;
    }
    Ok(order)
}

fn ascending(cx: &mut NodeCx<'_, '_>, keys: ValueId, count: Dim) -> Result<ValueId, Fault> {
    Ok(cx.add_node(Topk { axis: 0, k: count, largest: false }, &[keys])?[1])
}

/// For each row in sorted order whether it differs from the one before; the first one does.
fn differs_from_before(cx: &mut NodeCx<'_, '_>, rows: &Rows, order: ValueId) -> Result<ValueId, Fault> {
    let pairs = rows.count.clone() - 1;
    let mut is_same: Option<ValueId> = None;
    for &column in &rows.columns {
        let sorted = cx.gather(column, order, 0)?;
        let before = cx.slice_axis(sorted, 0, Dim::ZERO, pairs.clone())?;
        let after = cx.slice_axis(sorted, 0, Dim::ONE, pairs.clone())?;
        let mut agrees = cx.compare(CompareFn::Eq, before, after)?;
        if cx.dtype(column).is_float() {
            let [before, after] = [cx.unary(UnaryFn::IsNan, before)?, cx.unary(UnaryFn::IsNan, after)?];
            let are_nan = cx.binary(BinaryFn::And, before, after)?;
            agrees = cx.binary(BinaryFn::Or, agrees, are_nan)?;
        }
        is_same = Some(match is_same {
            Some(others) => cx.binary(BinaryFn::And, others, agrees)?,
            None => agrees,
        });
    }
    let is_same = match is_same {
        Some(is_same) => is_same,
        // Rows without elements are all equal.
        None => {
            let yes = cx.scalar(DType::Bool, 1.0)?;
            cx.broadcast(yes, vec![pairs])?
        }
    };
    let differs = cx.unary(UnaryFn::Not, is_same)?;
    let yes = cx.scalar(DType::Bool, 1.0)?;
    let yes = cx.reshape(yes, vec![Dim::ONE])?;
    cx.concat(&[yes, differs], 0)
}

/// A vector of `count` elements with `updates` at `places`.
fn scatter(cx: &mut NodeCx<'_, '_>, count: &Dim, places: ValueId, updates: ValueId) -> Result<ValueId, Fault> {
    let zero = cx.int_scalar(0);
    let zeros = cx.broadcast(zero, vec![count.clone()])?;
    cx.add(ScatterElements { func: ScatterFn::Replace, axis: 0 }, &[zeros, places, updates])
}

/// The same groups in the order in which they begin in the input.
fn by_first_occurrence(cx: &mut NodeCx<'_, '_>, groups: &Groups) -> Result<Groups, Fault> {
    let order = ascending(cx, groups.first, groups.count.clone())?;
    let numbers = cx.iota(Dim::ZERO, groups.count.clone())?;
    let renumbered = scatter(cx, &groups.count, order, numbers)?;
    Ok(Groups {
        first: cx.gather(groups.first, order, 0)?,
        inverse: cx.gather(renumbered, groups.inverse, 0)?,
        counts: cx.gather(groups.counts, order, 0)?,
        count: groups.count.clone(),
    })
}
