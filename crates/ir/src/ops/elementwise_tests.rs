use super::*;
use crate::op::CompareFn;
use crate::ops::test_tensor::{bools, eval, eval_error, f32s, floats, i64s, infer, ints};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn unary(func: UnaryFn, alpha: f64, beta: f64) -> Unary {
    Unary { func, alpha, beta }
}

/// The function of one f64 through the whole op; NaN compares by printing.
fn unary_of(func: UnaryFn, alpha: f64, beta: f64, x: f64) -> f64 {
    eval(unary(func, alpha, beta), &[floats(DType::F64, &[], &[x])]).to_f64_vec()[0]
}

#[test]
fn unary_functions_have_their_values() {
    let cases = [
        (UnaryFn::Abs, 0.0, 0.0, -2.0, 2.0),
        (UnaryFn::Neg, 0.0, 0.0, 0.0, -0.0),
        (UnaryFn::Sign, 0.0, 0.0, -3.0, -1.0),
        (UnaryFn::Sign, 0.0, 0.0, NAN, NAN),
        (UnaryFn::Recip, 0.0, 0.0, 4.0, 0.25),
        (UnaryFn::Sqrt, 0.0, 0.0, 9.0, 3.0),
        (UnaryFn::Sqrt, 0.0, 0.0, -1.0, NAN),
        (UnaryFn::Rsqrt, 0.0, 0.0, 4.0, 0.5),
        (UnaryFn::Exp, 0.0, 0.0, 0.0, 1.0),
        (UnaryFn::Expm1, 0.0, 0.0, 1e-20, 1e-20),
        (UnaryFn::Log, 0.0, 0.0, 0.0, -INF),
        (UnaryFn::Log1p, 0.0, 0.0, 1e-20, 1e-20),
        (UnaryFn::Erf, 0.0, 0.0, INF, 1.0),
        (UnaryFn::Tanh, 0.0, 0.0, -INF, -1.0),
        (UnaryFn::Round, 0.0, 0.0, 2.5, 2.0),
        (UnaryFn::Round, 0.0, 0.0, -0.5, -0.0),
        (UnaryFn::Ceil, 0.0, 0.0, -0.5, -0.0),
        (UnaryFn::Floor, 0.0, 0.0, -0.5, -1.0),
        (UnaryFn::Relu, 0.0, 0.0, -1.0, 0.0),
        (UnaryFn::Relu, 0.0, 0.0, NAN, NAN),
        (UnaryFn::Relu, 0.0, 0.0, -0.0, -0.0),
        (UnaryFn::Leaky, 0.5, 0.0, -2.0, -1.0),
        (UnaryFn::Elu, 2.0, 0.0, -INF, -2.0),
        (UnaryFn::Selu, 2.0, 3.0, -INF, -6.0),
        (UnaryFn::Selu, 2.0, 3.0, 1.0, 3.0),
        (UnaryFn::Celu, 2.0, 0.0, -INF, -2.0),
        (UnaryFn::GeluErf, 0.0, 0.0, 0.0, 0.0),
        (UnaryFn::GeluErf, 0.0, 0.0, 40.0, 40.0),
        (UnaryFn::GeluTanh, 0.0, 0.0, 40.0, 40.0),
        (UnaryFn::QuickGelu, 1.702, 0.0, 1000.0, 1000.0),
        (UnaryFn::Silu, 1.0, 0.0, 0.0, 0.0),
        (UnaryFn::Mish, 0.0, 0.0, 100.0, 100.0),
        (UnaryFn::Sigmoid, 0.0, 0.0, 0.0, 0.5),
        (UnaryFn::Sigmoid, 0.0, 0.0, -1000.0, 0.0),
        (UnaryFn::HardSigmoid, 0.25, 0.5, 1.0, 0.75),
        (UnaryFn::HardSigmoid, 0.25, 0.5, NAN, NAN),
        (UnaryFn::HardSwish, 0.0, 0.0, 3.0, 3.0),
        (UnaryFn::HardSwish, 0.0, 0.0, -3.0, -0.0),
        (UnaryFn::Softplus, 0.0, 0.0, 1000.0, 1000.0),
        (UnaryFn::Softplus, 0.0, 0.0, -1000.0, 0.0),
        (UnaryFn::Softsign, 0.0, 0.0, -1.0, -0.5),
        (UnaryFn::Shrink, 1.5, 0.5, -2.0, -1.5),
        (UnaryFn::Shrink, 1.5, 0.5, 1.0, 0.0),
        (UnaryFn::Thresholded, 1.0, 0.0, 1.0, 0.0),
        (UnaryFn::Thresholded, 1.0, 0.0, 1.5, 1.5),
        (UnaryFn::Affine, 2.0, 1.0, 3.0, 7.0),
        (UnaryFn::ScaledTanh, 3.0, 2.0, INF, 3.0),
    ];
    for (func, alpha, beta, x, expected) in cases {
        let found = unary_of(func, alpha, beta, x);
        assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{} of {x}", func.name());
    }
}

