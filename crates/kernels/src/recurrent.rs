//! f32 recurrent layers over a whole sequence: LSTM, GRU and the plain RNN, one direction at a time.
//!
//! The products of the inputs with W are made beforehand for all steps at once; here each step multiplies the hidden
//! state with R and applies the gates. Sequences of a batch may have different lengths: a finished one keeps its state
//! and its later outputs are zeros.

use crate::arena::as_bytes_mut;
use crate::epilogue::{Activation, Epilogue};
use crate::gemm::{MatrixA, MatrixB, Packing, gemm, gemm_scratch_len, pack_b_columns, packed_b_len};
use crate::gemm_dynamic::{GemmDynamic, gemm_dynamic, gemm_dynamic_scratch_len, round_rows};
use crate::gemm_int::ZeroPoints;
use crate::isa::{Exec, Isa};
use crate::math::{clamp, sigmoid, tanh};
use crate::simd::multiversion;

/// The order in which the steps of each sequence are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Direction {
    /// From the first step to the last.
    Forward,
    /// From the last step of each sequence to the first.
    Reverse,
}

/// What all recurrent layers share.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SequenceShape {
    /// Steps of the longest sequence.
    pub steps: usize,
    /// Sequences.
    pub batch: usize,
    /// Length of the hidden state.
    pub hidden: usize,
    /// The order of the steps.
    pub direction: Direction,
    /// Elements of `y` from one step to the next: `batch * hidden`, or twice that when two directions share it.
    pub y_stride: usize,
    /// Limits what enters an activation to -clip..=clip; infinity for no limit.
    pub clip: f32,
}

/// The state that a layer starts with and the sequences it runs over. Absent states are zeros, absent lengths `steps`.
#[derive(Clone, Copy, Default)]
pub struct Start<'a> {
    /// The hidden state, [batch, hidden].
    pub hidden: Option<&'a [f32]>,
    /// The cell state of an LSTM, [batch, hidden].
    pub cell: Option<&'a [f32]>,
    /// Steps of each sequence.
    pub lengths: Option<&'a [i32]>,
}

/// Writes the packed form of recurrent weights R [gates * hidden, hidden] for `lstm` (4 gates) and `rnn` (1).
pub fn pack_recurrent(isa: Isa, hidden: usize, r: &[f32], packed: &mut [f32]) {
    pack_b_columns(isa, hidden, 0, r, packed);
}

/// Writes the packed form of recurrent weights R [3 * hidden, hidden] for `gru`: gates z and r, then h.
pub fn pack_recurrent_gru(isa: Isa, hidden: usize, r: &[f32], packed: &mut [f32]) {
    let (first, second) = r.split_at(2 * hidden * hidden);
    let (first_packed, second_packed) = packed.split_at_mut(packed_b_len(isa, hidden, 2 * hidden));
    pack_recurrent(isa, hidden, first, first_packed);
    pack_recurrent(isa, hidden, second, second_packed);
}

/// Elements of scratch that `lstm` needs with `LstmWeights::Floats`.
pub fn lstm_scratch_len(isa: Isa, threads: usize, shape: &SequenceShape) -> usize {
    shape.scratch_len(isa, threads, 4, 4)
}

/// Elements of scratch that `lstm` needs with `LstmWeights::RoundedFloats`.
pub fn lstm_rounded_scratch_len(isa: Isa, threads: usize, shape: &SequenceShape) -> usize {
    shape.scratch_len(isa, threads, 4, 5)
}

/// Elements of scratch that `lstm` needs with `LstmWeights::Bytes`.
pub fn lstm_bytes_scratch_len(shape: &SequenceShape) -> usize {
    4 * shape.batch * shape.hidden + gemm_dynamic_scratch_len(shape.batch, shape.hidden).div_ceil(size_of::<f32>())
}

/// Elements of scratch that `gru` needs.
pub fn gru_scratch_len(isa: Isa, threads: usize, shape: &SequenceShape) -> usize {
    shape.scratch_len(isa, threads, 2, 4)
}

/// Elements of scratch that `rnn` needs.
pub fn rnn_scratch_len(isa: Isa, threads: usize, shape: &SequenceShape) -> usize {
    shape.scratch_len(isa, threads, 1, 1)
}

impl SequenceShape {
    /// `rows` values of the hidden length for each sequence, then the scratch of a product of `gates` gates.
    fn scratch_len(&self, isa: Isa, threads: usize, gates: usize, rows: usize) -> usize {
        let (m, n, k) = (self.batch, gates * self.hidden, self.hidden);
        rows * self.batch * self.hidden + gemm_scratch_len(isa, threads, m, n, k, Packing::Plain, Packing::Packed)
    }

