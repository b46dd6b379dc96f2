//! Measures the kernels that should be bound by memory, and the 8-bit GEMM: `cargo run --release --example
//! pointwise_speed`. Each line gives the best of several rounds, so that other work on the machine matters little.

use std::time::Instant;

use precast_kernels::copy::StridedCopy;
use precast_kernels::gemm_int::{GemmInt, ZeroPoints, gemm_int, pack_b_int};
use precast_kernels::isa::{Exec, Isa};
use precast_kernels::norm::layer_norm;
use precast_kernels::pointwise::{
    BinaryKernel, InputSpec, Instruction, Lane, OutputSpec, PointwiseProgram, Register, UnaryKernel,
};
use precast_kernels::pool::ThreadPool;
use precast_kernels::softmax::softmax;

fn main() {
    for threads in [1, 2] {
        let pool = ThreadPool::new(threads);
        let Some(exec) = Exec::new(Isa::detect(), &pool) else {
            return;
        };
        println!("{} with {threads} threads", Isa::detect().name());
        for len in [64 * 1024, 16 * 1024 * 1024] {
            measure_pointwise(&exec, len);
        }
        for (rows, cols) in [(128, 512), (8000, 2000), (8192, 2048)] {
            measure_rows(&exec, rows, cols);
            measure_transpose(&exec, rows, cols);
        }
        for (m, n, k) in [(1, 4096, 1024), (128, 768, 768), (512, 512, 512), (2048, 2048, 2048)] {
            measure_gemm_int(&exec, m, n, k);
        }
    }
}

/// The shortest of many runs, in seconds.
fn best(mut body: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    let begun = Instant::now();
    while begun.elapsed().as_secs_f64() < 0.25 {
        let started = Instant::now();
        body();
        best = best.min(started.elapsed().as_secs_f64());
    }
    best
}

fn report(name: &str, elements: usize, bytes: usize, seconds: f64) {
    let (giga_elements, giga_bytes) = (elements as f64 / seconds / 1e9, bytes as f64 / seconds / 1e9);
    println!("  {name:<28} {giga_elements:8.2} G elements/s {giga_bytes:8.1} GB/s");
}

fn measure_pointwise(exec: &Exec, len: usize) {
    let a: Vec<u8> = vec![63; len * 4];
    let b: Vec<u8> = vec![62; len * 4];
    let mut c: Vec<u8> = vec![0; len * 4];
    let output = [OutputSpec { lane: Lane::F32 }];
    let input = InputSpec { lane: Lane::F32, strides: vec![1] };
    let add = vec![
        Instruction::Load { input: 0 },
        Instruction::Load { input: 1 },
        Instruction::Binary { func: BinaryKernel::Add, a: Register(0), b: Register(1) },
        Instruction::Store { src: Register(2), output: 0 },
    ];
    let program =
        PointwiseProgram::new(&[len], &[input.clone(), input.clone()], &output, add).expect("a valid program");
    let seconds = best(|| program.run(exec, &[&a, &b], &mut [&mut c]));
    report(&format!("add {len}"), len, len * 12, seconds);
    for func in [UnaryKernel::Silu, UnaryKernel::GeluErf, UnaryKernel::GeluTanh, UnaryKernel::Tanh, UnaryKernel::Erf] {
        let unary = vec![
            Instruction::Load { input: 0 },
            Instruction::Unary { func, src: Register(0), alpha: 0.0, beta: 0.0 },
            Instruction::Store { src: Register(1), output: 0 },
        ];
        let program = PointwiseProgram::new(&[len], std::slice::from_ref(&input), &output, unary);
        let program = program.expect("a valid program");
        let seconds = best(|| program.run(exec, &[&a], &mut [&mut c]));
        report(&format!("{func:?} {len}"), len, len * 8, seconds);
    }
}

fn measure_rows(exec: &Exec, rows: usize, cols: usize) {
    let len = rows * cols;
    let src: Vec<f32> = (0..len).map(|index| (index % 97) as f32 / 97.0).collect();
    let mut dst = vec![0.0; len];
    let seconds = best(|| softmax(exec, rows, cols, &src, &mut dst));
    report(&format!("softmax {rows}x{cols}"), len, len * 8, seconds);
    let (scale, bias) = (vec![1.5; cols], vec![0.5; cols]);
    let seconds = best(|| layer_norm(exec, rows, cols, &src, Some(&scale), Some(&bias), 1e-5, &mut dst, None));
    report(&format!("layer_norm {rows}x{cols}"), len, len * 8, seconds);
}

fn measure_transpose(exec: &Exec, rows: usize, cols: usize) {
    let len = rows * cols;
    let (src, mut dst) = (vec![1_u8; len * 4], vec![0_u8; len * 4]);
    let (src_strides, dst_strides) = ([1, cols as isize], [rows as isize, 1]);
    let copy = StridedCopy::new(4, &[cols, rows], 0, &src_strides, 0, &dst_strides, len, len).expect("a valid copy");
    let seconds = best(|| copy.run(exec, &src, &mut dst));
    report(&format!("transpose {rows}x{cols}"), len, len * 8, seconds);
}

fn measure_gemm_int(exec: &Exec, m: usize, n: usize, k: usize) {
    let (a, b) = (vec![3_u8; m * k], vec![5_u8; k * n]);
    let packed_b = pack_b_int(k, n, &b, true, false);
    let gemm = GemmInt {
        m,
        n,
        k,
        a: &a,
        is_a_signed: false,
        a_zero: ZeroPoints::Scalar(7),
        packed_b: &packed_b,
        is_b_signed: true,
        b_zero: ZeroPoints::Scalar(0),
    };
    let mut c = vec![0; m * n];
    let seconds = best(|| gemm_int(exec, &gemm, &mut c, n, &mut []));
    let giga_ops = 2.0 * (m * n * k) as f64 / seconds / 1e9;
    println!("  {:<28} {giga_ops:8.1} GOP/s", format!("gemm_int {m}x{n}x{k}"));
}
