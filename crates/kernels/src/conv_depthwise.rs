//! f32 convolution in which every output channel sees one input channel.
//!
//! Each channel is first copied into a padded plane, split by the phases of the stride, so that a tap is a constant
//! distance for every output pixel. The output is then computed over the whole plane as one long row; the few values
//! that fall in the padding between rows are dropped when rows are copied out. The common filters have a form that
//! reads the image itself, in `conv_depthwise_rows.rs`.

use crate::conv::ConvShape;
use crate::conv_depthwise_rows::{self, ChannelRows};
use crate::epilogue::{Epilogue, Light, add_residual};
use crate::isa::{Exec, Isa};
use crate::padded_plane::{Plane, TAPS_MAX, fill_plane};
use crate::plane_rows::{is_cut_by_rows, rows_of_part};
use crate::pool::{SharedMut, share};
use crate::simd::multiversion;
use std::ops::Range;

/// The most output channels for one input channel; beyond it a product has enough rows to be faster.
const MULTIPLIER_MAX: usize = 4;
/// Outputs computed together: the sums stay in four of the widest registers.
const CHUNK: usize = 64;
/// Output values computed before they are copied out, so that they are still in the first-level cache.
const STRIP: usize = 2048;
/// Multiplications below which all work stays on one thread: about 8 µs.
const SPLIT_PRODUCTS: usize = 160_000;

/// Whether `conv` computes this shape without a product.
pub(crate) fn is_depthwise(shape: &ConvShape) -> bool {
    let multiplier = shape.out_channels / shape.groups;
    let is_by_channel = shape.groups > 1 && shape.channels_per_group() == 1;
    is_by_channel && multiplier <= MULTIPLIER_MAX && shape.taps() <= TAPS_MAX
}

/// How many rows of results are best computed at a time, if it can be fewer than all.
pub(crate) fn row_step(isa: Isa, shape: &ConvShape) -> Option<usize> {
    conv_depthwise_rows::covers(isa, shape).then_some(conv_depthwise_rows::ROWS)
}

/// Elements of scratch that `conv_depthwise` needs.
pub(crate) fn conv_depthwise_scratch_len(isa: Isa, threads: usize, shape: &ConvShape) -> usize {
    threads.max(1) * Depthwise::scratch_len(isa, shape)
}

pub(crate) fn conv_depthwise(
    exec: Exec,
    shape: &ConvShape,
    x: &[f32],
    filter: &[f32],
    epilogue: &Epilogue,
    scratch: &mut [f32],
    y: &mut [f32],
) {
    let depthwise = Depthwise::new(exec.isa(), shape, filter, epilogue);
    let (planes, in_area) = (shape.batch * shape.groups, shape.in_area());
    let y = &mut y[..shape.batch * shape.out_channels * shape.out_area()];
    if y.is_empty() {
        return;
    }
    let is_small = y.len() * shape.taps() < SPLIT_PRODUCTS;
    let row_step = row_step(exec.isa(), shape).filter(|_| is_cut_by_rows(shape.batch, shape.out_area()));
    let parts_max = row_step.map_or(planes, |step| shape.out_height.div_ceil(step));
    let parts = if is_small { 1 } else { exec.threads().min(parts_max) };
    let part_scratch = Depthwise::scratch_len(exec.isa(), shape);
    assert!(scratch.len() >= parts * part_scratch, "scratch of {} for {parts}×{part_scratch}", scratch.len());
    let (y, scratch) = (SharedMut::new(y), SharedMut::new(scratch));
    exec.pool().run(parts, &|part| {
        // SAFETY: every part has its own stretch of the scratch.
        let scratch = unsafe { scratch.slice(part * part_scratch, part_scratch) };
        depthwise.prepare(scratch);
        let (planes, rows) = match row_step {
            Some(step) => (0..planes, rows_of_part(shape.out_height, step, parts, part)),
            None => (share(planes, parts, part), 0..shape.out_height),
        };
        for plane in planes {
            let image = &x[plane * in_area..(plane + 1) * in_area];
            // SAFETY: these rows of the plane belong to this part.
            unsafe { depthwise.run(plane, image, rows.clone(), scratch, &y) };
        }
    });
}

