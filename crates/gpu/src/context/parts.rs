//! What a context has on the device, and how its runs are launched, recorded and replayed. Everything that a launch touches is
//! owned here, by the loaded Program, which a state keeps alive, or by the caller, whose addresses the table holds.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use precast_driver::{Device, DeviceBuffer, DriverError, Event, GraphExec, PinnedBuffer, Stream};
use precast_ir::eval::eval_graph;
use precast_program::{
    DeviceEvent, DeviceRun, HostSlice, HostSliceMut, IoPath, LaunchPath, PadContent, Place, PlacedInput, PlacedOutput,
    PoisonReason, Port, Program, RunError, Slot, Step, StepsReason,
};
use precast_tensor::Tensor;

use crate::capture::{CaptureSlot, Decision};
use crate::capture_budget::{Cost, Keeping};
use crate::device::{Loaded, LoadedLaunch, LoadedStep, Segment, Word};
use crate::memory::GpuStream;
use crate::rows;

use super::bind::Callers;
use super::table::WordTable;
use super::{Captures, refused, report, steps};

/// Programs with their tables and captures that a context keeps.
const STATES_MAX: usize = 16;
/// Alignment of the caller's buffers in the staging memory: a line of the host's cache, more than kernels need.
const SLOT_ALIGN: usize = 64;
/// What a node of a capture takes at least: drivers take memory in larger pieces, so a small capture may seem to take none.
const NODE_BYTES_MIN: u64 = 1024;
/// Not a number in any float type, and no index.
const POISON: u8 = 0xff;

/// Recorded segments of a Program in one mode, by their position; none at steps of the host.
pub(crate) type Graphs = Vec<Option<GraphExec>>;

/// What is on the device.
pub(super) struct Parts {
    /// Before the memory that they refer to, so that they are dropped first.
    pub(super) states: Vec<State>,
    pub(super) stream: Stream,
    arena: DeviceBuffer,
    staging: DeviceBuffer,
    pinned: PinnedBuffer,
    /// Number of the last run, and of the last whose copy from the pinned memory was not waited for.
    run: u64,
    pinned_run: u64,
    done: Arc<Mark>,
    /// Where a caller's stream was when a run began.
    entered: Event,
}

/// The end of a context's runs.
struct Mark {
    event: Event,
    /// The last run before the mark.
    marked: AtomicU64,
    /// The newest run that is known to have ended.
    ended: Arc<AtomicU64>,
}

/// One Program in this context.
pub(super) struct State {
    /// Before what they refer to, so that they are dropped first.
    slots: Vec<(Mode, CaptureSlot<Keeping<Graphs>>)>,
    pub(super) loaded: Arc<Loaded>,
    pub(super) io: IoPlan,
    pub(super) table: WordTable,
    pub(super) callers: Callers,
    /// Why capturing failed the last time.
    failure: Option<String>,
}

/// How a run comes to the caller's buffers. Captures of one mode never serve another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mode {
    pub(super) inputs: IoPath,
    pub(super) outputs: IoPath,
    /// Begin and end of the bytes of the staging memory that outputs on the host are copied from.
    pub(super) copied_out: [usize; 2],
}

/// Where the caller's buffers lie in the staging memory: inputs, then outputs. Buffers that a run changes in place are the
/// caller's own and have no place there.
pub(super) struct IoPlan {
    offsets: Vec<usize>,
    inputs: usize,
    inputs_end: usize,
    /// By port: whether a run changes it in place.
    pub(super) kept: Vec<bool>,
    pub(super) bytes: usize,
    /// Bytes of the largest input and the largest output.
    largest: [u64; 2],
}

