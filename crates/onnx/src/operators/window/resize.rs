//! Resize and Upsample. Every version ends as one `resize` op with the output's dims and the factors of the coordinate
//! formula; the versions differ in where these come from.

use precast_ir::ValueId;
use precast_ir::op::{CoordinateFn, NearestFn, Resize, ResizeFn};
use precast_tensor::Dim;

use super::Outputs;
use crate::import::{Fault, NodeCx};

/// Sizes of the output and factors of the coordinates, one of each an axis of the input.
struct Target {
    output: Vec<Dim>,
    scales: Vec<f64>,
}

/// Upsample 7: scales are an attribute.
pub(super) fn upsample_7(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let scales =
        cx.attributes().floats("scales")?.ok_or_else(|| Fault::Invalid("attribute 'scales' is missing".to_string()))?;
    add_plain(cx, scales)
}

/// Resize 10 and Upsample 9: scales are an input.
pub(super) fn resize_10(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let scales = cx.require_floats(cx.input(1)?, "scales")?;
    add_plain(cx, scales)
}

/// Before opset 11 coordinates are x / scale. The nearest element is the one below when enlarging and the one above when
/// reducing, an axis at a time.
fn add_plain(cx: &mut NodeCx<'_, '_>, scales: Vec<f64>) -> Outputs {
    let x = cx.input(0)?;
    let func = match cx.string("mode", "nearest")?.as_str() {
        "nearest" => ResizeFn::Nearest,
        "linear" | "bilinear" => ResizeFn::Linear,
        other => return Err(Fault::Invalid(format!("attribute 'mode' cannot be '{other}'"))),
    };
    let axes: Vec<usize> = (0..cx.rank(x)).collect();
    let mut y = x;
    for (nearest, is_part) in [(NearestFn::Floor, is_enlarging as fn(f64) -> bool), (NearestFn::Ceil, is_reducing)] {
        let part: Vec<f64> = scales.iter().map(|&scale| if is_part(scale) { scale } else { 1.0 }).collect();
        let (target, op_scales) = match func {
            // Interpolation does not care: all axes at once.
            ResizeFn::Linear | ResizeFn::Cubic => (from_scales(cx, y, &axes, &scales)?, &scales),
            ResizeFn::Nearest => (from_scales(cx, y, &axes, &part)?, &part),
        };
        if op_scales.iter().all(|&scale| scale == 1.0) {
            continue;
        }
        let op = Resize {
            func,
            coordinates: CoordinateFn::Asymmetric,
            nearest,
            output: target.output,
            scales: target.scales,
            cubic_a: CUBIC_A,
            exclude_outside: false,
            antialias: false,
            roi: Vec::new(),
            extrapolation: 0.0,
        };
        y = cx.add(op, &[y])?;
        if func != ResizeFn::Nearest {
            break;
        }
    }
    Ok(vec![y])
}

fn is_enlarging(scale: f64) -> bool {
    scale >= 1.0
}

fn is_reducing(scale: f64) -> bool {
    scale < 1.0
}

/// Default of `cubic_coeff_a`.
const CUBIC_A: f64 = -0.75;

/// Resize from opset 11 on. Opset 18 adds `axes`, `antialias` and `keep_aspect_ratio_policy`, opset 19 more coordinates.
pub(super) fn resize_11(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let func = match cx.string("mode", "nearest")?.as_str() {
        "nearest" => ResizeFn::Nearest,
        "linear" => ResizeFn::Linear,
        "cubic" => ResizeFn::Cubic,
        other => return Err(Fault::Invalid(format!("attribute 'mode' cannot be '{other}'"))),
    };
    let coordinates =
        read_function(cx, "coordinate_transformation_mode", "half_pixel", CoordinateFn::ALL, CoordinateFn::name)?;
    let nearest = read_function(cx, "nearest_mode", "round_prefer_floor", NearestFn::ALL, NearestFn::name)?;
    let policy = cx.string("keep_aspect_ratio_policy", "stretch")?;
    let rank = cx.rank(x);
    let axes = match cx.ints("axes")? {
        Some(axes) => cx.axes(&axes, rank)?,
        None => (0..rank).collect(),
    };
    let (scales, sizes) = (given(cx, 2), given(cx, 3));
    let target = match (scales, sizes) {
        (Some(scales), None) => {
            let scales = cx.require_floats(scales, "scales")?;
            from_scales(cx, x, &axes, &scales)?
        }
        (None, Some(sizes)) => {
            let sizes = cx.require_dims(sizes, "sizes")?;
            from_sizes(cx, x, &axes, &sizes, &policy)?
        }
        _ => {
            return Err(Fault::Invalid("one of scales and sizes must be given, not both".to_string()));
        }
    };
    let roi = if coordinates == CoordinateFn::TfCrop { read_roi(cx, &axes, rank)? } else { Vec::new() };
    let op = Resize {
        func,
        coordinates,
        nearest,
        output: target.output,
        scales: target.scales,
        cubic_a: cx.float("cubic_coeff_a", CUBIC_A)?,
        exclude_outside: cx.flag("exclude_outside", false)?,
        antialias: cx.flag("antialias", false)?,
        roi,
        extrapolation: cx.float("extrapolation_value", 0.0)?,
    };
    Ok(vec![cx.add(op, &[x])?])
}

