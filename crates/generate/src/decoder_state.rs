//! Sequences and their caches on a decoder: runs what is pending, step by step, and keeps the scores behind each row. A step
//! that fails changes nothing: new keys and values are written when it has succeeded.

use crate::adapter::Adapter;
use crate::ladder::Ladders;
use crate::plan::{Limits, ProgramSet, RowState, StepPlan, plan};
use crate::row_cache::{RowCache, StepScores};
use crate::step_buffers::{Scores, StepBuffers};
use crate::text_model::{StepError, TextModel};

/// One row: its tokens and how many of them are cached.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    /// Which of them were generated.
    pub is_generated: Vec<bool>,
    /// Leading tokens whose keys and values are cached.
    pub cached: usize,
    /// Whether those were computed as in long rows.
    pub is_long: bool,
    /// Scores of the token behind the last one, before any rule.
    pub logits: Option<Scores>,
    /// The token of the largest score, the lowest of equal ones, and that score, where the device says so.
    pub best: Option<(u32, f32)>,
    /// Whether the row takes part in steps.
    pub is_live: bool,
}

impl Sequence {
    fn new() -> Sequence {
        Sequence {
            tokens: Vec::new(),
            is_generated: Vec::new(),
            cached: 0,
            is_long: false,
            logits: None,
            best: None,
            is_live: true,
        }
    }

    /// Adds a token; the scores are no longer those behind the last one.
    pub fn push(&mut self, token: u32, is_generated: bool) {
        self.tokens.push(token);
        self.is_generated.push(is_generated);
        (self.logits, self.best) = (None, None);
    }

    /// Keeps the first tokens. At least the last one is run again, for its scores.
    pub fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
        self.is_generated.truncate(length);
        self.cached = self.cached.min(length.saturating_sub(1));
        (self.logits, self.best) = (None, None);
    }
}

/// What was run so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepStats {
    /// Steps.
    pub steps: usize,
    /// Tokens that were computed and wanted.
    pub tokens: usize,
    /// Tokens that were computed as filler.
    pub padded_tokens: usize,
    /// Times that a cache was made larger.
    pub growths: usize,
    /// Rows that were run again from their first token, because a window had dropped what was needed, or because they are
    /// computed in another way at their new length or with another adapter.
    pub reruns: usize,
}

/// Who is told what each step ran.
pub type StepObserver = Box<dyn FnMut(&StepPlan, &precast_session::RunReport) + Send>;

/// Sequences on a decoder.
pub struct DecoderState {
    model: TextModel,
    ladders: Ladders,
    cache: RowCache,
    buffers: StepBuffers,
    /// Rows in the order of slots.
    rows: Vec<Sequence>,
    stats: StepStats,
    observer: Option<StepObserver>,
    /// Whether scores are read where the token of the largest would do.
    reads_scores: bool,
}

impl Drop for DecoderState {
    fn drop(&mut self) {
        self.cache.end(&self.model);
        self.buffers.end(self.model.spare());
    }
}

impl DecoderState {
    /// So many empty rows, with room for prompts of this length.
    pub fn new(
        model: &TextModel,
        rows: usize,
        prompt: usize,
        max_new_tokens: Option<usize>,
        chunk: Option<usize>,
    ) -> Result<DecoderState, StepError> {
        let own = model.ladders();
        let ladders = chunk.map_or_else(|| own.clone(), |chunk| own.with_chunk(chunk));
        let slots = ladders.rows.at_least(rows).unwrap_or(rows);
        let cache = RowCache::new(model, slots, ladders.capacity_at_first(prompt, max_new_tokens))?;
        let (model, rows) = (model.clone(), (0..rows).map(|_| Sequence::new()).collect());
        let (stats, observer, buffers) = (StepStats::default(), None, StepBuffers::default());
        Ok(DecoderState { model, ladders, cache, buffers, rows, stats, observer, reads_scores: true })
    }

    /// Goes on with the same decoder, of other parameters it may be. What is cached is of no use to those, so rows are run
    /// again from their start.
    pub fn set_model(&mut self, model: &TextModel) {
        let before = std::mem::replace(&mut self.model, model.clone());
        if before.adapter().map(Adapter::digest) == model.adapter().map(Adapter::digest) {
            return;
        }
        for row in 0..self.rows.len() {
            match self.rows[row].cached {
                0 => (self.rows[row].logits, self.rows[row].best) = (None, None),
                _ => self.rerun(row),
            }
        }
    }

    /// Leaves scores on the device where that says which token has the largest.
    pub fn leave_scores(&mut self) {
        self.reads_scores = false;
    }

    /// Tells someone what each step ran.
    pub fn observe(&mut self, observer: StepObserver) {
        self.observer = Some(observer);
    }

    /// The decoder.
    pub fn model(&self) -> &TextModel {
        &self.model
    }

    /// The rows.
    pub fn rows(&self) -> &[Sequence] {
        &self.rows
    }

    /// A row to change.
    pub fn row_mut(&mut self, row: usize) -> &mut Sequence {
        &mut self.rows[row]
    }

    /// What was run so far.
    pub fn stats(&self) -> &StepStats {
        &self.stats
    }

    /// Bytes of the cache.
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Keeps the first tokens of a row. Where a window has dropped what the rest needs, the row is run again from its start.
    pub fn rewind(&mut self, row: usize, length: usize) {
        self.rows[row].truncate(length);
        if !self.cache.is_intact(row, self.rows[row].cached) {
            self.cache.clear(row);
            self.rows[row].cached = 0;
            self.stats.reruns += 1;
        }
    }

