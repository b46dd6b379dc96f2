//! 8-bit matrix products: Σ (a - a_zero)(b - b_zero) in i32, wrapping, exact on every instruction set.
//!
//! A is read as unsigned and B kept as signed bytes, as VNNI multiplies them; an operand of the other kind is moved by
//! 128 together with its zero point. Zero points enter as sums over rows of A and columns of B, so the inner loop is
//! the plain product.

use crate::epilogue::Activation;
use crate::gemm_int_tile::{TILE_COLS, TILE_PANELS, TILE_ROWS, Tile, multiply_tile};
use crate::isa::Exec;
use crate::math::activate;
use crate::pool::SharedMut;
use crate::simd::multiversion;

/// Columns of a panel of packed B.
pub(crate) const PANEL: usize = 16;
/// Products that one instruction adds up.
pub(crate) const DOT: usize = 4;
/// Rows of A that one unit of work covers, so that they stay in the second cache.
const UNIT_ROWS: usize = 16 * TILE_ROWS;
/// Rows that are packed at a time are a multiple of this.
pub const ROWS_PER_PART: usize = DOT;
/// Multiplications below which a task is not worth handing over.
const PRODUCTS_PER_TASK_MIN: usize = 1 << 21;

/// Zero points of the rows of A or the columns of B.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ZeroPoints<'a> {
    /// One for all.
    Scalar(i32),
    /// One each.
    Each(&'a [i32]),
}

impl ZeroPoints<'_> {
    fn get(self, index: usize) -> i32 {
        match self {
            ZeroPoints::Scalar(zero) => zero,
            ZeroPoints::Each(zeros) => zeros[index],
        }
    }

    fn check(self, count: usize, operand: &str) {
        if let ZeroPoints::Each(zeros) = self {
            assert_eq!(zeros.len(), count, "zero points of {operand}");
        }
    }
}

/// Scales of the columns of a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scales<'a> {
    /// One for all.
    Scalar(f32),
    /// One each.
    Each(&'a [f32]),
}

/// The operands of a product of `[m, k]` and `[k, n]`.
#[derive(Clone, Copy)]
pub struct GemmInt<'a> {
    /// Rows of A.
    pub m: usize,
    /// Columns of B.
    pub n: usize,
    /// Columns of A and rows of B.
    pub k: usize,
    /// A, dense and row-major.
    pub a: &'a [u8],
    /// Whether the bytes of A are i8.
    pub is_a_signed: bool,
    /// Zero points of A: one, or one a row.
    pub a_zero: ZeroPoints<'a>,
    /// B as `pack_b_int` left it.
    pub packed_b: &'a [u8],
    /// Whether the bytes of B were i8.
    pub is_b_signed: bool,
    /// Zero points of B: one, or one a column.
    pub b_zero: ZeroPoints<'a>,
}

/// Bytes of a packed B: panels `[n / 16][k / 4][16][4]`, then the sum of each column as i32.
pub fn packed_b_int_len(k: usize, n: usize) -> usize {
    let panels = n.div_ceil(PANEL);
    panels * k.div_ceil(DOT) * PANEL * DOT + panels * PANEL * 4
}

/// Packs B, `[k, n]` row-major or, if `is_transposed`, `[n, k]`. The bytes are the same on every machine.
pub fn pack_b_int(k: usize, n: usize, b: &[u8], is_signed: bool, is_transposed: bool) -> Vec<u8> {
    let mut packed = vec![0; packed_b_int_len(k, n)];
    pack_constant_b_int(k, n, b, is_signed, is_transposed, &mut packed);
    packed
}

/// As `pack_b_int`, into a buffer of `packed_b_int_len` bytes.
pub fn pack_constant_b_int(k: usize, n: usize, b: &[u8], is_signed: bool, is_transposed: bool, packed: &mut [u8]) {
    assert_eq!(packed.len(), packed_b_int_len(k, n), "bytes of the packed B");
    let (panels, sums) = packed.split_at_mut(sums_offset(k, n));
    let panel_bytes = panel_bytes(k);
    for panel in 0..n.div_ceil(PANEL) {
        let bytes = &mut panels[panel * panel_bytes..][..panel_bytes];
        let sums = &mut sums[panel * PANEL * 4..][..PANEL * 4];
        let totals = pack_panel(k, n, panel * PANEL, b, is_signed, is_transposed, bytes);
        write_sums(sums, totals);
    }
}

