//! A run of a loaded Program allocates nothing: everything is decided and planned before. The count is that of the
//! calling thread, which does its share of every kernel.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use precast_cpu::lower::REFERENCE;
use precast_cpu::{CpuDevice, CpuTarget, Isa};
use precast_ir::attr::NoConstants;
use precast_ir::{Graph, text};
use precast_passes::PassOptions;
use precast_program::{Bucket, Device, MemoryStore, Program, Target};

/// Kernels that the graph must reach, by the beginning of their names.
const KERNELS: [&str; 19] = [
    "attention",
    "conv+add+act",
    "conv.1x1",
    "conv.depthwise",
    "conv.winograd4",
    "conv_transpose",
    "copy.concat",
    "copy.transpose",
    "gather",
    "gemm+act",
    "gemm_batched",
    "gemm_int",
    "layer_norm",
    "pointwise.",
    "pool.",
    "recurrent.",
    "reduce.",
    "resize.",
    "softmax",
];

fn graph() -> Graph {
    let numbers = |count: usize| (0..count).map(|at| format!("{:?}", (at % 7) as f32 * 0.1 - 0.3)).collect::<Vec<_>>();
    let constant = |count: usize| numbers(count).join(", ");
    let conv = "dilation=[1, 1]";
    let graph = format!(
        r#"graph "all kinds"(%0 "x": f32[2,8,12,12], %1 "i": i64[5]) {{
  %2 = constant f32[8,8,3,3] [{w2}]
  %3 = constant f32[8] [{w3}]
  %4 = conv(%0, %2, %3) {{stride=[1, 1], pad_lo=[1, 1], pad_hi=[1, 1], {conv}, groups=1}} : f32[2,8,12,12]
  %5 = binary.add(%4, %0) : f32[2,8,12,12]
  %6 = unary.relu(%5) {{alpha=0.0, beta=0.0}} : f32[2,8,12,12]
  %7 = constant f32[8,1,3,3] [{w7}]
  %8 = conv(%6, %7) {{stride=[1, 1], pad_lo=[1, 1], pad_hi=[1, 1], {conv}, groups=8}} : f32[2,8,12,12]
  %9 = constant f32[4,8,1,1] [{w9}]
  %10 = conv(%8, %9) {{stride=[1, 1], pad_lo=[0, 0], pad_hi=[0, 0], {conv}, groups=1}} : f32[2,4,12,12]
  %11 = pool.avg(%10) {{window=[3, 3], stride=[2, 2], pad_lo=[1, 1], pad_hi=[1, 1], dilation=[1, 1], output=[6, 6], count_pad=false, p=2}} : f32[2,4,6,6]
  %12 = resize.linear(%11) {{coordinates=half_pixel, nearest=floor, output=[2, 4, 12, 12], scales=[1.0, 1.0, 2.0, 2.0], cubic_a=-0.75, exclude_outside=false, antialias=false, roi=[], extrapolation=0.0}} : f32[2,4,12,12]
  %13 = concat(%10, %12) {{axis=1}} : f32[2,8,12,12]
  %14 = constant f32[8,4,2,2] [{w14}]
  %15 = conv_transpose(%13, %14) {{stride=[2, 2], pad_lo=[0, 0], pad_hi=[0, 0], output_pad=[0, 0], dilation=[1, 1], groups=1}} : f32[2,4,24,24]
  %16 = reduce.mean(%15) {{axes=[3], keep_dims=false}} : f32[2,4,24]
  %17 = constant f32[24,16] [{w17}]
  %18 = matmul(%16, %17) {{transpose_a=false, transpose_b=false}} : f32[2,4,16]
  %19 = constant f32[16] [{w19}]
  %20 = binary.add(%18, %19) : f32[2,4,16]
  %21 = unary.gelu_erf(%20) {{alpha=0.0, beta=0.0}} : f32[2,4,16]
  %22 = layer_norm(%21, %19, %19) {{axis=2, epsilon=1e-5}} : f32[2,4,16]
  %23 = transpose(%22) {{perm=[2, 0, 1]}} : f32[16,2,4]
  %24 = matmul(%22, %22) {{transpose_a=false, transpose_b=true}} : f32[2,4,4]
  %25 = softmax(%24) {{axis=2, log=false}} : f32[2,4,4]
  %26 = matmul(%25, %22) {{transpose_a=false, transpose_b=false}} : f32[2,4,16]
  %27 = gather(%23, %1) {{axis=0}} : f32[5,2,4]
  %28 = unary.tanh(%27) {{alpha=0.0, beta=0.0}} : f32[5,2,4]
  %29 = binary.mul(%28, %27) : f32[5,2,4]
  %30 = unary.exp(%29) {{alpha=0.0, beta=0.0}} : f32[5,2,4]
  %31 = constant f32[1,24,4] [{w31}]
  %32 = constant f32[1,24,6] [{w32}]
  %33, %34, %35 = recurrent.lstm(%30, %31, %32) {{direction=forward, hidden=6, activations=[sigmoid, tanh, tanh], alphas=[0.0, 0.0, 0.0], betas=[0.0, 0.0, 0.0], clip=0.0, input_forget=false, linear_before_reset=false, rounds_state=false, bias=false, lengths=false, initial_h=false, initial_c=false, peepholes=false}} : f32[5,1,2,6], f32[1,2,6], f32[1,2,6]
  %36 = constant f32[] [0.05]
  %37 = constant u8[] [128]
  %38 = quantize(%26, %36, %37) {{to=u8, axis=0, block=0, saturate=true, precision=f32}} : u8[2,4,16]
  %39 = constant i8[16,3] [{w39}]
  %40 = constant i8[] [0]
  %41 = matmul_int(%38, %39, %37, %40) : i32[2,4,3]
  %42 = slice(%33) {{start=[4, 0, 0, 0], step=[-1, 1, 1, 2], size=[5, 1, 2, 3]}} : f32[5,1,2,3]
  %43 = pad.reflect(%42) {{lo=[0, 0, 1, 1], hi=[0, 0, 0, 1]}} : f32[5,1,3,5]
  %44 = arg_reduce.max(%43) {{axis=3, keep_dims=false, last=false}} : i64[5,1,3]
  %45 = group_norm(%13, %3, %3) {{groups=4, epsilon=1e-5}} : f32[2,8,12,12]
  %46 = constant f32[16,4,3,3] [{w46}]
  %47 = conv(%15, %46) {{stride=[1, 1], pad_lo=[1, 1], pad_hi=[1, 1], {conv}, groups=1}} : f32[2,16,24,24]
  %48 = constant f32[16,16,3,3] [{w48}]
  %49 = conv(%47, %48) {{stride=[1, 1], pad_lo=[1, 1], pad_hi=[1, 1], {conv}, groups=1}} : f32[2,16,24,24]
  return "a" %41, "b" %44, "c" %43, "d" %45, "e" %49
}}
"#,
        w2 = constant(8 * 8 * 9),
        w3 = constant(8),
        w7 = constant(72),
        w9 = constant(32),
        w14 = constant(8 * 16),
        w17 = constant(24 * 16),
        w19 = constant(16),
        w31 = constant(96),
        w32 = constant(144),
        w39 = ["-3"; 48].join(", "),
        w46 = constant(16 * 4 * 9),
        w48 = constant(16 * 16 * 9),
    );
    text::parse(&graph, &NoConstants).unwrap()
}

