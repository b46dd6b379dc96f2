//! Prints times and GFLOP/s of the f32 convolution kernels on the layers of ResNet-50 and the MobileNets:
//! `cargo run --release --example conv_speed`, or with `mobile` for the layers of MobileNet-v3 and their HardSwish.

use precast_kernels::conv::*;
use precast_kernels::gemm::{Activation, Bias, Epilogue};
use precast_kernels::isa::{Exec, Isa};
use precast_kernels::pool::ThreadPool;
use std::time::Instant;

fn main() {
    println!("{:<44} {:>7} {:>17} {:>17}", "layer", "isa", "1 thread", "2 threads");
    let layers = [
        (3, 64, 1, 224, 7, 2),
        (16, 16, 1, 160, 3, 1),
        (32, 32, 1, 80, 3, 1),
        (64, 64, 1, 80, 3, 1),
        (64, 64, 1, 40, 3, 1),
        (128, 128, 1, 20, 3, 1),
        (64, 64, 1, 56, 1, 1),
        (64, 64, 1, 56, 3, 1),
        (64, 256, 1, 56, 1, 1),
        (256, 64, 1, 56, 1, 1),
        (128, 128, 1, 56, 3, 2),
        (128, 128, 1, 28, 3, 1),
        (128, 512, 1, 28, 1, 1),
        (256, 512, 1, 56, 1, 2),
        (256, 256, 1, 14, 3, 1),
        (256, 1024, 1, 14, 1, 1),
        (512, 512, 1, 7, 3, 1),
        (512, 2048, 1, 7, 1, 1),
        (128, 128, 32, 56, 3, 1),
        (3, 32, 1, 224, 3, 2),
        (32, 32, 32, 112, 3, 1),
        (96, 96, 96, 112, 3, 2),
        (144, 144, 144, 56, 3, 1),
        (144, 144, 144, 56, 3, 2),
        (192, 192, 192, 28, 3, 1),
        (384, 384, 384, 14, 3, 1),
        (960, 960, 960, 7, 3, 1),
        (240, 240, 240, 28, 5, 1),
        (672, 672, 672, 14, 5, 2),
    ];
    let mobile = [
        (3, 16, 1, 224, 3, 2),
        (16, 16, 1, 112, 1, 1),
        (16, 64, 1, 112, 1, 1),
        (64, 64, 64, 112, 3, 2),
        (64, 24, 1, 56, 1, 1),
        (24, 72, 1, 56, 1, 1),
        (72, 72, 72, 56, 3, 1),
        (72, 24, 1, 56, 1, 1),
        (72, 72, 72, 56, 5, 2),
        (72, 40, 1, 28, 1, 1),
        (40, 120, 1, 28, 1, 1),
        (120, 120, 120, 28, 5, 1),
        (120, 40, 1, 28, 1, 1),
        (40, 240, 1, 28, 1, 1),
        (240, 80, 1, 14, 1, 1),
        (80, 200, 1, 14, 1, 1),
        (200, 200, 200, 14, 3, 1),
        (480, 112, 1, 14, 1, 1),
        (112, 672, 1, 14, 1, 1),
        (672, 672, 672, 14, 5, 2),
        (672, 160, 1, 7, 1, 1),
        (160, 960, 1, 7, 1, 1),
        (960, 960, 960, 7, 5, 1),
        (960, 160, 1, 7, 1, 1),
        (480, 480, 1, 24, 1, 1),
        (256, 256, 1, 31, 1, 1),
    ];
    if std::env::args().nth(1).as_deref() == Some("mobile") {
        for layer in mobile {
            time_layer(Isa::detect(), layer, Activation::HardSwish);
        }
        return;
    }
    for layer in layers {
        time_layer(Isa::detect(), layer, Activation::Relu);
    }
    for layer in layers.into_iter().skip(2).step_by(4).filter(|_| Isa::Avx2.is_supported()) {
        time_layer(Isa::Avx2, layer, Activation::Relu);
    }
}

/// Every tactic; a star marks the one that is chosen for two threads.
fn time_layer(
    isa: Isa,
    (in_channels, out_channels, groups, size, filter, stride): (usize, usize, usize, usize, usize, usize),
    activation: Activation,
) {
    let out_size = size.div_ceil(stride);
    let shape = ConvShape {
        batch: 1,
        in_channels,
        in_height: size,
        in_width: size,
        out_channels,
        out_height: out_size,
        out_width: out_size,
        filter_height: filter,
        filter_width: filter,
        stride: [stride; 2],
        pad_top: filter / 2,
        pad_left: filter / 2,
        dilation: [1, 1],
        groups,
    };
    let x = vec![0.5_f32; in_channels * size * size];
    let weights = vec![0.25_f32; out_channels * in_channels / groups * filter * filter];
    for tactic in [ConvTactic::Product, ConvTactic::Depthwise, ConvTactic::Winograd2, ConvTactic::Winograd4] {
        if tactic.covers(&shape) {
            time_conv(isa, tactic, &shape, &x, &weights, activation);
        }
    }
}

fn time_conv(isa: Isa, tactic: ConvTactic, shape: &ConvShape, x: &[f32], weights: &[f32], activation: Activation) {
    let ConvShape { in_channels, out_channels, groups, in_width: size, filter_width: filter, .. } = *shape;
    let stride = shape.stride[0];
    let packed = pack_filter(isa, tactic, shape, weights);
    let bias = vec![1.0_f32; out_channels];
    let mut y = vec![0.0_f32; out_channels * shape.out_height * shape.out_width];
    let epilogue = Epilogue { bias: Bias::Rows(&bias), activation, ..Epilogue::default() };
    let flops = 2 * y.len() * in_channels / groups * filter * filter;
    let times = [1, 2].map(|threads| {
        let pool = ThreadPool::new(threads);
        let Some(exec) = Exec::new(isa, &pool) else { return 0.0 };
        let mut scratch = vec![0.0; conv_scratch_len(isa, threads, tactic, shape)];
        seconds(|| conv(exec, tactic, shape, x, &packed, &epilogue, &mut scratch, &mut y))
    });
    let star = if choose_tactic(2, shape, Liberty::Rounding) == tactic { "*" } else { "" };
    let name =
        format!("{tactic:?}{star} {in_channels}->{out_channels} /{groups} {size}² {filter}x{filter} stride {stride}");
    let shown = times.map(|time| format!("{:>8.1} µs {:>6.1}", time * 1e6, flops as f64 / time / 1e9));
    println!("{name:<44} {:>7} {:>17} {:>17}", &isa.name()[..4], shown[0], shown[1]);
}

/// The best of several rounds, since anything else on the machine only makes them slower.
fn seconds(mut body: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..60 {
        let started = Instant::now();
        body();
        best = best.min(started.elapsed().as_secs_f64());
    }
    best
}
