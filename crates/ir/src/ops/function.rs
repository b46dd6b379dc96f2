//! The functions that `unary` and `binary` apply, on one element at a time. Floats are computed in f64, with `libm` so
//! that the bytes are the same on every machine; integers in i128, where wrapping at the end wraps everything between.

use crate::op::{BinaryFn, CompareFn, UnaryFn};

/// A function of one float; bools of `isnan` and `isinf` are 0 and 1. `None`: floats have no such function.
pub fn unary_float(func: UnaryFn, x: f64, alpha: f64, beta: f64) -> Option<f64> {
    Some(match func {
        UnaryFn::Abs => x.abs(),
        UnaryFn::Neg => -x,
        UnaryFn::Sign => sign(x),
        UnaryFn::Recip => 1.0 / x,
        UnaryFn::Sqrt => x.sqrt(),
        UnaryFn::Rsqrt => 1.0 / x.sqrt(),
        UnaryFn::Exp => libm::exp(x),
        UnaryFn::Expm1 => libm::expm1(x),
        UnaryFn::Log => libm::log(x),
        UnaryFn::Log1p => libm::log1p(x),
        UnaryFn::Sin => libm::sin(x),
        UnaryFn::Cos => libm::cos(x),
        UnaryFn::Tan => libm::tan(x),
        UnaryFn::Asin => libm::asin(x),
        UnaryFn::Acos => libm::acos(x),
        UnaryFn::Atan => libm::atan(x),
        UnaryFn::Sinh => libm::sinh(x),
        UnaryFn::Cosh => libm::cosh(x),
        UnaryFn::Tanh => libm::tanh(x),
        UnaryFn::Asinh => libm::asinh(x),
        // libm gives a number for some x below 1.
        UnaryFn::Acosh if x < 1.0 => f64::NAN,
        UnaryFn::Acosh => libm::acosh(x),
        UnaryFn::Atanh => libm::atanh(x),
        UnaryFn::Erf => libm::erf(x),
        UnaryFn::Ceil => x.ceil(),
        UnaryFn::Floor => x.floor(),
        UnaryFn::Round => x.round_ties_even(),
        UnaryFn::IsNan => f64::from(x.is_nan()),
        UnaryFn::IsInf => f64::from((x == f64::INFINITY && alpha != 0.0) || (x == f64::NEG_INFINITY && beta != 0.0)),
        UnaryFn::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        UnaryFn::Leaky => {
            if x < 0.0 {
                alpha * x
            } else {
                x
            }
        }
        UnaryFn::Elu => {
            if x < 0.0 {
                alpha * libm::expm1(x)
            } else {
                x
            }
        }
        UnaryFn::Selu => beta * if x < 0.0 { alpha * libm::expm1(x) } else { x },
        UnaryFn::Celu => {
            if x < 0.0 {
                alpha * libm::expm1(x / alpha)
            } else {
                x
            }
        }
        // erfc keeps the digits that 1 + erf loses for negative x.
        UnaryFn::GeluErf => 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
        UnaryFn::GeluTanh => gelu_tanh(x),
        UnaryFn::QuickGelu | UnaryFn::Silu => x * sigmoid(alpha * x),
        UnaryFn::Mish => x * libm::tanh(softplus(x)),
        UnaryFn::Sigmoid | UnaryFn::Logistic => sigmoid(x),
        UnaryFn::HardSigmoid => clamp_float(alpha * x + beta, 0.0, 1.0),
        UnaryFn::HardSwish => x * clamp_float(x / 6.0 + 0.5, 0.0, 1.0),
        UnaryFn::Softplus => softplus(x),
        UnaryFn::Softsign => x / (1.0 + x.abs()),
        UnaryFn::Shrink => shrink(x, alpha, beta),
        UnaryFn::Thresholded => {
            if x > alpha {
                x
            } else {
                0.0
            }
        }
        UnaryFn::Affine => alpha * x + beta,
        UnaryFn::ScaledTanh => alpha * libm::tanh(beta * x),
        UnaryFn::Not | UnaryFn::BitNot => return None,
    })
}

