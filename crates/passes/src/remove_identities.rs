//! Nodes that give back their input are dropped; chains of one kind of view become one view; nested casts merge where
//! the inner type holds every value of the source.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::{BinaryFn, Cast, Reshape, Slice, Transpose};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::{DType, Dim, Tensor};

use crate::log::Log;
use crate::pipeline::{Class, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "remove_identities",
    doc: "reshape(reshape(x)) → reshape(x); cast to x's own type, full slices, x·1, x−0 → x; \
          gather(x, 2) → slice(x); a transpose of axes of size 1 → reshape",
    class: Class::Exact,
    run: Run::Plain(remove_identities),
};

fn remove_identities(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let inputs = copy.get_all(&node.inputs);
        if let Some(same) = identity(&copy.new, graph, node, &inputs) {
            copy.set(node.outputs[0], same);
            log.fired(node);
            continue;
        }
        if let Some(slice) = one_index(&copy.new, node, &inputs) {
            log.fired(node);
            let part = copy.new.add(slice, &inputs[..1], &node.provenance)?;
            let shape = graph.ty(node.outputs[0]).dims.clone();
            let output = copy.new.add(Reshape { shape }, &[part], &node.provenance)?;
            copy.set(node.outputs[0], output);
            continue;
        }
        if let Some(shape) = as_reshape(&copy.new, node, &inputs) {
            log.fired(node);
            let source = through_reshape(&copy.new, inputs[0]);
            let is_same = copy.new.ty(source).dims == shape;
            let output = if is_same { source } else { copy.new.add(Reshape { shape }, &[source], &node.provenance)? };
            copy.set(node.outputs[0], output);
            continue;
        }
        match merged(&copy.new, node, &inputs) {
            Some((op, source)) => {
                log.fired(node);
                let output = copy.new.add(op, &[source], &node.provenance)?;
                copy.set(node.outputs[0], output);
            }
            None => copy.node(node)?,
        }
    }
    Ok(copy.finish())
}

/// The slice that a gather of one constant index is (V16).
fn one_index(new: &Graph, node: &Node, inputs: &[ValueId]) -> Option<Slice> {
    let Op::Gather(op) = &node.op else { return None };
    let (x, index) = (new.ty(inputs[0]), new.constant(inputs[1])?);
    x.shape()?;
    let size = x.dims[op.axis].as_const()?;
    let [at] = index.to_i128_vec().ok()?[..] else { return None };
    let at = if at < 0 { at + i128::from(size) } else { at };
    let at = i64::try_from(at).ok().filter(|at| (0..size).contains(at))?;
    let mut slice = Slice { start: vec![Dim::ZERO; x.rank()], step: vec![1; x.rank()], size: x.dims.clone() };
    slice.start[op.axis] = Dim::from(at);
    slice.size[op.axis] = Dim::ONE;
    Some(slice)
}

/// The shape of a transpose that only moves axes of size 1, which moves no element.
fn as_reshape(new: &Graph, node: &Node, inputs: &[ValueId]) -> Option<Vec<Dim>> {
    let Op::Transpose(op) = &node.op else { return None };
    let shape = new.ty(inputs[0]).shape()?;
    let moved: Vec<usize> = op.perm.iter().copied().filter(|&axis| shape[axis] != 1).collect();
    moved.is_sorted().then(|| op.perm.iter().map(|&axis| Dim::from(shape[axis])).collect())
}

fn through_reshape(new: &Graph, value: ValueId) -> ValueId {
    match new.producer(value) {
        Some((node, _)) if matches!(node.op, Op::Reshape(_)) => node.inputs[0],
        _ => value,
    }
}

