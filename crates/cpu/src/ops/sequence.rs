//! Recurrent layers in f32 with constant weights: one product for all inputs of a direction, then the recurrence.

use std::borrow::Cow;

use precast_ir::op::{Direction, Recurrent, RecurrentFn, UnaryFn};
use precast_kernels::epilogue::{Activation, Bias, Epilogue};
use precast_kernels::gemm::{self, MatrixA, MatrixB, Packing};
use precast_kernels::recurrent::{self, LstmOptions, LstmWeights, Reset, SequenceShape, Start};
use precast_tensor::DType;

use crate::step::{Lowered, Machine, Read, StepNode, f32_elements};

/// Positions of the operands that a recurrent node has.
#[derive(Clone, Copy, Default)]
pub(super) struct Operands {
    pub bias: Option<usize>,
    pub lengths: Option<usize>,
    pub initial_h: Option<usize>,
    pub initial_c: Option<usize>,
    pub peepholes: Option<usize>,
}

impl Operands {
    /// Those of a step whose operand `position(at)` is operand `at` of the op.
    pub fn of(op: &Recurrent, position: impl Fn(usize) -> usize) -> Operands {
        let mut next = 3;
        let mut take = |is_present: bool| {
            is_present.then(|| {
                next += 1;
                position(next - 1)
            })
        };
        Operands {
            bias: take(op.bias),
            lengths: take(op.lengths),
            initial_h: take(op.initial_h),
            initial_c: take(op.initial_c),
            peepholes: take(op.peepholes),
        }
    }
}

/// Sizes of a layer.
#[derive(Clone, Copy)]
pub(super) struct Layer {
    pub steps: usize,
    pub batch: usize,
    pub input: usize,
    pub hidden: usize,
    pub gates: usize,
    pub directions: usize,
}

impl Layer {
    /// The sizes of a layer that reads x of this shape.
    pub fn of(op: &Recurrent, x: &[usize]) -> Layer {
        let directions = if op.direction == Direction::Bidirectional { 2 } else { 1 };
        let gates = gate_count(op.func);
        Layer { steps: x[0], batch: x[1], input: x[2], hidden: op.hidden, gates, directions }
    }

    /// The gates of all units.
    pub fn columns(self) -> usize {
        self.gates * self.hidden
    }

    /// The recurrence of one direction.
    pub fn sequence(self, op: &Recurrent, direction: usize) -> SequenceShape {
        let is_reverse = direction == 1 || op.direction == Direction::Reverse;
        SequenceShape {
            steps: self.steps,
            batch: self.batch,
            hidden: self.hidden,
            direction: if is_reverse { recurrent::Direction::Reverse } else { recurrent::Direction::Forward },
            y_stride: self.directions * self.batch * self.hidden,
            clip: if op.clip > 0.0 { op.clip as f32 } else { f32::INFINITY },
        }
    }
}

