//! The engine without threads: rows, pages and steps. A step is a transaction: pages are reserved, the runner runs, and only
//! when it has succeeded are tokens, tables and events what they are from then on.

mod admission;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use crate::generator::check_tokens;
use crate::row_search::{ChoiceError, ChosenToken};
use crate::search::FinishReason;

use super::draft_governor::DraftGovernor;
use super::draft_model::DraftAsk;
use super::events::{Event, EventQueue, TokenEvent};
use super::metrics::EngineMetrics;
use super::options::EngineLimits;
use super::page_pool::{PageId, PagePool};
use super::prefix_cache::{PrefixCache, long_root};
use super::row::{Row, RowId, RowState};
use super::runner::{Found, StepFault, StepRow, StepRunner, WindowPages};
use super::schedule::{Candidate, Share, StepBudget, share_step};
use super::window_group::{WindowGroup, WindowTable};

/// Steps with one row alone that may fail before the row does.
const FAILURES_MAX: usize = 2;

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// It ran, with so many rows and tokens.
    Committed {
        /// Rows.
        rows: usize,
        /// Tokens, proposed ones included.
        tokens: usize,
    },
    /// No row can run.
    NoWork,
    /// Rows wait for pages and none can run.
    CapacityDeferred,
    /// The runner failed; nothing has changed, and the next step is smaller.
    Aborted(StepFault),
    /// The device was lost, and every row with it. The next step has a new one.
    DeviceLost(String),
    /// The device was lost and cannot be had again; the engine is of no use any more.
    Stopped(String),
}

/// What a step runs of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReservedRow {
    row: RowId,
    /// Pending tokens.
    tokens: usize,
    /// Proposed tokens behind them.
    drafted: usize,
    /// Pages for them, held by the step until it ends.
    pages: Vec<PageId>,
    /// Those of each window.
    windows: Vec<Vec<PageId>>,
}

/// Rows, pages and steps.
pub struct EngineCore {
    runner: Box<dyn StepRunner>,
    limits: EngineLimits,
    pool: PagePool,
    windows: Vec<WindowGroup>,
    prefix: PrefixCache,
    rows: BTreeMap<RowId, Row>,
    admissions: u64,
    step: u64,
    /// Rows that a step may have; fewer after one that failed.
    rows_now: usize,
    governor: DraftGovernor,
    metrics: EngineMetrics,
}

impl EngineCore {
    /// An engine without rows.
    pub fn new(runner: Box<dyn StepRunner>, limits: EngineLimits) -> EngineCore {
        let pool = PagePool::new(limits.pages);
        let group = |&window: &usize| WindowGroup::new(window, limits.page_tokens, limits.pages);
        let windows = limits.windows.iter().map(group).collect();
        let rows_now = limits.rows_max;
        EngineCore {
            runner,
            limits,
            pool,
            windows,
            prefix: PrefixCache::default(),
            rows: BTreeMap::new(),
            admissions: 0,
            step: 0,
            rows_now,
            governor: DraftGovernor::default(),
            metrics: EngineMetrics::default(),
        }
    }

    /// Queues a row.
    pub fn add(&mut self, mut row: Row) {
        (row.arrived, row.queued) = (self.step, self.step);
        row.windows = vec![WindowTable::default(); self.windows.len()];
        self.rows.insert(row.id, row);
    }

