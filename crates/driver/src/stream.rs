//! Work in order on one device: launches, copies, marks and waits.

use crate::buffer::{DeviceBuffer, PinnedBuffer};
use crate::capture::CaptureGuard;
use crate::device::Device;
use crate::error::{DriverError, NOT_READY};
use crate::event::Event;
use crate::module::Function;
use crate::node::{CudaLaunchAttribute, CudaLaunchConfig, with_parameters};
use crate::staging;
use crate::table::{Handle, Own};
use std::fmt;
use std::ops::Range;

/// The stream does not wait for the default stream. Both vendors number it so.
const NON_BLOCKING: u32 = 1;
/// CUDA's handle of the default stream, whatever a program was compiled to mean by zero.
const CUDA_LEGACY: Handle = 1;
/// HIP's handle of the same.
const HIP_DEFAULT: Handle = 0;

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// It may start before the kernel queued last has ended, for which it waits itself.
    pub is_overlapping: bool,
    /// All blocks along the third axis of the grid are one cluster.
    pub is_clustered: bool,
}

/// A queue of work on a device. A stream of our own is destroyed on drop; a caller's is not.
pub struct Stream {
    device: Device,
    raw: Handle,
    is_ours: bool,
}

impl Stream {
    pub(crate) fn create(device: &Device) -> Result<Stream, DriverError> {
        let entry = &device.enter()?.stream_create;
        let mut raw = 0;
        // SAFETY: the call writes one handle to a place that is ours.
        let code = unsafe { (entry.call)(&mut raw, NON_BLOCKING) };
        let raw = device.check_handle(entry.name, code, raw)?;
        Ok(Stream { device: device.clone(), raw, is_ours: true })
    }

    /// Uses a caller's stream, which is never destroyed. The default stream (0) is refused: it waits for all others.
    ///
    /// # Safety
    /// `raw` must be a stream of this device that outlives the result.
    pub unsafe fn from_raw(device: &Device, raw: u64) -> Result<Stream, DriverError> {
        if raw == 0 {
            let reason = "the default stream cannot be used, give a stream of your own".to_string();
            return Err(DriverError::Invalid { call: "from_raw", reason });
        }
        Ok(Stream { device: device.clone(), raw: raw as Handle, is_ours: false })
    }

    /// The stream that libraries mean when they name none, which DLPack calls the legacy default stream. It waits for streams
    /// that were made to be waited for, and ours are not.
    pub fn legacy(device: &Device) -> Stream {
        let raw = match device.library().own() {
            Own::Cuda(_) => CUDA_LEGACY,
            Own::Hip(_) => HIP_DEFAULT,
        };
        Stream { device: device.clone(), raw, is_ours: false }
    }

    /// The driver's handle, for other libraries.
    pub fn raw(&self) -> u64 {
        self.raw as u64
    }

    /// The device it works on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Queues a kernel. Every parameter is one word of eight bytes: an address or an `i64`.
    ///
    /// # Safety
    /// The kernel must take exactly these parameters. Every address among them must be that of memory which holds all
    /// that the kernel touches: a device writes wherever it is told to, host memory included. The memory and the
    /// function's module must live until the work has run; under capture, as long as the graph may be launched.
    pub unsafe fn launch(
        &self,
        function: &Function,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        arguments: &[u64],
    ) -> Result<(), DriverError> {
        self.device.check_same("launch", "function", function.device())?;
        let entry = &self.device.enter()?.launch;
        let code = with_parameters(arguments, |parameters| {
            let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
            let none = std::ptr::null_mut();
            // SAFETY: the handles are alive, the driver copies the parameters before it returns, and the caller vouches
            // for their meaning.
            unsafe { (entry.call)(function.handle(), gx, gy, gz, bx, by, bz, shared_bytes, self.raw, parameters, none) }
        });
        self.device.check(entry.name, code)
    }

