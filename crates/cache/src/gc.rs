//! Keeping the root below a bound: which Programs go, which constants go with them, and what dead processes left.
//! Unlinking is safe while others read: who has a file open keeps it, who comes later misses (spec C19).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use precast_tensor::Digest;

use crate::cache::ProgramCache;
use crate::disk::{DiskError, LockKind, Stat};
use crate::layout::{Layout, WEIGHT_ENDING};
use crate::lock;
use crate::manage::Entry;
use crate::miss::CacheError;
use crate::publish;

/// How long `gc` waits for publishers to finish.
const WAIT: Duration = Duration::from_secs(10);
/// Constants that no Manifest names are kept this long: a publisher without a lock may be about to name them.
const UNNAMED_AGE: Duration = Duration::from_secs(3600);
/// When the bound is passed, evict to this part of it, so that not every publish evicts.
const LOW_WATER: (u64, u64) = (9, 10);

/// What `gc` is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcOptions {
    /// Bound for everything below the root.
    pub max_bytes: u64,
    /// Entries unused for this long go first, the cheapest to compile again for their size before others.
    pub unused_for: Duration,
    /// Only say what would go.
    pub is_dry_run: bool,
}

/// One thing that went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Name below the root.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Why it went.
    pub reason: Reason,
}

/// Why something went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Unused for long, and cheap to make again.
    Unused,
    /// The least recently used of those in use.
    LeastRecent,
    /// A constant that no Program names any more.
    Unnamed,
}

/// What `gc` did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcReport {
    /// Everything that went, in order.
    pub removed: Vec<Removed>,
    /// Bytes below the root before.
    pub before_bytes: u64,
    /// Bytes freed.
    pub freed_bytes: u64,
}

impl GcReport {
    /// Programs among what went.
    pub fn programs(&self) -> usize {
        self.removed.iter().filter(|removed| removed.reason != Reason::Unnamed).count()
    }
}

impl ProgramCache {
    /// What the cache's own options ask of `gc`.
    pub fn gc_options(&self) -> GcOptions {
        let unused_for = Duration::from_secs(24 * 3600);
        GcOptions { max_bytes: self.options.max_bytes, unused_for, is_dry_run: false }
    }

    /// Evicts until the root is below its bound, and removes what nobody names or holds. Pinned entries stay.
    pub fn gc(&self, options: &GcOptions) -> Result<GcReport, CacheError> {
        if !self.mode.writes() && !options.is_dry_run {
            return Err(CacheError::ReadOnly { action: "gc", mode: self.mode.name() });
        }
        let _alone = if options.is_dry_run { None } else { self.lock_alone()? };
        if !options.is_dry_run {
            publish::sweep(&*self.options.disk, &self.layout, self.options.orphan_age)?;
            publish::trim_quarantine(&*self.options.disk, &self.layout)?;
        }
        let before_bytes = self.bytes()?.total();
        let mut sweep = Sweep { report: GcReport { before_bytes, ..GcReport::default() }, options, cache: self };
        let mut entries = self.ls()?;
        let mut names = names_by_constant(&entries);
        let weights: BTreeMap<Digest, (u64, SystemTime)> = self.weight_files()?;
        let mut packs = self.pack_files()?;
        // Constants that nobody named when this began go by age alone.
        // An artifact that cannot be read may name any of them; then none is called unnamed.
        let is_every_program_read = self.program_files()?.len() == entries.len();
        let now = SystemTime::now();
        let is_old = |modified| now.duration_since(modified).is_ok_and(|age| age >= UNNAMED_AGE);
        for (digest, (bytes, modified)) in &weights {
            if is_old(*modified) && !names.contains_key(digest) && is_every_program_read {
                sweep.remove_weight(digest, *bytes)?;
            }
        }
        for pack in &packs {
            if is_old(pack.modified) && !pack.is_named(&names) && is_every_program_read {
                sweep.remove_pack(pack)?;
            }
        }
        packs.retain(|pack| pack.is_named(&names));
        if before_bytes <= options.max_bytes {
            return self.finish(sweep);
        }
        let goal = options.max_bytes / LOW_WATER.1 * LOW_WATER.0;
        entries.retain(|entry| !entry.is_pinned);
        entries.sort_by(|a, b| rank(a, now, options).total_cmp(&rank(b, now, options)).then(a.key.cmp(&b.key)));
        for entry in entries {
            if before_bytes.saturating_sub(sweep.report.freed_bytes) <= goal {
                break;
            }
            let reason = if is_unused(&entry, now, options) { Reason::Unused } else { Reason::LeastRecent };
            sweep.remove_program(&entry, reason)?;
            for digest in entry.constants.iter().collect::<BTreeSet<_>>() {
                let count = names.entry(*digest).or_default();
                *count = count.saturating_sub(1);
                if let (0, Some((bytes, _))) = (*count, weights.get(digest)) {
                    sweep.remove_weight(digest, *bytes)?;
                }
            }
            // A pack goes with the last Program that names any of its constants.
            for pack in packs.extract_if(.., |pack| !pack.is_named(&names)) {
                sweep.remove_pack(&pack)?;
            }
        }
        self.finish(sweep)
    }

    fn finish(&self, sweep: Sweep<'_>) -> Result<GcReport, CacheError> {
        if !sweep.options.is_dry_run {
            self.remove_free_locks()?;
        }
        Ok(sweep.report)
    }

