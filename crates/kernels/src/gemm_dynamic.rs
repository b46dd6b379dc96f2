//! Rows of floats times 8-bit weights: every row is quantised to u8 by its own extremes, multiplied with signed bytes in
//! i32 and scaled back by the row's scale and the column's. Rows do not depend on one another.

use crate::arena::view_mut;
use crate::epilogue::{Bias, Epilogue, add_residual};
use crate::gemm_int::{GemmInt, ZeroPoints, drive, gemm_int_scratch_len};
use crate::isa::{Exec, Isa};
use crate::pool::SharedMut;
use crate::quantize::{quantize_slice_u8, range_of, round_half_even, saturate};
use crate::simd::{multiversion, rows_per_task};

/// Largest u8.
const MOST: f32 = 255.0;

/// The operands of a product of `[m, k]` floats and `[k, n]` bytes.
#[derive(Clone, Copy)]
pub struct GemmDynamic<'a> {
    /// Rows of A.
    pub m: usize,
    /// Columns of B.
    pub n: usize,
    /// Columns of A and rows of B.
    pub k: usize,
    /// A, dense and row-major.
    pub a: &'a [f32],
    /// B as `pack_b_int` left it.
    pub packed_b: &'a [u8],
    /// Whether the bytes of B were i8.
    pub is_b_signed: bool,
    /// Zero points of B: one, or one a column.
    pub b_zero: ZeroPoints<'a>,
    /// The scale of each column of B.
    pub scales: &'a [f32],
}

/// Bytes of scratch for a product with these sizes: scales and zero points of the rows, the rows, and what the integer
/// product needs of them.
pub fn gemm_dynamic_scratch_len(m: usize, k: usize) -> usize {
    m * (size_of::<f32>() + size_of::<i32>() + k) + gemm_int_scratch_len(m, k, false)
}

/// Writes the product, with its epilogue, densely to `c`.
pub fn gemm_dynamic(exec: &Exec, gemm: &GemmDynamic, epilogue: &Epilogue, c: &mut [f32], scratch: &mut [u8]) {
    let &GemmDynamic { m, n, k, a, packed_b, is_b_signed, b_zero, scales } = gemm;
    assert_eq!(a.len(), m * k, "elements of A");
    assert_eq!(c.len(), m * n, "elements of the result");
    assert_eq!(scales.len(), n, "scales of the columns");
    assert!(scratch.len() >= gemm_dynamic_scratch_len(m, k), "bytes of scratch");
    assert!(epilogue.residual.is_none_or(|residual| residual.len() == c.len()), "elements of the residual");
    let bias = match epilogue.bias {
        Bias::None => None,
        Bias::Columns(bias) => Some(bias),
        Bias::Rows(_) => panic!("a product has a bias a column"),
    };
    assert!(bias.is_none_or(|bias| bias.len() == n), "length of the bias");
    let (row_scales, scratch) = scratch.split_at_mut(m * size_of::<f32>());
    let (row_zeros, scratch) = scratch.split_at_mut(m * size_of::<i32>());
    let (bytes, scratch) = scratch.split_at_mut(m * k);
    let row_scales: &mut [f32] = view_mut(row_scales).expect("scratch is aligned");
    let row_zeros: &mut [i32] = view_mut(row_zeros).expect("scratch is aligned");
    quantize_rows(exec, m, k, a, row_scales, row_zeros, bytes);
    let a_zero = ZeroPoints::Each(row_zeros);
    let product = GemmInt { m, n, k, a: bytes, is_a_signed: false, a_zero, packed_b, is_b_signed, b_zero };
    let shared = SharedMut::new(c);
    drive(exec, &product, scratch, &|row, column, values| {
        let start = row * n + column;
        // SAFETY: `drive` gives each element of the result once.
        let target = unsafe { shared.slice(start, values.len()) };
        let columns = column..column + values.len();
        scale_columns(exec.isa(), values, row_scales[row], &scales[columns.clone()], target);
        if let Some(bias) = bias {
            add_residual(exec.isa(), &bias[columns], target);
        }
        epilogue.end_row(exec.isa(), start, target);
    });
}

