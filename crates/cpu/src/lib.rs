//! The CPU target and device. Compiling picks a kernel for every node, packs constants and plans one arena; running is a
//! loop over steps without allocation, type dispatch or locks.
#![forbid(unsafe_code)]

pub mod device;
pub mod lower;
mod ops;
mod packings;
pub mod step;
pub mod tactics;
pub mod target;
pub mod tune;

pub use device::CpuDevice;
pub use precast_kernels::isa::Isa;
pub use tactics::{Problem, Tactics};
pub use target::CpuTarget;
pub use tune::{TuneMode, TuneOptions, Tuner};
