//! The caches of a generator's rows: on the host, or on the device where that keeps them.

use crate::kv_cache::KvCache;
use crate::resident::ResidentCache;
use crate::text_model::{StepError, TextModel};

/// Keys and values of rows.
pub(crate) enum RowCache {
    /// On the host: a step reads it, and what the step gives is written behind it.
    Host(KvCache),
    /// On the device: a step reads and writes it there.
    Resident(ResidentCache),
}

impl RowCache {
    /// An empty cache where a decoder wants it.
    pub(crate) fn new(model: &TextModel, slots: usize, capacity: usize) -> Result<RowCache, StepError> {
        Ok(match model.cache_device() {
            Some(device) => RowCache::Resident(ResidentCache::new(device, model.layers(), slots, capacity)?),
            None => RowCache::Host(model.spare().cache(model.layers(), slots, capacity)?),
        })
    }

    /// Ends its use: what the host has is spare for the caches that follow.
    pub(crate) fn end(&mut self, model: &TextModel) {
        if let RowCache::Host(cache) = self {
            model.spare().give_cache(std::mem::take(cache));
        }
    }

    /// Slots.
    pub(crate) fn slots(&self) -> usize {
        match self {
            RowCache::Host(cache) => cache.slots(),
            RowCache::Resident(cache) => cache.slots(),
        }
    }

    /// Tokens that a slot has room for.
    pub(crate) fn capacity(&self) -> usize {
        match self {
            RowCache::Host(cache) => cache.capacity(),
            RowCache::Resident(cache) => cache.capacity(),
        }
    }

    /// Bytes of the whole cache.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            RowCache::Host(cache) => cache.bytes(),
            RowCache::Resident(cache) => cache.bytes(),
        }
    }

    /// Whether the first `cached` tokens of a slot are there as far as any query behind them can see.
    pub(crate) fn is_intact(&self, slot: usize, cached: usize) -> bool {
        match self {
            RowCache::Host(cache) => cache.is_intact(slot, cached),
            RowCache::Resident(cache) => cache.is_intact(slot, cached),
        }
    }

    /// Forgets what a slot holds.
    pub(crate) fn clear(&mut self, slot: usize) {
        match self {
            RowCache::Host(cache) => cache.clear(slot),
            RowCache::Resident(cache) => cache.clear(slot),
        }
    }

    /// Gives a slot what another holds.
    pub(crate) fn copy_slot(&mut self, from: usize, to: usize) -> Result<(), StepError> {
        match self {
            RowCache::Host(cache) => cache.copy_slot(from, to),
            RowCache::Resident(cache) => cache.copy_slot(from, to)?,
        }
        Ok(())
    }

    /// Gives successive slots, from `first` on, what the slots of these positions among them hold.
    pub(crate) fn reorder(&mut self, first: usize, parents: &[usize]) -> Result<(), StepError> {
        match self {
            RowCache::Host(cache) => cache.reorder(first, parents),
            RowCache::Resident(cache) => cache.reorder(first, parents)?,
        }
        Ok(())
    }

    /// Takes other sizes, neither smaller.
    pub(crate) fn grow(&mut self, slots: usize, capacity: usize) -> Result<(), StepError> {
        match self {
            RowCache::Host(cache) => *cache = cache.try_grown(slots, capacity)?,
            RowCache::Resident(cache) => *cache = cache.grown(slots, capacity)?,
        }
        Ok(())
    }
}
