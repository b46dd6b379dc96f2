//! Queued work and the order it runs in: whatever streams and events allow, shuffled by a fixed sequence.

use crate::module::Launch;
use crate::state::{Call, Handle, State, Status};
use std::time::Instant;

/// One piece of work.
#[derive(Clone)]
pub(crate) enum Op {
    Copy { to: u64, from: u64, bytes: usize, ends: Ends },
    Fill { to: u64, value: u8, bytes: usize },
    Kernel(Launch),
    Record { event: Handle, ticket: u64 },
    Wait { ticket: u64 },
}

/// What a copy goes between.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    ToDevice,
    FromDevice,
    Device,
}

impl Op {
    /// Device addresses that the work touches, as far as can be told.
    pub(crate) fn addresses(&self) -> Vec<u64> {
        match self {
            Op::Copy { to, ends: Ends::ToDevice, .. } => vec![*to],
            Op::Copy { from, ends: Ends::FromDevice, .. } => vec![*from],
            Op::Copy { to, from, ends: Ends::Device, .. } => vec![*to, *from],
            Op::Fill { to, .. } => vec![*to],
            Op::Kernel(launch) => launch.words.clone(),
            Op::Record { .. } | Op::Wait { .. } => Vec::new(),
        }
    }
}

impl State {
    /// Checks work against the memory there is.
    pub(crate) fn check_op(&mut self, call: &Call, op: &Op) -> Status {
        match op {
            Op::Copy { to, from, bytes, ends } => {
                match ends {
                    Ends::ToDevice => self.check_pinned(call, *from as usize, *bytes)?,
                    Ends::FromDevice | Ends::Device => self.check_extent(call, *from, *bytes)?,
                }
                match ends {
                    Ends::FromDevice => self.check_pinned(call, *to as usize, *bytes),
                    Ends::ToDevice | Ends::Device => self.check_extent(call, *to, *bytes),
                }
            }
            Op::Fill { to, bytes, .. } => self.check_extent(call, *to, *bytes),
            Op::Kernel(launch) => {
                for &word in &launch.words {
                    self.check_word(call, &launch.name, word)?;
                }
                Ok(())
            }
            Op::Record { .. } | Op::Wait { .. } => Ok(()),
        }
    }

    /// Queues work, or adds it to the capture of its stream.
    pub(crate) fn enqueue(&mut self, call: &Call, stream: Handle, op: Op) -> Status {
        let capture = self.check_stream(call, stream)?.capture;
        self.check_op(call, &op)?;
        match capture {
            Some(capture) => self.add_captured(capture, stream, op),
            None => self.check_stream(call, stream)?.queue.push_back(op),
        }
        Ok(())
    }

    pub(crate) fn copy(&mut self, call: &Call, to: u64, from: u64, bytes: usize, ends: Ends, stream: Handle) -> Status {
        self.enqueue(call, stream, Op::Copy { to, from, bytes, ends })
    }

    pub(crate) fn fill(&mut self, call: &Call, to: u64, value: u8, bytes: usize, stream: Handle) -> Status {
        self.enqueue(call, stream, Op::Fill { to, value, bytes })
    }

    /// Runs all work of a stream, and what it waits for.
    pub(crate) fn drain_stream(&mut self, call: &Call, stream: Handle) {
        self.drain(call, |state| state.streams.get(&stream).is_none_or(|found| found.queue.is_empty()));
    }

    /// Runs all work of a device, and what it waits for.
    pub(crate) fn drain_device(&mut self, call: &Call, device: usize) {
        self.drain(call, |state| {
            state.streams.values().all(|stream| stream.device != device || stream.queue.is_empty())
        });
    }

    /// Runs work until a record has been passed.
    pub(crate) fn drain_ticket(&mut self, call: &Call, ticket: u64) {
        self.drain(call, |state| state.passed.contains(&ticket) || state.recorder(ticket).is_none());
    }

    /// Runs one piece of work of a stream, if it can run.
    pub(crate) fn step_stream(&mut self, call: &Call, stream: Handle) {
        let runnable = self.runnable();
        let chosen = if runnable.contains(&stream) { Some(stream) } else { runnable.first().copied() };
        let has_work = self.streams.get(&stream).is_some_and(|found| !found.queue.is_empty());
        if let Some(chosen) = chosen.filter(|_| has_work) {
            self.memory.open(true);
            self.run_head(call, chosen);
            self.memory.open(false);
        }
    }

    /// The stream in whose queue a record still is.
    pub(crate) fn recorder(&self, ticket: u64) -> Option<Handle> {
        let is_here = |op: &Op| matches!(op, Op::Record { ticket: found, .. } if *found == ticket);
        self.streams.iter().find(|(_, stream)| stream.queue.iter().any(is_here)).map(|(handle, _)| *handle)
    }

    /// Streams whose first piece of work may run now.
    fn runnable(&self) -> Vec<Handle> {
        let can_run = |op: &Op| match op {
            // A record whose stream is gone has been passed or will never be.
            Op::Wait { ticket } => self.passed.contains(ticket) || self.recorder(*ticket).is_none(),
            Op::Copy { .. } | Op::Fill { .. } | Op::Kernel(_) | Op::Record { .. } => true,
        };
        let heads = self.streams.iter().filter(|(_, stream)| stream.queue.front().is_some_and(can_run));
        heads.map(|(handle, _)| *handle).collect()
    }

    fn drain(&mut self, call: &Call, is_done: impl Fn(&State) -> bool) {
        if is_done(self) {
            return;
        }
        self.memory.open(true);
        while !is_done(self) {
            let runnable = self.runnable();
            if runnable.is_empty() {
                self.violate(call, "R6", "work waits for events that nothing will record");
                break;
            }
            let chosen = runnable[self.pick(runnable.len())];
            self.run_head(call, chosen);
        }
        self.memory.open(false);
    }

    /// Runs the first piece of work of a stream; memory is open.
    fn run_head(&mut self, call: &Call, stream: Handle) {
        let Some(op) = self.streams.get_mut(&stream).and_then(|found| found.queue.pop_front()) else { return };
        match op {
            Op::Copy { to, from, bytes, .. } => {
                // SAFETY: both ranges were checked when the copy was queued, and freeing memory drains the queue.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
            }
            // SAFETY: the range was checked when the fill was queued, and freeing memory drains the queue.
            Op::Fill { to, value, bytes } => unsafe { (to as *mut u8).write_bytes(value, bytes) },
            Op::Kernel(launch) => {
                launch.run();
                if let Some(start) = self.memory.find_overrun() {
                    let name = &launch.name;
                    self.violate(call, "R5", format!("kernel {name} wrote beside the allocation at {start:#x}"));
                }
            }
            Op::Record { event, ticket } => {
                self.passed.insert(ticket);
                if let Some(event) = self.events.get_mut(&event).filter(|event| event.ticket == Some(ticket)) {
                    event.time = Some(Instant::now());
                }
            }
            Op::Wait { .. } => {}
        }
    }
}
