//! The memory of one run, handed to steps as typed slices, so that the crate `cpu` needs no unsafe code.
//!
//! What a step reads and writes is checked once, when its `StepSlots` are made: writes overlap nothing else of the
//! step. `Bound` joins the arena with the buffers of one call; `Args` gives out slices with a few compares each and
//! no allocation.

use crate::allocation::Allocation;
use bytes::Bytes;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// Alignment of the arena, of every offset in it and of `AlignedBytes`: a cache line and the widest vector.
pub const ALIGNMENT: usize = 64;
/// The most writes a step may have: the bits of the mask that records which were taken.
const WRITES_MAX: usize = u64::BITS as usize;

/// Where the bytes of a value lie during a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the arena, at this many bytes from its start; a multiple of `ALIGNMENT`.
    Arena {
        /// Bytes from the start.
        offset: usize,
    },
    /// In the caller's input of this index.
    Input(usize),
    /// In the caller's output of this index.
    Output(usize),
    /// In the constant of this index.
    Constant(usize),
}

/// A place and how many bytes of it are meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Where it starts.
    pub place: Place,
    /// How many bytes it has.
    pub bytes: usize,
}

impl Slot {
    fn range(&self) -> Range<usize> {
        let start = match self.place {
            Place::Arena { offset } => offset,
            Place::Input(_) | Place::Output(_) | Place::Constant(_) => 0,
        };
        start..start.saturating_add(self.bytes)
    }

    fn overlaps(&self, other: &Slot) -> bool {
        let is_same_buffer = match (self.place, other.place) {
            (Place::Arena { .. }, Place::Arena { .. }) => true,
            (place, other_place) => place == other_place,
        };
        let (range, other_range) = (self.range(), other.range());
        is_same_buffer && range.start.max(other_range.start) < range.end.min(other_range.end)
    }
}

/// Why slots or buffers were refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ArenaError {
    /// An arena slot that does not start at a multiple of `ALIGNMENT`.
    #[error("slot {slot:?}: the offset is not a multiple of {ALIGNMENT}")]
    OffsetNotAligned {
        /// The slot.
        slot: Slot,
    },
    /// A slot that reaches over the end of its buffer.
    #[error("slot {slot:?}: its buffer has only {buffer_bytes} bytes")]
    OutOfBounds {
        /// The slot.
        slot: Slot,
        /// Length of the buffer it lies in.
        buffer_bytes: usize,
    },
    /// A slot whose input, output or constant does not exist.
    #[error("slot {slot:?}: there is no buffer of that index")]
    NoSuchBuffer {
        /// The slot.
        slot: Slot,
    },
    /// A write to an input or a constant.
    #[error("slot {slot:?}: only the arena and outputs can be written")]
    NotWritable {
        /// The slot.
        slot: Slot,
    },
    /// A write that overlaps another slot of the same step.
    #[error("slot {write:?} is written while {other:?} is in use by the same step")]
    Overlap {
        /// The written slot.
        write: Slot,
        /// The slot it overlaps.
        other: Slot,
    },
    /// More writes in one step than can be tracked.
    #[error("a step with {writes} writes; at most {WRITES_MAX} are possible")]
    TooManyWrites {
        /// How many were given.
        writes: usize,
    },
    /// A wrong number of inputs, outputs or constants.
    #[error("{actual} {kind}s were bound, the Program has {expected}")]
    BufferCount {
        /// input, output or constant.
        kind: &'static str,
        /// How many the Program has.
        expected: usize,
        /// How many were given.
        actual: usize,
    },
    /// A buffer that is too small.
    #[error("{kind} {index} has {actual} bytes, the Program needs {expected}")]
    BufferSize {
        /// input, output, constant or arena.
        kind: &'static str,
        /// Which of them.
        index: usize,
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        actual: usize,
    },
    /// A buffer whose address does not suit its element type.
    #[error("{kind} {index} is not aligned to {expected} bytes")]
    BufferAlignment {
        /// input, output or constant.
        kind: &'static str,
        /// Which of them.
        index: usize,
        /// Alignment needed.
        expected: usize,
    },
}

/// The reads and writes of one step: arena slots are inside the arena, and no write overlaps another slot.
#[derive(Clone, Debug)]
pub struct StepSlots {
    reads: Vec<Slot>,
    writes: Vec<Slot>,
    arena_bytes: usize,
}

