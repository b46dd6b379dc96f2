//! A fused attention: what its body reads and writes as strides, worked out while loading.

use precast_ir::Graph;
use precast_kernels::attention::{self, AttentionShape, Head, Layout, MaskLayout};
use precast_kernels::gemm::Order;
use precast_passes::fuse_attention::{Attention, Matrix, Operand, attention_of};
use precast_passes::strided_view::StridedView;
use precast_tensor::DType;

use crate::step::{Lowered, Machine, Read, StepNode};

/// The kernel of a body that is an attention of f32.
pub fn lower(step: &StepNode, body: &Graph, machine: Machine) -> Option<Lowered> {
    let found = attention_of(body, &|input| step.inline(input).cloned())?;
    let operands = [Some(&found.q), Some(&found.k), Some(&found.v), found.mask.as_ref()];
    if operands.into_iter().flatten().any(|operand| step.dtype(operand.input) != DType::F32) {
        return None;
    }
    let output_len = step.output_shape(0).iter().product();
    let attention = attention::Attention::new(shape_of(&found)?, output_len)?;
    let scratch = attention.scratch_len(machine.isa, machine.threads) * size_of::<f32>();
    let has_mask = found.mask.is_some();
    let reads = operands.into_iter().flatten().map(|operand| Read::Input(operand.input)).collect();
    Some(Lowered {
        kernel: format!("attention{}", if has_mask { "+mask" } else { "" }),
        reads,
        scratch_bytes: scratch,
        run: Box::new(move |args, exec| {
            let (q, k, v) = (args.read::<f32>(0), args.read::<f32>(1), args.read::<f32>(2));
            let mask = has_mask.then(|| args.read::<f32>(3));
            let output = args.write::<f32>(0);
            attention.run(exec, q, k, v, mask, output, args.write::<f32>(1));
            Ok(())
        }),
    })
}

fn shape_of(found: &Attention) -> Option<AttentionShape> {
    let layout = |view: &StridedView| {
        let matrix = Matrix::of(view)?;
        Some(Layout { order: if matrix.is_by_rows { Order::Rows } else { Order::Columns }, stride: matrix.stride })
    };
    let starts = |view: &StridedView| starts(view, &found.batch);
    let (q, k, v) = (starts(&found.q.view), starts(&found.k.view), starts(&found.v.view));
    let output = starts(&found.output);
    let mask = found.mask.as_ref().map(|operand| starts(&operand.view));
    let heads = (0..output.len()).map(|head| Head {
        q: q[head],
        k: k[head],
        v: v[head],
        mask: mask.as_ref().map_or(0, |mask| mask[head]),
        output: output[head],
    });
    let mask_layout = |Operand { view, .. }: &Operand| {
        let rank = view.strides.len();
        MaskLayout { query_stride: view.strides[rank - 2], is_by_key: view.strides[rank - 1] != 0 || found.keys == 1 }
    };
    Some(AttentionShape {
        queries: found.queries,
        keys: found.keys,
        depth: found.depth,
        width: found.width,
        q: layout(&found.q.view)?,
        k: layout(&found.k.view)?,
        v: layout(&found.v.view)?,
        output: layout(&found.output)?,
        scale: found.scale,
        divisor: found.divisor,
        mask: found.mask.as_ref().map(mask_layout),
        clears_nan: found.clears_nan,
        heads: heads.collect(),
    })
}

/// Where the matrix of each item of the batch starts.
fn starts(view: &StridedView, batch: &[usize]) -> Vec<usize> {
    let items: usize = batch.iter().product();
    (0..items)
        .map(|item| {
            let (mut rest, mut start) = (item, view.offset);
            for axis in (0..batch.len()).rev() {
                start += rest % batch[axis] * view.strides[axis];
                rest /= batch[axis];
            }
            start
        })
        .collect()
}
