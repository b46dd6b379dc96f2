//! Tests of text generation under AddressSanitizer: reads and writes beyond the memory of inputs, caches and results end the
//! test, wherever they lie. It is no part of `cargo xtask test`: every crate below the library is built once more for it, which
//! takes longer on two cores than all that it finds is worth on every change.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::paths;

/// The one target that the project builds for and that has the sanitizer.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Test files of text generation, and which of their tests run: those whose inputs, rows and caches are padded.
const TESTS: [(&str, &str); 2] = [("defects", "defect_0"), ("filler", "on_the_cpu")];

/// Runs them, in a folder of builds of their own.
pub fn run() -> Result<()> {
    for (file, filter) in TESTS {
        let mut command = Command::new("cargo");
        command.args(["test", "--quiet", "--package", "precast-generate", "--test", file, "--target", TARGET]);
        command.arg("--target-dir").arg(paths::cache().join("sanitize")).arg(filter);
        // The flag is one of the compiler's unstable ones, which a stable compiler takes when it is told so.
        command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
        let status = command.current_dir(paths::root()).status().context("cannot start cargo")?;
        ensure!(status.success(), "tests '{filter}' of '{file}' failed under AddressSanitizer: {status}");
    }
    Ok(())
}
