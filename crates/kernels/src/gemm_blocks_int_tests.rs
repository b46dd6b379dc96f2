//! Products with rows of 8 bits against a plain loop over the same bytes, bit by bit, and against f64 within what bytes lose.

use super::*;
use crate::epilogue::{Activation, Bias};
use crate::gemm_blocks::tests::Case;
use crate::isa::Isa;
use crate::pool::ThreadPool;
use crate::test_data::{Lcg, for_each_exec};

impl Case {
    fn run_on_bytes(&self, exec: &Exec, m: usize, x: &[f32], epilogue: &Epilogue) -> Vec<f32> {
        let mut c = vec![f32::NAN; m * self.weights.n];
        let mut scratch = vec![u32::MAX; gemm_blocks_int_scratch_len(&self.weights, m)];
        gemm_blocks_int(*exec, &self.weights, m, x, &self.packed, epilogue, &mut c, &mut scratch);
        c
    }

    /// One element by the definition: spans are quantised, multiplied in integers and summed in f32.
    fn product(&self, x: &[f32], column: usize) -> f32 {
        let (origin, span) = (i32::from(self.weights.code.origin()), self.weights.span());
        let mut total = 0.0_f32;
        for (at, values) in x.chunks(span).enumerate() {
            let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            let is_zero = largest < LEAST;
            let bytes: Vec<i32> = values
                .iter()
                .map(|value| if is_zero { 0 } else { (value * (127.0 / largest)).round_ties_even() as i32 })
                .collect();
            let row_scale = if is_zero { 0.0 } else { largest / 127.0 };
            let block = column * self.weights.blocks() + at * span / self.weights.block;
            let scale = self.scales[block];
            let level = |index: usize| i32::from(self.levels[column * self.weights.k + at * span + index]) - origin;
            let sum: i32 = bytes.iter().enumerate().map(|(index, byte)| byte * level(index)).sum();
            total += sum as f32 * (scale * row_scale);
            if self.weights.has_shifts {
                let shift = (origin as f32 - f32::from(self.zero_points[block])) * scale;
                total += shift * (row_scale * bytes.iter().sum::<i32>() as f32);
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
    let mut random = Lcg::new(15);
    for code in [Code::Int4, Code::Uint4, Code::Int8] {
        for block in [16, 32, 64, 128, 256] {
            for has_shifts in [false, true] {
                let weights = BlockWeights { k: 2 * block + 7, n: 37, block, code, has_shifts };
                let case = Case::new(weights, &mut random);
                let mut x = random.floats(31 * weights.k);
                x[..block].fill(0.0);
                for m in [1, 2, 7, 31] {
                    let expected: Vec<f32> =
                        (0..m * 37).map(|at| case.product(&x[at / 37 * weights.k..][..weights.k], at % 37)).collect();
                    for_each_exec(|exec| {
                        let found = case.run_on_bytes(exec, m, &x, &Epilogue::default());
                        assert_eq!(bits(&found), bits(&expected), "{weights:?} of {m} rows on {:?}", exec.isa());
                    });
                }
            }
        }
    }
}

#[test]
fn bytes_lose_no_more_than_half_a_step_of_each_value() {
    let mut random = Lcg::new(16);
    let weights = BlockWeights { k: 576, n: 100, block: 32, code: Code::Int4, has_shifts: true };
    let case = Case::new(weights, &mut random);
    let x = random.floats(130 * weights.k);
    let pool = ThreadPool::new(2);
    let exec = Exec::new(Isa::detect(), &pool).unwrap();
    let found = case.run_on_bytes(&exec, 130, &x, &Epilogue::default());
    for (at, &found) in found.iter().enumerate() {
        let (row, column) = (&x[at / 100 * weights.k..][..weights.k], at % 100);
        let (mut exact, mut bound) = (0.0, 1e-4);
        for (k, &x) in row.iter().enumerate() {
            let step = row[k / 32 * 32..][..32].iter().fold(0.0_f32, |most, x| most.max(x.abs())) / 127.0;
            exact += f64::from(x) * case.weight(k, column);
            bound += 0.51 * f64::from(step) * case.weight(k, column).abs();
        }
        assert!((f64::from(found) - exact).abs() <= bound, "{at}: {found} but {exact} within {bound}");
    }
}

#[test]
fn wide_products_are_cut_into_rows_columns_and_threads() {
    let mut random = Lcg::new(17);
    let weights = BlockWeights { k: 768, n: 1000, block: 32, code: Code::Int4, has_shifts: false };
    let case = Case::new(weights, &mut random);
    let x = random.floats(150 * weights.k);
    for m in [1, 5, 43, 64, 150] {
        let mut first: Option<Vec<u32>> = None;
        for_each_exec(|exec| {
            let found = bits(&case.run_on_bytes(exec, m, &x, &Epilogue::default()));
            assert_eq!(found, *first.get_or_insert_with(|| found.clone()), "{m} rows on {:?}", exec.isa());
        });
        let first = first.unwrap();
        for at in [0, 999, m * 1000 - 1] {
            assert_eq!(first[at], case.product(&x[at / 1000 * 768..][..768], at % 1000).to_bits(), "{at} of {m} rows");
        }
    }
}

#[test]
fn rows_are_divided_where_every_thread_has_a_tile_of_them() {
    let pool = ThreadPool::new(2);
    let exec = Exec::new(Isa::Portable, &pool).unwrap();
    let cut = |m: usize, n: usize| {
        cut_of(exec, &BlockWeights { k: 576, n, block: 32, code: Code::Int4, has_shifts: false }, m)
    };
    assert_eq!([cut(31, 1536), cut(32, 1536)], [Cut::Panels { tasks: 8 }, Cut::Rows { tasks: 2 }]);
    assert_eq!([cut(64, 1536), cut(512, 1536)], [Cut::Rows { tasks: 2 }, Cut::Rows { tasks: 8 }]);
    assert_eq!([cut(1, 16), cut(24, 16)], [Cut::Panels { tasks: 1 }, Cut::Rows { tasks: 1 }]);
}

#[test]
fn what_is_no_number_makes_its_row_nan_and_no_other() {
    let mut random = Lcg::new(18);
    let weights = BlockWeights { k: 96, n: 20, block: 32, code: Code::Int8, has_shifts: false };
    let case = Case::new(weights, &mut random);
    let plain = random.floats(3 * 96);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = plain.clone();
        x[96 + 40] = bad;
        for_each_exec(|exec| {
            let expected = case.run_on_bytes(exec, 3, &plain, &Epilogue::default());
            let found = case.run_on_bytes(exec, 3, &x, &Epilogue::default());
            assert!(found[20..40].iter().all(|value| value.is_nan()), "{bad} on {:?}", exec.isa());
            assert_eq!(bits(&found[..20]), bits(&expected[..20]));
            assert_eq!(bits(&found[40..]), bits(&expected[40..]));
        });
    }
}

#[test]
fn values_near_the_limits_of_floats_stay_numbers() {
    let mut random = Lcg::new(19);
    let weights = BlockWeights { k: 32, n: 16, block: 32, code: Code::Int4, has_shifts: false };
    let case = Case::new(weights, &mut random);
    for size in [f32::MIN_POSITIVE / 8.0, f32::MIN_POSITIVE, 1e-37, 2e-36, 1e30] {
        let x = vec![size; 32];
        let expected: Vec<f32> = (0..16).map(|column| case.product(&x, column)).collect();
        assert!(expected.iter().all(|value| value.is_finite()));
        for_each_exec(|exec| assert_eq!(bits(&case.run_on_bytes(exec, 1, &x, &Epilogue::default())), bits(&expected)));
    }
}

#[test]
fn what_follows_a_product_is_done_to_every_column_of_every_row() {
    let mut random = Lcg::new(20);
    let weights = BlockWeights { k: 64, n: 50, block: 32, code: Code::Int4, has_shifts: true };
    let case = Case::new(weights, &mut random);
    let (bias, residual) = (random.floats(50), random.floats(70 * 50));
    for m in [2, 70] {
        let x = random.floats(m * 64);
        for_each_exec(|exec| {
            let plain = case.run_on_bytes(exec, m, &x, &Epilogue::default());
            let (bias_part, residual) = (Bias::Columns(&bias), Some(&residual[..m * 50]));
            let epilogue = Epilogue { bias: bias_part, residual, activation: Activation::Relu, ..Epilogue::default() };
            let expected: Vec<f32> =
                plain.iter().enumerate().map(|(at, &y)| (y + bias[at % 50] + residual.unwrap()[at]).max(0.0)).collect();
            assert_eq!(case.run_on_bytes(exec, m, &x, &epilogue), expected);
        });
    }
}
