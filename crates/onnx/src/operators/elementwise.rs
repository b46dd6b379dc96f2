//! Operators that treat each element by itself. Most are one `unary`, `binary` or `compare` node.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, Bitcast, Cast, CompareFn, UnaryFn};
use precast_tensor::{DType, Dim};

use crate::import::{Fault, Import, NodeCx};

/// Rows of this family.
pub const IMPORTS: &[Import] = &[
    Import::onnx("Abs", 6, 1, |cx| unary(cx, UnaryFn::Abs)),
    Import::onnx("Neg", 6, 1, |cx| unary(cx, UnaryFn::Neg)),
    Import::onnx("Sign", 9, 1, |cx| unary(cx, UnaryFn::Sign)),
    Import::onnx("Reciprocal", 6, 1, |cx| unary(cx, UnaryFn::Recip)),
    Import::onnx("Sqrt", 6, 1, |cx| unary(cx, UnaryFn::Sqrt)),
    Import::onnx("Exp", 6, 1, |cx| unary(cx, UnaryFn::Exp)),
    Import::onnx("Log", 6, 1, |cx| unary(cx, UnaryFn::Log)),
    Import::onnx("Sin", 7, 1, |cx| unary(cx, UnaryFn::Sin)),
    Import::onnx("Cos", 7, 1, |cx| unary(cx, UnaryFn::Cos)),
    Import::onnx("Tan", 7, 2, |cx| unary(cx, UnaryFn::Tan)),
    Import::onnx("Asin", 7, 2, |cx| unary(cx, UnaryFn::Asin)),
    Import::onnx("Acos", 7, 2, |cx| unary(cx, UnaryFn::Acos)),
    Import::onnx("Atan", 7, 2, |cx| unary(cx, UnaryFn::Atan)),
    Import::onnx("Sinh", 9, 2, |cx| unary(cx, UnaryFn::Sinh)),
    Import::onnx("Cosh", 9, 2, |cx| unary(cx, UnaryFn::Cosh)),
    Import::onnx("Asinh", 9, 2, |cx| unary(cx, UnaryFn::Asinh)),
    Import::onnx("Acosh", 9, 2, |cx| unary(cx, UnaryFn::Acosh)),
    Import::onnx("Atanh", 9, 2, |cx| unary(cx, UnaryFn::Atanh)),
    Import::onnx("Tanh", 6, 1, |cx| unary(cx, UnaryFn::Tanh)),
    Import::onnx("Erf", 9, 1, |cx| unary(cx, UnaryFn::Erf)),
    Import::onnx("Ceil", 6, 1, |cx| unary(cx, UnaryFn::Ceil)),
    Import::onnx("Floor", 6, 1, |cx| unary(cx, UnaryFn::Floor)),
    Import::onnx("Round", 11, 1, |cx| unary(cx, UnaryFn::Round)),
    Import::onnx("Not", 1, 1, |cx| unary(cx, UnaryFn::Not)),
    Import::onnx("BitwiseNot", 18, 2, |cx| unary(cx, UnaryFn::BitNot)),
    Import::onnx("IsNaN", 9, 1, |cx| unary(cx, UnaryFn::IsNan)),
    Import::onnx("IsInf", 10, 1, is_inf),
    Import::onnx("Relu", 6, 1, |cx| unary(cx, UnaryFn::Relu)),
    Import::onnx("LeakyRelu", 6, 1, |cx| unary_alpha(cx, UnaryFn::Leaky, f64::from(0.01f32))),
    Import::onnx("Elu", 6, 1, |cx| unary_alpha(cx, UnaryFn::Elu, 1.0)),
    Import::onnx("Celu", 12, 2, |cx| unary_alpha(cx, UnaryFn::Celu, 1.0)),
    Import::onnx("ThresholdedRelu", 10, 2, |cx| unary_alpha(cx, UnaryFn::Thresholded, 1.0)),
    Import::onnx("Selu", 6, 1, selu),
    Import::onnx("Gelu", 20, 1, gelu),
    Import::onnx("Mish", 18, 1, |cx| unary(cx, UnaryFn::Mish)),
    Import::onnx("Sigmoid", 6, 1, |cx| unary(cx, UnaryFn::Sigmoid)),
    Import::onnx("HardSigmoid", 6, 1, hard_sigmoid),
    Import::onnx("HardSwish", 14, 1, |cx| unary(cx, UnaryFn::HardSwish)),
    Import::onnx("Softplus", 1, 1, |cx| unary(cx, UnaryFn::Softplus)),
    Import::onnx("Softsign", 1, 2, |cx| unary(cx, UnaryFn::Softsign)),
    Import::onnx("Shrink", 9, 2, shrink),
    Import::onnx("Swish", 24, 1, |cx| one(swish(cx))),
    Import::onnx("SwiGLU", 28, 1, swiglu),
    Import::onnx("Add", 7, 1, |cx| binary(cx, BinaryFn::Add)),
    Import::onnx("Sub", 7, 1, |cx| binary(cx, BinaryFn::Sub)),
    Import::onnx("Mul", 7, 1, |cx| binary(cx, BinaryFn::Mul)),
    Import::onnx("Div", 7, 1, |cx| binary(cx, BinaryFn::Div)),
    Import::onnx("Pow", 7, 1, |cx| binary(cx, BinaryFn::Pow)),
    Import::onnx("Mod", 10, 1, modulo),
    Import::onnx("And", 7, 1, |cx| binary(cx, BinaryFn::And)),
    Import::onnx("Or", 7, 1, |cx| binary(cx, BinaryFn::Or)),
    Import::onnx("Xor", 7, 1, |cx| binary(cx, BinaryFn::Xor)),
    Import::onnx("BitwiseAnd", 18, 2, |cx| binary(cx, BinaryFn::BitAnd)),
    Import::onnx("BitwiseOr", 18, 2, |cx| binary(cx, BinaryFn::BitOr)),
    Import::onnx("BitwiseXor", 18, 2, |cx| binary(cx, BinaryFn::BitXor)),
    Import::onnx("BitShift", 11, 2, bit_shift),
    Import::onnx("PRelu", 7, 1, |cx| binary(cx, BinaryFn::Prelu)),
    Import::onnx("Min", 6, 1, |cx| one(fold_inputs(cx, BinaryFn::Min))),
    Import::onnx("Max", 6, 1, |cx| one(fold_inputs(cx, BinaryFn::Max))),
    Import::onnx("Sum", 6, 1, |cx| one(fold_inputs(cx, BinaryFn::Add))),
    Import::onnx("Mean", 6, 1, mean),
    Import::onnx("Equal", 7, 1, |cx| compare(cx, CompareFn::Eq)),
    Import::onnx("Less", 7, 1, |cx| compare(cx, CompareFn::Lt)),
    Import::onnx("LessOrEqual", 12, 1, |cx| compare(cx, CompareFn::Le)),
    Import::onnx("Greater", 7, 1, |cx| compare(cx, CompareFn::Gt)),
    Import::onnx("GreaterOrEqual", 12, 1, |cx| compare(cx, CompareFn::Ge)),
    Import::onnx("Where", 9, 1, select),
    Import::onnx("Clip", 6, 1, clip_6),
    Import::onnx("Clip", 11, 1, clip_11),
    Import::onnx("Cast", 6, 1, cast),
    Import::onnx("CastLike", 15, 1, cast_like),
    Import::onnx("BitCast", 26, 2, bit_cast),
    Import::onnx("Identity", 1, 1, |cx| one(cx.input(0))),
    Import::onnx("Dropout", 7, 1, dropout_7),
    Import::onnx("Dropout", 12, 1, dropout_12),
    Import::microsoft("Gelu", 1, |cx| unary(cx, UnaryFn::GeluErf)),
    Import::microsoft("FastGelu", 1, |cx| biased_gelu(cx, UnaryFn::GeluTanh)),
    Import::microsoft("BiasAdd", 1, bias_add),
    Import::microsoft("BiasGelu", 1, |cx| biased_gelu(cx, UnaryFn::GeluErf)),
    Import::microsoft("BiasSplitGelu", 1, bias_split_gelu),
    Import::microsoft("QuickGelu", 1, |cx| unary_alpha(cx, UnaryFn::QuickGelu, f64::from(1.702f32))),
];

