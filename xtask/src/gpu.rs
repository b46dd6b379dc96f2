//! Models on a GPU, on the machine that has one: every model against the CPU, step by step and replayed, then its speed with
//! inputs on the device. Writes one JSON.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use precast::{
    FloatPrecision, Graph, Model, Numerics, PassOptions, Program, Runner, RunnerOptions, Tensor, relative_error,
};
use precast_cpu::{CpuDevice, CpuTarget, Isa};
use precast_driver::{Compiler, DeviceBuffer, Library, Vendor};
use precast_gpu::{GpuDevice, GpuTarget, KernelCompiler, MemoryKernels, RuntimeCompiler, tune};
use precast_ir::ValueId;
use precast_program::{Bucket, Device, DeviceContext, LoadedProgram, MemoryStore, Target, TuningTable};
use precast_tensor::DType;
use serde::Serialize;
use serde_json::json;

use crate::manifest::{self, ModelEntry};
use crate::measure::median;
use crate::ranked::Ranking;
use crate::{fetch, inputs};

/// Batches that every model is compared at.
const BATCHES: [usize; 3] = [1, 3, 8];
/// Runs of a comparison: two step by step, the capture, and replays.
const RUNS: u64 = 5;
/// Largest relative error with values of 32 bits.
const TOLERANCE_F32: f64 = 1e-4;
/// Timed calls, of which the median counts, after some that do not.
const CALLS: usize = 300;
const WARM_CALLS: usize = 30;
/// Slowest steps that are listed.
const STEPS_LISTED: usize = 12;

/// Arguments of `cargo xtask gpu`.
#[derive(Args)]
pub struct GpuArguments {
    /// Print the results as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Only models whose names contain one of these.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Batches.
    #[arg(long, value_name = "N")]
    batch: Vec<usize>,
    /// Only fp16 values.
    #[arg(long)]
    fp16: bool,
    /// Only f32 values.
    #[arg(long, conflicts_with = "fp16")]
    fp32: bool,
    /// Do not compare.
    #[arg(long)]
    no_check: bool,
    /// Do not time.
    #[arg(long)]
    no_speed: bool,
    /// List the slowest steps.
    #[arg(long)]
    per_step: bool,
    /// Measure tactics first.
    #[arg(long)]
    tune: bool,
    /// Run on HIP by this library, which is driver and compiler in one.
    #[arg(long, value_name = "FILE")]
    hip: Option<PathBuf>,
    /// Leave this pass out.
    #[arg(long, value_name = "PASS")]
    without: Vec<String>,
    /// Where a model differs, list the first values that do.
    #[arg(long)]
    bisect: bool,
}

/// How one model did at one batch.
#[derive(Serialize)]
struct Row {
    model: String,
    batch: usize,
    floats: &'static str,
    /// The largest relative error of an output against the CPU, over all runs.
    error: Option<f64>,
    ok: bool,
    /// What went wrong.
    reason: Option<String>,
    compile_s: f64,
    load_s: f64,
    kernels: usize,
    steps: usize,
    host_steps: Vec<String>,
    /// One call with synchronise, inputs on the device.
    device_us: Option<f64>,
    /// Submit to submit, without waiting.
    submit_us: Option<f64>,
    /// One call with inputs and outputs on the host.
    host_us: Option<f64>,
    is_replayed: bool,
    slowest: Vec<(String, String, f64)>,
}

/// A device with its compiler.
pub struct Rig {
    pub device: GpuDevice,
    pub compiler: Arc<RuntimeCompiler>,
}

impl Rig {
    /// The first device of CUDA, or of a library that is HIP's driver and compiler in one.
    pub fn open(hip: Option<&Path>) -> Result<Rig> {
        let (library, compiler) = match hip {
            None => (Library::open(Vendor::Cuda)?, RuntimeCompiler::open(Vendor::Cuda)?),
            Some(path) => {
                let compiler = RuntimeCompiler::new(Compiler::open_path(Vendor::Hip, path)?)?;
                (Library::open_path(Vendor::Hip, path)?, compiler)
            }
        };
        let device = GpuDevice::new(library.device(0)?)?;
        Ok(Rig { device, compiler: Arc::new(compiler) })
    }
}

