//! The three transforms of Winograd convolutions with 3×3 filters: F(2,3) with tiles of 4×4 and F(4,3) with tiles of
//! 6×6, at the points 0, ±1 (, ±2) and infinity (Lavin and Gray, arXiv 1509.09308).
//!
//! A `TILE` of 4 or 6 gives `TILE - 2` squared outputs. Vectors run over tiles; `GROUP` tiles are one call's unit.

use crate::isa::Isa;
use crate::winograd_lanes::{GROUP, Lanes, Plain8};

/// What each of three taps counts in each factor: the powers of the factor's point, over its denominator.
fn filter_weights(tile: usize) -> &'static [[f64; 3]] {
    match tile {
        4 => &[[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]],
        _ => &[
            [1.0 / 4.0, 0.0, 0.0],
            [-1.0 / 6.0, -1.0 / 6.0, -1.0 / 6.0],
            [-1.0 / 6.0, 1.0 / 6.0, -1.0 / 6.0],
            [1.0 / 24.0, 1.0 / 12.0, 1.0 / 6.0],
            [1.0 / 24.0, -1.0 / 12.0, 1.0 / 6.0],
            [0.0, 0.0, 1.0],
        ],
    }
}

/// One filter [3, 3] as `tile`² factors, by rows; computed in f64 and rounded once.
pub(crate) fn transform_filter(tile: usize, filter: &[f32], mut put: impl FnMut(usize, f32)) {
    let weights = filter_weights(tile);
    for (y, down) in weights.iter().enumerate() {
        let column = |x: usize| (0..3).map(|tap| down[tap] * f64::from(filter[tap * 3 + x])).sum::<f64>();
        let taps = [column(0), column(1), column(2)];
        for (x, across) in weights.iter().enumerate() {
            let value: f64 = across.iter().zip(taps).map(|(weight, tap)| weight * tap).sum();
            put(y * tile + x, value as f32);
        }
    }
}

/// The factors of three taps in a row.
#[inline(always)]
fn filter_factors<L: Lanes, const TILE: usize>([a, b, c]: [L; 3]) -> [L; TILE] {
    let mut t = [a; TILE];
    let nothing = L::splat(0.0);
    if TILE == 4 {
        let even = a.add(c).mul_add(1.0 / 2.0, nothing);
        t[1] = b.mul_add(1.0 / 2.0, even);
        t[2] = b.mul_add(-1.0 / 2.0, even);
        t[3] = c;
    } else {
        let even = a.add(c).mul_add(-1.0 / 6.0, nothing);
        let even_far = c.mul_add(1.0 / 6.0, a.mul_add(1.0 / 24.0, nothing));
        t[0] = a.mul_add(1.0 / 4.0, nothing);
        t[1] = b.mul_add(-1.0 / 6.0, even);
        t[2] = b.mul_add(1.0 / 6.0, even);
        t[3] = b.mul_add(1.0 / 12.0, even_far);
        t[4] = b.mul_add(-1.0 / 12.0, even_far);
        t[5] = c;
    }
    t
}

#[inline(always)]
fn input_factors<L: Lanes, const TILE: usize>(d: [L; TILE]) -> [L; TILE] {
    let mut t = d;
    if TILE == 4 {
        t[0] = d[0].sub(d[2]);
        t[1] = d[1].add(d[2]);
        t[2] = d[2].sub(d[1]);
        t[3] = d[1].sub(d[3]);
    } else {
        let (even, odd) = (d[2].mul_add(-4.0, d[4]), d[1].mul_add(-4.0, d[3]));
        let (even_far, odd_far) = (d[4].sub(d[2]), d[3].sub(d[1]));
        t[0] = d[0].mul_add(4.0, d[2].mul_add(-5.0, d[4]));
        t[1] = even.add(odd);
        t[2] = even.sub(odd);
        t[3] = odd_far.mul_add(2.0, even_far);
        t[4] = odd_far.mul_add(-2.0, even_far);
        t[5] = d[1].mul_add(4.0, d[3].mul_add(-5.0, d[5]));
    }
    t
}

