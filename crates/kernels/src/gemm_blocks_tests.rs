//! Products with weights of 4 and 8 bits against f64: odd sizes, every block size, with and without shifts.

use super::*;
use crate::epilogue::Activation;
use crate::gemm::{Packing, gemm, gemm_scratch_len};
use crate::gemm_pack::MatrixB;
use crate::test_data::{Lcg, assert_close, for_each_exec};

/// Random weights, as levels and packed.
pub(crate) struct Case {
    pub(crate) weights: BlockWeights,
    pub(crate) levels: Vec<u8>,
    pub(crate) scales: Vec<f32>,
    pub(crate) zero_points: Vec<u8>,
    pub(crate) packed: Vec<u32>,
}

impl Case {
    pub(crate) fn new(weights: BlockWeights, random: &mut Lcg) -> Case {
        let BlockWeights { k, n, code, .. } = weights;
        let level = |random: &mut Lcg| (random.below(1 << code.bits())) as u8;
        let levels: Vec<u8> = (0..n * k).map(|_| level(random)).collect();
        let scales: Vec<f32> = (0..n * weights.blocks()).map(|_| random.float() * 0.1).collect();
        let zero_points: Vec<u8> = match weights.has_shifts {
            true => (0..n * weights.blocks()).map(|_| level(random)).collect(),
            false => vec![code.origin(); n * weights.blocks()],
        };
        let mut packed = vec![0; weights.packed_len()];
        weights.pack(
            |column, at| levels[column * k + at],
            &scales,
            weights.has_shifts.then_some(&zero_points[..]),
            &mut packed,
        );
        Case { weights, levels, scales, zero_points, packed }
    }

    pub(crate) fn weight(&self, k: usize, column: usize) -> f64 {
        let block = column * self.weights.blocks() + k / self.weights.block;
        let level = f64::from(self.levels[column * self.weights.k + k]) - f64::from(self.zero_points[block]);
        level * f64::from(self.scales[block])
    }

    pub(crate) fn run(&self, exec: &Exec, m: usize, x: &[f32], epilogue: &Epilogue) -> Vec<f32> {
        let mut c = vec![f32::NAN; m * self.weights.n];
        let mut scratch = vec![f32::NAN; gemm_blocks_scratch_len(exec.isa(), exec.threads(), &self.weights, m)];
        gemm_blocks(*exec, &self.weights, m, x, &self.packed, epilogue, &mut c, &mut scratch);
        c
    }

    fn check(&self, exec: &Exec, m: usize, random: &mut Lcg) {
        let BlockWeights { k, n, .. } = self.weights;
        let x: Vec<f32> = random.floats(m * k);
        let product = |row: usize, column: usize| -> f64 {
            (0..k).map(|at| f64::from(x[row * k + at]) * self.weight(at, column)).sum()
        };
        let expected: Vec<f64> = (0..m * n).map(|at| product(at / n, at % n)).collect();
        let found = self.run(exec, m, &x, &Epilogue::default());
        let most = expected.iter().fold(1.0_f64, |most, value| most.max(value.abs()));
        assert_close(
            &found,
            &expected,
            0.0,
            1e-5 * most,
            &format!("{:?} of {m} rows on {:?}", self.weights, exec.isa()),
        );
    }
}

#[test]
fn every_block_size_and_width_agrees_with_f64() {
    let mut random = Lcg::new(5);
    for code in [Code::Int4, Code::Uint4, Code::Int8] {
        for block in [16, 32, 64, 128, 256] {
            for has_shifts in [false, true] {
                let weights = BlockWeights { k: 2 * block + 7, n: 37, block, code, has_shifts };
                let case = Case::new(weights, &mut random);
                for_each_exec(|exec| {
                    for m in [1, 3, 5, 8, 19] {
                        case.check(exec, m, &mut random);
                    }
                });
            }
        }
    }
}

#[test]
fn wide_products_are_cut_into_columns_and_threads() {
    let mut random = Lcg::new(6);
    let weights = BlockWeights { k: 1536, n: 1000, block: 32, code: Code::Int4, has_shifts: false };
    let case = Case::new(weights, &mut random);
    for_each_exec(|exec| {
        for m in [1, 6] {
            case.check(exec, m, &mut random);
        }
    });
}

/// Few rows share their panels, many are divided; k is more than one block, and its last one is short.
#[test]
fn more_rows_than_are_multiplied_as_packed_have_the_bits_of_f32_weights() {
    let mut random = Lcg::new(8);
    let weights = BlockWeights { k: 600, n: 70, block: 32, code: Code::Int4, has_shifts: false };
    let BlockWeights { k, n, .. } = weights;
    let case = Case::new(weights, &mut random);
    let plain: Vec<f32> = (0..n * k).map(|at| case.weight(at % k, at / k) as f32).collect();
    let x = random.floats(300 * k);
    let epilogue = Epilogue { activation: Activation::Silu, ..Epilogue::default() };
    for m in [20, 100, 300] {
        for_each_exec(|exec| {
            let a = MatrixA::Rows { data: &x, stride: k };
            let b = MatrixB::Columns { data: &plain, stride: k };
            let len = gemm_scratch_len(exec.isa(), exec.threads(), m, n, k, Packing::Plain, Packing::Plain);
            let (mut expected, mut scratch) = (vec![f32::NAN; m * n], vec![f32::NAN; len]);
            gemm(*exec, m, n, k, a, b, &mut expected, n, &epilogue, &mut scratch);
            assert_eq!(case.run(exec, m, &x[..m * k], &epilogue), expected, "{m} rows on {:?}", exec.isa());
        });
    }
}

#[test]
fn scratch_for_some_threads_is_enough_for_fewer() {
    let weights = BlockWeights { k: 600, n: 700, block: 32, code: Code::Int4, has_shifts: false };
    for m in [20, 100, 200, 300, 5000] {
        let len = |threads| gemm_blocks_scratch_len(Isa::Avx512, threads, &weights, m);
        assert!((1..9).all(|threads| len(threads) <= len(threads + 1)), "{m} rows");
    }
}

#[test]
fn what_follows_a_product_is_done_to_every_column_of_every_row() {
    let mut random = Lcg::new(7);
    let weights = BlockWeights { k: 64, n: 50, block: 32, code: Code::Int4, has_shifts: true };
    let case = Case::new(weights, &mut random);
    let (bias, residual) = (random.floats(50), random.floats(6 * 50));
    for_each_exec(|exec| {
        for m in [2, 6] {
            let x = random.floats(m * 64);
            let plain = case.run(exec, m, &x, &Epilogue::default());
            let epilogue = Epilogue {
                bias: Bias::Columns(&bias),
                residual: Some(&residual[..m * 50]),
                activation: Activation::Relu,
                ..Epilogue::default()
            };
            let expected: Vec<f64> = plain
                .iter()
                .enumerate()
                .map(|(at, &y)| (f64::from(y) + f64::from(bias[at % 50]) + f64::from(residual[at])).max(0.0))
                .collect();
            assert_close(&case.run(exec, m, &x, &epilogue), &expected, 1e-5, 1e-4, "with an epilogue");
        }
    });
}
