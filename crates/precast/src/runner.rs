//! Runs a model. Each set of input shapes is imported and compiled once and kept.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use precast_cache::{CacheOptions, ProgramCache};
use precast_cpu::step::Tactic;
use precast_cpu::{Isa, TuneOptions};
use precast_gpu::{CaptureLimits, CaptureOptions};
use precast_ir::Graph;
use precast_ir::eval::eval_graph;
use precast_onnx::import::{ImportError, ImportOptions, Imported, Structure};
use precast_passes::{PassOptions, PassReport};
use precast_program::{Bucket, DeviceContext, DeviceRun, LoadedProgram, MemoryStore, Program};
use precast_session::{ContextPool, OutputBuffer, ReplayCheck, check_replay};
use precast_tensor::{DType, Dim, Tensor};

use crate::device_name::DeviceName;
use crate::error::Error;
use crate::graph_runner::{GraphRunner, Shared};
use crate::model::Model;
use crate::open_device::open_device;
use crate::suggestion::listed;
use crate::tuning::Tuning;
use crate::value::Value;

/// How a device captures Programs that run often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captures {
    /// Whether it does at all.
    pub is_on: bool,
    /// Bytes of the device that all captures may take.
    pub max_bytes: u64,
    /// Graphs that may be kept.
    pub max_graphs: usize,
}

impl Default for Captures {
    fn default() -> Captures {
        let CaptureLimits { max_bytes, max_graphs } = CaptureLimits::default();
        Captures { is_on: true, max_bytes, max_graphs }
    }
}

impl Captures {
    /// The same, as the device takes it.
    pub(crate) fn options(self) -> CaptureOptions {
        let Captures { is_on, max_bytes, max_graphs } = self;
        CaptureOptions { is_on, limits: CaptureLimits { max_bytes, max_graphs }, ..CaptureOptions::default() }
    }
}

/// How a model is compiled and run.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// Threads of a run; the number of cores unless set.
    pub threads: usize,
    /// Instruction set; what this CPU has unless set.
    pub isa: Isa,
    /// Controls of the passes.
    pub passes: PassOptions,
    /// Whether tactics are measured before compiling; not unless set.
    pub tune: TuneOptions,
    /// Where it runs; the CPU unless set.
    pub device: DeviceName,
    /// Further devices like that one, for Sessions, which compile once and spread requests over all. Whatever runs one request
    /// at a time runs on the first.
    pub more_devices: Vec<DeviceName>,
    /// A node that the device has no kernel for is an error, instead of running on the host.
    pub is_device_strict: bool,
    /// How a device captures Programs that run often, where it can.
    pub captures: Captures,
    /// Whether past keys and values are buffers with room left that present ones are written into
    /// (`ImportOptions::shares_caches`).
    pub shares_caches: bool,
}

impl Default for RunnerOptions {
    fn default() -> RunnerOptions {
        let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
        RunnerOptions {
            threads,
            isa: Isa::detect(),
            passes: PassOptions::default(),
            tune: TuneOptions::default(),
            device: DeviceName::CPU,
            more_devices: Vec::new(),
            is_device_strict: false,
            captures: Captures::default(),
            shares_caches: false,
        }
    }
}

/// Named tensors, in order.
pub type Named = Vec<(String, Tensor)>;

/// The inputs of one run as tensors.
struct Request<'a> {
    tensors: &'a [(String, Tensor)],
    /// How inputs lie in the tensors that are no tensors of numbers themselves.
    structures: BTreeMap<String, Structure>,
}

