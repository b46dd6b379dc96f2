//! A 1×1 convolution whose result only a depthwise one reads, as one kernel.
//!
//! A few channels of the first at a time, and of large images some rows at a time, so that the second finds them in the
//! nearest cache and what lies between the two is never a whole tensor. Threads share the channels of small images and the rows of
//! large ones: what one of them has computed between the two no other reads. Both add in the order in which they do alone,
//! so the results are the same bits.

use crate::arithmetic::Arithmetic;
use crate::conv::ConvShape;
use crate::conv_depthwise::{Depthwise, is_depthwise, row_step};
use crate::epilogue::{Bias, Epilogue};
use crate::gemm_drive::{
    Completion, DIRECT_TILES_MAX, DriveShape, Item, SPLIT_NS, SourceB, drive_panels, drive_panels_scratch_len,
    estimate_ns,
};
use crate::gemm_pack::{MatrixA, MatrixB, pack_a_into, pack_b_panel, packed_b_len};
use crate::gemm_tile::tile_shape;
use crate::isa::{Exec, Isa};
use crate::plane_rows::{is_cut_by_rows, rows_of_part};
use crate::pool::{SharedMut, share};
use std::ops::Range;

/// Channels are cut in a multiple of this many groups, so that few threads have equal shares.
const GROUPS: usize = 4;
/// The same for so few channels that tiles of a quarter of them would be too low.
const GROUPS_OF_FEW: usize = 2;
/// Elements of an image up to which it is packed once for all channels; a larger one is read where it lies.
const PACKED_IMAGE_MAX: usize = 64 * 1024;
/// Elements of some rows of a group of channels that stay in the second-level cache beside what is read.
const BAND_ELEMENTS: usize = 32 * 1024;

/// Both convolutions.
#[derive(Clone, Copy, Debug)]
pub struct ConvPair {
    first: ConvShape,
    second: ConvShape,
}

/// What the two convolutions multiply by and what follows each of them.
#[derive(Clone, Copy, Debug)]
pub struct PairOperands<'a> {
    /// The filter of the first, packed by `pack_first_into`.
    pub first_filter: &'a [f32],
    /// Without a residual.
    pub first_epilogue: Epilogue<'a>,
    /// The filter of the second, as it is.
    pub second_filter: &'a [f32],
    /// May have a residual.
    pub second_epilogue: Epilogue<'a>,
}

impl ConvPair {
    /// The pair, if the kernel covers it: a 1×1 convolution of all channels, then a depthwise one of its result.
    pub fn new(first: ConvShape, second: ConvShape) -> Option<ConvPair> {
        let is_first = first.is_pointwise() && first.groups == 1 && first.in_area() > 0;
        let is_same = first.batch == second.batch && first.out_channels == second.in_channels;
        let is_same_plane = [first.out_height, first.out_width] == [second.in_height, second.in_width];
        (is_first && is_same && is_same_plane && is_depthwise(&second)).then_some(ConvPair { first, second })
    }

    /// Elements of the packed filter of the first.
    pub fn packed_first_len(&self) -> usize {
        self.first.out_channels * self.first.in_channels
    }

    /// Writes the packed form of the first filter [out, in, 1, 1]. It depends on `isa` and the filter only.
    pub fn pack_first_into(&self, isa: Isa, weights: &[f32], packed: &mut [f32]) {
        let k = self.first.in_channels;
        assert_eq!(packed.len(), self.packed_first_len(), "elements of the packed filter");
        for group in 0..self.groups(isa) {
            let channels = self.channels(isa, group);
            let rows = MatrixA::Rows { data: &weights[channels.start * k..channels.end * k], stride: k };
            pack_a_into(isa, channels.len(), k, rows, &mut packed[channels.start * k..channels.end * k]);
        }
    }

    /// Elements of scratch that `run` needs with up to this many threads.
    pub fn scratch_len(&self, isa: Isa, threads: usize) -> usize {
        threads.max(1) * self.part_scratch(isa).iter().sum::<usize>()
    }