/// What an Import gives.
type Values = Result<Vec<ValueId>, Fault>;

fn one(value: Result<ValueId, Fault>) -> Values {
    Ok(vec![value?])
}

fn unary(cx: &mut NodeCx<'_, '_>, func: UnaryFn) -> Values {
    let x = cx.input(0)?;
    one(cx.unary(func, x))
}

fn unary_alpha(cx: &mut NodeCx<'_, '_>, func: UnaryFn, default: f64) -> Values {
    let (x, alpha) = (cx.input(0)?, cx.float("alpha", default)?);
    one(cx.unary_with(func, alpha, 0.0, x))
}

fn is_inf(cx: &mut NodeCx<'_, '_>) -> Values {
    let flag = |name: &str| cx.flag(name, true).map(|is_set| f64::from(u8::from(is_set)));
    let (positive, negative) = (flag("detect_positive")?, flag("detect_negative")?);
    let x = cx.input(0)?;
    one(cx.unary_with(UnaryFn::IsInf, positive, negative, x))
}

fn selu(cx: &mut NodeCx<'_, '_>) -> Values {
    // The defaults are the f32 numbers nearest to the constants of the Selu paper.
    let alpha = cx.float("alpha", f64::from(1.673_263_2_f32))?;
    let gamma = cx.float("gamma", f64::from(1.050_701_f32))?;
    let x = cx.input(0)?;
    one(cx.unary_with(UnaryFn::Selu, alpha, gamma, x))
}

