//! Reductions, arg-reductions and running sums over the middle of `[outer, axis, inner]`.
//!
//! With `inner` 1 a row is reduced in many lanes; otherwise a strip of neighbouring columns is carried along the axis.
//! Threads share rows and strips, never an axis, so the bits do not depend on their number.

use crate::isa::Exec;
use crate::math;
use crate::pool::SharedMut;
use crate::row_sum::{CHAIN_MAX, NARROW_MAX, combine, narrow_sum, sum_of};
use crate::simd::{multiversion, rows_per_task};

/// Columns that are carried along the axis together.
const STRIP: usize = 64;

/// What a reduction of floats computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReduceKernel {
    /// Σ x
    Sum,
    /// Σ x / n
    Mean,
    /// Π x
    Prod,
    /// The largest; NaN if one is.
    Max,
    /// The smallest; NaN if one is.
    Min,
    /// Σ |x|
    L1,
    /// √ Σ x²
    L2,
    /// Σ x²
    SumSquare,
    /// log Σ x
    LogSum,
    /// log Σ e^x, without overflow.
    LogSumExp,
}

/// What a reduction of integers computes; all wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntReduceKernel {
    /// Σ x
    Sum,
    /// Σ x / n, truncated; 0 for an empty axis.
    Mean,
    /// Π x
    Prod,
    /// The largest; the least integer for an empty axis.
    Max,
    /// The smallest; the greatest integer for an empty axis.
    Min,
    /// Σ |x|
    L1,
    /// Σ x²
    SumSquare,
}

/// Which element an arg-reduction looks for. A NaN is found only where it is the first element of its axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgKernel {
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

/// Which of several equal elements an arg-reduction names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tie {
    /// The one with the lowest index.
    First,
    /// The one with the highest index.
    Last,
}

/// What a running reduction computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CumulateKernel {
    /// Running sum.
    Sum,
    /// Running product.
    Prod,
}

/// How a running reduction goes along its axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CumulateOrder {
    /// Whether an element is left out of its own result.
    pub is_exclusive: bool,
    /// Whether it starts at the end.
    pub is_reverse: bool,
}

/// Reduces floats over the axis; `dst` is `[outer, inner]`.
pub fn reduce_f32(
    exec: &Exec,
    kernel: ReduceKernel,
    outer: usize,
    axis: usize,
    inner: usize,
    src: &[f32],
    dst: &mut [f32],
) {
    assert_eq!(src.len(), outer * axis * inner, "elements of the source");
    for_each_strip(exec, outer, axis, inner, dst, |first, dst| {
        if inner == 1 {
            for (index, dst) in dst.iter_mut().enumerate() {
                *dst = reduce_row(exec.isa(), kernel, &src[first + index * axis..][..axis]);
            }
        } else {
            reduce_strip(exec.isa(), kernel, axis, inner, &src[first..], dst);
        }
    });
}

/// Reduces 64-bit integers over the axis; `dst` is `[outer, inner]`.
pub fn reduce_i64(
    exec: &Exec,
    kernel: IntReduceKernel,
    outer: usize,
    axis: usize,
    inner: usize,
    src: &[i64],
    dst: &mut [i64],
) {
    assert_eq!(src.len(), outer * axis * inner, "elements of the source");
    for_each_strip(exec, outer, axis, inner, dst, |first, dst| {
        reduce_strip_i64(exec.isa(), kernel, axis, inner, &src[first..], dst);
    });
}

/// Reduces 32-bit integers over the axis; `dst` is `[outer, inner]`.
pub fn reduce_i32(
    exec: &Exec,
    kernel: IntReduceKernel,
    outer: usize,
    axis: usize,
    inner: usize,
    src: &[i32],
    dst: &mut [i32],
) {
    assert_eq!(src.len(), outer * axis * inner, "elements of the source");
    for_each_strip(exec, outer, axis, inner, dst, |first, dst| {
        reduce_strip_i32(exec.isa(), kernel, axis, inner, &src[first..], dst);
    });
}

