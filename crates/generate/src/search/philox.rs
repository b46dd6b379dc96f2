//! The numbers that choices are drawn by, from Philox: the number for a position depends on the seed and the position alone, so
//! batch order, rewinds and the device cannot change a draw.

use precast_tensor::philox;

/// Which draw a number is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Row of a batch.
    pub stream: u32,
    /// Which of several samples of one prompt.
    pub return_index: u32,
    /// Tokens before the one that is drawn.
    pub position: u32,
}

/// A number in 0..1 with 53 random bits.
pub fn uniform(seed: u64, draw: Draw) -> f64 {
    let words = philox([draw.stream, draw.return_index, draw.position, 0], [seed as u32, (seed >> 32) as u32]);
    let bits = u64::from(words[0]) | u64::from(words[1]) << 32;
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_draw_counts() {
        let draw = Draw { stream: 1, return_index: 2, position: 3 };
        let others = [Draw { stream: 2, ..draw }, Draw { return_index: 3, ..draw }, Draw { position: 4, ..draw }];
        let first = uniform(7, draw);
        assert!((0.0..1.0).contains(&first));
        assert!(others.iter().all(|&other| uniform(7, other) != first));
        assert_ne!(uniform(8, draw), first);
        assert_ne!(uniform(7 | 1 << 40, draw), first);
        assert_eq!(uniform(7, draw), first);
    }
}
