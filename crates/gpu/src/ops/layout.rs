//! Ops that make or move elements without computing on them. Elements travel as words of their size.

use std::fmt::Write as _;

use precast_ir::op::{Concat, DimValue, Iota, Pad, PadFn, Slice, Transpose};
use precast_tensor::{DType, Dim};

use crate::element::{element, memory_type, word_type};
use crate::kernel::{Launch, Lowered, Operand};
use crate::nest::{BLOCK, Kernel, Nest, Param, axis_indices, broadcast_strides, index_type, offset_sum, signed};
use crate::ops::elementwise::{split_by, vector_width};
use crate::site::{Site, dense_strides};

/// Side of the square that a block transposes in shared memory.
const TILE: usize = 32;
/// Sides below this are moved without shared memory: most of a square would be empty.
const TILE_SIDE_MIN: usize = 8;
/// Inputs that one launch joins.
const CONCAT_INPUTS_MAX: usize = 384;

/// A strided copy of some elements of an operand to some elements of a result.
struct Copy {
    input: usize,
    shape: Vec<usize>,
    from: Vec<i64>,
    from_start: usize,
    to: Vec<i64>,
    to_start: usize,
}

/// Output axis i is input axis perm[i].
pub fn lower_transpose(site: &Site, op: &Transpose) -> Option<Lowered> {
    let own = site.strides(0);
    let from: Vec<i64> = op.perm.iter().map(|&axis| own[axis] as i64).collect();
    Some(whole(site, from, 0, "transpose"))
}

/// The same elements, repeated along axes.
pub fn lower_broadcast(site: &Site) -> Option<Lowered> {
    let from = broadcast_strides(&site.shape(0), &site.strides(0), &site.out_shape(0));
    Some(whole(site, from, 0, "broadcast"))
}

/// Elements start + i * step of every axis.
pub fn lower_slice(site: &Site, op: &Slice) -> Option<Lowered> {
    let (own, shape) = (site.strides(0), site.out_shape(0));
    let mut start = 0;
    let mut from = Vec::new();
    for axis in 0..shape.len() {
        start += number(&op.start[axis])? as usize * own[axis];
        from.push(if shape[axis] == 1 { 0 } else { op.step[axis] * own[axis] as i64 });
    }
    Some(whole(site, from, start, "slice"))
}

/// The same bytes under another shape or element type; where elements do not lie in row-major order they move.
pub fn lower_view(site: &Site) -> Option<Lowered> {
    let (shape, x_shape) = (site.out_shape(0), site.shape(0));
    let (strides, x_strides) = (site.out_strides(0), site.strides(0));
    let is_plain = |shape: &[usize], strides: &[usize]| dense_strides(shape, false) == strides;
    if shape == x_shape {
        return Some(whole(site, signed(&x_strides), 0, "copy"));
    }
    if is_plain(&shape, &strides) && is_plain(&x_shape, &x_strides) {
        let count = shape.iter().product();
        let copy = Copy { input: 0, shape: vec![count], from: vec![1], from_start: 0, to: vec![1], to_start: 0 };
        return Some(Lowered::one("copy", copy_launch(site, &copy)));
    }
    let index = index_type(&[shape.iter().product()]);
    let mut body = axis_indices(&shape, &strides, index);
    let row_major = dense_strides(&shape, false).into_iter().enumerate();
    let terms = row_major.map(|(axis, stride)| (format!("i{axis}"), stride as i64));
    let _ = writeln!(body, "{index} number = {};", offset_sum(terms, index));
    let nest = Nest {
        axes: x_shape
            .iter()
            .zip(signed(&x_strides))
            .map(|(&extent, stride)| crate::nest::Axis { extent, strides: vec![stride] })
            .collect(),
    };
    if !nest.axes.is_empty() {
        body.push_str(&nest.indices("j", "number", index));
    }
    let _ = writeln!(body, "y[at] = x[{}];", nest.offset("j", 0, index));
    let ty = word_type(site.dtype(0));
    let params = vec![Param::read(0, "x", ty).by_rows(), Param::write(0, "y", ty).by_rows()];
    Some(Lowered::one("reshape", Kernel::new("reshape", params).for_each(shape.iter().product(), index, &body)))
}

