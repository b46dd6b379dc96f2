//! The inner loops over packed weights of few bits: 16 columns at a time, a block of k at a time.

#![allow(clippy::needless_range_loop, reason = "loops over plain lanes become vectors")]

use std::ops::Range;

use crate::gemm_blocks::{BlockWeights, COLUMNS, Code};
use crate::isa::Isa;
use crate::simd::multiversion;

/// Rows of x, each padded with zeros to whole blocks, and the sum of each of their blocks.
#[derive(Clone, Copy)]
pub(crate) struct PaddedRows<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) sums: &'a [f32],
    pub(crate) padded: usize,
    pub(crate) blocks: usize,
}

impl<'a> PaddedRows<'a> {
    fn count(&self) -> usize {
        self.sums.len() / self.blocks
    }

    /// A row and the sums of its blocks.
    pub(crate) fn row(&self, row: usize) -> (&'a [f32], &'a [f32]) {
        (&self.x[row * self.padded..][..self.padded], &self.sums[row * self.blocks..][..self.blocks])
    }
}

/// Every row times the columns of one panel; `write` gets each row's products.
pub(crate) fn multiply_panel(
    isa: Isa,
    weights: &BlockWeights,
    words: &[u32],
    rows: &PaddedRows<'_>,
    mut write: impl FnMut(usize, &[f32; COLUMNS]),
) {
    let mut row = 0;
    while row < rows.count() {
        let mut products = [[0.0; COLUMNS]; 4];
        let done = multiply_some(isa, weights, words, rows, row, &mut products);
        for products in &products[..done] {
            write(row, products);
            row += 1;
        }
    }
}

/// One row times the columns of one panel, number by number: also where numbers of the row are none, or infinite.
pub(crate) fn multiply_any(weights: &BlockWeights, words: &[u32], x: &[f32], products: &mut [f32; COLUMNS]) {
    products.fill(0.0);
    for (words, x) in words.chunks_exact(weights.block_words()).zip(x.chunks(weights.block)) {
        let block = Block::of(weights, words);
        for (at, &x) in x.iter().enumerate() {
            let words = &block.levels[at / weights.per_word()];
            let place = (at % weights.per_word()) as u32;
            for (lane, product) in products.iter_mut().enumerate() {
                let number = match weights.code.bits() {
                    4 => number::<4>(words[lane], place, origin(weights.code)),
                    8 => number::<8>(words[lane], place, origin(weights.code)),
                    _ => number::<16>(words[lane], place, origin(weights.code)),
                };
                let scale = block.scales.map_or(1.0, |scales| f32::from_bits(scales[lane]));
                let shift = block.shifts.map_or(0.0, |shifts| f32::from_bits(shifts[lane]));
                *product += (number * scale + shift) * x;
            }
        }
    }
}

/// One, two or four rows from `first` on. Gives how many.
fn multiply_some(
    isa: Isa,
    weights: &BlockWeights,
    words: &[u32],
    rows: &PaddedRows<'_>,
    first: usize,
    products: &mut [[f32; COLUMNS]; 4],
) -> usize {
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx512 {
        // SAFETY: an `Isa` reaches a kernel only through `Exec`, which checked that this machine has it.
        return unsafe {
            match rows.count() - first {
                1 => crate::gemm_blocks_x86::multiply_rows::<1, 4>(weights, words, rows, first, products),
                2 | 3 => crate::gemm_blocks_x86::multiply_rows::<2, 4>(weights, words, rows, first, products),
                _ => crate::gemm_blocks_x86::multiply_rows::<4, 2>(weights, words, rows, first, products),
            }
        };
    }
    let (x, sums) = rows.row(first);
    match weights.code.bits() {
        4 => multiply_row::<4>(isa, *weights, x, sums, words, &mut products[0]),
        8 => multiply_row::<8>(isa, *weights, x, sums, words, &mut products[0]),
        _ => multiply_row::<16>(isa, *weights, x, sums, words, &mut products[0]),
    }
    1
}

