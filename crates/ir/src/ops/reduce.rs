//! Ops that combine the elements of an axis: reduce, arg_reduce and cumulate. Float sums run in f64 with compensation,
//! so that the order of terms hardly matters and the only rounding that shows is the last one.

use std::cmp::Ordering;

use precast_tensor::{DType, Dim, Tensor, Type};

use super::function::{max_float, min_float};
use super::shape::{
    AxisSplit, CompensatedSum, Elements, check_arity, check_axis, count, dtype_error, for_each_index, infer_shape,
    offset, offsets, split_at_axis, strides, write_ints,
};
use crate::error::{EvalError, InferError};
use crate::op::{ArgFn, ArgReduce, Cumulate, CumulateFn, Operation, Reduce, ReduceFn};

impl Operation for Reduce {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("reduce", inputs, 1..=1)?;
        let Type { dtype, dims } = inputs[0];
        for (at, &axis) in self.axes.iter().enumerate() {
            check_axis("reduce", axis, dims.len())?;
            if self.axes[..at].contains(&axis) {
                return Err(InferError::new("reduce", format!("axis {axis} is given twice")));
            }
        }
        let has_meaning = match self.func {
            ReduceFn::Any | ReduceFn::All => dtype.is_bool(),
            ReduceFn::Max | ReduceFn::Min => true,
            ReduceFn::Sum
            | ReduceFn::Mean
            | ReduceFn::Prod
            | ReduceFn::L1
            | ReduceFn::L2
            | ReduceFn::SumSq
            | ReduceFn::LogSum
            | ReduceFn::LogSumExp => !dtype.is_bool(),
        };
        if !has_meaning {
            let reason = format!("'{}' has no meaning for {}", self.func.name(), dtype.name());
            return Err(InferError::new("reduce", reason));
        }
        Ok(vec![Type { dtype: *dtype, dims: reduced_dims(dims, &self.axes, self.keep_dims) }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape("reduce", self, inputs)?;
        let groups = Groups::new(inputs[0].shape(), &self.axes);
        let elements = match Elements::read("reduce", &inputs[0])? {
            Elements::Float(values) => Elements::Float(groups.map(&values, |group| reduce_floats(self.func, group))),
            Elements::Int(values) => Elements::Int(groups.map(&values, |group| reduce_ints(self.func, group, dtype))),
        };
        Ok(vec![elements.write("reduce", dtype, &shape)?])
    }
}

fn reduced_dims(dims: &[Dim], axes: &[usize], keep_dims: bool) -> Vec<Dim> {
    let kept = dims.iter().enumerate().filter_map(|(axis, dim)| match (axes.contains(&axis), keep_dims) {
        (false, _) => Some(dim.clone()),
        (true, true) => Some(Dim::ONE),
        (true, false) => None,
    });
    kept.collect()
}

/// The elements of a tensor in groups: one for each index of the axes that stay, over the axes that go.
pub struct Groups {
    kept_shape: Vec<usize>,
    kept_strides: Vec<usize>,
    /// Where the elements of a group lie relative to its first.
    within: Vec<usize>,
}

impl Groups {
    /// The groups of a tensor of `shape` when `axes` go.
    pub fn new(shape: &[usize], axes: &[usize]) -> Groups {
        let own = strides(shape);
        let (gone, kept): (Vec<usize>, Vec<usize>) = (0..shape.len()).partition(|axis| axes.contains(axis));
        let pick = |values: &[usize], axes: &[usize]| axes.iter().map(|&axis| values[axis]).collect::<Vec<_>>();
        let kept_shape = pick(shape, &kept);
        // Without groups there is nothing within them, however large an empty tensor says its other axes are.
        let within = match count(&kept_shape) {
            0 => Vec::new(),
            _ => offsets(&pick(shape, &gone), &pick(&own, &gone)),
        };
        Groups { kept_shape, kept_strides: pick(&own, &kept), within }
    }

