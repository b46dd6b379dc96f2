//! `perf --max-batch`: a ragged stream of requests on a Session. Every size runs on a few compiled Buckets; the table says
//! which, how long it took, and what padding cost.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use precast::{
    BucketPolicy, CacheOptions, Fit, Model, ModelSession, Named, OpenOptions, ProgramCache, RunReport, Tier,
    explain_padding,
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
    let requests = make_requests(args, &sizes, shared, cx)?;
    let buckets = match &args.buckets {
        Some(policy) => {
            policy.parse::<BucketPolicy>().map_err(|error| Failure::usage(format!("--buckets: {error}")))?
        }
        None => BucketPolicy::PowersOfTwo { max: max_batch as i64 },
    };
    let on_miss = args.on_miss.parse().map_err(|error| Failure::usage(format!("--on-miss: {error}")))?;
    let open_options = OpenOptions {
        runner: options(shared),
        dims: shared_dims(args, &model)?,
        buckets: buckets.clone(),
        on_miss,
        cache: None,
    };
    let cache_options = match &args.cache {
        Some(folder) => CacheOptions { sign: signing(&args.signing)?, ..CacheOptions::new(folder) },
        None => CacheOptions::memory(),
    };
    let cache = Arc::new(ProgramCache::open(cache_options).map_err(precast::Error::from)?);
    let begun = Instant::now();
    let open = || ModelSession::open_on(&model, &open_options, cache);
    let session = cx.console.during("compiling the Buckets", None, open)?;
    let open_ms = begun.elapsed().as_secs_f64() * 1e3;
    let duration = Duration::from_secs_f64(args.duration.unwrap_or(DURATION_S));
    let stream =
        cx.console.during("running", Some(duration), || run_stream(&session, &requests, duration, args.iterations))?;
    Ok(report(args, &session, &buckets, open_ms, &stream, options(shared).threads))
}

/// Dims that the flags bind, apart from the batch.
fn shared_dims(args: &PerfArgs, model: &Model) -> Result<BTreeMap<String, i64>, Failure> {
    let rows = row_symbols(&model.inputs()?);
    let is_row = |name: &str| rows.iter().any(|symbol| symbol.as_str() == name);
    let dims = args.inputs.shapes.dims.iter().filter(|(name, _)| !is_row(name));
    Ok(dims.map(|(name, size)| (name.clone(), *size as i64)).collect())
}

/// Inputs of each size.
fn make_requests(args: &PerfArgs, sizes: &[usize], shared: &Shared, cx: &Cx) -> Result<Vec<(usize, Named)>, Failure> {
    let subject = Subject::open(&args.file, shared)?;
    let declared = subject.inputs()?;
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
    session: &ModelSession,
    requests: &[(usize, Named)],
    duration: Duration,
    iterations: Option<u64>,
) -> Result<Stream, Failure> {
    let mut runs = Vec::new();
    let begun = Instant::now();
    // A fixed generator: the same stream on every machine.
    let mut state = 1u64;
    while begun.elapsed() < duration || (runs.len() as u64) < iterations.unwrap_or(1) {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (_, inputs) = &requests[(state >> 33) as usize % requests.len()];
        let start = Instant::now();
        let (_, report) = session.run(inputs)?;
        runs.push((report, start.elapsed().as_secs_f64() * 1e3));
    }
    Ok(Stream { runs, total_s: begun.elapsed().as_secs_f64() })
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

fn rows_of(stream: &Stream) -> BTreeMap<(usize, Vec<i64>), BucketRow> {
    let mut rows: BTreeMap<(usize, Vec<i64>), BucketRow> = BTreeMap::new();
    for (report, ms) in &stream.runs {
        let buckets: Vec<i64> = report.chunks.iter().map(|chunk| chunk.bucket).collect();
        let row = rows.entry((usize::from(report.fit == Fit::Split), buckets)).or_default();
        row.times.push(*ms);
        row.rows += report.chunks.iter().map(|chunk| chunk.rows).sum::<i64>();
        row.pad_rows += report.pad_rows();
        row.tiers[report.tier as usize] += 1;
    }
    for row in rows.values_mut() {
        row.times.sort_by(f64::total_cmp);
    }
    rows
}

fn report(
    args: &PerfArgs,
    session: &ModelSession,
    buckets: &BucketPolicy,
    open_ms: f64,
    stream: &Stream,
    threads: usize,
) -> Report {
    let rows = rows_of(stream);
    let counters = session.session().counters();
    let (real, padded) = counters.rows();
    let waste = padded as f64 / (real + padded).max(1) as f64;
    let verdict = session.session().verdict();
    let padding = verdict.map_or("nothing is padded".to_string(), |verdict| explain_padding(session.graph(), verdict));
    let mut text = format!(
        "model    {} · cpu · {threads} threads · {} Buckets opened in {open_ms:.1} ms, {} compiled\npadding  {padding}\n",
        args.file.display(),
        buckets.extents().len(),
        counters.compiles(),
    );
    let _ = writeln!(
        text,
        "{:>16} {:>8} {:>9} {:>9} {:>9} {:>8} {:>24}",
        "buckets", "runs", "p50 ms", "p99 ms", "max ms", "waste", "ultra-fast/fast/standard"
    );
    let mut json_rows = Vec::new();
    for ((_, extents), row) in &rows {
        let name = extents.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
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
        json_rows.push(row_json(extents, row));
    }
    let rate = stream.runs.len() as f64 / stream.total_s;
    let _ = writeln!(
        text,
        "rate     {rate:.1} requests/s · {:.1} rows/s · {:.1} % of rows were padding",
        real as f64 / stream.total_s,
        waste * 100.0
    );
    let json = json!({
        "model": args.file.display().to_string(),
        "threads": threads,
        "buckets": buckets.extents(),
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
        "rows": json_rows,
    });
    Report::done(text, json)
}

fn row_json(extents: &[i64], row: &BucketRow) -> Value {
    json!({
        "buckets": extents,
        "runs": row.times.len(),
        "p50_ms": row.percentile(0.5),
        "p99_ms": row.percentile(0.99),
        "max_ms": row.percentile(1.0),
        "pad_waste": row.waste(),
    })
}
