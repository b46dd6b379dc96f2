//! Rows of tensors: taking a request's rows into a Bucket, with copies of the last row as padding, and taking them out of
//! its results again.

use bytes::Bytes;
use precast_tensor::{Tensor, TensorError};

/// Where the rows of a dim lie in a tensor: the axis has the extent outer × rows × inner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowAxis {
    /// The axis.
    pub axis: usize,
    /// Blocks of all rows inside the axis.
    pub outer: usize,
    /// Elements of one row inside the axis.
    pub inner: usize,
}

impl RowAxis {
    /// The whole axis is the dim.
    pub fn plain(axis: usize) -> RowAxis {
        RowAxis { axis, outer: 1, inner: 1 }
    }

    /// Blocks before the rows, and bytes of one row in each block.
    fn blocks(&self, tensor: &Tensor) -> (usize, usize) {
        let shape = tensor.shape();
        let before: usize = shape[..self.axis].iter().product::<usize>() * self.outer;
        let after: usize = shape[self.axis + 1..].iter().product::<usize>() * self.inner;
        (before, after * tensor.dtype().size_bytes())
    }

    fn with_rows(&self, tensor: &Tensor, rows: usize) -> Vec<usize> {
        let mut shape = tensor.shape().to_vec();
        shape[self.axis] = self.outer * rows * self.inner;
        shape
    }

    /// Rows of a tensor.
    pub fn rows(&self, tensor: &Tensor) -> usize {
        tensor.shape()[self.axis] / (self.outer * self.inner).max(1)
    }
}

/// Rows start..start+count of a tensor as a tensor of `bucket` rows; rows beyond `count` are copies of the last.
pub fn take_rows(
    tensor: &Tensor,
    at: RowAxis,
    start: usize,
    count: usize,
    bucket: usize,
) -> Result<Tensor, TensorError> {
    let total = at.rows(tensor);
    if start == 0 && count == total && bucket == total {
        return Ok(tensor.clone());
    }
    let (blocks, row_bytes) = at.blocks(tensor);
    let source = tensor.as_bytes();
    let mut bytes = Vec::with_capacity(blocks * bucket * row_bytes);
    for block in 0..blocks {
        let rows = &source[block * total * row_bytes..][..total * row_bytes];
        bytes.extend_from_slice(&rows[start * row_bytes..(start + count) * row_bytes]);
        let last = &rows[(start + count - 1) * row_bytes..(start + count) * row_bytes];
        for _ in count..bucket {
            bytes.extend_from_slice(last);
        }
    }
    Ok(Tensor::new(tensor.dtype(), at.with_rows(tensor, bucket), Bytes::from(bytes))?.aligned())
}

/// The first `count` rows of each part, one after another.
pub fn join_rows(parts: &[(Tensor, usize)], at: RowAxis) -> Result<Tensor, TensorError> {
    let (first, count) = &parts[0];
    if parts.len() == 1 && at.rows(first) == *count {
        return Ok(first.clone());
    }
    let total: usize = parts.iter().map(|(_, count)| count).sum();
    let (blocks, row_bytes) = at.blocks(first);
    let mut bytes = Vec::with_capacity(blocks * total * row_bytes);
    for block in 0..blocks {
        for (part, count) in parts {
            let rows = at.rows(part);
            bytes.extend_from_slice(&part.as_bytes()[block * rows * row_bytes..][..count * row_bytes]);
        }
    }
    Ok(Tensor::new(first.dtype(), at.with_rows(first, total), Bytes::from(bytes))?.aligned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[usize]) -> Tensor {
        let count: usize = shape.iter().product();
        Tensor::from_vec(shape, (0..count as i32).collect()).unwrap()
    }

    #[test]
    fn padding_copies_the_last_row_of_every_block() {
        let x = tensor(&[2, 2, 1]);
        let padded = take_rows(&x, RowAxis::plain(1), 0, 2, 3).unwrap();
        assert_eq!(padded.shape(), [2, 3, 1]);
        assert_eq!(padded.to_vec::<i32>().unwrap(), [0, 1, 1, 2, 3, 3]);
    }

    #[test]
    fn rows_come_back_as_they_went_in() {
        let x = tensor(&[5, 3]);
        let at = RowAxis::plain(0);
        let first = take_rows(&x, at, 0, 3, 4).unwrap();
        let second = take_rows(&x, at, 3, 2, 4).unwrap();
        assert_eq!(join_rows(&[(first, 3), (second, 2)], at).unwrap(), x);
    }

    #[test]
    fn a_row_may_be_several_elements_of_its_axis() {
        let x = tensor(&[6, 1]);
        let at = RowAxis { axis: 0, outer: 1, inner: 2 };
        assert_eq!(at.rows(&x), 3);
        let joined = join_rows(&[(x, 2)], at).unwrap();
        assert_eq!(joined.to_vec::<i32>().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn blocks_of_all_rows_may_lie_inside_an_axis() {
        let x = tensor(&[6]);
        let at = RowAxis { axis: 0, outer: 2, inner: 1 };
        let joined = join_rows(&[(x, 2)], at).unwrap();
        assert_eq!(joined.to_vec::<i32>().unwrap(), [0, 1, 3, 4]);
    }
}
