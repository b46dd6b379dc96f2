//! What a short prompt costs in a model that may have long sequences, beside the same prompt on a Program of exactly its sizes:
//! the time to its scores. Both take turns, and the medians are compared.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use precast::generate::config::Source;
use precast::generate::kv_cache::KvCache;
use precast::generate::plan::{Phase, PlannedRow, Scores, StepPlan, StepShape};
use precast::generate::step_buffers::StepBuffers;
use precast::generate::{Generator, GeneratorParams, TextModel};
use precast::{RunnerOptions, TextOptions, open_text_model};
use serde::Serialize;
use serde_json::json;

use crate::opened::THREADS;

/// How much more a prompt may cost.
const RATIO_MAX: f64 = 1.3;

/// Arguments of `cargo xtask bench padding`.
#[derive(Args)]
pub struct PaddingArguments {
    /// The model folder.
    folder: PathBuf,
    /// Print the results as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Tokens of prompts.
    #[arg(long, value_delimiter = ',', default_value = "16")]
    prompt: Vec<usize>,
    /// Tokens that a sequence may have.
    #[arg(long, default_value_t = 2048)]
    max_length: usize,
    /// Runs of each kind.
    #[arg(long, default_value_t = 31)]
    runs: usize,
}

/// What one prompt costs.
#[derive(Serialize)]
struct Row {
    prompt: usize,
    exact_ms: f64,
    generator_ms: f64,
    ratio: f64,
    ok: bool,
}

/// Measures.
pub fn run(arguments: &PaddingArguments) -> Result<()> {
    let model = open(&arguments.folder, arguments.max_length)?;
    let mut rows = Vec::new();
    for &prompt in &arguments.prompt {
        let row = measure(&model, prompt, arguments.runs.max(1))?;
        if !arguments.json {
            let Row { exact_ms, generator_ms, ratio, .. } = row;
            println!("{prompt} tokens: {generator_ms:.2} ms, alone {exact_ms:.2} ms, {ratio:.2} times as much");
        }
        rows.push(row);
    }
    let is_ok = rows.iter().all(|row| row.ok);
    if arguments.json {
        println!("{}", json!({ "ok": is_ok, "max_length": arguments.max_length, "rows": rows }));
    }
    ensure!(is_ok, "a prompt costs more than {RATIO_MAX} times what it costs on a Program of its own sizes");
    Ok(())
}

fn open(folder: &Path, max_length: usize) -> Result<TextModel> {
    let runner = RunnerOptions { threads: THREADS, ..RunnerOptions::default() };
    let overlay =
        Source { name: "--max-length".into(), text: json!({"search": {"max_length": max_length}}).to_string() };
    Ok(open_text_model(folder, &TextOptions { runner, overlays: vec![overlay], ..TextOptions::default() })?.model)
}

fn measure(model: &TextModel, prompt: usize, runs: usize) -> Result<Row> {
    let tokens: Vec<u32> = (0..prompt as u32).map(|i| (100 + 7 * i) % model.vocabulary() as u32).collect();
    let exact = StepPlan {
        is_long: false,
        phase: Phase::Prefill,
        shape: StepShape { rows: 1, length: prompt, capacity: prompt },
        rows: vec![PlannedRow { slot: 0, cached: 0, valid: prompt, is_last: true }],
        scores: Scores::Last,
    };
    let (cache, mut buffers) = (KvCache::try_new(model.layers(), 1, prompt)?, StepBuffers::default());
    let mut times = [Vec::new(), Vec::new()];
    // The first of each kind compiles and is not counted.
    for round in 0..=runs {
        let begun = Instant::now();
        model.run(&exact, &[&tokens], &cache, &mut buffers)?;
        let exact_ms = 1e3 * begun.elapsed().as_secs_f64();
        let mut generator = Generator::new(model, GeneratorParams::new(model.config().search.clone()))?;
        let begun = Instant::now();
        generator.append(&[&tokens])?;
        let generator_ms = 1e3 * begun.elapsed().as_secs_f64();
        if round > 0 {
            times[0].push(exact_ms);
            times[1].push(generator_ms);
        }
    }
    let [exact_ms, generator_ms] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    let ratio = generator_ms / exact_ms;
    Ok(Row { prompt, exact_ms, generator_ms, ratio, ok: ratio <= RATIO_MAX })
}
