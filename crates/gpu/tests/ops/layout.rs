//! Ops that make or move elements, and random samples.

use precast_ir::op::{
    Bitcast, Broadcast, Concat, DimValue, Iota, Normal, Pad, PadFn, Reshape, Slice, Transpose, Uniform,
};
use precast_tensor::{DType, Dim, Tensor};

use crate::host::{Case, INDIRECT, PLAIN, WIDE, check, numbers};

fn x(dtype: DType, shape: &[usize]) -> Tensor {
    numbers(dtype, shape, 5, 0.0, 2.0)
}

fn dims(sizes: &[i64]) -> Vec<Dim> {
    sizes.iter().map(|&size| Dim::from(size)).collect()
}

#[test]
fn transposes() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::Bool, DType::I64] {
        for (shape, perm) in [
            (vec![2, 3], vec![1, 0]),
            (vec![40, 70], vec![1, 0]),
            (vec![3, 33, 65], vec![0, 2, 1]),
            (vec![33, 3, 40], vec![2, 1, 0]),
            (vec![2, 9, 10, 16], vec![0, 2, 1, 3]),
            (vec![2, 9, 10, 16], vec![0, 2, 3, 1]),
            (vec![2, 9, 10, 16], vec![3, 1, 0, 2]),
            (vec![1, 5, 1, 7], vec![2, 3, 0, 1]),
            (vec![2, 0, 3], vec![1, 0, 2]),
            (vec![], vec![]),
        ] {
            cases.push(Case::new(Transpose { perm: perm.clone() }, &[x(dtype, &shape)]));
            if shape.len() > 2 {
                cases.push(Case::new(Transpose { perm: perm.clone() }, &[x(dtype, &shape)]).channels_last());
                cases.push(Case::new(Transpose { perm }, &[x(dtype, &shape)]).channels_last_values(&[0]));
            }
        }
    }
    check(&cases, PLAIN);
    check(&cases[1..4], WIDE);
    check(&cases[1..4], INDIRECT);
}

#[test]
fn broadcasts_slices_and_views() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::U8] {
        for (shape, to) in [
            (vec![1, 8], vec![3, 8]),
            (vec![3, 1], vec![3, 8]),
            (vec![], vec![2, 2]),
            (vec![4, 1, 3], vec![1, 5, 1]),
            (vec![4, 1, 3], vec![2, 4, 5, 3]),
        ] {
            cases.push(Case::new(Broadcast { shape: dims(&to) }, &[x(dtype, &shape)]));
            cases.push(Case::new(Broadcast { shape: dims(&to) }, &[x(dtype, &shape)]).channels_last());
        }
        let slice = |start: &[i64], step: &[i64], size: &[i64]| Slice {
            start: dims(start),
            step: step.to_vec(),
            size: dims(size),
        };
        for op in [
            slice(&[0, 0, 0], &[1, 1, 1], &[4, 6, 8]),
            slice(&[1, 2, 0], &[1, 1, 1], &[2, 3, 8]),
            slice(&[0, 0, 4], &[1, 1, 1], &[4, 6, 4]),
            slice(&[0, 0, 3], &[1, 1, 1], &[4, 6, 4]),
            slice(&[3, 5, 7], &[-1, -2, -3], &[4, 3, 3]),
            slice(&[0, 0, 1], &[1, 2, 2], &[4, 3, 3]),
            slice(&[2, 1, 5], &[7, -9, 1], &[1, 1, 1]),
            slice(&[0, 0, 0], &[1, 1, 1], &[0, 6, 8]),
        ] {
            cases.push(Case::new(op.clone(), &[x(dtype, &[4, 6, 8])]));
            cases.push(Case::new(op, &[x(dtype, &[4, 6, 8])]).channels_last());
        }
        let reshape = |shape: &[i64]| Reshape { shape: dims(shape) };
        cases.push(Case::new(reshape(&[6, 4]), &[x(dtype, &[2, 3, 4])]));
        cases.push(Case::new(reshape(&[2, 3, 2, 2]), &[x(dtype, &[2, 3, 4])]).channels_last());
        cases.push(Case::new(reshape(&[24]), &[x(dtype, &[2, 3, 4])]).channels_last());
        cases.push(Case::new(reshape(&[2, 3, 4]), &[x(dtype, &[24])]).channels_last());
        cases.push(Case::new(reshape(&[]), &[x(dtype, &[1, 1])]));
    }
    cases.push(Case::new(Bitcast { to: DType::I32 }, &[x(DType::F32, &[3, 5])]));
    check(&cases, PLAIN);
    check(&cases[..6], INDIRECT);
}

