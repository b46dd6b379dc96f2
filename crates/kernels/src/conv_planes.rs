//! The patches of an image with few channels, such as the first one of most networks, as the right matrix of a product.
//!
//! With few channels most of the time of `conv_patches.rs` goes into deciding about each tap. Here every channel is first
//! copied into a padded plane; then a value of a patch is a constant distance from its pixel's place, and packing is loads
//! and stores.

use crate::conv::ConvShape;
use crate::isa::{Exec, Isa};
use crate::padded_plane::{Plane, TAPS_MAX, fill_rows};
use crate::plane_rows::rows_of_part;
use crate::pool::SharedMut;
use crate::simd::ELEMENTS_PER_TASK_MIN;
use std::ops::Range;

/// The most channels for which copying the image pays.
const CHANNELS_MAX: usize = 4;
/// Columns that are packed together; the lanes of the widest vector.
const LANES: usize = 16;

/// Whether the patches of this convolution are packed from planes.
pub(crate) fn is_plane_form(shape: &ConvShape) -> bool {
    let is_few = shape.groups == 1 && (1..=CHANNELS_MAX).contains(&shape.in_channels);
    is_few && (2..=TAPS_MAX).contains(&shape.taps()) && shape.out_area() > 0
}

/// Elements of the planes of one image; a vector that starts inside may end behind the last.
pub(crate) fn planes_len(shape: &ConvShape) -> usize {
    (shape.in_channels * Plane::of(shape).len() + LANES).next_multiple_of(LANES)
}

/// Copies the channels of one image into `planes`.
pub(crate) fn fill_planes(exec: Exec, shape: &ConvShape, image: &[f32], planes: &mut [f32]) {
    let plane = Plane::of(shape);
    let is_small = planes_len(shape) < 2 * ELEMENTS_PER_TASK_MIN;
    let parts = if is_small { 1 } else { exec.threads().min(plane.rows) };
    let planes = SharedMut::new(planes);
    // By rows, since those who compute pixels of the result read the rows around them.
    exec.pool().run(parts, &|part| {
        let rows = rows_of_part(plane.rows, 1, parts, part);
        for channel in 0..shape.in_channels {
            let image = &image[channel * shape.in_area()..][..shape.in_area()];
            for phase in 0..plane.phases[0] * plane.phases[1] {
                let places = plane.places(phase, &rows);
                // SAFETY: these rows of every phase of every channel belong to one part.
                let padded = unsafe { planes.slice(channel * plane.len() + places.start, places.len()) };
                fill_rows(exec.isa(), &plane, shape, image, phase, rows.clone(), padded);
            }
        }
    });
}

/// The patches of one image, made by `fill_planes`.
#[derive(Clone, Copy)]
pub(crate) struct PlanePatches<'a> {
    planes: &'a [f32],
    row_len: usize,
    out_width: usize,
    out_height: usize,
    distances: &'a Distances,
}

/// For each k, ordered (tap, channel), how far its value is from the place of an output pixel.
pub(crate) struct Distances([usize; TAPS_MAX * CHANNELS_MAX]);

impl Distances {
    pub(crate) fn new(shape: &ConvShape) -> Distances {
        let plane = Plane::of(shape);
        let taps = plane.distances(shape);
        let mut distances = [0; TAPS_MAX * CHANNELS_MAX];
        for (k, distance) in distances.iter_mut().enumerate().take(shape.taps() * shape.in_channels) {
            *distance = k % shape.in_channels * plane.len() + taps[k / shape.in_channels];
        }
        Distances(distances)
    }
}

impl<'a> PlanePatches<'a> {
    pub(crate) fn new(shape: &ConvShape, planes: &'a [f32], distances: &'a Distances) -> PlanePatches<'a> {
        assert!(planes.len() >= planes_len(shape));
        let (out_width, out_height) = (shape.out_width, shape.out_height);
        PlanePatches { planes, row_len: Plane::of(shape).row_len, out_width, out_height, distances }
    }

    /// Fills `target` with a row of `width` values for each k; columns from `columns.len()` on are zeros.
    pub(crate) fn pack_panel(
        &self,
        isa: Isa,
        width: usize,
        ks: Range<usize>,
        columns: Range<usize>,
        target: &mut [f32],
    ) {
        let distances = &self.distances.0[ks];
        assert!(columns.end <= self.out_width * self.out_height && target.len() >= distances.len() * width);
        for lane in (0..width).step_by(LANES) {
            let lanes = LANES.min(width - lane);
            let first = columns.end.min(columns.start + lane);
            let target = &mut target[lane..];
            let column = first % self.out_width;
            if first + LANES <= columns.end && lanes == LANES && column + LANES <= self.out_width {
                let place = first / self.out_width * self.row_len + column;
                self.pack_row(isa, place, distances, width, target);
                continue;
            }
            for (distance, target) in distances.iter().zip(target.chunks_mut(width)) {
                for (at, value) in target[..lanes].iter_mut().enumerate() {
                    let pixel = first + at;
                    let place = pixel / self.out_width * self.row_len + pixel % self.out_width;
                    *value = if pixel < columns.end { self.planes[place + distance] } else { 0.0 };
                }
            }
        }
    }

    /// `LANES` pixels of one output row.
    fn pack_row(&self, isa: Isa, place: usize, distances: &[usize], width: usize, target: &mut [f32]) {
        let planes = &self.planes[place..];
        #[cfg(target_arch = "x86_64")]
        if isa >= Isa::Avx512 {
            let farthest = distances.iter().max().copied().unwrap_or(0);
            assert!(planes.len() >= farthest + LANES && target.len() + width >= distances.len() * width + LANES);
            // SAFETY: the machine has AVX-512, as `isa` came through `Exec`; the assertion covers every access.
            return unsafe { x86::pack_row(planes.as_ptr(), distances, width, target.as_mut_ptr()) };
        }
        let _ = isa;
        for (distance, target) in distances.iter().zip(target.chunks_mut(width)) {
            target[..LANES].copy_from_slice(&planes[*distance..distance + LANES]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// # Safety
    /// 16 values at each distance from `planes` and at each multiple of `width` from `target` must be valid.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn pack_row(planes: *const f32, distances: &[usize], width: usize, target: *mut f32) {
        for (k, distance) in distances.iter().enumerate() {
            // SAFETY: by the promise of the caller.
            unsafe { _mm512_storeu_ps(target.add(k * width), _mm512_loadu_ps(planes.add(*distance))) };
        }
    }
}
