//! An engine on a thread of its own. Requests are checked where they are sent, so that what cannot be is refused there; the
//! thread takes commands between steps.

use std::collections::VecDeque;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::config::GenerationConfig;
use crate::generator::{GenerateError, check_length, check_tokens, system_seed};
use crate::kv_cache::windows_of;
use crate::row_search::{RowDraws, RowSearch, SearchOptions};
use crate::search::ParamsError;
use crate::text_model::{TextModel, TextModelParts};
use crate::tokenizer::Tokenizer;

use super::core::{EngineCore, StepOutcome};
use super::events::{EventQueue, Usage};
use super::guidance::{GuidanceError, Guide, GuideFactory};
use super::metrics::EngineMetrics;
use super::options::{EngineLimits, EngineOptions};
use super::paged_runner::PagedRunner;
use super::prefix_cache::chain_root;
use super::request::{Request, RequestHandle};
use super::resident_runner::ResidentRunner;
use super::row::{Row, RowId, RowState};
use super::runner::StepRunner;
use super::speculation::Speculation;

/// Why an engine refused something.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Options or a request that cannot be.
    #[error("{0}")]
    Request(String),
    /// A prompt that does not fit, or a seed that could not be had.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// An option of the search that cannot be.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// A grammar that cannot be followed.
    #[error(transparent)]
    Guidance(#[from] GuidanceError),
    /// As many answers wait as may; the same request may be accepted later.
    #[error("{waiting} answers wait to be let in already, and {max} may; send the request again later")]
    Busy {
        /// Answers that wait.
        waiting: usize,
        /// Answers that may wait.
        max: usize,
    },
    /// An answer failed.
    #[error("{0}")]
    Answer(String),
    /// The engine has ended.
    #[error("the engine has ended: {0}")]
    Stopped(String),
}

/// Requests that come and go, on one decoder. Shared by threads; dropping it cancels what is open.
pub struct Engine {
    /// Of the model, which is the thread's: when its device is lost there is another one.
    config: GenerationConfig,
    vocabulary: usize,
    /// The model that adapters must be for; none where its steps know no adapters.
    adapted: Option<Weak<TextModelParts>>,
    tokenizer: Option<Tokenizer>,
    options: EngineOptions,
    limits: EngineLimits,
    guides: OnceLock<Result<GuideFactory, GuidanceError>>,
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

/// What a person wants of the thread.
enum Command {
    Add(Vec<Row>),
    Continue(RowId, Vec<u32>, SyncSender<Result<(), String>>),
    Rewind(RowId, SyncSender<Result<(), String>>),
    Metrics(SyncSender<EngineMetrics>),
}

/// Commands on their way to the thread.
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    arrived: Condvar,
}

#[derive(Default)]
struct InboxState {
    commands: VecDeque<Command>,
    next_row: u64,
    /// Answers that waited to be let in when commands were last taken, and those that were sent since.
    waiting: usize,
    is_closing: bool,
    /// Whether something happened that a waiting thread should look at.
    is_woken: bool,
    /// Why the thread has ended, if it has.
    stopped: Option<String>,
}

impl Engine {
    /// An engine on a decoder. Text, stop strings and grammars need the tokenizer.
    pub fn new(
        model: &TextModel,
        tokenizer: Option<&Tokenizer>,
        options: EngineOptions,
    ) -> Result<Engine, EngineError> {
        let (options, runner) = open_runner(model, options)?;
        Engine::with_runner(model, tokenizer, options, runner)
    }

    /// An engine whose steps another runner runs.
    pub fn with_runner(
        model: &TextModel,
        tokenizer: Option<&Tokenizer>,
        options: EngineOptions,
        runner: Box<dyn StepRunner>,
    ) -> Result<Engine, EngineError> {
        let limits = limits_of(model, &options)?;
        let windows = windows_of(model.layers());
        let limits = EngineLimits { length_switch: model.length_switch(), windows, ..limits };
        let adapted = runner.runs_adapters().then(|| model.identity());
        let core = EngineCore::new(runner, limits.clone());
        let inbox = Arc::new(Inbox { state: Mutex::default(), arrived: Condvar::new() });
        let (thread_inbox, checks) = (inbox.clone(), options.checks_invariants);
        let thread = std::thread::Builder::new()
            .name("precast-engine".to_string())
            .spawn(move || EngineThread { core, inbox: thread_inbox, checks, reason: None }.run())
            .map_err(|error| EngineError::Stopped(error.to_string()))?;
        let (config, vocabulary) = (model.config().clone(), model.vocabulary());
        let (tokenizer, guides, thread) = (tokenizer.cloned(), OnceLock::new(), Some(thread));
        Ok(Engine { config, vocabulary, adapted, tokenizer, options, limits, guides, inbox, thread })
    }

