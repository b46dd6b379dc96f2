//! Reductions over neighbouring axes, seen as the middle of `[outer, axis, inner]`.

use precast_ir::op::{ArgFn, ArgReduce, Cumulate, CumulateFn, Reduce, ReduceFn};
use precast_kernels::reduce::{self, ArgKernel, CumulateKernel, CumulateOrder, IntReduceKernel, ReduceKernel, Tie};
use precast_tensor::DType;

use crate::ops::around;
use crate::step::{Lowered, StepNode};

/// A reduction over `axes`, if they are neighbours.
pub fn lower_reduce(step: &StepNode, op: &Reduce) -> Result<Option<Lowered>, String> {
    let Some([outer, axis, inner]) = middle(&step.shape(0), &op.axes) else { return Ok(None) };
    let name = format!("reduce.{}", op.func.name());
    Ok(match step.dtype(0) {
        DType::F32 => float_kernel(op.func).map(|kernel| {
            Lowered::plain(name, step, move |args, exec| {
                reduce::reduce_f32(&exec, kernel, outer, axis, inner, args.read(0), args.write(0));
                Ok(())
            })
        }),
        DType::I64 => int_kernel(op.func).map(|kernel| {
            Lowered::plain(name, step, move |args, exec| {
                reduce::reduce_i64(&exec, kernel, outer, axis, inner, args.read(0), args.write(0));
                Ok(())
            })
        }),
        DType::I32 => int_kernel(op.func).map(|kernel| {
            Lowered::plain(name, step, move |args, exec| {
                reduce::reduce_i32(&exec, kernel, outer, axis, inner, args.read(0), args.write(0));
                Ok(())
            })
        }),
        _ => None,
    })
}

/// A shape as `[outer, axis, inner]` where the reduced axes make up the middle. Axes of size 1 belong anywhere.
fn middle(shape: &[usize], axes: &[usize]) -> Option<[usize; 3]> {
    let is_long = |axis: &usize| shape[*axis] != 1;
    let reduced: Vec<usize> = axes.iter().copied().filter(is_long).collect();
    let (Some(&first), Some(&last)) = (reduced.iter().min(), reduced.iter().max()) else {
        return Some([shape.iter().product(), 1, 1]);
    };
    let is_whole = (first..=last).filter(is_long).all(|axis| reduced.contains(&axis));
    is_whole.then(|| {
        [shape[..first].iter().product(), shape[first..=last].iter().product(), shape[last + 1..].iter().product()]
    })
}

fn float_kernel(func: ReduceFn) -> Option<ReduceKernel> {
    Some(match func {
        ReduceFn::Sum => ReduceKernel::Sum,
        ReduceFn::Mean => ReduceKernel::Mean,
        ReduceFn::Prod => ReduceKernel::Prod,
        ReduceFn::Max => ReduceKernel::Max,
        ReduceFn::Min => ReduceKernel::Min,
        ReduceFn::L1 => ReduceKernel::L1,
        ReduceFn::L2 => ReduceKernel::L2,
        ReduceFn::SumSq => ReduceKernel::SumSquare,
        ReduceFn::LogSum => ReduceKernel::LogSum,
        ReduceFn::LogSumExp => ReduceKernel::LogSumExp,
        ReduceFn::Any | ReduceFn::All => return None,
    })
}

fn int_kernel(func: ReduceFn) -> Option<IntReduceKernel> {
    Some(match func {
        ReduceFn::Sum => IntReduceKernel::Sum,
        ReduceFn::Mean => IntReduceKernel::Mean,
        ReduceFn::Prod => IntReduceKernel::Prod,
        ReduceFn::Max => IntReduceKernel::Max,
        ReduceFn::Min => IntReduceKernel::Min,
        ReduceFn::L1 => IntReduceKernel::L1,
        ReduceFn::SumSq => IntReduceKernel::SumSquare,
        ReduceFn::L2 | ReduceFn::LogSum | ReduceFn::LogSumExp | ReduceFn::Any | ReduceFn::All => return None,
    })
}

/// The index of the largest or smallest element.
pub fn lower_arg_reduce(step: &StepNode, op: &ArgReduce) -> Result<Option<Lowered>, String> {
    let [outer, axis, inner] = around(&step.shape(0), op.axis);
    // An empty axis has no largest element: its meaning is an error.
    if axis == 0 && outer * inner > 0 {
        return Ok(None);
    }
    let kernel = match op.func {
        ArgFn::Max => ArgKernel::Max,
        ArgFn::Min => ArgKernel::Min,
    };
    let tie = if op.last { Tie::Last } else { Tie::First };
    Ok(match step.dtype(0) {
        DType::F32 => Some(Lowered::plain("arg_reduce", step, move |args, exec| {
            reduce::arg_reduce_f32(&exec, kernel, tie, outer, axis, inner, args.read(0), args.write(0));
            Ok(())
        })),
        DType::I64 => Some(Lowered::plain("arg_reduce", step, move |args, exec| {
            reduce::arg_reduce_i64(&exec, kernel, tie, outer, axis, inner, args.read(0), args.write(0));
            Ok(())
        })),
        _ => None,
    })
}

/// A running sum or product.
pub fn lower_cumulate(step: &StepNode, op: &Cumulate) -> Result<Option<Lowered>, String> {
    let [outer, axis, inner] = around(&step.shape(0), op.axis);
    let kernel = match op.func {
        CumulateFn::Sum => CumulateKernel::Sum,
        CumulateFn::Prod => CumulateKernel::Prod,
    };
    let order = CumulateOrder { is_exclusive: op.exclusive, is_reverse: op.reverse };
    Ok(match step.dtype(0) {
        DType::F32 => Some(Lowered::plain("cumulate", step, move |args, exec| {
            reduce::cumulate_f32(&exec, kernel, order, outer, axis, inner, args.read(0), args.write(0));
            Ok(())
        })),
        DType::I64 => Some(Lowered::plain("cumulate", step, move |args, exec| {
            reduce::cumulate_i64(&exec, kernel, order, outer, axis, inner, args.read(0), args.write(0));
            Ok(())
        })),
        _ => None,
    })
}
