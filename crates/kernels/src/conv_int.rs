//! 8-bit convolution, NCHW, to i32: Σ (x - x_zero)(w - w_zero), exact and wrapping. Padding counts as zero.
//!
//! An image is brought to NHWC, so that a window is a few runs of bytes; windows become the rows of A of an 8-bit
//! matrix product whose B is the weights, packed once. Depthwise convolutions have nothing to share between channels
//! and run directly.

use crate::copy::transpose_bytes;
use crate::gemm_int::{GemmInt, ZeroPoints, drive, gemm_int_scratch_len, pack_b_int, packed_b_int_len};
use crate::isa::Exec;
use crate::pool::SharedMut;
use crate::simd::{multiversion, rows_per_task};

/// Sizes along one dimension.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvIntAxis {
    /// Input positions.
    pub input: usize,
    /// Output positions.
    pub output: usize,
    /// Positions of the window.
    pub kernel: usize,
    /// Input positions between two windows.
    pub stride: usize,
    /// Padding before the first position; what follows the last one is known from the other sizes.
    pub pad: usize,
    /// Input positions between two positions of the window.
    pub dilation: usize,
}

impl ConvIntAxis {
    /// The input position of `tap` in the window of `output`, if it is not padding.
    #[inline(always)]
    fn position(self, output: usize, tap: usize) -> Option<usize> {
        let position = (output * self.stride + tap * self.dilation).checked_sub(self.pad);
        position.filter(|&position| position < self.input)
    }

    /// Whether every window is the one position with the same number.
    fn is_identity(self) -> bool {
        self.kernel == 1 && self.stride == 1 && self.pad == 0 && self.input == self.output
    }
}

/// The sizes of a convolution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvIntShape {
    /// Images.
    pub batch: usize,
    /// Groups that channels are split into.
    pub groups: usize,
    /// Input channels of a group.
    pub in_channels: usize,
    /// Output channels of a group.
    pub out_channels: usize,
    /// Vertical sizes.
    pub height: ConvIntAxis,
    /// Horizontal sizes.
    pub width: ConvIntAxis,
}

impl ConvIntShape {
    /// Products of one output element.
    fn depth(&self) -> usize {
        self.in_channels * self.taps()
    }

    fn taps(&self) -> usize {
        self.height.kernel * self.width.kernel
    }

    fn in_pixels(&self) -> usize {
        self.height.input * self.width.input
    }

    fn out_pixels(&self) -> usize {
        self.height.output * self.width.output
    }

    fn is_depthwise(&self) -> bool {
        self.in_channels == 1 && self.out_channels == 1
    }

    fn reads_pixels_in_place(&self) -> bool {
        self.height.is_identity() && self.width.is_identity()
    }
}

/// What a convolution multiplies.
#[derive(Clone, Copy)]
pub struct ConvInt<'a> {
    /// The sizes.
    pub shape: ConvIntShape,
    /// The images, `[batch, groups · in_channels, height, width]`.
    pub x: &'a [u8],
    /// Whether the bytes of the images are i8.
    pub is_x_signed: bool,
    /// Zero point of the images.
    pub x_zero: i32,
    /// The weights as `pack_conv_int` left them.
    pub packed_w: &'a [u8],
    /// Whether the bytes of the weights were i8.
    pub is_w_signed: bool,
    /// Zero points of the weights: one, or one for each of all output channels.
    pub w_zero: ZeroPoints<'a>,
}

/// Bytes of packed weights.
pub fn packed_conv_int_len(shape: &ConvIntShape) -> usize {
    if shape.is_depthwise() {
        return shape.groups * shape.taps();
    }
    shape.groups * packed_b_int_len(shape.depth(), shape.out_channels)
}

