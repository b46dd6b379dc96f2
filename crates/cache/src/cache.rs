//! The ProgramCache: turns a KeyRecord into a Program, from memory, disk, a remote store or, at most once, a compile.
//! Order of locks: flight, file lock, compile (spec C13). No failure of the cache is a failure of the request.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use precast_program::{Program, TuningTable};

use crate::artifact::{Compiled, Wanted};
use crate::disk::Disk;
use crate::flight::{Flights, Seat};
use crate::key::{KeyRecord, ProgramKey};
use crate::layout::{LAYOUT, Layout};
use crate::lock::{self, Acquired, Held};
use crate::memory::Memory;
use crate::miss::{CacheError, Event, GetError, Miss};
use crate::options::{CacheOptions, Mode};
use crate::publish;
use crate::remote::Remote;
use crate::room::Room;
use crate::weights::{Files, Unnamed, WeightStore};

/// Programs and their constants, in memory, on disk and in a remote store. Shared by all threads of a process.
pub struct ProgramCache {
    pub(crate) options: CacheOptions,
    /// The mode in force: that of the options, or read-only where the layout is newer than this build.
    pub(crate) mode: Mode,
    pub(crate) layout: Layout,
    pub(crate) weights: WeightStore,
    pub(crate) memory: Memory,
    pub(crate) room: Room,
    pub(crate) remote: Option<Remote>,
    flights: Flights,
    /// Read while a compile may have constants in memory that no Program in memory names yet.
    compiling: RwLock<()>,
    /// Measured tactics that this process kept.
    pub(crate) tuning_memory: Mutex<TuningTable>,
    is_unlocked_reported: AtomicBool,
}

/// Where a Program came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was in memory, or another thread brought it there.
    Memory,
    /// It was on disk.
    Disk,
    /// It was in the remote store.
    Remote,
    /// It was compiled by this call.
    Compiled,
}

/// A Program and how it was got.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The Program.
    pub program: Arc<Program>,
    /// Where it came from.
    pub origin: Origin,
    /// Why the disk did not have it, if it was not there.
    pub miss: Option<Miss>,
    /// Time spent waiting for other threads and processes that were after the same Program.
    pub lock_wait: Duration,
}

/// Least time to wait for another process that compiles, where no compile time is recorded.
const LOCK_TIMEOUT_LEAST: Duration = Duration::from_secs(60);

impl ProgramCache {
    /// Opens a cache. A root that cannot be written is no error: Programs are then kept in memory. A root that others
    /// could write is one.
    pub fn open(options: CacheOptions) -> Result<ProgramCache, CacheError> {
        let layout = Layout::new(&options.root);
        let off = Opened { mode: Mode::Off, is_shared: false };
        let Opened { mode, is_shared } = if options.mode == Mode::Off { off } else { open_root(&options, &layout)? };
        let files = (mode != Mode::Off).then(|| Files {
            disk: Arc::clone(&options.disk),
            layout: layout.clone(),
            // What cannot be told is treated with more care; so are files that others could change under a mapping after
            // their signature was checked.
            is_network: (is_shared && options.sign.require.is_some())
                || options.disk.is_network(&options.root).unwrap_or(true),
            is_writable: mode.writes(),
        });
        let weights = WeightStore::new(files, Arc::clone(&options.events));
        let remote = match (&options.remote, mode) {
            (None, _) | (_, Mode::Off) => None,
            (Some(remote), _) => Some(Remote::open(remote, options.store.clone())?),
        };
        Ok(ProgramCache {
            mode,
            layout,
            weights,
            memory: Memory::default(),
            room: Room::default(),
            remote,
            flights: Flights::default(),
            compiling: RwLock::default(),
            tuning_memory: Mutex::default(),
            is_unlocked_reported: AtomicBool::new(false),
            options,
        })
    }

    /// The mode in force.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The constants of the cache: what a compile puts into and a Device loads from.
    pub fn store(&self) -> &WeightStore {
        &self.weights
    }

    /// The key of a record, as this cache files it.
    pub fn key(&self, record: &KeyRecord) -> ProgramKey {
        Wanted::new(record, self.options.digest_bits).key
    }

    /// The Program, if there is one. Never compiles.
    pub fn probe(&self, record: &KeyRecord) -> Result<Arc<Program>, Miss> {
        let wanted = Wanted::new(record, self.options.digest_bits);
        if let Some(program) = self.memory.get(&wanted) {
            return Ok(program);
        }
        let miss = match self.mode {
            Mode::Off | Mode::Refresh => return Err(Miss::absent()),
            Mode::ReadWrite | Mode::ReadOnly | Mode::LookupOnly => match self.load(&wanted) {
                Ok(program) => return Ok(program),
                Err(miss) => miss,
            },
        };
        self.fetch(&wanted).ok_or_else(|| self.explained(&wanted, miss))
    }

