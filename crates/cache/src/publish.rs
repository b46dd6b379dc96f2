//! How a file appears: a temp of a unique name is written, flushed and renamed into place, so readers see all of it or
//! nothing (spec C9). Also how files leave: temps of dead writers are swept, damaged entries go to quarantine.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::disk::{Answer, Call, Disk, DiskError, LockKind};
use crate::layout::Layout;
use crate::miss::Miss;

/// What happens to a file that already has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// It stays: the first winner wins (spec C10).
    Keeps,
    /// It is replaced.
    Yields,
}

/// Whether our bytes got the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// Ours.
    New,
    /// Another writer was first.
    Lost,
}

/// Age at which a temp is an orphan where locks do not work.
const ORPHAN_AGE_UNLOCKED: Duration = Duration::from_secs(24 * 3600);
/// How long quarantined files are kept, and how many bytes of them.
const QUARANTINE_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
const QUARANTINE_BYTES: u64 = 1 << 30;

/// So many bytes of a constant are one part: it may lie in a mapped file, which is let go part by part.
pub(crate) const PART_BYTES: usize = 1 << 20;

/// Publishes these parts, one after the other, under a path. On failure all of it is visible or nothing.
pub(crate) fn publish<'a>(
    disk: &dyn Disk,
    layout: &Layout,
    path: &Path,
    parts: impl IntoIterator<Item = &'a [u8]>,
    existing: Existing,
) -> Answer<Published> {
    let temp = Temp::create(disk, layout)?;
    for part in parts {
        disk.write(&temp.file, &temp.path, part)?;
    }
    disk.sync(&temp.file, &temp.path)?;
    let parent = path.parent().unwrap_or(layout.root());
    if disk.stat(parent).is_err() {
        disk.make_dir(parent)?;
        disk.sync_dir(parent.parent().unwrap_or(layout.root()))?;
    }
    let published = match existing {
        Existing::Keeps => rename_new(disk, &temp, path)?,
        Existing::Yields => disk.rename(&temp.path, path).map(|()| Published::New)?,
    };
    // The entry is whole and visible already; without this flush it may be gone after a power loss, never half there.
    if published == Published::New {
        disk.sync_dir(parent)?;
    }
    Ok(published)
}

/// Writes a small file that may be lost or torn without harm: no flush.
pub(crate) fn write_advisory(disk: &dyn Disk, layout: &Layout, path: &Path, bytes: &[u8]) -> Answer<()> {
    let temp = Temp::create(disk, layout)?;
    disk.write(&temp.file, &temp.path, bytes)?;
    disk.rename(&temp.path, path)
}

/// A file below `tmp/` that is removed when dropped, unless it was renamed away. Locked for life, so that a sweep can
/// tell it from an orphan.
struct Temp<'a> {
    disk: &'a dyn Disk,
    path: PathBuf,
    file: File,
}

impl<'a> Temp<'a> {
    fn create(disk: &'a dyn Disk, layout: &Layout) -> Answer<Temp<'a>> {
        let dir = layout.dir("tmp");
        let path = dir.join(random_name(&dir)?);
        let file = match disk.create(&path) {
            // The directory may have been removed with the whole cache.
            Err(error) if error.is_not_found() => disk.make_dir(&dir).and_then(|()| disk.create(&path))?,
            answer => answer?,
        };
        let temp = Temp { disk, path, file };
        // Where locks do not work the sweep goes by age alone.
        let _ = disk.try_lock(&temp.file, &temp.path, LockKind::Exclusive);
        Ok(temp)
    }
}

impl Drop for Temp<'_> {
    fn drop(&mut self) {
        // After a rename there is nothing here; a temp that cannot be removed is left to the sweep.
        let _ = self.disk.remove(&self.path);
    }
}

