//! One run of a fused node: inputs and outputs are the runtime's memory, read and written in place.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::OnceLock;

use precast::{Argument, DType};
use precast_onnx::dtype_from_number;

use crate::abi::{OrtKernelContext, OrtNodeComputeContext, OrtNodeComputeInfo, OrtStatus};
use crate::engine::{Engine, RunMemory};
use crate::error::EpError;
use crate::known_shapes::OutputType;
use crate::runtime::{Runtime, bytes_at};

/// What runs a fused node. The table comes first, so that its address is the computation's.
#[repr(C)]
pub(crate) struct Computation {
    table: OrtNodeComputeInfo,
    runtime: Runtime,
    engine: OnceLock<Engine>,
    /// What makes the engine once the runtime is known to use the node; none where it is there from the start.
    open: Option<OpenEngine>,
    /// For each input of the model, its place among the node's.
    inputs: Vec<usize>,
    /// For each output of the model, its place among the node's.
    outputs: Vec<usize>,
}

/// Makes an engine.
pub(crate) type OpenEngine = Box<dyn Fn() -> Result<Engine, EpError> + Send + Sync>;

/// Where the inputs and outputs of a model stand among those of its fused node.
pub(crate) struct Places {
    pub(crate) inputs: Vec<usize>,
    pub(crate) outputs: Vec<usize>,
}

impl Computation {
    /// A computation that the runtime owns until `release`.
    pub(crate) fn create(runtime: Runtime, engine: Engine, places: Places) -> *mut OrtNodeComputeInfo {
        Computation::leak(runtime, engine.into(), None, places)
    }

    /// A computation whose engine is made when the runtime makes the node's state.
    pub(crate) fn create_later(runtime: Runtime, open: OpenEngine, places: Places) -> *mut OrtNodeComputeInfo {
        Computation::leak(runtime, OnceLock::new(), Some(open), places)
    }

    fn leak(
        runtime: Runtime,
        engine: OnceLock<Engine>,
        open: Option<OpenEngine>,
        places: Places,
    ) -> *mut OrtNodeComputeInfo {
        let table = OrtNodeComputeInfo {
            version: runtime.version,
            create_state: Some(create_state),
            compute: Some(compute),
            release_state: Some(release_state),
        };
        let Places { inputs, outputs } = places;
        Box::into_raw(Box::new(Computation { table, runtime, engine, open, inputs, outputs })).cast()
    }

    /// Ends a computation.
    ///
    /// # Safety
    /// It came from `create` and is not used again.
    pub(crate) unsafe fn release(info: *mut OrtNodeComputeInfo) {
        if !info.is_null() {
            // SAFETY: the caller says so.
            drop(unsafe { Box::from_raw(info.cast::<Computation>()) });
        }
    }

    /// # Safety
    /// The table is that of a computation that lives.
    unsafe fn of<'a>(info: *const OrtNodeComputeInfo) -> &'a Computation {
        // SAFETY: the table is the first field, and the caller says that the computation lives.
        unsafe { &*info.cast() }
    }

    fn open_engine(&self) -> Result<(), EpError> {
        if let Some(open) = self.open.as_ref().filter(|_| self.engine.get().is_none()) {
            // Of two that were made at once one is kept.
            let _ = self.engine.set(open()?);
        }
        Ok(())
    }
}

/// All that a run changes lies in contexts of its Session, so a node has no state of its own.
unsafe extern "C" fn create_state(
    info: *mut OrtNodeComputeInfo,
    _context: *mut OrtNodeComputeContext,
    state: *mut *mut c_void,
) -> *mut OrtStatus {
    // SAFETY: the place is ours to write.
    unsafe { *state = null_mut() };
    // SAFETY: the runtime hands back a computation that lives.
    let computation = unsafe { Computation::of(info) };
    computation.runtime.guard("CreateState", || computation.open_engine())
}

