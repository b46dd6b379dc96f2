//! Text generation on the device: the golden cases of the tests, and how fast one row is decoded.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use precast::device_name::resolve_device;
use precast::generate::{FinishReason, Generator, GeneratorParams, generate};
use precast::{LaunchPath, TextFolder, TextOptions, open_text_model};
use serde_json::Value;

use super::{Bar, Only, Part};
use crate::llama_folder::{self, LLAMA_1B};
use crate::measure::median;
use crate::paths;

/// Files of cases.
const CASES: [&str; 4] = ["golden.json", "edge_cases.json", "own_cases.json", "family_cases.json"];
/// Name of the measured model.
const LLAMA: &str = "llama_1b_bf16";
/// Tokens before the first that is measured.
const CONTEXT: usize = 512;
/// Steps that are not measured, until the step is captured, and steps that are.
const WARM_STEPS: usize = 16;
const STEPS: usize = 200;
/// What a token may take: 900 tokens a second.
const TOKEN_US_MAX: f64 = 1e6 / 900.0;

/// Runs both.
pub fn bars(only: Only) -> Result<Vec<Bar>> {
    let mut bars = Vec::new();
    if only.has("golden") {
        bars.extend(CASES.map(|file| golden(file).unwrap_or_else(|error| Bar::failed(Part::Text, file, &error))));
    }
    if only.has(LLAMA) {
        let name = format!("decode of {LLAMA}, batch 1, context {CONTEXT}");
        bars.push(decode(&name).unwrap_or_else(|error| Bar::failed(Part::Text, name, &error)));
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

/// Cases whose tokens differ from those of other implementations.
fn golden(file: &str) -> Result<Bar> {
    let cases: Value = serde_json::from_slice(&std::fs::read(data().join(file))?)?;
    let cases = cases["cases"].as_array().context("a file of cases has a list of them")?;
    let cases: Vec<&Value> = cases.iter().filter(|case| case.get("prompts").is_some()).collect();
    let mut folders: Vec<(String, TextFolder)> = Vec::new();
    let mut wrong = Vec::new();
    for case in &cases {
        let name = case["model"].as_str().context("a case has a model")?;
        if !folders.iter().any(|(known, _)| known == name) {
            folders.push((name.to_string(), open(&data().join(name))?));
        }
        let folder = &folders.iter().find(|(known, _)| known == name).context("just opened")?.1;
        match is_answered(folder, case) {
            Ok(true) => {}
            Ok(false) => wrong.push(case["id"].to_string()),
            Err(error) => wrong.push(format!("{}: {error:#}", case["id"])),
        }
    }
    let note = format!("of {} {}", cases.len(), wrong.join(", "));
    Ok(Bar::none(Part::Text, format!("cases of {file} with other tokens"), wrong.len(), note.trim()))
}

/// Whether a case gives its tokens.
fn is_answered(folder: &TextFolder, case: &Value) -> Result<bool> {
    let mut params = GeneratorParams::new(folder.model.config().search.clone());
    for (name, value) in case["search"].as_object().into_iter().flatten() {
        params.set(name, &value.to_string())?;
    }
    params.max_new_tokens = case["max_new_tokens"].as_u64().map(|count| count as usize);
    let prompts: Vec<Vec<u32>> = serde_json::from_value(case["prompts"].clone())?;
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let answers = generate(&folder.model, None, &params, &prompts, &mut |_| (), None)?.answers;
    let expected: Vec<Vec<u32>> = serde_json::from_value(case["generated"].clone())?;
    let finish: Vec<String> = serde_json::from_value(case["finish"].clone())?;
    let is_same = |((answer, tokens), finish): ((&precast::generate::Completion, &Vec<u32>), &String)| {
        let found = if answer.finish == FinishReason::Eos { "eos" } else { "length" };
        answer.tokens == *tokens && found == finish
    };
    Ok(answers.len() == expected.len() && answers.iter().zip(&expected).zip(&finish).all(is_same))
}

/// Time of a token.
fn decode(name: &str) -> Result<Bar> {
    let folder = paths::cache().join("models").join(LLAMA);
    if !folder.join("genai_config.json").exists() {
        llama_folder::write(&folder, LLAMA_1B)?;
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
    let prompt: Vec<u32> = (0..CONTEXT as u32).map(|at| at * 241 % LLAMA_1B.vocabulary as u32).collect();
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
    let (weights, cached) = LLAMA_1B.bytes_of_step();
    let bytes = weights + CONTEXT * cached;
    let note = format!(
        "{:.0} tokens/s, {:.2} TB/s, one replay a token; compiling and the first token {first_s:.1} s",
        1e6 / token_us,
        bytes as f64 / token_us / 1e6
    );
    Ok(Bar { note, ..Bar::most(Part::Text, name, token_us, TOKEN_US_MAX, "µs a token") })
}
