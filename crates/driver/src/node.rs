//! Parameters of graph nodes, in the layout of each vendor.

use crate::library::Vendor;
use crate::module::Function;
use crate::table::Handle;
use std::ffi::c_void;

/// Kernels with up to this many parameters are launched without an allocation.
const PARAMETERS_INLINE: usize = 64;

/// Gives the parameters as the drivers want them: an array of pointers to the values.
pub(crate) fn with_parameters<R>(arguments: &[u64], call: impl FnOnce(*mut *mut c_void) -> R) -> R {
    let pointer = |argument: &u64| std::ptr::from_ref(argument).cast_mut().cast::<c_void>();
    if arguments.len() <= PARAMETERS_INLINE {
        let mut pointers = [std::ptr::null_mut(); PARAMETERS_INLINE];
        for (place, argument) in pointers.iter_mut().zip(arguments) {
            *place = pointer(argument);
        }
        return call(pointers.as_mut_ptr());
    }
    let mut pointers: Vec<*mut c_void> = arguments.iter().map(pointer).collect();
    call(pointers.as_mut_ptr())
}

/// How CUDA takes a launch with attributes.
#[repr(C)]
pub(crate) struct CudaLaunchConfig {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) stream: Handle,
    pub(crate) attributes: *const CudaLaunchAttribute,
    pub(crate) count: u32,
}

/// One attribute of it: a number of which, and a union of 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CudaLaunchAttribute {
    id: u32,
    _padding: u32,
    value: [u64; 8],
}

impl CudaLaunchAttribute {
    /// The launch may begin when all blocks of the last one have said so, or ended.
    pub(crate) const OVERLAPPING: CudaLaunchAttribute =
        CudaLaunchAttribute { id: 6, _padding: 0, value: [1, 0, 0, 0, 0, 0, 0, 0] };

    /// So many blocks along the third axis of the grid are a cluster: three numbers of 32 bits.
    pub(crate) const fn cluster(blocks: u32) -> CudaLaunchAttribute {
        CudaLaunchAttribute { id: 4, _padding: 0, value: [1 | 1 << 32, blocks as u64, 0, 0, 0, 0, 0, 0] }
    }
}

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

#[repr(C)]
struct HipKernel {
    block: [u32; 3],
    extra: *mut *mut c_void,
    function: Handle,
    grid: [u32; 3],
    parameters: *mut *mut c_void,
    shared_bytes: u32,
}

/// Builds the parameters of a kernel node and passes their address on.
pub(crate) fn with_kernel<R>(
    vendor: Vendor,
    function: &Function,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    arguments: &[u64],
    call: impl FnOnce(*const c_void) -> R,
) -> R {
    let (function, extra) = (function.handle(), std::ptr::null_mut());
    with_parameters(arguments, |parameters| match vendor {
        Vendor::Cuda => {
            let (kernel, context) = (0, 0);
            let node = CudaKernel { function, grid, block, shared_bytes, parameters, extra, kernel, context };
            call(std::ptr::from_ref(&node).cast())
        }
        Vendor::Hip => {
            let node = HipKernel { block, extra, function, grid, parameters, shared_bytes };
            call(std::ptr::from_ref(&node).cast())
        }
    })
}

/// Which way a copy goes. The values are HIP's.
#[derive(Clone, Copy)]
pub(crate) enum CopyKind {
    ToDevice = 1,
    FromDevice = 2,
    Device = 3,
}

/// A copy of one row of bytes.
#[derive(Clone, Copy)]
pub(crate) struct Copy {
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: usize,
    pub(crate) kind: CopyKind,
}

const CUDA_HOST: u32 = 1;
const CUDA_DEVICE: u32 = 2;

/// One end of CUDA's copy of a box.
#[repr(C)]
struct CudaCopyEnd {
    x_bytes: usize,
    y: usize,
    z: usize,
    level: usize,
    memory: u32,
    host: u64,
    device: u64,
    array: Handle,
    reserved: usize,
    pitch_bytes: usize,
    height: usize,
}

impl CudaCopyEnd {
    fn new(memory: u32, address: u64, bytes: usize) -> CudaCopyEnd {
        let (host, device) = if memory == CUDA_HOST { (address, 0) } else { (0, address) };
        let (x_bytes, y, z, level, array, reserved) = (0, 0, 0, 0, 0, 0);
        CudaCopyEnd { x_bytes, y, z, level, memory, host, device, array, reserved, pitch_bytes: bytes, height: 1 }
    }
}

/// CUDA's copy of a box; ours has one row.
#[repr(C)]
pub(crate) struct CudaCopy {
    from: CudaCopyEnd,
    to: CudaCopyEnd,
    width_bytes: usize,
    height: usize,
    depth: usize,
}

impl CudaCopy {
    pub(crate) fn new(copy: Copy) -> CudaCopy {
        let (from, to) = match copy.kind {
            CopyKind::ToDevice => (CUDA_HOST, CUDA_DEVICE),
            CopyKind::FromDevice => (CUDA_DEVICE, CUDA_HOST),
            CopyKind::Device => (CUDA_DEVICE, CUDA_DEVICE),
        };
        CudaCopy {
            from: CudaCopyEnd::new(from, copy.from, copy.bytes),
            to: CudaCopyEnd::new(to, copy.to, copy.bytes),
            width_bytes: copy.bytes,
            height: 1,
            depth: 1,
        }
    }
}

#[repr(C)]
pub(crate) struct CudaFill {
    pub(crate) to: u64,
    pub(crate) pitch_bytes: usize,
    pub(crate) value: u32,
    pub(crate) element_bytes: u32,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

#[repr(C)]
pub(crate) struct HipFill {
    pub(crate) to: u64,
    pub(crate) element_bytes: u32,
    pub(crate) height: usize,
    pub(crate) pitch_bytes: usize,
    pub(crate) value: u32,
    pub(crate) width: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn parameters_point_at_their_values() {
        for count in [0, 3, 64, 65, 200] {
            let arguments: Vec<u64> = (0..count).collect();
            with_parameters(&arguments, |pointers| {
                for (index, &argument) in arguments.iter().enumerate() {
                    // SAFETY: the array has a pointer for every argument.
                    let value = unsafe { *(*pointers.add(index)).cast::<u64>() };
                    assert_eq!(value, argument);
                }
            });
        }
    }

    #[test]
    fn layouts_are_those_of_the_drivers() {
        assert_eq!((offset_of!(CudaKernel, shared_bytes), offset_of!(CudaKernel, parameters)), (32, 40));
        assert_eq!((offset_of!(CudaKernel, context), size_of::<CudaKernel>()), (64, 72));
        assert_eq!((offset_of!(HipKernel, function), offset_of!(HipKernel, grid)), (24, 32));
        assert_eq!((offset_of!(HipKernel, shared_bytes), size_of::<HipKernel>()), (56, 64));
        assert_eq!(
            (offset_of!(CudaCopy, to), offset_of!(CudaCopy, width_bytes), size_of::<CudaCopy>()),
            (88, 176, 200)
        );
        assert_eq!((offset_of!(CudaFill, value), offset_of!(CudaFill, width), size_of::<CudaFill>()), (16, 24, 40));
        assert_eq!((offset_of!(HipFill, height), offset_of!(HipFill, width), size_of::<HipFill>()), (16, 40, 48));
    }
}
