//! Inputs for a model at a batch: deterministic, of the right shapes, and valid where a model expects more than noise.

use anyhow::{Context, Result, bail, ensure};
use precast::{DType, Tensor};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::manifest::{InputEntry, ModelEntry};
use crate::pcg64::Pcg64;

/// Text detectors: on noise they find nothing, and the relative error of a sigmoid near 0 says nothing.
const TEXT_DETECTORS: &[&str] = &["ppocrv4_det", "ppocrv6_det_tiny"];

/// Named tensors, in order.
pub type Named = Vec<(String, Tensor)>;

/// The inputs of a model at a batch.
pub fn make(model: &ModelEntry, batch: usize) -> Result<Named> {
    let batch_dim = BatchDim::of(model);
    let past =
        model.inputs.iter().find(|input| input.name.starts_with("past_key_values")).map_or(0, |input| input.example[2]);
    let inputs = model.inputs.iter().map(|input| {
        let shape = batch_dim.shape(input, batch);
        let tensor = make_one(model, input, shape, past);
        Ok((input.name.clone(), tensor.with_context(|| format!("input '{}' of {}", input.name, model.name))?))
    });
    inputs.collect()
}

/// How a model marks its batch dims.
enum BatchDim<'a> {
    /// By the symbol that axis 0 of the first input has.
    Symbol(&'a str),
    /// Not at all: every dim that is declared without a size and is 1 in the example.
    Unnamed,
}

impl BatchDim<'_> {
    fn of(model: &ModelEntry) -> BatchDim<'_> {
        match model.inputs.first().and_then(|input| input.shape.first()) {
            Some(Value::String(symbol)) => BatchDim::Symbol(symbol),
            _ => BatchDim::Unnamed,
        }
    }

    /// The example shape with the batch in its place.
    fn shape(&self, input: &InputEntry, batch: usize) -> Vec<usize> {
        let dims = input.shape.iter().zip(&input.example);
        dims.map(|(declared, &example)| {
            let is_batch = match self {
                BatchDim::Symbol(symbol) => declared.as_str() == Some(*symbol),
                BatchDim::Unnamed => example == 1 && (declared.is_null() || declared.as_i64() == Some(-1)),
            };
            if is_batch { batch } else { example }
        })
        .collect()
    }
}

fn make_one(model: &ModelEntry, input: &InputEntry, shape: Vec<usize>, past: usize) -> Result<Tensor> {
    let dtype = dtype(&input.dtype)?;
    let count = shape.iter().product();
    if let Some(value) = &input.value {
        return Ok(Tensor::from_f64(dtype, shape, &given(value, count)?, true)?);
    }
    let row_elements = shape.last().copied().unwrap_or(1).max(1);
    let mut random = Random::new(&format!("{}:{}:{}", model.name, input.name, shape.first().unwrap_or(&0)));
    let values: Vec<f64> = match (input.name.as_str(), input.integers) {
        ("attention_mask", Some(range)) => mask(range, row_elements, count, &mut random),
        ("position_ids", Some(_)) => (0..count).map(|index| (past + index % row_elements) as f64).collect(),
        (_, Some([low, high])) => (0..count).map(|_| random.integer(low, high) as f64).collect(),
        (_, None) if TEXT_DETECTORS.contains(&model.name.as_str()) => page(&shape, &mut random),
        (_, None) => (0..count).map(|_| random.normal()).collect(),
    };
    Ok(Tensor::from_f64(dtype, shape, &values, true)?)
}

/// Rows of ones and then, where the range allows zeros, zeros. A row without a one has no meaning in a softmax.
fn mask(range: [i64; 2], row_elements: usize, count: usize, random: &mut Random) -> Vec<f64> {
    let mut values = Vec::with_capacity(count);
    while values.len() < count {
        let shortest = if range[0] == 0 { (row_elements / 2).max(1) } else { row_elements };
        let valid = random.integer(shortest as i64, row_elements as i64) as usize;
        values.extend((0..row_elements).map(|column| f64::from(u8::from(column < valid))));
    }
    values
}

