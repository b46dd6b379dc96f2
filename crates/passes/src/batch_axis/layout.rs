//! Ops that make or move elements: the axis of the rows and its factors are followed through them. A cut within the
//! axis of the rows, or a size that is no multiple of the Dim, is refused.

use precast_ir::op::{Broadcast, Concat, Iota, Pad, Reshape, Slice, Transpose};
use precast_tensor::Dim;

use super::align::{all_whole, beside, carried, check_broadcasts, in_step};
use super::state::{Answer, Refusal, Rows, State, View, refusal};

/// Row i of an iota holds numbers that depend on i: pads do not reach it, but a chunk would begin at 0 again.
pub(super) fn iota(op: &Iota, view: &View<'_>) -> Answer {
    view.check_sizes("start or step", [&op.start, &op.step])?;
    if !view.mentions(&view.size(&op.length)) {
        return Ok(State::Free);
    }
    let inner = row_extent(view, 0, &view.size(&op.length))?;
    let prefix = Some(view.site(Some(0), format!("counts rows of {}", view.dim)));
    Ok(State::Row(Rows { prefix, ..Rows::new(0, Dim::ONE, inner) }))
}

pub(super) fn dim_value(size: &Dim, view: &View<'_>) -> Answer {
    if view.mentions(size) {
        return Ok(State::Extent(view.site(None, format!("gives the size {size} as data"))));
    }
    Ok(State::Free)
}

/// Row-major order splits the elements before, within and after the rows; the new axis of the rows must split them
/// alike. It is enough to see that on one side: the element counts of a reshape are equal, so the other side follows.
pub(super) fn reshape(op: &Reshape, view: &View<'_>) -> Answer {
    let shape = view.simplified(&op.shape);
    let Some(rows) = view.rows(0) else {
        view.check_sizes("shape", &shape)?;
        return Ok(view.states[0].clone());
    };
    let cuts = || {
        let (from, to) = (print(view.dims(0)), print(&shape));
        refusal(rows.axis, format!("cuts through the rows of {} from {from} to {to}", view.dim))
    };
    let axis = only_axis(view, &shape).ok_or_else(cuts)?;
    let dims = view.dims(0);
    let factor = row_extent(view, axis, &shape[axis]).map_err(|_| cuts())?;
    let before: Dim = dims[..rows.axis].iter().product::<Dim>() * &rows.outer;
    let after: Dim = &rows.inner * dims[rows.axis + 1..].iter().product::<Dim>();
    let outer_first = || {
        let outer = before.floor_div_exact(&shape[..axis].iter().product())?;
        Some((outer.clone(), factor.floor_div_exact(&outer)?))
    };
    let inner_first = || {
        let inner = after.floor_div_exact(&shape[axis + 1..].iter().product())?;
        Some((factor.floor_div_exact(&inner)?, inner))
    };
    let (outer, inner) = outer_first().or_else(inner_first).ok_or_else(cuts)?;
    Ok(State::Row(Rows { axis, outer, inner, ..rows.clone() }))
}

pub(super) fn transpose(op: &Transpose, view: &View<'_>) -> Answer {
    let Some(rows) = view.rows(0) else { return Ok(view.states[0].clone()) };
    match op.perm.iter().position(|axis| *axis == rows.axis) {
        Some(axis) => Ok(State::Row(rows.at(axis))),
        None => Err(view.over(rows.axis, "transposes")),
    }
}

/// Repeats a value without rows for every row, or keeps rows.
pub(super) fn broadcast_to(op: &Broadcast, view: &View<'_>) -> Answer {
    let dims = view.dims(0);
    let shape = view.simplified(&op.shape);
    let rank = dims.len().max(shape.len());
    if let Some(rows) = view.rows(0) {
        let rows = rows.at(rank - dims.len() + rows.axis);
        let shape_axis = (rows.axis + shape.len()).checked_sub(rank);
        match shape_axis.map(|axis| &shape[axis]) {
            Some(size) if *size == rows.extent(view.dim) => {}
            _ => check_broadcasts(view, &shape, rank, &rows)?,
        }
        let others = shape.iter().enumerate().filter(|(axis, _)| Some(*axis) != shape_axis);
        view.check_sizes("shape", others.map(|(_, size)| size))?;
        return Ok(State::Row(rows));
    }
    if !shape.iter().any(|size| view.mentions(size)) {
        return Ok(view.states[0].clone());
    }
    let shape_axis = only_axis(view, &shape)
        .ok_or_else(|| refusal(None, format!("has shape {} with {} on two axes", print(&shape), view.dim)))?;
    let axis = rank - shape.len() + shape_axis;
    let rows = Rows::new(axis, Dim::ONE, row_extent(view, axis, &shape[shape_axis])?);
    check_broadcasts(view, dims, rank, &rows)?;
    beside(view, rows, [view.states[0]]).map(State::Row)
}

