//! Packed forms of f32 matrices: K-major strips that the register tiles of `gemm_tile.rs` read front to back.
//!
//! A is cut in row tiles of nearly equal height with no padding: the tile of rows r.. starts at r·k and holds k groups
//! of its rows. B is cut in panels as wide as the tile, the last padded with zeros: panel p starts at p·cols·k and
//! holds k rows. Both forms depend on the instruction set and the shape only.

use crate::arithmetic::{Arithmetic, join_rows};
use crate::gemm_tile::tile_shape;
use crate::isa::Isa;
use crate::pool::share;
use std::ops::Range;

/// The left matrix of a product, m × k.
#[derive(Clone, Copy, Debug)]
pub enum MatrixA<'a> {
    /// Element (m, k) is at `m * stride + k`.
    Rows {
        /// The elements.
        data: &'a [f32],
        /// From one row to the next.
        stride: usize,
    },
    /// Transposed: element (m, k) is at `k * stride + m`.
    Columns {
        /// The elements.
        data: &'a [f32],
        /// From one column to the next.
        stride: usize,
    },
    /// The result of `pack_a` for the same shape and instruction set.
    Packed(&'a [f32]),
}

/// The right matrix of a product, k × n.
#[derive(Clone, Copy, Debug)]
pub enum MatrixB<'a> {
    /// Element (k, n) is at `k * stride + n`.
    Rows {
        /// The elements.
        data: &'a [f32],
        /// From one row to the next.
        stride: usize,
    },
    /// Transposed: element (k, n) is at `n * stride + k`.
    Columns {
        /// The elements.
        data: &'a [f32],
        /// From one column to the next.
        stride: usize,
    },
    /// The result of `pack_b` for the same shape and instruction set.
    Packed(&'a [f32]),
}

/// The packed form of A.
pub fn pack_a(isa: Isa, m: usize, k: usize, a: MatrixA) -> Vec<f32> {
    let mut packed = vec![0.0; m * k];
    pack_a_into(isa, m, k, a, &mut packed);
    packed
}

/// Writes the packed form of A to `packed`, m·k elements.
pub(crate) fn pack_a_into(isa: Isa, m: usize, k: usize, a: MatrixA, packed: &mut [f32]) {
    a.check(m, k);
    let tiles = row_tiles(isa, m);
    for tile in 0..tiles {
        let rows = share(m, tiles, tile);
        let target = &mut packed[rows.start * k..rows.end * k];
        pack_a_tile(Isa::detect(), a, rows, 0..k, m, k, target);
    }
}

/// The packed form of B.
pub fn pack_b(isa: Isa, k: usize, n: usize, b: MatrixB) -> Vec<f32> {
    b.check(k, n);
    let width = tile_shape(isa).cols;
    let mut packed = vec![0.0; packed_b_len(isa, k, n)];
    for (panel, target) in packed.chunks_exact_mut((width * k).max(1)).enumerate() {
        let columns = panel * width..n.min((panel + 1) * width);
        pack_b_panel(Isa::detect(), width, b, 0..k, columns, k, target);
    }
    packed
}

/// The packed form of A for bf16 products: words of two successive k.
pub fn pack_a_words(isa: Isa, m: usize, k: usize, a: MatrixA) -> Vec<f32> {
    let mut words = vec![0.0; m * Arithmetic::Bf16.steps(k)];
    pack_a_words_into(isa, m, k, a, &mut words);
    words
}

/// As `pack_a_words`, into as many elements.
pub(crate) fn pack_a_words_into(isa: Isa, m: usize, k: usize, a: MatrixA, words: &mut [f32]) {
    let packed = pack_a(isa, m, k, a);
    let steps = Arithmetic::Bf16.steps(k);
    let tiles = row_tiles(isa, m);
    for rows in (0..tiles).map(|tile| share(m, tiles, tile)) {
        let source = &packed[rows.start * k..rows.end * k];
        join_rows(Isa::detect(), source, rows.len(), &mut words[rows.start * steps..rows.end * steps]);
    }
}