fn gelu(cx: &mut NodeCx<'_, '_>) -> Values {
    let func = match cx.string("approximate", "none")?.as_str() {
        "none" => UnaryFn::GeluErf,
        "tanh" => UnaryFn::GeluTanh,
        other => {
            return Err(Fault::Invalid(format!("attribute 'approximate' is '{other}'; 'none' or 'tanh' was expected")));
        }
    };
    unary(cx, func)
}

fn hard_sigmoid(cx: &mut NodeCx<'_, '_>) -> Values {
    let (alpha, beta) = (cx.float("alpha", f64::from(0.2f32))?, cx.float("beta", 0.5)?);
    let x = cx.input(0)?;
    one(cx.unary_with(UnaryFn::HardSigmoid, alpha, beta, x))
}

fn shrink(cx: &mut NodeCx<'_, '_>) -> Values {
    let (lambda, bias) = (cx.float("lambd", 0.5)?, cx.float("bias", 0.0)?);
    let x = cx.input(0)?;
    one(cx.unary_with(UnaryFn::Shrink, lambda, bias, x))
}

/// x * sigmoid(alpha * x) of input 0.
fn swish(cx: &mut NodeCx<'_, '_>) -> Result<ValueId, Fault> {
    let (x, alpha) = (cx.input(0)?, cx.float("alpha", 1.0)?);
    let func = if alpha == 1.0 { UnaryFn::Silu } else { UnaryFn::QuickGelu };
    cx.unary_with(func, alpha, 0.0, x)
}

fn swiglu(cx: &mut NodeCx<'_, '_>) -> Values {
    let gate = swish(cx)?;
    let linear = cx.input(1)?;
    one(cx.binary(BinaryFn::Mul, gate, linear))
}

