//! The one seam to the file system: every call that publishing, loading and locking make. Tests put a faulty disk in
//! its place (`fault.rs`), so that each call can be made to fail.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::Bytes;
use precast_tensor::FilePages;
use rustix::fs::{CWD, RenameFlags};

/// A file-system call, by the name that events and misses show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// Open and read a whole file.
    Read,
    /// Open and map a whole file.
    Map,
    /// Create a file that must not exist.
    Create,
    /// Write to a file.
    Write,
    /// Flush a file to the device.
    Sync,
    /// Rename without replacing.
    RenameNew,
    /// Hard link.
    Link,
    /// Count of hard links.
    LinkCount,
    /// Rename, replacing.
    Rename,
    /// Flush a directory to the device.
    SyncDir,
    /// Remove a file.
    Remove,
    /// Create a directory.
    MakeDir,
    /// List a directory.
    List,
    /// Read metadata.
    Stat,
    /// Open a lock file.
    OpenLock,
    /// Try to take a lock.
    TryLock,
    /// Compare an open file with a path.
    SameFile,
    /// Ask which kind of file system a path lies on.
    StatFs,
    /// Random bytes for a temp name.
    Random,
}

impl Call {
    /// Name of the system call.
    pub fn name(self) -> &'static str {
        match self {
            Call::Read => "read",
            Call::Map => "mmap",
            Call::Create => "create",
            Call::Write => "write",
            Call::Sync => "fsync",
            Call::RenameNew => "renameat2",
            Call::Link => "link",
            Call::LinkCount => "fstat",
            Call::Rename => "rename",
            Call::SyncDir => "fsync directory",
            Call::Remove => "unlink",
            Call::MakeDir => "mkdir",
            Call::List => "readdir",
            Call::Stat => "stat",
            Call::OpenLock => "open lock",
            Call::TryLock => "flock",
            Call::SameFile => "stat lock",
            Call::StatFs => "statfs",
            Call::Random => "getrandom",
        }
    }
}

/// A file-system call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{} {}: {source}", call.name(), path.display())]
pub struct DiskError {
    /// Which call.
    pub call: Call,
    /// On which path.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

impl DiskError {
    pub(crate) fn new(call: Call, path: &Path, source: io::Error) -> DiskError {
        DiskError { call, path: path.to_path_buf(), source }
    }

    /// Whether the thing simply is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self.source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
    }

