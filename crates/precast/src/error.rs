//! The library's error: one enum whose kind a door turns into an exit code, a status or an exception.

use precast_cache::CacheError;
use precast_generate::GenerateError;
use precast_generate::adapter::AdapterError;
use precast_generate::config::{FolderError, OpenError};
use precast_generate::engine::EngineError;
use precast_generate::roles::RoleError;
use precast_generate::text_model::StepError;
use precast_generate::tokenizer::TokenizerError;
use precast_ir::EvalError;
use precast_ir::graph::GraphError;
use precast_onnx::import::ImportError;
use precast_onnx::{ReadError, ReadErrorKind};
use precast_passes::PassError;
use precast_program::store::StoreError;
use precast_program::{CompileError, FileError, LoadError, RunError};
use precast_session::SessionError;
use precast_tensor::TensorError;
use thiserror::Error;

use crate::npy::NpyError;

/// Why a call failed.
#[derive(Debug, Error)]
pub enum Error {
    /// The file could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The model could not become a Graph.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A pass failed.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// A Graph could not be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The target could not compile the Graph.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The device could not load the Program.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A device is not there or cannot be opened.
    #[error("{0}")]
    Device(String),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Reference evaluation failed.
    #[error(transparent)]
    Eval(#[from] EvalError),
    /// A Program file could not be read.
    #[error("'{path}': {source}")]
    ProgramFile {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: FileError,
    },
    /// A compiled model could not be read.
    #[error("the compiled model is damaged or of another version: {0}")]
    CompiledModel(String),
    /// A Session did not open or answer.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A cache did not open.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A tensor could not be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A file could not be read or written.
    #[error("cannot {action} '{path}': {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// An array file could not be read or written.
    #[error("'{path}': {source}")]
    Array {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: NpyError,
    },
    /// The request does not fit the model.
    #[error("{0}")]
    Request(String),
    /// The model runs, but not as a Session: a `Runner` takes it.
    #[error("{0}")]
    NoSession(String),
    /// The configuration of a model folder could not be read.
    #[error(transparent)]
    Config(#[from] OpenError),
    /// A file of a model folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A decoder's graph does not fit its configuration.
    #[error(transparent)]
    Roles(#[from] RoleError),
    /// An adapter cannot be used.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// An adapter cannot be read from its file, or not be used.
    #[error("'{path}': {source}")]
    AdapterFile {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// A tokenizer could not be opened or used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A text could not be generated.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// An engine refused a request, or has ended.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Classes of errors, one for each way a caller may want to react.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A fault of ours.
    Internal,
    /// The caller's arguments.
    Usage,
    /// The model is broken or not supported.
    Model,
    /// A device failed.
    Device,
    /// A Program file or a stored constant is damaged.
    Integrity,
    /// Refused by a limit.
    Limit,
}

impl Error {
    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Read(error) => match error.kind() {
                ReadErrorKind::Malformed | ReadErrorKind::Unsupported => ErrorKind::Model,
                ReadErrorKind::Refused => ErrorKind::Limit,
                ReadErrorKind::Io => ErrorKind::Usage,
            },
            Error::Import(ImportError::Read(error)) if error.kind() == ReadErrorKind::Refused => ErrorKind::Limit,
            Error::Import(_) | Error::Eval(_) | Error::Graph(_) => ErrorKind::Model,
            Error::Pass(_) => ErrorKind::Internal,
            Error::Compile(CompileError::Pass(_)) => ErrorKind::Internal,
            Error::Compile(CompileError::Numerics(_)) => ErrorKind::Usage,
            Error::Compile(CompileError::TooLarge { .. }) => ErrorKind::Limit,
            Error::Compile(_) => ErrorKind::Model,
            Error::Load(LoadError::Target { .. } | LoadError::Device(_)) => ErrorKind::Device,
            Error::Device(_) | Error::Run(RunError::Device(_) | RunError::DeviceLost(_)) => ErrorKind::Device,
            // A full disk or a missing right is the caller's to mend; nothing is damaged.
            Error::Store(StoreError::Io { .. }) => ErrorKind::Usage,
            Error::Load(_) | Error::Store(_) | Error::ProgramFile { .. } => ErrorKind::Integrity,
            Error::CompiledModel(_) => ErrorKind::Integrity,
            Error::Run(RunError::Buffer(_) | RunError::ForeignProgram) => ErrorKind::Usage,
            Error::Run(RunError::Step { .. }) => ErrorKind::Model,
            Error::Session(error) => session_kind(error),
            Error::Cache(_) => ErrorKind::Integrity,
            Error::Array { source: NpyError::TooLarge { .. }, .. } => ErrorKind::Limit,
            Error::Array { .. } | Error::Tensor(_) | Error::Io { .. } | Error::Request(_) => ErrorKind::Usage,
            Error::NoSession(_) => ErrorKind::Usage,
            Error::Config(OpenError::Config(_)) | Error::Roles(_) => ErrorKind::Model,
            Error::Config(OpenError::Folder(error)) | Error::Folder(error) => folder_kind(error),
            Error::Adapter(error) => adapter_kind(error),
            Error::AdapterFile { source, .. } => source.kind(),
            Error::Tokenizer(TokenizerError::Folder(error)) => folder_kind(error),
            Error::Tokenizer(TokenizerError::Malformed { .. }) => ErrorKind::Model,
            Error::Tokenizer(TokenizerError::Encode(_) | TokenizerError::Template(_)) => ErrorKind::Usage,
            Error::Generate(error) | Error::Engine(EngineError::Generate(error)) => generate_kind(error),
            Error::Engine(EngineError::Request(_) | EngineError::Params(_) | EngineError::Guidance(_)) => {
                ErrorKind::Usage
            }
            Error::Engine(EngineError::Busy { .. }) => ErrorKind::Limit,
            Error::Engine(EngineError::Answer(_)) => ErrorKind::Model,
            Error::Engine(EngineError::Stopped(_)) => ErrorKind::Device,
        }
    }
}

/// What kind of failure a generator's is.
fn generate_kind(error: &GenerateError) -> ErrorKind {
    match error {
        GenerateError::Step(StepError::Session(error)) => session_kind(error),
        GenerateError::Step(StepError::Memory(_)) => ErrorKind::Limit,
        GenerateError::Step(StepError::Tensor(_)) | GenerateError::Rule { .. } => ErrorKind::Model,
        GenerateError::Params(_) | GenerateError::Input(_) | GenerateError::Cancelled => ErrorKind::Usage,
        GenerateError::Adapter(error) => adapter_kind(error),
        GenerateError::Seed(_) => ErrorKind::Device,
    }
}

/// What kind of failure an adapter's is.
fn adapter_kind(error: &AdapterError) -> ErrorKind {
    match error {
        AdapterError::Taken(_) | AdapterError::Unknown { .. } | AdapterError::InUse(_) => ErrorKind::Usage,
        AdapterError::Misfit { .. } => ErrorKind::Model,
    }
}

/// What kind of failure a model folder's is.
fn folder_kind(error: &FolderError) -> ErrorKind {
    match error {
        FolderError::Io { .. } | FolderError::Write { .. } | FolderError::NoConfig { .. } => ErrorKind::Usage,
        FolderError::Outside { .. } => ErrorKind::Model,
        FolderError::TooLarge { .. } => ErrorKind::Limit,
    }
}

/// What kind of failure a Session's is.
fn session_kind(error: &SessionError) -> ErrorKind {
    match error {
        SessionError::Compile(error) if matches!(**error, CompileError::Numerics(_)) => ErrorKind::Usage,
        SessionError::Compile(error) if matches!(**error, CompileError::TooLarge { .. }) => ErrorKind::Limit,
        SessionError::Run(RunError::Device(_) | RunError::DeviceLost(_)) | SessionError::DeviceLost(_) => {
            ErrorKind::Device
        }
        SessionError::Options(_)
        | SessionError::Request(_)
        | SessionError::OutOfRange(_)
        | SessionError::EmptyBatch { .. }
        | SessionError::Tensor(_)
        | SessionError::NotReady { .. }
        | SessionError::NotCached(_) => ErrorKind::Usage,
        SessionError::Graph(_)
        | SessionError::Eval(_)
        | SessionError::Compile(_)
        | SessionError::Source(_)
        | SessionError::Run(_) => ErrorKind::Model,
        SessionError::Load(_) | SessionError::Cache(_) => ErrorKind::Integrity,
        SessionError::Busy { .. }
        | SessionError::Timeout { .. }
        | SessionError::Memory(_)
        | SessionError::Closed
        | SessionError::Thread(_) => ErrorKind::Limit,
    }
}
