//! Ways to cut a product into blocks, and what each is expected to cost.

use crate::kernel::{Arch, Vendor};

/// How one product is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Tactic {
    /// How blocks compute.
    pub tile: Tile,
    /// How many blocks divide the inner axis.
    pub splits: usize,
    /// How they add up.
    pub split_by: SplitBy,
    /// What it is expected to cost, in clocks of a multiprocessor.
    pub cost: f64,
}

/// How blocks that divide the inner axis add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitBy {
    /// There is one.
    None,
    /// Through the shared memory of a cluster.
    Cluster,
    /// Through memory and a second launch.
    Memory,
}

/// A block's part of the result, and who computes what of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant says what its numbers are")]
pub enum Tile {
    /// Matrix instructions: results, inner axis at a time, warps along rows, columns and the inner axis, stages of copies.
    Mma { bm: usize, bn: usize, bk: usize, warps: [usize; 3], stages: usize },
    /// Matrix instructions of four warps together: results, groups of four warps along rows and columns, stages of copies of
    /// 64 of the inner axis.
    Group { bm: usize, bn: usize, groups: [usize; 2], stages: usize },
    /// Multiply-add of elements: results, inner axis at a time, results of a thread.
    Fma { bm: usize, bn: usize, bk: usize, tm: usize, tn: usize },
    /// A matrix streamed for few rows: columns of a warp.
    Gemv { columns: usize },
    /// Attention on matrix instructions: warps along queries, warps that divide the keys of a step, keys of a warp, blocks of
    /// keys in shared memory.
    Attention { warps_q: usize, warps_keys: usize, warp_keys: usize, stages: usize },
}

const fn mma(bm: usize, bn: usize, bk: usize, warps: [usize; 3], stages: usize) -> Tile {
    Tile::Mma { bm, bn, bk, warps, stages }
}

/// Tiles of matrix instructions, the largest first.
pub const MMA_TILES: &[Tile] = &[
    mma(128, 128, 32, [2, 4, 1], 4),
    mma(128, 64, 64, [4, 2, 1], 3),
    mma(64, 128, 64, [2, 4, 1], 3),
    mma(64, 64, 64, [2, 2, 1], 4),
    mma(64, 64, 64, [2, 2, 2], 3),
    mma(64, 32, 64, [2, 1, 2], 4),
    mma(32, 64, 64, [1, 2, 2], 4),
    mma(32, 32, 64, [1, 1, 4], 5),
    mma(32, 32, 128, [1, 1, 8], 3),
    mma(16, 32, 64, [1, 1, 4], 4),
];

const fn group(bm: usize, bn: usize, groups: [usize; 2], stages: usize) -> Tile {
    Tile::Group { bm, bn, groups, stages }
}

/// Inner axis of a stage of `Tile::Group`: a line of shared memory.
const GROUP_K: usize = 64;

/// Tiles of matrix instructions of four warps together, the largest first.
pub const GROUP_TILES: &[Tile] = &[
    group(256, 128, [4, 1], 4),
    group(128, 256, [2, 1], 4),
    group(128, 128, [2, 1], 6),
    group(128, 128, [2, 1], 3),
    group(128, 64, [2, 1], 4),
    group(64, 128, [1, 1], 4),
    group(64, 64, [1, 1], 6),
];

/// Tiles of multiply-add, the largest first.
pub const FMA_TILES: &[Tile] = &[
    Tile::Fma { bm: 128, bn: 128, bk: 8, tm: 8, tn: 8 },
    Tile::Fma { bm: 64, bn: 64, bk: 16, tm: 4, tn: 4 },
    Tile::Fma { bm: 32, bn: 32, bk: 16, tm: 2, tn: 4 },
];

/// Beyond this many rows matrix instructions are faster than streaming.
pub const GEMV_ROWS_MAX: usize = 8;
/// Warps of a block that streams.
pub const GEMV_WARPS: usize = 4;

/// Blocks that may divide the inner axis through a cluster: more are not portable.
const CLUSTER_SPLITS: &[usize] = &[2, 4, 8];
const MEMORY_SPLITS: &[usize] = &[2, 4, 8, 16];