#[test]
fn gelu_of_negative_numbers_keeps_its_digits() {
    let erf_form = unary_of(UnaryFn::GeluErf, 0.0, 0.0, -8.0);
    assert!((erf_form / -4.976_768_5e-15 - 1.0).abs() < 1e-6, "{erf_form:e}");
    let tanh_form = unary_of(UnaryFn::GeluTanh, 0.0, 0.0, -3.0);
    assert!((tanh_form / -0.003_637_392 - 1.0).abs() < 1e-6, "{tanh_form:e}");
}

#[test]
fn every_unary_function_maps_nan_to_nan_unless_it_compares() {
    for &func in UnaryFn::ALL {
        let Some(found) = unary_float(func, NAN, 1.0, 1.0) else {
            continue;
        };
        let compares = [UnaryFn::IsNan, UnaryFn::IsInf, UnaryFn::Shrink, UnaryFn::Thresholded].contains(&func);
        assert_eq!(found.is_nan(), !compares, "{}", func.name());
    }
}

#[test]
fn isinf_looks_on_the_sides_it_is_asked_for() {
    let x = f32s(&[3], &[INF, -INF, NAN]);
    assert_eq!(eval(unary(UnaryFn::IsInf, 1.0, 0.0), std::slice::from_ref(&x)), bools(&[3], &[1, 0, 0]));
    assert_eq!(eval(unary(UnaryFn::IsInf, 0.0, 1.0), std::slice::from_ref(&x)), bools(&[3], &[0, 1, 0]));
    assert_eq!(eval(unary(UnaryFn::IsNan, 0.0, 0.0), &[x]), bools(&[3], &[0, 0, 1]));
}

#[test]
fn integers_have_the_unary_functions_that_stay_integers() {
    let x = ints(DType::I8, &[3], &[-128, -1, 5]);
    let cases = [
        (UnaryFn::Abs, [-128, 1, 5]),
        (UnaryFn::Neg, [-128, 1, -5]),
        (UnaryFn::Sign, [-1, -1, 1]),
        (UnaryFn::Relu, [0, 0, 5]),
        (UnaryFn::BitNot, [127, 0, -6]),
    ];
    for (func, expected) in cases {
        let found = eval(unary(func, 0.0, 0.0), std::slice::from_ref(&x));
        assert_eq!(found, ints(DType::I8, &[3], &expected), "{}", func.name());
    }
    assert_eq!(eval(unary(UnaryFn::Shrink, 1.0, 2.0), &[x]), ints(DType::I8, &[3], &[-126, 0, 3]));
}

#[test]
fn unary_types_follow_the_function() {
    let cases = [
        (UnaryFn::Not, "bool[n]", "bool[n]"),
        (UnaryFn::Not, "u8[n]", "unary: 'not' has no meaning for u8"),
        (UnaryFn::IsNan, "f16[]", "bool[]"),
        (UnaryFn::Exp, "i32[2]", "unary: 'exp' has no meaning for i32"),
        (UnaryFn::BitNot, "f32[2]", "unary: 'bitnot' has no meaning for f32"),
        (UnaryFn::Abs, "bool[2]", "unary: 'abs' has no meaning for bool"),
        (UnaryFn::Abs, "i64[n,2]", "i64[n,2]"),
    ];
    for (func, input, expected) in cases {
        assert_eq!(infer(unary(func, 0.0, 0.0), &[input]), expected);
    }
    assert_eq!(infer(unary(UnaryFn::Abs, 0.0, 0.0), &[]), "unary: 0 inputs given where 1 are expected");
}

fn binary(func: BinaryFn, a: Tensor, b: Tensor) -> Tensor {
    eval(Binary { func }, &[a, b])
}

