//! A decoder whose attention is plain operators behind an additive mask, as exporters write it that know no caches with room left.

use precast::generate::TextModel;
use precast::{TextOptions, open_text_model};
use precast_onnx::proto::{
    AttributeProto, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto,
};
use prost::Message;

const CONFIG: &str = r#"{"model":{"type":"plain","vocab_size":96,"context_length":128,"pad_token_id":2,"eos_token_id":95,
    "decoder":{"filename":"model.onnx","num_hidden_layers":1,"head_size":8}}}"#;
const VOCABULARY: i64 = 96;
const CONTEXT: i64 = 128;
const WIDTH: i64 = 16;
const F32: i32 = 1;
const I64: i32 = 7;

/// The token of which nothing is a number: its scores, keys and values are none.
pub const NOT_A_NUMBER: u32 = 90;

/// The decoder, opened.
pub fn plain_decoder(is_reference: bool) -> TextModel {
    open(graph(), is_reference)
}

/// The same with a token of which nothing is a number.
pub fn broken_decoder() -> TextModel {
    let mut graph = graph();
    let tokens = graph.initializer.iter_mut().find(|constant| constant.name == "tokens").unwrap();
    tokens.float_data[NOT_A_NUMBER as usize * WIDTH as usize..][..WIDTH as usize].fill(f32::NAN);
    open(graph, false)
}

fn open(graph: GraphProto, is_reference: bool) -> TextModel {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("genai_config.json"), CONFIG).unwrap();
    let opset_import = vec![OperatorSetIdProto { version: 17, ..Default::default() }];
    let model = ModelProto { ir_version: 8, opset_import, graph: Some(graph), ..Default::default() };
    std::fs::write(folder.path().join("model.onnx"), model.encode_to_vec()).unwrap();
    let options = TextOptions { is_reference, ..TextOptions::default() };
    open_text_model(folder.path(), &options).unwrap().model
}

fn graph() -> GraphProto {
    let mut graph = Parts::default();
    graph.weights("tokens", &[VOCABULARY, WIDTH]);
    graph.weights("places", &[CONTEXT, WIDTH]);
    graph.weights("head", &[WIDTH, VOCABULARY]);
    graph.floats("none", vec![0.0]);
    graph.floats("one", vec![1.0]);
    graph.floats("lowest", vec![f32::MIN]);
    for (name, numbers) in
        [("apart", vec![0, 0, 2, 8]), ("joined", vec![0, 0, WIDTH]), ("beside", vec![1, 2]), ("last", vec![1])]
    {
        graph.integers(name, vec![numbers.len() as i64], numbers);
    }
    for (name, number) in [("zero", 0), ("step", 1), ("second", 1), ("third", 2)] {
        graph.integers(name, vec![], vec![number]);
    }
    graph.node("Gather", &["tokens", "input_ids"], "token");
    graph.node("Gather", &["places", "position_ids"], "place");
    graph.node("Add", &["token", "place"], "x");
    for head in ["q", "k", "v"] {
        graph.weights(&format!("w{head}"), &[WIDTH, WIDTH]);
        graph.node("MatMul", &["x", &format!("w{head}")], &format!("{head}_flat"));
        graph.node("Reshape", &[&format!("{head}_flat"), "apart"], &format!("{head}_apart"));
        graph.node_with("Transpose", &[&format!("{head}_apart")], head, integers("perm", &[0, 2, 1, 3]));
    }
    graph.node_with("Concat", &["past_key_values.0.key", "k"], "present.0.key", integer("axis", 2));
    graph.node_with("Concat", &["past_key_values.0.value", "v"], "present.0.value", integer("axis", 2));
    graph.node_with("Transpose", &["present.0.key"], "keys", integers("perm", &[0, 1, 3, 2]));
    graph.node("MatMul", &["q", "keys"], "scores");
    // Tokens of the row, by the mask.
    graph.node_with("Cast", &["attention_mask"], "shown", integer("to", i64::from(F32)));
    graph.node("Sub", &["one", "shown"], "hidden");
    graph.node("Mul", &["hidden", "lowest"], "hidden_bias");
    graph.node("Unsqueeze", &["hidden_bias", "beside"], "row_bias");
    // Tokens up to the query, by its place.
    graph.node("Shape", &["present.0.key"], "keys_shape");
    graph.node("Gather", &["keys_shape", "third"], "total");
    graph.node("Shape", &["input_ids"], "ids_shape");
    graph.node("Gather", &["ids_shape", "second"], "new");
    graph.node("Sub", &["total", "new"], "past");
    graph.node("Range", &["zero", "total", "step"], "columns");
    graph.node("Range", &["past", "total", "step"], "queries");
    graph.node("Unsqueeze", &["queries", "last"], "queries_beside");
    graph.node("LessOrEqual", &["columns", "queries_beside"], "is_before");
    graph.node("Where", &["is_before", "none", "lowest"], "causal_bias");
    graph.node("Add", &["scores", "causal_bias"], "causal_scores");
    graph.node("Add", &["causal_scores", "row_bias"], "biased_scores");
    graph.node_with("Softmax", &["biased_scores"], "weights", integer("axis", -1));
    graph.node("MatMul", &["weights", "present.0.value"], "seen");
    graph.node_with("Transpose", &["seen"], "seen_apart", integers("perm", &[0, 2, 1, 3]));
    graph.node("Reshape", &["seen_apart", "joined"], "y");
    graph.node("Add", &["x", "y"], "stream");
    graph.node("MatMul", &["stream", "head"], "logits");
    let tokens = |name: &str| port(name, I64, &["batch", "length"]);
    let caches = |prefix: &str, length: &str| {
        ["key", "value"].map(|half| port(&format!("{prefix}.0.{half}"), F32, &["batch", "2", length, "8"]))
    };
    let mut input = vec![tokens("input_ids"), tokens("position_ids"), port("attention_mask", I64, &["batch", "total"])];
    input.extend(caches("past_key_values", "past"));
    let mut output = vec![port("logits", F32, &["batch", "length", "96"])];
    output.extend(caches("present", "total"));
    let Parts { node, initializer, .. } = graph;
    GraphProto { name: "plain".to_string(), node, initializer, input, output, ..Default::default() }
}

