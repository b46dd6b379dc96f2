//! One device: what it is, and the objects that live on it.

use crate::buffer::{DeviceBuffer, PinnedBuffer};
use crate::error::DriverError;
use crate::event::Event;
use crate::gate::Gate;
use crate::library::{Library, text_at};
use crate::module::Module;
use crate::staging::Staging;
use crate::stream::Stream;
use crate::table::{Entry, Handle, Own, Shared};
use std::collections::HashMap;
use std::ffi::c_char;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A function of the driver that gives up one handle.
pub(crate) type Destroy = Entry<unsafe extern "C" fn(Handle) -> i32>;

/// Numbers that the vendors give to the attributes we ask for.
struct Attributes {
    multiprocessors: i32,
    warp: i32,
    l2_bytes: i32,
    shared_bytes_max: i32,
}

/// The maximum of shared memory is the one that a kernel may opt into.
const CUDA_ATTRIBUTES: Attributes = Attributes { multiprocessors: 16, warp: 10, l2_bytes: 38, shared_bytes_max: 97 };
const CUDA_COMPUTE_CAPABILITY_MAJOR: i32 = 75;
const CUDA_COMPUTE_CAPABILITY_MINOR: i32 = 76;
/// HIP 5, 6 and 7 agree on these. HIP has no larger shared memory to opt into.
const HIP_ATTRIBUTES: Attributes = Attributes { multiprocessors: 63, warp: 87, l2_bytes: 19, shared_bytes_max: 74 };

/// Longest name of a device, and size of the name field at the start of HIP's properties.
const NAME_BYTES: usize = 256;
/// Space for HIP's properties. They take 792 bytes in HIP 5 and 1,472 in HIP 6; there is room for growth.
const HIP_PROPERTIES_BYTES: usize = 8192;

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The vendor's name of it.
    pub name: String,
    /// The architecture that code is compiled for: `sm_90`, `gfx90a`.
    pub arch: String,
    /// Number of multiprocessors or compute units.
    pub multiprocessors: u32,
    /// Lanes of a warp or wave.
    pub warp: u32,
    /// Size of its memory.
    pub memory_bytes: u64,
    /// Size of its last-level cache.
    pub l2_bytes: u64,
    /// Largest shared memory of a block.
    pub shared_bytes_max: u32,
    /// Its number in the driver.
    pub ordinal: usize,
}

/// How much memory of a device is free at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that nobody has allocated.
    pub free_bytes: u64,
    /// Size of the memory.
    pub total_bytes: u64,
}

/// An opened device. Clones share it, and everything made on it keeps it open.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

/// The devices of a driver that are open, by number.
#[derive(Default)]
pub(crate) struct OpenDevices(Mutex<HashMap<usize, Weak<Inner>>>);

impl OpenDevices {
    /// The device of this number, opened if nobody has it open.
    pub(crate) fn find_or(
        &self,
        ordinal: usize,
        open: impl FnOnce() -> Result<Device, DriverError>,
    ) -> Result<Device, DriverError> {
        let mut devices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = devices.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(Device { inner });
        }
        let device = open()?;
        devices.insert(ordinal, Arc::downgrade(&device.inner));
        Ok(device)
    }
}

struct Inner {
    library: Library,
    info: DeviceInfo,
    /// The driver's number of the device.
    number: i32,
    /// CUDA's primary context, retained. HIP has none.
    context: Handle,
    staging: Mutex<Option<Staging>>,
    gate: Gate,
}

impl Device {
    pub(crate) fn open(library: &Library, ordinal: usize) -> Result<Device, DriverError> {
        let entry = &library.shared().device_get;
        let ordinal_word = i32::try_from(ordinal).unwrap_or(i32::MAX);
        let mut number = 0;
        // SAFETY: the call writes one int to a place that is ours.
        let code = unsafe { (entry.call)(&mut number, ordinal_word) };
        library.check(entry.name, code)?;
        let info = read_info(library, number, ordinal)?;
        // Retained last: from here on nothing can fail before an owner exists.
        let context = retain(library, number)?;
        let inner =
            Inner { library: library.clone(), info, number, context, staging: Mutex::new(None), gate: Gate::default() };
        Ok(Device { inner: Arc::new(inner) })
    }

    /// The driver that the device belongs to.
    pub fn library(&self) -> &Library {
        &self.inner.library
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// Waits for everything on the device. For tests and diagnostics: serving waits for streams and events.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        let _turn = self.gate().disturb();
        let entry = &self.enter()?.device_synchronize;
        // SAFETY: the call takes nothing; the device is current.
        let code = unsafe { (entry.call)() };
        self.check(entry.name, code)
    }

