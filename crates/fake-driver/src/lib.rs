//! A driver without a device, for tests: it exports the functions of CUDA, NVRTC, HIP and HIPRTC that we use.
//!
//! Device memory is host memory that nobody may touch except work that the driver runs. Work is queued and runs only
//! when something waits for it. Kernels really run: their source text is compiled for the host. Every call is checked
//! against the rules of the real drivers, violations are collected as sentences, and faults can be injected.
//! `Fake` is the tests' side of it: it opens a fresh copy of the library, so that tests do not share devices.

#![allow(unsafe_code)]

mod capture;
mod compiler;
mod control;
mod exports;
mod fake;
mod fault;
mod graph;
mod hip_on_cuda;
mod memory;
mod module;
mod objects;
mod private_copy;
mod queue;
mod state;

pub use fake::Fake;
pub use hip_on_cuda::HipOnCuda;
