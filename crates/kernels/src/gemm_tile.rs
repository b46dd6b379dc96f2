//! Register tiles of f32 GEMM: one call multiplies `rows` × k packed values of A with k × `cols` of B.
//!
//! Each element is one chain of additions over k in every tile of an instruction set, whatever the tile's size and
//! position, so results do not depend on how a matrix is cut. A call takes at most `K_BLOCK` values of k; its sum is
//! then folded into C (specs/compiler.md §10). Whole tiles of AVX-512 take any number and fold every `K_BLOCK` themselves, which
//! saves the way to C and back: the same bits.

use crate::epilogue::Light;
use crate::isa::Isa;
use crate::simd::{MulAdd, Plain};
use std::ptr::null;

/// The most successive additions of one accumulator.
pub(crate) const K_BLOCK: usize = 256;

/// The largest tile of an instruction set.
#[derive(Clone, Copy)]
pub(crate) struct TileShape {
    pub rows_max: usize,
    /// Also the width of the packed panels of B.
    pub cols: usize,
}

/// The register tile used for an instruction set.
pub(crate) fn tile_shape(isa: Isa) -> TileShape {
    match isa {
        Isa::Portable => TileShape { rows_max: 4, cols: 8 },
        Isa::Avx2 => TileShape { rows_max: 6, cols: 16 },
        Isa::Avx512 | Isa::Avx512Vnni => TileShape { rows_max: 14, cols: 32 },
    }
}

/// What a tile does with its sum once all of k has been added. Null pointers stand for absent parts.
#[derive(Clone, Copy)]
pub(crate) struct Finish {
    pub scale: f32,
    /// One value for each row of the tile.
    pub bias_rows: *const f32,
    /// One value for each column of the tile.
    pub bias_columns: *const f32,
    /// Laid out like C.
    pub first_residual: *const f32,
    pub light: Light,
    /// Laid out like C.
    pub last_residual: *const f32,
}

impl Finish {
    /// Leaves every value as it is.
    const NOTHING: Finish = Finish {
        scale: 1.0,
        bias_rows: null(),
        bias_columns: null(),
        first_residual: null(),
        light: Light::NOTHING,
        last_residual: null(),
    };

    /// Whether it is biases and limits, with or without a residual, or biases and HardSwish.
    fn is_simple(&self) -> bool {
        let is_known = self.light.is_clamp() || (self.light.is_swish() && self.first_residual.is_null());
        is_known && self.scale == 1.0 && self.last_residual.is_null()
    }
}

/// The arguments of one tile.
#[derive(Clone, Copy)]
pub(crate) struct TileCall {
    /// At most `K_BLOCK`, unless the tile folds.
    pub k: usize,
    /// k groups of `rows` values.
    pub a: *const f32,
    /// k rows of at least the tile's full width, `b_stride` apart; columns from `cols` on are read and ignored.
    pub b: *const f32,
    pub b_stride: usize,
    pub c: *mut f32,
    pub c_stride: usize,
    /// Columns of C to write.
    pub cols: usize,
    /// Whether C is written; otherwise it is added to.
    pub is_first: bool,
    /// Given with the last block of k.
    pub finish: Option<Finish>,
}

/// A tile of a fixed number of rows. Safe to call when the pointers of the call cover what its fields say and the
/// machine has the instruction set it was chosen for.
pub(crate) type TileKernel = unsafe fn(&TileCall);

/// Whether the tiles of an instruction set take more than `K_BLOCK` values of k where they are whole.
pub(crate) fn folds_whole_tiles(isa: Isa) -> bool {
    isa >= Isa::Avx512
}

/// The instance of a kernel for a number of rows.
macro_rules! by_rows {
    ($rows:expr, $kernel:ident, [$($row:literal),*]) => {
        match $rows {
            $($row => $kernel::<$row>,)*
            rows => unreachable!("a tile of {rows} rows"),
        }
    };
}

