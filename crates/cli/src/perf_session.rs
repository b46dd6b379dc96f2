//! `perf --max-batch`: a ragged stream of requests on a Session. Every size runs on a few compiled Buckets; the table says
//! which, how long it took, and what padding cost.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use precast::{
    Argument, BucketPolicy, CacheOptions, DimBinds, Fit, Form, InputInfo, ModelSession, Named, Observer, OpenOptions,
    OutputBuffer, ProgramCache, Progress, RunReport, RunnerOptions, SessionOptions, Tensor, Tier,
};
use serde_json::{Value, json};

use crate::Cx;
use crate::args::{InputArgs, PerfArgs, Shared};
use crate::cache::signing;
use crate::exit::Failure;
use crate::fitting::with_inputs;
use crate::inputs::row_symbols;
use crate::output::Report;
use crate::subject::{Subject, open_model, options};

/// How long the stream is when nothing is said, in seconds.
const DURATION_S: f64 = 3.0;

/// Measures a stream of requests whose sizes are those of `--batches`, in a shuffled order.
pub fn perf_session(args: &PerfArgs, max_batch: usize, shared: &Shared, cx: &Cx) -> Result<Report, Failure> {
    let model = open_model(&args.file, shared)?;
    let sizes: Vec<usize> = if args.batches.0.is_empty() { (1..=max_batch).collect() } else { args.batches.0.clone() };
    let binds = args.bind.as_deref().map_or(Ok(DimBinds::default()), str::parse);
    let binds = binds.map_err(|error| Failure::usage(format!("--bind: {error}")))?;
    let requests = make_requests(args, &sizes, &binds, shared, cx)?;
    let buckets = match &args.buckets {
        Some(policy) => {
            policy.parse::<BucketPolicy>().map_err(|error| Failure::usage(format!("--buckets: {error}")))?
        }
        None => BucketPolicy::PowersOfTwo { max: max_batch as i64 },
    };
    let on_miss = args.on_miss.parse().map_err(|error| Failure::usage(format!("--on-miss: {error}")))?;
    let progress = cx.console.buckets();
    let observer = progress.clone();
    let open_options = OpenOptions {
        runner: RunnerOptions { tune: args.tune.options(), ..options(shared) },
        dims: shared_dims(args, &binds.bound(&model.inputs()?)?),
        binds,
        buckets,
        session: SessionOptions {
            on_miss,
            progress: Observer(Some(Arc::new(move |progress: &Progress| observer.show(progress)))),
            ..SessionOptions::default()
        },
        ..OpenOptions::default()
    };
    let cache_options = match &args.cache {
        Some(folder) => CacheOptions { sign: signing(&args.signing)?, ..CacheOptions::new(folder) },
        None => CacheOptions::memory(),
    };
    let cache = Arc::new(ProgramCache::open(cache_options).map_err(precast::Error::from)?);
    let begun = Instant::now();
    let session = ModelSession::open_on(&model, &open_options, cache)?;
    let Some((_, first)) = requests.first() else { return Err(Failure::usage("--batches: no size is given")) };
    let form = session.form(first)?;
    progress.finish();
    let open_ms = begun.elapsed().as_secs_f64() * 1e3;
    let duration = Duration::from_secs_f64(args.duration.unwrap_or(DURATION_S));
    let stream =
        cx.console.during("running", Some(duration), || run_stream(&form, &requests, duration, args.iterations))?;
    let ready = form.session().loaded().len();
    if args.cache.is_some() {
        // Whoever names a cache wants it filled.
        cx.console.during("compiling the other Buckets", None, || session.wait_until_ready(None));
        form.session().save_traffic();
    }
    Ok(report(args, &form, Opened { open_ms, ready }, &stream, shared))
}

/// Dims that the flags bind, apart from the batch.
fn shared_dims(args: &PerfArgs, declared: &[InputInfo]) -> BTreeMap<String, i64> {
    let rows = row_symbols(declared);
    let is_row = |name: &str| rows.iter().any(|symbol| symbol.as_str() == name);
    let dims = args.inputs.shapes.dims.iter().filter(|(name, _)| !is_row(name));
    dims.map(|(name, size)| (name.clone(), *size as i64)).collect()
}

