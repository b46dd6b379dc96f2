//! Stub.
use crate::kernel::Lowered;
use crate::site::Site;
/// Stub.
pub fn lower_reduce(_: &Site, _: &precast_ir::op::Reduce) -> Option<Lowered> {
    None
}
/// Stub.
pub fn lower_arg_reduce(_: &Site, _: &precast_ir::op::ArgReduce) -> Option<Lowered> {
    None
}
/// Stub.
pub fn lower_cumulate(_: &Site, _: &precast_ir::op::Cumulate) -> Option<Lowered> {
    None
}
