//! Resizing (ONNX Resize 19). Every axis by itself: an output coordinate becomes an input coordinate, the kernel gives
//! weights to the input elements around it, elements beyond the ends are those at the ends.

use precast_tensor::{Dim, Tensor, Type};

use super::cubic::cubic_weight;
use crate::error::{EvalError, InferError};
use crate::op::{CoordinateFn, NearestFn, Operation, Resize, ResizeFn};
use crate::ops::raw::from_bytes;
use crate::ops::shape::{
    check_arity, check_length, count, dtype_error, for_each_index, infer_shape, offset, read_floats, split_at_axis,
    strides, write_floats, write_ints,
};

const RESIZE: &str = "resize";
/// `scale * input` counts as the output size when it is this near: scales are often f32 quotients of sizes.
const WHOLE_SIZE_TOLERANCE: f64 = 1e-4;
/// An antialiasing kernel wider than this is larger than any image.
const SCALE_MIN: f64 = 1e-7;

impl Operation for Resize {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity(RESIZE, inputs, 1..=1)?;
        let x = inputs[0];
        check_length(RESIZE, "output", self.output.len(), x.dims.len())?;
        check_length(RESIZE, "scales", self.scales.len(), x.dims.len())?;
        if self.coordinates == CoordinateFn::TfCrop {
            check_length(RESIZE, "roi", self.roi.len(), 2 * x.dims.len())?;
        }
        if x.dtype.is_bool() && self.func != ResizeFn::Nearest {
            return Err(dtype_error(RESIZE, x.dtype));
        }
        if let Some(scale) = self.scales.iter().find(|scale| !(SCALE_MIN..=1.0 / SCALE_MIN).contains(*scale)) {
            return Err(InferError::new(RESIZE, format!("{scale} found where a positive scale is expected")));
        }
        let is_empty = |dim: &Dim| dim.as_const() == Some(0);
        if x.dims.iter().zip(&self.output).any(|(from, to)| is_empty(from) && to.as_const().is_some_and(|to| to > 0)) {
            return Err(InferError::new(RESIZE, format!("x {x} has no elements to make others from")));
        }
        Ok(vec![Type { dtype: x.dtype, dims: self.output.clone() }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(RESIZE, self, inputs)?;

        let x = &inputs[0];
        if count(&shape) == 0 {
            return Ok(vec![from_bytes(RESIZE, dtype, &shape, Vec::new())?]);
        }
        let axes: Vec<Axis> = (0..shape.len()).map(|axis| self.axis(axis, x.shape()[axis], shape[axis])).collect();
        if self.func == ResizeFn::Nearest {
            return Ok(vec![self.gather(x, &shape, &axes)?]);
        }
        let mut elements = read_floats(x);
        let mut sizes = x.shape().to_vec();
        for (axis, map) in axes.iter().enumerate().filter(|(_, map)| !map.is_identity) {
            elements = apply_axis(&elements, &sizes, axis, map);
            sizes[axis] = map.taps.len();
        }
        let mut at = 0;
        for_each_index(&shape, |index| {
            if is_outside(&axes, index) {
                elements[at] = self.extrapolation;
            }
            at += 1;
        });
        let Some((least, most)) = dtype.int_range() else {
            return Ok(vec![write_floats(RESIZE, dtype, &shape, &elements)?]);
        };
        // Integers round to the nearest, halves to even, and saturate, as the ONNX reference does.
        let rounded = elements.iter().map(|element| (element.round_ties_even() as i128).clamp(least, most));
        Ok(vec![write_ints(RESIZE, dtype, &shape, &rounded.collect::<Vec<_>>())?])
    }
}

/// Where the elements of one output axis come from.
struct Axis {
    /// Nothing is resized along this axis.
    is_identity: bool,
    /// For every output element the input elements and their weights.
    taps: Vec<Vec<(usize, f64)>>,
    /// Output elements that lie outside the input and are extrapolated.
    outside: Vec<bool>,
}

impl Resize {
    /// For every output element of an axis the input elements it is made of and their weights; `None` where some lie
    /// outside of the input and are extrapolated.
    pub fn axis_taps(&self, axis: usize, input: usize, output: usize) -> Option<Vec<Vec<(usize, f64)>>> {
        let map = self.axis(axis, input, output);
        (!map.outside.contains(&true)).then_some(map.taps)
    }

    fn axis(&self, axis: usize, input: usize, output: usize) -> Axis {
        let scale = self.scales[axis];
        let crop = match self.coordinates {
            CoordinateFn::TfCrop => (self.roi[axis], self.roi[axis + self.scales.len()]),
            _ => (0.0, 1.0),
        };
        if input == output && scale == 1.0 && crop == (0.0, 1.0) {
            let taps = (0..output).map(|at| vec![(at, 1.0)]).collect();
            return Axis { is_identity: true, taps, outside: vec![false; output] };
        }
        let coordinates: Vec<f64> =
            (0..output).map(|at| self.coordinate(at as f64, scale, input as f64, output as f64, crop)).collect();
        let is_cropped = self.coordinates == CoordinateFn::TfCrop;
        let last = input as f64 - 1.0;
        let outside = coordinates.iter().map(|at| is_cropped && (*at < 0.0 || *at > last)).collect();
        let taps = coordinates.iter().map(|&at| self.taps(at, scale, input)).collect();
        Axis { is_identity: false, taps, outside }
    }

