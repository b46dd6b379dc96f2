//! Programs of the bundle as child processes: a crash, a hang of one or its memory is nobody else's.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::paths;

/// Runs another command of this program; its JSON, whether or not it ends well.
pub fn own_json<S: AsRef<OsStr>>(arguments: &[S]) -> Result<Value> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let output = command.spawn()?.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().rfind(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("{command:?} says nothing: {}", output.status))?;
    Ok(serde_json::from_str(line)?)
}

/// A program of the tests.
pub fn test_binary(name: &str) -> Result<PathBuf> {
    let bundle = paths::bundle().context("the op suite runs from a bundle (cargo xtask gpu-bundle)")?;
    let path = bundle.join("tests").join(name);
    ensure!(path.exists(), "the bundle has no '{}'", path.display());
    Ok(path)
}

/// What a program of the tests counted.
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    /// Names of the tests that failed, and the first message.
    pub note: String,
}

/// Runs a program of the tests on a device.
pub fn run_tests(name: &str, vendor: &str, library: Option<&Path>) -> Result<Tally> {
    let mut command = Command::new(test_binary(name)?);
    command.env("PRECAST_TEST_DEVICE", vendor);
    if let Some(library) = library {
        command.env("PRECAST_TEST_LIBRARY", library);
    }
    tally(&command.output()?)
}

/// Reads the tally that the test harness prints.
fn tally(output: &Output) -> Result<Tally> {
    const MESSAGE_CHARACTERS_MAX: usize = 1500;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(line) = text.lines().find(|line| line.starts_with("test result:")) else {
        bail!("the tests did not end ({}): {}", output.status, String::from_utf8_lossy(&output.stderr));
    };
    let count = |what: &str| -> Result<usize> {
        let part = line.split([';', '.']).find_map(|part| part.trim().strip_suffix(what));
        Ok(part.with_context(|| format!("no count of '{what}' in '{line}'"))?.trim().parse()?)
    };
    let failed: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED")).collect();
    let message = text.split("\nfailures:\n").nth(1).unwrap_or_default();
    let message: String = message.trim().chars().take(MESSAGE_CHARACTERS_MAX).collect();
    let note = if failed.is_empty() { String::new() } else { format!("{}: {message}", failed.join(", ")) };
    Ok(Tally { passed: count("passed")?, failed: count("failed")?, note })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn a_tally_is_read_from_what_the_harness_prints() {
        let text = "running 3 tests\ntest a ... ok\ntest b ... FAILED\ntest c ... ok\n\nfailures:\n\n---- b stdout ----\nno\n\n\
                    test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s\n";
        let output = Output { status: ExitStatus::from_raw(0), stdout: text.into(), stderr: Vec::new() };
        let found = tally(&output).unwrap();
        assert_eq!((found.passed, found.failed), (2, 1));
        assert!(found.note.starts_with("b: ---- b stdout ----\nno"), "{}", found.note);
    }

    #[test]
    fn tests_that_do_not_end_are_an_error() {
        let output = Output { status: ExitStatus::from_raw(11), stdout: b"running".to_vec(), stderr: b"gone".to_vec() };
        assert!(tally(&output).err().unwrap().to_string().contains("gone"));
    }
}
