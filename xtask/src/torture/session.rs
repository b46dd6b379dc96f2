//! Sessions under load: sixteen threads, sizes in random order, every path at once, on every registry model with a dynamic
//! batch. Each answer is compared with the exact-shape run of the same request. One process a model, so that its memory
//! can be watched.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use precast::{
    Argument, BucketPolicy, ContextWait, Fit, Form, Model, OnMiss, OnMissChain, OutputBuffer, PadContent, PadGrade,
    Reason, SessionOptions, Startup, Tensor, Tier, relative_error,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::manifest::{self, ModelEntry, Source};
use crate::opened;
use crate::pcg64::Pcg64;
use crate::{fetch, inputs};

/// Threads that send requests.
const CLIENTS: usize = 16;
/// Largest batches of small and heavy models.
const MAX_SMALL: usize = 64;
const MAX_HEAVY: usize = 8;
/// Sizes that all clients send at once before the runs, each by two paths.
const WARM_SIZES: usize = 2;
/// Runs at least, of small and heavy models and in all.
const RUNS_SMALL: u64 = 2_000;
const RUNS_HEAVY: u64 = 50;
const RUNS_ALL: u64 = 100_000;
/// A model is small if a row takes less than this.
const SMALL_ROW: Duration = Duration::from_micros(1500);
/// Bytes that pad rows are filled with: floats are then NaN or huge, and indices -1 or far outside.
const POISONS: [u8; 2] = [0xff, 0x7f];
/// Bytes that all expected outputs of a model may have; its largest batch is lowered to that.
const EXPECTED_BYTES_MAX: usize = 1 << 30;
/// Outputs of more bytes are made by the Session, one run at a time, and not by each client for each size.
const OWN_BYTES_MAX: usize = 16 << 20;
/// Growth of memory after warm-up that is taken for noise of the allocator.
const GROWTH_BYTES_MAX: i64 = 16 << 20;

/// Arguments of `cargo xtask torture session`.
#[derive(Args)]
pub struct SessionArguments {
    /// Print the results as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Only the model of this name, in this process.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Runs of each model at most; for a quick look.
    #[arg(long, value_name = "N")]
    runs: Option<u64>,
}

/// How one model did.
#[derive(Debug, Serialize, Deserialize)]
struct ModelReport {
    name: String,
    max_batch: usize,
    runs: u64,
    row_ms: f64,
    /// Answers with the very bits of the exact-shape run.
    bit_equal: u64,
    /// The largest relative error of the others.
    worst_rel_err: f64,
    /// Answers that were wrong.
    wrong: u64,
    /// Runs on padding of NaNs that changed a bit, and runs on it.
    poisoned_changed: u64,
    poisoned_runs: u64,
    tiers: [u64; 3],
    fits: [u64; 3],
    reasons: Value,
    compiles: u64,
    /// Growth of resident memory after a fifth of the runs.
    grown_bytes: i64,
    seconds: f64,
    ok: bool,
}

/// Runs the torture.
pub fn run(arguments: &SessionArguments) -> Result<()> {
    if let Some(name) = &arguments.only {
        let report = torture_model(&find(name)?, arguments.runs)?;
        println!("{}", serde_json::to_string(&report)?);
        ensure!(report.ok, "{name}: {} wrong answers, {} bytes grown", report.wrong, report.grown_bytes);
        return Ok(());
    }
    let models: Vec<ModelEntry> = manifest::read()?
        .into_iter()
        .filter(|model| model.is_batch_dynamic && matches!(model.source, Source::Package(_)))
        .collect();
    let mut reports = Vec::new();
    let mut failed = Vec::new();
    for model in &models {
        match child(&model.name, arguments.runs) {
            Ok(report) => {
                print_report(&report);
                if !report.ok {
                    failed.push(model.name.clone());
                }
                reports.push(report);
            }
            Err(error) => {
                eprintln!("{:<24} FAILED: {error:#}", model.name);
                failed.push(model.name.clone());
            }
        }
    }
    // The rest of the hundred thousand goes to the model that is quickest.
    let done: u64 = reports.iter().map(|report| report.runs).sum();
    let quickest = reports.iter().min_by(|a, b| a.row_ms.total_cmp(&b.row_ms)).map(|report| report.name.clone());
    if let (Some(name), true, None) = (quickest, done < RUNS_ALL, arguments.runs) {
        let report = child(&name, Some(RUNS_ALL - done))?;
        print_report(&report);
        if !report.ok {
            failed.push(name);
        }
        reports.push(report);
    }
    let runs: u64 = reports.iter().map(|report| report.runs).sum();
    eprintln!(
        "{runs} runs on {} models, {} of them wrong",
        models.len(),
        reports.iter().map(|report| report.wrong).sum::<u64>()
    );
    if arguments.json {
        println!("{}", json!({ "ok": failed.is_empty(), "runs": runs, "models": reports }));
    }
    ensure!(failed.is_empty(), "models that fail: {}", failed.join(", "));
    Ok(())
}

