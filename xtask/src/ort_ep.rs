//! The plugin execution provider on stock onnxruntimes: its tests, the models of models/ against the runtime's own kernels,
//! generation through onnxruntime-genai, and its wheel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;

use crate::built::{built_library, cargo_build};
use crate::inputs::Named;
use crate::manifest::{self, ModelEntry};
use crate::models::{BATCHES, BatchReport, compare_outputs};
use crate::older_systems::{OLDEST, OLDEST_MINOR, library_for_older_systems};
use crate::ranked::Ranking;
use crate::{fetch, inputs, onnxruntime, paths, venv};

/// The oldest runtime that is supported, one in the middle and the newest.
pub const VERSIONS: &[&str] = &["1.24.4", "1.27.0", "1.31.1"];
/// Threads of the runtime's own kernels.
const THREADS: usize = 2;
/// What generates text on the newest.
const GENAI: &str = "onnxruntime-genai==0.18.0";

const MODELS_SCRIPT: &str = include_str!("../python/ort_ep_models.py");
const TEST_SCRIPT: &str = include_str!("../python/ort_ep_test.py");
const RUN_SCRIPT: &str = include_str!("../python/ort_ep_run.py");
const GENAI_SCRIPT: &str = include_str!("../python/ort_ep_genai.py");
/// File name of the plugin.
const LIBRARY: &str = "libprecast_ort_ep.so";
const WHEEL_SCRIPT: &str = include_str!("../python/ort_ep_wheel.py");

