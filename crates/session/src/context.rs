//! A loaded Program with the contexts of its runs. A run borrows the Program and owns one context, so two runs never share
//! memory; contexts that are not in use wait in a pool.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use precast_program::{DeviceContext, LoadedProgram, Program, RunError};
use precast_tensor::{DType, Tensor, TensorError};

/// A loaded Program and contexts that are free.
pub struct ContextPool {
    loaded: Arc<dyn LoadedProgram>,
    free: Mutex<Vec<Box<dyn DeviceContext>>>,
}

impl ContextPool {
    /// A Program without contexts yet.
    pub fn new(loaded: Arc<dyn LoadedProgram>) -> ContextPool {
        ContextPool { loaded, free: Mutex::default() }
    }

    /// Outputs in the Program's order.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, RunError> {
        let aligned: Vec<Tensor> = inputs.iter().map(Tensor::aligned).collect();
        let buffers: Vec<&[u8]> = aligned.iter().map(Tensor::as_bytes).collect();
        let ports = &self.loaded.program().outputs;
        let mut outputs: Vec<OutputBuffer> = ports.iter().map(|port| OutputBuffer::new(port.bytes as usize)).collect();
        let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(OutputBuffer::as_bytes_mut).collect();
        let mut context = self.take();
        let result = context.run(&buffers, &mut slices);
        self.give(context);
        result?;
        let tensors = ports.iter().zip(outputs).map(|(port, output)| {
            let dtype = DType::from_name(&port.dtype).ok_or_else(|| {
                RunError::Buffer(format!("output '{}' has the unknown type {}", port.name, port.dtype))
            })?;
            let shape: Vec<usize> = port.shape.iter().map(|&size| size as usize).collect();
            output.into_tensor(dtype, shape).map_err(|error| RunError::Buffer(error.to_string()))
        });
        tensors.collect()
    }

    /// The Program.
    pub fn program(&self) -> &Program {
        self.loaded.program()
    }

    /// A context that no other run uses.
    pub fn take(&self) -> Box<dyn DeviceContext> {
        let free = self.free().pop();
        free.unwrap_or_else(|| self.loaded.context())
    }

    /// Gives a context back.
    pub fn give(&self, context: Box<dyn DeviceContext>) {
        self.free().push(context);
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<Box<dyn DeviceContext>>> {
        self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

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