impl Tile {
    /// Rows, columns and inner axis of a block.
    pub fn sizes(self) -> [usize; 3] {
        match self {
            Tile::Mma { bm, bn, bk, .. } | Tile::Fma { bm, bn, bk, .. } => [bm, bn, bk],
            Tile::Group { bm, bn, .. } => [bm, bn, GROUP_K],
            Tile::Gemv { columns } => [GEMV_ROWS_MAX, columns * GEMV_WARPS, 1],
            Tile::Attention { warps_q, warps_keys, warp_keys, .. } => [16 * warps_q, warps_keys * warp_keys, 16],
        }
    }

    /// Threads of a block.
    pub fn threads(self, warp: u32) -> u32 {
        match self {
            Tile::Mma { warps, .. } => warps.iter().product::<usize>() as u32 * warp,
            Tile::Group { groups, .. } => (groups[0] * groups[1]) as u32 * 4 * warp,
            Tile::Fma { bm, bn, tm, tn, .. } => ((bm / tm) * (bn / tn)) as u32,
            Tile::Gemv { .. } => GEMV_WARPS as u32 * warp,
            Tile::Attention { warps_q, warps_keys, .. } => (warps_q * warps_keys) as u32 * warp,
        }
    }

    /// Shared memory of a product's block whose sums have `acc_bytes`.
    pub fn shared_bytes(self, acc_bytes: usize) -> usize {
        match self {
            Tile::Mma { bm, bn, bk, warps, stages } => {
                (stages * (bm + bn) * bk * 2).max(warps[2] * bm * (bn + 8) * acc_bytes)
            }
            Tile::Group { bm, bn, stages, .. } => (stages * (bm + bn) * GROUP_K * 2).max(bm * (bn + 8) * acc_bytes),
            Tile::Fma { bm, bn, bk, .. } => 2 * bk * (bm + bn + 8) * acc_bytes,
            Tile::Gemv { .. } | Tile::Attention { .. } => 0,
        }
    }

    /// Clocks of one step along the inner axis: what the units take when full, and the least when a block is alone.
    fn step_clocks(self) -> [f64; 2] {
        match self {
            // Far from the 1,024 multiply-adds a clock that the units could do; a load of matrices and a chain of
            // instructions for each 16 of K.
            Tile::Mma { bm, bn, bk, warps, .. } => {
                let turns = (bk / 16 / warps[2]) as f64;
                let instructions = (bm / warps[0] / 16 * (bn / warps[1] / 8)) as f64;
                [(bm * bn * bk) as f64 / 655.0, 13.0 + turns * (24.0 + 3.5 * instructions)]
            }
            // Of 2,048 multiply-adds a clock; a barrier and four instructions that run one after the other.
            Tile::Group { bm, bn, groups, .. } => {
                let products = (bm * bn * GROUP_K) as f64;
                [products / 1215.0, 205.0 + products / (groups[0] * groups[1]) as f64 / 2048.0]
            }
            Tile::Fma { bm, bn, bk, tm, tn } => {
                [(bm * bn * bk) as f64 / 110.0, 60.0 + (bk * (tm * tn + 8)) as f64 * 1.1]
            }
            Tile::Gemv { .. } | Tile::Attention { .. } => [0.0; 2],
        }
    }
}

impl Tactic {
    /// Name for people.
    pub fn name(&self) -> String {
        let [bm, bn, bk] = self.tile.sizes();
        let kind = match self.tile {
            Tile::Mma { warps, .. } if warps[2] > 1 => format!("mma.{bm}x{bn}x{bk}k{}", warps[2]),
            Tile::Mma { .. } => format!("mma.{bm}x{bn}x{bk}"),
            Tile::Group { stages, .. } => format!("wgmma.{bm}x{bn}x{bk}s{stages}"),
            Tile::Fma { .. } => format!("fma.{bm}x{bn}x{bk}"),
            Tile::Gemv { columns } => format!("gemv.{columns}"),
            Tile::Attention { warps_keys, .. } => format!("mma.{bm}q{bn}k{warps_keys}"),
        };
        match self.split_by {
            SplitBy::None => kind,
            SplitBy::Cluster => format!("{kind}.cluster{}", self.splits),
            SplitBy::Memory => format!("{kind}.split{}", self.splits),
        }
    }
}

