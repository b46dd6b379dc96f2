//! Ops that treat each element by itself: unary, binary, compare, select, clamp, cast and bitcast. The functions they
//! apply are in `function.rs`.

use precast_tensor::{DType, Tensor, Type};

use super::function::{binary_bool, binary_float, binary_int, clamp_float, compare, pow_int_by_float};
use super::function::{unary_float, unary_int};
use super::raw::{from_bytes, from_shared_bytes};
use super::shape::{
    Elements, broadcast_dims, broadcast_strides, check_arity, check_same_dtype, count, dtype_error, for_each_index,
    infer_shape, offset, try_for_each_index, write_floats_by, write_ints,
};
use crate::error::{EvalError, InferError};
use crate::op::{Binary, BinaryFn, Bitcast, Cast, Clamp, Compare, Operation, Select, Unary, UnaryFn};

impl Operation for Unary {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("unary", inputs, 1..=1)?;
        let dtype = unary_dtype(self.func, inputs[0].dtype).ok_or_else(|| {
            InferError::new("unary", format!("'{}' has no meaning for {}", self.func.name(), inputs[0].dtype.name()))
        })?;
        Ok(vec![Type { dtype, dims: inputs[0].dims.clone() }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape("unary", self, inputs)?;
        let Unary { func, alpha, beta } = *self;
        let has_no_meaning = || EvalError::DType { op: "unary", dtype: inputs[0].dtype().name() };
        let elements = match Elements::read("unary", &inputs[0])? {
            Elements::Int(values) if func == UnaryFn::Not => {
                Elements::Int(values.iter().map(|&x| i128::from(x == 0)).collect())
            }
            Elements::Int(values) => {
                let results: Option<Vec<i128>> = values.iter().map(|&x| unary_int(func, x, alpha, beta)).collect();
                Elements::Int(results.ok_or_else(has_no_meaning)?)
            }
            Elements::Float(values) => {
                let results: Option<Vec<f64>> = values.iter().map(|&x| unary_float(func, x, alpha, beta)).collect();
                let results = results.ok_or_else(has_no_meaning)?;
                if dtype.is_bool() {
                    Elements::Int(results.iter().map(|&x| i128::from(x != 0.0)).collect())
                } else {
                    Elements::Float(results)
                }
            }
        };
        Ok(vec![elements.write("unary", dtype, &shape)?])
    }
}

/// The result's element type; `None` where the function has no meaning.
fn unary_dtype(func: UnaryFn, dtype: DType) -> Option<DType> {
    match func {
        UnaryFn::Not => dtype.is_bool().then_some(DType::Bool),
        UnaryFn::IsNan | UnaryFn::IsInf => dtype.is_float().then_some(DType::Bool),
        _ if dtype.is_bool() => None,
        _ if dtype.is_float() => unary_float(func, 0.0, 1.0, 1.0).map(|_| dtype),
        _ => unary_int(func, 0, 1.0, 1.0).map(|_| dtype),
    }
}

impl Operation for Binary {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("binary", inputs, 2..=2)?;
        let (a, b) = (inputs[0], inputs[1]);
        let is_mixed_pow = self.func == BinaryFn::Pow && !b.dtype.is_bool();
        if !is_mixed_pow {
            check_same_dtype("binary", a, b)?;
        }
        let has_meaning = if a.dtype.is_bool() {
            binary_bool(self.func, false, false).is_some()
        } else if a.dtype.is_float() {
            binary_float(self.func, 1.0, 1.0).is_some()
        } else {
            binary_int(self.func, 1, 1, a.dtype.bits()).is_some()
        };
        if !has_meaning {
            let reason = format!("'{}' has no meaning for {}", self.func.name(), a.dtype.name());
            return Err(InferError::new("binary", reason));
        }
        Ok(vec![Type { dtype: a.dtype, dims: broadcast_dims("binary", &[&a.dims, &b.dims])? }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape("binary", self, inputs)?;
        let func = self.func;
        let pairs = BroadcastPairs::new(&inputs[0], &inputs[1], &shape);
        let elements = match (Elements::read("binary", &inputs[0])?, Elements::read("binary", &inputs[1])?) {
            (Elements::Float(a), Elements::Float(b)) => {
                pairs.map(&a, &b, |a, b| binary_float(func, a, b)).map(Elements::Float)
            }
            (Elements::Int(a), Elements::Int(b)) if dtype.is_bool() => {
                let as_int = |a, b| binary_bool(func, a != 0, b != 0).map(i128::from);
                pairs.map(&a, &b, as_int).map(Elements::Int)
            }
            (Elements::Int(a), Elements::Int(b)) => {
                pairs.map(&a, &b, |a, b| binary_int(func, a, b, dtype.bits())).map(Elements::Int)
            }
            // Only `pow` has operands of two kinds.
            (Elements::Float(a), Elements::Int(b)) => {
                pairs.map(&a, &b, |a, b| Some(libm::pow(a, b as f64))).map(Elements::Float)
            }
            (Elements::Int(a), Elements::Float(b)) => {
                pairs.map(&a, &b, |a, b| Some(pow_int_by_float(a, b))).map(Elements::Int)
            }
        };
        let elements = elements.ok_or(EvalError::DType { op: "binary", dtype: dtype.name() })?;
        Ok(vec![elements.write("binary", dtype, &shape)?])
    }
}

/// Pairs of elements of two tensors broadcast to one shape.
struct BroadcastPairs<'a> {
    shape: &'a [usize],
    a_strides: Vec<usize>,
    b_strides: Vec<usize>,
}

impl<'a> BroadcastPairs<'a> {
    fn new(a: &Tensor, b: &Tensor, shape: &'a [usize]) -> BroadcastPairs<'a> {
        BroadcastPairs {
            shape,
            a_strides: broadcast_strides(a.shape(), shape),
            b_strides: broadcast_strides(b.shape(), shape),
        }
    }

    /// What `apply` makes of each pair; `None` if it makes nothing of one.
    fn map<A: Copy, B: Copy, R>(&self, a: &[A], b: &[B], apply: impl Fn(A, B) -> Option<R>) -> Option<Vec<R>> {
        let mut results = Vec::with_capacity(count(self.shape));
        let (rows, row) = match self.shape {
            [rows @ .., row] => (rows, *row),
            [] => (&[][..], 1),
        };
        let step = |strides: &[usize]| strides.last().copied().unwrap_or(0);
        let (a_step, b_step) = (step(&self.a_strides), step(&self.b_strides));
        let outcome = try_for_each_index(rows, |index| {
            let (a_start, b_start) = (offset(index, &self.a_strides), offset(index, &self.b_strides));
            for at in 0..row {
                let result = apply(a[a_start + at * a_step], b[b_start + at * b_step]);
                results.push(result.ok_or(())?);
            }
            Ok::<(), ()>(())
        });
        outcome.ok().map(|()| results)
    }
}

impl Operation for Compare {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("compare", inputs, 2..=2)?;
        check_same_dtype("compare", inputs[0], inputs[1])?;
        let dims = broadcast_dims("compare", &[&inputs[0].dims, &inputs[1].dims])?;
        Ok(vec![Type { dtype: DType::Bool, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape("compare", self, inputs)?;
        let func = self.func;
        let pairs = BroadcastPairs::new(&inputs[0], &inputs[1], &shape);
        let results = match (Elements::read("compare", &inputs[0])?, Elements::read("compare", &inputs[1])?) {
            (Elements::Float(a), Elements::Float(b)) => pairs.map(&a, &b, |a, b| Some(compare(func, a, b))),
            (Elements::Int(a), Elements::Int(b)) => pairs.map(&a, &b, |a, b| Some(compare(func, a, b))),
            (Elements::Float(_), Elements::Int(_)) | (Elements::Int(_), Elements::Float(_)) => None,
        };
        let results = results.ok_or(EvalError::DType { op: "compare", dtype: inputs[1].dtype().name() })?;
        let results: Vec<i128> = results.into_iter().map(i128::from).collect();
        Ok(vec![write_ints("compare", dtype, &shape, &results)?])
    }
}

impl Operation for Select {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("select", inputs, 3..=3)?;
        let (condition, x, y) = (inputs[0], inputs[1], inputs[2]);
        if !condition.dtype.is_bool() {
            let reason = format!("the condition has element type {}, not bool", condition.dtype.name());
            return Err(InferError::new("select", reason));
        }
        check_same_dtype("select", x, y)?;
        let dims = broadcast_dims("select", &[&condition.dims, &x.dims, &y.dims])?;
        Ok(vec![Type { dtype: x.dtype, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape("select", self, inputs)?;
        let size = dtype.size_bytes();
        let strides: Vec<Vec<usize>> = inputs.iter().map(|input| broadcast_strides(input.shape(), &shape)).collect();
        let (condition, x, y) = (inputs[0].as_bytes(), inputs[1].as_bytes(), inputs[2].as_bytes());
        let mut bytes = Vec::with_capacity(count(&shape) * size);
        for_each_index(&shape, |index| {
            let is_true = condition[offset(index, &strides[0])] != 0;
            let (source, strides) = if is_true { (x, &strides[1]) } else { (y, &strides[2]) };
            let from = offset(index, strides) * size;
            bytes.extend_from_slice(&source[from..from + size]);
        });
        Ok(vec![from_bytes("select", dtype, &shape, bytes)?])
    }
}

impl Operation for Clamp {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("clamp", inputs, 1..=1)?;
        if inputs[0].dtype.is_bool() {
            return Err(dtype_error("clamp", inputs[0].dtype));
        }
        Ok(vec![inputs[0].clone()])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape("clamp", self, inputs)?;
        let elements = match Elements::read("clamp", &inputs[0])? {
            Elements::Float(values) => {
                Elements::Float(values.iter().map(|&x| clamp_float(x, self.lo, self.hi)).collect())
            }
            Elements::Int(values) => {
                // Integers between the limits; what lies beyond the type is its end.
                let (least, most) = dtype.int_range().unwrap_or((0, 1));
                let within = |limit: f64| (limit as i128).clamp(least, most);
                let (lo, hi) = (within(self.lo.ceil()), within(self.hi.floor()));
                Elements::Int(values.iter().map(|&x| x.max(lo).min(hi)).collect())
            }
        };
        Ok(vec![elements.write("clamp", dtype, &shape)?])
    }
}

impl Operation for Cast {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("cast", inputs, 1..=1)?;
        Ok(vec![Type { dtype: self.to, dims: inputs[0].dims.clone() }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (_, shape) = infer_shape("cast", self, inputs)?;
        let to = self.to;
        if inputs[0].dtype() == to {
            return Ok(vec![inputs[0].clone()]);
        }
        let tensor = match Elements::read("cast", &inputs[0])? {
            Elements::Float(values) if to.is_float() => write_floats_by("cast", to, &shape, &values, self.saturate)?,
            Elements::Float(values) => {
                let values: Vec<i128> = values.iter().map(|&x| float_to_int(x, to)).collect();
                write_ints("cast", to, &shape, &values)?
            }
            Elements::Int(values) if to.is_float() => {
                let values: Vec<f64> = values.iter().map(|&x| int_to_float(x, to)).collect();
                write_floats_by("cast", to, &shape, &values, self.saturate)?
            }
            Elements::Int(values) if to.is_bool() => {
                let values: Vec<i128> = values.iter().map(|&x| i128::from(x != 0)).collect();
                write_ints("cast", to, &shape, &values)?
            }
            Elements::Int(values) => write_ints("cast", to, &shape, &values)?,
        };
        Ok(vec![tensor])
    }
}

/// Truncates toward zero. Beyond the integer's range the nearest end, but types of less than a byte wrap, as the cases
/// of ONNX have it; NaN gives 0. Bool is `x != 0`.
fn float_to_int(x: f64, to: DType) -> i128 {
    match to.int_range() {
        // The bits that there is room for are kept when the integer is written.
        Some(_) if to.bits() < u8::BITS => x as i128,
        Some((least, most)) => (x as i128).clamp(least, most),
        None => i128::from(x != 0.0),
    }
}

/// Significant bits of an f64.
const F64_BITS: u32 = f64::MANTISSA_DIGITS;

/// The integer as f64, such that rounding it again to `to` rounds the integer itself: bits that f64 has no room for are
/// kept as an odd last bit instead of being rounded away.
pub fn int_to_float(x: i128, to: DType) -> f64 {
    let magnitude = x.unsigned_abs();
    let width = u128::BITS - magnitude.leading_zeros();
    if width <= F64_BITS || to == DType::F64 {
        return x as f64;
    }
    let dropped = width - F64_BITS;
    let is_inexact = magnitude & ((1 << dropped) - 1) != 0;
    let odd = ((magnitude >> dropped) | u128::from(is_inexact)) << dropped;
    (odd as f64).copysign(x as f64)
}

impl Operation for Bitcast {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("bitcast", inputs, 1..=1)?;
        let from = inputs[0].dtype;
        // Not every byte is a bool.
        let becomes_bool = self.to.is_bool() && !from.is_bool();
        if from.bits() != self.to.bits() || becomes_bool {
            let reason = format!("the bytes of {} are not {}", from.name(), self.to.name());
            return Err(InferError::new("bitcast", reason));
        }
        Ok(vec![Type { dtype: self.to, dims: inputs[0].dims.clone() }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape("bitcast", self, inputs)?;
        Ok(vec![from_shared_bytes("bitcast", dtype, &shape, &inputs[0])?])
    }
}

#[cfg(test)]
#[path = "elementwise_tests.rs"]
mod tests;
