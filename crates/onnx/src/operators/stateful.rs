//! Operators that take a state from the call before and give one to the next: LinearAttention and CausalConvWithState.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, Conv, UnaryFn};
use precast_tensor::{DType, Dim, Tensor};

use super::control::{Scan, add_scan};
use crate::import::{Fault, Import, NodeCx};
use crate::proto::{GraphProto, NodeProto, ValueInfoProto};

/// Rows of this family.
pub(super) const IMPORTS: &[Import] = &[
    Import::onnx("CausalConvWithState", 27, 2, causal_conv_with_state),
    Import::onnx("LinearAttention", 27, 2, linear_attention),
    Import::microsoft("CausalConvWithState", 2, |cx| last_state(cx, causal_conv_with_state)),
    Import::microsoft("LinearAttention", 2, |cx| last_state(cx, linear_attention)),
];

type Outputs = Result<Vec<ValueId>, Fault>;

/// com.microsoft's form, which may also have more axes and give the states of several last steps.
fn last_state(cx: &mut NodeCx<'_, '_>, import: fn(&mut NodeCx<'_, '_>) -> Outputs) -> Outputs {
    let (window, axes) = (cx.int("state_window", 0)?, cx.int("ndim", 1)?);
    if window != 0 || axes != 1 {
        return Err(Fault::Unsupported(format!("state_window={window} with ndim={axes} is not covered; 0 and 1 are")));
    }
    import(cx)
}

/// A depthwise convolution over the last axis that sees `window - 1` elements of the past: the state, or zeros.
fn causal_conv_with_state(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, filter) = (cx.input(0)?, cx.input(1)?);
    let [batch, channels, length] = three(cx, x, "the input")?;
    let [_, _, window] = three(cx, filter, "the weight")?;
    let (groups, kept) = (cx.number(&channels, "the number of channels")?, window - 1);
    let past = match cx.optional(3) {
        Some(past) => past,
        None => {
            let zero = cx.scalar(cx.dtype(x), 0.0)?;
            cx.broadcast(zero, vec![batch, channels, kept.clone()])?
        }
    };
    let seen = cx.concat(&[past, x], 2)?;
    let inputs: Vec<ValueId> = [Some(seen), Some(filter), cx.optional(2)].into_iter().flatten().collect();
    let op = Conv { stride: vec![1], pad_lo: vec![Dim::ZERO], pad_hi: vec![Dim::ZERO], dilation: vec![1], groups };
    let convolved = cx.add(op, &inputs)?;
    let output = match cx.string("activation", "none")?.as_str() {
        "none" => convolved,
        "silu" | "swish" => cx.unary_with(UnaryFn::Silu, 1.0, 0.0, convolved)?,
        other => return Err(Fault::Invalid(format!("attribute 'activation' is '{other}'; none or silu was expected"))),
    };
    let present = cx.slice_axis(seen, 2, length, kept)?;
    Ok(vec![output, present])
}

/// The three dims of a value that must have three.
fn three(cx: &NodeCx<'_, '_>, value: ValueId, what: &str) -> Result<[Dim; 3], Fault> {
    <[Dim; 3]>::try_from(cx.dims(value))
        .map_err(|dims| Fault::Invalid(format!("{what} has rank {}; 3 was expected", dims.len())))
}

/// How a step of linear attention changes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UpdateRule {
    /// The state decays by exp(decay) first.
    is_gated: bool,
    /// Not v is added but what the state does not give for k yet, times beta.
    is_delta: bool,
}

impl UpdateRule {
    fn read(cx: &NodeCx<'_, '_>) -> Result<UpdateRule, Fault> {
        let (is_gated, is_delta) = match cx.string("update_rule", "gated_delta")?.as_str() {
            "linear" => (false, false),
            "gated" => (true, false),
            "delta" => (false, true),
            "gated_delta" => (true, true),
            other => return Err(Fault::Invalid(format!("attribute 'update_rule' is '{other}'"))),
        };
        Ok(UpdateRule { is_gated, is_delta })
    }
}

