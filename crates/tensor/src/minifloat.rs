//! Small floats: codes to values and values to codes, in one rounding to nearest, ties to even.
//!
//! Overflow follows the table of ONNX Cast. With `saturate`, what is beyond the range becomes the largest finite
//! value, infinity too; without, infinity where the format has one and NaN otherwise. The 4-bit format has neither: it
//! always saturates, and NaN becomes its negative zero, as the cases of ONNX have it.

use crate::DType;

/// How f8e8m0 rounds what is no power of two: the `round_mode` of ONNX Cast.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum E8M0Rounding {
    /// To the next larger power of two, the default of ONNX.
    #[default]
    Up,
    /// To the next smaller power of two.
    Down,
    /// To the nearest power of two by mantissa, half way up.
    Nearest,
}

/// A binary float format with a sign bit and subnormals.
struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    /// Code of the largest finite value, without sign.
    max_code: u32,
    specials: Specials,
}

/// What a format has beside finite values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Specials {
    /// Infinities and NaN, as IEEE 754 has them; the code of NaN.
    Ieee { nan: u32 },
    /// No infinities; the code of NaN, which may carry the sign.
    NanOnly { nan: u32 },
    /// No infinities and no negative zero; NaN takes its code.
    Unsigned,
    /// Finite values only.
    None,
}

const F16: Format = Format {
    exponent_bits: 5,
    mantissa_bits: 10,
    bias: 15,
    max_code: 0x7BFF,
    specials: Specials::Ieee { nan: 0x7E00 },
};
const BF16: Format = Format {
    exponent_bits: 8,
    mantissa_bits: 7,
    bias: 127,
    max_code: 0x7F7F,
    specials: Specials::Ieee { nan: 0x7FC0 },
};
const F8E4M3FN: Format =
    Format { exponent_bits: 4, mantissa_bits: 3, bias: 7, max_code: 0x7E, specials: Specials::NanOnly { nan: 0x7F } };
const F8E4M3FNUZ: Format =
    Format { exponent_bits: 4, mantissa_bits: 3, bias: 8, max_code: 0x7F, specials: Specials::Unsigned };
const F8E5M2: Format =
    Format { exponent_bits: 5, mantissa_bits: 2, bias: 15, max_code: 0x7B, specials: Specials::Ieee { nan: 0x7E } };
const F8E5M2FNUZ: Format =
    Format { exponent_bits: 5, mantissa_bits: 2, bias: 16, max_code: 0x7F, specials: Specials::Unsigned };
const F4E2M1: Format = Format { exponent_bits: 2, mantissa_bits: 1, bias: 1, max_code: 0x7, specials: Specials::None };

/// The value of a code of an 8-bit or 4-bit float; none for other types. A 4-bit code is in the low bits.
pub fn decode(dtype: DType, code: u8) -> Option<f32> {
    if dtype == DType::F8E8M0 {
        return Some(decode_f8e8m0(code));
    }
    Some(format_of(dtype)?.decode(u32::from(code)) as f32)
}

/// The code of the nearest value of an 8-bit or 4-bit float; none for other types. f8e8m0 rounds up.
pub fn encode(dtype: DType, value: f32, saturate: bool) -> Option<u8> {
    encode_f64(dtype, f64::from(value), saturate)
}

/// `encode` from double precision, still in one rounding.
pub fn encode_f64(dtype: DType, value: f64, saturate: bool) -> Option<u8> {
    if dtype == DType::F8E8M0 {
        return Some(encode_f8e8m0(value as f32, saturate, E8M0Rounding::Up));
    }
    Some(format_of(dtype)?.encode(value, saturate) as u8)
}

/// Rounds once from double precision. `half::f16::from_f64` may round twice, through f32.
pub fn f16_from_f64(value: f64) -> half::f16 {
    half::f16::from_bits(F16.encode(value, false) as u16)
}

/// Rounds once from double precision.
pub fn bf16_from_f64(value: f64) -> half::bf16 {
    half::bf16::from_bits(BF16.encode(value, false) as u16)
}

