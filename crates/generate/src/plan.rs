//! What the next step runs: a pure function of the rows' lengths. Every shape, position and index of a step derives from
//! its plan; nothing else looks at shapes.

use std::collections::BTreeSet;

use crate::ladder::Ladders;

/// A row as the planner sees it, in the order of the slots of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowState {
    /// Tokens of the row.
    pub length: usize,
    /// Leading tokens that are in the cache.
    pub cached: usize,
    /// Whether it is computed as long rows are.
    pub is_long: bool,
}

impl RowState {
    /// Tokens that are not in the cache.
    pub fn pending(self) -> usize {
        self.length - self.cached
    }
}

/// What a step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Several tokens of one row, or the first of it.
    Prefill,
    /// One token of each row.
    Decode,
}

/// Sizes of a Program. All of them: a prompt of one token that runs on a longer Program is no decode step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepShape {
    /// Rows.
    pub rows: usize,
    /// New tokens of each.
    pub length: usize,
    /// Slots of the cache.
    pub capacity: usize,
}

/// A row of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRow {
    /// Its slot.
    pub slot: usize,
    /// Tokens that are in the cache.
    pub cached: usize,
    /// New tokens; what follows in the Program's length is filler.
    pub valid: usize,
    /// Whether these are the last pending tokens, so that the scores behind them are wanted.
    pub is_last: bool,
}

/// Behind which tokens of each row a step gives scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// The last valid one.
    Last,
    /// Every one; filler repeats the last valid one.
    All,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepPlan {
    /// What it is for.
    pub phase: Phase,
    /// Sizes of its Program.
    pub shape: StepShape,
    /// Its rows, in the order of their slots. Slots between them and what follows in the Program's rows are filler: nothing of
    /// theirs is read or written.
    pub rows: Vec<PlannedRow>,
    /// Which scores it gives.
    pub scores: Scores,
    /// Whether its rows are computed as long ones are.
    pub is_long: bool,
}

impl StepPlan {
    /// The first slot.
    pub fn first_slot(&self) -> usize {
        self.rows.first().map_or(0, |row| row.slot)
    }

    /// Where a row lies in the Program's rows.
    pub fn position(&self, row: &PlannedRow) -> usize {
        row.slot - self.first_slot()
    }

    /// The row at each of the Program's rows; none where it is filler.
    pub fn rows_by_position(&self) -> Vec<Option<usize>> {
        let mut rows = vec![None; self.shape.rows];
        for (number, row) in self.rows.iter().enumerate() {
            rows[self.position(row)] = Some(number);
        }
        rows
    }

    /// Tokens of a row behind which there are scores.
    pub fn scored(&self) -> usize {
        match self.scores {
            Scores::Last => 1,
            Scores::All => self.shape.length,
        }
    }

    /// Behind which token of a row the scores of this number are.
    pub fn logits_index(&self, row: &PlannedRow, number: usize) -> usize {
        match self.scores {
            Scores::Last => row.valid - 1,
            Scores::All => number.min(row.valid - 1),
        }
    }

    /// Tokens that are computed and thrown away.
    pub fn padded_tokens(&self) -> usize {
        self.shape.rows * self.shape.length - self.rows.iter().map(|row| row.valid).sum::<usize>()
    }
}

/// What a plan may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Sizes that have Programs.
    pub ladders: &'a Ladders,
    /// Slots of the cache that there are rows for.
    pub slots: usize,
    /// Tokens that each slot has room for now.
    pub capacity: usize,
    /// Programs that it may count on.
    pub ready: &'a ProgramSet,
}

/// Programs that a plan may count on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProgramSet {
    /// All: one that is not there is made, or whatever else answers for it.
    #[default]
    Any,
    /// These are there; a larger one of them is taken rather than one that is not.
    Ready(BTreeSet<StepShape>),
}

