//! Pooling of regions of interest from samples between pixels. A batch index out of range reads the nearest image.

use std::fmt::Write as _;

use precast_ir::op::{PoolFn, RoiAlign};

use crate::element::{element, float_literal, load, memory_type, value_type};
use crate::kernel::Lowered;
use crate::nest::{Kernel, Param, axis_indices, index_type};
use crate::site::Site;

/// Samples along one axis of a bin: more would be a region larger than any image.
const BIN_SAMPLES_MAX: usize = 1 << 20;

/// The kernel of a node.
pub fn lower_roi_align(site: &Site, op: &RoiAlign) -> Option<Lowered> {
    let dtype = site.dtype(0);
    let ty = value_type(dtype)?;
    let (x_shape, shape) = (site.shape(0), site.out_shape(0));
    let (own, rois, batches) = (site.strides(0), site.strides(1), site.strides(2));
    if x_shape.contains(&0) {
        return None;
    }
    let [images, _, height, width] = x_shape[..] else { return None };
    let index = index_type(&[x_shape.iter().product(), shape.iter().product()]);
    let number = |x: f64| float_literal(dtype, x);
    let shift = number(if op.half_pixel { 0.5 } else { 0.0 });
    let size =
        if op.half_pixel { "end - start".to_string() } else { "end - start > 1 ? end - start : (T)1".to_string() };
    let samples = if op.sampling_ratio > 0 {
        op.sampling_ratio.to_string()
    } else {
        format!("to_int_within<i32>(of_ceil(axis.bin), 0, {BIN_SAMPLES_MAX})")
    };
    let declarations = format!(
        "typedef {ty} T;
struct RoiAxis {{
    T start, bin;
    i32 samples;
}};
DEVICE RoiAxis roi_axis(T from, T to, int bins) {{
    const T start = from * {scale} - {shift}, end = to * {scale} - {shift};
    RoiAxis axis;
    axis.start = start;
    axis.bin = ({size}) / (T)bins;
    axis.samples = {samples};
    return axis;
}}
// A sample along one axis: two pixels and how much of the second; a first pixel of -1 lies outside.
DEVICE void roi_sample(const RoiAxis &axis, u32 bin, i32 sample, int extent, i32 &low, i32 &high, T &part) {{
    T at = axis.start + (T)bin * axis.bin + ((T)sample + (T)0.5) * (axis.bin / (T)axis.samples);
    low = high = -1;
    part = 0;
    if (!(at >= -1 && at <= (T)extent)) return;
    at = at > 0 ? at : (T)0;
    low = (i32)at;
    high = low + 1;
    part = at - (T)low;
    if (low >= extent - 1) {{
        low = high = extent - 1;
        part = 0;
    }}
}}
",
        scale = number(op.spatial_scale),
    );
    let roi = |at: usize| load(dtype, &format!("rois[i0 * ({index}){} + {at} * ({index}){}]", rois[0], rois[1]));
    let pixel = |row: &str, column: &str| {
        load(
            dtype,
            &format!("x[image + ({index}){row} * ({index}){} + ({index}){column} * ({index}){}]", own[2], own[3]),
        )
    };
    let is_max = op.func == PoolFn::Max;
    let sample = if is_max { "max_float(max_float(max_float(a, b), c), d)" } else { "a + b + c + d" };
    let join = if is_max { "has_one ? max_float(pooled, sample) : sample" } else { "pooled + sample" };
    let mut body = axis_indices(&shape, &site.out_strides(0), index);
    let _ = write!(
        body,
        "const RoiAxis columns = roi_axis({}, {}, {});
const RoiAxis rows = roi_axis({}, {}, {});
const {index} image = ({index})axis_index((i64)batches[i0 * ({index}){}], {images}ll) * ({index}){} + i1 * ({index}){};
T pooled = 0;
bool has_one = false;
for (i32 row = 0; row < rows.samples; row++) {{
    i32 top, bottom;
    T down;
    roi_sample(rows, (u32)i2, row, {height}, top, bottom, down);
    for (i32 column = 0; column < columns.samples; column++) {{
        i32 left, right;
        T across;
        roi_sample(columns, (u32)i3, column, {width}, left, right, across);
        T sample = 0;
        if (top >= 0 && left >= 0) {{
            const T a = (1 - down) * (1 - across) * {}, b = (1 - down) * across * {};
            const T c = down * (1 - across) * {}, d = down * across * {};
            sample = {sample};
        }}
        pooled = {join};
        has_one = true;
    }}
}}
",
        roi(0),
        roi(2),
        op.output_width,
        roi(1),
        roi(3),
        op.output_height,
        batches[0],
        own[0],
        own[1],
        pixel("top", "left"),
        pixel("top", "right"),
        pixel("bottom", "left"),
        pixel("bottom", "right"),
    );
    let value = if is_max {
        "pooled".to_string()
    } else {
        "pooled / (T)(rows.samples * columns.samples > 1 ? rows.samples * columns.samples : 1)".to_string()
    };
    let _ = writeln!(body, "y[at] = {};", element(dtype, &value));
    let params = vec![
        Param::read(0, "x", memory_type(dtype)?),
        Param::read(1, "rois", memory_type(dtype)?),
        Param::read(2, "batches", memory_type(site.dtype(2))?),
        Param::write(0, "y", memory_type(dtype)?),
    ];
    let kernel = Kernel::new("roi_align", params).declare(declarations);
    Some(Lowered::one("roi_align", kernel.for_each(shape.iter().product(), index, &body)))
}
