//! How the states of several inputs join: values without rows, rows beside such values, rows that must lie alike, and
//! rows under NumPy broadcasting.

use precast_tensor::Dim;

use super::state::{Answer, Refusal, Rows, State, View, refusal};

/// The state of a result that every element of the inputs may reach. Inputs with rows are refused.
pub(super) fn whole<'s>(view: &View<'_>, states: impl IntoIterator<Item = &'s State>) -> Answer {
    let mut joined = State::Free;
    for state in states {
        if let State::Row(rows) = state {
            return Err(refusal(rows.axis, format!("reads across the rows of {}", view.dim)));
        }
        joined = joined.join(state).ok_or_else(|| meets_size(view))?;
    }
    Ok(joined)
}

/// `whole` of all inputs of the node.
pub(super) fn all_whole(view: &View<'_>) -> Answer {
    whole(view, view.states.iter().copied())
}

/// Rows that also depend on values without rows.
pub(super) fn beside<'s>(
    view: &View<'_>,
    mut rows: Rows,
    others: impl IntoIterator<Item = &'s State>,
) -> Result<Rows, Refusal> {
    match whole(view, others)? {
        State::Dup(site) => rows.dup = rows.dup.or(Some(site)),
        State::Free => {}
        State::Extent(_) | State::Row(_) | State::Mixed(_) => return Err(meets_size(view)),
    }
    Ok(rows)
}

/// The rows of input `input` on output axis `axis`, when no other input has any.
pub(super) fn carried(view: &View<'_>, input: usize, rows: &Rows, axis: usize) -> Answer {
    let others = view.states.iter().enumerate().filter(|(at, _)| *at != input).map(|(_, state)| *state);
    beside(view, rows.at(axis), others).map(State::Row)
}

/// The joined rows of inputs that must all have them, each on the axis given with it, in extents that are equal; no other
/// input may have any. The result lies on output axis `axis`.
pub(super) fn in_step(view: &View<'_>, inputs: &[(usize, usize)], axis: usize) -> Answer {
    let mut joined: Option<Rows> = None;
    for &(input, own_axis) in inputs {
        let rows = match view.rows(input) {
            Some(rows) if rows.axis == own_axis => rows.at(axis),
            Some(rows) => return Err(two_axes(view, rows.axis)),
            None => return Err(no_rows(view, input, own_axis)),
        };
        joined = Some(match joined {
            None => rows,
            Some(before) => before.merge(&rows).ok_or_else(|| two_axes(view, own_axis))?,
        });
    }
    let is_other = |at: &usize| inputs.iter().all(|(input, _)| input != at);
    let others = view.states.iter().enumerate().filter(|(at, _)| is_other(at)).map(|(_, state)| *state);
    match joined {
        Some(rows) => beside(view, rows, others).map(State::Row),
        None => whole(view, others),
    }
}

/// The state of what operands broadcast to, as NumPy does from the right.
pub(super) fn broadcast(view: &View<'_>, operands: &[(&[Dim], &State)]) -> Answer {
    let rank = operands.iter().map(|(dims, _)| dims.len()).max().unwrap_or(0);
    let mut joined: Option<Rows> = None;
    for (dims, state) in operands {
        let State::Row(rows) = state else { continue };
        let rows = rows.at(rank - dims.len() + rows.axis);
        joined = Some(match joined {
            None => rows,
            Some(before) => before.merge(&rows).ok_or_else(|| two_axes(view, rows.axis))?,
        });
    }
    let without_rows = operands.iter().filter(|(_, state)| !matches!(state, State::Row(_)));
    let Some(rows) = joined else { return whole(view, without_rows.map(|(_, state)| *state)) };
    for (dims, _) in without_rows.clone() {
        check_broadcasts(view, dims, rank, &rows)?;
    }
    beside(view, rows, without_rows.map(|(_, state)| *state)).map(State::Row)
}

/// Refuses an operand without rows that would meet rows, on axis `rows.axis` of `rank`, with an extent other than 1: that
/// extent fits for one number of rows only.
pub(super) fn check_broadcasts(view: &View<'_>, dims: &[Dim], rank: usize, rows: &Rows) -> Result<(), Refusal> {
    let Some(own_axis) = (rows.axis + dims.len()).checked_sub(rank) else { return Ok(()) };
    match dims.get(own_axis) {
        Some(size) if size.as_const() != Some(1) => {
            let why = format!("sets extent {size} against {} rows", rows.extent(view.dim));
            Err(refusal(rows.axis, why))
        }
        _ => Ok(()),
    }
}

/// The refusal of an op that pairs every row with every other.
pub(super) fn two_axes(view: &View<'_>, axis: usize) -> Refusal {
    refusal(axis, format!("pairs rows of {} that do not lie on one axis", view.dim))
}

fn no_rows(view: &View<'_>, input: usize, axis: usize) -> Refusal {
    let size = view.dims(input).get(axis).map_or_else(String::new, Dim::to_string);
    refusal(axis, format!("reads rows of {} together with extent {size}", view.dim))
}

fn meets_size(view: &View<'_>) -> Refusal {
    refusal(None, format!("computes with the size {} as data", view.dim))
}
