//! The loops around the register tiles: one or many products of one shape, cut over threads and caches.
//!
//! GEMM, batched GEMM and convolution all end here and differ in where the panels of B come from. Work is cut along
//! items, rows and columns, never along k, so results are the same bits for any number of threads.

use crate::arithmetic::{Arithmetic, join_rows};
use crate::conv_patches::ImagePatches;
use crate::conv_planes::PlanePatches;
use crate::epilogue::{Bias, Epilogue, Light};
use crate::gemm_blocks::BlockPanels;
use crate::gemm_pack::{MatrixA, MatrixB, pack_a_tile, pack_b_panel, row_tiles};
use crate::gemm_tile::{Finish, TileCall, TileKernel, TileShape, tile_kernel, tile_shape};
use crate::gemm_tile_words::tile_kernel_words;
use crate::isa::{Exec, Isa};
use crate::pool::{SharedMut, share};
use std::ops::Range;
use std::ptr::null;

/// Columns of C done together: their panels of one k block stay in a second-level cache of 512 KiB or more.
const BLOCK_COLUMNS: usize = 256;
/// Twice as many when A must be packed for each block.
const BLOCK_COLUMNS_PLAIN_A: usize = 512;
/// Row tiles done together when B is packed: their part of C stays in the second-level cache.
const BLOCK_TILES: usize = 24;
/// With no more row tiles than this, copying rows of B costs more than reading them in place.
pub(crate) const DIRECT_TILES_MAX: usize = 2;
/// Work below this many nanoseconds stays on one thread.
pub(crate) const SPLIT_NS: usize = 8_000;

