//! Sampling an image at given places (ONNX GridSample 20), in any number of spatial axes. Weights are products of
//! weights along the axes. The last axis of the grid names the spatial axes from the innermost outwards.

use precast_tensor::{Tensor, Type};

use super::cubic::cubic_weight;
use crate::error::{EvalError, InferError};
use crate::op::{GridPad, GridSample, Operation, ResizeFn};
use crate::ops::shape::{
    check_arity, count, dtype_error, for_each_index, infer_shape, read_floats, same_dim, strides, write_floats,
};

const GRID_SAMPLE: &str = "grid_sample";
/// The kernel parameter that ONNX fixes.
const CUBIC_A: f64 = -0.75;

impl Operation for GridSample {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity(GRID_SAMPLE, inputs, 2..=2)?;
        let (x, grid) = (inputs[0], inputs[1]);
        if let Some(input) = inputs.iter().find(|input| !input.dtype.is_float()) {
            return Err(dtype_error(GRID_SAMPLE, input.dtype));
        }
        let rank = x.dims.len();
        let fits = rank >= 3
            && grid.dims.len() == rank
            && same_dim(&x.dims[0], &grid.dims[0]).is_some()
            && same_dim(&grid.dims[rank - 1], &(rank - 2).into()).is_some();
        if !fits {
            let reason =
                format!("x {x} and grid {grid} found where [N,C,spatial..] and [N,spatial..,rank] are expected");
            return Err(InferError::new(GRID_SAMPLE, reason));
        }
        let dims = x.dims[..2].iter().chain(&grid.dims[1..rank - 1]).cloned().collect();
        Ok(vec![Type { dtype: x.dtype, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(GRID_SAMPLE, self, inputs)?;
        let x = read_floats(&inputs[0]);
        let grid = read_floats(&inputs[1]);
        let (channels, spatial) = (shape[1], &inputs[0].shape()[2..]);
        let (plane, samples) = (count(spatial), count(&shape[2..]));
        let mut output = vec![0.0; count(&shape)];
        for batch in 0..shape[0] {
            for sample in 0..samples {
                let place = &grid[(batch * samples + sample) * spatial.len()..][..spatial.len()];
                let taps = self.taps(place, spatial);
                for channel in 0..channels {
                    let image = &x[(batch * channels + channel) * plane..][..plane];
                    let sum = taps.iter().fold(0.0, |sum, (at, weight)| sum + image[*at] * weight);
                    output[(batch * channels + channel) * samples + sample] = sum;
                }
            }
        }
        Ok(vec![write_floats(GRID_SAMPLE, dtype, &shape, &output)?])
    }
}

impl GridSample {
    /// Elements of a plane and their weights for one place of the grid.
    fn taps(&self, place: &[f64], spatial: &[usize]) -> Vec<(usize, f64)> {
        let along: Vec<Vec<(usize, f64)>> =
            spatial.iter().zip(place.iter().rev()).map(|(&extent, &at)| self.axis_taps(at, extent)).collect();
        let counts: Vec<usize> = along.iter().map(Vec::len).collect();
        let plane_strides = strides(spatial);
        let mut taps = Vec::with_capacity(count(&counts));
        for_each_index(&counts, |index| {
            let chosen = index.iter().zip(&along).map(|(&at, taps)| taps[at]);
            let tap = chosen
                .zip(&plane_strides)
                .fold((0, 1.0), |(at, product), ((along, weight), stride)| (at + along * stride, product * weight));
            taps.push(tap);
        });
        taps
    }

    /// Elements along one axis and their weights; what lies outside and counts as zero is left out.
    fn axis_taps(&self, normalised: f64, extent: usize) -> Vec<(usize, f64)> {
        let size = extent as f64;
        let (least, most, mut at) = if self.align_corners {
            (0.0, size - 1.0, (normalised + 1.0) / 2.0 * (size - 1.0))
        } else {
            (-0.5, size - 0.5, ((normalised + 1.0) * size - 1.0) / 2.0)
        };
        if self.func == ResizeFn::Nearest {
            at = at.round_ties_even();
        }
        if at < least || at > most {
            match self.padding {
                GridPad::Zeros => {}
                // The cubic kernel reaches across the border, so it is pixels that are moved to it, not the coordinate:
                // ONNX Runtime and PyTorch agree on this, the ONNX reference moves the coordinate.
                GridPad::Border if self.func == ResizeFn::Cubic => {}
                GridPad::Border => at = at.clamp(0.0, (size - 1.0).max(0.0)),
                GridPad::Reflection => at = reflect(at, least, most),
            }
        }
        let (first, weights) = match self.func {
            ResizeFn::Nearest => (at, vec![1.0]),
            ResizeFn::Linear => (at.floor(), vec![1.0 - (at - at.floor()), at - at.floor()]),
            ResizeFn::Cubic => {
                let ratio = at - at.floor();
                (at.floor() - 1.0, (-1..3).map(|i| cubic_weight(CUBIC_A, f64::from(i) - ratio)).collect())
            }
        };
        let pixels = weights.into_iter().enumerate().map(|(tap, weight)| (first + tap as f64, weight));
        pixels.filter_map(|(pixel, weight)| Some((self.pixel(pixel, least, most, extent)?, weight))).collect()
    }

    /// The pixel that padding puts at a whole coordinate.
    fn pixel(&self, at: f64, least: f64, most: f64, extent: usize) -> Option<usize> {
        let last = extent.checked_sub(1)? as f64;
        match self.padding {
            GridPad::Zeros => (0.0..=last).contains(&at).then_some(at as usize),
            GridPad::Border => Some(at.clamp(0.0, last) as usize),
            GridPad::Reflection => Some(reflect(at, least, most).clamp(0.0, last) as usize),
        }
    }
}

/// Mirrors a coordinate at the ends of a range until it lies within.
fn reflect(at: f64, least: f64, most: f64) -> f64 {
    let range = most - least;
    let (distance, near, far_sign) = if at < least {
        (least - at, least, 1.0)
    } else if at > most {
        (at - most, most, -1.0)
    } else {
        return at;
    };
    if range <= 0.0 || !distance.is_finite() {
        return near;
    }
    let rest = distance % range;
    let is_even = ((distance - rest) / range) % 2.0 == 0.0;
    if is_even { near + far_sign * rest } else { near + far_sign * (range - rest) }
}
