//! The parts of ONNX Runtime's C interface that are used, declared by us: opaque types, the tables of functions that the
//! runtime gives, and the tables that it takes. A table that the runtime gives is read by the number of a slot; slots
//! are only ever appended, so a number means the same function in every version that has it (`docs/onnxruntime.md`).

use std::ffi::{c_char, c_int, c_void};

/// The version of the interface that this library is written against. The runtime is asked for the lesser of this and
/// its own, and is told that one in every table it takes.
pub const API_VERSION_MAX: u32 = 29;

/// The oldest version of the interface that has every slot used here.
pub const API_VERSION_MIN: u32 = 24;

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            pub struct $name {
                _opaque: [u8; 0],
            }
        )*
    };
}

opaque! {
    /// Why a call failed; null is success. Owned by who gets it.
    OrtStatus;
    /// A graph as an execution provider sees it.
    OrtGraph;
    /// A node of a graph.
    OrtNode;
    /// A named value of a graph.
    OrtValueInfo;
    /// The type of a value.
    OrtTypeInfo;
    /// Element type and dims of a tensor.
    OrtTensorTypeAndShapeInfo;
    /// An attribute of a node.
    OrtOpAttr;
    /// A tensor.
    OrtValue;
    /// Where the bytes of an initializer lie in another file.
    OrtExternalInitializerInfo;
    /// What one run of a node is given.
    OrtKernelContext;
    /// What the state of a node is made with.
    OrtNodeComputeContext;
    /// Where a provider says which nodes it takes.
    OrtEpGraphSupportInfo;
    /// Options of a session.
    OrtSessionOptions;
    /// Options of a run.
    OrtRunOptions;
    /// A list of pairs of texts.
    OrtKeyValuePairs;
    /// A piece of hardware.
    OrtHardwareDevice;
    /// A provider on a piece of hardware.
    OrtEpDevice;
    /// Where messages go.
    OrtLogger;
    /// Moves tensors between devices.
    OrtDataTransferImpl;
    /// Kernels of a provider.
    OrtKernelRegistry;
    /// What a kernel is for.
    OrtKernelDef;
    /// Makes what a kernel is for.
    OrtKernelDefBuilder;
    /// A node that a kernel is made for.
    OrtKernelInfo;
    /// A kernel.
    OrtKernelImpl;
}

/// What an entry of a table is before its type is known.
pub type Slot = *const c_void;

/// `OrtErrorCode`: the ones that are given here.
pub mod error_code {
    use std::ffi::c_int;

    /// Anything else.
    pub const FAIL: c_int = 1;
    /// Something this runtime does not have.
    pub const NOT_IMPLEMENTED: c_int = 9;
}

/// `OrtLoggingLevel`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Of interest to who looks for it.
    Info = 1,
    /// Of interest to everybody.
    Warning = 2,
    /// Something failed.
    Error = 3,
}

/// `OrtHardwareDeviceType` of a CPU.
pub const HARDWARE_CPU: c_int = 0;

/// `OrtMemType` of an input that the host reads.
pub const MEMORY_CPU_INPUT: c_int = -2;

/// `ONNXType` of a tensor.
pub const ONNX_TYPE_TENSOR: c_int = 1;

/// `OrtOpAttrType`.
pub mod attribute_type {
    use std::ffi::c_int;

    /// One integer.
    pub const INT: c_int = 1;
    /// Integers.
    pub const INTS: c_int = 2;
    /// One float.
    pub const FLOAT: c_int = 3;
    /// Floats.
    pub const FLOATS: c_int = 4;
    /// One text, which may hold any bytes.
    pub const STRING: c_int = 5;
    /// Texts.
    pub const STRINGS: c_int = 6;
    /// A graph.
    pub const GRAPH: c_int = 7;
    /// A tensor.
    pub const TENSOR: c_int = 8;
}

/// `OrtCompiledModelCompatibility`.
pub mod compatibility {
    use std::ffi::c_int;

