//! Captures on the fake driver: when they are made, what they do with moved, misplaced and padded buffers, and that a
//! failure of any call costs a capture, never an answer.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use precast_driver::{DeviceBuffer, DriverError, Library, Vendor};
use precast_gpu::{CaptureLimits, GpuContext, GpuMemory, GpuStream};
use precast_ir::Graph;
use precast_passes::FloatPrecision;
use precast_program::{
    AxisSpan, BoxCopy, Bucket, CallInputs, CallOutputs, Device, DeviceContext, DeviceMemory, DeviceRun, DeviceSlice,
    HostSlice, HostSliceMut, IoPath, LaunchPath, LoadedProgram, PadContent, PoisonReason, Port, RunError, StepsReason,
    Target,
};
use precast_tensor::Tensor;
use rig::{Rig, assert_answers, canaries, graph, inputs};

/// Two outputs, one with a row a row, one with a number a row.
const ROWS: &str = r#"graph "rows"(%0 "x": f32[4,6], %1 "s": f32[1]) {
  %2 = binary.mul(%0, %1) : f32[4,6]
  %3 = unary.tanh(%2) {alpha=0.0, beta=0.0} : f32[4,6]
  %4 = reduce.sum(%3) {axes=[1], keep_dims=false} : f32[4]
  return "y" %3, "t" %4
}
"#;

const TOLERANCE: f64 = 1e-5;
const OUT_OF_MEMORY: i32 = 2;
const CAPTURE_INVALIDATED: i32 = 901;
/// After it every call on the device fails.
const ILLEGAL_ADDRESS: i32 = 700;
/// Calls of one function that fail in turn.
const CALLS_FAILED_MAX: u32 = 12;

fn eager(reason: StepsReason) -> LaunchPath {
    LaunchPath::Steps(reason)
}

fn poisoned(why: PoisonReason) -> LaunchPath {
    eager(StepsReason::Poisoned(why))
}

/// One run on the host's memory with canaries in its outputs, compared with reference evaluation.
fn run_host(
    context: &mut GpuContext,
    loaded: &dyn LoadedProgram,
    graph: &Graph,
    seed: u64,
) -> Result<DeviceRun, RunError> {
    let inputs = inputs(graph, seed);
    let bytes: Vec<&[u8]> = inputs.iter().map(Tensor::as_bytes).collect();
    let mut outputs = canaries(loaded.program());
    let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    let run = context.run(loaded, &bytes, &mut slices)?;
    assert_answers(graph, &inputs, &outputs, TOLERANCE);
    Ok(run)
}

/// Buffers of a Program on the device, each with `offset` bytes before it.
struct Buffers {
    inputs: Vec<GpuMemory>,
    outputs: Vec<GpuMemory>,
    offset: usize,
}

impl Buffers {
    fn new(rig: &Rig, loaded: &dyn LoadedProgram, offset: usize) -> Result<Buffers, RunError> {
        let refused = |error: DriverError| RunError::Device(error.to_string());
        let allocate = |port: &Port| -> Result<GpuMemory, RunError> {
            Ok(rig.device().driver().allocate(port.bytes as usize + offset).map_err(refused)?.into())
        };
        let program = loaded.program();
        let inputs = program.inputs.iter().map(allocate).collect::<Result<_, _>>()?;
        let outputs = program.outputs.iter().map(allocate).collect::<Result<_, _>>()?;
        Ok(Buffers { inputs, outputs, offset })
    }

    fn slices<'a>(&self, memories: &'a [GpuMemory]) -> Vec<DeviceSlice<'a>> {
        let slice = |memory: &'a GpuMemory| DeviceSlice::exact(memory, self.offset, memory.bytes() - self.offset);
        memories.iter().map(slice).collect()
    }

    /// Writes inputs, runs, and compares what the outputs hold.
    fn run(
        &self,
        context: &mut GpuContext,
        loaded: &dyn LoadedProgram,
        graph: &Graph,
        seed: u64,
    ) -> Result<DeviceRun, RunError> {
        let inputs = inputs(graph, seed);
        for (memory, tensor) in self.inputs.iter().zip(&inputs) {
            memory.write(self.offset, tensor.as_bytes())?;
        }
        for (memory, canary) in self.outputs.iter().zip(canaries(loaded.program())) {
            memory.write(self.offset, &canary)?;
        }
        let (from, to) = (self.slices(&self.inputs), self.slices(&self.outputs));
        let run = context.call(loaded, CallInputs::Device(&from), CallOutputs::Device(&to), None)?;
        context.completion()?.wait()?;
        let read = |memory: &GpuMemory| {
            let mut bytes = vec![0; memory.bytes() - self.offset];
            memory.read(self.offset, &mut bytes).map(|()| bytes)
        };
        let outputs = self.outputs.iter().map(read).collect::<Result<Vec<Vec<u8>>, _>>()?;
        assert_answers(graph, &inputs, &outputs, TOLERANCE);
        Ok(run)
    }
}

fn instantiated(rig: &Rig, vendor: Vendor) -> u32 {
    let symbols = Library::symbols(vendor);
    let instantiate = symbols.iter().find(|symbol| symbol.contains("GraphInstantiate")).unwrap();
    rig.fake.calls(instantiate)
}

