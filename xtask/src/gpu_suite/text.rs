//! Text generation on the device: the golden cases of the tests in several settings, how fast one row is decoded, and how fast the
//! rows of an engine are.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use precast::device_name::resolve_device;
use precast::generate::engine::{Event, Request};
use precast::generate::golden::{Difference, Golden, GoldenCase};
use precast::generate::{Engine, Generator, GeneratorParams};
use precast::{
    EngineOptions, GivenDevice, KvPlace, LaunchPath, PassOptions, TextFolder, TextOptions, open_text_model,
    open_text_model_on,
};
use precast_gpu::{GpuTarget, MemoryKernels};
use serde_json::Value;

use super::step_times::NotingDevice;
use super::{Bar, Only, Part};
use crate::gpu::Rig;
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

const SETTINGS: [Setting; 6] = [
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
    Setting {
        name: "by the engine on pages of 4",
        tuning: r#"{"kv_page":4,"length_buckets":[5,7,11],"chunk":11,"row_buckets":[3]}"#,
        chunk: None,
        is_engine: true,
    },
];

/// The models whose decode step is measured: the one with the bar, and the same with weights of 4 bits.
const MEASURED: [(&str, ProductWeights); 2] =
    [("llama_1b_bf16", ProductWeights::Bf16), ("llama_1b_int4", ProductWeights::Int4)];

/// Rows of the engines whose steps are measured, and the model.
const ENGINE_ROWS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const ENGINE_MODEL: &str = "llama_1b_bf16";

/// Runs all. With `has_step_times` steps of the engines are told kernel by kernel.
pub fn bars(only: Only, has_step_times: bool) -> Result<Vec<Bar>> {
    let mut bars = Vec::new();
    for setting in SETTINGS.iter().filter(|setting| only.has("golden") || only.has(setting.name)) {
        let (mut folders, begun) = (Folders::default(), Instant::now());
        for file in CASES {
            let name = format!("cases of {file} with other tokens, {}", setting.name);
            let bar = folders.golden(file, setting, &name);
            bars.push(bar.unwrap_or_else(|error| Bar::failed(Part::Text, name, &error)));
        }
        eprintln!("golden cases {}: {:.0} s", setting.name, begun.elapsed().as_secs_f64());
    }
    for (model, weights) in MEASURED.into_iter().filter(|(model, _)| only.has(model)) {
        let name = format!("decode of {model}, batch 1, context {CONTEXT}");
        let size = LlamaSize { weights, ..LLAMA_1B };
        bars.push(decode(&name, model, size).unwrap_or_else(|error| Bar::failed(Part::Text, name, &error)));
    }
    if only.has("engine") {
        bars.extend(engine_bars(has_step_times)?);
    }
    Ok(bars)
}

/// How fast the rows of engines decode, by their number, on one opened model.
fn engine_bars(has_step_times: bool) -> Result<Vec<Bar>> {
    let Rig { device, compiler } = Rig::open(None)?;
    let target =
        GpuTarget::new(device.arch().clone(), PassOptions::default(), compiler, Arc::<MemoryKernels>::default());
    let device = Arc::new(NotingDevice::new(device));
    let given = GivenDevice { name: resolve_device("cuda")?, target: Arc::new(target), device: device.clone() };
    let folder = open_text_model_on(&llama(ENGINE_MODEL, LLAMA_1B)?, &TextOptions::default(), given)?;
    let mut bars = Vec::new();
    for rows in ENGINE_ROWS {
        let name = format!("engine of {ENGINE_MODEL}, {rows} rows that decode, context {CONTEXT}");
        bars.push(engine_decode(&name, rows, &folder).unwrap_or_else(|error| Bar::failed(Part::Text, name, &error)));
        if has_step_times {
            let times = device.decode_step(rows, CONTEXT + STEPS);
            eprintln!("{rows} rows: {}", times.unwrap_or_else(|error| format!("{error:#}\n")));
        }
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
        let engine = folder.engine(folder.engine_options())?;
        let differences = case.judge_engine(&engine, model, &params)?;
        let kv_place = engine.metrics()?.kv_place;
        ensure!(model.host_pages().is_some() || kv_place == KvPlace::Device, "keys and values are at {kv_place:?}");
        return Ok(differences);
    }
    let mut differences = case.judge_generator(model, &params)?;
    if params.search.num_beams == 1 {
        differences.extend(case.judge_logits(model, &params)?);
    }
    differences.extend(case.judge_script(model, &params)?);
    Ok(differences)
}

