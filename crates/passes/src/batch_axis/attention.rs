//! Attention behind a cache: rows pass on the batch axis of everything that has one; tables, sinks and pages have none.

use precast_ir::op::{AppendToCache, CachedAttention, RotaryFn};

use super::align::{all_whole, in_step};
use super::state::{Answer, View};

/// Inputs before the tables, which all have the rows first, unless cached tokens lie in pages.
const REQUIRED: usize = 4;
/// Those of cached tokens.
const CACHES: [usize; 2] = [1, 2];

pub(super) fn cached_attention(op: &CachedAttention, view: &View<'_>) -> Answer {
    if let Some(rows) = view.rows(0)
        && rows.axis != 0
    {
        return Err(view.over(rows.axis, if rows.axis == 1 { "attends" } else { "contracts" }));
    }
    let tables = if op.rotary == RotaryFn::None { 0 } else { 2 };
    let positions = op.positions.then_some(REQUIRED + tables);
    let pages = op.paged.then(|| view.states.len() - 1);
    let of_rows = (0..REQUIRED).filter(|input| !op.paged || !CACHES.contains(input));
    let carriers: Vec<(usize, usize)> = of_rows.chain(positions).chain(pages).map(|input| (input, 0)).collect();
    match carriers.iter().any(|(input, _)| view.rows(*input).is_some()) {
        true => in_step(view, &carriers, 0),
        false => all_whole(view),
    }
}

/// Every operand has the rows first, and so have the results, unless those are pages, which all rows write to.
pub(super) fn append_to_cache(op: &AppendToCache, view: &View<'_>) -> Answer {
    if op.paged {
        return all_whole(view);
    }
    let carriers: Vec<(usize, usize)> = (0..view.states.len()).map(|input| (input, 0)).collect();
    let others = carriers.iter().filter_map(|(input, _)| view.rows(*input)).find(|rows| rows.axis != 0);
    if let Some(rows) = others {
        return Err(view.over(rows.axis, "writes"));
    }
    match carriers.iter().any(|(input, _)| view.rows(*input).is_some()) {
        true => in_step(view, &carriers, 0),
        false => all_whole(view),
    }
}
