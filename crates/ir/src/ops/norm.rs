//! Normalisations. Sums and statistics are f64; the result is rounded once.

use precast_tensor::{Dim, Tensor, Type};

use super::shape::{
    broadcast_dims, broadcast_strides, check_arity, check_axis, check_same_dtype, count, dtype_error, infer_shape,
    offsets, read_floats, same_dim, split_at_axis, write_floats,
};
use crate::error::{EvalError, InferError};
use crate::op::{GroupNorm, LayerNorm, Lrn, Operation, RmsNorm, Softmax};

const SOFTMAX: &str = "softmax";
const LAYER_NORM: &str = "layer_norm";
const RMS_NORM: &str = "rms_norm";
const GROUP_NORM: &str = "group_norm";
const LRN: &str = "lrn";

impl Operation for Softmax {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity(SOFTMAX, inputs, 1..=1)?;
        check_axis(SOFTMAX, self.axis, inputs[0].dims.len())?;
        same_float_type(SOFTMAX, inputs)
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(SOFTMAX, self, inputs)?;
        let mut elements = read_floats(&inputs[0]);
        let split = split_at_axis(&shape, self.axis);
        for outer in 0..split.outer {
            for inner in 0..split.inner {
                let at = |along: usize| (outer * split.extent + along) * split.inner + inner;
                let line: Vec<f64> = (0..split.extent).map(|along| elements[at(along)]).collect();
                // The largest element is taken off first, so that exp does not overflow; a NaN reaches every element
                // through the sum.
                let largest = line.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = line.iter().map(|element| libm::exp(element - largest)).sum();
                for (along, element) in line.iter().enumerate() {
                    let shifted = element - largest;
                    elements[at(along)] = if self.log { shifted - libm::log(sum) } else { libm::exp(shifted) / sum };
                }
            }
        }
        Ok(vec![write_floats(SOFTMAX, dtype, &shape, &elements)?])
    }
}

impl Operation for LayerNorm {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity(LAYER_NORM, inputs, 2..=3)?;
        check_axis(LAYER_NORM, self.axis, inputs[0].dims.len())?;
        check_broadcasts_to_first(LAYER_NORM, inputs)?;
        same_float_type(LAYER_NORM, inputs)
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(LAYER_NORM, self, inputs)?;
        let mut elements = read_floats(&inputs[0]);
        for row in elements.chunks_exact_mut(count(&shape[self.axis..]).max(1)) {
            centre(row);
            scale_to_unit(row, self.epsilon);
        }
        multiply_by(&mut elements, &shape, &inputs[1]);
        if let Some(bias) = inputs.get(2) {
            let (bias, places) = broadcast_floats(bias, &shape);
            elements.iter_mut().zip(places).for_each(|(element, place)| *element += bias[place]);
        }
        Ok(vec![write_floats(LAYER_NORM, dtype, &shape, &elements)?])
    }
}

impl Operation for RmsNorm {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity(RMS_NORM, inputs, 2..=2)?;
        check_axis(RMS_NORM, self.axis, inputs[0].dims.len())?;
        check_broadcasts_to_first(RMS_NORM, inputs)?;
        same_float_type(RMS_NORM, inputs)
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(RMS_NORM, self, inputs)?;
        let mut elements = read_floats(&inputs[0]);
        for row in elements.chunks_exact_mut(count(&shape[self.axis..]).max(1)) {
            scale_to_unit(row, self.epsilon);
        }
        multiply_by(&mut elements, &shape, &inputs[1]);
        Ok(vec![write_floats(RMS_NORM, dtype, &shape, &elements)?])
    }
}

