//! Attention behind caches, and what is put into them.

use precast_ir::op::{AppendToCache, CachedAttention, RotaryFn};
use precast_tensor::{DType, Tensor};

use crate::host::{Case, INDIRECT, PLAIN, WIDE, check, numbers, of_values};

/// Sizes of a case.
#[derive(Clone, Copy)]
struct Sizes {
    length: usize,
    slots: usize,
    size: usize,
}

fn op(heads: usize, kv_heads: usize) -> CachedAttention {
    CachedAttention {
        heads,
        kv_heads,
        scale: 0.25,
        softcap: 0.0,
        window: 0,
        rotary: RotaryFn::None,
        positions: false,
        sinks: false,
    }
}

fn counts(counts: &[f64]) -> Tensor {
    of_values(DType::I32, &[counts.len()], counts)
}

/// Rows with so many cached tokens each.
fn case(op: CachedAttention, dtype: DType, sizes: Sizes, cached: &[f64]) -> Case {
    let Sizes { length, slots, size } = sizes;
    let rows = cached.len();
    let cache = |seed: u64| numbers(dtype, &[rows, op.kv_heads, slots, size], seed, -1.0, 1.0);
    let joint = numbers(dtype, &[rows, length, (op.heads + 2 * op.kv_heads) * size], 3, -1.0, 1.0);
    let mut inputs = vec![joint, cache(5), cache(7), counts(cached)];
    if op.rotary != RotaryFn::None {
        let half = (size / 2).max(1) - usize::from(size > 20);
        inputs.extend([11, 13].map(|seed| numbers(dtype, &[slots + 2, half], seed, -1.0, 1.0)));
    }
    if op.positions {
        let positions: Vec<f64> = (0..rows * length).map(|at| (at * 2) as f64).collect();
        inputs.push(of_values(DType::I64, &[rows, length], &positions));
    }
    if op.sinks {
        inputs.push(numbers(dtype, &[op.heads], 17, -1.0, 1.0));
    }
    Case::new(op, &inputs)
}

#[test]
fn new_tokens_behind_caches() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for length in [1, 3] {
            let sizes = |slots: usize, size: usize| Sizes { length, slots, size };
            cases.push(case(op(4, 2), dtype, sizes(40, 16), &[0.0, 37.0]));
            cases.push(case(op(8, 2), dtype, sizes(70, 64), &[66.0]));
            cases.push(case(op(3, 3), dtype, sizes(9, 5), &[4.0]));
            cases.push(case(op(9, 1), dtype, sizes(9, 24), &[6.0]));
            let half = CachedAttention { rotary: RotaryFn::Half, ..op(4, 2) };
            cases.push(case(half.clone(), dtype, sizes(20, 16), &[0.0, 11.0]));
            cases.push(case(CachedAttention { positions: true, ..half.clone() }, dtype, sizes(20, 24), &[9.0]));
            cases.push(case(CachedAttention { rotary: RotaryFn::Interleaved, ..half }, dtype, sizes(20, 16), &[5.0]));
            let window = CachedAttention { window: 6, softcap: 2.0, ..op(4, 2) };
            cases.push(case(window.clone(), dtype, sizes(8, 16), &[3.0, 29.0]));
            cases.push(case(CachedAttention { window: 0, sinks: true, ..window }, dtype, sizes(8, 16), &[3.0]));
        }
        // Heads that fill more than one round of a warp's lanes.
        cases.push(case(op(2, 1), dtype, Sizes { length: 1, slots: 5, size: 272 }, &[4.0]));
    }
    check(&cases, PLAIN);
    check(&cases[..18], WIDE);
    check(&cases[..5], INDIRECT);
}

#[test]
fn blocks_divide_the_keys_of_long_caches() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::BF16] {
        for (sinks, cached) in [(false, 2500.0), (true, 2.0), (false, 0.0)] {
            let op = CachedAttention { sinks, rotary: RotaryFn::Half, ..op(4, 2) };
            cases.push(case(op, dtype, Sizes { length: 1, slots: 3000, size: 16 }, &[cached]));
        }
    }
    check(&cases, PLAIN);
    check(&cases[..2], WIDE);
}

#[test]
fn tokens_are_put_behind_cached_ones() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::BF16, DType::U8] {
        for (slots, size, cached, added) in
            [(8, 16, [0.0, 5.0], [3.0, 2.0]), (2, 5, [7.0, 1.0], [3.0, 1.0]), (9, 4, [9.0, 8.0], [0.0, 1.0])]
        {
            let cache = |seed: u64, slots: usize| numbers(dtype, &[2, 3, slots, size], seed, 0.0, 100.0);
            let inputs =
                [counts(&cached), counts(&added), cache(1, slots), cache(2, 3), cache(3, slots + 1), cache(4, 3)];
            cases.push(Case::new(AppendToCache {}, &inputs));
        }
    }
    check(&cases, PLAIN);
    check(&cases[..3], WIDE);
    check(&cases[..3], INDIRECT);
}