/// The power of two of an f8e8m0 code; NaN for 0xFF.
pub fn decode_f8e8m0(code: u8) -> f32 {
    match code {
        0xFF => f32::NAN,
        // 2^-127 is subnormal in f32.
        0 => f32::from_bits(1 << 22),
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// The f8e8m0 code of the magnitude of a value. The sign is dropped; infinities and NaN give NaN.
pub fn encode_f8e8m0(value: f32, saturate: bool, rounding: E8M0Rounding) -> u8 {
    const MANTISSA: u32 = 0x7F_FFFF;
    const HALF: u32 = 0x40_0000;
    let bits = value.to_bits();
    let exponent = ((bits >> 23) & 0xFF) as u8;
    if exponent == 0xFF {
        return 0xFF;
    }
    let mantissa = bits & MANTISSA;
    let is_rounded_up = match rounding {
        E8M0Rounding::Up => mantissa != 0,
        E8M0Rounding::Down => false,
        // The tie of the smallest binade stays: its even neighbour is code 0.
        E8M0Rounding::Nearest => mantissa > HALF || (mantissa == HALF && exponent > 0),
    };
    let code = exponent + u8::from(is_rounded_up);
    if code == 0xFF && saturate { 0xFE } else { code }
}

fn format_of(dtype: DType) -> Option<&'static Format> {
    match dtype {
        DType::F8E4M3Fn => Some(&F8E4M3FN),
        DType::F8E4M3FnUz => Some(&F8E4M3FNUZ),
        DType::F8E5M2 => Some(&F8E5M2),
        DType::F8E5M2FnUz => Some(&F8E5M2FNUZ),
        DType::F4E2M1 => Some(&F4E2M1),
        DType::Bool
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::F16
        | DType::BF16
        | DType::F32
        | DType::F64
        | DType::F8E8M0
        | DType::U4
        | DType::I4
        | DType::U2
        | DType::I2 => None,
    }
}

impl Format {
    fn sign_code(&self) -> u32 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    fn decode(&self, code: u32) -> f64 {
        let magnitude = code & (self.sign_code() - 1);
        let is_negative = code & self.sign_code() != 0;
        if self.specials == Specials::Unsigned && code == self.sign_code() {
            return f64::NAN;
        }
        let exponent = (magnitude >> self.mantissa_bits) as i32;
        let mantissa = magnitude & ((1 << self.mantissa_bits) - 1);
        let value = if magnitude > self.max_code {
            let is_infinite = matches!(self.specials, Specials::Ieee { .. }) && mantissa == 0;
            if is_infinite { f64::INFINITY } else { f64::NAN }
        } else if exponent == 0 {
            f64::from(mantissa) * power_of_two(1 - self.bias - self.mantissa_bits as i32)
        } else {
            let significand = mantissa + (1 << self.mantissa_bits);
            f64::from(significand) * power_of_two(exponent - self.bias - self.mantissa_bits as i32)
        };
        if is_negative { -value } else { value }
    }

    fn encode(&self, value: f64, saturate: bool) -> u32 {
        let sign = if value.is_sign_negative() { self.sign_code() } else { 0 };
        if value.is_nan() {
            return match self.specials {
                Specials::Ieee { nan } | Specials::NanOnly { nan } => nan | sign,
                Specials::Unsigned => self.sign_code(),
                Specials::None => self.sign_code(),
            };
        }
        if !value.is_infinite() {
            let magnitude = self.round_magnitude(value.abs());
            if magnitude <= self.max_code {
                let is_plain_zero = magnitude == 0 && self.specials == Specials::Unsigned;
                return if is_plain_zero { 0 } else { magnitude | sign };
            }
        }
        match self.specials {
            Specials::None => self.max_code | sign,
            _ if saturate => self.max_code | sign,
            // The code after the largest finite one is infinity.
            Specials::Ieee { .. } => (self.max_code + 1) | sign,
            Specials::NanOnly { nan } => nan | sign,
            Specials::Unsigned => self.sign_code(),
        }
    }

    /// The code nearest to a finite magnitude, as if exponents had no upper end.
    fn round_magnitude(&self, magnitude: f64) -> u32 {
        let exponent_min = 1 - self.bias;
        let exponent = exponent_of(magnitude).max(exponent_min);
        // Exact: scaling by a power of two, and no format here reaches the ends of f64.
        let steps = (magnitude * power_of_two(self.mantissa_bits as i32 - exponent)).round_ties_even();
        // A significand that rounds up to the next binade carries into the exponent by itself.
        let binade = (exponent - exponent_min) as u32;
        (binade << self.mantissa_bits) + steps as u32
    }
}

/// The exponent of the leading bit; for subnormals and zero, something below any format here.
fn exponent_of(magnitude: f64) -> i32 {
    ((magnitude.to_bits() >> 52) & 0x7FF) as i32 - 1023
}

/// An exact power of two within the normal range of f64.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIGNED: [DType; 5] = [DType::F8E4M3Fn, DType::F8E4M3FnUz, DType::F8E5M2, DType::F8E5M2FnUz, DType::F4E2M1];

    fn codes(dtype: DType) -> impl Iterator<Item = u8> {
        0..=((1_u32 << dtype.bits()) - 1) as u8
    }

    #[test]
    fn every_code_decodes_and_encodes_back() {
        for dtype in SIGNED.into_iter().chain([DType::F8E8M0]) {
            for code in codes(dtype) {
                let value = decode(dtype, code).unwrap();
                let again = encode(dtype, value, false).unwrap();
                let is_same = again == code || (value.is_nan() && decode(dtype, again).unwrap().is_nan());
                // ONNX reads the f32 exponent, which 2^-127 shares with all subnormals and so rounds up from.
                assert!(is_same || (dtype == DType::F8E8M0 && code == 0), "{dtype} {code:#x} {value} {again:#x}");
            }
        }
    }

    #[test]
    fn known_values_decode() {
        assert_eq!(decode(DType::F8E4M3Fn, 0x7E), Some(448.0));
        assert_eq!(decode(DType::F8E4M3Fn, 0x01), Some(2_f32.powi(-9)));
        assert_eq!(decode(DType::F8E4M3FnUz, 0x7F), Some(240.0));
        assert_eq!(decode(DType::F8E4M3FnUz, 0x01), Some(2_f32.powi(-10)));
        assert_eq!(decode(DType::F8E5M2, 0x7B), Some(57344.0));
        assert_eq!(decode(DType::F8E5M2, 0xFC), Some(f32::NEG_INFINITY));
        assert_eq!(decode(DType::F8E5M2FnUz, 0x7F), Some(57344.0));
        assert_eq!(decode(DType::F8E5M2FnUz, 0x01), Some(2_f32.powi(-17)));
        let magnitudes: Vec<f32> = (0..8).map(|code| decode(DType::F4E2M1, code).unwrap()).collect();
        assert_eq!(magnitudes, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!(decode(DType::F8E8M0, 127), Some(1.0));
        assert_eq!(decode(DType::F8E8M0, 0), Some(2_f32.powi(-127)));
        assert_eq!(decode(DType::F32, 0), None);
    }

    /// What the cases of ONNX Cast have, column by column: -0, infinity, -infinity, beyond the range, NaN.
    #[test]
    fn specials_follow_the_tables_of_cast() {
        let column = |dtype, saturate| {
            [-0.0, f32::INFINITY, f32::NEG_INFINITY, 1e6, -1e6, f32::NAN]
                .map(|value| encode(dtype, value, saturate).unwrap())
        };
        assert_eq!(column(DType::F8E4M3Fn, true), [0x80, 0x7E, 0xFE, 0x7E, 0xFE, 0x7F]);
        assert_eq!(column(DType::F8E4M3Fn, false), [0x80, 0x7F, 0xFF, 0x7F, 0xFF, 0x7F]);
        assert_eq!(column(DType::F8E4M3FnUz, true), [0, 0x7F, 0xFF, 0x7F, 0xFF, 0x80]);
        assert_eq!(column(DType::F8E4M3FnUz, false), [0, 0x80, 0x80, 0x80, 0x80, 0x80]);
        assert_eq!(column(DType::F8E5M2, true), [0x80, 0x7B, 0xFB, 0x7B, 0xFB, 0x7E]);
        assert_eq!(column(DType::F8E5M2, false), [0x80, 0x7C, 0xFC, 0x7C, 0xFC, 0x7E]);
        assert_eq!(column(DType::F8E5M2FnUz, true), [0, 0x7F, 0xFF, 0x7F, 0xFF, 0x80]);
        assert_eq!(column(DType::F8E5M2FnUz, false), [0, 0x80, 0x80, 0x80, 0x80, 0x80]);
        for saturate in [true, false] {
            assert_eq!(column(DType::F4E2M1, saturate), [8, 7, 15, 7, 15, 8]);
        }
    }

    #[test]
    fn the_end_of_the_range_rounds_before_it_overflows() {
        // 464 is half way to the code of NaN; the tie goes to the even mantissa, which is 448.
        assert_eq!(encode(DType::F8E4M3Fn, 464.0, false), Some(0x7E));
        assert_eq!(encode(DType::F8E4M3Fn, 464.1, false), Some(0x7F));
        assert_eq!(encode(DType::F8E5M2, 61439.0, false), Some(0x7B));
        assert_eq!(encode(DType::F8E5M2, 61440.0, false), Some(0x7C));
    }

    #[test]
    fn e8m0_rounds_by_mode_and_saturates() {
        let all = |value| {
            [E8M0Rounding::Up, E8M0Rounding::Down, E8M0Rounding::Nearest]
                .map(|rounding| encode_f8e8m0(value, true, rounding))
        };
        assert_eq!(all(1.0), [127, 127, 127]);
        assert_eq!(all(-1.25), [128, 127, 127]);
        assert_eq!(all(1.5), [128, 127, 128]);
        assert_eq!(all(0.0), [0, 0, 0]);
        assert_eq!(all(f32::MAX), [0xFE, 0xFE, 0xFE]);
        assert_eq!(all(f32::INFINITY), [0xFF, 0xFF, 0xFF]);
        assert_eq!(encode_f8e8m0(f32::MAX, false, E8M0Rounding::Up), 0xFF);
    }

    #[test]
    fn one_rounding_from_f64_differs_from_two() {
        // Just above half way between 1 and the next f16: rounding to f32 first loses the part that decides.
        let value = 1.0 + 2_f64.powi(-11) + 2_f64.powi(-40);
        assert_eq!(f16_from_f64(value).to_bits(), 0x3C01);
        assert_eq!(half::f16::from_f32(value as f32).to_bits(), 0x3C00);
        let value = 1.0 + 2_f64.powi(-8) + 2_f64.powi(-40);
        assert_eq!(bf16_from_f64(value).to_bits(), 0x3F81);
        assert_eq!(f16_from_f64(f64::MIN_POSITIVE / 4.0).to_bits(), 0);
        assert_eq!(f16_from_f64(-65520.0).to_bits(), 0xFC00);
        assert!(bf16_from_f64(f64::NAN).is_nan());
    }

    proptest! {
        #[test]
        fn encoding_finds_the_nearest_value(magnitude in 1e-7..7e4_f64, is_negative: bool) {
            let value = if is_negative { -magnitude } else { magnitude };
            for dtype in SIGNED {
                let code = encode_f64(dtype, value, true).unwrap();
                let distance = |code| (f64::from(decode(dtype, code).unwrap()) - value).abs();
                let nearest = codes(dtype)
                    .filter(|code| decode(dtype, *code).unwrap().is_finite())
                    .map(distance)
                    .fold(f64::INFINITY, f64::min);
                prop_assert_eq!(distance(code), nearest, "{} {}", dtype, value);
            }
        }

        #[test]
        fn from_f32_agrees_with_half(bits: u32) {
            let value = f32::from_bits(bits);
            let (f16, bf16) = (half::f16::from_f32(value), half::bf16::from_f32(value));
            let (ours_f16, ours_bf16) = (f16_from_f64(value.into()), bf16_from_f64(value.into()));
            prop_assert!(ours_f16.to_bits() == f16.to_bits() || (ours_f16.is_nan() && f16.is_nan()));
            prop_assert!(ours_bf16.to_bits() == bf16.to_bits() || (ours_bf16.is_nan() && bf16.is_nan()));
        }

        #[test]
        fn half_way_goes_to_the_even_code(dtype in prop::sample::select(&SIGNED[..]), code: u8) {
            let code = code % ((1 << (dtype.bits() - 1)) - 1);
            let ends = [code, code + 1].map(|code| f64::from(decode(dtype, code).unwrap()));
            prop_assume!(ends.iter().all(|end| end.is_finite()));
            let even = code + code % 2;
            prop_assert_eq!(encode_f64(dtype, (ends[0] + ends[1]) / 2.0, false), Some(even));
        }
    }
}
