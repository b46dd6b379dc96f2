//! Devices, contexts, streams and events.

use crate::queue::Op;
use crate::state::{
    CAPTURE_ISOLATION, Call, Handle, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_READY, State,
    Status, Vendor, set_current,
};
use std::collections::VecDeque;
use std::time::Instant;

const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;
/// CUDA's handle of the default stream. There is one for all devices here, of the device that uses it.
const LEGACY: Handle = 1;

/// A context's handle says which device it is of.
const CONTEXT_BASE: Handle = 0x0020_0000_0000_0000;

/// A queue of work.
pub(crate) struct Stream {
    pub(crate) device: usize,
    pub(crate) queue: VecDeque<Op>,
    pub(crate) capture: Option<u64>,
}

/// A mark in a stream.
pub(crate) struct Event {
    pub(crate) device: usize,
    has_timing: bool,
    /// The newest record of it.
    pub(crate) ticket: Option<u64>,
    /// When it was passed.
    pub(crate) time: Option<Instant>,
    /// The capture it was recorded in, and the nodes it stands for.
    pub(crate) captured: Option<(u64, Vec<usize>)>,
}

/// The stream that events are meant for: work must not be queued on the default stream by its number zero, but others' work on
/// it may be waited for.
fn ordered(stream: Handle) -> Handle {
    if stream == 0 { LEGACY } else { stream }
}

impl State {
    pub(crate) fn initialise(&mut self, _call: &Call, flags: u32) -> Status {
        self.is_initialised = true;
        if flags == 0 { Ok(()) } else { Err(INVALID_VALUE) }
    }

    pub(crate) fn device_get(&mut self, _call: &Call, device: &mut i32, ordinal: i32) -> Status {
        self.check_ordinal(ordinal)?;
        *device = ordinal;
        Ok(())
    }

    fn check_ordinal(&self, ordinal: i32) -> Result<usize, i32> {
        let device = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
        if device < self.device_count { Ok(device) } else { Err(INVALID_DEVICE) }
    }

    pub(crate) fn attribute(&mut self, call: &Call, value: &mut i32, attribute: i32, device: i32) -> Status {
        self.check_ordinal(device)?;
        *value = match (call.vendor, attribute) {
            (Vendor::Cuda, 16) => 132,
            (Vendor::Cuda, 10) => 32,
            (Vendor::Cuda, 38) => 50 << 20,
            (Vendor::Cuda, 8) => 48 << 10,
            (Vendor::Cuda, 97) => 227 << 10,
            (Vendor::Cuda, 75) => 9,
            (Vendor::Cuda, 76) => 0,
            (Vendor::Hip, 63) => 104,
            (Vendor::Hip, 87) => 64,
            (Vendor::Hip, 19) => 8 << 20,
            (Vendor::Hip, 74) => 64 << 10,
            _ => return Err(INVALID_VALUE),
        };
        Ok(())
    }

    pub(crate) fn context_retain(&mut self, call: &Call, context: &mut Handle, device: i32) -> Status {
        let device = self.check_ordinal(device)?;
        if call.gives_null() {
            *context = 0;
            return Ok(());
        }
        *self.retained.entry(device).or_default() += 1;
        *context = CONTEXT_BASE + device;
        Ok(())
    }

    pub(crate) fn context_release(&mut self, call: &Call, device: i32) -> Status {
        let device = self.check_ordinal(device)?;
        match self.retained.get_mut(&device) {
            Some(count) if *count > 0 => *count -= 1,
            _ => {
                self.violate(call, "R3", format!("the context of device {device} is not retained"));
                return Err(INVALID_CONTEXT);
            }
        }
        Ok(())
    }

    pub(crate) fn context_set(&mut self, call: &Call, context: Handle) -> Status {
        let device = context.wrapping_sub(CONTEXT_BASE);
        if self.retained.get(&device).is_none_or(|count| *count == 0) {
            self.violate(call, "R1", format!("{context:#x} is not a retained context"));
            return Err(INVALID_CONTEXT);
        }
        set_current(Some(device));
        Ok(())
    }

