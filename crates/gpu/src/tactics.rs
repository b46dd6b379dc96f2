//! The ways to compute a product or a convolution, for a tuner that measures them.

use precast_ir::Op;

use crate::kernel::Lowered;
use crate::ops::conv::{ConvSizes, product as conv_product};
use crate::ops::epilogue::Root;
use crate::ops::matmul::product as matmul_product;
use crate::ops::product::Product;
use crate::site::Site;

pub use crate::ops::conv::wants_channels_last;
pub use crate::ops::tiles::{SplitBy, Tactic, Tile};

/// The tactics of a node, the one that is expected to be fastest first; none where it has no choice.
pub fn candidates(site: &Site) -> Vec<Tactic> {
    product(site).map(|product| product.candidates(site.arch)).unwrap_or_default()
}

/// The kernels of a node by one of its candidates.
pub fn lower_with(site: &Site, tactic: &Tactic) -> Option<Lowered> {
    product(site)?.lower_with(site.arch, tactic)
}

fn product(site: &Site) -> Option<Product> {
    let root = match site.op() {
        Op::Fused(fused) => Root::of_body(site, &fused.body)?,
        _ => Root::alone(site),
    };
    match &root.node.op {
        Op::Matmul(_) => matmul_product(&root),
        Op::Conv(op) => {
            let sizes = ConvSizes::of(&root, op)?;
            if sizes.is_depthwise() { None } else { conv_product(&root, &sizes) }
        }
        _ => None,
    }
}
