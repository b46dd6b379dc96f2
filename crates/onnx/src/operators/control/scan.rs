//! Scan as a Loop: one round a step, whose body takes the step's slices of the scanned values itself.

use precast_ir::ValueId;
use precast_tensor::{DType, Dim};

use crate::import::{Fault, NodeCx};
use crate::proto::{AttributeProto, AttributeType, GraphProto, NodeProto, ValueInfoProto};

use super::{Values, add_loop, body_attribute};

/// How a body goes over scanned values and collects its own.
pub(in crate::operators) struct Scan<'p> {
    /// Takes the states and one slice of each scanned value; gives the states and one slice of each result.
    body: &'p GraphProto,
    inputs: Vec<Track>,
    outputs: Vec<Track>,
}

/// Where time lies in a scanned value or result.
#[derive(Clone, Copy, Debug)]
struct Track {
    axis: i64,
    is_reversed: bool,
}

impl Scan<'_> {
    /// A body that goes forward over the first axis of `inputs` values.
    pub(in crate::operators) fn forward(body: &GraphProto, inputs: usize) -> Scan<'_> {
        let first = Track { axis: 0, is_reversed: false };
        Scan { body, inputs: vec![first; inputs], outputs: vec![first; body.output.len()] }
    }
}

pub(super) fn scan_9(cx: &mut NodeCx<'_, '_>) -> Values {
    let values = cx.all_inputs()?;
    let (states, scanned) = split_inputs(cx, &values)?;
    let scan = Scan {
        body: body_attribute(cx, "body")?,
        inputs: read_tracks(cx, "scan_input_axes", "scan_input_directions", scanned.len())?,
        outputs: read_tracks(cx, "scan_output_axes", "scan_output_directions", cx.output_count() - states.len())?,
    };
    add_scan(cx, &scan, states, scanned)
}

/// Opset 8 has a batch axis before time: each sample is scanned by itself.
pub(super) fn scan_8(cx: &mut NodeCx<'_, '_>) -> Values {
    if cx.optional(0).is_some() {
        return Err(Fault::Unsupported("sequence_lens is not covered: convert the model to opset 9".to_string()));
    }
    let values: Vec<ValueId> = (1..cx.input_count()).map(|position| cx.input(position)).collect::<Result<_, _>>()?;
    let (states, scanned) = split_inputs(cx, &values)?;
    let first = Track { axis: 0, is_reversed: false };
    let scan = Scan {
        body: body_attribute(cx, "body")?,
        inputs: read_tracks(cx, "axes", "directions", scanned.len())?,
        outputs: vec![first; cx.output_count() - states.len()],
    };
    let batch = cx.number(&cx.dims(values[0]).first().cloned().unwrap_or(Dim::ONE), "the batch of a scan")?;
    let mut samples: Vec<Vec<ValueId>> = Vec::new();
    for sample in 0..batch {
        let mut of_sample = Vec::new();
        for &value in &values {
            let slice = cx.slice_axis(value, 0, Dim::from(sample), Dim::ONE)?;
            of_sample.push(cx.squeeze(slice, &[0])?);
        }
        let (states, scanned) = of_sample.split_at(states.len());
        let outputs = add_scan(cx, &scan, states, scanned)?;
        samples.push(outputs.into_iter().map(|output| cx.unsqueeze(output, &[0])).collect::<Result<_, _>>()?);
    }
    let outputs = samples.first().map_or(0, Vec::len);
    (0..outputs)
        .map(|output| {
            let parts: Vec<ValueId> = samples.iter().map(|sample| sample[output]).collect();
            cx.concat(&parts, 0)
        })
        .collect()
}

/// States come first, scanned values last.
fn split_inputs<'v>(cx: &NodeCx<'_, '_>, values: &'v [ValueId]) -> Result<(&'v [ValueId], &'v [ValueId]), Fault> {
    let count = cx.int("num_scan_inputs", 0)?;
    let states =
        usize::try_from(count).ok().filter(|&count| count > 0).and_then(|count| values.len().checked_sub(count));
    match states {
        Some(states) if states <= cx.output_count() => Ok(values.split_at(states)),
        _ => Err(Fault::Invalid(format!("num_scan_inputs is {count} of {} inputs", values.len()))),
    }
}

