//! f32 convolution with 3×3 filters, stride 1, by Winograd's F(2,3) and F(4,3): 2.25 and 4 times fewer products.
//!
//! Tiles of the image become `tile`² factors each; for every factor there is a product filter × tiles, and sums of
//! these products are the outputs. Lanes are tiles, 16 to a group. Threads take groups of tiles, or, where those are
//! few, first channels and then row tiles of the filter; results are the same bits either way.

use crate::conv::ConvShape;
use crate::epilogue::Epilogue;
use crate::gemm_tile::{K_BLOCK, TileCall, tile_kernel, tile_shape};
use crate::isa::{Exec, Isa};
use crate::pool::{SharedMut, share};
use crate::winograd_lanes::GROUP;
use crate::winograd_transform::{PaddedRow, join_rows, split_row, transform_filter, transforms};
use std::ops::Range;

/// Factors of one block of tiles stay below this, so that they lie in a second-level cache of 1 MiB with some room.
const BLOCK_BYTES: usize = 640 << 10;
/// The most groups of a block: longer ones gain nothing.
const BLOCK_GROUPS_MAX: usize = 16;
/// The most bytes of factors that threads share; beyond it each makes its own blocks.
const SHARED_BYTES_MAX: usize = 4 << 20;
/// Work below this many cycles stays on one thread: about 20 µs.
const SPLIT_CYCLES: usize = 70_000;
/// Between arrays that are written together, so that they do not fall into the same sets of a cache.
const SET_SHIFT: usize = 16;

/// Whether filters of this form can be computed at all.
pub(crate) fn is_winograd_form(shape: &ConvShape) -> bool {
    let is_3x3 = shape.filter_height == 3 && shape.filter_width == 3;
    is_3x3 && shape.stride == [1, 1] && shape.dilation == [1, 1] && shape.groups == 1
}

/// An estimate for one image in cycles of one thread: products, transforms, and reading the filter from memory.
pub(crate) fn winograd_cycles(tile: usize, threads: usize, shape: &ConvShape) -> usize {
    let groups = image_groups(tile, shape);
    let (channels, filters) = (shape.in_channels, shape.out_channels);
    let arithmetic = tile * tile * groups * (channels * filters + INPUT_CYCLES * channels + OUTPUT_CYCLES * filters);
    arithmetic / threads.max(1) + tile * tile * channels * filters / FILTER_VALUES_PER_CYCLE
}

/// Cycles for each factor of a group: to read and transform a channel, and to transform and write one.
const INPUT_CYCLES: usize = 10;
const OUTPUT_CYCLES: usize = 9;
/// Values of a filter that arrive from memory each cycle.
pub(crate) const FILTER_VALUES_PER_CYCLE: usize = 4;

/// Row tiles of the filter: an even count where there are several, since threads share them.
fn filter_tiles(isa: Isa, filters: usize) -> usize {
    let tiles = filters.div_ceil(tile_shape(isa).rows_max);
    if tiles > 1 { tiles.next_multiple_of(2).min(filters) } else { tiles }
}

/// Taps of a filter.
const TAPS: usize = 9;

/// What is kept of a filter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// Its factors.
    Factors,
    /// Its taps, a quarter of the bytes of the factors of F(4,3). Factors are made for each row tile, in a first-level cache.
    Taps,
}

/// Images of so many groups of tiles keep the taps of F(4,3). Products of fewer groups would take little more time than the
/// transform; the filters of more are small.
const TAPS_GROUPS: Range<usize> = 2..4;

impl Kept {
    /// The batch plays no part, so that Programs for different batches share their packed filters.
    fn of(tile: usize, shape: &ConvShape) -> Kept {
        if tile == 6 && TAPS_GROUPS.contains(&image_groups(tile, shape)) { Kept::Taps } else { Kept::Factors }
    }

    /// Elements of each filter and channel.
    fn values(self, tile: usize) -> usize {
        match self {
            Kept::Factors => tile * tile,
            Kept::Taps => TAPS,
        }
    }
}

/// Groups of tiles of one image.
fn image_groups(tile: usize, shape: &ConvShape) -> usize {
    let out = tile - 2;
    (shape.out_height.div_ceil(out) * shape.out_width.div_ceil(out)).div_ceil(GROUP)
}

