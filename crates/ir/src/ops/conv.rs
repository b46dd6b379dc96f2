//! Convolutions in any number of spatial axes. All of them pair a large side with a small one: element
//! `i * stride + k * dilation - pad_lo` of the large side meets element `i` of the small side through filter element
//! `k`. A convolution reads the large side, a transposed one writes it.

use std::ops::{AddAssign, Mul};

use precast_tensor::{DType, Dim, Tensor, Type};

use super::geometry::{check_steps, pad_numbers};
use super::shape::{
    check_arity, check_length, check_same_dtype, count, dtype_error, for_each_index, infer_shape, offset, read_floats,
    read_ints, same_dim, strides, write_floats, write_ints,
};
use crate::error::{EvalError, InferError};
use crate::op::{Conv, ConvInt, ConvTranspose, Operation};

const CONV: &str = "conv";
const CONV_INT: &str = "conv_int";
const CONV_TRANSPOSE: &str = "conv_transpose";

impl Operation for Conv {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity(CONV, inputs, 2..=3)?;
        check_float_operands(CONV, inputs)?;
        let geometry = Geometry::of(CONV, &self.stride, &self.pad_lo, &self.pad_hi, &self.dilation, self.groups);
        let dims = geometry.forward_dims(inputs)?;
        check_bias(CONV, inputs.get(2), &dims[1])?;
        Ok(vec![Type { dtype: inputs[0].dtype, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(CONV, self, inputs)?;
        let geometry = Geometry::of(CONV, &self.stride, &self.pad_lo, &self.pad_hi, &self.dilation, self.groups);
        let x = read_floats(&inputs[0]);
        let filter = read_floats(&inputs[1]);
        let mut output = start_from_bias(inputs.get(2), &shape);
        geometry.accumulate(&inputs[0], &x, &inputs[1], &filter, &shape, &mut output)?;
        Ok(vec![write_floats(CONV, dtype, &shape, &output)?])
    }
}

impl Operation for ConvInt {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity(CONV_INT, inputs, 4..=4)?;
        for (operand, zero_point) in [(inputs[0], inputs[2]), (inputs[1], inputs[3])] {
            if !matches!(operand.dtype, DType::I8 | DType::U8) {
                return Err(dtype_error(CONV_INT, operand.dtype));
            }
            check_same_dtype(CONV_INT, operand, zero_point)?;
        }
        let geometry = Geometry::of(CONV_INT, &self.stride, &self.pad_lo, &self.pad_hi, &self.dilation, self.groups);
        let dims = geometry.forward_dims(inputs)?;
        let is_scalar = |ty: &Type| ty.dims.iter().all(|dim| dim.as_const() == Some(1));
        let is_per_channel = |ty: &Type| ty.dims.len() == 1 && same_dim(&ty.dims[0], &dims[1]).is_some();
        if !is_scalar(inputs[2]) || !(is_scalar(inputs[3]) || is_per_channel(inputs[3])) {
            let reason = format!(
                "zero points {} and {} found where a scalar and a scalar or [{}] are expected",
                inputs[2], inputs[3], dims[1]
            );
            return Err(InferError::new(CONV_INT, reason));
        }
        Ok(vec![Type { dtype: DType::I32, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(CONV_INT, self, inputs)?;
        let geometry = Geometry::of(CONV_INT, &self.stride, &self.pad_lo, &self.pad_hi, &self.dilation, self.groups);
        // Padding has the value of the zero point, so after subtracting it padding is 0 and may be left out.
        let x = centre(&inputs[0], &inputs[2])?;
        let filter = centre(&inputs[1], &inputs[3])?;
        let mut output = vec![0i64; count(&shape)];
        geometry.accumulate(&inputs[0], &x, &inputs[1], &filter, &shape, &mut output)?;
        let output: Vec<i128> = output.into_iter().map(i128::from).collect();
        Ok(vec![write_ints(CONV_INT, dtype, &shape, &output)?])
    }
}

impl Operation for ConvTranspose {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity(CONV_TRANSPOSE, inputs, 2..=3)?;
        check_float_operands(CONV_TRANSPOSE, inputs)?;
        let (x, filter) = (inputs[0], inputs[1]);
        let geometry = self.geometry();
        let rank = geometry.check(x, filter)?;
        check_length(CONV_TRANSPOSE, "output_pad", self.output_pad.len(), rank)?;
        if same_dim(&x.dims[1], &filter.dims[0]).is_none() || !is_multiple(&x.dims[1], self.groups) {
            return Err(geometry.channel_error(x, filter));
        }
        let mut dims = vec![x.dims[0].clone(), &filter.dims[1] * self.groups as i64];
        for axis in 0..rank {
            let reach = (&filter.dims[axis + 2] - 1) * self.dilation[axis] as i64 + 1;
            let full = (&x.dims[axis + 2] - 1) * self.stride[axis] as i64 + reach + self.output_pad[axis] as i64;
            dims.push(full - &self.pad_lo[axis] - &self.pad_hi[axis]);
        }
        check_bias(CONV_TRANSPOSE, inputs.get(2), &dims[1])?;
        Ok(vec![Type { dtype: x.dtype, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(CONV_TRANSPOSE, self, inputs)?;
        let x = read_floats(&inputs[0]);
        let filter = read_floats(&inputs[1]);
        let mut output = start_from_bias(inputs.get(2), &shape);
        if output.is_empty() {
            return Ok(vec![write_floats(CONV_TRANSPOSE, dtype, &shape, &output)?]);
        }
        let (x_shape, filter_shape) = (inputs[0].shape(), inputs[1].shape());
        let taps = self.geometry().taps(&x_shape[2..], &shape[2..], &filter_shape[2..])?;
        let (small, large) = (count(&x_shape[2..]), count(&shape[2..]));
        let (channels, out_channels) = (x_shape[1], shape[1]);
        let (group_in, group_out) = (channels / self.groups, out_channels / self.groups);
        for batch in 0..x_shape[0] {
            for channel in 0..channels {
                let plane = &x[(batch * channels + channel) * small..][..small];
                for out in 0..group_out {
                    let out_channel = channel / group_in * group_out + out;
                    let weights = &filter[(channel * group_out + out) * taps.len()..][..taps.len()];
                    let target = &mut output[(batch * out_channels + out_channel) * large..][..large];
                    for (&weight, tap) in weights.iter().zip(&taps) {
                        for run in tap {
                            let large_elements = target[run.large..].iter_mut().step_by(run.stride);
                            for (sum, &element) in large_elements.zip(&plane[run.small..][..run.length]) {
                                *sum += weight * element;
                            }
                        }
                    }
                }
            }
        }
        Ok(vec![write_floats(CONV_TRANSPOSE, dtype, &shape, &output)?])
    }
}

impl ConvTranspose {
    fn geometry(&self) -> Geometry<'_> {
        Geometry::of(CONV_TRANSPOSE, &self.stride, &self.pad_lo, &self.pad_hi, &self.dilation, self.groups)
    }
}

/// What the three ops have in common.
struct Geometry<'a> {
    op: &'static str,
    stride: &'a [usize],
    pad_lo: &'a [Dim],
    pad_hi: &'a [Dim],
    dilation: &'a [usize],
    groups: usize,
}

/// Elements of the small side from `small` on, next to each other, that meet elements of the large side from `large` on,
/// `stride` apart.
struct Run {
    small: usize,
    large: usize,
    length: usize,
    stride: usize,
}

impl<'a> Geometry<'a> {
    fn of(
        op: &'static str,
        stride: &'a [usize],
        pad_lo: &'a [Dim],
        pad_hi: &'a [Dim],
        dilation: &'a [usize],
        groups: usize,
    ) -> Geometry<'a> {
        Geometry { op, stride, pad_lo, pad_hi, dilation, groups }
    }

    /// Checks ranks and attributes; gives the number of spatial axes.
    fn check(&self, x: &Type, filter: &Type) -> Result<usize, InferError> {
        if x.dims.len() < 3 || filter.dims.len() != x.dims.len() {
            let reason = format!("x {x} and filter {filter} found where one rank of 3 or more is expected");
            return Err(InferError::new(self.op, reason));
        }
        let rank = x.dims.len() - 2;
        check_length(self.op, "stride", self.stride.len(), rank)?;
        check_length(self.op, "pad_lo", self.pad_lo.len(), rank)?;
        check_length(self.op, "pad_hi", self.pad_hi.len(), rank)?;
        check_length(self.op, "dilation", self.dilation.len(), rank)?;
        if self.groups == 0 {
            return Err(InferError::new(self.op, "groups are at least 1"));
        }
        check_steps(self.op, self.stride)?;
        check_steps(self.op, self.dilation)?;
        Ok(rank)
    }

    /// Output dims of a convolution that reads the large side.
    fn forward_dims(&self, inputs: &[&Type]) -> Result<Vec<Dim>, InferError> {
        let (x, filter) = (inputs[0], inputs[1]);
        let rank = self.check(x, filter)?;
        let channels = &filter.dims[1] * self.groups as i64;
        if same_dim(&x.dims[1], &channels).is_none() || !is_multiple(&filter.dims[0], self.groups) {
            return Err(self.channel_error(x, filter));
        }
        let mut dims = vec![x.dims[0].clone(), filter.dims[0].clone()];
        for axis in 0..rank {
            let reach = (&filter.dims[axis + 2] - 1) * self.dilation[axis] as i64 + 1;
            let room = &x.dims[axis + 2] + &self.pad_lo[axis] + &self.pad_hi[axis] - reach;
            dims.push(window_count(self.op, &room, self.stride[axis])?);
        }
        Ok(dims)
    }

    fn channel_error(&self, x: &Type, filter: &Type) -> InferError {
        InferError::new(self.op, format!("channels of x {x} and filter {filter} do not fit {} groups", self.groups))
    }

    /// Adds the products of x and filter to `output`.
    fn accumulate<T: Copy + Mul<Output = T> + AddAssign>(
        &self,
        x_tensor: &Tensor,
        x: &[T],
        filter_tensor: &Tensor,
        filter: &[T],
        shape: &[usize],
        output: &mut [T],
    ) -> Result<(), EvalError> {
        if output.is_empty() {
            return Ok(());
        }
        let (x_shape, filter_shape) = (x_tensor.shape(), filter_tensor.shape());
        let taps = self.taps(&shape[2..], &x_shape[2..], &filter_shape[2..])?;
        let (small, large) = (count(&shape[2..]), count(&x_shape[2..]));
        let (channels, out_channels, group_in) = (x_shape[1], shape[1], filter_shape[1]);
        let group_out = out_channels / self.groups;
        for batch in 0..shape[0] {
            for out in 0..out_channels {
                let target = &mut output[(batch * out_channels + out) * small..][..small];
                for within in 0..group_in {
                    let channel = out / group_out * group_in + within;
                    let plane = &x[(batch * channels + channel) * large..][..large];
                    let weights = &filter[(out * group_in + within) * taps.len()..][..taps.len()];
                    for (&weight, tap) in weights.iter().zip(&taps) {
                        for run in tap {
                            multiply_run(
                                &mut target[run.small..][..run.length],
                                &plane[run.large..],
                                run.stride,
                                weight,
                            );
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// For every filter element, in order, the runs along the last axis that it joins.
    fn taps(&self, small: &[usize], large: &[usize], filter: &[usize]) -> Result<Vec<Vec<Run>>, EvalError> {
        let pads = pad_numbers(self.op, self.pad_lo)?;
        let last = filter.len() - 1;
        let (small_strides, large_strides) = (strides(small), strides(large));
        let mut taps = Vec::with_capacity(count(filter));
        for_each_index(filter, |tap| {
            let base: Vec<i64> = tap
                .iter()
                .zip(self.dilation)
                .zip(&pads)
                .map(|((&at, &dilation), pad)| (at * dilation) as i64 - pad)
                .collect();
            let range = valid_range(base[last], self.stride[last], small[last], large[last]);
            let mut runs = Vec::new();
            let mut rows = small.to_vec();
            rows[last] = 1;
            for_each_index(&rows, |row| {
                let place: Option<Vec<usize>> = (0..last)
                    .map(|axis| {
                        let at = (row[axis] * self.stride[axis]) as i64 + base[axis];
                        usize::try_from(at).ok().filter(|&at| at < large[axis])
                    })
                    .collect();
                if let Some(place) = place
                    && !range.is_empty()
                {
                    let first = ((range.start * self.stride[last]) as i64 + base[last]) as usize;
                    let small = offset(row, &small_strides) + range.start;
                    let large = offset(&place, &large_strides) + first;
                    runs.push(Run { small, large, length: range.len(), stride: self.stride[last] });
                }
            });
            taps.push(runs);
        });
        Ok(taps)
    }
}

fn multiply_run<T: Copy + Mul<Output = T> + AddAssign>(target: &mut [T], source: &[T], stride: usize, weight: T) {
    if stride == 1 {
        target.iter_mut().zip(source).for_each(|(sum, &element)| *sum += weight * element);
    } else {
        target.iter_mut().zip(source.iter().step_by(stride)).for_each(|(sum, &element)| *sum += weight * element);
    }
}

/// The indices of the small side whose elements of the large side, `i * stride + base`, exist.
fn valid_range(base: i64, stride: usize, small: usize, large: usize) -> std::ops::Range<usize> {
    let stride = stride as i64;
    let start = ceil_div((-base).max(0), stride);
    let end = ceil_div((large as i64 - base).max(0), stride).min(small as i64);
    start as usize..(end.max(start)) as usize
}

fn ceil_div(dividend: i64, divisor: i64) -> i64 {
    (dividend + divisor - 1) / divisor
}

/// How many windows fit: `room` is the padded extent less the reach of one window.
fn window_count(op: &'static str, room: &Dim, stride: usize) -> Result<Dim, InferError> {
    let count = room.floor_div(&Dim::from(stride)) + 1;
    if count.as_const().is_some_and(|count| count < 0) {
        return Err(InferError::new(op, format!("the filter reaches {} beyond the padded input", -room)));
    }
    Ok(count)
}

fn is_multiple(dim: &Dim, groups: usize) -> bool {
    dim.as_const()
        .is_none_or(|channels| usize::try_from(channels).is_ok_and(|channels| channels.is_multiple_of(groups)))
}

fn check_float_operands(op: &'static str, inputs: &[&Type]) -> Result<(), InferError> {
    if !inputs[0].dtype.is_float() {
        return Err(dtype_error(op, inputs[0].dtype));
    }
    inputs[1..].iter().try_for_each(|input| check_same_dtype(op, inputs[0], input))
}

fn check_bias(op: &'static str, bias: Option<&&Type>, channels: &Dim) -> Result<(), InferError> {
    match bias {
        Some(bias) if bias.dims.len() != 1 || same_dim(&bias.dims[0], channels).is_none() => {
            Err(InferError::new(op, format!("bias {bias} found where [{channels}] is expected")))
        }
        _ => Ok(()),
    }
}

/// An output with every channel filled with its bias, or with zeros.
fn start_from_bias(bias: Option<&Tensor>, shape: &[usize]) -> Vec<f64> {
    let Some(bias) = bias else {
        return vec![0.0; count(shape)];
    };
    let bias = read_floats(bias);
    let plane = count(&shape[2..]);
    let image = bias.iter().flat_map(|&value| std::iter::repeat_n(value, plane));
    (0..shape[0]).flat_map(|_| image.clone()).collect()
}

/// Elements minus a zero point that is a scalar or has one entry for each element of the first axis.
fn centre(operand: &Tensor, zero_point: &Tensor) -> Result<Vec<i64>, EvalError> {
    let zeros = read_ints(CONV_INT, zero_point)?;
    let block = count(&operand.shape()[1..]).max(1);
    let zero_at = |element: usize| {
        if zeros.len() == 1 { zeros[0] } else { zeros[element / block] }
    };
    let elements = read_ints(CONV_INT, operand)?;
    Ok(elements.iter().enumerate().map(|(at, element)| (element - zero_at(at)) as i64).collect())
}

#[cfg(test)]
#[path = "conv_tests.rs"]
mod tests;
