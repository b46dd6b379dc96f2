//! Sessions on the CPU: every size gives what reference evaluation gives, by one Bucket, a padded one or several.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use precast_cache::{CacheOptions, Mode, ProgramCache};
use precast_cpu::{CpuDevice, CpuTarget, Isa};
use precast_ir::attr::NoConstants;
use precast_ir::eval::eval_graph;
use precast_ir::{Graph, text};
use precast_passes::{PassError, PassReport};
use precast_program::ArtifactStore;
use precast_program::{Bucket, CompileError, Program, Target, TargetDescription};
use precast_session::{
    Argument, BucketPolicy, ContextWait, DimOptions, Fit, OnMiss, OnMissChain, Origin, PadContent, Path, Reason,
    Session, SessionError, SessionOptions, Startup, Tier,
};
use precast_tensor::{DType, Tensor};

/// Two rows of weights, then relu: rows do not touch each other.
const ROWS: &str = r#"graph "rows"(%0 "x": f32[n,2]) {
  %1 = constant f32[2,3] [1.0, -2.0, 0.5, 3.0, 0.25, -1.0]
  %2 = matmul(%0, %1) {transpose_a=false, transpose_b=false} : f32[n,3]
  %3 = unary.relu(%2) {alpha=0.0, beta=0.0} : f32[n,3]
  return "y" %3
}
"#;

/// The mean over the batch: rows may not be padded.
const MEAN: &str = r#"graph "mean"(%0 "x": f32[n,2]) {
  %1 = reduce.mean(%0) {axes=[0], keep_dims=false} : f32[2]
  return "y" %1
}
"#;

/// The largest of the batch is subtracted: padding by copies is safe, splitting is not.
const LARGEST: &str = r#"graph "largest"(%0 "x": f32[n,2]) {
  %1 = reduce.max(%0) {axes=[0], keep_dims=true} : f32[1,2]
  %2 = binary.sub(%0, %1) : f32[n,2]
  return "y" %2
}
"#;

fn graph(source: &str) -> Graph {
    text::parse(source, &NoConstants).unwrap()
}

fn memory() -> Arc<ProgramCache> {
    Arc::new(ProgramCache::open(CacheOptions { mode: Mode::Off, ..CacheOptions::new("") }).unwrap())
}

fn target() -> Arc<CpuTarget> {
    Arc::new(CpuTarget::new(Isa::detect(), 1, Default::default()))
}

/// Options with Buckets for `n`, all there when it is open. Costs are not measured, so that the choice of Buckets does not
/// depend on the machine.
fn options(buckets: BucketPolicy) -> SessionOptions {
    let mut options = SessionOptions { measures: false, startup: Startup::All, ..SessionOptions::default() };
    options.dims.insert("n".to_string(), DimOptions { buckets });
    options
}

fn open_with(source: &str, options: SessionOptions, cache: Arc<ProgramCache>) -> Session {
    Session::open_graph(&graph(source), options, target(), Arc::new(CpuDevice::new(1)), cache).unwrap()
}

fn open(source: &str, buckets: BucketPolicy, on_miss: OnMiss, opens_all: bool, cache: Arc<ProgramCache>) -> Session {
    let startup = if opens_all { Startup::All } else { Startup::Lazy };
    open_with(source, SessionOptions { on_miss: on_miss.into(), startup, ..options(buckets) }, cache)
}

/// Runs into a buffer of the caller, which is full of something else before.
fn run_into(session: &Session, x: &Tensor) -> (Vec<u8>, precast_session::RunReport) {
    let argument = [Argument::from(x)];
    let shape = session.output_shapes(&argument).unwrap().remove(0);
    let mut output = precast_session::OutputBuffer::new(shape.iter().product::<usize>() * 4);
    output.as_bytes_mut().fill(0xee);
    let report = session.run_into(&argument, &mut [output.as_bytes_mut()]).unwrap();
    (output.as_ref().to_vec(), report)
}

fn input(rows: usize) -> Tensor {
    let elements = (0..rows * 2).map(|at| (at as f32 * 0.37).sin() * 3.0).collect();
    Tensor::from_vec([rows, 2], elements).unwrap()
}

fn expected(source: &str, x: &Tensor) -> Tensor {
    eval_graph(&graph(source), std::slice::from_ref(x)).unwrap().remove(0)
}

