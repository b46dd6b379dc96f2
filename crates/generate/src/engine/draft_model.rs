//! Proposals by a smaller model of the same vocabulary. It reads what rows have said since it last looked at them, all rows
//! together, and then says a few tokens more, each chosen by the row's own rules, random numbers and grammar as the row itself
//! would choose. What it keeps of a row can always be computed again, so nothing here has pages, and a fault means that
//! nothing is proposed.

use crate::engine::guidance::Guide;
use crate::kv_cache::KvCache;
use crate::plan::{Phase, PlannedRow, Scores as PlanScores, StepPlan, StepShape};
use crate::row_cache::{RowCache, StepScores};
use crate::row_search::RowSearch;
use crate::step_buffers::StepBuffers;
use crate::text_model::{StepError, TextModel};

use super::row::RowId;
use super::runner::Found;
use super::speculation::WIDTH_MAX;

/// Faults one behind another after which nothing is proposed any more.
const FAULTS_MAX: usize = 3;

/// A row that wants proposals.
pub struct DraftAsk<'r> {
    /// The row.
    pub row: RowId,
    /// All its tokens.
    pub tokens: &'r [u32],
    /// Which of them were generated.
    pub is_generated: &'r [bool],
    /// How its tokens are chosen.
    pub search: &'r RowSearch,
    /// Tokens that may be proposed.
    pub width: usize,
}

/// What a slot of the cache holds.
#[derive(Clone, Debug)]
struct Held {
    row: RowId,
    /// The tokens whose keys and values lie there; the last ones may be imagined and wrong.
    tokens: Vec<u32>,
    /// The last round that used it.
    used: u64,
}

/// A model that proposes tokens of rows.
pub struct DraftModel {
    model: TextModel,
    /// Rows that it proposes for at once.
    rows_max: usize,
    /// Where its decoder wants it; without slots before the first round.
    cache: RowCache,
    buffers: StepBuffers,
    held: Vec<Option<Held>>,
    rounds: u64,
    faults: usize,
}

impl DraftModel {
    /// For so many rows at most.
    pub fn new(model: &TextModel, rows_max: usize) -> DraftModel {
        let rows = &model.ladders().rows;
        let rows_max = rows_max.min(rows.largest());
        // A Program of the fewest rows fits wherever a row lies.
        let slots = rows.at_least(rows_max).unwrap_or(rows_max) + rows.sizes()[0] - 1;
        let (cache, buffers) = (RowCache::Host(KvCache::default()), StepBuffers::default());
        DraftModel { model: model.clone(), rows_max, cache, buffers, held: vec![None; slots], rounds: 0, faults: 0 }
    }

