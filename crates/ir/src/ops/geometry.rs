//! Limits of windows that slide: with them no place that convolution or pooling computes leaves i64.

use precast_tensor::Dim;

use super::shape::numbers;
use crate::error::{EvalError, InferError};

/// Largest stride, dilation or window; larger than the side of any image.
const STEP_MAX: usize = 1 << 31;
/// Largest padding, either way.
const PAD_MAX: u64 = 1 << 40;

/// Checks strides, dilations or window sizes.
pub fn check_steps(op: &'static str, steps: &[usize]) -> Result<(), InferError> {
    match steps.iter().find(|step| !(1..=STEP_MAX).contains(*step)) {
        None => Ok(()),
        Some(step) => Err(InferError::new(op, format!("{step} found where a size from 1 to {STEP_MAX} is expected"))),
    }
}

/// The numbers that pads are bound to.
pub fn pad_numbers(op: &'static str, pads: &[Dim]) -> Result<Vec<i64>, EvalError> {
    let pads = numbers(op, pads)?;
    match pads.iter().find(|pad| pad.unsigned_abs() > PAD_MAX) {
        None => Ok(pads),
        Some(pad) => Err(EvalError::value(op, format!("padding {pad} is beyond {PAD_MAX}"))),
    }
}
