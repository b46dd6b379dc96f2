//! Index arithmetic that every family uses: extents and strides in row-major order, iteration over indices,
//! broadcasting of Types and of shapes, numbers out of Dims, and reading elements as f64 or i128.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use precast_tensor::{DType, Dim, Tensor, TensorError, Type};

use crate::error::{EvalError, InferError};

/// Number of elements of a shape; of one that no memory could hold, `usize::MAX`.
pub fn count(shape: &[usize]) -> usize {
    if shape.contains(&0) {
        return 0;
    }
    shape.iter().fold(1, |product: usize, &extent| product.saturating_mul(extent))
}

/// Row-major strides, in elements.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides: Vec<usize> = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        // Saturates only in empty shapes, of which no stride is ever used.
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides
}

/// Strides with which a tensor of `shape` is read as `output`, to which it broadcasts: 0 along repeated axes.
pub fn broadcast_strides(shape: &[usize], output: &[usize]) -> Vec<usize> {
    let added = output.len() - shape.len();
    let own = strides(shape);
    (0..output.len()).map(|axis| if axis < added || shape[axis - added] == 1 { 0 } else { own[axis - added] }).collect()
}

/// Offset of an index under strides.
pub fn offset(index: &[usize], strides: &[usize]) -> usize {
    index.iter().zip(strides).map(|(at, stride)| at * stride).sum()
}

