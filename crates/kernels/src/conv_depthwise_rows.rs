//! Depthwise convolution with 3×3 and 5×5 filters straight from the image, with AVX-512: masks take the place of padding.
//!
//! Seven output rows are computed together, 16 columns at a time (8 in narrow images): for each column of the filter the
//! input rows are read once, and serve all output rows in whose windows they lie.

use crate::conv::ConvShape;
use crate::epilogue::Light;
use crate::isa::Isa;

/// Whether `run_channel` covers a depthwise convolution.
pub(crate) fn covers(isa: Isa, shape: &ConvShape) -> bool {
    let is_square = shape.filter_height == shape.filter_width && matches!(shape.filter_height, 3 | 5);
    let is_step = matches!(shape.stride, [1, 1] | [2, 2]) && shape.dilation == [1, 1];
    let fits = [shape.in_height, shape.in_width, shape.out_height, shape.out_width].iter().all(|&size| size < 1 << 28);
    isa >= Isa::Avx512 && cfg!(target_arch = "x86_64") && is_square && is_step && fits
}

/// One output channel of one image.
pub(crate) struct ChannelRows<'a> {
    pub shape: &'a ConvShape,
    pub image: &'a [f32],
    pub weights: &'a [f32],
    pub bias: f32,
    pub first_residual: Option<&'a [f32]>,
    pub light: Light,
    pub last_residual: Option<&'a [f32]>,
}

impl ChannelRows<'_> {
    /// Computes the channel. Panics when a slice is too short or `covers` is false.
    pub(crate) fn run(&self, isa: Isa, target: &mut [f32]) {
        let shape = self.shape;
        assert!(covers(isa, shape), "{shape:?}");
        assert!(self.image.len() >= shape.in_area() && target.len() >= shape.out_area());
        assert!(self.weights.len() >= shape.taps());
        for residual in [self.first_residual, self.last_residual].into_iter().flatten() {
            assert!(residual.len() >= shape.out_area());
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has AVX-512, since `isa` came through an `Exec`; the slices cover the shape.
        unsafe {
            // Machines add and multiply two vectors of 8 in the time of one of 16, or nearly so.
            match (shape.filter_width, shape.stride[0], shape.out_width <= 8) {
                (3, 1, false) => wide::run::<3, 1>(self, target.as_mut_ptr()),
                (3, _, false) => wide::run::<3, 2>(self, target.as_mut_ptr()),
                (_, 1, false) => wide::run::<5, 1>(self, target.as_mut_ptr()),
                (_, _, false) => wide::run::<5, 2>(self, target.as_mut_ptr()),
                (3, 1, true) => narrow::run::<3, 1>(self, target.as_mut_ptr()),
                (3, _, true) => narrow::run::<3, 2>(self, target.as_mut_ptr()),
                (_, 1, true) => narrow::run::<5, 1>(self, target.as_mut_ptr()),
                (_, _, true) => narrow::run::<5, 2>(self, target.as_mut_ptr()),
            }
        }
    }
}

