//! Maximum and average pooling over two dimensions of f32 planes (NCHW with batch and channels as one).
//!
//! An output row is built by going over the window once: each position of the window adds or compares a stretch of an
//! input row, without a test for the border inside the loop.

use std::ops::Range;

use crate::isa::Exec;
use crate::math;
use crate::plane_rows::PlaneRows;
use crate::row_sum::{CHAIN_MAX, sum_of};
use crate::simd::{multiversion, rows_per_task};

/// Sizes along one dimension.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolAxis {
    /// Input positions.
    pub input: usize,
    /// Output positions.
    pub output: usize,
    /// Positions of the window.
    pub kernel: usize,
    /// Input positions between two windows.
    pub stride: usize,
    /// Padding before the first position.
    pub pad_begin: usize,
    /// Padding after the last position; matters only to the count of `AveragePadded`.
    pub pad_end: usize,
    /// Input positions between two positions of the window.
    pub dilation: usize,
}

impl PoolAxis {
    /// The input position of `tap` in the window of `output`, from the start of the padding.
    fn padded(self, output: usize, tap: usize) -> usize {
        output * self.stride + tap * self.dilation
    }

    /// The input position, if it is not padding.
    fn position(self, output: usize, tap: usize) -> Option<usize> {
        self.padded(output, tap).checked_sub(self.pad_begin).filter(|&position| position < self.input)
    }

    /// The outputs for which `tap` is not in the padding.
    fn outputs(self, tap: usize) -> Range<usize> {
        let offset = tap * self.dilation;
        let first = self.pad_begin.saturating_sub(offset).div_ceil(self.stride);
        let end = (self.input + self.pad_begin).saturating_sub(offset).div_ceil(self.stride).min(self.output);
        first.min(end)..end
    }

    /// Whether the one window is the input itself.
    fn is_whole(self) -> bool {
        self.output == 1 && self.kernel == self.input && self.dilation == 1 && self.pad_begin == 0
    }

    /// How many positions of the window count for an average.
    fn count(self, output: usize, counts_padding: bool) -> usize {
        let end = self.input + self.pad_begin + self.pad_end;
        let counts = |tap: &usize| {
            if counts_padding { self.padded(output, *tap) < end } else { self.position(output, *tap).is_some() }
        };
        (0..self.kernel).filter(counts).count()
    }
}

/// The sizes of a pooling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolShape {
    /// Images, which decide how threads share the planes.
    pub batch: usize,
    /// Images times channels.
    pub planes: usize,
    /// Vertical sizes.
    pub height: PoolAxis,
    /// Horizontal sizes.
    pub width: PoolAxis,
}

/// What a pooling takes of its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKernel {
    /// The largest element; NaN if one is, -∞ of an empty window.
    Max,
    /// The mean of the elements inside the input.
    Average,
    /// The mean with padding counted as zeros.
    AveragePadded,
    /// √ Σ x².
    L2,
}

/// Pools `[planes, height.input, width.input]` to `[planes, height.output, width.output]`.
pub fn pool(exec: &Exec, kernel: PoolKernel, shape: &PoolShape, src: &[f32], dst: &mut [f32]) {
    let PoolShape { batch, planes, height, width } = *shape;
    assert_eq!(src.len(), planes * height.input * width.input, "elements of the source");
    assert_eq!(dst.len(), planes * height.output * width.output, "elements of the target");
    assert!(height.stride > 0 && width.stride > 0, "strides of a pooling are at least 1");
    if dst.is_empty() {
        return;
    }
    let rows = planes * height.output;
    let rows_in_task = rows_per_task(rows, width.output, height.kernel * width.kernel);
    let (area, row_len) = (height.output * width.output, width.output);
    let results = PlaneRows { batch, planes, height: height.output, area, row_len, rows_in_task };
    results.share(exec, dst, |first, dst| {
        for (row, dst) in (first..).zip(dst.chunks_exact_mut(width.output)) {
            let plane = &src[row / height.output * height.input * width.input..][..height.input * width.input];
            pool_row(exec.isa(), kernel, height, width, row % height.output, plane, dst);
        }
    });
}

