//! Images, and the kernels in them, which run on the host.

use crate::compiler::Image;
use crate::fault;
use crate::queue::Op;
use crate::state::{Call, Handle, INVALID_IMAGE, INVALID_VALUE, NO_BINARY, NOT_FOUND, State, Status, Vendor};
use libloading::Library;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// How kernels are compiled for the host.
const HOST_OPTIONS: &[&str] = &["-std=c++17", "-O2", "-g0", "-w", "-shared", "-fPIC", "-DPRECAST_HOST", "-x", "c++"];
/// Shared memory of a block that needs no permission.
const SHARED_BYTES_FREE: u32 = 48 << 10;
const THREADS_MAX: u64 = 1024;
const PARAMETERS_MAX: u32 = 512;

/// `void NAME_host(grid x, y, z, block x, y, z, shared bytes, parameters)`
type HostKernel = unsafe extern "C" fn(u32, u32, u32, u32, u32, u32, u32, *mut *mut c_void);

/// A loaded image.
pub(crate) struct Module {
    device: usize,
    library: Arc<Library>,
}

/// A kernel of a module.
pub(crate) struct Function {
    module: Handle,
    device: usize,
    name: String,
    entry: HostKernel,
    parameters: u32,
    shared_bytes_max: u32,
}

/// A kernel with everything that a launch fixes.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) name: String,
    pub(crate) words: Vec<u64>,
    entry: HostKernel,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    /// What the entry lies in.
    _library: Arc<Library>,
}

impl Launch {
    /// Runs the kernel; memory is open.
    pub(crate) fn run(&self) {
        let mut words = self.words.clone();
        let mut pointers: Vec<*mut c_void> = words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        let ([gx, gy, gz], [bx, by, bz]) = (self.grid, self.block);
        let _name = fault::running(&self.name);
        // SAFETY: the library is loaded, and the text declares its host kernels with this signature and this many
        // parameters.
        unsafe { (self.entry)(gx, gy, gz, bx, by, bz, self.shared_bytes, pointers.as_mut_ptr()) };
    }
}

impl State {
    /// # Safety
    /// `image` must point to an image, or at least to as many bytes as an image's header has.
    pub(crate) unsafe fn module_load(&mut self, call: &Call, module: &mut Handle, image: *const u8) -> Status {
        *module = 0;
        let device = self.current(call)?;
        self.refuse_in_capture(call)?;
        // SAFETY: the caller vouches for the header, which says how long the rest is.
        let image = unsafe { Image::read(image) }.ok_or(INVALID_IMAGE)?;
        let runs_here = match call.vendor {
            Vendor::Cuda => image.arch.strip_prefix("sm_90").is_some_and(|rest| rest.is_empty() || rest == "a"),
            Vendor::Hip => image.arch == "gfx90a",
        };
        if !runs_here {
            return Err(NO_BINARY);
        }
        if call.gives_null() {
            return Ok(());
        }
        match build_text(&image.text).and_then(|path| open_text(&path)) {
            Ok(library) => {
                *module = self.new_handle();
                self.modules.insert(*module, Module { device, library: Arc::new(library) });
                Ok(())
            }
            Err(log) => {
                self.violate(call, "kernel", format!("the text does not compile for the host: {log}"));
                Err(INVALID_IMAGE)
            }
        }
    }

    pub(crate) fn module_unload(&mut self, call: &Call, module: Handle) -> Status {
        self.refuse_in_capture(call)?;
        let Some(found) = self.modules.get(&module) else { return Err(self.dead_handle(call, "module", module)) };
        let device = found.device;
        self.check_device(call, "module", device)?;
        self.drain_device(call, device);
        self.modules.remove(&module);
        self.functions.retain(|_, function| function.module != module);
        Ok(())
    }

    pub(crate) fn module_function(&mut self, call: &Call, function: &mut Handle, module: Handle, name: &str) -> Status {
        *function = 0;
        let Some(found) = self.modules.get(&module) else { return Err(self.dead_handle(call, "module", module)) };
        let (device, library) = (found.device, found.library.clone());
        self.check_device(call, "module", device)?;
        // SAFETY: the text declares `NAME_host` with this signature.
        let entry = unsafe { library.get::<HostKernel>(format!("{name}_host").as_bytes()) };
        // SAFETY: the text declares `NAME_params` as an unsigned constant.
        let parameters = unsafe { library.get::<*const u32>(format!("{name}_params").as_bytes()) };
        let (Ok(entry), Ok(parameters)) = (entry, parameters) else { return Err(NOT_FOUND) };
        // SAFETY: the symbol is the address of the constant, inside the loaded library.
        let (entry, parameters) = (*entry, unsafe { **parameters });
        if parameters > PARAMETERS_MAX {
            self.violate(call, "kernel", format!("{name}_params is {parameters}"));
            return Err(INVALID_VALUE);
        }
        if !call.gives_null() {
            *function = self.new_handle();
            let (name, shared_bytes_max) = (name.to_string(), SHARED_BYTES_FREE);
            self.functions.insert(*function, Function { module, device, name, entry, parameters, shared_bytes_max });
        }
        Ok(())
    }

