//! Products of f32 rows with weights of 4 or 8 bits by dot products of bytes, as exact as f32.
//!
//! A span of 32 k of a row becomes integers of 24 bits with their sign, counted in units of two last bits of the span's largest
//! value in f32, and each integer three bytes: its digits. Levels times digits are summed exactly in i32; sums of spans are
//! added in f32. So a value loses at most the last bit of the largest one of its span, but fewer sums are rounded than where
//! every product is added. Weights become bytes, which are a quarter of what they are as f32, and a row's bits
//! depend on no other row.
//!
//! Units are powers of two, so that scales are multiplied with them by adding exponents. A row with a NaN, an infinity or only
//! values beyond the exponents that can be added so, and columns with such scales, are multiplied number by number.

use std::ops::{Range, RangeInclusive};

use crate::epilogue::Epilogue;
use crate::gemm_blocks::{BlockWeights, COLUMNS, Code, Cut, end_columns};
use crate::gemm_blocks_line::multiply_any;
use crate::isa::{Exec, Isa};
use crate::pool::{SharedMut, share};
use crate::scratch_slots::ScratchSlots;
use crate::simd::ELEMENTS_PER_TASK_MIN;

/// Rows that are multiplied together: their sums fill the registers.
pub(crate) const HEIGHT_MAX: usize = 3;
/// Columns of a panel: two of those that are packed.
pub(crate) const WIDTH: usize = 2 * COLUMNS;
/// Successive k of a row that share a unit.
pub(crate) const SPAN: usize = 32;
/// Bytes of an integer.
pub(crate) const DIGITS: usize = 3;
/// Successive k whose bytes are one word.
const PER_WORD: usize = 4;
/// Words of each digit of a span.
pub(crate) const GROUPS: usize = SPAN / PER_WORD;
/// Which word of a span is its sum; that of the first span is none where the row has no digits.
pub(crate) const SUM: usize = 1;
/// Words of a span of a row: its unit, its sum, and each digit of all groups, from the lowest on.
pub(crate) const SPAN_WORDS: usize = 2 + GROUPS * DIGITS;
/// Lines of `WIDTH` words of a span of a panel: what the sums of the highest digit start from, scales, shifts, and levels.
pub(crate) const SPAN_LINES: usize = 3 + GROUPS;

/// What is added to integers so that none is negative.
pub(crate) const MIDDLE: i32 = 1 << 23;
/// The exponent of a value, as its bits have it, that an integer of 2^22 stands for where the unit is 1.
const UNIT_EXPONENT: u32 = 127 + 22;
/// Exponents that the largest values of spans may have: units are 2^-63 to 2^63. Spans of smaller values count in the smallest unit,
/// in which they lose what no sum with the larger values of their row has room for.
const EXPONENTS: RangeInclusive<u32> = UNIT_EXPONENT - 63..=UNIT_EXPONENT + 63;
/// Exponents that scales may have, so that their products with units are f32.
pub(crate) const SCALE_EXPONENTS: RangeInclusive<u32> = 64..=190;

/// Rows below which a product reads weights as they are packed.
const ROWS_MIN: usize = 6;
/// Words of rows of a task: they stay in a second-level cache while panels pass by.
const TASK_WORDS_MAX: usize = 1 << 17;
/// Rows for each thread from which on rows are divided, not panels.
const DIVIDED_ROWS_MIN: usize = 16;

impl BlockWeights {
    /// Whether so many rows are multiplied by their digits.
    pub fn takes_digits(&self, isa: Isa, m: usize) -> bool {
        isa >= Isa::Avx512Vnni
            && m >= ROWS_MIN
            && self.is_covered()
            && self.code != Code::Bf16
            && self.block.is_multiple_of(SPAN)
    }

    /// Whether weights have a part that is the same for all levels of a block: levels are counted from the middle one.
    pub(crate) fn adds_sums(&self) -> bool {
        self.has_shifts || self.code == Code::Uint4
    }

    fn digit_spans(&self) -> usize {
        self.blocks() * (self.block / SPAN)
    }

    fn digit_row_words(&self) -> usize {
        self.digit_spans() * SPAN_WORDS
    }

    fn wide_panels(&self) -> usize {
        self.n.div_ceil(WIDTH)
    }

    fn wide_panel_words(&self) -> usize {
        self.digit_spans() * SPAN_LINES * WIDTH
    }

    /// The packed words of the columns of a wide panel: one panel or two.
    fn packed_of<'p>(&self, packed: &'p [u32], panel: usize) -> &'p [u32] {
        let (first, words) = (panel * (WIDTH / COLUMNS), self.panel_words());
        &packed[first * words..self.panels().min(first + WIDTH / COLUMNS) * words]
    }
}

/// Words of scratch that `gemm_blocks_digits` needs with a pool of this many threads.
pub fn gemm_blocks_digits_scratch_len(threads: usize, weights: &BlockWeights, m: usize) -> usize {
    m * weights.digit_row_words() + LINE_WORDS + slots(threads) * weights.wide_panel_words()
}

