//! Products of f32 rows with weights of 4, 8 or 16 bits. Blocks of successive k of a column have a scale and perhaps a shift.
//!
//! A few rows are multiplied with the packed weights as they are: their bytes are what such a product waits for. For more
//! rows one panel after another becomes f32 and is multiplied by the register tiles of `gemm`: the same bits as with weights
//! that always were f32. `gemm_blocks_digits` multiplies more rows by bytes instead, where the machine can.

use std::ops::{Range, RangeInclusive};

use crate::arithmetic::Arithmetic;
use crate::epilogue::{Bias, Epilogue};
use crate::gemm_blocks_line::{PaddedRows, expand_panel, multiply_panel};
use crate::gemm_drive::{Completion, DriveShape, Item, SPLIT_NS, SourceB};
use crate::gemm_pack::MatrixA;
use crate::gemm_panelwise::{drive_panelwise, drive_panelwise_scratch_len};
use crate::isa::{Exec, Isa};
use crate::pool::{SharedMut, even_parts, share};

/// Columns that lie together: one vector of 512 bits.
pub(crate) const COLUMNS: usize = 16;

/// What the bits of a weight stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Four bits: a level counted from 8.
    Int4,
    /// Four bits: a level counted from 0.
    Uint4,
    /// Eight bits: a level counted from 128.
    Int8,
    /// The upper half of an f32, which needs no scale.
    Bf16,
}

impl Code {
    /// Bits of a weight.
    pub fn bits(self) -> u32 {
        match self {
            Code::Int4 | Code::Uint4 => 4,
            Code::Int8 => 8,
            Code::Bf16 => 16,
        }
    }

    /// The level that stands for 0.
    pub fn origin(self) -> u8 {
        match self {
            Code::Int4 => 8,
            Code::Int8 => 128,
            Code::Uint4 | Code::Bf16 => 0,
        }
    }

    /// The bits of a level as they are packed. Those of 8 bits are signed, so that a shift extends them.
    fn packed_level(self, level: u8) -> u32 {
        match self {
            Code::Int8 => u32::from(level ^ 0x80),
            _ => u32::from(level),
        }
    }
}

/// How weights of few bits lie: a weight is (level - origin) · scale + shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockWeights {
    /// Rows of the weights, columns of x.
    pub k: usize,
    /// Columns of the weights and of the result.
    pub n: usize,
    /// Successive k that share a scale; a multiple of 8.
    pub block: usize,
    /// What their bits stand for.
    pub code: Code,
    /// Whether blocks have shifts.
    pub has_shifts: bool,
}

impl BlockWeights {
    /// Whether there is a kernel for them.
    pub fn is_covered(&self) -> bool {
        self.block > 0 && self.block.is_multiple_of(8) && self.k > 0 && self.n > 0
    }

    /// Blocks of a column.
    pub fn blocks(&self) -> usize {
        self.k.div_ceil(self.block)
    }

    /// Successive k in one word.
    pub(crate) fn per_word(&self) -> usize {
        (u32::BITS / self.code.bits()) as usize
    }

    /// Words of the scales and shifts of one block of `COLUMNS` columns.
    pub(crate) fn head_words(&self) -> usize {
        COLUMNS * (usize::from(self.code != Code::Bf16) + usize::from(self.has_shifts))
    }

    /// Words of one block of `COLUMNS` columns: scales, shifts, levels.
    pub(crate) fn block_words(&self) -> usize {
        self.head_words() + COLUMNS * (self.block / self.per_word())
    }

    pub(crate) fn panel_words(&self) -> usize {
        self.blocks() * self.block_words()
    }

    pub(crate) fn panels(&self) -> usize {
        self.n.div_ceil(COLUMNS)
    }

    /// Words of packed weights.
    pub fn packed_len(&self) -> usize {
        self.panels() * self.panel_words()
    }

