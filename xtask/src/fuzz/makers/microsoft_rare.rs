//! Operators of com.microsoft that few models have.

use precast::{DType, Tensor};

use super::{Made, Maker, on_microsoft};
use crate::fuzz::growing::{Call, Growing, Known, Rounding, Wanted};
use crate::fuzz::messages::{float, int, sizes, string};

pub const MAKERS: &[Maker] = &[
    on_microsoft("CDist", distances),
    on_microsoft("CausalConvWithState", causal_conv),
    on_microsoft("ConvTransposeWithDynamicPads", padded_conv_transpose),
    on_microsoft("CropAndResize", crop),
    on_microsoft("GatedRMSNorm", gated_norm),
    on_microsoft("Inverse", inverse),
    on_microsoft("LinearAttention", linear_attention),
    on_microsoft("MatMulBnb4", table_product),
    on_microsoft("MatMulInteger16", short_product),
    on_microsoft("DecoderMaskedMultiHeadAttention", decoder_step),
    on_microsoft("MRotaryEmbedding", multimodal_rotation),
    on_microsoft("MoE", experts),
    on_microsoft("NGramRepeatBlock", blocked),
    on_microsoft("NhwcMaxPool", pool_channels_last),
    on_microsoft("QAttention", quantised_attention),
    on_microsoft("QEmbedLayerNormalization", quantised_embedding),
    on_microsoft("QLinearConv", quantised_conv),
    on_microsoft("QMoE", quantised_experts),
    on_microsoft("Range", range),
    on_microsoft("SparseAttention", sparse_attention),
    on_microsoft("UnfoldTensor", unfold),
    on_microsoft("Unique", unique),
];

fn distances(growing: &mut Growing, operator: &str) -> Made {
    let dtype = growing.pick_type(&[DType::F32, DType::F64]);
    let [rows, columns, width] = [0; 3].map(|_| growing.size());
    let (a, b) = (growing.operand(dtype, &[rows, width]), growing.operand(dtype, &[columns, width]));
    let attributes = vec![string("metric", growing.choose(&["euclidean", "sqeuclidean"]))];
    growing.add(Call::of(operator, &[&a, &b]).with(attributes).microsoft()).map(drop)
}

fn inverse(growing: &mut Growing, operator: &str) -> Made {
    let dtype = growing.pick_type(&[DType::F32, DType::F64]);
    let (batch, size) = (1 + growing.random.below(3), 1 + growing.random.below(6));
    // A strong diagonal: no matrix is near to one without an inverse. Its rows are turned, so that pivots are sought.
    let x = growing.operand_within(dtype, &[batch, size, size], -0.25, 0.25);
    let turned = growing.random.below(size);
    let strong: Vec<f64> =
        (0..size * size).map(|at| if (at / size + turned) % size == at % size { 4.0 } else { 0.0 }).collect();
    let strong = growing.constant_of(Tensor::from_f64(dtype, [size, size], &strong, true).ok()?);
    let x = growing.add(Call::of("Add", &[&x, &strong]))?;
    growing.add(Call::of(operator, &[&x]).microsoft()).map(drop)
}

fn short_product(growing: &mut Growing, operator: &str) -> Made {
    let [rows, inner, columns] = [0; 3].map(|_| growing.size());
    let (a, b) = (growing.operand(DType::I16, &[rows, inner]), growing.operand(DType::I16, &[inner, columns]));
    growing.add(Call::of(operator, &[&a, &b]).microsoft().exact()).map(drop)
}

fn table_product(growing: &mut Growing, operator: &str) -> Made {
    let (rows, columns) = (1 + growing.random.below(4), 1 + growing.random.below(6));
    let (depth, block) = (*growing.random.pick(&[16, 20, 32]), *growing.random.pick(&[16, 32]));
    let count: usize = columns * depth;
    let a = growing.operand(DType::F32, &[rows, depth]);
    let codes: Vec<u8> = (0..count.div_ceil(2)).map(|_| growing.random.word() as u8).collect();
    let codes = growing.constant_of(Tensor::from_vec([codes.len()], codes).ok()?);
    let scales = growing.constant_within(DType::F32, &[count.div_ceil(block)], 0.25, 1.0);
    let attributes =
        vec![int("K", depth), int("N", columns), int("block_size", block), int("quant_type", growing.random.below(2))];
    growing.add(Call::of(operator, &[&a, &codes, &scales]).with(attributes).microsoft()).map(drop)
}