/// Arguments of `cargo xtask ort-ep`.
#[derive(Args)]
pub struct OrtEpArguments {
    /// Compare every model of models/, on every version, with the own kernels of the newest.
    #[arg(long)]
    models: bool,
    /// With --models, only the model of this name.
    #[arg(long, value_name = "NAME", requires = "models")]
    only: Option<String>,
    /// Only pack the wheel; its path is printed.
    #[arg(long)]
    wheel: bool,
    /// Build for systems with an older C library than this one, as wheels are given to others.
    #[arg(long)]
    manylinux: bool,
    /// Print the results of --models as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Checks the provider.
pub fn run(arguments: &OrtEpArguments) -> Result<()> {
    let library = match arguments.manylinux {
        true => library_for_older_systems("precast-ort-ep", LIBRARY)?,
        false => build_library()?,
    };
    if arguments.wheel {
        let wheel = pack_wheel(&library, &paths::cache())?;
        check_tag(&wheel, arguments.manylinux)?;
        println!("{}", wheel.display());
        return Ok(());
    }
    if arguments.models {
        return check_models(&library, arguments);
    }
    let work = work_folder()?;
    let models = write_models(work.path())?;
    let wheel = pack_wheel(&library, work.path())?;
    check_tag(&wheel, arguments.manylinux)?;
    for version in VERSIONS {
        run_tests(&models, &wheel, version)?;
    }
    generate(&library, work.path())
}

/// The plugin. It is built beside this program, whose features its parts then have, so that they are compiled once.
pub fn build_library() -> Result<PathBuf> {
    let packages = ["--release", "--package", "xtask", "--package", "precast-ort-ep"];
    built_library(&mut cargo_build(&packages), LIBRARY)
}

/// A folder for what a run writes, which goes when it ends.
pub fn work_folder() -> Result<tempfile::TempDir> {
    fs::create_dir_all(paths::cache())?;
    Ok(tempfile::tempdir_in(paths::cache())?)
}

/// The Python of a runtime.
pub fn python(version: &str) -> Result<PathBuf> {
    let is_newest = VERSIONS.last() == Some(&version);
    let more = if is_newest { format!("{GENAI}\n") } else { String::new() };
    venv::python_with(&format!("venv-ort-{version}"), &format!("onnxruntime=={version}\n{more}numpy>=2,<3\n"))
}

/// Writes the models of the tests.
pub fn write_models(work: &Path) -> Result<PathBuf> {
    let folder = work.join("models");
    fs::create_dir_all(&folder)?;
    let script = write_script(work, "ort_ep_models.py", MODELS_SCRIPT)?;
    venv::call(Command::new(venv::python()?).arg(script).arg(&folder))?;
    Ok(folder)
}

fn write_script(work: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = work.join(name);
    fs::write(&path, text)?;
    Ok(path)
}

/// Runs the tests on one version, from the wheel as a user would have it.
fn run_tests(models: &Path, wheel: &Path, version: &str) -> Result<()> {
    let work = work_folder()?;
    let python = python(version)?;
    let packages = work.path().join("packages");
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"];
    venv::call(Command::new(&python).args(install).arg(&packages).arg(wheel))?;
    let library = packages.join("onnxruntime_ep_precast").join(LIBRARY);
    let script = write_script(work.path(), "ort_ep_test.py", TEST_SCRIPT)?;
    let mut command = Command::new(python);
    command.arg(script).arg(library).arg(models).arg(work.path()).env("PYTHONPATH", &packages);
    let status = command.status()?;
    ensure!(status.success(), "the tests of the plugin fail on onnxruntime {version}: {status}");
    Ok(())
}

/// Generates through onnxruntime-genai and compares with the golden tokens.
fn generate(library: &Path, work: &Path) -> Result<()> {
    let newest = VERSIONS.last().context("there is a newest version")?;
    let script = write_script(work, "ort_ep_genai.py", GENAI_SCRIPT)?;
    let data = paths::root().join("crates/generate/tests/data");
    let folders = work.join("folders");
    fs::create_dir_all(&folders)?;
    let status = Command::new(python(newest)?).arg(script).arg(library).arg(data).arg(folders).status()?;
    ensure!(status.success(), "onnxruntime-genai does not give the golden tokens: {status}");
    Ok(())
}

/// Packs the plugin as a wheel.
fn pack_wheel(library: &Path, folder: &Path) -> Result<PathBuf> {
    let script = write_script(folder, "ort_ep_wheel.py", WHEEL_SCRIPT)?;
    // Lines of the source are of no use to who has no source.
    let stripped = tempfile::NamedTempFile::new_in(folder)?;
    venv::call(Command::new("strip").arg("--strip-debug").arg("-o").arg(stripped.path()).arg(library))?;
    let (package, readme) = (paths::root().join("crates/ort-ep/python"), paths::root().join("docs/onnxruntime.md"));
    let mut command = Command::new(venv::python()?);
    command.arg(script).arg(stripped.path()).arg(package.join("onnxruntime_ep_precast")).arg(readme);
    let output = command.arg(env!("CARGO_PKG_VERSION")).arg(folder).output()?;
    ensure!(output.status.success(), "the wheel: {}", String::from_utf8_lossy(&output.stderr));
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

/// A wheel for older systems has no symbol that they have not; its tag names the newest that it has.
fn check_tag(wheel: &Path, is_for_older_systems: bool) -> Result<()> {
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    let minor = name.split("manylinux_2_").nth(1).and_then(|rest| rest.split('_').next()?.parse::<u32>().ok());
    let is_older = minor.is_some_and(|minor| minor <= OLDEST_MINOR);
    ensure!(!is_for_older_systems || is_older, "the wheel is '{name}'; one for {OLDEST} was expected");
    Ok(())
}

/// How one model did on one version.
#[derive(Debug, Serialize)]
struct ModelReport {
    version: String,
    name: String,
    ok: bool,
    worst_rel_err: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn check_models(library: &Path, arguments: &OrtEpArguments) -> Result<()> {
    let mut models = manifest::read()?;
    if let Some(only) = &arguments.only {
        models.retain(|model| model.name == *only);
        if models.is_empty() {
            bail!("no model '{only}'");
        }
    }
    // Programs are shared by the versions, which must want the same ones.
    let cache = work_folder()?;
    let mut reports = Vec::new();
    for version in VERSIONS {
        for model in &models {
            let begin = Instant::now();
            let checked = check_model(library, cache.path(), version, model);
            let report = report(version, model, checked);
            let verdict = match &report {
                ModelReport { error: Some(error), .. } => format!("FAILED: {error}"),
                ModelReport { worst_rel_err, .. } => format!("ok, relative error {:.1e}", worst_rel_err.unwrap_or(0.0)),
            };
            eprintln!("onnxruntime {version} {}: {verdict} ({:.1} s)", model.name, begin.elapsed().as_secs_f64());
            reports.push(report);
        }
    }
    if arguments.json {
        println!("{}", serde_json::json!({ "models": reports }));
    }
    let failed =
        reports.iter().filter(|report| !report.ok).map(|report| format!("{} on {}", report.name, report.version));
    let failed: Vec<String> = failed.collect();
    let agreeing = reports.len() - failed.len();
    eprintln!("{agreeing} of {} runs agree with the runtime's own kernels", reports.len());
    ensure!(failed.is_empty(), "models that do not agree: {}", failed.join(", "));
    Ok(())
}

fn report(version: &str, model: &ModelEntry, checked: Result<(f64, Option<String>)>) -> ModelReport {
    let (worst_rel_err, error) = match checked {
        Ok((worst, fault)) => (Some(worst), fault),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    ModelReport { version: version.to_string(), name: model.name.clone(), ok: error.is_none(), worst_rel_err, error }
}

/// The worst error of a model, and the first output that is too far away.
fn check_model(library: &Path, cache: &Path, version: &str, model: &ModelEntry) -> Result<(f64, Option<String>)> {
    let path = fetch::model_file(model)?;
    let work = work_folder()?;
    let script = write_script(work.path(), "ort_ep_run.py", RUN_SCRIPT)?;
    let batches = if model.is_batch_dynamic { BATCHES } else { &BATCHES[..1] };
    let folders: Vec<PathBuf> = batches.iter().map(|batch| work.path().join(batch.to_string())).collect();
    for (&batch, folder) in batches.iter().zip(&folders) {
        onnxruntime::write_inputs(folder, &inputs::make(model, batch)?)?;
    }
    // Versions of the runtime differ among themselves where values are quantised, so one of them says what is right.
    onnxruntime::run(&path, THREADS, &folders).context("onnxruntime's own kernels")?;
    venv::call(Command::new(python(version)?).arg(script).arg(library).arg(cache).arg(path).args(&folders))?;
    let ranking = model.ranked_by.map(|score_column| Ranking { score_column, tolerance: model.tolerance() });
    let (mut worst, mut fault): (f64, _) = (0.0, None);
    for (batch, folder) in batches.iter().zip(&folders) {
        let report: BatchReport = compare_outputs(&plugin_outputs(folder)?, folder, ranking)?;
        let Some((name, found)) = report.worst() else { continue };
        worst = worst.max(found);
        if found > model.tolerance() && fault.is_none() {
            fault = Some(format!("batch {batch}: {name} is {found:.1e} away, allowed are {:.0e}", model.tolerance()));
        }
    }
    Ok((worst, fault))
}

/// The outputs that the plugin left in a folder.
fn plugin_outputs(folder: &Path) -> Result<Named> {
    let files = (0..).map(|index| folder.join(format!("plugin_{index}.npy"))).take_while(|file| file.exists());
    let outputs: Named = files
        .enumerate()
        .map(|(index, file)| Ok((index.to_string(), onnxruntime::read_array(&file)?)))
        .collect::<Result<_>>()?;
    ensure!(!outputs.is_empty(), "the plugin left no outputs");
    Ok(outputs)
}
