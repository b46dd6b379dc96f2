//! Operators that move elements without computing: order of axes, joining, cutting, padding.

use precast_ir::ValueId;
use precast_ir::op::{CompareFn, Pad, PadFn};
use precast_tensor::Dim;

use crate::import::{Fault, Import, NodeCx};

use super::slice;

/// Rows of this family.
pub const IMPORTS: &[Import] = &[
    Import::onnx("Transpose", 1, 1, transpose),
    Import::onnx("Concat", 4, 1, concat),
    Import::onnx("Split", 2, 1, split_2),
    Import::onnx("Split", 13, 1, split_13),
    Import::onnx("Slice", 1, 1, slice::slice_1),
    Import::onnx("Slice", 10, 1, slice::slice_10),
    Import::onnx("Pad", 2, 1, pad_2),
    Import::onnx("Pad", 11, 1, pad_11),
    Import::onnx("DepthToSpace", 1, 1, depth_to_space),
    Import::onnx("SpaceToDepth", 1, 1, space_to_depth),
    Import::onnx("Trilu", 14, 1, trilu),
    Import::microsoft("Pad", 2, pad_11),
    Import::microsoft("Trilu", 2, trilu),
    Import::onnx("CenterCropPad", 18, 2, center_crop_pad),
];

/// What an Import gives.
type Values = Result<Vec<ValueId>, Fault>;

fn transpose(cx: &mut NodeCx<'_, '_>) -> Values {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    let perm = match cx.ints("perm")? {
        Some(perm) => cx.axes(&perm, rank)?,
        None => (0..rank).rev().collect(),
    };
    if perm.len() != rank {
        return Err(Fault::Invalid(format!("attribute 'perm' has {} entries for rank {rank}", perm.len())));
    }
    Ok(vec![cx.transpose(x, perm)?])
}

fn concat(cx: &mut NodeCx<'_, '_>) -> Values {
    let axis = cx.attributes().int("axis")?.ok_or_else(|| Fault::Invalid("attribute 'axis' is missing".to_string()))?;
    let inputs = cx.all_inputs()?;
    let Some(&first) = inputs.first() else {
        return Err(Fault::Invalid("no inputs; at least one was expected".to_string()));
    };
    let axis = cx.axis(axis, cx.rank(first))?;
    Ok(vec![cx.concat(&inputs, axis)?])
}

fn split_2(cx: &mut NodeCx<'_, '_>) -> Values {
    let sizes = cx.ints("split")?.map(|sizes| sizes.into_iter().map(Dim::from).collect());
    split(cx, sizes)
}

fn split_13(cx: &mut NodeCx<'_, '_>) -> Values {
    let sizes = match cx.optional(1) {
        Some(sizes) => Some(cx.sizes_or_value(sizes, "split")?),
        None => None,
    };
    split(cx, sizes)
}

fn split(cx: &mut NodeCx<'_, '_>, sizes: Option<Vec<Dim>>) -> Values {
    let x = cx.input(0)?;
    let axis = cx.axis(cx.int("axis", 0)?, cx.rank(x))?;
    let dim = cx.dims(x).swap_remove(axis);
    let parts = if cx.opset() >= 18 { cx.attributes().int("num_outputs")? } else { None };
    let sizes = match (sizes, parts) {
        (Some(_), Some(_)) => return Err(Fault::Invalid("both 'split' and 'num_outputs' are given".to_string())),
        (Some(sizes), None) => sizes,
        (None, Some(parts)) => chunks(cx, &dim, parts)?,
        (None, None) => {
            let count = cx.output_count();
            let part = cx.divide_exact(&dim, count as i64, &format!("axis {axis}, split into {count} equal parts"))?;
            vec![part; count]
        }
    };
    let total: Dim = sizes.iter().sum();
    if total.is_const() && dim.is_const() && total != dim {
        return Err(Fault::Invalid(format!("axis {axis} of size {dim} is split into parts of {total} together")));
    }
    let mut start = Dim::ZERO;
    let mut values = Vec::with_capacity(sizes.len());
    for size in sizes {
        values.push(cx.slice_axis(x, axis, start.clone(), size.clone())?);
        start += size;
    }
    Ok(values)
}

