//! Stub.
use crate::kernel::Lowered;
use crate::site::Site;
/// Stub.
pub fn lower_pool(_: &Site, _: &precast_ir::op::Pool) -> Option<Lowered> {
    None
}
/// Stub.
pub fn lower_pool_indices(_: &Site, _: &precast_ir::op::PoolIndices) -> Option<Lowered> {
    None
}
/// Stub.
pub fn lower_roi_align(_: &Site, _: &precast_ir::op::RoiAlign) -> Option<Lowered> {
    None
}
/// Stub.
pub fn lower_grid_sample(_: &Site, _: &precast_ir::op::GridSample) -> Option<Lowered> {
    None
}
/// Stub.
pub fn lower_resize(_: &Site, _: &precast_ir::op::Resize) -> Result<Option<Lowered>, String> {
    Ok(None)
}
