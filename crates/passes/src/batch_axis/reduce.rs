//! Reductions: beside the rows they keep them. Over the rows, the largest and smallest element do not change when rows
//! are repeated; sums and products do.

use precast_ir::op::{ArgReduce, Cumulate, Reduce, ReduceFn};
use precast_tensor::Dim;

use super::state::{Answer, Rows, State, View, refusal};

pub(super) fn reduce(op: &Reduce, view: &View<'_>) -> Answer {
    let Some(rows) = view.rows(0) else { return Ok(view.states[0].clone()) };
    if !op.axes.contains(&rows.axis) {
        let gone = if op.keep_dims { 0 } else { op.axes.iter().filter(|axis| **axis < rows.axis).count() };
        return Ok(State::Row(rows.at(rows.axis - gone)));
    }
    let what = match op.func {
        ReduceFn::Max => return extreme(view, rows, "takes the largest element"),
        ReduceFn::Min => return extreme(view, rows, "takes the smallest element"),
        ReduceFn::Any => return extreme(view, rows, "asks for any"),
        ReduceFn::All => return extreme(view, rows, "asks for all"),
        ReduceFn::Sum => "sums",
        ReduceFn::Mean => "averages",
        ReduceFn::Prod => "multiplies",
        ReduceFn::L1 | ReduceFn::L2 | ReduceFn::SumSq => "sums magnitudes",
        ReduceFn::LogSum | ReduceFn::LogSumExp => "sums for a logarithm",
    };
    Err(view.over(rows.axis, what))
}

/// A function of the set of rows: repeating a row does not change it, unless rows depend on their place.
fn extreme(view: &View<'_>, rows: &Rows, what: &str) -> Answer {
    if rows.prefix.is_some() {
        return Err(view.over(rows.axis, what));
    }
    Ok(State::Dup(view.site(Some(rows.axis), format!("{what} over {}", view.dim))))
}

pub(super) fn arg_reduce(op: &ArgReduce, view: &View<'_>) -> Answer {
    let Some(rows) = view.rows(0) else { return Ok(view.states[0].clone()) };
    if op.axis != rows.axis {
        let gone = usize::from(!op.keep_dims && op.axis < rows.axis);
        return Ok(State::Row(rows.at(rows.axis - gone)));
    }
    // Pads come last, so the first of equal elements is a real one; its index counts blocks before it, though.
    if op.last || rows.outer != Dim::ONE {
        return Err(view.over(rows.axis, "takes an index"));
    }
    extreme(view, rows, "takes the first index")
}

pub(super) fn cumulate(op: &Cumulate, view: &View<'_>) -> Answer {
    let Some(rows) = view.rows(0) else { return Ok(view.states[0].clone()) };
    if op.axis != rows.axis {
        return Ok(view.states[0].clone());
    }
    if op.reverse {
        return Err(view.over(rows.axis, "accumulates backwards"));
    }
    if rows.outer != Dim::ONE {
        return Err(refusal(rows.axis, format!("accumulates over blocks of {} rows", view.dim)));
    }
    let prefix = Some(view.site(Some(rows.axis), format!("accumulates over {}", view.dim)));
    Ok(State::Row(Rows { prefix: rows.prefix.clone().or(prefix), ..rows.clone() }))
}
