//! Matrix products: MatMul, Gemm, MatMulInteger and the fused forms of com.microsoft. Einsum, the products with packed
//! weights, mixtures of experts, products of 8-bit floats and com.microsoft's other operators have files of their own.

mod einsum;
mod experts;
mod float8;
mod microsoft;
mod nbits;

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, Matmul, MatmulInt, UnaryFn};
use precast_tensor::Dim;

use super::activation::fused_activation;
use crate::import::{Fault, Import, NodeCx};

#[rustfmt::skip]
pub(super) const IMPORTS: &[Import] = &[
    Import { domain: "", name: "Det", since: 11, tier: 2, function: det },
    Import { domain: "", name: "Einsum", since: 12, tier: 1, function: einsum::einsum },
    Import { domain: "", name: "Gemm", since: 7, tier: 1, function: gemm },
    Import { domain: "", name: "MatMul", since: 1, tier: 1, function: matmul },
    Import { domain: "", name: "MatMulInteger", since: 10, tier: 1, function: matmul_integer },
    Import { domain: "com.microsoft", name: "CDist", since: 1, tier: 2, function: microsoft::cdist },
    Import { domain: "com.microsoft", name: "FusedGemm", since: 1, tier: 1, function: fused_gemm },
    Import { domain: "com.microsoft", name: "FusedMatMul", since: 1, tier: 1, function: fused_matmul },
    Import { domain: "com.microsoft", name: "FusedMatMulActivation", since: 1, tier: 1, function: fused_matmul_activation },
    Import { domain: "com.microsoft", name: "GemmFastGelu", since: 1, tier: 1, function: gemm_fast_gelu },
    Import { domain: "com.microsoft", name: "GatherBlockQuantized", since: 1, tier: 1, function: nbits::gather_block_quantized },
    Import { domain: "com.microsoft", name: "Inverse", since: 1, tier: 2, function: microsoft::inverse },
    Import { domain: "com.microsoft", name: "MatMulBnb4", since: 1, tier: 1, function: microsoft::matmul_bnb4 },
    Import { domain: "com.microsoft", name: "MatMulInteger16", since: 1, tier: 1, function: microsoft::matmul_integer16 },
    Import { domain: "com.microsoft", name: "MatMulNBits", since: 1, tier: 1, function: nbits::matmul_nbits },
    Import { domain: "com.microsoft", name: "MoE", since: 1, tier: 1, function: experts::moe },
    Import { domain: "com.microsoft", name: "GemmFloat8", since: 1, tier: 2, function: float8::gemm_float8 },
    Import { domain: "com.microsoft", name: "MatMulBlockQuantizedFp4Weight", since: 1, tier: 2, function: float8::fp4_weight },
    Import { domain: "com.microsoft", name: "MatMulBlockQuantizedFp8Weight", since: 1, tier: 2, function: float8::fp8_weight },
    Import { domain: "com.microsoft", name: "MatMulNBitsMlp", since: 1, tier: 2, function: nbits::matmul_nbits_mlp },
    Import { domain: "com.microsoft", name: "MatMulNBitsQkv", since: 1, tier: 2, function: nbits::matmul_nbits_qkv },
    Import { domain: "com.microsoft", name: "QMoE", since: 1, tier: 1, function: experts::quantised_moe },
    Import { domain: "com.microsoft", name: "TransposeMatMul", since: 1, tier: 1, function: fused_matmul },
];

type Outputs = Result<Vec<ValueId>, Fault>;

fn matmul(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    Ok(vec![matmul_of_vectors(cx, a, b, |cx, a, b| cx.matmul(a, b))?])
}

