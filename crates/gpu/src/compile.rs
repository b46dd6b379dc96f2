//! Kernel texts to machine code: equal texts are compiled once, others side by side, and what was compiled once is found
//! again by what it was made from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use precast_driver::{Compiler, DriverError};
use precast_tensor::Digest;

use crate::kernel::{Arch, PRELUDE};

/// Turns a text into machine code. Needs no GPU.
pub trait KernelCompiler: Send + Sync {
    /// What the machine code depends on beside text and architecture: the compiler and its version.
    fn version(&self) -> String;
    /// Machine code of a text for an architecture, or what the compiler said.
    fn compile(&self, text: &str, arch: &str) -> Result<Vec<u8>, String>;
}

/// The vendor's compiler, opened when it is needed.
pub struct RuntimeCompiler {
    compiler: Compiler,
    version: String,
    options: Vec<&'static str>,
}

impl RuntimeCompiler {
    /// The compiler of a vendor.
    pub fn open(vendor: precast_driver::Vendor) -> Result<RuntimeCompiler, DriverError> {
        RuntimeCompiler::new(Compiler::open(vendor)?)
    }

    /// A compiler that is open already.
    pub fn new(compiler: Compiler) -> Result<RuntimeCompiler, DriverError> {
        let (major, minor) = compiler.version()?;
        let name = match compiler.vendor() {
            precast_driver::Vendor::Cuda => "nvrtc",
            precast_driver::Vendor::Hip => "hiprtc",
        };
        let options = options(compiler.vendor(), (major, minor));
        Ok(RuntimeCompiler { compiler, version: format!("{name}{major}.{minor}"), options })
    }
}

impl KernelCompiler for RuntimeCompiler {
    fn version(&self) -> String {
        self.version.clone()
    }

    fn compile(&self, text: &str, arch: &str) -> Result<Vec<u8>, String> {
        // HIPRTC dies of two compiles at once (seen with HIP 5.2); NVRTC takes any number.
        static HIPRTC: Mutex<()> = Mutex::new(());
        let _alone = match self.compiler.vendor() {
            precast_driver::Vendor::Cuda => None,
            precast_driver::Vendor::Hip => Some(HIPRTC.lock().unwrap_or_else(|poisoned| poisoned.into_inner())),
        };
        self.compiler.compile(text, "kernel", arch, &self.options).map_err(|error| error.to_string())
    }
}

/// What a compiler of this version is told beside the architecture.
fn options(vendor: precast_driver::Vendor, version: (i32, i32)) -> Vec<&'static str> {
    let mut options = vec!["-std=c++17"];
    if vendor == precast_driver::Vendor::Cuda {
        // Texts have functions that a kernel does not use; a warning for each takes longer than reading them.
        options.push("--disable-warnings");
        // NVRTC reads texts one after the other: no textures and no runtime for devices, which no kernel has, make that shorter.
        if version >= (12, 4) {
            options.push("--minimal");
        }
        // What NVRTC finds in its own cache comes one after the other too, and ours has it already.
        if version >= (12, 9) {
            options.push("--no-cache");
        }
    }
    options
}

/// Keeps machine code by what it was made from, across models and processes.
pub trait KernelStore: Send + Sync {
    /// The machine code under this key.
    fn find(&self, key: &Digest) -> Option<Vec<u8>>;
    /// Keeps machine code; failing to is no error.
    fn keep(&self, key: &Digest, code: &[u8]);
}

/// Keeps machine code while the process lives.
#[derive(Default)]
pub struct MemoryKernels(Mutex<BTreeMap<Digest, Vec<u8>>>);

impl MemoryKernels {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl KernelStore for MemoryKernels {
    fn find(&self, key: &Digest) -> Option<Vec<u8>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get(key).cloned()
    }

    fn keep(&self, key: &Digest, code: &[u8]) {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(*key, code.to_vec());
    }
}

/// Texts that are being compiled now. Buckets that are compiled side by side share most of their kernels: who needs one that
/// another thread is at waits for it instead of compiling it again. There are no more of them than threads can run at once: NVRTC
/// reads texts one after the other, and whoever reads must not wait for a core too.
pub struct KernelsInWork {
    keys: Mutex<BTreeSet<Digest>>,
    ended: Condvar,
    count_max: usize,
}

impl Default for KernelsInWork {
    fn default() -> KernelsInWork {
        let count_max = std::thread::available_parallelism().map_or(1, |threads| threads.get());
        KernelsInWork { keys: Mutex::default(), ended: Condvar::new(), count_max }
    }
}

/// The right to compile one text.
struct KernelTurn<'work> {
    work: &'work KernelsInWork,
    key: Digest,
}

impl KernelsInWork {
    /// Waits until nobody is at this text and a thread can run.
    fn begin(&self, key: Digest) -> KernelTurn<'_> {
        let is_taken = |keys: &mut BTreeSet<Digest>| keys.contains(&key) || keys.len() >= self.count_max;
        let mut keys = self.ended.wait_while(self.lock(), is_taken).unwrap_or_else(PoisonError::into_inner);
        keys.insert(key);
        KernelTurn { work: self, key }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Digest>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for KernelTurn<'_> {
    fn drop(&mut self) {
        self.work.lock().remove(&self.key);
        self.work.ended.notify_all();
    }
}

/// A text as the compiler gets it. `is_indirect` says which arguments are the address of a pointer.
pub fn whole_text(text: &str, arch: &Arch, is_indirect: &[bool]) -> String {
    let word = |bits: &[bool]| bits.iter().rev().fold(0u64, |word, &bit| word << 1 | u64::from(bit));
    let words: Vec<String> = is_indirect.chunks(64).map(|bits| format!("{:#x}ull", word(bits))).collect();
    let words = if words.is_empty() { "0x0ull".to_string() } else { words.join(", ") };
    format!("#define WARP {}\n#define INDIRECT {words}\n{PRELUDE}\n{text}", arch.warp)
}

/// Machine code of every text, in their order; the first text that does not compile is an error with what was said.
pub fn compile_all(
    texts: &[String],
    arch: &Arch,
    compiler: &dyn KernelCompiler,
    kernels: &dyn KernelStore,
    in_work: &KernelsInWork,
) -> Result<Vec<Vec<u8>>, String> {
    let version = compiler.version();
    let key = |text: &String| {
        let mut bytes = Vec::new();
        for part in [&arch.name, &version, text] {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part.as_bytes());
        }
        Digest::of_bytes(&bytes)
    };
    let results: Vec<OnceLock<Result<Vec<u8>, String>>> = texts.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(text) = texts.get(at) else { break };
            let key = key(text);
            let _turn = in_work.begin(key);
            let result = match kernels.find(&key) {
                Some(code) => Ok(code),
                None => compiler.compile(text, &arch.name).inspect(|code| kernels.keep(&key, code)),
            };
            results[at].get_or_init(|| result);
        }
    };
    let threads = in_work.count_max.min(texts.len());
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let not_compiled = || Err("the kernel was not compiled".to_string());
    results.into_iter().map(|result| result.into_inner().unwrap_or_else(not_compiled)).collect()
}
