//! Depthwise convolution with 3×3 and 5×5 filters straight from the image, with AVX-512: masks take the place of padding.
//!
//! Seven output rows are computed together, 16 columns at a time (8 in narrow images): for each column of the filter the
//! input rows are read once, and serve all output rows in whose windows they lie. What is left of an image has fewer rows
//! together; some images, those of lines of text, have no more than two or three.

use crate::conv::ConvShape;
use crate::epilogue::Light;
use crate::isa::Isa;
use std::ops::Range;

/// Whether `ChannelRows` covers a depthwise convolution.
pub(crate) fn covers(isa: Isa, shape: &ConvShape) -> bool {
    let is_square = shape.filter_height == shape.filter_width && matches!(shape.filter_height, 3 | FILTER_MAX);
    let is_step = shape.stride.iter().all(|step| (1..=2).contains(step)) && shape.dilation == [1, 1];
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
    /// Computes some rows of the channel into `target`, which holds those rows alone. Panics when a slice is too short, a row
    /// is not there or `covers` is false.
    pub(crate) fn run(&self, isa: Isa, rows: Range<usize>, target: &mut [f32]) {
        let shape = self.shape;
        assert!(rows.end <= shape.out_height, "rows {rows:?} of {shape:?}");
        assert!(covers(isa, shape), "{shape:?}");
        assert!(self.image.len() >= shape.in_area() && target.len() >= rows.len() * shape.out_width);
        assert!(self.weights.len() >= shape.taps());
        for residual in [self.first_residual, self.last_residual].into_iter().flatten() {
            assert!(residual.len() >= shape.out_area());
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has AVX-512, since `isa` came through an `Exec`; the slices cover the shape.
        unsafe {
            let plane = target.as_mut_ptr().wrapping_sub(rows.start * shape.out_width);
            let rest = rows.end - rows.len() % ROWS;
            if rows.start < rest {
                kernel::<ROWS>(shape)(self, rows.start..rest, plane);
            }
            let run = match rows.end - rest {
                0 => return,
                1 | 2 => kernel::<2>(shape),
                3 => kernel::<3>(shape),
                4 => kernel::<4>(shape),
                5 => kernel::<5>(shape),
                _ => kernel::<ROWS>(shape),
            };
            run(self, rest..rows.end, plane);
        }
    }
}

/// Computes rows of a channel into a plane.
#[cfg(target_arch = "x86_64")]
type Kernel = unsafe fn(&ChannelRows, Range<usize>, *mut f32);

/// The kernel that computes so many rows of a shape together.
#[cfg(target_arch = "x86_64")]
fn kernel<const TOGETHER: usize>(shape: &ConvShape) -> Kernel {
    // Machines add and multiply two vectors of 8 in the time of one of 16, or nearly so.
    match shape.out_width <= 8 {
        false => kernel_of!(wide, TOGETHER, shape),
        true => kernel_of!(narrow, TOGETHER, shape),
    }
}

/// The kernel of a module for a filter and a stride.
#[cfg(target_arch = "x86_64")]
macro_rules! kernel_of {
    ($name:ident, $together:ident, $shape:ident) => {
        match ($shape.filter_width, $shape.stride) {
            (3, [1, 1]) => $name::run::<3, 1, 1, $together>,
            (3, [1, _]) => $name::run::<3, 1, 2, $together>,
            (3, [_, 1]) => $name::run::<3, 2, 1, $together>,
            (3, [_, _]) => $name::run::<3, 2, 2, $together>,
            (_, [1, 1]) => $name::run::<5, 1, 1, $together>,
            (_, [1, _]) => $name::run::<5, 1, 2, $together>,
            (_, [_, 1]) => $name::run::<5, 2, 1, $together>,
            (_, [_, _]) => $name::run::<5, 2, 2, $together>,
        }
    };
}
#[cfg(target_arch = "x86_64")]
use kernel_of;

#[cfg(target_arch = "x86_64")]
impl ChannelRows<'_> {
    /// Where the input rows of some output rows from `row` on begin, for output columns from `column` on; rows outside the image
    /// are zeros elsewhere.
    #[inline(always)]
    fn sources<const SIZE: usize, const DOWN: usize, const ACROSS: usize, const TOGETHER: usize>(
        &self,
        row: usize,
        column: usize,
    ) -> [*const f32; INPUT_ROWS_MAX] {
        let (height, width) = (self.shape.in_height as isize, self.shape.in_width as isize);
        let first_row = (row * DOWN) as isize - self.shape.pad_top as isize;
        let first = (column * ACROSS) as isize - self.shape.pad_left as isize;
        let mut sources = [ZEROS.as_ptr(); INPUT_ROWS_MAX];
        for (at, source) in sources.iter_mut().enumerate().take((TOGETHER - 1) * DOWN + SIZE) {
            let y = first_row + at as isize;
            if (0..height).contains(&y) {
                *source = self.image.as_ptr().wrapping_offset(y * width + first);
            }
        }
        sources
    }
}