#[test]
fn two_runs_are_ordinary_the_third_is_captured_and_the_rest_replayed() {
    for vendor in Vendor::ALL {
        let rig = Rig::new(vendor);
        let graph = graph(ROWS);
        let loaded = rig.load(&graph);
        let mut context = rig.device().gpu_context();
        let paths: Vec<LaunchPath> =
            (0..5).map(|seed| run_host(&mut context, &*loaded, &graph, seed).unwrap().launch).collect();
        let cold = eager(StepsReason::Cold);
        let expected = [cold, cold, LaunchPath::Captured, LaunchPath::Replayed, LaunchPath::Replayed];
        assert_eq!(paths, expected);
        context.set_capturing(false);
        assert_eq!(run_host(&mut context, &*loaded, &graph, 5).unwrap().launch, eager(StepsReason::Off));
        context.set_capturing(true);
        assert_eq!(run_host(&mut context, &*loaded, &graph, 6).unwrap().launch, LaunchPath::Replayed);
        drop((context, loaded));
        rig.assert_clean();
    }
}

#[test]
fn a_failed_capture_poisons_its_slot_alone_and_is_tried_again_later() {
    let cases: [(&str, PoisonReason); 6] = [
        ("StreamBeginCapture", PoisonReason::Record),
        ("StreamEndCapture", PoisonReason::Record),
        ("GraphGetNodes", PoisonReason::Instantiate),
        ("GraphInstantiate", PoisonReason::Instantiate),
        ("GraphUpload", PoisonReason::Instantiate),
        ("GraphLaunch", PoisonReason::Launch),
    ];
    for vendor in Vendor::ALL {
        let rig = Rig::new(vendor);
        let graph = graph(ROWS);
        let loaded = rig.load(&graph);
        for (name, why) in cases {
            let Some(symbol) = Library::symbols(vendor).into_iter().find(|symbol| symbol.contains(name)) else {
                assert!(vendor == Vendor::Hip && name == "GraphUpload", "{name}");
                continue;
            };
            let mut context = rig.device().gpu_context();
            let buffers = Buffers::new(&rig, &*loaded, 0).unwrap();
            for seed in 0..2 {
                assert_eq!(run_host(&mut context, &*loaded, &graph, seed).unwrap().launch, eager(StepsReason::Cold));
            }
            for expected_seconds in [1, 2, 4] {
                rig.fake.inject(symbol, 1, CAPTURE_INVALIDATED);
                assert_eq!(run_host(&mut context, &*loaded, &graph, 2).unwrap().launch, poisoned(why), "{symbol}");
                // The other mode is not affected.
                let other = buffers.run(&mut context, &*loaded, &graph, 3).unwrap().launch;
                assert!(!matches!(other, LaunchPath::Steps(StepsReason::Poisoned(_))), "{symbol}: {other:?}");
                rig.pass_seconds(expected_seconds - 1);
                assert_eq!(run_host(&mut context, &*loaded, &graph, 4).unwrap().launch, poisoned(why), "{symbol}");
                rig.pass_seconds(1);
                for seed in 0..2 {
                    let run = run_host(&mut context, &*loaded, &graph, seed).unwrap();
                    assert_eq!(run.launch, eager(StepsReason::Cold), "{symbol}");
                }
            }
            assert_eq!(run_host(&mut context, &*loaded, &graph, 5).unwrap().launch, LaunchPath::Captured, "{symbol}");
            assert_eq!(run_host(&mut context, &*loaded, &graph, 6).unwrap().launch, LaunchPath::Replayed, "{symbol}");
            rig.fake.inject(
                Library::symbols(vendor).into_iter().find(|symbol| symbol.contains("GraphLaunch")).unwrap(),
                1,
                CAPTURE_INVALIDATED,
            );
            let run = run_host(&mut context, &*loaded, &graph, 7).unwrap();
            assert_eq!(run.launch, poisoned(PoisonReason::Launch), "{symbol}");
            assert!(context.capture_state(&*loaded).1.is_some());
        }
        drop(loaded);
        rig.assert_clean();
    }
}

/// Runs on the host's memory, on the device's, and on buffers that kernels cannot take: each until it is replayed.
fn scenario(rig: &Rig, loaded: &dyn LoadedProgram, graph: &Graph) -> Result<(), RunError> {
    let mut context = rig.device().gpu_context();
    for seed in 0..4 {
        run_host(&mut context, loaded, graph, seed)?;
    }
    for offset in [0, 4] {
        let buffers = Buffers::new(rig, loaded, offset)?;
        for seed in 0..4 {
            buffers.run(&mut context, loaded, graph, seed)?;
        }
    }
    Ok(())
}

