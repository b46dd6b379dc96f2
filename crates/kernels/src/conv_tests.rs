//! Tests of convolution against plain f64 loops, for every instruction set and several thread counts.

use super::*;
use crate::epilogue::Activation;
use crate::pool::ThreadPool;
use crate::test_data::Lcg;

const U: f64 = 1.0 / 16_777_216.0;

/// (value, tolerance) of each output by specs/compiler.md §10.
fn reference(shape: &ConvShape, x: &[f32], weights: &[f32], bias: &[f32]) -> Vec<(f64, f64)> {
    let channels = shape.channels_per_group();
    let per_group = shape.out_channels / shape.groups;
    let mut expected = Vec::new();
    for image in 0..shape.batch {
        for out_channel in 0..shape.out_channels {
            let group = out_channel / per_group;
            for pixel in 0..shape.out_area() {
                let (oy, ox) = (pixel / shape.out_width, pixel % shape.out_width);
                let (mut sum, mut squares) = (f64::from(bias[out_channel]), f64::from(bias[out_channel]).powi(2));
                for channel in 0..channels {
                    for tap in 0..shape.taps() {
                        let y = oy * shape.stride[0] + tap / shape.filter_width * shape.dilation[0];
                        let x_at = ox * shape.stride[1] + tap % shape.filter_width * shape.dilation[1];
                        let (Some(y), Some(x_at)) = (y.checked_sub(shape.pad_top), x_at.checked_sub(shape.pad_left))
                        else {
                            continue;
                        };
                        if y >= shape.in_height || x_at >= shape.in_width {
                            continue;
                        }
                        let plane = image * shape.in_channels + group * channels + channel;
                        let value = x[(plane * shape.in_height + y) * shape.in_width + x_at];
                        let weight = weights[(out_channel * channels + channel) * shape.taps() + tap];
                        let term = f64::from(value) * f64::from(weight);
                        (sum, squares) = (sum + term, squares + term * term);
                    }
                }
                let terms = (channels * shape.taps() + 1) as f64;
                let s = squares.sqrt().max(sum.abs());
                expected.push((sum, 2.0 * U * sum.abs() + 4.0 * U * terms.sqrt() * s));
            }
        }
    }
    expected
}

fn convolve(exec: Exec, shape: &ConvShape, x: &[f32], weights: &[f32], epilogue: &Epilogue) -> Vec<f32> {
    let filter = pack_filter(exec.isa(), shape, weights);
    let mut scratch = vec![f32::NAN; conv_scratch_len(exec.isa(), exec.threads(), shape)];
    let mut y = vec![f32::NAN; shape.batch * shape.out_channels * shape.out_area()];
    conv(exec, shape, x, &filter, epilogue, &mut scratch, &mut y);
    y
}

/// A shape with symmetric padding; the output sizes follow.
fn shape_of(
    batch: usize,
    [in_channels, out_channels, groups]: [usize; 3],
    [in_height, in_width]: [usize; 2],
    [filter_height, filter_width]: [usize; 2],
    stride: [usize; 2],
    [pad_top, pad_left]: [usize; 2],
    dilation: [usize; 2],
) -> ConvShape {
    let out = |size: usize, filter: usize, pad: usize, axis: usize| {
        (size + 2 * pad).checked_sub((filter - 1) * dilation[axis] + 1).map_or(0, |rest| rest / stride[axis] + 1)
    };
    ConvShape {
        batch,
        in_channels,
        in_height,
        in_width,
        out_channels,
        out_height: out(in_height, filter_height, pad_top, 0),
        out_width: out(in_width, filter_width, pad_left, 1),
        filter_height,
        filter_width,
        stride,
        pad_top,
        pad_left,
        dilation,
        groups,
    }
}

