//! The functions of the drivers and compilers, by their names.

use crate::memory::DEVICE_BYTES;
use crate::module::{Launch, build_image};
use crate::queue::{Ends, Op};
use crate::state::{
    Call, Handle, INVALID_CLUSTER_SIZE, INVALID_DEVICE, INVALID_VALUE, State, Status, Vendor, enter, with_state,
};
use std::ffi::{CStr, c_char, c_void};

/// Bytes of HIP's properties in version 5 and where the architecture stands in them.
const HIP5_PROPERTIES: (usize, usize) = (792, 396);
/// The same since version 6.
const HIP6_PROPERTIES: (usize, usize) = (1472, 1160);

/// `(CUDA name, HIP name) (arguments) = |state, call| body;`, for functions that both vendors have with one signature.
macro_rules! shared_exports {
    ($(($cuda:ident, $hip:ident) ($($argument:ident: $kind:ty),*) = |$state:ident, $call:ident| $body:expr;)*) => {
        $(own_exports! {
            $cuda Vendor::Cuda, ($($argument: $kind),*) = |$state, $call| $body;
            $hip Vendor::Hip, ($($argument: $kind),*) = |$state, $call| $body;
        })*
    };
}

/// `name vendor, (arguments) = |state, call| body;`, for one function.
macro_rules! own_exports {
    ($($name:ident $vendor:expr, ($($argument:ident: $kind:ty),*) = |$state:ident, $call:ident| $body:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the drivers' own names")]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> i32 {
                enter(stringify!($name), $vendor, |$state: &mut State, $call: &Call| $body)
            }
        )*
    };
}

