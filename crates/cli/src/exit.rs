//! How a command ends: the exit codes, and the failure that carries one.

use std::process::ExitCode;

use precast::{Error, ErrorKind};

/// Every way to end, one code each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done,
    /// A fault of ours.
    Internal,
    /// Wrong arguments.
    Usage,
    /// The model is broken or not supported.
    Model,
    /// Outputs differ.
    Differ,
    /// A device failed or cannot run this.
    Device,
    /// A Program file or constant is damaged.
    Integrity,
    /// Refused by a limit.
    Limit,
    /// The other side cannot be reached.
    Unreachable,
}

impl Exit {
    /// How a failure of this kind ends.
    pub fn of(kind: ErrorKind) -> Exit {
        match kind {
            ErrorKind::Internal => Exit::Internal,
            ErrorKind::Usage => Exit::Usage,
            ErrorKind::Model => Exit::Model,
            ErrorKind::Device => Exit::Device,
            ErrorKind::Integrity => Exit::Integrity,
            ErrorKind::Limit => Exit::Limit,
        }
    }

    /// The code, as specs/doors.md lists them.
    pub fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Internal => 1,
            Exit::Usage => 2,
            Exit::Model => 3,
            Exit::Differ => 4,
            Exit::Device => 5,
            Exit::Integrity => 6,
            Exit::Limit => 8,
            Exit::Unreachable => 9,
        }
    }

    /// The word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Exit::Done => "done",
            Exit::Internal => "internal",
            Exit::Usage => "usage",
            Exit::Model => "model",
            Exit::Differ => "differ",
            Exit::Device => "device",
            Exit::Integrity => "integrity",
            Exit::Limit => "limit",
            Exit::Unreachable => "unreachable",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    /// How the process ends.
    pub exit: Exit,
    /// What to tell the user.
    pub message: String,
}

impl Failure {
    /// A failure.
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: message.into() }
    }

    /// A failure of the arguments.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(Exit::of(error.kind()), error.to_string())
    }
}
