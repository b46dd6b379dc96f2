//! Bytes that a run writes and that become a tensor without copying.

use bytes::Bytes;
use precast_tensor::{DType, Tensor, TensorError};

/// Bytes of one output, aligned for every element type.
pub struct OutputBuffer {
    words: Vec<u64>,
    bytes: usize,
}

impl OutputBuffer {
    /// A zeroed buffer.
    pub fn new(bytes: usize) -> OutputBuffer {
        OutputBuffer { words: vec![0; bytes.div_ceil(size_of::<u64>())], bytes }
    }

    /// Its bytes.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }

    /// The bytes as a tensor, without copying.
    pub fn into_tensor(self, dtype: DType, shape: Vec<usize>) -> Result<Tensor, TensorError> {
        Tensor::new(dtype, shape, Bytes::from_owner(self))
    }
}

impl AsRef<[u8]> for OutputBuffer {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }
}