/// A copy that fills the whole first result.
fn whole(site: &Site, from: Vec<i64>, from_start: usize, name: &str) -> Lowered {
    let to = signed(&site.out_strides(0));
    let copy = Copy { input: 0, shape: site.out_shape(0), from, from_start, to, to_start: 0 };
    match tiled_launch(site, &copy) {
        Some(launch) => Lowered::one(format!("{name}.tile"), launch),
        None => Lowered::one(name, copy_launch(site, &copy)),
    }
}

fn copy_index(site: &Site, copy: &Copy) -> &'static str {
    let count = |shape: Vec<usize>| shape.iter().product::<usize>();
    index_type(&[count(site.shape(copy.input)), count(site.out_shape(0))])
}

/// One thread for each word; iterates in the order of the result.
fn copy_launch(site: &Site, copy: &Copy) -> Launch {
    let dtype = site.dtype(copy.input);
    let order: Vec<usize> = copy.to.iter().map(|&stride| stride as usize).collect();
    let mut nest = Nest::new(&copy.shape, &order, &[copy.from.clone(), copy.to.clone()]);
    let mut width = vector_width(&nest, &[dtype]);
    // Words are stored whole, so the result has to be a run; where both begin decides how they are aligned.
    let is_run = nest.axes.last().is_some_and(|axis| axis.strides[1] == 1);
    let is_aligned = copy.from_start.is_multiple_of(width) && copy.to_start.is_multiple_of(width);
    if !is_run || !is_aligned {
        width = 1;
    }
    let index = copy_index(site, copy);
    let is_vector = split_by(&mut nest, width);
    let mut body = nest.indices("i", "at", index);
    let at = |start: usize, offset: String| if start == 0 { offset } else { format!("{start}u + {offset}") };
    let from = at(copy.from_start, nest.offset("i", 0, index));
    let to = at(copy.to_start, nest.offset("i", 1, index));
    let ty = word_type(dtype);
    let _ = match (width, is_vector[0]) {
        (1, _) => writeln!(body, "y[({index})({to})] = x[({index})({from})];"),
        (_, true) => {
            writeln!(body, "store_vec<{width}>(y + ({index})({to}), load_vec<{width}>(x + ({index})({from})));")
        }
        (_, false) => writeln!(
            body,
            "const {ty} repeated = x[({index})({from})];\nVec<{ty}, {width}> word;\nUNROLL\nfor (int k = 0; k < {width}; k++) word.at[k] = repeated;\nstore_vec<{width}>(y + ({index})({to}), word);"
        ),
    };
    let params = vec![Param::read(copy.input, "x", ty).by_rows(), Param::write(0, "y", ty).by_rows()];
    Kernel::new("copy", params).for_each(nest.count(), index, &body)
}

