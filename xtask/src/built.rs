//! Shared libraries of the project, built by Cargo, which says where it put them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::paths;

/// `cargo build`, to be given to `built_library`.
pub fn cargo_build(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(["build", "--quiet", "--message-format=json"]).args(arguments);
    command
}

/// Runs a build that tells about itself in JSON, and finds the library of this file name among what was built.
pub fn built_library(command: &mut Command, name: &str) -> Result<PathBuf> {
    let output = command.current_dir(paths::root()).output()?;
    ensure!(output.status.success(), "{name} does not build:\n{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages = lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let files = messages.flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default());
    let mut libraries = files.filter_map(|file| file.as_str().map(PathBuf::from));
    let library = libraries.find(|file| file.file_name().is_some_and(|found| found == name));
    library.with_context(|| format!("cargo did not say where {name} is"))
}
