//! Python environments of our own with pinned packages, made when they are first needed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::paths;

const REQUIREMENTS: &str = include_str!("../python/requirements.txt");

/// The environment's Python, with everything installed.
pub fn python() -> Result<PathBuf> {
    python_with("venv", REQUIREMENTS)
}

/// The Python of an environment of this name, with these requirements installed.
pub fn python_with(name: &str, requirements: &str) -> Result<PathBuf> {
    let folder = paths::cache().join(name);
    let python = folder.join("bin").join("python");
    // Written last, so an environment that has it is complete; other pins make another environment.
    let marker = folder.join("requirements.txt");
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == requirements) {
        return Ok(python);
    }
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(paths::cache())?;
    eprintln!("making a Python environment with {}", requirements.trim().replace('\n', ", "));
    call(Command::new("python3").arg("-m").arg("venv").arg(&folder))?;
    let written = folder.join("requirements.tmp");
    fs::write(&written, requirements)?;
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
    call(Command::new(&python).args(install).arg(&written))?;
    fs::rename(&written, &marker)?;
    Ok(python)
}

/// Runs a child process to its end; its output is shown only if it fails.
pub fn call(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start '{name}'"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
