//! One run at a time on a GPU. A context owns a stream, an arena, staging for the caller's buffers, and the captures of the
//! Programs that run often. Runs on the host's memory wait for their end; runs on the device's memory are queued.

mod bind;
mod parts;
mod table;

use std::sync::Arc;
use std::time::Duration;

use precast_driver::{Device, DeviceBuffer, DriverError};
use precast_program::{
    BoxCopy, CallInputs, CallOutputs, DeviceContext, DeviceEvent, DeviceRun, DeviceSlice, DeviceStream, IoPath,
    LaunchPath, LoadedProgram, PlacedInput, PlacedOutput, Port, Program, RunError, StepsReason,
};

use crate::capture::Clock;
use crate::capture_budget::{CaptureBudget, CaptureLimits};
use crate::device::Loaded;
use crate::memory::{GpuMemory, GpuStream};
use parts::{Graphs, IoPlan, Parts};

/// Staging memory is a multiple of this: drivers give whole pages, and what is recorded is void when it grows, so the first
/// Bucket of a small model takes enough for the others.
const IO_GRAIN: usize = 4096;

/// How a device captures.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// Whether it does at all.
    pub is_on: bool,
    /// What all captures of the device may take.
    pub limits: CaptureLimits,
    /// What tells when a failed capture is tried again.
    pub clock: Clock,
}

impl Default for CaptureOptions {
    fn default() -> CaptureOptions {
        CaptureOptions { is_on: true, limits: CaptureLimits::default(), clock: Clock::system() }
    }
}

/// The captures of a device, shared by its contexts.
pub(crate) struct Captures {
    pub(crate) options: CaptureOptions,
    pub(crate) budget: Arc<CaptureBudget<Graphs>>,
}

impl Captures {
    pub(crate) fn new(options: CaptureOptions) -> Arc<Captures> {
        let budget = CaptureBudget::new(options.limits);
        Arc::new(Captures { options, budget })
    }
}

/// Memory and captures of one run at a time.
pub struct GpuContext {
    device: Device,
    captures: Arc<Captures>,
    workspace_bytes: u64,
    is_capturing: bool,
    /// Made by the first run, since making it may fail.
    parts: Option<Parts>,
}

impl GpuContext {
    pub(crate) fn new(device: &Device, captures: &Arc<Captures>, workspace_bytes: u64) -> GpuContext {
        let is_capturing = captures.options.is_on;
        GpuContext { device: device.clone(), captures: captures.clone(), workspace_bytes, is_capturing, parts: None }
    }

    /// Runs a Program on memory of the device, without waiting for the end. Every buffer must have its Port's bytes.
    pub fn submit(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: &[&DeviceBuffer],
        outputs: &[&DeviceBuffer],
    ) -> Result<DeviceRun, RunError> {
        let loaded = Loaded::of(program).ok_or(RunError::ForeignProgram)?;
        check_counts(&loaded.program, inputs.len(), outputs.len())?;
        let at = self.state(loaded)?;
        let parts = self.parts.as_mut().expect("made by `state`");
        let mode = parts.bind_whole(at, inputs, outputs)?;
        parts.run(at, mode, &self.captures, self.is_capturing)
    }

    /// Waits for what was submitted.
    pub fn synchronize(&mut self) -> Result<(), RunError> {
        self.parts.as_mut().map_or(Ok(()), Parts::synchronize).map_err(refused)
    }

    /// Whether the Program is replayed in some mode, and if not, what kept it from being captured.
    pub fn capture_state(&self, program: &dyn LoadedProgram) -> (bool, Option<String>) {
        let id = Loaded::of(program).map(|loaded| loaded.id);
        self.parts.as_ref().map_or((false, None), |parts| parts.capture_state(id))
    }

