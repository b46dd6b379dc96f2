//! How far two results are apart: one measure for models, one for elements.

use precast_tensor::{DType, Tensor};

/// How far a result may be from what is expected. Integers and booleans must always be equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// ‖a − b‖ ≤ this · ‖b‖.
    Relative(f64),
    /// |a − b| ≤ absolute + relative · |b| for every element.
    Elements {
        /// The part that grows with the expected value.
        relative: f64,
        /// The part that does not.
        absolute: f64,
    },
}

impl Tolerance {
    /// What results of a whole model of this element type may differ by.
    pub fn of_model(dtype: DType) -> Tolerance {
        let is_narrow = dtype.is_float() && dtype.size_bytes() < DType::F32.size_bytes();
        Tolerance::Relative(if is_narrow { 2e-2 } else { 1e-4 })
    }

    /// Whether a result is near enough to what is expected.
    pub fn admits(&self, found: &Tensor, expected: &Tensor) -> bool {
        let difference = compare(found, expected);
        if found.type_() != expected.type_() || !found.dtype().is_float() {
            return difference.absolute_error_max == 0.0;
        }
        match *self {
            Tolerance::Relative(limit) => difference.relative_error <= limit,
            Tolerance::Elements { relative, absolute } => {
                let pairs = found.to_f64_vec().into_iter().zip(expected.to_f64_vec());
                pairs
                    .into_iter()
                    .all(|(a, b)| gap(a, b) <= absolute + relative * if b.is_finite() { b.abs() } else { 0.0 })
            }
        }
    }
}

impl std::fmt::Display for Tolerance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tolerance::Relative(limit) => write!(f, "rel {limit:e}"),
            Tolerance::Elements { relative, absolute } => write!(f, "rtol {relative:e} atol {absolute:e}"),
        }
    }
}

/// How two tensors differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// ‖a − b‖ / ‖b‖ over all elements; 0 for equal integers, infinite where shapes or types differ.
    pub relative_error: f64,
    /// Largest |a − b|.
    pub absolute_error_max: f64,
    /// Flat index of that element.
    pub worst_index: usize,
    /// Its two values.
    pub worst_values: (f64, f64),
    /// Type of both, or a sentence about how the Types differ.
    pub description: String,
}

/// Compares a result with what is expected.
pub fn compare(found: &Tensor, expected: &Tensor) -> Difference {
    if found.type_() != expected.type_() {
        return Difference {
            relative_error: f64::INFINITY,
            absolute_error_max: f64::INFINITY,
            worst_index: 0,
            worst_values: (f64::NAN, f64::NAN),
            description: format!("{} found where {} is expected", found.type_(), expected.type_()),
        };
    }
    let (a, b) = (found.to_f64_vec(), expected.to_f64_vec());
    let mut difference = Difference {
        relative_error: relative_error(&a, &b),
        absolute_error_max: 0.0,
        worst_index: 0,
        worst_values: (a.first().copied().unwrap_or(0.0), b.first().copied().unwrap_or(0.0)),
        description: found.type_().to_string(),
    };
    for (index, (&a, &b)) in a.iter().zip(&b).enumerate() {
        let gap = gap(a, b);
        if gap > difference.absolute_error_max {
            difference.absolute_error_max = gap;
            difference.worst_index = index;
            difference.worst_values = (a, b);
        }
    }
    difference
}

/// ‖a − b‖ / ‖b‖; NaN equals NaN and an infinity equals itself. Infinite where one is NaN or infinite alone.
pub fn relative_error(a: &[f64], b: &[f64]) -> f64 {
    let (mut error, mut norm) = (0.0, 0.0);
    for (&a, &b) in a.iter().zip(b) {
        let gap = gap(a, b);
        error += gap * gap;
        norm += if b.is_finite() { b * b } else { 0.0 };
    }
    if error == 0.0 { 0.0 } else { (error / norm.max(f64::MIN_POSITIVE)).sqrt() }
}

fn gap(a: f64, b: f64) -> f64 {
    if a == b || (a.is_nan() && b.is_nan()) {
        return 0.0;
    }
    let gap = (a - b).abs();
    if gap.is_nan() { f64::INFINITY } else { gap }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_may_differ_by_the_tolerance_and_integers_not_at_all() {
        let (a, b) = (Tensor::scalar(1.0_f32), Tensor::scalar(1.001_f32));
        assert!(Tolerance::Relative(1e-2).admits(&a, &b) && !Tolerance::Relative(1e-4).admits(&a, &b));
        assert!(Tolerance::Elements { relative: 0.0, absolute: 1e-2 }.admits(&a, &b));
        assert!(!Tolerance::Elements { relative: 1e-4, absolute: 0.0 }.admits(&a, &b));
        assert!(!Tolerance::Relative(1.0).admits(&Tensor::scalar(1_i64), &Tensor::scalar(2_i64)));
        assert!(!Tolerance::Relative(1.0).admits(&Tensor::scalar(1_i64), &Tensor::scalar(1_i32)));
    }

    #[test]
    fn another_shape_or_a_nan_on_one_side_never_passes() {
        let zeros = Tensor::zeros(DType::F32, [2]).unwrap();
        let nan = Tensor::scalar(f32::NAN);
        for tolerance in [Tolerance::Relative(1e9), Tolerance::Elements { relative: 1e9, absolute: 1e9 }] {
            assert!(!tolerance.admits(&zeros, &Tensor::zeros(DType::F32, [1, 2]).unwrap()));
            assert!(!tolerance.admits(&nan, &Tensor::scalar(0.0_f32)));
            assert!(tolerance.admits(&nan, &nan));
        }
    }
}
