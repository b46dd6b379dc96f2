//! Normalisations: rows pass on axes that no statistic is taken over.

use precast_tensor::Dim;

use super::align::{all_whole, broadcast, carried};
use super::state::{Answer, State, View};

pub(super) fn softmax(axis: usize, view: &View<'_>) -> Answer {
    match view.rows(0) {
        Some(rows) if rows.axis == axis => Err(view.over(axis, "normalises")),
        _ => Ok(view.states[0].clone()),
    }
}

/// Layer and RMS norm over the axes from `first` on; scale and bias broadcast.
pub(super) fn trailing(first: usize, view: &View<'_>) -> Answer {
    if let Some(rows) = view.rows(0)
        && rows.axis >= first
    {
        return Err(view.over(rows.axis, "normalises"));
    }
    let operands: Vec<(&[Dim], &State)> =
        view.types.iter().zip(&view.states).map(|(ty, state)| (ty.dims.as_slice(), *state)).collect();
    broadcast(view, &operands)
}

pub(super) fn group_norm(view: &View<'_>) -> Answer {
    match view.rows(0) {
        None => all_whole(view),
        Some(rows) if rows.axis == 0 => carried(view, 0, rows, 0),
        Some(rows) => Err(view.over(rows.axis, "normalises")),
    }
}

/// Neighbouring channels meet, nothing else does.
pub(super) fn lrn(view: &View<'_>) -> Answer {
    match view.rows(0) {
        Some(rows) if rows.axis == 1 => Err(view.over(1, "normalises")),
        _ => Ok(view.states[0].clone()),
    }
}
