//! Small integers: quantize, dequantize, and 8-bit products and convolutions.

use precast_ir::op::{ConvInt, Dequantize, MatmulInt, Quantize, Unpack};
use precast_tensor::{DType, Dim, Tensor};

use crate::host::{Case, INDIRECT, PLAIN, check, check_none, numbers, of_values};

fn scales(dtype: DType, shape: &[usize]) -> Tensor {
    numbers(dtype, shape, 3, 0.02, 0.5)
}

/// Shapes of x and of the scale, axis and block.
const GRANULARITIES: [(&[usize], &[usize], usize, usize); 6] = [
    (&[3, 16], &[], 0, 0),
    (&[3, 16], &[1], 1, 0),
    (&[3, 16], &[16], 1, 0),
    (&[2, 4, 3, 2], &[4], 1, 0),
    (&[6, 16], &[6, 4], 1, 4),
    (&[6, 16], &[3, 16], 0, 2),
];

#[test]
fn quantizes() {
    let mut cases = Vec::new();
    for to in [DType::I8, DType::U8, DType::I16, DType::U16, DType::I4, DType::U4, DType::I32] {
        for (x_shape, scale_shape, axis, block) in GRANULARITIES {
            for dtype in [DType::F32, DType::F16, DType::I32] {
                let scale = scales(if dtype == DType::F16 { DType::F16 } else { DType::F32 }, scale_shape);
                let precision = scale.dtype();
                let op = Quantize { to, axis, block, saturate: true, precision };
                let x = numbers(dtype, x_shape, 4, -30.0, 30.0);
                let zero_point = numbers(to, scale_shape, 5, 0.0, 7.0);
                cases.push(Case::new(op.clone(), &[x.clone(), scale.clone()]));
                cases.push(Case::new(op.clone(), &[x.clone(), scale.clone(), zero_point.clone()]));
                if x_shape.len() > 3 {
                    cases.push(Case::new(op, &[x, scale, zero_point]).channels_last());
                }
            }
        }
    }
    let op = Quantize { to: DType::I8, axis: 0, block: 0, saturate: true, precision: DType::F32 };
    let special = of_values(DType::F32, &[7], &[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e30, 0.5, 1.5, 2.5]);
    cases.push(Case::new(op, &[special, of_values(DType::F32, &[], &[1.0]), of_values(DType::I8, &[], &[3.0])]));
    check(&cases, PLAIN);
    check(&cases[..3], INDIRECT);
    let op = Quantize { to: DType::I8, axis: 0, block: 2, saturate: true, precision: DType::F32 };
    check_none(&Case::new(op, &[numbers(DType::F32, &[5], 1, 0.0, 1.0), scales(DType::F32, &[3])]));
}

#[test]
fn dequantizes() {
    let mut cases = Vec::new();
    for dtype in [DType::I8, DType::U8, DType::I16, DType::I4, DType::U4, DType::I32] {
        for (x_shape, scale_shape, axis, block) in GRANULARITIES {
            for to in [DType::F32, DType::F16, DType::BF16] {
                let op = Dequantize { to, axis, block };
                let x = numbers(dtype, x_shape, 4, 0.0, 7.0);
                let (scale, zero_point) = (scales(to, scale_shape), numbers(dtype, scale_shape, 5, 0.0, 7.0));
                cases.push(Case::new(op.clone(), &[x.clone(), scale.clone()]));
                cases.push(Case::new(op.clone(), &[x.clone(), scale.clone(), zero_point.clone()]));
                if x_shape.len() > 3 {
                    cases.push(Case::new(op, &[x, scale, zero_point]).channels_last());
                }
            }
        }
    }
    check(&cases, PLAIN);
    check(&cases[..3], INDIRECT);
}

#[test]
fn unpacks() {
    let mut cases = Vec::new();
    for to in [DType::U2, DType::I2, DType::U4, DType::I4, DType::I8] {
        for shape in [&[7][..], &[3, 5], &[2, 3, 4]] {
            cases.push(Case::new(Unpack { to }, &[numbers(DType::U8, shape, 9, 0.0, 256.0)]));
        }
    }
    check(&cases, PLAIN);
    check(&cases[..3], INDIRECT);
}

#[test]
fn products_and_convolutions() {
    let bytes = |dtype: DType, shape: &[usize], seed| {
        let (low, high) = if dtype == DType::I8 { (-128.0, 128.0) } else { (0.0, 256.0) };
        numbers(dtype, shape, seed, low, high)
    };
    let mut cases = Vec::new();
    for (a, b) in [(DType::U8, DType::I8), (DType::I8, DType::I8), (DType::U8, DType::U8)] {
        for (a_shape, b_shape, a_zero, b_zero) in [
            (vec![3, 5], vec![5, 4], vec![], vec![]),
            (vec![3, 5], vec![5, 4], vec![3, 1], vec![4]),
            (vec![2, 3, 5], vec![5, 4], vec![2, 3, 1], vec![1, 4]),
            (vec![2, 1, 3, 5], vec![3, 5, 4], vec![], vec![3, 1, 4]),
            (vec![3, 0], vec![0, 2], vec![], vec![]),
        ] {
            let inputs = [bytes(a, &a_shape, 1), bytes(b, &b_shape, 2), bytes(a, &a_zero, 3), bytes(b, &b_zero, 4)];
            cases.push(Case::new(MatmulInt {}, &inputs));
        }
        for (x_shape, w_shape, groups, w_zero) in [
            (vec![2, 3, 7], vec![4, 3, 3], 1, vec![]),
            (vec![1, 4, 6, 5], vec![6, 2, 3, 2], 2, vec![6]),
            (vec![1, 3, 5, 5], vec![3, 1, 3, 3], 3, vec![1]),
        ] {
            let rank = x_shape.len() - 2;
            let pads = |pad: i64| vec![Dim::from(pad); rank];
            let op =
                ConvInt { stride: vec![2; rank], pad_lo: pads(1), pad_hi: pads(2), dilation: vec![1; rank], groups };
            let inputs = [bytes(a, &x_shape, 1), bytes(b, &w_shape, 2), bytes(a, &[], 3), bytes(b, &w_zero, 4)];
            cases.push(Case::new(op.clone(), &inputs));
            cases.push(Case::new(op, &inputs).channels_last());
        }
    }
    check(&cases, PLAIN);
    check(&cases[..6], INDIRECT);
}
