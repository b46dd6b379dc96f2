//! Which Buckets a request runs on: a ladder of extents for each dim that has one, and covers along the dim that may be
//! split. The other dims choose their extents first. A pure function of the request and the known costs.

use std::collections::BTreeMap;

use precast_program::Bucket;

use crate::cover::CoverTable;
use crate::error::SessionError;
use crate::interface::{Interface, PadGrade};
use crate::options::SessionOptions;
use crate::report::{Chunk, Fit};

/// Ladders of all dims, in the order of the interface's dims.
#[derive(Clone, Debug)]
pub(crate) struct Ladders {
    symbols: Vec<String>,
    /// Extents in increasing order; empty for dims that are exact.
    extents: Vec<Vec<i64>>,
    /// The dim that covers are chosen along, if any has a ladder.
    primary: Option<usize>,
    is_split_safe: bool,
}

/// How a request is laid out on Buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Extents of all dims; that of the primary dim is replaced by each chunk's.
    pub(crate) extents: Vec<i64>,
    /// Chunks along the primary dim, in order; one where there is none.
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) fit: Fit,
}

/// What Buckets cost, in any one unit.
pub(crate) struct Costs {
    pub(crate) by_extent: Vec<(i64, f64)>,
    pub(crate) is_estimated: bool,
}

impl Ladders {
    /// Ladders by the options. Dims whose rows may not be padded are exact whatever was asked for.
    pub(crate) fn new(interface: &Interface, options: &SessionOptions) -> Result<Ladders, SessionError> {
        let symbols: Vec<String> = interface.dims.iter().map(|dim| dim.symbol.clone()).collect();
        for name in options.dims.keys().chain(&options.split_dim) {
            if !symbols.contains(name) {
                let known = if symbols.is_empty() { "none".to_string() } else { symbols.join(", ") };
                return Err(SessionError::Options(format!("the model has no dim '{name}'; it has {known}")));
            }
        }
        let extents = interface.dims.iter().map(|dim| match options.dims.get(&dim.symbol) {
            Some(chosen) if dim.grade != PadGrade::Refused => chosen.buckets.extents(),
            _ => Vec::new(),
        });
        let mut ladders = Ladders { extents: extents.collect(), symbols, primary: None, is_split_safe: false };
        let has_ladder = |position: &usize| !ladders.extents[*position].is_empty();
        let may_split = |position: &usize| interface.dims[*position].is_split_safe;
        let dims = 0..interface.dims.len();
        ladders.primary = match &options.split_dim {
            Some(name) => dims.clone().find(|&position| interface.dims[position].symbol == *name),
            None => dims.clone().filter(has_ladder).find(may_split).or_else(|| dims.clone().find(has_ladder)),
        };
        if let Some(position) = ladders.primary {
            if !has_ladder(&position) {
                let name = &ladders.symbols[position];
                return Err(SessionError::Options(format!("'{name}' cannot be split: it has no Buckets")));
            }
            ladders.is_split_safe = may_split(&position);
        }
        ladders.keep_axes_apart(interface);
        let count = ladders.bucket_count();
        if count > options.buckets_max as u64 {
            let factors: Vec<String> =
                ladders.extents.iter().filter(|e| !e.is_empty()).map(|e| e.len().to_string()).collect();
            return Err(SessionError::Options(format!(
                "{} = {count} Buckets are more than {}; give fewer extents",
                factors.join(" × "),
                options.buckets_max
            )));
        }
        Ok(ladders)
    }

    /// Two dims on one axis of an output could not be sliced apart: of such dims only the primary keeps its ladder.
    fn keep_axes_apart(&mut self, interface: &Interface) {
        let Some(primary) = self.primary else { return };
        let axis =
            |dim: usize, output: usize| interface.dims[dim].outputs.get(output).copied().flatten().map(|at| at.axis);
        let mut kept = vec![primary];
        for dim in 0..self.extents.len() {
            let shares = |other: &usize| {
                (0..interface.outputs.len())
                    .any(|output| axis(dim, output).is_some_and(|at| axis(*other, output) == Some(at)))
            };
            if dim != primary && !self.extents[dim].is_empty() {
                if kept.iter().any(shares) {
                    self.extents[dim].clear();
                } else {
                    kept.push(dim);
                }
            }
        }
    }

