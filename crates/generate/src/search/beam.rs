//! Beam search for one prompt: which beams go on with which tokens, and which hypotheses are kept. The caller applies the
//! rules to each beam's scores and moves caches by parent. History is kept as pairs of token and parent, so that memory
//! grows with steps times beams, whatever the length of the context.

use super::choose::log_softmax;

/// Score of beams that start only as copies of the first.
const NOT_STARTED: f64 = -1e9;

/// A finished sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Hypothesis {
    /// Generated tokens, without the one that ended it.
    pub tokens: Vec<u32>,
    /// Sum of log-probabilities by the length penalty.
    pub score: f64,
    /// Whether a token that ends sequences ended it.
    pub is_ended: bool,
}

/// The next step: beam i goes on from `parents[i]` with `tokens[i]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BeamStep {
    /// Beam that each new beam goes on from.
    pub parents: Vec<usize>,
    /// Token that each new beam goes on with.
    pub tokens: Vec<u32>,
}

/// A beam: its score and the end of its history.
#[derive(Clone, Copy, Debug)]
struct Beam {
    score: f64,
    last: Option<usize>,
}

/// Beam search for one prompt.
#[derive(Clone, Debug)]
pub struct BeamSearch {
    beam_count: usize,
    prompt_length: usize,
    length_penalty: f64,
    early_stopping: bool,
    eos: Vec<u32>,
    /// Tokens with the position of the token before, for all beams.
    history: Vec<(u32, Option<usize>)>,
    beams: Vec<Beam>,
    generated: usize,
    hypotheses: Vec<Hypothesis>,
    is_done: bool,
}

/// One way to go on.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    score: f64,
    beam: usize,
    token: u32,
}

impl BeamSearch {
    /// A search over so many beams behind a prompt of so many tokens. `eos` are the tokens that end sequences.
    pub fn new(
        beam_count: usize,
        prompt_length: usize,
        length_penalty: f64,
        early_stopping: bool,
        eos: &[u32],
    ) -> BeamSearch {
        let beam = |beam: usize| Beam { score: if beam == 0 { 0.0 } else { NOT_STARTED }, last: None };
        BeamSearch {
            beam_count,
            prompt_length,
            length_penalty,
            early_stopping,
            eos: eos.to_vec(),
            history: Vec::new(),
            beams: (0..beam_count).map(beam).collect(),
            generated: 0,
            hypotheses: Vec::new(),
            is_done: false,
        }
    }

    /// Whether no step can improve the result.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Beams that go on.
    pub fn beam_count(&self) -> usize {
        self.beams.len()
    }

    /// Generated tokens of a beam.
    pub fn tokens(&self, beam: usize) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(self.generated);
        let mut position = self.beams[beam].last;
        while let Some((token, before)) = position.map(|position| self.history[position]) {
            tokens.push(token);
            position = before;
        }
        tokens.reverse();
        tokens
    }

    /// Takes the scores of every beam, after the rules, and decides how to go on; `None` when the search is done.
    pub fn advance(&mut self, logits: &[&[f32]]) -> Option<BeamStep> {
        let candidates = self.candidates(logits);
        let mut chosen = Vec::with_capacity(self.beam_count);
        for (rank, candidate) in candidates.iter().enumerate() {
            if !self.eos.contains(&candidate.token) {
                chosen.push(*candidate);
            } else if rank < self.beam_count {
                self.keep(self.tokens(candidate.beam), candidate.score, true);
            }
            if chosen.len() == self.beam_count {
                break;
            }
        }
        self.is_done =
            chosen.is_empty() || self.cannot_improve(candidates.first().map_or(NOT_STARTED, |best| best.score));
        if self.is_done {
            return None;
        }
        Some(self.go_on(&chosen))
    }

    /// The best sequences, best first; beams that are open when the search ends count as they are.
    pub fn finish(mut self, count: usize) -> Vec<Hypothesis> {
        if !self.is_done {
            for beam in 0..self.beams.len() {
                self.keep(self.tokens(beam), self.beams[beam].score, false);
            }
        }
        self.hypotheses.truncate(count);
        self.hypotheses
    }

    /// The best continuations, best first; equal ones by beam and then by token.
    fn candidates(&self, logits: &[&[f32]]) -> Vec<Candidate> {
        let count = 2 * self.beam_count;
        let mut candidates: Vec<Candidate> = Vec::new();
        for (beam, logits) in logits.iter().enumerate() {
            let scores = log_softmax(logits);
            let base = self.beams[beam].score;
            let allowed = scores.iter().enumerate().filter(|(_, score)| **score != f64::NEG_INFINITY);
            candidates.extend(allowed.map(|(token, score)| Candidate {
                score: base + score,
                beam,
                token: token as u32,
            }));
            if candidates.len() > count {
                candidates.select_nth_unstable_by(count - 1, better);
                candidates.truncate(count);
            }
        }
        candidates.sort_unstable_by(better);
        candidates
    }

    fn go_on(&mut self, chosen: &[Candidate]) -> BeamStep {
        let mut beams = Vec::with_capacity(chosen.len());
        for candidate in chosen {
            self.history.push((candidate.token, self.beams[candidate.beam].last));
            beams.push(Beam { score: candidate.score, last: Some(self.history.len() - 1) });
        }
        self.beams = beams;
        self.generated += 1;
        let parents = chosen.iter().map(|candidate| candidate.beam).collect();
        BeamStep { parents, tokens: chosen.iter().map(|candidate| candidate.token).collect() }
    }

    fn keep(&mut self, tokens: Vec<u32>, sum: f64, is_ended: bool) {
        let score = sum / self.penalty();
        let position = self.hypotheses.partition_point(|kept| kept.score >= score);
        self.hypotheses.insert(position, Hypothesis { tokens, score, is_ended });
        self.hypotheses.truncate(self.beam_count);
    }

    /// What divides sums at this length.
    fn penalty(&self) -> f64 {
        ((self.prompt_length + self.generated) as f64).powf(self.length_penalty)
    }

    fn cannot_improve(&self, best: f64) -> bool {
        let is_full = self.hypotheses.len() >= self.beam_count;
        let worst = self.hypotheses.last().map_or(f64::NEG_INFINITY, |kept| kept.score);
        is_full && (self.early_stopping || best / self.penalty() <= worst)
    }
}

