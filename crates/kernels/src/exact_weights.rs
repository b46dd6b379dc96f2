//! Finds weights that need fewer bits than f32 has: those that lie on a grid of 16 or 256 levels in each block, as the weights
//! of quantised checkpoints do after they were written as f32, and those that are bf16. Every weight stays the same number.

use crate::float16::{f16_to_f32, f32_to_f16};
use crate::gemm_blocks::{BlockWeights, COLUMNS, Code, PackedBlock};
use crate::isa::Isa;
use crate::simd::multiversion;

/// Blocks that checkpoints use, those with the fewest scales first.
const BLOCKS: [usize; 3] = [128, 64, 32];
/// Successive k of a block whose weights need no scale.
const BLOCK_OF_VALUES: usize = 32;

impl BlockWeights {
    /// Whether `PlainWeights::exact_form` can give it.
    pub fn is_exact_form(&self) -> bool {
        PlainWeights { data: &[], k: self.k, n: self.n, is_transposed: false }.candidates().contains(self)
    }
}

/// A plain matrix of weights, k × n.
#[derive(Clone, Copy)]
pub struct PlainWeights<'a> {
    /// Its elements.
    pub data: &'a [f32],
    /// Rows.
    pub k: usize,
    /// Columns.
    pub n: usize,
    /// Whether `data` is n × k.
    pub is_transposed: bool,
}

impl PlainWeights<'_> {
    /// The form with the fewest bits in which every weight is exactly what it is.
    pub fn exact_form(&self, isa: Isa) -> Option<BlockWeights> {
        self.candidates().into_iter().find(|form| self.is_exact(isa, form))
    }

    /// Packs the weights in a form that they have.
    pub fn pack(&self, isa: Isa, form: &BlockWeights, packed: &mut [u32]) {
        let mut tile = Tile::default();
        form.pack_blocks(packed, |panel, block, packed| {
            self.read(form, panel, block, &mut tile);
            tile.write(isa, form, packed);
        });
    }

    /// Forms from the fewest bits to the most.
    fn candidates(&self) -> Vec<BlockWeights> {
        let form = |block, code, has_shifts| BlockWeights { k: self.k, n: self.n, block, code, has_shifts };
        let codes = [(Code::Int4, false), (Code::Uint4, true), (Code::Int8, false)];
        let mut forms: Vec<BlockWeights> = Vec::new();
        for (code, has_shifts) in codes {
            forms
                .extend(BLOCKS.into_iter().filter(|&block| block <= self.k).map(|block| form(block, code, has_shifts)));
        }
        forms.push(form(BLOCK_OF_VALUES, Code::Bf16, false));
        forms.retain(BlockWeights::is_covered);
        forms
    }

    /// Whether every weight is exactly what the form makes of it.
    fn is_exact(&self, isa: Isa, form: &BlockWeights) -> bool {
        let mut tile = Tile::default();
        (0..self.n.div_ceil(COLUMNS)).all(|panel| {
            (0..form.blocks()).all(|block| {
                self.read(form, panel, block, &mut tile);
                tile.fits(isa, form)
            })
        })
    }

    /// One block of 16 columns. Missing k repeat the last one, missing columns are zeros.
    fn read(&self, form: &BlockWeights, panel: usize, block: usize, tile: &mut Tile) {
        let first = panel * COLUMNS;
        let lanes = COLUMNS.min(self.n - first);
        tile.rows.clear();
        for at in 0..form.block {
            let k = (block * form.block + at).min(self.k - 1);
            let mut row = [0.0; COLUMNS];
            if self.is_transposed {
                for (lane, value) in row[..lanes].iter_mut().enumerate() {
                    *value = self.data[(first + lane) * self.k + k];
                }
            } else {
                row[..lanes].copy_from_slice(&self.data[k * self.n + first..][..lanes]);
            }
            tile.rows.push(row);
        }
    }
}

/// A block of 16 columns.
#[derive(Default)]
struct Tile {
    rows: Vec<[f32; COLUMNS]>,
}

/// Scale and shift of each column.
#[derive(Clone, Copy)]
struct Grid {
    scales: [f32; COLUMNS],
    shifts: [f32; COLUMNS],
}

impl Tile {
    fn fits(&self, isa: Isa, form: &BlockWeights) -> bool {
        match form.code {
            Code::Bf16 => self.rows.iter().flatten().all(|value| value.to_bits() & 0xffff == 0),
            code => self.grid(isa, code).is_some(),
        }
    }