pub(crate) use by_rows;

/// The kernel for tiles of this many rows, at least one and at most `rows_max`.
pub(crate) fn tile_kernel(isa: Isa, rows: usize) -> TileKernel {
    match isa {
        Isa::Portable => by_rows!(rows, tile_portable, [1, 2, 3, 4]),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => by_rows!(rows, tile_avx2, [1, 2, 3, 4, 5, 6]),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni => {
            by_rows!(rows, tile_avx512, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14])
        }
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 | Isa::Avx512Vnni => unreachable!("Exec refuses what the machine lacks"),
    }
}

/// Folds the sums of a tile into C one by one; the same additions in the same order as the vector forms.
///
/// # Safety
/// The pointers of `call` must cover `sums.len()` rows.
#[inline(always)]
pub(crate) unsafe fn store_each<F: MulAdd, const COLS: usize>(call: &TileCall, sums: &[[f32; COLS]]) {
    for (row, sums) in sums.iter().enumerate() {
        for (column, sum) in sums.iter().enumerate().take(call.cols) {
            let at = row * call.c_stride + column;
            // SAFETY: row and column are inside the tile, which the pointers cover.
            unsafe {
                let mut value = *sum;
                if !call.is_first {
                    value += *call.c.add(at);
                }
                if let Some(finish) = &call.finish {
                    value *= finish.scale;
                    if !finish.bias_rows.is_null() {
                        value += *finish.bias_rows.add(row);
                    }
                    if !finish.bias_columns.is_null() {
                        value += *finish.bias_columns.add(column);
                    }
                    if !finish.first_residual.is_null() {
                        value += *finish.first_residual.add(at);
                    }
                    value = finish.light.apply::<F>(value);
                    if !finish.last_residual.is_null() {
                        value += *finish.last_residual.add(at);
                    }
                }
                *call.c.add(at) = value;
            }
        }
    }
}

