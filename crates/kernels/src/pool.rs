//! A fixed set of threads that run numbered tasks together with the calling thread.
//!
//! Workers look for the next job for a while after each one and then park, so that the steps of a run hand over in well
//! under a microsecond while an idle Program costs nothing. Tasks are dealt to threads in contiguous ranges that depend only
//! on the two counts; a thread that is through with its own range goes on with what others have not begun, so a worker that
//! the system does not let run delays nobody. A `run` on a busy pool (nested, or from a second thread) does all its tasks on
//! its own thread. `do_beside` (`pool_beside.rs`) has threads do whole runs side by side instead.

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::cores::{self, NO_CORE};

#[path = "pool_beside.rs"]
mod beside;
#[path = "pool_door.rs"]
mod door;

use beside::Beside;
use door::Door;

/// How long a thread looks for the other side without giving its core away: longer than a hand-over takes.
const SPIN: Duration = Duration::from_micros(50);
/// How long a worker goes on looking, letting others have the core between looks, before it parks: longer than the serial
/// gaps inside a run and between runs of a stream. A parked worker is often woken on the core of the thread that waits for
/// it, and then both share it for milliseconds.
const LINGER: Duration = Duration::from_millis(2);
/// Looks between two readings of the clock while spinning.
const LOOKS_PER_CLOCK: u32 = 32;

/// Claims a thread makes of its own range if nobody helps it: enough to even out, few enough to cost nothing.
const CLAIMS_PER_RANGE: usize = 16;

/// `threads - 1` worker threads plus whichever thread calls `run`.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Cores of the machine that this process may use, and those of them that runs leave to others.
    cores: usize,
    left_cores: AtomicUsize,
}

impl ThreadPool {
    /// A pool of this many threads, the caller of `run` included; 0 counts as 1. One thread spawns nothing.
    pub fn new(threads: usize) -> ThreadPool {
        let worker_count = threads.saturating_sub(1);
        let shared = Arc::new(Shared {
            is_busy: AtomicBool::new(false),
            job: UnsafeCell::new(None),
            door: Door::default(),
            beside: Beside::default(),
            caller_core: AtomicUsize::new(NO_CORE),
            claimed: (0..=worker_count).map(|_| Claimed::default()).collect(),
            mailboxes: (0..worker_count).map(|_| Mailbox::new()).collect(),
            panic: Mutex::new(None),
        });
        let workers = (0..worker_count)
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                let name = format!("precast-{}", index + 1);
                std::thread::Builder::new().name(name).spawn(move || shared.work(index)).ok()
            })
            .collect();
        let cores = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        ThreadPool { shared, workers, cores, left_cores: AtomicUsize::new(0) }
    }

    /// How many threads take part in a `run`, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs leave one more core to others, until `take_core_back`. A worker that shares its core with such another is let
    /// run for milliseconds too late, and each of the many short jobs of a run waits for it.
    pub fn leave_core(&self) {
        self.left_cores.fetch_add(1, Ordering::Relaxed);
    }

    /// Undoes one `leave_core`.
    pub fn take_core_back(&self) {
        self.left_cores.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many threads a `run` would use now.
    pub fn threads_now(&self) -> usize {
        let left_cores = self.left_cores.load(Ordering::Relaxed);
        let cores = if left_cores == 0 { usize::MAX } else { self.cores - left_cores.min(self.cores) };
        let share = self.threads() / self.shared.beside.runs().max(1);
        share.min(cores).max(1)
    }

    /// Calls `body` once for each task index below `tasks` and returns when all are done. A panic of a task is raised
    /// again here, after the other threads have finished.
    pub fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        let parts = self.threads_now().min(tasks);
        if parts <= 1 || self.shared.is_busy.swap(true, Ordering::Acquire) {
            (0..tasks).for_each(body);
            return;
        }
        // SAFETY: only the lifetime changes. The job is read by threads that have entered the door alone, and `run` does
        // not return before it has shut the door and seen the last of them leave, even when a task panics.
        let body_for_job: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(body) };
        let job = Job { body: body_for_job, tasks, parts };
        let core = cores::current();
        self.shared.open(job, core);
        let mut is_crowded = false;
        for (mailbox, worker) in self.shared.mailboxes.iter().zip(&self.workers).take(parts - 1) {
            let was_parked = mailbox.post(Message::Work, worker);
            is_crowded |= was_parked || mailbox.core.load(Ordering::Relaxed) == core;
        }
        self.shared.do_part(&job, 0);
        if is_crowded && self.shared.door.is_waiting() {
            // No worker has come, perhaps because one waits for this core. Letting it run once lets it move away.
            std::thread::yield_now();
        }
        self.shared.do_rest(&job, 0);
        self.shared.close();
        let panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.shared.is_busy.store(false, Ordering::Release);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Cuts `data` in chunks of `chunk_len` elements (the last may be shorter) and calls `body(index, chunk)` on each.
    pub fn chunks_mut<T: Send>(&self, data: &mut [T], chunk_len: usize, body: impl Fn(usize, &mut [T]) + Sync) {
        let chunk_len = chunk_len.max(1);
        let len = data.len();
        let shared = SharedMut::new(data);
        self.run(len.div_ceil(chunk_len), &|index| {
            let start = index * chunk_len;
            // SAFETY: chunks of different indices are disjoint, and `run` gives each index to one thread, once.
            let chunk = unsafe { shared.slice(start, chunk_len.min(len - start)) };
            body(index, chunk);
        });
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        for (mailbox, worker) in self.shared.mailboxes.iter().zip(&self.workers) {
            mailbox.post(Message::Stop, worker);
        }
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so joining cannot fail; there is nobody to tell if it did.
            let _ = worker.join();
        }
    }
}

