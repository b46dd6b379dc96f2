//! Gathers and scatters by indices of 32 or 64 bits. A negative index counts from the end; one out of range is an
//! error before anything is written there.
//!
//! Gathers copy rows of bytes on several threads. Scatters run in the order of their indices on one thread, so that
//! repeated indices give the same result every time.

use std::fmt;

use crate::isa::Exec;
use crate::pool::SharedMut;
use crate::simd::ELEMENTS_PER_TASK_MIN;

/// Indices of either width.
#[derive(Clone, Copy, Debug)]
pub enum Indices<'a> {
    /// 32-bit.
    I32(&'a [i32]),
    /// 64-bit.
    I64(&'a [i64]),
}

impl Indices<'_> {
    /// How many there are.
    pub fn len(self) -> usize {
        match self {
            Indices::I32(indices) => indices.len(),
            Indices::I64(indices) => indices.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    fn get(self, position: usize) -> i64 {
        match self {
            Indices::I32(indices) => i64::from(indices[position]),
            Indices::I64(indices) => indices[position],
        }
    }

    /// The index at `position` as an offset below `extent`.
    pub(crate) fn resolve(self, position: usize, extent: usize) -> Result<usize, IndexError> {
        let index = self.get(position);
        let wrapped = if index < 0 { index.wrapping_add(extent as i64) } else { index };
        let offset = usize::try_from(wrapped).ok().filter(|&offset| offset < extent);
        offset.ok_or(IndexError { position, index, extent })
    }
}

/// An index that points outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexError {
    /// Where in the list of indices it stands.
    pub position: usize,
    /// The index.
    pub index: i64,
    /// How many elements the axis has.
    pub extent: usize,
}

impl fmt::Display for IndexError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let IndexError { position, index, extent } = self;
        write!(f, "index {index} at position {position} is out of range for an axis of {extent}")
    }
}

impl std::error::Error for IndexError {}

/// What a scatter does where it writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScatterKernel {
    /// Replaces elements of this many bytes: 1, 2, 4 or 8.
    Copy(usize),
    /// Joins floats.
    F32(ScatterReduction),
    /// Joins 32-bit integers, wrapping.
    I32(ScatterReduction),
    /// Joins 64-bit integers, wrapping.
    I64(ScatterReduction),
}

impl ScatterKernel {
    /// Bytes of an element.
    pub fn element_bytes(self) -> usize {
        match self {
            ScatterKernel::Copy(bytes) => bytes,
            ScatterKernel::F32(_) | ScatterKernel::I32(_) => 4,
            ScatterKernel::I64(_) => 8,
        }
    }
}

/// How a scatter joins what is there with an update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScatterReduction {
    /// The sum.
    Add,
    /// The product.
    Mul,
    /// The smaller; NaN if either is.
    Min,
    /// The larger; NaN if either is.
    Max,
}

/// Rows of `inner_bytes` bytes of `[outer, axis, inner]`, in the order of `indices`, to `[outer, indices, inner]`.
pub fn gather(
    exec: &Exec,
    outer: usize,
    axis: usize,
    inner_bytes: usize,
    src: &[u8],
    indices: Indices,
    dst: &mut [u8],
) -> Result<(), IndexError> {
    assert_eq!(src.len(), outer * axis * inner_bytes, "bytes of the source");
    let count = indices.len();
    assert_eq!(dst.len(), outer * count * inner_bytes, "bytes of the target");
    for position in 0..count {
        indices.resolve(position, axis)?;
    }
    if dst.is_empty() {
        return Ok(());
    }
    let rows_in_task = rows_of_bytes(inner_bytes);
    exec.pool().chunks_mut(dst, rows_in_task * inner_bytes, |task, dst| {
        let first = task * rows_in_task;
        let rows = GatherRows { axis, inner_bytes, src, indices, outer: first / count, position: first % count };
        match inner_bytes {
            4 => rows.copy(dst, copy_exactly::<4>),
            8 => rows.copy(dst, copy_exactly::<8>),
            _ => rows.copy(dst, copy_row),
        }
    });
    Ok(())
}

