//! Measuring tactics on a device: each problem of a graph, several times in a row in one capture, with weights of its own each
//! time, so that they come from memory as in a model. The choice is a table, which is an input of compiling.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use precast_driver::DeviceBuffer;
use precast_ir::graph::GraphError;
use precast_ir::{Graph, Node, ValueId};
use precast_program::{Bucket, Device, MemoryStore, Program, TuningRecord, TuningTable};
use precast_tensor::{DType, Digest, Tensor, Type};

use crate::device::GpuDevice;
use crate::layout::choose_layouts;
use crate::site::{Layouts, Site};
use crate::step::StepCode;
use crate::tactics::{Tactic, candidates};
use crate::target::GpuTarget;

/// Tactics of a problem that are measured, the best by the cost model first.
const CANDIDATES_MAX: usize = 12;
/// Copies of a problem in one capture, and how many bytes their weights may have in all.
const COPIES_MAX: usize = 16;
const WEIGHTS_BYTES_MAX: usize = 256 << 20;
/// Runs before the measured ones, and measured runs.
const WARM_RUNS: usize = 4;
const RUNS: usize = 12;

/// What decides how long a node takes: itself, where its operands lie and which of them are constants, on one architecture.
pub(crate) fn problem_of(site: &Site) -> Result<String, GraphError> {
    let StepCode::Host(text) = StepCode::host(site.graph, site.node, site.layouts)? else {
        unreachable!("`host` gives a step of the host");
    };
    let is_constant: Vec<bool> = (0..site.node.inputs.len()).map(|input| site.constant(input).is_some()).collect();
    // Names of nodes are comments at the ends of lines; they cost nothing.
    let lines: Vec<&str> = text.lines().map(|line| line.split("  # ").next().unwrap_or(line)).collect();
    let digest = Digest::of_bytes(format!("{is_constant:?} {}", lines.join("\n")).as_bytes()).to_string();
    let (arch, op) = (site.arch, site.op().name());
    Ok(format!("gpu {} {} {op} {digest}", arch.name, arch.multiprocessors))
}

/// Measures every problem of a graph as the steps compute it, and gives the records. Problems that `known` has are left out.
pub fn tune(target: &GpuTarget, device: &GpuDevice, graph: &Graph, known: &TuningTable) -> Result<TuningTable, String> {
    let layouts = choose_layouts(graph, target.arch());
    let mut table = TuningTable::default();
    for node in graph.nodes() {
        let site = Site { graph, node, arch: target.arch(), layouts: &layouts };
        let tactics = candidates(&site);
        if tactics.len() < 2 {
            continue;
        }
        let problem = problem_of(&site).map_err(|error| error.to_string())?;
        if known.get(&problem).is_some() || table.get(&problem).is_some() {
            continue;
        }
        let tactics = &tactics[..tactics.len().min(CANDIDATES_MAX)];
        if let Some(record) = measure(target, device, &site, &problem, tactics)? {
            tracing::info!(problem, tactic = record.tactic, "measured tactics");
            table.add(&problem, record);
        }
    }
    Ok(table)
}

fn measure(
    target: &GpuTarget,
    device: &GpuDevice,
    site: &Site,
    problem: &str,
    tactics: &[Tactic],
) -> Result<Option<TuningRecord>, String> {
    let store = MemoryStore::default();
    let (graph, layouts, copies) = copies_of(site).map_err(|error| error.to_string())?;
    let compile = |tactic: &Tactic| -> Option<Program> {
        let record = TuningRecord { tactic: tactic.name(), samples: 0, times_ns: BTreeMap::new() };
        let mut forced = TuningTable::default();
        forced.add(problem, record);
        target.compile_with(&graph, &layouts, &forced, &Bucket::default(), &store).ok()
    };
    let programs: Vec<Option<Program>> = std::thread::scope(|scope| {
        let compiling: Vec<_> = tactics.iter().map(|tactic| scope.spawn(move || compile(tactic))).collect();
        compiling.into_iter().map(|thread| thread.join().ok().flatten()).collect()
    });
    let mut times_ns = BTreeMap::new();
    for (tactic, program) in tactics.iter().zip(programs) {
        let Some(program) = program else { continue };
        // A tactic that the device refuses is no candidate.
        if let Ok(ns) = time(device, program, &store) {
            times_ns.insert(tactic.name(), (ns / copies as f64) as u64);
        }
    }
    Ok(TuningRecord::of(times_ns, RUNS as u32))
}