fn print_report(report: &ModelReport) {
    let [ultra_fast, fast, standard] = report.tiers;
    eprintln!(
        "{:<24} {:>6} runs up to {:>2}: {:>6} bit-equal, worst {:.1e}, {} wrong; poisoned {} changed {}; \
         {ultra_fast}/{fast}/{standard}; grown {} KiB; {:.0} s{}",
        report.name,
        report.runs,
        report.max_batch,
        report.bit_equal,
        report.worst_rel_err,
        report.wrong,
        report.poisoned_runs,
        report.poisoned_changed,
        report.grown_bytes / 1024,
        report.seconds,
        if report.ok { "" } else { "  FAILED" }
    );
}

/// One model in a process of its own.
fn child(name: &str, runs: Option<u64>) -> Result<ModelReport> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["torture", "session", "--json", "--only", name]);
    if let Some(runs) = runs {
        command.args(["--runs", &runs.to_string()]);
    }
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    serde_json::from_str(line).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

fn find(name: &str) -> Result<ModelEntry> {
    manifest::read()?.into_iter().find(|model| model.name == name).with_context(|| format!("no model '{name}'"))
}

/// A request and the answer of the exact-shape run.
struct Case {
    inputs: Vec<Tensor>,
    expected: Vec<Tensor>,
}

fn bytes_of(tensors: &[Tensor]) -> usize {
    tensors.iter().map(|tensor| tensor.as_bytes().len()).sum()
}

/// What the clients count together.
#[derive(Default)]
struct Tally {
    started: AtomicU64,
    done: AtomicU64,
    bit_equal: AtomicU64,
    wrong: AtomicU64,
    poisoned_runs: AtomicU64,
    poisoned_changed: AtomicU64,
    /// Bits of the largest relative error, which order like the number.
    worst: AtomicU64,
    warm_bytes: AtomicUsize,
}

fn torture_model(entry: &ModelEntry, runs: Option<u64>) -> Result<ModelReport> {
    let begun = Instant::now();
    let model = Model::open(&fetch::model_file(entry)?)?;
    let folder = tempfile::tempdir()?;
    let cache = opened::cache_in(&folder.path().join("cache"))?;
    let exact = SessionOptions { startup: Startup::All, measures: false, ..SessionOptions::default() };
    let (_exact_model, exact) = opened::open(entry, &model, BucketPolicy::Exact, exact, &cache)?;
    let row_time = time_of_a_row(entry, &exact)?;
    let max = if row_time < SMALL_ROW { MAX_SMALL } else { MAX_HEAVY };
    let runs = runs.unwrap_or(if max == MAX_SMALL { RUNS_SMALL } else { RUNS_HEAVY });
    let mut cases = Vec::new();
    let mut expected_bytes = 0;
    for batch in 1..=max {
        let inputs = exact.in_order(&inputs::make(entry, batch)?)?;
        let (expected, _) = exact.session().run(&inputs)?;
        expected_bytes += bytes_of(&expected);
        cases.push(Case { inputs, expected });
        if expected_bytes / batch * (batch + 2) > EXPECTED_BYTES_MAX {
            break;
        }
    }
    let max = cases.len();
    let is_large = cases.last().is_some_and(|case| bytes_of(&case.expected) > OWN_BYTES_MAX);
    let buckets = BucketPolicy::PowersOfTwo { max: max as i64 };
    let wait = ContextWait::Block(Duration::from_secs(600));
    let contexts = if is_large { 1 } else { 4 };
    let all = SessionOptions { startup: Startup::All, contexts, contexts_wait: wait, ..SessionOptions::default() };
    let (_open_all, open_all) = opened::open(entry, &model, buckets.clone(), all.clone(), &cache)?;
    let chain = OnMissChain(vec![OnMiss::PadUp, OnMiss::Reference]);
    // Reference evaluation of a large model takes minutes; such a model waits.
    let chain =
        if row_time < Duration::from_millis(1) { chain } else { OnMissChain(vec![OnMiss::PadUp, OnMiss::Wait]) };
    let lazy = SessionOptions { startup: Startup::Lazy, on_miss: chain, ..all.clone() };
    let (_lazy, lazy) = opened::open(entry, &model, buckets.clone(), lazy, &cache)?;
    let mut poisoned = Vec::new();
    for byte in POISONS {
        let poison = SessionOptions { pad_content: PadContent::Poison(byte), ..all.clone() };
        poisoned.push(opened::open(entry, &model, buckets.clone(), poison, &cache)?.1);
    }
    let grade =
        open_all.session().primary_dim().and_then(|dim| open_all.session().interface().dim(dim)).map(|dim| dim.grade);
    let poisoned = if grade == Some(PadGrade::Independent) { poisoned } else { Vec::new() };
    let sessions = Sessions { open_all, lazy, poisoned };
    warm_up(&cases, &sessions)?;
    let tally = Tally::default();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (cases, sessions, tally) = (&cases, &sessions, &tally);
                scope.spawn(move || send(client as u128, entry, cases, sessions, runs, tally))
            })
            .collect();
        clients.into_iter().try_for_each(|client| client.join().expect("a client panicked"))
    })?;
    Ok(report_of(entry, &sessions, &tally, max, row_time, begun))
}