/// The outputs are the first `TILE - 2`.
#[inline(always)]
fn output_sums<L: Lanes, const TILE: usize>(m: [L; TILE]) -> [L; TILE] {
    let mut y = m;
    if TILE == 4 {
        y[0] = m[0].add(m[1].add(m[2]));
        y[1] = m[1].sub(m[2]).sub(m[3]);
    } else {
        let (sum, difference) = (m[1].add(m[2]), m[1].sub(m[2]));
        let (sum_far, difference_far) = (m[3].add(m[4]), m[3].sub(m[4]));
        y[0] = m[0].add(sum).add(sum_far);
        y[1] = difference_far.mul_add(2.0, difference);
        y[2] = sum_far.mul_add(4.0, sum);
        y[3] = difference_far.mul_add(8.0, difference).add(m[5]);
    }
    y
}

/// For each channel `source` has nine taps of `rows` filters side by side; `target` gets the TILE factors of row `y`, each a
/// matrix of channels × rows, `target_stride` apart. A vector may be read and written behind the last row.
#[inline(always)]
unsafe fn filter_body<L: Lanes, const TILE: usize>(
    source: *const f32,
    y: usize,
    rows: usize,
    channels: usize,
    target: *mut f32,
    target_stride: usize,
) {
    let weights = filter_weights(TILE)[y].map(|weight| weight as f32);
    for channel in 0..channels {
        for lane in (0..rows).step_by(L::WIDTH) {
            let mut taps = [L::splat(0.0); 3];
            for (x, sum) in taps.iter_mut().enumerate() {
                // SAFETY: channel `channel` has nine taps of `rows` values, and a vector lies behind the last.
                let column =
                    [0, 1, 2].map(|tap| unsafe { L::load(source.add((channel * 9 + tap * 3 + x) * rows + lane)) });
                *sum = column[0].mul_add(weights[0], *sum);
                *sum = column[1].mul_add(weights[1], *sum);
                *sum = column[2].mul_add(weights[2], *sum);
            }
            for (x, value) in filter_factors::<L, TILE>(taps).into_iter().enumerate() {
                // SAFETY: matrix `x` has room for this channel's rows, and a vector lies behind the last.
                unsafe { value.store(target.add(x * target_stride + channel * rows + lane)) };
            }
        }
    }
}

/// `source` has TILE² planes `source_stride` apart, `target` as many `target_stride` apart.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "columns of an array of rows")]
unsafe fn input_body<L: Lanes, const TILE: usize>(
    source: *const f32,
    source_stride: usize,
    target: *mut f32,
    target_stride: usize,
) {
    for lane in (0..GROUP).step_by(L::WIDTH) {
        let mut rows = [[L::splat(0.0); TILE]; TILE];
        for (y, row) in rows.iter_mut().enumerate() {
            for (x, value) in row.iter_mut().enumerate() {
                // SAFETY: plane (y, x) has GROUP values.
                *value = unsafe { L::load(source.add((y * TILE + x) * source_stride + lane)) };
            }
            *row = input_factors(*row);
        }
        for x in 0..TILE {
            let mut column = [L::splat(0.0); TILE];
            for (y, value) in column.iter_mut().enumerate() {
                *value = rows[y][x];
            }
            for (y, value) in input_factors(column).into_iter().enumerate() {
                // SAFETY: plane (y, x) of the target has room for GROUP values.
                unsafe { value.store(target.add((y * TILE + x) * target_stride + lane)) };
            }
        }
    }
}

/// `source` has TILE² planes `source_stride` apart, `target` (TILE - 2)² of GROUP values.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "columns of an array of rows")]
unsafe fn output_body<L: Lanes, const TILE: usize>(
    source: *const f32,
    source_stride: usize,
    bias: f32,
    target: *mut f32,
) {
    let out = TILE - 2;
    let bias = L::splat(bias);
    for lane in (0..GROUP).step_by(L::WIDTH) {
        let mut rows = [[L::splat(0.0); TILE]; TILE];
        for x in 0..TILE {
            let mut column = [L::splat(0.0); TILE];
            for (y, value) in column.iter_mut().enumerate() {
                // SAFETY: plane (y, x) has GROUP values.
                *value = unsafe { L::load(source.add((y * TILE + x) * source_stride + lane)) };
            }
            for (y, value) in output_sums(column).into_iter().enumerate() {
                rows[y][x] = value;
            }
        }
        for (y, row) in rows.into_iter().enumerate().take(out) {
            for (x, value) in output_sums(row).into_iter().enumerate().take(out) {
                // SAFETY: the target has out² planes of GROUP values.
                unsafe { value.add(bias).store(target.add((y * out + x) * GROUP + lane)) };
            }
        }
    }
}