/// Stands for any row outside the image: two vectors, from as far to the right as a filter reaches.
#[cfg(target_arch = "x86_64")]
static ZEROS: [f32; 2 * 16 + FILTER_MAX] = [0.0; 2 * 16 + FILTER_MAX];

/// Calls `add_row` for these input rows. Spelled out, since sums only stay in registers where every index is known.
#[cfg(target_arch = "x86_64")]
macro_rules! add_rows {
    ($sources:ident, $x:ident, $masks:ident, $weights:ident, $sums:ident: $($at:literal)*) => {
        $(
            // SAFETY: passed on from the caller.
            unsafe { add_row::<SIZE, DOWN, ACROSS, TOGETHER, $at>($sources[$at].wrapping_add($x), $masks, &$weights, $sums) };
        )*
    };
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
            use super::{ChannelRows, INPUT_ROWS_MAX, Light, mask_between};
            use std::arch::x86_64::*;
            use std::ops::Range;

            /// # Safety
            /// The slices of the channel must cover the shape; `target` is where the plane starts of which the rows may be
            /// written.
            #[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
            pub(super) unsafe fn run<const SIZE: usize, const DOWN: usize, const ACROSS: usize, const TOGETHER: usize>(
                channel: &ChannelRows,
                rows: Range<usize>,
                target: *mut f32,
            ) {
                // Copies: the compiler must assume that a store changes what `channel` points to.
                let (shape, light) = (*channel.shape, channel.light);
                let residuals = [channel.first_residual, channel.last_residual];
                for column in (0..shape.out_width).step_by($lanes) {
                    let live = mask_between($lanes, 0, (shape.out_width - column) as isize) as $mask;
                    let masks: [[$mask; 2]; SIZE] = std::array::from_fn(|x| {
                        let first = (column * ACROSS + x) as isize - shape.pad_left as isize;
                        let width = shape.in_width as isize;
                        [0, $lanes].map(|at| mask_between($lanes, -first - at, width - first - at) as $mask)
                    });
                    for row in rows.clone().step_by(TOGETHER) {
                        let sources = channel.sources::<SIZE, DOWN, ACROSS, TOGETHER>(row, column);
                        let mut sums = [$set1(channel.bias); TOGETHER];
                        // SIZE columns; as a number of the shape, or the loop is unrolled and sums leave their registers.
                        for (x, &masks) in masks.iter().enumerate().take(shape.filter_width) {
                            let weights = std::array::from_fn(|y| $set1(channel.weights[y * SIZE + x]));
                            // SAFETY: the masks leave only values inside the image.
                            unsafe { add_column::<SIZE, DOWN, ACROSS, TOGETHER>(&sources, x, masks, weights, &mut sums) };
                        }
                        for at in 0..TOGETHER {
                            if row + at < rows.end {
                                let position = (row + at) * shape.out_width + column;
                                // SAFETY: the row exists and the mask keeps to its columns.
                                unsafe { store(light, residuals, sums[at], position, live, target) };
                            }
                        }
                    }
                }
            }

            /// Adds column `x` of the filter to all output rows. Each input row is read once and added where it belongs.
            #[inline(always)]
            unsafe fn add_column<const SIZE: usize, const DOWN: usize, const ACROSS: usize, const TOGETHER: usize>(
                sources: &[*const f32; INPUT_ROWS_MAX],
                x: usize,
                masks: [$mask; 2],
                weights: [$vector; SIZE],
                sums: &mut [$vector; TOGETHER],
            ) {
                add_rows!(sources, x, masks, weights, sums: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);
            }

            /// Adds the input row `AT` to the output rows in whose windows it lies.
            #[inline(always)]
            unsafe fn add_row<
                const SIZE: usize,
                const DOWN: usize,
                const ACROSS: usize,
                const TOGETHER: usize,
                const AT: usize,
            >(
                source: *const f32,
                masks: [$mask; 2],
                weights: &[$vector; SIZE],
                sums: &mut [$vector; TOGETHER],
            ) {
                if AT >= (TOGETHER - 1) * DOWN + SIZE {
                    return;
                }
                // SAFETY: `run` enables AVX-512; the masks leave only values inside the image.
                unsafe {
                    let low = $load(masks[0], source);
                    let value = match ACROSS {
                        1 => low,
                        _ => $permute(low, $even, $load(masks[1], source.wrapping_add($lanes))),
                    };
                    for y in 0..SIZE {
                        if AT >= y && (AT - y).is_multiple_of(DOWN) && (AT - y) / DOWN < TOGETHER {
                            let sum = &mut sums[(AT - y) / DOWN];
                            *sum = $fmadd(weights[y], value, *sum);
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
                    $store(target.wrapping_add(position), live, value);
                }
            }
        }
    };
}

/// The largest height and width of a filter.
const FILTER_MAX: usize = 5;
/// The most output rows computed together: divides the usual sizes of images.
pub(crate) const ROWS: usize = 7;
/// The most input rows they need: with 5 rows of filter and stride 2.
#[cfg(target_arch = "x86_64")]
const INPUT_ROWS_MAX: usize = (ROWS - 1) * 2 + FILTER_MAX;

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
