//! The loops of `gemm_blocks_int_line` by the dot products of bytes that x86 has.

use std::arch::x86_64::*;

use crate::gemm_blocks::{BlockWeights, COLUMNS};
use crate::gemm_blocks_int::{HEAD_WORDS, HEIGHT_MAX, PER_WORD, SPAN, Span, quantise_spans, scale_and_factor};
use crate::gemm_blocks_line::Block;

type Products = [[f32; COLUMNS]; HEIGHT_MAX];

/// Calls a kernel that is made for the bits of a weight, the groups of four k of a span, and a number of rows.
macro_rules! for_each_form {
    ($weights:expr, $rows:expr, [$($height:literal)*], $kernel:ident $arguments:tt) => {
        match ($weights.code.bits(), $weights.span() / PER_WORD, $rows) {
            $(
                (4, 8, $height) => $kernel::<4, 8, $height>$arguments,
                (4, _, $height) => $kernel::<4, 4, $height>$arguments,
                (_, 8, $height) => $kernel::<8, 8, $height>$arguments,
                (_, _, $height) => $kernel::<8, 4, $height>$arguments,
            )*
            (_, _, rows) => unreachable!("a tile of {rows} rows"),
        }
    };
}

/// As `multiply_tile`, on a machine that has AVX-512 with VNNI.
pub(crate) fn multiply_tile_vnni(
    weights: &BlockWeights,
    words: &[u32],
    rows: &[u32],
    height: usize,
    products: &mut Products,
) {
    // SAFETY: an `Isa` reaches a kernel only through `Exec`, which checked that this machine has it.
    unsafe { for_each_form!(weights, height, [16 8 4 2 1], vnni(weights, words, rows, products)) }
}

/// Four levels of each column, a byte each, for every group of a span.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
fn levels_512<const BITS: u32, const GROUPS: usize>(words: &[[u32; COLUMNS]]) -> [__m512i; GROUPS] {
    let (low, flip) = (_mm512_set1_epi8(0x0f), _mm512_set1_epi8(0x80_u8 as i8));
    std::array::from_fn(|group| {
        let words = &words[group * BITS as usize / 8];
        // SAFETY: sixteen words.
        let words = unsafe { _mm512_loadu_si512(words.as_ptr().cast()) };
        match (BITS, group % 2) {
            (4, 0) => _mm512_and_si512(words, low),
            (4, _) => _mm512_and_si512(_mm512_srli_epi32::<4>(words), low),
            _ => _mm512_xor_si512(words, flip),
        }
    })
}

/// Tiles of no more rows read weights as fast as these come one after another.
const ROWS_THAT_WAIT: usize = 2;

/// Asks for the same block of the next panel: many rows take so long over a panel that the machine forgets to fetch ahead.
#[inline]
#[target_feature(enable = "avx512f")]
fn ask_for_next(weights: &BlockWeights, words: &[u32]) {
    let next = words.as_ptr().wrapping_add(weights.panel_words());
    for line in 0..weights.block_words() / COLUMNS {
        _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(line * COLUMNS).cast());
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
fn vnni<const BITS: u32, const GROUPS: usize, const ROWS: usize>(
    weights: &BlockWeights,
    words: &[u32],
    rows: &[u32],
    products: &mut Products,
) {
    let mut totals = [_mm512_setzero_ps(); ROWS];
    let mut spans = rows.chunks_exact(ROWS * (HEAD_WORDS + GROUPS));
    for words in words.chunks_exact(weights.block_words()) {
        if ROWS > ROWS_THAT_WAIT {
            ask_for_next(weights, words);
        }
        let block = Block::of(weights, words);
        // SAFETY: sixteen floats each.
        let load = |line: Option<&[u32; COLUMNS]>| line.map(|line| unsafe { _mm512_loadu_ps(line.as_ptr().cast()) });
        let (scales, shifts) = (load(block.scales).unwrap_or(_mm512_set1_ps(1.0)), load(block.shifts));
        for (words, span) in block.levels.chunks_exact(GROUPS * BITS as usize / 8).zip(&mut spans) {
            let levels = levels_512::<BITS, GROUPS>(words);
            let (heads, bytes) = span.split_at(HEAD_WORDS * ROWS);
            let (starts, heads) = heads.split_at(ROWS);
            let (row_scales, row_sums) = heads.split_at(ROWS);
            for row in 0..ROWS {
                let mut sums = _mm512_set1_epi32(starts[row] as i32);
                for (group, &levels) in levels.iter().enumerate() {
                    let bytes = _mm512_set1_epi32(bytes[group * ROWS + row] as i32);
                    sums = _mm512_dpbusd_epi32(sums, levels, bytes);
                }
                let scales = _mm512_mul_ps(scales, _mm512_set1_ps(f32::from_bits(row_scales[row])));
                totals[row] = _mm512_add_ps(totals[row], _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scales));
                if let Some(shifts) = shifts {
                    let sum = _mm512_set1_ps(f32::from_bits(row_sums[row]));
                    totals[row] = _mm512_add_ps(totals[row], _mm512_mul_ps(shifts, sum));
                }
            }
        }
    }
    for (total, products) in totals.into_iter().zip(products) {
        // SAFETY: sixteen floats.
        unsafe { _mm512_storeu_ps(products.as_mut_ptr(), total) };
    }
}

