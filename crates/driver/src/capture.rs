//! Recording of a stream into a graph, ended on every way out.

use crate::device::warn_of;
use crate::error::DriverError;
use crate::gate::Capturing;
use crate::graph::Graph;
use crate::stream::Stream;
use crate::table::Handle;
use std::fmt;
use std::marker::PhantomData;

/// Only this thread's calls are held to the rules of capture. Both vendors number it so.
const THREAD_LOCAL: i32 = 1;

/// A capture that has begun. It stays on its thread; dropping it aborts the capture and leaves the stream usable.
#[must_use = "dropping the guard aborts the capture"]
pub struct CaptureGuard<'stream> {
    stream: &'stream Stream,
    is_open: bool,
    /// Held until the capture has ended.
    _turn: Capturing<'stream>,
    /// A capture must end on the thread that began it.
    _thread: PhantomData<*const ()>,
}

impl<'stream> CaptureGuard<'stream> {
    pub(crate) fn begin(stream: &'stream Stream) -> Result<CaptureGuard<'stream>, DriverError> {
        let turn = stream.device().gate().capture();
        let entry = &stream.device().enter()?.capture_begin;
        // SAFETY: the stream is alive.
        let code = unsafe { (entry.call)(stream.handle(), THREAD_LOCAL) };
        stream.device().check(entry.name, code)?;
        Ok(CaptureGuard { stream, is_open: true, _turn: turn, _thread: PhantomData })
    }

    /// Ends the capture and gives what was recorded. Nothing of it has run.
    pub fn end(mut self) -> Result<Graph, DriverError> {
        let raw = self.close()?;
        Ok(Graph::from_raw(self.stream.device(), raw))
    }

    /// Ends the capture, whatever becomes of it.
    fn close(&mut self) -> Result<Handle, DriverError> {
        let device = self.stream.device();
        let entry = &device.enter()?.capture_end;
        self.is_open = false;
        let mut raw = 0;
        // SAFETY: the capture was begun on this thread, and the call writes one handle to a place that is ours.
        let code = unsafe { (entry.call)(self.stream.handle(), &mut raw) };
        device.check_handle(entry.name, code, raw)
    }
}

impl Drop for CaptureGuard<'_> {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        match self.close() {
            Ok(raw) => drop(Graph::from_raw(self.stream.device(), raw)),
            // A capture that was broken inside gives no graph, which is what is wanted here.
            Err(error) if error.is_capture() => {}
            Err(error) => warn_of(Err(error)),
        }
    }
}

impl fmt::Debug for CaptureGuard<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "CaptureGuard({:?})", self.stream)
    }
}
