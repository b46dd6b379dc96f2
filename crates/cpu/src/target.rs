//! Compiling for the CPU: the target's passes, one kernel a node, one arena.

use std::collections::BTreeMap;

use precast_ir::verify::verify;
use precast_ir::{Definition, Graph, Op, ValueId, text};
use precast_kernels::isa::Isa;
use precast_passes::{CANONICAL, FUSED, PassError, PassOptions, PassReport, run_passes_with};
use precast_program::program::BUILD;
use precast_program::{
    ArtifactStore, Bucket, CompileError, ConstantRef, Lifetime, Place, Port, Program, Slot, Step, Target,
    TargetDescription, TuningTable, plan_buffers,
};
use precast_tensor::{Tensor, Type};

use crate::lower::lower;
use crate::step::{Machine, Read, StepNode};
use crate::tactics::Tactics;

/// Kind of this target in descriptions.
pub const KIND: &str = "cpu";

/// Compiles for one instruction set and number of threads.
pub struct CpuTarget {
    machine: Machine,
    description: TargetDescription,
    options: PassOptions,
    tactics: Tactics,
}

impl CpuTarget {
    /// A target for an instruction set and a number of threads.
    pub fn new(isa: Isa, threads: usize, options: PassOptions) -> CpuTarget {
        let (kind, features) = (KIND.to_string(), isa.name().to_string());
        let description = TargetDescription { kind, features, threads, numerics: options.numerics.clone() };
        let machine = Machine::new(isa, threads, &options.numerics);
        CpuTarget {
            tactics: Tactics::new(machine, &description, TuningTable::default()),
            machine,
            description,
            options,
        }
    }

    /// The same target with measured choices of tactics, which decide where they have an answer.
    pub fn with_tuning(self, table: TuningTable) -> CpuTarget {
        CpuTarget { tactics: Tactics::new(self.machine, &self.description, table), ..self }
    }

    /// How the tactics of steps are chosen.
    pub fn tactics(&self) -> &Tactics {
        &self.tactics
    }

    /// The Graph as the steps will compute it.
    pub fn optimise(&self, graph: &Graph) -> Result<Graph, PassError> {
        self.optimise_with(graph, &mut |_| {})
    }

    /// The Graph as the steps will compute it; hands on what each pass did.
    pub fn optimise_with(&self, graph: &Graph, report: &mut dyn FnMut(PassReport)) -> Result<Graph, PassError> {
        let canonical = run_passes_with(graph, CANONICAL, &self.options, report)?;
        run_passes_with(&canonical, FUSED, &self.options, report)
    }

    /// Compiles a Graph as it is, without the target's passes.
    pub fn compile_optimised(
        &self,
        graph: &Graph,
        bucket: &Bucket,
        store: &dyn ArtifactStore,
    ) -> Result<Program, CompileError> {
        self.options.numerics.check().map_err(CompileError::Numerics)?;
        verify(graph).map_err(|error| CompileError::Pass { pass: "verify", reason: error.to_string() })?;
        refuse_unbound(graph)?;
        let mut emitter = Emitter::new(graph, store);
        for node in graph.nodes() {
            emitter.add_node(node, self.machine, &self.tactics)?;
        }
        emitter.add_outputs(self.machine)?;
        emitter.finish(self.description.to_string(), bucket)
    }
}

impl Target for CpuTarget {
    fn description(&self) -> &TargetDescription {
        &self.description
    }

    fn compile(&self, graph: &Graph, bucket: &Bucket, store: &dyn ArtifactStore) -> Result<Program, CompileError> {
        let pass_error = |error: PassError| CompileError::Pass { pass: error.pass, reason: error.reason };
        let optimised = self.optimise(graph).map_err(pass_error)?;
        // Passes have read constants that are folded into others by now.
        graph.release_pages();
        self.compile_optimised(&optimised, bucket, store)
    }
}

fn refuse_unbound(graph: &Graph) -> Result<(), CompileError> {
    for (position, value) in graph.values().iter().enumerate() {
        if value.ty.shape().is_none() {
            return Err(CompileError::Unbound { value: position as u32, ty: value.ty.to_string() });
        }
    }
    Ok(())
}

/// Where a value lies before the arena is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Input(u32),
    Constant(ValueId),
    Buffer(usize),
}

/// A buffer of the run: written by one step, read until another.
struct Buffer {
    bytes: u64,
    first: usize,
    last: usize,
    output: Option<u32>,
}

/// A step before places are known.
struct Draft {
    step: Step,
    reads: Vec<DraftSlot>,
    writes: Vec<usize>,
}

/// What a draft reads.
enum DraftSlot {
    Home(Home, u64),
    Stored(u32),
}

