//! Reductions, index reductions and running sums. The lanes of a team take turns on the elements of a row and combine
//! what they have in a fixed tree; long rows of few results are cut in parts, which a second launch combines.

use std::fmt::Write as _;

use precast_ir::op::{ArgFn, ArgReduce, Cumulate, CumulateFn, Reduce, ReduceFn};
use precast_tensor::DType;

use crate::element::{element, float_literal, int_literal, is_narrow, load, memory_type, value_type};
use crate::kernel::{Launch, Lowered};
use crate::nest::{BLOCK, Kernel, Nest, Param, index_type, signed};
use crate::ops::elementwise::split_by;
use crate::site::Site;
use crate::team::{Rows, Team};

/// Elements of a part of a long row.
const PART: usize = 4096;
/// Parts of a row.
const PARTS_MAX: usize = 512;
/// Lines that one thread each runs along, when there are so many that every multiprocessor has work.
const LINES_MIN: usize = 4096;
/// Lines up to this length are run along by one thread.
const LINE_MAX: usize = 64;

/// How a function reduces: what a lane starts from, what an element adds, how lanes are combined, and what comes out.
struct Recipe {
    /// Type of the accumulator.
    ty: &'static str,
    start: String,
    /// Of `total` and `v`.
    step: String,
    functor: &'static str,
    /// Of `total`.
    finish: String,
}

/// Reduces over axes.
pub fn lower_reduce(site: &Site, op: &Reduce) -> Option<Lowered> {
    let dtype = site.dtype(0);
    let shape = site.shape(0);
    let length: usize = op.axes.iter().map(|&axis| shape[axis]).product();
    if is_narrow(dtype) || value_type(dtype).is_none() {
        return None;
    }
    let out = kept_strides(site, &op.axes, op.keep_dims);
    let mut rows = Rows::new(&shape, &op.axes, &out, &[signed(&site.strides(0)), signed(&out)]);
    let name = format!("reduce.{}", op.func.name());
    if op.func == ReduceFn::LogSumExp {
        return Some(Lowered::one(name, log_sum_exp(site, &rows, length, dtype)?));
    }
    let recipe = recipe(op.func, dtype, length)?;
    let width = rows.width(dtype, &[0]);
    split_by(&mut rows.inner, width);
    let words = length / width;
    let team = Team::new(words, rows.is_along, BLOCK as usize);
    let blocks = rows.outer.count().div_ceil(team.columns());
    let wanted_blocks = 2 * site.arch.multiprocessors.max(1) as usize;
    let index = index_type(&[shape.iter().product()]);
    let param = Param::read(0, "x", memory_type(dtype)?).by_rows();
    let source = Source { param, load: load_number(op.func, dtype), width, index };
    let y = Param::write(0, "y", memory_type(dtype)?).by_rows();
    let target = Target { param: y, value: element(dtype, &recipe.finish) };
    if length < 2 * PART || blocks >= wanted_blocks {
        return Some(Lowered::one(name, reduce_launch(&rows, words, &team, &recipe, &source, &target, 1)));
    }
    let count = rows.outer.count();
    let parts = length.div_ceil(PART).min(PARTS_MAX);
    let partial = Target { param: Param::scratch(0, "y", recipe.ty), value: "total".to_string() };
    let first = reduce_launch(&rows, words, &team, &recipe, &source, &partial, parts);
    // The parts of a result lie `count` apart, in the order of the result.
    let source = Source { param: Param::scratch(0, "x", recipe.ty), load: ELEMENT.to_string(), width: 1, index };
    let out_extents: Vec<usize> = rows.outer.axes.iter().map(|axis| axis.extent).collect();
    let mut numbered = rows.outer.clone();
    let mut stride = 1;
    for (axis, extent) in out_extents.iter().enumerate().rev() {
        let to = numbered.axes[axis].strides[1];
        numbered.axes[axis].strides = vec![stride, to];
        stride *= *extent as i64;
    }
    let inner = Nest { axes: vec![crate::nest::Axis { extent: parts, strides: vec![count as i64, 0] }] };
    let second_rows = Rows { outer: numbered, inner, is_along: false };
    let step = combine_step(recipe.functor);
    let second_recipe = Recipe { step, ..recipe };
    let team = Team::new(parts, false, BLOCK as usize);
    let second = reduce_launch(&second_rows, parts, &team, &second_recipe, &source, &target, 1);
    let bytes = (count * parts * type_bytes(second_recipe.ty)) as u64;
    Some(Lowered {
        name: format!("{name}.split"),
        launches: vec![first, second],
        scratch_bytes: vec![bytes],
        packed: Vec::new(),
    })
}

