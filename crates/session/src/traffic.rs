//! Sizes that requests have had, along the dim that covers are chosen along, and the ladder that fits them best. Counts are
//! kept as a note of the cache, so that the next start can be fitted to the traffic of this one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use precast_cache::ProgramCache;
use precast_tensor::Digest;

use crate::buckets::BucketPolicy;
use crate::cover::CoverTable;
use crate::interface::Interface;
use crate::ladders::{Ladders, estimated_cost};
use crate::options::SessionOptions;
use crate::session::Session;

/// Kind of the notes.
const KIND: &str = "traffic";
/// Sizes above this are counted as this.
const SIZE_MAX: usize = 4096;
/// Buckets of a fitted ladder, unless the policy says another number.
pub(crate) const FITTED_BUCKETS: usize = 8;

/// Requests by size.
pub(crate) struct Traffic {
    subject: Option<Digest>,
    cache: Arc<ProgramCache>,
    /// What earlier Sessions saw.
    before: Vec<u64>,
    counts: Vec<AtomicU64>,
}

impl Traffic {
    pub(crate) fn new(interface: &Interface, cache: &Arc<ProgramCache>) -> Traffic {
        let subject = interface.graph.map(|digests| digests.graph);
        let note = subject.and_then(|subject| cache.note(KIND, &subject));
        let before = note.and_then(|note| postcard::from_bytes::<Vec<u64>>(&note).ok()).unwrap_or_default();
        let counts = std::iter::repeat_with(AtomicU64::default).take(SIZE_MAX + 1).collect();
        Traffic { subject, cache: cache.clone(), before, counts }
    }

