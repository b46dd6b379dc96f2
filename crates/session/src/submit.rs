//! Requests that are answered later: `submit` queues one, a thread of the Session runs it, `Pending` has the answer. The
//! queue is bounded, so a caller that is too fast is told so.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use precast_tensor::Tensor;

use crate::error::SessionError;
use crate::report::RunReport;
use crate::session::Inner;

/// Outputs in order, and what was done.
pub type Answer = Result<(Vec<Tensor>, RunReport), SessionError>;

/// A request that was submitted.
pub struct Pending(Arc<Cell>);

#[derive(Default)]
struct Cell {
    answer: Mutex<Option<Answer>>,
    answered: Condvar,
}

impl Pending {
    /// Whether the answer is there.
    pub fn is_done(&self) -> bool {
        self.0.answer.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The answer, as soon as it is there.
    pub fn wait(self) -> Answer {
        let mut answer = self.0.answer.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match answer.take() {
                Some(answer) => return answer,
                None => answer = self.0.answered.wait(answer).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// The answer if it comes in time, or else this request again.
    pub fn wait_for(self, limit: Duration) -> Result<Answer, Pending> {
        let deadline = Instant::now() + limit;
        let mut answer = self.0.answer.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(answer) = answer.take() {
                return Ok(answer);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(answer);
                return Err(self);
            }
            answer = self.0.answered.wait_timeout(answer, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Cell {
    fn answer(&self, answer: Answer) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.answered.notify_all();
    }
}

/// The threads that answer, started with the first request. They end when the Session is dropped, after what is queued.
pub(crate) struct Workers {
    shared: Arc<Queue>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
    threads_max: usize,
}

struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
    len_max: usize,
}

/// Where an answer goes.
enum Reply {
    /// To whoever waits for it.
    Cell(Arc<Cell>),
    /// To a function, on the thread that ran the request.
    Call(Box<dyn FnOnce(Answer) + Send>),
}

#[derive(Default)]
struct QueueState {
    requests: VecDeque<(Vec<Tensor>, Reply)>,
    is_closed: bool,
    idle: usize,
}

impl Workers {
    pub(crate) fn new(threads_max: usize, len_max: usize) -> Workers {
        let shared = Queue { state: Mutex::default(), changed: Condvar::new(), len_max };
        Workers { shared: Arc::new(shared), threads: Mutex::default(), threads_max: threads_max.max(1) }
    }

    /// Queues a request whose answer is waited for.
    pub(crate) fn submit(&self, inner: &Arc<Inner>, inputs: Vec<Tensor>) -> Result<Pending, SessionError> {
        let cell = Arc::new(Cell::default());
        self.queue(inner, inputs, Reply::Cell(cell.clone()))?;
        Ok(Pending(cell))
    }

    /// Queues a request whose answer is handed on.
    pub(crate) fn submit_then(
        &self,
        inner: &Arc<Inner>,
        inputs: Vec<Tensor>,
        then: Box<dyn FnOnce(Answer) + Send>,
    ) -> Result<(), SessionError> {
        self.queue(inner, inputs, Reply::Call(then))
    }

    fn queue(&self, inner: &Arc<Inner>, inputs: Vec<Tensor>, reply: Reply) -> Result<(), SessionError> {
        let needs_thread = {
            let state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.requests.len() >= self.shared.len_max {
                return Err(SessionError::Busy { contexts: self.threads_max, waiting: state.requests.len() });
            }
            state.requests.len() >= state.idle
        };
        if needs_thread {
            self.add_thread(inner)?;
        }
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).requests.push_back((inputs, reply));
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Starts one more thread, where there may be one. It is an error only if there is none.
    fn add_thread(&self, inner: &Arc<Inner>) -> Result<(), SessionError> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.len() == self.threads_max {
            return Ok(());
        }
        let (queue, inner) = (self.shared.clone(), inner.clone());
        let builder = std::thread::Builder::new().name("precast-submit".to_string());
        match builder.spawn(move || serve(&queue, &inner)) {
            Ok(thread) => threads.push(thread),
            Err(error) if threads.is_empty() => {
                return Err(SessionError::Thread(format!("no thread to run submitted requests on: {error}")));
            }
            Err(_) => {}
        }
        Ok(())
    }
}

fn serve(queue: &Queue, inner: &Inner) {
    loop {
        let mut state = queue.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (inputs, reply) = loop {
            if let Some(request) = state.requests.pop_front() {
                break request;
            }
            if state.is_closed {
                return;
            }
            state.idle += 1;
            state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        };
        drop(state);
        let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| inner.run(&inputs)));
        let answer = answer.unwrap_or_else(|_| Err(SessionError::Thread("the run panicked".to_string())));
        match reply {
            Reply::Cell(cell) => cell.answer(answer),
            Reply::Call(then) => {
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| then(answer))).is_err() {
                    tracing::error!("what a submitted request's answer was handed to panicked");
                }
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).is_closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // A thread of the Session itself drops it last; it cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
