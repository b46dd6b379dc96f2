//! Lists, explanations, verification, eviction and pins.

use std::convert::Infallible;

use super::*;
use crate::cache::Fetched;
use crate::gc::{GcOptions, Reason};
use crate::index::now_s;
use crate::miss::GetError;
use crate::options::CacheOptions;
use crate::testing::{constant, files_below, open, program, program_with, record};

fn fill(cache: &ProgramCache, model: &str, batches: std::ops::Range<i64>) {
    for batch in batches {
        let got: Result<Fetched, GetError<Infallible>> =
            cache.get_or(&record(model, batch), || Ok(program(model, batch)));
        got.unwrap();
    }
}

/// Bytes of a constant that has a file of its own.
const LARGE: usize = 300_000;

fn fill_with(cache: &ProgramCache, model: &str, batch: i64, bytes: usize) {
    let tensor = constant(batch as u8, bytes);
    let got: Result<Fetched, GetError<Infallible>> =
        cache.get_or(&record(model, batch), || Ok(program_with(cache, model, batch, &tensor)));
    got.unwrap();
}

#[test]
fn the_list_shows_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    fill_with(&cache, "m", 1, 1000);
    let entries = cache.ls().unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].key, &entries[0].record), (record("m", 1).key(), &record("m", 1)));
    assert_eq!((entries[0].weights_bytes, entries[0].is_pinned), (1000, false));
    assert!(entries[0].last_use.is_some() && entries[0].compile_time.is_some());
    let usage = cache.bytes().unwrap();
    let files = files_below(&dir.path().join("weights"));
    let weights = files.iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
    assert_eq!((usage.programs, usage.weights), (entries[0].program_bytes, weights));
    let details = cache.show(&entries[0].key.to_string()[..10]).unwrap();
    assert_eq!(details.program.graph, "m 1");
    assert!(matches!(cache.show("zz"), Err(CacheError::NotOneEntry { found: 0, .. })));
}

#[test]
fn why_compares_with_every_entry() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    fill(&cache, "m", 1..4);
    let mut wanted = record("another", 2);
    wanted.weights.0[0] ^= 1;
    let explanation = cache.why(&wanted);
    assert_eq!((explanation.entries, explanation.miss), (3, Some(Miss::Absent { nearest: None })));
    let fields: Vec<String> = explanation.nearest.unwrap().differing.into_iter().map(|diff| diff.field).collect();
    assert_eq!(fields, ["graph", "weights"]);
    assert_eq!(cache.why(&record("m", 2)).miss, None);
    let keys = [record("m", 1).key().to_string(), record("m", 2).key().to_string()];
    let fields: Vec<String> = cache.diff(&keys[0], &keys[1]).unwrap().into_iter().map(|diff| diff.field).collect();
    assert_eq!(fields, ["bucket.batch", "types"]);
}

#[test]
fn verify_finds_damage_and_missing_constants() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    fill(&cache, "m", 1..3);
    fill_with(&cache, "w", 1, LARGE);
    fill_with(&cache, "w", 2, LARGE);
    assert_eq!(cache.verify().unwrap(), Verification { programs: 4, weights: 2, problems: vec![] });
    std::fs::write(cache.layout.program(&record("m", 1).key()), b"rot").unwrap();
    let weight = cache.layout.weight(&constant(1, LARGE).digest());
    let mut bytes = std::fs::read(&weight).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weight, bytes).unwrap();
    std::fs::remove_file(cache.layout.weight(&constant(2, LARGE).digest())).unwrap();
    let classes = |found: &Verification| -> Vec<&str> { found.problems.iter().map(|it| it.miss.class()).collect() };
    let mut first = classes(&cache.verify().unwrap());
    first.sort_unstable();
    assert_eq!(first, ["absent", "corrupt", "corrupt"]);
    assert_eq!(files_below(&dir.path().join("quarantine")).len(), 2);
    assert_eq!(classes(&cache.verify().unwrap()), ["absent", "absent"]);
}

#[test]
fn verify_finds_damage_in_packs() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    fill_with(&cache, "w", 1, 100);
    fill_with(&cache, "w", 2, 100);
    assert_eq!(cache.verify().unwrap(), Verification { programs: 2, weights: 2, problems: vec![] });
    let constants = cache.ls_constants().unwrap();
    assert_eq!(constants.iter().map(|it| (it.bytes, it.programs)).collect::<Vec<_>>(), [(100, 1), (100, 1)]);
    let pack = files_below(&dir.path().join("weights")).pop().unwrap();
    let mut bytes = std::fs::read(&pack).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let found = cache.verify().unwrap();
    assert_eq!(found.problems.iter().map(|it| it.miss.class()).collect::<Vec<_>>(), ["corrupt"]);
    assert_eq!(files_below(&dir.path().join("quarantine")).len(), 1);
    assert_eq!(cache.verify().unwrap().problems.len(), 1, "a Program misses its constant");
    fill_with(&open(dir.path()), "w", 1, 100);
    fill_with(&open(dir.path()), "w", 2, 100);
    assert_eq!(cache.verify().unwrap().problems, []);
}

