//! Kernels of each op family. A function gives `None` where no kernel covers the step.

pub mod attention;
pub mod cached_attention;
pub mod conv;
pub mod conv_pair;
pub mod elementwise;
pub mod epilogue;
pub mod fused;
pub mod gather_concat;
pub mod index;
pub mod layout;
pub mod matmul;
pub mod matmul_blocks;
pub mod matmul_dynamic;
pub mod matmul_exact;
pub mod norm;
pub mod quantize;
pub mod reduce;
pub mod sequence;
pub mod sequence_dynamic;
pub mod window;

/// Row-major strides of a shape, in elements.
pub fn strides_of(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * shape[axis + 1];
    }
    strides
}

/// A shape as `[before, axis, after]` around one axis.
pub fn around(shape: &[usize], axis: usize) -> [usize; 3] {
    [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()]
}

/// Strides with which `shape` is read as if it were broadcast to `target`.
pub fn broadcast_strides(shape: &[usize], target: &[usize]) -> Vec<usize> {
    let missing = target.len() - shape.len();
    let strides = strides_of(shape);
    (0..target.len())
        .map(|axis| if axis < missing || shape[axis - missing] == 1 { 0 } else { strides[axis - missing] })
        .collect()
}
