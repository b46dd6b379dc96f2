//! f32 transposed convolution of NCHW images in two dimensions: every input pixel adds its weighted filter to the
//! output.
//!
//! For each image and group, the product Wᵀ·x gives what each tap contributes at each input pixel; then each output
//! channel collects its contributions.

use crate::arithmetic::Arithmetic;
use crate::conv::ConvShape;
use crate::epilogue::{Bias, Epilogue};
use crate::gemm_drive::{Completion, DriveShape, Item, SourceB, drive, drive_scratch_len};
use crate::gemm_pack::{MatrixA, MatrixB};
use crate::isa::{Exec, Isa};

/// The product of one image and group: a row for each output channel and tap, a column for each input pixel.
fn product_shape(shape: &ConvShape) -> DriveShape {
    let m = shape.out_channels / shape.groups * shape.taps();
    let (n, k) = (shape.in_area(), shape.channels_per_group());
    DriveShape { items: 1, m, n, k, c_stride: n, arithmetic: Arithmetic::F32 }
}

fn contributions_len(shape: &ConvShape) -> usize {
    (shape.out_channels / shape.groups * shape.taps() * shape.in_area()).next_multiple_of(16)
}

/// Elements of scratch that `conv_transpose` needs with a pool of this many threads.
pub fn conv_transpose_scratch_len(isa: Isa, threads: usize, shape: &ConvShape) -> usize {
    contributions_len(shape) + drive_scratch_len(isa, threads, &product_shape(shape), true, true)
}

/// y = bias + the transposed convolution of x with weights [in, out / groups, height, width]. Panics when a slice is
/// too short.
pub fn conv_transpose(
    exec: Exec,
    shape: &ConvShape,
    x: &[f32],
    weights: &[f32],
    bias: Option<&[f32]>,
    scratch: &mut [f32],
    y: &mut [f32],
) {
    assert!(shape.groups > 0 && shape.stride[0] > 0 && shape.stride[1] > 0, "{shape:?}");
    let drive_shape = product_shape(shape);
    let DriveShape { m, n, k, .. } = drive_shape;
    let (out_area, per_group) = (shape.out_area(), shape.out_channels / shape.groups);
    assert!(y.len() >= shape.batch * shape.out_channels * out_area, "y of {} for {shape:?}", y.len());
    if per_group * out_area == 0 {
        return;
    }
    let (contributions, scratch) = scratch.split_at_mut(contributions_len(shape));
    let plain = Completion { scale: 1.0, epilogue: &Epilogue::default() };
    for index in 0..shape.batch * shape.groups {
        let group = index % shape.groups;
        let item = |_| Item {
            a: MatrixA::Columns { data: &weights[group * k * m..(group + 1) * k * m], stride: m },
            b: SourceB::Matrix(MatrixB::Rows { data: &x[index * k * n..(index + 1) * k * n], stride: n }),
            c_start: 0,
            bias: Bias::None,
        };
        drive(exec, &drive_shape, &item, true, true, &plain, contributions, scratch);
        let y = &mut y[index * per_group * out_area..(index + 1) * per_group * out_area];
        let contributions = &*contributions;
        exec.pool().chunks_mut(y, out_area, |channel, target| {
            target.fill(bias.map_or(0.0, |bias| bias[group * per_group + channel]));
            let channel_len = shape.taps() * n;
            collect(shape, &contributions[channel * channel_len..(channel + 1) * channel_len], target);
        });
    }
}

/// Adds the contributions of every tap and input pixel to one output channel.
fn collect(shape: &ConvShape, contributions: &[f32], target: &mut [f32]) {
    for tap in 0..shape.taps() {
        let (tap_row, tap_column) = (tap / shape.filter_width, tap % shape.filter_width);
        let offset = tap_column * shape.dilation[1];
        let columns = inside(shape.in_width, shape.stride[1], offset, shape.pad_left, shape.out_width);
        if columns.is_empty() {
            continue;
        }
        for row in 0..shape.in_height {
            let y = (row * shape.stride[0] + tap_row * shape.dilation[0]).checked_sub(shape.pad_top);
            let Some(y) = y.filter(|y| *y < shape.out_height) else {
                continue;
            };
            let source = &contributions[(tap * shape.in_height + row) * shape.in_width..][columns.clone()];
            let first = columns.start * shape.stride[1] + offset - shape.pad_left;
            let target = &mut target[y * shape.out_width + first..(y + 1) * shape.out_width];
            if shape.stride[1] == 1 {
                for (target, source) in target.iter_mut().zip(source) {
                    *target += *source;
                }
            } else {
                for (target, source) in target.iter_mut().step_by(shape.stride[1]).zip(source) {
                    *target += *source;
                }
            }
        }
    }
}

