//! Pooling, and sampling of images at given places. Resizing and what undoes pooling have files of their own.

mod crop;
mod deform;
mod resize;
mod roi_pool;
mod unpool;

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, GridPad, GridSample, Pool, PoolFn, PoolIndices, ReduceFn, ResizeFn, RoiAlign, UnaryFn};
use precast_tensor::Dim;

use super::channels::{channels_first, channels_last};
use super::sliding::Sliding;
use crate::import::{Fault, Import, NodeCx};

#[rustfmt::skip]
pub(super) const IMPORTS: &[Import] = &[
    Import { domain: "", name: "AffineGrid", since: 20, tier: 2, function: unpool::affine_grid },
    Import { domain: "", name: "AveragePool", since: 7, tier: 1, function: average_pool },
    Import { domain: "", name: "Col2Im", since: 18, tier: 2, function: unpool::col2im },
    Import { domain: "", name: "DeformConv", since: 19, tier: 2, function: deform::deform_conv },
    Import { domain: "", name: "GlobalAveragePool", since: 1, tier: 1, function: global_average_pool },
    Import { domain: "", name: "GlobalLpPool", since: 2, tier: 2, function: global_lp_pool },
    Import { domain: "", name: "GlobalMaxPool", since: 1, tier: 1, function: global_max_pool },
    Import { domain: "", name: "GridSample", since: 16, tier: 1, function: grid_sample },
    Import { domain: "", name: "LpPool", since: 2, tier: 2, function: lp_pool },
    Import { domain: "", name: "MaxPool", since: 1, tier: 1, function: max_pool },
    Import { domain: "", name: "MaxRoiPool", since: 1, tier: 2, function: roi_pool::max_roi_pool },
    Import { domain: "", name: "MaxUnpool", since: 9, tier: 2, function: unpool::max_unpool },
    Import { domain: "", name: "Resize", since: 10, tier: 1, function: resize::resize_10 },
    Import { domain: "", name: "Resize", since: 11, tier: 1, function: resize::resize_11 },
    Import { domain: "", name: "RoiAlign", since: 10, tier: 1, function: roi_align_10 },
    Import { domain: "", name: "RoiAlign", since: 16, tier: 1, function: roi_align_16 },
    Import { domain: "", name: "Upsample", since: 7, tier: 1, function: resize::upsample_7 },
    Import { domain: "", name: "Upsample", since: 9, tier: 1, function: resize::resize_10 },
    Import { domain: "com.microsoft", name: "CropAndResize", since: 1, tier: 2, function: crop::crop_and_resize },
    Import { domain: "com.microsoft", name: "GridSample", since: 1, tier: 2, function: grid_sample },
    Import { domain: "com.microsoft", name: "NhwcMaxPool", since: 1, tier: 1, function: nhwc_max_pool },
];

type Outputs = Result<Vec<ValueId>, Fault>;

/// Maxima and, where wanted, their places in the whole input.
fn max_pool(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let column_major = cx.flag("storage_order", false)?;
    let (sliding, output) = read_pool(cx, x)?;
    let y = add_pool(cx, x, PoolFn::Max, &sliding, &output, false, 0)?;
    if !cx.is_wanted(1) {
        return Ok(vec![y]);
    }
    let Sliding { window, stride, pad_lo, pad_hi, dilation } = sliding;
    let indices = cx.add(PoolIndices { window, stride, pad_lo, pad_hi, dilation, output, column_major }, &[x])?;
    Ok(vec![y, indices])
}

/// MaxPool of x [N, spatial.., C].
fn nhwc_max_pool(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let x = channels_first(cx, x)?;
    let (sliding, output) = read_pool(cx, x)?;
    let y = add_pool(cx, x, PoolFn::Max, &sliding, &output, false, 0)?;
    Ok(vec![channels_last(cx, y)?])
}

pub(super) fn average_pool(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    Ok(vec![average_pool_of(cx, x)?])
}