/// Inputs of each size.
fn make_requests(
    args: &PerfArgs,
    sizes: &[usize],
    binds: &DimBinds,
    shared: &Shared,
    cx: &Cx,
) -> Result<Vec<(usize, Named)>, Failure> {
    let subject = Subject::open(&args.file, shared)?;
    let declared = binds.bound(&subject.inputs()?)?;
    let symbols = row_symbols(&declared);
    if symbols.is_empty() {
        return Err(Failure::usage("--max-batch: axis 0 of every input has a fixed size"));
    }
    let mut requests = Vec::new();
    for &size in sizes {
        let mut shapes = args.inputs.shapes.clone();
        shapes.dims.extend(symbols.iter().map(|symbol| (symbol.as_str().to_string(), size)));
        let input_args = InputArgs { inputs: args.inputs.inputs.clone(), seed: args.inputs.seed, shapes };
        // The same is guessed for every size; once is enough to hear it.
        let console = if requests.is_empty() { cx.console } else { cx.console.silent() };
        let check = |inputs: &crate::inputs::Inputs| match subject.runner() {
            Some(runner) if requests.is_empty() => Ok(runner.graph(&inputs.tensors).map(drop)?),
            _ => Ok(()),
        };
        let (inputs, ()) = with_inputs(&declared, subject.runner(), &input_args, &console, check)?;
        requests.push((size, inputs.tensors));
    }
    Ok(requests)
}

/// What was measured.
struct Stream {
    runs: Vec<(RunReport, f64)>,
    total_s: f64,
}

fn run_stream(
    form: &Form,
    requests: &[(usize, Named)],
    duration: Duration,
    iterations: Option<u64>,
) -> Result<Stream, Failure> {
    let mut runs = Vec::new();
    let ordered = requests.iter().map(|(_, inputs)| form.in_order(inputs)).collect::<Result<Vec<Vec<Tensor>>, _>>()?;
    // Buffers for the outputs of each size, made when the size first comes.
    let mut buffers: Vec<Option<Vec<OutputBuffer>>> = ordered.iter().map(|_| None).collect();
    let begun = Instant::now();
    // A fixed generator: the same stream on every machine.
    let mut state = 1u64;
    while begun.elapsed() < duration || (runs.len() as u64) < iterations.unwrap_or(1) {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let at = (state >> 33) as usize % requests.len();
        let start = Instant::now();
        let report = run_into(form, &ordered[at], &mut buffers[at]).map_err(precast::Error::from)?;
        runs.push((report, start.elapsed().as_secs_f64() * 1e3));
    }
    Ok(Stream { runs, total_s: begun.elapsed().as_secs_f64() })
}

fn run_into(
    form: &Form,
    inputs: &[Tensor],
    buffers: &mut Option<Vec<OutputBuffer>>,
) -> Result<RunReport, precast::SessionError> {
    if let Some(buffers) = buffers {
        let arguments: Vec<Argument<'_>> = inputs.iter().map(Argument::from).collect();
        let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(OutputBuffer::as_bytes_mut).collect();
        return form.session().run_into(&arguments, &mut slices);
    }
    let (outputs, report) = form.session().run(inputs)?;
    *buffers = Some(outputs.iter().map(|output| OutputBuffer::new(output.as_bytes().len())).collect());
    Ok(report)
}

/// Runs that used one list of Buckets.
#[derive(Default)]
struct BucketRow {
    times: Vec<f64>,
    rows: i64,
    pad_rows: i64,
    tiers: [usize; 3],
}

impl BucketRow {
    fn percentile(&self, part: f64) -> f64 {
        let last = self.times.len().saturating_sub(1);
        self.times.get((part * last as f64).round() as usize).copied().unwrap_or(0.0)
    }

    fn waste(&self) -> f64 {
        self.pad_rows as f64 / (self.rows + self.pad_rows).max(1) as f64
    }
}

fn bucket_of(report: &RunReport) -> Vec<i64> {
    report.chunks.named().iter().map(|chunk| chunk.bucket).collect()
}