/// x + bias, cut in half along the last axis: the first half times the gelu of the second.
fn bias_split_gelu(cx: &mut NodeCx<'_, '_>) -> Values {
    let (x, bias) = (cx.input(0)?, cx.input(1)?);
    let sum = cx.binary(BinaryFn::Add, x, bias)?;
    let dims = cx.dims(sum);
    let Some(last) = dims.len().checked_sub(1) else {
        return Err(Fault::Invalid("x is a scalar; an axis to cut in half was expected".to_string()));
    };
    let half = cx.number(&dims[last], "the last axis")? / 2;
    let linear = cx.slice_axis(sum, last, Dim::from(0), Dim::from(half))?;
    let gate = cx.slice_axis(sum, last, Dim::from(half), Dim::from(half))?;
    let gate = cx.unary(UnaryFn::GeluErf, gate)?;
    one(cx.binary(BinaryFn::Mul, linear, gate))
}

/// x plus a bias along its last axis, plus what skipped the layers before.
fn bias_add(cx: &mut NodeCx<'_, '_>) -> Values {
    let (x, bias, skip) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let sum = cx.binary(BinaryFn::Add, x, bias)?;
    one(cx.binary(BinaryFn::Add, sum, skip))
}

fn biased_gelu(cx: &mut NodeCx<'_, '_>, func: UnaryFn) -> Values {
    let mut x = cx.input(0)?;
    if let Some(bias) = cx.optional(1) {
        x = cx.binary(BinaryFn::Add, x, bias)?;
    }
    one(cx.unary(func, x))
}

fn binary(cx: &mut NodeCx<'_, '_>, func: BinaryFn) -> Values {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    one(cx.binary(func, a, b))
}

fn modulo(cx: &mut NodeCx<'_, '_>) -> Values {
    let func = if cx.flag("fmod", false)? { BinaryFn::Fmod } else { BinaryFn::Mod };
    binary(cx, func)
}

fn bit_shift(cx: &mut NodeCx<'_, '_>) -> Values {
    let func = match cx.string("direction", "")?.as_str() {
        "LEFT" => BinaryFn::Shl,
        "RIGHT" => BinaryFn::Shr,
        other => {
            return Err(Fault::Invalid(format!("attribute 'direction' is '{other}'; LEFT or RIGHT was expected")));
        }
    };
    binary(cx, func)
}

/// All inputs combined from left to right.
fn fold_inputs(cx: &mut NodeCx<'_, '_>, func: BinaryFn) -> Result<ValueId, Fault> {
    let inputs = cx.all_inputs()?;
    let Some((&first, rest)) = inputs.split_first() else {
        return Err(Fault::Invalid("no inputs; at least one was expected".to_string()));
    };
    rest.iter().try_fold(first, |folded, &input| cx.binary(func, folded, input))
}

fn mean(cx: &mut NodeCx<'_, '_>) -> Values {
    let sum = fold_inputs(cx, BinaryFn::Add)?;
    let count = cx.input_count();
    if count == 1 {
        return Ok(vec![sum]);
    }
    one(cx.binary_scalar(BinaryFn::Div, sum, count as f64))
}

fn compare(cx: &mut NodeCx<'_, '_>, func: CompareFn) -> Values {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    one(cx.compare(func, a, b))
}

fn select(cx: &mut NodeCx<'_, '_>) -> Values {
    let (condition, x, y) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    one(cx.select(condition, x, y))
}

/// Bounds as attributes, whose defaults are the ends of f32.
fn clip_6(cx: &mut NodeCx<'_, '_>) -> Values {
    let lo = cx.float("min", f64::from(f32::MIN))?;
    let hi = cx.float("max", f64::from(f32::MAX))?;
    let x = cx.input(0)?;
    one(cx.clamp(x, lo, hi))
}

/// Bounds as optional inputs.
fn clip_11(cx: &mut NodeCx<'_, '_>) -> Values {
    let x = cx.input(0)?;
    let (lo, hi) = (cx.optional(1), cx.optional(2));
    let number = |bound: Option<ValueId>, absent: f64| match bound {
        None => Some(absent),
        Some(bound) => exact_number(cx, bound),
    };
    if lo.is_none() && hi.is_none() {
        return Ok(vec![x]);
    }
    if let (Some(lo), Some(hi)) = (number(lo, f64::NEG_INFINITY), number(hi, f64::INFINITY)) {
        return one(cx.clamp(x, lo, hi));
    }
    let mut clipped = x;
    for (func, bound) in [(BinaryFn::Max, lo), (BinaryFn::Min, hi)] {
        if let Some(bound) = bound {
            // Exporters write [1] for a scalar, which must not change the rank of a scalar x.
            let bound = cx.reshape(bound, Vec::new())?;
            clipped = cx.binary(func, clipped, bound)?;
        }
    }
    Ok(vec![clipped])
}

