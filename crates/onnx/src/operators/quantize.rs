//! Quantisation: between floats and small integers, and products of quantised operands. Products are formed in i32,
//! scaled once in f32 and rounded half to even.

mod microsoft;

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, ConvInt, Dequantize, MatmulInt, Quantize, ReduceFn, UnaryFn};
use precast_tensor::{DType, Dim};

use crate::import::{Fault, Import, NodeCx};

use super::conv::read_filter;
use super::matmul::{matmul_of_vectors, zero_point};
use super::sliding::Sliding;

/// Rows of this family.
pub const IMPORTS: &[Import] = &[
    Import::onnx("QuantizeLinear", 10, 1, |cx| quantize_linear(cx, cx.opset())),
    Import::onnx("DequantizeLinear", 10, 1, |cx| dequantize_linear(cx, cx.opset())),
    Import::onnx("DynamicQuantizeLinear", 11, 1, |cx| Ok(dynamic_quantize(cx)?.to_vec())),
    Import::onnx("QLinearConv", 10, 1, qlinear_conv),
    Import::onnx("QLinearMatMul", 10, 1, qlinear_matmul),
    Import::microsoft("QuantizeLinear", 1, |cx| quantize_linear(cx, MICROSOFT_LIKE)),
    Import::microsoft("DequantizeLinear", 1, |cx| dequantize_linear(cx, MICROSOFT_LIKE)),
    Import::microsoft("DynamicQuantizeMatMul", 1, dynamic_quantize_matmul),
    Import::microsoft("MatMulIntegerToFloat", 1, matmul_integer_to_float),
    Import::microsoft("MulInteger", 2, microsoft::mul_integer),
    Import::microsoft("QGemm", 1, microsoft::qgemm),
    Import::microsoft("QLinearAdd", 1, |cx| qlinear_binary(cx, BinaryFn::Add)),
    Import::microsoft("QLinearMul", 1, |cx| qlinear_binary(cx, BinaryFn::Mul)),
    Import::microsoft("QLinearSigmoid", 1, |cx| qlinear_unary(cx, UnaryFn::Sigmoid, 0.0)),
    Import::microsoft("QLinearLeakyRelu", 1, qlinear_leaky_relu),
    Import::microsoft("QLinearAveragePool", 1, microsoft::qlinear_average_pool),
    Import::microsoft("QLinearConcat", 1, qlinear_concat),
    Import::microsoft("QLinearConv", 1, microsoft::qlinear_conv),
    Import::microsoft("QLinearGlobalAveragePool", 1, microsoft::qlinear_global_average_pool),
    Import::microsoft("QLinearReduceMean", 1, microsoft::qlinear_reduce_mean),
    Import::microsoft("QLinearSoftmax", 1, microsoft::qlinear_softmax),
    Import::microsoft("QLinearWhere", 1, microsoft::qlinear_where),
    Import::microsoft("ReduceSumInteger", 2, microsoft::reduce_sum_integer),
];

/// The opset of ai.onnx whose attributes com.microsoft's QuantizeLinear and DequantizeLinear have.
const MICROSOFT_LIKE: i64 = 21;

/// What an Import gives.
type Values = Result<Vec<ValueId>, Fault>;

/// Scale and zero point of one operand and how they lie along it, as the ops want them.
struct Scaling {
    scale: ValueId,
    zero: Option<ValueId>,
    axis: usize,
    block: usize,
}

impl Scaling {
    /// For a single scale and zero point.
    fn of_tensor(scale: ValueId, zero: Option<ValueId>) -> Scaling {
        Scaling { scale, zero, axis: 0, block: 0 }
    }

    fn inputs(&self, x: ValueId) -> Vec<ValueId> {
        [Some(x), Some(self.scale), self.zero].into_iter().flatten().collect()
    }
}

/// Reads scale and zero point from inputs 1 and 2 with the attributes that say how they lie along input 0.
fn read_scaling(cx: &mut NodeCx<'_, '_>, version: i64) -> Result<Scaling, Fault> {
    let (x, scale) = (cx.input(0)?, cx.input(1)?);
    let axis = if version >= 13 { cx.int("axis", 1)? } else { 1 };
    let block = if version >= 21 { cx.int("block_size", 0)? } else { 0 };
    let block = usize::try_from(block)
        .map_err(|_| Fault::Invalid(format!("attribute 'block_size' is {block}; 0 or more was expected")))?;
    let (scale, zero) = (float_scale(cx, scale)?, cx.optional(2));
    if cx.ty(scale).element_count() == Dim::ONE && block == 0 {
        // One element is a scalar whatever its shape, and the axis has no meaning.
        let zero = zero.map(|zero| cx.reshape(zero, Vec::new())).transpose()?;
        return Ok(Scaling::of_tensor(cx.reshape(scale, Vec::new())?, zero));
    }
    let axis = cx.axis(axis, cx.rank(x))?;
    let dims = cx.dims(scale);
    let zero = match zero {
        Some(zero) if cx.ty(zero).element_count() == Dim::ONE => {
            let zero = cx.reshape(zero, Vec::new())?;
            Some(cx.broadcast(zero, dims)?)
        }
        zero => zero,
    };
    Ok(Scaling { scale, zero, axis, block })
}

