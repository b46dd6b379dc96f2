//! Steps of an engine on a decoder whose Programs read the cache of a row in one piece. Pages are what is kept; beside them
//! lies a copy of the rows that run, in one piece each, which grows with every step and is made again from pages where it
//! is missing. So rows that go on from step to step cost no copies of what they have cached.

use crate::kv_cache::{Half, KvCache};
use crate::ladder::{Ladder, Ladders};
use crate::plan::{Phase, PlannedRow, Scores as PlanScores, StepPlan, StepShape};
use crate::step_buffers::StepBuffers;
use crate::text_model::{StepError, StepOutputs, TextModel};
use precast_session::SessionError;

use super::page_store::PageStore;
use super::row::RowId;
use super::runner::{Scores, StepFault, StepRow, StepRunner};

/// What lies in a slot of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    row: RowId,
    /// Tokens of the row from its first on.
    tokens: usize,
    /// The last run that used it.
    used: u64,
}

/// Steps of an engine on a decoder.
pub struct PagedRunner {
    model: TextModel,
    ladders: Ladders,
    page_tokens: usize,
    store: PageStore,
    copies: KvCache,
    /// Of each Program that runs beside others.
    buffers: Vec<StepBuffers>,
    held: Vec<Option<Held>>,
    runs: u64,
}

impl PagedRunner {
    /// A runner for steps of at most so many rows.
    pub fn new(model: &TextModel, page_tokens: usize, rows_max: usize) -> PagedRunner {
        let ladders = model.ladders().clone();
        let rows_max = rows_max.min(ladders.rows.largest());
        // One more than fits the widest Program, for a prompt that runs beside it.
        let slots = ladders.rows.at_least(rows_max).unwrap_or(rows_max) + 1;
        let copies = KvCache::new(model.layers(), slots, ladders.capacity.sizes()[0]);
        let store = PageStore::new(model.layers(), page_tokens);
        let (buffers, held) = (Vec::new(), vec![None; slots]);
        PagedRunner { model: model.clone(), ladders, page_tokens, store, copies, buffers, held, runs: 0 }
    }

