//! Matrix products.

use precast_ir::Op;
use precast_ir::op::Matmul;
use precast_tensor::{DType, Tensor};

use crate::kernel::{Lowered, Operand};
use crate::ops::epilogue::{Coordinates, Epilogue, Root};
use crate::ops::offsets::{broadcast_strides, common_width, offset_text};
use crate::ops::product::{Product, Side};
use crate::site::{Site, dense_strides};

/// The kernels of a node.
pub fn lower(site: &Site) -> Result<Option<Lowered>, String> {
    Ok(lower_root(&Root::alone(site)))
}

/// The kernels of a product with what follows it.
pub fn lower_root(root: &Root) -> Option<Lowered> {
    product(root)?.lower(root.site.arch)
}

/// Sizes of a matrix product, all batch axes of which may be rows.
pub(crate) struct Sizes {
    /// Leading axes of the result.
    pub batch: Vec<usize>,
    /// Rows, columns, inner axis of one product.
    pub mnk: [usize; 3],
    /// Products.
    pub count: usize,
    /// Strides of the operands' matrices along the batch.
    pub batch_strides: [Vec<usize>; 2],
}

impl Sizes {
    pub fn of(root: &Root, op: &Matmul) -> Option<Sizes> {
        let site = root.site;
        let (a, b) = (site.shape(root.input(0)), site.shape(root.input(1)));
        let out = root.out_shape();
        let (batch, matrix) = out.split_at(out.len() - 2);
        let k = if op.transpose_a { a[a.len() - 2] } else { a[a.len() - 1] };
        let strides = |shape: &[usize]| {
            let own = &shape[..shape.len() - 2];
            broadcast_strides(own, &dense_strides(own, false), batch)
        };
        let batch_strides = [strides(&a)?, strides(&b)?];
        let sizes = Sizes {
            batch: batch.to_vec(),
            mnk: [matrix[0], matrix[1], k],
            count: batch.iter().product(),
            batch_strides,
        };
        let is_full = |strides: &[usize]| {
            let dense = dense_strides(batch, false);
            (0..batch.len()).all(|axis| batch[axis] == 1 || strides[axis] == dense[axis])
        };
        let is_one = |strides: &[usize]| strides.iter().all(|&stride| stride == 0);
        let is_foldable = !op.transpose_a && is_full(&sizes.batch_strides[0]) && is_one(&sizes.batch_strides[1]);
        Some(if is_foldable {
            let [m, n, k] = sizes.mnk;
            Sizes { mnk: [m * sizes.count, n, k], count: 1, ..sizes }
        } else {
            sizes
        })
    }

    /// Which matrix of an operand block z reads.
    fn matrix_text(&self, operand: usize) -> String {
        let axes: Vec<(usize, usize)> =
            self.batch.iter().copied().zip(self.batch_strides[operand].iter().copied()).collect();
        if self.count == 1 { "0".to_string() } else { offset_text("z", &axes) }
    }
}

/// Where results lie.
pub(crate) fn coordinates(root: &Root) -> Coordinates {
    let shape = root.out_shape();
    let (strides, column_axis) = (root.site.out_strides(0), shape.len() - 1);
    Coordinates { shape, strides, column_axis }
}

pub(crate) fn product(root: &Root) -> Option<Product> {
    let site = root.site;
    let Op::Matmul(op) = &root.node.op else { return None };
    let inputs = [root.input(0), root.input(1)];
    // Matrices of a batch whose second axis is innermost in memory are no matrices.
    let is_dense = |input: usize| site.strides(input) == dense_strides(&site.shape(input), false);
    if !inputs.iter().all(|&input| is_dense(input)) || site.out_strides(0) != dense_strides(&site.out_shape(0), false) {
        return None;
    }
    let sizes = Sizes::of(root, op)?;
    let [m, n, k] = sizes.mnk;
    let dtype = site.dtype(inputs[0]);
    let coordinates = coordinates(root);
    let epilogue = Epilogue::of(root, &coordinates, None)?;
    let is_a_by_rows = !op.transpose_a;
    let a_vec = common_width(8, &[if is_a_by_rows { k } else { m }]);
    let a_start = format!("({}) * rows * K", sizes.matrix_text(0));
    let a = Side::matrix(Operand::Read(inputs[0] as u32), is_a_by_rows, a_vec, k, a_start);
    let mut packed = Vec::new();
    let b_pitch = if op.transpose_b { k } else { n };
    let is_one_matrix = sizes.batch_strides[1].iter().all(|&stride| stride == 0);
    let is_16_bit = matches!(dtype, DType::F16 | DType::BF16);
    let is_padded = is_16_bit && !b_pitch.is_multiple_of(8) && is_one_matrix;
    let constant = site.constant(inputs[1]).filter(|_| is_padded);
    let (b_operand, b_pitch) = match constant {
        Some(tensor) => {
            let padded = b_pitch.next_multiple_of(8);
            packed.push(with_padded_rows(tensor, b_pitch, padded)?);
            (Operand::Packed(0), padded)
        }
        None => (Operand::Read(inputs[1] as u32), b_pitch),
    };
    let b_start = format!("({}) * {}", sizes.matrix_text(1), n * k);
    let b = Side::matrix(b_operand, op.transpose_b, common_width(8, &[b_pitch]), b_pitch, b_start);
    Some(Product {
        kind: "matmul",
        dtype,
        out_dtype: site.out_dtype(0),
        mnk: sizes.mnk,
        count: sizes.count,
        is_grouped: false,
        a,
        b,
        is_b_constant: site.constant(inputs[1]).is_some(),
        b_constant: site.constant(inputs[1]).filter(|_| is_one_matrix).cloned(),
        b_pitch,
        is_a_along_k: is_a_by_rows,
        windows: None,
        coordinates,
        epilogue,
        packed,
    })
}

/// The rows of a tensor, `row` elements each, with zeros after them.
pub(crate) fn with_padded_rows(tensor: &Tensor, row: usize, padded: usize) -> Option<Tensor> {
    let size = tensor.dtype().size_bytes();
    let rows = tensor.len() / row.max(1);
    let mut bytes = vec![0; rows * padded * size];
    for (from, to) in tensor.as_bytes().chunks_exact(row * size).zip(bytes.chunks_exact_mut(padded * size)) {
        to[..row * size].copy_from_slice(from);
    }
    Tensor::new(tensor.dtype(), [rows, padded], bytes.into()).ok()
}
