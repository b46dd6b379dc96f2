//! A channel of an image with its padding, split by the phases of the stride: a tap of the filter is then a constant distance
//! for every output pixel.

use crate::conv::ConvShape;
use crate::simd::multiversion;
use std::ops::Range;

/// The most taps; their distances are kept on the stack, and one sum takes them all (specs/compiler.md §10).
pub(crate) const TAPS_MAX: usize = 128;

/// A padded channel: for each phase of the strides, the rows and columns of that phase.
#[derive(Clone, Copy)]
pub(crate) struct Plane {
    /// Rows of a phase.
    pub rows: usize,
    /// From one row to the next.
    pub row_len: usize,
    /// Phases down and across.
    pub phases: [usize; 2],
}

impl Plane {
    pub(crate) fn of(shape: &ConvShape) -> Plane {
        let reach = |taps: usize, axis: usize| taps.saturating_sub(1) * shape.dilation[axis] / shape.stride[axis];
        Plane {
            rows: shape.out_height + reach(shape.filter_height, 0),
            row_len: shape.out_width + reach(shape.filter_width, 1),
            phases: shape.stride,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.phases[0] * self.phases[1] * self.rows * self.row_len
    }

    /// From an output pixel's place in the plane to the source of each tap.
    pub(crate) fn distances(&self, shape: &ConvShape) -> [usize; TAPS_MAX] {
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

impl Plane {
    /// Where rows of one phase lie in the plane.
    pub(crate) fn places(&self, phase: usize, rows: &Range<usize>) -> Range<usize> {
        (phase * self.rows + rows.start) * self.row_len..(phase * self.rows + rows.end) * self.row_len
    }
}

multiversion! {
    /// Copies a channel to the places of the plane that lie inside the image; the others must be zero already.
    pub(crate) fn fill_plane<F: MulAdd>(plane: &Plane, shape: &ConvShape, channel: &[f32], padded: &mut [f32]) {
        for phase in 0..plane.phases[0] * plane.phases[1] {
            let ys = plane.span(0, phase / plane.phases[1], shape.pad_top, shape.in_height);
            let xs = plane.span(1, phase % plane.phases[1], shape.pad_left, shape.in_width);
            for index in 0..ys.count {
                let start = (phase * plane.rows + ys.start + index) * plane.row_len + xs.start;
                copy_row(plane, shape, channel, ys.source + index * plane.phases[0], xs, &mut padded[start..]);
            }
        }
    }

    /// Copies a channel to some rows of one phase, and zeros to what of them lies outside the image.
    pub(crate) fn fill_rows<F: MulAdd>(
        plane: &Plane,
        shape: &ConvShape,
        channel: &[f32],
        phase: usize,
        rows: Range<usize>,
        padded: &mut [f32],
    ) {
        let ys = plane.span(0, phase / plane.phases[1], shape.pad_top, shape.in_height);
        let xs = plane.span(1, phase % plane.phases[1], shape.pad_left, shape.in_width);
        for (row, values) in rows.zip(padded.chunks_exact_mut(plane.row_len.max(1))) {
            let index = row.checked_sub(ys.start).filter(|index| *index < ys.count);
            let Some(index) = index else {
                values.fill(0.0);
                continue;
            };
            values[..xs.start].fill(0.0);
            values[xs.start + xs.count..].fill(0.0);
            copy_row(plane, shape, channel, ys.source + index * plane.phases[0], xs, &mut values[xs.start..]);
        }
    }
}

/// Copies the pixels of one phase of a row of the image.
#[inline(always)]
fn copy_row(plane: &Plane, shape: &ConvShape, channel: &[f32], row: usize, xs: Span, values: &mut [f32]) {
    let source = &channel[row * shape.in_width..(row + 1) * shape.in_width];
    copy_every(source.get(xs.source..).unwrap_or_default(), plane.phases[1], &mut values[..xs.count]);
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
