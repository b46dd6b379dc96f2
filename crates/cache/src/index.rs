//! What is known about entries beside their bytes: when they were last used, how long they took to compile, which are
//! of one model, which are pinned. Advisory: losing any of it (but pins) costs a worse choice, never a wrong answer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use precast_tensor::Digest;
use serde::{Deserialize, Serialize};

use crate::artifact::{self, Wanted};
use crate::cache::ProgramCache;
use crate::disk::{Answer, DiskError};
use crate::key::ProgramKey;
use crate::layout::PROGRAM_ENDING;
use crate::miss::{Event, Nearest};
use crate::publish;

/// Stamps are written at most this often: a use that nobody could evict in between is not worth a write.
const STAMP_EVERY: Duration = Duration::from_secs(3600);
/// Manifests that a miss reads at most to find its nearest entry; `why` reads all.
const NEAREST_MAX: usize = 64;

/// Stamp of one entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    /// Last use, in seconds since 1970.
    pub(crate) used_s: u64,
    /// Time it took to compile.
    pub(crate) compile_ms: Option<u64>,
}

impl Stamp {
    pub(crate) fn last_use(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.used_s)
    }
}

impl ProgramCache {
    /// The stamp of an entry, if it has one that can be read.
    pub(crate) fn stamp(&self, key: &str) -> Option<Stamp> {
        let bytes = self.options.disk.read(&self.layout.use_stamp(key)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Notes a use, at most once an hour.
    pub(crate) fn touch(&self, key: &ProgramKey) {
        let name = key.to_string();
        let stamp = self.stamp(&name).unwrap_or_default();
        if self.mode.writes() && now_s().saturating_sub(stamp.used_s) >= STAMP_EVERY.as_secs() {
            self.write_stamp(&name, Stamp { used_s: now_s(), ..stamp });
        }
    }

    /// Notes a new entry.
    pub(crate) fn enter_index(&self, wanted: &Wanted, compile_time: Option<Duration>) {
        let name = wanted.key.to_string();
        let compile_ms = compile_time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self.write_stamp(&name, Stamp { used_s: now_s(), compile_ms });
        for parent in [&wanted.record.graph, &wanted.record.weights] {
            let marked = self.mark_lineage(parent, &name);
            marked.unwrap_or_else(|error| self.event(Event::unavailable("indexing", &error)));
        }
    }

    fn write_stamp(&self, name: &str, stamp: Stamp) {
        let path = self.layout.use_stamp(name);
        let text = serde_json::to_vec(&stamp).unwrap_or_default();
        let written = publish::write_advisory(&*self.options.disk, &self.layout, &path, &text);
        written.unwrap_or_else(|error| self.event(Event::unavailable("stamping", &error)));
    }

    fn mark_lineage(&self, parent: &Digest, name: &str) -> Result<(), DiskError> {
        let (disk, dir) = (&self.options.disk, self.layout.lineage(parent));
        disk.make_dir(&dir)?;
        match disk.create(&dir.join(name)) {
            Err(error) if error.source.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// The entry of the same graph or the same weights that differs in the fewest fields.
    pub(crate) fn nearest(&self, wanted: &Wanted) -> Option<Nearest> {
        let parents = [&wanted.record.graph, &wanted.record.weights];
        let list = |parent| self.seen(self.options.disk.list(&self.layout.lineage(parent)));
        let lists = parents.into_iter().filter_map(list);
        let names = lists.flatten().map(|stat| stat.name).take(NEAREST_MAX);
        self.nearest_of(wanted, names)
    }

    /// An answer that the nearest entry is looked for with; one that is not there is nothing to tell.
    fn seen<T>(&self, answer: Answer<T>) -> Option<T> {
        if let Err(error) = &answer
            && !error.is_not_found()
        {
            self.event(Event::unavailable("looking for the nearest entry", error));
        }
        answer.ok()
    }

    /// Of these entries the one that differs in the fewest fields. What cannot be read is passed over.
    pub(crate) fn nearest_of(&self, wanted: &Wanted, names: impl Iterator<Item = String>) -> Option<Nearest> {
        let entries = names.filter_map(|name| {
            let bytes = self.seen(self.options.disk.read(&self.program_path(&name)?))?;
            let opened = artifact::open(&bytes).ok()?;
            let have = opened.manifest.record().ok()?;
            let key = Wanted::new(&have, wanted.bits).key;
            Some(Nearest { key, differing: wanted.record.diff(&have) })
        });
        entries.filter(|near| !near.differing.is_empty()).min_by_key(|near| (near.differing.len(), near.key))
    }

    /// The path of an entry by its name in the index; nothing if that is no name of an entry.
    pub(crate) fn program_path(&self, name: &str) -> Option<std::path::PathBuf> {
        let is_key = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_key.then(|| self.layout.dir("programs").join(&name[..2]).join(format!("{name}{PROGRAM_ENDING}")))
    }
}

pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
