//! `cargo xtask fuzz`: inputs that nobody wrote, given to everything that reads bytes or text, and graphs that nobody wrote,
//! given to everything that computes. Every input is a function of its seed, so a failure is named by a target and a number.
//! Worker processes take the inputs in batches: a crash or a hang costs a batch, which is then gone through one by one.

mod cache_files;
mod differential;
mod graphs;
mod growing;
pub mod makers;
mod messages;
mod mutate;
mod reduce;
mod targets;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::paths;
use crate::worker::{Answer, Request, Worker, on_all_cores};

pub use differential::run_graphs;
pub use graphs::{Generated, example};
pub use targets::Fuzzer;

/// An input that takes longer hangs.
const HANG: Duration = Duration::from_secs(5);
/// Inputs that a worker takes at a time.
const BATCH_INPUTS: u64 = 256;
/// Graphs that a worker takes at a time.
const BATCH_GRAPHS: u64 = 50;
/// Longest note that is kept.
const NOTE_CHARACTERS_MAX: usize = 160;
/// A batch that takes longer has an input that hangs.
const BATCH_SECONDS_MAX: u64 = 60;

/// Arguments of `cargo xtask fuzz`.
#[derive(Args)]
pub struct FuzzArguments {
    /// How long each target is fuzzed.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only this target.
    #[arg(long)]
    target: Option<FuzzTarget>,
    /// Graphs of the differential target, instead of a time.
    #[arg(long)]
    graphs: Option<u64>,
    /// The first seed: another one gives other inputs.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Print what was noticed and is no failure: nodes that were refused, why onnxruntime did not judge, and what became of
    /// changed caches.
    #[arg(long)]
    notes: bool,
    /// Write the bytes of the first seed of the target there, and fuzz nothing.
    #[arg(long, requires = "target")]
    input_to: Option<PathBuf>,
    /// Reduce the graph of the first seed to what still fails, and write it there.
    #[arg(long)]
    reduce_to: Option<PathBuf>,
    /// Write the corpora again from the graph generator, and fuzz nothing.
    #[arg(long)]
    write_corpus: bool,
}

/// What is fuzzed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum FuzzTarget {
    /// Bytes of ONNX files, and whole models with wrong fields.
    Onnx,
    /// The text form of Graphs.
    Text,
    /// Program files, with digests made right again.
    Program,
    /// Files of a cache.
    Cache,
    /// Tuning files.
    Tuning,
    /// Adapter files.
    Adapter,
    /// Random graphs: reference, CPU with and without passes, onnxruntime.
    Differential,
}

impl FuzzTarget {
    const ALL: [FuzzTarget; 7] = [
        FuzzTarget::Onnx,
        FuzzTarget::Text,
        FuzzTarget::Program,
        FuzzTarget::Cache,
        FuzzTarget::Tuning,
        FuzzTarget::Adapter,
        FuzzTarget::Differential,
    ];

    /// Its name in commands, reports and folders.
    pub fn name(self) -> &'static str {
        match self {
            FuzzTarget::Onnx => "onnx",
            FuzzTarget::Text => "text",
            FuzzTarget::Program => "program",
            FuzzTarget::Cache => "cache",
            FuzzTarget::Tuning => "tuning",
            FuzzTarget::Adapter => "adapter",
            FuzzTarget::Differential => "differential",
        }
    }
}

/// What a batch of inputs did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BatchReport {
    /// Inputs that were taken.
    pub inputs: u64,
    /// Of these, those that were accepted as valid.
    pub accepted: u64,
    /// Most bytes that an input had allocated at once.
    pub allocated_max: u64,
    /// Seeds that failed, with the reason.
    pub failures: Vec<(u64, String)>,
    /// What was noticed and is no failure, with how often.
    pub notes: BTreeMap<String, u64>,
}

impl BatchReport {
    fn add(&mut self, other: BatchReport) {
        self.inputs += other.inputs;
        self.accepted += other.accepted;
        self.allocated_max = self.allocated_max.max(other.allocated_max);
        self.failures.extend(other.failures);
        for (note, count) in other.notes {
            *self.notes.entry(note).or_default() += count;
        }
    }

    /// Counts something that is no failure. Names of values and numbers differ from graph to graph, so they are left out.
    fn note(&mut self, text: &str) {
        let words = text.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
        let text: String = words.collect::<Vec<&str>>().join(" ").chars().take(NOTE_CHARACTERS_MAX).collect();
        *self.notes.entry(text).or_default() += 1;
    }
}

/// The folder of a target's corpus.
pub fn corpus_folder(target: FuzzTarget) -> PathBuf {
    paths::root().join("fuzz").join("corpus").join(target.name())
}

