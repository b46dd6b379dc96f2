//! Concatenations of concatenations, slices of them, and slices put together again (V8, V9, A24).

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::{Concat, Slice};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::Dim;

use crate::log::Log;
use crate::pipeline::{Class, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "simplify_concats",
    doc: "concat(concat(x, y), z) → concat(x, y, z) on one axis; slice(concat(x, y)) inside x → slice(x); \
          concat(x[0:2], x[2:4]) → x[0:4]",
    class: Class::Exact,
    run: Run::Plain(simplify_concats),
};

fn simplify_concats(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let uses = graph.use_counts();
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let simpler = match &node.op {
            Op::Slice(slice) => {
                inside_one_input(graph, slice, node.inputs[0]).map(|(slice, input)| (Op::Slice(slice), vec![input]))
            }
            Op::Concat(concat) => {
                let flat = flattened(graph, &uses, concat, node);
                let joined = joined_slices(graph, concat.axis, &flat);
                let is_simpler = joined.len() < flat.len() || flat.len() > node.inputs.len();
                is_simpler.then(|| (node.op.clone(), joined))
            }
            _ => None,
        };
        let Some((op, inputs)) = simpler else {
            copy.node(node)?;
            continue;
        };
        log.fired(node);
        let mut values = Vec::with_capacity(inputs.len());
        for input in inputs {
            values.push(match input {
                Part::Value(value) => copy.get(value),
                Part::Slice(slice, value) => {
                    let value = copy.get(value);
                    copy.new.add(slice, &[value], &node.provenance)?
                }
            });
        }
        let is_one = matches!(op, Op::Concat(_)) && values.len() == 1;
        let output = if is_one { values[0] } else { copy.new.add(op, &values, &node.provenance)? };
        copy.set(node.outputs[0], output);
    }
    Ok(copy.finish())
}

/// An input of a new node: a value of the old Graph, or a slice of one.
enum Part {
    Value(ValueId),
    Slice(Slice, ValueId),
}

/// The slice of the one input of a concatenation that a slice of its result lies in.
fn inside_one_input(graph: &Graph, slice: &Slice, value: ValueId) -> Option<(Slice, Part)> {
    let (node, _) = graph.producer(value)?;
    let Op::Concat(Concat { axis }) = node.op else { return None };
    let number = |dim: &Dim| dim.as_const();
    let (first, size) = (number(&slice.start[axis])?, number(&slice.size[axis])?);
    if size == 0 {
        return None;
    }
    let last = first + (size - 1) * slice.step[axis];
    let (low, high) = (first.min(last), first.max(last));
    let mut begin = 0;
    for &input in &node.inputs {
        let end = begin + number(&graph.ty(input).dims[axis])?;
        if begin <= low && high < end {
            let mut slice = slice.clone();
            slice.start[axis] = Dim::from(first - begin);
            return Some(inside_one_input(graph, &slice, input).unwrap_or((slice, Part::Value(input))));
        }
        begin = end;
    }
    None
}

/// The inputs of a concatenation with those of concatenations that only it reads in their place.
fn flattened(graph: &Graph, uses: &[u32], concat: &Concat, node: &Node) -> Vec<ValueId> {
    let parts = |&input: &ValueId| match graph.producer(input) {
        Some((Node { op: Op::Concat(inner), inputs, .. }, _))
            if inner.axis == concat.axis && uses[input.0 as usize] == 1 =>
        {
            inputs.clone()
        }
        _ => vec![input],
    };
    node.inputs.iter().flat_map(parts).collect()
}

/// The inputs of a concatenation with neighbouring slices of one value as one slice, or as the value itself.
fn joined_slices(graph: &Graph, axis: usize, inputs: &[ValueId]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for &input in inputs {
        let next = slice_of(graph, input);
        if let (Some((slice, source)), Some(last)) = (&next, parts.last_mut())
            && let Some(joined) = joined(graph, last, slice, *source, axis)
        {
            *last = Part::Slice(joined, *source);
            continue;
        }
        parts.push(Part::Value(input));
    }
    parts.into_iter().map(|part| whole(graph, part)).collect()
}

/// The slice that a part and the slice after it are together.
fn joined(graph: &Graph, part: &Part, slice: &Slice, source: ValueId, axis: usize) -> Option<Slice> {
    let (before, before_source) = match part {
        Part::Slice(before, source) => (before.clone(), *source),
        Part::Value(value) => slice_of(graph, *value)?,
    };
    if source == before_source { join(&before, slice, axis) } else { None }
}

/// A slice of everything as the value.
fn whole(graph: &Graph, part: Part) -> Part {
    match part {
        Part::Slice(slice, source) if slice.size == graph.ty(source).dims => Part::Value(source),
        part => part,
    }
}

/// A value as a slice with steps of one and sizes that are numbers, and what it is a slice of.
fn slice_of(graph: &Graph, value: ValueId) -> Option<(Slice, ValueId)> {
    let (node, _) = graph.producer(value)?;
    let Op::Slice(slice) = &node.op else { return None };
    let is_plain = slice.step.iter().all(|&step| step == 1);
    let is_known = slice.start.iter().chain(&slice.size).all(|dim| dim.as_const().is_some());
    let is_empty = slice.size.iter().any(|size| size.as_const() == Some(0));
    (is_plain && is_known && !is_empty).then(|| (slice.clone(), node.inputs[0]))
}

/// Two slices of one value as one, if the second begins along `axis` where the first ends.
fn join(first: &Slice, second: &Slice, axis: usize) -> Option<Slice> {
    let rank = first.start.len();
    let is_same =
        |of: fn(&Slice) -> &Vec<Dim>| (0..rank).filter(|&at| at != axis).all(|at| of(first)[at] == of(second)[at]);
    let (start, size) = (first.start[axis].as_const()?, first.size[axis].as_const()?);
    let is_next = second.start[axis].as_const()? == start + size;
    if !is_next || !is_same(|slice| &slice.start) || !is_same(|slice| &slice.size) {
        return None;
    }
    let mut joined = first.clone();
    joined.size[axis] = Dim::from(size + second.size[axis].as_const()?);
    Some(joined)
}
