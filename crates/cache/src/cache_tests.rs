//! Hits, misses, single flight, collisions, damage and modes.

use std::convert::Infallible;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::testing::{Told, constant, files_below, open, program, program_with, record};

type Got = Result<Fetched, GetError<Infallible>>;

fn get(cache: &ProgramCache, model: &str, batch: i64) -> Fetched {
    let got: Got = cache.get_or(&record(model, batch), || Ok(program(model, batch)));
    let fetched = got.unwrap();
    assert_eq!(*fetched.program, program(model, batch));
    fetched
}

#[test]
fn a_program_is_compiled_once_and_then_found_in_memory_and_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let first = get(&cache, "m", 4);
    assert_eq!((first.origin, first.miss), (Origin::Compiled, Some(Miss::absent())));
    assert_eq!(get(&cache, "m", 4).origin, Origin::Memory);
    assert_eq!(get(&open(dir.path()), "m", 4).origin, Origin::Disk);
    assert_eq!(*open(dir.path()).probe(&record("m", 4)).unwrap(), program("m", 4));
}

#[test]
fn a_miss_names_the_nearest_entry_and_its_fields() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    get(&cache, "m", 4);
    let mut wanted = record("m", 4);
    wanted.options.insert("fast_math".to_string(), "true".to_string());
    let Err(Miss::Absent { nearest: Some(nearest) }) = cache.probe(&wanted) else { panic!("near") };
    assert_eq!(nearest.key, cache.key(&record("m", 4)));
    assert_eq!(nearest.differing.len(), 1);
    assert_eq!(nearest.differing[0].to_string(), "options.fast_math: want true, have false");
}

#[test]
fn constants_travel_with_their_program_and_lie_on_disk_once() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let tensor = constant(5, 5000);
    for batch in [1, 2, 4, 8] {
        let got: Got = cache.get_or(&record("m", batch), || Ok(program_with(&cache, "m", batch, &tensor)));
        assert_eq!(got.unwrap().origin, Origin::Compiled);
    }
    assert_eq!(files_below(&dir.path().join("weights")).len(), 1);
    let other = open(dir.path());
    for batch in [1, 2, 4, 8] {
        other.probe(&record("m", batch)).unwrap();
    }
    assert_eq!(other.store().resident(), (1, 5000));
    other.trim();
    assert_eq!((other.resident_programs(), other.store().resident()), (0, (0, 0)));
}

#[test]
fn trimming_while_something_compiles_keeps_its_constants() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let got: Got = cache.get_or(&record("m", 1), || {
        let program = program_with(&cache, "m", 1, &constant(5, 100));
        cache.trim();
        Ok(program)
    });
    got.unwrap();
    assert!(open(dir.path()).probe(&record("m", 1)).is_ok());
}

#[test]
fn a_moved_or_copied_root_still_hits() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    get(&open(&old), "m", 4);
    std::fs::rename(&old, &new).unwrap();
    for path in files_below(&new) {
        std::fs::File::options().write(true).open(path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    assert_eq!(get(&open(&new), "m", 4).origin, Origin::Disk);
}

#[test]
fn of_64_threads_one_compiles() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let compiles = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                let got: Got = cache.get_or(&record("m", 4), || {
                    compiles.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(50));
                    Ok(program("m", 4))
                });
                assert_eq!(*got.unwrap().program, program("m", 4));
            });
        }
    });
    assert_eq!(compiles.load(Ordering::SeqCst), 1);
}

/// Caches of one root share no memory and lock against each other, as processes do.
#[test]
fn of_8_caches_with_8_threads_each_one_compiles_and_7_load() {
    for round in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let (compiles, loads) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let caches: Vec<ProgramCache> = (0..8).map(|_| open(dir.path())).collect();
        std::thread::scope(|scope| {
            for cache in caches.iter().flat_map(|cache| std::iter::repeat_n(cache, 8)) {
                scope.spawn(|| {
                    let got: Got = cache.get_or(&record("m", round), || {
                        compiles.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(30));
                        Ok(program("m", round))
                    });
                    let fetched = got.unwrap();
                    assert_eq!(*fetched.program, program("m", round));
                    loads.fetch_add(usize::from(fetched.origin == Origin::Disk), Ordering::SeqCst);
                });
            }
        });
        assert_eq!((compiles.into_inner(), loads.into_inner()), (1, 7), "round {round}");
        assert_eq!(files_below(&dir.path().join("tmp")), Vec::<std::path::PathBuf>::new());
    }
}

