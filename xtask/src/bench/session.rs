//! What a Session costs beside the model: the ultra-fast path against the bare Program, a model with many small inputs
//! against onnxruntime, ragged streams cold and warm, and opening from the cache against onnxruntime's session.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use precast::{
    Argument, BucketPolicy, CacheMode, CacheOptions, Form, Model, OutputBuffer, ProgramCache, Readiness, Reason,
    RunnerOptions, Session, SessionOptions, Startup, Tensor, Tier,
};
use serde::Serialize;
use serde_json::json;

use crate::manifest::{self, ModelEntry, Source};
use crate::measure::{Speed, compare_speed, median};
use crate::opened::{self, THREADS};
use crate::pcg64::Pcg64;
use crate::{fetch, inputs, onnxruntime};

/// The model with many small inputs.
const MANY_INPUTS: &str = "recsys190";
/// Largest batch of the ragged streams.
const MAX_BATCH: usize = 64;
/// Requests of the cold stream.
const COLD_REQUESTS: usize = 1000;
/// Requests of one turn of the warm stream, and turns.
const WARM_REQUESTS: usize = 2000;
const TURNS: usize = 9;
/// Two medians of the same stream differ by up to this factor; the longest request is the largest of sixty-four medians.
const SAME: f64 = 1.02;
/// Runs of one turn of the overhead.
const OVERHEAD_RUNS: usize = 20_000;
/// Times that a model is opened, of which the median counts.
const OPENINGS: usize = 5;

/// Arguments of `cargo xtask bench session`.
#[derive(Args)]
pub struct SessionArguments {
    /// Print the results as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Only open the model of this name from this cache, and print the milliseconds; started by the command itself.
    #[arg(long, num_args = 2, value_names = ["NAME", "CACHE"], hide = true)]
    open: Vec<String>,
    /// Leave out opening, which takes the longest.
    #[arg(long)]
    no_opening: bool,
}

/// Everything that was measured.
#[derive(Serialize)]
struct Report {
    overhead: Overhead,
    many_inputs: Speed,
    cold: Cold,
    warm: Warm,
    opening: Vec<Opening>,
}

/// The ultra-fast path on a model that does almost nothing.
#[derive(Serialize)]
struct Overhead {
    bare_us: f64,
    session_us: f64,
    added_us: f64,
    allocations: u64,
    is_ultra_fast: bool,
}

/// A ragged stream from an empty cache.
#[derive(Serialize)]
struct Cold {
    requests: usize,
    buckets: ColdStream,
    compile_per_shape: ColdStream,
    times_sooner: f64,
}

/// One stream of it.
#[derive(Serialize)]
struct ColdStream {
    /// From opening the file to the last answer.
    spent_s: f64,
    /// When the first request could run.
    first_request_s: f64,
    /// When nothing was left to do in the background.
    ready_s: f64,
    /// Time on all cores until then.
    cpu_s: f64,
    /// Programs that were there at the last answer, and requests that ran on larger ones than they would have then.
    buckets_ready: usize,
    padded_up: u64,
}

/// A ragged stream on loaded Programs.
#[derive(Serialize)]
struct Warm {
    buckets_per_s: f64,
    exact_per_s: f64,
    ratio: f64,
    longest_request_ms: f64,
    /// What the dearest Bucket costs, its copies included, and without them.
    worst_bucket_ms: f64,
    worst_program_ms: f64,
}

/// Opening one model.
#[derive(Serialize)]
struct Opening {
    name: String,
    buckets: usize,
    precast_ms: f64,
    onnxruntime_ms: f64,
    ratio: f64,
}

