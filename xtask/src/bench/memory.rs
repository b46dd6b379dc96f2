//! Peak memory against onnxruntime, each in a process of its own: what is resident at the worst moment, mapped files
//! included. The bar is that of two views: both processes whole, and both without what they had before they opened the model,
//! which is Python and onnxruntime's library there and our own program here. A third is printed beside them, in which
//! nothing is taken off ours.

use std::fmt::Write;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::cpu::{CASES, Case, INTEGER_CASES};
use crate::manifest::{self, ModelEntry};
use crate::opened::THREADS;
use crate::peak::PeakMemory;
use crate::worker::{Request, Worker, ask_own};
use crate::{fetch, inputs, onnxruntime};

/// Processes of each kind. Of onnxruntime's the least counts, of ours the most: its figure varies from one to the next.
const ROUNDS: usize = 3;

/// Models that are too slow for the list of latencies, and large.
const LARGE_CASES: &[Case] = &[Case { model: "gpt2_small", batches: &[1], sizes: &[] }];

/// Arguments of `cargo xtask bench memory`.
#[derive(Args)]
pub struct MemoryArguments {
    /// Print the results as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Only models whose names contain this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// One model at one batch. All sizes are in MiB.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    model: String,
    batch: usize,
    /// Compiled from nothing and run once. 0 where it failed.
    precast_mb: f64,
    /// The same into an empty cache. None where the model has no Session.
    precast_filling_cache_mb: Option<f64>,
    /// Opened from that cache and run once.
    precast_cached_mb: Option<f64>,
    /// Opened and run once, without what the process had after its imports.
    onnxruntime_mb: f64,
    onnxruntime_process_mb: f64,
    /// Ours compiled from nothing by theirs without its imports.
    ratio: f64,
    /// The most of our three by onnxruntime's process: at 1 or below, we need no more.
    ratio_of_processes: f64,
    /// The same without what both processes had before they opened the model.
    ratio_of_models: f64,
}

/// Measures.
pub fn run(arguments: &MemoryArguments) -> Result<()> {
    let models = manifest::read()?;
    let mut rows = Vec::new();
    for case in CASES.iter().chain(INTEGER_CASES).chain(LARGE_CASES) {
        if arguments.only.as_ref().is_some_and(|only| !case.model.contains(only.as_str())) {
            continue;
        }
        if !models.iter().any(|entry| entry.name == case.model) {
            eprintln!("{}: not among the models of this project, so it has no row", case.model);
            continue;
        }
        for &batch in case.batches {
            let mut row = Row { model: case.model.to_string(), batch, ..Row::default() };
            if let Err(error) = fill(&mut row, &case.entry(&models)?) {
                eprintln!("{} at batch {batch}: {error:#}", case.model);
            }
            eprintln!("{}", line(&row).trim_end());
            rows.push(row);
        }
    }
    ensure!(!rows.is_empty(), "no model has such a name");
    let above: Vec<&str> = rows.iter().filter(|row| !row.holds()).map(|row| row.model.as_str()).collect();
    eprintln!("{} of {} rows are at or below onnxruntime\n\n{}", rows.len() - above.len(), rows.len(), table(&rows));
    if arguments.json {
        println!("{}", json!({ "ok": above.is_empty(), "rows": rows }));
    }
    ensure!(above.is_empty(), "more memory than onnxruntime: {}", above.join(", "));
    Ok(())
}

impl Row {
    /// Whether every way to run it stays at or below onnxruntime.
    fn holds(&self) -> bool {
        self.precast_mb > 0.0 && self.ratio_of_processes <= 1.0 && self.ratio_of_models <= 1.0
    }

    /// Counts what one of our processes took.
    fn count(&mut self, found: PeakMemory) {
        keep_most(&mut self.ratio_of_processes, found.peak_mb / self.onnxruntime_process_mb);
        keep_most(&mut self.ratio_of_models, (found.peak_mb - found.start_mb) / self.onnxruntime_mb);
    }
}

