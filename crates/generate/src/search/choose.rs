//! The choice of one token from scores that all rules were applied to: the likeliest, or a draw.

use std::cmp::Ordering;

use super::params::GeneratorParams;
use super::rules::{RuleError, check_logits};

/// Scores that are looked at together, without asking after each: such loops become vectors.
const TOGETHER: usize = 256;

/// What was chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// Its probability among those that could be drawn; 1 where nothing was drawn.
    pub probability: f64,
}

/// Chooses a token. `draw` gives the number in 0..1 that decides, and is asked only where something is drawn.
pub fn choose(logits: &[f32], params: &GeneratorParams, draw: impl FnOnce() -> f64) -> Choice {
    if params.is_greedy() {
        return Choice { token: likeliest(logits), probability: 1.0 };
    }
    let kept = keep(logits, params);
    let total: f64 = kept.iter().map(|(_, weight)| weight).sum();
    let threshold = draw() * total;
    let mut sum = 0.0;
    for &(token, weight) in &kept {
        sum += weight;
        if sum > threshold {
            return Choice { token, probability: weight / total };
        }
    }
    // Rounding may leave the last sum just below the threshold.
    let (token, weight) = kept.last().copied().unwrap_or((likeliest(logits), total));
    Choice { token, probability: weight / total }
}

/// The token that `choose` takes behind so many tokens where no rule changes scores and the likeliest one is taken.
pub fn choose_likeliest(logits: &[f32], position: usize) -> Result<u32, RuleError> {
    let Largest { score, is_whole } = Largest::of(logits);
    if !is_whole || score == f32::INFINITY {
        check_logits(logits, position)?;
    }
    if score == f32::NEG_INFINITY { Err(RuleError::NothingAllowed { position }) } else { Ok(first_of(logits, score)) }
}

/// The largest score; of equal ones the lowest id.
fn likeliest(logits: &[f32]) -> u32 {
    first_of(logits, Largest::of(logits).score)
}

/// The lowest id with this score.
fn first_of(logits: &[f32], largest: f32) -> u32 {
    first_where(logits, |score| score == largest).unwrap_or(0) as u32
}

/// What one look at all scores finds.
struct Largest {
    score: f32,
    /// Whether every score is a number.
    is_whole: bool,
}

impl Largest {
    fn of(logits: &[f32]) -> Largest {
        const LANES: usize = 16;
        let (chunks, rest) = logits.as_chunks::<LANES>();
        let larger = |a: f32, b: f32| if b > a { b } else { a };
        let (mut lanes, mut are_numbers) = ([f32::NEG_INFINITY; LANES], [u32::MAX; LANES]);
        for chunk in chunks {
            lanes = std::array::from_fn(|lane| larger(lanes[lane], chunk[lane]));
            are_numbers =
                std::array::from_fn(|lane| are_numbers[lane] & u32::from(!chunk[lane].is_nan()).wrapping_neg());
        }
        let is_whole = are_numbers.iter().all(|&mask| mask == u32::MAX) && !rest.iter().any(|score| score.is_nan());
        Largest { score: lanes.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, larger), is_whole }
    }
}

/// The first score of which something holds.
pub(super) fn first_where(logits: &[f32], holds: impl Fn(f32) -> bool) -> Option<usize> {
    let is_there = |part: &[f32]| part.iter().fold(false, |is_there, &score| is_there | holds(score));
    let part = logits.chunks(TOGETHER).position(is_there)?;
    let first = part * TOGETHER;
    logits[first..].iter().position(|&score| holds(score)).map(|place| first + place)
}