    /// Packs the level of each column and k, counted from the least one, with scales and zero points [n, blocks]. Missing columns
    /// and k have no weight.
    pub fn pack(
        &self,
        level: impl Fn(usize, usize) -> u8,
        scales: &[f32],
        zero_points: Option<&[u8]>,
        packed: &mut [u32],
    ) {
        let (blocks, origin) = (self.blocks(), self.code.origin());
        assert!(scales.len() >= self.n * blocks, "scales of {}×{blocks} blocks", self.n);
        self.pack_blocks(packed, |panel, block, mut packed| {
            for lane in 0..COLUMNS {
                let column = panel * COLUMNS + lane;
                if column >= self.n {
                    packed.set_head(lane, 0.0, 0.0);
                    continue;
                }
                let scale = scales[column * blocks + block];
                let zero = zero_points.map_or(origin, |zeros| zeros[column * blocks + block]);
                packed.set_head(lane, scale, (f32::from(origin) - f32::from(zero)) * scale);
                for at in 0..self.block {
                    let k = block * self.block + at;
                    packed.set_level(lane, at, if k < self.k { level(column, k) } else { origin });
                }
            }
        });
    }

    /// Packs block after block: `fill` gets the number of the panel, that of the block in it, and its words, which are zeros.
    pub(crate) fn pack_blocks(&self, packed: &mut [u32], mut fill: impl FnMut(usize, usize, PackedBlock<'_>)) {
        for (panel, target) in packed.chunks_exact_mut(self.panel_words()).enumerate() {
            for (block, words) in target.chunks_exact_mut(self.block_words()).enumerate() {
                words.fill(0);
                fill(panel, block, PackedBlock { weights: self, words });
            }
        }
    }

    /// k up to the end of the last block.
    fn padded_k(&self) -> usize {
        self.blocks() * self.block
    }

    fn drive_shape(&self, m: usize) -> DriveShape {
        DriveShape { items: 1, m, n: self.n, k: self.k, c_stride: self.n, arithmetic: Arithmetic::F32 }
    }
}

/// One block of `COLUMNS` columns that is being packed.
pub(crate) struct PackedBlock<'p> {
    weights: &'p BlockWeights,
    words: &'p mut [u32],
}

impl PackedBlock<'_> {
    /// Sets the scale and, where there are some, the shift of a column.
    pub(crate) fn set_head(&mut self, lane: usize, scale: f32, shift: f32) {
        self.words[lane] = scale.to_bits();
        if self.weights.has_shifts {
            self.words[COLUMNS + lane] = shift.to_bits();
        }
    }

    /// Sets the level of the `at`th k of a column.
    pub(crate) fn set_level(&mut self, lane: usize, at: usize, level: u8) {
        let (bits, code) = (self.weights.code.packed_level(level), self.weights.code);
        let (words, per_word) = self.level_words();
        words[at / per_word][lane] |= bits << ((at % per_word) as u32 * code.bits());
    }

    /// The words of the levels, and how many successive k are in each.
    pub(crate) fn level_words(&mut self) -> (&mut [[u32; COLUMNS]], usize) {
        let (head, per_word) = (self.weights.head_words(), self.weights.per_word());
        (self.words[head..].as_chunks_mut().0, per_word)
    }
}

/// Packed weights as the right operand of a product.
#[derive(Clone, Copy)]
pub(crate) struct BlockPanels<'a> {
    weights: &'a BlockWeights,
    packed: &'a [u32],
}

impl BlockPanels<'_> {
    /// Some columns for some k as one f32 panel, [k, width]; missing columns are 0.
    pub(crate) fn pack_panel(
        &self,
        isa: Isa,
        width: usize,
        ks: Range<usize>,
        columns: Range<usize>,
        target: &mut [f32],
    ) {
        expand_panel(isa, self.weights, self.packed, ks, columns.start, width, target);
    }
}

/// Rows up to which the packed weights are multiplied as they are.
fn rows_as_packed(isa: Isa) -> usize {
    if isa >= Isa::Avx512 { 8 } else { 4 }
}

/// Elements of scratch that `gemm_blocks` needs with a pool of this many threads.
pub fn gemm_blocks_scratch_len(isa: Isa, threads: usize, weights: &BlockWeights, m: usize) -> usize {
    if m <= rows_as_packed(isa) {
        return m * (weights.padded_k() + weights.blocks());
    }
    drive_panelwise_scratch_len(isa, threads, &weights.drive_shape(m))
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
    if m == 0 {
        return;
    }
    if m <= rows_as_packed(exec.isa()) {
        return multiply_as_packed(exec, weights, m, x, packed, epilogue, c, scratch);
    }
    let panels = BlockPanels { weights, packed };
    let a = MatrixA::Rows { data: x, stride: weights.k };
    let item = Item { a, b: SourceB::Blocks(panels), c_start: 0, bias: epilogue.bias };
    let completion = Completion { scale: 1.0, epilogue };
    drive_panelwise(exec, &weights.drive_shape(m), item, &completion, c, scratch);
}

