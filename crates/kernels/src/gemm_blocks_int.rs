//! Products of rows that are quantised to 8 bits with weights of 4 or 8 bits, both with a scale for each few successive k.
//!
//! A span of 32 k (16 where the weights' blocks have no more) of a row becomes signed bytes and the scale max|x| / 127. Levels
//! times bytes are summed exactly in i32, and sums of spans in f32, in the same order and with the same roundings everywhere:
//! every instruction set gives the same bits. A span with a NaN or an infinity makes all results of its row NaN; one without
//! a value of `LEAST` or more counts as zeros.

use std::ops::Range;

use crate::epilogue::Epilogue;
use crate::gemm_blocks::{BlockWeights, COLUMNS, Code, Cut, end_columns};
use crate::gemm_blocks_int_line::multiply_tile;
use crate::isa::{Exec, Isa};
use crate::pool::{SharedMut, share};
use crate::simd::{ELEMENTS_PER_TASK_MIN, multiversion};

/// Rows that are multiplied together, the most first: a product is cut into tiles of these heights.
pub(crate) const HEIGHTS: [usize; 5] = [16, 8, 4, 2, 1];
/// The most rows of a tile.
pub(crate) const HEIGHT_MAX: usize = HEIGHTS[0];
/// Successive k whose bytes are one word.
pub(crate) const PER_WORD: usize = 4;
/// Words before the bytes of a span of a row: what its sums start from, its scale, and its sum.
pub(crate) const HEAD_WORDS: usize = 3;
/// Successive k of a row that share a scale, where blocks of weights are whole spans.
pub(crate) const SPAN: usize = 32;
const SHORT_SPAN: usize = 16;
/// The largest byte.
const BYTE_MAX: f32 = 127.0;
/// Spans without larger values count as zeros: `BYTE_MAX` by a smaller one is no number.
const LEAST: f32 = 1e-36;
/// Rows whose bytes stay in the second cache while panels pass by.
const ROWS_PER_TASK_MAX: usize = 4 * HEIGHT_MAX;
/// Rows for each thread from which on rows are divided, not panels: every thread reads all weights then, but no row of another.
const DIVIDED_ROWS_MIN: usize = HEIGHT_MAX;

impl BlockWeights {
    /// Whether there is a kernel for rows of 8 bits with them.
    pub fn takes_byte_rows(&self) -> bool {
        self.is_covered() && self.code != Code::Bf16 && (self.block == SHORT_SPAN || self.block.is_multiple_of(SPAN))
    }

    /// Successive k of a row that share a scale.
    pub(crate) fn span(&self) -> usize {
        if self.block == SHORT_SPAN { SHORT_SPAN } else { SPAN }
    }

    fn spans(&self) -> usize {
        self.blocks() * (self.block / self.span())
    }

    /// Words of a row of bytes with the heads of its spans.
    fn row_words(&self) -> usize {
        self.spans() * (HEAD_WORDS + self.span() / PER_WORD)
    }
}

/// Words of scratch that `gemm_blocks_int` needs.
pub fn gemm_blocks_int_scratch_len(weights: &BlockWeights, m: usize) -> usize {
    m * weights.row_words()
}

/// C = activation(q(x) · W + bias + residual), m × n, where q quantises rows to 8 bits. Panics when a slice is too short or the
/// weights do not take such rows.
pub fn gemm_blocks_int(
    exec: Exec,
    weights: &BlockWeights,
    m: usize,
    x: &[f32],
    packed: &[u32],
    epilogue: &Epilogue,
    c: &mut [f32],
    scratch: &mut [u32],
) {
    assert!(weights.takes_byte_rows(), "rows of 8 bits times {weights:?}");
    assert!(x.len() >= m * weights.k && c.len() >= m * weights.n, "operands of {m}×{}×{}", weights.n, weights.k);
    assert!(packed.len() >= weights.packed_len(), "packed weights of {} for {weights:?}", packed.len());
    let rows = &mut scratch[..gemm_blocks_int_scratch_len(weights, m)];
    let c = SharedMut::new(c);
    match cut_of(exec, weights, m) {
        Cut::Panels { tasks } => {
            quantise_rows(exec, weights, x, rows);
            exec.pool().run(tasks, &|task| {
                let panels = share(weights.panels(), tasks, task);
                multiply_task(exec.isa(), weights, rows, packed, 0..m, panels, epilogue, &c);
            });
        }
        Cut::Rows { tasks } => {
            let (k, row_words, words) = (weights.k, weights.row_words(), SharedMut::new(rows));
            exec.pool().run(tasks, &|task| {
                let rows = share(m, tasks, task);
                // SAFETY: every task has rows of its own.
                let words = unsafe { words.slice(rows.start * row_words, rows.len() * row_words) };
                quantise_tiles(exec.isa(), weights, &x[rows.start * k..rows.end * k], words);
                multiply_task(exec.isa(), weights, words, packed, rows, 0..weights.panels(), epilogue, &c);
            });
        }
    }
}