fn fill(row: &mut Row, entry: &ModelEntry) -> Result<()> {
    let file = fetch::model_file(entry)?;
    let folder = tempfile::tempdir()?;
    onnxruntime::write_inputs(folder.path(), &inputs::make(entry, row.batch)?)?;
    let mut compiled = Vec::new();
    for round in 0..ROUNDS {
        let theirs = onnxruntime::peak(&file, THREADS, folder.path())?;
        let net_mb = theirs.peak_mb - theirs.imports_mb;
        if round == 0 || net_mb < row.onnxruntime_mb {
            (row.onnxruntime_mb, row.onnxruntime_process_mb) = (net_mb, theirs.peak_mb);
        }
        let found = ours(&file, folder.path(), None)?;
        keep_most(&mut row.precast_mb, found.peak_mb);
        compiled.push(found);
    }
    row.ratio = row.precast_mb / row.onnxruntime_mb;
    compiled.into_iter().for_each(|found| row.count(found));
    for round in 0..ROUNDS {
        let cache = folder.path().join(format!("cache-{round}"));
        match ours(&file, folder.path(), Some(&cache)) {
            Ok(filling) => {
                keep_most(row.precast_filling_cache_mb.get_or_insert(0.0), filling.peak_mb);
                row.count(filling);
            }
            Err(error) => {
                eprintln!("{} has no Session: {error:#}", row.model);
                return Ok(());
            }
        }
        let cached = ours(&file, folder.path(), Some(&cache))?;
        ensure!(cached.compiles == 0, "{} Programs were compiled although they are cached", cached.compiles);
        keep_most(row.precast_cached_mb.get_or_insert(0.0), cached.peak_mb);
        row.count(cached);
        std::fs::remove_dir_all(&cache)?;
    }
    Ok(())
}

fn keep_most(most: &mut f64, found: f64) {
    *most = most.max(found);
}

/// Our peak, in a process of its own.
fn ours(model: &Path, folder: &Path, cache: Option<&Path>) -> Result<PeakMemory> {
    let mut worker = Worker::start_own(Stdio::inherit())?;
    let (model, folder, cache) = (model.to_path_buf(), folder.to_path_buf(), cache.map(Path::to_path_buf));
    ask_own(&mut worker, &Request::Peak { model, folder, threads: THREADS, cache })
}

fn line(row: &Row) -> String {
    let optional = |mb: Option<f64>| mb.map_or("–".to_string(), |mb| format!("{mb:.0}"));
    format!(
        "| {} | {} | {:.0} | {} | {} | {:.0} | {:.0} | {:.2} | {:.2} | {:.2} |\n",
        row.model,
        row.batch,
        row.precast_mb,
        optional(row.precast_filling_cache_mb),
        optional(row.precast_cached_mb),
        row.onnxruntime_mb,
        row.onnxruntime_process_mb,
        row.ratio,
        row.ratio_of_processes,
        row.ratio_of_models
    )
}

fn table(rows: &[Row]) -> String {
    let mut text = "| model | batch | precast | filling a cache | from the cache | onnxruntime | its process | ratio | of processes | of models |\n|---|---|---|---|---|---|---|---|---|---|\n".to_string();
    for row in rows {
        let _ = write!(text, "{}", line(row));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_holds_only_if_every_way_to_run_does() {
        let peak = |peak_mb: f64| PeakMemory { start_mb: 3.0, peak_mb, compiles: 1 };
        let mut row = Row { precast_mb: 9.0, onnxruntime_mb: 10.0, onnxruntime_process_mb: 14.0, ..Row::default() };
        row.count(peak(9.0));
        assert!(row.holds());
        row.count(peak(13.0));
        assert!(row.holds() && !Row { precast_mb: 0.0, ..row.clone() }.holds());
        row.count(peak(13.1));
        assert!(!row.holds() && row.ratio_of_processes < 1.0);
        row.count(peak(9.0));
        assert!(!row.holds(), "the most counts");
    }
}