    /// Where locks do not work `gc` runs without: what it takes from a publisher is missed, never misread.
    fn lock_alone(&self) -> Result<Option<lock::Held>, CacheError> {
        match lock::acquire_within(&*self.options.disk, &self.layout.gc_lock(), LockKind::Exclusive, WAIT) {
            Ok(Some(held)) => Ok(Some(held)),
            Ok(None) => Err(CacheError::Busy { what: "gc.lock" }),
            Err(error) => {
                self.report_unlocked(error.to_string());
                Ok(None)
            }
        }
    }

    pub(crate) fn weight_files(&self) -> Result<BTreeMap<Digest, (u64, SystemTime)>, DiskError> {
        let files = self.sharded("weights")?.into_iter();
        let known = files.filter_map(|file| {
            let digest = file.name.strip_suffix(WEIGHT_ENDING)?.parse().ok()?;
            Some((digest, (file.bytes, file.modified)))
        });
        Ok(known.collect())
    }

    pub(crate) fn pack_files(&self) -> Result<Vec<PackFile>, DiskError> {
        let files = self.sharded("weights")?.into_iter();
        let known = files.filter_map(|Stat { name, bytes, modified, .. }| {
            let (weights, name) = Layout::pack_of(&name)?;
            let constants = self.weights.list_pack(name, &self.layout.pack(&weights, &name));
            Some(PackFile { weights, name, bytes, modified, constants })
        });
        Ok(known.collect())
    }

    /// Removes lock files that nobody holds. Each is removed while held, and only if its name is still its own.
    fn remove_free_locks(&self) -> Result<(), CacheError> {
        let disk = &*self.options.disk;
        for stat in self.flat("locks")? {
            let path = self.layout.dir("locks").join(&stat.name);
            if path == self.layout.gc_lock() {
                continue;
            }
            if let Ok(Ok(_held)) = lock::try_acquire(disk, &path, LockKind::Exclusive) {
                disk.remove(&path)?;
            }
        }
        Ok(())
    }
}

/// A pack of small constants on disk.
pub(crate) struct PackFile {
    /// Digest of the weights of its model.
    pub(crate) weights: Digest,
    pub(crate) name: Digest,
    /// Its constants and their sizes; none where it cannot be read.
    pub(crate) constants: Vec<(Digest, u64)>,
    bytes: u64,
    modified: SystemTime,
}

impl PackFile {
    /// Whether a Program names any of its constants. One that cannot be read may hold any.
    fn is_named(&self, names: &BTreeMap<Digest, usize>) -> bool {
        let is_named = |digest: &Digest| names.get(digest).is_some_and(|&count| count > 0);
        self.constants.is_empty() || self.constants.iter().any(|(digest, _)| is_named(digest))
    }
}

/// A run of `gc` so far.
struct Sweep<'a> {
    report: GcReport,
    options: &'a GcOptions,
    cache: &'a ProgramCache,
}

impl Sweep<'_> {
    fn remove_program(&mut self, entry: &Entry, reason: Reason) -> Result<(), DiskError> {
        let (layout, name) = (&self.cache.layout, entry.key.to_string());
        self.remove(layout.program(&entry.key), entry.program_bytes, reason)?;
        if !self.options.is_dry_run {
            let lineage = [&entry.record.graph, &entry.record.weights].map(|parent| layout.lineage(parent).join(&name));
            for path in lineage.into_iter().chain([layout.use_stamp(&name)]) {
                // Advisory, and perhaps never written.
                let _ = self.cache.options.disk.remove(&path);
            }
        }
        Ok(())
    }

    fn remove_weight(&mut self, digest: &Digest, bytes: u64) -> Result<(), DiskError> {
        self.remove(self.cache.layout.weight(digest), bytes, Reason::Unnamed)
    }

    fn remove_pack(&mut self, pack: &PackFile) -> Result<(), DiskError> {
        self.remove(self.cache.layout.pack(&pack.weights, &pack.name), pack.bytes, Reason::Unnamed)
    }

    fn remove(&mut self, path: PathBuf, bytes: u64, reason: Reason) -> Result<(), DiskError> {
        if !self.options.is_dry_run {
            match self.cache.options.disk.remove(&path) {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        let below = path.strip_prefix(self.cache.layout.root()).unwrap_or(&path);
        self.report.removed.push(Removed { name: below.display().to_string(), bytes, reason });
        self.report.freed_bytes += bytes;
        Ok(())
    }
}

/// How many Programs name each constant.
pub(crate) fn names_by_constant(entries: &[Entry]) -> BTreeMap<Digest, usize> {
    let mut names = BTreeMap::new();
    for entry in entries {
        for digest in entry.constants.iter().collect::<BTreeSet<_>>() {
            *names.entry(*digest).or_default() += 1;
        }
    }
    names
}

fn is_unused(entry: &Entry, now: SystemTime, options: &GcOptions) -> bool {
    // An entry without a stamp was never noted as used.
    entry.last_use.is_none_or(|used| now.duration_since(used).is_ok_and(|age| age >= options.unused_for))
}

/// Order of eviction, lowest first: the unused by compile seconds a byte, all below zero; then the others by last use.
fn rank(entry: &Entry, now: SystemTime, options: &GcOptions) -> f64 {
    if is_unused(entry, now, options) {
        let seconds = entry.compile_time.unwrap_or_default().as_secs_f64();
        let value = seconds / (entry.program_bytes + entry.weights_bytes).max(1) as f64;
        return -1.0 / (1.0 + value);
    }
    let since_epoch = |used: SystemTime| used.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    entry.last_use.map_or(0.0, |used| since_epoch(used).as_secs_f64())
}
