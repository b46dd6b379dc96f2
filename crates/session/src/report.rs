//! What one run did, and how often each thing has been done.

use std::sync::atomic::{AtomicU64, Ordering};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nothing slowed it down.
    None,
    /// The context had not seen a request like this one.
    FirstOnContext,
    /// Its Program was not loaded.
    Miss,
    /// Reference evaluation was asked for on a miss.
    Reference,
}

/// A Bucket that a run used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Extent of the Bucket.
    pub bucket: i64,
    /// Rows of the request in it.
    pub rows: i64,
}

/// What one run did.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub chunks: Vec<Chunk>,
}

impl RunReport {
    /// Rows that were computed for nothing.
    pub fn pad_rows(&self) -> i64 {
        self.chunks.iter().map(|chunk| chunk.bucket - chunk.rows).sum()
    }
}

/// How often each thing has been done since the Session was opened.
#[derive(Debug, Default)]
pub struct Counters {
    ultra_fast: AtomicU64,
    fast: AtomicU64,
    standard: AtomicU64,
    rows: AtomicU64,
    pad_rows: AtomicU64,
    compiles: AtomicU64,
}

impl Counters {
    pub(crate) fn count(&self, report: &RunReport) {
        let tier = match report.tier {
            Tier::UltraFast => &self.ultra_fast,
            Tier::Fast => &self.fast,
            Tier::Standard => &self.standard,
        };
        tier.fetch_add(1, Ordering::Relaxed);
        let rows: i64 = report.chunks.iter().map(|chunk| chunk.rows).sum();
        self.rows.fetch_add(rows.max(0) as u64, Ordering::Relaxed);
        self.pad_rows.fetch_add(report.pad_rows().max(0) as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_compile(&self) {
        self.compiles.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs of a tier.
    pub fn runs(&self, tier: Tier) -> u64 {
        match tier {
            Tier::UltraFast => self.ultra_fast.load(Ordering::Relaxed),
            Tier::Fast => self.fast.load(Ordering::Relaxed),
            Tier::Standard => self.standard.load(Ordering::Relaxed),
        }
    }

    /// Rows that requests had, and rows that were padded to them.
    pub fn rows(&self) -> (u64, u64) {
        (self.rows.load(Ordering::Relaxed), self.pad_rows.load(Ordering::Relaxed))
    }

    /// Programs compiled.
    pub fn compiles(&self) -> u64 {
        self.compiles.load(Ordering::Relaxed)
    }
}
