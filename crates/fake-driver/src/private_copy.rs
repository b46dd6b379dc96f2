//! A copy of a test library that nobody else has opened: another file is another library to the loader, with state of its own.

use libloading::Library;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// An opened copy.
pub(crate) struct PrivateCopy {
    pub(crate) library: &'static Library,
    path: PathBuf,
    /// Where the copy lies; removed with this.
    _folder: TempDir,
}

impl PrivateCopy {
    /// Copies and opens a library that lies beside the running test, where Cargo puts those of dev-dependencies.
    pub(crate) fn open(name: &str) -> PrivateCopy {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join(name);
        let original = library_path(name);
        std::fs::copy(&original, &path)
            .unwrap_or_else(|error| panic!("{} cannot be copied: {error}", original.display()));
        // SAFETY: the library is our own.
        let library = unsafe { Library::new(&path) }.expect("a library of our own can be opened");
        // Never closed: threads may still hold its thread-local values when the test ends.
        PrivateCopy { library: Box::leak(Box::new(library)), path, _folder: folder }
    }

    /// Where the copy is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the library exports a function.
    pub(crate) fn has_symbol(&self, symbol: &str) -> bool {
        // SAFETY: the symbol is not called.
        unsafe { self.library.get::<extern "C" fn()>(symbol.as_bytes()) }.is_ok()
    }
}

/// The library beside the running executable, or beside the folder of one that is not a test.
fn library_path(name: &str) -> PathBuf {
    let executable = std::env::current_exe().expect("the running executable has a path");
    let folder = executable.parent().expect("an executable lies in a folder");
    let places = [folder.join(name), folder.join("deps").join(name), folder.join("../deps").join(name)];
    let found = places.iter().find(|place| place.exists());
    found.unwrap_or_else(|| panic!("{name} is not beside {}", executable.display())).clone()
}
