//! One process of many that use a cache: opens a model on it, runs requests, and says what happened. It waits for a word
//! before it begins, so that many begin at once, and may be told to die at one of its disk calls.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use object_store::local::LocalFileSystem;
use precast::{CacheEvent, CacheOptions, ProgramCache, RemoteOptions};
use precast_cache::Call;
use precast_cache::fault::{Fault, FaultyDisk};
use serde::{Deserialize, Serialize};

use crate::torture::cache_model::Subject;
use crate::torture::cache_racy::RacyStore;

/// How long uploads may take.
const UPLOADS_WAIT: Duration = Duration::from_secs(60);

/// No locks available, as a number of Linux.
const ENOLCK: i32 = 37;

/// What a process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// The model and the requests.
    pub subject: Subject,
    /// Folder of the cache.
    pub root: PathBuf,
    /// Threads that open the model at once.
    pub openers: usize,
    /// Whether each thread has a cache of its own on the folder.
    pub has_cache_each: bool,
    /// At which disk call to die.
    pub kill_at: Option<(usize, Moment)>,
    /// Whether file locks work.
    pub has_locks: bool,
    /// Whether temps of dead writers are swept whatever their age.
    pub sweeps_all: bool,
    /// A store shared with others.
    pub store: Option<Store>,
}

impl Task {
    /// One thread on a folder.
    pub fn new(subject: &Subject, root: &Path) -> Task {
        Task {
            subject: subject.clone(),
            root: root.to_path_buf(),
            openers: 1,
            has_cache_each: false,
            kill_at: None,
            has_locks: true,
            sweeps_all: false,
            store: None,
        }
    }
}

/// When to die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// Before the call.
    Before,
    /// In the middle of a write.
    Halfway,
    /// After the call.
    After,
}

/// A store shared with others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Store {
    /// By its address, with options.
    Url(String, Vec<(String, String)>),
    /// A folder whose conditional puts are not conditional.
    Racy(PathBuf),
}

/// What a process says that lived to the end.
#[derive(Debug, Serialize, Deserialize)]
pub struct Done {
    /// Programs compiled.
    pub compiles: u64,
    /// All different answers of its threads.
    pub answers: BTreeSet<String>,
    /// Longest wait for a lock of a key.
    pub lock_wait_ms: f64,
    /// Disk calls made.
    pub calls: usize,
    /// Entries that were found damaged.
    pub quarantined: usize,
    /// What the cache told.
    pub events: Vec<String>,
}

