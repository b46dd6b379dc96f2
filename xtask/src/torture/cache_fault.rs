//! Every disk call of a cold and of a warm start made to fail, one at a time, with every error of the spec (T3); and a
//! folder that really cannot be written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use precast::{CacheEvent, CacheOptions, ProgramCache};
use precast_cache::Call;
use precast_cache::fault::{Fault, FaultyDisk};

use crate::torture::cache::{Bench, Tally};
use crate::torture::cache_child::{Task, run_one};
use crate::torture::cache_model::Subject;

const ESTALE: i32 = 116;
/// Errors and their numbers on Linux.
const ERRORS: [(&str, i32); 9] = [
    ("ENOSPC", 28),
    ("EIO", 5),
    ("ENOLCK", 37),
    ("ESTALE", ESTALE),
    ("EDQUOT", 122),
    ("EROFS", 30),
    ("EACCES", 13),
    ("EMFILE", 24),
    ("EINTR", 4),
];
/// Errors that are handled apart, and one that is not: enough where the answer is lost or a write stops halfway.
const KINDS: [(&str, i32); 3] = [("ENOSPC", 28), ("ESTALE", ESTALE), ("EIO", 5)];
/// Disk calls at which a fault is tried; a start has far fewer.
const CALLS_MAX: usize = 5000;

/// What a fault is tried on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Cold,
    Warm,
}

/// All faults, then the read-only folder.
pub fn run(bench: &mut Bench) -> Result<()> {
    let subject = bench.small.with_max_batch(2);
    let errors = if bench.is_quick { &KINDS[..] } else { &ERRORS[..] };
    at_every_call(bench, &subject, "cold", Start::Cold, errors, Fault::Before)?;
    at_every_call(bench, &subject, "warm", Start::Warm, errors, Fault::Before)?;
    if !bench.is_quick {
        at_every_call(bench, &subject, "cold, the answer lost", Start::Cold, &KINDS, Fault::After)?;
        at_every_call(bench, &subject, "cold, writes stop halfway", Start::Cold, &KINDS, Fault::Halfway)?;
    }
    read_only(bench, &subject)
}

fn at_every_call(
    bench: &mut Bench,
    subject: &Subject,
    name: &str,
    start: Start,
    errors: &[(&str, i32)],
    fault: fn(i32) -> Fault,
) -> Result<()> {
    let expected = subject.expected()?;
    let mut tally = Tally::default();
    let mut silent: BTreeMap<&'static str, usize> = BTreeMap::new();
    let (mut calls, mut told) = (0, 0);
    for &(error, errno) in errors {
        for at in 1..CALLS_MAX {
            // In memory, where flushes cost nothing; the calls are the same.
            let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir_in(bench.folder.path()))?;
            if start == Start::Warm {
                serve(subject, CacheOptions::new(dir.path()))?;
            }
            let outcome = with_fault(subject, dir.path(), at, fault(errno));
            let Some(outcome) = tally.value(outcome, || format!("{error} at call {at}")) else { continue };
            let Some(call) = outcome.call else {
                ensure!(at > 20, "a start makes {at} disk calls only");
                calls = at - 1;
                break;
            };
            let is_told = outcome.is_told(call, errno);
            told += usize::from(is_told);
            if !is_told {
                *silent.entry(call.name()).or_default() += 1;
            }
            let what = || format!("{error} at call {at}, {}: {}", call.name(), outcome.text());
            let is_served = outcome.answers == expected && !outcome.has_quarantined;
            let check = || check_after(subject, dir.path(), &expected);
            let Some(problems) = tally.value(check(), what) else { continue };
            let must_tell = !is_silent_by_design(call, &outcome.path, fault(errno));
            tally.check(is_served && problems.is_empty() && (is_told || !must_tell), || {
                format!("{}; served {is_served}, told {is_told}, after it {problems:?}", what())
            });
        }
    }
    let silent: Vec<String> = silent.iter().map(|(call, count)| format!("{call} {count}")).collect();
    let detail = format!(
        "{calls} calls, {} errors; an event names call and error in {told}, none is due in: {}",
        errors.len(),
        if silent.is_empty() { "none".to_string() } else { silent.join(", ") }
    );
    bench.report(format!("a disk call fails, {name}: served, told, whole"), tally, detail);
    Ok(())
}

/// Calls whose failure changes nothing that anybody could want to know: what they would have said is found out in another
/// way, or what they would have done is done by the next start.
fn is_silent_by_design(call: Call, path: &Path, fault: Fault) -> bool {
    let is_in = |name: &str| path.components().any(|part| part.as_os_str() == name);
    match call {
        // Whether something is there; if in doubt it is made, and making it tells.
        Call::Stat => true,
        // Which kind of file system: if in doubt it is read with more care.
        Call::StatFs => true,
        // The lock and the removal of a temp: the sweep goes by age, and comes back.
        Call::TryLock | Call::Remove => is_in("tmp"),
        // A question about something that is not there fails by itself; its answer cannot be lost.
        Call::Read | Call::List if matches!(fault, Fault::After(_)) => true,
        // Stamps of last use; and a stale handle is opened again, which succeeds.
        Call::Read | Call::Map => {
            let (Fault::Before(errno) | Fault::After(errno) | Fault::Halfway(errno)) = fault else { return false };
            is_in("index") || errno == ESTALE
        }
        _ => false,
    }
}

