//! What changes a key and what does not (T5, T6), and keys of which so few bits are kept that they collide (T8).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use precast::{
    ActivationPrecision, CacheMode, CacheOptions, FastMath, Isa, KeyRecord, Miss, ModelSession, OpenOptions,
    ProgramCache, TuningTable, WeightPrecision, program_records,
};
use precast_cache::{Fetched, GetError, Origin};
use precast_onnx::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto};

use crate::torture::cache::{Bench, Tally};
use crate::torture::cache_child::{Running, Task, run_one};
use crate::torture::cache_model::{Subject, small, write};

/// Largest Bucket: three in all.
const MAX_BATCH: i64 = 4;

/// Changes that must miss and name their field, then changes that must hit.
pub fn run(bench: &mut Bench) -> Result<()> {
    let subject = bench.small.with_max_batch(MAX_BATCH);
    let root = bench.root("keys");
    run_one(&Task::new(&subject, &root))?;
    misses(bench, &subject, &root)?;
    hits(bench, &subject, &root)
}

fn misses(bench: &mut Bench, subject: &Subject, root: &Path) -> Result<()> {
    let mut tally = Tally::default();
    let cache = ProgramCache::open(CacheOptions { mode: CacheMode::ReadOnly, ..CacheOptions::new(root) })?;
    let records = |subject: &Subject, options: &OpenOptions| -> Result<Vec<KeyRecord>> {
        Ok(program_records(&subject.open_model()?, options, &TuningTable::default())?)
    };
    let mut cases: Vec<(&str, &str, Vec<KeyRecord>)> = Vec::new();

    let other_weight = changed(bench, subject, "weight", |graph| flip(graph, 0))?;
    cases.push(("one byte of a weight", "weights", records(&other_weight, &subject.options())?));
    let other_bias = changed(bench, subject, "bias", |graph| flip(graph, 1))?;
    cases.push(("one byte of a bias", "weights", records(&other_bias, &subject.options())?));
    let mut without_a_pass = subject.options();
    without_a_pass.runner.passes.disabled = vec!["fuse_pointwise".to_string()];
    cases.push(("one option", "options.disable", records(subject, &without_a_pass)?));
    let mut strict = subject.options();
    strict.runner.passes.numerics.is_strict = true;
    cases.push(("strict numerics", "precision.rounding", records(subject, &strict)?));
    let mut fast = subject.options();
    fast.runner.passes.numerics.fast_math = FastMath::all();
    cases.push(("fast-math", "precision.fast_math", records(subject, &fast)?));
    let mut int8 = subject.options();
    int8.runner.passes.numerics.weights = WeightPrecision::Int8;
    cases.push(("8-bit weights", "precision.weights", records(subject, &int8)?));
    let mut bytes = subject.options();
    bytes.runner.passes.numerics.activations = ActivationPrecision::Int8;
    cases.push(("8-bit activations", "precision.activations", records(subject, &bytes)?));
    let mut other_isa = subject.options();
    let is_portable = other_isa.runner.isa == Isa::Portable;
    other_isa.runner.isa = if is_portable { Isa::Avx2 } else { Isa::Portable };
    cases.push(("one target feature", "target", records(subject, &other_isa)?));
    let other_build = |mut record: KeyRecord| {
        record.compiler.push('+');
        record
    };
    let rebuilt = records(subject, &subject.options())?.into_iter().map(other_build).collect();
    cases.push(("the compiler's build", "compiler", rebuilt));

    for (change, field, records) in &cases {
        for record in records {
            let explanation = cache.why(record);
            let is_absent = matches!(explanation.miss, Some(Miss::Absent { .. }));
            let named: Vec<String> =
                explanation.nearest.into_iter().flat_map(|near| near.differing).map(|diff| diff.field).collect();
            let is_named = named == [*field];
            tally.check(is_absent && is_named, || {
                format!("{change}, {}: absent {is_absent}, named {named:?} where {field} is expected", record.bucket)
            });
        }
    }
    let changes: Vec<&str> = cases.iter().map(|(change, ..)| *change).collect();
    bench.report("a change of code: a miss that names exactly that field", tally, changes.join(", "));
    Ok(())
}

