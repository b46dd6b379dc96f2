//! f32 convolution with filters of one row of 3 or 5 taps, stride 1, by Winograd's F(4,3) and F(2,5): 2 and 1.67 times fewer
//! products.
//!
//! Six successive pixels of a line are a tile and become six factors; for every factor there is a product filter × tiles,
//! and sums of these products are 4 or 2 outputs. Lanes are the tiles of one line. Both forms use the points 0, ±1, ±2 and
//! infinity, so they share the transform of the image.

use crate::conv::ConvShape;
use crate::conv_winograd::FILTER_VALUES_PER_CYCLE;
use crate::epilogue::Epilogue;
use crate::gemm_tile::{K_BLOCK, TileCall, tile_kernel, tile_shape};
use crate::isa::{Exec, Isa};
use crate::pool::{SharedMut, share};
use crate::simd::multiversion;
use crate::winograd_lanes::GROUP;
use std::ops::Range;

/// Pixels of a tile, and factors it becomes.
const TILE: usize = 6;
/// Factors of one block of tiles stay below this, so that they lie in a second-level cache of 1 MiB with some room.
const BLOCK_BYTES: usize = 512 << 10;
/// The least and the most tiles of a block: the width of the widest register tile, and where longer ones gain nothing.
const BLOCK_LANES: Range<usize> = 32..256;
/// Work below this many cycles stays on one thread: about 8 µs.
const SPLIT_CYCLES: usize = 30_000;
/// Cycles for each factor of a group: to read and transform a channel, and to transform and write one.
const INPUT_CYCLES: usize = 4;
const OUTPUT_CYCLES: usize = 6;

/// Whether filters of this form can be computed at all.
pub(crate) fn is_line_form(shape: &ConvShape) -> bool {
    let is_line = shape.filter_height == 1 && matches!(shape.filter_width, 3 | 5);
    is_line && shape.stride == [1, 1] && shape.dilation == [1, 1] && shape.groups == 1
}

/// An estimate for one image in cycles of one thread: products, transforms, and reading the filter from memory.
pub(crate) fn line_cycles(threads: usize, shape: &ConvShape) -> usize {
    let groups = shape.out_height * shape.out_width.div_ceil(outputs(shape)).div_ceil(GROUP);
    let (channels, filters) = (shape.in_channels, shape.out_channels);
    let arithmetic = TILE * groups * (channels * filters + INPUT_CYCLES * channels + OUTPUT_CYCLES * filters);
    arithmetic / threads.max(1) + TILE * channels * filters / FILTER_VALUES_PER_CYCLE
}

/// Outputs of one tile.
fn outputs(shape: &ConvShape) -> usize {
    TILE + 1 - shape.filter_width
}

fn row_tiles(isa: Isa, filters: usize) -> usize {
    filters.div_ceil(tile_shape(isa).rows_max)
}

/// The packed form: for each row tile and factor, the channels with the tile's rows side by side.
pub(crate) fn pack_line(isa: Isa, shape: &ConvShape, weights: &[f32], packed: &mut [f32]) {
    let (channels, filters, taps) = (shape.in_channels, shape.out_channels, shape.filter_width);
    let tiles = row_tiles(isa, filters);
    for row_tile in 0..tiles {
        let rows = share(filters, tiles, row_tile);
        let target = &mut packed[rows.start * channels * TILE..rows.end * channels * TILE];
        for (lane, filter) in rows.clone().enumerate() {
            for channel in 0..channels {
                let taps = &weights[(filter * channels + channel) * taps..][..taps];
                for (factor, value) in transform_taps(taps).into_iter().enumerate() {
                    target[(factor * channels + channel) * rows.len() + lane] = value;
                }
            }
        }
    }
}

/// The factors of one row of taps: the polynomial with these coefficients at each point, over the point's denominator.
fn transform_taps(taps: &[f32]) -> [f32; TILE] {
    let at = |point: f64| taps.iter().rev().fold(0.0, |sum, &tap| sum * point + f64::from(tap));
    let last = taps.last().copied().map_or(0.0, f64::from);
    [at(0.0) / 4.0, at(1.0) / -6.0, at(-1.0) / -6.0, at(2.0) / 24.0, at(-2.0) / 24.0, last].map(|value| value as f32)
}