/// Measures, and says which bars hold.
pub fn run(arguments: &SessionArguments) -> Result<()> {
    if let [name, cache] = &arguments.open[..] {
        return open_once(name, Path::new(cache));
    }
    let models = manifest::read()?;
    let many = models.iter().find(|model| model.name == MANY_INPUTS).context("recsys190 is one of our own models")?;
    let overhead = measure_overhead()?;
    eprintln!(
        "ultra-fast: {:.3} µs where the bare Program takes {:.3} µs: {:.3} µs more, {} allocations",
        overhead.session_us, overhead.bare_us, overhead.added_us, overhead.allocations
    );
    let many_inputs = compare_many_inputs(many)?;
    eprintln!(
        "{MANY_INPUTS} at batch 1: {:.4} ms, onnxruntime {:.4} ms ({:.2})",
        many_inputs.precast_ms, many_inputs.onnxruntime_ms, many_inputs.ratio
    );
    let cold = measure_cold(many)?;
    eprintln!(
        "cold stream of {} requests: {:.3} s with Buckets (the first could run at {:.3} s, all was there at {:.3} s, {} \
         padded up, {:.2} s of CPU), {:.3} s with a compile a shape ({:.2} s of CPU): {:.1} times sooner",
        cold.requests,
        cold.buckets.spent_s,
        cold.buckets.first_request_s,
        cold.buckets.ready_s,
        cold.buckets.padded_up,
        cold.buckets.cpu_s,
        cold.compile_per_shape.spent_s,
        cold.compile_per_shape.cpu_s,
        cold.times_sooner
    );
    let warm = measure_warm(many)?;
    eprintln!(
        "warm stream: {:.0} requests/s with Buckets, {:.0} with exact Programs ({:.2}); longest {:.3} ms, \
         worst Bucket {:.3} ms, {:.3} ms without its copies",
        warm.buckets_per_s,
        warm.exact_per_s,
        warm.ratio,
        warm.longest_request_ms,
        warm.worst_bucket_ms,
        warm.worst_program_ms
    );
    let mut opening = Vec::new();
    let dynamic = |model: &&ModelEntry| model.is_batch_dynamic && !matches!(model.source, Source::Skeleton { .. });
    for model in models.iter().filter(dynamic).filter(|_| !arguments.no_opening) {
        let row = measure_opening(model).with_context(|| model.name.clone())?;
        eprintln!(
            "opening {:<24} {} Buckets: {:>8.1} ms, onnxruntime {:>8.1} ms ({:.2})",
            row.name, row.buckets, row.precast_ms, row.onnxruntime_ms, row.ratio
        );
        opening.push(row);
    }
    let slow: Vec<&str> = opening.iter().filter(|row| row.ratio > 1.0).map(|row| row.name.as_str()).collect();
    let bars = [
        (overhead.added_us < 1.0, "the ultra-fast path adds 1 µs or more"),
        (overhead.allocations == 0 && overhead.is_ultra_fast, "the ultra-fast path allocates or was not taken"),
        (many_inputs.ratio <= 0.5, "recsys190 takes more than half of onnxruntime's time"),
        (cold.times_sooner >= 5.0, "the cold stream is not five times sooner"),
        (warm.ratio >= 0.85, "the warm stream has less than 0.85 of the throughput of exact Programs"),
        (warm.longest_request_ms <= warm.worst_bucket_ms * SAME, "a request took longer than the worst Bucket's run"),
        (slow.is_empty(), "a model opens more slowly than onnxruntime"),
    ];
    let missed: Vec<&str> = bars.iter().filter(|(holds, _)| !holds).map(|(_, what)| *what).collect();
    let report = Report { overhead, many_inputs, cold, warm, opening };
    if arguments.json {
        println!("{}", json!({ "ok": missed.is_empty(), "missed": missed, "session": report }));
    }
    ensure!(missed.is_empty(), "{}", missed.join("; "));
    Ok(())
}

/// A model of one addition.
const TINY: &str = r#"graph "tiny"(%0 "x": f32[n,16]) {
  %1 = unary.relu(%0) {alpha=0.0, beta=0.0} : f32[n,16]
  return "y" %1
}
"#;