/// The input columns whose output column, `column * stride + offset - pad`, is inside the output.
fn inside(in_width: usize, stride: usize, offset: usize, pad: usize, out_width: usize) -> std::ops::Range<usize> {
    let start = pad.saturating_sub(offset).div_ceil(stride);
    let end = (pad + out_width).saturating_sub(offset).div_ceil(stride).min(in_width);
    start..end.max(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::ThreadPool;
    use crate::test_data::Lcg;

    /// (sum, sum of squares) of the terms of each output.
    fn reference(shape: &ConvShape, x: &[f32], weights: &[f32], bias: &[f32]) -> Vec<(f64, f64)> {
        let (in_group, out_group) = (shape.in_channels / shape.groups, shape.out_channels / shape.groups);
        let mut sums: Vec<(f64, f64)> = (0..shape.batch * shape.out_channels * shape.out_area())
            .map(|index| f64::from(bias[index / shape.out_area() % shape.out_channels]))
            .map(|bias| (bias, bias * bias))
            .collect();
        for image in 0..shape.batch {
            for channel in 0..shape.in_channels {
                for pixel in 0..shape.in_area() {
                    let value = x[(image * shape.in_channels + channel) * shape.in_area() + pixel];
                    for index in 0..out_group * shape.taps() {
                        let (out, tap) = (index / shape.taps(), index % shape.taps());
                        let y = pixel / shape.in_width * shape.stride[0] + tap / shape.filter_width * shape.dilation[0];
                        let x = pixel % shape.in_width * shape.stride[1] + tap % shape.filter_width * shape.dilation[1];
                        let (Some(y), Some(x)) = (y.checked_sub(shape.pad_top), x.checked_sub(shape.pad_left)) else {
                            continue;
                        };
                        if y >= shape.out_height || x >= shape.out_width {
                            continue;
                        }
                        let plane = image * shape.out_channels + channel / in_group * out_group + out;
                        let weight = weights[channel * out_group * shape.taps() + index];
                        let term = f64::from(value) * f64::from(weight);
                        let sum = &mut sums[(plane * shape.out_height + y) * shape.out_width + x];
                        *sum = (sum.0 + term, sum.1 + term * term);
                    }
                }
            }
        }
        sums
    }

    #[test]
    fn transposed_convolutions_match_plain_loops() {
        let plain = ConvShape {
            batch: 1,
            in_channels: 3,
            in_height: 5,
            in_width: 6,
            out_channels: 4,
            out_height: 7,
            out_width: 8,
            filter_height: 3,
            filter_width: 3,
            stride: [1, 1],
            pad_top: 0,
            pad_left: 0,
            dilation: [1, 1],
            groups: 1,
        };
        let two = ConvShape { stride: [2, 2], out_height: 11, out_width: 13, ..plain };
        let shapes = [
            plain,
            two,
            ConvShape { batch: 2, pad_top: 1, pad_left: 1, out_height: 10, out_width: 12, ..two },
            ConvShape { in_channels: 4, groups: 2, filter_width: 2, out_width: 12, ..two },
            ConvShape { dilation: [2, 3], out_height: 9, out_width: 12, ..plain },
            ConvShape { stride: [3, 4], pad_left: 2, out_height: 20, out_width: 30, ..plain },
            ConvShape { pad_top: 9, pad_left: 9, out_height: 2, out_width: 2, ..plain },
            ConvShape { batch: 0, ..plain },
            ConvShape { in_channels: 0, ..plain },
            ConvShape { in_height: 0, ..plain },
            ConvShape { out_height: 0, ..plain },
        ];
        for shape in shapes {
            let mut lcg = Lcg::new(shape.out_width as u64);
            let x = lcg.floats(shape.batch * shape.in_channels * shape.in_area());
            let weights = lcg.floats(shape.in_channels * shape.out_channels / shape.groups * shape.taps());
            let bias = lcg.floats(shape.out_channels);
            let expected = reference(&shape, &x, &weights, &bias);
            let terms = (shape.in_channels / shape.groups * shape.taps() + 1) as f64;
            let u = 1.0 / 16_777_216.0;
            crate::test_data::for_each_exec(|exec| {
                let mut scratch = vec![f32::NAN; conv_transpose_scratch_len(exec.isa(), exec.threads(), &shape)];
                let mut y = vec![f32::NAN; expected.len()];
                conv_transpose(*exec, &shape, &x, &weights, Some(&bias), &mut scratch, &mut y);
                for (actual, (sum, squares)) in y.iter().zip(&expected) {
                    let tolerance = 2.0 * u * sum.abs() + 4.0 * u * terms.sqrt() * squares.sqrt().max(sum.abs());
                    assert!((f64::from(*actual) - sum).abs() <= tolerance, "{:?} {shape:?}", exec.isa());
                }
            });
        }
    }

    #[test]
    fn a_missing_bias_is_zero() {
        let shape = ConvShape {
            batch: 1,
            in_channels: 1,
            in_height: 1,
            in_width: 2,
            out_channels: 1,
            out_height: 1,
            out_width: 4,
            filter_height: 1,
            filter_width: 2,
            stride: [1, 2],
            pad_top: 0,
            pad_left: 0,
            dilation: [1, 1],
            groups: 1,
        };
        let pool = ThreadPool::new(1);
        let exec = Exec::new(Isa::Portable, &pool).unwrap();
        let mut scratch = vec![0.0; conv_transpose_scratch_len(Isa::Portable, 1, &shape)];
        let mut y = [0.0; 4];
        conv_transpose(exec, &shape, &[1.0, 2.0], &[3.0, 5.0], None, &mut scratch, &mut y);
        assert_eq!(y, [3.0, 5.0, 6.0, 10.0]);
    }
}
