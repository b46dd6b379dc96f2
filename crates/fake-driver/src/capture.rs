//! Streams that record into a graph instead of queueing.

use crate::graph::{Graph, Node};
use crate::queue::Op;
use crate::state::{
    CAPTURE_INVALIDATED, CAPTURE_UNJOINED, CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, Call, Handle,
    State, Status,
};
use std::collections::{BTreeMap, BTreeSet};
use std::thread::{ThreadId, current};

const THREAD_LOCAL: i32 = 1;

/// A capture that has begun and not ended.
pub(crate) struct Capture {
    origin: Handle,
    device: usize,
    thread: ThreadId,
    nodes: Vec<Node>,
    /// The nodes that the next one of each stream must follow.
    pub(crate) tails: BTreeMap<Handle, Vec<usize>>,
    is_broken: bool,
}

impl State {
    pub(crate) fn capture_begin(&mut self, call: &Call, stream: Handle, mode: i32) -> Status {
        let found = self.check_stream(call, stream)?;
        let (device, capture) = (found.device, found.capture);
        if mode != THREAD_LOCAL {
            self.violate(call, "R2", format!("the capture's mode is {mode}, which forbids calls of other threads"));
        }
        if capture.is_some() {
            self.violate(call, "R2", "the stream is being captured already");
            self.break_captures(|id| Some(id) == capture);
            return Err(CAPTURE_UNSUPPORTED);
        }
        let id = self.new_ticket();
        let tails = BTreeMap::from([(stream, Vec::new())]);
        let thread = current().id();
        let capture = Capture { origin: stream, device, thread, nodes: Vec::new(), tails, is_broken: false };
        self.captures.insert(id, capture);
        self.check_stream(call, stream)?.capture = Some(id);
        Ok(())
    }

    pub(crate) fn capture_end(&mut self, call: &Call, stream: Handle, graph: &mut Handle) -> Status {
        *graph = 0;
        let Some(id) = self.check_stream(call, stream)?.capture else {
            self.violate(call, "R2", "the stream is not being captured");
            return Err(CAPTURE_UNMATCHED);
        };
        let capture = &self.captures[&id];
        if capture.thread != current().id() {
            self.violate(call, "R2", "the capture was begun on another thread");
            return Err(CAPTURE_WRONG_THREAD);
        }
        if capture.origin != stream {
            self.violate(call, "R2", "the capture was begun on another stream");
            return Err(CAPTURE_UNMATCHED);
        }
        let capture = self.captures.remove(&id).expect("the capture was found above");
        for found in self.streams.values_mut().filter(|found| found.capture == Some(id)) {
            found.capture = None;
        }
        if capture.is_broken {
            return Err(CAPTURE_INVALIDATED);
        }
        if !capture.is_joined() {
            self.violate(call, "R2", "a stream that joined the capture was not joined back");
            return Err(CAPTURE_UNJOINED);
        }
        if call.injected.is_none() {
            *graph = self.new_handle();
            self.graphs.insert(*graph, Graph { device: capture.device, nodes: capture.nodes });
        }
        Ok(())
    }

    /// Adds work to a capture, after what its stream has recorded.
    pub(crate) fn add_captured(&mut self, id: u64, stream: Handle, op: Op) {
        let handle = self.new_handle();
        let capture = self.captures.get_mut(&id).expect("a stream's capture exists");
        let index = capture.nodes.len();
        let after = capture.tails.insert(stream, vec![index]).unwrap_or_default();
        capture.nodes.push(Node { handle, op, after });
    }

    /// Refuses calls that a capture forbids on its own thread.
    pub(crate) fn refuse_in_capture(&mut self, call: &Call) -> Status {
        let thread = current().id();
        let Some((&id, _)) = self.captures.iter().find(|(_, capture)| capture.thread == thread) else { return Ok(()) };
        self.violate(call, "R2", "it is called on a thread that is capturing");
        self.break_captures(|found| found == id);
        Err(CAPTURE_UNSUPPORTED)
    }

    /// Makes captures fail at their end.
    pub(crate) fn break_captures(&mut self, is_meant: impl Fn(u64) -> bool) {
        for (_, capture) in self.captures.iter_mut().filter(|(id, _)| is_meant(**id)) {
            capture.is_broken = true;
        }
    }
}

impl Capture {
    /// Whether all that was recorded comes before the end of the first stream.
    fn is_joined(&self) -> bool {
        let mut pending = self.tails[&self.origin].clone();
        let mut reached = BTreeSet::new();
        while let Some(index) = pending.pop() {
            if reached.insert(index) {
                pending.extend(&self.nodes[index].after);
            }
        }
        self.tails.values().flatten().all(|index| reached.contains(index))
    }
}