shared_exports! {
    (cuInit, hipInit) (flags: u32) = |state, call| state.initialise(call, flags);
    (cuDriverGetVersion, hipDriverGetVersion) (version: &mut i32) = |_state, _call| give(version, 13_000);
    (cuDeviceGetCount, hipGetDeviceCount) (count: &mut i32) = |state, _call| give(count, state.device_count as i32);
    (cuDeviceGet, hipDeviceGet) (device: &mut i32, ordinal: i32) = |state, call| state.device_get(call, device, ordinal);
    (cuDeviceGetName, hipDeviceGetName) (name: *mut c_char, len: i32, device: i32) = |state, call| {
        let text = device_name(state, call, device)?;
        // SAFETY: the caller says how much space there is.
        unsafe { write_name(&text, name.cast(), len as usize) };
        Ok(())
    };
    (cuDeviceTotalMem_v2, hipDeviceTotalMem) (bytes: &mut usize, _device: i32) = |_state, _call| give(bytes, DEVICE_BYTES);
    (cuDeviceGetAttribute, hipDeviceGetAttribute) (value: &mut i32, attribute: i32, device: i32) =
        |state, call| state.attribute(call, value, attribute, device);
    (cuCtxSynchronize, hipDeviceSynchronize) () = |state, call| state.device_synchronize(call);
    (cuMemGetInfo_v2, hipMemGetInfo) (free: &mut usize, total: &mut usize) =
        |state, call| state.memory_info(call, free, total);
    (cuMemAlloc_v2, hipMalloc) (address: &mut u64, bytes: usize) =
        |state, call| state.memory_allocate(call, address, bytes);
    (cuMemFree_v2, hipFree) (address: u64) = |state, call| state.memory_free(call, address);
    (cuPointerGetAttribute, hipPointerGetAttribute) (value: *mut c_void, attribute: i32, address: u64) =
        |state, call| {
            let ordinal = state.memory_device(call, attribute, address)?;
            // SAFETY: the caller gives space for this attribute, an int.
            unsafe { value.cast::<i32>().write(ordinal) };
            Ok(())
        };
    (cuMemHostAlloc, hipHostMalloc) (start: &mut *mut c_void, bytes: usize, _flags: u32) =
        |state, call| state.pinned_allocate(call, start, bytes);
    (cuMemFreeHost, hipHostFree) (start: usize) = |state, call| state.pinned_free(call, start);
    (cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync) (to: u64, from: u64, bytes: usize, stream: Handle) =
        |state, call| state.copy(call, to, from, bytes, Ends::ToDevice, stream);
    (cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync) (to: u64, from: u64, bytes: usize, stream: Handle) =
        |state, call| state.copy(call, to, from, bytes, Ends::FromDevice, stream);
    (cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync) (to: u64, from: u64, bytes: usize, stream: Handle) =
        |state, call| state.copy(call, to, from, bytes, Ends::Device, stream);
    (cuMemsetD8Async, hipMemsetD8Async) (to: u64, value: u8, bytes: usize, stream: Handle) =
        |state, call| state.fill(call, to, value, bytes, stream);
    (cuModuleUnload, hipModuleUnload) (module: Handle) = |state, call| state.module_unload(call, module);
    (cuModuleGetFunction, hipModuleGetFunction) (function: &mut Handle, module: Handle, name: *const c_char) =
        |state, call| {
            // SAFETY: the caller gives a text.
            let name = unsafe { text(name) };
            state.module_function(call, function, module, &name)
        };
    (cuLaunchKernel, hipModuleLaunchKernel) (
        function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared_bytes: u32, stream: Handle,
        parameters: *mut *mut c_void, _extra: *mut *mut c_void
    ) = |state, call| {
        let (grid, block) = ([gx, gy, gz], [bx, by, bz]);
        // SAFETY: the caller gives as many parameters as the kernel has.
        let launch = unsafe { state.prepare(call, function, grid, block, shared_bytes, parameters) }?;
        state.launch(call, launch, stream)
    };
    (cuStreamCreate, hipStreamCreateWithFlags) (stream: &mut Handle, flags: u32) =
        |state, call| state.stream_create(call, stream, flags);
    (cuStreamDestroy_v2, hipStreamDestroy) (stream: Handle) = |state, call| state.stream_destroy(call, stream);
    (cuStreamSynchronize, hipStreamSynchronize) (stream: Handle) = |state, call| state.stream_synchronize(call, stream);
    (cuStreamQuery, hipStreamQuery) (stream: Handle) = |state, call| state.stream_query(call, stream);
    (cuStreamWaitEvent, hipStreamWaitEvent) (stream: Handle, event: Handle, _flags: u32) =
        |state, call| state.stream_wait(call, stream, event);
    (cuStreamBeginCapture_v2, hipStreamBeginCapture) (stream: Handle, mode: i32) =
        |state, call| state.capture_begin(call, stream, mode);
    (cuStreamEndCapture, hipStreamEndCapture) (stream: Handle, graph: &mut Handle) =
        |state, call| state.capture_end(call, stream, graph);
    (cuEventCreate, hipEventCreateWithFlags) (event: &mut Handle, flags: u32) =
        |state, call| state.event_create(call, event, flags);
    (cuEventDestroy_v2, hipEventDestroy) (event: Handle) = |state, call| state.event_destroy(call, event);
    (cuEventRecord, hipEventRecord) (event: Handle, stream: Handle) =
        |state, call| state.event_record(call, event, stream);
    (cuEventSynchronize, hipEventSynchronize) (event: Handle) = |state, call| state.event_synchronize(call, event);
    (cuEventQuery, hipEventQuery) (event: Handle) = |state, call| state.event_query(call, event);
    (cuEventElapsedTime, hipEventElapsedTime) (milliseconds: &mut f32, start: Handle, end: Handle) =
        |state, call| state.event_elapsed(call, milliseconds, start, end);
    (cuGraphCreate, hipGraphCreate) (graph: &mut Handle, _flags: u32) = |state, call| state.graph_create(call, graph);
    (cuGraphDestroy, hipGraphDestroy) (graph: Handle) = |state, call| state.graph_destroy(call, graph);
    (cuGraphGetNodes, hipGraphGetNodes) (graph: Handle, _nodes: *mut Handle, count: &mut usize) =
        |state, call| state.graph_count(call, graph, count);
    (cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags) (exec: &mut Handle, graph: Handle, _flags: u64) =
        |state, call| state.graph_instantiate(call, exec, graph);
    (cuGraphAddKernelNode_v2, hipGraphAddKernelNode) (
        node: &mut Handle, graph: Handle, after: *const Handle, count: usize, kernel: *const c_void
    ) = |state, call| {
        // SAFETY: the caller gives the parameters of its vendor and as many nodes as it says.
        unsafe {
            let launch = read_kernel(state, call, kernel)?;
            state.graph_add(call, node, graph, nodes(after, count), Op::Kernel(launch))
        }
    };
    (cuGraphExecKernelNodeSetParams_v2, hipGraphExecKernelNodeSetParams) (
        exec: Handle, node: Handle, kernel: *const c_void
    ) = |state, call| {
        // SAFETY: the caller gives the parameters of its vendor.
        let launch = unsafe { read_kernel(state, call, kernel) }?;
        state.exec_set_kernel(call, exec, node, launch)
    };
    (cuGraphExecDestroy, hipGraphExecDestroy) (exec: Handle) = |state, call| state.exec_destroy(call, exec);
    (cuGraphLaunch, hipGraphLaunch) (exec: Handle, stream: Handle) =
        |state, call| state.exec_launch(call, exec, stream);

    (nvrtcVersion, hiprtcVersion) (major: &mut i32, minor: &mut i32) = |_state, _call| {
        *minor = 0;
        give(major, 13)
    };
    (nvrtcCreateProgram, hiprtcCreateProgram) (
        program: &mut Handle, source: *const c_char, name: *const c_char, _headers: i32,
        _header_texts: *const *const c_char, _header_names: *const *const c_char
    ) = |state, call| {
        // SAFETY: the caller gives two texts.
        let (source, name) = unsafe { (text(source), text(name)) };
        state.program_create(call, program, &source, &name)
    };
    (nvrtcDestroyProgram, hiprtcDestroyProgram) (program: &mut Handle) =
        |state, call| state.program_destroy(call, program);
    (nvrtcCompileProgram, hiprtcCompileProgram) (program: Handle, count: i32, options: *const *const c_char) =
        |state, call| {
            // SAFETY: the caller gives as many texts as it says.
            let options = (0..count as usize).map(|index| unsafe { text(*options.add(index)) }).collect::<Vec<_>>();
            state.program_compile(call, program, &options)
        };
    (nvrtcGetProgramLogSize, hiprtcGetProgramLogSize) (program: Handle, len: &mut usize) =
        |state, call| give(len, state.program(call, program)?.log.len() + 1);
    (nvrtcGetProgramLog, hiprtcGetProgramLog) (program: Handle, log: *mut u8) = |state, call| {
        let text = &state.program(call, program)?.log;
        // SAFETY: the caller has asked for the size, which counts the zero byte.
        unsafe { write_name(text, log, text.len() + 1) };
        Ok(())
    };
    (nvrtcGetCUBINSize, hiprtcGetCodeSize) (program: Handle, len: &mut usize) =
        |state, call| give(len, state.program(call, program)?.code.len());
    (nvrtcGetCUBIN, hiprtcGetCode) (program: Handle, bytes: *mut u8) = |state, call| {
        let code = &state.program(call, program)?.code;
        // SAFETY: the caller has asked for the size.
        unsafe { bytes.copy_from_nonoverlapping(code.as_ptr(), code.len()) };
        Ok(())
    };
}

