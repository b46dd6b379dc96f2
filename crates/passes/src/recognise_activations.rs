//! Activations that exporters spell out become the one op that they are.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::{Binary, BinaryFn, Unary, UnaryFn};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::{DType, Tensor};

use crate::log::{Log, Reason};
use crate::pattern::{beside_number, binary, is_number, made_by, made_by_unary};
use crate::pipeline::{Class, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "recognise_activations",
    doc: "x · sigmoid(x) → silu(x); x · clamp(x + 3, 0, 6) / 6 → hard_swish(x); x · (1 + erf(x/√2)) / 2 → gelu_erf(x); \
          in quantised graphs instead sigmoid(x) → logistic(x), erf(x/√2) → erf(x·√½)",
    class: Class::Rounding,
    run: Run::Plain(recognise_activations),
};

/// The graph rounds to integers, where every bit counts.
const QUANTISED: Reason = "quantised";
/// The result has another shape than x.
const BROADCAST: Reason = "broadcast";

fn recognise_activations(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let is_quantised = graph.nodes().iter().any(|node| matches!(node.op, Op::Quantize(_)));
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let found = if is_quantised { None } else { silu(graph, node).or_else(|| gelu(graph, node)) };
        match found.or_else(|| hard_swish(graph, node)) {
            Some((op, x)) if graph.ty(x) == graph.ty(node.outputs[0]) => {
                log.fired(node);
                let x = copy.get(x);
                let output = copy.new.add(op, &[x], &node.provenance)?;
                copy.set(node.outputs[0], output);
            }
            _ if is_quantised => {
                if silu(graph, node).or_else(|| gelu(graph, node)).is_some() {
                    log.refused(node, QUANTISED);
                }
                spell_out(graph, node, &mut copy)?;
            }
            Some(_) => {
                log.refused(node, BROADCAST);
                copy.node(node)?;
            }
            _ => copy.node(node)?,
        }
    }
    Ok(copy.finish())
}

/// Copies a node of a quantised graph, whose activations stay spelled out in the form that other runtimes compute:
/// erf(x / √2) as erf(x · √½), sigmoid as logistic. gelu_erf and silu keep more digits below zero, but a quantised model
/// rounds what follows to integers: a last bit other than the model was made with grows from layer to layer.
fn spell_out(graph: &Graph, node: &Node, copy: &mut GraphCopy<'_>) -> Result<(), GraphError> {
    let Op::Unary(unary) = &node.op else { return copy.node(node) };
    if graph.ty(node.outputs[0]).dtype != DType::F32 {
        return copy.node(node);
    }
    let divided = made_by(graph, node.inputs[0], BinaryFn::Div);
    match (unary.func, divided) {
        (UnaryFn::Sigmoid, _) => copy.node_as(node, Unary { func: UnaryFn::Logistic, ..unary.clone() }.into()),
        (UnaryFn::Erf, Some((x, root))) if is_number(graph, root, std::f64::consts::SQRT_2) => {
            let factor = copy.new.add_constant(Tensor::scalar(std::f32::consts::FRAC_1_SQRT_2));
            let x = copy.get(x);
            let scaled = copy.new.add(Binary { func: BinaryFn::Mul }, &[x, factor], &node.provenance)?;
            let output = copy.new.add(node.op.clone(), &[scaled], &node.provenance)?;
            copy.set(node.outputs[0], output);
            Ok(())
        }
        _ => copy.node(node),
    }
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