fn cut_of(exec: Exec, weights: &BlockWeights, m: usize) -> Cut {
    // A thread reads some 20 bytes of weights a nanosecond, or multiplies some 100 pairs.
    let ns = weights.packed_len() * size_of::<u32>() / 20 + m * weights.n * weights.k / 100;
    Cut::of(exec, ns, weights.panels(), m, DIVIDED_ROWS_MIN..=ROWS_PER_TASK_MAX)
}

/// Some rows, of which `row_words` has the words, times some panels, with what follows.
fn multiply_task(
    isa: Isa,
    weights: &BlockWeights,
    row_words: &[u32],
    packed: &[u32],
    rows: Range<usize>,
    panels: Range<usize>,
    epilogue: &Epilogue,
    c: &SharedMut<'_, f32>,
) {
    let n = weights.n;
    let columns = panels.start * COLUMNS..n.min(panels.end * COLUMNS);
    let words = &packed[panels.start * weights.panel_words()..panels.end * weights.panel_words()];
    let mut products = [[0.0; COLUMNS]; HEIGHT_MAX];
    for (words, first) in words.chunks_exact(weights.panel_words()).zip(columns.clone().step_by(COLUMNS)) {
        let width = COLUMNS.min(n - first);
        for tile in tiles(rows.clone()) {
            let at = tile.start - rows.start..tile.end - rows.start;
            let row_words = &row_words[at.start * weights.row_words()..at.end * weights.row_words()];
            multiply_tile(isa, weights, words, row_words, tile.len(), &mut products);
            for (row, products) in tile.zip(&products) {
                // SAFETY: every task has rows and columns of its own.
                let target = unsafe { c.slice(row * n + first, width) };
                match <&mut [f32; COLUMNS]>::try_from(&mut *target) {
                    Ok(whole) => *whole = *products,
                    Err(_) => target.copy_from_slice(&products[..width]),
                }
            }
        }
    }
    // SAFETY: as above.
    unsafe { end_columns(isa, epilogue, n, rows, columns, c) };
}

/// Rows as tiles, those of the most rows first.
fn tiles(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut first = rows.start;
    std::iter::from_fn(move || {
        let height = HEIGHTS.into_iter().find(|&height| height <= rows.end - first)?;
        first += height;
        Some(first - height..first)
    })
}

/// All rows of x as tiles of words.
fn quantise_rows(exec: Exec, weights: &BlockWeights, x: &[f32], words: &mut [u32]) {
    let (k, row_words) = (weights.k, weights.row_words());
    let m = words.len() / row_words;
    let rows_per_task = if m * k < ELEMENTS_PER_TASK_MIN { m.next_multiple_of(HEIGHT_MAX) } else { HEIGHT_MAX };
    exec.pool().chunks_mut(words, (rows_per_task * row_words).max(1), |task, words| {
        quantise_tiles(exec.isa(), weights, &x[task * rows_per_task * k..], words);
    });
}

/// Rows of x as tiles of words. The words of a span of all rows of a tile lie together: the values that sums start from, the
/// scales, the sums, and the bytes, each of them row after row.
fn quantise_tiles(isa: Isa, weights: &BlockWeights, x: &[f32], words: &mut [u32]) {
    let (k, row_words) = (weights.k, weights.row_words());
    for tile in tiles(0..words.len() / row_words) {
        let (height, words) = (tile.len(), &mut words[tile.start * row_words..tile.end * row_words]);
        for (row, at) in tile.enumerate() {
            quantise_row(isa, weights, &x[at * k..][..k], height, row, words);
        }
    }
}

