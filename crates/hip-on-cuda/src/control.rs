//! The tests' own functions, looked up by name as HIP's are.

use crate::cuda::{forward_to, release_contexts};
use std::ffi::{CStr, c_char};

/// Sends all calls from now on to other libraries; 0 where both can be opened.
///
/// # Safety
/// Both must be texts that end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hip_on_cuda_forward_to(driver: *const c_char, compiler: *const c_char) -> i32 {
    // SAFETY: the caller gives texts.
    let (driver, compiler) = unsafe { (CStr::from_ptr(driver), CStr::from_ptr(compiler)) };
    i32::from(!forward_to(&driver.to_string_lossy(), &compiler.to_string_lossy()))
}

/// Gives up the devices that were made current; HIP itself never does.
#[unsafe(no_mangle)]
pub extern "C" fn hip_on_cuda_release() {
    release_contexts();
}
