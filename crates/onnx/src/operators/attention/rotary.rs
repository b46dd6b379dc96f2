//! Rotary position embeddings: pairs of elements of each head turned by an angle that depends on the position.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, Slice, UnaryFn};
use precast_tensor::Dim;

use super::Outputs;
use crate::import::{Fault, NodeCx};

/// How much of a head is turned, and which elements are pairs.
pub(super) struct Rotation {
    /// Elements of each head that are turned; 0 for all.
    pub size: usize,
    /// Whether pairs are neighbours, else they are half of the turned elements apart.
    pub is_interleaved: bool,
}

/// RotaryEmbedding of ai.onnx: tables are [positions, size / 2] with position ids, else [batch, length, size / 2].
pub(super) fn rotary_embedding(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, mut cos, mut sin) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let heads = cx.int("num_heads", 0)?;
    let rotation = read_rotation(cx, "interleaved")?;
    if let Some(positions) = cx.optional(3) {
        cos = cx.gather(cos, positions, 0)?;
        sin = cx.gather(sin, positions, 0)?;
    }
    if cx.rank(cos) != 3 {
        return Err(Fault::Invalid(format!("the cosine table has rank {}; 3 was expected", cx.rank(cos))));
    }
    Ok(vec![add_rotation_of(cx, x, heads, cos, sin, &rotation)?])
}

/// RotaryEmbedding of com.microsoft: position ids come second and may be one offset for all rows.
pub(super) fn microsoft_rotary_embedding(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, ids, cos, sin) = (cx.input(0)?, cx.input(1)?, cx.input(2)?, cx.input(3)?);
    let mut heads = cx.int("num_heads", 0)?;
    let rotation = read_rotation(cx, "interleaved")?;
    if cx.float("scale", 1.0)? != 1.0 {
        return Err(Fault::Unsupported("a scale other than 1 is not covered".to_string()));
    }
    if cx.flag("is_packed_batching", false)? {
        return Err(Fault::Unsupported("is_packed_batching=1 is not covered".to_string()));
    }
    let dims = cx.dims(x);
    if heads == 0 && dims.len() == 3 {
        let half = cx.dim(cos, cx.axis(-1, cx.rank(cos))?)?;
        let half = cx.number(&half, "half of the head size")?;
        heads = (cx.number(&dims[2], "the hidden size")? / (2 * half).max(1)) as i64;
    }
    let positions = if cx.rank(ids) == 1 {
        let length = cx.dim(x, if dims.len() == 4 { 2 } else { 1 })?;
        let steps = cx.iota(Dim::ZERO, length)?;
        let positions = cx.binary(BinaryFn::Add, steps, ids)?;
        cx.unsqueeze(positions, &[0])?
    } else {
        ids
    };
    let (cos, sin) = (cx.gather(cos, positions, 0)?, cx.gather(sin, positions, 0)?);
    Ok(vec![add_rotation_of(cx, x, heads, cos, sin, &rotation)?])
}

/// MRotaryEmbedding of com.microsoft: three streams of positions [3, batch, length], for time, height and width. Each column of
/// the tables belongs to one of them.
pub(super) fn multimodal_rotary_embedding(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, ids, cos, sin) = (cx.input(0)?, cx.input(1)?, cx.input(2)?, cx.input(3)?);
    let rotation = read_rotation(cx, "interleaved")?;
    let mut heads = cx.int("num_heads", 0)?;
    let layout = cx.int("mrope_layout", 0)?;
    let sections = cx.sizes("mrope_section")?.unwrap_or_default();
    if cx.float("scale", 1.0)? != 1.0 || cx.flag("is_packed_batching", false)? {
        return Err(Fault::Unsupported("a scale other than 1 and is_packed_batching=1 are not covered".to_string()));
    }
    let [_, half] = cx.dims_of(cos, "the cosine table")?;
    let half = cx.number(&half, "half of what is turned of a head")?;
    let streams = streams_of_columns(&sections, half, layout)?;
    if heads == 0 && cx.rank(x) == 3 {
        let [_, _, width] = cx.dims_of(x, "the input")?;
        heads = (cx.number(&width, "the hidden size")? / (2 * half).max(1)) as i64;
    }
    cx.dims_of::<3>(ids, "the position ids")?;
    let (cos, sin) = (gather_streams(cx, cos, ids, &streams)?, gather_streams(cx, sin, ids, &streams)?);
    Ok(vec![add_rotation_of(cx, x, heads, cos, sin, &rotation)?])
}

