//! The one error of the reader. Every variant names the thing, the place and the expectation.
//!
//! Text from the file enters messages escaped and shortened: a hostile name can neither forge log lines nor make an
//! error as large as the model.

use std::fmt;
use std::path::PathBuf;

use super::limits::Budget;

/// Why a model file, or a tensor in it, cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The operating system refused or failed.
    #[error("cannot {action} '{}': {source}", path.display())]
    Io {
        /// What was attempted, as a verb: `open`, `map`.
        action: String,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The bytes are not the protobuf message they should be.
    #[error("not a valid ONNX file: {problem} (byte {offset}, in {message})")]
    Wire {
        /// Where in the file.
        offset: u64,
        /// The innermost message being read.
        message: &'static str,
        /// What was found and what was expected.
        problem: String,
    },
    /// The bytes are not the adapter they should be.
    #[error("not a valid adapter file: {place}: {problem}")]
    Adapter {
        /// The part of the file that is wrong: the file itself, or a parameter by number or name.
        place: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// The decoder refused what the scan let through, such as a name that is not UTF-8.
    #[error("not a valid ONNX file: {0}")]
    Decode(#[from] prost::DecodeError),
    /// The model as a whole breaks a rule of ONNX.
    #[error("not a valid ONNX model: {problem}")]
    Model {
        /// What was found and what was expected.
        problem: String,
    },
    /// A tensor's shape, type and data do not agree.
    #[error("tensor {tensor}: {problem}")]
    Tensor {
        /// The tensor's name, quoted.
        tensor: Quoted,
        /// What was found and what was expected.
        problem: String,
    },
    /// A declared type is incomplete or unknown.
    #[error("value {value}: {problem}")]
    Type {
        /// The value's name, quoted.
        value: Quoted,
        /// What was found and what was expected.
        problem: String,
    },
    /// A tensor's external data is described wrongly or lies where it may not be read.
    #[error("tensor {tensor}: external data {location}: {problem}")]
    External {
        /// The tensor's name, quoted.
        tensor: Quoted,
        /// The `location` given, quoted.
        location: Quoted,
        /// What was found and what was expected.
        problem: String,
    },
    /// Valid, but larger than the caller's limits.
    #[error("{place}: {value} {} is over the limit of {limit}; the limit '{}' raises it", budget.noun(), budget.flag())]
    OverLimit {
        /// What was being read.
        place: String,
        /// What was counted.
        budget: Budget,
        /// The count reached.
        value: u64,
        /// The limit crossed.
        limit: u64,
    },
    /// Valid ONNX that Precast does not read.
    #[error("{place}: {problem}")]
    Unsupported {
        /// What was being read.
        place: String,
        /// What is not supported, and what is.
        problem: String,
    },
    /// No memory for something that was within all limits.
    #[error("{place}: no memory for {bytes} bytes")]
    Memory {
        /// What was being read.
        place: String,
        /// The allocation that failed.
        bytes: u64,
    },
}

/// What a door does with a [`ReadError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadErrorKind {
    /// The file is broken or breaks a rule of ONNX.
    Malformed,
    /// The file asks for more than a limit or a safety rule allows.
    Refused,
    /// The file is valid; Precast does not support it.
    Unsupported,
    /// The file could not be read.
    Io,
}

impl ReadError {
    /// The class of the error, for exit codes and exceptions.
    pub fn kind(&self) -> ReadErrorKind {
        match self {
            ReadError::Wire { .. }
            | ReadError::Adapter { .. }
            | ReadError::Decode(_)
            | ReadError::Model { .. }
            | ReadError::Tensor { .. }
            | ReadError::Type { .. } => ReadErrorKind::Malformed,
            ReadError::External { .. } | ReadError::OverLimit { .. } => ReadErrorKind::Refused,
            ReadError::Unsupported { .. } => ReadErrorKind::Unsupported,
            ReadError::Io { .. } | ReadError::Memory { .. } => ReadErrorKind::Io,
        }
    }

    pub(super) fn model(problem: impl Into<String>) -> ReadError {
        ReadError::Model { problem: problem.into() }
    }

    pub(super) fn tensor(name: &str, problem: impl Into<String>) -> ReadError {
        ReadError::Tensor { tensor: Quoted::new(name), problem: problem.into() }
    }
}

/// Text from a file, made safe to print: quoted, escaped, at most [`Quoted::CHARS_MAX`] characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quoted(String);

impl Quoted {
    /// Characters kept before the text is cut.
    pub const CHARS_MAX: usize = 120;

    /// Quotes `text`.
    pub fn new(text: &str) -> Quoted {
        let shown: String = text.chars().take(Quoted::CHARS_MAX).collect();
        let dots = if shown.len() < text.len() { "…" } else { "" };
        Quoted(format!("'{}{dots}'", shown.escape_debug()))
    }
}

impl fmt::Display for Quoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_cannot_forge_lines_or_grow() {
        assert_eq!(Quoted::new("a\nb").to_string(), "'a\\nb'");
        assert_eq!(Quoted::new(&"x".repeat(5000)).to_string().chars().count(), Quoted::CHARS_MAX + 3);
    }
}
