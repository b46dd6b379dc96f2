//! Recurrent layers and attention.

use precast::{DType, Tensor};

use super::{Made, Maker, on};
use crate::fuzz::growing::{Call, Growing, Known};
use crate::fuzz::messages::{float, int, string, strings};

pub const MAKERS: &[Maker] = &[
    on("Attention", 23, attention),
    on("GRU", 14, recurrent),
    on("LSTM", 14, recurrent),
    on("LinearAttention", 27, linear_attention),
    on("RNN", 14, recurrent),
    on("RotaryEmbedding", 23, rotary),
];

/// Widths of floats that both sides compute attention and recurrence in.
const WIDTHS: &[DType] = &[DType::F32, DType::F32, DType::F32, DType::F16, DType::F64];

fn recurrent(growing: &mut Growing, operator: &str) -> Made {
    let gates = match operator {
        "LSTM" => 4,
        "GRU" => 3,
        _ => 1,
    };
    let dtype = growing.pick_type(WIDTHS);
    let [time, batch, features, hidden] = [0; 4].map(|_| 1 + growing.random.below(5));
    let direction = *growing.random.pick(&["forward", "reverse", "bidirectional"]);
    let directions = if direction == "bidirectional" { 2 } else { 1 };
    let x = growing.operand(dtype, &[time, batch, features]);
    let w = growing.operand_within(dtype, &[directions, gates * hidden, features], -1.0, 1.0);
    let r = growing.operand_within(dtype, &[directions, gates * hidden, hidden], -1.0, 1.0);
    let optional = |growing: &mut Growing, shape: &[usize]| match growing.random.once_in(2) {
        true => growing.operand_within(dtype, shape, -1.0, 1.0),
        false => Known::absent(),
    };
    let bias = optional(growing, &[directions, 2 * gates * hidden]);
    let initial = optional(growing, &[directions, batch, hidden]);
    let cell = if operator == "LSTM" { optional(growing, &[directions, batch, hidden]) } else { Known::absent() };
    let peepholes = if operator == "LSTM" { optional(growing, &[directions, 3 * hidden]) } else { Known::absent() };
    let lengths = match growing.random.once_in(3) {
        true => {
            let lengths: Vec<i32> = (0..batch).map(|_| 1 + growing.random.below(time) as i32).collect();
            growing.constant_of(Tensor::from_vec([batch], lengths).ok()?)
        }
        false => Known::absent(),
    };
    let mut attributes = vec![int("hidden_size", hidden), string("direction", direction)];
    if operator == "GRU" {
        attributes.push(int("linear_before_reset", growing.random.below(2)));
    }
    if growing.random.once_in(4) {
        attributes.push(float("clip", 0.75));
    }
    if growing.random.once_in(4) {
        let own: &[&str] = match operator {
            "LSTM" => &["HardSigmoid", "Relu", "Softsign"],
            "GRU" => &["HardSigmoid", "Relu"],
            _ => &["Relu"],
        };
        attributes.push(strings("activations", &own.repeat(directions)));
    }
    let inputs = [&x, &w, &r, &bias, &lengths, &initial, &cell, &peepholes];
    let outputs = if operator == "LSTM" { 3 } else { 2 };
    growing.add_all(Call::of(operator, &inputs).with(attributes).outputs(outputs)).map(drop)
}

fn attention(growing: &mut Growing, operator: &str) -> Made {
    let dtype = growing.pick_type(&[DType::F32, DType::F32, DType::F16]);
    let [batch, pairs, queries, keys] = [0; 4].map(|_| 1 + growing.random.below(4));
    let (shared, width, value_width) =
        (1 + growing.random.below(2), 2 * (1 + growing.random.below(3)), 1 + growing.random.below(5));
    let heads = pairs * shared;
    let is_flat = growing.random.once_in(3);
    let part = |growing: &mut Growing, heads: usize, length: usize, width: usize| match is_flat {
        true => growing.operand(dtype, &[batch, length, heads * width]),
        false => growing.operand(dtype, &[batch, heads, length, width]),
    };
    let q = part(growing, heads, queries, width);
    let k = part(growing, pairs, keys, width);
    let v = part(growing, pairs, keys, value_width);
    let mut attributes = Vec::new();
    if is_flat {
        attributes.extend([int("q_num_heads", heads), int("kv_num_heads", pairs)]);
    }
    if growing.random.once_in(3) {
        attributes.push(float("scale", 0.375));
    }
    if growing.random.once_in(4) {
        attributes.push(float("softcap", 1.5));
    }
    let mask = match growing.random.below(4) {
        0 => growing.operand(dtype, &[queries, keys]),
        1 => growing.operand(dtype, &[batch, 1, queries, keys]),
        _ => Known::absent(),
    };
    if mask.name.is_empty() && growing.random.once_in(3) {
        attributes.push(int("is_causal", 1));
    }
    growing.add(Call::of(operator, &[&q, &k, &v, &mask]).with(attributes)).map(drop)
}

fn rotary(growing: &mut Growing, operator: &str) -> Made {
    let dtype = growing.pick_type(&[DType::F32, DType::F32, DType::F16]);
    let [batch, heads, length, half] = [0; 4].map(|_| 1 + growing.random.below(4));
    let x = growing.operand(dtype, &[batch, heads, length, 2 * half]);
    let rows = length + 2;
    let [cosine, sine] = [0; 2].map(|_| growing.operand_within(dtype, &[rows, half], -1.0, 1.0));
    let places: Vec<i64> = (0..batch * length).map(|_| growing.random.below(rows) as i64).collect();
    let places = growing.constant_of(Tensor::from_vec([batch, length], places).ok()?);
    let attributes = vec![int("interleaved", growing.random.below(2))];
    growing.add(Call::of(operator, &[&x, &cosine, &sine, &places]).with(attributes)).map(drop)
}

fn linear_attention(growing: &mut Growing, operator: &str) -> Made {
    let [batch, heads, length, width] = [0; 4].map(|_| 1 + growing.random.below(4));
    let [q, k, v] = [0; 3].map(|_| growing.operand_within(DType::F32, &[batch, length, heads * width], -1.0, 1.0));
    let attributes = vec![int("q_num_heads", heads), int("kv_num_heads", heads), string("update_rule", "linear")];
    growing.add_all(Call::of(operator, &[&q, &k, &v]).with(attributes).outputs(2)).map(drop)
}
