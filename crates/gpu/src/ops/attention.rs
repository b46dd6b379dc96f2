//! Fused attentions: the scores of some queries never leave a block. Operands are read, and the result is written, by the
//! strides of the views that the body has around them.

use std::fmt::Write as _;

use precast_ir::Graph;
use precast_passes::fuse_attention::{Attention, attention_of};
use precast_passes::strided_view::StridedView;
use precast_tensor::DType;

use crate::element::{float_literal, memory_type};
use crate::kernel::{ATTENTION_FMA, ATTENTION_MMA, Launch, Lowered, MATRIX, Operand, Vendor};
use crate::ops::offsets::{common_width, offset_text};
use crate::ops::tiles::{SplitBy, Tactic, Tile};
use crate::site::{Site, dense_strides};

/// The largest head on matrix instructions: beyond it a thread's sums leave its registers.
const HEAD_MAX: usize = 256;
/// Heads wider than this are wide.
const WIDE_HEAD: usize = 128;
/// Keys of a warp in one step for wide heads.
const WIDE_HEAD_KEYS_MAX: usize = 32;
/// Queries of a block by multiply-add.
const FMA_QUERIES: usize = 16;

const fn tile(warps_q: usize, warps_keys: usize, warp_keys: usize, stages: usize) -> Tile {
    Tile::Attention { warps_q, warps_keys, warp_keys, stages }
}

const TILES: &[Tile] = &[
    tile(8, 1, 64, 2),
    tile(4, 1, 64, 2),
    tile(4, 1, 32, 2),
    tile(2, 2, 32, 2),
    tile(1, 4, 32, 2),
    tile(1, 4, 16, 2),
    tile(1, 2, 16, 1),
];

fn shared_bytes([queries, keys, _]: [usize; 3], warps_keys: usize, stages: usize, found: &Attention) -> usize {
    let pad = |elements: usize| match elements.next_multiple_of(16) {
        16 => 16,
        32 => 32,
        more => more.next_multiple_of(64),
    };
    let (depth, width) = (pad(found.depth), pad(found.width));
    let tiles = 2 * (queries * depth + stages * keys * (depth + width));
    let sums = 4 * warps_keys * queries * (found.width.next_multiple_of(16) + 8 + 2);
    tiles.max(sums)
}

/// The tactics of an attention, the one that is expected to be fastest first; none where it has no choice.
pub fn candidates(site: &Site, body: &Graph) -> Vec<Tactic> {
    let Some(found) = attention(site, body).filter(|found| is_mma(site, found)) else { return Vec::new() };
    let mut tactics = Vec::new();
    for &tile in TILES {
        let Tile::Attention { warps_q, warps_keys, warp_keys, stages } = tile else { continue };
        // Sums of wide heads leave no registers for many scores.
        if warp_keys > WIDE_HEAD_KEYS_MAX && found.depth.max(found.width) > WIDE_HEAD {
            continue;
        }
        if shared_bytes(tile.sizes(), warps_keys, stages, &found) > site.arch.shared_bytes_max as usize {
            continue;
        }
        let items: usize = found.batch.iter().product();
        let blocks = (items * found.queries.div_ceil(16 * warps_q)) as f64;
        let steps = found.keys.div_ceil(warps_keys * warp_keys) as f64;
        // Four units of a multiprocessor; a warp waits for its own chain of instructions when it is alone on one.
        let work = (warp_keys * (found.depth + found.width)) as f64 / 8.0 + (warp_keys * 6) as f64;
        let together = (blocks / f64::from(site.arch.multiprocessors)).ceil();
        let step = (work * ((warps_q * warps_keys) as f64 * together / 4.0).ceil()).max(work * 2.0 + 300.0);
        let waits = (900.0 + 60.0 * warps_keys as f64) * (together / 4.0).ceil();
        tactics.push(Tactic { tile, splits: 1, split_by: SplitBy::None, cost: steps * step + waits });
    }
    tactics.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    tactics
}

/// The kernels of a body that is an attention.
pub fn lower(site: &Site, body: &Graph) -> Option<Lowered> {
    match candidates(site, body).first() {
        Some(tactic) => lower_with(site, body, tactic),
        None => lower_elements(site, &attention(site, body)?),
    }
}

