//! Strided copies of elements of 1, 2, 4 or 8 bytes: transpose, slice, broadcast, and the pieces of concat and pad.
//!
//! `StridedCopy::new` merges dimensions, proves that every access is inside both buffers and that no two elements go
//! to the same place, and chooses between runs of bytes, blocked transposes and single elements.

use std::fmt;

use crate::isa::Exec;
use crate::simd::rows_per_task;

/// Most dimensions that are left after merging.
const RANK_MAX: usize = 8;
/// Side of the square that a transpose moves at once: a cache line of 4-byte elements.
const SQUARE: usize = 16;
/// Rows of the target that one unit of a transpose writes.
const TRANSPOSE_ROWS: usize = 64;
/// Runs up to this long are copied without a call.
const SHORT_RUN_BYTES: usize = 32;

/// Where an output begins, for tasks that write disjoint parts of it.
#[derive(Clone, Copy)]
pub(crate) struct OutputStart(*mut u8);

impl OutputStart {
    pub(crate) fn new(start: *mut u8) -> OutputStart {
        OutputStart(start)
    }

    /// The address. A method, so that closures capture the wrapper and not the pointer in it.
    pub(crate) fn get(self) -> *mut u8 {
        self.0
    }
}

// SAFETY: an address may be read by any thread; what is written through it is argued where that happens.
unsafe impl Sync for OutputStart {}

/// A checked copy between two strided views.
#[derive(Clone, Debug)]
pub struct StridedCopy {
    element_bytes: usize,
    /// Outermost first.
    dimensions: Vec<Dimension>,
    kind: Kind,
    src_offset: usize,
    dst_offset: usize,
    src_len: usize,
    dst_len: usize,
}

/// One loop of a copy; strides in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Dimension {
    extent: usize,
    src: isize,
    dst: isize,
}

/// What the innermost loops do. The dimensions they take are no longer in the list.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// There is nothing to copy.
    Empty,
    /// Consecutive elements to consecutive elements.
    Run { len: usize },
    /// Consecutive elements along `row` in the target and along `column` in the source.
    Transpose { row: Dimension, column: Dimension },
    /// One loop with any strides.
    Elements { inner: Dimension },
}

/// Why a copy is not possible.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CopyError {
    /// Elements are of 1, 2, 4 or 8 bytes.
    ElementBytes(usize),
    /// The numbers of extents and strides differ, or there are too many after merging.
    Rank {
        /// How many extents.
        extents: usize,
        /// How many source strides.
        src_strides: usize,
        /// How many target strides.
        dst_strides: usize,
    },
    /// The view reaches outside its buffer.
    OutOfBounds {
        /// "source" or "target".
        buffer: &'static str,
        /// The lowest and highest element that would be touched.
        reach: (i128, i128),
        /// How many elements the buffer has.
        len: usize,
    },
    /// Two elements could go to the same place.
    Overlap,
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            CopyError::ElementBytes(bytes) => write!(f, "elements of {bytes} bytes; expected 1, 2, 4 or 8"),
            CopyError::Rank { extents, src_strides, dst_strides } => {
                write!(f, "{extents} extents with {src_strides} source and {dst_strides} target strides")
            }
            CopyError::OutOfBounds { buffer, reach, len } => {
                write!(f, "the {buffer} view reaches from {} to {} of {len} elements", reach.0, reach.1)
            }
            CopyError::Overlap => write!(f, "two elements may go to the same place"),
        }
    }
}

impl std::error::Error for CopyError {}

impl StridedCopy {
    /// Offsets, strides and lengths are in elements. Source strides may be 0 or negative; target strides may be
    /// negative.
    pub fn new(
        element_bytes: usize,
        extents: &[usize],
        src_offset: usize,
        src_strides: &[isize],
        dst_offset: usize,
        dst_strides: &[isize],
        src_len: usize,
        dst_len: usize,
    ) -> Result<StridedCopy, CopyError> {
        if !matches!(element_bytes, 1 | 2 | 4 | 8) {
            return Err(CopyError::ElementBytes(element_bytes));
        }
        let rank_error =
            CopyError::Rank { extents: extents.len(), src_strides: src_strides.len(), dst_strides: dst_strides.len() };
        if extents.len() != src_strides.len() || extents.len() != dst_strides.len() {
            return Err(rank_error);
        }
        let mut copy = StridedCopy {
            element_bytes,
            dimensions: Vec::new(),
            kind: Kind::Empty,
            src_offset,
            dst_offset,
            src_len,
            dst_len,
        };
        if extents.contains(&0) {
            return Ok(copy);
        }
        let dimensions = (0..extents.len())
            .map(|d| Dimension { extent: extents[d], src: src_strides[d], dst: dst_strides[d] })
            .filter(|dimension| dimension.extent != 1)
            .collect();
        copy.dimensions = merge(dimensions);
        check_reach("source", src_offset, src_len, copy.dimensions.iter().map(|d| (d.extent, d.src)))?;
        check_reach("target", dst_offset, dst_len, copy.dimensions.iter().map(|d| (d.extent, d.dst)))?;
        check_distinct(&copy.dimensions)?;
        copy.kind = take_inner(&mut copy.dimensions);
        if copy.dimensions.len() > RANK_MAX {
            return Err(rank_error);
        }
        Ok(copy)
    }

