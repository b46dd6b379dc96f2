//! A Session: a model on a device, with one Program a Bucket. `run` takes a request of any size: if the context has just
//! seen one like it, it runs at once (ultra-fast); if the Programs are loaded, it is bound to them (fast); otherwise the
//! on-miss chain decides (standard).

use std::sync::Arc;
use std::time::Instant;

use precast_cache::{KeyRecord, ProgramCache};
use precast_ir::Graph;
use precast_ir::eval::eval_graph;
use precast_program::{Bucket, Device, DeviceRun, Target, TargetDescription};
use precast_tensor::{DType, Tensor};

use crate::bind::Bind;
use crate::binding::Binding;
use crate::bring::{Bringer, Underway};
use crate::contexts::{Contexts, Taken};
use crate::error::SessionError;
use crate::interface::{GraphSource, Interface};
use crate::ladders::Ladders;
use crate::options::{OnMiss, SessionOptions, Startup};
use crate::programs::{Flight, Programs};
use crate::report::{Chunk, Chunks, Counters, Fit, Origin, Path, Reason, RunReport, Tier};
use crate::request::{Argument, InputForm, Unifier, is_aligned, is_aligned_for, tensors_of};
use crate::slots::Slots;
use crate::startup::ReadyCell;
use crate::submit::{Answer, Pending, Workers};
use crate::traffic::Traffic;

/// A model opened on a device. Shared by any number of threads.
pub struct Session {
    pub(crate) inner: Arc<Inner>,
    /// Dropped before `closing`: what was submitted is answered first.
    workers: Workers,
    /// Dropped for what that does.
    _closing: Closing,
}

/// Ends what the Session does in the background. Compiles that have not begun are given up; the others are waited for, so
/// that what is compiled is published.
struct Closing {
    inner: Arc<Inner>,
    starting: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.inner.bringer.underway.close();
        self.inner.ready.close();
        self.inner.programs.give_up();
        if let Some(thread) = self.starting.take() {
            let _ = thread.join();
        }
        self.inner.bringer.underway.wait();
    }
}

/// What a Session and its background threads share.
pub(crate) struct Inner {
    pub(crate) interface: Arc<Interface>,
    pub(crate) source: Arc<dyn GraphSource>,
    pub(crate) devices: Arc<[Arc<dyn Device>]>,
    pub(crate) cache: Arc<ProgramCache>,
    pub(crate) options: SessionOptions,
    pub(crate) bringer: Arc<Bringer>,
    pub(crate) unifier: Unifier,
    pub(crate) programs: Arc<Programs>,
    pub(crate) contexts: Contexts,
    pub(crate) counters: Arc<Counters>,
    pub(crate) traffic: Traffic,
    pub(crate) ready: ReadyCell,
    /// An input and axis whose size tells requests apart cheaply.
    form_place: Option<(usize, usize)>,
}

/// Where the bytes of a request lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residence {
    /// In the host's memory.
    Host,
    /// In a device's, where only the device reads them.
    Device,
}

/// What a request runs on.
pub(crate) enum Prepared {
    /// A Binding, how much had to be decided, and why.
    Bound(Arc<Binding>, Tier, Origin, Reason),
    /// Outputs that are there already.
    Answered(Vec<Tensor>, RunReport),
}

/// Element types and shapes of the outputs of what a request runs on.
fn forms_of(prepared: Prepared) -> Vec<(DType, Vec<usize>)> {
    match prepared {
        Prepared::Bound(binding, ..) => {
            binding.outputs.iter().map(|output| (output.dtype, output.shape.clone())).collect()
        }
        Prepared::Answered(tensors, _) => {
            tensors.iter().map(|tensor| (tensor.dtype(), tensor.shape().to_vec())).collect()
        }
    }
}

impl Session {
    /// Opens a model. By `options.startup` Buckets are loaded, and compiled where the cache does not have them. Dropping the
    /// Session gives up compiles that have not begun, and waits until what was compiled is published.
    pub fn open(
        interface: Interface,
        source: Arc<dyn GraphSource>,
        options: SessionOptions,
        target: Arc<dyn Target>,
        device: Arc<dyn Device>,
        cache: Arc<ProgramCache>,
    ) -> Result<Session, SessionError> {
        Session::open_on(interface, source, options, target, vec![device], cache)
    }