    pub(crate) fn device_set(&mut self, _call: &Call, device: i32) -> Status {
        set_current(Some(self.check_ordinal(device)?));
        Ok(())
    }

    pub(crate) fn device_synchronize(&mut self, call: &Call) -> Status {
        let device = self.current(call)?;
        self.refuse_in_capture(call)?;
        let is_capturing = self.streams.values().any(|stream| stream.device == device && stream.capture.is_some());
        if is_capturing {
            self.violate(call, "R2", format!("a stream of device {device} is being captured"));
            self.break_captures(|_| true);
            return Err(crate::state::CAPTURE_UNSUPPORTED);
        }
        self.drain_device(call, device);
        Ok(())
    }

    pub(crate) fn stream_create(&mut self, call: &Call, stream: &mut Handle, flags: u32) -> Status {
        let device = self.current(call)?;
        if flags != NON_BLOCKING {
            self.violate(call, "R7", "the stream waits for the default stream");
        }
        *stream = 0;
        if !call.gives_null() {
            *stream = self.new_handle();
            self.streams.insert(*stream, Stream { device, queue: VecDeque::new(), capture: None });
        }
        Ok(())
    }

    /// Streams that somebody made.
    pub(crate) fn own_streams(&self) -> usize {
        self.streams.keys().filter(|&&stream| stream != LEGACY).count()
    }

    pub(crate) fn stream_destroy(&mut self, call: &Call, stream: Handle) -> Status {
        let found = self.check_stream(call, stream)?;
        if found.capture.is_some() {
            self.violate(call, "R2", "the stream is being captured");
            self.break_captures(|_| true);
        }
        // The real drivers let queued work finish.
        self.drain_stream(call, stream);
        self.streams.remove(&stream);
        Ok(())
    }

    /// A stream that exists and is of the current device.
    pub(crate) fn check_stream(&mut self, call: &Call, stream: Handle) -> Result<&mut Stream, i32> {
        if stream == 0 {
            self.violate(call, "R7", "the default stream is used");
            return Err(INVALID_HANDLE);
        }
        if stream == LEGACY {
            let device = self.current(call)?;
            let found = self.streams.entry(LEGACY);
            let found = found.or_insert_with(|| Stream { device, queue: VecDeque::new(), capture: None });
            if found.queue.is_empty() {
                found.device = device;
            }
        }
        let Some(found) = self.streams.get(&stream) else { return Err(self.dead_handle(call, "stream", stream)) };
        let device = found.device;
        self.check_device(call, "stream", device)?;
        Ok(self.streams.get_mut(&stream).expect("the stream was found above"))
    }

