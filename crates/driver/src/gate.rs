//! Captures and calls that disturb them take turns on a device. A capture is held to the rules of its own thread only, but
//! drivers are known to break captures when another thread allocates, loads or waits for the whole device meanwhile.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{ThreadId, current};

/// Who is on a device.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The thread that is capturing.
    capturing: Option<ThreadId>,
    /// Calls under way that would disturb a capture.
    disturbing: usize,
}

/// As long as this exists, nothing disturbs the capture.
pub(crate) struct Capturing<'gate>(&'gate Gate);

/// As long as this exists, no other thread captures.
pub(crate) struct Disturbing<'gate>(Option<&'gate Gate>);

impl Gate {
    /// Waits for its turn to capture.
    pub(crate) fn capture(&self) -> Capturing<'_> {
        let mut state = self.state();
        // A thread that captures already is refused by the driver; waiting for itself would last for ever.
        while state.capturing.is_some_and(|thread| thread != current().id()) || state.disturbing > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.capturing = Some(current().id());
        Capturing(self)
    }

    /// Waits until nobody captures. On the thread that does, the call goes through and the driver refuses it.
    pub(crate) fn disturb(&self) -> Disturbing<'_> {
        let mut state = self.state();
        if state.capturing == Some(current().id()) {
            return Disturbing(None);
        }
        while state.capturing.is_some() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.disturbing += 1;
        Disturbing(Some(self))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Capturing<'_> {
    fn drop(&mut self) {
        self.0.state().capturing = None;
        self.0.changed.notify_all();
    }
}

impl Drop for Disturbing<'_> {
    fn drop(&mut self) {
        if let Some(gate) = self.0 {
            gate.state().disturbing -= 1;
            gate.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn captures_and_disturbances_take_turns() {
        let (gate, inside) = (Gate::default(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _capturing = gate.capture();
                        assert_eq!(inside.fetch_add(100, Ordering::SeqCst), 0);
                        // The thread's own calls pass.
                        drop(gate.disturb());
                        inside.fetch_sub(100, Ordering::SeqCst);
                    }
                });
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _disturbing = gate.disturb();
                        assert!(inside.fetch_add(1, Ordering::SeqCst) < 100);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
