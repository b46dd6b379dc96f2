//! Bucket policies: which extents of a dim are compiled. The declared maximum is always one of them.

use std::str::FromStr;

/// Which extents of a dim have Programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BucketPolicy {
    /// Only extents that are asked for; nothing is padded.
    Exact,
    /// 1, 2, 4, … and the maximum.
    PowersOfTwo {
        /// The largest extent.
        max: i64,
    },
    /// 1, 2, 3, 4, 6, 8, 12, … (2^i and 3·2^i) and the maximum: the ladder that a fit to traffic starts from.
    Fitted {
        /// The largest extent.
        max: i64,
        /// Extents that a fit to traffic may have; eight unless set.
        count: Option<usize>,
    },
    /// These extents, in increasing order.
    List(Vec<i64>),
}

impl BucketPolicy {
    /// Extents in increasing order; empty for `Exact`.
    pub fn extents(&self) -> Vec<i64> {
        match self {
            BucketPolicy::Exact => Vec::new(),
            BucketPolicy::PowersOfTwo { max } => ladder(*max, &[1]),
            BucketPolicy::Fitted { max, .. } => ladder(*max, &[1, 3]),
            BucketPolicy::List(extents) => extents.clone(),
        }
    }

    /// The largest extent, if there is one.
    pub fn max(&self) -> Option<i64> {
        self.extents().last().copied()
    }
}

/// Doublings of `starts` up to the maximum, and the maximum.
fn ladder(max: i64, starts: &[i64]) -> Vec<i64> {
    let doublings = |start: i64| std::iter::successors(Some(start), |extent| extent.checked_mul(2));
    let mut extents: Vec<i64> =
        starts.iter().flat_map(|&start| doublings(start).take_while(|&extent| extent < max)).collect();
    extents.push(max);
    extents.sort_unstable();
    extents
}

impl FromStr for BucketPolicy {
    type Err = String;

    /// `exact`, `pow2:64`, `fitted:64`, `fitted:64,k=6` or a list such as `1,2,6`.
    fn from_str(text: &str) -> Result<BucketPolicy, String> {
        let extent = |text: &str| match text.trim().parse::<i64>() {
            Ok(extent) if extent > 0 => Ok(extent),
            _ => Err(format!("'{text}' is not an extent; a number above 0 was expected")),
        };
        if text == "exact" {
            return Ok(BucketPolicy::Exact);
        }
        if let Some(max) = text.strip_prefix("pow2:") {
            return Ok(BucketPolicy::PowersOfTwo { max: extent(max)? });
        }
        if let Some(rest) = text.strip_prefix("fitted:") {
            let (max, count) = match rest.split_once(",k=") {
                None => (rest, None),
                Some((max, count)) => (max, Some(extent(count)? as usize)),
            };
            return Ok(BucketPolicy::Fitted { max: extent(max)?, count });
        }
        let mut extents = text.split(',').map(extent).collect::<Result<Vec<i64>, String>>()?;
        extents.sort_unstable();
        if let Some(twice) = extents.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("the extent {} is given twice", twice[0]));
        }
        Ok(BucketPolicy::List(extents))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_end_with_the_maximum() {
        let extents = |max| BucketPolicy::PowersOfTwo { max }.extents();
        assert_eq!(extents(100), [1, 2, 4, 8, 16, 32, 64, 100]);
        assert_eq!(extents(64), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(extents(1), [1]);
    }

    #[test]
    fn the_fitted_ladder_has_halves_between_powers() {
        assert_eq!(BucketPolicy::Fitted { max: 20, count: None }.extents(), [1, 2, 3, 4, 6, 8, 12, 16, 20]);
    }

    #[test]
    fn policies_read_as_they_are_written() {
        assert_eq!("pow2:8".parse(), Ok(BucketPolicy::PowersOfTwo { max: 8 }));
        assert_eq!("fitted:8,k=3".parse(), Ok(BucketPolicy::Fitted { max: 8, count: Some(3) }));
        assert_eq!("6,1,2".parse(), Ok(BucketPolicy::List(vec![1, 2, 6])));
        assert_eq!("exact".parse(), Ok(BucketPolicy::Exact));
        for bad in ["0", "1,x", "2,2", "pow2:", "pow2:-4", ""] {
            assert!(bad.parse::<BucketPolicy>().is_err(), "{bad}");
        }
    }
}
