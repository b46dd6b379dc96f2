//! Pooling. A window that holds only padding gives the least value, the index -1, or NaN for an average.

use std::fmt::Write as _;

use precast_ir::op::{Pool, PoolFn, PoolIndices};
use precast_tensor::{DType, Dim};

use crate::element::{element, float_literal, int_literal, is_narrow, load, memory_type, value_type};
use crate::kernel::Lowered;
use crate::nest::{Kernel, Param, axis_indices, indent, index_type, offset_sum};
use crate::ops::layout::number;
use crate::ops::offsets::common_width;
use crate::site::{Site, dense_strides};

/// The most bytes that a thread reads at once.
const LANE_BYTES: usize = 16;
/// Places below this are computed in 32 bits.
const NARROW_MAX: i64 = 1 << 30;

/// Pools windows: one thread for as many channels as lie together.
pub fn lower_pool(site: &Site, op: &Pool) -> Option<Lowered> {
    let dtype = site.dtype(0);
    let ty = value_type(dtype).filter(|_| !is_narrow(dtype))?;
    let windows = Windows::new(site, &op.window, &op.stride, &op.pad_lo, &op.pad_hi, &op.dilation)?;
    let windows = windows.with_lanes(site, LANE_BYTES / dtype.size_bytes());
    let (lanes, offset) = (windows.lanes, &windows.offset);
    let mut body = windows.begin();
    let _ = writeln!(body, "{ty} sums[{lanes}];\ni32 count = 0;");
    let mut for_each_element = |first: &str, each: &str| {
        let _ = writeln!(body, "UNROLL for (int e = 0; e < {lanes}; e++) sums[e] = {first};");
        let memory = memory_type(dtype)?;
        let load = load(dtype, "read.at[e]");
        body.push_str(&windows.for_each_place(&format!(
            "const Vec<{memory}, {lanes}> read = load_vec<{lanes}>(x + ({offset}));\nUNROLL for (int e = 0; e < {lanes}; \
             e++) {{\n    const {ty} v = {load};\n    {each}\n}}\ncount += 1;\n"
        )));
        Some(())
    };
    let value = match op.func {
        PoolFn::Max => {
            let take = "if (count == 0 || (sums[e] == sums[e] && !(v <= sums[e]))) sums[e] = v;";
            for_each_element(&least(dtype), take)?;
            "sums[e]".to_string()
        }
        PoolFn::Avg => {
            for_each_element("0", "sums[e] += v;")?;
            if op.count_pad {
                let _ = writeln!(body, "count = {};", windows.padded_count());
            }
            format!("sums[e] / ({ty})count")
        }
        PoolFn::Lp => {
            let p = float_literal(dtype, op.p as f64);
            let (term, root) = match op.p {
                1 => ("of_fabs(v)".to_string(), "sums[e]".to_string()),
                2 => ("v * v".to_string(), "of_sqrt(sums[e])".to_string()),
                _ => (
                    format!("of_pow(of_fabs(v), {p})"),
                    format!("of_pow(sums[e], {})", float_literal(dtype, 1.0 / op.p as f64)),
                ),
            };
            for_each_element("0", &format!("sums[e] += {term};"))?;
            root
        }
    };
    let memory = memory_type(dtype)?;
    let _ = writeln!(
        body,
        "Vec<{memory}, {lanes}> pooled;\nUNROLL for (int e = 0; e < {lanes}; e++) pooled.at[e] = {};\n\
         store_vec<{lanes}>(y + at * {lanes}u, pooled);",
        element(dtype, &value)
    );
    let params = vec![Param::read(0, "x", memory), Param::write(0, "y", memory)];
    let launch = Kernel::new("pool", params).for_each(windows.count, windows.index, &body);
    Some(Lowered::one(format!("pool.{}", op.func.name()), launch))
}

/// Places of the maxima of windows, in x in row-major order.
pub fn lower_pool_indices(site: &Site, op: &PoolIndices) -> Option<Lowered> {
    let dtype = site.dtype(0);
    let ty = value_type(dtype).filter(|_| !is_narrow(dtype))?;
    let windows = Windows::new(site, &op.window, &op.stride, &op.pad_lo, &op.pad_hi, &op.dilation)?;
    let spatial = &site.shape(0)[2..];
    let plane: usize = spatial.iter().product();
    let channels = site.shape(0)[1];
    let strides: Vec<usize> = if op.column_major {
        (0..spatial.len()).map(|axis| spatial[..axis].iter().product()).collect()
    } else {
        dense_strides(spatial, false)
    };
    let mut body = windows.begin();
    let v = load(dtype, &format!("x[{}]", windows.offset));
    let place =
        offset_sum(strides.iter().enumerate().map(|(axis, &stride)| (format!("(i64)p{axis}"), stride as i64)), "i64");
    let _ = writeln!(body, "{ty} best = 0;\ni64 place = -1;");
    body.push_str(&windows.for_each_place(&format!(
        "const {ty} v = {v};\nif (place < 0 || (best == best && !(v <= best))) {{\n    best = v;\n    place = {place};\n}}\n"
    )));
    let _ = writeln!(body, "y[at] = place < 0 ? -1 : ((i64)i0 * {channels} + (i64)i1) * {plane} + place;");
    let params = vec![Param::read(0, "x", memory_type(dtype)?), Param::write(0, "y", "i64")];
    let launch = Kernel::new("pool_indices", params).for_each(windows.count, windows.index, &body);
    Some(Lowered::one("pool_indices", launch))
}

