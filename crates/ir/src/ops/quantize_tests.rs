use super::*;
use crate::ops::test_tensor::{eval, f32s, floats, infer, ints};

fn quantize(to: DType) -> Quantize {
    Quantize { to, axis: 0, block: 0, saturate: true, precision: DType::F32 }
}

fn dequantize(to: DType) -> Dequantize {
    Dequantize { to, axis: 0, block: 0 }
}

#[test]
fn quantize_rounds_half_to_even_and_saturates() {
    let x = f32s(&[6], &[0.5, 1.5, -0.5, 300.0, f64::NEG_INFINITY, 2.5]);
    let zero_point = ints(DType::I8, &[], &[1]);
    let found = eval(quantize(DType::I8), &[x, f32s(&[], &[1.0]), zero_point]);
    assert_eq!(found, ints(DType::I8, &[6], &[1, 3, 1, 127, -128, 3]));
}

#[test]
fn the_quotient_is_formed_in_the_given_precision() {
    // f16 has no 2049.
    let inputs = [f32s(&[1], &[2049.0]), f32s(&[], &[1.0])];
    assert_eq!(eval(quantize(DType::I16), &inputs), ints(DType::I16, &[1], &[2049]));
    let half = Quantize { precision: DType::F16, ..quantize(DType::I16) };
    assert_eq!(eval(half, &inputs), ints(DType::I16, &[1], &[2048]));
}

#[test]
fn integers_can_be_quantized_too() {
    let x = ints(DType::I32, &[2], &[-7, 9]);
    assert_eq!(eval(quantize(DType::U4), &[x, f32s(&[], &[2.0])]), ints(DType::U4, &[2], &[0, 4]));
}

#[test]
fn scales_are_one_a_tensor_an_axis_or_a_block() {
    let x = f32s(&[2, 4], &[2.0, 2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0]);
    let eval_with = |axis, block, scale: Tensor| {
        eval(Quantize { axis, block, ..quantize(DType::I8) }, &[x.clone(), scale]).to_i128_vec().unwrap()
    };
    assert_eq!(eval_with(0, 0, f32s(&[], &[2.0])), [1, 1, 1, 1, 2, 2, 2, 2]);
    assert_eq!(eval_with(0, 0, f32s(&[1], &[2.0])), [1, 1, 1, 1, 2, 2, 2, 2]);
    assert_eq!(eval_with(0, 0, f32s(&[2], &[1.0, 2.0])), [2, 2, 2, 2, 2, 2, 2, 2]);
    assert_eq!(eval_with(1, 0, f32s(&[4], &[1.0, 2.0, 1.0, 2.0])), [2, 1, 2, 1, 4, 2, 4, 2]);
    assert_eq!(eval_with(1, 3, f32s(&[2, 2], &[1.0, 2.0, 4.0, 0.5])), [2, 2, 2, 1, 1, 1, 1, 8]);
}

#[test]
fn quantizing_to_8_bit_floats_rounds_in_their_format() {
    let inputs = [f32s(&[3], &[1.0625, 1000.0, 0.3]), f32s(&[], &[1.0])];
    let found = eval(quantize(DType::F8E4M3Fn), &inputs);
    assert_eq!(found, floats(DType::F8E4M3Fn, &[3], &[1.0, 448.0, 0.3125]));
    let unsaturated = Quantize { saturate: false, ..quantize(DType::F8E4M3Fn) };
    assert!(eval(unsaturated, &inputs).to_f64_vec()[1].is_nan());
}

#[test]
fn dequantize_subtracts_before_it_scales() {
    let x = ints(DType::U8, &[3], &[0, 128, 255]);
    let (scale, zero_point) = (f32s(&[], &[0.5]), ints(DType::U8, &[], &[128]));
    assert_eq!(eval(dequantize(DType::F32), &[x.clone(), scale.clone(), zero_point]), f32s(&[3], &[-64.0, 0.0, 63.5]));
    assert_eq!(eval(dequantize(DType::F16), &[x, scale]), floats(DType::F16, &[3], &[0.0, 64.0, 127.5]));
}

#[test]
fn dequantize_by_block_and_from_8_bit_floats() {
    let x = ints(DType::I4, &[3, 1], &[-8, 7, 1]);
    let by_block = Dequantize { to: DType::F32, axis: 0, block: 2 };
    assert_eq!(eval(by_block, &[x, f32s(&[2, 1], &[1.0, 10.0])]), f32s(&[3, 1], &[-8.0, 7.0, 10.0]));
    let small = floats(DType::F8E5M2, &[2], &[1.5, -2.0]);
    assert_eq!(eval(dequantize(DType::F32), &[small, f32s(&[], &[2.0])]), f32s(&[2], &[3.0, -4.0]));
}

#[test]
fn unpack_reads_the_lowest_bits_first_and_counts_signed_levels_from_the_middle() {
    let bytes = ints(DType::U8, &[1, 2], &[0x80, 0xf7]);
    let unpack = |to| eval(Unpack { to }, std::slice::from_ref(&bytes));
    assert_eq!(unpack(DType::U4), ints(DType::U4, &[1, 4], &[0, 8, 7, 15]));
    assert_eq!(unpack(DType::I4), ints(DType::I4, &[1, 4], &[-8, 0, -1, 7]));
    assert_eq!(unpack(DType::U2), ints(DType::U2, &[1, 8], &[0, 0, 0, 2, 3, 1, 3, 3]));
    assert_eq!(unpack(DType::I8), ints(DType::I8, &[1, 2], &[0, 119]));
    assert_eq!(infer(Unpack { to: DType::I4 }, &["u8[n,3]"]), "i4[n,6]");
    assert_eq!(infer(Unpack { to: DType::I4 }, &["u8[]"]), "unpack: a scalar has no last axis");
    assert!(infer(Unpack { to: DType::I16 }, &["u8[4]"]).contains("i16"));
    assert!(infer(Unpack { to: DType::I4 }, &["i8[4]"]).contains("i8"));
}

#[test]
fn empty_tensors_quantize_to_empty_tensors() {
    let empty = f32s(&[0, 2], &[]);
    assert_eq!(eval(quantize(DType::I8), &[empty, f32s(&[], &[1.0])]), ints(DType::I8, &[0, 2], &[]));
}

#[test]
fn quantize_types_check_scale_and_zero_point() {
    assert_eq!(infer(quantize(DType::I8), &["f32[n,3]", "f32[n]", "i8[n]"]), "i8[n,3]");
    let wrong_scale = "quantize: the scale has shape [3] where [2] is expected";
    assert_eq!(infer(quantize(DType::I8), &["f32[2,3]", "f32[3]"]), wrong_scale);
    let wrong_zero_point = "quantize: the zero point is u8[] where i8[] is expected";
    assert_eq!(infer(quantize(DType::I8), &["f32[2]", "f32[]", "u8[]"]), wrong_zero_point);
    let by_block = Dequantize { to: DType::F32, axis: 1, block: 16 };
    assert_eq!(infer(by_block, &["i4[2,40]", "f32[2,3]"]), "f32[2,40]");
    assert_eq!(infer(dequantize(DType::I8), &["i8[2]", "f32[]"]), "dequantize: element type i8 has no meaning here");
    assert_eq!(infer(quantize(DType::I8), &["f32[]"]), "quantize: 1 inputs given where 2 to 3 are expected");
}
