//! Steps of an engine on a decoder whose Programs read the cache of a row in one piece. Pages are what is kept; beside them
//! lies a copy of the rows that run, in one piece each, which grows with every step and is made again from pages where it
//! is missing. So rows that go on from step to step cost no copies of what they have cached.

use std::collections::BTreeMap;

use precast_tensor::Digest;

use crate::adapter::Adapter;
use crate::kv_cache::{Half, NoMemory};
use crate::ladder::{Ladder, Ladders};
use crate::plan::{Phase, PlannedRow, ProgramSet, Scores as PlanScores, StepPlan, StepShape};
use crate::search::choose_likeliest;
use crate::step_buffers::StepBuffers;
use crate::text_model::{StepError, StepOutputs, TextModel};

use super::draft_model::DraftModel;
use super::metrics::KvPlace;
use super::page_store::PageStores;
use super::preparer::Preparer;
use super::row::RowId;
use super::row_copies::{Held, RowCopies};
use super::runner::{Found, StepFault, StepRow, StepRunner};

/// Steps of an engine on a decoder.
pub struct PagedRunner {
    model: TextModel,
    ladders: Ladders,
    rows_max: usize,
    /// Slots that copies have at most: one more than fits the widest Program, for a prompt that runs beside it.
    slots_max: usize,
    store: PageStores,
    copies: BTreeMap<Class, RowCopies>,
    /// Of each Program that runs beside others.
    buffers: Vec<StepBuffers>,
    draft: Option<DraftModel>,
    preparer: Option<Preparer>,
    runs: u64,
    /// Where it keeps keys and values: on the host, for whatever reason.
    place: KvPlace,
}

/// Rows that share copies: those of two successive capacities, by number, and of one adapter. So the groups of several adapters
/// lie apart and run beside one another.
type Class = (usize, Option<Digest>);

/// Runs after which copies that nobody used are let go.
const IDLE_RUNS_MAX: u64 = 64;

impl PagedRunner {
    /// A runner for steps of at most so many rows. `for_device` says why keys and values are on the host though it is a device
    /// that computes, where that is so.
    pub fn new(model: &TextModel, page_tokens: usize, rows_max: usize, for_device: Option<String>) -> PagedRunner {
        let ladders = model.ladders().clone();
        let rows_max = rows_max.min(ladders.rows.largest());
        let slots_max = ladders.rows.at_least(rows_max).unwrap_or(rows_max) + 1;
        let store = PageStores::new(model.layers(), page_tokens);
        let draft = model.draft().map(|draft| DraftModel::new(draft, rows_max));
        let (model, copies, buffers) = (model.clone(), BTreeMap::new(), Vec::new());
        let (preparer, place) = (None, for_device.map_or(KvPlace::Host, KvPlace::HostForDevice));
        PagedRunner { model, ladders, rows_max, slots_max, store, copies, buffers, draft, preparer, runs: 0, place }
    }

    /// Has Programs compiled ahead of need, on a thread of its own.
    pub fn prepare_ahead(&mut self) {
        let model = self.model.clone();
        let prepare = move |shape, wants_scores| model.prepare_on_host(shape, wants_scores);
        self.preparer = Preparer::begin(&self.ladders, self.rows_max, prepare);
    }

