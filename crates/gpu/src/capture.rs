//! When a Program is captured: the states of one capture slot, which is a Program in one mode in one context. Pure: what is
//! captured is a parameter, and the time is asked of a clock that tests set.
//!
//! Cold → Warm after two ordinary runs → Captured once recorded, instantiated and launched → Cold when evicted. A failure
//! poisons the slot for a while that doubles; only the slot, never the Session. A slot that is rebuilt too often is left
//! uncaptured for many runs, then tried again.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use precast_program::{PoisonReason, StepsReason};

/// Ordinary runs before a Program is captured: they load machine code and touch all memory.
pub(crate) const WARM_RUNS: u32 = 2;
/// How long a slot stays poisoned the first time; doubles with every failure that follows.
const COOL_DOWN_FIRST: Duration = Duration::from_secs(1);
/// The longest that a slot stays poisoned.
const COOL_DOWN_MAX: Duration = Duration::from_secs(300);
/// Fallbacks among the last 64 runs that make a slot rest.
const FALLBACKS_MAX: u32 = 16;
/// Runs that a resting slot rests.
const RESTING_RUNS: u32 = 1024;

/// What tells the time, from a start of its own.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// The time as it goes by.
    pub fn system() -> Clock {
        let start = Instant::now();
        Clock(Arc::new(move || start.elapsed()))
    }

    /// A clock that somebody else sets.
    pub fn of(now: impl Fn() -> Duration + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(now))
    }

    fn now(&self) -> Duration {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({:?})", self.now())
    }
}

/// What a run of a slot does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Launches step by step.
    Steps(StepsReason),
    /// Records, then launches what was recorded.
    Capture,
    /// Launches what was recorded.
    Replay,
}

/// One Program in one mode in one context, and what was recorded of it.
#[derive(Debug)]
pub(crate) struct CaptureSlot<G> {
    state: State<G>,
    /// Failures since it was last replayed.
    failures: u32,
    fallbacks: Fallbacks,
}

#[derive(Debug, PartialEq, Eq)]
enum State<G> {
    Cold { runs: u32 },
    Warm,
    Captured(G),
    Poisoned { why: PoisonReason, until: Duration },
}

impl<G> Default for CaptureSlot<G> {
    fn default() -> CaptureSlot<G> {
        CaptureSlot { state: State::Cold { runs: 0 }, failures: 0, fallbacks: Fallbacks::default() }
    }
}

impl<G> CaptureSlot<G> {
    /// What the run that begins does. Says whether captures are wanted at all.
    pub(crate) fn decide(&mut self, is_on: bool, clock: &Clock) -> Decision {
        let is_resting = self.fallbacks.begin_run();
        if !is_on {
            return Decision::Steps(StepsReason::Off);
        }
        if is_resting {
            return Decision::Steps(StepsReason::Resting);
        }
        if let State::Poisoned { why, until } = self.state {
            if clock.now() < until {
                return Decision::Steps(StepsReason::Poisoned(why));
            }
            self.state = State::Cold { runs: 0 };
        }
        match self.state {
            State::Cold { .. } => Decision::Steps(StepsReason::Cold),
            State::Warm => Decision::Capture,
            State::Captured(_) => Decision::Replay,
            State::Poisoned { why, .. } => Decision::Steps(StepsReason::Poisoned(why)),
        }
    }

    /// An ordinary run has succeeded.
    pub(crate) fn ran_steps(&mut self) {
        if let State::Cold { runs } = self.state {
            self.state = if runs + 1 < WARM_RUNS { State::Cold { runs: runs + 1 } } else { State::Warm };
        }
    }

    /// It was recorded, instantiated and launched.
    pub(crate) fn captured(&mut self, graphs: G) {
        debug_assert!(matches!(self.state, State::Warm), "only a warm slot is captured");
        self.state = State::Captured(graphs);
    }

    /// What was recorded.
    pub(crate) fn graphs(&self) -> Option<&G> {
        match &self.state {
            State::Captured(graphs) => Some(graphs),
            State::Cold { .. } | State::Warm | State::Poisoned { .. } => None,
        }
    }

    /// It was replayed: earlier failures no longer count.
    pub(crate) fn replayed(&mut self) {
        self.failures = 0;
    }

    /// What was recorded is gone, to make room for others. Being built again and again is a fallback.
    pub(crate) fn evicted(&mut self) {
        self.state = State::Cold { runs: 0 };
        self.fallbacks.note();
    }

    /// Recording or launching failed: it is tried again after a while. Gives what was recorded, to be dropped.
    pub(crate) fn poison(&mut self, why: PoisonReason, clock: &Clock) -> Option<G> {
        let cool_down = COOL_DOWN_FIRST.saturating_mul(1 << self.failures.min(16)).min(COOL_DOWN_MAX);
        self.failures = self.failures.saturating_add(1);
        let state = std::mem::replace(&mut self.state, State::Poisoned { why, until: clock.now() + cool_down });
        match state {
            State::Captured(graphs) => Some(graphs),
            State::Cold { .. } | State::Warm | State::Poisoned { .. } => None,
        }
    }
}