/// A recurrent layer with the usual activations.
pub fn lower_recurrent(step: &StepNode, op: &Recurrent, machine: Machine) -> Result<Option<Lowered>, String> {
    let operands = Operands::of(op, |at| at);
    let Some(activations) = usual_activations(op) else { return Ok(None) };
    let weights = || [Some(1), Some(2), operands.bias].into_iter().flatten();
    let is_constant = weights().all(|input| step.is_constant(input));
    if !is_constant || step.dtype(0) != DType::F32 {
        return Ok(None);
    }
    let layer = Layer::of(op, &step.shape(0));
    let Layer { gates, directions, .. } = layer;
    // While loading the small ones among them are known, being part of the text, but there is nothing left to pack.
    let is_known = weights().all(|input| step.constant(input).is_some());
    let [w_len, r_len, bias_len] = packed_lens(op, layer, machine);
    let pack_w = |target: &mut [f32]| pack_input_weights(step, layer, machine, target);
    let pack_r = |target: &mut [f32]| pack_recurrent_weights(step, op, layer, machine, target);
    let pack_bias = |target: &mut [f32]| pack_biases(step, op, &operands, layer, target);
    let mut reads = vec![
        Read::Input(0),
        Read::packed(directions * w_len, is_known.then_some(pack_w))?,
        Read::packed(directions * r_len, is_known.then_some(pack_r))?,
        Read::packed(directions * bias_len, is_known.then_some(pack_bias))?,
    ];
    let mut push = |input: Option<usize>| {
        input.map(|input| {
            reads.push(Read::Input(input));
            reads.len() - 1
        })
    };
    let (lengths, initial_h, initial_c, peepholes) =
        (push(operands.lengths), push(operands.initial_h), push(operands.initial_c), push(operands.peepholes));
    let shape = layer.sequence(op, 0);
    let rows = layer.steps * layer.batch;
    let projected = rows * gates * layer.hidden;
    let product = gemm::gemm_scratch_len(
        machine.isa,
        machine.threads,
        rows,
        gates * layer.hidden,
        layer.input,
        Packing::Plain,
        Packing::Packed,
    );
    let recurrence = match op.func {
        RecurrentFn::Lstm if op.rounds_state => {
            recurrent::lstm_rounded_scratch_len(machine.isa, machine.threads, &shape)
        }
        RecurrentFn::Lstm => recurrent::lstm_scratch_len(machine.isa, machine.threads, &shape),
        RecurrentFn::Gru => recurrent::gru_scratch_len(machine.isa, machine.threads, &shape),
        RecurrentFn::Rnn => recurrent::rnn_scratch_len(machine.isa, machine.threads, &shape),
    };
    let (op, state) = (op.clone(), layer.batch * layer.hidden);
    let within = 0..=i32::try_from(layer.steps).unwrap_or(i32::MAX);
    let scratch_len = projected + product.max(recurrence);
    Ok(Some(Lowered {
        kernel: format!("recurrent.{}", op.func.name()),
        reads,
        scratch_bytes: scratch_len * size_of::<f32>(),
        run: Box::new(move |args, exec| {
            let x = args.read::<f32>(0);
            let (w, r, biases) = (args.read::<f32>(1), args.read::<f32>(2), args.read::<f32>(3));
            let optional = |read: Option<usize>| read.map(|read| args.read::<f32>(read));
            let (initial_h, initial_c, peepholes) = (optional(initial_h), optional(initial_c), optional(peepholes));
            let lengths = lengths.map(|read| args.read::<i32>(read));
            if let Some(length) = lengths.and_then(|all| all.iter().find(|length| !within.contains(*length))) {
                return Err(format!("length {length} is not within 0..={}", within.end()));
            }
            let is_lstm = op.func == RecurrentFn::Lstm;
            let (y, y_h) = (args.write::<f32>(0), args.write::<f32>(1));
            let y_c: &mut [f32] = if is_lstm { args.write(2) } else { &mut [] };
            let scratch: &mut [f32] = if scratch_len > 0 { args.write(if is_lstm { 3 } else { 2 }) } else { &mut [] };
            let (projected, scratch) = scratch.split_at_mut(projected);
            let (w_len, r_len, bias_len) = (w.len() / directions, r.len() / directions, biases.len() / directions);
            for direction in 0..directions {
                let bias = &biases[direction * bias_len..][..bias_len];
                let (input_bias, hidden_bias) = bias.split_at(gates * layer.hidden);
                let epilogue = Epilogue { bias: Bias::Columns(input_bias), ..Default::default() };
                let a = MatrixA::Rows { data: x, stride: layer.input };
                let b = MatrixB::Packed(&w[direction * w_len..][..w_len]);
                let columns = gates * layer.hidden;
                gemm::gemm(exec, rows, columns, layer.input, a, b, projected, columns, &epilogue, scratch);
                let part = direction * state;
                let start = Start {
                    hidden: initial_h.map(|h| &h[part..][..state]),
                    cell: initial_c.map(|c| &c[part..][..state]),
                    lengths,
                };
                let shape = layer.sequence(&op, direction);
                let r = &r[direction * r_len..][..r_len];
                let y = Some(&mut y[part.min(y_len(layer))..]);
                let y_h = &mut y_h[part..][..state];
                match op.func {
                    RecurrentFn::Lstm => {
                        let peepholes = peepholes.map(|p| &p[direction * 3 * layer.hidden..][..3 * layer.hidden]);
                        let options = LstmOptions { peepholes, couples_input_forget: op.input_forget };
                        let y_c = &mut y_c[part..][..state];
                        let weights = match op.rounds_state {
                            true => LstmWeights::RoundedFloats(r),
                            false => LstmWeights::Floats(r),
                        };
                        recurrent::lstm(exec, &shape, projected, &weights, &options, &start, y, y_h, y_c, scratch);
                    }
                    RecurrentFn::Gru => {
                        let reset = if op.linear_before_reset {
                            Reset::AfterProduct(Some(hidden_bias))
                        } else {
                            Reset::BeforeProduct
                        };
                        recurrent::gru(exec, &shape, projected, r, reset, &start, y, y_h, scratch);
                    }
                    RecurrentFn::Rnn => {
                        recurrent::rnn(exec, &shape, projected, r, activations[direction], &start, y, y_h, scratch);
                    }
                }
            }
            Ok(())
        }),
    }))
}

