//! `precast`, the command line: parses, calls the library, prints. stdout carries the result and nothing else.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod bench_rows;
mod cache;
mod cache_transfer;
mod cache_why;
mod chat;
mod check;
mod compile;
mod copy_bandwidth;
mod exit;
mod fitting;
mod generate;
mod inputs;
mod inspect;
mod inspect_folder;
mod interrupt;
mod numerics;
mod onnxruntime;
mod output;
mod perf;
mod perf_session;
mod perf_steps;
mod progress;
mod run;
mod subject;
mod text_args;
mod trace;
mod values;
mod verify;
mod verify_folder;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use clap::Parser;
use serde_json::{Value, json};

use crate::args::{Cli, Verb};
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output::{Console, Report};

/// What every verb is given.
pub struct Cx {
    /// When the process began.
    pub started: Instant,
    /// How to speak on stderr.
    pub console: Console,
    /// Files that must not be left half written.
    pub interrupt: Arc<Interrupt>,
}

fn main() -> ExitCode {
    let started = Instant::now();
    let cli = match Cli::try_parse() {
        Ok(Cli { verb, shared }) => Cli { verb: verb.plain(), shared },
        Err(error) => return end_parsing(&error),
    };
    let console = Console::new(&cli.shared);
    let schema = format!("precast.{}/1", cli.verb.name());
    let result = Interrupt::listen().and_then(|interrupt| run_caught(&cli, Cx { started, console, interrupt }));
    let is_json = cli.shared.json;
    match result {
        Ok(report) => {
            if let Some(error) = &report.error {
                console.error(error);
            }
            let printed = if is_json { json_line(report.json, &schema) } else { report.text };
            output::print_result(&printed);
            report.exit.into()
        }
        Err(failure) => {
            console.error(&failure.message);
            if is_json {
                output::print_result(&error_line(failure.exit, &failure.message));
            }
            failure.exit.into()
        }
    }
}

fn run_verb(cli: &Cli, cx: &Cx) -> Result<Report, Failure> {
    if cli.shared.verbose {
        // What the library logs: Programs that are compiled or loaded and why, and every new form of request.
        let level = tracing_subscriber::filter::LevelFilter::DEBUG;
        let logs = tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level).without_time();
        // A second verb in one process keeps the first one's.
        let _ = logs.with_ansi(cx.console.is_terminal).try_init();
    }
    if let Some(device) = &cli.shared.device {
        cx.console.announce_device(device)?;
    }
    if cli.shared.devices().len() > 1 && !matches!(&cli.verb, Verb::Perf(args) if args.max_batch.is_some()) {
        let verb = cli.verb.name();
        return Err(Failure::usage(format!(
            "--device: '{verb}' runs one request at a time, on one device; several are for perf --max-batch"
        )));
    }
    cli.shared.numerics.check()?;
    match &cli.verb {
        Verb::Inspect(args) => inspect::inspect(args, &cli.shared, cx),
        Verb::Check(args) => check::check(args, &cli.shared, cx),
        Verb::Compile(args) => compile::compile(args, &cli.shared, cx),
        Verb::Run(args) => run::run(args, &cli.shared, cx),
        Verb::Verify(args) if args.model.is_dir() => verify_folder::verify_folder(args, &cli.shared, cx),
        Verb::Verify(args) => verify::verify(args, &cli.shared, cx),
        Verb::Perf(args) => perf::perf(args, &cli.shared, cx),
        Verb::Trace(args) => trace::trace(args, &cli.shared, cx),
        Verb::Generate(args) => generate::run_generate(args, &cli.shared, cx),
        Verb::Chat(args) => chat::run_chat(args, &cli.shared, cx),
        Verb::Bench(args) => bench::run_bench(args, &cli.shared, cx),
        Verb::Llm(_) => unreachable!("`plain` leaves no verb under another name"),
        Verb::Cache(args) => cache::cache(args, &cli.shared, cx),
    }
}

/// Runs the verb; a panic becomes an internal fault with a text to report.
fn run_caught(cli: &Cli, cx: Cx) -> Result<Report, Failure> {
    let place = Arc::new(Mutex::new(String::new()));
    let seen = place.clone();
    std::panic::set_hook(Box::new(move |info| {
        *seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = info.to_string();
    }));
    catch_unwind(AssertUnwindSafe(|| run_verb(cli, &cx))).unwrap_or_else(|_| {
        let place = place.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let version = env!("CARGO_PKG_VERSION");
        Err(Failure::new(
            Exit::Internal,
            format!("this is a fault of precast {version}; please report it with the command and the model\n{place}"),
        ))
    })
}

/// Help and version are results; anything else is a usage error, which `--json` prints as one too.
fn end_parsing(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        output::print_result(&error.to_string());
        return Exit::Done.into();
    }
    output::print_notice(&error.to_string());
    if std::env::args_os().any(|argument| argument == "--json") {
        output::print_result(&error_line(Exit::Usage, error.to_string().trim_end()));
    }
    Exit::Usage.into()
}

fn json_line(mut json: Value, schema: &str) -> String {
    json["schema"] = json!(schema);
    format!("{json}\n")
}

fn error_line(exit: Exit, message: &str) -> String {
    json_line(json!({ "error": message, "kind": exit.name(), "exit": exit.code() }), "precast.error/1")
}
