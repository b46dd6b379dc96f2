//! Text generation on the device: the golden cases of the tests in several settings, and how fast one row is decoded.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use precast::device_name::resolve_device;
use precast::generate::golden::{Difference, Golden, GoldenCase};
use precast::generate::{Generator, GeneratorParams};
use precast::{LaunchPath, TextFolder, TextOptions, open_text_model};
use serde_json::Value;

use super::{Bar, Only, Part};
use crate::llama_folder::{self, LLAMA_1B, LlamaSize, ProductWeights};
use crate::measure::median;
use crate::paths;

/// Files of cases.
const CASES: [&str; 4] = ["golden.json", "edge_cases.json", "own_cases.json", "family_cases.json"];
/// Tokens before the first that is measured.
const CONTEXT: usize = 512;
/// Steps that are not measured, until the step is captured, and steps that are.
const WARM_STEPS: usize = 16;
const STEPS: usize = 200;
/// What a token may take: 900 tokens a second.
const TOKEN_US_MAX: f64 = 1e6 / 900.0;

/// How cases are run: what the folder's `precast.json` says, and in which chunks prompts are read.
struct Setting {
    name: &'static str,
    tuning: &'static str,
    chunk: Option<usize>,
    /// By the engine, all prompts of a case at once.
    is_engine: bool,
}

const SETTINGS: [Setting; 5] = [
    Setting { name: "as it is", tuning: "{}", chunk: None, is_engine: false },
    Setting { name: "in chunks of 3", tuning: "{}", chunk: Some(3), is_engine: false },
    Setting {
        name: "on one bucket of each kind",
        tuning: r#"{"length_buckets":[128],"kv_capacity_buckets":[512],"row_buckets":[4]}"#,
        chunk: None,
        is_engine: false,
    },
    Setting {
        name: "on odd buckets",
        tuning: r#"{"length_buckets":[5,7,11],"chunk":11,"kv_capacity_buckets":[20,33,50,140],"row_buckets":[2]}"#,
        chunk: None,
        is_engine: false,
    },
    Setting { name: "by the engine", tuning: "{}", chunk: None, is_engine: true },
];

/// The models whose decode step is measured: the one with the bar, and the same with weights of 4 bits.
const MEASURED: [(&str, ProductWeights); 2] =
    [("llama_1b_bf16", ProductWeights::Bf16), ("llama_1b_int4", ProductWeights::Int4)];

/// Runs both.
pub fn bars(only: Only) -> Result<Vec<Bar>> {
    let mut bars = Vec::new();
    if only.has("golden") {
        for setting in &SETTINGS {
            let mut folders = Folders::default();
            for file in CASES {
                let name = format!("cases of {file} with other tokens, {}", setting.name);
                let bar = folders.golden(file, setting, &name);
                bars.push(bar.unwrap_or_else(|error| Bar::failed(Part::Text, name, &error)));
            }
        }
    }
    for (model, weights) in MEASURED.into_iter().filter(|(model, _)| only.has(model)) {
        let name = format!("decode of {model}, batch 1, context {CONTEXT}");
        let size = LlamaSize { weights, ..LLAMA_1B };
        bars.push(decode(&name, model, size).unwrap_or_else(|error| Bar::failed(Part::Text, name, &error)));
    }
    Ok(bars)
}

/// The folder of the cases: of the bundle, or of the checkout.
fn data() -> PathBuf {
    paths::root().join("crates/generate/tests/data")
}

fn open(folder: &Path) -> Result<TextFolder> {
    let options = TextOptions { device: Some(resolve_device("cuda")?), ..TextOptions::default() };
    Ok(open_text_model(folder, &options)?)
}

/// Folders of the cases with the `precast.json` of a setting, each opened once.
#[derive(Default)]
struct Folders {
    opened: Vec<(String, TextFolder)>,
}

impl Folders {
    fn of(&mut self, name: &str, setting: &Setting) -> Result<&TextFolder> {
        if !self.opened.iter().any(|(known, _)| known == name) {
            let folder = tempfile::tempdir()?;
            for entry in std::fs::read_dir(data().join(name))? {
                let path = entry?.path();
                std::fs::copy(&path, folder.path().join(path.file_name().context("a file has a name")?))?;
            }
            std::fs::write(folder.path().join("precast.json"), setting.tuning)?;
            self.opened.push((name.to_string(), open(folder.path())?));
        }
        Ok(&self.opened.iter().find(|(known, _)| known == name).context("just opened")?.1)
    }