/// Runs the models.
pub fn run(arguments: &GpuArguments) -> Result<()> {
    let rig = Rig::open(arguments.hip.as_deref())?;
    eprintln!("{} · {} · {}", rig.device.driver().info().name, rig.device.arch().name, rig.compiler.version());
    let is_wanted = |model: &&ModelEntry| {
        arguments.only.is_empty() || arguments.only.iter().any(|part| model.name.contains(part.as_str()))
    };
    let models = manifest::read()?;
    let mut rows = Vec::new();
    for model in models.iter().filter(is_wanted) {
        let Ok(file) = fetch::model_file(model) else {
            eprintln!("{}: its file is not here", model.name);
            continue;
        };
        let batches = if arguments.batch.is_empty() { BATCHES.to_vec() } else { arguments.batch.clone() };
        for batch in batches.into_iter().filter(|&batch| batch == 1 || model.is_batch_dynamic) {
            for floats in [FloatPrecision::F32, FloatPrecision::F16] {
                let is_off = match floats {
                    FloatPrecision::F32 => arguments.fp16,
                    FloatPrecision::F16 => arguments.fp32,
                };
                if is_off {
                    continue;
                }
                let row = try_model(&rig, model, &file, batch, floats, arguments).unwrap_or_else(|error| Row {
                    model: model.name.clone(),
                    batch,
                    floats: floats.name(),
                    error: None,
                    ok: false,
                    reason: Some(format!("{error:#}").chars().take(1500).collect()),
                    compile_s: 0.0,
                    load_s: 0.0,
                    kernels: 0,
                    steps: 0,
                    host_steps: Vec::new(),
                    device_us: None,
                    submit_us: None,
                    host_us: None,
                    is_replayed: false,
                    slowest: Vec::new(),
                });
                print_row(&row);
                rows.push(row);
            }
        }
    }
    let failed = rows.iter().filter(|row| !row.ok).count();
    if arguments.json {
        println!("{}", json!({ "ok": failed == 0, "rows": rows }));
    }
    ensure!(failed == 0, "{failed} of {} rows failed", rows.len());
    Ok(())
}

fn print_row(row: &Row) {
    let number = |value: Option<f64>| value.map_or("-".to_string(), |value| format!("{value:.1}"));
    eprintln!(
        "{:<24} batch {:>2} {:<4} {} error {:.1e}; compiled in {:.1} s ({} kernels, {} steps, {} on the host); \
         {} µs on the device, {} µs to submit, {} µs from the host{}{}",
        row.model,
        row.batch,
        row.floats,
        if row.ok { "ok" } else { "FAILED" },
        row.error.unwrap_or(f64::NAN),
        row.compile_s,
        row.kernels,
        row.steps,
        row.host_steps.len(),
        number(row.device_us),
        number(row.submit_us),
        number(row.host_us),
        if row.is_replayed { ", replayed" } else { "" },
        row.reason.as_ref().map_or(String::new(), |reason| format!("\n    {reason}"))
    );
    for (kernel, node, us) in &row.slowest {
        eprintln!("    {us:>8.1} µs  {kernel:<40} {node}");
    }
}

