//! ai.onnx.ml: the operators of classical pipelines that work on numbers alone.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, ReduceFn, UnaryFn};
use precast_tensor::{DType, Dim};

use crate::import::{Fault, Import, ImportFn, NodeCx};

/// Rows of this family.
pub(super) const IMPORTS: &[Import] = &[
    row("ArrayFeatureExtractor", array_feature_extractor),
    row("Binarizer", binarizer),
    row("Imputer", imputer),
    row("LinearRegressor", linear_regressor),
    row("Normalizer", normalizer),
    row("Scaler", scaler),
];

const fn row(name: &'static str, function: ImportFn) -> Import {
    Import { domain: "ai.onnx.ml", name, since: 1, tier: 3, function }
}

type Outputs = Result<Vec<ValueId>, Fault>;

/// Columns of x: its last axis at indices.
fn array_feature_extractor(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (mut x, indices) = (cx.input(0)?, cx.input(1)?);
    let count = cx.dims(indices).iter().product();
    let indices = cx.reshape(indices, vec![count])?;
    if cx.rank(x) == 1 {
        x = cx.unsqueeze(x, &[0])?;
    }
    let axis = cx.axis(-1, cx.rank(x))?;
    Ok(vec![cx.gather(x, indices, axis)?])
}

/// 1 where x is above the threshold, else 0.
fn binarizer(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let threshold = cx.scalar(cx.dtype(x), cx.float("threshold", 0.0)?)?;
    let is_above = cx.compare(CompareFn::Gt, x, threshold)?;
    Ok(vec![cx.cast(is_above, cx.dtype(x))?])
}

/// (x - offset) * scale, each a number or one a feature.
fn scaler(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let x = cx.cast(x, DType::F32)?;
    let offset = features(cx, "offset", 0.0)?;
    let scale = features(cx, "scale", 1.0)?;
    let moved = cx.binary(BinaryFn::Sub, x, offset)?;
    Ok(vec![cx.binary(BinaryFn::Mul, moved, scale)?])
}

/// A list attribute of floats as a vector, or one number where it is absent.
fn features(cx: &mut NodeCx<'_, '_>, name: &str, default: f64) -> Result<ValueId, Fault> {
    let floats = cx.attributes().floats(name)?.unwrap_or_else(|| vec![default]);
    cx.float_tensor(DType::F32, vec![floats.len()], &floats)
}

/// x with a value that stands for "missing" replaced, by one number or by one a feature.
fn imputer(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let dtype = cx.dtype(x);
    let (imputed, is_missing) = if dtype.is_float() {
        let imputed = features(cx, "imputed_value_floats", 0.0)?;
        let replaced = cx.float("replaced_value_float", 0.0)?;
        let is_missing = if replaced.is_nan() {
            cx.unary(UnaryFn::IsNan, x)?
        } else {
            let replaced = cx.scalar(dtype, replaced)?;
            cx.compare(CompareFn::Eq, x, replaced)?
        };
        (cx.cast(imputed, dtype)?, is_missing)
    } else {
        let imputed = cx.ints("imputed_value_int64s")?.unwrap_or_else(|| vec![0]);
        let replaced = cx.int_scalar(cx.int("replaced_value_int64", 0)?);
        let (imputed, replaced) = (cx.int_vector(&imputed)?, cx.cast(replaced, dtype)?);
        let is_missing = cx.compare(CompareFn::Eq, x, replaced)?;
        (cx.cast(imputed, dtype)?, is_missing)
    };
    Ok(vec![cx.select(is_missing, imputed, x)?])
}

/// Rows over their largest magnitude, sum of magnitudes or length; rows of zeros stay.
fn normalizer(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let x = cx.cast(x, DType::F32)?;
    let axis = cx.axis(-1, cx.rank(x))?;
    let norm = match cx.string("norm", "MAX")?.as_str() {
        "MAX" => cx.reduce(ReduceFn::Max, x, vec![axis], true)?,
        "L1" => cx.reduce(ReduceFn::L1, x, vec![axis], true)?,
        "L2" => cx.reduce(ReduceFn::L2, x, vec![axis], true)?,
        other => return Err(Fault::Invalid(format!("attribute 'norm' is '{other}'; MAX, L1 or L2 was expected"))),
    };
    let (zero, one) = (cx.scalar(DType::F32, 0.0)?, cx.scalar(DType::F32, 1.0)?);
    let is_zero = cx.compare(CompareFn::Eq, norm, zero)?;
    let norm = cx.select(is_zero, one, norm)?;
    Ok(vec![cx.binary(BinaryFn::Div, x, norm)?])
}

/// x times the coefficients of each target, plus its intercept.
fn linear_regressor(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let x = cx.cast(x, DType::F32)?;
    match cx.string("post_transform", "NONE")?.as_str() {
        "NONE" => {}
        other => return Err(Fault::Unsupported(format!("post_transform '{other}' is not covered"))),
    }
    let targets = cx.int("targets", 1)?;
    let targets = usize::try_from(targets)
        .ok()
        .filter(|&targets| targets > 0)
        .ok_or_else(|| Fault::Invalid(format!("attribute 'targets' is {targets}; 1 or more was expected")))?;
    let coefficients = cx.attributes().floats("coefficients")?.unwrap_or_default();
    if !coefficients.len().is_multiple_of(targets) {
        return Err(Fault::Invalid(format!("{} coefficients for {targets} targets", coefficients.len())));
    }
    let x = if cx.rank(x) == 1 { cx.unsqueeze(x, &[0])? } else { x };
    let shape = vec![targets, coefficients.len() / targets];
    let weights = cx.float_tensor(DType::F32, shape, &coefficients)?;
    let weights = cx.transpose(weights, vec![1, 0])?;
    let product = cx.matmul(x, weights)?;
    let Some(intercepts) = cx.attributes().floats("intercepts")? else { return Ok(vec![product]) };
    let intercepts = cx.float_tensor(DType::F32, vec![intercepts.len()], &intercepts)?;
    let intercepts = cx.reshape(intercepts, vec![Dim::ONE, Dim::from(targets)])?;
    Ok(vec![cx.binary(BinaryFn::Add, product, intercepts)?])
}
