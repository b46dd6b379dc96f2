//! Bringing the Program of a Bucket: its key, the cache, the compile where no tier of the cache has it, and the load.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use precast_cache::{GetError, KeyRecord, ProgramCache};
use precast_ir::Graph;
use precast_program::program::BUILD;
use precast_program::{Bucket, Device, LoadError, LoadedProgram, Program, Target};
use precast_tensor::Digest;

use crate::error::SessionError;
use crate::interface::{GraphDigests, GraphSource, Interface};
use crate::programs::Entry;
use crate::report::{Counters, Origin};
use crate::slots::Slots;

/// Bytes of constants up to which a Program is loaded before it is published. All Programs of the device then share the
/// copy in memory; those of a Program that is loaded after it was published are the pages of its files.
const AHEAD_BYTES_MAX: u64 = 64 << 20;

/// All that bringing a Program takes.
pub(crate) struct Bringer {
    pub(crate) interface: Arc<Interface>,
    pub(crate) source: Arc<dyn GraphSource>,
    pub(crate) target: Arc<dyn Target>,
    pub(crate) devices: Arc<[Arc<dyn Device>]>,
    pub(crate) cache: Arc<ProgramCache>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) target_options: BTreeMap<String, String>,
    pub(crate) device_label: String,
    /// Compiles at once. Taken after the locks of the cache (spec C13), and given back before the disk is waited for.
    pub(crate) compiling: Slots,
    pub(crate) underway: Underway,
}

/// Compiles that have begun and are not published yet.
#[derive(Default)]
pub(crate) struct Underway {
    state: Mutex<UnderwayState>,
    changed: Condvar,
}

#[derive(Default)]
struct UnderwayState {
    count: usize,
    is_closed: bool,
}

/// A compile that has begun; dropped when it is published.
struct Begun<'a>(&'a Underway);

impl Underway {
    /// No compile begins from now on.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Waits for those that have begun.
    pub(crate) fn wait(&self) {
        let left = self.changed.wait_while(self.lock(), |state| state.count > 0);
        drop(left.unwrap_or_else(PoisonError::into_inner));
    }

    fn begin(&self) -> Result<Begun<'_>, SessionError> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(SessionError::Closed);
        }
        state.count += 1;
        Ok(Begun(self))
    }

    fn lock(&self) -> MutexGuard<'_, UnderwayState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.lock().count -= 1;
        self.0.changed.notify_all();
    }
}

/// A core that runs on the device leave to a compile.
struct LeftCore<'a>(&'a dyn Device);

impl LeftCore<'_> {
    fn new(device: &dyn Device) -> LeftCore<'_> {
        device.leave_core();
        LeftCore(device)
    }
}

impl Drop for LeftCore<'_> {
    fn drop(&mut self) {
        self.0.take_core_back();
    }
}

/// Whether a Program is refused for what is in it, and not for where it should run.
fn is_malformed(error: &LoadError) -> bool {
    match error {
        LoadError::Malformed(_) => true,
        LoadError::Build { .. } | LoadError::Target { .. } | LoadError::Store(_) | LoadError::Device(_) => false,
    }
}

impl Bringer {
    /// The Program, loaded. It compiles when a slot is free.
    pub(crate) fn bring(&self, bucket: &Bucket) -> Result<Option<Entry>, SessionError> {
        self.bring_told(bucket, None)
    }

    /// The Program, loaded; it waits for no slot. Where it is compiled it may land before it is published: then none is
    /// given.
    pub(crate) fn bring_first(&self, bucket: &Bucket, land: &dyn Fn(Entry)) -> Result<Option<Entry>, SessionError> {
        self.bring_told(bucket, Some(land))
    }

    fn bring_told(&self, bucket: &Bucket, land: Option<&dyn Fn(Entry)>) -> Result<Option<Entry>, SessionError> {
        let brought = self.bring_counted(bucket, land);
        match &brought {
            Ok(_) | Err(SessionError::Closed) => {}
            Err(error) => {
                self.counters.count_failure();
                tracing::warn!(%bucket, %error, "the Program could not be had");
            }
        }
        brought
    }