    /// The numbers that the engine works with.
    pub fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    /// Whether answers are texts too.
    pub fn has_text(&self) -> bool {
        self.tokenizer.is_some()
    }

    /// Sends a request. What can never be answered is refused here.
    pub fn submit(&self, request: Request) -> Result<RequestHandle, EngineError> {
        self.check(&request)?;
        let guide = self.guide(&request)?;
        let seed = match request.params.search.random_seed {
            Some(seed) => seed,
            None => system_seed()?,
        };
        let answers = request.params.search.num_return_sequences;
        let events = EventQueue::new(answers);
        let first = self.inbox.next_rows(answers);
        let length_max = request.params.search.max_length.min(self.limits.length_max);
        let search = SearchOptions {
            params: request.params.clone(),
            eos: self.config.model.eos_token_ids.clone(),
            length_max,
            tokenizer: self.tokenizer.clone(),
            guide,
        };
        let search = Arc::new(search);
        let rows = (0..answers).map(|answer| {
            let draws = RowDraws { seed, stream: 0, return_index: answer as u32 };
            Ok(self.row(&request, RowSearch::new(search.clone(), draws)?, (first, answer), &events))
        });
        let rows = rows.collect::<Result<Vec<Row>, EngineError>>()?;
        let ids = rows.iter().map(|row| row.id).collect();
        self.inbox.add(rows, self.options.queued_max)?;
        Ok(RequestHandle { inbox: self.inbox.clone(), events, rows: ids, seed })
    }

    /// What was done so far and how things stand.
    pub fn metrics(&self) -> Result<EngineMetrics, EngineError> {
        let (sender, receiver) = sync_channel(1);
        self.inbox.send(Command::Metrics(sender))?;
        receiver.recv().map_err(|_| self.inbox.stopped())
    }

    /// Everything about a request that can be known before anything runs.
    fn check(&self, request: &Request) -> Result<(), EngineError> {
        let refuse = |reason: &str| Err(EngineError::Request(reason.to_string()));
        let params = &request.params;
        params.check(self.vocabulary)?;
        check_tokens(0, &request.prompt, self.vocabulary)?;
        check_length(0, 0, request.prompt.len(), params.search.max_length, &self.config)?;
        if request.prompt.is_empty() {
            return refuse("the prompt has no tokens");
        }
        if request.prompt.len() >= self.limits.length_max {
            let (prompt, longest) = (request.prompt.len(), self.limits.length_max);
            return refuse(&format!("the prompt has {prompt} tokens; all pages together hold {longest}"));
        }
        if params.search.num_beams > 1 {
            return refuse("beams do not run in an engine; use `generate`");
        }
        if !params.row_seeds.is_empty() {
            return refuse("row_seeds are those of several rows; a request has one seed, random_seed");
        }
        if params.max_new_tokens == Some(0) {
            return refuse("max_new_tokens is 0; 1 or more was expected");
        }
        if !params.stop.is_empty() && self.tokenizer.is_none() {
            return refuse("stop strings need a tokenizer");
        }
        match (&request.adapter, &self.adapted) {
            (Some(adapter), None) => {
                refuse(&format!("adapter '{}': the steps of this engine know no adapters", adapter.name()))
            }
            (Some(adapter), Some(model)) if !adapter.is_of(model) => {
                refuse(&format!("adapter '{}' was loaded for another model than the engine's", adapter.name()))
            }
            (Some(_), Some(_)) | (None, _) => Ok(()),
        }
    }

    /// Compiles the grammar of a request, on the thread of whoever sends it.
    fn guide(&self, request: &Request) -> Result<Option<Guide>, EngineError> {
        let Some(guidance) = &request.guidance else { return Ok(None) };
        let missing = || GuidanceError("a grammar needs a tokenizer".to_string());
        let tokenizer = self.tokenizer.as_ref().ok_or_else(missing)?;
        let eos = &self.config.model.eos_token_ids;
        let factory = self.guides.get_or_init(|| GuideFactory::new(tokenizer, self.vocabulary, eos));
        Ok(Some(factory.as_ref().map_err(Clone::clone)?.guide(guidance)?))
    }

