//! Operators that take a state from the call before and give one to the next: LinearAttention, GatedDeltaNet and
//! CausalConvWithState.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, Conv, ReduceFn, UnaryFn};
use precast_tensor::{DType, Dim, Tensor};

use super::control::{Scan, add_scan};
use crate::import::{Fault, Import, NodeCx};
use crate::proto::{GraphProto, NodeProto, ValueInfoProto};

/// Rows of this family.
pub(super) const IMPORTS: &[Import] = &[
    Import::onnx("CausalConvWithState", 27, 2, causal_conv_with_state),
    Import::onnx("LinearAttention", 27, 2, linear_attention),
    Import::microsoft("CausalConvWithState", 2, |cx| last_state(cx, causal_conv_with_state)),
    Import::microsoft("GatedDeltaNet", 2, gated_delta_net),
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
    let query = over_time(cx, cx.input(0)?, rows(key_size.clone()))?;
    let one_row = |last: Dim| vec![batch.clone(), time.clone(), Dim::from(heads), Dim::ONE, last];
    let key = over_time(cx, cx.input(1)?, one_row(key_size.clone()))?;
    let value = over_time(cx, cx.input(2)?, one_row(value_size.clone()))?;
    let query = cx.binary_scalar(BinaryFn::Mul, query, scale)?;
    let column = cx.transpose(key, vec![0, 1, 2, 4, 3])?;
    let mut scanned = vec![query, key, column, value];
    if rule.is_gated {
        let [_, _, decay_width] = three(cx, cx.input(4)?, "the decay")?;
        let per_head = cx.divide_exact(&decay_width, heads, "the width of the decay")?;
        let column = vec![batch.clone(), time.clone(), Dim::from(heads), per_head, Dim::ONE];
        let decay = over_time(cx, cx.input(4)?, column)?;
        scanned.push(cx.unary(UnaryFn::Exp, decay)?);
    }
    if rule.is_delta {
        let [_, _, rates] = three(cx, cx.input(5)?, "beta")?;
        let rates = vec![batch.clone(), time.clone(), rates, Dim::ONE, Dim::ONE];
        scanned.push(over_time(cx, cx.input(5)?, rates)?);
    }
    let state_dims = vec![batch.clone(), Dim::from(heads), key_size, value_size.clone()];
    let (state, state_dtype) = match cx.optional(3) {
        Some(past) => (cx.cast(past, DType::F32)?, cx.dtype(past)),
        None => {
            let zero = cx.tensor(Tensor::scalar(0.0_f32));
            (cx.broadcast(zero, state_dims)?, dtype)
        }
    };
    let [state, attended] = scan_steps(cx, rule, state, &scanned)?;
    // [T, B, Hkv, sharing, dv] to [B, T, Hq * dv].
    let attended = cx.transpose(attended, vec![1, 0, 2, 3, 4])?;
    let attended = cx.reshape(attended, vec![batch, time, Dim::from(query_heads) * value_size])?;
    Ok(vec![cx.cast(attended, dtype)?, cx.cast(state, state_dtype)?])
}

/// What keeps the root of a vector's length from 0.
const LENGTH_EPSILON: f64 = 1e-6;

/// Sizes of a gated delta network: value heads are a multiple of the heads of queries and keys.
struct DeltaSizes {
    batch: Dim,
    time: Dim,
    query_heads: Dim,
    heads: Dim,
    key_size: Dim,
    value_size: Dim,
}

