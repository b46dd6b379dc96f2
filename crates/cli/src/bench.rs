//! `bench`: tokens a second of prompts (`pp`) and of generation (`tg`), greedy and without ends.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};
use precast::generate::{GenerateError, Generator, GeneratorParams, StepStats, TextModel};
use precast::{Error, TextFolder};
use serde_json::{Value, json};

use crate::Cx;
use crate::args::Shared;
use crate::exit::Failure;
use crate::output::Report;
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

/// One measurement.
struct Row {
    test: String,
    batch: usize,
    /// Tokens a second of each repetition.
    rates: Vec<f64>,
    /// Seconds to the first token of each repetition, where there was a prompt.
    first_s: Vec<f64>,
    stats: StepStats,
    /// Tokens a second of the run that this one is compared with.
    before: Option<f64>,
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
    let TextFolder { model, .. } = args.folder.open(shared, cx)?;
    let mut rows = Vec::new();
    for case in cases(args) {
        let mut row = measure(&model, case, args.repetitions as usize)?;
        row.before = before.as_ref().and_then(|before| before.get(&(row.test.clone(), row.batch)).copied());
        rows.push(row);
    }
    let json: Vec<Value> = rows.iter().map(Row::json).collect();
    let document = json!({
        "folder": args.folder.folder.display().to_string(),
        "device": model.device(),
        "kv_bytes_per_token": model.kv_bytes_per_token(),
        "rows": json,
    });
    let text = match args.output {
        Format::Md => table(&rows, before.is_some()),
        Format::Csv => {
            rows.iter().fold("test,batch,mean,deviation,first_token_s,padding\n".to_string(), |text, row| {
                let (mean, deviation) = mean_and_deviation(&row.rates);
                text + &format!(
                    "{},{},{mean},{deviation},{},{}\n",
                    row.test,
                    row.batch,
                    row.first_mean(),
                    row.padding()
                )
            })
        }
        Format::Json => format!("{document:#}\n"),
        Format::Jsonl => json.iter().fold(String::new(), |text, row| text + &format!("{row}\n")),
        Format::Sql => sql(&rows, model.device()),
    };
    Ok(Report::done(text, document))
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

/// Statements that make a table and fill it. No text of a row has a quote in it but perhaps the device's, which is doubled.
fn sql(rows: &[Row], device: &str) -> String {
    let mut text = "CREATE TABLE IF NOT EXISTS bench (device TEXT, test TEXT, batch INTEGER, tokens_per_second REAL, \
                    deviation REAL, first_token_s REAL, padding REAL);\n"
        .to_string();
    for row in rows {
        let (mean, deviation) = mean_and_deviation(&row.rates);
        let _ = writeln!(
            text,
            "INSERT INTO bench VALUES ('{}', '{}', {}, {mean}, {deviation}, {}, {});",
            device.replace('\'', "''"),
            row.test,
            row.batch,
            row.first_mean(),
            row.padding()
        );
    }
    text
}

fn cases(args: &BenchArgs) -> Vec<Case> {
    let mut cases = Vec::new();
    for &batch in &args.batch {
        cases.extend(args.prompt.iter().map(|&prompt| Case { prompt, new_tokens: 0, batch }));
        cases.extend(args.new_tokens.iter().map(|&new_tokens| Case { prompt: 0, new_tokens, batch }));
        let both = args.prompt.iter().flat_map(|&prompt| args.new_tokens.iter().map(move |&new| (prompt, new)));
        cases.extend(both.map(|(prompt, new_tokens)| Case { prompt, new_tokens, batch }));
    }
    cases.retain(|case| case.batch > 0 && case.prompt + case.new_tokens > 0);
    cases
}

fn measure(model: &TextModel, case: Case, repetitions: usize) -> Result<Row, Failure> {
    let test = match (case.prompt, case.new_tokens) {
        (prompt, 0) => format!("pp{prompt}"),
        (0, new) => format!("tg{new}"),
        (prompt, new) => format!("pp{prompt}+tg{new}"),
    };
    let (rates, first_s, stats) = (Vec::new(), Vec::new(), StepStats::default());
    let mut row = Row { test, batch: case.batch, rates, first_s, stats, before: None };
    for repetition in 0..=repetitions {
        let (rate, first_s, stats) = run_once(model, case).map_err(Error::from)?;
        if repetition > 0 {
            row.rates.push(rate);
            row.first_s.extend((case.prompt > 0).then_some(first_s));
            row.stats = stats;
        }
    }
    Ok(row)
}

/// Tokens a second, seconds to the first token, and what was run.
fn run_once(model: &TextModel, case: Case) -> Result<(f64, f64, StepStats), GenerateError> {
    let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(case.new_tokens.max(1));
    params.ignore_eos = true;
    (params.search.do_sample, params.search.num_beams) = (false, 1);
    let mut generator = Generator::new(model, params)?;
    // Generation without a prompt begins behind one token, which is not measured.
    let length = case.prompt.max(1);
    let token = |row: usize, position: usize| ((row * 7919 + position * 104_729 + 13) % model.vocabulary()) as u32;
    let prompts: Vec<Vec<u32>> =
        (0..case.batch).map(|row| (0..length).map(|position| token(row, position)).collect()).collect();
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
    let seconds = if case.prompt == 0 { decode_s } else { prompt_s + decode_s };
    let rate = (case.batch * (case.prompt + case.new_tokens)) as f64 / seconds;
    Ok((rate, prompt_s, generator.stats()))
}

impl Row {
    fn json(&self) -> Value {
        let (mean, deviation) = mean_and_deviation(&self.rates);
        json!({
            "test": self.test,
            "batch": self.batch,
            "tokens_per_second": mean,
            "deviation": deviation,
            "first_token_s": self.first_mean(),
            "padding": self.padding(),
            "steps": self.stats.steps,
            "before": self.before,
            "ratio": self.before.map(|before| mean / before),
        })
    }

    fn first_mean(&self) -> f64 {
        mean_and_deviation(&self.first_s).0
    }

    /// Filler as part of all tokens that were run.
    fn padding(&self) -> f64 {
        self.stats.padded_tokens as f64 / (self.stats.padded_tokens + self.stats.tokens).max(1) as f64
    }
}

fn table(rows: &[Row], is_compared: bool) -> String {
    let (more, line) = if is_compared { (" before | ratio |", "---|---|") } else { ("", "") };
    let mut text = format!("| test | batch | tokens/s | first token | padding |{more}\n|---|---|---|---|---|{line}\n");
    for row in rows {
        let (mean, deviation) = mean_and_deviation(&row.rates);
        let first =
            if row.first_s.is_empty() { "–".to_string() } else { format!("{:.1} ms", row.first_mean() * 1e3) };
        let compared = match (row.before, is_compared) {
            (Some(before), _) => format!(" {before:.1} | {:.2} |", mean / before),
            (None, true) => " – | – |".to_string(),
            (None, false) => String::new(),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {mean:.1} ± {deviation:.1} | {first} | {:.0} % |{compared}",
            row.test,
            row.batch,
            row.padding() * 100.0
        );
    }
    text
}

fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    (mean, variance.sqrt())
}