fn better(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.score.total_cmp(&a.score).then(a.beam.cmp(&b.beam)).then(a.token.cmp(&b.token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A model whose scores depend on the last token alone.
    fn logits(last: u32, vocabulary: usize, seed: u64) -> Vec<f32> {
        let score = |token: usize| {
            let mixed = (seed ^ (u64::from(last) << 8) ^ token as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((mixed >> 40) % 1000) as f32 / 150.0
        };
        (0..vocabulary).map(score).collect()
    }

    fn search(beams: usize, penalty: f64, early: bool, steps: usize, vocabulary: usize, seed: u64) -> Vec<Hypothesis> {
        let mut search = BeamSearch::new(beams, 3, penalty, early, &[0]);
        for _ in 0..steps {
            let last = |beam: usize| search.tokens(beam).last().copied().unwrap_or(1);
            let scores: Vec<Vec<f32>> =
                (0..search.beam_count()).map(|beam| logits(last(beam), vocabulary, seed)).collect();
            if search.advance(&scores.iter().map(Vec::as_slice).collect::<Vec<_>>()).is_none() {
                break;
            }
        }
        search.finish(beams)
    }

    #[test]
    fn one_step_keeps_the_best_beams_of_the_first_one() {
        let mut search = BeamSearch::new(2, 1, 1.0, true, &[]);
        let flat = [0.0f32, 2.0, 1.0];
        let step = search.advance(&[&flat, &flat]);
        assert_eq!(step, Some(BeamStep { parents: vec![0, 0], tokens: vec![1, 2] }));
        assert_eq!((search.tokens(0), search.tokens(1)), (vec![1], vec![2]));
    }

    #[test]
    fn equal_candidates_go_by_beam_and_then_by_token() {
        let mut search = BeamSearch::new(2, 1, 1.0, true, &[]);
        let step = search.advance(&[&[1.0, 1.0, 1.0], &[0.0; 3]]);
        assert_eq!(step, Some(BeamStep { parents: vec![0, 0], tokens: vec![0, 1] }));
    }

    #[test]
    fn an_end_of_low_rank_is_passed_over() {
        let mut search = BeamSearch::new(1, 1, 1.0, false, &[2]);
        // The end is second of two candidates, and one beam is wanted.
        assert_eq!(search.advance(&[&[0.0, 3.0, 1.0]]).map(|step| step.tokens), Some(vec![1]));
        assert!(search.hypotheses.is_empty());
        assert_eq!(search.advance(&[&[0.0, 1.0, 3.0]]), None);
        let best = search.finish(1);
        assert_eq!((best[0].tokens.as_slice(), best[0].is_ended), (&[1][..], true));
    }

    proptest! {
        /// One beam is the greedy search, and more beams never find a worse best sequence of one length.
        #[test]
        fn beams_find_what_greedy_search_finds_or_better(seed in 0u64..500, steps in 1usize..6) {
            let greedy = search(1, 0.0, true, steps, 7, seed);
            let mut tokens = Vec::new();
            let mut last = 1;
            for _ in 0..steps {
                let scores = logits(last, 7, seed);
                let best = (0..7u32).fold(0, |best, token| if scores[token as usize] > scores[best as usize] { token } else { best });
                if best == 0 { break; }
                tokens.push(best);
                last = best;
            }
            prop_assert_eq!(&greedy[0].tokens, &tokens);
        }

        /// What a search finds is sorted, within its number, and never holds the token that ends sequences.
        #[test]
        fn results_are_in_order(seed in 0u64..500, beams in 1usize..6, penalty in 0.0f64..2.0, early: bool) {
            let found = search(beams, penalty, early, 8, 9, seed);
            prop_assert!(!found.is_empty() && found.len() <= beams);
            prop_assert!(found.windows(2).all(|pair| pair[0].score >= pair[1].score));
            prop_assert!(found.iter().all(|hypothesis| !hypothesis.tokens.contains(&0)));
        }
    }

    #[test]
    fn defect_20_memory_follows_steps_and_not_the_context() {
        let mut search = BeamSearch::new(4, 131_071, 1.0, true, &[]);
        for step in 0..1000 {
            let scores = logits(step, 5, 1);
            search.advance(&[&scores, &scores, &scores, &scores]);
        }
        assert!(search.history.len() <= 4000);
    }
}
