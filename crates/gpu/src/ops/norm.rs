//! Stub.
use crate::kernel::Lowered;
use crate::site::Site;
/// Stub.
pub fn lower_softmax(_: &Site, _: &precast_ir::op::Softmax) -> Option<Lowered> {
    None
}
/// Stub.
pub fn lower_layer_norm(_: &Site, _: &precast_ir::op::LayerNorm) -> Option<Lowered> {
    None
}
/// Stub.
pub fn lower_rms_norm(_: &Site, _: &precast_ir::op::RmsNorm) -> Option<Lowered> {
    None
}
/// Stub.
pub fn lower_group_norm(_: &Site, _: &precast_ir::op::GroupNorm) -> Option<Lowered> {
    None
}
/// Stub.
pub fn lower_lrn(_: &Site, _: &precast_ir::op::Lrn) -> Option<Lowered> {
    None
}
