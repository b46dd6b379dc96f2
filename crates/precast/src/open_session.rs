//! A model as a Session on the CPU: the symbolic Graph, the dim of the batch with its Buckets, and a cache.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use precast_cache::{CacheOptions, KeyRecord, Mode, ProgramCache};
use precast_cpu::{CpuDevice, CpuTarget};
use precast_ir::Graph;
use precast_onnx::ImportOptions;
use precast_passes::cut_segments::{Segment, cut_segments};
use precast_passes::{CANONICAL, run_passes};
use precast_session::{BucketPolicy, DimOptions, OnMiss, RunReport, Session, SessionOptions};
use precast_tensor::{Dim, Tensor};

use crate::error::Error;
use crate::model::Model;
use crate::runner::{Named, RunnerOptions};
use crate::suggestion::listed;

/// How a model is opened as a Session.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Threads, instruction set and passes.
    pub runner: RunnerOptions,
    /// Numbers for dims that every request shares, by symbol.
    pub dims: BTreeMap<String, i64>,
    /// Which extents of the batch have Programs.
    pub buckets: BucketPolicy,
    /// What happens to a request whose Program is not loaded.
    pub on_miss: OnMiss,
    /// Folder of the cache; none keeps Programs in memory only.
    pub cache: Option<PathBuf>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            runner: RunnerOptions::default(),
            dims: BTreeMap::new(),
            buckets: BucketPolicy::Exact,
            on_miss: OnMiss::Wait,
            cache: None,
        }
    }
}

/// A model opened as a Session: inputs and outputs go by name.
pub struct ModelSession {
    graph: Graph,
    session: Session,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

impl ModelSession {
    /// Opens a model on a cache of its own. It must be one Program: no sizes or branches that only a run decides.
    pub fn open(model: &Model, options: &OpenOptions) -> Result<ModelSession, Error> {
        let cache_options = match &options.cache {
            Some(folder) => CacheOptions::new(folder),
            None => CacheOptions { mode: Mode::Off, ..CacheOptions::new("") },
        };
        ModelSession::open_on(model, options, Arc::new(ProgramCache::open(cache_options)?))
    }

    /// Opens a model on a cache that is open already, which the options do not name then.
    pub fn open_on(model: &Model, options: &OpenOptions, cache: Arc<ProgramCache>) -> Result<ModelSession, Error> {
        let (graph, session_options) = prepare(model, options)?;
        let session = open_session(&graph, session_options, options, cache)?;
        let inputs = graph.inputs().iter().map(|&input| graph.input_name(input).to_string()).collect();
        let outputs = graph.outputs().iter().map(|output| output.name.clone()).collect();
        Ok(ModelSession { graph, session, inputs, outputs })
    }

    /// The symbolic Graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The Session itself.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Outputs for these inputs, which may come in any order, and what was done.
    pub fn run(&self, inputs: &[(String, Tensor)]) -> Result<(Named, RunReport), Error> {
        if let Some((name, _)) = inputs.iter().find(|(name, _)| !self.inputs.contains(name)) {
            let names: Vec<&str> = self.inputs.iter().map(String::as_str).collect();
            return Err(Error::Request(format!("there is no input '{name}'; {}", listed(name, &names))));
        }
        let ordered = self.inputs.iter().map(|name| {
            let found = inputs.iter().find(|(given, _)| given == name);
            found
                .map(|(_, tensor)| tensor.clone())
                .ok_or_else(|| Error::Request(format!("input '{name}' is not given")))
        });
        let ordered: Vec<Tensor> = ordered.collect::<Result<_, Error>>()?;
        let (outputs, report) = self.session.run(&ordered)?;
        Ok((self.outputs.iter().cloned().zip(outputs).collect(), report))
    }
}

/// What the Program of each Bucket of a model is found by, in increasing order. Compiles and loads nothing.
pub fn program_records(model: &Model, options: &OpenOptions) -> Result<Vec<KeyRecord>, Error> {
    let (graph, session_options) = prepare(model, options)?;
    let memory = Arc::new(ProgramCache::open(CacheOptions::memory())?);
    let session_options = SessionOptions { opens_all: false, ..session_options };
    Ok(open_session(&graph, session_options, options, memory)?.records()?)
}

/// The symbolic Graph in canonical form, and what the options say about its dims.
fn prepare(model: &Model, options: &OpenOptions) -> Result<(Graph, SessionOptions), Error> {
    let dims = options.dims.iter().map(|(symbol, &number)| (symbol.clone(), Dim::from(number))).collect();
    let graph = model.graph(&ImportOptions { dims, ..ImportOptions::default() })?.graph;
    let graph = run_passes(&graph, CANONICAL, &options.runner.passes)?;
    refuse_host_nodes(&graph)?;
    let mut session_options = SessionOptions { on_miss: options.on_miss, ..SessionOptions::default() };
    if let (Some(symbol), true) = (batch_symbol(&graph), options.buckets != BucketPolicy::Exact) {
        session_options.dims.insert(symbol, DimOptions { buckets: options.buckets.clone() });
    }
    let passes = &options.runner.passes;
    session_options.target_options = BTreeMap::from([
        ("disable".to_string(), passes.disabled.join(",")),
        ("strict_numerics".to_string(), passes.strict_numerics.to_string()),
    ]);
    Ok((graph, session_options))
}

fn open_session(
    graph: &Graph,
    session_options: SessionOptions,
    options: &OpenOptions,
    cache: Arc<ProgramCache>,
) -> Result<Session, Error> {
    let runner = &options.runner;
    let target = Arc::new(CpuTarget::new(runner.isa, runner.threads, runner.passes.clone()));
    let device = Arc::new(CpuDevice::new(runner.threads));
    Ok(Session::open(graph, session_options, target, device, cache)?)
}

/// The symbol of the batch: that of axis 0 of the first input that has one.
pub fn batch_symbol(graph: &Graph) -> Option<String> {
    let first =
        |&input| graph.ty(input).dims.first().and_then(|dim| dim.as_symbol()).map(|symbol| symbol.as_str().into());
    graph.inputs().iter().find_map(first)
}

fn refuse_host_nodes(graph: &Graph) -> Result<(), Error> {
    let segments = cut_segments(graph)?;
    match segments.iter().find(|segment| matches!(segment, Segment::Host { .. })) {
        None => Ok(()),
        Some(_) => Err(Error::Request(
            "the model has sizes or branches that only a run decides; it is not one Program".to_string(),
        )),
    }
}
