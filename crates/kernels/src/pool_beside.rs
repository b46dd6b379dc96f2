//! Threads of a pool that do whole runs side by side, where that is better than all of them doing each of many short steps.
//!
//! Workers come to the body that a caller hands over, as they come to a job, and each call of it is a run of its own: a `run`
//! inside has its share of the threads. Who is through leaves its thread to the runs that go on: a worker by waiting for jobs as
//! ever, and the caller by looking for jobs of the others while it waits for them.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Door, Message, ThreadPool};
use crate::cores::{self, NO_CORE};

/// How long a caller lets workers have its core that may wait for it: longer than one takes to begin and to move away. Woken on
/// a core that computes, a thread waits for milliseconds.
const ARRIVAL: Duration = Duration::from_micros(300);

/// What is done side by side.
pub(super) struct Beside {
    /// Held by the thread whose body is called.
    is_taken: AtomicBool,
    /// Written by the holder of `is_taken` while the door is shut and nobody is inside; read by those inside.
    body: UnsafeCell<Option<&'static (dyn Fn() + Sync)>>,
    door: Door,
    /// The core that the caller ran on.
    caller_core: AtomicUsize,
    /// Workers that may still call the body.
    awaited: AtomicUsize,
    /// Calls that go on or are awaited.
    runs: AtomicUsize,
    /// The first panic of a worker.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `body` is the only field that is not Sync; its comment gives the protocol, and what it refers to is Sync.
unsafe impl Sync for Beside {}

impl Default for Beside {
    fn default() -> Beside {
        Beside {
            is_taken: AtomicBool::new(false),
            body: UnsafeCell::new(None),
            door: Door::default(),
            caller_core: AtomicUsize::new(NO_CORE),
            awaited: AtomicUsize::new(0),
            runs: AtomicUsize::new(0),
            panic: Mutex::new(None),
        }
    }
}

impl Beside {
    /// Runs that share the threads now.
    pub(super) fn runs(&self) -> usize {
        self.runs.load(Ordering::Relaxed)
    }

    /// A worker's call of the body, unless others were through before it could run.
    pub(super) fn join(&self) {
        if !self.door.enter() {
            return;
        }
        let place = self.awaited.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |awaited| awaited.checked_sub(1));
        // SAFETY: inside, so the body stays as it is until we leave.
        if let (Ok(_), Some(body)) = (place, unsafe { *self.body.get() }) {
            cores::leave(self.caller_core.load(Ordering::Relaxed));
            if let Err(payload) = catch_unwind(AssertUnwindSafe(body)) {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
            }
            self.runs.fetch_sub(1, Ordering::Relaxed);
        }
        self.door.leave();
    }
}

