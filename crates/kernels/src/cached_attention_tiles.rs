//! Register tiles of attention by vectors of 512 bits: scores of a strip of queries with 32 keys, weights of a row of scores,
//! and values added by their weights. All three read what others left in a first- or second-level cache.

#![allow(clippy::needless_range_loop, reason = "loops over plain indices are unrolled, which keeps sums in registers")]

use std::arch::x86_64::*;

use crate::cached_attention_strips::{PANEL_KEYS, STRETCH_KEYS, STRIP_ROWS};
use crate::math;

/// The body for a number of rows that is a constant in it.
macro_rules! each_row_count {
    ($rows:expr, $constant:ident => $body:expr) => {
        each_row_count!($rows, $constant => $body, 1 2 3 4 5 6 7 8 9 10 11 12)
    };
    ($rows:expr, $constant:ident => $body:expr, $($count:literal)*) => {
        match $rows {
            $($count => {
                const $constant: usize = $count;
                $body
            })*
            rows => unreachable!("a strip of {rows} rows"),
        }
    };
}
/// A strip and a panel of keys.
pub(crate) struct ScoreTile<'a> {
    /// Rows of queries.
    pub rows: usize,
    /// For each element of a head the queries' own: size × rows.
    pub queries: &'a [f32],
    /// For each element of a head the keys' own: size × `PANEL_KEYS`.
    pub keys: &'a [f32],
    /// Factor of the products.
    pub scale: f32,
    /// The first score of the first row; rows are `STRETCH_KEYS` apart.
    pub scores: &'a mut [f32],
}

impl ScoreTile<'_> {
    /// Scores of all keys of the panel, or of its first half.
    #[target_feature(enable = "avx512f")]
    pub(crate) fn run(self, is_half: bool) {
        let size = self.queries.len() / self.rows;
        assert!(self.keys.len() >= size * PANEL_KEYS, "{} elements of keys for heads of {size}", self.keys.len());
        let width = if is_half { PANEL_KEYS / 2 } else { PANEL_KEYS };
        assert!(self.scores.len() >= (self.rows - 1) * STRETCH_KEYS + width, "scores of {} rows", self.rows);
        // SAFETY: the operands are as long as the tile reads and writes, by the assertions; `size` divides the queries.
        unsafe {
            each_row_count!(self.rows, ROWS => match is_half {
                true => score::<ROWS, 1>(size, self),
                false => score::<ROWS, 2>(size, self),
            })
        }
    }
}

/// A strip, its weights, and some columns of values.
pub(crate) struct ValueTile<'a> {
    /// Rows of weights.
    pub rows: usize,
    /// The first weight of the first row; rows are `STRETCH_KEYS` apart.
    pub weights: &'a [f32],
    /// Keys that have a weight.
    pub count: usize,
    /// Values from the first column on.
    pub values: &'a [f32],
    /// Elements of a value and of a row of sums.
    pub size: usize,
    /// What is left of each row's sums.
    pub kept: &'a [f32; STRIP_ROWS],
    /// Sums from the first column on.
    pub sums: &'a mut [f32],
}

impl ValueTile<'_> {
    /// Adds 32 columns, or 16.
    #[target_feature(enable = "avx512f")]
    pub(crate) fn run(self, is_half: bool) {
        let width = if is_half { 16 } else { 32 };
        assert!(self.count > 0 && self.count <= STRETCH_KEYS, "{} keys", self.count);
        assert!(self.weights.len() >= (self.rows - 1) * STRETCH_KEYS + self.count, "weights of {} rows", self.rows);
        assert!(self.values.len() >= (self.count - 1) * self.size + width, "values of {} keys", self.count);
        assert!(self.sums.len() >= (self.rows - 1) * self.size + width, "sums of {} rows", self.rows);
        // SAFETY: the operands are as long as the tile reads and writes, by the assertions.
        unsafe {
            each_row_count!(self.rows, ROWS => match is_half {
                true => add_values::<ROWS, 1>(self),
                false => add_values::<ROWS, 2>(self),
            })
        }
    }
}

/// # Safety
/// The tile has `size` groups of `ROWS` queries and of `PANEL_KEYS` keys, and room for the scores.
#[target_feature(enable = "avx512f")]
unsafe fn score<const ROWS: usize, const VECTORS: usize>(size: usize, tile: ScoreTile) {
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    let (mut queries, mut keys) = (tile.queries.as_ptr(), tile.keys.as_ptr());
    for _ in 0..size {
        // SAFETY: one of `size` groups, which the caller promises; the pointers move one group each.
        unsafe {
            let mut lanes = [_mm512_setzero_ps(); VECTORS];
            for vector in 0..VECTORS {
                lanes[vector] = _mm512_loadu_ps(keys.add(16 * vector));
            }
            for row in 0..ROWS {
                let query = _mm512_set1_ps(*queries.add(row));
                for vector in 0..VECTORS {
                    sums[row][vector] = _mm512_fmadd_ps(query, lanes[vector], sums[row][vector]);
                }
            }
            queries = queries.add(ROWS);
            keys = keys.add(PANEL_KEYS);
        }
    }
    let (scale, scores) = (_mm512_set1_ps(tile.scale), tile.scores.as_mut_ptr());
    for row in 0..ROWS {
        for vector in 0..VECTORS {
            // SAFETY: a vector of a row, for which the caller promises room.
            unsafe {
                let target = scores.add(row * STRETCH_KEYS + 16 * vector);
                _mm512_storeu_ps(target, _mm512_mul_ps(sums[row][vector], scale));
            }
        }
    }
}