    /// Computes the second convolution of the first of x. Panics when a slice is too short.
    pub fn run(&self, exec: Exec, x: &[f32], operands: &PairOperands, scratch: &mut [f32], y: &mut [f32]) {
        let (isa, tasks) = (exec.isa(), self.first.batch * self.groups(exec.isa()));
        let y = &mut y[..self.second.batch * self.second.out_channels * self.second.out_area()];
        if y.is_empty() {
            return;
        }
        assert!(operands.first_epilogue.residual.is_none(), "the first convolution has no residual");
        let is_small = estimate_ns(&self.first.drive_shape(Arithmetic::F32), false, true) < SPLIT_NS;
        let ConvShape { batch, out_height, .. } = self.second;
        let row_step = row_step(isa, &self.second).filter(|_| is_cut_by_rows(batch, self.second.out_area()));
        let parts_max = row_step.map_or(tasks, |step| out_height.div_ceil(step));
        let parts = if is_small { 1 } else { exec.threads().min(parts_max) };
        let part_scratch = self.part_scratch(isa);
        let part_len = part_scratch.iter().sum();
        assert!(scratch.len() >= parts * part_len, "scratch of {} for {parts}×{part_len}", scratch.len());
        let (y, scratch) = (SharedMut::new(y), SharedMut::new(scratch));
        exec.pool().run(parts, &|part| {
            // SAFETY: every part has its own stretch of the scratch.
            let scratch = unsafe { scratch.slice(part * part_len, part_len) };
            let (tasks, rows) = match row_step {
                Some(step) => (0..tasks, rows_of_part(out_height, step, parts, part)),
                None => (share(tasks, parts, part), 0..out_height),
            };
            Part::new(self, isa, x, operands, part_scratch, scratch).run(tasks, rows, &y);
        });
    }

    /// In how many groups the channels between the two are cut.
    fn groups(&self, isa: Isa) -> usize {
        let (channels, rows) = (self.first.out_channels, DIRECT_TILES_MAX * tile_shape(isa).rows_max);
        let multiple = if channels < GROUPS * rows / 2 { GROUPS_OF_FEW } else { GROUPS };
        channels.div_ceil(rows).next_multiple_of(multiple).min(channels)
    }

    fn channels(&self, isa: Isa, group: usize) -> Range<usize> {
        share(self.first.out_channels, self.groups(isa), group)
    }

    /// The most channels of a group.
    fn channels_max(&self, isa: Isa) -> usize {
        self.first.out_channels.div_ceil(self.groups(isa).max(1))
    }

    fn packs_image(&self) -> bool {
        self.first.in_channels * self.first.in_area() <= PACKED_IMAGE_MAX
    }

    /// Elements of a thread's scratch: channels between the two, the packed image, and those of either kernel.
    fn part_scratch(&self, isa: Isa) -> [usize; 4] {
        let product = self.first.drive_shape(Arithmetic::F32);
        let image = if self.packs_image() { packed_b_len(isa, product.k, product.n) } else { 0 };
        let drive = if self.packs_image() { 0 } else { drive_panels_scratch_len(isa, &product) };
        let middle = self.channels_max(isa) * self.first.out_area();
        [middle, image, drive, Depthwise::scratch_len(isa, &self.second)].map(|len| len.next_multiple_of(16))
    }
}

/// What one thread works with.
struct Part<'a> {
    pair: &'a ConvPair,
    isa: Isa,
    x: &'a [f32],
    operands: &'a PairOperands<'a>,
    depthwise: Depthwise<'a>,
    middle: &'a mut [f32],
    image: &'a mut [f32],
    drive: &'a mut [f32],
    plane: &'a mut [f32],
}

