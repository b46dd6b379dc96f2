//! Slice: starts and ends are clamped with Dim expressions, which are exact whatever their sign turns out to be.

use precast_ir::ValueId;
use precast_ir::op::Slice;
use precast_tensor::Dim;

use crate::import::{Fault, NodeCx};

/// What an Import gives.
type Values = Result<Vec<ValueId>, Fault>;

/// ONNX recommends INT_MAX and INT_MIN for "to the end"; starts and ends as large as that are taken to mean it.
const BEYOND: i64 = i32::MAX as i64;

/// One axis of a slice as the node gives it.
struct AxisSlice {
    axis: usize,
    start: Dim,
    end: Dim,
    step: i64,
}

/// Starts, ends and axes as attributes.
pub(super) fn slice_1(cx: &mut NodeCx<'_, '_>) -> Values {
    let list = |name: &str| -> Result<Vec<Dim>, Fault> {
        let ints = cx.ints(name)?.ok_or_else(|| Fault::Invalid(format!("attribute '{name}' is missing")))?;
        Ok(ints.into_iter().map(Dim::from).collect())
    };
    let (starts, ends) = (list("starts")?, list("ends")?);
    let axes = cx.ints("axes")?;
    slice(cx, starts, ends, axes, None)
}

/// Starts, ends, axes and steps as inputs.
pub(super) fn slice_10(cx: &mut NodeCx<'_, '_>) -> Values {
    let (starts, ends) = (cx.input(1)?, cx.input(2)?);
    let axes = match cx.optional(3) {
        Some(axes) => Some(cx.require_ints(axes, "axes")?),
        None => None,
    };
    let steps = match cx.optional(4) {
        Some(steps) => Some(cx.require_ints(steps, "steps")?),
        None => None,
    };
    let (starts, ends) = (cx.require_dims(starts, "starts")?, cx.require_dims(ends, "ends")?);
    slice(cx, starts, ends, axes, steps)
}

fn slice(
    cx: &mut NodeCx<'_, '_>,
    starts: Vec<Dim>,
    ends: Vec<Dim>,
    axes: Option<Vec<i64>>,
    steps: Option<Vec<i64>>,
) -> Values {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let count = starts.len();
    let axes = axes.unwrap_or_else(|| (0..count as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; count]);
    if ends.len() != count || axes.len() != count || steps.len() != count {
        return Err(Fault::Invalid(format!(
            "{count} starts, {} ends, {} axes and {} steps are given; as many of each were expected",
            ends.len(),
            axes.len(),
            steps.len()
        )));
    }
    let axes = cx.axes(&axes, dims.len())?;
    let (mut start, mut step, mut size) = (vec![Dim::ZERO; dims.len()], vec![1; dims.len()], dims.clone());
    for (position, axis) in axes.into_iter().enumerate() {
        let (from, to) = (starts[position].clone(), ends[position].clone());
        let cut = AxisSlice { axis, start: from, end: to, step: steps[position] };
        (start[axis], size[axis]) = resolve(cx, &cut, &dims[axis])?;
        step[axis] = cut.step;
    }
    if size == dims && step.iter().all(|&step| step == 1) {
        return Ok(vec![x]);
    }
    Ok(vec![cx.add(Slice { start, step, size }, &[x])?])
}

/// First element and number of elements of one axis.
fn resolve(cx: &NodeCx<'_, '_>, cut: &AxisSlice, dim: &Dim) -> Result<(Dim, Dim), Fault> {
    let AxisSlice { axis, start, end, step } = cut;
    let last = dim - 1;
    let (start, span) = match step {
        0 => return Err(Fault::Invalid(format!("the step of axis {axis} is 0"))),
        1.. => {
            let start = limit(cx, start, dim, &Dim::ZERO, dim);
            let span = limit(cx, end, dim, &Dim::ZERO, dim) - &start;
            (start, span)
        }
        _ => {
            let start = limit(cx, start, dim, &Dim::ZERO, &last);
            let span = &start - limit(cx, end, dim, &Dim::from(-1), &last);
            (Dim::max(&start, &Dim::ZERO), span)
        }
    };
    let count = span.ceil_div(&Dim::from(step.saturating_abs()));
    Ok((cx.simplify(&start), cx.simplify(&Dim::max(&count, &Dim::ZERO))))
}

/// `at`, counted from the end of the axis where it is negative, limited to `lo..=hi`.
fn limit(cx: &NodeCx<'_, '_>, at: &Dim, dim: &Dim, lo: &Dim, hi: &Dim) -> Dim {
    let from_start = |at: &Dim| Dim::min(&Dim::max(at, lo), hi);
    let (least, most) = cx.bounds(at);
    let limited = if least >= BEYOND {
        hi.clone()
    } else if most <= -BEYOND {
        // An empty axis has no last element: `hi` is -1 there and wins.
        Dim::min(lo, hi)
    } else if least >= 0 {
        from_start(at)
    } else if most < 0 {
        from_start(&(at + dim))
    } else {
        let is_negative = Dim::min(&Dim::max(&-at, &Dim::ZERO), &Dim::ONE);
        let is_positive = Dim::ONE - &is_negative;
        is_positive * from_start(at) + is_negative * from_start(&(at + dim))
    };
    cx.simplify(&limited)
}