    fn row(
        &self,
        request: &Request,
        search: RowSearch,
        (first, answer): (u64, usize),
        events: &Arc<EventQueue>,
    ) -> Row {
        let shares_prompt = request.params.search.num_return_sequences > 1;
        let salt = request.cache_salt.as_deref().unwrap_or("");
        let root = match self.limits.prefix_caching {
            true => format!("shared:{salt}"),
            false => format!("request:{first}"),
        };
        Row {
            id: RowId(first + answer as u64),
            answer,
            tokens: request.prompt.clone(),
            is_generated: vec![false; request.prompt.len()],
            turns: vec![0],
            adapter: request.adapter.clone(),
            cached: 0,
            pages: Vec::new(),
            windows: Vec::new(),
            chain: Vec::new(),
            chain_root: chain_root(request.adapter.as_ref(), &root),
            is_long: false,
            is_sharing: self.limits.prefix_caching || shares_prompt,
            state: RowState::Queued,
            is_prompt: true,
            priority: request.priority,
            arrived: 0,
            queued: 0,
            stepped: 0,
            ready: 0,
            failures: 0,
            is_told_of_wait: false,
            is_stalled: false,
            keeps_turn: request.keeps_turn && answer == 0,
            deadline: request.deadline,
            search,
            speculation: Speculation::new(&self.options.speculation),
            draft: Vec::new(),
            is_looked_up: false,
            usage: Usage { prompt_tokens: request.prompt.len(), ..Usage::default() },
            events: events.clone(),
            waits_for: (answer > 0).then_some(RowId(first)),
        }
    }
}

/// What runs the steps of an engine, and the options with as many pages as it has: on pages of the device where that keeps them,
/// else on the host's, whose metrics then say why.
fn open_runner(model: &TextModel, options: EngineOptions) -> Result<(EngineOptions, Box<dyn StepRunner>), EngineError> {
    let on_device = || -> Result<(EngineOptions, ResidentRunner), String> {
        let device = model.page_device().ok_or_else(|| model.host_pages().unwrap_or_default().to_string())?;
        let own = options.within_device(model, device.free_bytes())?;
        let limits = limits_of(model, &own).map_err(|error| error.to_string())?;
        Ok((own, ResidentRunner::new(model, &limits)?))
    };
    match on_device() {
        Ok((options, mut runner)) => {
            if options.prepares_programs {
                runner.prepare_ahead();
            }
            Ok((options, Box::new(runner)))
        }
        Err(reason) => {
            let limits = limits_of(model, &options)?;
            let for_device = model.resident().is_some().then_some(reason);
            let mut runner = PagedRunner::new(model, limits.page_tokens, limits.rows_max, for_device);
            if options.prepares_programs {
                runner.prepare_ahead();
            }
            Ok((options, Box::new(runner)))
        }
    }
}

/// The numbers that an engine on a model works with.
fn limits_of(model: &TextModel, options: &EngineOptions) -> Result<EngineLimits, EngineError> {
    let (context_length, chunk) = (model.config().model.context_length, model.ladders().length.largest());
    options.limits(context_length, model.kv_bytes_per_token(), chunk).map_err(EngineError::Request)
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.inbox.lock().is_closing = true;
        self.inbox.wake();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has told its requests so already.
            let _ = thread.join();
        }
    }
}

impl Inbox {
    /// Has the thread look at what changed.
    pub(super) fn wake(&self) {
        self.lock().is_woken = true;
        self.arrived.notify_all();
    }

    pub(super) fn continue_turn(&self, row: RowId, tokens: &[u32]) -> Result<(), EngineError> {
        self.ask(|sender| Command::Continue(row, tokens.to_vec(), sender))
    }

    pub(super) fn rewind_turn(&self, row: RowId) -> Result<(), EngineError> {
        self.ask(|sender| Command::Rewind(row, sender))
    }

