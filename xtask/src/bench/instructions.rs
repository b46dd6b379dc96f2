//! Instruction counts of a fixed set of kernels, by callgrind: they do not depend on what else the machine does, so a change
//! of one per cent is a change. Counted for AVX2 and for the portable path; valgrind knows no AVX-512.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use precast::Isa;
use precast_cpu::{CpuDevice, CpuTarget};
use precast_ir::attr::NoConstants;
use precast_ir::graph::GraphCopy;
use precast_ir::{Graph, text};
use precast_program::{Bucket, Device, DeviceContext, LoadedProgram, MemoryStore, Target};
use precast_tensor::Tensor;
use serde_json::json;

use crate::paths;

/// Kernels: a name, and the Graph of one node. Inputs whose names begin with `w` are constants.
const KERNELS: &[(&str, &str)] = &[
    (
        "gemm",
        r#"graph ""(%0 "x": f32[64,256], %1 "w": f32[256,192]) {
  %2 = matmul(%0, %1) {transpose_a=false, transpose_b=false} : f32[64,192]
  return "y" %2
}
"#,
    ),
    (
        "gemv",
        r#"graph ""(%0 "x": f32[1,512], %1 "w": f32[512,512]) {
  %2 = matmul(%0, %1) {transpose_a=false, transpose_b=false} : f32[1,512]
  return "y" %2
}
"#,
    ),
    (
        "gemm_batched",
        r#"graph ""(%0 "x": f32[8,32,48], %1 "y": f32[8,32,48]) {
  %2 = matmul(%0, %1) {transpose_a=false, transpose_b=true} : f32[8,32,32]
  return "y" %2
}
"#,
    ),
    (
        "conv_3x3",
        r#"graph ""(%0 "x": f32[1,32,28,28], %1 "w": f32[32,32,3,3]) {
  %2 = conv(%0, %1) {stride=[1, 1], pad_lo=[1, 1], pad_hi=[1, 1], dilation=[1, 1], groups=1} : f32[1,32,28,28]
  return "y" %2
}
"#,
    ),
    (
        "conv_1x1",
        r#"graph ""(%0 "x": f32[1,64,28,28], %1 "w": f32[64,64,1,1]) {
  %2 = conv(%0, %1) {stride=[1, 1], pad_lo=[0, 0], pad_hi=[0, 0], dilation=[1, 1], groups=1} : f32[1,64,28,28]
  return "y" %2
}
"#,
    ),
    (
        "conv_depthwise",
        r#"graph ""(%0 "x": f32[1,64,28,28], %1 "w": f32[64,1,3,3]) {
  %2 = conv(%0, %1) {stride=[1, 1], pad_lo=[1, 1], pad_hi=[1, 1], dilation=[1, 1], groups=64} : f32[1,64,28,28]
  return "y" %2
}
"#,
    ),
    (
        "softmax",
        r#"graph ""(%0 "x": f32[64,128]) {
  %1 = softmax(%0) {axis=1, log=false} : f32[64,128]
  return "y" %1
}
"#,
    ),
    (
        "layer_norm",
        r#"graph ""(%0 "x": f32[64,256], %1 "w": f32[256]) {
  %2 = layer_norm(%0, %1, %1) {axis=1, epsilon=1e-5} : f32[64,256]
  return "y" %2
}
"#,
    ),
    (
        "gelu",
        r#"graph ""(%0 "x": f32[64,256]) {
  %1 = unary.gelu_erf(%0) {alpha=0.0, beta=0.0} : f32[64,256]
  return "y" %1
}
"#,
    ),
    (
        "add",
        r#"graph ""(%0 "x": f32[64,256], %1 "y": f32[256]) {
  %2 = binary.add(%0, %1) : f32[64,256]
  return "y" %2
}
"#,
    ),
    (
        "reduce_mean",
        r#"graph ""(%0 "x": f32[64,256]) {
  %1 = reduce.mean(%0) {axes=[1], keep_dims=true} : f32[64,1]
  return "y" %1
}
"#,
    ),
    (
        "transpose",
        r#"graph ""(%0 "x": f32[64,12,32]) {
  %1 = transpose(%0) {perm=[1, 0, 2]} : f32[12,64,32]
  return "y" %1
}
"#,
    ),
    (
        "concat",
        r#"graph ""(%0 "x": f32[64,16], %1 "y": f32[64,16], %2 "z": f32[64,16]) {
  %3 = concat(%0, %1, %2) {axis=1} : f32[64,48]
  return "y" %3
}
"#,
    ),
];
/// Instruction sets that valgrind can run.
const SETS: &[&str] = &["avx2", "portable"];
/// Changes of less are not shown.
const NOISE: f64 = 0.005;

/// Arguments of `cargo xtask bench instructions`.
#[derive(Args)]
pub struct InstructionsArguments {
    /// Print the results as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Write the counts to the record that later runs are compared with.
    #[arg(long)]
    record: bool,
    /// Only run this kernel once with this instruction set; started under callgrind by the command itself.
    #[arg(long, num_args = 2, value_names = ["KERNEL", "ISA"], hide = true)]
    once: Vec<String>,
}