/// The contiguous range of `tasks` indices that part `index` of `parts` does; the ranges differ by at most one in length.
pub fn share(tasks: usize, parts: usize, index: usize) -> Range<usize> {
    let (each, rest) = (tasks / parts, tasks % parts);
    let start = index * each + index.min(rest);
    start..start + each + usize::from(index < rest)
}

/// Tasks for each thread of work that is cut evenly: who is late leaves some to the others.
pub(crate) const PARTS_PER_THREAD: usize = 4;

/// Into how many parts equal pieces of work are cut, so that the thread with the most of them has the fewest; of several such
/// numbers the largest.
pub(crate) fn even_parts(pieces: usize, threads: usize) -> usize {
    let most_of_a_thread = |parts: &usize| pieces.div_ceil(*parts) * parts.div_ceil(threads.max(1));
    (1..=pieces.min(PARTS_PER_THREAD * threads.max(1))).rev().min_by_key(most_of_a_thread).unwrap_or(1)
}

/// A mutable slice that several tasks write at once, each its own part.
pub struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through the unsafe `slice`, whose callers take disjoint parts; that moves `&mut T` between
// threads, which `T: Send` allows.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}
// SAFETY: as for `&mut [T]`.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Takes the slice over for the lifetime of the borrow.
    pub fn new(slice: &'a mut [T]) -> SharedMut<'a, T> {
        SharedMut { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// How many elements the whole slice has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of an element; panics if it is not inside the slice.
    pub fn pointer(&self, index: usize) -> *mut T {
        assert!(index < self.len, "element {index} of {}", self.len);
        self.start.wrapping_add(index)
    }

    /// The part of `len` elements from `start`; panics if it is not inside the slice.
    ///
    /// # Safety
    /// No two parts that are alive at the same time may overlap.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub unsafe fn slice(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start, "part {start}+{len} of {}", self.len);
        // SAFETY: inside the slice by the assertion; not aliased by the promise of the caller.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

/// What the threads of a pool share.
struct Shared {
    /// Held by the thread whose job is being done.
    is_busy: AtomicBool,
    /// Written by the holder of `is_busy` while the door is shut and nobody is inside; read by those inside.
    job: UnsafeCell<Option<Job>>,
    /// Open while workers may enter the job.
    door: Door,
    /// Runs that go on side by side.
    beside: Beside,
    /// The core that the caller ran on when it opened the door.
    caller_core: AtomicUsize,
    /// One for each part of a job.
    claimed: Box<[Claimed]>,
    mailboxes: Box<[Mailbox]>,
    /// The first panic in the current job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only field that is not Sync; its comment gives the protocol, and its contents are Sync.
unsafe impl Sync for Shared {}

#[derive(Clone, Copy)]
struct Job {
    body: &'static (dyn Fn(usize) + Sync),
    tasks: usize,
    parts: usize,
}

/// How many tasks of one part have been claimed (or more, when some looked in vain); on its own cache line.
#[derive(Default)]
#[repr(align(128))]
struct Claimed(AtomicUsize);

/// One worker's sign that there is work; on its own cache line.
#[repr(align(128))]
struct Mailbox {
    message: AtomicUsize,
    is_parked: AtomicBool,
    /// Where the worker ran when it last gave its core away.
    core: AtomicUsize,
}

#[derive(Clone, Copy, PartialEq)]
enum Message {
    Empty = 0,
    Work = 1,
    Beside = 2,
    Stop = 3,
}

impl Message {
    fn of(number: usize) -> Message {
        match number {
            0 => Message::Empty,
            1 => Message::Work,
            2 => Message::Beside,
            _ => Message::Stop,
        }
    }
}

impl Mailbox {
    fn new() -> Mailbox {
        Mailbox { message: AtomicUsize::new(0), is_parked: AtomicBool::new(false), core: AtomicUsize::new(NO_CORE) }
    }

    /// Leaves a message and wakes the worker if it sleeps; says whether it did. Sequentially consistent with `take`:
    /// either the worker sees the message before it parks or this sees that it parks.
    fn post(&self, message: Message, worker: &JoinHandle<()>) -> bool {
        self.message.store(message as usize, Ordering::SeqCst);
        let is_parked = self.is_parked.load(Ordering::SeqCst);
        if is_parked {
            worker.thread().unpark();
        }
        is_parked
    }

    /// Waits for a message: spins, then parks.
    fn take(&self) -> Message {
        let mut message = self.spin();
        while message == Message::Empty {
            self.is_parked.store(true, Ordering::SeqCst);
            message = self.look(Ordering::SeqCst);
            if message == Message::Empty {
                std::thread::park();
                message = self.look(Ordering::Acquire);
            }
            self.is_parked.store(false, Ordering::Relaxed);
        }
        // What lies there now, which may be newer: a caller that did all tasks itself may have left another message since.
        Message::of(self.message.swap(Message::Empty as usize, Ordering::AcqRel))
    }

    fn spin(&self) -> Message {
        let started = Instant::now();
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                let message = self.look(Ordering::Acquire);
                if message != Message::Empty {
                    return message;
                }
                std::hint::spin_loop();
            }
            match started.elapsed() {
                time if time > LINGER => return Message::Empty,
                time if time > SPIN => {
                    self.core.store(cores::current(), Ordering::Relaxed);
                    std::thread::yield_now();
                }
                _ => {}
            }
        }
    }

    fn look(&self, ordering: Ordering) -> Message {
        Message::of(self.message.load(ordering))
    }
}

impl Shared {
    /// The life of worker `index`, which begins with part `index + 1` of each job.
    fn work(&self, index: usize) {
        loop {
            match self.mailboxes[index].take() {
                Message::Work => {
                    if self.door.enter() {
                        cores::leave(self.caller_core.load(Ordering::Relaxed));
                        self.help(index + 1);
                    }
                }
                Message::Beside => self.beside.join(),
                Message::Stop => break,
                Message::Empty => {}
            }
        }
    }

    /// Does tasks of the current job, from this part on, by a thread that has entered the door, and leaves.
    fn help(&self, part: usize) {
        // SAFETY: inside, so the job stays as it is until we leave.
        if let Some(job) = unsafe { *self.job.get() } {
            self.do_part(&job, part % job.parts);
            self.do_rest(&job, part % job.parts);
        }
        self.door.leave();
    }

    /// Makes a job the current one. The caller holds `is_busy`.
    fn open(&self, job: Job, caller_core: usize) {
        // SAFETY: the door is shut and nobody is inside: the holder of `is_busy` before us left it so.
        unsafe { *self.job.get() = Some(job) };
        for claimed in &self.claimed[..job.parts] {
            claimed.0.store(0, Ordering::Relaxed);
        }
        self.caller_core.store(caller_core, Ordering::Relaxed);
        self.door.open();
    }

    /// Lets no more workers in and waits for those inside.
    fn close(&self) {
        self.door.shut();
        self.door.wait(|| false);
    }

    /// Does the tasks of one part that nobody has claimed, and keeps the first panic.
    fn do_part(&self, job: &Job, part: usize) {
        let range = share(job.tasks, job.parts, part);
        let step = range.len().div_ceil(CLAIMS_PER_RANGE);
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let begin = range.start + self.claimed[part].0.fetch_add(step, Ordering::Relaxed);
                if begin >= range.end {
                    break;
                }
                (begin..range.end.min(begin + step)).for_each(job.body);
            }
        }));
        if let Err(payload) = result {
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
    }

    /// Does what is left of the other parts, the next one first.
    fn do_rest(&self, job: &Job, own: usize) {
        for turn in 1..job.parts {
            self.do_part(job, (own + turn) % job.parts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pool: &ThreadPool, tasks: usize) -> Vec<usize> {
        let counters: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
        pool.run(tasks, &|index| {
            counters[index].fetch_add(1, Ordering::Relaxed);
        });
        counters.iter().map(|counter| counter.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn every_task_runs_once() {
        for threads in 0..6 {
            let pool = ThreadPool::new(threads);
            assert_eq!(pool.threads(), threads.max(1));
            for tasks in [0, 1, 2, 3, 5, 64, 100] {
                assert_eq!(counts(&pool, tasks), vec![1; tasks]);
            }
        }
    }

    #[test]
    fn shares_cover_all_tasks_in_order() {
        for (tasks, parts) in [(0, 1), (7, 3), (8, 4), (2, 5)] {
            let all: Vec<usize> = (0..parts).flat_map(|index| share(tasks, parts, index)).collect();
            assert_eq!(all, (0..tasks).collect::<Vec<_>>());
        }
    }

    #[test]
    fn with_every_core_left_to_others_the_caller_works_alone() {
        let pool = ThreadPool::new(4);
        (0..pool.cores).for_each(|_| pool.leave_core());
        let caller = std::thread::current().id();
        let done = AtomicUsize::new(0);
        pool.run(100, &|_| {
            assert_eq!(std::thread::current().id(), caller);
            done.fetch_add(1, Ordering::Relaxed);
        });
        (0..pool.cores).for_each(|_| pool.take_core_back());
        assert_eq!((done.into_inner(), counts(&pool, 9)), (100, vec![1; 9]));
    }

    #[test]
    fn a_parked_worker_wakes_up() {
        let pool = ThreadPool::new(3);
        for _ in 0..5 {
            std::thread::sleep(SPIN * 20);
            assert_eq!(counts(&pool, 9), vec![1; 9]);
        }
    }

    #[test]
    fn many_short_runs_lose_no_message() {
        let pool = ThreadPool::new(4);
        let total = AtomicUsize::new(0);
        for _ in 0..2_000 {
            pool.run(4, &|_| {
                total.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(total.into_inner(), 8_000);
    }

    #[test]
    fn a_nested_run_stays_on_its_thread() {
        let pool = ThreadPool::new(3);
        let total = AtomicUsize::new(0);
        pool.run(3, &|_| {
            let outer = std::thread::current().id();
            pool.run(4, &|_| {
                assert_eq!(std::thread::current().id(), outer);
                total.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(total.into_inner(), 12);
    }

    #[test]
    fn two_callers_may_share_a_pool() {
        let pool = ThreadPool::new(2);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..200).for_each(|_| assert_eq!(counts(&pool, 5), vec![1; 5])));
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_stays_usable() {
        let pool = ThreadPool::new(3);
        for bad in [0, 1, 2] {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(3, &|index| assert_ne!(index, bad, "task of the test"));
            }));
            assert!(result.is_err());
            assert_eq!(counts(&pool, 7), vec![1; 7]);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_that_share_one_core_do_every_task() {
        std::thread::spawn(|| {
            let mut one = rustix::thread::CpuSet::new();
            one.set(cores::current());
            rustix::thread::sched_setaffinity(None, &one).expect("a thread may stay where it is");
            let pool = ThreadPool::new(3);
            for tasks in (0..300).map(|run| run % 70) {
                assert_eq!(counts(&pool, tasks), vec![1; tasks]);
            }
        })
        .join()
        .expect("no task is lost");
    }

    #[test]
    fn chunks_are_disjoint_and_cover() {
        let pool = ThreadPool::new(2);
        for len in [0, 1, 9, 10, 11] {
            let mut data = vec![0; len];
            pool.chunks_mut(&mut data, 5, |index, chunk| chunk.iter_mut().for_each(|value| *value += index + 1));
            let expected: Vec<usize> = (0..len).map(|position| position / 5 + 1).collect();
            assert_eq!(data, expected);
        }
    }
}