struct Sessions {
    open_all: Arc<Form>,
    lazy: Arc<Form>,
    /// Where any padding is allowed.
    poisoned: Vec<Arc<Form>>,
}

/// Runs every size once on each Session, and the largest requests on all contexts at once, so that all memory there will be
/// is there: the largest of all fills a Bucket, the next one has the most padded copies.
fn warm_up(cases: &[Case], sessions: &Sessions) -> Result<()> {
    for form in sessions.all() {
        for case in cases {
            form.session().run(&case.inputs)?;
        }
        for large in cases.iter().rev().take(WARM_SIZES) {
            std::thread::scope(|scope| {
                let runs = || {
                    form.session().run(&large.inputs).and_then(|_| form.session().submit(large.inputs.clone())?.wait())
                };
                let threads: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(runs)).collect();
                threads.into_iter().try_for_each(|thread| thread.join().expect("a client panicked").map(drop))
            })?;
        }
    }
    Ok(())
}

impl Sessions {
    fn all(&self) -> impl Iterator<Item = &Arc<Form>> {
        [&self.open_all, &self.lazy].into_iter().chain(&self.poisoned)
    }
}

/// Time of one row at batch 4: the shortest of a few, since another process may have the cores.
fn time_of_a_row(entry: &ModelEntry, form: &Form) -> Result<Duration> {
    const ROWS: usize = 4;
    const RUNS: usize = 4;
    let inputs = form.in_order(&inputs::make(entry, ROWS)?)?;
    let mut shortest = Duration::MAX;
    for _ in 0..RUNS {
        let begun = Instant::now();
        form.session().run(&inputs)?;
        shortest = shortest.min(begun.elapsed());
    }
    Ok(shortest / ROWS as u32)
}

/// One client: random sizes on random sessions by random paths.
fn send(client: u128, entry: &ModelEntry, cases: &[Case], sessions: &Sessions, runs: u64, tally: &Tally) -> Result<()> {
    let mut random = Pcg64::new(client + 1);
    // Made and written at once, so that they do not count as growth later.
    let buffer = |tensor: &Tensor| {
        let mut buffer = OutputBuffer::new(tensor.as_bytes().len());
        buffer.as_bytes_mut().fill(1);
        buffer
    };
    let own = |case: &Case| match bytes_of(&case.expected) > OWN_BYTES_MAX {
        true => Vec::new(),
        false => case.expected.iter().map(buffer).collect(),
    };
    let mut buffers: Vec<Vec<OutputBuffer>> = cases.iter().map(own).collect();
    while tally.started.fetch_add(1, Ordering::Relaxed) < runs {
        let batch = random.next_word() as usize % cases.len();
        let case = &cases[batch];
        let choice = random.next_word() % 8;
        let (form, is_poisoned) = match (choice, &sessions.poisoned[..]) {
            (0, _) => (&sessions.lazy, false),
            (1 | 2, poisoned @ [_, ..]) => (&poisoned[choice as usize % poisoned.len()], true),
            _ => (&sessions.open_all, false),
        };
        let session = form.session();
        let owned;
        let is_large = buffers[batch].is_empty();
        let answers: Vec<&[u8]> = match random.next_word() % if is_large { 2 } else { 4 } {
            0 => {
                owned = session.run(&case.inputs)?.0;
                owned.iter().map(Tensor::as_bytes).collect()
            }
            1 => {
                owned = session.submit(case.inputs.clone())?.wait()?.0;
                owned.iter().map(Tensor::as_bytes).collect()
            }
            _ => {
                let own = &mut buffers[batch];
                // A result that is not written must show.
                own.iter_mut().for_each(|buffer| buffer.as_bytes_mut().fill(0xa5));
                let arguments: Vec<Argument<'_>> = case.inputs.iter().map(Argument::from).collect();
                let mut slices: Vec<&mut [u8]> = own.iter_mut().map(OutputBuffer::as_bytes_mut).collect();
                session.run_into(&arguments, &mut slices)?;
                own.iter().map(AsRef::as_ref).collect()
            }
        };
        judge(entry, case, &answers, is_poisoned, tally);
        let done = tally.done.fetch_add(1, Ordering::Relaxed) + 1;
        if done == runs / 5 {
            tally.warm_bytes.store(resident_bytes(), Ordering::Relaxed);
        }
    }
    Ok(())
}

