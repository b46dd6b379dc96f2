//! Attention of ai.onnx, composed of matrix products, a bias and softmax; a Pass may make one kernel of them. The parts
//! that com.microsoft's operators share are here too; those operators and the rotary embedding have files of their own.

mod cached;
mod decoder;
mod microsoft;
mod packed;
mod paged;
mod position_bias;
mod rotary;
mod sparse;

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, Matmul, ReduceFn, UnaryFn};
use precast_tensor::{DType, Dim};

use crate::import::{Fault, Import, NodeCx};

#[rustfmt::skip]
pub(super) const IMPORTS: &[Import] = &[
    Import { domain: "", name: "Attention", since: 23, tier: 1, function: attention },
    Import { domain: "", name: "RotaryEmbedding", since: 23, tier: 1, function: rotary::rotary_embedding },
    Import { domain: "com.microsoft", name: "Attention", since: 1, tier: 1, function: microsoft::attention },
    Import { domain: "com.microsoft", name: "GemmaRotaryEmbedding", since: 1, tier: 1, function: rotary::gemma_rotary_embedding },
    Import { domain: "com.microsoft", name: "GroupQueryAttention", since: 1, tier: 1, function: microsoft::group_query_attention },
    Import { domain: "com.microsoft", name: "MultiHeadAttention", since: 1, tier: 1, function: microsoft::multi_head_attention },
    Import { domain: "com.microsoft", name: "QAttention", since: 1, tier: 1, function: microsoft::q_attention },
    Import { domain: "com.microsoft", name: "DecoderAttention", since: 1, tier: 2, function: decoder::decoder_attention },
    Import { domain: "com.microsoft", name: "DecoderMaskedMultiHeadAttention", since: 1, tier: 1, function: decoder::masked_multi_head_attention },
    Import { domain: "com.microsoft", name: "DecoderMaskedSelfAttention", since: 1, tier: 2, function: decoder::masked_self_attention },
    Import { domain: "com.microsoft", name: "GatedRelativePositionBias", since: 1, tier: 2, function: position_bias::gated_relative_position_bias },
    Import { domain: "com.microsoft", name: "LongformerAttention", since: 1, tier: 2, function: sparse::longformer_attention },
    Import { domain: "com.microsoft", name: "MRotaryEmbedding", since: 1, tier: 2, function: rotary::multimodal_rotary_embedding },
    Import { domain: "com.microsoft", name: "PackedAttention", since: 1, tier: 1, function: packed::packed_attention },
    Import { domain: "com.microsoft", name: "PackedMultiHeadAttention", since: 1, tier: 1, function: packed::packed_multi_head_attention },
    Import { domain: "com.microsoft", name: "PagedAttention", since: 1, tier: 1, function: paged::paged_attention },
    Import { domain: "com.microsoft", name: "RelativePositionBias", since: 1, tier: 2, function: position_bias::relative_position_bias },
    Import { domain: "com.microsoft", name: "RemovePadding", since: 1, tier: 2, function: packed::remove_padding },
    Import { domain: "com.microsoft", name: "RestorePadding", since: 1, tier: 2, function: packed::restore_padding },
    Import { domain: "com.microsoft", name: "SparseAttention", since: 1, tier: 2, function: sparse::sparse_attention },
    Import { domain: "com.microsoft", name: "RotaryEmbedding", since: 1, tier: 1, function: rotary::microsoft_rotary_embedding },
];

type Outputs = Result<Vec<ValueId>, Fault>;

/// Queries, keys and values as [batch, heads, length, head size]. Queries may have a multiple of the heads of keys.
#[derive(Clone, Copy)]
struct Heads {
    q: ValueId,
    k: ValueId,
    v: ValueId,
}

/// What happens between the two products.
struct Scoring {
    scale: f64,
    /// 0 for none.
    softcap: f64,
    /// Which keys a query may see.
    allowed: Option<ValueId>,
    /// Added to the scores.
    added: Option<ValueId>,
    /// Score of a key that may not be seen.
    masked: f64,
    /// Whether a query may be left without keys, which must give zeros.
    may_mask_all: bool,
    /// Element type of the softmax where it is not the operands' own.
    precision: Option<DType>,
    /// Scores [heads] or [1] of a key that every query sees and that has no value: it takes a part of the probability.
    sink: Option<ValueId>,
}

impl Scoring {
    /// Scoring without masks.
    fn plain(masked: f64) -> Scoring {
        Scoring {
            scale: 1.0,
            softcap: 0.0,
            allowed: None,
            added: None,
            masked,
            may_mask_all: false,
            precision: None,
            sink: None,
        }
    }
}