/// The packed form of B for bf16 products: words of two successive k. It has the elements of a matrix of half as many rows.
pub fn pack_b_words(isa: Isa, k: usize, n: usize, b: MatrixB) -> Vec<f32> {
    let packed = pack_b(isa, k, n, b);
    let (width, steps) = (tile_shape(isa).cols, Arithmetic::Bf16.steps(k));
    let mut words = vec![0.0; packed_b_len(isa, steps, n)];
    let panels = packed.chunks_exact((width * k).max(1)).zip(words.chunks_exact_mut((width * steps).max(1)));
    for (source, target) in panels {
        join_rows(Isa::detect(), source, width, target);
    }
    words
}

/// Writes the part of the packed form of B, k × n, that comes from some of its rows: those from `first` on.
pub fn pack_b_rows(isa: Isa, k: usize, n: usize, first: usize, rows: &[f32], packed: &mut [f32]) {
    let width = tile_shape(isa).cols;
    let count = rows.len().checked_div(n).unwrap_or(0);
    for panel in 0..n.div_ceil(width) {
        let columns = panel * width..n.min((panel + 1) * width);
        let target = &mut packed[(panel * k + first) * width..][..count * width];
        pack_b_panel(Isa::detect(), width, MatrixB::Rows { data: rows, stride: n }, 0..count, columns, k, target);
    }
}

/// Writes the part of the packed form of B, k × n, that comes from some of its columns, which lie one after another:
/// those from `first` on, a multiple of `panel_columns`.
pub fn pack_b_columns(isa: Isa, k: usize, first: usize, columns: &[f32], packed: &mut [f32]) {
    let width = tile_shape(isa).cols;
    assert!(first.is_multiple_of(width), "column {first} is not the first of a panel of {width}");
    let count = columns.len().checked_div(k).unwrap_or(0);
    for start in (0..count).step_by(width) {
        let target = &mut packed[(first + start) * k..][..width * k];
        let range = start..count.min(start + width);
        pack_b_panel(Isa::detect(), width, MatrixB::Columns { data: columns, stride: k }, 0..k, range, k, target);
    }
}

/// Columns of B that lie together in its packed form.
pub fn panel_columns(isa: Isa) -> usize {
    tile_shape(isa).cols
}

/// How many elements the packed form of a k × n matrix B has.
pub fn packed_b_len(isa: Isa, k: usize, n: usize) -> usize {
    n.next_multiple_of(tile_shape(isa).cols) * k
}

/// Into how many row tiles m rows are cut; tile i has the rows `share(m, tiles, i)`.
pub(crate) fn row_tiles(isa: Isa, m: usize) -> usize {
    m.div_ceil(tile_shape(isa).rows_max)
}

impl MatrixA<'_> {
    /// Panics when the data cannot hold an m × k matrix.
    pub(crate) fn check(self, m: usize, k: usize) {
        match self {
            MatrixA::Rows { data, stride } => check_strided("rows of A", data.len(), m, k, stride),
            MatrixA::Columns { data, stride } => check_strided("columns of A", data.len(), k, m, stride),
            MatrixA::Packed(data) => {
                assert!(data.len() >= m.saturating_mul(k), "packed A of {} for {m}×{k}", data.len())
            }
        }
    }
}

impl MatrixB<'_> {
    /// Panics when the data cannot hold a k × n matrix. The padding of a packed B is checked where it is read.
    pub(crate) fn check(self, k: usize, n: usize) {
        match self {
            MatrixB::Rows { data, stride } => check_strided("rows of B", data.len(), k, n, stride),
            MatrixB::Columns { data, stride } => check_strided("columns of B", data.len(), n, k, stride),
            MatrixB::Packed(data) => {
                assert!(data.len() >= k.saturating_mul(n), "packed B of {} for {k}×{n}", data.len())
            }
        }
    }
}

fn check_strided(what: &str, len: usize, count: usize, each: usize, stride: usize) {
    let needed = if count == 0 || each == 0 { 0 } else { (count - 1).saturating_mul(stride).saturating_add(each) };
    assert!(len >= needed, "{count} {what} of {each}, {stride} apart, in {len} elements");
}

