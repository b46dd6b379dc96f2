//! Stub.
use crate::kernel::Lowered;
use crate::site::Site;
/// Stub.
pub fn lower_quantize(_: &Site, _: &precast_ir::op::Quantize) -> Option<Lowered> {
    None
}
/// Stub.
pub fn lower_dequantize(_: &Site, _: &precast_ir::op::Dequantize) -> Option<Lowered> {
    None
}
