//! Shapes as values, and operators that change the shape alone. Shape arithmetic is followed as Dims, so that most of
//! what stands here leaves no node behind.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn};
use precast_tensor::{DType, Dim, Tensor};

use crate::import::{Fault, Import, NodeCx};

/// Rows of this family.
pub const IMPORTS: &[Import] = &[
    Import::onnx("Shape", 1, 1, shape),
    Import::onnx("Size", 1, 1, size),
    Import::onnx("ConstantOfShape", 9, 1, constant_of_shape),
    Import::onnx("Range", 11, 1, range),
    Import::onnx("Reshape", 5, 1, reshape),
    Import::onnx("Flatten", 1, 1, flatten),
    Import::onnx("Squeeze", 1, 1, squeeze_1),
    Import::onnx("Squeeze", 13, 1, squeeze_13),
    Import::onnx("Unsqueeze", 1, 1, unsqueeze_1),
    Import::onnx("Unsqueeze", 13, 1, unsqueeze_13),
    Import::onnx("Expand", 8, 1, expand),
    Import::onnx("Tile", 6, 1, tile),
    Import::onnx("EyeLike", 9, 2, eye_like),
    Import::microsoft("ExpandDims", 2, expand_dims),
    Import::microsoft("Range", 2, range),
    Import::microsoft("UnfoldTensor", 2, unfold_tensor),
];

/// What an Import gives.
type Values = Result<Vec<ValueId>, Fault>;

