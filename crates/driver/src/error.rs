//! What can go wrong between us and a driver.

use crate::library::Vendor;

/// Memory of the device is used up.
const OUT_OF_MEMORY: i32 = 2;
/// The HIP runtime could not get memory from the layer below it.
const HIP_RUNTIME_MEMORY: i32 = 1052;
/// The HIP runtime lost the layer below it.
const HIP_RUNTIME_OTHER: i32 = 1053;
/// Work that was asked about has not finished. A state rather than a fault.
pub(crate) const NOT_READY: i32 = 600;
/// Codes after which every later call on the same device fails: uncorrectable memory (214), link (220), hardware (224,
/// 226), illegal address (700), timeout (702), destroyed context (709), assertion (710), and what a faulting kernel
/// leaves behind (714 to 719).
const STICKY: &[i32] = &[214, 220, 224, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719];

/// A failure of a driver or of a runtime compiler, or a request that it would have been wrong to pass on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// None of the library's names could be opened.
    #[error("the {vendor} {what} is not here: tried {}; the loader says: {reason}", .tried.join(", "), vendor = .vendor.name())]
    MissingLibrary {
        /// Whose library it is.
        vendor: Vendor,
        /// `driver` or `compiler`.
        what: &'static str,
        /// Every name that was tried, in order.
        tried: Vec<String>,
        /// What the loader said about one that did not load, or else about the first.
        reason: String,
    },
    /// The library was opened but lacks a function.
    #[error("{library} has no function {symbol}: this {} library is too old, or not one at all", .vendor.name())]
    MissingSymbol {
        /// Whose library it is.
        vendor: Vendor,
        /// The file or name that was opened.
        library: String,
        /// The function that is missing.
        symbol: &'static str,
    },
    /// A call returned a status other than success.
    #[error("{call} failed with {code} ({name})")]
    Call {
        /// The function that was called.
        call: &'static str,
        /// Its status.
        code: i32,
        /// The vendor's name of the status.
        name: String,
    },
    /// A call reported success and gave nothing.
    #[error("{call} reported success but gave no handle")]
    NullHandle {
        /// The function that was called.
        call: &'static str,
    },
    /// A source text did not compile.
    #[error("{name} does not compile for {arch}:\n{log}")]
    Compile {
        /// The name of the source text.
        name: String,
        /// The architecture it was compiled for.
        arch: String,
        /// What the compiler said.
        log: String,
    },
    /// A range does not lie inside its buffer.
    #[error("{call}: bytes {start} to {end} do not lie inside a buffer of {len} bytes")]
    OutOfRange {
        /// The method that was called.
        call: &'static str,
        /// First byte of the range.
        start: usize,
        /// One past the last byte of the range, or the largest number if that overflows.
        end: usize,
        /// Size of the buffer.
        len: usize,
    },
    /// Two objects of one call belong to different devices.
    #[error("{call}: the {what} belongs to device {found}, the call is for device {expected}")]
    WrongDevice {
        /// The method that was called.
        call: &'static str,
        /// Which object is on another device.
        what: &'static str,
        /// Device of the object.
        found: usize,
        /// Device of the call.
        expected: usize,
    },
    /// A value that the driver cannot be given, such as a name with a zero byte.
    #[error("{call}: {reason}")]
    Invalid {
        /// The method that was called.
        call: &'static str,
        /// What is wrong with the value.
        reason: String,
    },
}

impl DriverError {
    /// Whether the device ran out of memory; freeing some and trying again may help.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self.code(), Some(OUT_OF_MEMORY | HIP_RUNTIME_MEMORY))
    }

    /// Whether every later call on the device will fail too.
    ///
    /// HIP uses CUDA's numbers here, and adds one of its own for a lost runtime.
    pub fn is_sticky(&self) -> bool {
        self.code().is_some_and(|code| STICKY.contains(&code) || code == HIP_RUNTIME_OTHER)
    }

    /// Whether a capture was broken, or a call was made that a capture forbids. Both vendors use 900 to 908.
    pub fn is_capture(&self) -> bool {
        self.code().is_some_and(|code| (900..=908).contains(&code))
    }

    /// The status of the failed call, if a call failed.
    pub fn code(&self) -> Option<i32> {
        match self {
            DriverError::Call { code, .. } => Some(*code),
            DriverError::MissingLibrary { .. }
            | DriverError::MissingSymbol { .. }
            | DriverError::NullHandle { .. }
            | DriverError::Compile { .. }
            | DriverError::OutOfRange { .. }
            | DriverError::WrongDevice { .. }
            | DriverError::Invalid { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(code: i32) -> DriverError {
        DriverError::Call { call: "cuLaunchKernel", code, name: "CUDA_ERROR_TEST".to_string() }
    }

    #[test]
    fn codes_fall_into_their_classes() {
        assert!(call(2).is_out_of_memory() && !call(2).is_sticky() && !call(2).is_capture());
        assert!([214, 700, 702, 719].iter().all(|&code| call(code).is_sticky()));
        assert!((900..=908).all(|code| call(code).is_capture() && !call(code).is_sticky()));
        assert!(!call(899).is_capture() && !call(909).is_capture() && !call(1).is_sticky());
    }

    #[test]
    fn a_failed_call_is_a_sentence() {
        assert_eq!(call(700).to_string(), "cuLaunchKernel failed with 700 (CUDA_ERROR_TEST)");
    }
}
