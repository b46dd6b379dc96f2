//! Resizing of f32 planes (NCHW with batch and channels as one) from tables: each output coordinate is a weighted sum
//! of input coordinates, so nearest, linear, cubic and antialiased modes all run here.
//!
//! Rows are blended first, into one scratch row a task; then columns.

use std::fmt;

use crate::isa::Exec;
use crate::plane_rows::PlaneRows;
use crate::pool::{SharedMut, share};
use crate::simd::{ELEMENTS_PER_TASK_MIN, multiversion};

/// The input coordinates and weights of each output coordinate along one axis.
#[derive(Clone, Debug, PartialEq)]
pub struct AxisTaps {
    input: usize,
    /// Where the taps of each output begin; one more than there are outputs.
    starts: Vec<usize>,
    indices: Vec<usize>,
    weights: Vec<f32>,
    /// How many taps every output has, if all have as many.
    uniform: Option<usize>,
}

/// A tap that is not an input coordinate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapError {
    /// The output coordinate.
    pub output: usize,
    /// The input coordinate.
    pub index: usize,
    /// How many input coordinates there are.
    pub extent: usize,
}

impl fmt::Display for TapError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let TapError { output, index, extent } = self;
        write!(f, "output coordinate {output} reads input coordinate {index} of {extent}")
    }
}

impl std::error::Error for TapError {}

impl AxisTaps {
    /// Taps for an axis of `input` coordinates, a list of (index, weight) for each output.
    pub fn new(input: usize, lists: &[Vec<(usize, f32)>]) -> Result<AxisTaps, TapError> {
        let mut taps = AxisTaps { input, starts: vec![0], indices: vec![], weights: vec![], uniform: None };
        for (output, list) in lists.iter().enumerate() {
            for &(index, weight) in list {
                if index >= input {
                    return Err(TapError { output, index, extent: input });
                }
                taps.indices.push(index);
                taps.weights.push(weight);
            }
            taps.starts.push(taps.indices.len());
        }
        let first = lists.first().map(Vec::len);
        taps.uniform = first.filter(|&count| lists.iter().all(|list| list.len() == count));
        Ok(taps)
    }

    /// How many input coordinates the axis has.
    pub fn input(&self) -> usize {
        self.input
    }

    /// How many output coordinates the axis has.
    pub fn output(&self) -> usize {
        self.starts.len() - 1
    }

    fn of(&self, output: usize) -> impl Iterator<Item = (usize, f32)> {
        let range = self.starts[output]..self.starts[output + 1];
        self.indices[range.clone()].iter().copied().zip(self.weights[range].iter().copied())
    }
}

/// Both axes of a resize.
#[derive(Clone, Debug, PartialEq)]
pub struct ResizeTables {
    /// Vertical taps.
    pub h: AxisTaps,
    /// Horizontal taps.
    pub w: AxisTaps,
}

/// Floats of scratch that `resize` needs.
pub fn resize_scratch_len(tables: &ResizeTables, threads: usize) -> usize {
    tables.w.input * threads.max(1)
}

/// Resizes `[planes, h.input, w.input]` to `[planes, h.output, w.output]`.
pub fn resize(exec: &Exec, planes: usize, tables: &ResizeTables, src: &[f32], dst: &mut [f32], scratch: &mut [f32]) {
    let ResizeTables { h, w } = tables;
    assert_eq!(src.len(), planes * h.input * w.input, "elements of the source");
    assert_eq!(dst.len(), planes * h.output() * w.output(), "elements of the target");
    if dst.is_empty() {
        return;
    }
    let rows = planes * h.output();
    let work = rows * (w.input + 4 * w.output());
    let task_count = (work / ELEMENTS_PER_TASK_MIN).clamp(1, exec.threads()).min(rows);
    let needed = w.input * task_count;
    assert!(scratch.len() >= needed, "{} floats of scratch, expected {needed}", scratch.len());
    let (shared, scratch) = (SharedMut::new(dst), SharedMut::new(scratch));
    exec.pool().run(task_count, &|task| {
        // SAFETY: each task has its own row of scratch.
        let blended = unsafe { scratch.slice(task * w.input, w.input) };
        for row in share(rows, task_count, task) {
            // SAFETY: each row belongs to one task.
            let target = unsafe { shared.slice(row * w.output(), w.output()) };
            let plane = &src[row / h.output() * h.input * w.input..][..h.input * w.input];
            blend_rows(exec.isa(), h, row % h.output(), plane, blended);
            blend_columns(exec.isa(), w, blended, target);
        }
    });
}