/// Elements of the packed filter.
pub(crate) fn line_filter_len(shape: &ConvShape) -> usize {
    TILE * shape.in_channels * shape.out_channels
}

/// How the lines of all images are cut.
struct Cut {
    isa: Isa,
    /// Outputs of a tile.
    out: usize,
    /// Tiles of a line.
    across: usize,
    /// Tiles whose factors are made at once: whole groups.
    lanes: usize,
    /// Blocks of a line, and of all lines.
    line_blocks: usize,
    blocks: usize,
    parts: usize,
}

impl Cut {
    fn new(isa: Isa, threads: usize, shape: &ConvShape) -> Cut {
        let out = outputs(shape);
        let across = shape.out_width.div_ceil(out);
        let lines = shape.batch * shape.out_height;
        let is_small = line_cycles(1, shape).saturating_mul(shape.batch) < SPLIT_CYCLES;
        let threads = if is_small { 1 } else { threads.max(1) };
        let room = BLOCK_BYTES / (size_of::<f32>() * TILE * shape.in_channels.max(1));
        let lanes_max = room.clamp(BLOCK_LANES.start, BLOCK_LANES.end) / BLOCK_LANES.start * BLOCK_LANES.start;
        // At least a block for each thread, where a line has that many groups.
        let least = if lines >= threads { 1 } else { threads.div_ceil(lines.max(1)) };
        let line_blocks = across.div_ceil(lanes_max).max(least.min(across.div_ceil(GROUP))).max(1);
        let lanes = across.div_ceil(line_blocks).next_multiple_of(GROUP).max(GROUP);
        let line_blocks = across.div_ceil(lanes);
        let blocks = lines * line_blocks;
        Cut { isa, out, across, lanes, line_blocks, blocks, parts: threads.min(blocks) }
    }

    /// From one factor's matrix of channels × lanes to the next; the last rows of a matrix may be read beyond their end.
    fn factor_stride(&self, shape: &ConvShape) -> usize {
        shape.in_channels * self.lanes + GROUP
    }

    /// From one factor's products to the next.
    fn product_stride(&self) -> usize {
        tile_shape(self.isa).rows_max * self.lanes + GROUP
    }

    fn padded_len(&self) -> usize {
        (self.lanes * self.out + TILE).next_multiple_of(GROUP)
    }

    fn part_len(&self, shape: &ConvShape) -> usize {
        let row = (self.lanes * self.out).next_multiple_of(GROUP);
        TILE * (self.factor_stride(shape) + self.product_stride()) + self.padded_len() + row
    }
}

/// Elements of scratch that `conv_line` needs on up to this many threads.
pub(crate) fn line_scratch_len(isa: Isa, threads: usize, shape: &ConvShape) -> usize {
    let len = |threads| {
        let cut = Cut::new(isa, threads, shape);
        cut.parts * cut.part_len(shape)
    };
    (1..=threads.max(1)).map(len).max().unwrap_or(0)
}

/// y = conv(x, filter) with its epilogue; `filter` is the result of `pack_line`.
pub(crate) fn conv_line(
    exec: Exec,
    shape: &ConvShape,
    x: &[f32],
    filter: &[f32],
    bias: Option<&[f32]>,
    epilogue: &Epilogue,
    scratch: &mut [f32],
    y: &mut [f32],
) {
    let cut = Cut::new(exec.isa(), exec.threads(), shape);
    if cut.blocks == 0 || shape.out_channels == 0 {
        return;
    }
    let part_len = cut.part_len(shape);
    assert!(scratch.len() >= cut.parts * part_len, "scratch of {} for {shape:?}", scratch.len());
    assert!(filter.len() >= line_filter_len(shape), "filter of {} for {shape:?}", filter.len());
    let (y, scratch) = (SharedMut::new(y), SharedMut::new(scratch));
    let line = Line { cut: &cut, shape, x, filter, bias, epilogue, y: &y };
    exec.pool().run(cut.parts, &|part| {
        // SAFETY: every part has its own stretch of the scratch.
        let scratch = unsafe { scratch.slice(part * part_len, part_len) };
        for block in share(cut.blocks, cut.parts, part) {
            line.run(block, scratch);
        }
    });
}

