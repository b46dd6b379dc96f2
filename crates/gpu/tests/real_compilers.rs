//! Kernel texts through the vendors' own compilers, where they are installed: no GPU is needed.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use precast_gpu::{Arch, GpuTarget, MemoryKernels, RuntimeCompiler, Vendor};
use precast_ir::attr::NoConstants;
use precast_ir::text;
use precast_passes::{FloatPrecision, Numerics, PassOptions};
use precast_program::{Bucket, MemoryStore, Target};

/// Convolutions, pooling, a norm, products, attention's parts, a lookup and a softmax.
const NETWORK: &str = r#"graph "network"(%0 "x": f32[2,3,8,8], %1 "w": f32[16,3,3,3], %2 "d": f32[16,1,3,3], %3 "m": f32[16,24], %4 "s": f32[24], %5 "i": i64[5]) {
  %6 = conv(%0, %1) {stride=[1,1], pad_lo=[1,1], pad_hi=[1,1], dilation=[1,1], groups=1} : f32[2,16,8,8]
  %7 = unary.gelu_erf(%6) {alpha=0.0, beta=0.0} : f32[2,16,8,8]
  %8 = conv(%7, %2) {stride=[1,1], pad_lo=[1,1], pad_hi=[1,1], dilation=[1,1], groups=16} : f32[2,16,8,8]
  %9 = binary.add(%8, %7) : f32[2,16,8,8]
  %10 = pool.max(%9) {window=[2,2], stride=[2,2], pad_lo=[0,0], pad_hi=[0,0], dilation=[1,1], output=[4,4], count_pad=false, p=2} : f32[2,16,4,4]
  %11 = reshape(%10) {shape=[2,16,16]} : f32[2,16,16]
  %12 = transpose(%11) {perm=[0,2,1]} : f32[2,16,16]
  %13 = matmul(%12, %3) {transpose_a=false, transpose_b=false} : f32[2,16,24]
  %14 = layer_norm(%13, %4, %4) {axis=2, epsilon=0.00001} : f32[2,16,24]
  %15 = softmax(%14) {axis=2, log=false} : f32[2,16,24]
  %16 = gather(%15, %5) {axis=1} : f32[2,5,24]
  %17 = reduce.sum(%16) {axes=[1], keep_dims=false} : f32[2,24]
  return "y" %17
}
"#;

/// Steps of a decoder on pages: of one token a row and of several.
fn paged_network(length: usize) -> String {
    format!(
        r#"graph "pages"(%0 "cached": i32[2], %1 "added": i32[2], %2 "pages": i32[2,16], %3 "x": f32[2,{length},768], %4 "k": f32[40,2,16,64], %5 "v": f32[40,2,16,64]) {{
  %6, %7, %8 = cached_attention(%3, %4, %5, %0, %2) {{heads=8, kv_heads=2, scale=0.125, softcap=0.0, window=90, rotary=none, positions=false, sinks=false, paged=true}} : f32[2,{length},512], f32[2,2,{length},64], f32[2,2,{length},64]
  %9, %10 = append_to_cache(%0, %1, %2, %4, %7, %5, %8) {{paged=true}} : f32[40,2,16,64], f32[40,2,16,64]
  return "y" %6, "new_k" %9, "new_v" %10
}}
"#
    )
}

/// A product of few and one of many rows with weights that lie as blocks of 4 bits, too many to be made floats once and for all.
fn block_network() -> String {
    let list = |count: usize, text: &str| vec![text; count].join(", ");
    format!(
        r#"graph "blocks"(%0 "x": f32[1,128], %1 "many": f32[40,128]) {{
  %2 = constant u8[512,64] [{levels}]
  %3 = constant f32[512,4] [{scales}]
  %4 = unpack(%2) {{to=i4}} : i4[512,128]
  %5 = dequantize(%4, %3) {{to=f32, axis=1, block=32}} : f32[512,128]
  %6 = matmul(%0, %5) {{transpose_a=false, transpose_b=true}} : f32[1,512]
  %7 = constant u8[512,64] [{other_levels}]
  %8 = unpack(%7) {{to=i4}} : i4[512,128]
  %9 = dequantize(%8, %3) {{to=f32, axis=1, block=32}} : f32[512,128]
  %10 = matmul(%1, %9) {{transpose_a=false, transpose_b=true}} : f32[40,512]
  return "y" %6, "z" %10
}}
"#,
        levels = list(512 * 64, "7"),
        other_levels = list(512 * 64, "8"),
        scales = list(512 * 4, "0.5"),
    )
}

/// Normed rows of 16 bits times weights of their type, and times weights of 4 bits.
fn row_network(rows: usize) -> String {
    let list = |count: usize, text: &str| vec![text; count].join(", ");
    format!(
        r#"graph "rows"(%0 "x": bf16[{rows},64]) {{
  %1 = constant bf16[64] [{norm}]
  %2 = constant bf16[64,40] [{weights}]
  %3 = rms_norm(%0, %1) {{axis=1, epsilon=0.5}} : bf16[{rows},64]
  %4 = matmul(%3, %2) {{transpose_a=false, transpose_b=false}} : bf16[{rows},40]
  %5 = constant u8[24,32] [{levels}]
  %6 = constant bf16[24,2] [{scales}]
  %7 = unpack(%5) {{to=i4}} : i4[24,64]
  %8 = dequantize(%7, %6) {{to=bf16, axis=1, block=32}} : bf16[24,64]
  %9 = matmul(%0, %8) {{transpose_a=false, transpose_b=true}} : bf16[{rows},24]
  return "y" %4, "z" %9
}}
"#,
        norm = list(64, "1.0"),
        weights = list(64 * 40, "0.5"),
        levels = list(24 * 32, "7"),
        scales = list(24 * 2, "0.5"),
    )
}

fn compile_for(vendor: precast_driver::Vendor, arch: Arch) {
    let compiler = match RuntimeCompiler::open(vendor) {
        Ok(compiler) => Arc::new(compiler),
        Err(error) => return println!("left out: {error}"),
    };
    let networks = [NETWORK, &block_network(), &paged_network(1), &paged_network(5), &row_network(3), &row_network(20)];
    for network in networks {
        let graph = text::parse(network, &NoConstants).unwrap();
        for floats in [FloatPrecision::F32, FloatPrecision::F16] {
            let options =
                PassOptions { numerics: Numerics { floats, ..Numerics::default() }, ..PassOptions::default() };
            let target =
                GpuTarget::new(arch.clone(), options, compiler.clone(), Arc::new(MemoryKernels::default())).strict();
            let program = target.compile(&graph, &Bucket::default(), &MemoryStore::default()).unwrap();
            println!("{} {}: {} steps", arch.name, floats.name(), program.steps.len());
        }
    }
}

fn arch(vendor: Vendor, name: &str, warp: u32) -> Arch {
    Arch { vendor, name: name.to_string(), warp, shared_bytes_max: 64 << 10, multiprocessors: 104 }
}

#[test]
fn every_kernel_of_a_network_compiles_for_amd() {
    for (name, warp) in [("gfx908", 64), ("gfx90a", 64), ("gfx1030", 32)] {
        compile_for(precast_driver::Vendor::Hip, arch(Vendor::Hip, name, warp));
    }
}

#[test]
fn every_kernel_of_a_network_compiles_for_nvidia() {
    for name in ["sm_80", "sm_90"] {
        compile_for(precast_driver::Vendor::Cuda, arch(Vendor::Cuda, name, 32));
    }
}
