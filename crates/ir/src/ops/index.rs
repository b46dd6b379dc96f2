//! Ops that read elements at computed places: gather, gather_elements, gather_nd, topk and nonzero. The ones that write
//! there are in `scatter.rs`, box suppression is in `nms.rs`. Negative indices count from the end.

use precast_tensor::{DType, Dim, Tensor, Type};

use super::raw::from_bytes;
use super::reduce::float_order;
use super::shape::{
    Elements, axis_index, check_arity, check_axis, count, dtype_error, for_each_index, infer_shape, infer_shapes,
    offset, print_dims, read_ints, same_dim, split_at_axis, strides, try_for_each_index, write_ints,
};
use crate::error::{EvalError, InferError};
use crate::op::{Gather, GatherElements, GatherNd, NonZero, Operation, Topk};

impl Operation for Gather {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("gather", inputs, 2..=2)?;
        let (x, indices) = (inputs[0], inputs[1]);
        check_axis("gather", self.axis, x.dims.len())?;
        check_indices("gather", indices)?;
        let dims = [&x.dims[..self.axis], &indices.dims, &x.dims[self.axis + 1..]].concat();
        Ok(vec![Type { dtype: x.dtype, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape("gather", self, inputs)?;
        let split = split_at_axis(inputs[0].shape(), self.axis);
        let places: Vec<usize> = read_ints("gather", &inputs[1])?
            .into_iter()
            .map(|index| axis_index("gather", index, split.extent))
            .collect::<Result<_, _>>()?;
        let mut bytes = Vec::with_capacity(count(&shape) * dtype.size_bytes());
        for outer in 0..split.outer {
            for place in &places {
                let run = split.inner * dtype.size_bytes();
                let from = (outer * split.extent + place) * run;
                bytes.extend_from_slice(&inputs[0].as_bytes()[from..from + run]);
            }
        }
        Ok(vec![from_bytes("gather", dtype, &shape, bytes)?])
    }
}

/// Checks that a tensor can hold indices.
pub fn check_indices(op: &'static str, indices: &Type) -> Result<(), InferError> {
    if indices.dtype.is_int() {
        return Ok(());
    }
    Err(InferError::new(op, format!("indices have element type {}, not an integer one", indices.dtype.name())))
}

impl Operation for GatherElements {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("gather_elements", inputs, 2..=2)?;
        let (x, indices) = (inputs[0], inputs[1]);
        check_element_indices("gather_elements", self.axis, x, indices)?;
        Ok(vec![Type { dtype: x.dtype, dims: indices.dims.clone() }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape("gather_elements", self, inputs)?;
        let size = dtype.size_bytes();
        let places = element_places("gather_elements", self.axis, inputs[0].shape(), &inputs[1])?;
        let mut bytes = Vec::with_capacity(places.len() * size);
        for place in places {
            bytes.extend_from_slice(&inputs[0].as_bytes()[place * size..(place + 1) * size]);
        }
        Ok(vec![from_bytes("gather_elements", dtype, &shape, bytes)?])
    }
}

/// Checks indices that stand for one element each: off the axis they may not reach beyond x.
pub fn check_element_indices(op: &'static str, axis: usize, x: &Type, indices: &Type) -> Result<(), InferError> {
    check_axis(op, axis, x.dims.len())?;
    check_indices(op, indices)?;
    let reaches_beyond = |at: usize| match (indices.dims[at].as_const(), x.dims[at].as_const()) {
        (Some(index_extent), Some(extent)) => at != axis && index_extent > extent,
        _ => false,
    };
    if indices.dims.len() != x.dims.len() || (0..x.dims.len()).any(reaches_beyond) {
        let (found, within) = (print_dims(&indices.dims), print_dims(&x.dims));
        return Err(InferError::new(op, format!("indices of shape {found} do not fit within {within}")));
    }
    Ok(())
}

/// For each element of `indices` the offset in a tensor of `shape` of the element it stands for.
pub fn element_places(
    op: &'static str,
    axis: usize,
    shape: &[usize],
    indices: &Tensor,
) -> Result<Vec<usize>, EvalError> {
    let own = strides(shape);
    let values = read_ints(op, indices)?;
    let mut places = Vec::with_capacity(values.len());
    try_for_each_index(indices.shape(), |index| {
        let along = axis_index(op, values[places.len()], shape[axis])?;
        places.push(offset(index, &own) - index[axis] * own[axis] + along * own[axis]);
        Ok::<(), EvalError>(())
    })?;
    Ok(places)
}

impl Operation for GatherNd {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("gather_nd", inputs, 2..=2)?;
        let (x, indices) = (inputs[0], inputs[1]);
        let tuple = check_index_tuples("gather_nd", self.batch_axes, x, indices)?;
        let index_axes = indices.dims.len() - 1;
        let mut dims = Vec::new();
        for (axis, (a, b)) in indices.dims.iter().zip(&x.dims).take(self.batch_axes).enumerate() {
            dims.push(same_dim(a, b).ok_or_else(|| {
                InferError::new("gather_nd", format!("batch axis {axis} has extent {b}, in the indices {a}"))
            })?);
        }
        dims.extend_from_slice(&indices.dims[self.batch_axes..index_axes]);
        dims.extend_from_slice(&x.dims[self.batch_axes + tuple..]);
        Ok(vec![Type { dtype: x.dtype, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape("gather_nd", self, inputs)?;
        let places = slice_places("gather_nd", self.batch_axes, inputs[0].shape(), &inputs[1])?;
        let (size, run) = (dtype.size_bytes(), places.run);
        let mut bytes = Vec::with_capacity(count(&shape) * size);
        for first in places.starts {
            bytes.extend_from_slice(&inputs[0].as_bytes()[first * size..(first + run) * size]);
        }
        Ok(vec![from_bytes("gather_nd", dtype, &shape, bytes)?])
    }
}

/// Checks index tuples in the last axis of `indices` and gives their length, which has to be a number.
pub fn check_index_tuples(op: &'static str, batch_axes: usize, x: &Type, indices: &Type) -> Result<usize, InferError> {
    check_indices(op, indices)?;
    let Some(last) = indices.dims.last() else {
        return Err(InferError::new(op, "indices have rank 0 where index tuples are expected"));
    };
    let tuple = last.as_usize().ok_or_else(|| InferError::new(op, format!("tuple length {last} is not a number")))?;
    let fits =
        batch_axes < indices.dims.len() && batch_axes.checked_add(tuple).is_some_and(|used| used <= x.dims.len());
    if !fits {
        let reason = format!("{batch_axes} batch axes and tuples of {tuple} do not fit shape {}", print_dims(&x.dims));
        return Err(InferError::new(op, reason));
    }
    Ok(tuple)
}

/// Slices that index tuples stand for: where each starts, and how many elements all of them have.
pub struct SlicePlaces {
    /// Offset of the first element of each slice.
    pub starts: Vec<usize>,
    /// Elements of a slice.
    pub run: usize,
}

/// The slices of a tensor of `shape` that the tuples of `indices` stand for.
pub fn slice_places(
    op: &'static str,
    batch_axes: usize,
    shape: &[usize],
    indices: &Tensor,
) -> Result<SlicePlaces, EvalError> {
    let own = strides(shape);
    let values = read_ints(op, indices)?;
    let (tuples, tuple) = match indices.shape() {
        [tuples @ .., tuple] => (tuples, *tuple),
        [] => {
            return Err(EvalError::value(op, "indices have rank 0 where index tuples are expected"));
        }
    };
    let mut starts = Vec::with_capacity(count(tuples));
    try_for_each_index(tuples, |index| {
        let mut start = offset(&index[..batch_axes], &own);
        for at in 0..tuple {
            let axis = batch_axes + at;
            start += axis_index(op, values[starts.len() * tuple + at], shape[axis])? * own[axis];
        }
        starts.push(start);
        Ok::<(), EvalError>(())
    })?;
    Ok(SlicePlaces { starts, run: count(&shape[batch_axes + tuple..]) })
}

impl Operation for Topk {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("topk", inputs, 1..=1)?;
        let Type { dtype, dims } = inputs[0];
        check_axis("topk", self.axis, dims.len())?;
        if dtype.is_bool() {
            return Err(dtype_error("topk", *dtype));
        }
        let extent = &dims[self.axis];
        let is_negative = self.k.as_const().is_some_and(|k| k < 0);
        let is_beyond = (&self.k - extent).as_const().is_some_and(|excess| excess > 0);
        if is_negative || is_beyond {
            return Err(InferError::new("topk", format!("k = {} is not within extent {extent}", self.k)));
        }
        let mut dims = dims.clone();
        dims[self.axis] = self.k.clone();
        Ok(vec![Type { dtype: *dtype, dims: dims.clone() }, Type { dtype: DType::I64, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let outputs = infer_shapes("topk", self, inputs)?;
        let (dtype, shape) = &outputs[0];
        let size = dtype.size_bytes();
        let split = split_at_axis(inputs[0].shape(), self.axis);
        let elements = Elements::read("topk", &inputs[0])?;
        let (k, own) = (shape[self.axis], strides(shape));
        let mut bytes = vec![0; count(shape) * size];
        let mut indices = vec![0; count(shape)];
        let lines = count(shape).checked_div(k).unwrap_or(0);
        for line in 0..lines {
            let (outer, inner) = (line / split.inner, line % split.inner);
            let place = |along: usize| (outer * split.extent + along) * split.inner + inner;
            let mut order: Vec<usize> = (0..split.extent).collect();
            // The sort is stable: equal elements stay in order of index.
            order.sort_by(|&a, &b| {
                let ascending = match &elements {
                    Elements::Float(values) => float_order(&values[place(a)], &values[place(b)]),
                    Elements::Int(values) => values[place(a)].cmp(&values[place(b)]),
                };
                if self.largest { ascending.reverse() } else { ascending }
            });
            for (rank, &along) in order.iter().take(k).enumerate() {
                let (from, to) = (place(along), outer * k * split.inner + rank * own[self.axis] + inner);
                indices[to] = along as i128;
                bytes[to * size..(to + 1) * size]
                    .copy_from_slice(&inputs[0].as_bytes()[from * size..(from + 1) * size]);
            }
        }
        Ok(vec![from_bytes("topk", *dtype, shape, bytes)?, write_ints("topk", DType::I64, shape, &indices)?])
    }
}

impl Operation for NonZero {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("nonzero", inputs, 1..=1)?;
        Ok(vec![Type { dtype: DType::I64, dims: vec![Dim::from(inputs[0].dims.len()), self.count.clone()] }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        check_arity("nonzero", inputs, 1..=1)?;
        let (shape, rank) = (inputs[0].shape(), inputs[0].shape().len());
        let is_nonzero: Vec<bool> = match Elements::read("nonzero", &inputs[0])? {
            Elements::Float(values) => values.iter().map(|&x| x != 0.0).collect(),
            Elements::Int(values) => values.iter().map(|&x| x != 0).collect(),
        };
        let own = strides(shape);
        let mut tuples: Vec<Vec<usize>> = Vec::new();
        for_each_index(shape, |index| {
            if is_nonzero[offset(index, &own)] {
                tuples.push(index.to_vec());
            }
        });
        check_found("nonzero", &self.count, tuples.len())?;
        let values: Vec<i128> =
            (0..rank).flat_map(|axis| tuples.iter().map(move |tuple| tuple[axis] as i128)).collect();
        Ok(vec![write_ints("nonzero", DType::I64, &[rank, tuples.len()], &values)?])
    }
}

/// Checks a count that was declared as a number; a symbol takes whatever is found.
pub fn check_found(op: &'static str, declared: &Dim, found: usize) -> Result<(), EvalError> {
    match declared.as_const() {
        Some(number) if number != found as i64 => {
            Err(EvalError::value(op, format!("{found} found where {number} were declared")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
