//! f32 convolution of NCHW images in two dimensions; one dimension is a height of 1.
//!
//! By default each group of each image is a product: packed filter × patches, with the patches packed from the image a
//! cache block at a time; a 1×1 filter with stride 1 reads the image itself. Depthwise filters have their own kernel,
//! and 3×3 filters may be computed by Winograd's transforms, which round differently.

use crate::arithmetic::Arithmetic;
use crate::conv_depthwise::{conv_depthwise, conv_depthwise_scratch_len, is_depthwise};
use crate::conv_patches::ImagePatches;
use crate::conv_planes::{Distances, PlanePatches, fill_planes, is_plane_form, planes_len};
use crate::conv_winograd::{
    FILTER_VALUES_PER_CYCLE, conv_winograd, is_winograd_form, pack_winograd, winograd_cycles, winograd_filter_len,
    winograd_scratch_len,
};
use crate::conv_winograd_line::{conv_line, is_line_form, line_cycles, line_filter_len, line_scratch_len, pack_line};
use crate::epilogue::{Bias, Epilogue};
use crate::gemm_drive::{Completion, DriveShape, Item, SourceB, drive, drive_scratch_len};
use crate::gemm_pack::{MatrixA, MatrixB, pack_a_into, pack_a_words_into};
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
    pub(crate) fn is_pointwise(&self) -> bool {
        let is_one_tap = self.taps() == 1 && self.stride == [1, 1] && self.pad_top == 0 && self.pad_left == 0;
        is_one_tap && self.in_height == self.out_height && self.in_width == self.out_width
    }

    pub(crate) fn drive_shape(&self, arithmetic: Arithmetic) -> DriveShape {
        DriveShape {
            items: self.batch * self.groups,
            m: self.out_channels / self.groups,
            n: self.out_area(),
            k: self.channels_per_group() * self.taps(),
            c_stride: self.out_area(),
            arithmetic,
        }
    }

    fn check(&self) {
        assert!(self.groups > 0 && self.stride[0] > 0 && self.stride[1] > 0, "{self:?}");
        let is_whole = self.in_channels.is_multiple_of(self.groups) && self.out_channels.is_multiple_of(self.groups);
        assert!(is_whole, "groups that do not divide the channels: {self:?}");
    }
}

/// One way to compute a convolution; it decides the packed form of the filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ConvTactic {
    /// A product of the filter with the patches of the image.
    Product,
    /// The same with both rounded to bf16.
    ProductBf16,
    /// One channel at a time.
    Depthwise,
    /// Winograd's F(2,3): tiles of 4×4 give 2×2 outputs.
    Winograd2,
    /// Winograd's F(4,3): tiles of 6×6 give 4×4 outputs.
    Winograd4,
    /// Winograd's F(4,3) or F(2,5) along lines: tiles of 6 give 4 or 2 outputs.
    WinogradLine,
}

impl ConvTactic {
    /// Every tactic; of two with equal estimates the first is taken.
    pub const ALL: [ConvTactic; 6] = [
        ConvTactic::Product,
        ConvTactic::ProductBf16,
        ConvTactic::Depthwise,
        ConvTactic::Winograd4,
        ConvTactic::Winograd2,
        ConvTactic::WinogradLine,
    ];

    /// The word for it in Programs and tuning records.
    pub fn name(self) -> &'static str {
        match self {
            ConvTactic::Product => "product",
            ConvTactic::ProductBf16 => "product_bf16",
            ConvTactic::Depthwise => "depthwise",
            ConvTactic::Winograd2 => "winograd2",
            ConvTactic::Winograd4 => "winograd4",
            ConvTactic::WinogradLine => "winograd_line",
        }
    }

    /// The tactic of a word.
    pub fn from_name(name: &str) -> Option<ConvTactic> {
        ConvTactic::ALL.into_iter().find(|tactic| tactic.name() == name)
    }

    /// The size of a square Winograd tile.
    fn tile(self) -> Option<usize> {
        match self {
            ConvTactic::Product | ConvTactic::ProductBf16 | ConvTactic::Depthwise | ConvTactic::WinogradLine => None,
            ConvTactic::Winograd2 => Some(4),
            ConvTactic::Winograd4 => Some(6),
        }
    }

    /// How it multiplies.
    fn arithmetic(self) -> Arithmetic {
        if self == ConvTactic::ProductBf16 { Arithmetic::Bf16 } else { Arithmetic::F32 }
    }

    /// How many times the rounding error of a plain sum it may have (specs/compiler.md §10).
    pub fn error_factor(self) -> f64 {
        match self {
            ConvTactic::Product | ConvTactic::Depthwise => 1.0,
            // Each operand is rounded to 8 significant bits instead of 24.
            ConvTactic::ProductBf16 => 131_072.0,
            ConvTactic::Winograd2 => 4.0,
            ConvTactic::Winograd4 | ConvTactic::WinogradLine => 16.0,
        }
    }

    /// Whether a convolution can be computed this way.
    pub fn covers(self, shape: &ConvShape) -> bool {
        match self {
            ConvTactic::Product | ConvTactic::ProductBf16 => !is_depthwise(shape),
            ConvTactic::Depthwise => is_depthwise(shape),
            ConvTactic::Winograd2 | ConvTactic::Winograd4 => is_winograd_form(shape) && !is_depthwise(shape),
            ConvTactic::WinogradLine => is_line_form(shape) && !is_depthwise(shape),
        }
    }
}