    /// Queues a kernel with what its shape asks for beyond the grid, where the vendor has that; elsewhere this is `launch`.
    ///
    /// # Safety
    /// As for `launch`; and an overlapping kernel must wait before it touches memory that work before it touches.
    pub unsafe fn launch_shaped(
        &self,
        function: &Function,
        shape: LaunchShape,
        arguments: &[u64],
    ) -> Result<(), DriverError> {
        let LaunchShape { grid, block, shared_bytes, is_overlapping, is_clustered } = shape;
        let own = match self.device.library().own() {
            Own::Cuda(own) if is_overlapping || is_clustered => own,
            // SAFETY: the caller's word is that of `launch` and more.
            _ => return unsafe { self.launch(function, grid, block, shared_bytes, arguments) },
        };
        self.device.check_same("launch", "function", function.device())?;
        self.device.enter()?;
        let entry = &own.launch_with;
        let (overlapping, cluster) = (CudaLaunchAttribute::OVERLAPPING, CudaLaunchAttribute::cluster(grid[2]));
        let attributes = if is_overlapping { [overlapping, cluster] } else { [cluster, overlapping] };
        let count = u32::from(is_overlapping) + u32::from(is_clustered);
        let stream = self.raw;
        let config = CudaLaunchConfig { grid, block, shared_bytes, stream, attributes: attributes.as_ptr(), count };
        let code = with_parameters(arguments, |parameters| {
            let config = std::ptr::from_ref(&config).cast();
            // SAFETY: the handles are alive, the driver copies config, attributes and parameters before it returns, and the
            // caller vouches for their meaning.
            unsafe { (entry.call)(config, function.handle(), parameters, std::ptr::null_mut()) }
        });
        self.device.check(entry.name, code)
    }

    /// Queues a copy from pinned memory to the device.
    ///
    /// # Safety
    /// Until the stream has passed this point, both buffers must live and nobody may write `range` of `source`. Under
    /// capture that holds for every launch of the graph.
    pub unsafe fn copy_to_device(
        &self,
        destination: &DeviceBuffer,
        offset: usize,
        source: &PinnedBuffer,
        range: Range<usize>,
    ) -> Result<(), DriverError> {
        self.device.check_same("copy_to_device", "destination", destination.device())?;
        let host = source.at("copy_to_device", &range)?;
        let address = destination.at("copy_to_device", offset, range.len())?;
        // SAFETY: both ranges lie inside their buffers, which live long enough by the caller's word.
        unsafe { self.copy_to_address(address, host, range.len()) }
    }

    /// Queues a copy from the device to pinned memory.
    ///
    /// # Safety
    /// Until the stream has passed this point, both buffers must live and nobody may read or write `range` of
    /// `destination`. Under capture that holds for every launch of the graph.
    pub unsafe fn copy_from_device(
        &self,
        destination: &PinnedBuffer,
        range: Range<usize>,
        source: &DeviceBuffer,
        offset: usize,
    ) -> Result<(), DriverError> {
        self.device.check_same("copy_from_device", "source", source.device())?;
        let host = destination.at("copy_from_device", &range)?;
        let address = source.at("copy_from_device", offset, range.len())?;
        // SAFETY: both ranges lie inside their buffers, which live long enough by the caller's word.
        unsafe { self.copy_from_address(host, address, range.len()) }
    }

