//! Attention behind a cache. Of one new token a row, queries and the key are turned on the way and one launch does it all, or
//! two where blocks divide the keys; of several, a first launch turns their keys.

use std::fmt::Write as _;

use precast_ir::op::{CachedAttention, RotaryFn};
use precast_tensor::DType;

use crate::element::{float_literal, memory_type};
use crate::kernel::{CACHED_ATTENTION, Launch, Lowered, MATRIX, Operand};
use crate::ops::offsets::common_width;
use crate::ops::tiles::has_clusters;
use crate::site::{Site, dense_strides};

/// Most query heads of a block: their queries and sums lie in registers.
const HEADS_MAX: usize = 8;
/// Threads of a block that has a row's only new token, and where there are many tokens.
const THREADS_ALONE: usize = 256;
const THREADS_TOGETHER: usize = 128;
/// Keys that a group of lanes reads before it uses the first.
const KEYS_AHEAD: usize = 4;
/// Shared memory that a block takes at most.
const SHARED_BYTES_MAX: usize = 40 << 10;
/// Slots of a cache that a block is worth.
const SLOTS_OF_A_PART: usize = 64;
/// Blocks of a cluster, and slots of a cache up to which they are enough.
const CLUSTER_MAX: usize = 8;
const CLUSTER_SLOTS_MAX: usize = 8192;
/// Blocks for each multiprocessor beyond which the keys of a query are not divided further: joining what blocks have takes
/// about as long as sixteen keys for each of their warps.
const WAVES_MAX: usize = 4;
/// Threads of the other launches.
const THREADS: usize = 128;

/// What a launch that turns keys reads.
const TURNED: [&str; 5] = ["joint", "lengths", "cosines", "sines", "positions"];
/// What a launch that attends reads.
const ATTENDED: [&str; 9] = ["joint", "keys", "values", "lengths", "cosines", "sines", "positions", "sinks", "pages"];

/// How an attention is cut.
struct Cut {
    rows: usize,
    length: usize,
    /// Cached tokens that a row may have.
    slots: usize,
    /// Tokens of a page, and pages that there are; all slots of a row and none where tokens do not lie in pages.
    page_tokens: usize,
    page_count: usize,
    size: usize,
    /// Query heads of a block.
    heads: usize,
    /// Elements that are read at once, and threads that have a key.
    vec: usize,
    lanes: usize,
    threads: usize,
    /// Blocks that divide the keys of a query, and whether they join what they have themselves.
    parts: usize,
    is_cluster: bool,
}

/// The kernels of a node; `None` for types and layouts that they do not read.
pub fn lower(site: &Site, op: &CachedAttention) -> Option<Lowered> {
    let is_dense = |input: usize| site.strides(input) == dense_strides(&site.shape(input), false);
    let is_float = matches!(site.dtype(0), DType::F16 | DType::BF16 | DType::F32);
    let is_written = |output: usize| site.out_strides(output) == dense_strides(&site.out_shape(output), false);
    if !is_float || !(0..site.node.inputs.len()).all(is_dense) || !(0..3).all(is_written) {
        return None;
    }
    let cut = Cut::new(site, op)?;
    let operands = Operands::new(op);
    let text = cut.text(site, op)?;
    let mut launches = Vec::new();
    if cut.length > 1 {
        launches.push(cut.turn(op, &operands, &text)?);
    }
    launches.push(cut.attend(site, op, &operands, &text)?);
    let mut scratch_bytes = Vec::new();
    if cut.parts > 1 && !cut.is_cluster {
        let queries = cut.rows * cut.length * op.heads;
        scratch_bytes.push((queries * cut.parts * (cut.size + 2) * size_of::<f32>()) as u64);
        launches.push(join(queries, &operands, &text)?);
    }
    let name = format!("cached_attention.{}x{}", cut.heads, cut.parts);
    Some(Lowered { name, launches, scratch_bytes, packed: Vec::new() })
}