/// Packs weights `[groups · out_channels, in_channels, kernel height, kernel width]`.
pub fn pack_conv_int(shape: &ConvIntShape, w: &[u8], is_signed: bool) -> Vec<u8> {
    assert_eq!(w.len(), shape.groups * shape.out_channels * shape.depth(), "bytes of the weights");
    if shape.is_depthwise() {
        return w.to_vec();
    }
    let (depth, taps) = (shape.depth(), shape.taps());
    let mut packed = Vec::with_capacity(packed_conv_int_len(shape));
    for group in w.chunks_exact((shape.out_channels * depth).max(1)).take(shape.groups) {
        // Channels last, as the windows will be.
        let reordered: Vec<u8> = (0..shape.out_channels * depth)
            .map(|at| {
                let (channel, tap, input) = (at / depth, at % depth / shape.in_channels, at % shape.in_channels);
                group[channel * depth + input * taps + tap]
            })
            .collect();
        packed.extend(pack_b_int(depth, shape.out_channels, &reordered, is_signed, true));
    }
    packed
}

/// Bytes of scratch that `conv_int` needs: an image with channels last, its windows, and those padded to whole dots.
pub fn conv_int_scratch_len(shape: &ConvIntShape, is_x_signed: bool) -> usize {
    if shape.is_depthwise() {
        return 0;
    }
    let windows = if shape.reads_pixels_in_place() { 0 } else { shape.out_pixels() * shape.depth() };
    let padded = gemm_int_scratch_len(shape.out_pixels(), shape.depth(), is_x_signed);
    shape.in_channels * shape.in_pixels() + windows + padded
}

/// Writes the convolution to `[batch, groups · out_channels, height, width]`.
pub fn conv_int(exec: &Exec, conv: &ConvInt, y: &mut [i32], scratch: &mut [u8]) {
    let shape = &conv.shape;
    let (in_plane, out_plane) = (shape.in_pixels(), shape.out_pixels());
    assert_eq!(conv.x.len(), shape.batch * shape.groups * shape.in_channels * in_plane, "bytes of the images");
    assert_eq!(y.len(), shape.batch * shape.groups * shape.out_channels * out_plane, "elements of the result");
    assert_eq!(conv.packed_w.len(), packed_conv_int_len(shape), "bytes of the packed weights");
    if let ZeroPoints::Each(zeros) = conv.w_zero {
        assert_eq!(zeros.len(), shape.groups * shape.out_channels, "zero points of the weights");
    }
    let needed = conv_int_scratch_len(shape, conv.is_x_signed);
    assert!(scratch.len() >= needed, "{} bytes of scratch, expected {needed}", scratch.len());
    if y.is_empty() {
        return;
    }
    if shape.is_depthwise() {
        return run_depthwise(exec, conv, y);
    }
    let packed_len = packed_b_int_len(shape.depth(), shape.out_channels);
    for (index, y) in y.chunks_exact_mut(shape.out_channels * out_plane).enumerate() {
        let group = index % shape.groups;
        let x = &conv.x[index * shape.in_channels * in_plane..][..shape.in_channels * in_plane];
        let channels = group * shape.out_channels..(group + 1) * shape.out_channels;
        let b_zero = match conv.w_zero {
            ZeroPoints::Scalar(zero) => ZeroPoints::Scalar(zero),
            ZeroPoints::Each(zeros) => ZeroPoints::Each(&zeros[channels]),
        };
        let packed_b = &conv.packed_w[group * packed_len..][..packed_len];
        run_group(exec, conv, x, packed_b, b_zero, y, scratch);
    }
}

/// One group of one image.
fn run_group(
    exec: &Exec,
    conv: &ConvInt,
    x: &[u8],
    packed_b: &[u8],
    b_zero: ZeroPoints,
    y: &mut [i32],
    scratch: &mut [u8],
) {
    let shape = &conv.shape;
    let (channels, pixels) = (shape.in_channels, shape.out_pixels());
    let (image, scratch) = scratch.split_at_mut(x.len());
    transpose_bytes(exec, channels, shape.in_pixels(), x, image);
    let (windows, scratch) = if shape.reads_pixels_in_place() {
        (&*image, scratch)
    } else {
        let (windows, scratch) = scratch.split_at_mut(pixels * shape.depth());
        collect_windows(exec, shape, image, conv.x_zero as u8, windows);
        (&*windows, scratch)
    };
    let gemm = GemmInt {
        m: pixels,
        n: shape.out_channels,
        k: shape.depth(),
        a: windows,
        is_a_signed: conv.is_x_signed,
        a_zero: ZeroPoints::Scalar(conv.x_zero),
        packed_b,
        is_b_signed: conv.is_w_signed,
        b_zero,
    };
    let shared = SharedMut::new(y);
    drive(exec, &gemm, scratch, &|pixel, first_channel, values| {
        for (index, &value) in values.iter().enumerate() {
            // SAFETY: `drive` gives each element of the result once.
            let element = unsafe { shared.slice((first_channel + index) * pixels + pixel, 1) };
            element[0] = value;
        }
    });
}