/// Packs some rows of B, `[k, n]` row-major, from row `first` on, into a buffer of `packed_b_int_len` bytes that began as
/// zeros: for whoever does not want all of B in memory. `first` is a multiple of `ROWS_PER_PART`.
pub fn pack_rows_b_int(k: usize, n: usize, first: usize, rows: &[u8], is_signed: bool, packed: &mut [u8]) {
    assert_eq!(packed.len(), packed_b_int_len(k, n), "bytes of the packed B");
    assert!(first.is_multiple_of(ROWS_PER_PART), "rows from {first} on");
    let row_count = rows.len() / n.max(1);
    let (panels, sums) = packed.split_at_mut(sums_offset(k, n));
    let (start, len) = (first / DOT * PANEL * DOT, panel_bytes(row_count));
    for panel in 0..n.div_ceil(PANEL) {
        let bytes = &mut panels[panel * panel_bytes(k) + start..][..len];
        let sums = &mut sums[panel * PANEL * 4..][..PANEL * 4];
        let mut totals = pack_panel(row_count, n, panel * PANEL, rows, is_signed, false, bytes);
        for (total, before) in totals.iter_mut().zip(sums.as_chunks::<4>().0) {
            *total += i32::from_le_bytes(*before);
        }
        write_sums(sums, totals);
    }
}

/// As `pack_b_int`, by all threads, into a buffer of `packed_b_int_len` bytes: for a B that is computed at run time.
pub fn pack_b_int_into(
    exec: &Exec,
    k: usize,
    n: usize,
    b: &[u8],
    is_signed: bool,
    is_transposed: bool,
    packed: &mut [u8],
) {
    assert_eq!(packed.len(), packed_b_int_len(k, n), "bytes of the packed B");
    let (panels, sums) = packed.split_at_mut(sums_offset(k, n));
    let panel_bytes = panel_bytes(k);
    let panel_count = n.div_ceil(PANEL);
    let (panels, sums) = (SharedMut::new(panels), SharedMut::new(sums));
    let panels_per_task = (64 * 1024_usize).div_ceil(panel_bytes.max(1)).clamp(1, panel_count.max(1));
    exec.pool().run(panel_count.div_ceil(panels_per_task), &|task| {
        for panel in task * panels_per_task..((task + 1) * panels_per_task).min(panel_count) {
            // SAFETY: each panel is packed once, and its bytes and sums are its own.
            let bytes = unsafe { panels.slice(panel * panel_bytes, panel_bytes) };
            // SAFETY: as above.
            let sums = unsafe { sums.slice(panel * PANEL * 4, PANEL * 4) };
            let totals = pack_panel(k, n, panel * PANEL, b, is_signed, is_transposed, bytes);
            write_sums(sums, totals);
        }
    });
}

/// Bytes of scratch for a product with these sizes.
pub fn gemm_int_scratch_len(m: usize, k: usize, is_a_signed: bool) -> usize {
    if reads_a_in_place(k, is_a_signed) { 0 } else { m * k.next_multiple_of(DOT) }
}

/// Writes the product to `c`, rows of which are `c_stride` apart.
pub fn gemm_int(exec: &Exec, gemm: &GemmInt, c: &mut [i32], c_stride: usize, scratch: &mut [u8]) {
    check_result(gemm, c.len(), c_stride);
    let shared = SharedMut::new(c);
    drive(exec, gemm, scratch, &|row, column, values| {
        // SAFETY: `drive` gives each element of the result once.
        let target = unsafe { shared.slice(row * c_stride + column, values.len()) };
        target.copy_from_slice(values);
    });
}

/// Writes `activation(product · scale + bias)` to `c`, rows of which are `c_stride` apart.
pub fn gemm_int_scaled(
    exec: &Exec,
    gemm: &GemmInt,
    scale: Scales,
    bias: Option<&[f32]>,
    activation: Activation,
    c: &mut [f32],
    c_stride: usize,
    scratch: &mut [u8],
) {
    check_result(gemm, c.len(), c_stride);
    if let Scales::Each(scales) = scale {
        assert_eq!(scales.len(), gemm.n, "length of the scales");
    }
    assert!(bias.is_none_or(|bias| bias.len() == gemm.n), "length of the bias, expected {}", gemm.n);
    let shared = SharedMut::new(c);
    drive(exec, gemm, scratch, &|row, column, values| {
        // SAFETY: `drive` gives each element of the result once.
        let target = unsafe { shared.slice(row * c_stride + column, values.len()) };
        let columns = column..column + values.len();
        let scale = match scale {
            Scales::Scalar(scale) => Scales::Scalar(scale),
            Scales::Each(scales) => Scales::Each(&scales[columns.clone()]),
        };
        scale_row(exec.isa(), values, scale, bias.map(|bias| &bias[columns]), target);
        activate(exec.isa(), activation, target);
    });
}

