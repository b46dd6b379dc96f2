//! The arguments of every verb. The same word means the same thing on each.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use precast::device_name::{DeviceName, resolve_devices};
use precast::{Isa, TuneMode, TuneOptions};

use crate::bench::BenchArgs;
use crate::chat::ChatArgs;
use crate::generate::GenerateArgs;
use crate::numerics::NumericsArgs;

/// Threads a run may have; more is a slip of the finger.
const THREADS_MAX: u64 = 1024;

/// Compiles ONNX models ahead of time and runs them.
#[derive(Parser)]
#[command(name = "precast", version)]
pub struct Cli {
    /// Flags of every verb.
    #[command(flatten)]
    pub shared: Shared,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Flags of every verb.
#[derive(Args)]
pub struct Shared {
    /// Print the result as one line of JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Print no notices and no progress
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Print more notices
    #[arg(long, short, global = true, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Print no progress
    #[arg(long, global = true)]
    pub no_progress: bool,
    /// Colour on stderr
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
    /// Where the model runs: cpu, cuda:N or hip:N; a stream of requests also on several, as in cuda:0,cuda:1 [default: what
    /// a model folder says, else cpu]
    #[arg(long, global = true, value_name = "NAME")]
    pub device: Option<String>,
    /// Refuse nodes that the device has no kernel for, instead of running them on the host
    #[arg(long, global = true)]
    pub strict: bool,
    /// Whether a GPU captures Programs that run often, and replays them
    #[arg(long, global = true, value_enum, default_value_t = Capture::Auto)]
    pub capture: Capture,
    /// Threads of a run [default: the number of cores]
    #[arg(long, global = true, value_parser = parse_threads)]
    pub threads: Option<usize>,
    /// Instruction set to compile for: portable, avx2, avx512 or avx512-vnni [default: what this CPU has]
    #[arg(long, global = true, value_parser = parse_isa)]
    pub isa: Option<Isa>,
    /// Folder in which the model's external data may lie [default: the model's own]
    #[arg(long, global = true, value_name = "DIR")]
    pub model_root: Option<PathBuf>,
    /// Liberties with numbers.
    #[command(flatten)]
    pub numerics: NumericsArgs,
}

impl Shared {
    /// The devices that the flags name; whether there are such names was checked when the command began.
    pub fn devices(&self) -> Vec<DeviceName> {
        let asked = self.device.as_deref().and_then(|names| resolve_devices(names).ok());
        asked.unwrap_or_else(|| vec![DeviceName::CPU])
    }

    /// The first of them.
    pub fn device(&self) -> DeviceName {
        self.devices()[0]
    }
}

/// Whether a GPU captures.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Capture {
    /// After two ordinary runs
    Auto,
    /// Never: every step is launched by itself
    Off,
}

/// When to use colour.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal
    Auto,
    /// Never
    Never,
    /// Always
    Always,
}

/// What to do.
#[derive(Subcommand)]
pub enum Verb {
    /// Show what a model, a Program file or a model folder is
    Inspect(InspectArgs),
    /// Say whether a model is supported, with every node that is not
    Check(CheckArgs),
    /// Compile a model to a Program file
    Compile(CompileArgs),
    /// Run a model or a Program file once
    Run(RunArgs),
    /// Compare a model's outputs with another implementation's
    Verify(VerifyArgs),
    /// Measure how fast a model or a Program file runs
    Perf(PerfArgs),
    /// Write a time line of every step, for Perfetto
    Trace(TraceArgs),
    /// Generate text with the model of a folder
    Generate(Box<GenerateArgs>),
    /// Chat with the model of a folder
    Chat(Box<ChatArgs>),
    /// Measure how fast the model of a folder reads and generates tokens
    Bench(BenchArgs),
    /// The verbs of text generation under one name
    #[command(subcommand)]
    Llm(LlmVerb),
    /// Look after a folder of compiled Programs
    Cache(CacheArgs),
}

