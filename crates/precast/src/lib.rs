//! Precast, the library: open an ONNX model, compile it, run it.
//!
//! ```no_run
//! use precast::{Model, Runner, RunnerOptions};
//! # fn main() -> Result<(), precast::Error> {
//! let model = Model::open("model.onnx".as_ref())?;
//! let runner = Runner::new(model, RunnerOptions::default())?;
//! let x = precast::Tensor::zeros(precast::DType::F32, [1, 3, 224, 224])?;
//! for (name, tensor) in runner.run(&[("input".to_string(), x)])? {
//!     println!("{name}: {}", tensor.type_());
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod adapter;
mod clear_free_slots;
mod compare;
mod compiled_model;
mod decoder_graph;
pub mod device_name;
mod dim_bind;
mod error;
mod folder_faults;
mod folder_store;
mod gpu_memory;
mod gpu_request;
mod graph_runner;
mod length_switch;
mod model;
mod model_source;
pub mod npy;
mod npy_header;
mod open_device;
mod open_session;
mod open_text_model;
mod paged_graph;
mod program_file;
mod program_runner;
mod provider_options;
mod runner;
pub mod suggestion;
mod tensor_file;
mod tuning;
mod value;
mod verify;

pub use adapter::load_adapter;
pub use compare::{Difference, Tolerance, compare, relative_error};
pub use compiled_model::{CompiledFit, CompiledModel};
pub use dim_bind::{DimBind, DimBinds};
pub use error::{Error, ErrorKind};
pub use folder_faults::folder_faults;
pub use folder_store::FolderStore;
pub use gpu_memory::{Gpu, GpuBytes};
pub use gpu_request::{GpuInput, InputMemory, OutputMemory, run_on_gpu};
pub use model::{DeclaredOutput, DeclaredValue, InputInfo, Model, ModelMetadata, ModelSummary};
pub use open_session::{Form, ModelSession, OpenOptions, batch_symbol, program_records};
pub use open_text_model::{GivenDevice, TextFolder, TextOptions, open_text_model, open_text_model_on};
pub use precast_cache::{
    CacheError, CacheOptions, Event as CacheEvent, Explanation, FieldDiff, GcOptions, KeyRecord, Miss,
    Mode as CacheMode, Nearest, ProgramCache, ProgramKey, PublicKey, RemoteOptions, SignKey, Signing, Transfer,
};
pub use precast_cpu::step::Tactic;
pub use precast_cpu::{Isa, TuneMode, TuneOptions};
pub use precast_generate as generate;
pub use precast_generate::adapter::{Adapter, AdapterError, Adapters};
pub use precast_generate::engine::{
    Engine, EngineError, EngineMetrics, EngineOptions, Event, Guidance, KvPlace, Request, RequestHandle,
};
pub use precast_gpu::GpuMemory;
pub use precast_ir::{Graph, text};
pub use precast_onnx::{
    DeclaredDim, DeclaredType, ImportError, ImportOptions, Imported, StringTensor, UnsupportedNode, onnx_name,
    operators,
};
pub use precast_passes::batch_axis::{explain as explain_padding, pad_verdict};
pub use precast_passes::{
    ActivationPrecision, CANONICAL, FUSED, FastMath, FastRewrite, FloatPrecision, Numerics, PassOptions, PassReport,
    Place, WeightPrecision, run_passes,
};
pub use precast_program::{
    Bucket, DeviceRun, IoPath, LaunchPath, Port, Program, Step, StepsReason, TargetDescription, TuningRecord,
    TuningTable,
};
pub use precast_session::{
    Argument, BucketPolicy, ContextWait, Counters, DeviceArgument, DevicePlace, DimOptions, Fit, Observer, OnMiss,
    OnMissChain, OutputBuffer, PadContent, PadGrade, Path as AnswerPath, Pending, Phase, Progress, Readiness, Reason,
    ReplayCheck, RowAxis, RunReport, Session, SessionError, SessionOptions, Startup, SymbolicPort, Tier, check_replay,
};
pub use precast_tensor::{Bindings, DType, Dim, Symbol, Tensor, TensorError, Type};
pub use program_file::{is_program_file, load_program, move_program, read_program, save_program};
pub use program_runner::{ProgramRunner, is_by_reference};
pub use provider_options::{ContextOptions, OptionSources, ProviderOptions};
pub use runner::{Captures, Named, Ready, Runner, RunnerOptions, StepTime};
pub use tensor_file::{read_archive, read_tensor};
pub use value::Value;
pub use verify::{StepReport, verify_steps};