fn type_bytes(ty: &str) -> usize {
    if matches!(ty, "f64" | "i64" | "u64") { 8 } else { 4 }
}

/// Strides of the result over the axes of the operand; 0 where an axis goes.
fn kept_strides(site: &Site, axes: &[usize], keep_dims: bool) -> Vec<usize> {
    let out = site.out_strides(0);
    let mut kept = out.into_iter();
    let rank = site.shape(0).len();
    let strides = (0..rank).map(|axis| match (axes.contains(&axis), keep_dims) {
        (false, _) => kept.next().unwrap_or(0),
        (true, true) => {
            kept.next();
            0
        }
        (true, false) => 0,
    });
    strides.collect()
}

struct Source {
    param: Param,
    /// The value of `ELEMENT`.
    load: String,
    /// Elements that are read at once.
    width: usize,
    index: &'static str,
}

struct Target {
    param: Param,
    value: String,
}

/// An element in memory, as recipes name it.
const ELEMENT: &str = "x[at]";

/// The launch that reduces rows of `words` words, each cut in `parts`; parts lie one result apart.
fn reduce_launch(
    rows: &Rows,
    words: usize,
    team: &Team,
    recipe: &Recipe,
    source: &Source,
    target: &Target,
    parts: usize,
) -> Launch {
    let index = source.index;
    let Recipe { ty, start, step, .. } = recipe;
    let part = words.div_ceil(parts);
    let mut body = rows.outer.indices("i", "row", index);
    let _ = writeln!(body, "const {index} from = {};", rows.outer.offset("i", 0, index));
    let _ = writeln!(body, "{ty} total = {start};");
    let (begin, end) = if parts == 1 {
        ("lane".to_string(), format!("{words}u"))
    } else {
        let _ = writeln!(body, "const {index} begin = ({index})blockIdx.y * {part}u;");
        let _ = writeln!(body, "const {index} end = begin + {part}u < {words}u ? begin + {part}u : {words}u;");
        ("begin + lane".to_string(), "end".to_string())
    };
    let mut inner = rows.inner.indices("j", "word", index);
    let _ = writeln!(inner, "const {index} at = from + {};", rows.inner.offset("j", 0, index));
    let _ = match source.width {
        1 => writeln!(inner, "const auto v = {};\ntotal = {step};", source.load),
        width => writeln!(
            inner,
            "const auto read = load_vec<{width}>(x + at);\nUNROLL\nfor (int k = 0; k < {width}; k++) {{\n    const auto v = {};\n    total = {step};\n}}",
            source.load.replace(ELEMENT, "read.at[k]")
        ),
    };
    let _ = write!(
        body,
        "if (is_row)\n    for ({index} word = {begin}; word < {end}; word += {}u) {{\n{}    }}\n",
        team.lanes,
        crate::nest::indent(&crate::nest::indent(&inner))
    );
    let _ = writeln!(body, "total = {};", team.combine("total", recipe.functor));
    let to = if parts == 1 {
        rows.outer.offset("i", 1, index)
    } else {
        format!("({index})blockIdx.y * ({index})rows + row")
    };
    let _ = writeln!(body, "if (lane == 0 && is_row) y[{to}] = {};", target.value);
    let text = format!("SHARED({ty}, shared, {});\n{}", team.threads, team.for_each_row(index, &body));
    let count = rows.outer.count();
    let entry = if parts == 1 { "reduce" } else { "reduce_parts" };
    let kernel = Kernel::new(entry, vec![source.param.clone(), target.param.clone()]).scalar("rows", count);
    let mut launch = kernel.blocks(count.div_ceil(team.columns()), team.threads as u32, &text);
    launch.grid[1] = parts as u32;
    launch
}

/// An element as the number that a function works on.
fn load_number(func: ReduceFn, dtype: DType) -> String {
    let value = load(dtype, ELEMENT);
    let is_real = matches!(func, ReduceFn::L2 | ReduceFn::LogSum | ReduceFn::LogSumExp);
    if is_real && !dtype.is_float() { format!("(f64){value}") } else { value }
}

fn combine_step(functor: &str) -> String {
    format!("{functor}()(total, v)")
}

