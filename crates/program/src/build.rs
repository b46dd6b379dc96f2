//! Building a Program: steps in the order of the graph's nodes, buffers that live from the step that writes them to the last
//! that reads them, constants in the store. Which kernel a step is, is the target's business.

use std::collections::BTreeMap;

use precast_ir::{Definition, Graph, Node, Op, ValueId, text};
use precast_tensor::{Tensor, Type};

use crate::bucket::Bucket;
use crate::plan::{Lifetime, Reuse, plan_buffers};
use crate::program::{BUILD, ConstantRef, Place, Port, Program, Slot, Step};
use crate::store::ArtifactStore;
use crate::target::CompileError;

/// What a node becomes, before it is known where its buffers lie.
pub struct StepDraft {
    /// Name of the kernel, for people.
    pub kernel: String,
    /// What the target needs to make the kernel again.
    pub parameters: Vec<u8>,
    /// Buffers it reads, in order.
    pub reads: Vec<StepRead>,
    /// Memory it needs while it runs; written buffers that nothing else reads.
    pub scratch_bytes: Vec<u64>,
}

/// A buffer that a step reads.
pub enum StepRead {
    /// The node's operand of this position.
    Operand(usize),
    /// A constant made while compiling.
    Stored(Tensor),
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

/// Collects the steps and buffers of one Program; the arena is planned when all are there.
pub struct ProgramBuilder<'a> {
    graph: &'a Graph,
    store: &'a dyn ArtifactStore,
    homes: Vec<Option<Home>>,
    buffers: Vec<Buffer>,
    drafts: Vec<Draft>,
    constants: Vec<ConstantRef>,
    constant_positions: BTreeMap<String, u32>,
    reuse: Reuse,
}

impl<'a> ProgramBuilder<'a> {
    /// A Program without steps for a graph, whose dims must all be numbers.
    pub fn new(graph: &'a Graph, store: &'a dyn ArtifactStore) -> Result<ProgramBuilder<'a>, CompileError> {
        refuse_unsized(graph)?;
        let mut homes = vec![None; graph.values().len()];
        for (position, &input) in graph.inputs().iter().enumerate() {
            homes[input.0 as usize] = Some(Home::Input(position as u32));
        }
        for (position, value) in graph.values().iter().enumerate() {
            if let Definition::Constant(_) = value.definition {
                homes[position] = Some(Home::Constant(ValueId(position as u32)));
            }
        }
        Ok(ProgramBuilder {
            graph,
            store,
            homes,
            buffers: Vec::new(),
            drafts: Vec::new(),
            constants: Vec::new(),
            constant_positions: BTreeMap::new(),
            reuse: Reuse::default(),
        })
    }

    /// The same with another way to plan the arena.
    pub fn with_reuse(self, reuse: Reuse) -> ProgramBuilder<'a> {
        ProgramBuilder { reuse, ..self }
    }

    /// Whether a node's result is its operand's bytes under another Type.
    pub fn is_view(op: &Op) -> bool {
        matches!(op, Op::Reshape(_) | Op::Bitcast(_))
    }

    /// Adds a node whose result is its operand's bytes under another Type: no step.
    pub fn add_view(&mut self, node: &Node) {
        self.homes[node.outputs[0].0 as usize] = self.homes[node.inputs[0].0 as usize];
    }

    /// Adds a node as one step.
    pub fn add_step(&mut self, node: &Node, draft: StepDraft) -> Result<(), CompileError> {
        let mut reads = Vec::new();
        for read in draft.reads {
            reads.push(match read {
                StepRead::Operand(position) => {
                    let value = node.inputs[position];
                    DraftSlot::Home(self.home(value), bytes_of(self.graph.ty(value)))
                }
                StepRead::Stored(tensor) => DraftSlot::Stored(self.store_constant(&tensor)?),
            });
        }
        let mut writes: Vec<usize> = Vec::new();
        for &output in &node.outputs {
            let buffer = self.new_buffer(bytes_of(self.graph.ty(output)));
            self.homes[output.0 as usize] = Some(Home::Buffer(buffer));
            writes.push(buffer);
        }
        self.finish_constants(node);
        writes.extend(draft.scratch_bytes.iter().map(|&bytes| self.new_buffer(bytes)));
        let provenance = node.provenance.names().iter().map(|name| name.to_string()).collect();
        self.push(draft.kernel, draft.parameters, provenance, node.outputs[0].0, reads, writes);
        Ok(())
    }

    /// The digests that the graph's text will have are made while the constants are in memory; then they leave it.
    fn finish_constants(&self, node: &Node) {
        for tensor in node.inputs.iter().filter_map(|&input| self.graph.constant(input)) {
            tensor.digest();
            tensor.release_pages();
        }
    }

    /// Makes every output of the graph lie in the caller's buffer: the buffer that holds it, or a copy, for which `copy`
    /// gives the step.
    pub fn add_outputs(
        &mut self,
        mut copy: impl FnMut(&Type) -> Result<StepDraft, CompileError>,
    ) -> Result<(), CompileError> {
        for (position, output) in self.graph.outputs().iter().enumerate() {
            let home = self.home(output.value);
            let ty = self.graph.ty(output.value);
            let bytes = bytes_of(ty);
            if let Home::Buffer(buffer) = home
                && self.buffers[buffer].output.is_none()
                && self.buffers[buffer].bytes == bytes
            {
                self.buffers[buffer].output = Some(position as u32);
                continue;
            }
            let draft = copy(ty)?;
            let write = self.new_buffer(bytes);
            self.buffers[write].output = Some(position as u32);
            let reads = vec![DraftSlot::Home(home, bytes)];
            let provenance = vec![output.name.clone()];
            self.push(draft.kernel, draft.parameters, provenance, output.value.0, reads, vec![write]);
        }
        Ok(())
    }

    /// Keeps a constant that is no operand, such as machine code, and gives its position in the Program.
    pub fn add_constant(&mut self, tensor: &Tensor) -> Result<u32, CompileError> {
        self.store_constant(tensor)
    }

    fn push(
        &mut self,
        kernel: String,
        parameters: Vec<u8>,
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

    /// Plans the arena and gives the Program.
    pub fn finish(mut self, target: String, bucket: &Bucket) -> Result<Program, CompileError> {
        let inside: Vec<usize> = (0..self.buffers.len()).filter(|&b| self.buffers[b].output.is_none()).collect();
        let lifetimes: Vec<Lifetime> = inside
            .iter()
            .map(|&buffer| {
                let Buffer { bytes, first, last, .. } = self.buffers[buffer];
                Lifetime { bytes, first, last }
            })
            .collect();
        let plan = plan_buffers(&lifetimes, self.reuse);
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

/// Bytes of one value beyond which no Program is made: a few numbers in a model can ask for any size.
const VALUE_BYTES_MAX: usize = 64 << 30;

/// Every value has numbers for dims, and a size that a machine may have.
fn refuse_unsized(graph: &Graph) -> Result<(), CompileError> {
    for (position, value) in graph.values().iter().enumerate() {
        let (value, ty) = (position as u32, &value.ty);
        if ty.shape().is_none() {
            return Err(CompileError::Unbound { value, ty: ty.to_string() });
        }
        if ty.size_bytes().is_none_or(|bytes| bytes > VALUE_BYTES_MAX) {
            return Err(CompileError::TooLarge { value, ty: ty.to_string(), limit: VALUE_BYTES_MAX });
        }
    }
    Ok(())
}

/// Size of a value whose dims are all numbers.
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
        in_place_of: None,
    }
}