/// A copy whose operand and result are runs along different axes goes through squares in shared memory, so that loads and
/// stores are both of neighbours.
fn tiled_launch(site: &Site, copy: &Copy) -> Option<Launch> {
    let order: Vec<usize> = copy.to.iter().map(|&stride| stride as usize).collect();
    let nest = Nest::new(&copy.shape, &order, &[copy.from.clone(), copy.to.clone()]);
    let (last, outer) = nest.axes.split_last()?;
    let across = outer.iter().position(|axis| axis.strides[0] == 1 && axis.extent >= TILE_SIDE_MIN)?;
    if copy.from_start != 0 || last.strides[0] <= 1 || last.extent < TILE_SIDE_MIN {
        return None;
    }
    let index = copy_index(site, copy);
    let across_axis = &nest.axes[across];
    let (rows, columns) = (last.extent, across_axis.extent);
    let (row_tiles, column_tiles) = (rows.div_ceil(TILE), columns.div_ceil(TILE));
    let batch_axes: Vec<_> =
        outer.iter().enumerate().filter(|(at, _)| *at != across).map(|(_, axis)| axis.clone()).collect();
    let batches: usize = batch_axes.iter().map(|axis| axis.extent).product();
    let batch = Nest { axes: batch_axes };
    let mut inner = format!(
        "const {index} column_first = tile % {column_tiles}u * {TILE}u;\nconst {index} row_first = tile / {column_tiles}u % {row_tiles}u * {TILE}u;\n"
    );
    if !batch.axes.is_empty() {
        inner.push_str(&batch.indices("i", &format!("tile / {}u", column_tiles * row_tiles), index));
    }
    let (from, to) = (batch.offset("i", 0, index), batch.offset("i", 1, index));
    let (row_stride, column_stride) = (last.strides[0], across_axis.strides[1]);
    let _ = write!(
        inner,
        "const {index} from = {from}, to = {to};
UNROLL
for ({index} step = 0; step < {TILE}u; step += {rows_at_once}u) {{
    const {index} column = column_first + threadIdx.x % {TILE}u, row = row_first + threadIdx.x / {TILE}u + step;
    if (column < {columns}u && row < {rows}u)
        square[(threadIdx.x / {TILE}u + step) * {padded}u + threadIdx.x % {TILE}u] = x[from + column + row * ({index}){row_stride}];
}}
sync_block();
UNROLL
for ({index} step = 0; step < {TILE}u; step += {rows_at_once}u) {{
    const {index} row = row_first + threadIdx.x % {TILE}u, column = column_first + threadIdx.x / {TILE}u + step;
    if (column < {columns}u && row < {rows}u)
        y[to + row + column * ({index}){column_stride}] = square[threadIdx.x % {TILE}u * {padded}u + threadIdx.x / {TILE}u + step];
}}
sync_block();
",
        rows_at_once = BLOCK as usize / TILE,
        padded = TILE + 1,
    );
    let ty = word_type(site.dtype(copy.input));
    let body = format!(
        "SHARED({ty}, square, {});\nfor ({index} tile = blockIdx.x; tile < ({index})tiles; tile += gridDim.x) {{\n{}}}\n",
        TILE * (TILE + 1),
        crate::nest::indent(&inner)
    );
    let tiles = row_tiles * column_tiles * batches;
    let params = vec![Param::read(copy.input, "x", ty).by_rows(), Param::write(0, "y", ty).by_rows()];
    Some(Kernel::new("transpose", params).scalar("tiles", tiles).blocks(tiles, BLOCK, &body))
}

/// Inputs joined along an axis: in one launch where all lie alike, else each by its own copy.
pub fn lower_concat(site: &Site, op: &Concat) -> Option<Lowered> {
    let shape = site.out_shape(0);
    let inputs: Vec<usize> = (0..site.node.inputs.len()).filter(|&input| !site.shape(input).contains(&0)).collect();
    let is_last = site.layouts.is_channels_last(site.node.outputs[0]) && shape.len() > 2;
    let lie_alike = inputs.iter().all(|&input| {
        let own = site.layouts.is_channels_last(site.node.inputs[input]) && shape.len() > 2;
        own == is_last
    });
    if lie_alike && inputs.len() > 1 {
        return Some(concat_rows(site, op, &inputs));
    }
    let strides = site.out_strides(0);
    let mut launches = Vec::new();
    let mut first = 0;
    for &input in &inputs {
        let own_shape = site.shape(input);
        let copy = Copy {
            input,
            from: signed(&site.strides(input)),
            from_start: 0,
            to: signed(&strides),
            to_start: first * strides[op.axis],
            shape: own_shape.clone(),
        };
        launches.push(copy_launch(site, &copy));
        first += own_shape[op.axis];
    }
    Some(Lowered { name: "concat.copies".to_string(), launches, scratch_bytes: Vec::new(), packed: Vec::new() })
}