fn try_model(
    rig: &Rig,
    entry: &ModelEntry,
    file: &Path,
    batch: usize,
    floats: FloatPrecision,
    arguments: &GpuArguments,
) -> Result<Row> {
    let named = inputs::make(entry, batch)?;
    let runner = Runner::new(Model::open(file)?, RunnerOptions::default())?;
    let (graph, positions): (Graph, Vec<usize>) = runner.graph(&named)?;
    let tensors: Vec<Tensor> = positions.iter().map(|&position| named[position].1.aligned()).collect();
    let numerics = Numerics { floats, ..Numerics::default() };
    let passes = PassOptions { disabled: arguments.without.clone(), numerics, ..PassOptions::default() };
    let kernels = Arc::new(MemoryKernels::default());
    let target = GpuTarget::new(rig.device.arch().clone(), passes, rig.compiler.clone(), kernels.clone());
    let target = if arguments.tune {
        let optimised = target.optimise(&graph)?;
        let begun = Instant::now();
        let table = tune(&target, &rig.device, &optimised, &TuningTable::default()).map_err(anyhow::Error::msg)?;
        eprintln!("measured {} problems in {:.1} s", table.len(), begun.elapsed().as_secs_f64());
        target.with_tuning(table)
    } else {
        target
    };
    let store = MemoryStore::default();
    let begun = Instant::now();
    let program = Arc::new(target.compile(&graph, &Bucket::default(), &store)?);
    let compile_s = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let loaded = rig.device.load(&program, &store)?;
    let load_s = begun.elapsed().as_secs_f64();
    let mut row = Row {
        model: entry.name.clone(),
        batch,
        floats: floats.name(),
        error: None,
        ok: true,
        reason: None,
        compile_s,
        load_s,
        kernels: kernels.len(),
        steps: program.steps.len(),
        host_steps: program
            .steps
            .iter()
            .map(|step| step.kernel.clone())
            .filter(|name| name.starts_with("host."))
            .collect(),
        device_us: None,
        submit_us: None,
        host_us: None,
        is_replayed: false,
        slowest: Vec::new(),
    };
    if !arguments.no_check {
        let expected: Vec<Tensor> = runner.run(&named)?.into_iter().map(|(_, tensor)| tensor).collect();
        let tolerance = match floats {
            FloatPrecision::F32 => entry.tolerance().max(TOLERANCE_F32),
            FloatPrecision::F16 => entry.tolerance_f16(),
        };
        let ranking = entry.ranked_by.map(|score_column| Ranking { score_column, tolerance });
        let error = compare(rig, &program, &*loaded, &tensors, &expected, ranking)?;
        row.error = Some(error);
        row.ok = error <= tolerance;
        if arguments.bisect && !row.ok {
            row.reason = Some(first_differences(rig, &target, &graph, &tensors, tolerance)?);
        }
    }
    if !arguments.no_speed {
        time(rig, &program, &*loaded, &tensors, &mut row)?;
    }
    if arguments.per_step {
        row.slowest = slowest_steps(rig, &program, &*loaded, &tensors)?;
    }
    Ok(row)
}

/// The first values of a graph that differ from the CPU's by more than they may.
fn first_differences(
    rig: &Rig,
    target: &GpuTarget,
    graph: &Graph,
    tensors: &[Tensor],
    tolerance: f64,
) -> Result<String> {
    const LISTED: usize = 12;
    let cpu = CpuTarget::new(Isa::detect(), 1, PassOptions::default());
    let mut open = target.fuse(graph)?;
    let values: Vec<(ValueId, String)> = open
        .nodes()
        .iter()
        .filter(|node| open.ty(node.outputs[0]).dtype == DType::F32)
        .map(|node| (node.outputs[0], format!("{} {} {}", node.op.name(), open.ty(node.outputs[0]), node.provenance)))
        .collect();
    for (at, (value, _)) in values.iter().enumerate() {
        open.add_output(format!("value{at}"), *value);
    }
    let store = MemoryStore::default();
    let run = |program: Program, device: &dyn Device| -> Result<Vec<Vec<u8>>> {
        let program = Arc::new(program);
        let loaded = device.load(&program, &store)?;
        let bytes: Vec<&[u8]> = tensors.iter().map(Tensor::as_bytes).collect();
        let mut outputs: Vec<Vec<u8>> = program.outputs.iter().map(|port| vec![0xff; port.bytes as usize]).collect();
        let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        device.context(program.arena_bytes).run(&*loaded, &bytes, &mut slices)?;
        Ok(outputs)
    };
    let expected = run(cpu.compile_optimised(&open, &Bucket::default(), &store)?, &CpuDevice::new(1))?;
    let narrow = target.narrow(&open)?;
    let program = target.compile_optimised(&narrow, &Bucket::default(), &store)?;
    let found = run(program, &rig.device)?;
    let own = graph.outputs().len();
    let mut text = String::new();
    let floats = |bytes: &[u8]| -> Vec<f64> {
        bytes.chunks_exact(4).map(|word| f64::from(f32::from_le_bytes([word[0], word[1], word[2], word[3]]))).collect()
    };
    let mut count = 0;
    for (at, (_, name)) in values.iter().enumerate() {
        let (found, expected) = (floats(&found[own + at]), floats(&expected[own + at]));
        let error = relative_error(&found, &expected);
        if (error.is_nan() || error > tolerance) && count < LISTED {
            let most = expected.iter().fold(0f64, |most, value| most.max(value.abs()));
            text.push_str(&format!("value {at} of {}: {error:.1e} (up to {most:.1e}) {name}\n", values.len()));
            count += 1;
        }
    }
    Ok(text)
}

