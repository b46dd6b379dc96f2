//! The provider of one session: takes the whole graph or nothing, and compiles what it took.
//!
//! The runtime hides errors from the first two of its three questions (it logs them and goes on without the provider), so
//! what is wrong is remembered and told by the third: whoever asked for strictness gets the graph taken and then refused.

use std::ffi::{CString, c_char};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

use precast::{CompiledModel, ImportError, ImportOptions, Model, ProgramCache, ProviderOptions};
use prost::Message;

use crate::abi::{
    LogLevel, OrtEp, OrtEpGraphSupportInfo, OrtGraph, OrtNode, OrtNodeComputeInfo, OrtNodeFusionOptions,
    OrtSessionOptions, OrtStatus,
};
use crate::compute::Computation;
use crate::context_node::{make_context, own_context, read_context};
use crate::engine::{Engine, is_laid_out_alike};
use crate::error::EpError;
use crate::factory::NAME;
use crate::graph::{Keep, ModelSource, graph_nodes, is_body, node_inputs, node_outputs, read_model};
use crate::runtime::{Log, Runtime, c_text};
use crate::session_options::read_options;

/// Constants of up to this size decide how a graph is imported; larger ones are data.
const DECIDING_BYTES_MAX: usize = 1 << 10;

/// A provider. The table comes first, so that its address is the provider's.
#[repr(C)]
pub(crate) struct Provider {
    table: OrtEp,
    log: Log,
    /// How models are opened, or why none is.
    setup: Result<Setup, String>,
    judged: Mutex<Option<Judged>>,
    /// Why a graph that was taken all the same cannot be compiled.
    refusal: Mutex<Option<String>>,
    /// What the last compiled model that was saved depends on.
    compiled_for: Mutex<CString>,
}

/// Options that were understood, and what they name.
struct Setup {
    options: ProviderOptions,
    cache: Arc<ProgramCache>,
}

/// A graph that was judged: the runtime may ask several times about the same one.
struct Judged {
    skeleton: Vec<u8>,
    verdict: Result<(), String>,
}

