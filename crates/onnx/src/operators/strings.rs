//! Strings: a table of texts that is known while importing, and a tensor of places in it. What a function makes of a text
//! is computed here for every text of the table; at run time it is a lookup. Operators that move elements move places.

use std::sync::Arc;

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn};
use precast_tensor::Tensor;
use regex::Regex;

use super::{ngram, shape};
use crate::import::{Applies, Fault, Import, NodeCx, Strings, StructureImport, Value, tabulate};
use crate::reader::ElementType;

/// Rows of this family.
pub(super) const STRUCTURES: &[StructureImport] = &[
    of_strings("Cast", 9, 1, cast),
    StructureImport::onnx("Constant", 1, 1, constant),
    of_strings("Equal", 19, 1, equal),
    StructureImport::onnx("RegexFullMatch", 20, 3, regex_full_match),
    of_strings("Shape", 1, 1, |cx| measure(cx, "Shape")),
    of_strings("Size", 1, 1, |cx| measure(cx, "Size")),
    StructureImport::onnx("StringConcat", 20, 3, string_concat),
    StructureImport::onnx("StringNormalizer", 10, 3, string_normalizer),
    StructureImport::onnx("StringSplit", 20, 3, string_split),
    of_strings("TfIdfVectorizer", 9, 3, tf_idf_vectorizer),
];

/// A row for the nodes of an ai.onnx operator that have strings among their inputs.
const fn of_strings(name: &'static str, since: i64, tier: u8, function: crate::import::StructureFn) -> StructureImport {
    StructureImport { domain: "", name, since, tier, applies: Applies::ToStructures, function }
}

type Outputs = Result<Vec<Value>, Fault>;

/// Texts in the table of a concatenation of two strings that only a run knows: all pairs.
const PAIRS_MAX: usize = 1 << 16;

/// Bytes that a regular expression may take once it is compiled.
const REGEX_BYTES_MAX: usize = 16 << 20;

/// ai.onnx operators that move elements without looking at them.
const MOVERS: &[&str] = &[
    "Compress",
    "Concat",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Reshape",
    "ReverseSequence",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
    "Where",
];

fn is_mover(import: &Import) -> bool {
    match import.domain {
        "" => MOVERS.contains(&import.name),
        "ai.onnx.ml" => import.name == "ArrayFeatureExtractor",
        _ => false,
    }
}

/// Imports a node that moves strings as if they were numbers: places of one table for all its inputs.
pub(crate) fn move_strings(cx: &mut NodeCx<'_, '_>, import: &Import) -> Outputs {
    let mut tables = Vec::new();
    for position in 0..cx.input_count() {
        match cx.optional_value(position) {
            Some(Value::Strings(strings)) => tables.push(strings.table),
            Some(Value::Tensor(_)) | None => {}
            Some(other) => return Err(Fault::Unsupported(format!("input {position} is {}", other.kind()))),
        }
    }
    if !is_mover(import) {
        return Err(Fault::Unsupported("strings are not covered as an input".to_string()));
    }
    let table = merged(&tables);
    let mut inputs = Vec::new();
    for position in 0..cx.input_count() {
        inputs.push(match cx.optional_value(position) {
            Some(Value::Strings(strings)) => Some(in_table(cx, &strings, &table)?.places),
            Some(value) => value.tensor(),
            None => None,
        });
    }
    cx.set_inputs(inputs);
    let outputs = (import.function)(cx)?;
    Ok(outputs.into_iter().map(|places| Value::Strings(Strings { table: table.clone(), places })).collect())
}

fn string_input(cx: &NodeCx<'_, '_>, position: usize) -> Result<Strings, Fault> {
    match cx.value(position)? {
        Value::Strings(strings) => Ok(strings),
        other => Err(Fault::Invalid(format!("input {position} is {}; strings were expected", other.kind()))),
    }
}

/// All texts of several tables as one table.
fn merged(tables: &[Arc<[String]>]) -> Arc<[String]> {
    match tables {
        [first, rest @ ..] if rest.iter().all(|table| table == first) => first.clone(),
        tables => tabulate(&tables.iter().flat_map(|table| table.iter().cloned()).collect::<Vec<_>>()).0,
    }
}