    fn bring_counted(&self, bucket: &Bucket, land: Option<&dyn Fn(Entry)>) -> Result<Option<Entry>, SessionError> {
        let at = Instant::now();
        let (record, mut graph) = self.record(bucket)?;
        let (mut begun, mut is_landed) = (None, false);
        let fetched = loop {
            let make = || -> Result<_, SessionError> {
                let _slot = land.is_none().then(|| self.compiling.take());
                begun = Some(self.underway.begin()?);
                let program = self.compile(bucket, graph.take())?;
                let constant_bytes: u64 = program.constants.iter().map(|constant| constant.bytes).sum();
                if let Some(land) = land.filter(|_| constant_bytes <= AHEAD_BYTES_MAX) {
                    let ms = at.elapsed().as_millis() as u64;
                    tracing::info!(%bucket, ms, "the Program serves, and is published meanwhile");
                    land(self.load(bucket, &program, Origin::Compiled, &record)?);
                    is_landed = true;
                }
                Ok(program)
            };
            match self.cache.get_or(&record, make) {
                Ok(fetched) => break fetched,
                // Another Session on this cache was to make it for both, and was dropped.
                Err(GetError::Make(error)) if matches!(*error, SessionError::Closed) && !self.underway.is_closed() => {}
                Err(GetError::Make(error)) => return Err((*error).clone()),
                Err(GetError::Missing(miss)) => return Err(miss.into()),
            }
        };
        drop(begun);
        let origin = match fetched.origin {
            precast_cache::Origin::Memory | precast_cache::Origin::Disk => Origin::Loaded,
            precast_cache::Origin::Remote => Origin::Fetched,
            precast_cache::Origin::Compiled => Origin::Compiled,
        };
        match origin {
            Origin::Compiled => {}
            Origin::Warm | Origin::Loaded | Origin::Fetched => self.counters.count_load(),
        }
        if is_landed {
            return Ok(None);
        }
        let entry = match origin {
            Origin::Compiled => self.load(bucket, &fetched.program, origin, &record)?,
            Origin::Warm | Origin::Loaded | Origin::Fetched => {
                self.load_cached(bucket, &fetched.program, origin, &record)?
            }
        };
        let ms = at.elapsed().as_millis() as u64;
        match &fetched.miss {
            Some(miss) => tracing::info!(%bucket, ?origin, %miss, ms, "the Program is loaded"),
            None => tracing::info!(%bucket, ?origin, ms, "the Program is loaded"),
        }
        Ok(Some(entry))
    }

    fn compile(&self, bucket: &Bucket, graph: Option<Graph>) -> Result<Arc<Program>, SessionError> {
        let _core = LeftCore::new(&*self.devices[0]);
        tracing::info!(%bucket, "compiling");
        let graph = graph.map_or_else(|| self.source.graph(bucket), Ok)?;
        let program = self.target.compile(&graph, bucket, self.cache.store());
        let program = Arc::new(program.map_err(|error| SessionError::Compile(Arc::new(error)))?);
        self.counters.count_compile();
        Ok(program)
    }

    /// A Program from the cache, which must fit the model and load; else one that is compiled instead.
    fn load_cached(
        &self,
        bucket: &Bucket,
        program: &Arc<Program>,
        origin: Origin,
        record: &KeyRecord,
    ) -> Result<Entry, SessionError> {
        match self.load(bucket, program, origin, record) {
            Err(SessionError::Load(error)) if is_malformed(&error) => self.load_instead(bucket, record, &error),
            loaded => loaded,
        }
    }

