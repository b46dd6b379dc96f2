//! Resizing. Which elements an element is made of, and their weights, are the same for all lines of an axis: they are
//! tables, made while lowering. Crops that reach beyond x are left to the host.

use std::fmt::Write as _;

use precast_ir::op::{Resize, ResizeFn};
use precast_tensor::{DType, Tensor};

use crate::element::{element, is_narrow, load, memory_type, value_type, word_type};
use crate::kernel::Lowered;
use crate::nest::{Kernel, Param, axis_indices, indent, index_type, offset_sum};
use crate::site::Site;

/// An axis that is resized.
struct Table {
    axis: usize,
    /// Elements that an element is made of, at most.
    taps: usize,
    places: Vec<i32>,
    weights: Vec<f64>,
}

/// Resizes every axis.
pub fn lower_resize(site: &Site, op: &Resize) -> Result<Option<Lowered>, String> {
    let Some(tables) = tables(site, op) else { return Ok(None) };
    let is_moved = op.func == ResizeFn::Nearest;
    let dtype = site.dtype(0);
    if !is_moved && (value_type(dtype).is_none() || is_narrow(dtype)) {
        return Ok(None);
    }
    let mut packed = Vec::new();
    // Integers round to the nearest: in f32 weights a half would not stay one.
    let is_wide = dtype == DType::F64 || !dtype.is_float();
    let weight = if is_wide { "f64" } else { "f32" };
    let memory = if is_moved { word_type(dtype) } else { memory_type(dtype).unwrap_or("f32") };
    let mut params = vec![Param::read(0, "x", memory), Param::write(0, "y", memory)];
    for Table { axis, places, weights, .. } in &tables {
        let make = |tensor: Result<Tensor, _>| tensor.map_err(|error: precast_tensor::TensorError| error.to_string());
        params.push(Param::packed(packed.len(), format!("places{axis}"), "i32"));
        packed.push(make(Tensor::from_vec(vec![places.len()], places.clone()))?);
        if !is_moved {
            params.push(Param::packed(packed.len(), format!("weights{axis}"), weight));
            packed.push(make(if is_wide {
                Tensor::from_vec(vec![weights.len()], weights.clone())
            } else {
                Tensor::from_vec(vec![weights.len()], weights.iter().map(|&weight| weight as f32).collect())
            })?);
        }
    }
    let body = if is_moved { write_moves(site, &tables) } else { write_sums(site, &tables, dtype, weight) };
    let shape = site.out_shape(0);
    let index = resize_index(site);
    let entry = if is_moved { "resize_nearest" } else { "resize" };
    let launch = Kernel::new(entry, params).for_each(shape.iter().product(), index, &body);
    let name = format!("resize.{}", op.func.name());
    Ok(Some(Lowered { name, launches: vec![launch], scratch_bytes: Vec::new(), packed }))
}

fn resize_index(site: &Site) -> &'static str {
    index_type(&[site.shape(0).iter().product(), site.out_shape(0).iter().product()])
}

fn tables(site: &Site, op: &Resize) -> Option<Vec<Table>> {
    let (x_shape, shape) = (site.shape(0), site.out_shape(0));
    let mut tables = Vec::new();
    for axis in 0..shape.len() {
        let taps = op.axis_taps(axis, x_shape[axis], shape[axis])?;
        let is_identity =
            x_shape[axis] == shape[axis] && taps.iter().enumerate().all(|(at, taps)| taps == &[(at, 1.0)]);
        if is_identity {
            continue;
        }
        let most = taps.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let (mut places, mut weights) = (Vec::new(), Vec::new());
        for taps in &taps {
            for at in 0..most {
                // A weight of 0 stands for no element.
                let (place, weight) = taps.get(at).copied().unwrap_or((0, 0.0));
                places.push(i32::try_from(place).ok()?);
                weights.push(weight);
            }
        }
        tables.push(Table { axis, taps: most, places, weights });
    }
    Some(tables)
}

fn write_moves(site: &Site, tables: &[Table]) -> String {
    let index = resize_index(site);
    let mut body = axis_indices(&site.out_shape(0), &site.out_strides(0), index);
    let own = site.strides(0);
    let place = |axis: usize| match tables.iter().find(|table| table.axis == axis) {
        Some(_) => format!("({index})places{axis}[i{axis}]"),
        None => format!("i{axis}"),
    };
    let from = offset_sum((0..own.len()).map(|axis| (place(axis), own[axis] as i64)), index);
    let _ = writeln!(body, "y[at] = x[{from}];");
    body
}

fn write_sums(site: &Site, tables: &[Table], dtype: DType, weight: &str) -> String {
    let index = resize_index(site);
    let mut body = axis_indices(&site.out_shape(0), &site.out_strides(0), index);
    let own = site.strides(0);
    let is_resized = |axis: usize| tables.iter().any(|table| table.axis == axis);
    let place = |axis: usize| if is_resized(axis) { format!("({index})p{axis}") } else { format!("i{axis}") };
    let from = offset_sum((0..own.len()).map(|axis| (place(axis), own[axis] as i64)), index);
    let mut product: Vec<String> = tables.iter().map(|table| format!("w{}", table.axis)).collect();
    product.push(format!("({weight}){}", load(dtype, &format!("x[{from}]"))));
    let mut text = format!("total += {};\n", product.join(" * "));
    for Table { axis, taps, .. } in tables.iter().rev() {
        text = format!(
            "for (u32 t{axis} = 0; t{axis} < {taps}u; t{axis}++) {{\n    const {weight} w{axis} = weights{axis}[i{axis} * {taps}u + t{axis}];\n    if (w{axis} == 0) continue;\n    const i32 p{axis} = places{axis}[i{axis} * {taps}u + t{axis}];\n{}}}\n",
            indent(&text)
        );
    }
    let value = if dtype.is_float() {
        element(dtype, "total")
    } else {
        format!("to_int<{}>(of_rint(total))", memory_type(dtype).unwrap_or("i32"))
    };
    let _ = write!(body, "{weight} total = 0;\n{text}y[at] = {value};\n");
    body
}
