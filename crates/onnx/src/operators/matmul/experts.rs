//! MoE and QMoE of com.microsoft: every token goes through the few of several networks that a router gives it to. All networks are
//! computed for all tokens, as products with a batch axis, and those that a token was not given to weigh nothing.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, Dequantize, Matmul, ReduceFn, Topk, UnaryFn};
use precast_tensor::{DType, Dim};

use super::Outputs;
use super::nbits::{level_type, type_of_bits, unpack_rows};
use crate::import::{Fault, NodeCx};

/// What stands between the two products of an expert.
enum Activation {
    Plain(UnaryFn),
    Identity,
    SwiGlu(SwiGlu),
}

/// G sigmoid(alpha G) (L + beta) of a gate G and a value L, both clamped where there is a limit.
struct SwiGlu {
    alpha: f64,
    beta: f64,
    limit: Option<f64>,
    /// Whether gate and value are the even and odd columns of one product, or its halves.
    is_interleaved: bool,
}

/// Weights and biases of the two products of each expert, by input position.
struct Products {
    first: (ValueId, Option<ValueId>),
    second: (ValueId, Option<ValueId>),
}

/// Inputs x [.., hidden], router logits [tokens, experts], and weights and biases of each expert's two products.
pub(super) fn moe(cx: &mut NodeCx<'_, '_>) -> Outputs {
    refuse_rare_forms(cx, &[6, 7])?;
    let products = Products { first: (cx.input(2)?, cx.optional(3)), second: (cx.input(4)?, cx.optional(5)) };
    let shares = routed_shares(cx)?;
    mix(cx, &products, shares)
}

/// The same with weights of few bits and a scale for each row, or for each block of one. Shares are always those among the
/// experts that were chosen, or given by themselves.
pub(super) fn quantised_moe(cx: &mut NodeCx<'_, '_>) -> Outputs {
    refuse_rare_forms(cx, &[8, 9, 10, 13])?;
    let quantisation = cx.string("quant_type", "int")?;
    if quantisation != "int" {
        return Err(Fault::Unsupported(format!("quant_type={quantisation} is not covered; int is")));
    }
    if cx.int("weights_prepacked", -1)? == 1 {
        return Err(Fault::Unsupported(
            "weights are packed for one kernel: export with weights_prepacked=0".to_string(),
        ));
    }
    // A hint for kernels of ONNX Runtime.
    cx.int("accuracy_level", 0)?;
    let bits = cx.int("expert_weight_bits", 4)?;
    let bits_of = |name: &str| cx.int(name, bits);
    let (first_bits, second_bits) = (bits_of("fc1_expert_weight_bits")?, bits_of("fc2_expert_weight_bits")?);
    bits_of("fc3_expert_weight_bits")?;
    let first = dequantised(cx, (2, 3, 11), first_bits)?;
    let second = dequantised(cx, (5, 6, 12), second_bits)?;
    let products = Products { first: (first, cx.optional(4)), second: (second, cx.optional(7)) };
    let shares = chosen_shares(cx)?;
    mix(cx, &products, shares)
}

fn refuse_rare_forms(cx: &NodeCx<'_, '_>, third: &[usize]) -> Result<(), Fault> {
    if cx.flag("use_sparse_mixer", false)? {
        return Err(Fault::Unsupported("use_sparse_mixer=1 is not covered".to_string()));
    }
    if third.iter().any(|&position| cx.optional(position).is_some()) {
        return Err(Fault::Unsupported("a third product is not covered: export with swiglu_fusion".to_string()));
    }
    Ok(())
}