pub(super) fn slice(op: &Slice, view: &View<'_>) -> Answer {
    let (start, size) = (view.simplified(&op.start), view.simplified(&op.size));
    let beside_axis = |own: usize| {
        let sizes = start.iter().chain(&size).enumerate();
        sizes.filter(move |(at, _)| at % op.start.len() != own).map(|(_, size)| size)
    };
    if let Some(rows) = view.rows(0) {
        let axis = rows.axis;
        let is_all = start[axis] == Dim::ZERO && op.step[axis] == 1 && size[axis] == view.dims(0)[axis];
        if !is_all {
            return Err(refusal(axis, format!("takes a part of the rows of {}", view.dim)));
        }
        view.check_sizes("a start or size", beside_axis(axis))?;
        return Ok(State::Row(rows.clone()));
    }
    if !start.iter().chain(&size).any(|size| view.mentions(size)) {
        return Ok(view.states[0].clone());
    }
    // As many elements as there are rows, from a place that does not depend on them: row i depends on i.
    let axis = only_axis(view, &size)
        .ok_or_else(|| refusal(None, format!("takes elements at places that depend on {}", view.dim)))?;
    view.check_sizes("a start", &start)?;
    let inner = row_extent(view, axis, &size[axis])?;
    let prefix = Some(view.site(Some(axis), format!("takes as many elements as there are rows of {}", view.dim)));
    let rows = Rows { prefix, ..Rows::new(axis, Dim::ONE, inner) };
    beside(view, rows, [view.states[0]]).map(State::Row)
}

pub(super) fn concat(op: &Concat, view: &View<'_>) -> Answer {
    let Some(rows) = view.states.iter().find_map(|state| match state {
        State::Row(rows) => Some(rows),
        _ => None,
    }) else {
        return all_whole(view);
    };
    if rows.axis == op.axis && view.states.len() > 1 {
        return Err(refusal(rows.axis, format!("joins other elements to the rows of {}", view.dim)));
    }
    let carriers: Vec<(usize, usize)> = (0..view.states.len()).map(|input| (input, rows.axis)).collect();
    in_step(view, &carriers, rows.axis)
}

pub(super) fn pad(op: &Pad, view: &View<'_>) -> Answer {
    let (lo, hi) = (view.simplified(&op.lo), view.simplified(&op.hi));
    view.check_sizes("padding", lo.iter().chain(&hi))?;
    let Some(rows) = view.rows(0) else { return all_whole(view) };
    if lo[rows.axis] != Dim::ZERO || hi[rows.axis] != Dim::ZERO {
        return Err(refusal(rows.axis, format!("adds elements to the rows of {}", view.dim)));
    }
    carried(view, 0, rows, rows.axis)
}

/// The only axis of a shape whose size depends on the Dim.
fn only_axis(view: &View<'_>, shape: &[Dim]) -> Option<usize> {
    let mut axes = (0..shape.len()).filter(|&axis| view.mentions(&shape[axis]));
    axes.next().filter(|_| axes.next().is_none())
}

/// Elements a row of an axis of this extent.
fn row_extent(view: &View<'_>, axis: usize, extent: &Dim) -> Result<Dim, Refusal> {
    match extent.floor_div_exact(&Dim::from(view.dim)) {
        Some(inner) if !view.mentions(&inner) => Ok(inner),
        _ => Err(refusal(axis, format!("has extent {extent}, which is no multiple of {}", view.dim))),
    }
}

fn print(dims: &[Dim]) -> String {
    let items: Vec<String> = dims.iter().map(Dim::to_string).collect();
    format!("[{}]", items.join(","))
}
