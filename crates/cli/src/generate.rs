//! `generate`: answers to prompts, streamed where there is one answer to one prompt.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use precast::generate::engine::{complete, complete_requests, params_of_prompt};
use precast::generate::plan::{Phase, StepPlan};
use precast::generate::text_model::StepWatcher;
use precast::generate::{
    Completion, Completions, FinishReason, GeneratorParams, RowSeed, StepToken, TextModel, Tokenizer, generate,
};
use precast::{Adapter, Error, Guidance, Request, RunReport, TextFolder};
use serde_json::{Value, json};

use crate::Cx;
use crate::args::Shared;
use crate::exit::Failure;
use crate::output::{Console, Report, print_result};
use crate::text_args::{FolderArgs, SearchArgs};

/// Arguments of `generate`.
#[derive(Args)]
pub struct GenerateArgs {
    /// The folder.
    #[command(flatten)]
    pub folder: FolderArgs,
    /// The prompt, as text
    #[arg(long, short, value_name = "TEXT", required_unless_present_any = ["tokens", "batch"])]
    pub prompt: Option<String>,
    /// The prompt, as ids
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "prompt")]
    pub tokens: Option<Vec<u32>>,
    /// Prompts, one JSON object a line: {"prompt": TEXT} or {"tokens": [IDS]}, "seed" where a prompt has its own, and "adapter": NAME
    /// or null for another than the first
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["prompt", "tokens"])]
    pub batch: Option<PathBuf>,
    /// Answer by a JSON value of the schema in this file
    #[arg(long, value_name = "FILE", group = "guidance")]
    pub schema: Option<PathBuf>,
    /// Answer by a text that this regular expression matches as a whole
    #[arg(long, value_name = "PATTERN", group = "guidance")]
    pub regex: Option<String>,
    /// Answer by a text of the Lark grammar in this file
    #[arg(long, value_name = "FILE", group = "guidance")]
    pub lark: Option<PathBuf>,
    /// Say of every step which Program ran, how much of it was filler, by which path and why
    #[arg(long)]
    pub explain: bool,
    /// Compile Programs ahead of need, on a thread of its own, where an engine answers: with a grammar or speculation
    #[arg(long)]
    pub prepare_programs: bool,
    /// How tokens are chosen.
    #[command(flatten)]
    pub search: SearchArgs,
}

/// Generates.
pub fn run_generate(args: &GenerateArgs, shared: &Shared, cx: &Cx) -> Result<Report, Failure> {
    let mut folder = args.folder.open(shared, cx)?;
    if args.explain {
        folder.model = folder.model.watched(explain(cx.console));
    }
    let guidance = read_guidance(args)?;
    let (model, tokenizer) = (folder.model.clone(), folder.tokenizer.clone());
    let mut params = args.search.params(&model)?;
    let given = read_prompts(args, &folder)?;
    if given.iter().any(|prompt| prompt.seed != RowSeed::Shared) {
        params = params.row_seeds(given.iter().map(|prompt| prompt.seed));
    }
    let prompts: Vec<&[u32]> = given.iter().map(|prompt| prompt.tokens.as_slice()).collect();
    let is_mixed = given.iter().any(|prompt| name_of(&prompt.adapter) != name_of(&model.adapter().cloned()));
    if is_mixed && params.search.num_beams > 1 {
        return Err(Failure::usage("beams run with one adapter for all prompts"));
    }
    let is_streamed = !shared.json && args.batch.is_none() && params.search.num_return_sequences == 1;
    let is_streamed = is_streamed && params.search.num_beams == 1;
    let mut logprobs = Vec::new();
    let mut on_token = |token: &StepToken| {
        if is_streamed {
            print_result(&match &tokenizer {
                Some(_) => token.text.clone(),
                None if token.finished == Some(FinishReason::Eos) => String::new(),
                None => format!("{} ", token.id),
            });
        }
        if let Some((logprob, top)) = &token.logprobs {
            logprobs.push(json!({ "row": token.row, "id": token.id, "logprob": logprob, "top": top }));
        }
    };
    let begun = Instant::now();
    // Rows of several adapters are the engine's, whose steps they share.
    let is_engine = is_mixed || needs_engine(&folder, &params, guidance.as_ref());
    if args.prepare_programs && !is_engine {
        return Err(Failure::usage("--prepare-programs is an engine's: give a grammar, or a folder that speculates"));
    }
    let mut options = folder.engine_options();
    options.prepares_programs |= args.prepare_programs;
    let completions = match is_engine {
        _ if is_mixed => {
            folder.model = folder.model.with_adapter(None).map_err(Error::from)?;
            let engine = folder.engine(options)?;
            let request = |(row, prompt): (usize, &Prompt)| Request {
                guidance: guidance.clone(),
                adapter: prompt.adapter.clone(),
                ..Request::new(prompt.tokens.clone(), params_of_prompt(&params, row))
            };
            let requests: Vec<Request> = given.iter().enumerate().map(request).collect();
            complete_requests(&engine, &requests, &mut on_token).map_err(Error::from)?
        }
        true => {
            let engine = folder.engine(options)?;
            complete(&engine, &params, guidance.as_ref(), &prompts, &mut on_token).map_err(Error::from)?
        }
        false => generate(&model, tokenizer.as_ref(), &params, &prompts, &mut on_token, None).map_err(Error::from)?,
    };
    let seconds = begun.elapsed().as_secs_f64();
    let text = match is_streamed {
        true => "\n".to_string(),
        false => completions.answers.iter().fold(String::new(), |text, answer| text + &line(answer, args)),
    };
    Ok(Report::done(text, report_json(&model, &completions, &prompts, logprobs, seconds)))
}