/// A few rows: every thread takes some columns of all of them, and reads their weights once.
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
    let (n, isa, panels) = (weights.n, exec.isa(), weights.panels());
    let rows = pad_rows(weights, m, x, scratch);
    // A thread reads some 20 bytes of weights a nanosecond.
    let ns = weights.packed_len() * size_of::<u32>() / 20;
    let parts = if ns < SPLIT_NS { 1 } else { exec.threads().min(panels) };
    let c = SharedMut::new(c);
    exec.pool().run(parts, &|part| {
        let panels = share(panels, parts, part);
        let columns = panels.start * COLUMNS..n.min(panels.end * COLUMNS);
        let words = &packed[panels.start * weights.panel_words()..panels.end * weights.panel_words()];
        for (words, first) in words.chunks_exact(weights.panel_words()).zip(columns.clone().step_by(COLUMNS)) {
            let width = COLUMNS.min(n - first);
            multiply_panel(isa, weights, words, &rows, |row, products| {
                // SAFETY: every part has columns of its own.
                let target = unsafe { c.slice(row * n + first, width) };
                target.copy_from_slice(&products[..width]);
            });
        }
        // SAFETY: as above.
        unsafe { end_columns(isa, epilogue, n, 0..m, columns, &c) };
    });
}

/// How a product whose rows are converted first is cut into tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Some panels each, all rows.
    Panels { tasks: usize },
    /// Some rows each, all panels.
    Rows { tasks: usize },
}

impl Cut {
    /// Of a product that takes one thread so long. Rows are divided where every thread has as many as tasks have at least.
    pub(crate) fn of(exec: Exec, ns: usize, panels: usize, m: usize, task_rows: RangeInclusive<usize>) -> Cut {
        let threads = if ns < SPLIT_NS { 1 } else { exec.pool().threads_now() };
        if m >= threads * task_rows.start() {
            return Cut::Rows { tasks: m.div_ceil(*task_rows.end()).next_multiple_of(threads) };
        }
        Cut::Panels { tasks: if threads > 1 { even_parts(panels, threads) } else { 1 } }
    }
}

/// Does what follows a product to some columns of some rows of the result, which has `n` columns.
///
/// # Safety
/// Nobody else may use these columns of these rows meanwhile.
pub(crate) unsafe fn end_columns(
    isa: Isa,
    epilogue: &Epilogue,
    n: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    c: &SharedMut<'_, f32>,
) {
    for row in rows {
        // SAFETY: the caller's promise.
        let target = unsafe { c.slice(row * n + columns.start, columns.len()) };
        if let Bias::Columns(bias) = epilogue.bias {
            crate::epilogue::add_residual(isa, &bias[columns.clone()], target);
        }
        epilogue.end_row(isa, row * n + columns.start, target);
    }
}

/// Rows of x with zeros up to the end of the last block, and the sum of each block.
fn pad_rows<'s>(weights: &BlockWeights, m: usize, x: &[f32], scratch: &'s mut [f32]) -> PaddedRows<'s> {
    let (padded, blocks) = (weights.padded_k(), weights.blocks());
    let (rows, sums) = scratch.split_at_mut(m * padded);
    let sums = &mut sums[..m * blocks];
    for ((row, sums), x) in
        rows.chunks_exact_mut(padded).zip(sums.chunks_exact_mut(blocks)).zip(x.chunks_exact(weights.k))
    {
        row[..weights.k].copy_from_slice(x);
        row[weights.k..].fill(0.0);
        for (sum, block) in sums.iter_mut().zip(row.chunks_exact(weights.block)) {
            *sum = block.iter().sum();
        }
    }
    PaddedRows { x: rows, sums, padded, blocks }
}

#[cfg(test)]
#[path = "gemm_blocks_tests.rs"]
pub(crate) mod tests;
