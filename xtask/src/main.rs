//! `cargo xtask`: the project's own checks, as commands. `cargo xtask test` runs all of them.
//!
//! Results go to stdout as JSON, on one last line; everything for people goes to stderr.
#![forbid(unsafe_code)]

mod bench;
mod built;
mod case;
mod conformance;
mod coverage;
mod docs;
mod fetch;
mod fill;
mod fuzz;
mod gpu;
mod gpu_bundle;
mod gpu_compilers;
mod gpu_suite;
mod hip_check;
mod inputs;
mod kernel_texts;
mod known_failures;
mod llama_folder;
mod manifest;
mod measure;
mod models;
mod older_systems;
mod onnxruntime;
mod opened;
mod openvino;
mod ort_ep;
mod paths;
mod pcg64;
mod peak;
mod python_door;
mod ranked;
mod sanitize;
mod test;
mod torture;
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
    /// Give inputs that nobody wrote to everything that reads or computes.
    Fuzz(fuzz::FuzzArguments),
    /// Try to break what must never break.
    #[command(subcommand)]
    Torture(torture::Torture),
    /// Measure against the bars.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Compare and time every model on this machine's GPU.
    Gpu(gpu::GpuArguments),
    /// Pack everything that a machine with a GPU needs to check the project.
    GpuBundle(gpu_bundle::GpuBundleArguments),
    /// Check the project on this machine's GPU, bar by bar.
    GpuSuite(gpu_suite::GpuSuiteArguments),
    /// Compile every kernel of every model for AMD, without an AMD machine.
    HipCheck(hip_check::HipCheckArguments),
    /// Build the Python package and run its tests.
    Python(python_door::PythonArguments),
    /// Run the tests of the Python package on a cluster of one machine.
    Ray(python_door::RayArguments),
    /// Check the plugin provider on stock onnxruntimes, or pack it as a wheel.
    OrtEp(ort_ep::OrtEpArguments),
    /// Run tests of text generation under AddressSanitizer.
    Sanitize,
    /// Run every test of the project.
    Test(test::TestArguments),
    /// Use a cache as told; started by `torture cache`.
    #[command(hide = true)]
    TortureChild {
        /// What to do, as JSON.
        task: String,
    },
    /// Answer requests on stdin; started by the other commands, so that a crash or a hang costs one answer.
    #[command(hide = true)]
    Worker,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Models(arguments) => models::run(&arguments),
        Command::Conformance(arguments) => conformance::run(&arguments),
        Command::Docs { check: false } => docs::write(),
        Command::Docs { check: true } => docs::check(),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Torture(what) => torture::run(&what),
        Command::Bench(what) => bench::run(&what),
        Command::Gpu(arguments) => gpu::run(&arguments),
        Command::GpuBundle(arguments) => gpu_bundle::run(&arguments),
        Command::GpuSuite(arguments) => gpu_suite::run(&arguments),
        Command::HipCheck(arguments) => hip_check::run(&arguments),
        Command::Python(arguments) => python_door::run(&arguments),
        Command::Ray(arguments) => python_door::run_ray(&arguments),
        Command::OrtEp(arguments) => ort_ep::run(&arguments),
        Command::Sanitize => sanitize::run(),
        Command::Test(arguments) => test::run(&arguments),
        Command::TortureChild { task } => torture::cache_child::serve(&task),
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