/// A product as the choice of its tactic sees it.
#[derive(Clone, Copy, Debug)]
pub struct ProductSize {
    /// Rows, columns, inner axis.
    pub mnk: [usize; 3],
    /// Products of this size.
    pub count: usize,
    /// Whether matrix instructions multiply the elements.
    pub is_mma: bool,
    /// Bytes of a sum.
    pub acc_bytes: usize,
    /// Whether the matrix can be streamed for few rows.
    pub is_streamable: bool,
}

/// All tactics for a product, the one that is expected to be fastest first.
pub fn candidates(arch: &Arch, size: ProductSize) -> Vec<Tactic> {
    let tiles = match (size.is_mma && arch.vendor == Vendor::Cuda, has_groups(arch)) {
        (true, true) => [MMA_TILES, GROUP_TILES],
        (true, false) => [MMA_TILES, &[]],
        (false, _) => [FMA_TILES, &[]],
    };
    let has_clusters = has_clusters(arch);
    let mut tactics = Vec::new();
    for &tile in tiles.into_iter().flatten() {
        if tile.shared_bytes(size.acc_bytes) > arch.shared_bytes_max as usize {
            continue;
        }
        let mut add = |splits: usize, split_by: SplitBy| {
            let cost = cost(arch, size, tile, splits, split_by);
            tactics.push(Tactic { tile, splits, split_by, cost });
        };
        add(1, SplitBy::None);
        let [bm, _, bk] = tile.sizes();
        let steps = size.mnk[2].div_ceil(bk);
        let is_mma = matches!(tile, Tile::Mma { .. } | Tile::Group { .. });
        for &splits in CLUSTER_SPLITS.iter().filter(|&&splits| splits <= steps && is_mma && has_clusters) {
            if bm % splits == 0 {
                add(splits, SplitBy::Cluster);
            }
        }
        for &splits in MEMORY_SPLITS.iter().filter(|&&splits| splits <= steps) {
            add(splits, SplitBy::Memory);
        }
    }
    if size.is_streamable {
        for columns in [1, 2, 4] {
            let tile = Tile::Gemv { columns };
            tactics.push(Tactic {
                tile,
                splits: 1,
                split_by: SplitBy::None,
                cost: streaming_cost(arch, size, columns),
            });
        }
    }
    tactics.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    tactics
}

/// Tiles that convolutions whose sizes are parameters are cut by, the most frequent first: with these few, what is chosen for
/// ResNet-50 is expected to take at most 2 % longer at any batch, and Buckets have most of their kernels in common.
const COMMON_TILES: [Tile; 6] = [
    group(64, 64, [1, 1], 6),
    group(128, 128, [2, 1], 6),
    group(256, 128, [4, 1], 4),
    group(128, 64, [2, 1], 4),
    mma(32, 32, 64, [1, 1, 4], 5),
    mma(16, 32, 64, [1, 1, 4], 4),
];
/// Tactics whose costs differ by less are held to be equal; what is chosen by cost alone takes 5 % longer than the best.
const COST_TIE: f64 = 1.06;
/// How much more a common tactic may cost than the best one where none is about as good.
const COMMON_COST_MAX: f64 = 1.2;

/// The tactic for a product that may share its kernel with products of other sizes, of all tactics in their order: where several are
/// about as good, one that others are likely to have too, so that there are fewer kernels to compile.
pub fn preferred(tactics: &[Tactic]) -> Option<&Tactic> {
    let best = tactics.first()?;
    let place = |tactic: &Tactic| COMMON_TILES.iter().position(|tile| *tile == tactic.tile);
    let is_common = |tactic: &&Tactic| place(tactic).is_some() && tactic.split_by != SplitBy::Memory;
    let within = |factor: f64| {
        let is_within = move |tactic: &&Tactic| tactic.cost <= best.cost * factor;
        tactics.iter().take_while(is_within).filter(is_common)
    };
    let equal = within(COST_TIE).min_by_key(|tactic| (place(tactic), tactic.splits));
    equal.or_else(|| within(COMMON_COST_MAX).next()).or(Some(best))
}