/// Everything that the parts share.
struct Line<'a> {
    cut: &'a Cut,
    shape: &'a ConvShape,
    x: &'a [f32],
    filter: &'a [f32],
    bias: Option<&'a [f32]>,
    epilogue: &'a Epilogue<'a>,
    y: &'a SharedMut<'a, f32>,
}

/// Successive tiles of one line.
#[derive(Clone, Copy)]
struct Block {
    image: usize,
    /// The line's row of outputs.
    row: usize,
    /// The first tile's first output.
    column: usize,
    /// Lanes that are computed: whole groups.
    lanes: usize,
}

impl Line<'_> {
    fn run(&self, index: usize, scratch: &mut [f32]) {
        let (cut, shape) = (self.cut, self.shape);
        let line = index / cut.line_blocks;
        let first = index % cut.line_blocks * cut.lanes;
        let block = Block {
            image: line / shape.out_height,
            row: line % shape.out_height,
            column: first * cut.out,
            lanes: (cut.across - first).min(cut.lanes).next_multiple_of(GROUP),
        };
        let (factors, scratch) = scratch.split_at_mut(TILE * cut.factor_stride(shape));
        let (products, scratch) = scratch.split_at_mut(TILE * cut.product_stride());
        let (padded, row) = scratch.split_at_mut(cut.padded_len());
        self.transform_input(block, factors, padded);
        let tiles = row_tiles(cut.isa, shape.out_channels);
        for row_tile in 0..tiles {
            let filters = share(shape.out_channels, tiles, row_tile);
            self.multiply(block, filters.clone(), factors, products);
            for (at, filter) in filters.enumerate() {
                self.write(block, filter, &products[at * cut.lanes..], row);
            }
        }
    }

    /// Makes the factors of all channels.
    fn transform_input(&self, block: Block, factors: &mut [f32], padded: &mut [f32]) {
        let (cut, shape) = (self.cut, self.shape);
        let source_row = block.row.checked_sub(shape.pad_top).filter(|row| *row < shape.in_height);
        // Pixels from `column - pad_left` on; those outside the line are zeros.
        let before = shape.pad_left.saturating_sub(block.column).min(padded.len());
        let first = (block.column + before).saturating_sub(shape.pad_left).min(shape.in_width);
        let live = (shape.in_width - first).min(padded.len() - before);
        padded.fill(0.0);
        for channel in 0..shape.in_channels {
            if let Some(row) = source_row {
                let start = ((block.image * shape.in_channels + channel) * shape.in_height + row) * shape.in_width;
                padded[before..before + live].copy_from_slice(&self.x[start + first..start + first + live]);
            }
            let target = &mut factors[channel * cut.lanes..];
            match cut.out {
                2 => transform_pixels::<2>(cut.isa, padded, block.lanes, target, cut.factor_stride(shape)),
                _ => transform_pixels::<4>(cut.isa, padded, block.lanes, target, cut.factor_stride(shape)),
            }
        }
    }

    /// Products of one row tile of the filter with all factors.
    fn multiply(&self, block: Block, filters: Range<usize>, factors: &[f32], products: &mut [f32]) {
        let (cut, channels) = (self.cut, self.shape.in_channels);
        let (factor_stride, product_stride) = (cut.factor_stride(self.shape), cut.product_stride());
        let (rows, width) = (filters.len(), tile_shape(cut.isa).cols);
        let kernel = tile_kernel(cut.isa, rows);
        let filter = &self.filter[filters.start * channels * TILE..filters.end * channels * TILE];
        for factor in 0..TILE {
            let filter = &filter[factor * channels * rows..];
            let products = &mut products[factor * product_stride..][..rows * cut.lanes];
            if channels == 0 {
                products.fill(0.0);
            }
            for ks in (0..channels).step_by(K_BLOCK) {
                for column in (0..block.lanes).step_by(width) {
                    let call = TileCall {
                        k: K_BLOCK.min(channels - ks),
                        a: filter[ks * rows..].as_ptr(),
                        b: factors[factor * factor_stride + ks * cut.lanes + column..].as_ptr(),
                        b_stride: cut.lanes,
                        c: products[column..].as_mut_ptr(),
                        c_stride: cut.lanes,
                        cols: width.min(block.lanes - column),
                        is_first: ks == 0,
                        finish: None,
                    };
                    // SAFETY: the slices above hold the rows; each factor holds `channels` rows of `lanes` and a group
                    // more, as far as the widest tile reads beyond whole groups.
                    unsafe { kernel(&call) };
                }
            }
        }
    }

    /// Sums the products of one output channel and writes its pixels.
    fn write(&self, block: Block, filter: usize, products: &[f32], row: &mut [f32]) {
        let (cut, shape) = (self.cut, self.shape);
        let bias = self.bias.map_or(0.0, |bias| bias[filter]);
        let row = &mut row[..block.lanes * cut.out];
        match cut.out {
            2 => transform_products::<2>(cut.isa, products, cut.product_stride(), bias, row),
            _ => transform_products::<4>(cut.isa, products, cut.product_stride(), bias, row),
        }
        let len = row.len().min(shape.out_width - block.column);
        let line = (block.image * shape.out_channels + filter) * shape.out_height + block.row;
        let start = line * shape.out_width + block.column;
        // SAFETY: every pixel of every channel belongs to one block, and every block to one part.
        let target = unsafe { self.y.slice(start, len) };
        target.copy_from_slice(&row[..len]);
        self.epilogue.end_row(cut.isa, start, target);
    }
}

