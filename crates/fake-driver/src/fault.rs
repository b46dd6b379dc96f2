//! A sentence before the process dies of a fault in device memory: which kernel it was, or that it was the host.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    /// The name of the kernel that runs on this thread: where it is and how long. Plain numbers without a destructor, so
    /// that the handler may read them.
    static RUNNING: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// First address of device memory, and one past the last.
static ARENA: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// Who handled faults before us, and does again after our sentence.
static PREVIOUS: OnceLock<Handler> = OnceLock::new();

struct Handler(libc::sigaction);

// SAFETY: the action is a value that is only read.
unsafe impl Send for Handler {}
// SAFETY: as above.
unsafe impl Sync for Handler {}

/// As long as this exists, a kernel of this name runs on this thread.
pub(crate) struct Running;

/// Says which kernel runs on this thread.
pub(crate) fn running(name: &str) -> Running {
    RUNNING.set((name.as_ptr() as usize, name.len()));
    Running
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.set((0, 0));
    }
}

/// Watches faults from now on, for device memory at these addresses.
pub(crate) fn watch(start: usize, end: usize) {
    ARENA[0].store(start, Ordering::Relaxed);
    ARENA[1].store(end, Ordering::Relaxed);
    PREVIOUS.get_or_init(|| {
        // SAFETY: an action of zeros is one without flags and signals.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) = tell;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let mut previous = action;
        // SAFETY: both actions are ours, and the handler only reads numbers and writes to standard error.
        unsafe { libc::sigaction(libc::SIGSEGV, &action, &mut previous) };
        Handler(previous)
    });
}

/// Writes the sentence and gives the fault back to whoever handled it before: it happens again at once.
extern "C" fn tell(_signal: c_int, information: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the system gives the handler its information.
    let address = unsafe { (*information).si_addr() } as usize;
    let (name, len) = RUNNING.get();
    let is_device = (ARENA[0].load(Ordering::Relaxed)..ARENA[1].load(Ordering::Relaxed)).contains(&address);
    if len > 0 {
        // SAFETY: the name lives as long as its kernel runs, on this thread.
        let name = unsafe { std::slice::from_raw_parts(name as *const u8, len) };
        let whose: &[u8] = if is_device { b" touched device memory outside its buffers\n" } else { b" faulted\n" };
        write_all(&[b"fake driver: kernel ", name, whose]);
    } else if is_device {
        write_all(&[b"fake driver: the host touched device memory\n"]);
    }
    if let Some(Handler(previous)) = PREVIOUS.get() {
        // SAFETY: the action is the one that was there before.
        unsafe { libc::sigaction(libc::SIGSEGV, previous, std::ptr::null_mut()) };
    }
}

/// Writes to standard error without a lock or an allocation.
fn write_all(parts: &[&[u8]]) {
    for part in parts {
        // SAFETY: the part is memory of this length.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
}