/// Grammars and speculation are the engine's; beams are not.
fn needs_engine(folder: &TextFolder, params: &GeneratorParams, guidance: Option<&Guidance>) -> bool {
    let is_speculating = folder.model.config().speculative.ngram_size > 0 || folder.model.draft().is_some();
    guidance.is_some() || (is_speculating && params.search.num_beams == 1)
}

/// What the answers must be.
fn read_guidance(args: &GenerateArgs) -> Result<Option<Guidance>, Failure> {
    let read = |path: &Path| {
        let refused = |error: std::io::Error| Failure::usage(format!("cannot read '{}': {error}", path.display()));
        std::fs::read_to_string(path).map_err(refused)
    };
    Ok(match (&args.schema, &args.regex, &args.lark) {
        (Some(path), ..) => Some(Guidance::JsonSchema(read(path)?)),
        (_, Some(pattern), _) => Some(Guidance::Regex(pattern.clone())),
        (_, _, Some(path)) => Some(Guidance::Lark(read(path)?)),
        (None, None, None) => None,
    })
}

/// An answer of several: its text, or all of it where a machine reads it.
fn line(answer: &Completion, args: &GenerateArgs) -> String {
    match (&answer.text, args.batch.is_some()) {
        (Some(text), false) => format!("{text}\n"),
        _ => format!("{}\n", answer_json(answer)),
    }
}

fn answer_json(answer: &Completion) -> Value {
    json!({
        "prompt": answer.prompt,
        "text": answer.text,
        "tokens": answer.tokens,
        "finish": answer.finish.to_string(),
        "score": answer.score,
        "seed": answer.seed,
    })
}

fn report_json(
    model: &TextModel,
    completions: &Completions,
    prompts: &[&[u32]],
    logprobs: Vec<Value>,
    seconds: f64,
) -> Value {
    let stats = &completions.stats;
    json!({
        "device": model.device(),
        "adapter": model.adapter().map(Adapter::name),
        "answers": completions.answers.iter().map(answer_json).collect::<Vec<_>>(),
        "prompt_tokens": prompts.iter().map(|prompt| prompt.len()).collect::<Vec<_>>(),
        "seed": completions.seed,
        "logprobs": logprobs,
        "seconds": seconds,
        "steps": stats.steps,
        "tokens_run": stats.tokens,
        "tokens_padded": stats.padded_tokens,
    })
}

