//! Building a Program: steps in the order of the graph's nodes, buffers that live from the step that writes them to the last
//! that reads them, constants in the store. Which kernel a step is, is the target's business.
//!
//! Values that are one run of another value's bytes need no step of their own: a slice is read where it lies, and operands of a
//! concatenation are written where they will lie in it.

use std::collections::BTreeMap;

use precast_ir::{Definition, Graph, Node, Op, ValueId, text};
use precast_tensor::{Tensor, Type};

use crate::bucket::Bucket;
use crate::plan::{ALIGN_BYTES, Form, Lifetime, Reuse, plan_buffers};
use crate::program::{BUILD, ConstantRef, Place, Port, Program, Slot, Step};
use crate::run_of_bytes::{concat_starts, slice_start};
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

/// The most steps between the one that writes a part of a concatenation and the concatenation: about a block of layers.
const PART_STEPS_MAX: usize = 16;

/// Where a value lies before the arena is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Input(u32),
    Constant(ValueId),
    /// In a buffer, at this many bytes from its start.
    Buffer(usize, u64),
}

/// A buffer of the run: written by one step, read until another.
struct Buffer {
    bytes: u64,
    form: Form,
    first: usize,
    last: usize,
    /// Whether it holds an output of the graph: then it is the caller's, and no part of another.
    is_output: bool,
    output: Option<u32>,
    /// The buffer that it is a part of, and where it starts there.
    whole: Option<(usize, u64)>,
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
    /// For each value, whether its bytes are those of an output of the graph.
    is_output: Vec<bool>,
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
            is_output: output_values(graph),
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

    /// Adds a slice that is one run of its operand's bytes as that run: no step. Says whether it could.
    pub fn add_slice_view(&mut self, node: &Node) -> bool {
        let Op::Slice(op) = &node.op else { return false };
        let Home::Buffer(buffer, offset) = self.home(node.inputs[0]) else { return false };
        let Some(start) = slice_start(self.graph, node, op).map(|start| offset + start) else { return false };
        let is_view = start.is_multiple_of(ALIGN_BYTES) && !self.buffers[buffer].is_output;
        if is_view {
            self.homes[node.outputs[0].0 as usize] = Some(Home::Buffer(buffer, start));
        }
        is_view
    }

    /// Adds a concatenation by having its operands written where they lie in it; `copy` gives the step for one that must
    /// also lie elsewhere. Says whether it could.
    pub fn add_concat_in_place(
        &mut self,
        node: &Node,
        mut copy: impl FnMut(&Type) -> Result<StepDraft, CompileError>,
    ) -> Result<bool, CompileError> {
        let Op::Concat(op) = &node.op else { return Ok(false) };
        let output = node.outputs[0];
        let Some(starts) = concat_starts(self.graph, node, op).filter(|_| !self.is_output[output.0 as usize]) else {
            return Ok(false);
        };
        let is_aligned = starts.iter().all(|start| start.is_multiple_of(ALIGN_BYTES));
        if !is_aligned || !node.inputs.iter().any(|&input| self.whole_buffer(input).is_some()) {
            return Ok(false);
        }
        let mut parts = Vec::with_capacity(starts.len());
        for &input in &node.inputs {
            let own = self.whole_buffer(input).filter(|buffer| !parts.contains(buffer));
            parts.push(match own {
                Some(buffer) => buffer,
                None => self.copy_operand(node, input, copy(self.graph.ty(input))?),
            });
        }
        let whole = self.new_buffer(output);
        for (part, start) in parts.into_iter().zip(starts) {
            self.buffers[part].whole = Some((whole, start));
        }
        self.homes[output.0 as usize] = Some(Home::Buffer(whole, 0));
        Ok(true)
    }

    /// The buffer that holds a value and nothing else, if it may become a part of another one. One that was written long ago
    /// may not: the memory of all parts would be taken since then.
    fn whole_buffer(&self, value: ValueId) -> Option<usize> {
        let Home::Buffer(buffer, 0) = self.home(value) else { return None };
        let Buffer { bytes, first, is_output, whole, .. } = self.buffers[buffer];
        let is_recent = self.drafts.len() - first <= PART_STEPS_MAX;
        (bytes == bytes_of(self.graph.ty(value)) && is_recent && !is_output && whole.is_none()).then_some(buffer)
    }

