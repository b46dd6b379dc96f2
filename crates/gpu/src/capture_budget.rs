//! What all captures of a device may take together. What was recorded is kept here, so that whoever needs room can drop what
//! was used longest ago, also where another context owns it; never what is in flight, and the largest Program's last.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bounds of a device's captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureLimits {
    /// Bytes of the device that they take, as measured when each was instantiated.
    pub max_bytes: u64,
    /// Graphs; a Program cut at host steps has several.
    pub max_graphs: usize,
}

impl Default for CaptureLimits {
    fn default() -> CaptureLimits {
        CaptureLimits { max_bytes: 256 << 20, max_graphs: 32 }
    }
}

/// The captures of one device.
pub(crate) struct CaptureBudget<G> {
    limits: CaptureLimits,
    /// Counts launches, to tell what was used last.
    tick: AtomicU64,
    kept: Mutex<Vec<Arc<Kept<G>>>>,
    /// Captures that were dropped to make room.
    evicted: AtomicU64,
}

/// What a capture takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) bytes: u64,
    pub(crate) graphs: usize,
    /// Size of the Program, by which the largest is told.
    pub(crate) weight: u64,
}

struct Kept<G> {
    /// Empty once evicted.
    graphs: Mutex<Option<G>>,
    cost: Cost,
    last_use: AtomicU64,
    /// The last run that launched it.
    last_run: AtomicU64,
    /// The newest run of its context that is known to have ended.
    ended: Arc<AtomicU64>,
}

impl<G> Kept<G> {
    fn is_in_flight(&self) -> bool {
        self.last_run.load(Ordering::Acquire) > self.ended.load(Ordering::Acquire)
    }
}

/// A slot's hold on what was recorded for it. Dropping it drops that.
pub(crate) struct Keeping<G> {
    kept: Arc<Kept<G>>,
    budget: Arc<CaptureBudget<G>>,
}

/// What was recorded, lent for a launch: it cannot be evicted meanwhile.
pub(crate) struct Lent<'a, G>(MutexGuard<'a, Option<G>>);

impl<G> Lent<'_, G> {
    pub(crate) fn graphs(&self) -> &G {
        self.0.as_ref().expect("only what is there is lent")
    }
}

impl<G> CaptureBudget<G> {
    pub(crate) fn new(limits: CaptureLimits) -> Arc<CaptureBudget<G>> {
        let (tick, evicted) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(CaptureBudget { limits, tick, kept: Mutex::default(), evicted })
    }

    /// Takes what was recorded, after making room for it. Gives it back where there is no room.
    /// `ended` counts the runs of its context that are known to have ended.
    pub(crate) fn keep(self: &Arc<Self>, graphs: G, cost: Cost, ended: &Arc<AtomicU64>) -> Result<Keeping<G>, G> {
        let mut kept = self.kept();
        if !self.make_room(&mut kept, cost) {
            return Err(graphs);
        }
        let last_use = AtomicU64::new(self.tick.fetch_add(1, Ordering::Relaxed));
        let (last_run, ended) = (AtomicU64::new(0), ended.clone());
        let new = Arc::new(Kept { graphs: Mutex::new(Some(graphs)), cost, last_use, last_run, ended });
        kept.push(new.clone());
        Ok(Keeping { kept: new, budget: self.clone() })
    }

    /// Drops all captures that are not in flight, and gives their number.
    pub(crate) fn evict_idle(&self) -> usize {
        let mut kept = self.kept();
        let idle = kept.extract_if(.., |kept| match kept.graphs.try_lock() {
            Ok(mut graphs) if !kept.is_in_flight() => {
                drop(graphs.take());
                true
            }
            _ => false,
        });
        let count = idle.count();
        self.evicted.fetch_add(count as u64, Ordering::Relaxed);
        count
    }

    /// Captures that were dropped to make room, since the device was opened.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Bytes and graphs that are kept.
    pub(crate) fn used(&self) -> (u64, usize) {
        total(&self.kept())
    }

