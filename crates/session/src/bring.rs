//! Bringing the Program of a Bucket: its key, the cache, the compile where no tier of the cache has it, and the load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use precast_cache::{GetError, KeyRecord, ProgramCache};
use precast_ir::Graph;
use precast_program::program::BUILD;
use precast_program::{Bucket, Device, Target};
use precast_tensor::Digest;

use crate::error::SessionError;
use crate::interface::{GraphDigests, GraphSource, Interface};
use crate::programs::Entry;
use crate::report::{Counters, Origin};
use crate::slots::Slots;

/// All that bringing a Program takes.
pub(crate) struct Bringer {
    pub(crate) interface: Arc<Interface>,
    pub(crate) source: Arc<dyn GraphSource>,
    pub(crate) target: Arc<dyn Target>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) cache: Arc<ProgramCache>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) target_options: BTreeMap<String, String>,
    pub(crate) device_label: String,
    /// Compiles at once. Taken after the locks of the cache (spec C13), and given back before the disk is waited for.
    pub(crate) compiling: Slots,
}

impl Bringer {
    /// The Program, loaded.
    pub(crate) fn bring(&self, bucket: &Bucket) -> Result<Entry, SessionError> {
        let begun = Instant::now();
        let (record, graph) = self.record(bucket)?;
        let make = || -> Result<_, SessionError> {
            let _slot = self.compiling.take();
            tracing::info!(%bucket, "compiling");
            let graph = graph.map_or_else(|| self.source.graph(bucket), Ok)?;
            let program = self.target.compile(&graph, bucket, self.cache.store());
            program.map_err(|error| SessionError::Compile(Arc::new(error)))
        };
        let fetched = match self.cache.get_or(&record, make) {
            Ok(fetched) => fetched,
            Err(GetError::Make(error)) => return Err((*error).clone()),
            Err(GetError::Missing(miss)) => return Err(miss.into()),
        };
        let origin = match fetched.origin {
            precast_cache::Origin::Memory | precast_cache::Origin::Disk => Origin::Loaded,
            precast_cache::Origin::Remote => Origin::Fetched,
            precast_cache::Origin::Compiled => Origin::Compiled,
        };
        match origin {
            Origin::Compiled => self.counters.count_compile(),
            Origin::Warm | Origin::Loaded | Origin::Fetched => self.counters.count_load(),
        }
        let loaded = self.device.load(&fetched.program, self.cache.store())?;
        let ms = begun.elapsed().as_millis() as u64;
        match &fetched.miss {
            Some(miss) => tracing::info!(%bucket, ?origin, %miss, ms, "the Program is loaded"),
            None => tracing::info!(%bucket, ?origin, ms, "the Program is loaded"),
        }
        let cost_of = format!("{} on {}", self.cache.key(&record), self.device_label);
        Ok(Entry::new(bucket.clone(), loaded, origin, Digest::of_bytes(cost_of.as_bytes())))
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
