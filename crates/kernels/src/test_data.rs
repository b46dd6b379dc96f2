//! What the tests of several kernels share: a small generator, every supported handle, and exact comparisons.

use crate::isa::{Exec, Isa};
use crate::pool::ThreadPool;

/// A linear congruential generator; the same numbers on every machine.
pub struct Lcg(u64);

impl Lcg {
    pub fn new(seed: u64) -> Lcg {
        Lcg(seed.wrapping_mul(2).wrapping_add(1))
    }

    pub fn next_u32(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// An integer below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.next_u32() as usize % end.max(1)
    }

    /// A float in [-1, 1).
    pub fn float(&mut self) -> f32 {
        (self.next_u32() >> 8) as f32 / 8_388_608.0 - 1.0
    }

    pub fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float() * 4.0).collect()
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next_u32() >> 24) as u8).collect()
    }
}

/// Calls `body` with every supported instruction set and several thread counts.
pub fn for_each_exec(mut body: impl FnMut(&Exec)) {
    for threads in [1, 2, 3] {
        let pool = ThreadPool::new(threads);
        for isa in Isa::ALL {
            if let Some(exec) = Exec::new(isa, &pool) {
                body(&exec);
            }
        }
    }
}

/// The bytes of plain values, as they lie in memory.
pub fn to_bytes<T: Copy>(values: &[T]) -> Vec<u8> {
    // SAFETY: the tests call this with integers and floats, which have no padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), std::mem::size_of_val(values)) }.to_vec()
}

/// Floats out of their bytes.
pub fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// How many units in the last place `actual` is from `expected`; 0 where both are NaN or the same infinity.
pub fn ulp_error(actual: f32, expected: f64) -> f64 {
    let rounded = expected as f32;
    if actual.is_nan() || rounded.is_nan() {
        return if actual.is_nan() && rounded.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if actual.is_infinite() || rounded.is_infinite() {
        return if actual == rounded { 0.0 } else { f64::INFINITY };
    }
    let exponent = (rounded.abs().max(f32::MIN_POSITIVE)).log2().floor();
    (f64::from(actual) - expected).abs() / 2.0_f64.powi(exponent as i32 - 23)
}

/// Asserts |actual - expected| ≤ relative · |expected| + absolute, NaN matching NaN.
pub fn assert_close(actual: &[f32], expected: &[f64], relative: f64, absolute: f64, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}: length");
    for (index, (&a, &e)) in actual.iter().zip(expected).enumerate() {
        if (a.is_nan() && e.is_nan()) || f64::from(a) == e || a == e as f32 {
            continue;
        }
        let difference = (f64::from(a) - e).abs();
        assert!(difference <= relative * e.abs() + absolute, "{what}[{index}]: {a} but expected {e}");
    }
}

/// The error function to about 1e-15, with full relative accuracy of `1 - erf` for large arguments by `erfc`.
pub fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x.abs() > 2.0 {
        return (1.0 - erfc(x.abs())).copysign(x);
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..80 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

/// `1 - erf(x)`.
pub fn erfc(x: f64) -> f64 {
    if x <= 2.0 {
        return 1.0 - erf(x);
    }
    let mut fraction = 0.0;
    for n in (1..120).rev() {
        fraction = f64::from(n) / 2.0 / (x + fraction);
    }
    (-x * x).exp() / (x + fraction) / std::f64::consts::PI.sqrt()
}