    /// Cases whose tokens differ from those of other implementations.
    fn golden(&mut self, file: &str, setting: &Setting, name: &str) -> Result<Bar> {
        let golden: Golden = serde_json::from_slice(&std::fs::read(data().join(file))?)?;
        let is_meant = |case: &&GoldenCase| !setting.is_engine || (!case.prompts.is_empty() && !has_beams(case));
        let cases: Vec<&GoldenCase> = golden.cases.iter().filter(is_meant).collect();
        let mut wrong = Vec::new();
        for case in &cases {
            let model = case.model.as_deref().context("a case has a model")?;
            match self.of(model, setting).and_then(|folder| differences(folder, case, setting)) {
                Ok(differences) if differences.is_empty() => {}
                Ok(differences) => wrong.push(format!("{}: {}", case.id, differences[0].text)),
                Err(error) => wrong.push(format!("{}: {error:#}", case.id)),
            }
        }
        let note = format!("of {} {}", cases.len(), wrong.join(", "));
        Ok(Bar::none(Part::Text, name, wrong.len(), note.trim()))
    }
}

fn has_beams(case: &GoldenCase) -> bool {
    case.search.get("num_beams").and_then(Value::as_u64).is_some_and(|beams| beams > 1)
}

/// What is different in the answers to a case.
fn differences(folder: &TextFolder, case: &GoldenCase, setting: &Setting) -> Result<Vec<Difference>> {
    let model = &folder.model;
    let mut params = case.params(model)?;
    params.search.chunk_size = setting.chunk.or(params.search.chunk_size);
    if setting.is_engine {
        return Ok(case.judge_engine(&folder.engine(folder.engine_options())?, model, &params)?);
    }
    let mut differences = case.judge_generator(model, &params)?;
    if params.search.num_beams == 1 {
        differences.extend(case.judge_logits(model, &params)?);
    }
    differences.extend(case.judge_script(model, &params)?);
    Ok(differences)
}

/// Time of a token.
fn decode(name: &str, model: &str, size: LlamaSize) -> Result<Bar> {
    let folder = paths::cache().join("models").join(model);
    if !folder.join("genai_config.json").exists() {
        llama_folder::write(&folder, size)?;
    }
    let opened = open(&folder)?;
    let mut params = GeneratorParams::new(opened.model.config().search.clone()).max_new_tokens(WARM_STEPS + STEPS + 1);
    params.ignore_eos = true;
    let launches = Arc::new(Mutex::new(Vec::new()));
    let seen = launches.clone();
    let mut generator = Generator::new(&opened.model, params)?;
    generator.observe(Box::new(move |_: &_, report: &precast::RunReport| {
        if let Ok(mut seen) = seen.lock() {
            seen.push(report.device.launch);
        }
    }));
    let prompt: Vec<u32> = (0..CONTEXT as u32).map(|at| at * 241 % size.vocabulary as u32).collect();
    let begun = Instant::now();
    generator.append(&[&prompt])?;
    generator.next()?;
    let first_s = begun.elapsed().as_secs_f64();
    for _ in 0..WARM_STEPS {
        generator.next()?;
    }
    let mut times = Vec::with_capacity(STEPS);
    for _ in 0..STEPS {
        let begun = Instant::now();
        generator.next()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    let launches = launches.lock().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
    let replayed = launches.iter().rev().take(STEPS).filter(|launch| **launch == LaunchPath::Replayed).count();
    ensure!(replayed == STEPS, "only {replayed} of {STEPS} steps were replayed");
    let token_us = median(times);
    let (weights, cached) = size.bytes_of_step();
    let bytes = weights + CONTEXT * cached;
    let note = format!(
        "{:.0} tokens/s, {:.2} TB/s, one replay a token; compiling and the first token {first_s:.1} s",
        1e6 / token_us,
        bytes as f64 / token_us / 1e6
    );
    Ok(Bar { note, ..Bar::most(Part::Text, name, token_us, TOKEN_US_MAX, "µs a token") })
}
