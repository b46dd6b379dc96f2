//! Rules on the scores of the next token, in their order. A banned token scores minus infinity; rules pass over those.

use std::collections::{BTreeMap, BTreeSet};

use super::choose::first_where;
use super::params::GeneratorParams;

/// What was said so far.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// All tokens, prompt and generated.
    pub tokens: &'a [u32],
    /// Which of them were generated.
    pub is_generated: &'a [bool],
}

/// Why no token can be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The model gave something that is no score.
    #[error("the score of token {token} at position {position} is {value}; a finite number was expected")]
    NotAScore {
        /// The token.
        token: usize,
        /// Tokens before it.
        position: usize,
        /// Its score.
        value: String,
    },
    /// The rules left nothing.
    #[error("no token allowed at position {position}")]
    NothingAllowed {
        /// Tokens before it.
        position: usize,
    },
}

/// Scores are numbers or minus infinity.
pub fn check_logits(logits: &[f32], position: usize) -> Result<(), RuleError> {
    match first_where(logits, |score| score.is_nan() || score == f32::INFINITY) {
        Some(token) => Err(RuleError::NotAScore { token, position, value: logits[token].to_string() }),
        None => Ok(()),
    }
}

/// Applies the rules of a search. If they leave nothing, the rule on the least length is dropped.
pub fn apply_rules(
    logits: &mut [f32],
    history: History<'_>,
    params: &GeneratorParams,
    eos: &[u32],
) -> Result<(), RuleError> {
    apply_rules_within(logits, history, params, eos, &|_| ())
}

/// Applies the rules of a search to an answer that must follow a grammar: `mask` bans what the grammar does not allow.
pub fn apply_rules_within(
    logits: &mut [f32],
    history: History<'_>,
    params: &GeneratorParams,
    eos: &[u32],
    mask: &dyn Fn(&mut [f32]),
) -> Result<(), RuleError> {
    let position = history.tokens.len();
    check_logits(logits, position)?;
    let is_too_short = position < params.search.min_length;
    let given = if is_too_short { logits.to_vec() } else { Vec::new() };
    apply(logits, history, params, mask, if is_too_short { eos } else { &[] });
    if is_too_short && is_empty(logits) {
        logits.copy_from_slice(&given);
        apply(logits, history, params, mask, &[]);
    }
    if is_empty(logits) { Err(RuleError::NothingAllowed { position }) } else { Ok(()) }
}

fn is_empty(logits: &[f32]) -> bool {
    logits.iter().all(|&score| score == f32::NEG_INFINITY)
}

fn apply(
    logits: &mut [f32],
    history: History<'_>,
    params: &GeneratorParams,
    mask: &dyn Fn(&mut [f32]),
    banned: &[u32],
) {
    for (&token, &bias) in &params.logit_bias {
        if let Some(score) = logits.get_mut(token as usize) {
            *score += bias;
        }
    }
    mask(logits);
    for &token in banned {
        ban(logits, token);
    }
    penalise_repetition(logits, history.tokens, params.search.repetition_penalty as f32);
    penalise_counts(logits, history, params.presence_penalty as f32, params.frequency_penalty as f32);
    ban_ngrams(logits, history.tokens, params.search.no_repeat_ngram_size);
}

fn ban(logits: &mut [f32], token: u32) {
    if let Some(score) = logits.get_mut(token as usize) {
        *score = f32::NEG_INFINITY;
    }
}

/// Each token of the sequence once: a positive score is divided, a negative one multiplied.
fn penalise_repetition(logits: &mut [f32], tokens: &[u32], penalty: f32) {
    if penalty == 1.0 {
        return;
    }
    for token in tokens.iter().collect::<BTreeSet<_>>() {
        if let Some(score) = logits.get_mut(*token as usize) {
            *score = if *score < 0.0 { *score * penalty } else { *score / penalty };
        }
    }
}

/// Tokens that were generated, once each and once for every time.
fn penalise_counts(logits: &mut [f32], history: History<'_>, presence: f32, frequency: f32) {
    if presence == 0.0 && frequency == 0.0 {
        return;
    }
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    for (token, _) in history.tokens.iter().zip(history.is_generated).filter(|(_, is_generated)| **is_generated) {
        *counts.entry(*token).or_default() += 1;
    }
    for (token, count) in counts {
        if let Some(score) = logits.get_mut(token as usize) {
            *score -= presence + frequency * count as f32;
        }
    }
}

