//! Activations that exporters spell out become the one op that they are.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::{BinaryFn, Unary, UnaryFn};
use precast_ir::{Graph, Node, Op, ValueId};

use crate::pipeline::{Class, Pass, PassOptions};

/// The pass.
pub const PASS: Pass = Pass {
    name: "recognise_activations",
    doc: "x · sigmoid(x) → silu(x); x · clamp(x + 3, 0, 6) / 6 → hard_swish(x); x · (1 + erf(x/√2)) / 2 → gelu_erf(x)",
    class: Class::Rounding,
    run: recognise_activations,
};

fn recognise_activations(graph: &Graph, _: &PassOptions) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let found = silu(graph, node).or_else(|| hard_swish(graph, node)).or_else(|| gelu(graph, node));
        match found {
            Some((op, x)) if graph.ty(x) == graph.ty(node.outputs[0]) => {
                let x = copy.get(x);
                let output = copy.new.add(op, &[x], &node.provenance)?;
                copy.set(node.outputs[0], output);
            }
            _ => copy.node(node)?,
        }
    }
    Ok(copy.finish())
}

/// The operands of a binary function, if the node is one.
fn binary(node: &Node, func: BinaryFn) -> Option<(ValueId, ValueId)> {
    match &node.op {
        Op::Binary(op) if op.func == func => Some((node.inputs[0], node.inputs[1])),
        _ => None,
    }
}

/// The operands of the binary function that makes a value.
fn made_by(graph: &Graph, value: ValueId, func: BinaryFn) -> Option<(ValueId, ValueId)> {
    binary(graph.producer(value)?.0, func)
}

/// The operand of the unary function that makes a value.
fn made_by_unary(graph: &Graph, value: ValueId, func: UnaryFn) -> Option<ValueId> {
    let (node, _) = graph.producer(value)?;
    match &node.op {
        Op::Unary(op) if op.func == func => Some(node.inputs[0]),
        _ => None,
    }
}

/// Whether a value is a one-element constant equal to `number` as its element type writes it.
fn is_number(graph: &Graph, value: ValueId, number: f64) -> bool {
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
fn beside_number(graph: &Graph, operands: (ValueId, ValueId), number: f64) -> Option<ValueId> {
    if is_number(graph, operands.1, number) {
        return Some(operands.0);
    }
    is_number(graph, operands.0, number).then_some(operands.1)
}

fn silu(graph: &Graph, node: &Node) -> Option<(Unary, ValueId)> {
    let (a, b) = binary(node, BinaryFn::Mul)?;
    let is_pair = |x: ValueId, y: ValueId| made_by_unary(graph, y, UnaryFn::Sigmoid) == Some(x);
    let x = if is_pair(a, b) {
        a
    } else if is_pair(b, a) {
        b
    } else {
        return None;
    };
    Some((Unary { func: UnaryFn::Silu, alpha: 1.0, beta: 0.0 }, x))
}

/// x · clamp(x + 3, 0, 6) / 6
fn hard_swish(graph: &Graph, node: &Node) -> Option<(Unary, ValueId)> {
    let (product, six) = binary(node, BinaryFn::Div)?;
    if !is_number(graph, six, 6.0) {
        return None;
    }
    let (a, b) = made_by(graph, product, BinaryFn::Mul)?;
    let shifted = |value: ValueId| {
        let (clamp, _) = graph.producer(value)?;
        match &clamp.op {
            Op::Clamp(op) if op.lo == 0.0 && op.hi == 6.0 => {
                beside_number(graph, made_by(graph, clamp.inputs[0], BinaryFn::Add)?, 3.0)
            }
            _ => None,
        }
    };
    let x = if shifted(b) == Some(a) {
        a
    } else if shifted(a) == Some(b) {
        b
    } else {
        return None;
    };
    Some((Unary { func: UnaryFn::HardSwish, alpha: 0.0, beta: 0.0 }, x))
}

/// x · (1 + erf(x/√2)) · ½ with the factors in any order.
fn gelu(graph: &Graph, node: &Node) -> Option<(Unary, ValueId)> {
    let factors = factors_of(graph, node)?;
    let mut halves = factors.iter().filter(|&&factor| is_number(graph, factor, 0.5));
    let _half = halves.next()?;
    let sum = *factors.iter().find(|&&factor| {
        made_by(graph, factor, BinaryFn::Add).is_some_and(|operands| {
            beside_number(graph, operands, 1.0).is_some_and(|erf| made_by_unary(graph, erf, UnaryFn::Erf).is_some())
        })
    })?;
    let erf = beside_number(graph, made_by(graph, sum, BinaryFn::Add)?, 1.0)?;
    let scaled = made_by_unary(graph, erf, UnaryFn::Erf)?;
    let x = match made_by(graph, scaled, BinaryFn::Div) {
        Some((x, root)) if is_number(graph, root, std::f64::consts::SQRT_2) => x,
        _ => beside_number(graph, made_by(graph, scaled, BinaryFn::Mul)?, std::f64::consts::FRAC_1_SQRT_2)?,
    };
    let is_product_of_three = factors.len() == 3 && factors.contains(&x);
    is_product_of_three.then_some((Unary { func: UnaryFn::GeluErf, alpha: 0.0, beta: 0.0 }, x))
}

/// The three factors of a · (b · c) or (a · b) · c; a division by 2 counts as a factor of ½ only where it is spelled so.
fn factors_of(graph: &Graph, node: &Node) -> Option<Vec<ValueId>> {
    let (a, b) = binary(node, BinaryFn::Mul)?;
    if let Some((x, y)) = made_by(graph, a, BinaryFn::Mul)
        && [x, y, b].iter().any(|&factor| is_number(graph, factor, 0.5))
    {
        return Some(vec![x, y, b]);
    }
    let (x, y) = made_by(graph, b, BinaryFn::Mul)?;
    Some(vec![a, x, y])
}
