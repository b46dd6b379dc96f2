//! Latency of a model, ours and onnxruntime's: each in a process of its own, in turns, so that both meet the same noise.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Result;
use precast::{Model, Ready, Runner, RunnerOptions};
use serde::{Deserialize, Serialize};

use crate::inputs::Named;
use crate::onnxruntime::{self, Measurer};
use crate::worker::{Request, Worker, ask_own};

/// Threads of a measured run.
const THREADS: usize = 2;
/// Turns, of which the median counts.
const ROUNDS: usize = 3;
/// Length of one turn of one side.
const ROUND_SECONDS: f64 = 1.5;
/// Runs before the clock starts: caches, page faults, clock rates.
const WARM_UP_RUNS: usize = 2;

/// The answer to a measurement.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Milliseconds {
    /// Median milliseconds of a run.
    pub ms: f64,
}

/// Latency of both sides.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Speed {
    /// Median milliseconds of ours.
    pub precast_ms: f64,
    /// Median milliseconds of onnxruntime's.
    pub onnxruntime_ms: f64,
    /// Ours by theirs: below 1, we are faster.
    pub ratio: f64,
}

/// Measures both sides on the inputs of a folder.
pub fn compare_speed(model: &Path, folder: &Path) -> Result<Speed> {
    let mut theirs = Measurer::start(model, THREADS, folder)?;
    let mut ours = Worker::start_own(Stdio::inherit())?;
    let request = |seconds: f64| Request::Measure {
        model: model.to_path_buf(),
        folder: folder.to_path_buf(),
        threads: THREADS,
        seconds,
    };
    let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        our_times.push(ask_own::<Milliseconds>(&mut ours, &request(ROUND_SECONDS))?.ms);
        their_times.push(theirs.measure(ROUND_SECONDS)?);
    }
    let (precast_ms, onnxruntime_ms) = (median(our_times), median(their_times));
    Ok(Speed { precast_ms, onnxruntime_ms, ratio: precast_ms / onnxruntime_ms })
}

/// The middle value, or the lower one of the two.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}

/// A model made ready to be measured.
pub struct Measuring {
    /// Its file.
    pub model: PathBuf,
    runner: Runner,
    inputs: Named,
    /// Where the model is one Program; else every run goes through the runner.
    ready: Option<Ready>,
}

impl Measuring {
    /// Compiles a model for the inputs of a folder and warms it up.
    pub fn open(model: &Path, folder: &Path, threads: usize) -> Result<Measuring> {
        let runner = Runner::new(Model::open(model)?, RunnerOptions { threads, ..RunnerOptions::default() })?;
        let inputs = onnxruntime::read_inputs(folder)?;
        let ready = runner.ready(&inputs)?;
        let mut measuring = Measuring { model: model.to_path_buf(), runner, inputs, ready };
        for _ in 0..WARM_UP_RUNS {
            measuring.run()?;
        }
        Ok(measuring)
    }

    /// Runs for some seconds.
    pub fn measure(&mut self, seconds: f64) -> Result<Milliseconds> {
        let mut times = Vec::new();
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        while times.is_empty() || Instant::now() < end {
            let start = Instant::now();
            self.run()?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        Ok(Milliseconds { ms: median(times) })
    }

    fn run(&mut self) -> Result<()> {
        match &mut self.ready {
            Some(ready) => ready.run()?,
            None => {
                self.runner.run(&self.inputs)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_not_a_mean() {
        assert_eq!(median(vec![9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 1.0);
    }
}
