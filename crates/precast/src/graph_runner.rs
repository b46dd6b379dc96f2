//! Runs one Graph: compiled parts by Programs, host nodes by their meaning or, for `if` and `loop`, by runners of their
//! bodies. Parts whose sizes depend on values are compiled when the values are known, once for each set of sizes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use precast_ir::eval::bind_shape;
use precast_ir::op::{If, Loop};
use precast_ir::{EvalError, Graph, NodeId, Op, Operation, ValueId};
use precast_passes::cut_segments::{Segment, cut_segments};
use precast_passes::{CANONICAL, PassOptions, run_passes};
use precast_program::{Bucket, Device, MemoryStore, Program, Target};
use precast_session::ContextPool;
use precast_tensor::{Bindings, Tensor, Type};

use crate::error::Error;
use crate::tuning::Tuning;

/// What all runners of a model share.
pub struct Shared {
    pub target: Arc<dyn Target>,
    pub device: Arc<dyn Device>,
    pub store: MemoryStore,
    pub tuning: Tuning,
}

impl Shared {
    /// Compiles a Graph whose dims are all numbers, measuring tactics first if asked to.
    fn compile(&self, graph: &Graph, bucket: &Bucket) -> Result<Program, Error> {
        let optimised = self.target.optimise(graph)?;
        if self.tuning.is_measuring() {
            self.tuning.tune(&optimised);
        }
        Ok(self.target.compile_optimised(&optimised, bucket, &self.store)?)
    }
}

/// Sizes of one part that are kept compiled; beyond this the set is dropped and begun again.
const PARTS_KEPT: usize = 256;

/// Key of a compiled part: which part, and the Types of its inputs. Sizes that were read are part of the Types and of
/// the bindings.
#[derive(Clone, PartialEq, Eq, Hash)]
struct PartKey {
    part: usize,
    types: Vec<Type>,
    bindings: Vec<(String, i64)>,
}

/// Key of a body's runner: which node, which branch, and the Types it is given.
#[derive(Clone, PartialEq, Eq, Hash)]
struct BodyKey {
    node: u32,
    branch: usize,
    types: Vec<Type>,
}

/// Runs one Graph.
pub struct GraphRunner {
    shared: Arc<Shared>,
    pieces: Pieces,
}

/// What a Graph is made of.
enum Pieces {
    /// One part, whose inputs and outputs are the Graph's own.
    Whole(Mutex<Whole>),
    /// Parts with host nodes between them.
    Cut(Box<CutGraph>),
}

/// A Graph that is one part. Its Graph is let go once it is compiled, with the constants that only the compiler needs.
enum Whole {
    Graph(Box<Graph>),
    Compiled(Arc<Program>),
    Loaded(Arc<ContextPool>),
}

/// A Graph that is several parts.
struct CutGraph {
    shared: Arc<Shared>,
    graph: Graph,
    segments: Vec<Segment>,
    parts: Mutex<HashMap<PartKey, Arc<ContextPool>>>,
    bodies: Mutex<HashMap<BodyKey, Arc<GraphRunner>>>,
}

impl GraphRunner {
    /// A runner of a Graph whose input dims are numbers.
    pub fn new(shared: Arc<Shared>, graph: &Graph) -> Result<GraphRunner, Error> {
        let canonical = run_passes(graph, CANONICAL, &PassOptions::default())?;
        graph.release_pages();
        let segments = cut_segments(&canonical)?;
        let is_host = |segment: &Segment| matches!(segment, Segment::Host { .. });
        let is_whole = segments.len() <= 1 && !segments.iter().any(is_host) && canonical.symbols().is_empty();
        let pieces = match is_whole {
            true => Pieces::Whole(Mutex::new(Whole::Graph(Box::new(canonical)))),
            false => Pieces::Cut(Box::new(CutGraph::new(shared.clone(), canonical, segments))),
        };
        Ok(GraphRunner { shared, pieces })
    }

    /// The Program of a Graph that is one part, loaded.
    pub fn whole(&self) -> Result<Option<Arc<ContextPool>>, Error> {
        match &self.pieces {
            Pieces::Whole(whole) => self.load_whole(whole).map(Some),
            Pieces::Cut(_) => Ok(None),
        }
    }

    fn load_whole(&self, whole: &Mutex<Whole>) -> Result<Arc<ContextPool>, Error> {
        let mut whole = whole.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Whole::Graph(graph) = &*whole {
            let program = self.shared.compile(graph, &Bucket::default())?;
            *whole = Whole::Compiled(Arc::new(program));
        }
        let pool = match &*whole {
            Whole::Loaded(pool) => return Ok(pool.clone()),
            Whole::Compiled(program) => self.shared.load(program)?,
            Whole::Graph(_) => unreachable!("it was compiled above"),
        };
        *whole = Whole::Loaded(pool.clone());
        Ok(pool)
    }