    /// Evicts until something of this cost fits, and says whether it does. What is evicted is destroyed while its owner is kept out:
    /// the owner frees the memory that it refers to as soon as it is gone.
    fn make_room(&self, kept: &mut Vec<Arc<Kept<G>>>, cost: Cost) -> bool {
        let fits = |(bytes, graphs): (u64, usize)| {
            bytes.saturating_add(cost.bytes) <= self.limits.max_bytes && graphs + cost.graphs <= self.limits.max_graphs
        };
        let mut order: Vec<Arc<Kept<G>>> = kept.iter().filter(|kept| !kept.is_in_flight()).cloned().collect();
        let weight_max = kept.iter().map(|kept| kept.cost.weight).max();
        order.sort_by_key(|kept| (Some(kept.cost.weight) == weight_max, kept.last_use.load(Ordering::Relaxed)));
        let mut left = total(kept);
        let mut victims = Vec::new();
        for victim in order {
            if fits(left) {
                break;
            }
            left = (left.0 - victim.cost.bytes, left.1 - victim.cost.graphs);
            victims.push(victim);
        }
        if !fits(left) {
            return false;
        }
        for victim in victims {
            // Whoever launches it at this moment holds the lock; then it is no longer the least used.
            let Ok(mut graphs) = victim.graphs.try_lock() else { return false };
            if victim.is_in_flight() {
                return false;
            }
            drop(graphs.take());
            kept.retain(|other| !Arc::ptr_eq(other, &victim));
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Arc<Kept<G>>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn total<G>(kept: &[Arc<Kept<G>>]) -> (u64, usize) {
    kept.iter().fold((0, 0), |(bytes, graphs), kept| (bytes + kept.cost.bytes, graphs + kept.cost.graphs))
}

impl<G> Keeping<G> {
    /// Lends what was recorded to a run of its context, by number; none once it was evicted.
    pub(crate) fn lend(&self, run: u64) -> Option<Lent<'_, G>> {
        let graphs = self.kept.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        graphs.as_ref()?;
        self.kept.last_run.store(run, Ordering::Release);
        self.kept.last_use.store(self.budget.tick.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(Lent(graphs))
    }
}

impl<G> Drop for Keeping<G> {
    fn drop(&mut self) {
        let graphs = self.kept.graphs.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.budget.kept().retain(|kept| !Arc::ptr_eq(kept, &self.kept));
        drop(graphs);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const LIMITS: CaptureLimits = CaptureLimits { max_bytes: 100, max_graphs: 3 };

    fn cost(bytes: u64, weight: u64) -> Cost {
        Cost { bytes, graphs: 1, weight }
    }

    fn ended(run: u64) -> Arc<AtomicU64> {
        Arc::new(AtomicU64::new(run))
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let budget = CaptureBudget::new(LIMITS);
        let done = ended(u64::MAX);
        let a = budget.keep("a", cost(30, 1), &done).unwrap();
        let b = budget.keep("b", cost(30, 1), &done).unwrap();
        let c = budget.keep("c", cost(30, 2), &done).unwrap();
        assert_eq!(a.lend(1).map(|lent| *lent.graphs()), Some("a"));
        let d = budget.keep("d", cost(30, 1), &done).unwrap();
        assert!(b.lend(2).is_none(), "b was used longest ago");
        // The largest Program's is kept longest, though it was used longest ago.
        let e = budget.keep("e", cost(30, 1), &done).unwrap();
        assert!(a.lend(3).is_none() && c.lend(3).is_some() && d.lend(3).is_some() && e.lend(3).is_some());
        assert_eq!(budget.used(), (90, 3));
        drop((c, d));
        assert_eq!(budget.used(), (30, 1));
    }

    #[test]
    fn bytes_are_bounded_too_and_what_never_fits_is_given_back() {
        let budget = CaptureBudget::new(LIMITS);
        let done = ended(u64::MAX);
        let a = budget.keep("a", cost(60, 1), &done).unwrap();
        assert_eq!(budget.keep("b", cost(101, 1), &done).err(), Some("b"));
        assert!(a.lend(1).is_some(), "nothing is evicted for what cannot fit");
        let _c = budget.keep("c", cost(60, 1), &done).unwrap();
        assert!(a.lend(2).is_none());
    }

    #[test]
    fn nothing_in_flight_is_evicted() {
        let budget = CaptureBudget::new(LIMITS);
        let (running, done) = (ended(0), ended(u64::MAX));
        let kept: Vec<Keeping<u32>> = (0..3).map(|at| budget.keep(at, cost(10, 1), &running).unwrap()).collect();
        kept.iter().zip(1..).for_each(|(kept, run)| assert!(kept.lend(run).is_some()));
        assert!(budget.keep(3, cost(10, 1), &done).is_err());
        running.store(2, Ordering::Release);
        let _fourth = budget.keep(3, cost(10, 1), &done).unwrap();
        assert!(kept[0].lend(4).is_none() && kept[1].lend(5).is_some() && kept[2].lend(6).is_some());
    }

    #[test]
    fn what_is_lent_is_not_evicted() {
        let budget = CaptureBudget::new(CaptureLimits { max_graphs: 1, ..LIMITS });
        let done = ended(u64::MAX);
        let a = budget.keep("a", cost(1, 1), &done).unwrap();
        let lent = a.lend(1).unwrap();
        assert_eq!(budget.keep("b", cost(1, 1), &done).err(), Some("b"));
        assert_eq!(*lent.graphs(), "a");
    }
}