fn assert_near(found: &Tensor, expected: &Tensor) {
    assert_eq!(found.type_(), expected.type_());
    for (a, b) in found.to_f64_vec().into_iter().zip(expected.to_f64_vec()) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} found where {b} is expected");
    }
}

#[test]
fn every_size_gives_what_the_reference_gives() {
    let session = open(ROWS, BucketPolicy::PowersOfTwo { max: 8 }, OnMiss::Wait, true, memory());
    assert_eq!(session.counters().compiles(), 4);
    for rows in 1..=40 {
        let x = input(rows);
        let (outputs, report) = session.run(std::slice::from_ref(&x)).unwrap();
        assert_near(&outputs[0], &expected(ROWS, &x));
        let fit = if [1, 2, 4, 8].contains(&rows) {
            Fit::Exact
        } else if rows < 8 {
            Fit::Padded
        } else {
            Fit::Split
        };
        assert_eq!(report.fit, fit, "{rows} rows: {report:?}");
        assert_eq!(report.chunks.total().rows, rows as i64);
    }
    assert_eq!(session.counters().compiles(), 4, "no request compiled anything");
}

#[test]
fn a_repeated_request_is_ultra_fast() {
    let session = open(ROWS, BucketPolicy::PowersOfTwo { max: 4 }, OnMiss::Wait, true, memory());
    let x = input(3);
    let runs: Vec<_> = (0..3).map(|_| run_into(&session, &x)).collect();
    let tiers: Vec<Tier> = runs.iter().map(|run| run.1.tier).collect();
    assert_eq!(tiers, [Tier::Fast, Tier::UltraFast, Tier::UltraFast]);
    assert_eq!(session.counters().runs(Tier::UltraFast), 2);
    assert_eq!(session.counters().rows(), (9, 3));
    let (owned, report) = session.run(std::slice::from_ref(&x)).unwrap();
    assert_eq!((report.tier, report.reason), (Tier::Fast, Reason::OwnedOutputs));
    assert!(runs.iter().all(|run| run.0 == owned[0].as_bytes()), "every path gives the same bits");
}

#[test]
fn rows_that_touch_each_other_are_never_padded() {
    let session = open(MEAN, BucketPolicy::PowersOfTwo { max: 4 }, OnMiss::Wait, false, memory());
    let x = input(3);
    let (outputs, report) = session.run(std::slice::from_ref(&x)).unwrap();
    assert_eq!((report.fit, report.pad_rows(), report.origin), (Fit::Exact, 0, Origin::Compiled));
    assert_near(&outputs[0], &expected(MEAN, &x));
}

#[test]
fn what_may_only_be_padded_by_copies_is_not_split() {
    let session = open(LARGEST, BucketPolicy::PowersOfTwo { max: 4 }, OnMiss::Wait, true, memory());
    let x = input(3);
    let (outputs, report) = session.run(std::slice::from_ref(&x)).unwrap();
    assert_eq!(report.fit, Fit::Padded);
    assert_near(&outputs[0], &expected(LARGEST, &x));
    let error = session.run(&[input(5)]).unwrap_err();
    assert!(matches!(error, SessionError::OutOfRange(_)), "{error}");
}

#[test]
fn each_on_miss_policy_does_what_it_says() {
    let buckets = || BucketPolicy::List(vec![2, 8]);
    let x = input(2);
    let rejected = open(ROWS, buckets(), OnMiss::Reject, false, memory()).run(std::slice::from_ref(&x)).unwrap_err();
    assert!(matches!(rejected, SessionError::NotReady { .. }), "{rejected}");
    // Without compiles in the background, of which one may be done before it is asked for.
    let on_miss = OnMiss::Reference.into();
    let options = SessionOptions { on_miss, startup: Startup::Lazy, background: false, ..options(buckets()) };
    let by_reference = open_with(ROWS, options, memory());
    let (outputs, report) = by_reference.run(std::slice::from_ref(&x)).unwrap();
    assert_eq!((report.tier, by_reference.counters().compiles()), (Tier::Standard, 0));
    assert_near(&outputs[0], &expected(ROWS, &x));
    let waited = open(ROWS, buckets(), OnMiss::Wait, false, memory());
    assert_eq!(waited.run(std::slice::from_ref(&x)).unwrap().1.origin, Origin::Compiled);
}

