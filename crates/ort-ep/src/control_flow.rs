//! Nodes with bodies that the runtime runs for this provider (`captures.rs` says which): kernels of its own, registered
//! under this provider's name. Both sides lie in the host's memory, so all that is left to do is to join what a loop made.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

use crate::abi::{
    KernelCreate, MEMORY_CPU_INPUT, OrtKernelDef, OrtKernelDefBuilder, OrtKernelImpl, OrtKernelInfo, OrtKernelRegistry,
    OrtLoopKernelHelper, OrtStatus, OrtValue,
};
use crate::error::EpError;
use crate::factory::NAME;
use crate::runtime::{Runtime, bytes_at};

/// The last version of operators that kernels are registered for; the runtime itself checks which ones it has.
const OPERATOR_VERSION_MAX: c_int = 1000;

/// Kernels for nodes with bodies. The runtime keeps the address of the registry, and hands that of the tables to kernels.
pub(crate) struct Kernels {
    runtime: Box<Runtime>,
    registry: *mut OrtKernelRegistry,
}

// SAFETY: the registry is written while it is made and only read afterwards.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Kernels for If and Loop.
    pub(crate) fn new(runtime: Runtime) -> Result<Kernels, EpError> {
        // SAFETY: the registry is given to us.
        let registry = runtime.get(null_mut(), |registry| unsafe { runtime.ep.create_kernel_registry(registry) })?;
        let kernels = Kernels { runtime: Box::new(runtime), registry };
        kernels.add(c"If", 1, create_if)?;
        kernels.add(c"Loop", 2, create_loop)?;
        Ok(kernels)
    }

    /// What the runtime asks a provider for.
    pub(crate) fn registry(&self) -> *const OrtKernelRegistry {
        self.registry
    }

    /// Adds an operator whose first inputs are read by the runtime.
    fn add(&self, operator: &CStr, runtime_inputs: usize, create: KernelCreate) -> Result<(), EpError> {
        let runtime = *self.runtime;
        let definition = Definition::new(runtime, operator, runtime_inputs)?;
        let state = (&raw const *self.runtime).cast_mut().cast::<c_void>();
        // SAFETY: the definition is copied, and the state lives as long as the registry.
        let status = unsafe { runtime.ep.kernel_registry_add(self.registry, definition.definition, create, state) };
        runtime.check(status)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: it was given to us and is not used again.
        unsafe { self.runtime.ep.release_kernel_registry(self.registry) };
    }
}

/// What an operator's kernel is for, until it is registered.
struct Definition {
    runtime: Runtime,
    definition: *mut OrtKernelDef,
}

impl Definition {
    fn new(runtime: Runtime, operator: &CStr, runtime_inputs: usize) -> Result<Definition, EpError> {
        let ep = runtime.ep;
        // SAFETY: the builder is given to us.
        let builder = runtime.get(null_mut(), |builder| unsafe { ep.create_kernel_def_builder(builder) })?;
        let built = (|| {
            // SAFETY: the builder lives, and texts are copied.
            runtime.check(unsafe { ep.kernel_def_set_operator(builder, operator.as_ptr()) })?;
            // SAFETY: as above.
            runtime.check(unsafe { ep.kernel_def_set_domain(builder, c"".as_ptr()) })?;
            // SAFETY: as above.
            runtime.check(unsafe { ep.kernel_def_set_versions(builder, 1, OPERATOR_VERSION_MAX) })?;
            // SAFETY: as above.
            runtime.check(unsafe { ep.kernel_def_set_provider(builder, NAME.as_ptr()) })?;
            for input in 0..runtime_inputs {
                // SAFETY: as above.
                runtime.check(unsafe { ep.kernel_def_set_input_memory(builder, input, MEMORY_CPU_INPUT) })?;
            }
            build(runtime, builder)
        })();
        // SAFETY: the builder is not used again.
        unsafe { ep.release_kernel_def_builder(builder) };
        Ok(Definition { runtime, definition: built? })
    }
}

