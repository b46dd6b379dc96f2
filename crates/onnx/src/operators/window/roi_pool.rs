//! MaxRoiPool: maxima over the cells of regions whose places only a run knows. Rows and columns of a cell are masks, so that
//! a region of any size has one form; the maximum is taken along columns first, then along rows.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, ReduceFn, UnaryFn};
use precast_tensor::{DType, Dim};

use crate::import::{Fault, NodeCx};

/// Inputs x [N, C, H, W] and regions [R, 5] of (image, x1, y1, x2, y2); output [R, C, pooled height, pooled width]. A cell
/// without a pixel is 0.
pub(super) fn max_roi_pool(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>, Fault> {
    let (x, regions) = (cx.input(0)?, cx.input(1)?);
    if cx.rank(x) != 4 || cx.rank(regions) != 2 {
        return Err(Fault::Invalid("an image of rank 4 and regions of rank 2 were expected".to_string()));
    }
    let pooled = cx.sizes("pooled_shape")?.filter(|sizes| sizes.len() == 2);
    let pooled = pooled.ok_or_else(|| Fault::Invalid("attribute 'pooled_shape' is not two sizes".to_string()))?;
    let scale = cx.float("spatial_scale", 1.0)?;
    let dims = cx.dims(x);
    let image = column(cx, regions, 0)?;
    let image = cx.cast(image, DType::I64)?;
    let image = cx.squeeze(image, &[1])?;
    let own = cx.gather(x, image, 0)?;
    let columns = cells(cx, regions, (1, 3), scale, pooled[1], &dims[3])?;
    let rows = cells(cx, regions, (2, 4), scale, pooled[0], &dims[2])?;
    let across = masked_max(cx, own, &columns, 3)?;
    let turned = cx.transpose(across, vec![0, 1, 3, 2])?;
    let down = masked_max(cx, turned, &rows, 3)?;
    let y = cx.transpose(down, vec![0, 1, 3, 2])?;
    let zero = cx.scalar(cx.dtype(y), 0.0)?;
    let (no_row, no_column) = (cx.unsqueeze(rows.is_empty, &[1, 3])?, cx.unsqueeze(columns.is_empty, &[1, 2])?);
    let is_empty = cx.binary(BinaryFn::Or, no_row, no_column)?;
    Ok(vec![cx.select(is_empty, zero, y)?])
}

/// Which pixels of an axis belong to which cell of a region.
struct Cells {
    /// [regions, cells, pixels].
    mask: ValueId,
    /// [regions, cells].
    is_empty: ValueId,
}

fn column(cx: &mut NodeCx<'_, '_>, regions: ValueId, place: usize) -> Result<ValueId, Fault> {
    cx.slice_axis(regions, 1, Dim::from(place), Dim::ONE)
}

/// A coordinate of every region as a whole pixel; halves go away from 0.
fn pixel(cx: &mut NodeCx<'_, '_>, regions: ValueId, place: usize, scale: f64) -> Result<ValueId, Fault> {
    let coordinate = column(cx, regions, place)?;
    let scaled = cx.binary_scalar(BinaryFn::Mul, coordinate, scale)?;
    let sign = cx.unary(UnaryFn::Sign, scaled)?;
    let size = cx.unary(UnaryFn::Abs, scaled)?;
    let raised = cx.binary_scalar(BinaryFn::Add, size, 0.5)?;
    let whole = cx.unary(UnaryFn::Floor, raised)?;
    cx.binary(BinaryFn::Mul, sign, whole)
}

fn cells(
    cx: &mut NodeCx<'_, '_>,
    regions: ValueId,
    ends: (usize, usize),
    scale: f64,
    count: usize,
    pixels: &Dim,
) -> Result<Cells, Fault> {
    let dtype = cx.dtype(regions);
    let (first, last) = (pixel(cx, regions, ends.0, scale)?, pixel(cx, regions, ends.1, scale)?);
    let length = cx.binary(BinaryFn::Sub, last, first)?;
    let length = cx.binary_scalar(BinaryFn::Add, length, 1.0)?;
    let one = cx.scalar(dtype, 1.0)?;
    let length = cx.binary(BinaryFn::Max, length, one)?;
    let step = cx.binary_scalar(BinaryFn::Div, length, count as f64)?;
    let numbers = cx.iota_as(dtype, Dim::ZERO, Dim::ONE, Dim::from(count))?;
    let next = cx.binary_scalar(BinaryFn::Add, numbers, 1.0)?;
    let (begin, end) = (cx.binary(BinaryFn::Mul, numbers, step)?, cx.binary(BinaryFn::Mul, next, step)?);
    let (begin, end) = (cx.unary(UnaryFn::Floor, begin)?, cx.unary(UnaryFn::Ceil, end)?);
    let (begin, end) = (cx.binary(BinaryFn::Add, begin, first)?, cx.binary(BinaryFn::Add, end, first)?);
    let (begin, end) = (inside(cx, begin, pixels)?, inside(cx, end, pixels)?);
    let is_empty = cx.compare(CompareFn::Le, end, begin)?;
    let places = cx.iota_as(dtype, Dim::ZERO, Dim::ONE, pixels.clone())?;
    let (begin, end) = (cx.unsqueeze(begin, &[2])?, cx.unsqueeze(end, &[2])?);
    let (is_from, is_before) = (cx.compare(CompareFn::Ge, places, begin)?, cx.compare(CompareFn::Lt, places, end)?);
    Ok(Cells { mask: cx.binary(BinaryFn::And, is_from, is_before)?, is_empty })
}

/// A place limited to an axis.
fn inside(cx: &mut NodeCx<'_, '_>, place: ValueId, pixels: &Dim) -> Result<ValueId, Fault> {
    let zero = cx.scalar(cx.dtype(place), 0.0)?;
    let most = cx.dim_value(pixels.clone())?;
    let most = cx.cast(most, cx.dtype(place))?;
    let place = cx.binary(BinaryFn::Max, place, zero)?;
    cx.binary(BinaryFn::Min, place, most)
}

/// The maximum of each cell along the last axis of x [R, C, lines, pixels]: [R, C, lines, cells].
fn masked_max(cx: &mut NodeCx<'_, '_>, x: ValueId, cells: &Cells, axis: usize) -> Result<ValueId, Fault> {
    let mask = cx.unsqueeze(cells.mask, &[1, 2])?;
    let x = cx.unsqueeze(x, &[axis])?;
    let lowest = cx.scalar(cx.dtype(x), f64::NEG_INFINITY)?;
    let own = cx.select(mask, x, lowest)?;
    cx.reduce(ReduceFn::Max, own, vec![axis + 1], false)
}
