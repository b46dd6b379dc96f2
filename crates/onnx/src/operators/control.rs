//! If, Loop and Scan. What is decided while importing is written straight into the graph; the rest keeps its bodies.

mod scan;

use precast_ir::op::{If, Loop};
use precast_ir::{Graph, ValueId};
use precast_tensor::{DType, Tensor, Type};

use crate::import::{Fault, Import, NodeCx, StructureImport, Value};
use crate::proto::{GraphProto, NodeProto};

/// Rows of this family.
pub const IMPORTS: &[Import] = &[Import::onnx("Scan", 8, 2, scan::scan_8), Import::onnx("Scan", 9, 2, scan::scan_9)];

/// Rows that may give more than tensors.
pub const STRUCTURES: &[StructureImport] =
    &[StructureImport::onnx("If", 1, 1, import_if), StructureImport::onnx("Loop", 1, 1, import_loop)];

pub(super) use scan::{Scan, add_scan};

/// What an Import gives.
type Values = Result<Vec<ValueId>, Fault>;

/// What an Import of structures gives.
type Structures = Result<Vec<Value>, Fault>;

/// Loops of this many rounds or fewer are unrolled, ...
const UNROLLED_ROUNDS_MAX: i64 = 64;
/// ... if they become this many ONNX nodes or fewer.
const UNROLLED_NODES_MAX: usize = 2048;

/// Times that a loop's body is imported to find which dims of its carried values change.
const CARRIED_ATTEMPTS_MAX: usize = 4;

fn body_attribute<'n>(cx: &NodeCx<'n, '_>, name: &str) -> Result<&'n GraphProto, Fault> {
    cx.attributes().graph(name)?.ok_or_else(|| Fault::Invalid(format!("attribute '{name}' is missing")))
}

fn import_if(cx: &mut NodeCx<'_, '_>) -> Structures {
    let condition = cx.tensor_input(0)?;
    let (then_proto, else_proto) = (body_attribute(cx, "then_branch")?, body_attribute(cx, "else_branch")?);
    if let Some(tensor) = cx.constant(condition) {
        let is_true = constant_bool(&tensor, "the condition")?;
        return cx.inline(if is_true { then_proto } else { else_proto }, &[]);
    }
    let bodies = [then_proto, else_proto];
    let undecided =
        || Fault::NeedsValue { values: vec![condition], what: "the condition of two unlike branches".into() };
    if cx.captures_structures(&bodies) {
        return Err(undecided());
    }
    let (then_body, else_body) = match (cx.body(then_proto, &bodies, &[]), cx.body(else_proto, &bodies, &[])) {
        (Ok(then_body), Ok(else_body)) => (then_body, else_body),
        // A branch that can never be taken with these shapes need not make sense.
        (Err(Fault::Nested(_) | Fault::Invalid(_)), _) | (_, Err(Fault::Nested(_) | Fault::Invalid(_)))
            if cx.can_become_known(condition) =>
        {
            return Err(undecided());
        }
        (Err(fault), _) | (_, Err(fault)) => return Err(fault),
    };
    if output_types(&then_body) != output_types(&else_body) {
        return Err(undecided());
    }
    let mut inputs = vec![condition];
    inputs.extend(cx.captures(&bodies).into_iter().map(|(_, value)| value));
    Ok(tensors(cx.add_node(If { then_body, else_body }, &inputs)?))
}

fn output_types(body: &Graph) -> Vec<&Type> {
    body.outputs().iter().map(|output| body.ty(output.value)).collect()
}

fn constant_bool(tensor: &Tensor, what: &str) -> Result<bool, Fault> {
    match tensor.to_bools().as_deref() {
        Ok(&[is_true]) => Ok(is_true),
        _ => Err(Fault::Invalid(format!("{what} is {}; one bool was expected", tensor.type_()))),
    }
}

fn tensors(values: Vec<ValueId>) -> Vec<Value> {
    values.into_iter().map(Value::Tensor).collect()
}

fn import_loop(cx: &mut NodeCx<'_, '_>) -> Structures {
    let proto = body_attribute(cx, "body")?;
    let carried: Vec<Value> = (2..cx.input_count()).map(|position| cx.value(position)).collect::<Result<_, _>>()?;
    if proto.output.len() < 1 + carried.len() {
        let (found, expected) = (proto.output.len(), 1 + carried.len());
        return Err(Fault::Invalid(format!("the body has {found} outputs; {expected} or more were expected")));
    }
    let trips = match cx.optional(0) {
        Some(trips) => cx.reshape(trips, Vec::new())?,
        None => cx.tensor(Tensor::scalar(i64::MAX)),
    };
    let condition = match cx.optional(1) {
        Some(condition) => cx.reshape(condition, Vec::new())?,
        None => cx.scalar(DType::Bool, 1.0)?,
    };
    let plain: Option<Vec<ValueId>> = carried.iter().map(Value::tensor).collect();
    match plain.filter(|_| !cx.captures_structures(&[proto])) {
        Some(carried) => Ok(tensors(add_loop(cx, proto, trips, condition, &carried)?)),
        None => add_loop_of_structures(cx, proto, trips, condition, &carried),
    }
}

/// The rounds of a loop one after the other where that is short, else the loop.
fn add_loop(
    cx: &mut NodeCx<'_, '_>,
    proto: &GraphProto,
    trips: ValueId,
    condition: ValueId,
    carried: &[ValueId],
) -> Values {
    if let Some(values) = unroll(cx, proto, trips, condition, &tensors(carried.to_vec()))? {
        return values.iter().map(plain_tensor).collect();
    }
    let body = loop_body(cx, proto, carried)?;
    let mut inputs = vec![trips, condition];
    inputs.extend(carried);
    inputs.extend(cx.captures(&[proto]).into_iter().map(|(_, value)| value));
    cx.add_node(Loop { body, carried: carried.len() }, &inputs)
}

