//! The inner loops of `gemm_blocks_int`: a tile of rows of bytes times 16 columns of packed weights.

#![allow(clippy::needless_range_loop, reason = "loops over plain lanes become vectors")]

use crate::gemm_blocks::{BlockWeights, COLUMNS};
use crate::gemm_blocks_int::{HEAD_WORDS, HEIGHT_MAX, PER_WORD};
use crate::gemm_blocks_line::Block;
use crate::isa::Isa;
use crate::simd::multiversion;

/// `height` rows, as `quantise_rows` laid them, times the columns of one panel. `height` is one of `HEIGHTS`.
pub(crate) fn multiply_tile(
    isa: Isa,
    weights: &BlockWeights,
    words: &[u32],
    rows: &[u32],
    height: usize,
    products: &mut [[f32; COLUMNS]; HEIGHT_MAX],
) {
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx512Vnni {
        return crate::gemm_blocks_int_x86::multiply_tile_vnni(weights, words, rows, height, products);
    }
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx2 {
        return crate::gemm_blocks_int_x86::multiply_tile_avx2(weights, words, rows, height, products);
    }
    match weights.code.bits() {
        4 => multiply_lanes::<4>(isa, *weights, words, rows, height, products),
        _ => multiply_lanes::<8>(isa, *weights, words, rows, height, products),
    }
}

/// Four levels of a word, one a byte: those of 4 bits are the even or the odd ones of eight, those of 8 bits lie signed.
#[inline(always)]
fn levels_of_group<const BITS: u32>(word: u32, group: usize) -> u32 {
    match BITS {
        4 => (word >> (4 * (group as u32 % 2))) & 0x0f0f_0f0f,
        _ => word ^ 0x8080_8080,
    }
}

multiversion! {
    fn multiply_lanes<F: MulAdd, const BITS: u32>(
        weights: BlockWeights, words: &[u32], rows: &[u32], height: usize, products: &mut [[f32; COLUMNS]; HEIGHT_MAX],
    ) {
        let groups = weights.span() / PER_WORD;
        let (groups_of_word, span_words) = ((8 / BITS) as usize, height * (HEAD_WORDS + groups));
        for (row, products) in products[..height].iter_mut().enumerate() {
            let mut totals = [0.0f32; COLUMNS];
            let mut spans = rows.chunks_exact(span_words);
            for words in words.chunks_exact(weights.block_words()) {
                let block = Block::of(&weights, words);
                for (levels, span) in block.levels.chunks_exact(groups / groups_of_word).zip(&mut spans) {
                    let mut sums = [span[row] as i32; COLUMNS];
                    for group in 0..groups {
                        let levels = &levels[group / groups_of_word];
                        let bytes = span[(HEAD_WORDS + group) * height + row].to_le_bytes();
                        for lane in 0..COLUMNS {
                            let levels = levels_of_group::<BITS>(levels[lane], group).to_le_bytes();
                            for at in 0..PER_WORD {
                                sums[lane] += i32::from(levels[at]) * i32::from(bytes[at] as i8);
                            }
                        }
                    }
                    let [scale, sum] = [height + row, 2 * height + row].map(|at| f32::from_bits(span[at]));
                    for lane in 0..COLUMNS {
                        let scale = block.scales.map_or(1.0, |scales| f32::from_bits(scales[lane])) * scale;
                        totals[lane] += sums[lane] as f32 * scale;
                    }
                    if let Some(shifts) = block.shifts {
                        for lane in 0..COLUMNS {
                            totals[lane] += f32::from_bits(shifts[lane]) * sum;
                        }
                    }
                }
            }
            *products = totals;
        }
    }
}