    /// The model was compiled for this machine.
    pub const OPTIMAL: c_int = 1;
    /// It runs; compiled again it would run better.
    pub const PREFER_RECOMPILATION: c_int = 2;
    /// It does not run.
    pub const UNSUPPORTED: c_int = 3;
}

/// What the runtime hands to a library first.
#[repr(C)]
pub struct OrtApiBase {
    /// The table of a version; null where the runtime does not have it.
    pub get_api: unsafe extern "C" fn(u32) -> *const c_void,
    /// The runtime's version as text.
    pub get_version_string: unsafe extern "C" fn() -> *const c_char,
}

/// Declares a table that the runtime gives: `slot function(arguments) -> result`. Exported for the program that measures,
/// which is a client of the runtime and uses other slots.
#[doc(hidden)]
#[macro_export]
macro_rules! given_table {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$function_doc:meta])* $slot:literal $function:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name(*const $crate::abi::Slot);

        // SAFETY: the runtime never writes its tables once they are given, and they stay for its life.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            /// Name and number of every slot that is used.
            pub const SLOTS: &[(&str, usize)] = &[$((stringify!($function), $slot)),*];

            /// The table at an address.
            ///
            /// # Safety
            /// It is the runtime's table of a version that has every slot declared here.
            pub unsafe fn new(address: *const std::ffi::c_void) -> $name {
                $name(address.cast())
            }

            $(
                $(#[$function_doc])*
                ///
                /// # Safety
                /// The arguments are what the runtime's text says.
                #[inline]
                pub unsafe fn $function(self, $($argument: $type),*) $(-> $result)? {
                    type Function = unsafe extern "C" fn($($type),*) $(-> $result)?;
                    // SAFETY: `new` was promised that the table has this slot.
                    let slot = unsafe { *self.0.add($slot) };
                    // SAFETY: a slot of this number holds a function of this type in every version.
                    let function = unsafe { std::mem::transmute::<$crate::abi::Slot, Function>(slot) };
                    // SAFETY: the caller keeps the function's own rules.
                    unsafe { function($($argument),*) }
                }
            )*
        }
    };
}

