//! The entry points that we use, by name: one list for both vendors, and a short one for each.
//!
//! Handles and device addresses are machine words. Both vendors pass them as pointers or 64-bit integers, which are the
//! same thing to the calling convention of every 64-bit platform, and a word can be sent between threads.

use crate::error::DriverError;
use crate::library::Vendor;
use libloading::Library as Loaded;
use std::ffi::{c_char, c_void};

/// An opaque handle of the driver: a stream, an event, a module, a graph, and so on.
pub(crate) type Handle = usize;

/// One resolved function and the name it was found under.
pub(crate) struct Entry<F> {
    pub(crate) name: &'static str,
    pub(crate) call: F,
}

/// Looks a function up under its names, in order.
///
/// # Safety
/// Each name must be that of a function of type `F`.
unsafe fn resolve<F: Copy>(
    vendor: Vendor,
    loaded: &Loaded,
    library: &str,
    names: &'static [&'static str],
) -> Result<Entry<F>, DriverError> {
    for name in names {
        // SAFETY: the caller says that the name stands for a function of type F.
        if let Ok(symbol) = unsafe { loaded.get::<F>(name.as_bytes()) } {
            return Ok(Entry { name, call: *symbol });
        }
    }
    Err(DriverError::MissingSymbol { vendor, library: library.to_string(), symbol: names[0] })
}

/// A table of functions that both vendors have: `field (CUDA names) (HIP names): argument types;`
/// Every function returns a status. A function with more than one name is looked up under each in turn.
macro_rules! shared_entries {
    ($(#[$doc:meta])* $table:ident {
        $($field:ident ($($cuda:literal),+) ($($hip:literal),+): $($argument:ty),*;)*
    }) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $(pub(crate) $field: Entry<unsafe extern "C" fn($($argument),*) -> i32>,)*
        }

        impl $table {
            pub(crate) const CUDA: &[&str] = &[$($($cuda),+),*];
            pub(crate) const HIP: &[&str] = &[$($($hip),+),*];

            pub(crate) fn resolve(vendor: Vendor, loaded: &Loaded, library: &str) -> Result<Self, DriverError> {
                Ok($table {
                    $($field: {
                        let names: &[&str] = match vendor {
                            Vendor::Cuda => &[$($cuda),+],
                            Vendor::Hip => &[$($hip),+],
                        };
                        // SAFETY: the row gives the signature that the vendor documents for these names.
                        unsafe { resolve(vendor, loaded, library, names) }?
                    },)*
                })
            }
        }
    };
}

/// A table of functions of one vendor: `field (names): argument types => result;`
macro_rules! own_entries {
    ($(#[$doc:meta])* $table:ident $vendor:expr => {
        $($field:ident ($($name:literal),+): $($argument:ty),* => $result:ty;)*
    }) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $(pub(crate) $field: Entry<unsafe extern "C" fn($($argument),*) -> $result>,)*
        }

        impl $table {
            pub(crate) const NAMES: &[&str] = &[$($($name),+),*];

            pub(crate) fn resolve(loaded: &Loaded, library: &str) -> Result<Self, DriverError> {
                Ok($table {
                    $($field: {
                        // SAFETY: the row gives the signature that the vendor documents for these names.
                        unsafe { resolve($vendor, loaded, library, &[$($name),+]) }?
                    },)*
                })
            }
        }
    };
}

