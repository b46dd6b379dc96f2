//! The table of a Program in a context: the addresses of the caller's buffers, which kernels read, and what `move_rows`
//! moves. It is written from a ring of pinned memory in the order of the stream, so moved buffers cost one small copy and no
//! wait: what runs before the copy reads the old words, what runs after it the new ones.
#![allow(unsafe_code)]

use precast_driver::{DeviceBuffer, DriverError, Event, PinnedBuffer, Stream};

/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// Writes that may be on their way at once.
const RING_SLOTS: usize = 8;

/// The words of a Program in a context.
pub(super) struct WordTable {
    words: DeviceBuffer,
    ring: PinnedBuffer,
    /// One mark a slot of the ring, behind the copy that reads it.
    events: Vec<Event>,
    next: usize,
    /// What the table holds once the stream has come here; empty where that is not known.
    written: Vec<u64>,
    /// What the next run wants.
    wanted: Vec<u64>,
    capacity: usize,
}

impl WordTable {
    /// A table of so many words.
    pub(super) fn new(stream: &Stream, capacity: usize) -> Result<WordTable, DriverError> {
        let device = stream.device();
        Ok(WordTable {
            words: device.allocate(capacity * WORD)?,
            ring: device.allocate_pinned(RING_SLOTS * capacity * WORD)?,
            events: (0..RING_SLOTS).map(|_| device.event(false)).collect::<Result<_, _>>()?,
            next: 0,
            written: Vec::with_capacity(capacity),
            wanted: Vec::with_capacity(capacity),
            capacity,
        })
    }

    /// The address of a word on the device.
    pub(super) fn address(&self, word: usize) -> u64 {
        self.words.address() + (word * WORD) as u64
    }

    /// What the next run wants, from the first word on: to be filled after it was cleared.
    pub(super) fn wanted(&mut self) -> &mut Vec<u64> {
        &mut self.wanted
    }

    /// Brings what is wanted to the device, if it is not there. Allocates nothing.
    pub(super) fn write(&mut self, stream: &Stream) -> Result<(), DriverError> {
        let count = self.wanted.len();
        debug_assert!(count <= self.capacity, "{count} words in a table of {}", self.capacity);
        if self.written.get(..count) == Some(&self.wanted[..]) {
            return Ok(());
        }
        let result = self.copy(stream);
        match &result {
            Ok(()) => {
                if self.written.len() < count {
                    self.written.resize(count, 0);
                }
                self.written[..count].copy_from_slice(&self.wanted);
            }
            Err(_) => {
                // A copy may be on its way without a mark behind it.
                self.written.clear();
                let _ = stream.synchronize();
            }
        }
        result
    }

    fn copy(&mut self, stream: &Stream) -> Result<(), DriverError> {
        let slot = self.next;
        self.next = (slot + 1) % RING_SLOTS;
        self.events[slot].synchronize()?;
        let start = slot * self.capacity * WORD;
        let bytes = start..start + self.wanted.len() * WORD;
        for (place, word) in self.ring.as_mut_slice()[bytes.clone()].chunks_exact_mut(WORD).zip(&self.wanted) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        // SAFETY: both buffers live as long as the context's stream, and this slot is written again only after the mark that
        // follows the copy, or after the stream was waited for where there is none.
        unsafe { stream.copy_to_device(&self.words, 0, &self.ring, bytes)? };
        stream.record(&self.events[slot])
    }
}