/// Quantises each row of `a` by its own extremes, between which 0 always lies.
fn quantize_rows(exec: &Exec, m: usize, k: usize, a: &[f32], scales: &mut [f32], zeros: &mut [i32], bytes: &mut [u8]) {
    let rows = rows_per_task(m, k, 4);
    let (scales, zeros, bytes) = (SharedMut::new(scales), SharedMut::new(zeros), SharedMut::new(bytes));
    exec.pool().run(m.div_ceil(rows), &|task| {
        for row in task * rows..((task + 1) * rows).min(m) {
            let source = &a[row * k..][..k];
            let (scale, zero) = row_parameters(exec.isa(), source);
            // SAFETY: each row is done once, and its place in the three buffers is its own.
            let own_scale = unsafe { scales.slice(row, 1) };
            // SAFETY: as above.
            let own_zero = unsafe { zeros.slice(row, 1) };
            // SAFETY: as above.
            let own_bytes = unsafe { bytes.slice(row * k, k) };
            (own_scale[0], own_zero[0]) = (scale, zero as i32);
            quantize_slice_u8(exec.isa(), source, scale, zero, own_bytes);
        }
    });
}

/// Each row of `k` floats rounded to the levels that it would be quantised to.
pub(crate) fn round_rows(isa: Isa, k: usize, rows: &[f32], rounded: &mut [f32]) {
    for (row, rounded) in rows.chunks(k.max(1)).zip(rounded.chunks_mut(k.max(1))) {
        let (scale, zero) = row_parameters(isa, row);
        if scale == 0.0 {
            rounded.copy_from_slice(row);
        } else {
            round_slice(isa, row, scale, zero, rounded);
        }
    }
}

/// Scale and zero point of a row. A row that is not finite has a scale that is not, and so a result that is not.
pub(crate) fn row_parameters(isa: Isa, row: &[f32]) -> (f32, f32) {
    let (low, high) = if row.is_empty() { (0.0, 0.0) } else { range_of(isa, row) };
    // A NaN stays: `min` and `max` of the standard library would drop it.
    let (low, high) = (if low > 0.0 { 0.0 } else { low }, if high < 0.0 { 0.0 } else { high });
    let scale = (high - low) / MOST;
    let zero = (-(low / scale)).clamp(0.0, MOST).round_ties_even();
    (scale, if zero.is_nan() { 0.0 } else { zero })
}

