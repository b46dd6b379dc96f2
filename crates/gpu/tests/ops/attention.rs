//! Attention behind caches and pages, and what is put into them.

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
        paged: false,
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

/// The same behind pages of so many slots: rows have pages that lie apart and in no order, of which those behind their tokens
/// are no pages at all, and where no token of a row lies is no number.
fn paged_case(op: CachedAttention, dtype: DType, sizes: Sizes, cached: &[f64], width: usize) -> Case {
    const PAGES: usize = 23;
    let Sizes { slots, size, .. } = sizes;
    let op = CachedAttention { paged: true, ..op };
    let page = |row: usize, number: usize| (5 + row * width + number) * 7 % PAGES;
    let mut pages = Vec::new();
    let mut tokens = [0; PAGES];
    for (row, &cached) in cached.iter().enumerate() {
        for number in 0..width {
            let own = (cached as usize).saturating_sub(number * slots).min(slots);
            let page = page(row, number);
            pages.push(if own > 0 { page as f64 } else { [-1.0, PAGES as f64][number % 2] });
            tokens[page] = tokens[page].max(own);
        }
    }
    let cache = |seed: u64| {
        let numbers = numbers(dtype, &[PAGES, op.kv_heads, slots, size], seed, -1.0, 1.0).to_f64_vec();
        let is_token = |at: usize| at / size % slots < tokens[at / (op.kv_heads * slots * size)];
        let numbers = numbers.into_iter().enumerate().map(|(at, number)| if is_token(at) { number } else { f64::NAN });
        of_values(dtype, &[PAGES, op.kv_heads, slots, size], &numbers.collect::<Vec<f64>>())
    };
    let mut inputs = case(CachedAttention { paged: false, ..op.clone() }, dtype, sizes, cached).inputs;
    (inputs[1], inputs[2]) = (cache(5), cache(7));
    inputs.push(of_values(DType::I32, &[cached.len(), width], &pages));
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
fn new_tokens_behind_pages() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for length in [1, 3] {
            let sizes = |slots: usize, size: usize| Sizes { length, slots, size };
            cases.push(paged_case(op(4, 2), dtype, sizes(4, 16), &[0.0, 13.0], 4));
            cases.push(paged_case(op(8, 2), dtype, sizes(16, 64), &[66.0, 3.0, 32.0], 6));
            cases.push(paged_case(op(3, 3), dtype, sizes(3, 5), &[4.0], 8));
            let half = CachedAttention { rotary: RotaryFn::Half, ..op(4, 2) };
            cases.push(paged_case(half.clone(), dtype, sizes(5, 16), &[5.0, 11.0], 3));
            cases.push(paged_case(CachedAttention { positions: true, ..half }, dtype, sizes(5, 24), &[9.0], 2));
            let window = CachedAttention { window: 6, softcap: 2.0, ..op(4, 2) };
            cases.push(paged_case(window.clone(), dtype, sizes(8, 16), &[3.0, 29.0], 4));
            cases.push(paged_case(
                CachedAttention { window: 0, sinks: true, ..window },
                dtype,
                sizes(8, 16),
                &[3.0],
                1,
            ));
        }
        // Blocks divide the keys, and clusters do not reach over so many.
        let long = CachedAttention { sinks: true, ..op(4, 2) };
        cases.push(paged_case(long, dtype, Sizes { length: 1, slots: 300, size: 16 }, &[2500.0], 10));
    }
    check(&cases, PLAIN);
    check(&cases[..15], WIDE);
    check(&cases[..15], INDIRECT);
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
            cases.push(Case::new(AppendToCache { paged: false }, &inputs));
        }
    }
    check(&cases, PLAIN);
    check(&cases[..3], WIDE);
    check(&cases[..3], INDIRECT);
}

#[test]
fn tokens_are_put_into_the_pages_of_their_rows() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::BF16, DType::U8] {
        // Tokens that begin in the middle of a page and go on in another, a row that is filler with another's pages, tokens
        // behind the last page, and a page that there is not.
        for (page_tokens, size, cached, added, pages) in [
            (4, 16, [2.0, 5.0], [3.0, 2.0], [6.0, 1.0, 0.0, 3.0]),
            (2, 5, [3.0, 3.0], [3.0, 0.0], [6.0, 1.0, 6.0, 1.0]),
            (3, 4, [4.0, 2.0], [3.0, 3.0], [5.0, 2.0, 0.0, -1.0]),
            (3, 8, [0.0, 0.0], [2.0, 1.0], [7.0, 0.0, 4.0, 0.0]),
        ] {
            let tokens = |seed: u64| numbers(dtype, &[2, 3, 3, size], seed, 0.0, 100.0);
            let cache = |seed: u64| numbers(dtype, &[7, 3, page_tokens, size], seed, 0.0, 100.0);
            let pages = of_values(DType::I32, &[2, 2], &pages);
            let inputs = [counts(&cached), counts(&added), pages, cache(1), tokens(2), cache(3), tokens(4)];
            cases.push(Case::new(AppendToCache { paged: true }, &inputs));
        }
    }
    check(&cases, PLAIN);
    check(&cases[..4], WIDE);
    check(&cases[..4], INDIRECT);
}