/// Counts by kernel and instruction set.
type Counts = BTreeMap<String, u64>;

/// Counts, compares, records.
pub fn run(arguments: &InstructionsArguments) -> Result<()> {
    if let [kernel, isa] = &arguments.once[..] {
        return run_once(kernel, isa);
    }
    let recorded: Counts =
        fs::read_to_string(record_path()).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let mut counts = Counts::new();
    let mut worse = Vec::new();
    for (kernel, _) in KERNELS {
        for isa in SETS {
            let name = format!("{kernel}.{isa}");
            let count = count(kernel, isa)?;
            let before = recorded.get(&name).copied();
            let change = before.map_or(0.0, |before| count as f64 / before as f64 - 1.0);
            let note = if before.is_none() { "new".to_string() } else { format!("{:+.1} %", change * 100.0) };
            eprintln!("{name:<28} {count:>12} {}", if change.abs() < NOISE && before.is_some() { "" } else { &note });
            if change > NOISE {
                worse.push(format!("{name} {note}"));
            }
            counts.insert(name, count);
        }
    }
    if arguments.record {
        fs::write(record_path(), serde_json::to_string_pretty(&counts)? + "\n")?;
    }
    if arguments.json {
        println!("{}", json!({ "counts": counts, "worse": worse }));
    }
    ensure!(worse.is_empty() || arguments.record, "more instructions than recorded: {}", worse.join(", "));
    Ok(())
}

fn record_path() -> PathBuf {
    paths::root().join("docs").join("instructions.json")
}

/// Instructions of one run, by callgrind.
fn count(kernel: &str, isa: &str) -> Result<u64> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("callgrind.out");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*measured_run*"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe()?)
        .args(["bench", "instructions", "--once", kernel, isa])
        .output()
        .context("cannot start valgrind; install the package of that name")?;
    ensure!(output.status.success(), "{kernel} {isa}: {}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&out)?;
    let line = text.lines().find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")));
    let count =
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).context("callgrind gave no totals")?;
    ensure!(count > 0, "{kernel} {isa}: nothing was counted");
    Ok(count)
}

fn run_once(kernel: &str, isa: &str) -> Result<()> {
    let Some((_, source)) = KERNELS.iter().find(|(name, _)| *name == kernel) else { bail!("no kernel '{kernel}'") };
    let isa = Isa::from_name(isa).context("no such instruction set")?;
    let graph = with_constants(&text::parse(source, &NoConstants)?)?;
    let target = CpuTarget::new(isa, 1, Default::default());
    let device = CpuDevice::new(1);
    let store = MemoryStore::default();
    let program = target.compile(&graph, &Bucket::default(), &store)?;
    let loaded = device.load(&std::sync::Arc::new(program), &store)?;
    let mut context = device.context(loaded.program().arena_bytes);
    let inputs: Vec<Tensor> =
        graph.inputs().iter().map(|&input| filled(graph.ty(input).shape())).collect::<Result<_>>()?;
    let inputs: Vec<&[u8]> = inputs.iter().map(Tensor::as_bytes).collect();
    let mut outputs: Vec<precast::OutputBuffer> =
        loaded.program().outputs.iter().map(|port| precast::OutputBuffer::new(port.bytes as usize)).collect();
    let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(precast::OutputBuffer::as_bytes_mut).collect();
    context.run(&*loaded, &inputs, &mut slices)?;
    measured_run(context.as_mut(), &*loaded, &inputs, &mut slices)
}

/// What callgrind counts.
#[inline(never)]
fn measured_run(
    context: &mut dyn DeviceContext,
    program: &dyn LoadedProgram,
    inputs: &[&[u8]],
    outputs: &mut [&mut [u8]],
) -> Result<()> {
    context.run(program, inputs, outputs)?;
    Ok(())
}

/// The Graph with the inputs that stand for weights as constants.
fn with_constants(graph: &Graph) -> Result<Graph> {
    let mut copy = GraphCopy::new(graph);
    for &input in graph.inputs() {
        let name = graph.input_name(input);
        let new = match name.starts_with('w') {
            true => copy.new.add_constant(filled(graph.ty(input).shape())?),
            false => copy.new.add_input(name, graph.ty(input).clone()),
        };
        copy.set(input, new);
    }
    for node in graph.nodes() {
        copy.node(node)?;
    }
    Ok(copy.finish())
}

/// Numbers between -1 and 1, the same every time.
fn filled(shape: Option<Vec<usize>>) -> Result<Tensor> {
    let shape = shape.context("every dim is a number")?;
    let count: usize = shape.iter().product();
    Ok(Tensor::from_vec(shape, (0..count).map(|at| (at as f32 * 0.618).sin()).collect())?)
}
