//! Stub.
use crate::kernel::Lowered;
use crate::site::Site;
/// Stub.
pub fn lower(_: &Site, _: &precast_ir::op::Topk) -> Option<Lowered> {
    None
}