    /// The Program of a Graph that is one part, compiled but not loaded.
    pub fn compile_whole(self, bucket: &Bucket) -> Result<Option<Program>, Error> {
        let Pieces::Whole(whole) = self.pieces else { return Ok(None) };
        match whole.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            Whole::Graph(graph) => Ok(Some(self.shared.compile(&graph, bucket)?)),
            Whole::Compiled(program) => Ok(Some(Program::clone(&program))),
            Whole::Loaded(pool) => Ok(Some(pool.program().clone())),
        }
    }

    /// Outputs in order.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        match &self.pieces {
            Pieces::Whole(whole) => Ok(self.load_whole(whole)?.run(inputs)?),
            Pieces::Cut(cut) => cut.run(inputs),
        }
    }
}

impl Shared {
    fn load(&self, program: &Arc<Program>) -> Result<Arc<ContextPool>, Error> {
        let loaded = self.device.load(program, &self.store)?;
        Ok(Arc::new(ContextPool::new(loaded, self.device.clone())))
    }
}

impl CutGraph {
    fn new(shared: Arc<Shared>, graph: Graph, segments: Vec<Segment>) -> CutGraph {
        CutGraph { shared, graph, segments, parts: Mutex::default(), bodies: Mutex::default() }
    }

    /// Outputs in order.
    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let mut values = Values::new(&self.graph, inputs);
        for (part, segment) in self.segments.iter().enumerate() {
            match segment {
                Segment::Host { node } => self.run_host(*node, &mut values)?,
                Segment::Compiled { graph, inputs, outputs } => {
                    let tensors: Vec<Tensor> = inputs.iter().map(|&v| values.get(v)).collect::<Result<_, Error>>()?;
                    let results = self.run_part(part, graph, &tensors, &values.bindings)?;
                    for (&output, tensor) in outputs.iter().zip(results) {
                        values.set(output, tensor);
                    }
                }
            }
        }
        self.graph.outputs().iter().map(|output| values.get(output.value)).collect()
    }

    fn run_part(
        &self,
        part: usize,
        graph: &Graph,
        inputs: &[Tensor],
        bindings: &Bindings,
    ) -> Result<Vec<Tensor>, Error> {
        let types: Vec<Type> = inputs.iter().map(Tensor::type_).collect();
        let symbols = graph.symbols();
        let bindings_used: Vec<(String, i64)> = bindings
            .iter()
            .filter(|&(symbol, _)| symbols.contains(symbol))
            .map(|(symbol, number)| (symbol.as_str().to_string(), number))
            .collect();
        let key = PartKey { part, types: types.clone(), bindings: bindings_used };
        let loaded = self.part(key, || {
            let input_types: BTreeMap<usize, Type> = types.into_iter().enumerate().collect();
            Ok(graph.bind(bindings, &input_types)?)
        })?;
        Ok(loaded.run(inputs)?)
    }

    fn part(&self, key: PartKey, graph: impl FnOnce() -> Result<Graph, Error>) -> Result<Arc<ContextPool>, Error> {
        let mut parts = self.parts.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(part) = parts.get(&key) {
            return Ok(part.clone());
        }
        let graph = graph()?;
        let bucket = Bucket::new(key.bindings.iter().cloned());
        let program = Arc::new(self.shared.compile(&graph, &bucket)?);
        let part = self.shared.load(&program)?;
        if parts.len() >= PARTS_KEPT {
            parts.clear();
        }
        parts.insert(key, part.clone());
        Ok(part)
    }

    fn run_host(&self, id: NodeId, values: &mut Values<'_>) -> Result<(), Error> {
        let node = self.graph.node(id);
        let inputs: Vec<Tensor> = node.inputs.iter().map(|&input| values.get(input)).collect::<Result<_, Error>>()?;
        let outputs = match &node.op {
            Op::If(op) => self.run_if(id, op, &inputs)?,
            Op::Loop(op) => self.run_loop(id, op, &inputs)?,
            op => op.bind(&values.bindings).eval(&inputs)?,
        };
        for (&output, tensor) in node.outputs.iter().zip(outputs) {
            values.set(output, tensor);
        }
        Ok(())
    }

    fn run_if(&self, node: NodeId, op: &If, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let is_true = flag(&inputs[0])?;
        let (branch, body) = if is_true { (0, &op.then_body) } else { (1, &op.else_body) };
        self.body(node, branch, body, &inputs[1..])?.run(&inputs[1..])
    }

    fn run_loop(&self, node: NodeId, op: &Loop, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let trips = inputs[0].to_i64_vec()?.first().copied().unwrap_or(0);
        let mut goes_on = flag(&inputs[1])?;
        let (carried, captures) = inputs[2..].split_at(op.carried);
        let mut carried = carried.to_vec();
        let scans = op.body.outputs().len() - 1 - op.carried;
        let mut slices: Vec<Vec<Tensor>> = vec![Vec::new(); scans];
        let mut iteration: i64 = 0;
        while iteration < trips && goes_on {
            let mut arguments = vec![Tensor::scalar(iteration), Tensor::from_bools(Vec::new(), &[goes_on])?];
            arguments.extend(carried);
            arguments.extend_from_slice(captures);
            let mut results = self.body(node, 0, &op.body, &arguments)?.run(&arguments)?;
            let scanned = results.split_off(1 + op.carried);
            for (slices, slice) in slices.iter_mut().zip(scanned) {
                slices.push(slice);
            }
            carried = results.split_off(1);
            goes_on = flag(&results[0])?;
            iteration += 1;
        }
        let stacked = match iteration {
            0 => no_slices(op, inputs)?,
            _ => slices.iter().map(|slices| stack(slices)).collect::<Result<_, Error>>()?,
        };
        Ok(carried.into_iter().chain(stacked).collect())
    }

    fn body(&self, node: NodeId, branch: usize, body: &Graph, inputs: &[Tensor]) -> Result<Arc<GraphRunner>, Error> {
        let types: Vec<Type> = inputs.iter().map(Tensor::type_).collect();
        let key = BodyKey { node: node.0, branch, types: types.clone() };
        if let Some(runner) = self.bodies.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get(&key) {
            return Ok(runner.clone());
        }
        let mut bindings = Bindings::new();
        for (&input, tensor) in body.inputs().iter().zip(inputs) {
            bind_shape(body.ty(input), tensor.shape(), &mut bindings);
        }
        let input_types = types.into_iter().enumerate().collect();
        let runner = Arc::new(GraphRunner::new(self.shared.clone(), &body.bind(&bindings, &input_types)?)?);
        let mut bodies = self.bodies.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if bodies.len() >= PARTS_KEPT {
            bodies.clear();
        }
        bodies.insert(key, runner.clone());
        Ok(runner)
    }
}