/// Collects steps and buffers of one Program.
struct Emitter<'a> {
    graph: &'a Graph,
    store: &'a dyn ArtifactStore,
    homes: Vec<Option<Home>>,
    buffers: Vec<Buffer>,
    drafts: Vec<Draft>,
    constants: Vec<ConstantRef>,
    constant_positions: BTreeMap<String, u32>,
}

impl<'a> Emitter<'a> {
    fn new(graph: &'a Graph, store: &'a dyn ArtifactStore) -> Emitter<'a> {
        let mut homes = vec![None; graph.values().len()];
        for (position, &input) in graph.inputs().iter().enumerate() {
            homes[input.0 as usize] = Some(Home::Input(position as u32));
        }
        for (position, value) in graph.values().iter().enumerate() {
            if let Definition::Constant(_) = value.definition {
                homes[position] = Some(Home::Constant(ValueId(position as u32)));
            }
        }
        Emitter {
            graph,
            store,
            homes,
            buffers: Vec::new(),
            drafts: Vec::new(),
            constants: Vec::new(),
            constant_positions: BTreeMap::new(),
        }
    }

    fn add_node(&mut self, node: &precast_ir::Node, machine: Machine, tactics: &Tactics) -> Result<(), CompileError> {
        if is_view(&node.op) {
            self.homes[node.outputs[0].0 as usize] = self.homes[node.inputs[0].0 as usize];
            return Ok(());
        }
        let mut step = StepNode::new(self.graph, node)?;
        step.tactic = tactics.choose(&step);
        let lowered = lower(&step, machine).map_err(|reason| CompileError::Node {
            node: node.provenance.to_string(),
            op: node.op.name(),
            reason,
        })?;
        let mut reads = Vec::new();
        for read in lowered.reads {
            reads.push(match read {
                Read::Input(position) => {
                    let value = node.inputs[position];
                    DraftSlot::Home(self.home(value), bytes_of(self.graph.ty(value)))
                }
                Read::Packed { value: Some(tensor), .. } => DraftSlot::Stored(self.store_constant(&tensor)?),
                Read::Packed { value: None, .. } => {
                    return Err(CompileError::Node {
                        node: node.provenance.to_string(),
                        op: node.op.name(),
                        reason: "a packed constant has no value".to_string(),
                    });
                }
            });
        }
        let mut writes: Vec<usize> = Vec::new();
        for &output in &node.outputs {
            let buffer = self.new_buffer(bytes_of(self.graph.ty(output)));
            self.homes[output.0 as usize] = Some(Home::Buffer(buffer));
            writes.push(buffer);
        }
        self.finish_constants(node);
        if lowered.scratch_bytes > 0 {
            writes.push(self.new_buffer(lowered.scratch_bytes as u64));
        }
        let provenance = node.provenance.names().iter().map(|name| name.to_string()).collect();
        self.push(lowered.kernel, step.print(), provenance, node.outputs[0].0, reads, writes);
        Ok(())
    }

    /// The digests that the graph's text will have are made while the constants are in memory; then they leave it.
    fn finish_constants(&self, node: &precast_ir::Node) {
        for tensor in node.inputs.iter().filter_map(|&input| self.graph.constant(input)) {
            tensor.digest();
            tensor.release_pages();
        }
    }

    /// Makes every output of the graph lie in the caller's buffer: the buffer that holds it, or a copy.
    fn add_outputs(&mut self, machine: Machine) -> Result<(), CompileError> {
        for (position, output) in self.graph.outputs().iter().enumerate() {
            let home = self.home(output.value);
            let bytes = bytes_of(self.graph.ty(output.value));
            if let Home::Buffer(buffer) = home
                && self.buffers[buffer].output.is_none()
                && self.buffers[buffer].bytes == bytes
            {
                self.buffers[buffer].output = Some(position as u32);
                continue;
            }
            let copy = copy_step(self.graph.ty(output.value))?;
            let lowered = lower(&copy, machine).map_err(|reason| CompileError::Node {
                node: output.name.clone(),
                op: "slice",
                reason,
            })?;
            let write = self.new_buffer(bytes);
            self.buffers[write].output = Some(position as u32);
            let reads = vec![DraftSlot::Home(home, bytes)];
            self.push(lowered.kernel, copy.print(), vec![output.name.clone()], output.value.0, reads, vec![write]);
        }
        Ok(())
    }

    fn push(
        &mut self,
        kernel: String,
        parameters: String,
        provenance: Vec<String>,
        value: u32,
        reads: Vec<DraftSlot>,
        writes: Vec<usize>,
    ) {
        let position = self.drafts.len();
        for read in &reads {
            if let DraftSlot::Home(Home::Buffer(buffer), _) = read {
                self.buffers[*buffer].last = position;
            }
        }
        let parameters = parameters.into_bytes();
        let step = Step { kernel, parameters, reads: Vec::new(), writes: Vec::new(), provenance, value };
        self.drafts.push(Draft { step, reads, writes });
    }

    fn new_buffer(&mut self, bytes: u64) -> usize {
        let step = self.drafts.len();
        self.buffers.push(Buffer { bytes, first: step, last: step, output: None });
        self.buffers.len() - 1
    }

    fn home(&self, value: ValueId) -> Home {
        self.homes[value.0 as usize].expect("nodes are in order, so every operand has a home")
    }

    fn store_constant(&mut self, tensor: &Tensor) -> Result<u32, CompileError> {
        let digest = self.store.put(tensor)?.to_string();
        let next = self.constants.len() as u32;
        let position = *self.constant_positions.entry(digest.clone()).or_insert(next);
        if position == next {
            self.constants.push(ConstantRef { digest, bytes: tensor.as_bytes().len() as u64 });
        }
        Ok(position)
    }

    fn finish(mut self, target: String, bucket: &Bucket) -> Result<Program, CompileError> {
        let inside: Vec<usize> = (0..self.buffers.len()).filter(|&b| self.buffers[b].output.is_none()).collect();
        let lifetimes: Vec<Lifetime> = inside
            .iter()
            .map(|&buffer| {
                let Buffer { bytes, first, last, .. } = self.buffers[buffer];
                Lifetime { bytes, first, last }
            })
            .collect();
        let plan = plan_buffers(&lifetimes);
        let mut places = vec![Place::Arena(0); self.buffers.len()];
        for (position, buffer) in self.buffers.iter().enumerate() {
            if let Some(output) = buffer.output {
                places[position] = Place::Output(output);
            }
        }
        for (&buffer, &offset) in inside.iter().zip(&plan.offsets) {
            places[buffer] = Place::Arena(offset);
        }
        let mut steps = Vec::new();
        for draft in std::mem::take(&mut self.drafts) {
            let mut step = draft.step;
            for read in draft.reads {
                step.reads.push(self.slot(read, &places)?);
            }
            step.writes = draft
                .writes
                .iter()
                .map(|&buffer| Slot { place: places[buffer], bytes: self.buffers[buffer].bytes })
                .collect();
            steps.push(step);
        }
        Ok(Program {
            target,
            build: BUILD.to_string(),
            bucket: bucket.clone(),
            inputs: self.graph.inputs().iter().map(|&v| port(self.graph.input_name(v), self.graph.ty(v))).collect(),
            outputs: self.graph.outputs().iter().map(|o| port(&o.name, self.graph.ty(o.value))).collect(),
            steps,
            arena_bytes: plan.arena_bytes,
            live_bytes_max: plan.live_bytes_max,
            constants: self.constants,
            graph: text::print(self.graph),
        })
    }

    fn slot(&mut self, read: DraftSlot, places: &[Place]) -> Result<Slot, CompileError> {
        Ok(match read {
            DraftSlot::Home(Home::Input(position), bytes) => Slot { place: Place::Input(position), bytes },
            DraftSlot::Home(Home::Buffer(buffer), bytes) => Slot { place: places[buffer], bytes },
            DraftSlot::Home(Home::Constant(value), bytes) => {
                let tensor = self.graph.constant(value).expect("a constant's home is a constant").clone();
                Slot { place: Place::Constant(self.store_constant(&tensor)?), bytes }
            }
            DraftSlot::Stored(position) => {
                Slot { place: Place::Constant(position), bytes: self.constants[position as usize].bytes }
            }
        })
    }
}

/// Whether a node's result is its operand's bytes under another Type.
fn is_view(op: &Op) -> bool {
    matches!(op, Op::Reshape(_) | Op::Bitcast(_))
}

/// A step that copies a value of this Type as it is.
fn copy_step(ty: &Type) -> Result<StepNode, CompileError> {
    let mut graph = Graph::new("");
    let x = graph.add_input("x0", ty.clone());
    let rank = ty.dims.len();
    let copy = precast_ir::op::Slice { start: vec![0.into(); rank], step: vec![1; rank], size: ty.dims.clone() };
    graph.add(copy, &[x], &Default::default())?;
    Ok(StepNode::new(&graph, &graph.nodes()[0])?)
}

fn bytes_of(ty: &Type) -> u64 {
    ty.size_bytes().expect("all dims are numbers here") as u64
}

fn port(name: &str, ty: &Type) -> Port {
    let shape = ty.shape().expect("all dims are numbers here");
    Port {
        name: name.to_string(),
        dtype: ty.dtype.name().to_string(),
        shape: shape.iter().map(|&size| size as u64).collect(),
        bytes: bytes_of(ty),
    }
}
