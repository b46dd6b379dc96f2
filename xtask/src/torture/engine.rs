//! Engines under load: sixty-four clients with mixed lengths and random cancellations on every tiny model. Each answer is
//! compared with that of a generator whose prompt is alone; at the end every page must be back, and no row may have waited
//! longer than the bound says. With a folder, also how much faster many requests are than one at a time.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use precast::generate::config::SpeculativeConfig;
use precast::generate::engine::{EngineMetrics, Event, Request, RequestHandle};
use precast::generate::{Engine, EngineOptions, FinishReason, GeneratorParams, TextModel, generate};
use precast::{ActivationPrecision, TextOptions, open_text_model};
use serde::Serialize;
use serde_json::json;

use crate::paths;
use crate::pcg64::Pcg64;

/// Threads that send requests, each waiting for its answer.
const CLIENTS: u64 = 64;
/// Rows of a step.
const ROWS: usize = 16;
/// Different requests of a model.
const CASES: u64 = 60;
/// One of so many requests is cancelled.
const CANCELLED: u64 = 4;
/// Different requests that speed is measured with: of every length with every number of new tokens.
const REQUESTS: u64 = 35;
/// How much faster many requests must be than one at a time.
const SPEEDUP_MIN: f64 = 3.0;

/// Arguments of `cargo xtask torture engine`.
#[derive(Args)]
pub struct EngineArguments {
    /// Print the results as one line of JSON.
    #[arg(long)]
    json: bool,
    /// How long, over all models.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// A model folder on which many requests at once are measured against one at a time; may be given alone with --seconds 0.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Multiply weights of few bits of that folder with activations of 8 bits.
    #[arg(long)]
    int8_activations: bool,
}

/// How one model did.
#[derive(Serialize)]
struct ModelReport {
    model: String,
    compared: u64,
    cancelled: u64,
    wrong: u64,
    steps: usize,
    preemptions: usize,
    prefix_hit_tokens: usize,
    accepted_draft_tokens: usize,
    /// Most steps between two steps of a row that decodes, and how many there may be.
    decode_wait: (u64, u64),
    queue_wait: u64,
    /// Pages that were not back at the end.
    pages_lost: usize,
    ok: bool,
}

/// How fast many requests are.
#[derive(Serialize)]
struct SpeedReport {
    folder: String,
    alone_tokens_per_s: f64,
    /// Of clients that always have a request open, as the bar is meant.
    together_tokens_per_s: f64,
    speedup: f64,
    /// Of one request of each client, from all of them to the last.
    burst_tokens_per_s: f64,
    burst_speedup: f64,
    ok: bool,
}

/// Tortures.
pub fn run(arguments: &EngineArguments) -> Result<()> {
    let mut reports = Vec::new();
    let folders = tiny_folders()?;
    if arguments.seconds > 0 {
        let share = Duration::from_secs(arguments.seconds).div_f64(folders.len() as f64);
        for folder in &folders {
            let report = torture(folder, share).with_context(|| folder.display().to_string())?;
            eprintln!("{}", serde_json::to_string(&report)?);
            reports.push(report);
        }
    }
    let speed = arguments.folder.as_deref().map(|folder| measure(folder, arguments)).transpose()?;
    let is_ok = reports.iter().all(|report| report.ok) && speed.as_ref().is_none_or(|speed| speed.ok);
    if arguments.json {
        println!("{}", json!({ "ok": is_ok, "models": reports, "speed": speed }));
    }
    ensure!(is_ok, "an engine gave other tokens, kept pages, let a row wait too long, or was too slow");
    Ok(())
}

/// The models of the tests, without those whose answers depend on how prompts are cut.
fn tiny_folders() -> Result<Vec<PathBuf>> {
    let data = paths::root().join("crates/generate/tests/data");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(data)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.join("genai_config.json").is_file())
        .collect();
    folders.sort();
    ensure!(!folders.is_empty(), "there are no tiny models");
    Ok(folders)
}

/// A request and what a generator answers to it.
struct Case {
    prompt: Vec<u32>,
    params: GeneratorParams,
    expected: Vec<u32>,
}

fn case(model: &TextModel, number: u64) -> Result<Case> {
    let mut random = Pcg64::new(u128::from(number) + 1);
    let mut below = |count: u64| random.next_word() % count;
    let vocabulary = model.vocabulary() as u64;
    // One of a few beginnings, then tokens of its own.
    let beginning = below(3) * 24;
    let mut prompt: Vec<u32> = (0..beginning).map(|token| (token * 7 + beginning) as u32 % vocabulary as u32).collect();
    let own = 1 + below(if number.is_multiple_of(8) { 150 } else { 30 });
    prompt.extend((0..own).map(|_| below(vocabulary) as u32));
    prompt.truncate(model.config().model.context_length / 2);
    let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(1 + below(48) as usize);
    params.ignore_eos = below(2) == 0;
    match below(4) {
        0 => {}
        1 => params = params.temperature(0.8).top_p(0.95).seed(number),
        2 => params.search.repetition_penalty = 1.2,
        _ => (params.search.do_sample, params.min_p, params.search.random_seed) = (true, 0.05, Some(number)),
    }
    let answers = generate(model, None, &params, &[&prompt], &mut |_| (), None)?.answers;
    let expected = answers.into_iter().next().context("a generator gave no answer")?.tokens;
    Ok(Case { prompt, params, expected })
}

