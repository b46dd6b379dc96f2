//! Convolutions: as products of windows with filters, depthwise ones directly, transposed ones by gathering.

use std::fmt::Write as _;

use precast_ir::Op;
use precast_ir::op::Conv;
use precast_tensor::{DType, Dim, Tensor};

use crate::kernel::{Lowered, Operand, Vendor};
use crate::ops::epilogue::{Coordinates, Epilogue, Root};
use crate::ops::offsets::common_width;
use crate::ops::product::{Product, Side};
use crate::ops::{conv_depthwise, conv_transpose};
use crate::site::Site;

/// The kernels of a node.
pub fn lower(site: &Site) -> Result<Option<Lowered>, String> {
    lower_root(&Root::alone(site))
}

/// The kernels of a convolution with what follows it.
pub fn lower_root(root: &Root) -> Result<Option<Lowered>, String> {
    match &root.node.op {
        Op::Conv(op) => {
            let Some(sizes) = ConvSizes::of(root, op) else { return Ok(None) };
            if sizes.is_depthwise() {
                return Ok(conv_depthwise::lower(root, &sizes));
            }
            Ok(product(root, &sizes).and_then(|product| product.lower(root.site.arch)))
        }
        Op::ConvTranspose(op) => Ok(conv_transpose::lower(root, op)),
        _ => Ok(None),
    }
}

/// Whether a convolution is better with channels innermost in memory: where matrix instructions read eight at once.
pub fn wants_channels_last(site: &Site) -> bool {
    let is_conv = match site.op() {
        Op::Conv(_) => true,
        Op::Fused(fused) => fused.body.nodes().first().is_some_and(|node| matches!(node.op, Op::Conv(_))),
        _ => false,
    };
    is_conv && site.arch.vendor == Vendor::Cuda && matches!(site.dtype(0), DType::F16 | DType::BF16)
}

/// Sizes of a convolution with three spatial axes; those that are missing come first and have size 1.
#[derive(Clone, Debug)]
pub(crate) struct ConvSizes {
    pub images: usize,
    pub channels: usize,
    pub out_channels: usize,
    pub groups: usize,
    pub input: [usize; 3],
    pub output: [usize; 3],
    pub kernel: [usize; 3],
    pub stride: [usize; 3],
    pub pad: [usize; 3],
    pub dilation: [usize; 3],
    /// Strides of x: image, channel, then space.
    pub x_strides: [usize; 5],
}

/// The windows of a convolution as one operand of a product.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    pub sizes: ConvSizes,
    /// Whether the inner axis runs over channels, then taps.
    pub is_channels_first: bool,
}

/// Three spatial numbers, `missing` in place of those that are not there.
pub(crate) fn space(list: &[usize], missing: usize) -> Option<[usize; 3]> {
    match *list {
        [] => Some([missing; 3]),
        [w] => Some([missing, missing, w]),
        [h, w] => Some([missing, h, w]),
        [d, h, w] => Some([d, h, w]),
        _ => None,
    }
}

/// Image, channel and space of a list over axes.
pub(crate) fn five(list: &[usize]) -> Option<[usize; 5]> {
    let [d, h, w] = space(list.get(2..)?, 0)?;
    Some([list[0], list[1], d, h, w])
}

fn numbers(dims: &[Dim]) -> Option<Vec<usize>> {
    dims.iter().map(Dim::as_usize).collect()
}

/// Elements of an image beyond which offsets would not fit 32 bits.
const IMAGE_MAX: usize = 1 << 30;

impl ConvSizes {
    pub fn of(root: &Root, op: &Conv) -> Option<ConvSizes> {
        let site = root.site;
        let (x, filter, out) = (site.shape(root.input(0)), site.shape(root.input(1)), root.out_shape());
        let sizes = ConvSizes {
            images: x[0],
            channels: x[1],
            out_channels: filter[0],
            groups: op.groups,
            input: space(&x[2..], 1)?,
            output: space(&out[2..], 1)?,
            kernel: space(&filter[2..], 1)?,
            stride: space(&op.stride, 1)?,
            pad: space(&numbers(&op.pad_lo)?, 0)?,
            dilation: space(&op.dilation, 1)?,
            x_strides: five(&site.strides(root.input(0)))?,
        };
        let is_small = x[1..].iter().product::<usize>() < IMAGE_MAX && out[1..].iter().product::<usize>() < IMAGE_MAX;
        is_small.then_some(sizes)
    }