    /// Runs groups of rows, each in one Program, and keeps what they give when all have run: all rows of a group have one new
    /// token, or few and scores behind each, or there is one. What each gives is in the order of its rows.
    fn run_groups(&mut self, groups: &[Vec<&StepRow<'_>>]) -> Result<Vec<Vec<Vec<Found>>>, StepFault> {
        self.runs += 1;
        let mut jobs: Vec<Job<'_>> = Vec::with_capacity(groups.len());
        let loads = self.loads_beside(groups);
        for (number, rows) in groups.iter().enumerate() {
            let slots = self.place(rows);
            jobs.extend(self.jobs_of(number, rows, &slots, &loads)?);
        }
        // The longest first, so that the last ones to end are short.
        jobs.sort_by_key(|job| std::cmp::Reverse(cost_of(job.plan.shape.rows, job.plan.shape.length)));
        self.buffers.resize_with(self.buffers.len().max(jobs.len()), StepBuffers::default);
        let copies = &self.copies;
        let runs: Vec<(&Job<'_>, &mut StepBuffers)> = jobs.iter().zip(&mut self.buffers).collect();
        let outputs = self.model.session().do_beside(runs, |(job, buffers)| {
            let tokens: Vec<&[u32]> = job.rows.iter().map(|row| row.tokens).collect();
            let outputs = job.model.run(&job.plan, &tokens, &copies[&job.class].cache, buffers).map_err(fault)?;
            Ok(job.found_in(outputs))
        });
        let outputs = outputs.into_iter().collect::<Result<Vec<Vec<Vec<Found>>>, StepFault>>()?;
        self.keep(&jobs);
        if let Some(preparer) = &mut self.preparer {
            // Programs of adapters are compiled when a step needs them: nobody knows which adapters will be asked for.
            let own = jobs.iter().filter(|job| job.class.1.is_none());
            own.for_each(|job| preparer.look_ahead(&job.plan, &self.ladders));
        }
        let mut found: Vec<Vec<Vec<Found>>> = groups.iter().map(|rows| vec![Vec::new(); rows.len()]).collect();
        for (job, outputs) in jobs.iter().zip(outputs) {
            for (&position, own) in job.positions.iter().zip(outputs) {
                found[job.group][position] = own;
            }
        }
        Ok(found)
    }

    /// What each thread has to do beside the rows that are divided, the least first.
    fn loads_beside(&self, groups: &[Vec<&StepRow<'_>>]) -> Vec<usize> {
        let others = groups.iter().filter(|rows| !is_divided(rows));
        let cost =
            |rows: &Vec<&StepRow<'_>>| cost_of(rows.len(), rows.iter().map(|row| row.tokens.len()).max().unwrap_or(0));
        deal(others.map(cost).collect(), self.model.session().jobs_beside())
    }

    /// Rows of the Programs that a group runs on: many rows with one new token are divided, so that every thread has some.
    fn parts_of(&self, rows: &[&StepRow<'_>], slots: usize, loads: &[usize]) -> Vec<usize> {
        match is_divided(rows) {
            true => divide_rows(rows.len(), loads, &self.ladders.rows, slots),
            false => vec![rows.len()],
        }
    }

    /// Puts the rows of a group into their copies; gives their slots.
    fn place(&mut self, rows: &[&StepRow<'_>]) -> Vec<usize> {
        let (Some(class), takes_any_slot) = (self.class_of_group(rows), self.takes_any_slot(rows.len())) else {
            return Vec::new();
        };
        for (_, others) in self.copies.iter_mut().filter(|(other, _)| **other != class) {
            rows.iter().for_each(|row| others.forget(row.row));
        }
        let Some(copies) = self.copies.get_mut(&class) else { return Vec::new() };
        copies.place(rows, takes_any_slot, &self.store, self.runs)
    }

    /// The class of a group's rows, which all have the same.
    fn class_of_group(&self, rows: &[&StepRow<'_>]) -> Option<Class> {
        rows.first().map(|row| self.class_of(row))
    }

    /// What runs of a group whose rows lie in these slots: a Program for each part of it, in the order of the slots. Where larger
    /// Programs are taken that are there, one of them for all rows comes before parts whose Programs are not.
    fn jobs_of<'r>(
        &self,
        group: usize,
        rows: &[&'r StepRow<'r>],
        slots: &[usize],
        loads: &[usize],
    ) -> Result<Vec<Job<'r>>, StepFault> {
        let Some(class) = self.class_of_group(rows) else { return Ok(Vec::new()) };
        let model = model_of(&self.model, rows)?;
        let parts = self.parts_of(rows, self.copies[&class].cache.slots(), loads);
        let jobs = self.jobs_of_parts(group, &model, rows, slots, &parts);
        if parts.len() > 1 && jobs.iter().any(|job| !is_ready(&model, &job.plan)) {
            let whole = self.jobs_of_parts(group, &model, rows, slots, &[rows.len()]);
            if whole.iter().all(|job| is_ready(&model, &job.plan)) {
                return Ok(whole);
            }
        }
        Ok(jobs)
    }

    fn jobs_of_parts<'r>(
        &self,
        group: usize,
        model: &TextModel,
        rows: &[&'r StepRow<'r>],
        slots: &[usize],
        parts: &[usize],
    ) -> Vec<Job<'r>> {
        let Some(class) = self.class_of_group(rows) else { return Vec::new() };
        let cache = &self.copies[&class].cache;
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|&position| slots[position]);
        let mut left = &order[..];
        let mut jobs = Vec::new();
        for &part in parts {
            let (positions, others) = left.split_at(part);
            left = others;
            let in_order: Vec<&StepRow<'_>> = positions.iter().map(|&position| rows[position]).collect();
            let slots: Vec<usize> = positions.iter().map(|&position| slots[position]).collect();
            let mut plan = plan_of(&in_order, &slots, &self.ladders, cache.capacity());
            self.pad_up(model, &mut plan, cache.slots());
            let (model, positions) = (model.clone(), positions.to_vec());
            jobs.push(Job { group, class, model, positions, rows: in_order, plan });
        }
        jobs
    }

    /// Takes a longer or wider Program that is there where a plan's own is not, and that is asked for.
    fn pad_up(&self, model: &TextModel, plan: &mut StepPlan, slots: usize) {
        let (shape, first) = (plan.shape, plan.first_slot());
        let lengths = self.ladders.length.sizes().iter().filter(|&&length| shape.length > 1 && length > shape.length);
        let rows = self.ladders.rows.sizes().iter().filter(|&&rows| rows > shape.rows && first + rows <= slots);
        let longer = lengths.map(|&length| StepShape { length, ..shape });
        let larger = longer.chain(rows.map(|&rows| StepShape { rows, ..shape }));
        plan.shape = ready_for(model, plan).choose(shape, larger);
    }

    /// Makes the copies of each class as long and as many as its rows need, and lets go of those that nobody used lately.
    fn fit_copies(&mut self, rows: &[StepRow<'_>]) -> Result<(), StepFault> {
        let mut needed: BTreeMap<Class, (usize, usize)> = BTreeMap::new();
        for row in rows {
            let (count, capacity) = needed.entry(self.class_of(row)).or_default();
            (*count, *capacity) = (*count + 1, self.capacity_of(row).max(*capacity));
        }
        for (&class, &(count, capacity)) in &needed {
            let slots = self.slots_for(count, self.copies.get(&class).map_or(0, RowCopies::capacity).max(capacity));
            match self.copies.get_mut(&class) {
                Some(copies) => copies.grow(slots, capacity).map_err(no_memory)?,
                None => {
                    let copies = RowCopies::new(self.model.layers(), slots, capacity).map_err(no_memory)?;
                    self.copies.insert(class, copies);
                }
            }
        }
        let runs = self.runs;
        self.copies.retain(|class, copies| needed.contains_key(class) || copies.used() + IDLE_RUNS_MAX >= runs);
        Ok(())
    }

    /// Slots for so many rows: those of a Program for them, or where that is not there of a larger one that is.
    fn slots_for(&self, count: usize, capacity: usize) -> usize {
        let of = |rows: usize| StepShape { rows, length: 1, capacity };
        let wanted = self.ladders.rows.at_least(count).unwrap_or(count);
        let larger = self.ladders.rows.sizes().iter().filter(|&&rows| rows > wanted);
        let ready = self.model.ready_on_host(true, PlanScores::Last);
        ready.choose(of(wanted), larger.map(|&rows| of(rows))).rows.min(self.slots_max)
    }

    /// The capacity that a row needs by itself.
    fn capacity_of(&self, row: &StepRow<'_>) -> usize {
        let tokens = row.cached + row.tokens.len();
        self.ladders.capacity.at_least(tokens).unwrap_or(tokens)
    }

    /// Which copies a row belongs to.
    fn class_of(&self, row: &StepRow<'_>) -> Class {
        let capacity = self.capacity_of(row);
        let smaller = self.ladders.capacity.sizes().iter().filter(|&&size| size < capacity).count();
        (smaller / 2, row.adapter.map(Adapter::digest))
    }

    /// Groups that run beside one another: there is a slot for each of their rows, and of those with the same copies only the
    /// first has slots of its own.
    fn waves(&self, groups: Vec<Vec<usize>>, rows: &[StepRow<'_>]) -> Vec<Vec<Vec<usize>>> {
        let class_of = |group: &Vec<usize>| group.first().map(|&position| self.class_of(&rows[position]));
        let mut waves: Vec<Vec<Vec<usize>>> = Vec::new();
        for group in groups {
            let class = class_of(&group);
            let slots = class.and_then(|class| self.copies.get(&class)).map_or(0, |copies| copies.cache.slots());
            let fits = |wave: &&mut Vec<Vec<usize>>| {
                let beside = wave.iter().filter(|other| class_of(other) == class).map(Vec::len).sum::<usize>();
                beside == 0 || (self.takes_any_slot(group.len()) && beside + group.len() <= slots)
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

    /// Keeps keys and values of the new tokens in pages and copies: of many rows in both at the same time, since it waits for
    /// memory more than for anything else.
    fn keep(&mut self, jobs: &[Job<'_>]) {
        let (buffers, pages, copies) = (&self.buffers, Kept::Pages(&mut self.store), Kept::Copies(&mut self.copies));
        let write = |kept: Kept<'_>| match kept {
            Kept::Pages(store) => write_pages(store, buffers, jobs),
            Kept::Copies(copies) => write_copies(copies, buffers, jobs),
        };
        let bytes = jobs.iter().map(|job| job.rows.len()).sum::<usize>() * self.model.kv_bytes_per_token();
        match bytes >= BYTES_KEPT_TOGETHER {
            true => drop(self.model.session().do_beside(vec![pages, copies], write)),
            false => [pages, copies].into_iter().for_each(write),
        }
        for job in jobs {
            let Some(copies) = self.copies.get_mut(&job.class) else { continue };
            for (row, planned) in job.rows.iter().zip(&job.plan.rows) {
                let tokens = planned.cached + planned.valid;
                copies.hold(planned.slot, Held { row: row.row, tokens, used: self.runs });
            }
        }
    }
}

/// The decoder of a group's rows, which all have the same adapter.
pub(super) fn model_of(model: &TextModel, rows: &[&StepRow<'_>]) -> Result<TextModel, StepFault> {
    let model = match rows.first().and_then(|row| row.adapter) {
        Some(adapter) => model.with_adapter(Some(adapter)),
        None => Ok(model.clone()),
    };
    model.map_err(|error| StepFault::Retryable(error.to_string()))
}

/// Whether the Program of a plan is there, or makes no difference.
fn is_ready(model: &TextModel, plan: &StepPlan) -> bool {
    ready_for(model, plan).has(plan.shape)
}

/// Programs that a plan may count on. Long rows have Sessions of their own, of whose Programs nobody keeps count.
fn ready_for(model: &TextModel, plan: &StepPlan) -> ProgramSet {
    match plan.is_long {
        true => ProgramSet::Any,
        false => model.ready_on_host(plan.rows.iter().any(|row| row.is_last), plan.scores),
    }
}

/// What one Program runs.
struct Job<'r> {
    /// Number of the group.
    group: usize,
    /// Which copies its rows lie in.
    class: Class,
    /// The decoder, with the values of their adapter.
    model: TextModel,
    /// Places of the rows in the group.
    positions: Vec<usize>,
    rows: Vec<&'r StepRow<'r>>,
    plan: StepPlan,
}

impl Job<'_> {
    /// What each row wants of what its run gave. The largest score is looked for by the thread that computed it, which still has
    /// scores in its cache; where it cannot be taken, all are judged later, and why is told.
    fn found_in(&self, outputs: StepOutputs) -> Vec<Vec<Found>> {
        let scores = outputs.logits.into_iter().map(Found::Scores);
        let mut wanted = wanted_of(&self.rows, &self.plan, scores);
        for (row, found) in self.rows.iter().zip(&mut wanted).filter(|(row, _)| row.takes_largest) {
            for found in found {
                if let Found::Scores(scores) = found
                    && let Ok(id) = choose_likeliest(scores, row.cached + row.tokens.len())
                {
                    *found = Found::Largest(id);
                }
            }
        }
        wanted
    }
}

/// Whether the rows of a group may run on several Programs: each has one new token.
fn is_divided(rows: &[&StepRow<'_>]) -> bool {
    rows.iter().all(|row| row.tokens.len() == 1)
}

/// Rows with one new token that are a Program's of their own, at least: every Program reads all weights and makes ready what it
/// multiplies, which takes as long as several rows.
const ROWS_OF_PART_MIN: usize = 12;

/// What a Program costs, in rows with one new token: reading weights costs as much as a few, and tokens of a prompt but the last
/// skip the product with the vocabulary.
fn cost_of(rows: usize, length: usize) -> usize {
    const PROGRAM: usize = 4;
    PROGRAM + if length == 1 { rows } else { rows * length * 4 / 5 }
}

/// What each of so many threads has to do where these costs are dealt, the largest first, to whom has least. The least first.
fn deal(mut costs: Vec<usize>, threads: usize) -> Vec<usize> {
    let mut loads = vec![0; threads.max(1)];
    costs.sort_unstable_by_key(|&cost| std::cmp::Reverse(cost));
    for cost in costs {
        loads[0] += cost;
        loads.sort_unstable();
    }
    loads
}

/// Rows that lie in successive slots as parts, one at most for each thread, of which each has something else to do, the least
/// first: so that all end at about the same time. All parts but the last fill a Program, and the last one's filler lies in slots
/// that there are.
fn divide_rows(rows: usize, loads: &[usize], sizes: &Ladder, slots: usize) -> Vec<usize> {
    let size = |count: usize| sizes.at_least(count).unwrap_or(count);
    let (mut parts, mut left, mut loads) = (Vec::new(), rows, loads);
    while let [load, others @ ..] = loads {
        if others.is_empty() || left < 2 * ROWS_OF_PART_MIN {
            break;
        }
        let wanted = level(left, loads).saturating_sub(*load);
        // When the last thread ends, where this one has so many rows and the others have the rest.
        let end = |part: usize| {
            let rest = if others.len() == 1 { size(left - part) } else { left - part };
            (load + part).max(level(rest, others))
        };
        let fitting = [sizes.at_least(wanted), sizes.at_most(wanted)].into_iter().flatten();
        let fitting = fitting.filter(|part| (ROWS_OF_PART_MIN..left).contains(part));
        let Some(part) = fitting.min_by_key(|&part| end(part)) else { break };
        parts.push(part);
        (left, loads) = (left - part, others);
    }
    if left > 0 {
        parts.push(left);
    }
    match rows - left + size(left) > slots {
        true => vec![rows],
        false => parts,
    }
}

/// Where threads with such loads end, the least first, that share so many rows.
fn level(rows: usize, loads: &[usize]) -> usize {
    let ends = (1..=loads.len()).map(|count| (rows + loads[..count].iter().sum::<usize>()).div_ceil(count));
    ends.min().unwrap_or(usize::MAX)
}

/// Where new keys and values are kept.
enum Kept<'k> {
    Pages(&'k mut PageStores),
    Copies(&'k mut BTreeMap<Class, RowCopies>),
}

/// Bytes of new keys and values that take longer to keep than a thread takes to begin.
const BYTES_KEPT_TOGETHER: usize = 1 << 19;

/// Writes the new tokens of a step into the pages of their rows, row after row: a token is one piece there.
fn write_pages(store: &mut PageStores, buffers: &[StepBuffers], jobs: &[Job<'_>]) {
    for (Job { rows, plan, .. }, buffers) in jobs.iter().zip(buffers) {
        let present: Vec<(usize, Half, &[u8])> = buffers.present().collect();
        for (number, (row, planned)) in rows.iter().zip(&plan.rows).enumerate() {
            for &(layer, half, bytes) in &present {
                let new = rows_of(bytes, plan).nth(number).unwrap_or_default();
                store.write(row, (layer, half), planned.cached, new, (plan.shape.length, planned.valid));
            }
        }
    }
}

/// Writes them into the slots of the copies. Where single tokens will lie is read first, that of all rows: these places are in no
/// cache, and writes wait for one another where reads do not.
fn write_copies(copies: &mut BTreeMap<Class, RowCopies>, buffers: &[StepBuffers], jobs: &[Job<'_>]) {
    for (Job { class, plan, .. }, buffers) in jobs.iter().zip(buffers) {
        let Some(RowCopies { cache: copies, .. }) = copies.get_mut(class) else { continue };
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

/// The step of rows that lie in these slots of a cache of this capacity.
pub(super) fn plan_of(rows: &[&StepRow<'_>], slots: &[usize], ladders: &Ladders, capacity: usize) -> StepPlan {
    let longest = rows.iter().map(|row| row.tokens.len()).max().unwrap_or(1);
    let length = ladders.length.at_least(longest).unwrap_or(longest);
    let size = ladders.rows.at_least(rows.len()).unwrap_or(rows.len());
    let planned = rows.iter().zip(slots).map(|(row, &slot)| PlannedRow {
        slot,
        cached: row.cached,
        valid: row.tokens.len(),
        is_last: row.scored > 0,
    });
    StepPlan {
        phase: if longest == 1 { Phase::Decode } else { Phase::Prefill },
        shape: StepShape { rows: size, length, capacity },
        rows: planned.collect(),
        scores: if rows.iter().any(|row| row.scored > 1) { PlanScores::All } else { PlanScores::Last },
        is_long: rows.iter().any(|row| row.is_long),
    }
}

impl StepRunner for PagedRunner {
    fn vocabulary(&self) -> usize {
        self.model.vocabulary()
    }

    fn kv_bytes(&self) -> usize {
        let copies: usize = self.copies.values().map(|copies| copies.cache.bytes()).sum();
        self.store.bytes() + copies + self.draft.as_ref().map_or(0, DraftModel::kv_bytes)
    }

    fn kv_place(&self) -> KvPlace {
        self.place.clone()
    }

    fn is_divisible(&self) -> bool {
        !self.ladders.is_exact
    }

    fn runs_adapters(&self) -> bool {
        true
    }

    fn run(&mut self, rows: &[StepRow<'_>]) -> Result<Vec<Vec<Found>>, StepFault> {
        let mut scores: Vec<Vec<Found>> = vec![Vec::new(); rows.len()];
        self.fit_copies(rows)?;
        for row in rows {
            self.store.reserve(row).map_err(no_memory)?;
        }
        let (rows_max, length_max) = (self.ladders.rows.largest(), self.ladders.length.largest());
        for groups in self.waves(groups(rows, rows_max, length_max, |row| self.class_of(row)), rows) {
            let members = |group: &Vec<usize>| group.iter().map(|&position| &rows[position]).collect();
            let found = self.run_groups(&groups.iter().map(members).collect::<Vec<Vec<&StepRow<'_>>>>())?;
            for (&position, found) in groups.iter().flatten().zip(found.into_iter().flatten()) {
                scores[position] = found;
            }
        }
        Ok(scores)
    }

    fn draft(&mut self) -> Option<&mut DraftModel> {
        self.draft.as_mut()
    }

    fn forget(&mut self, row: RowId) {
        self.copies.values_mut().for_each(|copies| copies.forget(row));
    }

    fn rebuild(&mut self) -> Result<(), StepFault> {
        // A Session whose device has failed runs nothing any more, so there is a new one or none.
        let model = self.model.reopen().map_err(StepFault::DeviceLost)?;
        let prepares = self.preparer.is_some();
        let for_device = match &self.place {
            KvPlace::HostForDevice(reason) => Some(reason.clone()),
            KvPlace::Host | KvPlace::Device => None,
        };
        *self = PagedRunner::new(&model, self.store.page_tokens(), self.rows_max, for_device);
        if prepares {
            self.prepare_ahead();
        }
        Ok(())
    }
}

/// Which rows run in one Program: of each class those with one new token, and those whose scores are wanted behind several;
/// each prompt alone.
pub(super) fn groups(
    rows: &[StepRow<'_>],
    rows_max: usize,
    length_max: usize,
    class_of: impl Fn(&StepRow<'_>) -> Class,
) -> Vec<Vec<usize>> {
    let is_single = |row: &StepRow<'_>| row.tokens.len() == 1 && row.cached > 0;
    let is_verified = |row: &StepRow<'_>| row.scored > 1 && row.tokens.len() <= length_max;
    let of = |is_member: &dyn Fn(&StepRow<'_>) -> bool| -> Vec<Vec<usize>> {
        // Rows that are long are computed in another way than others.
        let mut members: BTreeMap<(Class, bool), Vec<usize>> = BTreeMap::new();
        for position in (0..rows.len()).filter(|&position| is_member(&rows[position])) {
            let row = &rows[position];
            members.entry((class_of(row), row.is_long)).or_default().push(position);
        }
        members
            .into_values()
            .flat_map(|members| members.chunks(rows_max).map(<[usize]>::to_vec).collect::<Vec<_>>())
            .collect()
    };
    let mut groups = of(&is_single);
    groups.extend(of(&is_verified));
    let prompts = of(&|row| !is_single(row) && !is_verified(row));
    groups.extend(prompts.into_iter().flatten().map(|position| vec![position]));
    groups
}

/// A step that finds no memory may find it with fewer rows; a row that finds none alone fails.
fn no_memory(error: NoMemory) -> StepFault {
    StepFault::Retryable(error.to_string())
}

/// What each row wants of what a step has found, row by row: that behind its last tokens.
pub(super) fn wanted_of(
    rows: &[&StepRow<'_>],
    plan: &StepPlan,
    mut all: impl Iterator<Item = Found>,
) -> Vec<Vec<Found>> {
    let mut wanted = Vec::with_capacity(rows.len());
    for row in rows {
        let mut found: Vec<Found> = all.by_ref().take(plan.scored()).collect();
        match plan.scores {
            PlanScores::Last => found.truncate(row.scored),
            PlanScores::All => {
                found.truncate(row.tokens.len());
                found.drain(..row.tokens.len() - row.scored);
            }
        }
        wanted.push(found);
    }
    wanted
}

/// What a failed step means for the engine.
pub(super) fn fault(error: StepError) -> StepFault {
    match &error {
        StepError::Session(session) => match session.lost_device() {
            Some(reason) => StepFault::DeviceLost(reason.to_string()),
            None => StepFault::Retryable(error.to_string()),
        },
        StepError::Tensor(_) | StepError::Memory(_) => StepFault::Retryable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_prompt_takes_fewer_rows() {
        let sizes = Ladder::of(Ladder::fine(64).sizes().iter().copied().chain([40, 56]), 64);
        let divided = |rows, prompts: &[usize], threads| {
            let loads = deal(prompts.iter().map(|&tokens| cost_of(1, tokens)).collect(), threads);
            divide_rows(rows, &loads, &sizes, 65)
        };
        assert_eq!(deal(vec![3, 9, 4, 1], 3), [4, 4, 9]);
        assert_eq!(divided(63, &[32], 2), [48, 15]);
        assert_eq!(divided(63, &[8], 2), [40, 23]);
        assert_eq!(divided(60, &[32, 32, 32, 32], 2), [32, 28]);
        assert_eq!(divided(20, &[512], 2), [20], "one thread has the prompt, and the other all rows");
    }

    #[test]
    fn many_rows_are_divided_among_threads() {
        let sizes = Ladder::of(Ladder::fine(64).sizes().iter().copied().chain([40, 56]), 64);
        let divided = |rows, threads: usize| divide_rows(rows, &vec![0; threads], &sizes, 65);
        assert_eq!((divided(1, 2), divided(15, 2), divided(64, 1)), (vec![1], vec![15], vec![64]));
        assert_eq!((divided(23, 2), divided(33, 2), divided(64, 2)), (vec![23], vec![24, 9], vec![32, 32]));
        assert_eq!((divided(64, 4), divided(50, 4)), (vec![16; 4], vec![12, 12, 16, 10]));
        for rows in 1..=64 {
            for threads in 1..9 {
                let parts = divided(rows, threads);
                assert_eq!(parts.iter().sum::<usize>(), rows);
                assert!(parts[..parts.len() - 1].iter().all(|part| sizes.sizes().contains(part)), "{parts:?}");
            }
        }
        // No Program of the second part would fit the slots.
        assert_eq!(divide_rows(40, &[0, 0], &Ladder::of([1, 25], 40), 41), [40]);
    }
}
