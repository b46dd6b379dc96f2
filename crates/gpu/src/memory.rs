//! Memory and streams of a GPU that callers hold.

use std::any::Any;

use precast_driver::{Device, DeviceBuffer, DriverError, Stream};
use precast_program::{DeviceMemory, DeviceStream, RunError};

use crate::context::refused;

/// Memory of a GPU.
pub struct GpuMemory {
    buffer: DeviceBuffer,
}

impl GpuMemory {
    pub(crate) fn allocate(device: &Device, bytes: usize) -> Result<GpuMemory, DriverError> {
        Ok(GpuMemory { buffer: device.allocate(bytes)? })
    }

    /// Memory of a device that another library allocated; its owner is let go when this is dropped.
    ///
    /// # Safety
    /// As for `DeviceBuffer::adopt`.
    #[allow(unsafe_code, reason = "only the caller knows how long others keep their memory")]
    pub unsafe fn adopt(
        device: &Device,
        address: u64,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<GpuMemory, DriverError> {
        // SAFETY: the caller's word.
        Ok(GpuMemory { buffer: unsafe { DeviceBuffer::adopt(device, address, bytes, owner) }? })
    }

    /// The driver's buffer.
    pub fn buffer(&self) -> &DeviceBuffer {
        &self.buffer
    }

    /// Memory that is this room's.
    pub(crate) fn of(memory: &dyn DeviceMemory) -> Option<&GpuMemory> {
        (memory as &dyn Any).downcast_ref()
    }
}

impl From<DeviceBuffer> for GpuMemory {
    fn from(buffer: DeviceBuffer) -> GpuMemory {
        GpuMemory { buffer }
    }
}

impl DeviceMemory for GpuMemory {
    fn bytes(&self) -> usize {
        self.buffer.len()
    }

    fn write(&self, start: usize, bytes: &[u8]) -> Result<(), RunError> {
        let stream = self.buffer.device().stream().map_err(refused)?;
        stream.upload(&self.buffer, start, bytes).map_err(refused)
    }

    fn read(&self, start: usize, bytes: &mut [u8]) -> Result<(), RunError> {
        let stream = self.buffer.device().stream().map_err(refused)?;
        stream.download(&self.buffer, start, bytes).map_err(refused)
    }
}

/// A stream of a GPU that a caller works on.
pub struct GpuStream {
    stream: Stream,
    /// Whether what it is given later waits for a run that joins it.
    is_held_up: bool,
}

impl GpuStream {
    /// The stream that others work on where they name none.
    pub fn legacy(device: &Device) -> GpuStream {
        GpuStream { stream: Stream::legacy(device), is_held_up: true }
    }

    /// The same for runs that somebody waits for: they begin behind it, and it does not wait for them, so that several of
    /// them run at once.
    pub fn legacy_before(device: &Device) -> GpuStream {
        GpuStream { stream: Stream::legacy(device), is_held_up: false }
    }

    /// Whether what it is given later waits for a run that joins it.
    pub(crate) fn is_held_up(&self) -> bool {
        self.is_held_up
    }

    /// The driver's stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// A stream that is this room's.
    pub(crate) fn of(stream: &dyn DeviceStream) -> Option<&GpuStream> {
        (stream as &dyn Any).downcast_ref()
    }
}

impl From<Stream> for GpuStream {
    fn from(stream: Stream) -> GpuStream {
        GpuStream { stream, is_held_up: true }
    }
}

impl DeviceStream for GpuStream {}