multiversion! {
    /// The factors of `lanes` tiles, `OUT` pixels apart; factor f of tile t goes to `f * stride + t`.
    fn transform_pixels<F: MulAdd, const OUT: usize>(padded: &[f32], lanes: usize, target: &mut [f32], stride: usize) {
        for first in (0..lanes).step_by(GROUP) {
            let pixels = &padded[first * OUT..][..(GROUP - 1) * OUT + TILE];
            let mut factors = [[0.0; GROUP]; TILE];
            for lane in 0..GROUP {
                let d = |at: usize| pixels[lane * OUT + at];
                factors[0][lane] = F::mul_add(4.0, d(0), F::mul_add(-5.0, d(2), d(4)));
                let (even, odd) = (F::mul_add(-4.0, d(2), d(4)), F::mul_add(-4.0, d(1), d(3)));
                factors[1][lane] = even + odd;
                factors[2][lane] = even - odd;
                let (even, odd) = (d(4) - d(2), 2.0 * (d(3) - d(1)));
                factors[3][lane] = even + odd;
                factors[4][lane] = even - odd;
                factors[5][lane] = F::mul_add(4.0, d(1), F::mul_add(-5.0, d(3), d(5)));
            }
            for (factor, values) in factors.iter().enumerate() {
                target[factor * stride + first..][..GROUP].copy_from_slice(values);
            }
        }
    }
}

multiversion! {
    /// The outputs of the tiles that fill `row`, with the bias; product f of tile t is at `f * stride + t`.
    fn transform_products<F: MulAdd, const OUT: usize>(products: &[f32], stride: usize, bias: f32, row: &mut [f32]) {
        for (group, row) in row.chunks_exact_mut(GROUP * OUT).enumerate() {
            let mut p = [[0.0; GROUP]; TILE];
            for (factor, values) in p.iter_mut().enumerate() {
                values.copy_from_slice(&products[factor * stride + group * GROUP..][..GROUP]);
            }
            for lane in 0..GROUP {
                let (near, near_odd) = (p[1][lane] + p[2][lane], p[1][lane] - p[2][lane]);
                let (far, far_odd) = (p[3][lane] + p[4][lane], p[3][lane] - p[4][lane]);
                let row = &mut row[lane * OUT..][..OUT];
                row[0] = p[0][lane] + near + far + bias;
                row[1] = F::mul_add(2.0, far_odd, near_odd) + bias;
                if OUT == 4 {
                    row[2] = F::mul_add(4.0, far, near) + bias;
                    row[3] = F::mul_add(8.0, far_odd, near_odd) + bias;
                }
                row[OUT - 1] += p[5][lane];
            }
        }
    }
}
