//! Reductions against plain loops in f64 and i64.

use super::*;
use crate::test_data::{Lcg, assert_close, for_each_exec};

const SHAPES: [(usize, usize, usize); 9] =
    [(1, 1, 1), (3, 5, 1), (2, 1000, 1), (2, 20_000, 1), (3, 700, 5), (2, 9, 130), (0, 4, 3), (3, 0, 2), (700, 49, 1)];

/// The elements along the axis for each result.
fn lines<T: Copy>(outer: usize, axis: usize, inner: usize, src: &[T]) -> Vec<Vec<T>> {
    let line = |o: usize, i: usize| (0..axis).map(|a| src[(o * axis + a) * inner + i]).collect();
    (0..outer * inner).map(|flat| line(flat / inner, flat % inner)).collect()
}

fn in_f64(kernel: ReduceKernel, line: &[f64]) -> f64 {
    let max = line.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match kernel {
        ReduceKernel::Sum => line.iter().sum(),
        ReduceKernel::Mean => line.iter().sum::<f64>() / line.len() as f64,
        ReduceKernel::Prod => line.iter().product(),
        ReduceKernel::Max => max,
        ReduceKernel::Min => line.iter().copied().fold(f64::INFINITY, f64::min),
        ReduceKernel::L1 => line.iter().map(|x| x.abs()).sum(),
        ReduceKernel::L2 => line.iter().map(|x| x * x).sum::<f64>().sqrt(),
        ReduceKernel::SumSquare => line.iter().map(|x| x * x).sum(),
        ReduceKernel::LogSum => line.iter().sum::<f64>().ln(),
        ReduceKernel::LogSumExp => line.iter().map(|x| x.exp()).sum::<f64>().ln(),
    }
}

#[test]
fn float_reductions_match_f64() {
    let mut lcg = Lcg::new(21);
    for (outer, axis, inner) in SHAPES {
        // Positive, so that sums do not cancel and logarithms exist.
        let src: Vec<f32> = lcg.floats(outer * axis * inner).iter().map(|x| x.abs() * 0.4 + 0.1).collect();
        let wide: Vec<f64> = src.iter().map(|&x| x.into()).collect();
        for kernel in [
            ReduceKernel::Sum,
            ReduceKernel::Mean,
            ReduceKernel::Prod,
            ReduceKernel::Max,
            ReduceKernel::Min,
            ReduceKernel::L1,
            ReduceKernel::L2,
            ReduceKernel::SumSquare,
            ReduceKernel::LogSum,
            ReduceKernel::LogSumExp,
        ] {
            let expected: Vec<f64> = lines(outer, axis, inner, &wide).iter().map(|line| in_f64(kernel, line)).collect();
            for_each_exec(|exec| {
                let mut dst = vec![7.0; outer * inner];
                reduce_f32(exec, kernel, outer, axis, inner, &src, &mut dst);
                assert_close(&dst, &expected, 4e-6, 2e-6, &format!("{kernel:?} of {outer}x{axis}x{inner}"));
            });
        }
    }
}

#[test]
fn constant_terms_do_not_drift() {
    for_each_exec(|exec| {
        let mut dst = [0.0; 3];
        reduce_f32(exec, ReduceKernel::Sum, 1, 200_000, 1, &vec![0.1; 200_000], &mut dst[..1]);
        reduce_f32(exec, ReduceKernel::Sum, 1, 100_000, 2, &vec![0.1; 200_000], &mut dst[1..]);
        assert_close(&dst, &[20_000.0, 10_000.0, 10_000.0], 5e-6, 0.0, "sum of 0.1");
    });
}

#[test]
fn maxima_propagate_nan_and_logs_survive_infinities() {
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    for_each_exec(|exec| {
        for position in 0..40 {
            let mut src = vec![1.0; 80];
            src[position] = nan;
            let mut dst = [0.0; 2];
            reduce_f32(exec, ReduceKernel::Max, 2, 40, 1, &src, &mut dst);
            assert!(dst[0].is_nan() && dst[1] == 1.0);
            reduce_f32(exec, ReduceKernel::Min, 1, 40, 2, &src, &mut dst);
            assert!(dst[position % 2].is_nan() && dst[1 - position % 2] == 1.0);
        }
        for (row, expected) in [
            ([-infinity; 2], -infinity),
            ([infinity, 1.0], infinity),
            ([1000.0; 2], (1000.0 + std::f64::consts::LN_2) as f32),
        ] {
            let mut dst = [0.0];
            reduce_f32(exec, ReduceKernel::LogSumExp, 1, 2, 1, &row, &mut dst);
            assert_eq!(dst, [expected]);
        }
    });
}

