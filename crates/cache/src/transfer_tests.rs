//! The remote tier over a directory: fetch, upload, leases, failures, push and pull.

use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::cache::{Fetched, Origin};
use crate::miss::GetError;
use crate::options::RemoteOptions;
use crate::testing::{Told, constant, files_below, program_with, record};

const LONG: Duration = Duration::from_secs(20);

fn open(root: &Path, store: &Path, told: &Told) -> ProgramCache {
    std::fs::create_dir_all(store).unwrap();
    let remote = Some(RemoteOptions::new(format!("file://{}", store.display())));
    ProgramCache::open(CacheOptions { remote, ..told.options(root) }).unwrap()
}

fn get(cache: &ProgramCache, batch: i64) -> Fetched {
    let tensor = constant(3, 2000);
    let got: Result<Fetched, GetError<Infallible>> =
        cache.get_or(&record("m", batch), || Ok(program_with(cache, "m", batch, &tensor)));
    got.unwrap()
}

#[test]
fn what_one_machine_compiles_another_fetches() {
    let dir = tempfile::tempdir().unwrap();
    let (store, told) = (dir.path().join("store"), Told::default());
    let one = open(&dir.path().join("one"), &store, &told);
    assert_eq!(get(&one, 4).origin, Origin::Compiled);
    assert!(one.flush(LONG));
    assert_eq!(files_below(&store).len(), 2, "{:?}", files_below(&store));
    let other = open(&dir.path().join("other"), &store, &told);
    assert_eq!(get(&other, 4).origin, Origin::Remote);
    assert_eq!(other.verify().unwrap().problems, []);
    assert_eq!(get(&open(&dir.path().join("other"), &store, &told), 4).origin, Origin::Disk);
    let same_name = |root: &str| std::fs::read(dir.path().join(root).join(Layout::program_name(&record("m", 4).key())));
    assert_eq!(same_name("one").unwrap(), same_name("other").unwrap());
    assert_eq!(told.events(), []);
}

#[test]
fn a_reading_cache_fetches_into_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (store, told) = (dir.path().join("store"), Told::default());
    let one = open(&dir.path().join("one"), &store, &told);
    get(&one, 4);
    assert!(one.flush(LONG));
    let remote = Some(RemoteOptions::new(format!("file://{}", store.display())));
    let root = dir.path().join("none");
    let options = CacheOptions { remote, mode: Mode::ReadOnly, ..told.options(&root) };
    assert_eq!(get(&ProgramCache::open(options).unwrap(), 4).origin, Origin::Remote);
    assert!(!root.exists());
}

#[test]
fn a_damaged_store_is_told_and_costs_a_compile() {
    let dir = tempfile::tempdir().unwrap();
    let (store, told) = (dir.path().join("store"), Told::default());
    let one = open(&dir.path().join("one"), &store, &told);
    get(&one, 4);
    assert!(one.flush(LONG));
    for file in files_below(&store) {
        let mut bytes = std::fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&file, bytes).unwrap();
    }
    let other = open(&dir.path().join("other"), &store, &told);
    assert_eq!(get(&other, 4).origin, Origin::Compiled);
    assert!(told.events().iter().any(|event| event.to_string().contains("corrupt")), "{:?}", told.events());
}

#[test]
fn a_store_that_fails_is_told_and_costs_a_compile() {
    let dir = tempfile::tempdir().unwrap();
    let (store, told) = (dir.path().join("store"), Told::default());
    let cache = open(&dir.path().join("root"), &store, &told);
    std::fs::remove_dir(&store).unwrap();
    std::fs::write(&store, b"not a directory").unwrap();
    assert_eq!(get(&cache, 4).origin, Origin::Compiled);
    assert!(cache.flush(LONG));
    assert!(told.events().iter().all(|event| matches!(event, Event::Unavailable { .. })));
    assert!(!told.events().is_empty());
}

#[test]
fn of_machines_that_share_a_sound_store_one_compiles() {
    let dir = tempfile::tempdir().unwrap();
    let (store, told) = (dir.path().join("store"), Told::default());
    let caches: Vec<ProgramCache> =
        (0..4).map(|machine| open(&dir.path().join(machine.to_string()), &store, &told)).collect();
    let compiles = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for cache in &caches {
            scope.spawn(|| {
                let got: Result<Fetched, GetError<Infallible>> = cache.get_or(&record("m", 4), || {
                    compiles.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(200));
                    Ok(program_with(cache, "m", 4, &constant(3, 2000)))
                });
                got.unwrap();
            });
        }
    });
    assert_eq!(compiles.into_inner(), 1);
    caches.iter().for_each(|cache| assert!(cache.flush(LONG)));
    assert!(files_below(&store.join("leases")).is_empty());
}

