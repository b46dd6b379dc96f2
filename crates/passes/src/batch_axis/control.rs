//! Ops that run graphs: the states of their inputs flow through the bodies. What decides how bodies run must be `Free`.

use precast_ir::op::{Fused, If, Loop};
use precast_ir::{Graph, Op};
use precast_tensor::Type;

use super::flow::output_states;
use super::state::{Refusal, State, View, refusal};

pub(super) fn fused(op: &Fused, view: &View<'_>) -> Result<Vec<State>, Refusal> {
    run_body(view, &op.body, &view.types, view.states.iter().map(|state| (*state).clone()).collect())
}

pub(super) fn if_(op: &If, view: &View<'_>) -> Result<Vec<State>, Refusal> {
    check_decider(view, 0, "condition")?;
    let captures = || view.states[1..].iter().map(|state| (*state).clone()).collect();
    let then_states = run_body(view, &op.then_body, &view.types[1..], captures())?;
    let else_states = run_body(view, &op.else_body, &view.types[1..], captures())?;
    Ok(then_states.iter().zip(&else_states).map(|(a, b)| join(view, a, b)).collect())
}

/// Carried values take on what any iteration makes of them: bodies run until nothing is learnt. States only ever rise,
/// by at most four steps each, so this ends.
pub(super) fn loop_(op: &Loop, view: &View<'_>) -> Result<Vec<State>, Refusal> {
    check_decider(view, 0, "trip count")?;
    check_decider(view, 1, "condition")?;
    check_shapes(view, &op.body, 2, &view.types[2..])?;
    check_carried_shapes(op, view)?;
    let mut carried: Vec<State> = view.states[2..2 + op.carried].iter().map(|state| (*state).clone()).collect();
    loop {
        let captures = view.states[2 + op.carried..].iter().map(|state| (*state).clone());
        let inputs: Vec<State> =
            [State::Free, State::Free].into_iter().chain(carried.clone()).chain(captures).collect();
        let outputs = output_states(&op.body, view.dim, view.ranges.get(view.dim), inputs, Some(&view.site));
        if !matches!(outputs[0], State::Free) {
            return Err(refusal(None, format!("stops by a condition that depends on {}", view.dim)));
        }
        let after: Vec<State> = carried.iter().zip(&outputs[1..]).map(|(a, b)| join(view, a, b)).collect();
        if after == carried {
            let scans = outputs[1 + op.carried..].iter().map(|state| match state {
                State::Row(rows) => State::Row(rows.at(rows.axis + 1)),
                State::Free | State::Dup(_) | State::Extent(_) | State::Mixed(_) => state.clone(),
            });
            return Ok(carried.into_iter().chain(scans).collect());
        }
        carried = after;
    }
}

/// Whether an op has bodies, whose rules look at `Mixed` inputs themselves.
pub(super) fn has_bodies(op: &Op) -> bool {
    matches!(op, Op::If(_) | Op::Loop(_) | Op::Fused(_))
}

fn join(view: &View<'_>, a: &State, b: &State) -> State {
    let unlike = || State::Mixed(view.site(None, format!("gives rows of {} in one case and not in another", view.dim)));
    a.join(b).unwrap_or_else(unlike)
}

fn check_decider(view: &View<'_>, input: usize, what: &str) -> Result<(), Refusal> {
    match view.states[input] {
        State::Free => Ok(()),
        State::Row(_) | State::Dup(_) | State::Extent(_) | State::Mixed(_) => {
            Err(refusal(None, format!("has a {what} that depends on {}", view.dim)))
        }
    }
}

fn run_body(view: &View<'_>, body: &Graph, given: &[&Type], states: Vec<State>) -> Result<Vec<State>, Refusal> {
    check_shapes(view, body, 0, given)?;
    Ok(output_states(body, view.dim, view.ranges.get(view.dim), states, Some(&view.site)))
}

/// A body is judged by the Types it declares for its inputs from `first` on. Those are the ones it runs with if they agree
/// on the Dim; another size may only stand for a symbol of the body.
fn check_shapes(view: &View<'_>, body: &Graph, first: usize, given: &[&Type]) -> Result<(), Refusal> {
    let declared = body.inputs().iter().skip(first).map(|&input| body.ty(input));
    if body.inputs().len() != first + given.len() || declared.zip(given).any(|(a, b)| !fits(view, a, b)) {
        return Err(refusal(None, "has a body that declares other shapes than it is given"));
    }
    Ok(())
}

/// The same for what an iteration hands to the next.
fn check_carried_shapes(op: &Loop, view: &View<'_>) -> Result<(), Refusal> {
    let declared = op.body.inputs().iter().skip(2).take(op.carried).map(|&input| op.body.ty(input));
    let given = op.body.outputs().iter().skip(1).map(|output| op.body.ty(output.value));
    if declared.zip(given).any(|(a, b)| !fits(view, a, b)) {
        return Err(refusal(None, format!("carries a value whose shape changes with {}", view.dim)));
    }
    Ok(())
}

fn fits(view: &View<'_>, declared: &Type, given: &Type) -> bool {
    let stands_for =
        |declared, given| !view.mentions(declared) && !view.mentions(given) && declared.as_symbol().is_some();
    declared.rank() == given.rank()
        && declared.dims.iter().zip(&given.dims).all(|(a, b)| view.size(a) == view.size(b) || stands_for(a, b))
}
