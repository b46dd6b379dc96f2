//! Every test of the project, one after the other: what CI runs, and all that CI runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::paths;

/// One thing to run.
struct Step {
    name: String,
    command: Command,
}

/// Runs everything; goes on after a failure, so that one run names them all.
pub fn run() -> Result<()> {
    let start = Instant::now();
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

fn steps() -> Result<Vec<Step>> {
    let mut steps = vec![
        cargo(&["fmt", "--all", "--check"]),
        cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        cargo(&["test", "--quiet", "--workspace"]),
        own(&["docs", "--check"])?,
        own(&["conformance", "--json"])?,
        own(&["models", "--small", "--json"])?,
        own(&["torture", "cache", "--quick"])?,
        first_command_of_readme()?,
    ];
    for (package, example) in examples()? {
        steps.push(cargo(&["run", "--quiet", "--release", "--package", &package, "--example", &example]));
    }
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

/// Package and name of every example of the library and of the doors.
fn examples() -> Result<Vec<(String, String)>> {
    let mut examples = Vec::new();
    for room in sorted_entries(&paths::root().join("crates"))? {
        let folder = room.join("examples");
        if !folder.exists() {
            continue;
        }
        for file in sorted_entries(&folder)? {
            if file.extension().is_some_and(|extension| extension == "rs") {
                examples.push((package_of(&stem(&room)?), stem(&file)?));
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
