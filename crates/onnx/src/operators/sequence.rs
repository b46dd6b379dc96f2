//! Recurrent layers: RNN, GRU and LSTM as the op `recurrent`, and DynamicQuantizeLSTM as an LSTM with dequantised
//! weights that rounds what it multiplies them with.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, Dequantize, Direction, Quantize, Recurrent, RecurrentFn, ReduceFn, UnaryFn};
use precast_tensor::DType;

use super::activation::named_activations;
use crate::import::{Fault, Import, NodeCx};

#[rustfmt::skip]
pub(super) const IMPORTS: &[Import] = &[
    Import { domain: "", name: "GRU", since: 7, tier: 1, function: gru },
    Import { domain: "", name: "LSTM", since: 7, tier: 1, function: lstm },
    Import { domain: "", name: "RNN", since: 7, tier: 1, function: rnn },
    Import { domain: "com.microsoft", name: "DynamicQuantizeLSTM", since: 1, tier: 1, function: dynamic_quantize_lstm },
];

type Outputs = Result<Vec<ValueId>, Fault>;

/// "No limit" for the op's `clip`.
const CLIP_NONE: f64 = f64::INFINITY;

fn rnn(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let inputs = Inputs::read(cx)?;
    add_layer(cx, RecurrentFn::Rnn, inputs)
}

fn gru(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let inputs = Inputs::read(cx)?;
    add_layer(cx, RecurrentFn::Gru, inputs)
}

fn lstm(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let mut inputs = Inputs::read(cx)?;
    inputs.initial_c = cx.optional(6);
    inputs.peepholes = cx.optional(7);
    add_layer(cx, RecurrentFn::Lstm, inputs)
}

/// Operands of a layer, as ONNX shapes them.
struct Inputs {
    x: ValueId,
    w: ValueId,
    r: ValueId,
    bias: Option<ValueId>,
    lengths: Option<ValueId>,
    initial_h: Option<ValueId>,
    initial_c: Option<ValueId>,
    peepholes: Option<ValueId>,
    rounds_state: bool,
}

impl Inputs {
    /// The inputs that all layers share.
    fn read(cx: &NodeCx<'_, '_>) -> Result<Inputs, Fault> {
        Ok(Inputs {
            x: cx.input(0)?,
            w: cx.input(1)?,
            r: cx.input(2)?,
            bias: cx.optional(3),
            lengths: cx.optional(4),
            initial_h: cx.optional(5),
            initial_c: None,
            peepholes: None,
            rounds_state: false,
        })
    }
}

fn add_layer(cx: &mut NodeCx<'_, '_>, func: RecurrentFn, inputs: Inputs) -> Outputs {
    let op = read_layer(cx, func, &inputs)?;
    let is_batch_first = cx.flag("layout", false)?;
    let swap = |cx: &mut NodeCx<'_, '_>, value: ValueId| {
        if is_batch_first { cx.transpose(value, vec![1, 0, 2]) } else { Ok(value) }
    };
    let mut operands = vec![swap(cx, inputs.x)?, inputs.w, inputs.r];
    operands.extend(inputs.bias);
    if let Some(lengths) = inputs.lengths {
        operands.push(cx.cast(lengths, DType::I32)?);
    }
    for state in [inputs.initial_h, inputs.initial_c].into_iter().flatten() {
        operands.push(swap(cx, state)?);
    }
    operands.extend(inputs.peepholes);
    let mut outputs = cx.add_node(op, &operands)?;
    if is_batch_first {
        outputs[0] = cx.transpose(outputs[0], vec![2, 0, 1, 3])?;
        for output in &mut outputs[1..] {
            *output = cx.transpose(*output, vec![1, 0, 2])?;
        }
    }
    Ok(outputs)
}

/// The op from the attributes.
fn read_layer(cx: &NodeCx<'_, '_>, func: RecurrentFn, inputs: &Inputs) -> Result<Recurrent, Fault> {
    let (direction, directions) = match cx.string("direction", "forward")?.as_str() {
        "forward" => (Direction::Forward, 1),
        "reverse" => (Direction::Reverse, 1),
        "bidirectional" => (Direction::Bidirectional, 2),
        other => return Err(Fault::Invalid(format!("attribute 'direction' cannot be '{other}'"))),
    };
    let hidden = match cx.attributes().int("hidden_size")? {
        Some(hidden) => usize::try_from(hidden)
            .map_err(|_| Fault::Invalid(format!("attribute 'hidden_size' is {hidden}; 1 or more was expected")))?,
        None => hidden_of(cx, inputs.r)?,
    };
    let defaults: &[&str] = match func {
        RecurrentFn::Rnn => &["Tanh"],
        RecurrentFn::Gru => &["Sigmoid", "Tanh"],
        RecurrentFn::Lstm => &["Sigmoid", "Tanh", "Tanh"],
    };
    let expected = defaults.len() * directions;
    let mut names = cx.attributes().strings("activations")?.unwrap_or_default();
    if names.is_empty() {
        names = defaults.iter().cycle().take(expected).map(|name| name.to_string()).collect();
    }
    if func == RecurrentFn::Rnn && names.len() > expected {
        // The default of RNN is written for two directions, and some files carry it into layers of one.
        names.truncate(expected);
    }
    if names.len() != expected {
        return Err(Fault::Invalid(format!(
            "attribute 'activations' has {} entries; {expected} were expected",
            names.len()
        )));
    }
    let alphas = cx.attributes().floats("activation_alpha")?.unwrap_or_default();
    let betas = cx.attributes().floats("activation_beta")?.unwrap_or_default();
    let activations = named_activations(&names, &alphas, &betas)?;
    let clip = cx.attributes().float("clip")?.filter(|&clip| clip > 0.0).unwrap_or(CLIP_NONE);
    Ok(Recurrent {
        func,
        direction,
        hidden,
        activations: activations.iter().map(|activation| activation.func).collect(),
        alphas: activations.iter().map(|activation| activation.alpha).collect(),
        betas: activations.iter().map(|activation| activation.beta).collect(),
        clip,
        input_forget: func == RecurrentFn::Lstm && cx.flag("input_forget", false)?,
        linear_before_reset: func == RecurrentFn::Gru && cx.flag("linear_before_reset", false)?,
        rounds_state: inputs.rounds_state,
        bias: inputs.bias.is_some(),
        lengths: inputs.lengths.is_some(),
        initial_h: inputs.initial_h.is_some(),
        initial_c: inputs.initial_c.is_some(),
        peepholes: inputs.peepholes.is_some(),
    })
}

