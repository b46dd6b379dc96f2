//! The tuning file: measured choices of tactics, which compiles read and only tuning writes. It is read, merged and renamed
//! into place under a lock of its own, so that processes which tune at once lose nothing. Advisory like a note: what is
//! missing or damaged is measured again or left to the cost model.

use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::Duration;

use precast_program::TuningTable;
use precast_program::tuning::{Damage, VERSION};

use crate::cache::ProgramCache;
use crate::disk::LockKind;
use crate::layout::Layout;
use crate::lock;
use crate::miss::{Event, Miss};
use crate::options::Mode;
use crate::publish::{self, Existing};

/// Folder of the tuning file.
pub(crate) const DIR: &str = "tuning";
/// How long to wait for another process, which reads and writes one small file.
const WAIT: Duration = Duration::from_secs(10);
/// A larger file is not read: it is meant to be small.
const FILE_BYTES_MAX: u64 = 64 << 20;

impl Layout {
    /// The tuning file. Its name has the version, so that builds of two versions do not take it from each other.
    pub fn tuning(&self) -> PathBuf {
        self.dir(DIR).join(tuning_name())
    }

    fn tuning_lock(&self) -> PathBuf {
        self.dir("locks").join("tuning.lock")
    }
}

fn tuning_name() -> String {
    format!("tactics.{VERSION}.txt")
}

impl ProgramCache {
    /// The measured choices of tactics: those of the file, and those that were kept by this process.
    pub fn tuning(&self) -> TuningTable {
        let mut table = self.tuning_memory.lock().unwrap_or_else(PoisonError::into_inner).clone();
        table.merge(&self.tuning_file().0);
        table
    }

    /// Adds measured choices to the file, or keeps them in memory where the cache may not write.
    pub fn keep_tuning(&self, new: &TuningTable) {
        if new.is_empty() {
            return;
        }
        self.tuning_memory.lock().unwrap_or_else(PoisonError::into_inner).merge(new);
        if !self.mode.writes() {
            return;
        }
        let disk = &*self.options.disk;
        // Without a lock records of others may be lost, which costs measuring them again.
        let _held = match lock::acquire_within(disk, &self.layout.tuning_lock(), LockKind::Exclusive, WAIT) {
            Ok(Some(held)) => Some(held),
            Ok(None) => {
                self.report_unlocked(format!("no tuning.lock within {WAIT:?}"));
                None
            }
            Err(error) => {
                self.report_unlocked(error.to_string());
                None
            }
        };
        let mut table = self.tuning_file().0;
        table.merge(new);
        let (path, text) = (self.layout.tuning(), table.to_text());
        let written = publish::publish(disk, &self.layout, &path, [text.as_bytes()], Existing::Yields);
        if let Err(error) = written {
            self.event(Event::unavailable("keeping measured tactics", &error));
        }
    }

    /// The file, and what of it could not be read. A missing one is an empty one.
    pub(crate) fn tuning_file(&self) -> (TuningTable, Damage) {
        let path = self.layout.tuning();
        let nothing = || (TuningTable::default(), Damage::default());
        if self.mode == Mode::Off || self.options.disk.stat(&path).is_ok_and(|stat| stat.bytes > FILE_BYTES_MAX) {
            return nothing();
        }
        match self.options.disk.read(&path) {
            Ok(bytes) => TuningTable::from_text(&String::from_utf8_lossy(&bytes)),
            Err(error) if error.is_not_found() => nothing(),
            Err(error) => {
                self.event(Event::unavailable("reading measured tactics", &error));
                nothing()
            }
        }
    }

    /// What `verify` says of the file; none if it is whole.
    pub(crate) fn tuning_problem(&self) -> Option<(String, Miss)> {
        let (table, Damage { lines, version }) = self.tuning_file();
        let found = match version {
            Some(version) => format!("version {version}"),
            None if lines > 0 => format!("{lines} damaged lines beside {} records", table.len()),
            None => return None,
        };
        Some((format!("{DIR}/{}", tuning_name()), Miss::corrupt("records", format!("version {VERSION}"), found)))
    }
}

#[cfg(test)]
#[path = "tuning_tests.rs"]
mod tests;
