//! Stub.
use crate::kernel::Lowered;
use crate::site::Site;
/// Stub.
pub fn lower_matmul_int(_: &Site) -> Option<Lowered> {
    None
}
/// Stub.
pub fn lower_conv_int(_: &Site, _: &precast_ir::op::ConvInt) -> Option<Lowered> {
    None
}