unsafe extern "C" fn release_state(_info: *mut OrtNodeComputeInfo, _state: *mut c_void) {}

unsafe extern "C" fn compute(
    info: *mut OrtNodeComputeInfo,
    _state: *mut c_void,
    context: *mut OrtKernelContext,
) -> *mut OrtStatus {
    // SAFETY: the runtime hands back a computation that lives; runs only read it.
    let computation = unsafe { Computation::of(info) };
    computation.runtime.guard("Compute", || {
        let engine =
            computation.engine.get().ok_or_else(|| EpError::other("a run before the node's state was made"))?;
        let memory = KernelMemory::new(computation, context)?;
        engine.run(&memory)
    })
}

/// The memory of one run, for as long as it goes on.
struct KernelMemory<'a> {
    computation: &'a Computation,
    context: *mut OrtKernelContext,
    inputs: Vec<Argument<'a>>,
}

impl<'a> KernelMemory<'a> {
    fn new(computation: &'a Computation, context: *mut OrtKernelContext) -> Result<KernelMemory<'a>, EpError> {
        let input = |&place: &usize| read_input(computation.runtime, context, place);
        let inputs = computation.inputs.iter().map(input).collect::<Result<_, _>>()?;
        Ok(KernelMemory { computation, context, inputs })
    }

    /// The bytes of an output, which the runtime makes if the caller has not bound it.
    fn output(&self, place: usize, ty: &OutputType) -> Result<*mut u8, EpError> {
        let (runtime, api) = (self.computation.runtime, self.computation.runtime.api);
        let (sizes, rank) = (ty.shape.as_ptr(), ty.shape.len());
        // SAFETY: the context is that of this run, and the sizes are as many as are said.
        let value = runtime.get(null_mut(), |value| unsafe {
            api.kernel_context_get_output(self.context, place, sizes, rank, value)
        })?;
        let (mut element, mut found_sizes, mut found_rank) = (0, std::ptr::null(), 0);
        // SAFETY: the value is a tensor that lives until the run ends; the three are written.
        let status = unsafe { api.get_tensor_type_and_shape(value, &mut element, &mut found_sizes, &mut found_rank) };
        runtime.check(status)?;
        let expected = dtype_from_number(element.into());
        if expected != Some(ty.dtype) {
            let expected = expected.map_or("unknown", DType::name);
            let found = ty.dtype.name();
            return Err(EpError::other(format!("output {place} is {found} where onnxruntime expects {expected}")));
        }
        // SAFETY: the value is a tensor that lives until the run ends.
        let data = runtime.get(null_mut(), |data| unsafe { api.get_tensor_mutable_data(value, data) })?;
        Ok(data.cast())
    }
}

impl RunMemory for KernelMemory<'_> {
    fn inputs(&self) -> &[Argument<'_>] {
        &self.inputs
    }

