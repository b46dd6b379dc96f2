//! The functions of HIP and HIPRTC, by their names.

use crate::cuda::{
    NOT_INITIALISED, architecture, code, compiler_function, current_context, driver_function, set_device, status,
};
use crate::nodes::{CudaCopy, CudaFill, CudaKernel, HipFill, HipKernel};
use std::ffi::{CStr, CString, c_char, c_void};

/// An opaque handle, or an address of the device.
type Handle = usize;

/// What both vendors call an argument that makes no sense.
const INVALID_VALUE: i32 = 1;
/// What the device calls itself, and where its properties say so in HIP 5 and since HIP 6.
const ARCHITECTURE: &CStr = c"gfx1030";
const HIP5_PROPERTIES: (usize, usize) = (792, 396);
const HIP6_PROPERTIES: (usize, usize) = (1472, 1160);
/// Longest name of a device.
const NAME_BYTES: usize = 256;
/// How HIPRTC and NVRTC are told the architecture.
const HIP_ARCHITECTURE: &str = "--offload-arch=";
const CUDA_ARCHITECTURE: &str = "--gpu-architecture=";

/// Attributes of a device that we ask for: HIP's number and CUDA's. HIP has no shared memory to opt into, so the maximum is
/// the one that every kernel may have.
const ATTRIBUTES: [(i32, i32); 4] = [(63, 16), (87, 10), (19, 38), (74, 8)];

/// Calls a function of CUDA that returns a status.
macro_rules! call {
    ($library:ident $name:literal ($($argument:expr => $kind:ty),*)) => {
        match $library::<unsafe extern "C" fn($($kind),*) -> i32>($name.as_bytes()) {
            // SAFETY: the signature is the one that CUDA documents, and the caller vouches for what it passes.
            Ok(function) => unsafe { function($($argument),*) },
            Err(status) => status,
        }
    };
}

/// `name = "CUDA's name" (arguments);`, for functions that have one signature with both vendors.
macro_rules! forward {
    ($library:ident: $($name:ident = $cuda:literal ($($argument:ident: $kind:ty),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "HIP's own name")]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> i32 {
                call!($library $cuda ($($argument => $kind),*))
            }
        )*
    };
}

forward! { driver_function:
    hipInit = "cuInit" (flags: u32);
    hipDriverGetVersion = "cuDriverGetVersion" (version: *mut i32);
    hipGetDeviceCount = "cuDeviceGetCount" (count: *mut i32);
    hipDeviceGet = "cuDeviceGet" (device: *mut i32, ordinal: i32);
    hipDeviceGetName = "cuDeviceGetName" (name: *mut c_char, len: i32, device: i32);
    hipDeviceTotalMem = "cuDeviceTotalMem_v2" (bytes: *mut usize, device: i32);
    hipDeviceSynchronize = "cuCtxSynchronize" ();
    hipMemGetInfo = "cuMemGetInfo_v2" (free: *mut usize, total: *mut usize);
    hipMalloc = "cuMemAlloc_v2" (address: *mut u64, bytes: usize);
    hipFree = "cuMemFree_v2" (address: u64);
    hipPointerGetAttribute = "cuPointerGetAttribute" (value: *mut c_void, attribute: i32, address: u64);
    hipHostMalloc = "cuMemHostAlloc" (start: *mut *mut c_void, bytes: usize, flags: u32);
    hipHostFree = "cuMemFreeHost" (start: *mut c_void);
    hipMemcpyHtoDAsync = "cuMemcpyHtoDAsync_v2" (to: u64, from: *const c_void, bytes: usize, stream: Handle);
    hipMemcpyDtoHAsync = "cuMemcpyDtoHAsync_v2" (to: *mut c_void, from: u64, bytes: usize, stream: Handle);
    hipMemcpyDtoDAsync = "cuMemcpyDtoDAsync_v2" (to: u64, from: u64, bytes: usize, stream: Handle);
    hipMemsetD8Async = "cuMemsetD8Async" (to: u64, value: u8, bytes: usize, stream: Handle);
    hipModuleLoadData = "cuModuleLoadData" (module: *mut Handle, image: *const c_void);
    hipModuleUnload = "cuModuleUnload" (module: Handle);
    hipModuleGetFunction = "cuModuleGetFunction" (function: *mut Handle, module: Handle, name: *const c_char);
    hipModuleLaunchKernel = "cuLaunchKernel" (
        function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared_bytes: u32, stream: Handle,
        parameters: *mut *mut c_void, extra: *mut *mut c_void
    );
    hipStreamCreateWithFlags = "cuStreamCreate" (stream: *mut Handle, flags: u32);
    hipStreamDestroy = "cuStreamDestroy_v2" (stream: Handle);
    hipStreamSynchronize = "cuStreamSynchronize" (stream: Handle);
    hipStreamQuery = "cuStreamQuery" (stream: Handle);
    hipStreamWaitEvent = "cuStreamWaitEvent" (stream: Handle, event: Handle, flags: u32);
    hipStreamBeginCapture = "cuStreamBeginCapture_v2" (stream: Handle, mode: i32);
    hipStreamEndCapture = "cuStreamEndCapture" (stream: Handle, graph: *mut Handle);
    hipEventCreateWithFlags = "cuEventCreate" (event: *mut Handle, flags: u32);
    hipEventDestroy = "cuEventDestroy_v2" (event: Handle);
    hipEventRecord = "cuEventRecord" (event: Handle, stream: Handle);
    hipEventSynchronize = "cuEventSynchronize" (event: Handle);
    hipEventQuery = "cuEventQuery" (event: Handle);
    hipEventElapsedTime = "cuEventElapsedTime" (milliseconds: *mut f32, start: Handle, end: Handle);
    hipGraphCreate = "cuGraphCreate" (graph: *mut Handle, flags: u32);
    hipGraphDestroy = "cuGraphDestroy" (graph: Handle);
    hipGraphGetNodes = "cuGraphGetNodes" (graph: Handle, nodes: *mut Handle, count: *mut usize);
    hipGraphInstantiateWithFlags = "cuGraphInstantiateWithFlags" (exec: *mut Handle, graph: Handle, flags: u64);
    hipGraphExecDestroy = "cuGraphExecDestroy" (exec: Handle);
    hipGraphLaunch = "cuGraphLaunch" (exec: Handle, stream: Handle);
}

