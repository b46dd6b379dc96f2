//! How threads share the planes of one image: small planes by channels, large ones by rows.
//!
//! Products over many pixels give each thread some pixels of all channels (`gemm_drive.rs`). Kernels that go from plane to plane
//! cut large planes the same way, so that a core reads what it wrote itself: a line that another core has read takes
//! some 30 ns to write again where the cores have no cache in common.

use crate::isa::Exec;
use crate::pool::{SharedMut, share};
use std::ops::Range;

/// Pixels of a plane from which on products are cut by pixels; with fewer they are cut by rows of the filter.
const AREA_MIN: usize = 1024;

/// Whether the planes of some images are cut by rows. Several images are cut by images, whatever their size.
pub(crate) fn is_cut_by_rows(batch: usize, area: usize) -> bool {
    batch == 1 && area >= AREA_MIN
}

/// The rows of every plane that one part of several takes: whole steps, but for the last.
pub(crate) fn rows_of_part(height: usize, step: usize, parts: usize, part: usize) -> Range<usize> {
    let steps = share(height.div_ceil(step), parts, part);
    (steps.start * step).min(height)..(steps.end * step).min(height)
}

/// Planes of results that are made a row at a time.
#[derive(Clone, Copy)]
pub(crate) struct PlaneRows {
    /// Images and planes, those of all images together.
    pub batch: usize,
    pub planes: usize,
    /// Rows of a plane, its pixels, and what a row is in memory.
    pub height: usize,
    pub area: usize,
    pub row_len: usize,
    /// Rows that are worth handing over.
    pub rows_in_task: usize,
}

impl PlaneRows {
    /// Calls `body` with the number of a row, those of all planes counted together, and the elements of it and of rows
    /// after it, so that every row is given once.
    pub(crate) fn share<T: Send>(&self, exec: &Exec, dst: &mut [T], body: impl Fn(usize, &mut [T]) + Sync) {
        let PlaneRows { batch, planes, height, area, row_len, rows_in_task } = *self;
        let is_cut = is_cut_by_rows(batch, area) && rows_in_task < planes * height;
        if !is_cut {
            return exec.pool().chunks_mut(dst, rows_in_task * row_len, |task, rows| body(task * rows_in_task, rows));
        }
        let parts = exec.threads().min(height);
        let dst = SharedMut::new(dst);
        exec.pool().run(parts, &|part| {
            let rows = rows_of_part(height, 1, parts, part);
            for plane in 0..planes {
                let first = plane * height + rows.start;
                // SAFETY: these rows of every plane belong to this part.
                body(first, unsafe { dst.slice(first * row_len, rows.len() * row_len) });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::pool::ThreadPool;

    #[test]
    fn every_row_is_given_once() {
        for (batch, planes, height, row_len) in [(1, 3, 40, 30), (2, 4, 40, 30), (1, 5, 4, 6), (1, 1, 1, 2000)] {
            for threads in 1..4 {
                let pool = ThreadPool::new(threads);
                let exec = Exec::new(Isa::Portable, &pool).expect("every machine has it");
                let mut dst = vec![0; planes * height * row_len];
                let rows = PlaneRows { batch, planes, height, area: height * row_len, row_len, rows_in_task: 3 };
                rows.share(&exec, &mut dst, |first, rows| {
                    for (index, row) in rows.chunks_exact_mut(row_len).enumerate() {
                        row.iter_mut().for_each(|value| *value += first + index + 1);
                    }
                });
                let expected: Vec<usize> = (0..dst.len()).map(|at| at / row_len + 1).collect();
                assert_eq!(dst, expected);
            }
        }
    }

    #[test]
    fn parts_cover_all_rows_in_order() {
        for (height, step, parts) in [(80, 7, 2), (5, 7, 1), (14, 7, 2), (13, 1, 5), (9, 4, 3)] {
            let all: Vec<usize> = (0..parts).flat_map(|part| rows_of_part(height, step, parts, part)).collect();
            assert_eq!(all, (0..height).collect::<Vec<_>>());
        }
    }
}