impl StepSlots {
    /// Checks the slots of a step against an arena of this size and against each other.
    pub fn new(reads: Vec<Slot>, writes: Vec<Slot>, arena_bytes: usize) -> Result<StepSlots, ArenaError> {
        if writes.len() > WRITES_MAX {
            return Err(ArenaError::TooManyWrites { writes: writes.len() });
        }
        for slot in reads.iter().chain(&writes) {
            let Place::Arena { offset } = slot.place else { continue };
            if offset % ALIGNMENT != 0 {
                return Err(ArenaError::OffsetNotAligned { slot: *slot });
            }
            if offset > arena_bytes || slot.bytes > arena_bytes - offset {
                return Err(ArenaError::OutOfBounds { slot: *slot, buffer_bytes: arena_bytes });
            }
        }
        for (index, write) in writes.iter().enumerate() {
            if matches!(write.place, Place::Input(_) | Place::Constant(_)) {
                return Err(ArenaError::NotWritable { slot: *write });
            }
            if let Some(other) = reads.iter().chain(&writes[..index]).find(|other| write.overlaps(other)) {
                return Err(ArenaError::Overlap { write: *write, other: *other });
            }
        }
        Ok(StepSlots { reads, writes, arena_bytes })
    }

    /// What the step reads.
    pub fn reads(&self) -> &[Slot] {
        &self.reads
    }

    /// What the step writes.
    pub fn writes(&self) -> &[Slot] {
        &self.writes
    }
}

/// Size and alignment that a buffer must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Requirement {
    /// The least length.
    pub bytes: usize,
    /// Alignment of its element type; a power of two.
    pub align: usize,
}

/// What a Program needs of the buffers it is bound to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Requirements {
    /// Length of the arena.
    pub arena_bytes: usize,
    /// One for each constant.
    pub constants: Vec<Requirement>,
    /// One for each input.
    pub inputs: Vec<Requirement>,
    /// One for each output.
    pub outputs: Vec<Requirement>,
}

impl Requirements {
    /// Checks, once at load, that a step stays inside buffers that meet these requirements.
    pub fn admit(&self, slots: &StepSlots) -> Result<(), ArenaError> {
        for slot in slots.reads.iter().chain(&slots.writes) {
            let buffer_bytes = match slot.place {
                Place::Arena { .. } => Some(self.arena_bytes),
                Place::Input(index) => self.inputs.get(index).map(|need| need.bytes),
                Place::Output(index) => self.outputs.get(index).map(|need| need.bytes),
                Place::Constant(index) => self.constants.get(index).map(|need| need.bytes),
            };
            let buffer_bytes = buffer_bytes.ok_or(ArenaError::NoSuchBuffer { slot: *slot })?;
            if slot.range().end > buffer_bytes {
                return Err(ArenaError::OutOfBounds { slot: *slot, buffer_bytes });
            }
        }
        Ok(())
    }
}

/// Immutable bytes at a multiple of `ALIGNMENT`, such as a packed constant. Clones share them.
#[derive(Clone)]
pub struct AlignedBytes(Arc<Bytes>);

impl AlignedBytes {
    /// A copy of these elements.
    pub fn from_slice<T: Element>(elements: &[T]) -> AlignedBytes {
        let bytes = as_bytes(elements);
        AlignedBytes::from_parts(bytes.len(), [bytes])
    }

    /// A copy of bytes that come in parts and are this many together.
    pub fn from_parts<'b>(bytes: usize, parts: impl IntoIterator<Item = &'b [u8]>) -> AlignedBytes {
        AlignedBytes::filled(bytes, |mut target: &mut [u8]| {
            for part in parts {
                let (here, rest) = target.split_at_mut(part.len());
                here.copy_from_slice(part);
                target = rest;
            }
            assert!(target.is_empty(), "the parts have {} bytes less than was said", target.len());
        })
    }

    /// This many elements, which are zeros until `fill` writes them in place.
    pub fn filled<T: Element>(elements: usize, fill: impl FnOnce(&mut [T])) -> AlignedBytes {
        let mut allocation = Allocation::zeroed(elements * size_of::<T>());
        fill(view_mut(allocation.as_mut_slice()).expect("aligned, and whole elements"));
        AlignedBytes(Arc::new(Bytes::from_owner(allocation)))
    }

    /// These bytes where they are, if that is aligned, as a mapped file or an earlier `AlignedBytes` is.
    pub fn try_from_bytes(bytes: &Bytes) -> Option<AlignedBytes> {
        bytes.as_ptr().addr().is_multiple_of(ALIGNMENT).then(|| AlignedBytes(Arc::new(bytes.clone())))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, shared.
    pub fn into_bytes(self) -> Bytes {
        Bytes::clone(&self.0)
    }

    /// The bytes as elements, or `None` when the length is not a whole number of them.
    pub fn view<T: Element>(&self) -> Option<&[T]> {
        view(self.as_bytes())
    }

    /// Whether another clone holds the same bytes.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl std::fmt::Debug for AlignedBytes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "AlignedBytes({} bytes)", self.0.len())
    }
}

