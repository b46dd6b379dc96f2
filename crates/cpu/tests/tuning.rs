//! Measured tactics: whichever a record names, the answer is right and the Program loads as it was compiled; records for
//! something else are left alone. No time is judged here.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;

use precast_cpu::{CpuDevice, CpuTarget, Isa, TuneMode, TuneOptions, Tuner};
use precast_ir::Graph;
use precast_ir::op::{Conv, Unary, UnaryFn};
use precast_passes::{Numerics, PassOptions};
use precast_program::{Bucket, Device, MemoryStore, Program, Target, TuningRecord, TuningTable, decode, encode};
use precast_tensor::{DType, Dim, Tensor, Type};
use precast_testing::tolerance::Reference;

fn elements(len: usize, step: f32) -> Vec<f32> {
    (0..len).map(|at| (at as f32 * step).sin()).collect()
}

/// relu(conv(x, w) + b) with a filter of these rows and columns.
fn graph(batch: usize, [rows, columns]: [usize; 2]) -> Graph {
    const CHANNELS: usize = 8;
    let mut graph = Graph::new("");
    let x = graph.add_input("x", Type::new(DType::F32, [batch, CHANNELS, 9, 11].map(Dim::from).to_vec()));
    let weights = elements(CHANNELS * CHANNELS * rows * columns, 0.37);
    let w = graph.add_constant(Tensor::from_vec([CHANNELS, CHANNELS, rows, columns], weights).unwrap());
    let b = graph.add_constant(Tensor::from_vec([CHANNELS], elements(CHANNELS, 1.1)).unwrap());
    let pad: Vec<Dim> = vec![(rows / 2).into(), (columns / 2).into()];
    let conv = Conv { stride: vec![1; 2], pad_lo: pad.clone(), pad_hi: pad, dilation: vec![1; 2], groups: 1 };
    let y = graph.add(conv, &[x, w, b], &Default::default()).unwrap();
    let relu = Unary { func: UnaryFn::Relu, alpha: 0.0, beta: 0.0 };
    let y = graph.add(relu, &[y], &Default::default()).unwrap();
    graph.add_output("y", y);
    graph
}

fn target(options: PassOptions) -> CpuTarget {
    CpuTarget::new(Isa::detect(), 1, options)
}

/// A record that makes one of these tactics the fastest.
fn record(tactics: &[&str], fastest: &str) -> TuningRecord {
    let time = |tactic: &&str| (tactic.to_string(), if *tactic == fastest { 1_500_000 } else { 2_000_000 });
    TuningRecord::of(tactics.iter().map(time).collect::<BTreeMap<String, u64>>(), 10).unwrap()
}

fn table(key: &str, record: TuningRecord) -> TuningTable {
    let mut table = TuningTable::default();
    table.add(key, record);
    table
}

fn compile(target: &CpuTarget, graph: &Graph) -> (Program, MemoryStore) {
    let store = MemoryStore::default();
    (target.compile(graph, &Bucket::default(), &store).unwrap(), store)
}

fn run(program: &Program, store: &MemoryStore, x: &Tensor) -> Tensor {
    let device = CpuDevice::new(1);
    let loaded = device.load(&Arc::new(program.clone()), store).unwrap();
    let port = &program.outputs[0];
    let mut words = vec![0u64; (port.bytes as usize).div_ceil(8)];
    let output = &mut bytemuck::cast_slice_mut(&mut words)[..port.bytes as usize];
    device.context(program.arena_bytes).run(&*loaded, &[x.aligned().as_bytes()], &mut [output]).unwrap();
    let shape: Vec<usize> = port.shape.iter().map(|&size| size as usize).collect();
    Tensor::new(DType::F32, shape, bytemuck::cast_slice::<u64, u8>(&words)[..port.bytes as usize].to_vec().into())
        .unwrap()
}

fn text(program: &Program) -> &str {
    std::str::from_utf8(&program.steps[0].parameters).unwrap()
}

/// The only problem of a graph: its key and the names of its candidates.
fn problem(graph: &Graph) -> (String, Vec<&'static str>) {
    let target = target(PassOptions::default());
    let problems = target.tactics().problems(&target.optimise(graph).unwrap());
    let [problem] = problems.as_slice() else { panic!("{problems:?}") };
    (problem.key.clone(), problem.candidates.iter().map(|tactic| tactic.name()).collect())
}

#[test]
fn every_tactic_that_a_record_may_name_gives_the_same_answer_and_loads_with_the_same_bits() {
    for filter in [[3, 3], [1, 3], [1, 5]] {
        let (key, tactics) = problem(&graph(1, filter));
        assert!(tactics.len() > 1);
        for tactic in &tactics {
            let tuned = target(PassOptions::default()).with_tuning(table(&key, record(&tactics, tactic)));
            let mut constants = Vec::new();
            for batch in [1, 3] {
                let graph = graph(batch, filter);
                let (program, store) = compile(&tuned, &graph);
                assert!(
                    text(&program).starts_with(&format!("tactic {tactic} (tuned: 1.5000 ms, ")),
                    "{}",
                    text(&program)
                );
                let x = Tensor::from_vec([batch, 8, 9, 11], elements(batch * 8 * 99, 0.21)).unwrap();
                let found = run(&program, &store, &x);
                let reference = Reference::new(&graph, std::slice::from_ref(&x)).unwrap();
                assert!(reference.first_difference(std::slice::from_ref(&found)).is_none(), "{tactic} {filter:?}");
                let reloaded = decode(&encode(&program)).unwrap();
                assert_eq!(run(&reloaded, &store, &x), found, "{tactic} {filter:?}");
                constants.push(program.constants);
            }
            assert_eq!(constants[0], constants[1], "all Buckets share the packed filter");
        }
    }
}