/// Values of a Graph that are known so far, and the symbols they decide.
struct Values<'a> {
    graph: &'a Graph,
    tensors: Vec<Option<Tensor>>,
    bindings: Bindings,
}

impl<'a> Values<'a> {
    fn new(graph: &'a Graph, inputs: &[Tensor]) -> Values<'a> {
        let mut values = Values { graph, tensors: vec![None; graph.values().len()], bindings: Bindings::new() };
        for (&input, tensor) in graph.inputs().iter().zip(inputs) {
            values.set(input, tensor.clone());
        }
        values
    }

    fn get(&self, value: ValueId) -> Result<Tensor, Error> {
        let known = self.tensors[value.0 as usize].as_ref().or_else(|| self.graph.constant(value));
        known.cloned().ok_or_else(|| Error::Request(format!("value {value} is needed before it is computed")))
    }

    fn set(&mut self, value: ValueId, tensor: Tensor) {
        bind_shape(self.graph.ty(value), tensor.shape(), &mut self.bindings);
        for size in self.graph.sizes.iter().filter(|size| size.value == value) {
            if let Some(&number) = tensor.to_i64_vec().ok().as_deref().and_then(|elements| elements.get(size.element)) {
                self.bindings.insert(size.symbol.clone(), number);
            }
        }
        self.tensors[value.0 as usize] = Some(tensor);
    }
}

fn flag(tensor: &Tensor) -> Result<bool, Error> {
    match tensor.to_bools()?[..] {
        [flag] => Ok(flag),
        ref flags => Err(Error::Request(format!("a condition has {} elements; one was expected", flags.len()))),
    }
}

/// The scan outputs of a loop that never ran. What it was given decides the sizes that its slices would have had.
fn no_slices(op: &Loop, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
    let types: Vec<Type> = inputs.iter().map(Tensor::type_).collect();
    let outputs = op.infer(&types.iter().collect::<Vec<_>>()).map_err(EvalError::from)?;
    let empty = |ty: &Type| {
        let sizes = ty.dims.iter().skip(1).map(|dim| dim.as_usize().unwrap_or(0));
        Ok(Tensor::zeros(ty.dtype, std::iter::once(0).chain(sizes).collect::<Vec<usize>>())?)
    };
    outputs[op.carried..].iter().map(empty).collect()
}

/// Slices of a scan output, one after another along a new first axis.
fn stack(slices: &[Tensor]) -> Result<Tensor, Error> {
    let first = slices.first().ok_or_else(|| Error::Request("a loop that ran has no slices".to_string()))?;
    let mut shape = vec![slices.len()];
    shape.extend_from_slice(first.shape());
    let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.as_bytes().iter().copied()).collect();
    Ok(Tensor::new(first.dtype(), shape, bytes.into())?.aligned())
}
