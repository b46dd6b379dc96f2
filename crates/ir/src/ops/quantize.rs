//! Conversion between reals and small integers by scale and zero point, a tensor, an axis or a block at a time.

use precast_tensor::{DType, Dim, Tensor, Type};

use super::elementwise::int_to_float;
use super::raw::from_bytes;
use super::shape::{
    Elements, check_arity, check_axis, count, dtype_error, for_each_index, infer_shape, offset, print_dims,
    read_floats, read_ints, same_dim, strides, write_floats, write_floats_by, write_ints,
};
use crate::error::{EvalError, InferError};
use crate::op::{Dequantize, Operation, Quantize, Unpack};

impl Operation for Quantize {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("quantize", inputs, 2..=3)?;
        let x = inputs[0];
        if self.to.is_bool() || x.dtype.is_bool() {
            return Err(dtype_error("quantize", DType::Bool));
        }
        if !self.precision.is_float() {
            return Err(dtype_error("quantize", self.precision));
        }
        check_granularity("quantize", inputs, self.axis, self.block, self.to)?;
        Ok(vec![Type { dtype: self.to, dims: x.dims.clone() }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (to, shape) = infer_shape("quantize", self, inputs)?;
        let places = scale_places(&shape, inputs[1].shape(), self.axis, self.block);
        let x = self.in_precision(&inputs[0])?;
        let scales = self.in_precision(&inputs[1])?;
        let quotients: Vec<f64> = x.iter().zip(&places).map(|(x, &place)| x / scales[place]).collect();
        let quotients = read_floats(&write_floats("quantize", self.precision, &shape, &quotients)?);
        match (to.int_range(), inputs.get(2)) {
            (Some((least, most)), zero_points) => {
                let zero_points = zero_points.map(|tensor| read_ints("quantize", tensor)).transpose()?;
                let quantized = quotients.iter().zip(&places).map(|(quotient, &place)| {
                    let zero_point = zero_points.as_ref().map_or(0, |all| all[place]);
                    (quotient.round_ties_even() as i128).saturating_add(zero_point).clamp(least, most)
                });
                Ok(vec![write_ints("quantize", to, &shape, &quantized.collect::<Vec<_>>())?])
            }
            // Small floats round by themselves: there is no integer in between.
            (None, zero_points) => {
                let zero_points = zero_points.map(read_floats);
                let zero_point = |place: usize| zero_points.as_ref().map_or(0.0, |all| all[place]);
                let shifted: Vec<f64> =
                    quotients.iter().zip(&places).map(|(quotient, &place)| quotient + zero_point(place)).collect();
                Ok(vec![write_floats_by("quantize", to, &shape, &shifted, self.saturate)?])
            }
        }
    }
}

impl Quantize {
    /// Elements rounded to `precision`.
    fn in_precision(&self, tensor: &Tensor) -> Result<Vec<f64>, EvalError> {
        let values = match Elements::read("quantize", tensor)? {
            Elements::Float(values) => values,
            Elements::Int(values) => values.into_iter().map(|x| int_to_float(x, self.precision)).collect(),
        };
        Ok(read_floats(&write_floats("quantize", self.precision, tensor.shape(), &values)?))
    }
}

impl Operation for Dequantize {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("dequantize", inputs, 2..=3)?;
        let x = inputs[0];
        if x.dtype.is_bool() || !self.to.is_float() {
            return Err(dtype_error("dequantize", if x.dtype.is_bool() { x.dtype } else { self.to }));
        }
        check_granularity("dequantize", inputs, self.axis, self.block, x.dtype)?;
        Ok(vec![Type { dtype: self.to, dims: x.dims.clone() }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (to, shape) = infer_shape("dequantize", self, inputs)?;
        let places = scale_places(&shape, inputs[1].shape(), self.axis, self.block);
        let scales = read_floats(&inputs[1]);
        let zero_points = inputs.get(2).map(|tensor| Elements::read("dequantize", tensor)).transpose()?;
        let shifted: Vec<f64> = match (Elements::read("dequantize", &inputs[0])?, &zero_points) {
            (Elements::Int(x), Some(Elements::Int(zero_points))) => {
                x.iter().zip(&places).map(|(x, &place)| (x - zero_points[place]) as f64).collect()
            }
            (Elements::Float(x), Some(Elements::Float(zero_points))) => {
                x.iter().zip(&places).map(|(x, &place)| x - zero_points[place]).collect()
            }
            (Elements::Int(x), _) => x.iter().map(|&x| x as f64).collect(),
            (Elements::Float(x), _) => x,
        };
        let values: Vec<f64> = shifted.iter().zip(&places).map(|(x, &place)| x * scales[place]).collect();
        Ok(vec![write_floats("dequantize", to, &shape, &values)?])
    }
}

impl Unpack {
    /// Elements in a byte; none for types that do not lie in bytes.
    pub fn per_byte(&self) -> Option<usize> {
        let bits = self.to.bits() as usize;
        let is_small = self.to.int_range().is_some() && matches!(bits, 2 | 4 | 8);
        is_small.then(|| 8 / bits)
    }

