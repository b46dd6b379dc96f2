//! Random graphs on everything that computes: reference evaluation, the CPU with its passes and without any that may be
//! left out, and onnxruntime with and without its own. onnxruntime is no judge where its two forms disagree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use precast::npy::read_npy;
use precast::{CANONICAL, FUSED, Model, PassOptions, Runner, RunnerOptions, Tensor};
use prost::Message;

use super::targets::write_arrays;
use super::{BATCH_GRAPHS, BatchReport, FuzzArguments, FuzzTarget, ask, graphs};
use crate::venv;
use crate::worker::on_all_cores;

const SCRIPT: &str = include_str!("../../python/fuzz_ort.py");

/// Relative difference of two f32 computations of a graph, over all elements of an output.
const TOLERANCE: f64 = 2e-4;

/// A batch takes as long as its graphs; one that hangs is found by this.
const BATCH: Duration = Duration::from_secs(120);

/// Runs graphs until there are enough of them or the time is over.
pub fn run(arguments: &FuzzArguments) -> Result<BatchReport> {
    let (next, total) = (AtomicU64::new(arguments.first), Mutex::new(BatchReport::default()));
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    let last = arguments.graphs.map(|graphs| arguments.first + graphs);
    let run_some = || -> Result<()> {
        let mut worker = None;
        loop {
            let first = next.fetch_add(BATCH_GRAPHS, Ordering::Relaxed);
            if last.is_some_and(|last| first >= last) || (last.is_none() && Instant::now() >= end) {
                return Ok(());
            }
            let answer = ask(FuzzTarget::Differential, first, BATCH_GRAPHS, BATCH, &mut worker)?;
            let report = answer.unwrap_or_else(|reason| BatchReport {
                inputs: BATCH_GRAPHS,
                failures: vec![(first, format!("a graph of {BATCH_GRAPHS} from here on: {reason}"))],
                ..BatchReport::default()
            });
            total.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).add(report);
        }
    };
    on_all_cores(&run_some)?;
    Ok(total.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// Graphs `first..first + count` on everything. `accepted` counts those that onnxruntime judged too.
pub fn run_graphs(first: u64, count: u64) -> Result<BatchReport> {
    let mut report = BatchReport { inputs: count, ..BatchReport::default() };
    let work = tempfile::tempdir()?;
    let mut ours: Vec<(u64, Vec<(String, Tensor)>)> = Vec::new();
    for seed in first..first + count {
        match run_graph(seed, &work.path().join(seed.to_string())) {
            Ok(outputs) => ours.push((seed, outputs)),
            Err(error) => report.failures.push((seed, format!("{error:#}"))),
        }
    }
    let script = work.path().join("fuzz_ort.py");
    fs::write(&script, SCRIPT)?;
    venv::call(Command::new(venv::python()?).arg(&script).arg(work.path()))?;
    for (seed, outputs) in ours {
        match judge(&work.path().join(seed.to_string()), &outputs) {
            Ok(is_judged) => report.accepted += u64::from(is_judged),
            Err(error) => report.failures.push((seed, format!("{error:#}"))),
        }
    }
    Ok(report)
}

/// A graph on the reference and on the CPU; leaves the model and its inputs in a folder.
fn run_graph(seed: u64, folder: &Path) -> Result<Vec<(String, Tensor)>> {
    let generated = graphs::generate(seed);
    let bytes = generated.model.encode_to_vec();
    fs::create_dir_all(folder)?;
    fs::write(folder.join("model.onnx"), &bytes)?;
    write_arrays(folder, "input", &generated.inputs)?;
    let model = Model::from_bytes(bytes.into())?;
    let runner = |disabled: Vec<String>| {
        let passes = PassOptions { disabled, ..PassOptions::default() };
        Runner::new(model.clone(), RunnerOptions { threads: 1, passes, ..RunnerOptions::default() })
    };
    let plain = runner(Vec::new())?;
    let expected = plain.run_reference(&generated.inputs).context("reference")?;
    let all = CANONICAL.iter().chain(FUSED).map(|pass| pass.name.to_string()).collect();
    for (name, found) in [
        ("cpu", plain.run(&generated.inputs).context("cpu")?),
        ("cpu without passes", runner(all)?.run(&generated.inputs).context("cpu without passes")?),
    ] {
        check(&found, &expected).with_context(|| format!("{name} against the reference"))?;
    }
    Ok(expected)
}

fn check(found: &[(String, Tensor)], expected: &[(String, Tensor)]) -> Result<()> {
    ensure!(found.len() == expected.len(), "{} outputs where {} are expected", found.len(), expected.len());
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        let difference = precast::compare(found, expected);
        ensure!(is_near(found, expected), "output '{name}': {}", difference.description);
    }
    Ok(())
}

/// Near as a whole, or every element near: an output of tiny numbers has no scale of its own.
fn is_near(found: &Tensor, expected: &Tensor) -> bool {
    let difference = precast::compare(found, expected);
    difference.relative_error <= TOLERANCE || difference.absolute_error_max <= TOLERANCE
}

/// Holds our outputs against those of onnxruntime, if it is of one mind.
fn judge(folder: &Path, ours: &[(String, Tensor)]) -> Result<bool> {
    for (index, (name, expected)) in ours.iter().enumerate() {
        let read = |prefix: &str| -> Result<Option<Tensor>> {
            let path: PathBuf = folder.join(format!("{prefix}_{index}.npy"));
            if !path.exists() {
                return Ok(None);
            }
            Ok(Some(read_npy(&fs::read(path)?.into(), None)?))
        };
        let (Some(plain), Some(optimised)) = (read("plain")?, read("optimised")?) else { return Ok(false) };
        if !is_near(&optimised, &plain) {
            return Ok(false);
        }
        let difference = precast::compare(expected, &plain);
        ensure!(is_near(expected, &plain), "output '{name}' against onnxruntime: {}", difference.description);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(elements: &[f32]) -> Vec<(String, Tensor)> {
        let tensor = Tensor::from_vec([elements.len()], elements.to_vec()).expect("as many elements as the shape has");
        vec![("y".to_string(), tensor)]
    }

    #[test]
    fn a_planted_difference_is_found() {
        assert!(check(&named(&[1.0, 2.0]), &named(&[1.0, 2.0001])).is_ok());
        assert!(check(&named(&[1.0, 2.0]), &named(&[1.0, 2.01])).is_err());
        assert!(check(&named(&[1.0]), &named(&[1.0, 2.0])).is_err());
        assert!(check(&named(&[f32::NAN]), &named(&[1.0])).is_err());
    }
}