/// A product whose operands may be vectors: a vector on the left is a row, one on the right a column, and the axis that
/// this adds is taken out of the result.
pub(super) fn matmul_of_vectors(
    cx: &mut NodeCx<'_, '_>,
    a: ValueId,
    b: ValueId,
    product: impl FnOnce(&mut NodeCx<'_, '_>, ValueId, ValueId) -> Result<ValueId, Fault>,
) -> Result<ValueId, Fault> {
    let (a_rank, b_rank) = (cx.rank(a), cx.rank(b));
    if a_rank == 0 || b_rank == 0 {
        return Err(Fault::Invalid("an operand is a scalar; rank 1 or more was expected".to_string()));
    }
    let row = if a_rank == 1 { cx.unsqueeze(a, &[0])? } else { a };
    let column = if b_rank == 1 { cx.unsqueeze(b, &[1])? } else { b };
    let y = product(cx, row, column)?;
    let rank = cx.rank(y);
    let mut added = Vec::new();
    if a_rank == 1 {
        added.push(rank - 2);
    }
    if b_rank == 1 {
        added.push(rank - 1);
    }
    cx.squeeze(y, &added)
}

/// alpha * A * B + beta * C.
pub(super) fn gemm(cx: &mut NodeCx<'_, '_>) -> Outputs {
    Ok(vec![add_gemm(cx)?])
}

fn fused_gemm(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let activation = cx.string("activation", "")?;
    let parameters = read_activation_parameters(cx)?;
    let y = add_gemm(cx)?;
    Ok(vec![fused_activation(cx, &activation, &parameters, y)?])
}

fn add_gemm(cx: &mut NodeCx<'_, '_>) -> Result<ValueId, Fault> {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    let (transpose_a, transpose_b) = (cx.flag("transA", false)?, cx.flag("transB", false)?);
    let (alpha, beta) = (cx.float("alpha", 1.0)?, cx.float("beta", 1.0)?);
    if cx.rank(a) != 2 || cx.rank(b) != 2 {
        return Err(Fault::Invalid(format!("operands have ranks {} and {}; 2 was expected", cx.rank(a), cx.rank(b))));
    }
    let product = cx.add(Matmul { transpose_a, transpose_b }, &[a, b])?;
    let product = scale(cx, product, alpha)?;
    match cx.optional(2) {
        Some(addend) if beta != 0.0 => {
            let addend = scale(cx, addend, beta)?;
            cx.binary(BinaryFn::Add, product, addend)
        }
        _ => Ok(product),
    }
}

/// X * W plus a bias, then the tanh form of gelu.
fn gemm_fast_gelu(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, w) = (cx.input(0)?, cx.input(1)?);
    let mut y = cx.matmul(x, w)?;
    if let Some(bias) = cx.optional(2) {
        y = cx.binary(BinaryFn::Add, y, bias)?;
    }
    Ok(vec![cx.unary(UnaryFn::GeluTanh, y)?])
}

fn matmul_integer(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    let (a_zero, b_zero) = (zero_point(cx, 2, a)?, zero_point(cx, 3, b)?);
    // A vector of zero points is one a row of A; the op wants it beside the rows.
    let a_zero = if cx.rank(a_zero) == 1 { cx.unsqueeze(a_zero, &[1])? } else { a_zero };
    Ok(vec![matmul_of_vectors(cx, a, b, |cx, a, b| cx.add(MatmulInt {}, &[a, b, a_zero, b_zero]))?])
}

/// The zero point of an 8-bit operand: the input at `position`, one element as a scalar, or 0 where it is absent.
pub(super) fn zero_point(cx: &mut NodeCx<'_, '_>, position: usize, operand: ValueId) -> Result<ValueId, Fault> {
    match cx.optional(position) {
        None => cx.scalar(cx.dtype(operand), 0.0),
        Some(zero) if cx.ty(zero).element_count() == Dim::ONE => cx.reshape(zero, Vec::new()),
        Some(zero) => Ok(zero),
    }
}

/// FusedMatMul and its older name TransposeMatMul, which lacks the attributes for batch axes.
fn fused_matmul(cx: &mut NodeCx<'_, '_>) -> Outputs {
    Ok(vec![add_fused_matmul(cx)?])
}

fn fused_matmul_activation(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let activation = cx.string("activation", "")?;
    let axis = cx.int("activation_axis", -1)?;
    let parameters = read_activation_parameters(cx)?;
    let y = add_fused_matmul(cx)?;
    if activation == "Softmax" {
        let axis = cx.axis(axis, cx.rank(y))?;
        return Ok(vec![cx.softmax(y, axis)?]);
    }
    Ok(vec![fused_activation(cx, &activation, &parameters, y)?])
}

