//! Keys and values of the tokens that were run, a layer at a time. A slot holds one row; its keys lie together, so that a
//! step reads the slots of its rows where they are. A step writes only the keys and values of its new tokens.
//!
//! A slot is a ring of positions: token p lies at p modulo the capacity. Layers that see a whole sequence have room for
//! all of it, so nothing wraps; a layer with a window keeps the last tokens only.

use std::collections::BTreeSet;

use precast_tensor::DType;

use crate::line_memory::LineMemory;

/// What one layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerLayout {
    /// Heads of keys and values.
    pub heads: usize,
    /// Size of a key.
    pub key_size: usize,
    /// Size of a value.
    pub value_size: usize,
    /// Element type.
    pub dtype: DType,
    /// Positions that a query sees, itself included; none sees all.
    pub window: Option<usize>,
    /// Slots beyond the window that a layer with a window keeps.
    pub slack: usize,
}

impl LayerLayout {
    /// Positions that a slot of this layer has, in a cache of this capacity.
    pub fn capacity(&self, capacity: usize) -> usize {
        self.window.map_or(capacity, |window| capacity.min(window + self.slack))
    }

    /// Sizes of its keys or values for so many slots, in a cache of this capacity.
    pub fn cache_shape(&self, half: Half, slots: usize, capacity: usize) -> [usize; 4] {
        let size = match half {
            Half::Keys => self.key_size,
            Half::Values => self.value_size,
        };
        [slots, self.heads, self.capacity(capacity), size]
    }

    /// Bytes of one token.
    pub fn token_bytes(&self) -> usize {
        self.heads * (self.key_size + self.value_size) * self.dtype.size_bytes()
    }
}

/// Windows that layers have, the least first.
pub fn windows_of(layouts: &[LayerLayout]) -> Vec<usize> {
    let windows: BTreeSet<usize> = layouts.iter().filter_map(|layout| layout.window).collect();
    windows.into_iter().collect()
}

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Keys.
    Keys,
    /// Values.
    Values,
}

/// The system does not give the memory for keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("keys and values need {bytes} bytes more, and the system does not give them")]
pub struct NoMemory {
    /// Bytes that were asked for.
    pub bytes: usize,
}

/// A cache: slots times layers.
#[derive(Default)]
pub struct KvCache {
    layers: Vec<Layer>,
    slots: usize,
    capacity: usize,
    /// For each slot the end of the farthest token that was ever written since it was empty.
    written: Vec<usize>,
    /// For each slot how many of its positions may hold anything but zeros.
    touched: Vec<usize>,
}

struct Layer {
    layout: LayerLayout,
    keys: LineMemory,
    values: LineMemory,
}

impl KvCache {
    /// An empty cache.
    pub fn try_new(layouts: &[LayerLayout], slots: usize, capacity: usize) -> Result<KvCache, NoMemory> {
        let layer = |layout: &LayerLayout| {
            let elements = slots.saturating_mul(layout.heads).saturating_mul(layout.capacity(capacity));
            let memory = |size: usize| LineMemory::zeros(elements.saturating_mul(size * layout.dtype.size_bytes()));
            Ok(Layer { layout: *layout, keys: memory(layout.key_size)?, values: memory(layout.value_size)? })
        };
        Ok(KvCache {
            layers: layouts.iter().map(layer).collect::<Result<_, NoMemory>>()?,
            slots,
            capacity,
            written: vec![0; slots],
            touched: vec![0; slots],
        })
    }