#[test]
fn whatever_call_fails_no_answer_is_wrong_and_nothing_is_left_behind() {
    for vendor in Vendor::ALL {
        let rig = Rig::new(vendor);
        let graph = graph(ROWS);
        let loaded = rig.load(&graph);
        scenario(&rig, &*loaded, &graph).unwrap();
        let live = rig.fake.live();
        for symbol in Library::symbols(vendor) {
            let before = rig.fake.calls(symbol);
            scenario(&rig, &*loaded, &graph).unwrap();
            let calls = rig.fake.calls(symbol) - before;
            let (mut answered, mut refused) = (0, 0);
            for nth in 1..=calls.min(CALLS_FAILED_MAX) {
                for code in [OUT_OF_MEMORY, CAPTURE_INVALIDATED, ILLEGAL_ADDRESS] {
                    rig.fake.inject(symbol, nth, code);
                    match scenario(&rig, &*loaded, &graph) {
                        Ok(()) => answered += 1,
                        Err(RunError::DeviceLost(reason)) => {
                            assert!(code == ILLEGAL_ADDRESS && reason.starts_with(symbol), "{symbol}: {reason}");
                        }
                        Err(RunError::Device(reason)) => {
                            assert!(reason.starts_with(symbol), "{symbol}, call {nth}: {reason}");
                            refused += 1;
                        }
                        Err(error) => panic!("{symbol}, call {nth}: {error}"),
                    }
                    rig.pass_seconds(1000);
                    let case = format!("{symbol}, call {nth}, code {code}");
                    assert_eq!((rig.fake.live(), rig.fake.violations()), (live.clone(), Vec::new()), "{case}");
                }
            }
            let is_capture = ["Capture", "Graph"].iter().any(|word| symbol.contains(word));
            assert!(!is_capture || refused == 0, "{symbol}: {refused} runs were refused, {answered} were answered");
        }
        drop(loaded);
        rig.assert_clean();
    }
}

#[test]
fn moved_buffers_cost_a_copy_and_no_wait_and_no_capture() {
    for vendor in Vendor::ALL {
        let rig = Rig::new(vendor);
        let graph = graph(ROWS);
        let loaded = rig.load(&graph);
        let mut context = rig.device().gpu_context();
        let all: Vec<Buffers> = (0..5).map(|_| Buffers::new(&rig, &*loaded, 0).unwrap()).collect();
        for (run, buffers) in all.iter().cycle().take(60).enumerate() {
            let launch = buffers.run(&mut context, &*loaded, &graph, run as u64).unwrap().launch;
            assert_eq!(launch == LaunchPath::Replayed, run > 2, "run {run}: {launch:?}");
        }
        assert_eq!(instantiated(&rig, vendor), 1);
        // Without waiting for anything, more runs than the ring has slots.
        let stream_waits = |rig: &Rig| {
            let symbols = Library::symbols(vendor).into_iter();
            symbols
                .filter(|symbol| symbol.contains("StreamSynchronize"))
                .map(|symbol| rig.fake.calls(symbol))
                .sum::<u32>()
        };
        let before = stream_waits(&rig);
        for buffers in all.iter().cycle().take(3_000) {
            let (from, to): (Vec<&DeviceBuffer>, Vec<&DeviceBuffer>) = (
                buffers.inputs.iter().map(GpuMemory::buffer).collect(),
                buffers.outputs.iter().map(GpuMemory::buffer).collect(),
            );
            let run = context.submit(&*loaded, &from, &to).unwrap();
            assert_eq!((run.launch, run.inputs, run.outputs), (LaunchPath::Replayed, IoPath::Direct, IoPath::Direct));
        }
        assert_eq!(stream_waits(&rig), before);
        context.synchronize().unwrap();
        drop((all, context, loaded));
        rig.assert_clean();
    }
}

#[test]
fn buffers_that_kernels_cannot_take_are_moved_and_direct_captures_come_back() {
    let rig = Rig::new(Vendor::Cuda);
    let graph = graph(ROWS);
    let loaded = rig.load(&graph);
    let mut context = rig.device().gpu_context();
    let aligned = Buffers::new(&rig, &*loaded, 0).unwrap();
    let shifted: Vec<Buffers> = [1, 4, 8].map(|offset| Buffers::new(&rig, &*loaded, offset).unwrap()).into();
    for seed in 0..4 {
        assert_eq!(aligned.run(&mut context, &*loaded, &graph, seed).unwrap().inputs, IoPath::Direct);
    }
    for (seed, buffers) in shifted.iter().cycle().take(20).enumerate() {
        let run = buffers.run(&mut context, &*loaded, &graph, seed as u64).unwrap();
        assert_eq!((run.inputs, run.outputs), (IoPath::Rows, IoPath::Rows));
    }
    // Twenty rebinds in 64 runs: rows are moved for a while, whatever lies where.
    let mut until_direct = 0;
    loop {
        let (from, to): (Vec<&DeviceBuffer>, Vec<&DeviceBuffer>) = (
            aligned.inputs.iter().map(GpuMemory::buffer).collect(),
            aligned.outputs.iter().map(GpuMemory::buffer).collect(),
        );
        let run = context.submit(&*loaded, &from, &to).unwrap();
        if run.inputs == IoPath::Direct {
            assert_eq!(run.launch, LaunchPath::Replayed, "the direct capture is still there");
            break;
        }
        until_direct += 1;
    }
    assert!((900..1100).contains(&until_direct), "{until_direct}");
    assert_eq!(instantiated(&rig, Vendor::Cuda), 2);
    drop((aligned, shifted, context, loaded));
    rig.assert_clean();
}