/// The same strings as places in a larger table.
fn in_table(cx: &mut NodeCx<'_, '_>, strings: &Strings, table: &Arc<[String]>) -> Result<Strings, Fault> {
    if strings.table == *table {
        return Ok(strings.clone());
    }
    let place = |text: &String| table.binary_search(text).map_or(-1, |place| place as i64);
    let places: Vec<i64> = strings.table.iter().map(place).collect();
    let places = look_up(cx, strings, places)?;
    Ok(Strings { table: table.clone(), places })
}

/// One number for each text, at the places of the strings.
fn look_up(cx: &mut NodeCx<'_, '_>, strings: &Strings, numbers: Vec<i64>) -> Result<ValueId, Fault> {
    let numbers = cx.int_vector(&numbers)?;
    cx.gather(numbers, strings.places, 0)
}

/// Strings with every text replaced.
fn map_texts(cx: &mut NodeCx<'_, '_>, strings: &Strings, map: impl Fn(&str) -> String) -> Result<Strings, Fault> {
    let texts: Vec<String> = strings.table.iter().map(|text| map(text)).collect();
    let (table, places) = tabulate(&texts);
    let places = look_up(cx, strings, places)?;
    Ok(Strings { table, places })
}

/// Shape and elements of strings that decide the form of the Graph.
fn require_texts(cx: &NodeCx<'_, '_>, strings: &Strings, what: &str) -> Result<(Vec<usize>, Vec<String>), Fault> {
    let places = cx.require_constant(strings.places, what)?;
    let elements = places.to_i64_vec().map_err(|error| Fault::Invalid(error.to_string()))?;
    let text = |place: &i64| usize::try_from(*place).ok().and_then(|place| strings.table.get(place)).cloned();
    let texts: Option<Vec<String>> = elements.iter().map(text).collect();
    let texts = texts.ok_or_else(|| Fault::Invalid(format!("{what}: a place is outside of its table")))?;
    Ok((places.shape().to_vec(), texts))
}

/// Strings that are known.
fn known(cx: &mut NodeCx<'_, '_>, shape: Vec<usize>, texts: &[String]) -> Result<Value, Fault> {
    let (table, places) = tabulate(texts);
    let places = Tensor::from_vec(shape, places).map_err(|error| Fault::Invalid(error.to_string()))?;
    Ok(Value::Strings(Strings { table, places: cx.tensor(places) }))
}

/// Constant of strings; one of numbers is imported as any tensor.
fn constant(cx: &mut NodeCx<'_, '_>) -> Outputs {
    if let Some(text) = cx.attributes().string("value_string")? {
        return Ok(vec![known(cx, Vec::new(), &[text])?]);
    }
    if let Some(texts) = cx.attributes().strings("value_strings")? {
        return Ok(vec![known(cx, vec![texts.len()], &texts)?]);
    }
    if let Some(proto) = cx.attributes().tensor("value")?
        && matches!(ElementType::from_onnx(proto.data_type), Ok(ElementType::String))
    {
        let strings = cx.read_strings(proto)?;
        return Ok(vec![known(cx, strings.shape().to_vec(), strings.elements())?]);
    }
    Ok(shape::constant(cx)?.into_iter().map(Value::Tensor).collect())
}

/// Shape and Size look at no element, so they may look at places.
fn measure(cx: &mut NodeCx<'_, '_>, name: &str) -> Outputs {
    let places = string_input(cx, 0)?.places;
    cx.set_inputs(vec![Some(places)]);
    let import = super::find("", name, cx.opset()).ok_or_else(|| Fault::Unsupported("not covered".to_string()))?;
    Ok((import.function)(cx)?.into_iter().map(Value::Tensor).collect())
}

