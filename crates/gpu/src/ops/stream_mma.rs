//! How streams are cut where matrix instructions multiply (`text/stream_mma.h`): which columns a block has, how many warps divide
//! the inner axis, and how much of the matrix each of them reads ahead.

use std::fmt::Write as _;

use crate::kernel::{Arch, MATRIX, STREAM_MMA, STREAM_MMA_LINES, Vendor};
use crate::ops::stream::{Cut, StreamSize};

/// Rows up to which a matrix is read once for all of them, and up to which reading it takes longer than all else.
pub const MMA_ROWS_MAX: usize = 32;
/// Rows and columns of an instruction, as the kernel uses it.
const TILE_ROWS: usize = 8;
const TILE_COLUMNS: usize = 16;
/// Lanes of a warp that have successive parts of a column.
const LANES_ALONG: usize = 4;
/// Tiles of columns of a warp, of all matrices together: each is some registers for sums, for each tile of rows.
const TILES_MAX: usize = 8;
const COLUMN_TILES: [usize; 3] = [4, 2, 1];
/// Lines of a matrix that a lane reads before it uses the first.
const LINES_AHEAD: usize = 8;
/// Warps of a block, and where there are fewer blocks than multiprocessors and sums of so many tiles find room.
const WARPS: usize = 8;
const WARPS_OF_FEW_BLOCKS: usize = 16;
const TILES_OF_FEW_BLOCKS: usize = 4;
/// What follows a row of sums in shared memory, in floats.
const SUM_PAD: usize = 4;

/// How a body is cut; none where there are no matrix instructions for it, and for one row of floats, which multiplying element
/// by element is enough for.
pub fn cut(arch: &Arch, size: &StreamSize) -> Option<Cut> {
    let StreamSize { mnk: [m, n, k], dtype, form, matrices, .. } = *size;
    let lane_k = form.mma_lane(k, dtype)?;
    let rows_min = if form.is_floats() { 2 } else { 1 };
    let is_legal = arch.vendor == Vendor::Cuda && (rows_min..=MMA_ROWS_MAX).contains(&m);
    if !is_legal {
        return None;
    }
    let row_tiles = m.div_ceil(TILE_ROWS);
    let blocks = |tiles: usize| n.div_ceil(TILE_COLUMNS * tiles);
    let multiprocessors = arch.multiprocessors as usize;
    // Rows come again for each block, so that a block has several tiles where that leaves nearly two blocks for each multiprocessor.
    let is_full =
        |&tiles: &usize| tiles * matrices * row_tiles <= TILES_MAX && blocks(tiles) * 10 >= multiprocessors * 19;
    let column_tiles = COLUMN_TILES.into_iter().find(is_full).unwrap_or(1);
    let are_few = blocks(column_tiles) <= multiprocessors && column_tiles * matrices * row_tiles <= TILES_OF_FEW_BLOCKS;
    let warps = if are_few { WARPS_OF_FEW_BLOCKS } else { WARPS };
    let steps = k.div_ceil(LANES_ALONG * lane_k * warps);
    let ahead = (LINES_AHEAD / (2 * column_tiles * matrices)).clamp(1, steps);
    let mut constants = String::new();
    let _ =
        writeln!(constants, "constexpr int ROW_TILES = {row_tiles}, COLUMN_TILES = {column_tiles}, WARPS = {warps};");
    let _ = writeln!(constants, "constexpr int LANE_K = {lane_k}, AHEAD = {ahead};");
    let columns = TILE_COLUMNS * column_tiles;
    let sums = matrices * warps * row_tiles * TILE_ROWS * (columns + SUM_PAD);
    Some(Cut {
        constants,
        texts: [MATRIX, STREAM_MMA_LINES, &form.mma_text()?, STREAM_MMA].concat(),
        warps,
        columns,
        shared_bytes: sums * size_of::<f32>(),
        kernel: if are_few { "KERNEL" } else { "KERNEL_PAIRED" },
        name: format!("mma.{}x{columns}x{matrices}k{warps}", row_tiles * TILE_ROWS),
    })
}