fn check_kernels(programs: &[Arc<Program>]) {
    let steps = programs.iter().flat_map(|program| &program.steps);
    let kernels: Vec<&str> = steps.map(|step| step.kernel.as_str()).collect();
    assert!(!kernels.iter().any(|kernel| kernel.starts_with(REFERENCE)), "{kernels:?}");
    for expected in KERNELS {
        assert!(kernels.iter().any(|kernel| kernel.starts_with(expected)), "no {expected} among {kernels:?}");
    }
}

#[test]
fn allocations_are_counted() {
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(Box::new(1))));
    assert_eq!(counted.count_total, 1);
}

#[test]
fn a_run_allocates_nothing() {
    let graph = graph();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
        for threads in [1, 2] {
            let store = MemoryStore::default();
            // Without the passes that join steps, for the kernels of the steps they join.
            let apart = ["fold_conv_1x1", "fuse_attention"].map(str::to_string).to_vec();
            let programs: Vec<Arc<Program>> = [Vec::new(), apart]
                .into_iter()
                .map(|disabled| {
                    let options = PassOptions { disabled, ..PassOptions::default() };
                    let target = CpuTarget::new(isa, threads, options);
                    Arc::new(target.compile(&graph, &Bucket::default(), &store).unwrap())
                })
                .collect();
            check_kernels(&programs);
            let device = CpuDevice::new(threads);
            for program in &programs {
                check_run(&device, program, &store);
            }
        }
    }
}

fn check_run(device: &CpuDevice, program: &Arc<Program>, store: &MemoryStore) {
    let loaded = device.load(program, store).unwrap();
    let mut context = device.context(program.arena_bytes);
    let words = |bytes: u64| vec![0u64; (bytes as usize).div_ceil(size_of::<u64>())];
    let x = vec![0.5f32; program.inputs[0].bytes as usize / size_of::<f32>()];
    let indices = [0i64, -1, 15, 3, 3];
    let inputs: [&[u8]; 2] = [bytemuck::cast_slice(&x), bytemuck::cast_slice(&indices)];
    let mut outputs: Vec<Vec<u64>> = program.outputs.iter().map(|port| words(port.bytes)).collect();
    let mut outputs: Vec<&mut [u8]> = program
        .outputs
        .iter()
        .zip(&mut outputs)
        .map(|(port, words)| &mut bytemuck::cast_slice_mut(words)[..port.bytes as usize])
        .collect();
    // The first run may set up what the system keeps for a thread.
    context.run(&*loaded, &inputs, &mut outputs).unwrap();
    let counted = allocation_counter::measure(|| {
        context.run(&*loaded, &inputs, &mut outputs).unwrap();
    });
    assert_eq!(counted.count_total, 0, "{}: {counted:?}", program.target);
}
