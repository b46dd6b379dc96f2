//! `bench`: tokens a second of prompts (`pp`) and of generation (`tg`), greedy and without ends.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use clap::{Args, ValueEnum};
use precast::generate::text_model::StepWatcher;
use precast::generate::{GenerateError, Generator, GeneratorParams, StepStats, TextModel};
use precast::{Adapter, AnswerPath, Error, LaunchPath, TextFolder};
use serde_json::{Value, json};

use crate::Cx;
use crate::args::Shared;
use crate::bench_rows::{PathMix, Row, csv, sql, table};
use crate::copy_bandwidth::copy_bandwidth;
use crate::exit::Failure;
use crate::output::Report;
use crate::subject::options;
use crate::text_args::FolderArgs;

/// Arguments of `bench`.
#[derive(Args)]
pub struct BenchArgs {
    /// The folder.
    #[command(flatten)]
    pub folder: FolderArgs,
    /// Tokens of prompts
    #[arg(long, short, value_delimiter = ',', default_value = "128,512")]
    pub prompt: Vec<usize>,
    /// Tokens to generate
    #[arg(long, short = 'n', value_delimiter = ',', default_value = "128")]
    pub new_tokens: Vec<usize>,
    /// Rows
    #[arg(long, short, value_delimiter = ',', default_value = "1")]
    pub batch: Vec<usize>,
    /// Repetitions of each measurement, after one that is not counted
    #[arg(long, short, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub repetitions: u64,
    /// How the rows are printed
    #[arg(long, short, value_enum, default_value_t = Format::Md)]
    pub output: Format,
    /// Compare with the rows of an earlier run: a file that -o json or --json wrote
    #[arg(long, value_name = "FILE.json")]
    pub compare: Option<PathBuf>,
}

/// How rows are printed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table of Markdown
    Md,
    /// Comma-separated values
    Csv,
    /// One JSON document
    Json,
    /// One line of JSON a row
    Jsonl,
    /// Statements that make a table and fill it
    Sql,
}

/// What is measured: tokens of a prompt, then tokens to generate.
#[derive(Clone, Copy)]
struct Case {
    prompt: usize,
    new_tokens: usize,
    batch: usize,
}

/// Measures.
pub fn run_bench(args: &BenchArgs, shared: &Shared, cx: &Cx) -> Result<Report, Failure> {
    let before = args.compare.as_deref().map(read_rates).transpose()?;
    if args.folder.adapter.len() > 1 {
        return Err(Failure::usage("bench measures one adapter at a time; give --adapter once"));
    }
    let TextFolder { model, .. } = args.folder.open(shared, cx)?;
    let paths = Arc::new(Mutex::new(PathMix::default()));
    let model = model.watched(counting(paths.clone()));
    let bandwidth = copy_bandwidth(&model, options(shared).threads);
    let mut rows = Vec::new();
    for case in cases(args) {
        let mut row = measure(&model, case, args.repetitions as usize, bandwidth, &paths)?;
        row.before = before.as_ref().and_then(|before| before.get(&(row.test.clone(), row.batch)).copied());
        rows.push(row);
    }
    let json: Vec<Value> = rows.iter().map(Row::json).collect();
    let document = json!({
        "folder": args.folder.folder.display().to_string(),
        "device": model.device(),
        "adapter": model.adapter().map(Adapter::name),
        "kv_bytes_per_token": model.kv_bytes_per_token(),
        "weight_bytes": model.weight_bytes(),
        "copy_bytes_per_second": bandwidth,
        "rows": json,
    });
    let text = match args.output {
        Format::Md => table(&rows, before.is_some()),
        Format::Csv => csv(&rows),
        Format::Json => format!("{document:#}\n"),
        Format::Jsonl => json.iter().fold(String::new(), |text, row| text + &format!("{row}\n")),
        Format::Sql => sql(&rows, model.device()),
    };
    Ok(Report::done(text, document))
}

/// Counts how steps run.
fn counting(paths: Arc<Mutex<PathMix>>) -> StepWatcher {
    Arc::new(move |_, report, _| {
        let mut paths = paths.lock().unwrap_or_else(PoisonError::into_inner);
        match (report.path, report.device.launch) {
            (AnswerPath::Reference, _) => paths.reference += 1,
            (AnswerPath::Launch, LaunchPath::Replayed) => paths.replayed += 1,
            (AnswerPath::Launch, LaunchPath::Captured | LaunchPath::Steps(_)) => paths.launched += 1,
        }
    })
}

