//! The provider of one session: takes the whole graph or nothing, and compiles what it took.
//!
//! The runtime hides errors from the first two of its three questions (it logs them and goes on without the provider), so
//! what is wrong is remembered and told by the third: whoever asked for strictness gets the graph taken and then refused.

use std::ffi::{CString, c_char};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use precast::{CompiledModel, ImportError, ImportOptions, Model, ProgramCache, ProviderOptions};
use precast_onnx::proto::{GraphProto, ModelProto};
use prost::Message;

use crate::abi::{
    LogLevel, OrtEp, OrtEpGraphSupportInfo, OrtGraph, OrtKernelRegistry, OrtNode, OrtNodeComputeInfo,
    OrtNodeFusionOptions, OrtSessionOptions, OrtStatus,
};
use crate::captures::{Parts, hands_captures_over};
use crate::compute::{Computation, Places};
use crate::context_node::{make_context, own_context, read_context};
use crate::control_flow::Kernels;
use crate::engine::{Engine, is_laid_out_alike};
use crate::error::EpError;
use crate::factory::NAME;
use crate::graph::{
    FusedGraphs, Keep, ModelSource, graph_nodes, is_assigned, is_body, node_inputs, node_outputs, read_model,
    read_node_head,
};
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
    setup: Result<Arc<Setup>, String>,
    judged: Mutex<Option<Judged>>,
    /// Why a graph that was taken all the same cannot be compiled.
    refusal: Mutex<Option<String>>,
    /// Whether the graph that was taken last is the body of a node.
    is_in_body: AtomicBool,
    /// Bodies that were fused, until they are compiled or the graph around them is fused too.
    bodies: Arc<Mutex<FusedGraphs>>,
    /// For nodes that the runtime runs; none where it need not.
    kernels: Option<Kernels>,
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
    verdict: Result<Parts, String>,
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
        let kernels = (!hands_captures_over(log.runtime)).then(|| Kernels::new(log.runtime)).transpose()?;
        let table = OrtEp {
            version: log.runtime.version,
            get_name: Some(get_name),
            get_capability: Some(get_capability),
            compile: Some(compile),
            release_node_compute_infos: Some(release_node_compute_infos),
            unused_5_to_11: [None; 7],
            get_compiled_model_compatibility_info: Some(get_compiled_model_compatibility_info),
            get_kernel_registry: kernels.is_some().then_some(get_kernel_registry),
            is_concurrent_run_supported: Some(is_concurrent_run_supported),
            unused_15_to_25: [None; 11],
        };
        Ok(Box::into_raw(Box::new(Provider {
            table,
            log,
            setup: setup.map(Arc::new),
            judged: Mutex::default(),
            refusal: Mutex::default(),
            is_in_body: AtomicBool::new(false),
            bodies: Arc::default(),
            kernels,
            compiled_for: Mutex::default(),
        }))
        .cast())
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
        // Asked a second time, the runtime shows what it has fused.
        if nodes.first().map_or(Ok(true), |&node| is_assigned(runtime, node))? {
            return Ok(());
        }
        let is_body = is_body(runtime, graph)?;
        self.is_in_body.store(is_body, Ordering::Relaxed);
        // Bodies are taken with the node that they belong to, where that can be.
        if is_body && !self.cuts_graphs() {
            return Ok(());
        }
        let mut has_contexts = false;
        for &node in &nodes {
            if own_context(runtime, node)?.is_some() {
                has_contexts = true;
                self.take(support, &[node])?;
            }
        }
        if has_contexts {
            return Ok(());
        }
        let parts = if is_body { self.judge(graph)?.ok() } else { self.parts_taken(graph, nodes.len())? };
        let Some(parts) = parts else { return Ok(()) };
        for group in &parts.groups {
            self.take(support, &group.iter().map(|&place| nodes[place]).collect::<Vec<_>>())?;
        }
        for &place in &parts.kept {
            // SAFETY: the node is one of the graph that the support is for.
            runtime.check(unsafe { runtime.ep.add_single_node(support, nodes[place]) })?;
        }
        Ok(())
    }

    fn take(&self, support: *mut OrtEpGraphSupportInfo, nodes: &[*const OrtNode]) -> Result<(), EpError> {
        let runtime = self.runtime();
        let options = OrtNodeFusionOptions { version: runtime.version, drops_constant_initializers: true };
        // SAFETY: the nodes are those of the graph that the support is for.
        let status = unsafe { runtime.ep.add_nodes_to_fuse(support, nodes.as_ptr(), nodes.len(), &options) };
        runtime.check(status)
    }

    /// Whether nodes with bodies may be left to the runtime. What is saved compiled is whole.
    fn cuts_graphs(&self) -> bool {
        let is_saved = self.setup.as_ref().is_ok_and(|setup| setup.options.context.is_enabled);
        self.kernels.is_some() && !is_saved
    }

    /// The parts of a model that are taken; none where it is not. One that cannot be compiled is, where the user should be
    /// told by an error.
    fn parts_taken(&self, graph: *const OrtGraph, nodes: usize) -> Result<Option<Parts>, EpError> {
        let Ok(setup) = &self.setup else { return Ok(Some(Parts::whole(nodes))) };
        let verdict = self.judge(graph)?;
        *locked(&self.refusal) = verdict.as_ref().err().cloned();
        let reason = match verdict {
            Ok(parts) => return Ok(Some(parts)),
            Err(reason) => reason,
        };
        if let Some(report) = &setup.options.report {
            write_report(report, &reason)?;
        }
        let first = reason.lines().next().unwrap_or_default();
        let more = reason.lines().count().saturating_sub(1);
        let more = if more == 0 { String::new() } else { format!(" ({more} more lines: report=FILE, or strict=1)") };
        self.log.write(LogLevel::Warning, &format!("takes none of {nodes} nodes: {first}{more}"));
        Ok(setup.options.is_strict.then(|| Parts::whole(nodes)))
    }

    /// The parts in which a graph can be compiled, or why it cannot.
    fn judge(&self, graph: *const OrtGraph) -> Result<Result<Parts, String>, EpError> {
        // The model and what is imported of it end here, before the bytes that they borrow may go.
        let read = read_model(self.runtime(), graph, &Keep::WhileReading, &locked(&self.bodies));
        let message = match read {
            Ok(read) => read.message,
            Err(EpError::Other(reason)) => return Ok(Err(reason)),
            Err(error) => return Err(error),
        };
        let skeleton = skeleton(&message);
        let mut judged = locked(&self.judged);
        if let Some(known) = judged.as_ref().filter(|known| known.skeleton == skeleton) {
            return Ok(known.verdict.clone());
        }
        let verdict = self.parts_of(&message).and_then(|parts| {
            check_model(&Model::from_message(message)?)?;
            Ok(parts)
        });
        let verdict = verdict.map_err(|error| match error {
            EpError::Other(reason) => reason,
            EpError::Library(error) => error.to_string(),
            other => other.to_string(),
        });
        *judged = Some(Judged { skeleton, verdict: verdict.clone() });
        Ok(verdict)
    }

    fn parts_of(&self, message: &ModelProto) -> Result<Parts, EpError> {
        let graph = message.graph.as_ref().ok_or_else(|| EpError::other("a model without a graph"))?;
        if self.cuts_graphs() {
            return Parts::of(graph);
        }
        if !hands_captures_over(self.runtime()) {
            Parts::check_whole(graph)?;
        }
        Ok(Parts::whole(graph.node.len()))
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
        if let Some(reason) = &*locked(&self.refusal) {
            return Err(EpError::other(reason));
        }
        let message = self.take_message(graph)?;
        if self.is_in_body.load(Ordering::Relaxed) {
            return Ok((self.computation_of_body(setup, message, fused)?, null_mut()));
        }
        let engine = setup.open(self.log, Model::from_message(message)?)?;
        let node = match setup.options.context.is_enabled {
            true => self.save(graph, fused, &engine.compiled()?, setup)?,
            false => null_mut(),
        };
        Ok((self.computation(engine, fused)?, node))
    }

    /// The message of a graph that is fused, for as long as it is needed. Bodies inside it are now part of it.
    fn take_message(&self, graph: *const OrtGraph) -> Result<ModelProto, EpError> {
        let source = ModelSource::of(self.runtime(), graph)?;
        let mut bodies = locked(&self.bodies);
        let read = read_model(self.runtime(), graph, &Keep::Always(&source), &bodies)?;
        for name in &read.fused {
            bodies.remove(name);
        }
        Ok(read.message)
    }

    /// What runs a body. The runtime asks for bodies before it asks for what is around them, and the body is compiled
    /// only if it is still there when the session is made.
    fn computation_of_body(
        &self,
        setup: &Arc<Setup>,
        message: ModelProto,
        fused: *const OrtNode,
    ) -> Result<*mut OrtNodeComputeInfo, EpError> {
        let model = Model::from_message(message.clone())?;
        let places = self.places(&model.input_names(), &model.outputs(), fused)?;
        let name = read_node_head(self.runtime(), fused)?.name;
        locked(&self.bodies).insert(name.clone(), message);
        let (bodies, setup, log) = (self.bodies.clone(), setup.clone(), self.log);
        let open = move || {
            let message = locked(&bodies).remove(&name);
            let message = message.ok_or_else(|| EpError::other(format!("the body '{name}' was fused elsewhere")))?;
            setup.open(log, Model::from_message(message)?)
        };
        Ok(Computation::create_later(self.runtime(), Box::new(open), places))
    }

    fn save(
        &self,
        graph: *const OrtGraph,
        fused: *const OrtNode,
        compiled: &CompiledModel,
        setup: &Setup,
    ) -> Result<*mut OrtNode, EpError> {
        let compiled_for = c_text(&compiled.description()?);
        *locked(&self.compiled_for) = compiled_for;
        make_context(self.runtime(), graph, fused, compiled, &setup.options.context)
    }

    /// What runs a fused node.
    fn computation(&self, engine: Engine, fused: *const OrtNode) -> Result<*mut OrtNodeComputeInfo, EpError> {
        let places = self.places(engine.inputs(), engine.outputs(), fused)?;
        Ok(Computation::create(self.runtime(), engine, places))
    }

    /// Where names stand among those of a fused node, which has an order of its own.
    fn places(&self, inputs: &[String], outputs: &[String], fused: *const OrtNode) -> Result<Places, EpError> {
        let runtime = self.runtime();
        Ok(Places {
            inputs: places("input", inputs, &node_inputs(runtime, fused)?)?,
            outputs: places("output", outputs, &node_outputs(runtime, fused)?)?,
        })
    }
}

