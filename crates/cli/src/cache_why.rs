//! `cache why`, `diff` and `warm`: what a cache lacks of a model, why, and filling it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use precast::{
    BucketPolicy, CacheEvent, CacheOptions, Explanation, FieldDiff, KeyRecord, Model, ModelSession, Nearest,
    OpenOptions, ProgramCache, SessionOptions, Signing, Startup, TuneOptions, program_records,
};
use serde_json::{Value, json};

use crate::Cx;
use crate::args::{LadderArgs, Shared, TuneArgs};
use crate::exit::Failure;
use crate::inputs::row_symbols;
use crate::output::Report;
use crate::subject::{open_model, options};

/// How long `warm` waits for uploads at the end.
const UPLOADS_WAIT: Duration = Duration::from_secs(60);

/// Says for each Bucket of a model, or for one entry, whether the cache has it, and what is nearest.
pub fn why(cache: &ProgramCache, subject: &Path, ladder: &LadderArgs, shared: &Shared) -> Result<Report, Failure> {
    let records = if subject.is_file() {
        let model = open_model(subject, shared)?;
        program_records(&model, &open_options(&model, ladder, shared)?, &cache.tuning())?
    } else {
        let key = subject.to_string_lossy();
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Failure::usage(format!("'{key}' is neither a file nor the digits of a key")));
        }
        vec![cache.show(&key).map_err(precast::Error::from)?.entry.record]
    };
    let mut text = String::new();
    let mut rows = Vec::new();
    let mut hits = 0;
    for record in &records {
        let explanation = cache.why(record);
        hits += usize::from(explanation.miss.is_none());
        text.push_str(&explanation_text(record, &explanation));
        rows.push(explanation_json(record, &explanation));
    }
    let _ = writeln!(text, "{hits} of {} Buckets are in the cache", records.len());
    Ok(Report::done(text, json!({ "buckets": rows, "hits": hits })))
}

/// Shows the fields in which two entries differ.
pub fn diff(cache: &ProgramCache, one: &str, other: &str) -> Result<Report, Failure> {
    let differing = cache.diff(one, other).map_err(precast::Error::from)?;
    let mut text = String::new();
    for FieldDiff { field, want, have } in &differing {
        let _ = writeln!(text, "{field}\n  {one:.12}  {want}\n  {other:.12}  {have}");
    }
    if differing.is_empty() {
        text.push_str("the two are the same Program\n");
    }
    let rows = differing.iter().map(|diff| json!({ "field": diff.field, "one": diff.want, "other": diff.have }));
    Ok(Report::done(text, json!({ "differing": rows.collect::<Vec<_>>() })))
}

/// Compiles every Bucket of a model that the cache does not have.
pub fn warm(
    dir: &Path,
    sign: Signing,
    path: &Path,
    (ladder, tune): (&LadderArgs, &TuneArgs),
    shared: &Shared,
    cx: &Cx,
) -> Result<Report, Failure> {
    let model = open_model(path, shared)?;
    let mut open_options = open_options(&model, ladder, shared)?;
    open_options.runner.tune = tune.options();
    let console = cx.console;
    let events = Arc::new(move |event: &CacheEvent| console.notice(&event.to_string()));
    let opened = ProgramCache::open(CacheOptions { events, sign, ..CacheOptions::new(dir) });
    let cache = Arc::new(opened.map_err(precast::Error::from)?);
    let before: BTreeSet<_> = cache.ls().map_err(precast::Error::from)?.into_iter().map(|entry| entry.key).collect();
    let begun = Instant::now();
    let what = if tune.options() == TuneOptions::default() { "compiling" } else { "measuring and compiling" };
    let session = cx.console.during(what, None, || ModelSession::open_on(&model, &open_options, Arc::clone(&cache)))?;
    let records = session.records()?;
    cache.flush(UPLOADS_WAIT);
    let total_ms = begun.elapsed().as_secs_f64() * 1e3;
    let compiles = session.compiles();
    let mut text = format!("{:<14} {:<24} {}\n", "key", "bucket", "was");
    let mut rows = Vec::new();
    for record in &records {
        let (key, bucket) = (cache.key(record), record.bucket.to_string());
        let origin = if before.contains(&key) { "there" } else { "missing" };
        let _ = writeln!(text, "{:.12}   {bucket:<24} {origin}", key.to_string());
        rows.push(json!({ "key": key.to_string(), "bucket": bucket, "was": origin }));
    }
    let _ = writeln!(text, "{} Buckets, {compiles} compiled, {total_ms:.1} ms", records.len());
    Ok(Report::done(text, json!({ "buckets": rows, "compiles": compiles, "ms": total_ms })))
}

/// How the flags say that the model is opened. The cache is given apart.
fn open_options(model: &Model, ladder: &LadderArgs, shared: &Shared) -> Result<OpenOptions, Failure> {
    let Some(max_batch) = ladder.max_batch else {
        return Err(Failure::usage("--max-batch says which Buckets the model has; it is missing"));
    };
    let rows = row_symbols(&model.inputs()?);
    if rows.is_empty() {
        return Err(Failure::usage("--max-batch: axis 0 of every input has a fixed size"));
    }
    let buckets = match &ladder.buckets {
        Some(policy) => policy.parse().map_err(|error| Failure::usage(format!("--buckets: {error}")))?,
        None => BucketPolicy::PowersOfTwo { max: max_batch as i64 },
    };
    let dims = ladder.dims.iter().filter(|(name, _)| !rows.iter().any(|symbol| symbol.as_str() == name));
    let dims: BTreeMap<String, i64> = dims.map(|(name, size)| (name.clone(), *size as i64)).collect();
    let session = SessionOptions { startup: Startup::All, ..SessionOptions::default() };
    Ok(OpenOptions { runner: options(shared), dims, buckets, session, ..OpenOptions::default() })
}

fn explanation_text(record: &KeyRecord, explanation: &Explanation) -> String {
    let (key, bucket) = (explanation.key.to_string(), record.bucket.to_string());
    let Some(miss) = &explanation.miss else {
        return format!("{bucket:<16} {key:.12}  hit\n");
    };
    let mut text = format!("{bucket:<16} {key:.12}  miss, {}\n", miss.class());
    // The nearest entry says more than the miss that only knows that there is nothing.
    match (&explanation.nearest, miss.class()) {
        (Some(Nearest { key, differing }), "absent") => {
            let _ = writeln!(text, "{:<16} nearest {:.12} differs in", "", key.to_string());
            for FieldDiff { field, want, have } in differing {
                let _ = writeln!(text, "{:<18} {field}\n{:<20} wanted {want}\n{:<20} found  {have}", "", "", "");
            }
        }
        _ => {
            let _ = writeln!(text, "{:<16} {miss}", "");
        }
    }
    text
}

fn explanation_json(record: &KeyRecord, explanation: &Explanation) -> Value {
    let nearest = explanation.nearest.as_ref().map(|nearest| {
        let field = |diff: &FieldDiff| json!({ "field": diff.field, "want": diff.want, "have": diff.have });
        let differing: Vec<Value> = nearest.differing.iter().map(field).collect();
        json!({ "key": nearest.key.to_string(), "differing": differing })
    });
    json!({
        "bucket": record.bucket.to_string(),
        "key": explanation.key.to_string(),
        "hit": explanation.miss.is_none(),
        "miss": explanation.miss.as_ref().map(|miss| miss.class()),
        "message": explanation.miss.as_ref().map(ToString::to_string),
        "nearest": nearest,
    })
}
