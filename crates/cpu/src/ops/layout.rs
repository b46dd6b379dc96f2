//! Data movement: every kind is a strided copy that was worked out while loading.

use precast_ir::op::{Concat, Pad, PadFn, Slice, Transpose};
use precast_kernels::copy::{StridedCopy, fill};

use crate::ops::window::lower_remap;
use crate::ops::{broadcast_strides, strides_of};
use crate::step::{Lowered, Read, StepNode};

fn signed(strides: &[usize]) -> Vec<isize> {
    strides.iter().map(|&stride| stride as isize).collect()
}

/// One strided copy of the only operand into a dense result.
fn lower_copy(step: &StepNode, name: &str, offset: usize, strides: &[isize]) -> Result<Option<Lowered>, String> {
    let shape = step.output_shape(0);
    let (source, target): (usize, usize) = (step.shape(0).iter().product(), shape.iter().product());
    let element_bytes = step.dtype(0).size_bytes();
    let copy =
        StridedCopy::new(element_bytes, &shape, offset, strides, 0, &signed(&strides_of(&shape)), source, target);
    let Ok(copy) = copy else { return Ok(None) };
    Ok(Some(Lowered::plain(format!("copy.{name}"), step, move |args, exec| {
        copy.run(&exec, args.read(0), args.write(0));
        Ok(())
    })))
}

/// Axes in another order.
pub fn lower_transpose(step: &StepNode, op: &Transpose) -> Result<Option<Lowered>, String> {
    let strides = strides_of(&step.shape(0));
    let permuted: Vec<isize> = op.perm.iter().map(|&axis| strides[axis] as isize).collect();
    lower_copy(step, "transpose", 0, &permuted)
}

/// Sizes of 1 repeated.
pub fn lower_broadcast(step: &StepNode) -> Result<Option<Lowered>, String> {
    let strides = broadcast_strides(&step.shape(0), &step.output_shape(0));
    lower_copy(step, "broadcast", 0, &signed(&strides))
}

/// A part of every axis, with steps.
pub fn lower_slice(step: &StepNode, op: &Slice) -> Result<Option<Lowered>, String> {
    let strides = strides_of(&step.shape(0));
    let mut offset = 0;
    for (start, stride) in op.start.iter().zip(&strides) {
        let Some(start) = start.as_usize() else { return Ok(None) };
        offset += start * stride;
    }
    let stepped: Vec<isize> =
        op.step.iter().zip(&strides).map(|(&step, &stride)| step as isize * stride as isize).collect();
    let is_empty = step.output_shape(0).contains(&0);
    lower_copy(step, "slice", if is_empty { 0 } else { offset }, &stepped)
}

/// Operands one after another.
pub fn lower_concat(step: &StepNode, op: &Concat) -> Result<Option<Lowered>, String> {
    let shape = step.output_shape(0);
    let strides = signed(&strides_of(&shape));
    let target: usize = shape.iter().product();
    let element_bytes = step.dtype(0).size_bytes();
    let mut copies = Vec::new();
    let mut reads = Vec::new();
    let mut start = 0;
    for input in 0..step.input_count() {
        let part = step.shape(input);
        let size: usize = part.iter().product();
        let offset = start * strides[op.axis] as usize;
        start += part[op.axis];
        if size == 0 {
            continue;
        }
        let own = signed(&strides_of(&part));
        let copy = StridedCopy::new(element_bytes, &part, 0, &own, offset, &strides, size, target);
        let Ok(copy) = copy else { return Ok(None) };
        copies.push(copy);
        reads.push(Read::Input(input));
    }
    Ok(Some(Lowered {
        kernel: "copy.concat".to_string(),
        reads,
        scratch_bytes: 0,
        run: Box::new(move |args, exec| {
            let target = args.write::<u8>(0);
            for (read, copy) in copies.iter().enumerate() {
                copy.run(&exec, args.read(read), target);
            }
            Ok(())
        }),
    }))
}