fn add_fused_matmul(cx: &mut NodeCx<'_, '_>) -> Result<ValueId, Fault> {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    let alpha = cx.float("alpha", 1.0)?;
    let (transpose_a, transpose_b) = (cx.flag("transA", false)?, cx.flag("transB", false)?);
    let (batch_a, batch_b) = (cx.flag("transBatchA", false)?, cx.flag("transBatchB", false)?);
    let a = if batch_a { first_axis_after_batch(cx, a)? } else { a };
    let b = if batch_b { first_axis_after_batch(cx, b)? } else { b };
    // A vector has nothing to transpose.
    let op = Matmul { transpose_a: transpose_a && cx.rank(a) > 1, transpose_b: transpose_b && cx.rank(b) > 1 };
    let y = matmul_of_vectors(cx, a, b, |cx, a, b| cx.add(op, &[a, b]))?;
    scale(cx, y, alpha)
}

/// [M, batch.., K] as [batch.., M, K].
fn first_axis_after_batch(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId, Fault> {
    let rank = cx.rank(x);
    if rank < 3 {
        return Ok(x);
    }
    let mut perm: Vec<usize> = (1..rank - 1).collect();
    perm.extend([0, rank - 1]);
    cx.transpose(x, perm)
}

fn scale(cx: &mut NodeCx<'_, '_>, x: ValueId, factor: f64) -> Result<ValueId, Fault> {
    if factor == 1.0 { Ok(x) } else { cx.binary_scalar(BinaryFn::Mul, x, factor) }
}

/// Parameters of a fused operator's activation that has an attribute for each.
fn read_activation_parameters(cx: &NodeCx<'_, '_>) -> Result<Vec<f64>, Fault> {
    let mut parameters = Vec::new();
    for name in ["activation_alpha", "activation_beta", "activation_gamma"] {
        parameters.extend(cx.attributes().float(name)?);
    }
    Ok(parameters)
}

/// Determinants are written out, which is only sensible for small matrices.
const DET_SIZE_MAX: usize = 4;

fn det(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    let size = match cx.dims(x).last() {
        Some(dim) if rank >= 2 => cx.number(dim, "the size of the matrix")?,
        _ => {
            return Err(Fault::Invalid(format!("the input has rank {rank}; 2 or more was expected")));
        }
    };
    if size == 0 || size > DET_SIZE_MAX {
        return Err(Fault::Unsupported(format!(
            "determinants of {size}x{size} matrices are not covered; up to {DET_SIZE_MAX}x{DET_SIZE_MAX} are"
        )));
    }
    let columns: Vec<usize> = (0..size).collect();
    let minor = add_minor(cx, x, 0, &columns)?;
    Ok(vec![cx.squeeze(minor, &[rank - 2, rank - 1])?])
}

/// Determinant of the rows from `row` on and the columns given, expanded along the first of these rows; the two matrix
/// axes stay with size 1.
fn add_minor(cx: &mut NodeCx<'_, '_>, x: ValueId, row: usize, columns: &[usize]) -> Result<ValueId, Fault> {
    let rank = cx.rank(x);
    let mut sum: Option<ValueId> = None;
    for (position, &column) in columns.iter().enumerate() {
        let line = cx.slice_axis(x, rank - 2, Dim::from(row), Dim::ONE)?;
        let mut term = cx.slice_axis(line, rank - 1, Dim::from(column), Dim::ONE)?;
        let rest: Vec<usize> = columns.iter().copied().filter(|&other| other != column).collect();
        if !rest.is_empty() {
            let minor = add_minor(cx, x, row + 1, &rest)?;
            term = cx.binary(BinaryFn::Mul, term, minor)?;
        }
        let sign = if position % 2 == 0 { BinaryFn::Add } else { BinaryFn::Sub };
        sum = Some(match sum {
            None => term,
            Some(sum) => cx.binary(sign, sum, term)?,
        });
    }
    sum.ok_or_else(|| Fault::Invalid("a matrix without columns has no determinant".to_string()))
}