#[derive(Default)]
struct Parts {
    node: Vec<NodeProto>,
    initializer: Vec<TensorProto>,
    state: u32,
}

impl Parts {
    fn node(&mut self, op: &str, inputs: &[&str], output: &str) {
        self.node.push(NodeProto {
            op_type: op.to_string(),
            name: output.to_string(),
            input: inputs.iter().map(ToString::to_string).collect(),
            output: vec![output.to_string()],
            ..Default::default()
        });
    }

    fn node_with(&mut self, op: &str, inputs: &[&str], output: &str, attribute: AttributeProto) {
        self.node(op, inputs, output);
        self.node.last_mut().unwrap().attribute.push(attribute);
    }

    /// Random numbers of these sizes.
    fn weights(&mut self, name: &str, dims: &[i64]) {
        let mut number = || {
            self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (self.state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let float_data = (0..dims.iter().product::<i64>()).map(|_| number()).collect();
        let (name, dims) = (name.to_string(), dims.to_vec());
        self.initializer.push(TensorProto { name, dims, data_type: F32, float_data, ..Default::default() });
    }

    fn floats(&mut self, name: &str, float_data: Vec<f32>) {
        let name = name.to_string();
        self.initializer.push(TensorProto { name, data_type: F32, float_data, ..Default::default() });
    }

    fn integers(&mut self, name: &str, dims: Vec<i64>, int64_data: Vec<i64>) {
        let name = name.to_string();
        self.initializer.push(TensorProto { name, dims, data_type: I64, int64_data, ..Default::default() });
    }
}

fn integer(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.to_string(), i: Some(i), r#type: Some(2), ..Default::default() }
}

fn integers(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto { name: name.to_string(), ints: ints.to_vec(), r#type: Some(7), ..Default::default() }
}

/// An input or output; sizes are numbers or names.
fn port(name: &str, elem_type: i32, dims: &[&str]) -> ValueInfoProto {
    let value = |size: &&str| match size.parse() {
        Ok(number) => DimensionValue::DimValue(number),
        Err(_) => DimensionValue::DimParam(size.to_string()),
    };
    let dim = dims.iter().map(|size| DimensionProto { value: Some(value(size)), ..Default::default() }).collect();
    let ty = TensorTypeProto { elem_type, shape: Some(TensorShapeProto { dim }) };
    let ty = TypeProto { value: Some(TypeValue::TensorType(ty)), ..Default::default() };
    ValueInfoProto { name: name.to_string(), r#type: Some(ty), ..Default::default() }
}