/// Calls `visit` with every index of `shape`, in row-major order: once for rank 0, never for an empty shape.
pub fn for_each_index(shape: &[usize], mut visit: impl FnMut(&[usize])) {
    let mut index = vec![0; shape.len()];
    for _ in 0..count(shape) {
        visit(&index);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

/// `for_each_index` for fallible visits: stops at the first error.
pub fn try_for_each_index<E>(shape: &[usize], mut visit: impl FnMut(&[usize]) -> Result<(), E>) -> Result<(), E> {
    let mut result = Ok(());
    for_each_index(shape, |index| {
        if result.is_ok() {
            result = visit(index);
        }
    });
    result
}

/// Offsets under `strides` of every index of `shape`, in row-major order.
pub fn offsets(shape: &[usize], strides: &[usize]) -> Vec<usize> {
    let mut all = Vec::with_capacity(count(shape));
    for_each_index(shape, |index| all.push(offset(index, strides)));
    all
}

/// Element counts before, along and after an axis: a row-major tensor is `outer` blocks of `extent` runs of `inner`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisSplit {
    /// Product of the extents before the axis.
    pub outer: usize,
    /// Extent of the axis.
    pub extent: usize,
    /// Product of the extents after the axis.
    pub inner: usize,
}

/// Splits a shape at an axis.
pub fn split_at_axis(shape: &[usize], axis: usize) -> AxisSplit {
    AxisSplit { outer: count(&shape[..axis]), extent: shape[axis], inner: count(&shape[axis + 1..]) }
}

/// Dims that all of `inputs` broadcast to. Two unequal symbols are taken to be equal and the first is kept: the rule
/// runs again on numbers once the symbols are bound.
pub fn broadcast_dims(op: &'static str, inputs: &[&[Dim]]) -> Result<Vec<Dim>, InferError> {
    let mut joined: Vec<Dim> = Vec::new();
    for dims in inputs {
        joined = join_dims(&joined, dims).ok_or_else(|| {
            InferError::new(op, format!("shapes {} and {} do not broadcast", print_dims(&joined), print_dims(dims)))
        })?;
    }
    Ok(joined)
}

fn join_dims(a: &[Dim], b: &[Dim]) -> Option<Vec<Dim>> {
    let rank = a.len().max(b.len());
    let one = Dim::ONE;
    let at = |dims: &[Dim], axis: usize| match (axis + dims.len()).checked_sub(rank) {
        Some(own) => dims[own].clone(),
        None => one.clone(),
    };
    (0..rank).map(|axis| join_dim(at(a, axis), at(b, axis))).collect()
}

fn join_dim(a: Dim, b: Dim) -> Option<Dim> {
    match (a.as_const(), b.as_const()) {
        _ if a == b => Some(a),
        (Some(1), _) => Some(b),
        (_, Some(1)) => Some(a),
        (Some(_), Some(_)) => None,
        (None, Some(_)) => Some(b),
        (_, None) => Some(a),
    }
}

/// One of two dims that have to be equal, the constant one if there is one; `None` for different constants.
pub fn same_dim(a: &Dim, b: &Dim) -> Option<Dim> {
    match (a.as_const(), b.as_const()) {
        (Some(x), Some(y)) if x != y => None,
        (None, Some(_)) => Some(b.clone()),
        _ => Some(a.clone()),
    }
}

/// Shape that all of `inputs` broadcast to.
pub fn broadcast_shapes(op: &'static str, inputs: &[&[usize]]) -> Result<Vec<usize>, InferError> {
    let rank = inputs.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut joined = vec![1; rank];
    for shape in inputs {
        let added = rank - shape.len();
        for (axis, &extent) in shape.iter().enumerate() {
            match (joined[axis + added], extent) {
                (_, 1) => {}
                (1, _) => joined[axis + added] = extent,
                (a, b) if a == b => {}
                _ => return Err(InferError::new(op, format!("shapes {inputs:?} do not broadcast"))),
            }
        }
    }
    Ok(joined)
}

/// The number that a dim is bound to.
pub fn number(op: &'static str, dim: &Dim) -> Result<i64, EvalError> {
    dim.as_const().ok_or_else(|| EvalError::Unbound { op, dim: dim.to_string() })
}

/// The size that a dim is bound to: a number that is not negative.
pub fn extent(op: &'static str, dim: &Dim) -> Result<usize, EvalError> {
    let value = number(op, dim)?;
    usize::try_from(value).map_err(|_| EvalError::value(op, format!("size {value} is negative")))
}

/// The numbers that dims are bound to.
pub fn numbers(op: &'static str, dims: &[Dim]) -> Result<Vec<i64>, EvalError> {
    dims.iter().map(|dim| number(op, dim)).collect()
}

/// The sizes that dims are bound to.
pub fn extents(op: &'static str, dims: &[Dim]) -> Result<Vec<usize>, EvalError> {
    dims.iter().map(|dim| extent(op, dim)).collect()
}

/// Runs an op's Type rule on the tensors given to its evaluation and gives the outputs' element types and shapes, so
/// that evaluation may index without checks of its own.
pub fn infer_shapes(
    op: &'static str,
    operation: &impl crate::op::Operation,
    inputs: &[Tensor],
) -> Result<Vec<(DType, Vec<usize>)>, EvalError> {
    let types: Vec<Type> = inputs.iter().map(|input| Type::new(input.dtype(), input.shape().iter().copied())).collect();
    let outputs = operation.infer(&types.iter().collect::<Vec<_>>())?;
    outputs
        .iter()
        .map(|ty| {
            let shape = extents(op, &ty.dims)?;
            check_count(op, &shape)?;
            Ok((ty.dtype, shape))
        })
        .collect()
}

/// Refuses shapes beyond what a vector of the widest working type can hold, before anything is allocated for them.
pub fn check_count(op: &'static str, shape: &[usize]) -> Result<usize, EvalError> {
    let elements = count(shape);
    if elements > isize::MAX as usize / size_of::<i128>() {
        return Err(EvalError::value(op, format!("shape {shape:?} has more elements than memory can hold")));
    }
    Ok(elements)
}

/// `infer_shapes` for an op of one output.
pub fn infer_shape(
    op: &'static str,
    operation: &impl crate::op::Operation,
    inputs: &[Tensor],
) -> Result<(DType, Vec<usize>), EvalError> {
    let mut shapes = infer_shapes(op, operation, inputs)?;
    shapes.pop().ok_or_else(|| EvalError::value(op, "the op has no output"))
}

/// Checks the number of inputs.
pub fn check_arity<T>(op: &'static str, inputs: &[T], allowed: RangeInclusive<usize>) -> Result<(), InferError> {
    if allowed.contains(&inputs.len()) {
        return Ok(());
    }
    let (least, most) = (allowed.start(), allowed.end());
    let expected = if least == most { least.to_string() } else { format!("{least} to {most}") };
    Err(InferError::new(op, format!("{} inputs given where {expected} are expected", inputs.len())))
}

/// Checks that an axis lies within a rank.
pub fn check_axis(op: &'static str, axis: usize, rank: usize) -> Result<(), InferError> {
    if axis < rank {
        return Ok(());
    }
    Err(InferError::new(op, format!("axis {axis} is out of range for rank {rank}")))
}

/// Checks that an attribute with one entry an axis has as many entries as the rank.
pub fn check_length(op: &'static str, name: &str, length: usize, rank: usize) -> Result<(), InferError> {
    if length == rank {
        return Ok(());
    }
    Err(InferError::new(op, format!("attribute '{name}' has {length} entries where {rank} are expected")))
}

/// Checks that two inputs have one element type.
pub fn check_same_dtype(op: &'static str, a: &Type, b: &Type) -> Result<(), InferError> {
    if a.dtype == b.dtype {
        return Ok(());
    }
    Err(InferError::new(op, format!("element types {} and {} differ", a.dtype.name(), b.dtype.name())))
}

/// The error for an element type that an op has no meaning for.
pub fn dtype_error(op: &'static str, dtype: DType) -> InferError {
    InferError::new(op, format!("element type {} has no meaning here", dtype.name()))
}

/// An index of an axis, where negative ones count from the end.
pub fn axis_index(op: &'static str, index: i128, extent: usize) -> Result<usize, EvalError> {
    let size = extent as i128;
    let at = if index < 0 { index + size } else { index };
    if (0..size).contains(&at) {
        return Ok(at as usize);
    }
    Err(EvalError::value(op, format!("index {index} is out of range for extent {extent}")))
}

/// Elements as numbers wide enough to compute with: floats as f64, integers and bools (0 or 1) as i128.
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    /// Elements of a float type.
    Float(Vec<f64>),
    /// Elements of an integer type or of bool.
    Int(Vec<i128>),
}

