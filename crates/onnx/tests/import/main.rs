//! Small models built in memory, imported, and run by reference evaluation.
#![allow(
    clippy::unwrap_used,
    clippy::cloned_ref_to_slice_refs,
    reason = "tests compare whole values"
)]

mod bodies;
mod errors;
mod model;
mod quantized;
mod symbolic;
mod versions;