    fn bucket_count(&self) -> u64 {
        self.extents.iter().filter(|extents| !extents.is_empty()).map(|extents| extents.len() as u64).product()
    }

    /// Symbol of a dim.
    pub(crate) fn symbol(&self, dim: usize) -> Option<&String> {
        self.symbols.get(dim)
    }

    /// The dim that covers are chosen along.
    pub(crate) fn primary(&self) -> Option<usize> {
        self.primary
    }

    /// Extents of the primary dim.
    pub(crate) fn primary_extents(&self) -> &[i64] {
        self.primary.map_or(&[], |primary| &self.extents[primary])
    }

    /// Gives the primary dim other extents.
    pub(crate) fn with_primary_extents(&self, extents: Vec<i64>) -> Ladders {
        let mut ladders = self.clone();
        if let Some(primary) = self.primary {
            ladders.extents[primary] = extents;
        }
        ladders
    }

    /// Whether a dim has a ladder.
    pub(crate) fn is_bucketed(&self, dim: usize) -> bool {
        !self.extents[dim].is_empty()
    }

    /// Every Bucket whose dims are all on ladders, the largest first, then the smallest: by padding the largest can serve
    /// every request. None where a dim is exact, since its extents are not known.
    pub(crate) fn all(&self) -> Vec<Bucket> {
        if self.extents.iter().any(Vec::is_empty) {
            return if self.extents.is_empty() { vec![Bucket::default()] } else { Vec::new() };
        }
        let mut all: Vec<Vec<i64>> = vec![Vec::new()];
        for extents in &self.extents {
            let longer =
                |start: &Vec<i64>| extents.iter().map(|&extent| [start.as_slice(), &[extent]].concat()).collect();
            all = all.iter().flat_map(|start| -> Vec<Vec<i64>> { longer(start) }).collect();
        }
        all.reverse();
        if all.len() > 2 {
            let smallest = all.pop().unwrap_or_default();
            all.insert(1, smallest);
        }
        all.iter().map(|extents| self.bucket(extents)).collect()
    }

    /// The Bucket of these extents.
    pub(crate) fn bucket(&self, extents: &[i64]) -> Bucket {
        Bucket::new(self.symbols.iter().cloned().zip(extents.iter().copied()))
    }

    /// Extents of a Bucket, in the order of the dims.
    pub(crate) fn extents_of(&self, bucket: &Bucket) -> Vec<i64> {
        let of: BTreeMap<&str, i64> = bucket.dims().collect();
        self.symbols.iter().map(|symbol| of.get(symbol.as_str()).copied().unwrap_or(0)).collect()
    }

    /// Whether a Bucket is one of the ladders'.
    pub(crate) fn contains(&self, bucket: &Bucket) -> bool {
        let extents = self.extents_of(bucket);
        let mut dims = self.extents.iter().zip(&extents);
        self.primary.is_some() && dims.all(|(ladder, extent)| ladder.is_empty() || ladder.contains(extent))
    }

    /// Extents of the dims beside the primary one, which keeps the request's own.
    pub(crate) fn other_extents(&self, values: &[i64]) -> Result<Vec<i64>, SessionError> {
        let choose = |(dim, &value): (usize, &i64)| {
            let extents = &self.extents[dim];
            if Some(dim) == self.primary || extents.is_empty() {
                return Ok(value);
            }
            let above = |max: i64| {
                SessionError::OutOfRange(format!("{} = {value} is above the largest Bucket {max}", self.symbols[dim]))
            };
            let max = extents.last().copied().unwrap_or(0);
            extents.iter().copied().find(|&extent| extent >= value).ok_or_else(|| above(max))
        };
        values.iter().enumerate().map(choose).collect()
    }