given_table! {
    /// `OrtApi`.
    OrtApi {
        /// Makes a status of a code and a text, which is copied.
        0 create_status(code: c_int, message: *const c_char) -> *mut OrtStatus;
        /// The text of a status, which lives as long as it.
        2 get_error_message(status: *const OrtStatus) -> *const c_char;
        /// The bytes of a tensor, to be written.
        51 get_tensor_mutable_data(value: *mut OrtValue, data: *mut *mut c_void) -> *mut OrtStatus;
        /// The type of a tensor within a type; null for another kind.
        55 cast_type_info_to_tensor_info(info: *const OrtTypeInfo, tensor: *mut *const OrtTensorTypeAndShapeInfo) -> *mut OrtStatus;
        /// Which kind of type it is.
        56 get_onnx_type(info: *const OrtTypeInfo, kind: *mut c_int) -> *mut OrtStatus;
        /// Element type.
        60 get_tensor_element_type(info: *const OrtTensorTypeAndShapeInfo, element: *mut c_int) -> *mut OrtStatus;
        /// Rank.
        61 get_dimensions_count(info: *const OrtTensorTypeAndShapeInfo, count: *mut usize) -> *mut OrtStatus;
        /// Sizes; -1 where there is no number.
        62 get_dimensions(info: *const OrtTensorTypeAndShapeInfo, sizes: *mut i64, count: usize) -> *mut OrtStatus;
        /// Symbols; empty where there is none.
        63 get_symbolic_dimensions(info: *const OrtTensorTypeAndShapeInfo, symbols: *mut *const c_char, count: usize) -> *mut OrtStatus;
        /// Inputs of a run.
        88 kernel_context_get_input_count(context: *const OrtKernelContext, count: *mut usize) -> *mut OrtStatus;
        /// Outputs of a run.
        89 kernel_context_get_output_count(context: *const OrtKernelContext, count: *mut usize) -> *mut OrtStatus;
        /// An input of a run; null where it is absent.
        90 kernel_context_get_input(context: *const OrtKernelContext, index: usize, value: *mut *const OrtValue) -> *mut OrtStatus;
        /// An output of a run, of this shape; the runtime owns it.
        91 kernel_context_get_output(context: *mut OrtKernelContext, index: usize, sizes: *const i64, rank: usize, value: *mut *mut OrtValue) -> *mut OrtStatus;
        /// Ends a status.
        93 release_status(status: *mut OrtStatus);
        /// Ends a tensor.
        96 release_value(value: *mut OrtValue);
        /// Makes an attribute; the bytes are copied.
        211 create_op_attr(name: *const c_char, data: *const c_void, length: c_int, kind: c_int, attribute: *mut *mut OrtOpAttr) -> *mut OrtStatus;
        /// Ends an attribute.
        212 release_op_attr(attribute: *mut OrtOpAttr);
        /// Writes a message.
        247 log_message(logger: *const OrtLogger, level: LogLevel, message: *const c_char, file: *const c_char, line: c_int, function: *const c_char) -> *mut OrtStatus;
        /// Reads an attribute. The bytes needed are told also where it fails because there is too little room.
        272 read_op_attr(attribute: *const OrtOpAttr, kind: c_int, data: *mut c_void, room_bytes: usize, bytes: *mut usize) -> *mut OrtStatus;
        /// Name of a value.
        289 get_value_info_name(info: *const OrtValueInfo, name: *mut *const c_char) -> *mut OrtStatus;
        /// Type of a value; it lives as long as the value.
        290 get_value_info_type(info: *const OrtValueInfo, kind: *mut *const OrtTypeInfo) -> *mut OrtStatus;
        /// The table that makes nodes.
        291 get_model_editor_api() -> *const c_void;
        /// Makes an empty list of pairs.
        295 create_key_value_pairs(pairs: *mut *mut OrtKeyValuePairs);
        /// Adds a pair, which is copied.
        296 add_key_value_pair(pairs: *mut OrtKeyValuePairs, key: *const c_char, value: *const c_char);
        /// Every pair of a list.
        298 get_key_value_pairs(pairs: *const OrtKeyValuePairs, keys: *mut *const *const c_char, values: *mut *const *const c_char, count: *mut usize);
        /// Ends a list of pairs.
        300 release_key_value_pairs(pairs: *mut OrtKeyValuePairs);
        /// What a piece of hardware is.
        307 hardware_device_type(device: *const OrtHardwareDevice) -> c_int;
        /// The table for execution providers.
        317 get_ep_api() -> *const c_void;
        /// Bytes of a tensor as they lie in memory.
        318 get_tensor_size_in_bytes(value: *const OrtValue, bytes: *mut usize) -> *mut OrtStatus;
        /// The tensor of an initializer, which the graph owns.
        326 value_info_get_initializer(info: *const OrtValueInfo, value: *mut *const OrtValue) -> *mut OrtStatus;
        /// Where an initializer lies in another file; null where it does not. Owned by the caller.
        327 value_info_get_external_info(info: *const OrtValueInfo, external: *mut *mut OrtExternalInitializerInfo) -> *mut OrtStatus;
        /// Whether the value can never be given from outside.
        331 value_info_is_constant_initializer(info: *const OrtValueInfo, is_constant: *mut bool) -> *mut OrtStatus;
        /// Name of a graph.
        333 graph_get_name(graph: *const OrtGraph, name: *mut *const c_char) -> *mut OrtStatus;
        /// The file of the model; empty where it came as bytes.
        334 graph_get_model_path(graph: *const OrtGraph, path: *mut *const c_char) -> *mut OrtStatus;
        /// Version of the format.
        335 graph_get_onnx_ir_version(graph: *const OrtGraph, version: *mut i64) -> *mut OrtStatus;
        /// How many operator sets.
        336 graph_get_num_operator_sets(graph: *const OrtGraph, count: *mut usize) -> *mut OrtStatus;
        /// Operator sets.
        337 graph_get_operator_sets(graph: *const OrtGraph, domains: *mut *const c_char, versions: *mut i64, count: usize) -> *mut OrtStatus;
        /// How many inputs.
        338 graph_get_num_inputs(graph: *const OrtGraph, count: *mut usize) -> *mut OrtStatus;
        /// Inputs.
        339 graph_get_inputs(graph: *const OrtGraph, inputs: *mut *const OrtValueInfo, count: usize) -> *mut OrtStatus;
        /// How many outputs.
        340 graph_get_num_outputs(graph: *const OrtGraph, count: *mut usize) -> *mut OrtStatus;
        /// Outputs.
        341 graph_get_outputs(graph: *const OrtGraph, outputs: *mut *const OrtValueInfo, count: usize) -> *mut OrtStatus;
        /// How many initializers.
        342 graph_get_num_initializers(graph: *const OrtGraph, count: *mut usize) -> *mut OrtStatus;
        /// Initializers.
        343 graph_get_initializers(graph: *const OrtGraph, initializers: *mut *const OrtValueInfo, count: usize) -> *mut OrtStatus;
        /// How many nodes.
        344 graph_get_num_nodes(graph: *const OrtGraph, count: *mut usize) -> *mut OrtStatus;
        /// Nodes, each after those it reads.
        345 graph_get_nodes(graph: *const OrtGraph, nodes: *mut *const OrtNode, count: usize) -> *mut OrtStatus;
        /// The node that the graph is a body of; null for the model's own.
        346 graph_get_parent_node(graph: *const OrtGraph, node: *mut *const OrtNode) -> *mut OrtStatus;
        /// Name of a node.
        349 node_get_name(node: *const OrtNode, name: *mut *const c_char) -> *mut OrtStatus;
        /// Operator of a node.
        350 node_get_operator_type(node: *const OrtNode, operator: *mut *const c_char) -> *mut OrtStatus;
        /// Domain of the operator.
        351 node_get_domain(node: *const OrtNode, domain: *mut *const c_char) -> *mut OrtStatus;
        /// How many inputs.
        353 node_get_num_inputs(node: *const OrtNode, count: *mut usize) -> *mut OrtStatus;
        /// Inputs; null where one is left out.
        354 node_get_inputs(node: *const OrtNode, inputs: *mut *const OrtValueInfo, count: usize) -> *mut OrtStatus;
        /// How many outputs.
        355 node_get_num_outputs(node: *const OrtNode, count: *mut usize) -> *mut OrtStatus;
        /// Outputs; null where one is left out.
        356 node_get_outputs(node: *const OrtNode, outputs: *mut *const OrtValueInfo, count: usize) -> *mut OrtStatus;
        /// How many attributes.
        359 node_get_num_attributes(node: *const OrtNode, count: *mut usize) -> *mut OrtStatus;
        /// Attributes.
        360 node_get_attributes(node: *const OrtNode, attributes: *mut *const OrtOpAttr, count: usize) -> *mut OrtStatus;
        /// The tensor of an attribute; owned by the caller.
        362 op_attr_get_tensor(attribute: *const OrtOpAttr, value: *mut *mut OrtValue) -> *mut OrtStatus;
        /// What an attribute holds.
        363 op_attr_get_type(attribute: *const OrtOpAttr, kind: *mut c_int) -> *mut OrtStatus;
        /// Name of an attribute.
        364 op_attr_get_name(attribute: *const OrtOpAttr, name: *mut *const c_char) -> *mut OrtStatus;
        /// How many bodies.
        365 node_get_num_subgraphs(node: *const OrtNode, count: *mut usize) -> *mut OrtStatus;
        /// Bodies and the attributes that hold them.
        366 node_get_subgraphs(node: *const OrtNode, graphs: *mut *const OrtGraph, count: usize, attributes: *mut *const c_char) -> *mut OrtStatus;
        /// Name of the provider that has the node; empty where none has it yet.
        368 node_get_ep_name(node: *const OrtNode, name: *mut *const c_char) -> *mut OrtStatus;
        /// Ends what 327 gave.
        369 release_external_info(info: *mut OrtExternalInitializerInfo);
        /// Path of the other file, from the model's folder.
        370 external_info_get_path(info: *const OrtExternalInitializerInfo) -> *const c_char;
        /// Place in the other file.
        371 external_info_get_offset(info: *const OrtExternalInitializerInfo) -> i64;
        /// Bytes in the other file.
        372 external_info_get_bytes(info: *const OrtExternalInitializerInfo) -> usize;
        /// The bytes of a tensor, to be read.
        378 get_tensor_data(value: *const OrtValue, data: *mut *const c_void) -> *mut OrtStatus;
        /// Every entry of a session's configuration; owned by the caller.
        379 get_session_config_entries(options: *const OrtSessionOptions, pairs: *mut *mut OrtKeyValuePairs) -> *mut OrtStatus;
        /// Whether a rank is known.
        390 tensor_info_has_shape(info: *const OrtTensorTypeAndShapeInfo) -> bool;
        /// Element type and sizes of a tensor, which live as long as it does.
        414 get_tensor_type_and_shape(value: *const OrtValue, element: *mut c_int, sizes: *mut *const i64, rank: *mut usize) -> *mut OrtStatus;
    }
}

