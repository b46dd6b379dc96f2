//! Tests of the recurrent layers against f64 loops written from the ONNX definitions.

use super::*;
use crate::test_data::{Lcg, for_each_exec};

const TOLERANCE: f64 = 2e-6;

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

#[test]
fn lstm_matches_its_definition() {
    for case in cases() {
        let SequenceShape { steps, batch, hidden, clip, y_stride, .. } = case.shape;
        let projected = unit_floats(1, steps * batch * 4 * hidden);
        let (r, peepholes) = (unit_floats(2, 4 * hidden * hidden), unit_floats(3, 3 * hidden));
        for (peepholes, couples_input_forget) in [(None, false), (Some(&peepholes[..]), false), (None, true)] {
            let [y, y_h, y_c] = case.reference(4, &projected, |x, h, c| {
                let limit = |value: f64| value.clamp(-f64::from(clip), f64::from(clip));
                let entry =
                    |gate: usize, lane: usize| f64::from(x[gate * hidden + lane]) + dot(&r, gate * hidden + lane, h);
                let peep = |gate: usize, lane: usize, cell: f64| {
                    peepholes.map_or(0.0, |weights| f64::from(weights[gate * hidden + lane]) * cell)
                };
                let mut next_h = vec![0.0; hidden];
                for lane in 0..hidden {
                    let i = logistic(limit(entry(0, lane) + peep(0, lane, c[lane])));
                    let f = logistic(limit(entry(2, lane) + peep(2, lane, c[lane])));
                    let f = if couples_input_forget { 1.0 - i } else { f };
                    c[lane] = f * c[lane] + i * limit(entry(3, lane)).tanh();
                    let o = logistic(limit(entry(1, lane) + peep(1, lane, c[lane])));
                    next_h[lane] = o * c[lane].tanh();
                }
                *h = next_h;
            });
            for_each_exec(|exec| {
                let weights = packed(exec.isa(), 4, hidden, &r);
                let mut scratch = vec![f32::NAN; lstm_scratch_len(exec.isa(), exec.threads(), &case.shape)];
                let mut actual = vec![0.0; steps * y_stride];
                let (mut h, mut c) = (vec![f32::NAN; batch * hidden], vec![f32::NAN; batch * hidden]);
                let options = LstmOptions { peepholes, couples_input_forget };
                let (shape, start) = (&case.shape, case.start());
                let y_actual = Some(&mut actual[..]);
                lstm(*exec, shape, &projected, &weights, &options, &start, y_actual, &mut h, &mut c, &mut scratch);
                let what = format!("{:?} {shape:?}", exec.isa());
                assert_near(&actual, &y, &what);
                assert_near(&h, &y_h, &what);
                assert_near(&c, &y_c, &what);
            });
        }
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
