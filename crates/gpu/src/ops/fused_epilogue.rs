//! Fused bodies around a product, a convolution or an attention.

use precast_ir::Op;

use crate::kernel::Lowered;
use crate::ops::epilogue::Root;
use crate::ops::{attention, conv, matmul};
use crate::site::Site;

/// The kernels of a node; `None` where its body is something else.
pub fn lower(site: &Site) -> Result<Option<Lowered>, String> {
    let Op::Fused(fused) = site.op() else { return Ok(None) };
    if fused.body.nodes().iter().any(|node| matches!(node.op, Op::Softmax(_))) {
        return Ok(attention::lower(site, &fused.body));
    }
    let Some(root) = Root::of_body(site, &fused.body) else { return Ok(None) };
    match &root.node.op {
        Op::Matmul(_) => Ok(matmul::lower_root(&root)),
        Op::Conv(_) | Op::ConvTranspose(_) => conv::lower_root(&root),
        _ => Ok(None),
    }
}