/// The planned memory of one run state: zeroed when made, then owned by one run at a time.
pub struct Arena(Allocation);

impl Arena {
    /// An arena of this many bytes.
    pub fn new(bytes: usize) -> Arena {
        Arena(Allocation::zeroed(bytes))
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// The arena, the constants and the caller's buffers of one run.
pub struct Bound<'a, 'o> {
    arena: &'a mut Arena,
    constants: &'a [AlignedBytes],
    inputs: &'a [&'a [u8]],
    outputs: &'a mut [&'o mut [u8]],
}

impl<'a, 'o> Bound<'a, 'o> {
    /// Joins the buffers of one run after comparing them with what the Program needs.
    pub fn new(
        requirements: &Requirements,
        arena: &'a mut Arena,
        constants: &'a [AlignedBytes],
        inputs: &'a [&'a [u8]],
        outputs: &'a mut [&'o mut [u8]],
    ) -> Result<Bound<'a, 'o>, ArenaError> {
        if arena.bytes() < requirements.arena_bytes {
            let (expected, actual) = (requirements.arena_bytes, arena.bytes());
            return Err(ArenaError::BufferSize { kind: "arena", index: 0, expected, actual });
        }
        check_buffers("constant", &requirements.constants, constants.iter().map(AlignedBytes::as_bytes))?;
        check_buffers("input", &requirements.inputs, inputs.iter().copied())?;
        check_buffers("output", &requirements.outputs, outputs.iter().map(|output| &**output))?;
        Ok(Bound { arena, constants, inputs, outputs })
    }

    /// The arguments of one step.
    pub fn args<'s>(&'s mut self, slots: &'s StepSlots) -> Args<'s> {
        assert!(slots.arena_bytes <= self.arena.bytes(), "the step was checked against a larger arena");
        Args {
            slots,
            arena: self.arena.0.start(),
            constants: self.constants,
            inputs: self.inputs,
            outputs: self.outputs.as_mut_ptr().cast(),
            output_count: self.outputs.len(),
            taken: Cell::new(0),
            bound: PhantomData,
        }
    }
}

fn check_buffers<'b>(
    kind: &'static str,
    needs: &[Requirement],
    buffers: impl ExactSizeIterator<Item = &'b [u8]>,
) -> Result<(), ArenaError> {
    if needs.len() != buffers.len() {
        return Err(ArenaError::BufferCount { kind, expected: needs.len(), actual: buffers.len() });
    }
    for (index, (need, buffer)) in needs.iter().zip(buffers).enumerate() {
        if buffer.len() < need.bytes {
            return Err(ArenaError::BufferSize { kind, index, expected: need.bytes, actual: buffer.len() });
        }
        if need.bytes != 0 && buffer.as_ptr().addr() % need.align != 0 {
            return Err(ArenaError::BufferAlignment { kind, index, expected: need.align });
        }
    }
    Ok(())
}

/// The arguments of one step: any read any number of times, each write once.
pub struct Args<'s> {
    slots: &'s StepSlots,
    arena: *mut u8,
    constants: &'s [AlignedBytes],
    inputs: &'s [&'s [u8]],
    /// The caller's outputs, borrowed mutably for 's; raw so that taking one does not touch the others.
    outputs: *mut &'s mut [u8],
    output_count: usize,
    /// Bit i is set when write i was taken.
    taken: Cell<u64>,
    bound: PhantomData<&'s mut ()>,
}