fn shape(cx: &mut NodeCx<'_, '_>) -> Values {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let rank = dims.len() as i64;
    let (start, end) = if cx.opset() >= 15 { (cx.int("start", 0)?, cx.int("end", rank)?) } else { (0, rank) };
    let position = |at: i64| (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize;
    let (start, end) = (position(start), position(end));
    Ok(vec![cx.dim_vector(dims.get(start..end).unwrap_or_default())?])
}

fn size(cx: &mut NodeCx<'_, '_>) -> Values {
    let x = cx.input(0)?;
    let count = cx.dims(x).iter().product();
    Ok(vec![cx.dim_value(count)?])
}

/// Exactly one of the `value` attributes that hold numbers.
pub(super) fn constant(cx: &mut NodeCx<'_, '_>) -> Values {
    let mut tensors: Vec<Tensor> = Vec::new();
    let attributes = cx.attributes();
    let fault = |error: precast_tensor::TensorError| Fault::Invalid(error.to_string());
    if let Some(proto) = attributes.tensor("value")? {
        tensors.push(cx.read_tensor(proto)?);
    }
    if let Some(proto) = attributes.sparse_tensor("sparse_value")? {
        tensors.push(cx.read_sparse_tensor(proto)?);
    }
    if let Some(int) = attributes.int("value_int")? {
        tensors.push(Tensor::scalar(int));
    }
    if let Some(ints) = attributes.ints("value_ints")? {
        tensors.push(Tensor::from_vec([ints.len()], ints).map_err(fault)?);
    }
    if let Some(float) = attributes.float("value_float")? {
        tensors.push(Tensor::scalar(float as f32));
    }
    if let Some(floats) = attributes.floats("value_floats")? {
        let floats: Vec<f32> = floats.iter().map(|&float| float as f32).collect();
        tensors.push(Tensor::from_vec([floats.len()], floats).map_err(fault)?);
    }
    match tensors.len() {
        1 => Ok(tensors.into_iter().map(|tensor| cx.tensor(tensor)).collect()),
        count => Err(Fault::Invalid(format!("{count} values are given; one was expected"))),
    }
}

fn constant_of_shape(cx: &mut NodeCx<'_, '_>) -> Values {
    let element = match cx.attributes().tensor("value")? {
        Some(proto) => cx.read_tensor(proto)?,
        None => Tensor::scalar(0.0f32),
    };
    if element.len() != 1 {
        return Err(Fault::Invalid(format!("attribute 'value' has {} elements; one was expected", element.len())));
    }
    let element = element.reshaped([]).map_err(|error| Fault::Invalid(error.to_string()))?;
    let shape = cx.input(0)?;
    let dims = cx.require_sizes(shape, "the shape")?;
    let element = cx.tensor(element);
    Ok(vec![cx.broadcast(element, dims)?])
}

/// `start + i * delta` for i below `ceil((limit - start) / delta)`.
fn range(cx: &mut NodeCx<'_, '_>) -> Values {
    if cx.opset() >= 27 {
        // Intermediate numbers are f32 or exact in any case.
        cx.int("stash_type", 1)?;
    }
    let to = cx.dtype(cx.input(0)?);
    let delta = match cx.optional(2) {
        Some(delta) => delta,
        None => cx.scalar(to, 1.0)?,
    };
    // com.microsoft has vectors of one element too.
    let [start, limit, delta] = [cx.input(0)?, cx.input(1)?, delta].map(|value| cx.reshape(value, Vec::new()));
    let (start, limit, delta) = (start?, limit?, delta?);
    if to.is_float() {
        let dims = [start, limit, delta].map(|value| integral_content(cx, value));
        return match dims {
            [Some(start), Some(limit), Some(delta)] if delta.as_const().is_some_and(|delta| delta != 0) => {
                integer_range(cx, to, start, limit, delta)
            }
            _ => float_range(cx, to, start, limit, delta),
        };
    }
    let delta = Dim::from(cx.require_int(delta, "delta")?);
    let [start, limit] = [("start", start), ("limit", limit)].map(|(what, value)| cx.require_dim(value, what));
    integer_range(cx, to, start?, limit?, delta)
}

fn integer_range(cx: &mut NodeCx<'_, '_>, to: DType, start: Dim, limit: Dim, delta: Dim) -> Values {
    let length = match delta.as_const() {
        Some(0) | None => return Err(Fault::Invalid("delta is 0".to_string())),
        Some(step) if step > 0 => (&limit - &start).ceil_div(&delta),
        Some(_) => (&start - &limit).ceil_div(&-&delta),
    };
    let length = cx.simplify(&Dim::max(&length, &Dim::ZERO));
    Ok(vec![cx.iota_as(to, start, delta, length)?])
}

/// A range of floats that are not whole numbers, or whose numbers are not known as Dims.
fn float_range(cx: &mut NodeCx<'_, '_>, to: DType, start: ValueId, limit: ValueId, delta: ValueId) -> Values {
    let scalar = |value: ValueId, what: &str| match cx.require_floats(value, what)?[..] {
        [number] => Ok(number),
        ref numbers => Err(Fault::Invalid(format!("{what} has {} elements; one was expected", numbers.len()))),
    };
    let (start, limit, delta) = (scalar(start, "start")?, scalar(limit, "limit")?, scalar(delta, "delta")?);
    // The span is rounded to the element type before it is divided, as the reference code does.
    let span = if to == DType::F64 { limit - start } else { f64::from(limit as f32 - start as f32) };
    let length = (span / delta).ceil().max(0.0);
    if !length.is_finite() {
        return Err(Fault::Invalid(format!("a range from {start} to {limit} by {delta} has no end")));
    }
    let wide = if to == DType::F64 { DType::F64 } else { DType::F32 };
    let index = cx.iota_as(wide, Dim::ZERO, Dim::ONE, Dim::from(length as i64))?;
    let scaled = cx.binary_scalar(BinaryFn::Mul, index, delta)?;
    let shifted = cx.binary_scalar(BinaryFn::Add, scaled, start)?;
    Ok(vec![cx.cast(shifted, to)?])
}

/// The number of a float scalar that is a whole number by the way it was made, as a Dim.
fn integral_content(cx: &NodeCx<'_, '_>, value: ValueId) -> Option<Dim> {
    /// Whole numbers up to here are exact in f32.
    const EXACT_MAX: f64 = (1u32 << f32::MANTISSA_DIGITS) as f64;
    if let Some(tensor) = cx.constant(value) {
        return match tensor.to_f64_vec()[..] {
            [number] if number.trunc() == number && number.abs() <= EXACT_MAX => Some(Dim::from(number as i64)),
            _ => None,
        };
    }
    match cx.content(cx.cast_source(value)?)?.as_slice() {
        [dim] => Some(dim.clone()),
        _ => None,
    }
}

fn reshape(cx: &mut NodeCx<'_, '_>) -> Values {
    let keeps_zero = cx.opset() >= 14 && cx.flag("allowzero", false)?;
    let (x, shape) = (cx.input(0)?, cx.input(1)?);
    let wanted = cx.sizes_or_value(shape, "the shape")?;
    let dims = cx.dims(x);
    let mut resolved: Vec<Dim> = Vec::with_capacity(wanted.len());
    let mut inferred = None;
    for (axis, dim) in wanted.into_iter().enumerate() {
        match dim.as_const() {
            Some(0) if !keeps_zero => resolved.push(dims.get(axis).cloned().ok_or_else(|| {
                Fault::Invalid(format!("entry {axis} of the shape is 0, but the input has rank {}", dims.len()))
            })?),
            Some(-1) if inferred.is_none() => {
                inferred = Some(axis);
                resolved.push(Dim::ONE);
            }
            Some(-1) => return Err(Fault::Invalid("the shape has more than one -1".to_string())),
            Some(number) if number < 0 => return Err(Fault::Invalid(format!("the shape has the entry {number}"))),
            _ => resolved.push(dim),
        }
    }
    if let Some(axis) = inferred {
        let others = resolved.iter().enumerate().filter(|(at, _)| *at != axis).map(|(_, dim)| dim.clone()).collect();
        resolved[axis] = cx.simplify(&quotient(dims, others)?);
    }
    Ok(vec![cx.reshape(x, resolved)?])
}

/// What is left of the product of `dims` after division by the product of `others`.
fn quotient(mut dims: Vec<Dim>, mut others: Vec<Dim>) -> Result<Dim, Fault> {
    // Equal factors go first, so that an axis of size 0 that is kept does not become a division by 0.
    others.retain(|other| match dims.iter().position(|dim| dim == other) {
        Some(at) => {
            dims.swap_remove(at);
            false
        }
        None => true,
    });
    let (total, divisor): (Dim, Dim) = (dims.iter().product(), others.iter().product());
    if let (Some(total), Some(divisor)) = (total.as_const(), divisor.as_const()) {
        if total.checked_rem(divisor).unwrap_or(total) != 0 {
            return Err(Fault::Invalid(format!("{total} elements do not divide into {divisor} for the entry -1")));
        }
        return Ok(Dim::from(total.checked_div(divisor).unwrap_or(0)));
    }
    Ok(total.floor_div_exact(&divisor).unwrap_or_else(|| total.floor_div(&divisor)))
}

fn flatten(cx: &mut NodeCx<'_, '_>) -> Values {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let axis = cx.int("axis", 1)?;
    // The axis may lie behind the last one.
    let axis = if axis == dims.len() as i64 { dims.len() } else { cx.axis(axis, dims.len())? };
    let (rows, columns) = dims.split_at(axis);
    Ok(vec![cx.reshape(x, vec![rows.iter().product(), columns.iter().product()])?])
}

fn squeeze_1(cx: &mut NodeCx<'_, '_>) -> Values {
    let axes = cx.ints("axes")?;
    squeeze(cx, axes)
}

fn squeeze_13(cx: &mut NodeCx<'_, '_>) -> Values {
    let axes = match cx.optional(1) {
        Some(axes) => Some(cx.require_ints(axes, "axes")?),
        None => None,
    };
    squeeze(cx, axes)
}

fn squeeze(cx: &mut NodeCx<'_, '_>, axes: Option<Vec<i64>>) -> Values {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let mut squeezed: Vec<usize> = Vec::new();
    match axes {
        Some(axes) => {
            squeezed = cx.axes(&axes, dims.len())?;
            if let Some(&axis) = squeezed.iter().find(|&&axis| dims[axis].as_const().is_some_and(|size| size != 1)) {
                return Err(Fault::Invalid(format!("axis {axis} has size {}; 1 was expected", dims[axis])));
            }
        }
        None => {
            for (axis, dim) in dims.iter().enumerate() {
                if cx.number(dim, &format!("whether axis {axis} is squeezed"))? == 1 {
                    squeezed.push(axis);
                }
            }
        }
    }
    Ok(vec![cx.squeeze(x, &squeezed)?])
}

fn unsqueeze_1(cx: &mut NodeCx<'_, '_>) -> Values {
    let axes = cx.ints("axes")?.ok_or_else(|| Fault::Invalid("attribute 'axes' is missing".to_string()))?;
    unsqueeze(cx, &axes)
}

fn unsqueeze_13(cx: &mut NodeCx<'_, '_>) -> Values {
    let axes = cx.input(1)?;
    let axes = cx.require_ints(axes, "axes")?;
    unsqueeze(cx, &axes)
}

fn unsqueeze(cx: &mut NodeCx<'_, '_>, axes: &[i64]) -> Values {
    let x = cx.input(0)?;
    let axes = cx.axes(axes, cx.rank(x) + axes.len())?;
    Ok(vec![cx.unsqueeze(x, &axes)?])
}

/// All windows along an axis, a new last axis for what is in one.
fn unfold_tensor(cx: &mut NodeCx<'_, '_>) -> Values {
    let x = cx.input(0)?;
    let axis = cx.axis(cx.int("dim", -1)?, cx.rank(x))?;
    let (size, step) = (positive(cx, "size", 0)?, positive(cx, "step", 1)?);
    let count = (&cx.dims(x)[axis] - size).floor_div(&Dim::from(step)) + 1;
    let starts = cx.iota_as(DType::I64, Dim::ZERO, Dim::from(step), count)?;
    let starts = cx.unsqueeze(starts, &[1])?;
    let inside = cx.iota(Dim::ZERO, Dim::from(size))?;
    let places = cx.binary(BinaryFn::Add, starts, inside)?;
    let windows = cx.gather(x, places, axis)?;
    let mut perm: Vec<usize> = (0..cx.rank(windows)).filter(|&other| other != axis + 1).collect();
    perm.push(axis + 1);
    Ok(vec![cx.transpose(windows, perm)?])
}

fn positive(cx: &NodeCx<'_, '_>, name: &str, default: i64) -> Result<i64, Fault> {
    match cx.int(name, default)? {
        number if number > 0 => Ok(number),
        number => Err(Fault::Invalid(format!("attribute '{name}' is {number}; 1 or more was expected"))),
    }
}

/// A new axis of size 1 where the second input says.
fn expand_dims(cx: &mut NodeCx<'_, '_>) -> Values {
    let (x, axis) = (cx.input(0)?, cx.input(1)?);
    let axis = cx.require_int(axis, "axis")?;
    let axis = cx.axis(axis, cx.rank(x) + 1)?;
    Ok(vec![cx.unsqueeze(x, &[axis])?])
}

fn expand(cx: &mut NodeCx<'_, '_>) -> Values {
    let (x, shape) = (cx.input(0)?, cx.input(1)?);
    let dims = cx.require_sizes(shape, "the shape")?;
    Ok(vec![cx.broadcast(x, dims)?])
}

/// Every tiled axis gets an axis of its own before it, is broadcast along that, and joined with it.
fn tile(cx: &mut NodeCx<'_, '_>) -> Values {
    let (x, repeats) = (cx.input(0)?, cx.input(1)?);
    let repeats = cx.require_sizes(repeats, "repeats")?;
    let dims = cx.dims(x);
    if repeats.len() != dims.len() {
        return Err(Fault::Invalid(format!("{} repeats are given for rank {}", repeats.len(), dims.len())));
    }
    let (mut apart, mut tiled, mut joined) = (Vec::new(), Vec::new(), Vec::new());
    for (dim, repeat) in dims.iter().zip(&repeats) {
        if *repeat != Dim::ONE && *dim != Dim::ONE {
            apart.push(Dim::ONE);
            tiled.push(repeat.clone());
        }
        apart.push(dim.clone());
        tiled.push(if *dim == Dim::ONE { repeat.clone() } else { dim.clone() });
        joined.push(dim * repeat);
    }
    let apart = cx.reshape(x, apart)?;
    let tiled = cx.broadcast(apart, tiled)?;
    Ok(vec![cx.reshape(tiled, joined)?])
}

fn eye_like(cx: &mut NodeCx<'_, '_>) -> Values {
    let diagonal = cx.int("k", 0)?;
    let x = cx.input(0)?;
    let dtype = cx.dtype_attribute("dtype")?.unwrap_or(cx.dtype(x));
    let [rows, columns] = <[Dim; 2]>::try_from(cx.dims(x))
        .map_err(|dims| Fault::Invalid(format!("the input has rank {}; 2 was expected", dims.len())))?;
    let rows = cx.iota(Dim::from(diagonal), rows)?;
    let rows = cx.unsqueeze(rows, &[1])?;
    let columns = cx.iota(Dim::ZERO, columns)?;
    let eye = cx.compare(CompareFn::Eq, rows, columns)?;
    Ok(vec![cx.cast(eye, dtype)?])
}