impl IoPlan {
    pub(super) fn new(program: &Program) -> IoPlan {
        let mut end = 0;
        let mut place = |bytes: u64| {
            let at = end;
            end += (bytes as usize).div_ceil(SLOT_ALIGN) * SLOT_ALIGN;
            at
        };
        let (kept_inputs, kept_outputs) = program.kept_ports();
        let staged = |(port, &is_kept): (&Port, &bool)| if is_kept { 0 } else { port.bytes };
        let inputs = program.inputs.iter().zip(&kept_inputs).map(staged);
        let mut offsets: Vec<usize> = inputs.map(&mut place).collect();
        let inputs_end = place(0);
        offsets.extend(program.outputs.iter().zip(&kept_outputs).map(staged).map(&mut place));
        let largest = [&program.inputs, &program.outputs]
            .map(|ports| ports.iter().map(|port| port.bytes).max().unwrap_or_default());
        let kept = [kept_inputs, kept_outputs].concat();
        IoPlan { offsets, inputs: program.inputs.len(), inputs_end, kept, bytes: place(0), largest }
    }

    /// The bytes of the outputs.
    pub(super) fn outputs(&self) -> [usize; 2] {
        [self.inputs_end, self.bytes]
    }

    /// The bytes of a port in the staging memory.
    pub(super) fn range(&self, position: usize, bytes: u64) -> [usize; 2] {
        [self.offsets[position], self.offsets[position] + bytes as usize]
    }
}

/// Why a run was not answered from a capture.
enum Setback {
    /// What was recorded is gone: others needed the room.
    Evicted,
    /// Capturing failed, for a reason that is for people.
    Poisoned(PoisonReason, String),
    /// The run itself failed, and launching step by step would too.
    Run(RunError),
}

impl Setback {
    /// What an error of the driver at this point of a capture is. After some, every call fails.
    fn of(why: PoisonReason, error: DriverError) -> Setback {
        match error.is_sticky() {
            true => Setback::Run(refused(error)),
            false => Setback::Poisoned(why, error.to_string()),
        }
    }
}

impl Parts {
    pub(super) fn new(device: &Device, workspace_bytes: usize, io_bytes: usize) -> Result<Parts, DriverError> {
        let (marked, ended) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
        Ok(Parts {
            states: Vec::new(),
            stream: device.stream()?,
            arena: device.allocate(workspace_bytes)?,
            staging: device.allocate(io_bytes)?,
            pinned: device.allocate_pinned(io_bytes)?,
            run: 0,
            pinned_run: 0,
            done: Arc::new(Mark { event: device.event(false)?, marked, ended }),
            entered: device.event(false)?,
        })
    }

    /// Bytes of the arena and of the staging memory.
    pub(super) fn sizes(&self) -> (u64, usize) {
        (self.arena.len() as u64, self.staging.len())
    }

    pub(super) fn fits(&self, workspace_bytes: u64, io_bytes: usize) -> bool {
        self.arena.len() as u64 >= workspace_bytes && self.staging.len() >= io_bytes
    }

    /// The position of a Program's state.
    pub(super) fn find(&self, id: u64) -> Option<usize> {
        self.states.iter().position(|state| state.loaded.id == id)
    }

    /// Makes a Program's state, in place of the oldest where there are too many.
    pub(super) fn add_state(&mut self, loaded: Arc<Loaded>, io: IoPlan) -> Result<usize, DriverError> {
        if self.states.len() == STATES_MAX {
            self.synchronize()?;
            self.states.remove(0);
        }
        let ports = io.offsets.len();
        let table = WordTable::new(&self.stream, ports * (rows::ENTRY_WORDS + rows::MOVE_WORDS))?;
        let callers = Callers::new(&loaded.program, ports_on_host(&loaded, ports), io.kept.clone());
        self.states.push(State { slots: Vec::new(), loaded, io, table, callers, failure: None });
        Ok(self.states.len() - 1)
    }

    /// Whether a Program has a capture, and if not, why capturing it failed.
    pub(super) fn capture_state(&self, id: Option<u64>) -> (bool, Option<String>) {
        let Some(at) = id.and_then(|id| self.find(id)) else { return (false, None) };
        let state = &self.states[at];
        (state.slots.iter().any(|(_, slot)| slot.graphs().is_some()), state.failure.clone())
    }

    /// Waits for all that is queued.
    pub(super) fn synchronize(&mut self) -> Result<(), DriverError> {
        self.stream.synchronize()?;
        self.done.ended.fetch_max(self.run, Ordering::AcqRel);
        Ok(())
    }

