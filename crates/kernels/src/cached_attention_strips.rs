//! Blocks of queries by vectors of 512 bits. The queries of a block, those of all heads that share a key head, are cut into strips
//! of a few rows. A stretch of keys is transposed once for a block; then each strip takes it through two products, in which only
//! the keys that the strip sees take part. Nothing else is copied: queries and weights are read one number at a time, values
//! where they lie.

use std::ops::Range;

use crate::cached_attention::{CachedAttention, Stretch, Work};
use crate::cached_attention_hidden::SeenValues;
use crate::cached_attention_lines::divide_row_into;
#[cfg(target_arch = "x86_64")]
use crate::cached_attention_tiles::{ScoreTile, ValueTile, weigh};
use crate::gemm_pack::{MatrixA, MatrixB, pack_a_tile, pack_b_panel};
use crate::isa::Isa;
use crate::pool::SharedMut;

/// Queries of a strip: twice as many sums leave room for two vectors of keys or values and a query.
pub(crate) const STRIP_ROWS: usize = 12;
/// Keys of a panel: their transposed elements are two vectors.
pub(crate) const PANEL_KEYS: usize = 32;
/// Keys whose scores a strip has at once: they stay in a first-level cache. Scores of a row lie this far from those of the next.
pub(crate) const STRETCH_KEYS: usize = 256;
/// Rows of queries of a block. Transposing keys for fewer costs more of their products.
const BLOCK_ROWS: usize = 192;

/// Queries of a block where blocks are cut into strips: none where they cannot be.
pub(crate) fn block_queries(attention: &CachedAttention, isa: Isa) -> Option<usize> {
    (isa >= Isa::Avx512 && attention.size.is_multiple_of(16) && attention.size <= STRETCH_KEYS)
        .then(|| (BLOCK_ROWS / attention.group()).clamp(1, attention.length.max(1)))
}

/// What a block needs of scratch.
pub(crate) fn block_len(attention: &CachedAttention, queries: usize) -> usize {
    let (rows, size) = (queries * attention.group(), attention.size);
    2 * rows * size + STRETCH_KEYS * size + STRIP_ROWS * STRETCH_KEYS + 2 * rows
}

/// The scratch of a block.
struct Scratch<'s> {
    /// Turned queries, for each strip and each element of a head those of the rows.
    queries: &'s mut [f32],
    /// Keys of a stretch, for each panel and each element of a head those of the panel.
    keys: &'s mut [f32],
    /// Scores of a strip.
    scores: &'s mut [f32],
    /// Weighted values.
    sums: &'s mut [f32],
    /// The largest score of each row.
    largest: &'s mut [f32],
    /// The sum of its weights.
    totals: &'s mut [f32],
}

impl<'s> Scratch<'s> {
    fn new(rows: usize, size: usize, scratch: &'s mut [f32]) -> Scratch<'s> {
        let (queries, scratch) = scratch.split_at_mut(rows * size);
        let (sums, scratch) = scratch.split_at_mut(rows * size);
        let (keys, scratch) = scratch.split_at_mut(STRETCH_KEYS * size);
        let (scores, scratch) = scratch.split_at_mut(STRIP_ROWS * STRETCH_KEYS);
        let (largest, scratch) = scratch.split_at_mut(rows);
        Scratch { queries, keys, scores, sums, largest, totals: &mut scratch[..rows] }
    }
}

/// Some rows of queries of one key head.
struct Block<'w> {
    work: &'w Work<'w>,
    row: usize,
    kv_head: usize,
    steps: Range<usize>,
}

