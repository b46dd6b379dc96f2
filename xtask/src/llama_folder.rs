//! A model folder of the shape of Llama 3.2 1B in bf16, with weights drawn at random: 16 layers of 2048, 32 query and 8 key heads
//! of 64, gated products of 8192, 128256 tokens. Weights of products are bf16 or blocks of 4 bits. Its graph is what the public
//! builder writes. It is for measuring: its
//! weights are written where they are needed, and are the same everywhere.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Result;
use precast_onnx::proto::{
    AttributeProto, AttributeType, DataLocation, DataType, DimensionProto, DimensionValue, GraphProto, ModelProto,
    NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto,
    TypeValue, ValueInfoProto,
};
use prost::Message;

use crate::pcg64::Pcg64;

/// Sizes of a Llama.
#[derive(Clone, Copy, Debug)]
pub struct LlamaSize {
    /// Layers.
    pub layers: usize,
    /// Size of a token between layers.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Size of a head.
    pub head_size: usize,
    /// Width of the gated products.
    pub mlp: usize,
    /// Tokens.
    pub vocabulary: usize,
    /// Longest sequence.
    pub context: usize,
    /// What the weights of products are.
    pub weights: ProductWeights,
}

/// How weights of products lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductWeights {
    /// As bf16.
    Bf16,
    /// As 4 bits, with a scale of bf16 for each `BLOCK` of them.
    Int4,
}

/// Weights of 4 bits that share a scale.
const BLOCK: usize = 32;

/// What the anchors of the H200 were measured with.
pub const LLAMA_1B: LlamaSize = LlamaSize {
    layers: 16,
    hidden: 2048,
    heads: 32,
    kv_heads: 8,
    head_size: 64,
    mlp: 8192,
    vocabulary: 128_256,
    context: 4096,
    weights: ProductWeights::Bf16,
};

/// Name of the file of weights.
const DATA: &str = "model.onnx.data";
/// Weights begin at multiples of this.
const ALIGNMENT: u64 = 4096;
const EPSILON: f32 = 1e-5;
const ROTARY_BASE: f64 = 500_000.0;

impl LlamaSize {
    /// Bytes of weights that a decode step reads, and of a cached token in all layers.
    pub fn bytes_of_step(&self) -> (usize, usize) {
        let qkv = self.hidden * (self.heads + 2 * self.kv_heads) * self.head_size;
        let layer = qkv + self.heads * self.head_size * self.hidden + 3 * self.hidden * self.mlp;
        let cached = self.layers * 2 * self.kv_heads * self.head_size;
        let elements = self.layers * layer + self.hidden * self.vocabulary;
        let bytes = match self.weights {
            ProductWeights::Bf16 => 2 * elements,
            ProductWeights::Int4 => elements / 2 + elements / BLOCK * 2,
        };
        (bytes, 2 * cached)
    }
}

/// Writes the folder.
pub fn write(folder: &Path, size: LlamaSize) -> Result<()> {
    fs::create_dir_all(folder)?;
    let mut writer = FolderWriter {
        data: BufWriter::with_capacity(1 << 20, File::create(folder.join(DATA))?),
        end: 0,
        graph: GraphProto::default(),
        weights: size.weights,
    };
    writer.add_decoder(size)?;
    writer.data.flush()?;
    let opset = |domain: &str, version| OperatorSetIdProto { domain: domain.to_string(), version };
    let model = ModelProto {
        ir_version: 10,
        graph: Some(writer.graph),
        opset_import: vec![opset("", 22), opset("com.microsoft", 1)],
        ..ModelProto::default()
    };
    fs::write(folder.join("model.onnx"), model.encode_to_vec())?;
    Ok(fs::write(folder.join("genai_config.json"), config(size))?)
}

fn config(size: LlamaSize) -> String {
    let LlamaSize { layers, hidden, heads, kv_heads, head_size, vocabulary, context, .. } = size;
    serde_json::json!({
        "model": {
            "type": "llama", "vocab_size": vocabulary, "context_length": context,
            "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
            "decoder": {
                "filename": "model.onnx", "hidden_size": hidden, "head_size": head_size,
                "num_attention_heads": heads, "num_key_value_heads": kv_heads, "num_hidden_layers": layers,
                "inputs": {
                    "input_ids": "input_ids", "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"
                },
                "session_options": {}
            }
        },
        "search": { "do_sample": false, "max_length": context }
    })
    .to_string()
}

/// A graph and its weights as they are written.
struct FolderWriter {
    data: BufWriter<File>,
    /// Bytes written so far.
    end: u64,
    graph: GraphProto,
    /// What the weights of products are.
    weights: ProductWeights,
}