/// Fallbacks of the last 64 runs, one bit each, and how many runs are left to rest.
#[derive(Debug, Default)]
pub(crate) struct Fallbacks {
    recent: u64,
    resting: u32,
}

impl Fallbacks {
    /// Counts a run. Says whether it is one of rest.
    pub(crate) fn begin_run(&mut self) -> bool {
        if self.resting > 0 {
            self.resting -= 1;
            return true;
        }
        self.recent <<= 1;
        false
    }

    /// The run that has begun is a fallback. Too many lately are followed by rest.
    pub(crate) fn note(&mut self) {
        self.recent |= 1;
        if self.recent.count_ones() >= FALLBACKS_MAX {
            (self.recent, self.resting) = (0, RESTING_RUNS);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A clock in seconds, and what sets it.
    fn clock() -> (Clock, Arc<AtomicU64>) {
        let seconds = Arc::new(AtomicU64::new(0));
        let read = seconds.clone();
        (Clock::of(move || Duration::from_secs(read.load(Ordering::Relaxed))), seconds)
    }

    fn warm(clock: &Clock) -> CaptureSlot<u32> {
        let mut slot = CaptureSlot::default();
        for _ in 0..WARM_RUNS {
            assert_eq!(slot.decide(true, clock), Decision::Steps(StepsReason::Cold));
            slot.ran_steps();
        }
        slot
    }

    #[test]
    fn two_runs_warm_a_slot_and_the_third_captures() {
        let (clock, _) = clock();
        let mut slot = warm(&clock);
        assert_eq!(slot.decide(true, &clock), Decision::Capture);
        slot.captured(7);
        assert_eq!((slot.decide(true, &clock), slot.graphs()), (Decision::Replay, Some(&7)));
        assert_eq!(slot.decide(false, &clock), Decision::Steps(StepsReason::Off));
        assert_eq!(slot.decide(true, &clock), Decision::Replay);
        slot.evicted();
        assert_eq!(slot.decide(true, &clock), Decision::Steps(StepsReason::Cold));
    }

    #[test]
    fn a_run_that_failed_does_not_warm() {
        let (clock, _) = clock();
        let mut slot: CaptureSlot<u32> = CaptureSlot::default();
        for _ in 0..10 {
            assert_eq!(slot.decide(true, &clock), Decision::Steps(StepsReason::Cold));
        }
    }

    #[test]
    fn a_poisoned_slot_cools_down_twice_as_long_each_time_up_to_five_minutes() {
        let (clock, seconds) = clock();
        let mut slot = warm(&clock);
        for expected in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            assert_eq!(slot.decide(true, &clock), Decision::Capture);
            assert_eq!(slot.poison(PoisonReason::Record, &clock), None);
            seconds.fetch_add(expected - 1, Ordering::Relaxed);
            assert_eq!(slot.decide(true, &clock), Decision::Steps(StepsReason::Poisoned(PoisonReason::Record)));
            slot.ran_steps();
            seconds.fetch_add(1, Ordering::Relaxed);
            for _ in 0..WARM_RUNS {
                assert_eq!(slot.decide(true, &clock), Decision::Steps(StepsReason::Cold));
                slot.ran_steps();
            }
        }
        assert_eq!(slot.decide(true, &clock), Decision::Capture);
        slot.captured(7);
        slot.replayed();
        assert_eq!(slot.poison(PoisonReason::Launch, &clock), Some(7));
        seconds.fetch_add(1, Ordering::Relaxed);
        assert_eq!(slot.decide(true, &clock), Decision::Steps(StepsReason::Cold));
    }

    #[test]
    fn sixteen_fallbacks_in_sixty_four_runs_are_followed_by_rest() {
        let mut fallbacks = Fallbacks::default();
        // One in five runs is 13 in 64: it may go on for ever.
        for run in 0..1000 {
            assert!(!fallbacks.begin_run(), "{run}");
            if run % 5 == 0 {
                fallbacks.note();
            }
        }
        let mut noted = 0;
        while !fallbacks.begin_run() {
            fallbacks.note();
            noted += 1;
        }
        assert!(noted <= FALLBACKS_MAX, "{noted}");
        for _ in 1..RESTING_RUNS {
            assert!(fallbacks.begin_run());
        }
        assert!(!fallbacks.begin_run());
    }

    #[test]
    fn a_slot_that_is_evicted_again_and_again_rests() {
        let (clock, _) = clock();
        let mut slot = CaptureSlot::default();
        let mut captures = 0;
        for _ in 0..3 * FALLBACKS_MAX + RESTING_RUNS {
            match slot.decide(true, &clock) {
                Decision::Capture => {
                    slot.captured(captures);
                    captures += 1;
                    slot.evicted();
                }
                Decision::Steps(_) => slot.ran_steps(),
                Decision::Replay => panic!("it was evicted"),
            }
        }
        assert_eq!(captures, FALLBACKS_MAX);
        assert_eq!(slot.decide(true, &clock), Decision::Capture, "the runs of its rest have warmed it");
    }
}