    /// Marks the end of what is queued.
    pub(super) fn mark(&mut self) -> Result<Arc<dyn DeviceEvent>, DriverError> {
        self.stream.record(&self.done.event)?;
        self.done.marked.store(self.run, Ordering::Release);
        Ok(self.done.clone())
    }

    /// Lets later runs wait for what a caller's stream was given so far.
    pub(super) fn wait_for(&mut self, stream: &GpuStream) -> Result<(), DriverError> {
        stream.stream().record(&self.entered)?;
        self.stream.wait(&self.entered)
    }

    /// Lets what a caller's stream is given later wait for the runs so far, unless the caller waits for them.
    pub(super) fn let_wait(&mut self, stream: &GpuStream) -> Result<(), DriverError> {
        if !stream.is_held_up() {
            return Ok(());
        }
        self.mark()?;
        stream.stream().wait(&self.done.event)
    }

    /// Waits until no earlier run reads the pinned memory.
    fn free_pinned(&mut self) -> Result<(), DriverError> {
        if self.pinned_run > self.done.ended.load(Ordering::Acquire) { self.synchronize() } else { Ok(()) }
    }

    /// Copies inputs from the host to the pinned memory, and pads them on the way.
    pub(super) fn fill_pinned_rows(
        &mut self,
        at: usize,
        inputs: &[HostSlice<'_>],
        content: PadContent,
    ) -> Result<(), DriverError> {
        self.free_pinned()?;
        let (pinned, io) = (self.pinned.as_mut_slice(), &self.states[at].io);
        for (input, &start) in inputs.iter().zip(&io.offsets) {
            match input.rows {
                Some(rows) => rows.copy(input.bytes, &mut pinned[start..], content),
                None => pinned[start..start + input.bytes.len()].copy_from_slice(input.bytes),
            }
        }
        Ok(())
    }

    /// Copies the wanted rows of outputs from the pinned memory to the host, after the stream was waited for.
    pub(super) fn empty_pinned_rows(&self, at: usize, outputs: &mut [HostSliceMut<'_>]) {
        let (pinned, io) = (self.pinned.as_slice(), &self.states[at].io);
        for (output, &start) in outputs.iter_mut().zip(&io.offsets[io.inputs..]) {
            match output.rows {
                _ if output.is_unused => {}
                Some(rows) => rows.copy(&pinned[start..], output.bytes, PadContent::LastRow),
                None => output.bytes.copy_from_slice(&pinned[start..start + output.bytes.len()]),
            }
        }
    }

    /// Copies inputs from the host to the pinned memory.
    pub(super) fn fill_pinned(&mut self, at: usize, inputs: &[&[u8]]) -> Result<(), DriverError> {
        self.free_pinned()?;
        let pinned = self.pinned.as_mut_slice();
        for (input, &start) in inputs.iter().zip(&self.states[at].io.offsets) {
            pinned[start..start + input.len()].copy_from_slice(input);
        }
        Ok(())
    }

    /// Copies outputs from the pinned memory to the host, after the stream was waited for.
    pub(super) fn empty_pinned(&self, at: usize, outputs: &mut [&mut [u8]]) {
        let (pinned, io) = (self.pinned.as_slice(), &self.states[at].io);
        for (output, &start) in outputs.iter_mut().zip(&io.offsets[io.inputs..]) {
            output.copy_from_slice(&pinned[start..start + output.len()]);
        }
    }

    /// Copies those inputs that lie on the host to the pinned memory.
    pub(super) fn fill_pinned_placed(&mut self, at: usize, inputs: &[PlacedInput<'_>]) -> Result<(), DriverError> {
        self.free_pinned()?;
        let pinned = self.pinned.as_mut_slice();
        for (input, &start) in inputs.iter().zip(&self.states[at].io.offsets) {
            if let PlacedInput::Host(bytes) = input {
                pinned[start..start + bytes.len()].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// Copies those outputs that lie on the host from the pinned memory, after the stream was waited for.
    pub(super) fn empty_pinned_placed(&self, at: usize, outputs: &mut [PlacedOutput<'_>]) {
        let (pinned, io) = (self.pinned.as_slice(), &self.states[at].io);
        for (output, &start) in outputs.iter_mut().zip(&io.offsets[io.inputs..]) {
            if let PlacedOutput::Host(bytes) = output {
                bytes.copy_from_slice(&pinned[start..start + bytes.len()]);
            }
        }
    }

    /// Fills everything that runs share with a pattern that shows.
    pub(super) fn poison(&mut self) -> Result<(), DriverError> {
        self.synchronize()?;
        self.pinned.as_mut_slice().fill(POISON);
        self.stream.fill(&self.arena, 0, self.arena.len(), POISON)?;
        self.stream.fill(&self.staging, 0, self.staging.len(), POISON)?;
        self.synchronize()
    }

    /// Where a caller's buffer lies in the staging memory.
    pub(super) fn staged_address(&self, at: usize, position: usize) -> u64 {
        self.staging.address() + self.states[at].io.offsets[position] as u64
    }

    /// Runs a Program in the mode that its buffers were bound in: replays it where it is captured, launches its steps
    /// otherwise, and captures it when it is warm. Whatever becomes of a capture, the run is answered.
    pub(super) fn run(
        &mut self,
        at: usize,
        mode: Mode,
        captures: &Captures,
        is_capturing: bool,
    ) -> Result<DeviceRun, RunError> {
        self.run += 1;
        if mode.inputs == IoPath::Host {
            self.pinned_run = self.run;
        }
        let slot = self.slot(at, mode);
        let clock = &captures.options.clock;
        let (attempt, launch) = match self.states[at].slots[slot].1.decide(is_capturing, clock) {
            Decision::Steps(reason) => (Ok(()), LaunchPath::Steps(reason)),
            Decision::Capture => (self.capture(at, slot, captures), LaunchPath::Captured),
            Decision::Replay => (self.replay(at, slot), LaunchPath::Replayed),
        };
        let slot_state = &mut self.states[at].slots[slot].1;
        let reason = match (attempt, launch) {
            (Ok(()), LaunchPath::Steps(reason)) => reason,
            (Ok(()), LaunchPath::Captured | LaunchPath::Replayed) => {
                slot_state.replayed();
                return Ok(report(launch, mode));
            }
            (Err(Setback::Evicted), _) => {
                slot_state.evicted();
                StepsReason::Cold
            }
            (Err(Setback::Poisoned(why, reason)), _) => {
                tracing::warn!(reason, ?why, "a Program is launched step by step for a while: its capture failed");
                drop(slot_state.poison(why, clock));
                self.states[at].failure = Some(reason);
                StepsReason::Poisoned(why)
            }
            (Err(Setback::Run(error)), _) => return Err(error),
        };
        match self.run_segments(at, mode, None) {
            Ok(()) => self.states[at].slots[slot].1.ran_steps(),
            Err(Setback::Run(error)) => return Err(error),
            Err(Setback::Evicted | Setback::Poisoned(..)) => debug_assert!(false, "nothing was replayed"),
        }
        Ok(steps(reason, mode))
    }

    /// The position of a mode's slot, made if it was not there.
    fn slot(&mut self, at: usize, mode: Mode) -> usize {
        let slots = &mut self.states[at].slots;
        slots.iter().position(|(known, _)| *known == mode).unwrap_or_else(|| {
            slots.push((mode, CaptureSlot::default()));
            slots.len() - 1
        })
    }

    /// Records a Program, finds room for the recording and launches it.
    fn capture(&mut self, at: usize, slot: usize, captures: &Captures) -> Result<(), Setback> {
        let (graphs, cost) = self.record(at, self.states[at].slots[slot].0)?;
        let keeping = captures.budget.keep(graphs, cost, &self.done.ended).map_err(|_| {
            let (limits, Cost { bytes, graphs, .. }) = (captures.options.limits, cost);
            let reason = format!(
                "it takes {bytes} bytes and {graphs} graphs, and what is in flight leaves too few of {} and {}",
                limits.max_bytes, limits.max_graphs
            );
            Setback::Poisoned(PoisonReason::Budget, reason)
        })?;
        self.states[at].slots[slot].1.captured(keeping);
        self.replay(at, slot)
    }

    /// Records every segment of a Program. Nothing runs.
    fn record(&self, at: usize, mode: Mode) -> Result<(Graphs, Cost), Setback> {
        let instantiate = |error| Setback::of(PoisonReason::Instantiate, error);
        let device = self.stream.device();
        let free_before = device.memory_free_total().map_err(instantiate)?.free_bytes;
        let loaded = &self.states[at].loaded;
        let (mut graphs, mut nodes) = (Vec::new(), 0);
        for (position, segment) in loaded.segments.iter().enumerate() {
            let Segment::Device(steps) = segment else {
                graphs.push(None);
                continue;
            };
            let record = || {
                let guard = self.stream.begin_capture()?;
                self.launch_segment(at, mode, steps.clone(), position)?;
                guard.end()
            };
            let graph = record().map_err(|error| Setback::of(PoisonReason::Record, error))?;
            nodes += graph.node_count().map_err(instantiate)? as u64;
            let exec = graph.instantiate().map_err(instantiate)?;
            exec.upload(&self.stream).map_err(instantiate)?;
            graphs.push(Some(exec));
        }
        let free_after = device.memory_free_total().map_err(instantiate)?.free_bytes;
        let io = &self.states[at].io;
        let cost = Cost {
            bytes: free_before.saturating_sub(free_after).max(nodes * NODE_BYTES_MIN),
            graphs: graphs.iter().flatten().count(),
            weight: loaded.program.arena_bytes + io.bytes as u64,
        };
        Ok((graphs, cost))
    }

    /// Launches what was recorded.
    fn replay(&self, at: usize, slot: usize) -> Result<(), Setback> {
        let (mode, slot) = &self.states[at].slots[slot];
        let lent = slot.graphs().and_then(|keeping| keeping.lend(self.run)).ok_or(Setback::Evicted)?;
        self.run_segments(at, *mode, Some(lent.graphs()))
    }

    /// Goes through the segments: recorded ones are launched at once, others step by step.
    fn run_segments(&self, at: usize, mode: Mode, graphs: Option<&Graphs>) -> Result<(), Setback> {
        for (position, segment) in self.states[at].loaded.segments.iter().enumerate() {
            match (segment, graphs.and_then(|graphs| graphs[position].as_ref())) {
                (Segment::Host(step), _) => self.run_host_step(at, *step).map_err(Setback::Run)?,
                (Segment::Device(_), Some(exec)) => {
                    exec.launch(&self.stream).map_err(|error| Setback::of(PoisonReason::Launch, error))?;
                }
                (Segment::Device(steps), None) => {
                    let launched = self.launch_segment(at, mode, steps.clone(), position);
                    launched.map_err(|error| Setback::Run(refused(error)))?;
                }
            }
        }
        Ok(())
    }

    /// Launches the steps of a segment, with what brings inputs and takes outputs at the Program's ends.
    fn launch_segment(&self, at: usize, mode: Mode, steps: Range<usize>, position: usize) -> Result<(), DriverError> {
        let loaded = &self.states[at].loaded;
        if position == 0 {
            match mode.inputs {
                IoPath::Host => self.copy_in(at)?,
                IoPath::Rows => self.move_rows(at, true)?,
                IoPath::Direct => {}
            }
        }
        for step in &loaded.steps[steps] {
            if let LoadedStep::Launches(launches) = step {
                launches.iter().try_for_each(|launch| self.launch(at, launch))?;
            }
        }
        if position + 1 == loaded.segments.len() {
            match mode.outputs {
                IoPath::Host => self.copy_out(at, mode.copied_out)?,
                IoPath::Rows => self.move_rows(at, false)?,
                IoPath::Direct => {}
            }
        }
        Ok(())
    }

    fn copy_in(&self, at: usize) -> Result<(), DriverError> {
        let bytes = self.states[at].io.inputs_end;
        if bytes <= rows::KERNEL_COPY_BYTES_MAX {
            return self.copy_units(at, self.pinned.device_address(), self.staging.address(), bytes);
        }
        // SAFETY: both buffers live as long as the stream and its captures, and `fill_pinned` waits before it writes.
        unsafe { self.stream.copy_to_device(&self.staging, 0, &self.pinned, 0..bytes) }
    }

    fn copy_out(&self, at: usize, [start, end]: [usize; 2]) -> Result<(), DriverError> {
        if end - start <= rows::KERNEL_COPY_BYTES_MAX {
            let (from, to) = (self.staging.address() + start as u64, self.pinned.device_address() + start as u64);
            return self.copy_units(at, from, to, end - start);
        }
        // SAFETY: both buffers live as long as the stream and its captures, and runs wait before they read the pinned one.
        unsafe { self.stream.copy_from_device(&self.pinned, start..end, &self.staging, start) }
    }

    /// Copies bytes between the pinned and the staging memory, whose slots are whole units.
    fn copy_units(&self, at: usize, from: u64, to: u64, bytes: usize) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        let (grid, words) = rows::copy_launch(from, to, bytes);
        let function = &self.states[at].loaded.row_kernels.copy_units;
        // SAFETY: both ranges begin at slots of buffers of the same plan, whose slots are whole units, and live as long as the
        // stream and its captures. The host touches the pinned memory only between runs. The kernel waits before it reads.
        unsafe { self.stream.launch_shaped(function, rows::shape(grid), &words) }
    }

    /// Moves the rows of a side, as the table says.
    fn move_rows(&self, at: usize, is_input: bool) -> Result<(), DriverError> {
        let state = &self.states[at];
        let (ports, inputs) = (state.io.offsets.len(), state.io.inputs);
        let (first, count) = if is_input { (0, inputs) } else { (inputs, ports - inputs) };
        let moves = state.table.address(ports * rows::ENTRY_WORDS + first * rows::MOVE_WORDS);
        let grid = rows::grid(state.io.largest[usize::from(!is_input)], count);
        let function = &state.loaded.row_kernels.move_rows;
        // SAFETY: the table lives as long as the state; `bind` has written moves whose ranges lie inside the staging memory
        // and the caller's buffers, which the caller keeps until the run has ended. The kernel waits before it reads.
        unsafe { self.stream.launch_shaped(function, rows::shape(grid), &[moves]) }
    }

    fn launch(&self, at: usize, launch: &LoadedLaunch) -> Result<(), DriverError> {
        let words = launch.words.iter().map(|word| match word {
            Word::Scalar(scalar) => *scalar as u64,
            Word::Buffer(slot) => self.word(at, slot),
        });
        let words: Vec<u64> = words.collect();
        // SAFETY: the words are addresses inside the arena, the constants and this state's table, sized by a Program that
        // was verified, and what they refer to lives as long as the state, which a capture is part of. The table holds
        // addresses of buffers of their Ports' sizes, or of fewer rows where all kernels of a Port take them. An overlapping
        // kernel waits before it touches anything but constants.
        unsafe { self.stream.launch_shaped(&launch.function, launch.shape, &words) }
    }

    /// The address of a buffer, or for the caller's buffers that of their entry in the table.
    fn word(&self, at: usize, slot: &Slot) -> u64 {
        let state = &self.states[at];
        match slot.place {
            Place::Arena(offset) => self.arena.address() + offset,
            Place::Constant(position) => {
                state.loaded.constants[position as usize].as_ref().map_or(0, |buffer| buffer.address())
            }
            Place::Input(position) => state.table.address(position as usize * rows::ENTRY_WORDS),
            Place::Output(position) => state.table.address((state.io.inputs + position as usize) * rows::ENTRY_WORDS),
        }
    }

    /// Evaluates one step on the host: the device is waited for, its buffers come over and go back.
    fn run_host_step(&self, at: usize, position: usize) -> Result<(), RunError> {
        let loaded = &self.states[at].loaded;
        let (step, LoadedStep::Host(graph)) = (&loaded.program.steps[position], &loaded.steps[position]) else {
            return Ok(());
        };
        let failed = |reason: String| step_error(step, position, reason);
        let mut inputs = Vec::new();
        for (&input, slot) in graph.inputs().iter().zip(&step.reads) {
            let mut bytes = vec![0; slot.bytes as usize];
            if let Some((buffer, offset)) = self.buffer_of(at, slot) {
                self.stream.download(buffer, offset, &mut bytes).map_err(refused)?;
            }
            let ty = graph.ty(input);
            let shape = ty.shape().ok_or_else(|| failed(format!("{ty} is not bound")))?;
            inputs.push(Tensor::new(ty.dtype, shape, bytes.into()).map_err(|error| failed(error.to_string()))?);
        }
        let outputs = eval_graph(graph, &inputs).map_err(|error| failed(error.to_string()))?;
        for (output, slot) in outputs.iter().zip(&step.writes) {
            if let Some((buffer, offset)) = self.buffer_of(at, slot) {
                self.stream.upload(buffer, offset, output.as_bytes()).map_err(refused)?;
            }
        }
        Ok(())
    }

    /// Where a step of the host finds a buffer; the caller's are always staged for it.
    fn buffer_of(&self, at: usize, slot: &Slot) -> Option<(&DeviceBuffer, usize)> {
        let state = &self.states[at];
        match slot.place {
            Place::Arena(offset) => Some((&self.arena, offset as usize)),
            Place::Input(position) => Some((&self.staging, state.io.offsets[position as usize])),
            Place::Output(position) => Some((&self.staging, state.io.offsets[state.io.inputs + position as usize])),
            Place::Constant(position) => Some((state.loaded.constants[position as usize].as_deref()?, 0)),
        }
    }

    /// Runs on the host's buffers with a mark before and after every step, and waits.
    pub(super) fn run_timed(&mut self, at: usize) -> Result<Vec<Duration>, RunError> {
        let device = self.stream.device();
        let mark = || -> Result<Event, DriverError> {
            let event = device.event(true)?;
            self.stream.record(&event)?;
            Ok(event)
        };
        self.copy_in(at).map_err(refused)?;
        let mut marks = vec![mark().map_err(refused)?];
        for (position, step) in self.states[at].loaded.steps.iter().enumerate() {
            match step {
                LoadedStep::Host(_) => self.run_host_step(at, position)?,
                LoadedStep::Launches(launches) => {
                    launches.iter().try_for_each(|launch| self.launch(at, launch)).map_err(refused)?;
                }
            }
            marks.push(mark().map_err(refused)?);
        }
        self.copy_out(at, self.states[at].io.outputs()).map_err(refused)?;
        self.stream.synchronize().map_err(refused)?;
        let mut times = Vec::new();
        for pair in marks.windows(2) {
            let ms = pair[1].elapsed_ms_since(&pair[0]).map_err(refused)?;
            times.push(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3));
        }
        Ok(times)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        // Copies may still read the pinned memory, which is about to go.
        let _ = self.stream.synchronize();
    }
}

impl DeviceEvent for Mark {
    fn is_done(&self) -> Result<bool, RunError> {
        let marked = self.marked.load(Ordering::Acquire);
        let is_done = self.event.query().map_err(refused)?;
        if is_done {
            self.ended.fetch_max(marked, Ordering::AcqRel);
        }
        Ok(is_done)
    }

    fn wait(&self) -> Result<(), RunError> {
        let marked = self.marked.load(Ordering::Acquire);
        self.event.synchronize().map_err(refused)?;
        self.ended.fetch_max(marked, Ordering::AcqRel);
        Ok(())
    }
}

/// Which of the caller's buffers a step of the host reads or writes.
fn ports_on_host(loaded: &Loaded, ports: usize) -> Vec<bool> {
    let mut on_host = vec![false; ports];
    let inputs = loaded.program.inputs.len();
    for (step, kind) in loaded.program.steps.iter().zip(&loaded.steps) {
        let LoadedStep::Host(_) = kind else { continue };
        for slot in step.reads.iter().chain(&step.writes) {
            match slot.place {
                Place::Input(position) => on_host[position as usize] = true,
                Place::Output(position) => on_host[inputs + position as usize] = true,
                Place::Arena(_) | Place::Constant(_) => {}
            }
        }
    }
    on_host
}

fn step_error(step: &Step, position: usize, reason: String) -> RunError {
    RunError::Step { step: position, kernel: step.kernel.clone(), node: step.provenance.join(", "), reason }
}
