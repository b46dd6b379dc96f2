//! Words for patterns: which op made a value, and from what.

use precast_ir::op::{BinaryFn, UnaryFn};
use precast_ir::{Graph, Node, Op, ValueId};

/// The operands of a binary function, if the node is one.
pub(crate) fn binary(node: &Node, func: BinaryFn) -> Option<(ValueId, ValueId)> {
    match &node.op {
        Op::Binary(op) if op.func == func => Some((node.inputs[0], node.inputs[1])),
        _ => None,
    }
}

/// The operands of the binary function that makes a value.
pub(crate) fn made_by(graph: &Graph, value: ValueId, func: BinaryFn) -> Option<(ValueId, ValueId)> {
    binary(graph.producer(value)?.0, func)
}

/// The operand of the unary function that makes a value.
pub(crate) fn made_by_unary(graph: &Graph, value: ValueId, func: UnaryFn) -> Option<ValueId> {
    let (node, _) = graph.producer(value)?;
    match &node.op {
        Op::Unary(op) if op.func == func => Some(node.inputs[0]),
        _ => None,
    }
}

/// Whether a value is a one-element constant equal to `number` as its element type writes it.
pub(crate) fn is_number(graph: &Graph, value: ValueId, number: f64) -> bool {
    let Some(tensor) = graph.constant(value) else { return false };
    if tensor.len() != 1 {
        return false;
    }
    let rounded = match precast_tensor::Tensor::from_f64(tensor.dtype(), Vec::new(), &[number], false) {
        Ok(rounded) => rounded.to_f64_vec()[0],
        Err(_) => return false,
    };
    tensor.to_f64_vec()[0] == rounded
}

/// The other operand where one of two is the number.
pub(crate) fn beside_number(graph: &Graph, operands: (ValueId, ValueId), number: f64) -> Option<ValueId> {
    if is_number(graph, operands.1, number) {
        return Some(operands.0);
    }
    is_number(graph, operands.0, number).then_some(operands.1)
}

/// The other operand and the number where one of two is a one-element constant.
pub(crate) fn beside_constant(graph: &Graph, operands: (ValueId, ValueId)) -> Option<(ValueId, f64)> {
    let (a, b) = operands;
    [(a, b), (b, a)].into_iter().find_map(|(other, number)| {
        let tensor = graph.constant(number).filter(|tensor| tensor.len() == 1)?;
        Some((other, tensor.to_f64_vec()[0]))
    })
}