fn recipe(func: ReduceFn, dtype: DType, length: usize) -> Option<Recipe> {
    if dtype.is_float() {
        return float_recipe(func, dtype, length);
    }
    let (least, most) = dtype.int_range().unwrap_or((0, 1));
    let wide = if dtype.bits() > 32 { "u64" } else { "u32" };
    let own = match (dtype.bits() > 32, dtype.is_signed()) {
        (true, true) => "i64",
        (true, false) => "u64",
        (false, true) => "i32",
        (false, false) => "u32",
    };
    let end = |value: i128| int_literal(if dtype.is_bool() { DType::U8 } else { dtype }, value);
    let sum = |step: &str| Recipe {
        ty: wide,
        start: "0".to_string(),
        step: step.to_string(),
        functor: "Add",
        finish: "total".to_string(),
    };
    let limit = |start: i128, functor: &'static str| Recipe {
        ty: own,
        start: end(start),
        step: format!("{functor}()(total, ({own})v)"),
        functor,
        finish: "total".to_string(),
    };
    Some(match func {
        ReduceFn::Sum => sum(&format!("total + ({wide})v")),
        ReduceFn::Prod => Recipe { start: "1".to_string(), functor: "Multiply", ..sum(&format!("total * ({wide})v")) },
        ReduceFn::L1 => sum(&format!("total + (v < 0 ? ({wide})0 - ({wide})v : ({wide})v)")),
        ReduceFn::SumSq => sum(&format!("total + ({wide})v * ({wide})v")),
        // The reference sums exactly, which 64 bits of a 64-bit type cannot.
        ReduceFn::Mean if dtype.bits() > 32 => return None,
        ReduceFn::Mean => {
            let finish = if length == 0 { "0".to_string() } else { format!("total / (i64){length}") };
            Recipe { ty: "i64", finish, ..sum("total + (i64)v") }
        }
        ReduceFn::Max | ReduceFn::Any => limit(least, "GreaterInt"),
        ReduceFn::Min | ReduceFn::All => limit(most, "LesserInt"),
        ReduceFn::L2 | ReduceFn::LogSum => {
            let real = float_recipe(func, DType::F64, length)?;
            Recipe { finish: format!("to_int<{}>({})", memory_type(dtype)?, real.finish), ..real }
        }
        ReduceFn::LogSumExp => return None,
    })
}

fn float_recipe(func: ReduceFn, dtype: DType, length: usize) -> Option<Recipe> {
    let ty = if dtype == DType::F64 { "f64" } else { "f32" };
    let number = |x: f64| float_literal(dtype, x);
    let sum = |step: &str, finish: &str| Recipe {
        ty,
        start: number(0.0),
        step: step.to_string(),
        functor: "Add",
        finish: finish.to_string(),
    };
    let limit = |start: f64, functor: &'static str| Recipe {
        ty,
        start: number(start),
        step: combine_step(functor),
        functor,
        finish: "total".to_string(),
    };
    Some(match func {
        ReduceFn::Sum => sum("total + v", "total"),
        ReduceFn::Mean => sum("total + v", &format!("total / {}", number(length as f64))),
        ReduceFn::Prod => Recipe { start: number(1.0), functor: "Multiply", ..sum("total * v", "total") },
        ReduceFn::Max => limit(f64::NEG_INFINITY, "GreaterFloat"),
        ReduceFn::Min => limit(f64::INFINITY, "LesserFloat"),
        ReduceFn::L1 => sum("total + of_fabs(v)", "total"),
        ReduceFn::L2 => sum("total + v * v", "of_sqrt(total)"),
        ReduceFn::SumSq => sum("total + v * v", "total"),
        ReduceFn::LogSum => sum("total + v", "of_log(total)"),
        ReduceFn::LogSumExp | ReduceFn::Any | ReduceFn::All => return None,
    })
}

