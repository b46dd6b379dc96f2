//! Opening all Buckets: loaded and compiled in parallel, the largest first, with progress that says what is known about
//! the time left and how it is known.

use std::sync::Arc;
use std::time::{Duration, Instant};

use precast_program::Bucket;

use crate::error::SessionError;
use crate::programs::Flight;
use crate::report::Origin;

/// Progress is told at least this often.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What opening does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Loading what the cache has, compiling what it does not.
    Programs,
    /// Measuring what each Bucket costs.
    Measuring,
    /// Nothing is left to do.
    Ready,
}

/// How the time left is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtaBasis {
    /// From the Buckets of this start that are done.
    Modelled,
    /// Nothing is done yet, so it is not.
    Unknown,
}

/// How far opening has come.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// What is done at the moment.
    pub phase: Phase,
    /// Buckets that are done.
    pub done: usize,
    /// Buckets in all.
    pub total: usize,
    /// Buckets that were compiled, so far.
    pub compiled: usize,
    /// The Bucket that was done last.
    pub bucket: Option<Bucket>,
    /// Time since opening began.
    pub elapsed: Duration,
    /// Time left, if it can be said.
    pub eta: Option<Duration>,
    /// How it is known.
    pub basis: EtaBasis,
}

impl Progress {
    /// Nothing done yet, and nothing known about the time left.
    pub(crate) fn new(phase: Phase, total: usize, begun: Instant) -> Progress {
        let (done, compiled, bucket, eta) = (0, 0, None, None);
        Progress { phase, done, total, compiled, bucket, elapsed: begun.elapsed(), eta, basis: EtaBasis::Unknown }
    }
}

/// Waits for Buckets in order and tells how it goes. The first error ends it; the others go on in the background.
pub(crate) fn wait_for(
    flights: &[(Bucket, Arc<Flight>)],
    begun: Instant,
    tell: &dyn Fn(&Progress),
) -> Result<usize, SessionError> {
    let mut compiled = 0;
    let mut progress = Progress::new(Phase::Programs, flights.len(), begun);
    for (done, (bucket, flight)) in flights.iter().enumerate() {
        let entry = loop {
            match flight.wait(Some(TELL_EVERY)) {
                Some(result) => break result?,
                None => {
                    progress.elapsed = begun.elapsed();
                    tell(&progress);
                }
            }
        };
        compiled += usize::from(entry.origin == Origin::Compiled);
        let elapsed = begun.elapsed();
        let left = flights.len() - done - 1;
        progress = Progress {
            done: done + 1,
            compiled,
            bucket: Some(bucket.clone()),
            eta: Some(elapsed.mul_f64(left as f64 / (done + 1) as f64)),
            basis: EtaBasis::Modelled,
            elapsed,
            ..progress
        };
        tell(&progress);
    }
    Ok(compiled)
}