#[test]
fn pad_up_takes_a_larger_loaded_bucket() {
    let on_miss = OnMissChain(vec![OnMiss::PadUp, OnMiss::Wait]);
    let lazy = SessionOptions {
        on_miss,
        startup: Startup::Lazy,
        background: false,
        ..options(BucketPolicy::List(vec![2, 8]))
    };
    let session = open_with(ROWS, lazy, memory());
    session.run(&[input(8)]).unwrap();
    assert_eq!(session.counters().compiles(), 1);
    let x = input(2);
    let (outputs, report) = session.run(std::slice::from_ref(&x)).unwrap();
    assert_eq!((report.chunks.named()[0].bucket, session.counters().compiles()), (8, 1));
    assert_near(&outputs[0], &expected(ROWS, &x));
}

#[test]
fn a_second_session_on_the_same_cache_compiles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    let cache = || Arc::new(ProgramCache::open(CacheOptions::new(&root)).unwrap());
    let first = open(ROWS, BucketPolicy::PowersOfTwo { max: 8 }, OnMiss::Wait, true, cache());
    let second = open(ROWS, BucketPolicy::PowersOfTwo { max: 8 }, OnMiss::Wait, true, cache());
    assert_eq!((first.counters().compiles(), second.counters().compiles()), (4, 0));
    let x = input(5);
    assert_eq!(first.run(std::slice::from_ref(&x)).unwrap().0, second.run(std::slice::from_ref(&x)).unwrap().0);
}

#[test]
fn many_threads_run_one_session_at_once() {
    let session = open(ROWS, BucketPolicy::PowersOfTwo { max: 8 }, OnMiss::Wait, true, memory());
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let session = &session;
            scope.spawn(move || {
                for round in 0..200 {
                    let x = input(1 + (thread * 7 + round * 3) % 20);
                    let (outputs, _) = session.run(std::slice::from_ref(&x)).unwrap();
                    assert_near(&outputs[0], &expected(ROWS, &x));
                }
            });
        }
    });
}

/// H28: runs of changing sizes, straight into buffers, into new tensors and submitted, while others open the same model.
#[test]
fn sixteen_threads_alternate_batches_while_eight_build() {
    let session = open(ROWS, BucketPolicy::PowersOfTwo { max: 4 }, OnMiss::Wait, true, memory());
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let session = &session;
            scope.spawn(move || {
                for round in 0..50 {
                    let x = input([4, 3, 4, 1][(thread + round) % 4]);
                    let (outputs, _) = session.run(std::slice::from_ref(&x)).unwrap();
                    assert_near(&outputs[0], &expected(ROWS, &x));
                    assert_eq!(run_into(session, &x).0, outputs[0].as_bytes());
                    let (submitted, _) = session.submit(vec![x]).unwrap().wait().unwrap();
                    assert_eq!(submitted, outputs);
                }
            });
        }
        for _ in 0..8 {
            scope.spawn(|| {
                let own = open(ROWS, BucketPolicy::PowersOfTwo { max: 4 }, OnMiss::Wait, true, memory());
                let x = input(3);
                assert_near(&own.run(std::slice::from_ref(&x)).unwrap().0[0], &expected(ROWS, &x));
            });
        }
    });
}

/// H32: whatever sizes clients choose, what was compiled at the start is all that is compiled.
#[test]
fn a_thousand_sizes_from_sixteen_threads_compile_nothing() {
    let session = open(ROWS, BucketPolicy::PowersOfTwo { max: 64 }, OnMiss::Wait, true, memory());
    let compiled = session.counters().compiles();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let session = &session;
            scope.spawn(move || {
                for rows in (1 + thread..=1000).step_by(16) {
                    let x = input(rows);
                    let (outputs, _) = session.run(std::slice::from_ref(&x)).unwrap();
                    assert_eq!(outputs[0].shape(), [rows, 3]);
                }
            });
        }
    });
    assert_eq!(session.counters().compiles(), compiled);
}

#[test]
fn options_that_name_no_dim_are_refused() {
    let mut options = SessionOptions::default();
    options.dims.insert("m".to_string(), DimOptions { buckets: BucketPolicy::PowersOfTwo { max: 4 } });
    let opened = Session::open_graph(&graph(ROWS), options, target(), Arc::new(CpuDevice::new(1)), memory());
    assert!(opened.is_err_and(|error| error.to_string().contains("no dim 'm'")));
}

