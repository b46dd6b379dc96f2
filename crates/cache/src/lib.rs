//! The ProgramCache: Programs and their constants on disk, in memory and in object stores, compiled at most once and
//! never wrong. Safety rests on three things: the key is compared in full, every byte is under a digest, and entries
//! appear by one atomic rename. Locks only save work. Knows no compiler, no ONNX and no Device.
#![forbid(unsafe_code)]

pub mod artifact;
pub mod cache;
pub mod disk;
pub mod fault;
mod flight;
pub mod gc;
mod index;
pub mod key;
mod key_bytes;
pub mod layout;
mod lease;
mod load;
mod lock;
pub mod manage;
mod memory;
pub mod miss;
mod notes;
pub mod options;
mod pack;
mod publish;
mod remote;
mod room;
mod shelf;
pub mod sign;
mod transfer;
mod tuning;
pub mod weights;

#[cfg(test)]
mod testing;

pub use artifact::{Compiled, Manifest, Provides, Requires};
pub use cache::{Fetched, Origin, ProgramCache};
pub use disk::{Call, Disk, DiskError, RealDisk};
pub use gc::{GcOptions, GcReport, Reason, Removed};
pub use key::{FieldDiff, KeyRecord, ProgramKey};
pub use manage::{ConstantEntry, Details, Entry, Explanation, Problem, Usage, Verification};
pub use miss::{CacheError, Event, GetError, Miss, Nearest};
pub use options::{CacheOptions, Mode, RemoteOptions};
pub use sign::{PublicKey, SignKey, Signing};
pub use transfer::Transfer;
pub use weights::WeightStore;