impl ProgramSet {
    /// Whether it has the Program of a shape.
    pub(crate) fn has(&self, shape: StepShape) -> bool {
        match self {
            ProgramSet::Any => true,
            ProgramSet::Ready(ready) => is_ready(ready, shape),
        }
    }

    /// The shape that is wanted, or where its Program is not there the first of the larger ones whose Program is.
    pub(crate) fn choose(&self, wanted: StepShape, larger: impl Iterator<Item = StepShape>) -> StepShape {
        match self {
            ProgramSet::Any => wanted,
            ProgramSet::Ready(ready) => {
                std::iter::once(wanted).chain(larger).find(|&shape| is_ready(ready, shape)).unwrap_or(wanted)
            }
        }
    }
}

/// A Program without a capacity of its own has windows alone, and serves any.
fn is_ready(ready: &BTreeSet<StepShape>, shape: StepShape) -> bool {
    ready.contains(&shape) || ready.contains(&StepShape { capacity: 0, ..shape })
}

/// Rows of a Program for each of its rows that is no filler, at most, where it reaches over rows that have ended: every
/// Program reads all weights, so filler of a few rows costs less than another Program.
const REACH_MAX: usize = 4;

/// The next step, or none if nothing is pending. Rows with several pending tokens come first, one at a time; then rows with one
/// pending token that are computed alike, as many as one Program reaches.
pub fn plan(rows: &[RowState], limits: Limits<'_>) -> Option<StepPlan> {
    let is_prefill = |row: &RowState| row.pending() > 1 || (row.pending() == 1 && row.cached == 0);
    if let Some(slot) = rows.iter().position(is_prefill) {
        return Some(plan_prefill(slot, rows[slot], limits));
    }
    let first = rows.iter().position(|row| row.pending() == 1)?;
    Some(plan_decode(first, &rows[first..], limits))
}

fn plan_prefill(slot: usize, row: RowState, limits: Limits<'_>) -> StepPlan {
    let length = limits.ladders.length_for(row.pending());
    let valid = row.pending().min(length);
    let planned = PlannedRow { slot, cached: row.cached, valid, is_last: valid == row.pending() };
    let shape = StepShape { rows: 1, length, capacity: capacity_for(row.cached + valid, limits) };
    // Parts of a prompt that others follow run on Programs without scores, of one length.
    let shape = match planned.is_last && !row.is_long {
        true => {
            let larger = limits.ladders.length.sizes().iter().filter(|&&size| size > length);
            limits.ready.choose(shape, larger.map(|&length| StepShape { length, ..shape }))
        }
        false => shape,
    };
    StepPlan { phase: Phase::Prefill, shape, rows: vec![planned], scores: Scores::Last, is_long: row.is_long }
}

/// A step of rows from `first` on, of which the first has one pending token and none has more.
fn plan_decode(first: usize, rows: &[RowState], limits: Limits<'_>) -> StepPlan {
    let sizes = &limits.ladders.rows;
    let fits = |size: &usize| first + size <= limits.slots;
    let is_long = rows.first().is_some_and(|row| row.is_long);
    let is_live = |(_, row): &(usize, &RowState)| row.pending() == 1 && row.is_long == is_long;
    // A Program that no filler fits behind has as many rows as there are.
    let size_for = |reach| sizes.at_least(reach).filter(fits).or_else(|| sizes.at_most(reach)).unwrap_or(1);
    let (mut reach, mut live) = (1, 0);
    for (position, _) in rows.iter().enumerate().filter(is_live) {
        live += 1;
        let size = size_for(position + 1);
        if size > position && size <= size_for(reach).max(REACH_MAX * live) {
            reach = position + 1;
        }
    }
    let size = size_for(reach);
    let rows = rows[..reach.min(size)].iter().enumerate().filter(is_live);
    let planned = |(position, row): (usize, &RowState)| PlannedRow {
        slot: first + position,
        cached: row.cached,
        valid: 1,
        is_last: true,
    };
    let longest = rows.clone().map(|(_, row)| row.length).max().unwrap_or(0);
    let shape = StepShape { rows: size, length: 1, capacity: capacity_for(longest, limits) };
    let larger = sizes.sizes().iter().copied().filter(|rows| *rows > size && fits(rows) && !is_long);
    let shape = limits.ready.choose(shape, larger.map(|rows| StepShape { rows, ..shape }));
    StepPlan { phase: Phase::Decode, shape, rows: rows.map(planned).collect(), scores: Scores::Last, is_long }
}