    /// The Program, made by `make` if no tier has it. Of all callers in all processes that want the same Program, one
    /// makes it. A panic in `make` is the caller's; others go on.
    pub fn get_or<M, E>(&self, record: &KeyRecord, make: impl FnOnce() -> Result<M, E>) -> Result<Fetched, GetError<E>>
    where
        M: Into<Compiled>,
        E: Any + Send + Sync,
    {
        let wanted = Wanted::new(record, self.options.digest_bits);
        let started = Instant::now();
        loop {
            if let Some(program) = self.memory.get(&wanted) {
                return Ok(Fetched { program, origin: Origin::Memory, miss: None, lock_wait: Duration::ZERO });
            }
            match self.flights.enter(&wanted) {
                Seat::Landed(program) => {
                    let lock_wait = started.elapsed();
                    return Ok(Fetched { program, origin: Origin::Memory, miss: None, lock_wait });
                }
                Seat::Failed(error) => {
                    // Another caller's compiler may have another type of errors; then this one tries itself.
                    if let Ok(error) = error.downcast::<E>() {
                        return Err(GetError::Make(error));
                    }
                }
                Seat::Leader(leader) => {
                    let result = self.lead(&wanted, make);
                    match &result {
                        Ok(fetched) => leader.land(&fetched.program),
                        Err(GetError::Make(error)) => leader.fail(Arc::clone(error) as Arc<dyn Any + Send + Sync>),
                        Err(GetError::Missing(_)) => drop(leader),
                    }
                    return result;
                }
            }
        }
    }

    /// Gives up a Program that came from here whole and that no device loads, for this reason: it is moved to quarantine,
    /// so that the next request for it compiles.
    pub fn discard(&self, record: &KeyRecord, reason: &str) {
        let wanted = Wanted::new(record, self.options.digest_bits);
        self.memory.forget(&wanted);
        let miss = Miss::corrupt("program", "a Program that loads", reason);
        self.quarantine_program(&self.layout.program(&wanted.key), &wanted.key.to_string(), &miss);
    }

    /// Lets go of Programs in memory that nobody uses, and of their constants.
    pub fn trim(&self) {
        let named = self.memory.trim();
        // While something compiles, only constants that can be read again are let go.
        let alone = self.compiling.try_write();
        self.weights.retain(&named, if alone.is_ok() { Unnamed::AllGo } else { Unnamed::MappedGo });
    }

    /// Programs in memory.
    pub fn resident_programs(&self) -> usize {
        self.memory.len()
    }

    /// Brings the Program into memory, on behalf of all threads that want it.
    fn lead<M: Into<Compiled>, E>(
        &self,
        wanted: &Wanted,
        make: impl FnOnce() -> Result<M, E>,
    ) -> Result<Fetched, GetError<E>> {
        let found = |program, origin| Fetched { program, origin, miss: None, lock_wait: Duration::ZERO };
        // Between looking and leading, the last leader may have landed.
        if let Some(program) = self.memory.get(wanted) {
            return Ok(found(program, Origin::Memory));
        }
        let (mut miss, mut held, mut lock_wait) = (Miss::absent(), None, Duration::ZERO);
        if matches!(self.mode, Mode::ReadWrite | Mode::ReadOnly | Mode::LookupOnly) {
            match self.load_told(wanted) {
                Ok(program) => return Ok(found(program, Origin::Disk)),
                Err(reason) => miss = reason,
            }
        }
        // A collision is settled in memory: there is nothing on disk to wait for.
        if self.mode.writes() && !matches!(miss, Miss::Incompatible { .. }) {
            let started = Instant::now();
            let acquired = self.lock_key(wanted);
            lock_wait = started.elapsed();
            match acquired {
                Acquired::Appeared(program) => {
                    return Ok(Fetched { lock_wait, miss: Some(miss), ..found(program, Origin::Disk) });
                }
                Acquired::Held(lock) => held = Some(lock),
                Acquired::Without(reason) => self.report_unlocked(reason),
            }
            // Whoever held the lock before may have published.
            let is_filed = self.mode != Mode::Refresh && self.is_filed(wanted);
            if let Some(program) = is_filed.then(|| self.load_told(wanted).ok()).flatten() {
                return Ok(Fetched { lock_wait, miss: Some(miss), ..found(program, Origin::Disk) });
            }
        }
        let may_fetch = self.mode != Mode::Refresh;
        if let Some(program) = may_fetch.then(|| self.fetch(wanted)).flatten() {
            return Ok(Fetched { lock_wait, miss: Some(miss), ..found(program, Origin::Remote) });
        }
        let miss = self.explained(wanted, miss);
        if self.mode == Mode::LookupOnly {
            return Err(GetError::Missing(miss));
        }
        self.compile(wanted, make, miss, lock_wait, held)
    }

