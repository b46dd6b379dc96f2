//! f64 matrix products without packing: rare in models, so correct and vectorised rather than tuned.

use crate::isa::Exec;
use crate::simd::multiversion;

/// Columns of C summed together; they stay in registers.
const CHUNK: usize = 16;
/// The most successive additions of one accumulator (specs/compiler.md §10).
const K_BLOCK: usize = 256;
/// Products below which all work stays on one thread: about 20 µs.
const SPLIT_PRODUCTS: usize = 100_000;

/// A matrix of f64: element (row, column) is at `row * row_stride + column * column_stride`.
#[derive(Clone, Copy, Debug)]
pub struct MatrixF64<'a> {
    /// The elements.
    pub data: &'a [f64],
    /// From one row to the next.
    pub row_stride: usize,
    /// From one column to the next.
    pub column_stride: usize,
}

/// C = A·B, m × n, with the rows of C one after the other. Panics when a slice is too short.
pub fn gemm_f64(exec: Exec, m: usize, n: usize, k: usize, a: MatrixF64, b: MatrixF64, c: &mut [f64]) {
    let c = &mut c[..m * n];
    if c.is_empty() {
        return;
    }
    if m.saturating_mul(n).saturating_mul(k) < SPLIT_PRODUCTS {
        return c.chunks_mut(n).enumerate().for_each(|(row, target)| multiply_row(exec.isa(), row, k, a, b, target));
    }
    exec.pool().chunks_mut(c, n, |row, target| multiply_row(exec.isa(), row, k, a, b, target));
}

multiversion! {
    /// One row of C.
    fn multiply_row<F: MulAdd>(row: usize, k: usize, a: MatrixF64<'_>, b: MatrixF64<'_>, target: &mut [f64]) {
        for (chunk, target) in target.chunks_mut(CHUNK).enumerate() {
            let first = chunk * CHUNK;
            target.fill(0.0);
            for k_start in (0..k).step_by(K_BLOCK) {
                let mut sums = [0.0; CHUNK];
                for step in k_start..k.min(k_start + K_BLOCK) {
                    let factor = a.data[row * a.row_stride + step * a.column_stride];
                    let source = &b.data[step * b.row_stride + first * b.column_stride..];
                    match source.first_chunk::<CHUNK>() {
                        Some(source) if b.column_stride == 1 => {
                            for lane in 0..CHUNK {
                                sums[lane] += factor * source[lane];
                            }
                        }
                        _ => {
                            for (lane, sum) in sums.iter_mut().enumerate().take(target.len()) {
                                *sum += factor * source[lane * b.column_stride];
                            }
                        }
                    }
                }
                for (target, sum) in target.iter_mut().zip(sums) {
                    *target += sum;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::{Lcg, for_each_exec};

    #[test]
    fn products_match_plain_loops() {
        for (m, n, k) in [(0, 2, 2), (2, 2, 0), (1, 1, 1), (3, 17, 300), (20, 33, 9), (40, 50, 60)] {
            let mut lcg = Lcg::new(k as u64);
            let mut doubles = |len: usize| -> Vec<f64> { (0..len).map(|_| f64::from(lcg.float())).collect() };
            let (a, b) = (doubles(m * k), doubles(k * n));
            let transposed: Vec<f64> = (0..n * k).map(|index| b[index % k * n + index / k]).collect();
            let left = MatrixF64 { data: &a, row_stride: k, column_stride: 1 };
            let rights = [
                MatrixF64 { data: &b, row_stride: n, column_stride: 1 },
                MatrixF64 { data: &transposed, row_stride: 1, column_stride: k },
            ];
            for_each_exec(|exec| {
                for right in rights {
                    let mut c = vec![f64::NAN; m * n];
                    gemm_f64(*exec, m, n, k, left, right, &mut c);
                    for (index, actual) in c.iter().enumerate() {
                        let expected: f64 = (0..k).map(|step| a[index / n * k + step] * b[step * n + index % n]).sum();
                        assert!((actual - expected).abs() <= 1e-13 * (k as f64), "{m}x{n}x{k} at {index}");
                    }
                }
            });
        }
    }
}