    /// How much memory is free.
    pub fn memory_free_total(&self) -> Result<MemoryInfo, DriverError> {
        let entry = &self.enter()?.memory_info;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the call writes two sizes to places that are ours.
        let code = unsafe { (entry.call)(&mut free, &mut total) };
        self.check(entry.name, code)?;
        Ok(MemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
    }

    /// Allocates memory of the device; its contents are undefined. Zero bytes need no driver.
    pub fn allocate(&self, bytes: usize) -> Result<DeviceBuffer, DriverError> {
        DeviceBuffer::allocate(self, bytes)
    }

    /// Allocates host memory that the device can copy to and from by itself; it starts as zeros.
    pub fn allocate_pinned(&self, bytes: usize) -> Result<PinnedBuffer, DriverError> {
        PinnedBuffer::allocate(self, bytes)
    }

    /// Makes a stream that does not wait for the default stream.
    pub fn stream(&self) -> Result<Stream, DriverError> {
        Stream::create(self)
    }

    /// Makes an event; one without timing is cheaper to record.
    pub fn event(&self, timing: bool) -> Result<Event, DriverError> {
        Event::create(self, timing)
    }

    /// Loads machine code that a `Compiler` made for this architecture.
    pub fn load_module(&self, image: &[u8]) -> Result<Module, DriverError> {
        Module::load(self, image)
    }

    /// Makes this device current on the calling thread and gives the functions to call.
    ///
    /// The driver is told each time. It costs less than a microsecond, and remembering it would be wrong as soon as
    /// other code of the process chose another device on this thread.
    pub(crate) fn enter(&self) -> Result<&Shared, DriverError> {
        self.inner.enter()
    }

    pub(crate) fn check(&self, call: &'static str, code: i32) -> Result<(), DriverError> {
        self.inner.library.check(call, code)
    }

    pub(crate) fn check_handle(&self, call: &'static str, code: i32, handle: Handle) -> Result<Handle, DriverError> {
        self.inner.library.check_handle(call, code, handle)
    }

    /// Refuses an object of another device.
    pub(crate) fn check_same(&self, call: &'static str, what: &'static str, other: &Device) -> Result<(), DriverError> {
        let (expected, found) = (self.info().ordinal, other.info().ordinal);
        if expected == found && self.library().is_same(other.library()) {
            return Ok(());
        }
        Err(DriverError::WrongDevice { call, what, found, expected })
    }

    /// The handle that graph calls of CUDA want beside a node.
    pub(crate) fn context(&self) -> Handle {
        self.inner.context
    }

    /// Where captures and calls that would disturb them take turns.
    pub(crate) fn gate(&self) -> &Gate {
        &self.inner.gate
    }

    pub(crate) fn staging(&self) -> &Mutex<Option<Staging>> {
        &self.inner.staging
    }

    /// Gives up a handle; a failure is logged, since the caller is a `drop`.
    ///
    /// # Safety
    /// The handle must be of the kind that the function takes, owned by the caller, and never used again.
    pub(crate) unsafe fn destroy(&self, pick: fn(&Shared) -> &Destroy, handle: Handle) {
        let status = self.enter().and_then(|shared| {
            let entry = pick(shared);
            // SAFETY: the caller says that the handle is its own and of this kind.
            let code = unsafe { (entry.call)(handle) };
            self.check(entry.name, code)
        });
        warn_of(status);
    }
}

impl Inner {
    fn enter(&self) -> Result<&Shared, DriverError> {
        let (name, code) = match self.library.own() {
            // SAFETY: the context is retained as long as this device exists.
            Own::Cuda(own) => (own.context_set.name, unsafe { (own.context_set.call)(self.context) }),
            // SAFETY: the call takes a number; the driver gave it.
            Own::Hip(own) => (own.device_set.name, unsafe { (own.device_set.call)(self.number) }),
        };
        self.library.check(name, code)?;
        Ok(self.library.shared())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let staging = self.staging.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(staging) = staging {
            let status = self.enter().and_then(|shared| {
                // SAFETY: the staging memory is of this device, and its last user has waited for its stream.
                unsafe { staging.free(&self.library, shared) }
            });
            warn_of(status);
        }
        if let Own::Cuda(own) = self.library.own() {
            let entry = &own.context_release;
            // SAFETY: the context was retained once for this device, and nothing on it is left.
            let code = unsafe { (entry.call)(self.number) };
            warn_of(self.library.check(entry.name, code));
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Device({} {})", self.library().vendor().name(), self.info().ordinal)
    }
}

/// Logs what went wrong while something was given up.
pub(crate) fn warn_of(status: Result<(), DriverError>) {
    if let Err(error) = status {
        tracing::warn!("while giving up an object of the driver: {error}");
    }
}

fn retain(library: &Library, number: i32) -> Result<Handle, DriverError> {
    let Own::Cuda(own) = library.own() else { return Ok(0) };
    let entry = &own.context_retain;
    let mut context = 0;
    // SAFETY: the call writes one handle to a place that is ours.
    let code = unsafe { (entry.call)(&mut context, number) };
    library.check_handle(entry.name, code, context)
}

fn read_info(library: &Library, number: i32, ordinal: usize) -> Result<DeviceInfo, DriverError> {
    let attributes = match library.own() {
        Own::Cuda(_) => CUDA_ATTRIBUTES,
        Own::Hip(_) => HIP_ATTRIBUTES,
    };
    let read = |attribute| Ok(u32::try_from(read_attribute(library, number, attribute)?).unwrap_or(0));
    Ok(DeviceInfo {
        name: read_name(library, number)?,
        arch: read_arch(library, number)?,
        multiprocessors: read(attributes.multiprocessors)?,
        warp: read(attributes.warp)?,
        memory_bytes: read_memory(library, number)?,
        l2_bytes: u64::from(read(attributes.l2_bytes)?),
        shared_bytes_max: read(attributes.shared_bytes_max)?,
        ordinal,
    })
}

fn read_attribute(library: &Library, number: i32, attribute: i32) -> Result<i32, DriverError> {
    let entry = &library.shared().device_attribute;
    let mut value = 0;
    // SAFETY: the call writes one int to a place that is ours.
    let code = unsafe { (entry.call)(&mut value, attribute, number) };
    library.check(entry.name, code)?;
    Ok(value)
}

fn read_memory(library: &Library, number: i32) -> Result<u64, DriverError> {
    let entry = &library.shared().device_memory;
    let mut bytes = 0;
    // SAFETY: the call writes one size to a place that is ours.
    let code = unsafe { (entry.call)(&mut bytes, number) };
    library.check(entry.name, code)?;
    Ok(bytes as u64)
}

fn read_name(library: &Library, number: i32) -> Result<String, DriverError> {
    let entry = &library.shared().device_name;
    let mut name = [0 as c_char; NAME_BYTES];
    // The last byte stays zero whatever the driver writes.
    let length = NAME_BYTES as i32 - 1;
    // SAFETY: the call writes at most `length` bytes, and there are more.
    let code = unsafe { (entry.call)(name.as_mut_ptr(), length, number) };
    library.check(entry.name, code)?;
    // SAFETY: the array is a text that ends with a zero byte.
    Ok(unsafe { text_at(name.as_ptr()) })
}

/// The architecture to compile for.
///
/// HIP's compute capability does not say it: gfx908 and gfx90a are both 9.0. The properties hold its name, at a place
/// that has moved between versions, so the name is looked for behind the device's own name, which comes first.
fn read_arch(library: &Library, number: i32) -> Result<String, DriverError> {
    let own = match library.own() {
        Own::Cuda(_) => {
            let major = read_attribute(library, number, CUDA_COMPUTE_CAPABILITY_MAJOR)?;
            let minor = read_attribute(library, number, CUDA_COMPUTE_CAPABILITY_MINOR)?;
            return Ok(format!("sm_{major}{minor}"));
        }
        Own::Hip(own) => own,
    };
    let entry = &own.device_properties;
    // Words, so that the space is aligned for any field.
    let mut properties = vec![0u64; HIP_PROPERTIES_BYTES / 8];
    // SAFETY: the call fills its properties, and the space is several times as large as those of any known version.
    let code = unsafe { (entry.call)(properties.as_mut_ptr().cast(), number) };
    library.check(entry.name, code)?;
    let bytes: Vec<u8> = properties.iter().flat_map(|word| word.to_ne_bytes()).collect();
    find_arch(&bytes[NAME_BYTES..]).ok_or_else(|| DriverError::Invalid {
        call: entry.name,
        reason: "the properties name no architecture that starts with gfx".to_string(),
    })
}

/// The first word `gfx…` among bytes, without the features that follow a colon.
fn find_arch(bytes: &[u8]) -> Option<String> {
    let start = bytes.windows(3).position(|window| window == b"gfx")?;
    let word = bytes[start..].iter().take_while(|byte| byte.is_ascii_alphanumeric());
    Some(word.map(|&byte| char::from(byte)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_architecture_is_found_wherever_it_stands() {
        assert_eq!(find_arch(b"\0\x07\0gfx90a:sramecc+:xnack-\0\0"), Some("gfx90a".to_string()));
        assert_eq!(find_arch(b"gfx1030\0"), Some("gfx1030".to_string()));
        assert_eq!(find_arch(b"\0\0sm_90"), None);
    }
}
