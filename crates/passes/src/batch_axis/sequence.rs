//! Recurrent layers: rows pass on the batch axis B of x [T, B, I], lengths [B] and states [D, B, H].

use precast_ir::op::Recurrent;

use super::align::{all_whole, in_step};
use super::state::{Answer, Refusal, State, View};

/// Axis of the rows in x, lengths, states and in the outputs y and y_h.
const X_AXIS: usize = 1;
const LENGTHS_AXIS: usize = 0;
const STATE_AXIS: usize = 1;
const Y_AXIS: usize = 2;

pub(super) fn recurrent(op: &Recurrent, view: &View<'_>) -> Result<Vec<State>, Refusal> {
    // x, w and r, then those that are present, in this order.
    let mut next = 3;
    let mut place = |is_present: bool| {
        let at = next;
        next += usize::from(is_present);
        is_present.then_some(at)
    };
    let _bias = place(op.bias);
    let lengths = place(op.lengths);
    let initial_h = place(op.initial_h);
    let initial_c = place(op.initial_c);
    let output_count = if op.func == precast_ir::op::RecurrentFn::Lstm { 3 } else { 2 };
    if let Some(rows) = view.rows(0)
        && rows.axis != X_AXIS
    {
        return Err(view.over(rows.axis, if rows.axis == 0 { "recurs" } else { "contracts" }));
    }
    let state_inputs = [initial_h, initial_c].into_iter().flatten().map(|at| (at, STATE_AXIS));
    let carriers: Vec<(usize, usize)> =
        [(0, X_AXIS)].into_iter().chain(lengths.map(|at| (at, LENGTHS_AXIS))).chain(state_inputs).collect();
    let answer = |axis: usize| -> Answer {
        match carriers.iter().any(|(input, _)| view.rows(*input).is_some()) {
            true => in_step(view, &carriers, axis),
            false => all_whole(view),
        }
    };
    let mut states = vec![answer(Y_AXIS)?];
    states.resize(output_count, answer(STATE_AXIS)?);
    Ok(states)
}