/// Row r of the result is row r of every input, one after the other; a row is what the axis and all inside it hold.
fn concat_rows(site: &Site, op: &Concat, inputs: &[usize]) -> Lowered {
    let (shape, strides, dtype) = (site.out_shape(0), site.out_strides(0), site.out_dtype(0));
    let inner = strides[op.axis];
    let row = shape[op.axis] * inner;
    let lengths: Vec<usize> = inputs.iter().map(|&input| site.shape(input)[op.axis] * inner).collect();
    let rows = shape.iter().product::<usize>() / row;
    let width = [8, 4, 2]
        .into_iter()
        .find(|width| width * dtype.size_bytes() <= 16 && lengths.iter().all(|length| length % width == 0));
    let width = width.unwrap_or(1);
    let ty = word_type(dtype);
    let index = index_type(&[shape.iter().product()]);
    let mut launches = Vec::new();
    let mut first = 0;
    for (chunk, chunk_lengths) in inputs.chunks(CONCAT_INPUTS_MAX).zip(lengths.chunks(CONCAT_INPUTS_MAX)) {
        let length: usize = chunk_lengths.iter().sum();
        let mut params = Vec::new();
        let mut body =
            format!("const {index} column = at % {}u * {width}u, row = at / {}u;\n", length / width, length / width);
        let _ = writeln!(body, "Chosen<const {ty}> x;\n{index} place;");
        let mut starts = vec![0];
        for (at, (&input, own)) in chunk.iter().zip(chunk_lengths).enumerate() {
            params.push(Param::chosen(input, ty).by_rows());
            starts.push(starts[at] + own);
        }
        choose_input(&mut body, &starts, 0..chunk.len());
        params.push(Param::write(0, "y", ty).by_rows());
        let _ = writeln!(body, "const auto from = x.rows() + place;");
        let _ = writeln!(body, "const auto to = y + (row * {row}u + {first}u + column);");
        let _ = match width {
            1 => writeln!(body, "to[0] = from[0];"),
            _ => writeln!(body, "store_vec<{width}>(to, load_vec<{width}>(from));"),
        };
        launches.push(Kernel::new("concat", params).for_each(rows * length / width, index, &body));
        first += length;
    }
    Lowered { name: format!("concat.{width}"), launches, scratch_bytes: Vec::new(), packed: Vec::new() }
}

/// Lines that set `x` to the input that has `column`, and `place` to where in it, by halving.
fn choose_input(body: &mut String, starts: &[usize], inputs: std::ops::Range<usize>) {
    if inputs.len() == 1 {
        let (at, start) = (inputs.start, starts[inputs.start]);
        let own = starts[at + 1] - start;
        let _ = writeln!(body, "x = arg{at}.choose(), place = row * {own}u + column - {start}u;");
        return;
    }
    let middle = inputs.start + inputs.len() / 2;
    let _ = writeln!(body, "if (column < {}u) {{", starts[middle]);
    choose_input(body, starts, inputs.start..middle);
    body.push_str("} else {\n");
    choose_input(body, starts, middle..inputs.end);
    body.push_str("}\n");
}

