//! Memory of a device, and memory of the host that a device can reach by itself.

use crate::device::{Device, warn_of};
use crate::error::DriverError;
use std::any::Any;
use std::fmt;
use std::ops::Range;

/// Every context may use the memory, not only the one that was current, and kernels may too. Both vendors number it so.
const PINNED_FLAGS: u32 = 1 | 2;
/// Asks which device an address is of. Both vendors number it so.
const DEVICE_OF_ADDRESS: i32 = 9;
/// What both vendors answer of an address that they did not give.
const INVALID_VALUE: i32 = 1;

/// Memory of a device. Our own is freed on drop, which must not happen inside a capture on the same thread.
pub struct DeviceBuffer {
    device: Device,
    address: u64,
    len: usize,
    /// Who has the memory where it is not ours; let go on drop.
    owner: Option<Box<dyn Any + Send + Sync>>,
}

impl DeviceBuffer {
    pub(crate) fn allocate(device: &Device, len: usize) -> Result<DeviceBuffer, DriverError> {
        if len == 0 {
            return Ok(DeviceBuffer { device: device.clone(), address: 0, len, owner: None });
        }
        let _turn = device.gate().disturb();
        let entry = &device.enter()?.memory_allocate;
        let mut address = 0;
        // SAFETY: the call writes one address to a place that is ours.
        let code = unsafe { (entry.call)(&mut address, len) };
        device.check(entry.name, code)?;
        if address == 0 {
            return Err(DriverError::NullHandle { call: entry.name });
        }
        Ok(DeviceBuffer { device: device.clone(), address, len, owner: None })
    }

    /// Memory that another library allocated, which is never freed; its owner is dropped with the buffer. Addresses that the
    /// driver does not know as this device's are refused.
    ///
    /// # Safety
    /// `len` bytes from `address` on must be allocated as long as the owner lives, and be used by others only in an order
    /// that the caller keeps.
    pub unsafe fn adopt(
        device: &Device,
        address: u64,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<DeviceBuffer, DriverError> {
        if len > 0 {
            device.check_address(address)?;
        }
        Ok(DeviceBuffer { device: device.clone(), address, len, owner: Some(owner) })
    }

    /// Where it starts; zero if it is empty.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device it is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The address of `len` bytes at `offset`, if they lie inside.
    pub(crate) fn at(&self, call: &'static str, offset: usize, len: usize) -> Result<u64, DriverError> {
        check_range(call, offset..offset.saturating_add(len), self.len)?;
        Ok(self.address + offset as u64)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.address == 0 || self.owner.is_some() {
            return;
        }
        let _turn = self.device.gate().disturb();
        let status = self.device.enter().and_then(|shared| {
            let entry = &shared.memory_free;
            // SAFETY: the address came from the allocation and is freed once.
            let code = unsafe { (entry.call)(self.address) };
            self.device.check(entry.name, code)
        });
        warn_of(status);
    }
}

impl Device {
    /// Refuses an address that is no memory of this device.
    fn check_address(&self, address: u64) -> Result<(), DriverError> {
        let entry = &self.enter()?.memory_attribute;
        let mut ordinal = -1_i32;
        // SAFETY: this attribute is one int, which is written to a place that is ours; the address is looked up, not read.
        let code = unsafe { (entry.call)((&raw mut ordinal).cast(), DEVICE_OF_ADDRESS, address) };
        let own = self.info().ordinal;
        let reason = match self.check(entry.name, code) {
            Ok(()) if usize::try_from(ordinal) == Ok(own) => return Ok(()),
            Ok(()) => format!("{address:#x} is memory of device {ordinal}; memory of device {own} is expected"),
            Err(_) if code == INVALID_VALUE => format!("{address:#x} is no memory of device {own}"),
            Err(error) => return Err(error),
        };
        Err(DriverError::Invalid { call: "adopt", reason })
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DeviceBuffer({} bytes at {:#x})", self.len, self.address)
    }
}

/// Host memory that the system does not move, so that a device can copy to and from it while we do other things.
pub struct PinnedBuffer {
    device: Device,
    memory: PinnedMemory,
}

/// Pinned bytes without an owner. An address, since it is shared between threads.
#[derive(Clone, Copy)]
pub(crate) struct PinnedMemory {
    pub(crate) address: usize,
    pub(crate) len: usize,
}

impl PinnedMemory {
    /// Allocates zeroed memory; `len` is not zero.
    pub(crate) fn allocate(device: &Device, len: usize) -> Result<PinnedMemory, DriverError> {
        let _turn = device.gate().disturb();
        let entry = &device.enter()?.pinned_allocate;
        let mut start = std::ptr::null_mut();
        // SAFETY: the call writes one pointer to a place that is ours.
        let code = unsafe { (entry.call)(&mut start, len, PINNED_FLAGS) };
        device.check(entry.name, code)?;
        if start.is_null() {
            return Err(DriverError::NullHandle { call: entry.name });
        }
        // SAFETY: the driver gave `len` bytes of host memory, and nobody else knows them.
        unsafe { start.cast::<u8>().write_bytes(0, len) };
        Ok(PinnedMemory { address: start as usize, len })
    }

    pub(crate) fn as_mut_ptr(self) -> *mut u8 {
        self.address as *mut u8
    }
}

impl PinnedBuffer {
    pub(crate) fn allocate(device: &Device, len: usize) -> Result<PinnedBuffer, DriverError> {
        let memory = match len {
            0 => PinnedMemory { address: 0, len },
            _ => PinnedMemory::allocate(device, len)?,
        };
        Ok(PinnedBuffer { device: device.clone(), memory })
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.memory.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.memory.len == 0
    }

    /// Where kernels find it: drivers with one space of addresses map it where the host has it.
    pub fn device_address(&self) -> u64 {
        self.memory.address as u64
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        if self.is_empty() {
            return &[];
        }
        // SAFETY: the memory is initialised, ours, and borrowed as long as the slice.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.memory.len) }
    }

    /// Its bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        if self.is_empty() {
            return &mut [];
        }
        // SAFETY: the memory is initialised, ours, and borrowed mutably as long as the slice.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr(), self.memory.len) }
    }