own_exports! {
    cuGetErrorName Vendor::Cuda, (code: i32, name: &mut *const c_char) = |_state, _call| {
        give(name, error_name(code).as_ptr())
    };
    cuDevicePrimaryCtxRetain Vendor::Cuda, (context: &mut Handle, device: i32) =
        |state, call| state.context_retain(call, context, device);
    cuDevicePrimaryCtxRelease_v2 Vendor::Cuda, (device: i32) = |state, call| state.context_release(call, device);
    cuCtxSetCurrent Vendor::Cuda, (context: Handle) = |state, call| state.context_set(call, context);
    cuFuncSetAttribute Vendor::Cuda, (function: Handle, attribute: i32, value: i32) =
        |state, call| state.function_attribute(call, function, attribute, value);
    cuGraphAddMemcpyNode Vendor::Cuda, (
        node: &mut Handle, graph: Handle, after: *const Handle, count: usize, copy: &CudaCopy, _context: Handle
    ) = |state, call| {
        let (to, from, ends) = copy.ends()?;
        // SAFETY: the caller gives as many nodes as it says.
        let after = unsafe { nodes(after, count) };
        state.graph_add(call, node, graph, after, Op::Copy { to, from, bytes: copy.width_bytes, ends })
    };
    cuGraphExecMemcpyNodeSetParams Vendor::Cuda, (exec: Handle, node: Handle, copy: &CudaCopy, _context: Handle) =
        |state, call| {
            let (to, from, ends) = copy.ends()?;
            state.exec_set_copy(call, exec, node, to, from, copy.width_bytes, ends)
        };
    cuGraphAddMemsetNode Vendor::Cuda, (
        node: &mut Handle, graph: Handle, after: *const Handle, count: usize, fill: &CudaFill, _context: Handle
    ) = |state, call| {
        // SAFETY: the caller gives as many nodes as it says.
        let after = unsafe { nodes(after, count) };
        state.graph_add(call, node, graph, after, Op::Fill { to: fill.to, value: fill.value as u8, bytes: fill.width })
    };
    cuLaunchKernelEx Vendor::Cuda, (
        config: &CudaLaunch, function: Handle, parameters: *mut *mut c_void, _extra: *mut *mut c_void
    ) = |state, call| {
        let CudaLaunch { grid, block, shared_bytes, stream, .. } = *config;
        // SAFETY: the caller gives as many attributes as it says.
        unsafe { config.check_cluster() }?;
        // SAFETY: the caller gives as many parameters as the kernel has.
        let launch = unsafe { state.prepare(call, function, grid, block, shared_bytes, parameters) }?;
        state.launch(call, launch, stream)
    };
    cuGraphUpload Vendor::Cuda, (exec: Handle, stream: Handle) = |state, call| state.exec_upload(call, exec, stream);

    hipSetDevice Vendor::Hip, (device: i32) = |state, call| state.device_set(call, device);
    hipGetDeviceProperties Vendor::Hip, (properties: *mut u8, device: i32) = |state, call| {
        // SAFETY: the caller gives space for the properties of version 5.
        unsafe { write_properties(state, call, properties, HIP5_PROPERTIES, device) }
    };
    hipGetDevicePropertiesR0600 Vendor::Hip, (properties: *mut u8, device: i32) = |state, call| {
        // SAFETY: the caller gives space for the properties of version 6.
        unsafe { write_properties(state, call, properties, HIP6_PROPERTIES, device) }
    };
    hipGraphAddMemcpyNode1D Vendor::Hip, (
        node: &mut Handle, graph: Handle, after: *const Handle, count: usize, to: u64, from: u64, bytes: usize, kind: i32
    ) = |state, call| {
        // SAFETY: the caller gives as many nodes as it says.
        let after = unsafe { nodes(after, count) };
        state.graph_add(call, node, graph, after, Op::Copy { to, from, bytes, ends: hip_ends(kind)? })
    };
    hipGraphExecMemcpyNodeSetParams1D Vendor::Hip, (
        exec: Handle, node: Handle, to: u64, from: u64, bytes: usize, kind: i32
    ) = |state, call| state.exec_set_copy(call, exec, node, to, from, bytes, hip_ends(kind)?);
    hipGraphAddMemsetNode Vendor::Hip, (
        node: &mut Handle, graph: Handle, after: *const Handle, count: usize, fill: &HipFill
    ) = |state, call| {
        // SAFETY: the caller gives as many nodes as it says.
        let after = unsafe { nodes(after, count) };
        state.graph_add(call, node, graph, after, Op::Fill { to: fill.to, value: fill.value as u8, bytes: fill.width })
    };
}

