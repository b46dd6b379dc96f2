//! Between floats and 8-bit integers: `y = saturate(round_half_even(x / scale) + zero)` and back.
//!
//! Tensors are seen as `[outer, axis, inner]` where the parameters change along `axis`: one value for the whole tensor
//! is an axis of 1, blocked parameters are an axis of as many blocks with the block as part of `inner`.

use crate::gemm_int::Scales;
use crate::isa::Exec;
use crate::math;
use crate::row_sum::combine;
use crate::simd::{multiversion, rows_per_task};

/// Parts of a tensor whose range is looked for at the same time; a fixed number, kept on the stack.
const RANGE_PARTS: usize = 64;

/// A tensor whose parameters change along the middle axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantizeShape {
    /// Slices before the axis.
    pub outer: usize,
    /// How many parameters there are.
    pub axis: usize,
    /// Neighbouring elements that share a parameter.
    pub inner: usize,
}

impl QuantizeShape {
    /// One parameter for `len` elements.
    pub fn whole(len: usize) -> QuantizeShape {
        QuantizeShape { outer: 1, axis: 1, inner: len }
    }

    fn check(self, src_len: usize, dst_len: usize, scales: usize, zeros: usize) {
        let len = self.outer * self.axis * self.inner;
        assert_eq!(src_len, len, "elements of the source");
        assert_eq!(dst_len, len, "elements of the target");
        assert_eq!(scales, self.axis, "number of scales");
        assert!(zeros == 0 || zeros == self.axis, "{zeros} zero points, expected none or {}", self.axis);
    }
}

/// The scale and zero point of `dynamic_quantize`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantizeParameters {
    /// Distance between two levels.
    pub scale: f32,
    /// The level of 0.
    pub zero: u8,
}

/// Quantises to u8 with a scale and zero point from the range of the data, which always includes 0.
pub fn dynamic_quantize(exec: &Exec, src: &[f32], dst: &mut [u8]) -> QuantizeParameters {
    let (low, high) = range(exec, src);
    let scale = (high.max(0.0) - low.min(0.0)) / 255.0;
    // All zeros: any scale gives the same bytes; 1 keeps the division away from 0/0.
    let scale = if scale == 0.0 { 1.0 } else { scale };
    let zero = (-low.min(0.0) / scale).clamp(0.0, 255.0).round_ties_even() as u8;
    quantize_u8(exec, QuantizeShape::whole(src.len()), src, &[scale], &[zero], dst);
    QuantizeParameters { scale, zero }
}

/// Floats to u8. Without zero points they are 0.
pub fn quantize_u8(exec: &Exec, shape: QuantizeShape, src: &[f32], scales: &[f32], zeros: &[u8], dst: &mut [u8]) {
    shape.check(src.len(), dst.len(), scales.len(), zeros.len());
    for_each_slice(exec, shape, dst, |parameter, start, dst| {
        let zero = zeros.get(parameter).copied().unwrap_or(0);
        quantize_slice_u8(exec.isa(), &src[start..][..dst.len()], scales[parameter], f32::from(zero), dst);
    });
}

/// Floats to i8. Without zero points they are 0.
pub fn quantize_i8(exec: &Exec, shape: QuantizeShape, src: &[f32], scales: &[f32], zeros: &[i8], dst: &mut [i8]) {
    shape.check(src.len(), dst.len(), scales.len(), zeros.len());
    for_each_slice(exec, shape, dst, |parameter, start, dst| {
        let zero = zeros.get(parameter).copied().unwrap_or(0);
        quantize_slice_i8(exec.isa(), &src[start..][..dst.len()], scales[parameter], f32::from(zero), dst);
    });
}

/// u8 to floats: `(x - zero) · scale`.
pub fn dequantize_u8(exec: &Exec, shape: QuantizeShape, src: &[u8], scales: &[f32], zeros: &[u8], dst: &mut [f32]) {
    shape.check(src.len(), dst.len(), scales.len(), zeros.len());
    for_each_slice(exec, shape, dst, |parameter, start, dst| {
        let zero = i32::from(zeros.get(parameter).copied().unwrap_or(0));
        dequantize_slice_u8(exec.isa(), &src[start..][..dst.len()], scales[parameter], zero, dst);
    });
}

