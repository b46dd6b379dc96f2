//! Everything that is to be known of the project on a GPU, as bars with figures in one JSON. It runs from a bundle on a machine
//! that has a driver and a CUDA toolkit and nothing else; each part can run by itself, and adds its bars to those of others.

mod children;
mod compile_times;
mod parts;
mod sessions;
mod step_times;
mod text;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use precast_gpu::KernelCompiler;
use serde::{Deserialize, Serialize};

use crate::gpu::Rig;
use crate::paths;

pub use parts::SUITES;

/// Arguments of `xtask gpu-suite`.
#[derive(Args)]
pub struct GpuSuiteArguments {
    /// Only these parts [default: all].
    part: Vec<Part>,
    /// The JSON; bars of parts that do not run now stay in it.
    #[arg(long, value_name = "FILE", default_value = "gpu-results.json")]
    out: PathBuf,
    /// Only models and suites whose names contain one of these; the other bars of a part stay as they are.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Measure tactics before speeds.
    #[arg(long)]
    tune: bool,
    /// Tell where the time of the engines' steps goes.
    #[arg(long)]
    per_step: bool,
}

/// What can be asked by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Every model against the CPU, eager and replayed, with poisoned outputs.
    Models,
    /// The op suite of the tests, on the device.
    Ops,
    /// The ONNX backend cases.
    Conformance,
    /// One Session under many threads, and what padding costs.
    Sessions,
    /// Latencies and what submitting costs.
    Speed,
    /// Golden cases of text generation, and tokens a second.
    Text,
    /// Compile and load times.
    Compile,
    /// The HIP path on top of CUDA.
    Hip,
    /// compute-sanitizer on the op suite and two models.
    Sanitizer,
}

/// Something that is held or missed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bar {
    /// Which part says it.
    pub part: Part,
    /// What is measured.
    pub name: String,
    /// What was found.
    pub figure: Option<f64>,
    /// The most that it may be.
    pub limit: Option<f64>,
    /// What both count.
    pub unit: String,
    /// Whether it is held.
    pub ok: bool,
    /// What went wrong, or what the figure is made of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Bar {
    /// A figure that may be no more than a limit.
    pub fn most(part: Part, name: impl Into<String>, figure: f64, limit: f64, unit: &str) -> Bar {
        let (name, unit) = (name.into(), unit.to_string());
        Bar { part, name, figure: Some(figure), limit: Some(limit), unit, ok: figure <= limit, note: String::new() }
    }

    /// A count of things that went wrong, of which there may be none.
    pub fn none(part: Part, name: impl Into<String>, count: usize, note: impl Into<String>) -> Bar {
        Bar { note: note.into(), ..Bar::most(part, name, count as f64, 0.0, "failures") }
    }

    /// A bar that could not be measured.
    pub fn failed(part: Part, name: impl Into<String>, error: &anyhow::Error) -> Bar {
        let note = format!("{error:#}").chars().take(NOTE_CHARACTERS_MAX).collect();
        Bar { part, name: name.into(), figure: None, limit: None, unit: String::new(), ok: false, note }
    }
}

/// Name of the bar of a part that could not run at all.
const WHOLE_PART: &str = "the part";
/// Longest note of a failure that is kept.
const NOTE_CHARACTERS_MAX: usize = 2000;

/// The JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Results {
    date: String,
    device: String,
    architecture: String,
    driver: i32,
    compiler: String,
    commit: String,
    ok: bool,
    bars: Vec<Bar>,
}

/// Runs the parts.
pub fn run(arguments: &GpuSuiteArguments) -> Result<()> {
    let parts = if arguments.part.is_empty() { Part::value_variants().to_vec() } else { arguments.part.clone() };
    let mut results = begin(&arguments.out)?;
    eprintln!("{} · {} · {} · {}", results.device, results.architecture, results.compiler, results.commit);
    for part in parts {
        let begun = Instant::now();
        let bars = run_part(part, arguments).unwrap_or_else(|error| vec![Bar::failed(part, WHOLE_PART, &error)]);
        bars.iter().for_each(print_bar);
        eprintln!("{part:?}: {} bars, {:.0} s", bars.len(), begun.elapsed().as_secs_f64());
        replace(&mut results.bars, part, bars, arguments.only.is_empty());
        results.ok = results.bars.iter().all(|bar| bar.ok);
        // After every part: the machine may be taken away.
        fs::write(&arguments.out, serde_json::to_string_pretty(&results)? + "\n")?;
    }
    let missed = results.bars.iter().filter(|bar| !bar.ok).count();
    ensure!(missed == 0, "{missed} of {} bars are missed", results.bars.len());
    Ok(())
}

/// Puts the bars of a part in the place of its old ones: all of them, or those of the same names.
fn replace(bars: &mut Vec<Bar>, part: Part, new: Vec<Bar>, all: bool) {
    let is_replaced = |bar: &Bar| all || bar.name == WHOLE_PART || new.iter().any(|new| new.name == bar.name);
    bars.retain(|bar| bar.part != part || !is_replaced(bar));
    bars.extend(new);
}