/// The kernels of a body that is an attention by a tactic.
pub fn lower_with(site: &Site, body: &Graph, tactic: &Tactic) -> Option<Lowered> {
    lower_tile(site, &attention(site, body)?, tactic)
}

/// Whether matrix instructions compute it.
fn is_mma(site: &Site, found: &Attention) -> bool {
    let is_16_bit = site.dtype(found.q.input) != DType::F32;
    is_16_bit && site.arch.vendor == Vendor::Cuda && found.depth.max(found.width) <= HEAD_MAX
}

/// The attention that a body is, if all its operands have one of the types that kernels read.
fn attention(site: &Site, body: &Graph) -> Option<Attention> {
    let found = attention_of(body, &|input| site.constant(input).cloned())?;
    let operands = [Some(&found.q), Some(&found.k), Some(&found.v), found.mask.as_ref()];
    let is_dense = |input: usize| site.strides(input) == dense_strides(&site.shape(input), false);
    let is_float = |dtype: DType| matches!(dtype, DType::F16 | DType::BF16 | DType::F32);
    let dtype = site.dtype(found.q.input);
    let is_same = [found.k.input, found.v.input].iter().all(|&input| site.dtype(input) == dtype);
    let fits =
        operands.into_iter().flatten().all(|operand| is_dense(operand.input) && is_float(site.dtype(operand.input)));
    let is_result = site.out_dtype(0) == dtype && site.out_strides(0) == dense_strides(&site.out_shape(0), false);
    (fits && is_same && is_result).then_some(found)
}

/// The kernel on matrix instructions.
fn lower_tile(site: &Site, found: &Attention, tactic: &Tactic) -> Option<Lowered> {
    let Tile::Attention { warps_q, warps_keys, warp_keys, stages } = tactic.tile else { return None };
    let sizes @ [queries, keys, _] = tactic.tile.sizes();
    let stages = if found.keys > keys { stages } else { 1 };
    let mut text = MATRIX.to_string();
    text.push_str(&constants(site, found)?);
    let _ = writeln!(
        text,
        "constexpr int WARPS_Q = {warps_q}, WARPS_KEYS = {warps_keys}, WARP_KEYS = {warp_keys}, STAGES = {stages};"
    );
    text.push_str(ATTENTION_MMA);
    let shared = shared_bytes(sizes, warps_keys, stages, found);
    let name = format!("attention.{}", tactic.name());
    launch(site, found, text, name, queries, tactic.tile.threads(site.arch.warp), shared)
}

/// The kernel by multiply-add.
fn lower_elements(site: &Site, found: &Attention) -> Option<Lowered> {
    let bytes =
        |keys: usize| 4 * ((FMA_QUERIES + keys) * (found.depth + 1) + keys * found.width + FMA_QUERIES * (keys + 1));
    let keys = [32, 16, 8].into_iter().find(|&keys| bytes(keys) <= site.arch.shared_bytes_max as usize)?;
    let mut text = constants(site, found)?;
    let _ = writeln!(text, "constexpr int BQ = {FMA_QUERIES}, BKEYS = {keys};");
    text.push_str(ATTENTION_FMA);
    launch(site, found, text, "attention.fma".to_string(), FMA_QUERIES, 8 * FMA_QUERIES as u32, bytes(keys))
}

fn launch(
    site: &Site,
    found: &Attention,
    mut text: String,
    name: String,
    block_queries: usize,
    threads: u32,
    shared: usize,
) -> Option<Lowered> {
    let has_mask = found.mask.is_some();
    let mut operands: Vec<Operand> =
        [found.q.input, found.k.input, found.v.input].map(|input| Operand::Read(input as u32)).to_vec();
    operands.extend(found.mask.as_ref().map(|mask| Operand::Read(mask.input as u32)));
    operands.push(Operand::Write(0));
    let (mask, value) = if has_mask { ("Arg<const M, 3> mask, ", "mask.get()") } else { ("", "(const M *)0") };
    let last = operands.len() - 1;
    let _ = write!(
        text,
        "KERNEL(attention, {threads}, Arg<const T, 0> q, Arg<const T, 1> k, Arg<const T, 2> v, {mask}Arg<T, {last}> y) {{\n    \
         attend(q.get(), k.get(), v.get(), {value}, y.get());\n}}\n"
    );
    let items: usize = found.batch.iter().product();
    let blocks = u32::try_from(items * found.queries.div_ceil(block_queries)).ok()?;
    let launch = Launch {
        entry: "attention".to_string(),
        text,
        grid: [blocks, 1, 1],
        block: [threads, 1, 1],
        shared_bytes: shared as u32,
        operands,
        scalars: Vec::new(),
        row_bytes: Vec::new(),
    };
    let is_legal = shared <= site.arch.shared_bytes_max as usize && blocks > 0;
    is_legal.then(|| Lowered::one(format!("{name}{}", if has_mask { "+mask" } else { "" }), launch))
}