#[test]
fn an_output_that_shares_bytes_with_an_input_is_written_last() {
    let rig = Rig::new(Vendor::Cuda);
    let graph = graph(ROWS);
    let loaded = rig.load(&graph);
    let mut context = rig.device().gpu_context();
    for seed in 0..6 {
        let buffers = Buffers::new(&rig, &*loaded, 0).unwrap();
        let tensors = inputs(&graph, seed);
        for (memory, tensor) in buffers.inputs.iter().zip(&tensors) {
            memory.write(0, tensor.as_bytes()).unwrap();
        }
        let from = buffers.slices(&buffers.inputs);
        // `y` is written over `x`.
        let to = [from[0], buffers.slices(&buffers.outputs)[1]];
        let run = context.call(&*loaded, CallInputs::Device(&from), CallOutputs::Device(&to), None).unwrap();
        assert_eq!((run.inputs, run.outputs), (IoPath::Direct, IoPath::Rows));
        context.synchronize().unwrap();
        let mut outputs = canaries(loaded.program());
        buffers.inputs[0].read(0, &mut outputs[0]).unwrap();
        buffers.outputs[1].read(0, &mut outputs[1]).unwrap();
        assert_answers(&graph, &tensors, &outputs, TOLERANCE);
    }
    drop((context, loaded));
    rig.assert_clean();
}

/// How the first rows of a request lie in a Program of four.
fn rows(rows: usize, row_bytes: usize, is_input: bool) -> BoxCopy {
    let (source, target) = if is_input { (rows, 4) } else { (4, rows) };
    let pad = if is_input { 4 - rows } else { 0 };
    let span = AxisSpan { source, target, source_start: 0, target_start: 0, count: rows, pad };
    BoxCopy::new(&[span, AxisSpan::whole(row_bytes)], 1)
}

#[test]
fn rows_on_the_host_are_padded_on_the_way_to_the_device() {
    for vendor in Vendor::ALL {
        let rig = Rig::new(vendor);
        let whole = graph(ROWS);
        let loaded = rig.load(&whole);
        let mut context = rig.device().gpu_context();
        assert!(context.gathers_rows());
        for (run, count) in [3, 1, 2, 3, 4, 1, 3, 2].into_iter().enumerate() {
            let part = graph(&ROWS.replace("[4", &format!("[{count}")));
            let tensors = inputs(&part, run as u64);
            let (x_rows, y_rows, t_rows) = (rows(count, 24, true), rows(count, 24, false), rows(count, 4, false));
            let from = [
                HostSlice { bytes: tensors[0].as_bytes(), rows: Some(&x_rows) },
                HostSlice { bytes: tensors[1].as_bytes(), rows: None },
            ];
            let mut outputs = vec![vec![0xa5; count * 24], vec![0xa5; count * 4]];
            let (y, t) = outputs.split_at_mut(1);
            let is_unused = run == 6;
            let mut to = [
                HostSliceMut { bytes: &mut y[0], rows: Some(&y_rows), is_unused },
                HostSliceMut { bytes: &mut t[0], rows: Some(&t_rows), is_unused: false },
            ];
            let inputs = CallInputs::HostRows(&from, PadContent::LastRow);
            let run_of = context.call(&*loaded, inputs, CallOutputs::HostRows(&mut to), None).unwrap();
            assert_eq!((run_of.inputs, run_of.outputs), (IoPath::Host, IoPath::Host));
            assert_eq!(run_of.launch == LaunchPath::Replayed, run > 2);
            if is_unused {
                assert_eq!(outputs[0], vec![0xa5; count * 24]);
            } else {
                assert_answers(&part, &tensors, &outputs, TOLERANCE);
            }
        }
        let (small, x_rows) = ([0; 24], rows(3, 24, true));
        let from = [HostSlice { bytes: &small, rows: Some(&x_rows) }, HostSlice { bytes: &small[..4], rows: None }];
        let (mut y, mut t) = ([0; 96], [0; 12]);
        let mut to = [
            HostSliceMut { bytes: &mut y, rows: None, is_unused: false },
            HostSliceMut { bytes: &mut t, rows: None, is_unused: false },
        ];
        let mut call = |from: &[HostSlice<'_>]| {
            let inputs = CallInputs::HostRows(from, PadContent::LastRow);
            context.call(&*loaded, inputs, CallOutputs::HostRows(&mut to), None).unwrap_err().to_string()
        };
        assert_eq!(call(&from), "'x': its rows need 72 bytes of 24, and 96 of 96");
        let exact = [0; 96];
        let from = [HostSlice { bytes: &exact, rows: None }, HostSlice { bytes: &small[..4], rows: None }];
        assert_eq!(call(&from), "'t': its rows need 16 bytes of 12, and 16 of 16");
        drop((context, loaded));
        rig.assert_clean();
    }
}

