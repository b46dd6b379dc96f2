//! Opening files below a folder's handle, so that no path chosen by a model leads anywhere else.
//!
//! The kernel resolves the whole path under our rules where it can (openat2); elsewhere the path is walked one
//! component at a time without following links. The path is opened once; all checks use the open file.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// A folder that external data may be read from.
#[derive(Debug)]
pub(super) struct Folder {
    /// The folder itself, or the root that links may not leave.
    #[cfg(unix)]
    handle: std::os::fd::OwnedFd,
    path: PathBuf,
    links: Links,
}

/// What to do about symbolic and hard links.
#[derive(Debug)]
enum Links {
    Refuse,
    /// Follow links that stay beneath the handle; the model's folder is this far below it.
    FollowBeneath {
        folder: PathBuf,
    },
}

impl Folder {
    /// The folder of a model; files in it that are links are refused.
    pub(super) fn open(path: &Path) -> io::Result<Folder> {
        // The parent of a bare file name is the empty path.
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Ok(Folder {
            #[cfg(unix)]
            handle: unix::open_folder(path)?,
            path: path.to_path_buf(),
            links: Links::Refuse,
        })
    }

    /// The folder of a model inside `root`; links are followed while they stay beneath `root`.
    pub(super) fn open_within(path: &Path, root: &Path) -> io::Result<Folder> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let root = root.canonicalize()?;
        let folder = path.canonicalize()?;
        let Ok(folder) = folder.strip_prefix(&root) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the model's folder is not beneath the model root",
            ));
        };
        let links = Links::FollowBeneath { folder: folder.to_path_buf() };
        Ok(Folder {
            #[cfg(unix)]
            handle: unix::open_folder(&root)?,
            path: root,
            links,
        })
    }

    /// Whether a file with several names is refused too: a hard link is a link that cannot be told from its target.
    pub(super) fn refuses_links(&self) -> bool {
        matches!(self.links, Links::Refuse)
    }

    /// Where `location` would be, for messages only.
    pub(super) fn display_path(&self, location: &Path) -> PathBuf {
        match &self.links {
            Links::Refuse => self.path.join(location),
            Links::FollowBeneath { folder } => self.path.join(folder).join(location),
        }
    }

    /// Opens `location`, whose components are all plain names.
    #[cfg(unix)]
    pub(super) fn open_file(&self, location: &Path) -> io::Result<File> {
        match &self.links {
            Links::Refuse => unix::open_without_links(&self.handle, location),
            Links::FollowBeneath { folder } => {
                unix::open_following_links(&self.handle, &self.path, &folder.join(location))
            }
        }
    }

    /// External data needs folder handles, which this platform's build does not have.
    #[cfg(not(unix))]
    pub(super) fn open_file(&self, _location: &Path) -> io::Result<File> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}

#[cfg(unix)]
mod unix {
    use std::fs::File;
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::path::{Component, Path};

    use rustix::fs::{CWD, Mode, OFlags, openat};
    #[cfg(target_os = "linux")]
    use rustix::fs::{ResolveFlags, openat2};
    use rustix::io::Errno;

    /// A pipe or device must not block the open; the caller refuses it by its type afterwards.
    const FILE_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

    /// A handle for lookups; on Linux it needs no right to list the folder.
    #[cfg(target_os = "linux")]
    const FOLDER_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
    #[cfg(not(target_os = "linux"))]
    const FOLDER_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

    pub(super) fn open_folder(path: &Path) -> io::Result<OwnedFd> {
        Ok(openat(CWD, path, FOLDER_FLAGS, Mode::empty())?)
    }

    pub(super) fn open_without_links(folder: &OwnedFd, location: &Path) -> io::Result<File> {
        #[cfg(target_os = "linux")]
        {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            if let Some(opened) = kernel_answer(openat2(folder, location, FILE_FLAGS, Mode::empty(), resolve)) {
                return opened;
            }
        }
        open_by_component(folder.as_fd(), location)
    }

    pub(super) fn open_following_links(root: &OwnedFd, root_path: &Path, location: &Path) -> io::Result<File> {
        #[cfg(target_os = "linux")]
        {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            if let Some(opened) = kernel_answer(openat2(root, location, FILE_FLAGS, Mode::empty(), resolve)) {
                return opened;
            }
        }
        // Resolve by name, then open what was found without following anything: a link swapped in between is refused.
        let resolved = root_path.join(location).canonicalize()?;
        let beneath = resolved.strip_prefix(root_path).map_err(|_| io::Error::from(Errno::XDEV))?;
        open_by_component(root.as_fd(), beneath)
    }

