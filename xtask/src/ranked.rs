//! Outputs whose rows lie in the order of a score, as detections do. Rounding swaps rows whose scores are nearly equal and
//! lets one row or another make the cut, which is no error; whoever compares such outputs aligns them first.

use anyhow::{Result, ensure};
use precast::Tensor;
use serde::{Deserialize, Serialize};

/// How the rows `[.., rows, columns]` of an output are ordered.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ranking {
    /// The column of the scores.
    pub score_column: usize,
    /// The largest difference of scores that have no order, and relative distance of rows that are the same.
    pub tolerance: f64,
}

impl Ranking {
    /// The found rows in the order of the expected ones. A found row may stand for an expected one where their scores have
    /// no order; of those it is the closest. Expected rows whose score is that close to the last one's may be missing.
    /// Whatever else is missing is filled with rows that are left over.
    pub fn align(&self, found: &Tensor, expected: &Tensor) -> Result<Tensor> {
        let &Ranking { score_column, tolerance } = self;
        align(found, expected, score_column, tolerance)
    }
}

fn align(found: &Tensor, expected: &Tensor, score_column: usize, tolerance: f64) -> Result<Tensor> {
    let (shape, columns) = (expected.shape(), expected.shape().last().copied().unwrap_or(0));
    ensure!(found.shape() == shape, "found {}, expected {}", found.type_(), expected.type_());
    ensure!(shape.len() >= 2 && score_column < columns, "{} has no column {score_column}", expected.type_());
    let rows = shape[shape.len() - 2];
    let (mut found_values, expected_values) = (found.to_f64_vec(), expected.to_f64_vec());
    let images = found_values.chunks_mut(rows * columns).zip(expected_values.chunks(rows * columns));
    for (found, expected) in images {
        let found_rows: Vec<&[f64]> = found.chunks(columns).collect();
        let expected_rows: Vec<&[f64]> = expected.chunks(columns).collect();
        let aligned = align_rows(&found_rows, &expected_rows, score_column, tolerance).concat();
        found.copy_from_slice(&aligned);
    }
    Ok(Tensor::from_f64(found.dtype(), shape, &found_values, false)?)
}

fn align_rows<'a>(found: &[&'a [f64]], expected: &[&'a [f64]], column: usize, tolerance: f64) -> Vec<&'a [f64]> {
    let mut left: Vec<&[f64]> = found.to_vec();
    let mut aligned: Vec<Option<&[f64]>> = expected
        .iter()
        .map(|row| {
            let is_near = |other: &&[f64]| (other[column] - row[column]).abs() <= tolerance;
            let candidates = left.iter().enumerate().filter(|(_, other)| is_near(other));
            let (at, _) = candidates.min_by(|(_, a), (_, b)| distance(a, row).total_cmp(&distance(b, row)))?;
            is_same(left[at], row, tolerance).then(|| left.remove(at))
        })
        .collect();
    let cut = expected.last().map_or(f64::NAN, |row| row[column]);
    for (place, row) in aligned.iter_mut().zip(expected) {
        if place.is_none() {
            let at_the_cut = (row[column] - cut).abs() <= tolerance;
            let rest = left.pop().unwrap_or(row);
            *place = Some(if at_the_cut { row } else { rest });
        }
    }
    aligned.into_iter().flatten().collect()
}

/// Whether two rows are the same detection.
fn is_same(a: &[f64], b: &[f64], tolerance: f64) -> bool {
    let norm: f64 = b.iter().map(|value| value * value).sum::<f64>().sqrt();
    distance(a, b) <= tolerance * norm
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    let distance = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
    if distance.is_nan() { f64::INFINITY } else { distance }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[[f32; 2]]) -> Tensor {
        Tensor::from_vec([1, rows.len(), 2], rows.concat()).unwrap()
    }

    fn aligned(found: &[[f32; 2]], expected: &[[f32; 2]]) -> Vec<f32> {
        align(&rows(found), &rows(expected), 1, 1e-3).unwrap().to_vec().unwrap()
    }

    #[test]
    fn rows_of_nearly_equal_scores_may_be_swapped() {
        let found = aligned(
            &[[5.0, 0.9], [8.0, 0.7], [7.0, 0.6999], [1.0, 0.2]],
            &[[5.0, 0.9], [7.0, 0.7], [8.0, 0.6999], [1.0, 0.2]],
        );
        assert_eq!(found, [5.0, 0.9, 7.0, 0.6999, 8.0, 0.7, 1.0, 0.2]);
    }

    #[test]
    fn rows_of_other_scores_may_not() {
        let found = aligned(&[[8.0, 0.9], [7.0, 0.7], [1.0, 0.2]], &[[7.0, 0.9], [8.0, 0.7], [1.0, 0.2]]);
        assert_ne!(found[..4], [7.0, 0.9, 8.0, 0.7]);
    }

    #[test]
    fn only_the_rows_at_the_cut_may_be_missing() {
        assert_eq!(aligned(&[[5.0, 0.9], [3.0, 0.2]], &[[5.0, 0.9], [4.0, 0.2]]), [5.0, 0.9, 4.0, 0.2]);
        assert_eq!(aligned(&[[3.0, 0.9], [4.0, 0.2]], &[[5.0, 0.9], [4.0, 0.2]]), [3.0, 0.9, 4.0, 0.2]);
    }
}