impl Operation for GroupNorm {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity(GROUP_NORM, inputs, 3..=3)?;
        let channels = channel_dim(GROUP_NORM, inputs[0])?;
        let is_divided =
            |channels: i64| usize::try_from(channels).is_ok_and(|channels| channels.is_multiple_of(self.groups));
        if self.groups == 0 || !channels.as_const().is_none_or(is_divided) {
            let reason = format!("{channels} channels do not form {} groups", self.groups);
            return Err(InferError::new(GROUP_NORM, reason));
        }
        for input in &inputs[1..] {
            if input.dims.len() != 1 || same_dim(&input.dims[0], channels).is_none() {
                let reason = format!("{input} found where scale and bias are [{channels}]");
                return Err(InferError::new(GROUP_NORM, reason));
            }
        }
        same_float_type(GROUP_NORM, inputs)
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(GROUP_NORM, self, inputs)?;
        let mut elements = read_floats(&inputs[0]);
        let (scale, bias) = (read_floats(&inputs[1]), read_floats(&inputs[2]));
        let (channels, plane) = (shape[1], count(&shape[2..]));
        for group in elements.chunks_exact_mut((channels / self.groups * plane).max(1)) {
            centre(group);
            scale_to_unit(group, self.epsilon);
        }
        for (at, elements) in elements.chunks_exact_mut(plane.max(1)).enumerate() {
            let channel = at % channels;
            elements.iter_mut().for_each(|element| *element = *element * scale[channel] + bias[channel]);
        }
        Ok(vec![write_floats(GROUP_NORM, dtype, &shape, &elements)?])
    }
}

impl Operation for Lrn {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity(LRN, inputs, 1..=1)?;
        channel_dim(LRN, inputs[0])?;
        if self.size == 0 {
            return Err(InferError::new(LRN, "size is at least 1"));
        }
        same_float_type(LRN, inputs)
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(LRN, self, inputs)?;
        let x = read_floats(&inputs[0]);
        let split = split_at_axis(&shape, 1);
        // An even size has one more neighbour after the channel than before it.
        let (before, after) = ((self.size - 1) / 2, self.size / 2);
        let mut output = Vec::with_capacity(x.len());
        for batch in 0..split.outer {
            for channel in 0..split.extent {
                let neighbours =
                    channel.saturating_sub(before)..split.extent.min(channel.saturating_add(after).saturating_add(1));
                for inner in 0..split.inner {
                    let at = |channel: usize| x[(batch * split.extent + channel) * split.inner + inner];
                    let squares: f64 = neighbours.clone().map(|channel| at(channel) * at(channel)).sum();
                    let divisor = libm::pow(self.bias + self.alpha / self.size as f64 * squares, self.beta);
                    output.push(at(channel) / divisor);
                }
            }
        }
        Ok(vec![write_floats(LRN, dtype, &shape, &output)?])
    }
}

/// Takes the mean off every element.
fn centre(elements: &mut [f64]) {
    let mean = elements.iter().sum::<f64>() / elements.len() as f64;
    elements.iter_mut().for_each(|element| *element -= mean);
}

/// Divides by the root of the mean square, with epsilon under the root.
fn scale_to_unit(elements: &mut [f64], epsilon: f64) {
    let mean_square = elements.iter().map(|element| element * element).sum::<f64>() / elements.len() as f64;
    let root = (mean_square + epsilon).sqrt();
    elements.iter_mut().for_each(|element| *element /= root);
}

fn multiply_by(elements: &mut [f64], shape: &[usize], scale: &Tensor) {
    let (scale, places) = broadcast_floats(scale, shape);
    elements.iter_mut().zip(places).for_each(|(element, place)| *element *= scale[place]);
}

/// A tensor's elements, and which of them each element of `shape` reads.
fn broadcast_floats(tensor: &Tensor, shape: &[usize]) -> (Vec<f64>, Vec<usize>) {
    (read_floats(tensor), offsets(shape, &broadcast_strides(tensor.shape(), shape)))
}

fn same_float_type(op: &'static str, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
    if !inputs[0].dtype.is_float() {
        return Err(dtype_error(op, inputs[0].dtype));
    }
    inputs[1..].iter().try_for_each(|input| check_same_dtype(op, inputs[0], input))?;
    Ok(vec![inputs[0].clone()])
}

fn check_broadcasts_to_first(op: &'static str, inputs: &[&Type]) -> Result<(), InferError> {
    let x = inputs[0];
    for input in &inputs[1..] {
        let joined = broadcast_dims(op, &[&x.dims, &input.dims])?;
        let fits =
            joined.len() == x.dims.len() && joined.iter().zip(&x.dims).all(|(dim, own)| same_dim(dim, own).is_some());
        if !fits {
            return Err(InferError::new(op, format!("{input} does not broadcast to x {x}")));
        }
    }
    Ok(())
}

fn channel_dim<'a>(op: &'static str, x: &'a Type) -> Result<&'a Dim, InferError> {
    x.dims.get(1).ok_or_else(|| InferError::new(op, format!("x {x} has no channel axis")))
}

#[cfg(test)]
#[path = "norm_tests.rs"]
mod tests;