impl<'a> Request<'a> {
    /// Tensors of numbers, each an input.
    fn plain(tensors: &'a [(String, Tensor)]) -> Request<'a> {
        Request { tensors, structures: BTreeMap::new() }
    }
}

/// What distinguishes one compiled form of a model from another.
#[derive(Clone, PartialEq, Eq, Hash)]
struct RequestKey {
    inputs: Vec<(String, DType, Vec<usize>)>,
    structures: BTreeMap<String, Structure>,
    frozen: Vec<(String, String)>,
}

/// Runs a model.
pub struct Runner {
    model: Model,
    shared: Arc<Shared>,
    /// Inputs whose values decide the form of the Graph; learned from the model.
    frozen: Mutex<BTreeSet<String>>,
    prepared: Mutex<HashMap<RequestKey, Arc<Prepared>>>,
    shares_caches: bool,
}

/// A model for one set of shapes.
struct Prepared {
    runner: GraphRunner,
    /// Positions in the request of the Graph's inputs.
    inputs: Vec<usize>,
    /// How the model's outputs lie in the Graph's.
    outputs: Vec<(String, Structure)>,
}

/// Forms of a model that are kept compiled; beyond this the set is dropped and begun again.
const PREPARED_KEPT: usize = 64;

impl Runner {
    /// A runner of a model.
    pub fn new(model: Model, options: RunnerOptions) -> Result<Runner, Error> {
        let memory = ProgramCache::open(CacheOptions::memory()).expect("a cache in memory has no root to refuse");
        Runner::with_tuning_of(model, options, Arc::new(memory))
    }