/// The largest element is taken out of the sum first, in a pass of its own.
fn log_sum_exp(site: &Site, rows: &Rows, length: usize, dtype: DType) -> Option<Launch> {
    let shape = site.shape(0);
    let index = index_type(&[shape.iter().product()]);
    let team = Team::new(length, rows.is_along, BLOCK as usize);
    let real = if dtype.is_float() { dtype } else { DType::F64 };
    let ty = value_type(real)?;
    let lowest = float_literal(real, f64::NEG_INFINITY);
    let mut body = rows.outer.indices("i", "row", index);
    let _ = writeln!(body, "const {index} from = {};", rows.outer.offset("i", 0, index));
    let mut inner = rows.inner.indices("j", "element", index);
    let _ = writeln!(inner, "const {index} at = from + {};", rows.inner.offset("j", 0, index));
    let _ = writeln!(inner, "const {ty} v = {};", load_number(ReduceFn::LogSumExp, dtype));
    let pass = |step: &str| {
        format!(
            "if (is_row)\n    for ({index} element = lane; element < {length}u; element += {}u) {{\n{}        {step}\n    }}\n",
            team.lanes,
            crate::nest::indent(&crate::nest::indent(&inner))
        )
    };
    let _ = write!(body, "{ty} largest = {lowest};\n{}", pass("largest = max_float(largest, v);"));
    let _ = writeln!(body, "largest = {};", team.combine("largest", "GreaterFloat"));
    let _ = writeln!(body, "const bool is_finite = of_fabs(largest) < -{lowest};");
    let _ = write!(body, "{ty} total = 0;\n{}", pass("total += of_exp(v - largest);"));
    let _ = writeln!(body, "total = {};", team.combine("total", "Add"));
    let _ = writeln!(body, "const {ty} result = is_finite ? largest + of_log(total) : largest;");
    let value =
        if dtype.is_float() { element(dtype, "result") } else { format!("to_int<{}>(result)", memory_type(dtype)?) };
    let _ = writeln!(body, "if (lane == 0 && is_row) y[{}] = {value};", rows.outer.offset("i", 1, index));
    let text = format!("SHARED({ty}, shared, {});\n{}", team.threads, team.for_each_row(index, &body));
    let ty = memory_type(dtype)?;
    let params = vec![Param::read(0, "x", ty).by_rows(), Param::write(0, "y", ty).by_rows()];
    let count = rows.outer.count();
    let kernel = Kernel::new("log_sum_exp", params).scalar("rows", count);
    Some(kernel.blocks(count.div_ceil(team.columns()), team.threads as u32, &text))
}

/// The place of the largest or smallest element along an axis.
pub fn lower_arg_reduce(site: &Site, op: &ArgReduce) -> Option<Lowered> {
    let dtype = site.dtype(0);
    let ty = value_type(dtype)?;
    let shape = site.shape(0);
    let length = shape[op.axis];
    if length == 0 {
        return None;
    }
    let out = kept_strides(site, &[op.axis], op.keep_dims);
    let rows = Rows::new(&shape, &[op.axis], &out, &[signed(&site.strides(0)), signed(&out)]);
    let team = Team::new(length, rows.is_along, BLOCK as usize);
    let index = index_type(&[shape.iter().product()]);
    // NaN is the largest and equals itself. A place beyond the axis stands for no element.
    let (symbol, wins_by_nan) = match op.func {
        ArgFn::Max => (">", "a != a && b == b"),
        ArgFn::Min => ("<", "a == a && b != b"),
    };
    let tie = if op.last { ">" } else { "<" };
    let declarations = format!(
        "DEVICE bool is_better({ty} a, u32 a_place, {ty} b, u32 b_place) {{
    if (a_place >= {length}u) return false;
    if (b_place >= {length}u || a {symbol} b || ({wins_by_nan})) return true;
    return (a == b || (a != a && b != b)) && a_place {tie} b_place;
}}
"
    );
    let mut body = rows.outer.indices("i", "row", index);
    let _ = writeln!(body, "const {index} from = {};", rows.outer.offset("i", 0, index));
    let stride = site.strides(0)[op.axis];
    let _ = write!(
        body,
        "{ty} best = 0;
u32 place = {length}u;
if (is_row)
    for (u32 element = lane; element < {length}u; element += {lanes}u) {{
        const {ty} v = {};
        if (is_better(v, element, best, place)) {{
            best = v;
            place = element;
        }}
    }}
sync_block();
bests[threadIdx.x] = best;
places[threadIdx.x] = place;
sync_block();
for (u32 step = {half}u; step > 0; step >>= 1) {{
    if (lane < step) {{
        const u32 other = threadIdx.x + step * {lane_step}u;
        if (is_better(bests[other], places[other], bests[threadIdx.x], places[threadIdx.x])) {{
            bests[threadIdx.x] = bests[other];
            places[threadIdx.x] = places[other];
        }}
    }}
    sync_block();
}}
if (lane == 0 && is_row) y[{}] = (i64)places[threadIdx.x];
",
        load(dtype, &format!("x[from + element * ({index}){stride}]")),
        rows.outer.offset("i", 1, index),
        lanes = team.lanes,
        half = team.lanes / 2,
        lane_step = team.lane_step(),
    );
    let text = format!(
        "SHARED({ty}, bests, {threads});\nSHARED(u32, places, {threads});\n{}",
        team.for_each_row(index, &body),
        threads = team.threads,
    );
    let params = vec![Param::read(0, "x", memory_type(dtype)?).by_rows(), Param::write(0, "y", "i64").by_rows()];
    let count = rows.outer.count();
    let kernel = Kernel::new("arg_reduce", params).scalar("rows", count).declare(declarations);
    let launch = kernel.blocks(count.div_ceil(team.columns()), team.threads as u32, &text);
    Some(Lowered::one(format!("arg_reduce.{}", op.func.name()), launch))
}

