//! Layer, RMS, group and instance normalisation and local response normalisation, in f32.
//!
//! The mean and then the mean square of the differences are taken in two passes over a row that is in cache: the
//! one-pass formula cancels when the mean is large.

use crate::isa::Exec;
use crate::math;
use crate::pool::SharedMut;
use crate::row_sum::{narrow_sum, sum_of, wide_sum};
use crate::simd::{MulAdd, multiversion, rows_per_task};

/// Cost of an element relative to an addition.
const WEIGHT: usize = 3;

/// Where `layer_norm` leaves what it found, one value a row.
pub struct NormStatistics<'a> {
    /// The means.
    pub mean: &'a mut [f32],
    /// `1 / sqrt(variance + epsilon)`.
    pub inverse_deviation: &'a mut [f32],
}

/// `(x - mean) / sqrt(variance + epsilon) · scale + bias` over each row of `[rows, cols]`.
pub fn layer_norm(
    exec: &Exec,
    rows: usize,
    cols: usize,
    src: &[f32],
    scale: Option<&[f32]>,
    bias: Option<&[f32]>,
    epsilon: f32,
    dst: &mut [f32],
    statistics: Option<NormStatistics>,
) {
    check_rows(rows, cols, src, dst);
    check_columns(cols, scale, bias);
    let (mean, inverse_deviation) = match statistics {
        Some(statistics) => (statistics.mean, statistics.inverse_deviation),
        None => (&mut [][..], &mut [][..]),
    };
    let has_statistics = !mean.is_empty();
    assert!(!has_statistics || (mean.len() == rows && inverse_deviation.len() == rows), "length of the statistics");
    let (mean, inverse_deviation) = (SharedMut::new(mean), SharedMut::new(inverse_deviation));
    for_each_row(exec, rows, cols, src, dst, |row, x, y| {
        let found = layer_norm_row(exec.isa(), x, scale, bias, epsilon, y);
        if has_statistics {
            // SAFETY: each row is done once, and this is its element.
            let mean = unsafe { mean.slice(row, 1) };
            // SAFETY: as above.
            let inverse_deviation = unsafe { inverse_deviation.slice(row, 1) };
            (mean[0], inverse_deviation[0]) = found;
        }
    });
}

/// `x / sqrt(mean(x²) + epsilon) · scale` over each row of `[rows, cols]`.
pub fn rms_norm(
    exec: &Exec,
    rows: usize,
    cols: usize,
    src: &[f32],
    scale: Option<&[f32]>,
    epsilon: f32,
    dst: &mut [f32],
) {
    check_rows(rows, cols, src, dst);
    check_columns(cols, scale, None);
    for_each_row(exec, rows, cols, src, dst, |_, x, y| rms_norm_row(exec.isa(), x, scale, epsilon, y));
}

/// `[batch, groups · channels_per_group, elements]`. Instance normalisation has one channel a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNormShape {
    /// Images.
    pub batch: usize,
    /// Groups of channels that are normalised together.
    pub groups: usize,
    /// Channels of a group.
    pub channels_per_group: usize,
    /// Elements of a channel.
    pub elements: usize,
}

/// Normalises each group and then scales and shifts each channel.
pub fn group_norm(
    exec: &Exec,
    shape: GroupNormShape,
    src: &[f32],
    scale: Option<&[f32]>,
    bias: Option<&[f32]>,
    epsilon: f32,
    dst: &mut [f32],
) {
    let GroupNormShape { batch, groups, channels_per_group, elements } = shape;
    let (rows, cols) = (batch * groups, channels_per_group * elements);
    check_rows(rows, cols, src, dst);
    check_columns(groups * channels_per_group, scale, bias);
    for_each_row(exec, rows, cols, src, dst, |row, x, y| {
        let first = row % groups * channels_per_group;
        let of_group = |values: Option<&[f32]>, c: usize| values.map(|values| values[first + c]);
        let (mean, inverse) = moments(exec.isa(), x, epsilon);
        for c in 0..channels_per_group {
            let (x, y) = (&x[c * elements..][..elements], &mut y[c * elements..][..elements]);
            let scale = of_group(scale, c).unwrap_or(1.0);
            let bias = of_group(bias, c).unwrap_or(0.0);
            normalise(exec.isa(), x, mean, inverse * scale, bias, y);
        }
    });
}

/// `x / (bias + alpha / size · Σ x²)^beta`, the sum over `size` neighbouring channels of `[batch, channels, inner]`.
pub fn lrn(
    exec: &Exec,
    batch: usize,
    channels: usize,
    inner: usize,
    size: usize,
    alpha: f32,
    beta: f32,
    bias: f32,
    src: &[f32],
    dst: &mut [f32],
) {
    check_rows(batch * channels, inner, src, dst);
    for_each_row(exec, batch * channels, inner, src, dst, |row, x, y| {
        let channel = row % channels;
        let before = channel.min(size.saturating_sub(1) / 2);
        let after = (channels - 1 - channel).min(size / 2);
        let window = &src[(row - before) * inner..][..(before + 1 + after) * inner];
        lrn_row(exec.isa(), window, alpha / size as f32, beta, bias, x, y);
    });
}