#[test]
fn waiters_share_an_error_and_the_next_caller_tries_again() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let compiles = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let got = cache.get_or(&record("m", 4), || {
                    compiles.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(100));
                    Err::<precast_program::Program, _>("no such op".to_string())
                });
                assert!(matches!(got, Err(GetError::Make(error)) if *error == "no such op"));
            });
        }
    });
    assert!(compiles.load(Ordering::SeqCst) < 8);
    assert_eq!(get(&cache, "m", 4).origin, Origin::Compiled);
}

#[test]
fn a_panicking_compile_leaves_the_cache_usable() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _: Got =
            cache.get_or(&record("m", 4), || -> Result<precast_program::Program, Infallible> { panic!("bug") });
    }));
    assert!(panicked.is_err());
    assert_eq!(get(&cache, "m", 4).origin, Origin::Compiled);
}

#[test]
fn colliding_keys_never_give_a_wrong_program() {
    let dir = tempfile::tempdir().unwrap();
    let told = Told::default();
    let narrow = || CacheOptions { digest_bits: 8, ..told.options(dir.path()) };
    for round in 0..2 {
        let cache = ProgramCache::open(narrow()).unwrap();
        let mut incompatible = 0;
        for batch in 0..1000 {
            let fetched = get(&cache, "m", batch);
            match fetched.miss {
                Some(Miss::Incompatible { field, .. }) => {
                    assert_eq!(field, "bucket.batch");
                    incompatible += 1;
                }
                Some(Miss::Absent { .. }) => assert_eq!(round, 0),
                None => assert_eq!((round, fetched.origin), (1, Origin::Disk)),
                other => panic!("{other:?}"),
            }
        }
        assert!(incompatible >= 1000 - 256, "{incompatible}");
        assert_eq!(get(&cache, "m", 7).origin, Origin::Memory);
    }
    assert!(files_below(&dir.path().join("programs")).len() <= 256);
    assert!(files_below(&dir.path().join("quarantine")).is_empty());
}

/// H18: sizes whose products are equal, and more of them than eight bits can tell apart.
#[test]
fn a_hundred_thousand_colliding_shapes_each_get_their_own_program() {
    let cache = ProgramCache::open(CacheOptions { digest_bits: 8, ..CacheOptions::memory() }).unwrap();
    let shapes = (0..250).flat_map(|rows| (0..400).map(move |columns| (rows, columns)));
    for (rows, columns) in shapes {
        let shape = vec![rows, columns];
        let record = KeyRecord { types: vec![format!("f32[{rows},{columns}]")], ..record("m", 4) };
        let mut made = program("m", 4);
        made.inputs[0].shape = shape.clone();
        let got: Got = cache.get_or(&record, || Ok(made));
        assert_eq!(got.unwrap().program.inputs[0].shape, shape);
    }
}

#[test]
fn a_damaged_entry_is_quarantined_once_and_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let told = Told::default();
    get(&open(dir.path()), "m", 4);
    let path = files_below(&dir.path().join("programs")).pop().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let cache = ProgramCache::open(told.options(dir.path())).unwrap();
    let fetched = get(&cache, "m", 4);
    assert_eq!(fetched.origin, Origin::Compiled);
    assert!(matches!(fetched.miss, Some(Miss::Corrupt { section, .. }) if section == "program"));
    assert_eq!(files_below(&dir.path().join("quarantine")).len(), 1);
    let quarantined = told.events().iter().filter(|event| matches!(event, Event::Quarantined { .. })).count();
    assert_eq!(quarantined, 1);
    assert_eq!(get(&open(dir.path()), "m", 4).origin, Origin::Disk);
}

#[test]
fn a_program_that_no_device_loads_is_given_up_and_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let told = Told::default();
    let cache = ProgramCache::open(told.options(dir.path())).unwrap();
    get(&cache, "m", 4);
    get(&cache, "m", 8);
    cache.discard(&record("m", 4), "element type 'f23' of 'y'");
    let quarantined = told.events();
    let [Event::Quarantined { miss: Miss::Corrupt { got, .. }, .. }] = &quarantined[..] else {
        panic!("{quarantined:?}")
    };
    assert_eq!(got, "element type 'f23' of 'y'");
    assert_eq!(get(&cache, "m", 4).origin, Origin::Compiled);
    assert_eq!(get(&cache, "m", 8).origin, Origin::Memory);
    assert_eq!(get(&open(dir.path()), "m", 4).origin, Origin::Disk);
}

