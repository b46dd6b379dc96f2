//! Full pages that may be shared by requests with the same beginning. An entry's name is the digest of all tokens up to the
//! end of its page, made as a chain from page to page; a hit also compares the tokens. Entries hold their pages, and are
//! let go of from the ends of chains, the least recently used first.

use std::collections::BTreeMap;

use precast_tensor::{Digest, Hasher};

use crate::adapter::Adapter;

use super::page_pool::{PageId, PagePool};

/// Where chains begin: requests share pages only if they begin alike here too. Pages of an adapter are its own.
pub fn chain_root(adapter: Option<&Adapter>, salt: &str) -> Digest {
    let root = Digest::of_bytes(salt.as_bytes());
    adapter.map_or(root, |adapter| adapted_root(root, adapter.digest()))
}

fn adapted_root(root: Digest, adapter: Digest) -> Digest {
    let mut hasher = Hasher::default();
    // Longer than a link of no tokens, which the root of long rows is, and no multiple of a token's bytes.
    hasher.update(b"adapter");
    hasher.update(&root.0);
    hasher.update(&adapter.0);
    hasher.finish()
}

/// Where the chains of long rows begin, whose pages are of no use to others.
pub fn long_root(root: Digest) -> Digest {
    chain_next(root, &[])
}

/// The name of the page that follows another in a chain.
pub fn chain_next(before: Digest, tokens: &[u32]) -> Digest {
    let mut hasher = Hasher::default();
    hasher.update(&before.0);
    tokens.iter().for_each(|token| hasher.update(&token.to_le_bytes()));
    hasher.finish()
}

/// One page of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    page: PageId,
    tokens: Vec<u32>,
    before: Digest,
    /// Entries that follow this one.
    followers: usize,
    /// When it was last found or made, in steps of a counter.
    used: u64,
}

/// Pages by the tokens that they end with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixCache {
    entries: BTreeMap<Digest, Entry>,
    clock: u64,
}

impl PrefixCache {
    /// Entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether there is an entry of this name.
    pub fn has(&self, name: &Digest) -> bool {
        self.entries.contains_key(name)
    }

    /// The pages whose tokens are the beginning of `tokens`, and their names. Nothing is held for the caller yet.
    pub fn find(&self, root: Digest, tokens: &[u32], page_tokens: usize) -> Vec<(Digest, PageId)> {
        let mut found = Vec::new();
        let mut before = root;
        for page in tokens.chunks_exact(page_tokens) {
            let name = chain_next(before, page);
            match self.entries.get(&name) {
                Some(entry) if entry.tokens == page && entry.before == before => found.push((name, entry.page)),
                _ => break,
            }
            before = name;
        }
        found
    }

    /// Remembers that these entries were used.
    pub fn touch(&mut self, names: impl IntoIterator<Item = Digest>) {
        self.clock += 1;
        for name in names {
            if let Some(entry) = self.entries.get_mut(&name) {
                entry.used = self.clock;
            }
        }
    }

    /// Makes a full page an entry behind another, and gives its name and the page that the caller holds from now on: where
    /// there is an entry of these tokens already, its page is shared and the caller's own let go of. So who holds a page of
    /// a chain holds all before it.
    pub fn insert(&mut self, before: Digest, tokens: &[u32], page: PageId, pool: &mut PagePool) -> (Digest, PageId) {
        let name = chain_next(before, tokens);
        if let Some(entry) = self.entries.get(&name) {
            if entry.page != page && entry.tokens == tokens && entry.before == before {
                pool.hold(entry.page);
                pool.release(page);
                return (name, entry.page);
            }
            return (name, page);
        }
        pool.hold(page);
        self.clock += 1;
        let entry = Entry { page, tokens: tokens.to_vec(), before, followers: 0, used: self.clock };
        self.entries.insert(name, entry);
        if let Some(entry) = self.entries.get_mut(&before) {
            entry.followers += 1;
        }
        (name, page)
    }

    /// Pages that only entries hold. Who uses a page holds all before it too, so these can all be had.
    pub fn evictable(&self, pool: &PagePool) -> usize {
        self.entries.values().filter(|entry| pool.count(entry.page) == 1).count()
    }

    /// Lets go of the least recently used page at the end of a chain that nobody else holds; false if there is none.
    pub fn evict(&mut self, pool: &mut PagePool) -> bool {
        let is_evictable = |entry: &Entry| entry.followers == 0 && pool.count(entry.page) == 1;
        let ends = self.entries.iter().filter(|(_, entry)| is_evictable(entry));
        let Some(name) = ends.min_by_key(|(_, entry)| entry.used).map(|(name, _)| *name) else { return false };
        self.remove(name, pool);
        true
    }

    /// Lets go of every entry of the chains that begin at `root`.
    pub fn forget_root(&mut self, root: Digest, pool: &mut PagePool) {
        let mut open = vec![root];
        while let Some(before) = open.pop() {
            let names: Vec<Digest> =
                self.entries.iter().filter(|(_, entry)| entry.before == before).map(|(name, _)| *name).collect();
            for name in names {
                self.remove(name, pool);
                open.push(name);
            }
        }
    }

