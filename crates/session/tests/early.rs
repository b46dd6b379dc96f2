//! Sessions that serve before all their Buckets are there: padded on what is there, then on what has come.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use precast_cache::{CacheOptions, Mode, ProgramCache};
use precast_cpu::{CpuDevice, CpuTarget, Isa};
use precast_ir::attr::NoConstants;
use precast_ir::eval::eval_graph;
use precast_ir::{Graph, text};
use precast_passes::{PassError, PassReport};
use precast_program::{ArtifactStore, Bucket, CompileError, Program, Target, TargetDescription};
use precast_session::{
    BucketPolicy, DimOptions, Observer, Phase, Progress, Readiness, Reason, RunReport, Session, SessionError,
    SessionOptions, Startup, Tier,
};
use precast_tensor::Tensor;

/// Two rows of weights, then relu: rows do not touch each other.
const ROWS: &str = r#"graph "rows"(%0 "x": f32[n,2]) {
  %1 = constant f32[2,3] [1.0, -2.0, 0.5, 3.0, 0.25, -1.0]
  %2 = matmul(%0, %1) {transpose_a=false, transpose_b=false} : f32[n,3]
  %3 = unary.relu(%2) {alpha=0.0, beta=0.0} : f32[n,3]
  return "y" %3
}
"#;

/// A target whose compiles of Buckets below a size wait at a gate, or fail.
struct GatedTarget {
    target: CpuTarget,
    is_open: Mutex<bool>,
    opened: Condvar,
    /// Extent that cannot be compiled.
    broken: Option<i64>,
    begun: AtomicUsize,
    done: AtomicUsize,
    /// Extents in the order in which their compiles began.
    order: Mutex<Vec<i64>>,
}

/// The Bucket that passes the gate.
const LARGEST: i64 = 8;

impl GatedTarget {
    fn new(is_open: bool, broken: Option<i64>) -> Arc<GatedTarget> {
        Arc::new(GatedTarget {
            target: CpuTarget::new(Isa::detect(), 1, Default::default()),
            is_open: Mutex::new(is_open),
            opened: Condvar::new(),
            broken,
            begun: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            order: Mutex::default(),
        })
    }