fn measure_overhead() -> Result<Overhead> {
    use precast_cpu::{CpuDevice, CpuTarget};
    use precast_program::{Bucket, Device, MemoryStore, Target};
    let graph = precast::text::parse(TINY, &precast_ir::attr::NoConstants)?;
    let options = RunnerOptions::default();
    let target = Arc::new(CpuTarget::new(options.isa, 1, options.passes));
    let device = Arc::new(CpuDevice::new(1));
    let bucket = Bucket::new([("n".to_string(), 4)]);
    let store = MemoryStore::default();
    let program = target.compile(&graph.bind(&bucket.bindings(), &Default::default())?, &bucket, &store)?;
    let loaded = device.load(&Arc::new(program), &store)?;
    let mut context = device.context(loaded.program().arena_bytes);
    let x = Tensor::from_vec([4, 16], vec![0.5_f32; 64])?;
    let mut output = OutputBuffer::new(256);

    let mut session = SessionOptions { startup: Startup::All, measures: false, ..SessionOptions::default() };
    session.dims.insert("n".to_string(), precast::DimOptions { buckets: BucketPolicy::PowersOfTwo { max: 4 } });
    let cache = ProgramCache::open(CacheOptions { mode: CacheMode::Off, ..CacheOptions::new("") })?;
    let session = Session::open_graph(&graph, session, target, device.clone(), Arc::new(cache))?;
    let arguments = [Argument::from(&x)];
    let mut other = OutputBuffer::new(256);
    session.run_into(&arguments, &mut [other.as_bytes_mut()])?;
    let (mut bare, mut whole, mut is_ultra_fast) = (Vec::new(), Vec::new(), true);
    for _ in 0..TURNS {
        let begun = Instant::now();
        for _ in 0..OVERHEAD_RUNS {
            context.run(&*loaded, &[x.as_bytes()], &mut [output.as_bytes_mut()])?;
        }
        bare.push(begun.elapsed().as_secs_f64() * 1e6 / OVERHEAD_RUNS as f64);
        let begun = Instant::now();
        for _ in 0..OVERHEAD_RUNS {
            is_ultra_fast &= session.run_into(&arguments, &mut [other.as_bytes_mut()])?.tier == Tier::UltraFast;
        }
        whole.push(begun.elapsed().as_secs_f64() * 1e6 / OVERHEAD_RUNS as f64);
    }
    let mut failed = None;
    let counted = allocation_counter::measure(|| {
        for _ in 0..1000 {
            failed = failed.take().or(session.run_into(&arguments, &mut [other.as_bytes_mut()]).err());
        }
    });
    ensure!(failed.is_none(), "a counted run failed");
    let (bare_us, session_us) = (median(bare), median(whole));
    Ok(Overhead {
        bare_us,
        session_us,
        added_us: session_us - bare_us,
        allocations: counted.count_total,
        is_ultra_fast,
    })
}

fn compare_many_inputs(model: &ModelEntry) -> Result<Speed> {
    let folder = tempfile::tempdir()?;
    onnxruntime::write_inputs(folder.path(), &inputs::make(model, 1)?)?;
    compare_speed(&fetch::model_file(model)?, folder.path())
}

/// Requests of every size, with buffers for their outputs.
struct Requests {
    inputs: Vec<Vec<Tensor>>,
    outputs: Vec<Vec<OutputBuffer>>,
}

impl Requests {
    fn new(model: &ModelEntry, form: &Form) -> Result<Requests> {
        let inputs = (1..=MAX_BATCH).map(|batch| Ok(form.in_order(&inputs::make(model, batch)?)?));
        Ok(Requests { inputs: inputs.collect::<Result<_>>()?, outputs: Vec::new() })
    }

    /// Buffers by the shapes that a Session says.
    fn make_outputs(&mut self, session: &Session) -> Result<()> {
        for inputs in &self.inputs {
            let (outputs, _) = session.run(inputs)?;
            self.outputs.push(outputs.iter().map(|output| OutputBuffer::new(output.as_bytes().len())).collect());
        }
        Ok(())
    }

    /// A run of the exact size on copies of its inputs, with its outputs copied to where they belong: what a Bucket costs.
    fn run_on_copies(&mut self, session: &Session, at: usize, staging: &mut [Vec<OutputBuffer>; 2]) -> Result<()> {
        let [staged, answers] = staging;
        for (staged, input) in staged.iter_mut().zip(&self.inputs[at]) {
            staged.as_bytes_mut().copy_from_slice(input.as_bytes());
        }
        let arguments = self.inputs[at].iter().zip(staged.iter());
        let arguments: Vec<Argument<'_>> =
            arguments.map(|(input, staged)| Argument { bytes: staged.as_ref(), ..Argument::from(input) }).collect();
        let mut slices: Vec<&mut [u8]> = answers.iter_mut().map(OutputBuffer::as_bytes_mut).collect();
        session.run_into(&arguments, &mut slices)?;
        for (output, answer) in self.outputs[at].iter_mut().zip(answers) {
            output.as_bytes_mut().copy_from_slice(answer.as_ref());
        }
        Ok(())
    }

    /// Buffers for `run_on_copies` of one size.
    fn staging(&self, at: usize) -> [Vec<OutputBuffer>; 2] {
        let inputs = self.inputs[at].iter().map(|input| OutputBuffer::new(input.as_bytes().len()));
        let outputs = self.outputs[at].iter().map(|output| OutputBuffer::new(output.as_ref().len()));
        [inputs.collect(), outputs.collect()]
    }

