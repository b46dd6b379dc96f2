//! An opened driver: its functions, and the devices it knows.

use crate::device::{Device, OpenDevices};
use crate::error::DriverError;
use crate::table::{CudaOnly, Handle, HipOnly, Own, Shared, Table};
use libloading::Library as Loaded;
use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The driver found no device. CUDA and HIP agree on the number.
const NO_DEVICE: i32 = 100;

/// Whose driver it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Vendor {
    /// NVIDIA: the CUDA driver API and NVRTC.
    Cuda,
    /// AMD: HIP and HIPRTC.
    Hip,
}

impl Vendor {
    /// Both vendors.
    pub const ALL: [Vendor; 2] = [Vendor::Cuda, Vendor::Hip];

    /// `cuda` or `hip`.
    pub fn name(self) -> &'static str {
        match self {
            Vendor::Cuda => "cuda",
            Vendor::Hip => "hip",
        }
    }

    /// Names of the driver's library: versions we know, newest first, then whatever is installed.
    fn library_names(self) -> &'static [&'static str] {
        match self {
            Vendor::Cuda => &["libcuda.so.1", "libcuda.so"],
            Vendor::Hip => &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"],
        }
    }
}

/// Drivers that were opened by their usual names. They stay loaded, and one of each is all there is in a process: whoever opens
/// a driver again shares its devices, so that memory and captures of one are known to the other.
static OPENED: Mutex<Vec<Library>> = Mutex::new(Vec::new());

/// A driver that was opened and whose functions all exist. Clones share it.
#[derive(Clone)]
pub struct Library {
    inner: Arc<Inner>,
}

struct Inner {
    vendor: Vendor,
    name: String,
    table: Table,
    /// Devices that somebody has opened.
    devices: OpenDevices,
    /// What the functions of `table` lie in.
    _loaded: Loaded,
}

impl Library {
    /// Opens the vendor's driver by its usual names and initialises it.
    pub fn open(vendor: Vendor) -> Result<Library, DriverError> {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = opened.iter().find(|library| library.vendor() == vendor) {
            return Ok(library.clone());
        }
        let (loaded, name) = open_first(vendor, "driver", vendor.library_names())?;
        let library = Library::from_loaded(vendor, loaded, name)?;
        opened.push(library.clone());
        Ok(library)
    }

    /// Opens a driver at a path and initialises it.
    pub fn open_path(vendor: Vendor, path: &Path) -> Result<Library, DriverError> {
        let (loaded, name) = open_first(vendor, "driver", &[&path.to_string_lossy()])?;
        Library::from_loaded(vendor, loaded, name)
    }

    /// Every function that must exist in the vendor's driver.
    pub fn symbols(vendor: Vendor) -> Vec<&'static str> {
        match vendor {
            Vendor::Cuda => [Shared::CUDA, CudaOnly::NAMES].concat(),
            Vendor::Hip => [Shared::HIP, HipOnly::NAMES].concat(),
        }
    }

    fn from_loaded(vendor: Vendor, loaded: Loaded, name: String) -> Result<Library, DriverError> {
        let table = Table::resolve(vendor, &loaded, &name)?;
        let library = Inner { vendor, name, table, devices: OpenDevices::default(), _loaded: loaded };
        let library = Library { inner: Arc::new(library) };
        let entry = &library.shared().initialise;
        // SAFETY: the call takes no memory of ours; zero is the only flag there is.
        let code = unsafe { (entry.call)(0) };
        library.check(entry.name, code)?;
        Ok(library)
    }

    /// Whose driver it is.
    pub fn vendor(&self) -> Vendor {
        self.inner.vendor
    }

    /// How many devices the driver offers.
    pub fn device_count(&self) -> Result<usize, DriverError> {
        let entry = &self.shared().device_count;
        let mut count = 0;
        // SAFETY: the call writes one int to a place that is ours.
        let code = unsafe { (entry.call)(&mut count) };
        if code == NO_DEVICE {
            return Ok(0);
        }
        self.check(entry.name, code)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The driver's version, in the vendor's numbering.
    pub fn driver_version(&self) -> Result<i32, DriverError> {
        let entry = &self.shared().driver_version;
        let mut version = 0;
        // SAFETY: the call writes one int to a place that is ours.
        let code = unsafe { (entry.call)(&mut version) };
        self.check(entry.name, code)?;
        Ok(version)
    }

    /// Opens the device of this number, or shares it with whoever has it open.
    pub fn device(&self, ordinal: usize) -> Result<Device, DriverError> {
        self.inner.devices.find_or(ordinal, || Device::open(self, ordinal))
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.inner.table.shared
    }

    pub(crate) fn own(&self) -> &Own {
        &self.inner.table.own
    }

    pub(crate) fn is_same(&self, other: &Library) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Turns the status of a call into a result.
    pub(crate) fn check(&self, call: &'static str, code: i32) -> Result<(), DriverError> {
        match code {
            0 => Ok(()),
            _ => Err(DriverError::Call { call, code, name: self.error_name(code) }),
        }
    }

    /// Turns the status of a call and the handle it gave into a result: a handle is ours only after both were looked at.
    pub(crate) fn check_handle(&self, call: &'static str, code: i32, handle: Handle) -> Result<Handle, DriverError> {
        self.check(call, code)?;
        if handle == 0 { Err(DriverError::NullHandle { call }) } else { Ok(handle) }
    }

    fn error_name(&self, code: i32) -> String {
        let mut name: *const c_char = std::ptr::null();
        match self.own() {
            Own::Cuda(own) => {
                // SAFETY: the call writes one pointer to a place that is ours.
                let status = unsafe { (own.error_name.call)(code, &mut name) };
                if status != 0 {
                    name = std::ptr::null();
                }
            }
            // SAFETY: the call takes a number and returns a pointer to a constant.
            Own::Hip(own) => name = unsafe { (own.error_name.call)(code) },
        }
        // SAFETY: the driver gave the name of an error, which is a constant text.
        unsafe { text_at(name) }
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Library({}, {})", self.inner.vendor.name(), self.inner.name)
    }
}