/// What to do with the model of a folder.
#[derive(Subcommand)]
pub enum LlmVerb {
    /// The same as generate
    #[command(alias = "generate")]
    Run(Box<GenerateArgs>),
    /// The same as chat
    Chat(Box<ChatArgs>),
    /// The same as bench
    Bench(BenchArgs),
}

impl Verb {
    /// The verb that another way to type it stands for.
    pub fn plain(self) -> Verb {
        match self {
            Verb::Llm(LlmVerb::Run(args)) => Verb::Generate(args),
            Verb::Llm(LlmVerb::Chat(args)) => Verb::Chat(args),
            Verb::Llm(LlmVerb::Bench(args)) => Verb::Bench(args),
            verb => verb,
        }
    }

    /// The verb as it is typed.
    pub fn name(&self) -> &'static str {
        match self {
            Verb::Inspect(_) => "inspect",
            Verb::Check(_) => "check",
            Verb::Compile(_) => "compile",
            Verb::Run(_) => "run",
            Verb::Verify(_) => "verify",
            Verb::Perf(_) => "perf",
            Verb::Trace(_) => "trace",
            Verb::Generate(_) => "generate",
            Verb::Chat(_) => "chat",
            Verb::Bench(_) => "bench",
            Verb::Llm(_) => "llm",
            Verb::Cache(_) => "cache",
        }
    }
}

/// Sizes of the inputs.
#[derive(Args, Clone, Default)]
pub struct ShapeArgs {
    /// A number for a symbolic dim
    #[arg(long = "dim", value_name = "NAME=SIZE", value_parser = parse_dim)]
    pub dims: Vec<(String, usize)>,
    /// The shape of an input, as in data:1x3x224x224
    #[arg(long = "shape", alias = "shapes", value_name = "NAME:SIZES", value_delimiter = ',', value_parser = parse_shape)]
    pub shapes: Vec<(String, Vec<usize>)>,
}

/// Sizes and values of the inputs.
#[derive(Args)]
pub struct InputArgs {
    /// Values of an input: NAME=FILE.npy, .npz or .pb, or NAME=zeros, ones or random; FILE.npz alone gives several
    #[arg(long = "input", value_name = "NAME=FILE")]
    pub inputs: Vec<String>,
    /// Seed of random inputs
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Sizes.
    #[command(flatten)]
    pub shapes: ShapeArgs,
}

/// Whether tactics are measured before compiling.
#[derive(Args)]
pub struct TuneArgs {
    /// Measure which convolution tactics are fastest here before compiling: off, quick (the likeliest three) or full
    #[arg(long, value_name = "MODE", default_value = "off")]
    pub tune: TuneMode,
    /// Seconds that measuring may take in all; what is left over is estimated
    #[arg(long, value_name = "S", value_parser = parse_tolerance)]
    pub tune_seconds: Option<f64>,
}

impl TuneArgs {
    /// As the library takes them.
    pub fn options(&self) -> TuneOptions {
        TuneOptions { mode: self.tune, seconds: self.tune_seconds }
    }
}

/// Arguments of `inspect`.
#[derive(Args)]
pub struct InspectArgs {
    /// The model, Program file or model folder
    pub file: PathBuf,
    /// Print the Graph's text form
    #[arg(long)]
    pub text: bool,
    /// Which Graph `--text` prints
    #[arg(long, value_enum, default_value_t = Stage::Imported, requires = "text")]
    pub stage: Stage,
    /// A JSON merge patch on a model folder's configuration; several are applied in order
    #[arg(long, value_name = "FILE")]
    pub overlay: Vec<PathBuf>,
    /// Sizes.
    #[command(flatten)]
    pub shapes: ShapeArgs,
}

/// A Graph on its way through the passes.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Stage {
    /// As the model says it
    Imported,
    /// In canonical form
    Canonical,
    /// As the steps compute it
    Fused,
}

/// Arguments of `check`.
#[derive(Args)]
pub struct CheckArgs {
    /// The model
    pub model: PathBuf,
    /// Sizes.
    #[command(flatten)]
    pub shapes: ShapeArgs,
}

