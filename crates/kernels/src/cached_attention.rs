//! Attention of new tokens behind a ring of cached ones, in f32. Keys and values are read where they lie; those of new tokens
//! are written once, for whoever owns the cache.
//!
//! One new token a row: keys are cut into stretches that are scored and weighed apart, and the parts of a head are joined
//! after. Several: queries of the heads that share a key head are rows of one matrix, and a stretch of keys at a time goes
//! through two products, with the largest score and the sum of weights carried along (`cached_attention_strips.rs` where there
//! are vectors of 512 bits). Where keys are cut depends on the lengths alone, so results are the same bits for any number of
//! threads.

use std::ops::Range;

use crate::arithmetic::Arithmetic;
use crate::cached_attention_hidden::SeenValues;
use crate::cached_attention_lines::{
    add_weighted, ask_for, cap, divide_row, divide_row_into, mask_unless, rotate, scale_row, score_keys, weigh_row,
};
use crate::cached_attention_strips;
use crate::epilogue::Bias;
use crate::gemm_drive::{DriveShape, Item, SPLIT_NS, SourceB, drive_alone, drive_alone_onto, drive_alone_scratch_len};
use crate::gemm_pack::{MatrixA, MatrixB};
use crate::isa::{Exec, Isa};
use crate::pool::{SharedMut, share};
use crate::scratch_slots::ScratchSlots;

/// Keys of one head that a task takes when each row has one new token.
const DECODE_KEYS: usize = 128;
/// Queries of single tokens that pass over keys and values together.
const QUERIES_TOGETHER: usize = 4;
/// Keys that such queries take before the next ones: few enough that they stay in a first-level cache.
const KEYS_TOGETHER: usize = 32;
/// No fewer are left for the last time, since sixteen are scored at once.
const KEYS_LEFT_MIN: usize = 16;
/// Keys that several queries are multiplied with at a time: with their values they stay in a first-level cache.
const BLOCK_KEYS: usize = 128;
/// Rows of queries, those of all heads that share a key head, that are done together.
const BLOCK_ROWS: usize = 96;

/// Which elements of a head are turned together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// Those half of the turned elements apart.
    Halves,
    /// Neighbours.
    Neighbours,
}

/// How queries and keys are turned by their positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Which elements are turned together.
    pub pairs: Pairs,
    /// Half of the elements of a head that are turned: the columns of the tables.
    pub half: usize,
    /// Rows of the tables.
    pub positions: usize,
}

/// What a cached attention computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CachedAttention {
    /// Sequences.
    pub rows: usize,
    /// New tokens of each.
    pub length: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub size: usize,
    /// Tokens that a row of the cache has room for.
    pub slots: usize,
    /// Factor of the products.
    pub scale: f32,
    /// c of c·tanh(score/c); 0 for none.
    pub softcap: f32,
    /// Tokens that a query sees, itself included; 0 for all.
    pub window: usize,
    /// How queries and keys are turned, if they are.
    pub rotation: Option<Rotation>,
}

/// What it reads.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// Queries, keys and values side by side: rows × length × (heads + 2·kv_heads) × size.
    pub joint: &'a [f32],
    /// Cached keys: rows × kv_heads × slots × size.
    pub keys: &'a [f32],
    /// Cached values.
    pub values: &'a [f32],
    /// Tokens of each row that are cached.
    pub lengths: &'a [i32],
    /// Cosines and sines, where heads are turned.
    pub tables: Option<(&'a [f32], &'a [f32])>,
    /// Positions of the new tokens, unless they follow the cached ones.
    pub positions: Option<&'a [i64]>,
    /// A score of each head that has no value.
    pub sinks: Option<&'a [f32]>,
}

/// What it writes.
pub struct Outputs<'a> {
    /// rows × length × heads × size.
    pub y: &'a mut [f32],
    /// Turned keys of the new tokens: rows × kv_heads × length × size.
    pub keys: &'a mut [f32],
    /// Their values.
    pub values: &'a mut [f32],
}

