//! Tests of f32 GEMM against plain f64 loops, for every instruction set and several thread counts.

use super::*;
use crate::pool::ThreadPool;
use crate::test_data::Lcg;

/// Half a unit in the last place of 1.0, relative.
const U: f64 = 1.0 / 16_777_216.0;

fn supported() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_supported())
}

/// (value, tolerance) of each element of A·B by specs/compiler.md §10.
fn reference(m: usize, n: usize, k: usize, a: &[f32], b: &[f32]) -> Vec<(f64, f64)> {
    let element = |row: usize, column: usize| {
        let terms = (0..k).map(|step| f64::from(a[row * k + step]) * f64::from(b[step * n + column]));
        let (sum, squares) = terms.fold((0.0, 0.0), |(sum, squares), term| (sum + term, squares + term * term));
        let s = f64::sqrt(squares).max(f64::abs(sum));
        (sum, 2.0 * U * f64::abs(sum) + 4.0 * U * (k as f64).sqrt() * s)
    };
    (0..m * n).map(|index| element(index / n, index % n)).collect()
}

fn assert_near(actual: &[f32], expected: &[(f64, f64)], what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (index, (actual, (value, tolerance))) in actual.iter().zip(expected).enumerate() {
        let error = (f64::from(*actual) - value).abs();
        assert!(error <= *tolerance, "{what}: element {index} is {actual}, expected {value} ± {tolerance}");
    }
}

fn transposed(rows: usize, columns: usize, data: &[f32]) -> Vec<f32> {
    (0..rows * columns).map(|index| data[index % rows * columns + index / rows]).collect()
}

fn multiply(exec: Exec, m: usize, n: usize, k: usize, a: MatrixA, b: MatrixB, epilogue: &Epilogue) -> Vec<f32> {
    let scratch_len = gemm_scratch_len(exec.isa(), exec.threads(), m, n, k, a.packing(), b.packing());
    let mut c = vec![f32::NAN; m * n];
    gemm(exec, m, n, k, a, b, &mut c, n, epilogue, &mut vec![f32::NAN; scratch_len]);
    c
}

const SHAPES: [(usize, usize, usize); 26] = [
    (0, 3, 4),
    (3, 0, 4),
    (2, 3, 0),
    (1, 1, 1),
    (1, 17, 9),
    (2, 2, 2),
    (3, 15, 255),
    (4, 8, 256),
    (5, 9, 257),
    (6, 16, 31),
    (7, 17, 513),
    (8, 31, 64),
    (11, 32, 12),
    (12, 33, 7),
    (13, 63, 3),
    (14, 64, 100),
    (15, 65, 100),
    (16, 1, 300),
    (27, 5, 2),
    (28, 40, 20),
    (29, 257, 10),
    (43, 513, 40),
    (97, 130, 300),
    (350, 33, 5),
    (31, 600, 260),
    (200, 300, 64),
];

#[test]
fn products_match_plain_loops_for_every_layout() {
    for (m, n, k) in SHAPES {
        let mut lcg = Lcg::new((m * 31 + n * 7 + k) as u64);
        let (a, b) = (lcg.floats(m * k), lcg.floats(k * n));
        let (a_columns, b_columns) = (transposed(m, k, &a), transposed(k, n, &b));
        let expected = reference(m, n, k, &a, &b);
        for isa in supported() {
            let (a_packed, b_packed) = (
                pack_a(isa, m, k, MatrixA::Rows { data: &a, stride: k }),
                pack_b(isa, k, n, MatrixB::Columns { data: &b_columns, stride: k }),
            );
            let lefts = [
                MatrixA::Rows { data: &a, stride: k },
                MatrixA::Columns { data: &a_columns, stride: m },
                MatrixA::Packed(&a_packed),
            ];
            let rights = [
                MatrixB::Rows { data: &b, stride: n },
                MatrixB::Columns { data: &b_columns, stride: k },
                MatrixB::Packed(&b_packed),
            ];
            let mut first: Option<Vec<f32>> = None;
            for threads in [1, 2, 3, 4] {
                let pool = ThreadPool::new(threads);
                let exec = Exec::new(isa, &pool).unwrap();
                for (left, right) in lefts.iter().flat_map(|left| rights.iter().map(move |right| (left, right))) {
                    let c = multiply(exec, m, n, k, *left, *right, &Epilogue::default());
                    let what = format!("{isa:?} {m}x{n}x{k} on {threads} threads");
                    assert_near(&c, &expected, &what);
                    let first = first.get_or_insert_with(|| c.clone());
                    assert!(first.iter().zip(&c).all(|(x, y)| x.to_bits() == y.to_bits()), "{what}: other bits");
                }
            }
        }
    }
}

