//! Memory of GPUs that callers hold beside their Sessions: allocated here, or adopted from another library.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use precast_driver::{Device, DriverError, Vendor};
use precast_gpu::{GpuMemory, GpuStream};
use precast_program::{DeviceEvent, DeviceMemory, DeviceStream, RunError};

use crate::device_name::{DeviceKind, DeviceName};
use crate::error::Error;
use crate::open_device::{open_driver, refused};

/// Memory that is kept for the next caller; what would be more goes back to the driver.
const IDLE_BYTES_MAX: usize = 256 << 20;
/// Sizes below this are allocated as one.
const SMALLEST: usize = 512;
/// Sizes above this are rounded to a multiple of it, smaller ones to a power of two.
const LARGE: usize = 1 << 20;

/// GPUs that were opened. They stay open: making a driver's context anew takes longer than most programs run.
static OPENED: Mutex<Vec<Arc<Gpu>>> = Mutex::new(Vec::new());

/// A GPU whose memory callers hold. One for each GPU of the process; Sessions on it share the driver's device.
pub struct Gpu {
    name: DeviceName,
    device: Device,
    /// The stream that other libraries order their work by.
    stream: GpuStream,
    /// The same for runs that are waited for.
    stream_before: GpuStream,
    idle: Mutex<Idle>,
}

/// Memory that nobody holds, by size.
#[derive(Default)]
struct Idle {
    by_size: HashMap<usize, Vec<GpuMemory>>,
    bytes: usize,
}

impl Gpu {
    /// Opens a GPU, or shares it with whoever has.
    pub fn open(name: DeviceName) -> Result<Arc<Gpu>, Error> {
        let vendor = match name.kind {
            DeviceKind::Cuda => Vendor::Cuda,
            DeviceKind::Hip => Vendor::Hip,
            DeviceKind::Cpu => return Err(Error::Request("the CPU's memory is the host's".to_string())),
        };
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = opened.iter().find(|gpu| gpu.name == name) {
            return Ok(gpu.clone());
        }
        let gpu = Arc::new(Gpu::on(name, open_driver(vendor, name)?));
        opened.push(gpu.clone());
        Ok(gpu)
    }

    /// A GPU of a driver that the caller opened.
    pub fn on(name: DeviceName, device: Device) -> Gpu {
        let (stream, stream_before) = (GpuStream::legacy(&device), GpuStream::legacy_before(&device));
        Gpu { name, device, stream, stream_before, idle: Mutex::default() }
    }

    /// Its name.
    pub fn name(&self) -> DeviceName {
        self.name
    }

    /// The driver's device.
    pub fn driver(&self) -> &Device {
        &self.device
    }

    /// The stream that other libraries order their work by. A run that is waited for begins behind its work; one that is not
    /// also ends before what the stream is given later.
    pub(crate) fn default_stream(&self, waits: bool) -> &dyn DeviceStream {
        if waits { &self.stream_before } else { &self.stream }
    }

    /// Waits for what others have queued on the default stream.
    pub fn wait_for_default_stream(&self) -> Result<(), Error> {
        self.stream.stream().synchronize().map_err(refused)
    }

    /// Waits for everything on the device.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.device.synchronize().map_err(refused)
    }

    /// Memory for at least so many bytes, whose contents are undefined.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Result<GpuBytes, Error> {
        let size = rounded(bytes);
        let memory = match self.take_idle(size) {
            Some(memory) => memory,
            None => {
                self.device.allocate(size).or_else(|error| self.allocate_again(size, error)).map_err(refused)?.into()
            }
        };
        Ok(GpuBytes::new(self, memory, true))
    }

    /// Memory that another library owns, and lets be used as long as it is held.
    pub fn adopt(self: &Arc<Self>, memory: GpuMemory) -> GpuBytes {
        GpuBytes::new(self, memory, false)
    }

    /// Allocates where the driver had no memory left, without what is kept for later.
    fn allocate_again(&self, size: usize, error: DriverError) -> Result<precast_driver::DeviceBuffer, DriverError> {
        if !error.is_out_of_memory() {
            return Err(error);
        }
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Idle::default();
        self.device.allocate(size)
    }

    fn take_idle(&self, size: usize) -> Option<GpuMemory> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = idle.by_size.get_mut(&size)?.pop()?;
        idle.bytes -= size;
        Some(memory)
    }

    fn keep_idle(&self, memory: GpuMemory) {
        let size = memory.bytes();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.bytes + size <= IDLE_BYTES_MAX {
            idle.bytes += size;
            idle.by_size.entry(size).or_default().push(memory);
        }
    }
}

