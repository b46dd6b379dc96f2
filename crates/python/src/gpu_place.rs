//! Memory of GPUs: which GPU a caller or another library means, and memory of theirs that we adopt.
#![allow(unsafe_code, reason = "only its owner knows how long memory of another library lasts")]

use std::any::Any;
use std::sync::Arc;

use precast::device_name::{DeviceKind, DeviceName, resolve_device};
use precast::{Gpu, GpuBytes, GpuMemory};
use pyo3::prelude::*;

use crate::exceptions::{exception, usage};
use crate::interruptible::detached;

/// DLPack's numbers of the kinds of GPUs.
const DLPACK_CUDA: i32 = 2;
const DLPACK_ROCM: i32 = 10;
/// What a library is told to order its work by, as DLPack numbers streams: the default stream.
const DLPACK_CUDA_STREAM: i64 = 1;
const DLPACK_ROCM_STREAM: i64 = 0;

/// The GPU that a type and a number of a device name; none for the host.
pub fn named_gpu(py: Python<'_>, device_type: &str, device_id: i64) -> PyResult<Option<Arc<Gpu>>> {
    let name = resolve_device(&format!("{device_type}:{device_id}")).map_err(|error| exception(py, &error))?;
    match name.kind {
        DeviceKind::Cpu => Ok(None),
        DeviceKind::Cuda | DeviceKind::Hip => open_gpu(py, name).map(Some),
    }
}

/// Opens a GPU by its name.
pub fn open_gpu(py: Python<'_>, name: DeviceName) -> PyResult<Arc<Gpu>> {
    detached(py, || Gpu::open(name))?.map_err(|error| exception(py, &error))
}

/// The GPU that DLPack's kind and number of a device mean; none for others.
pub fn dlpack_gpu((kind, number): (i32, i32)) -> Option<DeviceName> {
    let kind = match kind {
        DLPACK_CUDA => DeviceKind::Cuda,
        DLPACK_ROCM => DeviceKind::Hip,
        _ => return None,
    };
    Some(DeviceName { kind, number: usize::try_from(number).ok()? })
}

/// DLPack's kind and number of a GPU.
pub fn dlpack_device(gpu: &Gpu) -> (i32, i32) {
    let DeviceName { kind, number } = gpu.name();
    let kind = if kind == DeviceKind::Hip { DLPACK_ROCM } else { DLPACK_CUDA };
    (kind, i32::try_from(number).unwrap_or(i32::MAX))
}

/// The stream that a library on this GPU is asked to put its work before.
pub fn dlpack_stream(name: DeviceName) -> i64 {
    if name.kind == DeviceKind::Hip { DLPACK_ROCM_STREAM } else { DLPACK_CUDA_STREAM }
}

/// Memory of a GPU at an address that somebody else owns. What DLPack demands of who gives memory away, and what binding an
/// address demands of its caller, is that it lasts as long as it is bound.
pub fn adopted(
    py: Python<'_>,
    gpu: &Arc<Gpu>,
    address: usize,
    bytes: usize,
    owner: Box<dyn Any + Send + Sync>,
) -> PyResult<GpuBytes> {
    // SAFETY: the owner is held, and uses are ordered by the GPU's default stream on both sides.
    let memory = unsafe { GpuMemory::adopt(gpu.driver(), address as u64, bytes, owner) };
    let memory = memory.map_err(|error| usage(py, &format!("'{}': {error}", gpu.name())))?;
    Ok(gpu.adopt(memory))
}
