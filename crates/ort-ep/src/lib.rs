//! The door to ONNX Runtime: a plugin execution provider for stock runtimes. The runtime loads this library, asks for
//! factories, and a session asks a factory for a provider; the provider takes a whole graph, compiles it through the
//! library and runs it on the host's memory. `docs/onnxruntime.md` is the text for users.
#![allow(unsafe_code, reason = "every entry and every call of this room crosses a C interface")]

pub mod abi;
mod attributes;
#[cfg(test)]
mod callback_tests;
mod captures;
mod compute;
mod context_node;
mod control_flow;
mod engine;
mod environment;
mod error;
mod factory;
mod graph;
mod known_shapes;
mod placement;
mod provider;
mod runtime;
mod session_options;

use std::ffi::c_char;

use abi::{OrtApiBase, OrtEpFactory, OrtLogger, OrtStatus};
use runtime::Runtime;

/// What the runtime calls after it has loaded the library.
///
/// # Safety
/// The runtime calls it, with what its interface says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn CreateEpFactories(
    _registered_name: *const c_char,
    base: *const OrtApiBase,
    _default_logger: *const OrtLogger,
    factories: *mut *mut OrtEpFactory,
    factories_max: usize,
    count: *mut usize,
) -> *mut OrtStatus {
    // SAFETY: the runtime gives its own base.
    let runtime = match unsafe { Runtime::open(base) } {
        Ok(runtime) => runtime,
        Err(status) => return status,
    };
    runtime.guard("CreateEpFactories", || {
        if factories_max == 0 {
            return Err(error::EpError::other("onnxruntime has no room for a factory"));
        }
        // SAFETY: there is room for one.
        unsafe { *factories = factory::Factory::create(runtime) };
        // SAFETY: the number is the runtime's to read.
        unsafe { *count = 1 };
        Ok(())
    })
}

/// What the runtime calls before it lets go of the library.
///
/// # Safety
/// The runtime calls it, with a factory that it was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ReleaseEpFactory(factory: *mut OrtEpFactory) -> *mut OrtStatus {
    // SAFETY: it is one of ours, and is not used again.
    unsafe { factory::Factory::release(factory) }
}