/// Packs one row tile for a range of k. `isa` says which instructions to use, not which form. `target` has a group of
/// rows for each k.
pub(crate) fn pack_a_tile(
    isa: Isa,
    a: MatrixA,
    rows: Range<usize>,
    ks: Range<usize>,
    m: usize,
    k: usize,
    target: &mut [f32],
) {
    let height = rows.len();
    match a {
        MatrixA::Rows { data, stride } => {
            if !ks.is_empty() {
                transpose(isa, &data[rows.start * stride + ks.start..], stride, height, ks.len(), target, height);
            }
        }
        MatrixA::Columns { data, stride } => {
            for (target, k) in target.chunks_exact_mut(height).zip(ks) {
                target.copy_from_slice(&data[k * stride + rows.start..][..height]);
            }
        }
        MatrixA::Packed(data) => {
            debug_assert!(rows.end <= m);
            target.copy_from_slice(&data[rows.start * k..rows.end * k][ks.start * height..ks.end * height]);
        }
    }
}

/// Packs one panel of B for a range of k; columns from `columns.len()` to `width` become zeros. `isa` says which
/// instructions to use, not which form.
pub(crate) fn pack_b_panel(
    isa: Isa,
    width: usize,
    b: MatrixB,
    ks: Range<usize>,
    columns: Range<usize>,
    k: usize,
    target: &mut [f32],
) {
    let live = columns.len();
    match b {
        MatrixB::Rows { data, stride } => {
            for (target, k) in target.chunks_exact_mut(width).zip(ks) {
                let source = &data[k * stride + columns.start..][..live];
                match (source.first_chunk::<32>(), source.first_chunk::<16>()) {
                    // The lengths of whole panels are known to the compiler here, which saves a call for each row.
                    (Some(whole), _) if width == 32 => target[..32].copy_from_slice(whole),
                    (_, Some(whole)) if width == 16 => target[..16].copy_from_slice(whole),
                    _ => {
                        target[..live].copy_from_slice(source);
                        target[live..].fill(0.0);
                    }
                }
            }
        }
        MatrixB::Columns { data, stride } => {
            if ks.is_empty() || live == 0 {
                return;
            }
            if live < width {
                target.fill(0.0);
            }
            for first in (0..live).step_by(LANES) {
                let source = &data[(columns.start + first) * stride + ks.start..];
                transpose(isa, source, stride, LANES.min(live - first), ks.len(), &mut target[first..], width);
            }
        }
        MatrixB::Packed(data) => {
            let panel = &data[columns.start * k..][..width * k];
            target.copy_from_slice(&panel[ks.start * width..ks.end * width]);
        }
    }
}

/// Rows that `transpose` takes at once.
const LANES: usize = 16;

