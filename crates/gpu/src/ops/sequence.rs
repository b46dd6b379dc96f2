//! Stub.
use crate::kernel::Lowered;
use crate::site::Site;
/// Stub.
pub fn lower_recurrent(_: &Site, _: &precast_ir::op::Recurrent) -> Option<Lowered> {
    None
}