/// The cache as it is, or grown to hold so many tokens.
fn capacity_for(tokens: usize, limits: Limits<'_>) -> usize {
    if tokens <= limits.capacity {
        return limits.capacity;
    }
    limits.ladders.capacity.at_least(tokens).unwrap_or(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TuningConfig;
    use proptest::prelude::*;

    fn ladders(chunk: usize, rows: usize) -> Ladders {
        Ladders::new(&TuningConfig::default(), 4096, chunk, rows)
    }

    fn row(length: usize, cached: usize) -> RowState {
        RowState { length, cached, is_long: false }
    }

    #[test]
    fn prompts_come_first_and_then_rows_that_one_program_reaches() {
        let ladders = ladders(16, 8);
        let limits = Limits { ladders: &ladders, slots: 8, capacity: 256, ready: &ProgramSet::Any };
        let prefill = plan(&[row(5, 4), row(25, 0), row(9, 9)], limits);
        let planned = PlannedRow { slot: 1, cached: 0, valid: 16, is_last: false };
        let shape = StepShape { rows: 1, length: 16, capacity: 256 };
        let (rows, scores) = (vec![planned], Scores::Last);
        assert_eq!(prefill, Some(StepPlan { phase: Phase::Prefill, shape, rows, scores, is_long: false }));
        let decode =
            plan(&[row(5, 4), row(25, 24), row(9, 9), row(7, 6)], limits).map(|plan| (plan.shape, plan.rows.len()));
        assert_eq!(decode, Some((StepShape { rows: 4, length: 1, capacity: 256 }, 3)));
        assert_eq!(plan(&[row(5, 5)], limits), None);
    }

    #[test]
    fn a_program_reaches_over_ended_rows_and_not_over_many() {
        let ladders = ladders(16, 64);
        let limits = Limits { ladders: &ladders, slots: 64, capacity: 256, ready: &ProgramSet::Any };
        let slots = |rows: &[RowState]| {
            let plan = plan(rows, limits).map(|plan| (plan.shape.rows, plan.rows.iter().map(|row| row.slot).collect()));
            plan.unwrap_or((0, Vec::new()))
        };
        let every_second: Vec<RowState> = (0..8).map(|slot| row(9, 8 + slot % 2)).collect();
        assert_eq!(slots(&every_second), (8, vec![0, 2, 4, 6]));
        let mut far: Vec<RowState> = vec![row(9, 9); 64];
        (far[3], far[60]) = (row(9, 8), row(9, 8));
        assert_eq!(slots(&far), (1, vec![3]));
    }

    #[test]
    fn rows_that_are_computed_unlike_run_apart() {
        let ladders = ladders(16, 8);
        let limits = Limits { ladders: &ladders, slots: 8, capacity: 256, ready: &ProgramSet::Any };
        let long = RowState { is_long: true, ..row(40, 39) };
        let slots = |rows: &[RowState]| {
            let plan = plan(rows, limits);
            plan.map(|plan| (plan.rows.iter().map(|row| row.slot).collect::<Vec<_>>(), plan.is_long))
        };
        assert_eq!(slots(&[row(5, 4), long, long, row(9, 8)]), Some((vec![0, 3], false)));
        assert_eq!(slots(&[row(5, 5), long, long, row(9, 8)]), Some((vec![1, 2], true)));
    }

    #[test]
    fn a_larger_program_that_is_there_is_taken_before_one_that_is_not() {
        let ladders = ladders(16, 8);
        let shape = |rows, length| StepShape { rows, length, capacity: 256 };
        let ready = ProgramSet::Ready([shape(1, 8), shape(1, 16), shape(6, 1), shape(8, 1)].into());
        let limits = Limits { ladders: &ladders, slots: 6, capacity: 256, ready: &ready };
        let shapes = |rows: &[RowState]| plan(rows, limits).map(|plan| plan.shape);
        assert_eq!(shapes(&[row(3, 0)]), Some(shape(1, 8)));
        assert_eq!(shapes(&[row(12, 0)]), Some(shape(1, 16)));
        assert_eq!(shapes(&[row(5, 4), row(3, 2)]), Some(shape(6, 1)), "8 rows do not fit");
        let none = ProgramSet::Ready(BTreeSet::new());
        let limits = Limits { ready: &none, ..limits };
        assert_eq!(plan(&[row(3, 0)], limits).map(|plan| plan.shape), Some(shape(1, 3)), "its own is made then");
    }

    #[test]
    fn defect_10_a_prompt_of_one_token_is_no_decode_step() {
        let ladders = ladders(16, 1);
        let limits = Limits { ladders: &ladders, slots: 1, capacity: 256, ready: &ProgramSet::Any };
        assert_eq!(plan(&[row(1, 0)], limits).map(|plan| plan.phase), Some(Phase::Prefill));
        assert_eq!(plan(&[row(2, 1)], limits).map(|plan| plan.phase), Some(Phase::Decode));
    }

    proptest! {
        /// Steps until nothing is pending: every token is run once, in order, within every limit.
        #[test]
        fn plans_run_every_pending_token_once(
            lengths in prop::collection::vec((0usize..700, 0usize..700), 1..7), chunk in 1usize..200, rows_max in 1usize..9,
            long in prop::option::of(100usize..400),
            shapes in prop::option::of(prop::collection::btree_set((1usize..9, 1usize..200), 0..20)),
        ) {
            let shape = |(rows, length)| StepShape { rows, length, capacity: 0 };
            let ready = shapes.map_or(ProgramSet::Any, |shapes| ProgramSet::Ready(shapes.into_iter().map(shape).collect()));
            let ladders = Ladders { long_chunk: long.filter(|&long| long > chunk), ..ladders(chunk, rows_max) };
            let mut rows: Vec<RowState> = lengths.iter().map(|&(a, b)| row(a.max(b), a.min(b))).collect();
            let slots = ladders.rows.at_least(rows.len()).unwrap_or(rows.len());
            let mut capacity = ladders.capacity_at_first(rows.iter().map(|row| row.length).max().unwrap_or(0), Some(0));
            let pending: usize = rows.iter().map(|row| row.pending()).sum();
            let (mut steps, mut done) = (0, 0);
            while let Some(plan) = plan(&rows, Limits { ladders: &ladders, slots, capacity, ready: &ready }) {
                prop_assert!(plan.shape.capacity >= capacity);
                capacity = plan.shape.capacity;
                prop_assert!(!plan.rows.is_empty() && plan.rows.len() <= plan.shape.rows);
                prop_assert!(plan.first_slot() + plan.shape.rows <= slots);
                prop_assert!(plan.rows.is_sorted_by_key(|row| row.slot));
                for planned in &plan.rows {
                    prop_assert!(plan.position(planned) < plan.shape.rows);
                    let row = &mut rows[planned.slot];
                    prop_assert_eq!(planned.cached, row.cached);
                    prop_assert!(planned.valid >= 1 && planned.valid <= plan.shape.length.min(row.pending()));
                    prop_assert_eq!(planned.is_last, planned.valid == row.pending());
                    prop_assert!(row.cached + planned.valid <= capacity);
                    row.cached += planned.valid;
                    done += planned.valid;
                }
                steps += 1;
                prop_assert!(steps <= pending);
            }
            prop_assert_eq!(done, pending);
        }
    }
}