/// A depthwise convolution and what follows it, one plane of the input at a time.
pub(crate) struct Depthwise<'a> {
    isa: Isa,
    shape: &'a ConvShape,
    filter: &'a [f32],
    bias: Option<&'a [f32]>,
    epilogue: &'a Epilogue<'a>,
    reads_image: bool,
    plane: Plane,
    distances: [usize; TAPS_MAX],
}

impl<'a> Depthwise<'a> {
    /// Panics when a slice is too short for the shape.
    pub(crate) fn new(isa: Isa, shape: &'a ConvShape, filter: &'a [f32], epilogue: &'a Epilogue<'a>) -> Depthwise<'a> {
        let bias = epilogue.bias.of_channels();
        assert!(filter.len() >= shape.out_channels * shape.taps(), "filter of {} for {shape:?}", filter.len());
        assert!(bias.is_none_or(|bias| bias.len() >= shape.out_channels), "bias for {shape:?}");
        let (reads_image, plane) = (conv_depthwise_rows::covers(isa, shape), Plane::of(shape));
        Depthwise { isa, shape, filter, bias, epilogue, reads_image, plane, distances: plane.distances(shape) }
    }

    /// Elements of scratch of a caller.
    pub(crate) fn scratch_len(isa: Isa, shape: &ConvShape) -> usize {
        if conv_depthwise_rows::covers(isa, shape) { 0 } else { plane_len(shape) + strip_len(shape) }
    }

    /// Prepares scratch for any number of planes: the padding is the same for all of them.
    pub(crate) fn prepare(&self, scratch: &mut [f32]) {
        if !self.reads_image {
            scratch[..plane_len(self.shape)].fill(0.0);
        }
    }

    /// Computes rows of the results of one input plane; all of them where there is no `row_step`.
    ///
    /// # Safety
    /// Nothing else touches these rows of the plane's results in `y` meanwhile.
    pub(crate) unsafe fn run(
        &self,
        plane: usize,
        image: &[f32],
        rows: Range<usize>,
        scratch: &mut [f32],
        y: &SharedMut<f32>,
    ) {
        let (multiplier, width) = (self.shape.out_channels / self.shape.groups, self.shape.out_width);
        // SAFETY: rows of the results of this plane, one copy at a time.
        let target =
            |index: usize| unsafe { y.slice(index * self.shape.out_area() + rows.start * width, rows.len() * width) };
        let copies = plane * multiplier..(plane + 1) * multiplier;
        if self.reads_image {
            return copies.for_each(|index| self.run_rows(index, image, rows.clone(), target(index)));
        }
        assert_eq!(rows, 0..self.shape.out_height, "this form computes whole planes");
        let (padded, strip) = scratch.split_at_mut(plane_len(self.shape));
        fill_plane(self.isa, &self.plane, self.shape, image, padded);
        for index in copies {
            self.run_padded(index, padded, target(index), strip);
        }
    }

    fn weights(&self, channel: usize) -> &'a [f32] {
        let taps = self.shape.taps();
        &self.filter[channel * taps..(channel + 1) * taps]
    }

    /// The form that reads a padded copy of the plane.
    fn run_padded(&self, index: usize, padded: &[f32], target: &mut [f32], strip: &mut [f32]) {
        let channel = index % self.shape.out_channels;
        let channel = Channel {
            padded,
            distances: &self.distances[..self.shape.taps()],
            weights: self.weights(channel),
            bias: self.bias.map_or(0.0, |bias| bias[channel]),
            epilogue: self.epilogue,
            start: index * self.shape.out_area(),
            row_len: self.plane.row_len,
            out_width: self.shape.out_width,
        };
        channel.run(self.isa, target, strip);
    }

    /// The form that reads the image itself.
    fn run_rows(&self, index: usize, image: &[f32], rows: Range<usize>, target: &mut [f32]) {
        let (shape, light) = (self.shape, self.epilogue.light());
        let (channel, start) = (index % shape.out_channels, index * shape.out_area());
        let of_plane = |residual: &'a [f32]| &residual[start..start + shape.out_area()];
        let channel = ChannelRows {
            shape,
            image,
            weights: self.weights(channel),
            bias: self.bias.map_or(0.0, |bias| bias[channel]),
            first_residual: self.epilogue.first_residual().map(of_plane),
            light: light.unwrap_or(Light::NOTHING),
            last_residual: self.epilogue.last_residual().filter(|_| light.is_some()).map(of_plane),
        };
        channel.run(self.isa, rows.clone(), target);
        if light.is_none() {
            self.epilogue.finish_row(self.isa, start + rows.start * shape.out_width, target);
        }
    }
}