/// Some successive rows of the result of a gather.
struct GatherRows<'a> {
    axis: usize,
    inner_bytes: usize,
    src: &'a [u8],
    indices: Indices<'a>,
    /// Where the first row is.
    outer: usize,
    position: usize,
}

impl GatherRows<'_> {
    /// Copies the rows that fill `dst`; every index was checked.
    #[inline(always)]
    fn copy(&self, dst: &mut [u8], copy: impl Fn(&[u8], &mut [u8])) {
        let GatherRows { axis, inner_bytes, src, indices, mut outer, mut position } = *self;
        for row in dst.chunks_exact_mut(inner_bytes) {
            let offset = indices.resolve(position, axis).expect("checked before");
            let start = (outer * axis + offset) * inner_bytes;
            copy(&src[start..start + inner_bytes], row);
            position += 1;
            if position == indices.len() {
                (outer, position) = (outer + 1, 0);
            }
        }
    }
}

/// A copy whose length the compiler knows, which saves a call.
#[inline(always)]
pub(crate) fn copy_exactly<const N: usize>(source: &[u8], target: &mut [u8]) {
    if let (Some(source), Some(target)) = (source.first_chunk::<N>(), target.first_chunk_mut::<N>()) {
        *target = *source;
    }
}

/// `dst[i, …] = src[… with the index at `axis` replaced by indices[i, …]]`; `dst` has the shape of the indices, which
/// is no larger than that of `src` except along `axis`.
pub fn gather_elements(
    exec: &Exec,
    element_bytes: usize,
    src_shape: &[usize],
    index_shape: &[usize],
    axis: usize,
    src: &[u8],
    indices: Indices,
    dst: &mut [u8],
) -> Result<(), IndexError> {
    check_elements(src_shape, index_shape, axis, indices.len());
    assert_eq!(src.len(), src_shape.iter().product::<usize>() * element_bytes, "bytes of the source");
    assert_eq!(dst.len(), indices.len() * element_bytes, "bytes of the target");
    for position in 0..indices.len() {
        indices.resolve(position, src_shape[axis])?;
    }
    if dst.is_empty() {
        return Ok(());
    }
    let elements_in_task = ELEMENTS_PER_TASK_MIN;
    exec.pool().chunks_mut(dst, elements_in_task * element_bytes, |task, dst| {
        for (index, element) in dst.chunks_exact_mut(element_bytes).enumerate() {
            let position = task * elements_in_task + index;
            let offset = indices.resolve(position, src_shape[axis]).expect("checked above");
            let from = element_offset(src_shape, index_shape, axis, position, offset) * element_bytes;
            copy_row(&src[from..from + element_bytes], element);
        }
    });
    Ok(())
}

/// The sizes of a gather or scatter by tuples of indices.
#[derive(Clone, Copy, Debug)]
pub struct TupleShape<'a> {
    /// Independent problems: the product of the batch dimensions, 1 for a scatter.
    pub batches: usize,
    /// Tuples of a batch.
    pub tuples: usize,
    /// Extents of the dimensions that a tuple indexes, one for each of its members.
    pub extents: &'a [usize],
    /// Elements of what a tuple names.
    pub inner: usize,
}

impl TupleShape<'_> {
    /// The row that a tuple names, counted from the start of its batch.
    fn row(&self, indices: Indices, tuple: usize) -> Result<usize, IndexError> {
        let depth = self.extents.len();
        self.extents
            .iter()
            .enumerate()
            .try_fold(0, |row, (member, &extent)| Ok(row * extent + indices.resolve(tuple * depth + member, extent)?))
    }

    fn rows(&self) -> usize {
        self.extents.iter().product()
    }

    fn check(&self, indices: Indices) {
        let expected = self.batches * self.tuples * self.extents.len();
        assert_eq!(indices.len(), expected, "number of indices");
    }
}

