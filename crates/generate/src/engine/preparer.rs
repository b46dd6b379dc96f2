//! Programs that steps will need, compiled or loaded on a thread of its own before they do: those of a first capacity when an
//! engine begins, and those of the next capacity when rows come near the end of theirs.

use std::collections::BTreeSet;
use std::sync::mpsc::{Sender, channel};

use crate::ladder::Ladders;
use crate::plan::{StepPlan, StepShape};
use crate::text_model::StepError;

/// Rows that have filled this part of their capacity will soon need the next one.
const FILLED: (usize, usize) = (3, 4);

/// Prepares Programs.
pub(super) struct Preparer {
    /// To the thread, which ends when nobody can ask any more.
    shapes: Sender<(StepShape, bool)>,
    asked: BTreeSet<(StepShape, bool)>,
}

impl Preparer {
    /// Begins with what steps of at most so many rows need first: one row that decodes, prompts of every length, the longest
    /// first, and then more rows. None where there is no thread to be had; steps then wait for what they need.
    pub(super) fn begin(
        ladders: &Ladders,
        rows_max: usize,
        prepare: impl Fn(StepShape, bool) -> Result<(), StepError> + Send + 'static,
    ) -> Option<Preparer> {
        let (shapes, asked) = channel::<(StepShape, bool)>();
        let prepare_all = move || {
            for (shape, wants_scores) in asked {
                // The step that needs it meets the same failure and tells its rows.
                if prepare(shape, wants_scores).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("precast-prepare".to_string()).spawn(prepare_all).ok()?;
        let mut preparer = Preparer { shapes, asked: BTreeSet::new() };
        first_shapes(ladders, rows_max).into_iter().for_each(|(shape, scores)| preparer.ask(shape, scores));
        Some(preparer)
    }

    /// Looks at a step that ran, and asks for what follows it.
    pub(super) fn look_ahead(&mut self, plan: &StepPlan, ladders: &Ladders) {
        let StepShape { rows, length, capacity } = plan.shape;
        let end = plan.rows.iter().map(|row| row.cached + row.valid).max().unwrap_or(0);
        let next = ladders.capacity.at_least(capacity + 1).filter(|_| end * FILLED.1 >= capacity * FILLED.0);
        if let Some(capacity) = next {
            self.ask(StepShape { rows, length: 1, capacity }, true);
            if length > 1 {
                let longest = StepShape { rows: 1, length: ladders.length.largest(), capacity };
                self.ask(longest, true);
                self.ask(longest, false);
            }
        }
    }

    fn ask(&mut self, shape: StepShape, wants_scores: bool) {
        if self.asked.insert((shape, wants_scores)) {
            // A thread that has ended after a failure is not missed.
            let _ = self.shapes.send((shape, wants_scores));
        }
    }
}

/// What steps of at most so many rows need at first.
fn first_shapes(ladders: &Ladders, rows_max: usize) -> Vec<(StepShape, bool)> {
    let capacity = |tokens: usize| ladders.capacity.at_least(tokens).unwrap_or(tokens);
    let widest = ladders.rows.at_least(rows_max).unwrap_or_else(|| ladders.rows.largest());
    let decode = |rows: usize| (StepShape { rows, length: 1, capacity: capacity(1) }, true);
    let rows = ladders.rows.sizes().iter().copied().filter(|&rows| rows <= widest);
    let (mut few, many): (Vec<usize>, Vec<usize>) = rows.partition(|&rows| rows == 1);
    let mut shapes: Vec<(StepShape, bool)> = few.drain(..).map(decode).collect();
    if ladders.is_exact {
        // There are as many lengths as a context has tokens, and nobody knows which will come.
        return shapes;
    }
    let prompt = |length: usize| StepShape { rows: ladders.rows.sizes()[0], length, capacity: capacity(length) };
    let lengths = ladders.length.sizes().iter().rev().copied().filter(|&length| length > 1);
    shapes.extend(lengths.map(|length| (prompt(length), true)));
    shapes.push((prompt(ladders.length.largest()), false));
    shapes.extend(many.into_iter().map(decode));
    shapes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TuningConfig;

    #[test]
    fn one_row_and_long_prompts_come_first() {
        let ladders = Ladders::new(&TuningConfig::default(), 4096, 4, 64);
        let shapes = first_shapes(&ladders, 5);
        let sizes: Vec<(usize, usize, bool)> =
            shapes.iter().map(|(shape, scores)| (shape.rows, shape.length, *scores)).collect();
        let prompts = [(1, 1, true), (1, 4, true), (1, 3, true), (1, 2, true), (1, 4, false)];
        let rows = [2, 3, 4, 6].map(|rows| (rows, 1, true));
        assert_eq!(sizes, [&prompts[..], &rows].concat());
        assert!(shapes.iter().all(|(shape, _)| shape.capacity == 256));
    }
}
