//! A pair of convolutions gives the bits of one after the other, for every instruction set and several thread counts.

use super::*;
use crate::conv::{ConvTactic, conv, conv_scratch_len, pack_filter};
use crate::epilogue::{Activation, ResidualPlace};
use crate::test_data::{Lcg, for_each_exec};

/// The pair of `[batch, channels, between]` and `[height, width]` with a filter of `size`², `multiplier` results a channel.
fn pair_of(
    [batch, in_channels, between]: [usize; 3],
    [height, width]: [usize; 2],
    [size, stride, pad]: [usize; 3],
    multiplier: usize,
) -> ConvPair {
    let first = ConvShape {
        batch,
        in_channels,
        in_height: height,
        in_width: width,
        out_channels: between,
        out_height: height,
        out_width: width,
        filter_height: 1,
        filter_width: 1,
        stride: [1, 1],
        pad_top: 0,
        pad_left: 0,
        dilation: [1, 1],
        groups: 1,
    };
    let out = |length: usize| (length + 2 * pad).checked_sub(size).map_or(0, |rest| rest / stride + 1);
    let second = ConvShape {
        in_channels: between,
        out_channels: between * multiplier,
        out_height: out(height),
        out_width: out(width),
        filter_height: size,
        filter_width: size,
        stride: [stride, stride],
        pad_top: pad,
        pad_left: pad,
        groups: between,
        ..first
    };
    ConvPair::new(first, second).expect("a pair")
}

fn alone(exec: Exec, tactic: ConvTactic, shape: &ConvShape, x: &[f32], weights: &[f32], end: &Epilogue) -> Vec<f32> {
    let filter = pack_filter(exec.isa(), tactic, shape, weights);
    let mut scratch = vec![f32::NAN; conv_scratch_len(exec.isa(), exec.threads(), tactic, shape)];
    let mut y = vec![f32::NAN; shape.batch * shape.out_channels * shape.out_area()];
    conv(exec, tactic, shape, x, &filter, end, &mut scratch, &mut y);
    y
}

fn check(exec: Exec, pair: &ConvPair, activation: Activation, place: Option<ResidualPlace>) {
    let ConvPair { first, second } = pair;
    let mut random = Lcg::new(7);
    let x = random.floats(first.batch * first.in_channels * first.in_area());
    let [first_weights, second_weights] =
        [first.out_channels * first.in_channels, second.out_channels * second.taps()].map(|len| random.floats(len));
    let [first_bias, second_bias] = [first.out_channels, second.out_channels].map(|len| random.floats(len));
    let residual = random.floats(second.batch * second.out_channels * second.out_area());
    let first_epilogue = Epilogue { bias: Bias::Rows(&first_bias), activation, ..Epilogue::default() };
    let second_epilogue = Epilogue {
        bias: Bias::Rows(&second_bias),
        activation,
        residual: place.map(|_| &residual[..]),
        residual_place: place.unwrap_or_default(),
        ..Epilogue::default()
    };
    let middle = alone(exec, ConvTactic::Product, first, &x, &first_weights, &first_epilogue);
    let expected = alone(exec, ConvTactic::Depthwise, second, &middle, &second_weights, &second_epilogue);
    let mut packed = vec![0.0; pair.packed_first_len()];
    pair.pack_first_into(exec.isa(), &first_weights, &mut packed);
    let operands =
        PairOperands { first_filter: &packed, first_epilogue, second_filter: &second_weights, second_epilogue };
    let mut scratch = vec![f32::NAN; pair.scratch_len(exec.isa(), exec.threads())];
    let mut y = vec![f32::NAN; expected.len()];
    pair.run(exec, &x, &operands, &mut scratch, &mut y);
    let differs = y.iter().zip(&expected).position(|(one, other)| one.to_bits() != other.to_bits());
    assert_eq!(differs, None, "{pair:?} on {:?} with {} threads", exec.isa(), exec.threads());
}

fn pairs() -> Vec<ConvPair> {
    vec![
        pair_of([1, 16, 64], [112, 112], [3, 2, 1], 1),
        pair_of([1, 3, 70], [60, 57], [3, 1, 1], 1),
        pair_of([2, 5, 9], [14, 14], [5, 1, 2], 1),
        pair_of([3, 24, 57], [7, 7], [5, 2, 2], 1),
        pair_of([1, 24, 72], [56, 56], [3, 1, 1], 1),
        pair_of([2, 300, 33], [5, 6], [3, 1, 1], 2),
        pair_of([1, 4, 2], [1, 9], [3, 1, 1], 1),
        pair_of([1, 4, 12], [20, 21], [7, 3, 3], 1),
        pair_of([1, 7, 40], [90, 33], [3, 2, 0], 1),
        pair_of([1, 2, 20], [8, 8], [4, 1, 0], 3),
        pair_of([0, 4, 8], [6, 6], [3, 1, 1], 1),
        pair_of([1, 4, 8], [2, 2], [3, 1, 0], 1),
        pair_of([1, 4, 8], [2, 2], [3, 1, 6], 1),
    ]
}

#[test]
fn a_pair_has_the_bits_of_its_parts() {
    for_each_exec(|exec| {
        for pair in pairs() {
            check(*exec, &pair, Activation::HardSwish, None);
            check(*exec, &pair, Activation::Silu, Some(ResidualPlace::First));
            check(*exec, &pair, Activation::Relu, Some(ResidualPlace::Last));
        }
    });
}

#[test]
fn pairs_of_another_form_are_refused() {
    let ConvPair { first, second } = pair_of([1, 8, 8], [6, 6], [3, 1, 1], 1);
    assert!(ConvPair::new(first, second).is_some());
    assert!(ConvPair::new(second, second).is_none(), "the first is not 1×1");
    assert!(ConvPair::new(first, first).is_none(), "the second is not depthwise");
    assert!(ConvPair::new(ConvShape { stride: [2, 2], ..first }, second).is_none());
    assert!(ConvPair::new(ConvShape { out_channels: 9, ..first }, second).is_none());
    assert!(ConvPair::new(ConvShape { batch: 2, ..first }, second).is_none());
    let empty = ConvShape { in_height: 0, ..second };
    assert!(ConvPair::new(ConvShape { in_height: 0, out_height: 0, ..first }, empty).is_none());
}
