//! Prints how fast rows are multiplied with weights of few bits, in each form that rows may have:
//! `cargo run --release --example blocks_speed`, or `… -- M N K THREADS` for one shape.

use precast_kernels::epilogue::Epilogue;
use precast_kernels::gemm_blocks::{BlockWeights, Code, gemm_blocks, gemm_blocks_scratch_len};
use precast_kernels::gemm_blocks_digits::{gemm_blocks_digits, gemm_blocks_digits_scratch_len};
use precast_kernels::gemm_blocks_int::{gemm_blocks_int, gemm_blocks_int_scratch_len};
use precast_kernels::isa::{Exec, Isa};
use precast_kernels::pool::ThreadPool;
use std::time::Instant;

fn main() {
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    println!("Gflop/s {:<37} {:>9} {:>9} {:>9}", "", "floats", "digits", "bytes");
    if let [m, n, k, threads] = sizes[..] {
        let pool = ThreadPool::new(threads);
        let exec = Exec::new(Isa::detect(), &pool).expect("the instructions of this machine");
        return time(exec, BlockWeights { k, n, block: 32, code: Code::Int4, has_shifts: false }, m);
    }
    for threads in [1, 2] {
        let pool = ThreadPool::new(threads);
        let Some(exec) = Exec::new(Isa::detect(), &pool) else { continue };
        for (n, k) in [(960, 576), (3072, 576), (576, 1536)] {
            for (code, has_shifts) in [(Code::Int4, false), (Code::Uint4, true), (Code::Int8, false)] {
                for m in [4, 6, 8, 12, 16, 32, 64, 512] {
                    time(exec, BlockWeights { k, n, block: 32, code, has_shifts }, m);
                }
            }
        }
    }
}

fn time(exec: Exec, weights: BlockWeights, m: usize) {
    let levels = |column: usize, at: usize| ((column * 7 + at * 5) % (1 << weights.code.bits())) as u8;
    let scales = vec![0.01; weights.n * weights.blocks()];
    let zero_points = vec![7; weights.n * weights.blocks()];
    let mut packed = vec![0; weights.packed_len()];
    weights.pack(levels, &scales, weights.has_shifts.then_some(&zero_points[..]), &mut packed);
    let x: Vec<f32> = (0..m * weights.k).map(|at| (at % 97) as f32 - 48.0).collect();
    let (mut c, epilogue) = (vec![0.0; m * weights.n], Epilogue::default());
    let flops = 2 * m * weights.n * weights.k;
    let mut floats = vec![0.0; gemm_blocks_scratch_len(exec.isa(), exec.threads(), &weights, m)];
    let by_floats = gflops(flops, || gemm_blocks(exec, &weights, m, &x, &packed, &epilogue, &mut c, &mut floats));
    let mut words = vec![0; gemm_blocks_digits_scratch_len(exec.threads(), &weights, m)];
    let by_digits = match weights.takes_digits(exec.isa(), m) {
        true => gflops(flops, || gemm_blocks_digits(exec, &weights, m, &x, &packed, &epilogue, &mut c, &mut words)),
        false => 0.0,
    };
    let mut words = vec![0; gemm_blocks_int_scratch_len(&weights, m)];
    let by_bytes = gflops(flops, || gemm_blocks_int(exec, &weights, m, &x, &packed, &epilogue, &mut c, &mut words));
    let shape = format!("{m}x{}x{} {:?} {} threads", weights.n, weights.k, weights.code, exec.threads());
    println!("{shape:<45} {by_floats:>9.1} {by_digits:>9.1} {by_bytes:>9.1}");
}

/// The fastest of several runs.
fn gflops(flops: usize, mut run: impl FnMut()) -> f64 {
    run();
    let repeats = (20_000_000 / flops).max(1);
    let times = (0..12).map(|_| {
        let begin = Instant::now();
        (0..repeats).for_each(|_| run());
        begin.elapsed().as_secs_f64() / repeats as f64
    });
    flops as f64 / times.fold(f64::INFINITY, f64::min) / 1e9
}