fn experts(growing: &mut Growing, operator: &str) -> Made {
    let [tokens, hidden, inner, count] = [0; 4].map(|_| 2 + growing.random.below(4));
    let activation = growing.choose(&["relu", "gelu", "silu", "identity", "swiglu"]);
    let fused = if activation == "swiglu" { 2 * inner } else { inner };
    let x = growing.operand(DType::F32, &[tokens, hidden]);
    let router = growing.operand(DType::F32, &[tokens, count]);
    let first = growing.operand_within(DType::F32, &[count, fused, hidden], -1.0, 1.0);
    let second = growing.operand_within(DType::F32, &[count, hidden, inner], -1.0, 1.0);
    let has_bias = growing.random.once_in(2);
    let mut bias = |width: usize| match has_bias {
        true => growing.operand_within(DType::F32, &[count, width], -1.0, 1.0),
        false => Known::absent(),
    };
    let (first_bias, second_bias) = (bias(fused), bias(hidden));
    let mut attributes = vec![
        int("k", 1 + growing.random.below(count)),
        string("activation_type", activation),
        int("normalize_routing_weights", growing.random.below(2)),
    ];
    if activation == "swiglu" {
        attributes.push(int("swiglu_fusion", 1));
        attributes.push(float("swiglu_limit", 1.5));
        attributes.extend([float("activation_alpha", 1.25), float("activation_beta", 0.5)]);
    }
    let inputs = [&x, &router, &first, &first_bias, &second, &second_bias];
    growing.add(Call::of(operator, &inputs).with(attributes).microsoft()).map(drop)
}

/// The same with weights of few bits, which onnxruntime has with their blocks whole and gates beside values.
fn quantised_experts(growing: &mut Growing, operator: &str) -> Made {
    const SIZE: usize = 32;
    let (tokens, count) = (1 + growing.random.below(3), 2 + growing.random.below(2));
    let bits = *growing.random.pick(&[4, 8]);
    // Of all levels alike, so that sums of products stay small.
    let scale = if bits == 8 { 1.0 / 4096.0 } else { 1.0 / 256.0 };
    // Blocks of 8 bits are multiplied with inputs that onnxruntime rounds to 8 bits first.
    let block = if bits == 8 { 0 } else { *growing.random.pick(&[0, 16, 32]) };
    let activation = growing.choose(&["relu", "gelu", "silu", "identity", "swiglu"]);
    let fused = if activation == "swiglu" { 2 * SIZE } else { SIZE };
    let x = growing.operand(DType::F32, &[tokens, SIZE]);
    // Which of equal scores is larger is nobody's to say.
    let scores: Vec<f32> = (0..tokens * count).map(|at| (at * 7 % 11) as f32 / 4.0 - 1.0).collect();
    let router = growing.constant_of(Tensor::from_vec([tokens, count], scores).ok()?);
    let has_zeros = growing.random.once_in(2);
    let mut parts = Vec::new();
    for rows in [fused, SIZE] {
        let bytes: Vec<u8> = (0..count * rows * SIZE * bits / 8).map(|_| growing.random.word() as u8).collect();
        let weights = growing.constant_of(Tensor::from_vec([count, rows, SIZE * bits / 8], bytes).ok()?);
        let blocks: Vec<usize> = [count, rows].into_iter().chain(SIZE.checked_div(block)).collect();
        let sized: Vec<f64> = (0..blocks.iter().product()).map(|at: usize| (1 + at % 3) as f64 * scale).collect();
        let scales = growing.constant_of(Tensor::from_f64(DType::F32, blocks.clone(), &sized, true).ok()?);
        let zeros = match has_zeros {
            true => {
                let mut packed = blocks.clone();
                let last = packed.last_mut()?;
                *last = (*last * bits).div_ceil(8);
                let bytes: Vec<u8> = (0..packed.iter().product()).map(|_| growing.random.word() as u8).collect();
                growing.constant_of(Tensor::from_vec(packed, bytes).ok()?)
            }
            false => Known::absent(),
        };
        parts.push((weights, scales, zeros));
    }
    let absent = Known::absent();
    let ((first, first_scales, first_zeros), (second, second_scales, second_zeros)) = (&parts[0], &parts[1]);
    let inputs = [
        &x,
        &router,
        first,
        first_scales,
        &absent,
        second,
        second_scales,
        &absent,
        &absent,
        &absent,
        &absent,
        first_zeros,
        second_zeros,
    ];
    let mut attributes = vec![
        int("k", 1 + growing.random.below(count)),
        int("expert_weight_bits", bits),
        string("activation_type", activation),
        int("normalize_routing_weights", growing.random.below(2)),
    ];
    if block != 0 {
        attributes.push(int("block_size", block));
    }
    if activation == "swiglu" {
        attributes.push(int("swiglu_fusion", 1));
    }
    growing.add(Call::of(operator, &inputs).with(attributes).microsoft()).map(drop)
}