impl Work<'_> {
    /// Some queries of a row, of all heads that share a key head.
    pub(crate) fn run_strips(
        &self,
        row: usize,
        kv_head: usize,
        steps: Range<usize>,
        y: &SharedMut<f32>,
        scratch: &mut [f32],
    ) {
        let block = Block { work: self, row, kv_head, steps };
        let mut scratch = Scratch::new(block.rows(), self.attention.size, scratch);
        block.begin(&mut scratch);
        for stretch in self.stretches(row, &block.steps, STRETCH_KEYS) {
            block.transpose_keys(&stretch, scratch.keys);
            let values = SeenValues::new(self, row, kv_head, &block.steps, &stretch);
            for strip in block.strips() {
                #[cfg(not(target_arch = "x86_64"))]
                unreachable!("{strip:?}: Exec refuses what the machine lacks");
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` reaches a kernel only through `Exec`, which checked that this machine has it, and blocks
                // are cut into strips where it has AVX-512.
                unsafe {
                    block.run_strip(&stretch, strip, &values, &mut scratch)
                };
            }
        }
        block.finish(y, &scratch);
    }
}

impl Block<'_> {
    fn attention(&self) -> &CachedAttention {
        self.work.attention
    }

    fn rows(&self) -> usize {
        self.steps.len() * self.attention().group()
    }

    /// Rows of each strip.
    fn strips(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let rows = self.rows();
        (0..rows).step_by(STRIP_ROWS).map(move |start| start..rows.min(start + STRIP_ROWS))
    }

    /// The token of a row among the new ones.
    fn step_of(&self, member: usize) -> usize {
        self.steps.start + member / self.attention().group()
    }

    /// The head of a row.
    fn head_of(&self, member: usize) -> usize {
        let group = self.attention().group();
        self.kv_head * group + member % group
    }

    /// Turns queries and puts those of a strip side by side; sums are nothing yet.
    fn begin(&self, scratch: &mut Scratch) {
        let (work, size) = (self.work, self.attention().size);
        scratch.sums.fill(0.0);
        for member in 0..self.rows() {
            let sink = work.inputs.sinks.map(|sinks| sinks[self.head_of(member)]);
            (scratch.largest[member], scratch.totals[member]) =
                sink.map_or((f32::NEG_INFINITY, 0.0), |sink| (sink, 1.0));
        }
        for strip in self.strips() {
            let turned = &mut scratch.scores[..strip.len() * size];
            for (member, turned) in strip.clone().zip(turned.chunks_exact_mut(size)) {
                work.turn_query(self.row, self.step_of(member), self.head_of(member), turned);
            }
            let target = &mut scratch.queries[strip.start * size..strip.end * size];
            let rows = MatrixA::Rows { data: turned, stride: size };
            pack_a_tile(work.isa, rows, 0..strip.len(), 0..size, strip.len(), size, target);
        }
    }

    fn transpose_keys(&self, stretch: &Stretch, target: &mut [f32]) {
        let size = self.attention().size;
        let keys = MatrixB::Columns { data: self.work.sources(self.row, self.kv_head, stretch).0, stride: size };
        for (panel, target) in target.chunks_exact_mut(PANEL_KEYS * size).enumerate() {
            let columns = panel * PANEL_KEYS..stretch.len().min((panel + 1) * PANEL_KEYS);
            if !columns.is_empty() {
                pack_b_panel(self.work.isa, PANEL_KEYS, keys, 0..size, columns, size, target);
            }
        }
    }

    /// Takes the keys of a stretch that a strip sees through both products.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn run_strip(&self, stretch: &Stretch, strip: Range<usize>, values: &SeenValues, scratch: &mut Scratch) {
        let (work, size, rows) = (self.work, self.attention().size, strip.len());
        let stretch = work.seen_part(self.step_of(strip.end - 1), stretch);
        let count = stretch.len();
        if count == 0 {
            return;
        }
        for first in (0..count).step_by(PANEL_KEYS) {
            let tile = ScoreTile {
                rows,
                queries: &scratch.queries[strip.start * size..strip.end * size],
                keys: &scratch.keys[first * size..],
                scale: self.attention().scale,
                scores: &mut scratch.scores[first..],
            };
            tile.run(count - first <= PANEL_KEYS / 2);
        }
        let mut kept = [1.0; STRIP_ROWS];
        let scores = scratch.scores.chunks_exact_mut(STRETCH_KEYS);
        for ((member, scores), kept) in strip.clone().zip(scores).zip(&mut kept) {
            let scores = &mut scores[..count.next_multiple_of(16)];
            work.finish_scores(self.row, self.step_of(member), &stretch, &mut scores[..count]);
            scores[count..].fill(f32::NEG_INFINITY);
            let before = scratch.largest[member];
            let (now, sum) = weigh(before, scores);
            *kept = if before == now {
                1.0
            } else if before == f32::NEG_INFINITY {
                0.0
            } else {
                (before - now).exp()
            };
            scratch.largest[member] = now;
            scratch.totals[member] = scratch.totals[member] * *kept + sum;
        }
        for first in (0..size).step_by(PANEL_KEYS) {
            let tile = ValueTile {
                rows,
                weights: scratch.scores,
                count,
                values: &values.tame()[first..],
                size,
                kept: &kept,
                sums: &mut scratch.sums[strip.start * size + first..strip.end * size],
            };
            tile.run(size - first <= PANEL_KEYS / 2);
        }
        let sums = &mut scratch.sums[strip.start * size..strip.end * size];
        values.add_wild(&stretch, |member| self.step_of(strip.start + member), (scratch.scores, STRETCH_KEYS), sums);
    }

    /// Sums become results.
    fn finish(&self, y: &SharedMut<f32>, scratch: &Scratch) {
        let CachedAttention { heads, size, length, .. } = *self.attention();
        for (member, sums) in scratch.sums.chunks_exact(size).enumerate() {
            let place = ((self.row * length + self.step_of(member)) * heads + self.head_of(member)) * size;
            // SAFETY: every query of every head has its own place, and is in one block.
            divide_row_into(self.work.isa, scratch.totals[member], sums, unsafe { y.slice(place, size) });
        }
    }
}
