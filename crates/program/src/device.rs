//! A Device loads Programs; a DeviceContext is the memory of one run on it. Two runs never share a context. A caller's
//! buffers are host bytes, or memory of the device.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::box_copy::{BoxCopy, PadContent};
use crate::device_run::DeviceRun;
use crate::program::Program;
use crate::store::{ArtifactStore, StoreError};

/// Loads Programs and makes the contexts they run in.
pub trait Device: Send + Sync {
    /// Makes a Program ready to run.
    fn load(&self, program: &Arc<Program>, store: &dyn ArtifactStore) -> Result<Arc<dyn LoadedProgram>, LoadError>;
    /// Memory for runs of Programs with at most this much workspace, one run at a time.
    fn context(&self, workspace_bytes: u64) -> Box<dyn DeviceContext>;
    /// Memory of the device for a caller's buffers; its contents are undefined.
    fn allocate(&self, _bytes: usize) -> Result<Arc<dyn DeviceMemory>, RunError> {
        Err(RunError::no_memory())
    }
    /// Bytes that `allocate` could give now, where the device says.
    fn free_bytes(&self) -> Option<u64> {
        None
    }
    /// Whether memory lies on this device.
    fn owns(&self, _memory: &dyn DeviceMemory) -> bool {
        false
    }
    /// Runs leave one more core of the host to others, until `take_core_back`. What they compute does not change.
    fn leave_core(&self) {}
    /// Undoes one `leave_core`.
    fn take_core_back(&self) {}
    /// Threads of the host that compute; 1 where none does, and runs side by side gain nothing.
    fn threads(&self) -> usize {
        1
    }
    /// Calls `body` on this thread and, as far as they come, on others of the host that compute, so many in all. Runs inside share
    /// the threads; what they compute does not change. A call should return when it finds nothing to do.
    fn do_beside(&self, _threads: usize, body: &(dyn Fn() + Sync)) {
        body();
    }
}

/// A Program that is ready to run. Shared by all contexts of its device.
pub trait LoadedProgram: Any + Send + Sync {
    /// The Program.
    fn program(&self) -> &Program;
}

/// Memory of one run at a time, for any Program of its device that fits.
pub trait DeviceContext: Send {
    /// Workspace that there is.
    fn workspace_bytes(&self) -> u64;
    /// Makes room for Programs with this much workspace. What was in the workspace is lost.
    fn reserve(&mut self, workspace_bytes: u64);
    /// Runs a Program: inputs and outputs in its order, each of exactly its Port's bytes.
    fn run(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<DeviceRun, RunError>;
    /// Runs a Program on buffers that may lie on the device. Outputs on the host are there when this returns; outputs on the
    /// device are written when the work that is queued has run. With a stream of the caller's, that work waits for what the
    /// stream has been given before, and what it is given later waits for that work.
    fn call(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: CallInputs<'_>,
        outputs: CallOutputs<'_, '_>,
        stream: Option<&dyn DeviceStream>,
    ) -> Result<DeviceRun, RunError> {
        match (inputs, outputs, stream) {
            (CallInputs::Host(inputs), CallOutputs::Host(outputs), None) => self.run(program, inputs, outputs),
            _ => Err(RunError::no_memory()),
        }
    }
    /// Whether `call` takes host bytes whose rows differ from the Program's (`CallInputs::HostRows`). A device that has to
    /// gather host bytes anyway pads them on the way; others read the caller's bytes in place where they can.
    fn gathers_rows(&self) -> bool {
        false
    }
    /// A mark behind all that is queued now. Marking again moves the mark, so whoever waits for an older one may wait longer.
    fn completion(&mut self) -> Result<Arc<dyn DeviceEvent>, RunError> {
        Err(RunError::no_memory())
    }
    /// Whether Programs that run often are captured from now on, where the device can.
    fn set_capturing(&mut self, _is_capturing: bool) {}
    /// Fills the memory that runs share with a pattern that is not a number in any float type, so that a run which reads what
    /// it did not write shows.
    fn poison(&mut self) -> Result<(), RunError> {
        Ok(())
    }
    /// Runs a Program and gives the time of every step.
    fn run_timed(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<Vec<Duration>, RunError>;
}

/// Memory of a device that a caller holds.
pub trait DeviceMemory: Any + Send + Sync {
    /// Its size.
    fn bytes(&self) -> usize;
    /// Copies host bytes to it and waits.
    fn write(&self, start: usize, bytes: &[u8]) -> Result<(), RunError>;
    /// Copies it to host bytes, and waits for that. Work of a context must have been waited for before.
    fn read(&self, start: usize, bytes: &mut [u8]) -> Result<(), RunError>;
}

/// A queue of work of a device: the caller's own.
pub trait DeviceStream: Any + Send + Sync {}

/// A mark in a device's work.
pub trait DeviceEvent: Send + Sync {
    /// Whether the device has passed it.
    fn is_done(&self) -> Result<bool, RunError>;
    /// Waits until it has.
    fn wait(&self) -> Result<(), RunError>;
}

/// A caller's buffer on a device.
#[derive(Clone, Copy)]
pub struct DeviceSlice<'a> {
    /// What it lies in.
    pub memory: &'a dyn DeviceMemory,
    /// Where in it.
    pub start: usize,
    /// Its size.
    pub bytes: usize,
    /// How its rows and those of the Port differ, where they do: from it into the Port's for an input, from the Port's into
    /// it for an output. Rows that the Port has beyond it are copies of its last row.
    pub rows: Option<&'a BoxCopy>,
    /// Whether an output is left alone: the Program writes it elsewhere.
    pub is_unused: bool,
}

impl<'a> DeviceSlice<'a> {
    /// A buffer of exactly its Port's bytes.
    pub fn exact(memory: &'a dyn DeviceMemory, start: usize, bytes: usize) -> DeviceSlice<'a> {
        DeviceSlice { memory, start, bytes, rows: None, is_unused: false }
    }

    /// A buffer whose rows differ from its Port's.
    pub fn rows(memory: &'a dyn DeviceMemory, start: usize, bytes: usize, rows: &'a BoxCopy) -> DeviceSlice<'a> {
        DeviceSlice { memory, start, bytes, rows: Some(rows), is_unused: false }
    }
}

/// An input on the host, and how its rows come into the Port's where those differ.
#[derive(Clone, Copy)]
pub struct HostSlice<'a> {
    /// The caller's bytes.
    pub bytes: &'a [u8],
    /// From them into the Port's.
    pub rows: Option<&'a BoxCopy>,
}

