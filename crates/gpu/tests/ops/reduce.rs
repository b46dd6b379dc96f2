//! Reductions, index reductions and running sums.

use precast_ir::op::{ArgFn, ArgReduce, Cumulate, CumulateFn, Reduce, ReduceFn};
use precast_tensor::{DType, Tensor};

use crate::host::{Case, INDIRECT, PLAIN, WIDE, check, check_none, numbers, of_values};

fn x(dtype: DType, shape: &[usize]) -> Tensor {
    let (low, high) = if dtype.is_signed() { (-2.0, 4.0) } else { (0.0, 4.0) };
    numbers(dtype, shape, 11, low, high)
}

fn reduce(func: ReduceFn, axes: &[usize], keep_dims: bool) -> Reduce {
    Reduce { func, axes: axes.to_vec(), keep_dims }
}

fn has_meaning(func: ReduceFn, dtype: DType) -> bool {
    match func {
        ReduceFn::Any | ReduceFn::All => dtype.is_bool(),
        ReduceFn::Max | ReduceFn::Min => true,
        _ => !dtype.is_bool(),
    }
}

#[test]
fn every_function_of_every_type() {
    let mut cases = Vec::new();
    for &func in ReduceFn::ALL {
        for dtype in
            [DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64, DType::U8, DType::I8, DType::Bool]
        {
            if !has_meaning(func, dtype) || (func == ReduceFn::Mean && dtype == DType::I64) {
                continue;
            }
            let positive = |shape: &[usize]| match func {
                ReduceFn::LogSum if dtype.is_float() => numbers(dtype, shape, 3, 0.5, 2.0),
                ReduceFn::Prod if dtype.is_float() => numbers(dtype, shape, 3, 0.9, 1.1),
                _ => x(dtype, shape),
            };
            let slack = if dtype == DType::F64 { 1e-13 } else { 0.0 };
            cases.push(Case::new(reduce(func, &[1], false), &[positive(&[3, 19])]).with_slack(slack));
            cases.push(Case::new(reduce(func, &[0], true), &[positive(&[7, 5])]).with_slack(slack));
        }
    }
    check(&cases, PLAIN);
    check(&cases[..12], WIDE);
    check(&cases[..4], INDIRECT);
}

#[test]
fn axes_shapes_and_layouts() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        for func in [ReduceFn::Sum, ReduceFn::Mean, ReduceFn::Max, ReduceFn::LogSumExp] {
            for (shape, axes) in [
                (vec![2, 3, 4, 5], vec![2, 3]),
                (vec![2, 3, 4, 5], vec![1]),
                (vec![2, 3, 4, 5], vec![0, 2]),
                (vec![2, 3, 4, 5], vec![3, 0]),
                (vec![2, 3, 4, 5], vec![]),
                (vec![2, 3, 4, 5], vec![0, 1, 2, 3]),
                (vec![300, 3], vec![0]),
                (vec![2, 700], vec![1]),
                (vec![1, 1, 9], vec![1]),
                (vec![3, 0, 2], vec![1]),
                (vec![1000], vec![0]),
            ] {
                cases.push(Case::new(reduce(func, &axes, true), &[x(dtype, &shape)]));
                if shape.len() > 3 {
                    cases.push(Case::new(reduce(func, &axes, true), &[x(dtype, &shape)]).channels_last());
                    cases.push(Case::new(reduce(func, &axes, false), &[x(dtype, &shape)]).channels_last());
                }
            }
        }
    }
    check(&cases, PLAIN);
    check(&cases[..16], WIDE);
}

#[test]
fn long_rows_are_cut_in_parts() {
    let mut cases = Vec::new();
    for func in [ReduceFn::Sum, ReduceFn::Mean, ReduceFn::L2, ReduceFn::Max] {
        cases.push(Case::new(reduce(func, &[0], false), &[x(DType::F32, &[20000])]));
        cases.push(Case::new(reduce(func, &[0, 2], false), &[x(DType::F32, &[5000, 3, 4])]));
        cases.push(Case::new(reduce(func, &[1, 2], true), &[x(DType::F16, &[2, 100, 130])]).channels_last());
        cases.push(Case::new(reduce(func, &[0], false), &[x(DType::I32, &[9000, 2])]));
    }
    check(&cases, PLAIN);
    check(&cases[..4], WIDE);
}