/// One token behind a buffer of which some slots are filled.
fn decoder_step(growing: &mut Growing, operator: &str) -> Made {
    // Nobody judges a graph that has it, so few should.
    if !growing.random.once_in(8) {
        return None;
    }
    let (batch, heads, size) =
        (1 + growing.random.below(2), 1 + growing.random.below(3), 2 + 2 * growing.random.below(3));
    let slots = 2 + growing.random.below(5);
    let width = heads * size;
    let [q, k, v] = [0; 3].map(|_| growing.operand(DType::F32, &[batch, 1, width]));
    let [keys, values] = [0; 2].map(|_| growing.operand(DType::F32, &[batch, heads, slots, size]));
    let filled = growing.random.below(slots) as i32;
    let filled = growing.constant_of(Tensor::from_vec([1], vec![filled]).ok()?);
    let absent = Known::absent();
    let bias = match growing.random.once_in(2) {
        true => growing.operand(DType::F32, &[3 * width]),
        false => Known::absent(),
    };
    let inputs = [&q, &k, &v, &absent, &absent, &keys, &values, &filled, &absent, &absent, &bias];
    let attributes = vec![int("num_heads", heads), int("past_present_share_buffer", 1)];
    growing.add(Call::of(operator, &inputs).with(attributes).microsoft())?;
    growing.unjudged =
        Some("onnxruntime crashes in DecoderMaskedMultiHeadAttention unless past and present are one memory");
    Some(())
}

fn multimodal_rotation(growing: &mut Growing, operator: &str) -> Made {
    let (batch, heads, length) =
        (1 + growing.random.below(2), 1 + growing.random.below(3), 1 + growing.random.below(4));
    let sections = [0; 3].map(|_| 1 + growing.random.below(3));
    let half: usize = sections.iter().sum();
    let layout = growing.random.below(2);
    // Interleaved sections take turns, so that none may be longer than a third.
    let sections = if layout == 1 { [half - 2 * (half / 3), half / 3, half / 3] } else { sections };
    let shape = match growing.random.once_in(2) {
        true => vec![batch, heads, length, 2 * half],
        false => vec![batch, length, heads * 2 * half],
    };
    let x = growing.operand(DType::F32, &shape);
    let positions: Vec<i64> = (0..3 * batch * length).map(|_| growing.random.below(7) as i64).collect();
    let positions = growing.constant_of(Tensor::from_vec([3, batch, length], positions).ok()?);
    let [cos, sin] = [0; 2].map(|_| growing.constant_within(DType::F32, &[7, half], -1.0, 1.0));
    let attributes = vec![
        int("num_heads", heads),
        sizes("mrope_section", &sections),
        int("mrope_layout", layout),
        int("interleaved", growing.random.below(2)),
    ];
    growing.add(Call::of(operator, &[&x, &positions, &cos, &sin]).with(attributes).microsoft()).map(drop)
}

