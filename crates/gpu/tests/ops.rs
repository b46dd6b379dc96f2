//! Kernels of every family, run on the host and compared with reference evaluation.

mod host;

#[path = "ops/elementwise.rs"]
mod elementwise;
#[path = "ops/index.rs"]
mod index;
#[path = "ops/layout.rs"]
mod layout;
#[path = "ops/norm.rs"]
mod norm;
#[path = "ops/quantize.rs"]
mod quantize;
#[path = "ops/reduce.rs"]
mod reduce;
#[path = "ops/sequence.rs"]
mod sequence;
#[path = "ops/window.rs"]
mod window;
