//! One run at a time on a GPU: a stream, an arena, staging for the caller's buffers, and captures of the Programs that run
//! often. Everything a launch touches is owned here or by the loaded Program, which a capture keeps alive.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use precast_driver::{Device, DeviceBuffer, DriverError, Event, GraphExec, PinnedBuffer, Stream};
use precast_ir::eval::eval_graph;
use precast_program::{DeviceContext, LoadedProgram, Place, Program, RunError, Slot};
use precast_tensor::Tensor;

use crate::device::{Loaded, LoadedLaunch, LoadedStep, Segment, Word};

/// Ordinary runs before a Program is captured: they load machine code and touch all memory.
const WARM_RUNS: u32 = 2;
/// Programs with their tables and captures that a context keeps.
const STATES_MAX: usize = 16;
/// Alignment of the caller's buffers in the staging memory.
const SLOT_ALIGN: usize = 256;
/// Bytes of an address in a table.
const WORD: usize = size_of::<u64>();

/// Memory and captures of one run at a time.
pub struct GpuContext {
    device: Device,
    workspace_bytes: u64,
    is_capturing: bool,
    /// Made by the first run, since making it may fail.
    parts: Option<Parts>,
}

/// What is on the device.
struct Parts {
    /// Before the memory that they refer to, so that they are dropped first.
    states: Vec<State>,
    stream: Stream,
    arena: DeviceBuffer,
    staging: DeviceBuffer,
    pinned: PinnedBuffer,
}

/// One Program in this context.
struct State {
    /// Before what they refer to, so that they are dropped first.
    staged: Captures,
    direct: Captures,
    loaded: Arc<Loaded>,
    io: IoPlan,
    /// Addresses of the caller's buffers: the staged ones, then those on the device.
    table: DeviceBuffer,
    table_pinned: PinnedBuffer,
    /// What the table holds for runs on the device's memory.
    direct_addresses: Vec<u64>,
}

/// Recorded segments of a Program, each between two steps of the host.
#[derive(Default)]
struct Captures {
    runs: u32,
    segments: Vec<Option<GraphExec>>,
    /// Why recording failed, after which it is not tried again.
    failure: Option<String>,
}

/// Where the caller's buffers lie in the staging memory.
struct IoPlan {
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    inputs_end: usize,
    bytes: usize,
}

impl IoPlan {
    fn new(program: &Program) -> IoPlan {
        let mut end = 0;
        let mut place = |bytes: u64| {
            let at = end;
            end += (bytes as usize).div_ceil(SLOT_ALIGN) * SLOT_ALIGN;
            at
        };
        let inputs = program.inputs.iter().map(|port| place(port.bytes)).collect();
        let inputs_end = place(0);
        let outputs = program.outputs.iter().map(|port| place(port.bytes)).collect();
        IoPlan { inputs, outputs, inputs_end, bytes: place(0) }
    }
}

/// Where the addresses of the caller's buffers come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Copies in the staging memory.
    Staged,
    /// Memory of the device.
    Direct,
}

impl GpuContext {
    pub(crate) fn new(device: &Device, workspace_bytes: u64) -> GpuContext {
        GpuContext { device: device.clone(), workspace_bytes, is_capturing: true, parts: None }
    }

    /// Whether Programs that run often are captured; they are unless this says otherwise.
    pub fn set_capturing(&mut self, is_capturing: bool) {
        self.is_capturing = is_capturing;
    }

    /// Runs a Program on memory of the device, without waiting for the end. Every buffer must have its Port's bytes.
    pub fn submit(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: &[&DeviceBuffer],
        outputs: &[&DeviceBuffer],
    ) -> Result<(), RunError> {
        let loaded = Loaded::of(program).ok_or(RunError::ForeignProgram)?;
        check_device_buffers(&loaded.program, inputs, outputs)?;
        let at = self.state(loaded)?;
        let is_capturing = self.is_capturing;
        let parts = self.parts.as_mut().expect("made by `state`");
        let addresses = || inputs.iter().chain(outputs).map(|buffer| buffer.address());
        if !addresses().eq(parts.states[at].direct_addresses.iter().copied()) {
            parts.write_direct_table(at, addresses().collect()).map_err(refused)?;
        }
        parts.run(at, Mode::Direct, is_capturing)
    }