#[test]
fn one_capture_serves_any_number_of_rows() {
    for vendor in Vendor::ALL {
        let rig = Rig::new(vendor);
        let whole = graph(ROWS);
        let loaded = rig.load(&whole);
        let mut context = rig.device().gpu_context();
        let memory = |bytes: usize| GpuMemory::from(rig.device().driver().allocate(bytes).unwrap());
        // Where more rows are missing than there are, rows are moved; in all other requests kernels take them as they lie.
        let counts = [[3, 2, 4, 3, 2, 4, 3, 2], [1; 8]];
        for (run, count) in counts.into_iter().flatten().enumerate() {
            let part = graph(&ROWS.replace("[4", &format!("[{count}")));
            let tensors = inputs(&part, run as u64);
            let (x, s, y, t) = (memory(count * 24), memory(4), memory(count * 24), memory(count * 4));
            x.write(0, tensors[0].as_bytes()).unwrap();
            s.write(0, tensors[1].as_bytes()).unwrap();
            let (x_rows, y_rows, t_rows) = (rows(count, 24, true), rows(count, 24, false), rows(count, 4, false));
            let from = [DeviceSlice::rows(&x, 0, count * 24, &x_rows), DeviceSlice::exact(&s, 0, 4)];
            let to = [DeviceSlice::rows(&y, 0, count * 24, &y_rows), DeviceSlice::rows(&t, 0, count * 4, &t_rows)];
            let run_of = context.call(&*loaded, CallInputs::Device(&from), CallOutputs::Device(&to), None).unwrap();
            let path = if count == 1 { IoPath::Rows } else { IoPath::Direct };
            assert_eq!((run_of.inputs, run_of.outputs), (path, path));
            assert_eq!(run_of.launch == LaunchPath::Replayed, run % 8 > 2);
            context.synchronize().unwrap();
            let mut outputs = vec![vec![0xa5; count * 24], vec![0xa5; count * 4]];
            y.read(0, &mut outputs[0]).unwrap();
            t.read(0, &mut outputs[1]).unwrap();
            assert_answers(&part, &tensors, &outputs, TOLERANCE);
        }
        assert_eq!(instantiated(&rig, vendor), 2);
        // Rows that would leave a buffer are refused before anything is written.
        let (small, x_rows) = (memory(24), rows(3, 24, true));
        let from = [DeviceSlice::rows(&small, 0, 24, &x_rows), DeviceSlice::exact(&small, 0, 4)];
        let to = [DeviceSlice::exact(&small, 0, 24), DeviceSlice::exact(&small, 0, 4)];
        let error = context.call(&*loaded, CallInputs::Device(&from), CallOutputs::Device(&to), None).unwrap_err();
        assert_eq!(error.to_string(), "'x': its rows need 72 bytes of 24, and 96 of 96");
        drop((small, context, loaded));
        rig.assert_clean();
    }
}

#[test]
fn captures_stay_within_their_budget_across_contexts() {
    let limits = CaptureLimits { max_graphs: 2, ..CaptureLimits::default() };
    let rig = Rig::with(Vendor::Cuda, 1, FloatPrecision::F32, limits);
    let graph = graph(ROWS);
    let loaded = rig.load(&graph);
    let mut contexts: Vec<GpuContext> = (0..3).map(|_| rig.device().gpu_context()).collect();
    for context in &mut contexts {
        for seed in 0..4 {
            run_host(context, &*loaded, &graph, seed).unwrap();
            assert!(rig.device().captures_used().1 <= 2);
        }
        assert!(context.capture_state(&*loaded).0);
    }
    // The first was used longest ago, so it went; it is cold again and then takes the place of the second.
    let paths: Vec<LaunchPath> =
        (0..4).map(|seed| run_host(&mut contexts[0], &*loaded, &graph, seed).unwrap().launch).collect();
    let cold = eager(StepsReason::Cold);
    assert_eq!(paths, [cold, cold, LaunchPath::Captured, LaunchPath::Replayed]);
    assert_eq!(run_host(&mut contexts[2], &*loaded, &graph, 9).unwrap().launch, LaunchPath::Replayed);
    assert_eq!(run_host(&mut contexts[1], &*loaded, &graph, 9).unwrap().launch, cold);
    drop(contexts);
    assert_eq!(rig.device().captures_used(), (0, 0));
    // Nothing fits: runs go on step by step.
    let none = CaptureLimits { max_bytes: 1, ..limits };
    let small = Rig::with(Vendor::Cuda, 1, FloatPrecision::F32, none);
    let (loaded_small, mut context) = (small.load(&graph), small.device().gpu_context());
    let launches: Vec<LaunchPath> =
        (0..4).map(|seed| run_host(&mut context, &*loaded_small, &graph, seed).unwrap().launch).collect();
    let full = poisoned(PoisonReason::Budget);
    assert_eq!(launches, [cold, cold, full, full]);
    drop((context, loaded_small, loaded));
    small.assert_clean();
    rig.assert_clean();
}

#[test]
fn more_hot_captures_than_fit_take_turns_and_never_exceed_the_budget() {
    let limits = CaptureLimits { max_graphs: 3, ..CaptureLimits::default() };
    let rig = Rig::with(Vendor::Cuda, 1, FloatPrecision::F32, limits);
    let graphs = [graph(ROWS), graph(&ROWS.replace("[4", "[3"))];
    let loaded = graphs.each_ref().map(|graph| rig.load(graph));
    let replayed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (rig, graphs, loaded, replayed) = (&rig, &graphs, &loaded, &replayed);
            scope.spawn(move || {
                let mut context = rig.device().gpu_context();
                for run in 0..60u64 {
                    let which = usize::from(run % 5 < 2);
                    let done = run_host(&mut context, &*loaded[which], &graphs[which], run + 100 * thread).unwrap();
                    replayed.fetch_add(u64::from(done.launch == LaunchPath::Replayed), Ordering::Relaxed);
                    assert!(rig.device().captures_used().1 <= 3);
                }
            });
        }
    });
    assert!(replayed.into_inner() > 0);
    drop(loaded);
    assert_eq!(rig.device().captures_used(), (0, 0));
    rig.assert_clean();
}