/// Copies elements of 1, 2, 4 or 8 bytes: output (y, x) is input (`rows[y]`, `columns[x]`) of the same plane. The images decide
/// how threads share the planes.
pub fn resize_nearest(
    exec: &Exec,
    element_bytes: usize,
    batch: usize,
    planes: usize,
    input: (usize, usize),
    rows: &[usize],
    columns: &[usize],
    src: &[u8],
    dst: &mut [u8],
) {
    let (height, width) = input;
    assert_eq!(src.len(), planes * height * width * element_bytes, "bytes of the source");
    assert_eq!(dst.len(), planes * rows.len() * columns.len() * element_bytes, "bytes of the target");
    if dst.is_empty() {
        return;
    }
    assert!(rows.iter().all(|&row| row < height), "a row outside of {height}");
    assert!(columns.iter().all(|&column| column < width), "a column outside of {width}");
    let row_bytes = columns.len() * element_bytes;
    let rows_in_task = (ELEMENTS_PER_TASK_MIN * 2).div_ceil(columns.len());
    let (height_out, area) = (rows.len(), rows.len() * columns.len());
    let results = PlaneRows { batch, planes, height: height_out, area, row_len: row_bytes, rows_in_task };
    results.share(exec, dst, |first, dst| {
        for index in 0..dst.len() / row_bytes {
            let row = first + index;
            let from = |row: usize| row / rows.len() * height + rows[row % rows.len()];
            let (done, rest) = dst.split_at_mut(index * row_bytes);
            let target = &mut rest[..row_bytes];
            if index > 0 && from(row) == from(row - 1) {
                target.copy_from_slice(&done[done.len() - row_bytes..]);
                continue;
            }
            let source = &src[from(row) * width * element_bytes..][..width * element_bytes];
            match element_bytes {
                1 => pick_columns::<1>(columns, source, target),
                2 => pick_columns::<2>(columns, source, target),
                4 => pick_columns::<4>(columns, source, target),
                8 => pick_columns::<8>(columns, source, target),
                _ => panic!("elements of {element_bytes} bytes; expected 1, 2, 4 or 8"),
            }
        }
    });
}

fn pick_columns<const BYTES: usize>(columns: &[usize], source: &[u8], target: &mut [u8]) {
    let source = source.as_chunks::<BYTES>().0;
    for (element, &column) in target.as_chunks_mut::<BYTES>().0.iter_mut().zip(columns) {
        *element = source[column];
    }
}

multiversion! {
    fn blend_rows<F: MulAdd>(h: &AxisTaps, output: usize, plane: &[f32], blended: &mut [f32]) {
        let width = blended.len();
        let mut taps = h.of(output);
        match taps.next() {
            None => blended.fill(0.0),
            Some((row, weight)) => {
                for (y, &x) in blended.iter_mut().zip(&plane[row * width..][..width]) {
                    *y = x * weight;
                }
            }
        }
        for (row, weight) in taps {
            for (y, &x) in blended.iter_mut().zip(&plane[row * width..][..width]) {
                *y = F::mul_add(x, weight, *y);
            }
        }
    }

    fn blend_columns<F: MulAdd>(w: &AxisTaps, row: &[f32], target: &mut [f32]) {
        match w.uniform {
            Some(1) => blend_fixed::<F, 1>(w, row, target),
            Some(2) => blend_fixed::<F, 2>(w, row, target),
            Some(4) => blend_fixed::<F, 4>(w, row, target),
            _ => {
                for (output, y) in target.iter_mut().enumerate() {
                    *y = w.of(output).fold(0.0, |sum, (index, weight)| F::mul_add(row[index], weight, sum));
                }
            }
        }
    }
}