    pub(crate) fn count(&self, rows: i64) {
        self.counts[rows.clamp(0, SIZE_MAX as i64) as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Requests by size, earlier Sessions' with them.
    fn all(&self) -> Vec<u64> {
        let before = self.before.iter().copied().chain(std::iter::repeat(0));
        self.counts
            .iter()
            .zip(before)
            .map(|(count, before)| count.load(Ordering::Relaxed).saturating_add(before))
            .collect()
    }

    /// The ladders, that of the primary dim fitted to the traffic where the policy says so and there was some.
    pub(crate) fn fitted(&self, ladders: Ladders, options: &SessionOptions) -> Ladders {
        let Some(primary) = ladders.primary() else { return ladders };
        let policy = ladders.symbol(primary).and_then(|symbol| options.dims.get(symbol)).map(|dim| &dim.buckets);
        let Some(&BucketPolicy::Fitted { max, count }) = policy else { return ladders };
        let traffic = self.all();
        if traffic.iter().all(|&count| count == 0) {
            return ladders;
        }
        ladders.with_primary_extents(fit_extents(&traffic, max, count.unwrap_or(FITTED_BUCKETS), estimated_cost))
    }
}

impl Session {
    /// Keeps the sizes of the requests so far, for later Sessions of this model that are fitted to traffic.
    pub fn save_traffic(&self) {
        let traffic = &self.inner.traffic;
        if let (Some(subject), Ok(text)) = (&traffic.subject, postcard::to_allocvec(&traffic.all())) {
            traffic.cache.keep_note(KIND, subject, &text);
        }
    }

    /// Requests so far by size, those of earlier Sessions with them where they were saved.
    pub fn traffic(&self) -> Vec<u64> {
        self.inner.traffic.all()
    }
}

/// The `count` extents, `max` among them, that cost this traffic least: exact where every request is padded into one
/// Bucket, then improved by exchanging extents while covers of several Buckets make that cheaper.
pub fn fit_extents(traffic: &[u64], max: i64, count: usize, cost: impl Fn(i64) -> f64) -> Vec<i64> {
    let count = count.clamp(1, max.max(1) as usize);
    let weight = |size: i64| traffic.get(size as usize).copied().unwrap_or(0) as f64;
    // Only sizes that occur can be ends of the best ladder.
    let mut sizes: Vec<i64> = (1..max).filter(|&size| weight(size) > 0.0).collect();
    sizes.push(max);
    let mut best = pad_only(&sizes, count, &weight, &cost);
    let total = |extents: &[i64]| {
        let buckets: Vec<(i64, f64)> = extents.iter().map(|&extent| (extent, cost(extent))).collect();
        let covers = CoverTable::new(&buckets, true);
        let price = |size: i64| covers.cover(size).iter().map(|&extent| cost(extent)).sum::<f64>();
        (1..=max).filter(|&size| weight(size) > 0.0).map(|size| weight(size) * price(size)).sum::<f64>()
    };
    let mut best_total = total(&best);
    loop {
        let exchanges = (0..best.len()).filter(|&at| best[at] != max).flat_map(|at| {
            let candidates = sizes.iter().filter(|size| !best.contains(size));
            candidates.map(|&size| replaced(&best, at, size)).collect::<Vec<Vec<i64>>>()
        });
        let improved = exchanges.map(|extents| (total(&extents), extents)).min_by(|a, b| a.0.total_cmp(&b.0));
        match improved {
            Some((price, extents)) if price < best_total => (best_total, best) = (price, extents),
            _ => return best,
        }
    }
}

fn replaced(extents: &[i64], at: usize, size: i64) -> Vec<i64> {
    let mut extents = extents.to_vec();
    extents[at] = size;
    extents.sort_unstable();
    extents
}

/// The best ladder where every request takes the smallest Bucket it fits in. `sizes` increase and end with the maximum.
fn pad_only(sizes: &[i64], count: usize, weight: &dyn Fn(i64) -> f64, cost: &dyn Fn(i64) -> f64) -> Vec<i64> {
    let count = count.min(sizes.len());
    // best[k][end]: price of the sizes up to `end` with k + 1 extents of which sizes[end] is the last, and the one before.
    let mut sums = vec![0.0; sizes.len() + 1];
    for (at, &size) in sizes.iter().enumerate() {
        sums[at + 1] = sums[at] + weight(size);
    }
    let price = |from: usize, end: usize| (sums[end + 1] - sums[from]) * cost(sizes[end]);
    let mut best: Vec<Vec<(f64, usize)>> = vec![(0..sizes.len()).map(|end| (price(0, end), usize::MAX)).collect()];
    for k in 1..count {
        let row = (0..sizes.len()).map(|end| {
            let choices = (k - 1..end).map(|before| (best[k - 1][before].0 + price(before + 1, end), before));
            choices.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, usize::MAX))
        });
        best.push(row.collect());
    }
    let (mut end, mut extents) = (sizes.len() - 1, Vec::new());
    for k in (0..count).rev() {
        extents.push(sizes[end]);
        if k > 0 {
            end = best[k][end].1;
        }
    }
    extents.reverse();
    extents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_of_few_sizes_gets_exactly_those() {
        let mut traffic = vec![0; 65];
        (traffic[3], traffic[17], traffic[40]) = (1000, 500, 700);
        assert_eq!(fit_extents(&traffic, 64, 4, |extent| 8.0 + extent as f64), [3, 17, 40, 64]);
    }

    #[test]
    fn the_maximum_is_always_in() {
        assert_eq!(fit_extents(&[0; 4], 64, 3, |extent| extent as f64), [64]);
        assert_eq!(fit_extents(&[0, 9], 64, 1, |extent| extent as f64), [64]);
    }

    #[test]
    fn a_fitted_ladder_costs_no_more_than_powers_of_two() {
        let traffic: Vec<u64> = (0..=64).map(|size| if size == 0 { 0 } else { 1 + (size * 7919 % 13) }).collect();
        let cost = |extent: i64| 5.0 + extent as f64;
        let price = |extents: &[i64]| {
            let buckets: Vec<(i64, f64)> = extents.iter().map(|&extent| (extent, cost(extent))).collect();
            let covers = CoverTable::new(&buckets, true);
            let of = |size: i64| covers.cover(size).iter().map(|&extent| cost(extent)).sum::<f64>();
            (1..=64).map(|size| traffic[size as usize] as f64 * of(size)).sum::<f64>()
        };
        let fitted = fit_extents(&traffic, 64, 7, cost);
        assert_eq!(fitted.len(), 7);
        assert!(price(&fitted) <= price(&[1, 2, 4, 8, 16, 32, 64]));
    }
}
