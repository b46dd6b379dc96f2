//! The tests' own functions, looked up by name as the driver's are.

use crate::state::with_state;
use std::ffi::{CStr, c_char};

/// Forgets everything and offers this many devices.
#[unsafe(no_mangle)]
pub extern "C" fn fake_driver_reset(devices: u32) {
    with_state(|state| state.reset(devices as usize));
}

/// Makes the `nth` call of a function from now on return `code`; -1 is success with a null handle.
///
/// # Safety
/// `symbol` must be a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_driver_inject(symbol: *const c_char, nth: u32, code: i32) {
    // SAFETY: the caller says that a text is there.
    let symbol = unsafe { CStr::from_ptr(symbol) }.to_string_lossy();
    with_state(|state| state.inject(&symbol, nth, code, false));
}

/// As `fake_driver_inject`, for the `nth` call and every one after it.
///
/// # Safety
/// `symbol` must be a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_driver_inject_after(symbol: *const c_char, nth: u32, code: i32) {
    // SAFETY: the caller says that a text is there.
    let symbol = unsafe { CStr::from_ptr(symbol) }.to_string_lossy();
    with_state(|state| state.inject(&symbol, nth, code, true));
}

/// How often a function was called.
///
/// # Safety
/// `symbol` must be a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_driver_calls(symbol: *const c_char) -> u32 {
    // SAFETY: the caller says that a text is there.
    let symbol = unsafe { CStr::from_ptr(symbol) }.to_string_lossy();
    with_state(|state| state.calls.get(symbol.as_ref()).copied().unwrap_or(0))
}

/// Writes the violations, one a line, and returns their length. They are forgotten if they fitted.
///
/// # Safety
/// There must be `capacity` bytes to write at `buffer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_driver_violations(buffer: *mut u8, capacity: usize) -> usize {
    with_state(|state| {
        let text = state.violations.join("\n");
        // SAFETY: the caller vouches for the buffer.
        if unsafe { write_text(&text, buffer, capacity) } {
            state.violations.clear();
        }
        text.len()
    })
}

/// Writes how many objects of each kind are alive, as `kind=count` with spaces between, and returns the length.
///
/// # Safety
/// There must be `capacity` bytes to write at `buffer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_driver_live(buffer: *mut u8, capacity: usize) -> usize {
    with_state(|state| {
        let text = state.live();
        // SAFETY: the caller vouches for the buffer.
        unsafe { write_text(&text, buffer, capacity) };
        text.len()
    })
}

/// Writes a text if it fits.
///
/// # Safety
/// There must be `capacity` bytes to write at `buffer`.
unsafe fn write_text(text: &str, buffer: *mut u8, capacity: usize) -> bool {
    let fits = text.len() <= capacity;
    if fits && capacity > 0 {
        // SAFETY: the text fits the buffer, and they are different memory.
        unsafe { buffer.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    }
    fits
}