    /// Waits for what was submitted.
    pub fn synchronize(&self) -> Result<(), RunError> {
        self.parts.as_ref().map_or(Ok(()), |parts| parts.stream.synchronize()).map_err(refused)
    }

    /// Whether the Program is replayed, and if not, what kept it from being captured.
    pub fn capture_state(&self, program: &dyn LoadedProgram) -> (bool, Option<String>) {
        let id = Loaded::of(program).map(|loaded| loaded.id);
        let states = self.parts.iter().flat_map(|parts| &parts.states);
        let Some(state) = states.into_iter().find(|state| Some(state.loaded.id) == id) else { return (false, None) };
        let captures = [&state.direct, &state.staged];
        let is_captured = captures.iter().any(|captures| captures.segments.iter().any(Option::is_some));
        (is_captured, captures.iter().find_map(|captures| captures.failure.clone()))
    }

    /// The position of a Program's state, made if it was not there, with enough memory for it.
    fn state(&mut self, loaded: &Loaded) -> Result<usize, RunError> {
        let known = |parts: &Parts| parts.states.iter().position(|state| state.loaded.id == loaded.id);
        if let Some(at) = self.parts.as_ref().and_then(known) {
            return Ok(at);
        }
        let io = IoPlan::new(&loaded.program);
        let needed = loaded.program.arena_bytes.max(self.workspace_bytes);
        self.make_parts(needed, io.bytes).map_err(refused)?;
        let parts = self.parts.as_mut().expect("made above");
        if parts.states.len() == STATES_MAX {
            parts.stream.synchronize().map_err(refused)?;
            parts.states.remove(0);
        }
        let state = parts.new_state(loaded.shared(), io).map_err(refused)?;
        parts.states.push(state);
        Ok(parts.states.len() - 1)
    }

    /// Makes the memory, or makes it anew where it is too small: recorded addresses are void then.
    fn make_parts(&mut self, workspace_bytes: u64, io_bytes: usize) -> Result<(), DriverError> {
        let fits = |parts: &Parts| parts.arena.len() as u64 >= workspace_bytes && parts.staging.len() >= io_bytes;
        if self.parts.as_ref().is_some_and(fits) {
            return Ok(());
        }
        let (old_workspace, old_io) =
            self.parts.as_ref().map_or((0, 0), |parts| (parts.arena.len() as u64, parts.staging.len()));
        if let Some(parts) = self.parts.take() {
            parts.stream.synchronize()?;
        }
        let (workspace_bytes, io_bytes) = (workspace_bytes.max(old_workspace), io_bytes.max(old_io));
        self.parts = Some(Parts {
            states: Vec::new(),
            stream: self.device.stream()?,
            arena: self.device.allocate(workspace_bytes as usize)?,
            staging: self.device.allocate(io_bytes)?,
            pinned: self.device.allocate_pinned(io_bytes)?,
        });
        self.workspace_bytes = workspace_bytes;
        Ok(())
    }

    fn run_staged(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        times: Option<&mut Vec<Duration>>,
    ) -> Result<(), RunError> {
        let loaded = Loaded::of(program).ok_or(RunError::ForeignProgram)?;
        check_host_buffers(&loaded.program, inputs, outputs)?;
        let at = self.state(loaded)?;
        let is_capturing = self.is_capturing;
        let parts = self.parts.as_mut().expect("made by `state`");
        let pinned = parts.pinned.as_mut_slice();
        for (input, &start) in inputs.iter().zip(&parts.states[at].io.inputs) {
            pinned[start..start + input.len()].copy_from_slice(input);
        }
        match times {
            Some(times) => parts.run_timed(at, times)?,
            None => parts.run(at, Mode::Staged, is_capturing)?,
        }
        parts.stream.synchronize().map_err(refused)?;
        let pinned = parts.pinned.as_slice();
        for (output, &start) in outputs.iter_mut().zip(&parts.states[at].io.outputs) {
            output.copy_from_slice(&pinned[start..start + output.len()]);
        }
        Ok(())
    }
}

impl DeviceContext for GpuContext {
    fn workspace_bytes(&self) -> u64 {
        self.parts.as_ref().map_or(self.workspace_bytes, |parts| parts.arena.len() as u64)
    }

    fn reserve(&mut self, workspace_bytes: u64) {
        self.workspace_bytes = self.workspace_bytes.max(workspace_bytes);
    }

    fn run(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), RunError> {
        self.run_staged(program, inputs, outputs, None)
    }