    /// Opens a model on several devices that the target compiles for: each Program is compiled once and loaded on every one.
    pub fn open_on(
        interface: Interface,
        source: Arc<dyn GraphSource>,
        options: SessionOptions,
        target: Arc<dyn Target>,
        devices: Vec<Arc<dyn Device>>,
        cache: Arc<ProgramCache>,
    ) -> Result<Session, SessionError> {
        if devices.is_empty() {
            return Err(SessionError::Options("a Session needs a device".to_string()));
        }
        let (begun, devices): (Instant, Arc<[Arc<dyn Device>]>) = (Instant::now(), devices.into());
        let (interface, counters) = (Arc::new(interface), Arc::new(Counters::default()));
        let traffic = Traffic::new(&interface, &cache);
        let ladders = traffic.fitted(Ladders::new(&interface, &options)?, &options);
        let bringer = Bringer {
            interface: interface.clone(),
            source: source.clone(),
            target,
            devices: devices.clone(),
            cache: cache.clone(),
            counters: counters.clone(),
            target_options: options.target_options.clone(),
            device_label: options.device_label.clone(),
            compiling: Slots::new(compiles_max(&options)),
            underway: Underway::default(),
        };
        let inner = Inner {
            unifier: Unifier::new(&interface),
            form_place: ladders.primary().and_then(|primary| place_of(&interface, primary)),
            programs: Arc::new(Programs::new(ladders, options.jobs, options.exact_programs_max)),
            contexts: Contexts::new(options.contexts, devices.clone(), options.contexts_wait, options.waiting_max),
            bringer: Arc::new(bringer),
            counters,
            traffic,
            ready: ReadyCell::default(),
            interface,
            source,
            devices,
            cache,
            options,
        };
        let workers = Workers::new(inner.options.contexts, inner.options.waiting_max);
        let inner = Arc::new(inner);
        let mut closing = Closing { inner: inner.clone(), starting: None };
        closing.starting = inner.start(begun)?;
        Ok(Session { inner, workers, _closing: closing })
    }

    /// Opens a symbolic Graph.
    pub fn open_graph(
        graph: &Graph,
        options: SessionOptions,
        target: Arc<dyn Target>,
        device: Arc<dyn Device>,
        cache: Arc<ProgramCache>,
    ) -> Result<Session, SessionError> {
        Session::open_graph_on(graph, options, target, vec![device], cache)
    }

    /// Opens a symbolic Graph on several devices.
    pub fn open_graph_on(
        graph: &Graph,
        options: SessionOptions,
        target: Arc<dyn Target>,
        devices: Vec<Arc<dyn Device>>,
        cache: Arc<ProgramCache>,
    ) -> Result<Session, SessionError> {
        let interface = Interface::of(graph, None)?;
        Session::open_on(interface, Arc::new(graph.clone()), options, target, devices, cache)
    }

