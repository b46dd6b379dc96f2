//! Engines on a runner whose scores are a digest of the tokens that it finds in pages: a page that is mixed up, shared while it
//! is written, or read after it was given away changes tokens. Thousands of random loads, with faults and cancellations,
//! against rows that are alone in the world.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::core::{EngineCore, StepOutcome, Told};
use super::events::{Event, EventQueue, Usage};
use super::options::EngineLimits;
use super::page_pool::PageId;
use super::prefix_cache::chain_root;
use super::row::{Row, RowId, RowState};
use super::runner::{Found, Scores, StepFault, StepRow, StepRunner};
use super::speculation::Speculation;
use crate::config::{SearchConfig, SpeculativeConfig};
use crate::row_search::{RowDraws, RowSearch, SearchOptions};
use crate::search::{FinishReason, GeneratorParams, choose_likeliest};

const VOCABULARY: usize = 12;
const EOS: u32 = 0;
/// A token that no step survives.
const POISON: u32 = 10;
/// A token behind which scores are none.
const NOT_A_NUMBER: u32 = 11;

/// Scores behind these tokens: a digest of all of them. Repeats are likely, so that lookups find something.
fn scores_behind(tokens: &[u32]) -> Scores {
    if tokens.contains(&NOT_A_NUMBER) {
        return vec![f32::NAN; VOCABULARY].into();
    }
    let recent = &tokens[tokens.len().saturating_sub(3)..];
    let seed = recent
        .iter()
        .fold(tokens.len() as u64 / 5, |seed, &token| (seed ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let score = |token: u64| ((seed ^ token.wrapping_mul(0xd134_2543_de82_ef95)) >> 17) % 1009;
    let scores = (0..VOCABULARY as u64).map(|token| match token as u32 {
        // Some rows end by themselves; no row poisons itself.
        EOS => score(token) as f32 / 300.0,
        POISON | NOT_A_NUMBER => -100.0,
        _ => score(token) as f32 / 100.0,
    });
    scores.collect::<Vec<f32>>().into()
}

/// What a test wants of the next steps.
#[derive(Default)]
struct Wishes {
    /// Steps, counted from now, that fail.
    faults: Vec<(usize, StepFault)>,
    runs: usize,
    /// Whether a device that was lost is not to be had again.
    is_gone: bool,
    /// The most rows and tokens of a step so far.
    largest: (usize, usize),
}

/// Tokens of pages, and whether they were computed as those of long rows.
type FakePages = BTreeMap<PageId, Vec<Option<(u32, bool)>>>;

struct FakeRunner {
    page_tokens: usize,
    pages: FakePages,
    /// Those of each window.
    windows: Vec<(usize, FakePages)>,
    length_switch: Option<usize>,
    wishes: Arc<Mutex<Wishes>>,
    is_divisible: bool,
}

impl FakeRunner {
    fn write(&mut self, row: &StepRow<'_>, token_of: impl Fn(usize) -> Option<u32>) {
        for position in row.cached..row.cached + row.tokens.len() {
            let page = row.pages[position / self.page_tokens];
            let places = self.pages.entry(page).or_insert_with(|| vec![None; self.page_tokens]);
            let token = token_of(position - row.cached).map(|token| (token, row.is_long));
            places[position % self.page_tokens] = token;
            for ((_, pages), table) in self.windows.iter_mut().zip(row.windows) {
                let page = table.pages[position / self.page_tokens - table.first];
                let places = pages.entry(page).or_insert_with(|| vec![None; self.page_tokens]);
                places[position % self.page_tokens] = token;
            }
        }
    }

    /// The pages of each window have what the first new query and those behind it see.
    fn check_windows(&self, row: &StepRow<'_>, tokens: &[u32]) {
        assert_eq!(row.windows.len(), self.windows.len());
        for ((window, pages), table) in self.windows.iter().zip(row.windows) {
            for position in (row.cached + 1).saturating_sub(*window)..tokens.len() {
                let page = table.pages[position / self.page_tokens - table.first];
                assert_eq!(pages[&page][position % self.page_tokens], Some((tokens[position], row.is_long)));
            }
        }
    }
}

impl StepRunner for FakeRunner {
    fn vocabulary(&self) -> usize {
        VOCABULARY
    }

    fn kv_bytes(&self) -> usize {
        self.pages.len() * self.page_tokens * size_of::<u32>()
    }

    fn is_divisible(&self) -> bool {
        self.is_divisible
    }

    fn run(&mut self, rows: &[StepRow<'_>]) -> Result<Vec<Vec<Found>>, StepFault> {
        let fault = {
            let mut wishes = self.wishes.lock().unwrap();
            wishes.runs += 1;
            let tokens = rows.iter().map(|row| row.tokens.len()).sum();
            wishes.largest = (wishes.largest.0.max(rows.len()), wishes.largest.1.max(tokens));
            let now = wishes.runs;
            let position = wishes.faults.iter().position(|(run, _)| *run == now);
            position.map(|position| wishes.faults.remove(position).1)
        };
        let is_poisoned = rows.iter().any(|row| row.tokens.contains(&POISON));
        if let Some(fault) = fault.or(is_poisoned.then(|| StepFault::Retryable("poison".to_string()))) {
            // A step that fails may have written anything behind what was cached.
            rows.iter().for_each(|row| self.write(row, |_| Some(99)));
            return Err(fault);
        }
        for row in rows {
            self.write(row, |position| Some(row.tokens[position]));
        }
        let scores = rows.iter().map(|row| {
            let place = |position: usize| {
                let page = row.pages[position / self.page_tokens];
                let (token, is_long) =
                    self.pages[&page][position % self.page_tokens].expect("a cached token was written");
                assert_eq!(is_long, row.is_long, "token {position} was computed in another way");
                token
            };
            let end = row.cached + row.tokens.len();
            let tokens: Vec<u32> = (0..end).map(place).collect();
            self.check_windows(row, &tokens);
            for length in end + 1 - row.scored..=end {
                assert_eq!(
                    row.is_long,
                    self.length_switch.is_some_and(|limit| length > limit),
                    "scores behind {length}"
                );
            }
            let found = |number: usize| {
                let scores = scores_behind(&tokens[..end - row.scored + number + 1]);
                match choose_likeliest(&scores, end) {
                    Ok(id) if row.takes_largest => Found::Largest(id),
                    Ok(_) | Err(_) => Found::Scores(scores),
                }
            };
            (0..row.scored).map(found).collect()
        });
        Ok(scores.collect())
    }

    fn forget(&mut self, _: RowId) {}

    fn rebuild(&mut self) -> Result<(), StepFault> {
        self.pages.clear();
        self.windows.iter_mut().for_each(|(_, pages)| pages.clear());
        match self.wishes.lock().unwrap().is_gone {
            true => Err(StepFault::DeviceLost("gone for good".to_string())),
            false => Ok(()),
        }
    }
}

fn params(max_new_tokens: usize, seed: Option<u64>) -> GeneratorParams {
    let search = SearchConfig {
        do_sample: seed.is_some(),
        min_length: 0,
        max_length: 1 << 20,
        repetition_penalty: 1.1,
        top_k: 5,
        top_p: 0.0,
        temperature: 1.0,
        no_repeat_ngram_size: 0,
        random_seed: seed,
        chunk_size: None,
        num_beams: 1,
        num_return_sequences: 1,
        length_penalty: 1.0,
        early_stopping: true,
        batch_size: 1,
    };
    GeneratorParams::new(search).max_new_tokens(max_new_tokens)
}

/// A request of a load.
#[derive(Clone, Debug)]
struct Load {
    prompt: Vec<u32>,
    max_new_tokens: usize,
    seed: Option<u64>,
    /// The step before which it comes.
    arrives: usize,
    /// The step before which it is cancelled.
    cancelled: Option<usize>,
    priority: u8,
    /// What is done when a turn has ended, one after another.
    moves: Vec<Move>,
}

/// What is done with a row whose turn has ended.
#[derive(Clone, Debug)]
enum Move {
    Continue(Vec<u32>),
    Rewind,
}

fn search_options(load: &Load, length_max: usize) -> Arc<SearchOptions> {
    let params = params(load.max_new_tokens, load.seed);
    Arc::new(SearchOptions { params, eos: vec![EOS], length_max, tokenizer: None, guide: None })
}

fn search(load: &Load, length_max: usize) -> RowSearch {
    let draws = RowDraws { seed: load.seed.unwrap_or(0), stream: 0, return_index: 0 };
    RowSearch::new(search_options(load, length_max), draws).unwrap()
}

/// A turn: tokens that were told, and how it ended.
type Turn = (Vec<u32>, Option<FinishReason>);

/// What the row says when it is alone, turn by turn.
fn turns_alone(load: &Load, length_max: usize) -> Vec<Turn> {
    let mut search = search(load, length_max);
    let mut tokens = load.prompt.clone();
    let mut is_generated = vec![false; tokens.len()];
    let mut begins = vec![0];
    let mut turns = vec![turn_alone(&mut search, &mut tokens, &mut is_generated)];
    for next in &load.moves {
        match next {
            Move::Rewind => {
                let Some(length) = begins.pop() else { continue };
                tokens.truncate(length);
                is_generated.truncate(length);
            }
            Move::Continue(new) if tokens.len() + new.len() < length_max => {
                begins.push(tokens.len());
                tokens.extend(new);
                is_generated.resize(tokens.len(), false);
                search.begin_turn();
                turns.push(turn_alone(&mut search, &mut tokens, &mut is_generated));
            }
            Move::Continue(_) => {}
        }
    }
    turns
}

fn turn_alone(search: &mut RowSearch, tokens: &mut Vec<u32>, is_generated: &mut Vec<bool>) -> Turn {
    let mut told = Vec::new();
    loop {
        let chosen = search.choose(&scores_behind(tokens), tokens, is_generated).unwrap();
        told.push(chosen.id);
        if chosen.is_kept {
            tokens.push(chosen.id);
            is_generated.push(true);
        }
        if chosen.finish.is_some() {
            return (told, chosen.finish);
        }
    }
}

/// What the row says when it is alone, in its only turn.
fn alone(load: &Load, length_max: usize) -> (Vec<u32>, FinishReason) {
    let (told, reason) = turns_alone(load, length_max).remove(0);
    (told, reason.unwrap())
}

struct Simulation {
    core: EngineCore,
    wishes: Arc<Mutex<Wishes>>,
    limits: EngineLimits,
    speculation: SpeculativeConfig,
    queues: BTreeMap<RowId, Arc<EventQueue>>,
    /// What is still to be done with rows whose turns end.
    moves: BTreeMap<RowId, VecDeque<Move>>,
}

const PLAIN: SpeculativeConfig = SpeculativeConfig {
    max_draft_tokens: 4,
    ngram_size: 0,
    ngram_chained_lookup: false,
    min_adaptive_k: 0,
    cooldown: false,
};

impl Simulation {
    fn new(limits: EngineLimits, speculation: SpeculativeConfig) -> Simulation {
        let wishes = Arc::new(Mutex::new(Wishes::default()));
        let runner = FakeRunner {
            page_tokens: limits.page_tokens,
            pages: BTreeMap::new(),
            windows: limits.windows.iter().map(|&window| (window, BTreeMap::new())).collect(),
            length_switch: limits.length_switch,
            wishes: wishes.clone(),
            is_divisible: true,
        };
        let core = EngineCore::new(Box::new(runner), limits.clone());
        Simulation { core, wishes, limits, speculation, queues: BTreeMap::new(), moves: BTreeMap::new() }
    }

    fn add(&mut self, id: u64, load: &Load) {
        let events = EventQueue::new(1);
        self.queues.insert(RowId(id), events.clone());
        self.moves.insert(RowId(id), load.moves.clone().into());
        self.core.add(Row {
            id: RowId(id),
            answer: 0,
            tokens: load.prompt.clone(),
            is_generated: vec![false; load.prompt.len()],
            turns: vec![0],
            adapter: None,
            cached: 0,
            pages: Vec::new(),
            windows: Vec::new(),
            chain: Vec::new(),
            chain_root: chain_root(None, ""),
            is_long: false,
            is_sharing: self.limits.prefix_caching,
            state: RowState::Queued,
            is_prompt: true,
            priority: load.priority,
            arrived: 0,
            queued: 0,
            stepped: 0,
            ready: 0,
            failures: 0,
            is_told_of_wait: false,
            is_stalled: false,
            keeps_turn: !load.moves.is_empty(),
            deadline: None,
            search: search(load, self.limits.length_max),
            speculation: Speculation::new(&self.speculation),
            draft: Vec::new(),
            is_looked_up: false,
            usage: Usage { prompt_tokens: load.prompt.len(), ..Usage::default() },
            events,
            waits_for: None,
        });
    }

    fn step(&mut self) -> StepOutcome {
        let outcome = self.core.step(Instant::now());
        self.core.check_invariants().unwrap();
        let largest = self.wishes.lock().unwrap().largest;
        assert!(largest.0 <= self.limits.rows_max && largest.1 <= self.limits.tokens_max, "{largest:?}");
        self.make_moves();
        outcome
    }

    /// Goes on with rows whose turn has ended, or takes it back; rows with nothing more to do are let go.
    fn make_moves(&mut self) {
        for (&id, moves) in &mut self.moves {
            while self.core.is_parked(id) {
                match moves.pop_front() {
                    Some(Move::Continue(tokens)) => drop(self.core.continue_turn(id, &tokens)),
                    Some(Move::Rewind) => assert!(self.core.rewind_turn(id) || self.core.tokens(id).is_some()),
                    None => {
                        self.queues[&id].cancel();
                        break;
                    }
                }
                self.core.check_invariants().unwrap();
            }
        }
    }

    /// Steps until nothing is open.
    fn finish(&mut self) -> usize {
        let mut steps = 0;
        while self.core.open_rows() > 0 {
            let outcome = self.step();
            assert_ne!(outcome, StepOutcome::NoWork);
            steps += 1;
            assert!(steps < 100_000, "rows do not come to an end");
        }
        // Turns that nobody goes on with are let go by the step behind them.
        self.step();
        steps
    }

    /// What was told of a row, turn by turn.
    fn turns(&self, id: u64) -> Vec<Turn> {
        let mut turns: Vec<Turn> = Vec::new();
        while let Some(event) = self.queues[&RowId(id)].next(Some(Duration::ZERO)) {
            if turns.last().is_none_or(|(_, reason)| reason.is_some()) {
                turns.push((Vec::new(), None));
            }
            let (tokens, reason) = turns.last_mut().unwrap();
            match event {
                Event::Token(token) => tokens.push(token.id),
                Event::Finished { reason: found, .. } => *reason = Some(found),
                Event::Blocked => {}
                Event::Failed { message, .. } => panic!("row {id} failed: {message}"),
            }
        }
        turns
    }

    /// Tokens that were told of a row in its only turn, and how it ended.
    fn told(&self, id: u64) -> Turn {
        let mut turns = self.turns(id);
        assert!(turns.len() <= 1, "nothing comes behind the end");
        turns.pop().unwrap_or_default()
    }

    /// Every page is free, or only the prefix cache holds it.
    fn assert_all_pages_are_back(&self) {
        let metrics = self.core.metrics();
        assert_eq!(metrics.pages_free + metrics.pages_shared, metrics.pages_total);
        assert_eq!((metrics.queued, metrics.running), (0, 0));
    }
}

fn limits(page_tokens: usize, pages: usize) -> EngineLimits {
    EngineLimits {
        page_tokens,
        pages,
        rows_max: 4,
        tokens_max: 16,
        admitted_max: usize::MAX,
        prefill_min: 4,
        prefill_max: 8,
        chunk: 64,
        length_max: page_tokens * pages,
        prefix_caching: false,
        events_max: 1 << 20,
        proposes_always: false,
        length_switch: None,
        windows: vec![1, 5],
    }
}

fn load() -> impl Strategy<Value = Load> {
    let prompt = (0u32..3, prop::collection::vec(1u32..5, 1..14)).prop_map(|(prefix, mut tokens)| {
        // Few beginnings, so that pages are shared.
        let mut prompt = vec![7 + prefix % 2; prefix as usize * 4];
        prompt.append(&mut tokens);
        prompt
    });
    let seed = prop::option::of(0u64..1000);
    let cancelled = prop::option::weighted(0.2, 0usize..60);
    (prompt, 1usize..24, seed, 0usize..30, cancelled, 0u8..3, moves()).prop_map(
        |(prompt, max_new_tokens, seed, arrives, cancelled, priority, moves)| Load {
            prompt,
            max_new_tokens,
            seed,
            arrives,
            cancelled,
            priority,
            moves,
        },
    )
}

/// Turns that go on, and turns that are taken back, of some rows.
fn moves() -> impl Strategy<Value = Vec<Move>> {
    let go_on = prop::collection::vec(1u32..5, 1..6).prop_map(Move::Continue);
    let some = prop::collection::vec(prop_oneof![2 => go_on, 1 => Just(Move::Rewind)], 1..6);
    prop_oneof![3 => Just(Vec::new()), 1 => some]
}

fn any_limits() -> impl Strategy<Value = EngineLimits> {
    let switch = prop::option::of(1usize..24);
    let prefill = (1usize..12, 1usize..12);
    (1usize..6, 7usize..40, 1usize..7, 4usize..40, any::<bool>(), prefill, 1usize..9, switch).prop_map(
        |(page_tokens, pages, rows_max, tokens_max, prefix_caching, (prefill_max, share), admitted, length_switch)| {
            EngineLimits {
                pages: pages.max(30_usize.div_ceil(page_tokens)),
                rows_max,
                tokens_max,
                prefix_caching,
                prefill_max: prefill_max.min(tokens_max),
                prefill_min: share.min(prefill_max).min(tokens_max),
                admitted_max: if admitted < 4 { admitted } else { usize::MAX },
                length_switch,
                length_max: page_tokens * pages.max(30_usize.div_ceil(page_tokens)),
                ..limits(page_tokens, pages)
            }
        },
    )
}

fn any_speculation() -> impl Strategy<Value = SpeculativeConfig> {
    (1usize..6, prop_oneof![Just(0usize), 2usize..4], any::<bool>(), 0usize..3, any::<bool>()).prop_map(
        |(max_draft_tokens, ngram_size, ngram_chained_lookup, min_adaptive_k, cooldown)| SpeculativeConfig {
            max_draft_tokens,
            ngram_size,
            ngram_chained_lookup,
            min_adaptive_k,
            cooldown,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Whatever comes, goes, fails and shares: each row says what it says alone, in every setting, and nothing is left behind.
    #[test]
    fn every_row_says_what_it_says_alone(
        limits in any_limits(),
        speculation in any_speculation(),
        loads in prop::collection::vec(load(), 1..10),
        faults in prop::collection::btree_set(0usize..9, 0..5),
        first_fault in 1usize..16,
    ) {
        let mut simulation = Simulation::new(limits.clone(), speculation);
        // So far apart that every row has stepped in between: one that fails alone twice is failed.
        let fault = |number: usize| (first_fault + 16 * number, StepFault::Retryable("a fault of the test".to_string()));
        simulation.wishes.lock().unwrap().faults = faults.into_iter().map(fault).collect();
        for step in 0..60 {
            for (id, load) in loads.iter().enumerate() {
                if load.arrives == step {
                    simulation.add(id as u64, load);
                }
                if load.cancelled == Some(step) && load.arrives <= step {
                    simulation.queues[&RowId(id as u64)].cancel();
                }
            }
            simulation.step();
        }
        simulation.finish();
        simulation.assert_all_pages_are_back();
        for (id, load) in loads.iter().enumerate() {
            let (mut turns, expected) = (simulation.turns(id as u64), turns_alone(load, limits.length_max));
            if let Some((tokens, _)) = turns.pop_if(|(_, reason)| *reason == Some(FinishReason::Cancelled)) {
                prop_assert!(expected[turns.len()].0.starts_with(&tokens));
            }
            match load.cancelled {
                Some(_) => prop_assert!(expected.starts_with(&turns)),
                None => prop_assert_eq!(turns, expected),
            }
        }
    }
}

fn a_load(prompt: &[u32], max_new_tokens: usize) -> Load {
    let (seed, arrives, cancelled, priority, moves) = (None, 0, None, 0, Vec::new());
    Load { prompt: prompt.to_vec(), max_new_tokens, seed, arrives, cancelled, priority, moves }
}

/// A load of several rows that share, wait and are preempted.
fn crowd() -> Vec<Load> {
    (0..6u32).map(|row| a_load(&vec![1 + row % 3; 5 + row as usize], 9)).collect()
}

#[test]
fn a_step_that_fails_at_any_time_leaves_everything_as_it_was() {
    let tight = EngineLimits { prefix_caching: true, ..limits(3, 14) };
    let mut plain = Simulation::new(tight.clone(), PLAIN);
    crowd().iter().enumerate().for_each(|(id, load)| plain.add(id as u64, load));
    let steps = plain.finish();
    assert!(plain.core.metrics().preemptions > 0, "the load is to be tight");
    for failing in 1..=steps {
        let mut simulation = Simulation::new(tight.clone(), PLAIN);
        crowd().iter().enumerate().for_each(|(id, load)| simulation.add(id as u64, load));
        for _ in 1..failing {
            simulation.step();
        }
        let state = |simulation: &Simulation| -> Vec<(RowId, Vec<u32>, usize)> {
            let ids = simulation.core.row_ids();
            let row = |id: RowId| (id, simulation.core.tokens(id).unwrap().to_vec(), simulation.queues[&id].len());
            ids.into_iter().map(row).collect()
        };
        let before = state(&simulation);
        let next = simulation.wishes.lock().unwrap().runs + 1;
        let fault = StepFault::Retryable("now".to_string());
        simulation.wishes.lock().unwrap().faults.push((next, fault.clone()));
        assert_eq!(simulation.step(), StepOutcome::Aborted(fault));
        let told_of_waits = |(id, tokens, _): (RowId, Vec<u32>, usize)| (id, tokens);
        let after = state(&simulation);
        assert_eq!(
            before.into_iter().map(told_of_waits).collect::<Vec<_>>(),
            after.into_iter().map(told_of_waits).collect::<Vec<_>>()
        );
        simulation.finish();
        simulation.assert_all_pages_are_back();
        for (id, load) in crowd().iter().enumerate() {
            let (expected, reason) = alone(load, tight.length_max);
            assert_eq!(simulation.told(id as u64), (expected, Some(reason)), "row {id}, failing at {failing}");
        }
    }
}

#[test]
fn a_page_that_others_may_find_is_not_written_again_after_a_turn_is_taken_back() {
    let limits = EngineLimits { prefix_caching: true, ..limits(4, 60) };
    let first = Load { moves: Vec::new(), ..a_load(&[1, 2, 3, 1, 2, 3], 5) };
    let said = [&first.prompt[..], &alone(&first, limits.length_max).0].concat();
    assert_eq!(said.len() % 4, 3, "one more token fills a page");
    let taken_back = Load { moves: vec![Move::Continue(vec![1]), Move::Rewind, Move::Continue(vec![4])], ..first };
    let mut simulation = Simulation::new(limits.clone(), PLAIN);
    simulation.add(0, &taken_back);
    simulation.finish();
    assert_eq!(simulation.turns(0), turns_alone(&taken_back, limits.length_max));
    // It finds the page of the turn that was taken back.
    let other = a_load(&[&said[..], &[1, 1]].concat(), 9);
    simulation.add(1, &other);
    simulation.finish();
    assert_eq!(simulation.told(1).0, alone(&other, limits.length_max).0);
    assert!(simulation.core.metrics().prefix_hit_tokens >= 12);
}

#[test]
fn a_row_can_be_cancelled_at_any_time_and_owns_nothing_one_step_later() {
    for cancelled in 0..40 {
        for victim in 0..6u64 {
            let mut simulation = Simulation::new(limits(3, 14), PLAIN);
            crowd().iter().enumerate().for_each(|(id, load)| simulation.add(id as u64, load));
            for _ in 0..cancelled {
                simulation.step();
            }
            simulation.queues[&RowId(victim)].cancel();
            simulation.step();
            assert_eq!(simulation.core.tokens(RowId(victim)), None);
            simulation.finish();
            simulation.assert_all_pages_are_back();
            for (id, load) in crowd().iter().enumerate().filter(|(id, _)| *id as u64 != victim) {
                assert_eq!(simulation.told(id as u64).0, alone(load, simulation.limits.length_max).0);
            }
        }
    }
}

#[test]
fn defect_29_a_poisoned_row_fails_alone() {
    for (poison, is_retryable) in [(POISON, true), (NOT_A_NUMBER, false)] {
        let mut simulation = Simulation::new(limits(4, 60), PLAIN);
        let mut loads = crowd();
        loads[2].prompt.push(poison);
        loads.iter().enumerate().for_each(|(id, load)| simulation.add(id as u64, load));
        simulation.finish();
        simulation.assert_all_pages_are_back();
        for (id, load) in loads.iter().enumerate().filter(|(id, _)| *id != 2) {
            assert_eq!(simulation.told(id as u64).0, alone(load, simulation.limits.length_max).0);
        }
        let last = simulation.queues[&RowId(2)].next(Some(Duration::ZERO)).unwrap();
        assert!(matches!(last, Event::Failed { is_retryable: found, .. } if found == is_retryable), "{last:?}");
    }
}

#[test]
fn a_lost_device_fails_what_is_open_and_the_next_request_is_answered() {
    let mut simulation = Simulation::new(EngineLimits { prefix_caching: true, ..limits(4, 60) }, PLAIN);
    crowd().iter().enumerate().for_each(|(id, load)| simulation.add(id as u64, load));
    (0..5).for_each(|_| drop(simulation.step()));
    let next = simulation.wishes.lock().unwrap().runs + 1;
    simulation.wishes.lock().unwrap().faults.push((next, StepFault::DeviceLost("gone".to_string())));
    assert_eq!(simulation.step(), StepOutcome::DeviceLost("gone".to_string()));
    let metrics = simulation.core.metrics();
    assert_eq!((metrics.pages_free, metrics.failed), (60, 6));
    let load = a_load(&[1, 2, 3, 1, 2, 3], 12);
    simulation.add(9, &load);
    simulation.finish();
    assert_eq!(simulation.told(9).0, alone(&load, simulation.limits.length_max).0);
}

#[test]
fn a_device_that_cannot_be_had_again_stops_the_engine() {
    let mut simulation = Simulation::new(limits(4, 60), PLAIN);
    simulation.add(0, &a_load(&[1, 2, 3], 12));
    let mut wishes = simulation.wishes.lock().unwrap();
    wishes.faults.push((1, StepFault::DeviceLost("gone".to_string())));
    wishes.is_gone = true;
    drop(wishes);
    let outcome = simulation.step();
    assert_eq!(outcome, StepOutcome::Stopped("the device has failed: gone for good".to_string()));
    assert_eq!(simulation.core.metrics().failed, 1);
}

#[test]
fn clients_that_take_nothing_keep_nobody_waiting() {
    let few_places = EngineLimits { admitted_max: 4, ..limits(4, 60) };
    let few_pages = limits(4, 16);
    for limits in [few_places, few_pages] {
        let limits = EngineLimits { events_max: 3, ..limits };
        let mut simulation = Simulation::new(limits.clone(), PLAIN);
        let loads: Vec<Load> = (1..6).map(|token| a_load(&[token; 9], 8)).collect();
        loads[..4].iter().enumerate().for_each(|(id, load)| simulation.add(id as u64, load));
        (0..40).for_each(|_| drop(simulation.step()));
        simulation.add(4, &loads[4]);
        let mut told: Vec<Turn> = vec![Turn::default(); loads.len()];
        let mut read = |simulation: &Simulation, id: usize| {
            let (tokens, reason) = simulation.told(id as u64);
            told[id].0.extend(tokens);
            told[id].1 = reason.or(told[id].1);
            told[id].1.is_some()
        };
        let steps = (0..200).find(|_| {
            simulation.step();
            read(&simulation, 4)
        });
        assert!(steps.is_some(), "a client that reads waits for those that do not");
        // The others lost nothing.
        for _ in 0..200 {
            simulation.step();
            (0..4).for_each(|id| _ = read(&simulation, id));
        }
        for (load, told) in loads.iter().zip(told) {
            let (tokens, reason) = alone(load, limits.length_max);
            assert_eq!(told, (tokens, Some(reason)));
        }
        simulation.assert_all_pages_are_back();
    }
}

#[test]
fn a_panic_in_one_row_leaves_no_client_of_an_ended_one_without_an_end() {
    let queue = EventQueue::new(1);
    let ended = Event::Finished { answer: 0, reason: FinishReason::Eos, usage: Usage::default() };
    let told = Told(vec![(queue.clone(), vec![ended.clone()])]);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _told = told;
        panic!("a later row of the step");
    }));
    assert!(panicked.is_err());
    assert_eq!(queue.next(Some(Duration::ZERO)), Some(ended));
}

#[test]
fn defect_27_endless_decoders_and_long_prompts_starve_nobody() {
    const DECODERS: u64 = 64;
    const PROMPT: usize = 8192;
    let limits = EngineLimits {
        rows_max: 17,
        tokens_max: 512,
        prefill_min: 128,
        prefill_max: 256,
        length_max: 1 << 16,
        ..limits(64, 4096)
    };
    let mut simulation = Simulation::new(limits.clone(), PLAIN);
    let endless = Load { max_new_tokens: usize::MAX, seed: Some(1), ..a_load(&[5], 1) };
    for id in 0..DECODERS {
        simulation.add(id, &endless);
        // Its scores may end a row; then its place is taken by nobody, so such rows are not used here.
    }
    let bound = DECODERS.div_ceil(limits.rows_max as u64 - 1) as usize;
    let mut gaps = vec![0usize; DECODERS as usize];
    let mut seen = vec![0usize; DECODERS as usize];
    let (mut arrived, mut done) = (0u64, 0u64);
    let mut reached_head = 0;
    for step in 0..460usize {
        if step < 400 && step % 100 == 80 {
            let id = 1000 + arrived;
            simulation.add(id, &Load { max_new_tokens: 1, ..a_load(&vec![3; PROMPT], 1) });
            (arrived, reached_head) = (arrived + 1, step);
        }
        simulation.step();
        for id in 0..DECODERS as usize {
            let told = simulation.queues[&RowId(id as u64)].len();
            gaps[id] = if told > seen[id] { 0 } else { gaps[id] + 1 };
            seen[id] = told;
            let is_open = simulation.core.tokens(RowId(id as u64)).is_some();
            assert!(step < 80 || !is_open || gaps[id] <= bound, "row {id} did not step for {} steps", gaps[id]);
        }
        let answered = (0..arrived).filter(|id| simulation.core.tokens(RowId(1000 + id)).is_none()).count() as u64;
        if answered > done {
            done = answered;
            let steps = step + 1 - reached_head;
            assert!(steps <= PROMPT.div_ceil(limits.prefill_min), "a prompt took {steps} steps");
        }
    }
    assert_eq!((arrived, done), (4, 4));
}

#[test]
fn long_prompts_that_overlap_each_advance_when_they_are_oldest() {
    const DECODERS: u64 = 24;
    const PROMPTS: u64 = 6;
    const PROMPT: usize = 2048;
    let limits = EngineLimits {
        rows_max: 9,
        tokens_max: 256,
        prefill_min: 64,
        prefill_max: 128,
        length_max: 1 << 16,
        ..limits(64, 4096)
    };
    let mut simulation = Simulation::new(limits.clone(), PLAIN);
    let endless = Load { max_new_tokens: usize::MAX, seed: Some(1), ..a_load(&[5], 1) };
    (0..DECODERS).for_each(|id| simulation.add(id, &endless));
    (0..40).for_each(|_| drop(simulation.step()));
    for id in 0..PROMPTS {
        simulation.add(1000 + id, &a_load(&vec![3; PROMPT + id as usize], 1));
    }
    let open = |simulation: &Simulation| -> Vec<u64> {
        (0..PROMPTS).filter(|id| simulation.core.tokens(RowId(1000 + id)).is_some()).collect()
    };
    let bound = (DECODERS as usize).div_ceil(limits.rows_max - 1);
    let (mut seen, mut gaps) = (vec![0; DECODERS as usize], vec![0; DECODERS as usize]);
    let mut steps_as_oldest = 0;
    let mut left = open(&simulation);
    while !left.is_empty() {
        simulation.step();
        steps_as_oldest += 1;
        for id in 0..DECODERS as usize {
            let told = simulation.queues[&RowId(id as u64)].len();
            gaps[id] = if told > seen[id] { 0 } else { gaps[id] + 1 };
            seen[id] = told;
            let is_open = simulation.core.tokens(RowId(id as u64)).is_some();
            assert!(!is_open || gaps[id] <= bound, "row {id} did not step for {} steps", gaps[id]);
        }
        let now = open(&simulation);
        if now.first() != left.first() {
            assert!(steps_as_oldest <= (PROMPT + 9).div_ceil(limits.prefill_min), "{steps_as_oldest} steps");
            assert!(now.is_sorted() && left.ends_with(&now), "those that came first end first");
            steps_as_oldest = 0;
        }
        left = now;
    }
}

#[test]
fn a_high_priority_overtakes_a_prompt_that_has_begun() {
    let mut simulation = Simulation::new(limits(4, 60), PLAIN);
    simulation.add(0, &a_load(&[1; 80], 2));
    simulation.step();
    simulation.add(1, &Load { priority: 1, ..a_load(&[2; 24], 2) });
    (0..4).for_each(|_| drop(simulation.step()));
    assert!(!simulation.told(1).0.is_empty(), "the prompt of a higher class waits");
    assert!(simulation.told(0).0.is_empty());
}

#[test]
fn a_low_priority_is_no_life_sentence() {
    let mut simulation = Simulation::new(EngineLimits { admitted_max: 1, ..limits(4, 60) }, PLAIN);
    simulation.add(0, &Load { priority: 0, ..a_load(&[1, 2], 4) });
    let mut steps = 0;
    for id in 1.. {
        simulation.add(id, &Load { priority: 1, ..a_load(&[1, 2], 4) });
        for _ in 0..5 {
            simulation.step();
            steps += 1;
        }
        if simulation.core.tokens(RowId(0)).is_none() {
            break;
        }
        assert!(steps < 1000, "a row of a low class is never let in");
    }
}
