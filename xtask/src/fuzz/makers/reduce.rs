//! Nodes that join the elements of axes.

use precast::DType;

use super::{Made, Maker, on};
use crate::fuzz::growing::{Call, FLOATS, Growing, Known, NUMBERS, Wanted};
use crate::fuzz::messages::int;

pub const MAKERS: &[Maker] = &[
    on("ArgMax", 13, place),
    on("ArgMin", 13, place),
    on("CumProd", 26, running),
    on("CumSum", 14, running),
    on("ReduceL1", 18, reduce),
    on("ReduceL2", 18, reduce),
    on("ReduceLogSum", 18, reduce),
    on("ReduceLogSumExp", 18, reduce),
    on("ReduceMax", 18, reduce),
    on("ReduceMean", 18, reduce),
    on("ReduceMin", 18, reduce),
    on("ReduceProd", 18, reduce),
    on("ReduceSum", 13, reduce),
    on("ReduceSumSquare", 18, reduce),
];

fn reduce(growing: &mut Growing, operator: &str) -> Made {
    let is_choice = matches!(operator, "ReduceMax" | "ReduceMin");
    let whole: &[DType] = &[DType::F32, DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64];
    let wanted = match operator {
        "ReduceLogSum" => Wanted::of(FLOATS).within(0.25, 40.0).filled(),
        "ReduceLogSumExp" => Wanted::of(FLOATS).within(-8.0, 8.0),
        "ReduceMax" | "ReduceMin" => Wanted::of(whole).filled(),
        "ReduceMean" => Wanted::of(FLOATS).filled(),
        _ => Wanted::of(whole),
    };
    let x = growing.pick(&wanted);
    if x.dtype().is_int() && may_overflow(operator, &x) {
        return None;
    }
    let rank = x.rank();
    let mut axes: Vec<i64> = (0..rank as i64).filter(|_| growing.random.once_in(2)).collect();
    if growing.random.once_in(3) {
        axes.iter_mut().for_each(|axis| *axis -= rank as i64);
    }
    let mut attributes = vec![int("keepdims", growing.random.below(2))];
    let given = match axes.is_empty() && growing.random.once_in(2) {
        true => Known::absent(),
        false => growing.ints(&axes),
    };
    if axes.is_empty() && growing.random.once_in(2) {
        attributes.push(int("noop_with_empty_axes", 1));
    }
    let call = Call::of(operator, &[&x, &given]).with(attributes);
    growing.add(if is_choice { call.exact() } else { call })?;
    if x.tensor.is_empty() {
        growing.unjudged = Some("onnxruntime keeps axes of an empty tensor that it reduces");
    }
    if operator == "ReduceProd" && magnifies_a_zero(&x) {
        growing.unjudged = Some("a factor of 0 may be a rounded number in onnxruntime, and the others make it large");
    }
    Some(())
}

/// Whether a product or a sum of squares of all elements may leave i32, where some wrap and some saturate.
fn may_overflow(operator: &str, x: &Known) -> bool {
    let numbers = x.tensor.to_f64_vec();
    let most: f64 = match operator {
        "ReduceProd" => numbers.iter().map(|number| number.abs().max(1.0)).product(),
        "ReduceSumSquare" => numbers.iter().map(|number| number * number).sum(),
        _ => 0.0,
    };
    most > f64::from(i32::MAX)
}

/// Whether there is a 0 beside factors that would make a rounding in its place large.
fn magnifies_a_zero(x: &Known) -> bool {
    let numbers = x.tensor.to_f64_vec();
    let others: f64 = numbers.iter().map(|number| number.abs().max(1.0)).product();
    numbers.contains(&0.0) && others > 100.0
}

fn place(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(NUMBERS).ranks(1..=4).exact().filled());
    let axis = growing.random.below(x.rank()) as i64 - if growing.random.once_in(3) { x.rank() as i64 } else { 0 };
    let (keep, last) = (growing.random.below(2), growing.random.below(2));
    let attributes = vec![int("axis", axis), int("keepdims", keep), int("select_last_index", last)];
    growing.add(Call::of(operator, &[&x]).with(attributes).exact()).map(drop)
}

fn running(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32, DType::F64, DType::I32, DType::I64]).ranks(1..=4));
    let axis = growing.random.below(x.rank());
    let axis = growing.scalar(DType::I64, axis as f64);
    let attributes = vec![int("exclusive", growing.random.below(2)), int("reverse", growing.random.below(2))];
    growing.add(Call::of(operator, &[&x, &axis]).with(attributes)).map(drop)
}
