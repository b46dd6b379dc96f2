//! The compiled result and what surrounds it: `Program`, the traits `Target`, `Device` and `ArtifactStore`, buffer
//! planning and the Program file. Knows no target, no ONNX and no file system.
#![forbid(unsafe_code)]

pub mod box_copy;
pub mod bucket;
pub mod build;
pub mod device;
pub mod device_run;
pub mod file;
pub mod plan;
pub mod program;
mod run_of_bytes;
pub mod store;
pub mod target;
pub mod tuning;

pub use box_copy::{AxisSpan, BoxAxis, BoxCopy, PadContent};
pub use bucket::Bucket;
pub use build::{ProgramBuilder, StepDraft, StepRead};
pub use device::{
    CallInputs, CallOutputs, Device, DeviceContext, DeviceEvent, DeviceMemory, DeviceSlice, DeviceStream, HostSlice,
    HostSliceMut, LoadError, LoadedProgram, PlacedInput, PlacedOutput, RunError,
};
pub use device_run::{DeviceRun, IoPath, LaunchPath, PoisonReason, StepsReason};
pub use file::{FileError, decode, encode};
pub use plan::{Form, Lifetime, Plan, Reuse, plan_buffers};
pub use program::{ConstantRef, Place, Port, Program, Slot, Step};
pub use store::{ArtifactStore, MemoryStore};
pub use target::{CompileError, Target, TargetDescription};
pub use tuning::{TuningRecord, TuningTable};
