//! The Programs of a Session: those that are loaded, and those on their way. Of all requests for one Bucket one brings it,
//! on a thread of its own; the others wait for it or go elsewhere. A number, the epoch, changes with the set, so that
//! Bindings made from an older set are known to be old.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use precast_program::{Bucket, LoadedProgram, Program};
use precast_tensor::Digest;

use crate::binding::Binding;
use crate::cover::CoverTable;
use crate::error::SessionError;
use crate::ladders::Ladders;
use crate::report::Origin;
use crate::slots::Slots;

/// Bindings that are kept for all contexts; beyond this the set is dropped and begun again.
const BINDINGS_KEPT: usize = 4096;
/// Programs that may be on their way at once where fewer may compile at once: the others are loaded, or wait for the
/// disk, and leave the cores to those that compile.
const ON_THEIR_WAY: usize = 8;
/// How long an error is remembered before the Bucket is tried again; doubled each time.
const RETRY_FIRST: Duration = Duration::from_secs(30);

/// A loaded Program.
pub(crate) struct Entry {
    pub(crate) bucket: Bucket,
    /// On each device of the Session.
    loaded: Vec<Arc<dyn LoadedProgram>>,
    /// Where it came from when it was loaded.
    pub(crate) origin: Origin,
    /// What its measured cost is filed under.
    pub(crate) cost_key: Digest,
    last_use: AtomicU64,
}

impl Entry {
    /// A Program, loaded on each device of the Session; there is at least one.
    pub(crate) fn new(bucket: Bucket, loaded: Vec<Arc<dyn LoadedProgram>>, origin: Origin, cost_key: Digest) -> Entry {
        Entry { bucket, loaded, origin, cost_key, last_use: AtomicU64::new(0) }
    }

    /// The Program.
    pub(crate) fn program(&self) -> &Program {
        self.loaded[0].program()
    }

    /// The Program as a device has it.
    pub(crate) fn on(&self, device: usize) -> &dyn LoadedProgram {
        &*self.loaded[device]
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({})", self.bucket)
    }
}

/// A Program on its way, and what became of it.
#[derive(Default)]
pub(crate) struct Flight {
    result: Mutex<Option<Result<Arc<Entry>, SessionError>>>,
    landed: Condvar,
}

impl Flight {
    /// What became of it; none when the time is over.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Option<Result<Arc<Entry>, SessionError>> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(result) = &*result {
                return Some(result.clone());
            }
            result = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => self.landed.wait(result).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return None,
                Some(left) => self.landed.wait_timeout(result, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// The first landing counts.
    fn land(&self, result: Result<Arc<Entry>, SessionError>) {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(result);
        self.landed.notify_all();
    }
}

/// Loaded Programs and those on their way.
pub(crate) struct Programs {
    table: RwLock<Table>,
    epoch: AtomicU64,
    clock: AtomicU64,
    flights: Mutex<HashMap<Bucket, Arc<Flight>>>,
    slots: Slots,
    exact_max: usize,
}

/// The set at one moment.
pub(crate) struct Table {
    pub(crate) ladders: Arc<Ladders>,
    pub(crate) entries: BTreeMap<Bucket, Arc<Entry>>,
    /// Measured costs in nanoseconds.
    pub(crate) costs: BTreeMap<Bucket, f64>,
    bindings: HashMap<Vec<i64>, Arc<Binding>>,
    covers: HashMap<Vec<i64>, (Arc<CoverTable>, bool)>,
    failures: HashMap<Bucket, Failure>,
}

#[derive(Clone)]
struct Failure {
    error: SessionError,
    until: Instant,
    pause: Duration,
}

impl Programs {
    pub(crate) fn new(ladders: Ladders, jobs: usize, exact_max: usize) -> Programs {
        let table = Table {
            ladders: Arc::new(ladders),
            entries: BTreeMap::new(),
            costs: BTreeMap::new(),
            bindings: HashMap::new(),
            covers: HashMap::new(),
            failures: HashMap::new(),
        };
        Programs {
            table: RwLock::new(table),
            epoch: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            flights: Mutex::default(),
            slots: Slots::new(jobs.max(ON_THEIR_WAY)),
            exact_max,
        }
    }

