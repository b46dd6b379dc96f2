//! f16 and bf16 bits to f32 and back, without branches so that loops over them become vector code.

/// The value of IEEE half-precision bits.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    // As if the exponent had the bias of f32; the product moves it by 112 and normalises subnormals.
    let shifted = f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000);
    let special = (magnitude << 13) | 0x7f80_0000;
    let value = if magnitude >= 0x7c00 { special } else { shifted.to_bits() };
    f32::from_bits(value | sign)
}

/// The nearest half-precision value, ties to even; too large becomes infinite.
#[inline(always)]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    // Normal results: round the 13 dropped bits, then move the bias. Carries run into the exponent as they should.
    let rounded = magnitude.wrapping_add(0x0fff).wrapping_add((magnitude >> 13) & 1);
    let normal = rounded.wrapping_sub(112 << 23) >> 13;
    // Subnormal results: an addition of 0.5 leaves the rounded value in the low bits.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
    let limited = if magnitude >= 0x477f_f000 { 0x7c00 } else { finite };
    let result = if magnitude > 0x7f80_0000 { 0x7e00 | ((magnitude >> 13) & 0x3ff) } else { limited };
    sign | result as u16
}

/// The value of bfloat16 bits.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bfloat16 value, ties to even.
#[inline(always)]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff).wrapping_add((bits >> 16) & 1) >> 16;
    let quiet = (bits >> 16) | 0x40;
    (if value.is_nan() { quiet } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition of the format.
    fn f16_by_definition(bits: u16) -> f64 {
        let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
        let (exponent, mantissa) = (i32::from(bits >> 10) & 31, f64::from(bits & 0x3ff));
        match exponent {
            0 => sign * mantissa * 2.0_f64.powi(-24),
            31 if mantissa == 0.0 => sign * f64::INFINITY,
            31 => f64::NAN,
            _ => sign * (1.0 + mantissa / 1024.0) * 2.0_f64.powi(exponent - 15),
        }
    }

    #[test]
    fn every_f16_has_its_value_and_comes_back() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            let expected = f16_by_definition(bits);
            assert!(f64::from(value) == expected || value.is_nan() && expected.is_nan(), "{bits:#06x}");
            if !value.is_nan() {
                assert_eq!(f32_to_f16(value), bits);
            } else {
                assert!(f16_to_f32(f32_to_f16(value)).is_nan());
            }
        }
    }

    #[test]
    fn values_between_two_f16_round_to_the_nearest_even() {
        for bits in 0..0x7bff_u16 {
            let (low, high) = (f16_to_f32(bits), f16_to_f32(bits + 1));
            let middle = (low + high) / 2.0;
            let even = bits + (bits & 1);
            assert_eq!(f32_to_f16(middle), even, "{bits:#06x}");
            assert_eq!(f32_to_f16(middle.next_down()), bits, "{bits:#06x}");
            assert_eq!(f32_to_f16(middle.next_up()), bits + 1, "{bits:#06x}");
        }
        assert_eq!(f32_to_f16(65519.99), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
    }

    #[test]
    fn bf16_rounds_to_the_nearest_even_and_keeps_nan() {
        assert_eq!(f32_to_bf16(1.0 + 1.0 / 256.0), 0x3f80);
        assert_eq!(f32_to_bf16(1.0 + 3.0 / 256.0), 0x3f82);
        assert_eq!(f32_to_bf16(f32::INFINITY), 0x7f80);
        assert!(bf16_to_f32(f32_to_bf16(f32::from_bits(0x7f80_0001))).is_nan());
        assert_eq!(bf16_to_f32(0xc040), -3.0);
    }
}
