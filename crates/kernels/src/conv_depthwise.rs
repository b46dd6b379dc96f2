//! f32 convolution in which every output channel sees one input channel.
//!
//! Each channel is first copied into a padded plane, split by the phases of the stride, so that a tap is a constant
//! distance for every output pixel. The output is then computed over the whole plane as one long row; the few values
//! that fall in the padding between rows are dropped when rows are copied out. The common filters have a form that
//! reads the image itself, in `conv_depthwise_rows.rs`.

use crate::conv::ConvShape;
use crate::conv_depthwise_rows::{self, ChannelRows};
use crate::epilogue::{Ending, Epilogue, Light, add_residual};
use crate::isa::{Exec, Isa};
use crate::pool::{SharedMut, share};
use crate::simd::multiversion;

/// The most output channels for one input channel; beyond it a product has enough rows to be faster.
const MULTIPLIER_MAX: usize = 4;
/// The most taps; their distances are kept on the stack, and one sum takes them all (specs/compiler.md §10).
const TAPS_MAX: usize = 128;
/// Outputs computed together: the sums stay in four of the widest registers.
const CHUNK: usize = 64;
/// Output values computed before they are copied out, so that they are still in the first-level cache.
const STRIP: usize = 2048;
/// Multiplications below which all work stays on one thread: about 8 µs.
const SPLIT_PRODUCTS: usize = 160_000;
/// The same for the form that reads the image itself.
const SPLIT_PRODUCTS_ROWS: usize = 160_000;

/// Whether `conv` computes this shape without a product.
pub(crate) fn is_depthwise(shape: &ConvShape) -> bool {
    let multiplier = shape.out_channels / shape.groups;
    let is_by_channel = shape.groups > 1 && shape.channels_per_group() == 1;
    is_by_channel && multiplier <= MULTIPLIER_MAX && shape.taps() <= TAPS_MAX
}

/// Elements of scratch that `conv_depthwise` needs.
pub(crate) fn conv_depthwise_scratch_len(threads: usize, shape: &ConvShape) -> usize {
    threads.max(1) * (Plane::of(shape).len() + strip_len(shape))
}

pub(crate) fn conv_depthwise(
    exec: Exec,
    shape: &ConvShape,
    x: &[f32],
    filter: &[f32],
    bias: Option<&[f32]>,
    epilogue: &Epilogue,
    scratch: &mut [f32],
    y: &mut [f32],
) {
    let (planes, multiplier) = (shape.batch * shape.groups, shape.out_channels / shape.groups);
    let (in_area, out_area) = (shape.in_area(), shape.out_area());
    if planes * multiplier * out_area == 0 {
        return;
    }
    if conv_depthwise_rows::covers(exec.isa(), shape) {
        return run_rows(exec, shape, x, filter, bias, epilogue, y);
    }
    let plane = Plane::of(shape);
    let (distances, taps) = (plane.distances(shape), shape.taps());
    let y = &mut y[..planes * multiplier * out_area];
    let is_small = y.len() * taps < SPLIT_PRODUCTS;
    let parts = if is_small { 1 } else { exec.threads().min(planes) };
    let part_scratch = plane.len() + strip_len(shape);
    assert!(scratch.len() >= parts * part_scratch, "scratch of {} for {parts}×{part_scratch}", scratch.len());
    let (y, scratch) = (SharedMut::new(y), SharedMut::new(scratch));
    exec.pool().run(parts, &|part| {
        // SAFETY: every part has its own stretch of the scratch.
        let scratch = unsafe { scratch.slice(part * part_scratch, part_scratch) };
        let (padded, strip) = scratch.split_at_mut(plane.len());
        // The padding is the same for every channel; only the image inside it is copied again.
        padded.fill(0.0);
        for index in share(planes, parts, part) {
            fill_plane(exec.isa(), &plane, shape, &x[index * in_area..(index + 1) * in_area], padded);
            for copy in 0..multiplier {
                let out_index = index * multiplier + copy;
                let channel = out_index % shape.out_channels;
                // SAFETY: every plane belongs to one part.
                let target = unsafe { y.slice(out_index * out_area, out_area) };
                let channel = Channel {
                    padded,
                    distances: &distances[..taps],
                    weights: &filter[channel * taps..(channel + 1) * taps],
                    bias: bias.map_or(0.0, |bias| bias[channel]),
                    ending: epilogue.ending(),
                    start: out_index * out_area,
                    row_len: plane.row_len,
                    out_width: shape.out_width,
                };
                channel.run(exec.isa(), target, strip);
            }
        }
    });
}

