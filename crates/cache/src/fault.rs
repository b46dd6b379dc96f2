//! A disk that fails on purpose, for fault tests: a hook sees every call before it is made and may let it fail, or the
//! whole process die, before, after or halfway.

use std::fs::File;
use std::io;
use std::path::Path;

use bytes::Bytes;
use precast_tensor::FilePages;

use crate::disk::{Answer, Call, Disk, DiskError, LockKind, RealDisk, Stat};

/// How a call fails. The number is an errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is done.
    Before(i32),
    /// The call is made, and its answer lost.
    After(i32),
    /// A write stops in the middle; other calls fail before.
    Halfway(i32),
    /// The process is killed before the call.
    KillBefore,
    /// The process is killed after the call.
    KillAfter,
    /// The process is killed in the middle of a write, and before other calls.
    KillHalfway,
    /// A lock is taken that other nodes do not see, as some network disks have it; other calls are made.
    LockOfOneNode,
}

/// What decides about faults.
pub type Hook = Box<dyn Fn(Call, &Path) -> Option<Fault> + Send + Sync>;

/// The file system of the machine behind a hook.
pub struct FaultyDisk {
    real: RealDisk,
    hook: Hook,
}

impl FaultyDisk {
    /// A disk with this hook.
    pub fn new(hook: impl Fn(Call, &Path) -> Option<Fault> + Send + Sync + 'static) -> FaultyDisk {
        FaultyDisk { real: RealDisk, hook: Box::new(hook) }
    }

    fn run<T>(&self, call: Call, path: &Path, make: impl FnOnce(&RealDisk) -> Answer<T>) -> Answer<T> {
        self.run_with((self.hook)(call, path), call, path, make)
    }

    fn run_with<T>(
        &self,
        fault: Option<Fault>,
        call: Call,
        path: &Path,
        make: impl FnOnce(&RealDisk) -> Answer<T>,
    ) -> Answer<T> {
        let fail = |errno| DiskError::new(call, path, io::Error::from_raw_os_error(errno));
        match fault {
            None | Some(Fault::LockOfOneNode) => make(&self.real),
            Some(Fault::Before(errno) | Fault::Halfway(errno)) => Err(fail(errno)),
            Some(Fault::After(errno)) => make(&self.real).and_then(|_| Err(fail(errno))),
            Some(Fault::KillBefore | Fault::KillHalfway) => kill_self(),
            Some(Fault::KillAfter) => {
                let _answer = make(&self.real);
                kill_self()
            }
        }
    }
}

impl Disk for FaultyDisk {
    fn read(&self, path: &Path) -> Answer<Bytes> {
        self.run(Call::Read, path, |real| real.read(path))
    }

    fn map(&self, path: &Path) -> Answer<(Bytes, FilePages)> {
        self.run(Call::Map, path, |real| real.map(path))
    }

    fn create(&self, path: &Path) -> Answer<File> {
        self.run(Call::Create, path, |real| real.create(path))
    }

    fn write(&self, file: &File, path: &Path, bytes: &[u8]) -> Answer<()> {
        match (self.hook)(Call::Write, path) {
            None => self.real.write(file, path, bytes),
            Some(fault) => {
                let (written, errno) = match fault {
                    Fault::Before(errno) => (0, Some(errno)),
                    Fault::After(errno) => (bytes.len(), Some(errno)),
                    Fault::Halfway(errno) => (bytes.len() / 2, Some(errno)),
                    Fault::KillBefore => (0, None),
                    Fault::KillAfter => (bytes.len(), None),
                    Fault::KillHalfway => (bytes.len() / 2, None),
                    Fault::LockOfOneNode => return self.real.write(file, path, bytes),
                };
                self.real.write(file, path, &bytes[..written])?;
                let Some(errno) = errno else { kill_self() };
                Err(DiskError::new(Call::Write, path, io::Error::from_raw_os_error(errno)))
            }
        }
    }

    fn sync(&self, file: &File, path: &Path) -> Answer<()> {
        self.run(Call::Sync, path, |real| real.sync(file, path))
    }

    fn rename_new(&self, from: &Path, to: &Path) -> Answer<()> {
        self.run(Call::RenameNew, to, |real| real.rename_new(from, to))
    }

    fn link(&self, from: &Path, to: &Path) -> Answer<()> {
        self.run(Call::Link, to, |real| real.link(from, to))
    }

    fn link_count(&self, file: &File, path: &Path) -> Answer<u64> {
        self.run(Call::LinkCount, path, |real| real.link_count(file, path))
    }

    fn rename(&self, from: &Path, to: &Path) -> Answer<()> {
        self.run(Call::Rename, to, |real| real.rename(from, to))
    }

    fn sync_dir(&self, path: &Path) -> Answer<()> {
        self.run(Call::SyncDir, path, |real| real.sync_dir(path))
    }

    fn remove(&self, path: &Path) -> Answer<()> {
        self.run(Call::Remove, path, |real| real.remove(path))
    }

    fn make_dir(&self, path: &Path) -> Answer<()> {
        self.run(Call::MakeDir, path, |real| real.make_dir(path))
    }

    fn list(&self, path: &Path) -> Answer<Vec<Stat>> {
        self.run(Call::List, path, |real| real.list(path))
    }

    fn stat(&self, path: &Path) -> Answer<Stat> {
        self.run(Call::Stat, path, |real| real.stat(path))
    }

    fn open_lock(&self, path: &Path) -> Answer<File> {
        self.run(Call::OpenLock, path, |real| real.open_lock(path))
    }

    fn try_lock(&self, file: &File, path: &Path, kind: LockKind) -> Answer<bool> {
        match (self.hook)(Call::TryLock, path) {
            Some(Fault::LockOfOneNode) => Ok(true),
            fault => self.run_with(fault, Call::TryLock, path, |real| real.try_lock(file, path, kind)),
        }
    }

    fn is_same_file(&self, file: &File, path: &Path) -> Answer<bool> {
        self.run(Call::SameFile, path, |real| real.is_same_file(file, path))
    }

    fn is_network(&self, path: &Path) -> Answer<bool> {
        self.run(Call::StatFs, path, |real| real.is_network(path))
    }
}

/// Ends the process as `kill -9` does: nothing is flushed, no destructor runs.
fn kill_self() -> ! {
    // The signal is taken before the call returns; aborting is what is left if it cannot be sent.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}