/// Results of attention, and what the score output may be asked for.
struct Attended {
    /// [batch, heads, length, head size].
    y: ValueId,
    scores: ValueId,
    capped: ValueId,
    biased: ValueId,
    probabilities: ValueId,
}

/// Attention of opsets 23 to 25; 24 adds `nonpad_kv_seqlen`, 25 the window sizes.
fn attention(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let is_causal = cx.flag("is_causal", false)?;
    let softcap = cx.float("softcap", 0.0)?;
    let precision = cx.dtype_attribute("softmax_precision")?;
    let output_mode = cx.int("qk_matmul_output_mode", 0)?;
    let window = (cx.int("left_window_size", -1)?, cx.int("right_window_size", -1)?);
    let (q_heads, kv_heads) = (cx.int("q_num_heads", 0)?, cx.int("kv_num_heads", 0)?);
    let scale = cx.attributes().float("scale")?;
    let is_flat = cx.rank(cx.input(0)?) == 3;
    let q = split_heads(cx, cx.input(0)?, q_heads)?;
    let k = split_heads(cx, cx.input(1)?, kv_heads)?;
    let v = split_heads(cx, cx.input(2)?, kv_heads)?;

    let mut past = Dim::ZERO;
    let (mut k, mut v) = (k, v);
    if let (Some(past_k), Some(past_v)) = (cx.optional(4), cx.optional(5)) {
        past = length_of(cx, past_k)?;
        k = cx.concat(&[past_k, k], 2)?;
        v = cx.concat(&[past_v, v], 2)?;
    }
    let heads = Heads { q, k, v };
    let lengths = cx.optional(6);
    let mut allowed = None;
    if is_causal || window != (-1, -1) || lengths.is_some() {
        let (rows, columns) = add_positions(cx, heads, &past, lengths)?;
        if is_causal {
            allowed = Some(cx.compare(CompareFn::Le, columns, rows)?);
        }
        allowed = add_window(cx, allowed, rows, columns, window)?;
        if let Some(lengths) = lengths {
            let ends = beside_batch(cx, lengths)?;
            let is_filled = cx.compare(CompareFn::Lt, columns, ends)?;
            allowed = Some(both(cx, allowed, is_filled)?);
        }
    }
    let mut added = None;
    let mask = match cx.optional(3) {
        Some(mask) => Some(fit_mask(cx, mask, heads.k)?),
        None => None,
    };
    if let Some(mask) = mask {
        if cx.dtype(mask).is_bool() {
            allowed = Some(both(cx, allowed, mask)?);
        } else {
            added = Some(cx.cast(mask, cx.dtype(q))?);
        }
    }
    let scoring = Scoring {
        scale: scale.map_or_else(|| default_scale(cx, q), Ok)?,
        softcap,
        allowed,
        added,
        masked: f64::NEG_INFINITY,
        may_mask_all: mask.is_some() || lengths.is_some() || window != (-1, -1),
        precision,
        sink: None,
    };
    let attended = attend(cx, heads, &scoring)?;
    let y = if is_flat { merge_heads(cx, attended.y)? } else { attended.y };
    let scores = match output_mode {
        0 => attended.scores,
        1 => attended.capped,
        2 => attended.biased,
        3 => attended.probabilities,
        mode => {
            return Err(Fault::Invalid(format!("attribute 'qk_matmul_output_mode' is {mode}; 0 to 3 was expected")));
        }
    };
    Ok(vec![y, k, v, scores])
}

/// [batch, length, heads * size] as [batch, heads, length, size]; what has four axes already stays.
fn split_heads(cx: &mut NodeCx<'_, '_>, x: ValueId, heads: i64) -> Result<ValueId, Fault> {
    match &cx.dims(x)[..] {
        [_, _, _, _] => Ok(x),
        [batch, length, width] => {
            if heads <= 0 {
                return Err(Fault::Invalid(format!("the number of heads is {heads}; 1 or more was expected")));
            }
            let size = width.floor_div(&Dim::from(heads));
            let split = cx.reshape(x, vec![batch.clone(), length.clone(), Dim::from(heads), size])?;
            cx.transpose(split, vec![0, 2, 1, 3])
        }
        dims => Err(Fault::Invalid(format!("an operand has rank {}; 3 or 4 was expected", dims.len()))),
    }
}

