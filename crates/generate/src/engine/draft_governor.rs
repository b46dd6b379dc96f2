//! Whether proposals pay: with many rows a step is bound by arithmetic, and verifying tokens that are wrong costs what it
//! takes. Tokens a second of steps with and without proposals are compared, apart for every power of two of rows. What
//! is decided here changes speed alone.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Share of the plain rate that steps with proposals must reach.
const WORTH: f64 = 0.97;
/// Steps that are looked back on. Their median counts: a step that waited for a Program is many times slower than others.
const STEPS: usize = 7;
/// One of so many steps is run the other way, to learn what that costs now.
const EXPLORES: u64 = 32;

/// Tokens a second of the last steps with so many rows.
#[derive(Clone, Debug, Default)]
struct Rates {
    plain: VecDeque<f64>,
    drafting: VecDeque<f64>,
    steps: u64,
}

/// Decides whether proposals are made.
#[derive(Clone, Debug, Default)]
pub struct DraftGovernor {
    rates: BTreeMap<u32, Rates>,
}

impl DraftGovernor {
    /// Whether rows may propose in a step of so many rows.
    pub fn allows(&self, rows: usize) -> bool {
        let Some(rates) = self.rates.get(&class(rows)) else { return true };
        let is_exploring = rates.steps % EXPLORES == EXPLORES - 1;
        let is_worth = match (median(&rates.plain), median(&rates.drafting)) {
            (Some(plain), Some(drafting)) => drafting >= WORTH * plain,
            _ => true,
        };
        is_worth != is_exploring
    }

    /// Learns from a step of rows that all decode: how many tokens it gave, and how long it took.
    pub fn learn(&mut self, rows: usize, is_drafting: bool, tokens: usize, took: Duration) {
        let rates = self.rates.entry(class(rows)).or_default();
        rates.steps += 1;
        let rate = tokens as f64 / took.as_secs_f64().max(1e-9);
        let known = if is_drafting { &mut rates.drafting } else { &mut rates.plain };
        known.push_back(rate);
        if known.len() > STEPS {
            known.pop_front();
        }
    }
}

fn median(rates: &VecDeque<f64>) -> Option<f64> {
    let mut rates: Vec<f64> = rates.iter().copied().collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied()
}

/// Rows as a power of two.
fn class(rows: usize) -> u32 {
    rows.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proposals_stop_where_they_cost_more_than_they_bring_and_are_tried_again() {
        let mut governor = DraftGovernor::default();
        let (slow, quick) = (Duration::from_millis(20), Duration::from_millis(10));
        governor.learn(8, false, 8, quick);
        governor.learn(8, true, 10, slow);
        assert!(!governor.allows(9));
        assert!(governor.allows(1), "other numbers of rows are not known yet");
        let tried = (0..64).filter(|_| {
            let is_drafting = governor.allows(8);
            governor.learn(8, is_drafting, if is_drafting { 10 } else { 8 }, if is_drafting { slow } else { quick });
            is_drafting
        });
        assert_eq!(tried.count(), 2);
        (0..20).for_each(|_| governor.learn(8, true, 30, slow));
        assert!(governor.allows(8));
    }

    #[test]
    fn steps_that_wait_for_a_program_say_nothing() {
        let mut governor = DraftGovernor::default();
        let quick = Duration::from_millis(10);
        (0..7).for_each(|_| governor.learn(1, false, 1, quick));
        (0..5).for_each(|_| governor.learn(1, true, 4, quick));
        (0..3).for_each(|_| governor.learn(1, true, 4, Duration::from_secs(2)));
        assert!(governor.allows(1));
    }
}
