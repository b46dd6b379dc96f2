//! A Session: a model on a device, with one Program a Bucket. `run` takes a request of any size: if the context has just
//! seen one like it, it runs at once (ultra-fast); if the Programs are loaded, it is bound to them (fast); otherwise the
//! on-miss chain decides (standard).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use precast_cache::{KeyRecord, ProgramCache};
use precast_ir::Graph;
use precast_ir::eval::eval_graph;
use precast_program::{Bucket, Device, Target};
use precast_tensor::Tensor;

use crate::binding::{Binding, Parts};
use crate::bring::Bringer;
use crate::cover::CoverTable;
use crate::error::SessionError;
use crate::exec_context::{Contexts, Taken};
use crate::interface::{GraphSource, Interface};
use crate::ladders::{Costs, Ladders, Layout};
use crate::options::{OnMiss, SessionOptions, Startup};
use crate::programs::{Entry, Flight, Programs, Table};
use crate::report::{Chunk, Chunks, Counters, Fit, Origin, Path, Reason, RunReport, Tier};
use crate::request::{Argument, Unifier};
use crate::startup::{EtaBasis, Phase, Progress, wait_for};
use crate::submit::{Pending, Workers};
use crate::traffic::Traffic;

/// A model opened on a device. Shared by any number of threads.
pub struct Session {
    pub(crate) inner: Arc<Inner>,
    workers: Workers,
}

/// What a Session and its background threads share.
pub(crate) struct Inner {
    pub(crate) interface: Arc<Interface>,
    source: Arc<dyn GraphSource>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) cache: Arc<ProgramCache>,
    pub(crate) options: SessionOptions,
    bringer: Arc<Bringer>,
    unifier: Unifier,
    pub(crate) programs: Arc<Programs>,
    pub(crate) contexts: Contexts,
    pub(crate) counters: Arc<Counters>,
    pub(crate) traffic: Traffic,
    /// An input and axis whose size tells requests apart cheaply.
    form_place: Option<(usize, usize)>,
}

/// What a request runs on.
enum Prepared {
    /// A Binding, how much had to be decided, and why.
    Bound(Arc<Binding>, Tier, Origin, Reason),
    /// Outputs that are there already.
    Answered(Vec<Tensor>, RunReport),
}

impl Session {
    /// Opens a model. By `options.startup` Buckets are loaded, and compiled where the cache does not have them.
    pub fn open(
        interface: Interface,
        source: Arc<dyn GraphSource>,
        options: SessionOptions,
        target: Arc<dyn Target>,
        device: Arc<dyn Device>,
        cache: Arc<ProgramCache>,
    ) -> Result<Session, SessionError> {
        let begun = Instant::now();
        let (interface, counters) = (Arc::new(interface), Arc::new(Counters::default()));
        let traffic = Traffic::new(&interface, &cache);
        let ladders = traffic.fitted(Ladders::new(&interface, &options)?, &options);
        let bringer = Bringer {
            interface: interface.clone(),
            source: source.clone(),
            target,
            device: device.clone(),
            cache: cache.clone(),
            counters: counters.clone(),
            target_options: options.target_options.clone(),
            device_label: options.device_label.clone(),
        };
        let inner = Inner {
            unifier: Unifier::new(&interface),
            form_place: ladders.primary().and_then(|primary| place_of(&interface, primary)),
            programs: Arc::new(Programs::new(ladders, options.jobs, options.exact_programs_max)),
            contexts: Contexts::new(options.contexts, device.clone(), options.contexts_wait, options.waiting_max),
            bringer: Arc::new(bringer),
            counters,
            traffic,
            interface,
            source,
            device,
            cache,
            options,
        };
        let workers = Workers::new(inner.options.contexts, inner.options.waiting_max);
        let session = Session { inner: Arc::new(inner), workers };
        session.inner.start(begun)?;
        Ok(session)
    }

    /// Opens a symbolic Graph.
    pub fn open_graph(
        graph: &Graph,
        options: SessionOptions,
        target: Arc<dyn Target>,
        device: Arc<dyn Device>,
        cache: Arc<ProgramCache>,
    ) -> Result<Session, SessionError> {
        let interface = Interface::of(graph, None)?;
        Session::open(interface, Arc::new(graph.clone()), options, target, device, cache)
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

    /// Buckets that are being loaded or compiled in the background.
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
        match self.inner.prepare(inputs)? {
            Prepared::Bound(binding, ..) => Ok(binding.outputs.iter().map(|output| output.shape.clone()).collect()),
            Prepared::Answered(tensors, _) => Ok(tensors.iter().map(|tensor| tensor.shape().to_vec()).collect()),
        }
    }