/// The packed form. For each row tile: of factors the channels of each, of taps those of each channel, with the tile's rows
/// side by side.
pub(crate) fn pack_winograd(isa: Isa, tile: usize, shape: &ConvShape, weights: &[f32], packed: &mut [f32]) {
    let (channels, filters) = (shape.in_channels, shape.out_channels);
    let kept = Kept::of(tile, shape);
    let values = kept.values(tile);
    let tiles = filter_tiles(isa, filters);
    for row_tile in 0..tiles {
        let rows = share(filters, tiles, row_tile);
        let target = &mut packed[rows.start * channels * values..rows.end * channels * values];
        for (lane, filter) in rows.clone().enumerate() {
            for channel in 0..channels {
                let taps = &weights[(filter * channels + channel) * TAPS..][..TAPS];
                match kept {
                    Kept::Factors => transform_filter(tile, taps, |factor, value| {
                        target[(factor * channels + channel) * rows.len() + lane] = value;
                    }),
                    Kept::Taps => {
                        for (tap, value) in taps.iter().enumerate() {
                            target[(channel * TAPS + tap) * rows.len() + lane] = *value;
                        }
                    }
                }
            }
        }
    }
}

/// Elements of the packed filter; a vector is read behind the last tap.
pub(crate) fn winograd_filter_len(tile: usize, shape: &ConvShape) -> usize {
    let kept = Kept::of(tile, shape);
    let behind = if kept == Kept::Taps { GROUP } else { 0 };
    kept.values(tile) * shape.in_channels * shape.out_channels + behind
}

/// How the tiles of all images are cut.
struct Cut {
    isa: Isa,
    tile: usize,
    /// Tiles across and down one image.
    across: usize,
    down: usize,
    /// Tiles and groups of all images.
    tiles: usize,
    groups: usize,
    /// Groups whose factors are made at once.
    block_groups: usize,
    /// Threads share the factors of all tiles.
    is_shared: bool,
    parts: usize,
}

impl Cut {
    fn new(isa: Isa, threads: usize, tile: usize, shape: &ConvShape) -> Cut {
        let out = tile - 2;
        let (across, down) = (shape.out_width.div_ceil(out), shape.out_height.div_ceil(out));
        let tiles = shape.batch * across * down;
        let groups = tiles.div_ceil(GROUP);
        let group_bytes = size_of::<f32>() * GROUP * tile * tile * shape.in_channels.max(1);
        let row_tiles = filter_tiles(isa, shape.out_channels);
        let cycles = winograd_cycles(tile, 1, shape).saturating_mul(shape.batch);
        let threads = if cycles < SPLIT_CYCLES { 1 } else { threads.max(1) };
        // A part's share of the work is as good as its largest one is small; sharing costs a hand-over more.
        let by_groups = groups.div_ceil(threads) * row_tiles * 20;
        let by_rows = groups * row_tiles.div_ceil(threads) * 21;
        let is_shared = threads > 1 && by_rows < by_groups && groups * group_bytes <= SHARED_BYTES_MAX;
        let parts = if is_shared { threads } else { threads.min(groups) };
        let part_groups = if is_shared { groups } else { groups.div_ceil(parts.max(1)) };
        let block_max = (BLOCK_BYTES / group_bytes).clamp(2, BLOCK_GROUPS_MAX);
        let blocks = part_groups.div_ceil(block_max).max(1);
        let block_groups = if is_shared { groups } else { part_groups.div_ceil(blocks) };
        Cut { isa, tile, across, down, tiles, groups, block_groups, is_shared, parts }
    }

    fn factors(&self) -> usize {
        self.tile * self.tile
    }

    fn out(&self) -> usize {
        self.tile - 2
    }

    /// From one factor's matrix of channels × lanes to the next.
    fn factor_stride(&self, shape: &ConvShape) -> usize {
        shape.in_channels * self.block_groups * GROUP + SET_SHIFT
    }

    fn factors_len(&self, shape: &ConvShape) -> usize {
        self.factors() * self.factor_stride(shape)
    }

    /// From one column of the tiles to the next; a group may be written behind the last tile.
    fn plane_stride(&self) -> usize {
        (self.block_groups + 1) * GROUP
    }

    fn planes_len(&self) -> usize {
        self.factors() * self.plane_stride()
    }

    /// From one factor's products to the next, for a row tile.
    fn product_stride(&self) -> usize {
        tile_shape(self.isa).rows_max * self.block_groups * GROUP + SET_SHIFT
    }

