//! `perf`: how fast a model or Program file runs. Runs are timed one by one, after a warm-up.

use std::fmt::Write;
use std::time::{Duration, Instant};

use precast::{DeviceRun, Named, Ready};
use serde_json::{Value, json};

use crate::Cx;
use crate::args::{InputArgs, PerfArgs, Shared};
use crate::exit::{Exit, Failure};
use crate::fitting::with_inputs;
use crate::inputs::row_symbols;
use crate::output::{Report, program_json, program_text};
use crate::perf_session::perf_session;
use crate::perf_steps::StepTable;
use crate::run::port_json;
use crate::subject::{Subject, options};

/// How long to measure when nothing is said, in seconds.
const DURATION_S: f64 = 3.0;
/// What is printed, as parts of all runs that are faster.
const PERCENTILES: [(&str, f64); 4] = [("p50", 0.50), ("p90", 0.90), ("p95", 0.95), ("p99", 0.99)];

/// Measures.
pub fn perf(args: &PerfArgs, shared: &Shared, cx: &Cx) -> Result<Report, Failure> {
    if let Some(max_batch) = args.max_batch {
        return perf_session(args, max_batch, shared, cx);
    }
    let subject = Subject::open_tuned(&args.file, shared, &args.tune, args.cache.as_deref())?;
    let mut rows = Vec::new();
    for input_args in requests(args, &subject)? {
        let message = format!("measuring {}/{}", rows.len() + 1, args.batches.0.len().max(1));
        // The first row counts from the start of the process: that is what its user waits for.
        let begun = if rows.is_empty() { cx.started } else { Instant::now() };
        rows.push(measure(&subject, args, &input_args, begun, &message, cx)?);
    }
    let (threads, isa, device) = (options(shared).threads, subject.isa(shared), shared.device());
    let mut text = format!(
        "model    {} · {device} · {isa} · {threads} threads · first result after {:.1} ms\n",
        args.file.display(),
        rows.first().map_or(0.0, |row| row.first_ms)
    );
    text.push_str(&rows_text(&rows, &args.batches.0));
    let mut json = rows.first().map_or(json!({}), Row::json);
    json["model"] = json!(args.file.display().to_string());
    json["threads"] = json!(threads);
    json["isa"] = json!(isa);
    json["device"] = json!(device.to_string());
    if !args.batches.0.is_empty() {
        let with_batch = |(row, batch): (&Row, &usize)| {
            let mut json = row.json();
            json["batch"] = json!(batch);
            json
        };
        json["batches"] = rows.iter().zip(&args.batches.0).map(with_batch).collect();
    }
    Ok(Report::done(text, json))
}

/// The inputs to measure: as they are given, or once for each batch.
fn requests(args: &PerfArgs, subject: &Subject) -> Result<Vec<InputArgs>, Failure> {
    let given = |shapes| InputArgs { inputs: args.inputs.inputs.clone(), seed: args.inputs.seed, shapes };
    if args.batches.0.is_empty() {
        return Ok(vec![given(args.inputs.shapes.clone())]);
    }
    let symbols = row_symbols(&subject.inputs()?);
    if symbols.is_empty() {
        return Err(Failure::usage("--batches: axis 0 of every input has a fixed size"));
    }
    let with_batch = |&batch: &usize| {
        let mut shapes = args.inputs.shapes.clone();
        shapes.dims.extend(symbols.iter().map(|symbol| (symbol.as_str().to_string(), batch)));
        given(shapes)
    };
    Ok(args.batches.0.iter().map(with_batch).collect())
}

/// What was measured for one set of inputs.
struct Row {
    inputs: Named,
    bucket: String,
    /// From the start of the process, or for later rows of the row, to the first result.
    first_ms: f64,
    compile_ms: f64,
    /// Times of the runs, in order of size.
    runs_ms: Vec<f64>,
    total_s: f64,
    program: Option<(String, Value)>,
    /// How the device carried out the last run.
    launch: Option<DeviceRun>,
    steps: Option<StepTable>,
}

/// What is run: a Program with its buffers, or a model part by part.
enum Work<'a> {
    Ready(Box<Ready>),
    Parts(&'a Subject),
}

impl<'a> Work<'a> {
    /// Compiles, in so many milliseconds, and runs once.
    fn begin(subject: &'a Subject, inputs: &Named) -> Result<(Work<'a>, f64), Failure> {
        let begun = Instant::now();
        let mut work = match subject.ready(inputs)? {
            Some(ready) => Work::Ready(Box::new(ready)),
            None => Work::Parts(subject),
        };
        let compile_ms = begun.elapsed().as_secs_f64() * 1e3;
        work.run(inputs)?;
        Ok((work, compile_ms))
    }

    fn run(&mut self, inputs: &Named) -> Result<(), Failure> {
        match self {
            Work::Ready(ready) => Ok(ready.run()?),
            Work::Parts(subject) => subject.run(inputs).map(drop),
        }
    }
}

