//! How a product multiplies: in f32, or in bf16 with f32 sums.

use crate::float16::f32_to_bf16;
use crate::gemm_tile::K_BLOCK;
use crate::simd::multiversion;

/// How the values of a product are multiplied; sums are always f32.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Arithmetic {
    /// As they are.
    #[default]
    F32,
    /// Rounded to bf16. Two values of successive k travel as one word, the bits of one f32.
    Bf16,
}

impl Arithmetic {
    /// Steps of a register tile for this many values of k.
    pub fn steps(self, k: usize) -> usize {
        k.div_ceil(self.values())
    }

    /// The most steps of one accumulator.
    pub(crate) fn steps_max(self) -> usize {
        K_BLOCK / self.values()
    }

    /// Values of k in one step.
    pub(crate) fn values(self) -> usize {
        match self {
            Arithmetic::F32 => 1,
            Arithmetic::Bf16 => 2,
        }
    }
}

/// Two values as one word, the first in its low half.
pub(crate) fn word(first: f32, second: f32) -> f32 {
    f32::from_bits(u32::from(f32_to_bf16(first)) | u32::from(f32_to_bf16(second)) << 16)
}

/// The two values of a word.
#[inline(always)]
pub(crate) fn values(word: f32) -> [f32; 2] {
    [f32::from_bits(word.to_bits() << 16), f32::from_bits(word.to_bits() & 0xffff_0000)]
}

multiversion! {
    /// Joins rows of `width` values in twos: `target` has a row of words for each. An odd last row is joined with zeros.
    pub(crate) fn join_rows<F: MulAdd>(source: &[f32], width: usize, target: &mut [f32]) {
        let pairs = source.chunks_exact(2 * width);
        let rest = pairs.remainder();
        let (whole, last) = target.split_at_mut(pairs.len() * width);
        for (pair, target) in pairs.zip(whole.chunks_exact_mut(width)) {
            let (first, second) = pair.split_at(width);
            for ((target, first), second) in target.iter_mut().zip(first).zip(second) {
                *target = word(*first, *second);
            }
        }
        for (target, first) in last.iter_mut().zip(rest) {
            *target = word(*first, 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    #[test]
    fn words_keep_both_values_and_odd_rows_end_with_zero() {
        let source: Vec<f32> = (0..15).map(|index| index as f32).collect();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
            let mut words = [0.0; 9];
            join_rows(isa, &source, 3, &mut words);
            assert_eq!(words.map(values)[..3], [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]);
            assert_eq!(words.map(values)[6..], [[12.0, 0.0], [13.0, 0.0], [14.0, 0.0]]);
        }
    }
}