given_table! {
    /// `OrtEpApi`.
    OrtEpApi {
        /// A provider on a piece of hardware; the runtime owns it once it is given back.
        0 create_ep_device(factory: *mut OrtEpFactory, device: *const OrtHardwareDevice, metadata: *const OrtKeyValuePairs, options: *const OrtKeyValuePairs, ep_device: *mut *mut OrtEpDevice) -> *mut OrtStatus;
        /// Says that these nodes are taken as one.
        2 add_nodes_to_fuse(support: *mut OrtEpGraphSupportInfo, nodes: *const *const OrtNode, count: usize, options: *const OrtNodeFusionOptions) -> *mut OrtStatus;
        /// Says that a node is taken for which a kernel is registered.
        3 add_single_node(support: *mut OrtEpGraphSupportInfo, node: *const OrtNode) -> *mut OrtStatus;
        /// Makes a registry without kernels; owned by the caller.
        18 create_kernel_registry(registry: *mut *mut OrtKernelRegistry) -> *mut OrtStatus;
        /// Ends a registry.
        19 release_kernel_registry(registry: *mut OrtKernelRegistry);
        /// Adds a kernel; the definition is copied.
        20 kernel_registry_add(registry: *mut OrtKernelRegistry, definition: *const OrtKernelDef, create: KernelCreate, state: *mut c_void) -> *mut OrtStatus;
        /// Makes a builder; owned by the caller.
        21 create_kernel_def_builder(builder: *mut *mut OrtKernelDefBuilder) -> *mut OrtStatus;
        /// Ends a builder.
        22 release_kernel_def_builder(builder: *mut OrtKernelDefBuilder);
        /// Which operator a kernel is for.
        23 kernel_def_set_operator(builder: *mut OrtKernelDefBuilder, operator: *const c_char) -> *mut OrtStatus;
        /// Domain of the operator.
        24 kernel_def_set_domain(builder: *mut OrtKernelDefBuilder, domain: *const c_char) -> *mut OrtStatus;
        /// First and last version of the operator.
        25 kernel_def_set_versions(builder: *mut OrtKernelDefBuilder, first: c_int, last: c_int) -> *mut OrtStatus;
        /// Name of the provider.
        26 kernel_def_set_provider(builder: *mut OrtKernelDefBuilder, provider: *const c_char) -> *mut OrtStatus;
        /// Where an input lies.
        27 kernel_def_set_input_memory(builder: *mut OrtKernelDefBuilder, input: usize, memory: c_int) -> *mut OrtStatus;
        /// What was described; owned by the caller.
        32 kernel_def_build(builder: *mut OrtKernelDefBuilder, definition: *mut *mut OrtKernelDef) -> *mut OrtStatus;
        /// Ends a definition.
        33 release_kernel_def(definition: *mut OrtKernelDef);
        /// The runtime's own kernel of a branch.
        45 create_if_kernel(info: *const OrtKernelInfo, kernel: *mut *mut OrtKernelImpl) -> *mut OrtStatus;
        /// The runtime's own kernel of a loop, which releases the helper.
        46 create_loop_kernel(info: *const OrtKernelInfo, helper: *mut OrtLoopKernelHelper, kernel: *mut *mut OrtKernelImpl) -> *mut OrtStatus;
    }
}