impl CachedAttention {
    /// Query heads that share a key head.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Elements of scratch that `run` needs with a pool of this many threads.
    pub fn scratch_len(&self, isa: Isa, threads: usize) -> usize {
        let rest = if self.length == 1 { self.parts_len() } else { self.slot_count(threads) * self.block_len(isa) };
        self.queries_len(isa) + rest
    }

    /// Turned queries; strips turn theirs where they use them.
    fn queries_len(&self, isa: Isa) -> usize {
        match self.length > 1 && self.strip_queries(isa).is_some() {
            true => 0,
            false => (self.rows * self.length * self.heads * self.size).next_multiple_of(16),
        }
    }

    /// What tasks of single tokens leave: for each head and stretch of keys the weighted values, the largest score and the
    /// sum of weights.
    fn parts_len(&self) -> usize {
        self.rows * self.heads * (self.slots + 1).div_ceil(DECODE_KEYS) * self.part_len()
    }

    fn part_len(&self) -> usize {
        self.size + 2
    }

    /// Queries of a block that is cut into strips, where the instruction set has them.
    fn strip_queries(&self, isa: Isa) -> Option<usize> {
        cached_attention_strips::block_queries(self, isa)
    }

    /// Queries of a row that are done together.
    fn block_queries(&self, isa: Isa) -> usize {
        let queries = (BLOCK_ROWS / self.group()).clamp(1, self.length.max(1));
        self.strip_queries(isa).unwrap_or(queries)
    }

    /// Stretches of scratch for blocks of queries.
    fn slot_count(&self, threads: usize) -> usize {
        threads.clamp(1, ScratchSlots::MAX)
    }

    /// What a thread needs for blocks of queries: scores, weighted values, largest scores and sums, packing.
    fn block_len(&self, isa: Isa) -> usize {
        let queries = self.block_queries(isa);
        if self.strip_queries(isa).is_some() {
            return cached_attention_strips::block_len(self, queries);
        }
        let rows = queries * self.group();
        rows * (BLOCK_KEYS + self.part_len()) + self.packing_len(isa, rows)
    }

    fn packing_len(&self, isa: Isa, rows: usize) -> usize {
        let [scores, products] = self.products(rows, BLOCK_KEYS);
        drive_alone_scratch_len(isa, &scores, true).max(drive_alone_scratch_len(isa, &products, true))
    }

    /// Shapes of queries · keys and of weights · values.
    fn products(&self, rows: usize, keys: usize) -> [DriveShape; 2] {
        let arithmetic = Arithmetic::F32;
        let (m, size) = (rows, self.size);
        [
            DriveShape { items: 1, m, n: keys, k: size, c_stride: BLOCK_KEYS, arithmetic },
            DriveShape { items: 1, m, n: size, k: keys, c_stride: size, arithmetic },
        ]
    }

    /// Computes it. Panics when a slice is too short, or a length is negative.
    pub fn run(&self, exec: Exec, inputs: &Inputs, outputs: Outputs, scratch: &mut [f32]) {
        if self.rows == 0 || self.length == 0 || self.size == 0 {
            return;
        }
        self.check(inputs, &outputs);
        let (queries, scratch) = scratch.split_at_mut(self.queries_len(exec.isa()));
        self.prepare(exec, inputs, queries, outputs.keys, outputs.values);
        let work =
            Work { attention: self, isa: exec.isa(), inputs, queries, keys: outputs.keys, values: outputs.values };
        match self.length {
            1 => work.run_single(exec, outputs.y, scratch),
            _ => work.run_blocks(exec, outputs.y, scratch),
        }
    }