fn hits(bench: &mut Bench, subject: &Subject, root: &Path) -> Result<()> {
    let mut tally = Tally::default();
    let expected = subject.expected()?;
    let moved = |name: &str| -> Result<Subject> {
        let model = bench.root(name);
        std::fs::create_dir_all(model.parent().context("a folder")?)?;
        std::fs::copy(&subject.model, &model)?;
        Ok(Subject { model, ..subject.clone() })
    };
    let touched = moved("touched.onnx")?;
    let yesterday = SystemTime::now() - Duration::from_secs(24 * 3600);
    std::fs::File::options().write(true).open(&touched.model)?.set_modified(yesterday)?;
    let named = changed(bench, subject, "named", |graph| {
        for node in &mut graph.node {
            node.name.push_str("_renamed");
            node.doc_string = "other words".to_string();
        }
        graph.doc_string = "other words".to_string();
    })?;
    let mut other_producer = small();
    other_producer.producer_name = "another".to_string();
    other_producer.doc_string = "other words".to_string();
    other_producer.model_version = 7;
    let produced = Subject { model: bench.root("produced.onnx"), ..subject.clone() };
    write(&produced.model, &other_producer)?;
    let cases = [
        ("renamed", moved("renamed.onnx")?),
        ("moved", moved("elsewhere/small.onnx")?),
        ("mtime touched", touched),
        ("node names and doc strings", named),
        ("producer and model version", produced),
    ];
    for (change, subject) in &cases {
        let cache = Arc::new(ProgramCache::open(CacheOptions::new(root))?);
        let session: ModelSession = subject.open(cache)?;
        let compiles = session.compiles();
        let is_right = subject.answers(&session)? == expected;
        tally.check(compiles == 0 && is_right, || format!("{change}: {compiles} compiles, right {is_right}"));
    }
    let mut changes: Vec<&str> = cases.iter().map(|(change, _)| *change).collect();
    // The cache itself in another place, used by another host.
    let elsewhere = bench.root("keys-elsewhere");
    std::fs::rename(root, &elsewhere)?;
    let task = Task::new(subject, &elsewhere);
    let done = run_one(&task)?;
    tally.check(done.compiles == 0 && done.answers.contains(&expected), || format!("cache moved: {done:?}"));
    changes.push("cache moved");
    match on_another_host(&task) {
        Some(done) => {
            let done = done?;
            tally.check(done.compiles == 0 && done.answers.contains(&expected), || format!("another host: {done:?}"));
            changes.push("another host name");
        }
        None => changes.push("(another host name: no right to set one here)"),
    }
    bench.report("a change of no code: a hit, 0 compiles", tally, changes.join(", "));
    Ok(())
}

/// The task in a process whose host has another name.
fn on_another_host(task: &Task) -> Option<Result<crate::torture::cache_child::Done>> {
    const SCRIPT: &str = r#"hostname another && exec "$0" "$@""#;
    let unshared = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--uts", "sh", "-c", script]);
        command
    };
    let may = unshared("hostname another").output().is_ok_and(|output| output.status.success());
    may.then(|| {
        let mut command = unshared(SCRIPT);
        command.arg(std::env::current_exe()?);
        let mut running = Running::start_by(command, task)?;
        running.go()?;
        running.end()?.map_err(|status| anyhow::anyhow!("the child ended with {status}"))
    })
}

/// The small model with a change, in a file of its own.
fn changed(bench: &Bench, subject: &Subject, name: &str, change: impl FnOnce(&mut GraphProto)) -> Result<Subject> {
    let mut proto: ModelProto = small();
    change(proto.graph.as_mut().context("a graph")?);
    let model: PathBuf = bench.root(format!("{name}.onnx"));
    write(&model, &proto)?;
    Ok(Subject { model, ..subject.clone() })
}

/// Flips the lowest bit of the first byte of an initializer.
fn flip(graph: &mut GraphProto, initializer: usize) {
    let tensor = &mut graph.initializer[initializer];
    let mut bytes = tensor.raw_data.take().unwrap_or_default().to_vec();
    bytes[0] ^= 1;
    tensor.raw_data = Some(bytes.into());
}

/// Bits of a key that are kept.
const BITS: u16 = 8;

