//! Builds for systems with an older C library than this one, which zig has the symbols of. Nothing is shared with other builds,
//! so the first of them takes as long as building everything.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::built::built_library;
use crate::venv::python_with;

/// The oldest systems that such wheels are installed on.
pub const OLDEST: &str = "manylinux_2_28";
/// The minor version of the C library of those.
pub const OLDEST_MINOR: u32 = 28;
const REQUIREMENTS: &str = "cargo-zigbuild>=0.20,<1\nmaturin>=1.9,<2\nziglang>=0.15,<1\n";
/// Names the Python that has zig to whoever links.
const PYTHON_VARIABLE: &str = "CARGO_ZIGBUILD_PYTHON_PATH";

/// The Python whose packages build for such systems.
pub fn python_with_zig() -> Result<PathBuf> {
    python_with("venv-zig", REQUIREMENTS)
}

/// Tells a command which Python has zig.
pub fn name_zig<'a>(command: &'a mut Command, python: &Path) -> &'a mut Command {
    command.env(PYTHON_VARIABLE, python)
}

/// Builds a package and finds its library of this file name.
pub fn library_for_older_systems(package: &str, name: &str) -> Result<PathBuf> {
    let python = python_with_zig()?;
    let target = format!("{}-unknown-linux-gnu.2.{OLDEST_MINOR}", std::env::consts::ARCH);
    let mut command = Command::new(python.with_file_name("cargo-zigbuild"));
    command.args([
        "zigbuild",
        "--quiet",
        "--message-format=json",
        "--release",
        "--package",
        package,
        "--target",
        &target,
    ]);
    built_library(name_zig(&mut command, &python), name)
}