/// Scales may be integers where x is; the quotient is a float in any case.
fn float_scale(cx: &mut NodeCx<'_, '_>, scale: ValueId) -> Result<ValueId, Fault> {
    if cx.dtype(scale).is_float() { Ok(scale) } else { cx.cast(scale, DType::F32) }
}

/// An element type attribute for which 0 means that it is absent.
fn optional_dtype(cx: &NodeCx<'_, '_>, name: &str) -> Result<Option<DType>, Fault> {
    if cx.int(name, 0)? == 0 { Ok(None) } else { cx.dtype_attribute(name) }
}

fn quantize_linear(cx: &mut NodeCx<'_, '_>, version: i64) -> Values {
    let x = cx.input(0)?;
    let scaling = read_scaling(cx, version)?;
    let saturate = version < 19 || cx.flag("saturate", true)?;
    let wanted = if version >= 21 { optional_dtype(cx, "output_dtype")? } else { None };
    let precision = if version >= 23 { optional_dtype(cx, "precision")? } else { None };
    let found = scaling.zero.map(|zero| cx.dtype(zero));
    if let (Some(wanted), Some(found)) = (wanted, found)
        && wanted != found
    {
        return Err(Fault::Invalid(format!("attribute 'output_dtype' is {wanted}, but the zero point is {found}")));
    }
    let to = wanted.or(found).unwrap_or(DType::U8);
    // Powers of two have no digits of their own; their quotients are formed in f32.
    let own = cx.dtype(scaling.scale);
    let precision = precision.unwrap_or(if own == DType::F8E8M0 { DType::F32 } else { own });
    let op = Quantize { to, axis: scaling.axis, block: scaling.block, saturate, precision };
    Ok(vec![cx.add(op, &scaling.inputs(x))?])
}

fn dequantize_linear(cx: &mut NodeCx<'_, '_>, version: i64) -> Values {
    let x = cx.input(0)?;
    let scaling = read_scaling(cx, version)?;
    let wanted = if version >= 23 { optional_dtype(cx, "output_dtype")? } else { None };
    let to = wanted.unwrap_or(cx.dtype(scaling.scale));
    Ok(vec![cx.add(Dequantize { to, axis: scaling.axis, block: scaling.block }, &scaling.inputs(x))?])
}

/// Input 0 as u8 with the scale and zero point that its own extremes give.
fn dynamic_quantize(cx: &mut NodeCx<'_, '_>) -> Result<[ValueId; 3], Fault> {
    /// Largest u8.
    const MOST: f64 = 255.0;
    let x = cx.input(0)?;
    let axes: Vec<usize> = (0..cx.rank(x)).collect();
    // The range always holds 0, so that 0 is exact.
    let largest = cx.reduce(ReduceFn::Max, x, axes.clone(), false)?;
    let largest = cx.binary_scalar(BinaryFn::Max, largest, 0.0)?;
    let least = cx.reduce(ReduceFn::Min, x, axes, false)?;
    let least = cx.binary_scalar(BinaryFn::Min, least, 0.0)?;
    let span = cx.binary(BinaryFn::Sub, largest, least)?;
    let scale = cx.binary_scalar(BinaryFn::Div, span, MOST)?;
    let steps = cx.binary(BinaryFn::Div, least, scale)?;
    let zero = cx.unary(UnaryFn::Neg, steps)?;
    let zero = cx.clamp(zero, 0.0, MOST)?;
    let zero = cx.unary(UnaryFn::Round, zero)?;
    let zero = cx.cast(zero, DType::U8)?;
    let quantized = quantize_to(cx, x, scale, zero)?;
    Ok([quantized, scale, zero])
}

/// x over a single scale, rounded, with a single zero point, as the zero point's type.
fn quantize_to(cx: &mut NodeCx<'_, '_>, x: ValueId, scale: ValueId, zero: ValueId) -> Result<ValueId, Fault> {
    let op = Quantize { to: cx.dtype(zero), axis: 0, block: 0, saturate: true, precision: cx.dtype(scale) };
    cx.add(op, &[x, scale, zero])
}