/// 1 where any byte of the axis is not 0.
pub fn reduce_any(exec: &Exec, outer: usize, axis: usize, inner: usize, src: &[u8], dst: &mut [u8]) {
    reduce_truth(exec, outer, axis, inner, src, dst, 0, |all, x| all | u8::from(x != 0));
}

/// 1 where every byte of the axis is not 0.
pub fn reduce_all(exec: &Exec, outer: usize, axis: usize, inner: usize, src: &[u8], dst: &mut [u8]) {
    reduce_truth(exec, outer, axis, inner, src, dst, 1, |all, x| all & u8::from(x != 0));
}

/// The index along the axis of the largest or smallest float; 0 for an empty axis. NaN is the largest and equals
/// itself.
pub fn arg_reduce_f32(
    exec: &Exec,
    kernel: ArgKernel,
    tie: Tie,
    outer: usize,
    axis: usize,
    inner: usize,
    src: &[f32],
    dst: &mut [i64],
) {
    arg_reduce(exec, outer, axis, inner, src, dst, |x, best| match (kernel, tie) {
        (ArgKernel::Max, Tie::First) => x > best || (x.is_nan() && !best.is_nan()),
        (ArgKernel::Max, Tie::Last) => x >= best || x.is_nan(),
        (ArgKernel::Min, Tie::First) => x < best || (best.is_nan() && !x.is_nan()),
        (ArgKernel::Min, Tie::Last) => x <= best || best.is_nan(),
    });
}

/// The index along the axis of the largest or smallest integer; 0 for an empty axis.
pub fn arg_reduce_i64(
    exec: &Exec,
    kernel: ArgKernel,
    tie: Tie,
    outer: usize,
    axis: usize,
    inner: usize,
    src: &[i64],
    dst: &mut [i64],
) {
    arg_reduce(exec, outer, axis, inner, src, dst, |x, best| match (kernel, tie) {
        (ArgKernel::Max, Tie::First) => x > best,
        (ArgKernel::Max, Tie::Last) => x >= best,
        (ArgKernel::Min, Tie::First) => x < best,
        (ArgKernel::Min, Tie::Last) => x <= best,
    });
}

/// Running sum or product of floats along the axis, carried in f64; `dst` has the shape of `src`.
pub fn cumulate_f32(
    exec: &Exec,
    kernel: CumulateKernel,
    order: CumulateOrder,
    outer: usize,
    axis: usize,
    inner: usize,
    src: &[f32],
    dst: &mut [f32],
) {
    let next = |carried: f64, x: f32| match kernel {
        CumulateKernel::Sum => carried + f64::from(x),
        CumulateKernel::Prod => carried * f64::from(x),
    };
    let start = if kernel == CumulateKernel::Sum { 0.0 } else { 1.0 };
    cumulate(exec, order, outer, axis, inner, src, dst, start, next, |carried| carried as f32);
}

/// Running sum or product of integers along the axis; `dst` has the shape of `src`.
pub fn cumulate_i64(
    exec: &Exec,
    kernel: CumulateKernel,
    order: CumulateOrder,
    outer: usize,
    axis: usize,
    inner: usize,
    src: &[i64],
    dst: &mut [i64],
) {
    let next = |carried: i64, x: i64| match kernel {
        CumulateKernel::Sum => carried.wrapping_add(x),
        CumulateKernel::Prod => carried.wrapping_mul(x),
    };
    let start = i64::from(kernel == CumulateKernel::Prod);
    cumulate(exec, order, outer, axis, inner, src, dst, start, next, |carried| carried);
}