#[test]
fn a_request_without_rows_is_answered_without_a_run() {
    let session = open(ROWS, BucketPolicy::PowersOfTwo { max: 4 }, OnMiss::Wait, true, memory());
    let (outputs, report) = session.run(&[Tensor::zeros(DType::F32, [0, 2]).unwrap()]).unwrap();
    assert_eq!((outputs[0].shape(), report.reason), (&[0, 3][..], Reason::Empty));
    // Slices without bytes begin at an address that is aligned for nothing.
    let argument = Argument { dtype: DType::F32, shape: &[0, 2], bytes: &[] };
    let report = session.run_into(&[argument], &mut [&mut []]).unwrap();
    assert_eq!(report.reason, Reason::Empty);
    let whole = r#"graph "whole"(%0 "x": f32[n,2], %1 "s": f32[2]) {
  %2 = unary.relu(%0) {alpha=0.0, beta=0.0} : f32[n,2]
  %3 = unary.relu(%1) {alpha=0.0, beta=0.0} : f32[2]
  return "y" %2, "z" %3
}
"#;
    let session = open(whole, BucketPolicy::PowersOfTwo { max: 4 }, OnMiss::Wait, true, memory());
    let empty = session.run(&[Tensor::zeros(DType::F32, [0, 2]).unwrap(), input(1).reshaped([2]).unwrap()]);
    assert!(matches!(empty, Err(SessionError::EmptyBatch { output }) if output == "z"));
}

#[test]
fn inputs_and_outputs_without_rows_are_ordinary() {
    let source = r#"graph "mixed"(%0 "s": f32[], %1 "x": f32[n,2], %2 "w": f32[4]) {
  %3 = binary.mul(%1, %0) : f32[n,2]
  %4 = unary.relu(%2) {alpha=0.0, beta=0.0} : f32[4]
  return "y" %3, "z" %4
}
"#;
    let session = open(source, BucketPolicy::PowersOfTwo { max: 4 }, OnMiss::Wait, true, memory());
    // A batch of 4 beside a constant extent of 4, sizes that pad, and sizes that split.
    for rows in [1, 3, 4, 5, 11] {
        let inputs =
            [Tensor::scalar(2.5_f32), input(rows), Tensor::from_vec([4], vec![1.0_f32, -1.0, 2.0, 0.5]).unwrap()];
        let (outputs, _) = session.run(&inputs).unwrap();
        assert_eq!(outputs, eval_graph(&graph(source), &inputs).unwrap(), "{rows} rows");
    }
}

#[test]
fn several_dims_are_padded_at_once() {
    let source = r#"graph "two"(%0 "x": f32[n,m]) {
  %1 = unary.relu(%0) {alpha=0.0, beta=0.0} : f32[n,m]
  return "y" %1
}
"#;
    let mut options = options(BucketPolicy::PowersOfTwo { max: 4 });
    options.dims.insert("m".to_string(), DimOptions { buckets: BucketPolicy::List(vec![3, 8]) });
    let session = open_with(source, options, memory());
    assert_eq!(session.loaded().len(), 6);
    for (n, m) in [(1, 1), (3, 2), (4, 8), (7, 5), (9, 3)] {
        let elements = (0..n * m).map(|at| (at as f32 * 0.7).cos()).collect();
        let x = Tensor::from_vec([n, m], elements).unwrap();
        let (outputs, _) = session.run(std::slice::from_ref(&x)).unwrap();
        assert_eq!(outputs[0], expected(source, &x), "{n} × {m}");
    }
    let wide = Tensor::zeros(DType::F32, [1, 9]).unwrap();
    assert!(matches!(session.run(&[wide]), Err(SessionError::OutOfRange(_))));
    assert_eq!(session.counters().compiles(), 6);
}