/// One row of `[taps, channels]` for each output pixel; padding is filled with the zero point.
fn collect_windows(exec: &Exec, shape: &ConvIntShape, image: &[u8], zero: u8, windows: &mut [u8]) {
    let ConvIntShape { in_channels: channels, height, width, .. } = *shape;
    let depth = shape.depth();
    if depth == 0 {
        return;
    }
    let pixels_in_task = (64 * 1024_usize).div_ceil(depth);
    exec.pool().chunks_mut(windows, pixels_in_task * depth, |task, windows| {
        for (index, window) in windows.chunks_exact_mut(depth).enumerate() {
            let pixel = task * pixels_in_task + index;
            let (row, column) = (pixel / width.output, pixel % width.output);
            for (tap, run) in window.chunks_exact_mut(channels).enumerate() {
                let position = height.position(row, tap / width.kernel).zip(width.position(column, tap % width.kernel));
                match position {
                    Some((h, w)) => run.copy_from_slice(&image[(h * width.input + w) * channels..][..channels]),
                    None => run.fill(zero),
                }
            }
        }
    });
}

fn run_depthwise(exec: &Exec, conv: &ConvInt, y: &mut [i32]) {
    let shape = conv.shape;
    let (height, width) = (shape.height, shape.width);
    let rows = shape.batch * shape.groups * height.output;
    let rows_in_task = rows_per_task(rows, width.output, shape.taps());
    exec.pool().chunks_mut(y, rows_in_task * width.output, |task, y| {
        for (index, y) in y.chunks_exact_mut(width.output).enumerate() {
            let row = task * rows_in_task + index;
            let plane = row / height.output;
            let channel = plane % shape.groups;
            let x = &conv.x[plane * shape.in_pixels()..][..shape.in_pixels()];
            let w = &conv.packed_w[channel * shape.taps()..][..shape.taps()];
            let w_zero = match conv.w_zero {
                ZeroPoints::Scalar(zero) => zero,
                ZeroPoints::Each(zeros) => zeros[channel],
            };
            y.fill(0);
            for (tap, &weight) in w.iter().enumerate() {
                let Some(h) = height.position(row % height.output, tap / width.kernel) else {
                    continue;
                };
                let weight = widen(weight, conv.is_w_signed).wrapping_sub(w_zero);
                let x = &x[h * width.input..][..width.input];
                add_tap(exec.isa(), width, tap % width.kernel, x, conv.is_x_signed, conv.x_zero, weight, y);
            }
        }
    });
}

#[inline(always)]
fn widen(byte: u8, is_signed: bool) -> i32 {
    if is_signed { i32::from(byte as i8) } else { i32::from(byte) }
}