given_table! {
    /// `OrtModelEditorApi`.
    OrtModelEditorApi {
        /// Makes a node; names and attributes are copied.
        6 create_node(operator: *const c_char, domain: *const c_char, name: *const c_char, inputs: *const *const c_char, input_count: usize, outputs: *const *const c_char, output_count: usize, attributes: *const *mut OrtOpAttr, attribute_count: usize, node: *mut *mut OrtNode) -> *mut OrtStatus;
    }
}

/// Makes the kernel of a node.
pub type KernelCreate =
    unsafe extern "C" fn(*mut c_void, *const OrtKernelInfo, *mut *mut OrtKernelImpl) -> *mut OrtStatus;

/// What the runtime's kernel of a loop leaves to a provider.
#[repr(C)]
pub struct OrtLoopKernelHelper {
    /// Version of the interface.
    pub version: u32,
    /// Ends the helper.
    pub release: Option<unsafe extern "C" fn(*mut OrtLoopKernelHelper)>,
    /// Writes the outputs of all rounds one after the other.
    pub join: Option<
        unsafe extern "C" fn(
            *mut OrtLoopKernelHelper,
            *mut c_void,
            *const *const OrtValue,
            usize,
            *mut c_void,
            usize,
        ) -> *mut OrtStatus,
    >,
}

