//! Where things lie below the root, and whether a root may be trusted. The layout has a version in `FORMAT`; a newer
//! one makes the root read-only. Who can write a root can run code in its readers, so others must not (spec C22).

use std::path::{Path, PathBuf};

use precast_tensor::Digest;

use crate::disk::{Disk, DiskError};
use crate::key::ProgramKey;
use crate::miss::CacheError;
use crate::publish::{self, Existing};

/// Version of the layout.
pub const LAYOUT: u32 = 2;
const FORMAT_PREFIX: &str = "precast cache layout ";
/// The signature that backup tools look for (bford.info/cachedir).
const CACHEDIR_TAG: &str =
    "Signature: 8a477f597d28d172789f06886806bc55\n# This is the Program cache of Precast; it can be made again.\n";
/// Ending of an artifact.
pub const PROGRAM_ENDING: &str = ".pcp";
/// Ending of a constant.
pub const WEIGHT_ENDING: &str = ".pcw";
/// Ending of a pack of small constants.
pub const PACK_ENDING: &str = ".pck";

/// Paths below a root.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The layout below this root.
    pub fn new(root: impl Into<PathBuf>) -> Layout {
        Layout { root: root.into() }
    }

    /// The root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Name of an artifact below the root; also its name in a remote store.
    pub fn program_name(key: &ProgramKey) -> String {
        let key = key.to_string();
        format!("programs/{}/{key}{PROGRAM_ENDING}", &key[..2])
    }

    /// Name of a constant below the root; also its name in a remote store.
    pub fn weight_name(digest: &Digest) -> String {
        let digest = digest.to_string();
        format!("weights/{}/{digest}{WEIGHT_ENDING}", &digest[..2])
    }

    /// An artifact.
    pub fn program(&self, key: &ProgramKey) -> PathBuf {
        self.root.join(Layout::program_name(key))
    }

    /// A constant.
    pub fn weight(&self, digest: &Digest) -> PathBuf {
        self.root.join(Layout::weight_name(digest))
    }

    /// Where the packs of a model lie, by the digest of its weights; others may lie there too.
    pub fn packs_dir(&self, weights: &Digest) -> PathBuf {
        self.root.join("weights").join(&weights.to_string()[..2])
    }

    /// A pack of a model's small constants.
    pub fn pack(&self, weights: &Digest, name: &Digest) -> PathBuf {
        self.packs_dir(weights).join(format!("{weights}-{name}{PACK_ENDING}"))
    }

    /// The digest of the weights and the name of the pack in the name of a file.
    pub fn pack_of(file_name: &str) -> Option<(Digest, Digest)> {
        let (weights, name) = file_name.strip_suffix(PACK_ENDING)?.split_once('-')?;
        Some((weights.parse().ok()?, name.parse().ok()?))
    }

    /// The lock of those who write packs of a model.
    pub fn pack_lock(&self, weights: &Digest) -> PathBuf {
        self.root.join("locks").join(format!("pack-{weights}.lock"))
    }

    /// The lock of a compile.
    pub fn lock(&self, key: &ProgramKey) -> PathBuf {
        self.root.join("locks").join(format!("{key}.lock"))
    }

    /// The lock that publishers share and `gc` takes alone.
    pub fn gc_lock(&self) -> PathBuf {
        self.root.join("locks").join("gc.lock")
    }

    /// Stamp of last use and compile time. Advisory.
    pub fn use_stamp(&self, key: &str) -> PathBuf {
        self.root.join("index/use").join(key)
    }

    /// Markers of the Programs of one graph or of one set of weights. Advisory.
    pub fn lineage(&self, of: &Digest) -> PathBuf {
        self.root.join("index/lineage").join(of.to_string())
    }

    /// Marker of a Program that `gc` must keep.
    pub fn pin(&self, key: &str) -> PathBuf {
        self.root.join("index/pin").join(key)
    }

    /// A directory directly below the root.
    pub fn dir(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Makes the directories and files that a writer needs, where a root of this version was found.
    pub(crate) fn create(&self, disk: &dyn Disk, version: Option<u32>) -> Result<(), DiskError> {
        for dir in ["programs", "weights", "locks", "tmp", "quarantine", "index/use", "index/lineage", "index/pin"] {
            disk.make_dir(&self.root.join(dir))?;
        }
        // An older layout becomes this one: its entries are missed and in time evicted.
        let is_older = version.is_some_and(|version| version < LAYOUT);
        let format = format!("{FORMAT_PREFIX}{LAYOUT}\n");
        for (name, text, is_old) in [("FORMAT", &format[..], is_older), ("CACHEDIR.TAG", CACHEDIR_TAG, false)] {
            let path = self.root.join(name);
            let existing = if is_old { Existing::Yields } else { Existing::Keeps };
            if is_old || disk.stat(&path).is_err() {
                publish::publish(disk, self, &path, [text.as_bytes()], existing)?;
            }
        }
        Ok(())
    }

    /// Version in `FORMAT`, if there is a root.
    pub(crate) fn version(&self, disk: &dyn Disk) -> Result<Option<u32>, CacheError> {
        let path = self.root.join("FORMAT");
        let bytes = match disk.read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let text = String::from_utf8_lossy(&bytes);
        let version = text.strip_prefix(FORMAT_PREFIX).and_then(|rest| rest.trim_end().parse().ok());
        let reason = || format!("expected '{FORMAT_PREFIX}N', found '{}'", text.chars().take(40).collect::<String>());
        version.map(Some).ok_or_else(|| CacheError::Layout { path, reason: reason() })
    }

    /// Who besides this user and root may change the root or take its place, as a sentence.
    pub(crate) fn stranger(&self, disk: &dyn Disk) -> Result<Option<String>, DiskError> {
        const WRITABLE_BY_GROUP_OR_OTHERS: u32 = 0o022;
        const STICKY: u32 = 0o1000;
        let user = rustix::process::geteuid().as_raw();
        // Symbolic links are resolved first: it is the real directories that others may write.
        let real = std::fs::canonicalize(&self.root).unwrap_or_else(|_| self.root.clone());
        for (level, path) in real.ancestors().enumerate() {
            let stat = match disk.stat(path) {
                Ok(stat) => stat,
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error),
            };
            let is_root_of_cache = level == 0;
            if stat.user != user && stat.user != 0 {
                return Ok(Some(format!("{} belongs to user {}", path.display(), stat.user)));
            }
            // In a sticky directory only the owner of an entry may rename it, so a sticky parent is safe.
            let is_open = stat.mode & WRITABLE_BY_GROUP_OR_OTHERS != 0;
            if is_open && (is_root_of_cache || stat.mode & STICKY == 0) {
                return Ok(Some(format!("{} has mode {:o}", path.display(), stat.mode & 0o7777)));
            }
        }
        Ok(None)
    }
}