    /// Whether the stream may be waited for or asked.
    fn check_outside_capture(&mut self, call: &Call, stream: Handle) -> Status {
        let capture = self.check_stream(call, stream)?.capture;
        self.refuse_in_capture(call)?;
        if let Some(capture) = capture {
            self.violate(call, "R2", "the stream is being captured");
            self.break_captures(|id| id == capture);
            return Err(crate::state::CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }

    pub(crate) fn stream_synchronize(&mut self, call: &Call, stream: Handle) -> Status {
        self.check_outside_capture(call, stream)?;
        self.drain_stream(call, stream);
        Ok(())
    }

    /// Each question lets one piece of work run, so that asking again and again comes to an end.
    pub(crate) fn stream_query(&mut self, call: &Call, stream: Handle) -> Status {
        self.check_outside_capture(call, stream)?;
        self.step_stream(call, stream);
        let is_idle = self.streams.get(&stream).is_none_or(|stream| stream.queue.is_empty());
        if is_idle { Ok(()) } else { Err(NOT_READY) }
    }

    pub(crate) fn event_create(&mut self, call: &Call, event: &mut Handle, flags: u32) -> Status {
        let device = self.current(call)?;
        *event = 0;
        if !call.gives_null() {
            *event = self.new_handle();
            let has_timing = flags & DISABLE_TIMING == 0;
            self.events.insert(*event, Event { device, has_timing, ticket: None, time: None, captured: None });
        }
        Ok(())
    }

    pub(crate) fn event_destroy(&mut self, call: &Call, event: Handle) -> Status {
        self.check_event(call, event)?;
        self.events.remove(&event);
        Ok(())
    }

    fn check_event(&mut self, call: &Call, event: Handle) -> Result<&mut Event, i32> {
        let Some(found) = self.events.get(&event) else { return Err(self.dead_handle(call, "event", event)) };
        let device = found.device;
        self.check_device(call, "event", device)?;
        Ok(self.events.get_mut(&event).expect("the event was found above"))
    }

    pub(crate) fn event_record(&mut self, call: &Call, event: Handle, stream: Handle) -> Status {
        let stream = ordered(stream);
        self.check_event(call, event)?;
        let capture = self.check_stream(call, stream)?.capture;
        if let Some(capture) = capture {
            let tail = self.captures.get(&capture).and_then(|found| found.tails.get(&stream).cloned());
            self.check_event(call, event)?.captured = Some((capture, tail.unwrap_or_default()));
            return Ok(());
        }
        let ticket = self.new_ticket();
        let found = self.check_event(call, event)?;
        (found.ticket, found.time, found.captured) = (Some(ticket), None, None);
        self.check_stream(call, stream)?.queue.push_back(Op::Record { event, ticket });
        Ok(())
    }

    pub(crate) fn stream_wait(&mut self, call: &Call, stream: Handle, event: Handle) -> Status {
        let stream = ordered(stream);
        let capture = self.check_stream(call, stream)?.capture;
        // An event may be of another device here.
        let Some(found) = self.events.get(&event) else { return Err(self.dead_handle(call, "event", event)) };
        let (ticket, captured) = (found.ticket, found.captured.clone());
        let captured = captured.filter(|(id, _)| self.captures.contains_key(id));
        match (capture, captured) {
            (None, None) => {
                if let Some(ticket) = ticket {
                    self.check_stream(call, stream)?.queue.push_back(Op::Wait { ticket });
                }
                Ok(())
            }
            (Some(id), None) => {
                self.violate(call, "R2", "a captured stream waits for an event from outside the capture");
                self.break_captures(|found| found == id);
                Err(CAPTURE_ISOLATION)
            }
            (Some(id), Some((other, _))) if id != other => {
                self.violate(call, "R2", "a captured stream waits for an event of another capture");
                self.break_captures(|found| found == id || found == other);
                Err(CAPTURE_ISOLATION)
            }
            (_, Some((id, nodes))) => {
                self.check_stream(call, stream)?.capture = Some(id);
                let found = self.captures.get_mut(&id).expect("the capture was looked up above");
                found.tails.entry(stream).or_default().extend(nodes);
                Ok(())
            }
        }
    }

    pub(crate) fn event_synchronize(&mut self, call: &Call, event: Handle) -> Status {
        self.refuse_in_capture(call)?;
        if let Some(ticket) = self.check_event(call, event)?.ticket {
            self.drain_ticket(call, ticket);
        }
        Ok(())
    }

    pub(crate) fn event_query(&mut self, call: &Call, event: Handle) -> Status {
        self.refuse_in_capture(call)?;
        let Some(ticket) = self.check_event(call, event)?.ticket else { return Ok(()) };
        let recorder = self.recorder(ticket);
        if let Some(stream) = recorder {
            self.step_stream(call, stream);
        }
        if self.passed.contains(&ticket) { Ok(()) } else { Err(NOT_READY) }
    }

    pub(crate) fn event_elapsed(&mut self, call: &Call, milliseconds: &mut f32, start: Handle, end: Handle) -> Status {
        let mut times = Vec::new();
        for event in [start, end] {
            let found = self.check_event(call, event)?;
            if !found.has_timing || found.ticket.is_none() {
                return Err(INVALID_HANDLE);
            }
            times.push(found.time.ok_or(NOT_READY)?);
        }
        *milliseconds = times[1].saturating_duration_since(times[0]).as_secs_f32() * 1e3;
        Ok(())
    }
}
