//! Products by digits against a plain loop over the same integers, bit by bit, and against f64 within what f32 loses.

use super::*;
use crate::epilogue::{Activation, Bias};
use crate::gemm_blocks::tests::Case;
use crate::pool::ThreadPool;
use crate::test_data::Lcg;

/// Calls `body` with pools of one thread and of three, where this machine multiplies bytes.
fn for_each_exec(mut body: impl FnMut(&Exec)) {
    for threads in [1, 3] {
        let pool = ThreadPool::new(threads);
        if let Some(exec) = Exec::new(Isa::Avx512Vnni, &pool) {
            body(&exec);
        }
    }
}

impl Case {
    fn run_on_digits(&self, exec: &Exec, m: usize, x: &[f32], epilogue: &Epilogue) -> Vec<f32> {
        let mut c = vec![f32::NAN; m * self.weights.n];
        let mut scratch = vec![u32::MAX; gemm_blocks_digits_scratch_len(exec.threads(), &self.weights, m)];
        gemm_blocks_digits(*exec, &self.weights, m, x, &self.packed, epilogue, &mut c, &mut scratch);
        c
    }

    /// One element by the definition: spans become integers, which are multiplied and summed exactly, and then in f32.
    fn product_of_digits(&self, x: &[f32], column: usize) -> f32 {
        let weights = &self.weights;
        let middle = if weights.code.bits() == 4 { 8 } else { i64::from(weights.code.origin()) };
        let mut total = 0.0_f32;
        for (at, values) in x.chunks(SPAN).enumerate() {
            let largest = values.iter().fold(0, |largest, value| largest.max(value.to_bits() & 0x7fff_ffff));
            let (unit, factor) = unit_and_factor(largest);
            let (unit, factor) = (f32::from_bits(unit.wrapping_add(1.0_f32.to_bits())), f32::from_bits(factor));
            let limit = i64::from(MIDDLE) - 1;
            let integer = |value: &f32| ((value * factor).round_ties_even() as i64).clamp(-limit, limit);
            let integers: Vec<i64> = values.iter().map(integer).collect();
            let block = column * weights.blocks() + at * SPAN / weights.block;
            let level = |index: usize| i64::from(self.levels[column * weights.k + at * SPAN + index]) - middle;
            let sum = |part: &dyn Fn(i64) -> i64| -> i64 {
                integers.iter().enumerate().map(|(index, &integer)| part(integer) * level(index)).sum()
            };
            let sum = match weights.code.bits() {
                4 => sum(&|integer| integer) as f32,
                _ => {
                    let high = sum(&|integer| (integer + i64::from(MIDDLE)) / 65536 - 128) as f32;
                    high.mul_add(65536.0, sum(&|integer| (integer + i64::from(MIDDLE)) % 65536) as f32)
                }
            };
            let scale = self.scales[block];
            total = sum.mul_add(scale * unit, total);
            if weights.adds_sums() {
                let (origin, zero) = (f32::from(weights.code.origin()), f32::from(self.zero_points[block]));
                let shift = if weights.has_shifts { (origin - zero) * scale } else { 0.0 };
                let from_middle = if weights.code.bits() == 4 { 8.0 - origin } else { 0.0 };
                let all = integers.iter().sum::<i64>() as f32 * unit;
                total = from_middle.mul_add(scale, shift).mul_add(all, total);
            }
        }
        total
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_block_size_and_height_has_the_bits_of_the_definition() {
    let mut random = Lcg::new(25);
    for code in [Code::Int4, Code::Uint4, Code::Int8] {
        for block in [32, 64, 128] {
            for has_shifts in [false, true] {
                for n in [5, 37, 64] {
                    let weights = BlockWeights { k: 2 * block + 7, n, block, code, has_shifts };
                    let case = Case::new(weights, &mut random);
                    let mut x = random.floats(31 * weights.k);
                    x[..block].fill(0.0);
                    for m in [6, 7, 9, 31] {
                        let expected: Vec<f32> = (0..m * n)
                            .map(|at| case.product_of_digits(&x[at / n * weights.k..][..weights.k], at % n))
                            .collect();
                        for_each_exec(|exec| {
                            let found = case.run_on_digits(exec, m, &x, &Epilogue::default());
                            assert_eq!(bits(&found), bits(&expected), "{weights:?} of {m} rows");
                        });
                    }
                }
            }
        }
    }
}

/// Where values of a span differ by factors of thousands, as activations of decoders do, the small ones lose some bits that no
/// sum with the large ones has room for: a quarter more is lost at most.
#[test]
fn digits_lose_what_f32_does() {
    let mut random = Lcg::new(26);
    for (code, outlier) in [Code::Int4, Code::Uint4, Code::Int8].into_iter().flat_map(|code| [(code, 1.0), (code, 3e3)])
    {
        let weights = BlockWeights { k: 1536, n: 64, block: 32, code, has_shifts: code == Code::Uint4 };
        let case = Case::new(weights, &mut random);
        let mut x = random.floats(32 * weights.k);
        x.iter_mut().step_by(97).for_each(|x| *x *= outlier);
        let exact = |at: usize| -> f64 {
            let row = x[at / 64 * weights.k..][..weights.k].iter().enumerate();
            row.map(|(k, &x)| f64::from(x) * case.weight(k, at % 64)).sum()
        };
        let exact: Vec<f64> = (0..32 * 64).map(exact).collect();
        let loss = |found: &[f32]| -> f64 {
            found.iter().zip(&exact).map(|(&found, exact)| (f64::from(found) - exact).powi(2)).sum::<f64>().sqrt()
        };
        for_each_exec(|exec| {
            let by_digits = loss(&case.run_on_digits(exec, 32, &x, &Epilogue::default()));
            let by_floats = loss(&case.run(exec, 32, &x, &Epilogue::default()));
            let more = if outlier > 1.0 { 1.25 } else { 1.0 };
            assert!(by_digits <= more * by_floats, "{weights:?} with {outlier}: {by_digits} but {by_floats}");
        });
    }
}

#[test]
fn wide_products_are_cut_into_rows_columns_and_threads() {
    let mut random = Lcg::new(27);
    let weights = BlockWeights { k: 768, n: 1000, block: 32, code: Code::Int4, has_shifts: false };
    let case = Case::new(weights, &mut random);
    let x = random.floats(300 * weights.k);
    for m in [6, 43, 64, 300] {
        let mut first: Option<Vec<u32>> = None;
        for_each_exec(|exec| {
            let found = bits(&case.run_on_digits(exec, m, &x, &Epilogue::default()));
            assert_eq!(found, *first.get_or_insert_with(|| found.clone()), "{m} rows");
            for at in [0, 999, m * 1000 - 1] {
                let expected = case.product_of_digits(&x[at / 1000 * 768..][..768], at % 1000);
                assert_eq!(found[at], expected.to_bits(), "{at} of {m} rows");
            }
        });
    }
}

#[test]
fn rows_are_divided_where_every_thread_has_some_tiles_of_them() {
    let pool = ThreadPool::new(2);
    let exec = Exec::new(Isa::Portable, &pool).unwrap();
    let cut = |m: usize, n: usize| {
        cut_of(exec, &BlockWeights { k: 576, n, block: 32, code: Code::Int4, has_shifts: false }, m)
    };
    assert_eq!([cut(31, 1536), cut(32, 1536)], [Cut::Panels { tasks: 8 }, Cut::Rows { tasks: 2 }]);
    assert_eq!([cut(512, 1536), cut(2048, 1536)], [Cut::Rows { tasks: 2 }, Cut::Rows { tasks: 8 }]);
    assert_eq!([cut(6, 16), cut(24, 16)], [Cut::Panels { tasks: 1 }, Cut::Rows { tasks: 1 }]);
}

/// What every number of the row times every weight adds up to, whatever the numbers are.
#[test]
fn what_is_no_number_or_infinite_changes_its_row_and_no_other() {
    let mut random = Lcg::new(28);
    for code in [Code::Int4, Code::Int8] {
        let weights = BlockWeights { k: 96, n: 40, block: 32, code, has_shifts: false };
        let case = Case::new(weights, &mut random);
        let plain = random.floats(6 * 96);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = plain.clone();
            x[96 + 40] = bad;
            for_each_exec(|exec| {
                let expected = case.run_on_digits(exec, 6, &plain, &Epilogue::default());
                let found = case.run_on_digits(exec, 6, &x, &Epilogue::default());
                for (column, &found) in found[40..80].iter().enumerate() {
                    let exact: f64 = (0..96).map(|k| f64::from(x[96 + k]) * case.weight(k, column)).sum();
                    assert!(found == exact as f32 || (found.is_nan() && exact.is_nan()), "{found} but {exact}");
                }
                assert_eq!(bits(&found[..40]), bits(&expected[..40]));
                assert_eq!(bits(&found[80..]), bits(&expected[80..]));
            });
        }
    }
}

#[test]
fn values_and_scales_near_the_limits_of_floats_stay_what_they_are() {
    let mut random = Lcg::new(29);
    for (code, scaled) in [Code::Int4, Code::Uint4, Code::Int8]
        .into_iter()
        .flat_map(|code| [0.0, 1e-36, 1e-30, 1e-18, 1.0, 1e17, 1e30].map(|scaled: f32| (code, scaled)))
    {
        let weights = BlockWeights { k: 64, n: 40, block: 32, code, has_shifts: false };
        let mut case = Case::new(weights, &mut random);
        // Of one column alone: the others stay as they are.
        case.scales[2 * 7 + 1] *= scaled;
        weights.pack(|column, at| case.levels[column * 64 + at], &case.scales, None, &mut case.packed);
        for size in [0.0, f32::MIN_POSITIVE / 8.0, f32::MIN_POSITIVE, 1e-37, 2e-31, 1e-20, 1e-13, 1.0, 1e20, 1e30] {
            let x: Vec<f32> = random.floats(6 * 64).iter().map(|x| x * size).collect();
            for_each_exec(|exec| {
                let found = case.run_on_digits(exec, 6, &x, &Epilogue::default());
                for (at, &found) in found.iter().enumerate() {
                    let terms = (0..64).map(|k| f64::from(x[at / 40 * 64 + k]) * case.weight(k, at % 40));
                    let (exact, terms) =
                        terms.fold((0.0, 0.0), |(sum, all): (f64, f64), term| (sum + term, all + term.abs()));
                    let is_close = (f64::from(found) - exact).abs() <= 1e-6 * terms + 1e-37;
                    assert!(is_close || terms > 1e38, "{code:?} by {scaled}, {size}: {found} but {exact}");
                }
            });
        }
    }
}

#[test]
fn what_follows_a_product_is_done_to_every_column_of_every_row() {
    let mut random = Lcg::new(30);
    let weights = BlockWeights { k: 64, n: 50, block: 32, code: Code::Int4, has_shifts: true };
    let case = Case::new(weights, &mut random);
    let (bias, residual) = (random.floats(50), random.floats(70 * 50));
    for m in [6, 70] {
        let x = random.floats(m * 64);
        for_each_exec(|exec| {
            let plain = case.run_on_digits(exec, m, &x, &Epilogue::default());
            let (bias_part, residual) = (Bias::Columns(&bias), Some(&residual[..m * 50]));
            let epilogue = Epilogue { bias: bias_part, residual, activation: Activation::Relu, ..Epilogue::default() };
            let expected: Vec<f32> =
                plain.iter().enumerate().map(|(at, &y)| (y + bias[at % 50] + residual.unwrap()[at]).max(0.0)).collect();
            assert_eq!(case.run_on_digits(exec, m, &x, &epilogue), expected);
        });
    }
}