/// x with elements added or removed at the ends of its axes.
pub fn lower_pad(site: &Site, op: &Pad) -> Option<Lowered> {
    let (shape, x_shape) = (site.out_shape(0), site.shape(0));
    let (strides, x_strides) = (site.out_strides(0), site.strides(0));
    let is_empty = x_shape.contains(&0);
    if is_empty && op.func != PadFn::Constant {
        return None;
    }
    // Signed arithmetic: places before the first element are negative.
    let wide = index_type(&[shape.iter().product(), x_shape.iter().product()]);
    let signed_index = if wide == "u32" { "i32" } else { "i64" };
    let mut body = axis_indices(&shape, &strides, wide);
    let mut inside = Vec::new();
    let mut terms = Vec::new();
    for axis in 0..shape.len() {
        let (lo, hi) = (number(&op.lo[axis])?, number(&op.hi[axis])?);
        if lo == 0 && hi == 0 {
            terms.push((format!("i{axis}"), x_strides[axis] as i64));
            continue;
        }
        let (first, end) = (-lo.min(0), x_shape[axis] as i64 + hi.min(0));
        let kept = end - first;
        if kept <= 0 && op.func != PadFn::Constant {
            return None;
        }
        let _ = writeln!(body, "{signed_index} s{axis} = ({signed_index})i{axis} - ({signed_index}){};", lo.max(0));
        let _ = match op.func {
            PadFn::Constant => {
                inside.push(format!("s{axis} >= 0 && s{axis} < ({signed_index}){kept}"));
                Ok(())
            }
            PadFn::Edge => {
                writeln!(body, "s{axis} = s{axis} < 0 ? 0 : s{axis} > {last} ? {last} : s{axis};", last = kept - 1)
            }
            PadFn::Wrap => writeln!(body, "s{axis} = (s{axis} % {kept} + {kept}) % {kept};"),
            PadFn::Reflect => {
                let period = (2 * (kept - 1)).max(1);
                writeln!(
                    body,
                    "s{axis} = (s{axis} % {period} + {period}) % {period};\ns{axis} = s{axis} < {period} - s{axis} ? s{axis} : {period} - s{axis};"
                )
            }
        };
        terms.push((format!("({wide})(s{axis} + {first})"), x_strides[axis] as i64));
    }
    let ty = word_type(site.dtype(0));
    let has_value = site.node.inputs.len() > 1;
    let value = if has_value { "value[0]" } else { "0" };
    let offset = offset_sum(terms, wide);
    let _ = match (is_empty, inside.is_empty()) {
        (true, _) => writeln!(body, "y[at] = {value};"),
        (false, true) => writeln!(body, "y[at] = x[{offset}];"),
        (false, false) => writeln!(body, "y[at] = {} ? x[{offset}] : ({ty}){value};", inside.join(" && ")),
    };
    let mut params = vec![Param::read(0, "x", ty)];
    if has_value {
        params.push(Param::read(1, "value", ty));
    }
    params.push(Param::write(0, "y", ty));
    let launch = Kernel::new("pad", params).for_each(shape.iter().product(), wide, &body);
    Some(Lowered::one(format!("pad.{}", op.func.name()), launch))
}

/// start + i * step.
pub fn lower_iota(site: &Site, op: &Iota) -> Option<Lowered> {
    let dtype = op.to;
    let ty = memory_type(dtype)?;
    let value = match dtype {
        DType::BF16 => "to_bf16(to_odd_f32(value))".to_string(),
        DType::F16 | DType::F32 | DType::F64 if dtype != DType::F64 => element(dtype, "(f32)value"),
        DType::U4 | DType::U2 | DType::I4 | DType::I2 => return None,
        _ => element(dtype, "value"),
    };
    let body = format!("const i64 value = (i64)((u64)start + at * (u64)step);\ny[at] = {value};\n");
    let mut kernel = Kernel::new("iota", vec![Param::write(0, "y", ty)]);
    kernel.scalars = vec![("start", number(&op.start)?), ("step", number(&op.step)?)];
    Some(Lowered::one("iota", kernel.for_each(site.out_shape(0)[0], "u64", &body)))
}

/// The value of a dim.
pub fn lower_dim_value(_: &Site, op: &DimValue) -> Option<Lowered> {
    let mut kernel = Kernel::new("dim_value", vec![Param::write(0, "y", "i64")]);
    kernel.scalars = vec![("value", number(&op.dim)?)];
    Some(Lowered::one("dim_value", kernel.for_each(1, "u32", "y[at] = value;\n")))
}

/// A copy of an operand to the whole first result, as the first launch of a node that then changes some of it.
pub fn copy_operand(site: &Site, input: usize) -> Launch {
    let copy = Copy {
        input,
        shape: site.out_shape(0),
        from: signed(&site.strides(input)),
        from_start: 0,
        to: signed(&site.out_strides(0)),
        to_start: 0,
    };
    let launch = copy_launch(site, &copy);
    debug_assert_eq!(launch.operands, [Operand::Read(input as u32), Operand::Write(0)]);
    launch
}

/// The number of a dim; every symbol is bound when a node is lowered.
pub fn number(dim: &Dim) -> Option<i64> {
    dim.as_const()
}