/// The input that a node gives back unchanged.
fn identity(new: &Graph, old: &Graph, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
    let (&first, &output) = (inputs.first()?, node.outputs.first()?);
    let is_same_type = new.ty(first) == old.ty(output);
    let is_identity = match &node.op {
        Op::Reshape(_) | Op::Broadcast(_) | Op::Slice(_) | Op::Cast(_) | Op::Bitcast(_) => {
            is_same_type && is_plain_view(&node.op)
        }
        Op::Transpose(op) => op.perm.iter().enumerate().all(|(axis, &from)| axis == from),
        Op::Concat(_) => inputs.len() == 1,
        Op::Pad(op) => op.lo.iter().chain(&op.hi).all(|dim| dim.as_const() == Some(0)),
        Op::Binary(op) => {
            return match op.func {
                BinaryFn::Mul => unit_operand(new, old, node, inputs, 1.0, true),
                BinaryFn::Div => unit_operand(new, old, node, inputs, 1.0, false),
                // x + (-0) keeps every x; x + 0 would turn -0 into 0.
                BinaryFn::Add => unit_operand(new, old, node, inputs, -0.0, true),
                BinaryFn::Sub => unit_operand(new, old, node, inputs, 0.0, false),
                _ => None,
            };
        }
        _ => false,
    };
    is_identity.then_some(first)
}

/// A slice with steps of one covers everything when it keeps the Type; other steps may reorder.
fn is_plain_view(op: &Op) -> bool {
    match op {
        Op::Slice(slice) => {
            slice.step.iter().zip(&slice.start).all(|(&step, start)| step == 1 && *start == Dim::from(0))
        }
        _ => true,
    }
}

/// The operand that is left when the other is a constant full of `unit`, bit for bit.
fn unit_operand(
    new: &Graph,
    old: &Graph,
    node: &Node,
    inputs: &[ValueId],
    unit: f64,
    is_commutative: bool,
) -> Option<ValueId> {
    let output = old.ty(node.outputs[0]);
    let is_unit = |value: ValueId| new.constant(value).is_some_and(|tensor| is_all(tensor, unit));
    let (&a, &b) = (inputs.first()?, inputs.get(1)?);
    if is_unit(b) && new.ty(a) == output {
        return Some(a);
    }
    (is_commutative && is_unit(a) && new.ty(b) == output).then_some(b)
}

/// Constants with more elements than this are not looked through.
const UNIT_ELEMENTS_MAX: usize = 4096;

fn is_all(tensor: &Tensor, number: f64) -> bool {
    if tensor.len() > UNIT_ELEMENTS_MAX || tensor.is_empty() {
        return false;
    }
    if tensor.dtype().is_float() {
        tensor.to_f64_vec().iter().all(|element| element.to_bits() == number.to_bits())
    } else {
        tensor.dtype() != DType::Bool
            && tensor.to_i128_vec().is_ok_and(|elements| elements.iter().all(|&element| element == number as i128))
    }
}

/// One view or cast for two in a row.
fn merged(new: &Graph, node: &Node, inputs: &[ValueId]) -> Option<(Op, ValueId)> {
    let (inner, _) = new.producer(*inputs.first()?)?;
    let source = *inner.inputs.first()?;
    match (&node.op, &inner.op) {
        (Op::Reshape(outer), Op::Reshape(_)) => Some((Reshape { shape: outer.shape.clone() }.into(), source)),
        (Op::Transpose(outer), Op::Transpose(inner)) => {
            let perm = outer.perm.iter().map(|&axis| inner.perm[axis]).collect();
            Some((Transpose { perm }.into(), source))
        }
        (Op::Cast(outer), Op::Cast(inner)) if holds_all(inner.to, new.ty(source).dtype) => {
            Some((Cast { to: outer.to, saturate: outer.saturate }.into(), source))
        }
        _ => None,
    }
}

/// Whether every value of `narrow` is a value of `wide`.
fn holds_all(wide: DType, narrow: DType) -> bool {
    if wide == narrow {
        return true;
    }
    if narrow == DType::Bool {
        return true;
    }
    match (wide.int_range(), narrow.int_range()) {
        (Some(wide), Some(narrow)) => wide.0 <= narrow.0 && narrow.1 <= wide.1,
        (None, Some((lo, hi))) => {
            // Integers up to the size of the significand are exact.
            let exact: i128 = match wide {
                DType::F64 => 1 << 53,
                DType::F32 => 1 << 24,
                DType::F16 => 1 << 11,
                DType::BF16 => 1 << 8,
                _ => return false,
            };
            -exact <= lo && hi <= exact
        }
        (None, None) => match wide {
            DType::F64 => true,
            DType::F32 => !matches!(narrow, DType::F64),
            _ => false,
        },
        (Some(_), None) => false,
    }
}