    /// Layers.
    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    /// Slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Tokens that a slot has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.keys.len() + layer.values.len()).sum()
    }

    /// Sizes of a layer's keys or values for so many slots.
    pub fn shape(&self, layer: usize, half: Half, slots: usize) -> [usize; 4] {
        self.layers[layer].layout.cache_shape(half, slots, self.capacity)
    }

    /// Keys or values of a layer in successive slots.
    pub fn read(&self, layer: usize, half: Half, first: usize, slots: usize) -> &[u8] {
        let stride = self.slot_bytes(layer, half);
        let memory = match half {
            Half::Keys => &self.layers[layer].keys,
            Half::Values => &self.layers[layer].values,
        };
        &memory.bytes()[first * stride..(first + slots) * stride]
    }

    /// Writes keys or values of new tokens: `rows` holds [heads, length, size], of which the first `valid` of each head
    /// are tokens from position `start` on.
    pub fn write(&mut self, layer: usize, half: Half, slot: usize, start: usize, rows: &[u8], valid: usize) {
        let [_, heads, capacity, _] = self.shape(layer, half, 1);
        let row_bytes = self.row_bytes(layer, half);
        let length = rows.len() / (heads * row_bytes).max(1);
        let slot_bytes = self.slot_bytes(layer, half);
        let target = &mut self.memory_mut(layer, half).bytes_mut()[slot * slot_bytes..][..slot_bytes];
        // Of more tokens than there is room for, the last ones stay.
        for token in valid.saturating_sub(capacity)..valid {
            let position = (start + token) % capacity;
            for head in 0..heads {
                let from = &rows[(head * length + token) * row_bytes..][..row_bytes];
                target[(head * capacity + position) * row_bytes..][..row_bytes].copy_from_slice(from);
            }
        }
        self.written[slot] = self.written[slot].max(start + valid);
        self.touched[slot] = self.touched[slot].max(start + valid);
    }

    /// Reads something of each line of memory that a token lies in.
    pub(crate) fn look(&self, layer: usize, half: Half, slot: usize, position: usize) -> u8 {
        let [_, _, capacity, _] = self.shape(layer, half, 1);
        let tokens = self.read(layer, half, slot, 1).chunks(self.row_bytes(layer, half).max(1));
        look_at(tokens.skip(position % capacity).step_by(capacity))
    }

    /// Whether the first `cached` tokens of a slot are there as far as any query behind them can see.
    pub fn is_intact(&self, slot: usize, cached: usize) -> bool {
        let layouts = self.layers.iter().map(|layer| &layer.layout);
        is_intact(layouts, self.capacity, self.written[slot], cached)
    }

    /// Makes it what a new cache is.
    pub(crate) fn empty(&mut self) {
        for (layer, half) in (0..self.layers.len()).flat_map(|layer| [(layer, Half::Keys), (layer, Half::Values)]) {
            let ([_, heads, capacity, _], row) = (self.shape(layer, half, 1), self.row_bytes(layer, half));
            for slot in 0..self.slots {
                let touched = self.touched[slot].min(capacity) * row;
                for head in slot * heads..(slot + 1) * heads {
                    self.memory_mut(layer, half).bytes_mut()[head * capacity * row..][..touched].fill(0);
                }
            }
        }
        self.written.fill(0);
        self.touched.fill(0);
    }

    /// Forgets what a slot holds.
    pub fn clear(&mut self, slot: usize) {
        self.written[slot] = 0;
    }

    /// Gives a slot what another holds.
    pub fn copy_slot(&mut self, from: usize, to: usize) {
        for layer in 0..self.layers.len() {
            for half in [Half::Keys, Half::Values] {
                let [_, heads, capacity, _] = self.shape(layer, half, 1);
                let (row, written) = (self.row_bytes(layer, half), self.written[from].min(capacity));
                let memory = self.memory_mut(layer, half).bytes_mut();
                for head in 0..heads {
                    let [from, to] = [from, to].map(|slot| (slot * heads + head) * capacity * row);
                    memory.copy_within(from..from + written * row, to);
                }
            }
        }
        self.written[to] = self.written[from];
        self.touched[to] = self.touched[to].max(self.written[from]);
    }

    /// Gives successive slots, from `first` on, what the slots of these positions among them hold.
    pub fn reorder(&mut self, first: usize, parents: &[usize]) {
        for layer in 0..self.layers.len() {
            for half in [Half::Keys, Half::Values] {
                let bytes = self.slot_bytes(layer, half);
                let count = parents.iter().copied().max().map_or(0, |last| last + 1).max(parents.len());
                let old = self.read(layer, half, first, count).to_vec();
                let target = &mut self.memory_mut(layer, half).bytes_mut()[first * bytes..];
                for (position, &parent) in parents.iter().enumerate().filter(|(position, parent)| position != *parent) {
                    target[position * bytes..][..bytes].copy_from_slice(&old[parent * bytes..][..bytes]);
                }
            }
        }
        let written: Vec<usize> = parents.iter().map(|parent| self.written[first + parent]).collect();
        self.written[first..first + written.len()].copy_from_slice(&written);
        // A slot has all of another's positions now, those that were cleared included.
        let most = self.touched.iter().copied().max().unwrap_or(0);
        self.touched.fill(most);
    }

    /// Bytes of a layer's keys or values for so many new tokens of a row.
    pub fn step_bytes(&self, layer: usize, half: Half, length: usize) -> usize {
        self.layers[layer].layout.heads * length * self.row_bytes(layer, half)
    }

    /// The same tokens in a cache of other sizes, neither smaller. No layer that has wrapped changes its size.
    pub fn try_grown(&self, slots: usize, capacity: usize) -> Result<KvCache, NoMemory> {
        let layouts: Vec<LayerLayout> = self.layers.iter().map(|layer| layer.layout).collect();
        let mut grown = KvCache::try_new(&layouts, slots.max(self.slots), capacity.max(self.capacity))?;
        for layer in 0..self.layers.len() {
            for half in [Half::Keys, Half::Values] {
                let [_, heads, old, _] = self.shape(layer, half, 1);
                let [_, _, new, _] = grown.shape(layer, half, 1);
                let row = self.row_bytes(layer, half);
                let from = self.read(layer, half, 0, self.slots);
                let target = grown.memory_mut(layer, half).bytes_mut();
                for head in 0..self.slots * heads {
                    // The rest is zeros in both, and takes no memory in either until it is touched.
                    let touched = self.touched[head / heads].min(old) * row;
                    target[head * new * row..][..touched].copy_from_slice(&from[head * old * row..][..touched]);
                }
            }
        }
        grown.written[..self.slots].copy_from_slice(&self.written);
        grown.touched[..self.slots].copy_from_slice(&self.touched);
        Ok(grown)
    }

    fn row_bytes(&self, layer: usize, half: Half) -> usize {
        self.shape(layer, half, 1)[3] * self.layers[layer].layout.dtype.size_bytes()
    }

    fn slot_bytes(&self, layer: usize, half: Half) -> usize {
        let [_, heads, capacity, _] = self.shape(layer, half, 1);
        heads * capacity * self.row_bytes(layer, half)
    }

    fn memory_mut(&mut self, layer: usize, half: Half) -> &mut LineMemory {
        match half {
            Half::Keys => &mut self.layers[layer].keys,
            Half::Values => &mut self.layers[layer].values,
        }
    }
}

