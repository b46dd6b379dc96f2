//! The inner loops of attention behind a cache, over one head of one token or one row of scores.

#![allow(clippy::needless_range_loop, reason = "loops over plain lanes become vectors")]

use crate::isa::Isa;
use crate::math;
use crate::row_sum::{combine, replace_sum_of};
use crate::simd::multiversion;

/// Accumulators of a dot product: one vector of 512 bits.
const LANES: usize = 16;
/// Elements of a value that are summed together: four vectors of 512 bits.
const WIDE: usize = 64;

/// Scores that a query does not see become those of no weight.
pub(crate) fn mask_unless(scores: &mut [f32], is_seen: impl Fn(usize) -> bool) {
    for (key, score) in scores.iter_mut().enumerate() {
        if !is_seen(key) {
            *score = f32::NEG_INFINITY;
        }
    }
}

/// Asks for keys or values that are read soon: sixteen keys are read side by side, which no machine foresees.
pub(crate) fn ask_for(elements: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    for line in elements.chunks(LANES) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: asking for memory reads nothing, and every x86-64 has the instruction.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = elements;
}

/// Products of a query with keys that lie one behind the other, times `scale`.
pub(crate) fn score_keys(isa: Isa, query: &[f32], keys: &[f32], scale: f32, scores: &mut [f32]) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx512 && query.len().is_multiple_of(LANES) {
        use crate::cached_attention_x86::{KEYS, score_sixteen};
        let (whole, rest) = scores.as_chunks_mut::<KEYS>();
        for scores in whole {
            // SAFETY: an `Isa` reaches a kernel only through `Exec`, which checked that this machine has it.
            unsafe { score_sixteen(query, &keys[done * query.len()..], scale, scores) };
            done += KEYS;
        }
        if !rest.is_empty() && done > 0 {
            // The last sixteen keys, of which some have their scores already: the same bits.
            let (mut last, first) = ([0.0; KEYS], done + rest.len() - KEYS);
            // SAFETY: as above.
            unsafe { score_sixteen(query, &keys[first * query.len()..], scale, &mut last) };
            rest.copy_from_slice(&last[KEYS - rest.len()..]);
            return;
        }
    }
    score_each_key(isa, query, &keys[done * query.len()..], scale, &mut scores[done..]);
}