/// The tile for the windows of an image of few channels, which a network begins with: of the tactics that are about as good, the
/// one that is so at every batch.
const FIRST_TILE: Tile = group(128, 64, [2, 1], 4);
/// The tile for few rows.
const FEW_ROWS_TILE: Tile = mma(32, 64, 64, [1, 2, 2], 4);
/// Rows that are few, but too many to stream a matrix for.
const FEW_ROWS: std::ops::RangeInclusive<usize> = GEMV_ROWS_MAX + 1..=32;

/// The tactic for a product whose sizes are constants of its text, all but the number of rows, of all tactics in their order.
pub fn preferred_at_any_batch(tactics: &[Tactic], rows: usize, is_first: bool) -> Option<&Tactic> {
    let best = tactics.first()?;
    let tile = match is_first {
        true => FIRST_TILE,
        false if FEW_ROWS.contains(&rows) => FEW_ROWS_TILE,
        false => return Some(best),
    };
    let mut equal = tactics.iter().take_while(|tactic| tactic.cost <= best.cost * COST_TIE);
    equal.find(|tactic| tactic.tile == tile).or(Some(best))
}

/// Clocks to read the matrix once by all multiprocessors, more where a warp has to read too much alone.
fn streaming_cost(arch: &Arch, size: ProductSize, columns: usize) -> f64 {
    let [m, n, k] = size.mnk;
    let bytes = if size.is_mma { 2 } else { 4 };
    let blocks = n.div_ceil(columns * GEMV_WARPS) as f64 * size.count as f64;
    let waves = (blocks / (8.0 * f64::from(arch.multiprocessors))).ceil();
    let in_flight = (columns * k * bytes) as f64 / (32.0 * 16.0);
    // Rows of x come again for each group of columns.
    let reads = blocks * (GEMV_WARPS * k * bytes * (columns + m)) as f64 / (f64::from(arch.multiprocessors) * 28.0);
    4300.0 + waves * (in_flight * 4.0 + 500.0).max(reads / waves)
}

/// Whether four warps may multiply together, straight from shared memory: on sm_90a and on nothing else.
fn has_groups(arch: &Arch) -> bool {
    arch.vendor == Vendor::Cuda && arch.name == "sm_90a"
}

/// Whether blocks may read each other's shared memory: from sm_90 on.
pub(crate) fn has_clusters(arch: &Arch) -> bool {
    let digits: String = arch.name.strip_prefix("sm_").unwrap_or("").chars().take_while(char::is_ascii_digit).collect();
    arch.vendor == Vendor::Cuda && digits.parse::<u32>().is_ok_and(|number| number >= 90)
}