/// Calls `body(first element of the source, results)` for pieces of `dst`: with `inner` 1 several rows, otherwise up
/// to `STRIP` columns of one outer index.
fn for_each_strip<T: Send>(
    exec: &Exec,
    outer: usize,
    axis: usize,
    inner: usize,
    dst: &mut [T],
    body: impl Fn(usize, &mut [T]) + Sync,
) {
    assert_eq!(dst.len(), outer * inner, "elements of the target");
    if inner == 1 {
        let rows = rows_per_task(outer, axis, 1);
        exec.pool().chunks_mut(dst, rows, |task, dst| body(task * rows * axis, dst));
        return;
    }
    let strips = inner.div_ceil(STRIP);
    let count = outer * strips;
    let strips_per_task = rows_per_task(count, axis * STRIP.min(inner), 1);
    let shared = SharedMut::new(dst);
    exec.pool().run(count.div_ceil(strips_per_task), &|task| {
        for strip in task * strips_per_task..((task + 1) * strips_per_task).min(count) {
            let (row, column) = (strip / strips, strip % strips * STRIP);
            // SAFETY: strips have different rows or columns, and each is done once.
            let dst = unsafe { shared.slice(row * inner + column, STRIP.min(inner - column)) };
            // An empty axis has no element that a strip could begin at.
            let first = if axis == 0 { 0 } else { row * axis * inner + column };
            body(first, dst);
        }
    });
}

#[inline(always)]
fn plain_sum(row: &[f32]) -> f64 {
    if row.len() <= NARROW_MAX { narrow_sum(row, |sum, x| sum + x) } else { sum_of(row, |x| x) }
}

#[inline(always)]
fn square(x: f32) -> f32 {
    x * x
}

multiversion! {
    fn reduce_row<F: MulAdd>(kernel: ReduceKernel, row: &[f32]) -> f32 {
        match kernel {
            ReduceKernel::Sum => plain_sum(row) as f32,
            ReduceKernel::Mean => (plain_sum(row) / row.len() as f64) as f32,
            ReduceKernel::Prod => combine(row, 1.0, |a, b| a * b),
            ReduceKernel::Max => combine(row, f32::NEG_INFINITY, math::maximum),
            ReduceKernel::Min => combine(row, f32::INFINITY, math::minimum),
            ReduceKernel::L1 => sum_of(row, f32::abs) as f32,
            ReduceKernel::L2 => sum_of(row, square).sqrt() as f32,
            ReduceKernel::SumSquare => sum_of(row, square) as f32,
            ReduceKernel::LogSum => sum_of(row, |x| x).ln() as f32,
            ReduceKernel::LogSumExp => {
                let shift = finite_or_zero(combine(row, f32::NEG_INFINITY, math::maximum));
                (sum_of(row, |x| math::exp::<F>(x - shift)).ln() + f64::from(shift)) as f32
            }
        }
    }

    fn reduce_strip<F: MulAdd>(kernel: ReduceKernel, axis: usize, inner: usize, src: &[f32], dst: &mut [f32]) {
        let count = axis as f32;
        match kernel {
            ReduceKernel::Sum | ReduceKernel::Mean | ReduceKernel::LogSum => {
                sum_strip(axis, inner, src, dst, |_, x| x);
            }
            ReduceKernel::L1 => sum_strip(axis, inner, src, dst, |_, x| x.abs()),
            ReduceKernel::L2 | ReduceKernel::SumSquare => sum_strip(axis, inner, src, dst, |_, x| x * x),
            ReduceKernel::Prod => fold_strip(axis, inner, src, dst, 1.0, |a, b| a * b),
            ReduceKernel::Max => fold_strip(axis, inner, src, dst, f32::NEG_INFINITY, math::maximum),
            ReduceKernel::Min => fold_strip(axis, inner, src, dst, f32::INFINITY, math::minimum),
            ReduceKernel::LogSumExp => {
                let mut shifts = [0.0; STRIP];
                fold_strip(axis, inner, src, &mut shifts[..dst.len()], f32::NEG_INFINITY, math::maximum);
                shifts = shifts.map(finite_or_zero);
                sum_strip(axis, inner, src, dst, |column, x| math::exp::<F>(x - shifts[column]));
                for (y, shift) in dst.iter_mut().zip(shifts) {
                    *y = math::log::<F>(*y) + shift;
                }
            }
        }
        match kernel {
            ReduceKernel::Mean => dst.iter_mut().for_each(|y| *y /= count),
            ReduceKernel::L2 => dst.iter_mut().for_each(|y| *y = y.sqrt()),
            ReduceKernel::LogSum => dst.iter_mut().for_each(|y| *y = math::log::<F>(*y)),
            _ => {}
        }
    }
}

