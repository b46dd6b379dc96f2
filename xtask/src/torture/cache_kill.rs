//! Processes killed while they compile and publish: at random moments, and before, in and after every disk call. What is
//! left is whole, locks are free at once, and a sweep leaves no temps (T1).

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use precast::{CacheMode, CacheOptions, ProgramCache};

use crate::pcg64::Pcg64;
use crate::torture::cache::{Bench, Tally};
use crate::torture::cache_child::{Done, Moment, Running, Task, run_one};
use crate::torture::cache_model::Subject;

/// Longest that a lock of a dead process may keep others waiting.
const LOCK_WAIT_MS_MAX: f64 = 1000.0;
/// Kills may also come a little later than a usual end.
const OVERTIME: f64 = 1.15;
/// Where the random moments come from; the same every time.
const SEED: u128 = 1;
/// Disk calls at which a kill is tried; a publish has far fewer.
const CALLS_MAX: usize = 5000;

/// Both kinds of kills.
pub fn run(bench: &mut Bench) -> Result<()> {
    at_random(bench)?;
    at_every_call(bench)
}

fn at_random(bench: &mut Bench) -> Result<()> {
    let subject = bench.small.clone();
    let expected = subject.expected()?;
    let whole = usual_time(bench, &subject)?;
    let mut random = Pcg64::new(SEED);
    let (mut tally, mut stages, mut longest) = (Tally::default(), [0; 3], 0.0f64);
    for round in 0..bench.count(200, 20) {
        let root = bench.root(format!("kill-{round}"));
        let mut victim = Running::start(&Task::new(&subject, &root))?;
        victim.go()?;
        let part = random.next_word() as f64 / u64::MAX as f64;
        std::thread::sleep(whole.mul_f64(part * OVERTIME));
        victim.kill()?;
        let what = || format!("killed after {:.0} % of {whole:?}", part * 100.0);
        let Some(left) = check_root(&mut tally, &subject, &root, &expected, what) else { continue };
        let stage = if left.entries == 0 { 0 } else { 1 + usize::from(left.entries == subject.buckets()) };
        stages[stage] += 1;
        longest = longest.max(left.lock_wait_ms);
        std::fs::remove_dir_all(&root)?;
    }
    let [none, some, all] = stages;
    let detail = format!("left no Program {none}, some {some}, all {all}; longest wait for a lock {longest:.1} ms");
    bench.report("killed at a random moment: next process whole, lock <= 1 s", tally, detail);
    Ok(())
}

/// How long a process takes that is left alone.
fn usual_time(bench: &Bench, subject: &Subject) -> Result<Duration> {
    let mut times = Vec::new();
    for round in 0..3 {
        let mut running = Running::start(&Task::new(subject, &bench.root(format!("usual-{round}"))))?;
        let begun = Instant::now();
        running.go()?;
        ensure!(running.end()?.is_ok(), "a process that is left alone dies");
        times.push(begun.elapsed());
    }
    times.sort();
    Ok(times[1])
}

fn at_every_call(bench: &mut Bench) -> Result<()> {
    // Two Buckets: one writes the constants, the other finds them.
    let subject = bench.small.with_max_batch(2);
    let expected = subject.expected()?;
    let moments: &[Moment] =
        if bench.is_quick { &[Moment::Before] } else { &[Moment::Before, Moment::Halfway, Moment::After] };
    let (mut tally, mut calls) = (Tally::default(), 0);
    for &moment in moments {
        for at in 1..CALLS_MAX {
            let root = bench.root(format!("call-{moment:?}-{at}"));
            let mut victim = Running::start(&Task { kill_at: Some((at, moment)), ..Task::new(&subject, &root) })?;
            victim.go()?;
            let is_done = victim.end()?.is_ok();
            check_root(&mut tally, &subject, &root, &expected, || format!("killed at call {at}, {moment:?}"));
            std::fs::remove_dir_all(&root)?;
            if is_done {
                calls = at - 1;
                break;
            }
        }
    }
    ensure!(calls > 0, "no publish came to its end");
    let words: Vec<String> = moments.iter().map(|moment| format!("{moment:?}").to_lowercase()).collect();
    let detail = format!("{calls} disk calls, {}", words.join(" and "));
    bench.report("killed at every disk call: next process whole, lock <= 1 s", tally, detail);
    Ok(())
}

/// What a dead process left.
struct Left {
    entries: usize,
    lock_wait_ms: f64,
}

/// Opens the root in a fresh process and looks at what remains.
fn check_root(
    tally: &mut Tally,
    subject: &Subject,
    root: &Path,
    expected: &str,
    what: impl Fn() -> String,
) -> Option<Left> {
    let before = tally.value(open(root).and_then(|cache| Ok(cache.ls()?.len())), &what)?;
    let done = run_one(&Task { sweeps_all: true, ..Task::new(subject, root) });
    let Done { compiles, answers, lock_wait_ms, quarantined, events, .. } = tally.value(done, &what)?;
    let faults = || -> Result<Vec<String>> {
        let mut faults = Vec::new();
        let mut expect = |holds: bool, fault: String| (!holds).then(|| faults.push(fault));
        expect(answers.len() == 1 && answers.contains(expected), format!("answers {answers:?}"));
        // What was visible was loaded; what was not was compiled.
        expect(before + compiles as usize == subject.buckets(), format!("{before} there, {compiles} compiled"));
        expect(lock_wait_ms <= LOCK_WAIT_MS_MAX, format!("{lock_wait_ms} ms for a lock"));
        expect(quarantined == 0 && events.is_empty(), format!("events {events:?}"));
        let problems = open(root)?.verify()?.problems;
        expect(problems.is_empty(), format!("{problems:?}"));
        let temps = std::fs::read_dir(root.join("tmp"))?.count();
        expect(temps == 0, format!("{temps} temps are left"));
        Ok(faults)
    };
    let faults = tally.value(faults(), &what)?;
    tally.check(faults.is_empty(), || format!("{}: {}", what(), faults.join("; ")));
    Some(Left { entries: before, lock_wait_ms })
}

/// A look from outside, which changes nothing.
fn open(root: &Path) -> Result<ProgramCache> {
    Ok(ProgramCache::open(CacheOptions { mode: CacheMode::ReadOnly, ..CacheOptions::new(root) })?)
}
