//! The parts that are other commands and programs of the bundle.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::children::{own_json, run_tests, test_binary};
use super::{Bar, Only, Part};
use crate::paths;

/// Programs of the op suite: families of ops, and products with all their tactics.
const OP_SUITES: [&str; 2] = ["ops", "matrix"];
/// Packages and their programs of tests that a bundle has.
pub const SUITES: [(&str, &str); 3] =
    [("precast-driver", "real_device"), ("precast-gpu", "ops"), ("precast-gpu", "matrix")];
/// The library that is HIP on top of CUDA.
const HIP_ON_CUDA: &str = "libprecast_hip_on_cuda.so";
/// Two models for what takes long: one with many kinds of steps, one of convolutions.
const TWO_MODELS: [&str; 2] = ["ppocr_cls", "mobilenet_v3_large"];
/// What a run that the checker finds errors in ends with.
const SANITIZER_EXIT_CODE: &str = "99";
/// Cases that a note names.
const SURPRISES_LISTED: usize = 20;
/// Where CUDA's toolkit has its checker, if it is not on the path.
const SANITIZER_PLACES: [&str; 2] = ["compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer"];

/// A latency that is to be reached: one call with synchronise, in µs.
struct Speed {
    model: &'static str,
    batch: usize,
    floats: &'static str,
    /// Whether inputs and outputs are on the host.
    on_host: bool,
    limit_us: f64,
}

const fn device(model: &'static str, batch: usize, limit_us: f64) -> Speed {
    Speed { model, batch, floats: "fp16", on_host: false, limit_us }
}

const SPEEDS: &[Speed] = &[
    device("resnet50", 1, 350.0),
    device("resnet50", 64, 3000.0),
    device("vit_b_16", 1, 600.0),
    device("bert_base", 1, 600.0),
    device("bert_base", 32, 3500.0),
    device("mobilenet_v3_large", 1, 300.0),
    device("yolov10n", 1, 800.0),
    device("yolov8n", 1, 600.0),
    Speed { floats: "fp32", ..device("many190", 1, 15.0) },
    Speed { floats: "fp32", on_host: true, ..device("many190", 1, 30.0) },
    Speed { floats: "fp32", on_host: true, ..device("recsys190", 1, 60.0) },
];
/// What submitting a replay may cost the host.
const SUBMIT_US_MAX: f64 = 4.0;

/// Every model against the CPU.
pub fn models(only: Only) -> Result<Vec<Bar>> {
    let mut arguments = vec!["gpu".to_string(), "--json".to_string(), "--no-speed".to_string()];
    arguments.extend(only.arguments());
    Ok(model_bars(Part::Models, "", &own_json(&arguments)?))
}

/// A bar for each precision: how many models differ, and by how much at most.
fn model_bars(part: Part, suffix: &str, found: &Value) -> Vec<Bar> {
    let rows: Vec<&Value> = found["rows"].as_array().map_or(Vec::new(), |rows| rows.iter().collect());
    ["f32", "fp16"]
        .into_iter()
        .filter_map(|floats| {
            let rows: Vec<&&Value> = rows.iter().filter(|row| row["floats"] == floats).collect();
            let worst = rows.iter().filter_map(|row| row["error"].as_f64()).fold(0.0, f64::max);
            let failed: Vec<String> = rows.iter().filter(|row| row["ok"] != true).map(|row| sentence(row)).collect();
            let note = format!("of {} rows, worst error {worst:.1e} {}", rows.len(), failed.join("; "));
            let name = format!("models that differ from the CPU, {floats}{suffix}");
            (!rows.is_empty()).then(|| Bar::none(part, name, failed.len(), note.trim_end()))
        })
        .collect()
}

fn sentence(row: &Value) -> String {
    const REASON_CHARACTERS_MAX: usize = 200;
    let reason: String = row["reason"].as_str().unwrap_or_default().chars().take(REASON_CHARACTERS_MAX).collect();
    format!("{} at {}: {} {reason}", row["model"].as_str().unwrap_or("?"), row["batch"], row["error"])
}

