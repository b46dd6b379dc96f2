//! What an engine tells who sent a request, in order, through a queue of its own for each request.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::search::FinishReason;

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens whose pages were there already.
    pub cached_prompt_tokens: usize,
    /// Tokens that were generated.
    pub generated_tokens: usize,
    /// Of these, tokens that were proposed and right.
    pub accepted_draft_tokens: usize,
}

/// A token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// Which of the request's answers.
    pub answer: usize,
    /// The token.
    pub id: u32,
    /// Text that is complete with it; empty without a tokenizer.
    pub text: String,
    /// The logarithm of its probability, and the likeliest tokens with theirs, where asked for.
    pub logprobs: Option<(f64, Vec<(u32, f64)>)>,
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A token of an answer.
    Token(TokenEvent),
    /// The request waits for pages. Told once.
    Blocked,
    /// An answer has ended.
    Finished {
        /// Which of the request's answers.
        answer: usize,
        /// Why.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// An answer has failed, and no other with it.
    Failed {
        /// Which of the request's answers.
        answer: usize,
        /// Why.
        message: String,
        /// Whether the same request may succeed another time.
        is_retryable: bool,
    },
}

/// Events of one request on their way.
pub struct EventQueue {
    state: Mutex<QueueState>,
    arrived: Condvar,
}

#[derive(Default)]
struct QueueState {
    events: VecDeque<Event>,
    /// Answers that have not ended.
    open: usize,
    is_cancelled: bool,
    waker: Option<Waker>,
}

impl EventQueue {
    /// An empty queue for a request of so many answers.
    pub fn new(answers: usize) -> Arc<EventQueue> {
        let state = QueueState { open: answers, ..QueueState::default() };
        Arc::new(EventQueue { state: Mutex::new(state), arrived: Condvar::new() })
    }

    /// Tells of events.
    pub fn push(&self, events: impl IntoIterator<Item = Event>) {
        let mut state = self.lock();
        for event in events {
            if matches!(event, Event::Finished { .. } | Event::Failed { .. }) {
                state.open = state.open.saturating_sub(1);
            }
            state.events.push_back(event);
        }
        let waker = state.waker.take();
        drop(state);
        self.arrived.notify_all();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Another answer, of a turn that goes on, will end.
    pub fn reopen(&self) {
        self.lock().open += 1;
    }

    /// Events that were not taken.
    pub fn len(&self) -> usize {
        self.lock().events.len()
    }

    /// Whether every event was taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether every event was taken and none will come.
    pub fn has_ended(&self) -> bool {
        let state = self.lock();
        state.events.is_empty() && state.open == 0
    }

    /// Asks for an end.
    pub fn cancel(&self) {
        self.lock().is_cancelled = true;
    }

    /// Whether an end was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.lock().is_cancelled
    }

    /// Takes the next event, waiting for it at most so long; none when all answers have ended, or at the end of the wait.
    pub fn next(&self, wait: Option<Duration>) -> Option<Event> {
        let state = self.lock();
        let is_waiting = |state: &mut QueueState| state.events.is_empty() && state.open > 0;
        let mut state = match wait {
            None => self.arrived.wait_while(state, is_waiting).unwrap_or_else(PoisonError::into_inner),
            Some(wait) => {
                self.arrived.wait_timeout_while(state, wait, is_waiting).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.events.pop_front()
    }

    /// Takes the next event, or has the task woken when there is one.
    pub fn poll_next(&self, context: &Context<'_>) -> Poll<Option<Event>> {
        let mut state = self.lock();
        match state.events.pop_front() {
            Some(event) => Poll::Ready(Some(event)),
            None if state.open == 0 => Poll::Ready(None),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
