//! What undoes windows and places samples: MaxUnpool, Col2Im and AffineGrid, all composed of other ops.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, ConvTranspose, Iota, ScatterElements, ScatterFn};
use precast_tensor::{DType, Dim};

use super::{Outputs, spatial_dims};
use crate::import::{Fault, NodeCx};
use crate::operators::sliding::Sliding;

/// Zeros with the elements of x at the flat indices that MaxPool gave.
pub(super) fn max_unpool(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, indices) = (cx.input(0)?, cx.input(1)?);
    let spatial = spatial_dims(cx, x)?;
    let window =
        cx.sizes("kernel_shape")?.ok_or_else(|| Fault::Invalid("attribute 'kernel_shape' is missing".to_string()))?;
    let sliding = Sliding::read_explicit(cx, spatial.len(), window)?;
    let mut shape = cx.dims(x)[..2].to_vec();
    for (axis, size) in spatial.iter().enumerate() {
        let pads = &sliding.pad_lo[axis] + &sliding.pad_hi[axis];
        shape.push((size - 1) * Dim::from(sliding.stride[axis]) - pads + sliding.extent(axis));
    }
    let zero = cx.scalar(cx.dtype(x), 0.0)?;
    let zeros = cx.broadcast(zero, vec![shape.iter().product()])?;
    let count: Dim = cx.dims(x).iter().product();
    let (flat_x, flat_indices) = (cx.reshape(x, vec![count.clone()])?, cx.reshape(indices, vec![count])?);
    let filled = cx.add(ScatterElements { func: ScatterFn::Replace, axis: 0 }, &[zeros, flat_indices, flat_x])?;
    let y = cx.reshape(filled, shape.clone())?;
    let Some(wanted) = cx.optional(2) else {
        return Ok(vec![y]);
    };
    // Indices count in the natural shape; a larger output has zeros after it.
    let wanted = cx.require_dims(wanted, "output_shape")?;
    if wanted.len() != shape.len() {
        return Err(Fault::Invalid(format!(
            "output_shape has {} elements; {} were expected",
            wanted.len(),
            shape.len()
        )));
    }
    let hi: Vec<Dim> = wanted.iter().zip(&shape).map(|(wanted, size)| wanted - size).collect();
    Ok(vec![cx.pad_end(y, hi, 0.0)?])
}

/// Blocks added up to an image: the transposed convolution of each block element with a filter that is 1 at its place.
pub(super) fn col2im(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let image = cx.require_dims(cx.input(1)?, "image_shape")?;
    let block: Vec<usize> = cx
        .require_ints(cx.input(2)?, "block_shape")?
        .into_iter()
        .map(|size| usize::try_from(size).map_err(|_| Fault::Invalid(format!("block_shape has the size {size}"))))
        .collect::<Result<_, _>>()?;
    let sliding = Sliding::read(cx, &image, block.clone())?;
    let [batch, columns, _] = &cx.dims(x)[..] else {
        return Err(Fault::Invalid(format!("the input has rank {}; 3 was expected", cx.rank(x))));
    };
    let places: usize = block.iter().product();
    let channels = columns.floor_div(&Dim::from(places));
    let windows = sliding.output(&image, false);
    let images = batch * &channels;
    let mut shape = vec![images, Dim::from(places)];
    shape.extend(windows.clone());
    let blocks = cx.reshape(x, shape)?;
    let mut elements = vec![0.0; places * places];
    for place in 0..places {
        elements[place * places + place] = 1.0;
    }
    let filter_shape: Vec<usize> = [places, 1].into_iter().chain(block).collect();
    let filter = cx.float_tensor(cx.dtype(x), filter_shape, &elements)?;
    let mut output_pad = Vec::new();
    for (axis, size) in image.iter().enumerate() {
        let covered = (&windows[axis] - 1) * Dim::from(sliding.stride[axis]) + sliding.extent(axis);
        let rest = size + &sliding.pad_lo[axis] + &sliding.pad_hi[axis] - covered;
        output_pad.push(cx.number(&rest, "the part of an image that no block reaches")?);
    }
    let Sliding { stride, pad_lo, pad_hi, dilation, .. } = sliding;
    let op = ConvTranspose { stride, pad_lo, pad_hi, output_pad, dilation, groups: 1 };
    let y = cx.add(op, &[blocks, filter])?;
    let mut shape = vec![batch.clone(), channels];
    shape.extend(image);
    Ok(vec![cx.reshape(y, shape)?])
}

/// The grid of an affine map: every output position in -1..1, with a 1 beside it, times theta.
pub(super) fn affine_grid(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let theta = cx.input(0)?;
    let align_corners = cx.flag("align_corners", false)?;
    let size = cx.require_dims(cx.input(1)?, "size")?;
    let rank = size.len().saturating_sub(2);
    if !(2..=3).contains(&rank) {
        return Err(Fault::Invalid(format!("size has {} elements; 4 or 5 were expected", size.len())));
    }
    let spatial = &size[2..];
    let dtype = cx.dtype(theta);
    // The last axis comes first: x, then y, then z.
    let mut parts = Vec::new();
    for axis in (0..rank).rev() {
        let places = add_places(cx, &spatial[axis], align_corners, dtype)?;
        let mut shape = vec![Dim::ONE; rank + 1];
        shape[axis] = spatial[axis].clone();
        let places = cx.reshape(places, shape)?;
        let mut whole = spatial.to_vec();
        whole.push(Dim::ONE);
        parts.push(cx.broadcast(places, whole)?);
    }
    let one = cx.scalar(dtype, 1.0)?;
    let mut whole = spatial.to_vec();
    whole.push(Dim::ONE);
    parts.push(cx.broadcast(one, whole)?);
    let points = cx.concat(&parts, rank)?;
    let points = cx.reshape(points, vec![spatial.iter().product(), Dim::from(rank + 1)])?;
    let theta = cx.transpose(theta, vec![0, 2, 1])?;
    let grid = cx.matmul(points, theta)?;
    let mut shape = vec![size[0].clone()];
    shape.extend(spatial.iter().cloned());
    shape.push(Dim::from(rank));
    Ok(vec![cx.reshape(grid, shape)?])
}

/// Positions of an axis in -1..1: centres of its elements, or from the first to the last with `align_corners`.
fn add_places(cx: &mut NodeCx<'_, '_>, size: &Dim, align_corners: bool, dtype: DType) -> Result<ValueId, Fault> {
    let count = cx.dim_value(if align_corners { size - 1 } else { size.clone() })?;
    let count = cx.cast(count, dtype)?;
    // 2 i over n - 1, or 2 i + 1 over n.
    let start = Dim::from(if align_corners { 0 } else { 1 });
    let steps = cx.add(Iota { to: DType::I64, start, step: Dim::from(2), length: size.clone() }, &[])?;
    let steps = cx.cast(steps, dtype)?;
    let fractions = cx.binary(BinaryFn::Div, steps, count)?;
    cx.binary_scalar(BinaryFn::Sub, fractions, 1.0)
}