    fn run_timed(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<Vec<Duration>, RunError> {
        let mut times = Vec::new();
        self.run_staged(program, inputs, outputs, Some(&mut times))?;
        Ok(times)
    }
}

impl State {
    fn captures(&self, mode: Mode) -> &Captures {
        if mode == Mode::Staged { &self.staged } else { &self.direct }
    }
}

impl Parts {
    fn new_state(&self, loaded: Arc<Loaded>, io: IoPlan) -> Result<State, DriverError> {
        let count = io.inputs.len() + io.outputs.len();
        let device = self.stream.device();
        let table = device.allocate(2 * count * WORD)?;
        let table_pinned = device.allocate_pinned(count * WORD)?;
        let staged: Vec<u8> = io
            .inputs
            .iter()
            .chain(&io.outputs)
            .flat_map(|&offset| (self.staging.address() + offset as u64).to_le_bytes())
            .collect();
        self.stream.upload(&table, 0, &staged)?;
        let (staged, direct) = (Captures::default(), Captures::default());
        let direct_addresses = Vec::new();
        Ok(State { loaded, io, table, table_pinned, staged, direct, direct_addresses })
    }

    /// Writes the addresses of a run on the device's memory. What runs now reads the old ones, so it is waited for.
    fn write_direct_table(&mut self, at: usize, addresses: Vec<u64>) -> Result<(), DriverError> {
        self.stream.synchronize()?;
        let state = &mut self.states[at];
        let bytes = addresses.len() * WORD;
        for (place, address) in state.table_pinned.as_mut_slice().chunks_exact_mut(WORD).zip(&addresses) {
            place.copy_from_slice(&address.to_le_bytes());
        }
        // SAFETY: both buffers belong to this state, and the pinned one is written only after the stream was waited for.
        unsafe { self.stream.copy_to_device(&state.table, bytes, &state.table_pinned, 0..bytes)? };
        state.direct_addresses = addresses;
        Ok(())
    }

    /// Runs a Program: replays what is captured, launches the rest, and captures when it is warm.
    fn run(&mut self, at: usize, mode: Mode, is_capturing: bool) -> Result<(), RunError> {
        let loaded = &*self.states[at].loaded.clone();
        let segments = &loaded.segments;
        let captures = self.captures(at, mode);
        if captures.segments.len() != segments.len() {
            captures.segments.resize_with(segments.len(), || None);
        }
        captures.runs += 1;
        let is_ready = is_capturing && captures.failure.is_none() && captures.runs > WARM_RUNS;
        for (position, segment) in segments.iter().enumerate() {
            let edges = Edges { is_first: position == 0, is_last: position + 1 == segments.len() };
            match segment {
                Segment::Host(step) => self.run_host_step(at, mode, loaded, *step)?,
                Segment::Device(steps) => {
                    if is_ready && self.states[at].captures(mode).segments[position].is_none() {
                        self.capture(at, mode, loaded, steps.clone(), edges, position);
                    }
                    match &self.states[at].captures(mode).segments[position] {
                        Some(exec) => exec.launch(&self.stream).map_err(refused)?,
                        None => self.launch_segment(at, mode, loaded, steps.clone(), edges).map_err(refused)?,
                    }
                }
            }
        }
        Ok(())
    }

    fn captures(&mut self, at: usize, mode: Mode) -> &mut Captures {
        let state = &mut self.states[at];
        if mode == Mode::Staged { &mut state.staged } else { &mut state.direct }
    }

    /// Records a segment. A failure is kept and said once; runs go on without the capture.
    fn capture(
        &mut self,
        at: usize,
        mode: Mode,
        loaded: &Loaded,
        steps: std::ops::Range<usize>,
        edges: Edges,
        position: usize,
    ) {
        let record = || -> Result<GraphExec, DriverError> {
            let guard = self.stream.begin_capture()?;
            self.launch_segment(at, mode, loaded, steps, edges)?;
            let exec = guard.end()?.instantiate()?;
            exec.upload(&self.stream)?;
            Ok(exec)
        };
        match record() {
            Ok(exec) => self.captures(at, mode).segments[position] = Some(exec),
            Err(error) => {
                tracing::warn!(%error, "a Program is launched step by step: capturing it failed");
                self.captures(at, mode).failure = Some(error.to_string());
            }
        }
    }

