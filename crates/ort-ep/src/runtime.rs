//! The ONNX Runtime that loaded this library, as safe calls. There may be two of them in one process, so nothing here is
//! global: whoever calls holds the Runtime it belongs to.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use crate::abi::{
    API_VERSION_MAX, API_VERSION_MIN, LogLevel, OrtApi, OrtApiBase, OrtEpApi, OrtKeyValuePairs, OrtLogger,
    OrtModelEditorApi, OrtStatus, error_code,
};
use crate::error::EpError;

/// The tables of one ONNX Runtime.
#[derive(Clone, Copy)]
pub(crate) struct Runtime {
    pub(crate) api: OrtApi,
    pub(crate) ep: OrtEpApi,
    pub(crate) editor: OrtModelEditorApi,
    /// The version of the interface that both sides have.
    pub(crate) version: u32,
}

impl Runtime {
    /// The tables of a runtime, or what to tell it where it is too old.
    ///
    /// # Safety
    /// `base` is what the runtime hands to a library.
    pub(crate) unsafe fn open(base: *const OrtApiBase) -> Result<Runtime, *mut OrtStatus> {
        // SAFETY: the caller says so.
        let base = unsafe { &*base };
        // SAFETY: the function takes nothing and gives a text that stays.
        let text = unsafe { text_at((base.get_version_string)()) };
        let minor = minor_version(&text).unwrap_or(0);
        // Asked for a version that it does not have, the runtime gives null and prints.
        // SAFETY: the function takes a number.
        let table = unsafe { (base.get_api)(minor.min(API_VERSION_MAX)) };
        if minor < API_VERSION_MIN {
            let needed = format!("precast needs onnxruntime 1.{API_VERSION_MIN} or later; this is {text}");
            // SAFETY: a status is made by slot 0 in every version.
            let api = unsafe { OrtApi::new(table) };
            return Err(if table.is_null() { null_mut() } else { status(api, error_code::NOT_IMPLEMENTED, &needed) });
        }
        // SAFETY: versions from the least on have every slot that is declared.
        let api = unsafe { OrtApi::new(table) };
        // SAFETY: the function takes nothing; its table has the slots of the same version.
        let ep = unsafe { OrtEpApi::new(api.get_ep_api()) };
        // SAFETY: as above.
        let editor = unsafe { OrtModelEditorApi::new(api.get_model_editor_api()) };
        Ok(Runtime { api, ep, editor, version: minor.min(API_VERSION_MAX) })
    }

    /// The outcome of a call; its status is released.
    #[inline]
    pub(crate) fn check(self, status: *mut OrtStatus) -> Result<(), EpError> {
        if status.is_null() { Ok(()) } else { Err(self.error_of(status)) }
    }

    #[cold]
    fn error_of(self, status: *mut OrtStatus) -> EpError {
        // SAFETY: a status that is not null has a text, which is copied before the status ends.
        let text = unsafe { text_at(self.api.get_error_message(status)) };
        // SAFETY: statuses belong to who gets them.
        unsafe { self.api.release_status(status) };
        EpError::Runtime(text)
    }

    /// What `call` writes.
    #[inline]
    pub(crate) fn get<T: Copy>(self, start: T, call: impl FnOnce(*mut T) -> *mut OrtStatus) -> Result<T, EpError> {
        let mut value = start;
        self.check(call(&mut value))?;
        Ok(value)
    }

    /// The pointers that `fill` writes, as many as `count` says.
    pub(crate) fn list<T>(
        self,
        count: impl FnOnce(*mut usize) -> *mut OrtStatus,
        fill: impl FnOnce(*mut *const T, usize) -> *mut OrtStatus,
    ) -> Result<Vec<*const T>, EpError> {
        let count = self.get(0, count)?;
        let mut items = vec![std::ptr::null(); count];
        if count > 0 {
            self.check(fill(items.as_mut_ptr(), count))?;
        }
        Ok(items)
    }

    /// The text that `call` gives.
    pub(crate) fn text(self, call: impl FnOnce(*mut *const c_char) -> *mut OrtStatus) -> Result<String, EpError> {
        let address = self.get(std::ptr::null(), call)?;
        // SAFETY: the runtime's texts end in a zero and outlive the call that gave them.
        Ok(unsafe { text_at(address) })
    }

