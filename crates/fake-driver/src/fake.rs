//! The tests' side: a fresh copy of the library, with devices, faults and rules of its own.

use libloading::Library;
use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// One opened copy of the fake driver. Tests that run side by side have one each and share nothing.
pub struct Fake {
    library: &'static Library,
    path: PathBuf,
    /// Where the copy lies; removed with this.
    _folder: TempDir,
}

type ReadText = unsafe extern "C" fn(*mut u8, usize) -> usize;

impl Fake {
    /// Opens a copy with this many devices.
    ///
    /// The library is looked for beside the running test, where Cargo puts it for a crate that has
    /// `precast-fake-driver` among its dev-dependencies.
    pub fn new(devices: u32) -> Fake {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join("libfake.so");
        let original = library_path();
        std::fs::copy(&original, &path)
            .unwrap_or_else(|error| panic!("{} cannot be copied: {error}", original.display()));
        // SAFETY: the library is our own. Another file is another copy for the loader, with state of its own.
        let library = unsafe { Library::new(&path) }.expect("the fake driver can be opened");
        // Never closed: threads may still hold its thread-local values when the test ends.
        let fake = Fake { library: Box::leak(Box::new(library)), path, _folder: folder };
        fake.reset(devices);
        fake
    }

    /// Where the copy is, to be opened as a driver or as a compiler of either vendor.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Forgets everything and offers this many devices.
    pub fn reset(&self, devices: u32) {
        // SAFETY: the function has this signature.
        let reset = unsafe { self.library.get::<extern "C" fn(u32)>(b"fake_driver_reset") };
        reset.expect("the fake driver has its own functions")(devices);
    }

    /// Makes the `nth` call of a function from now on return `code`; -1 is success with a null handle.
    pub fn inject(&self, symbol: &str, nth: u32, code: i32) {
        self.call_inject(b"fake_driver_inject", symbol, nth, code);
    }

    /// Makes the `nth` call of a function from now on, and every one after it, return `code`.
    pub fn inject_after(&self, symbol: &str, nth: u32, code: i32) {
        self.call_inject(b"fake_driver_inject_after", symbol, nth, code);
    }

    fn call_inject(&self, name: &[u8], symbol: &str, nth: u32, code: i32) {
        let text = CString::new(symbol).expect("a symbol holds no zero byte");
        // SAFETY: the function has this signature.
        let inject = unsafe { self.library.get::<unsafe extern "C" fn(*const c_char, u32, i32)>(name) };
        let inject = inject.expect("the fake driver has its own functions");
        // SAFETY: the text ends with a zero byte.
        unsafe { inject(text.as_ptr(), nth, code) };
    }

    /// How often a function was called since the last reset.
    pub fn calls(&self, symbol: &str) -> u32 {
        let text = CString::new(symbol).expect("a symbol holds no zero byte");
        // SAFETY: the function has this signature.
        let calls = unsafe { self.library.get::<unsafe extern "C" fn(*const c_char) -> u32>(b"fake_driver_calls") };
        let calls = calls.expect("the fake driver has its own functions");
        // SAFETY: the text ends with a zero byte.
        unsafe { calls(text.as_ptr()) }
    }

    /// Whether the library exports a function.
    pub fn has_symbol(&self, symbol: &str) -> bool {
        // SAFETY: the symbol is not called.
        unsafe { self.library.get::<extern "C" fn()>(symbol.as_bytes()) }.is_ok()
    }

    /// The violations since they were last read, one a sentence.
    pub fn violations(&self) -> Vec<String> {
        self.read(b"fake_driver_violations").lines().map(String::from).collect()
    }

    /// What is alive, as `kind=count` with spaces between; empty if nothing is.
    pub fn live(&self) -> String {
        self.read(b"fake_driver_live")
    }

    /// Panics unless nothing is alive and no rule was violated.
    pub fn assert_clean(&self) {
        let (live, violations) = (self.live(), self.violations());
        assert!(live.is_empty() && violations.is_empty(), "alive: [{live}], violations: {violations:#?}");
    }

    fn read(&self, name: &[u8]) -> String {
        // SAFETY: the function has this signature.
        let read = unsafe { self.library.get::<ReadText>(name) }.expect("the fake driver has its own functions");
        let mut bytes = vec![0; 1 << 16];
        loop {
            // SAFETY: the vector has as many bytes as the call is told.
            let len = unsafe { read(bytes.as_mut_ptr(), bytes.len()) };
            if len <= bytes.len() {
                bytes.truncate(len);
                return String::from_utf8_lossy(&bytes).into_owned();
            }
            bytes.resize(len, 0);
        }
    }
}

/// The library beside the running executable, or beside the folder of one that is not a test.
fn library_path() -> PathBuf {
    let name = "libprecast_fake_driver.so";
    let executable = std::env::current_exe().expect("the running executable has a path");
    let folder = executable.parent().expect("an executable lies in a folder");
    let places = [folder.join(name), folder.join("deps").join(name), folder.join("../deps").join(name)];
    let found = places.iter().find(|place| place.exists());
    found.unwrap_or_else(|| panic!("{name} is not beside {}", executable.display())).clone()
}