#[test]
fn a_device_without_memory_gives_up_idle_captures_first() {
    for vendor in Vendor::ALL {
        let rig = Rig::new(vendor);
        let graph = graph(ROWS);
        let loaded = rig.load(&graph);
        let mut first = rig.device().gpu_context();
        for seed in 0..4 {
            run_host(&mut first, &*loaded, &graph, seed).unwrap();
        }
        assert_eq!(rig.device().captures_used().1, 1);
        let is_allocate = |symbol: &&str| ["cuMemAlloc_v2", "hipMalloc"].contains(symbol);
        let allocate = Library::symbols(vendor).into_iter().find(is_allocate).unwrap();
        rig.fake.inject(allocate, 1, OUT_OF_MEMORY);
        let mut second = rig.device().gpu_context();
        assert_eq!(run_host(&mut second, &*loaded, &graph, 4).unwrap().launch, eager(StepsReason::Cold));
        assert_eq!(rig.device().captures_used().1, 0);
        // Nothing is left to give up.
        rig.fake.inject(allocate, 1, OUT_OF_MEMORY);
        let mut third = rig.device().gpu_context();
        assert!(run_host(&mut third, &*loaded, &graph, 5).is_err());
        assert_eq!(run_host(&mut first, &*loaded, &graph, 6).unwrap().launch, eager(StepsReason::Cold));
        drop((first, second, third, loaded));
        rig.assert_clean();
    }
}

#[test]
fn a_replay_on_buffers_that_have_not_moved_is_one_launch() {
    for vendor in Vendor::ALL {
        let rig = Rig::new(vendor);
        let graph = graph(ROWS);
        let loaded = rig.load(&graph);
        let mut context = rig.device().gpu_context();
        let buffers = Buffers::new(&rig, &*loaded, 0).unwrap();
        let (from, to): (Vec<&DeviceBuffer>, Vec<&DeviceBuffer>) = (
            buffers.inputs.iter().map(GpuMemory::buffer).collect(),
            buffers.outputs.iter().map(GpuMemory::buffer).collect(),
        );
        for seed in 0..4 {
            buffers.run(&mut context, &*loaded, &graph, seed).unwrap();
        }
        let calls = || -> Vec<(&str, u32)> {
            Library::symbols(vendor).into_iter().map(|symbol| (symbol, rig.fake.calls(symbol))).collect()
        };
        let before = calls();
        for _ in 0..10 {
            context.submit(&*loaded, &from, &to).unwrap();
        }
        let made = calls().into_iter().zip(before).filter(|(after, before)| after != before);
        let made: Vec<(&str, u32)> = made.map(|(after, before)| (after.0, after.1 - before.1)).collect();
        let [enter, launch] = match vendor {
            Vendor::Cuda => ["cuCtxSetCurrent", "cuGraphLaunch"],
            Vendor::Hip => ["hipSetDevice", "hipGraphLaunch"],
        };
        assert_eq!(made, [(launch, 10), (enter, 10)]);
        context.synchronize().unwrap();
        drop((buffers, context, loaded));
        rig.assert_clean();
    }
}

#[test]
fn a_callers_stream_is_joined_at_both_ends() {
    for vendor in Vendor::ALL {
        let rig = Rig::new(vendor);
        let graph = graph(ROWS);
        let loaded = rig.load(&graph);
        let mut context = rig.device().gpu_context();
        let buffers = Buffers::new(&rig, &*loaded, 0).unwrap();
        let stream: GpuStream = rig.device().driver().stream().unwrap().into();
        for seed in 0..8 {
            let tensors = inputs(&graph, seed);
            let ahead = Buffers::new(&rig, &*loaded, 0).unwrap();
            for ((from, to), tensor) in ahead.inputs.iter().zip(&buffers.inputs).zip(&tensors) {
                from.write(0, tensor.as_bytes()).unwrap();
                // Nothing from here on is waited for: only events keep the order.
                stream.stream().copy_device(to.buffer(), 0, from.buffer(), 0, from.bytes()).unwrap();
            }
            let (from, to) = (buffers.slices(&buffers.inputs), buffers.slices(&buffers.outputs));
            context.call(&*loaded, CallInputs::Device(&from), CallOutputs::Device(&to), Some(&stream)).unwrap();
            let mut outputs = canaries(loaded.program());
            for (memory, output) in buffers.outputs.iter().zip(&mut outputs) {
                stream.stream().download(memory.buffer(), 0, output).unwrap();
            }
            assert_answers(&graph, &tensors, &outputs, TOLERANCE);
        }
        drop((stream, buffers, context, loaded));
        rig.assert_clean();
    }
}