/// Means of the windows that the node's attributes give.
pub(super) fn average_pool_of(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId, Fault> {
    let count_pad = cx.flag("count_include_pad", false)?;
    let (sliding, output) = read_pool(cx, x)?;
    add_pool(cx, x, PoolFn::Avg, &sliding, &output, count_pad, 0)
}

fn lp_pool(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let p = read_exponent(cx)?;
    let (sliding, output) = read_pool(cx, x)?;
    Ok(vec![add_pool(cx, x, PoolFn::Lp, &sliding, &output, false, p)?])
}

fn read_exponent(cx: &NodeCx<'_, '_>) -> Result<i64, Fault> {
    match cx.int("p", 2)? {
        p if p >= 1 => Ok(p),
        p => Err(Fault::Invalid(format!("attribute 'p' is {p}; 1 or more was expected"))),
    }
}

/// How a pool's window slides and how many windows there are. The clipping that ONNX describes for `ceil_mode` from opset
/// 19 on is what ONNX Runtime does for all of them.
fn read_pool(cx: &NodeCx<'_, '_>, x: ValueId) -> Result<(Sliding, Vec<Dim>), Fault> {
    let spatial = spatial_dims(cx, x)?;
    let window =
        cx.sizes("kernel_shape")?.ok_or_else(|| Fault::Invalid("attribute 'kernel_shape' is missing".to_string()))?;
    let ceil = cx.flag("ceil_mode", false)?;
    let sliding = Sliding::read(cx, &spatial, window)?;
    let output = sliding.output(&spatial, ceil);
    Ok((sliding, output))
}

fn add_pool(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    func: PoolFn,
    sliding: &Sliding,
    output: &[Dim],
    count_pad: bool,
    p: i64,
) -> Result<ValueId, Fault> {
    let Sliding { window, stride, pad_lo, pad_hi, dilation } = sliding.clone();
    cx.add(Pool { func, window, stride, pad_lo, pad_hi, dilation, output: output.to_vec(), count_pad, p }, &[x])
}

fn spatial_dims(cx: &NodeCx<'_, '_>, x: ValueId) -> Result<Vec<Dim>, Fault> {
    let dims = cx.dims(x);
    if dims.len() < 3 {
        return Err(Fault::Invalid(format!("the input has rank {}; 3 or more was expected", dims.len())));
    }
    Ok(dims[2..].to_vec())
}

fn global_average_pool(cx: &mut NodeCx<'_, '_>) -> Outputs {
    reduce_spatial(cx, ReduceFn::Mean)
}

fn global_max_pool(cx: &mut NodeCx<'_, '_>) -> Outputs {
    reduce_spatial(cx, ReduceFn::Max)
}

/// (sum of |x|^p) ^ (1/p) over all spatial axes.
fn global_lp_pool(cx: &mut NodeCx<'_, '_>) -> Outputs {
    match read_exponent(cx)? {
        1 => reduce_spatial(cx, ReduceFn::L1),
        2 => reduce_spatial(cx, ReduceFn::L2),
        p => {
            let x = cx.input(0)?;
            let axes = spatial_axes(cx, x)?;
            let sizes = cx.unary(UnaryFn::Abs, x)?;
            let powers = cx.binary_scalar(BinaryFn::Pow, sizes, p as f64)?;
            let sum = cx.reduce(ReduceFn::Sum, powers, axes, true)?;
            Ok(vec![cx.binary_scalar(BinaryFn::Pow, sum, 1.0 / p as f64)?])
        }
    }
}

fn reduce_spatial(cx: &mut NodeCx<'_, '_>, func: ReduceFn) -> Outputs {
    let x = cx.input(0)?;
    let axes = spatial_axes(cx, x)?;
    Ok(vec![cx.reduce(func, x, axes, true)?])
}

fn spatial_axes(cx: &NodeCx<'_, '_>, x: ValueId) -> Result<Vec<usize>, Fault> {
    spatial_dims(cx, x).map(|spatial| (2..2 + spatial.len()).collect())
}

/// Before opset 16 regions are not moved by half a pixel.
fn roi_align_10(cx: &mut NodeCx<'_, '_>) -> Outputs {
    add_roi_align(cx, false)
}

fn roi_align_16(cx: &mut NodeCx<'_, '_>) -> Outputs {
    match cx.string("coordinate_transformation_mode", "half_pixel")?.as_str() {
        "half_pixel" => add_roi_align(cx, true),
        "output_half_pixel" => add_roi_align(cx, false),
        other => Err(Fault::Invalid(format!("attribute 'coordinate_transformation_mode' cannot be '{other}'"))),
    }
}

fn add_roi_align(cx: &mut NodeCx<'_, '_>, half_pixel: bool) -> Outputs {
    let (x, rois, batches) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let func = match cx.string("mode", "avg")?.as_str() {
        "avg" => PoolFn::Avg,
        "max" => PoolFn::Max,
        other => return Err(Fault::Invalid(format!("attribute 'mode' cannot be '{other}'"))),
    };
    let size = |name: &str, default: i64| {
        let number = cx.int(name, default)?;
        usize::try_from(number)
            .map_err(|_| Fault::Invalid(format!("attribute '{name}' is {number}; 0 or more was expected")))
    };
    let op = RoiAlign {
        func,
        output_height: size("output_height", 1)?,
        output_width: size("output_width", 1)?,
        sampling_ratio: size("sampling_ratio", 0)?,
        spatial_scale: cx.float("spatial_scale", 1.0)?,
        half_pixel,
    };
    Ok(vec![cx.add(op, &[x, rois, batches])?])
}

/// Opset 16 says bilinear and bicubic, opset 20 linear and cubic, for the same interpolations.
fn grid_sample(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, grid) = (cx.input(0)?, cx.input(1)?);
    let func = match cx.string("mode", "linear")?.as_str() {
        "bilinear" | "linear" => ResizeFn::Linear,
        "bicubic" | "cubic" => ResizeFn::Cubic,
        "nearest" => ResizeFn::Nearest,
        other => return Err(Fault::Invalid(format!("attribute 'mode' cannot be '{other}'"))),
    };
    let padding = match cx.string("padding_mode", "zeros")?.as_str() {
        "zeros" => GridPad::Zeros,
        "border" => GridPad::Border,
        "reflection" => GridPad::Reflection,
        other => return Err(Fault::Invalid(format!("attribute 'padding_mode' cannot be '{other}'"))),
    };
    let align_corners = cx.flag("align_corners", false)?;
    let grid = cx.cast(grid, cx.dtype(x))?;
    Ok(vec![cx.add(GridSample { func, padding, align_corners }, &[x, grid])?])
}
