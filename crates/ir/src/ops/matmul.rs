//! Matrix products. Floats accumulate in f64 and are rounded once; integers are exact modulo the output's width.

use precast_tensor::{DType, Dim, Tensor, Type};

use super::shape::{
    broadcast_dims, broadcast_shapes, broadcast_strides, check_arity, check_same_dtype, count, dtype_error,
    infer_shape, offsets, print_dims, read_floats, read_ints, same_dim, write_floats, write_ints,
};
use crate::error::{EvalError, InferError};
use crate::op::{Matmul, MatmulInt, Operation};

const MATMUL: &str = "matmul";
const MATMUL_INT: &str = "matmul_int";

impl Operation for Matmul {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity(MATMUL, inputs, 2..=2)?;
        check_same_dtype(MATMUL, inputs[0], inputs[1])?;
        if inputs[0].dtype.is_bool() {
            return Err(dtype_error(MATMUL, inputs[0].dtype));
        }
        let dims = product_dims(MATMUL, inputs[0], self.transpose_a, inputs[1], self.transpose_b)?;
        Ok(vec![Type { dtype: inputs[0].dtype, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(MATMUL, self, inputs)?;
        let a = Operand::new(&inputs[0], self.transpose_a);
        let b = Operand::new(&inputs[1], self.transpose_b);
        let product = if dtype.is_float() {
            let (left, right) = (a.rows(&read_floats(&inputs[0])), b.rows(&read_floats(&inputs[1])));
            write_floats(MATMUL, dtype, &shape, &multiply(&a, &left, &b, &right, &shape, |sum, x, y| sum + x * y))
        } else {
            let (left, right) =
                (a.rows(&wrap(&read_ints(MATMUL, &inputs[0])?)), b.rows(&wrap(&read_ints(MATMUL, &inputs[1])?)));
            let sums = multiply(&a, &left, &b, &right, &shape, |sum: i64, x, y| sum.wrapping_add(x.wrapping_mul(y)));
            write_ints(MATMUL, dtype, &shape, &widen(&sums))
        }?;
        Ok(vec![product])
    }
}

impl Operation for MatmulInt {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity(MATMUL_INT, inputs, 4..=4)?;
        for (operand, zero_point) in [(inputs[0], inputs[2]), (inputs[1], inputs[3])] {
            if !matches!(operand.dtype, DType::I8 | DType::U8) {
                return Err(dtype_error(MATMUL_INT, operand.dtype));
            }
            check_same_dtype(MATMUL_INT, operand, zero_point)?;
        }
        let dims = product_dims(MATMUL_INT, inputs[0], false, inputs[1], false)?;
        // A zero point is one number for a whole row of a, or a whole column of b: it does not vary along K.
        check_zero_point(inputs[0], inputs[2], inputs[2].dims.last())?;
        check_zero_point(inputs[1], inputs[3], inputs[3].dims.iter().rev().nth(1))?;
        Ok(vec![Type { dtype: DType::I32, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(MATMUL_INT, self, inputs)?;
        let (a, b) = (Operand::new(&inputs[0], false), Operand::new(&inputs[1], false));
        let left = centre(&inputs[0], &inputs[2])?;
        let right = centre(&inputs[1], &inputs[3])?;
        let sums = multiply(&a, &left, &b, &right, &shape, |sum: i64, x, y| sum + x * y);
        Ok(vec![write_ints(MATMUL_INT, dtype, &shape, &widen(&sums))?])
    }
}

/// Dims [.., M, N] of a product.
fn product_dims(
    op: &'static str,
    a: &Type,
    transpose_a: bool,
    b: &Type,
    transpose_b: bool,
) -> Result<Vec<Dim>, InferError> {
    let (batch_a, m, k_a) = matrix_dims(op, a, transpose_a)?;
    let (batch_b, k_b, n) = matrix_dims(op, b, transpose_b)?;
    if same_dim(k_a, k_b).is_none() {
        let (a, b) = (print_dims(&a.dims), print_dims(&b.dims));
        return Err(InferError::new(op, format!("inner dims {k_a} and {k_b} of {a} and {b} differ")));
    }
    let mut dims = broadcast_dims(op, &[batch_a, batch_b])?;
    dims.extend([m.clone(), n.clone()]);
    Ok(dims)
}

fn matrix_dims<'a>(
    op: &'static str,
    ty: &'a Type,
    is_transposed: bool,
) -> Result<(&'a [Dim], &'a Dim, &'a Dim), InferError> {
    match ty.dims.as_slice() {
        [batch @ .., rows, columns] if is_transposed => Ok((batch, columns, rows)),
        [batch @ .., rows, columns] => Ok((batch, rows, columns)),
        _ => Err(InferError::new(op, format!("{ty} found where rank 2 or more is expected"))),
    }
}

fn check_zero_point(operand: &Type, zero_point: &Type, along_k: Option<&Dim>) -> Result<(), InferError> {
    let fits = zero_point.dims.len() <= operand.dims.len()
        && along_k.is_none_or(|dim| dim.as_const() == Some(1) || zero_point.dims.len() == 1)
        && broadcast_dims(MATMUL_INT, &[&operand.dims, &zero_point.dims])? == operand.dims;
    if fits {
        return Ok(());
    }
    Err(InferError::new(MATMUL_INT, format!("zero point {zero_point} does not fit {operand}")))
}

/// Sizes of a matrix operand after transposing.
struct Operand {
    batch: Vec<usize>,
    rows: usize,
    columns: usize,
    is_transposed: bool,
}

impl Operand {
    fn new(tensor: &Tensor, is_transposed: bool) -> Operand {
        let (batch, matrix) = tensor.shape().split_at(tensor.shape().len() - 2);
        let (rows, columns) = if is_transposed { (matrix[1], matrix[0]) } else { (matrix[0], matrix[1]) };
        Operand { batch: batch.to_vec(), rows, columns, is_transposed }
    }

    /// The elements with every matrix in row-major order after transposing.
    fn rows<T: Copy>(&self, elements: &[T]) -> Vec<T> {
        if !self.is_transposed {
            return elements.to_vec();
        }
        let mut rows = Vec::with_capacity(elements.len());
        for matrix in elements.chunks_exact((self.rows * self.columns).max(1)) {
            for row in 0..self.rows {
                rows.extend((0..self.columns).map(|column| matrix[column * self.rows + row]));
            }
        }
        rows
    }
}

/// Every matrix of a times its matrix of b, in the order i, k, j: the innermost loop runs along rows.
fn multiply<T: Copy + Default>(
    a: &Operand,
    left: &[T],
    b: &Operand,
    right: &[T],
    shape: &[usize],
    accumulate: impl Fn(T, T, T) -> T,
) -> Vec<T> {
    let mut product = vec![T::default(); count(shape)];
    let batch = &shape[..shape.len() - 2];
    let (m, k, n) = (a.rows, a.columns, b.columns);
    if product.is_empty() || k == 0 {
        return product;
    }
    let left_matrices = offsets(batch, &broadcast_strides(&a.batch, batch));
    let right_matrices = offsets(batch, &broadcast_strides(&b.batch, batch));
    for (matrix, output) in product.chunks_exact_mut(m * n).enumerate() {
        let left = &left[left_matrices[matrix] * m * k..][..m * k];
        let right = &right[right_matrices[matrix] * k * n..][..k * n];
        for (left_row, output_row) in left.chunks_exact(k).zip(output.chunks_exact_mut(n)) {
            for (&x, right_row) in left_row.iter().zip(right.chunks_exact(n)) {
                for (sum, &y) in output_row.iter_mut().zip(right_row) {
                    *sum = accumulate(*sum, x, y);
                }
            }
        }
    }
    product
}

/// Elements minus the zero point that broadcasts to them.
fn centre(operand: &Tensor, zero_point: &Tensor) -> Result<Vec<i64>, EvalError> {
    let shape = operand.shape();
    broadcast_shapes(MATMUL_INT, &[shape, zero_point.shape()])?;
    let zeros = wrap(&read_ints(MATMUL_INT, zero_point)?);
    let places = offsets(shape, &broadcast_strides(zero_point.shape(), shape));
    let elements = wrap(&read_ints(MATMUL_INT, operand)?);
    Ok(elements.iter().zip(places).map(|(element, place)| element - zeros[place]).collect())
}

/// Modulo 2^64: products and sums stay right modulo every narrower width.
fn wrap(elements: &[i128]) -> Vec<i64> {
    elements.iter().map(|&element| element as i64).collect()
}

fn widen(elements: &[i64]) -> Vec<i128> {
    elements.iter().map(|&element| i128::from(element)).collect()
}

#[cfg(test)]
#[path = "matmul_tests.rs"]
mod tests;