#[test]
fn integer_reductions_match_plain_loops() {
    let mut lcg = Lcg::new(22);
    for (outer, axis, inner) in SHAPES {
        let src: Vec<i64> = (0..outer * axis * inner).map(|_| i64::from(lcg.next_u32() as i32)).collect();
        let narrow: Vec<i32> = src.iter().map(|&x| x as i32).collect();
        type Reference = fn(&[i64]) -> i64;
        let kernels: [(IntReduceKernel, Reference); 7] = [
            (IntReduceKernel::Sum, |line| line.iter().fold(0, |a, b| a.wrapping_add(*b))),
            (IntReduceKernel::Mean, |line| line.iter().sum::<i64>() / line.len().max(1) as i64),
            (IntReduceKernel::Prod, |line| line.iter().fold(1, |a, b| a.wrapping_mul(*b))),
            (IntReduceKernel::Max, |line| line.iter().copied().max().unwrap_or(i64::MIN)),
            (IntReduceKernel::Min, |line| line.iter().copied().min().unwrap_or(i64::MAX)),
            (IntReduceKernel::L1, |line| line.iter().map(|x| x.abs()).sum()),
            (IntReduceKernel::SumSquare, |line| line.iter().fold(0, |a, b| a.wrapping_add(b.wrapping_mul(*b)))),
        ];
        for (kernel, reference) in kernels {
            let expected: Vec<i64> = lines(outer, axis, inner, &src).iter().map(|line| reference(line)).collect();
            for_each_exec(|exec| {
                let mut dst = vec![0; outer * inner];
                reduce_i64(exec, kernel, outer, axis, inner, &src, &mut dst);
                assert_eq!(dst, expected, "{kernel:?} of {outer}x{axis}x{inner}");
                let mut small = vec![0; outer * inner];
                reduce_i32(exec, kernel, outer, axis, inner, &narrow, &mut small);
                if axis > 0 && kernel != IntReduceKernel::Mean {
                    let wrapped: Vec<i32> = expected.iter().map(|&x| x as i32).collect();
                    assert_eq!(small, wrapped, "{kernel:?} of i32 {outer}x{axis}x{inner}");
                }
            });
        }
    }
}

#[test]
fn arg_reductions_name_the_first_or_last() {
    let mut lcg = Lcg::new(23);
    for (outer, axis, inner) in SHAPES {
        let src: Vec<f32> = (0..outer * axis * inner).map(|_| lcg.below(6) as f32).collect();
        let whole: Vec<i64> = src.iter().map(|&x| x as i64).collect();
        for kernel in [ArgKernel::Max, ArgKernel::Min] {
            for tie in [Tie::First, Tie::Last] {
                let find = |line: &Vec<f32>| {
                    let best = match kernel {
                        ArgKernel::Max => line.iter().copied().fold(f32::NEG_INFINITY, f32::max),
                        ArgKernel::Min => line.iter().copied().fold(f32::INFINITY, f32::min),
                    };
                    let found = match tie {
                        Tie::First => line.iter().position(|&x| x == best),
                        Tie::Last => line.iter().rposition(|&x| x == best),
                    };
                    found.unwrap_or(0) as i64
                };
                let expected: Vec<i64> = lines(outer, axis, inner, &src).iter().map(find).collect();
                for_each_exec(|exec| {
                    let mut dst = vec![-1; outer * inner];
                    arg_reduce_f32(exec, kernel, tie, outer, axis, inner, &src, &mut dst);
                    assert_eq!(dst, expected, "{kernel:?} {tie:?} of {outer}x{axis}x{inner}");
                    arg_reduce_i64(exec, kernel, tie, outer, axis, inner, &whole, &mut dst);
                    assert_eq!(dst, expected, "{kernel:?} {tie:?} of i64 {outer}x{axis}x{inner}");
                });
            }
        }
    }
}

