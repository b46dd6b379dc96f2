//! Nodes between floats and 8-bit numbers. Scales are powers of two, so that no quotient lies a last bit beside a half.

use precast::{DType, Tensor};

use super::conv::Sliding;
use super::{Made, Maker, on};
use crate::fuzz::growing::{Call, Growing, Known, Wanted};
use crate::fuzz::messages::int;

pub const MAKERS: &[Maker] = &[
    on("DequantizeLinear", 19, dequantize),
    on("DynamicQuantizeLinear", 11, dynamic),
    on("QLinearConv", 10, convolve),
    on("QLinearMatMul", 10, product),
    on("QuantizeLinear", 19, quantize),
];

const BYTES: &[DType] = &[DType::U8, DType::I8];

/// Scales of a shape.
fn scales(growing: &mut Growing, shape: &[usize]) -> Option<Known> {
    let count = shape.iter().product();
    let scales: Vec<f32> = (0..count).map(|_| *growing.random.pick(&[0.125, 0.25, 0.5])).collect();
    let tensor = Tensor::from_vec(shape.to_vec(), scales).ok()?;
    Some(growing.constant_of(tensor))
}

fn zero_points(growing: &mut Growing, dtype: DType, shape: &[usize]) -> Known {
    growing.constant_within(dtype, shape, 0.0, 2.0)
}

/// An axis and a scale for each of its elements, or one scale for all.
fn granularity(growing: &mut Growing, x: &Known) -> Option<(usize, Vec<usize>)> {
    match x.rank() > 0 && growing.random.once_in(2) {
        true => {
            let axis = growing.random.below(x.rank());
            Some((axis, vec![x.shape()[axis]]))
        }
        false => Some((0, vec![])),
    }
}

fn quantize(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32]).ranks(1..=4).exact());
    let (axis, shape) = granularity(growing, &x)?;
    let to = growing.pick_type(BYTES);
    let scale = scales(growing, &shape)?;
    let zero = if growing.random.once_in(4) { Known::absent() } else { zero_points(growing, to, &shape) };
    growing.add(Call::of(operator, &[&x, &scale, &zero]).with(vec![int("axis", axis)]).exact()).map(drop)
}

fn dequantize(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::U8, DType::I8, DType::I32]).ranks(1..=4));
    let (axis, shape) = granularity(growing, &x)?;
    let scale = scales(growing, &shape)?;
    let has_zero = x.dtype() != DType::I32 && growing.random.once_in(2);
    let zero = if has_zero { zero_points(growing, x.dtype(), &shape) } else { Known::absent() };
    growing.add(Call::of(operator, &[&x, &scale, &zero]).with(vec![int("axis", axis)]).exact()).map(drop)
}

fn dynamic(growing: &mut Growing, operator: &str) -> Made {
    // Two values span all levels, so that every quotient is whole.
    let shape = growing.shape(1..=3);
    let count: usize = shape.iter().product();
    if count < 2 {
        return None;
    }
    let mut elements: Vec<f32> = (0..count).map(|_| growing.random.below(256) as f32).collect();
    (elements[0], elements[1]) = (0.0, 255.0);
    let tensor = Tensor::from_vec(shape, elements).ok()?;
    let x = growing.constant_of(tensor);
    growing.add_all(Call::of(operator, &[&x]).outputs(3)).map(drop)
}

fn product(growing: &mut Growing, operator: &str) -> Made {
    let a = growing.pick(&Wanted::of(BYTES).ranks(2..=3).filled());
    let (inner, columns) = (*a.shape().last()?, growing.size());
    let dtype = if a.dtype() == DType::I8 { DType::I8 } else { growing.pick_type(BYTES) };
    let b = growing.operand(dtype, &[inner, columns]);
    let [scale_a, scale_b, scale_y] = [scales(growing, &[])?, scales(growing, &[])?, scales(growing, &[])?];
    let (zero_a, zero_b) = (zero_points(growing, a.dtype(), &[]), zero_points(growing, dtype, &[]));
    let zero_y = zero_points(growing, a.dtype(), &[]);
    let inputs = [&a, &scale_a, &zero_a, &b, &scale_b, &zero_b, &scale_y, &zero_y];
    growing.add(Call::of(operator, &inputs).exact()).map(drop)
}

fn convolve(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::U8]).ranks(4..=4).filled());
    let spatial = x.shape()[2..].to_vec();
    let sliding = Sliding::over(growing, &spatial, true)?;
    let outputs = 1 + growing.random.below(4);
    let mut shape = vec![outputs, x.shape()[1]];
    shape.extend(&sliding.window);
    let dtype = growing.pick_type(BYTES);
    let filter = growing.constant_within(dtype, &shape, -2.0, 2.0);
    let by_channel = if growing.random.once_in(2) { vec![outputs] } else { vec![] };
    let [scale_x, scale_w, scale_y] = [scales(growing, &[])?, scales(growing, &by_channel)?, scales(growing, &[])?];
    let zero_x = zero_points(growing, DType::U8, &[]);
    let zero_w = growing.constant_of(Tensor::zeros(dtype, by_channel).ok()?);
    let zero_y = zero_points(growing, DType::U8, &[]);
    let bias = match growing.random.once_in(2) {
        true => growing.constant_within(DType::I32, &[outputs], -2.0, 2.0),
        false => Known::absent(),
    };
    let inputs = [&x, &scale_x, &zero_x, &filter, &scale_w, &zero_w, &scale_y, &zero_y, &bias];
    growing.add(Call::of(operator, &inputs).with(sliding.attributes()).exact()).map(drop)
}
