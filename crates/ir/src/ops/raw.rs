//! Elements moved as bytes, whatever their type: the strided copy behind transpose, slice and broadcast. Runs that
//! lie together are copied together, so that folding large weights costs what a copy costs.

use precast_tensor::{DType, Tensor};

use super::shape::{count, strides, tensor_error};
use crate::error::EvalError;

/// Element `start + Σ index·stride` of a tensor for every index of `shape`: a view that can be copied.
#[derive(Clone, Debug)]
pub struct StridedView {
    /// Extents of the view.
    pub shape: Vec<usize>,
    /// Element read at index 0.
    pub start: usize,
    /// Distance in elements between neighbours of each axis; every element reached lies in the tensor.
    pub strides: Vec<isize>,
}

impl StridedView {
    /// A view from element 0 with strides that are not negative.
    pub fn new(shape: Vec<usize>, strides: &[usize]) -> StridedView {
        StridedView { shape, start: 0, strides: strides.iter().map(|&stride| stride as isize).collect() }
    }

    /// The viewed elements of `bytes`, `size` bytes each, in row-major order.
    pub fn copy(&self, bytes: &[u8], size: usize) -> Vec<u8> {
        let total = count(&self.shape);
        let mut copied = Vec::with_capacity(total * size);
        if total > 0 {
            let view = self.merged();
            view.copy_axis(0, view.start as isize, bytes, size, &mut copied);
        }
        copied
    }

    /// The same elements with axes of extent 1 dropped and neighbouring axes that form one run joined. Of a view that
    /// is not empty at most 63 axes are left, so recursion over them is bounded.
    fn merged(&self) -> StridedView {
        let mut merged = StridedView { shape: Vec::new(), start: self.start, strides: Vec::new() };
        for (&extent, &stride) in self.shape.iter().zip(&self.strides) {
            match (merged.shape.last_mut(), merged.strides.last_mut()) {
                _ if extent == 1 => {}
                (Some(last_extent), Some(last_stride)) if *last_stride == stride * extent as isize => {
                    *last_extent *= extent;
                    *last_stride = stride;
                }
                _ => {
                    merged.shape.push(extent);
                    merged.strides.push(stride);
                }
            }
        }
        merged
    }

    fn copy_axis(&self, axis: usize, start: isize, bytes: &[u8], size: usize, copied: &mut Vec<u8>) {
        let (Some(&extent), Some(&stride)) = (self.shape.get(axis), self.strides.get(axis)) else {
            return copy_run(bytes, start, 1, size, copied);
        };
        if axis + 1 < self.shape.len() {
            for at in 0..extent as isize {
                self.copy_axis(axis + 1, start + at * stride, bytes, size, copied);
            }
            return;
        }
        match (stride, size) {
            (1, _) => copy_run(bytes, start, extent, size, copied),
            (_, 1) => copy_apart::<1>(bytes, start, stride, extent, copied),
            (_, 2) => copy_apart::<2>(bytes, start, stride, extent, copied),
            (_, 4) => copy_apart::<4>(bytes, start, stride, extent, copied),
            (_, 8) => copy_apart::<8>(bytes, start, stride, extent, copied),
            _ => (0..extent as isize).for_each(|at| copy_run(bytes, start + at * stride, 1, size, copied)),
        }
    }
}

fn copy_run(bytes: &[u8], start: isize, extent: usize, size: usize, copied: &mut Vec<u8>) {
    let from = start as usize * size;
    copied.extend_from_slice(&bytes[from..from + extent * size]);
}

fn copy_apart<const SIZE: usize>(bytes: &[u8], start: isize, stride: isize, extent: usize, copied: &mut Vec<u8>) {
    for at in 0..extent as isize {
        let from = (start + at * stride) as usize * SIZE;
        copied.extend_from_slice(&bytes[from..from + SIZE]);
    }
}

/// A tensor whose axis i is axis `perm[i]` of another.
pub fn transpose(op: &'static str, tensor: &Tensor, perm: &[usize]) -> Result<Tensor, EvalError> {
    let own = strides(tensor.shape());
    let shape: Vec<usize> = perm.iter().map(|&axis| tensor.shape()[axis]).collect();
    let permuted: Vec<usize> = perm.iter().map(|&axis| own[axis]).collect();
    let bytes = StridedView::new(shape.clone(), &permuted).copy(tensor.as_bytes(), tensor.dtype().size_bytes());
    from_bytes(op, tensor.dtype(), &shape, bytes)
}

/// A tensor of bytes that an op has put together.
pub fn from_bytes(op: &'static str, dtype: DType, shape: &[usize], bytes: Vec<u8>) -> Result<Tensor, EvalError> {
    Tensor::new(dtype, shape, bytes.into()).map_err(|error| tensor_error(op, &error))
}

/// The bytes of a tensor, shared, under another element type or shape.
pub fn from_shared_bytes(
    op: &'static str,
    dtype: DType,
    shape: &[usize],
    tensor: &Tensor,
) -> Result<Tensor, EvalError> {
    Tensor::new(dtype, shape, tensor.bytes().clone()).map_err(|error| tensor_error(op, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_with_negative_strides_reads_backwards() {
        let view = StridedView { shape: vec![2, 2], start: 3, strides: vec![-2, -1] };
        assert_eq!(view.copy(&[1, 2, 3, 4], 1), [4, 3, 2, 1]);
    }

    #[test]
    fn neighbouring_axes_that_form_one_run_are_joined() {
        let view = StridedView { shape: vec![2, 1, 3, 4], start: 0, strides: vec![12, 9, 4, 1] };
        assert_eq!(view.merged().shape, [24]);
        let repeated = StridedView { shape: vec![2, 3], start: 0, strides: vec![0, 0] };
        assert_eq!(repeated.merged().shape, [6]);
    }

    #[test]
    fn a_view_of_rank_0_is_one_element_and_an_empty_one_none() {
        let scalar = StridedView { shape: vec![], start: 1, strides: vec![] };
        assert_eq!(scalar.copy(&[1, 2, 3, 4], 2), [3, 4]);
        let empty = StridedView { shape: vec![2, 0], start: 0, strides: vec![1, 1] };
        assert_eq!(empty.copy(&[], 2), [0u8; 0]);
    }
}