    /// A runner whose Programs rest on the measured tactics of a cache, where also those go that it measures itself.
    pub fn with_tuning_of(model: Model, options: RunnerOptions, cache: Arc<ProgramCache>) -> Result<Runner, Error> {
        let opened = open_device(&options, &cache)?;
        let tuning = Tuning::new(options.tune, opened.cpu, cache);
        let shared = Shared { target: opened.target, device: opened.device, store: MemoryStore::default(), tuning };
        Ok(Runner {
            model,
            shared: Arc::new(shared),
            frozen: Mutex::default(),
            prepared: Mutex::default(),
            shares_caches: options.shares_caches,
        })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Outputs for these inputs, which may come in any order.
    pub fn run(&self, inputs: &[(String, Tensor)]) -> Result<Named, Error> {
        let prepared = self.prepare(&Request::plain(inputs))?;
        let outputs = prepared.runner.run(&arguments(inputs, &prepared.inputs))?;
        Ok(self.model.outputs().into_iter().zip(outputs).collect())
    }

    /// Outputs for these inputs by reference evaluation.
    pub fn run_reference(&self, inputs: &[(String, Tensor)]) -> Result<Named, Error> {
        let (graph, positions) = self.graph(inputs)?;
        let outputs = eval_graph(&graph, &arguments(inputs, &positions))?;
        Ok(self.model.outputs().into_iter().zip(outputs).collect())
    }

    /// Outputs of any kind for inputs of any kind. Strings and the lengths of sequences decide the form of the model, so
    /// each set of texts is compiled by itself.
    pub fn run_values(&self, inputs: &[(String, Value)]) -> Result<Vec<(String, Value)>, Error> {
        let mut tensors = Vec::new();
        let structures = self.take_apart(inputs, &mut tensors)?;
        let prepared = self.prepare(&Request { tensors: &tensors, structures })?;
        let outputs = prepared.runner.run(&arguments(&tensors, &prepared.inputs))?;
        put_together(&prepared.outputs, outputs)
    }

    /// `run_values` by reference evaluation.
    pub fn run_reference_values(&self, inputs: &[(String, Value)]) -> Result<Vec<(String, Value)>, Error> {
        let mut tensors = Vec::new();
        let structures = self.take_apart(inputs, &mut tensors)?;
        let (imported, positions) = self.import(&Request { tensors: &tensors, structures })?;
        let outputs = eval_graph(&imported.graph, &arguments(&tensors, &positions))?;
        put_together(&imported.outputs, outputs)
    }

    /// The tensors of inputs of any kind, each of which must be an input of the model.
    fn take_apart(
        &self,
        inputs: &[(String, Value)],
        tensors: &mut Named,
    ) -> Result<BTreeMap<String, Structure>, Error> {
        let declared = self.model.input_names();
        let mut structures = BTreeMap::new();
        for (name, value) in inputs {
            if !declared.contains(name) {
                let names: Vec<&str> = declared.iter().map(String::as_str).collect();
                return Err(Error::Request(format!("there is no input '{name}'; {}", listed(name, &names))));
            }
            let structure = value.take_apart(name, tensors)?;
            if structures.insert(name.clone(), structure).is_some() {
                return Err(Error::Request(format!("input '{name}' is given twice")));
            }
        }
        match declared.iter().find(|name| !structures.contains_key(*name)) {
            Some(missing) => Err(Error::Request(format!("input '{missing}' is not given"))),
            None => Ok(structures),
        }
    }

    /// The model compiled for these inputs, if it is one Program: repeated runs then cost nothing but the model.
    pub fn ready(&self, inputs: &[(String, Tensor)]) -> Result<Option<Ready>, Error> {
        let prepared = self.prepare(&Request::plain(inputs))?;
        let Some(part) = prepared.runner.whole()? else { return Ok(None) };
        let inputs = prepared.inputs.iter().map(|&position| inputs[position].1.aligned()).collect();
        Ok(Some(Ready::new(part, inputs)))
    }

    /// The Program for these inputs, if the model is one Program. Nothing is loaded, so that the Program may be one for
    /// another machine.
    pub fn compile(&self, inputs: &[(String, Tensor)], bucket: &Bucket) -> Result<Option<Program>, Error> {
        let (graph, _) = self.graph(inputs)?;
        GraphRunner::new(self.shared.clone(), &graph)?.compile_whole(bucket)
    }

    /// The store that holds the constants of every compiled Program.
    pub fn store(&self) -> &MemoryStore {
        &self.shared.store
    }

    /// The Graph that these inputs run on, before the target's passes, and which input each of its inputs is.
    pub fn graph(&self, inputs: &[(String, Tensor)]) -> Result<(Graph, Vec<usize>), Error> {
        let (imported, positions) = self.import(&Request::plain(inputs))?;
        Ok((imported.graph, positions))
    }

    fn import(&self, request: &Request<'_>) -> Result<(Imported, Vec<usize>), Error> {
        if request.structures.is_empty() {
            self.check_inputs(request.tensors)?;
        }
        loop {
            let frozen = self.frozen.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
            let mut options = ImportOptions {
                structures: request.structures.clone(),
                shares_caches: self.shares_caches,
                ..ImportOptions::default()
            };
            for (name, tensor) in request.tensors {
                if frozen.contains(name) {
                    options.freeze.insert(name.clone(), tensor.clone());
                }
                let dims = tensor.shape().iter().map(|&size| Dim::from(size)).collect();
                options.shapes.insert(name.clone(), dims);
            }
            let imported = match request.structures.is_empty() {
                true => self.model.graph(&options),
                false => self.model.structured_graph(&options),
            };
            match imported {
                Ok(imported) => {
                    let positions = positions(&imported.graph, request.tensors)?;
                    return Ok((imported, positions));
                }
                Err(Error::Import(ImportError::NeedsInputs { inputs, what })) => {
                    let mut known = self.frozen.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    let before = known.len();
                    known.extend(inputs.iter().cloned());
                    if known.len() == before {
                        return Err(Error::Import(ImportError::NeedsInputs { inputs, what }));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The Graph as the target optimises it for these inputs, if it is one Program.
    pub fn optimised(&self, inputs: &[(String, Tensor)]) -> Result<(Graph, Vec<usize>), Error> {
        let (graph, positions) = self.graph(inputs)?;
        Ok((self.shared.target.optimise(&graph)?, positions))
    }

    /// What each of the target's passes does to the Graph of these inputs, and what it leaves alone and why.
    pub fn explain_passes(&self, inputs: &[(String, Tensor)]) -> Result<Vec<PassReport>, Error> {
        let (graph, _) = self.graph(inputs)?;
        let mut reports = Vec::new();
        self.shared.target.optimise_with(&graph, &mut |report| reports.push(report))?;
        Ok(reports)
    }

    /// Runs a Graph that the target has optimised already, without its passes.
    pub(crate) fn run_optimised(&self, graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let program = self.shared.target.compile_optimised(graph, &Bucket::default(), &self.shared.store)?;
        let loaded = self.shared.device.load(&Arc::new(program), &self.shared.store)?;
        Ok(ContextPool::new(loaded, self.shared.device.clone()).run(inputs)?)
    }

    fn prepare(&self, request: &Request<'_>) -> Result<Arc<Prepared>, Error> {
        let key = self.key(request);
        if let Some(prepared) = self.prepared.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get(&key) {
            return Ok(prepared.clone());
        }
        let (imported, inputs) = self.import(request)?;
        let runner = GraphRunner::new(self.shared.clone(), &imported.graph)?;
        let prepared = Arc::new(Prepared { runner, inputs, outputs: imported.outputs });
        // Importing may have learned that another input decides the form.
        let key = self.key(request);
        let mut kept = self.prepared.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if kept.len() >= PREPARED_KEPT {
            kept.clear();
        }
        kept.insert(key, prepared.clone());
        Ok(prepared)
    }

    fn key(&self, request: &Request<'_>) -> RequestKey {
        let frozen = self.frozen.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let inputs = request.tensors.iter();
        RequestKey {
            inputs: inputs
                .clone()
                .map(|(name, tensor)| (name.clone(), tensor.dtype(), tensor.shape().to_vec()))
                .collect(),
            structures: request.structures.clone(),
            frozen: inputs
                .filter(|(name, _)| frozen.contains(name))
                .map(|(name, tensor)| (name.clone(), tensor.digest().to_string()))
                .collect(),
        }
    }

    /// Every input of the model is given once, nothing else is, and element types, ranks and fixed sizes fit.
    fn check_inputs(&self, inputs: &[(String, Tensor)]) -> Result<(), Error> {
        let declared = self.model.inputs()?;
        for (position, (name, tensor)) in inputs.iter().enumerate() {
            if inputs[..position].iter().any(|(other, _)| other == name) {
                return Err(Error::Request(format!("input '{name}' is given twice")));
            }
            let Some(info) = declared.iter().find(|info| info.name == *name) else {
                let names: Vec<&str> = declared.iter().map(|info| info.name.as_str()).collect();
                return Err(Error::Request(format!("there is no input '{name}'; {}", listed(name, &names))));
            };
            let fits = info.dtype == tensor.dtype()
                && info.dims.as_ref().is_none_or(|dims| {
                    dims.len() == tensor.rank()
                        && dims.iter().zip(tensor.shape()).all(|(dim, &size)| dim.as_usize().is_none_or(|n| n == size))
                });
            if !fits {
                let dims = info.dims.as_ref().map_or("[..]".to_string(), |dims| {
                    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
                    format!("[{}]", dims.join(","))
                });
                return Err(Error::Request(format!(
                    "input '{name}' is {}; the model expects {}{dims}",
                    tensor.type_(),
                    info.dtype.name()
                )));
            }
        }
        match declared.iter().find(|info| !inputs.iter().any(|(name, _)| *name == info.name)) {
            Some(missing) => Err(Error::Request(format!("input '{}' is not given", missing.name))),
            None => Ok(()),
        }
    }
}

/// For each input of the Graph its position among the tensors given, which have its element type.
fn positions(graph: &Graph, inputs: &[(String, Tensor)]) -> Result<Vec<usize>, Error> {
    let position = |input: precast_ir::ValueId| {
        let (name, dtype) = (graph.input_name(input), graph.ty(input).dtype);
        match inputs.iter().position(|(given, _)| given == name) {
            Some(position) if inputs[position].1.dtype() == dtype => Ok(position),
            Some(position) => {
                let given = inputs[position].1.type_();
                Err(Error::Request(format!("input '{name}' is {given}; the model expects {}", dtype.name())))
            }
            None => Err(Error::Request(format!("input '{name}' is not given"))),
        }
    };
    graph.inputs().iter().map(|&input| position(input)).collect()
}

/// The tensors at `positions`, in order.
fn arguments(inputs: &[(String, Tensor)], positions: &[usize]) -> Vec<Tensor> {
    positions.iter().map(|&position| inputs[position].1.clone()).collect()
}

/// The model's outputs of the Graph's.
fn put_together(structures: &[(String, Structure)], outputs: Vec<Tensor>) -> Result<Vec<(String, Value)>, Error> {
    let mut outputs = outputs.into_iter();
    let values = structures.iter().map(|(name, structure)| {
        let value = Value::put_together(structure, &mut outputs)?;
        Ok((name.clone(), value))
    });
    values.collect()
}

/// Time of one step of one run.
#[derive(Clone, Debug)]
pub struct StepTime {
    /// Kernel of the step.
    pub kernel: String,
    /// Why its tactic was chosen, where there is a choice.
    pub tactic: Option<String>,
    /// Source nodes.
    pub nodes: Vec<String>,
    /// How long it took.
    pub time: Duration,
}

/// A model compiled for one set of inputs, with its buffers: a run allocates nothing.
pub struct Ready {
    part: Arc<ContextPool>,
    context: Option<Box<dyn DeviceContext>>,
    inputs: Vec<Tensor>,
    outputs: Vec<OutputBuffer>,
    last: DeviceRun,
}

impl Ready {
    /// Buffers for runs on these inputs, which are in the Program's order and of its Types.
    pub(crate) fn new(part: Arc<ContextPool>, inputs: Vec<Tensor>) -> Ready {
        let ports = &part.program().outputs;
        let outputs = ports.iter().map(|port| OutputBuffer::new(port.bytes as usize)).collect();
        let context = Some(part.take());
        Ready { part, context, inputs, outputs, last: DeviceRun::default() }
    }

    /// The Program.
    pub fn program(&self) -> &Program {
        self.part.program()
    }

    /// Runs once.
    pub fn run(&mut self) -> Result<(), Error> {
        self.last =
            self.with_buffers(|context, program, inputs, outputs| Ok(context.run(program, inputs, outputs)?))?;
        Ok(())
    }

    /// How the device carried out the last run.
    pub fn last_run(&self) -> DeviceRun {
        self.last
    }

    /// Whether the Program gives the same bytes replayed from a capture as step by step, where the device captures.
    pub fn check_replay(&mut self) -> Result<ReplayCheck, Error> {
        self.with_buffers(|context, program, inputs, _| Ok(check_replay(context, program, inputs)?))
    }

    /// Runs once and gives the time of every step.
    pub fn run_timed(&mut self) -> Result<Vec<StepTime>, Error> {
        let times =
            self.with_buffers(|context, program, inputs, outputs| Ok(context.run_timed(program, inputs, outputs)?))?;
        let steps = self.program().steps.iter().zip(times);
        Ok(steps
            .map(|(step, time)| StepTime {
                kernel: step.kernel.clone(),
                tactic: Tactic::why_of(&step.parameters),
                nodes: step.provenance.clone(),
                time,
            })
            .collect())
    }

    fn with_buffers<T>(
        &mut self,
        run: impl FnOnce(&mut dyn DeviceContext, &dyn LoadedProgram, &[&[u8]], &mut [&mut [u8]]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let inputs: Vec<&[u8]> = self.inputs.iter().map(Tensor::as_bytes).collect();
        let mut outputs: Vec<&mut [u8]> = self.outputs.iter_mut().map(OutputBuffer::as_bytes_mut).collect();
        let context = self.context.as_mut().expect("a context is held until drop");
        run(context.as_mut(), self.part.loaded(), &inputs, &mut outputs)
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if let Some(context) = self.context.take() {
            self.part.give(context);
        }
    }
}
