//! Source text to machine code in this process, with NVRTC or HIPRTC. Needs no device and no driver.

use crate::device::warn_of;
use crate::error::DriverError;
use crate::library::{Vendor, open_first, text_at};
use crate::table::{CompilerTable, Entry, Handle, HiprtcErrors, NvrtcErrors};
use libloading::Library as Loaded;
use std::ffi::{CString, c_char};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Names of the compiler's library. HIP before version 6 may keep HIPRTC inside the driver's library.
fn library_names(vendor: Vendor) -> &'static [&'static str] {
    match vendor {
        Vendor::Cuda => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
        Vendor::Hip => &[
            "libhiprtc.so.7",
            "libhiprtc.so.6",
            "libhiprtc.so.5",
            "libhiprtc.so",
            "libamdhip64.so.5",
            "libamdhip64.so",
        ],
    }
}

/// An opened runtime compiler. Clones share it; it may be used from several threads at once.
#[derive(Clone)]
pub struct Compiler {
    inner: Arc<Inner>,
}

struct Inner {
    vendor: Vendor,
    name: String,
    table: CompilerTable,
    error_string: Entry<unsafe extern "C" fn(i32) -> *const c_char>,
    /// What the functions lie in.
    _loaded: Loaded,
}

impl Compiler {
    /// Opens the vendor's compiler by its usual names.
    pub fn open(vendor: Vendor) -> Result<Compiler, DriverError> {
        let (loaded, name) = open_first(vendor, "compiler", library_names(vendor))?;
        Compiler::from_loaded(vendor, loaded, name)
    }

    /// Opens a compiler at a path.
    pub fn open_path(vendor: Vendor, path: &Path) -> Result<Compiler, DriverError> {
        let (loaded, name) = open_first(vendor, "compiler", &[&path.to_string_lossy()])?;
        Compiler::from_loaded(vendor, loaded, name)
    }

    /// Every function that must exist in the vendor's compiler.
    pub fn symbols(vendor: Vendor) -> Vec<&'static str> {
        match vendor {
            Vendor::Cuda => [CompilerTable::CUDA, NvrtcErrors::NAMES].concat(),
            Vendor::Hip => [CompilerTable::HIP, HiprtcErrors::NAMES].concat(),
        }
    }

    fn from_loaded(vendor: Vendor, loaded: Loaded, name: String) -> Result<Compiler, DriverError> {
        let table = CompilerTable::resolve(vendor, &loaded, &name)?;
        let error_string = match vendor {
            Vendor::Cuda => NvrtcErrors::resolve(&loaded, &name)?.error_string,
            Vendor::Hip => HiprtcErrors::resolve(&loaded, &name)?.error_string,
        };
        Ok(Compiler { inner: Arc::new(Inner { vendor, name, table, error_string, _loaded: loaded }) })
    }

    /// Whose compiler it is.
    pub fn vendor(&self) -> Vendor {
        self.inner.vendor
    }

    /// Its version, major and minor.
    pub fn version(&self) -> Result<(i32, i32), DriverError> {
        let entry = &self.inner.table.version;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the call writes two ints to places that are ours.
        let code = unsafe { (entry.call)(&mut major, &mut minor) };
        self.check(entry.name, code)?;
        Ok((major, minor))
    }

    /// Compiles a source text to machine code for one architecture: a cubin for `sm_90`, a code object for `gfx90a`.
    ///
    /// `name` stands for the text in messages. `options` are passed on as they are.
    pub fn compile(&self, source: &str, name: &str, arch: &str, options: &[&str]) -> Result<Vec<u8>, DriverError> {
        let arch_option = match self.inner.vendor {
            Vendor::Cuda => format!("--gpu-architecture={arch}"),
            Vendor::Hip => format!("--offload-arch={arch}"),
        };
        let mut words = vec![text(&arch_option)?];
        for option in options {
            words.push(text(option)?);
        }
        let program = Program::create(self, &text(source)?, &text(name)?)?;
        let entry = &self.inner.table.compile;
        let pointers: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).collect();
        // SAFETY: the program is alive, and the array holds as many texts as the call is told.
        let code = unsafe { (entry.call)(program.raw, pointers.len() as i32, pointers.as_ptr()) };
        if let Err(error) = self.check(entry.name, code) {
            let log = program.log().unwrap_or_default();
            if log.is_empty() {
                return Err(error);
            }
            return Err(DriverError::Compile { name: name.to_string(), arch: arch.to_string(), log });
        }
        program.code()
    }

    fn check(&self, call: &'static str, code: i32) -> Result<(), DriverError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the call takes a number and returns a pointer to a constant.
        let name = unsafe { (self.inner.error_string.call)(code) };
        // SAFETY: the compiler gave the name of an error, which is a constant text.
        Err(DriverError::Call { call, code, name: unsafe { text_at(name) } })
    }
}

