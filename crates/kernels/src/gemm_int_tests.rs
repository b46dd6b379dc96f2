//! 8-bit products against loops in i64, wrapped to i32.

use super::*;
use crate::test_data::{Lcg, for_each_exec};

fn value(byte: u8, is_signed: bool) -> i64 {
    if is_signed { i64::from(byte as i8) } else { i64::from(byte) }
}

struct Case {
    m: usize,
    n: usize,
    k: usize,
    a: Vec<u8>,
    b: Vec<u8>,
    is_a_signed: bool,
    is_b_signed: bool,
    a_zeros: Vec<i32>,
    b_zeros: Vec<i32>,
}

impl Case {
    fn random(m: usize, n: usize, k: usize, signs: usize, lcg: &mut Lcg) -> Case {
        let (is_a_signed, is_b_signed) = (signs & 1 == 1, signs & 2 == 2);
        let zero = |lcg: &mut Lcg, is_signed| lcg.below(256) as i32 - if is_signed { 128 } else { 0 };
        Case {
            m,
            n,
            k,
            a: lcg.bytes(m * k),
            b: lcg.bytes(k * n),
            is_a_signed,
            is_b_signed,
            a_zeros: (0..m).map(|_| zero(lcg, is_a_signed)).collect(),
            b_zeros: (0..n).map(|_| zero(lcg, is_b_signed)).collect(),
        }
    }

    fn expected(&self, a_zero: impl Fn(usize) -> i32, b_zero: impl Fn(usize) -> i32) -> Vec<i32> {
        let mut c = Vec::new();
        for i in 0..self.m {
            for j in 0..self.n {
                let term = |l: usize| {
                    let a = value(self.a[i * self.k + l], self.is_a_signed) - i64::from(a_zero(i));
                    let b = value(self.b[l * self.n + j], self.is_b_signed) - i64::from(b_zero(j));
                    a * b
                };
                c.push((0..self.k).map(term).sum::<i64>() as i32);
            }
        }
        c
    }

    fn gemm<'a>(&'a self, packed_b: &'a [u8], a_zero: ZeroPoints<'a>, b_zero: ZeroPoints<'a>) -> GemmInt<'a> {
        GemmInt {
            m: self.m,
            n: self.n,
            k: self.k,
            a: &self.a,
            is_a_signed: self.is_a_signed,
            a_zero,
            packed_b,
            is_b_signed: self.is_b_signed,
            b_zero,
        }
    }
}

const SHAPES: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (1, 100, 7),
    (3, 5, 4),
    (5, 16, 64),
    (6, 64, 31),
    (7, 65, 33),
    (13, 50, 3),
    (100, 130, 65),
    (97, 33, 300),
    (0, 5, 3),
    (5, 0, 3),
    (4, 3, 0),
];

#[test]
fn products_equal_plain_loops() {
    let mut lcg = Lcg::new(31);
    for (m, n, k) in SHAPES {
        for signs in 0..4 {
            let case = Case::random(m, n, k, signs, &mut lcg);
            let packed = pack_b_int(k, n, &case.b, case.is_b_signed, false);
            let each = case.expected(|i| case.a_zeros[i], |j| case.b_zeros[j]);
            let scalar = case.expected(|_| 3, |_| -5);
            let none = case.expected(|_| 0, |_| 0);
            for_each_exec(|exec| {
                let c_stride = n + 3;
                let mut scratch = vec![0x55; gemm_int_scratch_len(m, k, case.is_a_signed)];
                for (expected, a_zero, b_zero) in [
                    (&each, ZeroPoints::Each(&case.a_zeros), ZeroPoints::Each(&case.b_zeros)),
                    (&scalar, ZeroPoints::Scalar(3), ZeroPoints::Scalar(-5)),
                    (&none, ZeroPoints::Scalar(0), ZeroPoints::Scalar(0)),
                ] {
                    let mut c = vec![77; m * c_stride];
                    gemm_int(exec, &case.gemm(&packed, a_zero, b_zero), &mut c, c_stride, &mut scratch);
                    let dense: Vec<i32> = c.chunks(c_stride).flat_map(|row| row[..n].to_vec()).collect();
                    assert_eq!(&dense, expected, "{m}x{n}x{k} signs {signs} on {:?}", exec.isa());
                    assert!(c.chunks(c_stride).all(|row| row[n..] == [77; 3]));
                }
            });
        }
    }
}

