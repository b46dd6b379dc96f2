//! Prints GFLOP/s of the f32 GEMM kernels on the shapes that models have: `cargo run --release --example gemm_speed`.

use precast_kernels::gemm::*;
use precast_kernels::isa::{Exec, Isa};
use precast_kernels::pool::ThreadPool;
use std::time::Instant;

fn main() {
    println!("{:<34} {:>10} {:>9} {:>9} {:>9}", "shape", "isa", "1 thread", "2 threads", "");
    for (m, n, k) in [
        (1024, 1024, 1024),
        (2048, 2048, 2048),
        (128, 768, 768),
        (128, 3072, 768),
        (128, 768, 3072),
        (32, 768, 768),
        (16, 1000, 2048),
        (8, 3072, 768),
        (1, 3072, 768),
        (1, 1000, 2048),
    ] {
        time_gemm(Isa::detect(), Arithmetic::Bf16, m, n, k, true);
        for (isa, is_b_packed) in [(Isa::Avx512, true), (Isa::Avx512, false), (Isa::Avx2, true), (Isa::Portable, true)]
        {
            if isa.is_supported() {
                time_gemm(isa, Arithmetic::F32, m, n, k, is_b_packed);
            }
        }
    }
    for (batch, m, n, k) in [(12, 128, 128, 64), (12, 128, 64, 128), (8, 512, 512, 64), (96, 49, 49, 32)] {
        for order in [Order::Rows, Order::Columns] {
            time_batched(batch, m, n, k, order);
        }
    }
}

fn time_gemm(isa: Isa, arithmetic: Arithmetic, m: usize, n: usize, k: usize, is_b_packed: bool) {
    let (a, b) = (vec![0.5_f32; m * k], vec![0.25_f32; k * n]);
    let plain = MatrixB::Rows { data: &b, stride: n };
    let packed = match arithmetic {
        Arithmetic::F32 => pack_b(isa, k, n, plain),
        Arithmetic::Bf16 => pack_b_words(isa, k, n, plain),
    };
    let right = if is_b_packed { MatrixB::Packed(&packed) } else { plain };
    let left = MatrixA::Rows { data: &a, stride: k };
    let bias = vec![1.0_f32; n];
    let epilogue = Epilogue { bias: Bias::Columns(&bias), ..Epilogue::default() };
    let mut c = vec![0.0_f32; m * n];
    let speeds = [1, 2].map(|threads| {
        let pool = ThreadPool::new(threads);
        let Some(exec) = Exec::new(isa, &pool) else { return 0.0 };
        let sizes = [m, n, k];
        let len = gemm_scratch_len_in(arithmetic, isa, threads, sizes, left.packing(), right.packing());
        let mut scratch = vec![0.0; len];
        gflops(2 * m * n * k, || gemm_in(arithmetic, exec, sizes, left, right, &mut c, n, &epilogue, &mut scratch))
    });
    let form = if is_b_packed { "packed" } else { "plain B" };
    let name = if arithmetic == Arithmetic::Bf16 { "bf16" } else { isa.name() };
    println!("{:<34} {name:>10} {:>9.1} {:>9.1} {form:>9}", format!("{m} x {n} x {k}"), speeds[0], speeds[1]);
}

fn time_batched(batch: usize, m: usize, n: usize, k: usize, order: Order) {
    let isa = Isa::detect();
    let b_stride = if order == Order::Rows { n } else { k };
    let batched = BatchedGemm {
        batch,
        m,
        n,
        k,
        a: BatchedOperand { order: Order::Rows, stride: k, batch_stride: m * k },
        b: BatchedOperand { order, stride: b_stride, batch_stride: n * k },
        c_stride: n,
        c_batch_stride: m * n,
        alpha: 0.125,
    };
    let (a, b) = (vec![0.5_f32; batch * m * k], vec![0.25_f32; batch * k * n]);
    let mut c = vec![0.0_f32; batch * m * n];
    let speeds = [1, 2].map(|threads| {
        let pool = ThreadPool::new(threads);
        let Some(exec) = Exec::new(isa, &pool) else { return 0.0 };
        let mut scratch = vec![0.0; gemm_batched_scratch_len(isa, threads, &batched, Packing::Plain)];
        gflops(2 * batch * m * n * k, || {
            gemm_batched(exec, &batched, &a, BatchB::Plain(&b), &mut c, &Epilogue::default(), &mut scratch);
        })
    });
    let shape = format!("batch {batch}: {m} x {n} x {k}");
    println!("{shape:<34} {:>10} {:>9.1} {:>9.1} {order:>9?}", isa.name(), speeds[0], speeds[1]);
}

/// The best of several rounds, since anything else on the machine only makes them slower.
fn gflops(flops: usize, mut body: impl FnMut()) -> f64 {
    let calls = (200_000_000 / flops.max(1)).clamp(1, 2_000);
    let mut best = f64::INFINITY;
    for _ in 0..7 {
        let started = Instant::now();
        (0..calls).for_each(|_| body());
        best = best.min(started.elapsed().as_secs_f64() / calls as f64);
    }
    flops as f64 / best / 1e9
}
