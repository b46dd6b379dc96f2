//! Products with constant weights of 4 or 8 bits that have a scale for each block of them, with their epilogue.

use precast_ir::op::{Dequantize, Matmul, Unpack};
use precast_ir::{Graph, Op, ValueId};
use precast_kernels::epilogue::{self, Bias};
use precast_kernels::gemm_blocks::{BlockWeights, Code, gemm_blocks, gemm_blocks_scratch_len};
use precast_kernels::gemm_blocks_digits::{gemm_blocks_digits, gemm_blocks_digits_scratch_len};
use precast_kernels::gemm_blocks_int::{gemm_blocks_int, gemm_blocks_int_scratch_len};
use precast_tensor::{DType, Tensor};

use crate::ops::epilogue::Epilogue;
use crate::step::{Lowered, Machine, Read, StepNode, f32_elements};

/// A body that begins with weights in blocks and a product with them.
pub fn lower(step: &StepNode, body: &Graph, machine: Machine) -> Result<Option<Lowered>, String> {
    let Some(product) = Product::of(step, body) else { return Ok(None) };
    let Some(epilogue) = Epilogue::after(body, product.len) else { return Ok(None) };
    let Some(constant_part) = epilogue.constant_part(step) else { return Ok(None) };
    let weights = product.weights;
    let is_wrong_bias = |bias: usize| step.shape(bias).iter().product::<usize>() != weights.n;
    if epilogue.scale.is_some() || epilogue.bias.is_some_and(is_wrong_bias) {
        return Ok(None);
    }
    let operands = Operands { x: product.x, m: product.m, packed: product.packed(step) };
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
    let rows = Rows::of(&weights, m, machine);
    let scratch_bytes = match rows {
        Rows::Bytes => gemm_blocks_int_scratch_len(&weights, m) * size_of::<u32>(),
        Rows::Digits => gemm_blocks_digits_scratch_len(machine.threads, &weights, m) * size_of::<u32>(),
        Rows::Floats => gemm_blocks_scratch_len(machine.isa, machine.threads, &weights, m) * size_of::<f32>(),
    };
    Lowered {
        kernel: format!("{kernel}.{}bit{}{}", weights.code.bits(), rows.suffix(), epilogue.suffix()),
        reads,
        scratch_bytes,
        run: Box::new(move |args, exec| {
            let bias = bias.map_or(Bias::None, |read| Bias::Columns(args.read(read)));
            let residual = residual.map(|read| args.read::<f32>(read));
            let epilogue = epilogue::Epilogue { bias, residual, ..constant_part };
            let (x, packed, c) = (args.read::<f32>(0), args.read::<u32>(1), args.write::<f32>(0));
            match rows {
                Rows::Bytes => {
                    let scratch: &mut [u32] = if scratch_bytes > 0 { args.write(1) } else { &mut [] };
                    gemm_blocks_int(exec, &weights, m, x, packed, &epilogue, c, scratch);
                }
                Rows::Digits => {
                    let scratch: &mut [u32] = if scratch_bytes > 0 { args.write(1) } else { &mut [] };
                    gemm_blocks_digits(exec, &weights, m, x, packed, &epilogue, c, scratch);
                }
                Rows::Floats => {
                    let scratch: &mut [f32] = if scratch_bytes > 0 { args.write(1) } else { &mut [] };
                    gemm_blocks(exec, &weights, m, x, packed, &epilogue, c, scratch);
                }
            }
            Ok(())
        }),
    }
}

/// What the rows of a product become before they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    /// They stay as they are.
    Floats,
    /// Integers of 24 bits, three bytes each: as exact as f32.
    Digits,
    /// One byte each, which was asked for.
    Bytes,
}

impl Rows {
    fn of(weights: &BlockWeights, m: usize, machine: Machine) -> Rows {
        match machine.quantises_rows && weights.takes_byte_rows() {
            true => Rows::Bytes,
            false if !machine.is_strict && weights.takes_digits(machine.isa, m) => Rows::Digits,
            false => Rows::Floats,
        }
    }

    /// What the name of the kernel says of them.
    fn suffix(self) -> &'static str {
        match self {
            Rows::Floats => "",
            Rows::Digits => "+digits",
            Rows::Bytes => "+int8_rows",
        }
    }
}

/// The product at the beginning of a body, and which inputs of the step it reads.
struct Product {
    /// Nodes of the body that it takes: perhaps one that unpacks, one that scales, and the matmul.
    len: usize,
    weights: BlockWeights,
    m: usize,
    /// Position of the rows.
    x: usize,
    levels: Levels,
    /// Positions of scales and zero points.
    scales: usize,
    zero_points: Option<usize>,
}

