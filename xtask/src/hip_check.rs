//! Kernels for AMD without an AMD machine: every text that the models become compiles through HIPRTC for every architecture
//! that Debian's packages can target, and every function that the driver room uses exists in the real library.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use precast::FloatPrecision;
use precast_driver::{Compiler, DriverError, Library};
use precast_gpu::{Arch, KernelCompiler, RuntimeCompiler, Vendor};
use precast_tensor::Digest;
use serde::Serialize;
use serde_json::json;

use crate::manifest::{self, ModelEntry};
use crate::worker::{Request, Worker, ask_own};
use crate::{kernel_texts, paths};

/// Batches that every model is compiled at: kernels of one row may differ from those of many.
const BATCHES: [usize; 2] = [1, 8];
/// Matrix cores of the first kind, of the second, and none with warps of 32.
const ARCHS: [(&str, u32, u32); 3] = [("gfx908", 64, 120), ("gfx90a", 64, 104), ("gfx1030", 32, 36)];
/// Shared memory of a block on each of them.
const SHARED_BYTES: u32 = 64 << 10;
/// Characters of a compiler's message that are worth reading.
const MESSAGE_CHARS: usize = 2000;

/// Arguments of `cargo xtask hip-check`.
#[derive(Args)]
pub struct HipCheckArguments {
    /// Print the results as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Only models whose names contain one of these.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Only this architecture.
    #[arg(long, value_name = "NAME")]
    arch: Option<String>,
    /// Compile texts again that compiled before on this machine.
    #[arg(long)]
    again: bool,
}

/// A text for an architecture, and a model that needs it.
struct Kernel {
    arch: String,
    text: String,
    model: String,
}

/// A text that does not compile.
#[derive(Debug, Serialize)]
struct Failure {
    arch: String,
    /// A model that needs it.
    model: String,
    message: String,
}

/// Collects, compiles and looks up.
pub fn run(arguments: &HipCheckArguments) -> Result<()> {
    let symbols = check_symbols()?;
    eprintln!("{symbols} functions of HIP and HIPRTC are where they should be");
    let archs = archs(arguments.arch.as_deref());
    let (kernels, mut failures) = collect(arguments, &archs)?;
    ensure!(
        !kernels.is_empty() || !failures.is_empty(),
        "no model and no architecture has the name that was asked for"
    );
    eprintln!("{} different texts for {} architectures", kernels.len(), archs.len());
    let begun = Instant::now();
    let proven = Proven::open(arguments.again)?;
    failures.extend(compile(&kernels, &proven)?);
    let seconds = begun.elapsed().as_secs_f64();
    for failure in &failures {
        eprintln!("{} for {}: {}", failure.model, failure.arch, failure.message);
    }
    if arguments.json {
        let by_arch: BTreeMap<&str, usize> = archs
            .iter()
            .map(|arch| (arch.name.as_str(), kernels.iter().filter(|kernel| kernel.arch == arch.name).count()))
            .collect();
        println!(
            "{}",
            json!({
                "ok": failures.is_empty(),
                "symbols": symbols,
                "texts": by_arch,
                "compiled_before": kernels.iter().filter(|kernel| proven.has(kernel)).count(),
                "failures": failures,
                "seconds": seconds,
            })
        );
    }
    ensure!(failures.is_empty(), "{} of {} kernels do not compile", failures.len(), kernels.len());
    eprintln!("all {} kernels compile, in {seconds:.0} s", kernels.len());
    Ok(())
}

fn archs(only: Option<&str>) -> Vec<Arch> {
    let wanted = ARCHS.into_iter().filter(|(name, ..)| only.is_none_or(|only| only == *name));
    let arch = |(name, warp, multiprocessors): (&str, u32, u32)| Arch {
        vendor: Vendor::Hip,
        name: name.to_string(),
        warp,
        shared_bytes_max: SHARED_BYTES,
        multiprocessors,
    };
    wanted.map(arch).collect()
}

/// How many functions of the real libraries were looked up; one that is missing is an error.
fn check_symbols() -> Result<usize> {
    let hip = precast_driver::Vendor::Hip;
    match Library::open(hip) {
        // A driver without a device may refuse to initialise, which comes after every function was found.
        Ok(_) | Err(DriverError::Call { .. }) => {}
        Err(error) => return Err(error).context("the HIP driver (Debian: libamdhip64-dev)"),
    }
    Compiler::open(hip).context("HIPRTC (Debian: libamdhip64-dev, libhiprtc-builtins5)")?;
    Ok(Library::symbols(hip).len() + Compiler::symbols(hip).len())
}

