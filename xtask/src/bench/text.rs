//! Text generation against onnxruntime-genai and llama.cpp on SmolLM2-135M, two threads each. Every measurement is a process
//! of its own; peers take turns, round after round, and of each figure the best round counts. `bench/smollm2_folders.py`
//! makes the model files once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use precast::generate::{Generator, GeneratorParams, TextModel};
use precast::{ActivationPrecision, RunnerOptions, TextOptions, open_text_model};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::opened::THREADS;
use crate::{paths, peak, venv};

const FOLDERS: &str = include_str!("../../../bench/smollm2_folders.py");
const PEER: &str = include_str!("../../../bench/text_peer.py");
const REQUIREMENTS: &str = include_str!("../../../bench/requirements_text.txt");

/// Runs of each kind inside a process; the median counts.
const RUNS: usize = 3;
/// Tokens before those that are generated.
const SHORT_PROMPT: usize = 8;

/// Arguments of `cargo xtask bench text`.
#[derive(Args)]
pub struct TextArguments {
    /// Print the results as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Tokens of the prompt.
    #[arg(long, default_value_t = 512)]
    prompt: usize,
    /// Tokens to generate.
    #[arg(long, default_value_t = 128)]
    new_tokens: usize,
    /// Turns of every peer.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only configurations whose names contain this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Where the model files are, or are made; target/xtask/smollm2 unless given.
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// Measure this folder in this process; what the turns of Precast call.
    #[arg(long, value_name = "DIR", hide = true)]
    own: Option<PathBuf>,
    /// With 8-bit activations; what the turns of Precast call.
    #[arg(long, hide = true)]
    int8_activations: bool,
}

/// What is compared: the same weights in each program's own file.
struct Configuration {
    name: &'static str,
    /// What Precast multiplies activations as.
    activations: ActivationPrecision,
    peers: [(&'static str, &'static str); 3],
}

const CONFIGURATIONS: &[Configuration] = &[
    Configuration {
        name: "fp32",
        activations: ActivationPrecision::F32,
        peers: [("precast", "fp32"), ("genai", "fp32"), ("llama", "f32.gguf")],
    },
    Configuration {
        name: "int4",
        activations: ActivationPrecision::F32,
        peers: [("precast", "int4"), ("genai", "int4"), ("llama", "q4_0.gguf")],
    },
    Configuration {
        name: "int4-int8",
        activations: ActivationPrecision::Int8,
        peers: [("precast", "int4"), ("genai", "int4-int8"), ("llama", "q4_0.gguf")],
    },
];

/// What one process measured, or the best of several.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Figures {
    prompt_per_s: f64,
    new_per_s: f64,
    first_ms: f64,
    rss_mb: f64,
}

impl Figures {
    fn best(self, other: Figures) -> Figures {
        Figures {
            prompt_per_s: self.prompt_per_s.max(other.prompt_per_s),
            new_per_s: self.new_per_s.max(other.new_per_s),
            first_ms: self.first_ms.min(other.first_ms),
            rss_mb: self.rss_mb.min(other.rss_mb),
        }
    }
}

/// Measures.
pub fn run(arguments: &TextArguments) -> Result<()> {
    if let Some(folder) = &arguments.own {
        println!("{}", serde_json::to_string(&measure(folder, arguments)?)?);
        return Ok(());
    }
    let python = venv::python_with("venv-text", REQUIREMENTS)?;
    let models = arguments.models.clone().unwrap_or_else(|| paths::cache().join("smollm2"));
    venv::call(Command::new(&python).arg("-c").arg(FOLDERS).arg(&models))?;
    let is_wanted = |name: &str| arguments.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let mut results: BTreeMap<(&str, &str), Figures> = BTreeMap::new();
    for round in 0..arguments.rounds.max(1) {
        for configuration in CONFIGURATIONS.iter().filter(|configuration| is_wanted(configuration.name)) {
            for (peer, file) in configuration.peers {
                let figures = ask(&python, peer, &models.join(file), configuration.activations, arguments)?;
                eprintln!("round {round}, {}, {peer}: {figures:?}", configuration.name);
                let best = results.entry((configuration.name, peer)).or_insert(figures);
                *best = best.best(figures);
            }
        }
    }
    if arguments.json {
        let rows = results
            .iter()
            .map(|((name, peer), figures)| json!({"configuration": name, "peer": peer, "figures": figures}));
        println!("{}", json!({ "rows": rows.collect::<Vec<_>>() }));
    } else {
        print!("{}", table(&results, arguments));
    }
    Ok(())
}