#[test]
fn gc_keeps_the_bound_the_pins_and_what_costs_most() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    (0..10).for_each(|batch| fill_with(&cache, "m", batch, 10_000));
    let names: Vec<String> = (0..10).map(|batch| record("m", batch).key().to_string()).collect();
    // All unused for two days; the higher the batch the longer it took to compile.
    for (batch, name) in names.iter().enumerate() {
        let stamp = crate::index::Stamp { used_s: now_s() - 48 * 3600, compile_ms: Some(1000 * batch as u64) };
        std::fs::write(cache.layout.use_stamp(name), serde_json::to_vec(&stamp).unwrap()).unwrap();
    }
    cache.pin(&names[0]).unwrap();
    let total = cache.bytes().unwrap().total();
    let options = GcOptions { max_bytes: total / 2, ..cache.gc_options() };
    let planned = cache.gc(&GcOptions { is_dry_run: true, ..options }).unwrap();
    assert_eq!(cache.bytes().unwrap().total(), total);
    let done = cache.gc(&options).unwrap();
    assert_eq!(planned.removed, done.removed);
    assert!(cache.bytes().unwrap().total() <= options.max_bytes);
    assert!(done.removed.iter().all(|removed| removed.reason != Reason::LeastRecent));
    let is_kept = |batch: i64| cache.layout.program(&record("m", batch).key()).exists();
    assert!(is_kept(0) && !is_kept(1) && is_kept(9));
    // What is left is whole, and what went is made again.
    assert_eq!(cache.verify().unwrap().problems, []);
    cache.unpin(&names[0]).unwrap();
    assert!(!cache.show(&names[0]).unwrap().entry.is_pinned);
}

#[test]
fn entries_in_use_go_by_last_use() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    fill(&cache, "m", 0..6);
    for batch in 0..6 {
        let stamp = crate::index::Stamp { used_s: now_s() - 100 * (batch as u64), compile_ms: Some(1) };
        let path = cache.layout.use_stamp(&record("m", batch).key().to_string());
        std::fs::write(path, serde_json::to_vec(&stamp).unwrap()).unwrap();
    }
    let options = GcOptions { max_bytes: cache.bytes().unwrap().total() * 3 / 4, ..cache.gc_options() };
    let report = cache.gc(&options).unwrap();
    assert!(report.removed.iter().all(|removed| removed.reason == Reason::LeastRecent));
    assert!(cache.layout.program(&record("m", 0).key()).exists());
    assert!(!cache.layout.program(&record("m", 5).key()).exists());
}

#[test]
fn publishing_keeps_the_bound_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let max_bytes = 200_000;
    let caches: Vec<ProgramCache> = (0..4)
        .map(|_| ProgramCache::open(CacheOptions { max_bytes, ..CacheOptions::new(dir.path()) }).unwrap())
        .collect();
    let one_artifact = 20_000;
    std::thread::scope(|scope| {
        for (index, cache) in caches.iter().enumerate() {
            scope.spawn(move || {
                (0..30).for_each(|batch| fill_with(cache, &format!("m{index}"), batch + 32 * index as i64, 10_000));
            });
        }
    });
    let total = caches[0].bytes().unwrap().total();
    assert!(total <= max_bytes + 4 * one_artifact, "{total}");
    assert_eq!(caches[0].verify().unwrap().problems, []);
}

#[test]
fn constants_that_nobody_names_go_by_age() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    fill_with(&cache, "m", 1, 100);
    fill_with(&cache, "m", 2, 100);
    std::fs::remove_file(cache.layout.program(&record("m", 1).key())).unwrap();
    assert_eq!(cache.gc(&cache.gc_options()).unwrap().removed, []);
    for file in files_below(&dir.path().join("weights")) {
        let old = std::time::SystemTime::now() - Duration::from_secs(2 * 3600);
        std::fs::File::options().write(true).open(file).unwrap().set_modified(old).unwrap();
    }
    let removed = cache.gc(&cache.gc_options()).unwrap().removed;
    assert_eq!(removed.len(), 1);
    assert_eq!(removed[0].reason, Reason::Unnamed);
    assert_eq!(cache.verify().unwrap().problems, []);
}

#[test]
fn gc_removes_lock_files_that_nobody_holds() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    fill(&cache, "m", 0..3);
    let held = std::fs::File::open(cache.layout.lock(&record("m", 0).key())).unwrap();
    held.lock().unwrap();
    cache.gc(&cache.gc_options()).unwrap();
    assert_eq!(files_below(&dir.path().join("locks")).len(), 2);
    drop(held);
    fill(&open(dir.path()), "m", 0..3);
    assert_eq!(open(dir.path()).probe(&record("m", 0)).map(|program| program.graph.clone()), Ok("m 0".to_string()));
}
