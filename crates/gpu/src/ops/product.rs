//! Products in general: what a matrix product and a convolution as a product have in common, printed for a tactic.

use std::fmt::Write as _;

use precast_tensor::{DType, Tensor};

use crate::element::memory_type;
use crate::kernel::{
    Arch, CLUSTERED, Launch, Lowered, MATRIX, Operand, PRODUCT_FINISH, PRODUCT_FMA, PRODUCT_GROUP, PRODUCT_MMA,
    PRODUCT_POINTS, PRODUCT_SOURCES, PRODUCT_WINDOWS, TILE_COPIES, TILE_PRODUCT,
};
use crate::ops::conv::Windows;
use crate::ops::epilogue::{Coordinates, Epilogue};
use crate::ops::gemv;
use crate::ops::offsets::common_width;
use crate::ops::run_time_sizes::{SizeText, is_at_run_time, is_of_points, window_text};
use crate::ops::tiles::{ProductSize, SplitBy, Tactic, Tile, candidates, preferred, preferred_at_any_batch};

/// The function of every text that says where a result lies.
pub(crate) const PLACE: &str = "DEVICE i64 place(const Sizes &sizes, i64 row, int column)";
/// Threads of a block that adds splits.
const ADDING_THREADS: u32 = 128;
/// Blocks along the second axis of a grid.
const GRID_MAX: usize = 65535;

/// The line that says how `Finish` is given the result, the kernel's argument of this position.
pub(crate) fn results_type(position: usize) -> String {
    format!("typedef Arg<Y, {position}>::Rows Results;\n")
}

/// One operand of a product: a matrix of rows (or columns of the result) times the inner axis.
#[derive(Clone, Debug)]
pub struct Side {
    /// Where it is.
    pub operand: Operand,
    /// Whether neighbours along the inner axis are neighbours in memory.
    pub is_by_rows: bool,
    /// Elements that may be copied at once.
    pub vec: usize,
    /// Elements from one row (or, across the inner axis, from one step of that) to the next; 0 for windows.
    pub pitch: usize,
    /// Where the matrix of block z starts: an expression of `z` and `rows`.
    pub start: String,
}

impl Side {
    /// A matrix with elements along the inner axis (or across it) next to each other.
    pub fn matrix(operand: Operand, is_by_rows: bool, vec: usize, pitch: usize, start: String) -> Side {
        Side { operand, is_by_rows, vec, pitch, start }
    }

    /// The template, of a number of rows, that gives addresses in a matrix.
    fn source(&self, is_at_run_time: bool) -> String {
        match self.is_by_rows {
            true => format!("MatrixRows<T, ROWS, {}>", if is_at_run_time { 0 } else { self.pitch }),
            false => "MatrixColumns<T, ROWS>".to_string(),
        }
    }
}

/// A product and what follows it.
pub struct Product {
    /// Word for its name.
    pub kind: &'static str,
    /// Element type of both operands.
    pub dtype: DType,
    /// Element type of the result.
    pub out_dtype: DType,
    /// Rows, columns, inner axis.
    pub mnk: [usize; 3],
    /// Products of this size: a batch, or groups.
    pub count: usize,
    /// Whether they are groups of channels, one beside the other in the columns of the result.
    pub is_grouped: bool,
    /// Rows.
    pub a: Side,
    /// Columns.
    pub b: Side,
    /// Whether `b` never changes.
    pub is_b_constant: bool,
    /// The value of `b` as the node has it, if it is one constant matrix.
    pub b_constant: Option<Tensor>,
    /// From one step of the inner axis to the next in a right operand by columns.
    pub b_pitch: usize,
    /// Whether elements of `a` that one after the other are read lie along the inner axis.
    pub is_a_along_k: bool,
    /// Where rows are the windows of a convolution, which.
    pub(crate) windows: Option<Windows>,
    /// Where results lie.
    pub coordinates: Coordinates,
    /// What happens to them.
    pub epilogue: Epilogue,
    /// Constants made while lowering.
    pub packed: Vec<Tensor>,
}