/// Words of a line of a cache: a vector of a panel lies in one.
const LINE_WORDS: usize = 16;

/// Panels that are in scratch at once.
fn slots(threads: usize) -> usize {
    threads.clamp(1, ScratchSlots::MAX)
}

/// C = activation(x · W + bias + residual), m × n. Panics when a slice is too short or the weights are not multiplied so.
pub fn gemm_blocks_digits(
    exec: Exec,
    weights: &BlockWeights,
    m: usize,
    x: &[f32],
    packed: &[u32],
    epilogue: &Epilogue,
    c: &mut [f32],
    scratch: &mut [u32],
) {
    assert!(weights.takes_digits(exec.isa(), m), "digits of {m} rows times {weights:?} on {:?}", exec.isa());
    assert!(x.len() >= m * weights.k && c.len() >= m * weights.n, "operands of {m}×{}×{}", weights.n, weights.k);
    assert!(packed.len() >= weights.packed_len(), "packed weights of {} for {weights:?}", packed.len());
    let (rows, panels) = scratch.split_at_mut(m * weights.digit_row_words());
    let (slot_count, beside) = (slots(exec.threads()), panels.as_ptr().align_offset(LINE_WORDS * size_of::<u32>()));
    let panels = &mut panels[beside.min(LINE_WORDS)..];
    let panel_words = weights.wide_panel_words();
    assert!(panels.len() >= slot_count * panel_words, "scratch for {slot_count} panels of {weights:?}");
    let (c, panels, slots) = (SharedMut::new(c), SharedMut::new(panels), ScratchSlots::new(slot_count));
    let product = Product { isa: exec.isa(), weights, x, packed, epilogue, c: &c };
    let with_panel = |multiply: &dyn Fn(&mut [u32])| {
        let slot = slots.take();
        // SAFETY: nobody else has this slot until it is given back, below.
        multiply(unsafe { panels.slice(slot * panel_words, panel_words) });
        slots.give_back(slot);
    };
    match cut_of(exec, weights, m) {
        Cut::Panels { tasks } => {
            product.digitise_all(exec, rows);
            exec.pool().run(tasks, &|task| {
                let panels = share(weights.wide_panels(), tasks, task);
                with_panel(&|scratch| product.run(0..m, rows, panels.clone(), scratch));
            });
        }
        Cut::Rows { tasks } => {
            let (row_words, words) = (weights.digit_row_words(), SharedMut::new(rows));
            exec.pool().run(tasks, &|task| {
                let rows = share(m, tasks, task);
                // SAFETY: every task has rows of its own.
                let words = unsafe { words.slice(rows.start * row_words, rows.len() * row_words) };
                product.digitise(rows.clone(), words);
                with_panel(&|scratch| product.run(rows.clone(), words, 0..weights.wide_panels(), scratch));
            });
        }
    }
}

fn cut_of(exec: Exec, weights: &BlockWeights, m: usize) -> Cut {
    // A thread reads some 20 bytes of weights a nanosecond, or multiplies some 40 pairs.
    let ns = weights.packed_len() * size_of::<u32>() / 20 + m * weights.n * weights.k / 40;
    let rows_max = (TASK_WORDS_MAX / weights.digit_row_words()).max(DIVIDED_ROWS_MIN);
    Cut::of(exec, ns, weights.wide_panels(), m, DIVIDED_ROWS_MIN..=rows_max)
}

/// What all tasks of a product share.
struct Product<'p> {
    isa: Isa,
    weights: &'p BlockWeights,
    x: &'p [f32],
    packed: &'p [u32],
    epilogue: &'p Epilogue<'p>,
    c: &'p SharedMut<'p, f32>,
}