    /// The position of a Program's state, made if it was not there, with enough memory for it. Where the device has no memory
    /// left, idle captures are given up first.
    fn state(&mut self, loaded: &Loaded) -> Result<usize, RunError> {
        if let Some(at) = self.parts.as_ref().and_then(|parts| parts.find(loaded.id)) {
            return Ok(at);
        }
        match self.make_state(loaded) {
            Err(error) if error.is_out_of_memory() && self.captures.budget.evict_idle() > 0 => self.make_state(loaded),
            result => result,
        }
        .map_err(refused)
    }

    fn make_state(&mut self, loaded: &Loaded) -> Result<usize, DriverError> {
        let io = IoPlan::new(&loaded.program);
        let needed = loaded.program.arena_bytes.max(self.workspace_bytes);
        self.make_parts(needed, io.bytes)?;
        self.parts.as_mut().expect("made above").add_state(loaded.shared(), io)
    }

    /// Makes the memory, or makes it anew where it is too small: recorded addresses are void then.
    fn make_parts(&mut self, workspace_bytes: u64, io_bytes: usize) -> Result<(), DriverError> {
        if self.parts.as_ref().is_some_and(|parts| parts.fits(workspace_bytes, io_bytes)) {
            return Ok(());
        }
        let (old_workspace, old_io) = self.parts.as_ref().map_or((0, 0), Parts::sizes);
        if let Some(mut parts) = self.parts.take() {
            parts.synchronize()?;
        }
        let io_bytes = io_bytes.max(old_io).next_multiple_of(IO_GRAIN);
        let workspace_bytes = workspace_bytes.max(old_workspace);
        self.parts = Some(Parts::new(&self.device, workspace_bytes as usize, io_bytes)?);
        self.workspace_bytes = workspace_bytes;
        Ok(())
    }