/// One turn of a peer.
fn ask(
    python: &Path,
    peer: &str,
    model: &Path,
    activations: ActivationPrecision,
    arguments: &TextArguments,
) -> Result<Figures> {
    let (prompt, new_tokens) = (arguments.prompt.to_string(), arguments.new_tokens.to_string());
    let mut command = match peer {
        "precast" => {
            let mut own = Command::new(std::env::current_exe()?);
            own.args(["bench", "text", "--prompt", &prompt, "--new-tokens", &new_tokens, "--own"]).arg(model);
            if activations == ActivationPrecision::Int8 {
                own.arg("--int8-activations");
            }
            own
        }
        _ => {
            let mut peers = Command::new(python);
            peers.args(["-c", PEER, peer]).arg(model).args([&prompt, &new_tokens, &THREADS.to_string()]);
            peers
        }
    };
    let output = command.stderr(Stdio::null()).output().with_context(|| format!("cannot start {peer}"))?;
    ensure!(output.status.success(), "{peer} on {}: {}", model.display(), output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(line) = text.lines().rev().find(|line| line.starts_with('{')) else {
        bail!("{peer} on {} printed no figures: {text}", model.display());
    };
    serde_json::from_str(line).with_context(|| format!("{peer} printed {line}"))
}

/// Measures Precast in this process.
fn measure(folder: &Path, arguments: &TextArguments) -> Result<Figures> {
    let &TextArguments { prompt, new_tokens, .. } = arguments;
    let mut runner = RunnerOptions { threads: THREADS, ..RunnerOptions::default() };
    if arguments.int8_activations {
        runner.passes.numerics.activations = ActivationPrecision::Int8;
    }
    let options = TextOptions { runner, ..TextOptions::default() };
    let model = open_text_model(folder, &options)?.model;
    let tokens: Vec<u32> = (0..prompt).map(|i| (100 + 7 * i as u32 % 4000) % model.vocabulary() as u32).collect();
    let short = &tokens[..SHORT_PROMPT.min(prompt)];
    let mut prompts = Vec::new();
    let mut decodes = Vec::new();
    // The first of each kind compiles and is not counted.
    for _ in 0..=RUNS {
        prompts.push(generate(&model, &tokens, 1)?);
        decodes.push(generate(&model, short, new_tokens)?);
    }
    let median = |runs: &[Times], time: fn(&Times) -> f64| {
        let mut times: Vec<f64> = runs[1..].iter().map(time).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok(Figures {
        prompt_per_s: prompt as f64 / median(&prompts, |times| times.read_s),
        new_per_s: (new_tokens - 1) as f64 / median(&decodes, |times| times.rest_s),
        first_ms: 1e3 * median(&prompts, |times| times.first_s),
        rss_mb: peak::peak_mb()?,
    })
}

/// Seconds of one generation: until the prompt was read, until the first token, and for the tokens after that.
struct Times {
    read_s: f64,
    first_s: f64,
    rest_s: f64,
}

fn generate(model: &TextModel, prompt: &[u32], new_tokens: usize) -> Result<Times> {
    let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(new_tokens);
    params.ignore_eos = true;
    let mut generator = Generator::new(model, params)?;
    let begin = Instant::now();
    generator.append(&[prompt])?;
    let read_s = begin.elapsed().as_secs_f64();
    generator.next()?;
    let first_s = begin.elapsed().as_secs_f64();
    while !generator.is_done() {
        generator.next()?;
    }
    Ok(Times { read_s, first_s, rest_s: begin.elapsed().as_secs_f64() - first_s })
}

fn table(results: &BTreeMap<(&str, &str), Figures>, arguments: &TextArguments) -> String {
    let mut text = format!(
        "| weights | program | prompt {} tokens/s | new {} tokens/s | first token ms | peak MB |\n|---|---|---|---|---|---|\n",
        arguments.prompt, arguments.new_tokens
    );
    for ((name, peer), figures) in results {
        let Figures { prompt_per_s, new_per_s, first_ms, rss_mb } = figures;
        text += &format!("| {name} | {peer} | {prompt_per_s:.0} | {new_per_s:.1} | {first_ms:.0} | {rss_mb:.0} |\n");
    }
    text
}