/// A function of one integer. `None`: integers have no such function.
pub fn unary_int(func: UnaryFn, x: i128, alpha: f64, beta: f64) -> Option<i128> {
    Some(match func {
        UnaryFn::Abs => x.abs(),
        UnaryFn::Neg => -x,
        UnaryFn::Sign => x.signum(),
        UnaryFn::BitNot => !x,
        UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::Round => x,
        UnaryFn::Relu => x.max(0),
        UnaryFn::Shrink => shrink_int(x, alpha, beta),
        UnaryFn::Recip
        | UnaryFn::Sqrt
        | UnaryFn::Rsqrt
        | UnaryFn::Exp
        | UnaryFn::Expm1
        | UnaryFn::Log
        | UnaryFn::Log1p
        | UnaryFn::Sin
        | UnaryFn::Cos
        | UnaryFn::Tan
        | UnaryFn::Asin
        | UnaryFn::Acos
        | UnaryFn::Atan
        | UnaryFn::Sinh
        | UnaryFn::Cosh
        | UnaryFn::Tanh
        | UnaryFn::Asinh
        | UnaryFn::Acosh
        | UnaryFn::Atanh
        | UnaryFn::Erf
        | UnaryFn::Not
        | UnaryFn::IsNan
        | UnaryFn::IsInf
        | UnaryFn::Leaky
        | UnaryFn::Elu
        | UnaryFn::Selu
        | UnaryFn::Celu
        | UnaryFn::GeluErf
        | UnaryFn::GeluTanh
        | UnaryFn::QuickGelu
        | UnaryFn::Silu
        | UnaryFn::Mish
        | UnaryFn::Sigmoid
        | UnaryFn::Logistic
        | UnaryFn::HardSigmoid
        | UnaryFn::HardSwish
        | UnaryFn::Softplus
        | UnaryFn::Softsign
        | UnaryFn::Thresholded
        | UnaryFn::Affine
        | UnaryFn::ScaledTanh => return None,
    })
}

/// A function of two floats. `None`: floats have no such function.
pub fn binary_float(func: BinaryFn, a: f64, b: f64) -> Option<f64> {
    Some(match func {
        BinaryFn::Add => a + b,
        BinaryFn::Sub => a - b,
        BinaryFn::Mul => a * b,
        BinaryFn::Div => a / b,
        BinaryFn::Pow => libm::pow(a, b),
        BinaryFn::Mod => modulo_float(a, b),
        BinaryFn::Fmod => a % b,
        BinaryFn::Min => min_float(a, b),
        BinaryFn::Max => max_float(a, b),
        BinaryFn::Prelu => {
            if a < 0.0 {
                a * b
            } else {
                a
            }
        }
        BinaryFn::And
        | BinaryFn::Or
        | BinaryFn::Xor
        | BinaryFn::BitAnd
        | BinaryFn::BitOr
        | BinaryFn::BitXor
        | BinaryFn::Shl
        | BinaryFn::Shr => return None,
    })
}

/// A function of two integers of `bits` bits. `None`: integers have no such function.
pub fn binary_int(func: BinaryFn, a: i128, b: i128, bits: u32) -> Option<i128> {
    let shift = u32::try_from(b).ok().filter(|&shift| shift < bits);
    Some(match func {
        BinaryFn::Add => a.wrapping_add(b),
        BinaryFn::Sub => a.wrapping_sub(b),
        BinaryFn::Mul => a.wrapping_mul(b),
        BinaryFn::Div => a.checked_div(b).unwrap_or(0),
        BinaryFn::Pow => pow_int(a, b),
        BinaryFn::Mod => modulo_int(a, b),
        BinaryFn::Fmod => a.checked_rem(b).unwrap_or(0),
        BinaryFn::Min => a.min(b),
        BinaryFn::Max => a.max(b),
        BinaryFn::BitAnd => a & b,
        BinaryFn::BitOr => a | b,
        BinaryFn::BitXor => a ^ b,
        // A shift by the width or more, or by a negative count, moves every bit out.
        BinaryFn::Shl => shift.map_or(0, |shift| a << shift),
        BinaryFn::Shr => shift.map_or(if a < 0 { -1 } else { 0 }, |shift| a >> shift),
        BinaryFn::Prelu => {
            if a < 0 {
                a.wrapping_mul(b)
            } else {
                a
            }
        }
        BinaryFn::And | BinaryFn::Or | BinaryFn::Xor => return None,
    })
}