    /// Whether the disk or the quota is full.
    pub fn is_full(&self) -> bool {
        matches!(self.source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// Whether a handle went stale on a network file system; a fresh open may succeed.
    pub fn is_stale(&self) -> bool {
        self.source.kind() == io::ErrorKind::StaleNetworkFileHandle
    }

    /// Number of the system's error, if it came from the system.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

/// Answer of a disk.
pub type Answer<T> = Result<T, DiskError>;

/// What `stat` and `list` tell of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Last component of the path.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// Last modification.
    pub modified: SystemTime,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Owner.
    pub user: u32,
    /// Permission bits.
    pub mode: u32,
}

/// How a lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Alone.
    Exclusive,
    /// Together with other shared holders.
    Shared,
}

/// The file-system calls of the cache. Files are created for the owner alone and closed on exec.
pub trait Disk: Send + Sync {
    /// A whole file in private memory.
    fn read(&self, path: &Path) -> Answer<Bytes>;
    /// A whole file, mapped where nobody else can change it, and its pages.
    fn map(&self, path: &Path) -> Answer<(Bytes, FilePages)>;
    /// A new file; an existing one is an error.
    fn create(&self, path: &Path) -> Answer<File>;
    /// Writes all bytes at the end of the file.
    fn write(&self, file: &File, path: &Path, bytes: &[u8]) -> Answer<()>;
    /// Flushes a file to the device.
    fn sync(&self, file: &File, path: &Path) -> Answer<()>;
    /// Renames; an existing target is an error (`AlreadyExists`).
    fn rename_new(&self, from: &Path, to: &Path) -> Answer<()>;
    /// Makes a hard link; an existing target is an error (`AlreadyExists`).
    fn link(&self, from: &Path, to: &Path) -> Answer<()>;
    /// Hard links of an open file.
    fn link_count(&self, file: &File, path: &Path) -> Answer<u64>;
    /// Renames; an existing target is replaced.
    fn rename(&self, from: &Path, to: &Path) -> Answer<()>;
    /// Flushes a directory to the device.
    fn sync_dir(&self, path: &Path) -> Answer<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> Answer<()>;
    /// Makes a directory and its parents; an existing one is fine.
    fn make_dir(&self, path: &Path) -> Answer<()>;
    /// Entries of a directory, by name.
    fn list(&self, path: &Path) -> Answer<Vec<Stat>>;
    /// Metadata.
    fn stat(&self, path: &Path) -> Answer<Stat>;
    /// Opens a lock file, which is made if missing.
    fn open_lock(&self, path: &Path) -> Answer<File>;
    /// Takes the lock if it is free.
    fn try_lock(&self, file: &File, path: &Path, kind: LockKind) -> Answer<bool>;
    /// Whether the path still names this open file.
    fn is_same_file(&self, file: &File, path: &Path) -> Answer<bool>;
    /// Whether the path lies on a network file system, where locks and mappings cannot be trusted.
    fn is_network(&self, path: &Path) -> Answer<bool>;
}

/// Fresh opens before a stale handle of a network file system counts as a failure (spec C16).
const STALE_OPENS: usize = 3;

/// Makes a call that opens a file, and again where the handle went stale.
pub(crate) fn open_fresh<T>(call: impl Fn() -> Answer<T>) -> Answer<T> {
    let mut opens = 1;
    loop {
        match call() {
            Err(error) if error.is_stale() && opens < STALE_OPENS => opens += 1,
            answer => return answer,
        }
    }
}

/// The file system of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

const OWNER_ONLY_FILE: u32 = 0o600;
const OWNER_ONLY_DIR: u32 = 0o700;

impl Disk for RealDisk {
    fn read(&self, path: &Path) -> Answer<Bytes> {
        let read = || {
            let file = File::open(path)?;
            let length = file.metadata()?.len();
            let mut bytes = Vec::new();
            let capacity = usize::try_from(length).map_err(|_| io::ErrorKind::FileTooLarge)?;
            bytes.try_reserve_exact(capacity).map_err(|_| io::ErrorKind::OutOfMemory)?;
            // A file that grows while it is read is cut at its first length; the digests decide what that is worth.
            file.take(length).read_to_end(&mut bytes)?;
            Ok(Bytes::from(bytes))
        };
        read().map_err(|error| DiskError::new(Call::Read, path, error))
    }

    fn map(&self, path: &Path) -> Answer<(Bytes, FilePages)> {
        let in_map = |error| DiskError::new(Call::Map, path, error);
        // `map_file` words its errors for people; opening first keeps the number of the system's error.
        drop(File::open(path).map_err(in_map)?);
        precast_tensor::map_file(path).map_err(in_map)
    }

    fn create(&self, path: &Path) -> Answer<File> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(OWNER_ONLY_FILE);
        options.open(path).map_err(|error| DiskError::new(Call::Create, path, error))
    }

    fn write(&self, mut file: &File, path: &Path, bytes: &[u8]) -> Answer<()> {
        file.write_all(bytes).map_err(|error| DiskError::new(Call::Write, path, error))
    }

    fn sync(&self, file: &File, path: &Path) -> Answer<()> {
        file.sync_all().map_err(|error| DiskError::new(Call::Sync, path, error))
    }