unsafe fn tile_portable<const ROWS: usize>(call: &TileCall) {
    const COLS: usize = 8;
    let mut sums = [[0.0_f32; COLS]; ROWS];
    for step in 0..call.k {
        // SAFETY: B has k rows of COLS values.
        let b = unsafe { call.b.add(step * call.b_stride).cast::<[f32; COLS]>().read() };
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: A has k groups of ROWS values.
            let a = unsafe { *call.a.add(step * ROWS + row) };
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
    // SAFETY: passed on from the caller.
    unsafe { store_each::<Plain, COLS>(call, &sums) };
}

#[cfg(target_arch = "x86_64")]
use x86::{tile_avx2, tile_avx512};

#[cfg(target_arch = "x86_64")]
#[allow(clippy::needless_range_loop, reason = "loops over plain indices are unrolled, which keeps sums in registers")]
pub(crate) mod x86 {
    use super::{Finish, K_BLOCK, TileCall, store_each};
    use crate::simd::Fused;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn tile_avx2<const ROWS: usize>(call: &TileCall) {
        const COLS: usize = 16;
        let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
        let (mut a, mut b) = (call.a, call.b);
        for _ in 0..call.k {
            // SAFETY: B has k rows of COLS values, A k groups of ROWS; the pointers move one step each.
            unsafe {
                let (b0, b1) = (_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8)));
                for row in 0..ROWS {
                    let a = _mm256_broadcast_ss(&*a.add(row));
                    sums[row][0] = _mm256_fmadd_ps(a, b0, sums[row][0]);
                    sums[row][1] = _mm256_fmadd_ps(a, b1, sums[row][1]);
                }
                a = a.add(ROWS);
                b = b.wrapping_add(call.b_stride);
            }
        }
        if call.cols < COLS {
            let mut each = [[0.0_f32; COLS]; ROWS];
            for row in 0..ROWS {
                // SAFETY: a row of `each` has room for two vectors of 8.
                unsafe {
                    _mm256_storeu_ps(each[row].as_mut_ptr(), sums[row][0]);
                    _mm256_storeu_ps(each[row].as_mut_ptr().add(8), sums[row][1]);
                }
            }
            // SAFETY: passed on from the caller.
            return unsafe { store_each::<Fused, COLS>(call, &each) };
        }
        for (row, sums) in sums.iter().enumerate() {
            for (half, sum) in sums.iter().enumerate() {
                // SAFETY: all COLS columns of the row are inside the tile, which the pointers cover.
                unsafe { store_avx2(call, row, 8 * half, *sum) };
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn store_avx2(call: &TileCall, row: usize, column: usize, sum: __m256) {
        let at = row * call.c_stride + column;
        let mut value = sum;
        // SAFETY: the caller keeps row and column inside the tile.
        unsafe {
            if !call.is_first {
                value = _mm256_add_ps(value, _mm256_loadu_ps(call.c.add(at)));
            }
            if let Some(finish) = &call.finish {
                value = _mm256_mul_ps(value, _mm256_set1_ps(finish.scale));
                if !finish.bias_rows.is_null() {
                    value = _mm256_add_ps(value, _mm256_broadcast_ss(&*finish.bias_rows.add(row)));
                }
                if !finish.bias_columns.is_null() {
                    value = _mm256_add_ps(value, _mm256_loadu_ps(finish.bias_columns.add(column)));
                }
                if !finish.first_residual.is_null() {
                    value = _mm256_add_ps(value, _mm256_loadu_ps(finish.first_residual.add(at)));
                }
                value = finish.light.apply_avx2(value);
                if !finish.last_residual.is_null() {
                    value = _mm256_add_ps(value, _mm256_loadu_ps(finish.last_residual.add(at)));
                }
            }
            _mm256_storeu_ps(call.c.add(at), value);
        }
    }

    /// Tiles of no more rows than this wait for memory more than for arithmetic, so they ask for B ahead of its use.
    const ROWS_THAT_WAIT: usize = 2;
    /// Steps of k that they ask ahead: the next panel follows where one ends.
    const STEPS_AHEAD: usize = 24;

    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn tile_avx512<const ROWS: usize>(call: &TileCall) {
        // SAFETY: passed on from the caller.
        unsafe {
            match call.cols {
                _ if call.k > K_BLOCK => fold_avx512::<ROWS>(call),
                1 => tile_avx512_of::<ROWS, 0, 1>(call),
                2..=4 => tile_avx512_of::<ROWS, 0, 4>(call),
                5..=16 => tile_avx512_of::<ROWS, 1, 0>(call),
                17 => tile_avx512_of::<ROWS, 1, 1>(call),
                18..=20 => tile_avx512_of::<ROWS, 1, 4>(call),
                _ => tile_avx512_of::<ROWS, 2, 0>(call),
            }
        }
    }

    /// `VECTORS` times 16 columns, and `SINGLES` more. A vector of a single column has the rows as its lanes: one
    /// multiplication for up to 16 rows, where a vector of mostly unused columns takes one a row.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn tile_avx512_of<const ROWS: usize, const VECTORS: usize, const SINGLES: usize>(call: &TileCall) {
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        let mut singles = [_mm512_setzero_ps(); SINGLES];
        let rows = ((1_u32 << ROWS) - 1) as __mmask16;
        if !call.is_first {
            for row in 0..ROWS {
                for vector in 0..VECTORS {
                    let at = call.c.wrapping_add(row * call.c_stride + 16 * vector);
                    _mm_prefetch::<_MM_HINT_T0>(at.cast());
                }
            }
        }
        let (mut a, mut b) = (call.a, call.b);
        for _ in 0..call.k {
            if ROWS <= ROWS_THAT_WAIT && VECTORS == 2 {
                let ahead = b.wrapping_add(STEPS_AHEAD * call.b_stride);
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(16).cast());
            }
            // SAFETY: B has k rows of the tile's full width, A k groups of ROWS; the pointers move one step each.
            unsafe {
                if VECTORS > 0 {
                    let low = _mm512_loadu_ps(b);
                    let high = if VECTORS == 2 { _mm512_loadu_ps(b.add(16)) } else { low };
                    for row in 0..ROWS {
                        let a = _mm512_set1_ps(*a.add(row));
                        sums[row][0] = _mm512_fmadd_ps(a, low, sums[row][0]);
                        if VECTORS == 2 {
                            sums[row][1] = _mm512_fmadd_ps(a, high, sums[row][1]);
                        }
                    }
                }
                if SINGLES > 0 {
                    let a = _mm512_maskz_loadu_ps(rows, a);
                    for single in 0..SINGLES {
                        let b = _mm512_set1_ps(*b.add(16 * VECTORS + single));
                        singles[single] = _mm512_fmadd_ps(a, b, singles[single]);
                    }
                }
                a = a.add(ROWS);
                b = b.wrapping_add(call.b_stride);
            }
        }
        // SAFETY: passed on from the caller.
        unsafe { finish_avx512(call, &sums, &singles) };
    }

    /// A whole tile of more than `K_BLOCK` values of k.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn fold_avx512<const ROWS: usize>(call: &TileCall) {
        debug_assert_eq!(call.cols, 32);
        let mut folded = [[_mm512_setzero_ps(); 2]; ROWS];
        if !call.is_first {
            for row in 0..ROWS {
                for vector in 0..2 {
                    // SAFETY: all columns of the row are inside the tile, which the pointers cover.
                    folded[row][vector] = unsafe { _mm512_loadu_ps(call.c.add(row * call.c_stride + 16 * vector)) };
                }
            }
        }
        let (mut a, mut b, mut left) = (call.a, call.b, call.k);
        loop {
            let steps = left.min(K_BLOCK);
            let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
            for _ in 0..steps {
                // SAFETY: B has k rows of the tile's full width, A k groups of ROWS; the pointers move one step each.
                unsafe {
                    let (low, high) = (_mm512_loadu_ps(b), _mm512_loadu_ps(b.add(16)));
                    for row in 0..ROWS {
                        let a = _mm512_set1_ps(*a.add(row));
                        sums[row][0] = _mm512_fmadd_ps(a, low, sums[row][0]);
                        sums[row][1] = _mm512_fmadd_ps(a, high, sums[row][1]);
                    }
                    a = a.add(ROWS);
                    b = b.wrapping_add(call.b_stride);
                }
            }
            // The first sums of a first call are folded into nothing, not into zeros: those lose the sign of zero.
            if !call.is_first || left < call.k {
                for row in 0..ROWS {
                    for vector in 0..2 {
                        sums[row][vector] = _mm512_add_ps(sums[row][vector], folded[row][vector]);
                    }
                }
            }
            left -= steps;
            if left == 0 {
                // SAFETY: passed on from the caller.
                return unsafe { finish_avx512(&TileCall { is_first: true, ..*call }, &sums, &[]) };
            }
            folded = sums;
        }
    }

    /// Stores the sums of a tile of `VECTORS` times 16 columns and `SINGLES` more.
    ///
    /// # Safety
    /// The pointers of `call` must cover the tile, and the caller must enable AVX-512.
    #[inline(always)]
    pub(crate) unsafe fn finish_avx512<const ROWS: usize, const VECTORS: usize, const SINGLES: usize>(
        call: &TileCall,
        sums: &[[__m512; VECTORS]; ROWS],
        singles: &[__m512; SINGLES],
    ) {
        if SINGLES == 0 && call.finish.is_none() && call.is_first && call.cols == 16 * VECTORS {
            for row in 0..ROWS {
                for vector in 0..VECTORS {
                    // SAFETY: all columns of the row are inside the tile, which the pointers cover.
                    unsafe { _mm512_storeu_ps(call.c.add(row * call.c_stride + 16 * vector), sums[row][vector]) };
                }
            }
            return;
        }
        let finish = call.finish.as_ref().unwrap_or(&Finish::NOTHING);
        if SINGLES == 0 && call.cols == 16 * VECTORS && finish.is_simple() {
            let has_residual = !finish.first_residual.is_null();
            // SAFETY: all columns of every row are inside the tile, which the pointers cover.
            return unsafe {
                match (call.is_first, has_residual, finish.light.is_swish()) {
                    (true, false, false) => store_rows::<ROWS, VECTORS, true, false, false>(call, finish, sums),
                    (true, false, true) => store_rows::<ROWS, VECTORS, true, false, true>(call, finish, sums),
                    (true, true, _) => store_rows::<ROWS, VECTORS, true, true, false>(call, finish, sums),
                    (false, false, false) => store_rows::<ROWS, VECTORS, false, false, false>(call, finish, sums),
                    (false, false, true) => store_rows::<ROWS, VECTORS, false, false, true>(call, finish, sums),
                    (false, true, _) => store_rows::<ROWS, VECTORS, false, true, false>(call, finish, sums),
                }
            };
        }
        // The loop below is too long to be unrolled and would force the sums into memory from the start; this copy
        // is short, so they stay in registers until here.
        let mut stored = [[[0.0_f32; 16]; 2]; ROWS];
        for row in 0..ROWS {
            for vector in 0..VECTORS {
                // SAFETY: 16 floats hold one vector.
                unsafe { _mm512_storeu_ps(stored[row][vector].as_mut_ptr(), sums[row][vector]) };
            }
        }
        for single in 0..SINGLES {
            let mut column = [0.0_f32; 16];
            // SAFETY: 16 floats hold one vector.
            unsafe { _mm512_storeu_ps(column.as_mut_ptr(), singles[single]) };
            for row in 0..ROWS {
                stored[row][VECTORS][single] = column[row];
            }
        }
        for (row, stored) in stored.iter().enumerate() {
            for (vector, stored) in stored.iter().enumerate().take(VECTORS + usize::from(SINGLES > 0)) {
                let live = call.cols.saturating_sub(16 * vector).min(16);
                let mask = ((1_u32 << live) - 1) as __mmask16;
                // SAFETY: 16 floats hold one vector; the mask keeps the store to the columns of the tile, which the
                // pointers cover.
                unsafe { store_avx512(call, row, 16 * vector, mask, _mm512_loadu_ps(stored.as_ptr())) };
            }
        }
    }

    /// The body once for each row, written out: a loop of this length is not unrolled, and then its indices are not
    /// constants and force the sums into memory from the start.
    macro_rules! each_row {
        ($row:ident of $rows:ident $body:block) => {
            each_row!($row of $rows $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13)
        };
        ($row:ident of $rows:ident $body:block, $($index:literal)*) => {$(
            if $index < $rows {
                const $row: usize = $index;
                $body
            }
        )*};
    }

    /// Stores whole rows: adds C unless `IS_FIRST`, both biases, the first residual if `HAS_RESIDUAL`, and applies HardSwish
    /// with what follows it if `IS_SWISH`, else limits.
    #[inline(always)]
    unsafe fn store_rows<
        const ROWS: usize,
        const VECTORS: usize,
        const IS_FIRST: bool,
        const HAS_RESIDUAL: bool,
        const IS_SWISH: bool,
    >(
        call: &TileCall,
        finish: &Finish,
        sums: &[[__m512; VECTORS]; ROWS],
    ) {
        // Adding -0 changes nothing.
        static NO_BIAS: [f32; 32] = [-0.0; 32];
        let present = |bias: *const f32| if bias.is_null() { NO_BIAS.as_ptr() } else { bias };
        let (bias_rows, bias_columns) = (present(finish.bias_rows), present(finish.bias_columns));
        // SAFETY: the callers enable AVX-512 and give pointers that cover the tile, all columns of which are stored.
        unsafe {
            let light = finish.light.spread_avx512();
            let mut columns = [_mm512_setzero_ps(); VECTORS];
            for vector in 0..VECTORS {
                columns[vector] = _mm512_loadu_ps(bias_columns.add(16 * vector));
            }
            each_row!(ROW of ROWS {
                let bias = _mm512_set1_ps(*bias_rows.add(ROW));
                for vector in 0..VECTORS {
                    let at = ROW * call.c_stride + 16 * vector;
                    let mut value = sums[ROW][vector];
                    if !IS_FIRST {
                        value = _mm512_add_ps(value, _mm512_loadu_ps(call.c.add(at)));
                    }
                    value = _mm512_add_ps(_mm512_add_ps(value, bias), columns[vector]);
                    if HAS_RESIDUAL {
                        value = _mm512_add_ps(value, _mm512_loadu_ps(finish.first_residual.add(at)));
                    }
                    value = if IS_SWISH { light.swish(value) } else { light.clamp(value) };
                    _mm512_storeu_ps(call.c.add(at), value);
                }
            });
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store_avx512(call: &TileCall, row: usize, column: usize, mask: __mmask16, sum: __m512) {
        let at = row * call.c_stride + column;
        let mut value = sum;
        // SAFETY: the caller keeps the row and the columns of the mask inside the tile.
        unsafe {
            if !call.is_first {
                value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, call.c.add(at)));
            }
            if let Some(finish) = &call.finish {
                value = _mm512_mul_ps(value, _mm512_set1_ps(finish.scale));
                if !finish.bias_rows.is_null() {
                    value = _mm512_add_ps(value, _mm512_set1_ps(*finish.bias_rows.add(row)));
                }
                if !finish.bias_columns.is_null() {
                    value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, finish.bias_columns.add(column)));
                }
                if !finish.first_residual.is_null() {
                    value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, finish.first_residual.add(at)));
                }
                value = finish.light.apply_avx512(value);
                if !finish.last_residual.is_null() {
                    value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, finish.last_residual.add(at)));
                }
            }
            _mm512_mask_storeu_ps(call.c.add(at), mask, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::{Lcg, for_each_exec};

    #[test]
    fn a_tile_that_folds_has_the_bits_of_its_blocks() {
        const COLS: usize = 32;
        let k = 2 * K_BLOCK + 40;
        let mut random = Lcg::new(3);
        for (rows, is_first) in [(14, true), (14, false), (5, false), (1, true)] {
            let (a, b, before) = (random.floats(k * rows), random.floats(k * COLS), random.floats(rows * COLS));
            for_each_exec(|exec| {
                if !folds_whole_tiles(exec.isa()) {
                    return;
                }
                let run = |first: usize, steps: usize, c: &mut [f32]| {
                    let call = TileCall {
                        k: steps,
                        a: a[first * rows..].as_ptr(),
                        b: b[first * COLS..].as_ptr(),
                        b_stride: COLS,
                        c: c.as_mut_ptr(),
                        c_stride: COLS,
                        cols: COLS,
                        is_first: is_first && first == 0,
                        finish: (first + steps == k).then_some(Finish { scale: 0.5, ..Finish::NOTHING }),
                    };
                    // SAFETY: the operands have as many steps from `first` on, and C has all rows and columns.
                    unsafe { tile_kernel(exec.isa(), rows)(&call) };
                };
                let (mut folded, mut blocks) = (before.clone(), before.clone());
                run(0, k, &mut folded);
                for first in (0..k).step_by(K_BLOCK) {
                    run(first, K_BLOCK.min(k - first), &mut blocks);
                }
                assert_eq!(folded, blocks, "{rows} rows on {:?}", exec.isa());
            });
        }
    }
}