fn read_tracks(cx: &NodeCx<'_, '_>, axes: &str, directions: &str, count: usize) -> Result<Vec<Track>, Fault> {
    let read = |name: &str| -> Result<Vec<i64>, Fault> {
        let list = cx.ints(name)?.unwrap_or_else(|| vec![0; count]);
        if list.len() == count {
            return Ok(list);
        }
        Err(Fault::Invalid(format!("attribute '{name}' has {} entries; {count} were expected", list.len())))
    };
    let (axes, directions) = (read(axes)?, read(directions)?);
    Ok(axes.into_iter().zip(directions).map(|(axis, direction)| Track { axis, is_reversed: direction != 0 }).collect())
}

/// The final states and then the collected results.
pub(in crate::operators) fn add_scan(
    cx: &mut NodeCx<'_, '_>,
    scan: &Scan<'_>,
    states: &[ValueId],
    scanned: &[ValueId],
) -> Values {
    if scan.body.input.len() != states.len() + scanned.len() || scan.body.output.len() < states.len() {
        let (inputs, outputs) = (scan.body.input.len(), scan.body.output.len());
        return Err(Fault::Invalid(format!("the body has {inputs} inputs and {outputs} outputs")));
    }
    let mut slices: Vec<String> = Vec::new();
    let mut steps = Dim::ZERO;
    for (&value, track) in scanned.iter().zip(&scan.inputs) {
        let axis = cx.axis(track.axis, cx.rank(value))?;
        let mut value = time_first(cx, value, axis)?;
        if track.is_reversed {
            value = cx.reverse_axis(value, 0)?;
        }
        steps = cx.dims(value)[0].clone();
        slices.push(cx.alias(value));
    }
    let body = loop_proto(cx, scan.body, states.len(), &slices);
    let (trips, condition) = (cx.dim_value(steps.clone())?, cx.scalar(DType::Bool, 1.0)?);
    let mut values = add_loop(cx, &body, trips, condition, states)?;
    for (value, track) in values[states.len()..].iter_mut().zip(&scan.outputs) {
        // A loop that is kept does not say that it has as many rounds as there are steps.
        *value = cx.slice_axis(*value, 0, Dim::ZERO, steps.clone())?;
        if track.is_reversed {
            *value = cx.reverse_axis(*value, 0)?;
        }
        let axis = cx.axis(track.axis, cx.rank(*value))?;
        *value = time_at(cx, *value, axis)?;
    }
    Ok(values)
}

fn time_first(cx: &mut NodeCx<'_, '_>, value: ValueId, axis: usize) -> Result<ValueId, Fault> {
    let mut perm: Vec<usize> = (0..cx.rank(value)).collect();
    perm.remove(axis);
    perm.insert(0, axis);
    cx.transpose(value, perm)
}

fn time_at(cx: &mut NodeCx<'_, '_>, value: ValueId, axis: usize) -> Result<ValueId, Fault> {
    let mut perm: Vec<usize> = (1..cx.rank(value)).collect();
    perm.insert(axis, 0);
    cx.transpose(value, perm)
}

/// The body of the Loop: round number, condition and states, then the slices are taken of the values named `slices`.
fn loop_proto(cx: &mut NodeCx<'_, '_>, scan: &GraphProto, states: usize, slices: &[String]) -> GraphProto {
    let named = |name: &str| ValueInfoProto { name: name.to_string(), ..ValueInfoProto::default() };
    let (round, condition) = (cx.fresh_name("round"), cx.fresh_name("goes_on"));
    let mut body = scan.clone();
    let sliced = body.input.split_off(states);
    body.input.splice(0..0, [named(&round), named(&condition)]);
    body.output.insert(0, named(&condition));
    let takes = slices.iter().zip(&sliced).map(|(from, to)| NodeProto {
        op_type: "Gather".to_string(),
        input: vec![from.clone(), round.clone()],
        output: vec![to.name.clone()],
        attribute: vec![AttributeProto {
            name: "axis".to_string(),
            r#type: Some(AttributeType::Int.into()),
            i: Some(0),
            ..AttributeProto::default()
        }],
        ..NodeProto::default()
    });
    body.node.splice(0..0, takes);
    body
}