/// For each tuple the slice it names, of `[batches, extents…, inner]`.
pub fn gather_nd(
    exec: &Exec,
    element_bytes: usize,
    shape: TupleShape,
    src: &[u8],
    indices: Indices,
    dst: &mut [u8],
) -> Result<(), IndexError> {
    shape.check(indices);
    let row_bytes = shape.inner * element_bytes;
    let tuple_count = shape.batches * shape.tuples;
    assert_eq!(src.len(), shape.batches * shape.rows() * row_bytes, "bytes of the source");
    assert_eq!(dst.len(), tuple_count * row_bytes, "bytes of the target");
    for tuple in 0..tuple_count {
        shape.row(indices, tuple)?;
    }
    if dst.is_empty() {
        return Ok(());
    }
    let rows_in_task = rows_of_bytes(row_bytes);
    exec.pool().chunks_mut(dst, rows_in_task * row_bytes, |task, dst| {
        for (index, target) in dst.chunks_exact_mut(row_bytes).enumerate() {
            let tuple = task * rows_in_task + index;
            let row = shape.row(indices, tuple).expect("checked above");
            let start = (tuple / shape.tuples * shape.rows() + row) * row_bytes;
            copy_row(&src[start..start + row_bytes], target);
        }
    });
    Ok(())
}

/// Writes or joins each update to the element of `dst` that its index names; `dst` already holds the data.
pub fn scatter_elements(
    kernel: ScatterKernel,
    dst_shape: &[usize],
    index_shape: &[usize],
    axis: usize,
    indices: Indices,
    updates: &[u8],
    dst: &mut [u8],
) -> Result<(), IndexError> {
    let bytes = kernel.element_bytes();
    check_elements(dst_shape, index_shape, axis, indices.len());
    assert_eq!(dst.len(), dst_shape.iter().product::<usize>() * bytes, "bytes of the target");
    assert_eq!(updates.len(), indices.len() * bytes, "bytes of the updates");
    if indices.is_empty() {
        return Ok(());
    }
    for (position, update) in updates.chunks_exact(bytes).enumerate() {
        let offset = indices.resolve(position, dst_shape[axis])?;
        let to = element_offset(dst_shape, index_shape, axis, position, offset) * bytes;
        join(kernel, update, &mut dst[to..to + bytes]);
    }
    Ok(())
}

/// Writes or joins each slice of updates to the slice of `dst`, `[extents…, inner]`, that its tuple names; `dst`
/// already holds the data.
pub fn scatter_nd(
    exec: &Exec,
    kernel: ScatterKernel,
    shape: TupleShape,
    indices: Indices,
    updates: &[u8],
    dst: &mut [u8],
) -> Result<(), IndexError> {
    shape.check(indices);
    let row_bytes = shape.inner * kernel.element_bytes();
    let tuple_count = shape.batches * shape.tuples;
    assert_eq!(updates.len(), tuple_count * row_bytes, "bytes of the updates");
    assert_eq!(dst.len(), shape.batches * shape.rows() * row_bytes, "bytes of the target");
    for tuple in 0..tuple_count {
        shape.row(indices, tuple)?;
    }
    if updates.is_empty() {
        return Ok(());
    }
    // Columns are independent, so threads share those and each goes through all tuples in order.
    let bytes = kernel.element_bytes();
    let parts = (updates.len() / bytes / ELEMENTS_PER_TASK_MIN).clamp(1, shape.inner.min(exec.threads()));
    let part_bytes = shape.inner.div_ceil(parts) * bytes;
    let shared = SharedMut::new(dst);
    exec.pool().run(row_bytes.div_ceil(part_bytes), &|part| {
        let columns = part * part_bytes..((part + 1) * part_bytes).min(row_bytes);
        for (tuple, update) in updates.chunks_exact(row_bytes).enumerate() {
            let row = shape.row(indices, tuple).expect("checked above");
            let start = (tuple / shape.tuples * shape.rows() + row) * row_bytes + columns.start;
            // SAFETY: only this part touches these columns, one slice at a time.
            let target = unsafe { shared.slice(start, columns.len()) };
            join(kernel, &update[columns.clone()], target);
        }
    });
    Ok(())
}

