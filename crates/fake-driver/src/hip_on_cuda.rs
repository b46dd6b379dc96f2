//! The tests' side of `precast-hip-on-cuda`: HIP that forwards to a CUDA driver of the test's choice, such as the fake one.

use crate::private_copy::PrivateCopy;
use std::ffi::{CString, c_char};
use std::path::Path;

/// One opened copy. Tests that run side by side have one each and share nothing.
pub struct HipOnCuda {
    copy: PrivateCopy,
}

impl HipOnCuda {
    /// Opens a copy that forwards to a CUDA driver and an NVRTC at these paths. For crates that have
    /// `precast-hip-on-cuda` among their dev-dependencies.
    pub fn new(driver: &Path, compiler: &Path) -> HipOnCuda {
        type ForwardTo = unsafe extern "C" fn(*const c_char, *const c_char) -> i32;
        let copy = PrivateCopy::open("libprecast_hip_on_cuda.so");
        let text = |path: &Path| CString::new(path.to_string_lossy().as_bytes()).expect("a path holds no zero byte");
        let (driver, compiler) = (text(driver), text(compiler));
        // SAFETY: the function has this signature.
        let forward_to = unsafe { copy.library.get::<ForwardTo>(b"hip_on_cuda_forward_to") };
        let forward_to = forward_to.expect("the library has its own functions");
        // SAFETY: both texts end with a zero byte.
        let code = unsafe { forward_to(driver.as_ptr(), compiler.as_ptr()) };
        assert_eq!(code, 0, "{driver:?} and {compiler:?} can be opened");
        HipOnCuda { copy }
    }

    /// Where the copy is, to be opened as a driver and as a compiler of AMD.
    pub fn path(&self) -> &Path {
        self.copy.path()
    }

    /// Whether the library exports a function.
    pub fn has_symbol(&self, symbol: &str) -> bool {
        self.copy.has_symbol(symbol)
    }
}

impl Drop for HipOnCuda {
    fn drop(&mut self) {
        // SAFETY: the function has this signature.
        let release = unsafe { self.copy.library.get::<extern "C" fn()>(b"hip_on_cuda_release") };
        release.expect("the library has its own functions")();
    }
}
