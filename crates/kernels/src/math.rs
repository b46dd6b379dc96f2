//! Elementary f32 functions without branches, so that a loop over them becomes vector code.
//!
//! Errors are at most 4 units in the last place for `exp`, `log`, `erf` and `tanh`; NaN, infinities, signed zeros and
//! subnormals come out as in IEEE arithmetic. `F` says how to multiply and add; see `simd.rs`. Clamps are written as
//! comparisons because `f32::min` and `f32::max` lose a NaN.

use crate::epilogue::Activation;
use crate::isa::Exec;
use crate::simd::{MulAdd, multiversion};

pub(crate) const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// The high part of ln 2 has 15 significant bits, so that its product with an exponent is exact.
pub(crate) const LN2_HIGH: f32 = 0.693_145_75;
pub(crate) const LN2_LOW: f32 = 1.428_606_8e-6;
/// Adding 1.5 · 2^23 rounds a small float to an integer in its low mantissa bits.
pub(crate) const ROUND_MAGIC: f32 = 12_582_912.0;
/// Above this `exp` is infinite, below the other end it is zero.
const EXP_MAX: f32 = 88.8;
const EXP_MIN: f32 = -104.0;
/// Below this `exp_below_zero` is zero.
pub(crate) const EXP_BELOW_ZERO_MIN: f32 = -86.0;
/// Up to this magnitude `sin` and `cos` reduce their argument themselves.
pub const SIN_ARGUMENT_MAX: f32 = 1_000_000.0;

/// `x` limited to `[low, high]`; a NaN stays a NaN.
#[inline(always)]
pub fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// The smaller of two values; NaN if either is.
#[inline(always)]
pub fn minimum(a: f32, b: f32) -> f32 {
    if a < b || a.is_nan() { a } else { b }
}