    /// A copy of an operand in a buffer of its own.
    fn copy_operand(&mut self, node: &Node, operand: ValueId, draft: StepDraft) -> usize {
        let bytes = bytes_of(self.graph.ty(operand));
        let write = self.new_scratch(bytes);
        let reads = vec![DraftSlot::Home(self.home(operand), bytes)];
        let provenance = node.provenance.names().iter().map(|name| name.to_string()).collect();
        self.push(draft.kernel, draft.parameters, provenance, node.outputs[0].0, reads, vec![write]);
        write
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
            let buffer = self.new_buffer(output);
            self.homes[output.0 as usize] = Some(Home::Buffer(buffer, 0));
            writes.push(buffer);
        }
        self.finish_constants(node);
        writes.extend(draft.scratch_bytes.iter().map(|&bytes| self.new_scratch(bytes)));
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
            if let Home::Buffer(buffer, 0) = home
                && self.buffers[buffer].is_output
                && self.buffers[buffer].output.is_none()
                && self.buffers[buffer].bytes == bytes
            {
                self.buffers[buffer].output = Some(position as u32);
                continue;
            }
            let draft = copy(ty)?;
            let write = self.new_scratch(bytes);
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
            if let DraftSlot::Home(Home::Buffer(buffer, _), _) = read {
                self.buffers[*buffer].last = position;
            }
        }
        let step = Step { kernel, parameters, reads: Vec::new(), writes: Vec::new(), provenance, value };
        self.drafts.push(Draft { step, reads, writes });
    }

    /// A buffer for a value that the next step writes.
    fn new_buffer(&mut self, value: ValueId) -> usize {
        let ty = self.graph.ty(value);
        let buffer = self.new_scratch(bytes_of(ty));
        self.buffers[buffer].form = form_of(ty);
        self.buffers[buffer].is_output = self.is_output[value.0 as usize];
        buffer
    }

    /// A buffer for no value of the graph.
    fn new_scratch(&mut self, bytes: u64) -> usize {
        let step = self.drafts.len();
        let (first, last, form) = (step, step, Form::Scratch);
        self.buffers.push(Buffer { bytes, form, first, last, is_output: false, output: None, whole: None });
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
        self.join_lives();
        let is_inside =
            |buffer: &usize| self.buffers[*buffer].output.is_none() && self.buffers[*buffer].whole.is_none();
        let inside: Vec<usize> = (0..self.buffers.len()).filter(is_inside).collect();
        let lifetimes: Vec<Lifetime> = inside
            .iter()
            .map(|&buffer| {
                let Buffer { bytes, form, first, last, .. } = self.buffers[buffer];
                Lifetime { bytes, first, last, form }
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
        // A buffer comes after its parts.
        for (position, buffer) in self.buffers.iter().enumerate().rev() {
            if let Some((whole, start)) = buffer.whole {
                places[position] = moved(places[whole], start);
            }
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

    /// A buffer with parts lives while any of them does.
    fn join_lives(&mut self) {
        for part in 0..self.buffers.len() {
            if let Some((whole, _)) = self.buffers[part].whole {
                let Buffer { first, last, .. } = self.buffers[part];
                let whole = &mut self.buffers[whole];
                (whole.first, whole.last) = (whole.first.min(first), whole.last.max(last));
            }
        }
    }

    fn slot(&mut self, read: DraftSlot, places: &[Place]) -> Result<Slot, CompileError> {
        Ok(match read {
            DraftSlot::Home(Home::Input(position), bytes) => Slot { place: Place::Input(position), bytes },
            DraftSlot::Home(Home::Buffer(buffer, offset), bytes) => {
                Slot { place: moved(places[buffer], offset), bytes }
            }
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

/// For each value, whether its bytes are those of an output of the graph, as they are or under another Type.
fn output_values(graph: &Graph) -> Vec<bool> {
    let mut is_output = vec![false; graph.values().len()];
    for output in graph.outputs() {
        let mut value = output.value;
        is_output[value.0 as usize] = true;
        while let Some((producer, _)) = graph.producer(value)
            && ProgramBuilder::is_view(&producer.op)
        {
            value = producer.inputs[0];
            is_output[value.0 as usize] = true;
        }
    }
    is_output
}

/// Pixels of a plane from which on kernels cut every plane of one image, not the channels.
const PLANE_AREA_MIN: usize = 1024;

/// How threads share a value: large planes of one image each by themselves, others as a whole.
fn form_of(ty: &Type) -> Form {
    let shape = ty.shape().expect("all dims are numbers here");
    match shape[..] {
        [1, _, height, width] if height * width >= PLANE_AREA_MIN => {
            Form::Planes((height * width * ty.dtype.size_bytes()) as u64)
        }
        _ => Form::Whole,
    }
}

/// A place some bytes farther on; only buffers of the arena have parts.
fn moved(place: Place, bytes: u64) -> Place {
    match place {
        Place::Arena(offset) => Place::Arena(offset + bytes),
        Place::Input(_) | Place::Output(_) | Place::Constant(_) => place,
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