#[test]
fn nan_is_the_largest_and_equals_itself() {
    let src = [1.0, f32::NAN, 3.0, f32::NAN, 0.5];
    let cases = [
        (ArgKernel::Max, Tie::First, 1),
        (ArgKernel::Max, Tie::Last, 3),
        (ArgKernel::Min, Tie::First, 4),
        (ArgKernel::Min, Tie::Last, 4),
    ];
    for_each_exec(|exec| {
        for (kernel, tie, expected) in cases {
            let mut dst = [-1];
            arg_reduce_f32(exec, kernel, tie, 1, 5, 1, &src, &mut dst);
            assert_eq!(dst, [expected], "{kernel:?} {tie:?}");
        }
        let mut dst = [-1];
        arg_reduce_f32(exec, ArgKernel::Min, Tie::Last, 1, 2, 1, &[f32::NAN; 2], &mut dst);
        assert_eq!(dst, [1]);
    });
}

#[test]
fn integer_means_do_not_wrap() {
    for_each_exec(|exec| {
        let mut dst = [0; 2];
        let src = [i64::MAX, i64::MIN, i64::MAX, i64::MIN + 2];
        reduce_i64(exec, IntReduceKernel::Mean, 1, 2, 2, &src, &mut dst);
        assert_eq!(dst, [i64::MAX, i64::MIN + 1]);
        let mut dst = [0; 1];
        reduce_i32(exec, IntReduceKernel::Mean, 1, 3, 1, &[i32::MAX, i32::MAX, i32::MAX], &mut dst);
        assert_eq!(dst, [i32::MAX]);
    });
}

#[test]
fn running_sums_go_both_ways() {
    let mut lcg = Lcg::new(24);
    for (outer, axis, inner) in SHAPES {
        let src: Vec<i64> = (0..outer * axis * inner).map(|_| lcg.below(1000) as i64).collect();
        let floats: Vec<f32> = src.iter().map(|&x| x as f32).collect();
        for (is_exclusive, is_reverse) in [(false, false), (true, false), (false, true), (true, true)] {
            let order = CumulateOrder { is_exclusive, is_reverse };
            let mut expected = vec![0; src.len()];
            for o in 0..outer {
                for i in 0..inner {
                    let mut sum = 0;
                    for step in 0..axis {
                        let a = if is_reverse { axis - 1 - step } else { step };
                        let at = (o * axis + a) * inner + i;
                        let included = sum + src[at];
                        expected[at] = if is_exclusive { sum } else { included };
                        sum = included;
                    }
                }
            }
            let rounded: Vec<f32> = expected.iter().map(|&x| x as f32).collect();
            for_each_exec(|exec| {
                let mut dst = vec![0; src.len()];
                cumulate_i64(exec, CumulateKernel::Sum, order, outer, axis, inner, &src, &mut dst);
                assert_eq!(dst, expected);
                let mut dst = vec![0.0; src.len()];
                cumulate_f32(exec, CumulateKernel::Sum, order, outer, axis, inner, &floats, &mut dst);
                assert_eq!(dst, rounded);
            });
        }
    }
    for_each_exec(|exec| {
        let mut dst = [0; 4];
        let order = CumulateOrder::default();
        cumulate_i64(exec, CumulateKernel::Prod, order, 1, 4, 1, &[1, 2, 3, 4], &mut dst);
        assert_eq!(dst, [1, 2, 6, 24]);
    });
}

#[test]
fn truths_are_joined_with_or_and_and() {
    for_each_exec(|exec| {
        let src = [0, 1, 0, 0, 5, 1];
        let mut dst = [9; 2];
        reduce_any(exec, 2, 3, 1, &src, &mut dst);
        assert_eq!(dst, [1, 1]);
        reduce_all(exec, 2, 3, 1, &src, &mut dst);
        assert_eq!(dst, [0, 0]);
        reduce_any(exec, 1, 3, 2, &src, &mut dst);
        assert_eq!(dst, [1, 1]);
        reduce_all(exec, 2, 0, 1, &[], &mut dst);
        assert_eq!(dst, [1, 1]);
    });
}
