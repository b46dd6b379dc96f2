//! Eight processes of sixty-four threads open one model on one empty folder at once: each Bucket is compiled once in all,
//! and everybody gets the right answers (T2).

use anyhow::Result;

use crate::paths;
use crate::torture::cache::{Bench, Tally};
use crate::torture::cache_child::{Done, Task, run_all};
use crate::torture::cache_model::Subject;

const PROCESSES: usize = 8;
const THREADS: usize = 64;

/// Several rounds, each on a folder of its own.
pub fn run(bench: &mut Bench) -> Result<()> {
    let small = bench.small.clone();
    let rounds = bench.count(10, 2);
    crowd(bench, "small", &small, rounds)?;
    crowd_without_locks(bench, &small, rounds)?;
    if bench.is_quick {
        return Ok(());
    }
    let recsys = Subject { model: paths::models().join("recsys190/recsys190.onnx"), max_batch: 64, rows: vec![1, 5] };
    crowd(bench, "recsys190", &recsys, rounds)
}

fn crowd(bench: &mut Bench, name: &str, subject: &Subject, rounds: usize) -> Result<()> {
    let expected = subject.expected()?;
    let (mut tally, mut compiles_all) = (Tally::default(), Vec::new());
    for round in 0..rounds {
        let root = bench.root(format!("crowd-{name}-{round}"));
        // By turns one cache a process and one a thread: both ways of using it must hold.
        let has_cache_each = round % 2 == 1;
        let task = Task { openers: THREADS, has_cache_each, ..Task::new(subject, &root) };
        let done = run_all(&vec![task; PROCESSES]);
        let Some(done) = tally.value(done, || format!("round {round}")) else { continue };
        let compiles: u64 = done.iter().map(|done| done.compiles).sum();
        let (is_right, is_whole) = (are_right(&done, &expected), are_whole(&done));
        let holds = compiles as usize == subject.buckets() && is_right && is_whole;
        tally.check(holds, || format!("round {round}: {compiles} compiles, right {is_right}, whole {is_whole}"));
        compiles_all.push(compiles);
        std::fs::remove_dir_all(&root)?;
    }
    let claim = format!("{PROCESSES} processes x {THREADS} threads, {name}: {} compiles in all", subject.buckets());
    bench.report(claim, tally, format!("compiles a round {compiles_all:?}; {} answers a round", PROCESSES * THREADS));
    Ok(())
}

/// Locks only save work: without them a process still compiles each Bucket once at most, and all is right (T2b).
fn crowd_without_locks(bench: &mut Bench, subject: &Subject, rounds: usize) -> Result<()> {
    let expected = subject.expected()?;
    let (mut tally, mut compiles_all) = (Tally::default(), Vec::new());
    for round in 0..rounds {
        let root = bench.root(format!("unlocked-{round}"));
        let task = Task { openers: THREADS, has_locks: false, ..Task::new(subject, &root) };
        let done = run_all(&vec![task; PROCESSES]);
        let Some(done) = tally.value(done, || format!("round {round}")) else { continue };
        let is_few = done.iter().all(|done| done.compiles as usize <= subject.buckets());
        let (is_right, is_whole) = (are_right(&done, &expected), are_whole(&done));
        let compiles: u64 = done.iter().map(|done| done.compiles).sum();
        tally.check(is_few && is_right && is_whole, || {
            format!("round {round}: {compiles} compiles, right {is_right}, whole {is_whole}")
        });
        compiles_all.push(compiles);
        std::fs::remove_dir_all(&root)?;
    }
    let claim = format!("the same without locks: <= {} compiles a process", subject.buckets());
    bench.report(claim, tally, format!("compiles a round {compiles_all:?}"));
    Ok(())
}

fn are_right(done: &[Done], expected: &str) -> bool {
    done.iter().all(|done| done.answers.len() == 1 && done.answers.contains(expected))
}

fn are_whole(done: &[Done]) -> bool {
    done.iter().all(|done| done.quarantined == 0)
}
