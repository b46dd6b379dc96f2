//! Why the cache did not answer (`Miss`), why it could not be opened (`CacheError`), and what it wants people to know
//! (`Event`). A miss is classed, never swallowed (spec C17).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use precast_tensor::Digest;

use crate::disk::DiskError;
use crate::key::{FieldDiff, ProgramKey};

/// Why there is no Program for a KeyRecord.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miss {
    /// Nothing is filed under the key.
    Absent {
        /// The entry of the same graph or weights that differs in the fewest fields.
        nearest: Option<Nearest>,
    },
    /// Something is there, whole, but it is not what was asked for, or does not run here.
    Incompatible {
        /// Which field.
        field: String,
        /// What was asked for.
        want: String,
        /// What is there.
        have: String,
    },
    /// Something is there and damaged. It is quarantined.
    Corrupt {
        /// Which part of which file.
        section: String,
        /// What should be there.
        expected: String,
        /// What is there.
        got: String,
    },
    /// The file system or the store did not answer. Nothing is known about the entry.
    Unavailable {
        /// Which call.
        call: String,
        /// Number of the system's error, if there is one.
        errno: Option<i32>,
        /// What the system said.
        message: String,
    },
}

/// The entry nearest to an absent one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// Its key.
    pub key: ProgramKey,
    /// Fields in which it differs.
    pub differing: Vec<FieldDiff>,
}

impl Miss {
    /// Nothing there, and nothing near.
    pub(crate) fn absent() -> Miss {
        Miss::Absent { nearest: None }
    }

    pub(crate) fn corrupt(section: impl Into<String>, expected: impl fmt::Display, got: impl fmt::Display) -> Miss {
        Miss::Corrupt { section: section.into(), expected: expected.to_string(), got: got.to_string() }
    }

    pub(crate) fn incompatible(diff: FieldDiff) -> Miss {
        Miss::Incompatible { field: diff.field, want: diff.want, have: diff.have }
    }

    /// The class, as metrics name it.
    pub fn class(&self) -> &'static str {
        match self {
            Miss::Absent { .. } => "absent",
            Miss::Incompatible { .. } => "incompatible",
            Miss::Corrupt { .. } => "corrupt",
            Miss::Unavailable { .. } => "unavailable",
        }
    }
}

impl From<DiskError> for Miss {
    fn from(error: DiskError) -> Miss {
        if error.is_not_found() {
            return Miss::absent();
        }
        Miss::Unavailable { call: error.call.name().to_string(), errno: error.errno(), message: error.to_string() }
    }
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Miss::Absent { nearest: None } => f.write_str("absent: no entry is near"),
            Miss::Absent { nearest: Some(nearest) } => {
                let fields: Vec<String> = nearest.differing.iter().map(FieldDiff::to_string).collect();
                write!(f, "absent: the nearest entry {:.12} differs in {}", nearest.key.to_string(), fields.join("; "))
            }
            Miss::Incompatible { field, want, have } => write!(f, "incompatible {field}: want {want}, have {have}"),
            Miss::Corrupt { section, expected, got } => {
                write!(f, "corrupt {section}: expected {expected}, got {got}")
            }
            Miss::Unavailable { message, .. } => write!(f, "unavailable: {message}"),
        }
    }
}

