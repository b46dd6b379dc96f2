//! Pages of layers with a window. A row keeps those of its last tokens alone: what no query sees any more is let go of after every
//! step. There are as many pages as whole rows have, of which only those take memory that are ever written, so that there is
//! always one: a row, or an entry of the prefix cache, holds no page here without its whole one.

use std::collections::BTreeMap;

use precast_tensor::Digest;

use super::page_pool::{PageId, PagePool};
use super::runner::WindowPages;

/// The pages of a row in one group, from some page of the row on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowTable {
    /// Pages of the row before the first one here.
    pub first: usize,
    /// The pages, in the order of the row's tokens.
    pub pages: Vec<PageId>,
}

impl WindowTable {
    /// The same as runners are told of it.
    pub fn as_pages(&self) -> WindowPages<'_> {
        WindowPages { first: self.first, pages: &self.pages }
    }

    /// Pages of the row up to the last one here.
    fn end(&self) -> usize {
        self.first + self.pages.len()
    }
}

/// Pages of the layers of one window.
#[derive(Clone, Debug)]
pub struct WindowGroup {
    /// Tokens that a query sees, itself included.
    window: usize,
    page_tokens: usize,
    pool: PagePool,
    /// Pages of entries of the prefix cache, by their names.
    shared: BTreeMap<Digest, PageId>,
}

impl WindowGroup {
    /// So many pages, all free.
    pub fn new(window: usize, page_tokens: usize, pages: usize) -> WindowGroup {
        WindowGroup { window, page_tokens, pool: PagePool::new(pages), shared: BTreeMap::new() }
    }

    /// Whether a row of which so many tokens are cached finds all that its next query sees.
    pub fn reaches(&self, table: &WindowTable, cached: usize) -> bool {
        cached == 0 || (table.first <= self.first_seen(cached) && table.end() * self.page_tokens >= cached)
    }

    /// The pages of a row that begins with the tokens of these entries; none where one of them is gone.
    pub fn adopt(&mut self, chain: &[Digest]) -> Option<WindowTable> {
        let first = self.first_seen(chain.len() * self.page_tokens).min(chain.len());
        let pages = chain[first..].iter().map(|name| self.shared.get(name).copied());
        let pages = pages.collect::<Option<Vec<PageId>>>()?;
        pages.iter().for_each(|&page| self.pool.hold(page));
        Some(WindowTable { first, pages })
    }

    /// Takes pages for a row up to so many tokens.
    pub fn take(&mut self, table: &WindowTable, tokens: usize) -> Vec<PageId> {
        let missing = tokens.div_ceil(self.page_tokens).saturating_sub(table.end());
        self.pool.take(missing).expect("there are as many pages as whole rows have, and who takes one has a whole one")
    }

    /// Lets go of pages that were taken.
    pub fn give_back(&mut self, pages: &[PageId]) {
        pages.iter().for_each(|&page| self.pool.release(page));
    }

    /// Makes a full page of a row that of an entry; where the entry has one, that is the row's from now on.
    pub fn share(&mut self, name: Digest, table: &mut WindowTable, position: usize) {
        let Some(own) = position.checked_sub(table.first).and_then(|place| table.pages.get_mut(place)) else { return };
        match self.shared.get(&name) {
            Some(&page) => {
                self.pool.hold(page);
                self.pool.release(std::mem::replace(own, page));
            }
            None => {
                self.pool.hold(*own);
                self.shared.insert(name, *own);
            }
        }
    }

    /// Lets go of what no query behind so many cached tokens sees.
    pub fn trim(&mut self, table: &mut WindowTable, cached: usize) {
        let gone = self.first_seen(cached).saturating_sub(table.first).min(table.pages.len());
        for page in table.pages.drain(..gone) {
            self.pool.release(page);
        }
        table.first += gone;
    }

    /// Keeps pages of the row up to this one.
    pub fn cut(&mut self, table: &mut WindowTable, end: usize) {
        for page in table.pages.split_off(end.saturating_sub(table.first).min(table.pages.len())) {
            self.pool.release(page);
        }
        if end == 0 {
            table.first = 0;
        }
    }

