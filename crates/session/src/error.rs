//! Why a Session did not open or a request was not answered.

use std::sync::Arc;
use std::time::Duration;

use precast_cache::{CacheError, Miss};
use precast_ir::EvalError;
use precast_ir::graph::GraphError;
use precast_program::{CompileError, LoadError, RunError};
use precast_tensor::TensorError;
use thiserror::Error;

/// Why a call failed. Cheap to clone: requests that waited for the same Program share its error.
#[derive(Clone, Debug, Error)]
pub enum SessionError {
    /// Options contradict the model.
    #[error("{0}")]
    Options(String),
    /// The request does not fit the model.
    #[error("{0}")]
    Request(String),
    /// A dim lies outside what was declared for it.
    #[error("{0}")]
    OutOfRange(String),
    /// A request without rows for a model whose outputs do not all have rows.
    #[error("the request has no rows, and output '{output}' does not consist of rows")]
    EmptyBatch {
        /// The output.
        output: String,
    },
    /// The Program is not loaded and the policy ends in a refusal.
    #[error("no Program for {bucket} is loaded yet, and the on-miss policy lets nothing else answer")]
    NotReady {
        /// The Bucket that is missing.
        bucket: String,
        /// How long its compile may still take, if that is known.
        retry_after: Option<Duration>,
    },
    /// Every context is in use and so is the queue for them.
    #[error("all {contexts} contexts are in use and {waiting} requests wait for one already")]
    Busy {
        /// Contexts of the Session.
        contexts: usize,
        /// Requests that wait.
        waiting: usize,
    },
    /// No context became free in time.
    #[error("no context became free in {waited_ms} ms")]
    Timeout {
        /// How long the request waited.
        waited_ms: u64,
    },
    /// The Session would need more memory than it may have.
    #[error("{0}")]
    Memory(String),
    /// A model's Graph could not be had for a Bucket.
    #[error("{0}")]
    Source(String),
    /// Dims could not be bound.
    #[error(transparent)]
    Graph(Arc<GraphError>),
    /// The target refused the Graph.
    #[error("{0}")]
    Compile(Arc<CompileError>),
    /// The cache may only be looked up, and does not have the Program.
    #[error("the cache does not have the Program: {0}")]
    NotCached(Arc<Miss>),
    /// The device refused the Program.
    #[error(transparent)]
    Load(Arc<LoadError>),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A device has failed, and with it every later run on it.
    #[error("{0}")]
    DeviceLost(String),
    /// Reference evaluation failed.
    #[error(transparent)]
    Eval(Arc<EvalError>),
    /// A tensor could not be made.
    #[error(transparent)]
    Tensor(Arc<TensorError>),
    /// The cache could not be used.
    #[error(transparent)]
    Cache(Arc<CacheError>),
    /// The Session was dropped before the compile began.
    #[error("the Session was closed before the Program was compiled")]
    Closed,
    /// A thread of the Session could not be started, or died.
    #[error("{0}")]
    Thread(String),
}

impl SessionError {
    /// Why a device has failed, and every later run on it will, if that is what happened: the run that lost it says so as
    /// its own error, and runs behind it as the Session's.
    pub fn lost_device(&self) -> Option<&str> {
        match self {
            SessionError::Run(RunError::DeviceLost(reason)) | SessionError::DeviceLost(reason) => Some(reason),
            _ => None,
        }
    }
}

macro_rules! shared {
    ($($error:ty => $variant:ident),*) => {
        $(impl From<$error> for SessionError {
            fn from(error: $error) -> SessionError {
                SessionError::$variant(Arc::new(error))
            }
        })*
    };
}

shared!(GraphError => Graph, LoadError => Load, EvalError => Eval, TensorError => Tensor, CacheError => Cache, Miss => NotCached);