    fn rename_new(&self, from: &Path, to: &Path) -> Answer<()> {
        rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)
            .map_err(|errno| DiskError::new(Call::RenameNew, to, errno.into()))
    }

    fn link(&self, from: &Path, to: &Path) -> Answer<()> {
        std::fs::hard_link(from, to).map_err(|error| DiskError::new(Call::Link, to, error))
    }

    fn link_count(&self, file: &File, path: &Path) -> Answer<u64> {
        let metadata = file.metadata().map_err(|error| DiskError::new(Call::LinkCount, path, error))?;
        Ok(metadata.nlink())
    }

    fn rename(&self, from: &Path, to: &Path) -> Answer<()> {
        std::fs::rename(from, to).map_err(|error| DiskError::new(Call::Rename, to, error))
    }

    fn sync_dir(&self, path: &Path) -> Answer<()> {
        let sync = || File::open(path)?.sync_all();
        sync().map_err(|error| DiskError::new(Call::SyncDir, path, error))
    }

    fn remove(&self, path: &Path) -> Answer<()> {
        std::fs::remove_file(path).map_err(|error| DiskError::new(Call::Remove, path, error))
    }

    fn make_dir(&self, path: &Path) -> Answer<()> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(OWNER_ONLY_DIR);
        builder.create(path).map_err(|error| DiskError::new(Call::MakeDir, path, error))
    }

    fn list(&self, path: &Path) -> Answer<Vec<Stat>> {
        let list = || {
            let mut stats = Vec::new();
            for entry in std::fs::read_dir(path)? {
                let entry = entry?;
                match entry.metadata() {
                    Ok(metadata) => stats.push(stat_of(&entry.path(), &metadata)?),
                    // Another process removed it between the two calls.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
            stats.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(stats)
        };
        list().map_err(|error| DiskError::new(Call::List, path, error))
    }

    fn stat(&self, path: &Path) -> Answer<Stat> {
        let stat = || stat_of(path, &std::fs::metadata(path)?);
        stat().map_err(|error| DiskError::new(Call::Stat, path, error))
    }

    fn open_lock(&self, path: &Path) -> Answer<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(OWNER_ONLY_FILE);
        options.open(path).map_err(|error| DiskError::new(Call::OpenLock, path, error))
    }

    fn try_lock(&self, file: &File, path: &Path, kind: LockKind) -> Answer<bool> {
        let taken = match kind {
            LockKind::Exclusive => file.try_lock(),
            LockKind::Shared => file.try_lock_shared(),
        };
        match taken {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(DiskError::new(Call::TryLock, path, error)),
        }
    }

    fn is_same_file(&self, file: &File, path: &Path) -> Answer<bool> {
        let compare = || {
            let open = file.metadata()?;
            match std::fs::metadata(path) {
                Ok(named) => Ok(named.dev() == open.dev() && named.ino() == open.ino()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(error) => Err(error),
            }
        };
        compare().map_err(|error| DiskError::new(Call::SameFile, path, error))
    }

    fn is_network(&self, path: &Path) -> Answer<bool> {
        let stat = rustix::fs::statfs(path).map_err(|errno| DiskError::new(Call::StatFs, path, errno.into()))?;
        // The type of the field differs between platforms; all magic numbers fit in 32 bits.
        Ok(NETWORK_FILE_SYSTEMS.contains(&(stat.f_type as u32)))
    }
}

/// Magic numbers (statfs(2)) of NFS, SMB, CIFS, SMB2, AFS, Ceph, Lustre, GPFS, FUSE and 9p.
const NETWORK_FILE_SYSTEMS: [u32; 10] = [
    0x6969,
    0x517B,
    0xFF53_4D42,
    0xFE53_4D42,
    0x5346_414F,
    0x00C3_6400,
    0x0BD0_0BD0,
    0x4750_4653,
    0x6573_5546,
    0x0102_1997,
];

fn stat_of(path: &Path, metadata: &std::fs::Metadata) -> io::Result<Stat> {
    Ok(Stat {
        name: path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        bytes: metadata.len(),
        modified: metadata.modified()?,
        is_dir: metadata.is_dir(),
        user: metadata.uid(),
        mode: metadata.mode(),
    })
}