/// The numbers here were fitted to the times of 41 products of ResNet-50, BERT and ViT, at batches of 1, 8, 32 and 64, by up to 60
/// tactics each, on an H200, and then to 108 products of those and MobileNetV3 as `--tune` measures them, by their 12 likeliest
/// tactics each: what it chooses takes 5 % longer than the best of those.
fn cost(arch: &Arch, size: ProductSize, tile: Tile, splits: usize, split_by: SplitBy) -> f64 {
    let [m, n, k] = size.mnk;
    let [bm, bn, bk] = tile.sizes();
    let blocks = (m.div_ceil(bm) * n.div_ceil(bn) * size.count * splits) as f64;
    let steps = k.div_ceil(bk).div_ceil(splits) as f64;
    let [full, alone] = tile.step_clocks();
    let multiprocessors = f64::from(arch.multiprocessors);
    // Blocks that a multiprocessor has at once: by shared memory, and by registers at some 128 a thread.
    let by_memory = f64::from(arch.shared_bytes_max) / tile.shared_bytes(size.acc_bytes) as f64;
    let by_registers = 512.0 / f64::from(tile.threads(arch.warp));
    let resident = by_memory.min(by_registers).floor().clamp(1.0, 4.0);
    let waves = (blocks / (multiprocessors * resident)).ceil();
    let together = (blocks / multiprocessors).ceil().min(resident);
    // What a multiprocessor brings from the second-level cache a clock, less when all of them ask: that cache serves whoever has
    // a block, so those with one more than others are not alone in waiting for it.
    let bytes = ((bm + bn) * bk * if size.is_mma { 2 } else { size.acc_bytes }) as f64;
    let fetch = bytes / 44.0 * (blocks / multiprocessors).clamp(1.0, resident);
    let step = (full * together).max(alone).max(fetch);
    // The first copies and the stores; then sums that other blocks have.
    let results = (bm * bn) as f64;
    let start = 4800.0 + results * together / 9.0;
    let joining = match split_by {
        SplitBy::None => 0.0,
        SplitBy::Cluster => 1500.0 + results / 6.0,
        SplitBy::Memory => results / 6.0,
    };
    let second = match split_by {
        SplitBy::None | SplitBy::Cluster => 0.0,
        SplitBy::Memory => 4500.0 + (m * n * size.count * splits) as f64 * 4.0 / (multiprocessors * 24.0),
    };
    waves * (start + steps * step + joining * together) + second
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const BATCHES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

    fn h200() -> Arch {
        let name = "sm_90a".to_string();
        Arch { vendor: Vendor::Cuda, name, warp: 32, shared_bytes_max: 227 << 10, multiprocessors: 132 }
    }

    fn tactics(mnk: [usize; 3]) -> Vec<Tactic> {
        candidates(&h200(), ProductSize { mnk, count: 1, is_mma: true, acc_bytes: 4, is_streamable: false })
    }

    /// Places, channels out and inner axis of the convolutions of ResNet-50 but for the first.
    fn resnet_50() -> Vec<[usize; 3]> {
        let (mut products, mut channels, mut side) = (Vec::new(), 64, 56);
        for (blocks, inner, stride) in [(3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)] {
            for block in 0..blocks {
                let places = side * side;
                side /= if block == 0 { stride } else { 1 };
                products.extend([[places, inner, channels], [side * side, inner, 9 * inner]]);
                products.push([side * side, 4 * inner, inner]);
                if block == 0 {
                    products.push([side * side, 4 * inner, channels]);
                }
                channels = 4 * inner;
            }
        }
        products
    }

    #[test]
    fn few_tiles_do_for_the_convolutions_of_a_network_at_any_batch() {
        let mut kinds = BTreeSet::new();
        for batch in BATCHES {
            let (mut chosen_cost, mut best_cost) = (0.0, 0.0);
            for [places, n, k] in resnet_50() {
                let tactics = tactics([places * batch, n, k]);
                let chosen = preferred(&tactics).expect("there is a tactic");
                kinds.insert((format!("{:?}", chosen.tile), chosen.split_by != SplitBy::None));
                (chosen_cost, best_cost) = (chosen_cost + chosen.cost, best_cost + tactics[0].cost);
            }
            assert!(chosen_cost <= best_cost * 1.02, "batch {batch}: {chosen_cost} instead of {best_cost}");
        }
        assert_eq!(kinds.len(), 9, "six tiles, three of them also in clusters: {kinds:#?}");
    }

    #[test]
    fn the_first_convolution_and_few_rows_have_one_tile_each() {
        let first = BATCHES.map(|batch| {
            let tactics = tactics([112 * 112 * batch, 64, 168]);
            preferred_at_any_batch(&tactics, 112 * 112 * batch, true).map(Tactic::name)
        });
        assert!(first.iter().all(|name| name.as_deref() == Some("wgmma.128x64x64s4")), "{first:?}");
        let rows =
            [9, 16, 32].map(|rows| preferred_at_any_batch(&tactics([rows, 1000, 2048]), rows, false).map(Tactic::name));
        assert!(rows.iter().all(|name| name.as_deref() == Some("mma.32x64x64k2.cluster8")), "{rows:?}");
        let many = tactics([64, 1000, 2048]);
        assert_eq!(preferred_at_any_batch(&many, 64, false), many.first());
    }
}