impl<'s> Args<'s> {
    /// The elements that read `index` of the step names. Panics when the slot does not hold whole, aligned elements.
    pub fn read<T: Element>(&self, index: usize) -> &'s [T] {
        let slot = &self.slots.reads[index];
        let start = self.locate(slot).cast_const();
        // SAFETY: `locate` found this many bytes inside a buffer borrowed for 's. They are initialised, and no write
        // of the step overlaps them: `StepSlots::new` checked it, and inputs and constants are never written.
        let bytes = unsafe { std::slice::from_raw_parts(start, slot.bytes) };
        view(bytes).unwrap_or_else(|| panic!("read {index} {slot:?} does not hold whole, aligned elements"))
    }

    /// The elements that write `index` of the step names. Panics when it was taken before, or as `read` does.
    pub fn write<T: Element>(&mut self, index: usize) -> &'s mut [T] {
        let slot = &self.slots.writes[index];
        let bit = 1_u64 << index;
        assert!(self.taken.get() & bit == 0, "write {index} {slot:?} was already taken");
        self.taken.set(self.taken.get() | bit);
        let start = self.locate(slot);
        // SAFETY: `locate` found this many bytes inside a buffer borrowed mutably for 's. `StepSlots::new` checked that
        // no other slot of the step overlaps them and that they are writable; `taken` hands them out once.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, slot.bytes) };
        view_mut(bytes).unwrap_or_else(|| panic!("write {index} {slot:?} does not hold whole, aligned elements"))
    }

    /// How many bytes read `index` has.
    pub fn read_bytes(&self, index: usize) -> usize {
        self.slots.reads[index].bytes
    }

    /// The address of a slot, after checking that all its bytes lie inside its buffer.
    fn locate(&self, slot: &Slot) -> *mut u8 {
        let (start, buffer_bytes) = match slot.place {
            Place::Arena { offset } => {
                // SAFETY: `StepSlots::new` checked offset + bytes against an arena no longer than this one.
                return unsafe { self.arena.add(offset) };
            }
            Place::Input(index) => (self.inputs[index].as_ptr().cast_mut(), self.inputs[index].len()),
            Place::Constant(index) => {
                let bytes = self.constants[index].as_bytes();
                (bytes.as_ptr().cast_mut(), bytes.len())
            }
            Place::Output(index) => {
                assert!(index < self.output_count, "there is no output {index}");
                // SAFETY: below the count, so inside the caller's array of outputs, borrowed for 's.
                let output: *mut [u8] = unsafe { &raw mut **self.outputs.add(index) };
                (output.cast(), output.len())
            }
        };
        assert!(slot.bytes <= buffer_bytes, "{slot:?} in a buffer of {buffer_bytes} bytes");
        start
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Element types for which every bit pattern is a value. Booleans are `u8`, 0 or 1.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {}

macro_rules! elements {
    ($($ty:ty),*) => {
        $(impl sealed::Sealed for $ty {}
        impl Element for $ty {})*
    };
}
elements!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

/// Elements as bytes.
pub fn as_bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: elements have no padding and every byte of them is initialised.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// Elements as bytes that can be written.
pub fn as_bytes_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    let bytes = size_of_val(elements);
    // SAFETY: elements have no padding, and every bit pattern is an element.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), bytes) }
}

/// Bytes as elements, or `None` when they are not whole or not aligned. No bytes are always no elements.
pub fn view<T: Element>(bytes: &[u8]) -> Option<&[T]> {
    if bytes.is_empty() {
        return Some(&[]);
    }
    if !bytes.len().is_multiple_of(size_of::<T>()) || !bytes.as_ptr().cast::<T>().is_aligned() {
        return None;
    }
    // SAFETY: aligned, a whole number of elements, and every bit pattern is an element.
    Some(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) })
}

/// Bytes as elements that can be written, or `None` as `view`.
pub fn view_mut<T: Element>(bytes: &mut [u8]) -> Option<&mut [T]> {
    if bytes.is_empty() {
        return Some(&mut []);
    }
    if !bytes.len().is_multiple_of(size_of::<T>()) || !bytes.as_ptr().cast::<T>().is_aligned() {
        return None;
    }
    // SAFETY: aligned, a whole number of elements, and every bit pattern is an element both ways.
    Some(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>()) })
}

#[cfg(test)]
#[path = "arena_tests.rs"]
mod tests;