/// As `quantise_row`, on a machine that has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(crate) fn quantise_row_avx512(weights: &BlockWeights, x: &[f32], height: usize, row: usize, words: &mut [u32]) {
    quantise_spans(weights, x, height, row, words, |values, is_halved| quantise_span(values, is_halved));
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn quantise_span(values: &[f32; SPAN], is_halved: bool) -> Span {
    // SAFETY: the first and the last sixteen of 32 floats.
    let halves = unsafe { [_mm512_loadu_ps(values.as_ptr()), _mm512_loadu_ps(values.as_ptr().add(SPAN / 2))] };
    let magnitudes = halves.map(|half| _mm512_and_si512(_mm512_castps_si512(half), _mm512_set1_epi32(i32::MAX)));
    let (scale, factor) = scale_and_factor(_mm512_reduce_max_epu32(_mm512_max_epu32(magnitudes[0], magnitudes[1])));
    let bytes = halves.map(|half| {
        let integers = _mm512_cvtps_epi32(_mm512_mul_ps(half, _mm512_set1_ps(factor)));
        _mm512_cvtsepi32_epi8(integers)
    });
    let bytes = _mm256_set_m128i(bytes[1], bytes[0]);
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    let quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    let quads = _mm_add_epi32(_mm256_castsi256_si128(quads), _mm256_extracti128_si256::<1>(quads));
    let sums = _mm_add_epi32(quads, _mm_shuffle_epi32::<0b01_00_11_10>(quads));
    let sum = _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_shuffle_epi32::<0b10_11_00_01>(sums)));
    let even_then_odd = _mm256_setr_epi8(
        0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, 0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15,
    );
    let ordered = if is_halved { _mm256_shuffle_epi8(bytes, even_then_odd) } else { bytes };
    let mut words = [0; SPAN / PER_WORD];
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), ordered) };
    Span { scale, sum, bytes: words }
}

/// As `multiply_tile`, on a machine that has AVX2: at most four rows and half of the columns at a time.
pub(crate) fn multiply_tile_avx2(
    weights: &BlockWeights,
    words: &[u32],
    rows: &[u32],
    height: usize,
    products: &mut Products,
) {
    for row in (0..height).step_by(4) {
        for first_lane in [0, COLUMNS / 2] {
            let place = Place { height, row, first_lane };
            // SAFETY: as above.
            unsafe { for_each_form!(weights, height.min(4), [4 2 1], avx2(weights, words, rows, place, products)) }
        }
    }
}

/// Which rows of a tile and which columns of a panel are multiplied.
#[derive(Clone, Copy)]
struct Place {
    height: usize,
    row: usize,
    first_lane: usize,
}

/// Pairs of products of the levels of a group, as they lie in words of eight columns, and the bytes of a row: no sum of two
/// products needs more than 16 bits, since those of 8 bits are multiplied as magnitudes with signed bytes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn pair_products<const BITS: u32>(words: __m256i, group: usize, bytes: __m256i) -> __m256i {
    let low = _mm256_set1_epi8(0x0f);
    match (BITS, group % 2) {
        (4, 0) => _mm256_maddubs_epi16(_mm256_and_si256(words, low), bytes),
        (4, _) => _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi32::<4>(words), low), bytes),
        _ => _mm256_maddubs_epi16(_mm256_abs_epi8(words), _mm256_sign_epi8(bytes, words)),
    }
}

#[target_feature(enable = "avx2,fma")]
fn avx2<const BITS: u32, const GROUPS: usize, const ROWS: usize>(
    weights: &BlockWeights,
    words: &[u32],
    rows: &[u32],
    Place { height, row: first_row, first_lane }: Place,
    products: &mut Products,
) {
    let mut totals = [_mm256_setzero_ps(); ROWS];
    let mut spans = rows.chunks_exact(height * (HEAD_WORDS + GROUPS));
    for words in words.chunks_exact(weights.block_words()) {
        let block = Block::of(weights, words);
        let load = |line: &[u32; COLUMNS]| {
            // SAFETY: eight of sixteen words.
            unsafe { _mm256_loadu_si256(line[first_lane..first_lane + 8].as_ptr().cast()) }
        };
        let load_floats = |line: Option<&[u32; COLUMNS]>| line.map(|line| _mm256_castsi256_ps(load(line)));
        let (scales, shifts) = (load_floats(block.scales).unwrap_or(_mm256_set1_ps(1.0)), load_floats(block.shifts));
        for (words, span) in block.levels.chunks_exact(GROUPS * BITS as usize / 8).zip(&mut spans) {
            // Levels of 8 bits lie signed and are multiplied so, without what their origin would add.
            let mut sums: [__m256i; ROWS] =
                std::array::from_fn(|row| _mm256_set1_epi32(if BITS == 4 { span[first_row + row] as i32 } else { 0 }));
            for group in 0..GROUPS {
                let words = load(&words[group * BITS as usize / 8]);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let bytes = _mm256_set1_epi32(span[(HEAD_WORDS + group) * height + first_row + row] as i32);
                    let pairs = pair_products::<BITS>(words, group, bytes);
                    *sums = _mm256_add_epi32(*sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                }
            }
            for (row, total) in totals.iter_mut().enumerate() {
                let head = |line: usize| _mm256_set1_ps(f32::from_bits(span[line * height + first_row + row]));
                let scales = _mm256_mul_ps(scales, head(1));
                *total = _mm256_add_ps(*total, _mm256_mul_ps(_mm256_cvtepi32_ps(sums[row]), scales));
                if let Some(shifts) = shifts {
                    *total = _mm256_add_ps(*total, _mm256_mul_ps(shifts, head(2)));
                }
            }
        }
    }
    for (total, products) in totals.into_iter().zip(&mut products[first_row..]) {
        // SAFETY: eight of sixteen floats.
        unsafe { _mm256_storeu_ps(products[first_lane..first_lane + 8].as_mut_ptr(), total) };
    }
}