/// Winograd is taken when its estimate is below this share of the product's, in hundredths: estimates are rough and its
/// filters are larger.
const WINOGRAD_SHARE: usize = 85;

/// What a tactic may do to the values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Liberty {
    /// Round as the sum is written.
    Strict,
    /// Round differently.
    Rounding,
    /// Also multiply in bf16.
    Bf16,
}

impl Liberty {
    /// Whether a tactic takes no more.
    pub fn allows(self, tactic: ConvTactic) -> bool {
        match self {
            Liberty::Strict => tactic.error_factor() == 1.0,
            Liberty::Rounding => tactic.arithmetic() == Arithmetic::F32,
            Liberty::Bf16 => true,
        }
    }
}

/// The cheapest tactic that is allowed. The batch plays no part, so that Programs for different batches share their packed
/// filters.
pub fn choose_tactic(threads: usize, shape: &ConvShape, liberty: Liberty) -> ConvTactic {
    rank_tactics(threads, shape, liberty)[0]
}

/// Every tactic that covers a convolution and is allowed, the cheapest by estimate first; at least one.
pub fn rank_tactics(threads: usize, shape: &ConvShape, liberty: Liberty) -> Vec<ConvTactic> {
    let is_allowed = |tactic: &ConvTactic| tactic.covers(shape) && liberty.allows(*tactic);
    let mut tactics: Vec<ConvTactic> = ConvTactic::ALL.into_iter().filter(is_allowed).collect();
    tactics.sort_by_key(|tactic| estimate(*tactic, threads, shape));
    tactics
}

/// Cycles of a tactic in hundredths; those of the product are scaled by `WINOGRAD_SHARE`.
fn estimate(tactic: ConvTactic, threads: usize, shape: &ConvShape) -> usize {
    let winograd = |cycles: usize| cycles.saturating_mul(100);
    match tactic {
        ConvTactic::ProductBf16 => estimate(ConvTactic::Product, threads, shape) / 2,
        ConvTactic::Product => {
            let values = shape.taps() * shape.in_channels * (shape.out_channels + PATCH_CYCLES);
            let arithmetic = values * shape.out_area().div_ceil(16) / threads.max(1);
            let filter = shape.taps() * shape.in_channels * shape.out_channels / FILTER_VALUES_PER_CYCLE;
            (arithmetic + filter).saturating_mul(WINOGRAD_SHARE)
        }
        ConvTactic::Depthwise => 0,
        ConvTactic::Winograd2 => winograd(winograd_cycles(4, threads, shape)),
        ConvTactic::Winograd4 => winograd(winograd_cycles(6, threads, shape)),
        ConvTactic::WinogradLine => winograd(line_cycles(threads, shape)),
    }
}

/// Cycles to pack a vector of a patch.
const PATCH_CYCLES: usize = 3;

/// Elements of the form of a filter that `pack_filter` makes.
pub fn packed_filter_len(tactic: ConvTactic, shape: &ConvShape) -> usize {
    match tactic.tile() {
        Some(tile) => winograd_filter_len(tile, shape),
        None if tactic == ConvTactic::WinogradLine => line_filter_len(shape),
        None => shape.out_channels * tactic.arithmetic().steps(shape.channels_per_group() * shape.taps()),
    }
}

/// The form of a filter [out, in / groups, height, width] that `conv` reads. Depends on `isa`, the tactic and the shape
/// of the filter, for Winograd's tiles also on the size of one image.
pub fn pack_filter(isa: Isa, tactic: ConvTactic, shape: &ConvShape, weights: &[f32]) -> Vec<f32> {
    let mut packed = vec![0.0; packed_filter_len(tactic, shape)];
    pack_filter_into(isa, tactic, shape, weights, &mut packed);
    packed
}

