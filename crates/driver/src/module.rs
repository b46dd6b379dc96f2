//! Machine code on a device, and the functions in it.

use crate::device::Device;
use crate::error::DriverError;
use crate::table::{Handle, Own};
use std::ffi::CString;
use std::fmt;
use std::sync::Arc;

/// CUDA's attribute for shared memory beyond what every kernel may use.
const CUDA_SHARED_BYTES_MAX: i32 = 8;

/// Loaded machine code. Clones share it; unloaded when the last clone and the last `Function` are gone.
#[derive(Clone)]
pub struct Module {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    raw: Handle,
}

impl Module {
    pub(crate) fn load(device: &Device, image: &[u8]) -> Result<Module, DriverError> {
        if image.is_empty() {
            let reason = "the image has no bytes".to_string();
            return Err(DriverError::Invalid { call: "load_module", reason });
        }
        let _turn = device.gate().disturb();
        let entry = &device.enter()?.module_load;
        let mut raw = 0;
        // SAFETY: the call reads an image, whose header says how long it is, and writes one handle to a place of ours.
        let code = unsafe { (entry.call)(&mut raw, image.as_ptr().cast()) };
        let raw = device.check_handle(entry.name, code, raw)?;
        Ok(Module { inner: Arc::new(Inner { device: device.clone(), raw }) })
    }

    /// A function of the module, by the name it has in the machine code.
    pub fn function(&self, name: &str) -> Result<Function, DriverError> {
        let text = CString::new(name).map_err(|_| DriverError::Invalid {
            call: "function",
            reason: format!("the name {name:?} holds a zero byte"),
        })?;
        let device = self.device();
        let entry = &device.enter()?.module_function;
        let mut raw = 0;
        // SAFETY: the module is loaded, the name is a text, and the call writes one handle to a place that is ours.
        let code = unsafe { (entry.call)(&mut raw, self.inner.raw, text.as_ptr()) };
        let raw = device.check_handle(entry.name, code, raw)?;
        Ok(Function { module: self.clone(), raw })
    }

    /// The device it is loaded on.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    pub(crate) fn is_same(&self, other: &Module) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _turn = self.device.gate().disturb();
        // SAFETY: the module is ours, and every function of it is gone.
        unsafe { self.device.destroy(|shared| &shared.module_unload, self.raw) };
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Module({:#x})", self.inner.raw)
    }
}

/// One kernel of a module, which it keeps loaded.
#[derive(Clone)]
pub struct Function {
    module: Module,
    raw: Handle,
}

impl Function {
    /// Lets launches ask for up to this much shared memory a block.
    ///
    /// CUDA wants to be told beyond 48 KiB. HIP has no such step; there the size is only compared with the device's.
    pub fn set_shared_bytes_max(&self, bytes: u32) -> Result<(), DriverError> {
        let device = self.device();
        let limit = device.info().shared_bytes_max;
        if bytes > limit {
            let reason = format!("{bytes} bytes of shared memory are more than the {limit} of the device");
            return Err(DriverError::Invalid { call: "set_shared_bytes_max", reason });
        }
        let Own::Cuda(own) = device.library().own() else { return Ok(()) };
        device.enter()?;
        let entry = &own.function_attribute;
        // SAFETY: the function belongs to a loaded module; the limit fits an int.
        let code = unsafe { (entry.call)(self.raw, CUDA_SHARED_BYTES_MAX, bytes as i32) };
        device.check(entry.name, code)
    }

    /// The module it is in.
    pub fn module(&self) -> &Module {
        &self.module
    }

    pub(crate) fn device(&self) -> &Device {
        self.module.device()
    }

    pub(crate) fn handle(&self) -> Handle {
        self.raw
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Function({:#x})", self.raw)
    }
}
