//! What one call from Python costs beside the model: `run` and `run_with_iobinding` on tiny models, ours and onnxruntime's,
//! each in a process of its own, turn by turn.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::paths;
use crate::python_door::python_with_package;
use crate::worker::{Worker, ask_json};

const SCRIPT: &str = include_str!("../../python/python_overhead.py");
/// Writes the tiny models.
const MODELS: &str = include_str!("../../python/tiny_models.py");
/// Turns of each side; the best counts.
const ROUNDS: usize = 7;
/// Seconds of one turn.
const SECONDS: f64 = 0.25;
/// Models by name, as `tiny_models.py` writes them.
const NAMES: &[&str] = &["add_1", "add_16_deep_50", "in_65_out_64"];
/// Ways to call.
const CALLS: &[&str] = &["run", "run-named", "iobinding"];

/// Arguments of `cargo xtask bench python`.
#[derive(Args)]
pub struct PythonArguments {
    /// Print the results as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// One way to call one model, in microseconds a call.
#[derive(Clone, Debug, Serialize)]
struct Row {
    model: &'static str,
    call: &'static str,
    precast_us: f64,
    onnxruntime_us: f64,
    /// Ours by theirs: at 1 or below, we cost no more.
    ratio: f64,
}

/// Measures.
pub fn run(arguments: &PythonArguments) -> Result<()> {
    let python = python_with_package()?;
    let folder = paths::cache().join("tiny-models");
    fs::create_dir_all(&folder)?;
    crate::venv::call(Command::new(&python).args(["-c", MODELS]).arg(&folder))?;
    let mut rows = Vec::new();
    for &model in NAMES {
        for &call in CALLS {
            let row = measure(&python, &folder.join(format!("{model}.onnx")), model, call)?;
            eprintln!(
                "{model:<16} {call:<10} precast {:7.2} µs   onnxruntime {:7.2} µs   {:.2}",
                row.precast_us, row.onnxruntime_us, row.ratio
            );
            rows.push(row);
        }
    }
    let above: Vec<String> =
        rows.iter().filter(|row| row.ratio > 1.0).map(|row| format!("{} {}", row.model, row.call)).collect();
    if arguments.json {
        println!("{}", json!({ "ok": above.is_empty(), "rows": rows }));
    }
    ensure!(above.is_empty(), "a call costs more than onnxruntime's: {}", above.join(", "));
    Ok(())
}

fn measure(python: &Path, file: &Path, model: &'static str, call: &'static str) -> Result<Row> {
    let script: PathBuf = paths::cache().join("python_overhead.py");
    fs::write(&script, SCRIPT)?;
    let start = |module: &str| Worker::start(Command::new(python).arg(&script).args([module]).arg(file).arg(call));
    let mut sides = [start("precast")?, start("onnxruntime")?];
    let mut best = [f64::INFINITY; 2];
    for _ in 0..ROUNDS {
        for (side, best) in sides.iter_mut().zip(&mut best) {
            *best = best.min(ask_json::<f64>(side, &SECONDS)?);
        }
    }
    let [precast_us, onnxruntime_us] = best;
    Ok(Row { model, call, precast_us, onnxruntime_us, ratio: precast_us / onnxruntime_us })
}
