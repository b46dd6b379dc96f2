//! A fused body: elementwise nodes become one kernel; what has a product, a convolution or an attention at its root is
//! lowered by `fused_epilogue.rs`.

use precast_ir::Graph;
use precast_passes::fuse_pointwise::is_pointwise;

use crate::kernel::Lowered;
use crate::ops::{elementwise, fused_epilogue, gather_concat};
use crate::site::Site;

/// The kernels of a fused body.
pub fn lower(site: &Site, body: &Graph) -> Result<Option<Lowered>, String> {
    if !body.nodes().iter().all(|node| is_pointwise(&node.op)) {
        return match gather_concat::lower(site, body) {
            Some(lowered) => Ok(Some(lowered)),
            None => fused_epilogue::lower(site),
        };
    }
    let outputs: Vec<_> = body.outputs().iter().map(|output| output.value).collect();
    Ok(elementwise::lower_nodes(site, body, body.nodes(), body.inputs(), &outputs))
}