/// 128 random bits in hex: names never repeat, across processes and hosts.
fn random_name(dir: &Path) -> Answer<String> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|error| DiskError::new(Call::Random, dir, io::Error::other(error)))?;
    Ok(bits.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Gives the temp its name unless the name is taken: by renameat2, where that is missing by link, at last by rename.
fn rename_new(disk: &dyn Disk, temp: &Temp<'_>, path: &Path) -> Answer<Published> {
    match disk.rename_new(&temp.path, path) {
        Ok(()) => return Ok(Published::New),
        Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists => return Ok(Published::Lost),
        Err(error) if !is_unsupported(&error) => return Err(error),
        Err(_) => {}
    }
    let linked = disk.link(&temp.path, path);
    // A network file system may lose the answer of a link that was made; the count of links tells.
    if disk.link_count(&temp.file, &temp.path)? == 2 {
        return Ok(Published::New);
    }
    match linked {
        Ok(()) => Ok(Published::New),
        Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists => Ok(Published::Lost),
        Err(error) if is_unsupported(&error) => {
            if disk.stat(path).is_ok() {
                return Ok(Published::Lost);
            }
            disk.rename(&temp.path, path).map(|()| Published::New)
        }
        Err(error) => Err(error),
    }
}

/// EINVAL, ENOSYS, EOPNOTSUPP, EPERM, EMLINK: the file system does not know the call.
fn is_unsupported(error: &DiskError) -> bool {
    use rustix::io::Errno;
    let unsupported = [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP, Errno::PERM, Errno::MLINK];
    error.errno().is_some_and(|errno| unsupported.iter().any(|known| known.raw_os_error() == errno))
}

/// Removes temps of at least this age whose writers are dead (spec C15). Process ids decide nothing: containers share
/// volumes, not pids.
pub(crate) fn sweep(disk: &dyn Disk, layout: &Layout, orphan_age: Duration) -> Answer<usize> {
    let dir = layout.dir("tmp");
    let now = SystemTime::now();
    let mut removed = 0;
    for stat in disk.list(&dir)? {
        let age = now.duration_since(stat.modified).unwrap_or_default();
        if age < orphan_age || stat.is_dir {
            continue;
        }
        let path = dir.join(&stat.name);
        let file = match disk.open_lock(&path) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(error),
        };
        let is_orphan = match disk.try_lock(&file, &path, LockKind::Exclusive) {
            Ok(is_taken) => is_taken,
            Err(_) => age >= ORPHAN_AGE_UNLOCKED,
        };
        if is_orphan {
            match disk.remove(&path) {
                // Its writer was alive after all and has just given it its name.
                Err(error) if !error.is_not_found() => return Err(error),
                _ => removed += 1,
            }
        }
    }
    Ok(removed)
}

/// Moves a damaged file away, so that its name is free (spec C18).
pub(crate) fn quarantine(disk: &dyn Disk, layout: &Layout, path: &Path, miss: &Miss) -> Answer<()> {
    let dir = layout.dir("quarantine");
    disk.make_dir(&dir)?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    disk.rename(path, &dir.join(format!("{seconds}-{name}.{}", miss.class())))?;
    trim_quarantine(disk, layout)
}

/// Keeps the quarantine below its age and size. Names start with the time, so the list is oldest first.
pub(crate) fn trim_quarantine(disk: &dyn Disk, layout: &Layout) -> Answer<()> {
    let dir = layout.dir("quarantine");
    let stats = disk.list(&dir)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut bytes: u64 = stats.iter().map(|stat| stat.bytes).sum();
    for stat in stats {
        let since: Option<u64> = stat.name.split('-').next().and_then(|seconds| seconds.parse().ok());
        let is_old = since.is_some_and(|since| now.saturating_sub(since) > QUARANTINE_AGE.as_secs());
        if is_old || bytes > QUARANTINE_BYTES {
            disk.remove(&dir.join(&stat.name))?;
            bytes -= stat.bytes;
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "publish_tests.rs"]
mod tests;
