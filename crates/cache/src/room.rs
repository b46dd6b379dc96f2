//! Publishing within bounds: weights before the Program that names them, eviction when the root outgrows `max_bytes`,
//! and a pause when the disk is full (spec C19, C20).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use precast_program::Program;
use precast_tensor::Digest;

use crate::artifact::{self, Compiled, Manifest, Wanted};
use crate::cache::ProgramCache;
use crate::disk::{DiskError, LockKind};
use crate::gc::GcOptions;
use crate::lease::Lease;
use crate::lock;
use crate::miss::{CacheError, Event, Miss};
use crate::options::Mode;
use crate::publish::{self, Existing, Published};
use crate::shelf::Shelf;

/// How long publishing pauses when the disk stays full.
const FULL_PAUSE: Duration = Duration::from_secs(60);
/// How long a publisher waits for a running `gc` before it goes on without the lock.
const GC_WAIT: Duration = Duration::from_secs(5);
/// Up to this many processes that publish at once stay below the bound together: each scans the root again after
/// adding this part of the room it saw.
const PUBLISHERS: u64 = 16;

/// What this process knows about the room that is left.
#[derive(Default)]
pub(crate) struct Room(Mutex<State>);

#[derive(Default)]
struct State {
    paused_until: Option<Instant>,
    /// Room seen at the last scan; nothing before the first.
    seen: Option<u64>,
    added: u64,
}

impl Room {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_paused(&self) -> bool {
        self.lock().paused_until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether it is time to look at the whole root.
    fn is_due(&self) -> bool {
        let state = self.lock();
        state.seen.is_none_or(|seen| state.added >= seen / PUBLISHERS)
    }

    fn scanned(&self, room: u64) {
        let mut state = self.lock();
        (state.seen, state.added) = (Some(room), 0);
    }
}

/// An artifact on its way to the disk.
struct Parcel<'a> {
    wanted: &'a Wanted,
    bytes: &'a [u8],
    /// Sizes of constants, by digest.
    constants: BTreeMap<Digest, u64>,
}

impl ProgramCache {
    /// Publishes what was compiled here, to disk and to the remote store. Gives the Program to use instead, where another
    /// process was first.
    pub(crate) fn publish_compiled(
        &self,
        wanted: &Wanted,
        compiled: &Compiled,
        compile_time: Duration,
        lease: Option<Lease>,
    ) -> Option<Arc<Program>> {
        let sign = &self.options.sign;
        let bytes = match artifact::encode(&wanted.bytes, &compiled.program, &compiled.requires, sign) {
            Ok(bytes) => bytes,
            Err(message) => {
                let (doing, call) = ("encoding", "encode".to_string());
                self.event(Event::Unavailable { doing, call, errno: None, message });
                return None;
            }
        };
        let winner = self.publish_artifact(wanted, &bytes, Some(compile_time));
        if winner.is_none() {
            self.upload(wanted, bytes.into(), &compiled.program, lease);
        }
        winner
    }

    /// Publishes an artifact and its constants on disk. Failing costs time later, nothing now.
    pub(crate) fn publish_artifact(
        &self,
        wanted: &Wanted,
        bytes: &[u8],
        compile_time: Option<Duration>,
    ) -> Option<Arc<Program>> {
        if self.room.is_paused() {
            return None;
        }
        let manifest = artifact::open(bytes).ok()?.manifest;
        let constants = manifest.constants.iter().map(|constant| (constant.digest(), constant.bytes)).collect();
        let parcel = Parcel { wanted, bytes, constants };
        let mut published = self.try_publish(&parcel);
        if let Err(error) = &published
            && error.is_full()
        {
            self.event(Event::unavailable("publishing, evicting once", error));
            self.make_room(&manifest, bytes.len() as u64);
            published = self.try_publish(&parcel);
        }
        match published {
            Ok(Published::New) => {
                self.enter_index(wanted, compile_time);
                self.keep_bound();
                None
            }
            Ok(Published::Lost) => self.take_winner(&parcel, compile_time),
            Err(error) => {
                if error.is_full() {
                    self.room.lock().paused_until = Some(Instant::now() + FULL_PAUSE);
                    self.event(Event::Full { pause_s: FULL_PAUSE.as_secs() });
                }
                self.event(Event::unavailable("publishing", &error));
                None
            }
        }
    }

