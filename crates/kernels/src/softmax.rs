//! Softmax and log-softmax in f32, over the last axis or one in the middle: the maximum, then exponentials and their
//! sum, then the scale. A row of a usual model stays in the first cache for all three.

use crate::isa::Exec;
use crate::math;
use crate::pool::SharedMut;
use crate::row_sum::{CHAIN_MAX, combine, sum_of, write_sum_of};
use crate::simd::{multiversion, rows_per_task};

/// Cost of an element relative to an addition.
const WEIGHT: usize = 8;
/// Columns that are done together when the axis is not the last one.
const STRIP: usize = 64;

/// `e^(x - max) / sum` over each row of `[rows, cols]`.
pub fn softmax(exec: &Exec, rows: usize, cols: usize, src: &[f32], dst: &mut [f32]) {
    run_rows(exec, rows, cols, src, dst, false);
}

/// The logarithm of `softmax`.
pub fn log_softmax(exec: &Exec, rows: usize, cols: usize, src: &[f32], dst: &mut [f32]) {
    run_rows(exec, rows, cols, src, dst, true);
}

/// `softmax` over the middle of `[outer, axis, inner]`.
pub fn softmax_axis(exec: &Exec, outer: usize, axis: usize, inner: usize, src: &[f32], dst: &mut [f32]) {
    run_axis(exec, outer, axis, inner, src, dst, false);
}

/// `log_softmax` over the middle of `[outer, axis, inner]`.
pub fn log_softmax_axis(exec: &Exec, outer: usize, axis: usize, inner: usize, src: &[f32], dst: &mut [f32]) {
    run_axis(exec, outer, axis, inner, src, dst, true);
}

fn run_rows(exec: &Exec, rows: usize, cols: usize, src: &[f32], dst: &mut [f32], is_log: bool) {
    assert_eq!(src.len(), rows * cols, "elements of the source");
    assert_eq!(dst.len(), rows * cols, "elements of the target");
    if cols == 0 {
        return;
    }
    let task_len = rows_per_task(rows, cols, WEIGHT) * cols;
    exec.pool().chunks_mut(dst, task_len, |task, dst| {
        let src = &src[task * task_len..][..dst.len()];
        if is_log {
            log_softmax_rows(exec.isa(), cols, src, dst);
        } else {
            softmax_rows(exec.isa(), cols, src, dst);
        }
    });
}

fn run_axis(exec: &Exec, outer: usize, axis: usize, inner: usize, src: &[f32], dst: &mut [f32], is_log: bool) {
    if inner == 1 {
        return run_rows(exec, outer, axis, src, dst, is_log);
    }
    assert_eq!(src.len(), outer * axis * inner, "elements of the source");
    assert_eq!(dst.len(), outer * axis * inner, "elements of the target");
    if src.is_empty() {
        return;
    }
    let strips = inner.div_ceil(STRIP);
    let strips_per_task = rows_per_task(outer * strips, axis * STRIP.min(inner), WEIGHT);
    let shared = SharedMut::new(dst);
    exec.pool().run((outer * strips).div_ceil(strips_per_task), &|task| {
        for strip in task * strips_per_task..((task + 1) * strips_per_task).min(outer * strips) {
            let first = strip / strips * axis * inner + strip % strips * STRIP;
            let width = STRIP.min(inner - strip % strips * STRIP);
            softmax_strip(exec.isa(), axis, inner, width, first, src, &shared, is_log);
        }
    });
}