/// A function of two bools. `None`: bools have no such function.
pub fn binary_bool(func: BinaryFn, a: bool, b: bool) -> Option<bool> {
    match func {
        BinaryFn::And => Some(a & b),
        BinaryFn::Or => Some(a | b),
        BinaryFn::Xor => Some(a ^ b),
        BinaryFn::Add
        | BinaryFn::Sub
        | BinaryFn::Mul
        | BinaryFn::Div
        | BinaryFn::Pow
        | BinaryFn::Mod
        | BinaryFn::Fmod
        | BinaryFn::Min
        | BinaryFn::Max
        | BinaryFn::BitAnd
        | BinaryFn::BitOr
        | BinaryFn::BitXor
        | BinaryFn::Shl
        | BinaryFn::Shr
        | BinaryFn::Prelu => None,
    }
}

/// A comparison; false where there is no order, as with NaN.
pub fn compare<T: PartialOrd>(func: CompareFn, a: T, b: T) -> bool {
    match func {
        CompareFn::Eq => a == b,
        CompareFn::Lt => a < b,
        CompareFn::Le => a <= b,
        CompareFn::Gt => a > b,
        CompareFn::Ge => a >= b,
    }
}

/// The smaller of two floats: NaN if either is, and −0 below 0.
pub fn min_float(a: f64, b: f64) -> f64 {
    if a.is_nan() || a < b || (a == b && a.is_sign_negative()) { a } else { b }
}

/// The larger of two floats: NaN if either is, and 0 above −0.
pub fn max_float(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b || (a == b && a.is_sign_positive()) { a } else { b }
}

/// `min(max(x, lo), hi)`; NaN stays NaN and −0 stays −0.
pub fn clamp_float(x: f64, lo: f64, hi: f64) -> f64 {
    let raised = if x < lo { lo } else { x };
    if raised > hi { hi } else { raised }
}

/// `base` to the power of a float; for an integral exponent exact, else truncated.
pub fn pow_int_by_float(base: i128, exponent: f64) -> i128 {
    if exponent == exponent.trunc() && exponent.is_finite() {
        return pow_int(base, exponent as i128);
    }
    libm::pow(base as f64, exponent) as i128
}

/// Wrapping power by squaring. A negative exponent gives the truncated quotient, and 0 for base 0.
pub fn pow_int(base: i128, exponent: i128) -> i128 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 => {
                if exponent % 2 == 0 {
                    1
                } else {
                    -1
                }
            }
            _ => 0,
        };
    }
    let (mut power, mut square, mut rest) = (1i128, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            power = power.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        rest >>= 1;
    }
    power
}

/// Logistic function, without overflow on either side.
pub fn sigmoid(x: f64) -> f64 {
    if x < 0.0 {
        let exp = libm::exp(x);
        exp / (1.0 + exp)
    } else {
        1.0 / (1.0 + libm::exp(-x))
    }
}

/// log(1 + exp(x)), without overflow.
pub fn softplus(x: f64) -> f64 {
    if x > 0.0 { x + libm::log1p(libm::exp(-x)) } else { libm::log1p(libm::exp(x)) }
}

fn sign(x: f64) -> f64 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x
    }
}

fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    // (1 + tanh y) / 2 is the logistic of 2y, which keeps the digits that 1 + tanh loses for negative y.
    x * sigmoid(2.0 * inner)
}

fn shrink(x: f64, lambda: f64, bias: f64) -> f64 {
    if x < -lambda {
        x + bias
    } else if x > lambda {
        x - bias
    } else {
        0.0
    }
}

fn shrink_int(x: i128, lambda: f64, bias: f64) -> i128 {
    if bias != bias.trunc() {
        return shrink(x as f64, lambda, bias) as i128;
    }
    if (x as f64) < -lambda {
        x.saturating_add(bias as i128)
    } else if x as f64 > lambda {
        x.saturating_sub(bias as i128)
    } else {
        0
    }
}

fn modulo_float(a: f64, b: f64) -> f64 {
    let rest = a % b;
    if rest == 0.0 {
        return 0f64.copysign(b);
    }
    if (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
}

fn modulo_int(a: i128, b: i128) -> i128 {
    let rest = a.checked_rem(b).unwrap_or(0);
    if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
}
