//! Which rows run in the next step, and how many tokens of each: a pure function, so that neither decoding nor prompts can
//! starve the other.
//!
//! With a budget of T tokens and R rows: if a prompt waits, one row and `prefill_min` tokens are set aside for the oldest
//! one. Rows that decode come first, the least recently stepped first, each with its pending token and what of its draft
//! there is room for. Prompts get the rest, up to `prefill_max` tokens, the highest class first and within it first come first
//! served; the oldest prompt is the first in this order. Hence with d rows that decode each steps at least every ceil(d / (R - 1)) steps, and the oldest prompt gets `prefill_min` tokens in every step. With
//! R = 1 the least recently stepped of both sides runs, so each waits for at most d other steps.

use std::cmp::Reverse;

use super::row::RowId;

/// Prompts that get tokens in one step.
const PROMPTS_MAX: usize = 4;

/// A row that could run, as the scheduler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The row.
    pub row: RowId,
    /// Tokens that are not cached.
    pub pending: usize,
    /// Proposed tokens behind them.
    pub drafted: usize,
    /// Whether the pending tokens are a prompt, or tokens that are run again.
    pub is_prompt: bool,
    /// Its priority; prompts of higher ones come first.
    pub class: u64,
    /// When its turn came. Prompts that came earlier come first within a class.
    pub arrived: u64,
    /// The last step that it took part in.
    pub stepped: u64,
}

/// What one step may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepBudget {
    /// Tokens of all rows, T.
    pub tokens: usize,
    /// Rows, R.
    pub rows: usize,
    /// Tokens that the oldest prompt gets in every step, if it has so many.
    pub prefill_min: usize,
    /// Tokens that prompts get at most.
    pub prefill_max: usize,
}

/// What a row gets of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The row.
    pub row: RowId,
    /// Pending tokens that it runs.
    pub tokens: usize,
    /// Proposed tokens that it runs behind them.
    pub drafted: usize,
}

/// Shares a step among rows. Rows that decode come first in the result.
pub fn share_step(candidates: &[Candidate], budget: StepBudget) -> Vec<Share> {
    let mut prompts: Vec<&Candidate> = candidates.iter().filter(|candidate| candidate.is_prompt).collect();
    let mut decoding: Vec<&Candidate> = candidates.iter().filter(|candidate| !candidate.is_prompt).collect();
    prompts.sort_by_key(|candidate| (Reverse(candidate.class), candidate.arrived, candidate.row));
    decoding.sort_by_key(|candidate| (candidate.stepped, candidate.row));
    if budget.rows == 1 {
        keep_the_side_that_waited_longer(&mut prompts, &mut decoding);
    }
    let set_aside = prompts.first().map_or(0, |oldest| oldest.pending.min(budget.prefill_min.max(1)));
    let rows_aside = usize::from(set_aside > 0);
    let mut left = Left { tokens: budget.tokens.saturating_sub(set_aside), rows: budget.rows - rows_aside };
    let mut shares = share_decoding(&decoding, &mut left);
    left.tokens += set_aside.min(budget.tokens);
    left.rows += rows_aside;
    left.tokens = left.tokens.min(budget.prefill_max.max(set_aside));
    shares.extend(share_prompts(&prompts, &mut left));
    shares
}

/// What is left of a budget.
struct Left {
    tokens: usize,
    rows: usize,
}

fn keep_the_side_that_waited_longer(prompts: &mut Vec<&Candidate>, decoding: &mut Vec<&Candidate>) {
    let (Some(prompt), Some(row)) = (prompts.first(), decoding.first()) else { return };
    match (prompt.stepped, prompt.row) <= (row.stepped, row.row) {
        true => decoding.clear(),
        false => prompts.clear(),
    }
}

/// Every row gets what it has pending before any gets room for its draft.
fn share_decoding(decoding: &[&Candidate], left: &mut Left) -> Vec<Share> {
    let mut shares = Vec::new();
    for candidate in decoding {
        if left.rows == 0 || left.tokens == 0 {
            break;
        }
        let tokens = candidate.pending.min(left.tokens);
        left.tokens -= tokens;
        left.rows -= 1;
        shares.push(Share { row: candidate.row, tokens, drafted: 0 });
    }
    for (share, candidate) in shares.iter_mut().zip(decoding) {
        if share.tokens == candidate.pending {
            share.drafted = candidate.drafted.min(left.tokens);
            left.tokens -= share.drafted;
        }
    }
    shares
}

