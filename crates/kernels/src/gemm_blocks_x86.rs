//! The loops of `gemm_blocks_line` for vectors of 512 bits: a word of 16 columns is one register, and its bits become
//! numbers in two or three instructions.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::gemm_blocks::{BlockWeights, COLUMNS, Code};
use crate::gemm_blocks_line::{Block, PaddedRows};

/// One function for every code: `numbers` is what the bits at each place of `words` stand for; `table` has the numbers of four
/// bits, which a permutation looks up by the lowest bits of each lane.
macro_rules! for_each_code {
    ($code:expr, $run:ident!($($argument:tt)*)) => {
        match $code {
            Code::Int4 | Code::Uint4 => $run!(8, |words, table| [
                _mm512_permutexvar_ps(words, table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(words), table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<8>(words), table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<12>(words), table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<16>(words), table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<20>(words), table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<24>(words), table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<28>(words), table),
            ], $($argument)*),
            Code::Int8 => $run!(4, |words, _table| [
                _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(words))),
                _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<16>(words))),
                _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<8>(words))),
                _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(words)),
            ], $($argument)*),
            Code::Bf16 => $run!(2, |words, _table| [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)),
                _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32))),
            ], $($argument)*),
        }
    };
}

/// The numbers of levels of four bits.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn level_table(code: Code) -> __m512 {
    let numbers: [f32; 16] = std::array::from_fn(|level| level as f32 - f32::from(code.origin()));
    // SAFETY: sixteen floats.
    unsafe { _mm512_loadu_ps(numbers.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn load(words: &[u32; COLUMNS]) -> __m512i {
    // SAFETY: sixteen words.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn sum<const CHAINS: usize>(chains: [__m512; CHAINS]) -> __m512 {
    let mut total = chains[0];
    for chain in &chains[1..] {
        total = _mm512_add_ps(total, *chain);
    }
    total
}

/// ROWS rows from `first` on times the columns of a panel. Each row has CHAINS sums, so that no product waits for the one
/// before it. Gives the number of rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(crate) fn multiply_rows<const ROWS: usize, const CHAINS: usize>(
    weights: &BlockWeights,
    words: &[u32],
    rows: &PaddedRows<'_>,
    first: usize,
    products: &mut [[f32; COLUMNS]; 4],
) -> usize {
    macro_rules! run {
        ($per_word:literal, |$words:ident, $table:ident| $numbers:expr,) => {{
            let $table = level_table(weights.code);
            // Every row has as many blocks as the panel: `rows.row` checked it.
            let mut x: [*const f32; ROWS] = std::array::from_fn(|row| rows.row(first + row).0.as_ptr());
            let sums: [&[f32]; ROWS] = std::array::from_fn(|row| rows.row(first + row).1);
            let mut totals = [_mm512_setzero_ps(); ROWS];
            for (at, words) in words.chunks_exact(weights.block_words()).take(rows.blocks).enumerate() {
                let block = Block::of(weights, words);
                let mut chains = [[_mm512_setzero_ps(); CHAINS]; ROWS];
                for words in block.levels {
                    let $words = load(words);
                    let numbers: [__m512; $per_word] = $numbers;
                    for row in 0..ROWS {
                        for place in 0..$per_word {
                            // SAFETY: a block of a row has as many elements as the words of its levels.
                            let x = _mm512_set1_ps(unsafe { *x[row].add(place) });
                            let chain = &mut chains[row][place % CHAINS];
                            *chain = _mm512_fmadd_ps(numbers[place], x, *chain);
                        }
                        x[row] = x[row].wrapping_add($per_word);
                    }
                }
                let scales = block.scales.map(|scales| _mm512_castsi512_ps(load(scales)));
                let shifts = block.shifts.map(|shifts| _mm512_castsi512_ps(load(shifts)));
                for row in 0..ROWS {
                    let product = sum(chains[row]);
                    totals[row] = match scales {
                        Some(scales) => _mm512_fmadd_ps(scales, product, totals[row]),
                        None => _mm512_add_ps(product, totals[row]),
                    };
                    if let Some(shifts) = shifts {
                        totals[row] = _mm512_fmadd_ps(shifts, _mm512_set1_ps(sums[row][at]), totals[row]);
                    }
                }
            }
            totals
        }};
    }
    let totals = for_each_code!(weights.code, run!());
    for (total, products) in totals.into_iter().zip(products) {
        // SAFETY: sixteen floats.
        unsafe { _mm512_storeu_ps(products.as_mut_ptr(), total) };
    }
    ROWS
}

/// The columns of a panel for some k as f32, rows of them `width` apart; the first k is the first of a word.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(crate) fn expand(weights: &BlockWeights, words: &[u32], ks: Range<usize>, target: &mut [f32], width: usize) {
    macro_rules! run {
        ($per_word:literal, |$words:ident, $table:ident| $numbers:expr,) => {{
            let $table = level_table(weights.code);
            let groups_of_block = weights.block / $per_word;
            for group in ks.start / $per_word..ks.end.div_ceil($per_word) {
                let at = group / groups_of_block * weights.block_words();
                let block = Block::of(weights, &words[at..at + weights.block_words()]);
                let $words = load(&block.levels[group % groups_of_block]);
                let numbers: [__m512; $per_word] = $numbers;
                let scales = block.scales.map(|scales| _mm512_castsi512_ps(load(scales)));
                let shifts = block.shifts.map(|shifts| _mm512_castsi512_ps(load(shifts)));
                for (place, &number) in numbers.iter().enumerate() {
                    let k = group * $per_word + place;
                    if k >= ks.end {
                        break;
                    }
                    let value = match (scales, shifts) {
                        (Some(scales), Some(shifts)) => _mm512_fmadd_ps(number, scales, shifts),
                        (Some(scales), None) => _mm512_mul_ps(number, scales),
                        (None, _) => number,
                    };
                    let row = &mut target[(k - ks.start) * width..][..COLUMNS];
                    // SAFETY: sixteen floats.
                    unsafe { _mm512_storeu_ps(row.as_mut_ptr(), value) };
                }
            }
        }};
    }
    for_each_code!(weights.code, run!())
}