    /// Runs a Program on the buffers of its last run, if that is what these are.
    fn call_again(
        &mut self,
        at: usize,
        inputs: &[DeviceSlice<'_>],
        outputs: &[DeviceSlice<'_>],
        stream: Option<&GpuStream>,
    ) -> Result<Option<DeviceRun>, RunError> {
        let parts = self.parts.as_mut().expect("made by `state`");
        let Some(mode) = parts.bind_again(at, inputs, outputs) else { return Ok(None) };
        if let Some(stream) = stream {
            parts.wait_for(stream).map_err(refused)?;
        }
        let run = parts.run(at, mode, &self.captures, self.is_capturing)?;
        if let Some(stream) = stream {
            parts.let_wait(stream).map_err(refused)?;
        }
        Ok(Some(run))
    }

    /// Names the buffers of a call, and says how the run comes to each side.
    fn add_callers(
        &mut self,
        at: usize,
        program: &Program,
        inputs: &CallInputs<'_>,
        outputs: &CallOutputs<'_, '_>,
    ) -> Result<(IoPath, IoPath), RunError> {
        let (input_count, output_count) = (inputs.len(), outputs.len());
        check_counts(program, input_count, output_count)?;
        let parts = self.parts.as_mut().expect("made by `state`");
        parts.clear_callers(at);
        let inputs = match inputs {
            CallInputs::Host(buffers) => {
                check_sizes(&program.inputs, buffers.iter().map(|buffer| buffer.len()))?;
                parts.add_host_callers(at, input_count)?;
                IoPath::Host
            }
            CallInputs::HostRows(slices, _) => {
                for (slice, port) in slices.iter().zip(&program.inputs) {
                    check_rows(port, slice.bytes.len(), slice.rows.map(BoxCopy::reach))?;
                }
                parts.add_host_callers(at, input_count)?;
                IoPath::Host
            }
            CallInputs::Device(slices) => {
                slices.iter().try_for_each(|slice| add_slice(parts, at, slice))?;
                IoPath::Direct
            }
            CallInputs::Placed(placed) => {
                let mut path = IoPath::Direct;
                for (input, port) in placed.iter().zip(&program.inputs) {
                    match input {
                        PlacedInput::Host(bytes) => path = add_host_caller(parts, at, port, bytes.len())?,
                        PlacedInput::Device(slice) => add_slice(parts, at, slice)?,
                    }
                }
                path
            }
        };
        let outputs = match outputs {
            CallOutputs::Host(buffers) => {
                check_sizes(&program.outputs, buffers.iter().map(|buffer| buffer.len()))?;
                parts.add_host_callers(at, output_count)?;
                IoPath::Host
            }
            CallOutputs::HostRows(slices) => {
                for (slice, port) in slices.iter().zip(&program.outputs).filter(|(slice, _)| !slice.is_unused) {
                    let reach = slice.rows.map(BoxCopy::reach).map(|(source, target)| (target, source));
                    check_rows(port, slice.bytes.len(), reach)?;
                }
                parts.add_host_callers(at, output_count)?;
                IoPath::Host
            }
            CallOutputs::Device(slices) => {
                slices.iter().try_for_each(|slice| add_slice(parts, at, slice))?;
                IoPath::Direct
            }
            CallOutputs::Placed(placed) => {
                let mut path = IoPath::Direct;
                for (output, port) in placed.iter().zip(&program.outputs) {
                    match output {
                        PlacedOutput::Host(bytes) => path = add_host_caller(parts, at, port, bytes.len())?,
                        PlacedOutput::Device(slice) => add_slice(parts, at, slice)?,
                    }
                }
                path
            }
        };
        Ok((inputs, outputs))
    }
}

/// Names a buffer on the host of exactly its Port's bytes.
fn add_host_caller(parts: &mut Parts, at: usize, port: &Port, bytes: usize) -> Result<IoPath, RunError> {
    check_sizes(std::slice::from_ref(port), std::iter::once(bytes))?;
    parts.add_host_callers(at, 1)?;
    Ok(IoPath::Host)
}

fn add_slice(parts: &mut Parts, at: usize, slice: &DeviceSlice<'_>) -> Result<(), RunError> {
    let memory = GpuMemory::of(slice.memory);
    let memory = memory.ok_or_else(|| RunError::Buffer("a buffer lies on another kind of device".to_string()))?;
    parts.add_caller(at, memory.buffer(), slice.start, slice.bytes, slice.rows, slice.is_unused)
}

impl DeviceContext for GpuContext {
    fn workspace_bytes(&self) -> u64 {
        self.parts.as_ref().map_or(self.workspace_bytes, |parts| parts.sizes().0)
    }

    fn reserve(&mut self, workspace_bytes: u64) {
        self.workspace_bytes = self.workspace_bytes.max(workspace_bytes);
    }

    fn run(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<DeviceRun, RunError> {
        self.call(program, CallInputs::Host(inputs), CallOutputs::Host(outputs), None)
    }

    fn call(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: CallInputs<'_>,
        outputs: CallOutputs<'_, '_>,
        stream: Option<&dyn DeviceStream>,
    ) -> Result<DeviceRun, RunError> {
        let loaded = Loaded::of(program).ok_or(RunError::ForeignProgram)?;
        let stream = stream.map(callers_stream).transpose()?;
        let at = self.state(loaded)?;
        if let (CallInputs::Device(inputs), CallOutputs::Device(outputs)) = (&inputs, &outputs)
            && let Some(run) = self.call_again(at, inputs, outputs, stream)?
        {
            return Ok(run);
        }
        let (input_path, output_path) = self.add_callers(at, &loaded.program, &inputs, &outputs)?;
        let parts = self.parts.as_mut().expect("made by `state`");
        match inputs {
            CallInputs::Host(buffers) => parts.fill_pinned(at, buffers).map_err(refused)?,
            CallInputs::HostRows(slices, content) => parts.fill_pinned_rows(at, slices, content).map_err(refused)?,
            CallInputs::Placed(placed) => parts.fill_pinned_placed(at, placed).map_err(refused)?,
            CallInputs::Device(_) => {}
        }
        if let Some(stream) = stream {
            parts.wait_for(stream).map_err(refused)?;
        }
        let mode = parts.bind(at, input_path, output_path)?;
        let run = parts.run(at, mode, &self.captures, self.is_capturing)?;
        if let Some(stream) = stream {
            parts.let_wait(stream).map_err(refused)?;
        }
        if output_path != IoPath::Host {
            return Ok(run);
        }
        parts.synchronize().map_err(refused)?;
        match outputs {
            CallOutputs::Host(buffers) => parts.empty_pinned(at, buffers),
            CallOutputs::HostRows(slices) => parts.empty_pinned_rows(at, slices),
            CallOutputs::Placed(placed) => parts.empty_pinned_placed(at, placed),
            CallOutputs::Device(_) => {}
        }
        Ok(run)
    }

    fn gathers_rows(&self) -> bool {
        true
    }

    fn run_timed(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<Vec<Duration>, RunError> {
        let loaded = Loaded::of(program).ok_or(RunError::ForeignProgram)?;
        let at = self.state(loaded)?;
        self.add_callers(at, &loaded.program, &CallInputs::Host(inputs), &CallOutputs::Host(outputs))?;
        let parts = self.parts.as_mut().expect("made by `state`");
        parts.fill_pinned(at, inputs).map_err(refused)?;
        parts.bind(at, IoPath::Host, IoPath::Host)?;
        let times = parts.run_timed(at)?;
        parts.empty_pinned(at, outputs);
        Ok(times)
    }

    fn completion(&mut self) -> Result<Arc<dyn DeviceEvent>, RunError> {
        if self.parts.is_none() {
            self.make_parts(self.workspace_bytes, 0).map_err(refused)?;
        }
        self.parts.as_mut().expect("made above").mark().map_err(refused)
    }

    fn set_capturing(&mut self, is_capturing: bool) {
        self.is_capturing = is_capturing && self.captures.options.is_on;
    }

    fn poison(&mut self) -> Result<(), RunError> {
        self.parts.as_mut().map_or(Ok(()), Parts::poison).map_err(refused)
    }
}

fn callers_stream(stream: &dyn DeviceStream) -> Result<&GpuStream, RunError> {
    GpuStream::of(stream).ok_or_else(|| RunError::Buffer("the stream is of another kind of device".to_string()))
}

fn check_counts(program: &Program, inputs: usize, outputs: usize) -> Result<(), RunError> {
    let expected = (program.inputs.len(), program.outputs.len());
    if (inputs, outputs) == expected {
        return Ok(());
    }
    Err(RunError::Buffer(format!(
        "{inputs} inputs and {outputs} outputs are given; the Program has {} and {}",
        expected.0, expected.1
    )))
}

fn check_sizes(ports: &[Port], given: impl Iterator<Item = usize>) -> Result<(), RunError> {
    for (port, given) in ports.iter().zip(given) {
        if given as u64 != port.bytes {
            return Err(RunError::Buffer(format!("'{}' has {given} bytes; {} are needed", port.name, port.bytes)));
        }
    }
    Ok(())
}

/// Checks a buffer of `bytes` against the bytes that its rows reach in it and in the Port.
fn check_rows(port: &Port, bytes: usize, reach: Option<(usize, usize)>) -> Result<(), RunError> {
    let (own, other) = reach.unwrap_or((port.bytes as usize, port.bytes as usize));
    let is_exact = reach.is_some() || bytes as u64 == port.bytes;
    if is_exact && own <= bytes && other as u64 <= port.bytes {
        return Ok(());
    }
    Err(RunError::Buffer(format!(
        "'{}': its rows need {own} bytes of {bytes}, and {other} of {}",
        port.name, port.bytes
    )))
}

/// An error of the driver as an error of a run.
pub(crate) fn refused(error: DriverError) -> RunError {
    match error.is_sticky() {
        true => RunError::DeviceLost(error.to_string()),
        false => RunError::Device(error.to_string()),
    }
}

/// The report of a run in this mode.
fn report(launch: LaunchPath, mode: parts::Mode) -> DeviceRun {
    DeviceRun { launch, inputs: mode.inputs, outputs: mode.outputs }
}

/// A run whose steps were launched one by one.
fn steps(reason: StepsReason, mode: parts::Mode) -> DeviceRun {
    report(LaunchPath::Steps(reason), mode)
}