    /// Pages that entries hold.
    pub fn pages(&self) -> impl Iterator<Item = PageId> {
        self.entries.values().map(|entry| entry.page)
    }

    fn remove(&mut self, name: Digest, pool: &mut PagePool) {
        let Some(entry) = self.entries.remove(&name) else { return };
        pool.release(entry.page);
        if let Some(before) = self.entries.get_mut(&entry.before) {
            before.followers -= 1;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const PAGE: usize = 2;

    /// Makes the full pages of a row of tokens entries, as a row that ran them does.
    fn run(cache: &mut PrefixCache, pool: &mut PagePool, tokens: &[u32]) -> Option<Vec<PageId>> {
        let found = cache.find(chain_root(None, ""), tokens, PAGE);
        let mut pages: Vec<PageId> = found.iter().map(|&(_, page)| page).collect();
        pages.iter().for_each(|&page| pool.hold(page));
        cache.touch(found.iter().map(|&(name, _)| name));
        let missing = tokens.len() / PAGE - pages.len();
        while pool.free() < missing {
            if !cache.evict(pool) {
                pages.iter().for_each(|&page| pool.release(page));
                return None;
            }
        }
        pages.extend(pool.take(missing).unwrap());
        let mut before = chain_root(None, "");
        for (tokens, page) in tokens.chunks_exact(PAGE).zip(&mut pages) {
            (before, *page) = cache.insert(before, tokens, *page, pool);
        }
        Some(pages)
    }

    proptest! {
        /// Rows of few different tokens come and go: a page is found exactly for the tokens it was made of, nothing leaks, and
        /// what can be had can be had.
        #[test]
        fn what_is_found_is_what_was_put_there(
            rows in prop::collection::vec((prop::collection::vec(0u32..2, 0..9), 0usize..3), 1..60),
        ) {
            let (mut cache, mut pool) = (PrefixCache::default(), PagePool::new(7));
            let mut made_of: BTreeMap<PageId, Vec<u32>> = BTreeMap::new();
            let mut open: Vec<Vec<PageId>> = Vec::new();
            for (tokens, keep) in rows {
                let held: BTreeSet<PageId> = open.iter().flatten().copied().collect();
                if let Some(pages) = run(&mut cache, &mut pool, &tokens) {
                    for (position, page) in pages.iter().enumerate() {
                        let beginning = tokens[..(position + 1) * PAGE].to_vec();
                        if held.contains(page) {
                            prop_assert_eq!(&made_of[page], &beginning, "a page in use has other tokens");
                        }
                        made_of.insert(*page, beginning);
                    }
                    open.push(pages);
                }
                while open.len() > keep {
                    open.remove(0).into_iter().for_each(|page| pool.release(page));
                }
                let in_use: BTreeSet<PageId> = open.iter().flatten().copied().chain(cache.pages()).collect();
                prop_assert_eq!(pool.free() + in_use.len(), pool.total());
            }
            let evictable = cache.evictable(&pool);
            let evicted = std::iter::from_fn(|| cache.evict(&mut pool).then_some(())).count();
            prop_assert_eq!(evicted, evictable);
            open.into_iter().flatten().for_each(|page| pool.release(page));
            while cache.evict(&mut pool) {}
            prop_assert_eq!((pool.free(), cache.len()), (pool.total(), 0));
        }
    }

    #[test]
    fn rows_that_made_the_same_page_at_once_share_one() {
        let (mut cache, mut pool) = (PrefixCache::default(), PagePool::new(4));
        let own = pool.take(2).unwrap();
        let (first, kept) = cache.insert(chain_root(None, ""), &[1, 1], own[0], &mut pool);
        assert_eq!(cache.insert(chain_root(None, ""), &[1, 1], own[1], &mut pool), (first, kept));
        assert_eq!((kept, pool.count(own[0]), pool.count(own[1]), pool.free()), (own[0], 3, 0, 3));
    }

    #[test]
    fn the_least_recently_used_end_goes_first_and_a_beginning_in_use_stays() {
        let (mut cache, mut pool) = (PrefixCache::default(), PagePool::new(4));
        let old = run(&mut cache, &mut pool, &[1, 1, 2, 2]).unwrap();
        let young = run(&mut cache, &mut pool, &[1, 1, 3, 3]).unwrap();
        assert_eq!(old[0], young[0]);
        old.iter().chain(&young).for_each(|&page| pool.release(page));
        assert_eq!(cache.evictable(&pool), 3);
        assert!(cache.evict(&mut pool));
        assert_eq!(cache.find(chain_root(None, ""), &[1, 1, 2, 2], PAGE).len(), 1);
        assert_eq!(cache.find(chain_root(None, ""), &[1, 1, 3, 3, 4], PAGE).len(), 2);
        assert_eq!(cache.find(chain_root(None, "other"), &[1, 1], PAGE), []);
    }
}