fn equal(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (a, b) = (string_input(cx, 0)?, string_input(cx, 1)?);
    let table = merged(&[a.table.clone(), b.table.clone()]);
    let (a, b) = (in_table(cx, &a, &table)?, in_table(cx, &b, &table)?);
    Ok(vec![cx.compare(CompareFn::Eq, a.places, b.places)?.into()])
}

/// Strings as numbers, by the spelling of floats: 1e-3, NaN, INF.
fn cast(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let strings = string_input(cx, 0)?;
    cx.flag("saturate", true)?;
    cx.string("round_mode", "up")?;
    let number = cx.int("to", 0)?;
    if i32::try_from(number).map(ElementType::from_onnx) == Ok(Ok(ElementType::String)) {
        return Ok(vec![Value::Strings(strings)]);
    }
    let Some(to) = cx.dtype_attribute("to")? else {
        return Err(Fault::Invalid("attribute 'to' is missing".to_string()));
    };
    let parse = |text: &String| {
        text.trim().parse::<f64>().map_err(|_| Fault::Invalid(format!("the string '{text}' is not a number")))
    };
    let numbers: Vec<f64> = strings.table.iter().map(parse).collect::<Result<_, _>>()?;
    let numbers = Tensor::from_f64(to, vec![numbers.len()], &numbers, true);
    let numbers = cx.tensor(numbers.map_err(|error| Fault::Invalid(error.to_string()))?);
    Ok(vec![cx.gather(numbers, strings.places, 0)?.into()])
}

fn string_concat(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (a, b) = (string_input(cx, 0)?, string_input(cx, 1)?);
    let pairs = a.table.len().saturating_mul(b.table.len());
    if pairs > PAIRS_MAX {
        return Err(Fault::Unsupported(format!("{pairs} pairs of texts; {PAIRS_MAX} or fewer are covered")));
    }
    let texts: Vec<String> =
        a.table.iter().flat_map(|first| b.table.iter().map(move |second| format!("{first}{second}"))).collect();
    let rows = cx.binary_scalar(BinaryFn::Mul, a.places, b.table.len() as f64)?;
    let places = cx.binary(BinaryFn::Add, rows, b.places)?;
    let (table, numbers) = tabulate(&texts);
    let places = look_up(cx, &Strings { table: table.clone(), places }, numbers)?;
    Ok(vec![Value::Strings(Strings { table, places })])
}

fn regex_full_match(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let strings = string_input(cx, 0)?;
    let pattern = cx.string("pattern", "")?;
    // The engine takes time linear in the text, whatever the pattern; its own size is limited here.
    let regex = regex::RegexBuilder::new(&format!(r"\A(?:{pattern})\z")).size_limit(REGEX_BYTES_MAX).build();
    let regex: Regex = regex.map_err(|error| Fault::Invalid(format!("attribute 'pattern': {error}")))?;
    let matches: Vec<bool> = strings.table.iter().map(|text| regex.is_match(text)).collect();
    let matches = Tensor::from_bools(vec![matches.len()], &matches);
    let matches = cx.tensor(matches.map_err(|error| Fault::Invalid(error.to_string()))?);
    Ok(vec![cx.gather(matches, strings.places, 0)?.into()])
}

/// Removes stop words, then changes the case. Where all words go, one empty string stays.
fn string_normalizer(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let strings = string_input(cx, 0)?;
    let change: fn(&str) -> String = match cx.string("case_change_action", "NONE")?.as_str() {
        "NONE" => str::to_string,
        "LOWER" => str::to_lowercase,
        "UPPER" => str::to_uppercase,
        other => return Err(Fault::Invalid(format!("attribute 'case_change_action' is '{other}'"))),
    };
    // Upper and lower case are those of Unicode, which no locale but Turkish and Lithuanian changes.
    cx.string("locale", "")?;
    let is_case_sensitive = cx.flag("is_case_sensitive", false)?;
    let stop_words = cx.attributes().strings("stopwords")?.unwrap_or_default();
    if stop_words.is_empty() {
        return Ok(vec![Value::Strings(map_texts(cx, &strings, change)?)]);
    }
    let folded = |text: &str| if is_case_sensitive { text.to_string() } else { text.to_lowercase() };
    let stop_words: Vec<String> = stop_words.iter().map(|word| folded(word)).collect();
    let (mut shape, words) = require_texts(cx, &strings, "which words are stop words")?;
    if !matches!(shape[..], [_] | [1, _]) {
        return Err(Fault::Invalid(format!("the input has shape {shape:?}; [C] or [1, C] was expected")));
    }
    let kept = words.iter().filter(|word| !stop_words.contains(&folded(word)));
    let mut kept: Vec<String> = kept.map(|word| change(word)).collect();
    if kept.is_empty() {
        kept.push(String::new());
    }
    if let Some(last) = shape.last_mut() {
        *last = kept.len();
    }
    Ok(vec![known(cx, shape, &kept)?])
}

