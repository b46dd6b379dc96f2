//! Fused bodies of a decoder's step: products of few rows with constant matrices, the norm before them and what follows. What
//! counts is how fast the matrices are read: for one row lanes multiply element by element (`text/stream.h`), for more of them
//! matrix instructions do where there are such (`stream_mma.rs`).

use std::fmt::Write as _;

use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::DType;

use crate::element::{float_literal, memory_type};
use crate::kernel::{Arch, Launch, Lowered, Operand, STREAM, STREAM_ROWS};
use crate::ops::epilogue::{Coordinates, Epilogue};
use crate::ops::stream_mma;
use crate::ops::stream_weights::{Form, Weights};
use crate::ops::tiles::GEMV_ROWS_MAX;
use crate::site::{Site, dense_strides};

/// Warps of a block.
const WARPS: usize = 8;
/// Lines of a matrix that a lane reads before it uses the first.
const LINES_AHEAD: usize = 8;
/// Warps of a multiprocessor that keep memory busy.
const BUSY_WARPS: usize = 16;
/// The most columns of a warp.
const COLUMNS_MAX: usize = 8;
/// Rows that a column may read without another.
const FEW_ROWS: usize = 2;
/// Shared memory for rows.
const SHARED_BYTES_MAX: usize = 40 << 10;
/// Bytes between what two lanes read of a row in shared memory, so that those of one line are in different banks.
const PAD_BYTES: usize = 16;

/// A body that one kernel computes.
struct Stream<'a> {
    body: &'a Graph,
    /// Positions of the rows and, where they are normed, of the scale, among the body's inputs.
    x: usize,
    norm: Option<(usize, f64)>,
    products: Vec<&'a Node>,
    weights: Vec<Weights>,
    size: StreamSize,
    cut: Cut,
}

/// What decides how a body is cut.
pub struct StreamSize {
    /// Rows, columns and inner axis of each product.
    pub mnk: [usize; 3],
    /// Elements of rows.
    pub dtype: DType,
    /// How matrices lie.
    pub form: Form,
    /// How many there are.
    pub matrices: usize,
    /// Whether rows are normed.
    pub is_normed: bool,
}

/// How a body is cut into blocks.
pub struct Cut {
    /// Lines of text that say so.
    pub constants: String,
    /// The texts that read matrices and multiply.
    pub texts: String,
    /// Warps and columns of a block.
    pub warps: usize,
    /// Columns of a block.
    pub columns: usize,
    /// Dynamic shared memory.
    pub shared_bytes: usize,
    /// The macro that declares the kernel.
    pub kernel: &'static str,
    /// What a step's name says of it.
    pub name: String,
}

/// The kernel of a body; `None` where it is something else.
pub fn lower(site: &Site, body: &Graph) -> Option<Lowered> {
    let stream = Stream::of(site, body)?;
    stream.lower(site)
}

