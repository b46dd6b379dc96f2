//! Transforms to frequencies, and windows for them; losses; random numbers.

use precast::{DType, Tensor};

use super::{Made, Maker, on};
use crate::fuzz::growing::{Call, Growing, Known, Wanted};
use crate::fuzz::messages::{float, int, number_of, sizes, string};

pub const MAKERS: &[Maker] = &[
    on("Bernoulli", 15, bernoulli),
    on("BlackmanWindow", 17, weights),
    on("DFT", 20, transform),
    on("HammingWindow", 17, weights),
    on("HannWindow", 17, weights),
    on("MelWeightMatrix", 17, mel),
    on("Multinomial", 7, multinomial),
    on("NegativeLogLikelihoodLoss", 13, loss),
    on("RandomNormal", 1, random),
    on("RandomNormalLike", 1, random_like),
    on("RandomUniform", 1, random),
    on("RandomUniformLike", 1, random_like),
    on("STFT", 17, frames),
    on("SoftmaxCrossEntropyLoss", 13, loss),
];

/// Why graphs with random numbers are not judged.
const DRAWN: &str = "the graph has random numbers";

fn transform(growing: &mut Growing, operator: &str) -> Made {
    let dtype = growing.pick_type(&[DType::F32, DType::F64]);
    let mut shape: Vec<usize> = (0..2 + growing.random.below(2)).map(|_| growing.size()).collect();
    let parts = 1 + growing.random.below(2);
    shape.push(parts);
    let x = growing.operand(dtype, &shape);
    let axis = growing.random.below(shape.len() - 2) + 1;
    let axis = growing.scalar(DType::I64, axis as f64);
    let length = if growing.random.once_in(2) {
        Known::absent()
    } else {
        let length = growing.size();
        growing.scalar(DType::I64, length as f64)
    };
    let (mut inverse, mut onesided) = (growing.random.below(2), 0);
    if parts == 1 {
        (inverse, onesided) = (0, growing.random.below(2));
    }
    let attributes = vec![int("inverse", inverse), int("onesided", onesided)];
    // onnxruntime divides the inverse by a length in f32.
    let call = Call::of(operator, &[&x, &length, &axis]).with(attributes);
    growing.add(if inverse == 1 { call.judged_in_f32() } else { call }).map(drop)
}

fn frames(growing: &mut Growing, operator: &str) -> Made {
    let (batch, length) = (1 + growing.random.below(2), 8 + growing.random.below(24));
    let x = growing.operand(DType::F32, &[batch, length, 1]);
    let step = 1 + growing.random.below(4);
    let step = growing.scalar(DType::I64, step as f64);
    let frame = 2 + growing.random.below(6);
    let window = growing.operand(DType::F32, &[frame]);
    let size = growing.scalar(DType::I64, frame as f64);
    let attributes = vec![int("onesided", growing.random.below(2))];
    growing.add(Call::of(operator, &[&x, &step, &window, &size]).with(attributes)).map(drop)
}

fn weights(growing: &mut Growing, operator: &str) -> Made {
    // A symmetric window of one element is 0 / 0 in the operator's text and by other runtimes; ours is its first element.
    let length = 2 + growing.random.below(15);
    let length = growing.scalar(DType::I64, length as f64);
    let attributes = vec![int("periodic", growing.random.below(2))];
    growing.add(Call::of(operator, &[&length]).with(attributes)).map(drop)
}

fn mel(growing: &mut Growing, operator: &str) -> Made {
    let counts = [(DType::I64, 2 + growing.random.below(4)), (DType::I64, 16), (DType::I64, 8000)];
    let counts = counts.map(|(dtype, value)| growing.scalar(dtype, value as f64));
    let edges = [0.0, 4000.0].map(|edge| growing.scalar(DType::F32, edge));
    growing.add(Call::of(operator, &[&counts[0], &counts[1], &counts[2], &edges[0], &edges[1]])).map(drop)
}

fn loss(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32, DType::F64]).ranks(2..=4).filled());
    let classes = x.shape()[1];
    let mut shape = x.shape().to_vec();
    shape.remove(1);
    let count = shape.iter().product();
    let labels: Vec<i64> = (0..count).map(|_| growing.random.below(classes) as i64).collect();
    let labels = growing.constant_of(Tensor::from_vec(shape, labels).ok()?);
    let weight = match growing.random.once_in(2) {
        true => growing.operand_within(x.dtype(), &[classes], 0.25, 2.0),
        false => Known::absent(),
    };
    let attributes = vec![string("reduction", growing.choose(&["mean", "sum", "none"]))];
    growing.add(Call::of(operator, &[&x, &labels, &weight]).with(attributes)).map(drop)
}

fn random(growing: &mut Growing, operator: &str) -> Made {
    let shape = growing.shape(0..=3);
    let attributes = vec![sizes("shape", &shape), float("seed", 3.0), int("dtype", number_of(DType::F32))];
    growing.unjudged = Some(DRAWN);
    growing.add(Call::of(operator, &[]).with(attributes)).map(drop)
}

fn random_like(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32, DType::F64, DType::F16]));
    growing.unjudged = Some(DRAWN);
    growing.add(Call::of(operator, &[&x]).with(vec![float("seed", 5.0)])).map(drop)
}

fn bernoulli(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32, DType::F64]).exact().within(0.0, 1.0));
    growing.unjudged = Some(DRAWN);
    growing.add(Call::of(operator, &[&x]).with(vec![float("seed", 7.0)]).exact()).map(drop)
}

fn multinomial(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32]).ranks(2..=2).exact().filled());
    let attributes = vec![int("sample_size", 1 + growing.random.below(5)), float("seed", 9.0)];
    growing.unjudged = Some(DRAWN);
    growing.add(Call::of(operator, &[&x]).with(attributes).exact()).map(drop)
}