    /// The devices that it runs on.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.inner.devices
    }

    /// What Programs are compiled for.
    pub fn target(&self) -> &TargetDescription {
        self.inner.bringer.target.description()
    }

    /// Inputs, outputs and dims of the model.
    pub fn interface(&self) -> &Interface {
        &self.inner.interface
    }

    /// Extents of the dim that covers are chosen along.
    pub fn extents(&self) -> Vec<i64> {
        self.inner.programs.read(|table| table.ladders.primary_extents().to_vec())
    }

    /// The dim that has Buckets and is covered by them, by the name of its symbol.
    pub fn primary_dim(&self) -> Option<&str> {
        let primary = self.inner.programs.read(|table| table.ladders.primary());
        primary.map(|primary| self.inner.interface.dims[primary].symbol.as_str())
    }

    /// What has been done so far.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// Buckets whose Programs are loaded.
    pub fn loaded(&self) -> Vec<Bucket> {
        self.inner.programs.read(|table| table.entries.keys().cloned().collect())
    }

    /// Buckets that are being loaded, compiled or published in the background.
    pub fn in_flight(&self) -> Vec<Bucket> {
        self.inner.programs.in_flight()
    }

    /// Measured costs of Buckets, in nanoseconds.
    pub fn costs(&self) -> Vec<(Bucket, f64)> {
        self.inner.programs.read(|table| table.costs.iter().map(|(bucket, &cost)| (bucket.clone(), cost)).collect())
    }

    /// Outputs in the model's order for inputs in the model's order, and what was done.
    pub fn run(&self, inputs: &[Tensor]) -> Result<(Vec<Tensor>, RunReport), SessionError> {
        self.inner.run(inputs)
    }

    /// Runs into the caller's buffers, whose sizes `output_shapes` tells. A repeated request allocates nothing.
    pub fn run_into(&self, inputs: &[Argument<'_>], outputs: &mut [&mut [u8]]) -> Result<RunReport, SessionError> {
        self.inner.run_into(inputs, outputs)
    }

    /// Shapes of the outputs of a request with these inputs.
    pub fn output_shapes(&self, inputs: &[Argument<'_>]) -> Result<Vec<Vec<usize>>, SessionError> {
        Ok(self.output_forms(inputs)?.into_iter().map(|(_, shape)| shape).collect())
    }

    /// Element types and shapes of the outputs of a request with these inputs.
    pub fn output_forms(&self, inputs: &[Argument<'_>]) -> Result<Vec<(DType, Vec<usize>)>, SessionError> {
        Ok(forms_of(self.inner.prepare(inputs)?))
    }

    /// Element types and shapes of the outputs of a request whose inputs, of these forms, lie on a device.
    pub fn output_forms_on_device(
        &self,
        inputs: &[(DType, &[usize])],
    ) -> Result<Vec<(DType, Vec<usize>)>, SessionError> {
        let unread: Vec<Argument<'_>> =
            inputs.iter().map(|&(dtype, shape)| Argument { dtype, shape, bytes: &[] }).collect();
        Ok(forms_of(self.inner.prepare_for(&unread, Residence::Device)?))
    }

    /// Queues a request that a thread of the Session runs.
    pub fn submit(&self, inputs: Vec<Tensor>) -> Result<Pending, SessionError> {
        self.workers.submit(&self.inner, inputs)
    }

    /// Queues a request and calls a function with its answer, on a thread of the Session, which should not be kept long.
    pub fn submit_then(
        &self,
        inputs: Vec<Tensor>,
        then: impl FnOnce(Answer) + Send + 'static,
    ) -> Result<(), SessionError> {
        self.workers.submit_then(&self.inner, inputs, Box::new(then))
    }

    /// What the Program of each Bucket is found by, in increasing order. Loads and compiles nothing.
    pub fn records(&self) -> Result<Vec<KeyRecord>, SessionError> {
        let ladders = self.inner.programs.read(|table| table.ladders.clone());
        let exact: Vec<&str> = (0..self.inner.interface.dims.len())
            .filter(|&dim| !ladders.is_bucketed(dim))
            .map(|dim| self.inner.interface.dims[dim].symbol.as_str())
            .collect();
        if !exact.is_empty() {
            return Err(SessionError::Options(format!(
                "these dims have no number and no Buckets: {}",
                exact.join(", ")
            )));
        }
        let mut buckets = ladders.all();
        buckets.sort();
        buckets.iter().map(|bucket| Ok(self.inner.bringer.record(bucket)?.0)).collect()
    }
}

/// Rows without an element that a request may have.
const ROWS_OF_NOTHING_MAX: i64 = 4096;

/// Where another dim is 0, rows cost a client nothing, so their number is no measure of what it sent.
fn refuse_rows_of_nothing(rows: i64, arguments: &[Argument<'_>]) -> Result<(), SessionError> {
    let elements = |argument: &Argument<'_>| argument.shape.iter().fold(1usize, |all, &size| all.saturating_mul(size));
    let are_there = arguments.iter().any(|argument| elements(argument) as i128 >= i128::from(rows));
    if are_there || rows <= ROWS_OF_NOTHING_MAX {
        return Ok(());
    }
    Err(SessionError::Request(format!(
        "the request has {rows} rows and no element in them; at most {ROWS_OF_NOTHING_MAX} such rows were expected"
    )))
}

impl Inner {
    pub(crate) fn run(&self, inputs: &[Tensor]) -> Result<(Vec<Tensor>, RunReport), SessionError> {
        let arguments: Vec<Argument<'_>> = inputs.iter().map(Argument::from).collect();
        let answer = if is_aligned(&arguments) {
            self.run_owned(&arguments)
        } else {
            let aligned: Vec<Tensor> = inputs.iter().map(Tensor::aligned).collect();
            self.run_owned(&aligned.iter().map(Argument::from).collect::<Vec<Argument<'_>>>())
        };
        match &answer {
            Ok((_, report)) => self.count(report),
            Err(_) => self.counters.count_error(),
        }
        answer
    }

    fn run_owned(&self, arguments: &[Argument<'_>]) -> Result<(Vec<Tensor>, RunReport), SessionError> {
        match self.prepare(arguments)? {
            Prepared::Answered(tensors, report) => Ok((tensors, report)),
            Prepared::Bound(binding, tier, origin, reason) => {
                // After taking a context, so that outputs of requests that wait take no memory.
                let mut taken = self.take(arguments)?;
                let mut buffers = binding.output_buffers();
                let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(crate::OutputBuffer::as_bytes_mut).collect();
                taken.get().make_newest(&binding, forms(arguments));
                let device = self.run_taken(&mut taken, arguments, &mut slices)?;
                drop(taken);
                let reason = if tier == Tier::Fast { Reason::OwnedOutputs } else { reason };
                Ok((binding.tensors(buffers)?, RunReport { tier, origin, reason, device, ..binding.report }))
            }
        }
    }

    pub(crate) fn run_into(
        &self,
        arguments: &[Argument<'_>],
        outputs: &mut [&mut [u8]],
    ) -> Result<RunReport, SessionError> {
        let report = self.run_borrowed(arguments, outputs);
        match &report {
            Ok(report) => self.count(report),
            Err(_) => self.counters.count_error(),
        }
        report
    }

    fn run_borrowed(&self, arguments: &[Argument<'_>], outputs: &mut [&mut [u8]]) -> Result<RunReport, SessionError> {
        let epoch = self.programs.epoch();
        let mut taken = self.take(arguments)?;
        let mut reason = Reason::FirstOnContext;
        if let Some(binding) = taken.get().remembered(forms(arguments)) {
            if binding.epoch == epoch && binding.missing.is_empty() && is_aligned(arguments) {
                let report = binding.report;
                check_outputs(binding, outputs)?;
                let device = self.run_taken(&mut taken, arguments, outputs)?;
                return Ok(RunReport { device, ..report });
            }
            reason = Reason::Epoch;
        }
        drop(taken);
        if !is_aligned(arguments) {
            return self.run_unaligned(arguments, outputs);
        }
        match self.prepare(arguments)? {
            Prepared::Answered(tensors, report) => {
                copy_answers(&tensors, outputs)?;
                Ok(report)
            }
            Prepared::Bound(binding, tier, origin, slow) => {
                check_outputs(&binding, outputs)?;
                let mut taken = self.take(arguments)?;
                taken.get().make_newest(&binding, forms(arguments));
                let device = self.run_taken(&mut taken, arguments, outputs)?;
                let reason = if tier == Tier::Fast { reason } else { slow };
                Ok(RunReport { tier, origin, reason, device, ..binding.report })
            }
        }
    }

    /// Runs on aligned copies of the inputs.
    fn run_unaligned(&self, arguments: &[Argument<'_>], outputs: &mut [&mut [u8]]) -> Result<RunReport, SessionError> {
        let copies = tensors_of(arguments)?;
        let aligned: Vec<Argument<'_>> = copies.iter().map(Argument::from).collect();
        let report = self.run_borrowed(&aligned, outputs)?;
        let tier = report.tier.max(Tier::Fast);
        Ok(RunReport { tier, reason: Reason::Alignment, ..report })
    }

    pub(crate) fn count(&self, report: &RunReport) {
        self.counters.count(report);
        self.traffic.count(report.chunks.total().rows);
    }

    fn take(&self, arguments: &[Argument<'_>]) -> Result<Taken<'_>, SessionError> {
        self.take_for(forms(arguments), None)
    }

    /// A context for a request with inputs of these forms, of a device where one is named.
    pub(crate) fn take_for<'s>(
        &self,
        mut forms: impl Iterator<Item = InputForm<'s>>,
        device: Option<usize>,
    ) -> Result<Taken<'_>, SessionError> {
        let form = self.form_place.and_then(|(input, axis)| forms.nth(input)?.shape.get(axis));
        let (taken, waited) = self.contexts.take(form.map_or(0, |&size| size as i64), device)?;
        if waited {
            self.counters.count_context_wait();
        }
        Ok(taken)
    }

    fn run_taken(
        &self,
        taken: &mut Taken<'_>,
        arguments: &[Argument<'_>],
        outputs: &mut [&mut [u8]],
    ) -> Result<DeviceRun, SessionError> {
        let result = taken.get().run_newest(arguments, outputs, self.options.pad_content);
        Ok(result.inspect_err(|error| taken.discard_after(error))?)
    }

    /// Finds or makes what a request runs on.
    fn prepare(&self, arguments: &[Argument<'_>]) -> Result<Prepared, SessionError> {
        self.unifier.check_sizes(arguments)?;
        self.prepare_for(arguments, Residence::Host)
    }

    /// Finds or makes what a request runs on, whose bytes lie where it says; those on a device are not looked at.
    pub(crate) fn prepare_for(
        &self,
        arguments: &[Argument<'_>],
        residence: Residence,
    ) -> Result<Prepared, SessionError> {
        let values = self.unifier.unify(arguments)?;
        let primary = self.programs.read(|table| table.ladders.primary());
        refuse_rows_of_nothing(primary.map_or(0, |primary| values[primary]), arguments)?;
        if let Some(primary) = primary.filter(|&primary| values[primary] == 0) {
            return self.answer_empty(&values, primary);
        }
        let missing = match self.bind(&values, arguments) {
            Ok(Bind::Ready(binding)) if binding.missing.is_empty() => {
                return Ok(Prepared::Bound(binding, Tier::Fast, Origin::Warm, Reason::FirstOnContext));
            }
            Ok(Bind::Ready(binding)) => {
                // What failed is tried again after a while; what is on its way is not asked for twice.
                if self.options.background {
                    self.request_all(&binding.missing);
                }
                return Ok(Prepared::Bound(binding, Tier::Standard, Origin::Warm, Reason::PadUp));
            }
            Ok(Bind::Missing(buckets)) => buckets,
            Err(SessionError::OutOfRange(reason)) => {
                if residence == Residence::Host && self.options.on_miss.contains(OnMiss::Reference) {
                    return self.answer_by_reference(&values, arguments);
                }
                return Err(SessionError::OutOfRange(reason));
            }
            Err(error) => return Err(error),
        };
        self.on_miss(&values, arguments, &missing, residence)
    }

    /// Goes along the on-miss chain.
    #[cold]
    fn on_miss(
        &self,
        values: &[i64],
        arguments: &[Argument<'_>],
        missing: &[Bucket],
        residence: Residence,
    ) -> Result<Prepared, SessionError> {
        tracing::debug!(bucket = %missing[0], chain = ?self.options.on_miss.0, "the Program is not loaded");
        for link in &self.options.on_miss.0 {
            let prepared = match link {
                OnMiss::PadUp => match self.bind_loaded(values, arguments, missing)? {
                    Some(binding) => Prepared::Bound(binding, Tier::Standard, Origin::Warm, Reason::PadUp),
                    None => continue,
                },
                OnMiss::Reference if residence == Residence::Device => continue,
                OnMiss::Reference => self.answer_by_reference(values, arguments)?,
                OnMiss::Wait => match self.wait_for(values, arguments, missing)? {
                    Some(prepared) => prepared,
                    None => continue,
                },
                OnMiss::Reject => break,
            };
            if self.options.background && *link != OnMiss::Wait {
                self.request_all(missing);
            }
            return Ok(prepared);
        }
        if self.options.background {
            self.request_all(missing);
        }
        Err(SessionError::NotReady { bucket: missing[0].to_string(), retry_after: None })
    }

    /// Waits for Programs to come; none when that takes too long.
    fn wait_for(
        &self,
        values: &[i64],
        arguments: &[Argument<'_>],
        missing: &[Bucket],
    ) -> Result<Option<Prepared>, SessionError> {
        let deadline = self.options.on_miss_timeout.map(|limit| Instant::now() + limit);
        let mut origin = Origin::Loaded;
        for flight in self.request_all(missing) {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let Some(entry) = flight.wait(left) else { return Ok(None) };
            origin = match (entry?.origin, origin) {
                (Origin::Compiled, _) | (_, Origin::Compiled) => Origin::Compiled,
                (from, _) => from,
            };
        }
        match self.bind(values, arguments)? {
            Bind::Ready(binding) => Ok(Some(Prepared::Bound(binding, Tier::Standard, origin, Reason::Miss))),
            // Exact Programs of other requests have driven it out again already.
            Bind::Missing(_) => Ok(None),
        }
    }

    fn request_all(&self, buckets: &[Bucket]) -> Vec<Arc<Flight>> {
        buckets.iter().map(|bucket| self.request(bucket)).collect()
    }

    /// Empty outputs for a request without rows.
    fn answer_empty(&self, values: &[i64], primary: usize) -> Result<Prepared, SessionError> {
        let bindings = self.unifier.bindings(values);
        let rows = &self.interface.dims[primary].outputs;
        let mut tensors = Vec::new();
        for (output, at) in self.interface.outputs.iter().zip(rows) {
            let shape = output.ty.bind(&bindings).shape().filter(|_| at.is_some());
            let shape = shape.ok_or_else(|| SessionError::EmptyBatch { output: output.name.clone() })?;
            tensors.push(Tensor::zeros(output.ty.dtype, shape)?);
        }
        let report = RunReport { reason: Reason::Empty, chunks: Chunks::default(), ..answer_report(0) };
        Ok(Prepared::Answered(tensors, RunReport { path: Path::Launch, tier: Tier::Fast, ..report }))
    }

    /// The answer by reference evaluation at the request's own sizes.
    fn answer_by_reference(&self, values: &[i64], arguments: &[Argument<'_>]) -> Result<Prepared, SessionError> {
        let bucket = self.programs.read(|table| table.ladders.bucket(values));
        let graph = self.source.graph(&bucket)?;
        let outputs = eval_graph(&graph, &tensors_of(arguments)?)?;
        let primary = self.programs.read(|table| table.ladders.primary());
        let rows = primary.map_or(1, |primary| values[primary]);
        Ok(Prepared::Answered(outputs, answer_report(rows)))
    }

    /// A Program on its way.
    pub(crate) fn request(&self, bucket: &Bucket) -> Arc<Flight> {
        let (bringer, wanted) = (self.bringer.clone(), bucket.clone());
        self.programs.request(bucket, move |_| bringer.bring(&wanted))
    }

    /// The Program that requests wait for: it compiles at once, and serves before it is published.
    pub(crate) fn request_first(&self, bucket: &Bucket) -> Arc<Flight> {
        let (bringer, wanted) = (self.bringer.clone(), bucket.clone());
        self.programs.request(bucket, move |land| bringer.bring_first(&wanted, land))
    }
}

/// Compiles at once. While requests are served they leave a core to them; the first Bucket has a place of its own.
fn compiles_max(options: &SessionOptions) -> usize {
    match options.startup {
        Startup::All | Startup::Lazy => options.jobs,
        Startup::Largest => {
            let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
            options.jobs.min(cores - 1).max(1)
        }
    }
}

/// Shapes of the inputs of a request.
fn forms<'a>(arguments: &'a [Argument<'_>]) -> impl Iterator<Item = InputForm<'a>> + Clone {
    arguments.iter().map(InputForm::from)
}

/// An input and axis that is a dim by itself.
fn place_of(interface: &Interface, dim: usize) -> Option<(usize, usize)> {
    let symbol = &interface.dims[dim].symbol;
    interface.inputs.iter().enumerate().find_map(|(input, port)| {
        let is_dim = |dim: &precast_tensor::Dim| dim.as_symbol().is_some_and(|found| found.as_str() == symbol);
        Some((input, port.ty.dims.iter().position(is_dim)?))
    })
}

/// The report of an answer that no Program gave.
fn answer_report(rows: i64) -> RunReport {
    RunReport {
        tier: Tier::Standard,
        path: Path::Reference,
        fit: Fit::Exact,
        origin: Origin::Warm,
        reason: Reason::Reference,
        chunks: Chunks::new([Chunk { bucket: rows, rows }]),
        is_cost_estimated: false,
        copied_bytes: 0,
        device: DeviceRun::default(),
    }
}

fn check_outputs(binding: &Binding, outputs: &[&mut [u8]]) -> Result<(), SessionError> {
    if outputs.len() != binding.outputs.len() {
        let (found, expected) = (outputs.len(), binding.outputs.len());
        return Err(SessionError::Request(format!("{found} output buffers are given where {expected} are expected")));
    }
    for (position, (output, form)) in outputs.iter().zip(&binding.outputs).enumerate() {
        if output.len() != form.bytes || !is_aligned_for(output, form.dtype) {
            return Err(SessionError::Request(format!(
                "output buffer {position} has {} bytes at {:p}; {} bytes aligned to {} are needed",
                output.len(),
                output.as_ptr(),
                form.bytes,
                form.dtype.size_bytes()
            )));
        }
    }
    Ok(())
}

fn copy_answers(tensors: &[Tensor], outputs: &mut [&mut [u8]]) -> Result<(), SessionError> {
    for (position, (tensor, output)) in tensors.iter().zip(outputs).enumerate() {
        if tensor.as_bytes().len() != output.len() {
            let (found, needed) = (output.len(), tensor.as_bytes().len());
            return Err(SessionError::Request(format!(
                "output buffer {position} has {found} bytes; {needed} are needed"
            )));
        }
        output.copy_from_slice(tensor.as_bytes());
    }
    Ok(())
}