    pub fn is_depthwise(&self) -> bool {
        self.groups == self.channels && self.groups > 1
    }

    pub fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    pub fn is_channels_last(&self) -> bool {
        self.x_strides[1] == 1
    }

    /// Elements of a window that lie together and are inside or outside the image together, in the order taps, channels
    /// where `is_last`, else channels, taps.
    fn window_vec(&self, is_last: bool) -> usize {
        let [n, c, d, h, w] = self.x_strides;
        if is_last {
            return if c == 1 { common_width(8, &[self.channels / self.groups, self.channels]) } else { 1 };
        }
        let across = [self.kernel[2], self.stride[2], self.pad[2], self.input[2], n, c, d, h];
        if w == 1 && self.dilation[2] == 1 { common_width(8, &across) } else { 1 }
    }

    /// The same windows with a tap before them and one behind where that makes elements lie in pairs, and how many taps come
    /// before: an image of few channels, row by row, is read twice as fast. The filter must be zero at the new taps.
    fn with_paired_taps(&self) -> (ConvSizes, usize) {
        let [n, c, d, h, w] = self.x_strides;
        let is_paired = [self.stride[2], self.input[2], n, c, d, h].iter().all(|number| number % 2 == 0);
        if !is_paired || w != 1 || self.dilation[2] != 1 || self.kernel[2] == 1 {
            return (self.clone(), 0);
        }
        let before = self.pad[2] % 2;
        let mut sizes = self.clone();
        sizes.pad[2] += before;
        sizes.kernel[2] = (self.kernel[2] + before).next_multiple_of(2);
        (sizes, before)
    }

    /// Whether a window is one place, and every place has one.
    fn is_pointwise(&self) -> bool {
        self.taps() == 1 && self.stride == [1; 3] && self.pad == [0; 3] && self.input == self.output
    }

    /// What windows are, as constants of a text.
    pub fn kernel_constants(&self) -> String {
        axis_constants("KERNEL", self.kernel) + &axis_constants("DILATION", self.dilation)
    }

    /// Where windows lie, as constants of a text.
    pub fn stride_constants(&self) -> String {
        axis_constants("STRIDE", self.stride) + &axis_constants("PAD", self.pad)
    }

    /// The other numbers as constants of a text.
    pub fn size_constants(&self) -> String {
        let mut text = axis_constants("IN", self.input) + &axis_constants("OUT", self.output);
        let [n, c, d, h, w] = self.x_strides;
        let _ = writeln!(text, "constexpr i64 X_N = {n};");
        let _ = writeln!(text, "constexpr int X_C = {c}, X_D = {d}, X_H = {h}, X_W = {w};");
        let _ = writeln!(text, "constexpr int GROUP_CHANNELS = {};", self.channels / self.groups);
        text
    }
}

fn axis_constants(name: &str, [d, h, w]: [usize; 3]) -> String {
    format!("constexpr int {name}_D = {d}, {name}_H = {h}, {name}_W = {w};\n")
}

/// Where results lie: channels are the columns.
pub(crate) fn coordinates(root: &Root) -> Coordinates {
    Coordinates { shape: root.out_shape(), strides: root.site.out_strides(0), column_axis: 1 }
}

/// The epilogue, with the convolution's own bias first.
pub(crate) fn epilogue(root: &Root, coordinates: &Coordinates) -> Option<Epilogue> {
    let bias = (root.node.inputs.len() > 2).then(|| root.input(2));
    Epilogue::of(root, coordinates, bias)
}