impl Setup {
    fn new(options: ProviderOptions) -> Result<Setup, String> {
        let cache = ProgramCache::open(options.cache.clone()).map_err(|error| error.to_string())?;
        Ok(Setup { options, cache: Arc::new(cache) })
    }

    /// Opens a model: its Buckets are loaded or compiled as the options say.
    fn open(&self, log: Log, model: Model) -> Result<Engine, EpError> {
        let options = self.options.open_options(&model)?;
        let engine = Engine::open(model, options, self.cache.clone())?;
        if let Some(reason) = engine.is_exact_because() {
            log.write(LogLevel::Info, &format!("each shape is compiled by itself: {reason}"));
        }
        Ok(engine)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All of a model that decides how it is imported, as bytes.
fn skeleton(message: &ModelProto) -> Vec<u8> {
    let mut message = message.clone();
    message.graph.iter_mut().for_each(drop_data);
    message.encode_to_vec()
}

fn drop_data(graph: &mut GraphProto) {
    for tensor in &mut graph.initializer {
        tensor.raw_data.take_if(|bytes| bytes.len() > DECIDING_BYTES_MAX);
    }
    let bodies =
        graph.node.iter_mut().flat_map(|node| &mut node.attribute).filter_map(|attribute| attribute.g.as_mut());
    bodies.for_each(|body| drop_data(body));
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

unsafe extern "C" fn get_kernel_registry(ep: *mut OrtEp, registry: *mut *const OrtKernelRegistry) -> *mut OrtStatus {
    // SAFETY: the runtime hands back a provider that lives.
    let provider = unsafe { Provider::of(ep) };
    let found = provider.kernels.as_ref().map_or(std::ptr::null(), Kernels::registry);
    // SAFETY: the place is ours to write.
    unsafe { *registry = found };
    null_mut()
}

/// The text stays until another model is saved; the runtime copies it at once.
unsafe extern "C" fn get_compiled_model_compatibility_info(ep: *mut OrtEp, _graph: *const OrtGraph) -> *const c_char {
    // SAFETY: the runtime hands back a provider that lives.
    let provider = unsafe { Provider::of(ep) };
    locked(&provider.compiled_for).as_ptr()
}

unsafe extern "C" fn is_concurrent_run_supported(_ep: *mut OrtEp, is_supported: *mut bool) -> *mut OrtStatus {
    // SAFETY: the place is ours to write.
    unsafe { *is_supported = true };
    null_mut()
}
