//! Constant factors of the operands of a product move behind it, where a kernel applies them for nothing.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::{Binary, BinaryFn};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::{DType, Tensor};

use crate::log::{Log, Reason};
use crate::pattern::{beside_constant, made_by};
use crate::pipeline::{Class, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "hoist_scales",
    doc: "matmul(x · a, y · b) → matmul(x, y) · ab, a and b constant numbers",
    class: Class::Rounding,
    run: Run::Plain(hoist_scales),
};

/// Not f32.
const TYPE: Reason = "type";
/// One operand is a constant.
const WEIGHTS_CONSTANT: Reason = "weights-constant";
/// The product of the factors is no normal number.
const RANGE: Reason = "range";

fn hoist_scales(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let uses = graph.use_counts();
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let Hoisted { operands, scale } = match hoisted(graph, &uses, node) {
            Some(Ok(hoisted)) => hoisted,
            Some(Err(reason)) => {
                log.refused(node, reason);
                copy.node(node)?;
                continue;
            }
            None => {
                copy.node(node)?;
                continue;
            }
        };
        log.fired(node);
        let mut rebuilt = Vec::new();
        for Bare { x, views } in &operands {
            let mut value = copy.get(*x);
            for view in views.iter().rev() {
                value = copy.new.add(view.op.clone(), &[value], &view.provenance)?;
            }
            rebuilt.push(value);
        }
        let operands = rebuilt;
        let product = copy.new.add(node.op.clone(), &operands, &node.provenance)?;
        let scale = copy.new.add_constant(scale);
        let output = copy.new.add(Binary { func: BinaryFn::Mul }, &[product, scale], &node.provenance)?;
        copy.set(node.outputs[0], output);
    }
    Ok(copy.finish())
}

/// A product without the factors of its operands, and the product of those.
struct Hoisted<'a> {
    operands: [Bare<'a>; 2],
    scale: Tensor,
}

/// An operand without its factor: x, and the views of it, last first.
struct Bare<'a> {
    x: ValueId,
    views: Vec<&'a Node>,
}

fn hoisted<'a>(graph: &'a Graph, uses: &[u32], node: &Node) -> Option<Result<Hoisted<'a>, Reason>> {
    let Op::Matmul(_) = node.op else { return None };
    let [a, b] = [0, 1].map(|operand| scaled(graph, uses, node.inputs[operand]));
    if a.is_none() && b.is_none() {
        return None;
    }
    let bare = |x: ValueId| (Bare { x, views: Vec::new() }, 1.0);
    let (a, a_scale) = a.unwrap_or_else(|| bare(node.inputs[0]));
    let (b, b_scale) = b.unwrap_or_else(|| bare(node.inputs[1]));
    let is_computed = |value: ValueId| graph.constant(value).is_none();
    let is_f32 = graph.ty(node.outputs[0]).dtype == DType::F32;
    // Products with weights have other epilogues, and their factors may go into the weights.
    if !is_f32 {
        return Some(Err(TYPE));
    }
    if !is_computed(a.x) || !is_computed(b.x) {
        return Some(Err(WEIGHTS_CONSTANT));
    }
    let scale = Tensor::from_f64(DType::F32, Vec::new(), &[a_scale * b_scale], false).ok()?;
    let is_normal = (scale.to_f64_vec()[0] as f32).is_normal();
    Some(if is_normal { Ok(Hoisted { operands: [a, b], scale }) } else { Err(RANGE) })
}

/// x and the number where the value is x times a number, also behind views.
fn scaled<'a>(graph: &'a Graph, uses: &[u32], value: ValueId) -> Option<(Bare<'a>, f64)> {
    let is_quantised = graph.nodes().iter().any(|node| matches!(node.op, Op::Quantize(_)));
    let (mut value, mut views) = (value, Vec::new());
    loop {
        // A scaled value that is read elsewhere is computed anyway.
        let (node, _) = graph.producer(value).filter(|_| uses[value.0 as usize] == 1)?;
        match &node.op {
            // Other runtimes do not look behind views, and a quantised model needs their last bit.
            Op::Reshape(_) | Op::Transpose(_) if !is_quantised => views.push(node),
            _ => break,
        }
        value = node.inputs[0];
    }
    let (x, factor) = beside_constant(graph, made_by(graph, value, BinaryFn::Mul)?)?;
    (graph.ty(x) == graph.ty(value)).then_some((Bare { x, views }, factor))
}
