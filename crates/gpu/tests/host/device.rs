//! Runs plans on a device instead of the host: kernels compiled by the vendor's compiler, buffers of their exact sizes in the
//! device's memory, so that a memory checker sees every byte beside them.
//!
//! Whoever runs the tests asks for it: `PRECAST_TEST_DEVICE` is `cuda` or `hip`, and `PRECAST_TEST_LIBRARY`, if given, is a
//! library that is driver and compiler in one, such as our HIP on top of CUDA.
#![allow(unsafe_code, reason = "launching a kernel is unsafe")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use precast_driver::{
    Compiler, Device, DeviceBuffer, DriverError, Function, LaunchShape, Library, Module, Stream, Vendor,
};
use precast_gpu::compile::{KernelsInWork, compile_all, whole_text};
use precast_gpu::kernel::{Arch, HOST};
use precast_gpu::{KernelCompiler, MemoryKernels, arch_of};
use precast_tensor::Tensor;

use super::{Content, Mode, Plan, from_memory};

/// Shared memory that a kernel has without being told.
const SHARED_BYTES_PLAIN: u32 = 48 << 10;

/// The device that was asked for, if one was.
pub fn asked() -> Option<&'static Rig> {
    static ASKED: OnceLock<Option<Rig>> = OnceLock::new();
    let open = || {
        let vendor = match std::env::var("PRECAST_TEST_DEVICE").ok()?.as_str() {
            "cuda" => Vendor::Cuda,
            "hip" => Vendor::Hip,
            other => panic!("PRECAST_TEST_DEVICE is '{other}', neither cuda nor hip"),
        };
        let library = std::env::var_os("PRECAST_TEST_LIBRARY");
        let rig = Rig::open(vendor, library.as_deref().map(Path::new));
        Some(rig.unwrap_or_else(|error| panic!("the device that was asked for: {error}")))
    };
    ASKED.get_or_init(open).as_ref()
}

/// A device with its compiler.
pub struct Rig {
    device: Device,
    arch: Arch,
    compiler: TestCompiler,
    kernels: MemoryKernels,
}

/// The vendor's compiler; the fake one compiles for the host, whose part of the prelude it has to be given.
struct TestCompiler(Compiler);

impl KernelCompiler for TestCompiler {
    fn version(&self) -> String {
        "test".to_string()
    }

    fn compile(&self, text: &str, arch: &str) -> Result<Vec<u8>, String> {
        let text = text.replace("#include \"host.h\"", HOST);
        self.0.compile(&text, "kernel", arch, &["-std=c++17"]).map_err(|error| error.to_string())
    }
}

impl Rig {
    /// The first device of a vendor, by its usual libraries or by one that is both.
    pub fn open(vendor: Vendor, library: Option<&Path>) -> Result<Rig, DriverError> {
        let (opened, compiler) = match library {
            Some(path) => (Library::open_path(vendor, path)?, Compiler::open_path(vendor, path)?),
            None => (Library::open(vendor)?, Compiler::open(vendor)?),
        };
        let device = opened.device(0)?;
        let arch = arch_of(&device);
        Ok(Rig { device, arch, compiler: TestCompiler(compiler), kernels: MemoryKernels::default() })
    }

    /// Whether kernels of a mode can run here.
    pub fn takes(&self, mode: Mode) -> bool {
        self.arch.warp == mode.warp && mode.shared_bytes_max <= self.arch.shared_bytes_max
    }