forward! { compiler_function:
    hiprtcVersion = "nvrtcVersion" (major: *mut i32, minor: *mut i32);
    hiprtcCreateProgram = "nvrtcCreateProgram" (
        program: *mut Handle, source: *const c_char, name: *const c_char, headers: i32,
        header_texts: *const *const c_char, header_names: *const *const c_char
    );
    hiprtcDestroyProgram = "nvrtcDestroyProgram" (program: *mut Handle);
    hiprtcGetProgramLogSize = "nvrtcGetProgramLogSize" (program: Handle, len: *mut usize);
    hiprtcGetProgramLog = "nvrtcGetProgramLog" (program: Handle, log: *mut c_char);
    hiprtcGetCodeSize = "nvrtcGetCUBINSize" (program: Handle, len: *mut usize);
    hiprtcGetCode = "nvrtcGetCUBIN" (program: Handle, code: *mut c_char);
}

/// `name (arguments) = status;`, for functions that differ. The caller vouches for every pointer as HIP documents it.
macro_rules! own_exports {
    ($($name:ident ($($argument:ident: $kind:ty),*) = $body:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "HIP's own name")]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> i32 {
                $body
            }
        )*
    };
}

own_exports! {
    hipSetDevice (device: i32) = code(set_device(device));
    hipDeviceGetAttribute (value: *mut i32, attribute: i32, device: i32) =
        match ATTRIBUTES.iter().find(|(hip, _)| *hip == attribute) {
            Some(&(_, cuda)) => call!(driver_function "cuDeviceGetAttribute" (
                value => *mut i32, cuda => i32, device => i32
            )),
            None => INVALID_VALUE,
        };
    hipGetDeviceProperties (properties: *mut u8, device: i32) = {
        // SAFETY: the caller gives space for the properties of version 5.
        code(unsafe { write_properties(properties, HIP5_PROPERTIES, device) })
    };
    hipGetDevicePropertiesR0600 (properties: *mut u8, device: i32) = {
        // SAFETY: the caller gives space for the properties of version 6.
        code(unsafe { write_properties(properties, HIP6_PROPERTIES, device) })
    };
    hipGraphAddKernelNode (
        node: *mut Handle, graph: Handle, after: *const Handle, count: usize, kernel: &HipKernel
    ) = {
        let kernel = CudaKernel::from(kernel);
        call!(driver_function "cuGraphAddKernelNode_v2" (
            node => *mut Handle, graph => Handle, after => *const Handle, count => usize, &kernel => *const CudaKernel
        ))
    };
    hipGraphExecKernelNodeSetParams (exec: Handle, node: Handle, kernel: &HipKernel) = {
        let kernel = CudaKernel::from(kernel);
        call!(driver_function "cuGraphExecKernelNodeSetParams_v2" (
            exec => Handle, node => Handle, &kernel => *const CudaKernel
        ))
    };
    hipGraphAddMemsetNode (
        node: *mut Handle, graph: Handle, after: *const Handle, count: usize, fill: &HipFill
    ) = {
        let fill = CudaFill::from(fill);
        call!(driver_function "cuGraphAddMemsetNode" (
            node => *mut Handle, graph => Handle, after => *const Handle, count => usize,
            &fill => *const CudaFill, current_context() => Handle
        ))
    };
    hipGraphAddMemcpyNode1D (
        node: *mut Handle, graph: Handle, after: *const Handle, count: usize, to: u64, from: u64, bytes: usize,
        direction: i32
    ) = match CudaCopy::new(to, from, bytes, direction) {
        Some(copy) => call!(driver_function "cuGraphAddMemcpyNode" (
            node => *mut Handle, graph => Handle, after => *const Handle, count => usize,
            &copy => *const CudaCopy, current_context() => Handle
        )),
        None => INVALID_VALUE,
    };
    hipGraphExecMemcpyNodeSetParams1D (
        exec: Handle, node: Handle, to: u64, from: u64, bytes: usize, direction: i32
    ) = match CudaCopy::new(to, from, bytes, direction) {
        Some(copy) => call!(driver_function "cuGraphExecMemcpyNodeSetParams" (
            exec => Handle, node => Handle, &copy => *const CudaCopy, current_context() => Handle
        )),
        None => INVALID_VALUE,
    };
    hiprtcCompileProgram (program: Handle, count: i32, options: *const *const c_char) = {
        // SAFETY: the caller gives as many texts as it says.
        code(unsafe { compile(program, count, options) })
    };
}

