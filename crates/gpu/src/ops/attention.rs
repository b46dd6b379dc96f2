//! Fused attentions.

use precast_ir::Graph;

use crate::kernel::Lowered;
use crate::site::Site;

/// The kernels of a body that is an attention.
pub fn lower(_: &Site, _: &Graph) -> Option<Lowered> {
    None
}