multiversion! {
    fn softmax_rows<F: MulAdd>(cols: usize, src: &[f32], dst: &mut [f32]) {
        for (x, y) in src.chunks_exact(cols).zip(dst.chunks_exact_mut(cols)) {
            let max = combine(x, f32::NEG_INFINITY, larger);
            let sum = write_sum_of(x, y, |x| math::exp::<F>(x - max));
            let scale = (1.0 / sum) as f32;
            y.iter_mut().for_each(|y| *y *= scale);
        }
    }

    fn log_softmax_rows<F: MulAdd>(cols: usize, src: &[f32], dst: &mut [f32]) {
        for (x, y) in src.chunks_exact(cols).zip(dst.chunks_exact_mut(cols)) {
            let max = combine(x, f32::NEG_INFINITY, larger);
            let sum = sum_of(x, |x| math::exp::<F>(x - max));
            let log_sum = sum.ln() as f32;
            for (y, &x) in y.iter_mut().zip(x) {
                *y = (x - max) - log_sum;
            }
        }
    }

    /// The `width` columns from element `first`, which only this call writes.
    fn softmax_strip<F: MulAdd>(
        axis: usize,
        inner: usize,
        width: usize,
        first: usize,
        src: &[f32],
        dst: &SharedMut<f32>,
        is_log: bool,
    ) {
        let source = |a: usize| &src[first + a * inner..][..width];
        // SAFETY: one piece is alive at a time here, and other strips have other columns.
        let target = |a: usize| unsafe { dst.slice(first + a * inner, width) };
        let mut max = [f32::NEG_INFINITY; STRIP];
        for a in 0..axis {
            for (max, &x) in max.iter_mut().zip(source(a)) {
                *max = larger(*max, x);
            }
        }
        let mut sum = [0.0; STRIP];
        for chain in (0..axis).step_by(CHAIN_MAX) {
            let mut part = [0.0; STRIP];
            for a in chain..(chain + CHAIN_MAX).min(axis) {
                for (((y, &x), max), part) in target(a).iter_mut().zip(source(a)).zip(&max).zip(&mut part) {
                    let value = math::exp::<F>(x - *max);
                    *part += value;
                    *y = value;
                }
            }
            for (sum, part) in sum.iter_mut().zip(part) {
                *sum += part;
            }
        }
        let correction = sum.map(|sum| if is_log { sum.ln() } else { 1.0 / sum });
        for a in 0..axis {
            for (((y, &x), max), correction) in target(a).iter_mut().zip(source(a)).zip(&max).zip(&correction) {
                *y = if is_log { (x - *max) - *correction } else { *y * *correction };
            }
        }
    }
}

/// The larger value; what it gives for a NaN does not matter, since the sum becomes NaN by itself.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::{Lcg, assert_close, for_each_exec};

    fn naive(outer: usize, axis: usize, inner: usize, src: &[f32], is_log: bool) -> Vec<f64> {
        let mut result = vec![0.0; src.len()];
        for o in 0..outer {
            for i in 0..inner {
                let at = |a: usize| (o * axis + a) * inner + i;
                let max = (0..axis).map(|a| f64::from(src[at(a)])).fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = (0..axis).map(|a| (f64::from(src[at(a)]) - max).exp()).sum();
                for a in 0..axis {
                    let shifted = f64::from(src[at(a)]) - max;
                    result[at(a)] = if is_log { shifted - sum.ln() } else { shifted.exp() / sum };
                }
            }
        }
        result
    }

    #[test]
    fn every_axis_matches_f64() {
        let mut lcg = Lcg::new(2);
        for (outer, axis, inner) in
            [(3, 7, 1), (2, 1000, 1), (5, 33, 1), (2, 300, 70), (4, 3, 5), (0, 3, 5), (3, 0, 2), (2, 9000, 1)]
        {
            let src: Vec<f32> = lcg.floats(outer * axis * inner).iter().map(|x| x * 5.0).collect();
            let (plain, log) = (naive(outer, axis, inner, &src, false), naive(outer, axis, inner, &src, true));
            for_each_exec(|exec| {
                let mut dst = vec![9.0; src.len()];
                softmax_axis(exec, outer, axis, inner, &src, &mut dst);
                assert_close(&dst, &plain, 4e-6, 1e-12, "softmax");
                log_softmax_axis(exec, outer, axis, inner, &src, &mut dst);
                assert_close(&dst, &log, 2e-6, 2e-6, "log_softmax");
            });
        }
    }

    #[test]
    fn masked_and_extreme_rows() {
        let infinity = f32::INFINITY;
        let src = [-infinity, 0.0, -infinity, 1e38, -1e38, 1e38];
        for_each_exec(|exec| {
            let mut dst = [0.0; 6];
            softmax(exec, 2, 3, &src, &mut dst);
            assert_eq!(dst, [0.0, 1.0, 0.0, 0.5, 0.0, 0.5]);
            softmax(exec, 1, 2, &[f32::NAN, 1.0], &mut dst[..2]);
            assert!(dst[0].is_nan() && dst[1].is_nan());
        });
    }
}
