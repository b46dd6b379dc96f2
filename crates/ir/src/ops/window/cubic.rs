//! The cubic convolution kernel (Keys 1981) that resize and grid_sample share.

/// Weight of a neighbour at a distance, for parameter `a`; 0 from distance 2 on.
pub fn cubic_weight(a: f64, distance: f64) -> f64 {
    let x = distance.abs();
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}