/// A process that is ready to begin.
pub struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    /// Starts a process and waits until it is ready.
    pub fn start(task: &Task) -> Result<Running> {
        Running::start_by(Command::new(std::env::current_exe()?), task)
    }

    /// The same by way of another program, whose last argument is this one.
    pub fn start_by(mut command: Command, task: &Task) -> Result<Running> {
        command.arg("torture-child").arg(serde_json::to_string(task)?);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a child")?;
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        ensure!(line == "ready\n", "the child said '{}'", line.trim_end());
        Ok(Running { child, stdout })
    }

    /// Lets it begin.
    pub fn go(&mut self) -> Result<()> {
        let mut stdin = self.child.stdin.take().context("it has begun already")?;
        Ok(stdin.write_all(b"go\n")?)
    }

    /// Kills it as `kill -9` does.
    pub fn kill(mut self) -> Result<ExitStatus> {
        self.child.kill()?;
        Ok(self.child.wait()?)
    }

    /// Waits for its end; what it said, or how it died.
    pub fn end(mut self) -> Result<Result<Done, ExitStatus>> {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        if !status.success() {
            return Ok(Err(status));
        }
        Ok(Ok(serde_json::from_str(&text).with_context(|| format!("unexpected answer '{text}'"))?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a process, lets it run and gives what it said.
pub fn run_one(task: &Task) -> Result<Done> {
    let mut running = Running::start(task)?;
    running.go()?;
    match running.end()? {
        Ok(done) => Ok(done),
        Err(status) => bail!("the child ended with {status}"),
    }
}

/// Starts all, lets them run at once and gives what they said.
pub fn run_all(tasks: &[Task]) -> Result<Vec<Done>> {
    let mut all = tasks.iter().map(Running::start).collect::<Result<Vec<_>>>()?;
    all.iter_mut().try_for_each(Running::go)?;
    let ended = all.into_iter().map(Running::end).collect::<Result<Vec<_>>>()?;
    ended.into_iter().map(|end| end.map_err(|status| anyhow::anyhow!("a child ended with {status}"))).collect()
}

/// The child's side.
pub fn serve(task: &str) -> Result<()> {
    let task: Task = serde_json::from_str(task)?;
    println!("ready");
    std::io::stdin().lock().read_line(&mut String::new())?;
    println!("{}", serde_json::to_string(&work(&task)?)?);
    Ok(())
}

fn work(task: &Task) -> Result<Done> {
    let watch = Arc::new(Watch::default());
    let shared = if task.has_cache_each { None } else { Some(open_cache(task, &watch)?) };
    let compiles = AtomicUsize::new(0);
    let answers = Mutex::new(BTreeSet::new());
    let barrier = Barrier::new(task.openers);
    let open_and_run = || -> Result<()> {
        barrier.wait();
        let cache = shared.clone().map_or_else(|| open_cache(task, &watch), Ok)?;
        let session = task.subject.open(Arc::clone(&cache))?;
        let answer = task.subject.answers(&session)?;
        answers.lock().unwrap_or_else(PoisonError::into_inner).insert(answer);
        compiles.fetch_add(session.compiles() as usize, Ordering::Relaxed);
        ensure!(cache.flush(UPLOADS_WAIT), "uploads do not end");
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..task.openers).map(|_| scope.spawn(open_and_run)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
    })?;
    drop(shared);
    let watch = watch.0.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Done {
        compiles: compiles.into_inner() as u64,
        answers: answers.into_inner().unwrap_or_else(PoisonError::into_inner),
        lock_wait_ms: watch.lock_wait.as_secs_f64() * 1e3,
        calls: watch.calls,
        quarantined: watch.quarantined,
        events: watch.events.clone(),
    })
}

/// What is seen of a cache from outside.
#[derive(Default)]
struct Watch(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    calls: usize,
    lock_wait: Duration,
    /// When each lock was first asked for.
    asked: BTreeMap<PathBuf, Instant>,
    quarantined: usize,
    events: Vec<String>,
}

/// Events that are kept; a crowd has many.
const EVENTS_MAX: usize = 20;

fn open_cache(task: &Task, watch: &Arc<Watch>) -> Result<Arc<ProgramCache>> {
    let (seen, told, kill_at, has_locks) = (Arc::clone(watch), Arc::clone(watch), task.kill_at, task.has_locks);
    let disk = FaultyDisk::new(move |call, path| {
        let mut seen = seen.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.calls += 1;
        let is_key_lock = path.extension().is_some_and(|ending| ending == "lock") && !path.ends_with("gc.lock");
        match call {
            Call::OpenLock if is_key_lock => {
                seen.asked.entry(path.to_path_buf()).or_insert_with(Instant::now);
            }
            // The first thing that is done with a lock that was won.
            Call::SameFile if is_key_lock => {
                let waited = seen.asked.remove(path).map(|asked| asked.elapsed()).unwrap_or_default();
                seen.lock_wait = seen.lock_wait.max(waited);
            }
            _ => {}
        }
        if call == Call::TryLock && !has_locks {
            return Some(Fault::Before(ENOLCK));
        }
        let (at, moment) = kill_at?;
        let fault = match moment {
            Moment::Before => Fault::KillBefore,
            Moment::Halfway => Fault::KillHalfway,
            Moment::After => Fault::KillAfter,
        };
        (seen.calls == at).then_some(fault)
    });
    let events = Arc::new(move |event: &CacheEvent| {
        let mut seen = told.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.quarantined += usize::from(matches!(event, CacheEvent::Quarantined { .. }));
        if seen.events.len() < EVENTS_MAX {
            seen.events.push(event.to_string());
        }
    });
    let mut options = CacheOptions { disk: Arc::new(disk), events, ..CacheOptions::new(&task.root) };
    if task.sweeps_all {
        options.orphan_age = Duration::ZERO;
    }
    match &task.store {
        None => {}
        Some(Store::Url(url, pairs)) => {
            options.remote = Some(RemoteOptions { options: pairs.clone(), ..RemoteOptions::new(url) });
        }
        Some(Store::Racy(folder)) => {
            options.remote = Some(RemoteOptions::new("racy://folder"));
            options.store = Some(Arc::new(RacyStore(LocalFileSystem::new_with_prefix(folder)?)));
        }
    }
    Ok(Arc::new(ProgramCache::open(options)?))
}
