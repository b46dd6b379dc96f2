//! A Binding: what requests of one form run on. It says which Programs run, which bytes of the caller each reads or
//! writes in place, and which go through padded copies. Immutable; it holds no address.

use std::sync::Arc;

use precast_program::{AxisSpan, BoxCopy, Bucket, DeviceRun, Port};
use precast_tensor::{Bindings, DType, Dim, Tensor};

use crate::error::SessionError;
use crate::interface::Interface;
use crate::ladders::{Ladders, Layout};
use crate::programs::Entry;
use crate::report::{Chunks, Fit, Origin, Path, Reason, RunReport, Tier};
use crate::request::{Argument, InputForm, Unifier, bytes_of};

/// Places in the padded copies begin at multiples of this.
const STAGING_ALIGN: usize = 64;

/// What requests of one form run on.
#[derive(Debug)]
pub(crate) struct Binding {
    /// State of the Session's Programs that it was made from.
    pub(crate) epoch: u64,
    /// Element type, number of axes and bytes of every input.
    inputs: Vec<(DType, usize, usize)>,
    /// Sizes of all inputs, one after another.
    shapes: Vec<usize>,
    pub(crate) chunks: Vec<BoundChunk>,
    pub(crate) outputs: Vec<OutputForm>,
    pub(crate) staging_in_bytes: usize,
    pub(crate) staging_out_bytes: usize,
    pub(crate) workspace_bytes: u64,
    /// The report of an ultra-fast run.
    pub(crate) report: RunReport,
    /// Buckets that would have been taken had they been loaded.
    pub(crate) missing: Vec<Bucket>,
}

/// An output as the caller gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputForm {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: usize,
}

/// One run of one Program.
#[derive(Debug)]
pub(crate) struct BoundChunk {
    pub(crate) entry: Arc<Entry>,
    pub(crate) inputs: Vec<InputPlace>,
    pub(crate) outputs: Vec<OutputPlace>,
}

/// Where a Program reads an input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InputPlace {
    /// In the caller's bytes.
    Caller { start: usize, bytes: usize },
    /// In a padded copy.
    Staged { copy: BoxCopy, start: usize, bytes: usize },
}

/// Where a Program writes an output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OutputPlace {
    /// In the caller's bytes.
    Caller { start: usize, bytes: usize },
    /// In a buffer of the context, from which real rows are copied; none are where an earlier chunk wrote the output.
    Staged { copy: Option<BoxCopy>, start: usize, bytes: usize },
}

/// What a Binding is made from.
pub(crate) struct Parts<'a> {
    pub(crate) interface: &'a Interface,
    pub(crate) unifier: &'a Unifier,
    pub(crate) ladders: &'a Ladders,
    pub(crate) values: &'a [i64],
    pub(crate) layout: &'a Layout,
    /// One entry a chunk.
    pub(crate) entries: Vec<Arc<Entry>>,
    pub(crate) epoch: u64,
    pub(crate) is_cost_estimated: bool,
    pub(crate) missing: &'a [Bucket],
}