impl Product<'_> {
    /// All rows as digits, by all threads.
    fn digitise_all(&self, exec: Exec, words: &mut [u32]) {
        let row_words = self.weights.digit_row_words();
        let m = words.len() / row_words;
        let is_small = m * self.weights.k < ELEMENTS_PER_TASK_MIN;
        let rows_per_task = if is_small { m.next_multiple_of(HEIGHT_MAX) } else { HEIGHT_MAX };
        exec.pool().chunks_mut(words, rows_per_task * row_words, |task, words| {
            let first = task * rows_per_task;
            self.digitise(first..first + words.len() / row_words, words);
        });
    }

    /// Some rows as digits, tile after tile.
    fn digitise(&self, rows: Range<usize>, words: &mut [u32]) {
        let (k, row_words) = (self.weights.k, self.weights.digit_row_words());
        for tile in tiles(rows.len()) {
            let x = &self.x[(rows.start + tile.start) * k..(rows.start + tile.end) * k];
            let words = &mut words[tile.start * row_words..tile.end * row_words];
            digitise_tile(self.weights, x, words);
        }
    }

    /// Some rows, of which `words` has the digits, times some panels, with what follows.
    fn run(&self, rows: Range<usize>, words: &[u32], panels: Range<usize>, scratch: &mut [u32]) {
        let (weights, n, row_words) = (self.weights, self.weights.n, self.weights.digit_row_words());
        let mut products = [[0.0; WIDTH]; HEIGHT_MAX];
        for panel in panels.clone() {
            let is_whole = expand_panel(weights, self.packed_of(panel), scratch);
            let (next, tile_count) = (self.packed_of(panel + 1), rows.len().div_ceil(HEIGHT_MAX));
            let columns = panel * WIDTH..n.min((panel + 1) * WIDTH);
            for (number, tile) in tiles(rows.len()).enumerate() {
                let words = &words[tile.start * row_words..tile.end * row_words];
                let next = &next[share(next.len(), tile_count, number)];
                multiply_tile(weights, scratch, words, next, &mut products);
                for ((row, products), words) in tile.zip(&mut products).zip(words.chunks_exact(SPAN_WORDS)) {
                    let row = rows.start + row;
                    if !is_whole || f32::from_bits(words[SUM]).is_nan() {
                        self.multiply_any(row, panel, products);
                    }
                    // SAFETY: every task has rows and columns of its own.
                    let target = unsafe { self.c.slice(row * n + columns.start, columns.len()) };
                    match <&mut [f32; WIDTH]>::try_from(&mut *target) {
                        Ok(whole) => *whole = *products,
                        Err(_) => target.copy_from_slice(&products[..columns.len()]),
                    }
                }
            }
        }
        let columns = panels.start * WIDTH..n.min(panels.end * WIDTH);
        // SAFETY: every task has rows and columns of its own.
        unsafe { end_columns(self.isa, self.epilogue, n, rows, columns, self.c) };
    }

    fn packed_of(&self, panel: usize) -> &[u32] {
        match panel < self.weights.wide_panels() {
            true => self.weights.packed_of(self.packed, panel),
            false => &[],
        }
    }

    /// A row that has no digits times a panel.
    fn multiply_any(&self, row: usize, panel: usize, products: &mut [f32; WIDTH]) {
        let x = &self.x[row * self.weights.k..][..self.weights.k];
        let words = self.packed_of(panel).chunks_exact(self.weights.panel_words());
        for (words, products) in words.zip(products.as_chunks_mut().0) {
            multiply_any(self.weights, words, x, products);
        }
    }
}

/// Rows as tiles: whole ones and a shorter last one.
fn tiles(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(HEIGHT_MAX).map(move |start| start..rows.min(start + HEIGHT_MAX))
}

/// What is added to the bits of a scale to multiply it with the unit of a span whose largest magnitude has these bits, and the
/// bits of what values are multiplied with to become integers.
#[inline(always)]
pub(crate) fn unit_and_factor(largest: u32) -> (u32, u32) {
    let exponent = (largest >> 23).clamp(*EXPONENTS.start(), *EXPONENTS.end());
    (exponent.wrapping_sub(UNIT_EXPONENT) << 23, (127 + UNIT_EXPONENT - exponent) << 23)
}

/// Whether a row whose largest magnitude has these bits has digits. All zeros have.
#[inline(always)]
pub(crate) fn has_digits(largest: u32) -> bool {
    largest == 0 || EXPONENTS.contains(&(largest >> 23))
}

#[cfg(target_arch = "x86_64")]
use crate::gemm_blocks_digits_x86 as x86;

/// A tile of rows as digits: those of a span of all rows lie together, row after row.
fn digitise_tile(weights: &BlockWeights, x: &[f32], words: &mut [u32]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `takes_digits` asked for the instructions, and an `Isa` reaches a kernel only through `Exec`, which checked that
    // this machine has it.
    unsafe {
        x86::digitise_tile(weights, x, words);
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{weights:?}, {}, {}: Exec refuses what the machine lacks", x.len(), words.len());
}

/// The columns of a wide panel as bytes, span after span. False where a scale cannot be multiplied with units.
fn expand_panel(weights: &BlockWeights, packed: &[u32], target: &mut [u32]) -> bool {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        x86::expand_panel(weights, packed, target)
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{weights:?}, {}, {}: as above", packed.len(), target.len());
}

/// A tile of rows times a wide panel. Memory of `next` is asked for meanwhile.
fn multiply_tile(
    weights: &BlockWeights,
    panel: &[u32],
    rows: &[u32],
    next: &[u32],
    products: &mut [[f32; WIDTH]; HEIGHT_MAX],
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        x86::multiply_tile(weights, panel, rows, next, products);
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{weights:?}, {}, {}, {}, {}: as above", panel.len(), rows.len(), next.len(), products.len());
}

#[cfg(all(test, target_arch = "x86_64"))]
#[path = "gemm_blocks_digits_tests.rs"]
mod tests;