pub(crate) fn product(root: &Root, sizes: &ConvSizes) -> Option<Product> {
    let site = root.site;
    let inputs = [root.input(0), root.input(1)];
    let dtype = site.dtype(inputs[0]);
    if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
        return None;
    }
    let group_channels = sizes.channels / sizes.groups;
    let n = sizes.out_channels / sizes.groups;
    let m = sizes.images * sizes.output.iter().product::<usize>();
    let filter = site.constant(inputs[1]);
    // Where channels of x are neighbours, those of the filter have to be so too; one that is computed stays as it is.
    let is_free = sizes.taps() == 1 || group_channels == 1;
    let is_filter_last = site.strides(inputs[1])[1] == 1;
    let is_last = if filter.is_some() || is_free { sizes.is_channels_last() } else { is_filter_last };
    let is_16_bit = matches!(dtype, DType::F16 | DType::BF16);
    let widens = filter.is_some() && is_16_bit && !is_last;
    let (paired, taps_before) = if widens { sizes.with_paired_taps() } else { (sizes.clone(), 0) };
    let (given, sizes) = (sizes, &paired);
    let k = group_channels * sizes.taps();
    let pitch = if is_16_bit && filter.is_some() { k.next_multiple_of(8) } else { k };
    let mut packed = Vec::new();
    let is_widened = sizes.kernel != given.kernel;
    let b_operand = match filter.filter(|_| pitch != k || is_widened || (is_last != is_filter_last && !is_free)) {
        Some(filter) => {
            let widths = [given.kernel[2], sizes.kernel[2], taps_before];
            packed.push(packed_filter(filter, group_channels, given.taps(), widths, pitch, is_last)?);
            Operand::Packed(0)
        }
        None => Operand::Read(inputs[1] as u32),
    };
    let b = Side::matrix(b_operand, true, common_width(8, &[pitch]), pitch, format!("z * {}", n * pitch));
    let a_operand = Operand::Read(inputs[0] as u32);
    let a_start = format!("z * {}", group_channels * sizes.x_strides[1]);
    let a_vec = sizes.window_vec(is_last);
    let is_matrix = sizes.is_channels_last() && sizes.is_pointwise();
    let mut windows = None;
    let a = if is_matrix {
        Side::matrix(a_operand, true, a_vec, sizes.channels, a_start)
    } else {
        windows = Some(Windows { sizes: sizes.clone(), is_channels_first: !is_last });
        Side { operand: a_operand, is_by_rows: true, vec: a_vec, pitch: 0, start: a_start }
    };
    let coordinates = coordinates(root);
    let epilogue = epilogue(root, &coordinates)?;
    Some(Product {
        kind: if is_matrix { "conv.1x1" } else { "conv" },
        dtype,
        out_dtype: site.out_dtype(0),
        mnk: [m, n, k],
        count: sizes.groups,
        is_grouped: true,
        a,
        b,
        is_b_constant: site.constant(inputs[1]).is_some(),
        b_constant: None,
        b_pitch: pitch,
        is_a_along_k: is_last,
        windows,
        coordinates,
        epilogue,
        packed,
    })
}

/// A filter [O, channels, taps] as rows of `pitch` elements, in the order taps, channels where `is_last`. `widths` says how many
/// taps lie across the filter, how many across the packed one, and how many of these come before the first.
fn packed_filter(
    filter: &Tensor,
    channels: usize,
    taps: usize,
    widths: [usize; 3],
    pitch: usize,
    is_last: bool,
) -> Option<Tensor> {
    let [width, packed_width, before] = widths;
    let packed_taps = taps / width * packed_width;
    let rows = filter.shape()[0];
    // From where an element of a row is taken to where it goes.
    let mut moves = Vec::with_capacity(channels * taps);
    for tap in 0..taps {
        let packed_tap = tap / width * packed_width + before + tap % width;
        moves.extend((0..channels).map(|channel| {
            let to = if is_last { packed_tap * channels + channel } else { channel * packed_taps + packed_tap };
            (channel * taps + tap, to)
        }));
    }
    let bytes = filter.as_bytes();
    let packed = match filter.dtype().size_bytes() {
        2 => packed_rows::<2>(bytes, rows, pitch, &moves),
        4 => packed_rows::<4>(bytes, rows, pitch, &moves),
        8 => packed_rows::<8>(bytes, rows, pitch, &moves),
        _ => return None,
    };
    Tensor::new(filter.dtype(), [rows, pitch], packed.into()).ok()
}

/// Rows of `pitch` elements of so many bytes, zeros but for the elements of the rows of `bytes` that are moved there.
fn packed_rows<const BYTES: usize>(bytes: &[u8], rows: usize, pitch: usize, moves: &[(usize, usize)]) -> Vec<u8> {
    let mut packed = vec![0; rows * pitch * BYTES];
    let sources = bytes.as_chunks::<BYTES>().0.chunks_exact(moves.len().max(1));
    for (from, to) in sources.zip(packed.as_chunks_mut::<BYTES>().0.chunks_exact_mut(pitch.max(1))) {
        moves.iter().for_each(|&(source, target)| to[target] = from[source]);
    }
    packed
}
