//! The loops of `gemm_blocks_digits` by the dot products of bytes that AVX-512 has.

#![allow(clippy::needless_range_loop, reason = "loops over plain indices are unrolled, which keeps sums in registers")]

use std::arch::x86_64::*;

use crate::gemm_blocks::{BlockWeights, COLUMNS};
use crate::gemm_blocks_digits::{
    DIGITS, GROUPS, HEIGHT_MAX, MIDDLE, SCALE_EXPONENTS, SPAN, SPAN_LINES, SPAN_WORDS, SUM, WIDTH, has_digits,
    unit_and_factor,
};
use crate::gemm_blocks_line::Block;

/// Vectors of a line of a panel.
const VECTORS: usize = WIDTH / COLUMNS;
/// Levels of four bits are counted from the middle one, so that they are small on both sides.
const MIDDLE_LEVEL: i8 = 8;

/// As its caller: a tile of at most `HEIGHT_MAX` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
pub(crate) fn multiply_tile(
    weights: &BlockWeights,
    panel: &[u32],
    rows: &[u32],
    next: &[u32],
    products: &mut [[f32; WIDTH]; HEIGHT_MAX],
) {
    let (is_wide, has_shifts) = (weights.code.bits() == 8, weights.adds_sums());
    match (rows.len() / (panel.len() / (SPAN_LINES * WIDTH) * SPAN_WORDS), is_wide) {
        (3, false) => multiply::<3, false>(has_shifts, panel, rows, next, products),
        (2, false) => multiply::<2, false>(has_shifts, panel, rows, next, products),
        (1, false) => multiply::<1, false>(has_shifts, panel, rows, next, products),
        (3, true) => multiply::<3, true>(has_shifts, panel, rows, next, products),
        (2, true) => multiply::<2, true>(has_shifts, panel, rows, next, products),
        (1, true) => multiply::<1, true>(has_shifts, panel, rows, next, products),
        (height, _) => unreachable!("a tile of {height} rows"),
    }
}

/// Sums of levels of eight bits, `IS_WIDE`, do not fit an i32 whole; those of four bits do.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
fn multiply<const ROWS: usize, const IS_WIDE: bool>(
    has_shifts: bool,
    panel: &[u32],
    rows: &[u32],
    next: &[u32],
    products: &mut [[f32; WIDTH]; HEIGHT_MAX],
) {
    let mut totals = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    let spans = panel.chunks_exact(SPAN_LINES * WIDTH).zip(rows.chunks_exact(ROWS * SPAN_WORDS));
    for (number, (panel, rows)) in spans.enumerate() {
        // Two lines at a time: a core waits when it has asked for as many as it can remember.
        for line in [2 * number, 2 * number + 1] {
            _mm_prefetch::<_MM_HINT_T1>(next.as_ptr().wrapping_add(line * COLUMNS).cast());
        }
        let line = |line: usize| -> [__m512i; VECTORS] {
            // SAFETY: a line is `VECTORS` times sixteen words, and there are `SPAN_LINES`.
            std::array::from_fn(|vector| unsafe {
                _mm512_loadu_si512(panel.as_ptr().add(line * WIDTH + vector * COLUMNS).cast())
            })
        };
        let word = |row: usize, at: usize| {
            // SAFETY: there are `ROWS` times `SPAN_WORDS` words.
            unsafe { *rows.as_ptr().add(row * SPAN_WORDS + at) }
        };
        let mut sums = [[[_mm512_setzero_si512(); VECTORS]; DIGITS]; ROWS];
        let starts = line(0);
        for row in 0..ROWS {
            sums[row][DIGITS - 1] = starts;
        }
        for group in 0..GROUPS {
            let levels = line(3 + group);
            for row in 0..ROWS {
                for digit in 0..DIGITS {
                    let bytes = _mm512_set1_epi32(word(row, 2 + digit * GROUPS + group) as i32);
                    for vector in 0..VECTORS {
                        let sum = &mut sums[row][digit][vector];
                        *sum = _mm512_dpbusd_epi32(*sum, bytes, levels[vector]);
                    }
                }
            }
        }
        let (scales, shifts) = (line(1), line(2));
        for row in 0..ROWS {
            let (unit, sum) = (_mm512_set1_epi32(word(row, 0) as i32), word(row, SUM));
            for vector in 0..VECTORS {
                let [low, middle, high] = std::array::from_fn(|digit| sums[row][digit][vector]);
                let low = _mm512_add_epi32(low, _mm512_slli_epi32::<8>(middle));
                let sum_of_all = match IS_WIDE {
                    true => {
                        let high = _mm512_cvtepi32_ps(high);
                        _mm512_fmadd_ps(high, _mm512_set1_ps(65536.0), _mm512_cvtepi32_ps(low))
                    }
                    false => _mm512_cvtepi32_ps(_mm512_add_epi32(low, _mm512_slli_epi32::<16>(high))),
                };
                // The unit is a power of two: this is a product.
                let factor = _mm512_castsi512_ps(_mm512_add_epi32(scales[vector], unit));
                let total = &mut totals[row][vector];
                *total = _mm512_fmadd_ps(sum_of_all, factor, *total);
                if has_shifts {
                    let sum = _mm512_set1_ps(f32::from_bits(sum));
                    *total = _mm512_fmadd_ps(_mm512_castsi512_ps(shifts[vector]), sum, *total);
                }
            }
        }
    }
    for (totals, products) in totals.iter().zip(products) {
        for vector in 0..VECTORS {
            // SAFETY: sixteen of `WIDTH` floats.
            unsafe { _mm512_storeu_ps(products.as_mut_ptr().add(vector * COLUMNS), totals[vector]) };
        }
    }
}