/// An output on the host, and how the Port's rows come into it where those differ.
pub struct HostSliceMut<'a> {
    /// The caller's bytes.
    pub bytes: &'a mut [u8],
    /// From the Port's into them.
    pub rows: Option<&'a BoxCopy>,
    /// Whether it is left alone: the Program writes it elsewhere.
    pub is_unused: bool,
}

/// An input of a run whose buffers lie in both memories.
#[derive(Clone, Copy)]
pub enum PlacedInput<'a> {
    /// Host bytes, exactly its Port's.
    Host(&'a [u8]),
    /// Memory of the device.
    Device(DeviceSlice<'a>),
}

/// An output of a run whose buffers lie in both memories.
pub enum PlacedOutput<'a> {
    /// Host bytes, exactly its Port's.
    Host(&'a mut [u8]),
    /// Memory of the device.
    Device(DeviceSlice<'a>),
}

/// Inputs of a run, in the Program's order.
#[derive(Clone, Copy)]
pub enum CallInputs<'a> {
    /// Host bytes, each of exactly its Port's.
    Host(&'a [&'a [u8]]),
    /// Host bytes with other rows than their Ports', and what the rows between have.
    HostRows(&'a [HostSlice<'a>], PadContent),
    /// Memory of the device.
    Device(&'a [DeviceSlice<'a>]),
    /// Some here, some there.
    Placed(&'a [PlacedInput<'a>]),
}

/// Outputs of a run, in the Program's order.
pub enum CallOutputs<'a, 'b> {
    /// Host bytes, each of exactly its Port's.
    Host(&'a mut [&'b mut [u8]]),
    /// Host bytes with other rows than their Ports'.
    HostRows(&'a mut [HostSliceMut<'b>]),
    /// Memory of the device.
    Device(&'a [DeviceSlice<'a>]),
    /// Some here, some there.
    Placed(&'a mut [PlacedOutput<'b>]),
}

/// Why a Program could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Compiled by another build.
    #[error("the Program was compiled by '{found}'; this is '{expected}': compile it again")]
    Build {
        /// Build in the Program.
        found: String,
        /// This build.
        expected: String,
    },
    /// Compiled for another target.
    #[error("the Program was compiled for '{found}', which this device cannot run: {reason}")]
    Target {
        /// Target in the Program.
        found: String,
        /// What is missing.
        reason: String,
    },
    /// The Program contradicts itself.
    #[error("the Program is malformed: {0}")]
    Malformed(String),
    /// A constant is missing or damaged.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The device refused.
    #[error("{0}")]
    Device(String),
}

/// Why a run failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RunError {
    /// A buffer of the caller does not fit.
    #[error("{0}")]
    Buffer(String),
    /// The device refused.
    #[error("{0}")]
    Device(String),
    /// The device has failed, and every later run on it will.
    #[error("the device has failed and must be opened again: {0}")]
    DeviceLost(String),
    /// The Program was loaded on another device.
    #[error("the Program was loaded on another kind of device than this context is of")]
    ForeignProgram,
    /// A step met values it has no meaning for.
    #[error("step {step} ({kernel}) of node '{node}': {reason}")]
    Step {
        /// Position of the step.
        step: usize,
        /// Its kernel.
        kernel: String,
        /// Source nodes.
        node: String,
        /// What was wrong.
        reason: String,
    },
}

impl CallInputs<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            CallInputs::Host(buffers) => buffers.len(),
            CallInputs::HostRows(slices, _) => slices.len(),
            CallInputs::Device(slices) => slices.len(),
            CallInputs::Placed(placed) => placed.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl CallOutputs<'_, '_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            CallOutputs::Host(buffers) => buffers.len(),
            CallOutputs::HostRows(slices) => slices.len(),
            CallOutputs::Device(slices) => slices.len(),
            CallOutputs::Placed(placed) => placed.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl RunError {
    /// What devices answer that run on host memory.
    fn no_memory() -> RunError {
        RunError::Buffer("this device has no memory of its own; its buffers are host memory".to_string())
    }
}