    fn run(&mut self, session: &Session, at: usize) -> Result<()> {
        let arguments: Vec<Argument<'_>> = self.inputs[at].iter().map(Argument::from).collect();
        let mut slices: Vec<&mut [u8]> = self.outputs[at].iter_mut().map(OutputBuffer::as_bytes_mut).collect();
        session.run_into(&arguments, &mut slices)?;
        Ok(())
    }
}

fn sizes(count: usize) -> impl Iterator<Item = usize> {
    let mut random = Pcg64::new(7);
    std::iter::repeat_with(move || random.next_word() as usize % MAX_BATCH).take(count)
}

/// An empty cache, opening included, against a Program compiled for each size when it first comes.
fn measure_cold(model: &ModelEntry) -> Result<Cold> {
    let file = fetch::model_file(model)?;
    // Made before the clock starts: a Session that compiles in the background must not gain time by it.
    let requests = {
        let lazy = SessionOptions { startup: Startup::Lazy, ..SessionOptions::default() };
        let cache = Arc::new(ProgramCache::open(CacheOptions::memory())?);
        let (_model, form) = opened::open(model, &Model::open(&file)?, BucketPolicy::Exact, lazy, &cache)?;
        Requests::new(model, &form)?
    };
    let time = |buckets: BucketPolicy, startup: Startup| -> Result<ColdStream> {
        let folder = tempfile::tempdir()?;
        let cpu_s = cpu_seconds()?;
        let begun = Instant::now();
        let opened = Model::open(&file)?;
        let session = SessionOptions { startup, ..SessionOptions::default() };
        let cache = opened::cache_in(&folder.path().join("cache"))?;
        let (_model, form) = opened::open(model, &opened, buckets, session, &cache)?;
        let first_request_s = begun.elapsed().as_secs_f64();
        for at in sizes(COLD_REQUESTS) {
            form.session().run(&requests.inputs[at])?;
        }
        let spent_s = begun.elapsed().as_secs_f64();
        let session = form.session();
        let (buckets_ready, padded_up) = (session.loaded().len(), session.counters().reasons(Reason::PadUp));
        ensure!(matches!(session.wait_until_ready(None), Readiness::Ready), "a Bucket failed");
        let ready_s = begun.elapsed().as_secs_f64();
        let cpu_s = cpu_seconds()? - cpu_s;
        Ok(ColdStream { spent_s, first_request_s, ready_s, cpu_s, buckets_ready, padded_up })
    };
    let buckets = time(BucketPolicy::PowersOfTwo { max: MAX_BATCH as i64 }, Startup::Largest)?;
    let compile_per_shape = time(BucketPolicy::Exact, Startup::Lazy)?;
    let times_sooner = compile_per_shape.spent_s / buckets.spent_s;
    Ok(Cold { requests: COLD_REQUESTS, buckets, compile_per_shape, times_sooner })
}

/// Time that all threads of this process have run.
fn cpu_seconds() -> Result<f64> {
    /// Unit of the times in /proc.
    const TICKS_PER_S: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name, in parentheses, may have spaces.
    let (_, fields) = stat.rsplit_once(')').context("no name in /proc/self/stat")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(|field| Ok(field.parse::<f64>()?)).sum::<Result<f64>>();
    Ok(ticks? / TICKS_PER_S)
}