/// The number of a constant of one element that f64 holds exactly and that is not NaN.
fn exact_number(cx: &NodeCx<'_, '_>, value: ValueId) -> Option<f64> {
    /// Integers up to here are exact in f64.
    const EXACT_MAX: i128 = 1 << f64::MANTISSA_DIGITS;
    let tensor = cx.constant(value)?;
    if !tensor.dtype().is_float() {
        let &[integer] = tensor.to_i128_vec().ok()?.as_slice() else {
            return None;
        };
        return (integer.abs() <= EXACT_MAX).then_some(integer as f64);
    }
    match tensor.to_f64_vec()[..] {
        [number] if !number.is_nan() => Some(number),
        _ => None,
    }
}

fn cast(cx: &mut NodeCx<'_, '_>) -> Values {
    let to = cx.dtype_attribute("to")?.ok_or_else(|| Fault::Invalid("attribute 'to' is missing".to_string()))?;
    cast_to(cx, to)
}

fn cast_like(cx: &mut NodeCx<'_, '_>) -> Values {
    let like = cx.input(1)?;
    let to = cx.dtype(like);
    cast_to(cx, to)
}

fn cast_to(cx: &mut NodeCx<'_, '_>, to: DType) -> Values {
    let saturate = cx.opset() < 19 || cx.flag("saturate", true)?;
    if cx.opset() >= 24 {
        let mode = cx.string("round_mode", "up")?;
        if to == DType::F8E8M0 && mode != "up" {
            return Err(Fault::Unsupported(format!("round_mode '{mode}' to f8e8m0 is not covered")));
        }
    }
    let x = cx.input(0)?;
    if cx.dtype(x) == to {
        return Ok(vec![x]);
    }
    one(cx.add(Cast { to, saturate }, &[x]))
}

fn bit_cast(cx: &mut NodeCx<'_, '_>) -> Values {
    let to = cx.dtype_attribute("to")?.ok_or_else(|| Fault::Invalid("attribute 'to' is missing".to_string()))?;
    let x = cx.input(0)?;
    one(cx.add(Bitcast { to }, &[x]))
}

/// Inference only: the mask has the element type of x before opset 10.
pub(super) fn dropout_7(cx: &mut NodeCx<'_, '_>) -> Values {
    cx.float("ratio", 0.5)?;
    let x = cx.input(0)?;
    let mask = if cx.opset() < 10 { cx.dtype(x) } else { DType::Bool };
    kept(cx, x, mask)
}

fn dropout_12(cx: &mut NodeCx<'_, '_>) -> Values {
    cx.int("seed", 0)?;
    let x = cx.input(0)?;
    let is_training = match cx.optional(2) {
        Some(mode) => cx.require_ints(mode, "training_mode")?.iter().any(|&mode| mode != 0),
        None => false,
    };
    if is_training {
        let ratio = match cx.optional(1) {
            Some(ratio) => cx.require_floats(ratio, "ratio")?.iter().copied().fold(0.0, f64::max),
            None => 0.5,
        };
        if ratio != 0.0 {
            return Err(Fault::Unsupported("training_mode is true; export the model for inference".to_string()));
        }
    }
    kept(cx, x, DType::Bool)
}

/// x and, where it is asked for, a mask of ones.
fn kept(cx: &mut NodeCx<'_, '_>, x: ValueId, mask: DType) -> Values {
    let mut values = vec![x];
    if cx.is_wanted(1) {
        let one = cx.scalar(mask, 1.0)?;
        let dims: Vec<Dim> = cx.dims(x);
        values.push(cx.broadcast(one, dims)?);
    }
    Ok(values)
}