    /// Goes on with a row whose turn has ended.
    pub fn continue_turn(&mut self, id: RowId, tokens: &[u32]) -> Result<(), String> {
        let (step, length_max) = (self.step, self.limits.length_max);
        let row = self.rows.get_mut(&id).filter(|row| row.state == RowState::Parked);
        let row = row.ok_or("there is no turn that has ended")?;
        check_tokens(0, tokens, self.runner.vocabulary()).map_err(|error| error.to_string())?;
        let total = row.tokens.len() + tokens.len();
        if tokens.is_empty() || total >= row.search.length_max().min(length_max) {
            let longest = row.search.length_max().min(length_max);
            return Err(format!("the row would have {total} tokens; new ones and fewer than {longest} were expected"));
        }
        row.events.reopen();
        row.turns.push(row.tokens.len());
        tokens.iter().for_each(|&token| row.push(token, false));
        row.search.begin_turn();
        row.usage = super::events::Usage { prompt_tokens: row.tokens.len(), ..Default::default() };
        (row.state, row.is_prompt, row.is_told_of_wait) = (RowState::Queued, true, false);
        (row.arrived, row.queued) = (step, step);
        Ok(())
    }

    /// Takes back the last turn of a row that has ended: what was given and what was generated; false if there is none.
    pub fn rewind_turn(&mut self, id: RowId) -> bool {
        let Some(row) = self.rows.get_mut(&id).filter(|row| row.state == RowState::Parked) else { return false };
        let Some(length) = row.turns.pop() else { return false };
        row.tokens.truncate(length);
        row.is_generated.truncate(length);
        let cached = row.cached.min(length.saturating_sub(1));
        // A page that others may find is never written again: what is left of it is run on a page of the row's own.
        let is_shared = row.chain.len() > cached / self.limits.page_tokens;
        let cached = if is_shared { cached - cached % self.limits.page_tokens } else { cached };
        // Where a window has let go of what the next query sees, the row is run again from its start.
        let is_seen = self.windows.iter().zip(&row.windows).all(|(group, table)| group.reaches(table, cached));
        let cached = if is_seen { cached } else { 0 };
        self.runner.forget(id);
        self.keep_pages(id, cached);
        true
    }

    /// Tokens of a row.
    pub fn tokens(&self, id: RowId) -> Option<&[u32]> {
        self.rows.get(&id).map(|row| &row.tokens[..])
    }

    /// Whether a row's turn has ended and another may begin.
    pub fn is_parked(&self, id: RowId) -> bool {
        self.rows.get(&id).is_some_and(|row| row.state == RowState::Parked)
    }

    /// Rows that have not ended.
    pub fn open_rows(&self) -> usize {
        self.rows.values().filter(|row| row.state != RowState::Parked).count()
    }

    /// Rows that wait to be let in.
    pub fn queued_rows(&self) -> usize {
        self.rows.values().filter(|row| row.state == RowState::Queued).count()
    }

    /// Rows, whatever they do.
    pub fn row_ids(&self) -> Vec<RowId> {
        self.rows.keys().copied().collect()
    }

