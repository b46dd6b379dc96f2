//! One loaded Program with the contexts of its runs, for callers that need no Buckets. A run borrows the Program and owns
//! one context, so two runs never share memory; contexts that are not in use wait in a pool.

use std::sync::{Arc, Mutex};

use precast_program::{Device, DeviceContext, LoadedProgram, Program, RunError};
use precast_tensor::{DType, Tensor};

use crate::output_buffer::OutputBuffer;

/// A loaded Program and contexts that are free.
pub struct ContextPool {
    loaded: Arc<dyn LoadedProgram>,
    device: Arc<dyn Device>,
    free: Mutex<Vec<Box<dyn DeviceContext>>>,
}

impl ContextPool {
    /// A Program, loaded on this device, without contexts yet.
    pub fn new(loaded: Arc<dyn LoadedProgram>, device: Arc<dyn Device>) -> ContextPool {
        ContextPool { loaded, device, free: Mutex::default() }
    }

    /// Outputs in the Program's order.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, RunError> {
        let aligned: Vec<Tensor> = inputs.iter().map(Tensor::aligned).collect();
        let buffers: Vec<&[u8]> = aligned.iter().map(Tensor::as_bytes).collect();
        let ports = &self.loaded.program().outputs;
        let mut outputs: Vec<OutputBuffer> = ports.iter().map(|port| OutputBuffer::new(port.bytes as usize)).collect();
        let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(OutputBuffer::as_bytes_mut).collect();
        let mut context = self.take();
        let result = context.run(&*self.loaded, &buffers, &mut slices);
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

    /// The Program as its device has it.
    pub fn loaded(&self) -> &dyn LoadedProgram {
        &*self.loaded
    }

    /// The Program.
    pub fn program(&self) -> &Program {
        self.loaded.program()
    }

    /// A context that no other run uses.
    pub fn take(&self) -> Box<dyn DeviceContext> {
        let free = self.free().pop();
        free.unwrap_or_else(|| self.device.context(self.program().arena_bytes))
    }

    /// Gives a context back.
    pub fn give(&self, context: Box<dyn DeviceContext>) {
        self.free().push(context);
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<Box<dyn DeviceContext>>> {
        self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