fn share_prompts(prompts: &[&Candidate], left: &mut Left) -> Vec<Share> {
    let mut shares = Vec::new();
    for candidate in prompts.iter().take(PROMPTS_MAX) {
        let tokens = candidate.pending.min(left.tokens);
        if tokens == 0 || left.rows == 0 {
            break;
        }
        left.tokens -= tokens;
        left.rows -= 1;
        shares.push(Share { row: candidate.row, tokens, drafted: 0 });
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate(row: u64, pending: usize, is_prompt: bool, stepped: u64) -> Candidate {
        Candidate { row: RowId(row), pending, drafted: 0, is_prompt, class: 0, arrived: 0, stepped }
    }

    fn shares(candidates: &[Candidate], budget: StepBudget) -> Vec<(u64, usize)> {
        share_step(candidates, budget).iter().map(|share| (share.row.0, share.tokens)).collect()
    }

    const BUDGET: StepBudget = StepBudget { tokens: 16, rows: 4, prefill_min: 4, prefill_max: 8 };

    #[test]
    fn decoding_comes_first_and_the_oldest_prompt_always_advances() {
        let decoding = |row| candidate(row, 1, false, row);
        let full: Vec<Candidate> = (1..7).map(decoding).chain([candidate(9, 100, true, 0)]).collect();
        assert_eq!(shares(&full, BUDGET), [(1, 1), (2, 1), (3, 1), (9, 8)]);
        assert_eq!(shares(&full[..6], BUDGET), [(1, 1), (2, 1), (3, 1), (4, 1)]);
        let prompts = [candidate(9, 3, true, 0), candidate(8, 2, true, 0), candidate(10, 9, true, 0)];
        assert_eq!(shares(&prompts, BUDGET), [(8, 2), (9, 3), (10, 3)]);
    }

    #[test]
    fn prompts_of_a_higher_class_come_first_and_then_those_that_came_first() {
        let prompt = |row, class, arrived| Candidate { class, arrived, ..candidate(row, 5, true, 0) };
        let prompts = [prompt(1, 0, 7), prompt(2, 0, 3), prompt(3, 1, 9)];
        assert_eq!(shares(&prompts, BUDGET), [(3, 5), (2, 3)]);
    }

    #[test]
    fn one_row_a_step_goes_to_who_waited_longer() {
        let budget = StepBudget { rows: 1, ..BUDGET };
        assert_eq!(shares(&[candidate(1, 1, false, 5), candidate(2, 9, true, 4)], budget), [(2, 8)]);
        assert_eq!(shares(&[candidate(1, 1, false, 5), candidate(2, 9, true, 6)], budget), [(1, 1)]);
    }

    #[test]
    fn drafts_get_what_pending_tokens_leave() {
        let drafting = |row, drafted| Candidate { drafted, ..candidate(row, 1, false, 0) };
        let budget = StepBudget { tokens: 7, ..BUDGET };
        let shares = share_step(&[drafting(1, 4), drafting(2, 4)], budget);
        assert_eq!(shares.iter().map(|share| share.drafted).collect::<Vec<_>>(), [4, 1]);
    }

    proptest! {
        #[test]
        fn no_step_is_larger_than_its_budget_and_no_step_is_empty(
            rows in prop::collection::vec((1usize..40, 0usize..5, any::<bool>(), 0u64..9), 1..30),
            tokens in 1usize..64, row_budget in 1usize..9, prefill_min in 1usize..64, prefill_max in 1usize..64,
        ) {
            let candidates: Vec<Candidate> = rows
                .iter()
                .enumerate()
                .map(|(row, &(pending, drafted, is_prompt, stepped))| Candidate {
                    drafted: if is_prompt { 0 } else { drafted },
                    ..candidate(row as u64, pending, is_prompt, stepped)
                })
                .collect();
            let budget = StepBudget { tokens, rows: row_budget, prefill_min: prefill_min.min(tokens), prefill_max };
            let shares = share_step(&candidates, budget);
            prop_assert!(!shares.is_empty());
            prop_assert!(shares.len() <= row_budget);
            prop_assert!(shares.iter().map(|share| share.tokens + share.drafted).sum::<usize>() <= tokens);
            for share in &shares {
                let candidate = candidates[share.row.0 as usize];
                prop_assert!((1..=candidate.pending).contains(&share.tokens) && share.drafted <= candidate.drafted);
            }
            let distinct: std::collections::BTreeSet<RowId> = shares.iter().map(|share| share.row).collect();
            prop_assert_eq!(distinct.len(), shares.len());
        }
    }
}