/// How a start went.
struct Outcome {
    answers: String,
    /// The call that failed, if there were as many.
    call: Option<Call>,
    path: std::path::PathBuf,
    events: Vec<CacheEvent>,
    has_quarantined: bool,
}

impl Outcome {
    /// Whether an event names the call and the error.
    fn is_told(&self, call: Call, errno: i32) -> bool {
        let (name, number) = (call.name(), format!("os error {errno}"));
        self.events.iter().any(|event| {
            let text = event.to_string();
            text.contains(name) && text.contains(&number)
        })
    }

    fn text(&self) -> String {
        self.events.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | ")
    }
}

fn with_fault(subject: &Subject, root: &Path, at: usize, fault: Fault) -> Result<Outcome> {
    let events = Arc::new(Mutex::new(Vec::new()));
    let failed = Arc::new(Mutex::new((0, None)));
    let (told, seen) = (Arc::clone(&events), Arc::clone(&failed));
    let disk = FaultyDisk::new(move |call, path| {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.0 += 1;
        if seen.0 != at {
            return None;
        }
        seen.1 = Some((call, path.to_path_buf()));
        Some(fault)
    });
    let options = CacheOptions {
        disk: Arc::new(disk),
        events: Arc::new(move |event: &CacheEvent| {
            told.lock().unwrap_or_else(PoisonError::into_inner).push(event.clone());
        }),
        lock_timeout: Some(Duration::from_secs(5)),
        ..CacheOptions::new(root)
    };
    let answers = serve(subject, options)?;
    let events = events.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (call, path) = failed.lock().unwrap_or_else(PoisonError::into_inner).1.clone().unzip();
    let has_quarantined = events.iter().any(|event| matches!(event, CacheEvent::Quarantined { .. }));
    Ok(Outcome { answers, call, path: path.unwrap_or_default(), events, has_quarantined })
}

fn serve(subject: &Subject, options: CacheOptions) -> Result<String> {
    let cache = Arc::new(ProgramCache::open(options)?);
    subject.answers(&subject.open(cache)?)
}

/// What the next start finds to complain about.
fn check_after(subject: &Subject, root: &Path, expected: &str) -> Result<BTreeSet<String>> {
    let mut problems = BTreeSet::new();
    let found = ProgramCache::open(CacheOptions::new(root))?.verify()?.problems;
    problems.extend(found.iter().map(|problem| format!("{}: {}", problem.name, problem.miss)));
    if std::fs::read_dir(root.join("quarantine")).is_ok_and(|mut files| files.next().is_some()) {
        problems.insert("something is in quarantine".to_string());
    }
    if serve(subject, CacheOptions::new(root))? != *expected {
        problems.insert("the next start answers otherwise".to_string());
    }
    Ok(problems)
}

/// A folder on a file system that is mounted read-only: requests are served, the folder stays as it is.
fn read_only(bench: &mut Bench, subject: &Subject) -> Result<()> {
    let mut tally = Tally::default();
    let expected = subject.expected()?;
    for is_filled in [false, true] {
        let (inner, root) = (bench.root(format!("inner-{is_filled}")), bench.root(format!("ro-{is_filled}")));
        std::fs::create_dir_all(&inner)?;
        std::fs::create_dir_all(&root)?;
        if is_filled {
            run_one(&Task::new(subject, &inner))?;
        }
        let Some(_mount) = ReadOnlyMount::new(&inner, &root) else {
            let why = "this machine lets no read-only mount be made; EROFS and EACCES are injected above";
            bench.report("a folder mounted read-only: served, unchanged", tally, why);
            return Ok(());
        };
        let before = files_below(&inner)?;
        let done = run_one(&Task::new(subject, &root))?;
        let compiles = if is_filled { 0 } else { subject.buckets() as u64 };
        // With everything there, nothing is written and there is nothing to tell.
        let is_told = is_filled || done.events.iter().any(|event| event.contains("os error 30"));
        let holds = done.answers.contains(&expected)
            && done.answers.len() == 1
            && done.compiles == compiles
            && is_told
            && files_below(&inner)? == before;
        tally.check(holds, || format!("filled {is_filled}: {done:?}"));
    }
    bench.report("a folder mounted read-only: served, told, unchanged", tally, "bind mounts, empty and filled");
    Ok(())
}

/// A read-only view of a folder, as long as it lives.
struct ReadOnlyMount<'a>(&'a Path);

impl<'a> ReadOnlyMount<'a> {
    fn new(folder: &Path, view: &'a Path) -> Option<ReadOnlyMount<'a>> {
        let mounted = Command::new("mount").args(["--bind", "-o", "ro"]).arg(folder).arg(view).output().ok()?;
        let mount = mounted.status.success().then_some(ReadOnlyMount(view))?;
        // Some systems mount and ignore the flag.
        std::fs::write(view.join("probe"), b"").is_err().then_some(mount)
    }
}

impl Drop for ReadOnlyMount<'_> {
    fn drop(&mut self) {
        // A view that stays would keep its folder; there is nobody to tell but the person.
        if !Command::new("umount").arg(self.0).status().is_ok_and(|status| status.success()) {
            eprintln!("cannot unmount '{}'", self.0.display());
        }
    }
}

/// Paths and sizes of all files below a folder.
fn files_below(folder: &Path) -> Result<BTreeMap<std::path::PathBuf, u64>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files.extend(files_below(&entry.path())?);
        } else {
            files.insert(entry.path(), entry.metadata()?.len());
        }
    }
    Ok(files)
}
