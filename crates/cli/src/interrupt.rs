//! Ctrl-C and SIGTERM end the process at once and leave no half-written files: files are made in a staging folder, which
//! the signal removes, and moved to their place while signals wait. During a turn of a conversation, Ctrl-C ends the turn.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::TempDir;

use crate::exit::{Exit, Failure};

/// A process that a signal ends has this plus the signal's number as its exit code.
const SIGNAL_BASE: i32 = 128;
/// The work goes on while its folder is removed, so removing may have to be repeated.
const REMOVALS_MAX: usize = 3;

/// Folders to remove when a signal comes.
#[derive(Default)]
pub struct Interrupt {
    folders: Mutex<Vec<PathBuf>>,
    /// Whether Ctrl-C ends a turn and not the process.
    is_in_turn: AtomicBool,
    is_turn_cancelled: AtomicBool,
}

impl Interrupt {
    /// Waits for signals on a thread of its own.
    pub fn listen() -> Result<Arc<Interrupt>, Failure> {
        let fail = |error: std::io::Error| Failure::new(Exit::Internal, format!("cannot listen for signals: {error}"));
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(fail)?;
        let interrupt = Arc::new(Interrupt::default());
        let shared = interrupt.clone();
        let wait = move || {
            for signal in signals.forever() {
                if signal == SIGINT && shared.is_in_turn.load(Ordering::SeqCst) {
                    shared.is_turn_cancelled.store(true, Ordering::SeqCst);
                    continue;
                }
                // Held until the end, so that nothing is moved into place any more.
                let folders = shared.lock();
                folders.iter().for_each(|folder| remove(folder));
                std::process::exit(SIGNAL_BASE + signal);
            }
        };
        std::thread::Builder::new().name("signals".to_string()).spawn(wait).map_err(fail)?;
        Ok(interrupt)
    }

    /// From here to the end of what is returned, Ctrl-C cancels the turn.
    pub fn begin_turn(self: &Arc<Self>) -> Turn {
        self.is_turn_cancelled.store(false, Ordering::SeqCst);
        self.is_in_turn.store(true, Ordering::SeqCst);
        Turn { interrupt: self.clone() }
    }

    /// A staging folder beside the file that is to be written.
    pub fn staging_beside(self: &Arc<Self>, path: &Path) -> Result<Staging, Failure> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let fail = |error: std::io::Error| Failure::usage(format!("cannot write '{}': {error}", path.display()));
        self.stage(|builder| builder.tempdir_in(parent)).map_err(fail)
    }

    /// A staging folder for files that nobody keeps.
    pub fn scratch(self: &Arc<Self>) -> Result<Staging, Failure> {
        let fail = |error: std::io::Error| Failure::usage(format!("cannot make a temporary folder: {error}"));
        self.stage(|builder| builder.tempdir()).map_err(fail)
    }

    fn stage(
        self: &Arc<Self>,
        make: impl FnOnce(&tempfile::Builder<'_, '_>) -> std::io::Result<TempDir>,
    ) -> std::io::Result<Staging> {
        let mut folders = self.lock();
        let folder = make(tempfile::Builder::new().prefix(".precast-"))?;
        folders.push(folder.path().to_path_buf());
        Ok(Staging { folder, interrupt: self.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.folders.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A turn that Ctrl-C cancels.
pub struct Turn {
    interrupt: Arc<Interrupt>,
}

impl Turn {
    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.interrupt.is_turn_cancelled.load(Ordering::SeqCst)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.interrupt.is_in_turn.store(false, Ordering::SeqCst);
    }
}

/// A folder for files on their way; it is removed in the end.
pub struct Staging {
    folder: TempDir,
    interrupt: Arc<Interrupt>,
}

impl Staging {
    /// A path inside.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Moves finished files to their place; signals wait until that is done.
    pub fn publish<E>(&self, move_files: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let _waiting = self.interrupt.lock();
        move_files()
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.interrupt.lock().retain(|folder| folder != self.folder.path());
    }
}

fn remove(folder: &Path) {
    for _ in 0..REMOVALS_MAX {
        if std::fs::remove_dir_all(folder).is_ok() || !folder.exists() {
            return;
        }
    }
}
