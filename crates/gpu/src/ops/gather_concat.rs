//! A concatenation whose parts are looked up in tables, in one launch: a row of the result is a row of every part.

use std::fmt::Write as _;
use std::ops::Range;

use precast_ir::{Graph, Node, Op, ValueId};
use precast_passes::fuse_gathers::{RowSource, row_source};

use crate::element::word_type;
use crate::kernel::{Launch, Lowered};
use crate::nest::{Kernel, Param, index_type};
use crate::site::Site;

/// Buffers that one launch may have: their addresses must fit into the parameters of a kernel.
const BUFFERS_MAX: usize = 384;

/// Where a part of every row comes from: positions of the node's operands.
enum Source {
    Rows(usize),
    Table { table: usize, rows: usize, indices: usize },
}

/// One part of every row, in elements.
struct Part {
    source: Source,
    start: usize,
    length: usize,
}

/// The kernels of a body of gathers, their reshapes and one concatenation.
pub fn lower(site: &Site, body: &Graph) -> Option<Lowered> {
    let (concat, rest) = body.nodes().split_last()?;
    let Op::Concat(op) = &concat.op else { return None };
    let is_plain = |node: &Node| matches!(node.op, Op::Gather(_) | Op::Reshape(_));
    let operands = site.node.inputs.iter().chain(&site.node.outputs);
    if !rest.iter().all(is_plain) || operands.into_iter().any(|&value| site.layouts.is_channels_last(value)) {
        return None;
    }
    let shape = site.out_shape(0);
    let (mut parts, mut start) = (Vec::new(), 0);
    for &part in &concat.inputs {
        let length = body.ty(part).shape()?[op.axis..].iter().product::<usize>();
        parts.push(Part { source: source(site, body, part)?, start, length });
        start += length;
    }
    parts.retain(|part| part.length > 0);
    let rows = shape[..op.axis].iter().product::<usize>();
    let launches = chunks(&parts).into_iter().map(|chunk| launch(site, &parts[chunk], rows, start));
    let launches = if rows * start == 0 { Vec::new() } else { launches.collect() };
    Some(Lowered { name: "gather.concat".to_string(), launches, scratch_bytes: Vec::new(), packed: Vec::new() })
}

/// Parts that one launch writes.
fn chunks(parts: &[Part]) -> Vec<Range<usize>> {
    let mut chunks = Vec::new();
    let (mut first, mut buffers) = (0, 0);
    for (at, part) in parts.iter().enumerate() {
        let own = if matches!(part.source, Source::Rows(_)) { 1 } else { 2 };
        if buffers + own > BUFFERS_MAX {
            chunks.push(first..at);
            (first, buffers) = (at, 0);
        }
        buffers += own;
    }
    chunks.push(first..parts.len());
    chunks
}

fn launch(site: &Site, parts: &[Part], rows: usize, row: usize) -> Launch {
    let dtype = site.out_dtype(0);
    let ty = word_type(dtype);
    let fits = |&width: &usize| {
        let divides = |number: usize| number.is_multiple_of(width);
        width * dtype.size_bytes() <= 16
            && divides(row)
            && parts.iter().all(|part| divides(part.length) && divides(part.start))
    };
    let width = [8, 4, 2].into_iter().find(fits).unwrap_or(1);
    let (first, length) = (parts[0].start, parts.iter().map(|part| part.length).sum::<usize>());
    let index = index_type(&[rows * row]);
    let mut params = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        match part.source {
            Source::Rows(input) => params.push(Param::read(input, format!("x{at}"), ty)),
            Source::Table { table, indices, .. } => {
                params.push(Param::read(table, format!("x{at}"), ty));
                params.push(Param::read(indices, format!("index{at}"), word_type(site.dtype(indices))));
            }
        }
    }
    params.push(Param::write(0, "y", ty));
    let vectors = length / width;
    let mut body = format!("const {index} column = at % {vectors}u * {width}u, row = at / {vectors}u;\n");
    let _ = writeln!(body, "const {ty} *from;");
    choose(&mut body, site, parts, first, 0..parts.len());
    let _ = writeln!(body, "{ty} *to = y + (row * {row}u + {first}u + column);");
    let _ = match width {
        1 => writeln!(body, "*to = *from;"),
        _ => writeln!(body, "store_vec<{width}>(to, load_vec<{width}>(from));"),
    };
    Kernel::new("gather_concat", params).for_each(rows * vectors, index, &body)
}

/// Lines that set `from` to the place of `column` in the part that has it, by halving. Indices beyond a table read its last
/// row, since a kernel has nobody to tell.
fn choose(body: &mut String, site: &Site, parts: &[Part], first: usize, range: Range<usize>) {
    if range.len() > 1 {
        let middle = range.start + range.len() / 2;
        let _ = writeln!(body, "if (column < {}u) {{", parts[middle].start - first);
        choose(body, site, parts, first, range.start..middle);
        body.push_str("} else {\n");
        choose(body, site, parts, first, middle..range.end);
        body.push_str("}\n");
        return;
    }
    let at = range.start;
    let Part { source, start, length } = &parts[at];
    let start = start - first;
    let _ = match source {
        Source::Rows(_) => writeln!(body, "from = x{at} + (row * {length}u + column - {start}u);"),
        Source::Table { rows, indices, .. } => {
            let signed = if site.dtype(*indices).size_bytes() == 8 { "i64" } else { "i32" };
            let _ = writeln!(body, "i64 place = ({signed})index{at}[row];");
            let _ = writeln!(body, "place = place < 0 ? place + {rows} : place;");
            let _ = writeln!(body, "place = place < 0 ? 0 : place >= {rows} ? {} : place;", rows - 1);
            writeln!(body, "from = x{at} + (place * {length} + (column - {start}u));")
        }
    };
}

fn source(site: &Site, body: &Graph, part: ValueId) -> Option<Source> {
    match row_source(body, part)?.0 {
        RowSource::Rows(position) => Some(Source::Rows(position)),
        RowSource::Table { table, indices } => {
            let is_index = matches!(site.dtype(indices).size_bytes(), 4 | 8);
            is_index.then(|| Source::Table { table, rows: site.shape(table)[0], indices })
        }
    }
}
