//! What one run did, and how often each thing has been done.

use std::sync::atomic::{AtomicU64, Ordering};

use precast_program::{DeviceRun, LaunchPath};

/// How much had to be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// The request was like the context's last one.
    UltraFast,
    /// The Program was loaded.
    Fast,
    /// The Program had to be loaded or compiled, or something else answered.
    Standard,
}

/// What answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// A Program's steps.
    Launch,
    /// Reference evaluation.
    Reference,
}

/// How the request fitted its Buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// One Bucket of its size.
    Exact,
    /// One larger Bucket.
    Padded,
    /// Several Buckets.
    Split,
}

/// Where the Program came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was loaded before.
    Warm,
    /// From the cache's files.
    Loaded,
    /// It was compiled for this request.
    Compiled,
    /// From a remote store.
    Fetched,
}

/// Why a run was not of the tier above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Nothing slowed it down.
    None,
    /// The context had not seen a request like this one.
    FirstOnContext,
    /// The Session made the output buffers.
    OwnedOutputs,
    /// The bytes of an input were not aligned for its element type, so they were copied.
    Alignment,
    /// Programs were added or measured since the context last saw a request like this one.
    Epoch,
    /// Its Program was not loaded.
    Miss,
    /// Its Program was not loaded, and larger Buckets answered.
    PadUp,
    /// Its Program was not loaded, and reference evaluation answered.
    Reference,
    /// It has no rows, so nothing ran.
    Empty,
}

impl Reason {
    /// Every reason, in the order in which they are counted.
    pub const ALL: [Reason; 9] = [
        Reason::None,
        Reason::FirstOnContext,
        Reason::OwnedOutputs,
        Reason::Alignment,
        Reason::Epoch,
        Reason::Miss,
        Reason::PadUp,
        Reason::Reference,
        Reason::Empty,
    ];

    /// The word in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Reason::None => "none",
            Reason::FirstOnContext => "first-on-context",
            Reason::OwnedOutputs => "owned-outputs",
            Reason::Alignment => "alignment",
            Reason::Epoch => "epoch",
            Reason::Miss => "miss",
            Reason::PadUp => "pad-up",
            Reason::Reference => "reference",
            Reason::Empty => "empty",
        }
    }
}

/// A Bucket that a run used, along the dim that is split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Extent of the Bucket.
    pub bucket: i64,
    /// Rows of the request in it.
    pub rows: i64,
}

/// Chunks that a report names one by one.
const CHUNKS_NAMED: usize = 8;

/// Buckets of a run in order: the first few by themselves, all of them in sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunks {
    named: [Chunk; CHUNKS_NAMED],
    len: usize,
    total: Chunk,
}

impl Chunks {
    /// Buckets in the order in which they run.
    pub fn new(chunks: impl IntoIterator<Item = Chunk>) -> Chunks {
        let mut all = Chunks::default();
        for chunk in chunks {
            if let Some(place) = all.named.get_mut(all.len) {
                *place = chunk;
            }
            all.len += 1;
            all.total.bucket += chunk.bucket;
            all.total.rows += chunk.rows;
        }
        all
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing ran.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first few.
    pub fn named(&self) -> &[Chunk] {
        &self.named[..self.len.min(CHUNKS_NAMED)]
    }

    /// Extents and rows of all together.
    pub fn total(&self) -> Chunk {
        self.total
    }
}

/// What one run did. Of fixed size: making one allocates nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunReport {
    /// How much had to be decided.
    pub tier: Tier,
    /// What answered.
    pub path: Path,
    /// How the request fitted.
    pub fit: Fit,
    /// Where the Program came from.
    pub origin: Origin,
    /// Why it was not of the tier above.
    pub reason: Reason,
    /// Buckets in order; one with the request's own size where nothing is bucketed.
    pub chunks: Chunks,
    /// Whether the choice of Buckets rests on estimated costs.
    pub is_cost_estimated: bool,
    /// Bytes copied into padded buffers and out of them.
    pub copied_bytes: u64,
    /// How the device carried it out; of several Buckets, the most costly way.
    pub device: DeviceRun,
}

impl RunReport {
    /// Rows that were computed for nothing.
    pub fn pad_rows(&self) -> i64 {
        self.chunks.total.bucket - self.chunks.total.rows
    }
}

/// How often each thing has been done since the Session was opened.
#[derive(Debug, Default)]
pub struct Counters {
    tiers: [AtomicU64; 3],
    reasons: [AtomicU64; Reason::ALL.len()],
    fits: [AtomicU64; 3],
    replayed: AtomicU64,
    captured: AtomicU64,
    errors: AtomicU64,
    rows: AtomicU64,
    pad_rows: AtomicU64,
    chunks: AtomicU64,
    compiles: AtomicU64,
    failures: AtomicU64,
    loads: AtomicU64,
    device_loads: AtomicU64,
    context_waits: AtomicU64,
}

impl Counters {
    pub(crate) fn count(&self, report: &RunReport) {
        let add = |counter: &AtomicU64, amount: i64| counter.fetch_add(amount.max(0) as u64, Ordering::Relaxed);
        add(&self.tiers[report.tier as usize], 1);
        add(&self.reasons[report.reason as usize], 1);
        add(&self.fits[report.fit as usize], 1);
        let _ = match report.device.launch {
            LaunchPath::Replayed => add(&self.replayed, 1),
            LaunchPath::Captured => add(&self.captured, 1),
            LaunchPath::Steps(_) => 0,
        };
        add(&self.rows, report.chunks.total.rows);
        add(&self.pad_rows, report.pad_rows());
        add(&self.chunks, report.chunks.len as i64);
    }

    pub(crate) fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_compile(&self) {
        self.compiles.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_load(&self) {
        self.loads.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_device_load(&self) {
        self.device_loads.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_context_wait(&self) {
        self.context_waits.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests that have come to an end, in an answer or an error.
    pub fn requests(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.load(Ordering::Relaxed)).sum::<u64>() + self.errors()
    }

    /// Runs of a tier.
    pub fn runs(&self, tier: Tier) -> u64 {
        self.tiers[tier as usize].load(Ordering::Relaxed)
    }

    /// Runs for a reason.
    pub fn reasons(&self, reason: Reason) -> u64 {
        self.reasons[reason as usize].load(Ordering::Relaxed)
    }

    /// Runs of a fit.
    pub fn fits(&self, fit: Fit) -> u64 {
        self.fits[fit as usize].load(Ordering::Relaxed)
    }

    /// Runs that were replayed from a capture, and runs that made one.
    pub fn captures(&self) -> (u64, u64) {
        (self.replayed.load(Ordering::Relaxed), self.captured.load(Ordering::Relaxed))
    }

    /// Requests that ended in an error.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Rows that requests had, and rows that were padded to them.
    pub fn rows(&self) -> (u64, u64) {
        (self.rows.load(Ordering::Relaxed), self.pad_rows.load(Ordering::Relaxed))
    }

    /// Buckets that were run.
    pub fn chunks(&self) -> u64 {
        self.chunks.load(Ordering::Relaxed)
    }

    /// Programs compiled.
    pub fn compiles(&self) -> u64 {
        self.compiles.load(Ordering::Relaxed)
    }

    /// Programs that could not be compiled, fetched or loaded, in the background or for a request.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Programs that came from the cache.
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    /// Programs loaded on a device, each device by itself.
    pub fn device_loads(&self) -> u64 {
        self.device_loads.load(Ordering::Relaxed)
    }

    /// Requests that had to wait for a context.
    pub fn context_waits(&self) -> u64 {
        self.context_waits.load(Ordering::Relaxed)
    }
}