/// GatedDeltaNet of com.microsoft: the recurrence of linear attention on tokens [tokens, heads, size] or [batch, time, heads,
/// size], where queries and keys are shared by several value heads, and the state lies with its values first.
fn gated_delta_net(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let rule = UpdateRule::read(cx)?;
    // A hint for chunk-parallel implementations.
    cx.int("chunk_size", 64)?;
    if cx.optional(3).is_some() {
        return Err(Fault::Unsupported("sequences of different lengths (cu_seqlens) are not covered".to_string()));
    }
    if cx.int("state_update_capacity", 0)? != 0 {
        return Err(Fault::Unsupported("state_update_capacity is not covered; 0 is".to_string()));
    }
    let (Some(key), Some(value)) = (cx.optional(1), cx.optional(2)) else {
        return Err(Fault::Unsupported("packed queries, keys and values are not covered".to_string()));
    };
    let query = cx.input(0)?;
    let (dtype, sizes) = (cx.dtype(query), read_delta_sizes(cx, query, value)?);
    let DeltaSizes { batch, time, heads, key_size, value_size, .. } = &sizes;
    let mut query = shared_heads(cx, query, &sizes)?;
    let mut key = shared_heads(cx, key, &sizes)?;
    if cx.flag("qk_l2_norm", false)? {
        (query, key) = (unit_vectors(cx, query)?, unit_vectors(cx, key)?);
    }
    let scale = match cx.float("scale", 0.0)? {
        0.0 => 1.0 / (cx.number(key_size, "the size of a key")? as f64).sqrt(),
        scale => scale,
    };
    let query = cx.binary_scalar(BinaryFn::Mul, query, scale)?;
    let column = cx.transpose(key, vec![0, 1, 2, 4, 3])?;
    let value = over_time(cx, value, vec![batch.clone(), time.clone(), heads.clone(), Dim::ONE, value_size.clone()])?;
    let mut scanned = vec![query, key, column, value];
    if rule.is_gated {
        let decay = add_decay(cx, &sizes)?;
        scanned.push(cx.unary(UnaryFn::Exp, decay)?);
    }
    if rule.is_delta {
        let rates = vec![batch.clone(), time.clone(), heads.clone(), Dim::ONE, Dim::ONE];
        let rates = over_time(cx, cx.input(5)?, rates)?;
        scanned.push(match cx.string("beta_activation", "none")?.as_str() {
            "none" => rates,
            "sigmoid" => cx.unary(UnaryFn::Sigmoid, rates)?,
            other => return Err(Fault::Invalid(format!("attribute 'beta_activation' is '{other}'"))),
        });
    }
    cx.string("beta_activation", "none")?;
    cx.string("gate_activation", "none")?;
    let state = match cx.optional(6) {
        Some(state) => cx.transpose(state, vec![0, 1, 3, 2])?,
        None => {
            let zero = cx.tensor(Tensor::scalar(0.0_f32));
            cx.broadcast(zero, vec![batch.clone(), heads.clone(), key_size.clone(), value_size.clone()])?
        }
    };
    let [state, attended] = scan_steps(cx, rule, state, &scanned)?;
    // [T, B, Hv, 1, dv] to the form of the values.
    let attended = cx.transpose(attended, vec![1, 0, 2, 3, 4])?;
    let attended = cx.reshape(attended, cx.dims(cx.input(2)?))?;
    let state = cx.transpose(state, vec![0, 1, 3, 2])?;
    Ok(vec![cx.cast(attended, dtype)?, state])
}

/// The sizes of queries and values; where they have no axis of the batch, the state says how many sequences there are.
fn read_delta_sizes(cx: &NodeCx<'_, '_>, query: ValueId, value: ValueId) -> Result<DeltaSizes, Fault> {
    if cx.rank(query) == 4 {
        let [batch, time, query_heads, key_size] = cx.dims_of(query, "the query")?;
        let [_, _, heads, value_size] = cx.dims_of(value, "the value")?;
        return Ok(DeltaSizes { batch, time, query_heads, heads, key_size, value_size });
    }
    let [tokens, query_heads, key_size] = cx.dims_of(query, "the query")?;
    let [_, heads, value_size] = cx.dims_of(value, "the value")?;
    let [batch, _, _, _] = cx.dims_of(cx.input(6)?, "the state")?;
    let time = tokens.floor_div(&batch);
    Ok(DeltaSizes { batch, time, query_heads, heads, key_size, value_size })
}

