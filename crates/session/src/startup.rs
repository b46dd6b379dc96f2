//! Opening all Buckets: loaded and compiled in parallel, the largest first, with progress that says what is known about
//! the time left and how it is known. Requests are served once those that `Startup` names are there; a thread waits for
//! the others, measures what Buckets cost, and then says that the Session is ready.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use precast_program::Bucket;

use crate::error::SessionError;
use crate::options::Startup;
use crate::programs::{Entry, Flight};
use crate::report::Origin;
use crate::session::{Inner, Session};

/// Progress is told at least this often.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Costs are measured once no request has come for so long: measuring beside requests slows them down and measures them.
const QUIET: Duration = Duration::from_millis(25);
/// Or after so long, for a Session that is never quiet.
const QUIET_WAIT_MAX: Duration = Duration::from_secs(5);

/// What opening does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Loading what the cache has, compiling what it does not.
    Programs,
    /// Measuring what each Bucket costs.
    Measuring,
    /// Nothing is left to do.
    Ready,
}

/// How the time left is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtaBasis {
    /// From the Buckets of this start that are done.
    Modelled,
    /// Nothing is done yet, so it is not.
    Unknown,
}

/// How far opening has come.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// What is done at the moment.
    pub phase: Phase,
    /// Buckets that are done.
    pub done: usize,
    /// Buckets in all.
    pub total: usize,
    /// Buckets that were compiled, so far.
    pub compiled: usize,
    /// Buckets that could not be had, so far; they count as done.
    pub failed: usize,
    /// The Bucket that was done last.
    pub bucket: Option<Bucket>,
    /// Time since opening began.
    pub elapsed: Duration,
    /// Time left, if it can be said.
    pub eta: Option<Duration>,
    /// How it is known.
    pub basis: EtaBasis,
}

impl Progress {
    /// Nothing done yet, and nothing known about the time left.
    pub(crate) fn new(phase: Phase, total: usize, begun: Instant) -> Progress {
        let (done, compiled, failed, bucket, eta) = (0, 0, 0, None, None);
        let (elapsed, basis) = (begun.elapsed(), EtaBasis::Unknown);
        Progress { phase, done, total, compiled, failed, bucket, elapsed, eta, basis }
    }
}

/// How much of what `Startup` brings is there.
#[derive(Clone, Debug)]
pub enum Readiness {
    /// Every request is served, some of them by larger Buckets than they will be.
    Partial,
    /// Everything is there, and measured where it was to be.
    Ready,
    /// Nothing more will come, and something failed; the error is the first one. Requests are served by what is there.
    Degraded(SessionError),
}

/// The Readiness of a Session, and who waits for it.
#[derive(Default)]
pub(crate) struct ReadyCell {
    state: Mutex<ReadyState>,
    changed: Condvar,
}

struct ReadyState {
    readiness: Readiness,
    /// Calls that wait for all of it.
    waiting: usize,
    is_closed: bool,
}

impl Default for ReadyState {
    fn default() -> ReadyState {
        ReadyState { readiness: Readiness::Partial, waiting: 0, is_closed: false }
    }
}

impl ReadyCell {
    fn get(&self) -> Readiness {
        self.lock().readiness.clone()
    }

    fn set(&self, readiness: Readiness) {
        self.lock().readiness = readiness;
        self.changed.notify_all();
    }

    /// Nothing is worth waiting for from now on.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn wait(&self, limit: Option<Duration>) -> Readiness {
        let mut state = self.lock();
        state.waiting += 1;
        self.changed.notify_all();
        let is_partial = |state: &mut ReadyState| matches!(state.readiness, Readiness::Partial);
        let mut state = match limit {
            None => self.changed.wait_while(state, is_partial).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let waited = self.changed.wait_timeout_while(state, limit, is_partial);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.waiting -= 1;
        state.readiness.clone()
    }

