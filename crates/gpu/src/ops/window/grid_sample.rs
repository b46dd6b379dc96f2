//! Samples of an image at given places, in any number of spatial axes.

use std::fmt::Write as _;

use precast_ir::op::{GridPad, GridSample, ResizeFn};
use precast_tensor::DType;

use crate::element::{element, load, memory_type, value_type};
use crate::kernel::Lowered;
use crate::nest::{Kernel, Param, axis_indices, indent, index_type, offset_sum};
use crate::site::Site;

/// The kernel of a node.
pub fn lower_grid_sample(site: &Site, op: &GridSample) -> Option<Lowered> {
    let (dtype, grid_dtype) = (site.dtype(0), site.dtype(1));
    let is_wide = dtype == DType::F64 || grid_dtype == DType::F64;
    let ty = if is_wide { "f64" } else { "f32" };
    value_type(dtype)?;
    let (x_shape, shape) = (site.shape(0), site.out_shape(0));
    let (own, grid) = (site.strides(0), site.strides(1));
    let axes = shape.len() - 2;
    if x_shape.contains(&0) {
        return None;
    }
    let index = index_type(&[x_shape.iter().product(), shape.iter().product(), site.shape(1).iter().product()]);
    let mut body = axis_indices(&shape, &site.out_strides(0), index);
    // The grid has no channel axis: its axis a is axis a + 1 of the result.
    let grid_terms = (0..=axes).map(|axis| (format!("i{}", if axis == 0 { 0 } else { axis + 1 }), grid[axis] as i64));
    let _ = writeln!(body, "const {index} place = {};", offset_sum(grid_terms, index));
    let taps = match op.func {
        ResizeFn::Nearest => 1,
        ResizeFn::Linear => 2,
        ResizeFn::Cubic => 4,
    };
    for axis in 0..axes {
        let number = load(grid_dtype, &format!("grid[place + {} * ({index}){}]", axes - 1 - axis, grid[axes + 1]));
        let _ = writeln!(
            body,
            "i32 p{axis}[{taps}];\n{ty} w{axis}[{taps}];\naxis_taps(({ty}){number}, {}, p{axis}, w{axis});",
            x_shape[axis + 2]
        );
    }
    let mut terms = vec![("i0".to_string(), own[0] as i64), ("i1".to_string(), own[1] as i64)];
    terms.extend((0..axes).map(|axis| (format!("({index})p{axis}[t{axis}]"), own[axis + 2] as i64)));
    let mut product: Vec<String> = (0..axes).map(|axis| format!("w{axis}[t{axis}]")).collect();
    product.push(format!("({ty}){}", load(dtype, &format!("x[{}]", offset_sum(terms, index)))));
    let mut text = format!("total += {};\n", product.join(" * "));
    for axis in (0..axes).rev() {
        text = format!(
            "UNROLL\nfor (int t{axis} = 0; t{axis} < {taps}; t{axis}++) {{\n    if (p{axis}[t{axis}] < 0) continue;\n{}}}\n",
            indent(&text)
        );
    }
    let value = if dtype == DType::F16 || dtype == DType::BF16 {
        element(dtype, "(f32)total")
    } else {
        element(dtype, "total")
    };
    let _ = write!(body, "{ty} total = 0;\n{text}y[at] = {value};\n");
    let params = vec![
        Param::read(0, "x", memory_type(dtype)?),
        Param::read(1, "grid", memory_type(grid_dtype)?),
        Param::write(0, "y", memory_type(dtype)?),
    ];
    let kernel = Kernel::new("grid_sample", params).declare(declarations(op, ty, taps));
    Some(Lowered::one(format!("grid_sample.{}", op.func.name()), kernel.for_each(shape.iter().product(), index, &body)))
}

/// Functions that find the pixels of a coordinate along one axis, and their weights; -1 is a pixel that counts as 0.
fn declarations(op: &GridSample, ty: &str, taps: usize) -> String {
    let place = if op.align_corners {
        "const T least = 0, most = size - 1;\n    T at = (normalised + 1) / 2 * (size - 1);"
    } else {
        "const T least = (T)-0.5, most = size - (T)0.5;\n    T at = ((normalised + 1) * size - 1) / 2;"
    };
    let nearest = if op.func == ResizeFn::Nearest { "at = of_rint(at);" } else { "" };
    // The cubic kernel reaches across the border, so it is pixels that are moved to it, not the coordinate.
    let outside = match (op.padding, op.func) {
        (GridPad::Zeros, _) | (GridPad::Border, ResizeFn::Cubic) => "",
        (GridPad::Border, _) => "if (at < least || at > most) at = clamp_float(at, (T)0, size > 1 ? size - 1 : (T)0);",
        (GridPad::Reflection, _) => "at = reflect(at, least, most);",
    };
    let weights = match op.func {
        ResizeFn::Nearest => "const T first = at;\n    weights[0] = 1;",
        ResizeFn::Linear => {
            "const T first = of_floor(at);\n    weights[0] = 1 - (at - first);\n    weights[1] = at - first;"
        }
        ResizeFn::Cubic => {
            "const T ratio = at - of_floor(at), first = of_floor(at) - 1;\n    for (int tap = 0; tap < 4; tap++) weights[tap] = cubic_weight((T)(tap - 1) - ratio);"
        }
    };
    let pixel = match op.padding {
        GridPad::Zeros => "return at >= 0 && at <= last ? (i32)at : -1;",
        GridPad::Border => "return at > 0 ? at < last ? (i32)at : (i32)last : 0;",
        GridPad::Reflection => {
            "at = reflect(at, least, most);\n    return at > 0 ? at < last ? (i32)at : (i32)last : 0;"
        }
    };
    format!(
        "typedef {ty} T;
DEVICE T cubic_weight(T distance) {{
    const T a = (T)-0.75, x = of_fabs(distance);
    if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : (T)0;
}}
DEVICE T reflect(T at, T least, T most) {{
    const T range = most - least;
    const bool is_below = at < least;
    if (!is_below && !(at > most)) return at;
    const T distance = is_below ? least - at : at - most, near = is_below ? least : most;
    if (range <= 0 || !(distance < (T)INFINITE)) return near;
    const T rest = of_fmod(distance, range);
    const bool is_even = of_fmod((distance - rest) / range, (T)2) == 0;
    const T moved = is_even ? rest : range - rest;
    return is_below ? near + moved : near - moved;
}}
DEVICE i32 pixel(T at, T least, T most, T last) {{
    {pixel}
}}
DEVICE void axis_taps(T normalised, int extent, i32 *pixels, T *weights) {{
    const T size = (T)extent;
    {place}
    {nearest}
    {outside}
    {weights}
    for (int tap = 0; tap < {taps}; tap++) pixels[tap] = pixel(first + (T)tap, least, most, size - 1);
}}
"
    )
}
