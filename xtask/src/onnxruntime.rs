//! onnxruntime as the other side of a comparison: it runs in a Python process and exchanges folders of .npy files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use precast::Tensor;
use precast::npy::{read_npy, write_npy};
use serde::Deserialize;

use crate::inputs::Named;
use crate::worker::{Worker, ask_json};
use crate::{paths, venv};

const SCRIPT: &str = include_str!("../python/ort_run.py");

/// Writes the inputs of a run where both sides read them.
pub fn write_inputs(folder: &Path, inputs: &Named) -> Result<()> {
    fs::create_dir_all(folder)?;
    let names: Vec<&String> = inputs.iter().map(|(name, _)| name).collect();
    fs::write(folder.join("names.json"), serde_json::to_string(&names)?)?;
    for (index, (_, tensor)) in inputs.iter().enumerate() {
        write_array(&folder.join(format!("input_{index}.npy")), tensor)?;
    }
    Ok(())
}

/// The inputs of a folder.
pub fn read_inputs(folder: &Path) -> Result<Named> {
    let names: Vec<String> = serde_json::from_str(&fs::read_to_string(folder.join("names.json"))?)?;
    let inputs = names.into_iter().enumerate();
    inputs.map(|(index, name)| Ok((name, read_array(&folder.join(format!("input_{index}.npy")))?))).collect()
}

/// One of the outputs that onnxruntime left in a folder.
pub fn read_output(folder: &Path, index: usize) -> Result<Tensor> {
    read_array(&folder.join(format!("output_{index}.npy")))
}

fn write_array(path: &Path, tensor: &Tensor) -> Result<()> {
    let file = fs::File::create(path).with_context(|| format!("cannot write '{}'", path.display()))?;
    write_npy(file, tensor).with_context(|| format!("'{}'", path.display()))
}

/// The tensor of a .npy file.
pub fn read_array(path: &Path) -> Result<Tensor> {
    let bytes = fs::read(path).with_context(|| format!("cannot read '{}'", path.display()))?;
    read_npy(&bytes.into(), None).with_context(|| format!("'{}'", path.display()))
}

/// Runs a model on the inputs of every folder.
pub fn run(model: &Path, threads: usize, folders: &[PathBuf]) -> Result<()> {
    venv::call(command("run", model, threads)?.args(folders))
}

/// Milliseconds that onnxruntime takes to make a session of a model, in a process of its own.
pub fn open(model: &Path, threads: usize) -> Result<f64> {
    let output = command("open", model, threads)?.output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: crate::measure::Milliseconds = serde_json::from_slice(&output.stdout)?;
    Ok(answer.ms)
}

/// The most memory that onnxruntime's process had.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct ProcessPeak {
    /// In MiB, after Python, numpy and onnxruntime were imported.
    pub imports_mb: f64,
    /// In MiB, at the end.
    pub peak_mb: f64,
}

/// The most memory that it takes to open a model and run the inputs of a folder once, in a process of its own.
pub fn peak(model: &Path, threads: usize, folder: &Path) -> Result<ProcessPeak> {
    let output = command("peak", model, threads)?.arg(folder).output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// A process that measures a model on the inputs of a folder.
pub struct Measurer(Worker);

impl Measurer {
    /// Starts the process.
    pub fn start(model: &Path, threads: usize, folder: &Path) -> Result<Measurer> {
        Ok(Measurer(Worker::start(command("measure", model, threads)?.arg(folder))?))
    }

    /// Median milliseconds of a run, measured for some seconds.
    pub fn measure(&mut self, seconds: f64) -> Result<f64> {
        let milliseconds: crate::measure::Milliseconds = ask_json(&mut self.0, &seconds)?;
        Ok(milliseconds.ms)
    }
}

fn command(mode: &str, model: &Path, threads: usize) -> Result<Command> {
    let script = paths::cache().join("ort_run.py");
    let python = venv::python()?;
    fs::write(&script, SCRIPT)?;
    let mut command = Command::new(python);
    command.arg(script).arg(mode).arg(model).arg(threads.to_string());
    Ok(command)
}