/// Says of every step what it ran, whether a generator or an engine ran it.
fn explain(console: Console) -> StepWatcher {
    Arc::new(move |plan, report, _| console.tell(&step_line(plan, report)))
}

fn step_line(plan: &StepPlan, report: &RunReport) -> String {
    let phase = match plan.phase {
        Phase::Prefill => "prefill",
        Phase::Decode => "decode",
    };
    let mut line = String::new();
    let shape = plan.shape;
    let _ = write!(line, "{phase}: Program rows={} length={} capacity={}", shape.rows, shape.length, shape.capacity);
    let valid: usize = plan.rows.iter().map(|row| row.valid).sum();
    let _ = write!(line, ", {valid} tokens and {} of filler", plan.padded_tokens());
    let _ =
        write!(line, ", {:?} by {:?} from {:?} ({})", report.tier, report.path, report.origin, report.reason.name());
    line
}

/// A prompt, where its draws come from, and the adapter that it is answered with.
struct Prompt {
    tokens: Vec<u32>,
    seed: RowSeed,
    adapter: Option<Adapter>,
}

fn name_of(adapter: &Option<Adapter>) -> Option<&str> {
    adapter.as_ref().map(Adapter::name)
}

fn read_prompts(args: &GenerateArgs, folder: &TextFolder) -> Result<Vec<Prompt>, Failure> {
    let tokenizer = folder.tokenizer.as_ref();
    let adapter = || folder.model.adapter().cloned();
    let alone = |tokens: Vec<u32>| vec![Prompt { tokens, seed: RowSeed::Shared, adapter: adapter() }];
    match (&args.prompt, &args.tokens, &args.batch) {
        (Some(text), ..) => Ok(alone(encode(text, tokenizer)?)),
        (_, Some(tokens), _) => Ok(alone(tokens.clone())),
        (_, _, Some(path)) => read_batch(path, folder),
        (None, None, None) => Err(Failure::usage("no prompt: give --prompt, --tokens or --batch")),
    }
}

/// Ids of a text.
pub fn encode(text: &str, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, Failure> {
    let Some(tokenizer) = tokenizer else {
        return Err(Failure::usage("the folder has no tokenizer.json: give ids with --tokens"));
    };
    Ok(tokenizer.encode(text).map_err(Error::from)?)
}

fn read_batch(path: &Path, folder: &TextFolder) -> Result<Vec<Prompt>, Failure> {
    let tokenizer = folder.tokenizer.as_ref();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read '{}': {error}", path.display())))?;
    let mut prompts = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = || format!("'{}' line {}", path.display(), number + 1);
        let value: Value =
            serde_json::from_str(line).map_err(|error| Failure::usage(format!("{}: {error}", place())))?;
        let tokens = value.get("tokens").map(|tokens| serde_json::from_value::<Vec<u32>>(tokens.clone()));
        let tokens = match (value.get("prompt").and_then(Value::as_str), tokens) {
            (Some(text), None) => encode(text, tokenizer)?,
            (None, Some(Ok(tokens))) => tokens,
            _ => return Err(Failure::usage(format!("{}: a \"prompt\" or \"tokens\" was expected", place()))),
        };
        let seed = serde_json::from_value(value.get("seed").cloned().unwrap_or_default());
        let seed =
            seed.map_err(|_| Failure::usage(format!("{}: a \"seed\" that is an integer was expected", place())))?;
        let adapter = match value.get("adapter") {
            None => folder.model.adapter().cloned(),
            Some(Value::Null) => None,
            Some(Value::String(name)) => {
                Some(folder.adapters.get(name).map_err(|error| Failure::usage(format!("{}: {error}", place())))?)
            }
            Some(_) => return Err(Failure::usage(format!("{}: \"adapter\" is a name or null", place()))),
        };
        prompts.push(Prompt { tokens, seed, adapter });
    }
    if prompts.is_empty() {
        return Err(Failure::usage(format!("'{}' has no prompts", path.display())));
    }
    Ok(prompts)
}