    /// Makes the Program and hands it to every tier.
    fn compile<M: Into<Compiled>, E>(
        &self,
        wanted: &Wanted,
        make: impl FnOnce() -> Result<M, E>,
        miss: Miss,
        lock_wait: Duration,
        held: Option<Held>,
    ) -> Result<Fetched, GetError<E>> {
        let lease = match self.lease(wanted) {
            Ok(lease) => lease,
            Err(program) => {
                return Ok(Fetched { program, origin: Origin::Remote, miss: Some(miss), lock_wait });
            }
        };
        let _compiling = self.compiling.read().unwrap_or_else(PoisonError::into_inner);
        let started = Instant::now();
        let compiled: Compiled = make().map_err(|error| GetError::Make(Arc::new(error)))?.into();
        let compile_time = started.elapsed();
        let mut may_publish = self.mode.writes() && !matches!(miss, Miss::Incompatible { .. });
        if let Miss::Incompatible { field, want, have } = &miss {
            self.event(Event::incompatible(wanted.key, field, want, have));
        }
        if may_publish && !self.options.sign.accepts_own() {
            may_publish = false;
            let reason = "signatures are required, and no accepted key signs here".to_string();
            self.event(Event::Unsigned { key: wanted.key, reason });
        }
        let winner = if may_publish { self.publish_compiled(wanted, &compiled, compile_time, lease) } else { None };
        drop(held);
        let program = winner.unwrap_or_else(|| self.memory.keep(wanted, compiled.program));
        Ok(Fetched { program, origin: Origin::Compiled, miss: Some(miss), lock_wait })
    }

    /// Waits for the lock of the key, or for the entry to appear.
    fn lock_key(&self, wanted: &Wanted) -> Acquired<Arc<Program>> {
        let mut is_told = false;
        let look = |holder: &str| {
            if !is_told {
                is_told = true;
                self.event(Event::Waiting { key: wanted.key, holder: holder.to_string() });
            }
            let may_load = self.mode != Mode::Refresh && self.is_filed(wanted);
            may_load.then(|| self.load(wanted).ok()).flatten()
        };
        lock::acquire(&self.options.disk, self.layout.lock(&wanted.key), self.lock_timeout(wanted), look)
    }

    pub(crate) fn lock_timeout(&self, wanted: &Wanted) -> Duration {
        let recorded = || self.stamp(&wanted.key.to_string()).and_then(|stamp| stamp.compile_ms);
        let doubled = || Duration::from_millis(recorded().unwrap_or(0).saturating_mul(2)).max(LOCK_TIMEOUT_LEAST);
        self.options.lock_timeout.unwrap_or_else(doubled)
    }

    /// Says once that locks do not work.
    pub(crate) fn report_unlocked(&self, reason: String) {
        if !self.is_unlocked_reported.swap(true, Ordering::Relaxed) {
            self.event(Event::Unlocked { reason });
        }
    }

    /// The miss with its nearest entry.
    fn explained(&self, wanted: &Wanted, miss: Miss) -> Miss {
        match miss {
            Miss::Absent { nearest: None } if self.mode != Mode::Off => Miss::Absent { nearest: self.nearest(wanted) },
            other => other,
        }
    }

    pub(crate) fn event(&self, event: Event) {
        (self.options.events)(&event);
    }
}

/// A root that was looked at.
struct Opened {
    /// The mode in force.
    mode: Mode,
    /// Whether others may write it.
    is_shared: bool,
}

/// Checks who may write the root, makes what is missing, sweeps.
fn open_root(options: &CacheOptions, layout: &Layout) -> Result<Opened, CacheError> {
    let disk: &dyn Disk = &*options.disk;
    let report = |error: &crate::disk::DiskError| (options.events)(&Event::unavailable("opening the cache", error));
    if options.mode.writes() {
        // A root that cannot be made is a cache that never hits.
        let made = disk.make_dir(layout.root());
        made.unwrap_or_else(|error| report(&error));
    }
    // Where signatures are required it does not matter who writes (spec C22).
    let is_trusted = options.trust_shared || options.sign.require.is_some();
    let mut is_shared = false;
    match layout.stranger(disk) {
        Ok(Some(reason)) if !is_trusted => {
            return Err(CacheError::Untrusted { path: layout.root().to_path_buf(), reason });
        }
        Ok(Some(reason)) => {
            is_shared = true;
            (options.events)(&Event::SharedRoot { reason });
        }
        Ok(None) => {}
        Err(error) if options.mode == Mode::LookupOnly => return Err(error.into()),
        // Who may write is unknown, so nothing from there is run.
        Err(error) => {
            report(&error);
            return Ok(Opened { mode: Mode::Off, is_shared });
        }
    }
    let mut found = None;
    match layout.version(disk) {
        Ok(Some(version)) if version > LAYOUT => {
            (options.events)(&Event::NewerLayout { version });
            let mode = if options.mode == Mode::LookupOnly { Mode::LookupOnly } else { Mode::ReadOnly };
            return Ok(Opened { mode, is_shared });
        }
        Ok(version) => found = version,
        Err(CacheError::Disk(error)) => report(&error),
        Err(other) => return Err(other),
    }
    if options.mode.writes() {
        let prepared =
            layout.create(disk, found).and_then(|()| publish::sweep(disk, layout, options.orphan_age).map(drop));
        prepared.unwrap_or_else(|error| report(&error));
    }
    Ok(Opened { mode: options.mode, is_shared })
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod fault_tests;
#[cfg(test)]
#[path = "process_tests.rs"]
mod process_tests;
#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
