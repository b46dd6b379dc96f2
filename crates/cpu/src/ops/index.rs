//! Gathers, scatters and the largest elements. Indices are checked inside the kernels: one that is out of range ends the run with an error.

use precast_ir::op::{Gather, GatherElements, GatherNd, ScatterElements, ScatterFn, ScatterNd, Topk};
use precast_kernels::arena::Args;
use precast_kernels::gather::{self, IndexError, Indices, ScatterKernel, ScatterReduction, TupleShape};
use precast_kernels::isa::Exec;
use precast_kernels::topk::{Extreme, TopkShape, topk_f32};
use precast_tensor::DType;

use crate::ops::around;
use crate::step::{Lowered, Machine, Read, StepNode};

/// Element type of an index operand.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub enum IndexType {
    I32,
    I64,
}

impl IndexType {
    /// The type of such indices.
    pub fn of(dtype: DType) -> Option<IndexType> {
        match dtype {
            DType::I32 => Some(IndexType::I32),
            DType::I64 => Some(IndexType::I64),
            _ => None,
        }
    }

    /// The operand at a position of the step's reads.
    pub fn read<'s>(self, args: &Args<'s>, read: usize) -> Indices<'s> {
        match self {
            IndexType::I32 => Indices::I32(args.read(read)),
            IndexType::I64 => Indices::I64(args.read(read)),
        }
    }
}

fn explain(error: IndexError) -> String {
    error.to_string()
}

/// Slices along an axis.
pub fn lower_gather(step: &StepNode, op: &Gather) -> Result<Option<Lowered>, String> {
    let Some(index_type) = IndexType::of(step.dtype(1)) else { return Ok(None) };
    let [outer, axis, inner] = around(&step.shape(0), op.axis);
    let inner_bytes = inner * step.dtype(0).size_bytes();
    Ok(Some(Lowered::plain("gather", step, move |args, exec| {
        let indices = index_type.read(args, 1);
        gather::gather(&exec, outer, axis, inner_bytes, args.read(0), indices, args.write(0)).map_err(explain)
    })))
}

/// One element for each index.
pub fn lower_gather_elements(step: &StepNode, op: &GatherElements) -> Result<Option<Lowered>, String> {
    let Some(index_type) = IndexType::of(step.dtype(1)) else { return Ok(None) };
    let (shape, index_shape, axis) = (step.shape(0), step.shape(1), op.axis);
    let element_bytes = step.dtype(0).size_bytes();
    Ok(Some(Lowered::plain("gather_elements", step, move |args, exec| {
        let indices = index_type.read(args, 1);
        let (x, y) = (args.read(0), args.write(0));
        gather::gather_elements(&exec, element_bytes, &shape, &index_shape, axis, x, indices, y).map_err(explain)
    })))
}

/// How index tuples lie: batches, tuples of a batch, extents they index, elements they name.
struct Tuples {
    batches: usize,
    tuples: usize,
    extents: Vec<usize>,
    inner: usize,
}

impl Tuples {
    fn of(step: &StepNode, batch_axes: usize) -> Tuples {
        let (x, indices) = (step.shape(0), step.shape(1));
        let depth = indices[indices.len() - 1];
        Tuples {
            batches: x[..batch_axes].iter().product(),
            tuples: indices[batch_axes..indices.len() - 1].iter().product(),
            extents: x[batch_axes..batch_axes + depth].to_vec(),
            inner: x[batch_axes + depth..].iter().product(),
        }
    }

    fn shape(&self) -> TupleShape<'_> {
        TupleShape { batches: self.batches, tuples: self.tuples, extents: &self.extents, inner: self.inner }
    }
}

/// Slices at index tuples.
pub fn lower_gather_nd(step: &StepNode, op: &GatherNd) -> Result<Option<Lowered>, String> {
    let Some(index_type) = IndexType::of(step.dtype(1)) else { return Ok(None) };
    let tuples = Tuples::of(step, op.batch_axes);
    let element_bytes = step.dtype(0).size_bytes();
    Ok(Some(Lowered::plain("gather_nd", step, move |args, exec| {
        let indices = index_type.read(args, 1);
        gather::gather_nd(&exec, element_bytes, tuples.shape(), args.read(0), indices, args.write(0)).map_err(explain)
    })))
}

fn scatter_kernel(func: ScatterFn, dtype: DType) -> Option<ScatterKernel> {
    let reduction = match func {
        ScatterFn::Replace => return Some(ScatterKernel::Copy(dtype.size_bytes())),
        ScatterFn::Add => ScatterReduction::Add,
        ScatterFn::Mul => ScatterReduction::Mul,
        ScatterFn::Min => ScatterReduction::Min,
        ScatterFn::Max => ScatterReduction::Max,
    };
    match dtype {
        DType::F32 => Some(ScatterKernel::F32(reduction)),
        DType::I32 => Some(ScatterKernel::I32(reduction)),
        DType::I64 => Some(ScatterKernel::I64(reduction)),
        _ => None,
    }
}

/// Updates at indices along an axis.
pub fn lower_scatter_elements(step: &StepNode, op: &ScatterElements) -> Result<Option<Lowered>, String> {
    let (Some(index_type), Some(kernel)) = (IndexType::of(step.dtype(1)), scatter_kernel(op.func, step.dtype(0)))
    else {
        return Ok(None);
    };
    let (shape, index_shape, axis) = (step.shape(0), step.shape(1), op.axis);
    Ok(Some(Lowered::plain("scatter_elements", step, move |args, _| {
        let y = args.write::<u8>(0);
        y.copy_from_slice(args.read(0));
        let indices = index_type.read(args, 1);
        gather::scatter_elements(kernel, &shape, &index_shape, axis, indices, args.read(2), y).map_err(explain)
    })))
}

/// Updates at index tuples.
pub fn lower_scatter_nd(step: &StepNode, op: &ScatterNd) -> Result<Option<Lowered>, String> {
    let (Some(index_type), Some(kernel)) = (IndexType::of(step.dtype(1)), scatter_kernel(op.func, step.dtype(0)))
    else {
        return Ok(None);
    };
    let tuples = Tuples::of(step, 0);
    Ok(Some(Lowered::plain("scatter_nd", step, move |args, exec| {
        let y = args.write::<u8>(0);
        y.copy_from_slice(args.read(0));
        let indices = index_type.read(args, 1);
        gather::scatter_nd(&exec, kernel, tuples.shape(), indices, args.read(2), y).map_err(explain)
    })))
}

/// The largest or smallest elements along an axis and where they are.
pub fn lower_topk(step: &StepNode, op: &Topk, machine: Machine) -> Result<Option<Lowered>, String> {
    let [outer, axis, inner] = around(&step.shape(0), op.axis);
    let shape = TopkShape { outer, axis, inner, k: step.output_shape(0)[op.axis] };
    if step.dtype(0) != DType::F32 || !shape.is_covered() {
        return Ok(None);
    }
    let extreme = if op.largest { Extreme::Largest } else { Extreme::Smallest };
    let scratch_bytes = shape.scratch_len(machine.threads) * size_of::<u64>();
    let run = move |args: &mut Args<'_>, exec: Exec<'_>| {
        let scratch = if scratch_bytes > 0 { args.write(2) } else { &mut [] };
        topk_f32(&exec, extreme, &shape, args.read(0), scratch, args.write(0), args.write(1));
        Ok(())
    };
    Ok(Some(Lowered { kernel: "topk".to_string(), reads: vec![Read::Input(0)], scratch_bytes, run: Box::new(run) }))
}
