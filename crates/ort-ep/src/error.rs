//! Why a callback failed. All that crosses to the runtime is the text.

use thiserror::Error;

/// Why a callback failed.
#[derive(Debug, Error)]
pub(crate) enum EpError {
    /// A call of the runtime's failed.
    #[error("precast: onnxruntime: {0}")]
    Runtime(String),
    /// The library refused.
    #[error("precast: {0}")]
    Library(#[from] precast::Error),
    /// A Session refused.
    #[error("precast: {0}")]
    Session(#[from] precast::SessionError),
    /// A tensor could not be made.
    #[error("precast: {0}")]
    Tensor(#[from] precast::TensorError),
    /// Something else, in words.
    #[error("precast: {0}")]
    Other(String),
}

impl EpError {
    /// An error in words.
    pub(crate) fn other(text: impl Into<String>) -> EpError {
        EpError::Other(text.into())
    }
}
