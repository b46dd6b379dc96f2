//! The inner loops of 8-bit matrix products: a tile of unsigned rows times signed panels, exact in i32.
//!
//! VNNI adds four products at once. AVX2 has an instruction for u8 × i8 too, but it saturates pairs of products, so
//! bytes are widened to 16 bits first.

use crate::gemm_int::{DOT, PANEL};
use crate::isa::Isa;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 6;
/// Panels of a tile: with 6 rows, 24 of 32 registers accumulate.
pub(crate) const TILE_PANELS: usize = 4;
/// Columns of a tile.
pub(crate) const TILE_COLS: usize = TILE_PANELS * PANEL;

/// The products of a tile; what lies beyond its rows and panels keeps old values.
pub(crate) type Tile = [[i32; TILE_COLS]; TILE_ROWS];

/// Multiplies the rows of `a`, `a_stride` bytes apart, with the first `panels` panels of `b`.
pub(crate) fn multiply_tile(
    isa: Isa,
    a: &[u8],
    a_stride: usize,
    b: &[u8],
    panel_bytes: usize,
    panels: usize,
    tile: &mut Tile,
) {
    if a_stride == 0 {
        *tile = [[0; TILE_COLS]; TILE_ROWS];
        return;
    }
    let rows = a.len() / a_stride;
    assert!(a_stride.is_multiple_of(DOT) && panel_bytes == a_stride * PANEL, "A and B of different depth");
    assert!((1..=TILE_ROWS).contains(&rows) && (1..=TILE_PANELS).contains(&panels), "tile of {rows}x{panels}");
    assert!(b.len() >= panels * panel_bytes, "bytes of the panels");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => x86::multiply_vnni(rows, a, a_stride, b, panel_bytes, panels, tile),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` reaches a kernel only through `Exec`, which checked that this machine has it.
        Isa::Avx2 | Isa::Avx512 => unsafe { x86::multiply_avx2(a, a_stride, b, panel_bytes, panels, tile) },
        _ => multiply_portable(a, a_stride, b, panel_bytes, panels, tile),
    }
}

fn multiply_portable(a: &[u8], a_stride: usize, b: &[u8], panel_bytes: usize, panels: usize, tile: &mut Tile) {
    for (row, values) in a.chunks_exact(a_stride).zip(tile.iter_mut()) {
        for (panel, values) in b.chunks_exact(panel_bytes).zip(values.as_chunks_mut::<PANEL>().0).take(panels) {
            let mut sums = [0_i32; PANEL];
            for (a, b) in row.as_chunks::<DOT>().0.iter().zip(panel.as_chunks::<{ PANEL * DOT }>().0) {
                for (sum, b) in sums.iter_mut().zip(b.as_chunks::<DOT>().0) {
                    let product = |step: usize| i32::from(a[step]) * i32::from(b[step] as i8);
                    *sum = sum.wrapping_add(product(0) + product(1) + product(2) + product(3));
                }
            }
            *values = sums;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{DOT, PANEL, TILE_PANELS, TILE_ROWS, Tile};

    /// Calls the loop for this number of rows and panels. `multiply_tile` has checked the sizes.
    pub(super) fn multiply_vnni(
        rows: usize,
        a: &[u8],
        a_stride: usize,
        b: &[u8],
        panel_bytes: usize,
        panels: usize,
        tile: &mut Tile,
    ) {
        macro_rules! call {
            ($($rows:literal)*) => {
                match (rows, panels) {
                    $(
                        // SAFETY: the machine has VNNI, as `Exec` checked; `rows` and `panels` are the real ones.
                        ($rows, 1) => unsafe { vnni::<$rows, 1>(a, a_stride, b, panel_bytes, tile) },
                        // SAFETY: as above.
                        ($rows, 2) => unsafe { vnni::<$rows, 2>(a, a_stride, b, panel_bytes, tile) },
                        // SAFETY: as above.
                        ($rows, 3) => unsafe { vnni::<$rows, 3>(a, a_stride, b, panel_bytes, tile) },
                        // SAFETY: as above.
                        ($rows, 4) => unsafe { vnni::<$rows, 4>(a, a_stride, b, panel_bytes, tile) },
                    )*
                    _ => unreachable!("multiply_tile checked the tile"),
                }
            };
        }
        const { assert!(TILE_ROWS == 6 && TILE_PANELS == 4, "every tile has a case") };
        call!(1 2 3 4 5 6)
    }

    /// # Safety
    /// The machine has AVX-512 VNNI; `a` has `ROWS` rows and `b` at least `PANELS` panels of that depth.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn vnni<const ROWS: usize, const PANELS: usize>(
        a: &[u8],
        a_stride: usize,
        b: &[u8],
        panel_bytes: usize,
        tile: &mut Tile,
    ) {
        let mut sums = [[_mm512_setzero_si512(); PANELS]; ROWS];
        for group in 0..a_stride / DOT {
            let mut columns = [_mm512_setzero_si512(); PANELS];
            for (panel, columns) in columns.iter_mut().enumerate() {
                let offset = panel * panel_bytes + group * PANEL * DOT;
                // SAFETY: 64 bytes of panel `panel`, which has `a_stride / DOT` such groups.
                *columns = unsafe { _mm512_loadu_si512(b.as_ptr().add(offset).cast()) };
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: four bytes of row `row`, which has `a_stride`.
                let dot = unsafe { a.as_ptr().add(row * a_stride + group * DOT).cast::<i32>().read_unaligned() };
                let dot = _mm512_set1_epi32(dot);
                for (sum, columns) in sums.iter_mut().zip(&columns) {
                    *sum = _mm512_dpbusd_epi32(*sum, dot, *columns);
                }
            }
        }
        for (sums, values) in sums.iter().zip(tile.iter_mut()) {
            for (panel, sum) in sums.iter().enumerate() {
                let values = &mut values[panel * PANEL..][..PANEL];
                // SAFETY: 16 values of 4 bytes.
                unsafe { _mm512_storeu_si512(values.as_mut_ptr().cast(), *sum) };
            }
        }
    }

    /// # Safety
    /// The machine has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn multiply_avx2(
        a: &[u8],
        a_stride: usize,
        b: &[u8],
        panel_bytes: usize,
        panels: usize,
        tile: &mut Tile,
    ) {
        for (rows, values) in a.chunks(2 * a_stride).zip(tile.as_chunks_mut::<2>().0) {
            let (first, second) = values.split_at_mut(1);
            for panel in 0..panels {
                let b = &b[panel * panel_bytes..][..panel_bytes];
                let first = &mut first[0][panel * PANEL..][..PANEL];
                let second = &mut second[0][panel * PANEL..][..PANEL];
                match rows.split_at_checked(a_stride) {
                    Some((low, high)) if !high.is_empty() => avx2([low, high], b, [first, second]),
                    _ => avx2([rows], b, [first]),
                }
            }
        }
    }

    /// Some rows times one panel.
    #[target_feature(enable = "avx2")]
    fn avx2<const ROWS: usize>(a: [&[u8]; ROWS], b: &[u8], values: [&mut [i32]; ROWS]) {
        /// Vectors of 16-bit values that the bytes of one group of a panel fill.
        const QUARTERS: usize = 4;
        // Two sums a column: of the first and of the last two products of each dot.
        let mut sums = [[_mm256_setzero_si256(); QUARTERS]; ROWS];
        let groups = a.map(|row| row.as_chunks::<DOT>().0);
        for (group, dots) in b.as_chunks::<{ PANEL * DOT }>().0.iter().enumerate() {
            let columns: [__m256i; QUARTERS] = std::array::from_fn(|quarter| {
                // SAFETY: 16 of the 64 bytes of the group.
                let bytes = unsafe { _mm_loadu_si128(dots.as_ptr().add(quarter * 16).cast()) };
                _mm256_cvtepi8_epi16(bytes)
            });
            for (row, sums) in groups.iter().zip(&mut sums) {
                let dot = _mm_cvtsi32_si128(i32::from_ne_bytes(row[group]));
                let dot = _mm256_broadcastq_epi64(_mm_cvtepu8_epi16(dot));
                for (sum, columns) in sums.iter_mut().zip(&columns) {
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(dot, *columns));
                }
            }
        }
        for (sums, values) in sums.iter().zip(values) {
            for (quarter, &sum) in sums.iter().enumerate() {
                let mut pairs = [0_i32; 8];
                // SAFETY: 8 values of 4 bytes.
                unsafe { _mm256_storeu_si256(pairs.as_mut_ptr().cast(), sum) };
                for (value, pair) in values[quarter * 4..][..4].iter_mut().zip(pairs.as_chunks::<2>().0) {
                    *value = pair[0].wrapping_add(pair[1]);
                }
            }
        }
    }
}
