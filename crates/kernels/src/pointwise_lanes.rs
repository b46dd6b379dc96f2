//! The loops of a pointwise program: one instruction over the values of one tile.
//!
//! `PointwiseProgram::new` has checked every lane, so a combination that is not written here cannot arrive.

use crate::math;
use crate::pointwise::{BinaryKernel, CompareKernel, Scalar, UnaryKernel};
use crate::simd::multiversion;

/// The values of a register; `Bool` and `U8` are both bytes.
#[derive(Clone, Copy)]
pub(crate) enum Values<'a> {
    F32(&'a [f32]),
    I32(&'a [i32]),
    I64(&'a [i64]),
    U8(&'a [u8]),
    I8(&'a [i8]),
}

/// Where the values of a register go.
pub(crate) enum ValuesMut<'a> {
    F32(&'a mut [f32]),
    I32(&'a mut [i32]),
    I64(&'a mut [i64]),
    U8(&'a mut [u8]),
    I8(&'a mut [i8]),
}

const CHECKED: &str = "lanes are checked by PointwiseProgram::new";

#[inline(always)]
fn map<S: Copy, D>(src: &[S], dst: &mut [D], function: impl Fn(S) -> D) {
    for (d, &s) in dst.iter_mut().zip(src) {
        *d = function(s);
    }
}

#[inline(always)]
fn zip<S: Copy, D>(a: &[S], b: &[S], dst: &mut [D], function: impl Fn(S, S) -> D) {
    for ((d, &x), &y) in dst.iter_mut().zip(a).zip(b) {
        *d = function(x, y);
    }
}

multiversion! {
    /// A unary function of floats.
    pub(crate) fn unary_f32<F: MulAdd>(func: UnaryKernel, alpha: f32, beta: f32, src: &[f32], dst: &mut [f32]) {
        match func {
            UnaryKernel::Abs => map(src, dst, f32::abs),
            UnaryKernel::Neg => map(src, dst, |x| -x),
            UnaryKernel::Sign => map(src, dst, |x| if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { x }),
            UnaryKernel::Recip => map(src, dst, |x| 1.0 / x),
            UnaryKernel::Sqrt => map(src, dst, f32::sqrt),
            UnaryKernel::Rsqrt => map(src, dst, |x| 1.0 / x.sqrt()),
            UnaryKernel::Exp => map(src, dst, math::exp::<F>),
            UnaryKernel::Expm1 => map(src, dst, math::expm1::<F>),
            UnaryKernel::Log => map(src, dst, math::log::<F>),
            UnaryKernel::Log1p => map(src, dst, math::log1p::<F>),
            UnaryKernel::Sin => math::sin_row::<F>(src, dst),
            UnaryKernel::Cos => math::cos_row::<F>(src, dst),
            UnaryKernel::Tan => map(src, dst, f32::tan),
            UnaryKernel::Asin => map(src, dst, f32::asin),
            UnaryKernel::Acos => map(src, dst, f32::acos),
            UnaryKernel::Atan => map(src, dst, f32::atan),
            UnaryKernel::Sinh => map(src, dst, f32::sinh),
            UnaryKernel::Cosh => map(src, dst, f32::cosh),
            UnaryKernel::Tanh => map(src, dst, math::tanh::<F>),
            // The f32 functions of std cancel near zero and overflow early.
            UnaryKernel::Asinh => map(src, dst, |x| f64::from(x).asinh() as f32),
            UnaryKernel::Acosh => map(src, dst, |x| f64::from(x).acosh() as f32),
            UnaryKernel::Atanh => map(src, dst, |x| f64::from(x).atanh() as f32),
            UnaryKernel::Erf => map(src, dst, math::erf::<F>),
            UnaryKernel::Ceil => map(src, dst, f32::ceil),
            UnaryKernel::Floor => map(src, dst, f32::floor),
            UnaryKernel::Round => map(src, dst, f32::round_ties_even),
            UnaryKernel::Relu => map(src, dst, |x| if x < 0.0 { 0.0 } else { x }),
            UnaryKernel::Leaky => map(src, dst, |x| if x < 0.0 { alpha * x } else { x }),
            UnaryKernel::Elu => map(src, dst, |x| math::elu::<F>(x, alpha)),
            UnaryKernel::Selu => map(src, dst, |x| beta * math::elu::<F>(x, alpha)),
            UnaryKernel::Celu => map(src, dst, |x| if x < 0.0 { alpha * math::expm1::<F>(x / alpha) } else { x }),
            UnaryKernel::GeluErf => map(src, dst, math::gelu::<F>),
            UnaryKernel::GeluTanh => map(src, dst, math::gelu_tanh::<F>),
            UnaryKernel::QuickGelu => map(src, dst, |x| math::quick_gelu::<F>(x, alpha)),
            UnaryKernel::Silu => map(src, dst, math::silu::<F>),
            UnaryKernel::Mish => map(src, dst, math::mish::<F>),
            UnaryKernel::Sigmoid => map(src, dst, math::sigmoid::<F>),
            UnaryKernel::Logistic => map(src, dst, math::logistic::<F>),
            UnaryKernel::HardSigmoid => map(src, dst, |x| math::hard_sigmoid::<F>(x, alpha, beta)),
            UnaryKernel::HardSwish => map(src, dst, math::hard_swish::<F>),
            UnaryKernel::Softplus => map(src, dst, math::softplus::<F>),
            UnaryKernel::Softsign => map(src, dst, |x| x / (1.0 + x.abs())),
            UnaryKernel::Shrink => map(src, dst, |x| {
                let negative = if x < -alpha { x + beta } else { 0.0 };
                if x > alpha { x - beta } else { negative }
            }),
            UnaryKernel::Thresholded => map(src, dst, |x| if x > alpha { x } else { 0.0 }),
            UnaryKernel::Not | UnaryKernel::BitNot | UnaryKernel::IsNan | UnaryKernel::IsInf => {
                unreachable!("{CHECKED}")
            }
        }
    }

    /// A binary function of floats.
    pub(crate) fn binary_f32<F: MulAdd>(func: BinaryKernel, a: &[f32], b: &[f32], dst: &mut [f32]) {
        match func {
            BinaryKernel::Add => zip(a, b, dst, |x, y| x + y),
            BinaryKernel::Sub => zip(a, b, dst, |x, y| x - y),
            BinaryKernel::Mul => zip(a, b, dst, |x, y| x * y),
            BinaryKernel::Div => zip(a, b, dst, |x, y| x / y),
            BinaryKernel::Pow if b.iter().all(|&y| y == 2.0) => map(a, dst, |x| x * x),
            BinaryKernel::Pow => zip(a, b, dst, f32::powf),
            BinaryKernel::Mod => zip(a, b, dst, floor_mod),
            BinaryKernel::Fmod => zip(a, b, dst, |x, y| x % y),
            BinaryKernel::Min => zip(a, b, dst, math::minimum),
            BinaryKernel::Max => zip(a, b, dst, math::maximum),
            BinaryKernel::Prelu => zip(a, b, dst, |x, y| if x < 0.0 { x * y } else { x }),
            BinaryKernel::And | BinaryKernel::Or | BinaryKernel::Xor | BinaryKernel::BitAnd | BinaryKernel::BitOr
            | BinaryKernel::BitXor | BinaryKernel::Shl | BinaryKernel::Shr => unreachable!("{CHECKED}"),
        }
    }

    /// A comparison; gives 0 or 1.
    pub(crate) fn compare<F: MulAdd>(func: CompareKernel, a: Values, b: Values, dst: &mut [u8]) {
        match (a, b) {
            (Values::F32(a), Values::F32(b)) => compare_values(func, a, b, dst),
            (Values::I32(a), Values::I32(b)) => compare_values(func, a, b, dst),
            (Values::I64(a), Values::I64(b)) => compare_values(func, a, b, dst),
            (Values::U8(a), Values::U8(b)) => compare_values(func, a, b, dst),
            (Values::I8(a), Values::I8(b)) => compare_values(func, a, b, dst),
            _ => unreachable!("{CHECKED}"),
        }
    }

    /// `on_true` where the condition is not 0, else `on_false`.
    pub(crate) fn select<F: MulAdd>(condition: &[u8], on_true: Values, on_false: Values, dst: ValuesMut) {
        match (on_true, on_false, dst) {
            (Values::F32(a), Values::F32(b), ValuesMut::F32(dst)) => select_values(condition, a, b, dst),
            (Values::I32(a), Values::I32(b), ValuesMut::I32(dst)) => select_values(condition, a, b, dst),
            (Values::I64(a), Values::I64(b), ValuesMut::I64(dst)) => select_values(condition, a, b, dst),
            (Values::U8(a), Values::U8(b), ValuesMut::U8(dst)) => select_values(condition, a, b, dst),
            (Values::I8(a), Values::I8(b), ValuesMut::I8(dst)) => select_values(condition, a, b, dst),
            _ => unreachable!("{CHECKED}"),
        }
    }

    /// Limits values to a range.
    pub(crate) fn clamp<F: MulAdd>(low: Scalar, high: Scalar, src: Values, dst: ValuesMut) {
        match (src, dst, low, high) {
            (Values::F32(s), ValuesMut::F32(d), Scalar::F32(l), Scalar::F32(h)) => map(s, d, |x| math::clamp(x, l, h)),
            (Values::I32(s), ValuesMut::I32(d), Scalar::I32(l), Scalar::I32(h)) => map(s, d, |x| x.max(l).min(h)),
            (Values::I64(s), ValuesMut::I64(d), Scalar::I64(l), Scalar::I64(h)) => map(s, d, |x| x.max(l).min(h)),
            (Values::U8(s), ValuesMut::U8(d), Scalar::U8(l), Scalar::U8(h)) => map(s, d, |x| x.max(l).min(h)),
            (Values::I8(s), ValuesMut::I8(d), Scalar::I8(l), Scalar::I8(h)) => map(s, d, |x| x.max(l).min(h)),
            _ => unreachable!("{CHECKED}"),
        }
    }

    /// Converts values to the type of `dst`.
    pub(crate) fn cast<F: MulAdd>(src: Values, dst: ValuesMut) {
        match src {
            Values::F32(src) => cast_values!(src, dst),
            Values::I32(src) => cast_values!(src, dst),
            Values::I64(src) => cast_values!(src, dst),
            Values::U8(src) => cast_values!(src, dst),
            Values::I8(src) => cast_values!(src, dst),
        }
    }

    /// 1 where a value is not 0.
    pub(crate) fn cast_bool<F: MulAdd>(src: Values, dst: &mut [u8]) {
        match src {
            Values::F32(src) => map(src, dst, |x| u8::from(x != 0.0)),
            Values::I32(src) => map(src, dst, |x| u8::from(x != 0)),
            Values::I64(src) => map(src, dst, |x| u8::from(x != 0)),
            Values::U8(src) => map(src, dst, |x| u8::from(x != 0)),
            Values::I8(src) => map(src, dst, |x| u8::from(x != 0)),
        }
    }

    /// `IsNan` or `IsInf` of floats.
    pub(crate) fn classify<F: MulAdd>(func: UnaryKernel, alpha: f32, beta: f32, src: &[f32], dst: &mut [u8]) {
        let (counts_positive, counts_negative) = (alpha != 0.0, beta != 0.0);
        match func {
            UnaryKernel::IsNan => map(src, dst, |x| u8::from(x.is_nan())),
            _ => map(src, dst, |x| {
                u8::from((counts_positive & (x == f32::INFINITY)) | (counts_negative & (x == f32::NEG_INFINITY)))
            }),
        }
    }

    /// A function of two truth values.
    pub(crate) fn binary_bool<F: MulAdd>(func: BinaryKernel, a: &[u8], b: &[u8], dst: &mut [u8]) {
        match func {
            BinaryKernel::And => zip(a, b, dst, |x, y| x & y),
            BinaryKernel::Or => zip(a, b, dst, |x, y| x | y),
            _ => zip(a, b, dst, |x, y| x ^ y),
        }
    }

    /// The negation of truth values.
    pub(crate) fn not_bool<F: MulAdd>(src: &[u8], dst: &mut [u8]) {
        map(src, dst, |x| x ^ 1);
    }
}

/// `as` saturates floats, wraps integers and turns NaN into 0: the meaning of `Cast`.
macro_rules! cast_values {
    ($src:ident, $dst:ident) => {
        match $dst {
            ValuesMut::F32(dst) => map($src, dst, |x| x as f32),
            ValuesMut::I32(dst) => map($src, dst, |x| x as i32),
            ValuesMut::I64(dst) => map($src, dst, |x| x as i64),
            ValuesMut::U8(dst) => map($src, dst, |x| x as u8),
            ValuesMut::I8(dst) => map($src, dst, |x| x as i8),
        }
    };
}
use cast_values;

#[inline(always)]
fn compare_values<T: Copy + PartialOrd>(func: CompareKernel, a: &[T], b: &[T], dst: &mut [u8]) {
    match func {
        CompareKernel::Eq => zip(a, b, dst, |x, y| u8::from(x == y)),
        CompareKernel::Lt => zip(a, b, dst, |x, y| u8::from(x < y)),
        CompareKernel::Le => zip(a, b, dst, |x, y| u8::from(x <= y)),
        CompareKernel::Gt => zip(a, b, dst, |x, y| u8::from(x > y)),
        CompareKernel::Ge => zip(a, b, dst, |x, y| u8::from(x >= y)),
    }
}

#[inline(always)]
fn select_values<T: Copy>(condition: &[u8], on_true: &[T], on_false: &[T], dst: &mut [T]) {
    for (((d, &c), &t), &f) in dst.iter_mut().zip(condition).zip(on_true).zip(on_false) {
        *d = if c != 0 { t } else { f };
    }
}

fn floor_mod(x: f32, y: f32) -> f32 {
    let rest = x % y;
    if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }
}

/// The integer functions, once for each type: `unary` and `binary` of that name.
macro_rules! integer_lanes {
    ($($type:ident, $unary:ident, $binary:ident;)*) => {$(
        multiversion! {
            /// A unary function of integers.
            pub(crate) fn $unary<F: MulAdd>(func: UnaryKernel, src: &[$type], dst: &mut [$type]) {
                #[allow(unused_comparisons, reason = "unsigned types are among the lanes")]
                match func {
                    UnaryKernel::Abs => map(src, dst, |x| if x < 0 { (0 as $type).wrapping_sub(x) } else { x }),
                    UnaryKernel::Neg => map(src, dst, |x| (0 as $type).wrapping_sub(x)),
                    UnaryKernel::Sign => map(src, dst, |x| {
                        if x > 0 { 1 } else if x < 0 { (0 as $type).wrapping_sub(1) } else { 0 }
                    }),
                    UnaryKernel::Relu => map(src, dst, |x| x.max(0)),
                    UnaryKernel::BitNot => map(src, dst, |x| !x),
                    _ => unreachable!("{CHECKED}"),
                }
            }

            /// A binary function of integers.
            pub(crate) fn $binary<F: MulAdd>(func: BinaryKernel, a: &[$type], b: &[$type], dst: &mut [$type]) {
                match func {
                    BinaryKernel::Add => zip(a, b, dst, |x, y| x.wrapping_add(y)),
                    BinaryKernel::Sub => zip(a, b, dst, |x, y| x.wrapping_sub(y)),
                    BinaryKernel::Mul => zip(a, b, dst, |x, y| x.wrapping_mul(y)),
                    BinaryKernel::Div => zip(a, b, dst, |x, y| if y == 0 { 0 } else { x.wrapping_div(y) }),
                    BinaryKernel::Pow => zip(a, b, dst, |x, y| power(x as i64, y as i64) as $type),
                    BinaryKernel::Mod => zip(a, b, dst, |x, y| {
                        let rest = if y == 0 { 0 } else { x.wrapping_rem(y) };
                        #[allow(unused_comparisons, reason = "unsigned types are among the lanes")]
                        if rest != 0 && (rest < 0) != (y < 0) { rest.wrapping_add(y) } else { rest }
                    }),
                    BinaryKernel::Fmod => zip(a, b, dst, |x, y| if y == 0 { 0 } else { x.wrapping_rem(y) }),
                    BinaryKernel::Min => zip(a, b, dst, |x, y| x.min(y)),
                    BinaryKernel::Max => zip(a, b, dst, |x, y| x.max(y)),
                    BinaryKernel::BitAnd => zip(a, b, dst, |x, y| x & y),
                    BinaryKernel::BitOr => zip(a, b, dst, |x, y| x | y),
                    BinaryKernel::BitXor => zip(a, b, dst, |x, y| x ^ y),
                    BinaryKernel::Shl => zip(a, b, dst, |x, y| {
                        if (y as u64) < u64::from($type::BITS) { x.wrapping_shl(y as u32) } else { 0 }
                    }),
                    BinaryKernel::Shr => zip(a, b, dst, |x, y| {
                        #[allow(unused_comparisons, reason = "unsigned types are among the lanes")]
                        let sign = if x < 0 { !0 } else { 0 };
                        if (y as u64) < u64::from($type::BITS) { x.wrapping_shr(y as u32) } else { sign }
                    }),
                    BinaryKernel::Prelu | BinaryKernel::And | BinaryKernel::Or | BinaryKernel::Xor => {
                        unreachable!("{CHECKED}")
                    }
                }
            }
        }
    )*};
}

integer_lanes! {
    i32, unary_i32, binary_i32;
    i64, unary_i64, binary_i64;
    u8, unary_u8, binary_u8;
    i8, unary_i8, binary_i8;
}

/// `base` to the `exponent`, wrapping; for a negative exponent what is left of the fraction after truncation.
fn power(base: i64, exponent: i64) -> i64 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut result, mut factor, mut rest) = (1_i64, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            result = result.wrapping_mul(factor);
        }
        factor = factor.wrapping_mul(factor);
        rest >>= 1;
    }
    result
}
