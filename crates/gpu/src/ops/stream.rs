//! Fused bodies of a decoder's step: products of few rows with constant matrices, the norm before them and what follows. What
//! counts is how fast the matrices are read (`text/stream.h`).

use std::fmt::Write as _;

use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::{DType, Tensor};

use crate::element::{float_literal, memory_type};
use crate::kernel::{Arch, Launch, Lowered, Operand, STREAM};
use crate::ops::epilogue::{Coordinates, Epilogue};
use crate::ops::gemv::transposed;
use crate::ops::offsets::common_width;
use crate::ops::tiles::GEMV_ROWS_MAX;
use crate::site::{Site, dense_strides};

/// Warps of a block.
const WARPS: usize = 8;
/// Lines of a matrix that a lane reads before it uses the first.
const LINES_AHEAD: usize = 8;
/// Warps of a multiprocessor that keep memory busy.
const BUSY_WARPS: usize = 16;
/// Rows that a column may read without another.
const FEW_ROWS: usize = 2;
/// Shared memory for rows that are normed.
const SHARED_BYTES_MAX: usize = 40 << 10;

/// A body that one kernel computes.
struct Stream<'a> {
    body: &'a Graph,
    /// Positions of the rows and, where they are normed, of the scale, among the body's inputs.
    x: usize,
    norm: Option<(usize, f64)>,
    products: Vec<&'a Node>,
    mnk: [usize; 3],
}

/// The kernel of a body; `None` where it is something else.
pub fn lower(site: &Site, body: &Graph) -> Option<Lowered> {
    let stream = Stream::of(site, body)?;
    stream.lower(site)
}