#[test]
fn poisoned_padding_changes_nothing() {
    let clean = open(ROWS, BucketPolicy::PowersOfTwo { max: 8 }, OnMiss::Wait, true, memory());
    // As f32: NaN of both signs, nearly the largest number of both signs, a subnormal, and what else bytes may be.
    for byte in [0xff, 0x7f, 0xfe, 0x00, 0x01, 0x80, 0x5a, 0xc3] {
        let pad_content = PadContent::Poison(byte);
        let poison = SessionOptions { pad_content, ..options(BucketPolicy::PowersOfTwo { max: 8 }) };
        let poisoned = open_with(ROWS, poison, memory());
        for rows in 1..=20 {
            let x = input(rows);
            assert_eq!(run_into(&clean, &x).0, run_into(&poisoned, &x).0, "{rows} rows, bytes {byte:#x}");
        }
    }
}

/// A target that takes its time.
struct SlowTarget(Arc<CpuTarget>, std::time::Duration);

impl Target for SlowTarget {
    fn description(&self) -> &TargetDescription {
        self.0.description()
    }

    fn optimise_with(&self, graph: &Graph, report: &mut dyn FnMut(PassReport)) -> Result<Graph, PassError> {
        self.0.optimise_with(graph, report)
    }

    fn compile_optimised(
        &self,
        graph: &Graph,
        bucket: &Bucket,
        store: &dyn ArtifactStore,
    ) -> Result<Program, CompileError> {
        std::thread::sleep(self.1);
        self.0.compile_optimised(graph, bucket, store)
    }
}

fn open_slow(options: SessionOptions, millis: u64) -> Session {
    let slow = Arc::new(SlowTarget(target(), std::time::Duration::from_millis(millis)));
    Session::open_graph(&graph(ROWS), options, slow, Arc::new(CpuDevice::new(1)), memory()).unwrap()
}

#[test]
fn what_was_missed_is_compiled_in_the_background_and_then_used() {
    let chain = OnMissChain(vec![OnMiss::PadUp, OnMiss::Reference]);
    let lazy = SessionOptions { startup: Startup::Lazy, on_miss: chain, ..options(BucketPolicy::List(vec![2, 8])) };
    let session = open_slow(lazy, 50);
    let x = input(2);
    let (outputs, report) = session.run(std::slice::from_ref(&x)).unwrap();
    assert_eq!((report.path, report.reason), (Path::Reference, Reason::Reference));
    assert_near(&outputs[0], &expected(ROWS, &x));
    while session.loaded().is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let (_, report) = session.run(std::slice::from_ref(&x)).unwrap();
    assert_eq!((report.path, report.fit), (Path::Launch, Fit::Exact));
    // 5 rows: Bucket 8 is missing, and a Bucket of 2 rows is loaded, of which three have room.
    let (outputs, report) = session.run(&[input(5)]).unwrap();
    assert_eq!((report.reason, report.fit), (Reason::PadUp, Fit::Split));
    assert_near(&outputs[0], &expected(ROWS, &input(5)));
}

#[test]
fn waiting_for_a_compile_has_a_limit() {
    let wait = SessionOptions {
        startup: Startup::Lazy,
        on_miss: OnMiss::Wait.into(),
        on_miss_timeout: Some(std::time::Duration::from_millis(1)),
        ..options(BucketPolicy::List(vec![2]))
    };
    let session = open_slow(wait, 200);
    assert!(matches!(session.run(&[input(2)]), Err(SessionError::NotReady { .. })));
    while session.loaded().is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(session.run(&[input(2)]).is_ok(), "the compile went on");
}

