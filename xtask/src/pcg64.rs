//! The random words of NumPy: `numpy.random.PCG64(seed).random_raw()` for seeds of up to 128 bits, bit for bit.
//!
//! PCG64 is O'Neill's XSL-RR 128/64. NumPy seeds it through `SeedSequence`, which hashes the seed into a pool of four
//! words and the pool into the generator's state.

/// Multiplier of the 128-bit congruential step.
const STEP_MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

/// The generator.
pub struct Pcg64 {
    state: u128,
    increment: u128,
}

impl Pcg64 {
    /// The generator that NumPy makes of this seed.
    pub fn new(seed: u128) -> Pcg64 {
        let words = SeedSequence::new(seed).state();
        let (start, stream) = (pair(words[0], words[1]), pair(words[2], words[3]));
        let mut generator = Pcg64 { state: 0, increment: (stream << 1) | 1 };
        generator.step();
        generator.state = generator.state.wrapping_add(start);
        generator.step();
        generator
    }

    /// The next 64 bits.
    pub fn next_word(&mut self) -> u64 {
        self.step();
        let (high, low) = ((self.state >> 64) as u64, self.state as u64);
        (high ^ low).rotate_right((self.state >> 122) as u32)
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(STEP_MULTIPLIER).wrapping_add(self.increment);
    }
}

fn pair(high: u64, low: u64) -> u128 {
    (u128::from(high) << 64) | u128::from(low)
}

const POOL_WORDS: usize = 4;

/// NumPy's `SeedSequence` of one integer and no spawn key. The constants are its own.
struct SeedSequence {
    pool: [u32; POOL_WORDS],
}

impl SeedSequence {
    fn new(seed: u128) -> SeedSequence {
        // NumPy drops leading zero words of the seed and pads the pool with zeros: the same as taking all four.
        let entropy: [u32; POOL_WORDS] = std::array::from_fn(|word| (seed >> (32 * word)) as u32);
        let mut hash = Hash { constant: 0x43B0_D7E5, multiplier: 0x931E_8875 };
        let mut pool = entropy.map(|word| hash.mix(word));
        for source in 0..POOL_WORDS {
            for target in 0..POOL_WORDS {
                if source != target {
                    pool[target] = combine(pool[target], hash.mix(pool[source]));
                }
            }
        }
        SeedSequence { pool }
    }

    /// `generate_state(4, uint64)`.
    fn state(&self) -> [u64; 4] {
        let mut hash = Hash { constant: 0x8B51_F9DD, multiplier: 0x58F3_8DED };
        let mut words = self.pool.iter().cycle().map(|&word| u64::from(hash.mix(word)));
        std::array::from_fn(|_| {
            let low = words.next().expect("a cycle has no end");
            let high = words.next().expect("a cycle has no end");
            low | (high << 32)
        })
    }
}

/// A hash whose constant changes with every word.
struct Hash {
    constant: u32,
    multiplier: u32,
}

impl Hash {
    fn mix(&mut self, word: u32) -> u32 {
        let word = word ^ self.constant;
        self.constant = self.constant.wrapping_mul(self.multiplier);
        let word = word.wrapping_mul(self.constant);
        word ^ (word >> 16)
    }
}

fn combine(left: u32, right: u32) -> u32 {
    let word = left.wrapping_mul(0xCA01_F9DD).wrapping_sub(right.wrapping_mul(0x4973_F715));
    word ^ (word >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_numpys() {
        let words = |seed: u128| {
            let mut generator = Pcg64::new(seed);
            [generator.next_word(), generator.next_word(), generator.next_word()]
        };
        assert_eq!(words(0), [0xA30F_EBCF_D9C2_825F, 0x4510_BDF8_82D9_D721, 0x0A7D_3DA9_4ECD_E8B8]);
        assert_eq!(words(12345), [0x3A32_B18D_B2FF_C19D, 0x5117_1315_C9E4_C4DE, 0xCC20_2482_3444_EFD9]);
        let long = 0x0123_4567_89AB_CDEF_FEDC_BA98_7654_3210;
        assert_eq!(words(long), [0x6B51_8B4C_E04F_0A10, 0xB77C_87DE_0B65_9AB2, 0xD7F7_94AF_E9CF_E6F9]);
    }
}
