//! `cargo xtask torture cache`: what the cache promises, tried against kills, crowds of processes, failing disks, changed
//! models, colliding keys and racing stores. A table of counts; any claim that does not hold fails the command.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::paths;
use crate::torture::cache_model::{Subject, write_small};
use crate::torture::{cache_crowd, cache_fault, cache_key, cache_kill, cache_remote, cache_s3};

/// Arguments of `cargo xtask torture cache`.
#[derive(Args)]
pub struct TortureCacheArguments {
    /// Print the results as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Fewer tries, and nothing that needs Python or another build.
    #[arg(long)]
    quick: bool,
    /// Only this part.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Folder for the caches that are tortured [default: below target/]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Processes killed at random moments and at every disk call.
    Kill,
    /// Many processes and threads on one empty folder.
    Crowd,
    /// Every disk call made to fail.
    Fault,
    /// What changes a key and what does not.
    Key,
    /// Keys that collide.
    Collision,
    /// A shared folder as the store, and one whose conditional puts race.
    Remote,
    /// S3.
    S3,
}

/// One claim and how it fared.
#[derive(Debug, Serialize)]
pub struct Row {
    part: Part,
    claim: String,
    tries: usize,
    failures: usize,
    detail: String,
    /// The first few failures.
    examples: Vec<String>,
    seconds: f64,
}

/// Failures that are kept as examples.
const EXAMPLES_MAX: usize = 5;

/// How often a claim was tried, and where it did not hold.
#[derive(Debug, Default)]
pub struct Tally {
    tries: usize,
    failures: usize,
    examples: Vec<String>,
}

impl Tally {
    /// Counts a try.
    pub fn check(&mut self, holds: bool, fault: impl FnOnce() -> String) {
        self.tries += 1;
        if !holds {
            self.failures += 1;
            if self.examples.len() < EXAMPLES_MAX {
                self.examples.push(fault());
            }
        }
    }

    /// Counts a try that must not be an error, and gives what it gave.
    pub fn value<T>(&mut self, result: Result<T>, what: impl FnOnce() -> String) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.check(false, || format!("{}: {error:#}", what()));
                None
            }
        }
    }
}

/// What every part works with.
pub struct Bench {
    /// Where caches may be made.
    pub folder: tempfile::TempDir,
    /// Whether fewer tries are enough.
    pub is_quick: bool,
    /// A model that compiles in no time.
    pub small: Subject,
    rows: Vec<Row>,
    part: Part,
    started: Instant,
}

impl Bench {
    fn new(arguments: &TortureCacheArguments) -> Result<Bench> {
        let parent = arguments.dir.clone().unwrap_or_else(paths::cache);
        std::fs::create_dir_all(&parent)?;
        let folder = tempfile::Builder::new().prefix("torture-").tempdir_in(parent)?;
        let small = write_small(&folder.path().join("small.onnx"))?;
        let (is_quick, started) = (arguments.quick, Instant::now());
        Ok(Bench { folder, is_quick, small, rows: Vec::new(), part: Part::Kill, started })
    }

    /// A path for a new cache.
    pub fn root(&self, name: impl std::fmt::Display) -> PathBuf {
        self.folder.path().join(name.to_string())
    }

    /// One number or the other.
    pub fn count(&self, whole: usize, quick: usize) -> usize {
        if self.is_quick { quick } else { whole }
    }

    /// Adds a line to the table. The time since the last one is its own.
    pub fn report(&mut self, claim: impl Into<String>, tally: Tally, detail: impl Into<String>) {
        let (claim, detail, seconds) = (claim.into(), detail.into(), self.started.elapsed().as_secs_f64());
        let verdict = if tally.failures == 0 { "ok" } else { "FAILED" };
        eprintln!("{verdict}: {claim}: {} tries, {} failures, {seconds:.1} s ({detail})", tally.tries, tally.failures);
        for example in &tally.examples {
            eprintln!("    {example}");
        }
        let Tally { tries, failures, examples } = tally;
        self.rows.push(Row { part: self.part, claim, tries, failures, detail, examples, seconds });
        self.started = Instant::now();
    }

