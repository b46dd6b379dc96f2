//! The caches of the rows of a generator or of a draft model: on the host, or on the device where that keeps them.

use precast_session::RunReport;

use crate::kv_cache::KvCache;
use crate::plan::StepPlan;
use crate::resident::ResidentCache;
use crate::step_buffers::{Scores, StepBuffers};
use crate::text_model::{StepError, TextModel};

/// Keys and values of rows.
pub(crate) enum RowCache {
    /// On the host: a step reads it, and what the step gives is written behind it.
    Host(KvCache),
    /// On the device: a step reads and writes it there.
    Resident(ResidentCache),
}

/// Scores behind the rows of a step.
pub(crate) struct StepScores {
    /// All of them, where they were read.
    pub(crate) logits: Option<Vec<Scores>>,
    /// The largest, where the device says which.
    pub(crate) best: Vec<(u32, f32)>,
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

    /// Runs a step and keeps its new tokens: `tokens[i]` are those of row i of the plan. Scores stay on the device where they need
    /// not be read and it keeps caches.
    pub(crate) fn run(
        &mut self,
        model: &TextModel,
        plan: &StepPlan,
        tokens: &[&[u32]],
        buffers: &mut StepBuffers,
        reads_scores: bool,
    ) -> Result<(RunReport, StepScores), StepError> {
        match (self, model.resident_for(plan.is_long)) {
            (RowCache::Resident(cache), Some(decoder)) => {
                let outputs = model.run_resident(decoder, plan, tokens, cache, reads_scores)?;
                let logits = outputs.logits.map(|logits| logits.into_iter().map(Scores::from).collect());
                Ok((outputs.report, StepScores { logits, best: outputs.best }))
            }
            (RowCache::Resident(_), None) => unreachable!("only a resident decoder's cache is on its device"),
            (RowCache::Host(cache), _) => {
                let outputs = model.run(plan, tokens, cache, buffers)?;
                for (layer, half, bytes) in buffers.present() {
                    let row_bytes = cache.step_bytes(layer, half, plan.shape.length);
                    for row in &plan.rows {
                        let new = &bytes[plan.position(row) * row_bytes..][..row_bytes];
                        cache.write(layer, half, row.slot, row.cached, new, row.valid);
                    }
                }
                Ok((outputs.report, StepScores { logits: Some(outputs.logits), best: Vec::new() }))
            }
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
