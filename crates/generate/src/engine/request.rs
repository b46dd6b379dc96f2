//! A request to an engine, and the handle that its events come through.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::adapter::Adapter;
use crate::search::GeneratorParams;

use super::engine_thread::{EngineError, Inbox};
use super::events::{Event, EventQueue};
use super::guidance::Guidance;
use super::row::RowId;

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// How tokens are chosen; `num_return_sequences` answers share the prompt.
    pub params: GeneratorParams,
    /// What answers must be.
    pub guidance: Option<Guidance>,
    /// When an answer is of no use any more.
    pub deadline: Option<Instant>,
    /// Whose values the decoder has for this request; its own, unless set.
    pub adapter: Option<Adapter>,
    /// Only requests of the same salt share pages.
    pub cache_salt: Option<String>,
    /// Requests of a higher class come first; waiting raises it.
    pub priority: u8,
    /// Whether the first answer may be gone on with when it has ended.
    pub keeps_turn: bool,
}

impl Request {
    /// A request of this prompt and nothing special.
    pub fn new(prompt: Vec<u32>, params: GeneratorParams) -> Request {
        Request {
            prompt,
            params,
            guidance: None,
            deadline: None,
            adapter: None,
            cache_salt: None,
            priority: 0,
            keeps_turn: false,
        }
    }
}

/// A request that was sent. Dropping it cancels the request.
pub struct RequestHandle {
    pub(super) inbox: Arc<Inbox>,
    pub(super) events: Arc<EventQueue>,
    pub(super) rows: Vec<RowId>,
    pub(super) seed: u64,
}

impl RequestHandle {
    /// The seed of all draws.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The next event, when there is one; none when every answer has ended.
    pub fn next_event(&self) -> Option<Event> {
        self.taken(self.events.next(None))
    }

    /// The next event if there is one within this time.
    pub fn next_event_within(&self, wait: Duration) -> Option<Event> {
        self.taken(self.events.next(Some(wait)))
    }

    /// Whether every answer has ended and every event was taken.
    pub fn has_ended(&self) -> bool {
        self.events.has_ended()
    }

    /// All events up to the end of every answer.
    pub fn events(&self) -> impl Iterator<Item = Event> + '_ {
        std::iter::from_fn(|| self.next_event())
    }

    /// Asks for an end. It comes with the next step.
    pub fn cancel(&self) {
        self.events.cancel();
        self.inbox.wake();
    }

    /// Goes on with the first answer behind these tokens, once its turn has ended.
    pub fn continue_with(&self, tokens: &[u32]) -> Result<(), EngineError> {
        self.inbox.continue_turn(self.first_row(), tokens)
    }

    /// Takes back the last turn of the first answer, once it has ended: what was given and what was generated.
    pub fn rewind_turn(&self) -> Result<(), EngineError> {
        self.inbox.rewind_turn(self.first_row())
    }

    fn first_row(&self) -> RowId {
        self.rows.first().copied().unwrap_or(RowId(u64::MAX))
    }

    /// A request that was paused because nobody took its events goes on.
    fn taken(&self, event: Option<Event>) -> Option<Event> {
        if event.is_some() && self.events.is_empty() {
            self.inbox.wake();
        }
        event
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl futures_core::Stream for RequestHandle {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_next(context).map(|event| self.taken(event))
    }
}