impl Elements {
    /// Reads all elements of a tensor.
    pub fn read(op: &'static str, tensor: &Tensor) -> Result<Elements, EvalError> {
        let dtype = tensor.dtype();
        if dtype.is_float() {
            Ok(Elements::Float(read_floats(tensor)))
        } else {
            Ok(Elements::Int(read_ints(op, tensor)?))
        }
    }

    /// A tensor of these elements: floats are rounded once, integers wrap.
    pub fn write(&self, op: &'static str, dtype: DType, shape: &[usize]) -> Result<Tensor, EvalError> {
        match self {
            Elements::Float(values) => write_floats(op, dtype, shape, values),
            Elements::Int(values) => write_ints(op, dtype, shape, values),
        }
    }
}

/// The tensor's elements as f64, of any element type; integers beyond 53 bits round.
pub fn read_floats(tensor: &Tensor) -> Vec<f64> {
    tensor.to_f64_vec()
}

/// The tensor's elements as i128; of any integer type or bool.
pub fn read_ints(op: &'static str, tensor: &Tensor) -> Result<Vec<i128>, EvalError> {
    tensor.to_i128_vec().map_err(|error| tensor_error(op, &error))
}

/// A tensor of a float type from f64, each element rounded once; beyond the range of an 8-bit float its largest value.
pub fn write_floats(op: &'static str, dtype: DType, shape: &[usize], values: &[f64]) -> Result<Tensor, EvalError> {
    write_floats_by(op, dtype, shape, values, true)
}

/// `write_floats`, where `saturate` says what happens beyond the range of an 8-bit float.
pub fn write_floats_by(
    op: &'static str,
    dtype: DType,
    shape: &[usize],
    values: &[f64],
    saturate: bool,
) -> Result<Tensor, EvalError> {
    if !dtype.is_float() {
        return Err(EvalError::DType { op, dtype: dtype.name() });
    }
    // Sign and payload of a computed NaN depend on the processor and on the order of operands: one NaN stands for all.
    let has_nan = values.iter().any(|value| value.is_nan());
    let canonical = |value: &f64| if value.is_nan() { f64::NAN } else { *value };
    let values: Cow<'_, [f64]> = if has_nan { values.iter().map(canonical).collect() } else { values.into() };
    Tensor::from_f64(dtype, shape, &values, saturate).map_err(|error| tensor_error(op, &error))
}

/// A tensor of an integer type from i128, each element wrapped; of bool, whether it is not 0.
pub fn write_ints(op: &'static str, dtype: DType, shape: &[usize], values: &[i128]) -> Result<Tensor, EvalError> {
    if dtype.is_float() {
        return Err(EvalError::DType { op, dtype: dtype.name() });
    }
    Tensor::from_i128(dtype, shape, values).map_err(|error| tensor_error(op, &error))
}

/// An error of the tensor room, as one of `op`.
pub fn tensor_error(op: &'static str, error: &TensorError) -> EvalError {
    EvalError::value(op, error.to_string())
}

/// A list of dims as the text form prints it.
pub fn print_dims(dims: &[Dim]) -> String {
    let items: Vec<String> = dims.iter().map(Dim::to_string).collect();
    format!("[{}]", items.join(","))
}

/// A sum that keeps the rounding error of each step (Neumaier), for f64 inputs, where f64 is no wider than the input.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompensatedSum {
    sum: f64,
    error: f64,
}

impl CompensatedSum {
    /// Adds one term.
    pub fn add(&mut self, term: f64) {
        let sum = self.sum + term;
        let larger_first = self.sum.abs() >= term.abs();
        self.error += if larger_first { (self.sum - sum) + term } else { (term - sum) + self.sum };
        self.sum = sum;
    }

    /// The sum; an infinite or NaN one is as plain addition gives it.
    pub fn value(self) -> f64 {
        if self.sum.is_finite() { self.sum + self.error } else { self.sum }
    }
}

#[cfg(test)]
#[path = "shape_tests.rs"]
mod tests;