/// i32 sums times a multiplier, rounded, as the zero point's type.
fn requantize(cx: &mut NodeCx<'_, '_>, sums: ValueId, multiplier: ValueId, zero: ValueId) -> Result<ValueId, Fault> {
    let sums = cx.cast(sums, DType::F32)?;
    let multiplier = cx.cast(multiplier, DType::F32)?;
    let scaled = cx.binary(BinaryFn::Mul, sums, multiplier)?;
    let one = cx.scalar(DType::F32, 1.0)?;
    quantize_to(cx, scaled, one, zero)
}

/// The input at `position`, one element as a scalar.
fn scalar_or_vector(cx: &mut NodeCx<'_, '_>, position: usize) -> Result<ValueId, Fault> {
    let value = cx.input(position)?;
    if cx.ty(value).element_count() == Dim::ONE { cx.reshape(value, Vec::new()) } else { Ok(value) }
}

/// The input at `position`, which must have one element, as a scalar.
fn scalar_input(cx: &mut NodeCx<'_, '_>, position: usize) -> Result<ValueId, Fault> {
    let value = cx.input(position)?;
    cx.reshape(value, Vec::new())
}

/// Inputs x, its scale and zero point, the same of the filter, scale and zero point of the output, and a bias in i32.
fn qlinear_conv(cx: &mut NodeCx<'_, '_>) -> Values {
    Ok(vec![qlinear_conv_of(cx, cx.input(0)?)?])
}

