//! A concatenation whose parts are looked up in tables.

use precast_ir::{Graph, Op, ValueId};
use precast_kernels::gather_concat::{PartPlace, RowPart, gather_concat};

use precast_passes::fuse_gathers::{RowSource, row_source};

use crate::ops::index::IndexType;
use crate::step::{Lowered, StepNode};

/// Where a part comes from: positions of the step's inputs.
enum Source {
    Rows(usize),
    Table { table: usize, rows: usize, indices: usize, index_type: IndexType, name: String },
}

/// Parts that are written together: as many as threads may share, without an allocation.
const PARTS: usize = 32;

/// The kernel of a body of gathers, their reshapes and one concatenation.
pub fn lower(step: &StepNode, body: &Graph) -> Option<Lowered> {
    let (concat, rest) = body.nodes().split_last()?;
    let Op::Concat(op) = &concat.op else { return None };
    if !rest.iter().all(|node| matches!(node.op, Op::Gather(_) | Op::Reshape(_))) {
        return None;
    }
    let element = body.ty(concat.outputs[0]).dtype.size_bytes();
    let shape = step.output_shape(0);
    let row_bytes = shape[op.axis..].iter().product::<usize>() * element;
    let (mut places, mut sources, mut start) = (Vec::new(), Vec::new(), 0);
    for &part in &concat.inputs {
        let dims = body.ty(part).shape()?;
        let bytes = dims[op.axis..].iter().product::<usize>() * element;
        places.push(PartPlace { bytes, start });
        sources.push(source(step, body, part)?);
        start += bytes;
    }
    Some(Lowered::plain("gather.concat", step, move |args, exec| {
        let dst = args.write::<u8>(0);
        for (sources, places) in sources.chunks(PARTS).zip(places.chunks(PARTS)) {
            let mut parts = [RowPart::Rows(&[]); PARTS];
            for (part, source) in parts.iter_mut().zip(sources) {
                *part = match source {
                    Source::Rows(input) => RowPart::Rows(args.read(*input)),
                    Source::Table { table, rows, indices, index_type, .. } => {
                        let indices = index_type.read(args, *indices);
                        RowPart::Table { data: args.read(*table), rows: *rows, indices }
                    }
                };
            }
            let result = gather_concat(&exec, places, &parts[..sources.len()], row_bytes, dst);
            result.map_err(|(at, error)| match &sources[at] {
                Source::Table { name, .. } if !name.is_empty() => format!("{name}: {error}"),
                _ => error.to_string(),
            })?;
        }
        Ok(())
    }))
}

fn source(step: &StepNode, body: &Graph, part: ValueId) -> Option<Source> {
    let (source, gather) = row_source(body, part)?;
    Some(match source {
        RowSource::Rows(position) => Source::Rows(position),
        RowSource::Table { table, indices } => {
            let name = gather.and_then(|node| node.provenance.names().first().map(|name| name.to_string()));
            let index_type = IndexType::of(step.dtype(indices))?;
            Source::Table { table, rows: step.shape(table)[0], indices, index_type, name: name.unwrap_or_default() }
        }
    })
}
