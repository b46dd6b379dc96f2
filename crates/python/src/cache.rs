//! A folder of compiled Programs: what it holds, whether it is whole, making it smaller, sharing it.

use std::path::{Path, PathBuf};

use precast::{CacheError, CacheMode, CacheOptions, Error, GcOptions, ProgramCache, RemoteOptions, program_records};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::exceptions::{exception, usage};
use crate::interruptible::interruptible;
use crate::session::read_model;
use crate::settings::{read_settings, store_url};

/// Opens a cache that exists: looking at a folder must not make one.
fn open(py: Python<'_>, folder: &Path, mode: CacheMode, remote: Option<RemoteOptions>) -> PyResult<ProgramCache> {
    if !folder.is_dir() {
        return Err(usage(py, &format!("there is no folder '{}'", folder.display())));
    }
    let options = CacheOptions { mode, remote, ..CacheOptions::new(folder) };
    ProgramCache::open(options).map_err(raised(py))
}

fn raised(py: Python<'_>) -> impl Fn(CacheError) -> PyErr {
    move |error| exception(py, &Error::from(error))
}

/// Programs of a cache, as dicts.
#[pyfunction]
pub fn cache_ls(py: Python<'_>, folder: PathBuf) -> PyResult<Bound<'_, PyList>> {
    let entries = open(py, &folder, CacheMode::ReadOnly, None)?.ls().map_err(raised(py))?;
    let list = PyList::empty(py);
    for entry in entries {
        let row = PyDict::new(py);
        row.set_item("key", entry.key.to_string())?;
        row.set_item("bucket", entry.record.bucket.to_string())?;
        row.set_item("target", entry.record.target.to_string())?;
        row.set_item("program_bytes", entry.program_bytes)?;
        row.set_item("weights_bytes", entry.weights_bytes)?;
        row.set_item("compile_seconds", entry.compile_time.map(|time| time.as_secs_f64()))?;
        row.set_item("pinned", entry.is_pinned)?;
        list.append(row)?;
    }
    Ok(list)
}

/// Files of a cache that are damaged, as pairs of a name and what is wrong.
#[pyfunction]
pub fn cache_verify(py: Python<'_>, folder: PathBuf) -> PyResult<Vec<(String, String)>> {
    let cache = open(py, &folder, CacheMode::ReadOnly, None)?;
    let found = interruptible(py, "verify", move || cache.verify())?.map_err(raised(py))?;
    Ok(found.problems.iter().map(|problem| (problem.name.clone(), problem.miss.to_string())).collect())
}

/// Removes what was used longest ago until a cache takes at most so many bytes. Gives the names of the files.
#[pyfunction]
pub fn cache_gc(py: Python<'_>, folder: PathBuf, max_bytes: u64, apply: bool) -> PyResult<(Vec<String>, u64)> {
    let cache = open(py, &folder, CacheMode::ReadWrite, None)?;
    let options = GcOptions { max_bytes, is_dry_run: !apply, ..cache.gc_options() };
    let done = interruptible(py, "gc", move || cache.gc(&options))?.map_err(raised(py))?;
    Ok((done.removed.iter().map(|removed| removed.name.clone()).collect(), done.freed_bytes))
}

/// Copies what the other side does not have between a folder and a store: to the store where `is_push` says so. Gives the
/// number of Programs.
#[pyfunction]
pub fn cache_transfer(
    py: Python<'_>,
    folder: PathBuf,
    url: &str,
    options: Vec<(String, String)>,
    is_push: bool,
) -> PyResult<usize> {
    let remote = RemoteOptions { options, ..RemoteOptions::new(store_url(py, url)?) };
    let mode = if is_push { CacheMode::ReadOnly } else { CacheMode::ReadWrite };
    let cache = open(py, &folder, mode, Some(remote))?;
    let moved = interruptible(py, "transfer", move || if is_push { cache.push() } else { cache.pull() })?;
    Ok(moved.map_err(raised(py))?.programs)
}

/// For every Bucket of a model: whether a cache has its Program, and what misses.
#[pyfunction]
pub fn cache_why<'py>(
    py: Python<'py>,
    path_or_bytes: &Bound<'py, PyAny>,
    device: &str,
    settings: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyList>> {
    let settings = read_settings(py, Some(settings))?;
    let model = read_model(py, path_or_bytes)?;
    let mut options = settings.options;
    options.runner.device = precast::device_name::resolve_device(device).map_err(|error| exception(py, &error))?;
    let cache = settings.cache;
    let work = move || {
        let records = program_records(&model, &options, &cache.tuning())?;
        let explained = records.iter().map(|record| (record.bucket.to_string(), cache.why(record)));
        Ok::<_, Error>(explained.collect::<Vec<_>>())
    };
    let list = PyList::empty(py);
    for (bucket, explanation) in interruptible(py, "why", work)?.map_err(|error| exception(py, &error))? {
        let row = PyDict::new(py);
        row.set_item("bucket", bucket)?;
        row.set_item("key", explanation.key.to_string())?;
        row.set_item("hit", explanation.miss.is_none())?;
        row.set_item("miss", explanation.miss.as_ref().map(|miss| miss.class()))?;
        row.set_item("message", explanation.miss.as_ref().map(ToString::to_string))?;
        let differing = explanation.nearest.map(|nearest| {
            let field = |diff: &precast::FieldDiff| (diff.field.to_string(), diff.want.clone(), diff.have.clone());
            nearest.differing.iter().map(field).collect::<Vec<_>>()
        });
        row.set_item("differs", differing.unwrap_or_default())?;
        list.append(row)?;
    }
    Ok(list)
}