/// A graph of several copies of a node, each with constants of its own; where its values lie; and how many there are.
fn copies_of(site: &Site) -> Result<(Graph, Layouts, usize), GraphError> {
    let constants = (0..site.node.inputs.len()).filter_map(|input| site.constant(input));
    let bytes: usize = constants.map(|tensor| tensor.as_bytes().len()).sum();
    let copies = (WEIGHTS_BYTES_MAX / bytes.max(1)).clamp(2, COPIES_MAX);
    let mut graph = Graph::new("");
    let mut layouts = Layouts::default();
    let place = |layouts: &mut Layouts, old: ValueId, new: ValueId| {
        if site.layouts.is_channels_last(old) {
            layouts.set_channels_last(new);
        }
    };
    let Node { op, inputs, outputs, .. } = site.node;
    let mut shared: Vec<Option<ValueId>> = Vec::new();
    for (position, &input) in inputs.iter().enumerate() {
        shared.push(site.constant(position).is_none().then(|| {
            let new = graph.add_input(format!("x{position}"), site.graph.ty(input).clone());
            place(&mut layouts, input, new);
            new
        }));
    }
    for copy in 0..copies {
        let mut operands = Vec::new();
        for (position, value) in shared.iter().enumerate() {
            operands.push(match (value, site.constant(position)) {
                (Some(value), _) => *value,
                // Scalars stay as they are: a kernel may have them in its text.
                (None, Some(tensor)) if tensor.len() > 1 => graph.add_constant(noise(&tensor.type_(), copy as u64)),
                (None, Some(tensor)) => graph.add_constant(tensor.clone()),
                (None, None) => unreachable!("an operand without a value is a constant"),
            });
        }
        let results = graph.add_node(op.clone(), &operands, &Default::default())?;
        for (at, (&old, &new)) in outputs.iter().zip(&results).enumerate() {
            place(&mut layouts, old, new);
            graph.add_output(format!("y{copy}_{at}"), new);
        }
    }
    Ok((graph, layouts, copies))
}

/// A tensor of small numbers, different for each seed.
fn noise(ty: &Type, seed: u64) -> Tensor {
    let shape = ty.shape().expect("dims are numbers when a node is measured");
    let count: usize = shape.iter().product();
    let bytes = noise_bytes(ty.dtype, count, seed);
    Tensor::new(ty.dtype, shape, Bytes::from(bytes)).expect("as many bytes as elements need")
}

/// Elements of small floats, or zeros of another type: an index must be in range.
fn noise_bytes(dtype: DType, count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    match dtype {
        DType::F32 => (0..count).flat_map(|_| next().to_le_bytes()).collect(),
        DType::F16 => (0..count).flat_map(|_| half::f16::from_f32(next()).to_le_bytes()).collect(),
        DType::BF16 => (0..count).flat_map(|_| half::bf16::from_f32(next()).to_le_bytes()).collect(),
        _ => vec![0; dtype.size_bytes() * count],
    }
}

/// Median time of one replay of a Program, in nanoseconds.
fn time(device: &GpuDevice, program: Program, store: &MemoryStore) -> Result<f64, String> {
    let program = std::sync::Arc::new(program);
    let loaded = device.load(&program, store).map_err(|error| error.to_string())?;
    let mut context = device.gpu_context();
    let failed = |error: precast_driver::DriverError| error.to_string();
    let stream = device.driver().stream().map_err(failed)?;
    let mut inputs = Vec::new();
    for port in &program.inputs {
        let dtype = DType::from_name(&port.dtype).unwrap_or(DType::F32);
        let bytes = noise_bytes(dtype, port.shape.iter().product::<u64>() as usize, 77);
        let buffer = device.driver().allocate(bytes.len()).map_err(failed)?;
        stream.upload(&buffer, 0, &bytes).map_err(failed)?;
        inputs.push(buffer);
    }
    let outputs = program.outputs.iter().map(|port| device.driver().allocate(port.bytes as usize));
    let outputs: Vec<DeviceBuffer> = outputs.collect::<Result<_, _>>().map_err(failed)?;
    let (inputs, outputs): (Vec<_>, Vec<_>) = (inputs.iter().collect(), outputs.iter().collect());
    let mut times = Vec::new();
    for run in 0..WARM_RUNS + RUNS {
        let begun = Instant::now();
        context.submit(&*loaded, &inputs, &outputs).map_err(|error| error.to_string())?;
        context.synchronize().map_err(|error| error.to_string())?;
        if run >= WARM_RUNS {
            times.push(begun.elapsed().as_nanos() as f64);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