/// The size that is allocated for so many bytes, so that a few sizes serve most callers.
fn rounded(bytes: usize) -> usize {
    if bytes > LARGE {
        return bytes.checked_next_multiple_of(LARGE).unwrap_or(bytes);
    }
    bytes.max(SMALLEST).next_power_of_two()
}

/// Bytes of a GPU that a caller holds.
pub struct GpuBytes {
    gpu: Arc<Gpu>,
    /// Taken out when this is dropped.
    memory: Option<GpuMemory>,
    /// Whether the memory may serve somebody else after this: it is our own, and no other library knows it.
    is_private: AtomicBool,
    /// The end of the last run on it that was not waited for.
    in_use: Mutex<Option<Arc<dyn DeviceEvent>>>,
}

impl GpuBytes {
    fn new(gpu: &Arc<Gpu>, memory: GpuMemory, is_private: bool) -> GpuBytes {
        let is_private = AtomicBool::new(is_private);
        GpuBytes { gpu: gpu.clone(), memory: Some(memory), is_private, in_use: Mutex::default() }
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The memory.
    pub fn memory(&self) -> &GpuMemory {
        self.memory.as_ref().expect("taken out by drop alone")
    }

    /// Where it starts.
    pub fn address(&self) -> u64 {
        self.memory().buffer().address()
    }

    /// Another library knows the memory from now on, and may use it in an order of its own.
    pub fn share(&self) {
        self.is_private.store(false, Ordering::Relaxed);
    }

    /// Notes that a run up to this mark uses it.
    pub fn use_until(&self, end: &Arc<dyn DeviceEvent>) {
        *self.in_use.lock().unwrap_or_else(PoisonError::into_inner) = Some(end.clone());
    }

    /// Waits for the last run on it that was not waited for.
    pub fn wait(&self) -> Result<(), RunError> {
        let in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner).take();
        in_use.map_or(Ok(()), |end| end.wait())
    }

    /// Copies it to the host, behind runs on it and what others have queued on the default stream.
    pub fn read(&self, bytes: &mut [u8]) -> Result<(), Error> {
        self.settle()?;
        Ok(self.memory().read(0, bytes)?)
    }

    /// Copies host bytes to it, behind runs on it and what others have queued on the default stream.
    pub fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        self.settle()?;
        Ok(self.memory().write(0, bytes)?)
    }

    /// Waits for whoever may still write or read it.
    fn settle(&self) -> Result<(), Error> {
        self.wait()?;
        match self.is_private.load(Ordering::Relaxed) {
            true => Ok(()),
            false => self.gpu.wait_for_default_stream(),
        }
    }
}

impl Drop for GpuBytes {
    fn drop(&mut self) {
        // Where the device has failed there is nothing to wait for.
        let is_idle = self.wait().is_ok();
        let Some(memory) = self.memory.take() else { return };
        if is_idle && self.is_private.load(Ordering::Relaxed) {
            self.gpu.keep_idle(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_sizes_serve_all() {
        let sizes = [(0, 512), (1, 512), (513, 1024), (LARGE, LARGE), (LARGE + 1, 2 * LARGE), (usize::MAX, usize::MAX)];
        for (bytes, expected) in sizes {
            assert_eq!(rounded(bytes), expected, "{bytes}");
        }
    }
}
