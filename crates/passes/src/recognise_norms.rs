//! Layer norms and RMS norms over the last axis that exporters spell out become the one op that they are.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::{Binary, BinaryFn, LayerNorm, ReduceFn, RmsNorm, UnaryFn};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::DType;

use crate::log::{Log, Reason};
use crate::pattern::{beside_constant, binary, is_number, made_by, made_by_unary};
use crate::pipeline::{Class, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "recognise_norms",
    doc: "d / √(mean(d²) + ε) · s + b with d = x − mean(x) → layer_norm(x, s, b); x / √(mean(x²) + ε) · s → rms_norm(x, s)",
    class: Class::Rounding,
    run: Run::Plain(recognise_norms),
};

/// Not f32.
const TYPE: Reason = "type";
/// The scale has other than one number for each element of the last axis.
const SCALE_SHAPE: Reason = "scale-shape";

fn recognise_norms(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let norm = with_bias(graph, node).or_else(|| without_bias(graph, node));
        let Some(norm) = norm.or_else(|| spelled_out(graph, node)) else {
            if let Some(reason) = why_not(graph, node) {
                log.refused(node, reason);
            }
            copy.node(node)?;
            continue;
        };
        log.fired(node);
        let inputs = copy.get_all(&norm.inputs);
        let output = copy.new.add(norm.op, &inputs, &node.provenance)?;
        copy.set(node.outputs[0], output);
    }
    Ok(copy.finish())
}

/// What a node becomes.
struct Norm {
    op: Op,
    inputs: Vec<ValueId>,
}

/// Why a product that scales a unit row is no norm.
fn why_not(graph: &Graph, node: &Node) -> Option<Reason> {
    let (a, b) = binary(node, BinaryFn::Mul)?;
    let unit = [a, b].into_iter().find_map(|unit| unit_of(graph, unit))?;
    Some(if graph.ty(unit.d).dtype != DType::F32 { TYPE } else { SCALE_SHAPE })
}

/// layer_norm(x, s) + b
fn with_bias(graph: &Graph, node: &Node) -> Option<Norm> {
    let (a, b) = binary(node, BinaryFn::Add)?;
    [(a, b), (b, a)].into_iter().find_map(|(scaled, bias)| {
        let mut norm = without_bias(graph, graph.producer(scaled)?.0)?;
        let fits = matches!(norm.op, Op::LayerNorm(_)) && is_row(graph, bias, scaled);
        norm.inputs.push(bias);
        fits.then_some(norm)
    })
}

/// d / √(mean(d²) + ε) · s: a layer norm where d is x − mean(x), else an RMS norm of d.
fn without_bias(graph: &Graph, node: &Node) -> Option<Norm> {
    let (a, b) = binary(node, BinaryFn::Mul)?;
    let (unit, scale) = [(a, b), (b, a)].into_iter().find_map(|(unit, scale)| Some((unit_of(graph, unit)?, scale)))?;
    let Unit { d, epsilon, .. } = unit;
    if graph.ty(d).dtype != DType::F32 || !is_row(graph, scale, d) || is_dequantised(graph, d) {
        return None;
    }
    let axis = graph.ty(d).rank() - 1;
    let centred = made_by(graph, d, BinaryFn::Sub).filter(|&(x, mean)| mean_of(graph, mean) == Some(x));
    Some(match centred {
        Some((x, _)) => Norm { op: LayerNorm { axis, epsilon }.into(), inputs: vec![x, scale] },
        None => Norm { op: RmsNorm { axis, epsilon }.into(), inputs: vec![d, scale] },
    })
}

/// d / √(mean(d²) + ε) of dequantised values, as a quotient. Other runtimes give every reader of such a value a
/// dequantize of its own, which hides the norm from them; a quantised model needs their last bit.
fn spelled_out(graph: &Graph, node: &Node) -> Option<Norm> {
    let unit = unit_of(graph, *node.outputs.first()?)?;
    let is_product = matches!(&node.op, Op::Binary(op) if op.func == BinaryFn::Mul);
    (is_product && is_dequantised(graph, unit.d))
        .then(|| Norm { op: Binary { func: BinaryFn::Div }.into(), inputs: vec![unit.d, unit.root] })
}

fn is_dequantised(graph: &Graph, value: ValueId) -> bool {
    graph.producer(value).is_some_and(|(node, _)| matches!(node.op, Op::Dequantize(_)))
}

/// A value whose rows are divided by the root of their mean square.
struct Unit {
    d: ValueId,
    root: ValueId,
    epsilon: f64,
}

/// d / √(mean(d²) + ε), also as d · (1 / √(mean(d²) + ε)).
fn unit_of(graph: &Graph, value: ValueId) -> Option<Unit> {
    let (d, root) = made_by(graph, value, BinaryFn::Div).or_else(|| {
        let (a, b) = made_by(graph, value, BinaryFn::Mul)?;
        [(a, b), (b, a)].into_iter().find_map(|(d, inverse)| Some((d, inverted(graph, inverse)?)))
    })?;
    let sum = made_by(graph, made_by_unary(graph, root, UnaryFn::Sqrt)?, BinaryFn::Add)?;
    let (mean, epsilon) = beside_constant(graph, sum)?;
    let squared = mean_of(graph, mean)?;
    let is_square = match made_by(graph, squared, BinaryFn::Pow) {
        Some((base, exponent)) => base == d && is_number(graph, exponent, 2.0),
        None => made_by(graph, squared, BinaryFn::Mul) == Some((d, d)),
    };
    is_square.then_some(Unit { d, root, epsilon })
}

/// r where the value is 1 / r.
fn inverted(graph: &Graph, value: ValueId) -> Option<ValueId> {
    let (one, root) = made_by(graph, value, BinaryFn::Div)?;
    is_number(graph, one, 1.0).then_some(root)
}

/// What the value is the mean of, over the last axis, which stays.
fn mean_of(graph: &Graph, value: ValueId) -> Option<ValueId> {
    let (node, _) = graph.producer(value)?;
    let x = node.inputs.first().copied()?;
    match &node.op {
        Op::Reduce(op) if op.func == ReduceFn::Mean && op.keep_dims => {
            (op.axes.len() == 1 && op.axes[0] + 1 == graph.ty(x).rank()).then_some(x)
        }
        _ => None,
    }
}

/// Whether a value has one element for each of the last axis of `x`.
fn is_row(graph: &Graph, value: ValueId, x: ValueId) -> bool {
    let (row, x) = (graph.ty(value), graph.ty(x));
    row.dtype == x.dtype && row.rank() == 1 && row.dims.last() == x.dims.last()
}
