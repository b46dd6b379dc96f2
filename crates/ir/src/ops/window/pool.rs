//! Pooling. A window that holds no element of x, only padding, has no maximum (it gives the least value of its type and
//! the index -1) and no average without padding (it gives NaN).

use precast_tensor::{Dim, Tensor, Type};

use crate::error::{EvalError, InferError};
use crate::op::{Operation, Pool, PoolFn, PoolIndices};
use crate::ops::geometry::{check_steps, pad_numbers};
use crate::ops::shape::{
    Elements, check_arity, check_length, count, dtype_error, for_each_index, infer_shape, offset, read_floats, strides,
    write_floats, write_ints,
};

const POOL: &str = "pool";
const POOL_INDICES: &str = "pool_indices";

impl Operation for Pool {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        let dims = self.windows().infer_dims(POOL, inputs)?;
        let dtype = inputs[0].dtype;
        let has_meaning = match self.func {
            PoolFn::Max => !dtype.is_bool(),
            PoolFn::Avg | PoolFn::Lp => dtype.is_float(),
        };
        if !has_meaning {
            return Err(dtype_error(POOL, dtype));
        }
        if self.func == PoolFn::Lp && self.p < 1 {
            return Err(InferError::new(POOL, format!("p is {} where 1 or more is expected", self.p)));
        }
        Ok(vec![Type { dtype, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(POOL, self, inputs)?;
        if self.func == PoolFn::Max {
            return Ok(vec![self.eval_max(&inputs[0], &shape)?]);
        }
        let x = read_floats(&inputs[0]);
        let mut output = Vec::with_capacity(count(&shape));
        self.windows().for_each_window(POOL, inputs[0].shape(), &shape, |window| {
            let terms = window.elements.iter().map(|&at| x[window.plane + at]);
            output.push(match self.func {
                PoolFn::Lp => lp_norm(terms, self.p),
                PoolFn::Avg if self.count_pad => sum(terms) / window.padded_count as f64,
                PoolFn::Avg | PoolFn::Max => sum(terms) / window.elements.len() as f64,
            });
        })?;
        Ok(vec![write_floats(POOL, dtype, &shape, &output)?])
    }
}

impl Operation for PoolIndices {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        let dims = self.windows().infer_dims(POOL_INDICES, inputs)?;
        if inputs[0].dtype.is_bool() {
            return Err(dtype_error(POOL_INDICES, inputs[0].dtype));
        }
        Ok(vec![Type { dtype: precast_tensor::DType::I64, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(POOL_INDICES, self, inputs)?;
        let x_shape = inputs[0].shape();
        let x = Elements::read(POOL_INDICES, &inputs[0])?;
        let mut indices = Vec::with_capacity(count(&shape));
        self.windows().for_each_window(POOL_INDICES, x_shape, &shape, |window| {
            let index = match largest(&x, window) {
                None => -1,
                Some(at) if self.column_major => {
                    (window.plane + column_major(at - window.plane, &x_shape[2..])) as i128
                }
                Some(at) => at as i128,
            };
            indices.push(index);
        })?;
        Ok(vec![write_ints(POOL_INDICES, dtype, &shape, &indices)?])
    }
}

impl Pool {
    fn windows(&self) -> Windows<'_> {
        Windows {
            window: &self.window,
            stride: &self.stride,
            pad_lo: &self.pad_lo,
            pad_hi: &self.pad_hi,
            dilation: &self.dilation,
            output: &self.output,
        }
    }

    fn eval_max(&self, x: &Tensor, shape: &[usize]) -> Result<Tensor, EvalError> {
        let dtype = x.dtype();
        let elements = Elements::read(POOL, x)?;
        let mut places = Vec::with_capacity(count(shape));
        self.windows().for_each_window(POOL, x.shape(), shape, |window| places.push(largest(&elements, window)))?;
        let output = match &elements {
            Elements::Float(x) => {
                Elements::Float(places.iter().map(|place| place.map_or(f64::NEG_INFINITY, |at| x[at])).collect())
            }
            Elements::Int(x) => {
                let least = dtype.int_range().map_or(0, |(least, _)| least);
                Elements::Int(places.iter().map(|place| place.map_or(least, |at| x[at])).collect())
            }
        };
        output.write(POOL, dtype, shape)
    }
}

impl PoolIndices {
    fn windows(&self) -> Windows<'_> {
        Windows {
            window: &self.window,
            stride: &self.stride,
            pad_lo: &self.pad_lo,
            pad_hi: &self.pad_hi,
            dilation: &self.dilation,
            output: &self.output,
        }
    }
}

/// Where the windows lie.
struct Windows<'a> {
    window: &'a [usize],
    stride: &'a [usize],
    pad_lo: &'a [Dim],
    pad_hi: &'a [Dim],
    dilation: &'a [usize],
    output: &'a [Dim],
}

/// One window of one plane of x.
struct Window {
    /// Offset of the plane in x.
    plane: usize,
    /// Offsets in the plane of the elements of x in the window, in order.
    elements: Vec<usize>,
    /// Places of the window that lie within x and its declared padding.
    padded_count: usize,
}

impl Windows<'_> {
    fn infer_dims(&self, op: &'static str, inputs: &[&Type]) -> Result<Vec<Dim>, InferError> {
        check_arity(op, inputs, 1..=1)?;
        let x = inputs[0];
        if x.dims.len() < 3 {
            return Err(InferError::new(op, format!("x {x} found where rank 3 or more is expected")));
        }
        let rank = x.dims.len() - 2;
        check_length(op, "window", self.window.len(), rank)?;
        check_length(op, "stride", self.stride.len(), rank)?;
        check_length(op, "pad_lo", self.pad_lo.len(), rank)?;
        check_length(op, "pad_hi", self.pad_hi.len(), rank)?;
        check_length(op, "dilation", self.dilation.len(), rank)?;
        check_length(op, "output", self.output.len(), rank)?;

        for steps in [self.window, self.stride, self.dilation] {
            check_steps(op, steps)?;
        }

        Ok(x.dims[..2].iter().chain(self.output).cloned().collect())
    }

