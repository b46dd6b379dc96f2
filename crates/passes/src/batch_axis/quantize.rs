//! Quantisation: rows stay where they are. A scale is one number, a vector along an axis, or one a block, and lies in
//! step with the rows where it has the rows' axis.

use precast_tensor::Dim;

use super::align::{all_whole, carried, in_step};
use super::state::{Answer, View};

/// Quantize and dequantize: inputs x, scale and an optional zero point of the scale's shape.
pub(super) fn scaled(axis: usize, block: usize, view: &View<'_>) -> Answer {
    let Some(rows) = view.rows(0) else { return all_whole(view) };
    let is_scalar = view.dims(1).iter().all(|size| *size == Dim::ONE) && view.dims(1).len() <= 1;
    let in_step_at = |scale_axis: usize| {
        let carriers: Vec<(usize, usize)> =
            [(0, rows.axis)].into_iter().chain((1..view.states.len()).map(|input| (input, scale_axis))).collect();
        in_step(view, &carriers, rows.axis)
    };
    match block {
        0 if is_scalar || axis != rows.axis => carried(view, 0, rows, rows.axis),
        0 => in_step_at(0),
        _ if axis == rows.axis => Err(view.over(rows.axis, "scales blocks")),
        _ => in_step_at(rows.axis),
    }
}

/// Rows of bytes become rows of elements; along the last axis a byte has several.
pub(super) fn unpacked(view: &View<'_>) -> Answer {
    let Some(rows) = view.rows(0) else { return all_whole(view) };
    if rows.axis + 1 == view.dims(0).len() {
        return Err(view.over(rows.axis, "unpacks bytes"));
    }
    carried(view, 0, rows, rows.axis)
}