/// A prompt of one or more blocks, or one token behind a few cached ones.
fn sparse_attention(growing: &mut Growing, operator: &str) -> Made {
    const BLOCK: usize = 16;
    // Nobody judges a graph that has it, so few should.
    if !growing.random.once_in(8) {
        return None;
    }
    let (batch, kv_heads, size) = (1 + growing.random.below(2), 1 + growing.random.below(2), 8);
    let heads = kv_heads * (1 + growing.random.below(2));
    let slots = 2 * BLOCK;
    let (length, total) = match growing.random.once_in(2) {
        true => (1, 2 + growing.random.below(slots - 2)),
        false => {
            let length = 2 + growing.random.below(slots - 2);
            (length, length)
        }
    };
    let q = growing.operand(DType::F32, &[batch, length, heads * size]);
    let [k, v] = [0; 2].map(|_| growing.operand(DType::F32, &[batch, length, kv_heads * size]));
    let [keys, values] = [0; 2].map(|_| growing.operand(DType::F32, &[batch, kv_heads, slots, size]));
    // Two rows of blocks: the second sees the first or not, by layout.
    let (bounds, columns) = match heads.is_multiple_of(2) && growing.random.once_in(2) {
        true => (vec![0, 1, 3, 0, 1, 2], vec![0, 0, 1, 0, 1, -1]),
        false => (vec![0, 1, 3], vec![0, 0, 1]),
    };
    let layouts = bounds.len() / 3;
    let bounds = growing.constant_of(Tensor::from_vec([layouts, 3], bounds).ok()?);
    let columns = growing.constant_of(Tensor::from_vec([layouts, 3], columns).ok()?);
    let longest = growing.constant_of(Tensor::from_vec([1], vec![total as i32]).ok()?);
    let totals = growing.constant_of(Tensor::from_vec([batch], vec![total as i32; batch]).ok()?);
    let inputs = [&q, &k, &v, &keys, &values, &bounds, &columns, &longest, &totals];
    let attributes = vec![int("num_heads", heads), int("kv_num_heads", kv_heads), int("sparse_block_size", BLOCK)];
    growing.add_all(Call::of(operator, &inputs).with(attributes).outputs(3).microsoft())?;
    growing.unjudged = Some("onnxruntime runs SparseAttention only where past and present are one memory");
    Some(())
}

/// Scores that may not be are -inf; what comes out is clipped, since nothing else could be made of it.
fn blocked(growing: &mut Growing, operator: &str) -> Made {
    let (batch, length, words) = (1 + growing.random.below(3), 1 + growing.random.below(9), 3);
    let ids: Vec<i64> = (0..batch * length).map(|_| growing.random.below(words) as i64).collect();
    let ids = growing.constant_of(Tensor::from_vec([batch, length], ids).ok()?);
    let scores = growing.operand(DType::F32, &[batch, words]);
    let least = growing.scalar(DType::F32, -8.0);
    let [open, clipped] = [0; 2].map(|_| growing.fresh());
    let size = int("ngram_size", 1 + growing.random.below(3));
    let mut block = super::control::node(operator, &[&ids.name, &scores.name], &[&open], vec![size]);
    block.domain = "com.microsoft".to_string();
    let nodes = vec![block, super::control::node("Clip", &[&open, &least.name], &[&clipped], vec![])];
    growing.add_nodes(nodes, &[clipped], Rounding::None).map(drop)
}

fn pool_channels_last(growing: &mut Growing, operator: &str) -> Made {
    let dtype = growing.pick_type(&[DType::U8, DType::I8]);
    let [batch, height, width, channels] = [0; 4].map(|_| 2 + growing.random.below(5));
    let x = growing.operand(dtype, &[batch.min(2), height, width, channels]);
    let attributes = vec![
        sizes("kernel_shape", &[2, 2]),
        sizes("strides", &[1 + growing.random.below(2), 1]),
        sizes("pads", &[growing.random.below(2), 0, 0, growing.random.below(2)]),
    ];
    growing.add(Call::of(operator, &[&x]).with(attributes).microsoft().exact()).map(drop)
}

fn quantised_conv(growing: &mut Growing, operator: &str) -> Made {
    let is_last = growing.random.once_in(2);
    let [height, width] = [0; 2].map(|_| 3 + growing.random.below(4));
    let [channels, outputs] = [0; 2].map(|_| 1 + growing.random.below(5));
    let shape = if is_last { [1, height, width, channels] } else { [1, channels, height, width] };
    let x = growing.operand(DType::U8, &shape);
    let filter = growing.constant_within(DType::I8, &[outputs, channels, 2, 2], -2.0, 2.0);
    let [x_scale, filter_scale, y_scale] = [0.125, 0.25, 0.5].map(|scale| growing.scalar(DType::F32, scale));
    let [x_zero, y_zero] = [2.0, 8.0].map(|zero| growing.scalar(DType::U8, zero));
    let filter_zero = growing.scalar(DType::I8, 0.0);
    let inputs = [&x, &x_scale, &x_zero, &filter, &filter_scale, &filter_zero, &y_scale, &y_zero];
    let attributes = vec![int("channels_last", i64::from(is_last))];
    growing.add(Call::of(operator, &inputs).with(attributes).microsoft().exact()).map(drop)
}