/// Parts of every string along a new last axis, filled up with empty strings, and how many there are.
fn string_split(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let strings = string_input(cx, 0)?;
    let delimiter = cx.string("delimiter", "")?;
    let splits_max = match cx.attributes().int("maxsplit")? {
        Some(most) => usize::try_from(most).unwrap_or(usize::MAX),
        None => usize::MAX,
    };
    let (mut shape, texts) = require_texts(cx, &strings, "the number of parts of strings")?;
    let split: Vec<Vec<String>> = texts.iter().map(|text| parts_of(text, &delimiter, splits_max)).collect();
    let counts: Vec<i64> = split.iter().map(|parts| parts.len() as i64).collect();
    let width = split.iter().map(Vec::len).max().unwrap_or(0);
    let counts = Tensor::from_vec(shape.clone(), counts).map_err(|error| Fault::Invalid(error.to_string()))?;
    let padded: Vec<String> = split
        .into_iter()
        .flat_map(|parts| parts.into_iter().chain(std::iter::repeat(String::new())).take(width))
        .collect();
    shape.push(width);
    Ok(vec![known(cx, shape, &padded)?, cx.tensor(counts).into()])
}

/// Without a delimiter, words between white space; then the rest after the last split keeps its white space.
fn parts_of(text: &str, delimiter: &str, splits_max: usize) -> Vec<String> {
    if !delimiter.is_empty() {
        return text.splitn(splits_max.saturating_add(1), delimiter).map(str::to_string).collect();
    }
    let (mut parts, mut rest) = (Vec::new(), text.trim_start());
    while !rest.is_empty() {
        match rest.split_once(char::is_whitespace).filter(|_| parts.len() < splits_max) {
            Some((word, after)) => {
                parts.push(word.to_string());
                rest = after.trim_start();
            }
            None => {
                parts.push(rest.to_string());
                rest = "";
            }
        }
    }
    parts
}

/// n-grams of strings are n-grams of places; a text of the pool that is not in the table occurs nowhere.
fn tf_idf_vectorizer(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let strings = string_input(cx, 0)?;
    let pool = cx
        .attributes()
        .strings("pool_strings")?
        .ok_or_else(|| Fault::Invalid("attribute 'pool_strings' is missing for a pool of strings".to_string()))?;
    let place = |text: &String| strings.table.binary_search(text).map_or(-1, |place| place as i64);
    let places: Vec<i64> = pool.iter().map(place).collect();
    Ok(vec![ngram::count_ngrams(cx, strings.places, &places)?.into()])
}

#[cfg(test)]
mod tests {
    use super::parts_of;

    #[test]
    fn words_end_at_white_space_or_at_the_delimiter() {
        assert_eq!(parts_of(" a  b\tc ", "", usize::MAX), ["a", "b", "c"]);
        assert_eq!(parts_of(" a  b c ", "", 1), ["a", "b c "]);
        assert_eq!(parts_of("a--b-", "-", usize::MAX), ["a", "", "b", ""]);
        assert_eq!(parts_of("a-b-c", "-", 1), ["a", "b-c"]);
        assert_eq!(parts_of("", "", 3), Vec::<String>::new());
        assert_eq!(parts_of("", "-", 3), [""]);
    }
}