shared_entries! {
    /// Driver functions with one signature for both vendors.
    Shared {
        initialise ("cuInit") ("hipInit"): u32;
        driver_version ("cuDriverGetVersion") ("hipDriverGetVersion"): *mut i32;
        device_count ("cuDeviceGetCount") ("hipGetDeviceCount"): *mut i32;
        device_get ("cuDeviceGet") ("hipDeviceGet"): *mut i32, i32;
        device_name ("cuDeviceGetName") ("hipDeviceGetName"): *mut c_char, i32, i32;
        device_memory ("cuDeviceTotalMem_v2") ("hipDeviceTotalMem"): *mut usize, i32;
        device_attribute ("cuDeviceGetAttribute") ("hipDeviceGetAttribute"): *mut i32, i32, i32;
        device_synchronize ("cuCtxSynchronize") ("hipDeviceSynchronize"): ;
        memory_info ("cuMemGetInfo_v2") ("hipMemGetInfo"): *mut usize, *mut usize;
        memory_allocate ("cuMemAlloc_v2") ("hipMalloc"): *mut u64, usize;
        memory_free ("cuMemFree_v2") ("hipFree"): u64;
        memory_attribute ("cuPointerGetAttribute") ("hipPointerGetAttribute"): *mut c_void, i32, u64;
        pinned_allocate ("cuMemHostAlloc") ("hipHostMalloc"): *mut *mut c_void, usize, u32;
        pinned_free ("cuMemFreeHost") ("hipHostFree"): *mut c_void;
        copy_to_device ("cuMemcpyHtoDAsync_v2") ("hipMemcpyHtoDAsync"): u64, *const c_void, usize, Handle;
        copy_from_device ("cuMemcpyDtoHAsync_v2") ("hipMemcpyDtoHAsync"): *mut c_void, u64, usize, Handle;
        copy_device ("cuMemcpyDtoDAsync_v2") ("hipMemcpyDtoDAsync"): u64, u64, usize, Handle;
        fill ("cuMemsetD8Async") ("hipMemsetD8Async"): u64, u8, usize, Handle;
        module_load ("cuModuleLoadData") ("hipModuleLoadData"): *mut Handle, *const c_void;
        module_unload ("cuModuleUnload") ("hipModuleUnload"): Handle;
        module_function ("cuModuleGetFunction") ("hipModuleGetFunction"): *mut Handle, Handle, *const c_char;
        launch ("cuLaunchKernel") ("hipModuleLaunchKernel"):
            Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut *mut c_void, *mut *mut c_void;
        stream_create ("cuStreamCreate") ("hipStreamCreateWithFlags"): *mut Handle, u32;
        stream_destroy ("cuStreamDestroy_v2") ("hipStreamDestroy"): Handle;
        stream_synchronize ("cuStreamSynchronize") ("hipStreamSynchronize"): Handle;
        stream_query ("cuStreamQuery") ("hipStreamQuery"): Handle;
        stream_wait ("cuStreamWaitEvent") ("hipStreamWaitEvent"): Handle, Handle, u32;
        capture_begin ("cuStreamBeginCapture_v2") ("hipStreamBeginCapture"): Handle, i32;
        capture_end ("cuStreamEndCapture") ("hipStreamEndCapture"): Handle, *mut Handle;
        event_create ("cuEventCreate") ("hipEventCreateWithFlags"): *mut Handle, u32;
        event_destroy ("cuEventDestroy_v2") ("hipEventDestroy"): Handle;
        event_record ("cuEventRecord") ("hipEventRecord"): Handle, Handle;
        event_synchronize ("cuEventSynchronize") ("hipEventSynchronize"): Handle;
        event_query ("cuEventQuery") ("hipEventQuery"): Handle;
        event_elapsed ("cuEventElapsedTime") ("hipEventElapsedTime"): *mut f32, Handle, Handle;
        graph_create ("cuGraphCreate") ("hipGraphCreate"): *mut Handle, u32;
        graph_destroy ("cuGraphDestroy") ("hipGraphDestroy"): Handle;
        graph_nodes ("cuGraphGetNodes") ("hipGraphGetNodes"): Handle, *mut Handle, *mut usize;
        graph_instantiate ("cuGraphInstantiateWithFlags") ("hipGraphInstantiateWithFlags"): *mut Handle, Handle, u64;
        graph_add_kernel ("cuGraphAddKernelNode_v2") ("hipGraphAddKernelNode"):
            *mut Handle, Handle, *const Handle, usize, *const c_void;
        exec_set_kernel ("cuGraphExecKernelNodeSetParams_v2") ("hipGraphExecKernelNodeSetParams"):
            Handle, Handle, *const c_void;
        exec_destroy ("cuGraphExecDestroy") ("hipGraphExecDestroy"): Handle;
        exec_launch ("cuGraphLaunch") ("hipGraphLaunch"): Handle, Handle;
    }
}

