//! A door through which threads come to a piece of work that one thread owns: while it is open they may enter, and its owner
//! goes on when it is shut and the last one has left.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::{LOOKS_PER_CLOCK, SPIN};

/// Shut, with nobody inside, at first.
#[derive(Default)]
pub(super) struct Door {
    /// `OPEN`, plus `INSIDE` for each thread that has entered and not left.
    state: AtomicUsize,
}

/// Lets threads in.
const OPEN: usize = 1;
/// What each thread inside adds.
const INSIDE: usize = 2;

impl Door {
    /// Lets threads in; what was written before, they see.
    pub(super) fn open(&self) {
        self.state.store(OPEN, Ordering::Release);
    }

    /// Whether a thread is let in, and must leave.
    pub(super) fn enter(&self) -> bool {
        let step = |state: usize| (state & OPEN != 0).then_some(state + INSIDE);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, step).is_ok()
    }

    /// Leaves; what was written inside, the owner sees.
    pub(super) fn leave(&self) {
        self.state.fetch_sub(INSIDE, Ordering::Release);
    }

    /// Whether it is open and nobody is inside.
    pub(super) fn is_waiting(&self) -> bool {
        self.state.load(Ordering::Relaxed) == OPEN
    }

    /// Lets no more threads in.
    pub(super) fn shut(&self) {
        self.state.fetch_and(!OPEN, Ordering::Acquire);
    }

    /// Waits for those inside. Between looks `help` may do something useful and say so; where there is nothing, the core is
    /// given away when that takes longer than a hand-over.
    pub(super) fn wait(&self, help: impl Fn() -> bool) {
        let mut started = None;
        let (mut looks, mut is_late) = (0_u32, false);
        while self.state.load(Ordering::Acquire) != 0 {
            if help() {
                (started, looks, is_late) = (None, 0, false);
            } else if is_late {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
                let started = *started.get_or_insert_with(Instant::now);
                looks += 1;
                is_late = looks.is_multiple_of(LOOKS_PER_CLOCK) && started.elapsed() > SPIN;
            }
        }
    }
}
