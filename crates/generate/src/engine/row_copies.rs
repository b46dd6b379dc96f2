//! Copies of the rows that run, in one piece each, as Programs read them. Rows whose capacities are close share copies; a long
//! row has others than short ones, since every slot is as long as the longest row of its copies needs.

use crate::kv_cache::{Half, KvCache, LayerLayout, NoMemory};

use super::page_store::PageStores;
use super::row::RowId;
use super::runner::StepRow;

/// What lies in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) row: RowId,
    /// Tokens of the row from its first on.
    pub(super) tokens: usize,
    /// The last run that used it.
    pub(super) used: u64,
}

/// Copies of rows of close capacities.
pub(super) struct RowCopies {
    pub(super) cache: KvCache,
    held: Vec<Option<Held>>,
}

impl RowCopies {
    /// Empty copies.
    pub(super) fn new(layers: &[LayerLayout], slots: usize, capacity: usize) -> Result<RowCopies, NoMemory> {
        Ok(RowCopies { cache: KvCache::try_new(layers, slots, capacity)?, held: vec![None; slots] })
    }

    /// Makes them so many and so long at least.
    pub(super) fn grow(&mut self, slots: usize, capacity: usize) -> Result<(), NoMemory> {
        if slots > self.cache.slots() || capacity > self.cache.capacity() {
            self.cache = self.cache.try_grown(slots, capacity)?;
            self.held.resize(self.cache.slots(), None);
        }
        Ok(())
    }

    /// Tokens that a slot has room for.
    pub(super) fn capacity(&self) -> usize {
        self.cache.capacity()
    }

    /// The last run that used them.
    pub(super) fn used(&self) -> u64 {
        self.held.iter().flatten().map(|held| held.used).max().unwrap_or(0)
    }

    /// Remembers what a slot holds now.
    pub(super) fn hold(&mut self, slot: usize, held: Held) {
        self.held[slot] = Some(held);
    }

    /// Forgets a row.
    pub(super) fn forget(&mut self, row: RowId) {
        if let Some(slot) = self.slot_of(row) {
            self.held[slot] = None;
        }
    }

    /// Gives each row a slot, so that the slots of all are successive ones unless any will do, and puts its cached tokens
    /// there. Rows that lie between the slots of the others already stay where they are.
    pub(super) fn place(
        &mut self,
        rows: &[&StepRow<'_>],
        takes_any_slot: bool,
        store: &PageStores,
        run: u64,
    ) -> Vec<usize> {
        let slots = match rows {
            [row] if takes_any_slot => vec![self.slot_of(row.row).unwrap_or_else(|| self.free_slot())],
            _ => self.slots_side_by_side(rows),
        };
        for (&slot, row) in slots.iter().zip(rows) {
            match self.slot_of(row.row) {
                Some(from) if from == slot => {}
                Some(from) => self.move_slot(from, slot),
                None => self.held[slot] = None,
            }
            self.complete(slot, row, store, run);
        }
        slots
    }

    /// Slots from the first on, one for each row. What else lies there is moved away where there is an empty slot.
    fn slots_side_by_side(&mut self, rows: &[&StepRow<'_>]) -> Vec<usize> {
        let count = rows.len();
        let own: Vec<Option<usize>> =
            rows.iter().map(|row| self.slot_of(row.row).filter(|&slot| slot < count)).collect();
        let mut others: Vec<usize> = (0..count).filter(|slot| !own.contains(&Some(*slot))).collect();
        for &slot in &others {
            let empty = (count..self.held.len()).find(|&slot| self.held[slot].is_none());
            if let (Some(_), Some(empty)) = (self.held[slot], empty) {
                self.move_slot(slot, empty);
            }
        }
        own.into_iter().map(|own| own.or_else(|| others.pop()).unwrap_or(0)).collect()
    }

    fn slot_of(&self, row: RowId) -> Option<usize> {
        self.held.iter().position(|held| held.is_some_and(|held| held.row == row))
    }

    /// The first empty slot, so that a prompt lies behind the rows that it will run side by side with; else the one that was
    /// used longest ago.
    fn free_slot(&self) -> usize {
        let empty = self.held.iter().position(Option::is_none);
        let oldest = || (0..self.held.len()).min_by_key(|&slot| self.held[slot].map_or(0, |held| held.used));
        empty.or_else(oldest).unwrap_or(0)
    }

    fn move_slot(&mut self, from: usize, to: usize) {
        self.cache.copy_slot(from, to);
        self.held[to] = self.held[from].take();
    }

    /// Makes a slot hold the cached tokens of a row, from pages as far as they are missing.
    fn complete(&mut self, slot: usize, row: &StepRow<'_>, store: &PageStores, run: u64) {
        let known = self.held[slot].filter(|held| held.row == row.row).map_or(0, |held| held.tokens);
        let is_there = known >= row.cached && self.cache.is_intact(slot, row.cached);
        if !is_there {
            self.cache.clear(slot);
            for layer in 0..self.cache.layer_count() {
                for half in [Half::Keys, Half::Values] {
                    let tokens = store.read(row, layer, half).take_while(|(position, _)| *position < row.cached);
                    tokens.for_each(|(position, bytes)| self.cache.write(layer, half, slot, position, bytes, 1));
                }
            }
        }
        self.held[slot] = Some(Held { row: row.row, tokens: row.cached, used: run });
    }
}