/// i8 to floats: `(x - zero) · scale`.
pub fn dequantize_i8(exec: &Exec, shape: QuantizeShape, src: &[i8], scales: &[f32], zeros: &[i8], dst: &mut [f32]) {
    shape.check(src.len(), dst.len(), scales.len(), zeros.len());
    for_each_slice(exec, shape, dst, |parameter, start, dst| {
        let zero = i32::from(zeros.get(parameter).copied().unwrap_or(0));
        dequantize_slice_i8(exec.isa(), &src[start..][..dst.len()], scales[parameter], zero, dst);
    });
}

/// i32 to floats: `(x - zero) · scale`.
pub fn dequantize_i32(exec: &Exec, shape: QuantizeShape, src: &[i32], scales: &[f32], zeros: &[i32], dst: &mut [f32]) {
    shape.check(src.len(), dst.len(), scales.len(), zeros.len());
    for_each_slice(exec, shape, dst, |parameter, start, dst| {
        let zero = zeros.get(parameter).copied().unwrap_or(0);
        dequantize_slice_i32(exec.isa(), &src[start..][..dst.len()], scales[parameter], zero, dst);
    });
}

/// Sums of products back to bytes: `saturate(round_half_even(x · scale) + zero)` with a scale for each column of
/// `[rows, cols]`. The bytes are i8 if `is_signed`.
pub fn requantize(
    exec: &Exec,
    rows: usize,
    cols: usize,
    src: &[i32],
    scales: Scales,
    zero: i32,
    is_signed: bool,
    dst: &mut [u8],
) {
    assert_eq!(src.len(), rows * cols, "elements of the source");
    assert_eq!(dst.len(), rows * cols, "elements of the target");
    if let Scales::Each(scales) = scales {
        assert_eq!(scales.len(), cols, "number of scales");
    }
    if cols == 0 {
        return;
    }
    let (low, high) = if is_signed { (-128.0, 127.0) } else { (0.0, 255.0) };
    let task_len = rows_per_task(rows, cols, 2) * cols;
    exec.pool().chunks_mut(dst, task_len, |task, dst| {
        let src = &src[task * task_len..][..dst.len()];
        for (x, y) in src.chunks_exact(cols).zip(dst.chunks_exact_mut(cols)) {
            requantize_row(exec.isa(), x, scales, zero as f32, low, high, y);
        }
    });
}

/// The smallest and the largest element; NaN if one is, 0 and 0 without elements.
pub fn range(exec: &Exec, src: &[f32]) -> (f32, f32) {
    if src.is_empty() {
        return (0.0, 0.0);
    }
    let part_len = src.len().div_ceil(RANGE_PARTS).max(4096);
    let mut parts = [(f32::INFINITY, f32::NEG_INFINITY); RANGE_PARTS];
    let part_count = src.len().div_ceil(part_len);
    exec.pool().chunks_mut(&mut parts[..part_count], 1, |part, range| {
        let start = part * part_len;
        range[0] = range_of(exec.isa(), &src[start..(start + part_len).min(src.len())]);
    });
    let join = |a: (f32, f32), b: &(f32, f32)| (math::minimum(a.0, b.0), math::maximum(a.1, b.1));
    parts.iter().fold((f32::INFINITY, f32::NEG_INFINITY), join)
}

/// Calls `body(parameter, start, piece)` for pieces of `dst` that share a parameter.
fn for_each_slice<T: Send>(
    exec: &Exec,
    shape: QuantizeShape,
    dst: &mut [T],
    body: impl Fn(usize, usize, &mut [T]) + Sync,
) {
    let QuantizeShape { axis, inner, .. } = shape;
    if dst.is_empty() {
        return;
    }
    // Long slices are cut, short ones are done several to a task.
    let piece_len = rows_per_task(dst.len(), 1, 1).max(1);
    exec.pool().chunks_mut(dst, piece_len, |task, mut dst| {
        let mut start = task * piece_len;
        while !dst.is_empty() {
            let to_slice_end = inner - start % inner;
            let (piece, rest) = dst.split_at_mut(to_slice_end.min(dst.len()));
            let piece_len = piece.len();
            body(start / inner % axis, start, piece);
            start += piece_len;
            dst = rest;
        }
    });
}

