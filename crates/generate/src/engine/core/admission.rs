//! Who is let in and on which pages: rows wait in the order of their class and arrival, take pages of equal beginnings where
//! they are found, and make room among what nobody runs on.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use precast_tensor::Digest;

use super::EngineCore;
use crate::engine::events::Event;
use crate::engine::page_pool::PageId;
use crate::engine::row::{Row, RowId, RowState};
use crate::engine::window_group::WindowTable;

/// Steps of waiting that count as one class of priority.
const AGEING_STEPS: u64 = 256;

impl EngineCore {
    /// Lets rows in, first come first served within a class of priority; true if one waits for pages. Who waits takes the
    /// place of a row whose client takes nothing.
    pub(super) fn admit(&mut self) -> bool {
        loop {
            let Some(id) = self.head_of_queue() else { return false };
            let running = self.rows.values().filter(|row| row.is_running()).count();
            let has_place = running < self.limits.admitted_max;
            if has_place && self.admit_row(id) {
                continue;
            }
            if let Some(stalled) = self.stalled_row() {
                self.preempt(stalled);
                self.rows.entry(stalled).and_modify(|row| row.is_stalled = true);
                continue;
            }
            if has_place {
                self.tell_of_wait(id);
            }
            return has_place;
        }
    }

    /// The row that was let in last of those that wait for their clients.
    pub(super) fn stalled_row(&self) -> Option<RowId> {
        let is_stalled = |row: &&Row| row.is_running() && !row.is_prompt && row.events.len() >= self.limits.events_max;
        self.rows.values().filter(is_stalled).max_by_key(|row| self.admission(row.id)).map(|row| row.id)
    }

    /// Who is let in next.
    fn head_of_queue(&self) -> Option<RowId> {
        let events_max = self.limits.events_max;
        let is_ready = |row: &&Row| {
            let is_waiting = |parent: RowId| self.rows.get(&parent).is_some_and(|parent| parent.is_prompt);
            // A row that lost its place to its client's sleep returns when there is room for more than a token.
            let room_from = if row.is_stalled { events_max / 2 + 1 } else { events_max };
            row.state == RowState::Queued && !row.waits_for.is_some_and(is_waiting) && row.events.len() < room_from
        };
        let queued = self.rows.values().filter(is_ready);
        queued.min_by_key(|row| (Reverse(self.class(row)), row.arrived, row.id)).map(|row| row.id)
    }

    /// A row's class of priority now: waiting raises it, so that no class waits for ever.
    pub(super) fn class(&self, row: &Row) -> u64 {
        u64::from(row.priority) + (self.step - row.arrived) / AGEING_STEPS
    }

    /// Gives a row pages for all of its tokens and one more; false if there are not enough.
    fn admit_row(&mut self, id: RowId) -> bool {
        let page_tokens = self.limits.page_tokens;
        let Some(row) = self.rows.get(&id) else { return false };
        let needed = (row.tokens.len() + 1).div_ceil(page_tokens);
        // At least one token is run, for its scores.
        let known = &row.tokens[..row.tokens.len() - 1];
        let own = row.pages.len();
        let is_new = own == 0;
        let mut hits = match is_new && row.is_sharing {
            true => self.prefix.find(row.root(), known, page_tokens),
            false => Vec::new(),
        };
        let mut tables = self.adopt_windows(&hits);
        if tables.len() < self.windows.len() {
            // An entry without its pages of a window is of no use; there is none while rows share pages as they fill them.
            hits.clear();
            tables = vec![WindowTable::default(); self.windows.len()];
        }
        let held = if is_new { hits.len() } else { own };
        hits.iter().for_each(|&(_, page)| self.pool.hold(page));
        let missing = needed.saturating_sub(held);
        let pages = match self.could_free(missing, id, &hits) && self.make_room(missing, id) {
            true => self.pool.take(missing),
            false => None,
        };
        let Some(pages) = pages else {
            hits.iter().for_each(|&(_, page)| self.pool.release(page));
            self.windows.iter_mut().zip(&tables).for_each(|(group, table)| group.give_back(&table.pages));
            return false;
        };
        self.prefix.touch(hits.iter().map(|&(name, _)| name));
        self.admissions += 1;
        let Some(row) = self.rows.get_mut(&id) else { return false };
        if is_new {
            row.cached = hits.len() * page_tokens;
            row.chain = hits.iter().map(|&(name, _)| name).collect();
            row.pages = hits.iter().map(|&(_, page)| page).collect();
            row.windows = tables;
            let hit_tokens = row.cached.min(row.usage.prompt_tokens);
            row.usage.cached_prompt_tokens = row.usage.cached_prompt_tokens.max(hit_tokens);
            self.metrics.prefix_hit_tokens += row.cached;
        } else {
            row.usage.cached_prompt_tokens = row.cached;
        }
        row.pages.extend(pages);
        self.metrics.queue_wait_max = self.metrics.queue_wait_max.max(self.step - row.queued);
        row.state = RowState::Running { admission: self.admissions };
        (row.is_prompt, row.is_stalled) = (true, false);
        true
    }

    /// Pages of each window that a row with these entries begins with; fewer tables than windows where one is missing.
    fn adopt_windows(&mut self, hits: &[(Digest, PageId)]) -> Vec<WindowTable> {
        let chain: Vec<Digest> = hits.iter().map(|&(name, _)| name).collect();
        let mut tables = Vec::with_capacity(self.windows.len());
        for group in &mut self.windows {
            match group.adopt(&chain) {
                Some(table) => tables.push(table),
                None => {
                    self.windows.iter_mut().zip(&tables).for_each(|(group, table)| group.give_back(&table.pages));
                    return Vec::new();
                }
            }
        }
        tables
    }

    /// Whether so many pages could be free: all but those of running rows and those found for this one.
    fn could_free(&self, count: usize, id: RowId, hits: &[(Digest, PageId)]) -> bool {
        let stays = |row: &&Row| row.is_running() || row.id == id;
        let kept = self.rows.values().filter(stays).flat_map(|row| row.pages.iter().copied());
        let kept: BTreeSet<PageId> = kept.chain(hits.iter().map(|&(_, page)| page)).collect();
        self.pool.total() - kept.len() >= count
    }

    /// Frees pages until there are so many: those that only the prefix cache holds, then those of turns that have ended.
    pub(super) fn make_room(&mut self, count: usize, keep: RowId) -> bool {
        let mut is_evicting = false;
        while self.pool.free() < count {
            let is_evicted = self.prefix.evict(&mut self.pool);
            is_evicting |= is_evicted;
            if !is_evicted && !self.drop_idle_pages(keep) {
                break;
            }
        }
        if is_evicting {
            self.forget_window_entries();
        }
        self.pool.free() >= count
    }

    /// Takes the pages of the row that has been idle longest; its tokens are run again when it goes on.
    fn drop_idle_pages(&mut self, keep: RowId) -> bool {
        let is_idle = |row: &&Row| !row.is_running() && row.id != keep && !row.pages.is_empty();
        let idle = self.rows.values().filter(is_idle).min_by_key(|row| (row.stepped, row.id)).map(|row| row.id);
        let Some(id) = idle else { return false };
        self.runner.forget(id);
        self.keep_pages(id, 0);
        true
    }

    fn tell_of_wait(&mut self, id: RowId) {
        let Some(row) = self.rows.get_mut(&id).filter(|row| !row.is_told_of_wait) else { return };
        row.is_told_of_wait = true;
        row.events.push([Event::Blocked]);
    }
}