/// A model of the shape of Llama 3.2 1B, which is written where it is not there yet.
fn llama(model: &str, size: LlamaSize) -> Result<PathBuf> {
    let folder = paths::cache().join("models").join(model);
    if !folder.join("genai_config.json").exists() {
        llama_folder::write(&folder, size)?;
    }
    Ok(folder)
}

/// Tokens a second of an engine whose rows all decode, with all that the host does between two steps.
fn engine_decode(name: &str, rows: usize, opened: &TextFolder) -> Result<Bar> {
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = steps.clone();
    let model = opened.model.clone().watched(Arc::new(move |plan, report, _| {
        if let Ok(mut seen) = seen.lock() {
            seen.push((plan.rows.len(), plan.shape.length, report.device.launch, Instant::now()));
        }
    }));
    // Rows whose prompts were read first decode while the others' are read, one a step.
    let new_tokens = rows + WARM_STEPS + STEPS;
    let options = opened.engine_options();
    let pages = rows * (CONTEXT + new_tokens).div_ceil(options.page_tokens);
    let options = EngineOptions { rows_max: rows, pages: Some(pages), ..options };
    let engine = Engine::new(&model, None, options)?;
    let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(new_tokens);
    params.ignore_eos = true;
    let prompt = |row: usize| (0..CONTEXT).map(|at| ((at + row) * 241 % LLAMA_1B.vocabulary) as u32).collect();
    let submit = |row: usize| engine.submit(Request::new(prompt(row), params.clone()));
    let handles = (0..rows).map(submit).collect::<Result<Vec<_>, _>>()?;
    for event in handles.iter().flat_map(|handle| handle.events()) {
        if let Event::Failed { message, .. } = event {
            anyhow::bail!("{message}");
        }
    }
    ensure!(engine.metrics()?.kv_place == KvPlace::Device, "{:?}", engine.metrics()?.kv_place);
    let steps = steps.lock().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
    let together: Vec<_> = steps.iter().filter(|step| step.0 == rows && step.1 == 1).collect();
    ensure!(together.len() >= STEPS, "only {} steps had all rows", together.len());
    let measured = &together[together.len() - STEPS..];
    let replayed = measured.iter().filter(|(.., launch, _)| *launch == LaunchPath::Replayed).count();
    ensure!(replayed == STEPS, "only {replayed} of {STEPS} steps were replayed");
    let step_us = median(measured.windows(2).map(|pair| (pair[1].3 - pair[0].3).as_secs_f64() * 1e6).collect());
    let (weights, cached) = LLAMA_1B.bytes_of_step();
    let bytes = weights + rows * CONTEXT * cached;
    let note = format!(
        "{:.0} tokens/s, {step_us:.0} µs a step of all rows, {:.2} TB/s, one replay a step, pages on the device",
        rows as f64 * 1e6 / step_us,
        bytes as f64 / step_us / 1e6
    );
    let (figure, unit) = (Some(step_us / rows as f64), "µs a token".to_string());
    Ok(Bar { part: Part::Text, name: name.to_string(), figure, limit: None, unit, ok: true, note })
}

/// Time of a token.
fn decode(name: &str, model: &str, size: LlamaSize) -> Result<Bar> {
    let opened = open(&llama(model, size)?)?;
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