    /// Whether the copy is one run of bytes.
    pub fn is_contiguous(&self) -> bool {
        self.dimensions.is_empty() && matches!(self.kind, Kind::Run { .. })
    }

    /// Copies. Panics if a buffer has another length than `new` was told.
    pub fn run(&self, exec: &Exec, src: &[u8], dst: &mut [u8]) {
        assert_eq!(src.len(), self.src_len * self.element_bytes, "bytes of the source");
        assert_eq!(dst.len(), self.dst_len * self.element_bytes, "bytes of the target");
        match self.element_bytes {
            1 => self.run_typed::<u8>(exec, src, dst),
            2 => self.run_typed::<u16>(exec, src, dst),
            4 => self.run_typed::<u32>(exec, src, dst),
            _ => self.run_typed::<u64>(exec, src, dst),
        }
    }

    fn run_typed<T: Copy + Default>(&self, exec: &Exec, src: &[u8], dst: &mut [u8]) {
        let (unit_len, blocks) = match self.kind {
            Kind::Empty => return,
            Kind::Run { len } if self.dimensions.is_empty() => {
                let bytes = len * size_of::<T>();
                let (src_start, dst_start) = (self.src_offset * size_of::<T>(), self.dst_offset * size_of::<T>());
                copy_run(exec, &src[src_start..src_start + bytes], &mut dst[dst_start..dst_start + bytes]);
                return;
            }
            Kind::Run { len } => (len.div_ceil(4), 1),
            Kind::Transpose { row, column } => {
                (row.extent * column.extent.min(TRANSPOSE_ROWS) * 2, column.extent.div_ceil(TRANSPOSE_ROWS))
            }
            Kind::Elements { inner } => (inner.extent * 2, 1),
        };
        let unit_count = self.dimensions.iter().map(|d| d.extent).product::<usize>() * blocks;
        let units_per_task = rows_per_task(unit_count, unit_len, 1);
        let dst_start = OutputStart::new(dst.as_mut_ptr());
        exec.pool().run(unit_count.div_ceil(units_per_task), &|task| {
            let first = task * units_per_task;
            let last = (first + units_per_task).min(unit_count);
            let mut position = Position::at(&self.dimensions, first / blocks);
            let mut block = first % blocks;
            for _ in first..last {
                let src_index = self.src_offset as isize + position.src;
                let dst_index = self.dst_offset as isize + position.dst;
                // SAFETY: `new` proved that every element that the loops reach lies inside both buffers, whose
                // lengths `run` checked, and that no two elements, so no two units, write the same place.
                unsafe {
                    let src = src.as_ptr().cast::<T>().offset(src_index);
                    let dst = dst_start.get().cast::<T>().offset(dst_index);
                    self.copy_unit(src, dst, block);
                }
                block += 1;
                if block == blocks {
                    block = 0;
                    position.advance(&self.dimensions);
                }
            }
        });
    }

    /// # Safety
    /// The pointers are at an element of the outer loops; `block` is one of the column blocks of a transpose.
    unsafe fn copy_unit<T: Copy + Default>(&self, src: *const T, dst: *mut T, block: usize) {
        // SAFETY: handed on; addresses may be unaligned, which every reader and writer below allows for.
        unsafe {
            match self.kind {
                Kind::Empty => {}
                Kind::Run { len } => copy_short_run(src, dst, len),
                Kind::Transpose { row, column } => {
                    let first = block * TRANSPOSE_ROWS;
                    let count = TRANSPOSE_ROWS.min(column.extent - first);
                    let src = src.add(first);
                    let dst = dst.offset(first as isize * column.dst);
                    transpose(src, row.src, dst, column.dst, row.extent, count);
                }
                Kind::Elements { inner } => copy_elements(src, dst, inner),
            }
        }
    }
}