    /// Whether the inputs and outputs of a Program have the Types that it is asked for with. One that was just compiled has
    /// others where the Interface is a note of the cache that is not this model's.
    fn check_ports(&self, program: &Program, record: &KeyRecord) -> Result<(), LoadError> {
        let malformed = |reason: String| Err(LoadError::Malformed(reason));
        let (inputs, outputs) = (self.interface.inputs.len(), self.interface.outputs.len());
        // Where Graphs differ by their dims, outputs are known by their Programs alone.
        let is_whole = outputs == 0 || program.outputs.len() == outputs;
        if program.inputs.len() != inputs || !is_whole {
            return malformed(format!("{} inputs and {} outputs", program.inputs.len(), program.outputs.len()));
        }
        let ports = program.inputs.iter().chain(&program.outputs);
        for (port, expected) in ports.zip(&record.types) {
            let sizes: Vec<String> = port.shape.iter().map(u64::to_string).collect();
            let found = format!("{}[{}]", port.dtype, sizes.join(","));
            if found != *expected {
                return malformed(format!("'{}' is {found}; {expected} was expected", port.name));
            }
        }
        Ok(())
    }

    /// A Program of our own in place of a cached one that contradicts itself, which is given up. This one is not published:
    /// a cache that is only read, or a store, may still have the other.
    fn load_instead(&self, bucket: &Bucket, record: &KeyRecord, error: &LoadError) -> Result<Entry, SessionError> {
        tracing::warn!(%bucket, %error, "the cached Program does not load; compiling");
        self.cache.discard(record, &error.to_string());
        let _begun = self.underway.begin()?;
        let program = self.compile(bucket, None)?;
        self.load(bucket, &program, Origin::Compiled, record)
    }

    fn load(
        &self,
        bucket: &Bucket,
        program: &Arc<Program>,
        origin: Origin,
        record: &KeyRecord,
    ) -> Result<Entry, SessionError> {
        self.check_ports(program, record)?;
        let loaded = self.load_on_all(program)?;
        let cost_of = format!("{} on {}", self.cache.key(record), self.device_label);
        Ok(Entry::new(bucket.clone(), loaded, origin, Digest::of_bytes(cost_of.as_bytes())))
    }

    /// Loads a Program on every device, side by side.
    fn load_on_all(&self, program: &Arc<Program>) -> Result<Vec<Arc<dyn LoadedProgram>>, SessionError> {
        let load = |device: &Arc<dyn Device>| {
            self.counters.count_device_load();
            Ok(device.load(program, self.cache.store())?)
        };
        let Some((first, others)) = self.devices.split_first() else {
            return Err(SessionError::Options("a Session needs a device".to_string()));
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = others.iter().map(|device| scope.spawn(move || load(device))).collect();
            let mut loaded = vec![load(first)?];
            for other in others {
                let died = |_| Err(SessionError::Thread("loading a Program on a device panicked".to_string()));
                loaded.push(other.join().unwrap_or_else(died)?);
            }
            Ok(loaded)
        })
    }

    /// Everything that the code of a Bucket's Program depends on; and the Graph, where it had to be made for that.
    pub(crate) fn record(&self, bucket: &Bucket) -> Result<(KeyRecord, Option<Graph>), SessionError> {
        let (digests, graph) = match self.interface.graph {
            Some(digests) => (digests, None),
            None => {
                let graph = self.source.graph(bucket)?;
                (GraphDigests::of(&graph)?, Some(graph))
            }
        };
        let description = self.target.description();
        let untuned = KeyRecord {
            schema: KeyRecord::current_schema(),
            compiler: BUILD.to_string(),
            graph: digests.graph,
            weights: digests.weights,
            bucket: bucket.clone(),
            types: self.interface.types(bucket),
            precision: description.numerics.fields(),
            calibration: None,
            options: self.target_options.clone(),
            tuning: None,
            target: description.machine(),
            toolchain: String::new(),
            driver: None,
            custom_ops: BTreeMap::new(),
            assertions: BTreeMap::new(),
        };
        let tuning = self.source.tuning(&untuned, graph.as_ref())?;
        Ok((KeyRecord { tuning, ..untuned }, graph))
    }
}