/// Fuzzes the targets that the arguments select.
pub fn run(arguments: &FuzzArguments) -> Result<()> {
    if arguments.write_corpus {
        return targets::write_corpus();
    }
    if let (Some(path), Some(target)) = (&arguments.input_to, arguments.target) {
        return Ok(fs::write(path, Fuzzer::new(target)?.input_of(arguments.first)?)?);
    }
    if let Some(folder) = &arguments.reduce_to {
        return reduce::reduce_to(arguments.first, folder);
    }
    let mut reports = serde_json::Map::new();
    let mut failed = 0;
    for target in FuzzTarget::ALL.into_iter().filter(|target| arguments.target.is_none_or(|only| only == *target)) {
        let report = match target {
            FuzzTarget::Differential => differential::run(arguments)?,
            _ => fuzz(target, arguments)?,
        };
        failed += report.failures.len();
        for (seed, reason) in &report.failures {
            eprintln!("{} {seed}: {reason}", target.name());
        }
        let failures = report.failures.len() as u64;
        let rest = report.inputs.saturating_sub(report.accepted + failures);
        let json = match target {
            FuzzTarget::Differential => {
                json!({ "inputs": report.inputs, "judged": report.accepted, "unjudged": rest, "failures": failures })
            }
            _ => json!({
                "inputs": report.inputs,
                "accepted": report.accepted,
                "refused": rest,
                "allocated_max": report.allocated_max,
                "failures": failures,
            }),
        };
        if arguments.notes {
            print_notes(&report);
        }
        eprintln!("{} {json}", target.name());
        reports.insert(target.name().to_string(), json);
    }
    println!("{}", serde_json::Value::Object(reports));
    ensure!(failed == 0, "{failed} inputs failed");
    Ok(())
}

/// What was noticed, the most frequent first.
fn print_notes(report: &BatchReport) {
    let mut notes: Vec<(&String, &u64)> = report.notes.iter().collect();
    notes.sort_by_key(|(note, count)| (std::cmp::Reverse(**count), *note));
    for (note, count) in notes {
        eprintln!("{count:6} {note}");
    }
}

/// Fuzzes one target on every core until its time is over.
fn fuzz(target: FuzzTarget, arguments: &FuzzArguments) -> Result<BatchReport> {
    let (next, total) = (AtomicU64::new(arguments.first), Mutex::new(BatchReport::default()));
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    let run_some = || -> Result<()> {
        let mut worker = None;
        while Instant::now() < end {
            let first = next.fetch_add(BATCH_INPUTS, Ordering::Relaxed);
            let report = run_batch(target, first, BATCH_INPUTS, &mut worker)?;
            total.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).add(report);
        }
        Ok(())
    };
    on_all_cores(&run_some)?;
    Ok(total.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// A batch in a worker; if that does not come back, its inputs one by one.
fn run_batch(target: FuzzTarget, first: u64, count: u64, kept: &mut Option<Worker>) -> Result<BatchReport> {
    let seconds = Duration::from_secs(BATCH_SECONDS_MAX);
    match ask(target, first, count, seconds, kept)? {
        Ok(report) => Ok(report),
        Err(_) if count > 1 => {
            let mut report = BatchReport::default();
            for seed in first..first + count {
                match ask(target, seed, 1, HANG, kept)? {
                    Ok(one) => report.add(one),
                    Err(reason) => report.failures.push((seed, reason)),
                }
            }
            Ok(report)
        }
        Err(reason) => Ok(BatchReport { inputs: 1, failures: vec![(first, reason)], ..BatchReport::default() }),
    }
}

/// What a worker answers, or how it was lost.
fn ask(
    target: FuzzTarget,
    first: u64,
    count: u64,
    timeout: Duration,
    kept: &mut Option<Worker>,
) -> Result<Result<BatchReport, String>> {
    let mut worker = match kept.take() {
        Some(worker) => worker,
        None => Worker::start_own(Stdio::null())?,
    };
    match worker.ask(&serde_json::to_string(&Request::Fuzz { target, first, count })?, timeout) {
        Answer::Line(line) => {
            *kept = Some(worker);
            serde_json::from_str(&line).with_context(|| format!("unexpected answer '{line}'"))
        }
        Answer::Died(status) => Ok(Err(format!("crashed: {status}"))),
        Answer::TimedOut => Ok(Err(format!("no answer after {} s", timeout.as_secs()))),
    }
}

/// The files of a corpus in the order of their names.
pub fn read_corpus(target: FuzzTarget) -> Result<Vec<Vec<u8>>> {
    let folder = corpus_folder(target);
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read '{}'", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.sort();
    paths.iter().map(|path| Ok(fs::read(path)?)).collect()
}
