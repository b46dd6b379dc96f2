//! Real processes on one root: one compiles, and a kill at any moment leaves whole entries only (T1, T2). The children
//! are this test binary itself, running the test `child`, told by standard input what to do.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use std::sync::atomic::AtomicUsize;

use super::*;
use crate::disk::Call;
use crate::fault::FaultyDisk;
use crate::testing::{constant, files_below, open, program_with, record};

const THREADS: usize = 8;

fn request(cache: &ProgramCache, batch: i64, compile: impl Fn()) -> Fetched {
    let tensor = constant(batch as u8, 40_000);
    let got: Result<Fetched, GetError<Infallible>> = cache.get_or(&record("m", batch), || {
        compile();
        Ok(program_with(cache, "m", batch, &tensor))
    });
    let fetched = got.unwrap();
    assert_eq!(fetched.program.graph, format!("m {batch}"));
    fetched
}

/// How a child is called; nobody else asks for exactly this test.
const CHILD: [&str; 2] = ["--exact", "cache::process_tests::child"];

/// What the children of the other tests run. Called in any other way it does nothing.
#[test]
fn child() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments != CHILD {
        return;
    }
    let mut root = String::new();
    std::io::stdin().read_to_string(&mut root).unwrap();
    let root = Path::new(&root);
    let log = std::fs::File::options().append(true).create(true).open(root.join("compiles")).unwrap();
    let cache = open(root);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, log) = (&cache, &log);
            scope.spawn(move || {
                for batch in 0..8 {
                    request(cache, (batch + thread as i64) % 8, || {
                        let mut log = log;
                        log.write_all(b"c").unwrap();
                    });
                }
            });
        }
    });
}

/// How a child is called that never ends its compile.
const HOLDER: [&str; 2] = ["--exact", "cache::process_tests::holder"];

/// Takes the lock of a Program and keeps it until it is killed. Called in any other way it does nothing.
#[test]
fn holder() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments != HOLDER {
        return;
    }
    let mut root = String::new();
    std::io::stdin().read_to_string(&mut root).unwrap();
    let root = Path::new(&root);
    request(&open(root), 0, || {
        std::fs::write(root.join("held"), "").unwrap();
        loop {
            std::thread::park();
        }
    });
}

fn spawn(root: &Path) -> Child {
    spawn_as(CHILD, root)
}

fn spawn_as(arguments: [&str; 2], root: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(root.to_str().unwrap().as_bytes()).unwrap();
    child
}

#[test]
fn of_8_processes_with_8_threads_each_one_compiles_each_program() {
    let dir = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..8).map(|_| spawn(dir.path())).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(std::fs::read(dir.path().join("compiles")).unwrap().len(), 8);
    assert_eq!(open(dir.path()).verify().unwrap().problems, []);
    assert!(files_below(&dir.path().join("tmp")).is_empty());
}

#[test]
fn a_kill_at_any_moment_leaves_whole_entries_only() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..40 {
        let root = dir.path().join(round.to_string());
        std::fs::create_dir(&root).unwrap();
        let mut child = spawn(&root);
        std::thread::sleep(Duration::from_micros(1500 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let cache = open(&root);
        assert_eq!(cache.verify().unwrap().problems, [], "round {round}");
        let started = Instant::now();
        (0..8).for_each(|batch| drop(request(&cache, batch, || {})));
        assert!(started.elapsed() < Duration::from_secs(10), "locks of the dead are free at once");
        assert_eq!(cache.verify().unwrap().problems, [], "round {round}");
    }
}

/// H21: the system takes the lock of a dead process away, and whoever waited for it makes the Program.
#[test]
fn who_waits_for_a_holder_that_is_killed_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut holder = spawn_as(HOLDER, dir.path());
    while !dir.path().join("held").exists() {
        std::thread::yield_now();
    }
    let tries = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&tries);
    let disk = FaultyDisk::new(move |call, _| {
        seen.fetch_add(usize::from(call == Call::TryLock), Ordering::SeqCst);
        None
    });
    let cache = ProgramCache::open(CacheOptions { disk: Arc::new(disk), ..CacheOptions::new(dir.path()) }).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| request(&cache, 0, || {}));
        // A second try says that the first one found the lock taken.
        while tries.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert_eq!(waiting.join().unwrap().origin, Origin::Compiled);
    });
    assert_eq!(cache.verify().unwrap().problems, []);
}

/// H34: a process that is killed each time it has made something is ready in the end, since nothing is made twice that was
/// published.
#[test]
fn starts_that_are_killed_halfway_get_further_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let published = || files_below(&dir.path().join("programs")).len();
    for start in 0..10 {
        let before = published();
        let mut child = spawn(dir.path());
        while published() == before && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(published() > before || before == 8, "start {start} added nothing to {before}");
    }
    let mut last = spawn(dir.path());
    assert!(last.wait().unwrap().success());
    assert_eq!(published(), 8);
    assert_eq!(open(dir.path()).verify().unwrap().problems, []);
}