multiversion! {
    pub(crate) fn range_of<F: MulAdd>(row: &[f32]) -> (f32, f32) {
        (combine(row, f32::INFINITY, math::minimum), combine(row, f32::NEG_INFINITY, math::maximum))
    }

    pub(crate) fn quantize_slice_u8<F: MulAdd>(src: &[f32], scale: f32, zero: f32, dst: &mut [u8]) {
        for (y, &x) in dst.iter_mut().zip(src) {
            *y = saturate(round_half_even(x / scale) + zero, 0.0, 255.0) as u8;
        }
    }

    fn quantize_slice_i8<F: MulAdd>(src: &[f32], scale: f32, zero: f32, dst: &mut [i8]) {
        for (y, &x) in dst.iter_mut().zip(src) {
            *y = saturate(round_half_even(x / scale) + zero, -128.0, 127.0) as i8;
        }
    }

    fn dequantize_slice_u8<F: MulAdd>(src: &[u8], scale: f32, zero: i32, dst: &mut [f32]) {
        for (y, &x) in dst.iter_mut().zip(src) {
            *y = (i32::from(x) - zero) as f32 * scale;
        }
    }

    fn dequantize_slice_i8<F: MulAdd>(src: &[i8], scale: f32, zero: i32, dst: &mut [f32]) {
        for (y, &x) in dst.iter_mut().zip(src) {
            *y = (i32::from(x) - zero) as f32 * scale;
        }
    }

    fn dequantize_slice_i32<F: MulAdd>(src: &[i32], scale: f32, zero: i32, dst: &mut [f32]) {
        if zero == 0 {
            for (y, &x) in dst.iter_mut().zip(src) {
                *y = x as f32 * scale;
            }
            return;
        }
        // The difference of two i32 needs 33 bits.
        for (y, &x) in dst.iter_mut().zip(src) {
            *y = (i64::from(x) - i64::from(zero)) as f32 * scale;
        }
    }

    fn requantize_row<F: MulAdd>(src: &[i32], scales: Scales, zero: f32, low: f32, high: f32, dst: &mut [u8]) {
        let level = |x: i32, scale: f32| saturate(round_half_even(x as f32 * scale) + zero, low, high) as u8;
        match scales {
            Scales::Scalar(scale) => {
                for (y, &x) in dst.iter_mut().zip(src) {
                    *y = level(x, scale);
                }
            }
            Scales::Each(scales) => {
                for ((y, &x), &scale) in dst.iter_mut().zip(src).zip(scales) {
                    *y = level(x, scale);
                }
            }
        }
    }
}

/// The nearest integer, 0 for NaN; exact for what fits 8 bits, and anything beyond saturates anyway. Faster than
/// `round_ties_even` where that is a call.
#[inline(always)]
pub(crate) fn round_half_even(x: f32) -> f32 {
    /// 1.5 · 2^23.
    const MAGIC: f32 = 12_582_912.0;
    let x = math::clamp(if x.is_nan() { 0.0 } else { x }, -1e6, 1e6);
    (x + MAGIC) - MAGIC
}

