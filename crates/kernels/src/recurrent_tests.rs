//! Tests of the recurrent layers against f64 loops written from the ONNX definitions.

use super::*;
use crate::gemm_int::pack_b_int;
use crate::test_data::{Lcg, for_each_exec};

const TOLERANCE: f64 = 2e-6;

#[derive(Clone)]
struct Case {
    shape: SequenceShape,
    initial_h: Vec<f32>,
    initial_c: Vec<f32>,
    lengths: Vec<i32>,
}

impl Case {
    fn start(&self) -> Start<'_> {
        Start { hidden: Some(&self.initial_h), cell: Some(&self.initial_c), lengths: Some(&self.lengths) }
    }

    /// Runs `cell(x row, h, c)` over every sequence; returns y, y_h and y_c. `y` has a gap after each step.
    fn reference(
        &self,
        gates: usize,
        projected: &[f32],
        mut cell: impl FnMut(&[f32], &mut Vec<f64>, &mut Vec<f64>),
    ) -> [Vec<f64>; 3] {
        let SequenceShape { steps, batch, hidden, y_stride, direction, .. } = self.shape;
        let mut y = vec![0.0; steps * y_stride];
        let (mut y_h, mut y_c) = (Vec::new(), Vec::new());
        for sequence in 0..batch {
            let state = |values: &[f32]| -> Vec<f64> {
                values[sequence * hidden..(sequence + 1) * hidden].iter().map(|value| f64::from(*value)).collect()
            };
            let (mut h, mut c) = (state(&self.initial_h), state(&self.initial_c));
            let length = self.lengths[sequence] as usize;
            for step in 0..length {
                let position = if direction == Direction::Forward { step } else { length - 1 - step };
                cell(&projected[(position * batch + sequence) * gates * hidden..], &mut h, &mut c);
                y[position * y_stride + sequence * hidden..][..hidden].copy_from_slice(&h);
            }
            y_h.extend(h);
            y_c.extend(c);
        }
        [y, y_h, y_c]
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (steps, batch, hidden) in [(4, 3, 5), (3, 1, 33), (5, 2, 16), (2, 0, 3), (0, 2, 3), (2, 2, 0)] {
        for (direction, clip) in [(Direction::Forward, f32::INFINITY), (Direction::Reverse, 0.5)] {
            let mut lcg = Lcg::new((steps * 100 + hidden) as u64);
            cases.push(Case {
                shape: SequenceShape { steps, batch, hidden, direction, y_stride: 2 * batch * hidden, clip },
                initial_h: (0..batch * hidden).map(|_| lcg.float()).collect(),
                initial_c: (0..batch * hidden).map(|_| lcg.float()).collect(),
                lengths: (0..batch).map(|sequence| steps.saturating_sub(sequence) as i32).collect(),
            });
        }
    }
    cases
}

