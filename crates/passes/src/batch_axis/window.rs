//! Pooling, resizing and sampling: rows pass on axes that no window reaches along.

use precast_ir::op::{GridSample, Pool, PoolIndices, Resize};
use precast_tensor::Dim;

use super::align::{all_whole, carried, in_step};
use super::state::{Answer, Rows, State, View, refusal};

/// Windows stay within one plane, so rows may be those of the batch or of the channels.
pub(super) fn pool(op: &Pool, view: &View<'_>) -> Answer {
    view.check_sizes("window sizes", op.pad_lo.iter().chain(&op.pad_hi).chain(&op.output))?;
    match view.rows(0) {
        None => all_whole(view),
        Some(rows) if rows.axis < 2 => carried(view, 0, rows, rows.axis),
        Some(rows) => Err(view.over(rows.axis, "pools")),
    }
}

/// Indices count from the first element of x, so they depend on the row's place.
pub(super) fn pool_indices(op: &PoolIndices, view: &View<'_>) -> Answer {
    view.check_sizes("window sizes", op.pad_lo.iter().chain(&op.pad_hi).chain(&op.output))?;
    match view.rows(0) {
        None => all_whole(view),
        Some(rows) if rows.axis == 0 && rows.outer == Dim::ONE => {
            let place = view.site(Some(0), format!("gives indices that count rows of {}", view.dim));
            Ok(State::Row(Rows { prefix: rows.prefix.clone().or(Some(place)), ..rows.clone() }))
        }
        Some(rows) => Err(view.over(rows.axis, "gives indices that count elements")),
    }
}

/// Regions choose their image by index: rows are regions, or channels of all images.
pub(super) fn roi_align(view: &View<'_>) -> Answer {
    let has_row_regions = view.rows(1).is_some() || view.rows(2).is_some();
    match view.rows(0) {
        None if has_row_regions => in_step(view, &[(1, 0), (2, 0)], 0),
        None => all_whole(view),
        Some(rows) if rows.axis == 1 => carried(view, 0, rows, 1),
        Some(rows) => Err(view.over(rows.axis, "picks images")),
    }
}

pub(super) fn resize(op: &Resize, view: &View<'_>) -> Answer {
    let output = view.simplified(&op.output);
    let Some(rows) = view.rows(0) else {
        view.check_sizes("output size", &output)?;
        return all_whole(view);
    };
    let axis = rows.axis;
    let is_crop = |at: usize, edge: f64| op.roi.get(at).is_some_and(|roi| *roi != edge);
    let is_kept = output.get(axis) == Some(&view.dims(0)[axis])
        && op.scales.get(axis) == Some(&1.0)
        && !is_crop(axis, 0.0)
        && !is_crop(axis + op.scales.len(), 1.0);
    if !is_kept {
        return Err(view.over(axis, "resizes"));
    }
    view.check_sizes("output size", output.iter().enumerate().filter(|(at, _)| *at != axis).map(|(_, size)| size))?;
    Ok(State::Row(rows.clone()))
}

pub(super) fn grid_sample(_op: &GridSample, view: &View<'_>) -> Answer {
    let last = view.dims(1).len() - 1;
    match (view.rows(0), view.rows(1)) {
        (None, None) => all_whole(view),
        (Some(x), None) if x.axis == 1 => carried(view, 0, x, 1),
        (None, Some(grid)) if grid.axis > 0 && grid.axis < last => carried(view, 1, grid, grid.axis + 1),
        (Some(x), Some(_)) if x.axis == 0 => in_step(view, &[(0, 0), (1, 0)], 0),
        (Some(x), _) => Err(view.over(x.axis, "samples")),
        (None, Some(grid)) => Err(refusal(grid.axis, format!("samples one image for every {}", view.dim))),
    }
}
