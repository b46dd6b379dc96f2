//! Convolutions: conv and conv_transpose.

use crate::kernel::Lowered;
use crate::site::Site;

/// The kernels of a node.
pub fn lower(_: &Site) -> Result<Option<Lowered>, String> {
    Ok(None)
}
