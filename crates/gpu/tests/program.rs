//! Whole Programs on the fake driver: the same kernel text, launches, copies and captures as on a GPU, on the host.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use precast_driver::{Compiler, Library};
use precast_fake_driver::{Fake, HipOnCuda};
use precast_gpu::kernel::HOST;
use precast_gpu::{GpuDevice, GpuTarget, KernelCompiler, MemoryKernels};
use precast_ir::attr::NoConstants;
use precast_ir::eval::eval_graph;
use precast_ir::{Graph, text};
use precast_passes::{FloatPrecision, Numerics, PassOptions};
use precast_program::{Bucket, Device, MemoryStore, Program, Target};
use precast_tensor::{DType, Tensor};

/// A small network: convolutions with an epilogue, pooling, a product, a softmax.
const NETWORK: &str = r#"graph "network"(%0 "x": f32[2,3,8,8], %1 "w": f32[16,3,3,3], %2 "v": f32[16,16,1,1], %3 "m": f32[16,10]) {
  %4 = conv(%0, %1) {stride=[1,1], pad_lo=[1,1], pad_hi=[1,1], dilation=[1,1], groups=1} : f32[2,16,8,8]
  %5 = unary.relu(%4) {alpha=0.0, beta=0.0} : f32[2,16,8,8]
  %6 = conv(%5, %2) {stride=[1,1], pad_lo=[0,0], pad_hi=[0,0], dilation=[1,1], groups=1} : f32[2,16,8,8]
  %7 = binary.add(%6, %5) : f32[2,16,8,8]
  %8 = reduce.mean(%7) {axes=[2,3], keep_dims=false} : f32[2,16]
  %9 = matmul(%8, %3) {transpose_a=false, transpose_b=false} : f32[2,10]
  %10 = softmax(%9) {axis=1, log=false} : f32[2,10]
  return "y" %10, "z" %7
}
"#;

/// The fake compiler with the host's part of the prelude.
struct FakeCompiler(Compiler);

impl KernelCompiler for FakeCompiler {
    fn version(&self) -> String {
        "fake1.0".to_string()
    }

    fn compile(&self, text: &str, arch: &str) -> Result<Vec<u8>, String> {
        let text = text.replace("#include \"host.h\"", HOST);
        self.0.compile(&text, "kernel", arch, &[]).map_err(|error| error.to_string())
    }
}

struct Rig {
    fake: Fake,
    /// HIP on top of the fake CUDA, where that is what runs.
    _forwarder: Option<HipOnCuda>,
    device: GpuDevice,
    target: GpuTarget,
    store: MemoryStore,
}

/// Whose driver a Program runs on.
#[derive(Clone, Copy, PartialEq)]
enum Driver {
    Cuda,
    Hip,
    /// HIP whose every call goes to CUDA.
    HipOnCuda,
}

fn rig(driver: Driver, floats: FloatPrecision) -> Rig {
    let fake = Fake::new(1);
    let forwarder = (driver == Driver::HipOnCuda).then(|| HipOnCuda::new(fake.path(), fake.path()));
    let path = forwarder.as_ref().map_or(fake.path(), HipOnCuda::path);
    let vendor = if driver == Driver::Cuda { precast_driver::Vendor::Cuda } else { precast_driver::Vendor::Hip };
    let library = Library::open_path(vendor, path).unwrap();
    let device = GpuDevice::new(library.device(0).unwrap()).unwrap();
    let compiler = FakeCompiler(Compiler::open_path(vendor, path).unwrap());
    let options = PassOptions { numerics: Numerics { floats, ..Numerics::default() }, ..PassOptions::default() };
    let target = GpuTarget::new(device.arch().clone(), options, Arc::new(compiler), Arc::new(MemoryKernels::default()));
    Rig { fake, _forwarder: forwarder, device, target, store: MemoryStore::default() }
}

fn inputs(graph: &Graph, seed: u64) -> Vec<Tensor> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 31) as f64 - 0.5
    };
    let make = |&input: &precast_ir::ValueId| {
        let shape = graph.ty(input).shape().unwrap();
        let elements: Vec<f64> = (0..shape.iter().product()).map(|_| next()).collect();
        Tensor::from_f64(DType::F32, shape, &elements, false).unwrap()
    };
    graph.inputs().iter().map(make).collect()
}

fn near(found: &[u8], expected: &Tensor, tolerance: f64) {
    let found = Tensor::new(expected.dtype(), expected.shape().to_vec(), found.to_vec().into()).unwrap();
    let (found, expected) = (found.to_f64_vec(), expected.to_f64_vec());
    let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
    let difference: Vec<f64> = found.iter().zip(&expected).map(|(a, b)| a - b).collect();
    assert!(norm(&difference) <= tolerance * norm(&expected), "{} of {}", norm(&difference), norm(&expected));
}

fn compile(rig: &Rig, graph: &Graph) -> Arc<Program> {
    Arc::new(rig.target.compile(graph, &Bucket::default(), &rig.store).unwrap())
}

fn check(driver: Driver, floats: FloatPrecision, tolerance: f64) {
    let rig = rig(driver, floats);
    let graph = text::parse(NETWORK, &NoConstants).unwrap();
    let program = compile(&rig, &graph);
    assert!(program.steps.iter().all(|step| !step.kernel.starts_with("host")), "{:?}", kernels(&program));
    let loaded = rig.device.load(&program, &rig.store).unwrap();
    {
        let mut context = rig.device.context(0);
        // Ordinary runs, the capture, and replays: each with inputs of its own.
        for seed in 0..6 {
            let inputs = inputs(&graph, seed);
            let bytes: Vec<&[u8]> = inputs.iter().map(Tensor::as_bytes).collect();
            let mut outputs: Vec<Vec<u8>> =
                program.outputs.iter().map(|port| vec![0xa5; port.bytes as usize]).collect();
            let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            context.run(&*loaded, &bytes, &mut slices).unwrap();
            for (found, expected) in outputs.iter().zip(eval_graph(&graph, &inputs).unwrap()) {
                near(found, &expected, tolerance);
            }
        }
    }
    drop(loaded);
    assert_eq!(rig.fake.violations(), Vec::<String>::new());
}

fn kernels(program: &Program) -> Vec<&str> {
    program.steps.iter().map(|step| step.kernel.as_str()).collect()
}

#[test]
fn a_network_runs_and_replays_on_both_drivers() {
    check(Driver::Cuda, FloatPrecision::F32, 1e-5);
    check(Driver::Hip, FloatPrecision::F32, 1e-5);
}

#[test]
fn a_network_runs_and_replays_on_hip_that_is_forwarded_to_cuda() {
    check(Driver::HipOnCuda, FloatPrecision::F32, 1e-5);
    check(Driver::HipOnCuda, FloatPrecision::F16, 2e-2);
}

#[test]
fn a_network_runs_and_replays_in_fp16() {
    check(Driver::Cuda, FloatPrecision::F16, 2e-2);
}
