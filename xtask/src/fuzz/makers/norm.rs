//! Nodes that bring the elements of axes to a common size. Those that divide by a spread get an epsilon that keeps a last
//! bit one, unless their input is exact.

use precast::DType;

use super::{Made, Maker, on};
use crate::fuzz::growing::{Call, FLOATS, Growing, Known, Wanted};
use crate::fuzz::messages::{float, int, ints};

pub const MAKERS: &[Maker] = &[
    on("BatchNormalization", 15, batch),
    on("GroupNormalization", 21, group),
    on("Hardmax", 13, hardmax),
    on("InstanceNormalization", 6, instance),
    on("LRN", 13, local_response),
    on("LayerNormalization", 17, layer),
    on("LogSoftmax", 13, softmax),
    on("LpNormalization", 1, lp),
    on("MeanVarianceNormalization", 13, mean_variance),
    on("RMSNormalization", 23, layer),
    on("SimplifiedLayerNormalization", 1, layer),
    on("Softmax", 13, softmax),
];

fn axis_of(growing: &mut Growing, x: &Known) -> i64 {
    let rank = x.rank() as i64;
    growing.random.below(x.rank()) as i64 - if growing.random.once_in(3) { rank } else { 0 }
}

fn softmax(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).ranks(1..=4));
    let axis = axis_of(growing, &x);
    growing.add(Call::of(operator, &[&x]).with(vec![int("axis", axis)])).map(drop)
}

fn hardmax(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).ranks(1..=4).exact().filled());
    let axis = axis_of(growing, &x);
    growing.add(Call::of(operator, &[&x]).with(vec![int("axis", axis)]).exact()).map(drop)
}

fn epsilon(x: &Known) -> f32 {
    if x.is_exact() { 1e-3 } else { 0.5 }
}

fn layer(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).ranks(1..=4).filled());
    // onnxruntime's own operator knows the last axis alone.
    let axis = if operator == "SimplifiedLayerNormalization" { -1 } else { axis_of(growing, &x) };
    let first = axis.rem_euclid(x.rank() as i64) as usize;
    let normalised = x.shape()[first..].to_vec();
    let scale = growing.operand(x.dtype(), &normalised);
    let mut inputs = vec![x.clone(), scale];
    if operator == "LayerNormalization" && growing.random.once_in(2) {
        inputs.push(growing.operand(x.dtype(), &normalised));
    }
    let call = Call::of(operator, &inputs.iter().collect::<Vec<&Known>>());
    growing.add(call.with(vec![int("axis", axis), float("epsilon", epsilon(&x))])).map(drop)
}

fn batch(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).ranks(2..=4));
    let channels = [x.shape()[1]];
    let [scale, bias, mean] = [0; 3].map(|_| growing.operand(x.dtype(), &channels));
    let variance = growing.operand_within(x.dtype(), &channels, 0.25, 2.0);
    let attributes = vec![float("epsilon", 0.125)];
    growing.add(Call::of(operator, &[&x, &scale, &bias, &mean, &variance]).with(attributes)).map(drop)
}

fn instance(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).ranks(3..=4).filled());
    let channels = [x.shape()[1]];
    let [scale, bias] = [0; 2].map(|_| growing.operand(x.dtype(), &channels));
    growing.add(Call::of(operator, &[&x, &scale, &bias]).with(vec![float("epsilon", epsilon(&x))])).map(drop)
}

fn group(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).ranks(3..=4).filled());
    let channels = x.shape()[1];
    let divisors: Vec<usize> = (1..=channels).filter(|&groups| channels.is_multiple_of(groups)).collect();
    let groups = *growing.random.pick(&divisors);
    let [scale, bias] = [0; 2].map(|_| growing.operand(x.dtype(), &[channels]));
    let attributes = vec![int("num_groups", groups), float("epsilon", epsilon(&x))];
    // `stash_type` is f32 unless said, so statistics of f64 may be f32.
    growing.add(Call::of(operator, &[&x, &scale, &bias]).with(attributes).judged_in_f32()).map(drop)
}

fn local_response(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32, DType::F32, DType::F16, DType::F64]).ranks(3..=4));
    let size = *growing.random.pick(&[1, 3, 5]);
    let attributes = vec![int("size", size), float("alpha", 0.5), float("bias", 1.5), float("beta", 0.625)];
    growing.add(Call::of(operator, &[&x]).with(attributes)).map(drop)
}

fn lp(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).ranks(1..=4).within(0.25, 40.0));
    let axis = axis_of(growing, &x);
    let attributes = vec![int("axis", axis), int("p", 1 + growing.random.below(2))];
    growing.add(Call::of(operator, &[&x]).with(attributes)).map(drop)
}

fn mean_variance(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32, DType::F64]).ranks(4..=4).exact().filled());
    // A line of one element has no spread; what is left of it is rounding over rounding.
    if x.shape()[0] * x.shape()[2] * x.shape()[3] < 8 {
        return None;
    }
    growing.add(Call::of(operator, &[&x]).with(vec![ints("axes", &[0, 2, 3])]))?;
    if has_level_channel(&x) {
        growing.unjudged = Some("MeanVarianceNormalization of equal elements is 0 / 0 in onnxruntime");
    }
    Some(())
}

/// Whether all elements of some channel of [batch, channels, ..] are equal.
fn has_level_channel(x: &Known) -> bool {
    let (numbers, channels) = (x.tensor.to_f64_vec(), x.shape()[1]);
    let line = x.shape()[2..].iter().product::<usize>();
    (0..channels).any(|channel| {
        let mut own = numbers.chunks(line).skip(channel).step_by(channels).flatten();
        let first = own.next();
        own.all(|number| Some(number) == first)
    })
}