    /// Lets go of the pages of entries that are no more.
    pub fn forget_entries(&mut self, is_entry: impl Fn(&Digest) -> bool) {
        let WindowGroup { shared, pool, .. } = self;
        shared.retain(|name, page| {
            let stays = is_entry(name);
            if !stays {
                pool.release(*page);
            }
            stays
        });
    }

    /// What must hold of the tables of all rows, each with the tokens that are cached of it; says what does not.
    pub fn check<'t>(&self, rows: impl Iterator<Item = (&'t WindowTable, usize)>) -> Result<(), String> {
        let mut counts: BTreeMap<PageId, u32> = BTreeMap::new();
        let mut open = Vec::new();
        for (table, cached) in rows {
            if !self.reaches(table, cached) {
                return Err(format!("a row with {cached} tokens cached has pages {} to {}", table.first, table.end()));
            }
            // Those of a window, one that it begins in and one that is begun.
            let most = self.window.div_ceil(self.page_tokens) + 2;
            if table.pages.len() > most {
                return Err(format!("a row has {} pages of a window that needs {most}", table.pages.len()));
            }
            table.pages.iter().for_each(|page| *counts.entry(*page).or_default() += 1);
            let full = (cached / self.page_tokens).saturating_sub(table.first);
            open.extend(table.pages.iter().skip(full).copied());
        }
        self.shared.values().for_each(|page| *counts.entry(*page).or_default() += 1);
        if self.pool.free() + counts.len() != self.pool.total() {
            let (free, held, total) = (self.pool.free(), counts.len(), self.pool.total());
            return Err(format!("{free} pages of a window are free and {held} held of {total}"));
        }
        match counts.iter().find(|(page, count)| self.pool.count(**page) != **count) {
            Some((page, count)) => Err(format!("page {} of a window is held {count} times", page.0)),
            None => match open.iter().find(|page| counts[page] > 1) {
                Some(page) => Err(format!("page {} of a window is not full, and shared", page.0)),
                None => Ok(()),
            },
        }
    }

    /// The first page of which the next query behind so many cached tokens sees something.
    fn first_seen(&self, cached: usize) -> usize {
        (cached + 1).saturating_sub(self.window) / self.page_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_the_pages_of_their_last_tokens() {
        let mut group = WindowGroup::new(5, 2, 20);
        let mut table = WindowTable::default();
        for cached in 0..20 {
            let pages = group.take(&table, cached + 1);
            table.pages.extend(pages);
            group.trim(&mut table, cached + 1);
            assert!(group.reaches(&table, cached + 1) && table.pages.len() <= 3, "{table:?} behind {cached}");
            assert_eq!(group.check([(&table, cached + 1)].into_iter()), Ok(()));
        }
        assert_eq!(table.first, 8);
        assert!(!group.reaches(&table, 10), "what was let go of is needed again");
        group.cut(&mut table, 0);
        assert_eq!((table, group.pool.free()), (WindowTable::default(), 20));
    }

    #[test]
    fn entries_keep_pages_until_they_are_no_more() {
        let mut group = WindowGroup::new(3, 2, 4);
        let names = [0u8, 1].map(|name| Digest::of_bytes(&[name]));
        let mut table = WindowTable { first: 0, pages: group.take(&WindowTable::default(), 4) };
        names.iter().enumerate().for_each(|(position, &name)| group.share(name, &mut table, position));
        group.cut(&mut table, 0);
        // A query behind four tokens sees the last two of them, which are all of the second page.
        let adopted = group.adopt(&names).unwrap_or_default();
        assert_eq!((adopted.first, adopted.pages.len(), group.pool.free()), (1, 1, 2));
        let mut other = WindowTable { first: 0, pages: group.take(&WindowTable::default(), 2) };
        group.share(names[0], &mut other, 0);
        assert_eq!(group.pool.free(), 2, "two equal pages are one");
        group.forget_entries(|name| *name == names[1]);
        assert_eq!((group.adopt(&names[..1]), group.pool.free()), (None, 2));
        group.give_back(&other.pages);
        assert_eq!(group.pool.free(), 3);
    }
}