impl FolderWriter {
    fn add_decoder(&mut self, size: LlamaSize) -> Result<()> {
        let LlamaSize { hidden, heads, kv_heads, head_size, mlp, vocabulary, .. } = size;
        self.add_ports(size);
        self.add_lengths();
        self.add_tables(size)?;
        self.add_weight("model.embed_tokens.weight", &[vocabulary, hidden], 1.0)?;
        self.add_node("Gather", &["model.embed_tokens.weight", "input_ids"], &["residual.0"], vec![]);
        self.add_norm("input_layernorm.0", hidden)?;
        let norm = [float("epsilon", EPSILON), int("axis", -1), int("stash_type", 1)];
        self.add_node(
            "SimplifiedLayerNormalization",
            &["residual.0", "input_layernorm.0"],
            &["normed.0"],
            norm.to_vec(),
        );
        for layer in 0..size.layers {
            let name = |what: &str| format!("{what}.{layer}");
            let next = (layer + 1).to_string();
            let width = (heads + 2 * kv_heads) * head_size;
            self.add_product(&name("normed"), &name("qkv_proj"), [hidden, width], &name("qkv"))?;
            self.add_attention(size, layer);
            self.add_product(&name("attended"), &name("o_proj"), [heads * head_size, hidden], &name("o"))?;
            let norm = name("post_attention_layernorm");
            self.add_skip_norm([&name("residual"), &name("o"), &norm], [&name("mlp_in"), &name("middle")], hidden)?;
            self.add_product(&name("mlp_in"), &name("gate_proj"), [hidden, mlp], &name("gate"))?;
            self.add_product(&name("mlp_in"), &name("up_proj"), [hidden, mlp], &name("up"))?;
            self.add_node("Sigmoid", &[&name("gate")], &[&name("sigmoid")], vec![]);
            self.add_node("Mul", &[&name("gate"), &name("sigmoid")], &[&name("silu")], vec![]);
            self.add_node("Mul", &[&name("silu"), &name("up")], &[&name("gated")], vec![]);
            self.add_product(&name("gated"), &name("down_proj"), [mlp, hidden], &name("down"))?;
            let norm = format!("input_layernorm.{next}");
            let outputs = [&format!("normed.{next}"), &format!("residual.{next}")];
            self.add_skip_norm([&name("middle"), &name("down"), &norm], outputs.map(String::as_str), hidden)?;
        }
        let last = format!("normed.{}", size.layers);
        self.add_product(&last, "lm_head", [hidden, vocabulary], "logits")
    }

    fn add_ports(&mut self, size: LlamaSize) {
        let [rows, new, past, total] =
            ["batch_size", "sequence_length", "past_sequence_length", "total_sequence_length"];
        let ids = [Size::Symbol(rows), Size::Symbol(new)];
        self.graph.input.push(port("input_ids", DataType::Int64, &ids));
        self.graph.input.push(port("attention_mask", DataType::Int64, &[Size::Symbol(rows), Size::Symbol(total)]));
        let logits = [Size::Symbol(rows), Size::Symbol(new), Size::Number(size.vocabulary)];
        self.graph.output.push(port("logits", DataType::Bfloat16, &logits));
        for layer in 0..size.layers {
            for half in ["key", "value"] {
                let cache = |length| {
                    [
                        Size::Symbol(rows),
                        Size::Number(size.kv_heads),
                        Size::Symbol(length),
                        Size::Number(size.head_size),
                    ]
                };
                let name = format!("past_key_values.{layer}.{half}");
                self.graph.input.push(port(&name, DataType::Bfloat16, &cache(past)));
                let name = format!("present.{layer}.{half}");
                self.graph.output.push(port(&name, DataType::Bfloat16, &cache(total)));
            }
        }
    }

    /// The subgraph by which exporters tell nodes of attention how long sequences are.
    fn add_lengths(&mut self) {
        for (name, dims) in [("one", vec![1]), ("axis", vec![])] {
            let raw_data = Some(1i64.to_le_bytes().to_vec().into());
            let tensor = TensorProto {
                name: name.to_string(),
                dims,
                data_type: DataType::Int64 as i32,
                raw_data,
                ..TensorProto::default()
            };
            self.graph.initializer.push(tensor);
        }
        let to = || vec![int("to", i64::from(DataType::Int32 as i32))];
        self.add_node("ReduceSum", &["attention_mask", "one"], &["sums"], vec![int("keepdims", 0)]);
        self.add_node("Sub", &["sums", "one"], &["last"], vec![]);
        self.add_node("Cast", &["last"], &["seqlens_k"], to());
        self.add_node("Shape", &["attention_mask"], &["mask_shape"], vec![]);
        self.add_node("Gather", &["mask_shape", "axis"], &["total"], vec![int("axis", 0)]);
        self.add_node("Cast", &["total"], &["total_length"], to());
    }

