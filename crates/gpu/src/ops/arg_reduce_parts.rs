//! The place of the largest or smallest element of long rows, such as the scores of a vocabulary: many blocks have a row.

use std::fmt::Write as _;

use precast_ir::op::{ArgFn, ArgReduce};

use crate::element::{load, memory_type, value_type};
use crate::kernel::{ARG_REDUCE_PARTS, Launch, Lowered, Operand};
use crate::site::{Site, dense_strides};

/// Elements below which one block has a row.
const LENGTH_MIN: usize = 8192;
/// Elements of a part.
const SHARE: usize = 2048;
/// Threads of a block.
const THREADS: usize = 256;
/// Rows of a launch.
const ROWS_MAX: usize = 65535;

/// The kernels of a node whose rows are long and dense.
pub fn lower(site: &Site, op: &ArgReduce) -> Option<Lowered> {
    let (shape, dtype) = (site.shape(0), site.dtype(0));
    let length = shape[op.axis];
    let is_dense = site.strides(0) == dense_strides(&shape, false)
        && site.out_strides(0) == dense_strides(&site.out_shape(0), false);
    let rows: usize = shape[..op.axis].iter().product();
    if op.axis + 1 != shape.len() || length < LENGTH_MIN || !is_dense || rows == 0 || rows > ROWS_MAX {
        return None;
    }
    let (parts, length_text) = (length.div_ceil(SHARE), u32::try_from(length).ok()?);
    let value = value_type(dtype)?;
    let mut text = String::new();
    let _ = writeln!(text, "typedef {} T;\ntypedef {value} V;", memory_type(dtype)?);
    let _ = writeln!(text, "DEVICE V value_of(T x) {{ return {}; }}", load(dtype, "x"));
    let _ = writeln!(
        text,
        "constexpr u32 LENGTH = {length_text}u, SHARE = {SHARE}u, PARTS = {parts}u, THREADS = {THREADS}u;"
    );
    let _ = writeln!(text, "constexpr bool IS_LARGEST = {}, IS_LAST = {};", op.func == ArgFn::Max, op.last);
    text.push_str(ARG_REDUCE_PARTS);
    let launch = |entry: &str, body: &str, grid: [u32; 3], operands: &[Operand]| Launch {
        entry: entry.to_string(),
        text: format!("{text}KERNEL({entry}, THREADS, {body}\n"),
        grid,
        block: [THREADS as u32, 1, 1],
        shared_bytes: 0,
        operands: operands.to_vec(),
        scalars: Vec::new(),
        row_bytes: Vec::new(),
    };
    let first = launch(
        "find_parts",
        "Arg<const T, 0> x, Arg<V, 1> bests, Arg<u32, 2> places) { find_in_part(x.get(), bests.get(), places.get()); }",
        [parts as u32, rows as u32, 1],
        &[Operand::Read(0), Operand::Scratch(0), Operand::Scratch(1)],
    );
    let second = launch(
        "find",
        "Arg<const V, 0> bests, Arg<const u32, 1> places, Arg<i64, 2> y) { find_among_parts(bests.get(), places.get(), y.get()); }",
        [rows as u32, 1, 1],
        &[Operand::Scratch(0), Operand::Scratch(1), Operand::Write(0)],
    );
    Some(Lowered {
        name: format!("arg_reduce.{}.parts", op.func.name()),
        launches: vec![first, second],
        scratch_bytes: vec![(rows * parts * size_of::<u64>()) as u64, (rows * parts * size_of::<u32>()) as u64],
        packed: Vec::new(),
    })
}
