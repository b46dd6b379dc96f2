//! Every file-system call of a cold and a warm request is made to fail, one at a time, with every error of the spec:
//! the request is served, and what is visible is whole (T3).

use std::convert::Infallible;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use rustix::io::Errno;

use super::*;
use crate::disk::Call;
use crate::fault::{Fault, FaultyDisk};
use crate::testing::{Told, constant, files_below, open, program_with, record};

const ERRNOS: [Errno; 9] = [
    Errno::NOSPC,
    Errno::IO,
    Errno::NOLCK,
    Errno::STALE,
    Errno::DQUOT,
    Errno::ROFS,
    Errno::ACCESS,
    Errno::MFILE,
    Errno::INTR,
];

/// Errors that are handled apart, and one that is not.
const KINDS: [Errno; 3] = [Errno::NOSPC, Errno::STALE, Errno::IO];

/// Calls whose failure is always told. Others are advisory, or their answer is found out in another way.
const TOLD: [Call; 8] =
    [Call::Create, Call::Write, Call::Sync, Call::RenameNew, Call::SyncDir, Call::MakeDir, Call::OpenLock, Call::Map];

/// These tests make tens of thousands of flushes; in memory they cost nothing.
fn memory_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Options whose disk fails its nth call; the counter says how many calls there were.
fn failing(told: &Told, root: &Path, nth: usize, fault: Fault) -> (CacheOptions, Arc<Mutex<Vec<Call>>>) {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&calls);
    let disk = FaultyDisk::new(move |call, _| {
        let mut seen = seen.lock().unwrap();
        seen.push(call);
        (seen.len() == nth).then_some(fault)
    });
    (CacheOptions { disk: Arc::new(disk), lock_timeout: Some(Duration::from_secs(5)), ..told.options(root) }, calls)
}

fn request(cache: &ProgramCache) -> Fetched {
    let tensor = constant(9, 300);
    let got: Result<Fetched, GetError<Infallible>> =
        cache.get_or(&record("m", 4), || Ok(program_with(cache, "m", 4, &tensor)));
    let fetched = got.unwrap();
    assert_eq!(*fetched.program, program_with(cache, "m", 4, &tensor));
    fetched
}

/// Runs a scenario with a fault at each call, until a run has none.
fn at_each_call(errnos: &[Errno], prepare: impl Fn(&Path), fault: impl Fn(i32) -> Fault) {
    for errno in errnos {
        for nth in 1.. {
            let dir = memory_dir();
            prepare(dir.path());
            let told = Told::default();
            let (options, calls) = failing(&told, dir.path(), nth, fault(errno.raw_os_error()));
            let cache = ProgramCache::open(options).unwrap();
            request(&cache);
            drop(cache);
            let call = calls.lock().unwrap().get(nth - 1).copied();
            // A stale handle is opened again, which is no failure yet.
            let is_mended = call == Some(Call::Map) && *errno == Errno::STALE;
            if call.is_some_and(|call| TOLD.contains(&call)) && !is_mended {
                let number = format!("os error {}", errno.raw_os_error());
                let is_told = told.events().iter().any(|event| event.to_string().contains(&number));
                assert!(is_told, "{errno} at call {nth} ({call:?}): {:?}", told.events());
            }
            // Whatever is visible is whole: the next process finds nothing to complain about.
            let checker = open(dir.path());
            let verification = checker.verify().unwrap();
            assert_eq!(verification.problems, [], "{errno} at call {nth} ({call:?})");
            assert!(files_below(&dir.path().join("quarantine")).is_empty(), "{errno} at call {nth} ({call:?})");
            request(&checker);
            request(&open(dir.path()));
            if call.is_none() {
                assert!(nth > 20, "the scenario makes {nth} calls");
                break;
            }
        }
    }
}

#[test]
fn a_cold_request_is_served_whatever_call_fails() {
    at_each_call(&ERRNOS, |_| {}, Fault::Before);
}

#[test]
fn a_cold_request_is_served_whatever_answer_is_lost() {
    at_each_call(&KINDS, |_| {}, Fault::After);
}

#[test]
fn a_cold_request_is_served_whatever_write_stops_halfway() {
    at_each_call(&KINDS, |_| {}, Fault::Halfway);
}

#[test]
fn a_warm_request_is_served_whatever_call_fails() {
    at_each_call(&ERRNOS, |root| drop(request(&open(root))), Fault::Before);
}

#[test]
fn an_unreadable_entry_is_unavailable_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    request(&open(dir.path()));
    let disk = FaultyDisk::new(|call, path| {
        let is_program = path.extension().is_some_and(|ending| ending == "pcp");
        (call == Call::Read && is_program).then_some(Fault::Before(Errno::IO.raw_os_error()))
    });
    let told = Told::default();
    let options = CacheOptions { disk: Arc::new(disk), ..told.options(dir.path()) };
    let cache = ProgramCache::open(options).unwrap();
    let Err(Miss::Unavailable { call, errno, .. }) = cache.probe(&record("m", 4)) else { panic!("unavailable") };
    assert_eq!((call.as_str(), errno), ("read", Some(Errno::IO.raw_os_error())));
    // A request compiles instead, and it is told why.
    assert_eq!(request(&cache).origin, Origin::Compiled);
    let is_told = |event: &Event| matches!(event, Event::Unavailable { doing: "loading", call, .. } if call == "read");
    assert!(told.events().iter().any(is_told), "{:?}", told.events());
    assert_eq!(request(&open(dir.path())).origin, Origin::Disk);
}