    fn add_tables(&mut self, size: LlamaSize) -> Result<()> {
        let half = size.head_size / 2;
        for (name, function) in [("cos_cache", f64::cos as fn(f64) -> f64), ("sin_cache", f64::sin)] {
            let element = |at: usize| {
                let frequency = ROTARY_BASE.powf(-((at % half) as f64) / half as f64);
                function((at / half) as f64 * frequency)
            };
            self.add_tensor(name, &[size.context, half], (0..size.context * half).map(element))?;
        }
        Ok(())
    }

    fn add_attention(&mut self, size: LlamaSize, layer: usize) {
        let name = |what: &str| format!("{what}.{layer}");
        let past = |half: &str| format!("past_key_values.{layer}.{half}");
        let present = |half: &str| format!("present.{layer}.{half}");
        let [key, value] = ["key", "value"].map(past);
        let inputs = [&name("qkv"), "", "", &key, &value, "seqlens_k", "total_length", "cos_cache", "sin_cache"]
            .map(str::to_string);
        let outputs = [name("attended"), present("key"), present("value")];
        let attribute = vec![
            int("num_heads", size.heads as i64),
            int("kv_num_heads", size.kv_heads as i64),
            float("scale", 1.0 / (size.head_size as f32).sqrt()),
            int("do_rotary", 1),
        ];
        self.graph.node.push(NodeProto {
            input: inputs.to_vec(),
            output: outputs.to_vec(),
            name: name("attention"),
            op_type: "GroupQueryAttention".to_string(),
            domain: "com.microsoft".to_string(),
            attribute,
            ..NodeProto::default()
        });
    }

    fn add_product(&mut self, x: &str, weight: &str, [k, n]: [usize; 2], y: &str) -> Result<()> {
        let (weight, most) = (format!("{weight}.weight"), (3.0 / k as f64).sqrt());
        match self.weights {
            ProductWeights::Bf16 => {
                self.add_weight(&weight, &[k, n], most)?;
                self.add_node("MatMul", &[x, &weight], &[y], vec![]);
            }
            ProductWeights::Int4 => {
                let (levels, scales) = (format!("{weight}_levels"), format!("{weight}_scales"));
                let mut words = Pcg64::new(self.graph.initializer.len() as u128);
                let bytes = (0..k * n / 16).flat_map(|_| words.next_word().to_le_bytes());
                self.add_bytes(&levels, &[n, k / BLOCK, BLOCK / 2], DataType::Uint8, bytes)?;
                self.add_tensor(&scales, &[n, k / BLOCK], std::iter::repeat_n(most / 8.0, n * k / BLOCK))?;
                self.graph.node.push(NodeProto {
                    input: [x, &levels, &scales].map(str::to_string).to_vec(),
                    output: vec![y.to_string()],
                    name: y.to_string(),
                    op_type: "MatMulNBits".to_string(),
                    domain: "com.microsoft".to_string(),
                    attribute: vec![
                        int("K", k as i64),
                        int("N", n as i64),
                        int("bits", 4),
                        int("block_size", BLOCK as i64),
                    ],
                    ..NodeProto::default()
                });
            }
        }
        Ok(())
    }

    fn add_skip_norm(&mut self, [x, skip, weight]: [&str; 3], [y, sum]: [&str; 2], hidden: usize) -> Result<()> {
        self.add_norm(weight, hidden)?;
        self.graph.node.push(NodeProto {
            input: [x, skip, weight].map(str::to_string).to_vec(),
            output: [y, "", "", sum].map(str::to_string).to_vec(),
            name: y.to_string(),
            op_type: "SkipSimplifiedLayerNormalization".to_string(),
            domain: "com.microsoft".to_string(),
            attribute: vec![float("epsilon", EPSILON)],
            ..NodeProto::default()
        });
        Ok(())
    }

    fn add_node(&mut self, operator: &str, inputs: &[&str], outputs: &[&str], attribute: Vec<AttributeProto>) {
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        self.graph.node.push(NodeProto {
            input: names(inputs),
            output: names(outputs),
            name: outputs[0].to_string(),
            op_type: operator.to_string(),
            attribute,
            ..NodeProto::default()
        });
    }