/// A state [B, Hkv, dk, dv] a sample goes through the steps of time, as `Scan` would: each step changes it by the
/// update rule and gives scale * q S for every query head.
fn linear_attention(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let rule = UpdateRule::read(cx)?;
    let (query_heads, heads) = (head_count(cx, "q_num_heads")?, head_count(cx, "kv_num_heads")?);
    if query_heads % heads != 0 {
        return Err(Fault::Invalid(format!("{query_heads} query heads cannot share {heads} key heads evenly")));
    }
    // A hint for chunk-parallel implementations.
    cx.int("chunk_size", 64)?;
    let dtype = cx.dtype(cx.input(0)?);
    let [batch, time, width] = three(cx, cx.input(0)?, "the query")?;
    let [_, _, value_width] = three(cx, cx.input(2)?, "the value")?;
    let key_size = cx.divide_exact(&width, query_heads, "the width of the query")?;
    let value_size = cx.divide_exact(&value_width, heads, "the width of the value")?;
    let scale = match cx.float("scale", 0.0)? {
        0.0 => 1.0 / (cx.number(&key_size, "the size of a key")? as f64).sqrt(),
        scale => scale,
    };
    let sharing = query_heads / heads;
    let rows = |last: Dim| vec![batch.clone(), time.clone(), Dim::from(heads), Dim::from(sharing), last];
    let query = over_time(cx, 0, rows(key_size.clone()))?;
    let one_row = |last: Dim| vec![batch.clone(), time.clone(), Dim::from(heads), Dim::ONE, last];
    let key = over_time(cx, 1, one_row(key_size.clone()))?;
    let value = over_time(cx, 2, one_row(value_size.clone()))?;
    let query = cx.binary_scalar(BinaryFn::Mul, query, scale)?;
    let column = cx.transpose(key, vec![0, 1, 2, 4, 3])?;
    let mut scanned = vec![query, key, column, value];
    if rule.is_gated {
        let [_, _, decay_width] = three(cx, cx.input(4)?, "the decay")?;
        let per_head = cx.divide_exact(&decay_width, heads, "the width of the decay")?;
        let column = vec![batch.clone(), time.clone(), Dim::from(heads), per_head, Dim::ONE];
        let decay = over_time(cx, 4, column)?;
        scanned.push(cx.unary(UnaryFn::Exp, decay)?);
    }
    if rule.is_delta {
        let [_, _, rates] = three(cx, cx.input(5)?, "beta")?;
        scanned.push(over_time(cx, 5, vec![batch.clone(), time.clone(), rates, Dim::ONE, Dim::ONE])?);
    }
    let state_dims = vec![batch.clone(), Dim::from(heads), key_size, value_size.clone()];
    let (state, state_dtype) = match cx.optional(3) {
        Some(past) => (cx.cast(past, DType::F32)?, cx.dtype(past)),
        None => {
            let zero = cx.tensor(Tensor::scalar(0.0_f32));
            (cx.broadcast(zero, state_dims)?, dtype)
        }
    };
    let body = attention_step(rule);
    let outputs = add_scan(cx, &Scan::forward(&body, scanned.len()), &[state], &scanned)?;
    let [state, attended] =
        <[ValueId; 2]>::try_from(outputs).map_err(|_| Fault::Invalid("a step gives two values".into()))?;
    // [T, B, Hkv, sharing, dv] to [B, T, Hq * dv].
    let attended = cx.transpose(attended, vec![1, 0, 2, 3, 4])?;
    let attended = cx.reshape(attended, vec![batch, time, Dim::from(query_heads) * value_size])?;
    Ok(vec![cx.cast(attended, dtype)?, cx.cast(state, state_dtype)?])
}

fn head_count(cx: &NodeCx<'_, '_>, name: &str) -> Result<i64, Fault> {
    match cx.int(name, 0)? {
        count if count > 0 => Ok(count),
        count => Err(Fault::Invalid(format!("attribute '{name}' is {count}; 1 or more was expected"))),
    }
}

/// An input [B, T, width] as f32 under another shape [B, T, ..], with time first.
fn over_time(cx: &mut NodeCx<'_, '_>, position: usize, shape: Vec<Dim>) -> Result<ValueId, Fault> {
    let x = cx.input(position)?;
    let x = cx.cast(x, DType::F32)?;
    let mut perm: Vec<usize> = (0..shape.len()).collect();
    perm.swap(0, 1);
    let x = cx.reshape(x, shape)?;
    cx.transpose(x, perm)
}

/// One step as a body of ONNX nodes: state, q [B, Hkv, sharing, dk], k as a row [B, Hkv, 1, dk] and as a column, v
/// [B, Hkv, 1, dv], decay and beta where the rule has them; gives the state and q S.
fn attention_step(rule: UpdateRule) -> GraphProto {
    let mut graph = GraphProto { name: "linear_attention_step".to_string(), ..GraphProto::default() };
    let mut inputs = vec!["state", "q", "k", "column", "v"];
    let mut kept = "state";
    if rule.is_gated {
        inputs.push("decay");
        graph.node.push(step_node("Mul", "decay state", "kept"));
        kept = "kept";
    }
    let mut added = "v";
    if rule.is_delta {
        inputs.push("beta");
        graph.node.push(step_node("MatMul", &format!("k {kept}"), "recalled"));
        graph.node.push(step_node("Sub", "v recalled", "new"));
        graph.node.push(step_node("Mul", "beta new", "update"));
        added = "update";
    }
    graph.node.push(step_node("Mul", &format!("column {added}"), "outer"));
    graph.node.push(step_node("Add", &format!("{kept} outer"), "next"));
    graph.node.push(step_node("MatMul", "q next", "attended"));
    let named = |name: &&str| ValueInfoProto { name: (*name).to_string(), ..ValueInfoProto::default() };
    graph.input = inputs.iter().map(named).collect();
    graph.output = ["next", "attended"].iter().map(named).collect();
    graph
}

fn step_node(op_type: &str, inputs: &str, output: &str) -> NodeProto {
    NodeProto {
        op_type: op_type.to_string(),
        input: inputs.split(' ').map(str::to_string).collect(),
        output: vec![output.to_string()],
        ..NodeProto::default()
    }
}