    /// Another process published first: all use its bytes. If they are damaged ours take their place.
    fn take_winner(&self, parcel: &Parcel<'_>, compile_time: Option<Duration>) -> Option<Arc<Program>> {
        match self.load(parcel.wanted) {
            Ok(program) => Some(program),
            Err(Miss::Corrupt { .. } | Miss::Absent { .. }) => {
                match self.try_publish(parcel) {
                    Ok(_) => self.enter_index(parcel.wanted, compile_time),
                    Err(error) => self.event(Event::unavailable("publishing", &error)),
                }
                None
            }
            Err(Miss::Incompatible { field, want, have }) => {
                self.event(Event::incompatible(parcel.wanted.key, &field, &want, &have));
                None
            }
            Err(Miss::Unavailable { call, errno, message }) => {
                self.event(Event::Unavailable { doing: "loading the winner", call, errno, message });
                None
            }
        }
    }

    /// Weights, then the Program, under the lock that keeps `gc` from taking the weights in between.
    fn try_publish(&self, parcel: &Parcel<'_>) -> Result<Published, DiskError> {
        let disk = &*self.options.disk;
        let _shared = match lock::acquire_within(disk, &self.layout.gc_lock(), LockKind::Shared, GC_WAIT) {
            Ok(held) => held,
            Err(error) => {
                self.report_unlocked(error.to_string());
                None
            }
        };
        let mut shelf = Shelf::new(&self.weights, parcel.wanted.record.weights);
        let mut added = shelf.publish(&parcel.constants)?;
        let existing = if self.mode == Mode::Refresh { Existing::Yields } else { Existing::Keeps };
        let path = self.layout.program(&parcel.wanted.key);
        let published = publish::publish(disk, &self.layout, &path, [parcel.bytes], existing)?;
        if published == Published::New {
            added += parcel.bytes.len() as u64;
        }
        self.room.lock().added += added;
        Ok(published)
    }

    /// Evicts what the new entry needs, once.
    fn make_room(&self, manifest: &Manifest, artifact_bytes: u64) {
        let needed = artifact_bytes + manifest.constants_bytes();
        let total = self.bytes().map(|bytes| bytes.total()).unwrap_or(0);
        let options = GcOptions { max_bytes: total.saturating_sub(needed), ..self.gc_options() };
        self.evict(&options);
    }

    /// Evicts if the root has outgrown its bound.
    fn keep_bound(&self) {
        if !self.room.is_due() {
            return;
        }
        let bytes = match self.bytes() {
            Ok(bytes) => bytes,
            Err(error) => return self.unmeasured(&error),
        };
        let is_over = bytes.total() > self.options.max_bytes;
        let freed_bytes = if is_over { self.evict(&self.gc_options()) } else { 0 };
        let left_bytes = bytes.total().saturating_sub(freed_bytes);
        self.room.scanned(self.options.max_bytes.saturating_sub(left_bytes));
    }

    fn unmeasured(&self, error: &CacheError) {
        let (doing, call, message) = ("measuring the cache", "readdir".to_string(), error.to_string());
        let errno = if let CacheError::Disk(error) = error { error.errno() } else { None };
        self.event(Event::Unavailable { doing, call, errno, message });
    }

    /// Runs `gc` and gives the bytes it freed.
    fn evict(&self, options: &GcOptions) -> u64 {
        match self.gc(options) {
            Ok(report) => {
                if !report.removed.is_empty() {
                    self.event(Event::Evicted { programs: report.programs(), bytes: report.freed_bytes });
                }
                report.freed_bytes
            }
            Err(error) => {
                let (call, message) = ("gc".to_string(), error.to_string());
                self.event(Event::Unavailable { doing: "evicting", call, errno: None, message });
                0
            }
        }
    }
}
