//! A Session: a symbolic Graph, a ladder of Buckets for one dim, and Programs for them. `run` takes a request of any
//! size: it finds what the request's dims are, which Buckets cover it, and runs them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, RwLock};

use precast_cache::{GetError, KeyRecord, ProgramCache};
use precast_ir::eval::{bind_inputs, eval_graph};
use precast_ir::graph::{GraphCopy, Provenance};
use precast_ir::{Graph, text};
use precast_passes::batch_axis::{Grade, OutputRule, PadVerdict, pad_verdict};
use precast_program::program::BUILD;
use precast_program::{Bucket, Device, Target};
use precast_tensor::{Bindings, Digest, Symbol, Tensor};

use crate::context::ContextPool;
use crate::cover::CoverTable;
use crate::error::SessionError;
use crate::options::{OnMiss, SessionOptions};
use crate::report::{Chunk, Counters, Fit, Origin, Path, Reason, RunReport, Tier};
use crate::rows::{RowAxis, join_rows, take_rows};

/// Requests that a Session remembers the Programs of, newest first.
const BINDINGS_KEPT: usize = 8;

/// A model opened on a device.
pub struct Session {
    graph: Graph,
    target: Arc<dyn Target>,
    device: Arc<dyn Device>,
    cache: Arc<ProgramCache>,
    options: SessionOptions,
    /// The dim that has Buckets, if one has.
    bucketed: Option<BucketedDim>,
    digests: (Digest, Digest),
    programs: RwLock<BTreeMap<Bucket, Arc<ContextPool>>>,
    bindings: Mutex<Vec<Arc<Binding>>>,
    counters: Counters,
}

/// The dim whose extents are padded or split.
struct BucketedDim {
    symbol: Symbol,
    extents: Vec<i64>,
    verdict: PadVerdict,
    inputs: Vec<Option<RowAxis>>,
    outputs: Vec<Option<RowAxis>>,
    covers: CoverTable,
}

/// What requests of one form run on.
struct Binding {
    shapes: Vec<Vec<usize>>,
    chunks: Vec<(Chunk, Arc<ContextPool>)>,
    fit: Fit,
}

impl Session {
    /// Opens a symbolic Graph. With `opens_all`, every Bucket is loaded, and compiled where the cache does not have it.
    pub fn open(
        graph: &Graph,
        options: SessionOptions,
        target: Arc<dyn Target>,
        device: Arc<dyn Device>,
        cache: Arc<ProgramCache>,
    ) -> Result<Session, SessionError> {
        let bucketed = bucketed_dim(graph, &options)?;
        let digests = digests(graph)?;
        let session = Session {
            graph: graph.clone(),
            target,
            device,
            cache,
            bucketed,
            digests,
            programs: RwLock::default(),
            bindings: Mutex::default(),
            counters: Counters::default(),
            options,
        };
        let only_dim = graph.symbols().len() == 1;
        if let Some(dim) = session.bucketed.as_ref().filter(|_| session.options.opens_all && only_dim) {
            // The largest first: by padding it can serve every request.
            for &extent in dim.extents.iter().rev() {
                session.load(&Bucket::new([(dim.symbol.as_str().to_string(), extent)]))?;
            }
        }
        Ok(session)
    }

    /// How padding is judged, where a dim has Buckets.
    pub fn verdict(&self) -> Option<&PadVerdict> {
        self.bucketed.as_ref().map(|dim| &dim.verdict)
    }

    /// What has been done so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Buckets whose Programs are loaded.
    pub fn loaded(&self) -> Vec<Bucket> {
        self.programs.read().unwrap_or_else(|poisoned| poisoned.into_inner()).keys().cloned().collect()
    }

    /// What the Program of each Bucket is found by, in increasing order. Loads and compiles nothing.
    pub fn records(&self) -> Result<Vec<KeyRecord>, SessionError> {
        let bucketed = self.bucketed.as_ref();
        let is_open = |symbol: &Symbol| bucketed.is_none_or(|dim| dim.symbol != *symbol);
        let open: Vec<String> =
            self.graph.symbols().iter().filter(|symbol| is_open(symbol)).map(Symbol::to_string).collect();
        if !open.is_empty() {
            return Err(SessionError::Options(format!("these dims have no number: {}", open.join(", "))));
        }
        let buckets = match bucketed {
            None => vec![Bucket::new([])],
            Some(dim) => {
                let bucket = |&extent: &i64| Bucket::new([(dim.symbol.as_str().to_string(), extent)]);
                dim.extents.iter().map(bucket).collect()
            }
        };
        let record = |bucket: &Bucket| {
            let graph = self.graph.bind(&bucket.bindings(), &BTreeMap::new())?;
            Ok(self.record(&graph, bucket))
        };
        buckets.iter().map(record).collect()
    }

