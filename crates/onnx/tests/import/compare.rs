//! Inputs that are easy to write down anywhere, and comparison with numbers that another implementation computed.

use precast_tensor::Tensor;

use crate::model::floats;

/// Relative and absolute difference that f32 results of short sums may have.
const TOLERANCE: f64 = 1e-5;

/// ((i * step) mod 13 - 6) / 4 for element i: small, exact in f32, and not in any order.
pub fn ramp(shape: &[usize], step: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let elements: Vec<f32> = (0..count).map(|i| ((i * step % 13) as f32 - 6.0) / 4.0).collect();
    floats(shape, &elements)
}

/// Same types and shapes, elements equal up to rounding.
#[track_caller]
pub fn assert_close(found: &[Tensor], expected: &[Tensor]) {
    assert_near(found, expected, TOLERANCE);
}

/// Same types and shapes, elements as near as `tolerance`.
#[track_caller]
pub fn assert_near(found: &[Tensor], expected: &[Tensor], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.type_(), expected.type_());
        for (at, (x, y)) in found.to_f64_vec().into_iter().zip(expected.to_f64_vec()).enumerate() {
            let is_near = (x - y).abs() <= tolerance * (1.0 + y.abs()) || (x.is_nan() && y.is_nan());
            assert!(is_near, "element {at} is {x}; {y} was expected\n{found:?}\n{expected:?}");
        }
    }
}