/// Makes a row of factors of filters: their taps, the row, how many lie side by side, channels, the factors and the distance
/// of their matrices. Safe to call when the pointers cover what `filter_body` says and the machine has the instruction set.
pub(crate) type FilterTransform = unsafe fn(*const f32, usize, usize, usize, *mut f32, usize);
/// Transforms `GROUP` input tiles. Safe to call when the pointers cover what `input_body` and `output_body` say and
/// the machine has the instruction set.
pub(crate) type InputTransform = unsafe fn(*const f32, usize, *mut f32, usize);
/// Transforms `GROUP` tiles of products: planes, their distance, a bias, the outputs.
pub(crate) type OutputTransform = unsafe fn(*const f32, usize, f32, *mut f32);

macro_rules! entry_points {
    ($isa:ident, $lanes:ty $(, $feature:literal)?) => {
        mod $isa {
            use super::*;
            $(#[target_feature(enable = $feature)])?
            pub(super) unsafe fn filter<const TILE: usize>(
                s: *const f32,
                y: usize,
                r: usize,
                c: usize,
                t: *mut f32,
                ts: usize,
            ) {
                // SAFETY: passed on from the caller.
                unsafe { filter_body::<$lanes, TILE>(s, y, r, c, t, ts) };
            }
            $(#[target_feature(enable = $feature)])?
            pub(super) unsafe fn input<const TILE: usize>(s: *const f32, ss: usize, t: *mut f32, ts: usize) {
                // SAFETY: passed on from the caller.
                unsafe { input_body::<$lanes, TILE>(s, ss, t, ts) };
            }
            $(#[target_feature(enable = $feature)])?
            pub(super) unsafe fn output<const TILE: usize>(s: *const f32, ss: usize, bias: f32, t: *mut f32) {
                // SAFETY: passed on from the caller.
                unsafe { output_body::<$lanes, TILE>(s, ss, bias, t) };
            }
        }
    };
}

entry_points!(portable, Plain8);
#[cfg(target_arch = "x86_64")]
entry_points!(avx2, std::arch::x86_64::__m256, "avx2,fma");
#[cfg(target_arch = "x86_64")]
entry_points!(avx512, std::arch::x86_64::__m512, "avx512f");

/// The transforms for tiles of one size.
#[derive(Clone, Copy)]
pub(crate) struct Transforms {
    pub filter: FilterTransform,
    pub input: InputTransform,
    pub output: OutputTransform,
}

/// The transforms for tiles of this size, 4 or 6.
pub(crate) fn transforms(isa: Isa, tile: usize) -> Transforms {
    macro_rules! of {
        ($isa:ident, $tile:literal) => {
            Transforms { filter: $isa::filter::<$tile>, input: $isa::input::<$tile>, output: $isa::output::<$tile> }
        };
    }
    match (isa, tile) {
        (Isa::Portable, 4) => of!(portable, 4),
        (Isa::Portable, _) => of!(portable, 6),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, 4) => of!(avx2, 4),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, _) => of!(avx2, 6),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512 | Isa::Avx512Vnni, 4) => of!(avx512, 4),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512 | Isa::Avx512Vnni, _) => of!(avx512, 6),
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("Exec refuses what the machine lacks"),
    }
}

/// Part of a padded image row: the columns from `first` on, those outside `0..width` being zeros.
#[derive(Clone, Copy)]
pub(crate) struct PaddedRow<'a> {
    pub row: &'a [f32],
    pub first: isize,
}

impl PaddedRow<'_> {
    fn at(&self, column: usize) -> f32 {
        let column = self.first + column as isize;
        if column < 0 { 0.0 } else { self.row.get(column as usize).copied().unwrap_or(0.0) }
    }
}

/// Splits a row into the columns of its tiles: `planes[x * plane_stride + t] = row[t * (tile - 2) + x]` for `count`
/// tiles; up to `GROUP - 1` values behind them may be overwritten. Panics when `planes` is too short.
pub(crate) fn split_row(isa: Isa, tile: usize, row: PaddedRow, count: usize, planes: &mut [f32], plane_stride: usize) {
    assert!(planes.len() >= (tile - 1) * plane_stride + count.next_multiple_of(GROUP));
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instruction set; the planes have room for whole groups.
        Isa::Avx512 | Isa::Avx512Vnni => unsafe { x86::split_row(tile, row, count, planes.as_mut_ptr(), plane_stride) },
        _ => {
            for x in 0..tile {
                for (t, value) in planes[x * plane_stride..][..count].iter_mut().enumerate() {
                    *value = row.at(t * (tile - 2) + x);
                }
            }
        }
    }
}