impl ThreadPool {
    /// Calls `body` on this thread and on so many in all, as far as they come, and returns when all calls have. A call that finds
    /// nothing left to do should return: whoever still goes on has its threads. On one thread, or where another caller does so
    /// already, `body` is called once. A panic is raised again here, after the other calls have ended.
    pub fn do_beside(&self, threads: usize, body: &(dyn Fn() + Sync)) {
        let (shared, beside) = (&*self.shared, &self.shared.beside);
        let workers = self.workers.len().min(threads.saturating_sub(1));
        if workers == 0 || beside.is_taken.swap(true, Ordering::Acquire) {
            return body();
        }
        // SAFETY: only the lifetime changes. The body is called by threads that have entered the door alone, and this does not
        // return before it has shut the door and seen the last of them leave, even when a call panics.
        let lent: &'static (dyn Fn() + Sync) = unsafe { std::mem::transmute(body) };
        // SAFETY: the door is shut and nobody is inside: the holder of `is_taken` before us left it so.
        unsafe { *beside.body.get() = Some(lent) };
        let core = cores::current();
        beside.caller_core.store(core, Ordering::Relaxed);
        beside.awaited.store(workers, Ordering::Relaxed);
        beside.runs.store(workers + 1, Ordering::Relaxed);
        beside.door.open();
        let mut is_crowded = false;
        for (mailbox, worker) in shared.mailboxes.iter().zip(&self.workers).take(workers) {
            let was_parked = mailbox.post(Message::Beside, worker);
            is_crowded |= was_parked || mailbox.core.load(Ordering::Relaxed) == core;
        }
        let begun = Instant::now();
        while is_crowded && beside.awaited.load(Ordering::Relaxed) > 0 && begun.elapsed() < ARRIVAL {
            std::thread::yield_now();
        }
        let result = catch_unwind(AssertUnwindSafe(body));
        beside.door.shut();
        // Those that have not come will not; this call has ended too.
        let absent = beside.awaited.swap(0, Ordering::Relaxed);
        beside.runs.fetch_sub(absent + 1, Ordering::Relaxed);
        beside.door.wait(|| {
            let is_let_in = shared.door.enter();
            if is_let_in {
                shared.help(1);
            }
            is_let_in
        });
        let panic = beside.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        beside.is_taken.store(false, Ordering::Release);
        if let Some(payload) = result.err().or(panic) {
            resume_unwind(payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls a body on a pool whose calls take numbers until there are none; gives how often each was taken.
    fn taken(pool: &ThreadPool, threads: usize, numbers: usize, work: impl Fn(usize) + Sync) -> Vec<usize> {
        let (next, counts) = (AtomicUsize::new(0), (0..numbers).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>());
        pool.do_beside(threads, &|| {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(count) = counts.get(number) else { break };
                work(number);
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        counts.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_job_is_done_once_whoever_comes() {
        for threads in [1, 2, 4] {
            let pool = ThreadPool::new(threads);
            for beside in [0, 1, 2, 9] {
                for round in 0..50 {
                    let numbers = round % 7;
                    assert_eq!(taken(&pool, beside, numbers, |_| ()), vec![1; numbers]);
                }
            }
            assert_eq!(pool.threads_now(), threads);
        }
    }

    #[test]
    fn runs_inside_have_their_share_and_lose_nothing() {
        let pool = ThreadPool::new(3);
        for _ in 0..200 {
            let total = AtomicUsize::new(0);
            let add = |_| _ = total.fetch_add(1, Ordering::Relaxed);
            let count = |tasks: usize| pool.run(tasks, &add);
            // The last job is long, so that those that are through help with its runs.
            taken(&pool, 3, 4, |number| (0..if number == 3 { 50 } else { 5 }).for_each(|_| count(7)));
            assert_eq!((total.into_inner(), pool.threads_now()), (7 * (3 * 5 + 50), 3));
        }
    }

    #[test]
    fn threads_are_shared_while_several_runs_go_on() {
        let pool = ThreadPool::new(2);
        let meeting = std::sync::Barrier::new(2);
        let shares = Mutex::new(Vec::new());
        // Where the worker never came the barrier would wait for ever, so both numbers are known to be taken side by side.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                taken(&pool, 2, 2, |_| {
                    meeting.wait();
                    shares.lock().unwrap_or_else(PoisonError::into_inner).push(pool.threads_now());
                    meeting.wait();
                })
            });
        });
        assert_eq!((shares.into_inner().unwrap_or_else(PoisonError::into_inner), pool.threads_now()), (vec![1, 1], 2));
    }

    #[test]
    fn a_second_caller_does_its_jobs_alone() {
        let pool = ThreadPool::new(3);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..200).for_each(|_| assert_eq!(taken(&pool, 3, 5, |_| ()), vec![1; 5])));
            }
        });
        taken(&pool, 3, 2, |_| assert_eq!(taken(&pool, 3, 4, |_| ()), vec![1; 4]));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_stays_usable() {
        let pool = ThreadPool::new(2);
        for bad in 0..4 {
            let result = catch_unwind(AssertUnwindSafe(|| taken(&pool, 2, 4, |number| assert_ne!(number, bad))));
            assert!(result.is_err(), "job {bad}");
            assert_eq!((taken(&pool, 2, 3, |_| ()), pool.threads_now()), (vec![1; 3], 2));
        }
    }
}
