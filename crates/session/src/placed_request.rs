//! Requests whose inputs and outputs lie on the host and on a device, such as a decoder's step: few numbers come and go, caches
//! stay where they are. They are waited for, and run on one Program of exactly their sizes.

use precast_program::{DeviceSlice, PlacedInput, PlacedOutput};
use precast_tensor::DType;

use crate::binding::{Binding, InputPlace, OutputPlace};
use crate::device_request::DevicePlace;
use crate::error::SessionError;
use crate::exec_context::ExecContext;
use crate::report::{Reason, RunReport, Tier};
use crate::request::{Argument, InputForm, bytes_of};
use crate::session::{Inner, Prepared, Residence, Session};

/// One input of a request.
#[derive(Clone, Copy)]
pub struct PlacedArgument<'a> {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: &'a [usize],
    /// Where its elements lie, in row-major order.
    pub place: ArgumentPlace<'a>,
}

/// Where an input of a request lies.
#[derive(Clone, Copy)]
pub enum ArgumentPlace<'a> {
    /// On the host.
    Host(&'a [u8]),
    /// On the device.
    Device(DevicePlace<'a>),
}

/// Where an output of a request goes.
pub enum ResultPlace<'a> {
    /// To the host.
    Host(&'a mut [u8]),
    /// To the device.
    Device(DevicePlace<'a>),
}

impl<'a> From<&PlacedArgument<'a>> for InputForm<'a> {
    fn from(argument: &PlacedArgument<'a>) -> InputForm<'a> {
        let PlacedArgument { dtype, shape, .. } = *argument;
        InputForm { dtype, shape, bytes: bytes_of(dtype, shape) }
    }
}

impl Session {
    /// Runs a request whose buffers lie on the host and on the Session's first device. Outputs on the host are there when this
    /// returns, and those on the device are written by then. An output that the Program changes in place may be given the
    /// memory of its input.
    pub fn run_placed(
        &self,
        inputs: &[PlacedArgument<'_>],
        outputs: &mut [ResultPlace<'_>],
    ) -> Result<RunReport, SessionError> {
        let report = self.inner.run_placed(inputs, outputs);
        match &report {
            Ok(report) => self.inner.count(report),
            Err(_) => self.inner.counters.count_error(),
        }
        report
    }

    /// Compiles or loads what a request with inputs of these forms runs on.
    pub fn prepare_placed(&self, inputs: &[PlacedArgument<'_>]) -> Result<(), SessionError> {
        self.inner.prepare_for(&unread(inputs), Residence::Device).map(|_| ())
    }
}

/// Inputs without their bytes.
fn unread<'a>(inputs: &[PlacedArgument<'a>]) -> Vec<Argument<'a>> {
    let argument = |input: &PlacedArgument<'a>| Argument { dtype: input.dtype, shape: input.shape, bytes: &[] };
    inputs.iter().map(argument).collect()
}

impl Inner {
    fn run_placed(
        &self,
        inputs: &[PlacedArgument<'_>],
        outputs: &mut [ResultPlace<'_>],
    ) -> Result<RunReport, SessionError> {
        let forms = || inputs.iter().map(InputForm::from);
        let mut taken = self.take_for(forms(), Some(0))?;
        let remembered = taken.get().remembered(forms());
        let report = match remembered.filter(|known| known.epoch == self.programs.epoch() && known.missing.is_empty()) {
            Some(binding) => binding.report,
            None => {
                drop(taken);
                let Prepared::Bound(binding, tier, origin, slow) =
                    self.prepare_for(&unread(inputs), Residence::Device)?
                else {
                    return Err(SessionError::Request("a request without rows has nothing to run on".to_string()));
                };
                taken = self.take_for(forms(), Some(0))?;
                taken.get().make_newest(&binding, forms());
                let reason = if tier == Tier::Fast { Reason::FirstOnContext } else { slow };
                RunReport { tier, origin, reason, ..binding.report }
            }
        };
        let run = taken.get().run_newest_placed(inputs, outputs);
        let device = run.inspect_err(|error| {
            if let SessionError::Run(error) = error {
                taken.discard_after(error);
            }
        })?;
        Ok(RunReport { device, ..report })
    }
}

impl ExecContext {
    /// Runs the newest Binding on a request of its form.
    fn run_newest_placed(
        &mut self,
        arguments: &[PlacedArgument<'_>],
        outputs: &mut [ResultPlace<'_>],
    ) -> Result<precast_program::DeviceRun, SessionError> {
        let (device, ordinal, binding) = self.device_and_newest();
        let inexact = || SessionError::Request("buffers of both memories need a Program of exactly their sizes".into());
        let [chunk] = &binding.chunks[..] else { return Err(inexact()) };
        check_places(&binding, arguments, outputs)?;
        let mut from = Vec::with_capacity(arguments.len());
        for (place, argument) in chunk.inputs.iter().zip(arguments) {
            let InputPlace::Caller { start, bytes } = *place else { return Err(inexact()) };
            from.push(match argument.place {
                ArgumentPlace::Host(host) => PlacedInput::Host(&host[start..start + bytes]),
                ArgumentPlace::Device(own) => {
                    PlacedInput::Device(DeviceSlice::exact(own.memory, own.start + start, bytes))
                }
            });
        }
        let is_left = outputs.iter().all(|output| matches!(output, ResultPlace::Device(_)));
        let mut to = Vec::with_capacity(outputs.len());
        for (place, output) in chunk.outputs.iter().zip(outputs) {
            let OutputPlace::Caller { start, bytes } = *place else { return Err(inexact()) };
            to.push(match output {
                ResultPlace::Host(host) => PlacedOutput::Host(&mut host[start..start + bytes]),
                ResultPlace::Device(own) => {
                    PlacedOutput::Device(DeviceSlice::exact(own.memory, own.start + start, bytes))
                }
            });
        }
        let (from, to) = (precast_program::CallInputs::Placed(&from), precast_program::CallOutputs::Placed(&mut to));
        let run = device.call(chunk.entry.on(ordinal), from, to, None)?;
        // Reading a result waits for all of them. Where none is read, the next request may be another Session's, whose work
        // is in no order with this one's.
        if is_left {
            device.completion()?.wait()?;
        }
        Ok(run)
    }
}

/// Every buffer must hold what its shape says.
fn check_places(
    binding: &Binding,
    arguments: &[PlacedArgument<'_>],
    outputs: &[ResultPlace<'_>],
) -> Result<(), SessionError> {
    if outputs.len() != binding.outputs.len() {
        let (found, expected) = (outputs.len(), binding.outputs.len());
        return Err(SessionError::Request(format!("{found} outputs are given where {expected} are expected")));
    }
    let room = |place: &DevicePlace<'_>| place.memory.bytes().saturating_sub(place.start);
    let inputs = arguments.iter().map(|argument| {
        let held = match &argument.place {
            ArgumentPlace::Host(bytes) => bytes.len(),
            ArgumentPlace::Device(place) => room(place),
        };
        ("input", bytes_of(argument.dtype, argument.shape), held)
    });
    let results = outputs.iter().zip(&binding.outputs).map(|(output, form)| {
        let held = match output {
            ResultPlace::Host(bytes) => bytes.len(),
            ResultPlace::Device(place) => room(place),
        };
        ("output", form.bytes, held)
    });
    match inputs.chain(results).enumerate().find(|(_, (_, needed, held))| needed > held) {
        None => Ok(()),
        Some((position, (what, needed, held))) => {
            let position = if what == "input" { position } else { position - arguments.len() };
            Err(SessionError::Request(format!("{what} {position} needs {needed} bytes; its memory has {held}")))
        }
    }
}
