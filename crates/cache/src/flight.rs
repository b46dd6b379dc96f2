//! Single flight inside a process: of all threads that want one Program, one leads and the others share what comes of
//! it. A leader that panics or gives up wakes the others, and one of them leads (spec C11).

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use precast_program::Program;

use crate::artifact::Wanted;
use crate::key::ProgramKey;

/// An error of any type, shared by those who waited for it.
pub(crate) type SharedError = Arc<dyn Any + Send + Sync>;

/// All flights of a cache. A key may have several where digests collide; the records tell them apart.
#[derive(Default)]
pub(crate) struct Flights(Mutex<BTreeMap<ProgramKey, Vec<Arc<Flight>>>>);

struct Flight {
    record: Arc<[u8]>,
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    Flying,
    Landed(Arc<Program>),
    Failed(SharedError),
    Abandoned,
}

/// What a caller is to do.
pub(crate) enum Seat<'a> {
    /// Make the Program.
    Leader(Leader<'a>),
    /// Take this one.
    Landed(Arc<Program>),
    /// Take this error.
    Failed(SharedError),
}

/// The duty to land a flight. Dropping it without doing so abandons the flight.
pub(crate) struct Leader<'a> {
    flights: &'a Flights,
    key: ProgramKey,
    flight: Arc<Flight>,
}

impl Flights {
    /// Leads, or waits for the leader. Where a leader gave up, this returns as the next one.
    pub(crate) fn enter(&self, wanted: &Wanted) -> Seat<'_> {
        loop {
            let flight = {
                let mut flights = lock(&self.0);
                let same_key = flights.entry(wanted.key).or_default();
                match same_key.iter().find(|flight| flight.record == wanted.bytes) {
                    Some(flight) => Arc::clone(flight),
                    None => {
                        let (state, changed) = (Mutex::new(State::Flying), Condvar::new());
                        let flight = Arc::new(Flight { record: Arc::clone(&wanted.bytes), state, changed });
                        same_key.push(Arc::clone(&flight));
                        return Seat::Leader(Leader { flights: self, key: wanted.key, flight });
                    }
                }
            };
            let state = flight.changed.wait_while(lock(&flight.state), |state| matches!(state, State::Flying));
            match &*state.unwrap_or_else(PoisonError::into_inner) {
                State::Landed(program) => return Seat::Landed(Arc::clone(program)),
                State::Failed(error) => return Seat::Failed(Arc::clone(error)),
                State::Flying | State::Abandoned => {}
            }
        }
    }
}

impl Leader<'_> {
    /// Hands the Program to those who wait. It must already be where new callers look.
    pub(crate) fn land(self, program: &Arc<Program>) {
        self.settle(State::Landed(Arc::clone(program)));
    }

    /// Hands the error to those who wait; new callers try again.
    pub(crate) fn fail(self, error: SharedError) {
        self.settle(State::Failed(error));
    }

    fn settle(&self, outcome: State) {
        let mut state = lock(&self.flight.state);
        if matches!(*state, State::Flying) {
            *state = outcome;
        }
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.settle(State::Abandoned);
        // Removed before anyone wakes, so that a waiter of an abandoned flight does not find it again.
        let mut flights = lock(&self.flights.0);
        if let Some(same_key) = flights.get_mut(&self.key) {
            same_key.retain(|flight| !Arc::ptr_eq(flight, &self.flight));
            if same_key.is_empty() {
                flights.remove(&self.key);
            }
        }
        drop(flights);
        self.flight.changed.notify_all();
    }
}

/// A panic elsewhere leaves these maps whole: every change is one insertion or removal.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KEY_BITS;
    use crate::testing::{program, record};

    #[test]
    fn a_panicking_leader_hands_over() {
        let flights = Flights::default();
        let wanted = Wanted::new(&record("m", 1), KEY_BITS);
        let program = Arc::new(program("m", 1));
        std::thread::scope(|scope| {
            let Seat::Leader(leader) = flights.enter(&wanted) else { panic!("first") };
            let waiters: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| match flights.enter(&wanted) {
                        Seat::Leader(leader) => {
                            leader.land(&program);
                            1
                        }
                        Seat::Landed(found) => {
                            assert_eq!(found, program);
                            0
                        }
                        Seat::Failed(_) => panic!("nothing failed"),
                    })
                })
                .collect();
            let panicked = scope.spawn(move || {
                let _leader = leader;
                panic!("compiler bug");
            });
            assert!(panicked.join().is_err());
            // Late arrivals may lead again, since the flight is over; at least one led.
            let leaders: usize = waiters.into_iter().map(|waiter| waiter.join().unwrap()).sum();
            assert!(leaders >= 1);
        });
        assert!(lock(&flights.0).is_empty());
    }

    #[test]
    fn colliding_records_fly_apart() {
        let flights = Flights::default();
        let (one, other) = (Wanted::new(&record("a", 1), 0), Wanted::new(&record("b", 1), 0));
        assert_eq!(one.key, other.key);
        let _first = flights.enter(&one);
        assert!(matches!(flights.enter(&other), Seat::Leader(_)));
    }
}