    /// `None` when openat2 is missing, filtered (containers answer EPERM) or lost a race it asks us to repeat.
    #[cfg(target_os = "linux")]
    fn kernel_answer(opened: Result<OwnedFd, Errno>) -> Option<io::Result<File>> {
        match opened {
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL | Errno::AGAIN) => None,
            Err(errno) => Some(Err(errno.into())),
            Ok(handle) => Some(Ok(File::from(handle))),
        }
    }

    pub(super) fn open_by_component(folder: BorrowedFd<'_>, location: &Path) -> io::Result<File> {
        let (Some(parent), Some(name)) = (location.parent(), location.file_name()) else {
            return Err(io::Error::from(Errno::INVAL));
        };
        let mut current: Option<OwnedFd> = None;
        for component in parent.components() {
            let Component::Normal(step) = component else {
                return Err(io::Error::from(Errno::XDEV));
            };
            let from = current.as_ref().map_or(folder, |handle| handle.as_fd());
            let opened = openat(from, step, FOLDER_FLAGS | OFlags::NOFOLLOW, Mode::empty());
            // A link opened as a folder without following is "not a directory"; say "link" as openat2 does.
            current = Some(match opened {
                Err(Errno::NOTDIR) => return Err(io::Error::from(Errno::LOOP)),
                other => other?,
            });
        }
        let from = current.as_ref().map_or(folder, |handle| handle.as_fd());
        Ok(File::from(openat(from, name, FILE_FLAGS | OFlags::NOFOLLOW, Mode::empty())?))
    }
}

/// Whether an error of [`Folder::open_file`] means that a link or a way out of the folder was met.
pub(super) fn is_escape(error: &io::Error) -> bool {
    #[cfg(unix)]
    return [rustix::io::Errno::LOOP, rustix::io::Errno::XDEV]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()));
    #[cfg(not(unix))]
    return false;
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    use super::*;

    fn text(file: io::Result<File>) -> Result<String, bool> {
        let mut text = String::new();
        let mut file = file.map_err(|error| is_escape(&error))?;
        file.read_to_string(&mut text).map_err(|_| false)?;
        Ok(text)
    }

    /// outside, top/a/data, top/final → a/data, top/middle → a, top/out → ../outside
    fn tree() -> tempfile::TempDir {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().join("top");
        fs::create_dir_all(top.join("a")).unwrap();
        fs::write(temp.path().join("outside"), "secret").unwrap();
        fs::write(top.join("a/data"), "data").unwrap();
        symlink("a/data", top.join("final")).unwrap();
        symlink("a", top.join("middle")).unwrap();
        symlink("../outside", top.join("out")).unwrap();
        temp
    }

    #[test]
    fn links_are_refused_by_the_kernel_and_by_the_walk() {
        let temp = tree();
        let folder = Folder::open(&temp.path().join("top")).unwrap();
        let walk = |location: &str| text(unix::open_by_component(folder.handle.as_fd(), Path::new(location)));
        for open in [&|location: &str| text(folder.open_file(Path::new(location))), &walk as &dyn Fn(&str) -> _] {
            assert_eq!(open("a/data"), Ok("data".into()));
            for escape in ["final", "middle/data", "out", "../outside"] {
                assert_eq!(open(escape), Err(true), "{escape}");
            }
            assert_eq!(open("absent"), Err(false));
        }
    }

    #[test]
    fn links_beneath_a_root_are_followed_and_links_out_of_it_are_not() {
        let temp = tree();
        let top = temp.path().join("top");
        let folder = Folder::open_within(&top, &top).unwrap();
        assert_eq!(text(folder.open_file(Path::new("middle/data"))), Ok("data".into()));
        assert_eq!(text(folder.open_file(Path::new("final"))), Ok("data".into()));
        assert_eq!(text(folder.open_file(Path::new("out"))), Err(true));
        let wider = Folder::open_within(&top, temp.path()).unwrap();
        assert_eq!(text(wider.open_file(Path::new("out"))), Ok("secret".into()));
        assert!(Folder::open_within(temp.path(), &top).is_err());
    }
}