/// The hidden size is the last axis of the recurrence weights [directions, gates * hidden, hidden].
fn hidden_of(cx: &NodeCx<'_, '_>, r: ValueId) -> Result<usize, Fault> {
    match &cx.dims(r)[..] {
        [_, _, hidden] => cx.number(hidden, "the hidden size"),
        dims => Err(Fault::Invalid(format!("the recurrence weights have rank {}; 3 was expected", dims.len()))),
    }
}

/// An LSTM whose weights are 8-bit. x is rounded to 8 bits as one tensor, as ONNX Runtime does it. It rounds the hidden
/// states of several sequences together at every step; here each is rounded by itself, so that rows stay independent.
fn dynamic_quantize_lstm(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let mut inputs = Inputs::read(cx)?;
    inputs.initial_c = cx.optional(6);
    inputs.peepholes = cx.optional(7);
    inputs.rounds_state = true;
    inputs.w = dequantize_weights(cx, inputs.w, 8)?;
    inputs.r = dequantize_weights(cx, inputs.r, 10)?;
    inputs.x = round_to_bytes(cx, inputs.x)?;
    add_layer(cx, RecurrentFn::Lstm, inputs)
}

/// Weights [directions, input, 4 * hidden] of 8 bits as floats [directions, 4 * hidden, input]. Scale and zero point, the
/// inputs from `position` on, are one a direction or one a column of each direction. They are dequantised as they lie in
/// the file: a transposed copy of the bytes would be in memory beside them.
fn dequantize_weights(cx: &mut NodeCx<'_, '_>, weights: ValueId, position: usize) -> Result<ValueId, Fault> {
    let dims = cx.dims(weights).to_vec();
    let [_, depth, _] = &dims[..] else {
        return Err(Fault::Invalid(format!("weights have rank {}; 3 was expected", dims.len())));
    };
    let scale = cx.input(position)?;
    let op = match cx.rank(scale) {
        0 | 1 => Dequantize { to: DType::F32, axis: 0, block: 0 },
        2 => Dequantize { to: DType::F32, axis: 1, block: cx.number(depth, "the depth of the weights")?.max(1) },
        rank => return Err(Fault::Invalid(format!("a scale has rank {rank}; 1 or 2 was expected"))),
    };
    let mut operands = vec![weights, beside_columns(cx, scale)?];
    if let Some(zero) = cx.optional(position + 1) {
        operands.push(beside_columns(cx, zero)?);
    }
    let floats = cx.add(op, &operands)?;
    cx.transpose(floats, vec![0, 2, 1])
}

/// [directions, columns] as [directions, 1, columns]; less than that as it is.
fn beside_columns(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId, Fault> {
    if cx.rank(x) == 2 { cx.unsqueeze(x, &[1]) } else { Ok(x) }
}

/// x rounded to 256 steps between its least and largest element, 0 always being one of them.
fn round_to_bytes(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId, Fault> {
    let axes: Vec<usize> = (0..cx.rank(x)).collect();
    let least = cx.reduce(ReduceFn::Min, x, axes.clone(), false)?;
    let least = cx.binary_scalar(BinaryFn::Min, least, 0.0)?;
    let largest = cx.reduce(ReduceFn::Max, x, axes, false)?;
    let largest = cx.binary_scalar(BinaryFn::Max, largest, 0.0)?;
    let range = cx.binary(BinaryFn::Sub, largest, least)?;
    let scale = cx.binary_scalar(BinaryFn::Div, range, f64::from(u8::MAX))?;
    // A tensor of zeros has no range; any scale keeps it.
    let (zero, one) = (cx.scalar(DType::F32, 0.0)?, cx.scalar(DType::F32, 1.0)?);
    let is_flat = cx.compare(CompareFn::Eq, scale, zero)?;
    let scale = cx.select(is_flat, one, scale)?;
    let steps = cx.binary(BinaryFn::Div, least, scale)?;
    let steps = cx.unary(UnaryFn::Neg, steps)?;
    let steps = cx.unary(UnaryFn::Round, steps)?;
    let zero_point = cx.cast(steps, DType::U8)?;
    let op = Quantize { to: DType::U8, axis: 0, block: 0, saturate: true, precision: DType::F32 };
    let bytes = cx.add(op, &[x, scale, zero_point])?;
    cx.add(Dequantize { to: DType::F32, axis: 0, block: 0 }, &[bytes, scale, zero_point])
}
