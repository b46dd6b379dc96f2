//! Whole Programs on the fake driver: the same kernel text, launches, copies and captures as on a GPU, on the host.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod rig;

use precast_driver::Vendor;
use precast_gpu::CaptureLimits;
use precast_passes::FloatPrecision;
use precast_program::Device;
use precast_tensor::Tensor;
use rig::{Rig, assert_answers, canaries, graph, inputs};

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

fn check(rig: Rig, tolerance: f64) {
    let graph = graph(NETWORK);
    let loaded = rig.load(&graph);
    let program = loaded.program();
    let kernels: Vec<&str> = program.steps.iter().map(|step| step.kernel.as_str()).collect();
    assert!(kernels.iter().all(|kernel| !kernel.starts_with("host")), "{kernels:?}");
    let mut context = rig.device().context(0);
    // Ordinary runs, the capture, and replays: each with inputs of its own.
    for seed in 0..6 {
        let inputs = inputs(&graph, seed);
        let bytes: Vec<&[u8]> = inputs.iter().map(Tensor::as_bytes).collect();
        let mut outputs = canaries(program);
        let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        context.run(&*loaded, &bytes, &mut slices).unwrap();
        assert_answers(&graph, &inputs, &outputs, tolerance);
    }
    drop((context, loaded));
    rig.assert_clean();
}

#[test]
fn a_network_runs_and_replays_on_both_drivers() {
    check(Rig::new(Vendor::Cuda), 1e-5);
    check(Rig::new(Vendor::Hip), 1e-5);
}

#[test]
fn a_network_runs_and_replays_on_hip_that_is_forwarded_to_cuda() {
    check(Rig::of_hip_on_cuda(FloatPrecision::F32), 1e-5);
    check(Rig::of_hip_on_cuda(FloatPrecision::F16), 2e-2);
}

#[test]
fn a_network_runs_and_replays_in_fp16() {
    check(Rig::with(Vendor::Cuda, 1, FloatPrecision::F16, CaptureLimits::default()), 2e-2);
}
