//! Sessions on the CPU: every size gives what reference evaluation gives, by one Bucket, a padded one or several.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use precast_cache::{CacheOptions, Mode, ProgramCache};
use precast_cpu::{CpuDevice, CpuTarget, Isa};
use precast_ir::attr::NoConstants;
use precast_ir::eval::eval_graph;
use precast_ir::{Graph, text};
use precast_session::{BucketPolicy, DimOptions, Fit, OnMiss, Origin, Session, SessionError, SessionOptions, Tier};
use precast_tensor::Tensor;

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

fn open(source: &str, buckets: BucketPolicy, on_miss: OnMiss, opens_all: bool, cache: Arc<ProgramCache>) -> Session {
    let mut options = SessionOptions { on_miss, opens_all, ..SessionOptions::default() };
    options.dims.insert("n".to_string(), DimOptions { buckets });
    let target = Arc::new(CpuTarget::new(Isa::detect(), 1, Default::default()));
    Session::open(&graph(source), options, target, Arc::new(CpuDevice::new(1)), cache).unwrap()
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
        assert_eq!(report.chunks.iter().map(|chunk| chunk.rows).sum::<i64>(), rows as i64);
    }
    assert_eq!(session.counters().compiles(), 4, "no request compiled anything");
}

#[test]
fn a_repeated_request_is_ultra_fast() {
    let session = open(ROWS, BucketPolicy::PowersOfTwo { max: 4 }, OnMiss::Wait, true, memory());
    let x = input(3);
    let tiers: Vec<Tier> = (0..3).map(|_| session.run(std::slice::from_ref(&x)).unwrap().1.tier).collect();
    assert_eq!(tiers, [Tier::Fast, Tier::UltraFast, Tier::UltraFast]);
    assert_eq!(session.counters().runs(Tier::UltraFast), 2);
    assert_eq!(session.counters().rows(), (9, 3));
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
    assert!(matches!(error, SessionError::Request(_)), "{error}");
}

#[test]
fn each_on_miss_policy_does_what_it_says() {
    let buckets = || BucketPolicy::List(vec![2, 8]);
    let x = input(2);
    let rejected = open(ROWS, buckets(), OnMiss::Reject, false, memory()).run(std::slice::from_ref(&x)).unwrap_err();
    assert!(matches!(rejected, SessionError::NotReady { .. }), "{rejected}");
    let by_reference = open(ROWS, buckets(), OnMiss::Reference, false, memory());
    let (outputs, report) = by_reference.run(std::slice::from_ref(&x)).unwrap();
    assert_eq!((report.tier, by_reference.counters().compiles()), (Tier::Standard, 0));
    assert_near(&outputs[0], &expected(ROWS, &x));
    let waited = open(ROWS, buckets(), OnMiss::Wait, false, memory());
    assert_eq!(waited.run(std::slice::from_ref(&x)).unwrap().1.origin, Origin::Compiled);
}

#[test]
fn pad_up_takes_a_larger_loaded_bucket() {
    let session = open(ROWS, BucketPolicy::List(vec![2, 8]), OnMiss::PadUp, false, memory());
    session.run(&[input(8)]).unwrap();
    assert_eq!(session.counters().compiles(), 1);
    let x = input(2);
    let (outputs, report) = session.run(std::slice::from_ref(&x)).unwrap();
    assert_eq!((report.chunks[0].bucket, session.counters().compiles()), (8, 1));
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

#[test]
fn options_that_name_no_dim_are_refused() {
    let mut options = SessionOptions::default();
    options.dims.insert("m".to_string(), DimOptions { buckets: BucketPolicy::PowersOfTwo { max: 4 } });
    let target = Arc::new(CpuTarget::new(Isa::detect(), 1, Default::default()));
    let opened = Session::open(&graph(ROWS), options, target, Arc::new(CpuDevice::new(1)), memory());
    assert!(opened.is_err_and(|error| error.to_string().contains("no dim 'm'")));
}