fn measure(
    subject: &Subject,
    args: &PerfArgs,
    input_args: &InputArgs,
    begun: Instant,
    message: &str,
    cx: &Cx,
) -> Result<Row, Failure> {
    let declared = subject.inputs()?;
    let (inputs, (mut work, compile_ms)) =
        with_inputs(&declared, subject.runner(), input_args, &cx.console, |inputs| {
            cx.console.during("compiling", None, || Work::begin(subject, &inputs.tensors))
        })?;
    let first_ms = begun.elapsed().as_secs_f64() * 1e3;
    let limits = Limits::new(args);
    let timed = cx.console.during(message, Some(limits.warm_up + limits.duration), || {
        let warm_up_begun = Instant::now();
        while warm_up_begun.elapsed() < limits.warm_up {
            work.run(&inputs.tensors)?;
        }
        time_runs(&mut work, &inputs.tensors, &limits)
    });
    let (mut runs_ms, total_s) = timed?;
    let launch = match &work {
        Work::Ready(ready) => Some(ready.last_run()),
        Work::Parts(_) => None,
    };
    runs_ms.sort_by(f64::total_cmp);
    let steps = match (&mut work, args.per_step) {
        (_, false) => None,
        (Work::Ready(ready), true) => Some(StepTable::measure(ready)?),
        (Work::Parts(_), true) => {
            return Err(Failure::new(
                Exit::Model,
                "--per-step: the model is not one Program, so it has no list of steps",
            ));
        }
    };
    let program = match &work {
        Work::Ready(ready) => Some((program_text(ready.program()), program_json(ready.program()))),
        Work::Parts(_) => None,
    };
    let bucket = inputs.bucket.to_string();
    Ok(Row { inputs: inputs.tensors, bucket, first_ms, compile_ms, runs_ms, total_s, program, launch, steps })
}

/// When measuring ends: after so many runs and so much time.
struct Limits {
    warm_up: Duration,
    duration: Duration,
    runs: u64,
}

impl Limits {
    fn new(args: &PerfArgs) -> Limits {
        let seconds = args.duration.unwrap_or(if args.iterations.is_some() { 0.0 } else { DURATION_S });
        Limits {
            warm_up: Duration::from_millis(args.warm_up),
            duration: Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
            runs: args.iterations.unwrap_or(1).max(1),
        }
    }
}

fn time_runs(work: &mut Work<'_>, inputs: &Named, limits: &Limits) -> Result<(Vec<f64>, f64), Failure> {
    let begun = Instant::now();
    let mut runs_ms = Vec::new();
    while (runs_ms.len() as u64) < limits.runs || begun.elapsed() < limits.duration {
        let run_begun = Instant::now();
        work.run(inputs)?;
        runs_ms.push(run_begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok((runs_ms, begun.elapsed().as_secs_f64()))
}

impl Row {
    fn mean(&self) -> f64 {
        self.runs_ms.iter().sum::<f64>() / self.runs_ms.len() as f64
    }

    fn rate(&self) -> f64 {
        self.runs_ms.len() as f64 / self.total_s
    }

    fn json(&self) -> Value {
        let mut latency = json!({
            "min": self.runs_ms.first(),
            "mean": self.mean(),
            "max": self.runs_ms.last(),
        });
        for (name, part) in PERCENTILES {
            latency[name] = json!(percentile(&self.runs_ms, part));
        }
        let mut json = json!({
            "bucket": self.bucket,
            "inputs": self.inputs.iter().map(|(name, tensor)| port_json(name, tensor)).collect::<Vec<_>>(),
            "first_ms": self.first_ms,
            "compile_ms": self.compile_ms,
            "runs": self.runs_ms.len(),
            "runs_per_s": self.rate(),
            "latency_ms": latency,
            "program": self.program.as_ref().map(|(_, json)| json),
            "launch": self.launch.map(|run| run.launch.name()),
            "launch_reason": self.launch.map(|run| run.launch.reason()),
        });
        if let Some(steps) = &self.steps {
            json["steps"] = steps.steps_json();
            json["kernels"] = steps.kernels_json();
        }
        json
    }
}

/// The smallest of the sorted values that so many of all are not above.
fn percentile(sorted: &[f64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

fn rows_text(rows: &[Row], batches: &[usize]) -> String {
    let mut text = String::new();
    if let [row] = rows
        && !row.bucket.is_empty()
    {
        let _ = writeln!(text, "sizes    {}", row.bucket);
    }
    let names = ["batch", "min ms", "p50", "mean", "p90", "p95", "p99", "max", "first ms", "compile", "runs", "runs/s"];
    let header: Vec<String> = names.iter().map(|name| format!("{name:>9}")).collect();
    let _ = writeln!(text, "{}", header.join(" "));
    for (position, row) in rows.iter().enumerate() {
        let mut times = vec![row.runs_ms.first().copied().unwrap_or(f64::NAN)];
        times.extend([percentile(&row.runs_ms, 0.50), row.mean()]);
        times.extend(PERCENTILES[1..].iter().map(|&(_, part)| percentile(&row.runs_ms, part)));
        times.extend([row.runs_ms.last().copied().unwrap_or(f64::NAN), row.first_ms, row.compile_ms]);
        let times: Vec<String> = times.into_iter().map(|ms| format!("{ms:>9.3}")).collect();
        let batch = batches.get(position).map_or("-".to_string(), usize::to_string);
        let runs = row.runs_ms.len();
        let _ = writeln!(text, "{batch:>9} {} {runs:>9} {:>9.1}", times.join(" "), row.rate());
    }
    for row in rows {
        let program = row.program.as_ref().map_or("none: the model runs part by part", |(program, _)| program);
        let _ = writeln!(text, "program  {program}");
        if let Some(run) = row.launch.filter(|&run| run != DeviceRun::default()) {
            let _ = writeln!(text, "launch   {run}");
        }
        if let Some(steps) = &row.steps {
            text.push_str(&steps.text());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([0.5, 0.9, 0.99, 1.0].map(|part| percentile(&sorted, part)), [50.0, 90.0, 99.0, 100.0]);
        assert_eq!(percentile(&[7.0], 0.5), 7.0);
        assert!(percentile(&[], 0.5).is_nan());
    }
}