    /// When the first deadline is.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.rows.values().filter(|row| row.state != RowState::Parked).filter_map(|row| row.deadline).min()
    }

    /// What was done so far and how things stand.
    pub fn metrics(&self) -> EngineMetrics {
        let count = |is_counted: &dyn Fn(&Row) -> bool| self.rows.values().filter(|row| is_counted(row)).count();
        EngineMetrics {
            queued: self.queued_rows(),
            running: count(&Row::is_running),
            parked: count(&|row| row.state == RowState::Parked),
            pages_total: self.pool.total(),
            pages_free: self.pool.free(),
            pages_shared: self.prefix.len(),
            kv_bytes: self.runner.kv_bytes(),
            kv_place: self.runner.kv_place(),
            ..self.metrics.clone()
        }
    }

    /// Does the next step.
    pub fn step(&mut self, now: Instant) -> StepOutcome {
        self.step += 1;
        self.reap(now);
        self.turn_rows();
        let is_deferred = self.admit();
        // What proposals cost is part of what a step takes.
        let begun = Instant::now();
        let reserved = self.plan_and_reserve();
        if reserved.is_empty() {
            return if is_deferred { StepOutcome::CapacityDeferred } else { StepOutcome::NoWork };
        }
        match self.run(&reserved) {
            Ok(scores) => self.commit_and_learn(reserved, scores, begun),
            Err(StepFault::DeviceLost(reason)) => {
                self.roll_back(&reserved);
                match self.lose_device(&reason) {
                    Ok(()) => StepOutcome::DeviceLost(reason),
                    Err(fault) => StepOutcome::Stopped(fault.to_string()),
                }
            }
            Err(fault) => {
                self.roll_back(&reserved);
                self.blame(&reserved, &fault);
                StepOutcome::Aborted(fault)
            }
        }
    }

    /// Tells every open row that there will be no more of it. The engine is of no use afterwards.
    pub fn end_all(&mut self, message: &str) {
        for row in std::mem::take(&mut self.rows).into_values().filter(|row| row.state != RowState::Parked) {
            let (answer, message) = (row.answer, message.to_string());
            row.events.push([Event::Failed { answer, message, is_retryable: true }]);
        }
    }

    /// Ends rows that nobody wants any more, or not in time.
    fn reap(&mut self, now: Instant) {
        for id in self.row_ids() {
            let Some(row) = self.rows.get(&id) else { continue };
            if row.events.is_cancelled() {
                match row.state {
                    RowState::Parked => self.remove(id),
                    RowState::Queued | RowState::Running { .. } => {
                        self.metrics.cancelled += 1;
                        let (events, answer, usage) = (row.events.clone(), row.answer, row.usage);
                        self.remove(id);
                        events.push([Event::Finished { answer, reason: FinishReason::Cancelled, usage }]);
                    }
                }
            } else if row.state != RowState::Parked && row.deadline.is_some_and(|deadline| deadline <= now) {
                self.fail(id, "the deadline has passed".to_string(), true);
            }
        }
    }

    /// Takes the pages of rows that have become long, or short again, and queues them: what is cached of them was computed in
    /// another way.
    fn turn_rows(&mut self) {
        let Some(limit) = self.limits.length_switch else { return };
        let is_turned = |row: &&Row| row.state != RowState::Parked && row.is_long != (row.tokens.len() > limit);
        let turned: Vec<RowId> = self.rows.values().filter(is_turned).map(|row| row.id).collect();
        for id in turned {
            self.runner.forget(id);
            self.keep_pages(id, 0);
            let step = self.step;
            let Some(row) = self.rows.get_mut(&id) else { continue };
            row.is_long = !row.is_long;
            if row.is_running() {
                (row.state, row.is_prompt, row.queued) = (RowState::Queued, true, step);
            }
        }
    }

    /// What runs, with its pages. Where all that was planned lost its pages to others, those are planned.
    fn plan_and_reserve(&mut self) -> Vec<ReservedRow> {
        loop {
            let shares = self.plan();
            let is_over = shares.is_empty();
            let reserved = self.reserve(shares);
            if is_over || !reserved.is_empty() {
                return reserved;
            }
        }
    }

    /// Who runs in this step, and what of each.
    fn plan(&mut self) -> Vec<Share> {
        let is_divisible = self.runner.is_divisible();
        let decoding = self.rows.values().filter(|row| row.is_running() && !row.is_prompt).count();
        let is_worth = self.limits.proposes_always || self.governor.allows(decoding.min(self.rows_now));
        let (is_drafting, length_switch) = (is_divisible && is_worth, self.limits.length_switch);
        for row in self.rows.values_mut().filter(|row| row.is_running()) {
            row.draft.clear();
            if is_drafting && !row.is_prompt {
                row.draft = row.speculation.propose(&row.tokens, row.draft_room(length_switch));
                row.search.cut_draft(&mut row.draft);
                row.is_looked_up = !row.draft.is_empty();
            }
        }
        if is_drafting {
            self.ask_draft_model();
        }
        let candidates: Vec<Candidate> = self.ready_rows();
        let budget = match is_divisible {
            true => StepBudget {
                tokens: self.limits.tokens_max,
                rows: self.rows_now,
                prefill_min: self.limits.prefill_min,
                prefill_max: self.limits.prefill_max,
            },
            false => StepBudget {
                tokens: usize::MAX / 2,
                rows: self.rows_now,
                prefill_min: usize::MAX / 4,
                prefill_max: usize::MAX / 4,
            },
        };
        share_step(&candidates, budget)
    }

    /// Has the draft model, if there is one, propose for rows that decode and found nothing in themselves.
    fn ask_draft_model(&mut self) {
        let Some(draft) = self.runner.draft() else { return };
        let limits = &self.limits;
        let is_asking = |row: &&Row| {
            let is_open = row.is_running() && !row.is_prompt && row.events.len() < limits.events_max;
            is_open && row.draft.is_empty() && row.pending() <= limits.prefill_max
        };
        let mut rows: Vec<&Row> = self.rows.values().filter(is_asking).collect();
        rows.sort_by_key(|row| (row.stepped, row.id));
        rows.truncate(self.rows_now);
        // In the order of rows that came first, so that they stay where they lie.
        rows.sort_by_key(|row| row.id);
        let asks: Vec<DraftAsk<'_>> = rows.iter().map(|row| row.draft_ask(limits.length_switch)).collect();
        let proposed = draft.propose(&asks);
        let proposed: Vec<(RowId, Vec<u32>)> = rows.iter().map(|row| row.id).zip(proposed).collect();
        for (id, tokens) in proposed {
            self.rows.entry(id).and_modify(|row| row.draft = tokens);
        }
    }

    /// Rows that could run. One whose client does not take what it is told waits for that, and not for a step.
    fn ready_rows(&mut self) -> Vec<Candidate> {
        let (step, events_max) = (self.step, self.limits.events_max);
        let mut ready = Vec::new();
        for row in self.rows.values_mut().filter(|row| row.is_running()) {
            match row.is_prompt || row.events.len() < events_max {
                true => ready.push(row.id),
                false => row.ready = step,
            }
        }
        ready.iter().filter_map(|id| Some(self.candidate(self.rows.get(id)?))).collect()
    }

    fn candidate(&self, row: &Row) -> Candidate {
        // Tokens that a grammar forced are pending as a prompt's are, and come in pieces that have Programs likewise.
        let chunk = match (self.runner.is_divisible(), row.is_prompt) {
            (false, _) => usize::MAX,
            (true, true) => row.search.params().search.chunk_size.unwrap_or(usize::MAX),
            (true, false) => self.limits.prefill_max,
        };
        let pending = row.pending().min(chunk);
        let is_all = pending == row.pending();
        Candidate {
            row: row.id,
            pending,
            drafted: if is_all { row.draft.len().min(self.limits.chunk.saturating_sub(pending)) } else { 0 },
            is_prompt: row.is_prompt,
            class: self.class(row),
            arrived: row.arrived,
            stepped: row.stepped,
        }
    }

    /// Holds pages for what runs. Where there are too few, drafts are given up, then pages that nobody runs on, then the rows
    /// that were let in last.
    fn reserve(&mut self, mut shares: Vec<Share>) -> Vec<ReservedRow> {
        shares.sort_by_key(|share| self.admission(share.row));
        let mut reserved: Vec<ReservedRow> = Vec::new();
        for share in shares {
            reserved.extend(self.reserve_row(share));
        }
        reserved
    }

    fn reserve_row(&mut self, share: Share) -> Option<ReservedRow> {
        let Share { row: id, tokens, mut drafted } = share;
        loop {
            let row = self.rows.get(&id).filter(|row| row.is_running())?;
            let needed = (row.cached + tokens + drafted).div_ceil(self.limits.page_tokens);
            let missing = needed.saturating_sub(row.pages.len());
            if drafted > 0 && self.pool.free() < missing {
                drafted = 0;
                continue;
            }
            if self.make_room(missing, id) {
                let pages = self.pool.take(missing)?;
                let row = self.rows.get(&id)?;
                let end = row.cached + tokens + drafted;
                let windows = self.windows.iter_mut().zip(&row.windows).map(|(group, table)| group.take(table, end));
                return Some(ReservedRow { row: id, tokens, drafted, pages, windows: windows.collect() });
            }
            let latest = self.rows.values().filter(|row| row.is_running()).max_by_key(|row| self.admission(row.id));
            let latest = self.stalled_row().or(latest.map(|row| row.id))?;
            self.preempt(latest);
        }
    }

    /// The order in which a row was let in.
    fn admission(&self, id: RowId) -> u64 {
        match self.rows.get(&id).map(|row| row.state) {
            Some(RowState::Running { admission }) => admission,
            _ => u64::MAX,
        }
    }

    /// Takes a row's pages and queues it again; what it said stays, and is run again when it returns.
    fn preempt(&mut self, id: RowId) {
        self.metrics.preemptions += 1;
        self.runner.forget(id);
        self.keep_pages(id, 0);
        let step = self.step;
        if let Some(row) = self.rows.get_mut(&id) {
            (row.state, row.is_prompt, row.queued) = (RowState::Queued, true, step);
        }
    }

    /// Keeps the pages of so many cached tokens of a row and lets go of the others.
    fn keep_pages(&mut self, id: RowId, cached: usize) {
        let Some(row) = self.rows.get_mut(&id) else { return };
        row.cached = cached;
        row.chain.truncate(cached / self.limits.page_tokens);
        let kept = cached.div_ceil(self.limits.page_tokens);
        for page in row.pages.split_off(kept.min(row.pages.len())) {
            self.pool.release(page);
        }
        self.windows.iter_mut().zip(&mut row.windows).for_each(|(group, table)| group.cut(table, kept));
    }

    fn run(&mut self, reserved: &[ReservedRow]) -> Result<Vec<Vec<Found>>, StepFault> {
        let mut tokens: Vec<Vec<u32>> = Vec::with_capacity(reserved.len());
        let mut pages: Vec<Vec<PageId>> = Vec::with_capacity(reserved.len());
        let mut tables: Vec<Vec<WindowTable>> = Vec::with_capacity(reserved.len());
        for part in reserved {
            let row = &self.rows[&part.row];
            let pending = &row.tokens[row.cached..row.cached + part.tokens];
            tokens.push([pending, &row.draft[..part.drafted]].concat());
            pages.push([&row.pages[..], &part.pages].concat());
            let table = |(table, new): (&WindowTable, &Vec<PageId>)| WindowTable {
                first: table.first,
                pages: [&table.pages[..], new].concat(),
            };
            tables.push(row.windows.iter().zip(&part.windows).map(table).collect());
        }
        let windows: Vec<Vec<WindowPages<'_>>> =
            tables.iter().map(|tables| tables.iter().map(WindowTable::as_pages).collect()).collect();
        let rows: Vec<StepRow<'_>> = reserved
            .iter()
            .zip(tokens.iter().zip(&pages).zip(&windows))
            .map(|(part, ((tokens, pages), windows))| {
                let row = &self.rows[&part.row];
                let is_last = part.tokens == row.pending();
                let scored = if is_last { 1 + part.drafted } else { 0 };
                let (cached, is_long, adapter) = (row.cached, row.is_long, row.adapter.as_ref());
                let takes_largest = row.search.takes_largest();
                StepRow { row: part.row, tokens, cached, pages, windows, scored, takes_largest, is_long, adapter }
            })
            .collect();
        self.runner.run(&rows)
    }

    /// Nothing of the step was: its pages are free again.
    fn roll_back(&mut self, reserved: &[ReservedRow]) {
        self.metrics.aborted_steps += 1;
        for part in reserved {
            part.pages.iter().for_each(|&page| self.pool.release(page));
            self.windows.iter_mut().zip(&part.windows).for_each(|(group, pages)| group.give_back(pages));
        }
    }

    /// Makes the next step smaller; a row that fails alone again and again is failed alone.
    fn blame(&mut self, reserved: &[ReservedRow], fault: &StepFault) {
        self.rows_now = (reserved.len() / 2).max(1);
        let [part] = reserved else { return };
        let Some(row) = self.rows.get_mut(&part.row) else { return };
        row.failures += 1;
        if row.failures >= FAILURES_MAX {
            self.fail(part.row, fault.to_string(), true);
        }
    }

    /// The pages of every row are gone, and the runner begins anew. Turns that have ended keep their tokens.
    fn lose_device(&mut self, reason: &str) -> Result<(), StepFault> {
        for id in self.row_ids() {
            match self.rows.get(&id).map(|row| row.state) {
                Some(RowState::Parked) => {
                    self.runner.forget(id);
                    self.keep_pages(id, 0);
                }
                Some(_) => self.fail(id, format!("the device has failed: {reason}"), true),
                None => {}
            }
        }
        while self.prefix.evict(&mut self.pool) {}
        self.forget_window_entries();
        self.runner.rebuild()
    }

    /// Commits a step and learns whether proposals pay, where only rows that decode took part.
    fn commit_and_learn(&mut self, reserved: Vec<ReservedRow>, found: Vec<Vec<Found>>, begun: Instant) -> StepOutcome {
        let (rows, took) = (reserved.len(), begun.elapsed());
        let is_decoding = reserved.iter().all(|part| !self.rows[&part.row].is_prompt);
        let is_drafting = reserved.iter().any(|part| part.drafted > 0);
        let before = self.metrics.generated_tokens;
        let outcome = self.commit(reserved, found);
        if is_decoding {
            self.governor.learn(rows, is_drafting, self.metrics.generated_tokens - before, took);
        }
        outcome
    }

    /// Makes the step what is: cached tokens, pages, chosen tokens, and then events.
    fn commit(&mut self, reserved: Vec<ReservedRow>, found: Vec<Vec<Found>>) -> StepOutcome {
        self.rows_now = (self.rows_now * 2).min(self.limits.rows_max);
        self.metrics.steps += 1;
        let rows = reserved.len();
        let tokens = reserved.iter().map(|part| part.tokens + part.drafted).sum();
        let mut told = Told(Vec::with_capacity(rows));
        for (part, found) in reserved.into_iter().zip(found) {
            let id = part.row;
            let events = self.commit_row(part, &found);
            let Some(row) = self.rows.get(&id) else { continue };
            let ended = events.iter().find(|event| !matches!(event, Event::Token(_))).cloned();
            told.0.push((row.events.clone(), events));
            self.share_pages(id);
            self.trim_windows(id);
            match ended {
                Some(Event::Finished { .. }) => self.end_turn(id),
                Some(_) => self.remove(id),
                None => {}
            }
        }
        drop(told);
        StepOutcome::Committed { rows, tokens }
    }

    /// Makes one row's part of the step what is, and gives what is to be told of it.
    fn commit_row(&mut self, part: ReservedRow, found: &[Found]) -> Vec<Event> {
        let step = self.step;
        let Some(row) = self.rows.get_mut(&part.row) else { return Vec::new() };
        row.pages.extend(part.pages);
        row.windows.iter_mut().zip(part.windows).for_each(|(table, pages)| table.pages.extend(pages));
        match row.is_prompt {
            true => self.metrics.prompt_tokens += part.tokens,
            false => self.metrics.decode_wait_max = self.metrics.decode_wait_max.max(step - row.ready),
        }
        (row.cached, row.stepped, row.ready, row.failures) = (row.cached + part.tokens, step, step, 0);
        if found.is_empty() {
            return Vec::new();
        }
        row.is_prompt = false;
        let draft = std::mem::take(&mut row.draft);
        let before = row.usage.accepted_draft_tokens;
        let forced_max = self.limits.prefill_max.min(self.limits.events_max);
        let events = choose_tokens(row, found, &draft[..part.drafted], forced_max);
        let accepted = row.usage.accepted_draft_tokens - before;
        row.speculation.learn(accepted, part.drafted);
        let generated = events.iter().filter(|event| matches!(event, Event::Token(_))).count();
        self.metrics.generated_tokens += generated;
        self.metrics.speculation.count_round(part.drafted, accepted, row.is_looked_up);
        // Pages for rejected tokens are not needed.
        let kept = (row.tokens.len() + 1).div_ceil(self.limits.page_tokens);
        for page in row.pages.split_off(kept.min(row.pages.len())) {
            self.pool.release(page);
        }
        self.windows.iter_mut().zip(&mut row.windows).for_each(|(group, table)| group.cut(table, kept));
        events
    }

    /// Makes full pages of a row entries of the prefix cache.
    fn share_pages(&mut self, id: RowId) {
        let page_tokens = self.limits.page_tokens;
        let Some(row) = self.rows.get_mut(&id).filter(|row| row.is_sharing) else { return };
        for position in row.chain.len()..row.cached / page_tokens {
            let before = row.chain.last().copied().unwrap_or_else(|| row.root());
            let tokens = &row.tokens[position * page_tokens..(position + 1) * page_tokens];
            let (name, page) = self.prefix.insert(before, tokens, row.pages[position], &mut self.pool);
            row.pages[position] = page;
            let tables = self.windows.iter_mut().zip(&mut row.windows);
            tables.for_each(|(group, table)| group.share(name, table, position));
            row.chain.push(name);
        }
    }

    /// Lets go of pages of a row that no window reaches any more.
    fn trim_windows(&mut self, id: RowId) {
        let Some(row) = self.rows.get_mut(&id) else { return };
        self.windows.iter_mut().zip(&mut row.windows).for_each(|(group, table)| group.trim(table, row.cached));
    }

    /// Lets go of pages of windows whose entries of the prefix cache are no more.
    fn forget_window_entries(&mut self) {
        self.windows.iter_mut().for_each(|group| group.forget_entries(|name| self.prefix.has(name)));
    }

    /// The turn of a row has ended.
    fn end_turn(&mut self, id: RowId) {
        self.metrics.finished += 1;
        match self.rows.get_mut(&id) {
            Some(row) if row.keeps_turn => row.state = RowState::Parked,
            _ => self.remove(id),
        }
    }

    /// Ends a row that cannot go on, and no other.
    fn fail(&mut self, id: RowId, message: String, is_retryable: bool) {
        let Some(row) = self.rows.get(&id) else { return };
        let (events, answer, is_open) = (row.events.clone(), row.answer, row.state != RowState::Parked);
        self.remove(id);
        if is_open {
            self.metrics.failed += 1;
            events.push([Event::Failed { answer, message, is_retryable }]);
        }
    }

    /// A row is no more, and owns nothing.
    fn remove(&mut self, id: RowId) {
        self.runner.forget(id);
        self.keep_pages(id, 0);
        let Some(row) = self.rows.remove(&id) else { return };
        let is_private = !self.limits.prefix_caching && row.is_sharing;
        if is_private && !self.rows.values().any(|other| other.chain_root == row.chain_root) {
            for root in [row.chain_root, long_root(row.chain_root)] {
                self.prefix.forget_root(root, &mut self.pool);
            }
            self.forget_window_entries();
        }
    }

    /// What must hold between steps; says what does not.
    pub fn check_invariants(&self) -> Result<(), String> {
        let page_tokens = self.limits.page_tokens;
        let mut counts: BTreeMap<PageId, u32> = BTreeMap::new();
        for page in self.rows.values().flat_map(|row| row.pages.iter().copied()).chain(self.prefix.pages()) {
            *counts.entry(page).or_default() += 1;
        }
        let held = counts.len();
        let total = self.pool.total();
        if self.pool.free() + held != total {
            return Err(format!("{} pages are free and {held} held of {total}", self.pool.free()));
        }
        if let Some((page, count)) = counts.iter().find(|(page, count)| self.pool.count(**page) != **count) {
            return Err(format!("page {} is held {count} times and counted {}", page.0, self.pool.count(*page)));
        }
        let named: BTreeSet<PageId> = self.prefix.pages().collect();
        let mut owners: BTreeMap<PageId, usize> = BTreeMap::new();
        for row in self.rows.values() {
            row.pages.iter().for_each(|page| *owners.entry(*page).or_default() += 1);
        }
        for row in self.rows.values() {
            let (id, cached, length) = (row.id.0, row.cached, row.tokens.len());
            if cached > row.pages.len() * page_tokens || cached > length {
                return Err(format!("row {id} has {cached} tokens cached of {length}, on {} pages", row.pages.len()));
            }
            let mut open = row.pages.iter().skip(cached / page_tokens);
            if let Some(page) = open.find(|page| owners[page] > 1 || named.contains(page)) {
                return Err(format!("page {} is not full, and row {id} shares it", page.0));
            }
            if row.state == RowState::Queued && row.tokens.is_empty() {
                return Err(format!("row {id} is queued without tokens"));
            }
        }
        for (number, group) in self.windows.iter().enumerate() {
            group.check(self.rows.values().map(|row| (&row.windows[number], row.cached)))?;
        }
        Ok(())
    }
}