impl Cut {
    fn new(site: &Site, op: &CachedAttention) -> Option<Cut> {
        let (joint, cache) = (site.shape(0), site.shape(1));
        let (rows, length, page_tokens, size) = (joint[0], joint[1], cache[2], cache[3]);
        let width = if op.paged { site.shape(site.node.inputs.len() - 1)[1] } else { 1 };
        let (slots, page_count) = (width * page_tokens, if op.paged { cache[0] } else { 0 });
        let multiprocessors = site.arch.multiprocessors as usize;
        let is_cluster = length == 1 && has_clusters(site.arch) && slots <= CLUSTER_SLOTS_MAX;
        let parts_max = slots.div_ceil(SLOTS_OF_A_PART).max(1);
        let sharing = op.heads / op.kv_heads;
        let blocks = |heads: usize| rows * op.heads / heads;
        let divisors = || (1..=sharing.min(HEADS_MAX)).rev().filter(|&heads| sharing.is_multiple_of(heads));
        let (parts, heads) = match (length, is_cluster) {
            // Fewer heads of a block where that gives every multiprocessor one.
            (1, true) => {
                let fewest = blocks(divisors().next()?);
                let mut parts = CLUSTER_MAX.min(parts_max.next_power_of_two());
                while parts > 1 && fewest * parts > WAVES_MAX * multiprocessors {
                    parts /= 2;
                }
                let is_full = |&heads: &usize| blocks(heads) * parts * 10 >= multiprocessors * 9;
                (parts, divisors().find(is_full).unwrap_or(1))
            }
            (1, false) => {
                let heads = divisors().next()?;
                (parts_max.clamp(1, (multiprocessors / blocks(heads).max(1)).max(1)), heads)
            }
            _ => (1, divisors().next()?),
        };
        let warp = site.arch.warp as usize;
        let vec = common_width(16 / site.dtype(0).size_bytes(), &[size]);
        let lanes = size.div_ceil(vec).next_power_of_two().min(warp);
        let mut cut = Cut {
            rows,
            length,
            slots,
            page_tokens,
            page_count,
            size,
            heads,
            vec,
            lanes,
            threads: 0,
            parts,
            is_cluster: is_cluster && parts > 1,
        };
        cut.threads = if length == 1 { THREADS_ALONE } else { THREADS_TOGETHER };
        while cut.threads > warp && cut.shared_bytes(site) > SHARED_BYTES_MAX {
            cut.threads /= 2;
        }
        let is_legal = cut.shared_bytes(site) <= SHARED_BYTES_MAX && rows * parts <= 65535 && blocks(heads) <= 65535;
        // Places in a row and numbers of pages are 32-bit integers of the kernel.
        let is_counted = [slots + length, page_count].into_iter().all(|count| i32::try_from(count).is_ok());
        (is_legal && is_counted && size > 0 && slots > 0).then_some(cut)
    }

    /// Dynamic shared memory: the new key, queries, what warps have, and what the block has.
    fn shared_bytes(&self, site: &Site) -> usize {
        let Cut { size, heads, threads, .. } = *self;
        let key = (size * site.dtype(0).size_bytes()).next_multiple_of(16);
        let parts = (threads / site.arch.warp as usize + 1) * heads * (size + 2);
        key + (heads * size + parts) * size_of::<f32>()
    }

    /// Constants and functions that all launches share.
    fn text(&self, site: &Site, op: &CachedAttention) -> Option<String> {
        let Cut { length, slots, page_tokens, size, heads, vec, lanes, threads, parts, .. } = *self;
        let table = if op.rotary == RotaryFn::None { vec![1, 0] } else { site.shape(4) };
        let rotary = match op.rotary {
            RotaryFn::None => 0,
            RotaryFn::Half => 1,
            RotaryFn::Interleaved => 2,
        };
        let mut text = if self.is_cluster { MATRIX.to_string() } else { String::new() };
        let _ = writeln!(
            text,
            "#define HAS_CLUSTERS {}\ntypedef {} T;",
            u8::from(self.is_cluster),
            memory_type(site.dtype(0))?
        );
        let _ = writeln!(text, "constexpr int HEADS = {}, KV_HEADS = {}, G = {heads};", op.heads, op.kv_heads);
        let _ = writeln!(text, "constexpr int D = {size}, SLOTS = {slots}, LENGTH = {length}, WINDOW = {};", op.window);
        let _ = writeln!(text, "constexpr bool IS_PAGED = {};\nconstexpr int PAGE_TOKENS = {page_tokens};", op.paged);
        let chunks = size.div_ceil(vec * lanes);
        let _ = writeln!(text, "constexpr int VEC = {vec}, LANES = {lanes}, CHUNKS = {chunks};");
        let _ = writeln!(
            text,
            "constexpr int THREADS = {threads}, PARTS = {parts}, AHEAD = {KEYS_AHEAD};\nconstexpr bool BY_CLUSTER = {};",
            self.is_cluster
        );
        let _ =
            writeln!(text, "constexpr int ROTARY = {rotary}, HALF = {}, TABLE_ROWS = {};", table[1].max(1), table[0]);
        let _ = writeln!(text, "constexpr bool HAS_POSITIONS = {}, HAS_SINKS = {};", op.positions, op.sinks);
        let (scale, softcap) = (float_literal(DType::F32, op.scale), float_literal(DType::F32, op.softcap));
        let _ = writeln!(text, "constexpr f32 SCALE = {scale}, SOFTCAP = {softcap};");
        text.push_str(CACHED_ATTENTION);
        text.push_str("#undef HAS_CLUSTERS\n");
        Some(text)
    }

    /// The launch that turns keys.
    fn turn(&self, op: &CachedAttention, operands: &Operands, text: &str) -> Option<Launch> {
        let (elements, first) = (self.rows * op.kv_heads * self.length * self.size, operands.count(&TURNED));
        let text = format!(
            "{text}KERNEL_FLAT(turn, {THREADS}, {}Arg<T, {first}> new_keys, Arg<T, {}> new_values, i64 rows) {{\n    \
             turn_keys({}, new_keys.get(), new_values.get(), rows);\n}}\n",
            operands.parameters(0, &TURNED),
            first + 1,
            operands.values(&TURNED),
        );
        Some(Launch {
            entry: "turn".to_string(),
            text,
            grid: [u32::try_from(elements.div_ceil(THREADS)).ok()?, 1, 1],
            block: [THREADS as u32, 1, 1],
            shared_bytes: 0,
            operands: operands.reads(&TURNED).chain([Operand::Write(1), Operand::Write(2)]).collect(),
            scalars: vec![self.rows as i64],
            row_bytes: Vec::new(),
        })
    }

