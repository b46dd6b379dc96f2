//! Products whose panels of B cost something to make: each is made once for many rows and stays in a cache while they pass by.
//!
//! Few rows are packed once by all threads, which then divide the panels; a panel goes through all of k before the next one, so
//! that its part of C stays where it is. Many rows are divided into groups, one a task, that share nothing: what another core
//! wrote is slow to read.

use std::ops::Range;

use crate::gemm_drive::{Block, Completion, DriveShape, Item, PanelBlock, SPLIT_NS, estimate_ns};
use crate::gemm_pack::row_tiles;
use crate::gemm_tile::{K_BLOCK, folds_whole_tiles, tile_shape};
use crate::isa::{Exec, Isa};
use crate::pool::{SharedMut, even_parts, share};
use crate::scratch_slots::ScratchSlots;

/// Row tiles for each thread from which on rows are divided, not panels: making a panel for fewer costs too much of their product.
const DIVIDED_TILES_MIN: usize = 6;
/// Elements of packed rows beyond which they are divided in any case.
const SHARED_ROWS_MAX: usize = 1 << 20;
/// Row tiles of a task: for one block of k they stay in the second-level cache.
const GROUP_TILES_MAX: usize = 20;
/// Elements of packed rows of a task, where they are more than one block of k: some of a second-level cache of 1 MiB.
const GROUP_ELEMENTS_MAX: usize = 5 << 15;

/// Steps of k that a panel has at most, where tiles take so many.
const PANEL_STEPS_MAX: usize = 640;

/// How a product is cut into tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Some panels each, all rows.
    Panels { tasks: usize },
    /// Some row tiles each, all panels.
    Rows { tasks: usize },
}

impl Cut {
    fn of(isa: Isa, threads: usize, shape: &DriveShape) -> Cut {
        let (tiles, panels) = (row_tiles(isa, shape.m), shape.n.div_ceil(tile_shape(isa).cols));
        let is_split = threads > 1 && estimate_ns(shape, true, true) >= SPLIT_NS;
        let threads = if is_split { threads } else { 1 };
        if tiles >= DIVIDED_TILES_MIN * threads || shape.m.saturating_mul(shape.k) > SHARED_ROWS_MAX {
            return Cut::Rows { tasks: tiles.div_ceil(GROUP_TILES_MAX).next_multiple_of(threads).min(tiles) };
        }
        Cut::Panels { tasks: if is_split { even_parts(panels, threads) } else { 1 } }
    }
}

/// Elements of scratch: for packed rows and for one panel.
struct ScratchLens {
    rows: usize,
    panel: usize,
    /// How many of both there are, or of panels alone.
    count: usize,
    /// Blocks of k that rows are packed for at once.
    blocks: usize,
}

impl ScratchLens {
    fn of(isa: Isa, threads: usize, shape: &DriveShape) -> ScratchLens {
        let panel = (tile_shape(isa).cols * block_steps(isa, shape)).next_multiple_of(16);
        match Cut::of(isa, threads, shape) {
            Cut::Panels { tasks } => {
                let rows = (shape.m * shape.k).next_multiple_of(16);
                ScratchLens { rows, panel, count: tasks, blocks: usize::MAX }
            }
            Cut::Rows { tasks } => {
                let group = shape.m.div_ceil(tasks);
                let blocks = (GROUP_ELEMENTS_MAX / (group * block_steps(isa, shape)).max(1)).max(1);
                let rows = (group * shape.k.min(blocks.saturating_mul(block_steps(isa, shape)))).next_multiple_of(16);
                ScratchLens { rows, panel, count: threads.clamp(1, tasks).min(ScratchSlots::MAX), blocks }
            }
        }
    }

    fn len(&self, cut: Cut) -> usize {
        match cut {
            Cut::Panels { .. } => self.rows + self.count * self.panel,
            Cut::Rows { .. } => self.count * (self.rows + self.panel),
        }
    }
}

