//! Recurrent layers over whole sequences (ONNX RNN 22, GRU 22, LSTM 22). States stay f64 through time; outputs are
//! rounded once. Every row of the batch runs by itself over its own length.

use precast_tensor::{DType, Dim, Tensor, Type};

use super::function::{clamp_float, unary_float};
use super::shape::{
    check_same_dtype, count, dtype_error, infer_shapes, read_floats, read_ints, same_dim, write_floats,
};
use crate::error::{EvalError, InferError};
use crate::op::{Direction, Operation, Recurrent, RecurrentFn};

const RECURRENT: &str = "recurrent";

impl Operation for Recurrent {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        self.check_attributes()?;
        let parts = self.parts(inputs)?;
        let (x, dtype) = (parts.x, parts.x.dtype);
        if !dtype.is_float() {
            return Err(dtype_error(RECURRENT, dtype));
        }
        let [time, batch, width] = x.dims.as_slice() else {
            return Err(InferError::new(RECURRENT, format!("x {x} found where [T,B,I] is expected")));
        };
        let (directions, hidden) = (Dim::from(self.directions()), Dim::from(self.hidden));
        let rows = &hidden * self.gates() as i64;
        let state = [directions.clone(), batch.clone(), hidden.clone()];
        check_part("w", parts.w, dtype, &[directions.clone(), rows.clone(), width.clone()])?;
        check_part("r", parts.r, dtype, &[directions.clone(), rows.clone(), hidden.clone()])?;
        let optional = [
            ("bias", parts.bias, dtype, vec![directions.clone(), rows * 2]),
            ("lengths", parts.lengths, DType::I32, vec![batch.clone()]),
            ("initial h", parts.initial_h, dtype, state.to_vec()),
            ("initial c", parts.initial_c, dtype, state.to_vec()),
            ("peepholes", parts.peepholes, dtype, vec![directions.clone(), &hidden * 3]),
        ];
        for (name, part, dtype, dims) in optional {
            part.map_or(Ok(()), |part| check_part(name, part, dtype, &dims))?;
        }
        let y = Type { dtype, dims: vec![time.clone(), directions, batch.clone(), hidden] };
        let state = Type { dtype, dims: state.to_vec() };
        Ok(match self.func {
            RecurrentFn::Rnn | RecurrentFn::Gru => vec![y, state],
            RecurrentFn::Lstm => vec![y, state.clone(), state],
        })
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let shapes = infer_shapes(RECURRENT, self, inputs)?;
        let parts = self.parts(&inputs.iter().collect::<Vec<_>>())?;
        let (time, directions, batch, hidden) = (shapes[0].1[0], shapes[0].1[1], shapes[0].1[2], self.hidden);
        let x = read_floats(parts.x);
        let width = parts.x.shape()[2];
        let lengths = row_lengths(parts.lengths, batch, time)?;
        let mut y = vec![0.0; count(&shapes[0].1)];
        let (mut y_h, mut y_c) = (read_state(parts.initial_h, &shapes[1].1), read_state(parts.initial_c, &shapes[1].1));
        for direction in 0..directions {
            let cell = Cell::new(self, &parts, direction);
            for (row, &length) in lengths.iter().enumerate() {
                let state = (direction * batch + row) * hidden..(direction * batch + row + 1) * hidden;
                let (h, c) = (&mut y_h[state.clone()], &mut y_c[state]);
                for step in 0..length {
                    let at = if self.is_reversed(direction) { length - 1 - step } else { step };
                    cell.step(&x[(at * batch + row) * width..][..width], h, c)?;
                    y[((at * directions + direction) * batch + row) * hidden..][..hidden].copy_from_slice(h);
                }
            }
        }
        let outputs = [y, y_h, y_c];
        shapes
            .iter()
            .zip(outputs)
            .map(|((dtype, shape), values)| write_floats(RECURRENT, *dtype, shape, &values))
            .collect()
    }
}

impl Recurrent {
    fn directions(&self) -> usize {
        if self.direction == Direction::Bidirectional { 2 } else { 1 }
    }

    fn is_reversed(&self, direction: usize) -> bool {
        match self.direction {
            Direction::Forward => false,
            Direction::Reverse => true,
            Direction::Bidirectional => direction == 1,
        }
    }

    /// Blocks of `hidden` rows in w and r.
    fn gates(&self) -> usize {
        match self.func {
            RecurrentFn::Rnn => 1,
            RecurrentFn::Gru => 3,
            RecurrentFn::Lstm => 4,
        }
    }

    /// Activations that one direction uses.
    fn activation_count(&self) -> usize {
        match self.func {
            RecurrentFn::Rnn => 1,
            RecurrentFn::Gru => 2,
            RecurrentFn::Lstm => 3,
        }
    }

