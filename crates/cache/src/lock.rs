//! Locks between processes: one for each key, so that one process compiles and the others load, and one that `gc` takes
//! alone. They only save work: whoever does not get one goes on without (spec C14).

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::disk::{Answer, Disk, DiskError, LockKind};

const POLL_FIRST: Duration = Duration::from_millis(10);
const POLL_LONGEST: Duration = Duration::from_millis(500);

/// A held lock. Free when dropped, or when the process dies.
pub(crate) struct Held {
    _file: File,
}

/// How waiting for a lock ended.
pub(crate) enum Acquired<T> {
    /// The lock is ours.
    Held(Held),
    /// While waiting, what the lock is for came to be.
    Appeared(T),
    /// The deadline passed, or locks do not work: go on without.
    Without(String),
}

/// What the helper thread reports.
enum Report {
    Held(Held),
    Busy { holder: String },
    Failed(DiskError),
}

/// Waits for the lock of a path until a deadline. At each poll `look` may end the wait. The calls run on a helper
/// thread, so that a file system that hangs stalls neither the caller nor the deadline.
pub(crate) fn acquire<T>(
    disk: &Arc<dyn Disk>,
    path: PathBuf,
    timeout: Duration,
    mut look: impl FnMut(&str) -> Option<T>,
) -> Acquired<T> {
    let deadline = Instant::now() + timeout;
    let (sender, receiver) = mpsc::sync_channel(0);
    let disk = Arc::clone(disk);
    let helper = std::thread::Builder::new().name("cache lock".to_string()).spawn(move || poll(&*disk, &path, &sender));
    if let Err(error) = helper {
        return Acquired::Without(format!("no thread for locking: {error}"));
    }
    loop {
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Report::Held(held)) => return Acquired::Held(held),
            Ok(Report::Failed(error)) => return Acquired::Without(error.to_string()),
            Ok(Report::Busy { holder }) => {
                if let Some(found) = look(&holder) {
                    return Acquired::Appeared(found);
                }
            }
            Err(RecvTimeoutError::Timeout) => return Acquired::Without(format!("no lock within {timeout:?}")),
            Err(RecvTimeoutError::Disconnected) => return Acquired::Without("the lock helper ended".to_string()),
        }
    }
}

/// Tries until the lock is held, a call fails, or nobody listens any more. A lock that is won after the caller left is
/// dropped with its report.
fn poll(disk: &dyn Disk, path: &std::path::Path, sender: &mpsc::SyncSender<Report>) {
    let mut pause = POLL_FIRST;
    loop {
        let report = match try_acquire(disk, path, LockKind::Exclusive) {
            Ok(Ok(held)) => Report::Held(held),
            Ok(Err(holder)) => Report::Busy { holder },
            Err(error) => Report::Failed(error),
        };
        let is_last = !matches!(report, Report::Busy { .. });
        if sender.send(report).is_err() || is_last {
            return;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(POLL_LONGEST);
    }
}

/// Takes the lock if it is free; otherwise what its holder wrote.
pub(crate) fn try_acquire(disk: &dyn Disk, path: &std::path::Path, kind: LockKind) -> Answer<Result<Held, String>> {
    loop {
        let file = disk.open_lock(path)?;
        if !disk.try_lock(&file, path, kind)? {
            return Ok(Err(read_holder(file)));
        }
        // `gc` may have removed the file between open and lock: a lock on a nameless file excludes nobody.
        if disk.is_same_file(&file, path)? {
            if kind == LockKind::Exclusive {
                write_holder(&file);
            }
            return Ok(Ok(Held { _file: file }));
        }
    }
}

/// Polls for the lock for a while.
pub(crate) fn acquire_within(
    disk: &dyn Disk,
    path: &std::path::Path,
    kind: LockKind,
    timeout: Duration,
) -> Answer<Option<Held>> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Ok(held) = try_acquire(disk, path, kind)? {
            return Ok(Some(held));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(POLL_FIRST / 2);
    }
}

/// For people only; nothing is decided by it, and failing to write it is nothing.
fn write_holder(mut file: &File) {
    let _ = file.set_len(0);
    let _ = writeln!(file, "pid {}", std::process::id());
}

fn read_holder(mut file: File) -> String {
    const HOLDER_BYTES_MAX: u64 = 256;
    let mut text = String::new();
    let _ = file.rewind();
    let _ = file.take(HOLDER_BYTES_MAX).read_to_string(&mut text);
    text.trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Call, RealDisk};
    use crate::fault::{Fault, FaultyDisk};

    fn no_look(_: &str) -> Option<()> {
        None
    }

    #[test]
    fn a_free_lock_is_taken_and_a_held_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let path = dir.path().join("a.lock");
        let long = Duration::from_secs(5);
        let Acquired::Held(held) = acquire(&disk, path.clone(), long, no_look) else { panic!("free") };
        let short = Duration::from_millis(50);
        assert!(matches!(acquire(&disk, path.clone(), short, no_look), Acquired::Without(_)));
        let Err(holder) = try_acquire(&*disk, &path, LockKind::Exclusive).unwrap() else { panic!("held") };
        assert_eq!(holder, format!("pid {}", std::process::id()));
        drop(held);
        assert!(matches!(acquire(&disk, path, long, no_look), Acquired::Held(_)));
    }

    #[test]
    fn a_wait_ends_when_the_thing_appears() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let path = dir.path().join("a.lock");
        let _held = try_acquire(&*disk, &path, LockKind::Exclusive).unwrap().ok().unwrap();
        let mut polls = 0;
        let look = |_: &str| {
            polls += 1;
            (polls == 3).then_some(7)
        };
        assert!(matches!(acquire(&disk, path, Duration::from_secs(10), look), Acquired::Appeared(7)));
    }

    #[test]
    fn a_lock_on_a_removed_file_is_not_enough() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.lock");
        let removed = std::sync::atomic::AtomicBool::new(false);
        let victim = path.clone();
        let disk = FaultyDisk::new(move |call, _| {
            if call == Call::SameFile && !removed.swap(true, std::sync::atomic::Ordering::SeqCst) {
                std::fs::remove_file(&victim).unwrap();
            }
            None
        });
        let _held = try_acquire(&disk, &path, LockKind::Exclusive).unwrap().ok().unwrap();
        assert!(try_acquire(&RealDisk, &path, LockKind::Exclusive).unwrap().is_err());
    }

    #[test]
    fn a_file_system_without_locks_costs_nothing_but_work() {
        let dir = tempfile::tempdir().unwrap();
        let enolck = rustix::io::Errno::NOLCK.raw_os_error();
        let disk: Arc<dyn Disk> =
            Arc::new(FaultyDisk::new(move |call, _| (call == Call::TryLock).then_some(Fault::Before(enolck))));
        let taken = acquire(&disk, dir.path().join("a.lock"), Duration::from_secs(5), no_look);
        let Acquired::Without(reason) = taken else { panic!("no lock was expected") };
        assert!(reason.starts_with("flock "), "{reason}");
    }
}
