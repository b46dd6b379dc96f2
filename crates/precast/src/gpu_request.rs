//! Requests of a Session on a GPU whose inputs and outputs lie there and on the host: what lies there is read and written in
//! place, everything else is copied once.

use std::sync::Arc;

use precast_program::{DeviceEvent, DeviceMemory};
use precast_session::{DeviceArgument, DevicePlace, RunReport, Session};
use precast_tensor::DType;

use crate::error::Error;
use crate::gpu_memory::{Gpu, GpuBytes};

/// An input of a request.
#[derive(Clone, Copy)]
pub struct GpuInput<'a> {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: &'a [usize],
    /// Where its elements lie, in row-major order.
    pub memory: InputMemory<'a>,
}

/// Where an input lies.
#[derive(Clone, Copy)]
pub enum InputMemory<'a> {
    /// On the host.
    Host(&'a [u8]),
    /// On the GPU.
    Gpu(&'a GpuBytes),
}

/// Where an output goes.
pub enum OutputMemory<'a> {
    /// To the host.
    Host(&'a mut [u8]),
    /// To the GPU.
    Gpu(&'a GpuBytes),
}

/// Runs a request of a Session on this GPU. Outputs are there when this returns, unless `waits` is false and everything lies on
/// the GPU: then they are behind what its default stream is given from now on, and their memory knows when they are there.
pub fn run_on_gpu(
    session: &Session,
    gpu: &Arc<Gpu>,
    inputs: &[GpuInput<'_>],
    outputs: &mut [OutputMemory<'_>],
    waits: bool,
) -> Result<RunReport, Error> {
    let mut copies = Vec::with_capacity(inputs.len() + outputs.len());
    for input in inputs {
        copies.push(match input.memory {
            InputMemory::Gpu(_) => None,
            InputMemory::Host(bytes) => Some(uploaded(gpu, bytes)?),
        });
    }
    for output in outputs.iter() {
        copies.push(match output {
            OutputMemory::Gpu(_) => None,
            OutputMemory::Host(bytes) => Some(gpu.allocate(bytes.len())?),
        });
    }
    let (copies_in, copies_out) = copies.split_at(inputs.len());
    let arguments: Vec<DeviceArgument<'_>> = inputs
        .iter()
        .zip(copies_in)
        .map(|(input, copy)| {
            let own = match input.memory {
                InputMemory::Gpu(memory) => Some(memory),
                InputMemory::Host(_) => None,
            };
            DeviceArgument { dtype: input.dtype, shape: input.shape, memory: either(own, copy), start: 0 }
        })
        .collect();
    let places: Vec<DevicePlace<'_>> = outputs
        .iter()
        .zip(copies_out)
        .map(|(output, copy)| {
            let own = match output {
                OutputMemory::Gpu(memory) => Some(*memory),
                OutputMemory::Host(_) => None,
            };
            DevicePlace { memory: either(own, copy), start: 0 }
        })
        .collect();
    let waits = waits || copies.iter().any(Option::is_some);
    let (report, end) = session.submit_on_device(&arguments, &places, Some(gpu.default_stream(waits)))?;
    if !waits {
        note_use(inputs, outputs, &end);
        return Ok(report);
    }
    end.wait()?;
    for (output, copy) in outputs.iter_mut().zip(copies_out) {
        if let (OutputMemory::Host(bytes), Some(copy)) = (output, copy) {
            copy.read(bytes)?;
        }
    }
    Ok(report)
}

/// The caller's memory, or the copy that was made of what is not on the GPU.
fn either<'a>(own: Option<&'a GpuBytes>, copy: &'a Option<GpuBytes>) -> &'a dyn DeviceMemory {
    own.or(copy.as_ref()).expect("what is not on the GPU has a copy there").memory()
}

fn uploaded(gpu: &Arc<Gpu>, bytes: &[u8]) -> Result<GpuBytes, Error> {
    let memory = gpu.allocate(bytes.len())?;
    memory.write(bytes)?;
    Ok(memory)
}

/// Notes when everything that a run reads and writes is free again.
fn note_use(inputs: &[GpuInput<'_>], outputs: &[OutputMemory<'_>], end: &Arc<dyn DeviceEvent>) {
    for input in inputs {
        if let InputMemory::Gpu(memory) = input.memory {
            memory.use_until(end);
        }
    }
    for output in outputs {
        if let OutputMemory::Gpu(memory) = output {
            memory.use_until(end);
        }
    }
}