/// Arguments of `compile`.
#[derive(Args)]
pub struct CompileArgs {
    /// The model
    pub model: PathBuf,
    /// The Program file to write; its constants go to a folder beside it
    #[arg(long, short, value_name = "FILE", alias = "saveEngine")]
    pub output: PathBuf,
    /// List what every pass did and left alone and why, and every step with its kernel and nodes
    #[arg(long)]
    pub explain: bool,
    /// Use the measured tactics of this cache, and keep those of --tune in it
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Measuring.
    #[command(flatten)]
    pub tune: TuneArgs,
    /// Sizes, and values of inputs that decide the form of the Program.
    #[command(flatten)]
    pub inputs: InputArgs,
}

/// Arguments of `run`.
#[derive(Args)]
pub struct RunArgs {
    /// The model or Program file
    pub file: PathBuf,
    /// Where the outputs go: FILE.npz, or a folder for one .npy an output
    #[arg(long, short, value_name = "FILE.npz|DIR")]
    pub output: Option<PathBuf>,
    /// Use the measured tactics of this cache, and keep those of --tune in it
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Measuring.
    #[command(flatten)]
    pub tune: TuneArgs,
    /// Sizes and values.
    #[command(flatten)]
    pub inputs: InputArgs,
}

/// Arguments of `verify`.
#[derive(Args)]
pub struct VerifyArgs {
    /// The model
    pub model: PathBuf,
    /// What to compare with: reference, onnxruntime, or FILE.npz with the outputs expected; for a model folder, golden cases
    #[arg(long, default_value = "reference")]
    pub against: String,
    /// Python that has onnxruntime
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub python: PathBuf,
    /// Also compare every step with its meaning, and list them
    #[arg(long, alias = "per-instruction")]
    pub per_step: bool,
    /// Also compare every step with its meaning, and show the first that differs
    #[arg(long)]
    pub bisect: bool,
    /// Also compare replays of a capture with ordinary launches, byte for byte, on memory that was poisoned before
    #[arg(long)]
    pub replay: bool,
    /// Allowed |a-b|/|b| over a whole output [default: 1e-4; 2e-2 for 16-bit and quantised models]
    #[arg(long, value_parser = parse_tolerance, conflicts_with_all = ["rtol", "atol"])]
    pub rel: Option<f64>,
    /// Allowed difference of each element, relative to it
    #[arg(long, value_parser = parse_tolerance)]
    pub rtol: Option<f64>,
    /// Allowed difference of each element
    #[arg(long, value_parser = parse_tolerance)]
    pub atol: Option<f64>,
    /// Sizes and values.
    #[command(flatten)]
    pub inputs: InputArgs,
}

/// Arguments of `perf`.
#[derive(Args)]
pub struct PerfArgs {
    /// The model or Program file
    #[arg(alias = "loadEngine")]
    pub file: PathBuf,
    /// Measure these sizes of axis 0, one after another: 1,7,64 or 1..64
    #[arg(long, value_name = "SIZES", value_parser = parse_batches, default_value = "")]
    pub batches: Batches,
    /// Run a ragged stream of requests on Buckets up to this size of axis 0
    #[arg(long, value_name = "N", value_parser = parse_size)]
    pub max_batch: Option<usize>,
    /// Which sizes are compiled: pow2:64, fitted:64, fitted:64,k=6 or a list such as 1,2,6 [default: powers of two]
    #[arg(long, value_name = "POLICY", requires = "max_batch")]
    pub buckets: Option<String>,
    /// Make axes of inputs one dim: *.0=batch, or a.0=n,b.1=n
    #[arg(long, value_name = "INPUT.AXIS=DIM", requires = "max_batch")]
    pub bind: Option<String>,
    /// What may answer a request whose Program is not there, in order: wait, pad-up, reference or reject
    #[arg(long, value_name = "POLICY", default_value = "pad-up,wait", requires = "max_batch")]
    pub on_miss: String,
    /// Keep measured tactics, and with --max-batch compiled Programs, in this folder and take them from there
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Measuring.
    #[command(flatten)]
    pub tune: TuneArgs,
    /// Signatures of the cache.
    #[command(flatten)]
    pub signing: SigningArgs,
    /// Time to run before measuring, in milliseconds
    #[arg(long = "warmUp", alias = "warm-up", value_name = "MS", default_value_t = 500)]
    pub warm_up: u64,
    /// Time to measure, in seconds [default: 3, or none with --iterations]
    #[arg(long, value_name = "S", value_parser = parse_tolerance)]
    pub duration: Option<f64>,
    /// Runs to measure at least
    #[arg(long, value_name = "N")]
    pub iterations: Option<u64>,
    /// Also measure every step
    #[arg(long, alias = "steps")]
    pub per_step: bool,
    /// Sizes and values.
    #[command(flatten)]
    pub inputs: InputArgs,
}