impl Binding {
    /// Lays out the copies of a request.
    pub(crate) fn new(parts: Parts<'_>, arguments: &[Argument<'_>]) -> Result<Binding, SessionError> {
        let outputs = output_forms(&parts)?;
        let mut chunks = Vec::new();
        let (mut staging_in_bytes, mut staging_out_bytes) = (0, 0);
        let mut start = 0;
        for (position, entry) in parts.entries.iter().enumerate() {
            let chunk = parts.layout.chunks[position];
            let frame = Frame::new(&parts, start, chunk.rows, chunk.bucket);
            let (mut in_bytes, mut out_bytes) = (0, 0);
            let program = entry.program();
            let inputs = program.inputs.iter().enumerate().map(|(input, port)| {
                let copy = frame.input_copy(input, arguments[input].shape, element_bytes(port)?);
                Ok(match copy.as_one_run() {
                    Some((start, 0, bytes)) if bytes as u64 == port.bytes => InputPlace::Caller { start, bytes },
                    _ => InputPlace::Staged { copy, start: take(&mut in_bytes, port), bytes: port.bytes as usize },
                })
            });
            let inputs = inputs.collect::<Result<Vec<InputPlace>, SessionError>>()?;
            let written = program.outputs.iter().enumerate().map(|(output, port)| {
                if position > 0 && !frame.has_rows(output) {
                    return Ok(OutputPlace::Staged {
                        copy: None,
                        start: take(&mut out_bytes, port),
                        bytes: port.bytes as usize,
                    });
                }
                let copy = frame.output_copy(output, port, &outputs[output], element_bytes(port)?);
                Ok(match copy.as_one_run() {
                    Some((0, start, bytes)) if bytes as u64 == port.bytes => OutputPlace::Caller { start, bytes },
                    _ => OutputPlace::Staged {
                        copy: Some(copy),
                        start: take(&mut out_bytes, port),
                        bytes: port.bytes as usize,
                    },
                })
            });
            let written = written.collect::<Result<Vec<OutputPlace>, SessionError>>()?;
            chunks.push(BoundChunk { entry: entry.clone(), inputs, outputs: written });
            staging_in_bytes = staging_in_bytes.max(in_bytes);
            staging_out_bytes = staging_out_bytes.max(out_bytes);
            start += chunk.rows;
        }
        let copied_bytes = chunks.iter().map(BoundChunk::copied_bytes).sum();
        let report = RunReport {
            tier: Tier::UltraFast,
            path: Path::Launch,
            fit: if parts.ladders.primary().is_some() { parts.layout.fit } else { Fit::Exact },
            origin: Origin::Warm,
            reason: Reason::None,
            chunks: Chunks::new(parts.layout.chunks.iter().copied()),
            is_cost_estimated: parts.is_cost_estimated,
            copied_bytes,
            device: DeviceRun::default(),
        };
        Ok(Binding {
            epoch: parts.epoch,
            inputs: arguments
                .iter()
                .map(|Argument { dtype, shape, .. }| (*dtype, shape.len(), bytes_of(*dtype, shape)))
                .collect(),
            shapes: arguments.iter().flat_map(|argument| argument.shape.iter().copied()).collect(),
            workspace_bytes: chunks.iter().map(|chunk| chunk.entry.program().arena_bytes).max().unwrap_or(0),
            chunks,
            outputs,
            staging_in_bytes,
            staging_out_bytes,
            report,
            missing: parts.missing.to_vec(),
        })
    }

    /// Whether a request has the form that this Binding was made for: the same element type and sizes of every input, and the
    /// bytes that they need.
    pub(crate) fn admits<'s>(&self, forms: impl Iterator<Item = InputForm<'s>>) -> bool {
        let (mut inputs, mut rest) = (self.inputs.iter(), &self.shapes[..]);
        for InputForm { dtype, shape, bytes } in forms {
            if inputs.next() != Some(&(dtype, shape.len(), bytes)) {
                return false;
            }
            let (own, after) = rest.split_at(shape.len());
            if own != shape {
                return false;
            }
            rest = after;
        }
        inputs.next().is_none()
    }

    /// Zeroed tensors for the outputs of a run.
    pub(crate) fn output_buffers(&self) -> Vec<crate::OutputBuffer> {
        self.outputs.iter().map(|output| crate::OutputBuffer::new(output.bytes)).collect()
    }

    /// Output buffers as tensors.
    pub(crate) fn tensors(&self, buffers: Vec<crate::OutputBuffer>) -> Result<Vec<Tensor>, SessionError> {
        let tensors = self.outputs.iter().zip(buffers);
        tensors.map(|(form, buffer)| Ok(buffer.into_tensor(form.dtype, form.shape.clone())?)).collect()
    }
}

impl BoundChunk {
    fn copied_bytes(&self) -> u64 {
        let inputs = self.inputs.iter().map(|place| match place {
            InputPlace::Caller { .. } => 0,
            InputPlace::Staged { bytes, .. } => *bytes as u64,
        });
        let outputs = self.outputs.iter().map(|place| match place {
            OutputPlace::Staged { copy: Some(_), bytes, .. } => *bytes as u64,
            OutputPlace::Staged { copy: None, .. } | OutputPlace::Caller { .. } => 0,
        });
        inputs.chain(outputs).sum()
    }
}

/// One chunk of a request: which rows of which dims it has, and in boxes of which extents they lie.
struct Frame<'a> {
    interface: &'a Interface,
    primary: Option<usize>,
    /// Values of the request, and first row and rows of this chunk along the primary dim.
    values: &'a [i64],
    start: i64,
    rows: i64,
    /// Extents of the Bucket.
    extents: Vec<i64>,
    bindings: Bindings,
}