    /// Queues a request that a thread of the Session runs.
    pub fn submit(&self, inputs: Vec<Tensor>) -> Result<Pending, SessionError> {
        self.workers.submit(&self.inner, inputs)
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

impl Inner {
    /// Brings the Buckets that `startup` asks for.
    fn start(self: &Arc<Self>, begun: Instant) -> Result<(), SessionError> {
        let buckets = match self.options.startup {
            Startup::Lazy => Vec::new(),
            Startup::All | Startup::Largest => self.programs.read(|table| table.ladders.all()),
        };
        let flights: Vec<(Bucket, Arc<Flight>)> =
            buckets.iter().map(|bucket| (bucket.clone(), self.request(bucket))).collect();
        let needed = if self.options.startup == Startup::Largest { flights.len().min(1) } else { flights.len() };
        let compiled = wait_for(&flights[..needed], begun, &|progress| self.tell(progress))?;
        self.check_memory()?;
        self.recall_costs();
        let has_choice = self.programs.read(|table| table.ladders.primary_extents().len() > 1);
        if self.options.measures && has_choice && self.options.startup == Startup::All {
            let progress = |phase| Progress {
                phase,
                done: flights.len(),
                total: flights.len(),
                compiled,
                bucket: None,
                elapsed: begun.elapsed(),
                eta: None,
                basis: EtaBasis::Unknown,
            };
            self.tell(&progress(Phase::Measuring));
            self.measure_costs()?;
            self.tell(&progress(Phase::Ready));
        }
        Ok(())
    }

    fn tell(&self, progress: &Progress) {
        if let Some(observer) = &self.options.progress.0 {
            observer(progress);
        }
    }

    pub(crate) fn run(&self, inputs: &[Tensor]) -> Result<(Vec<Tensor>, RunReport), SessionError> {
        let aligned: Vec<Tensor> = inputs.iter().map(Tensor::aligned).collect();
        let arguments: Vec<Argument<'_>> = aligned.iter().map(Argument::from).collect();
        let answer = self.run_owned(&arguments);
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
                if !taken.get().remembered(arguments).is_some_and(|known| Arc::ptr_eq(known, &binding)) {
                    taken.get().remember(&binding);
                }
                self.run_taken(&mut taken, arguments, &mut slices)?;
                drop(taken);
                let reason = if tier == Tier::Fast { Reason::OwnedOutputs } else { reason };
                Ok((binding.tensors(buffers)?, RunReport { tier, origin, reason, ..binding.report }))
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
        if let Some(binding) = taken.get().remembered(arguments) {
            if binding.epoch == epoch && is_aligned(arguments) {
                let report = binding.report;
                check_outputs(binding, outputs)?;
                self.run_taken(&mut taken, arguments, outputs)?;
                return Ok(report);
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
                taken.get().remember(&binding);
                self.run_taken(&mut taken, arguments, outputs)?;
                let reason = if tier == Tier::Fast { reason } else { slow };
                Ok(RunReport { tier, origin, reason, ..binding.report })
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

    fn count(&self, report: &RunReport) {
        self.counters.count(report);
        self.traffic.count(report.chunks.total().rows);
    }

    fn take(&self, arguments: &[Argument<'_>]) -> Result<Taken<'_>, SessionError> {
        let form = self.form_place.and_then(|(input, axis)| arguments.get(input)?.shape.get(axis));
        let (taken, waited) = self.contexts.take(form.map_or(0, |&size| size as i64))?;
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
    ) -> Result<(), SessionError> {
        let result = taken.get().run_newest(arguments, outputs, self.options.pad_content);
        if result.is_err() {
            taken.discard();
        }
        Ok(result?)
    }

    /// Finds or makes what a request runs on.
    fn prepare(&self, arguments: &[Argument<'_>]) -> Result<Prepared, SessionError> {
        let values = self.unifier.unify(arguments)?;
        check_sizes(arguments)?;
        let primary = self.programs.read(|table| table.ladders.primary());
        if let Some(primary) = primary.filter(|&primary| values[primary] == 0) {
            return self.answer_empty(&values, primary);
        }
        let missing = match self.bind(&values, arguments) {
            Ok(Bind::Ready(binding)) => {
                return Ok(Prepared::Bound(binding, Tier::Fast, Origin::Warm, Reason::FirstOnContext));
            }
            Ok(Bind::Missing(buckets)) => buckets,
            Err(SessionError::OutOfRange(reason)) => {
                if self.options.on_miss.contains(OnMiss::Reference) {
                    return self.answer_by_reference(&values, arguments);
                }
                return Err(SessionError::OutOfRange(reason));
            }
            Err(error) => return Err(error),
        };
        self.on_miss(&values, arguments, &missing)
    }

    /// Goes along the on-miss chain.
    #[cold]
    fn on_miss(
        &self,
        values: &[i64],
        arguments: &[Argument<'_>],
        missing: &[Bucket],
    ) -> Result<Prepared, SessionError> {
        tracing::debug!(bucket = %missing[0], chain = ?self.options.on_miss.0, "the Program is not loaded");
        for link in &self.options.on_miss.0 {
            let prepared = match link {
                OnMiss::PadUp => match self.bind_loaded(values, arguments)? {
                    Some(binding) => Prepared::Bound(binding, Tier::Standard, Origin::Warm, Reason::PadUp),
                    None => continue,
                },
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

    /// Covers along the primary dim beside these extents of the others.
    fn covers(&self, epoch: u64, extents: &[i64]) -> (Arc<CoverTable>, bool) {
        let others = self.programs.read(|table| {
            let mut others = extents.to_vec();
            if let Some(primary) = table.ladders.primary() {
                others[primary] = 0;
            }
            others
        });
        if let Some(known) = self.programs.read(|table| table.covers(&others).cloned()) {
            return known;
        }
        let (covers, is_estimated) = self.programs.read(|table| {
            let costs = Costs::new(table.ladders.primary_extents(), |extent| cost_of(table, extents, extent));
            (Arc::new(table.ladders.covers(&costs)), costs.is_estimated)
        });
        self.programs.keep_covers(epoch, others, covers.clone(), is_estimated);
        (covers, is_estimated)
    }

    /// A Binding for a request, or the Buckets that are missing for one.
    fn bind(&self, values: &[i64], arguments: &[Argument<'_>]) -> Result<Bind, SessionError> {
        if let Some(binding) = self.programs.read(|table| table.binding(values).cloned()) {
            return Ok(Bind::Ready(binding));
        }
        let epoch = self.programs.epoch();
        let ladders = self.programs.read(|table| table.ladders.clone());
        let extents = ladders.other_extents(values)?;
        let (covers, is_cost_estimated) = self.covers(epoch, &extents);
        let layout = ladders.layout(values, extents, &covers)?;
        let buckets = chunk_buckets(&ladders, &layout);
        let found = self.programs.read(|table| {
            let mut missing: Vec<Bucket> =
                buckets.iter().filter(|bucket| !table.entries.contains_key(bucket)).cloned().collect();
            missing.dedup();
            let entries: Vec<Arc<Entry>> =
                buckets.iter().filter_map(|bucket| table.entries.get(bucket).cloned()).collect();
            if missing.is_empty() { Ok(entries) } else { Err(missing) }
        });
        let entries = match found {
            Ok(entries) => entries,
            Err(missing) => return Ok(Bind::Missing(missing)),
        };
        let binding = self.make_binding(&ladders, values, &layout, entries, epoch, is_cost_estimated, arguments)?;
        self.programs.keep_binding(values.to_vec(), &binding);
        let (fit, chunks) = (binding.report.fit, binding.report.chunks);
        tracing::debug!(?values, ?fit, buckets = ?chunks.named(), epoch, "bound a new form of request");
        Ok(Bind::Ready(binding))
    }

    /// A Binding on loaded Buckets only, if they can cover the request.
    fn bind_loaded(&self, values: &[i64], arguments: &[Argument<'_>]) -> Result<Option<Arc<Binding>>, SessionError> {
        let epoch = self.programs.epoch();
        let ladders = self.programs.read(|table| table.ladders.clone());
        let Some(primary) = ladders.primary() else { return Ok(None) };
        let candidates: Vec<Vec<i64>> = self.programs.read(|table| {
            let of = |entry: &Arc<Entry>| table.ladders.extents_of(&entry.bucket);
            table.entries.values().filter(|entry| table.ladders.contains(&entry.bucket)).map(of).collect()
        });
        // The loaded Buckets that are large enough in the other dims, by the extents of those.
        let fits = |extents: &Vec<i64>| {
            (0..values.len()).all(|dim| {
                dim == primary
                    || extents[dim] == values[dim]
                    || (ladders.is_bucketed(dim) && extents[dim] >= values[dim])
            })
        };
        let mut by_others: BTreeMap<Vec<i64>, Vec<i64>> = BTreeMap::new();
        for mut extents in candidates.into_iter().filter(fits) {
            let extent = std::mem::replace(&mut extents[primary], values[primary]);
            by_others.entry(extents).or_default().push(extent);
        }
        for (others, mut extents) in by_others {
            extents.sort_unstable();
            let costs = self.programs.read(|table| Costs::new(&extents, |extent| cost_of(table, &others, extent)));
            let loaded = ladders.with_primary_extents(extents);
            let Ok(layout) = loaded.layout(values, others, &loaded.covers(&costs)) else { continue };
            let buckets = chunk_buckets(&loaded, &layout);
            let entries = self.programs.read(|table| {
                buckets.iter().map(|bucket| table.entries.get(bucket).cloned()).collect::<Option<Vec<Arc<Entry>>>>()
            });
            let Some(entries) = entries else { continue };
            let binding = self.make_binding(&loaded, values, &layout, entries, epoch, costs.is_estimated, arguments)?;
            return Ok(Some(binding));
        }
        Ok(None)
    }

    fn make_binding(
        &self,
        ladders: &Ladders,
        values: &[i64],
        layout: &Layout,
        entries: Vec<Arc<Entry>>,
        epoch: u64,
        is_cost_estimated: bool,
        arguments: &[Argument<'_>],
    ) -> Result<Arc<Binding>, SessionError> {
        entries.iter().for_each(|entry| self.programs.touch(entry));
        let (interface, unifier) = (&self.interface, &self.unifier);
        let parts = Parts { interface, unifier, ladders, values, layout, entries, epoch, is_cost_estimated };
        Ok(Arc::new(Binding::new(parts, arguments)?))
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
    fn request(&self, bucket: &Bucket) -> Arc<Flight> {
        let (bringer, wanted) = (self.bringer.clone(), bucket.clone());
        self.programs.request(bucket, move || bringer.bring(&wanted))
    }
}

/// What `bind` found.
enum Bind {
    Ready(Arc<Binding>),
    Missing(Vec<Bucket>),
}

/// Buckets of a layout's chunks.
fn chunk_buckets(ladders: &Ladders, layout: &Layout) -> Vec<Bucket> {
    let bucket = |chunk: &Chunk| {
        let mut extents = layout.extents.clone();
        if let Some(primary) = ladders.primary() {
            extents[primary] = chunk.bucket;
        }
        ladders.bucket(&extents)
    };
    layout.chunks.iter().map(bucket).collect()
}

/// Measured cost of the Bucket with this extent of the primary dim.
fn cost_of(table: &Table, extents: &[i64], extent: i64) -> Option<f64> {
    let mut extents = extents.to_vec();
    extents[table.ladders.primary()?] = extent;
    table.costs.get(&table.ladders.bucket(&extents)).copied()
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
    }
}

/// Kernels read elements, so each input must begin at a multiple of their size.
fn is_aligned(arguments: &[Argument<'_>]) -> bool {
    arguments.iter().all(|argument| argument.bytes.as_ptr().addr() & (argument.dtype.size_bytes() - 1) == 0)
}

/// Each input must have the bytes that its shape says.
fn check_sizes(arguments: &[Argument<'_>]) -> Result<(), SessionError> {
    for (position, argument) in arguments.iter().enumerate() {
        let elements = argument.shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let bytes = elements.and_then(|elements| elements.checked_mul(argument.dtype.size_bytes()));
        if bytes != Some(argument.bytes.len()) {
            return Err(SessionError::Request(format!(
                "input {position} has {} bytes; its shape {:?} of {} needs {}",
                argument.bytes.len(),
                argument.shape,
                argument.dtype.name(),
                bytes.map_or("more than there are addresses".to_string(), |bytes| bytes.to_string())
            )));
        }
    }
    Ok(())
}

fn check_outputs(binding: &Binding, outputs: &[&mut [u8]]) -> Result<(), SessionError> {
    if outputs.len() != binding.outputs.len() {
        let (found, expected) = (outputs.len(), binding.outputs.len());
        return Err(SessionError::Request(format!("{found} output buffers are given where {expected} are expected")));
    }
    for (position, (output, form)) in outputs.iter().zip(&binding.outputs).enumerate() {
        if output.len() != form.bytes || output.as_ptr().addr() & (form.dtype.size_bytes() - 1) != 0 {
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

fn tensors_of(arguments: &[Argument<'_>]) -> Result<Vec<Tensor>, SessionError> {
    let tensor = |argument: &Argument<'_>| {
        let bytes = bytes::Bytes::copy_from_slice(argument.bytes);
        Ok(Tensor::new(argument.dtype, argument.shape.to_vec(), bytes)?.aligned())
    };
    arguments.iter().map(tensor).collect()
}