#[test]
fn a_stale_handle_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    request(&open(dir.path()));
    let reads = AtomicUsize::new(0);
    let disk = FaultyDisk::new(move |call, path| {
        let is_program = path.extension().is_some_and(|ending| ending == "pcp");
        let is_early = || reads.fetch_add(1, Ordering::SeqCst) < 2;
        (call == Call::Read && is_program && is_early()).then_some(Fault::Before(Errno::STALE.raw_os_error()))
    });
    let options = CacheOptions { disk: Arc::new(disk), ..CacheOptions::new(dir.path()) };
    assert_eq!(request(&ProgramCache::open(options).unwrap()).origin, Origin::Disk);
}

#[test]
fn a_stale_constant_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    request(&open(dir.path()));
    let opens = AtomicUsize::new(0);
    let disk = FaultyDisk::new(move |call, path| {
        let is_weight = path.extension().is_some_and(|ending| ending == "pcw");
        let is_open = matches!(call, Call::Read | Call::Map) && is_weight;
        let is_early = || opens.fetch_add(1, Ordering::SeqCst) < 2;
        (is_open && is_early()).then_some(Fault::Before(Errno::STALE.raw_os_error()))
    });
    let options = CacheOptions { disk: Arc::new(disk), ..CacheOptions::new(dir.path()) };
    assert_eq!(request(&ProgramCache::open(options).unwrap()).origin, Origin::Disk);
}

#[test]
fn a_disk_that_stays_full_pauses_publishing() {
    let dir = tempfile::tempdir().unwrap();
    let told = Told::default();
    let disk = FaultyDisk::new(|call, path| {
        let is_entry = path.parent().is_some_and(|parent| parent.ends_with("tmp"));
        (call == Call::Write && is_entry).then_some(Fault::Halfway(Errno::NOSPC.raw_os_error()))
    });
    open(dir.path());
    let options = CacheOptions { disk: Arc::new(disk), ..told.options(dir.path()) };
    let cache = ProgramCache::open(options).unwrap();
    request(&cache);
    assert!(told.events().contains(&Event::Full { pause_s: 60 }), "{:?}", told.events());
    let before = told.events().len();
    let got: Result<Fetched, GetError<Infallible>> =
        cache.get_or(&record("other", 1), || Ok(crate::testing::program("other", 1)));
    assert_eq!(got.unwrap().origin, Origin::Compiled);
    assert_eq!(told.events().len(), before);
    assert!(files_below(&dir.path().join("tmp")).is_empty());
}

/// Four caches of four threads each ask for one Program at once, on disks that answer `TryLock` in this way. Each compile
/// gives other bytes, so that the first to publish is seen to decide for all. Gives the number of compiles.
fn compiles_of_four_caches(told: &Told, answer: Fault) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let disk = FaultyDisk::new(move |call, _| (call == Call::TryLock).then_some(answer));
        ProgramCache::open(CacheOptions { disk: Arc::new(disk), ..told.options(dir.path()) }).unwrap()
    };
    let caches: Vec<ProgramCache> = (0..4).map(|_| open()).collect();
    let compiles = AtomicUsize::new(0);
    let programs = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for cache in caches.iter().flat_map(|cache| std::iter::repeat_n(cache, 4)) {
            scope.spawn(|| {
                let got: Result<Fetched, GetError<Infallible>> = cache.get_or(&record("m", 4), || {
                    let arena_bytes = 64 * (1 + compiles.fetch_add(1, Ordering::SeqCst) as u64);
                    std::thread::sleep(Duration::from_millis(20));
                    Ok(precast_program::Program { arena_bytes, ..crate::testing::program("m", 4) })
                });
                programs.lock().unwrap().push(got.unwrap().program.arena_bytes);
            });
        }
    });
    let mut programs = programs.into_inner().unwrap();
    programs.dedup();
    assert_eq!(programs.len(), 1, "{programs:?}");
    assert_eq!(crate::testing::open(dir.path()).verify().unwrap().problems, []);
    compiles.into_inner()
}

#[test]
fn without_locks_each_cache_compiles_at_most_once_and_all_end_on_the_same_bytes() {
    let told = Told::default();
    assert!(compiles_of_four_caches(&told, Fault::Before(Errno::NOLCK.raw_os_error())) <= 4);
    let unlocked = told.events().iter().filter(|event| matches!(event, Event::Unlocked { .. })).count();
    assert!((1..=4).contains(&unlocked));
}

#[test]
fn locks_that_only_one_node_sees_cost_compiles_and_never_another_program() {
    assert!((1..=4).contains(&compiles_of_four_caches(&Told::default(), Fault::LockOfOneNode)));
}