/// The kernels for vectors of one width; the bodies differ in the names of instructions alone.
#[cfg(target_arch = "x86_64")]
macro_rules! kernels {
    (
        $name:ident, $lanes:literal, $vector:ty, $mask:ty, even: $even:expr,
        $set1:ident, $fmadd:ident, $add:ident, $load:ident, $store:ident, $permute:ident, $light:ident
    ) => {
        #[allow(
            clippy::needless_range_loop,
            reason = "loops over plain indices are unrolled, which keeps sums in registers"
        )]
        mod $name {
            use super::{ChannelRows, INPUT_ROWS_MAX, Light, ROWS, mask_between};
            use std::arch::x86_64::*;

            /// # Safety
            /// The slices of the channel and the target must cover the shape.
            #[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
            pub(super) unsafe fn run<const SIZE: usize, const STEP: usize>(channel: &ChannelRows, target: *mut f32) {
                // Copies: the compiler must assume that a store changes what `channel` points to.
                let (shape, light) = (*channel.shape, channel.light);
                let residuals = [channel.first_residual, channel.last_residual];
                for column in (0..shape.out_width).step_by($lanes) {
                    let live = mask_between($lanes, 0, (shape.out_width - column) as isize) as $mask;
                    for row in (0..shape.out_height).step_by(ROWS) {
                        let mut sums = [$set1(channel.bias); ROWS];
                        for x in 0..SIZE {
                            // SAFETY: passed on from the caller.
                            unsafe { add_column::<SIZE, STEP>(channel, row, column, x, &mut sums) };
                        }
                        for at in 0..ROWS {
                            if row + at < shape.out_height {
                                let position = (row + at) * shape.out_width + column;
                                // SAFETY: the row exists and the mask keeps to its columns.
                                unsafe { store(light, residuals, sums[at], position, live, target) };
                            }
                        }
                    }
                }
            }

            /// Adds column `x` of the filter to the output rows from `row` on.
            #[inline(always)]
            unsafe fn add_column<const SIZE: usize, const STEP: usize>(
                channel: &ChannelRows,
                row: usize,
                column: usize,
                x: usize,
                sums: &mut [$vector; ROWS],
            ) {
                let shape = channel.shape;
                let (width, height) = (shape.in_width as isize, shape.in_height as isize);
                let first = (column * STEP + x) as isize - shape.pad_left as isize;
                let masks = [0, $lanes].map(|at| mask_between($lanes, -first - at, width - first - at) as $mask);
                let first_row = (row * STEP) as isize - shape.pad_top as isize;
                // SAFETY: `run` enables AVX-512.
                let (mut rows, even) = unsafe { ([$set1(0.0); INPUT_ROWS_MAX], $even) };
                for at in 0..(ROWS - 1) * STEP + SIZE {
                    let y = first_row + at as isize;
                    let inside: $mask = if y >= 0 && y < height { <$mask>::MAX } else { 0 };
                    let source = channel.image.as_ptr().wrapping_offset(y * width + first);
                    // SAFETY: `run` enables AVX-512; the masks leave only values inside the image.
                    rows[at] = unsafe {
                        let low = $load(masks[0] & inside, source);
                        if STEP == 1 {
                            low
                        } else {
                            $permute(low, even, $load(masks[1] & inside, source.wrapping_add($lanes)))
                        }
                    };
                }
                for y in 0..SIZE {
                    // SAFETY: `run` enables AVX-512; the filter has SIZE² values.
                    unsafe {
                        let weight = $set1(*channel.weights.get_unchecked(y * SIZE + x));
                        for at in 0..ROWS {
                            sums[at] = $fmadd(weight, rows[at * STEP + y], sums[at]);
                        }
                    }
                }
            }

            #[inline(always)]
            unsafe fn store(
                light: Light,
                residuals: [Option<&[f32]>; 2],
                sum: $vector,
                position: usize,
                live: $mask,
                target: *mut f32,
            ) {
                let mut value = sum;
                // SAFETY: `run` enables AVX-512; position and mask lie inside the target and the residuals.
                unsafe {
                    if let Some(residual) = residuals[0] {
                        value = $add(value, $load(live, residual.as_ptr().add(position)));
                    }
                    value = light.$light(value);
                    if let Some(residual) = residuals[1] {
                        value = $add(value, $load(live, residual.as_ptr().add(position)));
                    }
                    $store(target.add(position), live, value);
                }
            }
        }
    };
}

/// Output rows computed together: divides the usual sizes of images.
#[cfg(target_arch = "x86_64")]
const ROWS: usize = 7;
/// The most input rows they need: with 5 rows of filter and stride 2.
#[cfg(target_arch = "x86_64")]
const INPUT_ROWS_MAX: usize = (ROWS - 1) * 2 + 5;

/// Those of this many lanes of a vector that lie in `low..high`.
#[cfg(target_arch = "x86_64")]
fn mask_between(lanes: isize, low: isize, high: isize) -> u32 {
    let below = |end: isize| (1_u32 << end.clamp(0, lanes)) - 1;
    below(high) & !below(low)
}

#[cfg(target_arch = "x86_64")]
kernels!(
    wide, 16, __m512, __mmask16,
    even: _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
    _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps, _mm512_maskz_loadu_ps, _mm512_mask_storeu_ps,
    _mm512_permutex2var_ps, apply_avx512
);
#[cfg(target_arch = "x86_64")]
kernels!(
    narrow, 8, __m256, __mmask8,
    even: _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14),
    _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps, _mm256_maskz_loadu_ps, _mm256_mask_storeu_ps,
    _mm256_permutex2var_ps, apply_avx2
);