    /// Writes a tile that fits.
    fn write(&self, isa: Isa, form: &BlockWeights, mut packed: PackedBlock<'_>) {
        // Of several grids the weights say which; a single one was checked when the form was found.
        let grid = match self.grids(isa, form.code)[..] {
            [only] => Some(only),
            _ => self.grid(isa, form.code),
        };
        for (lane, (scale, shift)) in grid.iter().flat_map(|grid| grid.scales.into_iter().zip(grid.shifts)).enumerate()
        {
            packed.set_head(lane, scale, shift);
        }
        let (words, per_word) = packed.level_words();
        for (rows, words) in self.rows.chunks_exact(per_word).zip(words) {
            match &grid {
                Some(grid) => join_levels(isa, form.code, rows, grid, words),
                None => *words = std::array::from_fn(|lane| rows[0][lane].to_bits() >> 16 | rows[1][lane].to_bits()),
            }
        }
    }

    /// The grid on which every weight lies, if there is one.
    fn grid(&self, isa: Isa, code: Code) -> Option<Grid> {
        self.grids(isa, code).into_iter().find(|grid| lie_on(isa, code, &self.rows, grid))
    }

    /// Grids on which the weights may lie: quantisers put the largest weight of a block at the last level, of either sign.
    fn grids(&self, isa: Isa, code: Code) -> Vec<Grid> {
        let [least, most] = limits(isa, &self.rows);
        let extreme = |lane: usize| if -least[lane] > most[lane] { least[lane] } else { most[lane] };
        let by_column = |scale: &dyn Fn(usize) -> f32| std::array::from_fn(|lane| half_precise(scale(lane)));
        let shifts = [0.0; COLUMNS];
        match code {
            Code::Uint4 => vec![Grid { scales: by_column(&|lane| (most[lane] - least[lane]) / 15.0), shifts: least }],
            Code::Int4 => vec![
                Grid { scales: by_column(&|lane| extreme(lane) / -8.0), shifts },
                Grid { scales: by_column(&|lane| extreme(lane).abs() / 7.0), shifts },
            ],
            Code::Int8 => vec![Grid { scales: by_column(&|lane| extreme(lane).abs() / 127.0), shifts }],
            Code::Bf16 => Vec::new(),
        }
    }
}

/// The nearest number that f16 has: scales of checkpoints have no more bits, so that a level times a scale is exact.
fn half_precise(scale: f32) -> f32 {
    f16_to_f32(f32_to_f16(scale))
}

/// The level nearest to a weight, counted from the code's origin.
#[inline(always)]
fn level(code: Code, value: f32, scale: f32, shift: f32) -> f32 {
    let origin = f32::from(code.origin());
    let last = (1_u32 << code.bits()) as f32 - 1.0 - origin;
    let level = if scale == 0.0 { 0.0 } else { (value - shift) / scale };
    level.round_ties_even().clamp(-origin, last)
}

multiversion! {
    /// The least and the largest weight of each column.
    fn limits<F: MulAdd>(rows: &[[f32; COLUMNS]]) -> [[f32; COLUMNS]; 2] {
        let (mut least, mut most) = ([f32::INFINITY; COLUMNS], [f32::NEG_INFINITY; COLUMNS]);
        for row in rows {
            for lane in 0..COLUMNS {
                least[lane] = least[lane].min(row[lane]);
                most[lane] = most[lane].max(row[lane]);
            }
        }
        [least, most]
    }

    fn lie_on<F: MulAdd>(code: Code, rows: &[[f32; COLUMNS]], grid: &Grid) -> bool {
        let Grid { scales, shifts } = *grid;
        rows.iter().all(|row| {
            let mut misses = 0;
            for lane in 0..COLUMNS {
                let level = level(code, row[lane], scales[lane], shifts[lane]);
                misses += u32::from(level * scales[lane] + shifts[lane] != row[lane]);
            }
            misses == 0
        })
    }

    /// The levels of successive k as words.
    fn join_levels<F: MulAdd>(code: Code, rows: &[[f32; COLUMNS]], grid: &Grid, words: &mut [u32; COLUMNS]) {
        let Grid { scales, shifts } = *grid;
        let (bits, origin) = (code.bits(), if code == Code::Int8 { 0 } else { i32::from(code.origin()) });
        let mask = (1_u32 << bits) - 1;
        for (place, row) in rows.iter().enumerate() {
            for lane in 0..COLUMNS {
                let level = level(code, row[lane], scales[lane], shifts[lane]) as i32 + origin;
                words[lane] |= (level as u32 & mask) << (place as u32 * bits);
            }
        }
    }
}

#[cfg(test)]
#[path = "exact_weights_tests.rs"]
mod tests;
