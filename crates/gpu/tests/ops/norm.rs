//! Normalisations.

use precast_ir::op::{GroupNorm, LayerNorm, Lrn, RmsNorm, Softmax};
use precast_tensor::{DType, Tensor};

use crate::host::{Case, INDIRECT, PLAIN, WIDE, check, numbers, of_values};

const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

fn x(dtype: DType, shape: &[usize]) -> Tensor {
    numbers(dtype, shape, 21, -3.0, 3.0)
}

#[test]
fn softmax() {
    let mut cases = Vec::new();
    for dtype in FLOATS {
        for log in [false, true] {
            for (shape, axis) in [
                (vec![3, 10], 1),
                (vec![10, 3], 0),
                (vec![2, 4, 64], 2),
                (vec![2, 300, 5], 1),
                (vec![1], 0),
                (vec![3, 1], 1),
                (vec![2, 1000], 1),
                (vec![2, 2048], 1),
                (vec![2, 5, 3, 4], 1),
                (vec![0, 4], 1),
            ] {
                cases.push(Case::new(Softmax { axis, log }, &[x(dtype, &shape)]));
                if shape.len() > 3 {
                    cases.push(Case::new(Softmax { axis, log }, &[x(dtype, &shape)]).channels_last());
                    cases.push(Case::new(Softmax { axis, log }, &[x(dtype, &shape)]).channels_last_values(&[1]));
                }
            }
        }
    }
    check(&cases, PLAIN);
    check(&cases[..12], WIDE);
    check(&cases[..3], INDIRECT);
}

#[test]
fn softmax_of_long_rows_and_special_numbers() {
    let mut cases = Vec::new();
    for log in [false, true] {
        cases.push(Case::new(Softmax { axis: 1, log }, &[x(DType::F32, &[2, 9001])]));
        cases.push(Case::new(Softmax { axis: 1, log }, &[x(DType::F16, &[1, 20000])]));
        cases.push(Case::new(Softmax { axis: 1, log }, &[x(DType::F32, &[1, 40000])]));
        let rows = [f64::NAN, 1.0, f64::INFINITY, 1.0, f64::NEG_INFINITY, 1.0, f64::NEG_INFINITY, f64::NEG_INFINITY];
        cases.push(Case::new(Softmax { axis: 1, log }, &[of_values(DType::F32, &[4, 2], &rows)]));
    }
    check(&cases, PLAIN);
    check(&cases[..3], WIDE);
}

#[test]
fn layer_and_rms_norm() {
    let mut cases = Vec::new();
    for dtype in FLOATS {
        for (shape, axis, scale) in [
            (vec![4, 16], 1, vec![16]),
            (vec![3, 7], 1, vec![7]),
            (vec![2, 3, 768], 2, vec![768]),
            (vec![2, 3, 8], 1, vec![3, 8]),
            (vec![2, 3, 8], 1, vec![3, 1]),
            (vec![2, 3, 8], 2, vec![2, 1, 8]),
            (vec![2, 3, 5], 2, vec![1]),
            (vec![2, 4, 3, 5], 1, vec![4, 3, 5]),
        ] {
            let slack = if dtype == DType::F64 { 1e-13 } else { 0.0 };
            let (scale_of, bias) = (x(dtype, &scale), numbers(dtype, &scale, 5, -1.0, 1.0));
            let layer = LayerNorm { axis, epsilon: 1e-5 };
            let rms = RmsNorm { axis, epsilon: 1e-6 };
            cases.push(Case::new(layer.clone(), &[x(dtype, &shape), scale_of.clone(), bias.clone()]).with_slack(slack));
            cases.push(Case::new(layer.clone(), &[x(dtype, &shape), scale_of.clone()]).with_slack(slack));
            cases.push(Case::new(rms.clone(), &[x(dtype, &shape), scale_of.clone()]).with_slack(slack));
            if shape.len() > 2 {
                let inputs = [x(dtype, &shape), scale_of, bias];
                cases.push(Case::new(layer, &inputs).channels_last().with_slack(slack));
            }
        }
    }
    let long = [x(DType::F32, &[2, 20000]), x(DType::F32, &[20000]), x(DType::F32, &[20000])];
    cases.push(Case::new(LayerNorm { axis: 1, epsilon: 1e-5 }, &long));
    cases.push(Case::new(RmsNorm { axis: 1, epsilon: 1e-5 }, &long[..2]));
    check(&cases, PLAIN);
    check(&cases[..16], WIDE);
    check(&cases[..3], INDIRECT);
}

#[test]
fn group_norm_and_lrn() {
    let mut cases = Vec::new();
    for dtype in FLOATS {
        let slack = if dtype == DType::F64 { 1e-13 } else { 0.0 };
        for (shape, groups) in [
            (vec![2, 8, 4, 4], 2),
            (vec![2, 6, 5, 3], 3),
            (vec![2, 6, 5], 6),
            (vec![3, 4], 1),
            (vec![1, 32, 16, 16], 4),
        ] {
            let op = GroupNorm { groups, epsilon: 1e-5 };
            let channels = shape[1];
            let inputs = [x(dtype, &shape), x(dtype, &[channels]), numbers(dtype, &[channels], 5, -1.0, 1.0)];
            cases.push(Case::new(op.clone(), &inputs).with_slack(slack));
            if shape.len() > 2 {
                cases.push(Case::new(op, &inputs).channels_last().with_slack(slack));
            }
            for size in [1, 2, 3, 20] {
                let op = Lrn { size, alpha: 0.1, beta: 0.75, bias: 1.5 };
                cases.push(Case::new(op.clone(), &inputs[..1]).with_slack(slack));
                if shape.len() > 2 {
                    cases.push(Case::new(op, &inputs[..1]).channels_last().with_slack(slack));
                }
            }
        }
    }
    check(&cases, PLAIN);
    check(&cases[..16], WIDE);
    check(&cases[..3], INDIRECT);
}
