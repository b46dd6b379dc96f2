//! Sweeps of the elementary functions against f64, for every instruction set.

use super::*;
use crate::isa::Isa;
use crate::simd::multiversion;
use crate::test_data::{erf as erf64, erfc, ulp_error};

#[derive(Clone, Copy, Debug)]
enum Function {
    Exp,
    Expm1,
    Log,
    Log1p,
    Sin,
    Cos,
    Tanh,
    Sigmoid,
    Logistic,
    Erf,
    Gelu,
    GeluTanh,
    Silu,
    Softplus,
    Mish,
}

multiversion! {
    fn apply<F: MulAdd>(function: Function, source: &[f32], target: &mut [f32]) {
        let map = |target: &mut [f32], f: fn(f32) -> f32| {
            for (y, &x) in target.iter_mut().zip(source) {
                *y = f(x);
            }
        };
        match function {
            Function::Exp => map(target, exp::<F>),
            Function::Expm1 => map(target, expm1::<F>),
            Function::Log => map(target, log::<F>),
            Function::Log1p => map(target, log1p::<F>),
            Function::Sin => sin_row::<F>(source, target),
            Function::Cos => cos_row::<F>(source, target),
            Function::Tanh => map(target, tanh::<F>),
            Function::Sigmoid => map(target, sigmoid::<F>),
            Function::Logistic => map(target, logistic::<F>),
            Function::Erf => map(target, erf::<F>),
            Function::Gelu => map(target, gelu::<F>),
            Function::GeluTanh => map(target, gelu_tanh::<F>),
            Function::Silu => map(target, silu::<F>),
            Function::Softplus => map(target, softplus::<F>),
            Function::Mish => map(target, mish::<F>),
        }
    }
}

fn in_f64(function: Function, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let times = |x: f64, y: f64| x * y;
    match function {
        Function::Exp => x.exp(),
        Function::Expm1 => x.exp_m1(),
        Function::Log => x.ln(),
        Function::Log1p => x.ln_1p(),
        Function::Sin => x.sin(),
        Function::Cos => x.cos(),
        Function::Tanh => x.tanh(),
        Function::Sigmoid | Function::Logistic => sigmoid(x),
        Function::Erf => erf64(x),
        Function::Gelu => {
            let tail = 0.5 * erfc(x.abs() * std::f64::consts::FRAC_1_SQRT_2);
            times(x, if x < 0.0 { tail } else { 1.0 - tail })
        }
        Function::GeluTanh => times(x, sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x))),
        Function::Silu => times(x, sigmoid(x)),
        Function::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p() + if x.is_nan() { x } else { 0.0 },
        Function::Mish => {
            let e = x.min(300.0).exp();
            times(x, e * (e + 2.0) / (e * (e + 2.0) + 2.0)) + if x.is_nan() { x } else { 0.0 }
        }
    }
}

/// Every sign and exponent with a spread of mantissas, a dense linear range, and the special values.
fn sweep() -> Vec<f32> {
    let mut values = vec![0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN, f32::MAX];
    values.extend([f32::MIN_POSITIVE, -f32::MIN_POSITIVE, f32::from_bits(1), -f32::from_bits(1)]);
    values.extend((0..=u32::MAX >> 13).map(|bits| f32::from_bits((bits << 13) | 0x0a5a)));
    values.extend((-210_000..210_000).map(|step| step as f32 * 5.1e-4));
    values
}

/// The largest error in ulps over the sweep, and where.
fn worst(isa: Isa, function: Function, values: &[f32]) -> (f64, f32) {
    let mut results = vec![0.0; values.len()];
    apply(isa, function, values, &mut results);
    let error = |(&x, &y): (&f32, &f32)| {
        let expected = in_f64(function, f64::from(x));
        let is_product = matches!(function, Function::Silu | Function::Mish);
        if is_product && expected.abs() < 1e-35 && y.abs() < 1e-35 {
            // A subnormal factor has few bits, and the product keeps no more.
            return (0.0, x);
        }
        (ulp_error(y, expected), x)
    };
    values.iter().zip(&results).map(error).fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a })
}

#[test]
fn functions_stay_within_their_ulps() {
    let values = sweep();
    let limits = [
        (Function::Exp, 2.0),
        (Function::Expm1, 4.0),
        (Function::Log, 2.0),
        (Function::Log1p, 4.0),
        (Function::Sin, 2.0),
        (Function::Cos, 2.0),
        (Function::Tanh, 4.0),
        (Function::Sigmoid, 4.0),
        (Function::Erf, 4.0),
        (Function::Silu, 4.0),
        (Function::Softplus, 4.0),
        (Function::Mish, 8.0),
    ];
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
        for (function, limit) in limits {
            let (error, x) = worst(isa, function, &values);
            println!("{isa:?} {function:?}: {error:.2} ulp at {x:e}");
            assert!(error <= limit, "{isa:?} {function:?}({x:e}): {error} ulp");
        }
    }
}

/// The exponent of the tail grows with x², and its rounding with it.
#[test]
fn gelus_are_accurate_relative_to_their_result() {
    let values = sweep();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
        for function in [Function::Gelu, Function::GeluTanh] {
            let near: Vec<f32> =
                values.iter().copied().filter(|x| x.is_nan() || x.abs() >= 100.0 || x.abs() < 3.0).collect();
            let (error, x) = worst(isa, function, &near);
            println!("{isa:?} {function:?} near: {error:.2} ulp at {x:e}");
            assert!(error <= 16.0, "{isa:?} {function:?}({x:e}): {error} ulp");
            let (error, x) = worst(isa, function, &values);
            println!("{isa:?} {function:?}: {error:.2} ulp at {x:e}");
            assert!(error <= 256.0, "{isa:?} {function:?}({x:e}): {error} ulp");
        }
    }
}

#[test]
fn logistic_is_accurate_relative_to_one() {
    let values = sweep();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
        let mut results = vec![0.0; values.len()];
        apply(isa, Function::Logistic, &values, &mut results);
        for (&x, &y) in values.iter().zip(&results) {
            let expected = in_f64(Function::Logistic, f64::from(x));
            let is_near = (f64::from(y) - expected).abs() <= 2.0 * f64::from(f32::EPSILON);
            assert!(is_near || x.is_nan() && y.is_nan(), "{isa:?} logistic({x:e}) = {y:e}");
        }
    }
}

#[test]
fn zeros_keep_their_sign() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
        for function in [Function::Expm1, Function::Log1p, Function::Sin, Function::Tanh, Function::Erf, Function::Gelu]
        {
            let mut results = [1.0; 2];
            apply(isa, function, &[0.0, -0.0], &mut results);
            let bits = results.map(f32::to_bits);
            assert_eq!(bits, [0.0_f32.to_bits(), (-0.0_f32).to_bits()], "{isa:?} {function:?}");
        }
    }
}

#[test]
fn the_exponential_of_what_is_below_zero_is_the_exponential() {
    for step in 0..200_000 {
        let x = -86.0 * step as f32 / 200_000.0;
        assert_eq!(exp_below_zero::<crate::simd::Plain>(x), exp::<crate::simd::Plain>(x), "{x}");
        assert_eq!(exp_below_zero::<crate::simd::Fused>(x), exp::<crate::simd::Fused>(x), "{x}");
    }
    for x in [-86.1, -104.0, -1e30, f32::NEG_INFINITY] {
        assert_eq!(exp_below_zero::<crate::simd::Plain>(x), 0.0, "{x}");
    }
    assert!(exp_below_zero::<crate::simd::Plain>(f32::NAN).is_nan());
}
