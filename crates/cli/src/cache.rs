//! `cache`: what a folder of compiled Programs holds, whether it is whole, and making it smaller.

use std::fmt::Write;
use std::path::Path;

use precast::{CacheError, CacheMode, CacheOptions, ProgramCache, PublicKey, SignKey, Signing, Tactic};
use serde_json::json;

use crate::args::{CacheArgs, CacheVerb, Shared, SigningArgs};
use crate::exit::{Exit, Failure};
use crate::output::Report;
use crate::{Cx, cache_transfer, cache_why};

/// Does what was asked of a cache.
pub fn cache(args: &CacheArgs, shared: &Shared, cx: &Cx) -> Result<Report, Failure> {
    let sign = signing(&args.signing)?;
    let looking = |dir: &Path| open(dir, CacheMode::ReadOnly, &sign);
    let changing = |dir: &Path| open(dir, CacheMode::ReadWrite, &sign);
    match &args.verb {
        CacheVerb::Ls { dir, bytes: false } => list(&looking(dir)?),
        CacheVerb::Ls { dir, bytes: true } => list_constants(&looking(dir)?),
        CacheVerb::Show { dir, key } => show(&looking(dir)?, key),
        CacheVerb::Why { dir, subject, ladder } => cache_why::why(&looking(dir)?, subject, ladder, shared),
        CacheVerb::Diff { dir, one, other } => cache_why::diff(&looking(dir)?, one, other),
        CacheVerb::Warm { dir, model, ladder, tune } => cache_why::warm(dir, sign, model, (ladder, tune), shared, cx),
        CacheVerb::Push(args) => cache_transfer::push(args, sign, cx),
        CacheVerb::Pull(args) => cache_transfer::pull(args, sign, cx),
        CacheVerb::Pin { dir, key } => pin(&changing(dir)?, key),
        CacheVerb::Unpin { dir, key } => unpin(&changing(dir)?, key),
        CacheVerb::Verify { dir } => verify(&looking(dir)?),
        CacheVerb::Gc { dir, max_bytes, apply } => gc(&changing(dir)?, *max_bytes, *apply),
    }
}

/// Opens a cache that exists: looking at a folder must not make one.
fn open(dir: &Path, mode: CacheMode, sign: &Signing) -> Result<ProgramCache, Failure> {
    if !dir.is_dir() {
        return Err(Failure::usage(format!("there is no folder '{}'", dir.display())));
    }
    let options = CacheOptions { mode, sign: sign.clone(), ..CacheOptions::new(dir) };
    Ok(ProgramCache::open(options).map_err(precast::Error::from)?)
}

/// The keys that the flags name.
pub fn signing(args: &SigningArgs) -> Result<Signing, Failure> {
    let read = |path: &Path| {
        let text = std::fs::read_to_string(path);
        text.map_err(|error| Failure::usage(format!("cannot read '{}': {error}", path.display())))
    };
    let refused = |path: &Path, error: CacheError| Failure::usage(format!("'{}': {error}", path.display()));
    let mut signing = Signing::default();
    if let Some(path) = &args.sign_key {
        signing.key = Some(SignKey::from_pem(&read(path)?).map_err(|error| refused(path, error))?);
    }
    if let Some(path) = &args.require_signed {
        signing.require = Some(PublicKey::all_from_pem(&read(path)?).map_err(|error| refused(path, error))?);
    }
    Ok(signing)
}

fn list(cache: &ProgramCache) -> Result<Report, Failure> {
    let entries = cache.ls().map_err(precast::Error::from)?;
    let usage = cache.bytes().map_err(precast::Error::from)?;
    let mut text =
        format!("{:<14} {:<24} {:>10} {:>12} {:>12}\n", "key", "bucket", "program B", "weights B", "compile ms");
    let mut rows = Vec::new();
    for entry in &entries {
        let (key, bucket) = (entry.key.to_string(), entry.record.bucket.to_string());
        let compile_ms = entry.compile_time.map(|time| time.as_secs_f64() * 1e3);
        let _ = writeln!(
            text,
            "{:<14} {bucket:<24} {:>10} {:>12} {:>12}",
            &key[..12],
            entry.program_bytes,
            entry.weights_bytes,
            compile_ms.map_or("?".to_string(), |ms| format!("{ms:.1}"))
        );
        rows.push(json!({
            "key": key,
            "bucket": bucket,
            "target": entry.record.target,
            "program_bytes": entry.program_bytes,
            "weights_bytes": entry.weights_bytes,
            "compile_ms": compile_ms,
            "pinned": entry.is_pinned,
        }));
    }
    let _ = writeln!(
        text,
        "{} Programs, {} B; constants {} B, each once; {} B in all",
        entries.len(),
        usage.programs,
        usage.weights,
        usage.total()
    );
    let tuned = cache.tuning().len();
    if tuned > 0 {
        let _ = writeln!(text, "{tuned} measured problems, {} B", usage.tuning);
    }
    let bytes = json!({
        "programs": usage.programs,
        "weights": usage.weights,
        "tuning": usage.tuning,
        "total": usage.total(),
    });
    Ok(Report::done(text, json!({ "entries": rows, "tuning_records": tuned, "bytes": bytes })))
}