/// What to subtract before an exponential: an infinite maximum would make NaN of every difference.
#[inline(always)]
fn finite_or_zero(max: f32) -> f32 {
    if max.is_infinite() { 0.0 } else { max }
}

/// Sums `term(column, x)` along the axis in chains of at most `CHAIN_MAX`.
#[inline(always)]
fn sum_strip(axis: usize, inner: usize, src: &[f32], dst: &mut [f32], term: impl Fn(usize, f32) -> f32) {
    let width = dst.len();
    dst.fill(0.0);
    for chain in (0..axis).step_by(CHAIN_MAX) {
        let mut part = [0.0; STRIP];
        for a in chain..(chain + CHAIN_MAX).min(axis) {
            for (column, (part, &x)) in part.iter_mut().zip(&src[a * inner..][..width]).enumerate() {
                *part += term(column, x);
            }
        }
        for (y, part) in dst.iter_mut().zip(part) {
            *y += part;
        }
    }
}

#[inline(always)]
fn fold_strip<T: Copy>(axis: usize, inner: usize, src: &[T], dst: &mut [T], start: T, operation: impl Fn(T, T) -> T) {
    let width = dst.len();
    dst.fill(start);
    for a in 0..axis {
        for (y, &x) in dst.iter_mut().zip(&src[a * inner..][..width]) {
            *y = operation(*y, x);
        }
    }
}

/// The integer reductions, once for each type and the wider type of its means. With `inner` 1, `dst` is one result a
/// row.
macro_rules! integer_reductions {
    ($($type:ident, $wide:ident, $strip:ident;)*) => {$(
        multiversion! {
            fn $strip<F: MulAdd>(
                kernel: IntReduceKernel, axis: usize, inner: usize, src: &[$type], dst: &mut [$type],
            ) {
                if kernel == IntReduceKernel::Mean {
                    let count = axis.max(1) as $wide;
                    let between = if inner == 1 { axis } else { 1 };
                    for (index, y) in dst.iter_mut().enumerate() {
                        // A wrapped sum has no mean.
                        let sum: $wide = (0..axis).map(|a| $wide::from(src[index * between + a * inner])).sum();
                        *y = (sum / count) as $type;
                    }
                } else if inner == 1 {
                    for (index, y) in dst.iter_mut().enumerate() {
                        let row = &src[index * axis..][..axis];
                        *y = match kernel {
                            IntReduceKernel::Mean => continue,
                            IntReduceKernel::Sum => combine(row, 0, |a, b| a.wrapping_add(b)),
                            IntReduceKernel::Prod => combine(row, 1, |a, b| a.wrapping_mul(b)),
                            IntReduceKernel::Max => combine(row, $type::MIN, |a, b| a.max(b)),
                            IntReduceKernel::Min => combine(row, $type::MAX, |a, b| a.min(b)),
                            IntReduceKernel::L1 => row.iter().fold(0, |a, &b| a.wrapping_add(b.wrapping_abs())),
                            IntReduceKernel::SumSquare => {
                                row.iter().fold(0, |a, &b| a.wrapping_add(b.wrapping_mul(b)))
                            }
                        };
                    }
                } else {
                    match kernel {
                        IntReduceKernel::Mean => {}
                        IntReduceKernel::Sum => fold_strip(axis, inner, src, dst, 0, |a, b| a.wrapping_add(b)),
                        IntReduceKernel::Prod => fold_strip(axis, inner, src, dst, 1, |a, b| a.wrapping_mul(b)),
                        IntReduceKernel::Max => fold_strip(axis, inner, src, dst, $type::MIN, |a, b| a.max(b)),
                        IntReduceKernel::Min => fold_strip(axis, inner, src, dst, $type::MAX, |a, b| a.min(b)),
                        IntReduceKernel::L1 => {
                            fold_strip(axis, inner, src, dst, 0, |a, b| a.wrapping_add(b.wrapping_abs()));
                        }
                        IntReduceKernel::SumSquare => {
                            fold_strip(axis, inner, src, dst, 0, |a, b| a.wrapping_add(b.wrapping_mul(b)));
                        }
                    }
                }
            }
        }
    )*};
}

