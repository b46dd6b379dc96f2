//! Products of com.microsoft with operands of 8 or 4 bits that are floats: GemmFloat8, MatMulBlockQuantizedFp8Weight and
//! MatMulBlockQuantizedFp4Weight. Operands are converted and multiplied as wide floats.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, Bitcast, Matmul, UnaryFn, Unpack};
use precast_tensor::{DType, Dim};

use super::Outputs;
use crate::import::{Fault, NodeCx};

/// The numbers of 1 sign, 2 exponent and 1 mantissa bits, by their bits.
const E2M1: [f64; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// GemmFloat8: activation(alpha A B + beta C), with scales of A and B before and of the result behind.
pub(super) fn gemm_float8(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (transpose_a, transpose_b) = (cx.flag("transA", false)?, cx.flag("transB", false)?);
    let (alpha, beta) = (cx.float("alpha", 1.0)?, cx.float("beta", 0.0)?);
    let to = cx.dtype_attribute("dtype")?.unwrap_or(DType::F32);
    let a = scaled(cx, 0, 3)?;
    let b = scaled(cx, 1, 4)?;
    cx.dims_of::<2>(a, "the operand A")?;
    cx.dims_of::<2>(b, "the operand B")?;
    let mut y = cx.add(Matmul { transpose_a, transpose_b }, &[a, b])?;
    if alpha != 1.0 {
        y = cx.binary_scalar(BinaryFn::Mul, y, alpha)?;
    }
    if let Some(c) = cx.optional(2).filter(|_| beta != 0.0) {
        let c = cx.cast(c, DType::F32)?;
        let c = cx.binary_scalar(BinaryFn::Mul, c, beta)?;
        y = cx.binary(BinaryFn::Add, y, c)?;
    }
    y = match cx.string("activation", "NONE")?.as_str() {
        "" | "NONE" => y,
        "RELU" => cx.unary(UnaryFn::Relu, y)?,
        "GELU" => cx.unary(UnaryFn::GeluErf, y)?,
        other => return Err(Fault::Invalid(format!("attribute 'activation' is '{other}'; RELU or GELU was expected"))),
    };
    if let Some(scale) = cx.optional(5) {
        y = cx.binary(BinaryFn::Mul, y, scale)?;
    }
    Ok(vec![cx.cast(y, to)?])
}

/// An operand as f32, times its scale where it has one.
fn scaled(cx: &mut NodeCx<'_, '_>, operand: usize, scale: usize) -> Result<ValueId, Fault> {
    let x = cx.cast(cx.input(operand)?, DType::F32)?;
    match cx.optional(scale) {
        Some(scale) => cx.binary(BinaryFn::Mul, x, scale),
        None => Ok(x),
    }
}

/// A times the rows of B of 8-bit floats, with a scale for each block of a row. A is rounded to such floats first where it has a
/// scale.
pub(super) fn fp8_weight(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let block = block_size(cx, 128)?;
    let (mut a, b, scales) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let dtype = cx.dtype(a);
    if let Some(scale) = cx.optional(3) {
        let scale = cx.reshape(scale, Vec::new())?;
        let wide = cx.cast(a, DType::F32)?;
        let small = cx.binary(BinaryFn::Div, wide, scale)?;
        let small = cx.cast(small, cx.dtype(b))?;
        let wide = cx.cast(small, DType::F32)?;
        let wide = cx.binary(BinaryFn::Mul, wide, scale)?;
        a = cx.cast(wide, dtype)?;
    }
    let weights = cx.cast(b, DType::F32)?;
    multiply(cx, a, weights, scales, block, 4)
}

/// The same with packed 4-bit floats, scales of 8-bit floats given as bytes, and one scale for all.
pub(super) fn fp4_weight(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let block = block_size(cx, 16)?;
    let (a, packed, bytes) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let levels = cx.add(Unpack { to: DType::U4 }, &[packed])?;
    let levels = cx.cast(levels, DType::I32)?;
    let table = cx.float_tensor(DType::F32, vec![E2M1.len()], &E2M1)?;
    let weights = cx.gather(table, levels, 0)?;
    let scales = match cx.dtype(bytes) {
        DType::U8 => cx.add(Bitcast { to: DType::F8E4M3Fn }, &[bytes])?,
        _ => bytes,
    };
    let scales = cx.cast(scales, DType::F32)?;
    let whole = cx.reshape(cx.input(3)?, Vec::new())?;
    let scales = cx.binary(BinaryFn::Mul, scales, whole)?;
    multiply(cx, a, weights, scales, block, 5)
}

fn block_size(cx: &NodeCx<'_, '_>, default: i64) -> Result<usize, Fault> {
    let block = cx.int("block_size", default)?;
    let size = usize::try_from(block).ok().filter(|&block| block > 0);
    size.ok_or_else(|| Fault::Invalid(format!("attribute 'block_size' is {block}; 1 or more was expected")))
}

/// a times weights [N, K] with scales [N, blocks] of f32, in the type of a, plus the bias at a position.
fn multiply(
    cx: &mut NodeCx<'_, '_>,
    a: ValueId,
    weights: ValueId,
    scales: ValueId,
    block: usize,
    bias: usize,
) -> Outputs {
    let [rows, depth] = cx.dims_of(weights, "the weights")?;
    let [_, count] = cx.dims_of(scales, "the scales of blocks")?;
    let spread = cx.unsqueeze(scales, &[2])?;
    let spread = cx.broadcast(spread, vec![rows.clone(), count.clone(), Dim::from(block)])?;
    let spread = cx.reshape(spread, vec![rows, count * Dim::from(block)])?;
    let spread = cx.slice_axis(spread, 1, Dim::ZERO, depth)?;
    let weights = cx.binary(BinaryFn::Mul, weights, spread)?;
    let weights = cx.cast(weights, cx.dtype(a))?;
    let y = cx.add(Matmul { transpose_a: false, transpose_b: true }, &[a, weights])?;
    match cx.optional(bias) {
        Some(bias) => Ok(vec![cx.binary(BinaryFn::Add, y, bias)?]),
        None => Ok(vec![y]),
    }
}