fn list_constants(cache: &ProgramCache) -> Result<Report, Failure> {
    let constants = cache.ls_constants().map_err(precast::Error::from)?;
    let mut text = format!("{:<14} {:>14} {:>9}\n", "constant", "bytes on disk", "programs");
    for constant in &constants {
        let _ = writeln!(text, "{:.12}   {:>14} {:>9}", constant.digest.to_string(), constant.bytes, constant.programs);
    }
    let stored: u64 = constants.iter().map(|constant| constant.bytes).sum();
    // What the folder would hold if every Program came with its own constants.
    let unshared: u64 = constants.iter().map(|constant| constant.bytes * constant.programs as u64).sum();
    let programs = cache.ls().map_err(precast::Error::from)?.len();
    let _ = writeln!(
        text,
        "{} constants of {programs} Programs, {stored} B on disk, each once; a copy a Program would be {unshared} B",
        constants.len()
    );
    let rows = constants.iter().map(|constant| {
        let digest = constant.digest.to_string();
        json!({ "digest": digest, "bytes": constant.bytes, "programs": constant.programs })
    });
    let json = json!({
        "constants": rows.collect::<Vec<_>>(),
        "programs": programs,
        "stored_bytes": stored,
        "unshared_bytes": unshared,
    });
    Ok(Report::done(text, json))
}

fn pin(cache: &ProgramCache, key: &str) -> Result<Report, Failure> {
    let entry = cache.show(key).map_err(precast::Error::from)?.entry;
    cache.pin(key).map_err(precast::Error::from)?;
    Ok(Report::done(format!("pinned {}\n", entry.key), json!({ "key": entry.key.to_string(), "pinned": true })))
}

fn unpin(cache: &ProgramCache, key: &str) -> Result<Report, Failure> {
    let entry = cache.show(key).map_err(precast::Error::from)?.entry;
    cache.unpin(key).map_err(precast::Error::from)?;
    Ok(Report::done(format!("unpinned {}\n", entry.key), json!({ "key": entry.key.to_string(), "pinned": false })))
}

fn show(cache: &ProgramCache, key: &str) -> Result<Report, Failure> {
    let details = cache.show(key).map_err(precast::Error::from)?;
    let mut text = format!("{:<12} {}\n", "key", details.entry.key);
    let mut fields = serde_json::Map::new();
    for (name, value) in details.entry.record.lines() {
        let _ = writeln!(text, "{name:<12} {value}");
        fields.insert(name.to_string(), json!(value));
    }
    let steps = &details.program.steps;
    let tactics: Vec<String> = steps.iter().filter_map(|step| Tactic::why_of(&step.parameters)).collect();
    let tuned = tactics.iter().filter(|why| why.starts_with("(tuned")).count();
    let _ = writeln!(text, "{:<12} {}, {tuned} of them by measured tactics", "steps", steps.len());
    let json = json!({
        "key": details.entry.key.to_string(),
        "record": fields,
        "steps": steps.len(),
        "tuned_steps": tuned,
        "arena_bytes": details.program.arena_bytes,
    });
    Ok(Report::done(text, json))
}

fn verify(cache: &ProgramCache) -> Result<Report, Failure> {
    let found = cache.verify().map_err(precast::Error::from)?;
    let tuned = cache.tuning().len();
    let mut text =
        format!("{} Programs, {} constants and {tuned} measured problems checked\n", found.programs, found.weights);
    let mut problems = Vec::new();
    for problem in &found.problems {
        let _ = writeln!(text, "{}: {}", problem.name, problem.miss);
        problems.push(json!({ "name": problem.name, "problem": problem.miss.to_string() }));
    }
    let is_whole = problems.is_empty();
    let json = json!({
        "programs": found.programs,
        "constants": found.weights,
        "tuning_records": tuned,
        "problems": problems,
    });
    if is_whole {
        return Ok(Report::done(text, json));
    }
    let error = Some(format!("{} files of the cache are damaged", found.problems.len()));
    Ok(Report { text, json, exit: Exit::Integrity, error })
}

fn gc(cache: &ProgramCache, max_bytes: u64, apply: bool) -> Result<Report, Failure> {
    let options = precast::GcOptions { max_bytes, is_dry_run: !apply, ..cache.gc_options() };
    let done = cache.gc(&options).map_err(precast::Error::from)?;
    let verb = if apply { "removed" } else { "would remove (--apply does it)" };
    let mut text = format!("{verb} {} files, {} of {} B\n", done.removed.len(), done.freed_bytes, done.before_bytes);
    for removed in &done.removed {
        let _ = writeln!(text, "  {} {} B", removed.name, removed.bytes);
    }
    let json = json!({
        "applied": apply,
        "removed": done.removed.iter().map(|removed| &removed.name).collect::<Vec<_>>(),
        "before_bytes": done.before_bytes,
        "freed_bytes": done.freed_bytes,
    });
    Ok(Report::done(text, json))
}
