//! Philox4x32-10, a counter-based generator: the number for a position depends on the seed and the position alone, so
//! batch order, rewinds and the device cannot change a draw.

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

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

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let products =
            [u64::from(MULTIPLIERS[0]) * u64::from(counter[0]), u64::from(MULTIPLIERS[1]) * u64::from(counter[2])];
        let (low, high) = (products.map(|product| product as u32), products.map(|product| (product >> 32) as u32));
        counter = [high[1] ^ counter[1] ^ key[0], low[1], high[0] ^ counter[3] ^ key[1], low[0]];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_that_its_authors_publish() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

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