    /// Lets so much time pass, unless somebody waits; says whether nobody did.
    fn rest(&self, time: Duration) -> bool {
        let is_alone = |state: &mut ReadyState| state.waiting == 0 && !state.is_closed;
        let rested = self.changed.wait_timeout_while(self.lock(), time, is_alone);
        rested.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn lock(&self) -> MutexGuard<'_, ReadyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// How much of what `Startup` brings is there.
    pub fn readiness(&self) -> Readiness {
        self.inner.ready.get()
    }

    /// Waits until everything that `Startup` brings is there, for at most so long; `Partial` when the time is over.
    pub fn wait_until_ready(&self, limit: Option<Duration>) -> Readiness {
        self.inner.ready.wait(limit)
    }
}

/// Buckets that are awaited in order.
struct Awaited {
    flights: std::vec::IntoIter<(Bucket, Arc<Flight>)>,
    begun: Instant,
    progress: Progress,
}

impl Awaited {
    /// Waits for the next Bucket, and tells how it goes; none where all have come.
    fn next(&mut self, tell: &dyn Fn(&Progress)) -> Option<Result<Arc<Entry>, SessionError>> {
        let (bucket, flight) = self.flights.next()?;
        let entry = loop {
            match flight.wait(Some(TELL_EVERY)) {
                Some(result) => break result,
                None => {
                    self.progress.elapsed = self.begun.elapsed();
                    tell(&self.progress);
                }
            }
        };
        let progress = &mut self.progress;
        progress.done += 1;
        progress.compiled += usize::from(entry.as_ref().is_ok_and(|entry| entry.origin == Origin::Compiled));
        progress.failed += usize::from(entry.is_err());
        progress.bucket = Some(bucket);
        progress.elapsed = self.begun.elapsed();
        progress.eta = Some(progress.elapsed.mul_f64(self.flights.len() as f64 / progress.done as f64));
        progress.basis = EtaBasis::Modelled;
        tell(progress);
        Some(entry)
    }
}

impl Inner {
    /// Brings the Buckets that `startup` asks for. Gives the thread that waits for those that may come later.
    pub(crate) fn start(self: &Arc<Self>, begun: Instant) -> Result<Option<std::thread::JoinHandle<()>>, SessionError> {
        let buckets = match self.options.startup {
            Startup::Lazy => Vec::new(),
            Startup::All | Startup::Largest => self.programs.read(|table| table.ladders.all()),
        };
        let request = |(at, bucket): (usize, Bucket)| {
            let is_awaited = at == 0 && self.options.startup == Startup::Largest;
            let flight = if is_awaited { self.request_first(&bucket) } else { self.request(&bucket) };
            (bucket, flight)
        };
        let flights: Vec<(Bucket, Arc<Flight>)> = buckets.into_iter().enumerate().map(request).collect();
        let total = flights.len();
        let progress = Progress::new(Phase::Programs, total, begun);
        let mut awaited = Awaited { flights: flights.into_iter(), begun, progress };
        let needed = if self.options.startup == Startup::Largest { total.min(1) } else { total };
        for _ in 0..needed {
            // The first error ends opening; the others go on in the background.
            awaited.next(&|progress| self.tell(progress)).transpose()?;
        }
        self.check_memory()?;
        if self.options.startup != Startup::Largest {
            self.finish_start(awaited)?;
            self.ready.set(Readiness::Ready);
            return Ok(None);
        }
        self.recall_costs();
        let inner = self.clone();
        let finish = move || {
            let readiness = match inner.finish_start(awaited) {
                Ok(()) => Readiness::Ready,
                Err(error) => {
                    tracing::warn!(%error, "the start did not bring all that it should");
                    Readiness::Degraded(error)
                }
            };
            inner.ready.set(readiness);
        };
        let thread = std::thread::Builder::new().name("precast-start".to_string()).spawn(finish);
        Ok(Some(thread.map_err(|error| SessionError::Thread(format!("no thread to start on: {error}")))?))
    }

    /// Waits for the Buckets that are still to come, and measures all. The first error is given at the end.
    fn finish_start(&self, mut awaited: Awaited) -> Result<(), SessionError> {
        let mut outcome = Ok(());
        while let Some(entry) = awaited.next(&|progress| self.tell(progress)) {
            outcome = outcome.and(entry.map(drop));
        }
        self.source.forget_graph();
        if self.bringer.underway.is_closed() {
            return outcome;
        }
        outcome = outcome.and(self.check_memory());
        self.recall_costs();
        let has_choice = self.programs.read(|table| table.ladders.primary_extents().len() > 1);
        if self.options.measures && has_choice && self.options.startup != Startup::Lazy {
            let progress = |phase| Progress { phase, elapsed: awaited.begun.elapsed(), ..awaited.progress.clone() };
            self.tell(&progress(Phase::Measuring));
            self.wait_for_quiet();
            outcome = outcome.and(self.measure_costs());
            self.tell(&progress(Phase::Ready));
        }
        outcome
    }

    /// Waits until requests pause, for so long as nobody waits for the Session to be ready.
    fn wait_for_quiet(&self) {
        let begun = Instant::now();
        let mut requests = self.counters.requests();
        // Before `open` returns there are none.
        while self.options.startup == Startup::Largest && begun.elapsed() < QUIET_WAIT_MAX && self.ready.rest(QUIET) {
            let now = self.counters.requests();
            if now == requests {
                return;
            }
            requests = now;
        }
    }

    fn tell(&self, progress: &Progress) {
        if let Some(observer) = &self.options.progress.0 {
            observer(progress);
        }
    }
}
