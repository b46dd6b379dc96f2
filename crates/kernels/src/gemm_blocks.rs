//! Products of f32 rows with weights of 4 or 8 bits, of which each block of successive k of a column has a scale and
//! perhaps a zero point.
//!
//! A few rows are multiplied with the packed weights as they are: their bytes are what such a product waits for. For more
//! rows some columns at a time become f32 panels, which `gemm` multiplies. Both compute with (level - zero point) · scale in
//! f32, in the order of k.

use crate::epilogue::{Bias, Epilogue};
use crate::gemm::{MatrixA, MatrixB, Packing, gemm, gemm_scratch_len, panel_columns};
use crate::gemm_blocks_line::{add_columns, expand_columns};
use crate::gemm_drive::SPLIT_NS;
use crate::isa::{Exec, Isa};
use crate::pool::{SharedMut, share};

/// Columns that lie together: one vector of 512 bits.
pub(crate) const COLUMNS: usize = 16;
/// Rows up to which the packed weights are multiplied as they are.
const ROWS_AS_PACKED: usize = 4;
/// Bytes of f32 panels that are made at a time: they stay in a cache that the cores share.
const PANELS_BYTES: usize = 2 << 20;

/// How weights of some bits lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockWeights {
    /// Rows of the weights, columns of x.
    pub k: usize,
    /// Columns of the weights and of the result.
    pub n: usize,
    /// Successive k that share a scale; a multiple of 8.
    pub block: usize,
    /// 4 or 8.
    pub bits: u32,
    /// Whether zero points differ from the middle level.
    pub has_zero_points: bool,
}

impl BlockWeights {
    /// Whether there is a kernel for them.
    pub fn is_covered(&self) -> bool {
        (self.bits == 4 || self.bits == 8) && self.block > 0 && self.block.is_multiple_of(8) && self.k > 0 && self.n > 0
    }

    /// The level that stands for 0 where there are no zero points.
    pub fn middle(&self) -> u8 {
        1 << (self.bits - 1)
    }

    /// Blocks of a column.
    pub fn blocks(&self) -> usize {
        self.k.div_ceil(self.block)
    }

    /// Successive k in one word.
    fn per_word(&self) -> usize {
        (u32::BITS / self.bits) as usize
    }

    /// Words of one block of `COLUMNS` columns: scales, what zero points add, levels.
    pub(crate) fn block_words(&self) -> usize {
        COLUMNS * (1 + usize::from(self.has_zero_points) + self.block / self.per_word())
    }

    fn panel_words(&self) -> usize {
        self.blocks() * self.block_words()
    }

    fn panels(&self) -> usize {
        self.n.div_ceil(COLUMNS)
    }

    /// Words of packed weights.
    pub fn packed_len(&self) -> usize {
        self.panels() * self.panel_words()
    }

    /// Packs levels [n, k], one a byte, with scales and zero points [n, blocks]. Missing columns and k have no weight.
    pub fn pack(&self, levels: &[u8], scales: &[f32], zero_points: Option<&[u8]>, packed: &mut [u32]) {
        let (blocks, per_word) = (self.blocks(), self.per_word());
        assert!(levels.len() >= self.n * self.k && scales.len() >= self.n * blocks, "levels and scales");
        for (panel, target) in packed.chunks_exact_mut(self.panel_words()).enumerate() {
            for (block, target) in target.chunks_exact_mut(self.block_words()).enumerate() {
                let (head, words) = target.split_at_mut(COLUMNS * (1 + usize::from(self.has_zero_points)));
                for lane in 0..COLUMNS {
                    let column = panel * COLUMNS + lane;
                    let is_there = column < self.n;
                    let scale = if is_there { scales[column * blocks + block] } else { 0.0 };
                    head[lane] = scale.to_bits();
                    if self.has_zero_points {
                        let zero = zero_points.filter(|_| is_there).map(|zeros| zeros[column * blocks + block]);
                        let shift = f32::from(self.middle()) - f32::from(zero.unwrap_or(self.middle()));
                        head[COLUMNS + lane] = (shift * scale).to_bits();
                    }
                    for (group, words) in words.chunks_exact_mut(COLUMNS).enumerate() {
                        words[lane] = (0..per_word).fold(0, |word, place| {
                            let k = block * self.block + group * per_word + place;
                            let level =
                                if is_there && k < self.k { levels[column * self.k + k] } else { self.middle() };
                            word | u32::from(level) << (place as u32 * self.bits)
                        });
                    }
                }
            }
        }
    }

    /// k up to the end of the last block.
    fn padded_k(&self) -> usize {
        self.blocks() * self.block
    }

    /// Columns whose f32 panels are made at a time.
    fn expanded_columns(&self, isa: Isa) -> usize {
        let width = panel_columns(isa);
        let most = (PANELS_BYTES / size_of::<f32>() / self.k / width).max(1) * width;
        most.min(self.n.next_multiple_of(width))
    }
}