/// Elements of scratch that `drive_panelwise` needs with a pool of this many threads or fewer.
pub(crate) fn drive_panelwise_scratch_len(isa: Isa, threads: usize, shape: &DriveShape) -> usize {
    let len = |threads| ScratchLens::of(isa, threads, shape).len(Cut::of(isa, threads, shape));
    (1..=threads.max(1)).map(len).max().unwrap_or(0)
}

/// Computes one item in f32, whose A is not packed and whose panels of B are made where they are used.
pub(crate) fn drive_panelwise(
    exec: Exec,
    shape: &DriveShape,
    item: Item,
    completion: &Completion,
    c: &mut [f32],
    scratch: &mut [f32],
) {
    if shape.m == 0 || shape.n == 0 {
        return;
    }
    let (isa, threads) = (exec.isa(), exec.threads());
    let (cut, lens) = (Cut::of(isa, threads, shape), ScratchLens::of(isa, threads, shape));
    assert!(scratch.len() >= lens.len(cut), "scratch of {} for {}", scratch.len(), lens.len(cut));
    let c = SharedMut::new(c);
    let block = Block::new(isa, shape, item, completion, &c);
    block.check();
    match cut {
        Cut::Panels { tasks } => divide_panels(exec, &block, tasks, &lens, scratch),
        Cut::Rows { tasks } => divide_rows(exec, &block, tasks, &lens, scratch),
    }
}

/// All rows are packed first; then every task takes some panels through all of k.
fn divide_panels(exec: Exec, block: &Block, tasks: usize, lens: &ScratchLens, scratch: &mut [f32]) {
    let (isa, shape) = (exec.isa(), block.shape());
    let (tiles, panels) = (row_tiles(isa, shape.m), shape.n.div_ceil(tile_shape(isa).cols));
    let (packed, panel_scratch) = scratch.split_at_mut(lens.rows);
    let pack_parts = if tasks > 1 { exec.threads().min(tiles) } else { 1 };
    let shared = SharedMut::new(packed);
    exec.pool().run(pack_parts, &|part| {
        for tile in share(tiles, pack_parts, part) {
            let rows = share(shape.m, tiles, tile);
            for ks in k_blocks(isa, shape) {
                let start = packed_start(shape, &rows, &ks);
                // SAFETY: every tile has a stretch of its own for each block of k, and one part.
                let target = unsafe { shared.slice(start, rows.len() * ks.len()) };
                block.pack_rows(rows.clone(), ks, target);
            }
        }
    });
    let (packed, panel_scratch) = (&*packed, SharedMut::new(panel_scratch));
    exec.pool().run(tasks, &|task| {
        // SAFETY: every task has its own stretch of the scratch.
        let target = unsafe { panel_scratch.slice(task * lens.panel, lens.panel) };
        for panel in share(panels, tasks, task) {
            for ks in k_blocks(isa, shape) {
                let b = make_panel(block, panel, ks.clone(), target);
                for tile in 0..tiles {
                    let rows = share(shape.m, tiles, tile);
                    let a = &packed[packed_start(shape, &rows, &ks)..];
                    block.run_tile_row(rows, panel..panel + 1, a.as_ptr(), &b, ks.clone());
                }
            }
        }
    });
}

/// Where a tile of rows lies for a block of k, where all rows are packed for all of k.
fn packed_start(shape: &DriveShape, rows: &Range<usize>, ks: &Range<usize>) -> usize {
    shape.m * ks.start + rows.start * ks.len()
}