/// Which stream of positions each column of the tables belongs to.
fn streams_of_columns(sections: &[usize], half: usize, layout: i64) -> Result<Vec<usize>, Fault> {
    let &[time, height, width] = sections else {
        return Err(Fault::Invalid(format!(
            "attribute 'mrope_section' has {} entries; 3 were expected",
            sections.len()
        )));
    };
    if half == 0 || time.checked_add(height).and_then(|sum| sum.checked_add(width)) != Some(half) {
        return Err(Fault::Invalid(format!(
            "attribute 'mrope_section' is {sections:?}; a sum of {half}, the columns of the tables, was expected"
        )));
    }
    let stream = |column: usize| match layout {
        0 => usize::from(column >= time) + usize::from(column >= time + height),
        _ if column % 3 == 1 && column < 3 * height => 1,
        _ if column % 3 == 2 && column < 3 * width => 2,
        _ => 0,
    };
    match layout {
        0 | 1 => Ok((0..half).map(stream).collect()),
        other => Err(Fault::Invalid(format!("attribute 'mrope_layout' is {other}; 0 or 1 was expected"))),
    }
}

/// A table [positions, columns] at positions [3, batch, length], of which each column takes its own stream: [batch, length, columns].
fn gather_streams(cx: &mut NodeCx<'_, '_>, table: ValueId, ids: ValueId, streams: &[usize]) -> Result<ValueId, Fault> {
    let all = cx.gather(table, ids, 0)?;
    let mut parts = Vec::new();
    let mut start = 0;
    for run in streams.chunk_by(|a, b| a == b) {
        let part = cx.slice_axis(all, 0, Dim::from(run[0]), Dim::ONE)?;
        let part = cx.slice_axis(part, 3, Dim::from(start), Dim::from(run.len()))?;
        parts.push(cx.squeeze(part, &[0])?);
        start += run.len();
    }
    match parts[..] {
        [only] => Ok(only),
        _ => cx.concat(&parts, 2),
    }
}

fn read_rotation(cx: &NodeCx<'_, '_>, interleaved: &str) -> Result<Rotation, Fault> {
    let size = cx.int("rotary_embedding_dim", 0)?;
    let size = usize::try_from(size)
        .map_err(|_| Fault::Invalid(format!("attribute 'rotary_embedding_dim' is {size}; 0 or more was expected")))?;
    Ok(Rotation { size, is_interleaved: cx.flag(interleaved, false)? })
}

/// x of rank 4 [batch, heads, length, size], or of rank 3 with the heads side by side, turned by tables
/// [batch, length, size / 2].
fn add_rotation_of(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    heads: i64,
    cos: ValueId,
    sin: ValueId,
    rotation: &Rotation,
) -> Result<ValueId, Fault> {
    let dims = cx.dims(x);
    match &dims[..] {
        [_, _, _, _] => {
            let (cos, sin) = (cx.unsqueeze(cos, &[1])?, cx.unsqueeze(sin, &[1])?);
            add_rotation(cx, x, cos, sin, rotation)
        }
        [batch, length, width] => {
            if heads <= 0 {
                return Err(Fault::Invalid(format!("attribute 'num_heads' is {heads}; 1 or more was expected")));
            }
            let size = width.floor_div(&Dim::from(heads));
            let split = cx.reshape(x, vec![batch.clone(), length.clone(), Dim::from(heads), size])?;
            let (cos, sin) = (cx.unsqueeze(cos, &[2])?, cx.unsqueeze(sin, &[2])?);
            let turned = add_rotation(cx, split, cos, sin, rotation)?;
            cx.reshape(turned, dims.clone())
        }
        _ => Err(Fault::Invalid(format!("the input has rank {}; 3 or 4 was expected", dims.len()))),
    }
}

