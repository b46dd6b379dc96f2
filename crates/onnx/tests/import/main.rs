//! Small models built in memory, imported, and run by reference evaluation.
#![allow(clippy::unwrap_used, clippy::cloned_ref_to_slice_refs, reason = "tests compare whole values")]

mod attention;
mod bodies;
mod compare;
mod conv;
mod errors;
mod index;
mod loss;
mod matmul;
mod microsoft;
mod microsoft_attention;
mod ml;
mod model;
mod norm;
mod quantized;
mod sequence;
mod signal;
mod stateful;
mod structure;
mod symbolic;
mod versions;
mod window;
