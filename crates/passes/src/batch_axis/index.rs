//! Ops that read or write at computed places: rows pass where every index stays within its own row.

use precast_ir::op::{Gather, GatherElements, GatherNd, ScatterElements, ScatterNd, Topk};

use super::align::{all_whole, carried, in_step, two_axes};
use super::places::Known;
use super::state::{Answer, Refusal, Rows, State, View, refusal};

pub(super) fn gather(op: &Gather, view: &View<'_>) -> Answer {
    if let (Some(x), Some(indices), Some(place)) = (view.rows(0), view.rows(1), view.known[1].place())
        && x.axis == op.axis
        && place.is_own_row(view, x)
    {
        return Ok(State::Row(own_row(x, indices, op.axis + indices.axis)));
    }
    check_indices(view)?;
    match (view.rows(0), view.rows(1)) {
        (None, None) => all_whole(view),
        // A lookup: row i of the indices picks from a table that all rows share.
        (None, Some(indices)) => carried(view, 1, indices, op.axis + indices.axis),
        (Some(x), _) if x.axis == op.axis => Err(view.over(x.axis, "picks")),
        (Some(x), Some(_)) => Err(two_axes(view, x.axis)),
        (Some(x), _) if x.axis < op.axis => carried(view, 0, x, x.axis),
        (Some(x), _) => carried(view, 0, x, x.axis + view.dims(1).len() - 1),
    }
}

pub(super) fn gather_elements(op: &GatherElements, view: &View<'_>) -> Answer {
    check_indices(view)?;
    match (view.rows(0), view.rows(1)) {
        (None, None) => all_whole(view),
        (None, Some(indices)) if indices.axis == op.axis => carried(view, 1, indices, op.axis),
        (Some(x), _) if x.axis == op.axis => Err(view.over(op.axis, "picks")),
        (Some(Rows { axis, .. }), _) | (None, Some(Rows { axis, .. })) => {
            in_step(view, &[(0, *axis), (1, *axis)], *axis)
        }
    }
}

pub(super) fn gather_nd(op: &GatherNd, view: &View<'_>) -> Answer {
    // Output axes: those of the indices without the tuple, then those of x that no tuple names.
    let index_axes = view.dims(1).len() - 1;
    let Some(tuple) = view.dims(1)[index_axes].as_usize() else { return all_whole(view) };
    let named = op.batch_axes + tuple;
    if let (Some(x), Some(indices), Known::Tuple(places)) = (view.rows(0), view.rows(1), view.known[1])
        && (op.batch_axes..index_axes).contains(&indices.axis)
        && (op.batch_axes..named).contains(&x.axis)
        && places.iter().enumerate().all(|(at, place)| match at + op.batch_axes == x.axis {
            true => place.is_own_row(view, x),
            false => place.is_shared(),
        })
    {
        return Ok(State::Row(own_row(x, indices, indices.axis)));
    }
    check_indices(view)?;
    match (view.rows(0), view.rows(1)) {
        (None, None) => all_whole(view),
        (Some(x), None) if x.axis >= named => carried(view, 0, x, index_axes + x.axis - named),
        (None, Some(indices)) if indices.axis >= op.batch_axes && indices.axis < index_axes => {
            carried(view, 1, indices, indices.axis)
        }
        (Some(Rows { axis, .. }), _) | (None, Some(Rows { axis, .. })) if *axis < op.batch_axes => {
            in_step(view, &[(0, *axis), (1, *axis)], *axis)
        }
        (Some(Rows { axis, .. }), _) | (None, Some(Rows { axis, .. })) => Err(view.over(*axis, "picks")),
    }
}

pub(super) fn scatter_elements(op: &ScatterElements, view: &View<'_>) -> Answer {
    check_indices(view)?;
    let Some(axis) = (0..3).find_map(|input| Some(view.rows(input)?.axis)) else { return all_whole(view) };
    if axis == op.axis {
        return Err(view.over(axis, "writes"));
    }
    in_step(view, &[(0, axis), (1, axis), (2, axis)], axis)
}

pub(super) fn scatter_nd(_op: &ScatterNd, view: &View<'_>) -> Answer {
    check_indices(view)?;
    let Some(axis) = (0..3).find_map(|input| Some(view.rows(input)?.axis)) else { return all_whole(view) };
    let index_axes = view.dims(1).len() - 1;
    match (view.dims(1)[index_axes].as_usize(), view.rows(0)) {
        // Whole slices are written, each with all rows.
        (Some(tuple), Some(x)) if x.axis >= tuple => {
            in_step(view, &[(0, x.axis), (2, index_axes + x.axis - tuple)], x.axis)
        }
        _ => Err(view.over(axis, "writes")),
    }
}

/// Rows of x that the indices put where their own rows lie. Indices of a row that stay within it tie it to no other.
fn own_row(x: &Rows, indices: &Rows, axis: usize) -> Rows {
    Rows { axis, outer: indices.outer.clone(), inner: indices.inner.clone(), ..x.clone() }
}

/// Refuses indices that depend on the number of their row: those of pad rows may leave the range that real rows keep to.
fn check_indices(view: &View<'_>) -> Result<(), Refusal> {
    match view.rows(1) {
        Some(rows) if rows.prefix.is_some() => {
            Err(refusal(rows.axis, format!("reads at places that depend on the number of rows before in {}", view.dim)))
        }
        _ => Ok(()),
    }
}

pub(super) fn topk(op: &Topk, view: &View<'_>) -> Answer {
    view.check_sizes("count", [&op.k])?;
    match view.rows(0) {
        Some(rows) if rows.axis == op.axis => Err(view.over(op.axis, "ranks")),
        _ => Ok(view.states[0].clone()),
    }
}