/// Queries and keys [rows, heads, tokens, size] turned at the positions [rows, tokens] of their tokens, where the node asks for it:
/// by the table of cosines that is input `table`, and that of sines behind it.
pub(super) fn rotate_where_asked(
    cx: &mut NodeCx<'_, '_>,
    [q, k]: [ValueId; 2],
    positions: ValueId,
    table: usize,
) -> Result<[ValueId; 2], Fault> {
    let is_interleaved = cx.flag("rotary_interleaved", false)?;
    if !cx.flag("do_rotary", false)? {
        return Ok([q, k]);
    }
    let (cos, sin) = (cx.input(table)?, cx.input(table + 1)?);
    let [_, half] = cx.dims_of(cos, "the cosine table")?;
    let rotation = Rotation { size: 2 * cx.number(&half, "half of what is turned of a head")?, is_interleaved };
    let (cos, sin) = (cx.gather(cos, positions, 0)?, cx.gather(sin, positions, 0)?);
    let (cos, sin) = (cx.unsqueeze(cos, &[1])?, cx.unsqueeze(sin, &[1])?);
    Ok([add_rotation(cx, q, cos, sin, &rotation)?, add_rotation(cx, k, cos, sin, &rotation)?])
}

/// x turned along its last axis; the tables broadcast to half of what is turned.
pub(super) fn add_rotation(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    cos: ValueId,
    sin: ValueId,
    rotation: &Rotation,
) -> Result<ValueId, Fault> {
    let dims = cx.dims(x);
    let axis = dims.len() - 1;
    let size = cx.number(&dims[axis], "the head size")?;
    let turned = if rotation.size == 0 { size } else { rotation.size };
    if turned > size || turned % 2 != 0 {
        return Err(Fault::Invalid(format!("{turned} of {size} elements of a head cannot be turned")));
    }
    let half = Dim::from(turned / 2);
    let (first, second) = if rotation.is_interleaved {
        (every_second(cx, x, 0, &half)?, every_second(cx, x, 1, &half)?)
    } else {
        (cx.slice_axis(x, axis, Dim::ZERO, half.clone())?, cx.slice_axis(x, axis, half.clone(), half.clone())?)
    };
    let real = combine(cx, BinaryFn::Sub, (first, cos), (second, sin))?;
    let imaginary = combine(cx, BinaryFn::Add, (first, sin), (second, cos))?;
    let mut y = if rotation.is_interleaved {
        let (real, imaginary) = (cx.unsqueeze(real, &[axis + 1])?, cx.unsqueeze(imaginary, &[axis + 1])?);
        let pairs = cx.concat(&[real, imaginary], axis + 1)?;
        let mut flat = dims.clone();
        flat[axis] = Dim::from(turned);
        cx.reshape(pairs, flat)?
    } else {
        cx.concat(&[real, imaginary], axis)?
    };
    if turned < size {
        let rest = cx.slice_axis(x, axis, Dim::from(turned), Dim::from(size - turned))?;
        y = cx.concat(&[y, rest], axis)?;
    }
    Ok(y)
}

fn every_second(cx: &mut NodeCx<'_, '_>, x: ValueId, start: i64, count: &Dim) -> Result<ValueId, Fault> {
    let mut size = cx.dims(x);
    let axis = size.len() - 1;
    let mut starts = vec![Dim::ZERO; size.len()];
    let mut step = vec![1; size.len()];
    starts[axis] = Dim::from(start);
    step[axis] = 2;
    size[axis] = count.clone();
    cx.add(Slice { start: starts, step, size }, &[x])
}

/// a * b and c * d, combined.
fn combine(
    cx: &mut NodeCx<'_, '_>,
    func: BinaryFn,
    (a, b): (ValueId, ValueId),
    (c, d): (ValueId, ValueId),
) -> Result<ValueId, Fault> {
    let left = cx.binary(BinaryFn::Mul, a, b)?;
    let right = cx.binary(BinaryFn::Mul, c, d)?;
    cx.binary(func, left, right)
}

/// GemmaRotaryEmbedding: queries and keys, each with its rotated form, turned by angles [batch, length, size] in f32.
pub(super) fn gemma_rotary_embedding(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let angles = cx.input(0)?;
    let angles = cx.unsqueeze(angles, &[1])?;
    let (cosine, sine) = (cx.unary(UnaryFn::Cos, angles)?, cx.unary(UnaryFn::Sin, angles)?);
    let mut turned = |position: usize| {
        let (x, rotated) = (cx.input(position)?, cx.input(position + 1)?);
        let (cosine, sine) = (cx.cast(cosine, cx.dtype(x))?, cx.cast(sine, cx.dtype(x))?);
        let (along, across) = (cx.binary(BinaryFn::Mul, x, cosine)?, cx.binary(BinaryFn::Mul, rotated, sine)?);
        cx.binary(BinaryFn::Add, along, across)
    };
    Ok(vec![turned(1)?, turned(3)?])
}