/// Tokens that would complete a sequence of `size` tokens that is there already.
fn ban_ngrams(logits: &mut [f32], tokens: &[u32], size: usize) {
    if size == 0 || tokens.len() < size {
        return;
    }
    let beginning = &tokens[tokens.len() + 1 - size..];
    for window in tokens.windows(size) {
        if &window[..size - 1] == beginning {
            ban(logits, window[size - 1]);
        }
    }
}

/// Options of a folder that sets none.
#[cfg(test)]
pub(super) fn test_params() -> GeneratorParams {
    GeneratorParams::new(crate::config::SearchConfig {
        do_sample: false,
        min_length: 0,
        max_length: 512,
        repetition_penalty: 1.0,
        top_k: 50,
        top_p: 0.0,
        temperature: 1.0,
        no_repeat_ngram_size: 0,
        random_seed: None,
        chunk_size: None,
        num_beams: 1,
        num_return_sequences: 1,
        length_penalty: 1.0,
        early_stopping: true,
        batch_size: 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: f32 = f32::NEG_INFINITY;

    fn applied(
        logits: &[f32],
        tokens: &[u32],
        change: impl FnOnce(&mut GeneratorParams),
    ) -> Result<Vec<f32>, RuleError> {
        let mut params = test_params();
        change(&mut params);
        let mut logits = logits.to_vec();
        let is_generated: Vec<bool> = (0..tokens.len()).map(|position| position >= 2).collect();
        let history = History { tokens, is_generated: &is_generated };
        apply_rules(&mut logits, history, &params, &[1]).map(|()| logits)
    }

    #[test]
    fn each_rule_changes_what_it_says() {
        let logits = [1.0, -2.0, 3.0, NEVER];
        let repeated = applied(&logits, &[0, 1, 1, 3], |params| params.search.repetition_penalty = 2.0);
        assert_eq!(repeated, Ok(vec![0.5, -4.0, 3.0, NEVER]));
        let counted = applied(&logits, &[0, 0, 1, 1], |params| {
            (params.presence_penalty, params.frequency_penalty) = (0.5, 0.25);
        });
        assert_eq!(counted, Ok(vec![1.0, -3.0, 3.0, NEVER]));
        let biased = applied(&logits, &[], |params| params.logit_bias = [(0, 2.5), (3, 9.0)].into());
        assert_eq!(biased, Ok(vec![3.5, -2.0, 3.0, NEVER]));
        let longer = applied(&logits, &[0, 0], |params| params.search.min_length = 3);
        assert_eq!(longer, Ok(vec![1.0, NEVER, 3.0, NEVER]));
        let long_enough = applied(&logits, &[0, 0, 0], |params| params.search.min_length = 3);
        assert_eq!(long_enough, Ok(logits.to_vec()));
    }

    #[test]
    fn ngrams_do_not_come_twice() {
        let of = |size: usize, tokens: &[u32]| {
            let banned = applied(&[0.0; 5], tokens, |params| params.search.no_repeat_ngram_size = size);
            let is_banned =
                |logits: Vec<f32>| (0..5u32).filter(|&token| logits[token as usize] == NEVER).collect::<Vec<u32>>();
            banned.map(is_banned)
        };
        assert_eq!(of(2, &[1, 2, 3, 1]), Ok(vec![2]));
        assert_eq!(of(3, &[1, 2, 3, 1, 2]), Ok(vec![3]));
        assert_eq!(of(3, &[1, 2]), Ok(vec![]));
        assert_eq!(of(1, &[1, 4]), Ok(vec![1, 4]));
        assert_eq!(of(1, &[0, 1, 2, 3, 4]), Err(RuleError::NothingAllowed { position: 5 }));
    }

    #[test]
    fn the_least_length_gives_way_where_nothing_else_is_left() {
        let logits = [NEVER, 1.0];
        assert_eq!(applied(&logits, &[0], |params| params.search.min_length = 9), Ok(logits.to_vec()));
    }

    #[test]
    fn what_is_no_score_is_an_error_that_names_it() {
        let error = applied(&[0.0, f32::NAN], &[7], |_| ()).unwrap_err();
        assert_eq!(error.to_string(), "the score of token 1 at position 1 is NaN; a finite number was expected");
        assert!(applied(&[0.0, f32::INFINITY], &[], |_| ()).is_err());
    }
}