/// As its caller: the columns of one packed panel or two, and zeros for the second where it is missing.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
pub(crate) fn expand_panel(weights: &BlockWeights, packed: &[u32], target: &mut [u32]) -> bool {
    let (target, _) = target.as_chunks_mut::<{ SPAN_LINES * WIDTH }>();
    let mut panels = packed.chunks_exact(weights.panel_words());
    let mut is_whole = true;
    for vector in 0..VECTORS {
        is_whole &= match (panels.next(), weights.code.bits()) {
            (Some(panel), 4) => expand_columns::<4>(weights, panel, vector, target),
            (Some(panel), _) => expand_columns::<8>(weights, panel, vector, target),
            (None, _) => {
                let lines = target.iter_mut().flat_map(|span| span.as_chunks_mut::<COLUMNS>().0);
                lines.skip(vector).step_by(VECTORS).for_each(|line| line.fill(0));
                true
            }
        };
    }
    is_whole
}

/// The columns of one packed panel, as one of the vectors of every line. False where a scale cannot be multiplied with units.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
fn expand_columns<const BITS: usize>(
    weights: &BlockWeights,
    panel: &[u32],
    vector: usize,
    target: &mut [[u32; SPAN_LINES * WIDTH]],
) -> bool {
    let lines_of_span = GROUPS * BITS / 8;
    let from_middle = if BITS == 4 { f32::from(MIDDLE_LEVEL) - f32::from(weights.code.origin()) } else { 0.0 };
    let least = _mm512_set1_epi32((SCALE_EXPONENTS.start() << 23) as i32);
    let width = _mm512_set1_epi32(((SCALE_EXPONENTS.end() + 1 - SCALE_EXPONENTS.start()) << 23) as i32);
    let mut odd: __mmask16 = 0;
    let mut targets = target.iter_mut();
    for words in panel.chunks_exact(weights.block_words()) {
        let block = Block::of(weights, words);
        // SAFETY: sixteen words.
        let load = |line: &[u32; COLUMNS]| unsafe { _mm512_loadu_si512(line.as_ptr().cast()) };
        let scales = block.scales.map_or(_mm512_set1_ps(1.0), |scales| _mm512_castsi512_ps(load(scales)));
        let shifts = block.shifts.map_or(_mm512_setzero_ps(), |shifts| _mm512_castsi512_ps(load(shifts)));
        let shifts = _mm512_fmadd_ps(_mm512_set1_ps(from_middle), scales, shifts);
        let magnitudes = _mm512_and_si512(_mm512_castps_si512(scales), _mm512_set1_epi32(i32::MAX));
        // A weight without a scale is a level of 0 with any scale.
        let zeros = _mm512_cmpeq_epi32_mask(magnitudes, _mm512_setzero_si512());
        odd |= _mm512_cmpge_epu32_mask(_mm512_sub_epi32(magnitudes, least), width) & !zeros;
        let scales = _mm512_mask_mov_ps(scales, zeros, _mm512_set1_ps(1.0));
        for (levels, target) in block.levels.chunks_exact(lines_of_span).zip(&mut targets) {
            let bytes = bytes_of_levels::<BITS>(levels);
            let bytes = if zeros == 0 { bytes } else { bytes.map(|bytes| _mm512_maskz_mov_epi32(!zeros, bytes)) };
            let mut store = |line: usize, value: __m512i| {
                // SAFETY: one of the vectors of one of `SPAN_LINES` lines.
                unsafe { _mm512_storeu_si512(target.as_mut_ptr().add(line * WIDTH + vector * COLUMNS).cast(), value) };
            };
            store(0, starts_of(&bytes));
            store(1, _mm512_castps_si512(scales));
            store(2, _mm512_castps_si512(shifts));
            for group in 0..GROUPS {
                store(3 + group, bytes[group]);
            }
        }
    }
    odd == 0
}