impl<'a> Stream<'a> {
    fn of(site: &Site, body: &'a Graph) -> Option<Stream<'a>> {
        let input = |value: ValueId| body.inputs().iter().position(|&input| input == value);
        let products: Vec<&Node> = body.nodes().iter().filter(|node| matches!(node.op, Op::Matmul(_))).collect();
        let rows = products.first()?.inputs[0];
        let norm = body.nodes().iter().find(|node| node.outputs[0] == rows);
        let (x, norm) = match norm.map(|node| (node, &node.op)) {
            None => (input(rows)?, None),
            Some((node, Op::RmsNorm(op))) if op.axis + 1 == body.ty(node.inputs[0]).rank() => {
                (input(node.inputs[0])?, Some((input(node.inputs[1])?, op.epsilon)))
            }
            Some(_) => return None,
        };
        let last = body.ty(products.first()?.outputs[0]).shape()?;
        let (shape, dtype) = (site.shape(x), site.dtype(x));
        let (n, k) = (*last.last()?, *shape.last()?);
        let m = shape.iter().product::<usize>() / k.max(1);
        let weights: Vec<Weights> =
            products.iter().map(|product| Weights::of(site, body, product)).collect::<Option<_>>()?;
        let form = weights.first()?.form;
        let is_product =
            |node: &&Node| node.inputs[0] == rows && body.ty(node.outputs[0]).shape().as_ref() == Some(&last);
        let is_dense = site.strides(x) == dense_strides(&shape, false)
            && weights.iter().all(|weights| weights.form == form && weights.is_dense(site))
            && site.out_strides(0) == dense_strides(&site.out_shape(0), false);
        let is_scaled = norm.is_none_or(|(scale, _)| site.shape(scale) == [k] && site.dtype(scale) == dtype);
        let is_float = matches!(dtype, DType::F16 | DType::BF16 | DType::F32);
        let is_sized = m > 0 && n > 0 && k > 0 && products.len() <= 2;
        let is_legal = is_dense && is_scaled && is_float && is_sized && products.iter().all(is_product);
        // One product alone with elements has other tactics too.
        let is_worth = norm.is_some() || products.len() > 1 || dtype != DType::F32 || form != Form::Floats;
        if !is_legal || !is_worth {
            return None;
        }
        let size = StreamSize { mnk: [m, n, k], dtype, form, matrices: products.len(), is_normed: norm.is_some() };
        let cut = stream_mma::cut(site.arch, &size).or_else(|| size.cut_by_lanes(site.arch))?;
        Some(Stream { body, x, norm, products, weights, size, cut })
    }

    fn lower(&self, site: &Site) -> Option<Lowered> {
        let StreamSize { mnk: [m, n, k], dtype, form, .. } = self.size;
        let Cut { constants, texts, warps, columns, shared_bytes, kernel, name } = &self.cut;
        let (shape, strides) = (site.out_shape(0), site.out_strides(0));
        let coordinates = Coordinates { column_axis: shape.len() - 1, shape, strides };
        let sums: Vec<ValueId> = self.products.iter().map(|product| product.outputs[0]).collect();
        let rest: Vec<&Node> = self.body.nodes().iter().filter(|node| !is_before_sums(&node.op)).collect();
        let epilogue = Epilogue::of_sums(site, self.body, &coordinates, &sums, &rest)?;
        let mut packed = Vec::new();
        let matrices = self.weights.iter().map(|weights| weights.operands(site, [n, k], &mut packed));
        let matrices: Vec<Vec<Operand>> = matrices.collect::<Option<_>>()?;
        let (input, output) = (memory_type(dtype)?, memory_type(site.out_dtype(0))?);
        let mut text = format!("typedef {input} T;\ntypedef {output} Y;\ntypedef f32 Acc;\n");
        let _ = writeln!(text, "constexpr int N = {n}, K = {k}, MATRICES = {};\n{constants}", matrices.len());
        let epsilon = float_literal(DType::F32, self.norm.map_or(0.0, |(_, epsilon)| epsilon));
        let _ =
            writeln!(text, "constexpr bool HAS_NORM = {};\nconstexpr f32 EPSILON = {epsilon};", self.norm.is_some());
        let _ = writeln!(text, "DEVICE i64 place(i64 row, int column) {{ return {}; }}", coordinates.place());
        text.push_str(&epilogue.text);
        text.push_str(texts);
        let mut operands = vec![Operand::Read(self.x as u32)];
        let mut parameters = "Arg<const T, 0> x, ".to_string();
        if let Some((scale, _)) = self.norm {
            operands.push(Operand::Read(scale as u32));
            parameters.push_str("Arg<const T, 1> scale, ");
        }
        let mut values = Vec::new();
        for (at, matrix) in matrices.into_iter().enumerate() {
            let mut parts = Vec::new();
            for (operand, (part, ty)) in matrix.into_iter().zip(form.parts().iter().enumerate()) {
                let _ = write!(parameters, "Arg<const {ty}, {}> b{at}_{part}, ", operands.len());
                operands.push(operand);
                parts.push(format!("b{at}_{part}.get()"));
            }
            values.push(format!("{{{}}}", parts.join(", ")));
        }
        let [more, members] = epilogue.parameters(operands.len());
        operands.extend(epilogue.operands.iter().map(|(operand, _)| *operand));
        let threads = *warps as u32 * site.arch.warp;
        let scale = if self.norm.is_some() { "scale.get()" } else { "0" };
        let _ = write!(
            text,
            "{kernel}(stream_columns, {threads}, {parameters}{more}Arg<Y, {}> y, i64 rows) {{\n    \
             const Matrix matrices[MATRICES] = {{{}}};\n    \
             stream(x.get(), {scale}, matrices, Epilogue{{{members}}}, y.rows(), (int)rows);\n}}\n",
            operands.len(),
            values.join(", ")
        );
        // The result, and no operand, may have fewer rows.
        let mut row_bytes = vec![0; operands.len()];
        row_bytes.push(site.out_dtype(0).size_bytes() as u64);
        operands.push(Operand::Write(0));
        let launch = Launch {
            entry: "stream_columns".to_string(),
            text,
            grid: [u32::try_from(n.div_ceil(*columns)).ok()?, 1, 1],
            block: [threads, 1, 1],
            shared_bytes: *shared_bytes as u32,
            operands,
            scalars: vec![m as i64],
            row_bytes,
        };
        let norm = if self.norm.is_some() { "norm+" } else { "" };
        let name = format!("stream.{norm}{name}{}{}", form.suffix(), epilogue.suffix);
        Some(Lowered { name, launches: vec![launch], scratch_bytes: Vec::new(), packed })
    }
}

impl StreamSize {
    /// The cut where a lane multiplies element by element.
    fn cut_by_lanes(&self, arch: &Arch) -> Option<Cut> {
        let StreamSize { mnk: [m, n, k], dtype, form, matrices, is_normed } = *self;
        if m > GEMV_ROWS_MAX {
            return None;
        }
        let [lane_k, vec] = form.lane(arch.warp as usize, k, dtype)?;
        // Elements between what two lanes read of a row in shared memory.
        let pad = if lane_k > vec { PAD_BYTES / dtype.size_bytes() } else { 0 };
        let rows = self.rows_of_text();
        let fits = rows * (k + k / lane_k * pad) * dtype.size_bytes() <= SHARED_BYTES_MAX;
        if !fits && is_normed {
            return None;
        }
        // Elements of rows are read by each lane once, and by neighbours at once: only norms need them in shared memory.
        let is_staged = is_normed || (fits && pad > 0);
        let columns = columns_of(arch, form, [rows, m, n], matrices);
        let ahead = (LINES_AHEAD / (columns * matrices)).clamp(1, k.div_ceil(arch.warp as usize * lane_k));
        let mut constants = String::new();
        let _ = writeln!(constants, "constexpr int ROWS = {rows}, COLUMNS = {columns}, WARPS = {WARPS};");
        let _ = writeln!(constants, "constexpr int VEC = {vec}, LANE_K = {lane_k}, PAD = {pad}, AHEAD = {ahead};");
        let _ = writeln!(constants, "constexpr bool IS_STAGED = {is_staged};");
        Some(Cut {
            constants,
            texts: [STREAM_ROWS, &form.text()?, STREAM].concat(),
            warps: WARPS,
            columns: columns * WARPS,
            shared_bytes: 0,
            kernel: "KERNEL",
            name: format!("{rows}x{columns}x{matrices}"),
        })
    }

