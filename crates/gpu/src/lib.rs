//! The GPU target and device: kernels are text, generated once in the subset that both vendors' compilers accept, compiled
//! without hardware, and launched through the driver.

mod capture;
mod capture_budget;
pub mod compile;
mod context;
mod device;
pub mod element;
pub mod kernel;
pub mod layout;
pub mod lower;
mod memory;
pub mod nest;
mod ops;
mod rows;
pub mod site;
pub mod step;
pub mod tactics;
pub mod target;
pub mod team;
mod tune;

pub use capture::Clock;
pub use capture_budget::CaptureLimits;
pub use compile::{KernelCompiler, KernelStore, MemoryKernels, RuntimeCompiler};
pub use context::{CaptureOptions, GpuContext};
pub use device::{GpuDevice, arch_of};
pub use kernel::{Arch, Vendor};
pub use memory::{GpuMemory, GpuStream};
pub use target::GpuTarget;
pub use tune::tune;