/// The op suite.
pub fn ops(only: Only) -> Vec<Bar> {
    let suites = SUITES.into_iter().filter(|(_, suite)| only.has(suite));
    suites.map(|(_, suite)| tests_bar(Part::Ops, suite, "cuda", None)).collect()
}

fn tests_bar(part: Part, suite: &str, vendor: &str, library: Option<&Path>) -> Bar {
    let name = format!("failures of '{suite}' on {vendor}");
    match run_tests(suite, vendor, library) {
        Ok(tally) => Bar::none(part, name, tally.failed, format!("{} passed {}", tally.passed, tally.note).trim_end()),
        Err(error) => Bar::failed(part, name, &error),
    }
}

/// The ONNX backend cases.
pub fn conformance() -> Result<Vec<Bar>> {
    let found = own_json(&["conformance", "--target", "cuda", "--json"])?;
    let count = |what: &str| found["targets"]["cuda"][what].as_u64().context("no count of cases");
    let (passed, total, on_host) = (count("passed")?, count("total")?, count("by_reference")?);
    let surprises: Vec<&str> = found["surprises"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let listed = surprises.iter().take(SURPRISES_LISTED).copied().collect::<Vec<_>>().join("; ");
    let note = format!("{passed} of {total} passed, {on_host} with a step on the host {listed}");
    Ok(vec![Bar::none(Part::Conformance, "ONNX cases that fail on the device alone", surprises.len(), note.trim_end())])
}

/// Latencies.
pub fn speed(only: Only, tunes: bool) -> Vec<Bar> {
    let mut bars = Vec::new();
    let mut submits: Vec<f64> = Vec::new();
    for speed in SPEEDS.iter().filter(|speed| only.has(speed.model)) {
        let place = if speed.on_host { "host" } else { "device" };
        let name = format!("{} batch {} {}, inputs on the {place}", speed.model, speed.batch, speed.floats);
        match measure(speed, tunes) {
            Ok((us, submit_us)) => {
                submits.extend(submit_us.filter(|_| speed.batch == 1));
                bars.push(Bar::most(Part::Speed, name, us, speed.limit_us, "µs"));
            }
            Err(error) => bars.push(Bar::failed(Part::Speed, name, &error)),
        }
    }
    if let Some(submit) = submits.into_iter().max_by(f64::total_cmp) {
        bars.push(Bar::most(Part::Speed, "submitting a replay at batch 1, slowest model", submit, SUBMIT_US_MAX, "µs"));
    }
    bars
}

/// The latency and what submitting costs.
fn measure(speed: &Speed, tunes: bool) -> Result<(f64, Option<f64>)> {
    let (batch, floats) = (speed.batch.to_string(), format!("--{}", speed.floats));
    let mut arguments = vec!["gpu", "--json", "--no-check", "--only", speed.model, "--batch", &batch, &floats];
    arguments.extend(tunes.then_some("--tune"));
    let found = own_json(&arguments)?;
    let rows = found["rows"].as_array().context("no rows")?;
    let row = rows.iter().find(|row| row["model"] == speed.model).context("the model is not here")?;
    let field = if speed.on_host { "host_us" } else { "device_us" };
    let us = row[field].as_f64().with_context(|| sentence(row))?;
    ensure!(row["is_replayed"] == true, "it was not replayed");
    Ok((us, row["submit_us"].as_f64()))
}

/// The HIP path: two models and the op suite.
pub fn hip(only: Only) -> Result<Vec<Bar>> {
    let bundle = paths::bundle().context("the HIP path runs from a bundle (cargo xtask gpu-bundle)")?;
    let library = bundle.join(paths::BUNDLE_PROGRAMS).join(HIP_ON_CUDA);
    ensure!(library.exists(), "the bundle has no '{HIP_ON_CUDA}'");
    let path = library.to_string_lossy().into_owned();
    let mut bars = Vec::new();
    let models: Vec<&str> = TWO_MODELS.into_iter().filter(|name| only.has(name)).collect();
    if !models.is_empty() {
        let mut arguments = vec!["gpu", "--json", "--no-speed", "--hip", &path];
        arguments.extend(models.into_iter().flat_map(|name| ["--only", name]));
        bars.extend(model_bars(Part::Hip, " on HIP", &own_json(&arguments)?));
    }
    if only.has(OP_SUITES[0]) {
        bars.push(tests_bar(Part::Hip, OP_SUITES[0], "hip", Some(&library)));
    }
    Ok(bars)
}

/// What the memory checker finds.
pub fn sanitizer(only: Only) -> Result<Vec<Bar>> {
    let is_there = |place: &&str| Command::new(place).arg("--version").output().is_ok();
    let sanitizer = SANITIZER_PLACES.into_iter().find(|place| is_there(place));
    let sanitizer = sanitizer.context("compute-sanitizer is not here; it comes with the CUDA toolkit")?;
    let mut bars = Vec::new();
    for suite in OP_SUITES.into_iter().filter(|suite| only.has(suite)) {
        bars.push(sanitizer_bar(sanitizer, suite, &test_binary(suite)?, &[]));
    }
    let own = std::env::current_exe()?;
    for model in TWO_MODELS.into_iter().filter(|model| only.has(model)) {
        bars.push(sanitizer_bar(sanitizer, model, &own, &["gpu", "--no-speed", "--batch", "1", "--only", model]));
    }
    Ok(bars)
}

fn sanitizer_bar(sanitizer: &str, name: &str, program: &PathBuf, arguments: &[&str]) -> Bar {
    let bar_name = format!("errors of compute-sanitizer in {name}");
    let mut command = Command::new(sanitizer);
    command.args(["--tool", "memcheck", "--error-exitcode", SANITIZER_EXIT_CODE]).arg(program).args(arguments);
    command.env("PRECAST_TEST_DEVICE", "cuda");
    let found = command.output().context("compute-sanitizer does not start").and_then(|output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let (errors, first) = sanitizer_errors(&text).with_context(|| format!("{}: {text}", output.status))?;
        // A program that fails for another reason has not been checked to its end.
        ensure!(output.status.success() || errors > 0, "{}: {text}", output.status);
        Ok((errors, first))
    });
    match found {
        Ok((errors, first)) => Bar::none(Part::Sanitizer, bar_name, errors, first),
        Err(error) => Bar::failed(Part::Sanitizer, bar_name, &error),
    }
}