    /// Queues a copy between buffers of the device.
    pub fn copy_device(
        &self,
        destination: &DeviceBuffer,
        destination_offset: usize,
        source: &DeviceBuffer,
        source_offset: usize,
        bytes: usize,
    ) -> Result<(), DriverError> {
        self.device.check_same("copy_device", "destination", destination.device())?;
        self.device.check_same("copy_device", "source", source.device())?;
        let to = destination.at("copy_device", destination_offset, bytes)?;
        let from = source.at("copy_device", source_offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let entry = &self.device.enter()?.copy_device;
        // SAFETY: both ranges lie inside buffers of this device; freeing a buffer waits for the work that uses it.
        let code = unsafe { (entry.call)(to, from, bytes, self.raw) };
        self.device.check(entry.name, code)
    }

    /// Queues the filling of a range with one byte.
    pub fn fill(&self, destination: &DeviceBuffer, offset: usize, bytes: usize, value: u8) -> Result<(), DriverError> {
        self.device.check_same("fill", "destination", destination.device())?;
        let address = destination.at("fill", offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let entry = &self.device.enter()?.fill;
        // SAFETY: the range lies inside a buffer of this device; freeing it waits for the work that uses it.
        let code = unsafe { (entry.call)(address, value, bytes, self.raw) };
        self.device.check(entry.name, code)
    }

    /// Copies ordinary host bytes to the device, after the work that is queued, and waits.
    pub fn upload(&self, destination: &DeviceBuffer, offset: usize, source: &[u8]) -> Result<(), DriverError> {
        self.device.check_same("upload", "destination", destination.device())?;
        let address = destination.at("upload", offset, source.len())?;
        if source.is_empty() {
            return Ok(());
        }
        // SAFETY: the range lies inside a buffer of this device, borrowed until the copy has finished.
        unsafe { staging::upload(self, address, source) }
    }

    /// Copies from the device to ordinary host bytes, after the work that is queued, and waits.
    pub fn download(&self, source: &DeviceBuffer, offset: usize, destination: &mut [u8]) -> Result<(), DriverError> {
        self.device.check_same("download", "source", source.device())?;
        let address = source.at("download", offset, destination.len())?;
        if destination.is_empty() {
            return Ok(());
        }
        // SAFETY: the range lies inside a buffer of this device, borrowed until the copy has finished.
        unsafe { staging::download(self, address, destination) }
    }

    /// Waits until all queued work has run.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        let entry = &self.device.enter()?.stream_synchronize;
        // SAFETY: the stream is alive.
        let code = unsafe { (entry.call)(self.raw) };
        self.device.check(entry.name, code)
    }

    /// Whether all queued work has run.
    pub fn query(&self) -> Result<bool, DriverError> {
        let entry = &self.device.enter()?.stream_query;
        // SAFETY: the stream is alive.
        let code = unsafe { (entry.call)(self.raw) };
        if code == NOT_READY {
            return Ok(false);
        }
        self.device.check(entry.name, code)?;
        Ok(true)
    }

    /// Marks this point of the stream.
    pub fn record(&self, event: &Event) -> Result<(), DriverError> {
        self.device.check_same("record", "event", event.device())?;
        let entry = &self.device.enter()?.event_record;
        // SAFETY: both handles are alive.
        let code = unsafe { (entry.call)(event.handle(), self.raw) };
        self.device.check(entry.name, code)
    }

    /// Makes later work wait for a mark, which may be on another device.
    pub fn wait(&self, event: &Event) -> Result<(), DriverError> {
        let entry = &self.device.enter()?.stream_wait;
        // SAFETY: both handles are alive; zero is the default flag.
        let code = unsafe { (entry.call)(self.raw, event.handle(), 0) };
        self.device.check(entry.name, code)
    }

    /// Begins to record what is queued instead of running it, until the guard ends it.
    pub fn begin_capture(&self) -> Result<CaptureGuard<'_>, DriverError> {
        CaptureGuard::begin(self)
    }

    pub(crate) fn handle(&self) -> Handle {
        self.raw
    }

    /// Queues a copy to a device address.
    ///
    /// # Safety
    /// Both ranges must exist, the host's pinned and unwritten, until the stream has passed this point.
    pub(crate) unsafe fn copy_to_address(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        let entry = &self.device.enter()?.copy_to_device;
        // SAFETY: the caller vouches for both ranges.
        let code = unsafe { (entry.call)(to, from.cast(), bytes, self.raw) };
        self.device.check(entry.name, code)
    }

    /// Queues a copy from a device address.
    ///
    /// # Safety
    /// Both ranges must exist, the host's pinned and untouched, until the stream has passed this point.
    pub(crate) unsafe fn copy_from_address(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        let entry = &self.device.enter()?.copy_from_device;
        // SAFETY: the caller vouches for both ranges.
        let code = unsafe { (entry.call)(to.cast(), from, bytes, self.raw) };
        self.device.check(entry.name, code)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_ours {
            // SAFETY: the stream is ours and is not used again; the driver lets queued work finish.
            unsafe { self.device.destroy(|shared| &shared.stream_destroy, self.raw) };
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Stream({:#x})", self.raw)
    }
}