/// Every different text, and the models that could not be turned into texts.
fn collect(arguments: &HipCheckArguments, archs: &[Arch]) -> Result<(Vec<Kernel>, Vec<Failure>)> {
    let is_wanted = |model: &&ModelEntry| {
        arguments.only.is_empty() || arguments.only.iter().any(|part| model.name.contains(part.as_str()))
    };
    let mut kernels: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut failures = Vec::new();
    for model in manifest::read()?.iter().filter(is_wanted) {
        let before = kernels.len();
        for batch in BATCHES.into_iter().filter(|&batch| batch == 1 || model.is_batch_dynamic) {
            for floats in [FloatPrecision::F32, FloatPrecision::F16] {
                match kernel_texts::of_model(model, batch, floats, archs) {
                    Ok(found) => {
                        for (arch, text) in found
                            .into_iter()
                            .flat_map(|(arch, texts)| texts.into_iter().map(move |text| (arch.clone(), text)))
                        {
                            kernels.entry((arch, text)).or_insert_with(|| model.name.clone());
                        }
                    }
                    Err(error) => failures.push(Failure {
                        arch: "every architecture".to_string(),
                        model: format!("{}, batch {batch}, {}", model.name, floats.name()),
                        message: format!("{error:#}"),
                    }),
                }
            }
        }
        eprintln!("{}: {} texts that no model before it has", model.name, kernels.len() - before);
    }
    let kernel = |((arch, text), model)| Kernel { arch, text, model };
    Ok((kernels.into_iter().map(kernel).collect(), failures))
}

/// Texts that compiled before with the HIPRTC of this machine, by digest: a line each in a file that only grows.
struct Proven {
    version: String,
    before: BTreeSet<String>,
    file: Mutex<File>,
}

impl Proven {
    fn open(forget: bool) -> Result<Proven> {
        let version = RuntimeCompiler::open(precast_driver::Vendor::Hip)?.version();
        fs::create_dir_all(paths::cache())?;
        let path = paths::cache().join("hip-check.txt");
        let text = if forget { String::new() } else { fs::read_to_string(&path).unwrap_or_default() };
        let file = File::options().create(true).append(true).open(&path)?;
        Ok(Proven { version, before: text.lines().map(str::to_string).collect(), file: Mutex::new(file) })
    }

    fn key(&self, kernel: &Kernel) -> String {
        let parts = [&self.version, &kernel.arch, &kernel.text].map(|part| format!("{} {part}", part.len()));
        Digest::of_bytes(parts.concat().as_bytes()).to_string()
    }

    fn has(&self, kernel: &Kernel) -> bool {
        self.before.contains(&self.key(kernel))
    }

    fn add(&self, kernel: &Kernel) -> Result<()> {
        let mut file = self.file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Ok(writeln!(file, "{}", self.key(kernel))?)
    }
}

/// Compiles every text, in as many processes as there are cores: HIPRTC takes one text at a time.
fn compile(kernels: &[Kernel], proven: &Proven) -> Result<Vec<Failure>> {
    let kernels: Vec<&Kernel> = kernels.iter().filter(|kernel| !proven.has(kernel)).collect();
    eprintln!("{} of them have not compiled before", kernels.len());
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        let mut worker = Worker::start_own(Stdio::inherit())?;
        while let Some(kernel) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
            let request = Request::HipKernel { text: kernel.text.clone(), arch: kernel.arch.clone() };
            let Err(error) = ask_own::<usize>(&mut worker, &request) else {
                proven.add(kernel)?;
                continue;
            };
            let failure = Failure {
                arch: kernel.arch.clone(),
                model: kernel.model.clone(),
                message: format!("{error:#}").chars().take(MESSAGE_CHARS).collect(),
            };
            failures.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(failure);
            // It may have died of the text.
            worker = Worker::start_own(Stdio::inherit())?;
        }
        Ok(())
    };
    let workers = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a thread that asks a worker has panicked"))??;
        }
        Ok(())
    })?;
    Ok(failures.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()))
}