#[test]
fn the_rows_of_a_product_do_not_depend_on_their_number() {
    let (m, n, k) = (30, 70, 300);
    let mut lcg = Lcg::new(3);
    let (a, b) = (lcg.floats(m * k), lcg.floats(k * n));
    let pool = ThreadPool::new(2);
    for isa in supported() {
        let exec = Exec::new(isa, &pool).unwrap();
        let packed = pack_b(isa, k, n, MatrixB::Rows { data: &b, stride: n });
        let right = MatrixB::Packed(&packed);
        let whole = multiply(exec, m, n, k, MatrixA::Rows { data: &a, stride: k }, right, &Epilogue::default());
        for rows in 1..m {
            let part = multiply(exec, rows, n, k, MatrixA::Rows { data: &a, stride: k }, right, &Epilogue::default());
            assert_eq!(part, whole[..rows * n], "{isa:?} {rows} rows");
        }
    }
}

#[test]
fn long_sums_of_equal_terms_keep_the_tolerance() {
    let k = 20_000;
    let (a, b) = (vec![0.1; k], vec![0.3; k]);
    let expected = reference(1, 1, k, &a, &b);
    let pool = ThreadPool::new(1);
    for isa in supported() {
        let exec = Exec::new(isa, &pool).unwrap();
        let (a, b) = (MatrixA::Rows { data: &a, stride: k }, MatrixB::Rows { data: &b, stride: 1 });
        assert_near(&multiply(exec, 1, 1, k, a, b, &Epilogue::default()), &expected, isa.name());
    }
}