fn check_rows(rows: usize, cols: usize, src: &[f32], dst: &[f32]) {
    assert_eq!(src.len(), rows * cols, "elements of the source");
    assert_eq!(dst.len(), rows * cols, "elements of the target");
}

fn check_columns(cols: usize, scale: Option<&[f32]>, bias: Option<&[f32]>) {
    assert!(scale.is_none_or(|scale| scale.len() == cols), "length of the scale, expected {cols}");
    assert!(bias.is_none_or(|bias| bias.len() == cols), "length of the bias, expected {cols}");
}

/// Calls `body(row, source, target)` for each row, several on a task.
fn for_each_row(
    exec: &Exec,
    rows: usize,
    cols: usize,
    src: &[f32],
    dst: &mut [f32],
    body: impl Fn(usize, &[f32], &mut [f32]) + Sync,
) {
    if cols == 0 {
        return;
    }
    let rows_in_task = rows_per_task(rows, cols, WEIGHT);
    exec.pool().chunks_mut(dst, rows_in_task * cols, |task, dst| {
        for (index, y) in dst.chunks_exact_mut(cols).enumerate() {
            let row = task * rows_in_task + index;
            body(row, &src[row * cols..][..cols], y);
        }
    });
}

/// `1 / sqrt(mean((x - centre)²) + epsilon)` of a row. Every step is rounded to f32, for the reason `row_sum.rs` gives.
#[inline(always)]
fn inverse_deviation<F: MulAdd>(row: &[f32], centre: f32, epsilon: f32) -> f32 {
    let square_sum = narrow_sum(row, |sum, x| F::mul_add(x - centre, x - centre, sum)) as f32;
    let mean_square = square_sum / row.len() as f32;
    1.0 / (mean_square + epsilon).sqrt()
}