impl Product {
    /// Whether matrix instructions compute it.
    fn is_mma(&self) -> bool {
        matches!(self.dtype, DType::F16 | DType::BF16)
    }

    fn acc_name(&self) -> Option<&'static str> {
        match self.dtype {
            DType::F16 | DType::BF16 | DType::F32 => Some("f32"),
            DType::F64 => Some("f64"),
            // Sums of integers wrap, whatever their sign.
            DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32 | DType::U32 => Some("u32"),
            DType::I64 | DType::U64 => Some("u64"),
            _ => None,
        }
    }

    /// All tactics, the one that is expected to be fastest first.
    pub fn candidates(&self, arch: &Arch) -> Vec<Tactic> {
        let acc_bytes = if matches!(self.dtype, DType::F64 | DType::I64 | DType::U64) { 8 } else { 4 };
        let is_streamable = gemv::is_streamable(self);
        let size = ProductSize { mnk: self.mnk, count: self.count, is_mma: self.is_mma(), acc_bytes, is_streamable };
        candidates(arch, size)
    }

    /// The launches of the expected best tactic.
    pub fn lower(self, arch: &Arch) -> Option<Lowered> {
        let tactics = self.candidates(arch);
        let best = tactics.first()?;
        let tactic = match is_at_run_time(&self, best) {
            true => preferred(&tactics)?,
            false => {
                let is_first = self.windows.as_ref().is_some_and(|windows| windows.is_channels_first);
                preferred_at_any_batch(&tactics, self.mnk[0], is_first)?
            }
        };
        self.lower_with(arch, tactic)
    }

    /// The launches of a tactic.
    pub fn lower_with(mut self, arch: &Arch, tactic: &Tactic) -> Option<Lowered> {
        let acc = self.acc_name()?;
        let is_plain_float = acc == "f32";
        if !is_plain_float && (!self.epilogue.is_empty() || self.dtype != self.out_dtype) {
            return None;
        }
        if let Tile::Gemv { columns } = tactic.tile {
            return gemv::lower(arch, &self, columns);
        }
        let name = format!("{}.{}{}", self.kind, tactic.name(), self.epilogue.suffix);
        let [m, n, _] = self.mnk;
        let [bm, bn, _] = tactic.tile.sizes();
        let acc_bytes = if matches!(acc, "f32" | "u32") { 4 } else { 8 };
        let grid = [m.div_ceil(bm) * self.count, n.div_ceil(bn), tactic.splits];
        if grid[0] > i32::MAX as usize || grid[1] > GRID_MAX || m * n == 0 || self.count == 0 {
            return None;
        }
        let is_in_memory = tactic.split_by == SplitBy::Memory;
        let sizes = SizeText::of(&self, tactic);
        if sizes.is_at_run_time() && !is_in_memory {
            self.epilogue.switch();
        }
        let head = self.head(tactic, acc, &sizes)?;
        let last = if is_in_memory { Operand::Scratch(0) } else { Operand::Write(0) };
        let text = format!("{head}{}{}", self.entry(tactic, acc, &sizes)?, sizes.end);
        let parts = is_in_memory.then_some(self.count as i64);
        let switches = self.epilogue.switches.iter().map(|(_, is_on)| i64::from(*is_on));
        let main = Launch {
            entry: "product".to_string(),
            text,
            grid: grid.map(|extent| extent as u32),
            block: [tactic.tile.threads(arch.warp), 1, 1],
            shared_bytes: tactic.tile.shared_bytes(acc_bytes) as u32,
            operands: self.operands(&[self.a.operand, self.b.operand], last, !is_in_memory),
            scalars: [m as i64].into_iter().chain(parts).chain(sizes.scalars).chain(switches).collect(),
            row_bytes: self.row_bytes(self.a_row_bytes(), 2, !is_in_memory),
        };
        let mut launches = vec![main];
        let mut scratch_bytes = Vec::new();
        if is_in_memory {
            let items = (self.count * m * n).div_ceil(self.width(tactic));
            scratch_bytes.push((tactic.splits * self.count * m * n * acc_bytes) as u64);
            launches.push(Launch {
                entry: "add_up".to_string(),
                text: self.adding_text(tactic, acc)?,
                grid: [items.div_ceil(ADDING_THREADS as usize) as u32, 1, 1],
                block: [ADDING_THREADS, 1, 1],
                shared_bytes: 0,
                operands: self.operands(&[Operand::Scratch(0)], Operand::Write(0), true),
                scalars: vec![m as i64, self.count as i64],
                row_bytes: self.row_bytes(0, 1, true),
            });
        }
        Some(Lowered { name, launches, scratch_bytes, packed: self.packed })
    }

    pub(crate) fn operands(&self, first: &[Operand], last: Operand, has_epilogue: bool) -> Vec<Operand> {
        let mut operands = first.to_vec();
        if has_epilogue {
            operands.extend(self.epilogue.operands.iter().map(|(operand, _)| *operand));
        }
        operands.push(last);
        operands
    }

    /// Bytes that rows of the left operand must be multiples of for a caller's buffer with fewer of them: whole rows of the product, or
    /// whole images; 0 where the buffer must be whole.
    fn a_row_bytes(&self) -> u64 {
        let elements = match &self.windows {
            Some(windows) => windows.sizes.x_strides[0],
            None if self.a.is_by_rows => self.a.pitch,
            None => 0,
        };
        (elements * self.dtype.size_bytes()) as u64
    }

    /// What caller's buffers with fewer rows must be multiples of, by operand: of `first` operands and then the epilogue's the left
    /// one and, where the kernel has it, the result.
    pub(crate) fn row_bytes(&self, a_row_bytes: u64, first: usize, has_result: bool) -> Vec<u64> {
        let mut row_bytes = vec![a_row_bytes];
        if has_result {
            row_bytes.resize(first + self.epilogue.operands.len(), 0);
            row_bytes.push(self.out_dtype.size_bytes() as u64);
        }
        row_bytes
    }

    /// Elements that are stored at once.
    fn width(&self, tactic: &Tactic) -> usize {
        let most = match tactic.tile {
            Tile::Mma { .. } | Tile::Group { .. } => 8,
            Tile::Fma { tn, .. } => tn.min(4),
            Tile::Gemv { .. } | Tile::Attention { .. } => 1,
        };
        if self.coordinates.is_by_columns() { common_width(most, &[self.mnk[1]]) } else { 1 }
    }

    /// Constants and functions that the body reads.
    fn head(&self, tactic: &Tactic, acc: &str, sizes: &SizeText) -> Option<String> {
        let last = 2 + self.epilogue.operands.len();
        let mut text = String::new();
        if matches!(tactic.tile, Tile::Mma { .. } | Tile::Group { .. }) {
            text.push_str(MATRIX);
        }
        text.push_str(&self.result_text(tactic, acc, sizes, last)?);
        let ([_, _, k], [bm, bn, bk]) = (self.mnk, tactic.tile.sizes());
        let is_at_run_time = sizes.is_at_run_time();
        if !is_at_run_time {
            let _ = writeln!(text, "constexpr int K = {k};\nconstexpr i64 B_PITCH = {};", self.b_pitch);
        }
        // Of constant sizes the compiler finds out by itself.
        let is_whole = is_at_run_time && k.is_multiple_of(bk);
        let _ = writeln!(text, "constexpr int BM = {bm}, BN = {bn}, BK = {bk};");
        let _ = writeln!(text, "constexpr bool K_IS_WHOLE = {is_whole};");
        text.push_str(PRODUCT_SOURCES);
        let source_a = match &self.windows {
            _ if is_at_run_time && is_of_points(self) => {
                text.push_str(PRODUCT_POINTS);
                "PointRows<T, ROWS>".to_string()
            }
            Some(windows) => {
                text.push_str(&window_text(windows, is_at_run_time));
                text.push_str(PRODUCT_WINDOWS);
                "WindowRows<T, ROWS>".to_string()
            }
            None => self.a.source(is_at_run_time),
        };
        let source_b = self.b.source(is_at_run_time);
        let _ = writeln!(text, "template <int ROWS> using SourceA = {source_a};");
        let _ = writeln!(text, "template <int ROWS> using SourceB = {source_b};");
        // There is one product where its sizes are not in the text.
        let start = |side: &Side| if is_at_run_time { "0".to_string() } else { side.start.clone() };
        let _ = writeln!(text, "DEVICE i64 start_a(i64 z, i64 rows) {{ return {}; }}", start(&self.a));
        let _ = writeln!(text, "DEVICE i64 start_b(i64 z) {{ return {}; }}", start(&self.b));
        match tactic.tile {
            Tile::Mma { warps: [wm, wn, wk], stages, .. } => {
                let _ = writeln!(text, "constexpr int WARPS_M = {wm}, WARPS_N = {wn}, STAGES = {stages};");
                self.push_tiles(&mut text, wm * wn * wk, wk, PRODUCT_MMA);
            }
            Tile::Group { bn, groups: [gm, gn], stages, .. } => {
                let _ = writeln!(text, "constexpr int GROUPS_M = {gm}, GROUPS_N = {gn}, STAGES = {stages};");
                let instruction = self.group_instruction(bn / gn);
                self.push_tiles(&mut text, gm * gn * 4, 1, &format!("{instruction}{PRODUCT_GROUP}"));
            }
            Tile::Fma { tm, tn, .. } => {
                let (a, b) = (self.is_a_along_k, self.b.is_by_rows);
                let _ = writeln!(text, "constexpr int TM = {tm}, TN = {tn};");
                let _ = writeln!(text, "constexpr bool A_ALONG_K = {a}, B_ALONG_K = {b};");
                text.push_str(PRODUCT_FMA);
            }
            Tile::Gemv { .. } | Tile::Attention { .. } => return None,
        }
        Some(text)
    }

    /// The body of a product on matrix instructions, of blocks of so many warps, `warps_k` of which divide the inner axis.
    fn push_tiles(&self, text: &mut String, warps: usize, warps_k: usize, multiply: &str) {
        let by_groups = multiply.contains("multiply_group");
        let _ = writeln!(text, "constexpr int THREADS = {warps} * WARP, WARPS_K = {warps_k};");
        let _ = writeln!(text, "constexpr int A_VEC = {}, B_VEC = {};", self.a.vec, self.b.vec);
        let (a, b) = (self.a.is_by_rows, self.b.is_by_rows);
        let _ = writeln!(text, "constexpr bool A_BY_ROWS = {a}, B_BY_ROWS = {b}, BY_GROUPS = {by_groups};");
        text.push_str(TILE_COPIES);
        text.push_str(multiply);
        text.push_str(TILE_PRODUCT);
    }

    /// The instruction of four warps that multiplies 64 rows with so many columns: all its registers are named one by one.
    fn group_instruction(&self, columns: usize) -> String {
        let count = columns / 2;
        let registers: Vec<String> = (0..count).map(|at| format!("%{at}")).collect();
        let values: Vec<String> = (0..count).map(|at| format!("\"+f\"(c[{at}])")).collect();
        let (registers, values) = (registers.join(", "), values.join(", "));
        let element = if self.dtype == DType::BF16 { "bf16" } else { "f16" };
        let (a, b) = (u8::from(!self.a.is_by_rows), u8::from(!self.b.is_by_rows));
        format!(
            "DEVICE void multiply_group(f32 (&c)[{count}], GroupTile a, GroupTile b) {{\n\
             #if defined(PRECAST_CUDA)\n    \
             asm volatile(\"{{ .reg .pred adds; setp.ne.b32 adds, 1, 0;\\n\"\n        \
             \"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{element}.{element} {{{registers}}}, %{count}, %{}, adds, 1, 1, \
             {a}, {b}; }}\"\n        \
             : {values}\n        : \"l\"(a.bits), \"l\"(b.bits));\n\
             #else\n    multiply_group_of<T, {}, {}>(c, a, b);\n#endif\n}}\n",
            count + 1,
            self.a.is_by_rows,
            self.b.is_by_rows
        )
    }

    /// What both launches say of the result, which is the kernel's argument of this position.
    pub(crate) fn result_text(&self, tactic: &Tactic, acc: &str, sizes: &SizeText, position: usize) -> Option<String> {
        let mut text = String::new();
        let (input, output) = (memory_type(self.dtype)?, memory_type(self.out_dtype)?);
        let _ = writeln!(text, "typedef {input} T;\ntypedef {output} Y;\ntypedef {acc} Acc;");
        let split_by = match tactic.split_by {
            SplitBy::None => 0,
            SplitBy::Cluster => 1,
            SplitBy::Memory => 2,
        };
        let width = self.width(tactic);
        let is_by_launch = sizes.is_at_run_time() && tactic.split_by == SplitBy::Cluster;
        let splits = if is_by_launch { 0 } else { tactic.splits };
        let _ =
            writeln!(text, "{}constexpr int SPLITS = {splits}, SPLIT_BY = {split_by}, WIDTH = {width};", sizes.text);
        let _ = writeln!(text, "constexpr bool B_IS_CONSTANT = {};", self.is_b_constant);
        let along_rows = !self.coordinates.is_by_columns();
        let _ = writeln!(text, "constexpr bool Z_IS_GROUP = {}, ALONG_ROWS = {along_rows};", self.is_grouped);
        let place = if sizes.is_at_run_time() { "row * N + column".to_string() } else { self.coordinates.place() };
        let _ = writeln!(text, "{PLACE} {{ return {place}; }}");
        text.push_str(&self.epilogue.text);
        text.push_str(&results_type(position));
        text.push_str(PRODUCT_FINISH);
        Some(text)
    }

    fn entry(&self, tactic: &Tactic, acc: &str, sizes: &SizeText) -> Option<String> {
        let kernel = match tactic.split_by {
            SplitBy::Cluster if sizes.is_at_run_time() => format!("{CLUSTERED}product, THREADS, "),
            SplitBy::Cluster => format!("KERNEL_CLUSTER(product, THREADS, {}, ", tactic.splits),
            SplitBy::None | SplitBy::Memory => "KERNEL(product, THREADS, ".to_string(),
        };
        let body = match tactic.tile {
            Tile::Mma { .. } | Tile::Group { .. } => "product_of_tiles",
            Tile::Fma { .. } => "product_by_elements",
            Tile::Gemv { .. } | Tile::Attention { .. } => return None,
        };
        let SizeText { parameters: more, value, .. } = sizes;
        let a = if self.a_row_bytes() > 0 { "a.rows()" } else { "a.get()" };
        if tactic.split_by == SplitBy::Memory {
            return Some(format!(
                "{kernel}Arg<const T, 0> a, Arg<const T, 1> b, Arg<{acc}, 2> sums, i64 rows, i64 parts{more}) {{\n    \
                 {body}({a}, b.get(), KeepSums{{sums.get(), parts, {value}}}, rows);\n}}\n"
            ));
        }
        let [parameters, values] = self.epilogue.parameters(2);
        let last = 2 + self.epilogue.operands.len();
        let switches = self.epilogue.switches.iter().map(|(name, _)| format!(", i64 {name}")).collect::<String>();
        Some(format!(
            "{kernel}Arg<const T, 0> a, Arg<const T, 1> b, {parameters}Arg<Y, {last}> y, i64 rows{more}{switches}) {{\n    \
             {body}({a}, b.get(), Finish{{y.rows(), {{{values}}}, {value}}}, rows);\n}}\n"
        ))
    }

    fn adding_text(&self, tactic: &Tactic, acc: &str) -> Option<String> {
        let [parameters, values] = self.epilogue.parameters(1);
        let last = 1 + self.epilogue.operands.len();
        Some(format!(
            "{}KERNEL_FLAT(add_up, {ADDING_THREADS}, Arg<const {acc}, 0> sums, {parameters}Arg<Y, {last}> y, i64 rows, i64 \
             parts) {{\n    add_splits(sums.get(), Finish{{y.rows(), {{{values}}}}}, rows, parts);\n}}\n",
            self.result_text(tactic, acc, &SizeText::constant(self.mnk[1]), last)?
        ))
    }
}
