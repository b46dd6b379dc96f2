//! Binding a request to Programs: which Buckets cover it, whether they are loaded, and the Binding that lays out its bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use precast_program::Bucket;

use crate::binding::{Binding, Parts};
use crate::cover::CoverTable;
use crate::error::SessionError;
use crate::ladders::{Costs, Ladders, Layout};
use crate::programs::{Entry, Table};
use crate::report::Chunk;
use crate::request::Argument;
use crate::session::Inner;

/// What `bind` found.
pub(crate) enum Bind {
    Ready(Arc<Binding>),
    Missing(Vec<Bucket>),
}

/// The Buckets that were chosen for a request.
struct Choice<'a> {
    ladders: &'a Ladders,
    layout: &'a Layout,
    /// One entry a chunk.
    entries: Vec<Arc<Entry>>,
    epoch: u64,
    is_cost_estimated: bool,
    /// What would have been chosen had it been loaded.
    missing: &'a [Bucket],
}

impl Inner {
    /// Covers along the primary dim beside these extents of the others.
    fn covers(&self, epoch: u64, extents: &[i64]) -> (Arc<CoverTable>, bool) {
        let others = self.programs.read(|table| {
            let mut others = extents.to_vec();
            if let Some(primary) = table.ladders.primary() {
                others[primary] = 0;
            }
            others
        });
        if let Some(known) = self.programs.read(|table| table.covers(&others).cloned()) {
            return known;
        }
        let (covers, is_estimated) = self.programs.read(|table| {
            let costs = Costs::new(table.ladders.primary_extents(), |extent| cost_of(table, extents, extent));
            (Arc::new(table.ladders.covers(&costs)), costs.is_estimated)
        });
        self.programs.keep_covers(epoch, others, covers.clone(), is_estimated);
        (covers, is_estimated)
    }

    /// A Binding for a request, or the Buckets that are missing for one.
    pub(crate) fn bind(&self, values: &[i64], arguments: &[Argument<'_>]) -> Result<Bind, SessionError> {
        if let Some(binding) = self.programs.read(|table| table.binding(values).cloned()) {
            return Ok(Bind::Ready(binding));
        }
        let epoch = self.programs.epoch();
        let ladders = self.programs.read(|table| table.ladders.clone());
        let extents = ladders.other_extents(values)?;
        let (covers, is_cost_estimated) = self.covers(epoch, &extents);
        let layout = ladders.layout(values, extents, &covers)?;
        let buckets = chunk_buckets(&ladders, &layout);
        let found = self.programs.read(|table| {
            let mut missing: Vec<Bucket> =
                buckets.iter().filter(|bucket| !table.entries.contains_key(bucket)).cloned().collect();
            missing.dedup();
            let entries: Vec<Arc<Entry>> =
                buckets.iter().filter_map(|bucket| table.entries.get(bucket).cloned()).collect();
            if missing.is_empty() { Ok(entries) } else { Err(missing) }
        });
        let entries = match found {
            Ok(entries) => entries,
            Err(missing) => return Ok(Bind::Missing(missing)),
        };
        let choice = Choice { ladders: &ladders, layout: &layout, entries, epoch, is_cost_estimated, missing: &[] };
        let binding = self.make_binding(values, choice, arguments)?;
        self.programs.keep_binding(values.to_vec(), &binding);
        let (fit, chunks) = (binding.report.fit, binding.report.chunks);
        tracing::debug!(?values, ?fit, buckets = ?chunks.named(), epoch, "bound a new form of request");
        Ok(Bind::Ready(binding))
    }

    /// A Binding on loaded Buckets only, if they can cover the request, where those of the best cover are missing.
    pub(crate) fn bind_loaded(
        &self,
        values: &[i64],
        arguments: &[Argument<'_>],
        missing: &[Bucket],
    ) -> Result<Option<Arc<Binding>>, SessionError> {
        let epoch = self.programs.epoch();
        let ladders = self.programs.read(|table| table.ladders.clone());
        let Some(primary) = ladders.primary() else { return Ok(None) };
        let candidates: Vec<Vec<i64>> = self.programs.read(|table| {
            let of = |entry: &Arc<Entry>| table.ladders.extents_of(&entry.bucket);
            table.entries.values().filter(|entry| table.ladders.contains(&entry.bucket)).map(of).collect()
        });
        // The loaded Buckets that are large enough in the other dims, by the extents of those.
        let fits = |extents: &Vec<i64>| {
            (0..values.len()).all(|dim| {
                dim == primary
                    || extents[dim] == values[dim]
                    || (ladders.is_bucketed(dim) && extents[dim] >= values[dim])
            })
        };
        let mut by_others: BTreeMap<Vec<i64>, Vec<i64>> = BTreeMap::new();
        for mut extents in candidates.into_iter().filter(fits) {
            let extent = std::mem::replace(&mut extents[primary], values[primary]);
            by_others.entry(extents).or_default().push(extent);
        }
        for (others, mut extents) in by_others {
            extents.sort_unstable();
            let costs = self.programs.read(|table| Costs::new(&extents, |extent| cost_of(table, &others, extent)));
            let loaded = ladders.with_primary_extents(extents);
            let Ok(layout) = loaded.layout(values, others, &loaded.covers(&costs)) else { continue };
            let buckets = chunk_buckets(&loaded, &layout);
            let entries = self.programs.read(|table| {
                buckets.iter().map(|bucket| table.entries.get(bucket).cloned()).collect::<Option<Vec<Arc<Entry>>>>()
            });
            let Some(entries) = entries else { continue };
            let is_cost_estimated = costs.is_estimated;
            let choice = Choice { ladders: &loaded, layout: &layout, entries, epoch, is_cost_estimated, missing };
            let binding = self.make_binding(values, choice, arguments)?;
            self.programs.keep_binding(values.to_vec(), &binding);
            return Ok(Some(binding));
        }
        Ok(None)
    }

    fn make_binding(
        &self,
        values: &[i64],
        choice: Choice<'_>,
        arguments: &[Argument<'_>],
    ) -> Result<Arc<Binding>, SessionError> {
        let Choice { ladders, layout, entries, epoch, is_cost_estimated, missing } = choice;
        entries.iter().for_each(|entry| self.programs.touch(entry));
        let (interface, unifier) = (&self.interface, &self.unifier);
        let parts = Parts { interface, unifier, ladders, values, layout, entries, epoch, is_cost_estimated, missing };
        Ok(Arc::new(Binding::new(parts, arguments)?))
    }
}

/// Buckets of a layout's chunks.
fn chunk_buckets(ladders: &Ladders, layout: &Layout) -> Vec<Bucket> {
    let bucket = |chunk: &Chunk| {
        let mut extents = layout.extents.clone();
        if let Some(primary) = ladders.primary() {
            extents[primary] = chunk.bucket;
        }
        ladders.bucket(&extents)
    };
    layout.chunks.iter().map(bucket).collect()
}

/// Measured cost of the Bucket with this extent of the primary dim.
fn cost_of(table: &Table, extents: &[i64], extent: i64) -> Option<f64> {
    let mut extents = extents.to_vec();
    extents[table.ladders.primary()?] = extent;
    table.costs.get(&table.ladders.bucket(&extents)).copied()
}