#[test]
fn concats() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::I64] {
        for (axis, shapes) in [
            (0, vec![vec![2, 3], vec![1, 3], vec![4, 3]]),
            (1, vec![vec![2, 8, 4], vec![2, 16, 4]]),
            (1, vec![vec![2, 3, 5], vec![2, 0, 5], vec![2, 4, 5]]),
            (2, vec![vec![2, 3, 5], vec![2, 3, 1]]),
            (0, vec![vec![3]]),
            (0, vec![vec![3]; 35]),
        ] {
            let inputs: Vec<Tensor> =
                shapes.iter().enumerate().map(|(at, shape)| numbers(dtype, shape, at as u64, 0.0, 50.0)).collect();
            cases.push(Case::new(Concat { axis }, &inputs));
            if shapes[0].len() > 2 {
                cases.push(Case::new(Concat { axis }, &inputs).channels_last());
                cases.push(Case::new(Concat { axis }, &inputs).channels_last_values(&[0]));
            }
        }
    }
    check(&cases, PLAIN);
    check(&cases[..4], INDIRECT);
}

#[test]
fn pads() {
    let mut cases = Vec::new();
    for &func in PadFn::ALL {
        for dtype in [DType::F32, DType::F16, DType::I8] {
            for (shape, lo, hi) in [
                (vec![5], vec![2], vec![3]),
                (vec![2, 3, 4, 5], vec![0, 0, 1, 2], vec![0, 0, 1, 1]),
                (vec![4, 5], vec![-1, 2], vec![1, -2]),
                (vec![4, 5], vec![9, 0], vec![0, 13]),
                (vec![1, 3], vec![3, 0], vec![2, 0]),
                (vec![4, 5], vec![-5, 0], vec![3, 0]),
            ] {
                let has_nothing = lo[0] == -5;
                if has_nothing && func != PadFn::Constant {
                    continue;
                }
                let op = Pad { func, lo: dims(&lo), hi: dims(&hi) };
                cases.push(Case::new(op.clone(), &[x(dtype, &shape)]));
                if func == PadFn::Constant {
                    cases.push(Case::new(op.clone(), &[x(dtype, &shape), numbers(dtype, &[], 3, 7.0, 9.0)]));
                }
                if shape.len() > 2 {
                    cases.push(Case::new(op, &[x(dtype, &shape)]).channels_last());
                }
            }
        }
    }
    let op = Pad { func: PadFn::Constant, lo: dims(&[1]), hi: dims(&[1]) };
    cases.push(Case::new(op, &[x(DType::F32, &[0])]));
    check(&cases, PLAIN);
    check(&cases[..3], INDIRECT);
}

#[test]
fn made_elements() {
    let mut cases = Vec::new();
    for to in [DType::F32, DType::F16, DType::BF16, DType::F64, DType::I64, DType::I32, DType::U8] {
        for (start, step, length) in [(0, 1, 300), (-5, 3, 7), (16777217, 1000001, 40), (0, 1, 0)] {
            let (start, step, length): (i64, i64, i64) = (start, step, length);
            cases.push(Case::new(Iota { to, start: start.into(), step: step.into(), length: length.into() }, &[]));
        }
    }
    cases.push(Case::new(DimValue { dim: 17i64.into() }, &[]));
    for to in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        for shape in [vec![3, 100], vec![], vec![2, 3, 4]] {
            let (uniform, normal) = (
                Uniform { to, shape: dims(&shape), low: -1.0, high: 3.0, key: -7 },
                Normal { to, shape: dims(&shape), mean: 0.5, deviation: 2.0, key: 1 << 40 },
            );
            cases.push(Case::new(uniform.clone(), &[]).with_slack(1e-15));
            cases.push(Case::new(normal.clone(), &[]).with_slack(if to == DType::F64 { 1e-14 } else { 0.0 }));
            cases.push(Case::new(uniform, &[]).channels_last().with_slack(1e-15));
        }
    }
    check(&cases, PLAIN);
    check(&cases[..6], INDIRECT);
}
