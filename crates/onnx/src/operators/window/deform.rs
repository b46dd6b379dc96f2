//! DeformConv: every tap of the window reads the image where an offset moves it to. One `grid_sample` reads all taps,
//! then a matrix product a group sums them.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, GridPad, GridSample, ResizeFn};
use precast_tensor::{DType, Dim, Tensor};

use super::Outputs;
use crate::import::{Fault, NodeCx};
use crate::operators::sliding::Sliding;

/// What the attributes and Types of one node say.
struct Deformed {
    dtype: DType,
    batch: Dim,
    channels: i64,
    spatial: Vec<Dim>,
    output: Vec<Dim>,
    sliding: Sliding,
    groups: i64,
    offset_groups: i64,
}

impl Deformed {
    fn taps(&self) -> i64 {
        self.sliding.window.iter().map(|&size| size as i64).product()
    }

    /// Samples and their offset groups as one axis.
    fn images(&self) -> Dim {
        &self.batch * &Dim::from(self.offset_groups)
    }

    /// The outputs of all taps as one image: taps lie along the first spatial axis.
    fn tiled(&self) -> Vec<Dim> {
        let mut tiled = self.output.clone();
        tiled[0] = &tiled[0] * &Dim::from(self.taps());
        tiled
    }
}

pub(super) fn deform_conv(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let deformed = read(cx)?;
    let grid = sampling_grid(cx, &deformed)?;
    let mut image = vec![deformed.images(), Dim::from(deformed.channels / deformed.offset_groups)];
    image.extend(deformed.spatial.iter().cloned());
    let x = cx.input(0)?;
    let x = cx.cast(x, deformed.dtype)?;
    let x = cx.reshape(x, image)?;
    let op = GridSample { func: ResizeFn::Linear, padding: GridPad::Zeros, align_corners: false };
    let mut read = cx.add(op, &[x, grid])?;
    if let Some(mask) = cx.optional(4) {
        let mut shape = vec![deformed.images(), Dim::ONE];
        shape.extend(deformed.tiled());
        let mask = cx.cast(mask, deformed.dtype)?;
        let mask = cx.reshape(mask, shape)?;
        read = cx.binary(BinaryFn::Mul, read, mask)?;
    }
    Ok(vec![sum_taps(cx, &deformed, read)?])
}

fn read(cx: &NodeCx<'_, '_>) -> Result<Deformed, Fault> {
    let (x, filter) = (cx.input(0)?, cx.input(1)?);
    let (x_dims, filter_dims) = (cx.dims(x), cx.dims(filter));
    if x_dims.len() < 3 || filter_dims.len() != x_dims.len() {
        return Err(Fault::Invalid(format!("the input is {} and the filter {}", cx.ty(x), cx.ty(filter))));
    }
    let window = filter_dims[2..].iter().map(|dim| cx.number(dim, "the window")).collect::<Result<Vec<_>, _>>()?;
    if let Some(declared) = cx.sizes("kernel_shape")?
        && declared != window
    {
        return Err(Fault::Invalid(format!("attribute 'kernel_shape' is {declared:?}; the filter has {window:?}")));
    }
    let spatial = x_dims[2..].to_vec();
    let sliding = Sliding::read_explicit(cx, spatial.len(), window)?;
    let channels = cx.number(&x_dims[1], "the number of channels")? as i64;
    let (groups, offset_groups) = (cx.int("group", 1)?, cx.int("offset_group", 1)?);
    for (name, count) in [("group", groups), ("offset_group", offset_groups)] {
        if count < 1 || channels % count != 0 {
            return Err(Fault::Invalid(format!("attribute '{name}' is {count} for {channels} channels")));
        }
    }
    // Coordinates need more digits than half a float has.
    let dtype = if cx.dtype(x) == DType::F64 { DType::F64 } else { DType::F32 };
    let output = sliding.output(&spatial, false);
    Ok(Deformed { dtype, batch: x_dims[0].clone(), channels, spatial, output, sliding, groups, offset_groups })
}