/// A Graph carries tensors alone, so a loop over anything else must become its rounds.
fn add_loop_of_structures(
    cx: &mut NodeCx<'_, '_>,
    proto: &GraphProto,
    trips: ValueId,
    condition: ValueId,
    carried: &[Value],
) -> Structures {
    if let Some(values) = unroll(cx, proto, trips, condition, carried)? {
        return Ok(values);
    }
    let unknown: Vec<ValueId> = [trips, condition].into_iter().filter(|&value| cx.constant(value).is_none()).collect();
    if unknown.is_empty() {
        let what =
            format!("a loop over sequences must have {UNROLLED_ROUNDS_MAX} rounds or fewer that are all decided");
        return Err(Fault::Unsupported(what));
    }
    Err(Fault::NeedsValue { values: unknown, what: "the number of rounds of a loop over sequences".to_string() })
}

fn plain_tensor(value: &Value) -> Result<ValueId, Fault> {
    value.tensor().ok_or_else(|| Fault::Invalid(format!("the body gives {}; a tensor was expected", value.kind())))
}

/// The rounds of a short loop one after the other, if every round's condition is known.
fn unroll(
    cx: &mut NodeCx<'_, '_>,
    proto: &GraphProto,
    trips: ValueId,
    condition: ValueId,
    carried: &[Value],
) -> Result<Option<Vec<Value>>, Fault> {
    let trips = cx.content(trips).and_then(|trips| trips.first()?.as_const());
    let Some(trips) = trips.filter(|trips| (0..=UNROLLED_ROUNDS_MAX).contains(trips)) else {
        return Ok(None);
    };
    let nodes = weight(proto).saturating_mul(trips as usize);
    if cx.constant(condition).is_none() || nodes > UNROLLED_NODES_MAX || !cx.may_unroll(nodes) {
        return Ok(None);
    }
    let (mut condition, mut carried) = (condition, carried.to_vec());
    let mut scans: Vec<Vec<ValueId>> = vec![Vec::new(); proto.output.len() - 1 - carried.len()];
    for round in 0..trips {
        // A condition that a run decides cannot be unrolled; what was added so far reaches no output.
        let Some(tensor) = cx.constant(condition) else {
            return Ok(None);
        };
        if !constant_bool(&tensor, "the condition")? {
            break;
        }
        let mut parameters = tensors(vec![cx.int_scalar(round), condition]);
        parameters.extend(carried.iter().cloned());
        let values = cx.inline(proto, &parameters)?;
        condition = plain_tensor(&values[0])?;
        let (next, slices) = values[1..].split_at(carried.len());
        for (scan, slice) in scans.iter_mut().zip(slices) {
            scan.push(cx.unsqueeze(plain_tensor(slice)?, &[0])?);
        }
        carried = next.to_vec();
    }
    if scans.iter().any(Vec::is_empty) {
        return Ok(None);
    }
    for scan in scans {
        carried.push(cx.concat(&scan, 0)?.into());
    }
    Ok(Some(carried))
}

/// Nodes that one round may become, if loops inside of it are unrolled too.
fn weight(body: &GraphProto) -> usize {
    let inner = |node: &NodeProto| {
        let rounds = if node.op_type == "Loop" || node.op_type == "Scan" { UNROLLED_ROUNDS_MAX as usize } else { 1 };
        let bodies = node.attribute.iter().filter_map(|attribute| attribute.g.as_deref());
        bodies.map(weight).fold(1, |sum: usize, body| sum.saturating_add(body.saturating_mul(rounds)))
    };
    body.node.iter().map(inner).fold(0, usize::saturating_add)
}

/// The body, with symbols for the dims of carried values that it changes.
fn loop_body(cx: &mut NodeCx<'_, '_>, proto: &GraphProto, carried: &[ValueId]) -> Result<Graph, Fault> {
    let mut parameters = vec![Type::scalar(DType::I64), Type::scalar(DType::Bool)];
    parameters.extend(carried.iter().map(|&value| cx.ty(value)));
    for _ in 0..CARRIED_ATTEMPTS_MAX {
        let mut body = cx.body(proto, &[proto], &parameters)?;
        let mut has_changed = false;
        for at in 0..carried.len() {
            let after = body.ty(body.outputs()[1 + at].value);
            let before = &mut parameters[2 + at];
            if after.dtype != before.dtype || after.rank() != before.rank() {
                return Err(Fault::Unsupported(format!("carried value {at} changes from {before} to {after}")));
            }
            for (axis, dim) in before.dims.iter_mut().enumerate() {
                // A symbol that was made here may change from round to round.
                let is_own = dim.as_symbol().is_some_and(|symbol| symbol.as_str().starts_with(CARRIED_STEM));
                if after.dims[axis] != *dim && !is_own {
                    *dim = cx.fresh_dim(CARRIED_STEM, None);
                    has_changed = true;
                }
            }
        }
        if !has_changed {
            // The loop names the sizes that it decides after its body, so that name must be its own.
            body.name = cx.fresh_name("loop");
            return Ok(body);
        }
    }
    Err(Fault::Unsupported("shapes of carried values do not settle".to_string()))
}

/// Begins the symbols of carried dims.
const CARRIED_STEM: &str = "carried";
