//! What depends on how queries are cut; values are compared with the reference in the tests of the CPU target.

use super::*;
use crate::test_data::{Lcg, for_each_exec};

/// Results of some new tokens behind 20 cached ones, where six query heads share two key heads.
fn results(exec: &Exec, length: usize, joint: &[f32], keys: &[f32], values: &[f32]) -> Vec<f32> {
    results_behind(exec, length, (20, 0), joint, keys, values)
}

/// The same behind so many cached tokens and a window.
fn results_behind(
    exec: &Exec,
    length: usize,
    (cached, window): (i32, usize),
    joint: &[f32],
    keys: &[f32],
    values: &[f32],
) -> Vec<f32> {
    let attention = CachedAttention {
        rows: 1,
        length,
        heads: 6,
        kv_heads: 2,
        size: 48,
        slots: 24,
        scale: 0.2,
        softcap: 0.0,
        window,
        rotation: None,
    };
    let inputs = Inputs { joint, keys, values, lengths: &[cached], tables: None, positions: None, sinks: None };
    let (mut y, mut new_keys) = (vec![0.0; length * 6 * 48], vec![0.0; length * 2 * 48]);
    let mut new_values = new_keys.clone();
    let mut scratch = vec![f32::NAN; attention.scratch_len(exec.isa(), exec.threads())];
    let outputs = Outputs { y: &mut y, keys: &mut new_keys, values: &mut new_values };
    attention.run(*exec, &inputs, outputs, &mut scratch);
    y
}

#[test]
fn a_query_has_the_same_bits_whatever_follows_it() {
    let mut random = Lcg::new(7);
    let (joint, keys, values) = (random.floats(300 * 10 * 48), random.floats(2 * 24 * 48), random.floats(2 * 24 * 48));
    for_each_exec(|exec| {
        let all = results(exec, 300, &joint, &keys, &values);
        for length in [2, 37, 290] {
            let first = results(exec, length, &joint, &keys, &values);
            assert_eq!(first, all[..first.len()], "{length} of 300 tokens on {:?}", exec.isa());
        }
    });
}

/// Tokens in slots that no new query sees, and new tokens behind the first ones, may be anything.
#[test]
fn what_a_query_does_not_see_leaves_no_trace() {
    let mut random = Lcg::new(9);
    let (joint, keys, values) = (random.floats(40 * 10 * 48), random.floats(2 * 24 * 48), random.floats(2 * 24 * 48));
    for (cached, window) in [(0, 0), (20, 0), (20, 7), (31, 7), (47, 20), (5, 30)] {
        let is_seen = |slot: i32| {
            let token = cached - 1 - (cached - 1 - slot).rem_euclid(24);
            token >= 0 && (window == 0 || token + window > cached)
        };
        for_each_exec(|exec| {
            for length in [1, 2, 40] {
                let plain = results_behind(exec, length, (cached, window as usize), &joint, &keys, &values);
                // All but the first half of the tokens are filler.
                let real = length.div_ceil(2);
                for wild in [f32::NAN, f32::INFINITY] {
                    let (mut joint, mut caches) = (joint.clone(), [keys.clone(), values.clone()]);
                    joint[real * 10 * 48..].fill(wild);
                    for cache in &mut caches {
                        for (slot, token) in cache.chunks_exact_mut(48).enumerate() {
                            if !is_seen(slot as i32 % 24) {
                                token.fill(wild);
                            }
                        }
                    }
                    let [keys, values] = &caches;
                    let found = results_behind(exec, length, (cached, window as usize), &joint, keys, values);
                    let (found, plain) = (&found[..real * 6 * 48], &plain[..real * 6 * 48]);
                    assert_eq!(found, plain, "{wild} beside {real} of {length} tokens on {:?}", exec.isa());
                }
            }
        });
    }
}

#[test]
fn a_value_that_is_none_makes_none_of_what_sees_it() {
    let mut random = Lcg::new(11);
    let (mut joint, cache) = (random.floats(40 * 10 * 48), random.floats(2 * 24 * 48));
    let value = 17 * 10 * 48 + 8 * 48;
    joint[value] = f32::NAN;
    for_each_exec(|exec| {
        let found = results(exec, 40, &joint, &cache, &cache);
        let is_none = |step: usize, head: usize, d: usize| found[(step * 6 + head) * 48 + d].is_nan();
        for step in 0..40 {
            for head in 0..6 {
                assert_eq!(is_none(step, head, 0), step >= 17 && head < 3, "token {step}, head {head}");
                assert!(!is_none(step, head, 1));
            }
        }
    });
}

#[test]
fn every_task_is_dealt_once() {
    for (tasks, parts) in [(1, 1), (7, 2), (8, 3), (24, 5), (3, 3)] {
        let mut dealt: Vec<usize> = (0..tasks).map(|place| dealt_in_turn(tasks, parts, place)).collect();
        if (tasks, parts) == (7, 2) {
            assert_eq!(dealt, [0, 3, 4, 6, 1, 2, 5]);
        }
        dealt.sort_unstable();
        assert_eq!(dealt, (0..tasks).collect::<Vec<_>>());
    }
}
