//! A mark in a stream, to wait for or to time from.

use crate::device::Device;
use crate::error::{DriverError, NOT_READY};
use crate::table::Handle;
use std::fmt;

const DEFAULT: u32 = 0;
/// Both vendors number it so.
const DISABLE_TIMING: u32 = 2;

/// A mark that a stream passes. Destroyed on drop.
pub struct Event {
    device: Device,
    raw: Handle,
}

impl Event {
    pub(crate) fn create(device: &Device, timing: bool) -> Result<Event, DriverError> {
        let entry = &device.enter()?.event_create;
        let mut raw = 0;
        // SAFETY: the call writes one handle to a place that is ours.
        let code = unsafe { (entry.call)(&mut raw, if timing { DEFAULT } else { DISABLE_TIMING }) };
        let raw = device.check_handle(entry.name, code, raw)?;
        Ok(Event { device: device.clone(), raw })
    }

    /// Waits until the stream has passed the mark. An event that was never recorded counts as passed.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        let entry = &self.device.enter()?.event_synchronize;
        // SAFETY: the handle is ours and alive.
        let code = unsafe { (entry.call)(self.raw) };
        self.device.check(entry.name, code)
    }

    /// Whether the stream has passed the mark.
    pub fn query(&self) -> Result<bool, DriverError> {
        let entry = &self.device.enter()?.event_query;
        // SAFETY: the handle is ours and alive.
        let code = unsafe { (entry.call)(self.raw) };
        if code == NOT_READY {
            return Ok(false);
        }
        self.device.check(entry.name, code)?;
        Ok(true)
    }

    /// Milliseconds between another mark and this one; both were made with timing and have been passed.
    pub fn elapsed_ms_since(&self, start: &Event) -> Result<f32, DriverError> {
        self.device.check_same("elapsed_ms_since", "start event", &start.device)?;
        let entry = &self.device.enter()?.event_elapsed;
        let mut milliseconds = 0.0;
        // SAFETY: both handles are alive, and the call writes one float to a place that is ours.
        let code = unsafe { (entry.call)(&mut milliseconds, start.raw, self.raw) };
        self.device.check(entry.name, code)?;
        Ok(milliseconds)
    }

    pub(crate) fn handle(&self) -> Handle {
        self.raw
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is ours and is not used again.
        unsafe { self.device.destroy(|shared| &shared.event_destroy, self.raw) };
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Event({:#x})", self.raw)
    }
}
