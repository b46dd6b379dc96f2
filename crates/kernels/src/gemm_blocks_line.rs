//! The inner loops over packed weights of 4 or 8 bits: 16 columns at a time, a block of k at a time.

#![allow(clippy::needless_range_loop, reason = "loops over plain lanes become vectors")]

use crate::gemm_blocks::{BlockWeights, COLUMNS};
use crate::isa::Isa;
use crate::simd::multiversion;

/// x · W for successive columns, from their packed words. `x` is padded to whole blocks; `sums` has the sum of each block
/// of it, which zero points are multiplied with.
pub(crate) fn add_columns(
    isa: Isa,
    weights: &BlockWeights,
    x: &[f32],
    sums: &[f32],
    words: &[u32],
    target: &mut [f32],
) {
    #[cfg(target_arch = "x86_64")]
    if weights.bits == 4 && isa >= Isa::Avx512 {
        // SAFETY: an `Isa` reaches a kernel only through `Exec`, which checked that this machine has it.
        unsafe { x86::columns_of_4_bits(weights, x, sums, words, target) };
        return;
    }
    match weights.bits {
        4 => columns_of_bits::<4>(isa, *weights, x, sums, words, target),
        _ => columns_of_bits::<8>(isa, *weights, x, sums, words, target),
    }
}

/// Some columns, from `first` on, as one f32 panel: k × width. `words` are all packed weights; missing columns are 0. A
/// width is a multiple of 16, or 8.
pub(crate) fn expand_columns(
    isa: Isa,
    weights: &BlockWeights,
    words: &[u32],
    first: usize,
    width: usize,
    target: &mut [f32],
) {
    let panel_words = weights.blocks() * weights.block_words();
    let lanes = width.min(COLUMNS);
    for start in (0..width).step_by(lanes) {
        let column = first + start;
        let words = words.get(column / COLUMNS * panel_words..).and_then(|words| words.get(..panel_words));
        let Some(words) = words else {
            target.chunks_exact_mut(width).for_each(|row| row[start..start + lanes].fill(0.0));
            continue;
        };
        let place = Place { width, start, lanes, first_lane: column % COLUMNS };
        match weights.bits {
            4 => expand_bits::<4>(isa, *weights, words, place, target),
            _ => expand_bits::<8>(isa, *weights, words, place, target),
        }
    }
}

/// Where some of 16 columns go in a panel.
#[derive(Clone, Copy)]
struct Place {
    width: usize,
    start: usize,
    lanes: usize,
    first_lane: usize,
}

/// One block of 16 columns: scales, what zero points add to each weight, levels.
struct Block<'a> {
    scales: &'a [u32],
    shifts: Option<&'a [u32]>,
    levels: &'a [[u32; COLUMNS]],
}