/// An integer in range; a NaN becomes the lowest.
#[inline(always)]
pub(crate) fn saturate(x: f32, low: f32, high: f32) -> i32 {
    let x = if x > low { x } else { low };
    let x = if x < high { x } else { high };
    // SAFETY: between -128 and 255 after the comparisons, which a NaN fails.
    unsafe { x.to_int_unchecked::<i32>() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::{Lcg, for_each_exec};

    fn level(x: f32, scale: f32, zero: i32, low: i32, high: i32) -> i32 {
        ((f64::from(x / scale).round_ties_even() + f64::from(zero)).clamp(low.into(), high.into())) as i32
    }

    #[test]
    fn levels_round_half_to_even_and_saturate() {
        let src = [0.5, 1.5, 2.5, -0.5, -1.5, 300.0, -300.0, f32::INFINITY, f32::NEG_INFINITY, 1e30];
        for_each_exec(|exec| {
            let shape = QuantizeShape::whole(src.len());
            let mut bytes = [9; 10];
            quantize_u8(exec, shape, &src, &[1.0], &[], &mut bytes);
            assert_eq!(bytes, [0, 2, 2, 0, 0, 255, 0, 255, 0, 255]);
            let mut signed = [9; 10];
            quantize_i8(exec, shape, &src, &[1.0], &[-1], &mut signed);
            assert_eq!(signed, [-1, 1, 1, -1, -3, 127, -128, 127, -128, 127]);
        });
    }

    #[test]
    fn nan_becomes_the_zero_point() {
        for_each_exec(|exec| {
            let mut bytes = [9; 2];
            quantize_u8(exec, QuantizeShape::whole(2), &[f32::NAN, 0.0], &[0.0], &[7], &mut bytes);
            assert_eq!(bytes, [7, 7]);
        });
    }

    #[test]
    fn differences_of_i32_do_not_wrap() {
        for_each_exec(|exec| {
            let mut back = [0.0; 2];
            dequantize_i32(exec, QuantizeShape::whole(2), &[i32::MIN, i32::MAX], &[0.5], &[i32::MAX], &mut back);
            assert_eq!(back, [-2147483648.0, 0.0]);
        });
    }

    #[test]
    fn parameters_follow_the_axis() {
        let mut lcg = Lcg::new(41);
        for (outer, axis, inner) in [(1, 1, 50_001), (3, 5, 7), (2, 4000, 1), (4, 3, 9000), (0, 2, 2), (2, 2, 0)] {
            let shape = QuantizeShape { outer, axis, inner };
            let src: Vec<f32> = lcg.floats(outer * axis * inner).iter().map(|x| x * 40.0).collect();
            let scales: Vec<f32> = (0..axis).map(|_| lcg.float().abs() + 0.1).collect();
            let zeros = lcg.bytes(axis);
            let signed_zeros: Vec<i8> = zeros.iter().map(|&zero| zero as i8).collect();
            let at = |index: usize| index / inner % axis;
            for_each_exec(|exec| {
                let mut bytes = vec![0; src.len()];
                quantize_u8(exec, shape, &src, &scales, &zeros, &mut bytes);
                for (index, &byte) in bytes.iter().enumerate() {
                    let p = at(index);
                    assert_eq!(i32::from(byte), level(src[index], scales[p], zeros[p].into(), 0, 255));
                }
                let mut back = vec![0.0; src.len()];
                dequantize_u8(exec, shape, &bytes, &scales, &zeros, &mut back);
                for (index, &x) in back.iter().enumerate() {
                    let p = at(index);
                    assert_eq!(x, (i32::from(bytes[index]) - i32::from(zeros[p])) as f32 * scales[p]);
                }
                let mut signed = vec![0; src.len()];
                quantize_i8(exec, shape, &src, &scales, &signed_zeros, &mut signed);
                for (index, &byte) in signed.iter().enumerate() {
                    let p = at(index);
                    assert_eq!(i32::from(byte), level(src[index], scales[p], signed_zeros[p].into(), -128, 127));
                }
                dequantize_i8(exec, shape, &signed, &scales, &[], &mut back);
                for (index, &x) in back.iter().enumerate() {
                    assert_eq!(x, f32::from(signed[index]) * scales[at(index)]);
                }
                let wide: Vec<i32> = signed.iter().map(|&x| i32::from(x) * 100_000).collect();
                dequantize_i32(exec, shape, &wide, &scales, &vec![7; axis], &mut back);
                for (index, &x) in back.iter().enumerate() {
                    assert_eq!(x, (wide[index] - 7) as f32 * scales[at(index)]);
                }
            });
        }
    }

    #[test]
    fn dynamic_ranges_include_zero() {
        for_each_exec(|exec| {
            let mut dst = [0; 6];
            let found = dynamic_quantize(exec, &[0.0, 2.0, -3.0, -2.5, 1.34, 0.5], &mut dst);
            assert_eq!(found, QuantizeParameters { scale: 5.0 / 255.0, zero: 153 });
            assert_eq!(dst, [153, 255, 0, 26, 221, 179]);
            let found = dynamic_quantize(exec, &[1.0, 2.1, 1.3, 2.5, 3.34, 4.0], &mut dst);
            assert_eq!(found, QuantizeParameters { scale: 4.0 / 255.0, zero: 0 });
            assert_eq!(dst, [64, 134, 83, 159, 213, 255]);
            let found = dynamic_quantize(exec, &[0.0; 6], &mut dst);
            assert_eq!((found.zero, dst), (0, [0; 6]));
            assert_eq!(dynamic_quantize(exec, &[], &mut []).zero, 0);
            let long: Vec<f32> = (0..100_000).map(|x| x as f32 - 3.0).collect();
            assert_eq!(range(exec, &long), (-3.0, 99_996.0));
        });
    }

    #[test]
    fn sums_go_back_to_bytes() {
        for_each_exec(|exec| {
            let src = [100, -100, 3, 1000, -1000, 5];
            let mut dst = [0; 6];
            requantize(exec, 2, 3, &src, Scales::Each(&[0.5, 0.1, 0.5]), 10, false, &mut dst);
            assert_eq!(dst, [60, 0, 12, 255, 0, 12]);
            requantize(exec, 2, 3, &src, Scales::Scalar(0.1), -10, true, &mut dst);
            assert_eq!(dst.map(|x| x as i8), [0, -20, -10, 90, -110, -10]);
        });
    }
}