/// Every task packs rows of its own and makes every panel. As many blocks of k as there is room for are packed at once, and a
/// panel goes through all of them before the next one.
fn divide_rows(exec: Exec, block: &Block, tasks: usize, lens: &ScratchLens, scratch: &mut [f32]) {
    let (isa, shape) = (exec.isa(), block.shape());
    let panels = shape.n.div_ceil(tile_shape(isa).cols);
    let slot_len = lens.rows + lens.panel;
    let (slots, scratch) = (ScratchSlots::new(lens.count), SharedMut::new(scratch));
    exec.pool().run(tasks, &|task| {
        let slot = slots.take();
        // SAFETY: nobody else has this slot until it is given back, below.
        let (packed, target) = unsafe { scratch.slice(slot * slot_len, slot_len) }.split_at_mut(lens.rows);
        let group = share(shape.m, tasks, task);
        let tile_count = row_tiles(isa, group.len());
        let tiles =
            || (0..tile_count).map(|tile| share(group.len(), tile_count, tile)).map(|rows| move_by(rows, group.start));
        for first_block in (0..k_blocks(isa, shape).count()).step_by(lens.blocks) {
            let some = || k_blocks(isa, shape).skip(first_block).take(lens.blocks);
            let k_start = some().next().map_or(0, |ks| ks.start);
            let start = |rows: &Range<usize>, ks: &Range<usize>| {
                group.len() * (ks.start - k_start) + (rows.start - group.start) * ks.len()
            };
            for (ks, rows) in some().flat_map(|ks| tiles().map(move |rows| (ks.clone(), rows))) {
                let (start, len) = (start(&rows, &ks), rows.len() * ks.len());
                block.pack_rows(rows, ks, &mut packed[start..start + len]);
            }
            for (panel, ks) in (0..panels).flat_map(|panel| some().map(move |ks| (panel, ks))) {
                let b = make_panel(block, panel, ks.clone(), target);
                for rows in tiles() {
                    let a = packed[start(&rows, &ks)..].as_ptr();
                    block.run_tile_row(rows, panel..panel + 1, a, &b, ks.clone());
                }
            }
        }
        slots.give_back(slot);
    });
}

/// The most steps of k that a panel has at once: one of more stays in a second-level cache beside the rows of a task.
fn block_steps(isa: Isa, shape: &DriveShape) -> usize {
    let is_folded = folds_whole_tiles(isa) && shape.n.is_multiple_of(tile_shape(isa).cols);
    match is_folded {
        true if shape.k <= PANEL_STEPS_MAX => shape.k,
        true => PANEL_STEPS_MAX / K_BLOCK * K_BLOCK,
        false => shape.k.min(K_BLOCK),
    }
}

/// The steps of each panel in turn, of which one with an empty k still writes its zeros.
fn k_blocks(isa: Isa, shape: &DriveShape) -> impl Iterator<Item = Range<usize>> + use<> {
    let (k, each) = (shape.k, block_steps(isa, shape).max(1));
    (0..k.div_ceil(each).max(1)).map(move |at| at * each..k.min((at + 1) * each))
}

fn move_by(range: Range<usize>, count: usize) -> Range<usize> {
    range.start + count..range.end + count
}

/// One panel of B for a block of k, in `target`.
fn make_panel(block: &Block, panel: usize, ks: Range<usize>, target: &mut [f32]) -> PanelBlock {
    let (width, n) = (tile_shape(block.isa()).cols, block.shape().n);
    block.make_panel(ks, panel * width..n.min((panel + 1) * width), target);
    PanelBlock::one(target.as_ptr(), width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arithmetic::Arithmetic;

    #[test]
    fn panels_are_cut_evenly_and_many_rows_are_divided() {
        let cut = |threads, m, n, k| {
            let shape = DriveShape { items: 1, m, n, k, c_stride: n, arithmetic: Arithmetic::F32 };
            Cut::of(Isa::Avx512, threads, &shape)
        };
        assert_eq!(cut(2, 64, 576, 1536), Cut::Panels { tasks: 6 });
        assert_eq!(cut(2, 64, 1536, 576), Cut::Panels { tasks: 8 });
        assert_eq!(cut(1, 64, 1536, 576), Cut::Panels { tasks: 1 });
        assert_eq!(cut(2, 512, 576, 1536), Cut::Rows { tasks: 2 });
        assert_eq!(cut(2, 4096, 576, 1536), Cut::Rows { tasks: 16 });
        assert_eq!(cut(64, 14, 49152, 576), Cut::Panels { tasks: 256 });
    }
}
