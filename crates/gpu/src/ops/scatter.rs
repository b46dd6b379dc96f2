//! Stub.
use crate::kernel::Lowered;
use crate::site::Site;
/// Stub.
pub fn lower_scatter_elements(_: &Site, _: &precast_ir::op::ScatterElements) -> Option<Lowered> {
    None
}
/// Stub.
pub fn lower_scatter_nd(_: &Site, _: &precast_ir::op::ScatterNd) -> Option<Lowered> {
    None
}