/// Elements of scratch that `gemm_blocks` needs with a pool of this many threads.
pub fn gemm_blocks_scratch_len(isa: Isa, threads: usize, weights: &BlockWeights, m: usize) -> usize {
    if m <= ROWS_AS_PACKED {
        return m * (weights.padded_k() + weights.blocks());
    }
    let columns = weights.expanded_columns(isa);
    columns * weights.k + gemm_scratch_len(isa, threads, m, columns, weights.k, Packing::Plain, Packing::Packed)
}

/// C = activation(x · W + bias + residual), m × n. Panics when a slice is too short.
pub fn gemm_blocks(
    exec: Exec,
    weights: &BlockWeights,
    m: usize,
    x: &[f32],
    packed: &[u32],
    epilogue: &Epilogue,
    c: &mut [f32],
    scratch: &mut [f32],
) {
    assert!(x.len() >= m * weights.k && c.len() >= m * weights.n, "operands of {m}×{}×{}", weights.n, weights.k);
    assert!(packed.len() >= weights.packed_len(), "packed weights of {} for {weights:?}", packed.len());
    match m {
        0 => {}
        1..=ROWS_AS_PACKED => multiply_as_packed(exec, weights, m, x, packed, epilogue, c, scratch),
        _ => multiply_expanded(exec, weights, m, x, packed, epilogue, c, scratch),
    }
}

/// A few rows: every thread takes some columns of all of them.
fn multiply_as_packed(
    exec: Exec,
    weights: &BlockWeights,
    m: usize,
    x: &[f32],
    packed: &[u32],
    epilogue: &Epilogue,
    c: &mut [f32],
    scratch: &mut [f32],
) {
    let (n, isa, padded) = (weights.n, exec.isa(), weights.padded_k());
    let (rows, sums) = scratch.split_at_mut(m * padded);
    for ((row, sums), x) in
        rows.chunks_exact_mut(padded).zip(sums.chunks_exact_mut(weights.blocks())).zip(x.chunks_exact(weights.k))
    {
        row[..weights.k].copy_from_slice(x);
        row[weights.k..].fill(0.0);
        for (sum, block) in sums.iter_mut().zip(row.chunks_exact(weights.block)) {
            *sum = block.iter().sum();
        }
    }
    let panels = weights.panels();
    // A thread reads some 20 bytes of weights a nanosecond.
    let ns = weights.packed_len() * size_of::<u32>() / 20;
    let parts = if ns < SPLIT_NS { 1 } else { exec.threads().min(panels) };
    let c = SharedMut::new(c);
    exec.pool().run(parts, &|part| {
        let panels = share(panels, parts, part);
        let columns = panels.start * COLUMNS..n.min(panels.end * COLUMNS);
        for row in 0..m {
            // SAFETY: every part has columns of its own.
            let target = unsafe { c.slice(row * n + columns.start, columns.len()) };
            let words = &packed[panels.start * weights.panel_words()..panels.end * weights.panel_words()];
            let x = &rows[row * padded..][..padded];
            add_columns(isa, weights, x, &sums[row * weights.blocks()..][..weights.blocks()], words, target);
            if let Bias::Columns(bias) = epilogue.bias {
                crate::epilogue::add_residual(isa, &bias[columns.clone()], target);
            }
            epilogue.end_row(isa, row * n + columns.start, target);
        }
    });
}

/// Many rows: some columns of the weights become f32 at a time.
fn multiply_expanded(
    exec: Exec,
    weights: &BlockWeights,
    m: usize,
    x: &[f32],
    packed: &[u32],
    epilogue: &Epilogue,
    c: &mut [f32],
    scratch: &mut [f32],
) {
    let BlockWeights { n, k, .. } = *weights;
    let (isa, width) = (exec.isa(), panel_columns(exec.isa()));
    let step = weights.expanded_columns(isa);
    let (panels, scratch) = scratch.split_at_mut(step * k);
    for first in (0..n).step_by(step) {
        let columns = step.min(n - first);
        let made = columns.div_ceil(width);
        exec.pool().chunks_mut(&mut panels[..made * width * k], width * k, |panel, target| {
            expand_columns(isa, weights, packed, first + panel * width, width, target);
        });
        let bias = match epilogue.bias {
            Bias::Columns(bias) => Bias::Columns(&bias[first..]),
            other => other,
        };
        let epilogue = Epilogue { bias, residual: epilogue.residual.map(|residual| &residual[first..]), ..*epilogue };
        let (a, b) = (MatrixA::Rows { data: x, stride: k }, MatrixB::Packed(&panels[..made * width * k]));
        gemm(exec, m, columns, k, a, b, &mut c[first..], n, &epilogue, scratch);
    }
}

#[cfg(test)]
#[path = "gemm_blocks_tests.rs"]
mod tests;
