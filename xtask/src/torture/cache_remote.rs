//! Machines that share a store: with a sound one each Bucket is compiled once in all, with one whose conditional puts
//! race at most once a machine; nobody loads anything wrong (T2b). A machine is a process with a folder of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;
use precast::{CacheMode, CacheOptions, ProgramCache};

use crate::torture::cache::{Bench, Tally};
use crate::torture::cache_child::{Store, Task, run_all};

const MACHINES: usize = 4;
const THREADS: usize = 4;

/// A folder as the store, sound and racy.
pub fn run(bench: &mut Bench) -> Result<()> {
    let rounds = bench.count(10, 2);
    let sound = |folder: &Path| Store::Url(format!("file://{}", folder.display()), Vec::new());
    machines(bench, "folder", Compiles::OnceInAll, rounds, |bench, round| {
        let folder = bench.root(format!("store-{round}"));
        std::fs::create_dir_all(&folder)?;
        Ok(sound(&folder))
    })?;
    machines(bench, "racy", Compiles::OnceAMachine, rounds, |bench, round| {
        let folder = bench.root(format!("racy-{round}"));
        std::fs::create_dir_all(&folder)?;
        Ok(Store::Racy(folder))
    })
}

/// How often a Bucket may be compiled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Compiles {
    /// Once.
    OnceInAll,
    /// Once by each machine.
    OnceAMachine,
}

/// Several rounds with a fresh store each.
pub fn machines(
    bench: &mut Bench,
    name: &str,
    compiles: Compiles,
    rounds: usize,
    store: impl Fn(&Bench, usize) -> Result<Store>,
) -> Result<()> {
    let subject = bench.small.clone();
    let expected = subject.expected()?;
    let (mut tally, mut counts) = (Tally::default(), Vec::new());
    for round in 0..rounds {
        let store = store(bench, round)?;
        let roots: Vec<PathBuf> =
            (0..MACHINES).map(|machine| bench.root(format!("{name}-{round}-machine-{machine}"))).collect();
        let task = |root: &PathBuf| Task { openers: THREADS, store: Some(store.clone()), ..Task::new(&subject, root) };
        let tasks: Vec<Task> = roots.iter().map(task).collect();
        let Some(done) = tally.value(run_all(&tasks), || format!("round {round}")) else { continue };
        let counted: Vec<usize> = done.iter().map(|done| done.compiles as usize).collect();
        let in_all: usize = counted.iter().sum();
        let is_few = match compiles {
            Compiles::OnceInAll => in_all == subject.buckets(),
            Compiles::OnceAMachine => {
                in_all >= subject.buckets() && counted.iter().all(|&count| count <= subject.buckets())
            }
        };
        let is_right = done.iter().all(|done| done.answers.len() == 1 && done.answers.contains(&expected));
        let is_whole = done.iter().all(|done| done.quarantined == 0) && roots.iter().all(|root| is_whole(root));
        // A machine that comes later compiles nothing, and all have the same bytes where the store is sound.
        let late = bench.root(format!("{name}-{round}-late"));
        let late_done = run_all(&[task(&late)])?;
        let is_stored = late_done.iter().all(|done| done.compiles == 0 && done.answers.contains(&expected));
        let artifacts: BTreeSet<String> = roots.iter().chain([&late]).map(|root| artifacts(root)).collect();
        let is_same = compiles == Compiles::OnceAMachine || artifacts.len() == 1;
        tally.check(is_few && is_right && is_whole && is_stored && is_same, || {
            let events: Vec<&String> = done.iter().flat_map(|done| &done.events).collect();
            format!(
                "round {round}: compiles {counted:?}, right {is_right}, whole {is_whole}, stored {is_stored}, same \
                 bytes {is_same}, late {late_done:?}, events {events:?}"
            )
        });
        counts.push(in_all);
        for root in roots.iter().chain([&late]) {
            std::fs::remove_dir_all(root)?;
        }
    }
    let buckets = subject.buckets();
    let bound = match compiles {
        Compiles::OnceInAll => format!("{buckets} compiles in all"),
        Compiles::OnceAMachine => format!("<= {buckets} compiles a machine"),
    };
    let claim = format!("{MACHINES} machines, {name} store: {bound}, no wrong load");
    bench.report(claim, tally, format!("compiles a round {counts:?}"));
    Ok(())
}

fn open(root: &Path) -> Result<ProgramCache> {
    Ok(ProgramCache::open(CacheOptions { mode: CacheMode::ReadOnly, ..CacheOptions::new(root) })?)
}

fn is_whole(root: &Path) -> bool {
    open(root).and_then(|cache| Ok(cache.verify()?)).is_ok_and(|found| found.problems.is_empty())
}

/// Names and digests of all Programs below a root.
fn artifacts(root: &Path) -> String {
    let listed = open(root).and_then(|cache| {
        let keys = cache.ls()?.into_iter().map(|entry| entry.key.to_string());
        let digests = keys.map(|key| Ok(format!("{key} {}", cache.show(&key)?.manifest.program_digest())));
        digests.collect::<Result<Vec<String>>>()
    });
    listed.map_or_else(|error| error.to_string(), |lines| lines.join("\n"))
}