fn check_elements(data_shape: &[usize], index_shape: &[usize], axis: usize, index_count: usize) {
    assert_eq!(data_shape.len(), index_shape.len(), "rank of the indices");
    assert!(axis < data_shape.len(), "axis {axis} of rank {}", data_shape.len());
    assert_eq!(index_shape.iter().product::<usize>(), index_count, "number of indices");
    let fits = |d: usize| d == axis || index_shape[d] <= data_shape[d];
    let all_fit = index_count == 0 || (0..data_shape.len()).all(fits);
    assert!(all_fit, "indices of shape {index_shape:?} for data of shape {data_shape:?}");
}

/// The element of the data that the index at `position` names when it resolves to `offset` along the axis.
fn element_offset(data_shape: &[usize], index_shape: &[usize], axis: usize, position: usize, offset: usize) -> usize {
    let (mut rest, mut stride, mut element) = (position, 1, 0);
    for d in (0..data_shape.len()).rev() {
        let coordinate = if d == axis { offset } else { rest % index_shape[d] };
        rest /= index_shape[d];
        element += coordinate * stride;
        stride *= data_shape[d];
    }
    element
}

/// Rows of so many bytes that make a task.
fn rows_of_bytes(row_bytes: usize) -> usize {
    (ELEMENTS_PER_TASK_MIN * 4).div_ceil(row_bytes)
}

/// Copies a row; short ones of usual element sizes without a call.
#[inline(always)]
fn copy_row(source: &[u8], target: &mut [u8]) {
    match (source, &mut *target) {
        (&[a, b, c, d], [w, x, y, z]) => (*w, *x, *y, *z) = (a, b, c, d),
        (&[a], [x]) => *x = a,
        _ => target.copy_from_slice(source),
    }
}

/// Joins equally long runs of elements.
fn join(kernel: ScatterKernel, update: &[u8], target: &mut [u8]) {
    match kernel {
        ScatterKernel::Copy(_) => target.copy_from_slice(update),
        ScatterKernel::F32(reduction) => {
            for (target, update) in target.as_chunks_mut().0.iter_mut().zip(update.as_chunks().0) {
                let (old, new) = (f32::from_ne_bytes(*target), f32::from_ne_bytes(*update));
                let joined = match reduction {
                    ScatterReduction::Add => old + new,
                    ScatterReduction::Mul => old * new,
                    ScatterReduction::Min => crate::math::minimum(old, new),
                    ScatterReduction::Max => crate::math::maximum(old, new),
                };
                *target = joined.to_ne_bytes();
            }
        }
        ScatterKernel::I32(reduction) => {
            for (target, update) in target.as_chunks_mut().0.iter_mut().zip(update.as_chunks().0) {
                let (old, new) = (i32::from_ne_bytes(*target), i32::from_ne_bytes(*update));
                *target = (join_integers(reduction, old.into(), new.into()) as i32).to_ne_bytes();
            }
        }
        ScatterKernel::I64(reduction) => {
            for (target, update) in target.as_chunks_mut().0.iter_mut().zip(update.as_chunks().0) {
                let (old, new) = (i64::from_ne_bytes(*target), i64::from_ne_bytes(*update));
                *target = join_integers(reduction, old, new).to_ne_bytes();
            }
        }
    }
}

fn join_integers(reduction: ScatterReduction, old: i64, new: i64) -> i64 {
    match reduction {
        ScatterReduction::Add => old.wrapping_add(new),
        ScatterReduction::Mul => old.wrapping_mul(new),
        ScatterReduction::Min => old.min(new),
        ScatterReduction::Max => old.max(new),
    }
}

#[cfg(test)]
#[path = "gather_tests.rs"]
mod tests;