    fn open_gate(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn wait_for_begun(&self, count: usize) {
        while self.begun.load(Ordering::SeqCst) < count {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Target for GatedTarget {
    fn description(&self) -> &TargetDescription {
        self.target.description()
    }

    fn optimise_with(&self, graph: &Graph, report: &mut dyn FnMut(PassReport)) -> Result<Graph, PassError> {
        self.target.optimise_with(graph, report)
    }

    fn compile_optimised(
        &self,
        graph: &Graph,
        bucket: &Bucket,
        store: &dyn ArtifactStore,
    ) -> Result<Program, CompileError> {
        let extent = bucket.dims().next().unwrap().1;
        self.order.lock().unwrap().push(extent);
        self.begun.fetch_add(1, Ordering::SeqCst);
        if extent < LARGEST {
            drop(self.opened.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
        }
        if self.broken == Some(extent) {
            return Err(PassError { pass: "test", reason: "a broken Bucket".to_string() }.into());
        }
        let program = self.target.compile_optimised(graph, bucket, store);
        self.done.fetch_add(1, Ordering::SeqCst);
        program
    }
}

fn memory() -> Arc<ProgramCache> {
    Arc::new(ProgramCache::open(CacheOptions { mode: Mode::Off, ..CacheOptions::new("") }).unwrap())
}

fn options() -> SessionOptions {
    let mut options = SessionOptions { measures: false, ..SessionOptions::default() };
    let buckets = BucketPolicy::PowersOfTwo { max: LARGEST };
    options.dims.insert("n".to_string(), DimOptions { buckets });
    options
}

fn graph() -> Graph {
    text::parse(ROWS, &NoConstants).unwrap()
}

fn open(options: SessionOptions, target: &Arc<GatedTarget>, cache: Arc<ProgramCache>) -> Session {
    Session::open_graph(&graph(), options, target.clone(), Arc::new(CpuDevice::new(1)), cache).unwrap()
}

/// Runs a request of so many rows, whose answer must be right.
fn run(session: &Session, rows: usize) -> RunReport {
    let elements = (0..rows * 2).map(|at| (at as f32 * 0.37).sin() * 3.0).collect();
    let x = Tensor::from_vec([rows, 2], elements).unwrap();
    let expected = eval_graph(&graph(), std::slice::from_ref(&x)).unwrap();
    let (outputs, report) = session.run(&[x]).unwrap();
    for (a, b) in outputs[0].to_f64_vec().into_iter().zip(expected[0].to_f64_vec()) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} found where {b} is expected");
    }
    report
}

fn bucket_of(report: &RunReport) -> i64 {
    report.chunks.named()[0].bucket
}

#[test]
fn the_largest_bucket_serves_until_the_others_are_there() {
    let target = GatedTarget::new(false, None);
    let session = open(options(), &target, memory());
    assert_eq!(target.done.load(Ordering::SeqCst), 1, "only the largest is compiled");
    let is_early = target.order.lock().unwrap().iter().take(2).any(|&extent| extent == LARGEST);
    assert!(is_early, "it waits for no slot");
    assert!(matches!(session.readiness(), Readiness::Partial));
    for _ in 0..2 {
        let report = run(&session, 1);
        assert_eq!((bucket_of(&report), report.tier, report.reason), (LARGEST, Tier::Standard, Reason::PadUp));
    }
    assert!(matches!(session.wait_until_ready(Some(Duration::from_millis(1))), Readiness::Partial));
    target.open_gate();
    assert!(matches!(session.wait_until_ready(None), Readiness::Ready));
    for rows in 1..=20 {
        assert!(run(&session, rows).reason != Reason::PadUp, "{rows} rows");
    }
    assert_eq!(bucket_of(&run(&session, 1)), 1);
    let counters = session.counters();
    assert_eq!((counters.compiles(), counters.failures(), counters.reasons(Reason::PadUp)), (4, 0, 2));
}

#[test]
fn each_bucket_is_taken_into_use_when_it_comes() {
    let target = GatedTarget::new(true, None);
    let session = open(SessionOptions { jobs: 1, ..options() }, &target, memory());
    for rows in (1..=20).cycle().take(2000) {
        let loaded = session.loaded();
        let report = run(&session, rows);
        let least = loaded.iter().map(|bucket| bucket.dims().next().unwrap().1).filter(|&size| size >= rows as i64);
        if let Some(least) = least.min() {
            assert!(bucket_of(&report) <= least, "{rows} rows ran on {report:?} where {loaded:?} were there");
        }
    }
    assert!(matches!(session.wait_until_ready(None), Readiness::Ready));
}

#[test]
fn dropping_publishes_what_has_begun_and_gives_up_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    let cache = || Arc::new(ProgramCache::open(CacheOptions::new(&root)).unwrap());
    let target = GatedTarget::new(false, None);
    let session = open(SessionOptions { jobs: 1, ..options() }, &target, cache());
    target.wait_for_begun(2);
    let opener = std::thread::spawn({
        let target = target.clone();
        move || {
            std::thread::sleep(Duration::from_millis(50));
            target.open_gate();
        }
    });
    drop(session);
    opener.join().unwrap();
    let (begun, done) = (target.begun.load(Ordering::SeqCst), target.done.load(Ordering::SeqCst));
    assert_eq!((begun, done), (2, 2), "the one that had begun was waited for, and no other began");
    assert_eq!(cache().ls().unwrap().len(), 2, "what was compiled is published");
    let again = GatedTarget::new(true, None);
    let session = open(options(), &again, cache());
    assert!(matches!(session.wait_until_ready(None), Readiness::Ready));
    assert_eq!((session.counters().compiles(), session.counters().loads()), (2, 2));
}

#[test]
fn a_bucket_that_fails_in_the_background_is_reported_and_does_without() {
    let target = GatedTarget::new(true, Some(4));
    let told: Arc<Mutex<Vec<Progress>>> = Arc::default();
    let observer = told.clone();
    let progress = Observer(Some(Arc::new(move |progress: &Progress| observer.lock().unwrap().push(progress.clone()))));
    let session = open(SessionOptions { progress, measures: true, ..options() }, &target, memory());
    let readiness = session.wait_until_ready(None);
    assert!(matches!(&readiness, Readiness::Degraded(SessionError::Compile(_))), "{readiness:?}");
    assert_eq!((session.counters().compiles(), session.counters().failures()), (3, 1));
    let report = run(&session, 4);
    assert!(bucket_of(&report) != 4 && report.reason == Reason::PadUp, "{report:?}");
    assert_eq!(session.counters().failures(), 1, "it is not tried with every request");
    let told = told.lock().unwrap();
    let last = told.last().unwrap();
    assert_eq!((last.phase, last.done, last.total, last.failed), (Phase::Ready, 4, 4, 1));
    assert!(told.windows(2).all(|pair| pair[0].done <= pair[1].done), "progress never goes back");
}

#[test]
fn a_largest_bucket_that_fails_is_an_error_of_opening() {
    let target = GatedTarget::new(true, Some(LARGEST));
    let opened = Session::open_graph(&graph(), options(), target, Arc::new(CpuDevice::new(1)), memory());
    assert!(matches!(opened, Err(SessionError::Compile(_))));
}

#[test]
fn two_sessions_on_one_cache_compile_once_and_outlive_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Arc::new(ProgramCache::open(CacheOptions::new(folder.path().join("cache"))).unwrap());
    let target = GatedTarget::new(false, None);
    let first = open(SessionOptions { jobs: 1, ..options() }, &target, cache.clone());
    let second = open(SessionOptions { jobs: 1, ..options() }, &target, cache);
    target.wait_for_begun(2);
    let dropper = std::thread::spawn(move || drop(first));
    std::thread::sleep(Duration::from_millis(20));
    target.open_gate();
    dropper.join().unwrap();
    assert!(matches!(second.wait_until_ready(None), Readiness::Ready));
    assert_eq!(target.begun.load(Ordering::SeqCst), 4, "each Bucket was compiled once");
    for rows in 1..=9 {
        assert!(run(&second, rows).reason != Reason::PadUp);
    }
}

#[test]
fn measuring_waits_for_a_pause_or_for_somebody_who_waits() {
    let target = GatedTarget::new(true, None);
    let session = open(SessionOptions { measures: true, ..options() }, &target, memory());
    while session.loaded().len() < 4 {
        run(&session, 3);
    }
    for _ in 0..200 {
        assert!(run(&session, 3).is_cost_estimated, "nothing is measured beside a stream of requests");
    }
    assert!(matches!(session.wait_until_ready(None), Readiness::Ready));
    assert_eq!(session.costs().len(), 4);
    assert!(!run(&session, 3).is_cost_estimated);
}

#[test]
fn the_default_serves_early_and_lazy_sessions_are_ready_at_once() {
    assert_eq!(SessionOptions::default().startup, Startup::Largest);
    let target = GatedTarget::new(false, None);
    let session = open(SessionOptions { startup: Startup::Lazy, ..options() }, &target, memory());
    assert!(matches!(session.wait_until_ready(None), Readiness::Ready));
    assert_eq!(target.begun.load(Ordering::SeqCst), 0);
}
