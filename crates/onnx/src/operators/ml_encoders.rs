//! ai.onnx.ml: encoders between labels, numbers and columns. Strings are looked up in the table of texts, which is known;
//! numbers are compared with every key.

use precast_ir::ValueId;
use precast_ir::op::{ArgFn, ArgReduce, BinaryFn, CompareFn, ReduceFn, UnaryFn};
use precast_tensor::{DType, Dim, Tensor};

use super::ml::{rows_of, texts_at};
use crate::import::{Applies, Fault, Import, NodeCx, StructureFn, StructureImport, Value};
use crate::reader::ElementType;

/// Rows of this family.
pub(super) const IMPORTS: &[Import] =
    &[Import { domain: "ai.onnx.ml", name: "FeatureVectorizer", since: 1, tier: 3, function: feature_vectorizer }];

/// Rows of operators on strings, and of ZipMap, whose maps are left to the caller.
pub(super) const STRUCTURES: &[StructureImport] = &[
    row("CategoryMapper", 1, category_mapper),
    row("LabelEncoder", 1, label_encoder_1),
    row("LabelEncoder", 2, label_encoder_2),
    row("OneHotEncoder", 1, one_hot_encoder),
    row("ZipMap", 1, zip_map),
];

const fn row(name: &'static str, since: i64, function: StructureFn) -> StructureImport {
    StructureImport { domain: "ai.onnx.ml", name, since, tier: 3, applies: Applies::Always, function }
}

type Outputs = Result<Vec<Value>, Fault>;

/// Keys or values of a mapping.
#[derive(Clone, Debug)]
enum Entries {
    Texts(Vec<String>),
    Numbers(Tensor),
}

impl Entries {
    fn len(&self) -> usize {
        match self {
            Entries::Texts(texts) => texts.len(),
            Entries::Numbers(numbers) => numbers.len(),
        }
    }

    fn of_ints(ints: Vec<i64>) -> Result<Entries, Fault> {
        vector(Tensor::from_vec(vec![ints.len()], ints))
    }

    fn of_floats(floats: &[f64]) -> Result<Entries, Fault> {
        vector(Tensor::from_f64(DType::F32, vec![floats.len()], floats, true))
    }
}

fn vector(tensor: Result<Tensor, precast_tensor::TensorError>) -> Result<Entries, Fault> {
    tensor.map(Entries::Numbers).map_err(|error| Fault::Invalid(error.to_string()))
}

/// Values by key, and what an unknown key becomes: the entry behind the last one.
struct Mapping {
    keys: Entries,
    values: Entries,
}

impl Mapping {
    /// The value of every element of an input.
    fn apply(&self, cx: &mut NodeCx<'_, '_>, input: &Value) -> Outputs {
        let places = self.places(cx, input)?;
        match &self.values {
            Entries::Texts(texts) => Ok(vec![texts_at(cx, places, texts)?]),
            Entries::Numbers(numbers) => {
                let numbers = cx.tensor(numbers.clone());
                Ok(vec![cx.gather(numbers, places, 0)?.into()])
            }
        }
    }

    /// Which entry an element is; the number of keys where it is none.
    fn places(&self, cx: &mut NodeCx<'_, '_>, input: &Value) -> Result<ValueId, Fault> {
        match (&self.keys, input) {
            (Entries::Texts(keys), Value::Strings(strings)) => {
                let place = |text: &String| keys.iter().position(|key| key == text).unwrap_or(keys.len()) as i64;
                let places: Vec<i64> = strings.table.iter().map(place).collect();
                let places = cx.int_vector(&places)?;
                cx.gather(places, strings.places, 0)
            }
            (Entries::Numbers(keys), Value::Tensor(x)) => number_places(cx, *x, keys),
            (Entries::Texts(_), other) => invalid(format!("the keys are strings and the input is {}", other.kind())),
            (Entries::Numbers(_), other) => invalid(format!("the keys are numbers and the input is {}", other.kind())),
        }
    }
}

fn invalid<T>(text: String) -> Result<T, Fault> {
    Err(Fault::Invalid(text))
}