    fn ask(&self, command: impl FnOnce(SyncSender<Result<(), String>>) -> Command) -> Result<(), EngineError> {
        let (sender, receiver) = sync_channel(1);
        self.send(command(sender))?;
        let answer = receiver.recv().map_err(|_| self.stopped())?;
        answer.map_err(EngineError::Request)
    }

    /// Sends rows, unless so many wait already.
    fn add(&self, rows: Vec<Row>, max: usize) -> Result<(), EngineError> {
        let mut state = self.lock();
        if state.waiting + rows.len() > max {
            return Err(EngineError::Busy { waiting: state.waiting, max });
        }
        state.waiting += rows.len();
        drop(state);
        self.send(Command::Add(rows))
    }

    fn send(&self, command: Command) -> Result<(), EngineError> {
        let mut state = self.lock();
        if state.stopped.is_some() || state.is_closing {
            drop(state);
            return Err(self.stopped());
        }
        state.commands.push_back(command);
        drop(state);
        self.arrived.notify_all();
        Ok(())
    }

    fn stopped(&self) -> EngineError {
        EngineError::Stopped(self.lock().stopped.clone().unwrap_or_else(|| "it was dropped".to_string()))
    }

    fn next_rows(&self, count: usize) -> u64 {
        let mut state = self.lock();
        state.next_row += count as u64;
        state.next_row - count as u64
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread of an engine.
struct EngineThread {
    core: EngineCore,
    inbox: Arc<Inbox>,
    /// Whether what must hold is checked after every step.
    checks: bool,
    /// Why it ends, if not because the engine was dropped.
    reason: Option<String>,
}

impl EngineThread {
    fn run(mut self) {
        let mut is_idle = false;
        while let Some(commands) = self.wait(is_idle) {
            commands.into_iter().for_each(|command| self.obey(command));
            let outcome = self.core.step(Instant::now());
            is_idle = matches!(outcome, StepOutcome::NoWork | StepOutcome::CapacityDeferred);
            if let StepOutcome::Stopped(reason) = outcome {
                self.reason = Some(reason);
                return;
            }
            if self.checks
                && let Err(broken) = self.core.check_invariants()
            {
                self.reason = Some(format!("an invariant does not hold: {broken}"));
                return;
            }
        }
    }

    /// Commands that came; waits for one, for someone to take events, or for a deadline, where there is nothing to do.
    fn wait(&self, is_idle: bool) -> Option<Vec<Command>> {
        let mut state = self.inbox.lock();
        let sent = |command: &Command| if let Command::Add(rows) = command { rows.len() } else { 0 };
        state.waiting = self.core.queued_rows() + state.commands.iter().map(sent).sum::<usize>();
        while is_idle && state.commands.is_empty() && !state.is_closing && !state.is_woken {
            let deadline = self.core.next_deadline();
            state = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                Some(wait) if wait.is_zero() => break,
                Some(wait) => self.inbox.arrived.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0,
                None => self.inbox.arrived.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        state.is_woken = false;
        (!state.is_closing).then(|| state.commands.drain(..).collect())
    }

    fn obey(&mut self, command: Command) {
        // Whoever asked may have gone away; then nobody misses the answer.
        match command {
            Command::Add(rows) => rows.into_iter().for_each(|row| self.core.add(row)),
            Command::Continue(row, tokens, sender) => drop(sender.send(self.core.continue_turn(row, &tokens))),
            Command::Rewind(row, sender) => {
                let is_done = self.core.rewind_turn(row);
                let answer = if is_done { Ok(()) } else { Err("there is no turn that has ended".to_string()) };
                drop(sender.send(answer));
            }
            Command::Metrics(sender) => drop(sender.send(self.core.metrics())),
        }
    }
}

impl Drop for EngineThread {
    /// However the thread ends, nobody waits for it.
    fn drop(&mut self) {
        let reason = match (&self.reason, std::thread::panicking()) {
            (Some(reason), _) => reason.clone(),
            (None, true) => "its thread panicked".to_string(),
            (None, false) => "it was dropped".to_string(),
        };
        let mut state = self.inbox.lock();
        state.stopped = Some(reason.clone());
        let commands: Vec<Command> = state.commands.drain(..).collect();
        drop(state);
        for command in commands {
            if let Command::Add(rows) = command {
                rows.into_iter().for_each(|row| self.core.add(row));
            }
        }
        self.core.end_all(&format!("the engine has ended: {reason}"));
    }
}