    /// Every pair of a list.
    ///
    /// # Safety
    /// `pairs` is a list of the runtime's.
    pub(crate) unsafe fn pairs(self, pairs: *const OrtKeyValuePairs) -> Vec<(String, String)> {
        let (mut keys, mut values, mut count) = (std::ptr::null(), std::ptr::null(), 0);
        // SAFETY: the three are written.
        unsafe { self.api.get_key_value_pairs(pairs, &mut keys, &mut values, &mut count) };
        // SAFETY: both lists have `count` texts.
        let pair = |index| unsafe { (text_at(*keys.add(index)), text_at(*values.add(index))) };
        (0..count).map(pair).collect()
    }

    /// Runs the body of a callback. Neither an error nor a panic leaves it otherwise than as a status.
    pub(crate) fn guard(self, place: &str, body: impl FnOnce() -> Result<(), EpError>) -> *mut OrtStatus {
        let body = || {
            #[cfg(test)]
            crate::callback_tests::strike(place);
            body()
        };
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => null_mut(),
            Ok(Err(error)) => status(self.api, error_code::FAIL, &error.to_string()),
            Err(panic) => {
                let text = panic_text(&*panic);
                status(self.api, error_code::FAIL, &format!("precast: a fault of ours in {place}: {text}"))
            }
        }
    }
}

/// Where the messages of a session go.
#[derive(Clone, Copy)]
pub(crate) struct Log {
    pub(crate) runtime: Runtime,
    pub(crate) logger: *const OrtLogger,
}

// SAFETY: loggers of the runtime may be used from any thread.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl Sync for Log {}

impl Log {
    /// Writes a message.
    pub(crate) fn write(self, level: LogLevel, message: &str) {
        if self.logger.is_null() {
            return;
        }
        let message = c_text(&format!("precast: {message}"));
        let (file, function) = (c"precast", c"precast");
        // SAFETY: the logger lives as long as the session, and texts are copied.
        let status = unsafe {
            self.runtime.api.log_message(self.logger, level, message.as_ptr(), file.as_ptr(), 0, function.as_ptr())
        };
        // A message that cannot be written has nowhere else to go.
        let _ = self.runtime.check(status);
    }
}

/// A status with a text, which is copied.
fn status(api: OrtApi, code: c_int, message: &str) -> *mut OrtStatus {
    let message = c_text(message);
    // SAFETY: the text ends in a zero.
    unsafe { api.create_status(code, message.as_ptr()) }
}

/// The text at an address; nothing at a null one.
///
/// # Safety
/// The address is null or that of a text that ends in a zero.
pub(crate) unsafe fn text_at(address: *const c_char) -> String {
    if address.is_null() {
        return String::new();
    }
    // SAFETY: the caller says so.
    unsafe { CStr::from_ptr(address) }.to_string_lossy().into_owned()
}

/// A text as C has it; it ends where it has a zero.
pub(crate) fn c_text(text: &str) -> CString {
    let until_zero = text.split('\0').next().unwrap_or_default();
    CString::new(until_zero).unwrap_or_default()
}

/// The bytes at an address; none where there are none, whatever the address, and aligned for every element type.
///
/// # Safety
/// `bytes` bytes at the address can be read for all of `'a`.
pub(crate) unsafe fn bytes_at<'a>(address: *const c_void, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return bytemuck::cast_slice::<u64, u8>(&[]);
    }
    // SAFETY: the caller says so.
    unsafe { std::slice::from_raw_parts(address.cast(), bytes) }
}

/// The second number of `1.24.4`, which is the version of the interface.
fn minor_version(text: &str) -> Option<u32> {
    text.split('.').nth(1)?.parse().ok()
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_the_interface_is_the_second_number() {
        assert_eq!(minor_version("1.24.4"), Some(24));
        assert_eq!(minor_version("1.31.1"), Some(31));
        assert_eq!(minor_version("1.30.0.dev1"), Some(30));
        assert_eq!(minor_version("nightly"), None);
    }

    #[test]
    fn texts_end_where_c_ends_them() {
        assert_eq!(c_text("one\0two").as_c_str(), c"one");
    }
}
