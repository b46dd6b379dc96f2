//! A model of models/ opened as a Session: its batch gets Buckets, its other dims the sizes of the example.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use precast::{
    BucketPolicy, DimBind, DimBinds, Form, Model, ModelSession, OpenOptions, ProgramCache, RunnerOptions,
    SessionOptions,
};
use serde_json::Value;

use crate::inputs;
use crate::manifest::ModelEntry;

/// Threads of a run.
pub const THREADS: usize = 2;
/// Name of the batch dim of models that have no name for it.
const BATCH: &str = "batch";

/// How a model is opened, apart from its Session.
pub fn open_options(entry: &ModelEntry, model: &Model, buckets: BucketPolicy) -> Result<OpenOptions> {
    let binds = batch_binds(entry);
    let mut options = OpenOptions {
        runner: RunnerOptions { threads: THREADS, ..RunnerOptions::default() },
        buckets,
        ..OpenOptions::default()
    };
    let declared = binds.bound(&model.inputs()?)?;
    let first = declared.first().and_then(|input| input.dims.as_ref()?.first()?.as_symbol());
    let batch = first.context("axis 0 of the first input is not a dim by itself")?;
    for (input, info) in entry.inputs.iter().zip(&declared) {
        let dims = info.dims.iter().flatten().zip(&input.example);
        let others = dims.filter_map(|(dim, &size)| Some((dim.as_symbol().filter(|symbol| *symbol != batch)?, size)));
        options.dims.extend(others.map(|(symbol, size)| (symbol.as_str().to_string(), size as i64)));
    }
    options.binds = binds;
    Ok(options)
}

/// A model's Session, and the form that its inputs choose.
pub fn open(
    entry: &ModelEntry,
    model: &Model,
    buckets: BucketPolicy,
    session: SessionOptions,
    cache: &Arc<ProgramCache>,
) -> Result<(ModelSession, Arc<Form>)> {
    let options = OpenOptions { session, ..open_options(entry, model, buckets)? };
    let opened = ModelSession::open_on(model, &options, cache.clone())?;
    let form = opened.form(&inputs::make(entry, 1)?)?;
    Ok((opened, form))
}

/// A cache in a folder.
pub fn cache_in(folder: &Path) -> Result<Arc<ProgramCache>> {
    Ok(Arc::new(ProgramCache::open(precast::CacheOptions::new(folder))?))
}

/// Binds of the axes that are the batch in models that do not say so by a name.
fn batch_binds(entry: &ModelEntry) -> DimBinds {
    let is_named = entry.inputs.first().and_then(|input| input.shape.first()).is_some_and(Value::is_string);
    if is_named {
        return DimBinds::default();
    }
    let mut binds = Vec::new();
    for input in &entry.inputs {
        for (axis, (declared, &example)) in input.shape.iter().zip(&input.example).enumerate() {
            if example == 1 && (declared.is_null() || declared.as_i64() == Some(-1)) {
                binds.push(DimBind { input: Some(input.name.clone()), axis, symbol: BATCH.to_string() });
            }
        }
    }
    DimBinds(binds)
}