    /// Rows that the text has room for. Rows that are not normed cost nothing where they are not there, so several share a text.
    fn rows_of_text(&self) -> usize {
        match (self.mnk[0], self.is_normed) {
            (1, _) => 1,
            (_, false) => GEMV_ROWS_MAX,
            (rows, true) => rows.next_power_of_two(),
        }
    }
}

/// Whether a node is computed before sums are: the norm of rows, products, and what makes their matrices.
fn is_before_sums(op: &Op) -> bool {
    matches!(op, Op::Matmul(_) | Op::RmsNorm(_) | Op::Unpack(_) | Op::Dequantize(_))
}

/// Columns of a warp: one, so that memory is busy from the first warp on; two where there are warps enough and several rows,
/// which each column reads again, or two matrices, whose blocks are too many to overlap with the last launch otherwise. Columns
/// of few bits are soon read: a warp has as many of them as leave half of the warps, so that what each block does once, above
/// all the norm of its rows, is done for enough of them.
fn columns_of(arch: &Arch, form: Form, [rows, m, n]: [usize; 3], matrices: usize) -> usize {
    let busy = BUSY_WARPS * arch.multiprocessors as usize;
    match form {
        Form::Floats if (m > FEW_ROWS || matrices > 1) && n / 2 >= busy => 2,
        Form::Floats => 1,
        Form::Blocks(_) => {
            // A lane finishes one result at most.
            let most = COLUMNS_MAX.min(arch.warp as usize / rows);
            (1..=most).rev().find(|columns| columns.is_power_of_two() && n / columns >= busy / 2).unwrap_or(1)
        }
    }
}