    fn check(&self, inputs: &Inputs, outputs: &Outputs) {
        let tokens = self.rows * self.length;
        let new = tokens * self.kv_heads * self.size;
        assert!(inputs.joint.len() >= (self.heads + 2 * self.kv_heads) * tokens * self.size, "projections");
        let cache = self.rows * self.kv_heads * self.slots * self.size;
        assert!(inputs.keys.len() >= cache && inputs.values.len() >= cache, "cached keys and values");
        assert!(inputs.lengths.len() >= self.rows && inputs.lengths.iter().all(|&length| length >= 0), "lengths");
        assert_eq!(inputs.tables.is_some(), self.rotation.is_some(), "tables");
        assert!(outputs.y.len() >= tokens * self.heads * self.size, "the result");
        assert!(outputs.keys.len() >= new && outputs.values.len() >= new, "new keys and values");
    }

    /// Turns queries, if there is room for them, and keys, and puts values where they are asked for. Queries of heads that
    /// share a key head lie together: rows × kv_heads × length × group × size.
    fn prepare(&self, exec: Exec, inputs: &Inputs, queries: &mut [f32], keys: &mut [f32], values: &mut [f32]) {
        let (queries, keys, values) = (SharedMut::new(queries), SharedMut::new(keys), SharedMut::new(values));
        let tokens = self.rows * self.length;
        // Single tokens are turned faster than a thread is told to.
        let parts = if tokens < PREPARED_TOKENS_MIN { 1 } else { tokens.min(exec.threads()) };
        exec.pool().run(parts, &|part| {
            for token in crate::pool::share(tokens, parts, part) {
                // SAFETY: every token has places of its own in all three, and each token is in one part.
                unsafe { self.prepare_token(exec.isa(), inputs, token, &queries, &keys, &values) };
            }
        });
    }

    /// # Safety
    /// Nothing else may write the places of this token meanwhile.
    unsafe fn prepare_token(
        &self,
        isa: Isa,
        inputs: &Inputs,
        token: usize,
        queries: &SharedMut<f32>,
        keys: &SharedMut<f32>,
        values: &SharedMut<f32>,
    ) {
        let (row, step) = (token / self.length, token % self.length);
        let (size, group) = (self.size, self.group());
        let heads = self.heads + 2 * self.kv_heads;
        let projected = &inputs.joint[token * heads * size..][..heads * size];
        let turn = self.turn_at(inputs, row, step);
        let first = if queries.is_empty() { self.heads } else { 0 };
        for (head, source) in projected.chunks_exact(size).enumerate().skip(first) {
            let kv_head = if head < self.heads { head / group } else { (head - self.heads) % self.kv_heads };
            let place = (row * self.kv_heads + kv_head) * self.length + step;
            let (target, start) = match head {
                head if head < self.heads => (queries, (place * group + head % group) * size),
                head if head < self.heads + self.kv_heads => (keys, place * size),
                _ => (values, place * size),
            };
            // SAFETY: one head of one token, which the caller promises.
            let target = unsafe { target.slice(start, size) };
            match &turn {
                Some((pairs, cosines, sines)) if head < self.heads + self.kv_heads => {
                    rotate(isa, *pairs == Pairs::Neighbours, cosines, sines, source, target);
                }
                _ => target.copy_from_slice(source),
            }
        }
    }

    /// The rows of the tables for a token. Filler may lie behind the last one.
    fn turn_at<'a>(&self, inputs: &Inputs<'a>, row: usize, step: usize) -> Option<(Pairs, &'a [f32], &'a [f32])> {
        let (Rotation { pairs, half, positions }, (cosines, sines)) = (self.rotation?, inputs.tables?);
        let own = i64::from(inputs.lengths[row]) + step as i64;
        let position = inputs.positions.map_or(own, |positions| positions[row * self.length + step]);
        let start = position.clamp(0, positions as i64 - 1) as usize * half;
        Some((pairs, &cosines[start..][..half], &sines[start..][..half]))
    }
}

/// Rows of single tokens whose parts are joined by one thread: fewer are joined faster than a thread is told to.
const JOINED_ROWS_MIN: usize = 4;
/// Tokens from which on turning them is cut over threads.
const PREPARED_TOKENS_MIN: usize = 16;

/// One call, with queries turned.
pub(crate) struct Work<'a> {
    pub(crate) attention: &'a CachedAttention,
    pub(crate) isa: Isa,
    pub(crate) inputs: &'a Inputs<'a>,
    queries: &'a [f32],
    keys: &'a [f32],
    values: &'a [f32],
}