    fn products_len(&self) -> usize {
        self.factors() * self.product_stride()
    }

    /// From one factor of a row tile's filters to the next; a vector may be written behind the last.
    fn filter_stride(&self, shape: &ConvShape) -> usize {
        tile_shape(self.isa).rows_max * shape.in_channels + GROUP
    }

    /// A row of factors of a row tile's filters, where they are made.
    fn filter_len(&self, shape: &ConvShape) -> usize {
        match Kept::of(self.tile, shape) {
            Kept::Factors => 0,
            Kept::Taps => self.tile * self.filter_stride(shape),
        }
    }

    /// Output rows of all tiles of a block, and one group's columns before they are joined.
    fn rows_len(&self) -> usize {
        self.out() * self.out() * GROUP * (self.block_groups + 1)
    }

    /// Scratch of one part beside the factors.
    fn part_len(&self, shape: &ConvShape) -> usize {
        let outputs_len = self.filter_len(shape) + self.products_len() + self.rows_len();
        self.planes_len().max(outputs_len).next_multiple_of(GROUP)
    }

    fn scratch_len(&self, shape: &ConvShape) -> usize {
        let factors = self.factors_len(shape).next_multiple_of(GROUP);
        let parts_len = self.parts * self.part_len(shape);
        if self.is_shared { factors + parts_len } else { self.parts * factors + parts_len }
    }
}

/// Elements of scratch that `conv_winograd` needs on up to this many threads.
pub(crate) fn winograd_scratch_len(isa: Isa, threads: usize, tile: usize, shape: &ConvShape) -> usize {
    (1..=threads.max(1)).map(|threads| Cut::new(isa, threads, tile, shape).scratch_len(shape)).max().unwrap_or(0)
}

/// y = activation(conv(x, filter) + bias + residual); `tile` is 4 or 6, `filter` the result of `pack_winograd`.
pub(crate) fn conv_winograd(
    exec: Exec,
    tile: usize,
    shape: &ConvShape,
    x: &[f32],
    filter: &[f32],
    bias: Option<&[f32]>,
    epilogue: &Epilogue,
    scratch: &mut [f32],
    y: &mut [f32],
) {
    let cut = Cut::new(exec.isa(), exec.threads(), tile, shape);
    if cut.tiles == 0 || shape.out_channels == 0 {
        return;
    }
    let (factors_len, part_len) = (cut.factors_len(shape).next_multiple_of(GROUP), cut.part_len(shape));
    assert!(scratch.len() >= cut.scratch_len(shape), "scratch of {} for {shape:?}", scratch.len());
    assert!(filter.len() >= winograd_filter_len(tile, shape), "filter of {} for {shape:?}", filter.len());
    let (y, scratch) = (SharedMut::new(y), SharedMut::new(scratch));
    let winograd = Winograd { cut: &cut, shape, x, filter, bias, epilogue, y: &y };
    let row_tiles = filter_tiles(exec.isa(), shape.out_channels);
    if cut.is_shared {
        let factors = scratch.pointer(0);
        let factors = Factors { start: factors, len: factors_len };
        let part_scratch = |part: usize| {
            // SAFETY: every part has its own stretch of the scratch, behind the factors.
            unsafe { scratch.slice(factors_len + part * part_len, part_len) }
        };
        exec.pool().run(cut.parts, &|part| {
            let channels = share(shape.in_channels, cut.parts, part);
            winograd.transform_input(channels, 0..cut.groups, &factors, part_scratch(part));
        });
        exec.pool().run(cut.parts, &|part| {
            let row_tiles = share(row_tiles, cut.parts, part);
            winograd.multiply(row_tiles, 0..cut.groups, &factors, part_scratch(part));
        });
    } else {
        exec.pool().run(cut.parts, &|part| {
            let start = part * (factors_len + part_len);
            // SAFETY: every part has its own stretches of the scratch.
            let part_scratch = unsafe { scratch.slice(start + factors_len, part_len) };
            let factors = Factors { start: scratch.pointer(start), len: factors_len };
            let groups = share(cut.groups, cut.parts, part);
            for first in groups.clone().step_by(cut.block_groups) {
                let groups = first..groups.end.min(first + cut.block_groups);
                winograd.transform_input(0..shape.in_channels, groups.clone(), &factors, part_scratch);
                winograd.multiply(0..row_tiles, groups, &factors, part_scratch);
            }
        });
    }
}