    fn begin(&mut self, part: Part) {
        (self.part, self.started) = (part, Instant::now());
    }
}

/// Tries every claim.
pub fn run(arguments: &TortureCacheArguments) -> Result<()> {
    let mut bench = Bench::new(arguments)?;
    let started = Instant::now();
    let parts = [Part::Kill, Part::Crowd, Part::Fault, Part::Key, Part::Collision, Part::Remote, Part::S3];
    for part in parts {
        let is_asked = arguments.only.map_or(!(arguments.quick && part == Part::S3), |only| only == part);
        if !is_asked {
            continue;
        }
        bench.begin(part);
        let done = match part {
            Part::Kill => cache_kill::run(&mut bench),
            Part::Crowd => cache_crowd::run(&mut bench),
            Part::Fault => cache_fault::run(&mut bench),
            Part::Key => cache_key::run(&mut bench),
            Part::Collision => cache_key::run_collisions(&mut bench),
            Part::Remote => cache_remote::run(&mut bench),
            Part::S3 => cache_s3::run(&mut bench, arguments.only.is_some()),
        };
        // A part that cannot go on is a failure of its own; the others are worth knowing all the same.
        if let Err(error) = done {
            let mut tally = Tally::default();
            tally.check(false, || format!("{error:#}"));
            bench.report("the part comes to its end", tally, format!("{error:#}"));
        }
    }
    let failures: usize = bench.rows.iter().map(|row| row.failures).sum();
    eprint!("{}", table(&bench.rows));
    eprintln!("{} claims, {failures} failures, {:.0} s", bench.rows.len(), started.elapsed().as_secs_f64());
    if arguments.json {
        println!("{}", serde_json::json!({ "claims": bench.rows, "failures": failures }));
    }
    ensure!(failures == 0, "{failures} tries did not hold");
    Ok(())
}

impl Bench {
    /// Takes over lines that another process of this command printed.
    pub fn adopt(&mut self, line: &str) -> Result<()> {
        let printed: serde_json::Value = serde_json::from_str(line)?;
        let number = |row: &serde_json::Value, field: &str| row[field].as_u64().unwrap_or(0) as usize;
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_string();
        for row in printed["claims"].as_array().context("no claims")? {
            self.rows.push(Row {
                part: self.part,
                claim: text(&row["claim"]),
                tries: number(row, "tries"),
                failures: number(row, "failures"),
                detail: text(&row["detail"]),
                examples: row["examples"].as_array().into_iter().flatten().map(text).collect(),
                seconds: row["seconds"].as_f64().unwrap_or(0.0),
            });
        }
        Ok(())
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = format!("{:<10} {:<66} {:>6} {:>8} {:>7}  detail\n", "part", "claim", "tries", "failures", "s");
    for row in rows {
        let part = format!("{:?}", row.part).to_lowercase();
        let Row { claim, tries, failures, detail, seconds, .. } = row;
        text.push_str(&format!("{part:<10} {claim:<66} {tries:>6} {failures:>8} {seconds:>7.1}  {detail}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_keeps_the_count_of_all_failures_and_the_first_few() {
        let mut tally = Tally::default();
        (0..20).for_each(|number| tally.check(number % 2 == 0, || number.to_string()));
        assert_eq!(tally.value(Ok(7), String::new), Some(7));
        assert_eq!((tally.tries, tally.failures, tally.examples.join(" ")), (20, 10, "1 3 5 7 9".to_string()));
    }

    #[test]
    fn lines_of_another_process_are_taken_over() {
        let arguments = TortureCacheArguments { json: false, quick: true, only: None, dir: None };
        let mut bench = Bench::new(&arguments).unwrap();
        bench.begin(Part::S3);
        let mut tally = Tally::default();
        tally.check(false, || "why".to_string());
        bench.report("it holds", tally, "detail");
        let printed = serde_json::json!({ "claims": bench.rows }).to_string();
        let rows = std::mem::take(&mut bench.rows);
        bench.adopt(&printed).unwrap();
        assert_eq!(format!("{:?}", bench.rows), format!("{rows:?}"));
    }
}