#[test]
fn special_numbers() {
    let values = [1.0, f64::NAN, -0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY];
    let mut cases = Vec::new();
    for func in [ReduceFn::Max, ReduceFn::Min, ReduceFn::LogSumExp, ReduceFn::Sum] {
        for at in 0..values.len() {
            let pair = of_values(DType::F32, &[2], &[values[at], values[(at + 1) % values.len()]]);
            cases.push(Case::new(reduce(func, &[0], false), &[pair]));
        }
        let infinite = of_values(DType::F32, &[2], &[f64::NEG_INFINITY; 2]);
        cases.push(Case::new(reduce(func, &[0], false), &[infinite]));
    }
    check(&cases, PLAIN);
    check_none(&Case::new(reduce(ReduceFn::Mean, &[0], false), &[x(DType::I64, &[3])]));
}

#[test]
fn index_reductions() {
    let mut cases = Vec::new();
    for func in [ArgFn::Max, ArgFn::Min] {
        for last in [false, true] {
            for dtype in [DType::F32, DType::F16, DType::F64, DType::I32, DType::U8, DType::I64] {
                let op = |axis: usize, keep_dims: bool| ArgReduce { func, axis, keep_dims, last };
                cases.push(Case::new(op(1, false), &[numbers(dtype, &[3, 50], 2, 0.0, 5.0)]));
                cases.push(Case::new(op(0, true), &[numbers(dtype, &[50, 3], 2, 0.0, 5.0)]));
            }
            let op = ArgReduce { func, axis: 0, keep_dims: true, last };
            let special = [1.0, f64::NAN, 0.0, -0.0, f64::NAN, f64::NEG_INFINITY, 0.0, f64::NEG_INFINITY];
            cases.push(Case::new(op.clone(), &[of_values(DType::F32, &[8], &special)]));
            cases.push(Case::new(op.clone(), &[of_values(DType::F32, &[4], &[0.0, -0.0, -0.0, 0.0])]));
            cases.push(Case::new(op, &[numbers(DType::F32, &[1000], 2, 0.0, 5.0)]));
            let op = ArgReduce { func, axis: 1, keep_dims: false, last };
            for dtype in [DType::F32, DType::BF16, DType::I64] {
                // Long rows have several blocks, and equal elements in many of them.
                cases.push(Case::new(op.clone(), &[numbers(dtype, &[2, 9001], 2, 0.0, 5.0)]));
            }
            let mut long = vec![1.0; 8192];
            (long[5000], long[7000]) = (f64::NAN, f64::NAN);
            cases.push(Case::new(op.clone(), &[of_values(DType::F32, &[1, 8192], &long)]));
            cases.push(Case::new(op, &[numbers(DType::F32, &[2, 5, 3, 4], 2, 0.0, 5.0)]).channels_last());
        }
    }
    check(&cases, PLAIN);
    check(&cases[..6], WIDE);
    check(&cases[..2], INDIRECT);
}

#[test]
fn running_sums() {
    let mut cases = Vec::new();
    for func in [CumulateFn::Sum, CumulateFn::Prod] {
        for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
            for dtype in [DType::F32, DType::F16, DType::I32, DType::I64, DType::U8] {
                for (shape, axis) in
                    [(vec![3, 20], 1), (vec![20, 3], 0), (vec![2, 300], 1), (vec![600, 2], 0), (vec![1], 0)]
                {
                    let low = if func == CumulateFn::Prod { 0.98 } else { -1.0 };
                    let (low, high) = if dtype.is_float() { (low, 1.01) } else { (0.0, 4.0) };
                    let op = Cumulate { func, axis, exclusive, reverse };
                    cases.push(Case::new(op, &[numbers(dtype, &shape, 4, low, high)]));
                }
            }
        }
        let op = Cumulate { func, axis: 2, exclusive: false, reverse: false };
        cases.push(Case::new(op, &[numbers(DType::F32, &[2, 3, 4], 4, 0.9, 1.1)]).channels_last());
    }
    check(&cases, PLAIN);
    check(&cases[..4], WIDE);
    check(&cases[..4], INDIRECT);
}