/// The larger of two values; NaN if either is.
#[inline(always)]
pub fn maximum(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// What is left of an exponential once a power of two is taken out.
struct ReducedExp {
    /// The exponent of two.
    n: i32,
    /// `x - n · ln 2`.
    r: f32,
    /// `(e^r - 1 - r) / r²`.
    tail: f32,
}

/// Coefficients of `ReducedExp::tail`, highest first. They and those of `erf` come from the answers to
/// stackoverflow.com/questions/35148198, as in other runtimes: where a quantised model rounds the results to integers,
/// the same last bit matters more than a better one.
pub(crate) const EXP_TAIL: [f32; 5] = [1.378_059_4e-3, 8.373_124_5e-3, 4.166_953_6e-2, 1.666_647_2e-1, 4.999_998_5e-1];

#[inline(always)]
fn reduce_exp<F: MulAdd>(x: f32, coefficients: [f32; 5]) -> ReducedExp {
    let shifted = F::mul_add(x, LOG2_E, ROUND_MAGIC);
    let n = shifted - ROUND_MAGIC;
    let r = F::mul_add(n, -LN2_HIGH, x);
    let r = F::mul_add(n, -LN2_LOW, r);
    let [first, rest @ ..] = coefficients;
    let tail = rest.into_iter().fold(first, |tail, coefficient| F::mul_add(tail, r, coefficient));
    ReducedExp { n: shifted.to_bits().wrapping_sub(ROUND_MAGIC.to_bits()) as i32, r, tail }
}

/// `2^n` as two factors, since `n` may lie outside the exponents of a normal float.
#[inline(always)]
fn power_of_two(n: i32) -> (f32, f32) {
    let half = n >> 1;
    let one = |n: i32| f32::from_bits(((n.wrapping_add(127)) as u32) << 23);
    (one(half), one(n.wrapping_sub(half)))
}

/// e to the `x`.
#[inline(always)]
pub fn exp<F: MulAdd>(x: f32) -> f32 {
    let ReducedExp { n, r, tail } = reduce_exp::<F>(clamp(x, EXP_MIN, EXP_MAX), EXP_TAIL);
    let (first, second) = power_of_two(n);
    F::mul_add(F::mul_add(tail, r, 1.0), r, 1.0) * first * second
}

/// e to the `x` of no number above zero; 0 below -86, where `exp` goes on to the least floats. One factor does for the power of
/// two then.
#[inline(always)]
pub fn exp_below_zero<F: MulAdd>(x: f32) -> f32 {
    let ReducedExp { n, r, tail } = reduce_exp::<F>(x, EXP_TAIL);
    let power = f32::from_bits((n.wrapping_add(127) as u32) << 23);
    let value = F::mul_add(F::mul_add(tail, r, 1.0), r, 1.0) * power;
    if x < EXP_BELOW_ZERO_MIN { 0.0 } else { value }
}

/// `e^x - 1`, accurate near zero.
#[inline(always)]
pub fn expm1<F: MulAdd>(x: f32) -> f32 {
    // Below -20 the result is -1; the clamp also keeps 1/second finite.
    let ReducedExp { n, r, tail } = reduce_exp::<F>(clamp(x, -20.0, EXP_MAX), EXP_TAIL);
    let p = F::mul_add(tail, r * r, r);
    let (first, second) = power_of_two(n);
    let one_over_second = f32::from_bits(254_u32.wrapping_shl(23).wrapping_sub(second.to_bits()));
    let sum = F::mul_add(first, p, first - one_over_second) * second;
    // The reduction loses the sign of zero.
    if n == 0 { p.copysign(x) } else { sum }
}

/// The natural logarithm.
#[inline(always)]
pub fn log<F: MulAdd>(x: f32) -> f32 {
    let is_subnormal = x < f32::MIN_POSITIVE;
    let scaled = if is_subnormal { x * 8_388_608.0 } else { x };
    let exponent_bias = if is_subnormal { 23 } else { 0 };
    let sqrt_half_bits = std::f32::consts::FRAC_1_SQRT_2.to_bits();
    let offset = (scaled.to_bits() as i32).wrapping_sub(sqrt_half_bits as i32);
    let exponent = (offset >> 23).wrapping_sub(exponent_bias);
    let mantissa = f32::from_bits((offset & 0x007f_ffff).wrapping_add(sqrt_half_bits as i32) as u32);
    let f = mantissa - 1.0;
    let e = exponent as f32;
    let square = f * f;
    let p = F::mul_add(7.037_683_6e-2, f, -1.151_461e-1);
    let p = F::mul_add(p, f, 1.167_699_9e-1);
    let p = F::mul_add(p, f, -1.242_014_1e-1);
    let p = F::mul_add(p, f, 1.424_932_3e-1);
    let p = F::mul_add(p, f, -1.666_805_8e-1);
    let p = F::mul_add(p, f, 2.000_071_5e-1);
    let p = F::mul_add(p, f, -2.499_999_4e-1);
    let p = F::mul_add(p, f, 3.333_333e-1);
    let y = f * square * p;
    let y = F::mul_add(e, LN2_LOW, y);
    let y = F::mul_add(square, -0.5, y);
    let finite = F::mul_add(e, LN2_HIGH, f + y);
    let positive = if x < f32::INFINITY { finite } else { x };
    let result = if x == 0.0 { f32::NEG_INFINITY } else { positive };
    if x < 0.0 { f32::NAN } else { result }
}

/// `log(1 + x)`, accurate near zero.
#[inline(always)]
pub fn log1p<F: MulAdd>(x: f32) -> f32 {
    let u = 1.0 + x;
    let rounding = (x - (u - 1.0)) / u;
    let correction = if u > 0.0 && u < f32::INFINITY { rounding } else { 0.0 };
    let result = log::<F>(u) + correction;
    if u == 1.0 { x } else { result }
}

/// The quadrant of `x` and its distance from the middle of that quadrant, for |x| ≤ `SIN_ARGUMENT_MAX`.
#[inline(always)]
fn reduce_angle(x: f32) -> (i32, f32) {
    /// 1.5 · 2^52: rounds a double to an integer in its low bits.
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    /// The first 33 bits of π/2: exact when multiplied by a quadrant of up to 20 bits.
    const HALF_PI_HIGH: f64 = 1.570_796_326_734_125_6;
    const HALF_PI_LOW: f64 = 6.077_100_506_506_192e-11;
    let x = f64::from(x);
    let shifted = x * std::f64::consts::FRAC_2_PI + MAGIC;
    let n = shifted - MAGIC;
    let r = (x - n * HALF_PI_HIGH) - n * HALF_PI_LOW;
    (shifted.to_bits() as i32, r as f32)
}

/// Sine (`shift` 0) or cosine (`shift` 1).
#[inline(always)]
fn sin_shifted(x: f32, shift: i32) -> f32 {
    let (quadrant, r) = reduce_angle(x);
    let quadrant = quadrant.wrapping_add(shift);
    let z = r * r;
    // Two roundings a step, not one: these are Eigen's polynomials, whose bits other runtimes have.
    let s = (-1.959_234e-4 * z + 8.332_687e-3) * z - 1.666_666_2e-1;
    let s = (s * z * r + r).copysign(r);
    let c = ((2.437_226_6e-5 * z - 1.388_652e-3) * z + 4.166_662e-2) * z - 0.5;
    let c = c * z + 1.0;
    let value = if quadrant & 1 == 0 { s } else { c };
    f32::from_bits(value.to_bits() ^ (((quadrant & 2) as u32) << 30))
}

/// Sine of |x| ≤ `SIN_ARGUMENT_MAX`; anything beyond is for `sin_row`.
#[inline(always)]
pub fn sin(x: f32) -> f32 {
    sin_shifted(x, 0)
}

/// Cosine of |x| ≤ `SIN_ARGUMENT_MAX`; anything beyond is for `cos_row`.
#[inline(always)]
pub fn cos(x: f32) -> f32 {
    sin_shifted(x, 1)
}

/// Sine of any values: those out of the reach of `sin` are done again one by one.
#[inline(always)]
pub fn sin_row<F: MulAdd>(source: &[f32], target: &mut [f32]) {
    for (y, &x) in target.iter_mut().zip(source) {
        *y = sin(x);
    }
    correct_far(source, target, |x| f64::from(x).sin() as f32);
}

/// Cosine of any values: those out of the reach of `cos` are done again one by one.
#[inline(always)]
pub fn cos_row<F: MulAdd>(source: &[f32], target: &mut [f32]) {
    for (y, &x) in target.iter_mut().zip(source) {
        *y = cos(x);
    }
    correct_far(source, target, |x| f64::from(x).cos() as f32);
}

#[inline(always)]
fn correct_far(source: &[f32], target: &mut [f32], function: impl Fn(f32) -> f32) {
    // A count, not `any`, because a loop with an exit is not vectorised.
    let is_far = |x: f32| x.abs() > SIN_ARGUMENT_MAX || x.is_nan();
    let far_count: u32 = source.iter().map(|&x| u32::from(is_far(x))).sum();
    if far_count == 0 {
        return;
    }
    for (y, &x) in target.iter_mut().zip(source) {
        if is_far(x) {
            *y = function(x);
        }
    }
}

/// Hyperbolic tangent.
#[inline(always)]
pub fn tanh<F: MulAdd>(x: f32) -> f32 {
    // From 9.02 on the nearest float is 1.
    let twice = clamp(2.0 * x.abs(), 0.0, 20.0);
    let t = expm1::<F>(twice);
    (t / (t + 2.0)).copysign(x)
}

/// `1 / (1 + e^-x)`, with full relative accuracy on the negative side.
#[inline(always)]
pub fn sigmoid<F: MulAdd>(x: f32) -> f32 {
    let e = exp::<F>(-x.abs());
    let numerator = if x < 0.0 { e } else { 1.0 };
    numerator / (1.0 + e)
}

/// `1 / (1 + e^-x)` within 2^-22, by Eigen's quotient of polynomials: without an exponential, and with the bits of other
/// runtimes, but below zero without relative accuracy.
#[inline(always)]
pub fn logistic<F: MulAdd>(x: f32) -> f32 {
    // Beyond these the nearest float is 0 or 1, give or take that error.
    let t = clamp(x, -18.0, 18.0);
    let s = t * t;
    let p = F::mul_add(s, 4.370_31e-11, 1.156_273_2e-7);
    let p = F::mul_add(p, s, 6.085_749e-5);
    let p = F::mul_add(p, s, 8.513_771e-3);
    let p = F::mul_add(p, s, 2.482_879_5e-1) * t;
    let q = F::mul_add(s, 6.102_473_7e-13, 5.761_021_4e-9);
    let q = F::mul_add(q, s, 6.291_068e-6);
    let q = F::mul_add(q, s, 1.701_988_2e-3);
    let q = F::mul_add(q, s, 1.168_176_5e-1);
    let q = F::mul_add(q, s, 9.931_519e-1);
    clamp(p / q + 0.5, 0.0, 1.0)
}

/// `x · sigmoid(x)`.
#[inline(always)]
pub fn silu<F: MulAdd>(x: f32) -> f32 {
    // NaN at -∞, as the product that it replaces; likewise the other functions that begin with x.
    x * sigmoid::<F>(x)
}

/// The error function.
#[inline(always)]
pub fn erf<F: MulAdd>(x: f32) -> f32 {
    /// Where the odd polynomial hands over to the exponential of one.
    const SMALL_MAX: f32 = 0.921_875;
    /// From here on the nearest float is 1.
    const ONE_MIN: f32 = 3.925;
    /// The exponential of that answer, not the later one of `exp`.
    const EXP_TAIL: [f32; 5] = [1.383_198_1e-3, 8.375_5e-3, 4.166_895e-2, 1.666_644_7e-1, 4.999_998_5e-1];
    let t = clamp(x.abs(), 0.0, ONE_MIN);
    let s = t * t;
    let p = F::mul_add(-5.991_049_7e-4, s, 4.993_396e-3);
    let p = F::mul_add(p, s, -2.676_673_4e-2);
    let p = F::mul_add(p, s, 1.128_180_25e-1);
    let p = F::mul_add(p, s, -3.761_248_6e-1);
    let p = F::mul_add(p, s, 1.283_791_5e-1);
    let small = F::mul_add(p, t, t);
    let q = F::mul_add(1.729_489_3e-5, t, -3.832_086_8e-4);
    let q = F::mul_add(q, t, 3.883_934_3e-3);
    let q = F::mul_add(q, t, -2.425_456e-2);
    let q = F::mul_add(q, t, 1.067_778_5e-1);
    let q = F::mul_add(q, t, 6.348_467e-1);
    let q = F::mul_add(q, t, 1.287_175_1e-1);
    let q = F::mul_add(q, t, t);
    let ReducedExp { n, r, tail } = reduce_exp::<F>(-q, EXP_TAIL);
    // q is below 17, so one normal power of two is enough.
    let power = f32::from_bits((n.wrapping_add(127) as u32) << 23);
    let large = 1.0 - F::mul_add(F::mul_add(tail, r, 1.0), r, 1.0) * power;
    (if t > SMALL_MAX { large } else { small }).copysign(x)
}

/// `x · Φ(x)` with the normal distribution function Φ: the exact GELU, with full relative accuracy on both sides.
#[inline(always)]
pub fn gelu<F: MulAdd>(x: f32) -> f32 {
    // 1 - Φ(|x|) = s · P(s) · e^(-x²/2) with s = 1 / (1 + 0.35 |x|); P fitted to 4e-8 on |x| ≤ 14.5, where it is 0.
    let a = clamp(x.abs(), 0.0, 20.0);
    let s = 1.0 / F::mul_add(a, 0.35, 1.0);
    let p = F::mul_add(-2.952_965_6e-2, s, 1.457_834_4e-1);
    let p = F::mul_add(p, s, -2.593_279_7e-1);
    let p = F::mul_add(p, s, 1.631_355e-1);
    let p = F::mul_add(p, s, -2.570_860_5e-2);
    let p = F::mul_add(p, s, 1.065_479_1e-1);
    let p = F::mul_add(p, s, 1.195_861_8e-1);
    let p = F::mul_add(p, s, 1.398_934_5e-1);
    let p = F::mul_add(p, s, 1.396_197_4e-1);
    let tail = p * s * exp::<F>(-0.5 * a * a);
    let phi = if x < 0.0 { tail } else { 1.0 - tail };
    x * phi
}

/// The GELU approximation with tanh.
#[inline(always)]
pub fn gelu_tanh<F: MulAdd>(x: f32) -> f32 {
    // (1 + tanh u) / 2 = sigmoid(2u), which does not cancel on the negative side.
    let u = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::SQRT_2 * x * F::mul_add(0.044_715 * x, x, 1.0);
    x * sigmoid::<F>(u)
}

/// `x · sigmoid(alpha · x)`.
#[inline(always)]
pub fn quick_gelu<F: MulAdd>(x: f32, alpha: f32) -> f32 {
    x * sigmoid::<F>(alpha * x)
}

/// `log(1 + e^x)`.
#[inline(always)]
pub fn softplus<F: MulAdd>(x: f32) -> f32 {
    let positive = if x > 0.0 { x } else { 0.0 };
    positive + log1p::<F>(exp::<F>(-x.abs()))
}

/// `x · tanh(softplus(x))`.
#[inline(always)]
pub fn mish<F: MulAdd>(x: f32) -> f32 {
    // tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2); beyond 20 that is 1.
    let e = exp::<F>(clamp(x, EXP_MIN, 20.0));
    let n = e * (e + 2.0);
    x * (n / (n + 2.0))
}

/// `alpha (e^x - 1)` below zero, `x` above.
#[inline(always)]
pub fn elu<F: MulAdd>(x: f32, alpha: f32) -> f32 {
    let negative = alpha * expm1::<F>(x);
    if x < 0.0 { negative } else { x }
}

/// `clamp(alpha · x + beta, 0, 1)`.
#[inline(always)]
pub fn hard_sigmoid<F: MulAdd>(x: f32, alpha: f32, beta: f32) -> f32 {
    clamp(F::mul_add(alpha, x, beta), 0.0, 1.0)
}

/// `x · clamp(x / 6 + 1/2, 0, 1)`.
#[inline(always)]
pub fn hard_swish<F: MulAdd>(x: f32) -> f32 {
    x * hard_sigmoid::<F>(x, 1.0 / 6.0, 0.5)
}

/// Applies an activation to every element of a row.
pub fn activate_row(exec: &Exec, activation: Activation, row: &mut [f32]) {
    activate(exec.isa(), activation, row);
}

multiversion! {
    /// Applies an activation to every element of a row; `isa` comes from an `Exec`.
    pub(crate) fn activate<F: MulAdd>(activation: Activation, row: &mut [f32]) {
        match activation {
            Activation::None => {}
            Activation::Relu => map(row, |x| if x < 0.0 { 0.0 } else { x }),
            Activation::Clamp { lo, hi } => map(row, |x| clamp(x, lo, hi)),
            Activation::LeakyRelu { alpha } => map(row, |x| if x < 0.0 { alpha * x } else { x }),
            Activation::Sigmoid => map(row, sigmoid::<F>),
            Activation::Silu => map(row, silu::<F>),
            Activation::HardSwish => map(row, hard_swish::<F>),
            Activation::HardSigmoid { alpha, beta } => map(row, |x| hard_sigmoid::<F>(x, alpha, beta)),
            Activation::Gelu => map(row, gelu::<F>),
            Activation::GeluTanh => map(row, gelu_tanh::<F>),
            Activation::Tanh => map(row, tanh::<F>),
        }
    }
}

#[inline(always)]
fn map(row: &mut [f32], function: impl Fn(f32) -> f32) {
    for x in row {
        *x = function(*x);
    }
}

#[cfg(test)]
#[path = "math_tests.rs"]
mod tests;