/// Weights [experts, out, in] of levels packed along the last axis, with scales [experts, out] or [experts, out, blocks], and zero
/// points that are packed too: those of single rows along the rows, those of blocks along the blocks.
fn dequantised(
    cx: &mut NodeCx<'_, '_>,
    (weights, scales, zeros): (usize, usize, usize),
    bits: i64,
) -> Result<ValueId, Fault> {
    let dtype = type_of_bits(bits)?;
    let (weights, scales, zeros) = (cx.input(weights)?, cx.input(scales)?, cx.optional(zeros));
    let block = cx.int("block_size", 0)?;
    cx.dims_of::<3>(weights, "the weights of experts")?;
    let levels = unpack_rows(cx, weights, level_type(dtype, zeros.is_some()))?;
    let [experts, rows, depth] = cx.dims_of(levels, "the weights of experts")?;
    let depth = cx.number(&depth, "the width of the weights of experts")?;
    let block = usize::try_from(block).ok().filter(|&block| block > 0).unwrap_or(depth.max(1));
    let count = Dim::from(depth.div_ceil(block));
    let is_blocked = cx.rank(scales) == 3;
    let scales = cx.cast(scales, cx.dtype(cx.input(0)?))?;
    let scales = cx.reshape(scales, vec![experts.clone(), rows.clone(), count.clone()])?;
    let op = Dequantize { to: cx.dtype(scales), axis: 2, block };
    let Some(zeros) = zeros else { return cx.add(op, &[levels, scales]) };
    let zeros = unpack_rows(cx, zeros, dtype)?;
    // Packed elements fill whole bytes.
    let (axis, used) = if is_blocked { (2, count.clone()) } else { (1, rows.clone()) };
    let zeros = cx.slice_axis(zeros, axis, Dim::ZERO, used)?;
    let zeros = cx.reshape(zeros, vec![experts, rows, count])?;
    cx.add(op, &[levels, scales, zeros])
}

/// The outputs of all experts for the tokens of input 0, weighed by shares [tokens, experts].
fn mix(cx: &mut NodeCx<'_, '_>, products: &Products, shares: ValueId) -> Outputs {
    let activation = read_activation(cx)?;
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let Some(hidden) = dims.last() else {
        return Err(Fault::Invalid("the input is a scalar; rank 2 or 3 was expected".to_string()));
    };
    let tokens: Dim = dims[..dims.len() - 1].iter().product();
    let rows = cx.reshape(x, vec![Dim::ONE, tokens, hidden.clone()])?;
    let inner = add_product(cx, rows, products.first)?;
    let inner = activate(cx, &activation, inner)?;
    let outer = add_product(cx, inner, products.second)?;
    // [tokens, experts] beside [experts, tokens, hidden].
    let shares = cx.transpose(shares, vec![1, 0])?;
    let shares = cx.unsqueeze(shares, &[2])?;
    let shares = cx.cast(shares, cx.dtype(outer))?;
    let weighted = cx.binary(BinaryFn::Mul, outer, shares)?;
    let sum = cx.reduce(ReduceFn::Sum, weighted, vec![0], false)?;
    Ok(vec![cx.reshape(sum, dims)?])
}

fn read_activation(cx: &NodeCx<'_, '_>) -> Result<Activation, Fault> {
    let (alpha, beta) = (cx.float("activation_alpha", 1.0)?, cx.float("activation_beta", 0.0)?);
    let (fusion, limit) = (cx.int("swiglu_fusion", 0)?, cx.attributes().float("swiglu_limit")?);
    Ok(match cx.string("activation_type", "relu")?.as_str() {
        "relu" => Activation::Plain(UnaryFn::Relu),
        "gelu" => Activation::Plain(UnaryFn::GeluTanh),
        "silu" => Activation::Plain(UnaryFn::Silu),
        "identity" => Activation::Identity,
        "swiglu" if fusion != 0 => Activation::SwiGlu(SwiGlu { alpha, beta, limit, is_interleaved: fusion == 1 }),
        "swiglu" => return Err(Fault::Unsupported("swiglu_fusion=0 is not covered: export it fused".to_string())),
        other => return Err(Fault::Invalid(format!("attribute 'activation_type' is '{other}'"))),
    })
}

/// x [.., tokens, in] times weights [experts, out, in], plus a bias [experts, out].
fn add_product(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    (weights, bias): (ValueId, Option<ValueId>),
) -> Result<ValueId, Fault> {
    let product = cx.add(Matmul { transpose_a: false, transpose_b: true }, &[x, weights])?;
    match bias {
        Some(bias) => {
            let bias = cx.unsqueeze(bias, &[1])?;
            cx.binary(BinaryFn::Add, product, bias)
        }
        None => Ok(product),
    }
}

fn activate(cx: &mut NodeCx<'_, '_>, activation: &Activation, x: ValueId) -> Result<ValueId, Fault> {
    match activation {
        Activation::Plain(UnaryFn::Silu) => cx.unary_with(UnaryFn::Silu, 1.0, 0.0, x),
        Activation::Plain(func) => cx.unary(*func, x),
        Activation::Identity => Ok(x),
        Activation::SwiGlu(swiglu) => swiglu.apply(cx, x),
    }
}

