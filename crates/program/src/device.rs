//! A Device loads Programs; a DeviceContext is the memory of one run on it. Two runs never share a context.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::program::Program;
use crate::store::{ArtifactStore, StoreError};

/// Loads Programs and makes the contexts they run in.
pub trait Device: Send + Sync {
    /// Makes a Program ready to run.
    fn load(&self, program: &Arc<Program>, store: &dyn ArtifactStore) -> Result<Arc<dyn LoadedProgram>, LoadError>;
    /// Memory for runs of Programs with at most this much workspace, one run at a time.
    fn context(&self, workspace_bytes: u64) -> Box<dyn DeviceContext>;
    /// Runs leave one more core of the host to others, until `take_core_back`. What they compute does not change.
    fn leave_core(&self) {}
    /// Undoes one `leave_core`.
    fn take_core_back(&self) {}
}

/// A Program that is ready to run. Shared by all contexts of its device.
pub trait LoadedProgram: Any + Send + Sync {
    /// The Program.
    fn program(&self) -> &Program;
}

/// Memory of one run at a time, for any Program of its device that fits.
pub trait DeviceContext: Send {
    /// Workspace that there is.
    fn workspace_bytes(&self) -> u64;
    /// Makes room for Programs with this much workspace. What was in the workspace is lost.
    fn reserve(&mut self, workspace_bytes: u64);
    /// Runs a Program: inputs and outputs in its order, each of exactly its Port's bytes.
    fn run(&mut self, program: &dyn LoadedProgram, inputs: &[&[u8]], outputs: &mut [&mut [u8]])
    -> Result<(), RunError>;
    /// Runs a Program and gives the time of every step.
    fn run_timed(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<Vec<Duration>, RunError>;
}

/// Why a Program could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Compiled by another build.
    #[error("the Program was compiled by '{found}'; this is '{expected}': compile it again")]
    Build {
        /// Build in the Program.
        found: String,
        /// This build.
        expected: String,
    },
    /// Compiled for another target.
    #[error("the Program was compiled for '{found}', which this device cannot run: {reason}")]
    Target {
        /// Target in the Program.
        found: String,
        /// What is missing.
        reason: String,
    },
    /// The Program contradicts itself.
    #[error("the Program is malformed: {0}")]
    Malformed(String),
    /// A constant is missing or damaged.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The device refused.
    #[error("{0}")]
    Device(String),
}

/// Why a run failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RunError {
    /// A buffer of the caller does not fit.
    #[error("{0}")]
    Buffer(String),
    /// The device refused.
    #[error("{0}")]
    Device(String),
    /// The Program was loaded on another device.
    #[error("the Program was loaded on another kind of device than this context is of")]
    ForeignProgram,
    /// A step met values it has no meaning for.
    #[error("step {step} ({kernel}) of node '{node}': {reason}")]
    Step {
        /// Position of the step.
        step: usize,
        /// Its kernel.
        kernel: String,
        /// Source nodes.
        node: String,
        /// What was wrong.
        reason: String,
    },
}
