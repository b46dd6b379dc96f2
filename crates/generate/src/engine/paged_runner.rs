//! Steps of an engine on a decoder whose Programs read the cache of a row in one piece. Pages are what is kept; beside them
//! lies a copy of the rows that run, in one piece each, which grows with every step and is made again from pages where it
//! is missing. So rows that go on from step to step cost no copies of what they have cached.

use crate::kv_cache::{Half, KvCache};
use crate::ladder::Ladders;
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
    buffers: StepBuffers,
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
        let (buffers, held) = (StepBuffers::default(), vec![None; slots]);
        PagedRunner { model: model.clone(), ladders, page_tokens, store, copies, buffers, held, runs: 0 }
    }

    /// Runs rows side by side in one Program: all with one new token, or all with few and scores behind each.
    fn run_together(&mut self, rows: &[&StepRow<'_>]) -> Result<Vec<Vec<Scores>>, StepFault> {
        let longest = rows.iter().map(|row| row.tokens.len()).max().unwrap_or(1);
        let is_scored = rows.iter().any(|row| row.scored > 1);
        let length = self.ladders.length.at_least(longest).unwrap_or(longest);
        let size = self.ladders.rows.at_least(rows.len()).unwrap_or(rows.len());
        self.fit_capacity(rows);
        let slots = self.place(rows, size);
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|&position| slots[position]);
        let in_order: Vec<&StepRow<'_>> = order.iter().map(|&position| rows[position]).collect();
        let planned = in_order.iter().zip(&order).map(|(row, &position)| PlannedRow {
            slot: slots[position],
            cached: row.cached,
            valid: row.tokens.len(),
            is_last: row.scored > 0,
        });
        let plan = StepPlan {
            phase: if longest == 1 { Phase::Decode } else { Phase::Prefill },
            shape: StepShape { rows: size, length, capacity: self.copies.capacity() },
            rows: planned.collect(),
            scores: if is_scored { PlanScores::All } else { PlanScores::Last },
        };
        let tokens: Vec<&[u32]> = in_order.iter().map(|row| row.tokens).collect();
        let outputs = self.model.run(&plan, &tokens, &self.copies, &mut self.buffers).map_err(fault)?;
        self.keep(&in_order, &plan);
        let mut scores: Vec<(usize, Vec<Scores>)> =
            order.into_iter().zip(scores_of(&in_order, &plan, outputs)).collect();
        scores.sort_by_key(|(position, _)| *position);
        Ok(scores.into_iter().map(|(_, scores)| scores).collect())
    }

    /// Makes the copies as long as the longest row needs, and no longer than twice that.
    fn fit_capacity(&mut self, rows: &[&StepRow<'_>]) {
        let ends = rows.iter().map(|row| row.cached + row.tokens.len());
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
    fn place(&mut self, rows: &[&StepRow<'_>], size: usize) -> Vec<usize> {
        let slots = match rows {
            [row] if size == 1 => vec![self.slot_of(row.row).unwrap_or_else(|| self.free_slot())],
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

    /// An empty slot, the last one first, since rows side by side begin at the first; else the one that was used longest ago.
    fn free_slot(&self) -> usize {
        let empty = self.held.iter().rposition(Option::is_none);
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
    fn keep(&mut self, rows: &[&StepRow<'_>], plan: &StepPlan) {
        let (buffers, store, copies) = (&self.buffers, &mut self.store, &mut self.copies);
        let bytes = rows.len() * self.model.kv_bytes_per_token();
        let is_together = bytes >= BYTES_KEPT_TOGETHER
            && std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().name("precast-pages".to_string());
                let pages = thread.spawn_scoped(scope, || write_pages(store, buffers, rows, plan));
                write_copies(copies, buffers, plan);
                pages.is_ok()
            });
        if !is_together {
            write_pages(&mut self.store, &self.buffers, rows, plan);
            write_copies(&mut self.copies, &self.buffers, plan);
        }
        for (row, planned) in rows.iter().zip(&plan.rows) {
            let tokens = planned.cached + planned.valid;
            self.held[planned.slot] = Some(Held { row: row.row, tokens, used: self.runs });
        }
    }
}

/// Bytes of new keys and values that take longer to keep than a thread takes to begin.
const BYTES_KEPT_TOGETHER: usize = 1 << 19;

/// Writes the new tokens of a step into the pages of their rows. Where single tokens will lie is read first, that of all rows:
/// these places are in no cache, and writes wait for one another where reads do not.
fn write_pages(store: &mut PageStore, buffers: &StepBuffers, rows: &[&StepRow<'_>], plan: &StepPlan) {
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

/// As `write_pages`, into the slots of the copy.
fn write_copies(copies: &mut KvCache, buffers: &StepBuffers, plan: &StepPlan) {
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
        self.runs += 1;
        let mut scores: Vec<Option<Vec<Scores>>> = vec![None; rows.len()];
        for group in groups(rows, self.ladders.rows.largest(), self.ladders.length.largest()) {
            let members: Vec<&StepRow<'_>> = group.iter().map(|&position| &rows[position]).collect();
            for (position, found) in group.into_iter().zip(self.run_together(&members)?) {
                scores[position] = Some(found);
            }
        }
        Ok(scores.into_iter().map(Option::unwrap_or_default).collect())
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
    let mut groups: Vec<Vec<usize>> = of(&is_single).chunks(rows_max).map(<[usize]>::to_vec).collect();
    groups.extend(of(&is_verified).chunks(rows_max).map(<[usize]>::to_vec));
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
