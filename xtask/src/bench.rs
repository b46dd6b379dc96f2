//! `cargo xtask bench`: measuring against the bars, with peers in processes of their own.

mod ablation;
mod cpu;
mod ep;
mod instructions;
mod memory;
mod padding;
mod python;
mod session;
mod tactics;
mod text;

use anyhow::Result;
use clap::Subcommand;

/// What to measure.
#[derive(Subcommand)]
pub enum Bench {
    /// What each pass is worth: models without one pass at a time.
    Ablation(ablation::AblationArguments),
    /// Latency against onnxruntime and OpenVINO.
    Cpu(cpu::CpuArguments),
    /// What a run through onnxruntime and the plugin provider costs beside our own Session.
    Ep(ep::EpArguments),
    /// Instruction counts of a fixed set of kernels, against those recorded in docs/instructions.json.
    Instructions(instructions::InstructionsArguments),
    /// Peak memory against onnxruntime.
    Memory(memory::MemoryArguments),
    /// What a short prompt costs in a model of long sequences, beside a Program of exactly its sizes.
    Padding(padding::PaddingArguments),
    /// What a call from Python costs beside the model, against onnxruntime's.
    Python(python::PythonArguments),
    /// What a Session costs beside the model, and opening from the cache.
    Session(session::SessionArguments),
    /// Whether the cost model picks the tactics that are fastest when measured.
    Tactics(tactics::TacticsArguments),
    /// Text generation against onnxruntime-genai and llama.cpp.
    Text(text::TextArguments),
}

/// Measures.
pub fn run(what: &Bench) -> Result<()> {
    match what {
        Bench::Ablation(arguments) => ablation::run(arguments),
        Bench::Cpu(arguments) => cpu::run(arguments),
        Bench::Ep(arguments) => ep::run(arguments),
        Bench::Instructions(arguments) => instructions::run(arguments),
        Bench::Memory(arguments) => memory::run(arguments),
        Bench::Padding(arguments) => padding::run(arguments),
        Bench::Python(arguments) => python::run(arguments),
        Bench::Session(arguments) => session::run(arguments),
        Bench::Tactics(arguments) => tactics::run(arguments),
        Bench::Text(arguments) => text::run(arguments),
    }
}