fn y_len(layer: Layer) -> usize {
    layer.steps * layer.directions * layer.batch * layer.hidden
}

fn gate_count(func: RecurrentFn) -> usize {
    match func {
        RecurrentFn::Rnn => 1,
        RecurrentFn::Gru => 3,
        RecurrentFn::Lstm => 4,
    }
}

/// The output activation of each direction, if all others are the usual ones.
pub(super) fn usual_activations(op: &Recurrent) -> Option<Vec<Activation>> {
    let usual: &[UnaryFn] = match op.func {
        RecurrentFn::Rnn => &[],
        RecurrentFn::Gru => &[UnaryFn::Sigmoid, UnaryFn::Tanh],
        RecurrentFn::Lstm => &[UnaryFn::Sigmoid, UnaryFn::Tanh, UnaryFn::Tanh],
    };
    if op.func == RecurrentFn::Rnn {
        return op
            .activations
            .iter()
            .map(|func| match func {
                UnaryFn::Tanh => Some(Activation::Tanh),
                UnaryFn::Relu => Some(Activation::Relu),
                UnaryFn::Sigmoid => Some(Activation::Sigmoid),
                _ => None,
            })
            .collect();
    }
    let is_usual = op.activations.chunks(usual.len()).all(|direction| direction == usual);
    is_usual.then(|| vec![Activation::None; 2])
}

/// The elements of weights; all are constants that are known.
fn weights_of(step: &StepNode, input: usize) -> Cow<'_, [f32]> {
    f32_elements(step.constant(input).expect("weights are packed where they are known").as_bytes())
}

fn pack_input_weights(step: &StepNode, layer: Layer, machine: Machine, packed: &mut [f32]) {
    let w = weights_of(step, 1);
    let (w_len, packed_len) = (w.len() / layer.directions, packed.len() / layer.directions);
    for direction in 0..layer.directions {
        let (w, packed) = (&w[direction * w_len..][..w_len], &mut packed[direction * packed_len..][..packed_len]);
        gemm::pack_b_columns(machine.isa, layer.input, 0, w, packed);
    }
}

fn pack_recurrent_weights(step: &StepNode, op: &Recurrent, layer: Layer, machine: Machine, packed: &mut [f32]) {
    let r = weights_of(step, 2);
    let (r_len, packed_len) = (r.len() / layer.directions, packed.len() / layer.directions);
    for direction in 0..layer.directions {
        let (r, packed) = (&r[direction * r_len..][..r_len], &mut packed[direction * packed_len..][..packed_len]);
        match op.func {
            RecurrentFn::Gru => recurrent::pack_recurrent_gru(machine.isa, layer.hidden, r, packed),
            RecurrentFn::Lstm | RecurrentFn::Rnn => recurrent::pack_recurrent(machine.isa, layer.hidden, r, packed),
        }
    }
}

/// For each direction the bias of the input product, then the one that a GRU with `linear_before_reset` adds to its hidden
/// product.
pub(super) fn pack_biases(step: &StepNode, op: &Recurrent, operands: &Operands, layer: Layer, packed: &mut [f32]) {
    let columns = layer.gates * layer.hidden;
    let zeros = || Cow::Owned(vec![0.0; layer.directions * 2 * columns]);
    let bias = operands.bias.map_or_else(zeros, |input| weights_of(step, input));
    let keeps_hidden = op.func == RecurrentFn::Gru && op.linear_before_reset;
    let last = columns - layer.hidden;
    for direction in 0..layer.directions {
        let (input_bias, hidden_bias) = bias[direction * 2 * columns..][..2 * columns].split_at(columns);
        let packed = &mut packed[direction * (columns + layer.hidden)..][..columns + layer.hidden];
        for column in 0..columns {
            let is_apart = keeps_hidden && column >= last;
            packed[column] = input_bias[column] + if is_apart { 0.0 } else { hidden_bias[column] };
        }
        packed[columns..].copy_from_slice(&hidden_bias[last..]);
    }
}

/// How many elements a direction has of packed input weights, of recurrent ones and of biases.
fn packed_lens(op: &Recurrent, layer: Layer, machine: Machine) -> [usize; 3] {
    let Layer { hidden, gates, input, .. } = layer;
    let packed = |rows: usize, columns: usize| gemm::packed_b_len(machine.isa, rows, columns);
    let recurrent = match op.func {
        RecurrentFn::Gru => packed(hidden, 2 * hidden) + packed(hidden, hidden),
        RecurrentFn::Lstm | RecurrentFn::Rnn => packed(hidden, gates * hidden),
    };
    [packed(input, gates * hidden), recurrent, gates * hidden + hidden]
}