fn judge(entry: &ModelEntry, case: &Case, answers: &[&[u8]], is_poisoned: bool, tally: &Tally) {
    let is_equal = case.expected.iter().zip(answers).all(|(expected, found)| expected.as_bytes() == *found);
    if is_equal {
        tally.bit_equal.fetch_add(1, Ordering::Relaxed);
    }
    let mut worst = 0f64;
    for (expected, found) in case.expected.iter().zip(answers).filter(|_| !is_equal) {
        let found = Tensor::new(expected.dtype(), expected.shape().to_vec(), found.to_vec().into());
        let error = match found {
            Ok(found) if expected.dtype().is_float() => relative_error(&found.to_f64_vec(), &expected.to_f64_vec()),
            Ok(found) if found == *expected => 0.0,
            _ => f64::INFINITY,
        };
        worst = worst.max(error);
    }
    tally.worst.fetch_max(worst.to_bits(), Ordering::Relaxed);
    let is_wrong = worst > entry.tolerance();
    tally.wrong.fetch_add(u64::from(is_wrong), Ordering::Relaxed);
    if is_poisoned {
        tally.poisoned_runs.fetch_add(1, Ordering::Relaxed);
        tally.poisoned_changed.fetch_add(u64::from(is_wrong), Ordering::Relaxed);
    }
}

fn report_of(
    entry: &ModelEntry,
    sessions: &Sessions,
    tally: &Tally,
    max: usize,
    row: Duration,
    begun: Instant,
) -> ModelReport {
    let counters = || sessions.all().map(|form| form.session().counters());
    let sum = |tier| counters().map(|counters| counters.runs(tier)).sum::<u64>();
    let fit = |fit| counters().map(|counters| counters.fits(fit)).sum::<u64>();
    let reason =
        |reason: &Reason| (reason.name().to_string(), json!(counters().map(|of| of.reasons(*reason)).sum::<u64>()));
    let runs = tally.done.load(Ordering::Relaxed);
    let tiers = [sum(Tier::UltraFast), sum(Tier::Fast), sum(Tier::Standard)];
    let warm_bytes = tally.warm_bytes.load(Ordering::Relaxed) as i64;
    let grown_bytes = if warm_bytes == 0 { 0 } else { resident_bytes() as i64 - warm_bytes };
    let wrong = tally.wrong.load(Ordering::Relaxed);
    let warm_runs = sessions.all().count() * (max + WARM_SIZES.min(max) * 2 * CLIENTS);
    let is_counted = tiers.iter().sum::<u64>() == runs + warm_runs as u64;
    let growth_max = GROWTH_BYTES_MAX.max(resident_bytes() as i64 / 32);
    ModelReport {
        name: entry.name.clone(),
        max_batch: max,
        runs,
        row_ms: row.as_secs_f64() * 1e3,
        bit_equal: tally.bit_equal.load(Ordering::Relaxed),
        worst_rel_err: f64::from_bits(tally.worst.load(Ordering::Relaxed)),
        wrong,
        poisoned_changed: tally.poisoned_changed.load(Ordering::Relaxed),
        poisoned_runs: tally.poisoned_runs.load(Ordering::Relaxed),
        tiers,
        fits: [fit(Fit::Exact), fit(Fit::Padded), fit(Fit::Split)],
        reasons: Reason::ALL.iter().map(reason).collect::<serde_json::Map<String, Value>>().into(),
        compiles: counters().map(|counters| counters.compiles()).sum(),
        grown_bytes,
        seconds: begun.elapsed().as_secs_f64(),
        ok: wrong == 0 && grown_bytes <= growth_max && is_counted,
    }
}

/// Memory of this process that is in use.
fn resident_bytes() -> usize {
    const PAGE: usize = 4096;
    let statm = std::fs::read_to_string(Path::new("/proc/self/statm")).unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).map_or(0, |pages| pages * PAGE)
}