/// What a step has to tell, which is told when it is dropped: rows that have ended are told so even where another row's part
/// of the step panics, since nobody knows of them any more.
pub(super) struct Told(pub(super) Vec<(Arc<EventQueue>, Vec<Event>)>);

impl Drop for Told {
    fn drop(&mut self) {
        for (queue, events) in self.0.drain(..) {
            queue.push(events);
        }
    }
}

/// Chooses tokens by scores, as long as they are the proposed ones, and then some of those that must follow.
fn choose_tokens(row: &mut Row, found: &[Found], draft: &[u32], forced_max: usize) -> Vec<Event> {
    let mut events = Vec::new();
    for (position, found) in found.iter().enumerate() {
        let chosen = match found {
            Found::Scores(scores) => row.search.choose(scores, &row.tokens, &row.is_generated),
            Found::Largest(id) => row.search.accept(*id, row.tokens.len()),
        };
        let chosen = match chosen {
            Ok(chosen) => chosen,
            Err(error) => return failed(row, events, &error),
        };
        let is_right = draft.get(position) == Some(&chosen.id);
        row.usage.accepted_draft_tokens += usize::from(is_right);
        if take_token(row, chosen, &mut events) {
            return events;
        }
        if !is_right {
            break;
        }
        row.cached += 1;
    }
    for _ in 0..forced_max {
        match row.search.choose_forced(row.tokens.len()) {
            Ok(None) => return events,
            Ok(Some(chosen)) => {
                if take_token(row, chosen, &mut events) {
                    return events;
                }
            }
            Err(error) => return failed(row, events, &error),
        }
    }
    events
}

fn failed(row: &Row, mut events: Vec<Event>, error: &ChoiceError) -> Vec<Event> {
    events.push(Event::Failed { answer: row.answer, message: error.to_string(), is_retryable: false });
    events
}

/// Makes a chosen token part of the row; true if the row ends with it.
fn take_token(row: &mut Row, chosen: ChosenToken, events: &mut Vec<Event>) -> bool {
    if chosen.is_kept {
        row.push(chosen.id, true);
    }
    row.usage.generated_tokens = row.search.new_tokens();
    let (id, text, logprobs) = (chosen.id, chosen.text, chosen.logprobs);
    events.push(Event::Token(TokenEvent { answer: row.answer, id, text, logprobs }));
    if let Some(reason) = chosen.finish {
        events.push(Event::Finished { answer: row.answer, reason, usage: row.usage });
    }
    chosen.finish.is_some()
}