/// As `pack_filter`, into `packed_filter_len` elements.
pub fn pack_filter_into(isa: Isa, tactic: ConvTactic, shape: &ConvShape, weights: &[f32], packed: &mut [f32]) {
    shape.check();
    assert_eq!(packed.len(), packed_filter_len(tactic, shape), "elements of the packed filter");
    assert!(tactic.covers(shape), "{tactic:?} for {shape:?}");
    let DriveShape { m, k, .. } = shape.drive_shape(tactic.arithmetic());
    let (channels, taps) = (shape.channels_per_group(), shape.taps());
    assert!(weights.len() >= shape.out_channels * k, "filter of {} for {shape:?}", weights.len());
    let weights = &weights[..shape.out_channels * k];
    if let Some(tile) = tactic.tile() {
        return pack_winograd(isa, tile, shape, weights, packed);
    }
    if tactic == ConvTactic::WinogradLine {
        return pack_line(isa, shape, weights, packed);
    }
    if tactic == ConvTactic::Depthwise || weights.is_empty() {
        return packed.copy_from_slice(weights);
    }
    let mut group_rows = vec![0.0; m * k];
    for (group, packed) in weights.chunks_exact(m * k).zip(packed.chunks_exact_mut(m * tactic.arithmetic().steps(k))) {
        for (row, weights) in group_rows.chunks_exact_mut(k).zip(group.chunks_exact(k)) {
            for (index, weight) in weights.iter().enumerate() {
                let (channel, tap) = (index / taps, index % taps);
                row[tap * channels + channel] = *weight;
            }
        }
        let rows = MatrixA::Rows { data: &group_rows, stride: k };
        match tactic.arithmetic() {
            Arithmetic::F32 => pack_a_into(isa, m, k, rows, packed),
            Arithmetic::Bf16 => pack_a_words_into(isa, m, k, rows, packed),
        }
    }
}

/// Elements of scratch that `conv` needs with a pool of up to this many threads.
pub fn conv_scratch_len(isa: Isa, threads: usize, tactic: ConvTactic, shape: &ConvShape) -> usize {
    shape.check();
    match tactic {
        ConvTactic::Depthwise => conv_depthwise_scratch_len(isa, threads, shape),
        ConvTactic::Product | ConvTactic::ProductBf16 => {
            let planes = if is_plane_form(shape) { planes_len(shape) } else { 0 };
            planes + drive_scratch_len(isa, threads, &shape.drive_shape(tactic.arithmetic()), false, true)
        }
        ConvTactic::Winograd2 => winograd_scratch_len(isa, threads, 4, shape),
        ConvTactic::Winograd4 => winograd_scratch_len(isa, threads, 6, shape),
        ConvTactic::WinogradLine => line_scratch_len(isa, threads, shape),
    }
}

/// y = activation(conv(x, filter) + bias + residual). The bias is `Bias::Rows`, one value for each output channel; the
/// residual is laid out like y. The filter was packed for the same tactic. Panics when a slice is too short.
pub fn conv(
    exec: Exec,
    tactic: ConvTactic,
    shape: &ConvShape,
    x: &[f32],
    filter: &[f32],
    epilogue: &Epilogue,
    scratch: &mut [f32],
    y: &mut [f32],
) {
    shape.check();
    assert!(tactic.covers(shape), "{tactic:?} for {shape:?}");
    let drive_shape = shape.drive_shape(tactic.arithmetic());
    let DriveShape { items, m, n, k, .. } = drive_shape;
    let image_len = shape.channels_per_group() * shape.in_area();
    assert!(x.len() >= items * image_len, "x of {} for {shape:?}", x.len());
    assert!(y.len() >= items * m * n, "y of {} for {shape:?}", y.len());
    assert!(filter.len() >= packed_filter_len(tactic, shape), "filter of {} for {shape:?}", filter.len());
    let bias = epilogue.bias.of_channels();
    if let Some(tile) = tactic.tile() {
        return conv_winograd(exec, tile, shape, x, filter, bias, epilogue, scratch, y);
    }
    if tactic == ConvTactic::WinogradLine {
        return conv_line(exec, shape, x, filter, bias, epilogue, scratch, y);
    }
    if tactic == ConvTactic::Depthwise {
        return conv_depthwise(exec, shape, x, filter, epilogue, scratch, y);
    }
    let completion = Completion { scale: 1.0, epilogue };
    if is_plane_form(shape) {
        let distances = Distances::new(shape);
        let (planes, scratch) = scratch.split_at_mut(planes_len(shape));
        for image in 0..items {
            fill_planes(exec, shape, &x[image * image_len..(image + 1) * image_len], planes);
            let item = |_| Item {
                a: MatrixA::Packed(filter),
                b: SourceB::Planes(PlanePatches::new(shape, planes, &distances)),
                c_start: image * m * n,
                bias: bias.map_or(Bias::None, Bias::Rows),
            };
            drive(exec, &DriveShape { items: 1, ..drive_shape }, &item, false, true, &completion, y, scratch);
        }
        return;
    }
    let steps = tactic.arithmetic().steps(k);
    let item = |index: usize| {
        let group = index % shape.groups;
        let image = &x[index * image_len..(index + 1) * image_len];
        let b = if shape.is_pointwise() {
            SourceB::Matrix(MatrixB::Rows { data: image, stride: n })
        } else {
            SourceB::Image(ImagePatches { shape, image })
        };
        Item {
            a: MatrixA::Packed(&filter[group * m * steps..(group + 1) * m * steps]),
            b,
            c_start: index * m * n,
            bias: bias.map_or(Bias::None, |bias| Bias::Rows(&bias[group * m..(group + 1) * m])),
        }
    };
    drive(exec, &drive_shape, &item, false, true, &completion, y, scratch);
}

#[cfg(test)]
#[path = "conv_tests.rs"]
mod tests;