/// Writes `pattern` over and over; its length divides that of `dst`.
pub fn fill(exec: &Exec, dst: &mut [u8], pattern: &[u8]) {
    if dst.is_empty() {
        return;
    }
    let is_possible = !pattern.is_empty() && dst.len().is_multiple_of(pattern.len());
    assert!(is_possible, "{} bytes filled with a pattern of {}", dst.len(), pattern.len());
    let chunk_len = (64 * 1024_usize).next_multiple_of(pattern.len());
    exec.pool().chunks_mut(dst, chunk_len, |_, chunk| match *pattern {
        [a] => chunk.fill(a),
        [a, b] => chunk.as_chunks_mut().0.fill([a, b]),
        [a, b, c, d] => chunk.as_chunks_mut().0.fill([a, b, c, d]),
        [a, b, c, d, e, f, g, h] => chunk.as_chunks_mut().0.fill([a, b, c, d, e, f, g, h]),
        _ => chunk.chunks_exact_mut(pattern.len()).for_each(|piece| piece.copy_from_slice(pattern)),
    });
}

/// Bytes of `[rows, columns]` to `[columns, rows]`, without the allocations of a `StridedCopy`.
pub(crate) fn transpose_bytes(exec: &Exec, rows: usize, columns: usize, src: &[u8], dst: &mut [u8]) {
    assert_eq!(src.len(), rows * columns, "bytes of the source");
    assert_eq!(dst.len(), rows * columns, "bytes of the target");
    if dst.is_empty() {
        return;
    }
    exec.pool().chunks_mut(dst, TRANSPOSE_ROWS * rows, |block, dst| {
        let src = &src[block * TRANSPOSE_ROWS..];
        let count = dst.len() / rows;
        // SAFETY: `dst` is `count` lines of `rows` bytes. The last byte read, `count - 1` in the last row, is the
        // last one of this block's columns and so inside the source.
        unsafe { transpose(src.as_ptr(), columns as isize, dst.as_mut_ptr(), rows as isize, rows, count) };
    });
}

/// Copies a long run on several threads.
fn copy_run(exec: &Exec, src: &[u8], dst: &mut [u8]) {
    let chunk_len = 256 * 1024;
    exec.pool().chunks_mut(dst, chunk_len, |index, chunk| {
        let start = index * chunk_len;
        chunk.copy_from_slice(&src[start..start + chunk.len()]);
    });
}

/// Sorts the loops so that the target is written in order, and merges those that step alike.
fn merge(mut dimensions: Vec<Dimension>) -> Vec<Dimension> {
    dimensions.sort_by_key(|dimension| std::cmp::Reverse(dimension.dst.unsigned_abs()));
    let mut merged: Vec<Dimension> = Vec::with_capacity(dimensions.len());
    for inner in dimensions {
        match merged.last_mut() {
            Some(outer) if steps_over(outer.src, inner.src, &inner) && steps_over(outer.dst, inner.dst, &inner) => {
                *outer = Dimension { extent: outer.extent.saturating_mul(inner.extent), ..inner };
            }
            _ => merged.push(inner),
        }
    }
    merged
}

/// Whether one step of the outer loop is as far as all steps of the inner one.
fn steps_over(outer: isize, inner: isize, dimension: &Dimension) -> bool {
    let extent = isize::try_from(dimension.extent).ok();
    extent.and_then(|extent| inner.checked_mul(extent)) == Some(outer)
}

fn check_reach(
    buffer: &'static str,
    offset: usize,
    len: usize,
    dimensions: impl Iterator<Item = (usize, isize)>,
) -> Result<(), CopyError> {
    let (mut low, mut high) = (offset as i128, offset as i128);
    for (extent, stride) in dimensions {
        let distance = ((extent as i128) - 1).saturating_mul(stride as i128);
        low = low.saturating_add(distance.min(0));
        high = high.saturating_add(distance.max(0));
    }
    let fits_memory = len <= isize::MAX as usize / 8;
    if low >= 0 && high < len as i128 && fits_memory {
        return Ok(());
    }
    Err(CopyError::OutOfBounds { buffer, reach: (low, high), len })
}

/// Every loop must step further than all loops inside it reach.
fn check_distinct(dimensions: &[Dimension]) -> Result<(), CopyError> {
    let mut reach: u128 = 0;
    for dimension in dimensions.iter().rev() {
        let step = dimension.dst.unsigned_abs() as u128;
        if step <= reach {
            return Err(CopyError::Overlap);
        }
        reach = reach.saturating_add(step.saturating_mul(dimension.extent as u128 - 1));
    }
    Ok(())
}

/// Takes the loops that the innermost code does out of the list.
fn take_inner(dimensions: &mut Vec<Dimension>) -> Kind {
    let Some(inner) = dimensions.pop() else {
        return Kind::Run { len: 1 };
    };
    if inner.dst != 1 {
        return Kind::Elements { inner };
    }
    if inner.src == 1 {
        return Kind::Run { len: inner.extent };
    }
    match dimensions.iter().position(|dimension| dimension.src == 1) {
        Some(column) => Kind::Transpose { row: inner, column: dimensions.remove(column) },
        None => Kind::Elements { inner },
    }
}

/// Where the outer loops stand, and how far that is from the start in both buffers.
struct Position {
    indices: [usize; RANK_MAX],
    src: isize,
    dst: isize,
}