/// The same with x in another layout.
fn qlinear_conv_of(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId, Fault> {
    let filter = cx.input(3)?;
    let (sliding, groups) = read_filter(cx, x, filter)?;
    let (x_zero, filter_zero) = (zero_point(cx, 2, x)?, zero_point(cx, 5, filter)?);
    let Sliding { stride, pad_lo, pad_hi, dilation, .. } = sliding;
    let op = ConvInt { stride, pad_lo, pad_hi, dilation, groups };
    let mut sums = cx.add(op, &[x, filter, x_zero, filter_zero])?;
    let spatial: Vec<usize> = (1..cx.rank(x) - 1).collect();
    if let Some(bias) = cx.optional(8) {
        let bias = cx.unsqueeze(bias, &spatial)?;
        sums = cx.binary(BinaryFn::Add, sums, bias)?;
    }
    let (x_scale, y_scale) = (scalar_input(cx, 1)?, scalar_input(cx, 6)?);
    let mut filter_scale = scalar_or_vector(cx, 4)?;
    if cx.rank(filter_scale) == 1 {
        filter_scale = cx.unsqueeze(filter_scale, &spatial)?;
    }
    let product = cx.binary(BinaryFn::Mul, x_scale, filter_scale)?;
    let multiplier = cx.binary(BinaryFn::Div, product, y_scale)?;
    let y_zero = scalar_input(cx, 7)?;
    requantize(cx, sums, multiplier, y_zero)
}

/// Inputs a, its scale and zero point, the same of b, and scale and zero point of the output.
fn qlinear_matmul(cx: &mut NodeCx<'_, '_>) -> Values {
    let (a, b) = (cx.input(0)?, cx.input(3)?);
    if cx.dtype(a).is_float() || cx.dtype(b).is_float() {
        return Err(Fault::Unsupported(format!("operands of {} and {} are not covered", cx.dtype(a), cx.dtype(b))));
    }
    let sums = integer_product(cx, a, b, 2, 5)?;
    let (a_scale, b_scale) = (row_scale(cx, 1)?, scalar_or_vector(cx, 4)?);
    let y_scale = scalar_input(cx, 6)?;
    let product = cx.binary(BinaryFn::Mul, a_scale, b_scale)?;
    let multiplier = cx.binary(BinaryFn::Div, product, y_scale)?;
    let y_zero = scalar_input(cx, 7)?;
    Ok(vec![requantize(cx, sums, multiplier, y_zero)?])
}

/// The i32 product of 8-bit operands whose zero points are the inputs at these positions.
fn integer_product(
    cx: &mut NodeCx<'_, '_>,
    a: ValueId,
    b: ValueId,
    a_zero: usize,
    b_zero: usize,
) -> Result<ValueId, Fault> {
    let (a_zero, b_zero) = (zero_point(cx, a_zero, a)?, zero_point(cx, b_zero, b)?);
    // A vector of zero points is one a row of a; the op wants it beside the rows.
    let a_zero = if cx.rank(a_zero) == 1 { cx.unsqueeze(a_zero, &[1])? } else { a_zero };
    matmul_of_vectors(cx, a, b, |cx, a, b| cx.add(MatmulInt {}, &[a, b, a_zero, b_zero]))
}

/// The scale at `position` of a left operand: a vector is one a row.
fn row_scale(cx: &mut NodeCx<'_, '_>, position: usize) -> Result<ValueId, Fault> {
    let scale = scalar_or_vector(cx, position)?;
    if cx.rank(scale) == 1 { cx.unsqueeze(scale, &[1]) } else { Ok(scale) }
}

/// Inputs a (float), b, scale of b, zero point of b, bias: a is quantised by its own extremes.
fn dynamic_quantize_matmul(cx: &mut NodeCx<'_, '_>) -> Values {
    let b = cx.input(1)?;
    let [a, a_scale, a_zero] = dynamic_quantize(cx)?;
    let b_zero = zero_point(cx, 3, b)?;
    let sums = matmul_of_vectors(cx, a, b, |cx, a, b| cx.add(MatmulInt {}, &[a, b, a_zero, b_zero]))?;
    let b_scale = scalar_or_vector(cx, 2)?;
    float_product(cx, sums, a_scale, b_scale, 4)
}

/// Inputs a, b, their scales, their zero points, bias.
fn matmul_integer_to_float(cx: &mut NodeCx<'_, '_>) -> Values {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    let sums = integer_product(cx, a, b, 4, 5)?;
    let (a_scale, b_scale) = (row_scale(cx, 2)?, scalar_or_vector(cx, 3)?);
    float_product(cx, sums, a_scale, b_scale, 6)
}

/// i32 sums times both scales, plus the bias at a position where there is one.
fn float_product(cx: &mut NodeCx<'_, '_>, sums: ValueId, a_scale: ValueId, b_scale: ValueId, bias: usize) -> Values {
    let multiplier = cx.binary(BinaryFn::Mul, a_scale, b_scale)?;
    let sums = cx.cast(sums, cx.dtype(multiplier))?;
    let mut product = cx.binary(BinaryFn::Mul, sums, multiplier)?;
    if let Some(bias) = cx.optional(bias) {
        product = cx.binary(BinaryFn::Add, product, bias)?;
    }
    Ok(vec![product])
}

/// The operand at a position, followed by its scale and zero point, as floats.
fn dequantized(cx: &mut NodeCx<'_, '_>, position: usize) -> Result<ValueId, Fault> {
    let (x, scale) = (cx.input(position)?, scalar_input(cx, position + 1)?);
    let zero = zero_point(cx, position + 2, x)?;
    cx.add(Dequantize { to: cx.dtype(scale), axis: 0, block: 0 }, &[x, scale, zero])
}

/// x with the scale and zero point at a position and the one after, as the type of `like` where there is no zero point.
fn quantized(cx: &mut NodeCx<'_, '_>, x: ValueId, position: usize, like: ValueId) -> Values {
    let scale = scalar_input(cx, position)?;
    let zero = zero_point(cx, position + 1, like)?;
    Ok(vec![quantize_to(cx, x, scale, zero)?])
}

fn qlinear_binary(cx: &mut NodeCx<'_, '_>, func: BinaryFn) -> Values {
    let (a, b) = (dequantized(cx, 0)?, dequantized(cx, 3)?);
    let y = cx.binary(func, a, b)?;
    let like = cx.input(0)?;
    quantized(cx, y, 6, like)
}

fn qlinear_leaky_relu(cx: &mut NodeCx<'_, '_>) -> Values {
    let alpha = cx.float("alpha", f64::from(0.01f32))?;
    qlinear_unary(cx, UnaryFn::Leaky, alpha)
}

fn qlinear_unary(cx: &mut NodeCx<'_, '_>, func: UnaryFn, alpha: f64) -> Values {
    let x = dequantized(cx, 0)?;
    let y = cx.unary_with(func, alpha, 0.0, x)?;
    let like = cx.input(0)?;
    quantized(cx, y, 3, like)
}

/// Inputs scale and zero point of the output, then operand, scale and zero point of each part.
fn qlinear_concat(cx: &mut NodeCx<'_, '_>) -> Values {
    let axis = cx.attributes().int("axis")?.ok_or_else(|| Fault::Invalid("attribute 'axis' is missing".to_string()))?;
    let parts: Vec<ValueId> =
        (2..cx.input_count()).step_by(3).map(|position| dequantized(cx, position)).collect::<Result<_, _>>()?;
    let like = cx.input(2)?;
    let axis = cx.axis(axis, cx.rank(like))?;
    let joined = cx.concat(&parts, axis)?;
    quantized(cx, joined, 0, like)
}
