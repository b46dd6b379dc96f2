//! Pages of cached keys and values, by number: which are free, and how often each of the others is held. What a page holds
//! is the runner's business.

use std::collections::BTreeSet;

/// The number of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// All pages of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagePool {
    /// Times that each page is held: by tables of rows, by the prefix cache, by a step that has not ended.
    counts: Vec<u32>,
    /// The lowest free page is taken first, so that memory follows what is used.
    free: BTreeSet<PageId>,
}

impl PagePool {
    /// So many pages, all free.
    pub fn new(pages: usize) -> PagePool {
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        PagePool { counts: vec![0; pages as usize], free: (0..pages).map(PageId).collect() }
    }

    /// Pages, free or not.
    pub fn total(&self) -> usize {
        self.counts.len()
    }

    /// Free pages.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Times that a page is held.
    pub fn count(&self, page: PageId) -> u32 {
        self.counts[page.0 as usize]
    }

    /// Takes so many free pages, each held once; none if there are not so many.
    pub fn take(&mut self, count: usize) -> Option<Vec<PageId>> {
        if count > self.free.len() {
            return None;
        }
        let pages: Vec<PageId> = self.free.iter().copied().take(count).collect();
        for page in &pages {
            self.free.remove(page);
            self.counts[page.0 as usize] = 1;
        }
        Some(pages)
    }

    /// Holds a page that someone holds already.
    pub fn hold(&mut self, page: PageId) {
        let count = &mut self.counts[page.0 as usize];
        assert!(*count > 0, "page {} is free and cannot be shared", page.0);
        *count += 1;
    }

    /// Lets go of a page; it is free when nobody holds it.
    pub fn release(&mut self, page: PageId) {
        let count = &mut self.counts[page.0 as usize];
        *count = count.checked_sub(1).expect("a page that is let go of is held");
        if *count == 0 {
            self.free.insert(page);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What can be done to a pool.
    #[derive(Clone, Debug)]
    enum Call {
        Take(usize),
        Hold(usize),
        Release(usize),
    }

    fn call() -> impl Strategy<Value = Call> {
        prop_oneof![
            (0usize..5).prop_map(Call::Take),
            (0usize..64).prop_map(Call::Hold),
            (0usize..64).prop_map(Call::Release)
        ]
    }

    proptest! {
        /// Against the obvious model: a list of who holds what.
        #[test]
        fn any_calls_keep_counts_and_free_pages_together(calls in prop::collection::vec(call(), 0..200), pages in 1usize..12) {
            let mut pool = PagePool::new(pages);
            let mut held: Vec<PageId> = Vec::new();
            for call in calls {
                match call {
                    Call::Take(count) => {
                        let distinct: BTreeSet<PageId> = held.iter().copied().collect();
                        let taken = pool.take(count);
                        prop_assert_eq!(taken.is_some(), count <= pages - distinct.len());
                        for page in taken.unwrap_or_default() {
                            prop_assert!(!held.contains(&page), "a page in use was given out");
                            held.push(page);
                        }
                    }
                    Call::Hold(position) if !held.is_empty() => {
                        let page = held[position % held.len()];
                        pool.hold(page);
                        held.push(page);
                    }
                    Call::Release(position) if !held.is_empty() => pool.release(held.swap_remove(position % held.len())),
                    Call::Hold(_) | Call::Release(_) => {}
                }
                let distinct: BTreeSet<PageId> = held.iter().copied().collect();
                prop_assert_eq!(pool.free() + distinct.len(), pool.total());
                for &page in &held {
                    prop_assert_eq!(pool.count(page) as usize, held.iter().filter(|other| **other == page).count());
                }
            }
        }
    }

    #[test]
    fn pages_are_given_out_all_or_none_and_lowest_first() {
        let mut pool = PagePool::new(3);
        assert_eq!(pool.take(4), None);
        assert_eq!(pool.take(2).unwrap(), [PageId(0), PageId(1)]);
        pool.release(PageId(0));
        assert_eq!(pool.take(2).unwrap(), [PageId(0), PageId(2)]);
        assert_eq!((pool.free(), pool.take(1)), (0, None));
    }
}