    /// Outputs in the Graph's order for inputs in the Graph's order, and what was done.
    pub fn run(&self, inputs: &[Tensor]) -> Result<(Vec<Tensor>, RunReport), SessionError> {
        let (binding, tier, origin, reason) = match self.remembered(inputs) {
            Some(binding) => (binding, Tier::UltraFast, Origin::Warm, Reason::None),
            None => match self.bind(inputs)? {
                Bound::Ready(binding, Origin::Warm) => (binding, Tier::Fast, Origin::Warm, Reason::FirstOnContext),
                Bound::Ready(binding, origin) => (binding, Tier::Standard, origin, Reason::Miss),
                Bound::Reference(rows) => return self.run_reference(inputs, rows),
            },
        };
        let outputs = self.run_binding(&binding, inputs)?;
        let chunks = binding.chunks.iter().map(|(chunk, _)| *chunk).collect();
        let report = RunReport { tier, path: Path::Launch, fit: binding.fit, origin, reason, chunks };
        self.counters.count(&report);
        Ok((outputs, report))
    }

    /// A binding of an earlier request with the same shapes.
    fn remembered(&self, inputs: &[Tensor]) -> Option<Arc<Binding>> {
        let bindings = self.bindings.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let is_same = |binding: &&Arc<Binding>| {
            binding.shapes.len() == inputs.len()
                && binding.shapes.iter().zip(inputs).all(|(shape, input)| *shape == input.shape())
        };
        bindings.iter().find(is_same).cloned()
    }

    /// Finds or makes what a request of these shapes runs on.
    fn bind(&self, inputs: &[Tensor]) -> Result<Bound, SessionError> {
        let dims = bind_inputs(&self.graph, inputs)?;
        let rows = self.bucketed.as_ref().and_then(|dim| dims.get(&dim.symbol));
        let (extents, fit) = self.choose(rows)?;
        let mut origin = Origin::Warm;
        let mut chunks = Vec::new();
        let mut left = rows.unwrap_or(1);
        for extent in extents {
            let bucket = self.bucket(&dims, extent);
            let (pool, from) = match self.on_hand(&bucket) {
                Some(pool) => (pool, Origin::Warm),
                None => match self.options.on_miss {
                    OnMiss::Wait => self.load(&bucket)?,
                    OnMiss::PadUp => match self.larger(&dims, extent) {
                        Some((larger, pool)) => {
                            let count = left.min(extent.unwrap_or(left));
                            chunks.push((Chunk { bucket: larger, rows: count }, pool));
                            left -= count;
                            continue;
                        }
                        None => self.load(&bucket)?,
                    },
                    OnMiss::Reference => return Ok(Bound::Reference(rows.unwrap_or(1))),
                    OnMiss::Reject => return Err(SessionError::NotReady { bucket: bucket.to_string() }),
                },
            };
            if from != Origin::Warm {
                origin = from;
            }
            let count = left.min(extent.unwrap_or(left));
            chunks.push((Chunk { bucket: extent.unwrap_or(count), rows: count }, pool));
            left -= count;
        }
        let shapes = inputs.iter().map(|input| input.shape().to_vec()).collect();
        let binding = Arc::new(Binding { shapes, chunks, fit });
        let mut bindings = self.bindings.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        bindings.insert(0, binding.clone());
        bindings.truncate(BINDINGS_KEPT);
        Ok(Bound::Ready(binding, origin))
    }

    /// Extents that cover a request; one `None` where nothing is bucketed.
    fn choose(&self, rows: Option<i64>) -> Result<(Vec<Option<i64>>, Fit), SessionError> {
        let (Some(dim), Some(rows)) = (&self.bucketed, rows) else { return Ok((vec![None], Fit::Exact)) };
        if rows == 0 || matches!(dim.verdict.grade, Grade::Refused { .. }) {
            return Ok((vec![Some(rows)], Fit::Exact));
        }
        let cover = dim.covers.cover(rows);
        match cover[..] {
            [] => Err(SessionError::Request(format!(
                "{} = {rows} is above the largest Bucket {}; the model may not be split along it",
                dim.symbol,
                dim.extents.last().copied().unwrap_or(0)
            ))),
            [extent] if extent == rows => Ok((vec![Some(extent)], Fit::Exact)),
            [extent] => Ok((vec![Some(extent)], Fit::Padded)),
            _ => Ok((cover.into_iter().map(Some).collect(), Fit::Split)),
        }
    }