    /// The table of covers along the primary dim for Buckets with these costs.
    pub(crate) fn covers(&self, costs: &Costs) -> CoverTable {
        CoverTable::new(&costs.by_extent, self.is_split_safe)
    }

    /// How a request lies on Buckets.
    pub(crate) fn layout(
        &self,
        values: &[i64],
        extents: Vec<i64>,
        covers: &CoverTable,
    ) -> Result<Layout, SessionError> {
        let is_padded = |extents: &[i64]| extents.iter().zip(values).any(|(extent, value)| extent != value);
        let Some(primary) = self.primary else {
            let rows = values.first().copied().unwrap_or(1);
            return Ok(Layout { extents, chunks: vec![Chunk { bucket: rows, rows }], fit: Fit::Exact });
        };
        let rows = values[primary];
        let cover = covers.cover(rows);
        let mut left = rows;
        let chunks: Vec<Chunk> = cover
            .iter()
            .map(|&bucket| {
                let chunk = Chunk { bucket, rows: left.min(bucket) };
                left -= chunk.rows;
                chunk
            })
            .collect();
        let fit = match chunks[..] {
            [] => {
                let max = self.extents[primary].last().copied().unwrap_or(0);
                return Err(SessionError::OutOfRange(format!(
                    "{} = {rows} is above the largest Bucket {max}, and the model may not be split along it",
                    self.symbols[primary]
                )));
            }
            [chunk] if chunk.bucket == rows && !is_padded(&extents) => Fit::Exact,
            [_] => Fit::Padded,
            _ => Fit::Split,
        };
        Ok(Layout { extents, chunks, fit })
    }
}

impl Costs {
    /// Costs of the extents of one ladder: those measured, and the line through the measured ones for the others. With
    /// fewer than two measured, a call costs as much as some rows.
    pub(crate) fn new(extents: &[i64], measured: impl Fn(i64) -> Option<f64>) -> Costs {
        let known: Vec<(i64, f64)> = extents.iter().filter_map(|&extent| Some((extent, measured(extent)?))).collect();
        let line = match known[..] {
            [] | [_] => |extent: i64, _: &[(i64, f64)]| estimated_cost(extent),
            _ => |extent: i64, known: &[(i64, f64)]| {
                let (&(x0, y0), &(x1, y1)) = (&known[known.len() - 2], &known[known.len() - 1]);
                let slope = ((y1 - y0) / (x1 - x0) as f64).max(0.0);
                (y1 + slope * (extent - x1) as f64).max(0.0)
            },
        };
        let has_line = known.len() >= 2;
        let cost = |extent: i64| match measured(extent).filter(|_| has_line) {
            Some(cost) => cost,
            None => line(extent, &known),
        };
        Costs {
            by_extent: extents.iter().map(|&extent| (extent, cost(extent))).collect(),
            is_estimated: known.len() < extents.len(),
        }
    }
}

/// What a call costs beside its rows, in rows: an estimate that keeps requests in one Bucket where it fits.
const CALL_COST_ROWS: f64 = 8.0;

