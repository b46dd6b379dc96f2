//! Products with constant weights of 4 or 8 bits that have a scale for each block of them, with their epilogue.

use precast_ir::op::{Dequantize, Matmul};
use precast_ir::{Graph, Op};
use precast_kernels::epilogue::{self, Bias};
use precast_kernels::gemm_blocks::{BlockWeights, Code, gemm_blocks, gemm_blocks_scratch_len};
use precast_tensor::{DType, Tensor};

use crate::ops::epilogue::Epilogue;
use crate::step::{Lowered, Machine, Read, StepNode, f32_elements};

/// Nodes of the product: the weights and the matmul.
const PRODUCT_LEN: usize = 2;

/// A body that begins with weights in blocks and a product with them.
pub fn lower(step: &StepNode, body: &Graph, op: &Dequantize, machine: Machine) -> Result<Option<Lowered>, String> {
    let Some(product) = Product::of(step, body, op) else { return Ok(None) };
    let Some(epilogue) = Epilogue::after(body, PRODUCT_LEN) else { return Ok(None) };
    let Some(constant_part) = epilogue.constant_part(step) else { return Ok(None) };
    let weights = product.weights;
    let is_wrong_bias = |bias: usize| step.shape(bias).iter().product::<usize>() != weights.n;
    if epilogue.scale.is_some() || epilogue.bias.is_some_and(is_wrong_bias) {
        return Ok(None);
    }
    let operands = Operands { x: product.x, m: product.m, packed: product.packed(step)? };
    Ok(Some(lower_product("gemm_blocks", weights, operands, &epilogue, constant_part, machine)))
}

/// What a product with packed weights of few bits reads.
pub struct Operands {
    /// Position of the rows.
    pub x: usize,
    /// How many rows there are.
    pub m: usize,
    /// The weights.
    pub packed: Read,
}

/// The kernel of a product with weights of few bits.
pub fn lower_product(
    kernel: &str,
    weights: BlockWeights,
    Operands { x, m, packed }: Operands,
    epilogue: &Epilogue,
    constant_part: epilogue::Epilogue<'static>,
    machine: Machine,
) -> Lowered {
    let mut reads = vec![Read::Input(x), packed];
    let mut push = |input: usize| {
        reads.push(Read::Input(input));
        reads.len() - 1
    };
    let (bias, residual) = (epilogue.bias.map(&mut push), epilogue.residual.map(&mut push));
    let scratch_bytes = gemm_blocks_scratch_len(machine.isa, machine.threads, &weights, m) * size_of::<f32>();
    Lowered {
        kernel: format!("{kernel}.{}bit{}", weights.code.bits(), epilogue.suffix()),
        reads,
        scratch_bytes,
        run: Box::new(move |args, exec| {
            let bias = bias.map_or(Bias::None, |read| Bias::Columns(args.read(read)));
            let residual = residual.map(|read| args.read::<f32>(read));
            let epilogue = epilogue::Epilogue { bias, residual, ..constant_part };
            let (x, packed, c) = (args.read::<f32>(0), args.read::<u32>(1), args.write::<f32>(0));
            let scratch: &mut [f32] = if scratch_bytes > 0 { args.write(1) } else { &mut [] };
            gemm_blocks(exec, &weights, m, x, packed, &epilogue, c, scratch);
            Ok(())
        }),
    }
}

/// The product at the beginning of a body, and which inputs of the step it reads.
struct Product {
    weights: BlockWeights,
    m: usize,
    /// Position of the rows.
    x: usize,
    /// Whether levels and zero points are signed.
    is_signed: bool,
    /// Positions of levels, scales and zero points.
    parts: (usize, usize, Option<usize>),
}

impl Product {
    fn of(step: &StepNode, body: &Graph, op: &Dequantize) -> Option<Product> {
        let [first, second, ..] = body.nodes() else { return None };
        let Op::Matmul(Matmul { transpose_a: false, transpose_b: true }) = second.op else { return None };
        if op.axis != 1 || op.to != DType::F32 || second.inputs[1] != first.outputs[0] {
            return None;
        }
        let place = |at: usize| body.inputs().iter().position(|input| first.inputs.get(at) == Some(input));
        let (levels, scales) = (place(0)?, place(1)?);
        let zero_points = match first.inputs.len() {
            2 => None,
            _ => Some(place(2)?),
        };
        let x = body.inputs().iter().position(|&input| input == second.inputs[0])?;
        let [n, k] = step.shape(levels)[..] else { return None };
        let (code, is_signed) = match step.dtype(levels) {
            DType::I4 => (Code::Int4, true),
            DType::U4 => (Code::Int4, false),
            DType::I8 => (Code::Int8, true),
            DType::U8 => (Code::Int8, false),
            _ => return None,
        };
        let rows = step.shape(x);
        let is_f32 = step.dtype(x) == DType::F32 && step.dtype(scales) == DType::F32;
        let is_constant = [levels, scales].into_iter().chain(zero_points).all(|input| step.is_constant(input));
        let weights = BlockWeights { k, n, block: op.block, code, has_shifts: zero_points.is_some() };
        // The kernel counts levels from the middle one: those of signed types without zero points.
        let is_covered = is_f32 && is_constant && weights.is_covered() && (is_signed || zero_points.is_some());
        let m = rows[..rows.len() - 1].iter().product();
        is_covered.then_some(Product { weights, m, x, is_signed, parts: (levels, scales, zero_points) })
    }

    /// The weights as the kernel reads them.
    fn packed(&self, step: &StepNode) -> Result<Read, String> {
        let (levels, scales, zero_points) = self.parts;
        let tensors = (step.constant(levels), step.constant(scales), zero_points.and_then(|at| step.constant(at)));
        let fill = match tensors {
            (Some(levels), Some(scales), zero_points) => {
                let (weights, is_signed) = (self.weights, self.is_signed);
                let (levels, scales, zero_points) = (levels.clone(), scales.clone(), zero_points.cloned());
                Some(move |packed: &mut [u32]| {
                    let levels = unsigned(&levels, weights.code.origin(), is_signed);
                    let zero_points = zero_points.map(|tensor| unsigned(&tensor, weights.code.origin(), is_signed));
                    weights.pack(&levels, &f32_elements(scales.as_bytes()), zero_points.as_deref(), packed);
                })
            }
            _ => None,
        };
        Read::packed(self.weights.packed_len(), fill)
    }
}

/// Levels counted from the least one.
fn unsigned(levels: &Tensor, origin: u8, is_signed: bool) -> Vec<u8> {
    let shift = if is_signed { origin } else { 0 };
    levels.as_bytes().iter().map(|level| level.wrapping_add(shift)).collect()
}
