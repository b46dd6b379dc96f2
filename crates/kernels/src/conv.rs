//! f32 convolution of NCHW images in two dimensions; one dimension is a height of 1.
//!
//! Each group of each image is a product: packed filter × patches, with the patches packed from the image a cache
//! block at a time. A 1×1 filter with stride 1 reads the image itself. Depthwise filters have their own kernel.

use crate::conv_depthwise::{conv_depthwise, conv_depthwise_scratch_len, is_depthwise};
use crate::conv_patches::ImagePatches;
use crate::epilogue::{Bias, Epilogue};
use crate::gemm_drive::{DriveEpilogue, DriveShape, Item, SourceB, drive, drive_scratch_len};
use crate::gemm_pack::{MatrixA, MatrixB, pack_a};
use crate::isa::{Exec, Isa};

/// The sizes of a convolution. Padding at the bottom and right follows from the output sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ConvShape {
    /// Images.
    pub batch: usize,
    /// Channels of the input, all groups together.
    pub in_channels: usize,
    /// Rows of the input.
    pub in_height: usize,
    /// Columns of the input.
    pub in_width: usize,
    /// Channels of the output, all groups together.
    pub out_channels: usize,
    /// Rows of the output.
    pub out_height: usize,
    /// Columns of the output.
    pub out_width: usize,
    /// Rows of the filter.
    pub filter_height: usize,
    /// Columns of the filter.
    pub filter_width: usize,
    /// From one output pixel's patch to the next, down and across; at least 1.
    pub stride: [usize; 2],
    /// Rows of zeros above the input.
    pub pad_top: usize,
    /// Columns of zeros left of the input.
    pub pad_left: usize,
    /// From one tap of the filter to the next, down and across; at least 1.
    pub dilation: [usize; 2],
    /// Groups of channels that do not mix; divides both channel counts.
    pub groups: usize,
}

impl ConvShape {
    /// Input channels that one output channel sees.
    pub(crate) fn channels_per_group(&self) -> usize {
        self.in_channels / self.groups
    }

    /// Taps of the filter.
    pub(crate) fn taps(&self) -> usize {
        self.filter_height * self.filter_width
    }

    /// Pixels of one output channel.
    pub(crate) fn out_area(&self) -> usize {
        self.out_height * self.out_width
    }

    /// Pixels of one input channel.
    pub(crate) fn in_area(&self) -> usize {
        self.in_height * self.in_width
    }

    /// Whether every patch is one pixel and every pixel is one patch.
    fn is_pointwise(&self) -> bool {
        let is_one_tap = self.taps() == 1 && self.stride == [1, 1] && self.pad_top == 0 && self.pad_left == 0;
        is_one_tap && self.in_height == self.out_height && self.in_width == self.out_width
    }

    fn drive_shape(&self) -> DriveShape {
        DriveShape {
            items: self.batch * self.groups,
            m: self.out_channels / self.groups,
            n: self.out_area(),
            k: self.channels_per_group() * self.taps(),
            c_stride: self.out_area(),
        }
    }

    fn check(&self) {
        assert!(self.groups > 0 && self.stride[0] > 0 && self.stride[1] > 0, "{self:?}");
        let is_whole = self.in_channels.is_multiple_of(self.groups) && self.out_channels.is_multiple_of(self.groups);
        assert!(is_whole, "groups that do not divide the channels: {self:?}");
    }
}

/// The form of a filter [out, in / groups, height, width] that `conv` reads. Depends on `isa` and the shape of the
/// filter only.
pub fn pack_filter(isa: Isa, shape: &ConvShape, weights: &[f32]) -> Vec<f32> {
    shape.check();
    let DriveShape { m, k, .. } = shape.drive_shape();
    let (channels, taps) = (shape.channels_per_group(), shape.taps());
    assert!(weights.len() >= shape.out_channels * k, "filter of {} for {shape:?}", weights.len());
    let weights = &weights[..shape.out_channels * k];
    if is_depthwise(shape) || weights.is_empty() {
        return weights.to_vec();
    }
    let mut packed = Vec::with_capacity(weights.len());
    let mut group_rows = vec![0.0; m * k];
    for group in weights.chunks_exact(m * k) {
        for (row, weights) in group_rows.chunks_exact_mut(k).zip(group.chunks_exact(k)) {
            for (index, weight) in weights.iter().enumerate() {
                let (channel, tap) = (index / taps, index % taps);
                row[tap * channels + channel] = *weight;
            }
        }
        packed.extend(pack_a(isa, m, k, MatrixA::Rows { data: &group_rows, stride: k }));
    }
    packed
}

/// Elements of scratch that `conv` needs with a pool of this many threads.
pub fn conv_scratch_len(isa: Isa, threads: usize, shape: &ConvShape) -> usize {
    shape.check();
    if is_depthwise(shape) {
        conv_depthwise_scratch_len(threads, shape)
    } else {
        drive_scratch_len(isa, threads, &shape.drive_shape(), false, true)
    }
}

/// y = activation(conv(x, filter) + bias + residual). The bias is `Bias::Rows`, one value for each output channel; the
/// residual is laid out like y. Panics when a slice is too short.
pub fn conv(
    exec: Exec,
    shape: &ConvShape,
    x: &[f32],
    filter: &[f32],
    epilogue: &Epilogue,
    scratch: &mut [f32],
    y: &mut [f32],
) {
    shape.check();
    let drive_shape = shape.drive_shape();
    let DriveShape { items, m, n, k, .. } = drive_shape;
    let image_len = shape.channels_per_group() * shape.in_area();
    assert!(x.len() >= items * image_len, "x of {} for {shape:?}", x.len());
    assert!(y.len() >= items * m * n, "y of {} for {shape:?}", y.len());
    assert!(filter.len() >= shape.out_channels * k, "filter of {} for {shape:?}", filter.len());
    let bias = match epilogue.bias {
        Bias::None => None,
        Bias::Rows(bias) => Some(bias),
        Bias::Columns(_) => panic!("the bias of a convolution is one value for each output channel"),
    };
    if is_depthwise(shape) {
        return conv_depthwise(exec, shape, x, filter, bias, epilogue, scratch, y);
    }
    let item = |index: usize| {
        let group = index % shape.groups;
        let image = &x[index * image_len..(index + 1) * image_len];
        let b = if shape.is_pointwise() {
            SourceB::Matrix(MatrixB::Rows { data: image, stride: n })
        } else {
            SourceB::Image(ImagePatches { shape, image })
        };
        Item {
            a: MatrixA::Packed(&filter[group * m * k..(group + 1) * m * k]),
            b,
            c_start: index * m * n,
            bias: bias.map_or(Bias::None, |bias| Bias::Rows(&bias[group * m..(group + 1) * m])),
        }
    };
    let drive_epilogue = DriveEpilogue { scale: 1.0, residual: epilogue.residual, activation: epilogue.activation };
    drive(exec, &drive_shape, &item, false, true, &drive_epilogue, y, scratch);
}

#[cfg(test)]
#[path = "conv_tests.rs"]
mod tests;
