//! ai.onnx.ml: linear models, as products of matrices.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, UnaryFn};
use precast_tensor::DType;

use super::ml::{PostTransform, best, label_values, labels, rows_of};
use crate::import::{Applies, Fault, Import, NodeCx, StructureImport, Value};

/// Rows of this family.
pub(super) const IMPORTS: &[Import] =
    &[Import { domain: "ai.onnx.ml", name: "LinearRegressor", since: 1, tier: 3, function: linear_regressor }];

/// Rows of operators whose labels may be strings.
pub(super) const STRUCTURES: &[StructureImport] = &[StructureImport {
    domain: "ai.onnx.ml",
    name: "LinearClassifier",
    since: 1,
    tier: 3,
    applies: Applies::Always,
    function: linear_classifier,
}];

/// x times coefficients [targets, features], plus intercepts: [rows, targets].
fn linear_scores(cx: &mut NodeCx<'_, '_>, targets: usize) -> Result<ValueId, Fault> {
    let x = rows_of(cx, 0)?;
    let x = cx.cast(x, DType::F32)?;
    let coefficients = cx.attributes().floats("coefficients")?.unwrap_or_default();
    if !coefficients.len().is_multiple_of(targets) {
        return Err(Fault::Invalid(format!("{} coefficients for {targets} targets", coefficients.len())));
    }
    let weights = cx.float_tensor(DType::F32, vec![targets, coefficients.len() / targets], &coefficients)?;
    let weights = cx.transpose(weights, vec![1, 0])?;
    let product = cx.matmul(x, weights)?;
    let Some(intercepts) = cx.attributes().floats("intercepts")?.filter(|intercepts| !intercepts.is_empty()) else {
        return Ok(product);
    };
    if intercepts.len() != targets {
        return Err(Fault::Invalid(format!("{} intercepts for {targets} targets", intercepts.len())));
    }
    let intercepts = cx.float_tensor(DType::F32, vec![1, targets], &intercepts)?;
    cx.binary(BinaryFn::Add, product, intercepts)
}

fn linear_regressor(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>, Fault> {
    let targets = cx.int("targets", 1)?;
    let targets = usize::try_from(targets)
        .ok()
        .filter(|&targets| targets > 0)
        .ok_or_else(|| Fault::Invalid(format!("attribute 'targets' is {targets}; 1 or more was expected")))?;
    let transform = PostTransform::of_attribute(cx)?;
    let scores = linear_scores(cx, targets)?;
    Ok(vec![transform.apply(cx, scores)?])
}

/// Labels and scores. One row of coefficients for two classes gives one score, whose sign is the label.
fn linear_classifier(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>, Fault> {
    let classes = labels(cx, "classlabels_ints")?;
    cx.int("multi_class", 0)?;
    let intercepts = cx.attributes().floats("intercepts")?.map_or(0, |intercepts| intercepts.len());
    let targets = if intercepts > 0 { intercepts } else { classes.len().max(1) };
    let transform = PostTransform::of_attribute(cx)?;
    let scores = linear_scores(cx, targets)?;
    if targets > 1 {
        let label = best(cx, scores)?;
        let scores = transform.apply(cx, scores)?;
        return Ok(vec![label_values(cx, label, &classes)?, scores.into()]);
    }
    if classes.len() != 2 {
        return Err(Fault::Unsupported(format!("one score for {} classes is not covered", classes.len())));
    }
    let zero = cx.scalar(DType::F32, 0.0)?;
    let is_second = cx.compare(CompareFn::Gt, scores, zero)?;
    let label = cx.cast(is_second, DType::I64)?;
    let label = cx.squeeze(label, &[1])?;
    let opposite = cx.unary_with(UnaryFn::Affine, -1.0, 1.0, scores)?;
    let both = cx.concat(&[opposite, scores], 1)?;
    Ok(vec![label_values(cx, label, &classes)?, both.into()])
}
