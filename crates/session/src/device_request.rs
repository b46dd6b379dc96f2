//! Requests whose inputs and outputs lie on a device. They are queued there and not waited for: rows are padded and taken out
//! by the device, and the caller's own stream is joined at both ends. Tiers, reports and errors are those of other requests.

use std::sync::Arc;

use precast_program::{DeviceEvent, DeviceMemory, DeviceStream, PadContent};
use precast_tensor::DType;

use crate::binding::Binding;
use crate::contexts::Taken;
use crate::error::SessionError;
use crate::report::{Reason, RunReport, Tier};
use crate::request::{Argument, InputForm, bytes_of};
use crate::session::{Inner, Prepared, Residence, Session};

/// One input of a request, on a device.
#[derive(Clone, Copy)]
pub struct DeviceArgument<'a> {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: &'a [usize],
    /// What its elements lie in, in row-major order.
    pub memory: &'a dyn DeviceMemory,
    /// Where they begin.
    pub start: usize,
}

impl DeviceArgument<'_> {
    /// Its size; the largest number where that overflows, which no memory has.
    pub(crate) fn bytes(&self) -> usize {
        bytes_of(self.dtype, self.shape)
    }
}

impl<'a> From<&DeviceArgument<'a>> for InputForm<'a> {
    fn from(argument: &DeviceArgument<'a>) -> InputForm<'a> {
        InputForm { dtype: argument.dtype, shape: argument.shape, bytes: argument.bytes() }
    }
}

/// Where an output of a request goes, on a device.
#[derive(Clone, Copy)]
pub struct DevicePlace<'a> {
    /// What it lies in.
    pub memory: &'a dyn DeviceMemory,
    /// Where it begins.
    pub start: usize,
}

impl Session {
    /// Queues a request on the device that its buffers lie on. The report is there at once; the outputs are once the mark was
    /// passed, and for a stream that is given, in its order. The buffers must not be written, nor outputs be read, before
    /// that. What a context runs next is queued behind it. A repeated request allocates nothing.
    pub fn submit_on_device(
        &self,
        inputs: &[DeviceArgument<'_>],
        outputs: &[DevicePlace<'_>],
        stream: Option<&dyn DeviceStream>,
    ) -> Result<(RunReport, Arc<dyn DeviceEvent>), SessionError> {
        let answer = self.inner.submit_on_device(inputs, outputs, stream);
        match &answer {
            Ok((report, _)) => self.inner.count(report),
            Err(_) => self.inner.counters.count_error(),
        }
        answer
    }
}

impl Inner {
    fn submit_on_device(
        &self,
        arguments: &[DeviceArgument<'_>],
        outputs: &[DevicePlace<'_>],
        stream: Option<&dyn DeviceStream>,
    ) -> Result<(RunReport, Arc<dyn DeviceEvent>), SessionError> {
        if self.options.pad_content != PadContent::LastRow {
            let reason = "rows that a device adds are copies of the last row; other contents are for host memory";
            return Err(SessionError::Options(reason.to_string()));
        }
        let device = self.device_of(arguments, outputs)?;
        let forms = || arguments.iter().map(InputForm::from);
        let mut taken = self.take_for(forms(), Some(device))?;
        let mut reason = Reason::FirstOnContext;
        if let Some(binding) = taken.get().remembered(forms()) {
            if binding.epoch == self.programs.epoch() && binding.missing.is_empty() {
                let report = binding.report;
                check_places(binding, arguments, outputs)?;
                return self.submit_taken(&mut taken, arguments, outputs, stream, report);
            }
            reason = Reason::Epoch;
        }
        drop(taken);
        let unread: Vec<Argument<'_>> = arguments
            .iter()
            .map(|argument| Argument { dtype: argument.dtype, shape: argument.shape, bytes: &[] })
            .collect();
        match self.prepare_for(&unread, Residence::Device)? {
            // Only a request without rows is answered by no Program here.
            Prepared::Answered(_, report) => {
                let mut taken = self.take_for(forms(), Some(device))?;
                Ok((report, taken.get().completion()?))
            }
            Prepared::Bound(binding, tier, origin, slow) => {
                check_places(&binding, arguments, outputs)?;
                let mut taken = self.take_for(forms(), Some(device))?;
                taken.get().make_newest(&binding, forms());
                let reason = if tier == Tier::Fast { reason } else { slow };
                let report = RunReport { tier, origin, reason, ..binding.report };
                self.submit_taken(&mut taken, arguments, outputs, stream, report)
            }
        }
    }

    fn submit_taken(
        &self,
        taken: &mut Taken<'_>,
        arguments: &[DeviceArgument<'_>],
        outputs: &[DevicePlace<'_>],
        stream: Option<&dyn DeviceStream>,
        report: RunReport,
    ) -> Result<(RunReport, Arc<dyn DeviceEvent>), SessionError> {
        let result = taken.get().submit_newest(arguments, outputs, stream);
        let (device, end) = result.inspect_err(|error| taken.discard_after(error))?;
        Ok((RunReport { device, ..report }, end))
    }

    /// The one device that all buffers lie on.
    fn device_of(&self, arguments: &[DeviceArgument<'_>], outputs: &[DevicePlace<'_>]) -> Result<usize, SessionError> {
        let memories = || {
            let inputs = arguments.iter().map(|argument| argument.memory);
            inputs.chain(outputs.iter().map(|output| output.memory))
        };
        let is_of_all = |&device: &usize| memories().all(|memory| self.devices[device].owns(memory));
        (0..self.devices.len()).find(is_of_all).ok_or_else(|| {
            let count = self.devices.len();
            SessionError::Request(format!("the buffers do not all lie on one of the Session's {count} devices"))
        })
    }
}

/// Every buffer must hold what its shape says.
fn check_places(
    binding: &Binding,
    arguments: &[DeviceArgument<'_>],
    outputs: &[DevicePlace<'_>],
) -> Result<(), SessionError> {
    if outputs.len() != binding.outputs.len() {
        let (found, expected) = (outputs.len(), binding.outputs.len());
        return Err(SessionError::Request(format!("{found} outputs are given where {expected} are expected")));
    }
    let inputs = arguments.iter().map(|argument| ("input", argument.memory, argument.start, argument.bytes()));
    let places = outputs.iter().zip(&binding.outputs);
    let places = places.map(|(place, form)| ("output", place.memory, place.start, form.bytes));
    for (position, (what, memory, start, bytes)) in inputs.chain(places).enumerate() {
        if start.checked_add(bytes).is_none_or(|end| end > memory.bytes()) {
            let position = if what == "input" { position } else { position - arguments.len() };
            return Err(SessionError::Request(format!(
                "{what} {position} needs {bytes} bytes from {start} on; its memory has {}",
                memory.bytes()
            )));
        }
    }
    Ok(())
}