/// Sizes of `parts` chunks of which the last may be smaller.
fn chunks(cx: &NodeCx<'_, '_>, dim: &Dim, parts: i64) -> Result<Vec<Dim>, Fault> {
    if parts < 1 || parts != cx.output_count() as i64 {
        let outputs = cx.output_count();
        return Err(Fault::Invalid(format!("attribute 'num_outputs' is {parts}; the node has {outputs} outputs")));
    }
    let chunk = dim.ceil_div(&Dim::from(parts));
    let end = |part: i64| Dim::min(&(&chunk * part), dim);
    Ok((0..parts).map(|part| cx.simplify(&(end(part + 1) - end(part)))).collect())
}

fn pad_2(cx: &mut NodeCx<'_, '_>) -> Values {
    let pads = cx.ints("pads")?.ok_or_else(|| Fault::Invalid("attribute 'pads' is missing".to_string()))?;
    let number = cx.float("value", 0.0)?;
    let x = cx.input(0)?;
    let fill = cx.scalar(cx.dtype(x), number)?;
    let axes: Vec<usize> = (0..cx.rank(x)).collect();
    pad(cx, pads.into_iter().map(Dim::from).collect(), &axes, fill)
}

fn pad_11(cx: &mut NodeCx<'_, '_>) -> Values {
    let (x, pads) = (cx.input(0)?, cx.input(1)?);
    let pads = cx.sizes_or_value(pads, "pads")?;
    let fill = match cx.optional(2) {
        Some(fill) => cx.reshape(fill, Vec::new())?,
        None => cx.scalar(cx.dtype(x), 0.0)?,
    };
    let axes = match cx.optional(3) {
        Some(axes) => cx.require_ints(axes, "axes")?,
        None => (0..cx.rank(x) as i64).collect(),
    };
    let axes = cx.axes(&axes, cx.rank(x))?;
    pad(cx, pads, &axes, fill)
}

/// Pads the axes given; `pads` has the starts of all of them and then the ends.
fn pad(cx: &mut NodeCx<'_, '_>, pads: Vec<Dim>, axes: &[usize], fill: ValueId) -> Values {
    let func = match cx.string("mode", "constant")?.as_str() {
        "constant" => PadFn::Constant,
        "reflect" => PadFn::Reflect,
        "edge" => PadFn::Edge,
        "wrap" => PadFn::Wrap,
        other => return Err(Fault::Invalid(format!("attribute 'mode' is '{other}'"))),
    };
    if pads.len() != 2 * axes.len() {
        return Err(Fault::Invalid(format!("{} pads are given for {} axes", pads.len(), axes.len())));
    }
    let x = cx.input(0)?;
    let (mut lo, mut hi) = (vec![Dim::ZERO; cx.rank(x)], vec![Dim::ZERO; cx.rank(x)]);
    for (position, &axis) in axes.iter().enumerate() {
        lo[axis] = pads[position].clone();
        hi[axis] = pads[axes.len() + position].clone();
    }
    Ok(vec![pad_with(cx, func, x, lo, hi, fill)?])
}

fn pad_with(
    cx: &mut NodeCx<'_, '_>,
    func: PadFn,
    x: ValueId,
    lo: Vec<Dim>,
    hi: Vec<Dim>,
    fill: ValueId,
) -> Result<ValueId, Fault> {
    if lo.iter().chain(&hi).all(|pad| *pad == Dim::ZERO) {
        return Ok(x);
    }
    match func {
        PadFn::Constant => cx.add(Pad { func, lo, hi }, &[x, fill]),
        PadFn::Reflect | PadFn::Edge | PadFn::Wrap => cx.add(Pad { func, lo, hi }, &[x]),
    }
}

/// Number of elements on the side of a block, and whether the depth is the outer part of the channels.
fn block_and_order(cx: &NodeCx<'_, '_>, since_mode: i64) -> Result<(i64, bool), Fault> {
    let block = cx.int("blocksize", 0)?;
    if block < 1 {
        return Err(Fault::Invalid(format!("attribute 'blocksize' is {block}; 1 or more was expected")));
    }
    let mode = if cx.opset() >= since_mode { cx.string("mode", "DCR")? } else { "DCR".to_string() };
    match mode.as_str() {
        "DCR" => Ok((block, false)),
        "CRD" => Ok((block, true)),
        other => Err(Fault::Invalid(format!("attribute 'mode' is '{other}'; DCR or CRD was expected"))),
    }
}