/// Tokens that may be drawn, likeliest first, and their weights.
fn keep(logits: &[f32], params: &GeneratorParams) -> Vec<(u32, f64)> {
    let ids = in_order(logits, params.search.top_k);
    let largest = ids.first().map_or(0.0, |&id| f64::from(logits[id as usize]));
    let weight = |id: u32| ((f64::from(logits[id as usize]) - largest) / params.search.temperature).exp();
    let mut kept: Vec<(u32, f64)> = ids.into_iter().map(|id| (id, weight(id))).collect();
    let total: f64 = kept.iter().map(|(_, weight)| weight).sum();
    let top_p = params.search.top_p;
    if 0.0 < top_p && top_p < 1.0 {
        let mut sum = 0.0;
        let prefix = kept.iter().position(|(_, weight)| {
            sum += weight / total;
            sum >= top_p
        });
        kept.truncate(prefix.map_or(kept.len(), |last| last + 1));
    }
    if params.min_p > 0.0 {
        // Weights are parts of the likeliest one's already.
        kept.retain(|(_, weight)| *weight >= params.min_p);
    }
    kept
}

/// Ids by falling score and then rising id, without banned ones; with `top_k` of 2 or more only the first so many.
fn in_order(logits: &[f32], top_k: usize) -> Vec<u32> {
    let is_allowed = |id: &u32| logits[*id as usize] != f32::NEG_INFINITY;
    let mut ids: Vec<u32> = (0..logits.len() as u32).filter(is_allowed).collect();
    let order = |a: &u32, b: &u32| by_score(logits, *a, *b);
    if top_k > 1 && top_k < ids.len() {
        ids.select_nth_unstable_by(top_k - 1, order);
        ids.truncate(top_k);
    }
    ids.sort_unstable_by(order);
    ids
}

fn by_score(logits: &[f32], a: u32, b: u32) -> Ordering {
    logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b))
}

/// What all scores have in common when they become log-probabilities: the logarithm of the sum of their exponentials.
fn log_sum(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if largest == f32::NEG_INFINITY {
        return f64::NEG_INFINITY;
    }
    let largest = f64::from(largest);
    logits.iter().map(|&score| (f64::from(score) - largest).exp()).sum::<f64>().ln() + largest
}

/// Log-probabilities of all tokens.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let total = log_sum(logits);
    logits.iter().map(|&score| f64::from(score) - total).collect()
}

/// The log-probability of one token.
pub fn log_softmax_at(logits: &[f32], token: u32) -> f64 {
    logits.get(token as usize).map_or(f64::NEG_INFINITY, |&score| f64::from(score) - log_sum(logits))
}

/// The likeliest tokens and their log-probabilities.
pub fn top_logprobs(logits: &[f32], count: usize) -> Vec<(u32, f64)> {
    let total = log_sum(logits);
    let mut ids = in_order(logits, count);
    ids.truncate(count);
    ids.into_iter().map(|id| (id, f64::from(logits[id as usize]) - total)).collect()
}

