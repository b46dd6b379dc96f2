//! Why a Session did not open or a request was not answered.

use std::sync::Arc;

use precast_cache::{CacheError, Miss};
use precast_ir::EvalError;
use precast_ir::graph::GraphError;
use precast_program::{CompileError, LoadError, RunError};
use precast_tensor::TensorError;
use thiserror::Error;

/// Why a call failed.
#[derive(Debug, Error)]
pub enum SessionError {
    /// Options contradict the model.
    #[error("{0}")]
    Options(String),
    /// The request does not fit the model.
    #[error("{0}")]
    Request(String),
    /// The Program is not loaded and the policy says to refuse.
    #[error("no Program for {bucket} is loaded; --on-miss reject forbids compiling it")]
    NotReady {
        /// The Bucket that is missing.
        bucket: String,
    },
    /// Dims could not be bound.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The target refused the Graph. Requests that waited for the same compile share the error.
    #[error("{0}")]
    Compile(Arc<CompileError>),
    /// The cache may only be looked up, and does not have the Program.
    #[error("the cache does not have the Program: {0}")]
    NotCached(Miss),
    /// The device refused the Program.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Reference evaluation failed, or the inputs do not fit.
    #[error(transparent)]
    Eval(#[from] EvalError),
    /// A tensor could not be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The cache could not be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}
