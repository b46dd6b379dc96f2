//! Ops of the index family that write at computed places: scatter_elements and scatter_nd. Updates are applied in
//! row-major order, so of several to one place the last one stays, or all are combined.

use precast_tensor::{Dim, Tensor, Type};

use super::function::{max_float, min_float};
use super::index::{check_element_indices, check_index_tuples, element_places, slice_places};
use super::raw::from_bytes;
use super::shape::{Elements, check_arity, check_same_dtype, infer_shape, print_dims, same_dim};
use crate::error::{EvalError, InferError};
use crate::op::{Operation, ScatterElements, ScatterFn, ScatterNd};

impl Operation for ScatterElements {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("scatter_elements", inputs, 3..=3)?;
        let (x, indices, updates) = (inputs[0], inputs[1], inputs[2]);
        check_element_indices("scatter_elements", self.axis, x, indices)?;
        check_updates("scatter_elements", self.func, x, updates, &indices.dims)?;
        Ok(vec![x.clone()])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        infer_shape("scatter_elements", self, inputs)?;
        let places = element_places("scatter_elements", self.axis, inputs[0].shape(), &inputs[1])?;
        Ok(vec![scatter("scatter_elements", self.func, &inputs[0], &inputs[2], &places, 1)?])
    }
}

impl Operation for ScatterNd {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("scatter_nd", inputs, 3..=3)?;
        let (x, indices, updates) = (inputs[0], inputs[1], inputs[2]);
        let tuple = check_index_tuples("scatter_nd", 0, x, indices)?;
        let expected = [&indices.dims[..indices.dims.len() - 1], &x.dims[tuple..]].concat();
        check_updates("scatter_nd", self.func, x, updates, &expected)?;
        Ok(vec![x.clone()])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        infer_shape("scatter_nd", self, inputs)?;
        let places = slice_places("scatter_nd", 0, inputs[0].shape(), &inputs[1])?;
        Ok(vec![scatter("scatter_nd", self.func, &inputs[0], &inputs[2], &places.starts, places.run)?])
    }
}

fn check_updates(
    op: &'static str,
    func: ScatterFn,
    x: &Type,
    updates: &Type,
    expected: &[Dim],
) -> Result<(), InferError> {
    check_same_dtype(op, x, updates)?;
    let has_meaning = match func {
        ScatterFn::Replace | ScatterFn::Min | ScatterFn::Max => true,
        ScatterFn::Add | ScatterFn::Mul => !x.dtype.is_bool(),
    };
    if !has_meaning {
        return Err(InferError::new(op, format!("'{}' has no meaning for {}", func.name(), x.dtype.name())));
    }
    let fits = updates.dims.len() == expected.len()
        && updates.dims.iter().zip(expected).all(|(found, wanted)| same_dim(found, wanted).is_some());
    if !fits {
        let (found, wanted) = (print_dims(&updates.dims), print_dims(expected));
        return Err(InferError::new(op, format!("updates have shape {found} where {wanted} is expected")));
    }
    Ok(())
}

/// `x` with run i of `updates`, `run` elements long, written or combined at element `starts[i]`.
fn scatter(
    op: &'static str,
    func: ScatterFn,
    x: &Tensor,
    updates: &Tensor,
    starts: &[usize],
    run: usize,
) -> Result<Tensor, EvalError> {
    if func == ScatterFn::Replace {
        let run_bytes = run.saturating_mul(x.dtype().size_bytes());
        let mut bytes = x.as_bytes().to_vec();
        for (at, &start) in starts.iter().enumerate() {
            let to = start * x.dtype().size_bytes();
            bytes[to..to + run_bytes].copy_from_slice(&updates.as_bytes()[at * run_bytes..(at + 1) * run_bytes]);
        }
        return from_bytes(op, x.dtype(), x.shape(), bytes);
    }
    let elements = match (Elements::read(op, x)?, Elements::read(op, updates)?) {
        (Elements::Float(mut values), Elements::Float(updates)) => {
            combine(&mut values, &updates, starts, run, |old, new| combine_float(func, old, new));
            Elements::Float(values)
        }
        (Elements::Int(mut values), Elements::Int(updates)) => {
            combine(&mut values, &updates, starts, run, |old, new| combine_int(func, old, new));
            Elements::Int(values)
        }
        (Elements::Float(_), Elements::Int(_)) | (Elements::Int(_), Elements::Float(_)) => {
            return Err(EvalError::DType { op, dtype: updates.dtype().name() });
        }
    };
    elements.write(op, x.dtype(), x.shape())
}

fn combine<T: Copy>(values: &mut [T], updates: &[T], starts: &[usize], run: usize, join: impl Fn(T, T) -> T) {
    for (at, &start) in starts.iter().enumerate() {
        for along in 0..run {
            let value = &mut values[start + along];
            *value = join(*value, updates[at * run + along]);
        }
    }
}

fn combine_float(func: ScatterFn, old: f64, new: f64) -> f64 {
    match func {
        ScatterFn::Replace => new,
        ScatterFn::Add => old + new,
        ScatterFn::Mul => old * new,
        ScatterFn::Min => min_float(old, new),
        ScatterFn::Max => max_float(old, new),
    }
}

fn combine_int(func: ScatterFn, old: i128, new: i128) -> i128 {
    match func {
        ScatterFn::Replace => new,
        ScatterFn::Add => old.wrapping_add(new),
        ScatterFn::Mul => old.wrapping_mul(new),
        ScatterFn::Min => old.min(new),
        ScatterFn::Max => old.max(new),
    }
}