    fn check_attributes(&self) -> Result<(), InferError> {
        let expected = self.directions() * self.activation_count();
        let found = [self.activations.len(), self.alphas.len(), self.betas.len()];
        if found != [expected; 3] {
            let reason = format!("{found:?} activations, alphas and betas found where {expected} each are expected");
            return Err(InferError::new(RECURRENT, reason));
        }
        if let Some(func) = self.activations.iter().find(|func| unary_float(**func, 0.0, 0.0, 0.0).is_none()) {
            return Err(InferError::new(RECURRENT, format!("{} is not a function of floats", func.name())));
        }
        if self.func != RecurrentFn::Lstm && (self.initial_c || self.peepholes) {
            return Err(InferError::new(RECURRENT, "only lstm has a cell state and peepholes"));
        }
        if self.func != RecurrentFn::Lstm && self.rounds_state {
            return Err(InferError::new(RECURRENT, "only lstm rounds its state"));
        }
        Ok(())
    }

    /// The inputs by their meaning.
    fn parts<'a, T>(&self, inputs: &[&'a T]) -> Result<Parts<&'a T>, InferError> {
        let flags = [self.bias, self.lengths, self.initial_h, self.initial_c, self.peepholes];
        let expected = 3 + flags.iter().filter(|flag| **flag).count();
        let &[x, w, r, ref optional @ ..] = inputs else {
            return Err(InferError::new(
                RECURRENT,
                format!("{} inputs given where {expected} are expected", inputs.len()),
            ));
        };
        if inputs.len() != expected {
            return Err(InferError::new(
                RECURRENT,
                format!("{} inputs given where {expected} are expected", inputs.len()),
            ));
        }
        let mut optional = optional.iter().copied();
        let [bias, lengths, initial_h, initial_c, peepholes] =
            flags.map(|is_present| if is_present { optional.next() } else { None });
        Ok(Parts { x, w, r, bias, lengths, initial_h, initial_c, peepholes })
    }
}

struct Parts<T> {
    x: T,
    w: T,
    r: T,
    bias: Option<T>,
    lengths: Option<T>,
    initial_h: Option<T>,
    initial_c: Option<T>,
    peepholes: Option<T>,
}

/// The weights of one direction.
struct Cell<'a> {
    op: &'a Recurrent,
    direction: usize,
    w: Vec<f64>,
    r: Vec<f64>,
    /// Biases of w, then of r; zeros where there are none.
    bias: Vec<f64>,
    /// For the input, output and forget gates; zeros where there are none.
    peepholes: Vec<f64>,
}