/// Loads an image.
///
/// # Safety
/// There must be an image at `image`.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the driver's own name")]
pub unsafe extern "C" fn cuModuleLoadData(module: &mut Handle, image: *const u8) -> i32 {
    // SAFETY: the caller gives an image.
    unsafe { load_module("cuModuleLoadData", Vendor::Cuda, module, image) }
}

/// Loads an image.
///
/// # Safety
/// There must be an image at `image`.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the driver's own name")]
pub unsafe extern "C" fn hipModuleLoadData(module: &mut Handle, image: *const u8) -> i32 {
    // SAFETY: the caller gives an image.
    unsafe { load_module("hipModuleLoadData", Vendor::Hip, module, image) }
}

/// # Safety
/// There must be an image at `image`.
unsafe fn load_module(name: &'static str, vendor: Vendor, module: &mut Handle, image: *const u8) -> i32 {
    // SAFETY: the caller gives an image. The driver's lock is not held yet.
    unsafe { build_image(image) };
    enter(name, vendor, |state, call| {
        // SAFETY: the caller gives an image.
        unsafe { state.module_load(call, module, image) }
    })
}

/// The name of a status.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the driver's own name")]
pub extern "C" fn hipGetErrorName(code: i32) -> *const c_char {
    with_state(|state| *state.calls.entry("hipGetErrorName").or_default() += 1);
    error_name(code).as_ptr()
}