multiversion! {
    /// Adds one position of the window, times its weight, to every output that it exists for.
    fn add_tap<F: MulAdd>(
        width: ConvIntAxis,
        tap: usize,
        x: &[u8],
        is_signed: bool,
        zero: i32,
        weight: i32,
        y: &mut [i32],
    ) {
        let offset = tap * width.dilation;
        let first = width.pad.saturating_sub(offset).div_ceil(width.stride);
        let end = (width.input + width.pad).saturating_sub(offset).div_ceil(width.stride).min(width.output);
        if first >= end {
            return;
        }
        // A signed byte is an unsigned one, moved by 128.
        let (flip, zero) = if is_signed { (0x80, zero.wrapping_add(128)) } else { (0, zero) };
        let x = &x[first * width.stride + offset - width.pad..];
        let term = |x: u8| i32::from(x ^ flip).wrapping_sub(zero).wrapping_mul(weight);
        if width.stride == 1 {
            for (y, &x) in y[first..end].iter_mut().zip(x) {
                *y = y.wrapping_add(term(x));
            }
        } else {
            for (y, &x) in y[first..end].iter_mut().zip(x.iter().step_by(width.stride)) {
                *y = y.wrapping_add(term(x));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::{Lcg, for_each_exec};

    fn naive(conv: &ConvInt, w: &[u8]) -> Vec<i32> {
        let s = conv.shape;
        let mut result = Vec::new();
        for n in 0..s.batch {
            for channel in 0..s.groups * s.out_channels {
                let group = channel / s.out_channels;
                let w_zero = match conv.w_zero {
                    ZeroPoints::Scalar(zero) => zero,
                    ZeroPoints::Each(zeros) => zeros[channel],
                };
                for pixel in 0..s.out_pixels() {
                    let mut sum = 0_i64;
                    for at in 0..s.depth() {
                        let (c, tap) = (at / s.taps(), at % s.taps());
                        let h = s.height.position(pixel / s.width.output, tap / s.width.kernel);
                        let w_position = s.width.position(pixel % s.width.output, tap % s.width.kernel);
                        let Some((h, x)) = h.zip(w_position) else {
                            continue;
                        };
                        let plane = (n * s.groups + group) * s.in_channels + c;
                        let x = conv.x[plane * s.in_pixels() + h * s.width.input + x];
                        let weight = i64::from(widen(w[channel * s.depth() + at], conv.is_w_signed) - w_zero);
                        sum += i64::from(widen(x, conv.is_x_signed) - conv.x_zero) * weight;
                    }
                    result.push(sum as i32);
                }
            }
        }
        result
    }

    #[test]
    fn random_convolutions_equal_plain_loops() {
        let mut lcg = Lcg::new(81);
        for round in 0..60 {
            let mut axis = |input: usize| {
                let kernel = 1 + lcg.below(3);
                let (stride, dilation) = (1 + lcg.below(2), 1 + lcg.below(2));
                let pad = lcg.below(kernel);
                let span = (kernel - 1) * dilation + 1;
                let output = (input + 2 * pad).saturating_sub(span) / stride + 1;
                ConvIntAxis { input, output, kernel, stride, pad, dilation }
            };
            let (mut height, mut width) = (axis(5 + round % 4), axis(6 + round % 5));
            if round % 6 == 0 {
                let point = |axis: ConvIntAxis| ConvIntAxis {
                    output: axis.input,
                    kernel: 1,
                    stride: 1,
                    pad: 0,
                    dilation: 1,
                    ..axis
                };
                (height, width) = (point(height), point(width));
            }
            let is_depthwise = round % 5 == 0;
            let shape = ConvIntShape {
                batch: 1 + round % 2,
                groups: 1 + lcg.below(3),
                in_channels: if is_depthwise { 1 } else { 1 + lcg.below(20) },
                out_channels: if is_depthwise { 1 } else { 1 + lcg.below(70) },
                height,
                width,
            };
            let x = lcg.bytes(shape.batch * shape.groups * shape.in_channels * shape.in_pixels());
            let w = lcg.bytes(shape.groups * shape.out_channels * shape.depth());
            let (is_x_signed, is_w_signed) = (round % 2 == 1, round % 3 != 1);
            let packed_w = pack_conv_int(&shape, &w, is_w_signed);
            let zeros: Vec<i32> = (0..shape.groups * shape.out_channels).map(|_| lcg.below(20) as i32).collect();
            let w_zero = if round % 4 == 0 { ZeroPoints::Each(&zeros) } else { ZeroPoints::Scalar(0) };
            let x_zero = lcg.below(100) as i32;
            let conv = ConvInt { shape, x: &x, is_x_signed, x_zero, packed_w: &packed_w, is_w_signed, w_zero };
            let expected = naive(&conv, &w);
            for_each_exec(|exec| {
                let mut y = vec![7; expected.len()];
                let mut scratch = vec![0x33; conv_int_scratch_len(&shape, is_x_signed)];
                conv_int(exec, &conv, &mut y, &mut scratch);
                assert_eq!(y, expected, "{shape:?}");
            });
        }
    }
}