/// The right operand of an item: a matrix, the patches of an image, or weights of few bits.
#[derive(Clone, Copy)]
pub(crate) enum SourceB<'a> {
    Matrix(MatrixB<'a>),
    Image(ImagePatches<'a>),
    Planes(PlanePatches<'a>),
    Blocks(BlockPanels<'a>),
}

/// One product C = A·B of a drive.
#[derive(Clone, Copy)]
pub(crate) struct Item<'a> {
    pub a: MatrixA<'a>,
    pub b: SourceB<'a>,
    /// Where its C starts, in elements; also in the residual.
    pub c_start: usize,
    pub bias: Bias<'a>,
}

/// The common shape of all items.
#[derive(Clone, Copy)]
pub(crate) struct DriveShape {
    pub items: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub c_stride: usize,
    pub arithmetic: Arithmetic,
}

impl DriveShape {
    /// Steps of the register tiles.
    fn steps(&self) -> usize {
        self.arithmetic.steps(self.k)
    }

    /// The most steps that are packed at once.
    pub(crate) fn block_steps(&self) -> usize {
        self.steps().min(self.arithmetic.steps_max())
    }

    /// Values of a block before they are joined to words, for each row or column.
    fn wide_len(&self) -> usize {
        match self.arithmetic {
            Arithmetic::F32 => 0,
            Arithmetic::Bf16 => 2 * self.block_steps(),
        }
    }
}

/// What is done to every item's product.
#[derive(Clone, Copy)]
pub(crate) struct Completion<'a> {
    pub scale: f32,
    /// Its bias is that of each item.
    pub epilogue: &'a Epilogue<'a>,
}

/// Elements of scratch that `drive` needs.
pub(crate) fn drive_scratch_len(isa: Isa, threads: usize, shape: &DriveShape, packs_a: bool, packs_b: bool) -> usize {
    threads.max(1) * part_scratch_len(isa, shape, packs_a, packs_b)
}

fn part_scratch_len(isa: Isa, shape: &DriveShape, packs_a: bool, packs_b: bool) -> usize {
    let TileShape { rows_max, cols } = tile_shape(isa);
    let columns = block_columns(packs_a).min(shape.n.next_multiple_of(cols));
    let b = if packs_b { columns * shape.block_steps() + cols * shape.wide_len() } else { 0 };
    (a_scratch_len(rows_max, shape, packs_a) + b).next_multiple_of(16)
}

fn a_scratch_len(rows_max: usize, shape: &DriveShape, packs_a: bool) -> usize {
    if packs_a { rows_max.min(shape.m) * (shape.block_steps() + shape.wide_len()) } else { 0 }
}

fn block_columns(packs_a: bool) -> usize {
    if packs_a { BLOCK_COLUMNS_PLAIN_A } else { BLOCK_COLUMNS }
}

/// Computes every item into `c`. The C of different items must not overlap. `packs_a` and `packs_b` say whether any
/// item has an operand that is not packed.
pub(crate) fn drive<'a>(
    exec: Exec,
    shape: &DriveShape,
    item: &(dyn Fn(usize) -> Item<'a> + Sync),
    packs_a: bool,
    packs_b: bool,
    completion: &Completion,
    c: &mut [f32],
    scratch: &mut [f32],
) {
    if shape.items == 0 || shape.m == 0 || shape.n == 0 {
        return;
    }
    let (isa, tile) = (exec.isa(), tile_shape(exec.isa()));
    let (tiles, panels) = (row_tiles(isa, shape.m), shape.n.div_ceil(tile.cols));
    let threads = if estimate_ns(shape, packs_a, packs_b) < SPLIT_NS { 1 } else { exec.threads() };
    let grid = choose_grid(threads, tile, [shape.items, tiles, panels]);
    let parts = grid.iter().product();
    let part_scratch = part_scratch_len(isa, shape, packs_a, packs_b);
    assert!(scratch.len() >= parts * part_scratch, "scratch of {} for {parts}×{part_scratch}", scratch.len());
    let (c, scratch) = (SharedMut::new(c), SharedMut::new(scratch));
    exec.pool().run(parts, &|part| {
        let items = share(shape.items, grid[0], part / (grid[1] * grid[2]));
        let tiles = share(tiles, grid[1], part / grid[2] % grid[1]);
        let panels = share(panels, grid[2], part % grid[2]);
        // SAFETY: every part has its own stretch of the scratch.
        let scratch = unsafe { scratch.slice(part * part_scratch, part_scratch) };
        for index in items {
            let block = Block { isa, tile, shape, item: item(index), packs_a, completion, accumulates: false, c: &c };
            block.check();
            block.run(tiles.clone(), panels.clone(), scratch);
        }
    });
}

/// Elements of scratch that `drive_alone` needs.
pub(crate) fn drive_alone_scratch_len(isa: Isa, shape: &DriveShape, packs_b: bool) -> usize {
    part_scratch_len(isa, shape, true, packs_b)
}

/// Computes one item, whose A is not packed, on the calling thread: for kernels that cut their work themselves. Nothing
/// else may write this item's elements of `c` meanwhile.
pub(crate) fn drive_alone(
    isa: Isa,
    shape: &DriveShape,
    item: Item,
    scale: f32,
    c: &SharedMut<f32>,
    scratch: &mut [f32],
) {
    run_alone(isa, shape, item, scale, false, c, scratch);
}

/// As `drive_alone`, added to what `c` holds.
pub(crate) fn drive_alone_onto(isa: Isa, shape: &DriveShape, item: Item, c: &SharedMut<f32>, scratch: &mut [f32]) {
    run_alone(isa, shape, item, 1.0, true, c, scratch);
}

fn run_alone(
    isa: Isa,
    shape: &DriveShape,
    item: Item,
    scale: f32,
    accumulates: bool,
    c: &SharedMut<f32>,
    scratch: &mut [f32],
) {
    if shape.m == 0 || shape.n == 0 {
        return;
    }
    let tile = tile_shape(isa);
    let completion = Completion { scale, epilogue: &Epilogue::default() };
    let block = Block { isa, tile, shape, item, packs_a: true, completion: &completion, accumulates, c };
    block.check();
    block.run(0..row_tiles(isa, shape.m), 0..shape.n.div_ceil(tile.cols), scratch);
}

/// Elements of scratch that `drive_panels` needs.
pub(crate) fn drive_panels_scratch_len(isa: Isa, shape: &DriveShape) -> usize {
    part_scratch_len(isa, shape, false, true)
}

/// Computes some panels of one item, whose A is packed, on the calling thread. Nothing else may write this item's elements of
/// `c` meanwhile.
pub(crate) fn drive_panels(
    isa: Isa,
    shape: &DriveShape,
    item: Item,
    completion: &Completion,
    panels: Range<usize>,
    c: &SharedMut<f32>,
    scratch: &mut [f32],
) {
    if shape.m == 0 || shape.n == 0 {
        return;
    }
    let block = Block { isa, tile: tile_shape(isa), shape, item, packs_a: false, completion, accumulates: false, c };
    block.check();
    block.run(0..row_tiles(isa, shape.m), panels, scratch);
}

/// A rough time for one thread: arithmetic at 100 flops and weights at 20 bytes a nanosecond. Packed weights of a batch are
/// read once.
pub(crate) fn estimate_ns(shape: &DriveShape, packs_a: bool, packs_b: bool) -> usize {
    let products = shape.items.saturating_mul(shape.m).saturating_mul(shape.n).saturating_mul(shape.k);
    let matrices = if packs_b { shape.items } else { 1 };
    let left = if packs_a { 0 } else { shape.m.saturating_mul(shape.k) };
    products / 50 + matrices.saturating_mul(shape.n).saturating_mul(shape.k).saturating_add(left) / 5
}

/// Cuts items, row tiles and panels so that the largest part is cheapest; ties go to items, then to panels.
fn choose_grid(threads: usize, tile: TileShape, counts: [usize; 3]) -> [usize; 3] {
    let mut best = ([1, 1, 1], part_cost(tile, counts));
    for by_items in (1..=threads.min(counts[0])).rev() {
        for by_tiles in 1..=(threads / by_items).min(counts[1]) {
            let by_panels = (threads / by_items / by_tiles).min(counts[2]);
            let largest = [counts[0].div_ceil(by_items), counts[1].div_ceil(by_tiles), counts[2].div_ceil(by_panels)];
            let cost = part_cost(tile, largest);
            if cost < best.1 {
                best = ([by_items, by_tiles, by_panels], cost);
            }
        }
    }
    best.0
}

/// Cost of a part for each step of k, in sixteenths of a cycle: one cycle for 16 products, and reading A and B from
/// an outer cache at two values a cycle, since every part reads all of its own.
fn part_cost(tile: TileShape, [items, tiles, panels]: [usize; 3]) -> usize {
    let (rows, columns) = (tiles * tile.rows_max, panels * tile.cols);
    items * (rows * columns + 8 * (rows + columns))
}

/// One item and everything its tiles share.
pub(crate) struct Block<'a> {
    isa: Isa,
    tile: TileShape,
    shape: &'a DriveShape,
    item: Item<'a>,
    packs_a: bool,
    completion: &'a Completion<'a>,
    /// Whether products are added to what C holds.
    accumulates: bool,
    c: &'a SharedMut<'a, f32>,
}