#[test]
fn modes_may_change_with_every_run() {
    for vendor in Vendor::ALL {
        let rig = Rig::new(vendor);
        let graph = graph(ROWS);
        let loaded = rig.load(&graph);
        let mut context = rig.device().gpu_context();
        let all = [0, 0, 4].map(|offset| Buffers::new(&rig, &*loaded, offset).unwrap());
        let mut state = 1u64;
        let mut replayed = [0; 4];
        for run in 0..400 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let choice = (state >> 33) as usize % 4;
            context.poison().unwrap();
            let done = match all.get(choice) {
                // Misplaced buffers now and then only, so that direct runs do not rest.
                Some(buffers) if choice < 2 || run % 16 == 0 => {
                    buffers.run(&mut context, &*loaded, &graph, run).unwrap()
                }
                _ => run_host(&mut context, &*loaded, &graph, run).unwrap(),
            };
            replayed[choice] += usize::from(done.launch == LaunchPath::Replayed);
        }
        assert!(replayed.iter().all(|&count| count > 50), "{replayed:?}");
        assert!(instantiated(&rig, vendor) <= 3, "one capture a mode");
        drop((all, context, loaded));
        rig.assert_clean();
    }
}

#[test]
fn eight_threads_alternate_between_programs() {
    let rig = Arc::new(Rig::new(Vendor::Cuda));
    let graphs = [graph(ROWS), graph(&ROWS.replace("[4", "[3"))];
    let loaded = graphs.each_ref().map(|graph| rig.load(graph));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (rig, graphs, loaded) = (&rig, &graphs, &loaded);
            scope.spawn(move || {
                let mut context = rig.device().gpu_context();
                for run in 0..40u64 {
                    let which = (run as usize + thread) % 2;
                    run_host(&mut context, &*loaded[which], &graphs[which], run * 8 + thread as u64).unwrap();
                }
                assert!(loaded.iter().all(|loaded| context.capture_state(&**loaded).0));
            });
        }
    });
    drop(loaded);
    Arc::into_inner(rig).unwrap().assert_clean();
}

#[test]
fn captures_are_not_disturbed_by_what_other_threads_do_on_the_device() {
    for vendor in Vendor::ALL {
        let rig = Rig::new(vendor);
        let graph = graph(ROWS);
        let program = rig.compile(&graph);
        let loaded = rig.load(&graph);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let capturing = [(); 2].map(|()| {
                scope.spawn(|| {
                    for seed in 0..30 {
                        let mut context = rig.device().gpu_context();
                        for run in 0..4 {
                            let launch = run_host(&mut context, &*loaded, &graph, seed * 4 + run).unwrap().launch;
                            assert_eq!(launch == LaunchPath::Captured, run == 2, "{launch:?}");
                        }
                    }
                })
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let driver = rig.device().driver();
                    drop((driver.allocate(64).unwrap(), driver.allocate_pinned(64).unwrap()));
                    driver.synchronize().unwrap();
                    drop(rig.device().load(&program, &rig.store).unwrap());
                }
            });
            for thread in capturing {
                thread.join().unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        drop((loaded, program));
        rig.assert_clean();
    }
}

/// Rows of one number, so that many sizes share one kernel.
fn column(rows: usize) -> Graph {
    graph(&format!(
        "graph \"column\"(%0 \"x\": f32[{rows},1]) {{\n  %1 = unary.relu(%0) {{alpha=0.0, beta=0.0}} : f32[{rows},1]\n  \
         return \"y\" %1\n}}\n"
    ))
}