integer_reductions! {
    i32, i64, reduce_strip_i32;
    i64, i128, reduce_strip_i64;
}

fn reduce_truth(
    exec: &Exec,
    outer: usize,
    axis: usize,
    inner: usize,
    src: &[u8],
    dst: &mut [u8],
    start: u8,
    operation: impl Fn(u8, u8) -> u8 + Sync + Copy,
) {
    assert_eq!(src.len(), outer * axis * inner, "elements of the source");
    for_each_strip(exec, outer, axis, inner, dst, |first, dst| {
        if inner == 1 {
            for (index, y) in dst.iter_mut().enumerate() {
                *y = src[first + index * axis..][..axis].iter().copied().fold(start, operation);
            }
        } else {
            fold_strip(axis, inner, &src[first..], dst, start, operation);
        }
    });
}

/// The index of the element that `wins(x, best)` against the best before it.
fn arg_reduce<T: Copy + Sync>(
    exec: &Exec,
    outer: usize,
    axis: usize,
    inner: usize,
    src: &[T],
    dst: &mut [i64],
    wins: impl Fn(T, T) -> bool + Sync,
) {
    assert_eq!(src.len(), outer * axis * inner, "elements of the source");
    for_each_strip(exec, outer, axis, inner, dst, |first, dst| {
        dst.fill(0);
        if axis == 0 {
            return;
        }
        if inner == 1 {
            for (index, y) in dst.iter_mut().enumerate() {
                let row = &src[first + index * axis..][..axis];
                let best = (1..axis).fold(0, |best, a| if wins(row[a], row[best]) { a } else { best });
                *y = best as i64;
            }
            return;
        }
        let width = dst.len();
        let mut best = [src[first]; STRIP];
        best[..width].copy_from_slice(&src[first..][..width]);
        for a in 1..axis {
            let row = &src[first + a * inner..][..width];
            for ((y, best), &x) in dst.iter_mut().zip(&mut best).zip(row) {
                let is_better = wins(x, *best);
                *y = if is_better { a as i64 } else { *y };
                *best = if is_better { x } else { *best };
            }
        }
    });
}

fn cumulate<T: Copy + Send + Sync, A: Copy + Sync>(
    exec: &Exec,
    order: CumulateOrder,
    outer: usize,
    axis: usize,
    inner: usize,
    src: &[T],
    dst: &mut [T],
    start: A,
    next: impl Fn(A, T) -> A + Sync,
    finish: impl Fn(A) -> T + Sync,
) {
    assert_eq!(src.len(), outer * axis * inner, "elements of the source");
    assert_eq!(dst.len(), src.len(), "elements of the target");
    let block = axis * inner;
    if block == 0 {
        return;
    }
    let blocks_per_task = rows_per_task(outer, block, 2);
    exec.pool().chunks_mut(dst, blocks_per_task * block, |task, dst| {
        let src = &src[task * blocks_per_task * block..][..dst.len()];
        for (src, dst) in src.chunks_exact(block).zip(dst.chunks_exact_mut(block)) {
            for column in (0..inner).step_by(STRIP) {
                let width = STRIP.min(inner - column);
                let mut carried = [start; STRIP];
                for step in 0..axis {
                    let a = if order.is_reverse { axis - 1 - step } else { step };
                    let (x, y) = (&src[a * inner + column..][..width], &mut dst[a * inner + column..][..width]);
                    for ((y, &x), carried) in y.iter_mut().zip(x).zip(&mut carried) {
                        let included = next(*carried, x);
                        *y = finish(if order.is_exclusive { *carried } else { included });
                        *carried = included;
                    }
                }
            }
        }
    });
}

#[cfg(test)]
#[path = "reduce_tests.rs"]
mod tests;