/// Normalised coordinates [N * offset groups, taps * o1, o2, .., spatial rank], the last axis of the image first.
fn sampling_grid(cx: &mut NodeCx<'_, '_>, deformed: &Deformed) -> Result<ValueId, Fault> {
    let rank = deformed.spatial.len();
    let offset = cx.input(2)?;
    let offset = cx.cast(offset, deformed.dtype)?;
    let mut shape = vec![deformed.images(), Dim::from(deformed.taps()), Dim::from(rank)];
    shape.extend(deformed.output.iter().cloned());
    let offset = cx.reshape(offset, shape)?;
    let mut coordinates = Vec::new();
    for axis in (0..rank).rev() {
        let moved = cx.slice_axis(offset, 2, Dim::from(axis), Dim::ONE)?;
        let moved = cx.squeeze(moved, &[2])?;
        let place = place_of_taps(cx, deformed, axis)?;
        let place = cx.binary(BinaryFn::Add, moved, place)?;
        // Pixel i has its centre at (2 i + 1) / size - 1.
        let size = cx.dim_value(deformed.spatial[axis].clone())?;
        let size = cx.cast(size, deformed.dtype)?;
        let doubled = cx.binary_scalar(BinaryFn::Mul, place, 2.0)?;
        let centre = cx.binary_scalar(BinaryFn::Add, doubled, 1.0)?;
        let scaled = cx.binary(BinaryFn::Div, centre, size)?;
        let normal = cx.binary_scalar(BinaryFn::Sub, scaled, 1.0)?;
        coordinates.push(cx.unsqueeze(normal, &[rank + 2])?);
    }
    let grid = cx.concat(&coordinates, rank + 2)?;
    let mut shape = vec![deformed.images()];
    shape.extend(deformed.tiled());
    shape.push(Dim::from(rank));
    cx.reshape(grid, shape)
}

/// Where the taps lie along an axis before offsets move them: [taps, 1.., output size, 1..].
fn place_of_taps(cx: &mut NodeCx<'_, '_>, deformed: &Deformed, axis: usize) -> Result<ValueId, Fault> {
    let Sliding { window, stride, dilation, pad_lo, .. } = &deformed.sliding;
    let rank = window.len();
    let inner: usize = window[axis + 1..].iter().product();
    let pad = cx.number(&pad_lo[axis], "padding")? as f64;
    let taps = (0..deformed.taps() as usize).map(|tap| (tap / inner % window[axis] * dilation[axis]) as f64 - pad);
    let taps: Vec<f64> = taps.collect();
    let mut shape = vec![1; rank + 1];
    shape[0] = taps.len();
    let taps = Tensor::from_f64(deformed.dtype, shape, &taps, true);
    let taps = cx.tensor(taps.map_err(|error| Fault::Invalid(error.to_string()))?);
    let steps = cx.iota_along(deformed.dtype, deformed.output[axis].clone(), axis + 1, rank + 1)?;
    let steps = cx.binary_scalar(BinaryFn::Mul, steps, stride[axis] as f64)?;
    cx.binary(BinaryFn::Add, taps, steps)
}

/// The filter times what the taps read, plus the bias.
fn sum_taps(cx: &mut NodeCx<'_, '_>, deformed: &Deformed, read: ValueId) -> Result<ValueId, Fault> {
    let filter = cx.input(1)?;
    let outputs = cx.dims(filter)[0].clone();
    let groups = Dim::from(deformed.groups);
    let products = Dim::from(deformed.channels / deformed.groups * deformed.taps());
    let places: Dim = deformed.output.iter().product();
    let columns = cx.reshape(read, vec![deformed.batch.clone(), groups.clone(), products.clone(), places])?;
    let rows = cx.divide_exact(&outputs, deformed.groups, "the number of output channels")?;
    let weights = cx.cast(filter, deformed.dtype)?;
    let weights = cx.reshape(weights, vec![groups, rows, products])?;
    let sums = cx.matmul(weights, columns)?;
    let mut shape = vec![deformed.batch.clone(), outputs.clone()];
    shape.extend(deformed.output.iter().cloned());
    let mut y = cx.reshape(sums, shape)?;
    if let Some(bias) = cx.optional(3) {
        let mut shape = vec![Dim::ONE; deformed.output.len() + 1];
        shape[0] = outputs;
        let bias = cx.cast(bias, deformed.dtype)?;
        let bias = cx.reshape(bias, shape)?;
        y = cx.binary(BinaryFn::Add, y, bias)?;
    }
    cx.cast(y, cx.dtype(filter))
}
