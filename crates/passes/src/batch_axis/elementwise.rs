//! Elementwise ops: rows stay where they are, aligned from the right.

use precast_tensor::Dim;

use super::align::broadcast;
use super::state::{Answer, State, View};

/// An op on each element of its only input.
pub(super) fn unary(view: &View<'_>) -> Answer {
    Ok(view.states[0].clone())
}

/// An op on the elements that broadcasting brings together.
pub(super) fn joined(view: &View<'_>) -> Answer {
    let operands: Vec<(&[Dim], &State)> =
        view.types.iter().zip(&view.states).map(|(ty, state)| (ty.dims.as_slice(), *state)).collect();
    broadcast(view, &operands)
}