multiversion! {
    /// The mean and the inverse deviation of a group, which may be a whole image: sums in many accumulators.
    fn moments<F: MulAdd>(group: &[f32], epsilon: f32) -> (f32, f32) {
        let count = group.len() as f64;
        let mean = (sum_of(group, |x| x) / count) as f32;
        let variance = sum_of(group, |x| (x - mean) * (x - mean)) / count;
        (mean, (1.0 / (variance + f64::from(epsilon)).sqrt()) as f32)
    }

    fn normalise<F: MulAdd>(x: &[f32], mean: f32, scale: f32, bias: f32, y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = F::mul_add(x - mean, scale, bias);
        }
    }

    fn layer_norm_row<F: MulAdd>(
        x: &[f32],
        scale: Option<&[f32]>,
        bias: Option<&[f32]>,
        epsilon: f32,
        y: &mut [f32],
    ) -> (f32, f32) {
        let mean = (wide_sum(x) / x.len() as f64) as f32;
        let inverse = inverse_deviation::<F>(x, mean, epsilon);
        match (scale, bias) {
            (Some(scale), Some(bias)) => {
                for (((y, &x), &scale), &bias) in y.iter_mut().zip(x).zip(scale).zip(bias) {
                    *y = F::mul_add((x - mean) * inverse, scale, bias);
                }
            }
            (Some(scale), None) => {
                for ((y, &x), &scale) in y.iter_mut().zip(x).zip(scale) {
                    *y = (x - mean) * inverse * scale;
                }
            }
            (None, Some(bias)) => {
                for ((y, &x), &bias) in y.iter_mut().zip(x).zip(bias) {
                    *y = F::mul_add(x - mean, inverse, bias);
                }
            }
            (None, None) => {
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = (x - mean) * inverse;
                }
            }
        }
        (mean, inverse)
    }

    fn rms_norm_row<F: MulAdd>(x: &[f32], scale: Option<&[f32]>, epsilon: f32, y: &mut [f32]) {
        let inverse = inverse_deviation::<F>(x, 0.0, epsilon);
        match scale {
            Some(scale) => {
                for ((y, &x), &scale) in y.iter_mut().zip(x).zip(scale) {
                    *y = x * inverse * scale;
                }
            }
            None => {
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = x * inverse;
                }
            }
        }
    }

    fn lrn_row<F: MulAdd>(window: &[f32], alpha: f32, beta: f32, bias: f32, x: &[f32], y: &mut [f32]) {
        y.fill(0.0);
        for channel in window.chunks_exact(x.len()) {
            for (y, &x) in y.iter_mut().zip(channel) {
                *y = F::mul_add(x, x, *y);
            }
        }
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x * math::exp::<F>(-beta * math::log::<F>(F::mul_add(alpha, *y, bias)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::{Lcg, assert_close, for_each_exec};

    fn moments64(row: &[f32], epsilon: f64) -> (f64, f64) {
        let count = row.len() as f64;
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
        let variance = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
        (mean, 1.0 / (variance + epsilon).sqrt())
    }

    #[test]
    fn layer_norm_matches_f64() {
        let mut lcg = Lcg::new(1);
        for (rows, cols) in [(1, 1), (3, 5), (7, 768), (2, 20_011), (0, 4), (4, 0), (130, 256)] {
            let src: Vec<f32> = lcg.floats(rows * cols).iter().map(|x| x + 100.0).collect();
            let (scale, bias) = (lcg.floats(cols), lcg.floats(cols));
            let (mut expected, mut plain, mut means, mut inverses) = (vec![], vec![], vec![], vec![]);
            for row in src.chunks_exact(cols.max(1)) {
                let (mean, inverse) = moments64(row, 1e-5);
                means.push(mean);
                inverses.push(inverse);
                for c in 0..cols {
                    plain.push((f64::from(row[c]) - mean) * inverse);
                    expected.push((f64::from(row[c]) - mean) * inverse * f64::from(scale[c]) + f64::from(bias[c]));
                }
            }
            for_each_exec(|exec| {
                let mut dst = vec![0.0; src.len()];
                let (mut mean, mut inverse) = (vec![0.0; means.len()], vec![0.0; means.len()]);
                let statistics =
                    (cols > 0).then_some(NormStatistics { mean: &mut mean, inverse_deviation: &mut inverse });
                layer_norm(exec, rows, cols, &src, Some(&scale), Some(&bias), 1e-5, &mut dst, statistics);
                assert_close(&dst, &expected, 1e-5, 5e-5, "layer_norm");
                assert_close(&mean, &means, 1e-6, 0.0, "mean");
                assert_close(&inverse, &inverses, 1e-5, 0.0, "inverse deviation");
                layer_norm(exec, rows, cols, &src, None, None, 1e-5, &mut dst, None);
                assert_close(&dst, &plain, 1e-5, 5e-5, "layer_norm without scale");
            });
        }
    }

    #[test]
    fn rms_norm_matches_f64() {
        let mut lcg = Lcg::new(4);
        for (rows, cols) in [(3, 5), (7, 1025)] {
            let (src, scale) = (lcg.floats(rows * cols), lcg.floats(cols));
            let mut expected = Vec::new();
            for row in src.chunks_exact(cols) {
                let square = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / cols as f64;
                expected.extend((0..cols).map(|c| f64::from(row[c]) / (square + 1e-6).sqrt() * f64::from(scale[c])));
            }
            for_each_exec(|exec| {
                let mut dst = vec![0.0; src.len()];
                rms_norm(exec, rows, cols, &src, Some(&scale), 1e-6, &mut dst);
                assert_close(&dst, &expected, 2e-6, 0.0, "rms_norm");
            });
        }
    }

    #[test]
    fn group_norm_matches_f64() {
        let mut lcg = Lcg::new(8);
        for (batch, groups, channels_per_group, elements) in [(2, 3, 4, 49), (1, 8, 1, 100), (2, 2, 2, 0)] {
            let shape = GroupNormShape { batch, groups, channels_per_group, elements };
            let channels = groups * channels_per_group;
            let src = lcg.floats(batch * channels * elements);
            let (scale, bias) = (lcg.floats(channels), lcg.floats(channels));
            let mut expected = Vec::new();
            for (row, values) in src.chunks_exact((channels_per_group * elements).max(1)).enumerate() {
                let (mean, inverse) = moments64(values, 1e-5);
                for (index, &x) in values.iter().enumerate() {
                    let c = row % groups * channels_per_group + index / elements;
                    expected.push((f64::from(x) - mean) * inverse * f64::from(scale[c]) + f64::from(bias[c]));
                }
            }
            for_each_exec(|exec| {
                let mut dst = vec![0.0; src.len()];
                group_norm(exec, shape, &src, Some(&scale), Some(&bias), 1e-5, &mut dst);
                assert_close(&dst, &expected, 1e-5, 1e-5, "group_norm");
            });
        }
    }

    #[test]
    fn lrn_matches_f64() {
        let mut lcg = Lcg::new(9);
        let (batch, channels, inner) = (2, 7, 33);
        let src = lcg.floats(batch * channels * inner);
        for size in [1, 3, 4, 20] {
            let mut expected = Vec::new();
            for index in 0..src.len() {
                let (n, c, i) = (index / inner / channels, index / inner % channels, index % inner);
                let low = c.saturating_sub((size - 1) / 2);
                let high = (c + size / 2).min(channels - 1);
                let square: f64 = (low..=high).map(|c| f64::from(src[(n * channels + c) * inner + i]).powi(2)).sum();
                expected.push(f64::from(src[index]) / (2.0 + 0.5 / size as f64 * square).powf(0.75));
            }
            for_each_exec(|exec| {
                let mut dst = vec![0.0; src.len()];
                lrn(exec, batch, channels, inner, size, 0.5, 0.75, 2.0, &src, &mut dst);
                assert_close(&dst, &expected, 2e-6, 0.0, "lrn");
            });
        }
    }
}