    /// Changes whenever Bindings made before may no longer be what would be made now.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Reads the set.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Table) -> T) -> T {
        read(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the set in a way that makes every Binding old.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut table);
        table.bindings.clear();
        table.covers.clear();
        self.epoch.fetch_add(1, Ordering::Release);
        result
    }

    /// Notes a use, so that what is used stays.
    pub(crate) fn touch(&self, entry: &Entry) {
        entry.last_use.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Keeps a Binding for all contexts, unless the set has changed since it was made.
    pub(crate) fn keep_binding(&self, values: Vec<i64>, binding: &Arc<Binding>) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if binding.epoch != self.epoch() {
            return;
        }
        if table.bindings.len() >= BINDINGS_KEPT {
            table.bindings.clear();
        }
        table.bindings.insert(values, binding.clone());
    }

    /// Keeps covers, unless the set has changed since.
    pub(crate) fn keep_covers(&self, epoch: u64, extents: Vec<i64>, covers: Arc<CoverTable>, is_estimated: bool) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if epoch == self.epoch() {
            if table.covers.len() >= BINDINGS_KEPT {
                table.covers.clear();
            }
            table.covers.insert(extents, (covers, is_estimated));
        }
    }

    /// A Program, on its way from now on if it was not yet. `bring` runs on a thread of its own. It is given a way to land
    /// the Program before it is done with it; then it gives none.
    pub(crate) fn request(
        self: &Arc<Self>,
        bucket: &Bucket,
        bring: impl FnOnce(&dyn Fn(Entry)) -> Result<Option<Entry>, SessionError> + Send + 'static,
    ) -> Arc<Flight> {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = flights.get(bucket) {
            return flight.clone();
        }
        let flight = Arc::new(Flight::default());
        // It may have landed between the caller's look and this one, or have failed a moment ago.
        let known = self.read(|table| match (table.entries.get(bucket), table.failures.get(bucket)) {
            (Some(entry), _) => Some(Ok(entry.clone())),
            (None, Some(failure)) if Instant::now() < failure.until => Some(Err(failure.error.clone())),
            (None, _) => None,
        });
        if let Some(result) = known {
            flight.land(result);
            return flight;
        }
        flights.insert(bucket.clone(), flight.clone());
        drop(flights);
        let programs = self.clone();
        let landing = Landing { flight: flight.clone(), programs: self.clone(), bucket: bucket.clone() };
        let work = move || {
            let slot = programs.slots.take();
            let result = bring(&|entry| landing.land(Ok(entry)));
            drop(slot);
            result.transpose().into_iter().for_each(|result| landing.land(result));
        };
        let thread = std::thread::Builder::new().name("precast-compile".to_string()).spawn(work);
        if let Err(error) = thread {
            flight.land(Err(SessionError::Thread(format!("no thread to compile on: {error}"))));
        }
        flight
    }

    /// Lands every flight now, with the word that the Session is closed.
    pub(crate) fn give_up(&self) {
        let flights: Vec<Arc<Flight>> =
            self.flights.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        flights.iter().for_each(|flight| flight.land(Err(SessionError::Closed)));
    }

    /// Buckets on their way.
    pub(crate) fn in_flight(&self) -> Vec<Bucket> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    fn enter(&self, entry: Entry) -> Arc<Entry> {
        let entry = Arc::new(entry);
        self.touch(&entry);
        let is_ladder = self.read(|table| table.ladders.contains(&entry.bucket));
        if is_ladder {
            // Requests that were padded higher for want of it may now take it.
            return self.change(|table| {
                table.failures.remove(&entry.bucket);
                table.entries.entry(entry.bucket.clone()).or_insert(entry).clone()
            });
        }
        let is_full = self.read(|table| table.exact().count() >= self.exact_max.max(1));
        if is_full {
            self.change(|table| {
                let oldest = table.exact().min_by_key(|entry| entry.last_use.load(Ordering::Relaxed));
                let oldest = oldest.map(|entry| entry.bucket.clone());
                oldest.map(|bucket| table.entries.remove(&bucket))
            });
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.failures.remove(&entry.bucket);
        table.entries.entry(entry.bucket.clone()).or_insert(entry).clone()
    }

    fn fail(&self, bucket: &Bucket, error: &SessionError) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let pause = table.failures.get(bucket).map_or(RETRY_FIRST, |failure| failure.pause * 2);
        let failure = Failure { error: error.clone(), until: Instant::now() + pause, pause };
        table.failures.insert(bucket.clone(), failure);
    }
}

impl Table {
    /// Programs that are on no ladder.
    fn exact(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.values().filter(|entry| !self.ladders.contains(&entry.bucket))
    }

    /// A Binding of these values.
    pub(crate) fn binding(&self, values: &[i64]) -> Option<&Arc<Binding>> {
        self.bindings.get(values)
    }

    /// Covers beside these extents of the other dims, and whether they rest on estimates.
    pub(crate) fn covers(&self, extents: &[i64]) -> Option<&(Arc<CoverTable>, bool)> {
        self.covers.get(extents)
    }
}

/// Lands a flight even if what brings it panics.
struct Landing {
    flight: Arc<Flight>,
    programs: Arc<Programs>,
    bucket: Bucket,
}

impl Landing {
    fn land(&self, result: Result<Entry, SessionError>) {
        let result = match result {
            Ok(entry) => Ok(self.programs.enter(entry)),
            Err(error) => {
                self.programs.fail(&self.bucket, &error);
                Err(error)
            }
        };
        self.flight.land(result);
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.programs.flights.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.bucket);
        let mut result = self.flight.result.lock().unwrap_or_else(PoisonError::into_inner);
        result.get_or_insert_with(|| Err(SessionError::Thread(format!("the compile of {} panicked", self.bucket))));
        self.flight.landed.notify_all();
    }
}
