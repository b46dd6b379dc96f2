//! Picks the kernels of a node. The match has no wildcard: a new op is a compile error here until it is decided.

use precast_ir::Op;

use crate::kernel::Lowered;
use crate::ops;
use crate::site::Site;

/// The kernels of a node; `None` where the GPU has none and the host has to compute it.
pub fn lower(site: &Site) -> Result<Option<Lowered>, String> {
    match site.op() {
        Op::Matmul(_) => ops::matmul::lower(site),
        Op::Conv(_) | Op::ConvTranspose(_) => ops::conv::lower(site),
        Op::Fused(_) => ops::fused_epilogue::lower(site),
        _ => Ok(None),
    }
}