impl<'a> Stream<'a> {
    fn of(site: &Site, body: &'a Graph) -> Option<Stream<'a>> {
        let input = |value: ValueId| body.inputs().iter().position(|&input| input == value);
        let first = body.nodes().first()?;
        let (rows, norm) = match &first.op {
            Op::RmsNorm(op) if op.axis + 1 == body.ty(first.inputs[0]).rank() => {
                (first.outputs[0], Some((input(first.inputs[1])?, op.epsilon)))
            }
            _ => (first.inputs[0], None),
        };
        let x = input(if norm.is_some() { first.inputs[0] } else { rows })?;
        let products: Vec<&Node> = body.nodes().iter().filter(|node| matches!(node.op, Op::Matmul(_))).collect();
        let last = body.ty(products.first()?.outputs[0]).shape()?;
        let (shape, dtype) = (site.shape(x), site.dtype(x));
        let (n, k) = (*last.last()?, *shape.last()?);
        let m = shape.iter().product::<usize>() / k.max(1);
        let is_product = |node: &&Node| {
            let Op::Matmul(op) = &node.op else { return false };
            let weights = input(node.inputs[1]).and_then(|at| site.constant(at));
            let is_sized = body.ty(node.outputs[0]).shape().as_ref() == Some(&last);
            let is_matrix = weights.is_some_and(|weights| weights.rank() == 2 && weights.dtype() == dtype);
            !op.transpose_a && node.inputs[0] == rows && is_matrix && is_sized
        };
        let is_dense = (0..site.node.inputs.len())
            .all(|input| site.strides(input) == dense_strides(&site.shape(input), false))
            && site.out_strides(0) == dense_strides(&site.out_shape(0), false);
        let is_scaled = norm.is_none_or(|(scale, _)| site.shape(scale) == [k] && site.dtype(scale) == dtype);
        let is_float = matches!(dtype, DType::F16 | DType::BF16 | DType::F32);
        let is_sized = (1..=GEMV_ROWS_MAX).contains(&m) && n > 0 && k > 0 && products.len() <= 2;
        let fits = norm.is_none() || m.next_power_of_two() * k * dtype.size_bytes() <= SHARED_BYTES_MAX;
        let is_legal = is_dense && is_scaled && is_float && is_sized && fits && products.iter().all(is_product);
        // One product alone has other tactics too.
        let is_worth = norm.is_some() || products.len() > 1 || dtype != DType::F32;
        (is_legal && is_worth).then_some(Stream { body, x, norm, products, mnk: [m, n, k] })
    }

    fn lower(&self, site: &Site) -> Option<Lowered> {
        let [m, n, k] = self.mnk;
        let dtype = site.dtype(self.x);
        let (shape, strides) = (site.out_shape(0), site.out_strides(0));
        let coordinates = Coordinates { column_axis: shape.len() - 1, shape, strides };
        let sums: Vec<ValueId> = self.products.iter().map(|product| product.outputs[0]).collect();
        let rest: Vec<&Node> =
            self.body.nodes().iter().filter(|node| !matches!(node.op, Op::Matmul(_) | Op::RmsNorm(_))).collect();
        let epilogue = Epilogue::of_sums(site, self.body, &coordinates, &sums, &rest)?;
        let mut packed = Vec::new();
        let matrices = self.products.iter().map(|product| self.matrix(site, product, &mut packed));
        let matrices: Vec<Operand> = matrices.collect::<Option<_>>()?;
        let vec = common_width(16 / dtype.size_bytes(), &[k]);
        let (rows, columns) = (self.rows_of_text(), columns_of(site.arch, n, m, matrices.len()));
        let ahead = (LINES_AHEAD / (columns * matrices.len())).clamp(1, k.div_ceil(site.arch.warp as usize * vec));
        let (input, output) = (memory_type(dtype)?, memory_type(site.out_dtype(0))?);
        let mut text = format!("typedef {input} T;\ntypedef {output} Y;\ntypedef f32 Acc;\n");
        let _ = writeln!(text, "constexpr int N = {n}, K = {k}, ROWS = {rows}, COLUMNS = {columns}, WARPS = {WARPS};");
        let _ = writeln!(text, "constexpr int VEC = {vec}, AHEAD = {ahead}, MATRICES = {};", matrices.len());
        let epsilon = float_literal(DType::F32, self.norm.map_or(0.0, |(_, epsilon)| epsilon));
        let _ =
            writeln!(text, "constexpr bool HAS_NORM = {};\nconstexpr f32 EPSILON = {epsilon};", self.norm.is_some());
        let _ = writeln!(text, "DEVICE i64 place(i64 row, int column) {{ return {}; }}", coordinates.place());
        text.push_str(&epilogue.text);
        text.push_str(STREAM);
        let mut operands = vec![Operand::Read(self.x as u32)];
        let mut parameters = "Arg<const T, 0> x, ".to_string();
        if let Some((scale, _)) = self.norm {
            operands.push(Operand::Read(scale as u32));
            parameters.push_str("Arg<const T, 1> scale, ");
        }
        let mut values = Vec::new();
        for (at, &matrix) in matrices.iter().enumerate() {
            let _ = write!(parameters, "Arg<const T, {}> b{at}, ", operands.len());
            operands.push(matrix);
            values.push(format!("b{at}.get()"));
        }
        let [more, members] = epilogue.parameters(operands.len());
        operands.extend(epilogue.operands.iter().map(|(operand, _)| *operand));
        let threads = WARPS as u32 * site.arch.warp;
        let scale = if self.norm.is_some() { "scale.get()" } else { "0" };
        let _ = write!(
            text,
            "KERNEL(stream_columns, {threads}, {parameters}{more}Arg<Y, {}> y, i64 rows) {{\n    \
             const T *const matrices[MATRICES] = {{{}}};\n    \
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
            grid: [u32::try_from(n.div_ceil(columns * WARPS)).ok()?, 1, 1],
            block: [threads, 1, 1],
            shared_bytes: 0,
            operands,
            scalars: vec![m as i64],
            row_bytes,
        };
        let norm = if self.norm.is_some() { "norm+" } else { "" };
        let name = format!("stream.{norm}{rows}x{columns}x{}{}", matrices.len(), epilogue.suffix);
        Some(Lowered { name, launches: vec![launch], scratch_bytes: Vec::new(), packed })
    }

    /// Rows that the text has room for. Rows that are not normed cost nothing where they are not there, so several share a text.
    fn rows_of_text(&self) -> usize {
        match (self.mnk[0], self.norm) {
            (1, _) => 1,
            (_, None) => GEMV_ROWS_MAX,
            (rows, Some(_)) => rows.next_power_of_two(),
        }
    }

    /// The matrix of a product with neighbours along K.
    fn matrix(&self, site: &Site, product: &Node, packed: &mut Vec<Tensor>) -> Option<Operand> {
        let input = self.body.inputs().iter().position(|&input| input == product.inputs[1])?;
        let Op::Matmul(op) = &product.op else { return None };
        if op.transpose_b {
            return Some(Operand::Read(input as u32));
        }
        let [_, n, k] = self.mnk;
        packed.push(transposed(site.constant(input)?, k, n)?);
        Some(Operand::Packed(packed.len() as u32 - 1))
    }
}

/// Columns of a warp: one, so that memory is busy from the first warp on; two where there are warps enough and several rows,
/// which each column reads again, or two matrices, whose blocks are too many to overlap with the last launch otherwise.
fn columns_of(arch: &Arch, n: usize, m: usize, matrices: usize) -> usize {
    let busy = BUSY_WARPS * arch.multiprocessors as usize;
    if (m > FEW_ROWS || matrices > 1) && n / 2 >= busy { 2 } else { 1 }
}