/// Running sum or product along an axis: a thread for each line where lines are short or many, else a block.
pub fn lower_cumulate(site: &Site, op: &Cumulate) -> Option<Lowered> {
    let dtype = site.dtype(0);
    if is_narrow(dtype) || dtype.is_bool() {
        return None;
    }
    let ty = value_type(dtype)?;
    let shape = site.shape(0);
    let length = shape[op.axis];
    let (own, out) = (site.strides(0), site.out_strides(0));
    let rows = Rows::new(&shape, &[op.axis], &out, &[signed(&own), signed(&out)]);
    let count = rows.outer.count();
    let index = index_type(&[shape.iter().product()]);
    let acc = if dtype.is_float() {
        ty
    } else if dtype.bits() > 32 {
        "u64"
    } else {
        "u32"
    };
    let (symbol, start) = match op.func {
        CumulateFn::Sum => ("+", "0"),
        CumulateFn::Prod => ("*", "1"),
    };
    let x = load(dtype, &format!("x[from + along * ({index}){}]", own[op.axis]));
    let place = format!("y[to + along * ({index}){}]", out[op.axis]);
    let along = if op.reverse { format!("{} - element", length - 1) } else { "element".to_string() };
    let places = format!(
        "const {index} from = {}, to = {};\n",
        rows.outer.offset("i", 0, index),
        rows.outer.offset("i", 1, index)
    );
    let shown = if op.exclusive { "before" } else { "after" };
    let value = element(dtype, shown);
    let params = vec![Param::read(0, "x", memory_type(dtype)?), Param::write(0, "y", memory_type(dtype)?)];
    if length <= LINE_MAX || count >= LINES_MIN {
        let mut body = rows.outer.indices("i", "at", index);
        let _ = write!(
            body,
            "{places}{acc} total = {start};
for ({index} element = 0; element < {length}u; element++) {{
    const {index} along = {along};
    const {acc} before = total, after = before {symbol} ({acc}){x};
    {place} = {value};
    total = after;
}}
"
        );
        let launch = Kernel::new("cumulate", params).for_each(count, index, &body);
        return Some(Lowered::one("cumulate.line", launch));
    }
    let mut body = rows.outer.indices("i", "row", index);
    let _ = write!(
        body,
        "{places}{acc} carried = {start};
for ({index} first = 0; first < {length}u; first += {BLOCK}u) {{
    const {index} element = first + threadIdx.x;
    const bool is_inside = element < {length}u;
    const {index} along = is_inside ? {along} : 0;
    {acc} after = is_inside ? ({acc}){x} : ({acc}){start};
    // A scan in log steps: what a thread has covers twice as many elements after each.
    for (u32 step = 1; step < {BLOCK}u; step <<= 1) {{
        shared[threadIdx.x] = after;
        sync_block();
        if (threadIdx.x >= step) after = shared[threadIdx.x - step] {symbol} after;
        sync_block();
    }}
    shared[threadIdx.x] = after;
    sync_block();
    const {acc} before = threadIdx.x == 0 ? carried : carried {symbol} shared[threadIdx.x - 1];
    after = carried {symbol} after;
    carried = carried {symbol} shared[{last}];
    sync_block();
    if (is_inside) {place} = {value};
}}
",
        last = BLOCK - 1,
    );
    let text = format!(
        "SHARED({acc}, shared, {BLOCK});\nfor ({index} row = blockIdx.x; row < ({index})rows; row += gridDim.x) {{\n{}}}\n",
        crate::nest::indent(&body)
    );
    let kernel = Kernel::new("cumulate", params).scalar("rows", count);
    Some(Lowered::one("cumulate.block", kernel.blocks(count, BLOCK, &text)))
}