/// Joins output columns to rows: `rows[y * row_stride + t * out + x] = values[(y * out + x) * GROUP + t]` for `GROUP`
/// tiles. Panics when a slice is too short.
pub(crate) fn join_rows(isa: Isa, tile: usize, values: &[f32], rows: &mut [f32], row_stride: usize) {
    let out = tile - 2;
    assert!(values.len() >= out * out * GROUP && rows.len() >= (out - 1) * row_stride + GROUP * out);
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instruction set; both slices are long enough.
        Isa::Avx512 | Isa::Avx512Vnni => unsafe {
            x86::join_rows(tile, values.as_ptr(), rows.as_mut_ptr(), row_stride);
        },
        _ => {
            for (y, values) in values.chunks_exact(out * GROUP).enumerate().take(out) {
                for (t, row) in rows[y * row_stride..][..GROUP * out].chunks_exact_mut(out).enumerate() {
                    for (x, value) in row.iter_mut().enumerate() {
                        *value = values[x * GROUP + t];
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{GROUP, PaddedRow};
    use std::arch::x86_64::*;

    /// Lanes of a vector that lie in `low..high`.
    fn mask_between(low: isize, high: isize) -> __mmask16 {
        let below = |end: isize| (1_u32 << end.clamp(0, 16)) - 1;
        (below(high) & !below(low)) as __mmask16
    }

    /// 16 columns from the `at`-th on.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(row: PaddedRow, at: usize) -> __m512 {
        let first = row.first + at as isize;
        let mask = mask_between(-first, row.row.len() as isize - first);
        // SAFETY: the mask keeps the load to the row.
        unsafe { _mm512_maskz_loadu_ps(mask, row.row.as_ptr().wrapping_offset(first)) }
    }

    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn split_row(tile: usize, row: PaddedRow, count: usize, planes: *mut f32, plane_stride: usize) {
        let lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        for t in (0..count).step_by(GROUP) {
            // SAFETY: the planes have room for whole groups; loads are masked.
            unsafe {
                let target = planes.add(t);
                if tile == 4 {
                    for shift in [0, 2] {
                        let (low, high) = (load(row, 2 * t + shift), load(row, 2 * t + shift + 16));
                        let even = _mm512_add_epi32(lane, lane);
                        let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
                        let target = target.add(shift * plane_stride);
                        _mm512_storeu_ps(target, _mm512_permutex2var_ps(low, even, high));
                        _mm512_storeu_ps(target.add(plane_stride), _mm512_permutex2var_ps(low, odd, high));
                    }
                    continue;
                }
                // Every fourth of 32 values, in both halves of the vector.
                let fourth = _mm512_and_epi32(_mm512_slli_epi32::<2>(lane), _mm512_set1_epi32(31));
                for shift in [0, 4] {
                    let at = 4 * t + shift;
                    let parts = [load(row, at), load(row, at + 16), load(row, at + 32), load(row, at + 48)];
                    for x in 0..(6 - shift).min(4) {
                        let index = _mm512_add_epi32(fourth, _mm512_set1_epi32(x as i32));
                        let low = _mm512_permutex2var_ps(parts[0], index, parts[1]);
                        let high = _mm512_permutex2var_ps(parts[2], index, parts[3]);
                        let value = _mm512_mask_blend_ps(0xff00, low, high);
                        _mm512_storeu_ps(target.add((shift + x) * plane_stride), value);
                    }
                }
            }
        }
    }

    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn join_rows(tile: usize, values: *const f32, rows: *mut f32, row_stride: usize) {
        // SAFETY: the caller's slices hold whole groups.
        unsafe {
            if tile == 4 {
                let index = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
                for y in 0..2 {
                    let even = _mm512_loadu_ps(values.add(2 * y * GROUP));
                    let odd = _mm512_loadu_ps(values.add((2 * y + 1) * GROUP));
                    let target = rows.add(y * row_stride);
                    _mm512_storeu_ps(target, _mm512_permutex2var_ps(even, index, odd));
                    let index = _mm512_add_epi32(index, _mm512_set1_epi32(8));
                    _mm512_storeu_ps(target.add(16), _mm512_permutex2var_ps(even, index, odd));
                }
                return;
            }
            for y in 0..4 {
                let [a, b, c, d] = [0, 1, 2, 3].map(|x| _mm512_loadu_ps(values.add((4 * y + x) * GROUP)));
                // Within each 128-bit lane a 4×4 transposition, then the same among the lanes.
                let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                let pair = |low: __m512, high: __m512| {
                    let (low, high) = (_mm512_castps_pd(low), _mm512_castps_pd(high));
                    (_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)), _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)))
                };
                let ((q0, q1), (q2, q3)) = (pair(ab_low, cd_low), pair(ab_high, cd_high));
                let low_01 = _mm512_shuffle_f32x4::<0x44>(q0, q1);
                let high_01 = _mm512_shuffle_f32x4::<0xee>(q0, q1);
                let low_23 = _mm512_shuffle_f32x4::<0x44>(q2, q3);
                let high_23 = _mm512_shuffle_f32x4::<0xee>(q2, q3);
                let target = rows.add(y * row_stride);
                _mm512_storeu_ps(target, _mm512_shuffle_f32x4::<0x88>(low_01, low_23));
                _mm512_storeu_ps(target.add(16), _mm512_shuffle_f32x4::<0xdd>(low_01, low_23));
                _mm512_storeu_ps(target.add(32), _mm512_shuffle_f32x4::<0x88>(high_01, high_23));
                _mm512_storeu_ps(target.add(48), _mm512_shuffle_f32x4::<0xdd>(high_01, high_23));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_made_in_a_run_are_those_made_before_it_but_for_rounding() {
        let (channels, rows) = (5, 11);
        let taps: Vec<f32> = (0..channels * 9 * rows + GROUP).map(|at| (at * 37 % 101) as f32 / 50.0 - 1.0).collect();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
            for tile in [4, 6] {
                let stride = channels * rows + GROUP;
                let mut made = vec![f32::NAN; tile * stride];
                for y in 0..tile {
                    let transform = transforms(isa, tile).filter;
                    // SAFETY: a group lies behind the taps and behind each matrix.
                    unsafe { transform(taps.as_ptr(), y, rows, channels, made.as_mut_ptr(), stride) };
                    for (channel, row) in (0..channels).flat_map(|channel| (0..rows).map(move |row| (channel, row))) {
                        let filter: Vec<f32> = (0..9).map(|tap| taps[(channel * 9 + tap) * rows + row]).collect();
                        transform_filter(tile, &filter, |factor, expected| {
                            let Some(x) = factor.checked_sub(y * tile).filter(|x| *x < tile) else { return };
                            let actual = made[x * stride + channel * rows + row];
                            assert!((actual - expected).abs() <= 5e-7, "{isa:?} {tile}: {actual}, not {expected}");
                        });
                    }
                }
            }
        }
    }

    #[test]
    fn rows_split_and_join_on_every_instruction_set() {
        let row: Vec<f32> = (1..=100).map(|index| index as f32).collect();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
            for (tile, first, count) in [(4, -1, 7), (6, -1, 25), (6, 3, 16), (4, 0, 16), (6, -5, 1), (6, 90, 5)] {
                let (out, stride) = (tile - 2, count + GROUP);
                let mut planes = vec![f32::NAN; tile * stride];
                split_row(isa, tile, PaddedRow { row: &row, first }, count, &mut planes, stride);
                for (x, t) in (0..tile).flat_map(|x| (0..count).map(move |t| (x, t))) {
                    let column = first + (t * out + x) as isize;
                    let expected = if (0..100).contains(&column) { (column + 1) as f32 } else { 0.0 };
                    assert_eq!(planes[x * stride + t], expected, "{isa:?} {tile} {first} at {x},{t}");
                }
            }
            for tile in [4, 6] {
                let out = tile - 2;
                let values: Vec<f32> = (0..out * out * GROUP).map(|index| index as f32).collect();
                let mut rows = vec![f32::NAN; out * GROUP * out];
                join_rows(isa, tile, &values, &mut rows, GROUP * out);
                for (index, value) in rows.iter().enumerate() {
                    let (y, t, x) = (index / (GROUP * out), index / out % GROUP, index % out);
                    assert_eq!(*value, ((y * out + x) * GROUP + t) as f32, "{isa:?} {tile} at {index}");
                }
            }
        }
    }
}