impl Provider {
    /// A provider that the runtime owns until `release`.
    ///
    /// # Safety
    /// The options are those of a session.
    pub(crate) unsafe fn create(log: Log, options: *const OrtSessionOptions) -> Result<*mut OrtEp, EpError> {
        // SAFETY: the caller says so.
        let setup = match unsafe { read_options(log.runtime, options) }? {
            Ok(options) => Setup::new(options),
            Err(problems) => Err(format!("options that cannot be used:\n  {}", problems.join("\n  "))),
        };
        match &setup {
            Ok(setup) => {
                setup
                    .options
                    .notices
                    .iter()
                    .for_each(|notice| log.write(LogLevel::Warning, &format!("notice: {notice}")));
            }
            Err(problem) => log.write(LogLevel::Error, problem),
        }
        let table = OrtEp {
            version: log.runtime.version,
            get_name: Some(get_name),
            get_capability: Some(get_capability),
            compile: Some(compile),
            release_node_compute_infos: Some(release_node_compute_infos),
            unused_5_to_11: [None; 7],
            get_compiled_model_compatibility_info: Some(get_compiled_model_compatibility_info),
            unused_13: None,
            is_concurrent_run_supported: Some(is_concurrent_run_supported),
            unused_15_to_25: [None; 11],
        };
        let (judged, refusal, compiled_for) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Box::into_raw(Box::new(Provider { table, log, setup, judged, refusal, compiled_for })).cast())
    }

    /// Ends a provider.
    ///
    /// # Safety
    /// It came from `create` and is not used again.
    pub(crate) unsafe fn release(ep: *mut OrtEp) {
        if !ep.is_null() {
            // SAFETY: the caller says so.
            drop(unsafe { Box::from_raw(ep.cast::<Provider>()) });
        }
    }

    /// # Safety
    /// The table is that of a provider that lives.
    unsafe fn of<'a>(table: *const OrtEp) -> &'a Provider {
        // SAFETY: the table is the first field, and the caller says that the provider lives.
        unsafe { &*table.cast() }
    }

    fn runtime(&self) -> Runtime {
        self.log.runtime
    }

    /// Says which nodes are taken: those that hold compiled models of ours, or all of a graph that can be compiled.
    fn claim(&self, graph: *const OrtGraph, support: *mut OrtEpGraphSupportInfo) -> Result<(), EpError> {
        let runtime = self.runtime();
        let nodes = graph_nodes(runtime, graph)?;
        // Bodies are taken with the node that they belong to.
        if nodes.is_empty() || is_body(runtime, graph)? {
            return Ok(());
        }
        let mut has_contexts = false;
        for &node in &nodes {
            if own_context(runtime, node)?.is_some() {
                has_contexts = true;
                self.take(support, &[node])?;
            }
        }
        if has_contexts || !self.takes_whole(graph, nodes.len())? {
            return Ok(());
        }
        self.take(support, &nodes)
    }

    fn take(&self, support: *mut OrtEpGraphSupportInfo, nodes: &[*const OrtNode]) -> Result<(), EpError> {
        let runtime = self.runtime();
        let options = OrtNodeFusionOptions { version: runtime.version, drops_constant_initializers: true };
        // SAFETY: the nodes are those of the graph that the support is for.
        let status = unsafe { runtime.ep.add_nodes_to_fuse(support, nodes.as_ptr(), nodes.len(), &options) };
        runtime.check(status)
    }

    /// Whether a graph is taken. One that cannot be compiled is, where the user should be told by an error.
    fn takes_whole(&self, graph: *const OrtGraph, nodes: usize) -> Result<bool, EpError> {
        let Ok(setup) = &self.setup else { return Ok(true) };
        let verdict = self.judge(graph)?;
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = verdict.clone().err();
        let Err(reason) = verdict else { return Ok(true) };
        if let Some(report) = &setup.options.report {
            write_report(report, &reason)?;
        }
        let first = reason.lines().next().unwrap_or_default();
        let more = reason.lines().count().saturating_sub(1);
        let more = if more == 0 { String::new() } else { format!(" ({more} more lines: report=FILE, or strict=1)") };
        self.log.write(LogLevel::Warning, &format!("takes none of {nodes} nodes: {first}{more}"));
        Ok(setup.options.is_strict)
    }

    /// Whether a graph can be compiled, and why not.
    fn judge(&self, graph: *const OrtGraph) -> Result<Result<(), String>, EpError> {
        // The model and what is imported of it end here, before the bytes that they borrow may go.
        let message = match read_model(self.runtime(), graph, &Keep::WhileReading) {
            Ok(message) => message,
            Err(EpError::Other(reason)) => return Ok(Err(reason)),
            Err(error) => return Err(error),
        };
        let mut skeleton = message.clone();
        for tensor in skeleton.graph.iter_mut().flat_map(|graph| &mut graph.initializer) {
            tensor.raw_data.take_if(|bytes| bytes.len() > DECIDING_BYTES_MAX);
        }
        let skeleton = skeleton.encode_to_vec();
        let mut judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = judged.as_ref().filter(|known| known.skeleton == skeleton) {
            return Ok(known.verdict.clone());
        }
        let verdict =
            Model::from_message(message).and_then(|model| check_model(&model)).map_err(|error| error.to_string());
        *judged = Some(Judged { skeleton, verdict: verdict.clone() });
        Ok(verdict)
    }

    /// Compiles one graph; gives what runs it, and the node that holds it where it is saved.
    fn compile_graph(
        &self,
        graph: *const OrtGraph,
        fused: *const OrtNode,
    ) -> Result<(*mut OrtNodeComputeInfo, *mut OrtNode), EpError> {
        let setup = self.setup.as_ref().map_err(EpError::other)?;
        let runtime = self.runtime();
        if let [node] = graph_nodes(runtime, graph)?[..]
            && let Some(head) = own_context(runtime, node)?
        {
            let compiled = read_context(runtime, graph, &head, &setup.options.context)?;
            let engine = Engine::of_compiled(&compiled, &setup.options.open)?;
            return Ok((self.computation(engine, fused)?, null_mut()));
        }
        if let Some(reason) = &*self.refusal.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(EpError::other(reason));
        }
        let source = ModelSource::of(runtime, graph)?;
        let model = Model::from_message(read_model(runtime, graph, &Keep::Always(&source))?)?;
        let open = setup.options.open_options(&model)?;
        let engine = Engine::open(model, open, setup.cache.clone())?;
        if let Some(reason) = engine.is_exact_because() {
            self.log.write(LogLevel::Info, &format!("each shape is compiled by itself: {reason}"));
        }
        let node = match setup.options.context.is_enabled {
            true => self.save(graph, fused, &engine.compiled()?, setup)?,
            false => null_mut(),
        };
        Ok((self.computation(engine, fused)?, node))
    }

    fn save(
        &self,
        graph: *const OrtGraph,
        fused: *const OrtNode,
        compiled: &CompiledModel,
        setup: &Setup,
    ) -> Result<*mut OrtNode, EpError> {
        let compiled_for = c_text(&compiled.description()?);
        *self.compiled_for.lock().unwrap_or_else(PoisonError::into_inner) = compiled_for;
        make_context(self.runtime(), graph, fused, compiled, &setup.options.context)
    }

    /// What runs a fused node, whose inputs and outputs have an order of their own.
    fn computation(&self, engine: Engine, fused: *const OrtNode) -> Result<*mut OrtNodeComputeInfo, EpError> {
        let runtime = self.runtime();
        let inputs = places("input", engine.inputs(), &node_inputs(runtime, fused)?)?;
        let outputs = places("output", engine.outputs(), &node_outputs(runtime, fused)?)?;
        Ok(Computation::create(runtime, engine, inputs, outputs))
    }
}

