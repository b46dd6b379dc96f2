//! An ExecContext: all that one run in flight may change. A device context, padded copies, and the Bindings of recent
//! requests. A run owns one, so runs share nothing; a bounded number of them makes memory known ahead.

use std::sync::Arc;

use precast_program::{
    CallInputs, CallOutputs, DeviceContext, DeviceEvent, DeviceRun, DeviceSlice, DeviceStream, HostSlice, HostSliceMut,
    PadContent, RunError,
};

use crate::binding::{Binding, BoundChunk, InputPlace, OutputPlace};
use crate::device_request::{DeviceArgument, DevicePlace};
use crate::output_buffer::OutputBuffer;
use crate::request::{Argument, InputForm};

/// Bindings that a context keeps, newest first.
const BINDINGS_KEPT: usize = 8;

/// The state of one run at a time.
pub(crate) struct ExecContext {
    device: Box<dyn DeviceContext>,
    /// Which of the Session's devices that is.
    ordinal: usize,
    bindings: Vec<Arc<Binding>>,
    staging_in: OutputBuffer,
    staging_out: OutputBuffer,
    /// Empty between runs; kept for its memory.
    input_slices: Vec<&'static [u8]>,
    /// Empty between runs; kept for its memory.
    output_slices: Vec<&'static mut [u8]>,
    /// Empty between runs; kept for their memory.
    device_slices: [Vec<DeviceSlice<'static>>; 2],
    /// Empty between runs; kept for their memory.
    host_rows: (Vec<HostSlice<'static>>, Vec<HostSliceMut<'static>>),
}

impl ExecContext {
    pub(crate) fn new(device: Box<dyn DeviceContext>, ordinal: usize) -> ExecContext {
        let empty = || OutputBuffer::new(0);
        ExecContext {
            device,
            ordinal,
            bindings: Vec::with_capacity(BINDINGS_KEPT + 1),
            staging_in: empty(),
            staging_out: empty(),
            input_slices: Vec::new(),
            output_slices: Vec::new(),
            device_slices: [Vec::new(), Vec::new()],
            host_rows: (Vec::new(), Vec::new()),
        }
    }

    /// The Binding of an earlier request with inputs of these forms, which becomes the newest.
    pub(crate) fn remembered<'s>(
        &mut self,
        forms: impl Iterator<Item = InputForm<'s>> + Clone,
    ) -> Option<&Arc<Binding>> {
        let position = self.bindings.iter().position(|binding| binding.admits(forms.clone()))?;
        self.bindings[..=position].rotate_right(1);
        self.bindings.first()
    }

