//! One run of a fused node: inputs and outputs are the runtime's memory, read and written in place.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use precast::{Argument, DType};
use precast_onnx::dtype_from_number;

use crate::abi::{OrtKernelContext, OrtNodeComputeContext, OrtNodeComputeInfo, OrtStatus, OrtValue};
use crate::engine::{Engine, RunMemory};
use crate::error::EpError;
use crate::known_shapes::{OutputType, Outputs};
use crate::placement::Span;
use crate::runtime::{Runtime, bytes_at};

/// What runs a fused node. The table comes first, so that its address is the computation's.
#[repr(C)]
pub(crate) struct Computation {
    table: OrtNodeComputeInfo,
    runtime: Runtime,
    engine: OnceLock<Engine>,
    /// What makes the engine once the runtime is known to use the node; none where it is there from the start.
    open: Option<OpenEngine>,
    dtypes: ElementTypes,
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
        let dtypes = ElementTypes::new();
        Box::into_raw(Box::new(Computation { table, runtime, engine, open, dtypes, inputs, outputs })).cast()
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
        let mut inputs = Vec::with_capacity(computation.inputs.len());
        for &place in &computation.inputs {
            inputs.push(read_input(computation, context, place)?);
        }
        Ok(KernelMemory { computation, context, inputs })
    }

    /// An output, which the runtime makes if the caller has not bound it.
    fn output(&self, place: usize, ty: &OutputType) -> Result<*mut OrtValue, EpError> {
        let (runtime, api) = (self.computation.runtime, self.computation.runtime.api);
        let (sizes, rank) = (ty.shape.as_ptr(), ty.shape.len());
        // SAFETY: the context is that of this run, and the sizes are as many as are said.
        runtime
            .get(null_mut(), |value| unsafe { api.kernel_context_get_output(self.context, place, sizes, rank, value) })
    }

    /// Refuses an output that the runtime made of another type than it is written as.
    fn check_type(&self, place: usize, value: *mut OrtValue, ty: &OutputType) -> Result<(), EpError> {
        let (element, _) = element_and_shape(self.computation.runtime, value)?;
        let expected = self.computation.dtypes.of(element);
        if expected == Some(ty.dtype) {
            return Ok(());
        }
        let (found, expected) = (ty.dtype.name(), expected.map_or("unknown", DType::name));
        Err(EpError::other(format!("output {place} is {found} where onnxruntime expects {expected}")))
    }

    /// Where the outputs lie. A node's outputs have the same element types in every run, so these are compared once.
    fn make_outputs(&self, outputs: &Outputs) -> Result<Vec<Span>, EpError> {
        let (runtime, places) = (self.computation.runtime, &self.computation.outputs);
        if outputs.types.len() != places.len() {
            let (found, expected) = (outputs.types.len(), places.len());
            return Err(EpError::other(format!("{found} outputs where the node has {expected}")));
        }
        let are_checked = outputs.are_checked.load(Ordering::Relaxed);
        let mut spans = Vec::with_capacity(places.len());
        for (&place, ty) in places.iter().zip(&outputs.types) {
            let value = self.output(place, ty)?;
            if !are_checked {
                self.check_type(place, value, ty)?;
            }
            // SAFETY: the value is a tensor that lives until the run ends.
            let data = runtime.get(null_mut(), |data| unsafe { runtime.api.get_tensor_mutable_data(value, data) })?;
            spans.push(Span { start: data.cast(), bytes: ty.bytes });
        }
        if !are_checked {
            outputs.are_checked.store(true, Ordering::Relaxed);
        }
        Ok(spans)
    }
}

impl RunMemory for KernelMemory<'_> {
    fn inputs(&self) -> &[Argument<'_>] {
        &self.inputs
    }

    fn with_outputs<T>(
        &self,
        outputs: &Outputs,
        write: impl FnOnce(&[Argument<'_>], &mut [&mut [u8]]) -> Result<T, EpError>,
    ) -> Result<T, EpError> {
        let spans = self.make_outputs(outputs)?;
        outputs.placement.with_buffers(&self.inputs, &spans, &outputs.types, write)
    }
}

/// The element type of every number that the runtime has for one: a run asks for each of its inputs.
struct ElementTypes([Option<DType>; 32]);

impl ElementTypes {
    fn new() -> ElementTypes {
        ElementTypes(std::array::from_fn(|number| dtype_from_number(number as i64)))
    }

    fn of(&self, number: c_int) -> Option<DType> {
        self.0.get(usize::try_from(number).ok()?).copied().flatten()
    }
}

/// The element type of a tensor as a number, and its sizes, which live as long as it does.
fn element_and_shape<'a>(runtime: Runtime, value: *const OrtValue) -> Result<(c_int, &'a [usize]), EpError> {
    let (mut element, mut sizes, mut rank) = (0, std::ptr::null(), 0);
    // SAFETY: the value is a tensor that lives until the run ends; the three are written.
    runtime.check(unsafe { runtime.api.get_tensor_type_and_shape(value, &mut element, &mut sizes, &mut rank) })?;
    let shape: &[usize] = match rank {
        0 => &[],
        // SAFETY: there are as many sizes, which live as long as the value; sizes of tensors that exist are not negative,
        // so they are the same bits as unsigned numbers.
        _ => unsafe { std::slice::from_raw_parts(sizes.cast::<usize>(), rank) },
    };
    Ok((element, shape))
}

/// An input as it lies in the runtime's memory.
fn read_input<'a>(
    computation: &Computation,
    context: *mut OrtKernelContext,
    place: usize,
) -> Result<Argument<'a>, EpError> {
    let (runtime, api) = (computation.runtime, computation.runtime.api);
    // SAFETY: the context is that of this run.
    let value =
        runtime.get(std::ptr::null(), |value| unsafe { api.kernel_context_get_input(context, place, value) })?;
    if value.is_null() {
        return Err(EpError::other(format!("input {place} is absent")));
    }
    let (element, shape) = element_and_shape(runtime, value)?;
    let Some(dtype) = computation.dtypes.of(element) else {
        return Err(EpError::other(format!("input {place} has elements of kind {element}")));
    };
    let bytes = shape.iter().product::<usize>() * dtype.size_bytes();
    // SAFETY: the value is a tensor that lives until the run ends.
    let data = runtime.get(std::ptr::null(), |data| unsafe { api.get_tensor_data(value, data) })?;
    // SAFETY: a tensor has the bytes that its type says, and nobody writes an input before the run ends.
    Ok(Argument { dtype, shape, bytes: unsafe { bytes_at(data, bytes) } })
}
