//! Weights of every form are found, come back bit for bit, and multiply as f32 weights do.

use super::*;
use crate::epilogue::Epilogue;
use crate::gemm_blocks::{gemm_blocks, gemm_blocks_scratch_len};
use crate::gemm_blocks_line::expand_panel;
use crate::isa::Isa;
use crate::test_data::{Lcg, assert_close, for_each_exec};

/// Weights [k, n] that a quantiser of this form would have written as f32.
fn weights_of(form: &BlockWeights, random: &mut Lcg) -> Vec<f32> {
    let BlockWeights { k, n, block, code, has_shifts } = *form;
    let mut data = vec![0.0; k * n];
    for column in 0..n {
        for first in (0..k).step_by(block) {
            let block = first..k.min(first + block);
            let source: Vec<f32> = block.clone().map(|_| random.float() * 0.2 - 0.05).collect();
            for (k, value) in block.zip(quantised(code, has_shifts, &source)) {
                data[k * n + column] = value;
            }
        }
    }
    data
}

/// As the checkpoints of llama.cpp do it: scales and least values are rounded to f16.
fn quantised(code: Code, has_shifts: bool, source: &[f32]) -> Vec<f32> {
    let least = source.iter().copied().fold(f32::INFINITY, f32::min);
    let most = source.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let extreme = if -least > most { least } else { most };
    let (scale, shift, lowest, highest) = match code {
        Code::Uint4 if has_shifts => ((most - least) / 15.0, half_precise(least), 0.0, 15.0),
        Code::Int4 => (extreme / -8.0, 0.0, -8.0, 7.0),
        Code::Int8 => (extreme.abs() / 127.0, 0.0, -127.0, 127.0),
        _ => return source.iter().map(|value| f32::from_bits(value.to_bits() & 0xffff_0000)).collect(),
    };
    let scale = half_precise(scale);
    source.iter().map(|value| ((value - shift) / scale).round().clamp(lowest, highest) * scale + shift).collect()
}

fn forms(k: usize, n: usize) -> Vec<BlockWeights> {
    PlainWeights { data: &[], k, n, is_transposed: false }.candidates()
}

fn transposed(data: &[f32], k: usize, n: usize) -> Vec<f32> {
    (0..k * n).map(|at| data[at % k * n + at / k]).collect()
}

#[test]
fn every_form_is_found_and_keeps_every_bit() {
    let mut random = Lcg::new(11);
    for form in forms(256, 37) {
        let data = weights_of(&form, &mut random);
        let turned = transposed(&data, form.k, form.n);
        for (data, is_transposed) in [(&data, false), (&turned, true)] {
            let plain = PlainWeights { data, k: form.k, n: form.n, is_transposed };
            assert_eq!(plain.exact_form(Isa::detect()), Some(form));
            let mut packed = vec![0; form.packed_len()];
            plain.pack(Isa::detect(), &form, &mut packed);
            for isa in [Isa::Portable, Isa::detect()] {
                let mut panel = vec![f32::NAN; form.k * 32];
                expand_panel(isa, &form, &packed, 0..form.k, 0, 32, &mut panel);
                for k in 0..form.k {
                    let expected: Vec<f32> = (0..32)
                        .map(|n| if is_transposed { data[n * form.k + k] } else { data[k * form.n + n] })
                        .collect();
                    assert_eq!(panel[k * 32..][..32], expected, "{form:?} at {k} on {isa:?}");
                }
            }
        }
    }
}

#[test]
fn products_agree_with_f64() {
    let mut random = Lcg::new(12);
    for form in forms(200, 37) {
        let data = weights_of(&form, &mut random);
        let plain = PlainWeights { data: &data, k: form.k, n: form.n, is_transposed: false };
        let form = plain.exact_form(Isa::detect()).expect("weights of a form have one");
        let mut packed = vec![0; form.packed_len()];
        plain.pack(Isa::detect(), &form, &mut packed);
        for_each_exec(|exec| {
            for m in [1, 2, 7, 20] {
                let x = random.floats(m * form.k);
                let product = |row: usize, column: usize| -> f64 {
                    (0..form.k).map(|k| f64::from(x[row * form.k + k]) * f64::from(data[k * form.n + column])).sum()
                };
                let expected: Vec<f64> = (0..m * form.n).map(|at| product(at / form.n, at % form.n)).collect();
                let mut c = vec![f32::NAN; m * form.n];
                let mut scratch = vec![f32::NAN; gemm_blocks_scratch_len(exec.isa(), exec.threads(), &form, m)];
                gemm_blocks(*exec, &form, m, &x, &packed, &Epilogue::default(), &mut c, &mut scratch);
                assert_close(&c, &expected, 1e-5, 1e-5, &format!("{form:?} of {m} rows"));
            }
        });
    }
}

#[test]
fn one_weight_beside_the_grid_is_enough_to_refuse() {
    let mut random = Lcg::new(13);
    for form in forms(128, 20) {
        let mut data = weights_of(&form, &mut random);
        data[77 * form.n + 13] += 1e-4;
        let plain = PlainWeights { data: &data, k: form.k, n: form.n, is_transposed: false };
        assert_ne!(plain.exact_form(Isa::detect()), Some(form));
    }
}

#[test]
fn plain_weights_have_no_form() {
    let mut random = Lcg::new(14);
    let mut data = random.floats(128 * 32);
    let plain = |data: &[f32]| PlainWeights { data, k: 128, n: 32, is_transposed: false }.exact_form(Isa::Portable);
    assert_eq!(plain(&data), None);
    for odd in [f32::NAN, f32::INFINITY, f32::MIN_POSITIVE / 3.0] {
        data.fill(0.5);
        assert!(plain(&data).is_some());
        data[5] = odd;
        data[6] = 0.1;
        assert_eq!(plain(&data), None, "{odd}");
    }
}
