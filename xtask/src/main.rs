//! `cargo xtask`: the project's own checks, as commands. `cargo xtask test` runs all of them.
//!
//! Results go to stdout as JSON, on one last line; everything for people goes to stderr.
#![forbid(unsafe_code)]

mod bench_session;
mod case;
mod conformance;
mod docs;
mod fetch;
mod fill;
mod inputs;
mod known_failures;
mod manifest;
mod measure;
mod models;
mod onnxruntime;
mod opened;
mod paths;
mod pcg64;
mod test;
mod torture_session;
mod venv;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Precast's own checks.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare every model of models/ with onnxruntime.
    Models(models::ModelsArguments),
    /// Run the ONNX backend cases on the reference and on the CPU.
    Conformance(conformance::ConformanceArguments),
    /// Write the documents that are generated from tables in the code.
    Docs {
        /// Write nothing; fail when a document is stale.
        #[arg(long)]
        check: bool,
    },
    /// Try to break what must never break.
    #[command(subcommand)]
    Torture(Torture),
    /// Measure against the bars.
    #[command(subcommand)]
    Bench(Bench),
    /// Run every test of the project.
    Test,
    /// Answer requests on stdin; started by the other commands, so that a crash or a hang costs one answer.
    #[command(hide = true)]
    Worker,
}

#[derive(Subcommand)]
enum Torture {
    /// Sessions under load: every answer equals the exact-shape run.
    Session(torture_session::SessionArguments),
}

#[derive(Subcommand)]
enum Bench {
    /// What a Session costs beside the model, and opening from the cache.
    Session(bench_session::SessionArguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Models(arguments) => models::run(&arguments),
        Command::Conformance(arguments) => conformance::run(&arguments),
        Command::Docs { check: false } => docs::write(),
        Command::Docs { check: true } => docs::check(),
        Command::Torture(Torture::Session(arguments)) => torture_session::run(&arguments),
        Command::Bench(Bench::Session(arguments)) => bench_session::run(&arguments),
        Command::Test => test::run(),
        Command::Worker => worker::serve(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