/// The errors that the checker counted, and the first line of them.
fn sanitizer_errors(text: &str) -> Option<(usize, String)> {
    let summary = text.lines().find_map(|line| line.split_once("ERROR SUMMARY: "))?.1;
    let count = summary.split_whitespace().next()?.parse().ok()?;
    let first = text.lines().find(|line| line.contains("Invalid") || line.contains("error"));
    Some((count, if count == 0 { String::new() } else { first.unwrap_or_default().to_string() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn models_are_counted_by_precision() {
        let row = |model: &str, floats: &str, error: f64, ok: bool| json!({ "model": model, "batch": 3, "floats": floats, "error": error, "ok": ok, "reason": null });
        let rows = json!({ "rows": [row("a", "f32", 1e-6, true), row("b", "fp16", 0.5, false), row("c", "fp16", 1e-3, true)] });
        let bars = model_bars(Part::Models, "", &rows);
        let found: Vec<(Option<f64>, bool, &str)> =
            bars.iter().map(|bar| (bar.figure, bar.ok, bar.note.as_str())).collect();
        assert_eq!(
            found,
            [
                (Some(0.0), true, "of 1 rows, worst error 1.0e-6"),
                (Some(1.0), false, "of 2 rows, worst error 5.0e-1 b at 3: 0.5")
            ]
        );
    }

    #[test]
    fn errors_of_the_checker_are_counted() {
        let text = "========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 4 bytes\n\
                    ========= ERROR SUMMARY: 2 errors\n";
        let expected = (2, "========= Invalid __global__ write of size 4 bytes".to_string());
        assert_eq!(sanitizer_errors(text), Some(expected));
        assert_eq!(sanitizer_errors("========= ERROR SUMMARY: 0 errors"), Some((0, String::new())));
        assert_eq!(sanitizer_errors("killed"), None);
    }
}