    fn add_norm(&mut self, name: &str, hidden: usize) -> Result<()> {
        self.add_tensor(name, &[hidden], (0..hidden).map(|at| 0.9 + 0.2 * (at % 7) as f64 / 7.0))
    }

    /// A tensor of evenly drawn elements up to `most`.
    fn add_weight(&mut self, name: &str, dims: &[usize], most: f64) -> Result<()> {
        let mut words = Pcg64::new(self.graph.initializer.len() as u128);
        let (mut word, scale) = (0, most / 32768.0);
        let element = |at: usize| {
            if at.is_multiple_of(4) {
                word = words.next_word();
            }
            f64::from((word >> (16 * (at % 4))) as u16 as i16) * scale
        };
        self.add_tensor(name, dims, (0..dims.iter().product()).map(element))
    }

    /// A tensor in bf16.
    fn add_tensor(&mut self, name: &str, dims: &[usize], elements: impl Iterator<Item = f64>) -> Result<()> {
        self.add_bytes(name, dims, DataType::Bfloat16, elements.flat_map(|element| bf16(element as f32).to_le_bytes()))
    }

    /// A tensor whose bytes go to the file of weights.
    fn add_bytes(
        &mut self,
        name: &str,
        dims: &[usize],
        data_type: DataType,
        bytes: impl Iterator<Item = u8>,
    ) -> Result<()> {
        let start = self.end.next_multiple_of(ALIGNMENT);
        self.data.write_all(&vec![0; (start - self.end) as usize])?;
        let mut count = 0;
        for byte in bytes {
            self.data.write_all(&[byte])?;
            count += 1;
        }
        self.end = start + count;
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.to_string(), value };
        self.graph.initializer.push(TensorProto {
            name: name.to_string(),
            dims: dims.iter().map(|&dim| dim as i64).collect(),
            data_type: data_type as i32,
            data_location: Some(DataLocation::External as i32),
            external_data: vec![
                entry("location", DATA.to_string()),
                entry("offset", start.to_string()),
                entry("length", count.to_string()),
            ],
            ..TensorProto::default()
        });
        Ok(())
    }
}

/// The nearest bf16 of a finite number.
fn bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// A size of a port.
enum Size {
    Number(usize),
    Symbol(&'static str),
}

fn port(name: &str, dtype: DataType, sizes: &[Size]) -> ValueInfoProto {
    let dim = |size: &Size| {
        let value = match size {
            Size::Number(number) => DimensionValue::DimValue(*number as i64),
            Size::Symbol(symbol) => DimensionValue::DimParam(symbol.to_string()),
        };
        DimensionProto { value: Some(value), ..DimensionProto::default() }
    };
    let shape = Some(TensorShapeProto { dim: sizes.iter().map(dim).collect() });
    let tensor = TypeValue::TensorType(TensorTypeProto { elem_type: dtype as i32, shape });
    let ty = TypeProto { value: Some(tensor), ..TypeProto::default() };
    ValueInfoProto { name: name.to_string(), r#type: Some(ty), ..ValueInfoProto::default() }
}

fn int(name: &str, value: i64) -> AttributeProto {
    let ty = Some(AttributeType::Int as i32);
    AttributeProto { name: name.to_string(), i: Some(value), r#type: ty, ..AttributeProto::default() }
}

fn float(name: &str, value: f32) -> AttributeProto {
    let ty = Some(AttributeType::Float as i32);
    AttributeProto { name: name.to_string(), f: Some(value), r#type: ty, ..AttributeProto::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use precast::generate::{GeneratorParams, generate};
    use precast::{TextOptions, open_text_model};

    #[test]
    fn a_small_one_opens_and_answers() {
        for weights in [ProductWeights::Bf16, ProductWeights::Int4] {
            let folder = tempfile::tempdir().unwrap();
            let size = LlamaSize {
                layers: 2,
                hidden: 32,
                heads: 4,
                kv_heads: 2,
                head_size: 8,
                mlp: 64,
                vocabulary: 64,
                context: 64,
                weights,
            };
            write(folder.path(), size).unwrap();
            let opened = open_text_model(folder.path(), &TextOptions::default()).unwrap();
            let params = GeneratorParams::new(opened.model.config().search.clone()).max_new_tokens(4);
            let answers = generate(&opened.model, None, &params, &[&[5, 6, 7]], &mut |_| (), None).unwrap().answers;
            assert!(!answers[0].tokens.is_empty());
        }
    }

    #[test]
    fn the_largest_has_the_bytes_of_the_anchor() {
        let (weights, token) = LLAMA_1B.bytes_of_step();
        assert_eq!((weights, token), (2_471_493_632, 32_768));
    }
}
