//! The patches of an image as the right matrix of a product, packed straight from the image.
//!
//! Column n is an output pixel; row k is one tap of the filter and one channel, ordered (tap row, tap column, channel),
//! so that everything about a tap is decided once and the channels follow in a short loop. Pixels outside the image
//! are zeros.

use crate::conv::ConvShape;
use crate::isa::Isa;
use std::ops::Range;

/// The channels of one group of one image.
#[derive(Clone, Copy)]
pub(crate) struct ImagePatches<'a> {
    pub shape: &'a ConvShape,
    /// The channels of the group, each `in_height * in_width`.
    pub image: &'a [f32],
}

/// Columns whose patches are looked up together; the lanes of the widest vector.
const LANES: usize = 16;

/// Successive pixels of one output row.
#[derive(Clone, Copy, Default)]
struct PixelRun {
    lane: usize,
    len: usize,
    row: usize,
    column: usize,
}

/// Successive pixels of one output row whose source lies inside the image for a certain tap.
#[derive(Clone, Copy, Default)]
struct Segment {
    lane: usize,
    len: usize,
    /// Position of the first pixel's source in its channel.
    source: usize,
}

impl ImagePatches<'_> {
    /// Fills `target` with a row of `width` values for each k; columns from `columns.len()` on are zeros.
    pub(crate) fn pack_panel(
        &self,
        isa: Isa,
        width: usize,
        ks: Range<usize>,
        columns: Range<usize>,
        target: &mut [f32],
    ) {
        let channels = self.shape.channels_per_group();
        let area = self.shape.in_height * self.shape.in_width;
        assert!(self.image.len() >= channels * area && target.len() >= ks.len() * width);
        for lane in (0..width).step_by(LANES) {
            let lanes = LANES.min(width - lane);
            let first = columns.end.min(columns.start + lane);
            let (runs, run_count) = self.runs(first..columns.end.min(first + lanes));
            #[cfg(target_arch = "x86_64")]
            if isa >= Isa::Avx512 && run_count == 1 && self.is_interior(&runs[0]) {
                let target = &mut target[lane..];
                assert!(target.len() >= (ks.len().max(1) - 1) * width + LANES);
                // SAFETY: the machine has AVX-512, as `isa` came through `Exec`; the run is interior, and the target
                // has a row of 16 for each k.
                unsafe { self.pack_interior(&runs[0], width, ks.clone(), target.as_mut_ptr()) };
                continue;
            }
            let mut k = ks.start;
            while k < ks.end {
                let (tap, channel) = (k / channels, k % channels);
                let count = (channels - channel).min(ks.end - k);
                let mut segments = [Segment::default(); LANES];
                let mut segment_count = 0;
                for run in &runs[..run_count] {
                    if let Some(segment) = self.clip(run, tap) {
                        segments[segment_count] = segment;
                        segment_count += 1;
                    }
                }
                let source = &self.image[channel * area..(channel + count) * area];
                let target = &mut target[(k - ks.start) * width + lane..];
                let copy = TapCopy { area, stride: self.shape.stride[1], width, lanes, count };
                copy.run(isa, &segments[..segment_count], source, target);
                k += count;
            }
        }
    }

    /// Cuts at most `LANES` columns where an output row ends.
    fn runs(&self, columns: Range<usize>) -> ([PixelRun; LANES], usize) {
        let mut runs = [PixelRun::default(); LANES];
        let mut count = 0;
        let (mut row, mut column) = (columns.start / self.shape.out_width, columns.start % self.shape.out_width);
        let mut lane = 0;
        while lane < columns.len() {
            let len = (columns.len() - lane).min(self.shape.out_width - column);
            runs[count] = PixelRun { lane, len, row, column };
            count += 1;
            lane += len;
            (row, column) = (row + 1, 0);
        }
        (runs, count)
    }

    /// Whether a run fills all lanes and no tap of it reaches over the sides of the image, and strides suit
    /// `pack_interior`.
    #[cfg(target_arch = "x86_64")]
    fn is_interior(&self, run: &PixelRun) -> bool {
        let shape = self.shape;
        let first = run.column * shape.stride[1];
        let last = first + (LANES - 1) * shape.stride[1] + (shape.filter_width - 1) * shape.dilation[1];
        let is_whole = run.lane == 0 && run.len == LANES && shape.stride[1] <= 2;
        is_whole && first >= shape.pad_left && last < shape.pad_left + shape.in_width
    }

    /// The pixels of a run whose source is inside the image for a tap.
    fn clip(&self, run: &PixelRun, tap: usize) -> Option<Segment> {
        let shape = self.shape;
        let (tap_row, tap_column) = (tap / shape.filter_width, tap % shape.filter_width);
        let y = (run.row * shape.stride[0] + tap_row * shape.dilation[0]).checked_sub(shape.pad_top)?;
        if y >= shape.in_height {
            return None;
        }
        // Positions here count from the left edge of the padding.
        let x = run.column * shape.stride[1] + tap_column * shape.dilation[1];
        let before = shape.pad_left.saturating_sub(x).div_ceil(shape.stride[1]);
        let within = (shape.pad_left + shape.in_width).checked_sub(x + 1)? / shape.stride[1] + 1;
        let len = run.len.min(within).checked_sub(before)?;
        if len == 0 {
            return None;
        }
        let source = y * shape.in_width + x + before * shape.stride[1] - shape.pad_left;
        Some(Segment { lane: run.lane + before, len, source })
    }
}

