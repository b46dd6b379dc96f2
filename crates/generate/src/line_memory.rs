//! Memory of keys and values, which begins where a line of a cache does. Large memory of the system begins sixteen bytes behind
//! that, so that every vector that is read would lie in two lines, and every token that is written in one more.

use crate::kv_cache::NoMemory;

/// Zeros at first.
pub(crate) struct LineMemory {
    words: Vec<u64>,
    /// The word that a line begins with.
    first: usize,
    len: usize,
}

/// Bytes of a line.
const LINE: usize = 64;

impl LineMemory {
    /// So many bytes of zeros.
    pub(crate) fn zeros(len: usize) -> Result<LineMemory, NoMemory> {
        let words = zeros(len.saturating_add(LINE) / size_of::<u64>() + 1).ok_or(NoMemory { bytes: len })?;
        let first = words.as_ptr().align_offset(LINE).min(LINE / size_of::<u64>());
        Ok(LineMemory { words, first, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words[self.first..])[..self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words[self.first..])[..self.len]
    }
}

/// So many words of zeros, where the system gives them.
fn zeros(words: usize) -> Option<Vec<u64>> {
    /// Words that are not worth asking for beforehand.
    const FEW: usize = 1 << 16;
    if words > FEW {
        // Zeros that cost nothing until they are touched cannot be asked for with a way to refuse, other memory can: what the
        // system would give is given back at once.
        let mut probe: Vec<u64> = Vec::new();
        probe.try_reserve_exact(words).ok()?;
        std::hint::black_box(&probe);
    }
    Some(vec![0; words])
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn memory_of_any_size_begins_with_a_line() {
        for len in [0, 1, 7, 64, 65, 4096, 1 << 20, (8 << 20) + 3] {
            let mut memory = LineMemory::zeros(len).unwrap();
            assert_eq!((memory.len(), memory.bytes().len()), (len, len));
            assert!(memory.bytes().as_ptr().addr().is_multiple_of(LINE), "{len} bytes");
            memory.bytes_mut().fill(7);
            assert!(memory.bytes().iter().all(|&byte| byte == 7));
        }
        assert!(LineMemory::zeros(usize::MAX).is_err());
    }
}
