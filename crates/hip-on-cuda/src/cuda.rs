//! The libraries that calls go to, opened when the first call comes, and the contexts that HIP's current device stands for.

use libloading::Library;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// What calls return where a library or a function of it is not there; both vendors say "not initialised" by it.
pub(crate) const NOT_INITIALISED: i32 = 3;

/// Usual names of the libraries.
const DRIVERS: &[&str] = &["libcuda.so.1", "libcuda.so"];
const COMPILERS: &[&str] = &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// Where calls go to.
struct Backend {
    driver: Option<&'static Library>,
    compiler: Option<&'static Library>,
    /// Primary contexts by device, retained since the device was first made current.
    contexts: BTreeMap<i32, usize>,
}

static BACKEND: Mutex<Backend> = Mutex::new(Backend { driver: None, compiler: None, contexts: BTreeMap::new() });

thread_local! {
    /// The context of the device that is current on this thread.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

fn backend() -> MutexGuard<'static, Backend> {
    BACKEND.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Sends all calls from now on to other libraries, by their paths.
pub(crate) fn forward_to(driver: &str, compiler: &str) -> bool {
    let (driver, compiler) = (open(&[driver]), open(&[compiler]));
    let is_open = driver.is_some() && compiler.is_some();
    *backend() = Backend { driver, compiler, contexts: BTreeMap::new() };
    is_open
}

/// Gives up every context.
pub(crate) fn release_contexts() {
    let contexts = std::mem::take(&mut backend().contexts);
    for device in contexts.into_keys() {
        if let Ok(release) = driver_function::<unsafe extern "C" fn(i32) -> i32>(b"cuDevicePrimaryCtxRelease_v2") {
            // SAFETY: the context was retained once, and whoever calls this uses it no more.
            unsafe { release(device) };
        }
    }
}

/// The first library that the loader finds. It is never closed: threads may still be inside it when the process ends.
fn open(names: &[&str]) -> Option<&'static Library> {
    // SAFETY: a vendor's library runs its own initialisers, which is what loading it means.
    let library = names.iter().find_map(|name| unsafe { Library::new(name) }.ok())?;
    Some(Box::leak(Box::new(library)))
}

/// A function of the CUDA driver.
pub(crate) fn driver_function<F: Copy>(name: &[u8]) -> Result<F, i32> {
    let library = {
        let mut backend = backend();
        backend.driver = backend.driver.or_else(|| open(DRIVERS));
        backend.driver
    };
    function(library, name)
}

/// A function of NVRTC.
pub(crate) fn compiler_function<F: Copy>(name: &[u8]) -> Result<F, i32> {
    let library = {
        let mut backend = backend();
        backend.compiler = backend.compiler.or_else(|| open(COMPILERS));
        backend.compiler
    };
    function(library, name)
}

fn function<F: Copy>(library: Option<&'static Library>, name: &[u8]) -> Result<F, i32> {
    let library = library.ok_or(NOT_INITIALISED)?;
    // SAFETY: the symbol is only called by rows that give the signature which CUDA documents for it.
    let symbol = unsafe { library.get::<F>(name) };
    symbol.map(|symbol| *symbol).map_err(|_| NOT_INITIALISED)
}

/// The context of the device that is current on this thread.
pub(crate) fn current_context() -> usize {
    CURRENT.get()
}

/// Makes the primary context of a device current on this thread.
pub(crate) fn set_device(device: i32) -> Result<(), i32> {
    let known = backend().contexts.get(&device).copied();
    let context = match known {
        Some(context) => context,
        None => retain(device)?,
    };
    let set: unsafe extern "C" fn(usize) -> i32 = driver_function(b"cuCtxSetCurrent")?;
    // SAFETY: the context is retained.
    status(unsafe { set(context) })?;
    CURRENT.set(context);
    Ok(())
}

/// Retains the primary context of a device; one that another thread has retained meanwhile is given back.
fn retain(device: i32) -> Result<usize, i32> {
    let retain: unsafe extern "C" fn(*mut usize, i32) -> i32 = driver_function(b"cuDevicePrimaryCtxRetain")?;
    let mut context = 0;
    // SAFETY: the call writes one handle to a place that is ours.
    status(unsafe { retain(&mut context, device) })?;
    let twin = {
        let mut backend = backend();
        let twin = backend.contexts.contains_key(&device);
        backend.contexts.insert(device, context);
        twin
    };
    if twin {
        let release: unsafe extern "C" fn(i32) -> i32 = driver_function(b"cuDevicePrimaryCtxRelease_v2")?;
        // SAFETY: it was retained above, and once more before, so it stays alive.
        status(unsafe { release(device) })?;
    }
    Ok(context)
}

/// The architecture of the first device, as NVRTC takes it.
pub(crate) fn architecture() -> Result<String, i32> {
    const MAJOR: i32 = 75;
    const MINOR: i32 = 76;
    let initialise: unsafe extern "C" fn(u32) -> i32 = driver_function(b"cuInit")?;
    let attribute: unsafe extern "C" fn(*mut i32, i32, i32) -> i32 = driver_function(b"cuDeviceGetAttribute")?;
    // SAFETY: the call takes a number.
    status(unsafe { initialise(0) })?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the calls write one int each to places that are ours.
    unsafe {
        status(attribute(&mut major, MAJOR, 0))?;
        status(attribute(&mut minor, MINOR, 0))?;
    }
    Ok(format!("sm_{major}{minor}"))
}

/// A status as a result.
pub(crate) fn status(code: i32) -> Result<(), i32> {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// A result as a status.
pub(crate) fn code(result: Result<(), i32>) -> i32 {
    result.err().unwrap_or(0)
}