#[test]
fn swapped_files_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    get(&cache, "a", 1);
    get(&cache, "b", 1);
    let paths = [record("a", 1), record("b", 1)].map(|record| cache.layout.program(&cache.key(&record)));
    let swap = dir.path().join("swap");
    std::fs::rename(&paths[0], &swap).unwrap();
    std::fs::rename(&paths[1], &paths[0]).unwrap();
    std::fs::rename(&swap, &paths[1]).unwrap();
    let other = open(dir.path());
    assert!(matches!(get(&other, "a", 1).miss, Some(Miss::Corrupt { section, .. }) if section == "name"));
    assert!(matches!(get(&other, "b", 1).miss, Some(Miss::Corrupt { section, .. }) if section == "name"));
    assert_eq!(get(&open(dir.path()), "a", 1).origin, Origin::Disk);
}

#[test]
fn a_vanished_constant_is_a_miss_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = constant(5, 100);
    let make = |cache: &ProgramCache| -> Fetched {
        let got: Got = cache.get_or(&record("m", 1), || Ok(program_with(cache, "m", 1, &tensor)));
        got.unwrap()
    };
    make(&open(dir.path()));
    std::fs::remove_file(files_below(&dir.path().join("weights")).pop().unwrap()).unwrap();
    assert_eq!(make(&open(dir.path())).origin, Origin::Compiled);
    assert_eq!(make(&open(dir.path())).origin, Origin::Disk);
}

/// Names, lengths and times of everything below a directory.
fn fingerprint(dir: &Path) -> Vec<(std::path::PathBuf, u64, std::time::SystemTime)> {
    let stat = |path: std::path::PathBuf| {
        let metadata = std::fs::metadata(&path).unwrap();
        (path, metadata.len(), metadata.modified().unwrap())
    };
    files_below(dir).into_iter().map(stat).collect()
}

#[test]
fn reading_modes_write_nothing() {
    let dir = tempfile::tempdir().unwrap();
    get(&open(dir.path()), "m", 4);
    get(&open(dir.path()), "bad", 4);
    let path = open(dir.path()).layout.program(&record("bad", 4).key());
    std::fs::write(&path, b"damaged").unwrap();
    let before = fingerprint(dir.path());
    for mode in [Mode::ReadOnly, Mode::LookupOnly] {
        let cache = ProgramCache::open(CacheOptions { mode, ..CacheOptions::new(dir.path()) }).unwrap();
        assert!(cache.probe(&record("m", 4)).is_ok());
        let got: Got = cache.get_or(&record("bad", 4), || Ok(program("bad", 4)));
        match mode {
            Mode::LookupOnly => assert!(matches!(got, Err(GetError::Missing(Miss::Corrupt { .. })))),
            _ => assert_eq!(got.unwrap().origin, Origin::Compiled),
        }
        assert!(matches!(cache.gc(&cache.gc_options()), Err(CacheError::ReadOnly { .. })));
    }
    assert_eq!(fingerprint(dir.path()), before);
}

fn never() -> Result<precast_program::Program, Infallible> {
    panic!("lookup-only never compiles")
}

#[test]
fn lookup_only_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    get(&open(dir.path()), "m", 4);
    let options = CacheOptions { mode: Mode::LookupOnly, ..CacheOptions::new(dir.path()) };
    let cache = ProgramCache::open(options).unwrap();
    let got: Got = cache.get_or(&record("m", 8), never);
    let Err(GetError::Missing(Miss::Absent { nearest: Some(nearest) })) = got else { panic!("its nearest") };
    assert_eq!(nearest.differing[0].field, "bucket.batch");
}

#[test]
fn refresh_compiles_again_and_replaces() {
    let dir = tempfile::tempdir().unwrap();
    get(&open(dir.path()), "m", 4);
    let options = CacheOptions { mode: Mode::Refresh, ..CacheOptions::new(dir.path()) };
    let cache = ProgramCache::open(options).unwrap();
    let better = precast_program::Program { arena_bytes: 128, ..program("m", 4) };
    let got: Got = cache.get_or(&record("m", 4), || Ok(better.clone()));
    assert_eq!(got.unwrap().origin, Origin::Compiled);
    assert_eq!(*open(dir.path()).probe(&record("m", 4)).unwrap(), better);
}