#[test]
fn requests_can_be_submitted_and_a_full_queue_says_so() {
    let few = SessionOptions { waiting_max: 4, contexts: 1, ..options(BucketPolicy::PowersOfTwo { max: 8 }) };
    let session = open_with(ROWS, few, memory());
    let mut pending = Vec::new();
    let mut refused = 0;
    for rows in 1..=200 {
        match session.submit(vec![input(1 + rows % 20)]) {
            Ok(request) => pending.push((1 + rows % 20, request)),
            Err(SessionError::Busy { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    let answered = pending.len();
    for (rows, request) in pending {
        assert_near(&request.wait().unwrap().0[0], &expected(ROWS, &input(rows)));
    }
    assert_eq!(answered + refused, 200);
    assert!(session.submit(vec![input(1)]).unwrap().wait().is_ok(), "it recovers");
    // An answer may be handed to a function; one that panics harms nobody.
    let (send, receive) = std::sync::mpsc::channel();
    session.submit_then(vec![input(1)], |_| panic!("on purpose")).unwrap();
    session.submit_then(vec![input(3)], move |answer| send.send(answer.unwrap().0).unwrap()).unwrap();
    assert_eq!(receive.recv().unwrap()[0].shape(), [3, 3]);
}

#[test]
fn without_a_free_context_requests_wait_or_are_refused() {
    let reject = SessionOptions {
        contexts: 1,
        contexts_wait: ContextWait::Reject,
        ..options(BucketPolicy::PowersOfTwo { max: 8 })
    };
    for (options, may_refuse) in
        [(reject, true), (SessionOptions { contexts: 1, ..options(BucketPolicy::PowersOfTwo { max: 8 }) }, false)]
    {
        let session = open_with(ROWS, options, memory());
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let session = &session;
                scope.spawn(move || {
                    for round in 0..100 {
                        let x = input(1 + (thread + round) % 9);
                        match session.run(std::slice::from_ref(&x)) {
                            Ok((outputs, _)) => assert_near(&outputs[0], &expected(ROWS, &x)),
                            Err(error) => assert!(may_refuse && matches!(error, SessionError::Busy { .. }), "{error}"),
                        }
                    }
                });
            }
        });
        let counters = session.counters();
        let runs: u64 = [Tier::UltraFast, Tier::Fast, Tier::Standard].iter().map(|&tier| counters.runs(tier)).sum();
        assert_eq!(runs + counters.errors(), 600, "every request is counted once");
        let reasons: u64 = Reason::ALL.iter().map(|&reason| counters.reasons(reason)).sum();
        assert_eq!(reasons, runs);
    }
}

#[test]
fn memory_is_known_ahead_and_limited() {
    let session = open(ROWS, BucketPolicy::PowersOfTwo { max: 8 }, OnMiss::Wait, true, memory());
    let sheet = session.memory();
    let limited = |limit| SessionOptions { memory_limit: Some(limit), ..options(BucketPolicy::PowersOfTwo { max: 8 }) };
    let one = precast_session::MemorySheet { contexts: 1, ..sheet };
    let enough =
        Session::open_graph(&graph(ROWS), limited(one.total_bytes()), target(), Arc::new(CpuDevice::new(1)), memory());
    assert_eq!(enough.unwrap().memory().contexts, 1);
    let less = limited(one.total_bytes() - 1);
    let refused = Session::open_graph(&graph(ROWS), less, target(), Arc::new(CpuDevice::new(1)), memory());
    assert!(matches!(refused, Err(SessionError::Memory(_))));
    for rows in 1..=20 {
        session.run(&[input(rows)]).unwrap();
    }
    assert!(session.idle_context_bytes() <= sheet.total_bytes() + 64 * 4 * sheet.contexts, "{sheet}");
}

#[test]
fn bad_requests_name_what_is_wrong() {
    let session = open(ROWS, BucketPolicy::PowersOfTwo { max: 4 }, OnMiss::Wait, true, memory());
    let error = |inputs: &[Tensor]| session.run(inputs).unwrap_err().to_string();
    assert_eq!(error(&[]), "0 inputs are given where 1 are expected");
    let wide = Tensor::zeros(DType::F32, [2, 3]).unwrap();
    assert_eq!(error(&[wide]), "input 'x' is f32[2,3]; the model expects f32[n,2]");
    let x = input(2);
    let short = Argument { bytes: &x.as_bytes()[..8], ..Argument::from(&x) };
    let mut output = [0u8; 24];
    assert!(session.run_into(&[short], &mut [&mut output]).is_err());
    assert!(session.run_into(&[Argument::from(&x)], &mut [&mut output[..20]]).is_err());
    assert!(session.run_into(&[Argument::from(&x)], &mut []).is_err());
}

#[test]
fn a_request_of_another_form_is_refused_after_any_number_of_right_ones() {
    let session = open(ROWS, BucketPolicy::PowersOfTwo { max: 4 }, OnMiss::Wait, true, memory());
    let x = input(2);
    for _ in 0..3 {
        run_into(&session, &x);
    }
    let mut output = [0u8; 24];
    let mut error = |argument: Argument<'_>| {
        session.run_into(&[argument], &mut [&mut output]).expect_err("the request has another form").to_string()
    };
    let other_type = error(Argument { dtype: DType::I32, ..Argument::from(&x) });
    assert_eq!(other_type, "input 'x' is i32[2,2]; the model expects f32[n,2]");
    let short = error(Argument { bytes: &x.as_bytes()[..12], ..Argument::from(&x) });
    assert_eq!(short, "input 'x' has 12 bytes; its shape [2, 2] of f32 needs 16");
    let flat = error(Argument { shape: &[4], ..Argument::from(&x) });
    assert_eq!(flat, "input 'x' is f32[4]; the model expects f32[n,2]");
}

