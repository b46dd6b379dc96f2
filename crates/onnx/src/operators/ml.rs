//! ai.onnx.ml: the operators of classical pipelines that work on numbers alone, and what all of the domain share: what
//! becomes of scores at last, and labels.

use precast_ir::ValueId;
use precast_ir::op::{ArgFn, ArgReduce, BinaryFn, CompareFn, ReduceFn, UnaryFn};
use precast_tensor::DType;

use crate::import::{Fault, Import, ImportFn, NodeCx, Strings, Value, tabulate};

/// Rows of this family.
pub(super) const IMPORTS: &[Import] = &[
    row("ArrayFeatureExtractor", array_feature_extractor),
    row("Binarizer", binarizer),
    row("Imputer", imputer),
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

/// What becomes of scores at last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostTransform {
    None,
    Softmax,
    Logistic,
    /// Softmax in which scores of 0 stay 0.
    SoftmaxZero,
    /// The inverse of the normal distribution.
    Probit,
}

const POST_TRANSFORMS: [(&str, PostTransform); 5] = [
    ("NONE", PostTransform::None),
    ("SOFTMAX", PostTransform::Softmax),
    ("LOGISTIC", PostTransform::Logistic),
    ("SOFTMAX_ZERO", PostTransform::SoftmaxZero),
    ("PROBIT", PostTransform::Probit),
];

impl PostTransform {
    /// The attribute `post_transform`, by name.
    pub(super) fn of_attribute(cx: &NodeCx<'_, '_>) -> Result<PostTransform, Fault> {
        let name = cx.string("post_transform", "NONE")?;
        let known = POST_TRANSFORMS.iter().find(|(known, _)| *known == name);
        let known = known.ok_or_else(|| Fault::Invalid(format!("attribute 'post_transform' is '{name}'")))?;
        Ok(known.1)
    }

    /// The attribute `post_transform`, by number.
    pub(super) fn of_number(number: i64) -> Result<PostTransform, Fault> {
        let known = usize::try_from(number).ok().and_then(|number| POST_TRANSFORMS.get(number));
        let known = known.ok_or_else(|| Fault::Invalid(format!("attribute 'post_transform' is {number}")))?;
        Ok(known.1)
    }

    /// Scores [rows, targets] as this makes them.
    pub(super) fn apply(self, cx: &mut NodeCx<'_, '_>, scores: ValueId) -> Result<ValueId, Fault> {
        match self {
            PostTransform::None => Ok(scores),
            PostTransform::Softmax => cx.softmax(scores, 1),
            PostTransform::Logistic => cx.unary(UnaryFn::Sigmoid, scores),
            PostTransform::SoftmaxZero => softmax_zero(cx, scores),
            PostTransform::Probit => probit(cx, scores),
        }
    }
}

/// Softmax over the scores that are not 0; those that are stay so.
fn softmax_zero(cx: &mut NodeCx<'_, '_>, scores: ValueId) -> Result<ValueId, Fault> {
    let dtype = cx.dtype(scores);
    let (zero, one) = (cx.scalar(dtype, 0.0)?, cx.scalar(dtype, 1.0)?);
    let is_zero = cx.compare(CompareFn::Eq, scores, zero)?;
    let largest = cx.reduce(ReduceFn::Max, scores, vec![1], true)?;
    let moved = cx.binary(BinaryFn::Sub, scores, largest)?;
    let powers = cx.unary(UnaryFn::Exp, moved)?;
    let powers = cx.select(is_zero, zero, powers)?;
    let sum = cx.reduce(ReduceFn::Sum, powers, vec![1], true)?;
    let is_empty = cx.compare(CompareFn::Eq, sum, zero)?;
    let sum = cx.select(is_empty, one, sum)?;
    cx.binary(BinaryFn::Div, powers, sum)
}