    /// The Bucket of a request's dims, with the bucketed one at an extent.
    fn bucket(&self, dims: &Bindings, extent: Option<i64>) -> Bucket {
        let bucketed = self.bucketed.as_ref().map(|dim| &dim.symbol);
        Bucket::new(dims.iter().map(|(symbol, number)| {
            let number = if Some(symbol) == bucketed { extent.unwrap_or(number) } else { number };
            (symbol.as_str().to_string(), number)
        }))
    }

    fn on_hand(&self, bucket: &Bucket) -> Option<Arc<ContextPool>> {
        self.programs.read().unwrap_or_else(|poisoned| poisoned.into_inner()).get(bucket).cloned()
    }

    /// The smallest loaded Bucket with room for an extent.
    fn larger(&self, dims: &Bindings, extent: Option<i64>) -> Option<(i64, Arc<ContextPool>)> {
        let dim = self.bucketed.as_ref()?;
        let least = extent?;
        let mut candidates = dim.extents.iter().filter(|&&candidate| candidate >= least);
        candidates.find_map(|&candidate| Some((candidate, self.on_hand(&self.bucket(dims, Some(candidate)))?)))
    }

    /// Loads the Program of a Bucket, and compiles it where no tier of the cache has it.
    fn load(&self, bucket: &Bucket) -> Result<(Arc<ContextPool>, Origin), SessionError> {
        let graph = self.graph.bind(&bucket.bindings(), &BTreeMap::new())?;
        let record = self.record(&graph, bucket);
        let fetched = self.cache.get_or(&record, || self.target.compile(&graph, bucket, self.cache.store()));
        let fetched = match fetched {
            Ok(fetched) => fetched,
            Err(GetError::Make(error)) => return Err(SessionError::Compile(error)),
            Err(GetError::Missing(miss)) => return Err(SessionError::NotCached(miss)),
        };
        let origin = match fetched.origin {
            precast_cache::Origin::Memory | precast_cache::Origin::Disk => Origin::Loaded,
            precast_cache::Origin::Remote => Origin::Fetched,
            precast_cache::Origin::Compiled => {
                self.counters.count_compile();
                Origin::Compiled
            }
        };
        let loaded = self.device.load(&fetched.program, self.cache.store())?;
        let pool = Arc::new(ContextPool::new(loaded));
        let mut programs = self.programs.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if programs.len() >= self.options.exact_programs_max.max(1) + self.ladder_len() {
            let kept = |bucket: &Bucket| self.is_ladder(bucket);
            programs.retain(|bucket, _| kept(bucket));
        }
        let pool = programs.entry(bucket.clone()).or_insert(pool).clone();
        Ok((pool, origin))
    }

    fn ladder_len(&self) -> usize {
        self.bucketed.as_ref().map_or(0, |dim| dim.extents.len())
    }

    fn is_ladder(&self, bucket: &Bucket) -> bool {
        self.bucketed.as_ref().is_some_and(|dim| {
            bucket.dims().any(|(symbol, extent)| symbol == dim.symbol.as_str() && dim.extents.contains(&extent))
        })
    }

    /// Everything that the code of a Bucket's Program depends on.
    fn record(&self, graph: &Graph, bucket: &Bucket) -> KeyRecord {
        let inputs = graph.inputs().iter().map(|&input| graph.ty(input).to_string());
        let outputs = graph.outputs().iter().map(|output| graph.ty(output.value).to_string());
        KeyRecord {
            schema: KeyRecord::current_schema(),
            compiler: BUILD.to_string(),
            graph: self.digests.0,
            weights: self.digests.1,
            bucket: bucket.clone(),
            types: inputs.chain(outputs).collect(),
            precision: BTreeMap::new(),
            calibration: None,
            options: self.options.target_options.clone(),
            tuning: None,
            target: self.target.description().to_string(),
            toolchain: String::new(),
            driver: None,
            custom_ops: BTreeMap::new(),
            assertions: BTreeMap::new(),
        }
    }

