use std::sync::Arc;

use precast_program::TuningRecord;

use super::*;
use crate::disk::Call;
use crate::fault::{Fault, FaultyDisk};
use crate::options::CacheOptions;

fn table(records: &[(String, u64)]) -> TuningTable {
    let mut table = TuningTable::default();
    for (problem, ns) in records {
        let times = [("product".to_string(), *ns), ("winograd4".to_string(), ns + 1)];
        table.add(problem, TuningRecord::of(times.into(), 10).unwrap());
    }
    table
}

fn one(problem: &str) -> TuningTable {
    table(&[(problem.to_string(), 5)])
}

fn open(root: &std::path::Path, mode: Mode) -> ProgramCache {
    ProgramCache::open(CacheOptions { mode, ..CacheOptions::new(root) }).unwrap()
}

#[test]
fn what_is_kept_is_read_by_other_openings_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    let cache = open(&root, Mode::ReadWrite);
    assert!(cache.tuning().is_empty());
    assert_eq!(cache.bytes().unwrap().tuning, 0);
    cache.keep_tuning(&one("a"));
    cache.keep_tuning(&one("b"));
    let both = table(&[("a".to_string(), 5), ("b".to_string(), 5)]);
    for mode in [Mode::ReadWrite, Mode::ReadOnly, Mode::LookupOnly, Mode::Refresh] {
        assert_eq!(open(&root, mode).tuning(), both);
    }
    assert_eq!(cache.bytes().unwrap().tuning, both.to_text().len() as u64);
    assert_eq!(cache.verify().unwrap().problems, []);
}

#[test]
fn gc_leaves_it_alone() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(&folder.path().join("cache"), Mode::ReadWrite);
    cache.keep_tuning(&one("a"));
    cache.gc(&crate::GcOptions { max_bytes: 0, ..cache.gc_options() }).unwrap();
    assert_eq!(cache.tuning_file().0, one("a"));
}

#[test]
fn a_cache_that_may_not_write_keeps_it_for_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    open(&root, Mode::ReadWrite).keep_tuning(&one("a"));
    let read_only = open(&root, Mode::ReadOnly);
    read_only.keep_tuning(&one("b"));
    assert_eq!(read_only.tuning().len(), 2);
    assert_eq!(open(&root, Mode::ReadOnly).tuning(), one("a"));
    let memory = ProgramCache::open(CacheOptions::memory()).unwrap();
    memory.keep_tuning(&one("a"));
    assert_eq!(memory.tuning(), one("a"));
}

#[test]
fn damage_is_found_and_mended_by_the_next_write() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    let cache = open(&root, Mode::ReadWrite);
    cache.keep_tuning(&table(&[("a".to_string(), 5), ("b".to_string(), 6)]));
    let path = cache.layout.tuning();
    let text = std::fs::read_to_string(&path).unwrap();
    for damaged in [
        text.replace("product=5", "product=4"),
        format!("{text}\u{0}"),
        format!("{text}x\ty\n"),
        text[..text.len() - 3].to_string(),
    ] {
        std::fs::write(&path, damaged).unwrap();
        let found = open(&root, Mode::ReadWrite).verify().unwrap().problems;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "tuning/tactics.1.txt");
        assert!(matches!(found[0].miss, Miss::Corrupt { .. }));
        let again = open(&root, Mode::ReadWrite);
        assert!(again.tuning().iter().all(|(_, record)| record.times_ns["product"] >= 5));
        again.keep_tuning(&table(&[("a".to_string(), 5), ("b".to_string(), 6)]));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
    for alien in ["", "\u{feff}", "precast tuning 99\nabc\n"] {
        std::fs::write(&path, alien).unwrap();
        assert!(open(&root, Mode::ReadWrite).tuning().is_empty());
    }
}

#[test]
fn writers_at_once_lose_nothing() {
    const WRITERS: usize = 8;
    const EACH: usize = 12;
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    drop(open(&root, Mode::ReadWrite));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let root = &root;
            // A cache of its own, as another process would have: only the file is shared.
            scope.spawn(move || {
                let cache = open(root, Mode::ReadWrite);
                (0..EACH).for_each(|index| cache.keep_tuning(&one(&format!("{writer} {index}"))));
            });
        }
    });
    assert_eq!(open(&root, Mode::ReadOnly).tuning().len(), WRITERS * EACH);
}

#[test]
fn a_disk_that_fails_costs_the_records_alone() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    drop(open(&root, Mode::ReadWrite));
    let no_space = rustix::io::Errno::NOSPC.raw_os_error();
    let disk = FaultyDisk::new(move |call, _| (call == Call::Write).then_some(Fault::Before(no_space)));
    let cache = ProgramCache::open(CacheOptions { disk: Arc::new(disk), ..CacheOptions::new(&root) }).unwrap();
    cache.keep_tuning(&one("a"));
    assert_eq!(cache.tuning(), one("a"));
    assert!(open(&root, Mode::ReadOnly).tuning().is_empty());
}