own_entries! {
    /// Driver functions that only CUDA has, or has with a signature of its own.
    CudaOnly Vendor::Cuda => {
        error_name ("cuGetErrorName"): i32, *mut *const c_char => i32;
        context_retain ("cuDevicePrimaryCtxRetain"): *mut Handle, i32 => i32;
        context_release ("cuDevicePrimaryCtxRelease_v2"): i32 => i32;
        context_set ("cuCtxSetCurrent"): Handle => i32;
        function_attribute ("cuFuncSetAttribute"): Handle, i32, i32 => i32;
        graph_add_copy ("cuGraphAddMemcpyNode"):
            *mut Handle, Handle, *const Handle, usize, *const c_void, Handle => i32;
        graph_add_fill ("cuGraphAddMemsetNode"):
            *mut Handle, Handle, *const Handle, usize, *const c_void, Handle => i32;
        exec_set_copy ("cuGraphExecMemcpyNodeSetParams"): Handle, Handle, *const c_void, Handle => i32;
        exec_upload ("cuGraphUpload"): Handle, Handle => i32;
        launch_with ("cuLaunchKernelEx"): *const c_void, Handle, *mut *mut c_void, *mut *mut c_void => i32;
    }
}

own_entries! {
    /// Driver functions that only HIP has, or has with a signature of its own.
    HipOnly Vendor::Hip => {
        error_name ("hipGetErrorName"): i32 => *const c_char;
        device_set ("hipSetDevice"): i32 => i32;
        // HIP 6 moved the fields of the properties and gave the function a new name; the old name may go.
        device_properties ("hipGetDevicePropertiesR0600", "hipGetDeviceProperties"): *mut c_void, i32 => i32;
        graph_add_copy ("hipGraphAddMemcpyNode1D"):
            *mut Handle, Handle, *const Handle, usize, u64, u64, usize, i32 => i32;
        graph_add_fill ("hipGraphAddMemsetNode"): *mut Handle, Handle, *const Handle, usize, *const c_void => i32;
        exec_set_copy ("hipGraphExecMemcpyNodeSetParams1D"): Handle, Handle, u64, u64, usize, i32 => i32;
    }
}

shared_entries! {
    /// The runtime compilers, which have one signature for both vendors.
    CompilerTable {
        version ("nvrtcVersion") ("hiprtcVersion"): *mut i32, *mut i32;
        create ("nvrtcCreateProgram") ("hiprtcCreateProgram"):
            *mut Handle, *const c_char, *const c_char, i32, *const *const c_char, *const *const c_char;
        destroy ("nvrtcDestroyProgram") ("hiprtcDestroyProgram"): *mut Handle;
        compile ("nvrtcCompileProgram") ("hiprtcCompileProgram"): Handle, i32, *const *const c_char;
        log_size ("nvrtcGetProgramLogSize") ("hiprtcGetProgramLogSize"): Handle, *mut usize;
        log ("nvrtcGetProgramLog") ("hiprtcGetProgramLog"): Handle, *mut c_char;
        code_size ("nvrtcGetCUBINSize") ("hiprtcGetCodeSize"): Handle, *mut usize;
        code ("nvrtcGetCUBIN") ("hiprtcGetCode"): Handle, *mut c_char;
    }
}

own_entries! {
    /// Names of NVRTC's own status codes, which are not the driver's.
    NvrtcErrors Vendor::Cuda => {
        error_string ("nvrtcGetErrorString"): i32 => *const c_char;
    }
}

own_entries! {
    /// Names of HIPRTC's own status codes, which are not the driver's.
    HiprtcErrors Vendor::Hip => {
        error_string ("hiprtcGetErrorString"): i32 => *const c_char;
    }
}

/// The functions whose shape depends on the vendor.
pub(crate) enum Own {
    Cuda(CudaOnly),
    Hip(HipOnly),
}

/// All functions of one driver.
pub(crate) struct Table {
    pub(crate) shared: Shared,
    pub(crate) own: Own,
}

impl Table {
    pub(crate) fn resolve(vendor: Vendor, loaded: &Loaded, library: &str) -> Result<Table, DriverError> {
        let shared = Shared::resolve(vendor, loaded, library)?;
        let own = match vendor {
            Vendor::Cuda => Own::Cuda(CudaOnly::resolve(loaded, library)?),
            Vendor::Hip => Own::Hip(HipOnly::resolve(loaded, library)?),
        };
        Ok(Table { shared, own })
    }
}
