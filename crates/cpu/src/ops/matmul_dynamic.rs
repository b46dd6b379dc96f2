//! Products of float rows and 8-bit weights, with their epilogue.

use precast_ir::Graph;
use precast_kernels::epilogue::{self, Bias};
use precast_kernels::gemm_dynamic::{GemmDynamic, gemm_dynamic, gemm_dynamic_scratch_len};
use precast_kernels::gemm_int::{self, ZeroPoints};
use precast_tensor::Tensor;

use crate::ops::epilogue::Epilogue;
use crate::step::{Lowered, Read, StepNode};

/// A body whose first `product_len` nodes are a dynamic product of the step's inputs x, weights and scales.
pub fn lower(step: &StepNode, body: &Graph, product_len: usize) -> Result<Option<Lowered>, String> {
    let Some(epilogue) = Epilogue::after(body, product_len) else { return Ok(None) };
    let Some(constant_part) = epilogue.constant_part(step) else { return Ok(None) };
    let (x, weights) = (step.shape(0), step.shape(1));
    let (k, n) = (weights[0], weights[1]);
    let m: usize = x[..x.len() - 1].iter().product();
    let is_wrong_bias = |bias: usize| step.shape(bias).iter().product::<usize>() != n;
    if !step.is_constant(1) || epilogue.scale.is_some() || epilogue.bias.is_some_and(is_wrong_bias) {
        return Ok(None);
    }
    let pack = |tensor: &Tensor| {
        let weights = gemm_int::pack_b_int(k, n, tensor.as_bytes(), true, false);
        move |packed: &mut [u8]| packed.copy_from_slice(&weights)
    };
    let packed = Read::packed(gemm_int::packed_b_int_len(k, n), step.constant(1).map(pack))?;
    let mut reads = vec![Read::Input(0), packed, Read::Input(2)];
    let mut push = |input: usize| {
        reads.push(Read::Input(input));
        reads.len() - 1
    };
    let (bias, residual) = (epilogue.bias.map(&mut push), epilogue.residual.map(&mut push));
    let scratch_bytes = gemm_dynamic_scratch_len(m, k);
    Ok(Some(Lowered {
        kernel: format!("gemm_dynamic{}", epilogue.suffix()),
        reads,
        scratch_bytes,
        run: Box::new(move |args, exec| {
            let bias = bias.map_or(Bias::None, |read| Bias::Columns(args.read(read)));
            let residual = residual.map(|read| args.read::<f32>(read));
            let epilogue = epilogue::Epilogue { bias, residual, ..constant_part };
            let (a, packed_b, scales) = (args.read(0), args.read(1), args.read(2));
            let b_zero = ZeroPoints::Scalar(0);
            let gemm = GemmDynamic { m, n, k, a, packed_b, is_b_signed: true, b_zero, scales };
            let c = args.write::<f32>(0);
            let scratch: &mut [u8] = if scratch_bytes > 0 { args.write(1) } else { &mut [] };
            gemm_dynamic(&exec, &gemm, &epilogue, c, scratch);
            Ok(())
        }),
    }))
}
