//! Which core a thread runs on, and leaving one that another thread needs.
//!
//! The scheduler of the system likes to wake a thread on the core of the thread that wakes it. For two threads that then
//! compute side by side that halves the speed until the next balancing, milliseconds later. A worker that finds itself
//! there moves away at once; what the user allowed the thread stays as it was.

/// Stands for a core that is not known.
pub(crate) const NO_CORE: usize = usize::MAX;

/// The core this thread runs on, as the system numbers them; `NO_CORE` where it cannot be asked cheaply.
#[cfg(target_os = "linux")]
pub(crate) fn current() -> usize {
    rustix::thread::sched_getcpu()
}

/// Moves this thread to another of the cores it is allowed if it runs on this one; does nothing if there is no other.
#[cfg(target_os = "linux")]
pub(crate) fn leave(core: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    if core == NO_CORE || current() != core || core >= CpuSet::MAX_CPU {
        return;
    }
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let mut others = allowed;
    others.unset(core);
    if others.count() > 0 && sched_setaffinity(None, &others).is_ok() {
        // Only where the thread runs now has changed if this succeeds, and it succeeded when the thread was made.
        let _ = sched_setaffinity(None, &allowed);
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn current() -> usize {
    NO_CORE
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn leave(_core: usize) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn leaving_a_core_keeps_what_is_allowed() {
        let before = rustix::thread::sched_getaffinity(None).expect("the system says what is allowed");
        for _ in 0..20 {
            leave(current());
        }
        leave(NO_CORE);
        assert_eq!(rustix::thread::sched_getaffinity(None).expect("as before"), before);
    }
}