/// Sizes, strides and places of the operands.
fn constants(site: &Site, found: &Attention) -> Option<String> {
    let mut text = String::new();
    let mask_dtype = found.mask.as_ref().map_or(DType::F32, |mask| site.dtype(mask.input));
    let _ = writeln!(
        text,
        "typedef {} T;\ntypedef {} M;",
        memory_type(site.dtype(found.q.input))?,
        memory_type(mask_dtype)?
    );
    let Attention { queries, keys, depth, width, .. } = found;
    let _ = writeln!(
        text,
        "constexpr int QUERIES = {queries}, KEYS = {keys}, DEPTH = {depth}, WIDTH_V = {width};\nconstexpr bool HAS_MASK = \
         {}, CLEARS_NAN = {};",
        found.mask.is_some(),
        found.clears_nan
    );
    let factor = f64::from(found.scale) / f64::from(found.divisor);
    let _ = writeln!(text, "#define FACTOR {}", float_literal(DType::F32, factor));
    let matrix = |text: &mut String, name: &str, view: &StridedView, is_turned: bool| {
        let rank = view.shape.len();
        let (mut row, mut column) = (rank - 2, rank - 1);
        if is_turned {
            std::mem::swap(&mut row, &mut column);
        }
        let axes: Vec<(usize, usize)> =
            view.shape[..rank - 2].iter().copied().zip(view.strides.iter().copied()).collect();
        let start = format!("{} + {}", view.offset, offset_text("z", &axes));
        let upper = name.to_uppercase();
        // An axis of one element has whatever stride is best.
        let stride = |axis: usize| if view.shape[axis] == 1 { 1 } else { view.strides[axis] };
        let row_stride = if view.shape[row] == 1 { 0 } else { view.strides[row] };
        let (column_stride, columns) = (stride(column), view.shape[column]);
        let mut numbers = vec![view.offset, row_stride, columns];
        numbers.extend(axes.iter().filter(|(size, _)| *size > 1).map(|(_, stride)| *stride));
        let vec = if column_stride == 1 { common_width(8, &numbers) } else { 1 };
        let _ = writeln!(text, "DEVICE i64 start_{name}(i64 z) {{ return {start}; }}");
        let _ = writeln!(text, "constexpr i64 {upper}_ROW = {row_stride}, {upper}_COLUMN = {column_stride};");
        let _ = writeln!(text, "constexpr int {upper}_VEC = {vec};");
    };
    matrix(&mut text, "q", &found.q.view, false);
    // Keys are the rows of its tile.
    matrix(&mut text, "k", &found.k.view, true);
    matrix(&mut text, "v", &found.v.view, false);
    matrix(&mut text, "y", &found.output, false);
    match &found.mask {
        Some(mask) => {
            let view = &mask.view;
            let rank = view.shape.len();
            let axes: Vec<(usize, usize)> =
                view.shape[..rank - 2].iter().copied().zip(view.strides.iter().copied()).collect();
            let (row, column) = (view.strides[rank - 2], view.strides[rank - 1]);
            let _ = writeln!(
                text,
                "DEVICE i64 start_mask(i64 z) {{ return {} + {}; }}",
                view.offset,
                offset_text("z", &axes)
            );
            let _ = writeln!(text, "constexpr i64 MASK_ROW = {row}, MASK_COLUMN = {column};");
        }
        None => {
            text.push_str("DEVICE i64 start_mask(i64) { return 0; }\nconstexpr i64 MASK_ROW = 0, MASK_COLUMN = 0;\n");
        }
    }
    Some(text)
}