/// The form that reads the image itself.
fn run_rows(
    exec: Exec,
    shape: &ConvShape,
    x: &[f32],
    filter: &[f32],
    bias: Option<&[f32]>,
    epilogue: &Epilogue,
    y: &mut [f32],
) {
    let (planes, multiplier) = (shape.batch * shape.groups, shape.out_channels / shape.groups);
    let (in_area, out_area, taps) = (shape.in_area(), shape.out_area(), shape.taps());
    let y = &mut y[..planes * multiplier * out_area];
    let is_small = y.len() * taps < SPLIT_PRODUCTS_ROWS;
    let parts = if is_small { 1 } else { exec.threads().min(planes * multiplier) };
    let (ending, y) = (epilogue.ending(), SharedMut::new(y));
    let light = ending.light();
    exec.pool().run(parts, &|part| {
        for index in share(planes * multiplier, parts, part) {
            let channel = index % shape.out_channels;
            // SAFETY: every plane belongs to one part.
            let target = unsafe { y.slice(index * out_area, out_area) };
            let rows = ChannelRows {
                shape,
                image: &x[index / multiplier * in_area..][..in_area],
                weights: &filter[channel * taps..(channel + 1) * taps],
                bias: bias.map_or(0.0, |bias| bias[channel]),
                first_residual: ending.first_residual().map(|residual| &residual[index * out_area..][..out_area]),
                light: light.unwrap_or(Light::NOTHING),
                last_residual: (ending.last_residual().filter(|_| light.is_some()))
                    .map(|residual| &residual[index * out_area..][..out_area]),
            };
            rows.run(exec.isa(), target);
            if light.is_none() {
                ending.finish_row(exec.isa(), index * out_area, target);
            }
        }
    });
}

/// Length of the buffer for values before they are copied out: whole rows, whole chunks.
fn strip_len(shape: &ConvShape) -> usize {
    Plane::of(shape).row_len.max(STRIP).next_multiple_of(CHUNK) + CHUNK
}

/// A padded channel: for each phase of the strides, the rows and columns of that phase.
struct Plane {
    rows: usize,
    row_len: usize,
    phases: [usize; 2],
}

impl Plane {
    fn of(shape: &ConvShape) -> Plane {
        let reach = |taps: usize, axis: usize| taps.saturating_sub(1) * shape.dilation[axis] / shape.stride[axis];
        Plane {
            rows: shape.out_height + reach(shape.filter_height, 0),
            row_len: shape.out_width + reach(shape.filter_width, 1),
            phases: shape.stride,
        }
    }

    /// With room for the last chunk to read on.
    fn len(&self) -> usize {
        (self.phases[0] * self.phases[1] * self.rows * self.row_len + CHUNK).next_multiple_of(16)
    }

    /// From an output pixel's place in the plane to the source of each tap.
    fn distances(&self, shape: &ConvShape) -> [usize; TAPS_MAX] {
        let mut distances = [0; TAPS_MAX];
        for (tap, distance) in distances.iter_mut().enumerate().take(shape.taps()) {
            let y = tap / shape.filter_width * shape.dilation[0];
            let x = tap % shape.filter_width * shape.dilation[1];
            let phase = y % self.phases[0] * self.phases[1] + x % self.phases[1];
            *distance = (phase * self.rows + y / self.phases[0]) * self.row_len + x / self.phases[1];
        }
        distances
    }

    /// The rows of one phase that lie in the image, and where their pixels go.
    fn span(&self, axis: usize, phase: usize, pad: usize, size: usize) -> Span {
        let (stride, places) = (self.phases[axis], if axis == 0 { self.rows } else { self.row_len });
        let start = pad.saturating_sub(phase).div_ceil(stride).min(places);
        let source = (start * stride + phase).saturating_sub(pad);
        let count = size.saturating_sub(source).div_ceil(stride).min(places - start);
        Span { start, source, count }
    }
}

/// Places `start..start + count` of a padded axis hold every `stride`-th element from `source` on.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    source: usize,
    count: usize,
}

multiversion! {
    /// Copies a channel to the places of the plane that lie inside the image; the others must be zero already.
    fn fill_plane<F: MulAdd>(plane: &Plane, shape: &ConvShape, channel: &[f32], padded: &mut [f32]) {
        for phase in 0..plane.phases[0] * plane.phases[1] {
            let ys = plane.span(0, phase / plane.phases[1], shape.pad_top, shape.in_height);
            let xs = plane.span(1, phase % plane.phases[1], shape.pad_left, shape.in_width);
            for index in 0..ys.count {
                let start = (phase * plane.rows + ys.start + index) * plane.row_len + xs.start;
                let values = &mut padded[start..start + xs.count];
                let source_row = ys.source + index * plane.phases[0];
                let source = &channel[source_row * shape.in_width..(source_row + 1) * shape.in_width];
                copy_every(source.get(xs.source..).unwrap_or_default(), plane.phases[1], values);
            }
        }
    }
}

/// `values[i] = source[i * stride]`.
#[inline(always)]
fn copy_every(source: &[f32], stride: usize, values: &mut [f32]) {
    match stride {
        1 => values.copy_from_slice(&source[..values.len()]),
        2 => {
            // Whole pairs vectorise; an odd source has one element more.
            let pairs = source.chunks_exact(2);
            if let ([last], Some(value)) = (pairs.remainder(), values.get_mut(source.len() / 2)) {
                *value = *last;
            }
            for (value, pair) in values.iter_mut().zip(pairs) {
                *value = pair[0];
            }
        }
        _ => {
            for (value, source) in values.iter_mut().zip(source.iter().step_by(stride)) {
                *value = *source;
            }
        }
    }
}

/// One output channel of one image.
struct Channel<'a> {
    padded: &'a [f32],
    distances: &'a [usize],
    weights: &'a [f32],
    bias: f32,
    ending: Ending<'a>,
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
            let residual = self.ending.first_residual().map(|residual| &residual[start..]);
            let light = self.ending.light();
            copy_out(isa, strip, self.row_len, self.out_width, residual, light.unwrap_or(Light::NOTHING), target);
            match light {
                None => self.ending.finish_row(isa, start, target),
                Some(_) => {
                    if let Some(residual) = self.ending.last_residual() {
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
