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
use crate::pool::{SharedMut, share};
use crate::simd::multiversion;

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

/// Elements of scratch that `conv_depthwise` needs.
pub(crate) fn conv_depthwise_scratch_len(threads: usize, shape: &ConvShape) -> usize {
    threads.max(1) * (plane_len(shape) + strip_len(shape))
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
    let part_scratch = plane_len(shape) + strip_len(shape);
    assert!(scratch.len() >= parts * part_scratch, "scratch of {} for {parts}×{part_scratch}", scratch.len());
    let (y, scratch) = (SharedMut::new(y), SharedMut::new(scratch));
    exec.pool().run(parts, &|part| {
        // SAFETY: every part has its own stretch of the scratch.
        let scratch = unsafe { scratch.slice(part * part_scratch, part_scratch) };
        let (padded, strip) = scratch.split_at_mut(plane_len(shape));
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
                    epilogue,
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
    let is_small = y.len() * taps < SPLIT_PRODUCTS;
    let parts = if is_small { 1 } else { exec.threads().min(planes * multiplier) };
    let (light, y) = (epilogue.light(), SharedMut::new(y));
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
                first_residual: epilogue.first_residual().map(|residual| &residual[index * out_area..][..out_area]),
                light: light.unwrap_or(Light::NOTHING),
                last_residual: (epilogue.last_residual().filter(|_| light.is_some()))
                    .map(|residual| &residual[index * out_area..][..out_area]),
            };
            rows.run(exec.isa(), target);
            if light.is_none() {
                epilogue.finish_row(exec.isa(), index * out_area, target);
            }
        }
    });
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
