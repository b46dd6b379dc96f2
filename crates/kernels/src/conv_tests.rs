//! Tests of convolution against plain f64 loops, for every instruction set and several thread counts.

use super::*;
use crate::epilogue::{Activation, Affine, ResidualPlace};
use crate::pool::ThreadPool;
use crate::test_data::Lcg;

const U: f64 = 1.0 / 16_777_216.0;

/// (value, tolerance) of each output by specs/compiler.md §10. A factor above 1 is Winograd's: an output takes part in the
/// sums of its whole tile, so s is made from the largest elements instead of the output's own terms.
fn reference(factor: f64, shape: &ConvShape, x: &[f32], weights: &[f32], bias: &[f32]) -> Vec<(f64, f64)> {
    let channels = shape.channels_per_group();
    let per_group = shape.out_channels / shape.groups;
    let mut expected = Vec::new();
    let terms = (channels * shape.taps() + 1) as f64;
    let peak = |values: &[f32]| f64::from(values.iter().fold(0.0_f32, |peak, value| peak.max(value.abs())));
    let largest = terms.sqrt() * (peak(x) * peak(weights)).max(peak(bias));
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
                let s = if factor > 1.0 { largest } else { squares.sqrt().max(sum.abs()) };
                expected.push((sum, 2.0 * U * sum.abs() + 4.0 * factor * U * terms.sqrt() * s));
            }
        }
    }
    expected
}

const TACTICS: [ConvTactic; 6] = [
    ConvTactic::Product,
    ConvTactic::ProductBf16,
    ConvTactic::Depthwise,
    ConvTactic::Winograd2,
    ConvTactic::Winograd4,
    ConvTactic::WinogradLine,
];