multiversion! {
    fn pool_row<F: MulAdd>(
        kernel: PoolKernel,
        height: PoolAxis,
        width: PoolAxis,
        output: usize,
        plane: &[f32],
        dst: &mut [f32],
    ) {
        match kernel {
            PoolKernel::Max => max_window(height, width, output, plane, dst),
            PoolKernel::Average | PoolKernel::AveragePadded => {
                sum_window(height, width, output, plane, dst, |sum, x| sum + x);
            }
            PoolKernel::L2 => sum_window(height, width, output, plane, dst, |sum, x| F::mul_add(x, x, sum)),
        }
        match kernel {
            PoolKernel::Max => {}
            PoolKernel::L2 => dst.iter_mut().for_each(|y| *y = y.sqrt()),
            PoolKernel::Average | PoolKernel::AveragePadded => {
                let counts_padding = kernel == PoolKernel::AveragePadded;
                let rows = height.count(output, counts_padding);
                let inside = inner_outputs(width);
                let full = (rows * width.kernel) as f32;
                for (column, y) in dst.iter_mut().enumerate() {
                    let count = if inside.contains(&column) {
                        full
                    } else {
                        (rows * width.count(column, counts_padding)) as f32
                    };
                    *y /= count;
                }
            }
        }
    }
}

/// The outputs whose whole window is inside the input.
#[inline(always)]
fn inner_outputs(width: PoolAxis) -> Range<usize> {
    let (first, last) = (width.outputs(0), width.outputs(width.kernel.saturating_sub(1)));
    first.start.max(last.start)..first.end.min(last.end)
}

#[inline(always)]
fn fold_window(
    height: PoolAxis,
    width: PoolAxis,
    output: usize,
    plane: &[f32],
    dst: &mut [f32],
    start: f32,
    operation: impl Fn(f32, f32) -> f32 + Copy,
) {
    dst.fill(start);
    for row in (0..height.kernel).filter_map(|tap| height.position(output, tap)) {
        let source = &plane[row * width.input..][..width.input];
        for tap in 0..width.kernel {
            fold_stretch(width, tap, source, dst, operation);
        }
    }
}

/// The longest input row whose column maxima are kept on the stack.
const ROW_MAX: usize = 1024;

/// As `fold_window` for maxima, which may be taken in any order: down the columns first, then along them.
#[inline(always)]
fn max_window(height: PoolAxis, width: PoolAxis, output: usize, plane: &[f32], dst: &mut [f32]) {
    if width.input > ROW_MAX || height.kernel == 1 || width.kernel == 1 {
        return fold_window(height, width, output, plane, dst, f32::NEG_INFINITY, math::maximum);
    }
    match width.input {
        ..=64 => max_of_columns::<64>(height, width, output, plane, dst),
        65..=256 => max_of_columns::<256>(height, width, output, plane, dst),
        _ => max_of_columns::<ROW_MAX>(height, width, output, plane, dst),
    }
}

/// The maxima of columns and then along them, for rows of up to `LEN` elements: making a longer array costs more than the maxima.
#[inline(always)]
fn max_of_columns<const LEN: usize>(height: PoolAxis, width: PoolAxis, output: usize, plane: &[f32], dst: &mut [f32]) {
    let mut columns = [f32::NEG_INFINITY; LEN];
    let columns = &mut columns[..width.input];
    for row in (0..height.kernel).filter_map(|tap| height.position(output, tap)) {
        for (most, &x) in columns.iter_mut().zip(&plane[row * width.input..][..width.input]) {
            *most = math::maximum(*most, x);
        }
    }
    dst.fill(f32::NEG_INFINITY);
    for tap in 0..width.kernel {
        fold_stretch(width, tap, columns, dst, math::maximum);
    }
}

/// As `fold_window` for sums. A window of more than `CHAIN_MAX` elements would be one long chain, so those are summed
/// element by element in f64.
#[inline(always)]
fn sum_window(
    height: PoolAxis,
    width: PoolAxis,
    output: usize,
    plane: &[f32],
    dst: &mut [f32],
    operation: impl Fn(f32, f32) -> f32 + Copy,
) {
    if let [y] = dst
        && height.is_whole()
        && width.is_whole()
    {
        *y = sum_of(plane, |x| operation(0.0, x)) as f32;
        return;
    }
    if height.kernel * width.kernel <= CHAIN_MAX {
        return fold_window(height, width, output, plane, dst, 0.0, operation);
    }
    for (column, y) in dst.iter_mut().enumerate() {
        let mut sum = 0.0;
        for row in (0..height.kernel).filter_map(|tap| height.position(output, tap)) {
            for position in (0..width.kernel).filter_map(|tap| width.position(column, tap)) {
                sum += f64::from(operation(0.0, plane[row * width.input + position]));
            }
        }
        *y = sum as f32;
    }
}

