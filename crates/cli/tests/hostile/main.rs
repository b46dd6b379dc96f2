//! Public faults of other systems that concern model files, as tests of the real binary: one file a row of docs/hostile.md.
//! A hostile file ends in a sentence and an exit code, within a limit of memory, and never in a signal or a hang.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod h01_paths_out_of_the_folder;
mod h02_links_and_special_files;
mod h03_names_of_files_that_are_written;
mod h04_keys_of_external_data;
mod h05_nothing_is_downloaded;
mod h06_external_data_of_bytes;
mod h07_markers_of_other_runtimes;
mod h08_every_place_of_a_tensor;
mod h09_short_and_cut_files;
mod h10_ranges_that_wrap;
mod h11_dims_that_multiply;
mod h12_graphs_that_break_analysis;
mod h13_shapes_of_requests;
mod model;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Address space of a command, in KiB. The binary itself, its threads and a mapped file need a part of it; what a file asks
/// for by lying about a size does not fit.
const ADDRESS_SPACE_KIB: u64 = 4 << 20;

/// Bytes that a refusal may take at once.
pub(crate) const REFUSAL_BYTES_MAX: u64 = 64 << 20;

/// A command that takes longer hangs.
const HANG: Duration = Duration::from_secs(60);

/// The exit code of a broken or unsupported model.
pub(crate) const MODEL: i32 = 3;
/// The exit code of a refusal.
pub(crate) const REFUSED: i32 = 8;

/// A folder `model` inside of a folder that no model may reach.
pub(crate) struct Bench {
    outer: TempDir,
}

/// How a command ended.
pub(crate) struct Outcome {
    pub(crate) exit: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Bench {
    /// outside (a secret), model/data (0..100), model/sub/data.
    pub(crate) fn new() -> Bench {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("model");
        fs::create_dir_all(folder.join("sub")).unwrap();
        fs::write(outer.path().join("outside"), [1; 100]).unwrap();
        fs::write(folder.join("data"), (0..100).collect::<Vec<u8>>()).unwrap();
        fs::write(folder.join("sub/data"), [2; 100]).unwrap();
        Bench { outer }
    }

    pub(crate) fn outer(&self) -> &Path {
        self.outer.path()
    }

    /// A path in the model's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.outer.path().join("model").join(name)
    }

    /// Runs a verb in the model's folder, within the limit of memory.
    pub(crate) fn run(&self, arguments: &str) -> Outcome {
        let script = format!("ulimit -v {ADDRESS_SPACE_KIB}; exec \"$0\" {arguments} --threads 1");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_precast")]).current_dir(self.path(""));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if start.elapsed() > HANG {
                child.kill().unwrap();
                panic!("'{arguments}' hangs");
            }
            thread::sleep(Duration::from_millis(2));
        }
        let output = child.wait_with_output().unwrap();
        Outcome {
            exit: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Writes a model and runs it.
    pub(crate) fn run_model(&self, bytes: &[u8]) -> Outcome {
        fs::write(self.path("m.onnx"), bytes).unwrap();
        self.run("run m.onnx")
    }

    /// Writes a model that must be refused with this exit code, and gives the sentence.
    #[track_caller]
    pub(crate) fn refusal(&self, bytes: &[u8], exit: i32) -> String {
        let outcome = self.run_model(bytes);
        assert_eq!(outcome.exit, exit, "{}{}", outcome.stdout, outcome.stderr);
        outcome.stderr
    }
}