fn torture(folder: &Path, duration: Duration) -> Result<ModelReport> {
    let model = open_text_model(folder, &TextOptions::default())?.model;
    let cases = (0..CASES).map(|number| case(&model, number)).collect::<Result<Vec<Case>>>()?;
    let speculation = SpeculativeConfig {
        max_draft_tokens: 4,
        ngram_size: 3,
        ngram_chained_lookup: true,
        min_adaptive_k: 1,
        cooldown: true,
    };
    let options = EngineOptions {
        page_tokens: 16,
        pages: Some(120),
        rows_max: ROWS,
        tokens_max: 256,
        prefix_caching: true,
        speculation,
        checks_invariants: true,
        ..EngineOptions::from_config(model.config(), None)
    };
    let engine = Engine::new(&model, None, options)?;
    let (compared, cancelled, wrong) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let end = Instant::now() + duration;
    std::thread::scope(|scope| {
        let client = |client: u64| {
            let (engine, cases) = (&engine, &cases);
            let (compared, cancelled, wrong) = (&compared, &cancelled, &wrong);
            scope.spawn(move || -> Result<()> {
                let mut random = Pcg64::new(u128::from(client) + 1000);
                while Instant::now() < end {
                    let case = &cases[(random.next_word() % CASES) as usize];
                    let is_cancelled = random.next_word().is_multiple_of(CANCELLED);
                    let events_max = if is_cancelled { 1 + random.next_word() % 40 } else { u64::MAX };
                    let handle = engine.submit(Request::new(case.prompt.clone(), case.params.clone()))?;
                    let is_right = is_right(&read_events(engine, case, &handle, events_max)?, case);
                    let count = if is_cancelled { cancelled } else { compared };
                    count.fetch_add(1, Ordering::Relaxed);
                    wrong.fetch_add(u64::from(!is_right), Ordering::Relaxed);
                }
                Ok(())
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        clients.into_iter().try_for_each(|client| client.join().expect("a client panicked"))
    })?;
    let metrics = idle(&engine)?;
    let bound = CLIENTS.div_ceil(ROWS as u64 - 1);
    let pages_lost = metrics.pages_total - metrics.pages_free - metrics.pages_shared;
    let wrong = wrong.into_inner();
    Ok(ModelReport {
        model: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        compared: compared.into_inner(),
        cancelled: cancelled.into_inner(),
        wrong,
        steps: metrics.steps,
        preemptions: metrics.preemptions,
        prefix_hit_tokens: metrics.prefix_hit_tokens,
        accepted_draft_tokens: metrics.speculation.accepted,
        decode_wait: (metrics.decode_wait_max, bound),
        queue_wait: metrics.queue_wait_max,
        pages_lost,
        ok: wrong == 0 && pages_lost == 0 && metrics.failed == 0 && metrics.decode_wait_max <= bound,
    })
}

/// What a request was told: tokens that stay in the row, and whether that is all of them.
struct Told {
    tokens: Vec<u32>,
    is_whole: bool,
}

/// Reads a request's events, so many at most, and cancels it then.
fn read_events(engine: &Engine, case: &Case, handle: &RequestHandle, events_max: u64) -> Result<Told> {
    let mut tokens = Vec::new();
    let mut taken = 0;
    while let Some(event) = handle.next_event() {
        match event {
            Event::Token(token) => tokens.push(token.id),
            Event::Finished { reason, .. } => {
                if reason == FinishReason::Eos && !case.params.include_stop_token {
                    tokens.pop();
                }
                return Ok(Told { tokens, is_whole: reason != FinishReason::Cancelled });
            }
            Event::Blocked => {}
            Event::Failed { message, .. } => bail!("{message}; {:?}", engine.metrics()),
        }
        taken += 1;
        if taken == events_max {
            handle.cancel();
        }
    }
    bail!("a request ended without saying why")
}

fn is_right(told: &Told, case: &Case) -> bool {
    match told.is_whole {
        true => told.tokens == case.expected,
        // The token that ends a sequence may be the last that was told.
        false => case.expected.starts_with(&told.tokens[..told.tokens.len().min(case.expected.len())]),
    }
}

/// How things stand when nothing is open.
fn idle(engine: &Engine) -> Result<EngineMetrics> {
    loop {
        let metrics = engine.metrics()?;
        if metrics.queued + metrics.running == 0 {
            return Ok(metrics);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Tokens a second of requests one at a time and of many clients that each send one after another, in turn on the same engine,
/// after all sizes have run once.
fn measure(folder: &Path, arguments: &EngineArguments) -> Result<SpeedReport> {
    /// Both are measured in turn, since a machine's own speed changes by a tenth from second to second; medians count.
    const ROUNDS: usize = 5;
    let mut text_options = TextOptions::default();
    if arguments.int8_activations {
        text_options.runner.passes.numerics.activations = ActivationPrecision::Int8;
    }
    let model = open_text_model(folder, &text_options)?.model;
    let options = EngineOptions {
        page_tokens: 32,
        pages: Some(64 * 8),
        rows_max: CLIENTS as usize,
        prefix_caching: false,
        ..EngineOptions::from_config(model.config(), None)
    };
    let engine = Engine::new(&model, None, options)?;
    let requests: Vec<Request> = (0..REQUESTS).map(|number| request(&model, number)).collect();
    alone(&engine, &requests)?;
    burst(&engine, &requests)?;
    sustained(&engine, &requests)?;
    let [mut alone_rates, mut burst_rates, mut together_rates] = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        alone_rates.push(alone(&engine, &requests)?);
        burst_rates.push(burst(&engine, &requests)?);
        together_rates.push(sustained(&engine, &requests)?);
    }
    let median = |mut rates: Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[ROUNDS / 2]
    };
    let (alone_rate, burst_rate, together_rate) = (median(alone_rates), median(burst_rates), median(together_rates));
    let speedup = together_rate / alone_rate;
    let report = SpeedReport {
        folder: folder.display().to_string(),
        alone_tokens_per_s: alone_rate,
        together_tokens_per_s: together_rate,
        speedup,
        burst_tokens_per_s: burst_rate,
        burst_speedup: burst_rate / alone_rate,
        ok: speedup >= SPEEDUP_MIN,
    };
    eprintln!("{}", serde_json::to_string(&report)?);
    Ok(report)
}

/// A request of one of seven lengths and one of five numbers of new tokens.
fn request(model: &TextModel, number: u64) -> Request {
    let prompt = (0..8 + number % 7 * 8).map(|token| ((token * 131 + number * 17) % 997 + 20) as u32).collect();
    let mut params = GeneratorParams::new(model.config().search.clone());
    (params.ignore_eos, params.search.do_sample) = (true, false);
    Request::new(prompt, params.max_new_tokens(48 + number as usize % 5 * 8))
}

/// Each request when the one before it has ended.
fn alone(engine: &Engine, requests: &[Request]) -> Result<f64> {
    let begun = Instant::now();
    let mut tokens = 0;
    for request in requests {
        tokens += count_tokens(&engine.submit(request.clone())?, &AtomicU64::new(0))?;
    }
    Ok(tokens as f64 / begun.elapsed().as_secs_f64())
}

/// One request of every client at the same moment: until the last has ended, with ever fewer rows.
fn burst(engine: &Engine, requests: &[Request]) -> Result<f64> {
    let begun = Instant::now();
    let handles = requests.iter().cycle().take(CLIENTS as usize).map(|request| engine.submit(request.clone()));
    let handles = handles.collect::<Result<Vec<RequestHandle>, _>>()?;
    let tokens = handles.iter().map(|handle| count_tokens(handle, &AtomicU64::new(0))).sum::<Result<usize>>()?;
    Ok(tokens as f64 / begun.elapsed().as_secs_f64())
}

/// Clients that always have a request open: tokens while all of them do.
fn sustained(engine: &Engine, requests: &[Request]) -> Result<f64> {
    /// Time in which all clients get their first answers, and time that is measured.
    const SECONDS: (u64, u64) = (3, 6);
    let (told, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let client = |client: u64| {
            let (told, is_over) = (&told, &is_over);
            scope.spawn(move || -> Result<()> {
                for number in (client..).step_by(CLIENTS as usize) {
                    let request = &requests[(number % REQUESTS) as usize];
                    let handle = engine.submit(request.clone())?;
                    count_tokens(&handle, told)?;
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
                Ok(())
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        std::thread::sleep(Duration::from_secs(SECONDS.0));
        let (begun, before) = (Instant::now(), told.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_secs(SECONDS.1));
        let rate = (told.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64();
        is_over.store(true, Ordering::Relaxed);
        clients.into_iter().try_for_each(|client| client.join().expect("a client panicked"))?;
        Ok(rate)
    })
}

/// Tokens of an answer, which are also added to `told` as they come.
fn count_tokens(handle: &RequestHandle, told: &AtomicU64) -> Result<usize> {
    let mut tokens = 0;
    for event in handle.events() {
        match event {
            Event::Token(_) => {
                tokens += 1;
                told.fetch_add(1, Ordering::Relaxed);
            }
            Event::Failed { message, .. } => bail!("{message}"),
            Event::Blocked | Event::Finished { .. } => {}
        }
    }
    Ok(tokens)
}