/// Tokens a second of an earlier run, by test and rows.
fn read_rates(path: &Path) -> Result<BTreeMap<(String, usize), f64>, Failure> {
    let refuse = |reason: String| Failure::usage(format!("'{}': {reason}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    let document: Value = serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
    let rows = document["rows"].as_array().ok_or_else(|| refuse("has no \"rows\"".to_string()))?;
    let rate = |row: &Value| {
        let batch = usize::try_from(row["batch"].as_u64()?).ok()?;
        Some(((row["test"].as_str()?.to_string(), batch), row["tokens_per_second"].as_f64()?))
    };
    let rates = rows.iter().map(rate).collect::<Option<_>>();
    rates.ok_or_else(|| refuse("a row has no \"test\", \"batch\" or \"tokens_per_second\"".to_string()))
}

fn cases(args: &BenchArgs) -> Vec<Case> {
    let mut cases = Vec::new();
    for &batch in &args.batch {
        cases.extend(args.prompt.iter().map(|&prompt| Case { prompt, new_tokens: 0, batch }));
        cases.extend(args.new_tokens.iter().map(|&new_tokens| Case { prompt: 0, new_tokens, batch }));
        let both = args.prompt.iter().flat_map(|&prompt| args.new_tokens.iter().map(move |&new| (prompt, new)));
        // With none of one of them it is a case that there is already.
        let both = both.filter(|&(prompt, new_tokens)| prompt > 0 && new_tokens > 0);
        cases.extend(both.map(|(prompt, new_tokens)| Case { prompt, new_tokens, batch }));
    }
    cases.retain(|case| case.batch > 0 && case.prompt + case.new_tokens > 0);
    cases
}

fn measure(
    model: &TextModel,
    case: Case,
    repetitions: usize,
    bandwidth: Option<f64>,
    paths: &Mutex<PathMix>,
) -> Result<Row, Failure> {
    let test = match (case.prompt, case.new_tokens) {
        (prompt, 0) => format!("pp{prompt}"),
        (0, new) => format!("tg{new}"),
        (prompt, new) => format!("pp{prompt}+tg{new}"),
    };
    let kv_bytes = (case.batch * case.length_at_end() * model.kv_bytes_per_token()) as u64;
    let mut row = Row {
        test,
        batch: case.batch,
        rates: Vec::new(),
        first_s: Vec::new(),
        stats: StepStats::default(),
        paths: PathMix::default(),
        weight_bytes: model.weight_bytes(),
        kv_bytes,
        floor: Vec::new(),
        before: None,
    };
    let reset = || std::mem::take(&mut *paths.lock().unwrap_or_else(PoisonError::into_inner));
    for repetition in 0..=repetitions {
        let run = run_once(model, case).map_err(Error::from)?;
        if repetition == 0 {
            reset();
            continue;
        }
        row.rates.push((case.batch * (case.prompt + case.new_tokens)) as f64 / run.seconds);
        row.first_s.extend((case.prompt > 0).then_some(run.prompt_s));
        row.stats = run.stats;
        if let (Some(bandwidth), true) = (bandwidth, case.new_tokens > 0) {
            row.floor.push(case.bytes_read(model) as f64 / bandwidth / run.decode_s.max(f64::MIN_POSITIVE));
        }
    }
    row.paths = reset();
    Ok(row)
}

impl Case {
    /// Tokens before generation begins: behind no prompt it begins behind one token.
    fn length_at_first(self) -> usize {
        self.prompt.max(1)
    }

    fn length_at_end(self) -> usize {
        self.length_at_first() + self.new_tokens
    }

    /// Bytes that the steps of generation cannot do without: the weights each, and the keys and values of every token before.
    fn bytes_read(self, model: &TextModel) -> u64 {
        let cached: usize = (self.length_at_first()..self.length_at_end()).sum();
        let kv = (self.batch * cached * model.kv_bytes_per_token()) as u64;
        self.new_tokens as u64 * model.weight_bytes() + kv
    }
}

/// How long one repetition took, and what it ran.
struct Run {
    /// What was measured.
    seconds: f64,
    prompt_s: f64,
    decode_s: f64,
    stats: StepStats,
}

fn run_once(model: &TextModel, case: Case) -> Result<Run, GenerateError> {
    let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(case.new_tokens.max(1));
    params.ignore_eos = true;
    (params.search.do_sample, params.search.num_beams) = (false, 1);
    let mut generator = Generator::new(model, params)?;
    let token = |row: usize, position: usize| ((row * 7919 + position * 104_729 + 13) % model.vocabulary()) as u32;
    let prompts: Vec<Vec<u32>> =
        (0..case.batch).map(|row| (0..case.length_at_first()).map(|position| token(row, position)).collect()).collect();
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let begun = Instant::now();
    generator.append(&prompts)?;
    let prompt_s = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    for _ in 0..case.new_tokens {
        generator.next()?;
    }
    // The last token is run too, so that each token is one step.
    if case.new_tokens > 0 {
        generator.logits(0)?;
    }
    let decode_s = begun.elapsed().as_secs_f64();
    // A prompt of the one token that generation begins behind is not measured.
    let seconds = if case.prompt == 0 { decode_s } else { prompt_s + decode_s };
    Ok(Run { seconds, prompt_s, decode_s, stats: generator.stats() })
}
