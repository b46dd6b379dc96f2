//! Picks the kernels of a node. The match has no wildcard: a new op is a compile error here until it is decided.

use precast_ir::Op;

use crate::kernel::Lowered;
use crate::ops;
use crate::site::Site;

/// The kernels of a node; `None` where the GPU has none and the host has to compute it. A result without elements takes
/// no launches.
pub fn lower(site: &Site) -> Result<Option<Lowered>, String> {
    let is_empty = (0..site.node.outputs.len()).all(|output| site.out_shape(output).contains(&0));
    if is_empty && !matches!(site.op(), Op::NonZero(_) | Op::Nms(_) | Op::If(_) | Op::Loop(_)) {
        let name = format!("{}.empty", site.op().name());
        return Ok(Some(Lowered { name, launches: Vec::new(), scratch_bytes: Vec::new(), packed: Vec::new() }));
    }
    Ok(match site.op() {
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select(_) | Op::Clamp(_) | Op::Cast(_) => {
            ops::elementwise::lower(site)
        }
        Op::Fused(op) => ops::fused::lower(site, &op.body)?,
        Op::Reduce(op) => ops::reduce::lower_reduce(site, op),
        Op::ArgReduce(op) => ops::arg_reduce_parts::lower(site, op).or_else(|| ops::reduce::lower_arg_reduce(site, op)),
        Op::Cumulate(op) => ops::reduce::lower_cumulate(site, op),
        Op::Matmul(_) => ops::matmul::lower(site)?,
        Op::MatmulInt(_) => ops::integer::lower_matmul_int(site),
        Op::Conv(_) | Op::ConvTranspose(_) => ops::conv::lower(site)?,
        Op::ConvInt(op) => ops::integer::lower_conv_int(site, op),
        Op::Pool(op) => ops::window::pool::lower_pool(site, op),
        Op::PoolIndices(op) => ops::window::pool::lower_pool_indices(site, op),
        Op::RoiAlign(op) => ops::window::roi_align::lower_roi_align(site, op),
        Op::Resize(op) => ops::window::resize::lower_resize(site, op)?,
        Op::GridSample(op) => ops::window::grid_sample::lower_grid_sample(site, op),
        Op::Softmax(op) => ops::norm::lower_softmax(site, op),
        Op::LayerNorm(op) => ops::norm::lower_layer_norm(site, op),
        Op::RmsNorm(op) => ops::norm::lower_rms_norm(site, op),
        Op::GroupNorm(op) => ops::norm::lower_group_norm(site, op),
        Op::Lrn(op) => ops::norm::lower_lrn(site, op),
        Op::Recurrent(op) => ops::sequence::lower_recurrent(site, op),
        Op::CachedAttention(op) => ops::cached_attention::lower(site, op),
        Op::AppendToCache(op) => ops::append_to_cache::lower(site, op),
        Op::Gather(op) => ops::index::lower_gather(site, op),
        Op::GatherElements(op) => ops::index::lower_gather_elements(site, op),
        Op::GatherNd(op) => ops::index::lower_gather_nd(site, op),
        Op::ScatterElements(op) => ops::scatter::lower_scatter_elements(site, op),
        Op::ScatterNd(op) => ops::scatter::lower_scatter_nd(site, op),
        Op::Topk(op) => ops::topk::lower(site, op),
        Op::Transpose(op) => ops::layout::lower_transpose(site, op),
        Op::Broadcast(_) => ops::layout::lower_broadcast(site),
        Op::Slice(op) => ops::layout::lower_slice(site, op),
        Op::Concat(op) => ops::layout::lower_concat(site, op),
        Op::Pad(op) => ops::layout::lower_pad(site, op),
        Op::Reshape(_) | Op::Bitcast(_) => ops::layout::lower_view(site),
        Op::Iota(op) => ops::layout::lower_iota(site, op),
        Op::DimValue(op) => ops::layout::lower_dim_value(site, op),
        Op::Quantize(op) => ops::quantize::lower_quantize(site, op),
        Op::Dequantize(op) => ops::quantize::lower_dequantize(site, op),
        Op::Unpack(op) => ops::quantize::lower_unpack(site, op),
        Op::Uniform(op) => ops::random::lower_uniform(site, op),
        Op::Normal(op) => ops::random::lower_normal(site, op),
        // Sizes that depend on values, and control flow, are the host's.
        Op::NonZero(_) | Op::Nms(_) | Op::If(_) | Op::Loop(_) => None,
    })
}