/// Four levels of each column, a signed byte each, for every group of a span.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
fn bytes_of_levels<const BITS: usize>(levels: &[[u32; COLUMNS]]) -> [__m512i; GROUPS] {
    let (low, middle) = (_mm512_set1_epi8(0x0f), _mm512_set1_epi8(MIDDLE_LEVEL));
    std::array::from_fn(|group| {
        // SAFETY: sixteen words.
        let words = unsafe { _mm512_loadu_si512(levels[group * BITS / 8].as_ptr().cast()) };
        match (BITS, group % 2) {
            (4, 0) => _mm512_sub_epi8(_mm512_and_si512(words, low), middle),
            (4, _) => _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi32::<4>(words), low), middle),
            _ => words,
        }
    })
}

/// What sums of the highest digit start from: `MIDDLE`, which was added to every integer, is so many of that digit.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
fn starts_of(bytes: &[__m512i; GROUPS]) -> __m512i {
    let middle_digit = _mm512_set1_epi8((MIDDLE >> 16) as u8 as i8);
    let sum = bytes.iter().fold(_mm512_setzero_si512(), |sum, &bytes| _mm512_dpbusd_epi32(sum, middle_digit, bytes));
    _mm512_sub_epi32(_mm512_setzero_si512(), sum)
}

/// As its caller.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
pub(crate) fn digitise_tile(weights: &BlockWeights, x: &[f32], words: &mut [u32]) {
    let (k, is_halved, has_sums) = (weights.k, weights.code.bits() == 4, weights.adds_sums());
    let height = x.len() / k;
    let (spans, _) = words.as_chunks_mut::<SPAN_WORDS>();
    for (row, x) in x.chunks_exact(k).enumerate() {
        let mut largest = 0;
        for (number, words) in spans.iter_mut().skip(row).step_by(height).enumerate() {
            let some = x.get(number * SPAN..).unwrap_or_default();
            let span = match some.first_chunk::<SPAN>() {
                Some(whole) => digitise_span(whole, is_halved, has_sums),
                None => {
                    let mut padded = [0.0; SPAN];
                    padded[..some.len()].copy_from_slice(some);
                    digitise_span(&padded, is_halved, has_sums)
                }
            };
            largest = span.largest.max(largest);
            (words[0], words[SUM]) = (span.unit, span.sum);
            for (digit, words) in span.digits.into_iter().zip(words[2..].as_chunks_mut::<GROUPS>().0) {
                // SAFETY: eight words.
                unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), digit) };
            }
        }
        if !has_digits(largest) {
            spans[row][SUM] = f32::NAN.to_bits();
        }
    }
}

/// A span of a row.
struct Span {
    /// Bits of the largest magnitude.
    largest: u32,
    /// What is added to the bits of a scale to multiply it with what an integer of 1 stands for.
    unit: u32,
    /// Bits of the sum of all values, where it is wanted.
    sum: u32,
    /// The words of each digit, from the lowest on.
    digits: [__m256i; DIGITS],
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
fn digitise_span(values: &[f32; SPAN], is_halved: bool, has_sum: bool) -> Span {
    // SAFETY: the first and the last sixteen of 32 floats.
    let halves = unsafe { [_mm512_loadu_ps(values.as_ptr()), _mm512_loadu_ps(values.as_ptr().add(SPAN / 2))] };
    let magnitudes = halves.map(|half| _mm512_and_si512(_mm512_castps_si512(half), _mm512_set1_epi32(i32::MAX)));
    let largest = _mm512_reduce_max_epu32(_mm512_max_epu32(magnitudes[0], magnitudes[1]));
    let (unit, factor) = unit_and_factor(largest);
    let (factor, limit) = (_mm512_set1_ps(f32::from_bits(factor)), _mm512_set1_epi32(MIDDLE - 1));
    let integers = halves.map(|half| {
        // The largest may have been rounded up to one more than there is.
        let nearest = _mm512_min_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(half, factor)), limit);
        _mm512_max_epi32(nearest, _mm512_sub_epi32(_mm512_setzero_si512(), limit))
    });
    let sum = match has_sum {
        true => {
            let unit = f32::from_bits(unit.wrapping_add(1.0_f32.to_bits()));
            _mm512_reduce_add_epi32(_mm512_add_epi32(integers[0], integers[1])) as f32 * unit
        }
        false => 0.0,
    };
    let lifted = integers.map(|integers| _mm512_add_epi32(integers, _mm512_set1_epi32(MIDDLE)));
    let even_then_odd = _mm256_setr_epi8(
        0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, 0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15,
    );
    let bytes_of = |[first, second]: [__m512i; 2]| {
        let bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(second), _mm512_cvtepi32_epi8(first));
        if is_halved { _mm256_shuffle_epi8(bytes, even_then_odd) } else { bytes }
    };
    let digits = [
        bytes_of(lifted),
        bytes_of(lifted.map(|integers| _mm512_srli_epi32::<8>(integers))),
        bytes_of(lifted.map(|integers| _mm512_srli_epi32::<16>(integers))),
    ];
    Span { largest, unit, sum: sum.to_bits(), digits }
}