    /// A new row that is what another is.
    pub fn fork(&mut self, row: usize) -> Result<usize, StepError> {
        let new = self.rows.len();
        if new >= self.cache.slots() {
            let slots = self.ladders.rows.at_least(new + 1).unwrap_or(new + 1);
            self.cache.grow(slots, self.cache.capacity())?;
        }
        self.cache.copy_slot(row, new)?;
        self.rows.push(self.rows[row].clone());
        Ok(new)
    }

    /// Gives successive rows, from `first` on, what the rows of these positions among them are.
    pub fn reorder(&mut self, first: usize, parents: &[usize]) -> Result<(), StepError> {
        self.cache.reorder(first, parents)?;
        let new: Vec<Sequence> = parents.iter().map(|parent| self.rows[first + parent].clone()).collect();
        for (position, sequence) in new.into_iter().enumerate() {
            self.rows[first + position] = sequence;
        }
        Ok(())
    }

    /// Takes back all that happened to the rows since they were like this. Their caches hold more tokens by now, which the
    /// next ones are written over; a row of which a window has dropped something is run again from its start.
    pub fn restore(&mut self, rows: Vec<Sequence>) {
        let now = std::mem::replace(&mut self.rows, rows);
        for (row, now) in now.iter().enumerate().take(self.rows.len()) {
            if self.rows[row].is_long != now.is_long {
                self.rerun(row);
            }
        }
        self.forget_broken_rows();
    }

    /// Lets a row run again from its start.
    fn rerun(&mut self, row: usize) {
        self.cache.clear(row);
        let sequence = &mut self.rows[row];
        (sequence.cached, sequence.logits, sequence.best) = (0, None, None);
        self.stats.reruns += 1;
    }

    /// Lets live rows run again from their start that have become long, or short again: what is cached of them was computed in
    /// another way.
    fn turn_rows(&mut self) {
        for row in 0..self.rows.len() {
            let sequence = &mut self.rows[row];
            let is_long = self.model.is_long(sequence.tokens.len());
            if sequence.is_live && sequence.is_long != is_long {
                sequence.is_long = is_long;
                if sequence.cached > 0 {
                    self.rerun(row);
                }
            }
        }
    }

    /// Lets rows run again from their start of which a window has dropped something.
    fn forget_broken_rows(&mut self) {
        for row in 0..self.rows.len() {
            if !self.cache.is_intact(row, self.rows[row].cached) {
                self.rerun(row);
            }
        }
    }

    /// Reads the scores behind a row that were left on the device: its last token is run again.
    pub fn read_scores(&mut self, row: usize) -> Result<(), StepError> {
        let sequence = &self.rows[row];
        if sequence.logits.is_some() || sequence.best.is_none() {
            return Ok(());
        }
        self.rewind(row, self.rows[row].tokens.len());
        let reads_scores = std::mem::replace(&mut self.reads_scores, true);
        let ran = self.run_pending();
        self.reads_scores = reads_scores;
        ran
    }

    /// Runs all pending tokens of live rows, so that each has scores.
    pub fn run_pending(&mut self) -> Result<(), StepError> {
        self.run_pending_unless(&|| false).map(|_| ())
    }

    /// The same, but asks before each step whether to give up; false if it did.
    pub fn run_pending_unless(&mut self, is_cancelled: &dyn Fn() -> bool) -> Result<bool, StepError> {
        self.turn_rows();
        while let Some(plan) = plan(&self.row_states(), self.limits(&self.model.ready())) {
            if is_cancelled() {
                return Ok(false);
            }
            self.run(&plan)?;
        }
        Ok(true)
    }

    /// Rows without scores have something pending; rows that are not live never have.
    fn row_states(&self) -> Vec<RowState> {
        let state = |row: &Sequence| match row.is_live {
            true => RowState { length: row.tokens.len(), cached: row.cached, is_long: row.is_long },
            false => RowState { length: row.cached, cached: row.cached, is_long: row.is_long },
        };
        self.rows.iter().map(state).collect()
    }

    fn limits<'a>(&'a self, ready: &'a ProgramSet) -> Limits<'a> {
        Limits { ladders: &self.ladders, slots: self.cache.slots(), capacity: self.cache.capacity(), ready }
    }

    fn run(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        if plan.shape.capacity > self.cache.capacity() {
            self.cache.grow(self.cache.slots(), plan.shape.capacity)?;
            self.stats.growths += 1;
        }
        let ran = self.run_decoder(plan);
        if ran.is_err() {
            // On a device, the step may have written over the oldest tokens of a window.
            self.forget_broken_rows();
        }
        let mut scores = ran?;
        for (position, row) in plan.rows.iter().enumerate() {
            let sequence = &mut self.rows[row.slot];
            sequence.cached += row.valid;
            if row.is_last {
                sequence.logits = scores.logits.as_mut().map(|logits| std::mem::take(&mut logits[position]));
                sequence.best = scores.best.get(position).copied();
            }
        }
        self.stats.steps += 1;
        self.stats.tokens += plan.rows.iter().map(|row| row.valid).sum::<usize>();
        self.stats.padded_tokens += plan.padded_tokens();
        Ok(())
    }

    /// Runs a plan and caches its new tokens.
    fn run_decoder(&mut self, plan: &StepPlan) -> Result<StepScores, StepError> {
        let tokens: Vec<&[u32]> =
            plan.rows.iter().map(|row| &self.rows[row.slot].tokens[row.cached..row.cached + row.valid]).collect();
        let (report, scores) = self.cache.run(&self.model, plan, &tokens, &mut self.buffers, self.reads_scores)?;
        if let Some(observer) = &mut self.observer {
            observer(plan, &report);
        }
        Ok(scores)
    }
}
