//! Products of few rows: what counts is how fast the matrix is read.

use std::fmt::Write as _;

use precast_tensor::{DType, Tensor};

use crate::kernel::{GEMV, Launch, Lowered, Operand};
use crate::ops::c_text::common_width;
use crate::ops::product::Product;
use crate::ops::tiles::{SplitBy, Tactic, Tile};
use crate::site::Site;

/// Beyond this many rows matrix instructions are faster.
const ROWS_MAX: usize = 8;
/// Warps of a block.
const WARPS: usize = 4;

/// A product of few rows, if this is one: the matrix must have, or as a constant be given, rows along the inner axis.
pub(crate) fn lower(site: &Site, product: &Product, is_one_matrix: bool) -> Option<Lowered> {
    let [m, n, k] = product.mnk;
    let is_float = matches!(product.dtype, DType::F16 | DType::BF16 | DType::F32);
    if m > ROWS_MAX || m == 0 || n == 0 || k == 0 || !is_float || !product.a.is_by_rows || product.count > 65535 {
        return None;
    }
    let mut packed = Vec::new();
    let (operand, pitch) = match (product.b.operand, product.b.is_by_rows) {
        (operand @ Operand::Read(_), true) => (operand, k),
        (operand, _) => {
            let Operand::Read(input) = matrix_input(product, operand) else { return None };
            let tensor = site.constant(input as usize).filter(|_| is_one_matrix)?;
            let tensor = if product.b.is_by_rows { tensor.clone() } else { transposed(tensor, k, n)? };
            packed.push(tensor);
            (Operand::Packed(0), k)
        }
    };
    let most = 16 / product.dtype.size_bytes();
    let vec = common_width(most, &[k]);
    let multiprocessors = site.arch.multiprocessors as usize;
    let rows = m.next_power_of_two();
    // Several columns a warp read each row of x once for all of them; but all multiprocessors must have some.
    let columns =
        [4, 2].into_iter().find(|columns| n / (columns * WARPS) >= 2 * multiprocessors && rows * columns <= 16);
    let columns = columns.unwrap_or(1);
    let tactic =
        Tactic { tile: Tile::Fma { bm: 1, bn: 1, bk: 1, tm: 1, tn: 1 }, splits: 1, split_by: SplitBy::None, cost: 0.0 };
    let mut text = product.result_text(&tactic, "f32")?;
    let _ = writeln!(text, "constexpr int K = {k}, ROWS = {rows}, COLUMNS = {columns}, WARPS = {WARPS}, VEC = {vec};");
    let _ = writeln!(text, "constexpr i64 B_PITCH = {pitch};");
    let _ = writeln!(text, "DEVICE i64 start_a(i64 z, i64 rows) {{ return {}; }}", product.a.start);
    let _ = writeln!(text, "DEVICE i64 start_b(i64 z) {{ return {}; }}", product.b.start);
    text.push_str(GEMV);
    let [parameters, values] = product.epilogue_parameters(2);
    let last = 2 + product.epilogue.operands.len();
    let threads = WARPS as u32 * site.arch.warp;
    let _ = write!(
        text,
        "KERNEL(stream, {threads}, Arg<const T, 0> a, Arg<const T, 1> b, {parameters}Arg<Y, {last}> y, i64 rows) {{\n    \
         stream_columns(a.get(), b.get(), Finish{{y.get(), {{{values}}}}}, rows);\n}}\n"
    );
    let launch = Launch {
        entry: "stream".to_string(),
        text,
        grid: [n.div_ceil(columns * WARPS) as u32, 1, product.count as u32],
        block: [threads, 1, 1],
        shared_bytes: 0,
        operands: product.operands(&[product.a.operand, operand], Operand::Write(0), true),
        scalars: vec![m as i64],
    };
    let name = format!("matmul.gemv.{rows}x{columns}{}", product.epilogue.suffix);
    Some(Lowered { name, launches: vec![launch], scratch_bytes: Vec::new(), packed })
}

/// The operand of the node that the right matrix is, also where it was packed for other kernels.
fn matrix_input(product: &Product, operand: Operand) -> Operand {
    match operand {
        Operand::Packed(_) => product.b_input,
        other => other,
    }
}

/// A matrix [k, n] as [n, k].
fn transposed(tensor: &Tensor, k: usize, n: usize) -> Option<Tensor> {
    let (size, bytes) = (tensor.dtype().size_bytes(), tensor.as_bytes());
    let mut turned = vec![0; bytes.len()];
    for row in 0..k {
        for column in 0..n {
            let (from, to) = ((row * n + column) * size, (column * k + row) * size);
            turned[to..to + size].copy_from_slice(&bytes[from..from + size]);
        }
    }
    Tensor::new(tensor.dtype(), [n, k], turned.into()).ok()
}
