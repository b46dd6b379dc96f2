//! Depthwise convolution with 3×3 and 5×5 filters straight from the image, with AVX-512: masks take the place of padding.
//!
//! Seven output rows are computed together, 16 columns at a time: for each column of the filter the input rows are read
//! once, and serve all output rows in whose windows they lie.

use crate::conv::ConvShape;
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
    pub residual: Option<&'a [f32]>,
    /// Limits of the results.
    pub limits: (f32, f32),
}

impl ChannelRows<'_> {
    /// Computes the channel. Panics when a slice is too short or `covers` is false.
    pub(crate) fn run(&self, isa: Isa, target: &mut [f32]) {
        let shape = self.shape;
        assert!(covers(isa, shape), "{shape:?}");
        assert!(self.image.len() >= shape.in_area() && target.len() >= shape.out_area());
        assert!(self.weights.len() >= shape.taps());
        assert!(self.residual.is_none_or(|residual| residual.len() >= shape.out_area()));
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has AVX-512, since `isa` came through an `Exec`; the slices cover the shape.
        unsafe {
            match (shape.filter_width, shape.stride[0]) {
                (3, 1) => x86::run::<3, 1>(self, target.as_mut_ptr()),
                (3, _) => x86::run::<3, 2>(self, target.as_mut_ptr()),
                (_, 1) => x86::run::<5, 1>(self, target.as_mut_ptr()),
                _ => x86::run::<5, 2>(self, target.as_mut_ptr()),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(clippy::needless_range_loop, reason = "loops over plain indices are unrolled, which keeps sums in registers")]
mod x86 {
    use super::ChannelRows;
    use std::arch::x86_64::*;

    /// Output rows computed together: divides the usual sizes of images.
    const ROWS: usize = 7;
    /// The most input rows they need: with 5 rows of filter and stride 2.
    const INPUT_ROWS_MAX: usize = (ROWS - 1) * 2 + 5;

    /// Lanes of a vector that lie in `low..high`.
    fn mask_between(low: isize, high: isize) -> __mmask16 {
        let below = |end: isize| (1_u32 << end.clamp(0, 16)) - 1;
        (below(high) & !below(low)) as __mmask16
    }

    /// # Safety
    /// The slices of the channel and the target must cover the shape.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn run<const SIZE: usize, const STEP: usize>(channel: &ChannelRows, target: *mut f32) {
        let shape = channel.shape;
        for column in (0..shape.out_width).step_by(16) {
            let live = mask_between(0, (shape.out_width - column) as isize);
            for row in (0..shape.out_height).step_by(ROWS) {
                let mut sums = [_mm512_set1_ps(channel.bias); ROWS];
                for x in 0..SIZE {
                    // SAFETY: passed on from the caller.
                    unsafe { add_column::<SIZE, STEP>(channel, row, column, x, &mut sums) };
                }
                for at in 0..ROWS {
                    if row + at < shape.out_height {
                        let position = (row + at) * shape.out_width + column;
                        // SAFETY: the row exists and the mask keeps to its columns.
                        unsafe { store(channel, sums[at], position, live, target) };
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
        sums: &mut [__m512; ROWS],
    ) {
        let shape = channel.shape;
        let (width, height) = (shape.in_width as isize, shape.in_height as isize);
        let first = (column * STEP + x) as isize - shape.pad_left as isize;
        let masks = [0, 16].map(|at| mask_between(-first - at, width - first - at));
        let first_row = (row * STEP) as isize - shape.pad_top as isize;
        // SAFETY: `run` enables AVX-512.
        let (mut rows, even) = unsafe {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            ([_mm512_setzero_ps(); INPUT_ROWS_MAX], even)
        };
        for at in 0..(ROWS - 1) * STEP + SIZE {
            let y = first_row + at as isize;
            let inside: __mmask16 = if y >= 0 && y < height { 0xffff } else { 0 };
            let source = channel.image.as_ptr().wrapping_offset(y * width + first);
            // SAFETY: `run` enables AVX-512; the masks leave only values inside the image.
            rows[at] = unsafe {
                let low = _mm512_maskz_loadu_ps(masks[0] & inside, source);
                if STEP == 1 {
                    low
                } else {
                    let high = _mm512_maskz_loadu_ps(masks[1] & inside, source.wrapping_add(16));
                    _mm512_permutex2var_ps(low, even, high)
                }
            };
        }
        for y in 0..SIZE {
            // SAFETY: `run` enables AVX-512; the filter has SIZE² values.
            unsafe {
                let weight = _mm512_set1_ps(*channel.weights.get_unchecked(y * SIZE + x));
                for at in 0..ROWS {
                    sums[at] = _mm512_fmadd_ps(weight, rows[at * STEP + y], sums[at]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store(channel: &ChannelRows, sum: __m512, position: usize, live: __mmask16, target: *mut f32) {
        let mut value = sum;
        // SAFETY: `run` enables AVX-512; position and mask lie inside the target and the residual.
        unsafe {
            if let Some(residual) = channel.residual {
                value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(live, residual.as_ptr().add(position)));
            }
            // max and min give their second operand when either is NaN.
            value = _mm512_max_ps(_mm512_set1_ps(channel.limits.0), value);
            value = _mm512_min_ps(_mm512_set1_ps(channel.limits.1), value);
            _mm512_mask_storeu_ps(target.add(position), live, value);
        }
    }
}