#[test]
fn unaligned_inputs_are_copied() {
    let session = open(ROWS, BucketPolicy::PowersOfTwo { max: 4 }, OnMiss::Wait, true, memory());
    let x = input(3);
    let mut words = vec![0u64; 8];
    let shifted = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut words)[1..25];
    shifted.copy_from_slice(x.as_bytes());
    let argument = Argument { bytes: shifted, ..Argument::from(&x) };
    let mut output = precast_session::OutputBuffer::new(36);
    let report = session.run_into(&[argument], &mut [output.as_bytes_mut()]).unwrap();
    assert_eq!((report.tier, report.reason), (Tier::Fast, Reason::Alignment));
    assert_eq!(output.as_ref(), run_into(&session, &x).0);
}

#[test]
fn costs_are_measured_once_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    let cache = || Arc::new(ProgramCache::open(CacheOptions::new(&root)).unwrap());
    let measured = SessionOptions { measures: true, ..options(BucketPolicy::PowersOfTwo { max: 4 }) };
    let first = open_with(ROWS, measured.clone(), cache());
    assert_eq!(first.costs().len(), 3);
    let second = open_with(ROWS, measured, cache());
    assert_eq!(first.costs(), second.costs());
    let (_, report) = second.run(&[input(3)]).unwrap();
    assert!(!report.is_cost_estimated);
}

#[test]
fn a_fitted_ladder_follows_the_traffic_of_the_session_before() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    let cache = || Arc::new(ProgramCache::open(CacheOptions::new(&root)).unwrap());
    let fitted = || options(BucketPolicy::Fitted { max: 16, count: Some(3) });
    let first = open_with(ROWS, fitted(), cache());
    assert_eq!(first.extents(), [1, 2, 3, 4, 6, 8, 12, 16]);
    for _ in 0..50 {
        first.run(&[input(5)]).unwrap();
        first.run(&[input(11)]).unwrap();
    }
    first.save_traffic();
    assert_eq!(open_with(ROWS, fitted(), cache()).extents(), [5, 11, 16]);
}

/// Every file below a folder, by its path from there.
fn files_below(folder: &std::path::Path) -> std::collections::BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut files = std::collections::BTreeMap::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                files.insert(path.strip_prefix(folder).unwrap().to_path_buf(), std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

#[test]
fn two_builds_of_a_model_give_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let build = |name: &str, jobs: usize| {
        let root = folder.path().join(name);
        let cache = Arc::new(ProgramCache::open(CacheOptions::new(&root)).unwrap());
        open_with(ROWS, SessionOptions { jobs, ..options(BucketPolicy::PowersOfTwo { max: 16 }) }, cache);
        (files_below(&root.join("programs")), files_below(&root.join("weights")))
    };
    let first = build("first", 1);
    assert_eq!(first.0.len(), 5);
    assert!(first == build("second", 8), "artifacts differ");
}

#[test]
fn jobs_side_by_side_give_what_they_give_one_after_another() {
    for threads in [1, 2, 4] {
        let target = Arc::new(CpuTarget::new(Isa::detect(), threads, Default::default()));
        let device = Arc::new(CpuDevice::new(threads));
        let options = SessionOptions { contexts: 3, ..options(BucketPolicy::Exact) };
        let session = Session::open_graph(&graph(ROWS), options, target, device, memory()).unwrap();
        assert_eq!(session.jobs_beside(), threads.min(3));
        let found = session.do_beside((1..20).collect(), |rows: usize| run_into(&session, &input(rows)).0);
        let expected: Vec<Vec<u8>> = (1..20).map(|rows| expected(ROWS, &input(rows)).as_bytes().to_vec()).collect();
        assert_eq!(found, expected, "{threads} threads");
    }
}
