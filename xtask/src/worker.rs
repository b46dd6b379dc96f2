//! Work in child processes: one JSON line a request, one JSON line an answer. A child that panics answers with an error;
//! one that crashes or hangs costs the answer it owes and is started again.

use std::io::{self, BufRead, BufReader, Write};
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use precast_driver::Vendor;
use precast_gpu::{KernelCompiler, RuntimeCompiler};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::case::{CaseRunner, TargetName};
use crate::fuzz::{self, FuzzTarget, Fuzzer};
use crate::measure::Measuring;
use crate::models::BatchChecker;
use crate::peak;
use crate::ranked::Ranking;

/// What a worker can be asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "kebab-case")]
pub enum Request {
    /// Run a conformance case; the answer is a [`crate::case::CaseReport`].
    Case { folder: PathBuf, target: TargetName },
    /// Run a model on the inputs of a folder and compare with the outputs there; a [`crate::models::BatchReport`].
    Batch { model: PathBuf, folder: PathBuf, ranking: Option<Ranking> },
    /// Fuzz a target with the inputs of some seeds; a [`crate::fuzz::BatchReport`].
    Fuzz { target: FuzzTarget, first: u64, count: u64 },
    /// Measure a model on the inputs of a folder; [`crate::measure::Milliseconds`].
    Measure { model: PathBuf, folder: PathBuf, threads: usize, seconds: f64 },
    /// Run a model once on the inputs of a folder, compiled from nothing or on Programs of a cache;
    /// [`crate::peak::PeakMemory`].
    Peak { model: PathBuf, folder: PathBuf, threads: usize, cache: Option<PathBuf> },
    /// Compile a kernel with HIPRTC; the bytes of its machine code.
    HipKernel { text: String, arch: String },
}

/// A child process that answers requests.
pub struct Worker {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

/// How a request ended.
pub enum Answer {
    /// With a line.
    Line(String),
    /// The process ended instead; how.
    Died(String),
    /// Nothing came in time.
    TimedOut,
}

/// For answers whose length has no limit of its own.
pub const PATIENCE: Duration = Duration::from_secs(900);

impl Worker {
    /// Starts a process.
    pub fn start(command: &mut Command) -> Result<Worker> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("cannot start '{name}'"))?;
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = child.stdout.take().expect("stdout is piped");
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Worker { child, stdin, lines })
    }

    /// Starts this program as a worker.
    pub fn start_own(stderr: Stdio) -> Result<Worker> {
        Worker::start(Command::new(std::env::current_exe()?).arg("worker").stderr(stderr))
    }

    /// Sends a line and waits for a line.
    pub fn ask(&mut self, request: &str, timeout: Duration) -> Answer {
        let sent = writeln!(self.stdin, "{request}").and_then(|()| self.stdin.flush());
        match self.lines.recv_timeout(timeout) {
            Ok(line) if sent.is_ok() => Answer::Line(line),
            Ok(_) | Err(RecvTimeoutError::Disconnected) => {
                Answer::Died(self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string()))
            }
            Err(RecvTimeoutError::Timeout) => Answer::TimedOut,
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a request and reads the answer as JSON.
pub fn ask_json<T: DeserializeOwned>(worker: &mut Worker, request: &impl Serialize) -> Result<T> {
    match worker.ask(&serde_json::to_string(request)?, PATIENCE) {
        Answer::Line(line) => serde_json::from_str(&line).with_context(|| format!("unexpected answer '{line}'")),
        Answer::Died(status) => bail!("the process ended: {status}"),
        Answer::TimedOut => bail!("no answer after {} s", PATIENCE.as_secs()),
    }
}

/// Sends a request to a worker of our own, whose answers are a result or a reason.
pub fn ask_own<T: DeserializeOwned>(worker: &mut Worker, request: &Request) -> Result<T> {
    ask_json::<Result<T, String>>(worker, request)?.map_err(anyhow::Error::msg)
}

/// Answers the requests of stdin, one a line, until it ends.
pub fn serve() -> Result<()> {
    let mut state = State::default();
    for line in io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let answered = catch_unwind(AssertUnwindSafe(|| state.answer(request)));
        let answer = answered.unwrap_or_else(|payload| {
            // What the panic left behind is not to be trusted.
            state = State::default();
            Err(anyhow::anyhow!("panicked: {}", panic_message(payload.as_ref())))
        });
        let answer = answer.map_err(|error| format!("{error:#}"));
        println!("{}", serde_json::to_string(&answer)?);
    }
    Ok(())
}

/// What a worker keeps from one request to the next.
#[derive(Default)]
struct State {
    checker: Option<BatchChecker>,
    measuring: Option<Measuring>,
    hiprtc: Option<RuntimeCompiler>,
    fuzzer: Option<Fuzzer>,
    cases: CaseRunner,
}

impl State {
    fn answer(&mut self, request: Request) -> Result<serde_json::Value> {
        Ok(match request {
            Request::Case { folder, target } => serde_json::to_value(self.cases.run(&folder, target)?)?,
            Request::Batch { model, folder, ranking } => {
                let checker = match self.checker.take().filter(|checker| checker.model == model) {
                    Some(checker) => checker,
                    None => BatchChecker::open(&model)?,
                };
                serde_json::to_value(self.checker.insert(checker).check(&folder, ranking)?)?
            }
            Request::Fuzz { target: FuzzTarget::Differential, first, count } => {
                serde_json::to_value(fuzz::run_graphs(first, count)?)?
            }
            Request::Fuzz { target, first, count } => {
                let fuzzer = match self.fuzzer.take().filter(|fuzzer| fuzzer.target == target) {
                    Some(fuzzer) => fuzzer,
                    None => Fuzzer::new(target)?,
                };
                serde_json::to_value(self.fuzzer.insert(fuzzer).run_inputs(first, count))?
            }
            Request::Measure { model, folder, threads, seconds } => {
                let measuring = match self.measuring.take().filter(|measuring| measuring.model == model) {
                    Some(measuring) => measuring,
                    None => Measuring::open(&model, &folder, threads)?,
                };
                serde_json::to_value(self.measuring.insert(measuring).measure(seconds)?)?
            }
            Request::Peak { model, folder, threads, cache } => {
                serde_json::to_value(peak::run_once(&model, &folder, threads, cache.as_deref())?)?
            }
            Request::HipKernel { text, arch } => {
                let hiprtc = match self.hiprtc.take() {
                    Some(hiprtc) => hiprtc,
                    None => RuntimeCompiler::open(Vendor::Hip)?,
                };
                let code = self.hiprtc.insert(hiprtc).compile(&text, &arch).map_err(anyhow::Error::msg)?;
                serde_json::to_value(code.len())?
            }
        })
    }
}

fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_string())
}

/// Runs something on a thread for each core until all of them are through; the first error counts.
pub fn on_all_cores(run: &(dyn Fn() -> Result<()> + Sync)) -> Result<()> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(run)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
