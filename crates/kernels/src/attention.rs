//! softmax(Q·K·scale + mask)·V in f32 for many heads, read and written with strides: heads of a joint projection need no
//! transpose. The scores of a few queries with all keys are computed at a time and stay in a cache. Every sum is that of
//! the separate kernels, in their order, so the bits are theirs too.

use crate::arithmetic::Arithmetic;
use crate::epilogue::Bias;
use crate::gemm::Order;
use crate::gemm_drive::{DIRECT_TILES_MAX, DriveShape, Item, SPLIT_NS, SourceB, drive_alone, drive_alone_scratch_len};
use crate::gemm_pack::{MatrixA, MatrixB, pack_b_panel, row_tiles};
use crate::gemm_tile::tile_shape;
use crate::isa::{Exec, Isa};
use crate::math;
use crate::pool::{SharedMut, share};
use crate::row_sum::{combine, replace_sum_of};
use crate::simd::multiversion;
use std::ops::Range;

/// Scores that are kept at a time: with them the packed keys and values stay in a second-level cache.
const SCORES_MAX: usize = 32 * 1024;

/// How the matrices of one operand lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Rows or columns with unit steps inside.
    pub order: Order,
    /// From one row, or column, to the next.
    pub stride: usize,
}

/// Numbers that are added to the scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskLayout {
    /// From one query to the next; 0 where all have the same.
    pub query_stride: usize,
    /// Whether each key has its own; else a query has one number for all.
    pub is_by_key: bool,
}

/// Where the matrices of one head start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// In Q.
    pub q: usize,
    /// In K.
    pub k: usize,
    /// In V.
    pub v: usize,
    /// In the mask.
    pub mask: usize,
    /// In the result.
    pub output: usize,
}

/// What an attention computes: sizes, layouts and factors of all heads.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionShape {
    /// Rows of Q and of the result.
    pub queries: usize,
    /// Columns of K, rows of V.
    pub keys: usize,
    /// Columns of Q, rows of K.
    pub depth: usize,
    /// Columns of V and of the result.
    pub width: usize,
    /// queries × depth
    pub q: Layout,
    /// depth × keys
    pub k: Layout,
    /// keys × width
    pub v: Layout,
    /// queries × width
    pub output: Layout,
    /// Factor of the products.
    pub scale: f32,
    /// Divisor of the products, after the factor.
    pub divisor: f32,
    /// Added after that.
    pub mask: Option<MaskLayout>,
    /// Whether weights that are not a number become 0.
    pub clears_nan: bool,
    /// Every head.
    pub heads: Vec<Head>,
}

/// An attention whose heads write different elements.
pub struct Attention {
    shape: AttentionShape,
    output_len: usize,
}

impl Attention {
    /// Checks that no two elements of the result share a place among `output_len`; none if they do, or if a size is 0.
    pub fn new(shape: AttentionShape, output_len: usize) -> Option<Attention> {
        let AttentionShape { queries, keys, depth, width, .. } = shape;
        if [queries, keys, depth, width].contains(&0) || !is_injective(&shape, output_len) {
            return None;
        }
        Some(Attention { shape, output_len })
    }

    /// Elements of scratch that `run` needs with a pool of this many threads.
    pub fn scratch_len(&self, isa: Isa, threads: usize) -> usize {
        threads.max(1) * self.part_scratch(isa).iter().sum::<usize>()
    }

    /// Elements that a part uses for packed keys, packed values, scores and packing.
    fn part_scratch(&self, isa: Isa) -> [usize; 4] {
        let AttentionShape { queries, keys, depth, width, .. } = self.shape;
        let cols = tile_shape(isa).cols;
        let rows = self.block_rows(isa).min(queries);
        let (scores, products) = self.products(rows);
        let packing = drive_alone_scratch_len(isa, &scores, true).max(drive_alone_scratch_len(isa, &products, true));
        let pad = |len: usize| len.next_multiple_of(16);
        [pad(keys.next_multiple_of(cols) * depth), pad(width.next_multiple_of(cols) * keys), pad(rows * keys), packing]
    }

    /// Queries whose scores are computed together.
    fn block_rows(&self, isa: Isa) -> usize {
        let rows_max = tile_shape(isa).rows_max;
        (SCORES_MAX / self.shape.keys / rows_max).max(1) * rows_max
    }

    /// Shapes of the two products for a block of queries.
    fn products(&self, rows: usize) -> (DriveShape, DriveShape) {
        let AttentionShape { keys, depth, width, output, .. } = self.shape;
        let scores = DriveShape { items: 1, m: rows, n: keys, k: depth, c_stride: keys, arithmetic: Arithmetic::F32 };
        let (m, n) = match output.order {
            Order::Rows => (rows, width),
            Order::Columns => (width, rows),
        };
        (scores, DriveShape { items: 1, m, n, k: keys, c_stride: output.stride.max(n), arithmetic: Arithmetic::F32 })
    }