/// Joins one position of the window with every output that it exists for.
#[inline(always)]
fn fold_stretch(width: PoolAxis, tap: usize, source: &[f32], dst: &mut [f32], operation: impl Fn(f32, f32) -> f32) {
    let outputs = width.outputs(tap);
    if outputs.is_empty() {
        return;
    }
    let first = outputs.start * width.stride + tap * width.dilation - width.pad_begin;
    let (source, dst) = (&source[first..], &mut dst[outputs]);
    match width.stride {
        1 => {
            for (y, &x) in dst.iter_mut().zip(source) {
                *y = operation(*y, x);
            }
        }
        2 => {
            // The last output may have one source element only, so pairs cover all but that.
            let (pairs, rest) = source.as_chunks::<2>();
            let (paired, last) = dst.split_at_mut(dst.len().min(pairs.len()));
            for (y, pair) in paired.iter_mut().zip(pairs) {
                *y = operation(*y, pair[0]);
            }
            for (y, &x) in last.iter_mut().zip(rest) {
                *y = operation(*y, x);
            }
        }
        stride => {
            for (y, &x) in dst.iter_mut().zip(source.iter().step_by(stride)) {
                *y = operation(*y, x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::{Lcg, assert_close, for_each_exec};

    fn naive(kernel: PoolKernel, shape: &PoolShape, src: &[f32]) -> Vec<f64> {
        let PoolShape { planes, height, width, .. } = *shape;
        let mut result = Vec::new();
        for plane in 0..planes {
            for oh in 0..height.output {
                for ow in 0..width.output {
                    let (mut max, mut sum, mut square, mut count, mut padded) = (f64::NEG_INFINITY, 0.0, 0.0, 0.0, 0.0);
                    for kh in 0..height.kernel {
                        for kw in 0..width.kernel {
                            let h = (oh * height.stride + kh * height.dilation) as isize - height.pad_begin as isize;
                            let w = (ow * width.stride + kw * width.dilation) as isize - width.pad_begin as isize;
                            if h >= (height.input + height.pad_end) as isize
                                || w >= (width.input + width.pad_end) as isize
                            {
                                continue;
                            }
                            padded += 1.0;
                            if h < 0 || w < 0 || h >= height.input as isize || w >= width.input as isize {
                                continue;
                            }
                            let at = (plane * height.input + h as usize) * width.input + w as usize;
                            let x = f64::from(src[at]);
                            max = if x.is_nan() || max.is_nan() { f64::NAN } else { max.max(x) };
                            sum += x;
                            square += x * x;
                            count += 1.0;
                        }
                    }
                    result.push(match kernel {
                        PoolKernel::Max => max,
                        PoolKernel::Average => sum / count,
                        PoolKernel::AveragePadded => sum / padded,
                        PoolKernel::L2 => f64::sqrt(square),
                    });
                }
            }
        }
        result
    }

    #[test]
    fn random_windows_match_plain_loops() {
        let mut lcg = Lcg::new(51);
        for round in 0..120 {
            let mut axis = || {
                let input = 1 + lcg.below(30);
                let kernel = 1 + lcg.below(if round % 20 == 0 { 20 } else { 5 });
                let dilation = 1 + lcg.below(2);
                let (pad_begin, pad_end) = (lcg.below(kernel), lcg.below(kernel));
                let stride = 1 + lcg.below(3);
                let span = (kernel - 1) * dilation;
                // One more than fits is what ceil mode may ask for.
                let output = (input + pad_begin + pad_end).saturating_sub(span + 1) / stride + 1 + lcg.below(2);
                PoolAxis { input, output, kernel, stride, pad_begin, pad_end, dilation }
            };
            let (height, width) = (axis(), axis());
            let shape = PoolShape { batch: 1, planes: lcg.below(4), height, width };
            let mut src = lcg.floats(shape.planes * height.input * width.input);
            if round % 5 == 0 && !src.is_empty() {
                let at = lcg.below(src.len());
                src[at] = f32::NAN;
            }
            for kernel in [PoolKernel::Max, PoolKernel::Average, PoolKernel::AveragePadded, PoolKernel::L2] {
                let expected = naive(kernel, &shape, &src);
                for_each_exec(|exec| {
                    let mut dst = vec![9.0; expected.len()];
                    pool(exec, kernel, &shape, &src, &mut dst);
                    assert_close(&dst, &expected, 1e-6, 2e-5, &format!("{kernel:?} {shape:?}"));
                });
            }
        }
    }
}