/// [batch, heads, length, size] as [batch, length, heads * size].
fn merge_heads(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId, Fault> {
    let moved = cx.transpose(x, vec![0, 2, 1, 3])?;
    let dims = cx.dims(moved);
    cx.reshape(moved, vec![dims[0].clone(), dims[1].clone(), &dims[2] * &dims[3]])
}

fn length_of(cx: &NodeCx<'_, '_>, x: ValueId) -> Result<Dim, Fault> {
    match &cx.dims(x)[..] {
        [_, _, length, _] => Ok(length.clone()),
        dims => Err(Fault::Invalid(format!("an operand has rank {}; 4 was expected", dims.len()))),
    }
}

/// 1 / sqrt(head size).
fn default_scale(cx: &NodeCx<'_, '_>, q: ValueId) -> Result<f64, Fault> {
    let size = cx.dims(q).last().cloned().unwrap_or(Dim::ONE);
    Ok(1.0 / (cx.number(&size, "the head size")? as f64).sqrt())
}

/// Positions of queries [.., queries, 1] and of keys [1, keys] in the sequence. Queries come after `past` keys, or with
/// `lengths` at the end of the filled part of each row.
fn add_positions(
    cx: &mut NodeCx<'_, '_>,
    heads: Heads,
    past: &Dim,
    lengths: Option<ValueId>,
) -> Result<(ValueId, ValueId), Fault> {
    let (queries, keys) = (length_of(cx, heads.q)?, length_of(cx, heads.k)?);
    let start = if lengths.is_some() { -&queries } else { past.clone() };
    let rows = cx.iota(start, queries)?;
    let mut rows = cx.unsqueeze(rows, &[1])?;
    if let Some(lengths) = lengths {
        let ends = beside_batch(cx, lengths)?;
        rows = cx.binary(BinaryFn::Add, rows, ends)?;
    }
    let columns = cx.iota(Dim::ZERO, keys)?;
    Ok((rows, cx.unsqueeze(columns, &[0])?))
}

/// One number a batch row as i64 [batch, 1, 1, 1].
fn beside_batch(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId, Fault> {
    let batch: Dim = cx.dims(x).iter().product();
    let x = cx.reshape(x, vec![batch, Dim::ONE, Dim::ONE, Dim::ONE])?;
    cx.cast(x, DType::I64)
}

/// Also at most so many positions to the left and to the right of the query; -1 is no limit.
fn add_window(
    cx: &mut NodeCx<'_, '_>,
    mut allowed: Option<ValueId>,
    rows: ValueId,
    columns: ValueId,
    (left, right): (i64, i64),
) -> Result<Option<ValueId>, Fault> {
    if left >= 0 {
        let first = cx.binary_scalar(BinaryFn::Sub, rows, left as f64)?;
        let is_near = cx.compare(CompareFn::Ge, columns, first)?;
        allowed = Some(both(cx, allowed, is_near)?);
    }
    if right >= 0 {
        let last = cx.binary_scalar(BinaryFn::Add, rows, right as f64)?;
        let is_near = cx.compare(CompareFn::Le, columns, last)?;
        allowed = Some(both(cx, allowed, is_near)?);
    }
    Ok(allowed)
}

fn both(cx: &mut NodeCx<'_, '_>, a: Option<ValueId>, b: ValueId) -> Result<ValueId, Fault> {
    match a {
        Some(a) => cx.binary(BinaryFn::And, a, b),
        None => Ok(b),
    }
}

/// A mask that is shorter than the keys forbids the rest.
fn fit_mask(cx: &mut NodeCx<'_, '_>, mask: ValueId, k: ValueId) -> Result<ValueId, Fault> {
    let keys = length_of(cx, k)?;
    let dims = cx.dims(mask);
    let Some(last) = dims.last() else { return Ok(mask) };
    if *last == keys || (*last == Dim::ONE && keys.as_const().is_none()) {
        return Ok(mask);
    }
    let mut hi = vec![Dim::ZERO; dims.len()];
    hi[dims.len() - 1] = &keys - last;
    let fill = if cx.dtype(mask).is_bool() { 0.0 } else { f64::NEG_INFINITY };
    cx.pad_end(mask, hi, fill)
}

/// softmax(q k^T * scale, capped and biased) v.
fn attend(cx: &mut NodeCx<'_, '_>, heads: Heads, scoring: &Scoring) -> Result<Attended, Fault> {
    let dtype = cx.dtype(heads.q);
    let scores = add_scores(cx, heads, scoring.scale)?;
    let mut capped = scores;
    if scoring.softcap > 0.0 {
        let small = cx.binary_scalar(BinaryFn::Div, scores, scoring.softcap)?;
        let bent = cx.unary(UnaryFn::Tanh, small)?;
        capped = cx.binary_scalar(BinaryFn::Mul, bent, scoring.softcap)?;
    }
    let bias = add_bias(cx, scoring, dtype)?;
    let biased = match bias {
        Some(bias) => cx.binary(BinaryFn::Add, capped, bias)?,
        None => capped,
    };
    let exact = cx.cast(biased, scoring.precision.unwrap_or(dtype))?;
    let softmax = match scoring.sink {
        Some(sink) => add_softmax_with_sink(cx, exact, sink)?,
        None => cx.softmax(exact, 3)?,
    };
    let mut probabilities = cx.cast(softmax, dtype)?;
    if let Some(bias) = bias.filter(|_| scoring.may_mask_all) {
        let axis = cx.axis(-1, cx.rank(bias))?;
        let largest = cx.reduce(ReduceFn::Max, bias, vec![axis], true)?;
        let never = cx.scalar(dtype, f64::NEG_INFINITY)?;
        let is_empty = cx.compare(CompareFn::Eq, largest, never)?;
        let zero = cx.scalar(dtype, 0.0)?;
        probabilities = cx.select(is_empty, zero, probabilities)?;
    }
    let y = grouped_matmul(cx, probabilities, heads.v, false)?;
    Ok(Attended { y, scores, capped, biased, probabilities })
}

/// Softmax over the keys and one more of a given score, without that one.
fn add_softmax_with_sink(cx: &mut NodeCx<'_, '_>, scores: ValueId, sink: ValueId) -> Result<ValueId, Fault> {
    let dims = cx.dims(scores);
    let heads: Dim = cx.dims(sink).iter().product();
    let sink = cx.cast(sink, cx.dtype(scores))?;
    let sink = cx.reshape(sink, vec![Dim::ONE, heads, Dim::ONE, Dim::ONE])?;
    let sink = cx.broadcast(sink, vec![dims[0].clone(), dims[1].clone(), dims[2].clone(), Dim::ONE])?;
    let all = cx.concat(&[scores, sink], 3)?;
    let softmax = cx.softmax(all, 3)?;
    cx.slice_axis(softmax, 3, Dim::ZERO, dims[3].clone())
}

/// q k^T * scale.
fn add_scores(cx: &mut NodeCx<'_, '_>, heads: Heads, scale: f64) -> Result<ValueId, Fault> {
    if scale == 1.0 {
        return grouped_matmul(cx, heads.q, heads.k, true);
    }
    if scale > 0.0 && matches!(cx.dtype(heads.q), DType::F16 | DType::BF16) {
        // Half of the scale goes to each operand, as ONNX has it: products of unscaled ones may leave the range of f16.
        let q = cx.binary_scalar(BinaryFn::Mul, heads.q, scale.sqrt())?;
        let k = cx.binary_scalar(BinaryFn::Mul, heads.k, scale.sqrt())?;
        return grouped_matmul(cx, q, k, true);
    }
    let product = grouped_matmul(cx, heads.q, heads.k, true)?;
    cx.binary_scalar(BinaryFn::Mul, product, scale)
}

/// What is added to scores: the given bias, with the masked score in place of what may not be seen.
fn add_bias(cx: &mut NodeCx<'_, '_>, scoring: &Scoring, dtype: DType) -> Result<Option<ValueId>, Fault> {
    let Some(allowed) = scoring.allowed else {
        return Ok(scoring.added);
    };
    let never = cx.scalar(dtype, scoring.masked)?;
    let added = match scoring.added {
        Some(added) => added,
        None => cx.scalar(dtype, 0.0)?,
    };
    cx.select(allowed, added, never).map(Some)
}

/// a [batch, heads, m, ..] times b [batch, key heads, ..]: heads that share a key head become rows of one matrix.
fn grouped_matmul(cx: &mut NodeCx<'_, '_>, a: ValueId, b: ValueId, transpose_b: bool) -> Result<ValueId, Fault> {
    let op = Matmul { transpose_a: false, transpose_b };
    let (a_dims, b_dims) = (cx.dims(a), cx.dims(b));
    let [batch, heads, rows, inner] = &a_dims[..] else {
        return Err(Fault::Invalid(format!("queries have rank {}; 4 was expected", a_dims.len())));
    };
    let Some(key_heads) = b_dims.get(1) else {
        return Err(Fault::Invalid(format!("keys have rank {}; 4 was expected", b_dims.len())));
    };
    if heads == key_heads {
        return cx.add(op, &[a, b]);
    }
    let count = cx.number(heads, "the number of query heads")?;
    let key_count = cx.number(key_heads, "the number of key heads")?;
    if key_count == 0 || count % key_count != 0 {
        return Err(Fault::Invalid(format!("{count} query heads cannot share {key_count} key heads evenly")));
    }
    let group = Dim::from(count / key_count);
    let stacked = cx.reshape(a, vec![batch.clone(), key_heads.clone(), group * rows, inner.clone()])?;
    let product = cx.add(op, &[stacked, b])?;
    let columns = cx.dims(product)[3].clone();
    cx.reshape(product, vec![batch.clone(), heads.clone(), rows.clone(), columns])
}