    fn length(&self, start: &Start, sequence: usize) -> usize {
        start.lengths.map_or(self.steps, |lengths| usize::try_from(lengths[sequence]).unwrap_or(0).min(self.steps))
    }

    /// Which step of its input a sequence takes now; `None` when it has finished.
    fn position(&self, start: &Start, sequence: usize, step: usize) -> Option<usize> {
        let length = self.length(start, sequence);
        (step < length).then(|| match self.direction {
            Direction::Forward => step,
            Direction::Reverse => length - 1 - step,
        })
    }

    /// Copies the initial state, or zeros.
    fn begin(&self, initial: Option<&[f32]>, state: &mut [f32]) {
        match initial {
            Some(initial) => state.copy_from_slice(&initial[..self.batch * self.hidden]),
            None => state.fill(0.0),
        }
    }

    /// Zeros for the steps after the end of each sequence.
    fn clear_tails(&self, start: &Start, y: &mut [f32]) {
        for sequence in 0..self.batch {
            for position in self.length(start, sequence)..self.steps {
                y[position * self.y_stride + sequence * self.hidden..][..self.hidden].fill(0.0);
            }
        }
    }

    fn product(
        &self,
        exec: Exec,
        state: &[f32],
        gates: usize,
        weights: &[f32],
        target: &mut [f32],
        scratch: &mut [f32],
    ) {
        let (m, n, k) = (self.batch, gates * self.hidden, self.hidden);
        let a = MatrixA::Rows { data: state, stride: k };
        gemm(exec, m, n, k, a, MatrixB::Packed(weights), target, n, &Epilogue::default(), scratch);
    }
}

/// The recurrent weights R of an LSTM and how the hidden state is multiplied with them.
#[derive(Clone, Copy)]
pub enum LstmWeights<'a> {
    /// From `pack_recurrent`.
    Floats(&'a [f32]),
    /// From `pack_recurrent`; each row of the state is rounded to 256 levels first.
    RoundedFloats(&'a [f32]),
    /// Rᵀ [hidden, 4 * hidden] in 8 bits; each row of the state is quantised to u8 by its own extremes.
    Bytes {
        /// From `pack_b_int`.
        packed: &'a [u8],
        /// Whether the bytes were i8.
        is_signed: bool,
        /// A scale a column.
        scales: &'a [f32],
        /// A zero point a column.
        zeros: &'a [i32],
    },
}

impl LstmWeights<'_> {
    /// The products of all gates with the state of every sequence.
    fn multiply(&self, exec: Exec, shape: &SequenceShape, state: &[f32], gates: &mut [f32], scratch: &mut [f32]) {
        let (m, n, k) = (shape.batch, 4 * shape.hidden, shape.hidden);
        match *self {
            LstmWeights::Floats(weights) => shape.product(exec, state, 4, weights, gates, scratch),
            LstmWeights::RoundedFloats(weights) => {
                let (rounded, scratch) = scratch.split_at_mut(m * k);
                round_rows(exec.isa(), k, state, rounded);
                shape.product(exec, rounded, 4, weights, gates, scratch);
            }
            LstmWeights::Bytes { packed, is_signed, scales, zeros } => {
                let b_zero = ZeroPoints::Each(zeros);
                let gemm = GemmDynamic { m, n, k, a: state, packed_b: packed, is_b_signed: is_signed, b_zero, scales };
                gemm_dynamic(&exec, &gemm, &Epilogue::default(), gates, as_bytes_mut(scratch));
            }
        }
    }
}

/// How an LSTM differs from the plain one.
#[derive(Clone, Copy, Default)]
pub struct LstmOptions<'a> {
    /// Weights [3 * hidden] from the cell to the gates i, o, f.
    pub peepholes: Option<&'a [f32]>,
    /// Whether the forget gate is one minus the input gate.
    pub couples_input_forget: bool,
}