#[test]
fn epilogues_add_before_they_activate() {
    for (m, n, k) in [(5, 21, 3), (29, 70, 300), (2, 16, 0)] {
        let mut lcg = Lcg::new(k as u64);
        let (a, b) = (lcg.floats(m * k), lcg.floats(k * n));
        let (row_bias, column_bias, residual) = (lcg.floats(m), lcg.floats(n), lcg.floats(m * n));
        let pool = ThreadPool::new(2);
        for isa in supported() {
            let exec = Exec::new(isa, &pool).unwrap();
            let (left, right) = (MatrixA::Rows { data: &a, stride: k }, MatrixB::Rows { data: &b, stride: n });
            let plain = multiply(exec, m, n, k, left, right, &Epilogue::default());
            for bias in [Bias::None, Bias::Rows(&row_bias), Bias::Columns(&column_bias)] {
                for residual in [None, Some(&residual[..])] {
                    for activation in [Activation::None, Activation::Clamp { lo: -1.0, hi: 2.5 }, Activation::Silu] {
                        let epilogue = Epilogue { bias, residual, activation, ..Epilogue::default() };
                        let actual = multiply(exec, m, n, k, left, right, &epilogue);
                        for (index, actual) in actual.iter().enumerate() {
                            let added = match bias {
                                Bias::None => 0.0,
                                Bias::Rows(bias) => bias[index / n],
                                Bias::Columns(bias) => bias[index % n],
                            };
                            let sum = f64::from(plain[index] + added + residual.map_or(0.0, |values| values[index]));
                            let expected = match activation {
                                Activation::Clamp { lo, hi } => sum.clamp(f64::from(lo), f64::from(hi)),
                                Activation::Silu => sum / (1.0 + (-sum).exp()),
                                _ => sum,
                            };
                            let error = (f64::from(*actual) - expected).abs();
                            assert!(error <= 1e-6 * expected.abs().max(1.0), "{isa:?} {epilogue:?} at {index}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_nan_passes_relu() {
    let pool = ThreadPool::new(1);
    for isa in supported() {
        let exec = Exec::new(isa, &pool).unwrap();
        let (a, b) = ([f32::NAN, 0.0], vec![1.0; 40]);
        let epilogue = Epilogue { activation: Activation::Relu, ..Epilogue::default() };
        let (left, right) = (MatrixA::Rows { data: &a, stride: 1 }, MatrixB::Rows { data: &b, stride: 40 });
        let c = multiply(exec, 2, 40, 1, left, right, &epilogue);
        assert!(c[..40].iter().all(|value| value.is_nan()) && c[40..].iter().all(|value| *value == 0.0));
    }
}

#[test]
fn strides_leave_the_gaps_alone() {
    let (m, n, k) = (17, 35, 8);
    let mut lcg = Lcg::new(9);
    let (a, b) = (lcg.floats(m * 11), lcg.floats(k * 50));
    let tight_a: Vec<f32> = (0..m * k).map(|index| a[index / k * 11 + index % k]).collect();
    let tight_b: Vec<f32> = (0..k * n).map(|index| b[index / n * 50 + index % n]).collect();
    let expected = reference(m, n, k, &tight_a, &tight_b);
    let pool = ThreadPool::new(2);
    for isa in supported() {
        let exec = Exec::new(isa, &pool).unwrap();
        let (left, right) = (MatrixA::Rows { data: &a, stride: 11 }, MatrixB::Rows { data: &b, stride: 50 });
        let mut c = vec![-7.0; (m - 1) * 40 + n];
        let scratch_len = gemm_scratch_len(isa, 2, m, n, k, left.packing(), right.packing());
        gemm(exec, m, n, k, left, right, &mut c, 40, &Epilogue::default(), &mut vec![0.0; scratch_len]);
        for (row, values) in c.chunks(40).enumerate() {
            assert_near(&values[..n], &expected[row * n..(row + 1) * n], isa.name());
            assert!(values[n..].iter().all(|value| *value == -7.0));
        }
    }
}

#[test]
fn batches_match_single_products() {
    let (batch, m, n, k, alpha) = (5, 19, 37, 24, 0.125);
    let mut lcg = Lcg::new(11);
    let (a, b) = (lcg.floats(batch * m * k), lcg.floats(k * n));
    let b_columns = transposed(k, n, &b);
    for isa in supported() {
        for threads in [1, 2, 3] {
            let pool = ThreadPool::new(threads);
            let exec = Exec::new(isa, &pool).unwrap();
            let batched = BatchedGemm {
                batch,
                m,
                n,
                k,
                a: BatchedOperand { order: Order::Rows, stride: k, batch_stride: m * k },
                b: BatchedOperand { order: Order::Columns, stride: k, batch_stride: 0 },
                c_stride: n,
                c_batch_stride: m * n,
                alpha,
            };
            let mut c = vec![f32::NAN; batch * m * n];
            let mut scratch = vec![0.0; gemm_batched_scratch_len(isa, threads, &batched, Packing::Plain)];
            gemm_batched(exec, &batched, &a, BatchB::Plain(&b_columns), &mut c, &Epilogue::default(), &mut scratch);
            for (a, c) in a.chunks(m * k).zip(c.chunks(m * n)) {
                let expected: Vec<(f64, f64)> = reference(m, n, k, a, &b)
                    .iter()
                    .map(|(value, tolerance)| (value * f64::from(alpha), tolerance * f64::from(alpha)))
                    .collect();
                assert_near(c, &expected, isa.name());
            }
        }
    }
}

#[test]
fn a_packed_right_matrix_and_left_columns_in_place_give_the_same_bits() {
    // 8 columns are one tile without gaps, 40 are several tiles.
    for m in [8, 40] {
        let (batch, n, k) = (3, 24, 300);
        let mut lcg = Lcg::new(12);
        let (a, b) = (lcg.floats(batch * k * m), lcg.floats(k * n));
        for isa in supported() {
            let pool = ThreadPool::new(1);
            let exec = Exec::new(isa, &pool).unwrap();
            let batched = BatchedGemm {
                batch,
                m,
                n,
                k,
                a: BatchedOperand { order: Order::Columns, stride: m, batch_stride: m * k },
                b: BatchedOperand { order: Order::Rows, stride: n, batch_stride: 0 },
                c_stride: n,
                c_batch_stride: m * n,
                alpha: 1.0,
            };
            let packed = pack_b(isa, k, n, MatrixB::Rows { data: &b, stride: n });
            let run = |b: BatchB, packing: Packing| {
                let mut c = vec![f32::NAN; batch * m * n];
                let mut scratch = vec![0.0; gemm_batched_scratch_len(isa, 1, &batched, packing)];
                gemm_batched(exec, &batched, &a, b, &mut c, &Epilogue::default(), &mut scratch);
                c
            };
            let plain = run(BatchB::Plain(&b), Packing::Plain);
            assert_eq!(run(BatchB::Packed(&packed), Packing::Packed), plain, "{}", isa.name());
            for (a, c) in a.chunks(m * k).zip(plain.chunks(m * n)) {
                let a = transposed(k, m, a);
                assert_near(c, &reference(m, n, k, &a, &b), isa.name());
            }
        }
    }
}

#[test]
fn bf16_products_round_their_operands_and_nothing_else() {
    use crate::float16::{bf16_to_f32, f32_to_bf16};
    for (m, n, k) in [(1, 1, 1), (5, 21, 3), (29, 70, 300), (3, 33, 511), (40, 16, 64), (2, 16, 0)] {
        let mut lcg = Lcg::new(1 + k as u64);
        let (a, b) = (lcg.floats(m * k), lcg.floats(k * n));
        let rounded = |values: &[f32]| values.iter().map(|x| bf16_to_f32(f32_to_bf16(*x))).collect::<Vec<_>>();
        let expected = reference(m, n, k, &rounded(&a), &rounded(&b));
        let bias = lcg.floats(n);
        let mut first: Option<(Isa, Vec<f32>)> = None;
        for threads in [1, 2] {
            let pool = ThreadPool::new(threads);
            for isa in supported() {
                let exec = Exec::new(isa, &pool).unwrap();
                let (left, plain) = (MatrixA::Rows { data: &a, stride: k }, MatrixB::Rows { data: &b, stride: n });
                let (packed_a, packed_b) = (pack_a_words(isa, m, k, left), pack_b_words(isa, k, n, plain));
                for (left, right) in [
                    (left, MatrixB::Packed(&packed_b)),
                    (MatrixA::Packed(&packed_a), plain),
                    (MatrixA::Packed(&packed_a), MatrixB::Packed(&packed_b)),
                ] {
                    let arithmetic = Arithmetic::Bf16;
                    let (packs_a, packs_b) = (left.packing(), right.packing());
                    let len = gemm_scratch_len_in(arithmetic, isa, threads, [m, n, k], packs_a, packs_b);
                    let mut c = vec![f32::NAN; m * n];
                    let epilogue = Epilogue { bias: Bias::Columns(&bias), ..Epilogue::default() };
                    let mut scratch = vec![f32::NAN; len];
                    gemm_in(arithmetic, exec, [m, n, k], left, right, &mut c, n, &epilogue, &mut scratch);
                    let without_bias: Vec<f32> = c.iter().enumerate().map(|(at, c)| c - bias[at % n]).collect();
                    for (at, (c, (value, tolerance))) in without_bias.iter().zip(&expected).enumerate() {
                        let error = (f64::from(*c) - value).abs();
                        assert!(error <= tolerance + 1e-6, "{isa:?} {m}×{n}×{k} at {at}: {c} for {value}");
                    }
                    match &first {
                        Some((other, same)) if *other == isa => assert_eq!(&c, same, "bits of {isa:?}"),
                        _ => first = Some((isa, c)),
                    }
                }
            }
            first = None;
        }
    }
}

#[test]
fn b_packs_in_parts_as_it_packs_whole() {
    for (k, n) in [(7, 5), (33, 70), (64, 96), (1, 1), (5, 0)] {
        let b = Lcg::new(21).floats(k * n);
        let columns = transposed(k, n, &b);
        for isa in supported() {
            let whole = pack_b(isa, k, n, MatrixB::Rows { data: &b, stride: n });
            let mut by_rows = vec![f32::NAN; whole.len()];
            for (index, rows) in b.chunks((3 * n).max(1)).enumerate() {
                pack_b_rows(isa, k, n, 3 * index, rows, &mut by_rows);
            }
            assert_eq!(by_rows, whole, "{k}×{n} {}", isa.name());
            let mut by_columns = vec![f32::NAN; whole.len()];
            let width = panel_columns(isa);
            for (index, part) in columns.chunks(2 * width * k).enumerate() {
                pack_b_columns(isa, k, 2 * width * index, part, &mut by_columns);
            }
            assert_eq!(by_columns, whole, "{k}×{n} {}", isa.name());
        }
    }
}