    fn with_outputs<T>(
        &self,
        types: &[OutputType],
        write: impl FnOnce(&[Argument<'_>], &mut [&mut [u8]]) -> Result<T, EpError>,
    ) -> Result<T, EpError> {
        let places = &self.computation.outputs;
        if types.len() != places.len() {
            let (found, expected) = (types.len(), places.len());
            return Err(EpError::other(format!("{found} outputs where the node has {expected}")));
        }
        let mut spans = Vec::with_capacity(types.len());
        for (&place, ty) in places.iter().zip(types) {
            spans.push(Span { start: self.output(place, ty)?, bytes: ty.bytes });
        }
        let copies = copies_of_overwritten(&self.inputs, &WrittenRanges::new(&spans)?);
        let inputs = with_copies(&self.inputs, &copies);
        let inputs = inputs.as_deref().unwrap_or(&self.inputs);
        let mut outputs: Vec<&mut [u8]> = spans.iter().map(Span::bytes_mut).collect();
        let is_aligned = types.iter().zip(&spans).all(|(ty, span)| span.start.addr() % ty.dtype.size_bytes() == 0);
        if is_aligned {
            write(inputs, &mut outputs)
        } else {
            write_through(&mut outputs, |staged| write(inputs, staged))
        }
    }
}

/// Memory of an output.
#[derive(Clone, Copy)]
struct Span {
    start: *mut u8,
    bytes: usize,
}

impl Span {
    fn range(&self) -> (usize, usize) {
        (self.start.addr(), self.start.addr() + self.bytes)
    }

    fn bytes_mut<'a>(&self) -> &'a mut [u8] {
        if self.bytes == 0 {
            // Aligned for every element type, as bytes that exist are.
            return bytemuck::cast_slice_mut::<u64, u8>(&mut []);
        }
        // SAFETY: the runtime made room for the output's type, which was compared; outputs were found to lie apart and
        // no input that is still read lies there. Nobody else writes it until the run ends.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

/// Writes into aligned memory, and copies it to where a caller has bound outputs otherwise.
fn write_through<T>(
    outputs: &mut [&mut [u8]],
    write: impl FnOnce(&mut [&mut [u8]]) -> Result<T, EpError>,
) -> Result<T, EpError> {
    let words = |output: &&mut [u8]| vec![0u64; output.len().div_ceil(size_of::<u64>())];
    let mut staged: Vec<Vec<u64>> = outputs.iter().map(words).collect();
    let bytes = staged.iter_mut().zip(outputs.iter());
    let mut slices: Vec<&mut [u8]> =
        bytes.map(|(words, output)| &mut bytemuck::cast_slice_mut(&mut words[..])[..output.len()]).collect();
    let written = write(&mut slices)?;
    for (output, staged) in outputs.iter_mut().zip(&staged) {
        let bytes = output.len();
        output.copy_from_slice(&bytemuck::cast_slice(staged)[..bytes]);
    }
    Ok(written)
}

/// Addresses that outputs are written to, in order and apart.
struct WrittenRanges(Vec<(usize, usize)>);

impl WrittenRanges {
    /// Refuses outputs that lie in one place: a caller may have bound two to one buffer.
    fn new(spans: &[Span]) -> Result<WrittenRanges, EpError> {
        let mut ranges: Vec<(usize, usize)> = spans.iter().filter(|span| span.bytes > 0).map(Span::range).collect();
        ranges.sort_unstable();
        match ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            true => Err(EpError::other("two outputs are bound to the same memory")),
            false => Ok(WrittenRanges(ranges)),
        }
    }

    /// Whether some of these bytes are written.
    fn overlap(&self, bytes: &[u8]) -> bool {
        let start = bytes.as_ptr().addr();
        let first = self.0.partition_point(|&(_, end)| end <= start);
        !bytes.is_empty() && self.0.get(first).is_some_and(|&(from, _)| from < start + bytes.len())
    }
}

/// Inputs that an output is written over, copied: a caller may have bound both to one buffer.
fn copies_of_overwritten(inputs: &[Argument<'_>], written: &WrittenRanges) -> Vec<(usize, Vec<u64>)> {
    let overwritten = inputs.iter().enumerate().filter(|(_, input)| written.overlap(input.bytes));
    let copy = |(place, input): (usize, &Argument<'_>)| {
        let mut copy = vec![0u64; input.bytes.len().div_ceil(size_of::<u64>())];
        bytemuck::cast_slice_mut(&mut copy)[..input.bytes.len()].copy_from_slice(input.bytes);
        (place, copy)
    };
    overwritten.map(copy).collect()
}

/// The inputs with copies in the place of those that were copied; none where nothing was.
fn with_copies<'a>(inputs: &[Argument<'a>], copies: &'a [(usize, Vec<u64>)]) -> Option<Vec<Argument<'a>>> {
    if copies.is_empty() {
        return None;
    }
    let mut inputs = inputs.to_vec();
    for (place, copy) in copies {
        let bytes = inputs[*place].bytes.len();
        inputs[*place].bytes = &bytemuck::cast_slice(copy)[..bytes];
    }
    Some(inputs)
}

/// An input as it lies in the runtime's memory.
fn read_input<'a>(runtime: Runtime, context: *mut OrtKernelContext, place: usize) -> Result<Argument<'a>, EpError> {
    let api = runtime.api;
    // SAFETY: the context is that of this run.
    let value =
        runtime.get(std::ptr::null(), |value| unsafe { api.kernel_context_get_input(context, place, value) })?;
    if value.is_null() {
        return Err(EpError::other(format!("input {place} is absent")));
    }
    let (mut element, mut sizes, mut rank) = (0, std::ptr::null(), 0);
    // SAFETY: the value is a tensor that lives until the run ends; the three are written.
    runtime.check(unsafe { api.get_tensor_type_and_shape(value, &mut element, &mut sizes, &mut rank) })?;
    let dtype = dtype_from_number(element.into())
        .ok_or_else(|| EpError::other(format!("input {place} has elements of kind {element}")))?;
    let shape: &[usize] = match rank {
        0 => &[],
        // SAFETY: there are as many sizes, which live as long as the value; sizes of tensors that exist are not negative,
        // so they are the same bits as unsigned numbers.
        _ => unsafe { std::slice::from_raw_parts(sizes.cast::<usize>(), rank) },
    };
    let bytes = shape.iter().product::<usize>() * dtype.size_bytes();
    // SAFETY: the value is a tensor that lives until the run ends.
    let data = runtime.get(std::ptr::null(), |data| unsafe { api.get_tensor_data(value, data) })?;
    // SAFETY: a tensor has the bytes that its type says, and nobody writes an input before the run ends.
    Ok(Argument { dtype, shape, bytes: unsafe { bytes_at(data, bytes) } })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn spans(memory: &mut [u8], ranges: &[(usize, usize)]) -> Vec<Span> {
        let start = memory.as_mut_ptr();
        ranges.iter().map(|&(from, bytes)| Span { start: start.wrapping_add(from), bytes }).collect()
    }

    #[test]
    fn what_is_written_over_is_found_and_nothing_else_is() {
        let mut memory = vec![0; 64];
        let written = WrittenRanges::new(&spans(&mut memory, &[(32, 8), (8, 8), (50, 0)])).unwrap();
        let overlap = |from: usize, to: usize| written.overlap(&memory[from..to]);
        assert!(overlap(0, 9) && overlap(15, 16) && overlap(10, 12) && overlap(0, 64) && overlap(39, 64));
        assert!(!overlap(0, 8) && !overlap(16, 32) && !overlap(40, 64) && !overlap(33, 33));
    }

    #[test]
    fn outputs_in_one_place_are_refused() {
        let mut memory = vec![0; 64];
        assert!(WrittenRanges::new(&spans(&mut memory, &[(0, 8), (8, 8)])).is_ok());
        assert!(WrittenRanges::new(&spans(&mut memory, &[(4, 8), (0, 5)])).is_err());
    }

    #[test]
    fn copies_take_the_place_of_what_is_overwritten() {
        let mut memory = vec![7; 16];
        let written = WrittenRanges::new(&spans(&mut memory, &[(8, 8)])).unwrap();
        let argument = |bytes| Argument { dtype: DType::U8, shape: &[8], bytes };
        let inputs = [argument(&memory[..8]), argument(&memory[8..])];
        let copies = copies_of_overwritten(&inputs, &written);
        let replaced = with_copies(&inputs, &copies).unwrap();
        assert_eq!(replaced[0].bytes.as_ptr(), memory.as_ptr());
        assert_ne!(replaced[1].bytes.as_ptr(), memory[8..].as_ptr());
        assert_eq!(replaced[1].bytes, [7; 8]);
    }
}