    /// Computes every head. Panics when a slice is too short.
    pub fn run(
        &self,
        exec: Exec,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        mask: Option<&[f32]>,
        output: &mut [f32],
        scratch: &mut [f32],
    ) {
        assert_eq!(output.len(), self.output_len, "elements of the result");
        assert_eq!(mask.is_some(), self.shape.mask.is_some(), "a mask");
        let heads = self.shape.heads.len();
        if heads == 0 {
            return;
        }
        let threads = if self.estimate_ns() < SPLIT_NS { 1 } else { exec.threads() };
        // Whole heads where there are enough of them: their keys are packed once.
        let chunks = threads.div_ceil(heads).min(row_tiles(exec.isa(), self.shape.queries));
        let tasks = heads * chunks;
        let parts = threads.min(tasks);
        let lens = self.part_scratch(exec.isa());
        let part_scratch: usize = lens.iter().sum();
        assert!(scratch.len() >= parts * part_scratch, "scratch of {} for {parts}×{part_scratch}", scratch.len());
        let (output, scratch) = (SharedMut::new(output), SharedMut::new(scratch));
        exec.pool().run(parts, &|part| {
            // SAFETY: every part has its own stretch of the scratch.
            let scratch = unsafe { scratch.slice(part * part_scratch, part_scratch) };
            let (packed_k, rest) = scratch.split_at_mut(lens[0]);
            let (packed_v, rest) = rest.split_at_mut(lens[1]);
            let (scores, packing) = rest.split_at_mut(lens[2]);
            for task in share(tasks, parts, part) {
                let head = self.shape.heads[task / chunks];
                let queries = share(self.shape.queries, chunks, task % chunks);
                let sources = Sources { q: &q[head.q..], k: &k[head.k..], v: &v[head.v..] };
                let work = Work { attention: self, isa: exec.isa(), head, sources, mask, output: &output };
                work.run(queries, packed_k, packed_v, scores, packing);
            }
        });
    }

    /// A rough time for one thread: arithmetic at 100 flops and ten exponentials a nanosecond.
    fn estimate_ns(&self) -> usize {
        let AttentionShape { queries, keys, depth, width, .. } = self.shape;
        let scores = self.shape.heads.len().saturating_mul(queries).saturating_mul(keys);
        scores.saturating_mul(depth + width) / 50 + scores / 5
    }
}

/// Whether every element of the result has a place of its own.
fn is_injective(shape: &AttentionShape, output_len: usize) -> bool {
    let Layout { order, stride } = shape.output;
    let (lines, len) = match order {
        Order::Rows => (shape.queries, shape.width),
        Order::Columns => (shape.width, shape.queries),
    };
    let mut is_taken = vec![false; output_len];
    shape.heads.iter().flat_map(|head| (0..lines).map(move |line| head.output + line * stride)).all(|start| {
        let Some(places) = is_taken.get_mut(start..start + len) else { return false };
        let is_free = places.iter().all(|is_taken| !is_taken);
        places.fill(true);
        is_free
    })
}

/// The operands of one head.
#[derive(Clone, Copy)]
struct Sources<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
}

/// One head and what its queries share.
struct Work<'a> {
    attention: &'a Attention,
    isa: Isa,
    head: Head,
    sources: Sources<'a>,
    mask: Option<&'a [f32]>,
    output: &'a SharedMut<'a, f32>,
}

