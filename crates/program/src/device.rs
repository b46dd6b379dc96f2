//! A Device loads Programs; a DeviceContext is the memory of one run on it. Two runs never share a context.

use std::sync::Arc;
use std::time::Duration;

use crate::program::Program;
use crate::store::{ArtifactStore, StoreError};

/// Loads Programs.
pub trait Device: Send + Sync {
    /// Makes a Program ready to run.
    fn load(&self, program: &Arc<Program>, store: &dyn ArtifactStore) -> Result<Arc<dyn LoadedProgram>, LoadError>;
}

/// A Program that is ready to run. Shared by all its contexts.
pub trait LoadedProgram: Send + Sync {
    /// The Program.
    fn program(&self) -> &Program;
    /// Memory for runs, one at a time.
    fn context(&self) -> Box<dyn DeviceContext>;
}

/// Memory of one run at a time.
pub trait DeviceContext: Send {
    /// Runs the Program: inputs and outputs in the Program's order, each of exactly its Port's bytes.
    fn run(&mut self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<(), RunError>;
    /// Runs the Program and gives the time of every step.
    fn run_timed(&mut self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<Vec<Duration>, RunError>;
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
}

/// Why a run failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RunError {
    /// A buffer of the caller does not fit.
    #[error("{0}")]
    Buffer(String),
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