    fn run_binding(&self, binding: &Binding, inputs: &[Tensor]) -> Result<Vec<Tensor>, SessionError> {
        let Some(dim) = self.bucketed.as_ref() else { return Ok(binding.chunks[0].1.run(inputs)?) };
        let mut parts: Vec<(Vec<Tensor>, usize)> = Vec::new();
        let mut start = 0;
        for (chunk, pool) in &binding.chunks {
            let (rows, bucket) = (chunk.rows as usize, chunk.bucket as usize);
            let taken = inputs.iter().zip(&dim.inputs).map(|(input, at)| match at {
                Some(at) => take_rows(input, *at, start, rows, bucket),
                None => Ok(input.clone()),
            });
            let taken: Vec<Tensor> = taken.collect::<Result<_, _>>()?;
            parts.push((pool.run(&taken)?, rows));
            start += rows;
        }
        let outputs = dim.outputs.iter().enumerate().map(|(position, at)| match at {
            None => Ok(parts[0].0[position].clone()),
            Some(at) => {
                let own: Vec<(Tensor, usize)> =
                    parts.iter().map(|(tensors, rows)| (tensors[position].clone(), *rows)).collect();
                Ok(join_rows(&own, *at)?)
            }
        });
        outputs.collect()
    }

    fn run_reference(&self, inputs: &[Tensor], rows: i64) -> Result<(Vec<Tensor>, RunReport), SessionError> {
        let outputs = eval_graph(&self.graph, inputs)?;
        let report = RunReport {
            tier: Tier::Standard,
            path: Path::Reference,
            fit: Fit::Exact,
            origin: Origin::Warm,
            reason: Reason::Reference,
            chunks: vec![Chunk { bucket: rows, rows }],
        };
        self.counters.count(&report);
        Ok((outputs, report))
    }
}

/// What `bind` found.
enum Bound {
    Ready(Arc<Binding>, Origin),
    Reference(i64),
}

/// The dim that the options give Buckets, with the proof of what padding does to it.
fn bucketed_dim(graph: &Graph, options: &SessionOptions) -> Result<Option<BucketedDim>, SessionError> {
    let symbols = graph.symbols();
    let mut found = None;
    for (name, dim) in &options.dims {
        let symbol = Symbol::from(name.as_str());
        if !symbols.contains(&symbol) {
            let known: Vec<String> = symbols.iter().map(ToString::to_string).collect();
            return Err(SessionError::Options(format!(
                "the model has no dim '{name}'; it has {}",
                if known.is_empty() { "none".to_string() } else { known.join(", ") }
            )));
        }
        let extents = dim.buckets.extents();
        if extents.is_empty() {
            continue;
        }
        if found.is_some() {
            return Err(SessionError::Options("two dims have Buckets; one may, and the others are exact".to_string()));
        }
        found = Some((symbol, extents));
    }
    let Some((symbol, extents)) = found else { return Ok(None) };
    let verdict = pad_verdict(graph, &symbol);
    let inputs = graph.inputs().iter().map(|&input| {
        let position = graph.ty(input).dims.iter().position(|dim| dim.as_symbol() == Some(&symbol));
        position.map(RowAxis::plain)
    });
    let outputs = verdict.outputs.iter().map(|rule| match rule {
        OutputRule::Rows { axis, outer, inner } => {
            Some(RowAxis { axis: *axis, outer: (*outer).max(1) as usize, inner: (*inner).max(1) as usize })
        }
        OutputRule::Whole | OutputRule::Mixed => None,
    });
    // Until runs are measured a Bucket costs a fixed part and a part for each row.
    let costs: Vec<(i64, f64)> = extents.iter().map(|&extent| (extent, CALL_COST_ROWS + extent as f64)).collect();
    let covers = CoverTable::new(&costs, verdict.split_safe);
    let (inputs, outputs) = (inputs.collect(), outputs.collect());
    Ok(Some(BucketedDim { symbol, extents, verdict, inputs, outputs, covers }))
}

/// What a call costs beside its rows, in rows: an estimate that keeps requests in one Bucket where it fits.
const CALL_COST_ROWS: f64 = 8.0;

/// Digests of a Graph without its constants and node names, and of its constants.
fn digests(graph: &Graph) -> Result<(Digest, Digest), SessionError> {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let mut anonymous = node.clone();
        anonymous.provenance = Provenance::default();
        copy.node(&anonymous)?;
    }
    let anonymous = copy.finish();
    let mut weights = String::new();
    for value in anonymous.values() {
        if let precast_ir::Definition::Constant(tensor) = &value.definition {
            weights.push_str(&tensor.digest().to_string());
        }
    }
    Ok((Digest::of_bytes(text::print(&anonymous).as_bytes()), Digest::of_bytes(weights.as_bytes())))
}
