//! Quantising f32 to bytes and back.

use precast_ir::op::{Dequantize, Quantize, Unpack};
use precast_kernels::quantize::{self, QuantizeShape};
use precast_tensor::{DType, Tensor};

use crate::ops::around;
use crate::step::{Lowered, Read, StepNode};

/// How the parameters lie over x: one for all, one along the axis, or one for each whole block of the last axis.
fn parameters(step: &StepNode, axis: usize, block: usize) -> Option<QuantizeShape> {
    let shape = step.shape(0);
    let scales: usize = step.shape(1).iter().product();
    if step.dtype(1) != DType::F32 {
        return None;
    }
    if block != 0 {
        let is_whole = axis + 1 == shape.len() && shape[axis].is_multiple_of(block);
        return is_whole.then_some(QuantizeShape { outer: 1, axis: scales, inner: block });
    }
    if scales == 1 {
        return Some(QuantizeShape::whole(shape.iter().product()));
    }
    let [outer, axis, inner] = around(&shape, axis);
    (scales == axis).then_some(QuantizeShape { outer, axis, inner })
}

/// f32 to u8 or i8.
pub fn lower_quantize(step: &StepNode, op: &Quantize) -> Result<Option<Lowered>, String> {
    let Some(shape) = parameters(step, op.axis, op.block) else { return Ok(None) };
    if step.dtype(0) != DType::F32 || op.precision != DType::F32 {
        return Ok(None);
    }
    let has_zeros = step.input_count() > 2;
    Ok(match op.to {
        DType::U8 => Some(Lowered::plain("quantize", step, move |args, exec| {
            let zeros: &[u8] = if has_zeros { args.read(2) } else { &[] };
            quantize::quantize_u8(&exec, shape, args.read(0), args.read(1), zeros, args.write(0));
            Ok(())
        })),
        DType::I8 => Some(Lowered::plain("quantize", step, move |args, exec| {
            let zeros: &[i8] = if has_zeros { args.read(2) } else { &[] };
            quantize::quantize_i8(&exec, shape, args.read(0), args.read(1), zeros, args.write(0));
            Ok(())
        })),
        _ => None,
    })
}

/// Bytes, their halves and quarters, or i32 to f32.
pub fn lower_dequantize(step: &StepNode, op: &Dequantize) -> Result<Option<Lowered>, String> {
    let Some(shape) = parameters(step, op.axis, op.block) else { return Ok(None) };
    if op.to != DType::F32 {
        return Ok(None);
    }
    let has_zeros = step.input_count() > 2;
    Ok(match step.dtype(0) {
        DType::U8 | DType::U4 | DType::U2 => Some(Lowered::plain("dequantize", step, move |args, exec| {
            let zeros: &[u8] = if has_zeros { args.read(2) } else { &[] };
            quantize::dequantize_u8(&exec, shape, args.read(0), args.read(1), zeros, args.write(0));
            Ok(())
        })),
        DType::I8 | DType::I4 | DType::I2 => Some(Lowered::plain("dequantize", step, move |args, exec| {
            let zeros: &[i8] = if has_zeros { args.read(2) } else { &[] };
            quantize::dequantize_i8(&exec, shape, args.read(0), args.read(1), zeros, args.write(0));
            Ok(())
        })),
        DType::I32 => Some(Lowered::plain("dequantize", step, move |args, exec| {
            let zeros: &[i32] = if has_zeros { args.read(2) } else { &[] };
            quantize::dequantize_i32(&exec, shape, args.read(0), args.read(1), zeros, args.write(0));
            Ok(())
        })),
        _ => None,
    })
}

/// Bytes to the elements in them.
pub fn lower_unpack(step: &StepNode, op: &Unpack) -> Option<Lowered> {
    let (op, per_byte) = (op.clone(), op.per_byte()?);
    Some(Lowered::plain("unpack", step, move |args, _| {
        let bytes = args.read::<u8>(0);
        for (elements, &byte) in args.write::<u8>(0).chunks_exact_mut(per_byte).zip(bytes) {
            for (position, element) in elements.iter_mut().enumerate() {
                *element = op.element(byte, position);
            }
        }
        Ok(())
    }))
}

/// The only zero point of an operand.
pub fn zero_point(bytes: &[u8], is_signed: bool) -> i32 {
    if is_signed { i32::from(bytes[0] as i8) } else { i32::from(bytes[0]) }
}

/// Constant zero points as integer kernels read them.
pub fn zero_points(step: &StepNode, input: usize) -> Result<Read, String> {
    let zeros = step.constant(input).map(Tensor::to_i64_vec).transpose().map_err(|error| error.to_string())?;
    let fill = |zeros: Vec<i64>| {
        move |target: &mut [i32]| target.iter_mut().zip(&zeros).for_each(|(target, &zero)| *target = zero as i32)
    };
    Read::packed(step.shape(input).iter().product(), zeros.map(fill))
}