/// One of our functions by the name that ONNX has for it too.
fn read_function<T: Copy>(
    cx: &NodeCx<'_, '_>,
    attribute: &str,
    default: &str,
    all: &[T],
    name: fn(T) -> &'static str,
) -> Result<T, Fault> {
    let wanted = cx.string(attribute, default)?;
    all.iter()
        .copied()
        .find(|&function| name(function) == wanted)
        .ok_or_else(|| Fault::Unsupported(format!("{attribute}={wanted} is not covered")))
}

/// An input that is present and has elements: opset 11 writes empty tensors for what is not given.
fn given(cx: &NodeCx<'_, '_>, position: usize) -> Option<ValueId> {
    cx.optional(position).filter(|&input| cx.ty(input).element_count() != Dim::ZERO)
}

fn from_scales(cx: &NodeCx<'_, '_>, x: ValueId, axes: &[usize], scales: &[f64]) -> Result<Target, Fault> {
    check_count("scales", scales.len(), axes.len())?;
    let mut target = unchanged(cx, x);
    for (&axis, &scale) in axes.iter().zip(scales) {
        if !(scale > 0.0 && scale.is_finite()) {
            return Err(Fault::Invalid(format!("a scale is {scale}; a positive number was expected")));
        }
        target.output[axis] = scaled(cx, &target.output[axis], scale)?;
        target.scales[axis] = scale;
    }
    Ok(target)
}

/// Denominators of scales that a symbolic dim can be multiplied by: exact in f32, so that rounding cannot matter.
const DENOMINATORS: [i64; 6] = [1, 2, 4, 8, 16, 32];

/// floor(dim * scale).
fn scaled(cx: &NodeCx<'_, '_>, dim: &Dim, scale: f64) -> Result<Dim, Fault> {
    if let Some(number) = dim.as_const() {
        // ONNX Runtime multiplies in f32, which rounds products like 10 * 0.7 to whole numbers.
        return Ok(Dim::from((number as f32 * scale as f32).floor() as i64));
    }
    for denominator in DENOMINATORS {
        let numerator = scale * denominator as f64;
        if numerator.fract() == 0.0 {
            return Ok((dim * numerator as i64).floor_div(&Dim::from(denominator)));
        }
    }
    cx.number(dim, &format!("a size to be scaled by {scale}")).map(Dim::from)
}

fn from_sizes(cx: &NodeCx<'_, '_>, x: ValueId, axes: &[usize], sizes: &[Dim], policy: &str) -> Result<Target, Fault> {
    check_count("sizes", sizes.len(), axes.len())?;
    let mut target = unchanged(cx, x);
    if policy == "stretch" {
        for (&axis, size) in axes.iter().zip(sizes) {
            target.scales[axis] = ratio(cx, size, &target.output[axis])?;
            target.output[axis] = size.clone();
        }
        return Ok(target);
    }
    let mut scales = Vec::new();
    for (&axis, size) in axes.iter().zip(sizes) {
        scales.push(ratio(cx, size, &target.output[axis])?);
    }
    let scale = match policy {
        "not_larger" => scales.iter().copied().fold(f64::INFINITY, f64::min),
        "not_smaller" => scales.iter().copied().fold(0.0, f64::max),
        other => {
            return Err(Fault::Invalid(format!("attribute 'keep_aspect_ratio_policy' cannot be '{other}'")));
        }
    };
    for &axis in axes {
        let size = cx.number(&target.output[axis], "a size whose aspect ratio is kept")?;
        target.output[axis] = Dim::from((size as f64 * scale + 0.5).floor() as i64);
        target.scales[axis] = scale;
    }
    Ok(target)
}

/// to / from, which must be a number even where both are symbolic.
fn ratio(cx: &NodeCx<'_, '_>, to: &Dim, from: &Dim) -> Result<f64, Fault> {
    if to == from {
        return Ok(1.0);
    }
    if to.as_const().is_none() || from.as_const().is_none() {
        let factor = |large: &Dim, small: &Dim| large.floor_div_exact(small).and_then(|factor| factor.as_const());
        if let Some(factor) = factor(to, from) {
            return Ok(factor as f64);
        }
        if let Some(factor) = factor(from, to) {
            return Ok(1.0 / factor as f64);
        }
    }
    let what = "a size that a resize starts from or ends with";
    let (to, from) = (cx.number(to, what)?, cx.number(from, what)?);
    if from == 0 {
        return Err(Fault::Invalid("an axis without elements cannot be resized".to_string()));
    }
    Ok(f64::from(to as f32 / from as f32))
}

fn unchanged(cx: &NodeCx<'_, '_>, x: ValueId) -> Target {
    let output = cx.dims(x);
    Target { scales: vec![1.0; output.len()], output }
}

/// Starts then ends of all axes; an axis that is not resized is taken whole.
fn read_roi(cx: &NodeCx<'_, '_>, axes: &[usize], rank: usize) -> Result<Vec<f64>, Fault> {
    let values = cx.require_floats(cx.input(1)?, "roi")?;
    check_count("roi", values.len(), 2 * axes.len())?;
    let mut roi = [vec![0.0; rank], vec![1.0; rank]].concat();
    for (position, &axis) in axes.iter().enumerate() {
        roi[axis] = values[position];
        roi[rank + axis] = values[axes.len() + position];
    }
    Ok(roi)
}

fn check_count(what: &str, found: usize, expected: usize) -> Result<(), Fault> {
    if found == expected {
        return Ok(());
    }
    Err(Fault::Invalid(format!("{what} has {found} elements; {expected} were expected")))
}