fn convolve(
    exec: Exec,
    tactic: ConvTactic,
    shape: &ConvShape,
    x: &[f32],
    weights: &[f32],
    epilogue: &Epilogue,
) -> Vec<f32> {
    let filter = pack_filter(exec.isa(), tactic, shape, weights);
    assert_eq!(filter.len(), packed_filter_len(tactic, shape));
    let mut scratch = vec![f32::NAN; conv_scratch_len(exec.isa(), exec.threads(), tactic, shape)];
    let mut y = vec![f32::NAN; shape.batch * shape.out_channels * shape.out_area()];
    conv(exec, tactic, shape, x, &filter, epilogue, &mut scratch, &mut y);
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
        // Images of two and three groups of tiles, whose filters keep their taps.
        shape_of(2, [70, 37, 1], [20, 20], [3, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(1, [300, 20, 1], [17, 33], [3, 3], [1, 1], [1, 1], [1, 1]),
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

/// Every tactic that covers the shape, on every instruction set and several thread counts.
fn check_shape(shape: &ConvShape) {
    let mut lcg = Lcg::new((shape.in_width * 7 + shape.out_channels) as u64);
    let x = lcg.floats(shape.batch * shape.in_channels * shape.in_area());
    let weights = lcg.floats(shape.out_channels * shape.channels_per_group() * shape.taps());
    let bias = lcg.floats(shape.out_channels);
    let epilogue = Epilogue { bias: Bias::Rows(&bias), ..Epilogue::default() };
    for tactic in TACTICS.into_iter().filter(|tactic| tactic.covers(shape)) {
        let expected = reference(tactic.error_factor(), shape, &x, &weights, &bias);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
            let mut first: Option<Vec<f32>> = None;
            for threads in [1, 2, 3] {
                let pool = ThreadPool::new(threads);
                let y = convolve(Exec::new(isa, &pool).unwrap(), tactic, shape, &x, &weights, &epilogue);
                for (index, (actual, (value, tolerance))) in y.iter().zip(&expected).enumerate() {
                    let error = (f64::from(*actual) - value).abs();
                    assert!(error <= *tolerance, "{isa:?} {tactic:?} {shape:?} at {index}: {actual}, not {value}");
                }
                assert_eq!(
                    *first.get_or_insert_with(|| y.clone()),
                    y,
                    "{isa:?} {tactic:?} {shape:?} {threads} threads"
                );
            }
        }
    }
}

#[test]
fn convolutions_match_plain_loops() {
    for shape in shapes() {
        check_shape(&shape);
    }
}

#[test]
fn random_3x3_convolutions_match_plain_loops() {
    let mut lcg = Lcg::new(3);
    let mut pick = |low: usize, high: usize| low + (lcg.next_u32() as usize) % (high - low + 1);
    for _ in 0..40 {
        let size = [pick(1, 40), pick(1, 70)];
        let mut shape = shape_of(pick(1, 3), [pick(1, 20), pick(1, 40), 1], size, [3, 3], [1, 1], [1, 1], [1, 1]);
        (shape.pad_top, shape.pad_left) = (pick(0, 3), pick(0, 3));
        (shape.out_height, shape.out_width) = (pick(1, size[0] + 3), pick(1, size[1] + 3));
        check_shape(&shape);
    }
}

#[test]
fn random_convolutions_along_lines_match_plain_loops() {
    let mut lcg = Lcg::new(7);
    let mut pick = |low: usize, high: usize| low + (lcg.next_u32() as usize) % (high - low + 1);
    for round in 0..60 {
        let (size, taps) = ([pick(1, 3), pick(1, 300)], [3, 5][round % 2]);
        let counts = [pick(1, 20), pick(1, 40), 1];
        let mut shape = shape_of(pick(1, 3), counts, size, [1, taps], [1, 1], [0, taps / 2], [1, 1]);
        (shape.pad_top, shape.pad_left) = (pick(0, 2), pick(0, 9));
        (shape.out_height, shape.out_width) = (pick(1, size[0] + 3), pick(1, size[1] + 9));
        check_shape(&shape);
    }
    // More channels than one chain of additions takes.
    check_shape(&shape_of(1, [600, 30, 1], [1, 90], [1, 5], [1, 1], [0, 2], [1, 1]));
    check_shape(&shape_of(1, [600, 30, 1], [1, 90], [1, 3], [1, 1], [0, 1], [1, 1]));
}

#[test]
fn random_depthwise_convolutions_match_plain_loops() {
    let mut lcg = Lcg::new(5);
    let mut pick = |low: usize, high: usize| low + (lcg.next_u32() as usize) % (high - low + 1);
    for _ in 0..120 {
        let (size, filter, stride) = ([pick(1, 24), pick(1, 70)], [3, 5][pick(0, 1)], [pick(1, 2), pick(1, 2)]);
        let (channels, multiplier) = (pick(2, 5), pick(1, 2));
        let counts = [channels, channels * multiplier, channels];
        let mut shape = shape_of(pick(1, 2), counts, size, [filter; 2], stride, [1, 1], [1, 1]);
        (shape.pad_top, shape.pad_left) = (pick(0, filter), pick(0, filter));
        (shape.out_height, shape.out_width) = (pick(1, size[0] / stride[0] + 3), pick(1, size[1] / stride[1] + 3));
        check_shape(&shape);
    }
}

#[test]
fn large_sums_match_plain_loops() {
    // More channels than one chain of additions takes, values of one sign.
    let shape = shape_of(1, [530, 9, 1], [9, 6], [3, 3], [1, 1], [1, 1], [1, 1]);
    let mut lcg = Lcg::new(11);
    let x: Vec<f32> = lcg.floats(shape.in_channels * shape.in_area()).iter().map(|x| x.abs() + 1.0).collect();
    let weights: Vec<f32> = lcg.floats(shape.out_channels * shape.in_channels * 9).iter().map(|x| x.abs()).collect();
    let pool = ThreadPool::new(2);
    for tactic in TACTICS.into_iter().filter(|tactic| tactic.covers(&shape)) {
        let expected = reference(tactic.error_factor(), &shape, &x, &weights, &[0.0; 9]);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
            let exec = Exec::new(isa, &pool).unwrap();
            let y = convolve(exec, tactic, &shape, &x, &weights, &Epilogue::default());
            for (actual, (value, tolerance)) in y.iter().zip(&expected) {
                assert!((f64::from(*actual) - value).abs() <= *tolerance, "{isa:?} {tactic:?}: {actual}, not {value}");
            }
        }
    }
}

#[test]
fn tactics_are_chosen_by_shape_but_not_by_batch() {
    let chosen = |channels: usize, size: usize, stride: usize, batch: usize| {
        let shape = shape_of(batch, [channels, channels, 1], [size; 2], [3, 3], [stride; 2], [1, 1], [1, 1]);
        choose_tactic(2, &shape, Liberty::Rounding)
    };
    for batch in [1, 8] {
        assert_eq!(chosen(64, 56, 1, batch), ConvTactic::Winograd4);
        assert_eq!(chosen(512, 7, 1, batch), ConvTactic::Winograd2);
        assert_eq!(chosen(64, 56, 2, batch), ConvTactic::Product);
        assert_eq!(chosen(2, 56, 1, batch), ConvTactic::Product);
    }
    let shape = shape_of(1, [64, 64, 1], [56, 56], [3, 3], [1, 1], [1, 1], [1, 1]);
    assert_eq!(choose_tactic(2, &shape, Liberty::Strict), ConvTactic::Product, "strict numerics");
}

#[test]
fn outputs_may_reach_beyond_the_padding() {
    // Bottom and right padding follow from the output size, however large.
    for channels in [[2, 3, 1], [2, 2, 2]] {
        let mut shape = shape_of(1, channels, [4, 5], [3, 3], [1, 1], [1, 1], [1, 1]);
        (shape.out_height, shape.out_width) = (7, 9);
        check_shape(&shape);
    }
}

#[test]
fn epilogues_apply_to_every_tactic() {
    for shape in [
        shape_of(2, [6, 10, 2], [9, 9], [3, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(2, [6, 6, 6], [9, 9], [3, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(2, [6, 10, 1], [9, 9], [3, 3], [1, 1], [1, 1], [1, 1]),
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
            for tactic in TACTICS.into_iter().filter(|tactic| tactic.covers(&shape)) {
                let plain = convolve(exec, tactic, &shape, &x, &weights, &epilogue);
                for activation in [Activation::Relu, Activation::Clamp { lo: 0.0, hi: 6.0 }, Activation::Sigmoid] {
                    let epilogue = Epilogue { residual: Some(&residual), activation, ..epilogue };
                    let actual = convolve(exec, tactic, &shape, &x, &weights, &epilogue);
                    for ((actual, plain), residual) in actual.iter().zip(&plain).zip(&residual) {
                        let sum = f64::from(plain + residual);
                        let expected = match activation {
                            Activation::Relu => sum.max(0.0),
                            Activation::Sigmoid => 1.0 / (1.0 + (-sum).exp()),
                            _ => sum.clamp(0.0, 6.0),
                        };
                        let error = (f64::from(*actual) - expected).abs();
                        assert!(error <= 1e-5 * expected.abs().max(1.0), "{isa:?} {tactic:?} {activation:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn whatever_follows_an_activation_applies_to_every_tactic() {
    for shape in [
        shape_of(2, [6, 10, 2], [9, 9], [3, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(2, [6, 6, 6], [9, 9], [3, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(2, [6, 6, 6], [9, 40], [3, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(2, [6, 6, 6], [9, 9], [2, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(2, [6, 10, 1], [9, 9], [3, 3], [1, 1], [1, 1], [1, 1]),
        shape_of(1, [20, 33, 1], [7, 7], [1, 1], [1, 1], [0, 0], [1, 1]),
        shape_of(2, [6, 17, 1], [2, 90], [1, 5], [1, 1], [0, 2], [1, 1]),
    ] {
        let mut lcg = Lcg::new(23);
        let x = lcg.floats(shape.batch * shape.in_channels * shape.in_area());
        let weights = lcg.floats(shape.out_channels * shape.channels_per_group() * shape.taps());
        let residual = lcg.floats(shape.batch * shape.out_channels * shape.out_area());
        let pool = ThreadPool::new(2);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
            let exec = Exec::new(isa, &pool).unwrap();
            for tactic in TACTICS.into_iter().filter(|tactic| tactic.covers(&shape)) {
                let plain = convolve(exec, tactic, &shape, &x, &weights, &Epilogue::default());
                for (activation, affine, residual_place) in endings() {
                    let residual = residual_place.map(|_| &residual[..]);
                    let residual_place = residual_place.unwrap_or_default();
                    let epilogue = Epilogue { bias: Bias::None, residual, residual_place, activation, affine };
                    let actual = convolve(exec, tactic, &shape, &x, &weights, &epilogue);
                    for (index, (actual, plain)) in actual.iter().zip(&plain).enumerate() {
                        let added = residual.map_or(0.0, |residual| residual[index]);
                        let is_first = residual_place == ResidualPlace::First;
                        let mut one = [if is_first { plain + added } else { *plain }];
                        crate::math::activate(isa, activation, &mut one);
                        let value = affine.map_or(one[0], |affine| one[0] * affine.scale + affine.shift);
                        let expected = if is_first { value } else { value + added };
                        let error = (actual - expected).abs();
                        assert!(error <= 2e-6 * expected.abs().max(1.0), "{isa:?} {tactic:?} {epilogue:?}");
                    }
                }
            }
        }
    }
}

/// Activations, what follows them, and where the residual is added, if there is one.
fn endings() -> Vec<(Activation, Option<Affine>, Option<ResidualPlace>)> {
    let mut endings = Vec::new();
    for activation in [Activation::None, Activation::Relu, Activation::HardSwish, Activation::Silu] {
        for affine in [None, Some(Affine { scale: 1.5, shift: -0.25 })] {
            for place in [None, Some(ResidualPlace::First), Some(ResidualPlace::Last)] {
                endings.push((activation, affine, place));
            }
        }
    }
    endings
}