/// sqrt(2) times the inverse of erf at 2x - 1, by Winitzki's formula, as onnxruntime has it.
fn probit(cx: &mut NodeCx<'_, '_>, scores: ValueId) -> Result<ValueId, Fault> {
    const A: f64 = 0.147;
    let x = cx.unary_with(UnaryFn::Affine, 2.0, -1.0, scores)?;
    let zero = cx.scalar(cx.dtype(x), 0.0)?;
    let is_negative = cx.compare(CompareFn::Lt, x, zero)?;
    let square = cx.binary(BinaryFn::Mul, x, x)?;
    let rest = cx.unary_with(UnaryFn::Affine, -1.0, 1.0, square)?;
    let log = cx.unary(UnaryFn::Log, rest)?;
    let term = cx.unary_with(UnaryFn::Affine, 0.5, 2.0 / (std::f64::consts::PI * A), log)?;
    let term_square = cx.binary(BinaryFn::Mul, term, term)?;
    let scaled = cx.unary_with(UnaryFn::Affine, 1.0 / A, 0.0, log)?;
    let root = cx.binary(BinaryFn::Sub, term_square, scaled)?;
    let root = cx.unary(UnaryFn::Sqrt, root)?;
    let inner = cx.binary(BinaryFn::Sub, root, term)?;
    let inverse = cx.unary(UnaryFn::Sqrt, inner)?;
    let inverse = cx.unary_with(UnaryFn::Affine, std::f64::consts::SQRT_2, 0.0, inverse)?;
    let opposite = cx.unary(UnaryFn::Neg, inverse)?;
    cx.select(is_negative, opposite, inverse)
}

/// Names or numbers of classes.
#[derive(Debug)]
pub(super) enum Labels {
    Numbers(Vec<i64>),
    Texts(Vec<String>),
}

impl Labels {
    /// How many classes there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Labels::Numbers(numbers) => numbers.len(),
            Labels::Texts(texts) => texts.len(),
        }
    }
}

/// The labels of a classifier; `numbers` is the name of the attribute that has them as numbers.
pub(super) fn labels(cx: &NodeCx<'_, '_>, numbers: &str) -> Result<Labels, Fault> {
    match cx.attributes().strings("classlabels_strings")?.filter(|texts| !texts.is_empty()) {
        Some(texts) => Ok(Labels::Texts(texts)),
        None => Ok(Labels::Numbers(cx.ints(numbers)?.unwrap_or_default())),
    }
}

/// The labels at places.
pub(super) fn label_values(cx: &mut NodeCx<'_, '_>, places: ValueId, labels: &Labels) -> Result<Value, Fault> {
    match labels {
        Labels::Numbers(numbers) => {
            let numbers = cx.int_vector(numbers)?;
            Ok(cx.gather(numbers, places, 0)?.into())
        }
        Labels::Texts(texts) => texts_at(cx, places, texts),
    }
}

/// Texts of a list at places.
pub(super) fn texts_at(cx: &mut NodeCx<'_, '_>, places: ValueId, texts: &[String]) -> Result<Value, Fault> {
    let (table, in_table) = tabulate(texts);
    let in_table = cx.int_vector(&in_table)?;
    let places = cx.gather(in_table, places, 0)?;
    Ok(Value::Strings(Strings { table, places }))
}

/// The place of the largest score of each row; of equal ones the first.
pub(super) fn best(cx: &mut NodeCx<'_, '_>, scores: ValueId) -> Result<ValueId, Fault> {
    cx.add(ArgReduce { func: ArgFn::Max, axis: 1, keep_dims: false, last: false }, &[scores])
}

/// An input as rows of features; a vector is one row.
pub(super) fn rows_of(cx: &mut NodeCx<'_, '_>, position: usize) -> Result<ValueId, Fault> {
    let x = cx.input(position)?;
    match cx.rank(x) {
        1 => cx.unsqueeze(x, &[0]),
        2 => Ok(x),
        rank => Err(Fault::Invalid(format!("input {position} has rank {rank}; 1 or 2 was expected"))),
    }
}
