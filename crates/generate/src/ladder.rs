//! Sizes that have Programs. A size between two of them runs on the next larger one.

use crate::config::TuningConfig;

/// Tokens of the smallest cache.
const CAPACITY_MIN: usize = 256;
/// Programs that a decoder may keep whatever its ladders: those of single rows at a few capacities.
const PROGRAMS_MIN: usize = 64;
/// Programs that a decoder may keep at most.
const PROGRAMS_MAX: usize = 1024;
/// Lengths of proposals that rows of a size may be verified with.
const LENGTHS_VERIFIED: usize = 4;
/// Pages that a row has room for in the smallest Program on pages.
const ROW_PAGES_MIN: usize = 8;
/// New tokens that a cache has room for at first, where the caller allows more.
const ROOM_AT_FIRST: usize = 256;

/// Rising sizes, without repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ladder(Vec<usize>);

impl Ladder {
    /// A ladder of these sizes and `largest`, without what is larger.
    pub fn of(sizes: impl IntoIterator<Item = usize>, largest: usize) -> Ladder {
        let mut sizes: Vec<usize> = sizes.into_iter().filter(|&size| size > 0 && size < largest).collect();
        sizes.push(largest);
        sizes.sort_unstable();
        sizes.dedup();
        Ladder(sizes)
    }

    /// 1, 2, 3, 4, 6, 8, 12, …: powers of two and three times them, and `largest`.
    pub fn fine(largest: usize) -> Ladder {
        let powers = (0..usize::BITS - 2).map(|shift| 1usize << shift).take_while(|&power| power < largest);
        Ladder::of(powers.flat_map(|power| [power, 3 * power]), largest)
    }

    /// Every size up to `largest`: nothing is ever filler.
    pub fn exact(largest: usize) -> Ladder {
        Ladder::of(1..largest, largest)
    }

    /// 256, 512, 1024, … and `largest`.
    pub fn doubling(largest: usize) -> Ladder {
        let doubled = std::iter::successors(Some(CAPACITY_MIN), |size| size.checked_mul(2));
        Ladder::of(doubled.take_while(|&size| size < largest), largest)
    }

    /// Tokens of 8, 16, 32, … pages, until `longest` fits.
    pub fn of_pages(page_tokens: usize, longest: usize) -> Ladder {
        let doubled = std::iter::successors(Some(ROW_PAGES_MIN * page_tokens), |size| size.checked_mul(2));
        let shorter: Vec<usize> = doubled.take_while(|&size| size < longest).collect();
        let largest = shorter.last().map_or(ROW_PAGES_MIN * page_tokens, |size| 2 * size);
        Ladder::of(shorter, largest)
    }

    /// The smallest size that holds `count`.
    pub fn at_least(&self, count: usize) -> Option<usize> {
        self.0.iter().copied().find(|&size| size >= count)
    }

    /// The largest size that `count` fills.
    pub fn at_most(&self, count: usize) -> Option<usize> {
        self.0.iter().copied().rfind(|&size| size <= count)
    }

    /// The largest size.
    pub fn largest(&self) -> usize {
        self.0.last().copied().unwrap_or(1)
    }

    /// All sizes, rising.
    pub fn sizes(&self) -> &[usize] {
        &self.0
    }
}

/// The ladders of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ladders {
    /// New tokens of one row.
    pub length: Ladder,
    /// New tokens of one row beyond the ladder, for prompts that fill them: what each token costs is least there.
    pub long_chunk: Option<usize>,
    /// Rows of a decode step.
    pub rows: Ladder,
    /// Slots of a cache.
    pub capacity: Ladder,
    /// Whether filler, neighbours and cuts would change answers, so that there are none.
    pub is_exact: bool,
}

impl Ladders {
    /// The ladders of a folder: what it says, else the default for chunks of `chunk` tokens and at most `rows` rows.
    pub fn new(tuning: &TuningConfig, context_length: usize, chunk: usize, rows: usize) -> Ladders {
        let largest = |sizes: &Option<Vec<usize>>| sizes.as_ref().and_then(|sizes| sizes.iter().copied().max());
        let chunk = tuning.chunk.or_else(|| largest(&tuning.length_buckets)).unwrap_or(chunk);
        let chunk = chunk.min(context_length).max(1);
        let rows = rows.max(largest(&tuning.row_buckets).unwrap_or(1));
        Ladders {
            length: match &tuning.length_buckets {
                Some(sizes) => Ladder::of(sizes.iter().copied(), chunk),
                None => Ladder::fine(chunk),
            },
            rows: match &tuning.row_buckets {
                Some(sizes) => Ladder::of(sizes.iter().copied(), rows),
                None => Ladder::fine(rows),
            },
            capacity: match &tuning.kv_capacity_buckets {
                Some(sizes) => Ladder::of(sizes.iter().copied(), context_length),
                None => Ladder::doubling(context_length),
            },
            long_chunk: None,
            is_exact: false,
        }
    }