#[test]
fn binary_functions_of_floats_have_their_values() {
    let cases = [
        (BinaryFn::Add, 0.1, 0.2, 0.1 + 0.2),
        (BinaryFn::Div, -1.0, 0.0, -INF),
        (BinaryFn::Pow, 2.0, -1.0, 0.5),
        (BinaryFn::Mod, -5.0, 3.0, 1.0),
        (BinaryFn::Mod, 5.0, -3.0, -1.0),
        (BinaryFn::Fmod, -5.0, 3.0, -2.0),
        (BinaryFn::Min, NAN, 1.0, NAN),
        (BinaryFn::Min, 1.0, NAN, NAN),
        (BinaryFn::Max, 1.0, NAN, NAN),
        (BinaryFn::Min, 0.0, -0.0, -0.0),
        (BinaryFn::Max, -0.0, 0.0, 0.0),
        (BinaryFn::Prelu, -2.0, 0.25, -0.5),
        (BinaryFn::Prelu, NAN, 0.25, NAN),
    ];
    for (func, a, b, expected) in cases {
        let found = binary(func, floats(DType::F64, &[], &[a]), floats(DType::F64, &[], &[b])).to_f64_vec()[0];
        assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{}({a}, {b})", func.name());
    }
}

#[test]
fn binary_functions_of_integers_wrap_and_truncate() {
    let cases = [
        (BinaryFn::Add, 127, 1, -128),
        (BinaryFn::Sub, -128, 1, 127),
        (BinaryFn::Mul, 64, 4, 0),
        (BinaryFn::Div, -7, 2, -3),
        (BinaryFn::Div, 7, 0, 0),
        (BinaryFn::Div, -128, -1, -128),
        (BinaryFn::Mod, -7, 3, 2),
        (BinaryFn::Mod, 7, 0, 0),
        (BinaryFn::Fmod, -7, 3, -1),
        (BinaryFn::Pow, 3, 5, -13),
        (BinaryFn::Pow, -1, -3, -1),
        (BinaryFn::Pow, 2, -1, 0),
        (BinaryFn::Min, -1, 1, -1),
        (BinaryFn::BitXor, 6, 3, 5),
        (BinaryFn::Shl, 3, 7, -128),
        (BinaryFn::Shl, 1, 8, 0),
        (BinaryFn::Shr, -8, 1, -4),
        (BinaryFn::Shr, -8, 100, -1),
        (BinaryFn::Prelu, -2, 3, -6),
    ];
    for (func, a, b, expected) in cases {
        let found = binary(func, ints(DType::I8, &[], &[a]), ints(DType::I8, &[], &[b]));
        assert_eq!(found, ints(DType::I8, &[], &[expected]), "{}({a}, {b})", func.name());
    }
    let most = u64::MAX as i128;
    let square = binary(BinaryFn::Mul, ints(DType::U64, &[], &[most]), ints(DType::U64, &[], &[most]));
    assert_eq!(square, ints(DType::U64, &[], &[1]));
}

#[test]
fn pow_takes_an_exponent_of_another_type() {
    let by_float = binary(BinaryFn::Pow, i64s(&[3], &[3, 4, -2]), f32s(&[3], &[2.0, 0.5, 3.0]));
    assert_eq!(by_float, i64s(&[3], &[9, 2, -8]));
    let by_int = binary(BinaryFn::Pow, f32s(&[], &[2.0]), i64s(&[], &[-2]));
    assert_eq!(by_int, f32s(&[], &[0.25]));
    assert_eq!(infer(Binary { func: BinaryFn::Pow }, &["i32[2]", "f32[]"]), "i32[2]");
}

#[test]
fn binary_inputs_broadcast() {
    let found = binary(BinaryFn::Sub, i64s(&[2, 1], &[10, 20]), i64s(&[3], &[1, 2, 3]));
    assert_eq!(found, i64s(&[2, 3], &[9, 8, 7, 19, 18, 17]));
    let empty = binary(BinaryFn::Add, f32s(&[0, 2], &[]), f32s(&[1], &[1.0]));
    assert_eq!(empty, f32s(&[0, 2], &[]));
}

#[test]
fn f16_arithmetic_rounds_once_to_even() {
    let half = |value| floats(DType::F16, &[], &[value]);
    assert_eq!(binary(BinaryFn::Add, half(2048.0), half(1.0)), half(2048.0));
    assert_eq!(binary(BinaryFn::Add, half(2048.0), half(3.0)), half(2052.0));
    assert_eq!(binary(BinaryFn::Mul, half(60000.0), half(2.0)), half(INF));
}