impl<'a> Block<'a> {
    #[inline(always)]
    fn of(weights: &BlockWeights, words: &'a [u32]) -> Block<'a> {
        let (scales, rest) = words.split_at(COLUMNS);
        let (shifts, levels) = rest.split_at(if weights.has_zero_points { COLUMNS } else { 0 });
        Block { scales, shifts: weights.has_zero_points.then_some(shifts), levels: levels.as_chunks().0 }
    }
}

multiversion! {
    fn columns_of_bits<F: MulAdd, const BITS: u32>(
        weights: BlockWeights, x: &[f32], sums: &[f32], words: &[u32], target: &mut [f32],
    ) {
        let (mask, middle, per_word) = (u32::MAX >> (32 - BITS), (1 << (BITS - 1)) as f32, (32 / BITS) as usize);
        let panel_words = weights.blocks() * weights.block_words();
        for (panel, target) in words.chunks_exact(panel_words).zip(target.chunks_mut(COLUMNS)) {
            let mut totals = [0.0f32; COLUMNS];
            let blocks = panel.chunks_exact(weights.block_words()).zip(x.chunks_exact(weights.block)).zip(sums);
            for ((words, x), &sum) in blocks {
                let block = Block::of(&weights, words);
                let mut products = [0.0f32; COLUMNS];
                for (words, x) in block.levels.iter().zip(x.chunks_exact(per_word)) {
                    for (place, &x) in x.iter().enumerate() {
                        for lane in 0..COLUMNS {
                            let level = ((words[lane] >> (place as u32 * BITS)) & mask) as i32 as f32 - middle;
                            products[lane] = F::mul_add(level, x, products[lane]);
                        }
                    }
                }
                for lane in 0..COLUMNS {
                    totals[lane] = F::mul_add(f32::from_bits(block.scales[lane]), products[lane], totals[lane]);
                }
                if let Some(shifts) = block.shifts {
                    for lane in 0..COLUMNS {
                        totals[lane] = F::mul_add(f32::from_bits(shifts[lane]), sum, totals[lane]);
                    }
                }
            }
            target.copy_from_slice(&totals[..target.len()]);
        }
    }

    fn expand_bits<F: MulAdd, const BITS: u32>(weights: BlockWeights, words: &[u32], place: Place, target: &mut [f32]) {
        let (mask, middle, per_word) = (u32::MAX >> (32 - BITS), (1 << (BITS - 1)) as f32, (32 / BITS) as usize);
        let mut rows = target.chunks_exact_mut(place.width);
        for words in words.chunks_exact(weights.block_words()) {
            let block = Block::of(&weights, words);
            for words in block.levels {
                for (step, row) in (0..per_word as u32).zip(&mut rows) {
                    let mut values = [0.0f32; COLUMNS];
                    for lane in 0..COLUMNS {
                        let level = ((words[lane] >> (step * BITS)) & mask) as i32 as f32 - middle;
                        values[lane] = level * f32::from_bits(block.scales[lane]);
                    }
                    if let Some(shifts) = block.shifts {
                        for lane in 0..COLUMNS {
                            values[lane] += f32::from_bits(shifts[lane]);
                        }
                    }
                    row[place.start..place.start + place.lanes]
                        .copy_from_slice(&values[place.first_lane..place.first_lane + place.lanes]);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Block;
    use crate::gemm_blocks::{BlockWeights, COLUMNS};

    /// A level looks its value up in a register: a permutation takes the lowest four bits of each lane as an index.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) fn columns_of_4_bits(
        weights: &BlockWeights,
        x: &[f32],
        sums: &[f32],
        words: &[u32],
        target: &mut [f32],
    ) {
        let values: [f32; 16] = std::array::from_fn(|level| level as f32 - 8.0);
        // SAFETY: sixteen floats.
        let values = unsafe { _mm512_loadu_ps(values.as_ptr()) };
        let panel_words = weights.blocks() * weights.block_words();
        for (panel, target) in words.chunks_exact(panel_words).zip(target.chunks_mut(COLUMNS)) {
            let mut total = _mm512_setzero_ps();
            let blocks = panel.chunks_exact(weights.block_words()).zip(x.chunks_exact(weights.block)).zip(sums);
            for ((words, x), &sum) in blocks {
                let block = Block::of(weights, words);
                // Four chains, so that no product waits for the one before it.
                let mut products = [_mm512_setzero_ps(); 4];
                for (words, x) in block.levels.iter().zip(x.as_chunks::<8>().0) {
                    // SAFETY: sixteen words.
                    let words = unsafe { _mm512_loadu_si512(words.as_ptr().cast()) };
                    products[0] = multiply::<0>(values, words, x[0], products[0]);
                    products[1] = multiply::<4>(values, words, x[1], products[1]);
                    products[2] = multiply::<8>(values, words, x[2], products[2]);
                    products[3] = multiply::<12>(values, words, x[3], products[3]);
                    products[0] = multiply::<16>(values, words, x[4], products[0]);
                    products[1] = multiply::<20>(values, words, x[5], products[1]);
                    products[2] = multiply::<24>(values, words, x[6], products[2]);
                    products[3] = multiply::<28>(values, words, x[7], products[3]);
                }
                let product =
                    _mm512_add_ps(_mm512_add_ps(products[0], products[1]), _mm512_add_ps(products[2], products[3]));
                // SAFETY: sixteen scales.
                let scales = unsafe { _mm512_loadu_ps(block.scales.as_ptr().cast()) };
                total = _mm512_fmadd_ps(scales, product, total);
                if let Some(shifts) = block.shifts {
                    // SAFETY: sixteen shifts.
                    let shifts = unsafe { _mm512_loadu_ps(shifts.as_ptr().cast()) };
                    total = _mm512_fmadd_ps(shifts, _mm512_set1_ps(sum), total);
                }
            }
            let lanes = (1u32 << target.len()) - 1;
            // SAFETY: as many lanes as the target has elements.
            unsafe { _mm512_mask_storeu_ps(target.as_mut_ptr(), lanes as __mmask16, total) };
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    fn multiply<const SHIFT: u32>(values: __m512, words: __m512i, x: f32, sum: __m512) -> __m512 {
        let level = _mm512_permutexvar_ps(_mm512_srli_epi32::<SHIFT>(words), values);
        _mm512_fmadd_ps(level, _mm512_set1_ps(x), sum)
    }
}