#[test]
fn a_step_that_does_not_say_its_tactic_or_says_a_wrong_one_is_not_loaded() {
    let (program, store) = compile(&target(PassOptions::default()), &graph(1, [3, 3]));
    assert!(text(&program).contains(" (cost model)\n"), "{}", text(&program));
    let refusal = |text: String| {
        let mut program = program.clone();
        program.steps[0].parameters = text.into_bytes();
        CpuDevice::new(1).load(&Arc::new(program), &store).map(drop).unwrap_err().to_string()
    };
    let (line, rest) = text(&program).split_once('\n').unwrap();
    assert!(refusal(rest.to_string()).contains("does not say its tactic"));
    for (wrong, sentence) in
        [("depthwise", "does not cover"), ("winograd_line", "does not cover"), ("magic", "unknown")]
    {
        let name = line.split(' ').nth(1).unwrap();
        let refused = refusal(format!("{}\n{rest}", line.replacen(name, wrong, 1)));
        assert!(refused.contains(sentence), "{refused}");
    }
}

#[test]
fn records_for_something_else_are_left_alone() {
    let graph = graph(1, [3, 3]);
    let (key, tactics) = problem(&graph);
    let untuned = compile(&target(PassOptions::default()), &graph).0;
    let chosen = text(&untuned).split(' ').nth(1).unwrap().to_string();
    let other = tactics.iter().find(|tactic| **tactic != chosen).unwrap();
    for (from, to) in [
        ("tuner=1", "tuner=0"),
        ("threads=1", "threads=2"),
        ("cpu:", "cuda:"),
        ("in=8x9x11", "in=8x9x12"),
        ("epilogue=bias+relu", "epilogue=bias+silu"),
        ("f32", "f16"),
        ("groups=1", "groups=2"),
    ] {
        let stale = key.replacen(from, to, 1);
        assert_ne!(stale, key, "{from}");
        let tuned = target(PassOptions::default()).with_tuning(table(&stale, record(&tactics, other)));
        assert_eq!(compile(&tuned, &graph).0, untuned, "{from}");
        assert_eq!(tuned.tactics().digest([key.as_str()]), None);
    }
    for unknown in ["hologram", "depthwise"] {
        let tuned = target(PassOptions::default()).with_tuning(table(&key, record(&[unknown, "product"], unknown)));
        assert_eq!(compile(&tuned, &graph).0, untuned, "{unknown}");
    }
}

#[test]
fn strict_numerics_leave_no_choice() {
    let (key, tactics) = problem(&graph(1, [3, 3]));
    let strict =
        PassOptions { numerics: Numerics { is_strict: true, ..Numerics::default() }, ..PassOptions::default() };
    let tuned = target(strict).with_tuning(table(&key, record(&tactics, "winograd4")));
    assert!(tuned.tactics().problems(&graph(1, [3, 3])).is_empty());
    assert!(text(&compile(&tuned, &graph(1, [3, 3])).0).starts_with("tactic product (only one)\n"));
}

#[test]
fn measuring_decides_each_problem_once_and_the_digest_names_what_was_used() {
    let graph = graph(2, [3, 3]);
    let target = target(PassOptions::default());
    let problems = target.tactics().problems(&target.optimise(&graph).unwrap());
    let keys = || problems.iter().map(|problem| problem.key.as_str());
    let device = CpuDevice::new(1);
    for mode in [TuneMode::Quick, TuneMode::Full] {
        let fresh = CpuTarget::new(Isa::detect(), 1, PassOptions::default());
        let tuner = Tuner::new(TuneOptions { mode, seconds: None });
        let records = tuner.tune(fresh.tactics(), &problems, &device);
        assert_eq!(records.len(), 1);
        let (key, record) = records.iter().next().unwrap();
        assert_eq!((key, record.times_ns.len()), (problems[0].key.as_str(), 3));
        assert!(record.samples >= 10);
        assert!(tuner.tune(fresh.tactics(), &problems, &device).is_empty(), "measured once");
        assert_eq!(fresh.tactics().digest(keys()), Some(records.digest()));
        assert!(text(&compile(&fresh, &graph).0).starts_with(&format!("tactic {} (tuned: ", record.tactic)));
        let reader = CpuTarget::new(Isa::detect(), 1, PassOptions::default()).with_tuning(records);
        assert_eq!(compile(&reader, &graph).0, compile(&fresh, &graph).0);
    }
    let spent = Tuner::new(TuneOptions { mode: TuneMode::Full, seconds: Some(0.0) });
    assert!(spent.tune(target.tactics(), &problems, &device).is_empty());
    assert_eq!(target.tactics().digest(keys()), None);
}