impl<'a> Part<'a> {
    fn new(
        pair: &'a ConvPair,
        isa: Isa,
        x: &'a [f32],
        operands: &'a PairOperands<'a>,
        [middle, image, drive, _]: [usize; 4],
        scratch: &'a mut [f32],
    ) -> Part<'a> {
        let depthwise = Depthwise::new(isa, &pair.second, operands.second_filter, &operands.second_epilogue);
        let (middle, scratch) = scratch.split_at_mut(middle);
        let (image, scratch) = scratch.split_at_mut(image);
        let (drive, plane) = scratch.split_at_mut(drive);
        depthwise.prepare(plane);
        Part { pair, isa, x, operands, depthwise, middle, image, drive, plane }
    }

    /// Computes rows of groups of channels, those of all images counted together.
    fn run(&mut self, tasks: Range<usize>, rows: Range<usize>, y: &SharedMut<f32>) {
        let groups = self.pair.groups(self.isa);
        let mut packed = None;
        for task in tasks {
            let (image, group) = (task / groups, task % groups);
            if self.pair.packs_image() && packed.replace(image) != Some(image) {
                self.pack_image(image, self.panels_read(&rows));
            }
            self.run_group(image, self.pair.channels(self.isa, group), rows.clone(), y);
        }
    }

    fn x_of(&self, image: usize) -> MatrixB<'a> {
        let len = self.pair.first.in_channels * self.pair.first.in_area();
        MatrixB::Rows { data: &self.x[image * len..(image + 1) * len], stride: self.pair.first.in_area() }
    }

    fn pack_image(&mut self, image: usize, panels: Range<usize>) {
        let (x, width) = (self.x_of(image), tile_shape(self.isa).cols);
        let DriveShape { n, k, .. } = self.pair.first.drive_shape(Arithmetic::F32);
        let targets = self.image.chunks_exact_mut((width * k).max(1)).enumerate();
        for (panel, target) in targets.take(panels.end).skip(panels.start) {
            pack_b_panel(self.isa, width, x, 0..k, panel * width..n.min((panel + 1) * width), k, target);
        }
    }

    /// Both convolutions for some channels of an image, a band of rows after another.
    fn run_group(&mut self, image: usize, channels: Range<usize>, rows: Range<usize>, y: &SharedMut<f32>) {
        let step = self.rows_at_once(channels.len());
        let mut done = self.panels_read(&rows).start;
        for first_row in rows.clone().step_by(step) {
            let rows = first_row..rows.end.min(first_row + step);
            let needed = self.panels_read(&rows).end;
            self.run_first(image, channels.clone(), done.min(needed)..needed);
            done = done.max(needed);
            self.run_second(image, channels.clone(), rows, y);
        }
    }

    /// The panels of what lies between the two that some rows of results read.
    fn panels_read(&self, rows: &Range<usize>) -> Range<usize> {
        let ConvShape { in_width, stride, pad_top, .. } = self.pair.second;
        let width = tile_shape(self.isa).cols;
        let end = (self.rows_read(rows.end) * in_width).div_ceil(width);
        ((rows.start * stride[0]).saturating_sub(pad_top) * in_width / width).min(end)..end
    }

    /// Rows of results of a band.
    fn rows_at_once(&self, channels: usize) -> usize {
        let ConvShape { out_height, in_width, stride, .. } = self.pair.second;
        let Some(step) = row_step(self.isa, &self.pair.second) else { return out_height.max(1) };
        let rows = BAND_ELEMENTS / (channels * in_width * stride[0]).max(1);
        (rows / step).max(1) * step
    }

    /// How many rows between the two the first `rows` of the results read.
    fn rows_read(&self, rows: usize) -> usize {
        let ConvShape { in_height, filter_height, stride, pad_top, dilation, .. } = self.pair.second;
        let end = rows.saturating_sub(1) * stride[0] + (filter_height - 1) * dilation[0] + 1;
        end.saturating_sub(pad_top).min(in_height)
    }

    fn run_first(&mut self, image: usize, channels: Range<usize>, panels: Range<usize>) {
        let shape = DriveShape { items: 1, m: channels.len(), ..self.pair.first.drive_shape(Arithmetic::F32) };
        let epilogue = &self.operands.first_epilogue;
        let bias = epilogue.bias.of_channels().map_or(Bias::None, |bias| Bias::Rows(&bias[channels.clone()]));
        let b = if self.pair.packs_image() { MatrixB::Packed(self.image) } else { self.x_of(image) };
        let item = Item {
            a: MatrixA::Packed(&self.operands.first_filter[channels.start * shape.k..channels.end * shape.k]),
            b: SourceB::Matrix(b),
            c_start: 0,
            bias,
        };
        let completion = Completion { scale: 1.0, epilogue };
        drive_panels(self.isa, &shape, item, &completion, panels, &SharedMut::new(self.middle), self.drive);
    }

    fn run_second(&mut self, image: usize, channels: Range<usize>, rows: Range<usize>, y: &SharedMut<f32>) {
        let area = self.pair.first.out_area();
        for (middle, channel) in self.middle.chunks_exact(area).zip(channels) {
            let plane = image * self.pair.second.in_channels + channel;
            // SAFETY: every row of every channel of an image belongs to one part.
            unsafe { self.depthwise.run(plane, middle, rows.clone(), self.plane, y) };
        }
    }
}

#[cfg(test)]
#[path = "conv_pair_tests.rs"]
mod tests;
