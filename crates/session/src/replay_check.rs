//! Whether replaying a Program gives the same bytes as launching its steps one by one: on the same inputs, with everything
//! that the runs share, and the outputs, filled with a pattern that shows before each run.

use precast_program::{DeviceContext, DeviceRun, LaunchPath, LoadedProgram, Port, RunError};
use precast_tensor::{DType, Tensor};

use crate::output_buffer::OutputBuffer;

/// Runs after which a capture that has not come will not.
const RUNS_MAX: usize = 8;
/// Replays that are compared: the first may find what the capture left behind.
const REPLAYS: usize = 2;
/// What outputs hold before a run: not a number in any float type.
const POISON: u8 = 0xff;

/// What a Program gave, launched both ways.
#[derive(Clone, Debug)]
pub struct ReplayCheck {
    /// How the last run was carried out: a replay, or what keeps the Program from being replayed.
    pub last: DeviceRun,
    /// Runs from a capture that were compared, that of the capture itself among them.
    pub compared: usize,
    /// Each output, by name: step by step, and by the first run from a capture that differs or else by the last one.
    pub outputs: Vec<(String, Tensor, Tensor)>,
}

impl ReplayCheck {
    /// Whether all bytes were equal in all runs.
    pub fn is_equal(&self) -> bool {
        self.outputs.iter().all(|(_, eager, replayed)| eager.as_bytes() == replayed.as_bytes())
    }
}

/// Runs a Program step by step, then until it was replayed, and compares. The context captures afterwards.
pub fn check_replay(
    context: &mut dyn DeviceContext,
    loaded: &dyn LoadedProgram,
    inputs: &[&[u8]],
) -> Result<ReplayCheck, RunError> {
    let ports = &loaded.program().outputs;
    context.set_capturing(false);
    let eager = run_poisoned(context, loaded, inputs).map(|(outputs, _)| outputs);
    context.set_capturing(true);
    let eager = eager?;
    let (mut replays, mut compared, mut replayed, mut last) = (0, 0, eager.clone(), DeviceRun::default());
    for _ in 0..RUNS_MAX {
        let (outputs, run) = run_poisoned(context, loaded, inputs)?;
        last = run;
        match run.launch {
            LaunchPath::Steps(_) => continue,
            LaunchPath::Captured => {}
            LaunchPath::Replayed => replays += 1,
        }
        compared += 1;
        replayed = outputs;
        if replayed != eager || replays == REPLAYS {
            break;
        }
    }
    let outputs = ports.iter().zip(eager.into_iter().zip(replayed));
    let outputs =
        outputs.map(|(port, (eager, replayed))| Ok((port.name.clone(), tensor(port, eager)?, tensor(port, replayed)?)));
    Ok(ReplayCheck { last, compared, outputs: outputs.collect::<Result<_, RunError>>()? })
}

fn run_poisoned(
    context: &mut dyn DeviceContext,
    loaded: &dyn LoadedProgram,
    inputs: &[&[u8]],
) -> Result<(Vec<Vec<u8>>, DeviceRun), RunError> {
    let mut outputs: Vec<OutputBuffer> =
        loaded.program().outputs.iter().map(|port| OutputBuffer::new(port.bytes as usize)).collect();
    outputs.iter_mut().for_each(|output| output.as_bytes_mut().fill(POISON));
    context.poison()?;
    let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(OutputBuffer::as_bytes_mut).collect();
    let run = context.run(loaded, inputs, &mut slices)?;
    Ok((outputs.iter().map(|output| output.as_ref().to_vec()).collect(), run))
}

fn tensor(port: &Port, bytes: Vec<u8>) -> Result<Tensor, RunError> {
    let unknown = || RunError::Buffer(format!("output '{}' has the unknown type {}", port.name, port.dtype));
    let dtype = DType::from_name(&port.dtype).ok_or_else(unknown)?;
    let shape: Vec<usize> = port.shape.iter().map(|&size| size as usize).collect();
    let tensor = Tensor::new(dtype, shape, bytes.into()).map_err(|error| RunError::Buffer(error.to_string()))?;
    Ok(tensor.aligned())
}