impl fmt::Debug for Compiler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Compiler({}, {})", self.inner.vendor.name(), self.inner.name)
    }
}

/// One source text inside the compiler. Destroyed on drop.
struct Program<'compiler> {
    compiler: &'compiler Compiler,
    raw: Handle,
}

impl<'compiler> Program<'compiler> {
    fn create(
        compiler: &'compiler Compiler,
        source: &CString,
        name: &CString,
    ) -> Result<Program<'compiler>, DriverError> {
        let entry = &compiler.inner.table.create;
        let none = std::ptr::null();
        let mut raw = 0;
        // SAFETY: both texts are alive, there are no headers, and the call writes one handle to a place that is ours.
        let code = unsafe { (entry.call)(&mut raw, source.as_ptr(), name.as_ptr(), 0, none, none) };
        compiler.check(entry.name, code)?;
        if raw == 0 {
            return Err(DriverError::NullHandle { call: entry.name });
        }
        Ok(Program { compiler, raw })
    }

    fn log(&self) -> Result<String, DriverError> {
        let table = &self.compiler.inner.table;
        let bytes = self.read(&table.log_size, &table.log)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end_matches(['\0', '\n']).to_string())
    }

    fn code(&self) -> Result<Vec<u8>, DriverError> {
        let table = &self.compiler.inner.table;
        let bytes = self.read(&table.code_size, &table.code)?;
        if bytes.is_empty() {
            return Err(DriverError::NullHandle { call: table.code.name });
        }
        Ok(bytes)
    }

    /// Reads something of the program whose size is asked for first.
    fn read(
        &self,
        size: &Entry<unsafe extern "C" fn(Handle, *mut usize) -> i32>,
        read: &Entry<unsafe extern "C" fn(Handle, *mut c_char) -> i32>,
    ) -> Result<Vec<u8>, DriverError> {
        let mut len = 0;
        // SAFETY: the program is alive, and the call writes one size to a place that is ours.
        let code = unsafe { (size.call)(self.raw, &mut len) };
        self.compiler.check(size.name, code)?;
        let mut bytes = vec![0u8; len];
        if len > 0 {
            // SAFETY: the program is alive, and the call writes as many bytes as it said.
            let code = unsafe { (read.call)(self.raw, bytes.as_mut_ptr().cast()) };
            self.compiler.check(read.name, code)?;
        }
        Ok(bytes)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        let entry = &self.compiler.inner.table.destroy;
        // SAFETY: the program is ours and is not used again; the call clears the handle.
        let code = unsafe { (entry.call)(&mut self.raw) };
        warn_of(self.compiler.check(entry.name, code));
    }
}

fn text(words: &str) -> Result<CString, DriverError> {
    let reason = || "a source text, name or option holds a zero byte".to_string();
    CString::new(words).map_err(|_| DriverError::Invalid { call: "compile", reason: reason() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_compiler_is_a_sentence_with_its_name() {
        let error = Compiler::open_path(Vendor::Cuda, Path::new("libnothing-of-this-name.so")).unwrap_err();
        let begin = "the cuda compiler is not here: tried libnothing-of-this-name.so; the loader says: ";
        assert!(error.to_string().starts_with(begin), "{error}");
    }
}
