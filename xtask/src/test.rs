//! Every test of the project, one after the other: what CI runs, and all that CI runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::{gpu_compilers, paths};

/// Arguments of `cargo xtask test`.
#[derive(Args)]
pub struct TestArguments {
    /// Install what tests use of the system's packages.
    #[arg(long)]
    install: bool,
}

/// One thing to run.
struct Step {
    name: String,
    command: Command,
}

/// Runs everything; goes on after a failure, so that one run names them all.
pub fn run(arguments: &TestArguments) -> Result<()> {
    let start = Instant::now();
    if arguments.install {
        left_out(gpu_compilers::install_hiprtc());
    }
    let steps = steps()?;
    let mut failed = Vec::new();
    let count = steps.len();
    for (index, mut step) in steps.into_iter().enumerate() {
        eprintln!("==> [{}/{count}] {}", index + 1, step.name);
        let begin = Instant::now();
        let status = step.command.current_dir(paths::root()).status();
        let status = status.with_context(|| format!("cannot start {:?}", step.command.get_program()))?;
        eprintln!("==> {} {status}, {:.0} s", step.name, begin.elapsed().as_secs_f64());
        if !status.success() {
            failed.push(step.name);
        }
    }
    eprintln!("==> {count} steps, {:.0} s", start.elapsed().as_secs_f64());
    ensure!(failed.is_empty(), "failed: {}", failed.join("; "));
    Ok(())
}

/// What could not be had is said; the tests that need it are left out.
fn left_out<T>(had: Result<T>) -> Option<T> {
    had.map_err(|error| eprintln!("==> left out: {error:#}")).ok()
}

/// The tests of all crates, with kernels compiled by the vendors' compilers where there are any.
fn crate_tests() -> Step {
    let mut step = cargo(&["test", "--quiet", "--workspace", "--no-fail-fast"]);
    if let Some(folder) = left_out(gpu_compilers::nvrtc_folder()).flatten() {
        let before = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let folders = [folder].into_iter().chain(std::env::split_paths(&before));
        // A folder with a colon in its name cannot be given, which is as good as none.
        step.command.env("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap_or(before));
    }
    step
}

fn steps() -> Result<Vec<Step>> {
    let mut steps = vec![
        cargo(&["fmt", "--all", "--check"]),
        cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        crate_tests(),
        own(&["docs", "--check"])?,
        own(&["conformance", "--json"])?,
        own(&["models", "--small", "--json"])?,
        own(&["torture", "cache", "--quick"])?,
        own(&["fuzz", "--target", "differential", "--graphs", "300"])?,
        own(&["ort-ep"])?,
        first_command_of_readme()?,
    ];
    for (package, example) in examples()? {
        steps.push(cargo(&["run", "--quiet", "--release", "--package", &package, "--example", &example]));
    }
    // Last, since the wheel is built in the profile that the steps before it have built most of already.
    steps.push(own(&["python"])?);
    Ok(steps)
}

fn cargo(arguments: &[&str]) -> Step {
    let mut command = Command::new("cargo");
    command.args(arguments);
    Step { name: format!("cargo {}", arguments.join(" ")), command }
}

/// Another command of this program.
fn own(arguments: &[&str]) -> Result<Step> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments);
    Ok(Step { name: format!("cargo xtask {}", arguments.join(" ")), command })
}

/// What a person who arrives types first must work.
fn first_command_of_readme() -> Result<Step> {
    let text = fs::read_to_string(paths::root().join("README.md")).context("cannot read README.md")?;
    let script = first_shell_block(&text)?;
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", &script]);
    Ok(Step { name: format!("README: {}", script.trim()), command })
}

/// The first fenced block of shell commands.
fn first_shell_block(text: &str) -> Result<String> {
    let mut lines = text.lines().skip_while(|line| !matches!(line.trim(), "```sh" | "```bash" | "```shell"));
    if lines.next().is_none() {
        bail!("README.md has no block of shell commands");
    }
    let block: Vec<&str> = lines.take_while(|line| line.trim() != "```").collect();
    Ok(block.join("\n"))
}

/// Package and name of every example of the library and of the doors. Programs that only measure are built by the lints.
fn examples() -> Result<Vec<(String, String)>> {
    let mut examples = Vec::new();
    for room in sorted_entries(&paths::root().join("crates"))? {
        let folder = room.join("examples");
        if !folder.exists() {
            continue;
        }
        for file in sorted_entries(&folder)? {
            let name = stem(&file)?;
            if file.extension().is_some_and(|extension| extension == "rs") && !name.ends_with("_speed") {
                examples.push((package_of(&stem(&room)?), name));
            }
        }
    }
    Ok(examples)
}

fn package_of(room: &str) -> String {
    if room == "precast" { room.to_string() } else { format!("precast-{room}") }
}

fn stem(path: &Path) -> Result<String> {
    Ok(path.file_stem().with_context(|| format!("'{}' has no name", path.display()))?.to_string_lossy().into_owned())
}

fn sorted_entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    entries.sort();
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_shell_block_is_found_among_others() {
        let text = "# Title\n```rust\nlet x = 1;\n```\n```sh\ncargo run\n```\n```sh\nother\n```\n";
        assert_eq!(first_shell_block(text).unwrap(), "cargo run");
        assert!(first_shell_block("# Title").is_err());
    }
}
