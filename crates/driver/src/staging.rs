//! Copies between ordinary host memory and a device, by way of a little pinned memory.
//!
//! A device can only copy by itself from pinned memory; given other memory, a driver stages it or blocks on the default
//! stream. We stage it ourselves in two halves: while the device copies one, the host fills or empties the other.

use crate::buffer::PinnedMemory;
use crate::device::Device;
use crate::error::DriverError;
use crate::event::Event;
use crate::library::Library;
use crate::stream::Stream;
use crate::table::Shared;
use std::sync::PoisonError;

/// Bytes of one half. Large enough that a copy takes far longer than its launch.
const HALF_BYTES: usize = 2 << 20;

/// Pinned memory of a device for copies that wait.
pub(crate) struct Staging {
    memory: PinnedMemory,
}

impl Staging {
    /// Frees the memory.
    ///
    /// # Safety
    /// Its device must be current and not be copying to or from it.
    pub(crate) unsafe fn free(self, library: &Library, shared: &Shared) -> Result<(), DriverError> {
        let entry = &shared.pinned_free;
        // SAFETY: the memory came from the allocation; the caller says that it is idle.
        let code = unsafe { (entry.call)(self.memory.as_mut_ptr().cast()) };
        library.check(entry.name, code)
    }

    fn half(&self, index: usize) -> *mut u8 {
        self.memory.as_mut_ptr().wrapping_add(index % 2 * HALF_BYTES)
    }
}

/// Copies host bytes to a device address and waits.
///
/// # Safety
/// `destination` must be the address of that many bytes on the stream's device.
pub(crate) unsafe fn upload(stream: &Stream, destination: u64, source: &[u8]) -> Result<(), DriverError> {
    with_staging(stream, |staging, events| {
        for (index, chunk) in source.chunks(HALF_BYTES).enumerate() {
            let half = staging.half(index);
            events.wait_for(index)?;
            // SAFETY: a chunk fits a half, and the event says that the device is done with this half.
            unsafe { half.copy_from_nonoverlapping(chunk.as_ptr(), chunk.len()) };
            let address = destination + (index * HALF_BYTES) as u64;
            // SAFETY: the half is pinned and not touched before its event; the caller vouches for the address.
            unsafe { stream.copy_to_address(address, half, chunk.len()) }?;
            events.record(index, stream)?;
        }
        stream.synchronize()
    })
}

/// Copies from a device address to host bytes and waits.
///
/// # Safety
/// `source` must be the address of that many bytes on the stream's device.
pub(crate) unsafe fn download(stream: &Stream, source: u64, destination: &mut [u8]) -> Result<(), DriverError> {
    with_staging(stream, |staging, events| {
        let mut chunks = destination.chunks_mut(HALF_BYTES).enumerate();
        let mut previous: Option<(usize, &mut [u8])> = None;
        loop {
            let next = chunks.next();
            if let Some((index, chunk)) = &next {
                let address = source + (index * HALF_BYTES) as u64;
                // SAFETY: the half was emptied two chunks ago, and is not touched before its event; the caller
                // vouches for the address.
                unsafe { stream.copy_from_address(staging.half(*index), address, chunk.len()) }?;
                events.record(*index, stream)?;
            }
            let Some((index, chunk)) = std::mem::replace(&mut previous, next) else {
                if previous.is_none() {
                    return Ok(());
                }
                continue;
            };
            events.wait_for(index)?;
            // SAFETY: the event says that the device has filled the half; a chunk is no longer than a half.
            unsafe { chunk.as_mut_ptr().copy_from_nonoverlapping(staging.half(index), chunk.len()) };
        }
    })
}

/// One event a half, and whether it stands for a copy.
struct HalfEvents {
    events: [Event; 2],
    recorded: [bool; 2],
}

impl HalfEvents {
    fn record(&mut self, index: usize, stream: &Stream) -> Result<(), DriverError> {
        stream.record(&self.events[index % 2])?;
        self.recorded[index % 2] = true;
        Ok(())
    }

    fn wait_for(&self, index: usize) -> Result<(), DriverError> {
        if self.recorded[index % 2] { self.events[index % 2].synchronize() } else { Ok(()) }
    }
}

/// Runs a copy while it alone has the staging memory, which is allocated the first time.
fn with_staging(
    stream: &Stream,
    copy: impl FnOnce(&Staging, &mut HalfEvents) -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    let device: &Device = stream.device();
    let mut staging = device.staging().lock().unwrap_or_else(PoisonError::into_inner);
    if staging.is_none() {
        *staging = Some(Staging { memory: PinnedMemory::allocate(device, 2 * HALF_BYTES)? });
    }
    let staging = staging.as_ref().expect("the staging memory was allocated above");
    let events = [device.event(false)?, device.event(false)?];
    let mut events = HalfEvents { events, recorded: [false; 2] };
    let result = copy(staging, &mut events);
    if result.is_err() {
        // The next user may fill the halves at once, so nothing may still be reading them.
        let _ = stream.synchronize();
    }
    result
}
