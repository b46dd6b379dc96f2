//! Register tiles of bf16 products with f32 sums: as `gemm_tile.rs`, with two values of k in every step.
//!
//! Machines without the instruction widen both values in registers; sums are then rounded after each product instead of
//! each pair.

use crate::arithmetic::values;
use crate::gemm_tile::{TileCall, TileKernel, by_rows, store_each};
use crate::isa::Isa;
use crate::simd::Plain;

/// The kernel for tiles of this many rows, at least one and at most `rows_max`.
pub(crate) fn tile_kernel_words(isa: Isa, rows: usize) -> TileKernel {
    match isa {
        Isa::Portable => by_rows!(rows, tile_plain_8, [1, 2, 3, 4]),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => by_rows!(rows, tile_plain_16, [1, 2, 3, 4, 5, 6]),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni if has_bf16() => {
            use x86::tile_bf16;
            by_rows!(rows, tile_bf16, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14])
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni => {
            use x86::tile_widened;
            by_rows!(rows, tile_widened, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14])
        }
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 | Isa::Avx512Vnni => unreachable!("Exec refuses what the machine lacks"),
    }
}

/// Whether this machine multiplies bf16 values itself.
fn has_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

unsafe fn tile_plain_8<const ROWS: usize>(call: &TileCall) {
    // SAFETY: passed on from the caller.
    unsafe { tile_plain::<ROWS, 8>(call) }
}

#[cfg(target_arch = "x86_64")]
unsafe fn tile_plain_16<const ROWS: usize>(call: &TileCall) {
    // SAFETY: passed on from the caller.
    unsafe { tile_plain::<ROWS, 16>(call) }
}

#[inline(always)]
unsafe fn tile_plain<const ROWS: usize, const COLS: usize>(call: &TileCall) {
    let mut sums = [[0.0_f32; COLS]; ROWS];
    for step in 0..call.k {
        // SAFETY: B has a row of COLS words for each step.
        let b = unsafe { call.b.add(step * call.b_stride).cast::<[f32; COLS]>().read_unaligned() };
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: A has a group of ROWS words for each step.
            let [a_low, a_high] = values(unsafe { *call.a.add(step * ROWS + row) });
            for (sum, b) in sums.iter_mut().zip(b) {
                let [b_low, b_high] = values(b);
                *sum += a_high * b_high;
                *sum += a_low * b_low;
            }
        }
    }
    // SAFETY: passed on from the caller.
    unsafe { store_each::<Plain, COLS>(call, &sums) };
}

#[cfg(target_arch = "x86_64")]
#[allow(clippy::needless_range_loop, reason = "loops over plain indices are unrolled, which keeps sums in registers")]
mod x86 {
    use super::TileCall;
    use crate::gemm_tile::x86::finish_avx512;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    pub(super) unsafe fn tile_bf16<const ROWS: usize>(call: &TileCall) {
        // SAFETY: passed on from the caller.
        unsafe {
            match call.cols {
                ..=16 => tile_bf16_of::<ROWS, 1>(call),
                _ => tile_bf16_of::<ROWS, 2>(call),
            }
        }
    }

    /// The same bits as pairs of bf16.
    #[inline(always)]
    fn pairs(words: __m512i) -> __m512bh {
        // SAFETY: both are 512 bits of which every pattern is valid.
        unsafe { std::mem::transmute::<__m512i, __m512bh>(words) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn tile_bf16_of<const ROWS: usize, const VECTORS: usize>(call: &TileCall) {
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        let (mut a, mut b) = (call.a.cast::<i32>(), call.b.cast::<i32>());
        for _ in 0..call.k {
            // SAFETY: B has a row of the tile's full width for each step, A a group of ROWS.
            unsafe {
                let mut words = [_mm512_setzero_si512(); VECTORS];
                for vector in 0..VECTORS {
                    words[vector] = _mm512_loadu_si512(b.add(16 * vector).cast());
                }
                for row in 0..ROWS {
                    let a = _mm512_set1_epi32(*a.add(row));
                    for vector in 0..VECTORS {
                        sums[row][vector] = _mm512_dpbf16_ps(sums[row][vector], pairs(a), pairs(words[vector]));
                    }
                }
                a = a.add(ROWS);
                b = b.wrapping_add(call.b_stride);
            }
        }
        // SAFETY: passed on from the caller.
        unsafe { finish_avx512::<ROWS, VECTORS, 0>(call, &sums, &[]) };
    }

    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn tile_widened<const ROWS: usize>(call: &TileCall) {
        // SAFETY: passed on from the caller.
        unsafe {
            match call.cols {
                ..=16 => tile_widened_of::<ROWS, 1>(call),
                _ => tile_widened_of::<ROWS, 2>(call),
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn tile_widened_of<const ROWS: usize, const VECTORS: usize>(call: &TileCall) {
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        let (mut a, mut b) = (call.a.cast::<i32>(), call.b.cast::<i32>());
        let high_half = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        for _ in 0..call.k {
            // The second value of each word, then the first, as the instruction adds them.
            for is_first in [false, true] {
                let half = |word: __m512i| {
                    let bits = if is_first { _mm512_slli_epi32::<16>(word) } else { _mm512_and_si512(word, high_half) };
                    _mm512_castsi512_ps(bits)
                };
                // SAFETY: B has a row of the tile's full width for each step, A a group of ROWS.
                unsafe {
                    let mut words = [_mm512_setzero_ps(); VECTORS];
                    for vector in 0..VECTORS {
                        words[vector] = half(_mm512_loadu_si512(b.add(16 * vector).cast()));
                    }
                    for row in 0..ROWS {
                        let a = half(_mm512_set1_epi32(*a.add(row)));
                        for vector in 0..VECTORS {
                            sums[row][vector] = _mm512_fmadd_ps(a, words[vector], sums[row][vector]);
                        }
                    }
                }
            }
            // SAFETY: one step further, as above.
            a = unsafe { a.add(ROWS) };
            b = b.wrapping_add(call.b_stride);
        }
        // SAFETY: passed on from the caller.
        unsafe { finish_avx512::<ROWS, VECTORS, 0>(call, &sums, &[]) };
    }
}
