//! Compiling ahead of time: the Programs of a model's Buckets in a cache, or one Program in a file.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use precast::device_name::resolve_device;
use precast::{Bucket, Error, ModelSession, Readiness, Runner, Startup, Tensor, move_program, save_program};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::exceptions::{exception, usage};
use crate::host_array::copied_tensor;
use crate::interruptible::interruptible;
use crate::session::read_model;
use crate::settings::{Settings, read_settings};

/// How long uploads to a shared store are waited for at the end.
const UPLOADS_WAIT: Duration = Duration::from_secs(60);

/// Name of a Program on its way to its place.
const STAGED: &str = "program";

/// Compiles every Bucket of a model that its cache does not have. Gives a dict of what was done.
#[pyfunction]
pub fn compile_buckets<'py>(
    py: Python<'py>,
    path_or_bytes: &Bound<'py, PyAny>,
    device: &str,
    settings: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyDict>> {
    let Settings { mut options, cache } = read_settings(py, Some(settings))?;
    let model = read_model(py, path_or_bytes)?;
    options.runner.device = resolve_device(device).map_err(|error| exception(py, &error))?;
    options.session.startup = Startup::All;
    let begun = Instant::now();
    let work = move || {
        let session = ModelSession::open_on(&model, &options, cache.clone())?;
        if let Readiness::Degraded(error) = session.wait_until_ready(None) {
            return Err(Error::from(error));
        }
        let records = session.records()?;
        cache.flush(UPLOADS_WAIT);
        let keys: Vec<(String, String)> =
            records.iter().map(|record| (record.bucket.to_string(), cache.key(record).to_string())).collect();
        Ok((keys, session.compiles()))
    };
    let (keys, compiles) = interruptible(py, "compile", work)?.map_err(|error| exception(py, &error))?;
    let done = PyDict::new(py);
    done.set_item("buckets", keys)?;
    done.set_item("compiles", compiles)?;
    done.set_item("seconds", begun.elapsed().as_secs_f64())?;
    Ok(done)
}

/// Compiles a model for inputs of exactly these shapes and writes the Program to a file, its constants beside it.
#[pyfunction]
pub fn compile_program(
    py: Python<'_>,
    path_or_bytes: &Bound<'_, PyAny>,
    inputs: &Bound<'_, PyDict>,
    output: PathBuf,
    device: &str,
    settings: &Bound<'_, PyDict>,
) -> PyResult<()> {
    let Settings { mut options, cache } = read_settings(py, Some(settings))?;
    let model = read_model(py, path_or_bytes)?;
    options.runner.device = resolve_device(device).map_err(|error| exception(py, &error))?;
    let mut tensors: Vec<(String, Tensor)> = Vec::new();
    for (name, value) in inputs {
        let name: String = name.extract()?;
        let tensor = copied_tensor(&value)?;
        let tensor = tensor.ok_or_else(|| usage(py, &format!("input '{name}' is no array of numbers")))?;
        tensors.push((name, tensor));
    }
    let work = move || {
        let runner = Runner::with_tuning_of(model, options.runner, cache)?;
        let Some(program) = runner.compile(&tensors, &Bucket::default())? else {
            let why = "the model is not one Program: sizes or branches inside it depend on values";
            return Err(Error::NoSession(why.to_string()));
        };
        // Written in a folder beside it first, so that whatever ends this leaves no half of a file.
        let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let staging = tempfile::Builder::new().prefix(".precast-").tempdir_in(parent).map_err(|source| {
            let path = output.display().to_string();
            Error::Io { action: "write", path, source }
        })?;
        let staged = staging.path().join(STAGED);
        save_program(&staged, &program, runner.store())?;
        move_program(&staged, &output)
    };
    interruptible(py, "compile", work)?.map_err(|error| exception(py, &error))
}
