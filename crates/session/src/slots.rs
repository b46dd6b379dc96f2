//! How many threads may do a thing at once; the others wait.

use std::sync::{Condvar, Mutex, PoisonError};

/// A number of free slots.
pub(crate) struct Slots {
    free: Mutex<usize>,
    freed: Condvar,
}

/// A slot that is free again when this is dropped.
pub(crate) struct TakenSlot<'a>(&'a Slots);

impl Slots {
    /// This many slots, at least one.
    pub(crate) fn new(count: usize) -> Slots {
        Slots { free: Mutex::new(count.max(1)), freed: Condvar::new() }
    }

    /// A slot, as soon as one is free.
    pub(crate) fn take(&self) -> TakenSlot<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        TakenSlot(self)
    }
}

impl Drop for TakenSlot<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}