fn quantised_attention(growing: &mut Growing, operator: &str) -> Made {
    let (heads, size) = (1 + growing.random.below(3), 4);
    let [batch, length, width] = [0; 3].map(|_| 1 + growing.random.below(5));
    let hidden = heads * size;
    let x = growing.operand(DType::U8, &[batch, length, width]);
    let weights = growing.constant_within(DType::I8, &[width, 3 * hidden], -2.0, 2.0);
    let bias = growing.operand(DType::F32, &[3 * hidden]);
    let [x_scale, weights_scale] = [0.125, 0.0625].map(|scale| growing.scalar(DType::F32, scale));
    let (x_zero, weights_zero) = (growing.scalar(DType::U8, 3.0), growing.scalar(DType::I8, 0.0));
    let absent = Known::absent();
    let inputs = [&x, &weights, &bias, &x_scale, &weights_scale, &absent, &x_zero, &weights_zero];
    let attributes = vec![int("num_heads", heads), int("unidirectional", growing.random.below(2))];
    growing.add(Call::of(operator, &inputs).with(attributes).microsoft()).map(drop)
}

fn quantised_embedding(growing: &mut Growing, operator: &str) -> Made {
    let [batch, length, words, width] = [0; 4].map(|_| 2 + growing.random.below(4));
    let ids: Vec<i32> = (0..batch * length).map(|_| growing.random.below(words) as i32).collect();
    let segments: Vec<i32> = (0..batch * length).map(|_| growing.random.below(2) as i32).collect();
    let ids = growing.constant_of(Tensor::from_vec([batch, length], ids).ok()?);
    let segments = growing.constant_of(Tensor::from_vec([batch, length], segments).ok()?);
    // onnxruntime wants to know their sizes before it runs.
    let tables = [words, length, 2].map(|rows| growing.constant_within(DType::U8, &[rows, width], 0.0, 12.0));
    let [gamma, beta] = [0; 2].map(|_| growing.constant_within(DType::U8, &[width], 0.0, 12.0));
    let mask = Known::absent();
    let scales = [0.125, 0.25, 0.5, 0.125, 0.25].map(|scale| growing.scalar(DType::F32, scale));
    let zeros = [1.0, 2.0, 3.0, 4.0, 5.0].map(|zero| growing.scalar(DType::U8, zero));
    let mut inputs = vec![&ids, &segments];
    inputs.extend(tables.iter().chain([&gamma, &beta, &mask]).chain(&scales).chain(&zeros));
    let call = Call::of(operator, &inputs).with(vec![float("epsilon", 0.5)]).microsoft();
    growing.add_all(call.outputs(2)).map(drop)
}

fn padded_conv_transpose(growing: &mut Growing, operator: &str) -> Made {
    let [height, width] = [0; 2].map(|_| 2 + growing.random.below(4));
    let [channels, outputs] = [0; 2].map(|_| 1 + growing.random.below(4));
    let x = growing.operand(DType::F32, &[1, channels, height, width]);
    let filter = growing.operand(DType::F32, &[channels, outputs, 3, 3]);
    let pads: Vec<i64> = (0..4).map(|_| growing.random.below(2) as i64).collect();
    let pads = growing.ints(&pads);
    let attributes = vec![sizes("strides", &[1 + growing.random.below(2), 1])];
    growing.add(Call::of(operator, &[&x, &filter, &pads]).with(attributes).microsoft()).map(drop)
}