#[test]
fn a_loser_takes_the_winners_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (winner, loser) = (open(dir.path()), open(dir.path()));
    let other = precast_program::Program { arena_bytes: 128, ..program("m", 4) };
    // Without a lock between them: the winner publishes while the loser compiles.
    let wanted = Wanted::new(&record("m", 4), 256);
    winner.publish_compiled(&wanted, &program("m", 4).into(), Duration::ZERO, None);
    let adopted = loser.publish_compiled(&wanted, &other.into(), Duration::ZERO, None);
    assert_eq!(*adopted.unwrap(), program("m", 4));
}

#[test]
fn off_keeps_to_memory() {
    let cache = ProgramCache::open(CacheOptions::memory()).unwrap();
    assert_eq!(get(&cache, "m", 4).origin, Origin::Compiled);
    assert_eq!(get(&cache, "m", 4).origin, Origin::Memory);
}

#[test]
fn a_root_that_others_may_write_is_refused_unless_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o777)).unwrap();
    for mode in [Mode::ReadWrite, Mode::ReadOnly] {
        let options = CacheOptions { mode, ..CacheOptions::new(&root) };
        assert!(matches!(ProgramCache::open(options), Err(CacheError::Untrusted { .. })));
    }
    let told = Told::default();
    let options = CacheOptions { trust_shared: true, ..told.options(&root) };
    assert_eq!(get(&ProgramCache::open(options).unwrap(), "m", 4).origin, Origin::Compiled);
    assert!(matches!(told.events()[0], Event::SharedRoot { .. }));
}

#[test]
fn a_root_below_a_directory_that_others_may_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let parent = dir.path().join("parent");
    std::fs::create_dir(&parent).unwrap();
    std::fs::set_permissions(&parent, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refused = ProgramCache::open(CacheOptions::new(parent.join("root")));
    assert!(matches!(refused, Err(CacheError::Untrusted { .. })));
    std::fs::set_permissions(&parent, std::fs::Permissions::from_mode(0o1777)).unwrap();
    assert!(ProgramCache::open(CacheOptions::new(parent.join("root"))).is_ok());
}

#[test]
fn a_new_root_is_private_and_has_its_marks() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("a/root");
    open(&root);
    assert_eq!(std::fs::metadata(&root).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(std::fs::read_to_string(root.join("FORMAT")).unwrap(), "precast cache layout 2\n");
    assert!(std::fs::read_to_string(root.join("CACHEDIR.TAG")).unwrap().starts_with("Signature: 8a477f597d28d172"));
}

#[test]
fn a_newer_layout_is_only_read_and_a_strange_one_refused() {
    let dir = tempfile::tempdir().unwrap();
    get(&open(dir.path()), "m", 4);
    std::fs::write(dir.path().join("FORMAT"), "precast cache layout 3\n").unwrap();
    let cache = open(dir.path());
    assert_eq!(cache.mode(), Mode::ReadOnly);
    assert_eq!(get(&cache, "m", 4).origin, Origin::Disk);
    std::fs::write(dir.path().join("FORMAT"), "something else").unwrap();
    assert!(matches!(ProgramCache::open(CacheOptions::new(dir.path())), Err(CacheError::Layout { .. })));
}

#[test]
fn an_older_layout_becomes_this_one() {
    let dir = tempfile::tempdir().unwrap();
    get(&open(dir.path()), "m", 4);
    std::fs::write(dir.path().join("FORMAT"), "precast cache layout 1\n").unwrap();
    let cache = open(dir.path());
    assert_eq!(cache.mode(), Mode::ReadWrite);
    assert_eq!(std::fs::read_to_string(dir.path().join("FORMAT")).unwrap(), "precast cache layout 2\n");
}

#[test]
fn wrong_files_in_the_right_number_are_no_hits() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let cache = open(&source);
    (0..7).for_each(|batch| drop(get(&cache, "other", batch)));
    open(&target);
    std::fs::remove_dir_all(target.join("programs")).unwrap();
    std::fs::rename(source.join("programs"), target.join("programs")).unwrap();
    let cache = open(&target);
    assert!((0..7).all(|batch| get(&cache, "m", batch).origin == Origin::Compiled));
}
