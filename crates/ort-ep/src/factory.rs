//! The factory: one for each runtime that registers the library. It offers the provider on the CPU's device, where inputs
//! and outputs are the host's memory; which device computes is an option of the session.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::{null, null_mut};

use precast::{CompiledFit, CompiledModel};

use crate::abi::{
    HARDWARE_CPU, OrtDataTransferImpl, OrtEp, OrtEpDevice, OrtEpFactory, OrtHardwareDevice, OrtKeyValuePairs,
    OrtLogger, OrtSessionOptions, OrtStatus, compatibility,
};
use crate::provider::Provider;
use crate::runtime::{Log, Runtime, text_at};

/// Name of the provider in every runtime.
pub(crate) const NAME: &CStr = c"PrecastExecutionProvider";
const VENDOR: &CStr = c"Precast";
/// A version as C has it, made when the library is compiled.
const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// A factory. The table comes first, so that its address is the factory's.
#[repr(C)]
pub(crate) struct Factory {
    table: OrtEpFactory,
    runtime: Runtime,
}

impl Factory {
    /// A factory that the runtime owns until `release`.
    pub(crate) fn create(runtime: Runtime) -> *mut OrtEpFactory {
        let table = OrtEpFactory {
            version: runtime.version,
            get_name: Some(get_name),
            get_vendor: Some(get_vendor),
            get_supported_devices: Some(get_supported_devices),
            create_ep: Some(create_ep),
            release_ep: Some(release_ep),
            get_vendor_id: Some(get_vendor_id),
            get_version: Some(get_version),
            validate_compatibility: Some(validate_compatibility),
            unused_9_and_10: [None; 2],
            create_data_transfer: Some(create_data_transfer),
            unused_12_to_20: [None; 9],
        };
        Box::into_raw(Box::new(Factory { table, runtime })).cast()
    }

    /// Ends a factory.
    ///
    /// # Safety
    /// It came from `create` and is not used again.
    pub(crate) unsafe fn release(factory: *mut OrtEpFactory) -> *mut OrtStatus {
        if factory.is_null() {
            return null_mut();
        }
        // SAFETY: the caller says so.
        let factory = unsafe { Box::from_raw(factory.cast::<Factory>()) };
        let runtime = factory.runtime;
        runtime.guard("ReleaseEpFactory", || {
            drop(factory);
            Ok(())
        })
    }

    /// # Safety
    /// The table is that of a factory that lives.
    unsafe fn of<'a>(table: *const OrtEpFactory) -> &'a Factory {
        // SAFETY: the table is the first field, and the caller says that the factory lives.
        unsafe { &*table.cast() }
    }
}

unsafe extern "C" fn get_name(_factory: *const OrtEpFactory) -> *const c_char {
    NAME.as_ptr()
}

unsafe extern "C" fn get_vendor(_factory: *const OrtEpFactory) -> *const c_char {
    VENDOR.as_ptr()
}

/// Numbers of vendors are those of PCI devices; a program has none.
unsafe extern "C" fn get_vendor_id(_factory: *const OrtEpFactory) -> u32 {
    0
}

unsafe extern "C" fn get_version(_factory: *const OrtEpFactory) -> *const c_char {
    VERSION.as_ptr()
}

unsafe extern "C" fn get_supported_devices(
    factory: *mut OrtEpFactory,
    devices: *const *const OrtHardwareDevice,
    device_count: usize,
    ep_devices: *mut *mut OrtEpDevice,
    ep_devices_max: usize,
    ep_device_count: *mut usize,
) -> *mut OrtStatus {
    // SAFETY: the runtime hands back its own factory.
    let runtime = unsafe { Factory::of(factory) }.runtime;
    runtime.guard("GetSupportedDevices", || {
        // SAFETY: the number is ours to write.
        unsafe { *ep_device_count = 0 };
        for index in 0..device_count {
            // SAFETY: there are as many devices as the runtime says.
            let device = unsafe { *devices.add(index) };
            // SAFETY: it is one of the runtime's.
            let is_cpu = unsafe { runtime.api.hardware_device_type(device) } == HARDWARE_CPU;
            if !is_cpu || ep_devices_max == 0 {
                continue;
            }
            // Options are read by the provider of a session: a provider that is named by a text alone is not given these.
            // SAFETY: the factory is the one that was asked; no pairs are given; there is room for one device.
            runtime.check(unsafe { runtime.ep.create_ep_device(factory, device, null(), null(), ep_devices) })?;
            // SAFETY: as above.
            unsafe { *ep_device_count = 1 };
            break;
        }
        Ok(())
    })
}

unsafe extern "C" fn create_ep(
    factory: *mut OrtEpFactory,
    _devices: *const *const OrtHardwareDevice,
    _metadata: *const *const OrtKeyValuePairs,
    _device_count: usize,
    options: *const OrtSessionOptions,
    logger: *const OrtLogger,
    ep: *mut *mut OrtEp,
) -> *mut OrtStatus {
    // SAFETY: the runtime hands back its own factory.
    let runtime = unsafe { Factory::of(factory) }.runtime;
    runtime.guard("CreateEp", || {
        let log = Log { runtime, logger };
        // SAFETY: the options live until this returns.
        let provider = unsafe { Provider::create(log, options) }?;
        // SAFETY: the place is ours to write.
        unsafe { *ep = provider };
        Ok(())
    })
}

unsafe extern "C" fn release_ep(factory: *mut OrtEpFactory, ep: *mut OrtEp) {
    // SAFETY: the runtime hands back its own factory.
    let runtime = unsafe { Factory::of(factory) }.runtime;
    // There is nobody to tell that it failed.
    let status = runtime.guard("ReleaseEp", || {
        // SAFETY: the provider came from `create_ep` and is not used again.
        unsafe { Provider::release(ep) };
        Ok(())
    });
    let _ = runtime.check(status);
}

/// How well a model that was saved compiled fits this machine, by what it says that it was compiled for.
unsafe extern "C" fn validate_compatibility(
    factory: *mut OrtEpFactory,
    _devices: *const *const OrtHardwareDevice,
    _device_count: usize,
    compiled_for: *const c_char,
    fit: *mut c_int,
) -> *mut OrtStatus {
    // SAFETY: the runtime hands back its own factory.
    let runtime = unsafe { Factory::of(factory) }.runtime;
    runtime.guard("ValidateCompiledModelCompatibilityInfo", || {
        // SAFETY: the text ends in a zero.
        let found = match CompiledModel::fit(&unsafe { text_at(compiled_for) }) {
            CompiledFit::Optimal => compatibility::OPTIMAL,
            CompiledFit::Recompile => compatibility::PREFER_RECOMPILATION,
            CompiledFit::Unsupported => compatibility::UNSUPPORTED,
        };
        // SAFETY: the place is ours to write.
        unsafe { *fit = found };
        Ok(())
    })
}

/// Nothing moves between devices: the runtime needs the function, and takes null.
unsafe extern "C" fn create_data_transfer(
    _factory: *mut OrtEpFactory,
    transfer: *mut *mut OrtDataTransferImpl,
) -> *mut OrtStatus {
    // SAFETY: the place is ours to write.
    unsafe { *transfer = null_mut() };
    null_mut()
}
