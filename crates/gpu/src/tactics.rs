//! The ways to compute a product, a convolution or an attention, for a tuner that measures them.

use precast_ir::{Graph, Op};

use crate::kernel::Lowered;
use crate::ops::attention;
use crate::ops::conv::{ConvSizes, product as conv_product};
use crate::ops::epilogue::Root;
use crate::ops::matmul::product as matmul_product;
use crate::ops::product::Product;
use crate::site::Site;

pub use crate::ops::tiles::{SplitBy, Tactic, Tile};

/// The tactics of a node, the one that is expected to be fastest first; none where it has no choice.
pub fn candidates(site: &Site) -> Vec<Tactic> {
    match attention_body(site) {
        Some(body) => attention::candidates(site, body),
        None => product(site).map(|product| product.candidates(site.arch)).unwrap_or_default(),
    }
}

/// The kernels of a node by one of its candidates.
pub fn lower_with(site: &Site, tactic: &Tactic) -> Option<Lowered> {
    match attention_body(site) {
        Some(body) => attention::lower_with(site, body, tactic),
        None => product(site)?.lower_with(site.arch, tactic),
    }
}

fn attention_body<'a>(site: &Site<'a>) -> Option<&'a Graph> {
    let Op::Fused(fused) = site.op() else { return None };
    fused.body.nodes().iter().any(|node| matches!(node.op, Op::Softmax(_))).then_some(&fused.body)
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
