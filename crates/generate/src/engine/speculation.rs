//! How many tokens of a row are proposed, and proposals that are looked up in what it said before. Proposals are verified by
//! the model, so they change speed and nothing else.

use std::collections::VecDeque;

use crate::config::SpeculativeConfig;

/// Most tokens that an adaptive width proposes.
pub(super) const WIDTH_MAX: usize = 16;
/// Rounds that an adaptive width looks back on.
const ROUNDS: usize = 8;
/// Share of accepted tokens from which on an adaptive width grows.
const GROWS_FROM: f64 = 0.75;
/// Share of accepted tokens below which an adaptive width shrinks.
const SHRINKS_BELOW: f64 = 0.5;
/// Rounds without an accepted token, at the least width, after which one step is plain.
const EMPTY_ROUNDS_MAX: usize = 3;

/// What speculation did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpeculationStats {
    /// Steps in which something was proposed.
    pub rounds: usize,
    /// Tokens that were proposed.
    pub proposed: usize,
    /// Proposed tokens that were right.
    pub accepted: usize,
    /// Rounds that ended with another token than the proposed one.
    pub corrections: usize,
    /// Rounds in which all was right, so that one more token was had.
    pub bonus: usize,
    /// Rounds whose proposals were looked up in the row itself.
    pub lookup_hits: usize,
}

impl SpeculationStats {
    /// Counts a step of one row in which so many tokens were proposed and so many of them right.
    pub fn count_round(&mut self, proposed: usize, accepted: usize, is_looked_up: bool) {
        if proposed == 0 {
            return;
        }
        self.rounds += 1;
        self.lookup_hits += usize::from(is_looked_up);
        self.proposed += proposed;
        self.accepted += accepted;
        match accepted == proposed {
            true => self.bonus += 1,
            false => self.corrections += 1,
        }
    }
}

/// How one row speculates.
#[derive(Clone, Debug)]
pub struct Speculation {
    config: SpeculativeConfig,
    width: usize,
    /// Accepted and proposed tokens of the last rounds.
    recent: VecDeque<(usize, usize)>,
    empty_rounds: usize,
}

impl Speculation {
    /// As the configuration says.
    pub fn new(config: &SpeculativeConfig) -> Speculation {
        let width = config.max_draft_tokens.max(config.min_adaptive_k);
        Speculation { config: config.clone(), width, recent: VecDeque::new(), empty_rounds: 0 }
    }

    /// Tokens to propose in the next step, at most `room`.
    pub fn width(&self, room: usize) -> usize {
        if self.is_cooling() { 0 } else { self.width.min(room) }
    }

    /// Tokens that may follow, at most `room`; none where nothing was found.
    pub fn propose(&self, tokens: &[u32], room: usize) -> Vec<u32> {
        let wanted = self.width(room);
        if self.config.ngram_size < 2 || wanted == 0 {
            return Vec::new();
        }
        let mut proposed = look_up(tokens, self.config.ngram_size, wanted);
        while self.config.ngram_chained_lookup && !proposed.is_empty() && proposed.len() < wanted {
            let imagined = [tokens, &proposed].concat();
            let more = look_up(&imagined, self.config.ngram_size, wanted - proposed.len());
            if more.is_empty() {
                break;
            }
            proposed.extend(more);
        }
        proposed
    }

    /// Learns how a round went; a round without proposals ends a pause.
    pub fn learn(&mut self, accepted: usize, proposed: usize) {
        if proposed == 0 {
            self.empty_rounds = 0;
            return;
        }
        self.empty_rounds = if accepted == 0 { self.empty_rounds + 1 } else { 0 };
        self.recent.push_back((accepted, proposed));
        if self.recent.len() > ROUNDS {
            self.recent.pop_front();
        }
        if self.config.min_adaptive_k == 0 {
            return;
        }
        let (accepted, proposed) = self.recent.iter().fold((0, 0), |sum, round| (sum.0 + round.0, sum.1 + round.1));
        let share = accepted as f64 / proposed as f64;
        if share >= GROWS_FROM {
            self.width = (self.width + 1).min(WIDTH_MAX);
        } else if share < SHRINKS_BELOW {
            self.width = (self.width - 1).max(self.config.min_adaptive_k);
        }
    }

    /// Whether the next step is a plain one, after rounds that brought nothing.
    fn is_cooling(&self) -> bool {
        let is_at_floor = self.config.min_adaptive_k == 0 || self.width == self.config.min_adaptive_k;
        self.config.cooldown && is_at_floor && self.empty_rounds >= EMPTY_ROUNDS_MAX
    }
}

/// What followed the latest earlier occurrence of the last `size - 1` tokens.
fn look_up(tokens: &[u32], size: usize, wanted: usize) -> Vec<u32> {
    let key = size - 1;
    if tokens.len() <= key || wanted == 0 {
        return Vec::new();
    }
    let (before, last) = tokens.split_at(tokens.len() - key);
    let found = (0..before.len()).rev().find(|&start| &tokens[start..start + key] == last);
    let follows = found.map_or(&[][..], |start| &tokens[start + key..]);
    follows.iter().copied().take(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> SpeculativeConfig {
        SpeculativeConfig {
            max_draft_tokens: 4,
            ngram_size: 3,
            ngram_chained_lookup: false,
            min_adaptive_k: 0,
            cooldown: false,
        }
    }

    #[test]
    fn the_latest_earlier_occurrence_is_proposed() {
        let speculation = Speculation::new(&config());
        assert_eq!(speculation.propose(&[1, 2, 3, 1, 2, 4, 5, 1, 2], 9), [4, 5, 1, 2]);
        assert_eq!(speculation.propose(&[1, 2, 3, 1, 2, 4, 5, 1, 2], 1), [4]);
        assert_eq!(speculation.propose(&[1, 2, 3], 9), [0u32; 0]);
        assert_eq!(speculation.propose(&[7, 7, 7], 9), [7]);
        assert_eq!(speculation.propose(&[], 9), [0u32; 0]);
        let off = Speculation::new(&SpeculativeConfig { ngram_size: 0, ..config() });
        assert_eq!(off.propose(&[7, 7, 7], 9), [0u32; 0]);
    }

    #[test]
    fn a_chained_lookup_goes_on_behind_what_it_found() {
        let chained = Speculation::new(&SpeculativeConfig { ngram_chained_lookup: true, ..config() });
        assert_eq!(chained.propose(&[7, 7, 7], 9), [7; 4]);
    }

    #[test]
    fn an_adaptive_width_follows_success_and_pauses_after_failure() {
        let mut speculation = Speculation::new(&SpeculativeConfig { min_adaptive_k: 2, cooldown: true, ..config() });
        (0..30).for_each(|_| speculation.learn(4, 4));
        assert_eq!(speculation.width, WIDTH_MAX);
        (0..30).for_each(|_| speculation.learn(0, 4));
        assert_eq!((speculation.width, speculation.is_cooling()), (2, true));
        assert_eq!(speculation.propose(&[7; 9], 9), [0u32; 0]);
        speculation.learn(0, 0);
        assert!(!speculation.propose(&[7; 9], 9).is_empty());
    }
}