/// Signatures of a cache.
#[derive(Args)]
pub struct SigningArgs {
    /// Sign what is put into the cache with this Ed25519 private key (PEM)
    #[arg(long, global = true, value_name = "FILE")]
    pub sign_key: Option<PathBuf>,
    /// Take only what is signed by one of these Ed25519 public keys (PEM)
    #[arg(long, global = true, value_name = "FILE")]
    pub require_signed: Option<PathBuf>,
}

/// Arguments of `trace`.
#[derive(Args)]
pub struct TraceArgs {
    /// The model or Program file
    pub file: PathBuf,
    /// The trace to write
    #[arg(long, short, value_name = "FILE.json")]
    pub output: PathBuf,
    /// Runs on the time line
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
    /// Sizes and values.
    #[command(flatten)]
    pub inputs: InputArgs,
}

/// Arguments of `cache`.
#[derive(Args)]
pub struct CacheArgs {
    /// Signatures.
    #[command(flatten)]
    pub signing: SigningArgs,
    /// What to do.
    #[command(subcommand)]
    pub verb: CacheVerb,
}

/// What to do with a cache.
#[derive(Subcommand)]
pub enum CacheVerb {
    /// List the Programs, with their sizes and those of their constants
    Ls {
        /// Folder of the cache
        dir: PathBuf,
        /// List the constants instead: each is stored once, however many Programs name it
        #[arg(long)]
        bytes: bool,
    },
    /// Show what one Program was compiled from and for
    Show {
        /// Folder of the cache
        dir: PathBuf,
        /// First digits of its key
        key: String,
    },
    /// Say for each Bucket of a model whether the cache has it, and if not what differs from the nearest entry
    Why {
        /// Folder of the cache
        dir: PathBuf,
        /// The model, or the first digits of a key
        subject: PathBuf,
        /// Which Buckets; needed for a model
        #[command(flatten)]
        ladder: LadderArgs,
    },
    /// Show the fields in which two Programs differ
    Diff {
        /// Folder of the cache
        dir: PathBuf,
        /// First digits of a key
        one: String,
        /// First digits of another
        other: String,
    },
    /// Compile every Bucket of a model that the cache does not have
    Warm {
        /// Folder of the cache; made if it is missing
        dir: PathBuf,
        /// The model
        model: PathBuf,
        /// Which Buckets
        #[command(flatten)]
        ladder: LadderArgs,
        /// Measuring
        #[command(flatten)]
        tune: TuneArgs,
    },
    /// Copy what a store does not have to it
    Push(TransferArgs),
    /// Copy what a folder does not have from a store
    Pull(TransferArgs),
    /// Keep a Program from gc
    Pin {
        /// Folder of the cache
        dir: PathBuf,
        /// First digits of its key
        key: String,
    },
    /// Leave a Program to gc again
    Unpin {
        /// Folder of the cache
        dir: PathBuf,
        /// First digits of its key
        key: String,
    },
    /// Check every file
    Verify {
        /// Folder of the cache
        dir: PathBuf,
    },
    /// Remove what was not used for long until the folder is small enough
    Gc {
        /// Folder of the cache
        dir: PathBuf,
        /// Bytes that may stay
        #[arg(long, value_name = "N")]
        max_bytes: u64,
        /// Remove; without this flag it is only said what would go
        #[arg(long)]
        apply: bool,
    },
}