impl SwiGlu {
    fn apply(&self, cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId, Fault> {
        let dims = cx.dims(x);
        let half = cx.divide_exact(&dims[2], 2, "the width of the first product")?;
        let (mut gate, mut value) = if self.is_interleaved {
            let pairs = vec![dims[0].clone(), dims[1].clone(), half, Dim::from(2)];
            let pairs = cx.reshape(x, pairs)?;
            let mut part = |at: usize| {
                let part = cx.slice_axis(pairs, 3, Dim::from(at), Dim::ONE)?;
                cx.squeeze(part, &[3])
            };
            (part(0)?, part(1)?)
        } else {
            (cx.slice_axis(x, 2, Dim::ZERO, half.clone())?, cx.slice_axis(x, 2, half.clone(), half)?)
        };
        if let Some(limit) = self.limit {
            gate = cx.clamp(gate, f64::NEG_INFINITY, limit)?;
            value = cx.clamp(value, -limit, limit)?;
        }
        let bent = cx.unary_with(UnaryFn::Affine, self.alpha, 0.0, gate)?;
        let bent = cx.unary(UnaryFn::Sigmoid, bent)?;
        let gate = cx.binary(BinaryFn::Mul, gate, bent)?;
        let value = cx.unary_with(UnaryFn::Affine, 1.0, self.beta, value)?;
        cx.binary(BinaryFn::Mul, gate, value)
    }
}

/// How much of each expert a token takes: its softmax where it is among the k largest, else 0.
fn routed_shares(cx: &mut NodeCx<'_, '_>) -> Result<ValueId, Fault> {
    let logits = cx.cast(cx.input(1)?, DType::F32)?;
    let shares = cx.softmax(logits, 1)?;
    let is_chosen = choose_experts(cx, shares)?;
    let zero = cx.scalar(DType::F32, 0.0)?;
    let shares = cx.select(is_chosen, shares, zero)?;
    match cx.flag("normalize_routing_weights", false)? {
        true => normalise(cx, shares),
        false => Ok(shares),
    }
}

/// The softmax of the k largest among themselves; or for those the numbers of another table, as they are or normalised.
fn chosen_shares(cx: &mut NodeCx<'_, '_>) -> Result<ValueId, Fault> {
    let logits = cx.cast(cx.input(1)?, DType::F32)?;
    let is_chosen = choose_experts(cx, logits)?;
    let is_normalized = cx.flag("normalize_routing_weights", false)?;
    let Some(weights) = cx.optional(14) else {
        let never = cx.scalar(DType::F32, f64::NEG_INFINITY)?;
        let chosen = cx.select(is_chosen, logits, never)?;
        return cx.softmax(chosen, 1);
    };
    let weights = cx.cast(weights, DType::F32)?;
    let zero = cx.scalar(DType::F32, 0.0)?;
    let shares = cx.select(is_chosen, weights, zero)?;
    if is_normalized { normalise(cx, shares) } else { Ok(shares) }
}

fn normalise(cx: &mut NodeCx<'_, '_>, shares: ValueId) -> Result<ValueId, Fault> {
    let sum = cx.reduce(ReduceFn::Sum, shares, vec![1], true)?;
    cx.binary(BinaryFn::Div, shares, sum)
}

/// Which experts [tokens, experts] have the k largest scores of a token. Of equal ones those with the higher number come first.
fn choose_experts(cx: &mut NodeCx<'_, '_>, scores: ValueId) -> Result<ValueId, Fault> {
    let count = cx.int("k", 1)?;
    let [_, experts] = cx.dims_of(scores, "the scores of the router")?;
    let turned = cx.reverse_axis(scores, 1)?;
    let op = Topk { k: Dim::from(count), axis: 1, largest: true };
    let places = cx.add_node(op, &[turned])?[1];
    // [tokens, k, 1] against every expert, counted from the last.
    let places = cx.unsqueeze(places, &[2])?;
    let numbers = cx.iota(Dim::ZERO, experts)?;
    let is_chosen = cx.compare(CompareFn::Eq, places, numbers)?;
    let is_chosen = cx.reduce(ReduceFn::Any, is_chosen, vec![1], false)?;
    cx.reverse_axis(is_chosen, 1)
}