/// Copies the segments of one tap for `count` successive channels.
struct TapCopy {
    area: usize,
    /// From one pixel's source to the next.
    stride: usize,
    /// From one channel's row in the target to the next.
    width: usize,
    lanes: usize,
    count: usize,
}

impl TapCopy {
    fn run(&self, isa: Isa, segments: &[Segment], source: &[f32], target: &mut [f32]) {
        assert!(target.len() >= (self.count - 1) * self.width + self.lanes);
        assert!(source.len() >= self.count * self.area);
        for segment in segments {
            assert!(segment.source + (segment.len - 1) * self.stride < self.area);
            assert!(segment.lane + segment.len <= self.lanes);
        }
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni if self.lanes == LANES && self.stride <= 2 => {
                // SAFETY: the machine has AVX-512, as `isa` came through `Exec`; the bounds are asserted above.
                unsafe {
                    match self.stride {
                        1 => self.run_avx512(segments, source, target),
                        _ => self.run_avx512_by_two(segments, source, target),
                    }
                }
            }
            _ => self.run_each(segments, source, target),
        }
    }

    fn run_each(&self, segments: &[Segment], source: &[f32], target: &mut [f32]) {
        let covered: usize = segments.iter().map(|segment| segment.len).sum();
        for (index, target) in target.chunks_mut(self.width).enumerate().take(self.count) {
            let channel = &source[index * self.area..(index + 1) * self.area];
            let target = &mut target[..self.lanes];
            if covered < self.lanes {
                target.fill(0.0);
            }
            for segment in segments {
                let target = &mut target[segment.lane..segment.lane + segment.len];
                let source = &channel[segment.source..];
                if self.stride == 1 {
                    for (target, source) in target.iter_mut().zip(source) {
                        *target = *source;
                    }
                } else {
                    for (target, source) in target.iter_mut().zip(source.iter().step_by(self.stride)) {
                        *target = *source;
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{ImagePatches, LANES, PixelRun, Segment, TapCopy};
    use std::arch::x86_64::*;
    use std::ops::Range;

    /// Taps whose patches are packed together: what they read of a channel overlaps.
    const TAPS_AT_ONCE: usize = 9;
    /// Stands for pixels in a row outside the image.
    const OUTSIDE: usize = usize::MAX;

    impl ImagePatches<'_> {
        /// Most pixels of wide images: a tap is one address for all lanes and only whole rows of it may be outside.
        ///
        /// # Safety
        /// The run is interior, the image has all channels of the group, and `target` room for 16 values for each k,
        /// `width` apart.
        #[target_feature(enable = "avx512f")]
        pub(super) unsafe fn pack_interior(&self, run: &PixelRun, width: usize, ks: Range<usize>, target: *mut f32) {
            let channels = self.shape.channels_per_group();
            let mut k = ks.start;
            while k < ks.end {
                let (tap, channel) = (k / channels, k % channels);
                let (taps, count) = match channel {
                    0 if ks.end - k >= channels => (((ks.end - k) / channels).min(TAPS_AT_ONCE), channels),
                    _ => (1, (channels - channel).min(ks.end - k)),
                };
                let target = target.wrapping_add((k - ks.start) * width);
                // SAFETY: handed on; these taps of these channels are the next values of k.
                unsafe {
                    match self.shape.stride[1] {
                        1 => self.pack_taps::<1>(run, width, tap..tap + taps, channel..channel + count, target),
                        _ => self.pack_taps::<2>(run, width, tap..tap + taps, channel..channel + count, target),
                    }
                }
                k += taps * count;
            }
        }

        /// Some taps of some channels, those of one channel together: the rows of successive channels often lie a multiple of a
        /// page apart, where few of them stay in the first cache until the next tap.
        ///
        /// # Safety
        /// As for `pack_interior`, with pixels `STRIDE` apart.
        #[target_feature(enable = "avx512f")]
        unsafe fn pack_taps<const STRIDE: usize>(
            &self,
            run: &PixelRun,
            width: usize,
            taps: Range<usize>,
            channels: Range<usize>,
            target: *mut f32,
        ) {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let mut pixels = [OUTSIDE; TAPS_AT_ONCE];
            let pixels = &mut pixels[..taps.len()];
            for (pixel, tap) in pixels.iter_mut().zip(taps) {
                *pixel = self.interior_pixel(run, tap);
            }
            let (area, count) = (self.shape.in_area(), channels.len());
            for (index, channel) in channels.enumerate() {
                let image = self.image.as_ptr().wrapping_add(channel * area);
                for (at, &pixel) in pixels.iter().enumerate() {
                    // SAFETY: the 16 pixels lie in one row of the image, and so do the values between them.
                    unsafe {
                        let source = image.wrapping_add(pixel);
                        let value = match STRIDE {
                            _ if pixel == OUTSIDE => _mm512_setzero_ps(),
                            1 => _mm512_loadu_ps(source),
                            _ => {
                                let high = _mm512_maskz_loadu_ps(0x7fff, source.add(LANES));
                                _mm512_permutex2var_ps(_mm512_loadu_ps(source), even, high)
                            }
                        };
                        _mm512_storeu_ps(target.add((at * count + index) * width), value);
                    }
                }
            }
        }

        /// Where the first pixel of an interior run lies in its channel for a tap.
        fn interior_pixel(&self, run: &PixelRun, tap: usize) -> usize {
            let shape = self.shape;
            let (tap_row, tap_column) = (tap / shape.filter_width, tap % shape.filter_width);
            let y = (run.row * shape.stride[0] + tap_row * shape.dilation[0]).wrapping_sub(shape.pad_top);
            let x = run.column * shape.stride[1] - shape.pad_left + tap_column * shape.dilation[1];
            if y < shape.in_height { y * shape.in_width + x } else { OUTSIDE }
        }
    }

    impl TapCopy {
        /// One masked load a segment: the address is moved back so that its first pixel falls on its lane.
        #[target_feature(enable = "avx512f")]
        pub(super) unsafe fn run_avx512(&self, segments: &[Segment], source: &[f32], target: &mut [f32]) {
            let mut parts = [(0 as __mmask16, source.as_ptr()); LANES];
            for (part, segment) in parts.iter_mut().zip(segments) {
                let mask = mask_of(segment.len) << segment.lane;
                *part = (mask, source.as_ptr().wrapping_add(segment.source).wrapping_sub(segment.lane));
            }
            let parts = &parts[..segments.len()];
            let target = target.as_mut_ptr();
            match parts {
                // Most tiles of wide images: nothing to merge.
                [(mask, source)] => {
                    for channel in 0..self.count {
                        // SAFETY: the mask keeps the load to the segment; the caller asserted both bounds.
                        unsafe {
                            let value = _mm512_maskz_loadu_ps(*mask, source.wrapping_add(channel * self.area));
                            _mm512_storeu_ps(target.add(channel * self.width), value);
                        }
                    }
                }
                parts => {
                    for channel in 0..self.count {
                        let mut value = _mm512_setzero_ps();
                        for (mask, source) in parts {
                            let source = source.wrapping_add(channel * self.area);
                            // SAFETY: the mask keeps the load to the segment, whose bounds the caller asserted.
                            value = unsafe { _mm512_mask_loadu_ps(value, *mask, source) };
                        }
                        // SAFETY: the caller asserted that the target has `count` rows of 16.
                        unsafe { _mm512_storeu_ps(target.add(channel * self.width), value) };
                    }
                }
            }
        }

        /// Pixels two apart: two loads and a permutation a segment.
        #[target_feature(enable = "avx512f")]
        pub(super) unsafe fn run_avx512_by_two(&self, segments: &[Segment], source: &[f32], target: &mut [f32]) {
            let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            let target = target.as_mut_ptr();
            for channel in 0..self.count {
                let mut value = _mm512_setzero_ps();
                for segment in segments {
                    let source = source.as_ptr().wrapping_add(channel * self.area + segment.source);
                    let span = 2 * segment.len - 1;
                    let indices = _mm512_sub_epi32(lanes, _mm512_set1_epi32(segment.lane as i32));
                    let indices = _mm512_add_epi32(indices, indices);
                    // SAFETY: the masks keep the loads to the segment, whose bounds the caller asserted.
                    let (low, high) = unsafe {
                        (
                            _mm512_maskz_loadu_ps(mask_of(span.min(16)), source),
                            _mm512_maskz_loadu_ps(mask_of(span.saturating_sub(16)), source.wrapping_add(16)),
                        )
                    };
                    let picked = _mm512_permutex2var_ps(low, indices, high);
                    value = _mm512_mask_blend_ps(mask_of(segment.len) << segment.lane, value, picked);
                }
                // SAFETY: the caller asserted that the target has `count` rows of 16.
                unsafe { _mm512_storeu_ps(target.add(channel * self.width), value) };
            }
        }
    }

    fn mask_of(lanes: usize) -> __mmask16 {
        ((1_u32 << lanes) - 1) as __mmask16
    }
}
