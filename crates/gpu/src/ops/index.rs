//! Stub.
use crate::kernel::Lowered;
use crate::site::Site;
/// Stub.
pub fn lower_gather(_: &Site, _: &precast_ir::op::Gather) -> Option<Lowered> {
    None
}
/// Stub.
pub fn lower_gather_elements(_: &Site, _: &precast_ir::op::GatherElements) -> Option<Lowered> {
    None
}
/// Stub.
pub fn lower_gather_nd(_: &Site, _: &precast_ir::op::GatherNd) -> Option<Lowered> {
    None
}