/// Some columns, from `first` on, as one f32 panel: k × width, for some k. `words` are all packed weights; missing columns are 0.
/// A width is a multiple of 16, or 8; the first k is the first of a word.
pub(crate) fn expand_panel(
    isa: Isa,
    weights: &BlockWeights,
    words: &[u32],
    ks: Range<usize>,
    first: usize,
    width: usize,
    target: &mut [f32],
) {
    let lanes = width.min(COLUMNS);
    for start in (0..width).step_by(lanes) {
        let column = first + start;
        let panel = words.get(column / COLUMNS * weights.panel_words()..);
        let Some(panel) = panel.and_then(|words| words.get(..weights.panel_words())) else {
            target.chunks_exact_mut(width).take(ks.len()).for_each(|row| row[start..start + lanes].fill(0.0));
            continue;
        };
        let place = Place { width, start, lanes, first_lane: column % COLUMNS };
        #[cfg(target_arch = "x86_64")]
        if isa >= Isa::Avx512 && lanes == COLUMNS {
            assert!(target.len() >= ks.len() * width, "a panel of {} for {}×{width}", target.len(), ks.len());
            // SAFETY: as above.
            unsafe { crate::gemm_blocks_x86::expand(weights, panel, ks.clone(), &mut target[start..], width) };
            continue;
        }
        match weights.code.bits() {
            4 => expand_bits::<4>(isa, *weights, panel, ks.clone(), place, target),
            8 => expand_bits::<8>(isa, *weights, panel, ks.clone(), place, target),
            _ => expand_bits::<16>(isa, *weights, panel, ks.clone(), place, target),
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

/// One block of 16 columns. A scale is missing where weights are values already.
pub(crate) struct Block<'a> {
    pub(crate) scales: Option<&'a [u32; COLUMNS]>,
    pub(crate) shifts: Option<&'a [u32; COLUMNS]>,
    pub(crate) levels: &'a [[u32; COLUMNS]],
}

impl<'a> Block<'a> {
    #[inline(always)]
    pub(crate) fn of(weights: &BlockWeights, words: &'a [u32]) -> Block<'a> {
        let (lines, _) = words.as_chunks::<COLUMNS>();
        let (scales, rest) = lines.split_at(usize::from(weights.code != Code::Bf16));
        let (shifts, levels) = rest.split_at(usize::from(weights.has_shifts));
        Block { scales: scales.first(), shifts: shifts.first(), levels }
    }
}

/// The number that the bits at a place of a word stand for, without scale and shift.
#[inline(always)]
fn number<const BITS: u32>(word: u32, place: u32, origin: f32) -> f32 {
    match BITS {
        4 => ((word >> (4 * place)) & 15) as i32 as f32 - origin,
        8 => ((word << (24 - 8 * place)) as i32 >> 24) as f32,
        _ => f32::from_bits(if place == 0 { word << 16 } else { word & 0xffff_0000 }),
    }
}

/// What `number` takes off: levels of 8 bits are signed already.
fn origin(code: Code) -> f32 {
    if code == Code::Int8 { 0.0 } else { f32::from(code.origin()) }
}

multiversion! {
    fn multiply_row<F: MulAdd, const BITS: u32>(
        weights: BlockWeights, x: &[f32], sums: &[f32], words: &[u32], target: &mut [f32; COLUMNS],
    ) {
        let (origin, per_word) = (origin(weights.code), (32 / BITS) as usize);
        let mut totals = [0.0f32; COLUMNS];
        let blocks = words.chunks_exact(weights.block_words()).zip(x.chunks_exact(weights.block)).zip(sums);
        for ((words, x), &sum) in blocks {
            let block = Block::of(&weights, words);
            let mut products = [0.0f32; COLUMNS];
            for (words, x) in block.levels.iter().zip(x.chunks_exact(per_word)) {
                for (place, &x) in x.iter().enumerate() {
                    for lane in 0..COLUMNS {
                        let level = number::<BITS>(words[lane], place as u32, origin);
                        products[lane] = F::mul_add(level, x, products[lane]);
                    }
                }
            }
            for lane in 0..COLUMNS {
                let scale = block.scales.map_or(1.0, |scales| f32::from_bits(scales[lane]));
                totals[lane] = F::mul_add(scale, products[lane], totals[lane]);
            }
            if let Some(shifts) = block.shifts {
                for lane in 0..COLUMNS {
                    totals[lane] = F::mul_add(f32::from_bits(shifts[lane]), sum, totals[lane]);
                }
            }
        }
        *target = totals;
    }

    fn expand_bits<F: MulAdd, const BITS: u32>(
        weights: BlockWeights, words: &[u32], ks: Range<usize>, place: Place, target: &mut [f32],
    ) {
        let (origin, per_word) = (origin(weights.code), (32 / BITS) as usize);
        let mut rows = ks.clone().zip(target.chunks_exact_mut(place.width)).peekable();
        for (at, words) in words.chunks_exact(weights.block_words()).enumerate() {
            let block = Block::of(&weights, words);
            for (group, words) in block.levels.iter().enumerate() {
                let first = at * weights.block + group * per_word;
                for step in 0..per_word {
                    let Some((_, row)) = rows.next_if(|(k, _)| *k == first + step) else { continue };
                    let mut values = [0.0f32; COLUMNS];
                    for lane in 0..COLUMNS {
                        let level = number::<BITS>(words[lane], step as u32, origin);
                        values[lane] = block.scales.map_or(level, |scales| level * f32::from_bits(scales[lane]));
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