/// H26: sixteen threads answer requests from captures while one after the other new size is loaded and captured.
#[test]
fn new_sizes_are_captured_under_the_load_of_sixteen_threads() {
    const CALLERS: u64 = 16;
    const NEW_SIZES: usize = 24;
    for vendor in Vendor::ALL {
        let limits = CaptureLimits { max_graphs: 64, ..CaptureLimits::default() };
        let rig = Rig::with(vendor, 1, FloatPrecision::F32, limits);
        let graph = graph(ROWS);
        let loaded = rig.load(&graph);
        let (is_over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let (rig, graph, loaded, is_over, answered) = (&rig, &graph, &*loaded, &is_over, &answered);
                scope.spawn(move || {
                    let mut context = rig.device().gpu_context();
                    let mut run = 0;
                    while run < 4 || !is_over.load(Ordering::Relaxed) {
                        let launch = run_host(&mut context, loaded, graph, caller * 1000 + run).unwrap().launch;
                        assert_eq!(launch == LaunchPath::Replayed, run > 2, "caller {caller}, run {run}: {launch:?}");
                        answered.fetch_add(1, Ordering::Relaxed);
                        run += 1;
                    }
                });
            }
            let mut context = rig.device().gpu_context();
            for rows in 1..=NEW_SIZES {
                let graph = column(rows);
                let loaded = rig.load(&graph);
                let launches = [0, 1, 2, 3].map(|seed| run_host(&mut context, &*loaded, &graph, seed).unwrap().launch);
                assert_eq!(launches[2..], [LaunchPath::Captured, LaunchPath::Replayed], "{rows} rows");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(answered.into_inner() >= 4 * CALLERS);
        drop(loaded);
        rig.assert_clean();
    }
}

/// Bytes that the capture of a column takes.
fn bytes_of_a_capture() -> u64 {
    let rig = Rig::new(Vendor::Cuda);
    let graph = column(1);
    let loaded = rig.load(&graph);
    let mut context = rig.device().gpu_context();
    for seed in 0..3 {
        run_host(&mut context, &*loaded, &graph, seed).unwrap();
    }
    let (bytes, graphs) = rig.device().captures_used();
    assert_eq!(graphs, 1);
    drop((context, loaded));
    rig.assert_clean();
    bytes
}

/// H30: two thousand sizes, each hot enough to be captured, on contexts that would keep more of them than the 32 that fit.
#[test]
fn two_thousand_captured_sizes_never_take_more_than_the_budget() {
    const SIZES: usize = 2_000;
    const KEPT: usize = 32;
    const CONTEXTS: usize = 8;
    let limits = CaptureLimits { max_bytes: KEPT as u64 * bytes_of_a_capture(), max_graphs: SIZES };
    let rig = Rig::with(Vendor::Cuda, 1, FloatPrecision::F32, limits);
    let mut contexts: Vec<GpuContext> = (0..CONTEXTS).map(|_| rig.device().gpu_context()).collect();
    let mut all = Vec::new();
    for rows in 1..=SIZES {
        let context = &mut contexts[rows % CONTEXTS];
        let graph = column(rows);
        let loaded = rig.load(&graph);
        let bytes = vec![0x3f; rows * 4];
        let mut output = vec![0; rows * 4];
        let launches = [(); 3].map(|()| context.run(&*loaded, &[&bytes], &mut [&mut output]).unwrap().launch);
        assert_eq!(launches[2], LaunchPath::Captured, "{rows} rows");
        assert_eq!(output, bytes, "{rows} rows");
        let (taken, graphs) = rig.device().captures_used();
        assert!(taken <= limits.max_bytes && graphs <= KEPT, "{taken} bytes, {graphs} graphs");
        all.push((graph, loaded));
    }
    let evicted = rig.device().captures_evicted();
    assert!(evicted >= (SIZES / CONTEXTS) as u64, "{evicted} were evicted");
    // What was evicted answers still, and what was captured last replays.
    let (graph, loaded) = &all[SIZES / 2];
    assert_eq!(run_host(&mut contexts[0], &**loaded, graph, 1).unwrap().launch, eager(StepsReason::Cold));
    let (graph, loaded) = &all[SIZES - 1];
    let last = &mut contexts[SIZES % CONTEXTS];
    assert_eq!(run_host(last, &**loaded, graph, 1).unwrap().launch, LaunchPath::Replayed);
    drop((contexts, all));
    rig.assert_clean();
}

/// A step of the host between two of the device, and one that reads an input and writes an output itself.
const HOST_STEPS: &str = r#"graph "host"(%0 "x": f32[4,6]) {
  %1 = unary.tanh(%0) {alpha=0.0, beta=0.0} : f32[4,6]
  %2 = cast(%1) {to=f8e4m3fn, saturate=true} : f8e4m3fn[4,6]
  %3 = cast(%2) {to=f32, saturate=true} : f32[4,6]
  %4 = binary.add(%3, %0) : f32[4,6]
  %5 = cast(%0) {to=f8e4m3fn, saturate=true} : f8e4m3fn[4,6]
  return "y" %4, "z" %5
}
"#;

/// H33: what would run on the host in silence is an error for whoever asked for that.
#[test]
fn a_strict_target_leaves_nothing_to_the_host() {
    let rig = Rig::new(Vendor::Cuda);
    let Rig { target, store, devices, library, fake, .. } = rig;
    let target = target.strict();
    let refused = target.compile(&graph(HOST_STEPS), &Bucket::default(), &store).unwrap_err().to_string();
    assert!(refused.contains("a strict compile leaves nothing to the host"), "{refused}");
    assert!(target.compile(&graph(ROWS), &Bucket::default(), &store).is_ok());
    drop((target, devices, library));
    fake.assert_clean();
}

#[test]
fn segments_between_steps_of_the_host_are_captured_in_every_mode() {
    for vendor in Vendor::ALL {
        let rig = Rig::new(vendor);
        let graph = graph(HOST_STEPS);
        let loaded = rig.load(&graph);
        let kernels: Vec<&str> = loaded.program().steps.iter().map(|step| step.kernel.as_str()).collect();
        assert!(kernels.iter().any(|kernel| kernel.starts_with("host.")), "{kernels:?}");
        let mut context = rig.device().gpu_context();
        let buffers = Buffers::new(&rig, &*loaded, 0).unwrap();
        for run in 0..6 {
            context.poison().unwrap();
            let host = run_host(&mut context, &*loaded, &graph, run).unwrap();
            let device = buffers.run(&mut context, &*loaded, &graph, run + 100).unwrap();
            assert_eq!(
                (host.launch == LaunchPath::Replayed, device.launch == LaunchPath::Replayed),
                (run > 2, run > 2)
            );
            // What the host reads and writes is staged for it.
            assert_eq!((device.inputs, device.outputs), (IoPath::Rows, IoPath::Rows));
        }
        assert!(rig.device().captures_used().1 > 2, "every segment is a graph");
        drop((buffers, context, loaded));
        rig.assert_clean();
    }
}