fn image_dims(cx: &NodeCx<'_, '_>, x: ValueId) -> Result<[Dim; 4], Fault> {
    <[Dim; 4]>::try_from(cx.dims(x))
        .map_err(|dims| Fault::Invalid(format!("the input has rank {}; 4 was expected", dims.len())))
}

fn depth_to_space(cx: &mut NodeCx<'_, '_>) -> Values {
    let (block, is_depth_outer) = block_and_order(cx, 11)?;
    let x = cx.input(0)?;
    let [n, c, h, w] = image_dims(cx, x)?;
    let depth = cx.divide_exact(&c, block.saturating_mul(block), "the number of channels")?;
    let b = Dim::from(block);
    let (apart, perm) = match is_depth_outer {
        false => ([&n, &b, &b, &depth, &h, &w], vec![0, 3, 4, 1, 5, 2]),
        true => ([&n, &depth, &b, &b, &h, &w], vec![0, 1, 4, 2, 5, 3]),
    };
    let apart = cx.reshape(x, apart.map(Dim::clone).to_vec())?;
    let moved = cx.transpose(apart, perm)?;
    Ok(vec![cx.reshape(moved, vec![n, depth, h * block, w * block])?])
}

fn space_to_depth(cx: &mut NodeCx<'_, '_>) -> Values {
    let (block, is_depth_outer) = block_and_order(cx, 28)?;
    let x = cx.input(0)?;
    let [n, c, h, w] = image_dims(cx, x)?;
    let b = Dim::from(block);
    // Sizes that do not divide are found by the reshape once they are numbers.
    let (rows, columns) = (h.floor_div(&b), w.floor_div(&b));
    let apart = vec![n.clone(), c.clone(), rows.clone(), b.clone(), columns.clone(), b];
    let apart = cx.reshape(x, apart)?;
    let perm = if is_depth_outer { vec![0, 1, 3, 5, 2, 4] } else { vec![0, 3, 5, 1, 2, 4] };
    let moved = cx.transpose(apart, perm)?;
    Ok(vec![cx.reshape(moved, vec![n, c * block * block, rows, columns])?])
}

/// The upper or lower triangle of the last two axes, the rest zero.
fn trilu(cx: &mut NodeCx<'_, '_>) -> Values {
    let is_upper = cx.flag("upper", true)?;
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let [.., rows, columns] = &dims[..] else {
        return Err(Fault::Invalid(format!("the input has rank {}; 2 or more was expected", dims.len())));
    };
    let diagonal = match cx.optional(1) {
        Some(k) => cx.require_dim(k, "k")?,
        None => Dim::ZERO,
    };
    // Row i keeps column j when j - i is at least k (upper) or at most k (lower).
    let first = cx.iota(diagonal, rows.clone())?;
    let first = cx.unsqueeze(first, &[1])?;
    let column = cx.iota(Dim::ZERO, columns.clone())?;
    let is_kept = cx.compare(if is_upper { CompareFn::Ge } else { CompareFn::Le }, column, first)?;
    let zero = cx.scalar(cx.dtype(x), 0.0)?;
    Ok(vec![cx.select(is_kept, x, zero)?])
}

/// Negative padding crops: the start takes the smaller half, rounded towards zero either way.
fn center_crop_pad(cx: &mut NodeCx<'_, '_>) -> Values {
    let (x, shape) = (cx.input(0)?, cx.input(1)?);
    let rank = cx.rank(x);
    let axes = match cx.ints("axes")? {
        Some(axes) => cx.axes(&axes, rank)?,
        None => (0..rank).collect(),
    };
    let sizes = cx.sizes_or_value(shape, "the shape")?;
    if sizes.len() != axes.len() {
        return Err(Fault::Invalid(format!("{} sizes are given for {} axes", sizes.len(), axes.len())));
    }
    let dims = cx.dims(x);
    let (mut lo, mut hi) = (vec![Dim::ZERO; rank], vec![Dim::ZERO; rank]);
    for (&axis, size) in axes.iter().zip(&sizes) {
        let added = size - &dims[axis];
        lo[axis] = added.trunc_div(&Dim::from(2));
        hi[axis] = added - &lo[axis];
    }
    let zero = cx.scalar(cx.dtype(x), 0.0)?;
    Ok(vec![pad_with(cx, PadFn::Constant, x, lo, hi, zero)?])
}
