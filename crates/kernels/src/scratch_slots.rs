//! Stretches of scratch for tasks that any thread may take: there are as many as threads, not as tasks.

use std::sync::atomic::{AtomicU64, Ordering};

/// Which stretches of scratch are free: as many as threads run tasks at once, so that each goes on with memory that is in its cache.
pub(crate) struct ScratchSlots(AtomicU64);

impl ScratchSlots {
    /// More threads than this wait for each other.
    pub(crate) const MAX: usize = u64::BITS as usize;

    pub(crate) fn new(count: usize) -> ScratchSlots {
        ScratchSlots(AtomicU64::new(u64::MAX >> (ScratchSlots::MAX - count.clamp(1, ScratchSlots::MAX))))
    }

    /// The first free slot, which is nobody else's until it is given back.
    pub(crate) fn take(&self) -> usize {
        loop {
            let free = self.0.load(Ordering::Relaxed);
            let slot = free.trailing_zeros();
            let taken = free & !1_u64.checked_shl(slot).unwrap_or(0);
            if free != 0 && self.0.compare_exchange_weak(free, taken, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return slot as usize;
            }
            std::hint::spin_loop();
        }
    }

    pub(crate) fn give_back(&self, slot: usize) {
        self.0.fetch_or(1 << slot, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_one_owner_at_a_time() {
        let slots = ScratchSlots::new(3);
        assert_eq!([slots.take(), slots.take(), slots.take()], [0, 1, 2]);
        slots.give_back(1);
        assert_eq!(slots.take(), 1);
        assert_eq!(ScratchSlots::new(64).0.into_inner(), u64::MAX);
    }
}
