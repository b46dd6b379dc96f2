//! Wrong bytes made of right ones.

/// Words of a counter-based generator: the same seed gives the same words everywhere.
pub struct Random(u64);

impl Random {
    /// Words of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    /// The next word.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.word() % end as u64) as usize
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// Numbers that arithmetic goes wrong at.
pub const EDGES: [i64; 16] =
    [0, 1, -1, 2, 7, -8, 127, 255, 65_536, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, i64::MAX, i64::MIN, i64::MIN + 1];

/// Changes bytes in one to eight places.
pub fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..1 + random.below(8) {
        mutate_once(bytes, other, random);
    }
}

fn mutate_once(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    if bytes.is_empty() {
        bytes.push(random.word() as u8);
        return;
    }
    let at = random.below(bytes.len());
    let length = 1 + random.below(16.min(bytes.len() - at));
    match random.below(9) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.word() as u8,
        2 => drop(bytes.drain(at..at + length)),
        3 => {
            let copied = bytes[at..at + length].to_vec();
            let to = random.below(bytes.len());
            drop(bytes.splice(to..to, copied));
        }
        4 => bytes.truncate(at),
        5 => {
            let edge = random.pick(&EDGES).to_le_bytes();
            let width = *random.pick(&[1, 2, 4, 8]);
            let end = (at + width).min(bytes.len());
            drop(bytes.splice(at..end, edge[..width].iter().copied()));
        }
        6 => {
            // A varint of any size, as lengths and numbers in a protobuf are.
            let mut word = *random.pick(&EDGES) as u64;
            let mut varint = Vec::new();
            while word >= 0x80 {
                varint.push(word as u8 | 0x80);
                word >>= 7;
            }
            varint.push(word as u8);
            drop(bytes.splice(at..at + 1, varint));
        }
        7 if !other.is_empty() => {
            let from = random.below(other.len());
            let end = from + 1 + random.below(64.min(other.len() - from));
            drop(bytes.splice(at..at + length, other[from..end].iter().copied()));
        }
        _ => {
            let digits = random.pick(&EDGES).to_string();
            drop(bytes.splice(at..at + length, digits.bytes()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_a_function_of_its_seed() {
        let made = |seed: u64| {
            let mut bytes = (0..64).collect();
            mutate(&mut bytes, &[9; 9], &mut Random::new(seed));
            bytes
        };
        assert_eq!(made(5), made(5));
        let distinct: std::collections::BTreeSet<Vec<u8>> = (0..100).map(made).collect();
        assert!(distinct.len() > 90, "{}", distinct.len());
    }
}