/// The factors of a block: for each factor a matrix of channels × lanes. Written by channels, which may be several
/// threads', and read after all of them.
struct Factors {
    start: *mut f32,
    len: usize,
}

// SAFETY: threads write the rows of different channels, and read only when none writes.
unsafe impl Sync for Factors {}

/// Everything that the parts share.
struct Winograd<'a> {
    cut: &'a Cut,
    shape: &'a ConvShape,
    x: &'a [f32],
    filter: &'a [f32],
    bias: Option<&'a [f32]>,
    epilogue: &'a Epilogue<'a>,
    y: &'a SharedMut<'a, f32>,
}

/// Successive tiles of one row of tiles.
struct Run {
    /// Position in the block.
    at: usize,
    len: usize,
    image: usize,
    row: usize,
    column: usize,
}

impl Winograd<'_> {
    /// The tiles of some groups, cut where a row of tiles ends.
    fn runs(&self, groups: Range<usize>) -> impl Iterator<Item = Run> {
        let Cut { across, down, tiles, .. } = *self.cut;
        let (start, end) = (groups.start * GROUP, tiles.min(groups.end * GROUP));
        let mut tile = start;
        std::iter::from_fn(move || {
            if tile >= end {
                return None;
            }
            let (row, column) = (tile / across, tile % across);
            let len = (across - column).min(end - tile);
            let run = Run { at: tile - start, len, image: row / down, row: row % down, column };
            tile += len;
            Some(run)
        })
    }

    /// Makes the factors of some channels.
    fn transform_input(&self, channels: Range<usize>, groups: Range<usize>, factors: &Factors, scratch: &mut [f32]) {
        let (cut, shape) = (self.cut, self.shape);
        let (tile, plane_stride, factor_stride) = (cut.tile, cut.plane_stride(), cut.factor_stride(shape));
        let lanes = cut.block_groups * GROUP;
        let transform = transforms(cut.isa, tile).input;
        let planes = &mut scratch[..cut.planes_len()];
        assert!(factors.len >= cut.factors_len(shape) && groups.len() <= cut.block_groups);
        for channel in channels {
            for run in self.runs(groups.clone()) {
                let image = (run.image * shape.in_channels + channel) * shape.in_area();
                for y in 0..tile {
                    let row = (run.row * cut.out() + y).checked_sub(shape.pad_top);
                    let row = row.filter(|row| *row < shape.in_height);
                    let planes = &mut planes[y * tile * plane_stride + run.at..];
                    let Some(row) = row else {
                        for plane in planes.chunks_mut(plane_stride).take(tile) {
                            plane[..run.len].fill(0.0);
                        }
                        continue;
                    };
                    let row = &self.x[image + row * shape.in_width..][..shape.in_width];
                    let first = (run.column * cut.out()) as isize - shape.pad_left as isize;
                    split_row(cut.isa, tile, PaddedRow { row, first }, run.len, planes, plane_stride);
                }
            }
            for group in 0..groups.len() {
                let source = planes[group * GROUP..].as_ptr();
                let target = factors.start.wrapping_add(channel * lanes + group * GROUP);
                // SAFETY: a plane has `block_groups` groups and each factor `in_channels` rows of as many, by the
                // assertion; this thread alone writes this channel's rows.
                unsafe { transform(source, plane_stride, target, factor_stride) };
            }
        }
    }

    /// Multiplies with some row tiles of the filter and writes their outputs.
    fn multiply(&self, row_tiles: Range<usize>, groups: Range<usize>, factors: &Factors, scratch: &mut [f32]) {
        let (cut, shape) = (self.cut, self.shape);
        let (channels, factor_count) = (shape.in_channels, cut.factors());
        let (lanes, live) = (cut.block_groups * GROUP, groups.len() * GROUP);
        let (factor_stride, product_stride) = (cut.factor_stride(shape), cut.product_stride());
        let width = tile_shape(cut.isa).cols;
        let transform = transforms(cut.isa, cut.tile).filter;
        let tile_count = filter_tiles(cut.isa, shape.out_channels);
        let (kept, made_stride) = (Kept::of(cut.tile, shape), cut.filter_stride(shape));
        let values = kept.values(cut.tile);
        let (made, scratch) = scratch.split_at_mut(cut.filter_len(shape));
        let (products, rows_scratch) = scratch.split_at_mut(cut.products_len());
        assert!(factors.len >= cut.factors_len(shape) && live <= lanes);
        for row_tile in row_tiles {
            let rows = share(shape.out_channels, tile_count, row_tile);
            let kernel = tile_kernel(cut.isa, rows.len());
            let row_tile_filter = &self.filter[rows.start * channels * values..];
            for factor in 0..factor_count {
                let filter_len = channels * rows.len();
                let filter = match kept {
                    Kept::Factors => &row_tile_filter[factor * filter_len..][..filter_len],
                    Kept::Taps => {
                        let (y, x) = (factor / cut.tile, factor % cut.tile);
                        if x == 0 {
                            assert!(row_tile_filter.len() >= TAPS * filter_len + GROUP);
                            let (taps, target) = (row_tile_filter.as_ptr(), made.as_mut_ptr());
                            // SAFETY: the taps are those of this tile's rows and a group more; each of the `tile` matrices
                            // has room for as many rows of all channels and a group more.
                            unsafe { transform(taps, y, rows.len(), channels, target, made_stride) };
                        }
                        &made[x * made_stride..][..filter_len]
                    }
                };
                let products = &mut products[factor * product_stride..][..rows.len() * lanes];
                if channels == 0 {
                    products.fill(0.0);
                }
                for ks in (0..channels).step_by(K_BLOCK) {
                    for column in (0..live).step_by(width) {
                        let call = TileCall {
                            k: K_BLOCK.min(channels - ks),
                            a: filter[ks * rows.len()..].as_ptr(),
                            b: factors.start.wrapping_add(factor * factor_stride + ks * lanes + column),
                            b_stride: lanes,
                            c: products[column..].as_mut_ptr(),
                            c_stride: lanes,
                            cols: width.min(live - column),
                            is_first: ks == 0,
                            finish: None,
                        };
                        // SAFETY: the slices above hold the rows; the factors hold `channels` rows of `lanes` by the
                        // assertion, and columns come in whole groups, which no tile reads beyond.
                        unsafe { kernel(&call) };
                    }
                }
            }
            for row in rows.clone() {
                let products = &products[(row - rows.start) * lanes..];
                self.write_channel(row, groups.clone(), products, rows_scratch);
            }
        }
    }

    /// Sums the products of one output channel and writes its tiles.
    fn write_channel(&self, channel: usize, groups: Range<usize>, products: &[f32], scratch: &mut [f32]) {
        let (cut, shape) = (self.cut, self.shape);
        let (out, stride) = (cut.out(), cut.product_stride());
        let transform = transforms(cut.isa, cut.tile).output;
        let (values, rows) = scratch.split_at_mut(out * out * GROUP);
        let row_stride = cut.block_groups * GROUP * out;
        let bias = self.bias.map_or(0.0, |bias| bias[channel]);
        assert!(products.len() >= (cut.factors() - 1) * stride + groups.len() * GROUP);
        for group in 0..groups.len() {
            // SAFETY: by the assertion every factor has this group's products; `values` has room for its outputs.
            unsafe { transform(products[group * GROUP..].as_ptr(), stride, bias, values.as_mut_ptr()) };
            join_rows(cut.isa, cut.tile, values, &mut rows[group * GROUP * out..], row_stride);
        }
        let epilogue = self.epilogue;
        if epilogue.residual.is_none() {
            for row in rows.chunks_mut(row_stride).take(out) {
                epilogue.end_row(cut.isa, 0, &mut row[..groups.len() * GROUP * out]);
            }
        }
        for run in self.runs(groups) {
            let plane = (run.image * shape.out_channels + channel) * shape.out_area();
            let column = run.column * out;
            let len = (run.len * out).min(shape.out_width - column);
            for y in 0..out.min(shape.out_height - run.row * out) {
                let source = &rows[y * row_stride + run.at * out..][..len];
                let start = plane + (run.row * out + y) * shape.out_width + column;
                // SAFETY: every tile of every channel belongs to one part.
                let target = unsafe { self.y.slice(start, len) };
                target.copy_from_slice(source);
                if epilogue.residual.is_some() {
                    epilogue.end_row(cut.isa, start, target);
                }
            }
        }
    }
}
