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
    let mut positions = Vec::new();
    for part in parts {
        positions.push(params.len());
        match part.source {
            Source::Rows(input) => params.push(Param::chosen(input, ty).by_rows()),
            Source::Table { table, indices, .. } => {
                params.push(Param::chosen(table, ty).by_rows());
                params.push(Param::chosen(indices, word_type(site.dtype(indices))).by_rows());
            }
        }
    }
    params.push(Param::write(0, "y", ty).by_rows());
    let vectors = length / width;
    let mut body = format!("const {index} column = at % {vectors}u * {width}u, row = at / {vectors}u;\n");
    body.push_str(&chosen_text(ty));
    let choice = Choice { site, parts, positions: &positions, first };
    choice.choose(&mut body, 0..parts.len());
    body.push_str(PLACE);
    let _ = writeln!(body, "const auto from = x.rows() + (place * length + own_column);");
    let _ = writeln!(body, "const auto to = y + (row * {row}u + {first}u + column);");
    let _ = match width {
        1 => writeln!(body, "to[0] = from[0];"),
        _ => writeln!(body, "store_vec<{width}>(to, load_vec<{width}>(from));"),
    };
    Kernel::new("gather_concat", params).for_each(rows * vectors, index, &body)
}

/// What a thread chooses: a part, where in its rows, and, of a table, the indices and how many rows it has.
fn chosen_text(ty: &str) -> String {
    format!(
        "Chosen<const {ty}> x;\nChosen<const u64> wide = {{0, false}};\nChosen<const u32> narrow = {{0, false}};\n\
         u32 length, own_column;\ni64 table_rows = 0;\n"
    )
}

/// The row of the part. Indices beyond a table read its last row, since a kernel has nobody to tell.
const PLACE: &str = "i64 place = row;
if (table_rows > 0) {
    place = wide.place ? (i64)wide.rows()[row] : (i64)(i32)narrow.rows()[row];
    place = place < 0 ? place + table_rows : place;
    place = place < 0 ? 0 : place >= table_rows ? table_rows - 1 : place;
}
";

/// The parts of one launch.
struct Choice<'a> {
    site: &'a Site<'a>,
    parts: &'a [Part],
    /// Positions of their first parameters.
    positions: &'a [usize],
    /// Where the first part begins in a row of the result.
    first: usize,
}

impl Choice<'_> {
    /// Lines that choose the part that has `column`, by halving.
    fn choose(&self, body: &mut String, range: Range<usize>) {
        if range.len() > 1 {
            let middle = range.start + range.len() / 2;
            let _ = writeln!(body, "if (column < {}u) {{", self.parts[middle].start - self.first);
            self.choose(body, range.start..middle);
            body.push_str("} else {\n");
            self.choose(body, middle..range.end);
            body.push_str("}\n");
            return;
        }
        let Part { source, start, length } = &self.parts[range.start];
        let (position, start) = (self.positions[range.start], start - self.first);
        let _ = writeln!(body, "x = arg{position}.choose(), length = {length}u, own_column = column - {start}u;");
        if let Source::Table { rows, indices, .. } = source {
            let indices = if self.site.dtype(*indices).size_bytes() == 8 { "wide" } else { "narrow" };
            let _ = writeln!(body, "{indices} = arg{}.choose(), table_rows = {rows};", position + 1);
        }
    }
}

fn source(site: &Site, body: &Graph, part: ValueId) -> Option<Source> {
    match row_source(body, part)?.0 {
        RowSource::Rows(position) => Some(Source::Rows(position)),
        RowSource::Table { table, indices } => {
            let is_index = matches!(site.dtype(indices).size_bytes(), 4 | 8);
            let rows = site.shape(table)[0];
            (is_index && rows > 0).then_some(Source::Table { table, rows, indices })
        }
    }
}
