//! com.microsoft's operators on 8-bit numbers: each is the float operator between a dequantised operand and a quantised
//! result.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, MatmulInt, ReduceFn, Softmax};
use precast_tensor::{DType, Dim};

use super::{Values, dequantized, quantize_to, quantized, scalar_input, scalar_or_vector};
use crate::import::{Fault, NodeCx};
use crate::operators::channels::{channels_first, channels_last};
use crate::operators::matmul::zero_point;
use crate::operators::window;

/// Inputs a, its scale and zero point, the same of b, a bias in i32, and scale and zero point of the output, without which it
/// is a float.
pub(super) fn qgemm(cx: &mut NodeCx<'_, '_>) -> Values {
    let (mut a, mut b) = (cx.input(0)?, cx.input(3)?);
    let alpha = cx.float("alpha", 1.0)?;
    let (a_zero, b_zero) = (zero_point(cx, 2, a)?, zero_point(cx, 5, b)?);
    if cx.flag("transA", false)? {
        a = cx.transpose(a, vec![1, 0])?;
    }
    if cx.flag("transB", false)? {
        b = cx.transpose(b, vec![1, 0])?;
    }
    let mut sums = cx.add(MatmulInt {}, &[a, b, a_zero, b_zero])?;
    if let Some(bias) = cx.optional(6) {
        sums = cx.binary(BinaryFn::Add, sums, bias)?;
    }
    let (a_scale, b_scale) = (scalar_input(cx, 1)?, scalar_or_vector(cx, 4)?);
    let scale = cx.binary(BinaryFn::Mul, a_scale, b_scale)?;
    let scale = cx.binary_scalar(BinaryFn::Mul, scale, alpha)?;
    let sums = cx.cast(sums, DType::F32)?;
    let y = cx.binary(BinaryFn::Mul, sums, scale)?;
    if cx.optional(7).is_none() {
        return Ok(vec![y]);
    }
    let y_scale = scalar_input(cx, 7)?;
    let y_zero = scalar_input(cx, 8)?;
    Ok(vec![quantize_to(cx, y, y_scale, y_zero)?])
}

/// What a float operator makes of the dequantised operand at input 0, with the scale and zero point at inputs 3 and 4.
fn between(
    cx: &mut NodeCx<'_, '_>,
    make: impl FnOnce(&mut NodeCx<'_, '_>, ValueId) -> Result<ValueId, Fault>,
) -> Values {
    let like = cx.input(0)?;
    let x = dequantized(cx, 0)?;
    let y = make(cx, x)?;
    quantized(cx, y, 3, like)
}

/// x with its channels in axis 1, where the attribute says that they are last, and back.
fn with_channels_first(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    make: impl FnOnce(&mut NodeCx<'_, '_>, ValueId) -> Result<ValueId, Fault>,
) -> Result<ValueId, Fault> {
    if !cx.flag("channels_last", false)? {
        return make(cx, x);
    }
    let turned = channels_first(cx, x)?;
    let y = make(cx, turned)?;
    channels_last(cx, y)
}

/// QLinearConv, whose channels may be last.
pub(super) fn qlinear_conv(cx: &mut NodeCx<'_, '_>) -> Values {
    let x = cx.input(0)?;
    Ok(vec![with_channels_first(cx, x, super::qlinear_conv_of)?])
}

/// (a - its zero point) * (b - its zero point) as i32. Inputs a, its zero point, b, its zero point.
pub(super) fn mul_integer(cx: &mut NodeCx<'_, '_>) -> Values {
    let mut factor = |position: usize| {
        let x = cx.input(position)?;
        let zero = zero_point(cx, position + 1, x)?;
        let (x, zero) = (cx.cast(x, DType::I32)?, cx.cast(zero, DType::I32)?);
        cx.binary(BinaryFn::Sub, x, zero)
    };
    let (a, b) = (factor(0)?, factor(2)?);
    Ok(vec![cx.binary(BinaryFn::Mul, a, b)?])
}

/// Sums of 8-bit numbers in 32 bits, with the sign that they have.
pub(super) fn reduce_sum_integer(cx: &mut NodeCx<'_, '_>) -> Values {
    let x = cx.input(0)?;
    let axes = cx.ints("axes")?.ok_or_else(|| Fault::Invalid("attribute 'axes' is missing".to_string()))?;
    let axes = cx.axes(&axes, cx.rank(x))?;
    let keep_dims = cx.flag("keepdims", true)?;
    let wide = cx.cast(x, if cx.dtype(x) == DType::U8 { DType::U32 } else { DType::I32 })?;
    Ok(vec![cx.reduce(ReduceFn::Sum, wide, axes, keep_dims)?])
}

pub(super) fn qlinear_average_pool(cx: &mut NodeCx<'_, '_>) -> Values {
    between(cx, |cx, x| with_channels_first(cx, x, window::average_pool_of))
}

pub(super) fn qlinear_global_average_pool(cx: &mut NodeCx<'_, '_>) -> Values {
    between(cx, |cx, x| {
        with_channels_first(cx, x, |cx, x| {
            let axes = (2..cx.rank(x)).collect();
            cx.reduce(ReduceFn::Mean, x, axes, true)
        })
    })
}

pub(super) fn qlinear_reduce_mean(cx: &mut NodeCx<'_, '_>) -> Values {
    let keep_dims = cx.flag("keepdims", true)?;
    let axes = cx.ints("axes")?;
    between(cx, |cx, x| {
        let rank = cx.rank(x);
        let axes = match axes {
            Some(axes) => cx.axes(&axes, rank)?,
            None => (0..rank).collect(),
        };
        cx.reduce(ReduceFn::Mean, x, axes, keep_dims)
    })
}

/// Along one axis, or below opset 13, which an attribute tells, over all axes from it on.
pub(super) fn qlinear_softmax(cx: &mut NodeCx<'_, '_>) -> Values {
    let (axis, opset) = (cx.int("axis", -1)?, cx.int("opset", 13)?);
    between(cx, |cx, x| {
        let axis = cx.axis(axis, cx.rank(x))?;
        if opset >= 13 {
            return cx.add(Softmax { axis, log: false }, &[x]);
        }
        let dims = cx.dims(x);
        let rows: Dim = dims[..axis].iter().cloned().product();
        let columns: Dim = dims[axis..].iter().cloned().product();
        let flat = cx.reshape(x, vec![rows, columns])?;
        let y = cx.softmax(flat, 1)?;
        cx.reshape(y, dims)
    })
}

/// Inputs condition, x, its scale and zero point, the same of y, and scale and zero point of the output.
pub(super) fn qlinear_where(cx: &mut NodeCx<'_, '_>) -> Values {
    let (condition, like) = (cx.input(0)?, cx.input(1)?);
    let (x, y) = (dequantized(cx, 1)?, dequantized(cx, 4)?);
    let chosen = cx.select(condition, x, y)?;
    quantized(cx, chosen, 7, like)
}
