//! A GPU target and its devices on the fake driver: the same kernel text, launches, copies and captures as on a GPU.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use precast_driver::{Compiler, Library, Vendor};
use precast_fake_driver::{Fake, HipOnCuda};
use precast_gpu::kernel::HOST;
use precast_gpu::{CaptureLimits, CaptureOptions, Clock, GpuDevice, GpuTarget, KernelCompiler, MemoryKernels};
use precast_ir::attr::NoConstants;
use precast_ir::eval::eval_graph;
use precast_ir::{Graph, text};
use precast_passes::{FloatPrecision, Numerics, PassOptions};
use precast_program::{Bucket, Device, LoadedProgram, MemoryStore, Program, Target};
use precast_tensor::{DType, Tensor};

/// The fake compiler with the host's part of the prelude.
pub struct FakeCompiler(pub Compiler);

impl KernelCompiler for FakeCompiler {
    fn version(&self) -> String {
        "fake1.0".to_string()
    }

    fn compile(&self, text: &str, arch: &str) -> Result<Vec<u8>, String> {
        let text = text.replace("#include \"host.h\"", HOST);
        self.0.compile(&text, "kernel", arch, &[]).map_err(|error| error.to_string())
    }
}

/// A fake driver with its devices, opened.
pub struct Rig {
    /// Before the driver's copy, which it is in.
    pub devices: Vec<GpuDevice>,
    pub target: GpuTarget,
    pub store: MemoryStore,
    /// Seconds that the clock of captures shows.
    pub seconds: Arc<AtomicU64>,
    pub library: Library,
    /// HIP on top of the fake CUDA, where that is what runs.
    forwarder: Option<HipOnCuda>,
    pub fake: Fake,
}

impl Rig {
    pub fn new(vendor: Vendor) -> Rig {
        Rig::with(vendor, 1, FloatPrecision::F32, CaptureLimits::default())
    }

    pub fn with(vendor: Vendor, devices: u32, floats: FloatPrecision, limits: CaptureLimits) -> Rig {
        Rig::on(Fake::new(devices), None, vendor, devices, floats, limits)
    }

    /// The HIP path whose every call goes to the fake CUDA.
    pub fn of_hip_on_cuda(floats: FloatPrecision) -> Rig {
        let fake = Fake::new(1);
        let forwarder = HipOnCuda::new(fake.path(), fake.path());
        Rig::on(fake, Some(forwarder), Vendor::Hip, 1, floats, CaptureLimits::default())
    }

    fn on(
        fake: Fake,
        forwarder: Option<HipOnCuda>,
        vendor: Vendor,
        devices: u32,
        floats: FloatPrecision,
        limits: CaptureLimits,
    ) -> Rig {
        let path = forwarder.as_ref().map_or(fake.path(), HipOnCuda::path).to_owned();
        let library = Library::open_path(vendor, &path).unwrap();
        let seconds = Arc::new(AtomicU64::new(0));
        let read = seconds.clone();
        let clock = Clock::of(move || Duration::from_secs(read.load(Ordering::Relaxed)));
        let captures = CaptureOptions { limits, clock, ..CaptureOptions::default() };
        let open = |ordinal: u32| {
            GpuDevice::new(library.device(ordinal as usize).unwrap()).unwrap().with_captures(captures.clone())
        };
        let devices: Vec<GpuDevice> = (0..devices).map(open).collect();
        let compiler = Arc::new(FakeCompiler(Compiler::open_path(vendor, &path).unwrap()));
        let options = PassOptions { numerics: Numerics { floats, ..Numerics::default() }, ..PassOptions::default() };
        let kernels = Arc::new(MemoryKernels::default());
        let target = GpuTarget::new(devices[0].arch().clone(), options, compiler, kernels);
        Rig { devices, target, store: MemoryStore::default(), seconds, library, forwarder, fake }
    }

    pub fn device(&self) -> &GpuDevice {
        &self.devices[0]
    }

    pub fn compile(&self, graph: &Graph) -> Arc<Program> {
        Arc::new(self.target.compile(graph, &Bucket::default(), &self.store).unwrap())
    }

    pub fn load(&self, graph: &Graph) -> Arc<dyn LoadedProgram> {
        self.device().load(&self.compile(graph), &self.store).unwrap()
    }

    /// Lets the clock of captures go on.
    pub fn pass_seconds(&self, seconds: u64) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Requires that nothing is left and no rule was violated.
    pub fn assert_clean(self) {
        let Rig { devices, target, fake, library, forwarder, .. } = self;
        drop((devices, target, library, forwarder));
        fake.assert_clean();
    }
}

/// A graph from its text.
pub fn graph(text: &str) -> Graph {
    text::parse(text, &NoConstants).unwrap()
}

/// Numbers for every input, the same for the same seed.
pub fn inputs(graph: &Graph, seed: u64) -> Vec<Tensor> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 31) as f64 - 0.5
    };
    let make = |&input: &precast_ir::ValueId| {
        let shape = graph.ty(input).shape().unwrap();
        let dtype = graph.ty(input).dtype;
        // Integers are indices of at least this many.
        let number = |number: f64| if dtype == DType::F32 { number } else { ((number + 0.5) * 5.0).floor() };
        let elements: Vec<f64> = (0..shape.iter().product()).map(|_| number(next())).collect();
        Tensor::from_f64(dtype, shape, &elements, false).unwrap()
    };
    graph.inputs().iter().map(make).collect()
}

/// Requires that output bytes are near what reference evaluation gives.
pub fn assert_near(found: &[u8], expected: &Tensor, tolerance: f64) {
    let found = Tensor::new(expected.dtype(), expected.shape().to_vec(), found.to_vec().into()).unwrap();
    let (found, expected) = (found.to_f64_vec(), expected.to_f64_vec());
    let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
    let difference: Vec<f64> = found.iter().zip(&expected).map(|(a, b)| a - b).collect();
    let is_near = norm(&difference) <= tolerance * norm(&expected);
    assert!(is_near, "{} of {}", norm(&difference), norm(&expected));
}

/// Requires that outputs are the Graph's for these inputs.
pub fn assert_answers(graph: &Graph, inputs: &[Tensor], outputs: &[Vec<u8>], tolerance: f64) {
    for (found, expected) in outputs.iter().zip(eval_graph(graph, inputs).unwrap()) {
        assert_near(found, &expected, tolerance);
    }
}

/// Buffers for outputs, filled with a pattern that no answer has.
pub fn canaries(program: &Program) -> Vec<Vec<u8>> {
    program.outputs.iter().map(|port| vec![0xa5; port.bytes as usize]).collect()
}