impl Work<'_> {
    fn run(
        &self,
        queries: Range<usize>,
        packed_k: &mut [f32],
        packed_v: &mut [f32],
        scores: &mut [f32],
        packing: &mut [f32],
    ) {
        let shape = &self.attention.shape;
        let (k, v) = (matrix_b(shape.k, self.sources.k), matrix_b(shape.v, self.sources.v));
        let packs = row_tiles(self.isa, queries.len()) > DIRECT_TILES_MAX;
        let is_by_rows = shape.output.order == Order::Rows;
        let k = if packs { self.packed(k, shape.depth, shape.keys, packed_k) } else { k };
        let v = if packs && is_by_rows { self.packed(v, shape.keys, shape.width, packed_v) } else { v };
        let step = self.attention.block_rows(self.isa);
        for first in queries.clone().step_by(step) {
            let rows = first..queries.end.min(first + step);
            let scores = &mut scores[..rows.len() * shape.keys];
            self.score(rows.clone(), k, scores, packing);
            self.weigh(rows.clone(), scores);
            self.combine(rows, v, scores, packing);
        }
    }

    fn packed<'p>(&self, matrix: MatrixB, k: usize, n: usize, target: &'p mut [f32]) -> MatrixB<'p> {
        matrix.check(k, n);
        let cols = tile_shape(self.isa).cols;
        for (panel, target) in target[..n.next_multiple_of(cols) * k].chunks_exact_mut(cols * k).enumerate() {
            let columns = panel * cols..n.min((panel + 1) * cols);
            pack_b_panel(self.isa, cols, matrix, 0..k, columns, k, target);
        }
        MatrixB::Packed(target)
    }

    /// Products of queries and keys.
    fn score(&self, rows: Range<usize>, k: MatrixB, scores: &mut [f32], packing: &mut [f32]) {
        let shape = &self.attention.shape;
        let Layout { order, stride } = shape.q;
        let a = match order {
            Order::Rows => MatrixA::Rows { data: &self.sources.q[rows.start * stride..], stride },
            Order::Columns => MatrixA::Columns { data: &self.sources.q[rows.start..], stride },
        };
        let (product, _) = self.attention.products(rows.len());
        let item = Item { a, b: SourceB::Matrix(k), c_start: 0, bias: Bias::None };
        drive_alone(self.isa, &product, item, shape.scale, &SharedMut::new(scores), packing);
    }

    /// Scores become weights.
    fn weigh(&self, rows: Range<usize>, scores: &mut [f32]) {
        let shape = &self.attention.shape;
        for (query, row) in rows.zip(scores.chunks_exact_mut(shape.keys)) {
            if let (Some(layout), Some(mask)) = (shape.mask, self.mask) {
                let start = self.head.mask + query * layout.query_stride;
                let len = if layout.is_by_key { shape.keys } else { 1 };
                add_mask(self.isa, shape.divisor, &mask[start..][..len], row);
            } else if shape.divisor != 1.0 {
                divide(self.isa, shape.divisor, row);
            }
            softmax_row(self.isa, row);
            if shape.clears_nan {
                clear_nan(self.isa, row);
            }
        }
    }

    /// Products of weights and values.
    fn combine(&self, rows: Range<usize>, v: MatrixB, scores: &[f32], packing: &mut [f32]) {
        let shape = &self.attention.shape;
        let (_, product) = self.attention.products(rows.len());
        let Layout { order, stride } = shape.output;
        let item = match order {
            Order::Rows => Item {
                a: MatrixA::Rows { data: scores, stride: shape.keys },
                b: SourceB::Matrix(v),
                c_start: self.head.output + rows.start * stride,
                bias: Bias::None,
            },
            // The transposed product: Vᵀ · weightsᵀ.
            Order::Columns => Item {
                a: match shape.v.order {
                    Order::Rows => MatrixA::Columns { data: self.sources.v, stride: shape.v.stride },
                    Order::Columns => MatrixA::Rows { data: self.sources.v, stride: shape.v.stride },
                },
                b: SourceB::Matrix(MatrixB::Columns { data: scores, stride: shape.keys }),
                c_start: self.head.output + rows.start,
                bias: Bias::None,
            },
        };
        drive_alone(self.isa, &product, item, 1.0, self.output, packing);
    }
}

fn matrix_b(layout: Layout, data: &[f32]) -> MatrixB<'_> {
    match layout.order {
        Order::Rows => MatrixB::Rows { data, stride: layout.stride },
        Order::Columns => MatrixB::Columns { data, stride: layout.stride },
    }
}

multiversion! {
    /// One number for each element, or one for all.
    fn add_mask<F: MulAdd>(divisor: f32, mask: &[f32], row: &mut [f32]) {
        if mask.len() == 1 && row.len() != 1 {
            row.iter_mut().for_each(|score| *score = *score / divisor + mask[0]);
        } else {
            for (score, mask) in row.iter_mut().zip(mask) {
                *score = *score / divisor + mask;
            }
        }
    }

    fn divide<F: MulAdd>(divisor: f32, row: &mut [f32]) {
        row.iter_mut().for_each(|score| *score /= divisor);
    }

    /// As `softmax_rows` of softmax.rs, in place.
    fn softmax_row<F: MulAdd>(row: &mut [f32]) {
        let max = combine(row, f32::NEG_INFINITY, |a: f32, b: f32| if b > a { b } else { a });
        let sum = replace_sum_of(row, |x| math::exp::<F>(x - max));
        let scale = (1.0 / sum) as f32;
        row.iter_mut().for_each(|weight| *weight *= scale);
    }

    fn clear_nan<F: MulAdd>(row: &mut [f32]) {
        row.iter_mut().for_each(|weight| *weight = if weight.is_nan() { 0.0 } else { *weight });
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
