//! Whole models against onnxruntime: the same inputs on both sides, at several batches where a model allows it, every
//! output within the model's tolerance.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use precast::{Model, Runner, RunnerOptions, compare};
use serde::{Deserialize, Serialize};

use crate::inputs::Named;
use crate::manifest::{self, ModelEntry};
use crate::measure::{Speed, compare_speed};
use crate::ranked::Ranking;
use crate::worker::{Request, Worker, ask_own};
use crate::{fetch, inputs, onnxruntime, paths};

/// Batches of a model whose batch is dynamic: none, an odd one, and one beyond the common vector widths' divisors.
pub const BATCHES: &[usize] = &[1, 3, 7];

/// Models of `--small`: one of each kind that is quick to fetch and run.
const SMALL: &[&str] = &["magika", "nemo80", "ppocr_cls", "recsys190", "silero_vad", "swift_f0"];

/// Threads of onnxruntime while results are compared.
const THREADS: usize = 2;

/// Arguments of `cargo xtask models`.
#[derive(Args)]
pub struct ModelsArguments {
    /// Print the results as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Only the model of this name, with a line for every output.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Only the few small models of the test command.
    #[arg(long)]
    small: bool,
    /// Measure latencies at batch 1 too.
    #[arg(long)]
    speed: bool,
}

/// How one model did.
#[derive(Debug, Serialize)]
struct ModelReport {
    name: String,
    batches: Vec<usize>,
    ok: bool,
    worst_rel_err: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    speed: Option<Speed>,
}

/// Runs the models that the arguments select.
pub fn run(arguments: &ModelsArguments) -> Result<()> {
    let models = select(arguments)?;
    let options = CheckOptions { is_measured: arguments.speed, is_detailed: arguments.only.is_some() };
    let mut reports = Vec::new();
    for (index, model) in models.iter().enumerate() {
        let start = Instant::now();
        let report = check_model(model, options);
        let verdict = match &report {
            ModelReport { error: Some(error), .. } => format!("FAILED: {error}"),
            ModelReport { worst_rel_err, .. } => format!("ok, relative error {:.1e}", worst_rel_err.unwrap_or(0.0)),
        };
        let speed = report.speed.map_or(String::new(), |speed| {
            format!(", {:.3} ms against {:.3} ms ({:.2})", speed.precast_ms, speed.onnxruntime_ms, speed.ratio)
        });
        let seconds = start.elapsed().as_secs_f64();
        eprintln!("[{}/{}] {}: {verdict}{speed} ({seconds:.1} s)", index + 1, models.len(), model.name);
        reports.push(report);
    }
    let failed: Vec<&str> = reports.iter().filter(|report| !report.ok).map(|report| report.name.as_str()).collect();
    eprintln!("{} of {} models agree with onnxruntime", reports.len() - failed.len(), reports.len());
    if arguments.json {
        println!("{}", serde_json::json!({ "models": reports }));
    }
    ensure!(failed.is_empty(), "models that do not agree: {}", failed.join(", "));
    Ok(())
}

fn select(arguments: &ModelsArguments) -> Result<Vec<ModelEntry>> {
    let mut models = manifest::read()?;
    if let Some(only) = &arguments.only {
        let names: Vec<String> = models.iter().map(|model| model.name.clone()).collect();
        models.retain(|model| model.name == *only);
        if models.is_empty() {
            bail!("no model '{only}'; there are: {}", names.join(" "));
        }
    }
    if arguments.small {
        models.retain(|model| SMALL.contains(&model.name.as_str()));
    }
    Ok(models)
}

/// What is wanted beside the verdict.
#[derive(Clone, Copy)]
struct CheckOptions {
    /// Latencies.
    is_measured: bool,
    /// A line for every output.
    is_detailed: bool,
}

fn check_model(model: &ModelEntry, options: CheckOptions) -> ModelReport {
    let batches = if model.is_batch_dynamic { BATCHES.to_vec() } else { vec![1] };
    let mut report =
        ModelReport { name: model.name.clone(), batches, ok: false, worst_rel_err: None, error: None, speed: None };
    if let Err(error) = compare_with_onnxruntime(model, &mut report, options) {
        report.error = Some(format!("{error:#}"));
    }
    report.ok = report.error.is_none();
    report
}