    /// Makes a Binding the one that runs next.
    pub(crate) fn make_newest<'s>(
        &mut self,
        binding: &Arc<Binding>,
        forms: impl Iterator<Item = InputForm<'s>> + Clone,
    ) {
        if !self.remembered(forms).is_some_and(|known| Arc::ptr_eq(known, binding)) {
            self.remember(binding);
        }
    }

    /// Remembers a Binding and makes room for its runs.
    pub(crate) fn remember(&mut self, binding: &Arc<Binding>) {
        self.bindings.retain(|old| old.epoch == binding.epoch);
        self.bindings.insert(0, binding.clone());
        self.bindings.truncate(BINDINGS_KEPT);
        self.device.reserve(binding.workspace_bytes);
        if self.device.gathers_rows() {
            self.host_rows.0.reserve(binding.chunks[0].inputs.len());
            self.host_rows.1.reserve(binding.outputs.len());
        } else {
            self.make_staging(binding);
        }
        self.input_slices.reserve(binding.chunks[0].inputs.len());
        self.output_slices.reserve(binding.outputs.len());
        self.device_slices[0].reserve(binding.chunks[0].inputs.len());
        self.device_slices[1].reserve(binding.outputs.len());
    }

    /// Makes room for padded copies.
    fn make_staging(&mut self, binding: &Binding) {
        for (staging, bytes) in
            [(&mut self.staging_in, binding.staging_in_bytes), (&mut self.staging_out, binding.staging_out_bytes)]
        {
            if staging.as_ref().len() < bytes {
                *staging = OutputBuffer::new(bytes);
            }
        }
    }

    /// Runs the newest Binding on a request of its form. Allocates nothing.
    pub(crate) fn run_newest(
        &mut self,
        arguments: &[Argument<'_>],
        outputs: &mut [&mut [u8]],
        content: PadContent,
    ) -> Result<DeviceRun, RunError> {
        // Taken out for the run, since a count of references would be shared with other runs.
        let bindings = std::mem::take(&mut self.bindings);
        let newest = bindings.first().expect("a Binding was remembered before this run");
        let result = if self.device.gathers_rows() {
            let run = |whole: Option<DeviceRun>, chunk: &BoundChunk| {
                let run = self.run_gathering(chunk, arguments, outputs, content)?;
                Ok(Some(whole.map_or(run, |whole| whole.joined(run))))
            };
            newest.chunks.iter().try_fold(None, run).map(Option::unwrap_or_default)
        } else {
            self.run_binding(newest, arguments, outputs, content)
        };
        self.bindings = bindings;
        result
    }

    fn run_binding(
        &mut self,
        binding: &Binding,
        arguments: &[Argument<'_>],
        outputs: &mut [&mut [u8]],
        content: PadContent,
    ) -> Result<DeviceRun, RunError> {
        let mut whole: Option<DeviceRun> = None;
        for chunk in &binding.chunks {
            let staging = self.staging_in.as_bytes_mut();
            for (place, argument) in chunk.inputs.iter().zip(arguments) {
                if let InputPlace::Staged { copy, start, bytes } = place {
                    copy.copy(argument.bytes, &mut staging[*start..start + bytes], content);
                }
            }
            let staged = self.staging_in.as_ref();
            let mut inputs: Vec<&[u8]> = std::mem::take(&mut self.input_slices);
            inputs.extend(chunk.inputs.iter().zip(arguments).map(|(place, argument)| match place {
                InputPlace::Caller { start, bytes } => &argument.bytes[*start..start + bytes],
                InputPlace::Staged { start, bytes, .. } => &staged[*start..start + bytes],
            }));
            let mut written: Vec<&mut [u8]> = std::mem::take(&mut self.output_slices);
            let mut rest = self.staging_out.as_bytes_mut();
            let mut at = 0;
            for (place, output) in chunk.outputs.iter().zip(outputs.iter_mut()) {
                written.push(match place {
                    OutputPlace::Caller { start, bytes } => &mut output[*start..start + bytes],
                    OutputPlace::Staged { start, bytes, .. } => {
                        // Places lie in the order of the outputs.
                        let (_, from) = rest.split_at_mut(start - at);
                        let (place, after) = from.split_at_mut(*bytes);
                        (rest, at) = (after, start + bytes);
                        place
                    }
                });
            }
            let result = self.device.run(chunk.entry.on(self.ordinal), &inputs, &mut written);
            self.input_slices = emptied_of(inputs);
            self.output_slices = emptied_of(written);
            let run = result?;
            whole = Some(whole.map_or(run, |whole| whole.joined(run)));
            let staged = self.staging_out.as_ref();
            for (place, output) in chunk.outputs.iter().zip(outputs.iter_mut()) {
                if let OutputPlace::Staged { copy: Some(copy), start, bytes } = place {
                    copy.copy(&staged[*start..start + bytes], output, PadContent::LastRow);
                }
            }
        }
        Ok(whole.unwrap_or_default())
    }

    /// Runs a chunk on a device that pads while it gathers.
    fn run_gathering(
        &mut self,
        chunk: &BoundChunk,
        arguments: &[Argument<'_>],
        outputs: &mut [&mut [u8]],
        content: PadContent,
    ) -> Result<DeviceRun, RunError> {
        let mut from: Vec<HostSlice<'_>> = std::mem::take(&mut self.host_rows.0);
        let mut to: Vec<HostSliceMut<'_>> = std::mem::take(&mut self.host_rows.1);
        from.extend(chunk.inputs.iter().zip(arguments).map(|(place, argument)| match place {
            InputPlace::Caller { start, bytes } => {
                HostSlice { bytes: &argument.bytes[*start..start + bytes], rows: None }
            }
            InputPlace::Staged { copy, .. } => HostSlice { bytes: argument.bytes, rows: Some(copy) },
        }));
        to.extend(chunk.outputs.iter().zip(outputs.iter_mut()).map(|(place, output)| match place {
            OutputPlace::Caller { start, bytes } => {
                HostSliceMut { bytes: &mut output[*start..start + bytes], rows: None, is_unused: false }
            }
            OutputPlace::Staged { copy, .. } => {
                HostSliceMut { bytes: output, rows: copy.as_ref(), is_unused: copy.is_none() }
            }
        }));
        let program = chunk.entry.on(self.ordinal);
        let inputs = CallInputs::HostRows(&from, content);
        let result = self.device.call(program, inputs, CallOutputs::HostRows(&mut to), None);
        self.host_rows = (emptied_of(from), emptied_of(to));
        result
    }

    /// Queues the newest Binding on a request of its form whose buffers are on the device, and marks its end. Rows are padded
    /// and taken out by the device. Allocates nothing.
    pub(crate) fn submit_newest(
        &mut self,
        arguments: &[DeviceArgument<'_>],
        outputs: &[DevicePlace<'_>],
        stream: Option<&dyn DeviceStream>,
    ) -> Result<(DeviceRun, Arc<dyn DeviceEvent>), RunError> {
        let bindings = std::mem::take(&mut self.bindings);
        let newest = bindings.first().expect("a Binding was remembered before this run");
        let result = newest.chunks.iter().try_fold(None, |whole: Option<DeviceRun>, chunk| {
            let run = self.submit_chunk(newest, chunk, arguments, outputs, stream)?;
            Ok(Some(whole.map_or(run, |whole| whole.joined(run))))
        });
        self.bindings = bindings;
        Ok((result?.unwrap_or_default(), self.device.completion()?))
    }

    fn submit_chunk(
        &mut self,
        binding: &Binding,
        chunk: &BoundChunk,
        arguments: &[DeviceArgument<'_>],
        outputs: &[DevicePlace<'_>],
        stream: Option<&dyn DeviceStream>,
    ) -> Result<DeviceRun, RunError> {
        let [from, to] = &mut self.device_slices;
        let (mut from, mut to): (Vec<DeviceSlice<'_>>, Vec<DeviceSlice<'_>>) =
            (std::mem::take(from), std::mem::take(to));
        from.extend(chunk.inputs.iter().zip(arguments).map(|(place, argument)| match place {
            InputPlace::Caller { start, bytes } => DeviceSlice::exact(argument.memory, argument.start + start, *bytes),
            InputPlace::Staged { copy, .. } => {
                DeviceSlice::rows(argument.memory, argument.start, argument.bytes(), copy)
            }
        }));
        let places = chunk.outputs.iter().zip(outputs).zip(&binding.outputs);
        to.extend(places.map(|((place, output), form)| match place {
            OutputPlace::Caller { start, bytes } => DeviceSlice::exact(output.memory, output.start + start, *bytes),
            OutputPlace::Staged { copy: Some(copy), .. } => {
                DeviceSlice::rows(output.memory, output.start, form.bytes, copy)
            }
            OutputPlace::Staged { copy: None, .. } => {
                DeviceSlice { is_unused: true, ..DeviceSlice::exact(output.memory, output.start, 0) }
            }
        }));
        let program = chunk.entry.on(self.ordinal);
        let result = self.device.call(program, CallInputs::Device(&from), CallOutputs::Device(&to), stream);
        self.device_slices = [emptied_of(from), emptied_of(to)];
        result
    }

    /// The device's context, which of the Session's devices that is, and the Binding that runs next.
    pub(crate) fn device_and_newest(&mut self) -> (&mut dyn DeviceContext, usize, Arc<Binding>) {
        let newest = self.bindings.first().expect("a Binding was remembered before this run");
        (&mut *self.device, self.ordinal, newest.clone())
    }

    /// A mark behind all that was queued.
    pub(crate) fn completion(&mut self) -> Result<Arc<dyn DeviceEvent>, RunError> {
        self.device.completion()
    }

    /// Bytes of workspace and padded copies.
    pub(crate) fn bytes(&self) -> u64 {
        let staging = self.staging_in.as_ref().len() + self.staging_out.as_ref().len();
        self.device.workspace_bytes() + staging as u64
    }
}

/// The memory of a vector without its elements, for elements that differ in lifetimes alone. Collecting a mapped vector of
/// elements of the same size reuses its memory; a test counts that nothing is allocated.
fn emptied_of<From, To>(mut slices: Vec<From>) -> Vec<To> {
    slices.clear();
    slices.into_iter().map(|_| -> To { unreachable!("the slices were cleared") }).collect()
}