    /// Runs groups of rows, each in one Program, and keeps what they give when all have run: all rows of a group have one new
    /// token, or few and scores behind each, or there is one. What each gives is in the order of its rows.
    fn run_groups(&mut self, groups: &[Vec<&StepRow<'_>>]) -> Result<Vec<Vec<Vec<Scores>>>, StepFault> {
        self.runs += 1;
        self.fit_capacity(groups);
        let mut jobs: Vec<Job<'_>> = Vec::with_capacity(groups.len());
        for (number, rows) in groups.iter().enumerate() {
            let slots = self.place(rows);
            jobs.extend(self.jobs_of(number, rows, &slots));
        }
        // The longest first, so that the last ones to end are short.
        jobs.sort_by_key(|job| std::cmp::Reverse(job.plan.shape.rows * job.plan.shape.length));
        self.buffers.resize_with(self.buffers.len().max(jobs.len()), StepBuffers::default);
        let (model, copies) = (&self.model, &self.copies);
        let runs: Vec<(&Job<'_>, &mut StepBuffers)> = jobs.iter().zip(&mut self.buffers).collect();
        let outputs = model.session().do_beside(runs, |(job, buffers)| {
            let tokens: Vec<&[u32]> = job.rows.iter().map(|row| row.tokens).collect();
            model.run(&job.plan, &tokens, copies, buffers).map_err(fault)
        });
        let outputs = outputs.into_iter().collect::<Result<Vec<StepOutputs>, StepFault>>()?;
        self.keep(&jobs);
        let mut scores: Vec<Vec<Vec<Scores>>> = groups.iter().map(|rows| vec![Vec::new(); rows.len()]).collect();
        for (job, outputs) in jobs.iter().zip(outputs) {
            for (&position, found) in job.positions.iter().zip(scores_of(&job.rows, &job.plan, outputs)) {
                scores[job.group][position] = found;
            }
        }
        Ok(scores)
    }

    /// Rows of the Programs that a group runs on: many rows with one new token are divided, so that every thread has some.
    fn parts_of(&self, rows: &[&StepRow<'_>]) -> Vec<usize> {
        let is_divided = rows.iter().all(|row| row.tokens.len() == 1);
        let threads = if is_divided { self.model.session().jobs_beside() } else { 1 };
        divide_rows(rows.len(), threads, &self.ladders.rows, self.copies.slots())
    }

    /// What runs of a group whose rows lie in these slots: a Program for each part of it, in the order of the slots.
    fn jobs_of<'r>(&self, group: usize, rows: &[&'r StepRow<'r>], slots: &[usize]) -> Vec<Job<'r>> {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|&position| slots[position]);
        let mut left = &order[..];
        let mut jobs = Vec::new();
        for part in self.parts_of(rows) {
            let (positions, others) = left.split_at(part);
            left = others;
            let in_order: Vec<&StepRow<'_>> = positions.iter().map(|&position| rows[position]).collect();
            let longest = in_order.iter().map(|row| row.tokens.len()).max().unwrap_or(1);
            let length = self.ladders.length.at_least(longest).unwrap_or(longest);
            let size = self.ladders.rows.at_least(part).unwrap_or(part);
            let planned = in_order.iter().zip(positions).map(|(row, &position)| PlannedRow {
                slot: slots[position],
                cached: row.cached,
                valid: row.tokens.len(),
                is_last: row.scored > 0,
            });
            let plan = StepPlan {
                phase: if longest == 1 { Phase::Decode } else { Phase::Prefill },
                shape: StepShape { rows: size, length, capacity: self.copies.capacity() },
                rows: planned.collect(),
                scores: if in_order.iter().any(|row| row.scored > 1) { PlanScores::All } else { PlanScores::Last },
                is_long: in_order.iter().any(|row| row.is_long),
            };
            jobs.push(Job { group, positions: positions.to_vec(), rows: in_order, plan });
        }
        jobs
    }

    /// Makes the copies as long as the longest row needs, and no longer than twice that.
    fn fit_capacity(&mut self, groups: &[Vec<&StepRow<'_>>]) {
        let ends = groups.iter().flatten().map(|row| row.cached + row.tokens.len());
        let longest = ends.max().unwrap_or(1);
        let kept = self.held.iter().flatten().map(|held| held.tokens).max().unwrap_or(0);
        let capacity = |tokens: usize| self.ladders.capacity.at_least(tokens).unwrap_or(tokens);
        let (needed, roomy) = (capacity(longest), capacity(longest.max(kept)));
        if needed > self.copies.capacity() {
            self.copies = self.copies.grown(self.copies.slots(), needed);
        } else if roomy * 2 < self.copies.capacity() {
            self.copies = KvCache::new(self.model.layers(), self.copies.slots(), roomy);
            self.held.fill(None);
        }
    }

    /// Gives each row a slot, so that the slots of all are successive ones, and puts its cached tokens there. Rows that lie
    /// between the slots of the others already stay where they are.
    fn place(&mut self, rows: &[&StepRow<'_>]) -> Vec<usize> {
        let slots = match rows {
            [row] if self.takes_any_slot(rows.len()) => vec![self.slot_of(row.row).unwrap_or_else(|| self.free_slot())],
            _ => self.slots_side_by_side(rows),
        };
        for (&slot, row) in slots.iter().zip(rows) {
            match self.slot_of(row.row) {
                Some(from) if from == slot => {}
                Some(from) => self.move_slot(from, slot),
                None => self.held[slot] = None,
            }
            self.complete(slot, row);
        }
        slots
    }

    /// Groups that run beside one another: there is a slot for each of their rows, and only the first of them has its own.
    fn waves(&self, groups: Vec<Vec<usize>>) -> Vec<Vec<Vec<usize>>> {
        let mut waves: Vec<Vec<Vec<usize>>> = Vec::new();
        for group in groups {
            let fits = |wave: &&mut Vec<Vec<usize>>| {
                let rows = wave.iter().map(Vec::len).sum::<usize>();
                self.takes_any_slot(group.len()) && rows + group.len() <= self.held.len()
            };
            match waves.last_mut().filter(fits) {
                Some(wave) => wave.push(group),
                None => waves.push(vec![group]),
            }
        }
        waves
    }

    /// Whether a group of so many rows may lie in any slot: one row, where there are Programs of one.
    fn takes_any_slot(&self, rows: usize) -> bool {
        rows == 1 && self.ladders.rows.at_least(1) == Some(1)
    }

    /// Slots from the first on, one for each row. What else lies there is moved away where there is an empty slot.
    fn slots_side_by_side(&mut self, rows: &[&StepRow<'_>]) -> Vec<usize> {
        let count = rows.len();
        let own: Vec<Option<usize>> =
            rows.iter().map(|row| self.slot_of(row.row).filter(|&slot| slot < count)).collect();
        let mut others: Vec<usize> = (0..count).filter(|slot| !own.contains(&Some(*slot))).collect();
        for &slot in &others {
            let empty = (count..self.held.len()).find(|&slot| self.held[slot].is_none());
            if let (Some(_), Some(empty)) = (self.held[slot], empty) {
                self.move_slot(slot, empty);
            }
        }
        own.into_iter().map(|own| own.or_else(|| others.pop()).unwrap_or(0)).collect()
    }

    fn slot_of(&self, row: RowId) -> Option<usize> {
        self.held.iter().position(|held| held.is_some_and(|held| held.row == row))
    }

    /// The first empty slot, so that a prompt lies behind the rows that it will run side by side with; else the one that was
    /// used longest ago.
    fn free_slot(&self) -> usize {
        let empty = self.held.iter().position(Option::is_none);
        let oldest = || (0..self.held.len()).min_by_key(|&slot| self.held[slot].map_or(0, |held| held.used));
        empty.or_else(oldest).unwrap_or(0)
    }

    fn move_slot(&mut self, from: usize, to: usize) {
        self.copies.copy_slot(from, to);
        self.held[to] = self.held[from].take();
    }

    /// Makes a slot hold the cached tokens of a row, from pages as far as they are missing.
    fn complete(&mut self, slot: usize, row: &StepRow<'_>) {
        let known = self.held[slot].filter(|held| held.row == row.row).map_or(0, |held| held.tokens);
        let is_there = known >= row.cached && self.copies.is_intact(slot, row.cached);
        if !is_there {
            self.copies.clear(slot);
            for (number, &page) in row.pages.iter().enumerate() {
                let start = number * self.page_tokens;
                let valid = row.cached.saturating_sub(start).min(self.page_tokens);
                if valid == 0 {
                    break;
                }
                for layer in 0..self.model.layers().len() {
                    for half in [Half::Keys, Half::Values] {
                        let Some(bytes) = self.store.read(page, layer, half) else { continue };
                        self.copies.write(layer, half, slot, start, bytes, valid);
                    }
                }
            }
        }
        self.held[slot] = Some(Held { row: row.row, tokens: row.cached, used: self.runs });
    }

    /// Keeps keys and values of the new tokens in pages and copies: of many rows in both at the same time, since it waits for
    /// memory more than for anything else.
    fn keep(&mut self, jobs: &[Job<'_>]) {
        let (buffers, store, copies) = (&self.buffers, &mut self.store, &mut self.copies);
        let bytes = jobs.iter().map(|job| job.rows.len()).sum::<usize>() * self.model.kv_bytes_per_token();
        let is_together = bytes >= BYTES_KEPT_TOGETHER
            && std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().name("precast-pages".to_string());
                let pages = thread.spawn_scoped(scope, || write_pages(store, buffers, jobs));
                write_copies(copies, buffers, jobs);
                pages.is_ok()
            });
        if !is_together {
            write_pages(&mut self.store, &self.buffers, jobs);
            write_copies(&mut self.copies, &self.buffers, jobs);
        }
        for (row, planned) in jobs.iter().flat_map(|job| job.rows.iter().zip(&job.plan.rows)) {
            let tokens = planned.cached + planned.valid;
            self.held[planned.slot] = Some(Held { row: row.row, tokens, used: self.runs });
        }
    }
}

/// What one Program runs.
struct Job<'r> {
    /// Number of the group.
    group: usize,
    /// Places of the rows in the group.
    positions: Vec<usize>,
    rows: Vec<&'r StepRow<'r>>,
    plan: StepPlan,
}

/// Rows with one new token that are a Program's of their own, at least: every Program reads all weights, and those of f32 take
/// as long to read as to multiply with some ten rows.
const ROWS_OF_PART_MIN: usize = 16;

/// Rows that lie in successive slots as parts, one for each of so many threads at most. All parts but the last fill a Program,
/// and the last one's filler lies in slots that there are.
fn divide_rows(rows: usize, threads: usize, sizes: &Ladder, slots: usize) -> Vec<usize> {
    let size = |count: usize| sizes.at_least(count).unwrap_or(count);
    let (mut parts, mut first) = (Vec::new(), 0);
    for threads_left in (1..=threads.min(rows / ROWS_OF_PART_MIN).max(1)).rev() {
        let left = rows - first;
        let part = size(left.div_ceil(threads_left)).min(left);
        if first + size(part) > slots {
            return vec![rows];
        }
        if part > 0 {
            parts.push(part);
        }
        first += part;
    }
    parts
}

/// Bytes of new keys and values that take longer to keep than a thread takes to begin.
const BYTES_KEPT_TOGETHER: usize = 1 << 19;

/// Writes the new tokens of a step into the pages of their rows. Where single tokens will lie is read first, that of all rows:
/// these places are in no cache, and writes wait for one another where reads do not.
fn write_pages(store: &mut PageStore, buffers: &[StepBuffers], jobs: &[Job<'_>]) {
    for (Job { rows, plan, .. }, buffers) in jobs.iter().zip(buffers) {
        for (layer, half, bytes) in buffers.present() {
            if plan.shape.length == 1 {
                let looks = rows.iter().zip(&plan.rows);
                let looks = looks.map(|(row, planned)| store.look(row.pages, (layer, half), planned.cached));
                std::hint::black_box(looks.fold(0, |all, look| all ^ look));
            }
            for ((row, planned), new) in rows.iter().zip(&plan.rows).zip(rows_of(bytes, plan)) {
                store.write(row.pages, (layer, half), planned.cached, new, (plan.shape.length, planned.valid));
            }
        }
    }
}

/// As `write_pages`, into the slots of the copy.
fn write_copies(copies: &mut KvCache, buffers: &[StepBuffers], jobs: &[Job<'_>]) {
    for (Job { plan, .. }, buffers) in jobs.iter().zip(buffers) {
        for (layer, half, bytes) in buffers.present() {
            if plan.shape.length == 1 {
                let looks = plan.rows.iter().map(|planned| copies.look(layer, half, planned.slot, planned.cached));
                std::hint::black_box(looks.fold(0, |all, look| all ^ look));
            }
            for (planned, new) in plan.rows.iter().zip(rows_of(bytes, plan)) {
                copies.write(layer, half, planned.slot, planned.cached, new, planned.valid);
            }
        }
    }
}

/// Keys or values of each row of a step.
fn rows_of<'b>(bytes: &'b [u8], plan: &StepPlan) -> impl Iterator<Item = &'b [u8]> {
    bytes.chunks((bytes.len() / plan.shape.rows.max(1)).max(1))
}

impl StepRunner for PagedRunner {
    fn vocabulary(&self) -> usize {
        self.model.vocabulary()
    }

    fn kv_bytes(&self) -> usize {
        self.store.bytes() + self.copies.bytes()
    }

    fn is_divisible(&self) -> bool {
        !self.ladders.is_exact
    }

    fn run(&mut self, rows: &[StepRow<'_>]) -> Result<Vec<Vec<Scores>>, StepFault> {
        let mut scores: Vec<Vec<Scores>> = vec![Vec::new(); rows.len()];
        for groups in self.waves(groups(rows, self.ladders.rows.largest(), self.ladders.length.largest())) {
            let members = |group: &Vec<usize>| group.iter().map(|&position| &rows[position]).collect();
            let found = self.run_groups(&groups.iter().map(members).collect::<Vec<Vec<&StepRow<'_>>>>())?;
            for (&position, found) in groups.iter().flatten().zip(found.into_iter().flatten()) {
                scores[position] = found;
            }
        }
        Ok(scores)
    }

    fn forget(&mut self, row: RowId) {
        if let Some(slot) = self.slot_of(row) {
            self.held[slot] = None;
        }
    }

    fn rebuild(&mut self) -> Result<(), StepFault> {
        let slots = self.held.len();
        *self = PagedRunner::new(&self.model, self.page_tokens, slots - 1);
        Ok(())
    }
}

/// Which rows run in one Program: those with one new token, those whose scores are wanted behind several, each prompt alone.
fn groups(rows: &[StepRow<'_>], rows_max: usize, length_max: usize) -> Vec<Vec<usize>> {
    let is_single = |row: &StepRow<'_>| row.tokens.len() == 1 && row.cached > 0;
    let is_verified = |row: &StepRow<'_>| row.scored > 1 && row.tokens.len() <= length_max;
    let of = |is_member: &dyn Fn(&StepRow<'_>) -> bool| -> Vec<usize> {
        (0..rows.len()).filter(|&position| is_member(&rows[position])).collect()
    };
    let mut groups: Vec<Vec<usize>> = Vec::new();
    // Rows that are long are computed in another way than others.
    for is_long in [false, true] {
        groups.extend(of(&|row| row.is_long == is_long && is_single(row)).chunks(rows_max).map(<[usize]>::to_vec));
    }
    for is_long in [false, true] {
        groups.extend(of(&|row| row.is_long == is_long && is_verified(row)).chunks(rows_max).map(<[usize]>::to_vec));
    }
    groups.extend(of(&|row| !is_single(row) && !is_verified(row)).into_iter().map(|position| vec![position]));
    groups
}

/// The scores that each row wants: those behind its last tokens.
fn scores_of(rows: &[&StepRow<'_>], plan: &StepPlan, outputs: StepOutputs) -> Vec<Vec<Scores>> {
    let mut logits = outputs.logits.into_iter();
    let mut scores = Vec::with_capacity(rows.len());
    for row in rows {
        let mut found: Vec<Scores> = logits.by_ref().take(plan.scored()).collect();
        match plan.scores {
            PlanScores::Last => found.truncate(row.scored),
            PlanScores::All => {
                found.truncate(row.tokens.len());
                found.drain(..row.tokens.len() - row.scored);
            }
        }
        scores.push(found);
    }
    scores
}

/// What a failed step means for the engine.
fn fault(error: StepError) -> StepFault {
    match error {
        StepError::Session(SessionError::DeviceLost(reason)) => StepFault::DeviceLost(reason),
        error => StepFault::Retryable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_rows_are_divided_among_threads_without_more_filler() {
        let sizes = Ladder::of(Ladder::fine(64).sizes().iter().copied().chain([40, 56]), 64);
        let divided = |rows, threads| divide_rows(rows, threads, &sizes, 65);
        assert_eq!((divided(1, 2), divided(15, 2), divided(64, 1)), (vec![1], vec![15], vec![64]));
        assert_eq!((divided(31, 2), divided(33, 2), divided(64, 2)), (vec![31], vec![24, 9], vec![32, 32]));
        assert_eq!((divided(64, 4), divided(50, 4)), (vec![16; 4], vec![24, 16, 10]));
        for rows in 1..=64 {
            let filler =
                |parts: &[usize]| parts.iter().map(|&part| sizes.at_least(part).unwrap() - part).sum::<usize>();
            for threads in 1..9 {
                let parts = divided(rows, threads);
                assert_eq!(parts.iter().sum::<usize>(), rows);
                assert!(filler(&parts) <= filler(&[rows]), "{rows} rows of {threads} threads: {parts:?}");
            }
        }
        // No Program of the second part would fit the slots.
        assert_eq!(divide_rows(40, 2, &Ladder::of([1, 25], 40), 41), [40]);
    }
}