/// The same stream on Buckets and on exact Programs, in turns.
fn measure_warm(model: &ModelEntry) -> Result<Warm> {
    let folder = tempfile::tempdir()?;
    let cache = opened::cache_in(&folder.path().join("cache"))?;
    let opened_model = Model::open(&fetch::model_file(model)?)?;
    let buckets = BucketPolicy::PowersOfTwo { max: MAX_BATCH as i64 };
    let all = SessionOptions { startup: Startup::All, ..SessionOptions::default() };
    let (_bucketed, bucketed) = opened::open(model, &opened_model, buckets, all, &cache)?;
    let exact = SessionOptions { startup: Startup::Lazy, measures: false, ..SessionOptions::default() };
    let (_exact, exact) = opened::open(model, &opened_model, BucketPolicy::Exact, exact, &cache)?;
    let mut requests = Requests::new(model, &exact)?;
    requests.make_outputs(exact.session())?;
    for at in 0..MAX_BATCH {
        requests.run(bucketed.session(), at)?;
    }
    let of_buckets: Vec<usize> = bucketed.session().extents().into_iter().map(|extent| extent as usize - 1).collect();
    let mut staging: Vec<_> = (0..MAX_BATCH).map(|at| of_buckets.contains(&at).then(|| requests.staging(at))).collect();
    let (mut with_buckets, mut with_exact) = (Vec::new(), Vec::new());
    let mut by_size: Vec<Vec<f64>> = vec![Vec::new(); MAX_BATCH];
    let (mut by_bucket, mut by_program) = (by_size.clone(), by_size.clone());
    for _ in 0..TURNS {
        let begun = Instant::now();
        for at in sizes(WARM_REQUESTS) {
            by_size[at].push(time_ms(|| requests.run(bucketed.session(), at))?);
        }
        with_buckets.push(WARM_REQUESTS as f64 / begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        for at in sizes(WARM_REQUESTS) {
            by_program[at].push(time_ms(|| requests.run(exact.session(), at))?);
        }
        with_exact.push(WARM_REQUESTS as f64 / begun.elapsed().as_secs_f64());
        // The same stream once more, so that what a Bucket finds in the caches is the same.
        for at in sizes(WARM_REQUESTS) {
            match &mut staging[at] {
                Some(staging) => {
                    by_bucket[at].push(time_ms(|| requests.run_on_copies(exact.session(), at, staging))?);
                }
                None => requests.run(exact.session(), at)?,
            }
        }
    }
    // A Bucket's Program is the exact Program of its size.
    let by_program = of_buckets.iter().map(|&at| std::mem::take(&mut by_program[at])).collect();
    // The median of each size: single runs are longer when something else has the core.
    let medians = |by_size: Vec<Vec<f64>>| by_size.into_iter().filter(|times| !times.is_empty()).map(median);
    let longest = |by_size| medians(by_size).fold(0.0, f64::max);
    let (buckets_per_s, exact_per_s) = (median(with_buckets), median(with_exact));
    Ok(Warm {
        buckets_per_s,
        exact_per_s,
        ratio: buckets_per_s / exact_per_s,
        longest_request_ms: longest(by_size),
        worst_bucket_ms: longest(by_bucket),
        worst_program_ms: longest(by_program),
    })
}

fn time_ms(run: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    run()?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Opens a model whose Programs are cached, and onnxruntime's session of it, each in processes of its own, in turns.
fn measure_opening(model: &ModelEntry) -> Result<Opening> {
    let file = fetch::model_file(model)?;
    let folder = tempfile::tempdir()?;
    let root = folder.path().join("cache");
    let (_, form) = open_buckets(model, &file, &root)?;
    let buckets = form.session().loaded().len();
    drop(form);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..OPENINGS {
        let output = std::process::Command::new(std::env::current_exe()?)
            .args(["bench", "session", "--open", &model.name])
            .arg(&root)
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        ours.push(String::from_utf8_lossy(&output.stdout).trim().parse()?);
        theirs.push(onnxruntime::open(&file, THREADS)?);
    }
    let (precast_ms, onnxruntime_ms) = (median(ours), median(theirs));
    Ok(Opening { name: model.name.clone(), buckets, precast_ms, onnxruntime_ms, ratio: precast_ms / onnxruntime_ms })
}

fn open_buckets(model: &ModelEntry, file: &Path, root: &Path) -> Result<(precast::ModelSession, Arc<Form>)> {
    let opened_model = Model::open(file)?;
    let buckets = BucketPolicy::PowersOfTwo { max: MAX_BATCH as i64 };
    let all = SessionOptions { startup: Startup::All, ..SessionOptions::default() };
    opened::open(model, &opened_model, buckets, all, &opened::cache_in(root)?)
}

fn open_once(name: &str, root: &Path) -> Result<()> {
    let models = manifest::read()?;
    let model = models.iter().find(|model| model.name == name).with_context(|| format!("no model '{name}'"))?;
    let file = fetch::model_file(model)?;
    // What chooses the form is no part of opening.
    inputs::make(model, 1)?;
    let begun = Instant::now();
    let (session, _form) = open_buckets(model, &file, root)?;
    let ms = begun.elapsed().as_secs_f64() * 1e3;
    ensure!(session.compiles() == 0, "{} Programs were compiled", session.compiles());
    println!("{ms}");
    Ok(())
}