fn rows_of(stream: &Stream) -> BTreeMap<(usize, Vec<i64>), BucketRow> {
    let mut rows: BTreeMap<(usize, Vec<i64>), BucketRow> = BTreeMap::new();
    for (report, ms) in &stream.runs {
        // Splits by their number: of a ragged stream there are too many kinds for a table.
        let buckets = if report.fit == Fit::Split { Vec::new() } else { bucket_of(report) };
        let row = rows.entry((report.chunks.len(), buckets)).or_default();
        row.times.push(*ms);
        row.rows += report.chunks.total().rows;
        row.pad_rows += report.pad_rows();
        row.tiers[report.tier as usize] += 1;
    }
    for row in rows.values_mut() {
        row.times.sort_by(f64::total_cmp);
    }
    rows
}

/// What opening gave.
struct Opened {
    /// When the first request could run.
    open_ms: f64,
    /// Buckets that were there when the stream ended.
    ready: usize,
}

fn report(args: &PerfArgs, form: &Form, opened: Opened, stream: &Stream, shared: &Shared) -> Report {
    let (threads, device) = (options(shared).threads, device_names(shared));
    let Opened { open_ms, ready } = opened;
    let rows = rows_of(stream);
    let session = form.session();
    let counters = session.counters();
    let (real, padded) = counters.rows();
    let waste = padded as f64 / (real + padded).max(1) as f64;
    let dims = &session.interface().dims;
    let padding: Vec<&str> = dims.iter().map(|dim| dim.explanation.as_str()).collect();
    let padding = if padding.is_empty() { "nothing is padded".to_string() } else { padding.join("\n         ") };
    let memory = session.memory();
    let mut text = format!(
        "model    {} · {device} · {threads} threads · served after {open_ms:.1} ms · {ready} of {} Buckets when it ended\npadding  {padding}\n\
         memory   {memory}\n",
        args.file.display(),
        session.extents().len(),
    );
    let _ = writeln!(
        text,
        "{:>16} {:>8} {:>9} {:>9} {:>9} {:>8} {:>24}",
        "bucket", "runs", "p50 ms", "p99 ms", "max ms", "waste", "ultra-fast/fast/standard"
    );
    let mut json_rows = Vec::new();
    for ((chunks, extents), row) in &rows {
        let name = extents.first().map_or(format!("{chunks} of them"), ToString::to_string);
        let [ultra_fast, fast, standard] = row.tiers;
        let _ = writeln!(
            text,
            "{name:>16} {:>8} {:>9.3} {:>9.3} {:>9.3} {:>7.1}% {:>24}",
            row.times.len(),
            row.percentile(0.5),
            row.percentile(0.99),
            row.percentile(1.0),
            row.waste() * 100.0,
            format!("{ultra_fast}/{fast}/{standard}")
        );
        json_rows.push(row_json(*chunks, extents, row));
    }
    let rate = stream.runs.len() as f64 / stream.total_s;
    let _ = writeln!(
        text,
        "rate     {rate:.1} requests/s · {:.1} rows/s · {:.1} % of rows were padding",
        real as f64 / stream.total_s,
        waste * 100.0
    );
    let (replayed, captured) = counters.captures();
    if replayed + captured > 0 {
        let _ = writeln!(text, "captures {replayed} requests were replayed, {captured} made a capture");
    }
    let json = json!({
        "model": args.file.display().to_string(),
        "device": device,
        "threads": threads,
        "buckets": session.extents(),
        "memory_bytes": memory.total_bytes(),
        "buckets_ready": ready,
        "compiles": counters.compiles(),
        "open_ms": open_ms,
        "requests": stream.runs.len(),
        "requests_per_s": rate,
        "rows_per_s": real as f64 / stream.total_s,
        "pad_waste": waste,
        "padding": padding,
        "tiers": {
            "ultra_fast": counters.runs(Tier::UltraFast),
            "fast": counters.runs(Tier::Fast),
            "standard": counters.runs(Tier::Standard),
        },
        "captures": { "replayed": replayed, "captured": captured },
        "rows": json_rows,
    });
    Report::done(text, json)
}

/// The devices as the flags name them, each by its one name.
fn device_names(shared: &Shared) -> String {
    shared.devices().iter().map(ToString::to_string).collect::<Vec<String>>().join(",")
}

fn row_json(chunks: usize, extents: &[i64], row: &BucketRow) -> Value {
    json!({
        "chunks": chunks,
        "bucket": extents.first(),
        "runs": row.times.len(),
        "p50_ms": row.percentile(0.5),
        "p99_ms": row.percentile(0.99),
        "max_ms": row.percentile(1.0),
        "pad_waste": row.waste(),
    })
}