/// The Buckets of a model.
#[derive(Args)]
pub struct LadderArgs {
    /// Largest size of axis 0
    #[arg(long, value_name = "N", value_parser = parse_size)]
    pub max_batch: Option<usize>,
    /// Which sizes are compiled: pow2:64, fitted:64 or a list such as 1,2,6 [default: powers of two]
    #[arg(long, value_name = "POLICY")]
    pub buckets: Option<String>,
    /// A number for another symbolic dim
    #[arg(long = "dim", value_name = "NAME=SIZE", value_parser = parse_dim)]
    pub dims: Vec<(String, usize)>,
}

/// Between a folder and a store.
#[derive(Args)]
pub struct TransferArgs {
    /// Folder of the cache
    pub dir: PathBuf,
    /// The store: a folder, file:///folder, or s3://bucket/path and the like in a build with --features cloud
    pub url: String,
    /// An option of the store, such as region=eu-west-1
    #[arg(long = "store-option", value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub options: Vec<(String, String)>,
}

/// Sizes of axis 0.
#[derive(Clone, Debug, Default)]
pub struct Batches(pub Vec<usize>);

/// Sizes of a range that are measured: more would not end.
const BATCHES_MAX: usize = 4096;

fn parse_batches(text: &str) -> Result<Batches, String> {
    let mut batches = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        match part.split_once("..") {
            None => batches.push(parse_size(part)?),
            Some((first, last)) => {
                let (first, last) = (parse_size(first)?, parse_size(last.trim_start_matches('='))?);
                if first > last {
                    return Err(format!("the range {part} is empty"));
                }
                if last - first >= BATCHES_MAX {
                    return Err(format!("the range {part} has more than {BATCHES_MAX} sizes"));
                }
                batches.extend(first..=last);
            }
        }
    }
    Ok(Batches(batches))
}

fn parse_threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|threads| (1..=THREADS_MAX).contains(threads));
    threads.map(|threads| threads as usize).ok_or_else(|| format!("a number from 1 to {THREADS_MAX} is expected"))
}

fn parse_isa(text: &str) -> Result<Isa, String> {
    let names: Vec<&str> = Isa::ALL.iter().map(|isa| isa.name()).collect();
    Isa::from_name(text).ok_or_else(|| format!("it is one of {}", names.join(", ")))
}

fn parse_dim(text: &str) -> Result<(String, usize), String> {
    // Names of dims may be expressions, which may have an equals sign in them; sizes cannot.
    let (name, size) = text.rsplit_once('=').ok_or("NAME=SIZE is expected, as in batch=8")?;
    Ok((name.to_string(), parse_size(size)?))
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is expected")?;
    Ok((name.to_string(), value.to_string()))
}

fn parse_shape(text: &str) -> Result<(String, Vec<usize>), String> {
    // Names such as "input:0" have colons; sizes do not.
    let (name, sizes) = text.rsplit_once(':').ok_or("NAME:SIZES is expected, as in data:1x3x224x224")?;
    let sizes: Result<Vec<usize>, String> = match sizes {
        "" => Ok(Vec::new()),
        sizes => sizes.split('x').map(parse_size).collect(),
    };
    Ok((name.to_string(), sizes?))
}

fn parse_size(text: &str) -> Result<usize, String> {
    let size = text.trim().parse::<u32>().map_err(|_| format!("'{text}' is not a size"))?;
    Ok(size as usize)
}

fn parse_tolerance(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "a number that is not negative is expected".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_contradict_nothing() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn shapes_and_dims_are_read_from_the_right() {
        assert_eq!(parse_shape("input:0:1x3"), Ok(("input:0".to_string(), vec![1, 3])));
        assert_eq!(parse_shape("sr:"), Ok(("sr".to_string(), Vec::new())));
        assert_eq!(parse_dim("a=b=8"), Ok(("a=b".to_string(), 8)));
        assert!(parse_shape("1x3").is_err() && parse_shape("a:1xx3").is_err() && parse_dim("n=-1").is_err());
    }
}