/// Constant padding: the result is filled, then the operand is copied inside.
pub fn lower_pad(step: &StepNode, op: &Pad) -> Result<Option<Lowered>, String> {
    if op.func != PadFn::Constant {
        return Ok(lower_mirrored_pad(step, op));
    }
    let (from, to) = (step.shape(0), step.output_shape(0));
    let (from_strides, to_strides) = (strides_of(&from), strides_of(&to));
    let (mut extents, mut source_offset, mut target_offset) = (Vec::new(), 0, 0);
    for axis in 0..from.len() {
        let (Some(lo), Some(hi)) = (op.lo[axis].as_const(), op.hi[axis].as_const()) else { return Ok(None) };
        let kept = from[axis] as i64 + lo.min(0) + hi.min(0);
        extents.push(usize::try_from(kept).unwrap_or(0));
        source_offset += lo.min(0).unsigned_abs() as usize * from_strides[axis];
        target_offset += lo.max(0) as usize * to_strides[axis];
    }
    let element_bytes = step.dtype(0).size_bytes();
    let (source, target): (usize, usize) = (from.iter().product(), to.iter().product());
    let is_empty = extents.contains(&0);
    let copy = StridedCopy::new(
        element_bytes,
        &extents,
        if is_empty { 0 } else { source_offset },
        &signed(&from_strides),
        if is_empty { 0 } else { target_offset },
        &signed(&to_strides),
        source,
        target,
    );
    let Ok(copy) = copy else { return Ok(None) };
    let has_value = step.input_count() > 1;
    Ok(Some(Lowered::plain("copy.pad", step, move |args, exec| {
        let target = args.write::<u8>(0);
        let zero = [0; 8];
        let pattern = if has_value { args.read::<u8>(1) } else { &zero[..element_bytes] };
        fill(&exec, target, pattern);
        copy.run(&exec, args.read(0), target);
        Ok(())
    })))
}

/// Padding by elements of the operand itself, on the last two axes.
fn lower_mirrored_pad(step: &StepNode, op: &Pad) -> Option<Lowered> {
    let (from, to) = (step.shape(0), step.output_shape(0));
    let rank = from.len();
    let split = rank.saturating_sub(2);
    let is_padded = |axis: usize| op.lo[axis].as_const() != Some(0) || op.hi[axis].as_const() != Some(0);
    if rank == 0 || (0..split).any(is_padded) || from.contains(&0) {
        return None;
    }
    let source = |axis: usize| -> Option<Vec<usize>> {
        let (lo, size) = (op.lo[axis].as_const()?, from[axis] as i64);
        // Removed elements are gone before the rest is mirrored, which shifts where the mirror stands.
        if lo < 0 || op.hi[axis].as_const()? < 0 {
            return None;
        }
        (0..to[axis] as i64).map(|at| usize::try_from(mirrored(op.func, at - lo, size)).ok()).collect()
    };
    let columns = source(rank - 1)?;
    let rows = if rank > 1 { source(rank - 2)? } else { vec![0] };
    let (height, width) = (if rank > 1 { from[rank - 2] } else { 1 }, from[rank - 1]);
    let planes = from[..split].iter().product();
    let mut lowered = lower_remap("copy.pad", step, planes, (height, width), rows, columns);
    lowered.reads.truncate(1);
    Some(lowered)
}

/// The element of an axis that stands at a position beyond its ends.
fn mirrored(func: PadFn, at: i64, size: i64) -> i64 {
    match func {
        PadFn::Constant | PadFn::Edge => at.clamp(0, size - 1),
        PadFn::Wrap => at.rem_euclid(size),
        PadFn::Reflect if size == 1 => 0,
        PadFn::Reflect => {
            let turn = at.rem_euclid(2 * (size - 1));
            turn.min(2 * (size - 1) - turn)
        }
    }
}