/// Queries or keys with one head for each value head, [T, B, Hv, 1, dk]: neighbours share one.
fn shared_heads(cx: &mut NodeCx<'_, '_>, x: ValueId, sizes: &DeltaSizes) -> Result<ValueId, Fault> {
    let DeltaSizes { batch, time, query_heads, heads, key_size, .. } = sizes;
    let few = cx.number(query_heads, "the number of query heads")?;
    let many = cx.number(heads, "the number of value heads")?;
    if few == 0 || many % few != 0 {
        return Err(Fault::Invalid(format!("{many} value heads cannot share {few} query heads evenly")));
    }
    let form = |shared: Dim| vec![batch.clone(), time.clone(), query_heads.clone(), shared, key_size.clone()];
    let x = cx.reshape(x, form(Dim::ONE))?;
    let x = cx.broadcast(x, form(Dim::from(many / few)))?;
    over_time(cx, x, vec![batch.clone(), time.clone(), heads.clone(), Dim::ONE, key_size.clone()])
}

/// Vectors along the last axis with a length of 1.
fn unit_vectors(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId, Fault> {
    let axis = cx.axis(-1, cx.rank(x))?;
    let squares = cx.binary(BinaryFn::Mul, x, x)?;
    let sum = cx.reduce(ReduceFn::Sum, squares, vec![axis], true)?;
    let sum = cx.binary_scalar(BinaryFn::Add, sum, LENGTH_EPSILON)?;
    let length = cx.unary(UnaryFn::Sqrt, sum)?;
    cx.binary(BinaryFn::Div, x, length)
}

/// The logarithm of what stays of the state, [T, B, Hv, dk or 1, 1]: as it is given, or by Qwen's gate.
fn add_decay(cx: &mut NodeCx<'_, '_>, sizes: &DeltaSizes) -> Result<ValueId, Fault> {
    let DeltaSizes { batch, time, heads, key_size, .. } = sizes;
    let decay = cx.input(4)?;
    let is_for_keys = cx.rank(decay) == cx.rank(cx.input(0)?);
    let rows = if is_for_keys { key_size.clone() } else { Dim::ONE };
    let decay = over_time(cx, decay, vec![batch.clone(), time.clone(), heads.clone(), rows, Dim::ONE])?;
    match cx.string("gate_activation", "none")?.as_str() {
        "none" => return Ok(decay),
        "qwen" => {}
        other => {
            return Err(Fault::Invalid(format!("attribute 'gate_activation' is '{other}'; none or qwen was expected")));
        }
    }
    let mut of_heads = |position: usize| {
        let x = cx.cast(cx.input(position)?, DType::F32)?;
        cx.reshape(x, vec![heads.clone(), Dim::ONE, Dim::ONE])
    };
    let (log, bias) = (of_heads(7)?, of_heads(8)?);
    let sum = cx.binary(BinaryFn::Add, decay, bias)?;
    let opened = cx.unary(UnaryFn::Softplus, sum)?;
    let rate = cx.unary(UnaryFn::Exp, log)?;
    let rate = cx.unary(UnaryFn::Neg, rate)?;
    cx.binary(BinaryFn::Mul, rate, opened)
}

fn head_count(cx: &NodeCx<'_, '_>, name: &str) -> Result<i64, Fault> {
    match cx.int(name, 0)? {
        count if count > 0 => Ok(count),
        count => Err(Fault::Invalid(format!("attribute '{name}' is {count}; 1 or more was expected"))),
    }
}

/// What is left of the state after all steps, and what each step gives, with time first.
fn scan_steps(
    cx: &mut NodeCx<'_, '_>,
    rule: UpdateRule,
    state: ValueId,
    scanned: &[ValueId],
) -> Result<[ValueId; 2], Fault> {
    let body = attention_step(rule);
    let outputs = add_scan(cx, &Scan::forward(&body, scanned.len()), &[state], scanned)?;
    <[ValueId; 2]>::try_from(outputs).map_err(|_| Fault::Invalid("a step gives two values".into()))
}

/// x [B, T, ..] as f32 under another shape [B, T, ..], with time first.
fn over_time(cx: &mut NodeCx<'_, '_>, x: ValueId, shape: Vec<Dim>) -> Result<ValueId, Fault> {
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
