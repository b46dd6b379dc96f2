//! Rows of several tables and of plain matrices side by side: embeddings looked up straight into their concatenation.

use crate::gather::{IndexError, Indices, copy_exactly};
use crate::isa::Exec;
use crate::pool::{SharedMut, share};
use std::sync::OnceLock;

/// One part of every row of the result.
#[derive(Clone, Copy, Debug)]
pub enum RowPart<'a> {
    /// A row after another.
    Rows(&'a [u8]),
    /// The rows of a table that the indices name.
    Table {
        /// Rows of the table.
        data: &'a [u8],
        /// How many rows it has.
        rows: usize,
        /// One for each row of the result.
        indices: Indices<'a>,
    },
}

/// Where a part lies in the result.
#[derive(Clone, Copy, Debug)]
pub struct PartPlace {
    /// Bytes of it in each row.
    pub bytes: usize,
    /// From the start of a row.
    pub start: usize,
}

/// Bytes below which all work stays on one thread: about 8 µs.
const SPLIT_BYTES: usize = 64 * 1024;

/// Writes some parts of every row of `dst`, `row_bytes` each. An index out of range is reported with its part.
pub fn gather_concat(
    exec: &Exec,
    places: &[PartPlace],
    parts: &[RowPart],
    row_bytes: usize,
    dst: &mut [u8],
) -> Result<(), (usize, IndexError)> {
    let rows = dst.len().checked_div(row_bytes).unwrap_or(0);
    if rows == 0 {
        return Ok(());
    }
    assert!(places.iter().all(|place| place.start + place.bytes <= row_bytes), "a part outside of the row");
    let bytes: usize = places.iter().map(|place| place.bytes * rows).sum();
    let threads = if bytes < SPLIT_BYTES { 1 } else { exec.threads() };
    let (failed, dst) = (OnceLock::new(), SharedMut::new(dst));
    exec.pool().run(threads, &|thread| {
        for at in share(places.len(), threads, thread) {
            let target = Target { dst: &dst, place: places[at], row_bytes, rows };
            if let Err(error) = target.write(parts[at]) {
                let _ = failed.set((at, error));
            }
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// The bytes of one part in all rows of the result. Parts do not overlap.
struct Target<'a> {
    dst: &'a SharedMut<'a, u8>,
    place: PartPlace,
    row_bytes: usize,
    rows: usize,
}

impl Target<'_> {
    fn write(&self, part: RowPart) -> Result<(), IndexError> {
        // A length that the compiler knows saves a call for each row.
        match self.place.bytes {
            16 => self.write_rows(part, copy_exactly::<16>),
            32 => self.write_rows(part, copy_exactly::<32>),
            64 => self.write_rows(part, copy_exactly::<64>),
            _ => self.write_rows(part, |source, target| target.copy_from_slice(source)),
        }
    }

    #[inline(always)]
    fn write_rows(&self, part: RowPart, copy: impl Fn(&[u8], &mut [u8])) -> Result<(), IndexError> {
        let PartPlace { bytes, start } = self.place;
        for row in 0..self.rows {
            let source = match part {
                RowPart::Rows(data) => &data[row * bytes..(row + 1) * bytes],
                RowPart::Table { data, rows, indices } => {
                    let at = indices.resolve(row, rows)?;
                    &data[at * bytes..(at + 1) * bytes]
                }
            };
            // SAFETY: every part has its own bytes of a row, and one thread writes it.
            copy(source, unsafe { self.dst.slice(row * self.row_bytes + start, bytes) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::pool::ThreadPool;

    #[test]
    fn parts_lie_side_by_side_and_bad_indices_name_their_part() {
        let pool = ThreadPool::new(2);
        let exec = Exec::new(Isa::Portable, &pool).unwrap();
        for (bytes, rows) in [(3, 4), (16, 5), (32, 2_000), (64, 7)] {
            let table: Vec<u8> = (0..5 * bytes).map(|at| at as u8).collect();
            let plain: Vec<u8> = (0..rows * bytes).map(|at| (at * 7) as u8).collect();
            let indices: Vec<i64> = (0..rows as i64).map(|row| row % 5 - if row % 2 == 0 { 5 } else { 0 }).collect();
            let places = [PartPlace { bytes, start: 0 }, PartPlace { bytes, start: bytes }];
            let run = |indices: &[i64]| {
                let mut dst = vec![0xff_u8; 2 * bytes * rows];
                let lookup = RowPart::Table { data: &table, rows: 5, indices: Indices::I64(indices) };
                let parts = [lookup, RowPart::Rows(&plain)];
                gather_concat(&exec, &places, &parts, 2 * bytes, &mut dst).map(|()| dst)
            };
            let dst = run(&indices).unwrap();
            for (row, dst) in dst.chunks(2 * bytes).enumerate() {
                let at = indices[row].rem_euclid(5) as usize;
                assert_eq!(dst[..bytes], table[at * bytes..(at + 1) * bytes]);
                assert_eq!(dst[bytes..], plain[row * bytes..(row + 1) * bytes]);
            }
            let mut bad = indices.clone();
            bad[rows - 1] = 5;
            let (part, error) = run(&bad).unwrap_err();
            assert_eq!((part, error.position, error.index, error.extent), (0, rows - 1, 5, 5));
        }
    }
}