    pub(crate) fn function_attribute(&mut self, call: &Call, function: Handle, attribute: i32, value: i32) -> Status {
        let Some(found) = self.functions.get_mut(&function) else {
            return Err(self.dead_handle(call, "function", function));
        };
        if attribute != 8 {
            return Err(INVALID_VALUE);
        }
        found.shared_bytes_max = u32::try_from(value).map_err(|_| INVALID_VALUE)?;
        let device = found.device;
        self.check_device(call, "function", device)
    }

    /// Fixes a launch: the values of the parameters are copied now.
    ///
    /// # Safety
    /// `parameters` must hold as many pointers to words as the kernel has parameters.
    pub(crate) unsafe fn prepare(
        &mut self,
        call: &Call,
        function: Handle,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        parameters: *mut *mut c_void,
    ) -> Result<Launch, i32> {
        let Some(found) = self.functions.get(&function) else {
            return Err(self.dead_handle(call, "function", function));
        };
        let threads: u64 = block.iter().map(|&size| u64::from(size)).product();
        let shared_bytes_max = match call.vendor {
            Vendor::Cuda => found.shared_bytes_max,
            Vendor::Hip => 64 << 10,
        };
        let is_fit = threads <= THREADS_MAX && shared_bytes <= shared_bytes_max;
        if !is_fit || grid.contains(&0) || block.contains(&0) {
            return Err(INVALID_VALUE);
        }
        let words = (0..found.parameters as usize).map(|index| {
            // SAFETY: the caller vouches for as many pointers as there are parameters.
            let pointer = unsafe { *parameters.add(index) };
            // SAFETY: each points to a word.
            unsafe { pointer.cast::<u64>().read_unaligned() }
        });
        let words = words.collect();
        let (name, entry, device) = (found.name.clone(), found.entry, found.device);
        let library = self.modules[&found.module].library.clone();
        self.check_device(call, "function", device)?;
        Ok(Launch { name, words, entry, grid, block, shared_bytes, _library: library })
    }

    pub(crate) fn launch(&mut self, call: &Call, launch: Launch, stream: Handle) -> Status {
        self.enqueue(call, stream, Op::Kernel(launch))
    }
}

/// Compiles the text of an image ahead of loading it, so that threads compile side by side. Faults show when loading.
///
/// # Safety
/// As for `State::module_load`.
pub(crate) unsafe fn build_image(image: *const u8) {
    // SAFETY: the caller vouches for the image.
    if let Some(image) = unsafe { Image::read(image) } {
        let _ = build_text(&image.text);
    }
}

/// Compiles a text for the host, unless that was done before by this or another process, and says where the result is.
fn build_text(text: &str) -> Result<PathBuf, String> {
    let key = blake3::hash(format!("{}\n{text}", HOST_OPTIONS.join(" ")).as_bytes()).to_hex();
    let folder = std::env::temp_dir().join("precast-fake-driver");
    let path = folder.join(format!("{key}.so"));
    if path.exists() {
        return Ok(path);
    }
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    // Written under another name first, so that a process never sees half a file.
    let work = tempfile::tempdir_in(&folder).map_err(|error| error.to_string())?;
    let (source, made) = (work.path().join("kernel.cpp"), work.path().join("kernel.so"));
    std::fs::write(&source, text).map_err(|error| error.to_string())?;
    let output = Command::new("c++").args(HOST_OPTIONS).arg(&source).arg("-o").arg(&made).output();
    let output = output.map_err(|error| format!("c++ cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    std::fs::rename(&made, &path).map_err(|error| error.to_string())?;
    Ok(path)
}

fn open_text(path: &Path) -> Result<Library, String> {
    // SAFETY: the library was made from a test's own text.
    unsafe { Library::new(path) }.map_err(|error| error.to_string())
}
