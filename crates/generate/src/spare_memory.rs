//! Large memory of steps and caches that are over, for those that follow: memory that the system gives anew costs a prompt as
//! much as writing its keys and values.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::kv_cache::{KvCache, LayerLayout, NoMemory};

/// Bytes that are kept at most, of outputs and of caches each.
const BYTES_KEPT: usize = 64 << 20;

/// What nobody uses at the moment.
#[derive(Default)]
pub(crate) struct SpareMemory {
    /// Outputs of steps, the last given ones last.
    words: Mutex<VecDeque<Vec<u64>>>,
    /// Caches, the last given one last.
    caches: Mutex<VecDeque<KvCache>>,
}

impl SpareMemory {
    /// So many words, with anything in them.
    pub(crate) fn words(&self, count: usize) -> Vec<u64> {
        let mut spare = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let place = spare.iter().rposition(|words| words.len() == count);
        place.and_then(|place| spare.remove(place)).unwrap_or_else(|| vec![0; count])
    }

    /// Keeps words for later.
    pub(crate) fn give_words(&self, words: Vec<u64>) {
        let mut spare = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        keep(&mut spare, words, |words| words.capacity() * size_of::<u64>());
    }

    /// An empty cache.
    pub(crate) fn cache(&self, layouts: &[LayerLayout], slots: usize, capacity: usize) -> Result<KvCache, NoMemory> {
        let mut spare = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let place = spare.iter().rposition(|cache| cache.slots() == slots && cache.capacity() == capacity);
        match place.and_then(|place| spare.remove(place)) {
            Some(mut cache) => {
                cache.empty();
                Ok(cache)
            }
            None => KvCache::try_new(layouts, slots, capacity),
        }
    }

    /// Keeps a cache, of the same layers as all of them, for later.
    pub(crate) fn give_cache(&self, cache: KvCache) {
        let mut spare = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        keep(&mut spare, cache, KvCache::bytes);
    }
}

/// Keeps one more, and lets go of the oldest ones that there is no room for.
fn keep<T>(spare: &mut VecDeque<T>, one: T, bytes: impl Fn(&T) -> usize) {
    spare.push_back(one);
    while spare.iter().map(&bytes).sum::<usize>() > BYTES_KEPT {
        spare.pop_front();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::kv_cache::Half;
    use precast_tensor::DType;

    #[test]
    fn words_are_used_again_and_the_oldest_are_let_go() {
        let spare = SpareMemory::default();
        spare.give_words(vec![7; 3]);
        spare.give_words(vec![8; 5]);
        assert_eq!((spare.words(3), spare.words(3)), (vec![7; 3], vec![0; 3]));
        spare.give_words(vec![9; BYTES_KEPT / 8]);
        assert_eq!(spare.words(5), [0; 5]);
        assert_eq!(spare.words(BYTES_KEPT / 8)[0], 9);
    }

    #[test]
    fn a_cache_that_is_used_again_is_as_a_new_one() {
        let layouts = [Some(3), None].map(|window| LayerLayout {
            heads: 2,
            key_size: 1,
            value_size: 2,
            dtype: DType::U8,
            window,
            slack: 0,
        });
        let spare = SpareMemory::default();
        let mut cache = spare.cache(&layouts, 4, 6).unwrap();
        for layer in 0..2 {
            cache.write(layer, Half::Keys, 3, 0, &[5; 12], 6);
            cache.write(layer, Half::Values, 0, 1, &[6; 12], 3);
        }
        cache.copy_slot(3, 2);
        cache.clear(2);
        cache.reorder(0, &[3, 0]);
        spare.give_cache(cache);
        let (cache, new) = (spare.cache(&layouts, 4, 6).unwrap(), KvCache::try_new(&layouts, 4, 6).unwrap());
        for (layer, half) in [(0, Half::Keys), (0, Half::Values), (1, Half::Keys), (1, Half::Values)] {
            assert_eq!(cache.read(layer, half, 0, 4), new.read(layer, half, 0, 4));
        }
        assert!(cache.is_intact(3, 0));
    }
}
