//! Pooling and resizing of 1-D and 2-D images.

use precast_ir::op::{Pool, PoolFn, Resize, ResizeFn};
use precast_kernels::resize::{self, AxisTaps, ResizeTables};
use precast_kernels::window::{self, PoolAxis, PoolKernel, PoolShape};
use precast_tensor::DType;

use crate::step::{Lowered, Machine, StepNode};

/// Pooling of f32 images with one or two spatial axes.
pub fn lower_pool(step: &StepNode, op: &Pool) -> Result<Option<Lowered>, String> {
    let kernel = match op.func {
        PoolFn::Max => PoolKernel::Max,
        PoolFn::Avg if op.count_pad => PoolKernel::AveragePadded,
        PoolFn::Avg => PoolKernel::Average,
        PoolFn::Lp if op.p == 2 => PoolKernel::L2,
        PoolFn::Lp => return Ok(None),
    };
    let (x, y) = (step.shape(0), step.output_shape(0));
    let axis = |position: usize| {
        let axis = PoolAxis {
            input: x[position + 2],
            output: y[position + 2],
            kernel: op.window[position],
            stride: op.stride[position],
            pad_begin: op.pad_lo[position].as_usize()?,
            pad_end: op.pad_hi[position].as_usize()?,
            dilation: op.dilation[position],
        };
        is_near(axis).unwrap_or(false).then_some(axis)
    };
    let line = PoolAxis { input: 1, output: 1, kernel: 1, stride: 1, pad_begin: 0, pad_end: 0, dilation: 1 };
    let (height, width) = match op.window.len() {
        1 => (Some(line), axis(0)),
        2 => (axis(0), axis(1)),
        _ => return Ok(None),
    };
    let (Some(height), Some(width)) = (height, width) else { return Ok(None) };
    if step.dtype(0) != DType::F32 {
        return Ok(None);
    }
    let shape = PoolShape { batch: x[0], planes: x[0] * x[1], height, width };
    Ok(Some(Lowered::plain(format!("pool.{}", op.func.name()), step, move |args, exec| {
        window::pool(&exec, kernel, &shape, args.read(0), args.write(0));
        Ok(())
    })))
}

/// Whether every window starts inside the padded axis and is not much longer than it. The kernel goes over all
/// positions of a window, so that others would take forever; numbers that overflow are `None`.
fn is_near(axis: PoolAxis) -> Option<bool> {
    let padded = axis.input.checked_add(axis.pad_begin)?.checked_add(axis.pad_end)?;
    let last_start = axis.output.saturating_sub(1).checked_mul(axis.stride)?;
    let reach = axis.kernel.checked_mul(axis.dilation)?;
    Some(last_start <= padded && reach <= padded.checked_add(axis.stride)?.checked_add(axis.dilation)?)
}

/// Resizing of the last two axes.
pub fn lower_resize(step: &StepNode, op: &Resize, machine: Machine) -> Result<Option<Lowered>, String> {
    let (x, y) = (step.shape(0), step.output_shape(0));
    let rank = x.len();
    if rank < 2 || x[..rank - 2] != y[..rank - 2] || op.scales[..rank - 2].iter().any(|&scale| scale != 1.0) {
        return Ok(None);
    }
    let taps = |axis: usize| op.axis_taps(axis, x[axis], y[axis]);
    let (Some(rows), Some(columns)) = (taps(rank - 2), taps(rank - 1)) else { return Ok(None) };
    let planes: usize = x[..rank - 2].iter().product();
    let (height, width) = (x[rank - 2], x[rank - 1]);
    if op.func == ResizeFn::Nearest {
        let only = |taps: Vec<Vec<(usize, f64)>>| taps.iter().map(|taps| taps[0].0).collect::<Vec<usize>>();
        let (rows, columns) = (only(rows), only(columns));
        return Ok(Some(lower_remap("resize.nearest", step, planes, (height, width), rows, columns)));
    }
    if step.dtype(0) != DType::F32 {
        return Ok(None);
    }
    let table = |input: usize, taps: Vec<Vec<(usize, f64)>>| {
        let lists: Vec<Vec<(usize, f32)>> =
            taps.iter().map(|taps| taps.iter().map(|&(at, weight)| (at, weight as f32)).collect()).collect();
        AxisTaps::new(input, &lists).map_err(|error| error.to_string())
    };
    let tables = ResizeTables { h: table(height, rows)?, w: table(width, columns)? };
    let scratch = resize::resize_scratch_len(&tables, machine.threads) * size_of::<f32>();
    Ok(Some(Lowered {
        scratch_bytes: scratch,
        ..Lowered::plain(format!("resize.{}", op.func.name()), step, move |args, exec| {
            let y = args.write::<f32>(0);
            let scratch: &mut [f32] = if scratch > 0 { args.write(1) } else { &mut [] };
            resize::resize(&exec, planes, &tables, args.read(0), y, scratch);
            Ok(())
        })
    }))
}

/// A result whose rows and columns are rows and columns of the operand.
pub fn lower_remap(
    kernel: &str,
    step: &StepNode,
    planes: usize,
    size: (usize, usize),
    rows: Vec<usize>,
    columns: Vec<usize>,
) -> Lowered {
    let element_bytes = step.dtype(0).size_bytes();
    let shape = step.shape(0);
    let batch: usize = shape[..shape.len().saturating_sub(3)].iter().product();
    Lowered::plain(kernel, step, move |args, exec| {
        let (x, y) = (args.read::<u8>(0), args.write::<u8>(0));
        resize::resize_nearest(&exec, element_bytes, batch, planes, size, &rows, &columns, x, y);
        Ok(())
    })
}