/// Images `[batch, channels, height, width]` of dark strokes on a light page, in lines that look like text.
fn page(shape: &[usize], random: &mut Random) -> Vec<f64> {
    const LIGHT: f64 = 2.2;
    const DARK: f64 = -2.0;
    const LINE_PIXELS: usize = 40;
    const LETTER_PIXELS: usize = 14;
    const LETTER_HEIGHT: usize = 18;
    const STROKES: usize = 3;
    let (height, width) = (shape[2], shape[3]);
    let mut values = Vec::new();
    for _ in 0..shape[0] {
        let mut image = vec![LIGHT; height * width];
        for top in (20..height.saturating_sub(LINE_PIXELS / 2)).step_by(LINE_PIXELS) {
            for left in (20..width.saturating_sub(2 * LETTER_PIXELS)).step_by(LETTER_PIXELS) {
                for _ in 0..STROKES {
                    let is_upright = random.integer(0, 1) == 0;
                    let (dy, dx) = if is_upright { (0, random.integer(0, 8)) } else { (random.integer(0, 15), 0) };
                    let (tall, wide) = if is_upright { (LETTER_HEIGHT, 3) } else { (3, 11) };
                    for y in 0..tall {
                        let start = (top + dy as usize + y) * width + left + dx as usize;
                        image[start..start + wide].fill(DARK);
                    }
                }
            }
        }
        (0..shape[1]).for_each(|_| values.extend_from_slice(&image));
    }
    values
}

/// The elements of a `value` of the manifest, repeated to fill the shape.
fn given(value: &Value, count: usize) -> Result<Vec<f64>> {
    let number = |value: &Value| match value {
        Value::Bool(flag) => Ok(f64::from(u8::from(*flag))),
        Value::Number(number) => number.as_f64().context("a number beyond f64"),
        _ => bail!("the value {value} is neither a number nor a flag"),
    };
    let values = match value {
        Value::Array(values) => values.iter().map(number).collect::<Result<Vec<f64>>>()?,
        value => vec![number(value)?; count],
    };
    ensure!(values.len() == count, "{} values are given for {count} elements", values.len());
    Ok(values)
}

fn dtype(name: &str) -> Result<DType> {
    Ok(match name {
        "float32" => DType::F32,
        "float64" => DType::F64,
        "float16" => DType::F16,
        "int64" => DType::I64,
        "int32" => DType::I32,
        "bool" => DType::Bool,
        _ => bail!("the element type '{name}' is not known to xtask"),
    })
}

/// Random numbers of a name.
struct Random(Pcg64);

impl Random {
    fn new(name: &str) -> Random {
        let digest = Sha256::digest(name);
        Random(Pcg64::new(u128::from_le_bytes(std::array::from_fn(|byte| digest[byte]))))
    }

    /// An integer of a range, both ends included. Ranges are far below 2^64, so the remainder's bias does not matter.
    fn integer(&mut self, low: i64, high: i64) -> i64 {
        low + (self.0.next_word() % (high - low + 1) as u64) as i64
    }

    /// About normal, with mean 0 and variance 1: the sum of four uniforms.
    fn normal(&mut self) -> f64 {
        let word = self.0.next_word();
        let total: u64 = (0..4).map(|lane| (word >> (16 * lane)) & 0xFFFF).sum();
        (total as f64 / 65535.0 - 2.0) * 3.0_f64.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes(name: &str, batch: usize) -> Vec<Vec<usize>> {
        let models = crate::manifest::read().unwrap();
        let model = models.iter().find(|model| model.name == name).unwrap();
        let batch_dim = BatchDim::of(model);
        model.inputs.iter().map(|input| batch_dim.shape(input, batch)).collect()
    }

    #[test]
    fn the_batch_may_lie_on_another_axis() {
        assert_eq!(shapes("silero_vad", 3), [vec![3, 576], vec![2, 3, 128], vec![]]);
        assert_eq!(shapes("silero_vad_16k_op15", 3), [vec![3, 576], vec![2, 3, 128], vec![]]);
    }

    #[test]
    fn a_batch_of_minus_one_is_a_batch() {
        assert_eq!(shapes("ppocr_cls", 7), [vec![7, 3, 48, 192]]);
    }

    #[test]
    fn a_flag_keeps_its_size_at_every_batch() {
        assert_eq!(shapes("whisper_tiny_q8_decoder", 3).last().unwrap(), &[1]);
    }

    #[test]
    fn positions_follow_the_past() {
        let models = crate::manifest::read().unwrap();
        let model = models.iter().find(|model| model.name == "gpt2_small").unwrap();
        let inputs = make(model, 1).unwrap();
        let (_, positions) = inputs.iter().find(|(name, _)| name == "position_ids").unwrap();
        assert_eq!(positions.to_vec::<i64>().unwrap(), [128]);
    }

    #[test]
    fn inputs_are_the_same_every_time() {
        let models = crate::manifest::read().unwrap();
        let model = models.iter().find(|model| model.name == "magika").unwrap();
        let digests = || make(model, 3).unwrap()[0].1.digest();
        assert_eq!(digests(), digests());
    }
}