/// LSTM with sigmoid gates and tanh, gates ordered i, o, f, c. `projected` is X·Wᵀ plus both biases,
/// [steps, batch, 4 * hidden]. `y_h` and `y_c` are the last states.
pub fn lstm(
    exec: Exec,
    shape: &SequenceShape,
    projected: &[f32],
    weights: &LstmWeights,
    options: &LstmOptions,
    start: &Start,
    mut y: Option<&mut [f32]>,
    y_h: &mut [f32],
    y_c: &mut [f32],
    scratch: &mut [f32],
) {
    let SequenceShape { steps, batch, hidden, .. } = *shape;
    let (y_h, y_c) = (&mut y_h[..batch * hidden], &mut y_c[..batch * hidden]);
    shape.begin(start.hidden, y_h);
    shape.begin(start.cell, y_c);
    if let Some(y) = y.as_deref_mut() {
        shape.clear_tails(start, y);
    }
    let (gates, scratch) = scratch.split_at_mut(4 * batch * hidden);
    for step in 0..steps {
        weights.multiply(exec, shape, y_h, gates, scratch);
        for sequence in 0..batch {
            let Some(position) = shape.position(start, sequence, step) else {
                continue;
            };
            let x = &projected[(position * batch + sequence) * 4 * hidden..][..4 * hidden];
            let gates = &gates[sequence * 4 * hidden..][..4 * hidden];
            let h = &mut y_h[sequence * hidden..][..hidden];
            let c = &mut y_c[sequence * hidden..][..hidden];
            lstm_cell(exec.isa(), x, gates, options.peepholes, options.couples_input_forget, shape.clip, h, c);
            if let Some(y) = y.as_deref_mut() {
                y[position * shape.y_stride + sequence * hidden..][..hidden].copy_from_slice(h);
            }
        }
    }
}

multiversion! {
    /// One step of one sequence.
    fn lstm_cell<F: MulAdd>(
        x: &[f32],
        gates: &[f32],
        peepholes: Option<&[f32]>,
        couples_input_forget: bool,
        clip: f32,
        h: &mut [f32],
        c: &mut [f32],
    ) {
        // Slices of equal length, so that the loop has no bounds checks and becomes vector code.
        let hidden = h.len();
        let c = &mut c[..hidden];
        let [x_i, x_o, x_f, x_c] = [0, 1, 2, 3].map(|gate| &x[gate * hidden..][..hidden]);
        let [h_i, h_o, h_f, h_c] = [0, 1, 2, 3].map(|gate| &gates[gate * hidden..][..hidden]);
        let peepholes = peepholes.map(|weights| [0, 1, 2].map(|gate| &weights[gate * hidden..][..hidden]));
        for lane in 0..hidden {
            let [p_i, p_o, p_f] = peepholes.map_or([0.0; 3], |weights| weights.map(|weights| weights[lane]));
            let limit = |value: f32| clamp(value, -clip, clip);
            let i = sigmoid::<F>(limit(x_i[lane] + h_i[lane] + p_i * c[lane]));
            let f = sigmoid::<F>(limit(x_f[lane] + h_f[lane] + p_f * c[lane]));
            let f = if couples_input_forget { 1.0 - i } else { f };
            let cell = f * c[lane] + i * tanh::<F>(limit(x_c[lane] + h_c[lane]));
            let o = sigmoid::<F>(limit(x_o[lane] + h_o[lane] + p_o * cell));
            c[lane] = cell;
            h[lane] = o * tanh::<F>(cell);
        }
    }
}

/// Where the reset gate of a GRU acts.
#[derive(Clone, Copy)]
pub enum Reset<'a> {
    /// On the hidden state, before its product with R. `projected` holds every bias.
    BeforeProduct,
    /// On the product, to which this bias [hidden] is added first. `projected` lacks it.
    AfterProduct(Option<&'a [f32]>),
}