    /// The launch that attends.
    fn attend(&self, site: &Site, op: &CachedAttention, operands: &Operands, text: &str) -> Option<Launch> {
        let first = operands.count(&ATTENDED);
        let is_whole = self.parts == 1 || self.is_cluster;
        let kernel = match self.is_cluster {
            true => format!("KERNEL_CLUSTER(attend_block, {}, {}, ", self.threads, self.parts),
            false => format!("KERNEL(attend_block, {}, ", self.threads),
        };
        let (last, y, parts) = match is_whole {
            true => (format!("Arg<T, {first}> y, "), "y.get()", "0"),
            false => (format!("Arg<f32, {first}> parts, "), "0", "parts.get()"),
        };
        let text = format!(
            "{text}{kernel}{}{last}Arg<T, {}> new_keys, Arg<T, {}> new_values, i64 page_count) {{\n    \
             attend({}, {y}, new_keys.get(), new_values.get(), {parts}, page_count);\n}}\n",
            operands.parameters(0, &ATTENDED),
            first + 1,
            first + 2,
            operands.values(&ATTENDED),
        );
        let result = if is_whole { Operand::Write(0) } else { Operand::Scratch(0) };
        let blocks = op.heads / self.heads;
        Some(Launch {
            entry: "attend_block".to_string(),
            text,
            grid: [u32::try_from(self.length).ok()?, blocks as u32, (self.rows * self.parts) as u32],
            block: [self.threads as u32, 1, 1],
            shared_bytes: self.shared_bytes(site) as u32,
            operands: operands.reads(&ATTENDED).chain([result, Operand::Write(1), Operand::Write(2)]).collect(),
            scalars: vec![self.page_count as i64],
            row_bytes: Vec::new(),
        })
    }
}

/// The launch that joins the parts of queries.
fn join(queries: usize, operands: &Operands, text: &str) -> Option<Launch> {
    let text = format!(
        "{text}KERNEL(join, {THREADS}, Arg<const f32, 0> parts, {}Arg<T, {}> y) {{\n    \
         join_query(parts.get(), {}, y.get());\n}}\n",
        operands.parameters(1, &["sinks"]),
        1 + operands.count(&["sinks"]),
        operands.values(&["sinks"]),
    );
    let reads = [Operand::Scratch(0)].into_iter().chain(operands.reads(&["sinks"]));
    Some(Launch {
        entry: "join".to_string(),
        text,
        grid: [u32::try_from(queries).ok()?, 1, 1],
        block: [THREADS as u32, 1, 1],
        shared_bytes: 0,
        operands: reads.chain([Operand::Write(0)]).collect(),
        scalars: Vec::new(),
        row_bytes: Vec::new(),
    })
}

/// The operands of a node by their names in the text.
struct Operands(Vec<(&'static str, &'static str)>);

impl Operands {
    fn new(op: &CachedAttention) -> Operands {
        let mut names = vec![("joint", "T"), ("keys", "T"), ("values", "T"), ("lengths", "i32")];
        if op.rotary != RotaryFn::None {
            names.extend([("cosines", "T"), ("sines", "T")]);
        }
        names.extend(op.positions.then_some(("positions", "i64")));
        names.extend(op.sinks.then_some(("sinks", "T")));
        names.extend(op.paged.then_some(("pages", "i32")));
        Operands(names)
    }

    /// Those of these names that there are.
    fn present<'a>(&'a self, names: &'a [&str]) -> impl Iterator<Item = (usize, &'static str, &'static str)> + 'a {
        let find = |name: &&str| self.0.iter().position(|(own, _)| own == name);
        names.iter().filter_map(find).map(|at| (at, self.0[at].0, self.0[at].1))
    }

    fn count(&self, names: &[&str]) -> usize {
        self.present(names).count()
    }

    fn reads<'a>(&'a self, names: &'a [&str]) -> impl Iterator<Item = Operand> + 'a {
        self.present(names).map(|(at, ..)| Operand::Read(at as u32))
    }

    /// Parameters of a kernel, from this position on.
    fn parameters(&self, first: usize, names: &[&str]) -> String {
        let parameter =
            |(at, (_, name, ty)): (usize, (usize, &str, &str))| format!("Arg<const {ty}, {}> {name}, ", first + at);
        self.present(names).enumerate().map(parameter).collect()
    }

    /// Arguments of a function that takes all of these, 0 for those that there are not.
    fn values(&self, names: &[&str]) -> String {
        let value = |name: &&str| if self.count(&[name]) > 0 { format!("{name}.get()") } else { "0".to_string() };
        names.iter().map(value).collect::<Vec<String>>().join(", ")
    }
}
