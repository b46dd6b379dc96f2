//! The GPU drivers behind one safe face: CUDA with NVRTC, and HIP with HIPRTC.
//!
//! Both vendors' libraries are opened by name when they are first needed; nothing links to them and no header of theirs
//! is used. Their functions have the same shape, so one table of entry points serves both. Every object knows its
//! `Device`, and every call makes that device current on the calling thread first. This room may use `unsafe`.

#![allow(unsafe_code)]

mod buffer;
mod capture;
mod compiler;
mod device;
mod error;
mod event;
mod gate;
mod graph;
mod library;
mod module;
mod node;
mod staging;
mod stream;
mod table;

pub use buffer::{DeviceBuffer, PinnedBuffer};
pub use capture::CaptureGuard;
pub use compiler::Compiler;
pub use device::{Device, DeviceInfo, MemoryInfo};
pub use error::DriverError;
pub use event::Event;
pub use graph::{Graph, GraphExec, NodeId};
pub use library::{Library, Vendor};
pub use module::{Function, Module};
pub use stream::{LaunchShape, Stream};
