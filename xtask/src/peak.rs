//! The most memory that one run of a model takes, measured from inside a process that does nothing else.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use precast::{BucketPolicy, Model, ModelSession, OpenOptions, Runner, RunnerOptions, SessionOptions};
use serde::{Deserialize, Serialize};

use crate::inputs::Named;
use crate::onnxruntime;

/// The answer to a measurement.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PeakMemory {
    /// What was resident before the model was opened, in MiB.
    pub start_mb: f64,
    /// The most that was resident, mapped files included, in MiB.
    pub peak_mb: f64,
    /// Programs compiled.
    pub compiles: u64,
}

/// Runs a model once: compiled from nothing, or as a Session on the Programs of a cache.
pub fn run_once(model: &Path, folder: &Path, threads: usize, cache: Option<&Path>) -> Result<PeakMemory> {
    let start_mb = peak_mb()?;
    let inputs = onnxruntime::read_inputs(folder)?;
    let model = Model::open(model)?;
    let runner = RunnerOptions { threads, ..RunnerOptions::default() };
    let Some(cache) = cache else {
        let runner = Runner::new(model, runner)?;
        let _outputs = runner.run(&inputs)?;
        return Ok(PeakMemory { start_mb, peak_mb: peak_mb()?, compiles: 1 });
    };
    let options = OpenOptions {
        runner,
        dims: dims_of(&model, &inputs)?,
        buckets: BucketPolicy::Exact,
        session: SessionOptions { measures: false, ..SessionOptions::default() },
        cache: Some(cache.to_path_buf()),
        ..OpenOptions::default()
    };
    let session = ModelSession::open(&model, &options)?;
    let _outputs = session.run(&inputs)?;
    Ok(PeakMemory { start_mb, peak_mb: peak_mb()?, compiles: session.compiles() })
}

/// The number of every dim that a model names, as these inputs have it.
fn dims_of(model: &Model, inputs: &Named) -> Result<BTreeMap<String, i64>> {
    let mut dims = BTreeMap::new();
    for info in model.inputs()? {
        let tensor = inputs.iter().find(|(name, _)| *name == info.name).map(|(_, tensor)| tensor);
        let shape = tensor.map_or(&[][..], |tensor| tensor.shape());
        for (dim, &size) in info.dims.iter().flatten().zip(shape) {
            if let Some(symbol) = dim.as_symbol() {
                dims.insert(symbol.as_str().to_string(), size as i64);
            }
        }
    }
    Ok(dims)
}

/// The most that this process had resident so far, in MiB.
pub fn peak_mb() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("peak memory is read from /proc")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("the kernel counts no peak")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}
