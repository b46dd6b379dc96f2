//! Losses that models keep from training: NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, GatherElements, ReduceFn, Softmax, UnaryFn};
use precast_tensor::DType;

use crate::import::{Fault, Import, NodeCx};

/// Rows of this family.
pub(super) const IMPORTS: &[Import] = &[
    Import::onnx("NegativeLogLikelihoodLoss", 12, 3, negative_log_likelihood_loss),
    Import::onnx("SoftmaxCrossEntropyLoss", 12, 3, softmax_cross_entropy_loss),
];

type Outputs = Result<Vec<ValueId>, Fault>;

/// The axis of classes in scores [N, C, d1, ..].
const CLASS_AXIS: usize = 1;

fn negative_log_likelihood_loss(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let log_probabilities = cx.input(0)?;
    Ok(vec![likelihood_loss(cx, log_probabilities)?])
}

fn softmax_cross_entropy_loss(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let scores = cx.input(0)?;
    let log_probabilities = cx.add(Softmax { axis: CLASS_AXIS, log: true }, &[scores])?;
    Ok(vec![likelihood_loss(cx, log_probabilities)?, log_probabilities])
}

/// -x[n, target[n, d..], d..] * weight[target], then the reduction. Inputs 1 and 2 are the targets and the weights of
/// classes; a target that is `ignore_index` weighs nothing.
fn likelihood_loss(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId, Fault> {
    let (target, dtype) = (cx.input(1)?, cx.dtype(x));
    if cx.rank(x) < 2 || cx.rank(target) + 1 != cx.rank(x) {
        let (x, target) = (cx.ty(x), cx.ty(target));
        return Err(Fault::Invalid(format!("scores {x} have no class for each of the targets {target}")));
    }
    let mut target = cx.cast(target, DType::I64)?;
    let is_ignored = match cx.attributes().int("ignore_index")? {
        Some(ignored) => {
            let ignored = cx.int_scalar(ignored);
            let is_ignored = cx.compare(CompareFn::Eq, target, ignored)?;
            // It need not be a class, so it must not be looked up.
            let any_class = cx.int_scalar(0);
            target = cx.select(is_ignored, any_class, target)?;
            Some(is_ignored)
        }
        None => None,
    };
    let lone_class = cx.unsqueeze(target, &[CLASS_AXIS])?;
    let chosen = cx.add(GatherElements { axis: CLASS_AXIS }, &[x, lone_class])?;
    let chosen = cx.squeeze(chosen, &[CLASS_AXIS])?;
    let mut loss = cx.unary(UnaryFn::Neg, chosen)?;
    let weights = weights_of(cx, target, is_ignored, dtype)?;
    if let Some(weights) = weights {
        loss = cx.binary(BinaryFn::Mul, loss, weights)?;
    }
    let axes: Vec<usize> = (0..cx.rank(loss)).collect();
    match cx.string("reduction", "mean")?.as_str() {
        "none" => Ok(loss),
        "sum" => cx.reduce(ReduceFn::Sum, loss, axes, false),
        "mean" => match weights {
            Some(weights) => {
                let total = cx.reduce(ReduceFn::Sum, loss, axes.clone(), false)?;
                let weight = cx.reduce(ReduceFn::Sum, weights, axes, false)?;
                cx.binary(BinaryFn::Div, total, weight)
            }
            None => cx.reduce(ReduceFn::Mean, loss, axes, false),
        },
        other => Err(Fault::Invalid(format!("attribute 'reduction' is '{other}'; none, sum or mean was expected"))),
    }
}

/// What each target weighs; none where all weigh 1.
fn weights_of(
    cx: &mut NodeCx<'_, '_>,
    target: ValueId,
    is_ignored: Option<ValueId>,
    dtype: DType,
) -> Result<Option<ValueId>, Fault> {
    let weights = match cx.optional(2) {
        Some(weights) => {
            let weights = cx.cast(weights, dtype)?;
            Some(cx.gather(weights, target, 0)?)
        }
        None => None,
    };
    let Some(is_ignored) = is_ignored else { return Ok(weights) };
    let (nothing, one) = (cx.scalar(dtype, 0.0)?, cx.scalar(dtype, 1.0)?);
    Ok(Some(cx.select(is_ignored, nothing, weights.unwrap_or(one))?))
}