/// # Safety
/// The tile has `count` weights of `ROWS` rows, as many values, and sums, of `VECTORS` vectors each.
#[target_feature(enable = "avx512f")]
unsafe fn add_values<const ROWS: usize, const VECTORS: usize>(tile: ValueTile) {
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    let target = tile.sums.as_mut_ptr();
    for row in 0..ROWS {
        let kept = _mm512_set1_ps(tile.kept[row]);
        for vector in 0..VECTORS {
            // SAFETY: a vector of a row of sums, which the caller promises.
            let sum = unsafe { _mm512_loadu_ps(target.add(row * tile.size + 16 * vector)) };
            sums[row][vector] = _mm512_mul_ps(sum, kept);
        }
    }
    let (mut weights, mut values) = (tile.weights.as_ptr(), tile.values.as_ptr());
    for _ in 0..tile.count {
        // SAFETY: one of `count` keys, which the caller promises; behind the last one the pointers are only computed.
        unsafe {
            let mut lanes = [_mm512_setzero_ps(); VECTORS];
            for vector in 0..VECTORS {
                lanes[vector] = _mm512_loadu_ps(values.add(16 * vector));
            }
            for row in 0..ROWS {
                let weight = _mm512_set1_ps(*weights.add(row * STRETCH_KEYS));
                for vector in 0..VECTORS {
                    sums[row][vector] = _mm512_fmadd_ps(weight, lanes[vector], sums[row][vector]);
                }
            }
            weights = weights.add(1);
        }
        values = values.wrapping_add(tile.size);
    }
    for row in 0..ROWS {
        for vector in 0..VECTORS {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(target.add(row * tile.size + 16 * vector), sums[row][vector]) };
        }
    }
}

/// Scores, whole vectors of them, become weights relative to the largest score so far. Gives that score and the sum of the
/// weights.
#[target_feature(enable = "avx512f")]
pub(crate) fn weigh(before: f32, scores: &mut [f32]) -> (f32, f32) {
    let (vectors, rest) = scores.as_chunks_mut::<16>();
    debug_assert!(rest.is_empty());
    // Of two numbers one of which is none the second is the maximum: what is no number is found by its weight.
    let mut largest = [_mm512_set1_ps(before); 2];
    for (at, scores) in vectors.iter().enumerate() {
        // SAFETY: sixteen floats.
        let scores = unsafe { _mm512_loadu_ps(scores.as_ptr()) };
        largest[at % 2] = _mm512_max_ps(scores, largest[at % 2]);
    }
    let largest = _mm512_reduce_max_ps(_mm512_max_ps(largest[0], largest[1]));
    if largest == f32::NEG_INFINITY {
        scores.fill(0.0);
        return (largest, 0.0);
    }
    let subtracted = _mm512_set1_ps(largest);
    let mut sums = _mm512_setzero_ps();
    for scores in vectors {
        // SAFETY: sixteen floats.
        unsafe {
            let weights = exp_below_zero(_mm512_sub_ps(_mm512_loadu_ps(scores.as_ptr()), subtracted));
            _mm512_storeu_ps(scores.as_mut_ptr(), weights);
            sums = _mm512_add_ps(sums, weights);
        }
    }
    (largest, _mm512_reduce_add_ps(sums))
}

/// As `math::exp_below_zero` of sixteen numbers: the same bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn exp_below_zero(x: __m512) -> __m512 {
    let all = |number: f32| _mm512_set1_ps(number);
    let shifted = _mm512_fmadd_ps(x, all(math::LOG2_E), all(math::ROUND_MAGIC));
    let n = _mm512_sub_ps(shifted, all(math::ROUND_MAGIC));
    let r = _mm512_fnmadd_ps(n, all(math::LN2_HIGH), x);
    let r = _mm512_fnmadd_ps(n, all(math::LN2_LOW), r);
    let [a, b, c, d, e] = math::EXP_TAIL;
    let mut sum = all(a);
    for coefficient in [b, c, d, e, 1.0, 1.0] {
        sum = _mm512_fmadd_ps(sum, r, all(coefficient));
    }
    let bias = 127_i32.wrapping_sub(math::ROUND_MAGIC.to_bits() as i32);
    let power = _mm512_slli_epi32::<23>(_mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(bias)));
    let is_some = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, all(math::EXP_BELOW_ZERO_MIN));
    _mm512_maskz_mul_ps(is_some, sum, _mm512_castsi512_ps(power))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::simd::Fused;

    #[test]
    fn sixteen_exponentials_have_the_bits_of_each() {
        if !Isa::Avx512.is_supported() {
            return;
        }
        let numbers: Vec<f32> = (0..1600)
            .map(|i| -0.07 * i as f32)
            .chain([-0.0, f32::NEG_INFINITY, f32::NAN, -85.999, -86.0, -86.001, -1e30, -1e-30])
            .chain([-0.5; 8])
            .collect();
        for chunk in numbers.as_chunks::<16>().0 {
            let mut found = [0.0; 16];
            #[target_feature(enable = "avx512f")]
            fn store(x: &[f32; 16], target: &mut [f32; 16]) {
                // SAFETY: sixteen floats each.
                unsafe { _mm512_storeu_ps(target.as_mut_ptr(), exp_below_zero(_mm512_loadu_ps(x.as_ptr()))) };
            }
            // SAFETY: this machine has the instructions.
            unsafe { store(chunk, &mut found) };
            let expected = chunk.map(math::exp_below_zero::<Fused>);
            assert_eq!(found.map(f32::to_bits), expected.map(f32::to_bits), "{chunk:?}");
        }
    }
}