    /// The element at a position of a byte, as the type stores it.
    pub fn element(&self, byte: u8, position: usize) -> u8 {
        let bits = self.to.bits() as usize;
        let level = (byte >> (bits * position)) & (u8::MAX >> (8 - bits));
        let is_signed = self.to.int_range().is_some_and(|(least, _)| least < 0);
        if is_signed { level.wrapping_sub(1 << (bits - 1)) } else { level }
    }
}

impl Operation for Unpack {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("unpack", inputs, 1..=1)?;
        let x = inputs[0];
        if x.dtype != DType::U8 {
            return Err(dtype_error("unpack", x.dtype));
        }
        let per_byte = self.per_byte().ok_or_else(|| dtype_error("unpack", self.to))?;
        let mut dims = x.dims.clone();
        let Some(last) = dims.last_mut() else {
            return Err(InferError::new("unpack", "a scalar has no last axis".to_string()));
        };
        *last = &*last * Dim::from(per_byte);
        Ok(vec![Type { dtype: self.to, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (to, shape) = infer_shape("unpack", self, inputs)?;
        let per_byte = self.per_byte().unwrap_or(1);
        let bytes = inputs[0].as_bytes().iter();
        let elements: Vec<u8> =
            bytes.flat_map(|&byte| (0..per_byte).map(move |position| self.element(byte, position))).collect();
        Ok(vec![from_bytes("unpack", to, &shape, elements)?])
    }
}

/// Checks that scale and zero point (inputs 1 and 2) are a scalar, a vector along `axis`, or one for each block.
fn check_granularity(
    op: &'static str,
    inputs: &[&Type],
    axis: usize,
    block: usize,
    zero_point_dtype: DType,
) -> Result<(), InferError> {
    let (x, scale) = (inputs[0], inputs[1]);
    if !scale.dtype.is_float() {
        return Err(dtype_error(op, scale.dtype));
    }
    let is_scalar = scale.dims.iter().all(|dim| dim.as_const() == Some(1)) && scale.dims.len() <= 1;
    if !is_scalar || block > 0 {
        check_axis(op, axis, x.dims.len())?;
        let expected = expected_scale_dims(&x.dims, axis, block);
        let fits = scale.dims.len() == expected.len()
            && scale.dims.iter().zip(&expected).all(|(found, wanted)| same_dim(found, wanted).is_some());
        if !fits {
            let (found, wanted) = (print_dims(&scale.dims), print_dims(&expected));
            return Err(InferError::new(op, format!("the scale has shape {found} where {wanted} is expected")));
        }
    }
    let Some(zero_point) = inputs.get(2) else { return Ok(()) };
    let has_scale_shape = zero_point.dims.len() == scale.dims.len()
        && zero_point.dims.iter().zip(&scale.dims).all(|(a, b)| same_dim(a, b).is_some());
    if zero_point.dtype != zero_point_dtype || !has_scale_shape {
        let wanted = Type { dtype: zero_point_dtype, dims: scale.dims.clone() };
        let reason = format!("the zero point is {zero_point} where {wanted} is expected");
        return Err(InferError::new(op, reason));
    }
    Ok(())
}

fn expected_scale_dims(dims: &[Dim], axis: usize, block: usize) -> Vec<Dim> {
    if block == 0 {
        return vec![dims[axis].clone()];
    }
    let blocks = dims[axis].ceil_div(&Dim::from(block));
    dims.iter().enumerate().map(|(at, dim)| if at == axis { blocks.clone() } else { dim.clone() }).collect()
}

/// For each element of a tensor of `shape` the offset of its scale.
fn scale_places(shape: &[usize], scale_shape: &[usize], axis: usize, block: usize) -> Vec<usize> {
    let own = strides(scale_shape);
    let is_scalar = count(scale_shape) == 1;
    let place = |index: &[usize]| match block {
        0 if is_scalar => 0,
        0 => index[axis],
        _ => offset(index, &own) - index[axis] * own[axis] + index[axis] / block * own[axis],
    };
    let mut places = Vec::with_capacity(count(shape));
    for_each_index(shape, |index| places.push(place(index)));
    places
}

#[cfg(test)]
#[path = "quantize_tests.rs"]
mod tests;