#[inline(always)]
fn blend_fixed<F: crate::simd::MulAdd, const TAPS: usize>(w: &AxisTaps, row: &[f32], target: &mut [f32]) {
    let (indices, weights) = (w.indices.as_chunks::<TAPS>().0, w.weights.as_chunks::<TAPS>().0);
    for ((y, indices), weights) in target.iter_mut().zip(indices).zip(weights) {
        let mut sum = row[indices[0]] * weights[0];
        for tap in 1..TAPS {
            sum = F::mul_add(row[indices[tap]], weights[tap], sum);
        }
        *y = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::{Lcg, assert_close, for_each_exec};

    fn random_lists(input: usize, output: usize, taps: Option<usize>, lcg: &mut Lcg) -> Vec<Vec<(usize, f32)>> {
        let mut list = || {
            let count = taps.unwrap_or_else(|| lcg.below(6));
            (0..count).map(|_| (lcg.below(input), lcg.float())).collect()
        };
        (0..output).map(|_| list()).collect()
    }

    #[test]
    fn tables_are_applied_to_both_axes() {
        let mut lcg = Lcg::new(71);
        for (planes, h, w, out_h, out_w) in
            [(1, 1, 1, 1, 1), (3, 5, 7, 10, 14), (2, 30, 40, 11, 90), (0, 2, 2, 4, 4), (20, 33, 33, 66, 66)]
        {
            for taps in [Some(1), Some(2), Some(4), None] {
                let (rows, columns) = (random_lists(h, out_h, taps, &mut lcg), random_lists(w, out_w, taps, &mut lcg));
                let tables =
                    ResizeTables { h: AxisTaps::new(h, &rows).unwrap(), w: AxisTaps::new(w, &columns).unwrap() };
                let src = lcg.floats(planes * h * w);
                let mut expected = Vec::new();
                for plane in 0..planes {
                    for row in &rows {
                        for column in &columns {
                            let mut sum = 0.0;
                            for &(y, wy) in row {
                                for &(x, wx) in column {
                                    sum += f64::from(src[(plane * h + y) * w + x]) * f64::from(wy) * f64::from(wx);
                                }
                            }
                            expected.push(sum);
                        }
                    }
                }
                for_each_exec(|exec| {
                    let mut dst = vec![9.0; expected.len()];
                    let mut scratch = vec![0.0; resize_scratch_len(&tables, exec.threads())];
                    resize(exec, planes, &tables, &src, &mut dst, &mut scratch);
                    assert_close(&dst, &expected, 1e-5, 1e-5, "resize");
                });
            }
        }
    }

    #[test]
    fn nearest_copies_any_element() {
        let mut lcg = Lcg::new(72);
        for bytes in [1, 2, 4, 8] {
            let (planes, height, width) = (40, 6, 9);
            let rows: Vec<usize> = (0..12).map(|row| row / 2).collect();
            let columns: Vec<usize> = (0..100).map(|_| lcg.below(width)).collect();
            let src = lcg.bytes(planes * height * width * bytes);
            let mut expected = Vec::new();
            for plane in 0..planes {
                for &row in &rows {
                    for &column in &columns {
                        expected.extend_from_slice(&src[((plane * height + row) * width + column) * bytes..][..bytes]);
                    }
                }
            }
            for_each_exec(|exec| {
                // One image is cut by rows, several by planes.
                for batch in [1, 4] {
                    let mut dst = vec![0; expected.len()];
                    resize_nearest(exec, bytes, batch, planes, (height, width), &rows, &columns, &src, &mut dst);
                    assert!(dst == expected);
                }
            });
        }
    }

    #[test]
    fn a_tap_outside_is_refused() {
        let error = AxisTaps::new(3, &[vec![(0, 1.0)], vec![(3, 1.0)]]).unwrap_err();
        assert_eq!(error.to_string(), "output coordinate 1 reads input coordinate 3 of 3");
    }
}