/// What a Bucket costs, in rows, where nothing is measured.
pub(crate) fn estimated_cost(extent: i64) -> f64 {
    CALL_COST_ROWS + extent as f64
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::buckets::BucketPolicy;
    use crate::interface::{DimInterface, RowAxis, SymbolicPort};
    use crate::options::DimOptions;

    fn dim(symbol: &str, grade: PadGrade, is_split_safe: bool, axis: usize) -> DimInterface {
        DimInterface {
            symbol: symbol.to_string(),
            range: (0, i64::MAX >> 20, 1),
            grade,
            is_split_safe,
            explanation: String::new(),
            outputs: vec![Some(RowAxis { axis, outer: 1, inner: 1 })],
        }
    }

    fn interface(dims: Vec<DimInterface>) -> Interface {
        let port = SymbolicPort { name: "y".to_string(), ty: "f32[b,s]".parse().unwrap() };
        Interface { inputs: vec![port.clone()], outputs: vec![port], dims, graph: None }
    }

    fn options(dims: &[(&str, &str)]) -> SessionOptions {
        let dims = dims
            .iter()
            .map(|(name, policy)| (name.to_string(), DimOptions { buckets: policy.parse::<BucketPolicy>().unwrap() }));
        SessionOptions { dims: dims.collect(), ..SessionOptions::default() }
    }

    fn layout(ladders: &Ladders, values: &[i64]) -> Result<Layout, SessionError> {
        let costs = Costs::new(ladders.primary_extents(), |_| None);
        ladders.layout(values, ladders.other_extents(values)?, &ladders.covers(&costs))
    }

    #[test]
    fn the_other_dims_are_padded_and_the_primary_is_covered() {
        let two = interface(vec![dim("b", PadGrade::Independent, true, 0), dim("s", PadGrade::Independent, false, 1)]);
        let ladders = Ladders::new(&two, &options(&[("b", "pow2:4"), ("s", "16,64")])).unwrap();
        assert_eq!(ladders.all().len(), 6);
        assert_eq!(ladders.all()[0].to_string(), "b=4,s=64");
        assert_eq!(ladders.all()[1].to_string(), "b=1,s=16");
        let found = layout(&ladders, &[9, 20]).unwrap();
        assert_eq!((found.extents, found.fit), (vec![9, 64], Fit::Split));
        assert_eq!(found.chunks.iter().map(|chunk| chunk.rows).sum::<i64>(), 9);
        assert!(matches!(layout(&ladders, &[1, 65]), Err(SessionError::OutOfRange(_))));
        assert_eq!(layout(&ladders, &[4, 64]).unwrap().fit, Fit::Exact);
        assert_eq!(layout(&ladders, &[4, 60]).unwrap().fit, Fit::Padded);
    }

    #[test]
    fn dims_that_may_not_be_padded_or_share_an_axis_are_exact() {
        let refused = interface(vec![dim("b", PadGrade::Independent, true, 0), dim("s", PadGrade::Refused, false, 1)]);
        let ladders = Ladders::new(&refused, &options(&[("b", "pow2:4"), ("s", "16,64")])).unwrap();
        assert_eq!((ladders.is_bucketed(0), ladders.is_bucketed(1)), (true, false));
        assert_eq!(layout(&ladders, &[4, 60]).unwrap().extents, [4, 60]);
        let shared =
            interface(vec![dim("b", PadGrade::Independent, true, 0), dim("s", PadGrade::Independent, true, 0)]);
        let ladders = Ladders::new(&shared, &options(&[("b", "pow2:4"), ("s", "16,64")])).unwrap();
        assert_eq!((ladders.is_bucketed(0), ladders.is_bucketed(1)), (true, false));
    }

    #[test]
    fn too_many_buckets_are_an_error_that_prints_the_product() {
        let two = interface(vec![dim("b", PadGrade::Independent, true, 0), dim("s", PadGrade::Independent, false, 1)]);
        let many = SessionOptions { buckets_max: 10, ..options(&[("b", "pow2:64"), ("s", "1,2")]) };
        let error = Ladders::new(&two, &many).unwrap_err().to_string();
        assert_eq!(error, "7 × 2 = 14 Buckets are more than 10; give fewer extents");
        let error = Ladders::new(&two, &options(&[("c", "pow2:64")])).unwrap_err().to_string();
        assert_eq!(error, "the model has no dim 'c'; it has b, s");
    }

    #[test]
    fn unmeasured_costs_lie_on_the_line_of_the_measured() {
        let costs = Costs::new(&[1, 2, 4, 8], |extent| (extent <= 2).then_some(10.0 + extent as f64));
        assert_eq!(costs.by_extent, [(1, 11.0), (2, 12.0), (4, 14.0), (8, 18.0)]);
        assert!(costs.is_estimated);
    }
}