/// Computes tiles of the product and hands each row of them to `finish(row, first column, values)`, once.
pub(crate) fn drive(exec: &Exec, gemm: &GemmInt, scratch: &mut [u8], finish: &(impl Fn(usize, usize, &[i32]) + Sync)) {
    let &GemmInt { m, n, k, is_a_signed, .. } = gemm;
    assert_eq!(gemm.a.len(), m * k, "bytes of A");
    assert_eq!(gemm.packed_b.len(), packed_b_int_len(k, n), "bytes of the packed B");
    gemm.a_zero.check(m, "A");
    gemm.b_zero.check(n, "B");
    if m == 0 || n == 0 {
        return;
    }
    let a_stride = k.next_multiple_of(DOT);
    let a = if reads_a_in_place(k, is_a_signed) {
        gemm.a
    } else {
        let len = gemm_int_scratch_len(m, k, is_a_signed);
        assert!(scratch.len() >= len, "{} bytes of scratch, expected {len}", scratch.len());
        let scratch = &mut scratch[..len];
        pad_rows(exec, k, gemm.a, is_a_signed, scratch);
        scratch
    };
    let column_groups = n.div_ceil(TILE_COLS);
    let (unit_count, units_per_task) = units(m, n, k);
    exec.pool().run(unit_count.div_ceil(units_per_task), &|task| {
        for unit in task * units_per_task..((task + 1) * units_per_task).min(unit_count) {
            let first_row = unit / column_groups * UNIT_ROWS;
            let rows = first_row..(first_row + UNIT_ROWS).min(m);
            multiply_unit(exec, gemm, a, a_stride, rows, unit % column_groups * TILE_COLS, finish);
        }
    });
}

/// Whether a product of these sizes is too small to be cut over threads.
pub fn is_one_task(m: usize, n: usize, k: usize) -> bool {
    let (unit_count, units_per_task) = units(m, n, k);
    unit_count <= units_per_task
}

/// Units of work of a product, and how many of them one task does.
fn units(m: usize, n: usize, k: usize) -> (usize, usize) {
    let unit_count = m.div_ceil(UNIT_ROWS) * n.div_ceil(TILE_COLS);
    let unit_products = m.min(UNIT_ROWS) * n.min(TILE_COLS) * k.max(1);
    (unit_count, PRODUCTS_PER_TASK_MIN.div_ceil(unit_products.max(1)).clamp(1, unit_count.max(1)))
}

/// One group of columns of B times some rows of A.
fn multiply_unit(
    exec: &Exec,
    gemm: &GemmInt,
    a: &[u8],
    a_stride: usize,
    rows: std::ops::Range<usize>,
    first_column: usize,
    finish: &(impl Fn(usize, usize, &[i32]) + Sync),
) {
    let columns = TILE_COLS.min(gemm.n - first_column);
    let panel_bytes = panel_bytes(gemm.k);
    let b = &gemm.packed_b[first_column / PANEL * panel_bytes..][..columns.div_ceil(PANEL) * panel_bytes];
    let sums = &gemm.packed_b[sums_offset(gemm.k, gemm.n) + first_column * 4..];
    let mut column_sums = [0; TILE_COLS];
    let mut column_zeros = [0; TILE_COLS];
    for column in 0..columns {
        let bytes = sums[column * 4..][..4].try_into().expect("four bytes");
        column_sums[column] = i32::from_le_bytes(bytes);
        // An unsigned B is kept 128 lower.
        let shift = if gemm.is_b_signed { 0 } else { 128 };
        column_zeros[column] = gemm.b_zero.get(first_column + column).wrapping_sub(shift);
    }
    let needs_row_sums = column_zeros.iter().any(|&zero| zero != 0);
    let mut tile: Tile = [[0; TILE_COLS]; TILE_ROWS];
    for row in rows.clone().step_by(TILE_ROWS) {
        let count = TILE_ROWS.min(rows.end - row);
        let a = &a[row * a_stride..][..count * a_stride];
        multiply_tile(exec.isa(), a, a_stride, b, panel_bytes, columns.div_ceil(PANEL).min(TILE_PANELS), &mut tile);
        for (index, values) in tile[..count].iter_mut().enumerate() {
            // A signed A is read 128 higher.
            let shift = if gemm.is_a_signed { 128 } else { 0 };
            let a_zero = gemm.a_zero.get(row + index).wrapping_add(shift);
            let row_sum = if needs_row_sums { sum_bytes(exec.isa(), &a[index * a_stride..][..gemm.k]) } else { 0 };
            let row_term = row_sum.wrapping_sub((gemm.k as i32).wrapping_mul(a_zero));
            if needs_row_sums || a_zero != 0 {
                apply_zeros(exec.isa(), values, row_term, &column_zeros, a_zero, &column_sums);
            }
            finish(row + index, first_column, &values[..columns]);
        }
    }
}