/// Many records on few keys: a collision is told, and nobody gets another's Program.
pub fn run_collisions(bench: &mut Bench) -> Result<()> {
    let mut tally = Tally::default();
    let subject = bench.small.with_max_batch(1);
    let records = many_records(&subject, bench.count(1000, 1000))?;
    let root = bench.root("collisions");
    let options = || CacheOptions { digest_bits: BITS, ..CacheOptions::new(&root) };
    let mut program = template(bench)?;
    let mut compiles = 0;
    let cache = ProgramCache::open(options())?;
    for (number, record) in records.iter().enumerate() {
        let got: Result<Fetched, GetError<Infallible>> = cache.get_or(record, || {
            program.graph = number.to_string();
            Ok(program.clone())
        });
        let fetched = got?;
        compiles += usize::from(fetched.origin == Origin::Compiled);
        let found = &fetched.program.graph;
        tally.check(*found == number.to_string(), || format!("record {number} got the Program of {found}"));
    }
    drop(cache);
    // Another process: what is filed is found by its own record, and all others are told that they collide.
    let cache = ProgramCache::open(options())?;
    let mut classes: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, record) in records.iter().enumerate() {
        let (class, holds) = match cache.probe(record) {
            Ok(program) => ("hit", program.graph == number.to_string()),
            Err(miss @ Miss::Incompatible { .. }) => (miss.class(), true),
            Err(miss) => (miss.class(), false),
        };
        *classes.entry(class).or_default() += 1;
        tally.check(holds, || format!("record {number}: {class}"));
    }
    let files = cache.ls()?.len();
    let hits = classes.get("hit").copied().unwrap_or(0);
    let is_counted = compiles == records.len() && hits == files && files < records.len();
    tally.check(is_counted, || format!("{compiles} compiles, {files} files, {classes:?}"));
    whole_model(bench, &mut tally)?;
    let detail = format!("{} records, {BITS} bits, {files} files; probed again: {classes:?}", records.len());
    bench.report("keys collide: every collision is told, no wrong Program", tally, detail);
    Ok(())
}

/// A model all of whose Buckets have one key.
fn whole_model(bench: &Bench, tally: &mut Tally) -> Result<()> {
    let expected = bench.small.expected()?;
    for round in 0..2 {
        let options = CacheOptions { digest_bits: 0, ..CacheOptions::new(bench.root("collisions-model")) };
        let session = bench.small.open(Arc::new(ProgramCache::open(options)?))?;
        let compiles = session.compiles() as usize;
        let is_right = bench.small.answers(&session)? == expected;
        // The first Bucket is filed; the others are compiled by every process.
        let holds = is_right && compiles == bench.small.buckets() - round;
        tally.check(holds, || format!("model with one key, start {round}: {compiles} compiles, right {is_right}"));
    }
    Ok(())
}

/// Records that differ in an option.
fn many_records(subject: &Subject, count: usize) -> Result<Vec<KeyRecord>> {
    let records = program_records(&subject.open_model()?, &subject.options(), &TuningTable::default())?;
    let record = records.first().context("a Bucket")?;
    let numbered = |number: usize| {
        let mut record = record.clone();
        record.options.insert("number".to_string(), number.to_string());
        record
    };
    Ok((0..count).map(numbered).collect())
}

/// A Program that needs no constants.
fn template(bench: &Bench) -> Result<precast::Program> {
    let subject = changed(bench, &bench.small.with_max_batch(1), "plain", |graph| {
        graph.initializer.clear();
        graph.node = vec![NodeProto {
            op_type: "Relu".to_string(),
            input: vec!["x".to_string()],
            output: vec!["y".to_string()],
            ..NodeProto::default()
        }];
        graph.output = vec![ValueInfoProto { name: "y".to_string(), ..graph.input[0].clone() }];
    })?;
    let cache = Arc::new(ProgramCache::open(CacheOptions::memory())?);
    subject.open(Arc::clone(&cache))?;
    let record = program_records(&subject.open_model()?, &subject.options(), &TuningTable::default())?.remove(0);
    let program = cache.probe(&record).map_err(|miss| anyhow::anyhow!("{miss}"))?;
    Ok(program.as_ref().clone())
}