fn crop(growing: &mut Growing, operator: &str) -> Made {
    let [images, channels] = [0; 2].map(|_| 1 + growing.random.below(3));
    // Spans of powers of two, so that no coordinate lies a last bit beside a half.
    let x = growing.operand(DType::F32, &[images, channels, 5, 9]);
    let count = 1 + growing.random.below(3);
    let regions = growing.operand_within(DType::F32, &[count, 4], -0.25, 1.25);
    let image: Vec<i32> = (0..count).map(|_| growing.random.below(images) as i32).collect();
    let image = growing.constant_of(Tensor::from_vec([count], image).ok()?);
    let size: Vec<i32> = (0..2).map(|_| *growing.random.pick(&[1, 2, 3, 5])).collect();
    let size = growing.constant_of(Tensor::from_vec([2], size).ok()?);
    let attributes = vec![string("mode", "bilinear"), float("extrapolation_value", 0.75)];
    growing.add(Call::of(operator, &[&x, &regions, &image, &size]).with(attributes).microsoft()).map(drop)
}

fn gated_norm(growing: &mut Growing, operator: &str) -> Made {
    let [rows, groups, width] = [0; 3].map(|_| 1 + growing.random.below(5));
    let x = growing.operand(DType::F32, &[rows, groups * width]);
    let scale = growing.operand(DType::F32, &[width]);
    let gate = growing.operand(DType::F32, &[rows, groups * width]);
    let attributes = vec![float("epsilon", 0.125)];
    growing.add(Call::of(operator, &[&x, &scale, &gate]).with(attributes).microsoft()).map(drop)
}

fn causal_conv(growing: &mut Growing, operator: &str) -> Made {
    let [batch, channels, length, window] = [0; 4].map(|_| 2 + growing.random.below(3));
    let x = growing.operand(DType::F32, &[batch, channels, length]);
    let filter = growing.operand(DType::F32, &[channels, 1, window]);
    let bias = growing.operand(DType::F32, &[channels]);
    let past = match growing.random.once_in(2) {
        true => growing.operand(DType::F32, &[batch, channels, window - 1]),
        false => Known::absent(),
    };
    let attributes = vec![string("activation", growing.choose(&["none", "silu"]))];
    growing.add_all(Call::of(operator, &[&x, &filter, &bias, &past]).with(attributes).outputs(2).microsoft()).map(drop)
}

fn linear_attention(growing: &mut Growing, operator: &str) -> Made {
    let [batch, time, heads, keys, values] = [0; 5].map(|_| 1 + growing.random.below(3));
    let rule = growing.choose(&["linear", "gated", "delta", "gated_delta"]);
    let mut operand =
        |width: usize, lo: f64, hi: f64| growing.operand_within(DType::F32, &[batch, time, width], lo, hi);
    let (query, key) = (operand(heads * keys, -1.0, 1.0), operand(heads * keys, -0.5, 0.5));
    let value = operand(heads * values, -1.0, 1.0);
    let decay = if rule.starts_with("gated") { operand(heads, -1.0, 0.0) } else { Known::absent() };
    let beta = if rule.ends_with("delta") { operand(heads, 0.0, 1.0) } else { Known::absent() };
    let past = growing.operand_within(DType::F32, &[batch, heads, keys, values], -1.0, 1.0);
    let attributes = vec![int("q_num_heads", heads), int("kv_num_heads", heads), string("update_rule", rule)];
    let inputs = [&query, &key, &value, &past, &decay, &beta];
    growing.add_all(Call::of(operator, &inputs).with(attributes).outputs(2).microsoft()).map(drop)
}

fn range(growing: &mut Growing, operator: &str) -> Made {
    let dtype = growing.pick_type(&[DType::I64, DType::I32, DType::F32]);
    let (start, count) = (growing.random.below(5) as f64 - 2.0, growing.random.below(9) as f64);
    let limit = growing.scalar(dtype, start + count);
    let start = growing.scalar(dtype, start);
    let mut inputs = vec![&start, &limit];
    let delta = growing.scalar(dtype, 2.0);
    if growing.random.once_in(2) {
        inputs.push(&delta);
    }
    growing.add(Call::of(operator, &inputs).microsoft().exact()).map(drop)
}

fn unfold(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32, DType::I32]).ranks(1..=3).filled());
    let axis = growing.random.below(x.rank());
    let size = 1 + growing.random.below(x.shape()[axis]);
    let attributes = vec![int("dim", axis), int("size", size), int("step", 1 + growing.random.below(3))];
    growing.add(Call::of(operator, &[&x]).with(attributes).microsoft().exact()).map(drop)
}

fn unique(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32]).ranks(1..=1).exact().filled());
    growing.add_all(Call::of(operator, &[&x]).outputs(3).microsoft().exact()).map(drop)
}