/// Reads something of each line of memory of some parts.
pub(crate) fn look_at<'b>(parts: impl Iterator<Item = &'b [u8]>) -> u8 {
    /// Bytes that no line of memory is shorter than.
    const LINE: usize = 64;
    parts.flat_map(|part| part.iter().step_by(LINE)).fold(0, |all, byte| all ^ byte)
}

/// Whether the first `cached` tokens of a slot are there as far as any query behind them can see, in a cache of this capacity
/// where the farthest token that was written ends at `written`.
pub(crate) fn is_intact<'l>(
    mut layouts: impl Iterator<Item = &'l LayerLayout>,
    capacity: usize,
    written: usize,
    cached: usize,
) -> bool {
    layouts.all(|layout| {
        let Some(window) = layout.window else { return true };
        let oldest = written.saturating_sub(layout.capacity(capacity));
        oldest <= (cached + 1).saturating_sub(window)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(window: Option<usize>, slack: usize) -> LayerLayout {
        LayerLayout { heads: 2, key_size: 1, value_size: 3, dtype: DType::U8, window, slack }
    }

    /// Keys of tokens from `start` on, two heads, padded to `length`.
    fn keys(start: usize, valid: usize, length: usize) -> Vec<u8> {
        let key =
            |head: usize, token: usize| if token < valid { (start + token) as u8 + 100 * head as u8 } else { 255 };
        (0..2).flat_map(|head| (0..length).map(move |token| key(head, token))).collect()
    }

    #[test]
    fn tokens_lie_where_their_position_says() {
        let mut cache = KvCache::try_new(&[layout(None, 0)], 2, 4).unwrap();
        cache.write(0, Half::Keys, 1, 1, &keys(1, 2, 3), 2);
        assert_eq!(cache.read(0, Half::Keys, 0, 2), [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 101, 102, 0]);
        let grown = cache.try_grown(3, 6).unwrap();
        assert_eq!(grown.read(0, Half::Keys, 1, 1), [0, 1, 2, 0, 0, 0, 0, 101, 102, 0, 0, 0]);
        assert_eq!((grown.bytes(), grown.shape(0, Half::Values, 1)), (3 * 2 * 6 * 4, [1, 2, 6, 3]));
        cache.copy_slot(1, 0);
        assert_eq!(cache.read(0, Half::Keys, 0, 1), cache.read(0, Half::Keys, 1, 1));
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error_that_says_how_much() {
        let layouts = [layout(None, 0)];
        let error = KvCache::try_new(&layouts, 1 << 20, 1 << 40).err().unwrap().to_string();
        assert!(error.starts_with("keys and values need 2305843009213693952 bytes more"), "{error}");
        assert!(KvCache::try_new(&layouts, usize::MAX, usize::MAX).is_err());
    }

    #[test]
    fn slots_are_reordered_by_parent_even_where_fewer_remain() {
        let mut cache = KvCache::try_new(&[layout(None, 0)], 4, 1).unwrap();
        for slot in 0..4 {
            cache.write(0, Half::Keys, slot, 0, &[slot as u8, 10 + slot as u8], 1);
        }
        cache.reorder(1, &[2, 0]);
        assert_eq!(cache.read(0, Half::Keys, 0, 4), [0, 10, 3, 13, 1, 11, 3, 13]);
    }

    #[test]
    fn a_window_keeps_the_last_tokens() {
        let mut cache = KvCache::try_new(&[layout(Some(3), 0)], 1, 100).unwrap();
        assert_eq!(cache.shape(0, Half::Keys, 1), [1, 2, 3, 1]);
        cache.write(0, Half::Keys, 0, 0, &keys(0, 5, 5), 5);
        assert_eq!(cache.read(0, Half::Keys, 0, 1)[..3], [3, 4, 2]);
        assert!(cache.is_intact(0, 5) && cache.is_intact(0, 4) && !cache.is_intact(0, 3));
        cache.clear(0);
        assert!(cache.is_intact(0, 0));
    }

    proptest! {
        /// After any writes and rewinds a slot holds every token that a query behind its end can see, where the ring says it
        /// is, and what else it holds is never taken for one.
        #[test]
        fn rings_hold_what_their_window_sees(
            window in 1usize..6, slack in 0usize..4, moves in prop::collection::vec((1usize..7, 0usize..5), 1..12),
        ) {
            let mut cache = KvCache::try_new(&[layout(Some(window), slack)], 1, 60).unwrap();
            let capacity = window + slack;
            let mut length = 0;
            for (count, back) in moves {
                if length + count > 60 { break; }
                cache.write(0, Half::Keys, 0, length, &keys(length, count, count), count);
                length += count;
                let rewound = length.saturating_sub(back);
                if cache.is_intact(0, rewound) { length = rewound; } else { cache.clear(0); length = 0; }
                let held = &cache.read(0, Half::Keys, 0, 1)[..capacity];
                for slot in 0..capacity {
                    // The position that attention takes a slot for.
                    let position = length as i64 - 1 - (length as i64 - 1 - slot as i64).rem_euclid(capacity as i64);
                    let is_seen = position >= 0 && position > length as i64 - window as i64;
                    prop_assert!(!is_seen || i64::from(held[slot]) == position, "{:?} at {}", held, length);
                }
            }
        }
    }
}