    /// Where it starts; null if it is empty.
    pub fn as_ptr(&self) -> *const u8 {
        self.memory.as_mut_ptr()
    }

    /// The address of a range, if it lies inside.
    pub(crate) fn at(&self, call: &'static str, range: &Range<usize>) -> Result<*mut u8, DriverError> {
        check_range(call, range.clone(), self.memory.len)?;
        Ok(self.memory.as_mut_ptr().wrapping_add(range.start))
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.is_empty() {
            return;
        }
        let _turn = self.device.gate().disturb();
        let status = self.device.enter().and_then(|shared| {
            let entry = &shared.pinned_free;
            // SAFETY: the memory came from the allocation and is freed once.
            let code = unsafe { (entry.call)(self.memory.as_mut_ptr().cast()) };
            self.device.check(entry.name, code)
        });
        warn_of(status);
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PinnedBuffer({} bytes)", self.memory.len)
    }
}

fn check_range(call: &'static str, range: Range<usize>, len: usize) -> Result<(), DriverError> {
    if range.start <= range.end && range.end <= len {
        return Ok(());
    }
    Err(DriverError::OutOfRange { call, start: range.start, end: range.end, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_must_lie_inside() {
        assert!(check_range("upload", 0..8, 8).is_ok() && check_range("upload", 8..8, 8).is_ok());
        let error = check_range("upload", 4..9, 8).unwrap_err();
        assert_eq!(error.to_string(), "upload: bytes 4 to 9 do not lie inside a buffer of 8 bytes");
        assert!(check_range("upload", 4..usize::MAX, 8).is_err());
    }
}
