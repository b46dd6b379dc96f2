//! CropAndResize of com.microsoft: regions of images, each resized to one size. Every axis has a matrix of weights, two
//! neighbours or the nearest pixel a row, so that a region is resized by two products.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, UnaryFn};
use precast_tensor::Dim;

use crate::import::{Fault, NodeCx};

/// How the pixels of an axis become those of a crop.
struct AxisWeights {
    /// [regions, cropped, pixels].
    weights: ValueId,
    /// Which lie outside of the image: [regions, cropped].
    is_outside: ValueId,
}

/// Inputs x [N, C, H, W], regions [R, 4] of (y1, x1, y2, x2) from 0 to 1, the image of each region, and the size of a crop;
/// output [R, C, cropped height, cropped width].
pub(super) fn crop_and_resize(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>, Fault> {
    let (x, regions, images) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let extrapolation = cx.float("extrapolation_value", 0.0)?;
    let is_nearest = match cx.string("mode", "bilinear")?.as_str() {
        "bilinear" => false,
        "nearest" => true,
        other => {
            return Err(Fault::Invalid(format!("attribute 'mode' is '{other}'; bilinear or nearest was expected")));
        }
    };
    let size = cx.require_ints(cx.input(3)?, "the size of a crop")?;
    let (&[height, width], 4) = (&size[..], cx.rank(x)) else {
        return Err(Fault::Invalid(format!(
            "an image of rank {} and {} sizes; 4 and 2 were expected",
            cx.rank(x),
            size.len()
        )));
    };
    if height < 1 || width < 1 {
        return Err(Fault::Invalid(format!("the size of a crop is {height} by {width}; it must be positive")));
    }
    let dims = cx.dims(x);
    let rows = axis_weights(cx, regions, 0, &dims[2], height, is_nearest)?;
    let columns = axis_weights(cx, regions, 1, &dims[3], width, is_nearest)?;
    let own = cx.gather(x, images, 0)?;
    let row_weights = cx.unsqueeze(rows.weights, &[1])?;
    let column_weights = cx.transpose(columns.weights, vec![0, 2, 1])?;
    let column_weights = cx.unsqueeze(column_weights, &[1])?;
    let resized = cx.matmul(row_weights, own)?;
    let resized = cx.matmul(resized, column_weights)?;
    let (row_outside, column_outside) =
        (cx.unsqueeze(rows.is_outside, &[1, 3])?, cx.unsqueeze(columns.is_outside, &[1, 2])?);
    let is_outside = cx.binary(BinaryFn::Or, row_outside, column_outside)?;
    let extrapolated = cx.scalar(cx.dtype(x), extrapolation)?;
    Ok(vec![cx.select(is_outside, extrapolated, resized)?])
}

/// Weights along an axis whose corners in a region are its columns `first` and `first + 2`. Corners of crop and region
/// fall together; a crop of one pixel has that in the middle.
fn axis_weights(
    cx: &mut NodeCx<'_, '_>,
    regions: ValueId,
    first: usize,
    pixels: &Dim,
    cropped: i64,
    is_nearest: bool,
) -> Result<AxisWeights, Fault> {
    let dtype = cx.dtype(regions);
    let from = cx.slice_axis(regions, 1, Dim::from(first), Dim::ONE)?;
    let to = cx.slice_axis(regions, 1, Dim::from(first + 2), Dim::ONE)?;
    let last = cx.dim_value(pixels - 1)?;
    let last = cx.cast(last, dtype)?;
    let span = cx.binary(BinaryFn::Sub, to, from)?;
    let start = cx.binary(BinaryFn::Mul, from, last)?;
    let length = cx.binary(BinaryFn::Mul, span, last)?;
    let at = if cropped > 1 {
        let step = cx.binary_scalar(BinaryFn::Div, length, (cropped - 1) as f64)?;
        let places = cx.iota_as(dtype, Dim::ZERO, Dim::ONE, Dim::from(cropped))?;
        let moved = cx.binary(BinaryFn::Mul, step, places)?;
        cx.binary(BinaryFn::Add, start, moved)?
    } else {
        let half = cx.binary_scalar(BinaryFn::Mul, length, 0.5)?;
        cx.binary(BinaryFn::Add, start, half)?
    };
    let zero = cx.scalar(dtype, 0.0)?;
    // What is no number lies outside too.
    let (is_after, is_before) = (cx.compare(CompareFn::Ge, at, zero)?, cx.compare(CompareFn::Le, at, last)?);
    let is_inside = cx.binary(BinaryFn::And, is_after, is_before)?;
    let is_outside = cx.unary(UnaryFn::Not, is_inside)?;
    let at = cx.select(is_outside, zero, at)?;
    let at = cx.unsqueeze(at, &[2])?;
    let numbers = cx.iota_as(dtype, Dim::ZERO, Dim::ONE, pixels.clone())?;
    let weights = if is_nearest {
        let moved = cx.unary_with(UnaryFn::Affine, 1.0, 0.5, at)?;
        let nearest = cx.unary(UnaryFn::Floor, moved)?;
        let is_it = cx.compare(CompareFn::Eq, nearest, numbers)?;
        cx.cast(is_it, dtype)?
    } else {
        let apart = cx.binary(BinaryFn::Sub, at, numbers)?;
        let apart = cx.unary(UnaryFn::Abs, apart)?;
        let weights = cx.unary_with(UnaryFn::Affine, -1.0, 1.0, apart)?;
        cx.unary(UnaryFn::Relu, weights)?
    };
    Ok(AxisWeights { weights, is_outside })
}