multiversion! {
    /// A head turned by the cosines and sines of its position; what the tables do not reach stays.
    pub(crate) fn rotate<F: MulAdd>(is_interleaved: bool, cosines: &[f32], sines: &[f32], source: &[f32], target: &mut [f32]) {
        let half = cosines.len();
        target[2 * half..].copy_from_slice(&source[2 * half..]);
        if is_interleaved {
            let pairs = source[..2 * half].as_chunks::<2>().0.iter().zip(target[..2 * half].as_chunks_mut::<2>().0);
            for ((&[a, b], turned), (&cosine, &sine)) in pairs.zip(cosines.iter().zip(sines)) {
                *turned = [a * cosine - b * sine, b * cosine + a * sine];
            }
            return;
        }
        let (first, second) = source[..2 * half].split_at(half);
        let (target_first, target_second) = target[..2 * half].split_at_mut(half);
        let (cosine_lanes, sine_lanes) = (cosines.as_chunks::<LANES>().0, sines.as_chunks::<LANES>().0);
        let sources = first.as_chunks::<LANES>().0.iter().zip(second.as_chunks::<LANES>().0);
        let targets = target_first.as_chunks_mut::<LANES>().0.iter_mut().zip(target_second.as_chunks_mut::<LANES>().0);
        for (((a, b), (turned_a, turned_b)), (cosines, sines)) in sources.zip(targets).zip(cosine_lanes.iter().zip(sine_lanes)) {
            for lane in 0..LANES {
                turned_a[lane] = a[lane] * cosines[lane] - b[lane] * sines[lane];
                turned_b[lane] = b[lane] * cosines[lane] + a[lane] * sines[lane];
            }
        }
        for pair in half / LANES * LANES..half {
            let (a, b, cosine, sine) = (first[pair], second[pair], cosines[pair], sines[pair]);
            target_first[pair] = a * cosine - b * sine;
            target_second[pair] = b * cosine + a * sine;
        }
    }

    /// As `score_keys`, one key after the other.
    fn score_each_key<F: MulAdd>(query: &[f32], keys: &[f32], scale: f32, scores: &mut [f32]) {
        let (query_lanes, query_rest) = query.as_chunks::<LANES>();
        for (score, key) in scores.iter_mut().zip(keys.chunks_exact(query.len())) {
            let (key_lanes, key_rest) = key.as_chunks::<LANES>();
            let mut lanes = [0.0; LANES];
            for (q, k) in query_lanes.iter().zip(key_lanes) {
                for lane in 0..LANES {
                    lanes[lane] = F::mul_add(q[lane], k[lane], lanes[lane]);
                }
            }
            let mut width = LANES / 2;
            while width > 0 {
                for lane in 0..width {
                    lanes[lane] += lanes[lane + width];
                }
                width /= 2;
            }
            let mut sum = lanes[0];
            for (q, k) in query_rest.iter().zip(key_rest) {
                sum = F::mul_add(*q, *k, sum);
            }
            *score = sum * scale;
        }
    }

    /// `target` plus values that lie one behind the other, each times its weight.
    pub(crate) fn add_weighted<F: MulAdd>(weights: &[f32], values: &[f32], target: &mut [f32]) {
        let size = target.len();
        let (wide, rest) = target.as_chunks_mut::<WIDE>();
        let done = wide.len() * WIDE;
        for (chunk, target) in wide.iter_mut().enumerate() {
            let mut sums = *target;
            for (&weight, value) in weights.iter().zip(values.chunks_exact(size)) {
                let value = &value[chunk * WIDE..][..WIDE];
                for lane in 0..WIDE {
                    sums[lane] = F::mul_add(weight, value[lane], sums[lane]);
                }
            }
            *target = sums;
        }
        if rest.is_empty() {
            return;
        }
        for (&weight, value) in weights.iter().zip(values.chunks_exact(size)) {
            for (sum, &value) in rest.iter_mut().zip(&value[done..]) {
                *sum = F::mul_add(weight, value, *sum);
            }
        }
    }

    /// Scores become weights relative to the largest score so far. Gives that score and the sum of the weights.
    pub(crate) fn weigh_row<F: MulAdd>(before: f32, row: &mut [f32]) -> (f32, f32) {
        let largest = combine(row, before, |a: f32, b: f32| if b > a { b } else { a });
        if largest == f32::NEG_INFINITY {
            row.fill(0.0);
            return (largest, 0.0);
        }
        let sum = replace_sum_of(row, |score| math::exp_below_zero::<F>(score - largest));
        (largest, sum as f32)
    }

    /// c·tanh(score/c).
    pub(crate) fn cap<F: MulAdd>(limit: f32, row: &mut [f32]) {
        row.iter_mut().for_each(|score| *score = limit * math::tanh::<F>(*score / limit));
    }

    pub(crate) fn scale_row<F: MulAdd>(factor: f32, row: &mut [f32]) {
        row.iter_mut().for_each(|element| *element *= factor);
    }

    pub(crate) fn divide_row<F: MulAdd>(divisor: f32, row: &mut [f32]) {
        row.iter_mut().for_each(|element| *element /= divisor);
    }

    /// A row divided into another one.
    pub(crate) fn divide_row_into<F: MulAdd>(divisor: f32, row: &[f32], target: &mut [f32]) {
        target.iter_mut().zip(row).for_each(|(target, element)| *target = element / divisor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::{Lcg, for_each_exec};

    #[test]
    fn keys_have_the_same_scores_together_and_alone() {
        let mut random = Lcg::new(31);
        for (size, count) in [(64, 37), (16, 16), (20, 33), (128, 5)] {
            let (query, keys) = (random.floats(size), random.floats(size * count));
            for_each_exec(|exec| {
                let (mut together, mut alone) = (vec![0.0; count], vec![0.0; count]);
                score_keys(exec.isa(), &query, &keys, 0.125, &mut together);
                for (score, key) in alone.chunks_exact_mut(1).zip(keys.chunks_exact(size)) {
                    score_keys(exec.isa(), &query, key, 0.125, score);
                }
                assert_eq!(together, alone, "{count} keys of {size} on {:?}", exec.isa());
            });
        }
    }
}
