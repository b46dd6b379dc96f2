//! Values that some queries of a block see and others do not. A query gives those that it does not see a weight of nothing,
//! which leaves no trace of a number, but makes a sum of none where the value is none: a NaN of a token that is filler would
//! reach the tokens before it. So values that are no numbers are zeros in the product of a block, and are added apart to the
//! queries that see them.

use std::borrow::Cow;
use std::ops::Range;

use crate::cached_attention::{Stretch, Work};
use crate::cached_attention_lines::add_weighted;

/// Bits of a float but its sign, and those of infinity: those of numbers are less.
const MAGNITUDE: u32 = 0x7FFF_FFFF;
const INFINITE: u32 = 0x7F80_0000;

/// The values of a stretch for a block of queries.
pub(crate) struct SeenValues<'a> {
    work: &'a Work<'a>,
    row: usize,
    values: &'a [f32],
    tame: Cow<'a, [f32]>,
    /// Keys whose values are no numbers, where some query does not see them.
    wild: Vec<usize>,
}

impl<'a> SeenValues<'a> {
    /// Those of some queries of a row.
    pub(crate) fn new(
        work: &'a Work<'a>,
        row: usize,
        kv_head: usize,
        steps: &Range<usize>,
        stretch: &Stretch,
    ) -> SeenValues<'a> {
        let (values, size) = (work.sources(row, kv_head, stretch).1, work.attention.size);
        let first_hidden = match stretch {
            Stretch::Cached(keys) if work.attention.window == 0 => keys.len(),
            // Behind a window, late queries do not see the oldest tokens, wherever these are in the ring.
            Stretch::Cached(_) => 0,
            Stretch::New(_) if work.attention.window > 0 => 0,
            Stretch::New(keys) => (steps.start + 1).clamp(keys.start, keys.end) - keys.start,
        };
        let (mut tame, mut wild) = (Cow::Borrowed(values), Vec::new());
        if !are_numbers(&values[first_hidden * size..]) {
            wild = (first_hidden..stretch.len()).filter(|key| !are_numbers(&values[key * size..][..size])).collect();
            let tame = tame.to_mut();
            wild.iter().for_each(|key| tame[key * size..][..size].fill(0.0));
        }
        SeenValues { work, row, values, tame, wild }
    }

    /// The values, with zeros for those that are added apart.
    pub(crate) fn tame(&self) -> &[f32] {
        &self.tame
    }

    /// Adds the others to the sums of the queries that see them, of which `step_of` says which token each is. Weights of a query
    /// lie so far from those of the next.
    pub(crate) fn add_wild(
        &self,
        stretch: &Stretch,
        step_of: impl Fn(usize) -> usize,
        (weights, stride): (&[f32], usize),
        sums: &mut [f32],
    ) {
        let size = self.work.attention.size;
        for &key in self.wild.iter().filter(|&&key| key < stretch.len()) {
            for (member, sums) in sums.chunks_exact_mut(size).enumerate() {
                let step = step_of(member);
                let is_seen = match (self.work.seen(step, stretch), stretch) {
                    (Some(seen), _) => seen.contains(&key),
                    (None, Stretch::Cached(slots)) => self.work.sees_slot(self.row, step, slots.start + key),
                    (None, Stretch::New(_)) => true,
                };
                if is_seen {
                    let weight = weights[member * stride + key];
                    add_weighted(self.work.isa, &[weight], &self.values[key * size..][..size], sums);
                }
            }
        }
    }
}

/// Whether all are numbers.
fn are_numbers(values: &[f32]) -> bool {
    values.iter().fold(0, |most, value| (value.to_bits() & MAGNITUDE).max(most)) < INFINITE
}