    /// Launches the steps of a segment, with the copies from and to the caller at the Program's ends.
    fn launch_segment(
        &self,
        at: usize,
        mode: Mode,
        loaded: &Loaded,
        steps: std::ops::Range<usize>,
        edges: Edges,
    ) -> Result<(), DriverError> {
        if edges.is_first && mode == Mode::Staged {
            self.copy_in(at)?;
        }
        for step in &loaded.steps[steps] {
            if let LoadedStep::Launches(launches) = step {
                for launch in launches {
                    self.launch(at, mode, loaded, launch)?;
                }
            }
        }
        if edges.is_last && mode == Mode::Staged {
            self.copy_out(at)?;
        }
        Ok(())
    }

    fn copy_in(&self, at: usize) -> Result<(), DriverError> {
        let bytes = self.states[at].io.inputs_end;
        // SAFETY: both buffers live as long as the stream and its captures, and runs wait before they write the pinned one.
        unsafe { self.stream.copy_to_device(&self.staging, 0, &self.pinned, 0..bytes) }
    }

    fn copy_out(&self, at: usize) -> Result<(), DriverError> {
        let IoPlan { inputs_end, bytes, .. } = self.states[at].io;
        // SAFETY: both buffers live as long as the stream and its captures, and runs wait before they read the pinned one.
        unsafe { self.stream.copy_from_device(&self.pinned, inputs_end..bytes, &self.staging, inputs_end) }
    }

    fn launch(&self, at: usize, mode: Mode, loaded: &Loaded, launch: &LoadedLaunch) -> Result<(), DriverError> {
        let words = launch.words.iter().map(|word| match word {
            Word::Scalar(scalar) => *scalar as u64,
            Word::Buffer(slot) => self.word(at, mode, loaded, slot),
        });
        let words: Vec<u64> = words.collect();
        // SAFETY: the words are addresses inside the arena, the constants and this state's table, sized by a Program that
        // was verified, and what they refer to lives as long as the state, which a capture is part of.
        // An overlapping kernel waits before it touches anything but constants.
        unsafe {
            let LoadedLaunch { function, grid, block, shared_bytes, is_overlapping, .. } = launch;
            match is_overlapping {
                true => self.stream.launch_overlapping(function, *grid, *block, *shared_bytes, &words),
                false => self.stream.launch(function, *grid, *block, *shared_bytes, &words),
            }
        }
    }

    /// The address of a buffer, or for the caller's buffers that of their entry in the table.
    fn word(&self, at: usize, mode: Mode, loaded: &Loaded, slot: &Slot) -> u64 {
        let state = &self.states[at];
        let entry = |position: usize| {
            let count = state.io.inputs.len() + state.io.outputs.len();
            let first = if mode == Mode::Staged { 0 } else { count };
            state.table.address() + ((first + position) * WORD) as u64
        };
        match slot.place {
            Place::Arena(offset) => self.arena.address() + offset,
            Place::Constant(position) => {
                loaded.constants[position as usize].as_ref().map_or(0, |buffer| buffer.address())
            }
            Place::Input(position) => entry(position as usize),
            Place::Output(position) => entry(state.io.inputs.len() + position as usize),
        }
    }

    /// Evaluates one step on the host: the device is waited for, its buffers come over and go back.
    fn run_host_step(&self, at: usize, mode: Mode, loaded: &Loaded, position: usize) -> Result<(), RunError> {
        let (step, LoadedStep::Host(graph)) = (&loaded.program.steps[position], &loaded.steps[position]) else {
            return Ok(());
        };
        let failed = |reason: String| RunError::Step {
            step: position,
            kernel: step.kernel.clone(),
            node: step.provenance.join(", "),
            reason,
        };
        if mode == Mode::Direct && step.reads.iter().chain(&step.writes).any(crate::target::is_callers) {
            return Err(failed("the host evaluates it on a caller's buffer, which is on the device".to_string()));
        }
        let mut inputs = Vec::new();
        for (&input, slot) in graph.inputs().iter().zip(&step.reads) {
            let mut bytes = vec![0; slot.bytes as usize];
            self.download(at, loaded, slot, &mut bytes).map_err(refused)?;
            let ty = graph.ty(input);
            let shape = ty.shape().ok_or_else(|| failed(format!("{ty} is not bound")))?;
            inputs.push(Tensor::new(ty.dtype, shape, bytes.into()).map_err(|error| failed(error.to_string()))?);
        }
        let outputs = eval_graph(graph, &inputs).map_err(|error| failed(error.to_string()))?;
        for (output, slot) in outputs.iter().zip(&step.writes) {
            self.upload(at, slot, output.as_bytes()).map_err(refused)?;
        }
        Ok(())
    }