fn unit_floats(seed: u64, len: usize) -> Vec<f32> {
    let mut lcg = Lcg::new(seed);
    (0..len).map(|_| lcg.float()).collect()
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Element `row` of h·Rᵀ.
fn dot(r: &[f32], row: usize, h: &[f64]) -> f64 {
    r[row * h.len()..].iter().zip(h).map(|(r, h)| f64::from(*r) * h).sum()
}

fn assert_near(actual: &[f32], expected: &[f64], what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (index, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        assert!((f64::from(*actual) - expected).abs() <= TOLERANCE, "{what} at {index}: {actual} {expected}");
    }
}

fn packed(isa: Isa, gates: usize, hidden: usize, r: &[f32]) -> Vec<f32> {
    let mut packed = vec![f32::NAN; packed_b_len(isa, hidden, gates * hidden)];
    pack_recurrent(isa, hidden, r, &mut packed);
    packed
}

fn packed_gru(isa: Isa, hidden: usize, r: &[f32]) -> Vec<f32> {
    let len = packed_b_len(isa, hidden, 2 * hidden) + packed_b_len(isa, hidden, hidden);
    let mut packed = vec![f32::NAN; len];
    pack_recurrent_gru(isa, hidden, r, &mut packed);
    packed
}

/// The next states of one sequence of an LSTM; `h` is what R is multiplied with.
fn lstm_step(shape: &SequenceShape, x: &[f32], r: &[f32], options: &LstmOptions, h: &[f64], c: &mut [f64]) -> Vec<f64> {
    let (hidden, clip) = (shape.hidden, f64::from(shape.clip));
    let limit = |value: f64| value.clamp(-clip, clip);
    let entry = |gate: usize, lane: usize| f64::from(x[gate * hidden + lane]) + dot(r, gate * hidden + lane, h);
    let peep = |gate: usize, lane: usize, cell: f64| {
        options.peepholes.map_or(0.0, |weights| f64::from(weights[gate * hidden + lane]) * cell)
    };
    let next = |lane: usize| {
        let i = logistic(limit(entry(0, lane) + peep(0, lane, c[lane])));
        let f = logistic(limit(entry(2, lane) + peep(2, lane, c[lane])));
        let f = if options.couples_input_forget { 1.0 - i } else { f };
        c[lane] = f * c[lane] + i * limit(entry(3, lane)).tanh();
        let o = logistic(limit(entry(1, lane) + peep(1, lane, c[lane])));
        o * c[lane].tanh()
    };
    (0..hidden).map(next).collect()
}

/// Runs `lstm` on every instruction set and compares with y, y_h and y_c.
fn check_lstm(
    case: &Case,
    projected: &[f32],
    options: &LstmOptions,
    expected: &[Vec<f64>; 3],
    weights: impl Fn(&Exec, &dyn Fn(LstmWeights, usize)),
) {
    let SequenceShape { steps, batch, hidden, y_stride, .. } = case.shape;
    for_each_exec(|exec| {
        weights(exec, &|weights, scratch_len| {
            let mut scratch = vec![f32::NAN; scratch_len];
            let mut y = vec![0.0; steps * y_stride];
            let (mut h, mut c) = (vec![f32::NAN; batch * hidden], vec![f32::NAN; batch * hidden]);
            let (shape, start) = (&case.shape, case.start());
            let y_actual = Some(&mut y[..]);
            lstm(*exec, shape, projected, &weights, options, &start, y_actual, &mut h, &mut c, &mut scratch);
            let what = format!("{:?} {shape:?}", exec.isa());
            for (actual, expected) in [y, h, c].iter().zip(expected) {
                assert_near(actual, expected, &what);
            }
        });
    });
}

#[test]
fn lstm_matches_its_definition() {
    for case in cases() {
        let SequenceShape { steps, batch, hidden, .. } = case.shape;
        let projected = unit_floats(1, steps * batch * 4 * hidden);
        let (r, peepholes) = (unit_floats(2, 4 * hidden * hidden), unit_floats(3, 3 * hidden));
        for (peepholes, couples_input_forget) in [(None, false), (Some(&peepholes[..]), false), (None, true)] {
            let options = LstmOptions { peepholes, couples_input_forget };
            let expected = case.reference(4, &projected, |x, h, c| {
                *h = lstm_step(&case.shape, x, &r, &options, h, c);
            });
            check_lstm(&case, &projected, &options, &expected, |exec, run| {
                let scratch_len = lstm_scratch_len(exec.isa(), exec.threads(), &case.shape);
                run(LstmWeights::Floats(&packed(exec.isa(), 4, hidden, &r)), scratch_len);
            });
        }
    }
}

/// The nearest of the 256 levels that span the extremes of h and 0.
fn rounded(h: &[f64]) -> Vec<f64> {
    let (low, high) = h.iter().fold((0.0_f64, 0.0_f64), |(low, high), &h| (low.min(h), high.max(h)));
    let scale = (high - low) / 255.0;
    let zero = (-low / scale).round_ties_even();
    let level = |h: f64| ((h / scale).round_ties_even() + zero).clamp(0.0, 255.0) - zero;
    if scale == 0.0 { h.to_vec() } else { h.iter().map(|&h| level(h) * scale).collect() }
}

#[test]
fn an_lstm_of_bytes_is_one_of_floats_whose_state_is_rounded() {
    for (case, is_signed) in
        cases().into_iter().flat_map(|case| [true, false].map(|is_signed| (case.clone(), is_signed)))
    {
        let SequenceShape { steps, batch, hidden, .. } = case.shape;
        let columns = 4 * hidden;
        let projected = unit_floats(1, steps * batch * columns);
        let bytes = Lcg::new(2).bytes(hidden * columns);
        let scales: Vec<f32> = unit_floats(3, columns).iter().map(|scale| scale.abs() / 64.0).collect();
        let zeros: Vec<i32> = (0..columns as i32).map(|column| column % 5).collect();
        let weight = |row: usize, column: usize| {
            let byte = bytes[row * columns + column];
            let byte = if is_signed { i32::from(byte as i8) } else { i32::from(byte) };
            (byte - zeros[column]) as f32 * scales[column]
        };
        let r: Vec<f32> = (0..columns)
            .flat_map(|column| (0..hidden).map(move |row| (row, column)))
            .map(|(row, column)| weight(row, column))
            .collect();
        let options = LstmOptions::default();
        let expected = case.reference(4, &projected, |x, h, c| {
            *h = lstm_step(&case.shape, x, &r, &options, &rounded(h), c);
        });
        let packed_bytes = pack_b_int(hidden, columns, &bytes, is_signed, false);
        check_lstm(&case, &projected, &options, &expected, |exec, run| {
            let scratch_len = lstm_rounded_scratch_len(exec.isa(), exec.threads(), &case.shape);
            run(LstmWeights::RoundedFloats(&packed(exec.isa(), 4, hidden, &r)), scratch_len);
            let weights = LstmWeights::Bytes { packed: &packed_bytes, is_signed, scales: &scales, zeros: &zeros };
            run(weights, lstm_bytes_scratch_len(&case.shape));
        });
    }
}

#[test]
fn gru_matches_its_definition() {
    for case in cases() {
        let SequenceShape { steps, batch, hidden, clip, y_stride, .. } = case.shape;
        let projected = unit_floats(4, steps * batch * 3 * hidden);
        let (r, bias) = (unit_floats(5, 3 * hidden * hidden), unit_floats(6, hidden));
        for reset in [Reset::BeforeProduct, Reset::AfterProduct(None), Reset::AfterProduct(Some(&bias))] {
            let [y, y_h, _] = case.reference(3, &projected, |x, h, _| {
                let limit = |value: f64| value.clamp(-f64::from(clip), f64::from(clip));
                let gate = |gate: usize, lane: usize| {
                    logistic(limit(f64::from(x[gate * hidden + lane]) + dot(&r, gate * hidden + lane, h)))
                };
                let reset_h: Vec<f64> = (0..hidden).map(|lane| gate(1, lane) * h[lane]).collect();
                let next: Vec<f64> = (0..hidden)
                    .map(|lane| {
                        let product = match reset {
                            Reset::BeforeProduct => dot(&r, 2 * hidden + lane, &reset_h),
                            Reset::AfterProduct(bias) => {
                                let bias = bias.map_or(0.0, |bias| f64::from(bias[lane]));
                                gate(1, lane) * (dot(&r, 2 * hidden + lane, h) + bias)
                            }
                        };
                        let candidate = limit(f64::from(x[2 * hidden + lane]) + product).tanh();
                        (1.0 - gate(0, lane)) * candidate + gate(0, lane) * h[lane]
                    })
                    .collect();
                *h = next;
            });
            for_each_exec(|exec| {
                let weights = packed_gru(exec.isa(), hidden, &r);
                let mut scratch = vec![f32::NAN; gru_scratch_len(exec.isa(), exec.threads(), &case.shape)];
                let (mut actual, mut h) = (vec![0.0; steps * y_stride], vec![f32::NAN; batch * hidden]);
                let (shape, start) = (&case.shape, case.start());
                gru(*exec, shape, &projected, &weights, reset, &start, Some(&mut actual), &mut h, &mut scratch);
                let what = format!("{:?} {shape:?}", exec.isa());
                assert_near(&actual, &y, &what);
                assert_near(&h, &y_h, &what);
            });
        }
    }
}

#[test]
fn rnn_matches_its_definition() {
    for case in cases() {
        let SequenceShape { steps, batch, hidden, clip, y_stride, .. } = case.shape;
        let projected = unit_floats(7, steps * batch * hidden);
        let r = unit_floats(8, hidden * hidden);
        let [y, y_h, _] = case.reference(1, &projected, |x, h, _| {
            let limit = |value: f64| value.clamp(-f64::from(clip), f64::from(clip));
            *h = (0..hidden).map(|lane| limit(f64::from(x[lane]) + dot(&r, lane, h)).tanh()).collect();
        });
        for_each_exec(|exec| {
            let weights = packed(exec.isa(), 1, hidden, &r);
            let mut scratch = vec![f32::NAN; rnn_scratch_len(exec.isa(), exec.threads(), &case.shape)];
            let (mut actual, mut h) = (vec![0.0; steps * y_stride], vec![f32::NAN; batch * hidden]);
            let (shape, start) = (&case.shape, case.start());
            let y_actual = Some(&mut actual[..]);
            rnn(*exec, shape, &projected, &weights, Activation::Tanh, &start, y_actual, &mut h, &mut scratch);
            let what = format!("{:?} {shape:?}", exec.isa());
            assert_near(&actual, &y, &what);
            assert_near(&h, &y_h, &what);
        });
    }
}

#[test]
fn a_layer_without_y_or_start_leaves_only_its_state() {
    let shape = SequenceShape {
        steps: 2,
        batch: 1,
        hidden: 1,
        direction: Direction::Forward,
        y_stride: 1,
        clip: f32::INFINITY,
    };
    let weights = packed(Isa::Portable, 1, 1, &[2.0]);
    let pool = crate::pool::ThreadPool::new(1);
    let exec = Exec::new(Isa::Portable, &pool).unwrap();
    let mut scratch = vec![0.0; rnn_scratch_len(Isa::Portable, 1, &shape)];
    let mut h = [f32::NAN];
    rnn(exec, &shape, &[1.0, 3.0], &weights, Activation::Relu, &Start::default(), None, &mut h, &mut scratch);
    assert_eq!(h, [5.0]);
}