impl Position {
    fn at(dimensions: &[Dimension], mut flat: usize) -> Position {
        let mut position = Position { indices: [0; RANK_MAX], src: 0, dst: 0 };
        for (index, dimension) in position.indices[..dimensions.len()].iter_mut().zip(dimensions).rev() {
            *index = flat % dimension.extent;
            flat /= dimension.extent;
            position.src += *index as isize * dimension.src;
            position.dst += *index as isize * dimension.dst;
        }
        position
    }

    fn advance(&mut self, dimensions: &[Dimension]) {
        for (index, dimension) in self.indices[..dimensions.len()].iter_mut().zip(dimensions).rev() {
            *index += 1;
            self.src += dimension.src;
            self.dst += dimension.dst;
            if *index < dimension.extent {
                return;
            }
            self.src -= *index as isize * dimension.src;
            self.dst -= *index as isize * dimension.dst;
            *index = 0;
        }
    }
}

/// # Safety
/// `len` elements can be read and written; the views do not overlap.
#[inline(always)]
unsafe fn copy_short_run<T: Copy>(src: *const T, dst: *mut T, len: usize) {
    if len * size_of::<T>() > SHORT_RUN_BYTES {
        // SAFETY: the promise of the caller.
        unsafe { std::ptr::copy_nonoverlapping(src.cast::<u8>(), dst.cast::<u8>(), len * size_of::<T>()) };
        return;
    }
    for index in 0..len {
        // SAFETY: the promise of the caller.
        unsafe { dst.add(index).write_unaligned(src.add(index).read_unaligned()) };
    }
}

/// # Safety
/// Every element of the loop can be read and written.
unsafe fn copy_elements<T: Copy>(src: *const T, dst: *mut T, inner: Dimension) {
    if inner.src == 0 && inner.dst == 1 {
        // SAFETY: the promise of the caller.
        let value = unsafe { src.read_unaligned() };
        for index in 0..inner.extent {
            // SAFETY: the promise of the caller.
            unsafe { dst.add(index).write_unaligned(value) };
        }
        return;
    }
    for index in 0..inner.extent as isize {
        // SAFETY: the promise of the caller.
        unsafe { dst.offset(index * inner.dst).write_unaligned(src.offset(index * inner.src).read_unaligned()) };
    }
}

/// Element (r, c) goes from `src + r · src_stride + c` to `dst + c · dst_stride + r`.
///
/// # Safety
/// All of them can be read and written.
unsafe fn transpose<T: Copy + Default>(
    src: *const T,
    src_stride: isize,
    dst: *mut T,
    dst_stride: isize,
    rows: usize,
    columns: usize,
) {
    let (square_rows, square_columns) = (rows / SQUARE * SQUARE, columns / SQUARE * SQUARE);
    let move_one = |r: usize, c: usize| {
        // SAFETY: the promise of the caller; `r` and `c` stay below `rows` and `columns`.
        let value = unsafe { src.offset(r as isize * src_stride).add(c).read_unaligned() };
        // SAFETY: as above.
        unsafe { dst.offset(c as isize * dst_stride).add(r).write_unaligned(value) };
    };
    for r in (0..square_rows).step_by(SQUARE) {
        for c in (0..square_columns).step_by(SQUARE) {
            // SAFETY: a whole square from (r, c) lies inside.
            unsafe {
                let src = src.offset(r as isize * src_stride).add(c);
                transpose_square(src, src_stride, dst.offset(c as isize * dst_stride).add(r), dst_stride);
            }
        }
    }
    for c in 0..square_columns {
        (square_rows..rows).for_each(|r| move_one(r, c));
    }
    // The longer loop inside.
    if columns - square_columns < rows {
        for c in square_columns..columns {
            (0..rows).for_each(|r| move_one(r, c));
        }
    } else {
        for r in 0..rows {
            (square_columns..columns).for_each(|c| move_one(r, c));
        }
    }
}

/// # Safety
/// As for `transpose` with `SQUARE` rows and columns.
#[inline(always)]
unsafe fn transpose_square<T: Copy + Default>(src: *const T, src_stride: isize, dst: *mut T, dst_stride: isize) {
    let mut square = [[T::default(); SQUARE]; SQUARE];
    for (r, line) in square.iter_mut().enumerate() {
        // SAFETY: the promise of the caller.
        *line = unsafe { src.offset(r as isize * src_stride).cast::<[T; SQUARE]>().read_unaligned() };
    }
    let store = |c: usize| {
        let line: [T; SQUARE] = std::array::from_fn(|r| square[r][c]);
        // SAFETY: the promise of the caller.
        unsafe { dst.offset(c as isize * dst_stride).cast::<[T; SQUARE]>().write_unaligned(line) };
    };
    (0..SQUARE).for_each(store);
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