impl Setup {
    fn new(options: ProviderOptions) -> Result<Setup, String> {
        let cache = ProgramCache::open(options.cache.clone()).map_err(|error| error.to_string())?;
        Ok(Setup { options, cache: Arc::new(cache) })
    }
}

/// Refuses a model that cannot be imported, or whose tensors lie in memory in another way than the runtime's.
fn check_model(model: &Model) -> Result<(), precast::Error> {
    if let Some(input) = model.inputs()?.into_iter().find(|input| !is_laid_out_alike(input.dtype)) {
        return Err(precast::Error::Request(format!(
            "input '{}' is {}, of which onnxruntime has several elements in a byte",
            input.name,
            input.dtype.name()
        )));
    }
    match model.graph(&ImportOptions::default()) {
        Ok(_) => Ok(()),
        // Requests have the values and the numbers.
        Err(precast::Error::Import(ImportError::NeedsInputs { .. } | ImportError::NeedsNumber { .. })) => Ok(()),
        Err(error) => Err(error),
    }
}

fn write_report(file: &Path, text: &str) -> Result<(), EpError> {
    let written = std::fs::write(file, format!("{text}\n"));
    written.map_err(|error| EpError::other(format!("cannot write the report '{}': {error}", file.display())))
}

/// Where names of the model stand among those of the fused node.
fn places(what: &str, names: &[String], fused: &[String]) -> Result<Vec<usize>, EpError> {
    let place = |name: &String| {
        let found = fused.iter().position(|other| other == name);
        found.ok_or_else(|| EpError::other(format!("the fused node does not have the {what} '{name}'")))
    };
    names.iter().map(place).collect()
}

unsafe extern "C" fn get_name(_ep: *const OrtEp) -> *const c_char {
    NAME.as_ptr()
}

unsafe extern "C" fn get_capability(
    ep: *mut OrtEp,
    graph: *const OrtGraph,
    support: *mut OrtEpGraphSupportInfo,
) -> *mut OrtStatus {
    // SAFETY: the runtime hands back a provider that lives.
    let provider = unsafe { Provider::of(ep) };
    provider.runtime().guard("GetCapability", || provider.claim(graph, support))
}

unsafe extern "C" fn compile(
    ep: *mut OrtEp,
    graphs: *const *const OrtGraph,
    fused: *const *const OrtNode,
    count: usize,
    infos: *mut *mut OrtNodeComputeInfo,
    context_nodes: *mut *mut OrtNode,
) -> *mut OrtStatus {
    // SAFETY: the runtime hands back a provider that lives.
    let provider = unsafe { Provider::of(ep) };
    provider.runtime().guard("Compile", || {
        for index in 0..count {
            // SAFETY: there are as many graphs as are said.
            let graph = unsafe { *graphs.add(index) };
            // SAFETY: and as many nodes.
            let node = unsafe { *fused.add(index) };
            let (info, context_node) = provider.compile_graph(graph, node)?;
            // SAFETY: and as many places to write; what is written is the runtime's to release, whatever follows.
            unsafe { *infos.add(index) = info };
            if !context_node.is_null() {
                // SAFETY: as above.
                unsafe { *context_nodes.add(index) = context_node };
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn release_node_compute_infos(ep: *mut OrtEp, infos: *mut *mut OrtNodeComputeInfo, count: usize) {
    // SAFETY: the runtime hands back a provider that lives.
    let runtime = unsafe { Provider::of(ep) }.runtime();
    let status = runtime.guard("ReleaseNodeComputeInfos", || {
        for index in 0..count {
            // SAFETY: there are as many as are said, each from `compile` and not used again.
            unsafe { Computation::release(std::mem::replace(&mut *infos.add(index), null_mut())) };
        }
        Ok(())
    });
    // There is nobody to tell that it failed.
    let _ = runtime.check(status);
}

/// The text stays until another model is saved; the runtime copies it at once.
unsafe extern "C" fn get_compiled_model_compatibility_info(ep: *mut OrtEp, _graph: *const OrtGraph) -> *const c_char {
    // SAFETY: the runtime hands back a provider that lives.
    let provider = unsafe { Provider::of(ep) };
    provider.compiled_for.lock().unwrap_or_else(PoisonError::into_inner).as_ptr()
}

unsafe extern "C" fn is_concurrent_run_supported(_ep: *mut OrtEp, is_supported: *mut bool) -> *mut OrtStatus {
    // SAFETY: the place is ours to write.
    unsafe { *is_supported = true };
    null_mut()
}