#[test]
fn bools_have_logic_but_no_arithmetic() {
    let (a, b) = (bools(&[4], &[0, 0, 1, 1]), bools(&[4], &[0, 1, 0, 1]));
    assert_eq!(binary(BinaryFn::And, a.clone(), b.clone()), bools(&[4], &[0, 0, 0, 1]));
    assert_eq!(binary(BinaryFn::Or, a.clone(), b.clone()), bools(&[4], &[0, 1, 1, 1]));
    assert_eq!(binary(BinaryFn::Xor, a.clone(), b), bools(&[4], &[0, 1, 1, 0]));
    assert_eq!(eval(unary(UnaryFn::Not, 0.0, 0.0), &[a]), bools(&[4], &[1, 1, 0, 0]));
}

#[test]
fn binary_types_follow_the_function() {
    let cases = [
        (BinaryFn::Add, ["f32[n,3]", "f32[3]"], "f32[n,3]"),
        (BinaryFn::Add, ["bool[2]", "bool[2]"], "binary: 'add' has no meaning for bool"),
        (BinaryFn::Add, ["f32[2]", "i32[2]"], "binary: element types f32 and i32 differ"),
        (BinaryFn::And, ["i32[2]", "i32[2]"], "binary: 'and' has no meaning for i32"),
        (BinaryFn::BitAnd, ["f32[2]", "f32[2]"], "binary: 'bitand' has no meaning for f32"),
        (BinaryFn::Mul, ["f32[2]", "f32[3]"], "binary: shapes [2] and [3] do not broadcast"),
    ];
    for (func, inputs, expected) in cases {
        assert_eq!(infer(Binary { func }, &inputs), expected);
    }
}

#[test]
fn comparisons_with_nan_are_false() {
    let (a, b) = (f32s(&[3], &[NAN, 1.0, 2.0]), f32s(&[3], &[NAN, 1.0, 1.0]));
    let cases = [
        (CompareFn::Eq, [0, 1, 0]),
        (CompareFn::Lt, [0, 0, 0]),
        (CompareFn::Le, [0, 1, 0]),
        (CompareFn::Gt, [0, 0, 1]),
        (CompareFn::Ge, [0, 1, 1]),
    ];
    for (func, expected) in cases {
        assert_eq!(eval(Compare { func }, &[a.clone(), b.clone()]), bools(&[3], &expected));
    }
}

#[test]
fn integers_beyond_53_bits_compare_exactly() {
    let (a, b) = (i64s(&[], &[1 << 53]), i64s(&[], &[(1 << 53) + 1]));
    assert_eq!(eval(Compare { func: CompareFn::Lt }, &[a, b]), bools(&[], &[1]));
}

#[test]
fn select_picks_by_condition_and_broadcasts_all_three() {
    let inputs = [bools(&[2, 1], &[1, 0]), floats(DType::F16, &[2], &[1.0, 2.0]), floats(DType::F16, &[], &[-0.0])];
    assert_eq!(eval(Select {}, &inputs), floats(DType::F16, &[2, 2], &[1.0, 2.0, -0.0, -0.0]));
    assert_eq!(infer(Select {}, &["u8[2]", "f32[2]", "f32[2]"]), "select: the condition has element type u8, not bool");
}

#[test]
fn clamp_keeps_nan_and_limits_integers() {
    let clamp = Clamp { lo: -1.0, hi: INF };
    let found = eval(clamp.clone(), &[f32s(&[3], &[NAN, -2.0, 9.0])]).to_f64_vec();
    assert_eq!(format!("{found:?}"), "[NaN, -1.0, 9.0]");
    let largest = i128::from(i64::MAX);
    assert_eq!(eval(clamp, &[i64s(&[2], &[-5, largest])]), i64s(&[2], &[-1, largest]));
    assert_eq!(eval(Clamp { lo: 3.0, hi: 1.0 }, &[f32s(&[], &[2.0])]), f32s(&[], &[1.0]));
}

#[test]
fn clamp_limits_beyond_an_integer_type_are_its_ends() {
    let bytes = |values: &[i128]| Tensor::from_i128(DType::U8, [values.len()], values).unwrap();
    assert_eq!(eval(Clamp { lo: -5.0, hi: 300.0 }, &[bytes(&[0, 255])]), bytes(&[0, 255]));
    assert_eq!(eval(Clamp { lo: 300.0, hi: 400.0 }, &[bytes(&[0, 255])]), bytes(&[255, 255]));
    assert_eq!(eval(Clamp { lo: 5.0, hi: -5.0 }, &[bytes(&[0, 255])]), bytes(&[0, 0]));
}

