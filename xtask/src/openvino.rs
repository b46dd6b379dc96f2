//! OpenVINO as a second peer: measured like onnxruntime, in a Python process with an environment of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::measure::Milliseconds;
use crate::worker::{Worker, ask_json};
use crate::{paths, venv};

const SCRIPT: &str = include_str!("../python/ov_run.py");
const REQUIREMENTS: &str = include_str!("../python/requirements_openvino.txt");

/// A process that measures a model on the inputs of a folder.
pub struct Measurer(Worker);

impl Measurer {
    /// Starts the process.
    pub fn start(model: &Path, threads: usize, folder: &Path) -> Result<Measurer> {
        let python = venv::python_with("venv-openvino", REQUIREMENTS)?;
        let script = paths::cache().join("ov_run.py");
        fs::write(&script, SCRIPT)?;
        let mut command = Command::new(python);
        command.arg(script).arg(model).arg(threads.to_string()).arg(folder);
        Ok(Measurer(Worker::start(&mut command)?))
    }

    /// Median milliseconds of a run, measured for some seconds.
    pub fn measure(&mut self, seconds: f64) -> Result<f64> {
        let milliseconds: Milliseconds = ask_json(&mut self.0, &seconds)?;
        Ok(milliseconds.ms)
    }
}