/// One row as one of `height` rows of a tile.
fn quantise_row(isa: Isa, weights: &BlockWeights, x: &[f32], height: usize, row: usize, words: &mut [u32]) {
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx512 {
        // SAFETY: an `Isa` reaches a kernel only through `Exec`, which checked that this machine has it.
        return unsafe { crate::gemm_blocks_int_x86::quantise_row_avx512(weights, x, height, row, words) };
    }
    quantise_row_lanes(isa, *weights, x, height, row, words);
}

/// A span of a row as bytes.
pub(crate) struct Span {
    /// What a byte of 1 stands for.
    pub(crate) scale: f32,
    /// The sum of the bytes.
    pub(crate) sum: i32,
    /// The bytes, four successive ones a word, or as `in_order_of_halves` has them.
    pub(crate) bytes: [u32; SPAN / PER_WORD],
}

/// Quantises the spans of a row, each by `quantise`.
#[inline(always)]
pub(crate) fn quantise_spans(
    weights: &BlockWeights,
    x: &[f32],
    height: usize,
    row: usize,
    words: &mut [u32],
    quantise: impl Fn(&[f32; SPAN], bool) -> Span,
) {
    let (span, origin) = (weights.span(), i32::from(weights.code.origin()));
    let (groups, is_halved) = (span / PER_WORD, weights.code.bits() == 4);
    let mut rest = x;
    for words in words.chunks_exact_mut(height * (HEAD_WORDS + groups)) {
        let (some, left) = rest.split_at(span.min(rest.len()));
        rest = left;
        let Span { scale, sum, bytes } = match <&[f32; SPAN]>::try_from(some) {
            Ok(whole) => quantise(whole, is_halved),
            Err(_) => {
                let mut values = [0.0; SPAN];
                values[..some.len()].copy_from_slice(some);
                quantise(&values, is_halved)
            }
        };
        words[row] = (-origin * sum) as u32;
        words[height + row] = scale.to_bits();
        words[2 * height + row] = (scale * sum as f32).to_bits();
        for (group, bytes) in bytes[..groups].iter().enumerate() {
            words[(HEAD_WORDS + group) * height + row] = *bytes;
        }
    }
}

/// The scale of a span whose largest magnitude has these bits, and what its values are multiplied with to become bytes.
/// Magnitudes have the order of their bits, in which infinities and NaNs are the largest.
#[inline(always)]
pub(crate) fn scale_and_factor(largest: u32) -> (f32, f32) {
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        (f32::NAN, 0.0)
    } else if largest < LEAST {
        (0.0, 0.0)
    } else {
        (largest / BYTE_MAX, BYTE_MAX / largest)
    }
}

/// The nearest integer of a value of at most 127, to even where two are as near.
#[inline(always)]
fn nearest(value: f32) -> i8 {
    /// Numbers of this size have no bits behind the point, and the low ones of those before it are the integer's.
    const ROUNDS: f32 = 1.5 * 8_388_608.0;
    (value + ROUNDS).to_bits() as i8
}

multiversion! {
    fn quantise_row_lanes<F: MulAdd>(weights: BlockWeights, x: &[f32], height: usize, row: usize, words: &mut [u32]) {
        quantise_spans(&weights, x, height, row, words, |values, is_halved| {
            let largest = values.iter().fold(0, |largest, value| largest.max(value.to_bits() & 0x7fff_ffff));
            let (scale, factor) = scale_and_factor(largest);
            let bytes: [i8; SPAN] = std::array::from_fn(|at| nearest(values[at] * factor));
            let sum = bytes.iter().map(|&byte| i32::from(byte)).sum();
            let ordered = if is_halved { in_order_of_halves(bytes) } else { bytes };
            let words = ordered.as_chunks::<PER_WORD>().0;
            let bytes = std::array::from_fn(|word| u32::from_le_bytes(words[word].map(|byte| byte as u8)));
            Span { scale, sum, bytes }
        });
    }
}

/// Words of eight weights have the even ones in the lower halves of their bytes and the odd ones in the upper.
#[inline(always)]
fn in_order_of_halves(bytes: [i8; SPAN]) -> [i8; SPAN] {
    std::array::from_fn(|at| bytes[at / 8 * 8 + at % 4 * 2 + at / 4 % 2])
}

#[cfg(test)]
#[path = "gemm_blocks_int_tests.rs"]
mod tests;