/// Which of several numbers an element is; their count where it is none. NaN is equal to a key that is NaN.
fn number_places(cx: &mut NodeCx<'_, '_>, x: ValueId, keys: &Tensor) -> Result<ValueId, Fault> {
    let axis = cx.rank(x);
    let dtype = if cx.dtype(x).is_float() || keys.dtype().is_float() { DType::F64 } else { DType::I64 };
    let x = cx.cast(x, dtype)?;
    let x = cx.unsqueeze(x, &[axis])?;
    let table = cx.tensor(keys.clone());
    let table = cx.cast(table, dtype)?;
    let mut is_key = cx.compare(CompareFn::Eq, x, table)?;
    if keys.to_f64_vec().iter().any(|key| key.is_nan()) {
        let (is_nan, is_nan_key) = (cx.unary(UnaryFn::IsNan, x)?, cx.unary(UnaryFn::IsNan, table)?);
        let both = cx.binary(BinaryFn::And, is_nan, is_nan_key)?;
        is_key = cx.binary(BinaryFn::Or, is_key, both)?;
    }
    let counted = cx.cast(is_key, DType::I64)?;
    let first = cx.add(ArgReduce { func: ArgFn::Max, axis, keep_dims: false, last: false }, &[counted])?;
    let is_any = cx.reduce(ReduceFn::Any, is_key, vec![axis], false)?;
    let none = cx.int_scalar(keys.len() as i64);
    cx.select(is_any, first, none)
}

/// A mapping between the strings and the numbers of two lists of equal length, in the direction of the input.
fn between(cx: &mut NodeCx<'_, '_>, texts: Vec<String>, ints: Vec<i64>) -> Outputs {
    let input = cx.value(0)?;
    let mapping = match &input {
        Value::Strings(_) => {
            let mut values = ints;
            values.push(cx.int("default_int64", -1)?);
            cx.string("default_string", "_Unused")?;
            Mapping { keys: Entries::Texts(texts), values: Entries::of_ints(values)? }
        }
        _ => {
            let mut values = texts;
            values.push(cx.string("default_string", "_Unused")?);
            cx.int("default_int64", -1)?;
            Mapping { keys: Entries::of_ints(ints)?, values: Entries::Texts(values) }
        }
    };
    mapping.apply(cx, &input)
}

fn category_mapper(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let texts = cx.attributes().strings("cats_strings")?.unwrap_or_default();
    let ints = cx.ints("cats_int64s")?.unwrap_or_default();
    if texts.len() != ints.len() {
        return invalid(format!("{} strings for {} numbers", texts.len(), ints.len()));
    }
    between(cx, texts, ints)
}

/// Strings and their places in a list.
fn label_encoder_1(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let texts = cx.attributes().strings("classes_strings")?.unwrap_or_default();
    let ints = (0..texts.len() as i64).collect();
    between(cx, texts, ints)
}

/// The one attribute of several that has keys or values: `stem` with the ending of its type, or as a tensor.
fn entries(cx: &NodeCx<'_, '_>, stem: &str) -> Result<Entries, Fault> {
    if let Some(texts) = cx.attributes().strings(&format!("{stem}_strings"))? {
        return Ok(Entries::Texts(texts));
    }
    if let Some(ints) = cx.ints(&format!("{stem}_int64s"))? {
        return Entries::of_ints(ints);
    }
    if let Some(floats) = cx.attributes().floats(&format!("{stem}_floats"))? {
        return Entries::of_floats(&floats);
    }
    let Some(proto) = cx.attributes().tensor(&format!("{stem}_tensor"))? else {
        return invalid(format!("no attribute has the {stem}"));
    };
    if matches!(ElementType::from_onnx(proto.data_type), Ok(ElementType::String)) {
        return Ok(Entries::Texts(cx.read_strings(proto)?.elements().to_vec()));
    }
    let tensor = cx.read_tensor(proto)?;
    vector(tensor.reshaped(vec![tensor.len()]))
}

