//! Fills a skeleton: an ONNX file whose large initializers have a name, a type and dims but no data. The doc string of
//! such an initializer is the recipe of its values, `normal MEAN STD` or `uniform LOW HIGH`.
//!
//! Values depend on the recipe, the initializer's name, its dims and the seed, on nothing else. They come from the raw
//! words of PCG64 by integer sums and IEEE multiplications, so they have the same bits on every machine: "normal" is
//! the sum of four uniforms, whose tails end at 3.46 STD. All bytes but the filled initializers are copied unread.

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};
use sha2::{Digest, Sha256};

use crate::pcg64::Pcg64;

/// The seed that the digests of skeletons.json belong to.
const SEED: u32 = 0;

/// Field number of the graph in a model and of an initializer in a graph.
const MODEL_GRAPH: u32 = 7;
const GRAPH_INITIALIZER: u32 = 5;

/// Number of f32 among the ONNX element types.
const ONNX_FLOAT: i32 = 1;

/// A complete model.
pub struct Filled {
    /// The ONNX file.
    pub model: Bytes,
    /// SHA-256 of all filled values in order, as hex.
    pub values_sha256: String,
}

/// Fills every stripped initializer of a skeleton.
pub fn fill(skeleton: Bytes) -> Result<Filled> {
    let mut sha256 = Sha256::new();
    let model = rewrite(skeleton, MODEL_GRAPH, &mut |graph| {
        rewrite(graph, GRAPH_INITIALIZER, &mut |tensor| fill_tensor(tensor, &mut sha256))
    })?;
    Ok(Filled { model, values_sha256: hex(&sha256.finalize()) })
}

/// Lower-case hex digits of some bytes.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The fields of a TensorProto that a skeleton's initializers have.
#[derive(Clone, PartialEq, Message)]
struct Initializer {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(bytes = "bytes", optional, tag = "9")]
    raw_data: Option<Bytes>,
    #[prost(string, tag = "12")]
    doc_string: String,
}

/// The initializer with its data, or unchanged where it has some.
fn fill_tensor(encoded: Bytes, sha256: &mut Sha256) -> Result<Bytes> {
    let mut tensor = Initializer::decode(encoded.clone())?;
    let count: i64 = tensor.dims.iter().product();
    let is_stripped = !tensor.doc_string.is_empty() && tensor.raw_data.is_none() && count > 0;
    if !is_stripped {
        return Ok(encoded);
    }
    let name = &tensor.name;
    ensure!(tensor.data_type == ONNX_FLOAT, "initializer '{name}' has element type {}, not f32", tensor.data_type);
    let recipe = Recipe::parse(&tensor.doc_string).with_context(|| format!("initializer '{name}'"))?;
    let values = sample(recipe, name, count as usize);
    sha256.update(&values);
    tensor.raw_data = Some(values);
    tensor.doc_string.clear();
    Ok(tensor.encode_to_vec().into())
}

/// How the values of an initializer are made.
#[derive(Clone, Copy)]
enum Recipe {
    Normal { mean: f64, std: f64 },
    Uniform { low: f64, high: f64 },
}

impl Recipe {
    fn parse(text: &str) -> Result<Recipe> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["normal", mean, std] => Ok(Recipe::Normal { mean: mean.parse()?, std: std.parse()? }),
            ["uniform", low, high] => Ok(Recipe::Uniform { low: low.parse()?, high: high.parse()? }),
            _ => bail!("unknown recipe '{text}'"),
        }
    }
}

/// `count` values as little-endian f32.
fn sample(recipe: Recipe, name: &str, count: usize) -> Bytes {
    let digest = Sha256::digest(format!("{SEED}:{name}"));
    let seed: [u8; 16] = std::array::from_fn(|byte| digest[byte]);
    let mut words = Pcg64::new(u128::from_le_bytes(seed));
    let mut values = BytesMut::with_capacity(count * size_of::<f32>());
    for _ in 0..count {
        let word = words.next_word();
        let lane = |lane: u32| (word >> (16 * lane)) & 0xFFFF;
        let value = match recipe {
            Recipe::Normal { mean, std } => {
                // Four uniform u16 have the mean 2 * 65535 and the variance 4 * (65536^2 - 1) / 12.
                let scale = std / ((65536.0_f64 * 65536.0 - 1.0) / 3.0).sqrt();
                let total = (lane(0) + lane(1) + lane(2) + lane(3)) as i64 - 2 * 65535;
                total as f64 * scale + mean
            }
            Recipe::Uniform { low, high } => lane(0) as f64 * ((high - low) / 65535.0) + low,
        };
        values.put_f32_le(value as f32);
    }
    values.freeze()
}

/// A protobuf message with the payload of every length-delimited field `number` replaced.
fn rewrite(message: Bytes, number: u32, replace: &mut dyn FnMut(Bytes) -> Result<Bytes>) -> Result<Bytes> {
    let mut rest = message.clone();
    let mut out = BytesMut::new();
    while rest.has_remaining() {
        let start = message.len() - rest.len();
        let (field, wire_type) = decode_key(&mut rest)?;
        let payload_bytes = match wire_type {
            WireType::Varint => {
                decode_varint(&mut rest)?;
                0
            }
            WireType::ThirtyTwoBit => 4,
            WireType::SixtyFourBit => 8,
            WireType::LengthDelimited => decode_varint(&mut rest)? as usize,
            WireType::StartGroup | WireType::EndGroup => bail!("field {field} is a group, which ONNX does not use"),
        };
        ensure!(payload_bytes <= rest.len(), "field {field} is longer than its message");
        let payload = rest.split_to(payload_bytes);
        if field == number && wire_type == WireType::LengthDelimited {
            let payload = replace(payload)?;
            encode_key(field, wire_type, &mut out);
            encode_varint(payload.len() as u64, &mut out);
            out.put(payload);
        } else {
            out.put(message.slice(start..message.len() - rest.len()));
        }
    }
    Ok(out.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_numpy() {
        let bits = |recipe: &str| -> Vec<u32> {
            let values = sample(Recipe::parse(recipe).unwrap(), "layer.weight", 4);
            values.chunks(4).map(|chunk| u32::from_le_bytes(chunk.try_into().unwrap())).collect()
        };
        assert_eq!(bits("normal 0.5 0.02"), [1056567157, 1057719248, 1057388494, 1057121804]);
        assert_eq!(bits("uniform -1 3"), [1065665797, 1072476525, 1043256495, 1073839297]);
    }

    #[test]
    fn the_smallest_skeleton_has_the_digest_of_its_manifest() {
        let skeleton = std::fs::read(crate::paths::models().join("skeletons/many190.onnx")).unwrap();
        let manifest = crate::manifest::read().unwrap();
        let model = manifest.iter().find(|model| model.name == "many190").unwrap();
        let crate::manifest::Source::Skeleton { values_sha256, .. } = &model.source else {
            panic!("many190 is a skeleton");
        };
        assert_eq!(&fill(skeleton.into()).unwrap().values_sha256, values_sha256);
    }

    #[test]
    fn an_unknown_recipe_is_an_error() {
        assert_eq!(Recipe::parse("zipf 2").err().unwrap().to_string(), "unknown recipe 'zipf 2'");
    }
}
