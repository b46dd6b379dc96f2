//! Values of operands: random ones from a small generator, so that a failing case repeats, and the values at which
//! arithmetic is peculiar.

use precast_tensor::{DType, Tensor, Type};

/// What an operand is filled with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// Floats in -2..2, integers in -9..=9 (unsigned: 0..=18).
    Plain,
    /// Floats in -0.5..0.5: weights of layers that feed back.
    Small,
    /// Floats in 0.1..2.1, integers in 1..=19.
    Positive,
    /// The element type's whole range, floats up to ±1e6.
    Wide,
    /// Few different values, so that many are equal.
    Ties,
    /// The peculiar values of the type, in turns with plain ones.
    Special,
    /// Among plain floats a few that are NaN, infinite, zero or subnormal, but none so large that sums overflow.
    NonFinite,
    /// Indices of an axis of this size, negative ones among them.
    Index(usize),
}

impl Fill {
    /// The fill of a name; no name is `Plain`.
    pub fn read(name: &str) -> Option<Fill> {
        Some(match name {
            "" => Fill::Plain,
            "small" => Fill::Small,
            "positive" => Fill::Positive,
            "wide" => Fill::Wide,
            "ties" => Fill::Ties,
            "special" => Fill::Special,
            "nonfinite" => Fill::NonFinite,
            _ => Fill::Index(name.strip_prefix("index(")?.strip_suffix(')')?.parse().ok()?),
        })
    }
}

/// A linear congruential generator.
pub struct Random(u64);

impl Random {
    /// A generator whose numbers depend on a name.
    pub fn new(name: &str) -> Random {
        let mut random =
            Random(name.bytes().fold(0x9e37_79b9, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte)));
        random.next(2);
        random
    }

    /// A number below `limit`.
    pub fn next(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }

    /// A tensor of this Type.
    pub fn tensor(&mut self, ty: &Type, fill: Fill) -> Tensor {
        let shape = ty.shape().expect("cases have numbers as dims");
        let count: usize = shape.iter().product();
        if ty.dtype.is_float() {
            let elements: Vec<f64> = (0..count).map(|at| self.float(fill, at)).collect();
            Tensor::from_f64(ty.dtype, shape, &elements, true).expect("floats fit their type")
        } else {
            let elements: Vec<i128> = (0..count).map(|at| self.int(ty.dtype, fill, at)).collect();
            Tensor::from_i128(ty.dtype, shape, &elements).expect("integers fit their type")
        }
    }

    /// A float in 0..1 with 24 bits.
    fn unit(&mut self) -> f64 {
        self.next(1 << 24) as f64 / (1 << 24) as f64
    }

    fn float(&mut self, fill: Fill, at: usize) -> f64 {
        match fill {
            Fill::Plain | Fill::Index(_) => self.unit() * 4.0 - 2.0,
            Fill::Small => self.unit() - 0.5,
            Fill::Positive => self.unit() * 2.0 + 0.1,
            Fill::Wide => (self.unit() * 2.0 - 1.0) * 10f64.powi(self.next(13) as i32 - 6),
            Fill::Ties => self.next(3) as f64 - 1.0,
            Fill::NonFinite => {
                let special = SPECIAL_FLOATS[self.next(NON_FINITE_COUNT) as usize].into();
                if self.next(5) == 0 { special } else { self.unit() * 4.0 - 2.0 }
            }
            Fill::Special => match SPECIAL_FLOATS.get(at / 2).filter(|_| at.is_multiple_of(2)) {
                Some(&special) => f64::from(special),
                None => SPECIAL_FLOATS[self.next(SPECIAL_FLOATS.len() as u64) as usize].into(),
            },
        }
    }

    fn int(&mut self, dtype: DType, fill: Fill, at: usize) -> i128 {
        let Some((least, most)) = dtype.int_range() else { return i128::from(self.next(2)) };
        let plain = |random: &mut Random| i128::from(random.next(19)) - if least < 0 { 9 } else { 0 };
        match fill {
            Fill::Plain | Fill::Small | Fill::NonFinite => plain(self),
            Fill::Positive => i128::from(self.next(19)) + 1,
            Fill::Wide => {
                least + (i128::from(self.next(1 << 31)) << 33 | i128::from(self.next(1 << 31))) % (most - least + 1)
            }
            Fill::Ties => i128::from(self.next(3)),
            Fill::Index(size) => {
                let at = i128::from(self.next(2 * size as u64));
                if least < 0 { at - size as i128 } else { at / 2 }
            }
            Fill::Special => {
                let bits = i128::from(dtype.bits());
                let special = [least, most, 0, 1, -1, 2, least + 1, most - 1, bits, bits - 1, bits + 1, -2, 7, -7];
                let special: Vec<i128> = special.into_iter().filter(|x| (least..=most).contains(x)).collect();
                match special.get(at / 2).filter(|_| at.is_multiple_of(2)) {
                    Some(&special) => special,
                    None if self.next(2) == 0 => special[self.next(special.len() as u64) as usize],
                    None => plain(self),
                }
            }
        }
    }
}

/// The first of the special floats: those that are not large.
const NON_FINITE_COUNT: u64 = 7;

/// NaN, infinities, zeros, subnormals, halves, and where functions saturate or overflow.
pub const SPECIAL_FLOATS: [f32; 36] = [
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    0.0,
    -0.0,
    1e-40,
    -1e-45,
    f32::MIN_POSITIVE,
    f32::MAX,
    f32::MIN,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    -3.5,
    88.5,
    -88.0,
    89.5,
    -104.5,
    20.0,
    -20.0,
    1e-6,
    -1e-6,
    0.3,
    -0.7,
    3.0,
    -6.0,
    1.0e10,
    -3.0e9,
    2147483648.0,
    9223372036854775808.0,
    127.5,
    -128.75,
];