    /// The same ladders with a long chunk, unless the folder says how long chunks are.
    pub fn with_long_chunk(self, tuning: &TuningConfig, long: usize) -> Ladders {
        let is_said = tuning.chunk.is_some() || tuning.length_buckets.is_some();
        let long_chunk = (!is_said && long > self.length.largest() && long <= self.capacity.largest()).then_some(long);
        Ladders { long_chunk, ..self }
    }

    /// The same ladders with every eighth number of rows and of new tokens from 32 to 64, unless the folder says which: on a
    /// device where each row of filler costs what a row costs.
    pub fn with_close_sizes(self, tuning: &TuningConfig) -> Ladders {
        if self.is_exact {
            return self;
        }
        let closer = |ladder: &Ladder| Ladder::of(ladder.sizes().iter().copied().chain([40, 56]), ladder.largest());
        let rows = if tuning.row_buckets.is_some() { self.rows.clone() } else { closer(&self.rows) };
        let length = if tuning.length_buckets.is_some() { self.length.clone() } else { closer(&self.length) };
        Ladders { rows, length, ..self }
    }

    /// The same ladders where rows lie in pages of so many tokens: capacities are those of tables of pages.
    pub fn on_pages(&self, page_tokens: usize) -> Ladders {
        Ladders { capacity: Ladder::of_pages(page_tokens, self.capacity.largest()), ..self.clone() }
    }

    /// The length of the Program that runs the next part of a prompt: the long chunk where no more than an eighth of it would
    /// be filler, else the smallest size that holds what is left, at most the largest one.
    pub fn length_for(&self, pending: usize) -> usize {
        match self.long_chunk {
            Some(long) if pending + long / 8 >= long => long,
            _ => self.length.at_least(pending).unwrap_or_else(|| self.length.largest()),
        }
    }

    /// Programs that steps of all sizes need: each length of a prompt and each number of rows, at every capacity. A decoder that
    /// keeps fewer compiles the same ones again and again.
    pub fn program_count(&self) -> usize {
        let lengths = self.length.sizes().len() + usize::from(self.long_chunk.is_some());
        let rows = self.rows.sizes().len() * (1 + LENGTHS_VERIFIED);
        ((lengths + rows) * self.capacity.sizes().len()).clamp(PROGRAMS_MIN, PROGRAMS_MAX)
    }

    /// The same capacities for a model in which filler would change answers: every length and one row at a time. Whole prompts
    /// run at once, since cutting one would change it too.
    pub fn without_filler(&self) -> Ladders {
        let longest = self.capacity.largest();
        let capacity = self.capacity.clone();
        Ladders { length: Ladder::exact(longest), rows: Ladder::exact(1), capacity, long_chunk: None, is_exact: true }
    }

    /// The same ladders for a model that is told one length for all rows: one row at a time.
    pub fn with_single_rows(self) -> Ladders {
        Ladders { rows: Ladder::exact(1), ..self }
    }

    /// The same ladders for chunks of at most so many tokens: the chunk is rounded up to a size that there is.
    pub fn with_chunk(&self, chunk: usize) -> Ladders {
        let largest = self.length.at_least(chunk).unwrap_or_else(|| self.length.largest());
        Ladders { length: Ladder::of(self.length.sizes().iter().copied(), largest), long_chunk: None, ..self.clone() }
    }

    /// Programs of one capacity: prompts of each length with scores, the longest without, and decode steps of each number of
    /// rows; a prompt of one token behind a cache is a decode step.
    pub fn programs_a_capacity(&self) -> usize {
        let long = 2 * usize::from(self.long_chunk.is_some());
        let rows = self.rows.sizes().iter().filter(|&&rows| rows > 1).count();
        self.length.sizes().len() + 1 + long + rows
    }

