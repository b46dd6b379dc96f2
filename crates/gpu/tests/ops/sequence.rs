//! Recurrent layers.

use precast_ir::op::{Direction, Recurrent, RecurrentFn, UnaryFn};
use precast_tensor::{DType, Tensor};

use crate::host::{Case, INDIRECT, PLAIN, WIDE, check, numbers, of_values};

struct Variant {
    func: RecurrentFn,
    direction: Direction,
    dtype: DType,
    has_all: bool,
    flag: bool,
    steps: usize,
}

fn case(variant: &Variant) -> Case {
    let &Variant { func, direction, dtype, has_all, flag, steps } = variant;
    let (batch, width, hidden) = (3, 5, 4);
    let directions = if direction == Direction::Bidirectional { 2 } else { 1 };
    let (gates, mut activations) = match func {
        RecurrentFn::Rnn => (1, vec![UnaryFn::Tanh]),
        RecurrentFn::Gru => (3, vec![UnaryFn::Sigmoid, UnaryFn::Tanh]),
        RecurrentFn::Lstm => (4, vec![UnaryFn::Sigmoid, UnaryFn::Tanh, UnaryFn::Tanh]),
    };
    if directions == 2 {
        let others = activations.iter().map(|func| if *func == UnaryFn::Tanh { UnaryFn::Softsign } else { *func });
        activations = activations.clone().into_iter().chain(others).collect();
    }
    let is_lstm = func == RecurrentFn::Lstm;
    let op = Recurrent {
        func,
        direction,
        hidden,
        alphas: vec![1.0; activations.len()],
        betas: vec![0.0; activations.len()],
        activations,
        clip: if flag { 0.6 } else { 0.0 },
        input_forget: flag,
        linear_before_reset: flag,
        bias: has_all,
        lengths: has_all,
        initial_h: has_all,
        initial_c: has_all && is_lstm,
        peepholes: has_all && is_lstm,
        rounds_state: false,
    };
    let part = |shape: &[usize], seed: u64| numbers(dtype, shape, seed, -0.7, 0.7);
    let mut inputs: Vec<Tensor> = vec![
        part(&[steps, batch, width], 1),
        part(&[directions, gates * hidden, width], 2),
        part(&[directions, gates * hidden, hidden], 3),
    ];
    if has_all {
        inputs.push(part(&[directions, 2 * gates * hidden], 4));
        let lengths = [steps as f64, 0.0, (steps / 2) as f64];
        inputs.push(of_values(DType::I32, &[batch], &lengths));
        inputs.push(part(&[directions, batch, hidden], 5));
        if is_lstm {
            inputs.push(part(&[directions, batch, hidden], 6));
            inputs.push(part(&[directions, 3 * hidden], 7));
        }
    }
    Case::new(op, &inputs).with_slack(if dtype == DType::F64 { 1e-13 } else { 0.0 })
}

#[test]
fn recurrent_layers() {
    let mut cases = Vec::new();
    for &func in RecurrentFn::ALL {
        for &direction in Direction::ALL {
            for dtype in [DType::F32, DType::F16, DType::F64] {
                for (has_all, flag) in [(false, false), (true, false), (true, true)] {
                    cases.push(case(&Variant { func, direction, dtype, has_all, flag, steps: 6 }));
                }
            }
            cases.push(case(&Variant { func, direction, dtype: DType::F32, has_all: true, flag: false, steps: 0 }));
        }
    }
    check(&cases, PLAIN);
    check(&cases[..30], WIDE);
    check(&cases[..3], INDIRECT);
}