/// Keys beside each other that are all cached, or all new.
#[derive(Clone)]
pub(crate) enum Stretch {
    Cached(Range<usize>),
    New(Range<usize>),
}

impl Stretch {
    pub(crate) fn len(&self) -> usize {
        match self {
            Stretch::Cached(keys) | Stretch::New(keys) => keys.len(),
        }
    }
}

impl<'a> Work<'a> {
    /// Slots of a row that a query sees, those of lower numbers first. A window leaves slots out: they hold tokens that are too
    /// far back, or what is left of tokens that were dropped, which may be anything.
    fn seen_slots(&self, row: usize, step: usize) -> [Range<usize>; 2] {
        let slots = self.attention.slots;
        let cached = if slots == 0 { 0 } else { self.inputs.lengths[row] as usize };
        let kept = cached.min(slots);
        let first = match self.attention.window {
            0 => cached - kept,
            window => (cached + step + 1).saturating_sub(window).clamp(cached - kept, cached),
        };
        if cached <= slots {
            return [first..cached, 0..0];
        }
        let (start, count) = (first % slots, cached - first);
        match start + count <= slots {
            true => [start..start + count, 0..0],
            false => [0..start + count - slots, start..slots],
        }
    }

    /// Slots of a row that its first query sees.
    fn filled(&self, row: usize) -> usize {
        self.seen_slots(row, 0).iter().map(Range::len).sum()
    }

    /// Some of the slots that the first query of a row sees, by their place among these.
    fn slots_at(&self, row: usize, places: Range<usize>) -> [Stretch; 2] {
        let [low, high] = self.seen_slots(row, 0);
        let within = |slots: &Range<usize>, before: usize| {
            let place = |place: usize| slots.start + place.saturating_sub(before).min(slots.len());
            Stretch::Cached(place(places.start)..place(places.end))
        };
        [within(&low, 0), within(&high, low.len())]
    }

    /// Keys and values of a stretch.
    pub(crate) fn sources(&self, row: usize, kv_head: usize, stretch: &Stretch) -> (&'a [f32], &'a [f32]) {
        let CachedAttention { kv_heads, size, slots, length, .. } = *self.attention;
        let head = row * kv_heads + kv_head;
        match stretch {
            Stretch::Cached(keys) => {
                let places = (head * slots + keys.start) * size..(head * slots + keys.end) * size;
                (&self.inputs.keys[places.clone()], &self.inputs.values[places])
            }
            Stretch::New(keys) => {
                let places = (head * length + keys.start) * size..(head * length + keys.end) * size;
                (&self.keys[places.clone()], &self.values[places])
            }
        }
    }

    /// Which keys of a stretch a query sees, where that is a range; else the ring has them in another order.
    pub(crate) fn seen(&self, step: usize, stretch: &Stretch) -> Option<Range<usize>> {
        let window = self.attention.window;
        match stretch {
            Stretch::Cached(keys) => (window == 0).then_some(0..keys.len()),
            Stretch::New(keys) => {
                let first = if window == 0 { 0 } else { (step + 1).saturating_sub(window) };
                let end = (step + 1).clamp(keys.start, keys.end);
                Some(first.clamp(keys.start, end) - keys.start..end - keys.start)
            }
        }
    }

    /// The keys of a stretch up to the last one that a query sees.
    pub(crate) fn seen_part(&self, step: usize, stretch: &Stretch) -> Stretch {
        match stretch {
            Stretch::Cached(keys) => Stretch::Cached(keys.clone()),
            Stretch::New(keys) => Stretch::New(keys.start..(step + 1).clamp(keys.start, keys.end)),
        }
    }

