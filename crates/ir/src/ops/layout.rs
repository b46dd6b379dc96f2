//! Ops that make or move elements without computing on them: iota, dim_value, reshape, transpose, broadcast, slice,
//! concat and pad. Elements travel as bytes, so every element type is moved alike.

use precast_tensor::{DType, Dim, Tensor, Type};

use super::elementwise::int_to_float;
use super::raw::{StridedView, from_bytes, from_shared_bytes, transpose};
use super::shape::{
    broadcast_dims, broadcast_strides, check_arity, check_axis, check_length, check_same_dtype, count, dtype_error,
    for_each_index, infer_shape, number, numbers, print_dims, same_dim, split_at_axis, strides, write_floats,
    write_ints,
};
use crate::error::{EvalError, InferError};
use crate::op::{Broadcast, Concat, DimValue, Iota, Operation, Pad, PadFn, Reshape, Slice, Transpose};

impl Operation for Iota {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("iota", inputs, 0..=0)?;
        if self.to.is_bool() {
            return Err(dtype_error("iota", self.to));
        }
        check_sizes("iota", std::slice::from_ref(&self.length))?;
        Ok(vec![Type { dtype: self.to, dims: vec![self.length.clone()] }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape("iota", self, inputs)?;
        let (start, step) = (i128::from(number("iota", &self.start)?), i128::from(number("iota", &self.step)?));
        let values = (0..count(&shape)).map(|at| start + at as i128 * step);
        if dtype.is_float() {
            let values: Vec<f64> = values.map(|value| int_to_float(value, dtype)).collect();
            return Ok(vec![write_floats("iota", dtype, &shape, &values)?]);
        }
        Ok(vec![write_ints("iota", dtype, &shape, &values.collect::<Vec<i128>>())?])
    }
}

fn check_sizes(op: &'static str, dims: &[Dim]) -> Result<(), InferError> {
    match dims.iter().find(|dim| dim.as_const().is_some_and(|size| size < 0)) {
        Some(_) => Err(InferError::new(op, format!("a size of {} is negative", print_dims(dims)))),
        None => Ok(()),
    }
}

impl Operation for DimValue {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("dim_value", inputs, 0..=0)?;
        Ok(vec![Type { dtype: DType::I64, dims: vec![] }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        check_arity("dim_value", inputs, 0..=0)?;
        let value = i128::from(number("dim_value", &self.dim)?);
        Ok(vec![write_ints("dim_value", DType::I64, &[], &[value])?])
    }
}

impl Operation for Reshape {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("reshape", inputs, 1..=1)?;
        check_sizes("reshape", &self.shape)?;
        let before: Dim = inputs[0].dims.iter().product();
        let after: Dim = self.shape.iter().product();
        if before != after && (&before - &after).as_const().is_some_and(|difference| difference != 0) {
            let (from, to) = (print_dims(&inputs[0].dims), print_dims(&self.shape));
            return Err(InferError::new("reshape", format!("{from} has {before} elements and {to} has {after}")));
        }
        Ok(vec![Type { dtype: inputs[0].dtype, dims: self.shape.clone() }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape("reshape", self, inputs)?;
        Ok(vec![from_shared_bytes("reshape", dtype, &shape, &inputs[0])?])
    }
}

impl Operation for Transpose {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("transpose", inputs, 1..=1)?;
        let Type { dtype, dims } = inputs[0];
        let mut sorted = self.perm.clone();
        sorted.sort_unstable();
        if sorted.len() != dims.len() || sorted.iter().enumerate().any(|(at, &axis)| at != axis) {
            let reason = format!("{:?} is not a permutation of the axes of {}", self.perm, print_dims(dims));
            return Err(InferError::new("transpose", reason));
        }
        Ok(vec![Type { dtype: *dtype, dims: self.perm.iter().map(|&axis| dims[axis].clone()).collect() }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        infer_shape("transpose", self, inputs)?;
        Ok(vec![transpose("transpose", &inputs[0], &self.perm)?])
    }
}

impl Operation for Broadcast {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("broadcast", inputs, 1..=1)?;
        check_sizes("broadcast", &self.shape)?;
        let dims = broadcast_dims("broadcast", &[&inputs[0].dims, &self.shape])?;
        Ok(vec![Type { dtype: inputs[0].dtype, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape("broadcast", self, inputs)?;
        let view = StridedView::new(shape.clone(), &broadcast_strides(inputs[0].shape(), &shape));
        let bytes = view.copy(inputs[0].as_bytes(), dtype.size_bytes());
        Ok(vec![from_bytes("broadcast", dtype, &shape, bytes)?])
    }
}

impl Operation for Slice {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("slice", inputs, 1..=1)?;
        let rank = inputs[0].dims.len();
        check_length("slice", "start", self.start.len(), rank)?;
        check_length("slice", "step", self.step.len(), rank)?;
        check_length("slice", "size", self.size.len(), rank)?;
        check_sizes("slice", &self.size)?;
        for (axis, dim) in inputs[0].dims.iter().enumerate() {
            self.check_range(axis, dim)?;
        }
        Ok(vec![Type { dtype: inputs[0].dtype, dims: self.size.clone() }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let starts = numbers("slice", &self.start)?;
        let (dtype, shape) = infer_shape("slice", self, inputs)?;
        if count(&shape) == 0 {
            return Ok(vec![from_bytes("slice", dtype, &shape, Vec::new())?]);
        }
        let own = strides(inputs[0].shape());
        let mut view = StridedView::new(shape.clone(), &vec![0; shape.len()]);
        for (axis, &stride) in own.iter().enumerate() {
            view.start += starts[axis] as usize * stride;
            // The step of an axis with one element is never taken and may be any number.
            let step = if shape[axis] == 1 { 0 } else { self.step[axis] };
            view.strides[axis] = step as isize * stride as isize;
        }
        let bytes = view.copy(inputs[0].as_bytes(), dtype.size_bytes());
        Ok(vec![from_bytes("slice", dtype, &shape, bytes)?])
    }
}

impl Slice {
    /// Checks what is known already; with numbers for all dims, everything.
    fn check_range(&self, axis: usize, dim: &Dim) -> Result<(), InferError> {
        let step = self.step[axis];
        if step == 0 {
            return Err(InferError::new("slice", format!("the step of axis {axis} is 0")));
        }
        let (Some(start), Some(size)) = (self.start[axis].as_const(), self.size[axis].as_const()) else {
            return Ok(());
        };
        let last = i128::from(start) + (i128::from(size) - 1) * i128::from(step);
        let end = dim.as_const().map_or(i128::MAX, i128::from);
        let is_within = |at: i128| 0 <= at && at < end;
        if size > 0 && !(is_within(i128::from(start)) && is_within(last)) {
            let reason = format!("elements {start} to {last} of axis {axis} are not within its extent {dim}");
            return Err(InferError::new("slice", reason));
        }
        Ok(())
    }
}

impl Operation for Concat {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("concat", inputs, 1..=usize::MAX)?;
        let first = inputs[0];
        check_axis("concat", self.axis, first.dims.len())?;
        let mut dims = first.dims.clone();
        for input in &inputs[1..] {
            check_same_dtype("concat", first, input)?;
            dims = self.join(&dims, &input.dims).ok_or_else(|| {
                let (a, b) = (print_dims(&dims), print_dims(&input.dims));
                InferError::new("concat", format!("shapes {a} and {b} do not join along axis {}", self.axis))
            })?;
        }
        Ok(vec![Type { dtype: first.dtype, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape("concat", self, inputs)?;
        let size = dtype.size_bytes();
        let outer = split_at_axis(&shape, self.axis).outer;
        let mut bytes = Vec::with_capacity(count(&shape) * size);
        for block in 0..outer {
            for input in inputs {
                let split = split_at_axis(input.shape(), self.axis);
                let block_bytes = split.extent * split.inner * size;
                bytes.extend_from_slice(&input.as_bytes()[block * block_bytes..(block + 1) * block_bytes]);
            }
        }
        Ok(vec![from_bytes("concat", dtype, &shape, bytes)?])
    }
}

impl Concat {
    fn join(&self, a: &[Dim], b: &[Dim]) -> Option<Vec<Dim>> {
        if a.len() != b.len() {
            return None;
        }
        let pairs = a.iter().zip(b).enumerate();
        pairs.map(|(axis, (a, b))| if axis == self.axis { Some(a + b) } else { same_dim(a, b) }).collect()
    }
}

impl Operation for Pad {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        let inputs_max = if self.func == PadFn::Constant { 2 } else { 1 };
        check_arity("pad", inputs, 1..=inputs_max)?;
        let Type { dtype, dims } = inputs[0];
        check_length("pad", "lo", self.lo.len(), dims.len())?;
        check_length("pad", "hi", self.hi.len(), dims.len())?;
        if let Some(value) = inputs.get(1) {
            check_same_dtype("pad", inputs[0], value)?;
            let elements: Dim = value.dims.iter().product();
            if elements.as_const().is_some_and(|count| count != 1) {
                let reason = format!("the value has shape {} where a scalar is expected", print_dims(&value.dims));
                return Err(InferError::new("pad", reason));
            }
        }
        let dims: Vec<Dim> =
            dims.iter().zip(self.lo.iter().zip(&self.hi)).map(|(dim, (lo, hi))| dim + lo + hi).collect();
        check_sizes("pad", &dims)?;
        Ok(vec![Type { dtype: *dtype, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (lo, hi) = (numbers("pad", &self.lo)?, numbers("pad", &self.hi)?);
        let (dtype, shape) = infer_shape("pad", self, inputs)?;
        let size = dtype.size_bytes();
        let zero = [0; 8];
        let value = inputs.get(1).map_or(&zero[..size], |value| &value.as_bytes()[..size]);
        if count(&shape) == 0 {
            return Ok(vec![from_bytes("pad", dtype, &shape, Vec::new())?]);
        }
        let sources: Vec<Vec<Option<usize>>> = (0..shape.len())
            .map(|axis| pad_sources(self.func, inputs[0].shape()[axis], lo[axis], hi[axis], shape[axis]))
            .collect::<Result<_, _>>()?;
        let own = strides(inputs[0].shape());
        let mut bytes = Vec::with_capacity(count(&shape) * size);
        for_each_index(&shape, |index| {
            let places = index.iter().enumerate().map(|(axis, &at)| Some(sources[axis][at]? * own[axis]));
            let element = match places.sum::<Option<usize>>() {
                Some(place) => &inputs[0].as_bytes()[place * size..(place + 1) * size],
                None => value,
            };
            bytes.extend_from_slice(element);
        });
        Ok(vec![from_bytes("pad", dtype, &shape, bytes)?])
    }
}

/// For each of `length` places of a padded axis the element it shows; `None` is the pad value. What negative pads
/// remove is gone before the rest is reflected, repeated or wrapped.
fn pad_sources(func: PadFn, extent: usize, lo: i64, hi: i64, length: usize) -> Result<Vec<Option<usize>>, EvalError> {
    let first = i128::from(lo.min(0)).abs();
    let end = extent as i128 + i128::from(hi.min(0));
    let kept = end - first;
    if kept <= 0 && func != PadFn::Constant {
        let reason = format!("'{}' has nothing to repeat on an axis of extent {extent}", func.name());
        return Err(EvalError::value("pad", reason));
    }
    let sources = (0..length as i128).map(|at| {
        let place = at - i128::from(lo.max(0));
        let source = match func {
            PadFn::Constant if (0..kept).contains(&place) => place,
            PadFn::Constant => return None,
            PadFn::Edge => place.clamp(0, kept - 1),
            PadFn::Wrap => place.rem_euclid(kept),
            PadFn::Reflect => {
                let period = (2 * (kept - 1)).max(1);
                let along = place.rem_euclid(period);
                along.min(period - along)
            }
        };
        Some((first + source) as usize)
    });
    Ok(sources.collect())
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