    /// Calls `visit` with every window in the order of the output's elements.
    fn for_each_window(
        &self,
        op: &'static str,
        x_shape: &[usize],
        shape: &[usize],
        mut visit: impl FnMut(&Window),
    ) -> Result<(), EvalError> {
        let (pad_lo, pad_hi) = (pad_numbers(op, self.pad_lo)?, pad_numbers(op, self.pad_hi)?);
        if count(shape) == 0 {
            return Ok(());
        }
        let spatial = &x_shape[2..];
        let plane_strides = strides(spatial);
        let mut windows = Vec::with_capacity(count(&shape[2..]));
        for_each_index(&shape[2..], |at| {
            let mut window = Window { plane: 0, elements: Vec::new(), padded_count: 0 };
            for_each_index(self.window, |within| {
                let place: Vec<i64> = (0..spatial.len())
                    .map(|axis| {
                        (at[axis] * self.stride[axis] + within[axis] * self.dilation[axis]) as i64 - pad_lo[axis]
                    })
                    .collect();
                if (0..spatial.len()).all(|axis| place[axis] < spatial[axis] as i64 + pad_hi[axis]) {
                    window.padded_count += 1;
                }
                if place.iter().zip(spatial).all(|(place, extent)| (0..*extent as i64).contains(place)) {
                    let place: Vec<usize> = place.iter().map(|&place| place as usize).collect();
                    window.elements.push(offset(&place, &plane_strides));
                }
            });
            windows.push(window);
        });
        for plane in 0..count(&shape[..2]) {
            for window in &mut windows {
                window.plane = plane * count(spatial);
                visit(window);
            }
        }
        Ok(())
    }
}

/// Offset in x of the first largest element of a window; NaN is larger than every number.
fn largest(x: &Elements, window: &Window) -> Option<usize> {
    let places = window.elements.iter().map(|at| window.plane + at);
    match x {
        Elements::Float(x) => places.reduce(|best, at| if x[best].is_nan() || x[at] <= x[best] { best } else { at }),
        Elements::Int(x) => places.reduce(|best, at| if x[at] <= x[best] { best } else { at }),
    }
}

/// The offset of a plane's element when the first spatial axis is the one that runs fastest.
fn column_major(offset: usize, spatial: &[usize]) -> usize {
    let (mut rest, mut column_major) = (offset, 0);
    for axis in (0..spatial.len()).rev() {
        let stride: usize = spatial[..axis].iter().product();
        column_major += rest % spatial[axis] * stride;
        rest /= spatial[axis];
    }
    column_major
}

/// The sum of no terms is 0, not the -0 that `Iterator::sum` starts from.
fn sum(terms: impl Iterator<Item = f64>) -> f64 {
    terms.fold(0.0, |sum, term| sum + term)
}

fn lp_norm(terms: impl Iterator<Item = f64>, p: i64) -> f64 {
    let p = p as f64;
    libm::pow(sum(terms.map(|term| libm::pow(term.abs(), p))), 1.0 / p)
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
