//! What depends on how queries are cut; values are compared with the reference in the tests of the CPU target.

use super::*;
use crate::test_data::{Lcg, for_each_exec};

/// Results of some new tokens behind 20 cached ones, where six query heads share two key heads.
fn results(exec: &Exec, length: usize, joint: &[f32], keys: &[f32], values: &[f32]) -> Vec<f32> {
    let attention = CachedAttention {
        rows: 1,
        length,
        heads: 6,
        kv_heads: 2,
        size: 48,
        slots: 24,
        scale: 0.2,
        softcap: 0.0,
        window: 0,
        rotation: None,
    };
    let inputs = Inputs { joint, keys, values, lengths: &[20], tables: None, positions: None, sinks: None };
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