/// The name of a status.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the compiler's own name")]
pub extern "C" fn nvrtcGetErrorString(code: i32) -> *const c_char {
    error_name(code).as_ptr()
}

/// The name of a status.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the compiler's own name")]
pub extern "C" fn hiprtcGetErrorString(code: i32) -> *const c_char {
    error_name(code).as_ptr()
}

fn error_name(code: i32) -> &'static CStr {
    match code {
        0 => c"FAKE_SUCCESS",
        1 => c"FAKE_INVALID_VALUE",
        2 => c"FAKE_OUT_OF_MEMORY",
        200 => c"FAKE_INVALID_IMAGE",
        209 => c"FAKE_NO_BINARY_FOR_GPU",
        400 => c"FAKE_INVALID_HANDLE",
        700 => c"FAKE_ILLEGAL_ADDRESS",
        900..=908 => c"FAKE_STREAM_CAPTURE",
        912 => c"FAKE_INVALID_CLUSTER_SIZE",
        _ => c"FAKE_ERROR",
    }
}

fn give<T>(place: &mut T, value: T) -> Status {
    *place = value;
    Ok(())
}

/// # Safety
/// A text that ends with a zero byte must be there.
unsafe fn text(start: *const c_char) -> String {
    // SAFETY: the caller says so.
    unsafe { CStr::from_ptr(start) }.to_string_lossy().into_owned()
}

/// # Safety
/// As many handles must be there.
unsafe fn nodes<'a>(start: *const Handle, count: usize) -> &'a [Handle] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller says so.
    unsafe { std::slice::from_raw_parts(start, count) }
}

/// Writes a text and a zero byte, cut to the space there is.
///
/// # Safety
/// There must be `len` bytes to write.
unsafe fn write_name(text: &str, place: *mut u8, len: usize) {
    let Some(room) = len.checked_sub(1) else { return };
    let count = text.len().min(room);
    // SAFETY: the count and the zero byte after it fit the space.
    unsafe { place.copy_from_nonoverlapping(text.as_ptr(), count) };
    // SAFETY: as above.
    unsafe { place.add(count).write(0) };
}

fn device_name(state: &State, call: &Call, device: i32) -> Result<String, i32> {
    if usize::try_from(device).is_ok_and(|device| device < state.device_count) {
        let vendor = if call.vendor == Vendor::Cuda { "CUDA" } else { "HIP" };
        return Ok(format!("Fake {vendor} device {device}"));
    }
    Err(INVALID_DEVICE)
}

/// # Safety
/// There must be space for the properties.
unsafe fn write_properties(
    state: &State,
    call: &Call,
    properties: *mut u8,
    (len, arch_at): (usize, usize),
    device: i32,
) -> Status {
    let name = device_name(state, call, device)?;
    // SAFETY: the caller vouches for the space, and the name is shorter.
    unsafe {
        properties.write_bytes(0, len);
        write_name(&name, properties, 256);
        write_name("gfx90a:sramecc+:xnack-", properties.add(arch_at), 256);
    }
    Ok(())
}

fn hip_ends(kind: i32) -> Result<Ends, i32> {
    match kind {
        1 => Ok(Ends::ToDevice),
        2 => Ok(Ends::FromDevice),
        3 => Ok(Ends::Device),
        _ => Err(INVALID_VALUE),
    }
}

/// Parameters of a kernel node in CUDA's layout.
#[repr(C)]
struct CudaKernel {
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
    kernel: Handle,
    context: Handle,
}