impl<'a> Cell<'a> {
    fn new(op: &'a Recurrent, parts: &Parts<&Tensor>, direction: usize) -> Cell<'a> {
        let slice = |part: Option<&Tensor>, length: usize| match part {
            Some(part) => read_floats(part)[direction * length..][..length].to_vec(),
            None => vec![0.0; length],
        };
        let rows = op.gates() * op.hidden;
        Cell {
            op,
            direction,
            w: slice(Some(parts.w), rows * parts.w.shape()[2]),
            r: slice(Some(parts.r), rows * op.hidden),
            bias: slice(parts.bias, 2 * rows),
            peepholes: slice(parts.peepholes, 3 * op.hidden),
        }
    }

    /// Moves the states h and c on by one element of the sequence.
    fn step(&self, x: &[f64], h: &mut [f64], c: &mut [f64]) -> Result<(), EvalError> {
        let rows = self.op.gates() * self.op.hidden;
        let (bias_w, bias_r) = self.bias.split_at(rows);
        let from_x = affine(&self.w, x, bias_w);
        let from_h = match self.op.rounds_state {
            true => affine(&self.r, &rounded(h), bias_r),
            false => affine(&self.r, h, bias_r),
        };
        match self.op.func {
            RecurrentFn::Rnn => self.step_rnn(&from_x, &from_h, h),
            RecurrentFn::Gru => self.step_gru(&from_x, &from_h, h),
            RecurrentFn::Lstm => self.step_lstm(&from_x, &from_h, h, c),
        }
    }

    /// `H = f(X W + H R + b)`
    fn step_rnn(&self, from_x: &[f64], from_h: &[f64], h: &mut [f64]) -> Result<(), EvalError> {
        for (unit, state) in h.iter_mut().enumerate() {
            *state = self.activate(0, from_x[unit] + from_h[unit])?;
        }
        Ok(())
    }

    /// Gates in the order z, r, h: `H = (1 - z) g(..) + z H`.
    fn step_gru(&self, from_x: &[f64], from_h: &[f64], h: &mut [f64]) -> Result<(), EvalError> {
        let hidden = h.len();
        let mut update = vec![0.0; hidden];
        let mut reset = vec![0.0; hidden];
        for unit in 0..hidden {
            update[unit] = self.activate(0, from_x[unit] + from_h[unit])?;
            reset[unit] = self.activate(0, from_x[hidden + unit] + from_h[hidden + unit])?;
        }
        let candidate_from_h: Vec<f64> = if self.op.linear_before_reset {
            from_h[2 * hidden..].iter().zip(&reset).map(|(linear, reset)| reset * linear).collect()
        } else {
            let reset_h: Vec<f64> = h.iter().zip(&reset).map(|(state, reset)| reset * state).collect();
            affine(&self.r[2 * hidden * hidden..], &reset_h, &self.bias[5 * hidden..])
        };
        for (unit, state) in h.iter_mut().enumerate() {
            let candidate = self.activate(1, from_x[2 * hidden + unit] + candidate_from_h[unit])?;
            *state = (1.0 - update[unit]) * candidate + update[unit] * *state;
        }
        Ok(())
    }

    /// Gates in the order i, o, f, c: `C = f C + i g(..)`, `H = o h(C)`; peepholes in the order i, o, f.
    fn step_lstm(&self, from_x: &[f64], from_h: &[f64], h: &mut [f64], c: &mut [f64]) -> Result<(), EvalError> {
        let hidden = h.len();
        let gate = |gate: usize, unit: usize| from_x[gate * hidden + unit] + from_h[gate * hidden + unit];
        let peephole = |gate: usize, unit: usize| self.peepholes[gate * hidden + unit];
        for unit in 0..hidden {
            let input = self.activate(0, gate(0, unit) + peephole(0, unit) * c[unit])?;
            let forget = if self.op.input_forget {
                1.0 - input
            } else {
                self.activate(0, gate(2, unit) + peephole(2, unit) * c[unit])?
            };
            c[unit] = forget * c[unit] + input * self.activate(1, gate(3, unit))?;
            let output = self.activate(0, gate(1, unit) + peephole(1, unit) * c[unit])?;
            h[unit] = output * self.apply(2, c[unit])?;
        }
        Ok(())
    }

    /// An activation of this direction on a clipped sum. ONNX clips the sums that enter gates, not the cell state.
    fn activate(&self, which: usize, sum: f64) -> Result<f64, EvalError> {
        let is_clipped = self.op.clip > 0.0;
        self.apply(which, if is_clipped { clamp_float(sum, -self.op.clip, self.op.clip) } else { sum })
    }

    fn apply(&self, which: usize, value: f64) -> Result<f64, EvalError> {
        let at = self.direction * self.op.activation_count() + which;
        let func = self.op.activations[at];
        unary_float(func, value, self.op.alphas[at], self.op.betas[at])
            .ok_or_else(|| EvalError::value(RECURRENT, format!("{} is not a function of floats", func.name())))
    }
}

/// Rows times a vector, plus a bias; rows beyond the bias are not used.
fn affine(rows: &[f64], vector: &[f64], bias: &[f64]) -> Vec<f64> {
    let dot = |row: &[f64]| row.iter().zip(vector).map(|(weight, element)| weight * element).sum::<f64>();
    (0..bias.len()).map(|row| dot(&rows[row * vector.len()..][..vector.len()]) + bias[row]).collect()
}

/// The nearest of 256 levels between the extremes for each element, 0 always being a level.
fn rounded(h: &[f64]) -> Vec<f64> {
    const MOST: f64 = 255.0;
    let (low, high) = h.iter().fold((0.0_f64, 0.0_f64), |(low, high), &h| (low.min(h), high.max(h)));
    let scale = (high - low) / MOST;
    if scale == 0.0 {
        return h.to_vec();
    }
    let zero = (-low / scale).round_ties_even();
    h.iter().map(|h| (clamp_float((h / scale).round_ties_even() + zero, 0.0, MOST) - zero) * scale).collect()
}

fn read_state(part: Option<&Tensor>, shape: &[usize]) -> Vec<f64> {
    part.map_or_else(|| vec![0.0; count(shape)], read_floats)
}

fn row_lengths(part: Option<&Tensor>, batch: usize, time: usize) -> Result<Vec<usize>, EvalError> {
    let Some(part) = part else {
        return Ok(vec![time; batch]);
    };
    let check = |length: i128| {
        usize::try_from(length)
            .ok()
            .filter(|length| *length <= time)
            .ok_or_else(|| EvalError::value(RECURRENT, format!("length {length} is not within 0..={time}")))
    };
    read_ints(RECURRENT, part)?.into_iter().map(check).collect()
}

fn check_part(name: &str, part: &Type, dtype: DType, dims: &[Dim]) -> Result<(), InferError> {
    let expected = Type { dtype, dims: dims.to_vec() };
    if part.dtype != dtype {
        check_same_dtype(RECURRENT, part, &expected)?;
    }
    let fits = part.dims.len() == dims.len() && part.dims.iter().zip(dims).all(|(a, b)| same_dim(a, b).is_some());
    if fits {
        Ok(())
    } else {
        Err(InferError::new(RECURRENT, format!("{name} is {part} where {expected} is expected")))
    }
}

#[cfg(test)]
#[path = "sequence_tests.rs"]
mod tests;
