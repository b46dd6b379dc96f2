//! A float times zero is zero (A2). A NaN or an infinity would have been a NaN; class F takes them for numbers.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::{BinaryFn, Broadcast};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::Tensor;

use crate::fast_math::FastRewrite;
use crate::log::Log;
use crate::pattern::binary;
use crate::pipeline::{Class, Liberty, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "fold_zero_products",
    doc: "x · 0 → 0; 0 / x → 0, for floats",
    class: Class::Fast(Liberty::Math(FastRewrite::Zero)),
    run: Run::Plain(fold_zero_products),
};

fn fold_zero_products(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let zero = if is_zero_product(graph, node) { zero_of(graph, node) } else { None };
        let Some(zero) = zero else {
            copy.node(node)?;
            continue;
        };
        log.fired(node);
        let zero = copy.new.add_constant(zero);
        let shape = graph.ty(node.outputs[0]).dims.clone();
        let output = copy.new.add(Broadcast { shape }, &[zero], &node.provenance)?;
        copy.set(node.outputs[0], output);
    }
    Ok(copy.finish())
}

fn is_zero_product(graph: &Graph, node: &Node) -> bool {
    // A product of constants is for fold_constants, which keeps NaN.
    if !matches!(node.op, Op::Binary(_)) || node.inputs.iter().all(|&input| graph.constant(input).is_some()) {
        return false;
    }
    let is_zero = |value: ValueId| {
        graph.constant(value).is_some_and(|tensor| {
            tensor.dtype().is_float() && !tensor.is_empty() && tensor.to_f64_vec().iter().all(|&element| element == 0.0)
        })
    };
    binary(node, BinaryFn::Mul).is_some_and(|(a, b)| is_zero(a) || is_zero(b))
        || binary(node, BinaryFn::Div).is_some_and(|(a, _)| is_zero(a))
}

/// A zero of the result's element type.
fn zero_of(graph: &Graph, node: &Node) -> Option<Tensor> {
    Tensor::from_f64(graph.ty(node.outputs[0]).dtype, Vec::new(), &[0.0], false).ok()
}