/// Parameters of a kernel node in HIP's layout.
#[repr(C)]
struct HipKernel {
    block: [u32; 3],
    extra: *mut *mut c_void,
    function: Handle,
    grid: [u32; 3],
    parameters: *mut *mut c_void,
    shared_bytes: u32,
}

/// # Safety
/// The parameters of a kernel node in the layout of the call's vendor must be there.
unsafe fn read_kernel(state: &mut State, call: &Call, kernel: *const c_void) -> Result<Launch, i32> {
    let (function, grid, block, shared_bytes, parameters) = match call.vendor {
        Vendor::Cuda => {
            // SAFETY: the caller vouches for the layout.
            let found = unsafe { &*kernel.cast::<CudaKernel>() };
            (found.function, found.grid, found.block, found.shared_bytes, found.parameters)
        }
        Vendor::Hip => {
            // SAFETY: the caller vouches for the layout.
            let found = unsafe { &*kernel.cast::<HipKernel>() };
            (found.function, found.grid, found.block, found.shared_bytes, found.parameters)
        }
    };
    // SAFETY: a node has as many parameters as its kernel.
    unsafe { state.prepare(call, function, grid, block, shared_bytes, parameters) }
}

/// A launch with attributes, of which none changes what it means here; a cluster must be one that there can be.
#[repr(C)]
pub struct CudaLaunch {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: Handle,
    attributes: *const CudaAttribute,
    count: u32,
}

/// An attribute of a launch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CudaAttribute {
    id: u32,
    _padding: u32,
    /// A union of 64 bytes; of a cluster its three sizes.
    value: [u32; 16],
}

impl CudaLaunch {
    /// # Safety
    /// There must be as many attributes as the launch says.
    unsafe fn check_cluster(&self) -> Status {
        const CLUSTER: u32 = 4;
        /// What every device with clusters has.
        const BLOCKS_MAX: u64 = 8;
        for index in 0..self.count as usize {
            // SAFETY: the caller vouches for it.
            let CudaAttribute { id, value, .. } = unsafe { *self.attributes.add(index) };
            let blocks = value[..3].iter().map(|&size| u64::from(size)).product::<u64>();
            let divides = |(&grid, &size): (&u32, &u32)| size > 0 && grid.is_multiple_of(size);
            if id == CLUSTER && (blocks > BLOCKS_MAX || !self.grid.iter().zip(&value).all(divides)) {
                return Err(INVALID_CLUSTER_SIZE);
            }
        }
        Ok(())
    }
}

/// One end of CUDA's copy of a box.
#[repr(C)]
pub struct CudaCopyEnd {
    offsets: [usize; 4],
    memory: u32,
    host: u64,
    device: u64,
    array: [usize; 2],
    pitch_bytes: usize,
    height: usize,
}

/// CUDA's copy of a box.
#[repr(C)]
pub struct CudaCopy {
    from: CudaCopyEnd,
    to: CudaCopyEnd,
    width_bytes: usize,
    height: usize,
    depth: usize,
}

impl CudaCopy {
    /// Where it goes to and comes from, if it is one row.
    fn ends(&self) -> Result<(u64, u64, Ends), i32> {
        if (self.height, self.depth) != (1, 1) {
            return Err(INVALID_VALUE);
        }
        match (self.from.memory, self.to.memory) {
            (1, 2) => Ok((self.to.device, self.from.host, Ends::ToDevice)),
            (2, 1) => Ok((self.to.host, self.from.device, Ends::FromDevice)),
            (2, 2) => Ok((self.to.device, self.from.device, Ends::Device)),
            _ => Err(INVALID_VALUE),
        }
    }
}

/// Parameters of a fill in CUDA's layout.
#[repr(C)]
pub struct CudaFill {
    to: u64,
    pitch_bytes: usize,
    value: u32,
    element_bytes: u32,
    width: usize,
    height: usize,
}

/// Parameters of a fill in HIP's layout.
#[repr(C)]
pub struct HipFill {
    to: u64,
    element_bytes: u32,
    height: usize,
    pitch_bytes: usize,
    value: u32,
    width: usize,
}
