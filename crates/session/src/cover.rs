//! Covers: which Buckets answer a request of n rows. One table serves requests below and above the largest Bucket: the
//! cheapest list of Buckets with room for n rows, by the costs that are known; of equal ones the shortest, then the one
//! with the fewest padded rows. A pure function of the costs, so a request size always takes the same cover.

/// Buckets in the order in which they run; the first have no padding.
pub type Cover = Vec<i64>;

/// Requests up to this many times the largest Bucket are covered exactly; beyond it largest Buckets are peeled off.
const EXACT_MULTIPLE: i64 = 4;

/// Cheapest covers for every number of rows.
#[derive(Clone, Debug)]
pub struct CoverTable {
    /// Extents and costs, increasing by extent.
    buckets: Vec<(i64, f64)>,
    /// Best last Bucket for n rows, by n.
    choice: Vec<usize>,
}

/// Cost, number of chunks and padded rows of a cover: compared in this order.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Price(f64, u32, i64);

impl CoverTable {
    /// A table for Buckets with these costs. `is_split_safe` says whether a request may be answered by several Buckets.
    pub fn new(buckets: &[(i64, f64)], is_split_safe: bool) -> CoverTable {
        let mut buckets = buckets.to_vec();
        buckets.sort_by_key(|bucket| bucket.0);
        let max = buckets.last().map_or(0, |bucket| bucket.0);
        let end = if is_split_safe { EXACT_MULTIPLE * max } else { max };
        let mut prices = vec![Price(0.0, 0, 0)];
        let mut choice = vec![0];
        for rows in 1..=end {
            let candidates = buckets.iter().enumerate().filter(|(_, bucket)| is_split_safe || bucket.0 >= rows);
            let best = candidates
                .map(|(position, &(extent, cost))| {
                    let rest = prices[(rows - extent).max(0) as usize];
                    (Price(rest.0 + cost, rest.1 + 1, rest.2 + (extent - rows).max(0)), position)
                })
                .min_by(|a, b| a.0.partial_cmp(&b.0).unwrap_or(std::cmp::Ordering::Equal));
            let (price, position) = best.unwrap_or((Price(f64::INFINITY, 1, 0), 0));
            prices.push(price);
            choice.push(position);
        }
        CoverTable { buckets, choice }
    }

    /// Buckets for `rows` rows, largest first; empty where no cover exists.
    pub fn cover(&self, rows: i64) -> Cover {
        let mut cover = Cover::new();
        let Some(&(max, _)) = self.buckets.last() else { return cover };
        let end = self.choice.len() as i64 - 1;
        if end < max || rows <= 0 || (rows > end && end == max) {
            return cover;
        }
        let mut rest = rows;
        if rest > end {
            let (best, _) = self
                .buckets
                .iter()
                .copied()
                .min_by(|a, b| (a.1 / a.0 as f64).total_cmp(&(b.1 / b.0 as f64)))
                .unwrap_or((max, 0.0));
            while rest > end {
                cover.push(best);
                rest -= best;
            }
        }
        while rest > 0 {
            let extent = self.buckets[self.choice[rest as usize]].0;
            cover.push(extent);
            rest -= extent;
        }
        cover.sort_unstable_by(|a, b| b.cmp(a));
        cover
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_the_larger_bucket_decides_between_padding_and_splitting() {
        let table = |c16: f64| CoverTable::new(&[(1, 0.30), (8, 0.80), (16, c16)], true);
        assert_eq!(table(1.05).cover(9), [16]);
        assert_eq!(table(1.25).cover(9), [8, 1]);
    }

    #[test]
    fn without_split_safety_one_bucket_answers_or_none() {
        let table = CoverTable::new(&[(1, 1.0), (4, 2.0)], false);
        assert_eq!(table.cover(3), [4]);
        assert_eq!(table.cover(4), [4]);
        assert!(table.cover(5).is_empty());
    }

    #[test]
    fn covers_cost_no_more_than_any_other_list_of_buckets() {
        let mut seed = 7u64;
        let mut next = |limit: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % limit
        };
        for _ in 0..100 {
            let buckets: Vec<(i64, f64)> =
                [1, 2, 5, 8].iter().map(|&extent| (extent, 0.2 + next(100) as f64 / 40.0)).collect();
            let table = CoverTable::new(&buckets, true);
            for rows in 1..=32 {
                let cover = table.cover(rows);
                let cost =
                    |extent: i64| buckets.iter().find(|bucket| bucket.0 == extent).map_or(0.0, |bucket| bucket.1);
                let found: f64 = cover.iter().map(|&extent| cost(extent)).sum();
                assert!(cover.iter().sum::<i64>() >= rows);
                assert!(found <= cheapest(&buckets, rows) + 1e-9, "{rows} rows by {cover:?}");
            }
        }
    }

    /// By trying every last Bucket.
    fn cheapest(buckets: &[(i64, f64)], rows: i64) -> f64 {
        if rows <= 0 {
            return 0.0;
        }
        let mut best = vec![0.0; rows as usize + 1];
        for n in 1..=rows as usize {
            best[n] = buckets
                .iter()
                .map(|&(extent, cost)| cost + best[n.saturating_sub(extent as usize)])
                .fold(f64::INFINITY, f64::min);
        }
        best[rows as usize]
    }

    #[test]
    fn large_requests_are_covered_too() {
        let table = CoverTable::new(&[(1, 0.3), (8, 0.8)], true);
        let cover = table.cover(1000);
        assert!(cover.iter().sum::<i64>() >= 1000);
        assert!(cover.iter().all(|extent| [1, 8].contains(extent)));
    }
}