    fn download(&self, at: usize, loaded: &Loaded, slot: &Slot, bytes: &mut [u8]) -> Result<(), DriverError> {
        match slot.place {
            Place::Arena(offset) => self.stream.download(&self.arena, offset as usize, bytes),
            Place::Input(position) => {
                self.stream.download(&self.staging, self.states[at].io.inputs[position as usize], bytes)
            }
            Place::Output(position) => {
                self.stream.download(&self.staging, self.states[at].io.outputs[position as usize], bytes)
            }
            Place::Constant(position) => match &loaded.constants[position as usize] {
                Some(buffer) => self.stream.download(buffer, 0, bytes),
                None => Ok(()),
            },
        }
    }

    fn upload(&self, at: usize, slot: &Slot, bytes: &[u8]) -> Result<(), DriverError> {
        match slot.place {
            Place::Arena(offset) => self.stream.upload(&self.arena, offset as usize, bytes),
            Place::Output(position) => {
                self.stream.upload(&self.staging, self.states[at].io.outputs[position as usize], bytes)
            }
            Place::Input(_) | Place::Constant(_) => Ok(()),
        }
    }

    /// Runs on staged buffers with a mark before and after every step.
    fn run_timed(&mut self, at: usize, times: &mut Vec<Duration>) -> Result<(), RunError> {
        let loaded = &*self.states[at].loaded.clone();
        let device = self.stream.device().clone();
        let mark = || -> Result<Event, DriverError> {
            let event = device.event(true)?;
            self.stream.record(&event)?;
            Ok(event)
        };
        self.copy_in(at).map_err(refused)?;
        let mut marks = vec![mark().map_err(refused)?];
        for position in 0..loaded.steps.len() {
            match &loaded.steps[position] {
                LoadedStep::Host(_) => self.run_host_step(at, Mode::Staged, loaded, position)?,
                LoadedStep::Launches(launches) => {
                    for launch in launches {
                        self.launch(at, Mode::Staged, loaded, launch).map_err(refused)?;
                    }
                }
            }
            marks.push(mark().map_err(refused)?);
        }
        self.copy_out(at).map_err(refused)?;
        self.stream.synchronize().map_err(refused)?;
        for pair in marks.windows(2) {
            let ms = pair[1].elapsed_ms_since(&pair[0]).map_err(refused)?;
            times.push(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3));
        }
        Ok(())
    }
}

/// Whether a segment is at an end of its Program.
#[derive(Clone, Copy)]
struct Edges {
    is_first: bool,
    is_last: bool,
}

fn check_device_buffers(
    program: &Program,
    inputs: &[&DeviceBuffer],
    outputs: &[&DeviceBuffer],
) -> Result<(), RunError> {
    let given = inputs.iter().chain(outputs).map(|buffer| buffer.len());
    check_sizes(program, inputs.len(), outputs.len(), given)
}

fn check_host_buffers(program: &Program, inputs: &[&[u8]], outputs: &[&mut [u8]]) -> Result<(), RunError> {
    let given = inputs.iter().map(|input| input.len()).chain(outputs.iter().map(|output| output.len()));
    check_sizes(program, inputs.len(), outputs.len(), given)
}

fn check_sizes(
    program: &Program,
    inputs: usize,
    outputs: usize,
    given: impl Iterator<Item = usize>,
) -> Result<(), RunError> {
    if (inputs, outputs) != (program.inputs.len(), program.outputs.len()) {
        return Err(RunError::Buffer(format!(
            "{inputs} inputs and {outputs} outputs are given; the Program has {} and {}",
            program.inputs.len(),
            program.outputs.len()
        )));
    }
    for (port, given) in program.inputs.iter().chain(&program.outputs).zip(given) {
        if given as u64 != port.bytes {
            return Err(RunError::Buffer(format!("'{}' has {given} bytes; {} are needed", port.name, port.bytes)));
        }
    }
    Ok(())
}

fn refused(error: DriverError) -> RunError {
    RunError::Device(error.to_string())
}