fn label_encoder_2(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (keys, values) = (entries(cx, "keys")?, entries(cx, "values")?);
    if keys.len() != values.len() {
        return invalid(format!("{} values for {} keys", values.len(), keys.len()));
    }
    let values = with_default(cx, values)?;
    let input = cx.value(0)?;
    Mapping { keys, values }.apply(cx, &input)
}

/// Values with the one for unknown keys behind them.
fn with_default(cx: &NodeCx<'_, '_>, values: Entries) -> Result<Entries, Fault> {
    let (text, int) = (cx.string("default_string", "_Unused")?, cx.int("default_int64", -1)?);
    // -0 is what the operator's text has.
    let float = cx.float("default_float", -0.0)?;
    let tensor = cx.attributes().tensor("default_tensor")?;
    match values {
        Entries::Texts(mut texts) => {
            let given = tensor.map(|proto| cx.read_strings(proto)).transpose()?;
            texts.push(given.and_then(|given| given.elements().first().cloned()).unwrap_or(text));
            Ok(Entries::Texts(texts))
        }
        Entries::Numbers(numbers) => {
            let given = tensor.map(|proto| cx.read_tensor(proto)).transpose()?;
            let dtype = numbers.dtype();
            let shape = vec![numbers.len() + 1];
            if dtype.is_float() {
                let mut floats = numbers.to_f64_vec();
                floats.push(given.and_then(|given| given.to_f64_vec().first().copied()).unwrap_or(float));
                return vector(Tensor::from_f64(dtype, shape, &floats, true));
            }
            let whole = |tensor: &Tensor| tensor.to_i128_vec().map_err(|error| Fault::Invalid(error.to_string()));
            let mut ints = whole(&numbers)?;
            let given = given.map(|given| whole(&given)).transpose()?.and_then(|given| given.first().copied());
            ints.push(given.unwrap_or(i128::from(int)));
            vector(Tensor::from_i128(dtype, shape, &ints))
        }
    }
}

/// 1 at the place of each element's category along a new last axis. An unknown category is a row of zeros, also where the
/// operator's text would have an error: a compiled model cannot stop at a value.
fn one_hot_encoder(cx: &mut NodeCx<'_, '_>) -> Outputs {
    cx.flag("zeros", true)?;
    let keys = match cx.attributes().strings("cats_strings")?.filter(|texts| !texts.is_empty()) {
        Some(texts) => Entries::Texts(texts),
        None => Entries::of_ints(cx.ints("cats_int64s")?.unwrap_or_default())?,
    };
    let count = keys.len();
    let values = Entries::of_ints(Vec::new())?;
    let input = cx.value(0)?;
    let places = Mapping { keys, values }.places(cx, &input)?;
    let axis = cx.rank(places);
    let places = cx.unsqueeze(places, &[axis])?;
    let categories = cx.iota(Dim::ZERO, Dim::from(count))?;
    let is_category = cx.compare(CompareFn::Eq, places, categories)?;
    Ok(vec![cx.cast(is_category, DType::F32)?.into()])
}

/// Inputs as columns of one matrix of f32.
fn feature_vectorizer(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>, Fault> {
    let sizes = cx.ints("inputdimensions")?;
    let mut columns = Vec::new();
    for position in 0..cx.input_count() {
        let x = rows_of(cx, position)?;
        let wanted = sizes.as_ref().and_then(|sizes| sizes.get(position));
        if let (Some(&wanted), Some(found)) = (wanted, cx.dims(x)[1].as_const())
            && wanted != found
        {
            return invalid(format!("input {position} has {found} columns; {wanted} were declared"));
        }
        columns.push(cx.cast(x, DType::F32)?);
    }
    Ok(vec![cx.concat(&columns, 1)?])
}

/// A map for each row, of which the scores stay and the labels, which are constants of the model, go.
fn zip_map(cx: &mut NodeCx<'_, '_>) -> Outputs {
    cx.attributes().strings("classlabels_strings")?;
    cx.ints("classlabels_int64s")?;
    Ok(vec![cx.value(0)?])
}