    /// Slots of a cache for a prompt, with room for what is generated first. The longest length that is allowed plays no
    /// part: a cache grows when it must.
    pub fn capacity_at_first(&self, prompt: usize, max_new_tokens: Option<usize>) -> usize {
        let wanted = prompt + max_new_tokens.unwrap_or(ROOM_AT_FIRST).min(ROOM_AT_FIRST);
        self.capacity.at_least(wanted).unwrap_or_else(|| self.capacity.largest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fine_ladder_has_the_sizes_of_the_specification() {
        assert_eq!(Ladder::fine(512).sizes(), [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]);
        assert_eq!(Ladder::fine(512).sizes().len(), 18);
        assert_eq!(Ladder::fine(10).sizes(), [1, 2, 3, 4, 6, 8, 10]);
        assert_eq!(Ladder::fine(1).sizes(), [1]);
        assert_eq!(Ladder::doubling(2000).sizes(), [256, 512, 1024, 2000]);
        assert_eq!(Ladder::doubling(100).sizes(), [100]);
        assert_eq!(Ladder::exact(3).sizes(), [1, 2, 3]);
        assert_eq!(Ladder::of_pages(16, 2000).sizes(), [128, 256, 512, 1024, 2048]);
        assert_eq!(Ladder::of_pages(16, 2048).sizes(), [128, 256, 512, 1024, 2048]);
        assert_eq!((Ladder::of_pages(256, 512).sizes(), Ladder::of_pages(1, 9).sizes()), (&[2048][..], &[8, 16][..]));
    }

    #[test]
    fn waste_of_the_fine_ladder_is_below_a_half() {
        let ladder = Ladder::fine(512);
        for count in 1..=512 {
            let size = ladder.at_least(count).unwrap_or(0);
            assert!(size >= count && 2 * size <= 3 * count, "{count} runs as {size}");
        }
        assert_eq!((ladder.at_least(513), ladder.at_most(5), ladder.at_most(0)), (None, Some(4), None));
    }

    #[test]
    fn defect_24_a_cache_does_not_follow_the_longest_length() {
        let ladders = Ladders::new(&TuningConfig::default(), 131_072, 128, 1);
        assert_eq!(ladders.capacity_at_first(20, None), 512);
        assert_eq!(ladders.capacity_at_first(20, Some(64)), 256);
        assert_eq!(ladders.capacity_at_first(131_000, None), 131_072);
    }

    #[test]
    fn a_folder_may_name_its_own_sizes() {
        let tuning = TuningConfig {
            length_buckets: Some(vec![200, 10]),
            row_buckets: Some(vec![4]),
            kv_capacity_buckets: Some(vec![40, 600]),
            ..TuningConfig::default()
        };
        let ladders = Ladders::new(&tuning, 512, 128, 2);
        assert_eq!(ladders.length.sizes(), [10, 200]);
        assert_eq!((ladders.rows.sizes(), ladders.capacity.sizes()), (&[4][..], &[40, 512][..]));
        assert_eq!(ladders.without_filler().rows.sizes(), [1]);
    }

    #[test]
    fn a_long_chunk_is_for_prompts_that_fill_it() {
        let short = Ladders::new(&TuningConfig::default(), 4096, 128, 1);
        let ladders = short.clone().with_long_chunk(&TuningConfig::default(), 512);
        let lengths: Vec<usize> = [5, 100, 200, 447, 448, 512, 3000].map(|pending| ladders.length_for(pending)).into();
        assert_eq!(lengths, [6, 128, 128, 128, 512, 512, 512]);
        let said = TuningConfig { chunk: Some(64), ..TuningConfig::default() };
        assert_eq!(short.clone().with_long_chunk(&said, 512).long_chunk, None);
        assert_eq!(Ladders::new(&TuningConfig::default(), 300, 128, 1).with_long_chunk(&said, 512).long_chunk, None);
        assert_eq!(ladders.with_chunk(64).length_for(3000), 64);
    }

    #[test]
    fn close_sizes_lie_between_half_and_the_whole_of_64() {
        let ladders = Ladders::new(&TuningConfig::default(), 4096, 64, 64).with_close_sizes(&TuningConfig::default());
        assert_eq!(ladders.length.sizes()[9..], [32, 40, 48, 56, 64]);
        assert_eq!(ladders.rows.sizes(), ladders.length.sizes());
        let said = TuningConfig { length_buckets: Some(vec![8, 64]), ..TuningConfig::default() };
        let ladders = Ladders::new(&said, 4096, 64, 64).with_close_sizes(&said);
        assert_eq!((ladders.length.sizes(), ladders.rows.sizes()[10]), (&[8, 64][..], 40));
    }

    #[test]
    fn a_chunk_is_rounded_up_to_a_size_that_there_is() {
        let ladders = Ladders::new(&TuningConfig::default(), 512, 128, 4);
        assert_eq!(ladders.with_chunk(9).length.sizes(), [1, 2, 3, 4, 6, 8, 12]);
        assert_eq!(ladders.with_chunk(1000).length.largest(), 128);
    }
}
