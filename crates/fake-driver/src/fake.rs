//! The tests' side: a fresh copy of the library, with devices, faults and rules of its own.

use crate::private_copy::PrivateCopy;
use std::ffi::{CString, c_char};
use std::path::Path;

/// One opened copy of the fake driver. Tests that run side by side have one each and share nothing.
pub struct Fake {
    copy: PrivateCopy,
}

type ReadText = unsafe extern "C" fn(*mut u8, usize) -> usize;

impl Fake {
    /// Opens a copy with this many devices.
    ///
    /// The library is looked for beside the running test, where Cargo puts it for a crate that has
    /// `precast-fake-driver` among its dev-dependencies.
    pub fn new(devices: u32) -> Fake {
        let fake = Fake { copy: PrivateCopy::open("libprecast_fake_driver.so") };
        fake.reset(devices);
        fake
    }

    /// Where the copy is, to be opened as a driver or as a compiler of either vendor.
    pub fn path(&self) -> &Path {
        self.copy.path()
    }

    /// Forgets everything and offers this many devices.
    pub fn reset(&self, devices: u32) {
        // SAFETY: the function has this signature.
        let reset = unsafe { self.copy.library.get::<extern "C" fn(u32)>(b"fake_driver_reset") };
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
        let inject = unsafe { self.copy.library.get::<unsafe extern "C" fn(*const c_char, u32, i32)>(name) };
        let inject = inject.expect("the fake driver has its own functions");
        // SAFETY: the text ends with a zero byte.
        unsafe { inject(text.as_ptr(), nth, code) };
    }

    /// How often a function was called since the last reset.
    pub fn calls(&self, symbol: &str) -> u32 {
        let text = CString::new(symbol).expect("a symbol holds no zero byte");
        // SAFETY: the function has this signature.
        let calls =
            unsafe { self.copy.library.get::<unsafe extern "C" fn(*const c_char) -> u32>(b"fake_driver_calls") };
        let calls = calls.expect("the fake driver has its own functions");
        // SAFETY: the text ends with a zero byte.
        unsafe { calls(text.as_ptr()) }
    }

    /// Whether the library exports a function.
    pub fn has_symbol(&self, symbol: &str) -> bool {
        self.copy.has_symbol(symbol)
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
        let read = unsafe { self.copy.library.get::<ReadText>(name) }.expect("the fake driver has its own functions");
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