    /// The outputs of each plan, in row-major order.
    pub fn run(&self, plans: &[Plan], mode: Mode) -> Result<Vec<Vec<Tensor>>, String> {
        let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
        let mut texts = Vec::new();
        for (launch, operands) in plans.iter().flat_map(|plan| &plan.launches) {
            let text = whole_text(&launch.text, &self.arch, &vec![mode.is_indirect; operands.len()]);
            numbers.entry(text.clone()).or_insert_with(|| {
                texts.push(text);
                texts.len() - 1
            });
        }
        let codes = compile_all(&texts, &self.arch, &self.compiler, &self.kernels, &KernelsInWork::default())?;
        let load = |code: &Vec<u8>| self.device.load_module(code).map_err(|error| error.to_string());
        let modules: Vec<Module> = codes.iter().map(load).collect::<Result<_, _>>()?;
        let function = |plan: &Plan, step: usize| {
            let (launch, operands) = &plan.launches[step];
            let text = whole_text(&launch.text, &self.arch, &vec![mode.is_indirect; operands.len()]);
            modules[numbers[&text]].function(&launch.entry).map_err(|error| error.to_string())
        };
        let stream = self.device.stream().map_err(|error| error.to_string())?;
        let run = |plan: &Plan| {
            let functions: Vec<Function> =
                (0..plan.launches.len()).map(|step| function(plan, step)).collect::<Result<_, _>>()?;
            self.run_plan(&stream, plan, &functions, mode).map_err(|error| format!("{}: {error}", plan.name))
        };
        plans.iter().map(run).collect()
    }

    fn run_plan(
        &self,
        stream: &Stream,
        plan: &Plan,
        functions: &[Function],
        mode: Mode,
    ) -> Result<Vec<Tensor>, String> {
        let failed = |error: DriverError| error.to_string();
        let mut buffers = Vec::new();
        for content in &plan.buffers {
            let buffer = match content {
                Content::Bytes(bytes) => self.filled(stream, bytes),
                Content::Unset(bytes) => self.filled(stream, &vec![0xff; *bytes]),
            };
            buffers.push(buffer.map_err(failed)?);
        }
        // Whole buffers: address, more bytes than anyone reads, none missing.
        let entries = buffers.iter().flat_map(|buffer| [buffer.address(), 1 << 62, 0]);
        let table = self.filled(stream, &entries.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()).map_err(failed)?;
        for ((launch, operands), function) in plan.launches.iter().zip(functions) {
            if launch.shared_bytes > SHARED_BYTES_PLAIN {
                function.set_shared_bytes_max(launch.shared_bytes).map_err(failed)?;
            }
            let address = |&operand: &usize| match mode.is_indirect {
                true => table.address() + 24 * operand as u64,
                false => buffers[operand].address(),
            };
            let scalars = launch.scalars.iter().map(|&scalar| scalar as u64);
            let arguments: Vec<u64> = operands.iter().map(address).chain(scalars).collect();
            let (grid, block, shared_bytes) = (launch.grid, launch.block, launch.shared_bytes);
            let is_clustered = launch.is_clustered();
            let shape = LaunchShape { grid, block, shared_bytes, is_overlapping: false, is_clustered };
            // SAFETY: the arguments are what the kernel's text declares, and all buffers live until the stream is waited
            // for below; what a wrong kernel does to other memory is what the tests are for.
            unsafe { stream.launch_shaped(function, shape, &arguments) }.map_err(failed)?;
        }
        stream.synchronize().map_err(failed)?;
        let read = |buffer: &DeviceBuffer| {
            let mut bytes = vec![0; buffer.len()];
            stream.download(buffer, 0, &mut bytes).map(|()| bytes).map_err(failed)
        };
        let found: Vec<Vec<u8>> = buffers.iter().map(read).collect::<Result<_, _>>()?;
        for (at, (content, found)) in plan.buffers.iter().zip(&found).enumerate() {
            if matches!(content, Content::Bytes(bytes) if bytes != found) {
                return Err(format!("operand {at} has been written"));
            }
        }
        let outputs = plan.outputs.iter();
        Ok(outputs.map(|(buffer, dtype, shape, last)| from_memory(*dtype, shape, &found[*buffer], *last)).collect())
    }

    fn filled(&self, stream: &Stream, bytes: &[u8]) -> Result<DeviceBuffer, DriverError> {
        let buffer = self.device.allocate(bytes.len())?;
        stream.upload(&buffer, 0, bytes)?;
        Ok(buffer)
    }
}