    /// A turned query.
    pub(crate) fn turn_query(&self, row: usize, step: usize, head: usize, target: &mut [f32]) {
        let CachedAttention { length, heads, kv_heads, size, .. } = *self.attention;
        let place = (row * length + step) * (heads + 2 * kv_heads) + head;
        let source = &self.inputs.joint[place * size..][..size];
        match self.attention.turn_at(self.inputs, row, step) {
            Some((pairs, cosines, sines)) => {
                rotate(self.isa, pairs == Pairs::Neighbours, cosines, sines, source, target);
            }
            None => target.copy_from_slice(source),
        }
    }

    /// Whether a query sees the token in a slot: the last one that the slot was written for.
    pub(crate) fn sees_slot(&self, row: usize, step: usize, slot: usize) -> bool {
        let (cached, slots) = (i64::from(self.inputs.lengths[row]), self.attention.slots as i64);
        let token = cached - 1 - (cached - 1 - slot as i64).rem_euclid(slots);
        token >= 0 && token + self.attention.window as i64 > cached + step as i64
    }

    /// Scores become what the softmax takes: capped, and out of sight where a query does not see.
    pub(crate) fn finish_scores(&self, row: usize, step: usize, stretch: &Stretch, scores: &mut [f32]) {
        if self.attention.softcap != 0.0 {
            cap(self.isa, self.attention.softcap, scores);
        }
        match (self.seen(step, stretch), stretch) {
            (Some(seen), _) => {
                scores[..seen.start].fill(f32::NEG_INFINITY);
                scores[seen.end..].fill(f32::NEG_INFINITY);
            }
            (None, Stretch::Cached(slots)) => {
                mask_unless(scores, |key| self.sees_slot(row, step, slots.start + key));
            }
            (None, Stretch::New(_)) => {}
        }
    }

    /// One new token a row.
    fn run_single(&self, exec: Exec, y: &mut [f32], scratch: &mut [f32]) {
        let CachedAttention { rows, kv_heads, .. } = *self.attention;
        let stretches = |row: usize| (self.filled(row) + 1).div_ceil(DECODE_KEYS);
        let most = (0..rows).map(stretches).max().unwrap_or(1);
        let keys: usize = (0..rows).map(|row| self.filled(row) + 1).sum();
        let tasks = rows * kv_heads * most;
        let part_len = self.attention.part_len();
        let parts = SharedMut::new(&mut scratch[..rows * self.attention.heads * most * part_len]);
        let body = |task: usize| {
            let (row, kv_head, stretch) = (task / most / kv_heads, task / most % kv_heads, task % most);
            if stretch < stretches(row) {
                self.run_stretch(row, kv_head, stretch, most, &parts);
            }
        };
        let is_split = self.estimate_ns(keys) >= SPLIT_NS;
        match is_split {
            true => exec.pool().run(tasks, &body),
            false => (0..tasks).for_each(body),
        }
        let row_len = self.attention.heads * self.attention.size;
        let rows_per_task = if is_split { rows.div_ceil(exec.threads()).max(JOINED_ROWS_MIN) } else { rows };
        exec.pool().chunks_mut(&mut y[..rows * row_len], rows_per_task * row_len, |task, y| {
            for (row, y) in (task * rows_per_task..).zip(y.chunks_exact_mut(row_len)) {
                self.join(row, stretches(row), most, scratch, y);
            }
        });
    }

    /// A rough time for one thread: four elements of keys and values a nanosecond and query head.
    fn estimate_ns(&self, keys: usize) -> usize {
        keys * self.attention.heads * self.attention.size / 4
    }