/// Where the levels of weights are.
#[derive(Clone)]
struct Levels {
    /// Position of the input that has them.
    input: usize,
    /// How they lie in bytes; none has one a byte.
    unpack: Option<Unpack>,
    /// Whether they and zero points are signed.
    is_signed: bool,
}

impl Product {
    fn of(step: &StepNode, body: &Graph) -> Option<Product> {
        let (unpack, rest) = match body.nodes() {
            [first, rest @ ..] if matches!(first.op, Op::Unpack(_)) => (Some(first), rest),
            nodes => (None, nodes),
        };
        let [scaling, product, ..] = rest else { return None };
        let Op::Dequantize(Dequantize { to: DType::F32, axis: 1, block }) = scaling.op else { return None };
        let Op::Matmul(Matmul { transpose_a: false, transpose_b: true }) = product.op else { return None };
        let is_chain = product.inputs[1] == scaling.outputs[0]
            && unpack.is_none_or(|unpack| unpack.outputs[0] == scaling.inputs[0]);
        let place = |value: ValueId| body.inputs().iter().position(|&input| input == value);
        let (x, scales) = (place(product.inputs[0])?, place(scaling.inputs[1])?);
        let zero_points = match scaling.inputs.get(2) {
            None => None,
            Some(&value) => Some(place(value)?),
        };
        let ty = body.ty(scaling.inputs[0]);
        let (code, is_signed) = match ty.dtype {
            DType::I4 => (Code::Int4, true),
            DType::U4 => (Code::Int4, false),
            DType::I8 => (Code::Int8, true),
            DType::U8 => (Code::Int8, false),
            _ => return None,
        };
        let levels = Levels {
            input: place(unpack.map_or(scaling.inputs[0], |unpack| unpack.inputs[0]))?,
            unpack: match unpack.map(|unpack| &unpack.op) {
                Some(Op::Unpack(op)) => Some(op.clone()),
                _ => None,
            },
            is_signed,
        };
        let [n, k] = ty.shape()?[..] else { return None };
        let weights = BlockWeights { k, n, block, code, has_shifts: zero_points.is_some() };
        let rows = step.shape(x);
        let is_f32 = step.dtype(x) == DType::F32 && step.dtype(scales) == DType::F32;
        let is_constant = [levels.input, scales].into_iter().chain(zero_points).all(|input| step.is_constant(input));
        // The kernel counts levels from the middle one: those of signed types without zero points.
        let is_covered = weights.is_covered() && (is_signed || zero_points.is_some());
        let len = 2 + usize::from(unpack.is_some());
        let m = rows[..rows.len() - 1].iter().product();
        let product = Product { len, weights, m, x, levels, scales, zero_points };
        (is_chain && is_f32 && is_constant && is_covered).then_some(product)
    }

    /// The weights as the kernel reads them.
    fn packed(&self, step: &StepNode) -> Read {
        let (weights, levels) = (self.weights, self.levels.clone());
        let words = format!("blocks {weights:?} of {:?}, signed {}", levels.unpack, levels.is_signed);
        let inputs = [self.levels.input, self.scales, self.zero_points.unwrap_or(self.scales)];
        let constants: Option<Vec<Tensor>> = inputs.iter().map(|&input| step.constant(input).cloned()).collect();
        let constants = constants.and_then(|constants| <[Tensor; 3]>::try_from(constants).ok());
        Read::packed_once(weights.packed_len(), words, constants, move |[bytes, scales, zeros], packed: &mut [u32]| {
            let counted = |zero: &u8| levels.counted_from_least(*zero, weights.code);
            let zeros: Option<Vec<u8>> = weights.has_shifts.then(|| zeros.as_bytes().iter().map(counted).collect());
            let level = levels.level_of(&bytes, &weights);
            weights.pack(level, &f32_elements(scales.as_bytes()), zeros.as_deref(), packed);
            bytes.release_pages();
        })
    }
}

impl Levels {
    /// The level of a column and k, counted from the least one.
    fn level_of<'t>(&'t self, levels: &'t Tensor, weights: &BlockWeights) -> impl Fn(usize, usize) -> u8 + use<'t> {
        let (bytes, k_count, code) = (levels.as_bytes(), weights.k, weights.code);
        let per_byte = self.unpack.as_ref().and_then(Unpack::per_byte).unwrap_or(1);
        move |column, k| {
            let at = column * k_count + k;
            let byte = bytes[at / per_byte];
            let level = self.unpack.as_ref().map_or(byte, |unpack| unpack.element(byte, at % per_byte));
            self.counted_from_least(level, code)
        }
    }

    /// A level of the weights' type counted from the least one.
    fn counted_from_least(&self, level: u8, code: Code) -> u8 {
        if self.is_signed { level.wrapping_add(code.origin()) } else { level }
    }
}