#[test]
fn acosh_below_one_is_nan() {
    let acosh = Unary { func: UnaryFn::Acosh, alpha: 0.0, beta: 0.0 };
    let found = eval(acosh, &[f32s(&[4], &[-20.0, -1.0, 0.5, 1.0])]).to_f64_vec();
    assert_eq!(format!("{found:?}"), "[NaN, NaN, NaN, 0.0]");
}

fn cast(to: DType, tensor: Tensor) -> Tensor {
    eval(Cast { to, saturate: true }, &[tensor])
}

#[test]
fn casts_truncate_floats_and_wrap_integers() {
    assert_eq!(cast(DType::I8, f32s(&[4], &[-1.9, 1.9, 300.0, NAN])), ints(DType::I8, &[4], &[-1, 1, 127, 0]));
    assert_eq!(cast(DType::U8, i64s(&[2], &[-1, 256])), ints(DType::U8, &[2], &[255, 0]));
    assert_eq!(cast(DType::Bool, f32s(&[4], &[0.0, -0.0, 0.5, NAN])), bools(&[4], &[0, 0, 1, 1]));
    assert_eq!(cast(DType::Bool, i64s(&[2], &[0, 256])), bools(&[2], &[0, 1]));
    assert_eq!(cast(DType::F16, bools(&[2], &[0, 1])), floats(DType::F16, &[2], &[0.0, 1.0]));
    assert_eq!(cast(DType::I4, f32s(&[3], &[8.9, -9.0, 7.5])), ints(DType::I4, &[3], &[-8, 7, 7]));
    assert_eq!(cast(DType::I4, i64s(&[2], &[8, -9])), ints(DType::I4, &[2], &[-8, 7]));
}

#[test]
fn a_large_integer_is_rounded_once_on_its_way_to_f32() {
    // Through f64 this would first round to the tie 2^54 + 2^30 and then down to 2^54.
    let value = (1i128 << 54) + (1 << 30) + 1;
    let found = cast(DType::F32, i64s(&[2], &[value, -value])).to_f64_vec();
    let expected = ((1i128 << 54) + (1 << 31)) as f64;
    assert_eq!(found, [expected, -expected]);
    assert_eq!(cast(DType::F64, i64s(&[], &[(1 << 53) + 1])).to_f64_vec(), [(1u64 << 53) as f64]);
}

#[test]
fn the_saturate_flag_decides_about_8_bit_floats() {
    let x = f32s(&[1], &[1000.0]);
    assert_eq!(cast(DType::F8E4M3Fn, x.clone()).to_f64_vec(), [448.0]);
    assert!(eval(Cast { to: DType::F8E4M3Fn, saturate: false }, &[x]).to_f64_vec()[0].is_nan());
}

#[test]
fn bitcast_keeps_bytes_and_needs_equal_sizes() {
    let bits = eval(Bitcast { to: DType::I32 }, &[f32s(&[2], &[1.0, -0.0])]);
    assert_eq!(bits, ints(DType::I32, &[2], &[0x3f80_0000, i128::from(i32::MIN)]));
    assert_eq!(infer(Bitcast { to: DType::I64 }, &["f32[2]"]), "bitcast: the bytes of f32 are not i64");
    assert_eq!(infer(Bitcast { to: DType::Bool }, &["u8[2]"]), "bitcast: the bytes of u8 are not bool");
}

#[test]
fn evaluation_checks_types_first() {
    let error = eval_error(Binary { func: BinaryFn::Add }, &[f32s(&[2], &[0.0; 2]), f32s(&[3], &[0.0; 3])]);
    assert_eq!(error, "binary: shapes [2] and [3] do not broadcast");
}

#[test]
fn every_computed_nan_has_the_same_bytes() {
    let nans = [
        binary(BinaryFn::Div, f32s(&[], &[0.0]), f32s(&[], &[0.0])),
        eval(unary(UnaryFn::Neg, 0.0, 0.0), &[f32s(&[], &[NAN])]),
    ];
    for nan in nans {
        assert_eq!(nan.as_bytes(), 0x7fc0_0000u32.to_le_bytes());
    }
}