#[test]
fn extreme_bytes_do_not_saturate() {
    let (m, n, k) = (7, 20, 1030);
    for (a, b) in [(255_u8, 127_u8), (255, 128), (0, 128)] {
        let case = Case {
            a: vec![a; m * k],
            b: vec![b; k * n],
            is_b_signed: true,
            ..Case::random(m, n, k, 0, &mut Lcg::new(1))
        };
        let packed = pack_b_int(k, n, &case.b, true, false);
        let expected = case.expected(|_| 0, |_| 0);
        for_each_exec(|exec| {
            let mut c = vec![0; m * n];
            let mut scratch = vec![0; gemm_int_scratch_len(m, k, false)];
            let zero = ZeroPoints::Scalar(0);
            gemm_int(exec, &case.gemm(&packed, zero, zero), &mut c, n, &mut scratch);
            assert_eq!(c, expected);
        });
    }
}

#[test]
fn every_way_to_pack_gives_the_same_bytes() {
    let mut lcg = Lcg::new(32);
    for (_, n, k) in SHAPES {
        for is_signed in [false, true] {
            let b = lcg.bytes(k * n);
            let transposed: Vec<u8> = (0..n * k).map(|at| b[at % k * n + at / k]).collect();
            let packed = pack_b_int(k, n, &b, is_signed, false);
            assert_eq!(pack_b_int(k, n, &transposed, is_signed, true), packed);
            for_each_exec(|exec| {
                let mut into = vec![0xaa; packed_b_int_len(k, n)];
                pack_b_int_into(exec, k, n, &b, is_signed, false, &mut into);
                assert_eq!(into, packed);
            });
        }
    }
}

#[test]
fn scaled_products_are_floats_of_the_product() {
    let mut lcg = Lcg::new(33);
    for (m, n, k) in SHAPES {
        let case = Case::random(m, n, k, 2, &mut lcg);
        let packed = pack_b_int(k, n, &case.b, true, false);
        let (scales, bias) = (lcg.floats(n), lcg.floats(n));
        let product = case.expected(|_| 128, |_| 0);
        let expected: Vec<f32> =
            (product.iter().enumerate()).map(|(at, &x)| (x as f32 * scales[at % n] + bias[at % n]).max(0.0)).collect();
        let plain: Vec<f32> = product.iter().map(|&x| x as f32 * 0.25).collect();
        for_each_exec(|exec| {
            let gemm = case.gemm(&packed, ZeroPoints::Scalar(128), ZeroPoints::Scalar(0));
            let mut scratch = vec![0; gemm_int_scratch_len(m, k, false)];
            let mut c = vec![0.0; m * n];
            let scale = Scales::Each(&scales);
            gemm_int_scaled(exec, &gemm, scale, Some(&bias), Activation::Relu, &mut c, n, &mut scratch);
            assert_eq!(c, expected);
            gemm_int_scaled(exec, &gemm, Scales::Scalar(0.25), None, Activation::None, &mut c, n, &mut scratch);
            assert_eq!(c, plain);
        });
    }
}

#[test]
fn rows_packed_in_parts_are_packed_all_the_same() {
    let mut lcg = Lcg::new(11);
    for (k, n) in [(1, 1), (9, 17), (16, 40), (31, 5)] {
        let b = lcg.bytes(k * n);
        for is_signed in [true, false] {
            let mut packed = vec![0; packed_b_int_len(k, n)];
            for (part, rows) in b.chunks(2 * ROWS_PER_PART * n).enumerate() {
                pack_rows_b_int(k, n, part * 2 * ROWS_PER_PART, rows, is_signed, &mut packed);
            }
            assert_eq!(packed, pack_b_int(k, n, &b, is_signed, false), "{k}x{n}");
        }
    }
}
