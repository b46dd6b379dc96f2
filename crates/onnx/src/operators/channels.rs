//! Channels before or after the spatial axes: com.microsoft has operators that want them last, our ops have them first.

use precast_ir::ValueId;

use crate::import::{Fault, NodeCx};

/// [N, spatial.., C] as [N, C, spatial..].
pub(super) fn channels_first(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId, Fault> {
    let rank = at_least_three(cx, x)?;
    let perm = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    cx.transpose(x, perm)
}

/// [N, C, spatial..] as [N, spatial.., C].
pub(super) fn channels_last(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId, Fault> {
    let rank = at_least_three(cx, x)?;
    let perm = std::iter::once(0).chain(2..rank).chain([1]).collect();
    cx.transpose(x, perm)
}

fn at_least_three(cx: &NodeCx<'_, '_>, x: ValueId) -> Result<usize, Fault> {
    match cx.rank(x) {
        rank if rank >= 3 => Ok(rank),
        rank => Err(Fault::Invalid(format!("the input has rank {rank}; 3 or more was expected"))),
    }
}
