//! Errors of type inference and of reference evaluation. Both are plain sentences about one op; the graph adds which
//! node it was.

use thiserror::Error;

/// The Types given to an op do not fit it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{op}: {reason}")]
pub struct InferError {
    /// Name of the op, as the text form prints it.
    pub op: &'static str,
    /// What was found and what was expected.
    pub reason: String,
}

impl InferError {
    /// An error of `op`.
    pub fn new(op: &'static str, reason: impl Into<String>) -> InferError {
        InferError { op, reason: reason.into() }
    }
}

/// Reference evaluation met values that an op has no meaning for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EvalError {
    /// The Types do not fit the op.
    #[error(transparent)]
    Infer(#[from] InferError),
    /// A value is outside what the op allows, such as an index beyond its axis.
    #[error("{op}: {reason}")]
    Value {
        /// Name of the op.
        op: &'static str,
        /// What was found and what was expected.
        reason: String,
    },
    /// The op has no meaning for this element type.
    #[error("{op}: element type {dtype} has no meaning here")]
    DType {
        /// Name of the op.
        op: &'static str,
        /// The element type's name.
        dtype: &'static str,
    },
    /// A dim is still symbolic.
    #[error("{op}: dim '{dim}' is not bound to a number")]
    Unbound {
        /// Name of the op.
        op: &'static str,
        /// The dim as printed.
        dim: String,
    },
    /// A node of a graph failed.
    #[error("node %{node} ({name}): {source}")]
    Node {
        /// First output of the node.
        node: u32,
        /// Where the node came from.
        name: String,
        /// What went wrong there.
        source: Box<EvalError>,
    },
    /// The inputs given to a graph are not the ones it declares.
    #[error("graph input '{name}': {reason}")]
    Input {
        /// Name of the input.
        name: String,
        /// What was found and what was expected.
        reason: String,
    },
}

impl EvalError {
    /// A value error of `op`.
    pub fn value(op: &'static str, reason: impl Into<String>) -> EvalError {
        EvalError::Value { op, reason: reason.into() }
    }
}