/// Opens the first of several names that the loader finds, for as long as the process lives: AMD's libraries bring an LLVM that
/// ends the process when it is loaded a second time.
pub(crate) fn open_first(vendor: Vendor, what: &'static str, names: &[&str]) -> Result<(Loaded, String), DriverError> {
    let (mut absent, mut broken) = (None, None);
    for name in names {
        // SAFETY: a vendor's library runs its own initialisers when it is opened, which is what loading it means. The
        // name comes from our list or from a caller that chose the file.
        match unsafe { Loaded::new(name) } {
            Ok(loaded) => {
                // SAFETY: the library is open already; this counts it once more, and nobody counts it down.
                std::mem::forget(unsafe { Loaded::new(name) });
                return Ok((loaded, name.to_string()));
            }
            Err(error) => {
                let reason = error.to_string();
                let is_absent = reason.starts_with(&format!("{name}: cannot open shared object file: No such file"));
                let place = if is_absent { &mut absent } else { &mut broken };
                place.get_or_insert(reason);
            }
        }
    }
    let tried = names.iter().map(ToString::to_string).collect();
    // A library that is there and does not load says more than one that is not.
    let reason = broken.or(absent).unwrap_or_default();
    Err(DriverError::MissingLibrary { vendor, what, tried, reason })
}

/// A constant text of the driver, or `unknown`.
///
/// # Safety
/// A pointer that is not null must point to a text that ends with a zero byte.
pub(crate) unsafe fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return "unknown".to_string();
    }
    // SAFETY: the pointer is not null, and the caller says that a text is there.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_a_sentence_with_its_name() {
        let error = Library::open_path(Vendor::Hip, Path::new("libnothing-of-this-name.so.9")).unwrap_err();
        let sentence = error.to_string();
        let begin = "the hip driver is not here: tried libnothing-of-this-name.so.9; the loader says: ";
        assert!(sentence.starts_with(begin), "{sentence}");
    }

    #[test]
    fn a_library_that_does_not_load_says_more_than_one_that_is_not_there() {
        let file = std::env::temp_dir().join(format!("libnot-a-library-{}.so", std::process::id()));
        std::fs::write(&file, "text").unwrap();
        let names = ["libnothing-of-this-name.so", &file.to_string_lossy()];
        let error = open_first(Vendor::Cuda, "driver", &names).unwrap_err();
        std::fs::remove_file(&file).unwrap();
        let DriverError::MissingLibrary { tried, reason, .. } = error else { panic!("{error}") };
        assert!(tried.len() == 2 && reason.contains("libnot-a-library"), "{reason}");
    }

    #[test]
    fn a_library_without_the_functions_is_a_sentence_with_the_first_of_them() {
        let error = Library::open_path(Vendor::Cuda, Path::new("libc.so.6")).unwrap_err();
        let sentence = "libc.so.6 has no function cuInit: this cuda library is too old, or not one at all";
        assert_eq!(error.to_string(), sentence);
    }

    #[test]
    fn symbols_are_listed_once_each() {
        for vendor in Vendor::ALL {
            let mut symbols = Library::symbols(vendor);
            let count = symbols.len();
            symbols.sort_unstable();
            symbols.dedup();
            assert_eq!(symbols.len(), count);
        }
    }
}