/// How nodes are taken.
#[repr(C)]
pub struct OrtNodeFusionOptions {
    /// Version of the interface.
    pub version: u32,
    /// The runtime need not keep constants, nor give them to each run.
    pub drops_constant_initializers: bool,
}

/// What runs the nodes that were taken as one.
#[repr(C)]
pub struct OrtNodeComputeInfo {
    /// Version of the interface.
    pub version: u32,
    /// Makes a state.
    pub create_state: Option<
        unsafe extern "C" fn(*mut OrtNodeComputeInfo, *mut OrtNodeComputeContext, *mut *mut c_void) -> *mut OrtStatus,
    >,
    /// Runs once; may be called from several threads.
    pub compute:
        Option<unsafe extern "C" fn(*mut OrtNodeComputeInfo, *mut c_void, *mut OrtKernelContext) -> *mut OrtStatus>,
    /// Ends a state.
    pub release_state: Option<unsafe extern "C" fn(*mut OrtNodeComputeInfo, *mut c_void)>,
}

/// A slot that is left empty.
pub type Unused = Option<unsafe extern "C" fn()>;

/// An execution provider of one session.
#[repr(C)]
pub struct OrtEp {
    /// Version of the interface.
    pub version: u32,
    /// Its name.
    pub get_name: Option<unsafe extern "C" fn(*const OrtEp) -> *const c_char>,
    /// Which nodes it takes.
    pub get_capability:
        Option<unsafe extern "C" fn(*mut OrtEp, *const OrtGraph, *mut OrtEpGraphSupportInfo) -> *mut OrtStatus>,
    /// Compiles what it took.
    pub compile: Option<
        unsafe extern "C" fn(
            *mut OrtEp,
            *const *const OrtGraph,
            *const *const OrtNode,
            usize,
            *mut *mut OrtNodeComputeInfo,
            *mut *mut OrtNode,
        ) -> *mut OrtStatus,
    >,
    /// Ends what compiling gave.
    pub release_node_compute_infos: Option<unsafe extern "C" fn(*mut OrtEp, *mut *mut OrtNodeComputeInfo, usize)>,
    /// Layouts, dynamic options, the start and end of runs, allocators, streams.
    pub unused_5_to_11: [Unused; 7],
    /// What a compiled model depends on, as text.
    pub get_compiled_model_compatibility_info:
        Option<unsafe extern "C" fn(*mut OrtEp, *const OrtGraph) -> *const c_char>,
    /// Kernels for single nodes.
    pub get_kernel_registry: Option<unsafe extern "C" fn(*mut OrtEp, *mut *const OrtKernelRegistry) -> *mut OrtStatus>,
    /// Whether runs of one session may overlap.
    pub is_concurrent_run_supported: Option<unsafe extern "C" fn(*mut OrtEp, *mut bool) -> *mut OrtStatus>,
    /// Synchronisation, profiles, captures, resources, the end of a session's start, memory devices, weightless contexts.
    pub unused_15_to_25: [Unused; 11],
}