impl<'a> Frame<'a> {
    fn new(parts: &Parts<'a>, start: i64, rows: i64, bucket: i64) -> Frame<'a> {
        let primary = parts.ladders.primary();
        let mut extents = parts.layout.extents.clone();
        if let Some(primary) = primary {
            extents[primary] = bucket;
        }
        let bindings = parts.unifier.bindings(&extents);
        Frame { interface: parts.interface, primary, values: parts.values, start, rows, extents, bindings }
    }

    /// First row, rows, and extent of a dim in this chunk.
    fn span(&self, dim: usize) -> (usize, usize, usize) {
        let extent = self.extents[dim] as usize;
        if self.primary == Some(dim) {
            return (self.start as usize, self.rows as usize, extent);
        }
        (0, self.values[dim] as usize, extent)
    }

    /// The copy of an input's rows into its padded form.
    fn input_copy(&self, input: usize, shape: &[usize], element_bytes: usize) -> BoxCopy {
        let mut spans = Vec::new();
        for (dim, &source) in self.interface.inputs[input].ty.dims.iter().zip(shape) {
            match self.moving_dim(dim) {
                None => spans.push(AxisSpan::whole(source)),
                Some(position) => {
                    let (start, rows, target) = self.span(position);
                    let inner = dim.eval(&self.bindings).unwrap_or(0) as usize / target.max(1);
                    let source = source / inner.max(1);
                    let pad = target - rows;
                    spans.push(AxisSpan { source, target, source_start: start, target_start: 0, count: rows, pad });
                    spans.push(AxisSpan::whole(inner));
                }
            }
        }
        BoxCopy::new(&spans, element_bytes)
    }

    /// The copy of an output's real rows to the caller.
    fn output_copy(&self, output: usize, port: &Port, form: &OutputForm, element_bytes: usize) -> BoxCopy {
        let mut spans = Vec::new();
        for (axis, (&source, &target)) in port.shape.iter().zip(&form.shape).enumerate() {
            let at = (0..self.extents.len()).find_map(|dim| {
                let rows = self.interface.dims[dim].outputs.get(output).copied().flatten()?;
                (rows.axis == axis && self.is_moving(dim)).then_some((dim, rows))
            });
            match at {
                None => {
                    debug_assert_eq!(source as usize, target, "only rows are padded");
                    spans.push(AxisSpan::whole(target));
                }
                Some((dim, rows)) => {
                    let (start, count, extent) = self.span(dim);
                    spans.push(AxisSpan::whole(rows.outer));
                    spans.push(AxisSpan {
                        source: extent,
                        target: self.values[dim] as usize,
                        source_start: 0,
                        target_start: start,
                        count,
                        pad: 0,
                    });
                    spans.push(AxisSpan::whole(rows.inner));
                }
            }
        }
        BoxCopy::new(&spans, element_bytes)
    }

    /// Whether an output has rows of the primary dim.
    fn has_rows(&self, output: usize) -> bool {
        let rows = |primary: usize| self.interface.dims[primary].outputs.get(output).copied().flatten();
        self.primary.is_some_and(|primary| rows(primary).is_some())
    }

    /// Whether a dim's extent in the Program is not the request's.
    fn is_moving(&self, dim: usize) -> bool {
        self.extents[dim] != self.values[dim]
    }

    /// The dim of an axis whose extent in the Program is not the request's.
    fn moving_dim(&self, dim: &Dim) -> Option<usize> {
        let symbols = dim.symbols();
        let position = |symbol: &str| self.interface.dims.iter().position(|dim| dim.symbol == symbol);
        symbols.iter().filter_map(|symbol| position(symbol.as_str())).find(|&dim| self.is_moving(dim))
    }
}

fn output_forms(parts: &Parts<'_>) -> Result<Vec<OutputForm>, SessionError> {
    let bindings = parts.unifier.bindings(parts.values);
    let ports = &parts.entries[0].program().outputs;
    let form = |(position, port): (usize, &Port)| {
        let dtype = dtype_of(port)?;
        let shape: Vec<usize> =
            match parts.interface.outputs.get(position).and_then(|port| port.ty.bind(&bindings).shape()) {
                Some(shape) => shape,
                // Without a symbolic Type nothing is padded, so the Program's sizes are the request's.
                None => port.shape.iter().map(|&size| size as usize).collect(),
            };
        let bytes = shape.iter().product::<usize>() * dtype.size_bytes();
        Ok(OutputForm { dtype, shape, bytes })
    };
    ports.iter().enumerate().map(form).collect()
}

fn dtype_of(port: &Port) -> Result<DType, SessionError> {
    let unknown = || SessionError::Source(format!("'{}' has the unknown type {}", port.name, port.dtype));
    DType::from_name(&port.dtype).ok_or_else(unknown)
}

fn element_bytes(port: &Port) -> Result<usize, SessionError> {
    Ok(dtype_of(port)?.size_bytes())
}

/// A place of a port's size at the end of a buffer.
fn take(end: &mut usize, port: &Port) -> usize {
    let start = end.next_multiple_of(STAGING_ALIGN);
    *end = start + port.bytes as usize;
    start
}
