//! Picks the kernels of a node. The match has no wildcard: a new op is a compile error here until it is decided.
use crate::{kernel::Lowered, site::Site};
/// stand-in
pub fn lower(_: &Site<'_>) -> Result<Option<Lowered>, String> {
    Ok(None)
}