/// The log-probability of a token among those that may be drawn by scores that all rules were applied to, and the likeliest of
/// these with theirs.
pub fn processed_logprobs(
    logits: &[f32],
    params: &GeneratorParams,
    token: u32,
    count: usize,
) -> (f64, Vec<(u32, f64)>) {
    if params.is_greedy() {
        return (log_softmax_at(logits, token), top_logprobs(logits, count));
    }
    let kept = keep(logits, params);
    let total = kept.iter().map(|(_, weight)| weight).sum::<f64>().ln();
    let logprob = kept.iter().find(|(id, _)| *id == token).map_or(f64::NEG_INFINITY, |(_, weight)| weight.ln() - total);
    (logprob, kept.into_iter().take(count).map(|(id, weight)| (id, weight.ln() - total)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::philox::{Draw, uniform};
    use super::super::rules::test_params;
    use super::*;
    use proptest::prelude::*;

    const NEVER: f32 = f32::NEG_INFINITY;

    fn sampling() -> GeneratorParams {
        let mut params = test_params();
        (params.search.do_sample, params.search.top_k) = (true, 0);
        params
    }

    fn kept(logits: &[f32], change: impl FnOnce(&mut GeneratorParams)) -> Vec<u32> {
        let mut params = sampling();
        change(&mut params);
        keep(logits, &params).into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn equal_scores_give_the_lowest_id() {
        assert_eq!(likeliest(&[0.0, 2.0, 2.0]), 1);
        assert_eq!(likeliest(&[NEVER, NEVER, -3.0]), 2);
        assert_eq!((likeliest(&[NEVER, NEVER]), likeliest(&[])), (0, 0));
        let mut many = vec![-1.0; 1000];
        for token in [999, 700, 299] {
            many[token] = 3.0;
            assert_eq!(likeliest(&many), token as u32);
        }
        for params in [test_params(), sampling().top_k(1), sampling().temperature(0.0)] {
            assert_eq!(choose(&[1.0, 5.0, 5.0], &params, || 0.99), Choice { token: 1, probability: 1.0 });
        }
    }

    #[test]
    fn the_likeliest_of_plain_scores_is_what_rules_and_choice_give() {
        assert_eq!(choose_likeliest(&[1.0, 5.0, 5.0, NEVER], 0), Ok(1));
        assert_eq!(choose_likeliest(&[NEVER, NEVER], 7), Err(RuleError::NothingAllowed { position: 7 }));
        assert_eq!(choose_likeliest(&[], 7), Err(RuleError::NothingAllowed { position: 7 }));
        let error = choose_likeliest(&[0.0, f32::INFINITY, f32::NAN], 3).unwrap_err().to_string();
        assert_eq!(error, "the score of token 1 at position 3 is inf; a finite number was expected");
    }

    #[test]
    fn processed_probabilities_are_those_of_what_may_be_drawn() {
        let logits: Vec<f32> = [0.1f32, 0.4, 0.2, 0.3].iter().map(|p| p.ln()).chain([NEVER]).collect();
        let close = |found: (f64, Vec<(u32, f64)>), logprob: f64, top: &[(u32, f64)]| {
            assert!((found.0.exp() - logprob).abs() < 1e-6, "{found:?}");
            assert_eq!(found.1.len(), top.len(), "{found:?}");
            for (found, expected) in found.1.iter().zip(top) {
                assert!(found.0 == expected.0 && (found.1.exp() - expected.1).abs() < 1e-6, "{found:?}");
            }
        };
        let drawn = sampling().top_k(2);
        close(processed_logprobs(&logits, &drawn, 3, 20), 3.0 / 7.0, &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]);
        close(processed_logprobs(&logits, &drawn, 1, 1), 4.0 / 7.0, &[(1, 4.0 / 7.0)]);
        // Half the temperature squares probabilities.
        let cold = sampling().temperature(0.5);
        close(processed_logprobs(&logits, &cold, 1, 0), 16.0 / 30.0, &[]);
        close(processed_logprobs(&logits, &test_params(), 1, 2), 0.4, &[(1, 0.4), (3, 0.3)]);
    }

    #[test]
    fn tokens_are_kept_by_rank_by_sum_and_by_part_of_the_likeliest() {
        let logits: Vec<f32> = [0.1f32, 0.4, 0.2, 0.3].iter().map(|p| p.ln()).collect();
        assert_eq!(kept(&logits, |_| ()), [1, 3, 2, 0]);
        assert_eq!(kept(&logits, |params| params.search.top_k = 2), [1, 3]);
        assert_eq!(kept(&logits, |params| params.search.top_k = 9), [1, 3, 2, 0]);
        assert_eq!(kept(&logits, |params| params.search.top_p = 0.7), [1, 3]);
        assert_eq!(kept(&logits, |params| params.search.top_p = 0.01), [1]);
        assert_eq!(kept(&logits, |params| params.search.top_p = 1.0), [1, 3, 2, 0]);
        assert_eq!(kept(&logits, |params| params.min_p = 0.45), [1, 3, 2]);
        // Of two kept by rank the first has 4/7 of what they have together.
        assert_eq!(kept(&logits, |params| (params.search.top_k, params.search.top_p) = (2, 0.57)), [1]);
        assert_eq!(kept(&[NEVER, 0.0, NEVER], |_| ()), [1]);
    }

    #[test]
    fn defect_22_full_distributions_are_drawn_from() {
        let logits = [0.0f32, 1.0, 2.0, 3.0];
        let params = sampling();
        let draws = 100_000u32;
        let mut counts = [0u32; 4];
        for position in 0..draws {
            let u = uniform(11, Draw { stream: 0, return_index: 0, position });
            counts[choose(&logits, &params, || u).token as usize] += 1;
        }
        let total: f64 = logits.iter().map(|&score| f64::from(score).exp()).sum();
        let chi_square: f64 = logits
            .iter()
            .zip(counts)
            .map(|(&score, count)| {
                let expected = f64::from(draws) * f64::from(score).exp() / total;
                (f64::from(count) - expected).powi(2) / expected
            })
            .sum();
        // 16.3 is passed once in a thousand with three degrees of freedom.
        assert!(chi_square < 16.3, "{chi_square} from {counts:?}");
    }

    /// Steps 8 to 12 as they are written, without a thought for speed.
    fn oracle(logits: &[f32], params: &GeneratorParams, u: f64) -> u32 {
        let mut ids: Vec<usize> = (0..logits.len()).filter(|&id| logits[id] != NEVER).collect();
        ids.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap_or(Ordering::Equal).then(a.cmp(&b)));
        if params.search.top_k > 1 {
            ids.truncate(params.search.top_k);
        }
        let weight =
            |id: usize| ((f64::from(logits[id]) - f64::from(logits[ids[0]])) / params.search.temperature).exp();
        let mut kept: Vec<(usize, f64)> = ids.iter().map(|&id| (id, weight(id))).collect();
        let total: f64 = kept.iter().map(|kept| kept.1).sum();
        if params.search.top_p > 0.0 && params.search.top_p < 1.0 {
            let mut length = 1;
            while length < kept.len()
                && kept[..length].iter().map(|kept| kept.1 / total).sum::<f64>() < params.search.top_p
            {
                length += 1;
            }
            kept.truncate(length);
        }
        kept.retain(|kept| kept.1 >= params.min_p);
        let total: f64 = kept.iter().map(|kept| kept.1).sum();
        let mut length = 1;
        while length < kept.len() && kept[..length].iter().map(|kept| kept.1).sum::<f64>() <= u * total {
            length += 1;
        }
        kept[length - 1].0 as u32
    }

    proptest! {
        #[test]
        fn defect_23_draws_equal_the_rules_as_they_are_written(
            logits in prop::collection::vec(prop_oneof![8 => -8i32..8, 1 => Just(i32::MIN)], 1..200),
            top_k in 0usize..20, top_p in 0.0f64..1.2, min_p in 0.0f64..0.5, temperature in 0.1f64..3.0, u in 0.0f64..1.0,
        ) {
            let logits: Vec<f32> = logits.iter().map(|&score| if score == i32::MIN { NEVER } else { score as f32 / 2.0 }).collect();
            prop_assume!(logits.iter().any(|&score| score != NEVER));
            let mut params = sampling().temperature(temperature).top_p(top_p.min(1.0)).top_k(if top_k == 1 { 0 } else { top_k });
            params.min_p = min_p;
            prop_assert_eq!(choose(&logits, &params, || u).token, oracle(&logits, &params, u));
        }
    }

    #[test]
    fn log_probabilities_sum_to_one() {
        let logits = [1.0f32, 2.0, NEVER, 300.0];
        let sum: f64 = log_softmax(&logits).iter().map(|logprob| logprob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        assert_eq!(log_softmax_at(&logits, 2), f64::NEG_INFINITY);
        assert_eq!(top_logprobs(&logits, 2).iter().map(|top| top.0).collect::<Vec<u32>>(), [3, 1]);
    }
}