    /// What `combine` makes of each group, groups and elements in row-major order.
    pub fn map<T: Clone, R>(&self, values: &[T], combine: impl Fn(&[T]) -> R) -> Vec<R> {
        let mut results = Vec::with_capacity(count(&self.kept_shape));
        let mut group = Vec::with_capacity(self.within.len());
        for_each_index(&self.kept_shape, |index| {
            let first = offset(index, &self.kept_strides);
            group.clear();
            group.extend(self.within.iter().map(|at| values[first + at].clone()));
            results.push(combine(&group));
        });
        results
    }
}

fn reduce_floats(func: ReduceFn, values: &[f64]) -> f64 {
    match func {
        ReduceFn::Sum => sum(values.iter().copied()),
        ReduceFn::Mean => sum(values.iter().copied()) / values.len() as f64,
        ReduceFn::Prod => values.iter().product(),
        ReduceFn::Max => values.iter().copied().fold(f64::NEG_INFINITY, max_float),
        ReduceFn::Min => values.iter().copied().fold(f64::INFINITY, min_float),
        ReduceFn::L1 => sum(values.iter().map(|x| x.abs())),
        ReduceFn::L2 => sum(values.iter().map(|x| x * x)).sqrt(),
        ReduceFn::SumSq => sum(values.iter().map(|x| x * x)),
        ReduceFn::LogSum => libm::log(sum(values.iter().copied())),
        ReduceFn::LogSumExp => log_sum_exp(values),
        ReduceFn::Any => f64::from(values.iter().any(|&x| x != 0.0)),
        ReduceFn::All => f64::from(values.iter().all(|&x| x != 0.0)),
    }
}

fn reduce_ints(func: ReduceFn, values: &[i128], dtype: DType) -> i128 {
    let (least, most) = dtype.int_range().unwrap_or((0, 1));
    let wrapping_sum = |terms: &mut dyn Iterator<Item = i128>| terms.fold(0, i128::wrapping_add);
    match func {
        ReduceFn::Sum => wrapping_sum(&mut values.iter().copied()),
        ReduceFn::Mean => wrapping_sum(&mut values.iter().copied()).checked_div(values.len() as i128).unwrap_or(0),
        ReduceFn::Prod => values.iter().copied().fold(1, i128::wrapping_mul),
        ReduceFn::Max => values.iter().copied().fold(least, i128::max),
        ReduceFn::Min => values.iter().copied().fold(most, i128::min),
        ReduceFn::L1 => wrapping_sum(&mut values.iter().map(|x| x.abs())),
        ReduceFn::SumSq => wrapping_sum(&mut values.iter().map(|x| x.wrapping_mul(*x))),
        ReduceFn::Any => i128::from(values.iter().any(|&x| x != 0)),
        ReduceFn::All => i128::from(values.iter().all(|&x| x != 0)),
        // Functions with real results are computed on reals and truncated.
        ReduceFn::L2 | ReduceFn::LogSum | ReduceFn::LogSumExp => {
            let values: Vec<f64> = values.iter().map(|&x| x as f64).collect();
            (reduce_floats(func, &values) as i128).clamp(least, most)
        }
    }
}

fn sum(terms: impl Iterator<Item = f64>) -> f64 {
    let mut total = CompensatedSum::default();
    terms.for_each(|term| total.add(term));
    total.value()
}

/// The largest element is taken out of the sum first: no exp overflows, and at least one term is 1.
fn log_sum_exp(values: &[f64]) -> f64 {
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, max_float);
    if !largest.is_finite() {
        return largest;
    }
    largest + libm::log(sum(values.iter().map(|x| libm::exp(x - largest))))
}

impl Operation for ArgReduce {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("arg_reduce", inputs, 1..=1)?;
        check_axis("arg_reduce", self.axis, inputs[0].dims.len())?;
        let dims = reduced_dims(&inputs[0].dims, &[self.axis], self.keep_dims);
        Ok(vec![Type { dtype: DType::I64, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape("arg_reduce", self, inputs)?;
        if inputs[0].shape()[self.axis] == 0 && count(&shape) > 0 {
            return Err(EvalError::value("arg_reduce", format!("axis {} is empty", self.axis)));
        }
        let groups = Groups::new(inputs[0].shape(), &[self.axis]);
        let found = match Elements::read("arg_reduce", &inputs[0])? {
            Elements::Float(values) => groups.map(&values, |group| self.find(group, float_order)),
            Elements::Int(values) => groups.map(&values, |group| self.find(group, i128::cmp)),
        };
        Ok(vec![write_ints("arg_reduce", dtype, &shape, &found)?])
    }
}

impl ArgReduce {
    fn find<T>(&self, values: &[T], order: impl Fn(&T, &T) -> Ordering) -> i128 {
        let wanted = match self.func {
            ArgFn::Max => Ordering::Greater,
            ArgFn::Min => Ordering::Less,
        };
        let mut best = 0;
        for at in 1..values.len() {
            let found = order(&values[at], &values[best]);
            if found == wanted || (self.last && found == Ordering::Equal) {
                best = at;
            }
        }
        best as i128
    }
}

/// Order of floats in arg_reduce and topk: NaN is the largest and equals itself; −0 equals 0.
pub fn float_order(a: &f64, b: &f64) -> Ordering {
    a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

impl Operation for Cumulate {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("cumulate", inputs, 1..=1)?;
        check_axis("cumulate", self.axis, inputs[0].dims.len())?;
        if inputs[0].dtype.is_bool() {
            return Err(dtype_error("cumulate", inputs[0].dtype));
        }
        Ok(vec![inputs[0].clone()])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape("cumulate", self, inputs)?;
        let split = split_at_axis(&shape, self.axis);
        let elements = match (Elements::read("cumulate", &inputs[0])?, self.func) {
            (Elements::Float(values), CumulateFn::Sum) => {
                let add = |mut total: CompensatedSum, x| {
                    total.add(x);
                    total
                };
                Elements::Float(self.run(&values, split, CompensatedSum::default(), add, CompensatedSum::value))
            }
            (Elements::Float(values), CumulateFn::Prod) => {
                Elements::Float(self.run(&values, split, 1.0, |total: f64, x| total * x, |total| total))
            }
            (Elements::Int(values), CumulateFn::Sum) => {
                Elements::Int(self.run(&values, split, 0, i128::wrapping_add, |total| total))
            }
            (Elements::Int(values), CumulateFn::Prod) => {
                Elements::Int(self.run(&values, split, 1, i128::wrapping_mul, |total| total))
            }
        };
        Ok(vec![elements.write("cumulate", dtype, &shape)?])
    }
}

impl Cumulate {
    fn run<T: Copy, S: Copy>(
        &self,
        values: &[T],
        AxisSplit { extent, inner, .. }: AxisSplit,
        start: S,
        step: impl Fn(S, T) -> S,
        value: impl Fn(S) -> T,
    ) -> Vec<T> {
        let mut results = values.to_vec();
        let lines = values.len().checked_div(extent).unwrap_or(0);
        for line in 0..lines {
            let first = line / inner * extent * inner + line % inner;
            let mut total = start;
            for count in 0..extent {
                let along = if self.reverse { extent - 1 - count } else { count };
                let at = first + along * inner;
                let next = step(total, values[at]);
                results[at] = value(if self.exclusive { total } else { next });
                total = next;
            }
        }
        results
    }
}

#[cfg(test)]
#[path = "reduce_tests.rs"]
mod tests;