fn shapes() -> Vec<ConvShape> {
    vec![
        shape_of(1, [3, 16, 1], [9, 11], [3, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(2, [8, 29, 1], [7, 7], [3, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(2, [5, 7, 1], [14, 14], [1, 1], [1, 1], [0, 0], [1, 1]),
        shape_of(1, [5, 40, 1], [14, 14], [1, 1], [2, 2], [0, 0], [1, 1]),
        shape_of(1, [3, 20, 1], [37, 41], [7, 7], [2, 2], [3, 3], [1, 1]),
        shape_of(1, [4, 6, 2], [10, 10], [3, 3], [2, 1], [1, 1], [1, 1]),
        shape_of(2, [12, 8, 4], [8, 9], [5, 3], [1, 2], [2, 1], [1, 1]),
        shape_of(1, [40, 17, 1], [12, 13], [3, 3], [1, 1], [2, 2], [2, 2]),
        shape_of(1, [3, 5, 1], [20, 20], [4, 4], [4, 4], [0, 0], [1, 1]),
        shape_of(1, [6, 9, 1], [1, 50], [1, 5], [1, 3], [0, 2], [1, 2]),
        shape_of(3, [300, 33, 1], [3, 1], [3, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(1, [2, 3, 1], [2, 2], [3, 3], [1, 1], [4, 4], [1, 1]),
        shape_of(1, [70, 64, 1], [28, 28], [3, 3], [1, 1], [1, 1], [1, 1]),
        // Depthwise.
        shape_of(2, [8, 8, 8], [14, 14], [3, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(1, [5, 5, 5], [7, 7], [3, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(1, [4, 8, 4], [17, 15], [3, 3], [2, 2], [1, 1], [1, 1]),
        shape_of(1, [3, 3, 3], [70, 66], [5, 5], [2, 2], [2, 2], [1, 1]),
        shape_of(1, [3, 3, 3], [60, 61], [5, 5], [1, 1], [2, 2], [1, 1]),
        shape_of(2, [3, 3, 3], [20, 21], [3, 4], [3, 2], [2, 3], [2, 3]),
        shape_of(1, [2, 2, 2], [3, 3], [3, 3], [1, 1], [3, 3], [2, 2]),
        shape_of(1, [6, 6, 6], [1, 40], [1, 4], [1, 1], [0, 3], [1, 1]),
        // Empty.
        shape_of(1, [3, 4, 1], [0, 3], [3, 3], [1, 1], [2, 2], [1, 1]),
        shape_of(1, [3, 3, 3], [3, 0], [3, 3], [1, 1], [2, 2], [1, 1]),
        shape_of(1, [0, 4, 1], [3, 3], [3, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(0, [3, 4, 1], [5, 5], [3, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(1, [3, 4, 1], [2, 2], [3, 3], [1, 1], [0, 0], [1, 1]),
        shape_of(0, [4, 4, 4], [5, 5], [3, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(1, [4, 0, 4], [5, 5], [3, 3], [1, 1], [1, 1], [1, 1]),
    ]
}

#[test]
fn convolutions_match_plain_loops() {
    for shape in shapes() {
        let mut lcg = Lcg::new((shape.in_width * 7 + shape.out_channels) as u64);
        let x = lcg.floats(shape.batch * shape.in_channels * shape.in_area());
        let weights = lcg.floats(shape.out_channels * shape.channels_per_group() * shape.taps());
        let bias = lcg.floats(shape.out_channels);
        let expected = reference(&shape, &x, &weights, &bias);
        let epilogue = Epilogue { bias: Bias::Rows(&bias), ..Epilogue::default() };
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
            let mut first: Option<Vec<f32>> = None;
            for threads in [1, 2, 3] {
                let pool = ThreadPool::new(threads);
                let y = convolve(Exec::new(isa, &pool).unwrap(), &shape, &x, &weights, &epilogue);
                for (index, (actual, (value, tolerance))) in y.iter().zip(&expected).enumerate() {
                    let error = (f64::from(*actual) - value).abs();
                    assert!(error <= *tolerance, "{isa:?} {shape:?} at {index}: {actual}, expected {value}");
                }
                assert_eq!(*first.get_or_insert_with(|| y.clone()), y, "{isa:?} {shape:?} on {threads} threads");
            }
        }
    }
}

#[test]
fn outputs_may_reach_beyond_the_padding() {
    // Bottom and right padding follow from the output size, however large.
    for channels in [[2, 3, 1], [2, 2, 2]] {
        let mut shape = shape_of(1, channels, [4, 5], [3, 3], [1, 1], [1, 1], [1, 1]);
        (shape.out_height, shape.out_width) = (7, 9);
        let mut lcg = Lcg::new(5);
        let x = lcg.floats(shape.in_channels * shape.in_area());
        let weights = lcg.floats(shape.out_channels * shape.channels_per_group() * shape.taps());
        let expected = reference(&shape, &x, &weights, &[0.0; 3]);
        let pool = ThreadPool::new(2);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
            let y = convolve(Exec::new(isa, &pool).unwrap(), &shape, &x, &weights, &Epilogue::default());
            for (actual, (value, tolerance)) in y.iter().zip(&expected) {
                assert!((f64::from(*actual) - value).abs() <= *tolerance, "{isa:?} {shape:?}");
            }
        }
    }
}

#[test]
fn epilogues_apply_to_both_kinds() {
    for shape in [
        shape_of(2, [6, 10, 2], [9, 9], [3, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(2, [6, 6, 6], [9, 9], [3, 3], [1, 1], [1, 1], [1, 1]),
    ] {
        let mut lcg = Lcg::new(17);
        let x = lcg.floats(shape.batch * shape.in_channels * shape.in_area());
        let weights = lcg.floats(shape.out_channels * shape.channels_per_group() * shape.taps());
        let bias = lcg.floats(shape.out_channels);
        let residual = lcg.floats(shape.batch * shape.out_channels * shape.out_area());
        let pool = ThreadPool::new(2);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
            let exec = Exec::new(isa, &pool).unwrap();
            let epilogue = Epilogue { bias: Bias::Rows(&bias), ..Epilogue::default() };
            let plain = convolve(exec, &shape, &x, &weights, &epilogue);
            for activation in [Activation::Relu, Activation::Clamp { lo: 0.0, hi: 6.0 }, Activation::Sigmoid] {
                let epilogue = Epilogue { bias: Bias::Rows(&bias), residual: Some(&residual), activation };
                let actual = convolve(exec, &shape, &x, &weights, &epilogue);
                for ((actual, plain), residual) in actual.iter().zip(&plain).zip(&residual) {
                    let sum = f64::from(plain + residual);
                    let expected = match activation {
                        Activation::Relu => sum.max(0.0),
                        Activation::Sigmoid => 1.0 / (1.0 + (-sum).exp()),
                        _ => sum.clamp(0.0, 6.0),
                    };
                    let error = (f64::from(*actual) - expected).abs();
                    assert!(error <= 1e-5 * expected.abs().max(1.0), "{isa:?} {activation:?}");
                }
            }
        }
    }
}