/// GRU with sigmoid gates and tanh, gates ordered z, r, h. `projected` is X·Wᵀ plus biases (see `Reset`),
/// [steps, batch, 3 * hidden]; `weights` comes from `pack_recurrent_gru`. `y_h` is the last state.
pub fn gru(
    exec: Exec,
    shape: &SequenceShape,
    projected: &[f32],
    weights: &[f32],
    reset: Reset,
    start: &Start,
    mut y: Option<&mut [f32]>,
    y_h: &mut [f32],
    scratch: &mut [f32],
) {
    let SequenceShape { steps, batch, hidden, .. } = *shape;
    let (isa, each) = (exec.isa(), batch * hidden);
    let y_h = &mut y_h[..each];
    shape.begin(start.hidden, y_h);
    if let Some(y) = y.as_deref_mut() {
        shape.clear_tails(start, y);
    }
    let (gate_weights, hidden_weights) = weights.split_at(packed_b_len(isa, hidden, 2 * hidden));
    let (gates, scratch) = scratch.split_at_mut(2 * each);
    let (candidates, scratch) = scratch.split_at_mut(each);
    let (reset_state, scratch) = scratch.split_at_mut(each);
    for step in 0..steps {
        shape.product(exec, y_h, 2, gate_weights, gates, scratch);
        for sequence in 0..batch {
            let Some(position) = shape.position(start, sequence, step) else {
                continue;
            };
            let x = &projected[(position * batch + sequence) * 3 * hidden..][..2 * hidden];
            gru_gates(isa, x, shape.clip, &mut gates[sequence * 2 * hidden..][..2 * hidden]);
        }
        match reset {
            Reset::BeforeProduct => {
                for (index, value) in reset_state.iter_mut().enumerate() {
                    *value = gates[index / hidden * 2 * hidden + hidden + index % hidden] * y_h[index];
                }
                shape.product(exec, reset_state, 1, hidden_weights, candidates, scratch);
            }
            Reset::AfterProduct(_) => shape.product(exec, y_h, 1, hidden_weights, candidates, scratch),
        }
        for sequence in 0..batch {
            let Some(position) = shape.position(start, sequence, step) else {
                continue;
            };
            let x = &projected[(position * batch + sequence) * 3 * hidden + 2 * hidden..][..hidden];
            let gates = &gates[sequence * 2 * hidden..][..2 * hidden];
            let candidates = &candidates[sequence * hidden..][..hidden];
            let h = &mut y_h[sequence * hidden..][..hidden];
            gru_cell(isa, x, gates, candidates, reset, shape.clip, h);
            if let Some(y) = y.as_deref_mut() {
                y[position * shape.y_stride + sequence * hidden..][..hidden].copy_from_slice(h);
            }
        }
    }
}

multiversion! {
    /// The gates z and r from their products.
    fn gru_gates<F: MulAdd>(x: &[f32], clip: f32, gates: &mut [f32]) {
        for (gate, x) in gates.iter_mut().zip(x) {
            *gate = sigmoid::<F>(clamp(*gate + *x, -clip, clip));
        }
    }
}

multiversion! {
    /// The new hidden state of one sequence.
    fn gru_cell<F: MulAdd>(
        x: &[f32],
        gates: &[f32],
        candidates: &[f32],
        reset: Reset<'_>,
        clip: f32,
        h: &mut [f32],
    ) {
        let hidden = h.len();
        let (z, r) = (&gates[..hidden], &gates[hidden..][..hidden]);
        let (x, candidates) = (&x[..hidden], &candidates[..hidden]);
        let bias = match reset {
            Reset::BeforeProduct | Reset::AfterProduct(None) => None,
            Reset::AfterProduct(Some(bias)) => Some(&bias[..hidden]),
        };
        let resets_product = matches!(reset, Reset::AfterProduct(_));
        for lane in 0..hidden {
            let product = candidates[lane] + bias.map_or(0.0, |bias| bias[lane]);
            let product = if resets_product { r[lane] * product } else { product };
            let candidate = tanh::<F>(clamp(x[lane] + product, -clip, clip));
            h[lane] = (1.0 - z[lane]) * candidate + z[lane] * h[lane];
        }
    }
}

/// Plain RNN: h = activation(projected + h·Rᵀ). `projected` is X·Wᵀ plus both biases, [steps, batch, hidden];
/// `weights` comes from `pack_recurrent`. `y_h` is the last state.
pub fn rnn(
    exec: Exec,
    shape: &SequenceShape,
    projected: &[f32],
    weights: &[f32],
    activation: Activation,
    start: &Start,
    mut y: Option<&mut [f32]>,
    y_h: &mut [f32],
    scratch: &mut [f32],
) {
    let SequenceShape { steps, batch, hidden, .. } = *shape;
    let y_h = &mut y_h[..batch * hidden];
    shape.begin(start.hidden, y_h);
    if let Some(y) = y.as_deref_mut() {
        shape.clear_tails(start, y);
    }
    let (products, scratch) = scratch.split_at_mut(batch * hidden);
    for step in 0..steps {
        shape.product(exec, y_h, 1, weights, products, scratch);
        for sequence in 0..batch {
            let Some(position) = shape.position(start, sequence, step) else {
                continue;
            };
            let x = &projected[(position * batch + sequence) * hidden..][..hidden];
            let h = &mut y_h[sequence * hidden..][..hidden];
            for ((h, product), x) in h.iter_mut().zip(&products[sequence * hidden..]).zip(x) {
                *h = clamp(*product + *x, -shape.clip, shape.clip);
            }
            crate::math::activate(exec.isa(), activation, h);
            if let Some(y) = y.as_deref_mut() {
                y[position * shape.y_stride + sequence * hidden..][..hidden].copy_from_slice(h);
            }
        }
    }
}

#[cfg(test)]
#[path = "recurrent_tests.rs"]
mod tests;