/// Length of a padded channel, with room for the last chunk to read on.
fn plane_len(shape: &ConvShape) -> usize {
    (Plane::of(shape).len() + CHUNK).next_multiple_of(16)
}

/// Length of the buffer for values before they are copied out: whole rows, whole chunks.
fn strip_len(shape: &ConvShape) -> usize {
    Plane::of(shape).row_len.max(STRIP).next_multiple_of(CHUNK) + CHUNK
}

/// One output channel of one image.
struct Channel<'a> {
    padded: &'a [f32],
    distances: &'a [usize],
    weights: &'a [f32],
    bias: f32,
    epilogue: &'a Epilogue<'a>,
    /// Where its result starts in that of the convolution.
    start: usize,
    row_len: usize,
    out_width: usize,
}

impl Channel<'_> {
    fn run(&self, isa: Isa, target: &mut [f32], strip: &mut [f32]) {
        let rows_per_strip = (STRIP / self.row_len).max(1);
        for (index, target) in target.chunks_mut(rows_per_strip * self.out_width).enumerate() {
            let rows = target.len() / self.out_width;
            let first = index * rows_per_strip * self.row_len;
            // The last row needs no padding behind it.
            let len = (rows - 1) * self.row_len + self.out_width;
            let strip = &mut strip[..len.next_multiple_of(CHUNK)];
            add_taps(isa, &self.padded[first..], self.distances, self.weights, self.bias, len, strip);
            let start = self.start + index * rows_per_strip * self.out_width;
            let residual = self.epilogue.first_residual().map(|residual| &residual[start..]);
            let light = self.epilogue.light();
            copy_out(isa, strip, self.row_len, self.out_width, residual, light.unwrap_or(Light::NOTHING), target);
            match light {
                None => self.epilogue.finish_row(isa, start, target),
                Some(_) => {
                    if let Some(residual) = self.epilogue.last_residual() {
                        add_residual(isa, &residual[start..], target);
                    }
                }
            }
        }
    }
}

multiversion! {
    /// `strip[i] = bias + Σ weights[t] · padded[i + distances[t]]` for i below `len`, and more up to a whole chunk.
    fn add_taps<F: MulAdd>(
        padded: &[f32],
        distances: &[usize],
        weights: &[f32],
        bias: f32,
        len: usize,
        strip: &mut [f32],
    ) {
        for (chunk, target) in strip.chunks_exact_mut(CHUNK).enumerate() {
            if chunk * CHUNK >= len {
                break;
            }
            let padded = &padded[chunk * CHUNK..];
            let mut sums = [bias; CHUNK];
            for (distance, weight) in distances.iter().zip(weights) {
                let Some(source) = padded.get(*distance..).and_then(|source| source.first_chunk::<CHUNK>()) else {
                    unreachable!("the plane has room for a whole chunk")
                };
                for lane in 0..CHUNK {
                    sums[lane] = F::mul_add(*weight, source[lane], sums[lane]);
                }
            }
            target.copy_from_slice(&sums);
        }
    }
}

multiversion! {
    /// Rows of the strip to rows of the target, with the first residual added and what is light applied.
    fn copy_out<F: MulAdd>(
        strip: &[f32],
        row_len: usize,
        out_width: usize,
        residual: Option<&[f32]>,
        light: Light,
        target: &mut [f32],
    ) {
        for (row, target) in target.chunks_exact_mut(out_width).enumerate() {
            let source = &strip[row * row_len..][..out_width];
            match residual {
                None => {
                    for (target, source) in target.iter_mut().zip(source) {
                        *target = light.apply::<F>(*source);
                    }
                }
                Some(residual) => {
                    let residual = &residual[row * out_width..][..out_width];
                    for ((target, source), residual) in target.iter_mut().zip(source).zip(residual) {
                        *target = light.apply::<F>(*source + *residual);
                    }
                }
            }
        }
    }
}
