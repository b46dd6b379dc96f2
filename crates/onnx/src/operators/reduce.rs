//! Reductions along axes: sums, extremes, norms, indices of extremes and running sums.

use precast_ir::ValueId;
use precast_ir::op::{ArgFn, ArgReduce, BinaryFn, Cumulate, CumulateFn, ReduceFn, UnaryFn};

use crate::import::{Fault, Import, NodeCx};

/// Rows of this family. The axes become an input at opset 13 for ReduceSum and at 18 for the others.
pub const IMPORTS: &[Import] = &[
    Import::onnx("ReduceSum", 1, 1, |cx| reduce_attribute(cx, ReduceFn::Sum)),
    Import::onnx("ReduceSum", 13, 1, |cx| reduce_input(cx, ReduceFn::Sum)),
    Import::onnx("ReduceMean", 1, 1, |cx| reduce_attribute(cx, ReduceFn::Mean)),
    Import::onnx("ReduceMean", 18, 1, |cx| reduce_input(cx, ReduceFn::Mean)),
    Import::onnx("ReduceMax", 1, 1, |cx| reduce_attribute(cx, ReduceFn::Max)),
    Import::onnx("ReduceMax", 18, 1, |cx| reduce_input(cx, ReduceFn::Max)),
    Import::onnx("ReduceMin", 1, 1, |cx| reduce_attribute(cx, ReduceFn::Min)),
    Import::onnx("ReduceMin", 18, 1, |cx| reduce_input(cx, ReduceFn::Min)),
    Import::onnx("ReduceProd", 1, 1, |cx| reduce_attribute(cx, ReduceFn::Prod)),
    Import::onnx("ReduceProd", 18, 1, |cx| reduce_input(cx, ReduceFn::Prod)),
    Import::onnx("ReduceL1", 1, 2, |cx| reduce_attribute(cx, ReduceFn::L1)),
    Import::onnx("ReduceL1", 18, 2, |cx| reduce_input(cx, ReduceFn::L1)),
    Import::onnx("ReduceL2", 1, 1, |cx| reduce_attribute(cx, ReduceFn::L2)),
    Import::onnx("ReduceL2", 18, 1, |cx| reduce_input(cx, ReduceFn::L2)),
    Import::onnx("ReduceSumSquare", 1, 1, |cx| reduce_attribute(cx, ReduceFn::SumSq)),
    Import::onnx("ReduceSumSquare", 18, 1, |cx| reduce_input(cx, ReduceFn::SumSq)),
    Import::onnx("ReduceLogSum", 1, 2, |cx| reduce_attribute(cx, ReduceFn::LogSum)),
    Import::onnx("ReduceLogSum", 18, 2, |cx| reduce_input(cx, ReduceFn::LogSum)),
    Import::onnx("ReduceLogSumExp", 1, 1, |cx| reduce_attribute(cx, ReduceFn::LogSumExp)),
    Import::onnx("ReduceLogSumExp", 18, 1, |cx| reduce_input(cx, ReduceFn::LogSumExp)),
    Import::onnx("ArgMax", 1, 1, |cx| arg_reduce(cx, ArgFn::Max)),
    Import::onnx("ArgMin", 1, 1, |cx| arg_reduce(cx, ArgFn::Min)),
    Import::onnx("CumSum", 11, 1, |cx| cumulate(cx, CumulateFn::Sum)),
    Import::onnx("CumProd", 26, 2, |cx| cumulate(cx, CumulateFn::Prod)),
];

/// What an Import gives.
type Values = Result<Vec<ValueId>, Fault>;

fn reduce_attribute(cx: &mut NodeCx<'_, '_>, func: ReduceFn) -> Values {
    let axes = cx.ints("axes")?.unwrap_or_default();
    reduce_over(cx, func, &axes, false)
}

fn reduce_input(cx: &mut NodeCx<'_, '_>, func: ReduceFn) -> Values {
    let is_noop = cx.flag("noop_with_empty_axes", false)?;
    let axes = match cx.optional(1) {
        Some(axes) => cx.require_ints(axes, "axes")?,
        None => Vec::new(),
    };
    reduce_over(cx, func, &axes, is_noop)
}

/// Reduces over the axes; without axes over all of them, or, with `is_noop`, over none.
fn reduce_over(cx: &mut NodeCx<'_, '_>, func: ReduceFn, axes: &[i64], is_noop: bool) -> Values {
    let keep_dims = cx.flag("keepdims", true)?;
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    let axes = match axes.is_empty() {
        true if is_noop => Vec::new(),
        true => (0..rank).collect(),
        false => {
            let mut axes = cx.axes(axes, rank)?;
            axes.sort_unstable();
            axes
        }
    };
    // False is less than true.
    let func = match func {
        ReduceFn::Max if cx.dtype(x).is_bool() => ReduceFn::Any,
        ReduceFn::Min if cx.dtype(x).is_bool() => ReduceFn::All,
        other => other,
    };
    let reduced = if axes.is_empty() { of_single_elements(cx, func, x)? } else { cx.reduce(func, x, axes, keep_dims)? };
    Ok(vec![reduced])
}

/// The reduction of each element by itself, which is not always the element.
fn of_single_elements(cx: &mut NodeCx<'_, '_>, func: ReduceFn, x: ValueId) -> Result<ValueId, Fault> {
    match func {
        ReduceFn::Sum
        | ReduceFn::Mean
        | ReduceFn::Prod
        | ReduceFn::Max
        | ReduceFn::Min
        | ReduceFn::Any
        | ReduceFn::All
        | ReduceFn::LogSumExp => Ok(x),
        ReduceFn::L1 | ReduceFn::L2 => cx.unary(UnaryFn::Abs, x),
        ReduceFn::SumSq => cx.binary(BinaryFn::Mul, x, x),
        ReduceFn::LogSum => cx.unary(UnaryFn::Log, x),
    }
}

fn arg_reduce(cx: &mut NodeCx<'_, '_>, func: ArgFn) -> Values {
    let x = cx.input(0)?;
    let axis = cx.axis(cx.int("axis", 0)?, cx.rank(x))?;
    let keep_dims = cx.flag("keepdims", true)?;
    let last = cx.opset() >= 12 && cx.flag("select_last_index", false)?;
    Ok(vec![cx.add(ArgReduce { func, axis, keep_dims, last }, &[x])?])
}

fn cumulate(cx: &mut NodeCx<'_, '_>, func: CumulateFn) -> Values {
    let (exclusive, reverse) = (cx.flag("exclusive", false)?, cx.flag("reverse", false)?);
    let (x, axis) = (cx.input(0)?, cx.input(1)?);
    let axis = cx.axis(cx.require_int(axis, "axis")?, cx.rank(x))?;
    Ok(vec![cx.add(Cumulate { func, axis, exclusive, reverse }, &[x])?])
}