/// Why a cache cannot be opened or managed.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// Others could write code that this process would run (spec C22).
    #[error(
        "cache root {}: {reason}; whoever writes here runs code in this process. Choose a private directory or set \
         cache.trust_shared=true, or require signatures",
        path.display()
    )]
    Untrusted {
        /// The directory.
        path: PathBuf,
        /// Who may write.
        reason: String,
    },
    /// A key for signatures cannot be read.
    #[error("cache signing: {reason}")]
    Key {
        /// Why.
        reason: String,
    },
    /// The directory is not a cache, or not one that this build reads.
    #[error("cache root {}: {reason}", path.display())]
    Layout {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The file system refused.
    #[error("cache: {0}")]
    Disk(#[from] DiskError),
    /// The mode forbids writing.
    #[error("cache: {action} writes, and the cache is opened {mode}")]
    ReadOnly {
        /// What was asked for.
        action: &'static str,
        /// The mode.
        mode: &'static str,
    },
    /// No entry, or several, start with these hex digits.
    #[error("cache: {found} entries have a key that starts with '{prefix}'; one was expected")]
    NotOneEntry {
        /// The digits.
        prefix: String,
        /// How many there are.
        found: usize,
    },
    /// An entry cannot be read.
    #[error("cache entry {name}: {miss}")]
    Entry {
        /// File name of the entry.
        name: String,
        /// Why.
        miss: Miss,
    },
    /// The lock of a whole-cache operation is held by others.
    #[error("cache: {what} is busy; try again when the other process is done")]
    Busy {
        /// The lock.
        what: &'static str,
    },
    /// The remote tier is not configured, or cannot be.
    #[error("cache remote '{url}': {reason}")]
    Remote {
        /// Where.
        url: String,
        /// Why.
        reason: String,
    },
}

/// Why `get_or` gave no Program.
#[derive(Debug, thiserror::Error)]
pub enum GetError<E> {
    /// Compiling failed. Callers that waited for the same compile share the error.
    #[error("{0}")]
    Make(Arc<E>),
    /// The mode is lookup-only and the Program is not there.
    #[error("cache.mode=lookup-only: {0}")]
    Missing(Miss),
}

/// Something that people should know and that no request depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call failed; the request was served without it.
    Unavailable {
        /// What the cache was doing.
        doing: &'static str,
        /// The failed call.
        call: String,
        /// Number of the system's error.
        errno: Option<i32>,
        /// What the system said.
        message: String,
    },
    /// Locks do not work here; compiles may happen twice. Said once.
    Unlocked {
        /// Why.
        reason: String,
    },
    /// A damaged entry was moved away.
    Quarantined {
        /// Its file name.
        name: String,
        /// What was wrong.
        miss: Miss,
    },
    /// Two KeyRecords have one key; the new Program stays in memory.
    Collision {
        /// The key.
        key: ProgramKey,
        /// First field that differs.
        field: String,
    },
    /// A Program lacks the signature that is required: what is filed is not loaded, or what was compiled is not filed.
    Unsigned {
        /// Its key.
        key: ProgramKey,
        /// Why.
        reason: String,
    },
    /// The disk is full; publishing pauses.
    Full {
        /// For how many seconds.
        pause_s: u64,
    },
    /// Entries were evicted to stay below `max_bytes`.
    Evicted {
        /// Programs removed.
        programs: usize,
        /// Bytes freed.
        bytes: u64,
    },
    /// The root was written by a newer Precast; it is only read.
    NewerLayout {
        /// Its layout version.
        version: u32,
    },
    /// The root may be written by others and was trusted because the operator said so.
    SharedRoot {
        /// Who may write.
        reason: String,
    },
    /// The upload queue is full; a Program was not uploaded.
    UploadDropped {
        /// Its key.
        key: ProgramKey,
    },
    /// Compiling waits for another process.
    Waiting {
        /// The key.
        key: ProgramKey,
        /// What the holder wrote about itself.
        holder: String,
    },
    /// A constant is in memory only; Programs that name it are not published.
    Unstored {
        /// Its digest.
        constant: Digest,
        /// Why.
        reason: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Unavailable { doing, message, .. } => write!(f, "cache: {doing}: {message}"),
            Event::Unlocked { reason } => write!(f, "cache: going on without locks: {reason}"),
            Event::Quarantined { name, miss } => write!(f, "cache: {name} moved to quarantine: {miss}"),
            Event::Collision { key, field } => {
                write!(f, "cache: key {key} also belongs to a record with other {field}")
            }
            Event::Unsigned { key, reason } => write!(f, "cache: {key} stays in memory: {reason}"),
            Event::Full { pause_s } => write!(f, "cache: the disk is full; nothing is published for {pause_s} s"),
            Event::Evicted { programs, bytes } => write!(f, "cache: evicted {programs} Programs, {bytes} bytes"),
            Event::NewerLayout { version } => {
                write!(f, "cache: layout {version} is newer than this build; only reading")
            }
            Event::SharedRoot { reason } => write!(f, "cache: trusting a shared root: {reason}"),
            Event::UploadDropped { key } => write!(f, "cache: upload queue full; {key} not uploaded"),
            Event::Waiting { key, holder } => write!(f, "cache: waiting for the compile of {key} by {holder}"),
            Event::Unstored { constant, reason } => write!(f, "cache: constant {constant} not stored: {reason}"),
        }
    }
}

impl Event {
    /// What is filed under a key is whole and not for us.
    pub(crate) fn incompatible(key: ProgramKey, field: &str, want: &str, have: &str) -> Event {
        match field {
            "signature" => Event::Unsigned { key, reason: format!("the filed one has a signature {have}, not {want}") },
            field => Event::Collision { key, field: field.to_string() },
        }
    }

    pub(crate) fn unavailable(doing: &'static str, error: &DiskError) -> Event {
        let (call, errno, message) = (error.call.name().to_string(), error.errno(), error.to_string());
        Event::Unavailable { doing, call, errno, message }
    }
}
