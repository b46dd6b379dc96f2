//! Parameters of graph nodes: HIP's layouts, and CUDA's that they become.

use std::ffi::c_void;

/// Parameters of a kernel node in HIP's layout.
#[repr(C)]
pub struct HipKernel {
    block: [u32; 3],
    extra: *mut *mut c_void,
    function: usize,
    grid: [u32; 3],
    parameters: *mut *mut c_void,
    shared_bytes: u32,
}

/// The same in CUDA's layout.
#[repr(C)]
pub(crate) struct CudaKernel {
    function: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
    kernel: usize,
    context: usize,
}

impl From<&HipKernel> for CudaKernel {
    fn from(node: &HipKernel) -> CudaKernel {
        let &HipKernel { block, extra, function, grid, parameters, shared_bytes } = node;
        CudaKernel { function, grid, block, shared_bytes, parameters, extra, kernel: 0, context: 0 }
    }
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

/// The same in CUDA's layout.
#[repr(C)]
pub(crate) struct CudaFill {
    to: u64,
    pitch_bytes: usize,
    value: u32,
    element_bytes: u32,
    width: usize,
    height: usize,
}

impl From<&HipFill> for CudaFill {
    fn from(fill: &HipFill) -> CudaFill {
        let &HipFill { to, element_bytes, height, pitch_bytes, value, width } = fill;
        CudaFill { to, pitch_bytes, value, element_bytes, width, height }
    }
}

/// Kinds of memory, by CUDA's numbers.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// One end of CUDA's copy of a box.
#[repr(C)]
struct CudaCopyEnd {
    offsets: [usize; 4],
    memory: u32,
    host: u64,
    device: u64,
    array: [usize; 2],
    pitch_bytes: usize,
    height: usize,
}

impl CudaCopyEnd {
    fn new(memory: u32, address: u64, bytes: usize) -> CudaCopyEnd {
        let (host, device) = if memory == HOST { (address, 0) } else { (0, address) };
        CudaCopyEnd { offsets: [0; 4], memory, host, device, array: [0; 2], pitch_bytes: bytes, height: 1 }
    }
}

/// CUDA's copy of a box; HIP's in one dimension has one row.
#[repr(C)]
pub(crate) struct CudaCopy {
    from: CudaCopyEnd,
    to: CudaCopyEnd,
    width_bytes: usize,
    height: usize,
    depth: usize,
}

impl CudaCopy {
    /// A copy in the direction that HIP gives this number; none for directions that nobody uses.
    pub(crate) fn new(to: u64, from: u64, bytes: usize, direction: i32) -> Option<CudaCopy> {
        let (from_memory, to_memory) = match direction {
            1 => (HOST, DEVICE),
            2 => (DEVICE, HOST),
            3 => (DEVICE, DEVICE),
            _ => return None,
        };
        let from = CudaCopyEnd::new(from_memory, from, bytes);
        Some(CudaCopy { from, to: CudaCopyEnd::new(to_memory, to, bytes), width_bytes: bytes, height: 1, depth: 1 })
    }
}
