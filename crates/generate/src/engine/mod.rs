//! Requests that come and go, on one decoder. Keys and values lie in pages of a few tokens; a step runs rows of many requests
//! together, prompts in pieces beside rows that decode. No token depends on which requests are neighbours.
//!
//! [`EngineCore`](core::EngineCore) is all of it without threads, on any [`StepRunner`](runner::StepRunner);
//! [`Engine`] runs it on a thread of its own.

mod complete;
pub mod core;
mod device_pages;
mod draft_governor;
pub mod draft_model;
mod engine_thread;
pub mod events;
pub mod guidance;
pub mod metrics;
mod options;
pub mod page_pool;
mod page_store;
mod paged_runner;
pub mod prefix_cache;
mod preparer;
pub mod request;
mod resident_runner;
pub mod row;
mod row_copies;
pub mod runner;
pub mod schedule;
#[cfg(test)]
mod simulation;
mod speculation;
pub mod window_group;

pub use complete::{complete, complete_requests, params_of_prompt};
pub use engine_thread::{Engine, EngineError};
pub use events::{Event, TokenEvent, Usage};
pub use guidance::{Guidance, GuidanceError};
pub use metrics::{EngineMetrics, KvPlace};
pub use options::{EngineLimits, EngineOptions};
pub use paged_runner::PagedRunner;
pub use request::{Request, RequestHandle};
pub use resident_runner::ResidentRunner;
pub use speculation::SpeculationStats;