/// `target[i * target_stride + lane] = source[lane * source_stride + i]` for `lanes` ≤ 16 and i below `len`.
fn transpose(
    isa: Isa,
    source: &[f32],
    source_stride: usize,
    lanes: usize,
    len: usize,
    target: &mut [f32],
    target_stride: usize,
) {
    assert!(lanes <= LANES && lanes <= target_stride);
    if lanes == 0 || len == 0 {
        return;
    }
    assert!(source.len() >= (lanes - 1) * source_stride + len);
    assert!(target.len() >= (len - 1) * target_stride + lanes);
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni => {
            let (source, target) = (source.as_ptr(), target.as_mut_ptr());
            // SAFETY: the machine has AVX-512, as `isa` came through `Exec` or from `detect`; the bounds are asserted.
            unsafe { x86::transpose_avx512(source, source_stride, lanes, len, target, target_stride) }
        }
        _ => {
            for lane in 0..lanes {
                let source = &source[lane * source_stride..][..len];
                for (target, value) in target[lane..].iter_mut().step_by(target_stride).zip(source) {
                    *target = *value;
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// # Safety
    /// `source` covers `lanes` rows of `len`, `target` `len` rows of `lanes`, and lanes ≤ 16.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn transpose_avx512(
        source: *const f32,
        source_stride: usize,
        lanes: usize,
        len: usize,
        target: *mut f32,
        target_stride: usize,
    ) {
        let lane_mask = ((1_u32 << lanes) - 1) as __mmask16;
        for first in (0..len).step_by(16) {
            let columns = (len - first).min(16);
            let column_mask = ((1_u32 << columns) - 1) as __mmask16;
            let mut block = [_mm512_setzero_ps(); 16];
            for (lane, row) in block.iter_mut().enumerate() {
                if lane < lanes {
                    // SAFETY: lane < lanes, and the mask keeps the access below `len`.
                    *row = unsafe { _mm512_maskz_loadu_ps(column_mask, source.add(lane * source_stride + first)) };
                }
            }
            let block = transpose_block(block);
            for (column, row) in block.iter().enumerate() {
                if column < columns {
                    // SAFETY: first + column < len, and the mask keeps the access below `lanes`.
                    unsafe { _mm512_mask_storeu_ps(target.add((first + column) * target_stride), lane_mask, *row) };
                }
            }
        }
    }

    /// Element (i, j) to (j, i): pairs, then fours, then the four 128-bit quarters.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn transpose_block(rows: [__m512; 16]) -> [__m512; 16] {
        let mut pairs = rows;
        for i in 0..8 {
            pairs[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
        }
        let low = |a, b| _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
        let high = |a, b| _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
        let mut fours = pairs;
        for i in (0..16).step_by(4) {
            fours[i] = low(pairs[i], pairs[i + 2]);
            fours[i + 1] = high(pairs[i], pairs[i + 2]);
            fours[i + 2] = low(pairs[i + 1], pairs[i + 3]);
            fours[i + 3] = high(pairs[i + 1], pairs[i + 3]);
        }
        // 0x88 takes the quarters 0 and 2 of each operand, 0xdd the quarters 1 and 3.
        let mut whole = fours;
        for j in 0..4 {
            let even_low = _mm512_shuffle_f32x4::<0x88>(fours[j], fours[4 + j]);
            let even_high = _mm512_shuffle_f32x4::<0x88>(fours[8 + j], fours[12 + j]);
            let odd_low = _mm512_shuffle_f32x4::<0xdd>(fours[j], fours[4 + j]);
            let odd_high = _mm512_shuffle_f32x4::<0xdd>(fours[8 + j], fours[12 + j]);
            whole[j] = _mm512_shuffle_f32x4::<0x88>(even_low, even_high);
            whole[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd_low, odd_high);
            whole[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even_low, even_high);
            whole[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd_low, odd_high);
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposing_moves_every_element() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
            for (lanes, len, target_stride) in [(1, 1, 1), (14, 37, 14), (16, 16, 32), (13, 5, 13), (3, 64, 4)] {
                let source: Vec<f32> = (0..lanes * 70).map(|index| index as f32).collect();
                let mut target = vec![-1.0; len * target_stride];
                transpose(isa, &source, 70, lanes, len, &mut target, target_stride);
                for (index, value) in target.iter().enumerate() {
                    let (i, lane) = (index / target_stride, index % target_stride);
                    let expected = if lane < lanes { (lane * 70 + i) as f32 } else { -1.0 };
                    assert_eq!(*value, expected, "{isa:?} {lanes}x{len} at {i},{lane}");
                }
            }
        }
    }

    #[test]
    fn both_layouts_pack_to_the_same_form() {
        let (m, k, n) = (29, 19, 35);
        let a: Vec<f32> = (0..m * k).map(|index| index as f32).collect();
        let a_transposed: Vec<f32> = (0..k * m).map(|index| a[index % m * k + index / m]).collect();
        let b: Vec<f32> = (0..k * n).map(|index| index as f32).collect();
        let b_transposed: Vec<f32> = (0..n * k).map(|index| b[index % k * n + index / k]).collect();
        for isa in Isa::ALL {
            let packed = pack_a(isa, m, k, MatrixA::Rows { data: &a, stride: k });
            assert_eq!(packed, pack_a(isa, m, k, MatrixA::Columns { data: &a_transposed, stride: m }));
            assert_eq!(packed, pack_a(isa, m, k, MatrixA::Packed(&packed)));
            let packed = pack_b(isa, k, n, MatrixB::Rows { data: &b, stride: n });
            assert_eq!(packed, pack_b(isa, k, n, MatrixB::Columns { data: &b_transposed, stride: k }));
            assert_eq!(packed.len(), packed_b_len(isa, k, n));
        }
    }
}
