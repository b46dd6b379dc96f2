//! Picks the kernel of a step. The match has no wildcard: a new op is a compile error here until it is decided. What no
//! kernel covers (rare element types, ranks and modes) runs by reference evaluation and says so in its kernel's name.

use bytes::Bytes;
use precast_ir::Op;
use precast_tensor::{DType, Tensor};

use crate::ops;
use crate::step::{Lowered, Machine, StepNode};

/// Prefix of the kernels that evaluate a node by its meaning.
pub const REFERENCE: &str = "reference";

/// The kernel of a step.
pub fn lower(step: &StepNode, machine: Machine) -> Result<Lowered, String> {
    let lowered = match step.op() {
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select(_) | Op::Clamp(_) | Op::Cast(_) => {
            ops::elementwise::lower(step)?
        }
        Op::Fused(fused) => ops::fused::lower(step, &fused.body, machine)?,
        Op::Reduce(op) => ops::reduce::lower_reduce(step, op)?,
        Op::ArgReduce(op) => ops::reduce::lower_arg_reduce(step, op)?,
        Op::Cumulate(op) => ops::reduce::lower_cumulate(step, op)?,
        Op::Matmul(op) => ops::matmul::lower_matmul(step, op, &ops::epilogue::Epilogue::default(), machine)?,
        Op::MatmulInt(_) => ops::matmul::lower_matmul_int(step, machine)?,
        Op::Conv(op) => ops::conv::lower_conv(step, op, &ops::epilogue::Epilogue::default(), machine)?,
        Op::ConvInt(op) => ops::conv::lower_conv_int(step, op, machine)?,
        Op::ConvTranspose(op) => ops::conv::lower_conv_transpose(step, op, machine)?,
        Op::Pool(op) => ops::window::lower_pool(step, op)?,
        Op::Resize(op) => ops::window::lower_resize(step, op, machine)?,
        Op::Softmax(op) => ops::norm::lower_softmax(step, op)?,
        Op::LayerNorm(op) => ops::norm::lower_layer_norm(step, op)?,
        Op::RmsNorm(op) => ops::norm::lower_rms_norm(step, op)?,
        Op::GroupNorm(op) => ops::norm::lower_group_norm(step, op)?,
        Op::Lrn(op) => ops::norm::lower_lrn(step, op)?,
        Op::Recurrent(op) => ops::sequence::lower_recurrent(step, op, machine)?,
        Op::CachedAttention(op) => ops::cached_attention::lower(step, op, machine),
        Op::Gather(op) => ops::index::lower_gather(step, op)?,
        Op::GatherElements(op) => ops::index::lower_gather_elements(step, op)?,
        Op::GatherNd(op) => ops::index::lower_gather_nd(step, op)?,
        Op::ScatterElements(op) => ops::index::lower_scatter_elements(step, op)?,
        Op::ScatterNd(op) => ops::index::lower_scatter_nd(step, op)?,
        Op::Topk(op) => ops::index::lower_topk(step, op, machine)?,
        Op::Transpose(op) => ops::layout::lower_transpose(step, op)?,
        Op::Broadcast(_) => ops::layout::lower_broadcast(step)?,
        Op::Slice(op) => ops::layout::lower_slice(step, op)?,
        Op::Concat(op) => ops::layout::lower_concat(step, op)?,
        Op::Pad(op) => ops::layout::lower_pad(step, op)?,
        Op::Quantize(op) => ops::quantize::lower_quantize(step, op)?,
        Op::Dequantize(op) => ops::quantize::lower_dequantize(step, op)?,
        Op::Unpack(op) => ops::quantize::lower_unpack(step, op),
        // Views are no steps.
        Op::Reshape(_) | Op::Bitcast(_) => None,
        // Sizes that depend on values and control flow are the host's; they never reach a target.
        Op::NonZero(_) | Op::Nms(_) | Op::If(_) | Op::Loop(_) => None,
        // Caches of the host are written by their owner.
        Op::AppendToCache(_) => None,
        Op::PoolIndices(_) | Op::RoiAlign(_) | Op::GridSample(_) => None,
        Op::Iota(_) | Op::DimValue(_) | Op::Uniform(_) | Op::Normal(_) => None,
    };
    Ok(lowered.unwrap_or_else(|| lower_reference(step)))
}

/// Evaluates the node by its meaning.
fn lower_reference(step: &StepNode) -> Lowered {
    let op = step.op().clone();
    let types: Vec<(DType, Vec<usize>)> =
        (0..step.input_count()).map(|input| (step.dtype(input), step.shape(input))).collect();
    let output_count = step.output_count();
    Lowered::plain(format!("{REFERENCE}.{}", step.op().name()), step, move |args, _| {
        let inputs = types
            .iter()
            .enumerate()
            .map(|(input, (dtype, shape))| {
                let bytes = Bytes::copy_from_slice(args.read::<u8>(input));
                Tensor::new(*dtype, shape.clone(), bytes).map_err(|error| error.to_string())
            })
            .collect::<Result<Vec<Tensor>, String>>()?;
        let outputs = op.eval(&inputs).map_err(|error| error.to_string())?;
        for (output, tensor) in outputs.iter().enumerate().take(output_count) {
            let target = args.write::<u8>(output);
            if target.len() != tensor.as_bytes().len() {
                return Err(format!(
                    "result {output} has {} bytes; {} were planned",
                    tensor.as_bytes().len(),
                    target.len()
                ));
            }
            target.copy_from_slice(tensor.as_bytes());
        }
        Ok(())
    })
}
