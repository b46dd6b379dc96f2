//! Measuring tactics: every candidate of a problem runs on the same generated inputs, in turns, so that whatever else the
//! machine does meets all of them alike.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use precast_kernels::conv::{ConvTactic, conv, conv_scratch_len, pack_filter};
use precast_kernels::epilogue::{self, Bias};
use precast_kernels::isa::Exec;
use precast_program::{TuningRecord, TuningTable};

use crate::device::CpuDevice;
use crate::tactics::{Problem, Tactics};

/// Candidates of a problem: the cost model's best so many.
const QUICK_CANDIDATES: usize = 3;
const FULL_CANDIDATES: usize = 12;
/// Runs of each candidate before it is timed.
const WARM_UPS: usize = 3;
/// Rounds after which a candidate that takes this many times as long as the best is dropped.
const TRIAL_ROUNDS: usize = 3;
const DROP_FACTOR: u64 = 2;
/// Rounds at least; and at most, where they take less than `ROUNDS_TIME` together.
const ROUNDS_MIN: usize = 10;
const ROUNDS_MAX: usize = 50;
const ROUNDS_TIME: Duration = Duration::from_millis(60);

/// Whether tactics are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TuneMode {
    /// Not; records that are there are used.
    #[default]
    Off,
    /// The cost model's best three.
    Quick,
    /// All, up to twelve.
    Full,
}

impl TuneMode {
    /// Every mode.
    pub const ALL: [TuneMode; 3] = [TuneMode::Off, TuneMode::Quick, TuneMode::Full];

    /// The word of the option `--tune`.
    pub fn name(self) -> &'static str {
        match self {
            TuneMode::Off => "off",
            TuneMode::Quick => "quick",
            TuneMode::Full => "full",
        }
    }

    /// How many of so many candidates are measured.
    pub fn candidates(self, of: usize) -> usize {
        match self {
            TuneMode::Off => 0,
            TuneMode::Quick => of.min(QUICK_CANDIDATES),
            TuneMode::Full => of.min(FULL_CANDIDATES),
        }
    }
}

impl FromStr for TuneMode {
    type Err = String;
    fn from_str(text: &str) -> Result<TuneMode, String> {
        let found = TuneMode::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| format!("'{text}' is not off, quick or full"))
    }
}

/// Whether and how long tactics are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TuneOptions {
    /// Which candidates.
    pub mode: TuneMode,
    /// Seconds that may be spent in all; what is left over is the cost model's.
    pub seconds: Option<f64>,
}

/// Measures within a budget. One problem at a time, whoever asks.
pub struct Tuner {
    options: TuneOptions,
    spent: Mutex<Duration>,
}

impl Tuner {
    /// A tuner with its whole budget.
    pub fn new(options: TuneOptions) -> Tuner {
        Tuner { options, spent: Mutex::default() }
    }

    /// Whether it measures at all, and which candidates.
    pub fn mode(&self) -> TuneMode {
        self.options.mode
    }

    /// Measures those problems that wait for a record and decides them. Gives the new records. Without the instructions
    /// or threads that the problems are for, and when the budget is spent, the cost model decides.
    pub fn tune(&self, tactics: &Tactics, problems: &[Problem], device: &CpuDevice) -> TuningTable {
        let mut records = TuningTable::default();
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(exec) = device.exec_for(tactics.machine()) else { return records };
        for problem in problems {
            let candidates = &problem.candidates[..self.mode().candidates(problem.candidates.len())];
            if !tactics.is_open(&problem.key, candidates.len()) || candidates.len() < 2 {
                continue;
            }
            if self.options.seconds.is_some_and(|seconds| spent.as_secs_f64() >= seconds) {
                // A record with fewer candidates than asked for is better than none.
                tactics.record(&problem.key);
                continue;
            }
            let begun = Instant::now();
            let record = measure(problem, candidates, exec);
            *spent += begun.elapsed();
            tactics.decide(&problem.key, Some(record.clone()));
            records.add(&problem.key, record);
        }
        records
    }
}

/// A candidate with what it needs to run, and its times so far.
struct Candidate {
    tactic: ConvTactic,
    filter: Vec<f32>,
    scratch: Vec<f32>,
    times_ns: Vec<u64>,
}

/// The times of the candidates of a problem.
pub fn measure(problem: &Problem, candidates: &[ConvTactic], exec: Exec<'_>) -> TuningRecord {
    let shape = &problem.shape;
    let channels = shape.in_channels / shape.groups.max(1);
    let mut generator = Generator(1);
    let x = generator.floats(shape.in_channels * shape.in_height * shape.in_width);
    let weights = generator.floats(shape.out_channels * channels * shape.filter_height * shape.filter_width);
    let bias = generator.floats(shape.out_channels);
    let outputs = shape.out_channels * shape.out_height * shape.out_width;
    let residual = problem.epilogue.residual.map(|_| generator.floats(outputs));
    let epilogue = epilogue::Epilogue {
        bias: if problem.has_bias { Bias::Rows(&bias) } else { Bias::None },
        residual: residual.as_deref(),
        residual_place: problem.epilogue.residual_place,
        activation: problem.epilogue.activation,
        affine: (problem.epilogue.affine != [None; 2]).then_some(epilogue::Affine { scale: 0.5, shift: 0.25 }),
    };
    let mut y = vec![0.0; outputs];
    let threads = exec.threads();
    let mut candidates: Vec<Candidate> = candidates
        .iter()
        .map(|&tactic| Candidate {
            tactic,
            filter: pack_filter(exec.isa(), tactic, shape, &weights),
            scratch: vec![0.0; conv_scratch_len(exec.isa(), threads, tactic, shape)],
            times_ns: Vec::new(),
        })
        .collect();
    let mut run = |candidate: &mut Candidate| {
        let Candidate { tactic, filter, scratch, .. } = candidate;
        conv(exec, *tactic, shape, &x, filter, &epilogue, scratch, &mut y);
    };
    for candidate in &mut candidates {
        (0..WARM_UPS).for_each(|_| run(candidate));
    }
    let (mut dropped, mut rounds) = (Vec::new(), 0);
    let begun = Instant::now();
    while rounds < ROUNDS_MIN || (rounds < ROUNDS_MAX && begun.elapsed() < ROUNDS_TIME) {
        for candidate in &mut candidates {
            let started = Instant::now();
            run(candidate);
            candidate.times_ns.push(started.elapsed().as_nanos() as u64);
        }
        rounds += 1;
        if rounds == TRIAL_ROUNDS {
            // By their best runs: one that the system interrupted is not behind.
            let best = candidates.iter().map(Candidate::least_ns).min().unwrap_or(0);
            dropped.extend(candidates.extract_if(.., |candidate| candidate.least_ns() > best * DROP_FACTOR));
        }
    }
    let all = candidates.iter().chain(&dropped);
    let times_ns: BTreeMap<String, u64> =
        all.map(|candidate| (candidate.tactic.name().to_string(), candidate.median_ns())).collect();
    TuningRecord::of(times_ns, rounds as u32).expect("a problem has candidates")
}

impl Candidate {
    fn least_ns(&self) -> u64 {
        self.times_ns.iter().copied().min().unwrap_or(u64::MAX)
    }

    fn median_ns(&self) -> u64 {
        let mut sorted = self.times_ns.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or(u64::MAX)
    }
}

/// Numbers from -1 to 1, the same on every machine.
struct Generator(u64);

impl Generator {
    fn floats(&mut self, len: usize) -> Vec<f32> {
        let mut next = || {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next()).collect()
    }
}