#[test]
fn an_ended_lease_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let (store, told) = (dir.path().join("store"), Told::default());
    let cache = open(&dir.path().join("root"), &store, &told);
    std::fs::create_dir_all(store.join("leases")).unwrap();
    let lease = store.join("leases").join(record("m", 4).key().to_string());
    std::fs::write(&lease, br#"{"owner":"dead","expires_s":1000}"#).unwrap();
    assert_eq!(get(&cache, 4).origin, Origin::Compiled);
    assert!(cache.flush(LONG));
    assert!(!lease.exists());
}

#[test]
fn a_host_that_lost_the_put_loads_the_winners_bytes_next_time() {
    let dir = tempfile::tempdir().unwrap();
    let (store, told) = (dir.path().join("store"), Told::default());
    let wanted = Wanted::new(&record("m", 4), 256);
    let publish = |root: &str, arena_bytes: u64| {
        let cache = open(&dir.path().join(root), &store, &told);
        let program = Program { arena_bytes, ..program_with(&cache, "m", 4, &constant(3, 2000)) };
        assert!(cache.publish_compiled(&wanted, &program.into(), Duration::ZERO, None).is_none());
        assert!(cache.flush(LONG));
    };
    publish("winner", 128);
    publish("loser", 256);
    let loser = open(&dir.path().join("loser"), &store, &told);
    assert_eq!(loser.probe(&record("m", 4)).unwrap().arena_bytes, 128);
}

#[test]
fn a_refresh_replaces_what_the_store_has() {
    let dir = tempfile::tempdir().unwrap();
    let (store, told) = (dir.path().join("store"), Told::default());
    let one = open(&dir.path().join("one"), &store, &told);
    get(&one, 4);
    assert!(one.flush(LONG));
    let remote = Some(RemoteOptions::new(format!("file://{}", store.display())));
    let options = CacheOptions { remote, mode: Mode::Refresh, ..told.options(&dir.path().join("one")) };
    let refresh = ProgramCache::open(options).unwrap();
    let better = Program { arena_bytes: 128, ..program_with(&refresh, "m", 4, &constant(3, 2000)) };
    let got: Result<Fetched, GetError<Infallible>> = refresh.get_or(&record("m", 4), || Ok(better.clone()));
    assert_eq!(got.unwrap().origin, Origin::Compiled);
    assert!(refresh.flush(LONG));
    for root in ["one", "other"] {
        assert_eq!(*open(&dir.path().join(root), &store, &told).probe(&record("m", 4)).unwrap(), better);
    }
}

#[test]
fn push_and_pull_move_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, told) = (dir.path().join("store"), Told::default());
    let plain = ProgramCache::open(told.options(&dir.path().join("one"))).unwrap();
    (1..4).for_each(|batch| drop(get(&plain, batch)));
    assert!(matches!(plain.push(), Err(CacheError::Remote { .. })));
    let one = open(&dir.path().join("one"), &store, &told);
    let pushed = one.push().unwrap();
    assert_eq!((pushed.programs, pushed.weights, pushed.skipped.len()), (3, 1, 0));
    assert_eq!(one.push().unwrap(), Transfer::default());
    let other = open(&dir.path().join("other"), &store, &told);
    let pulled = other.pull().unwrap();
    assert_eq!((pulled.programs, pulled.weights, pulled.bytes), (3, 1, pushed.bytes));
    assert_eq!(other.pull().unwrap(), Transfer::default());
    assert!((1..4).all(|batch| get(&other, batch).origin == Origin::Disk));
}

#[test]
fn an_unknown_store_is_an_error_at_opening() {
    let dir = tempfile::tempdir().unwrap();
    let remote = Some(RemoteOptions::new("gopher://host/x"));
    let opened = ProgramCache::open(CacheOptions { remote, ..CacheOptions::new(dir.path()) });
    assert!(matches!(opened, Err(CacheError::Remote { .. })));
}