/// Panels of B for one block of k: panel p starts at `start + p * panel_stride`.
#[derive(Clone, Copy)]
pub(crate) struct PanelBlock {
    start: *const f32,
    panel_stride: usize,
    k_stride: usize,
    /// Where the last panel is instead, when it is not as wide as the others.
    last: Option<*const f32>,
}

impl PanelBlock {
    /// A single panel of rows of `width`.
    pub(crate) fn one(start: *const f32, width: usize) -> PanelBlock {
        PanelBlock { start, panel_stride: 0, k_stride: width, last: None }
    }
}

impl<'a> Block<'a> {
    /// One item whose A is not packed.
    pub(crate) fn new(
        isa: Isa,
        shape: &'a DriveShape,
        item: Item<'a>,
        completion: &'a Completion<'a>,
        c: &'a SharedMut<'a, f32>,
    ) -> Block<'a> {
        Block { isa, tile: tile_shape(isa), shape, item, packs_a: true, completion, accumulates: false, c }
    }

    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    pub(crate) fn shape(&self) -> &DriveShape {
        self.shape
    }
}

impl Block<'_> {
    /// Panics when an operand, C, a bias or the residual is too short for the shape.
    pub(crate) fn check(&self) {
        let DriveShape { m, n, k, c_stride, .. } = *self.shape;
        match self.item.a {
            MatrixA::Packed(data) => {
                assert!(data.len() >= m.saturating_mul(self.shape.steps()), "packed A of {} for {m}×{k}", data.len());
            }
            plain => plain.check(m, k),
        }
        match self.item.b {
            SourceB::Matrix(MatrixB::Packed(data)) => {
                assert!(
                    data.len() >= n.next_multiple_of(self.tile.cols).saturating_mul(self.shape.steps()),
                    "packed B of {} for {k}×{n}",
                    data.len()
                );
            }
            SourceB::Matrix(matrix) => matrix.check(k, n),
            SourceB::Image(_) | SourceB::Planes(_) | SourceB::Blocks(_) => {}
        }
        let c_end = (m - 1).saturating_mul(c_stride).saturating_add(n).saturating_add(self.item.c_start);
        assert!(c_stride >= n && self.c.len() >= c_end, "C of {} for {m}×{n}", self.c.len());
        assert!(
            self.completion.epilogue.residual.is_none_or(|residual| residual.len() >= c_end),
            "residual for {m}×{n}"
        );
        match self.item.bias {
            Bias::None => {}
            Bias::Rows(bias) => assert!(bias.len() >= m, "bias of {} for {m} rows", bias.len()),
            Bias::Columns(bias) => assert!(bias.len() >= n, "bias of {} for {n} columns", bias.len()),
        }
    }

    /// Computes the part of C in these row tiles and panels.
    fn run(&self, tiles: Range<usize>, panels: Range<usize>, scratch: &mut [f32]) {
        let a_len = a_scratch_len(self.tile.rows_max, self.shape, self.packs_a);
        let (a_scratch, b_scratch) = scratch.split_at_mut(a_len);
        let panel_group = block_columns(self.packs_a) / self.tile.cols;
        let is_b_packed = matches!(self.item.b, SourceB::Matrix(MatrixB::Packed(_)));
        let tile_group = if is_b_packed { BLOCK_TILES } else { tiles.len() };
        for first_panel in panels.clone().step_by(panel_group) {
            let panels = first_panel..panels.end.min(first_panel + panel_group);
            for first_tile in tiles.clone().step_by(tile_group.max(1)) {
                let tiles = first_tile..tiles.end.min(first_tile + tile_group);
                self.run_block(tiles, panels.clone(), a_scratch, b_scratch);
            }
        }
    }

    /// One cache block of C: all of k, a block at a time.
    fn run_block(&self, tiles: Range<usize>, panels: Range<usize>, a_scratch: &mut [f32], b_scratch: &mut [f32]) {
        let (m, steps) = (self.shape.m, self.shape.steps());
        let tile_count = row_tiles(self.isa, m);
        for ks in self.k_blocks() {
            let b = self.panel_block(ks.clone(), panels.clone(), tiles.len(), b_scratch);
            for tile in tiles.clone() {
                let rows = share(m, tile_count, tile);
                let a = match self.item.a {
                    MatrixA::Packed(data) => data[rows.start * steps + ks.start * rows.len()..].as_ptr(),
                    // One tile of columns without gaps is its own packed form.
                    MatrixA::Columns { data, stride }
                        if stride == rows.len() && self.shape.arithmetic == Arithmetic::F32 =>
                    {
                        data[ks.start * stride..].as_ptr()
                    }
                    plain => self.pack_a(plain, rows.clone(), ks.clone(), a_scratch),
                };
                self.run_tile_row(rows, panels.clone(), a, &b, ks.clone());
            }
        }
    }

    /// Steps that are added in one go: full blocks and a shorter last one. Other runtimes add in this order, and a quantised
    /// model that follows one of them needs the same bits.
    pub(crate) fn k_blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let (steps, block) = (self.shape.steps(), self.shape.arithmetic.steps_max());
        // An empty k still writes its zeros and their epilogue.
        (0..steps.div_ceil(block).max(1)).map(move |at| at * block..steps.min((at + 1) * block))
    }

    /// Packs some rows of A for some k.
    pub(crate) fn pack_rows(&self, rows: Range<usize>, ks: Range<usize>, target: &mut [f32]) {
        self.pack_a(self.item.a, rows, ks, target);
    }

    /// Makes a panel of B for some k and columns.
    pub(crate) fn make_panel(&self, ks: Range<usize>, columns: Range<usize>, target: &mut [f32]) {
        self.pack_b(self.item.b, ks, columns, target);
    }

    /// One row tile of A for some steps, packed into scratch.
    fn pack_a(&self, a: MatrixA, rows: Range<usize>, ks: Range<usize>, scratch: &mut [f32]) -> *const f32 {
        let (m, k, height) = (self.shape.m, self.shape.k, rows.len());
        let (target, wide) = scratch.split_at_mut(height * ks.len());
        match self.shape.arithmetic {
            Arithmetic::F32 => pack_a_tile(self.isa, a, rows, ks, m, k, target),
            Arithmetic::Bf16 => {
                let values = self.values_of(ks);
                let wide = &mut wide[..height * values.len()];
                pack_a_tile(self.isa, a, rows, values, m, k, wide);
                join_rows(self.isa, wide, height, target);
            }
        }
        target.as_ptr()
    }

    /// The values of k of some steps.
    fn values_of(&self, steps: Range<usize>) -> Range<usize> {
        let values = self.shape.arithmetic.values();
        steps.start * values..self.shape.k.min(steps.end * values)
    }

    /// One row tile times every panel of the block.
    pub(crate) fn run_tile_row(
        &self,
        rows: Range<usize>,
        panels: Range<usize>,
        a: *const f32,
        b: &PanelBlock,
        ks: Range<usize>,
    ) {
        let DriveShape { n, c_stride, .. } = *self.shape;
        let kernel: TileKernel = match self.shape.arithmetic {
            Arithmetic::F32 => tile_kernel(self.isa, rows.len()),
            Arithmetic::Bf16 => tile_kernel_words(self.isa, rows.len()),
        };
        let is_last = ks.end == self.shape.steps();
        let light = self.completion.epilogue.light();
        for panel in panels.clone() {
            let column = panel * self.tile.cols;
            let c_start = self.item.c_start + rows.start * c_stride + column;
            let cols = self.tile.cols.min(n - column);
            let b_panel = match b.last {
                Some(last) if panel + 1 == panels.end => (last, self.tile.cols),
                _ => (b.start.wrapping_add((panel - panels.start) * b.panel_stride), b.k_stride),
            };
            let call = TileCall {
                k: ks.len(),
                a,
                b: b_panel.0,
                b_stride: b_panel.1,
                c: self.c.pointer(c_start),
                c_stride,
                cols,
                is_first: ks.start == 0 && !self.accumulates,
                finish: is_last.then(|| self.finish(rows.start, column, c_start, light)),
            };
            // SAFETY: `check` compared every operand with the shape, and the tile lies inside it; this part alone
            // writes these rows and columns of C. The machine has the instruction set: it came through `Exec`.
            unsafe { kernel(&call) };
        }
        if is_last && light.is_none() {
            let columns = panels.start * self.tile.cols..n.min(panels.end * self.tile.cols);
            for row in rows {
                let start = self.item.c_start + row * c_stride + columns.start;
                // SAFETY: this part alone has these columns of this row, and no tile of it is being computed.
                let row = unsafe { self.c.slice(start, columns.len()) };
                self.completion.epilogue.finish_row(self.isa, start, row);
            }
        }
    }

    fn finish(&self, row: usize, column: usize, c_start: usize, light: Option<Light>) -> Finish {
        let (bias_rows, bias_columns) = match self.item.bias {
            Bias::None => (null(), null()),
            Bias::Rows(bias) => (bias[row..].as_ptr(), null()),
            Bias::Columns(bias) => (null(), bias[column..].as_ptr()),
        };
        let Completion { scale, epilogue } = self.completion;
        let at = |residual: Option<&[f32]>| residual.map_or(null(), |residual| residual[c_start..].as_ptr());
        Finish {
            scale: *scale,
            bias_rows,
            bias_columns,
            first_residual: at(epilogue.first_residual()),
            // What is not light is done to whole rows, the last residual with it.
            last_residual: at(epilogue.last_residual().filter(|_| light.is_some())),
            light: light.unwrap_or(Light::NOTHING),
        }
    }

    /// The panels of B for one block of k: in place where they are packed or used too rarely to pack, else in scratch.
    fn panel_block(&self, ks: Range<usize>, panels: Range<usize>, tiles: usize, scratch: &mut [f32]) -> PanelBlock {
        let DriveShape { n, k, .. } = *self.shape;
        let width = self.tile.cols;
        let panel_len = width * ks.len();
        match self.item.b {
            SourceB::Matrix(MatrixB::Packed(data)) => {
                let panel_stride = width * self.shape.steps();
                let start = data[panels.start * panel_stride + ks.start * width..].as_ptr();
                PanelBlock { start, panel_stride, k_stride: width, last: None }
            }
            SourceB::Matrix(matrix @ MatrixB::Rows { data, stride })
                if tiles <= DIRECT_TILES_MAX && k > 0 && self.shape.arithmetic == Arithmetic::F32 =>
            {
                let start = data[ks.start * stride + panels.start * width..].as_ptr();
                let last = (panels.end * width > n).then(|| {
                    let target = &mut scratch[..panel_len];
                    pack_b_panel(self.isa, width, matrix, ks, (panels.end - 1) * width..n, k, target);
                    target.as_ptr()
                });
                PanelBlock { start, panel_stride: width, k_stride: stride, last }
            }
            source => {
                let (packed, wide) = scratch.split_at_mut(panels.len() * panel_len);
                for (target, panel) in packed.chunks_exact_mut(panel_len.max(1)).zip(panels) {
                    let columns = panel * width..n.min((panel + 1) * width);
                    match self.shape.arithmetic {
                        Arithmetic::F32 => self.pack_b(source, ks.clone(), columns, target),
                        Arithmetic::Bf16 => {
                            let values = self.values_of(ks.clone());
                            let wide = &mut wide[..width * values.len()];
                            self.pack_b(source, values, columns, wide);
                            join_rows(self.isa, wide, width, target);
                        }
                    }
                }
                PanelBlock { start: packed.as_ptr(), panel_stride: panel_len, k_stride: width, last: None }
            }
        }
    }
}

impl Block<'_> {
    /// One panel of B for some values of k.
    fn pack_b(&self, source: SourceB, ks: Range<usize>, columns: Range<usize>, target: &mut [f32]) {
        let width = self.tile.cols;
        match source {
            SourceB::Matrix(matrix) => pack_b_panel(self.isa, width, matrix, ks, columns, self.shape.k, target),
            SourceB::Image(patches) => patches.pack_panel(self.isa, width, ks, columns, target),
            SourceB::Planes(patches) => patches.pack_panel(self.isa, width, ks, columns, target),
            SourceB::Blocks(panels) => panels.pack_panel(self.isa, width, ks, columns, target),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_use_the_threads_where_there_is_work() {
        let grid = |threads, counts| choose_grid(threads, TileShape { rows_max: 14, cols: 32 }, counts);
        assert_eq!(grid(2, [1, 10, 24]), [1, 1, 2]);
        assert_eq!(grid(2, [1, 37, 2]), [1, 2, 1], "long weights are read once");
        assert_eq!(grid(4, [12, 1, 1]), [4, 1, 1]);
        assert_eq!(grid(8, [1, 1, 1]), [1, 1, 1]);
        assert_eq!(grid(4, [2, 4, 4]).iter().product::<usize>(), 4);
    }
}
