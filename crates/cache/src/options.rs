//! How a ProgramCache is opened. Filled by a door; nothing here reads the environment.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;

use crate::artifact::Provides;
use crate::disk::{Disk, RealDisk};
use crate::key::KEY_BITS;
use crate::miss::Event;
use crate::sign::Signing;

/// What a cache may do with its root (spec C21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Read and write.
    ReadWrite,
    /// Read; no write of any kind: no lock, stamp or quarantine.
    ReadOnly,
    /// Read; a miss is an error.
    LookupOnly,
    /// Compile everything again, and replace what is there.
    Refresh,
    /// Memory only.
    Off,
}

impl Mode {
    /// The word of the option `cache.mode`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::ReadWrite => "rw",
            Mode::ReadOnly => "ro",
            Mode::LookupOnly => "lookup-only",
            Mode::Refresh => "refresh",
            Mode::Off => "off",
        }
    }

    /// Whether the root may be written.
    pub fn writes(self) -> bool {
        match self {
            Mode::ReadWrite | Mode::Refresh => true,
            Mode::ReadOnly | Mode::LookupOnly | Mode::Off => false,
        }
    }
}

impl std::str::FromStr for Mode {
    type Err = String;
    fn from_str(text: &str) -> Result<Mode, String> {
        let modes = [Mode::ReadWrite, Mode::ReadOnly, Mode::LookupOnly, Mode::Refresh, Mode::Off];
        let unknown = || format!("cache.mode '{text}' is unknown; expected rw, ro, lookup-only, refresh or off");
        modes.into_iter().find(|mode| mode.name() == text).ok_or_else(unknown)
    }
}

/// A store that several machines share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteOptions {
    /// `file:///path`; with the feature `cloud` also `s3://`, `gs://`, `az://` and the like.
    pub url: String,
    /// Options of the store by name (region, keys, endpoint). Nothing is taken from the environment.
    pub options: Vec<(String, String)>,
    /// Longest time of one operation.
    pub limit: Duration,
    /// Whether Programs compiled here are uploaded.
    pub upload: bool,
}

impl RemoteOptions {
    /// A store at this address, with uploads and the usual time limit.
    pub fn new(url: impl Into<String>) -> RemoteOptions {
        RemoteOptions { url: url.into(), options: Vec::new(), limit: Duration::from_secs(5), upload: true }
    }
}

/// Who is told about Events.
pub type EventSink = Arc<dyn Fn(&Event) + Send + Sync>;

/// How a ProgramCache is opened.
#[derive(Clone)]
pub struct CacheOptions {
    /// Directory of the cache. Made private if missing; never the working directory by default.
    pub root: PathBuf,
    /// What may be done with it.
    pub mode: Mode,
    /// Bound for everything below the root.
    pub max_bytes: u64,
    /// Longest wait for another process that compiles the same Program; by default twice the time it took before, at
    /// least a minute.
    pub lock_timeout: Option<Duration>,
    /// Accept a root that others may write: they can then run code in this process.
    pub trust_shared: bool,
    /// Who signs, and whose signature is required.
    pub sign: Signing,
    /// What this machine offers to Programs that require something.
    pub provides: Provides,
    /// A store shared with other machines.
    pub remote: Option<RemoteOptions>,
    /// A store in place of the one that `remote` names: the seam for stores that fail on purpose.
    pub store: Option<Arc<dyn ObjectStore>>,
    /// Age at which a temp that nobody locks is an orphan and swept.
    pub orphan_age: Duration,
    /// Bits of a key that are kept; fewer than 256 only in tests that force collisions.
    pub digest_bits: u16,
    /// The file system.
    pub disk: Arc<dyn Disk>,
    /// Who is told about Events.
    pub events: EventSink,
}

/// Default of `max_bytes`: 20 GiB.
pub const MAX_BYTES_DEFAULT: u64 = 20 << 30;

/// Default of `orphan_age`: a minute.
pub const ORPHAN_AGE_DEFAULT: Duration = Duration::from_secs(60);

impl CacheOptions {
    /// A cache in this directory, read and written.
    pub fn new(root: impl Into<PathBuf>) -> CacheOptions {
        CacheOptions {
            root: root.into(),
            mode: Mode::ReadWrite,
            max_bytes: MAX_BYTES_DEFAULT,
            lock_timeout: None,
            trust_shared: false,
            sign: Signing::default(),
            provides: Provides::default(),
            remote: None,
            store: None,
            orphan_age: ORPHAN_AGE_DEFAULT,
            digest_bits: KEY_BITS,
            disk: Arc::new(RealDisk),
            events: Arc::new(|_| {}),
        }
    }

    /// A cache in memory.
    pub fn memory() -> CacheOptions {
        CacheOptions { mode: Mode::Off, ..CacheOptions::new("") }
    }
}