/// Fills in the report; an error is one that ends the comparison.
fn compare_with_onnxruntime(model: &ModelEntry, report: &mut ModelReport, options: CheckOptions) -> Result<()> {
    let path = fetch::model_file(model)?;
    fs::create_dir_all(paths::cache())?;
    let work = tempfile::tempdir_in(paths::cache())?;
    let folders: Vec<PathBuf> = report.batches.iter().map(|batch| work.path().join(batch.to_string())).collect();
    for (&batch, folder) in report.batches.iter().zip(&folders) {
        onnxruntime::write_inputs(folder, &inputs::make(model, batch)?)?;
    }
    onnxruntime::run(&path, THREADS, &folders).context("onnxruntime")?;
    // A process of its own: a crash is this model's alone, and its memory ends with it.
    let mut worker = Worker::start_own(Stdio::inherit())?;
    let ranking = model.ranked_by.map(|score_column| Ranking { score_column, tolerance: model.tolerance() });
    let mut worst: f64 = 0.0;
    for (batch, folder) in report.batches.iter().zip(&folders) {
        let request = Request::Batch { model: path.clone(), folder: folder.clone(), ranking };
        let found: BatchReport = ask_own(&mut worker, &request).with_context(|| format!("batch {batch}"))?;
        if options.is_detailed {
            let outputs = found.outputs.iter();
            outputs.for_each(|output| eprintln!("batch {batch}: {} is {:.1e} away", output.name, output.rel_err));
        }
        let Some(output) = found.outputs.iter().max_by(|a, b| a.rel_err.total_cmp(&b.rel_err)) else {
            continue;
        };
        worst = worst.max(output.rel_err);
        report.worst_rel_err = Some(worst);
        let allowed = model.tolerance();
        if output.rel_err > allowed {
            let (name, found) = (&output.name, output.rel_err);
            // The first is named; the others count towards the worst, and latencies are worth knowing all the same.
            let fault = || format!("batch {batch}: {name} is {found:.1e} away, allowed are {allowed:.0e}");
            report.error.get_or_insert_with(fault);
        }
    }
    drop(worker);
    if options.is_measured {
        report.speed = Some(compare_speed(&path, &folders[0]).context("measuring")?);
    }
    Ok(())
}

/// How the outputs of one batch compare.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BatchReport {
    outputs: Vec<OutputReport>,
}

impl BatchReport {
    /// The output that is farthest away, if there is one.
    pub fn worst(&self) -> Option<(&str, f64)> {
        let worst = self.outputs.iter().max_by(|a, b| a.rel_err.total_cmp(&b.rel_err))?;
        Some((&worst.name, worst.rel_err))
    }
}

/// How one output compares.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct OutputReport {
    /// Its name and Type, as a sentence names it.
    name: String,
    rel_err: f64,
}

/// A model opened to be checked at several batches, one after the other.
pub struct BatchChecker {
    /// Its file.
    pub model: PathBuf,
    runner: Runner,
}

impl BatchChecker {
    /// Opens a model.
    pub fn open(model: &Path) -> Result<BatchChecker> {
        let runner = Runner::new(Model::open(model)?, RunnerOptions::default())?;
        Ok(BatchChecker { model: model.to_path_buf(), runner })
    }

    /// Runs the inputs of a folder and compares with onnxruntime's outputs there. Other Types, other integers and
    /// errors without bound are failures whatever the tolerance.
    pub fn check(&self, folder: &Path, ranking: Option<Ranking>) -> Result<BatchReport> {
        compare_outputs(&self.runner.run(&onnxruntime::read_inputs(folder)?)?, folder, ranking)
    }
}

/// Compares outputs with those that onnxruntime left in a folder.
pub fn compare_outputs(found: &Named, folder: &Path, ranking: Option<Ranking>) -> Result<BatchReport> {
    let mut outputs = Vec::new();
    for (index, (name, tensor)) in found.iter().enumerate() {
        let expected = onnxruntime::read_output(folder, index)?;
        let aligned = ranking.map(|ranking| ranking.align(tensor, &expected)).transpose()?;
        let difference = compare(aligned.as_ref().unwrap_or(tensor), &expected);
        let output = format!("output '{name}' {}", difference.description);
        if !tensor.dtype().is_float() {
            ensure!(
                difference.absolute_error_max == 0.0,
                "{output} differs at {}: {} where {} is expected",
                difference.worst_index,
                difference.worst_values.0,
                difference.worst_values.1
            );
        }
        ensure!(difference.relative_error.is_finite(), "{output} has no finite distance to what is expected");
        outputs.push(OutputReport { name: output, rel_err: difference.relative_error });
    }
    Ok(BatchReport { outputs })
}