fn check_result(gemm: &GemmInt, c_len: usize, c_stride: usize) {
    let needed = if gemm.m == 0 { 0 } else { (gemm.m - 1) * c_stride + gemm.n };
    assert!(c_stride >= gemm.n || gemm.m <= 1, "rows of the result overlap: stride {c_stride} for {} columns", gemm.n);
    assert!(c_len >= needed, "the result has {c_len} elements, expected {needed}");
}

fn panel_bytes(k: usize) -> usize {
    k.div_ceil(DOT) * PANEL * DOT
}

fn sums_offset(k: usize, n: usize) -> usize {
    n.div_ceil(PANEL) * panel_bytes(k)
}

fn reads_a_in_place(k: usize, is_a_signed: bool) -> bool {
    k.is_multiple_of(DOT) && !is_a_signed
}

/// Copies rows of A, as unsigned bytes, each padded with zeros to whole dot products.
fn pad_rows(exec: &Exec, k: usize, a: &[u8], is_signed: bool, padded: &mut [u8]) {
    let stride = k.next_multiple_of(DOT);
    if stride == 0 {
        return;
    }
    let flip = if is_signed { 0x80 } else { 0 };
    let rows = (64 * 1024_usize).div_ceil(stride);
    exec.pool().chunks_mut(padded, rows * stride, |task, padded| {
        for (index, row) in padded.chunks_exact_mut(stride).enumerate() {
            let source = &a[(task * rows + index) * k..][..k];
            for (target, &byte) in row.iter_mut().zip(source) {
                *target = byte ^ flip;
            }
            row[k..].fill(0);
        }
    });
}

/// Packs the columns from `first` into one panel and gives their sums.
fn pack_panel(
    k: usize,
    n: usize,
    first: usize,
    b: &[u8],
    is_signed: bool,
    is_transposed: bool,
    panel: &mut [u8],
) -> [i32; PANEL] {
    assert_eq!(b.len(), k * n, "bytes of B");
    let flip = if is_signed { 0 } else { 0x80 };
    let columns = PANEL.min(n - first);
    let mut totals = [0_i32; PANEL];
    for (group, dots) in panel.as_chunks_mut::<{ PANEL * DOT }>().0.iter_mut().enumerate() {
        dots.fill(0);
        for step in 0..DOT.min(k - group * DOT) {
            let depth = group * DOT + step;
            if is_transposed {
                for column in 0..columns {
                    dots[column * DOT + step] = b[(first + column) * k + depth] ^ flip;
                }
            } else {
                for (column, &byte) in b[depth * n + first..][..columns].iter().enumerate() {
                    dots[column * DOT + step] = byte ^ flip;
                }
            }
        }
        for (total, dot) in totals.iter_mut().zip(dots.as_chunks::<DOT>().0) {
            *total += dot.iter().map(|&byte| i32::from(byte as i8)).sum::<i32>();
        }
    }
    totals
}

fn write_sums(sums: &mut [u8], totals: [i32; PANEL]) {
    for (sum, total) in sums.as_chunks_mut::<4>().0.iter_mut().zip(totals) {
        *sum = total.to_le_bytes();
    }
}

multiversion! {
    fn sum_bytes<F: MulAdd>(bytes: &[u8]) -> i32 {
        bytes.iter().fold(0_i32, |sum, &byte| sum.wrapping_add(i32::from(byte)))
    }

    /// `value - column_zero · row_term - a_zero · column_sum`.
    fn apply_zeros<F: MulAdd>(
        values: &mut [i32; TILE_COLS],
        row_term: i32,
        column_zeros: &[i32; TILE_COLS],
        a_zero: i32,
        column_sums: &[i32; TILE_COLS],
    ) {
        for ((value, &zero), &sum) in values.iter_mut().zip(column_zeros).zip(column_sums) {
            *value = value.wrapping_sub(zero.wrapping_mul(row_term)).wrapping_sub(a_zero.wrapping_mul(sum));
        }
    }

    /// `value · scale + bias` as floats.
    pub(crate) fn scale_row<F: MulAdd>(values: &[i32], scale: Scales, bias: Option<&[f32]>, target: &mut [f32]) {
        match scale {
            Scales::Scalar(scale) => {
                for (y, &x) in target.iter_mut().zip(values) {
                    *y = x as f32 * scale;
                }
            }
            Scales::Each(scales) => {
                for ((y, &x), &scale) in target.iter_mut().zip(values).zip(scales) {
                    *y = x as f32 * scale;
                }
            }
        }
        if let Some(bias) = bias {
            for (y, &bias) in target.iter_mut().zip(bias) {
                *y += bias;
            }
        }
    }
}

#[cfg(test)]
#[path = "gemm_int_tests.rs"]
mod tests;