/// What the machine is, with the bars of earlier runs of the same commit on the same device.
fn begin(out: &Path) -> Result<Results> {
    let rig = Rig::open(None)?;
    let info = rig.device.driver().info();
    let date = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]).output()?;
    let results = Results {
        date: String::from_utf8_lossy(&date.stdout).trim().to_string(),
        device: info.name.clone(),
        architecture: rig.device.arch().name.clone(),
        driver: rig.device.driver().library().driver_version()?,
        compiler: rig.compiler.version(),
        commit: commit()?,
        ok: true,
        bars: Vec::new(),
    };
    let earlier = fs::read(out).ok().and_then(|bytes| serde_json::from_slice::<Results>(&bytes).ok());
    let is_same = |earlier: &Results| earlier.commit == results.commit && earlier.device == results.device;
    let bars = earlier.filter(is_same).map_or(Vec::new(), |earlier| earlier.bars);
    Ok(Results { bars, ..results })
}

/// The commit that this program was made from.
fn commit() -> Result<String> {
    if let Some(bundle) = paths::bundle() {
        return Ok(fs::read_to_string(bundle.join(paths::BUNDLE_MARK))?.trim().to_string());
    }
    let output = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(paths::root()).output();
    Ok(String::from_utf8_lossy(&output.context("cannot start git")?.stdout).trim().to_string())
}

fn run_part(part: Part, arguments: &GpuSuiteArguments) -> Result<Vec<Bar>> {
    let only = Only(&arguments.only);
    match part {
        Part::Models => parts::models(only),
        Part::Ops => Ok(parts::ops(only)),
        Part::Conformance => parts::conformance(),
        Part::Sessions => sessions::bars(only),
        Part::Speed => Ok(parts::speed(only, arguments.tune)),
        Part::Text => text::bars(only, arguments.per_step),
        Part::Compile => compile_times::bars(),
        Part::Hip => parts::hip(only),
        Part::Sanitizer => parts::sanitizer(only),
    }
}

/// What a person wants of a part, by parts of names; everything where nothing is named.
#[derive(Clone, Copy)]
pub struct Only<'a>(&'a [String]);

impl Only<'_> {
    /// Whether something of this name is wanted.
    pub fn has(self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|part| name.contains(part.as_str()))
    }

    /// As arguments of another command.
    pub fn arguments(self) -> Vec<String> {
        self.0.iter().flat_map(|name| ["--only".to_string(), name.clone()]).collect()
    }
}

fn print_bar(bar: &Bar) {
    let number = |value: Option<f64>| value.map_or("–".to_string(), |value| format!("{value:.4}"));
    let (figure, limit) = (number(bar.figure), number(bar.limit));
    let verdict = if bar.ok { "held" } else { "MISSED" };
    eprintln!("{verdict}: {}: {figure} of {limit} {} {}", bar.name, bar.unit, bar.note);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_held_up_to_its_limit() {
        assert!(Bar::most(Part::Speed, "x", 4.0, 4.0, "µs").ok);
        assert!(!Bar::most(Part::Speed, "x", 4.1, 4.0, "µs").ok);
        assert!(!Bar::most(Part::Speed, "x", f64::NAN, 4.0, "µs").ok);
        assert!(Bar::none(Part::Ops, "x", 0, "").ok && !Bar::none(Part::Ops, "x", 1, "").ok);
    }

    #[test]
    fn a_part_replaces_its_own_bars() {
        let bar = |part: Part, name: &str, figure: f64| Bar::most(part, name, figure, 1.0, "s");
        let old = || vec![bar(Part::Ops, "a", 1.0), bar(Part::Ops, "b", 1.0), bar(Part::Hip, "a", 1.0)];
        let names = |all: bool| -> Vec<(Part, String, Option<f64>)> {
            let mut bars = old();
            replace(&mut bars, Part::Ops, vec![bar(Part::Ops, "b", 2.0)], all);
            bars.into_iter().map(|bar| (bar.part, bar.name, bar.figure)).collect()
        };
        let (a, hip) = ((Part::Ops, "a".to_string(), Some(1.0)), (Part::Hip, "a".to_string(), Some(1.0)));
        let b = (Part::Ops, "b".to_string(), Some(2.0));
        assert_eq!(names(true), [hip.clone(), b.clone()]);
        assert_eq!(names(false), [a, hip, b]);
    }

    #[test]
    fn bars_are_read_back() {
        let bar = Bar::failed(Part::Hip, "x", &anyhow::anyhow!("no device"));
        let back: Bar = serde_json::from_str(&serde_json::to_string(&bar).unwrap()).unwrap();
        assert_eq!((back.part, back.ok, back.note.as_str()), (Part::Hip, false, "no device"));
    }
}
