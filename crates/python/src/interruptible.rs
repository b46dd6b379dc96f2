//! Work that Ctrl-C ends: it is done on a thread of its own, while the thread that asked for it looks at signals. Work that
//! nobody waits for any more goes on to its end in the background, so that nothing is left half written.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::prelude::*;

use crate::exceptions::{internal, panic_text};

/// Time between two looks at signals.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Does the work without the interpreter's lock. A panic becomes `InternalError`.
pub fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (done, is_done) = channel();
    let caught = move || {
        let result = catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panic_text(&*panic));
        // Nobody listens any more after an interrupt.
        let _ = done.send(result);
    };
    let thread = std::thread::Builder::new().name(format!("precast-{name}")).spawn(caught);
    thread.map_err(|error| internal(py, &format!("no thread can be started: {error}")))?;
    let is_done = std::sync::Mutex::new(is_done);
    loop {
        let received = py.detach(|| {
            let is_done = is_done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            is_done.recv_timeout(LOOK_EVERY)
        });
        match received {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(panic)) => return Err(internal(py, &panic)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(internal(py, "a thread ended without a result")),
        }
    }
}

/// Does short work on this thread without the interpreter's lock. A panic becomes `InternalError`.
pub fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    let result = py.detach(|| catch_unwind(AssertUnwindSafe(work)));
    result.map_err(|panic| internal(py, &panic_text(&*panic)))
}