    /// The input coordinate of an output coordinate.
    fn coordinate(&self, at: f64, scale: f64, input: f64, output: f64, crop: (f64, f64)) -> f64 {
        let exact = scale * input;
        let is_whole = (exact - output).abs() < WHOLE_SIZE_TOLERANCE;
        let width = if is_whole { output } else { exact };
        // A quotient of sizes is divided by last, so that coordinates come out whole or halved where they are: a scale such
        // as 7 / 3 is rounded itself, and functions that jump would see that.
        let unscaled = |at: f64| if is_whole { at * input / output } else { at / scale };
        let half_pixel = unscaled(at + 0.5) - 0.5;
        match self.coordinates {
            CoordinateFn::HalfPixel => half_pixel,
            CoordinateFn::HalfPixelSymmetric if is_whole => half_pixel,
            // input / 2 · (1 - output / width) + (at + 0.5) / scale - 0.5 with one division, which hits whole coordinates.
            CoordinateFn::HalfPixelSymmetric => (input - 1.0) / 2.0 + unscaled(at + 0.5 - output / 2.0),
            CoordinateFn::PytorchHalfPixel => {
                if output > 1.0 {
                    half_pixel
                } else {
                    0.0
                }
            }
            CoordinateFn::AlignCorners => {
                if output > 1.0 {
                    at * (input - 1.0) / (width - 1.0)
                } else {
                    0.0
                }
            }
            CoordinateFn::Asymmetric => unscaled(at),
            CoordinateFn::TfHalfPixel => unscaled(at + 0.5),
            CoordinateFn::TfCrop if output > 1.0 => {
                crop.0 * (input - 1.0) + at * (crop.1 - crop.0) * (input - 1.0) / (width - 1.0)
            }
            CoordinateFn::TfCrop => 0.5 * (crop.0 + crop.1) * (input - 1.0),
        }
    }

    fn taps(&self, at: f64, scale: f64, input: usize) -> Vec<(usize, f64)> {
        let floor = at.floor();
        let ratio = at - floor;
        // Antialiasing widens the kernel when it makes the axis smaller.
        let shrink = if self.antialias { scale.min(1.0) } else { 1.0 };
        let weight = |distance: f64| match self.func {
            ResizeFn::Nearest => 1.0,
            ResizeFn::Linear => (1.0 - distance.abs()).max(0.0),
            ResizeFn::Cubic => cubic_weight(self.cubic_a, distance),
        };
        let reach = match self.func {
            ResizeFn::Nearest => return vec![(clamp_index(self.nearest_coordinate(at), input), 1.0)],
            ResizeFn::Linear => 1.0,
            ResizeFn::Cubic => 2.0,
        };
        let first = (-reach / shrink).floor() as i64 + 1;
        let mut taps: Vec<(f64, f64)> =
            (first..2 - first).map(|tap| (floor + tap as f64, weight((tap as f64 - ratio) * shrink))).collect();
        if self.exclude_outside {
            taps.retain(|(at, _)| *at >= 0.0 && *at < input as f64);
        }
        if self.exclude_outside || self.antialias {
            let sum: f64 = taps.iter().map(|(_, weight)| weight).sum();
            taps.iter_mut().filter(|_| sum != 0.0).for_each(|(_, weight)| *weight /= sum);
        }
        taps.into_iter()
            .filter(|(_, weight)| *weight != 0.0)
            .map(|(at, weight)| (clamp_index(at, input), weight))
            .collect()
    }

    fn nearest_coordinate(&self, at: f64) -> f64 {
        let ratio = at - at.floor();
        match self.nearest {
            NearestFn::Floor => at.floor(),
            NearestFn::Ceil => at.ceil(),
            NearestFn::RoundPreferFloor => {
                if ratio <= 0.5 {
                    at.floor()
                } else {
                    at.ceil()
                }
            }
            NearestFn::RoundPreferCeil => {
                if ratio < 0.5 {
                    at.floor()
                } else {
                    at.ceil()
                }
            }
        }
    }

    /// Nearest elements, moved as they are.
    fn gather(&self, x: &Tensor, shape: &[usize], axes: &[Axis]) -> Result<Tensor, EvalError> {
        let size = x.dtype().size_bytes();
        let extrapolated = Tensor::full(x.dtype(), vec![], self.extrapolation)
            .map_err(|error| EvalError::value(RESIZE, error.to_string()))?;
        let x_strides = strides(x.shape());
        let mut bytes = Vec::with_capacity(count(shape) * size);
        for_each_index(shape, |index| {
            if is_outside(axes, index) {
                bytes.extend_from_slice(extrapolated.as_bytes());
                return;
            }
            let source: Vec<usize> = index.iter().zip(axes).map(|(&at, axis)| axis.taps[at][0].0).collect();
            let from = offset(&source, &x_strides) * size;
            bytes.extend_from_slice(&x.as_bytes()[from..from + size]);
        });
        from_bytes(RESIZE, x.dtype(), shape, bytes)
    }
}

fn clamp_index(at: f64, extent: usize) -> usize {
    (at.max(0.0) as usize).min(extent.saturating_sub(1))
}

fn is_outside(axes: &[Axis], index: &[usize]) -> bool {
    index.iter().zip(axes).any(|(&at, axis)| axis.outside[at])
}

fn apply_axis(elements: &[f64], shape: &[usize], axis: usize, map: &Axis) -> Vec<f64> {
    let split = split_at_axis(shape, axis);
    let mut output = vec![0.0; split.outer * map.taps.len() * split.inner];
    let mut rows = output.chunks_exact_mut(split.inner.max(1));
    for outer in 0..split.outer {
        for (taps, row) in map.taps.iter().zip(&mut rows) {
            for &(at, weight) in taps {
                let source = &elements[(outer * split.extent + at) * split.inner..][..split.inner];
                row.iter_mut().zip(source).for_each(|(sum, element)| *sum += weight * element);
            }
        }
    }
    output
}

#[cfg(test)]
#[path = "resize_tests.rs"]
mod tests;