/// The largest relative error over ordinary and replayed runs, with outputs poisoned before each.
fn compare(
    rig: &Rig,
    program: &Program,
    loaded: &dyn LoadedProgram,
    tensors: &[Tensor],
    expected: &[Tensor],
    ranking: Option<Ranking>,
) -> Result<f64> {
    let mut context = rig.device.context(0);
    let bytes: Vec<&[u8]> = tensors.iter().map(Tensor::as_bytes).collect();
    let mut worst = 0f64;
    for _ in 0..RUNS {
        let mut outputs: Vec<Vec<u8>> = program.outputs.iter().map(|port| vec![0xff; port.bytes as usize]).collect();
        let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        context.run(loaded, &bytes, &mut slices)?;
        for (found, expected) in outputs.into_iter().zip(expected) {
            let found = Tensor::new(expected.dtype(), expected.shape().to_vec(), found.into())?;
            let found = ranking.map_or(Ok(found.clone()), |ranking| ranking.align(&found, expected))?;
            let error = relative_error(&found.to_f64_vec(), &expected.to_f64_vec());
            worst = worst.max(if error.is_nan() { f64::INFINITY } else { error });
        }
    }
    Ok(worst)
}

fn time(rig: &Rig, program: &Program, loaded: &dyn LoadedProgram, tensors: &[Tensor], row: &mut Row) -> Result<()> {
    let mut context = rig.device.gpu_context();
    let stream = rig.device.driver().stream()?;
    let buffer = |bytes: usize| rig.device.driver().allocate(bytes);
    let mut device_inputs = Vec::new();
    for tensor in tensors {
        let to = buffer(tensor.as_bytes().len())?;
        stream.upload(&to, 0, tensor.as_bytes())?;
        device_inputs.push(to);
    }
    let device_outputs: Vec<DeviceBuffer> =
        program.outputs.iter().map(|port| buffer(port.bytes as usize)).collect::<Result<_, _>>()?;
    let (ins, outs): (Vec<&DeviceBuffer>, Vec<&DeviceBuffer>) =
        (device_inputs.iter().collect(), device_outputs.iter().collect());
    if row.host_steps.is_empty() {
        for _ in 0..WARM_CALLS {
            context.submit(loaded, &ins, &outs)?;
        }
        context.synchronize()?;
        let mut times = Vec::new();
        for _ in 0..CALLS {
            let begun = Instant::now();
            context.submit(loaded, &ins, &outs)?;
            context.synchronize()?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        row.device_us = Some(median(times));
        let mut times = Vec::new();
        for _ in 0..CALLS / 10 {
            // Each by itself: one that is interrupted, or wakes the driver after the wait, is not what a submit costs.
            for _ in 0..10 {
                let begun = Instant::now();
                context.submit(loaded, &ins, &outs)?;
                times.push(begun.elapsed().as_secs_f64() * 1e6);
            }
            context.synchronize()?;
        }
        row.submit_us = Some(median(times));
    }
    let bytes: Vec<&[u8]> = tensors.iter().map(Tensor::as_bytes).collect();
    let mut outputs: Vec<Vec<u8>> = program.outputs.iter().map(|port| vec![0; port.bytes as usize]).collect();
    let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    let mut times = Vec::new();
    for call in 0..CALLS {
        let begun = Instant::now();
        context.run(loaded, &bytes, &mut slices)?;
        if call >= WARM_CALLS {
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
    }
    row.host_us = Some(median(times));
    row.is_replayed = context.capture_state(loaded).0;
    Ok(())
}

fn slowest_steps(
    rig: &Rig,
    program: &Program,
    loaded: &dyn LoadedProgram,
    tensors: &[Tensor],
) -> Result<Vec<(String, String, f64)>> {
    let mut context = rig.device.context(0);
    let bytes: Vec<&[u8]> = tensors.iter().map(Tensor::as_bytes).collect();
    let mut outputs: Vec<Vec<u8>> = program.outputs.iter().map(|port| vec![0; port.bytes as usize]).collect();
    let mut least: Vec<f64> = vec![f64::INFINITY; program.steps.len()];
    for _ in 0..10 {
        let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        let times = context.run_timed(loaded, &bytes, &mut slices)?;
        for (least, time) in least.iter_mut().zip(times) {
            *least = least.min(time.as_secs_f64() * 1e6);
        }
    }
    let mut order: Vec<usize> = (0..least.len()).collect();
    order.sort_by(|&a, &b| least[b].total_cmp(&least[a]));
    let named = |&at: &usize| {
        let step = &program.steps[at];
        (step.kernel.clone(), step.provenance.join(","), least[at])
    };
    Ok(order.iter().take(STEPS_LISTED).map(named).collect())
}
