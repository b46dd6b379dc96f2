//! Element types: names, sizes and integer ranges.
//!
//! In memory every element takes whole bytes. Sub-byte types hold one element a byte and are packed only in
//! files, so that every other room can index elements without bit arithmetic.

use std::fmt;

/// The type of one tensor element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum DType {
    /// A byte that is 0 or 1.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an f32.
    BF16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// 4 exponent and 3 mantissa bits, no infinities, NaN is all ones.
    F8E4M3Fn,
    /// 4 exponent and 3 mantissa bits, no infinities, no negative zero, NaN is 0x80.
    F8E4M3FnUz,
    /// 5 exponent and 2 mantissa bits, with infinities.
    F8E5M2,
    /// 5 exponent and 2 mantissa bits, no infinities, no negative zero, NaN is 0x80.
    F8E5M2FnUz,
    /// An exponent alone: a power of two, NaN is 0xFF.
    F8E8M0,
    /// Unsigned 4-bit integer, zero-extended to a byte.
    U4,
    /// Signed 4-bit integer, sign-extended to a byte.
    I4,
    /// Unsigned 2-bit integer, zero-extended to a byte.
    U2,
    /// Signed 2-bit integer, sign-extended to a byte.
    I2,
    /// 2 exponent and 1 mantissa bit, neither infinities nor NaN; the code is in the low half of a byte.
    F4E2M1,
}

impl DType {
    /// Every element type, in declaration order.
    pub const ALL: [DType; 23] = [
        DType::Bool,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::F8E4M3Fn,
        DType::F8E4M3FnUz,
        DType::F8E5M2,
        DType::F8E5M2FnUz,
        DType::F8E8M0,
        DType::U4,
        DType::I4,
        DType::U2,
        DType::I2,
        DType::F4E2M1,
    ];

    /// The name in text forms: `f32`, `bf16`, `f8e4m3fn`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F8E4M3Fn => "f8e4m3fn",
            DType::F8E4M3FnUz => "f8e4m3fnuz",
            DType::F8E5M2 => "f8e5m2",
            DType::F8E5M2FnUz => "f8e5m2fnuz",
            DType::F8E8M0 => "f8e8m0",
            DType::U4 => "u4",
            DType::I4 => "i4",
            DType::U2 => "u2",
            DType::I2 => "i2",
            DType::F4E2M1 => "f4e2m1",
        }
    }

    /// The element type with this name.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Significant bits of one element: what it takes packed in a file.
    pub const fn bits(self) -> u32 {
        match self {
            DType::U2 | DType::I2 => 2,
            DType::U4 | DType::I4 | DType::F4E2M1 => 4,
            DType::Bool
            | DType::U8
            | DType::I8
            | DType::F8E4M3Fn
            | DType::F8E4M3FnUz
            | DType::F8E5M2
            | DType::F8E5M2FnUz
            | DType::F8E8M0 => 8,
            DType::U16 | DType::I16 | DType::F16 | DType::BF16 => 16,
            DType::U32 | DType::I32 | DType::F32 => 32,
            DType::U64 | DType::I64 | DType::F64 => 64,
        }
    }

    /// Bytes of one element in memory: 1, 2, 4 or 8.
    pub const fn size_bytes(self) -> usize {
        self.bits().div_ceil(8) as usize
    }

    /// Floating point of any width.
    pub const fn is_float(self) -> bool {
        match self {
            DType::F16
            | DType::BF16
            | DType::F32
            | DType::F64
            | DType::F8E4M3Fn
            | DType::F8E4M3FnUz
            | DType::F8E5M2
            | DType::F8E5M2FnUz
            | DType::F8E8M0
            | DType::F4E2M1 => true,
            DType::Bool
            | DType::U8
            | DType::U16
            | DType::U32
            | DType::U64
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::U4
            | DType::I4
            | DType::U2
            | DType::I2 => false,
        }
    }

    /// Integer of any width; bool is not one.
    pub const fn is_int(self) -> bool {
        !self.is_float() && !self.is_bool()
    }

    /// Whether negative values exist: signed integers and every float except f8e8m0.
    pub const fn is_signed(self) -> bool {
        match self {
            DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::I4 | DType::I2 => true,
            DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::U4 | DType::U2 => false,
            DType::F8E8M0 => false,
            DType::F16
            | DType::BF16
            | DType::F32
            | DType::F64
            | DType::F8E4M3Fn
            | DType::F8E4M3FnUz
            | DType::F8E5M2
            | DType::F8E5M2FnUz
            | DType::F4E2M1 => true,
        }
    }

    /// The type of truth values.
    pub const fn is_bool(self) -> bool {
        matches!(self, DType::Bool)
    }

    /// Smallest and largest value of an integer type; none for floats and bool.
    pub const fn int_range(self) -> Option<(i128, i128)> {
        if !self.is_int() {
            return None;
        }
        let bits = self.bits();
        Some(if self.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_parse_back() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        }
        assert_eq!(DType::from_name("float"), None);
    }

    #[test]
    fn all_is_in_declaration_order() {
        assert!(DType::ALL.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(DType::ALL[DType::ALL.len() - 1] as usize, DType::ALL.len() - 1);
    }

    #[test]
    fn integer_ranges_follow_width_and_sign() {
        assert_eq!(DType::I4.int_range(), Some((-8, 7)));
        assert_eq!(DType::U2.int_range(), Some((0, 3)));
        assert_eq!(DType::U64.int_range(), Some((0, u64::MAX as i128)));
        assert_eq!(DType::I64.int_range(), Some((i64::MIN as i128, i64::MAX as i128)));
        assert_eq!(DType::Bool.int_range(), None);
        assert_eq!(DType::F8E5M2.int_range(), None);
    }

    #[test]
    fn sizes_are_whole_bytes() {
        assert_eq!(DType::I2.size_bytes(), 1);
        assert_eq!(DType::BF16.size_bytes(), 2);
        assert_eq!(DType::U64.size_bytes(), 8);
    }
}
