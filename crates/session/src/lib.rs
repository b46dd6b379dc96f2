//! A model opened on a device: requests of any size run on Programs compiled for a few sizes, padded up where that is
//! proved to change nothing, split where that is, and sliced back. Knows no target, no ONNX and no tokens.
#![forbid(unsafe_code)]

mod bind;
mod binding;
mod bring;
pub mod buckets;
mod context_pool;
mod contexts;
mod costs;
pub mod cover;
mod device_request;
mod error;
mod exec_context;
mod interface;
mod ladders;
mod memory;
mod options;
mod output_buffer;
mod placed_request;
mod programs;
mod replay_check;
mod report;
mod request;
mod runs_beside;
mod session;
mod slots;
mod startup;
mod submit;
mod traffic;

pub use buckets::BucketPolicy;
pub use context_pool::ContextPool;
pub use device_request::{DeviceArgument, DevicePlace};
pub use error::SessionError;
pub use interface::{DimInterface, GraphDigests, GraphSource, Interface, PadGrade, RowAxis, SymbolicPort};
pub use memory::MemorySheet;
pub use options::{ContextWait, DimOptions, Observer, OnMiss, OnMissChain, SessionOptions, Startup};
pub use output_buffer::OutputBuffer;
pub use placed_request::{ArgumentPlace, PlacedArgument, ResultPlace};
pub use precast_program::{
    Bucket, Device, DeviceMemory, DeviceRun, IoPath, LaunchPath, PadContent, PoisonReason, StepsReason,
};
pub use replay_check::{ReplayCheck, check_replay};
pub use report::{Chunk, Chunks, Counters, Fit, Origin, Path, Reason, RunReport, Tier};
pub use request::Argument;
pub use session::Session;
pub use startup::{EtaBasis, Phase, Progress, Readiness};
pub use submit::{Answer, Pending};
pub use traffic::fit_extents;
