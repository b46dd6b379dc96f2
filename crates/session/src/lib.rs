//! A model opened on a device: requests of any size run on Programs compiled for a few sizes, padded up where that is
//! proved to change nothing, split where that is, and sliced back. Knows no target, no ONNX and no tokens.
#![forbid(unsafe_code)]

pub mod buckets;
pub mod context;
pub mod cover;
mod error;
mod options;
mod report;
mod rows;
mod session;

pub use buckets::BucketPolicy;
pub use context::{ContextPool, OutputBuffer};
pub use error::SessionError;
pub use options::{DimOptions, OnMiss, SessionOptions};
pub use report::{Chunk, Counters, Fit, Origin, Path, Reason, RunReport, Tier};
pub use session::Session;
