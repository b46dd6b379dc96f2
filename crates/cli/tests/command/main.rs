//! The real binary on tiny models: every verb, its JSON, its exit codes and the files it leaves.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod cache;
mod chat;
mod check;
mod compile;
mod errors;
mod generate;
mod inspect;
mod models;
mod numerics;
mod perf;
mod process;
mod run;
mod tune;
mod verify;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A folder for one test, and the binary run inside it.
pub(crate) struct Bench {
    folder: TempDir,
}

/// What a command left behind.
pub(crate) struct Outcome {
    pub(crate) exit: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        Bench { folder: tempfile::tempdir().unwrap() }
    }

    /// A folder with one model in it.
    pub(crate) fn with_model(name: &str, model: &precast_onnx::proto::ModelProto) -> Bench {
        let bench = Bench::new();
        bench.write(name, &models::encode(model));
        bench
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    /// Names in the folder, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        names_in(self.folder.path())
    }

    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_precast"));
        command.current_dir(self.folder.path()).args(arguments.split_whitespace()).args(["--threads", "1"]);
        command
    }

    pub(crate) fn run(&self, arguments: &str) -> Outcome {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        Outcome {
            exit: status.code().unwrap_or(-1),
            stdout: String::from_utf8(stdout).unwrap(),
            stderr: String::from_utf8(stderr).unwrap(),
        }
    }

    /// Runs a command that must succeed; the one line of JSON it prints.
    pub(crate) fn json(&self, arguments: &str) -> Value {
        let outcome = self.run(&format!("{arguments} --json"));
        assert_eq!(outcome.exit, 0, "{arguments}: {}", outcome.stderr);
        outcome.json()
    }
}

impl Outcome {
    /// The one line on stdout.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.stdout.lines().count(), 1, "{}", self.stdout);
        serde_json::from_str(&self.stdout).unwrap()
    }
}

pub(crate) fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