fn build(runtime: Runtime, builder: *mut OrtKernelDefBuilder) -> Result<*mut OrtKernelDef, EpError> {
    // SAFETY: the builder lives; the definition is given to us.
    runtime.get(null_mut(), |definition| unsafe { runtime.ep.kernel_def_build(builder, definition) })
}

impl Drop for Definition {
    fn drop(&mut self) {
        // SAFETY: it was given to us and is not used again.
        unsafe { self.runtime.ep.release_kernel_def(self.definition) };
    }
}

/// # Safety
/// The state is that of `Kernels::add`.
unsafe fn runtime_of(state: *mut c_void) -> Runtime {
    // SAFETY: the caller says so; the kernels live as long as the provider.
    unsafe { *state.cast::<Runtime>() }
}

unsafe extern "C" fn create_if(
    state: *mut c_void,
    info: *const OrtKernelInfo,
    kernel: *mut *mut OrtKernelImpl,
) -> *mut OrtStatus {
    // SAFETY: the runtime hands back what the operator was registered with.
    let runtime = unsafe { runtime_of(state) };
    // SAFETY: the runtime's own arguments are passed on.
    runtime.guard("CreateIfKernel", || runtime.check(unsafe { runtime.ep.create_if_kernel(info, kernel) }))
}

unsafe extern "C" fn create_loop(
    state: *mut c_void,
    info: *const OrtKernelInfo,
    kernel: *mut *mut OrtKernelImpl,
) -> *mut OrtStatus {
    // SAFETY: the runtime hands back what the operator was registered with.
    let runtime = unsafe { runtime_of(state) };
    runtime.guard("CreateLoopKernel", || {
        let joiner = Joiner::create(runtime);
        // SAFETY: the runtime's own arguments are passed on; the joiner is the kernel's to release.
        runtime.check(unsafe { runtime.ep.create_loop_kernel(info, joiner, kernel) })
    })
}

/// What joins the outputs of a loop's rounds. The table comes first, so that its address is the joiner's.
#[repr(C)]
struct Joiner {
    table: OrtLoopKernelHelper,
    runtime: Runtime,
}

impl Joiner {
    /// A joiner that the runtime owns until it releases it.
    fn create(runtime: Runtime) -> *mut OrtLoopKernelHelper {
        let table =
            OrtLoopKernelHelper { version: runtime.version, release: Some(release_joiner), join: Some(join_outputs) };
        Box::into_raw(Box::new(Joiner { table, runtime })).cast()
    }
}

unsafe extern "C" fn release_joiner(joiner: *mut OrtLoopKernelHelper) {
    // SAFETY: it came from `create` and is not used again.
    drop(unsafe { Box::from_raw(joiner.cast::<Joiner>()) });
}

unsafe extern "C" fn join_outputs(
    joiner: *mut OrtLoopKernelHelper,
    _stream: *mut c_void,
    rounds: *const *const OrtValue,
    count: usize,
    output: *mut c_void,
    output_bytes: usize,
) -> *mut OrtStatus {
    // SAFETY: the runtime hands back a joiner that lives.
    let runtime = unsafe { &*joiner.cast::<Joiner>() }.runtime;
    runtime.guard("ConcatOutput", || {
        let mut written = 0;
        for round in 0..count {
            // SAFETY: there are as many values as are said, each a tensor that lives.
            let value = unsafe { *rounds.add(round) };
            // SAFETY: as above.
            let bytes = runtime.get(0, |bytes| unsafe { runtime.api.get_tensor_size_in_bytes(value, bytes) })?;
            // SAFETY: as above.
            let data = runtime.get(std::ptr::null(), |data| unsafe { runtime.api.get_tensor_data(value, data) })?;
            if bytes > output_bytes - written {
                return Err(EpError::other("a loop made more than its output has room for"));
            }
            // SAFETY: the tensor has as many bytes.
            let source = unsafe { bytes_at(data, bytes) };
            // SAFETY: the place lies within the output.
            let target = unsafe { output.cast::<u8>().add(written) };
            // SAFETY: there is room for as many, and an output lies apart from what it is made of.
            unsafe { target.copy_from_nonoverlapping(source.as_ptr(), bytes) };
            written += bytes;
        }
        Ok(())
    })
}