    /// Bytes of its keys and values.
    pub fn kv_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// What may follow each row; nothing where the model does not know or cannot say.
    pub fn propose(&mut self, asks: &[DraftAsk<'_>]) -> Vec<Vec<u32>> {
        let mut proposed = vec![Vec::new(); asks.len()];
        if self.faults >= FAULTS_MAX {
            return proposed;
        }
        let longest = self.model.ladders().capacity.largest();
        let fits = |ask: &&DraftAsk<'_>| ask.width > 0 && ask.tokens.len() + ask.width <= longest;
        let wanted = (0..asks.len()).filter(|&number| fits(&&asks[number])).take(self.rows_max);
        let wanted: Vec<usize> = wanted.collect();
        let rows: Vec<&DraftAsk<'_>> = wanted.iter().map(|&number| &asks[number]).collect();
        match self.imagine(&rows) {
            Ok(imagined) => {
                self.faults = 0;
                wanted.into_iter().zip(imagined).for_each(|(number, tokens)| proposed[number] = tokens);
            }
            Err(_) => {
                self.faults += 1;
                self.held.fill(None);
            }
        }
        proposed
    }

    /// Reads what is new of each row, and says tokens behind it.
    fn imagine(&mut self, asks: &[&DraftAsk<'_>]) -> Result<Vec<Vec<u32>>, StepError> {
        self.rounds += 1;
        self.fit_capacity(asks)?;
        self.place(asks)?;
        let mut rows: Vec<Imagined<'_>> = asks.iter().enumerate().map(|(slot, ask)| Imagined::new(slot, ask)).collect();
        self.catch_up(&mut rows)?;
        let width = asks.iter().map(|ask| ask.width).max().unwrap_or(0);
        for _ in 1..width {
            let mut open: Vec<&mut Imagined<'_>> = rows.iter_mut().filter(|row| row.is_open()).collect();
            if open.is_empty() {
                break;
            }
            self.run(&mut open)?;
        }
        Ok(rows.into_iter().map(|row| row.tokens[row.said..].to_vec()).collect())
    }

    fn fit_capacity(&mut self, asks: &[&DraftAsk<'_>]) -> Result<(), StepError> {
        let longest = asks.iter().map(|ask| ask.tokens.len() + ask.width).max().unwrap_or(0);
        let capacity = self.model.ladders().capacity.at_least(longest).unwrap_or(longest);
        if self.cache.slots() == 0 {
            self.cache = RowCache::new(&self.model, self.held.len(), capacity)?;
        } else if capacity > self.cache.capacity() {
            self.cache.grow(self.held.len(), capacity)?;
        }
        Ok(())
    }

    /// Gives the rows the first slots, in their order of asking where they are new, and forgets what is known of their tokens
    /// to be wrong.
    fn place(&mut self, asks: &[&DraftAsk<'_>]) -> Result<(), StepError> {
        for (slot, ask) in asks.iter().enumerate() {
            let is_row = |held: &Option<Held>| held.as_ref().is_some_and(|held| held.row == ask.row);
            match self.held.iter().position(is_row) {
                Some(from) if from == slot => {}
                Some(from) => {
                    self.make_way(slot, asks.len())?;
                    self.cache.copy_slot(from, slot)?;
                    self.held[slot] = self.held[from].take();
                }
                None => {
                    self.make_way(slot, asks.len())?;
                    self.held[slot] = None;
                }
            }
            let known = self.held[slot].take().map_or_else(Vec::new, |held| held.tokens);
            // The last token is always run, for its scores.
            let said = &ask.tokens[..ask.tokens.len() - 1];
            let mut tokens = known;
            tokens.truncate(tokens.iter().zip(said).take_while(|(known, said)| known == said).count());
            if tokens.is_empty() || !self.cache.is_intact(slot, tokens.len()) {
                self.cache.clear(slot);
                tokens.clear();
            }
            self.held[slot] = Some(Held { row: ask.row, tokens, used: self.rounds });
        }
        Ok(())
    }

    /// Moves what lies in a slot behind the first ones, where nothing lies or where it was used longest ago.
    fn make_way(&mut self, slot: usize, first: usize) -> Result<(), StepError> {
        if self.held[slot].is_none() {
            return Ok(());
        }
        let used = |slot: usize| self.held[slot].as_ref().map_or(0, |held| held.used);
        let Some(to) = (first..self.held.len()).min_by_key(|&slot| used(slot)) else { return Ok(()) };
        self.cache.copy_slot(slot, to)?;
        self.held[to] = self.held[slot].take();
        Ok(())
    }

    /// Runs what the model has not read of each row: rows with little of it together, a prompt alone, and of a prompt that is
    /// longer than a chunk one chunk at a time, so that no step waits for all of it.
    fn catch_up(&mut self, rows: &mut [Imagined<'_>]) -> Result<(), StepError> {
        let (mut short, mut long): (Vec<&mut Imagined<'_>>, Vec<&mut Imagined<'_>>) =
            rows.iter_mut().partition(|row| row.tokens.len() - self.cached(row.slot) <= WIDTH_MAX + 1);
        for row in long.iter_mut().map(std::slice::from_mut) {
            self.run(row)?;
        }
        match short.is_empty() {
            true => Ok(()),
            false => self.run(&mut short),
        }
    }

    fn cached(&self, slot: usize) -> usize {
        self.held[slot].as_ref().map_or(0, |held| held.tokens.len())
    }

    /// Runs what is pending of rows, a chunk at most, and chooses the token behind those that have nothing more pending. Rows
    /// whose slots no Program reaches are run in two parts.
    fn run(&mut self, rows: &mut [&mut Imagined<'_>]) -> Result<(), StepError> {
        let ladders = self.model.ladders();
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(()) };
        let reach = ladders.rows.at_least(last.slot - first.slot + 1);
        let size = match reach.filter(|reach| first.slot + reach <= self.held.len()) {
            Some(size) => size,
            None if rows.len() == 1 => return Ok(()),
            None => {
                let (left, right) = rows.split_at_mut(rows.len() / 2);
                self.run(left)?;
                return self.run(right);
            }
        };
        let chunk = ladders.length.largest();
        let planned = rows.iter().map(|row| {
            let cached = self.cached(row.slot);
            let valid = (row.tokens.len() - cached).min(chunk);
            PlannedRow { slot: row.slot, cached, valid, is_last: true }
        });
        let planned: Vec<PlannedRow> = planned.collect();
        let longest = planned.iter().map(|row| row.valid).max().unwrap_or(1);
        let length = ladders.length.at_least(longest).unwrap_or(longest);
        let plan = StepPlan {
            phase: if longest == 1 { Phase::Decode } else { Phase::Prefill },
            shape: StepShape { rows: size, length, capacity: self.cache.capacity() },
            rows: planned,
            scores: PlanScores::Last,
            // A draft may be worse than it could be, behind a limit of its own.
            is_long: false,
        };
        let tokens = rows.iter().zip(&plan.rows).map(|(row, planned)| &row.tokens[planned.cached..][..planned.valid]);
        let tokens: Vec<&[u32]> = tokens.collect();
        let reads_scores = rows.iter().any(|row| !row.search.takes_largest());
        let (_, scores) = self.cache.run(&self.model, &plan, &tokens, &mut self.buffers, reads_scores)?;
        for ((row, planned), found) in rows.iter_mut().zip(&plan.rows).zip(found_in(scores)) {
            let end = planned.cached + planned.valid;
            if let Some(held) = &mut self.held[planned.slot] {
                held.tokens.extend(&row.tokens[planned.cached..end]);
            }
            match end == row.tokens.len() {
                true => row.choose(&found),
                false => row.is_over = true,
            }
        }
        Ok(())
    }
}

/// What a step found behind the rows of its plan. A largest score that is no number says nothing.
fn found_in(StepScores { logits, best }: StepScores) -> Vec<Option<Found>> {
    match logits {
        Some(logits) => logits.into_iter().map(|scores| Some(Found::Scores(scores))).collect(),
        None => best.into_iter().map(|(id, score)| score.is_finite().then_some(Found::Largest(id))).collect(),
    }
}

/// A row with what the model says behind it.
struct Imagined<'r> {
    slot: usize,
    search: &'r RowSearch,
    width: usize,
    tokens: Vec<u32>,
    is_generated: Vec<bool>,
    /// Tokens that the row has said itself.
    said: usize,
    guide: Option<Guide>,
    /// Whether nothing more is imagined.
    is_over: bool,
}

impl<'r> Imagined<'r> {
    fn new(slot: usize, ask: &DraftAsk<'r>) -> Imagined<'r> {
        Imagined {
            slot,
            search: ask.search,
            width: ask.width,
            tokens: ask.tokens.to_vec(),
            is_generated: ask.is_generated.to_vec(),
            said: ask.tokens.len(),
            guide: ask.search.guide(),
            is_over: false,
        }
    }

    fn is_open(&self) -> bool {
        !self.is_over && self.tokens.len() - self.said < self.width
    }

    /// Chooses the next token as the row would. An end is not proposed: nothing is won by verifying it.
    fn choose(&mut self, found: &Option<Found>) {
        let guide = self.guide.as_mut();
        let picked = match found {
            None => None,
            Some(Found::Largest(id)) => Some(*id),
            Some(Found::Scores(scores)) => {
                let picked = self.search.pick_by(guide, scores, &self.tokens, &self.is_generated);
                picked.ok().map(|(id, _)| id)
            }
        };
        let Some(id) = picked.filter(|&id| !self.search.is_end(id)) else {
            self.is_over = true;
            return;
        };
        let is_allowed = self.guide.as_mut().is_none_or(|guide| guide.accept(id).is_ok());
        if is_allowed {
            self.tokens.push(id);
            self.is_generated.push(true);
        }
        self.is_over = !is_allowed || self.guide.as_ref().is_some_and(Guide::is_at_end);
    }
}
