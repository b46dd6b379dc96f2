//! MoE of com.microsoft: every token goes through the few of several networks that a router gives it to. All networks are
//! computed for all tokens, as products with a batch axis, and those that a token was not given to weigh nothing.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, Matmul, ReduceFn, Topk, UnaryFn};
use precast_tensor::{DType, Dim};

use super::Outputs;
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

/// Inputs x [.., hidden], router logits [tokens, experts], and weights and biases of each expert's two products.
pub(super) fn moe(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let activation = read_activation(cx)?;
    let (x, router) = (cx.input(0)?, cx.input(1)?);
    if cx.flag("use_sparse_mixer", false)? {
        return Err(Fault::Unsupported("use_sparse_mixer=1 is not covered".to_string()));
    }
    if cx.optional(6).is_some() || cx.optional(7).is_some() {
        return Err(Fault::Unsupported("a third product is not covered: export with swiglu_fusion".to_string()));
    }
    let dims = cx.dims(x);
    let Some(hidden) = dims.last() else {
        return Err(Fault::Invalid("the input is a scalar; rank 2 or 3 was expected".to_string()));
    };
    let tokens: Dim = dims[..dims.len() - 1].iter().product();
    let rows = cx.reshape(x, vec![Dim::ONE, tokens, hidden.clone()])?;
    let inner = add_product(cx, rows, 2, 3)?;
    let inner = activate(cx, &activation, inner)?;
    let outer = add_product(cx, inner, 4, 5)?;
    let shares = routed_shares(cx, router)?;
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

/// x [.., tokens, in] times the weights [experts, out, in] at a position, plus the bias [experts, out] at another.
fn add_product(cx: &mut NodeCx<'_, '_>, x: ValueId, weights: usize, bias: usize) -> Result<ValueId, Fault> {
    let weights = cx.input(weights)?;
    let product = cx.add(Matmul { transpose_a: false, transpose_b: true }, &[x, weights])?;
    match cx.optional(bias) {
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

/// How much of each expert a token takes: its softmax where it is among the k largest, else 0. Of equal ones those with the
/// higher number come first.
fn routed_shares(cx: &mut NodeCx<'_, '_>, router: ValueId) -> Result<ValueId, Fault> {
    let count = cx.int("k", 1)?;
    let is_normalized = cx.flag("normalize_routing_weights", false)?;
    let logits = cx.cast(router, DType::F32)?;
    let shares = cx.softmax(logits, 1)?;
    let turned = cx.reverse_axis(shares, 1)?;
    let op = Topk { k: Dim::from(count), axis: 1, largest: true };
    let places = cx.add_node(op, &[turned])?[1];
    // [tokens, k, 1] against every expert, counted from the last.
    let places = cx.unsqueeze(places, &[2])?;
    let experts = cx.dims(shares)[1].clone();
    let numbers = cx.iota(Dim::ZERO, experts)?;
    let is_chosen = cx.compare(CompareFn::Eq, places, numbers)?;
    let is_chosen = cx.reduce(ReduceFn::Any, is_chosen, vec![1], false)?;
    let is_chosen = cx.reverse_axis(is_chosen, 1)?;
    let zero = cx.scalar(DType::F32, 0.0)?;
    let shares = cx.select(is_chosen, shares, zero)?;
    if !is_normalized {
        return Ok(shares);
    }
    let sum = cx.reduce(ReduceFn::Sum, shares, vec![1], true)?;
    cx.binary(BinaryFn::Div, shares, sum)
}
