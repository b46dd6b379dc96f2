//! A Program: the steps of one Bucket, where each buffer lies, and the digests of the constants it needs. Immutable; the
//! kernel of a step and its parameters are the target's own business.

use precast_tensor::DType;
use serde::{Deserialize, Serialize};

use crate::bucket::Bucket;

/// Where the bytes of a buffer lie during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// In the arena, at this offset in bytes.
    Arena(u64),
    /// The caller's input buffer of this position.
    Input(u32),
    /// The caller's output buffer of this position.
    Output(u32),
    /// The constant of this position.
    Constant(u32),
}

/// A buffer as a step sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Where it lies.
    pub place: Place,
    /// Its size.
    pub bytes: u64,
}

/// One kernel call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Name of the kernel, for people.
    pub kernel: String,
    /// What the target needs to make the kernel again, in the target's own encoding.
    pub parameters: Vec<u8>,
    /// Buffers it reads.
    pub reads: Vec<Slot>,
    /// Buffers it writes; they overlap nothing else that the step touches.
    pub writes: Vec<Slot>,
    /// Names of the model's nodes that it computes.
    pub provenance: Vec<String>,
    /// First value it defines, as the Program's graph text numbers them.
    pub value: u32,
}

/// An input or output of a Program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Name in the model.
    pub name: String,
    /// Element type, by name.
    pub dtype: String,
    /// Sizes.
    pub shape: Vec<u64>,
    /// Size in bytes.
    pub bytes: u64,
    /// Of an output: the input whose memory it may be. Nothing reads that input once the output is written.
    pub in_place_of: Option<u32>,
}

/// A constant that a Program needs from the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConstantRef {
    /// Digest in the store, as hex.
    pub digest: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// The compiled result for one Bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The target it was compiled for, as its description prints.
    pub target: String,
    /// Build of the compiler.
    pub build: String,
    /// Dims it is compiled for.
    pub bucket: Bucket,
    /// Inputs in order.
    pub inputs: Vec<Port>,
    /// Outputs in order.
    pub outputs: Vec<Port>,
    /// Kernel calls in order.
    pub steps: Vec<Step>,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// Bytes live at the worst step: what no plan can go below.
    pub live_bytes_max: u64,
    /// Constants, by the positions that slots name.
    pub constants: Vec<ConstantRef>,
    /// Text form of the graph that the steps compute.
    pub graph: String,
}

/// Build of this compiler, by its version and a digest of its sources: a Program of another build is refused.
pub const BUILD: &str = concat!("precast ", env!("CARGO_PKG_VERSION"), " ", env!("PRECAST_SOURCES"));

/// Bytes of an arena beyond the last that a step names. More would be memory that a file asks for and nothing uses.
const ARENA_SLACK: u64 = 1 << 20;

impl Program {
    /// Checks that inputs and outputs have the bytes of their shapes, that the arena is no larger than its buffers, that every
    /// slot lies inside its buffer and that no step writes what it also touches elsewhere.
    pub fn verify(&self) -> Result<(), String> {
        for port in self.inputs.iter().chain(&self.outputs) {
            verify_port(port)?;
        }
        let used = self.steps.iter().flat_map(|step| step.reads.iter().chain(&step.writes)).filter_map(|slot| {
            let Place::Arena(offset) = slot.place else { return None };
            Some(offset.saturating_add(slot.bytes))
        });
        let used = used.max().unwrap_or(0);
        if self.arena_bytes > used.saturating_add(ARENA_SLACK) {
            return Err(format!("an arena of {} bytes of which {used} are used", self.arena_bytes));
        }
        for (position, step) in self.steps.iter().enumerate() {
            for slot in step.reads.iter().chain(&step.writes) {
                self.verify_slot(slot).map_err(|reason| format!("step {position} ({}): {reason}", step.kernel))?;
            }
            for (index, write) in step.writes.iter().enumerate() {
                let others = step.reads.iter().chain(step.writes[..index].iter());
                if others.clone().any(|other| overlap(write, other)) {
                    return Err(format!("step {position} ({}): write {index} overlaps another buffer", step.kernel));
                }
                if matches!(write.place, Place::Input(_) | Place::Constant(_)) {
                    return Err(format!("step {position} ({}): write {index} is not writable", step.kernel));
                }
            }
        }
        Ok(())
    }

    /// Which inputs and which outputs are kept by the caller in one piece of memory.
    pub fn kept_ports(&self) -> (Vec<bool>, Vec<bool>) {
        let mut inputs = vec![false; self.inputs.len()];
        for input in self.outputs.iter().filter_map(|port| port.in_place_of) {
            if let Some(input) = inputs.get_mut(input as usize) {
                *input = true;
            }
        }
        (inputs, self.outputs.iter().map(|port| port.in_place_of.is_some()).collect())
    }

    fn verify_slot(&self, slot: &Slot) -> Result<(), String> {
        let size = match slot.place {
            Place::Arena(offset) => Some(self.arena_bytes.saturating_sub(offset)),
            Place::Input(position) => self.inputs.get(position as usize).map(|port| port.bytes),
            Place::Output(position) => self.outputs.get(position as usize).map(|port| port.bytes),
            Place::Constant(position) => self.constants.get(position as usize).map(|constant| constant.bytes),
        };
        match size {
            Some(size) if slot.bytes <= size => Ok(()),
            Some(size) => Err(format!("{:?} has {size} bytes; {} are used", slot.place, slot.bytes)),
            None => Err(format!("{:?} does not exist", slot.place)),
        }
    }
}

/// An input or output of a known type has the bytes of its shape.
fn verify_port(port: &Port) -> Result<(), String> {
    let name = &port.name;
    let dtype = DType::from_name(&port.dtype).ok_or_else(|| format!("element type '{}' of '{name}'", port.dtype))?;
    let bytes = port.shape.iter().try_fold(dtype.size_bytes() as u64, |bytes, &size| bytes.checked_mul(size));
    match bytes == Some(port.bytes) {
        true => Ok(()),
        false => Err(format!("'{name}' has {} bytes; its shape {:?} has others", port.bytes, port.shape)),
    }
}

fn overlap(a: &Slot, b: &Slot) -> bool {
    if a.bytes == 0 || b.bytes == 0 {
        return false;
    }
    match (a.place, b.place) {
        (Place::Arena(x), Place::Arena(y)) => x < y.saturating_add(b.bytes) && y < x.saturating_add(a.bytes),
        (x, y) => x == y,
    }
}