    /// One stretch of keys for all queries that share its head.
    fn run_stretch(&self, row: usize, kv_head: usize, stretch: usize, most: usize, parts: &SharedMut<f32>) {
        let attention = self.attention;
        let (group, size) = (attention.group(), attention.size);
        let filled = self.filled(row);
        let keys = stretch * DECODE_KEYS..((stretch + 1) * DECODE_KEYS).min(filled + 1);
        let [low, high] = self.slots_at(row, keys.start..keys.end.min(filled));
        let new = Stretch::New(0..keys.end.saturating_sub(filled));
        let queries = &self.queries[(row * attention.kv_heads + kv_head) * group * size..][..group * size];
        let part_len = attention.part_len();
        // Keys and values of the next task are asked for while those of this one are read: memory answers later than a few keys
        // take. Of one row a thread has few tasks, so that nobody has asked for the values of most.
        let following = self.cached_after(row, kv_head, stretch);
        let ahead = |data: &'a [f32], done: Range<usize>| {
            let place = |key: usize| (following.start + key * following.len() / keys.len()) * size;
            &data[place(done.start)..place(done.end)]
        };
        for (number, queries) in queries.chunks(QUERIES_TOGETHER * size).enumerate() {
            let mut scores = [[0.0; DECODE_KEYS]; QUERIES_TOGETHER];
            let members = queries.len() / size;
            let mut start = 0;
            for stretch in [&low, &high, &new] {
                let (keys, values) = self.sources(row, kv_head, stretch);
                for some in keys_together(stretch.len()) {
                    if attention.rows == 1 {
                        ask_for(&values[some.start * size..some.end * size]);
                    }
                    let next = ahead(self.inputs.values, start + some.start..start + some.end);
                    let keys = &keys[some.start * size..some.end * size];
                    for (member, (query, scores)) in queries.chunks_exact(size).zip(&mut scores).enumerate() {
                        ask_for(&next[share(next.len(), members, member)]);
                        let scores = &mut scores[start + some.start..start + some.end];
                        score_keys(self.isa, query, keys, attention.scale, scores);
                    }
                }
                for scores in &mut scores[..members] {
                    self.finish_scores(row, 0, stretch, &mut scores[start..start + stretch.len()]);
                }
                start += stretch.len();
            }
            let first_head = row * attention.heads + kv_head * group + number * QUERIES_TOGETHER;
            let part_of = |member: usize| {
                // SAFETY: every head and stretch has a part of its own, and one task, which has one of them at a time.
                unsafe { parts.slice(((first_head + member) * most + stretch) * part_len, part_len) }
            };
            for (member, scores) in scores[..members].iter_mut().enumerate() {
                let (sums, statistics) = part_of(member).split_at_mut(size);
                sums.fill(0.0);
                let (largest, sum) = weigh_row(self.isa, f32::NEG_INFINITY, &mut scores[..start]);
                statistics.copy_from_slice(&[largest, sum]);
            }
            let mut start = 0;
            for stretch in [&low, &high, &new] {
                let values = self.sources(row, kv_head, stretch).1;
                for some in keys_together(stretch.len()) {
                    let next = ahead(self.inputs.keys, start + some.start..start + some.end);
                    let values = &values[some.start * size..some.end * size];
                    for (member, weights) in scores[..members].iter().enumerate() {
                        ask_for(&next[share(next.len(), members, member)]);
                        let weights = &weights[start + some.start..start + some.end];
                        add_weighted(self.isa, weights, values, &mut part_of(member)[..size]);
                    }
                }
                start += stretch.len();
            }
        }
    }

    /// Where the cached keys lie that the task after one reads first, by their places in the whole cache.
    fn cached_after(&self, row: usize, kv_head: usize, stretch: usize) -> Range<usize> {
        let CachedAttention { rows, kv_heads, slots, .. } = *self.attention;
        let head = row * kv_heads + kv_head;
        let (head, stretch) =
            if (stretch + 1) * DECODE_KEYS < self.filled(row) { (head, stretch + 1) } else { (head + 1, 0) };
        let row = head / kv_heads;
        if row >= rows {
            return 0..0;
        }
        let places = stretch * DECODE_KEYS..self.filled(row).min((stretch + 1) * DECODE_KEYS);
        let [low, high] = self.slots_at(row, places);
        match if low.len() == 0 { high } else { low } {
            Stretch::Cached(keys) | Stretch::New(keys) => head * slots + keys.start..head * slots + keys.end,
        }
    }

    /// Joins the parts of every head of a row, whose results are `y`.
    fn join(&self, row: usize, stretches: usize, most: usize, parts: &[f32], y: &mut [f32]) {
        let CachedAttention { heads, size, .. } = *self.attention;
        let part_len = self.attention.part_len();
        for head in 0..heads {
            let start = (row * heads + head) * most * part_len;
            let parts = parts[start..][..stretches * part_len].chunks_exact(part_len);
            let sink = self.inputs.sinks.map(|sinks| sinks[head]);
            let largest = parts.clone().map(|part| part[size]).chain(sink).fold(f32::NEG_INFINITY, f32::max);
            let target = &mut y[head * size..][..size];
            target.fill(0.0);
            let mut sum = sink.map_or(0.0, |sink| (sink - largest).exp());
            for part in parts.filter(|part| part[size] > f32::NEG_INFINITY) {
                let weight = (part[size] - largest).exp();
                sum += weight * part[size + 1];
                add_weighted(self.isa, &[weight], &part[..size], target);
            }
            divide_row(self.isa, sum, target);
        }
    }

    /// Several new tokens a row.
    fn run_blocks(&self, exec: Exec, y: &mut [f32], scratch: &mut [f32]) {
        let attention = self.attention;
        let step = attention.block_queries(self.isa);
        let (blocks, heads) = (attention.length.div_ceil(step), attention.rows * attention.kv_heads);
        let tasks = blocks * heads;
        let parts = exec.threads().min(tasks);
        let (block_len, slots) = (attention.block_len(self.isa), attention.slot_count(exec.threads()));
        assert!(scratch.len() >= slots * block_len, "scratch of {} for {slots}×{block_len}", scratch.len());
        let (y, scratch, slots) = (SharedMut::new(y), SharedMut::new(scratch), ScratchSlots::new(slots));
        exec.pool().run(tasks, &|task| {
            let slot = slots.take();
            // SAFETY: nobody else has this slot until it is given back, below.
            let scratch = unsafe { scratch.slice(slot * block_len, block_len) };
            // Later blocks see more keys; those of the last tokens come first.
            let task = dealt_in_turn(tasks, parts, task);
            let (block, head) = (blocks - 1 - task / heads, task % heads);
            let steps = block * step..attention.length.min((block + 1) * step);
            self.run_block(head / attention.kv_heads, head % attention.kv_heads, steps, &y, scratch);
            slots.give_back(slot);
        });
    }

    /// Some queries of a row, of all heads that share a key head.
    fn run_block(&self, row: usize, kv_head: usize, steps: Range<usize>, y: &SharedMut<f32>, scratch: &mut [f32]) {
        if self.attention.strip_queries(self.isa).is_some() {
            return self.run_strips(row, kv_head, steps, y, scratch);
        }
        let attention = self.attention;
        let (group, size) = (attention.group(), attention.size);
        let rows = steps.len() * group;
        let (scores, rest) = scratch.split_at_mut(rows * BLOCK_KEYS);
        let (sums, rest) = rest.split_at_mut(rows * size);
        let (largest, rest) = rest.split_at_mut(rows);
        let (totals, packing) = rest.split_at_mut(rows);
        sums.fill(0.0);
        for (member, (largest, total)) in largest.iter_mut().zip(totals.iter_mut()).enumerate() {
            let sink = self.inputs.sinks.map(|sinks| sinks[kv_head * group + member % group]);
            (*largest, *total) = sink.map_or((f32::NEG_INFINITY, 0.0), |sink| (sink, 1.0));
        }
        let head = (row * attention.kv_heads + kv_head) * attention.length;
        let queries = &self.queries[(head + steps.start) * group * size..][..rows * size];
        for stretch in self.stretches(row, &steps, BLOCK_KEYS) {
            let values = SeenValues::new(self, row, kv_head, &steps, &stretch);
            self.score_block(row, kv_head, queries, &stretch, scores, packing);
            for (member, scores) in scores.chunks_exact_mut(BLOCK_KEYS).enumerate() {
                let scores = &mut scores[..stretch.len()];
                self.finish_scores(row, steps.start + member / group, &stretch, scores);
                let before = largest[member];
                let (now, sum) = weigh_row(self.isa, before, scores);
                let kept = if before == now { 1.0 } else { (before - now).exp() };
                if kept != 1.0 {
                    scale_row(self.isa, kept, &mut sums[member * size..][..size]);
                }
                (largest[member], totals[member]) = (now, totals[member] * kept + sum);
            }
            self.add_values(rows, &values, stretch.len(), scores, sums, packing);
            values.add_wild(&stretch, |member| steps.start + member / group, (scores, BLOCK_KEYS), sums);
        }
        for (member, (sums, &total)) in sums.chunks_exact(size).zip(totals.iter()).enumerate() {
            let token = row * attention.length + steps.start + member / group;
            let place = (token * attention.heads + kv_head * group + member % group) * size;
            // SAFETY: every query of every head has its own place, and is in one block.
            divide_row_into(self.isa, total, sums, unsafe { y.slice(place, size) });
        }
    }

    /// The keys that some queries of a row may see, a stretch of so many at a time.
    pub(crate) fn stretches(
        &self,
        row: usize,
        steps: &Range<usize>,
        together: usize,
    ) -> impl Iterator<Item = Stretch> + use<> {
        let cut = move |keys: Range<usize>| {
            let end = keys.end;
            keys.step_by(together).map(move |start| start..end.min(start + together))
        };
        let first_new =
            if self.attention.window == 0 { 0 } else { (steps.start + 1).saturating_sub(self.attention.window) };
        let cached = self.seen_slots(row, steps.start).into_iter().flat_map(cut).map(Stretch::Cached);
        cached.chain(cut(first_new..steps.end).map(Stretch::New))
    }

    fn score_block(
        &self,
        row: usize,
        kv_head: usize,
        queries: &[f32],
        stretch: &Stretch,
        scores: &mut [f32],
        packing: &mut [f32],
    ) {
        let size = self.attention.size;
        let [shape, _] = self.attention.products(queries.len() / size, stretch.len());
        let item = Item {
            a: MatrixA::Rows { data: queries, stride: size },
            b: SourceB::Matrix(MatrixB::Columns { data: self.sources(row, kv_head, stretch).0, stride: size }),
            c_start: 0,
            bias: Bias::None,
        };
        drive_alone(self.isa, &shape, item, self.attention.scale, &SharedMut::new(scores), packing);
    }

    fn add_values(
        &self,
        rows: usize,
        values: &SeenValues,
        keys: usize,
        weights: &[f32],
        sums: &mut [f32],
        packing: &mut [f32],
    ) {
        let [_, shape] = self.attention.products(rows, keys);
        let item = Item {
            a: MatrixA::Rows { data: weights, stride: BLOCK_KEYS },
            b: SourceB::Matrix(MatrixB::Rows { data: values.tame(), stride: self.attention.size }),
            c_start: 0,
            bias: Bias::None,
        };
        drive_alone_onto(self.isa, &shape, item, &SharedMut::new(sums), packing);
    }
}

/// Keys of a stretch, some at a time.
fn keys_together(count: usize) -> impl Iterator<Item = Range<usize>> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let left = count - first;
        let take = if left < KEYS_TOGETHER + KEYS_LEFT_MIN { left } else { KEYS_TOGETHER };
        first += take;
        (take > 0).then_some(first - take..first)
    })
}

/// Which of some tasks, the longest first, is done in a place of the order in which threads take them, a range each: they are
/// dealt one by one, and who was last is first in the next turn.
fn dealt_in_turn(tasks: usize, parts: usize, place: usize) -> usize {
    let part = (0..parts).find(|&part| share(tasks, parts, part).contains(&place)).unwrap_or(0);
    let turn = place - share(tasks, parts, part).start;
    let is_back = !turn.is_multiple_of(2) && (turn + 1) * parts <= tasks;
    turn * parts + if is_back { parts - 1 - part } else { part }
}

#[cfg(test)]
#[path = "cached_attention_tests.rs"]
mod tests;
