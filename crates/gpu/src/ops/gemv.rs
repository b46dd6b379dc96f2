//! Products of few rows: what counts is how fast the matrix is read.

use std::fmt::Write as _;

use precast_tensor::{DType, Tensor};

use crate::kernel::{Arch, GEMV, Launch, Lowered, Operand};
use crate::ops::offsets::common_width;
use crate::ops::product::Product;
use crate::ops::run_time_sizes::SizeText;
use crate::ops::tiles::{GEMV_ROWS_MAX, GEMV_WARPS, SplitBy, Tactic, Tile};

/// Blocks along the third axis of a grid.
const GRID_MAX: usize = 65535;

/// Rows and columns of a part of a matrix that is turned at once.
const SQUARE: usize = 64;

/// Whether a product has few rows and a matrix with, or as a constant given, neighbours along the inner axis.
pub(crate) fn is_streamable(product: &Product) -> bool {
    let [m, n, k] = product.mnk;
    let is_float = matches!(product.dtype, DType::F16 | DType::BF16 | DType::F32);
    let has_rows = product.b.is_by_rows && matches!(product.b.operand, Operand::Read(_));
    let is_legal = (1..=GEMV_ROWS_MAX).contains(&m) && n > 0 && k > 0 && product.count <= GRID_MAX;
    is_legal && is_float && product.a.is_by_rows && (has_rows || product.b_constant.is_some()) && !product.is_grouped
}

/// The kernel of a product of few rows.
pub(crate) fn lower(arch: &Arch, product: &Product, columns: usize) -> Option<Lowered> {
    if !is_streamable(product) {
        return None;
    }
    let [m, n, k] = product.mnk;
    let mut packed = Vec::new();
    let operand = match product.b.operand {
        operand @ Operand::Read(_) if product.b.is_by_rows => operand,
        _ => {
            let tensor = product.b_constant.as_ref()?;
            packed.push(if product.b.is_by_rows { tensor.clone() } else { transposed(tensor, k, n)? });
            Operand::Packed(0)
        }
    };
    let most = 16 / product.dtype.size_bytes();
    let vec = common_width(most, &[k]);
    let rows = m.next_power_of_two();
    let tactic = Tactic { tile: Tile::Gemv { columns }, splits: 1, split_by: SplitBy::None, cost: 0.0 };
    let last = 2 + product.epilogue.operands.len();
    let mut text = product.result_text(&tactic, "f32", &SizeText::constant(n), last)?;
    let _ =
        writeln!(text, "constexpr int K = {k}, ROWS = {rows}, COLUMNS = {columns}, WARPS = {GEMV_WARPS}, VEC = {vec};");
    let _ = writeln!(text, "constexpr i64 B_PITCH = {k};");
    let _ = writeln!(text, "DEVICE i64 start_a(i64 z, i64 rows) {{ return {}; }}", product.a.start);
    let _ = writeln!(text, "DEVICE i64 start_b(i64 z) {{ return {}; }}", product.b.start);
    text.push_str(GEMV);
    let [parameters, values] = product.epilogue.parameters(2);
    let threads = GEMV_WARPS as u32 * arch.warp;
    let _ = write!(
        text,
        "KERNEL(stream, {threads}, Arg<const T, 0> a, Arg<const T, 1> b, {parameters}Arg<Y, {last}> y, i64 rows) {{\n    \
         stream_columns(a.rows(), b.get(), Finish{{y.rows(), {{{values}}}}}, rows);\n}}\n"
    );
    let launch = Launch {
        entry: "stream".to_string(),
        text,
        grid: [n.div_ceil(columns * GEMV_WARPS) as u32, 1, product.count as u32],
        block: [threads, 1, 1],
        shared_bytes: 0,
        operands: product.operands(&[product.a.operand, operand], Operand::Write(0), true),
        scalars: vec![m as i64],
        row_bytes: product.row_bytes(product.dtype.size_bytes() as u64, 2, true),
    };
    let name = format!("matmul.gemv.{rows}x{columns}{}", product.epilogue.suffix);
    Some(Lowered { name, launches: vec![launch], scratch_bytes: Vec::new(), packed })
}

/// A matrix [k, n] as [n, k].
pub(crate) fn transposed(tensor: &Tensor, k: usize, n: usize) -> Option<Tensor> {
    let (size, bytes) = (tensor.dtype().size_bytes(), tensor.as_bytes());
    let mut turned = vec![0; bytes.len()];
    // Squares whose lines of both matrices stay in a core's cache.
    for (first_row, first_column) in
        (0..k).step_by(SQUARE).flat_map(|row| (0..n).step_by(SQUARE).map(move |column| (row, column)))
    {
        for column in first_column..n.min(first_column + SQUARE) {
            for row in first_row..k.min(first_row + SQUARE) {
                let (from, to) = ((row * n + column) * size, (column * k + row) * size);
                turned[to..to + size].copy_from_slice(&bytes[from..from + size]);
            }
        }
    }
    Tensor::new(tensor.dtype(), [n, k], turned.into()).ok()
}
