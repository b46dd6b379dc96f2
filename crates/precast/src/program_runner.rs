//! Runs a Program file: no model and no compiler are needed.

use std::path::Path;
use std::sync::Arc;

use precast_cpu::CpuDevice;
use precast_cpu::lower::REFERENCE;
use precast_driver::Vendor;
use precast_program::{Device, Port, Program};
use precast_session::ContextPool;
use precast_tensor::{DType, Tensor};

use crate::device_name::DeviceKind;
use crate::error::Error;
use crate::model::InputInfo;
use crate::open_device::open_gpu_device;
use crate::program_file::load_program;
use crate::runner::{Named, Ready, RunnerOptions};

/// A Program loaded from its file.
pub struct ProgramRunner {
    part: Arc<ContextPool>,
}

impl ProgramRunner {
    /// Loads a Program file for runs on the options' device, on their threads where that is the CPU.
    pub fn open(path: &Path, options: &RunnerOptions) -> Result<ProgramRunner, Error> {
        let RunnerOptions { device, threads, captures, .. } = *options;
        let device: Arc<dyn Device> = match device.kind {
            DeviceKind::Cpu => Arc::new(CpuDevice::new(threads)),
            DeviceKind::Cuda => Arc::new(open_gpu_device(Vendor::Cuda, device, captures)?),
            DeviceKind::Hip => Arc::new(open_gpu_device(Vendor::Hip, device, captures)?),
        };
        let loaded = load_program(path, &*device)?;
        Ok(ProgramRunner { part: Arc::new(ContextPool::new(loaded, device)) })
    }

    /// The Program.
    pub fn program(&self) -> &Program {
        self.part.program()
    }

    /// Inputs that a request must give, in order.
    pub fn inputs(&self) -> Result<Vec<InputInfo>, Error> {
        self.program().inputs.iter().map(port_info).collect()
    }

    /// Outputs for these inputs, which may come in any order.
    pub fn run(&self, inputs: &[(String, Tensor)]) -> Result<Named, Error> {
        let outputs = self.part.run(&self.in_order(inputs)?)?;
        Ok(self.program().outputs.iter().map(|port| port.name.clone()).zip(outputs).collect())
    }

    /// The Program with buffers for these inputs: repeated runs cost nothing but the model.
    pub fn ready(&self, inputs: &[(String, Tensor)]) -> Result<Ready, Error> {
        Ok(Ready::new(self.part.clone(), self.in_order(inputs)?))
    }

    /// Every input is given once, nothing else is, and Types are equal.
    fn in_order(&self, inputs: &[(String, Tensor)]) -> Result<Vec<Tensor>, Error> {
        let ports = &self.program().inputs;
        if let Some((name, _)) = inputs.iter().find(|(name, _)| !ports.iter().any(|port| port.name == *name)) {
            return Err(Error::Request(format!("the Program has no input '{name}'")));
        }
        let find = |port: &Port| {
            let mut given = inputs.iter().filter(|(name, _)| *name == port.name);
            let (Some((_, tensor)), None) = (given.next(), given.next()) else {
                return Err(Error::Request(format!("input '{}' must be given once", port.name)));
            };
            let shape = port.shape.iter().map(|&size| size as usize);
            if tensor.dtype().name() != port.dtype || !tensor.shape().iter().copied().eq(shape) {
                return Err(Error::Request(format!(
                    "input '{}' is {}; the Program was compiled for {}{:?}",
                    port.name,
                    tensor.type_(),
                    port.dtype,
                    port.shape
                )));
            }
            Ok(tensor.aligned())
        };
        ports.iter().map(find).collect()
    }
}

/// Whether a kernel of that name is reference evaluation, which is right but slow.
pub fn is_by_reference(kernel: &str) -> bool {
    kernel.split('.').next() == Some(REFERENCE)
}

fn port_info(port: &Port) -> Result<InputInfo, Error> {
    let unknown = || Error::Request(format!("input '{}' has the unknown type {}", port.name, port.dtype));
    let dims = port.shape.iter().map(|&size| i64::try_from(size).map(Into::into)).collect::<Result<_, _>>();
    Ok(InputInfo {
        name: port.name.clone(),
        dtype: DType::from_name(&port.dtype).ok_or_else(unknown)?,
        dims: Some(dims.map_err(|_| unknown())?),
    })
}