/// What makes execution providers.
#[repr(C)]
pub struct OrtEpFactory {
    /// Version of the interface.
    pub version: u32,
    /// Name of the providers.
    pub get_name: Option<unsafe extern "C" fn(*const OrtEpFactory) -> *const c_char>,
    /// Who made it.
    pub get_vendor: Option<unsafe extern "C" fn(*const OrtEpFactory) -> *const c_char>,
    /// Which hardware it runs on.
    pub get_supported_devices: Option<
        unsafe extern "C" fn(
            *mut OrtEpFactory,
            *const *const OrtHardwareDevice,
            usize,
            *mut *mut OrtEpDevice,
            usize,
            *mut usize,
        ) -> *mut OrtStatus,
    >,
    /// Makes a provider for a session.
    pub create_ep: Option<
        unsafe extern "C" fn(
            *mut OrtEpFactory,
            *const *const OrtHardwareDevice,
            *const *const OrtKeyValuePairs,
            usize,
            *const OrtSessionOptions,
            *const OrtLogger,
            *mut *mut OrtEp,
        ) -> *mut OrtStatus,
    >,
    /// Ends a provider.
    pub release_ep: Option<unsafe extern "C" fn(*mut OrtEpFactory, *mut OrtEp)>,
    /// Number of who made it.
    pub get_vendor_id: Option<unsafe extern "C" fn(*const OrtEpFactory) -> u32>,
    /// Version of the providers.
    pub get_version: Option<unsafe extern "C" fn(*const OrtEpFactory) -> *const c_char>,
    /// How well a compiled model fits.
    pub validate_compatibility: Option<
        unsafe extern "C" fn(
            *mut OrtEpFactory,
            *const *const OrtHardwareDevice,
            usize,
            *const c_char,
            *mut c_int,
        ) -> *mut OrtStatus,
    >,
    /// Allocators.
    pub unused_9_and_10: [Unused; 2],
    /// Moves tensors between devices; there is a function even where it gives nothing.
    pub create_data_transfer:
        Option<unsafe extern "C" fn(*mut OrtEpFactory, *mut *mut OrtDataTransferImpl) -> *mut OrtStatus>,
    /// Streams, incompatible hardware, resources from outside, operators of its own, graphics, choice among models.
    pub unused_12_to_20: [Unused; 9],
}

#[cfg(test)]
#[path = "abi_tests.rs"]
mod tests;