/// The least value of a type.
fn least(dtype: DType) -> String {
    match dtype.int_range() {
        Some((least, _)) => int_literal(dtype, least),
        None => float_literal(dtype, f64::NEG_INFINITY),
    }
}

/// The windows of a node: text that runs along the places of one.
struct Windows {
    /// Channels of one thread, which lie together.
    lanes: usize,
    /// Threads.
    count: usize,
    index: &'static str,
    /// Type of places, which may be negative.
    signed: &'static str,
    indices: String,
    axes: Vec<WindowAxis>,
    /// Offset in x of a place.
    offset: String,
}

struct WindowAxis {
    window: usize,
    stride: usize,
    dilation: usize,
    pad_lo: i64,
    pad_hi: i64,
    extent: usize,
}

impl Windows {
    fn new(
        site: &Site,
        window: &[usize],
        stride: &[usize],
        pad_lo: &[Dim],
        pad_hi: &[Dim],
        dilation: &[usize],
    ) -> Option<Windows> {
        let (shape, x_shape) = (site.out_shape(0), site.shape(0));
        let axes: Vec<WindowAxis> = (0..window.len())
            .map(|axis| {
                Some(WindowAxis {
                    window: window[axis],
                    stride: stride[axis],
                    dilation: dilation[axis],
                    pad_lo: number(&pad_lo[axis])?,
                    pad_hi: number(&pad_hi[axis])?,
                    extent: x_shape[axis + 2],
                })
            })
            .collect::<Option<_>>()?;
        let is_narrow = axes.iter().enumerate().all(|(axis, own)| {
            let reach = shape[axis + 2] * own.stride + own.window * own.dilation + own.extent;
            (reach as i64) < NARROW_MAX && own.pad_lo.abs() < NARROW_MAX && own.pad_hi.abs() < NARROW_MAX
        });
        let index = index_type(&[shape.iter().product(), x_shape.iter().product()]);
        let windows = Windows {
            lanes: 1,
            count: 0,
            index,
            signed: if is_narrow { "i32" } else { "i64" },
            indices: String::new(),
            offset: String::new(),
            axes,
        };
        Some(windows.with_lanes(site, 1))
    }

    /// The same with as many channels a thread as lie together in x and in the result, up to `most`.
    fn with_lanes(self, site: &Site, most: usize) -> Windows {
        let (mut shape, own, out) = (site.out_shape(0), site.strides(0), site.out_strides(0));
        let outer = (0..shape.len()).filter(|&axis| axis != 1 && site.shape(0)[axis].max(shape[axis]) > 1);
        let pitches: Vec<usize> = outer.flat_map(|axis| [own[axis], out[axis]]).chain([shape[1]]).collect();
        let lanes = if own[1] == 1 && out[1] == 1 { common_width(most, &pitches) } else { 1 };
        shape[1] /= lanes;
        let index = self.index;
        let spatial = (0..self.axes.len()).map(|axis| (format!("({index})p{axis}"), own[axis + 2] as i64));
        let outer = [("i0".to_string(), own[0] as i64), ("i1".to_string(), (own[1] * lanes) as i64)];
        Windows {
            lanes,
            count: shape.iter().product(),
            indices: axis_indices(&shape, &out, index),
            offset: offset_sum(outer.into_iter().chain(spatial), index),
            ..self
        }
    }

    /// Where the window of the element begins.
    fn begin(&self) -> String {
        let signed = self.signed;
        let mut text = self.indices.clone();
        for (axis, WindowAxis { stride, pad_lo, .. }) in self.axes.iter().enumerate() {
            let _ = writeln!(text, "const {signed} s{axis} = ({signed})i{} * {stride} - ({pad_lo});", axis + 2);
        }
        text
    }

    /// `action` at every place of the window that lies in x, in order.
    fn for_each_place(&self, action: &str) -> String {
        let signed = self.signed;
        let mut text = action.to_string();
        for (axis, WindowAxis { window, dilation, extent, .. }) in self.axes.iter().enumerate().rev() {
            text = format!(
                "for ({signed} w{axis} = 0; w{axis} < {window}; w{axis}++) {{\n    const {signed} p{axis} = s{axis} + w{axis} * {dilation};\n    if (p{axis} < 0 || p{axis} >= {extent}) continue;\n{}}}\n",
                indent(&text)
            );
        }
        text
    }

    /// Places of the window that lie within x and its declared padding.
    fn padded_count(&self) -> String {
        let signed = self.signed;
        let counts = self.axes.iter().enumerate().map(|(axis, own)| {
            let end = own.extent as i64 + own.pad_hi;
            let (window, dilation) = (own.window, own.dilation);
            let steps = format!("({end} - s{axis} + {}) / {dilation}", dilation - 1);
            format!("(i32)(s{axis} >= {end} ? 0 : {steps} < ({signed}){window} ? {steps} : ({signed}){window})")
        });
        counts.collect::<Vec<_>>().join(" * ")
    }
}
