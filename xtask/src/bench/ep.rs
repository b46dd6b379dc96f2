//! `cargo xtask bench ep`: what a run through onnxruntime and the plugin provider costs beside the same run of our own
//! Session, measured through the C interface of every runtime that is tested.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Deserialize;

use crate::ort_ep;
use crate::paths;

/// Models that are measured: one small node, a chain, some arithmetic, and 9, 129 and 201 tensors.
const MODELS: &[&str] = &["add_one", "chain50", "mlp", "fan4", "fan64", "fan100"];

/// Arguments of `cargo xtask bench ep`.
#[derive(Args)]
pub struct EpArguments {
    /// Print the results as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// What was measured of a model, in microseconds a run.
#[derive(Deserialize)]
struct Measured {
    model: String,
    tensors: usize,
    own_us: f64,
    plugin_binding_us: f64,
    plugin_run_us: f64,
    cpu_binding_us: f64,
    overhead_us: f64,
    allowed_us: f64,
}

#[derive(Deserialize)]
struct Answer {
    models: Vec<Measured>,
}

/// Measures.
pub fn run(arguments: &EpArguments) -> Result<()> {
    let library = ort_ep::build_library()?;
    let work = ort_ep::work_folder()?;
    let models = ort_ep::write_models(work.path())?;
    let mut over = Vec::new();
    for version in ort_ep::VERSIONS {
        let (line, measured) = measure(version, &library, &models)?;
        print_table(version, &measured);
        if arguments.json {
            println!("{line}");
        }
        let too_slow = measured.iter().filter(|measured| measured.overhead_us > measured.allowed_us);
        over.extend(too_slow.map(|measured| format!("{} on {version}", measured.model)));
    }
    ensure!(over.is_empty(), "over the bar: {}", over.join(", "));
    Ok(())
}

/// Measures on one version; also gives the line that says it. The program is built beside this one, whose features its
/// parts then have, so that they are compiled once.
fn measure(version: &str, library: &Path, models: &Path) -> Result<(String, Vec<Measured>)> {
    let runtime = runtime_library(&ort_ep::python(version)?)?;
    let mut command = Command::new("cargo");
    command.args([
        "bench",
        "--quiet",
        "--package",
        "xtask",
        "--package",
        "precast-ort-ep",
        "--bench",
        "overhead",
        "--",
    ]);
    command.arg(&runtime).arg(library).args(MODELS.iter().map(|model| models.join(format!("{model}.onnx"))));
    let output = command.current_dir(paths::root()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let line = text.lines().last().context("the program printed nothing")?;
    let answer: Answer = serde_json::from_str(line)?;
    Ok((line.to_string(), answer.models))
}

fn print_table(version: &str, all: &[Measured]) {
    eprintln!("onnxruntime {version}, µs a run");
    eprintln!("model      tensors  own session  plugin, bound  plugin, run  CPU, bound  overhead  allowed");
    for measured in all {
        let Measured { model, tensors, own_us, plugin_binding_us, plugin_run_us, cpu_binding_us, .. } = measured;
        let Measured { overhead_us, allowed_us, .. } = measured;
        eprintln!(
            "{model:<10} {tensors:>7}  {own_us:>11.2}  {plugin_binding_us:>13.2}  {plugin_run_us:>11.2}  {cpu_binding_us:>10.2}  {overhead_us:>8.2}  {allowed_us:>7.2}"
        );
    }
}

/// The runtime that a Python has.
fn runtime_library(python: &Path) -> Result<PathBuf> {
    let script = "import onnxruntime, os; print(os.path.join(os.path.dirname(onnxruntime.__file__), 'capi'))";
    let output = Command::new(python).args(["-c", script]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let folder = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    let files = fs::read_dir(&folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let is_runtime =
        |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libonnxruntime.so"));
    files.into_iter().find(is_runtime).with_context(|| format!("no runtime in '{}'", folder.display()))
}