multiversion! {
    /// As quantised with this scale and zero point and back.
    fn round_slice<F: MulAdd>(row: &[f32], scale: f32, zero: f32, rounded: &mut [f32]) {
        for (y, &x) in rounded.iter_mut().zip(row) {
            *y = (saturate(round_half_even(x / scale) + zero, 0.0, MOST) as f32 - zero) * scale;
        }
    }

    /// `value · row scale · column scale` as floats.
    fn scale_columns<F: MulAdd>(values: &[i32], row_scale: f32, scales: &[f32], target: &mut [f32]) {
        for ((y, &x), &scale) in target.iter_mut().zip(values).zip(scales) {
            *y = x as f32 * row_scale * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::Activation;
    use crate::gemm_int::pack_b_int;
    use crate::test_data::{Lcg, for_each_exec};

    /// The same in plain loops; `byte` is the value of a byte of B in a column.
    fn expected(
        [m, n, k]: [usize; 3],
        a: &[f32],
        b: &[u8],
        byte: impl Fn(u8, usize) -> i32,
        scales: &[f32],
    ) -> Vec<f32> {
        let mut c = Vec::new();
        for row in a.chunks(k).take(m) {
            let (low, high) = row.iter().fold((0.0_f32, 0.0_f32), |(low, high), &x| (low.min(x), high.max(x)));
            let scale = (high - low) / 255.0;
            let zero = (-low / scale).round_ties_even();
            let level = |x: f32| ((x / scale).round_ties_even() + zero).clamp(0.0, 255.0) - zero;
            for column in 0..n {
                let sum: f32 = (0..k).map(|l| level(row[l]) * byte(b[l * n + column], column) as f32).sum();
                c.push(if scale == 0.0 { 0.0 } else { sum * scale * scales[column] });
            }
        }
        c
    }

    #[test]
    fn rows_are_quantised_one_by_one() {
        let mut lcg = Lcg::new(7);
        for (m, n, k) in [(1, 1, 1), (3, 17, 5), (7, 70, 64), (13, 33, 30), (100, 16, 12)] {
            let mut a = lcg.floats(m * k);
            // Rows of very different size, and one of zeros.
            a.chunks_mut(k).enumerate().for_each(|(row, x)| x.iter_mut().for_each(|x| *x *= (row * row) as f32));
            let b = lcg.bytes(k * n);
            let scales: Vec<f32> = (0..n).map(|_| lcg.float().abs() + 0.01).collect();
            let zeros: Vec<i32> = (0..n as i32).map(|column| column % 7).collect();
            for (is_b_signed, b_zero) in [(true, ZeroPoints::Scalar(0)), (false, ZeroPoints::Each(&zeros))] {
                let packed_b = pack_b_int(k, n, &b, is_b_signed, false);
                let byte = |byte: u8, column: usize| match is_b_signed {
                    true => i32::from(byte as i8),
                    false => i32::from(byte) - zeros[column],
                };
                let expected = expected([m, n, k], &a, &b, byte, &scales);
                for_each_exec(|exec| {
                    let gemm =
                        GemmDynamic { m, n, k, a: &a, packed_b: &packed_b, is_b_signed, b_zero, scales: &scales };
                    let mut c = vec![f32::NAN; m * n];
                    let mut words = vec![0_u64; gemm_dynamic_scratch_len(m, k).div_ceil(8)];
                    gemm_dynamic(exec, &gemm, &Epilogue::default(), &mut c, bytes_of(&mut words));
                    assert_eq!(c, expected, "{m}x{n}x{k}");
                });
            }
        }
    }

    /// A product with signed bytes [4, 2] without zero points.
    fn signed<'a>(m: usize, a: &'a [f32], packed_b: &'a [u8]) -> GemmDynamic<'a> {
        let b_zero = ZeroPoints::Scalar(0);
        GemmDynamic { m, n: 2, k: 4, a, packed_b, is_b_signed: true, b_zero, scales: &[1.0, 2.0] }
    }

    #[test]
    fn a_row_that_is_not_finite_spoils_only_itself() {
        let packed_b = pack_b_int(4, 2, &[1, 255, 2, 3, 4, 5, 6, 7], true, false);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let a = [1.0, -2.0, 3.0, 0.5, 1.0, bad, 3.0, 0.5, 1.0, -2.0, 3.0, 0.5];
            for_each_exec(|exec| {
                let gemm = signed(3, &a, &packed_b);
                let mut c = [0.0; 6];
                let mut words = [0_u64; 8];
                gemm_dynamic(exec, &gemm, &Epilogue::default(), &mut c, bytes_of(&mut words));
                assert!(c[..2].iter().all(|x| x.is_finite()) && c[..2] == c[4..], "{c:?}");
                assert!(c[2..4].iter().all(|x| !x.is_finite()), "{c:?}");
            });
        }
    }

    #[test]
    fn an_epilogue_comes_after_the_scales() {
        let packed_b = pack_b_int(4, 2, &[1, 255, 2, 3, 4, 5, 6, 7], true, false);
        let a = [255.0, 0.0, 1.0, 2.0];
        for_each_exec(|exec| {
            let gemm = signed(1, &a, &packed_b);
            let bias = Bias::Columns(&[10.0, 20.0]);
            let epilogue =
                Epilogue { bias, residual: Some(&[1.0, 2.0]), activation: Activation::Relu, ..Epilogue::default() };
            let mut c = [0.0; 2];
            let mut words = [0_u64; 4];
            gemm_dynamic(exec, &gemm, &epilogue, &mut c, bytes_of(&mut words));
            assert_eq!(c, [255.0 + 4.0 + 12.0 + 11.0, 0.0]);
        });
    }

    fn bytes_of(words: &mut [u64]) -> &mut [u8] {
        // SAFETY: plain bytes of the same memory, borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), std::mem::size_of_val(words)) }
    }
}