/// Compiles for the device that is really there.
///
/// # Safety
/// There must be `count` texts at `options`.
unsafe fn compile(program: Handle, count: i32, options: *const *const c_char) -> Result<(), i32> {
    let mut words = Vec::new();
    for index in 0..usize::try_from(count).map_err(|_| INVALID_VALUE)? {
        // SAFETY: the caller gives as many texts.
        let word = unsafe { CStr::from_ptr(*options.add(index)) }.to_string_lossy().into_owned();
        let word = match word.strip_prefix(HIP_ARCHITECTURE) {
            Some(_) => format!("{CUDA_ARCHITECTURE}{}", architecture()?),
            None => word,
        };
        words.push(CString::new(word).map_err(|_| INVALID_VALUE)?);
    }
    let pointers: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).collect();
    status(call!(compiler_function "nvrtcCompileProgram" (
        program => Handle, count => i32, pointers.as_ptr() => *const *const c_char
    )))
}

/// Writes the properties that are read: the device's name and architecture.
///
/// # Safety
/// There must be space for the properties.
unsafe fn write_properties(
    properties: *mut u8,
    (bytes, architecture_at): (usize, usize),
    device: i32,
) -> Result<(), i32> {
    // SAFETY: the caller gives the space.
    unsafe { properties.write_bytes(0, bytes) };
    status(call!(driver_function "cuDeviceGetName" (
        properties.cast() => *mut c_char, NAME_BYTES as i32 => i32, device => i32
    )))?;
    let word = ARCHITECTURE.to_bytes_with_nul();
    // SAFETY: the properties have a field for the architecture there.
    unsafe { properties.add(architecture_at).copy_from_nonoverlapping(word.as_ptr(), word.len()) };
    Ok(())
}

/// The name of a status.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "HIP's own name")]
pub extern "C" fn hipGetErrorName(code: i32) -> *const c_char {
    let mut name = std::ptr::null();
    let found = call!(driver_function "cuGetErrorName" (code => i32, &mut name => *mut *const c_char));
    if found == 0 { name } else { c"unknown".as_ptr() }
}

/// The name of a status.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "HIPRTC's own name")]
pub extern "C" fn hiprtcGetErrorString(code: i32) -> *const c_char {
    match compiler_function::<unsafe extern "C" fn(i32) -> *const c_char>(b"nvrtcGetErrorString") {
        // SAFETY: the call takes a number.
        Ok(function) => unsafe { function(code) },
        Err(NOT_INITIALISED) => c"NVRTC is not here".as_ptr(),
        Err(_) => c"unknown".as_ptr(),
    }
}
